//! The memory into which all blocks are read: one page-aligned mapping of known size, which never
//! moves.

use crate::storage::memory::{Memory, Region};

use super::StreamError;

/// Bytes of a huge page on x86-64, and on arm64 with 4 KiB pages.
const HUGE_PAGE: u64 = 2 << 20;

/// Anonymous memory, aligned to huge pages.
#[derive(Debug)]
pub struct Reservation {
    _memory: Memory,
    region: Region,
}

impl Reservation {
    /// Maps `bytes` bytes, in huge pages if possible. The system allocates a page when it is
    /// touched, or when the memory is registered with io_uring.
    ///
    /// # Errors
    /// [`StreamError::Memory`] if the system refuses the mapping.
    pub fn new(bytes: u64) -> Result<Reservation, StreamError> {
        let error = |why: String| StreamError::Memory { why };
        // The mapping is slightly larger, so that an aligned region fits in it. The bytes around
        // that region are never touched.
        let mapped =
            bytes.checked_add(HUGE_PAGE).ok_or_else(|| error(format!("{bytes} bytes are more than there can be")))?;
        let memory = Memory::zeroed("streamed blocks", mapped, true).map_err(|refused| error(refused.to_string()))?;
        let head = (memory.region().base() as u64).wrapping_neg() % HUGE_PAGE;
        let region = memory
            .region()
            .part(head, bytes)
            .ok_or_else(|| error(format!("{bytes} bytes are more than were mapped")))?;
        Ok(Reservation { _memory: memory, region })
    }

    /// Returns the whole region.
    pub fn region(&self) -> Region {
        self.region
    }
}
