//! Reading of descriptors from untrusted JSON.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use crate::descriptor::Descriptor;
use ixc_failure::Class;
use ixc_files::Kind;

/// Max bytes of a file. The largest descriptors have about ten million.
pub const MAX_BYTES: u64 = 1 << 29;

/// The file kind of descriptors, compact or indented.
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

/// Reasons why a descriptor could not be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// A file cannot be read.
    #[error(transparent)]
    Read(#[from] ixc_files::ReadError),
    /// The text is not a descriptor.
    #[error("{} is not a descriptor: {source}", path.display())]
    Json {
        /// File that was expected to be a descriptor.
        path: PathBuf,
        /// The problem, and its place in the text.
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

/// Reads a descriptor without checking its contents; [`crate::check::Machine::new`] does that.
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
/// If `out` fails.
pub fn write(descriptor: &Descriptor, out: &mut dyn Write) -> io::Result<()> {
    serde_json::to_writer_pretty(&mut *out, descriptor)?;
    out.write_all(b"\n")
}
