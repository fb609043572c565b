//! The policy `lru`, which evicts the block whose last use is the most steps ago.

use super::ages::{Ages, least_stale};
use super::{Ahead, Policy};

#[derive(Default)]
pub struct Lru {
    step: u64,
    used: Ages,
}

impl Policy for Lru {
    fn begin_step(&mut self) {
        self.step += 1;
    }

    fn insert(&mut self, block: u32) {
        self.used.stamp(block, self.step);
    }

    fn touch(&mut self, block: u32) {
        if self.used.contains(block) {
            self.used.stamp(block, self.step);
        }
    }

    fn remove(&mut self, block: u32) {
        self.used.remove(block);
    }

    fn victim(&mut self, ahead: Ahead<'_>) -> Option<u32> {
        let block = least_stale(self.used.oldest_alike(ahead))?;
        self.used.remove(block);
        Some(block)
    }
}
