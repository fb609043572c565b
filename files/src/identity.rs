//! Which file a path leads to: its device and its number there, which all of its names and links share.

use std::fs::{self, Metadata};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use crate::text::STANDARD;

/// Of a file, whatever it is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Identity {
    device: u64,
    number: u64,
}

impl Identity {
    /// Of what was asked already.
    pub fn of(metadata: &Metadata) -> Identity {
        Identity { device: metadata.dev(), number: metadata.ino() }
    }

    /// Of what a path leads to, links followed; `-` is standard input. Nothing where there is nothing.
    ///
    /// # Errors
    /// What the system says.
    pub fn of_input(path: &Path) -> io::Result<Option<Identity>> {
        if path.as_os_str() == STANDARD {
            let there = rustix::fs::fstat(io::stdin().as_fd())?;
            return Ok(Some(Identity { device: there.st_dev, number: there.st_ino }));
        }
        match fs::metadata(path) {
            Ok(there) => Ok(Some(Identity::of(&there))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }
}
