//! Statistics of the expert cache: activity of each group, and use of the slots.

use std::time::Duration;

use super::super::counters::Counters;
use super::super::slots::{Role, Slots};

/// Activity of one group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GroupStats {
    /// Number of requested blocks that were in memory.
    pub hits: u64,
    /// Number of hits on blocks that were read ahead and had not been requested since.
    pub foreseen: u64,
    /// Number of requested blocks that were already being read, for a prediction or for another
    /// request.
    pub on_the_way: u64,
    /// Number of requested blocks that were neither in memory nor being read.
    pub misses: u64,
    /// Number of blocks whose read or packing failed.
    pub failures: u64,
    /// Number of bytes read, in whole pages.
    pub bytes: u64,
    /// Bytes of blocks that were read because of a prediction, including reads in progress.
    pub predicted_bytes: u64,
    /// Bytes of predicted blocks that were later requested.
    pub right_bytes: u64,
    /// Bytes of predicted blocks that were evicted or cancelled before they were requested.
    pub wasted_bytes: u64,
    /// Number of predicted blocks that were cancelled before their read was complete.
    pub cancelled: u64,
    /// Time for which threads waited for blocks, without the time of packing, summed over all
    /// threads.
    pub stall: Duration,
}

impl GroupStats {
    /// Returns the sum of the statistics of several groups.
    pub fn sum<'a>(groups: impl IntoIterator<Item = &'a GroupStats>) -> GroupStats {
        groups.into_iter().fold(GroupStats::default(), |a, b| GroupStats {
            hits: a.hits + b.hits,
            foreseen: a.foreseen + b.foreseen,
            on_the_way: a.on_the_way + b.on_the_way,
            misses: a.misses + b.misses,
            failures: a.failures + b.failures,
            bytes: a.bytes + b.bytes,
            predicted_bytes: a.predicted_bytes + b.predicted_bytes,
            right_bytes: a.right_bytes + b.right_bytes,
            wasted_bytes: a.wasted_bytes + b.wasted_bytes,
            cancelled: a.cancelled + b.cancelled,
            stall: a.stall + b.stall,
        })
    }

    /// Returns the share of requested blocks that were in memory, from 0 to 1. Without requests,
    /// the share is 0.
    pub fn hit_rate(&self) -> f64 {
        let all = self.hits + self.on_the_way + self.misses;
        if all > 0 { self.hits as f64 / all as f64 } else { 0.0 }
    }
}

/// Number of one group's blocks in memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GroupBlocks {
    /// Number of blocks in memory.
    pub in_memory: u32,
    /// Number of blocks that stay in memory after their first read.
    pub kept: u32,
}

/// Use of the slots of one size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClassUse {
    /// Bytes of each slot.
    pub bytes: u64,
    /// Number of slots.
    pub count: u32,
    /// Number of slots with blocks that a step may read.
    pub primary: u32,
    /// Number of slots with blocks that are only predicted.
    pub shadow: u32,
}

impl ClassUse {
    pub(super) fn from_slots(slots: &Slots) -> Vec<ClassUse> {
        let one = |(i, class): (usize, &super::super::slots::SizeClass)| ClassUse {
            bytes: class.bytes,
            count: class.count,
            primary: slots.count(i, Role::Primary),
            shadow: slots.count(i, Role::Shadow),
        };
        slots.classes().iter().enumerate().map(one).collect()
    }
}

/// All statistics of an expert cache.
#[derive(Clone, Debug)]
pub struct Stats {
    /// Activity of each group.
    pub groups: Vec<GroupStats>,
    /// Current use of slots, by size class.
    pub classes: Vec<ClassUse>,
    /// Counters of the drive.
    pub drive: Counters,
}
