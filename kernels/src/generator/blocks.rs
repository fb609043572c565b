//! Dims that count blocks of places which all rows, or some rows, see. Also dims that count runs of
//! blocks.
//!
//! A block has [`ATTENTION_BLOCK`] places. An item loops over the blocks of its part, up to the
//! last place that its last row sees.

use ixc_ir::plan::DimInput::{Capacity, First, Last, PartBegin, PartEnd, Position, Skipped, WindowBegin};
use ixc_ir::plan::{ATTENTION_BLOCK, DimExpr, KEY_LANES};

/// Returns the number of blocks that each row of the item sees whole, if rows have no window.
pub fn full() -> DimExpr {
    ((First + 1) / ATTENTION_BLOCK).min(PartEnd) - PartBegin
}

/// Returns the number of blocks after those of [`full`], up to the last place that the last row
/// sees.
pub fn masked_blocks() -> DimExpr {
    end() - ((First + 1) / ATTENTION_BLOCK).max(PartBegin)
}

/// Returns the index of the first block of the item's part.
pub fn first() -> DimExpr {
    PartBegin.into()
}

/// Returns the index of the block after the last one of the item.
fn end() -> DimExpr {
    (Last / ATTENTION_BLOCK + 1).min(PartEnd)
}

/// Returns the number of blocks of complete entries that the row could see. An entry has `every`
/// positions.
pub fn whole(every: u32) -> DimExpr {
    ((Position + 1) / every).div_ceil(ATTENTION_BLOCK)
}

/// Returns the number of those blocks of [`whole`] that are in the item's part.
pub fn whole_of_part(every: u32) -> DimExpr {
    whole(every).min(PartEnd) - PartBegin
}

/// Returns the number of blocks of the places that an index chose. It chooses at most `top_k`
/// complete entries of `every` positions.
pub fn of_top_k(top_k: u32, every: u32) -> DimExpr {
    ((Position + 1) / every).min(top_k).div_ceil(ATTENTION_BLOCK)
}

/// Returns the capacity of the KV cache in blocks of [`KEY_LANES`] places.
pub fn of_cache() -> DimExpr {
    Capacity / KEY_LANES
}

/// Runs: groups of several consecutive blocks of an item. Runs begin at multiples of their length,
/// for any rows. A row thus has the same runs alone and with rows in other blocks. If a window
/// skips blocks, blocks are counted from the text's beginning, otherwise from the beginning of the
/// part.
///
/// ```text
/// rows at positions 300 to 331, runs of 4 blocks     lead 0, head 0, full 2, masked 0, rest 3
/// the same with a window of 200 positions            lead 1, head 1, full 0, masked 0, rest 3
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Runs {
    /// Number of blocks before the first whole run.
    pub lead: DimExpr,
    /// Number of whole runs that begin before the last row's window.
    pub head: DimExpr,
    /// Number of runs that all rows see whole.
    pub full: DimExpr,
    /// Number of whole runs after those that all rows see whole.
    pub masked: DimExpr,
    /// Number of blocks after the last whole run.
    pub rest: DimExpr,
}

impl Runs {
    /// Returns dims for runs of `n` blocks, which must be at least 1.
    pub fn from_length(n: u32) -> Runs {
        let count = end() - PartBegin;
        // Number of blocks up to the first multiple of `n`. If the item has fewer blocks, it has no
        // runs.
        let lead = (DimExpr::from(n) - Skipped % n) % n;
        let runs = (count.clone() - lead.clone()) / n;
        let unseen = DimExpr::from(WindowBegin).div_ceil(ATTENTION_BLOCK) - PartBegin - lead.clone();
        let head = unseen.div_ceil(n);
        // Number of runs up to the end of the blocks that all rows see.
        let seen = (full() - lead.clone()) / n;
        Runs {
            lead: lead.clone().min(count.clone()),
            head: head.clone().min(runs.clone()),
            full: seen.clone() - head.clone(),
            masked: runs - seen.max(head),
            rest: (count - lead) % n,
        }
    }
}

