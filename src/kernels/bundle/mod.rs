//! A kernel as a folder of plain files: its code, its inputs, what must come out, and an index in JSON; so that any machine or
//! any other emulator can judge it.
//!
//! ```text
//! index.json    what everything is (see below)
//! code.bin      instructions, then padding and constants; runs at any multiple of 64 bytes
//! in_0_x.bin    contents of buffer 0, called x, before the call
//! out_2_y.bin   contents of buffer 2, called y, after it, by the reference interpreter
//! kernel.ix     the kernel IR; listing.txt: the instructions beside it. For people: nothing reads them back.
//! ```
//!
//! The code is called as `extern "sysv64" fn(buffers: *const *mut u8, dims: *const i64)`, at its first byte. A buffer without an
//! input file starts filled with one byte; a buffer without an expected file is scratch, and what it holds afterwards is open; a
//! buffer that is only read must be unchanged.
//!
//! | module | what it owns |
//! | --- | --- |
//! | [`index`] | the index and its limits |
//! | [`write`](mod@write) | export |
//! | [`read`](mod@read) | reading a folder that anyone may have made |
//! | [`replay`](mod@replay) | running what was read |
//!
//! Invariant: reading trusts nothing. Names stay inside the folder, sizes are checked before memory is taken, checksums before
//! anything runs.

pub mod index;
pub mod read;
pub mod replay;
pub mod write;

use std::path::PathBuf;

use ixc_codegen::thunk::ConventionError;
use ixc_emulator::Fault;

use crate::error::Class;

/// Why a folder cannot be replayed.
#[derive(Debug, thiserror::Error)]
pub enum BundleError {
    /// The index is no JSON of this form.
    #[error("{}: {reason}", path.display())]
    Index {
        /// The index.
        path: PathBuf,
        /// Where and why.
        reason: String,
    },
    /// The index is of another format.
    #[error("{}: format \"{format}\" version {version}; this reads \"{}\" version {}", path.display(), index::FORMAT, index::VERSION)]
    Version {
        /// The index.
        path: PathBuf,
        /// Its format.
        format: String,
        /// Its version.
        version: u64,
    },
    /// A file name that could leave the folder.
    #[error(
        "file name \"{name}\": names here are letters, digits, `_`, `-` and `.`, do not start with `.`, and have at most {} characters",
        index::MOST_NAME
    )]
    Name {
        /// The name.
        name: String,
    },
    /// More than this is meant for.
    #[error("{found} {what}; at most {most} are read")]
    TooMuch {
        /// What there is too much of.
        what: &'static str,
        /// How much.
        found: u64,
        /// The limit.
        most: u64,
    },
    /// A link, a folder, a device.
    #[error("{}: is no regular file", path.display())]
    NotAFile {
        /// The path.
        path: PathBuf,
    },
    /// A file with another length than the index says.
    #[error("{}: has {found} bytes; the index says {right}", path.display())]
    Length {
        /// The file.
        path: PathBuf,
        /// What it has.
        found: u64,
        /// What it should have.
        right: u64,
    },
    /// A file with other bytes than it was written with.
    #[error("{}: CRC-32 is {found}; the index says {right}: the file is damaged", path.display())]
    Checksum {
        /// The file.
        path: PathBuf,
        /// Of its bytes.
        found: String,
        /// What the index says.
        right: String,
    },
    /// A value of the index that makes no sense.
    #[error("index: {what} is {found}; right would be {right}")]
    Value {
        /// Which.
        what: String,
        /// Its value.
        found: String,
        /// What would be right.
        right: String,
    },
    /// This machine cannot run the code.
    #[error("the code can't run here: this machine lacks {missing}")]
    Missing {
        /// What is missing.
        missing: String,
    },
    /// The emulator stopped the code.
    #[error("the emulator stopped the code: {0}")]
    Fault(#[from] Fault),
    /// The code ran on this machine and left it otherwise than a function must.
    #[error(transparent)]
    Convention(#[from] ConventionError),
}

impl BundleError {
    /// What kind of failure it is.
    pub fn class(&self) -> Class {
        match self {
            BundleError::Fault(_) | BundleError::Convention(_) => Class::Failed,
            BundleError::Missing { .. } => Class::Unavailable,
            BundleError::Index { .. }
            | BundleError::Version { .. }
            | BundleError::Name { .. }
            | BundleError::TooMuch { .. }
            | BundleError::NotAFile { .. }
            | BundleError::Length { .. }
            | BundleError::Checksum { .. }
            | BundleError::Value { .. } => Class::Data,
        }
    }
}
