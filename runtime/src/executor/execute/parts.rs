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

use ixc_ir::plan::{ATTENTION_BLOCK, DimRule, Division, Runs};

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
    /// The first row's.
    pub first: u64,
    /// The last row's.
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

    /// A dim about blocks, for rows at these positions; `None` where the rule is about something else.
    pub fn dim(&self, rule: DimRule, rows: RowPositions) -> Option<u64> {
        let block = u64::from(ATTENTION_BLOCK);
        let start = self.first();
        let end = (rows.last / block + 1).min(start.saturating_add(u64::from(self.each))).max(start);
        let whole = ((rows.first + 1) / block).clamp(start, end);
        // Runs of a part are counted from its beginning, those of a window from the sequence's.
        let before = self.start + rows.dropped;
        let runs = |n: u32| {
            let counted = |block: u64| block.saturating_sub(start) + before;
            Runs::of(n, before..counted(end), counted(rows.seen.div_ceil(block))..counted(whole))
        };
        match rule {
            DimRule::FullBlocks => Some(whole - start),
            DimRule::MaskedBlocks => Some(end - whole),
            DimRule::FirstBlock => Some(start),
            DimRule::Parts => Some(self.parts.into()),
            DimRule::FullRuns(n) => Some(runs(n).full),
            DimRule::MaskedRuns(n) => Some(runs(n).masked),
            DimRule::RunRest(n) => Some(runs(n).rest),
            DimRule::RunLead(n) => Some(runs(n).lead),
            DimRule::HeadRuns(n) => Some(runs(n).head),
            DimRule::Rows
            | DimRule::RowGroups(_)
            | DimRule::RowRest(_)
            | DimRule::RowRestGroups { .. }
            | DimRule::RowPartial(_)
            | DimRule::TextEnd
            | DimRule::CacheBlocks
            | DimRule::WholeBlocks(_)
            | DimRule::PartBlocks(_)
            | DimRule::ChosenBlocks(_)
            | DimRule::All(_)
            | DimRule::Band => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dims(span: Span, first: u64, last: u64) -> [u64; 3] {
        let rows = RowPositions { first, last, ..RowPositions::default() };
        [DimRule::FullBlocks, DimRule::MaskedBlocks, DimRule::FirstBlock].map(|rule| span.dim(rule, rows).unwrap())
    }

    #[test]
    fn blocks_are_whole_where_every_row_sees_them() {
        assert_eq!(dims(Span::WHOLE, 0, 0), [0, 1, 0]);
        assert_eq!(dims(Span::WHOLE, 30, 30), [0, 1, 0]);
        assert_eq!(dims(Span::WHOLE, 31, 31), [1, 0, 0]);
        assert_eq!(dims(Span::WHOLE, 31, 32), [1, 1, 0]);
        assert_eq!(dims(Span::WHOLE, 62, 77), [1, 2, 0]);
        assert_eq!(Span::WHOLE.dim(DimRule::Rows, RowPositions::default()), None);
    }

    #[test]
    fn runs_begin_where_they_would_for_a_row_alone() {
        let runs = |first, last| {
            let rows = RowPositions { first, last, ..RowPositions::default() };
            assert_eq!(
                [DimRule::RunLead(4), DimRule::HeadRuns(4)].map(|rule| Span::WHOLE.dim(rule, rows)),
                [Some(0); 2]
            );
            [DimRule::FullRuns(4), DimRule::MaskedRuns(4), DimRule::RunRest(4)]
                .map(|rule| Span::WHOLE.dim(rule, rows).unwrap())
        };
        assert_eq!(runs(0, 0), [0, 0, 1]);
        assert_eq!(runs(127, 127), [1, 0, 0]);
        assert_eq!(runs(126, 127), [0, 1, 0]);
        assert_eq!(runs(300, 331), [2, 0, 3]);
        assert_eq!(runs(352, 607), [2, 2, 3]);
    }

    /// Every position that a row sees is in a block, those of full runs every row sees, and which positions a run begins at depends neither on the
    /// other rows nor on what memory holds.
    #[test]
    fn runs_of_a_window_have_what_its_rows_see() {
        let rules = [DimRule::RunLead, DimRule::HeadRuns, DimRule::FullRuns, DimRule::MaskedRuns, DimRule::RunRest];
        let mut full_runs = 0;
        for window in [1, 20, 128, 200, 1024] {
            for (own, rows) in (0..1500).step_by(13).flat_map(|own| [1, 7, 64, 300].map(|rows| (own, rows))) {
                let (seen_by_first, seen_by_last) =
                    ((own + 1u64).saturating_sub(window), (own + rows).saturating_sub(window));
                for base in [0, seen_by_first / 32 * 32] {
                    let span = Span { start: (seen_by_first - base) / 32, ..Span::WHOLE };
                    let at = RowPositions {
                        first: own - base,
                        last: own - base + rows - 1,
                        seen: seen_by_last - base,
                        dropped: base / 32,
                    };
                    let [lead, head, full, masked, rest] = rules.map(|rule| span.dim(rule(4), at).unwrap());
                    let first = span.start + base / 32;
                    // Vectors go through the same blocks; the first has a position that the first row sees.
                    let [seen, masked_blocks, _] = dims(span, at.first, at.last);
                    assert_eq!(seen + masked_blocks, lead + 4 * (head + full + masked) + rest);
                    assert_eq!(first, seen_by_first / 32);
                    assert!(
                        lead < 4
                            && rest < 4
                            && (lead == 0 || lead == 4 - first % 4 || head + full + masked + rest == 0)
                    );
                    assert_eq!(first + lead + 4 * (head + full + masked) + rest, (own + rows - 1) / 32 + 1);
                    if full > 0 {
                        let start = 32 * (first + lead + 4 * head);
                        assert!(
                            start >= seen_by_last && start + 128 * full <= own + 1,
                            "{window} at {own}, {rows} rows"
                        );
                    }
                    full_runs += full;
                    // What bounds kernels' dims.
                    assert!(head <= rows / 128 + 2 && masked <= rows / 128 + 2, "{head}, {masked} of {rows} rows");
                }
            }
        }
        assert!(full_runs > 1000);
    }

    #[test]
    fn parts_have_every_block_once() {
        // The second has parts enough for each to have two blocks, wherever the row is.
        let divisions = [Division::THREADS, Division { parts: 1 << 20, blocks: 2 }];
        for (position, division) in (0..20_000).chain([1 << 24]).flat_map(|p| divisions.map(|division| (p, division))) {
            let divided = Span::divided(position / 32 + 1, division);
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
