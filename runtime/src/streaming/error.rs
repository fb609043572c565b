//! Errors of expert streaming.

use std::path::PathBuf;

use ixc_failure::Class;
use ixc_files::changed::ChangedFile;

use super::BlockId;

/// The reason why a block is not available, or why an expert cache cannot be created. It is cheap
/// to clone, because all threads that wait for a block get it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StreamError {
    /// A file cannot be opened, or its metadata cannot be read.
    #[error("{}: cannot be opened: {why}", path.display())]
    Open {
        /// Path of the file.
        path: PathBuf,
        /// Message of the system's error.
        why: String,
    },
    /// A read of a file failed.
    #[error("{}: cannot read {bytes} bytes at {offset}: {why} (errno {errno})", path.display())]
    Read {
        /// Path of the file.
        path: PathBuf,
        /// Index of the file in the cache's list of files.
        file: u32,
        /// Offset of the read in the file.
        offset: u64,
        /// Number of requested bytes.
        bytes: u64,
        /// The system's error number.
        errno: i32,
        /// Message of the system's error.
        why: String,
    },
    /// A file is shorter than the blocks in it require.
    #[error("{}: truncated: the read at {offset} stops at byte {found}; the file needs {expected} bytes", path.display())]
    Truncated {
        /// Path of the file.
        path: PathBuf,
        /// Offset of the read in the file.
        offset: u64,
        /// Offset at which the read stopped, or the length of the file.
        found: u64,
        /// Minimum length of the file.
        expected: u64,
    },
    /// The file is not the one that was opened, or its bytes changed.
    #[error(transparent)]
    Changed(#[from] ChangedFile),
    /// The read of a predicted block was cancelled before the whole block was read.
    #[error("the predicted read was cancelled before it had the whole block")]
    TakenBack,
    /// The budget is below the minimum for streaming.
    #[error("a budget of {budget} bytes is too small for streaming: at least {needed} bytes are needed")]
    Budget {
        /// The budget, in bytes.
        budget: u64,
        /// The minimum, in bytes.
        needed: u64,
    },
    /// The system refused memory for slots or staging buffers.
    #[error("no memory for streamed blocks: {why}")]
    Memory {
        /// Message of the system's error.
        why: String,
    },
    /// The description of a block in the plan is invalid.
    #[error("{block}: {what} is {found}; {expected}")]
    BadBlock {
        /// Id of the block.
        block: BlockId,
        /// Name of the invalid value.
        what: &'static str,
        /// The invalid value.
        found: u64,
        /// The expected values, as text.
        expected: String,
    },
    /// The block does not exist in the cache's list of blocks.
    #[error("there is no {block}")]
    UnknownBlock {
        /// Id of the block.
        block: BlockId,
    },
    /// More blocks were requested than can be pinned at the same time.
    #[error("layer {group} requests {wanted} blocks at once, but only {possible} fit (request fewer)")]
    TooMany {
        /// Number of the expert group.
        group: u32,
        /// Number of requested blocks.
        wanted: usize,
        /// Number of blocks that can be pinned at the same time.
        possible: usize,
    },
    /// A thread waits for a block that was not requested.
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
    /// A raw block has arrived, but packing it failed.
    #[error("{block} cannot be packed: {why}")]
    Pack {
        /// Id of the block.
        block: BlockId,
        /// Message of the packer's error.
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
