//! Division of a memory budget into slots of several sizes (size classes) and staging buffers.

use std::collections::BTreeMap;

use super::slots::{SizeClass, Slots};
use super::{Block, BlockEncoding, StreamError};

/// Maximum unused fraction of a slot (1/32). Blocks that are slightly smaller than a slot use the
/// same size class, so there are few classes.
const CLASS_PART: u64 = 32;
/// Minimum number of staging buffers for raw blocks: one block is read while another one is packed.
const MIN_STAGING: u32 = 2;
/// Maximum fraction of the budget (1/4) for staging buffers beyond the minimum.
const STAGING_PART: u64 = 4;

/// Division of a memory budget into slots and staging buffers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BudgetSplit {
    /// Size and number of the slots of each size class.
    pub classes: Vec<SizeClass>,
    /// For each block, the index of its size class.
    pub class_of: Vec<usize>,
    /// Size and number of staging buffers. The number is 0 if no block is raw.
    pub staging: SizeClass,
}

impl BudgetSplit {
    /// Returns the total bytes of slots and staging buffers.
    pub fn bytes(&self) -> u64 {
        Slots::bytes(&self.classes) + Slots::bytes(&[self.staging])
    }

    /// Returns the minimum for streaming: slots for `top_k` blocks of each of two consecutive
    /// groups, for any two such groups.
    pub fn minimum(blocks: &[Block], top_k: u32) -> BudgetSplit {
        let mut sizes: Vec<u64> = blocks.iter().map(Block::slot_bytes).collect();
        sizes.sort_unstable_by(|a, b| b.cmp(a));
        let mut classes: Vec<SizeClass> = Vec::new();
        for bytes in sizes {
            if classes.last().is_none_or(|class| bytes < class.bytes - class.bytes / CLASS_PART) {
                classes.push(SizeClass { bytes, count: 0 });
            }
        }
        let holds = |block: &Block| classes.iter().rposition(|class| class.bytes >= block.slot_bytes()).unwrap_or(0);
        let class_of: Vec<usize> = blocks.iter().map(holds).collect();
        // For each group, the number of blocks in each size class, limited to `top_k`, because a
        // token uses at most that many.
        let mut wanted: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
        for (block, &class) in blocks.iter().zip(&class_of) {
            let counts = wanted.entry(block.id.group).or_insert_with(|| vec![0; classes.len()]);
            counts[class] = (counts[class] + 1).min(top_k.max(1));
        }
        let groups: Vec<&Vec<u32>> = wanted.values().collect();
        for (i, group) in groups.iter().enumerate() {
            let next = groups[(i + 1) % groups.len()];
            for (index, class) in classes.iter_mut().enumerate() {
                // If there is only one group, the group follows itself, perhaps with other blocks.
                class.count = class.count.max(group[index] + next[index]);
            }
        }
        for (index, class) in classes.iter_mut().enumerate() {
            class.count = class.count.min(class_of.iter().filter(|&&of| of == index).count() as u32);
        }
        let bytes = blocks.iter().map(Block::staging_bytes).max().unwrap_or(0);
        let raw = blocks.iter().filter(|block| matches!(block.form, BlockEncoding::Raw { .. })).count();
        let count = MIN_STAGING.min(raw.try_into().unwrap_or(MIN_STAGING));
        BudgetSplit { classes, class_of, staging: SizeClass { bytes, count } }
    }

    /// Divides a budget. First the minimum is taken. Then slots are added, so that each size class
    /// has slots for nearly the same share of its blocks.
    ///
    /// # Errors
    /// [`StreamError::Budget`] if the budget is below the minimum.
    pub fn spend(blocks: &[Block], top_k: u32, budget: u64, staging: Option<u32>) -> Result<BudgetSplit, StreamError> {
        let mut spending = BudgetSplit::minimum(blocks, top_k);
        let needed = spending.bytes();
        if needed > budget {
            return Err(StreamError::Budget { budget, needed });
        }
        let mut left = budget - needed;
        let part = left.min(budget / STAGING_PART);
        if let Some(affordable) = part.checked_div(spending.staging.bytes) {
            let min = spending.staging.count;
            let wish = staging.unwrap_or(top_k).saturating_sub(min);
            let more = wish.min(u32::try_from(affordable).unwrap_or(u32::MAX));
            spending.staging.count += more;
            left -= u64::from(more) * spending.staging.bytes;
        }
        let mut blocks_of = vec![0u32; spending.classes.len()];
        spending.class_of.iter().for_each(|&class| blocks_of[class] += 1);
        let fits = |(class, blocks): (&SizeClass, &u32), left| class.count < *blocks && class.bytes <= left;
        loop {
            let candidates = spending.classes.iter().zip(&blocks_of).enumerate().filter(|(_, pair)| fits(*pair, left));
            // The class in which the smallest share of the blocks has a slot. The shares count /
            // blocks are compared by cross-multiplication.
            let poorest = candidates.min_by(|(_, (a, of_a)), (_, (b, of_b))| {
                (u64::from(a.count) * u64::from(**of_b)).cmp(&(u64::from(b.count) * u64::from(**of_a)))
            });
            let Some((index, _)) = poorest else { break };
            spending.classes[index].count += 1;
            left -= spending.classes[index].bytes;
        }
        Ok(spending)
    }

