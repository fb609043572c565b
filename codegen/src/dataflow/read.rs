//! Descriptors from JSON that nobody trusts.

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use ixc_ir::dataflow::descriptor::Descriptor;

/// Bytes of a file at most: the largest has some ten million.
pub const MOST_BYTES: u64 = 1 << 29;

/// Why there is no descriptor.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// A file that cannot be read.
    #[error("{}: cannot read it: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A file that is too long.
    #[error("{}: more than {MOST_BYTES} bytes", path.display())]
    TooLong {
        /// The file.
        path: PathBuf,
    },
    /// A text that is no descriptor.
    #[error("{}: it is no descriptor: {source}", path.display())]
    Json {
        /// The file.
        path: PathBuf,
        /// What is wrong, and where.
        source: serde_json::Error,
    },
}

/// Reads a descriptor. What it says is not checked: [`super::check::Machine::new`] does that.
///
/// # Errors
/// See [`ReadError`].
pub fn open(path: &Path) -> Result<Descriptor, ReadError> {
    let mut bytes = Vec::new();
    let read = File::open(path).and_then(|file| file.take(MOST_BYTES + 1).read_to_end(&mut bytes));
    read.map_err(|source| ReadError::Read { path: path.to_owned(), source })?;
    if bytes.len() as u64 > MOST_BYTES {
        return Err(ReadError::TooLong { path: path.to_owned() });
    }
    serde_json::from_slice(&bytes).map_err(|source| ReadError::Json { path: path.to_owned(), source })
}

/// Writes a descriptor.
///
/// # Errors
/// When `out` does.
pub fn write(descriptor: &Descriptor, out: &mut dyn Write) -> io::Result<()> {
    serde_json::to_writer_pretty(&mut *out, descriptor)?;
    out.write_all(b"\n")
}
