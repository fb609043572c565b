//! Expert streaming: weights that do not fit into memory are read from files on demand, within a
//! hard budget.
//!
//! A *group* is all experts of one layer. Groups are numbered; layers without experts have none. A
//! *block* is one expert of a group: gate, up and down together. In files, a block is one or more
//! *extents*. In memory it is in a *slot*, which holds one block.
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

/// A part of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Index in the cache's list of files.
    pub file: u32,
    /// Offset of the part's first byte in the file.
    pub offset: u64,
    /// Length in bytes.
    pub bytes: u64,
    /// Offset in the slot, for a packed block. Its offset within a page is the same in slot and
    /// file.
    pub at: u64,
}

impl Extent {
    /// Bytes between the begin of its first page and its first byte.
    pub fn head(&self) -> u64 {
        self.offset % PAGE
    }

    /// Returns the bytes of all pages that the extent touches; `u64::MAX` on overflow.
    pub fn span(&self) -> u64 {
        self.head().saturating_add(self.bytes).checked_next_multiple_of(PAGE).unwrap_or(u64::MAX)
    }
}

/// Layout of a block's bytes in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockEncoding {
    /// The layout that kernels read. The drive reads the block directly into its slot.
    Packed,
    /// The layout of the model file. The drive reads it into staging memory; packing then fills the
    /// slot.
    Raw {
        /// Bytes of the packed block.
        bytes: u64,
    },
}

/// A block and its location in the files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Block {
    /// Layer and expert.
    pub id: BlockId,
    /// Parts of the block, at least one.
    pub extents: Vec<Extent>,
    /// Layout of its bytes in the file.
    pub form: BlockEncoding,
}

impl Block {
    /// Bytes of the block in the layout that kernels read.
    pub fn bytes(&self) -> u64 {
        match self.form {
            BlockEncoding::Packed => {
                self.extents.iter().map(|extent| extent.at.saturating_add(extent.bytes)).max().unwrap_or(0)
            }
            BlockEncoding::Raw { bytes } => bytes,
        }
    }

    /// Returns the bytes that the drive reads for the block: whole pages.
    pub fn span(&self) -> u64 {
        self.extents.iter().map(Extent::span).fold(0, u64::saturating_add)
    }

    /// Returns the bytes of the block's slot: whole pages.
    pub fn slot_bytes(&self) -> u64 {
        self.bytes().max(1).checked_next_multiple_of(PAGE).unwrap_or(u64::MAX)
    }

    /// Bytes of staging memory during its read: whole pages. A packed block needs none.
    pub fn staging_bytes(&self) -> u64 {
        match self.form {
            BlockEncoding::Packed => 0,
            BlockEncoding::Raw { .. } => self.span(),
        }
    }
}
