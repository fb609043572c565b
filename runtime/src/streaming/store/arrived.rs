//! Raw blocks that have arrived from the drive, and their packing.

use super::Shared;
use crate::storage::memory::Region;
use crate::streaming::{BlockId, StreamError};

/// A packer of raw blocks.
pub trait Pack: Send + Sync {
    /// Packs the extents of a block, which are in order, into the block's slot. Other threads may
    /// pack other blocks at the same time.
    ///
    /// # Errors
    /// Returns a message that describes the defect of the block.
    ///
    /// # Safety
    /// All regions must be mapped, and the caller must have exclusive access to them until the
    /// function returns.
    unsafe fn pack(&self, block: BlockId, raw: &[Region], slot: Region) -> Result<(), String>;
}

/// A raw block that has arrived. The thread that owns this value packs the block. If the value is
/// dropped without a call of `finish` or `pack`, the block fails.
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

    /// Returns the memory of the block's extents, in order. The caller has exclusive access to it.
    pub fn raw(&self) -> &[Region] {
        &self.raw
    }

    /// Returns the slot into which the block must be packed. The caller has exclusive access to it.
    pub fn slot(&self) -> Region {
        self.slot
    }

    /// Reports that the block is packed, or the reason why it cannot be packed.
    pub fn finish(mut self, result: Result<(), String>) {
        self.end(result);
    }

    /// Packs the block with a packer, and reports the result.
    pub fn pack(self, packer: &dyn Pack) {
        // SAFETY: the regions are mapped as long as the cache lives. A block that has arrived has
        // one owner, and only the owner accesses the regions until packing is finished.
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
