//! Selection of the work items for one half of the rows. Around a sum over ranks, a step can
//! compute its rows in two halves ([`crate::program::halves`]), so that communication and
//! computation overlap.
//!
//! The items of both halves together are those of all rows, so computing in halves changes no bit
//! of the results. A half consists of whole chunks of rows:
//!
//! ```text
//! 10 rows, halves of 5; the steps before the sum have chunks of 4 and 3 rows, that after it of 4
//! before    0..4 4..8 | 8..10         the next step needs rows 0..6
//! before    0..3 3..6 | 6..9 9..10    the sum of the first half needs rows 0..5
//! after     0..4 | 4..8 8..10         rows 0..5 are complete
//! ```

use ixc_ir::plan::Halves;

use super::Pass;
use super::items::Group;
use crate::program::halves::{Half, Side, StageHalf};

impl Pass<'_> {
    /// Returns whether this step computes its rows in halves; `rows` is the minimum number of
    /// tokens for that.
    pub(super) fn has_halves(&self, rows: u32) -> bool {
        self.counts.tokens >= rows
    }

    /// Removes the items of the other half from `groups`, which has the items of all rows. Returns
    /// the number of remaining items.
    pub(super) fn columns_of_half(&self, half: StageHalf, groups: &mut Vec<Group>) -> u64 {
        if !self.has_halves(half.rows) {
            if half.half == Half::Second {
                groups.clear();
            }
            return groups.last().map_or(0, |group| group.end);
        }
        let limit = self.limit(half);
        let mut end = 0;
        groups.retain_mut(|group| {
            let items = (group.end - group.start) / group.chunks.max(1);
            group.keep(half.half, group.first_chunks(half.side, limit));
            group.start = end;
            end += items.saturating_mul(group.chunks);
            group.end = end;
            group.chunks > 0
        });
        end
    }

    /// Returns the row that limits a stage's first half; see [`Group::first_chunks`].
    fn limit(&self, half: StageHalf) -> u64 {
        let rows = u64::from(Halves::first_rows(self.counts.tokens));
        let mut groups = Vec::new();
        let mut next = |limit: u64, position: usize| {
            let Some(stage) = self.program.stages.get(half.first + position) else { return limit };
            self.all_columns(stage, &mut groups);
            match half.side {
                Side::Before => groups.iter().map(|group| group.needed(limit)).fold(limit, u64::max),
                Side::After => groups.iter().map(|group| group.complete(limit)).fold(limit, u64::min),
            }
        };
        match half.side {
            Side::Before => (half.position + 1..half.count).rev().fold(rows, &mut next),
            Side::After => (0..half.position).fold(rows, &mut next),
        }
    }
}

impl Group {
    /// Returns the number of chunks that belong to the first half. Before the sum, these are the
    /// chunks with at least one row below `limit`. After the sum, these are the chunks whose rows
    /// are all below `limit`.
    fn first_chunks(&self, side: Side, limit: u64) -> u64 {
        let below = limit.saturating_sub(self.first_row);
        let chunks = match side {
            Side::Before => below.div_ceil(self.chunk_rows.max(1)),
            Side::After if below >= self.rows => self.chunks,
            Side::After => below / self.chunk_rows.max(1),
        };
        chunks.min(self.chunks)
    }

    /// Returns the end of the rows that the first half computes before the sum; 0 if it has none of
    /// this group.
    fn needed(&self, limit: u64) -> u64 {
        let rows = self.first_chunks(Side::Before, limit).saturating_mul(self.chunk_rows).min(self.rows);
        if rows == 0 { 0 } else { self.first_row + rows }
    }

    /// Returns the end of the rows that the first half has computed after the sum; `u64::MAX` if
    /// these are all rows of the group.
    fn complete(&self, limit: u64) -> u64 {
        let chunks = self.first_chunks(Side::After, limit);
        if chunks == self.chunks { u64::MAX } else { self.first_row + chunks.saturating_mul(self.chunk_rows) }
    }

    /// Removes the chunks of the other half from the group. The first `first` chunks belong to the
    /// first half.
    fn keep(&mut self, half: Half, first: u64) {
        let rows = first.saturating_mul(self.chunk_rows).min(self.rows);
        (self.first_row, self.rows, self.chunks) = match half {
            Half::First => (self.first_row, rows, first),
            Half::Second => (self.first_row + rows, self.rows - rows, self.chunks - first),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::executor::execute::parts::Span;

    fn group(first_row: u64, rows: u64, chunk_rows: u64) -> Group {
        let chunks = rows.div_ceil(chunk_rows);
        Group {
            start: 0,
            end: chunks,
            task: 0,
            variant: 0,
            expert: 0,
            piece: 0,
            first_row,
            rows,
            chunk_rows,
            chunks,
            by_rows: false,
            banded: false,
            span: Span::WHOLE,
        }
    }

    /// Returns the first row, the number of rows and the number of chunks of each half.
    fn halves(group: Group, first: u64) -> [(u64, u64, u64); 2] {
        [Half::First, Half::Second].map(|half| {
            let mut kept = group;
            kept.keep(half, first);
            (kept.first_row, kept.rows, kept.chunks)
        })
    }

    #[test]
    fn halves_have_whole_chunks_and_all_rows_that_the_other_side_needs() {
        let last = group(0, 10, 3);
        let needed = last.needed(5);
        assert_eq!((needed, halves(last, last.first_chunks(Side::Before, 5))), (6, [(0, 6, 2), (6, 4, 2)]));
        let before = group(0, 10, 4);
        assert_eq!(halves(before, before.first_chunks(Side::Before, needed)), [(0, 8, 2), (8, 2, 1)]);
        let after = group(0, 10, 4);
        assert_eq!((after.complete(5), halves(after, after.first_chunks(Side::After, 5))), (4, [(0, 4, 1), (4, 6, 2)]));
        // Each of two sequences has five rows, one half of all rows.
        let [one, two] = [group(0, 5, 4), group(5, 5, 4)];
        assert_eq!([one.needed(5), two.needed(5)], [5, 0]);
        assert_eq!([one.complete(5), two.complete(5)], [u64::MAX, 5]);
        let chunks = |group: Group| [Side::Before, Side::After].map(|side| group.first_chunks(side, 5));
        assert_eq!([chunks(one), chunks(two)], [[2, 2], [0, 0]]);
        // The last chunk has fewer rows than the other chunks.
        assert_eq!((before.needed(9), halves(before, 3)), (10, [(0, 10, 3), (10, 0, 0)]));
    }
}
