//! Copies of chosen cache slots, for sparse attention. An index chooses slots of a state for each
//! row, and these are copied to contiguous memory, which kernels read. A *slot* holds the cache row
//! of one position, or of several positions that share it.
//!
//! Addresses in kernels do not depend on data, so this module reads the bit mask of chosen slots.
//! It copies the slots into the thread's memory, in ascending order and in the layout of the state.
//! This copies some KiB for each position; all heads that share a key use the same copy. If a row
//! sees all slots ([`PositionChoice::is_all`]), the kernel reads the state directly.
//!
//! ```text
//! chosen   ..1. .11. 1...          bits of 12 slots; 4 of them are chosen
//! keys     2, 5, 6, 8              copied as slots 0 to 3 of a state with 4 slots
//! ```
//!
//! Invariant: for any bit mask, each copy reads inside the state and writes to the thread's own
//! memory. No task of the same step writes the state. Unused slots at the end of the last block are
//! filled with zeros: their attention weight is 0, but old bytes could be NaN.

use std::sync::atomic::{AtomicU32, Ordering};

use ixc_ir::plan::{ATTENTION_BLOCK, ChoiceUnit, KEY_LANES, PositionChoice, Source};

use super::buffers::{Argument, part};
use super::{Item, Pass, Problem};
use crate::program::LINE_BYTES;
use crate::storage::memory::Region;

/// Bytes of an element of a chosen slot: f16 (checked by `Program::new`).
const ELEMENT: usize = 2;
/// Number of slots whose elements are interleaved, in states with an interleaved layout.
const LANES: usize = KEY_LANES as usize;

impl Pass<'_> {
    /// Copies the chosen slots for a kernel's buffer, and returns the memory of the copies. `taken`
    /// is the number of bytes of the thread's memory that earlier arguments use.
    pub(super) fn gather_chosen(
        &self,
        thread: usize,
        taken: &mut u64,
        argument: &Argument<'_>,
        item: &Item,
        dims: &[i64],
    ) -> Result<Region, Problem> {
        let &Argument { parameter, arg, .. } = argument;
        let size_error = || Problem::Size { buffer: parameter.name.clone(), dims: dims.to_vec() };
        let Source::Chosen { state, field, marks, choice } = arg.source else { return Err(size_error()) };
        let bytes = parameter.size.at(dims).ok_or_else(size_error)?;
        let states = self.states(item.piece).ok_or_else(size_error)?;
        let position = self.last_position(item);
        // Positions are divided among items. But if the index chooses entries, each item reads all
        // chosen entries.
        let first = if choice.of == ChoiceUnit::Entries { 0 } else { item.span.first() };
        let from = |block: u64| states.region(state, field, item.column, block).ok_or_else(size_error);
        if choice.is_all(position) {
            return part(from(first)?, 0, bytes, parameter, item);
        }
        let (row_bytes, lanes) = states.place(state, field).ok_or_else(size_error)?;
        let block = row_bytes.saturating_mul(ATTENTION_BLOCK.into());
        // A copy serves only one row, because each row has its own chosen slots.
        if block == 0 || item.rows != 1 || !bytes.is_multiple_of(block) {
            return Err(size_error());
        }
        let to = part(self.store.chosen[thread].region(), *taken, bytes, parameter, item)?;
        *taken = taken.saturating_add(bytes).next_multiple_of(LINE_BYTES);
        // The state must hold all slots that the row can see.
        let seen = choice.visible_places(position);
        let held = u64::from(seen).next_multiple_of(ATTENTION_BLOCK.into()).saturating_mul(row_bytes);
        let from = part(from(0)?, 0, held, parameter, item)?;
        let words = u64::from(seen.div_ceil(ATTENTION_BLOCK)) * 4;
        let row = self.program.buffers[marks.0 as usize].row_bytes.saturating_mul(item.row);
        // If the mask has separate bits for each column, the item's column selects them.
        let bits = row.saturating_add(arg.column_stride.saturating_mul(item.column.into()));
        let marks = part(self.arena(marks.0 as usize), bits, words, parameter, item)?;
        // SAFETY: the region has as many words. `Program::new` checked that the buffer, its rows
        // and their columns are aligned for words. If the plan is wrong and another thread writes
        // there meanwhile, each atomic read returns the old or the new word.
        let words = unsafe { std::slice::from_raw_parts(marks.base().cast::<AtomicU32>(), words as usize / 4) };
        let width = row_bytes as usize / ELEMENT;
        let mut places = ChosenPlaces::new(words, choice, position, first.saturating_mul(ATTENTION_BLOCK.into()));
        for at in (0..bytes).step_by(block as usize) {
            let mut of_block = [0u32; ATTENTION_BLOCK as usize];
            let count = places.fill(&mut of_block);
            let chosen = &of_block[..count];
            // SAFETY: a block begins at `at`, inside `to`, in memory that only this thread uses.
            // Each slot number is below `seen`, and these slots lie in `from`. `Program::new`
            // checked that no task of this step writes the state.
            unsafe {
                let to = to.base().add(at as usize);
                to.write_bytes(0, block as usize * usize::from(count < of_block.len()));
                match lanes {
                    true => side_by_side(from.base(), to, width, chosen),
                    false => one_by_one(from.base(), to, width, chosen),
                }
            }
        }
        Ok(to)
    }
}

