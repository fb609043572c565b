//! The policy S3-FIFO (Yang et al., SOSP 2023). It has a small queue for new blocks, a main queue
//! with second chances, and a ghost list of evicted blocks.
//!
//! Queues are ordered by the step of insertion, and blocks of one step have the same age. When a
//! new block's turn to be evicted comes, it moves to the main queue if it was used again. Otherwise
//! it is evicted and added to the ghost list. If a block is read again while it is in the ghost
//! list, it goes directly to the main queue.

use std::collections::{HashMap, HashSet, VecDeque};

use super::ages::{Ages, least_stale};
use super::{Ahead, Policy};

/// Inverse of the small queue's share of the cache: a tenth, as in the paper.
const SMALL_PART: usize = 10;
/// Maximum number of uses that are counted: two bits in the paper.
const MAX_USES: u8 = 3;

pub struct S3Fifo {
    step: u64,
    capacity: usize,
    small: Ages,
    main: Ages,
    /// Number of uses of each block since its insertion. Each second chance consumes one use.
    uses: HashMap<u32, u8>,
    /// Blocks that were evicted from the small queue, oldest first. The list is at most as long as
    /// the cache's capacity.
    ghost: VecDeque<u32>,
    in_ghost: HashSet<u32>,
}

impl S3Fifo {
    pub fn new(capacity: usize) -> S3Fifo {
        S3Fifo {
            step: 0,
            capacity: capacity.max(1),
            small: Ages::default(),
            main: Ages::default(),
            uses: HashMap::new(),
            ghost: VecDeque::new(),
            in_ghost: HashSet::new(),
        }
    }

    fn remember(&mut self, block: u32) {
        if self.in_ghost.insert(block) {
            self.ghost.push_back(block);
        }
        while self.ghost.len() > self.capacity {
            self.ghost.pop_front().map(|block| self.in_ghost.remove(&block));
        }
    }

    fn evict_small(&mut self, ahead: Ahead<'_>) -> Option<u32> {
        loop {
            let alike = self.small.oldest_alike(ahead);
            let (used, unused): (Vec<_>, Vec<_>) =
                alike.into_iter().partition(|(block, _)| self.uses.contains_key(block));
            if used.is_empty() && unused.is_empty() {
                return None;
            }
            for (block, _) in used {
                self.small.remove(block);
                self.uses.remove(&block);
                self.main.stamp(block, self.step);
            }
            if let Some(block) = least_stale(unused) {
                self.small.remove(block);
                self.remember(block);
                return Some(block);
            }
        }
    }

    fn evict_main(&mut self, ahead: Ahead<'_>) -> Option<u32> {
        loop {
            let alike = self.main.oldest_alike(ahead);
            let unused = alike.iter().copied().filter(|(block, _)| !self.uses.contains_key(block));
            if let Some(block) = least_stale(unused) {
                self.main.remove(block);
                return Some(block);
            }
            if alike.is_empty() {
                return None;
            }
            // Each iteration reduces the uses of the remaining blocks, so the loop ends.
            for (block, _) in alike {
                match self.uses.get_mut(&block) {
                    Some(uses) if *uses > 1 => *uses -= 1,
                    _ => drop(self.uses.remove(&block)),
                }
                self.main.stamp(block, self.step);
            }
        }
    }
}

impl Policy for S3Fifo {
    fn begin_step(&mut self) {
        self.step += 1;
    }

    fn insert(&mut self, block: u32) {
        self.remove(block);
        if self.in_ghost.remove(&block) {
            self.ghost.retain(|&other| other != block);
            self.main.stamp(block, self.step);
        } else {
            self.small.stamp(block, self.step);
        }
    }

    fn touch(&mut self, block: u32) {
        if self.small.contains(block) || self.main.contains(block) {
            let uses = self.uses.entry(block).or_insert(0);
            *uses = (*uses + 1).min(MAX_USES);
        }
    }

    fn remove(&mut self, block: u32) {
        self.small.remove(block);
        self.main.remove(block);
        self.uses.remove(&block);
    }

    fn victim(&mut self, ahead: Ahead<'_>) -> Option<u32> {
        if self.small.len() > self.capacity / SMALL_PART {
            self.evict_small(ahead).or_else(|| self.evict_main(ahead))
        } else {
            self.evict_main(ahead).or_else(|| self.evict_small(ahead))
        }
    }
}
