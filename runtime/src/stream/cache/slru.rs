//! Segmented LRU (Karedla et al. 1994): blocks that were used once are on probation and go first; blocks that were used again are protected.
//!
//! An expert that one odd token wanted leaves without driving out those that most tokens want.

use super::ages::{Ages, least_stale};
use super::{Ahead, Policy};

/// The protected part of the cache, in fifths.
const PROTECTED_FIFTHS: usize = 4;

pub struct Slru {
    step: u64,
    most_protected: usize,
    probation: Ages,
    protected: Ages,
}

impl Slru {
    pub fn new(capacity: usize) -> Slru {
        let most_protected = capacity * PROTECTED_FIFTHS / 5;
        Slru { step: 0, most_protected, probation: Ages::default(), protected: Ages::default() }
    }
}

impl Policy for Slru {
    fn begin_step(&mut self) {
        self.step += 1;
    }

    fn insert(&mut self, block: u32) {
        self.protected.remove(block);
        self.probation.stamp(block, self.step);
    }

    fn touch(&mut self, block: u32) {
        if !self.probation.remove(block) && !self.protected.contains(block) {
            return;
        }
        self.protected.stamp(block, self.step);
        if self.protected.len() > self.most_protected
            && let Some(oldest) = self.protected.oldest()
        {
            // It has to be used again to come back.
            self.protected.remove(oldest);
            self.probation.stamp(oldest, self.step);
        }
    }

    fn remove(&mut self, block: u32) {
        self.probation.remove(block);
        self.protected.remove(block);
    }

    fn victim(&mut self, ahead: Ahead<'_>) -> Option<u32> {
        let block = least_stale(self.probation.oldest_alike(ahead))
            .or_else(|| least_stale(self.protected.oldest_alike(ahead)))?;
        self.remove(block);
        Some(block)
    }
}
