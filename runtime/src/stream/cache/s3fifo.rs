//! S3-FIFO (Yang et al., SOSP 2023): a small queue for newcomers, a main one with second chances, a ghost of what went.
//!
//! Queues are in the order of insertion, by steps; what shares a step is alike here too. A newcomer that was used again moves to the
//! main queue when its time comes, others leave and are remembered; what comes back while it is remembered goes to the main queue at
//! once.

use std::collections::{HashMap, HashSet, VecDeque};

use super::ages::{Ages, least_stale};
use super::{Ahead, Policy};

/// The newcomers' part of the cache: a tenth, as in the paper.
const SMALL_PART: usize = 10;
/// Uses are counted up to this: two bits in the paper.
const MOST_USES: u8 = 3;

pub struct S3Fifo {
    step: u64,
    capacity: usize,
    small: Ages,
    main: Ages,
    /// Uses since insertion, or since the last chance was given.
    uses: HashMap<u32, u8>,
    /// What went from the small queue, oldest first, as many as the cache holds.
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
            // Uses become fewer each time round, so this ends.
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
            *uses = (*uses + 1).min(MOST_USES);
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
