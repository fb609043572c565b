//! What can be wrong with streaming weights.

use std::path::PathBuf;

use ixc_failure::Class;

use super::BlockId;
use crate::identity::ChangedFile;

/// Why a block is not there, or a store is not made. Cheap to clone: all who wait for a block get its error.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StreamError {
    /// A file can not be opened or asked about.
    #[error("{}: cannot be opened: {why}", path.display())]
    Open {
        /// Which file.
        path: PathBuf,
        /// What the system said.
        why: String,
    },
    /// A read failed.
    #[error("{}: cannot read {bytes} bytes at {offset}: {why} (errno {errno})", path.display())]
    Read {
        /// Which file.
        path: PathBuf,
        /// Its number in the store's list.
        file: u32,
        /// From where.
        offset: u64,
        /// How much was asked for.
        bytes: u64,
        /// The system's error number.
        errno: i32,
        /// What that means.
        why: String,
    },
    /// A file ends before what is wanted of it.
    #[error("{}: truncated: reading at {offset} stops at byte {found}, {expected} bytes are wanted", path.display())]
    Truncated {
        /// Which file.
        path: PathBuf,
        /// Where the read began.
        offset: u64,
        /// Where it stopped, or the length of the file.
        found: u64,
        /// The length that the file has to have at least.
        expected: u64,
    },
    /// A file is another than the one that was opened.
    #[error(transparent)]
    Changed(#[from] ChangedFile),
    /// Nobody wanted it any more before all of it was read.
    #[error("the prediction was taken back before all of the block was read")]
    TakenBack,
    /// The budget is too small.
    #[error("a budget of {budget} bytes is too small for streaming: at least {needed} bytes are needed")]
    Budget {
        /// What there is.
        budget: u64,
        /// The least that works.
        needed: u64,
    },
    /// There is no memory.
    #[error("no memory for streamed blocks: {why}")]
    Memory {
        /// What the system said.
        why: String,
    },
    /// A block's description makes no sense.
    #[error("{block}: {what} is {found}; {expected}")]
    BadBlock {
        /// Which block.
        block: BlockId,
        /// What is wrong.
        what: &'static str,
        /// What it is.
        found: u64,
        /// What it has to be.
        expected: String,
    },
    /// Nobody described this block.
    #[error("there is no {block}")]
    UnknownBlock {
        /// Which block.
        block: BlockId,
    },
    /// More blocks than there are slots for.
    #[error("layer {group} wants {wanted} blocks at once and slots are left for {possible}: ask for fewer at a time")]
    TooMany {
        /// Which group.
        group: u32,
        /// Blocks asked for.
        wanted: usize,
        /// How many of them can be had.
        possible: usize,
    },
    /// Somebody waits for a block that nobody asked for.
    #[error("{block} is waited for but was not requested")]
    NotRequested {
        /// Which block.
        block: BlockId,
    },
    /// A block arrived and could not be packed.
    #[error("{block} cannot be packed: {why}")]
    Pack {
        /// Which block.
        block: BlockId,
        /// What was wrong.
        why: String,
    },
    /// The drive's thread is not there.
    #[error("the thread that reads weights ended: {why}")]
    Closed {
        /// Why.
        why: String,
    },
}

impl StreamError {
    /// Returns the kind of failure.
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
            | StreamError::Pack { .. }
            | StreamError::Closed { .. } => Class::Failed,
        }
    }
}
