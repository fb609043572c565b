//! Of a state with a window, which positions memory holds: the last ones, from a block of [`ATTENTION_BLOCK`] on. Kernels count them from there.
//!
//! ```text
//! window 1024, steps of 512: room for 1568 positions
//! at 1600                  base 576: positions 576 to 1599 move to the front of the memory, and there is room for 544 more
//! ```
//!
//! How wide a step's rows are apart, and where blocks begin, is as with a state of all positions: so are the bits.

use ixc_ir::plan::{ATTENTION_BLOCK, KEY_LANES};

use crate::memory::{INDEX_BYTES, Memory, MemoryError, Region};

/// What memory holds of a state with a window.
#[derive(Debug)]
pub struct Sliding {
    /// Positions that a token needs, its own included.
    window: u32,
    /// The first position that is held.
    base: u32,
    /// Positions that there is room for.
    held: u32,
    /// For each row of a step, its position from `base` on; and then that position's block of [`KEY_LANES`].
    rows: Memory,
    max_tokens: u32,
}

impl Sliding {
    /// For a window, room for `held` positions, and steps of `max_tokens`.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn new(window: u32, held: u32, max_tokens: u32) -> Result<Sliding, MemoryError> {
        let rows = Memory::zeroed("positions in windows", Sliding::bytes(max_tokens), false)?;
        Ok(Sliding { window, base: 0, held, rows, max_tokens })
    }

    /// Bytes beside those of the state itself.
    pub fn bytes(max_tokens: u32) -> u64 {
        2 * u64::from(max_tokens) * INDEX_BYTES
    }

    /// The first position that is held.
    pub fn base(&self) -> u32 {
        self.base
    }

    /// Positions that there is room for.
    pub fn held(&self) -> u32 {
        self.held
    }

    /// The first position that the token at a position needs.
    fn first(&self, position: u32) -> u32 {
        position.saturating_add(1).saturating_sub(self.window)
    }

    /// The block in memory that the token at a position begins with.
    pub fn first_block(&self, position: u32) -> u64 {
        self.seen(position) / u64::from(ATTENTION_BLOCK)
    }

    /// The first position in memory that the token at a position sees.
    pub fn seen(&self, position: u32) -> u64 {
        self.first(position).saturating_sub(self.base).into()
    }

    /// Whether all is held that the token at a position needs.
    pub fn reaches(&self, position: u32) -> bool {
        self.first(position) >= self.base
    }

    /// Holds the positions from a block on.
    pub fn stand_at(&mut self, base: u32) {
        self.base = base;
    }

    /// Goes back to a position: it, and the end of what was written, as memory counts.
    pub fn back_to(&mut self, position: u32, used: u32) -> (u32, u32) {
        let base = self.base;
        if position == 0 {
            self.base = 0;
        }
        (position.saturating_sub(base), used.saturating_sub(base))
    }

    /// Makes room for a step: how many positions are to be dropped, of how many, where there is not room enough.
    pub fn make_room(&mut self, position: u32, tokens: u32) -> Option<(u32, u32)> {
        let there = position.saturating_sub(self.base);
        if there.saturating_add(tokens) <= self.held {
            return None;
        }
        let before = self.base;
        self.base = self.first(position) / ATTENTION_BLOCK * ATTENTION_BLOCK;
        Some((self.base.saturating_sub(before), there))
    }

    /// Says where a step's rows are, of which the sequence has `tokens` from `first` on.
    pub fn fill(&mut self, position: u32, first: u32, tokens: u32) {
        for (part, of) in [(0, 1), (1, KEY_LANES)] {
            let region = self.half(part);
            for row in first..first.saturating_add(tokens).min(self.max_tokens) {
                let word = position.saturating_sub(self.base).saturating_add(row - first) / of;
                // SAFETY: the region has a word for each of `max_tokens` rows; it is borrowed exclusively, so no kernel runs.
                unsafe { region.base().cast::<u32>().add(row as usize).write_unaligned(word) };
            }
        }
    }

    /// For each row of a step that is the sequence's, its position in memory.
    pub fn positions(&self) -> Region {
        self.half(0)
    }

    /// For each row of a step that is the sequence's, its position's block of [`KEY_LANES`].
    pub fn blocks(&self) -> Region {
        self.half(1)
    }

    fn half(&self, part: u64) -> Region {
        let (region, bytes) = (self.rows.region(), u64::from(self.max_tokens) * INDEX_BYTES);
        region.part(part * bytes, bytes).unwrap_or(region)
    }
}
