//! What a kernel's dims are for a row, by the rules of the plan: an instance works on one row at a time.

use ixc_ir::plan::{ATTENTION_BLOCK, DimRule, KEY_LANES, RowCount, Runs};

/// The value of a rule for a row at `position`, for an instance of part `part` of a state with so many `positions` in a part (16, where there is no
/// state), of a program that receives parts of so many positions, of which there are so many.
pub(crate) fn dim(rule: DimRule, positions: u32, part: u32, position: u32, parts: Option<(u32, u32)>) -> i64 {
    let n = |n: u32| i64::from(n.max(1));
    let block = i64::from(ATTENTION_BLOCK);
    let each = i64::from(positions) / block;
    let start = i64::from(part) * each;
    let end = (i64::from(position) / block + 1).clamp(start, start + each);
    let whole = ((i64::from(position) + 1) / block).clamp(start, end);
    // No state on a grid has a window, so that no runs begin before a part's blocks or a row's.
    let runs = |n: u32| Runs::of(n, 0..(end - start).unsigned_abs(), 0..(whole - start).unsigned_abs());
    match rule {
        DimRule::Rows => 1,
        DimRule::RowGroups(groups) => 1 / n(groups),
        DimRule::RowRest(groups) => 1 % n(groups),
        DimRule::RowRestGroups { m, n: groups } => 1 % n(m) / n(groups),
        DimRule::RowPartial(groups) => i64::from(1 % n(groups) > 0),
        DimRule::FullBlocks => whole - start,
        DimRule::MaskedBlocks => end - whole,
        DimRule::FirstBlock => start,
        // A row of its own is its text.
        DimRule::TextEnd => position.into(),
        DimRule::FullRuns(n) => runs(n).full.cast_signed(),
        DimRule::MaskedRuns(n) => runs(n).masked.cast_signed(),
        DimRule::RunRest(n) => runs(n).rest.cast_signed(),
        DimRule::RunLead(n) => runs(n).lead.cast_signed(),
        DimRule::HeadRuns(n) => runs(n).head.cast_signed(),
        // No state of a program shares places, and no index chooses any.
        DimRule::WholeBlocks(_) | DimRule::PartBlocks(_) | DimRule::ChosenBlocks(_) => 0,
        DimRule::Parts => parts.map_or(1, |(positions, count)| i64::from((position / positions.max(1) + 1).min(count))),
        DimRule::CacheBlocks => i64::from((positions / KEY_LANES).max(1)),
        DimRule::All(RowCount::Tokens | RowCount::Outputs) => 1,
        DimRule::All(RowCount::Routed { top_k }) => i64::from(top_k),
        // Columns are in no bands on a grid.
        DimRule::Band => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_have_every_block_that_the_row_sees_once() {
        for position in 0..700 {
            let mut next = 0;
            for part in 0..=position / 256 {
                let [full, masked, first] = [DimRule::FullBlocks, DimRule::MaskedBlocks, DimRule::FirstBlock]
                    .map(|rule| dim(rule, 256, part, position, None));
                assert_eq!(first, next);
                assert!(full + masked > 0 && masked <= 1, "{position}");
                next += full + masked;
            }
            assert_eq!(next, i64::from(position / 32 + 1));
        }
        assert_eq!(dim(DimRule::Parts, 16, 0, 255, Some((256, 4))), 1);
        assert_eq!(dim(DimRule::Parts, 16, 0, 256, Some((256, 4))), 2);
        assert_eq!(dim(DimRule::RowGroups(4), 16, 0, 5, None), 0);
        assert_eq!(dim(DimRule::RowRest(4), 16, 0, 5, None), 1);
        assert_eq!(dim(DimRule::RowGroups(1), 16, 0, 5, None), 1);
        assert_eq!(dim(DimRule::CacheBlocks, 16, 0, 5, None), 1);
    }
}
