//! Expert streaming: experts that do not fit into memory are read from files when they are needed,
//! within a hard memory budget.
//!
//! A *group* is the experts of one layer. Only layers with experts have groups, which are numbered
//! in order. A *block* is one expert of a group: its gate, up and down matrices together. In files,
//! a block consists of one or more *extents*. In memory, it is in a *slot*, which holds a single
//! block.
//!
//! | module | owns |
//! | --- | --- |
//! | [`files`] | the files, opened past the page cache; detection of changed files |
//! | [`reservation`] | the memory of all slots and staging buffers |
//! | [`queue`] | queued reads: routed blocks before predicted ones |
//! | [`backend`] | reads and completions of io_uring, or of the threads that replace it |
//! | [`drive`] | the reading thread; handling of short, interrupted and failed reads |
//! | `uring`, [`threaded_reader`] | the two ways to read: io_uring, or a pool of threads |
//! | [`slots`], [`budget`] | division of the reservation into slots; count and size of slots |
//! | [`cache`] | replacement policies: the block to evict |
//! | [`store`] | requests, predictions and waiting: the interface for the executor |
//! | [`predict`] | predictions of the router's choice, and whether they save time |
//! | [`counters`] | bytes, rates, latencies |
//! | [`probe`] | the speed of a drive alone, and the queue depth that reaches it |
//! | [`affinity`] | the CPUs near a drive |

pub mod affinity;
pub mod backend;
pub mod budget;
pub mod cache;
pub mod counters;
pub mod drive;
mod error;
pub mod files;
pub mod predict;
pub mod probe;
pub mod queue;
pub mod reservation;
pub mod slots;
pub mod store;
#[cfg(test)]
mod tests;
pub mod threaded_reader;
#[cfg(target_os = "linux")]
pub mod uring;

pub use crate::reads::BlockId;
pub use error::StreamError;
use files::PAGE;

/// A byte range of a file that contains a part of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Index of the file in the cache's list of files.
    pub file: u32,
    /// Offset in the file of the range's first byte.
    pub offset: u64,
    /// Length in bytes.
    pub bytes: u64,
    /// Offset in the slot, for a packed block. The offset within a page is the same in the slot and
    /// in the file.
    pub at: u64,
}

impl Extent {
    /// Returns the bytes between the beginning of the extent's first page and its first byte.
    pub fn head(&self) -> u64 {
        self.offset % PAGE
    }

    /// Returns the bytes of all pages that the extent touches; `u64::MAX` on overflow.
    pub fn span(&self) -> u64 {
        self.head().saturating_add(self.bytes).checked_next_multiple_of(PAGE).unwrap_or(u64::MAX)
    }
}

/// Layout of a block's bytes in its file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockEncoding {
    /// The layout that kernels read. The drive reads the block directly into its slot.
    Packed,
    /// The layout of the model file. The drive reads the block into staging memory, and packing
    /// then fills the slot.
    Raw {
        /// Bytes of the packed block.
        bytes: u64,
    },
}

/// A block (an expert) and its location in files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Block {
    /// Group and expert of the block.
    pub id: BlockId,
    /// Byte ranges of the block in files; there is at least one.
    pub extents: Vec<Extent>,
    /// Layout of the block's bytes in the file.
    pub form: BlockEncoding,
}

impl Block {
    /// Returns the bytes of the block in the layout that kernels read.
    pub fn bytes(&self) -> u64 {
        match self.form {
            BlockEncoding::Packed => {
                self.extents.iter().map(|extent| extent.at.saturating_add(extent.bytes)).max().unwrap_or(0)
            }
            BlockEncoding::Raw { bytes } => bytes,
        }
    }

    /// Returns the bytes that are read from the drive for the block; these are whole pages.
    pub fn span(&self) -> u64 {
        self.extents.iter().map(Extent::span).fold(0, u64::saturating_add)
    }

    /// Returns the bytes of the slot that the block needs; these are whole pages.
    pub fn slot_bytes(&self) -> u64 {
        self.bytes().max(1).checked_next_multiple_of(PAGE).unwrap_or(u64::MAX)
    }

    /// Returns the bytes of staging memory that the block needs while it is read; these are whole
    /// pages. A packed block needs none.
    pub fn staging_bytes(&self) -> u64 {
        match self.form {
            BlockEncoding::Packed => 0,
            BlockEncoding::Raw { .. } => self.span(),
        }
    }
}
