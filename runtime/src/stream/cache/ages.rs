//! Blocks by the step that they were last stamped with.

use std::collections::{BTreeSet, HashMap};

use super::Ahead;

/// A queue whose order is that of steps; what shares a step is alike.
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

    /// Adds a block, or stamps it anew.
    pub fn stamp(&mut self, block: u32, step: u64) {
        self.remove(block);
        self.step_of.insert(block, step);
        self.by_step.insert((step, block));
    }

    /// Whether it was there.
    pub fn remove(&mut self, block: u32) -> bool {
        self.step_of.remove(&block).is_some_and(|step| self.by_step.remove(&(step, block)))
    }

    /// The block with the oldest stamp, and the lowest number.
    pub fn oldest(&self) -> Option<u32> {
        self.by_step.first().map(|&(_, block)| block)
    }

    /// Of the blocks that may go, all that share the oldest stamp, each with how far ahead it is wanted.
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

/// The least stale of blocks alike: the one that is wanted latest, and of these the one with the lowest number.
pub fn least_stale(alike: impl IntoIterator<Item = (u32, u32)>) -> Option<u32> {
    alike.into_iter().max_by_key(|&(block, ahead)| (ahead, std::cmp::Reverse(block))).map(|(block, _)| block)
}
