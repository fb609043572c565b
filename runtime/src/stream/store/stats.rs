//! What a store did, by group, and what its slots hold.

use std::time::Duration;

use super::super::counters::Counters;
use super::super::slots::{Role, Slots};

/// What happened in one group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GroupStats {
    /// Requested blocks that were there.
    pub hits: u64,
    /// Those of them that had been read ahead, and not requested since.
    pub foreseen: u64,
    /// Requested blocks that were being read already, for a prediction or for another request.
    pub on_the_way: u64,
    /// Requested blocks that were not.
    pub misses: u64,
    /// Blocks that could not be read or packed.
    pub failures: u64,
    /// Bytes read, in whole pages.
    pub bytes: u64,
    /// Bytes of blocks that were read because of a prediction, those being read included.
    pub predicted_bytes: u64,
    /// Bytes of these that a request wanted.
    pub right_bytes: u64,
    /// Bytes of these that were given up before any did.
    pub wasted_bytes: u64,
    /// Predicted blocks that were taken back before all of it was read.
    pub cancelled: u64,
    /// Time that threads waited for blocks, all threads together, packing not counted.
    pub stall: Duration,
}

impl GroupStats {
    /// The sum of several groups.
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

    /// The part of requested blocks that were there, 0 to 1; 0 where none was requested.
    pub fn hit_rate(&self) -> f64 {
        let all = self.hits + self.on_the_way + self.misses;
        if all > 0 { self.hits as f64 / all as f64 } else { 0.0 }
    }
}

/// What slots hold of one group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Held {
    /// Blocks that are there.
    pub in_memory: u32,
    /// Blocks that stay once they are there.
    pub kept: u32,
}

/// Slots of one size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClassUse {
    /// Bytes of a slot.
    pub bytes: u64,
    /// How many there are.
    pub count: u32,
    /// How many hold what a step may read.
    pub primary: u32,
    /// How many hold predictions.
    pub shadow: u32,
}

impl ClassUse {
    pub(super) fn of(slots: &Slots) -> Vec<ClassUse> {
        let one = |(i, class): (usize, &super::super::slots::SizeClass)| ClassUse {
            bytes: class.bytes,
            count: class.count,
            primary: slots.count(i, Role::Primary),
            shadow: slots.count(i, Role::Shadow),
        };
        slots.classes().iter().enumerate().map(one).collect()
    }
}

/// All that a store counts.
#[derive(Clone, Debug)]
pub struct Stats {
    /// By group.
    pub groups: Vec<GroupStats>,
    /// What slots hold now.
    pub classes: Vec<ClassUse>,
    /// What the drive did.
    pub drive: Counters,
}
