//! Identity of the file at a path: its device and inode numbers, which are the same for all hard
//! and symbolic links to it.

use std::fs::{self, Metadata};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use crate::text::STANDARD;

/// Identity of a file, independent of its path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Identity {
    device: u64,
    number: u64,
}

impl Identity {
    /// Reads the device and inode numbers from a file's metadata.
    pub fn from_metadata(metadata: &Metadata) -> Identity {
        Identity { device: metadata.dev(), number: metadata.ino() }
    }

    /// Returns the identity of the file at a path, with symbolic links followed; `-` is standard
    /// input. Returns `None` if the file does not exist.
    ///
    /// # Errors
    /// Returns the system's error if the metadata cannot be read for another reason.
    pub fn of_input(path: &Path) -> io::Result<Option<Identity>> {
        if path.as_os_str() == STANDARD {
            let there = rustix::fs::fstat(io::stdin().as_fd())?;
            return Ok(Some(Identity { device: there.st_dev, number: there.st_ino }));
        }
        match fs::metadata(path) {
            Ok(there) => Ok(Some(Identity::from_metadata(&there))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }
}