    /// Selects from `wanted` the blocks to keep, in order; each block occurs once in `wanted`. In
    /// each size class, kept blocks take at most `percent` of the slots, and leave the minimum for
    /// streaming.
    pub fn choose_kept(&self, min: &BudgetSplit, wanted: impl IntoIterator<Item = u32>, percent: u32) -> Vec<u32> {
        let room = |(class, min): (&SizeClass, &SizeClass)| {
            let part = u64::from(class.count) * u64::from(percent.min(100)) / 100;
            // The cast is exact, because the number is at most that of the slots of the class.
            (part as u32).min(class.count.saturating_sub(min.count))
        };
        let mut rooms: Vec<u32> = self.classes.iter().zip(&min.classes).map(room).collect();
        let mut takes = |number: &u32| {
            let room = self.class_of.get(*number as usize).and_then(|class| rooms.get_mut(*class));
            room.is_some_and(|room| std::mem::replace(room, room.saturating_sub(1)) > 0)
        };
        wanted.into_iter().filter(|number| takes(number)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::super::files::PAGE;
    use super::super::{BlockId, Extent};
    use super::*;

    fn block(group: u32, expert: u32, bytes: u64, form: BlockEncoding) -> Block {
        Block { id: BlockId { group, expert }, extents: vec![Extent { file: 0, offset: 0, bytes, at: 0 }], form }
    }

    #[test]
    fn minimum_budget_holds_the_top_experts_of_two_layers() {
        let blocks: Vec<Block> =
            (0..3).flat_map(|l| (0..8).map(move |e| block(l, e, 10 * PAGE, BlockEncoding::Packed))).collect();
        let min = BudgetSplit::minimum(&blocks, 2);
        assert_eq!(min.classes, [SizeClass { bytes: 10 * PAGE, count: 4 }]);
        assert_eq!(min.bytes(), 40 * PAGE);
        let error = BudgetSplit::spend(&blocks, 2, 40 * PAGE - 1, None).unwrap_err();
        assert_eq!(error, StreamError::Budget { budget: 40 * PAGE - 1, needed: 40 * PAGE });
        assert!(error.to_string().contains(&(40 * PAGE).to_string()));
        // No class gets more slots than it has blocks, however large the budget is.
        assert_eq!(BudgetSplit::spend(&blocks, 2, u64::MAX / 2, None).unwrap().bytes(), 240 * PAGE);
        assert_eq!(BudgetSplit::minimum(&blocks[..3], 2).classes[0].count, 3);
    }

    #[test]
    fn classes_share_a_budget_by_their_blocks_and_never_exceed_it() {
        // Layers 0 to 5 have larger blocks than the last two layers. Sizes that differ by less than
        // 1/32 are in the same size class.
        let blocks: Vec<Block> = (0..8)
            .flat_map(|l| {
                (0..16).map(move |e| {
                    block(l, e, if l < 6 { 64 * PAGE - u64::from(l % 2) } else { 32 * PAGE }, BlockEncoding::Packed)
                })
            })
            .collect();
        for budget in (16 * 64 * PAGE..100 * 64 * PAGE).step_by(77 * PAGE as usize) {
            let spending = BudgetSplit::spend(&blocks, 2, budget, None).unwrap();
            assert!(spending.bytes() <= budget && spending.bytes() + 64 * PAGE > budget, "{budget} {spending:?}");
            let parts: Vec<f64> =
                spending.classes.iter().zip([96.0, 32.0]).map(|(c, of)| f64::from(c.count) / of).collect();
            assert!((parts[0] - parts[1]).abs() <= 0.1, "{parts:?}");
        }
    }

    #[test]
    fn kept_blocks_leave_the_minimum_for_others() {
        let blocks: Vec<Block> = (0..4)
            .flat_map(|l| {
                (0..8).map(move |e| block(l, e, if l < 3 { 10 * PAGE } else { 5 * PAGE }, BlockEncoding::Packed))
            })
            .collect();
        let min = BudgetSplit::minimum(&blocks, 2);
        let spending = BudgetSplit::spend(&blocks, 2, min.bytes() + 120 * PAGE, None).unwrap();
        let counts = |spending: &BudgetSplit| spending.classes.iter().map(|class| class.count).collect::<Vec<_>>();
        let (all, few) = (counts(&spending), counts(&min));
        assert!(all[0] > few[0] + 4 && all[1] > few[1] + 1, "{all:?} {few:?}");
        // The blocks of the last layer, which have another size class, come first.
        let wanted = || (0..32u32).rev();
        for percent in [0, 1, 25, 50, 100, 300] {
            let kept = spending.choose_kept(&min, wanted(), percent);
            let of = |class| kept.iter().filter(|&&number| spending.class_of[number as usize] == class).count() as u32;
            for class in [0, 1] {
                let part = all[class] * percent.min(100) / 100;
                assert_eq!(of(class), part.min(all[class] - few[class]), "{percent} {class}");
            }
            assert!(kept.is_sorted_by(|a, b| a > b));
        }
        // If the budget is only the minimum, no block can be kept. Numbers without a block are
        // ignored.
        assert!(min.choose_kept(&min, wanted(), 100).is_empty());
        assert_eq!(spending.choose_kept(&min, [77, 31], 100), [31]);
    }

    #[test]
    fn raw_blocks_get_staging() {
        let blocks: Vec<Block> =
            (0..32).map(|e| block(0, e, 5 * PAGE, BlockEncoding::Raw { bytes: 4 * PAGE })).collect();
        let min = BudgetSplit::minimum(&blocks, 4);
        assert_eq!(
            (min.classes[0], min.staging),
            (SizeClass { bytes: 4 * PAGE, count: 8 }, SizeClass { bytes: 5 * PAGE, count: 2 },)
        );
        let more = BudgetSplit::spend(&blocks, 4, 100 * PAGE, None).unwrap();
        assert_eq!((more.staging.count, more.classes[0].count), (4, 20));
        assert_eq!(BudgetSplit::spend(&blocks, 4, 100 * PAGE, Some(9)).unwrap().staging.count, 7);
    }
}
