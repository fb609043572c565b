//! Weights that do not fit into memory: blocks read from files as they are needed, under a hard budget.
//!
//! A *group* is all experts of one layer; groups are counted, and layers without experts have none. A *block* is one expert of a group, gate,
//! up and down together. It lies in files as one or more *extents*, and is read into a *slot*, memory for one block.
//!
//! | module | what it owns |
//! | --- | --- |
//! | [`files`] | the files, opened past the page cache, and whether they are still the same |
//! | [`reservation`] | the memory that all is read into |
//! | [`queue`] | what is to be read: routed blocks before predicted ones |
//! | [`drive`] | the thread that reads, and what it does about short, interrupted and failed reads |
//! | `uring`, [`threaded_reader`] | how it reads: by io_uring, or with threads |
//! | [`slots`], [`budget`] | the reservation cut into slots, how many of which size |
//! | [`cache`] | which block to give up for another |
//! | [`store`] | requests, predictions, waiting: what the executor calls |
//! | [`predict`] | guessing what the router will choose, and whether that pays |
//! | [`counters`] | bytes, rates, latencies |
//! | [`probe`] | how fast a drive is by itself, and how many reads at once that takes |
//! | [`affinity`] | which CPUs are near a drive |

pub mod affinity;
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
    /// Which of the files.
    pub file: u32,
    /// Where it begins, in bytes.
    pub offset: u64,
    /// Length in bytes.
    pub bytes: u64,
    /// Where it lands in the slot of a packed block; it has to lie in its page where it lies in the file's.
    pub at: u64,
}

impl Extent {
    /// Bytes of the page it begins in that lie before it.
    pub fn head(&self) -> u64 {
        self.offset % PAGE
    }

    /// Bytes of all pages that it touches.
    pub fn span(&self) -> u64 {
        self.head().saturating_add(self.bytes).checked_next_multiple_of(PAGE).unwrap_or(u64::MAX)
    }
}

/// What the bytes of a block are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// As kernels want them: they are read into the slot itself.
    Packed,
    /// As a model file has them: they are read into staging memory, and packed into the slot from there.
    Raw {
        /// Bytes of the packed block.
        bytes: u64,
    },
}

/// A block and where it lies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Block {
    /// Which one.
    pub id: BlockId,
    /// Its parts, at least one.
    pub extents: Vec<Extent>,
    /// What its bytes are.
    pub form: Form,
}

impl Block {
    /// Bytes that kernels see.
    pub fn bytes(&self) -> u64 {
        match self.form {
            Form::Packed => self.extents.iter().map(|extent| extent.at.saturating_add(extent.bytes)).max().unwrap_or(0),
            Form::Raw { bytes } => bytes,
        }
    }

    /// Bytes that are read: whole pages.
    pub fn span(&self) -> u64 {
        self.extents.iter().map(Extent::span).fold(0, u64::saturating_add)
    }

    /// Bytes of the slot that it takes: whole pages.
    pub fn slot_bytes(&self) -> u64 {
        self.bytes().max(1).checked_next_multiple_of(PAGE).unwrap_or(u64::MAX)
    }

    /// Bytes of staging memory that it takes while it is read: whole pages, none where it is packed.
    pub fn staging_bytes(&self) -> u64 {
        match self.form {
            Form::Packed => 0,
            Form::Raw { .. } => self.span(),
        }
    }
}
