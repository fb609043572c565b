//! What can be wrong with the record of an evaluation ([`crate::eval::record`]).

use std::io;
use std::path::PathBuf;

use ixc_failure::{Class, Remedy};
use ixc_files::io_class;

/// Why a record cannot be gone on with.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// The system refused.
    #[error("{}: cannot {action}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What was tried.
        action: &'static str,
        /// Why not.
        source: io::Error,
    },
    /// Another program is at it.
    #[error("{}: another evaluation writes to it", path.display())]
    Busy {
        /// The file.
        path: PathBuf,
    },
    /// It is of another evaluation.
    #[error("{}: is the record of another evaluation: its {key} is {found}, and {wanted} is asked for", path.display())]
    Other {
        /// The file.
        path: PathBuf,
        /// What differs first.
        key: String,
        /// What it has.
        found: String,
        /// What is asked for.
        wanted: String,
    },
    /// It is none.
    #[error("{}: line {line} is {problem}", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// Which line, from 1.
        line: usize,
        /// What is wrong.
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
