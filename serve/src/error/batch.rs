//! What can be wrong with the answers of a batch ([`crate::batch`](../../batch/index.html)).

use std::path::PathBuf;

use ixc_failure::{Class, Remedy};

/// Why a file of answers cannot be gone on with.
#[derive(Debug, thiserror::Error)]
pub enum BatchError {
    /// Another program is at it.
    #[error("{}: another batch writes to it", path.display())]
    Busy {
        /// The file.
        path: PathBuf,
    },
    /// One of its lines answers another request.
    #[error(
        "{}: line {line} answers line {of} of another batch: that line has changed since, or is of another file",
        path.display()
    )]
    Other {
        /// The file.
        path: PathBuf,
        /// Which line, from 1.
        line: u64,
        /// The line of the request.
        of: u64,
    },
    /// It is none.
    #[error("{}: line {line} is no answer of a batch: {problem}", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// Which line, from 1.
        line: u64,
        /// What is wrong.
        problem: String,
    },
    /// The model's thread has ended.
    #[error("the engine has ended: {problem}")]
    Ended {
        /// What was said last.
        problem: String,
    },
}

impl BatchError {
    /// Returns the kind of failure.
    pub fn class(&self) -> Class {
        match self {
            BatchError::Busy { .. } | BatchError::Other { .. } => Class::Usage,
            BatchError::Ended { .. } => Class::Failed,
            BatchError::Malformed { .. } => Class::Data,
        }
    }

    /// Returns the change that may help.
    pub fn remedy(&self) -> Option<Remedy> {
        match self {
            BatchError::Other { .. } | BatchError::Malformed { .. } => Some(Remedy::StartOver),
            _ => None,
        }
    }
}
