//! Constant offset in a buffer of a kernel: the beginning of a weight, or of a part of scratch
//! memory.

use ixc_ir::kernel::BufferId;

/// Constant offset in a buffer. [`ixc_ir::kernel::Address`] is for offsets that vary.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BufferOffset {
    pub(crate) buffer: BufferId,
    /// Bytes from the start of the buffer.
    pub(crate) at: i64,
}
