//! One piece of memory for all that is read: page-aligned, counted, and never moved.

use crate::memory::{Memory, Region};

use super::StreamError;

/// Where a huge page begins on x86-64 and arm64 with 4 KiB pages.
const HUGE_PAGE: u64 = 2 << 20;

/// Anonymous memory that begins where a huge page does.
#[derive(Debug)]
pub struct Reservation {
    _memory: Memory,
    region: Region,
}

impl Reservation {
    /// Memory of `bytes` bytes, in huge pages where the system has them. It takes none until it is touched or registered.
    ///
    /// # Errors
    /// [`StreamError::Memory`] when the system refuses.
    pub fn new(bytes: u64) -> Result<Reservation, StreamError> {
        let error = |why: String| StreamError::Memory { why };
        // The mapping is a little larger, so that an aligned part fits; what lies around that is never touched.
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

    /// All of it.
    pub fn region(&self) -> Region {
        self.region
    }
}
