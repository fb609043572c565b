//! The policy segmented LRU (Karedla et al. 1994). Blocks that were used once are on probation and
//! are evicted first; blocks that were used several times are protected.
//!
//! Under this policy, an expert that only one unusual token used is evicted before experts that
//! most tokens use.

use super::ages::{Ages, least_stale};
use super::{Ahead, Policy};

/// Number of fifths of the cache that protected blocks may use.
const PROTECTED_FIFTHS: usize = 4;

pub struct Slru {
    step: u64,
    max_protected: usize,
    probation: Ages,
    protected: Ages,
}

impl Slru {
    pub fn new(capacity: usize) -> Slru {
        let max_protected = capacity * PROTECTED_FIFTHS / 5;
        Slru { step: 0, max_protected, probation: Ages::default(), protected: Ages::default() }
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
        if self.protected.len() > self.max_protected
            && let Some(oldest) = self.protected.oldest()
        {
            // A demoted block is on probation, and must be used again to be protected.
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
