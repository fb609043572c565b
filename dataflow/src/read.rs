//! Descriptors from JSON that nobody trusts.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use crate::descriptor::Descriptor;
use ixc_failure::Class;
use ixc_files::Kind;

/// Bytes of a file at most: the largest has some ten million.
pub const MAX_BYTES: u64 = 1 << 29;

/// A descriptor's file: our compact text, or the one that is indented.
pub const KIND: Kind = Kind {
    name: "descriptor",
    is: |head| {
        let plain: Vec<u8> = head.iter().copied().filter(|byte| !byte.is_ascii_whitespace()).collect();
        let has = |text: &[u8]| plain.windows(text.len()).any(|window| window == text);
        plain.starts_with(b"{\"version\":") && has(b"\"grid\":{\"name\":")
    },
    streams: true,
    private: false,
};

/// Why there is no descriptor.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// A file that cannot be read.
    #[error(transparent)]
    Read(#[from] ixc_files::ReadError),
    /// A text that is no descriptor.
    #[error("{}: it is no descriptor: {source}", path.display())]
    Json {
        /// The file.
        path: PathBuf,
        /// What is wrong, and where.
        source: serde_json::Error,
    },
}

impl ReadError {
    /// Returns the kind of failure.
    pub fn class(&self) -> Class {
        match self {
            ReadError::Read(error) => error.class(),
            ReadError::Json { .. } => Class::Data,
        }
    }
}

/// Reads a descriptor. What it says is not checked: [`crate::check::Machine::new`] does that.
///
/// # Errors
/// See [`ReadError`].
pub fn open(path: &Path) -> Result<Descriptor, ReadError> {
    let text = ixc_files::read_text(path, MAX_BYTES)?;
    serde_json::from_str(&text).map_err(|source| ReadError::Json { path: path.to_owned(), source })
}

/// Writes a descriptor.
///
/// # Errors
/// When `out` does.
pub fn write(descriptor: &Descriptor, out: &mut dyn Write) -> io::Result<()> {
    serde_json::to_writer_pretty(&mut *out, descriptor)?;
    out.write_all(b"\n")
}
