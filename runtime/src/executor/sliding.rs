//! Mapping of positions to cache slots. For a state with a sliding window, memory holds only the
//! last positions, from a multiple of [`ATTENTION_BLOCK`] on. Kernels count positions from the
//! first one in memory. In other states, several positions share one slot.
//!
//! ```text
//! window 1024, steps of 512: room for 1568 positions
//! at 1600                  base 576: positions 576 to 1599 move to the front, and 544 more fit
//! ```
//!
//! In chunked attention, a token needs the positions from the beginning of its chunk on, which is
//! also the beginning of a block. So in memory, chunks begin at the same positions as in the
//! sequence.
//!
//! Rows have the same offsets in their blocks as in a state that holds all positions, so the
//! results have the same bits.

use ixc_ir::plan::{ATTENTION_BLOCK, RowInput, RowPosition};

use crate::storage::memory::{INDEX_BYTES, Memory, MemoryError, Region};

/// The range of a state's positions that memory holds.
#[derive(Debug)]
pub struct Sliding {
    /// Number of positions that a token needs, including its own; `u32::MAX` if the state has no
    /// window.
    window: u32,
    /// Number of positions that share a cache slot; 1 for a state with a window. If it is larger,
    /// memory holds the slots of all positions.
    positions_per_place: u32,
    /// Whether attention is chunked: a token needs the positions from the last multiple of `window`
    /// on.
    chunked: bool,
    /// The first position in memory.
    base: u32,
    /// Number of cache slots for which memory has room.
    place_capacity: u32,
    /// Index inputs of kernels: a number for each row of a step, for each input in
    /// [`RowInput::of_places`]. Cache slots are counted from `base`.
    rows: Memory,
    max_tokens: u32,
}

impl Sliding {
    /// Creates the mapping for a sliding window, for chunks, or for slots that
    /// `positions_per_place` positions share. Memory has room for `place_capacity` slots, and steps
    /// have at most `max_tokens` tokens.
    ///
    /// # Errors
    /// Fails if the system refuses memory.
    pub fn new(
        window: Option<u32>,
        chunked: bool,
        positions_per_place: u32,
        place_capacity: u32,
        max_tokens: u32,
    ) -> Result<Sliding, MemoryError> {
        let rows = Memory::zeroed("positions in windows", Sliding::bytes(max_tokens), false)?;
        let (window, positions_per_place) = (window.unwrap_or(u32::MAX), positions_per_place.max(1));
        Ok(Sliding { window, chunked, positions_per_place, base: 0, place_capacity, rows, max_tokens })
    }

    /// Returns the number of bytes of the index inputs, which are needed in addition to the state.
    pub fn bytes(max_tokens: u32) -> u64 {
        RowInput::of_places().count() as u64 * u64::from(max_tokens) * INDEX_BYTES
    }

    /// Returns the first position in memory.
    pub fn base(&self) -> u32 {
        self.base
    }

    /// Returns the number of cache slots for which memory has room.
    pub fn place_capacity(&self) -> u32 {
        self.place_capacity
    }

    /// Returns whether the state can drop positions from memory. If not, [`Sliding::base`] stays 0.
    pub fn slides(&self) -> bool {
        self.positions_per_place == 1
    }

    /// Returns the first position of the sequence that the token at `position` needs.
    pub fn first(&self, position: u32) -> u32 {
        match self.chunked {
            true => position / self.window.max(1) * self.window,
            false => position.saturating_add(1).saturating_sub(self.window),
        }
    }

    /// Returns the first block that the token at `position` needs, counted in memory.
    pub fn first_block(&self, position: u32) -> u64 {
        self.first_visible(position) / u64::from(ATTENTION_BLOCK)
    }

    /// Returns the first position that the token at `position` sees, counted from the first
    /// position in memory.
    pub fn first_visible(&self, position: u32) -> u64 {
        self.first(position).saturating_sub(self.base).into()
    }

    /// Returns whether memory holds all positions that the token at `position` needs.
    pub fn reaches(&self, position: u32) -> bool {
        self.first(position) >= self.base
    }

    /// Returns the number of cache slots in memory that hold the positions before `used`.
    pub fn places(&self, used: u32) -> u32 {
        if self.positions_per_place > 1 {
            used.div_ceil(self.positions_per_place)
        } else {
            used.saturating_sub(self.base)
        }
    }

    /// Sets the first position in memory, which must be a multiple of [`ATTENTION_BLOCK`].
    pub fn stand_at(&mut self, base: u32) {
        self.base = base;
    }

    /// Returns to an earlier position. Returns that position and `used`, the end of the written
    /// positions, both counted in slots of memory.
    pub fn back_to(&mut self, position: u32, used: u32) -> (u32, u32) {
        let used = self.places(used);
        if self.positions_per_place > 1 {
            return (position / self.positions_per_place, used);
        }
        let base = self.base;
        if position == 0 {
            self.base = 0;
        }
        (position.saturating_sub(base), used)
    }

    /// Makes room for a step of `tokens` tokens at `position`. If memory has too little room, moves
    /// `base` and returns the number of positions to drop, and the number of positions that memory
    /// held.
    pub fn make_room(&mut self, position: u32, tokens: u32) -> Option<(u32, u32)> {
        if self.positions_per_place > 1 {
            return None;
        }
        let there = position.saturating_sub(self.base);
        if there.saturating_add(tokens) <= self.place_capacity {
            return None;
        }
        let before = self.base;
        self.base = self.first(position) / ATTENTION_BLOCK * ATTENTION_BLOCK;
        Some((self.base.saturating_sub(before), there))
    }

    /// Writes the index inputs for a step's rows. The sequence has `tokens` rows from row `first`
    /// on.
    pub fn fill(&mut self, position: u32, first: u32, tokens: u32) {
        let end = position.saturating_add(tokens.saturating_sub(1));
        for (part, input) in (0..).zip(RowInput::of_places()) {
            let region = self.part(part);
            for row in first..first.saturating_add(tokens).min(self.max_tokens) {
                let place = position.saturating_sub(self.base).saturating_add(row - first) / self.positions_per_place;
                let position = position.saturating_add(row - first);
                let word = input.value(RowPosition { place, position, end });
                // SAFETY: the region has a word for each of `max_tokens` rows. The mapping is
                // borrowed exclusively, so no kernel runs.
                unsafe { region.base().cast::<u32>().add(row as usize).write_unaligned(word) };
            }
        }
    }

    /// Returns the memory of an index input for the rows of a step. Returns `None` if the input is
    /// not in [`RowInput::of_places`].
    pub fn rows_of(&self, input: RowInput) -> Option<Region> {
        let part = RowInput::of_places().position(|own| own == input)?;
        Some(self.part(part as u64))
    }

    fn part(&self, part: u64) -> Region {
        let (region, bytes) = (self.rows.region(), u64::from(self.max_tokens) * INDEX_BYTES);
        region.part(part * bytes, bytes).unwrap_or(region)
    }
}
