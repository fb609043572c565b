//! Errors of the answer file of a batch ([`crate::batch`](../../batch/index.html)).

use std::path::PathBuf;

use ixc_failure::{Class, Remedy};

/// Error of running a batch or of continuing its answer file.
#[derive(Debug, thiserror::Error)]
pub enum BatchError {
    /// Another program writes to the file.
    #[error("{}: another batch is writing to this file; wait until it ends, or name another file", path.display())]
    Busy {
        /// Output file of the batch, with its answers.
        path: PathBuf,
    },
    /// A line of the file answers a request that the batch does not have.
    #[error(
        "{}: line {line} answers line {of} of another batch: line {of} has changed since, or the answers are of another file",
        path.display()
    )]
    Other {
        /// Output file of the batch, with its answers.
        path: PathBuf,
        /// Number of the line, from 1.
        line: u64,
        /// Line number of the request, in the file of requests.
        of: u64,
    },
    /// A line is not an answer of a batch.
    #[error("{}: line {line} is not an answer of a batch: {problem}", path.display())]
    Malformed {
        /// Output file of the batch, with its answers.
        path: PathBuf,
        /// Number of the line, from 1.
        line: u64,
        /// Problem with the line.
        problem: String,
    },
    /// The model's thread has ended.
    #[error("the engine has ended: {problem}")]
    Ended {
        /// The last error.
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
