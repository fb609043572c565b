//! Positions before an item, and items that are divided by them.
//!
//! With one token there are few items of attention, or of an index's scores, each with a long way to go through the cache; so the positions are divided
//! ([`Division`], by the context alone), and each part is an item that leaves what it has in memory here. A counter for
//! each column tells who finished last, and that thread combines the parts, in their order: which thread it is changes no bit,
//! and no barrier stands between.
//!
//! ```text
//! context 8192, 8 key heads: 128 items of 512 positions, 8 of which combine 16 parts
//! ```
//!
//! Invariant: a part's memory is written by one item and read after all parts of its column are done, by the thread that saw it.

use std::sync::atomic::{AtomicU32, Ordering};

use ixc_ir::plan::Division;

use crate::memory::{Memory, MemoryError, Region};
use crate::program::{PartPlace, Program};

/// Memory of the parts of a stage, for each piece of a step, and how many of each column are done.
#[derive(Debug)]
pub(crate) struct Parts {
    memory: Memory,
    done: Vec<AtomicU32>,
    /// Of a piece.
    bytes: u64,
    lines: usize,
}

/// Which line of a task's parts: a row's column, of a piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Line {
    /// The piece's number.
    pub piece: u32,
    /// The row, from the piece's first on.
    pub row: u64,
    pub column: u32,
}

impl Parts {
    /// For the largest stage of a program, and steps of so many pieces.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn new(program: &Program, pieces: u32) -> Result<Parts, MemoryError> {
        let (bytes, lines) = (program.part_bytes, program.part_lines);
        let memory = Memory::zeroed("parts of items", bytes.saturating_mul(pieces.into()), false)?;
        let counters = lines.saturating_mul(pieces as usize);
        Ok(Parts { memory, done: (0..counters).map(|_| AtomicU32::new(0)).collect(), bytes, lines })
    }

    /// Forgets what an abandoned pass has counted.
    pub fn reset(&mut self) {
        self.done.iter_mut().for_each(|done| *done.get_mut() = 0);
    }

    /// Memory of `count` parts of a row's column from part `first` on.
    pub fn region(&self, place: &PartPlace, at: Line, first: u32, count: u32) -> Option<Region> {
        let pieces = self.bytes.checked_mul(at.piece.into())?;
        let before =
            place.line((at.row, at.column))?.checked_mul(u64::from(place.parts))?.checked_add(u64::from(first))?;
        let offset = before.checked_mul(place.bytes)?.checked_add(place.offset)?.checked_add(pieces)?;
        self.memory.region().part(offset, place.bytes.checked_mul(u64::from(count))?)
    }

    /// Counts a part of a row's column as done; whether it was the last of `count`. What the other threads left in their parts can be read
    /// by the one that gets `true`.
    pub fn finished(&self, place: &PartPlace, at: Line, count: u32) -> bool {
        let line = place.line((at.row, at.column)).and_then(|line| usize::try_from(line).ok()?.checked_add(place.line));
        let number = line.and_then(|line| self.lines.checked_mul(at.piece as usize)?.checked_add(line));
        let Some(done) = number.and_then(|i| self.done.get(i)) else { return false };
        let last = done.fetch_add(1, Ordering::AcqRel) + 1 >= count;
        if last {
            // For the next stage, which a barrier keeps away.
            done.store(0, Ordering::Relaxed);
        }
        last
    }
}

/// Blocks of positions that an item goes through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    /// Its part's number, and of how many.
    pub part: u32,
    pub parts: u32,
    /// Blocks of each part but the last.
    pub each: u32,
    /// The block that the first part begins with.
    pub start: u64,
}

/// Positions of an item's rows, as their state's memory counts them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RowPositions {
    /// The last that the first row sees.
    pub first: u64,
    /// The last that the last row sees.
    pub last: u64,
    /// The first that the last row sees.
    pub seen: u64,
    /// Blocks of the sequence before those that memory holds.
    pub dropped: u64,
}

impl Span {
    /// All positions.
    pub const WHOLE: Span = Span { part: 0, parts: 1, each: u32::MAX, start: 0 };

    /// Parts of so many blocks: how many, and the blocks of each.
    pub fn divided(blocks: u64, division: Division) -> Span {
        let blocks = u32::try_from(blocks).unwrap_or(u32::MAX);
        let (parts, each) = division.of(blocks);
        Span { part: 0, parts, each, start: 0 }
    }

    /// The first block.
    pub fn first(&self) -> u64 {
        self.start + u64::from(self.part) * u64::from(self.each)
    }

    /// Returns the block after the part's last one. It may lie after the last position.
    pub fn end(&self) -> u64 {
        self.first().saturating_add(u64::from(self.each))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_have_every_block_once() {
        // The second has parts enough for each to have two blocks, wherever the row is.
        let divisions = [Division::THREADS, Division { parts: 1 << 20, blocks: 2 }];
        for (position, division) in (0..20_000).chain([1 << 24]).flat_map(|p| divisions.map(|division| (p, division))) {
            let divided = Span::divided(position / 32 + 1, division);
            let mut next = 0;
            for part in 0..divided.parts {
                let own = Span { part, ..divided };
                assert_eq!(own.first(), next, "{position}");
                next = own.end().min(position / 32 + 1);
                assert!(own.first() < next, "{position}");
            }
            assert_eq!(next, position / 32 + 1);
            assert!(divided.parts <= division.parts);
            assert!(division == Division::THREADS || divided.each == 2);
        }
    }
}
