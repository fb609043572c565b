//! Files of saved sequences, whose names come from clients.
//!
//! Invariant: an error names a file to the client, but reveals neither its folder nor its content.
//! Links are not followed.

use std::fs::File;
use std::io::Seek;
use std::path::{Path, PathBuf};

use ixc_files::open_unlinked;
use ixc_runtime::engine::Engine;
use ixc_runtime::saved::SavedError;

use crate::Error;

/// Opens a file and checks by its header that it has a state of this engine. Also returns its
/// length.
///
/// # Errors
/// When the file does not exist, or has another header.
pub(crate) fn open(path: &Path, engine: &Engine) -> Result<(File, u64), Error> {
    let name = name_of(path);
    let mut file = open_unlinked(path).map_err(Error::io(&name, "open"))?;
    let bytes = file.metadata().map_err(Error::io(&name, "read"))?.len();
    engine.saved_facts(&mut file, bytes).map_err(|source| restore_error(path, source))?;
    file.rewind().map_err(Error::io(&name, "read"))?;
    Ok((file, bytes))
}

/// Converts the error of a state that cannot be restored.
pub(crate) fn restore_error(path: &Path, source: SavedError) -> Error {
    let source = match source {
        // Do not reveal the first bytes of the file to the client.
        SavedError::Magic { .. } => SavedError::NoState,
        source => source,
    };
    Error::Saved { path: name_of(path), source: Box::new(source) }
}

/// Returns the name of a file without its folder.
fn name_of(path: &Path) -> PathBuf {
    path.file_name().map(PathBuf::from).unwrap_or_default()
}
