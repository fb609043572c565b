//! IR of kernels as the source files that profilers and debuggers show lines of: `jit-PID.ix/NAME.ix`.
//!
//! The folder that it is made in may be one that others write to: it is this user's alone, and no link is followed.

use std::io;
use std::path::{Path, PathBuf};

use ixc_files::atomic_write;
use ixc_files::own::private_folder;

use super::{Named, ProfileError, failed};

/// The folder, which has a file for each kernel.
#[derive(Debug)]
pub(super) struct Sources {
    folder: PathBuf,
}

impl Sources {
    /// Makes this process's in a folder.
    pub(super) fn create(folder: &Path) -> Result<Sources, ProfileError> {
        let folder = std::path::absolute(folder).map_err(failed(folder, "find"))?;
        let sources = folder.join(format!("jit-{}.ix", std::process::id()));
        // Of an earlier process of this number there may be one, as in containers; what is in it is written over.
        let own = private_folder(&sources).and_then(|()| match std::fs::symlink_metadata(&sources)?.is_dir() {
            true => Ok(()),
            false => Err(io::Error::other("it is a link; remove it, or choose another place")),
        });
        own.map_err(failed(&sources, "make the folder of IR"))?;
        Ok(Sources { folder: sources })
    }

    /// Where it is.
    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    /// The file of a kernel.
    pub(super) fn file(&self, name: &str) -> PathBuf {
        self.folder.join(format!("{name}.ix"))
    }

    /// Writes kernels' IR.
    pub(super) fn add(&self, kernels: &[Named<'_>]) -> Result<(), ProfileError> {
        kernels.iter().try_for_each(|Named { name, placed }| {
            let (file, text) = (self.file(name), placed.kernel.to_string());
            let written = atomic_write(&file, text.as_bytes());
            written.map_err(|error| failed(&file, "write the IR")(io::Error::other(error)))
        })
    }
}
