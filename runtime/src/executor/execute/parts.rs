//! Work items that divide the cached positions among threads (split-KV), and the memory of their
//! partial results.
//!
//! In decode, attention and index scores have few rows and columns, but many cached positions. So
//! the positions are divided into parts ([`Division`]); the division depends only on the number of
//! positions. Each part is an item that writes a partial result. A counter for each row and column
//! shows which thread finishes last. That thread combines the partial results in order, so the
//! result does not depend on the thread. No barrier is needed.
//!
//! ```text
//! context 8192, 8 key heads: 128 items of 512 positions, 8 of which combine 16 parts
//! ```
//!
//! Invariant: each partial result is written by exactly one item. It is read only after all parts
//! of its row and column are finished, by the thread that finished last.

use std::sync::atomic::{AtomicU32, Ordering};

use ixc_ir::plan::Division;

use crate::program::{PartPlace, Program};
use crate::storage::memory::{Memory, MemoryError, Region};

/// The memory for a stage's partial results, and counters of finished parts. There is a counter for
/// each row and column that is divided, and separate memory for each piece (rows of one sequence)
/// of a step.
#[derive(Debug)]
pub(crate) struct PartResults {
    memory: Memory,
    done: Vec<AtomicU32>,
    /// Bytes of the partial results of one piece.
    bytes: u64,
    lines: usize,
}

/// The row and column to which a set of partial results belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PartKey {
    /// Number of the piece that contains the row.
    pub piece: u32,
    /// Number of the row, relative to the piece's first row.
    pub row: u64,
    pub column: u32,
}

impl PartResults {
    /// Allocates memory for the largest stage of a program, and for steps of at most `pieces`
    /// pieces.
    ///
    /// # Errors
    /// Fails if the system refuses memory.
    pub fn new(program: &Program, pieces: u32) -> Result<PartResults, MemoryError> {
        let (bytes, lines) = (program.part_bytes, program.part_lines);
        let memory = Memory::zeroed("parts of items", bytes.saturating_mul(pieces.into()), false)?;
        let counters = lines.saturating_mul(pieces as usize);
        Ok(PartResults { memory, done: (0..counters).map(|_| AtomicU32::new(0)).collect(), bytes, lines })
    }

    /// Resets the counters, which may not be 0 after a failed pass.
    pub fn reset(&mut self) {
        self.done.iter_mut().for_each(|done| *done.get_mut() = 0);
    }

    /// Returns the memory of `count` partial results of a row and column, beginning with number
    /// `first`.
    pub fn region(&self, place: &PartPlace, at: PartKey, first: u32, count: u32) -> Option<Region> {
        let pieces = self.bytes.checked_mul(at.piece.into())?;
        let before =
            place.line(at.row, at.column)?.checked_mul(u64::from(place.parts))?.checked_add(u64::from(first))?;
        let offset = before.checked_mul(place.bytes)?.checked_add(place.offset)?.checked_add(pieces)?;
        self.memory.region().part(offset, place.bytes.checked_mul(u64::from(count))?)
    }

    /// Counts a part of a row and column as finished. Returns whether it was the last of `count`
    /// parts. The thread that gets `true` may read the partial results of the other threads.
    pub fn finished(&self, place: &PartPlace, at: PartKey, count: u32) -> bool {
        let line = place.line(at.row, at.column).and_then(|line| usize::try_from(line).ok()?.checked_add(place.line));
        let number = line.and_then(|line| self.lines.checked_mul(at.piece as usize)?.checked_add(line));
        let Some(done) = number.and_then(|i| self.done.get(i)) else { return false };
        let last = done.fetch_add(1, Ordering::AcqRel) + 1 >= count;
        if last {
            // The counter is reset for the next stage, which begins after a barrier.
            done.store(0, Ordering::Relaxed);
        }
        last
    }
}

/// The attention blocks of positions that an item reads: one part of all blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    /// Number of this part; the next field is the number of parts.
    pub part: u32,
    pub parts: u32,
    /// Number of blocks in each part; the last part may have fewer blocks.
    pub each: u32,
    /// The first block of the first part.
    pub start: u64,
}

/// The range of positions that an item's rows see, counted from the first position in the state's
/// memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RowPositions {
    /// The last position that the first row sees.
    pub first: u64,
    /// The last position that the last row sees.
    pub last: u64,
    /// The first position that the last row sees.
    pub seen: u64,
    /// Number of blocks that were dropped from memory before the first block.
    pub dropped: u64,
}

impl Span {
    /// All blocks in one part.
    pub const WHOLE: Span = Span { part: 0, parts: 1, each: u32::MAX, start: 0 };

    /// Divides `blocks` attention blocks into parts. Returns the first part.
    pub fn divide(blocks: u64, division: Division) -> Span {
        let blocks = u32::try_from(blocks).unwrap_or(u32::MAX);
        let (parts, each) = division.divide(blocks);
        Span { part: 0, parts, each, start: 0 }
    }

    /// Returns the first block of this part.
    pub fn first(&self) -> u64 {
        self.start + u64::from(self.part) * u64::from(self.each)
    }

    /// Returns the block after the last one of this part. It may lie after the last position.
    pub fn end(&self) -> u64 {
        self.first().saturating_add(u64::from(self.each))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attention_parts_cover_every_block_once() {
        // With the second division, each part always has two blocks.
        let divisions = [Division::THREADS, Division { parts: 1 << 20, blocks: 2 }];
        for (position, division) in (0..20_000).chain([1 << 24]).flat_map(|p| divisions.map(|division| (p, division))) {
            let divided = Span::divide(position / 32 + 1, division);
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