/// Iterator over the chosen slots of a row, in ascending order.
struct ChosenPlaces<'w> {
    words: &'w [AtomicU32],
    /// Index of the next word of the mask to read.
    next: usize,
    /// Bits of the current word that are not returned yet.
    bits: u32,
    /// Number of slots that the row sees.
    seen: u32,
    /// Number of chosen slots still to be returned.
    left: u64,
}

impl<'w> ChosenPlaces<'w> {
    /// Creates an iterator that begins after the first `skipped` chosen slots.
    fn new(words: &'w [AtomicU32], choice: PositionChoice, position: u32, mut skipped: u64) -> ChosenPlaces<'w> {
        let left = u64::from(choice.count(position)).saturating_sub(skipped);
        let mut places = ChosenPlaces { words, next: 0, bits: 0, seen: choice.visible_places(position), left };
        while skipped > 0 && places.next_word() {
            let count = u64::from(places.bits.count_ones());
            if count > skipped {
                (0..skipped).for_each(|_| places.bits &= places.bits.wrapping_sub(1));
            } else {
                places.bits = 0;
            }
            skipped -= count.min(skipped);
        }
        places
    }

    /// Reads the next word. Returns whether there is one.
    fn next_word(&mut self) -> bool {
        let Some(word) = self.words.get(self.next) else { return false };
        let before = self.next as u32 * ATTENTION_BLOCK;
        let there = match self.seen.saturating_sub(before) {
            there @ 0..ATTENTION_BLOCK => (1 << there) - 1,
            _ => u32::MAX,
        };
        (self.bits, self.next) = (word.load(Ordering::Relaxed) & there, self.next + 1);
        true
    }

    /// Writes the numbers of the next chosen slots to `places`, until it is full or no slots
    /// remain. Returns the number of slots written.
    fn fill(&mut self, places: &mut [u32]) -> usize {
        let mut count = 0;
        while count < places.len() && self.left > 0 {
            if self.bits == 0 {
                if self.next_word() {
                    continue;
                }
                break;
            }
            places[count] = (self.next as u32 - 1) * ATTENTION_BLOCK + self.bits.trailing_zeros();
            self.bits &= self.bits - 1;
            (count, self.left) = (count + 1, self.left - 1);
        }
        count
    }
}

/// Copies slots that are contiguous rows of `width` elements.
///
/// # Safety
/// Each slot must lie in `from`. `to` must have room for all slots, and must not overlap `from`.
unsafe fn one_by_one(from: *const u8, to: *mut u8, width: usize, places: &[u32]) {
    let row = width * ELEMENT;
    for (i, &place) in places.iter().enumerate() {
        // SAFETY: the caller guarantees that both ranges are valid.
        unsafe { from.add(place as usize * row).copy_to_nonoverlapping(to.add(i * row), row) };
    }
}

/// Copies slots from a layout that interleaves the elements of [`LANES`] slots. Such a group of
/// slots is a strip.
///
/// # Safety
/// See [`one_by_one`]. `to` must have room for whole strips of slots.
unsafe fn side_by_side(from: *const u8, to: *mut u8, width: usize, places: &[u32]) {
    let strip = width * LANES * ELEMENT;
    for (i, places) in places.chunks(LANES).enumerate() {
        // SAFETY: strips of `from` and `to` are valid, as the caller guarantees.
        let to = unsafe { to.add(i * strip) }.cast::<[u16; LANES]>();
        let mut lanes = [from.cast::<u16>(); LANES];
        for (lane, &place) in lanes.iter_mut().zip(places) {
            // SAFETY: the address is the lane of a slot in its strip, inside `from`.
            *lane = unsafe { from.add(place as usize / LANES * strip).cast::<u16>().add(place as usize % LANES) };
        }
        for e in 0..width {
            let mut elements = [0; LANES];
            for (element, lane) in elements.iter_mut().zip(&lanes[..places.len()]) {
                // SAFETY: the address is an element of a slot in `from`. The read needs no
                // alignment.
                *element = unsafe { lane.add(e * LANES).read_unaligned() };
            }
            // SAFETY: the address is inside a strip of `to`.
            unsafe { to.add(e).write_unaligned(elements) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(bits: &[u32]) -> Vec<AtomicU32> {
        bits.iter().map(|&word| AtomicU32::new(word)).collect()
    }

    fn all(mut places: ChosenPlaces<'_>, room: usize) -> Vec<u32> {
        let mut found = Vec::new();
        let mut block = vec![0; room];
        while let count @ 1.. = places.fill(&mut block) {
            found.extend(&block[..count]);
        }
        found
    }

    #[test]
    fn selected_places_are_read_in_order_from_any_offset() {
        let bits = [0x8000_0001, 0, 0xffff_0000, 0xffff_ffff];
        let choice = PositionChoice { top_k: 23, every: 1, of: ChoiceUnit::Positions };
        let expected: Vec<u32> = [0, 31].into_iter().chain(80..96).chain(96..101).collect();
        let words = words(&bits);
        for (skipped, room) in (0..=23).flat_map(|skipped| [1, 5, 32].map(|room| (skipped, room))) {
            assert_eq!(
                all(ChosenPlaces::new(&words, choice, 100, skipped), room),
                expected[skipped as usize..],
                "{skipped}"
            );
        }
        // If the mask has fewer or more bits than the choice's count, no slot outside the state is
        // returned.
        assert_eq!(all(ChosenPlaces::new(&words, choice, 30, 0), 32), [0]);
        assert_eq!(all(ChosenPlaces::new(&words[..2], choice, 100, 0), 32), [0, 31]);
        assert_eq!(all(ChosenPlaces::new(&words, PositionChoice { top_k: 2, ..choice }, 100, 0), 32), [0, 31]);
        assert!(all(ChosenPlaces::new(&words, choice, 100, 1 << 40), 32).is_empty());
    }

    #[test]
    fn selected_places_keep_their_layout_when_gathered() {
        let (width, held) = (5usize, 64usize);
        let element = |place: usize, e: usize| (place * width + e) as u16;
        let chosen = [3, 15, 16, 17, 18, 20, 21, 30, 31, 32, 40, 41, 47, 48, 50, 60, 63];
        let (mut rows, mut strips) = (vec![0u16; held * width], vec![0u16; held * width]);
        for (place, e) in (0..held).flat_map(|place| (0..width).map(move |e| (place, e))) {
            rows[place * width + e] = element(place, e);
            strips[(place / LANES * width + e) * LANES + place % LANES] = element(place, e);
        }
        let (mut of_rows, mut of_strips) = (vec![0u16; 32 * width], vec![0u16; 32 * width]);
        // SAFETY: all slot numbers are below `held`, and there is room for 32 slots.
        unsafe {
            one_by_one(rows.as_ptr().cast(), of_rows.as_mut_ptr().cast(), width, &chosen);
            side_by_side(strips.as_ptr().cast(), of_strips.as_mut_ptr().cast(), width, &chosen);
        }
        for (i, e) in (0..32).flat_map(|i| (0..width).map(move |e| (i, e))) {
            let expected = chosen.get(i).map_or(0, |&place| element(place as usize, e));
            assert_eq!(of_rows[i * width + e], expected);
            assert_eq!(of_strips[(i / LANES * width + e) * LANES + i % LANES], expected);
        }
    }
}