#[cfg(test)]
mod tests {
    use ixc_ir::plan::DimInput;

    use super::*;

    /// Positions of an item's rows and window, relative to the state's memory.
    #[derive(Clone, Copy, Default)]
    struct Item {
        first: u64,
        last: u64,
        seen: u64,
        begin: u64,
        skipped: u64,
    }

    impl Item {
        fn value(self, expression: &DimExpr) -> u64 {
            let input = |input| match input {
                DimInput::First => self.first,
                DimInput::Last => self.last,
                DimInput::WindowBegin => self.seen,
                DimInput::PartBegin => self.begin,
                DimInput::PartEnd => self.begin + u64::from(u32::MAX),
                DimInput::Skipped => self.skipped,
                input => panic!("{input:?}"),
            };
            expression.evaluate(input).unwrap()
        }

        fn runs(self) -> [u64; 5] {
            let Runs { lead, head, full, masked, rest } = Runs::from_length(4);
            [lead, head, full, masked, rest].map(|expression| self.value(&expression))
        }
    }

    #[test]
    fn blocks_are_full_only_where_every_row_sees_them() {
        let blocks = |first, last| {
            let item = Item { first, last, ..Item::default() };
            [full(), masked_blocks(), super::first()].map(|expression| item.value(&expression))
        };
        assert_eq!(blocks(0, 0), [0, 1, 0]);
        assert_eq!(blocks(30, 30), [0, 1, 0]);
        assert_eq!(blocks(31, 31), [1, 0, 0]);
        assert_eq!(blocks(31, 32), [1, 1, 0]);
        assert_eq!(blocks(62, 77), [1, 2, 0]);
    }

    #[test]
    fn runs_do_not_depend_on_other_rows() {
        let runs = |first, last| Item { first, last, ..Item::default() }.runs();
        assert_eq!(runs(0, 0), [0, 0, 0, 0, 1]);
        assert_eq!(runs(127, 127), [0, 0, 1, 0, 0]);
        assert_eq!(runs(126, 127), [0, 0, 0, 1, 0]);
        assert_eq!(runs(300, 331), [0, 0, 2, 0, 3]);
        assert_eq!(runs(352, 607), [0, 0, 2, 2, 3]);
        // With a window of 200 positions, the window of the first row begins at 101, and that of
        // the last row at 132.
        let windowed = Item { first: 300, last: 331, seen: 132, begin: 3, skipped: 3 };
        assert_eq!(windowed.runs(), [1, 1, 0, 0, 3]);
    }

    /// Checks that the blocks contain every position that a row sees, and that every row sees full
    /// runs whole. The begin of a run must not depend on other rows or on the first position in
    /// memory.
    #[test]
    fn window_runs_cover_exactly_the_visible_positions() {
        let mut full_runs = 0;
        for window in [1, 20, 128, 200, 1024] {
            for (own, rows) in (0..1500).step_by(13).flat_map(|own| [1, 7, 64, 300].map(|rows| (own, rows))) {
                let (seen_by_first, seen_by_last) =
                    ((own + 1u64).saturating_sub(window), (own + rows).saturating_sub(window));
                for base in [0, seen_by_first / 32 * 32] {
                    let begin = (seen_by_first - base) / 32;
                    let at = Item {
                        first: own - base,
                        last: own - base + rows - 1,
                        seen: seen_by_last - base,
                        begin,
                        skipped: begin + base / 32,
                    };
                    let [lead, head, full, masked, rest] = at.runs();
                    let first = begin + base / 32;
                    // Kernels without runs loop over the same blocks.
                    let blocks = at.value(&super::full()) + at.value(&super::masked_blocks());
                    assert_eq!(blocks, lead + 4 * (head + full + masked) + rest);
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
                    // The kernels' dims have these bounds.
                    assert!(head <= rows / 128 + 2 && masked <= rows / 128 + 2, "{head}, {masked} of {rows} rows");
                }
            }
        }
        assert!(full_runs > 1000);
    }
}
