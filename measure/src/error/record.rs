//! Errors of the record of an evaluation ([`crate::eval::record`]).

use std::io;
use std::path::PathBuf;

use ixc_failure::{Class, Remedy};
use ixc_files::io_class;

/// Error of opening or continuing a record.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// The file cannot be opened, read or written.
    #[error("{}: cannot {action}: {source}", path.display())]
    Io {
        /// Record that cannot be opened, read or written.
        path: PathBuf,
        /// The attempted action.
        action: &'static str,
        /// The system's reason.
        source: io::Error,
    },
    /// Another program writes to the record.
    #[error("{}: another evaluation is writing to this record; wait until it ends, or name another file", path.display())]
    Busy {
        /// Record to which another program writes.
        path: PathBuf,
    },
    /// The record belongs to another evaluation.
    #[error("{}: is the record of a different evaluation: its {key} is {found}; expected {wanted}", path.display())]
    Other {
        /// Record of the other evaluation.
        path: PathBuf,
        /// The first key that differs.
        key: String,
        /// The record's value.
        found: String,
        /// The requested value.
        wanted: String,
    },
    /// The file is not a valid record.
    #[error("{}: line {line} is {problem}", path.display())]
    Malformed {
        /// Invalid record.
        path: PathBuf,
        /// Number of the line, from 1.
        line: usize,
        /// Description of the fault.
        problem: String,
    },
}

impl RecordError {
    /// Returns the kind of failure.
    pub fn class(&self) -> Class {
        match self {
            RecordError::Io { source, .. } => io_class(source),
            RecordError::Busy { .. } | RecordError::Other { .. } => Class::Usage,
            RecordError::Malformed { .. } => Class::Data,
        }
    }

    /// Returns the change that may help.
    pub fn remedy(&self) -> Option<Remedy> {
        match self {
            RecordError::Other { .. } | RecordError::Malformed { .. } => Some(Remedy::StartOver),
            _ => None,
        }
    }
}
