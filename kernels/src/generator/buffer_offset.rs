//! Constant offset in a buffer of a kernel, such as the beginning of a weight or of an area of
//! scratch memory.

use ixc_ir::kernel::BufferId;

/// Constant offset in a buffer. An [`ixc_ir::kernel::Address`] has an offset that varies.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BufferOffset {
    pub(crate) buffer: BufferId,
    /// Offset in bytes from the start of the buffer.
    pub(crate) at: i64,
}
