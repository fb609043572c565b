//! IR of kernels as source files (`jit-PID.ix/NAME.ix`). Profilers and debuggers show lines of
//! these files.
//!
//! Other users may be able to write to the parent folder. The new folder is therefore accessible to
//! this user only, and links are not followed.

use std::io;
use std::path::{Path, PathBuf};

use ixc_files::atomic_write;
use ixc_files::private_files::private_folder;

use super::{NamedKernel, ProfileError, io_error};

/// The folder with one file per kernel.
#[derive(Debug)]
pub(super) struct Sources {
    folder: PathBuf,
}

impl Sources {
    /// Creates this process's folder inside `folder`.
    pub(super) fn create(folder: &Path) -> Result<Sources, ProfileError> {
        let folder = std::path::absolute(folder).map_err(io_error(folder, "find"))?;
        let sources = folder.join(format!("jit-{}.ix", std::process::id()));
        // An earlier process with this process number may have left a folder, as happens in
        // containers. Its files are overwritten.
        let own = private_folder(&sources).and_then(|()| match std::fs::symlink_metadata(&sources)?.is_dir() {
            true => Ok(()),
            false => Err(io::Error::other("the path is a symbolic link; remove the link, or choose another folder")),
        });
        own.map_err(io_error(&sources, "create the folder of IR"))?;
        Ok(Sources { folder: sources })
    }

    /// Returns the path of the folder.
    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Returns the path of a kernel's file.
    pub(super) fn file(&self, name: &str) -> PathBuf {
        self.folder.join(format!("{name}.ix"))
    }

    /// Writes the IR of kernels.
    pub(super) fn add(&self, kernels: &[NamedKernel<'_>]) -> Result<(), ProfileError> {
        kernels.iter().try_for_each(|NamedKernel { name, placed }| {
            let (file, text) = (self.file(name), placed.kernel.to_string());
            let written = atomic_write(&file, text.as_bytes());
            written.map_err(|error| io_error(&file, "write the IR")(io::Error::other(error)))
        })
    }
}
