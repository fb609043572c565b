//! Of a state with a window, which positions memory holds: the last ones, from a block of [`ATTENTION_BLOCK`] on. Kernels count them from there. Of one
//! whose places several positions share, where they are.
//!
//! ```text
//! window 1024, steps of 512: room for 1568 positions
//! at 1600                  base 576: positions 576 to 1599 move to the front of the memory, and there is room for 544 more
//! ```
//!
//! Of chunks it is those from the beginning of a token's chunk on, which is that of a block: chunks of memory are those of the sequence.
//!
//! How wide a step's rows are apart, and where blocks begin, is as with a state of all positions: so are the bits.

use ixc_ir::plan::{ATTENTION_BLOCK, KEY_LANES};

use crate::memory::{INDEX_BYTES, Memory, MemoryError, Region};

/// What memory holds of a state with a window.
#[derive(Debug)]
pub struct Sliding {
    /// Positions that a token needs, its own included; all where there is no window.
    window: u32,
    /// Positions that share a place, all of which are held; 1 with a window.
    every: u32,
    /// Or those from the last multiple of as many on.
    chunked: bool,
    /// The first position that is held.
    base: u32,
    /// Places that there is room for.
    held: u32,
    /// For each row of a step, its place from `base` on; then that place's block of [`KEY_LANES`]; then its lane there.
    rows: Memory,
    max_tokens: u32,
}

impl Sliding {
    /// For a window or chunks, or places of `every` positions, room for `held` places, and steps of `max_tokens`.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn new(
        (window, chunked): (Option<u32>, bool),
        every: u32,
        held: u32,
        max_tokens: u32,
    ) -> Result<Sliding, MemoryError> {
        let rows = Memory::zeroed("positions in windows", Sliding::bytes(max_tokens), false)?;
        let (window, every) = (window.unwrap_or(u32::MAX), every.max(1));
        Ok(Sliding { window, chunked, every, base: 0, held, rows, max_tokens })
    }

    /// Bytes beside those of the state itself.
    pub fn bytes(max_tokens: u32) -> u64 {
        3 * u64::from(max_tokens) * INDEX_BYTES
    }

    /// The first position that is held.
    pub fn base(&self) -> u32 {
        self.base
    }

    /// Positions that there is room for.
    pub fn held(&self) -> u32 {
        self.held
    }

    /// Whether it drops positions: where it does not, [`Sliding::base`] stays 0.
    pub fn slides(&self) -> bool {
        self.every == 1
    }

    /// The first position that the token at a position needs.
    pub fn first(&self, position: u32) -> u32 {
        match self.chunked {
            true => position / self.window.max(1) * self.window,
            false => position.saturating_add(1).saturating_sub(self.window),
        }
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

    /// Places that memory has of the positions up to `used`.
    pub fn places(&self, used: u32) -> u32 {
        if self.every > 1 { used.div_ceil(self.every) } else { used.saturating_sub(self.base) }
    }

    /// Holds the positions from a block on.
    pub fn stand_at(&mut self, base: u32) {
        self.base = base;
    }

    /// Goes back to a position: it, and the end of what was written, as memory counts.
    pub fn back_to(&mut self, position: u32, used: u32) -> (u32, u32) {
        let used = self.places(used);
        if self.every > 1 {
            return (position / self.every, used);
        }
        let base = self.base;
        if position == 0 {
            self.base = 0;
        }
        (position.saturating_sub(base), used)
    }

    /// Makes room for a step: how many positions are to be dropped, of how many, where there is not room enough.
    pub fn make_room(&mut self, position: u32, tokens: u32) -> Option<(u32, u32)> {
        if self.every > 1 {
            return None;
        }
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
        let of_place: [fn(u32) -> u32; 3] = [|place| place, |place| place / KEY_LANES, |place| place % KEY_LANES];
        for (part, of_place) in (0..).zip(of_place) {
            let region = self.part(part);
            for row in first..first.saturating_add(tokens).min(self.max_tokens) {
                let word = of_place(position.saturating_sub(self.base).saturating_add(row - first) / self.every);
                // SAFETY: the region has a word for each of `max_tokens` rows; it is borrowed exclusively, so no kernel runs.
                unsafe { region.base().cast::<u32>().add(row as usize).write_unaligned(word) };
            }
        }
    }

    /// For each row of a step that is the sequence's, its place in memory.
    pub fn positions(&self) -> Region {
        self.part(0)
    }

    /// For each row of a step that is the sequence's, its place's block of [`KEY_LANES`].
    pub fn blocks(&self) -> Region {
        self.part(1)
    }

    /// For each row of a step that is the sequence's, its place in that block.
    pub fn lanes(&self) -> Region {
        self.part(2)
    }

    fn part(&self, part: u64) -> Region {
        let (region, bytes) = (self.rows.region(), u64::from(self.max_tokens) * INDEX_BYTES);
        region.part(part * bytes, bytes).unwrap_or(region)
    }
}
