//! Constant offset in a buffer of a kernel: where a weight or a part of scratch memory begins.

use ixc_ir::kernel::BufferId;

/// Constant offset in a buffer. [`ixc_ir::kernel::Address`] is for offsets that vary.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BufferOffset {
    pub(crate) buffer: BufferId,
    /// Bytes from the start of the buffer.
    pub(crate) at: i64,
}
