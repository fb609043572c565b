//! Allocation of slots and staging buffers to blocks, and the evictions and cancellations that free
//! them.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;

use super::super::super::queue::TakenBack;
use super::super::super::slots::Role;
use super::super::{EvictionResult, StoreConstants};
use super::{Entry, Phase, StoreState};

impl StoreState {
    /// Takes a slot and, for a raw block, a staging buffer. Returns whether the block has
    /// everything that it needs. A block that has only one of them keeps it while it waits for the
    /// other.
    pub(super) fn take_places(&mut self, fixed: &StoreConstants, number: u32, role: Role) -> bool {
        let class = fixed.class_of[number as usize];
        if self.entry(number).slot.is_none() {
            let slot = self.slots.take(class, role).or_else(|| {
                self.make_room(fixed, class, role);
                self.slots.take(class, role)
            });
            self.entry(number).slot = slot;
        }
        if self.entry(number).slot.is_some() && fixed.is_raw(number) && self.entry(number).staging.is_none() {
            if self.free_staging.is_empty() && role == Role::Primary {
                self.make_staging(fixed);
            }
            self.entry(number).staging = self.free_staging.pop();
        }
        let entry = self.entry(number);
        entry.slot.is_some() && (entry.staging.is_some() || !fixed.is_raw(number))
    }

    pub(super) fn give_places(&mut self, fixed: &StoreConstants, number: u32) {
        let (slot, staging) = (self.entry(number).slot.take(), self.entry(number).staging.take());
        if let (Some(trace), Some(slot)) = (fixed.queue.trace(), slot) {
            trace.slot(slot, None);
        }
        slot.into_iter().for_each(|slot| self.slots.give(slot));
        self.free_staging.extend(staging);
    }

    /// Frees a slot of this class by evicting the block that is least needed. A prediction never
    /// takes a slot from a request or from another prediction.
    fn make_room(&mut self, fixed: &StoreConstants, class: usize, role: Role) {
        let (current, groups) = (self.current, fixed.groups);
        let groups_ahead = |number: u32| (fixed.block(number).id.group + 2 * groups - current - 1) % groups;
        let latest = |entries: &[Entry], shadows: &BTreeSet<u32>, expected: bool| {
            let may = |&&number: &&u32| {
                let entry = &entries[number as usize];
                entry.is_foreseen() == expected && matches!(entry.phase, Phase::Ready | Phase::Arrived)
            };
            shadows.iter().filter(may).max_by_key(|&&number| groups_ahead(number)).copied()
        };
        if let Some(number) = latest(&self.entries, &self.shadows[class], false) {
            return self.give_up(fixed, number);
        }
        for expected in [false, true] {
            let entries = &self.entries;
            let ahead = |number: u32| {
                let entry = &entries[number as usize];
                let may = entry.pins == 0 && (expected || !entry.is_foreseen()) && matches!(entry.phase, Phase::Ready);
                may.then(|| groups_ahead(number))
            };
            if let Some(number) = self.policies[class].victim(&ahead) {
                return self.give_up(fixed, number);
            }
            if role == Role::Shadow {
                return;
            }
            let queued: Vec<u32> = self.shadows[class].iter().copied().collect();
            if queued.into_iter().any(|number| self.take_back(fixed, number, true)) {
                return;
            }
            if let Some(number) = latest(&self.entries, &self.shadows[class], true) {
                return self.give_up(fixed, number);
            }
        }
    }

    /// Frees the staging buffer of a predicted block that has arrived but is not packed, or whose
    /// read has not begun.
    fn make_staging(&mut self, fixed: &StoreConstants) {
        let shadows: Vec<u32> = self.shadows.iter().flatten().copied().collect();
        let arrived = shadows.iter().copied().find(|&number| matches!(self.entry(number).phase, Phase::Arrived));
        match arrived {
            Some(number) => self.give_up(fixed, number),
            None => _ = shadows.into_iter().any(|number| fixed.is_raw(number) && self.take_back(fixed, number, true)),
        }
    }

    /// Cancels the read of a predicted block if the read has not begun. Unless `whole` is true,
    /// also cancels the rest of a read that has begun. Returns whether the slot is free now.
    /// Otherwise it becomes free when the outstanding reads have ended.
    pub(super) fn take_back(&mut self, fixed: &StoreConstants, number: u32, whole: bool) -> bool {
        if !matches!(self.entry(number).phase, Phase::Reading) {
            return false;
        }
        let (gone, saved) = match fixed.queue.take_back(number.into(), whole) {
            TakenBack::No => return false,
            TakenBack::Ending { saved } => (false, saved),
            TakenBack::Gone { saved } => (true, saved),
        };
        let read = fixed.block(number).span().saturating_sub(saved);
        let stats = self.stats(fixed, number);
        stats.cancelled += 1;
        stats.predicted_bytes -= saved;
        stats.wasted_bytes += read;
        stats.bytes += read;
        if gone {
            self.empty(fixed, number);
        } else {
            self.entry(number).ending = true;
        }
        gone
    }

    /// Evicts a block in memory that has already been removed from its policy.
    fn give_up(&mut self, fixed: &StoreConstants, number: u32) {
        if self.entry(number).shadow {
            self.stats(fixed, number).wasted_bytes += fixed.block(number).span();
        }
        self.empty(fixed, number);
    }

    /// Evicts an unpinned block in memory that the policy has not chosen.
    pub fn discard(&mut self, fixed: &StoreConstants, number: u32) {
        let entry = self.entry(number);
        if entry.pins == 0 && matches!(entry.phase, Phase::Ready) {
            self.policies[fixed.class_of[number as usize]].remove(number);
            self.give_up(fixed, number);
        }
    }

    /// Evicts the blocks of a group. See [`super::super::ExpertCache::evict`].
    pub fn evict(&mut self, fixed: &StoreConstants, group: u32, with_kept: bool) -> EvictionResult {
        self.forget(fixed, group);
        let mut evicted = EvictionResult::default();
        for (number, block) in (0u32..).zip(&fixed.blocks).filter(|(_, block)| block.id.group == group) {
            let class = fixed.class_of[number as usize];
            if self.entry(number).kept && with_kept {
                self.entry(number).kept = false;
                self.kept[class] -= 1;
                self.pinned[class] -= u32::from(self.entry(number).pins == 0);
                if matches!(self.entry(number).phase, Phase::Ready) && !self.entry(number).shadow {
                    self.policies[class].insert(number);
                }
            }
            let Entry { pins, kept, shadow, ref phase, .. } = *self.entry(number);
            let there = matches!(phase, Phase::Ready) || (shadow && matches!(phase, Phase::Arrived));
            if pins == 0 && !kept && there {
                self.policies[class].remove(number);
                self.give_up(fixed, number);
                evicted.blocks += 1;
                evicted.bytes += block.slot_bytes();
            }
        }
        evicted
    }

    pub(super) fn empty(&mut self, fixed: &StoreConstants, number: u32) {
        fixed.ready[number as usize].store(0, Ordering::Release);
        if matches!(self.entry(number).phase, Phase::Arrived) {
            self.arrived.retain(|&other| other != number);
        }
        self.shadows[fixed.class_of[number as usize]].remove(&number);
        self.give_places(fixed, number);
        let entry = self.entry(number);
        (entry.phase, entry.shadow) = (Phase::Empty, false);
    }
}
