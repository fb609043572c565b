//! Errors of expert streaming.

use std::path::PathBuf;

use ixc_failure::Class;
use ixc_files::changed::ChangedFile;

use super::BlockId;

/// The reason that a block is missing or a cache cannot be made. Cheap to clone, because all
/// waiting threads get it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StreamError {
    /// A file cannot be opened, or its metadata cannot be read.
    #[error("{}: cannot be opened: {why}", path.display())]
    Open {
        /// Path of the file.
        path: PathBuf,
        /// Text of the system's error.
        why: String,
    },
    /// A read failed.
    #[error("{}: cannot read {bytes} bytes at {offset}: {why} (errno {errno})", path.display())]
    Read {
        /// Path of the file.
        path: PathBuf,
        /// Index in the cache's list of files.
        file: u32,
        /// Offset in the file.
        offset: u64,
        /// Requested bytes.
        bytes: u64,
        /// The system's error number.
        errno: i32,
        /// Text of that error.
        why: String,
    },
    /// A file is shorter than the plan requires.
    #[error("{}: truncated: the read at {offset} stops at byte {found}; the file needs {expected} bytes", path.display())]
    Truncated {
        /// Path of the file.
        path: PathBuf,
        /// Offset of the read.
        offset: u64,
        /// Offset at which the read stopped, or the length of the file.
        found: u64,
        /// Min length of the file.
        expected: u64,
    },
    /// The file is not the one that was opened, or its bytes changed.
    #[error(transparent)]
    Changed(#[from] ChangedFile),
    /// The predicted read was cancelled before the whole block was read.
    #[error("the predicted read was cancelled before it had the whole block")]
    TakenBack,
    /// The budget is below the minimum.
    #[error("a budget of {budget} bytes is too small for streaming: at least {needed} bytes are needed")]
    Budget {
        /// Available bytes.
        budget: u64,
        /// Minimum in bytes.
        needed: u64,
    },
    /// The system refused memory.
    #[error("no memory for streamed blocks: {why}")]
    Memory {
        /// Text of the system's error.
        why: String,
    },
    /// The description of a block is invalid.
    #[error("{block}: {what} is {found}; {expected}")]
    BadBlock {
        /// Id of the block.
        block: BlockId,
        /// Name of the invalid value.
        what: &'static str,
        /// The invalid value.
        found: u64,
        /// Text with the expected value.
        expected: String,
    },
    /// The block is not in the cache's list.
    #[error("there is no {block}")]
    UnknownBlock {
        /// Id of the block.
        block: BlockId,
    },
    /// A request for more blocks than can be pinned.
    #[error("layer {group} requests {wanted} blocks at once, but only {possible} fit (request fewer)")]
    TooMany {
        /// Number of the group.
        group: u32,
        /// Number of requested blocks.
        wanted: usize,
        /// Number of blocks that fit at once.
        possible: usize,
    },
    /// A thread waits for a block without a request.
    #[error("a thread waits for {block}, which was not requested")]
    NotRequested {
        /// Id of the block.
        block: BlockId,
    },
    /// The step exceeded its time limit while a thread waited for a block.
    #[error("{block} did not arrive within the time limit of the step")]
    TooLate {
        /// Id of the block.
        block: BlockId,
    },
    /// A block arrived, but packing failed.
    #[error("{block} cannot be packed: {why}")]
    Pack {
        /// Id of the block.
        block: BlockId,
        /// Text of the packer's error.
        why: String,
    },
    /// The reading thread has ended.
    #[error("the thread that reads weights ended: {why}")]
    Closed {
        /// Reason why it ended.
        why: String,
    },
}

impl StreamError {
    /// Returns the class of the failure.
    pub fn class(&self) -> Class {
        match self {
            StreamError::Changed(error) => error.class(),
            StreamError::Open { .. }
            | StreamError::Read { .. }
            | StreamError::Truncated { .. }
            | StreamError::TakenBack
            | StreamError::Budget { .. }
            | StreamError::Memory { .. }
            | StreamError::BadBlock { .. }
            | StreamError::UnknownBlock { .. }
            | StreamError::TooMany { .. }
            | StreamError::NotRequested { .. }
            | StreamError::TooLate { .. }
            | StreamError::Pack { .. }
            | StreamError::Closed { .. } => Class::Failed,
        }
    }
}
