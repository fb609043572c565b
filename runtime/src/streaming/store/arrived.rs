//! Raw blocks that have arrived, and their packing.

use super::Shared;
use crate::storage::memory::Region;
use crate::streaming::{BlockId, StreamError};

/// Packs raw blocks.
pub trait Pack: Send + Sync {
    /// Packs the extents of a block, in their order, into its slot. Other threads pack other blocks
    /// at the same time.
    ///
    /// # Errors
    /// A text that describes the defect of the block.
    ///
    /// # Safety
    /// All regions must be mapped. The caller must have exclusive access to them until this
    /// returns.
    unsafe fn pack(&self, block: BlockId, raw: &[Region], slot: Region) -> Result<(), String>;
}

/// A raw block that has arrived. Its owner packs it. If it is dropped without `finish` or `pack`,
/// the block fails.
pub struct ArrivedBlock<'a> {
    pub(super) shared: &'a Shared,
    pub(super) number: u32,
    pub(super) raw: Vec<Region>,
    pub(super) slot: Region,
    pub(super) finished: bool,
}

impl ArrivedBlock<'_> {
    /// Returns the block's id.
    pub fn id(&self) -> BlockId {
        self.shared.fixed.block(self.number).id
    }

    /// Returns the block's extents, in order. The caller has exclusive access.
    pub fn raw(&self) -> &[Region] {
        &self.raw
    }

    /// Returns the slot into which the block is packed. The caller has exclusive access.
    pub fn slot(&self) -> Region {
        self.slot
    }

    /// Reports that the block is packed, or the reason that it could not be.
    pub fn finish(mut self, result: Result<(), String>) {
        self.end(result);
    }

    /// Packs the block.
    pub fn pack(self, packer: &dyn Pack) {
        // SAFETY: the regions are mapped as long as the cache lives. A block that has arrived has
        // one owner, which alone accesses them until it has finished.
        let result = unsafe { packer.pack(self.id(), &self.raw, self.slot) };
        self.finish(result);
    }

    fn end(&mut self, result: Result<(), String>) {
        if std::mem::replace(&mut self.finished, true) {
            return;
        }
        let result = result.map_err(|why| StreamError::Pack { block: self.id(), why });
        let mut inner = self.shared.lock();
        inner.finish_packing(&self.shared.fixed, self.number, result);
        self.shared.settle(inner);
    }
}

impl Drop for ArrivedBlock<'_> {
    fn drop(&mut self) {
        self.end(Err("the thread that packed it stopped".into()));
    }
}
