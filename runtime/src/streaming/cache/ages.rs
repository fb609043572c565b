//! A queue of blocks, ordered by the step in which each was last stamped.

use std::collections::{BTreeSet, HashMap};

use super::Ahead;

/// A queue of blocks in the order of their stamps. Blocks that were stamped in the same step have
/// the same age.
#[derive(Default)]
pub struct Ages {
    by_step: BTreeSet<(u64, u32)>,
    step_of: HashMap<u32, u64>,
}

impl Ages {
    pub fn len(&self) -> usize {
        self.by_step.len()
    }

    pub fn contains(&self, block: u32) -> bool {
        self.step_of.contains_key(&block)
    }

    /// Adds a block with a stamp of `step`, or updates the stamp of the block.
    pub fn stamp(&mut self, block: u32, step: u64) {
        self.remove(block);
        self.step_of.insert(block, step);
        self.by_step.insert((step, block));
    }

    /// Removes a block from the queue. Returns whether it was in the queue.
    pub fn remove(&mut self, block: u32) -> bool {
        self.step_of.remove(&block).is_some_and(|step| self.by_step.remove(&(step, block)))
    }

    /// Returns the block with the oldest stamp. Of several such blocks, returns the one with the
    /// lowest number.
    pub fn oldest(&self) -> Option<u32> {
        self.by_step.first().map(|&(_, block)| block)
    }

    /// Returns all blocks that have the oldest stamp among the blocks that may be evicted. Each is
    /// returned with the distance in layers until its layer runs again.
    pub fn oldest_alike(&self, ahead: Ahead<'_>) -> Vec<(u32, u32)> {
        let mut alike = Vec::new();
        let mut oldest = None;
        for &(step, block) in &self.by_step {
            if oldest.is_some_and(|oldest| step > oldest) {
                break;
            }
            if let Some(ahead) = ahead(block) {
                oldest = Some(step);
                alike.push((block, ahead));
            }
        }
        alike
    }
}

/// Returns the best block to evict among blocks of the same age: the one whose layer runs again
/// last. Of several blocks of that layer, returns the one with the lowest number.
pub fn least_stale(alike: impl IntoIterator<Item = (u32, u32)>) -> Option<u32> {
    alike.into_iter().max_by_key(|&(block, ahead)| (ahead, std::cmp::Reverse(block))).map(|(block, _)| block)
}
