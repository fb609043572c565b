//! Positions before an item, and items that are divided by them.
//!
//! With one token there are few items of attention, each with a long way to go through the cache; so the positions are divided
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

use ixc_ir::plan::{ATTENTION_BLOCK, DimRule, Division, Runs};

use crate::memory::{Memory, MemoryError, Region};
use crate::program::{PartPlace, Program};

/// Memory of the parts of a stage, and how many of each column are done.
#[derive(Debug)]
pub(crate) struct Parts {
    memory: Memory,
    done: Vec<AtomicU32>,
}

impl Parts {
    /// For the largest stage of a program.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn new(program: &Program) -> Result<Parts, MemoryError> {
        let memory = Memory::zeroed("parts of attention", program.part_bytes, false)?;
        Ok(Parts { memory, done: (0..program.part_lines).map(|_| AtomicU32::new(0)).collect() })
    }

    /// Forgets what an abandoned pass has counted.
    pub fn reset(&mut self) {
        self.done.iter_mut().for_each(|done| *done.get_mut() = 0);
    }

    /// Memory of `count` parts of a row's column from part `first` on.
    pub fn region(&self, place: &PartPlace, at: (u64, u32), first: u32, count: u32) -> Option<Region> {
        let before = place.line(at)?.checked_mul(u64::from(place.parts))?.checked_add(u64::from(first))?;
        let offset = before.checked_mul(place.bytes)?.checked_add(place.offset)?;
        self.memory.region().part(offset, place.bytes.checked_mul(u64::from(count))?)
    }

    /// Counts a part of a row's column as done; whether it was the last of `count`. What the other threads left in their parts can be read
    /// by the one that gets `true`.
    pub fn finished(&self, place: &PartPlace, at: (u64, u32), count: u32) -> bool {
        let number = place.line(at).and_then(|line| usize::try_from(line).ok()?.checked_add(place.line));
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

impl Span {
    /// All positions.
    pub const WHOLE: Span = Span { part: 0, parts: 1, each: u32::MAX, start: 0 };

    /// Parts of what stands before and with a position: how many, and the blocks of each.
    pub fn divided(position: u64, division: Division) -> Span {
        let blocks = u32::try_from(position / u64::from(ATTENTION_BLOCK) + 1).unwrap_or(u32::MAX);
        let (parts, each) = division.of(blocks);
        Span { part: 0, parts, each, start: 0 }
    }

    /// The first block.
    pub fn first(&self) -> u64 {
        self.start + u64::from(self.part) * u64::from(self.each)
    }

    /// A dim about blocks, for rows at these positions; `None` where the rule is about something else.
    pub fn dim(&self, rule: DimRule, first_row: u64, last_row: u64) -> Option<u64> {
        let block = u64::from(ATTENTION_BLOCK);
        let start = self.first();
        let end = (last_row / block + 1).min(start.saturating_add(u64::from(self.each))).max(start);
        let whole = ((first_row + 1) / block).clamp(start, end);
        match rule {
            DimRule::FullBlocks => Some(whole - start),
            DimRule::MaskedBlocks => Some(end - whole),
            DimRule::FirstBlock => Some(start),
            DimRule::Parts => Some(self.parts.into()),
            DimRule::FullRuns(n) => Some(Runs::of(n, whole - start, end - start).full),
            DimRule::MaskedRuns(n) => Some(Runs::of(n, whole - start, end - start).masked),
            DimRule::RunRest(n) => Some(Runs::of(n, whole - start, end - start).rest),
            DimRule::Rows
            | DimRule::RowGroups(_)
            | DimRule::RowRest(_)
            | DimRule::RowRestGroups { .. }
            | DimRule::RowPartial(_)
            | DimRule::CacheBlocks
            | DimRule::All(_)
            | DimRule::Band => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dims(span: Span, first: u64, last: u64) -> [u64; 3] {
        [DimRule::FullBlocks, DimRule::MaskedBlocks, DimRule::FirstBlock]
            .map(|rule| span.dim(rule, first, last).unwrap())
    }

    #[test]
    fn blocks_are_whole_where_every_row_sees_them() {
        assert_eq!(dims(Span::WHOLE, 0, 0), [0, 1, 0]);
        assert_eq!(dims(Span::WHOLE, 30, 30), [0, 1, 0]);
        assert_eq!(dims(Span::WHOLE, 31, 31), [1, 0, 0]);
        assert_eq!(dims(Span::WHOLE, 31, 32), [1, 1, 0]);
        assert_eq!(dims(Span::WHOLE, 62, 77), [1, 2, 0]);
        assert_eq!(Span::WHOLE.dim(DimRule::Rows, 3, 3), None);
    }

    #[test]
    fn runs_begin_where_they_would_for_a_row_alone() {
        let runs = |first, last| {
            [DimRule::FullRuns(4), DimRule::MaskedRuns(4), DimRule::RunRest(4)]
                .map(|rule| Span::WHOLE.dim(rule, first, last).unwrap())
        };
        assert_eq!(runs(0, 0), [0, 0, 1]);
        assert_eq!(runs(127, 127), [1, 0, 0]);
        assert_eq!(runs(126, 127), [0, 1, 0]);
        assert_eq!(runs(300, 331), [2, 0, 3]);
        assert_eq!(runs(352, 607), [2, 2, 3]);
    }

    #[test]
    fn parts_have_every_block_once() {
        // The second has parts enough for each to have two blocks, wherever the row is.
        let divisions = [Division::THREADS, Division { parts: 1 << 20, blocks: 2 }];
        for (position, division) in (0..20_000).chain([1 << 24]).flat_map(|p| divisions.map(|division| (p, division))) {
            let divided = Span::divided(position, division);
            let mut next = 0;
            for part in 0..divided.parts {
                let [full, masked, first] = dims(Span { part, ..divided }, position, position);
                assert_eq!(first, next, "{position}");
                assert!(full + masked > 0 && (masked == 0 || part + 1 == divided.parts && masked == 1), "{position}");
                next = first + full + masked;
            }
            assert_eq!(next, position / 32 + 1);
            assert!(divided.parts <= division.parts);
            assert!(division == Division::THREADS || divided.each == 2);
        }
    }
}
