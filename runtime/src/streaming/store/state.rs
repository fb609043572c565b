//! Phases of the blocks, and the transitions between them. All transitions happen under the lock of
//! the cache.
//!
//! ```text
//!         request                    arrives             claim          packed
//! Empty ───────────▶ Reading ───────────────▶ Arrived ───────▶ Packing ───────▶ Ready    (raw)
//!   │                 ▲   └──────────────────────────────────────────────────────▲       (packed)
//!   └───▶ Waiting ────┘  a slot or a staging buffer became free
//! ```
//!
//! A predicted block passes through the same phases in a shadow slot until a request confirms it.
//! From then on, it is treated like a block that was requested from the start. A block that failed,
//! was evicted or was cancelled is `Empty` again. A failed block that is still pinned is `Failed`.
//!
//! Deadlock is impossible, because a request never pins more blocks than there are slots. So the
//! slot for a waiting block is free or contains an unpinned block. An unpinned block can be
//! evicted, at the latest when its read or its packing ends.

mod room;

use std::collections::{BTreeSet, VecDeque};
use std::sync::atomic::Ordering;

use super::super::budget::BudgetSplit;
use super::super::cache::{Kind, Policy};
use super::super::counters::Class;
use super::super::queue::ReadJob;
use super::super::slots::{Role, Slots};
use super::super::{Extent, StreamError};
use super::StoreConstants;
use super::stats::{GroupBlocks, GroupStats};
use crate::trace::{self, Stage};

#[derive(Clone, Debug)]
pub enum Phase {
    /// Absent from memory.
    Empty,
    /// Requested, without a slot or a staging buffer yet.
    Waiting,
    /// The block's reads have been submitted to the drive.
    Reading,
    /// Present in staging memory, in the layout of the file.
    Arrived,
    /// The block is being packed by a thread.
    Packing,
    /// Present in its slot, in the layout that kernels read.
    Ready,
    /// Requested, but its read or packing failed.
    Failed(StreamError),
}

struct Entry {
    phase: Phase,
    pins: u32,
    /// Whether the block is in a shadow slot, because it has not been requested since it was read.
    shadow: bool,
    /// Whether the block is predicted for a future request.
    expected: bool,
    /// Whether a later request for the block is certain, regardless of earlier requests of its
    /// group.
    announced: bool,
    /// Whether the block stays in memory: it is never evicted for another block, and no replacement
    /// policy manages it.
    kept: bool,
    /// Whether the block's read was cancelled while some reads were outstanding. The block becomes
    /// `Empty` when these reads have ended.
    ending: bool,
    slot: Option<u32>,
    staging: Option<u32>,
    /// Number of the last operation that used the block; used to detect duplicates within an
    /// operation.
    seen: u64,
}

#[derive(Default)]
struct Group {
    pinned: Vec<u32>,
    expected: Vec<u32>,
    announced: Vec<u32>,
    stats: GroupStats,
}

pub struct StoreState {
    entries: Vec<Entry>,
    pub slots: Slots,
    free_staging: Vec<u32>,
    /// Replacement policy of each size class. The next three fields are also indexed by size class.
    policies: Vec<Box<dyn Policy>>,
    shadows: Vec<BTreeSet<u32>>,
    /// Number of slots that belong to pinned or kept blocks, including blocks that are not loaded
    /// yet.
    pinned: Vec<u32>,
    /// Number of these slots that belong to kept blocks.
    kept: Vec<u32>,
    /// Requested blocks without a slot, in the order of their requests.
    waiting: VecDeque<u32>,
    arrived: VecDeque<u32>,
    groups: Vec<Group>,
    /// The group of the last request, and whether that group has been released since.
    current: u32,
    released: bool,
    operation: u64,
    pub sleepers: usize,
}

impl Entry {
    /// Returns whether the block is predicted or announced.
    fn is_foreseen(&self) -> bool {
        self.expected || self.announced
    }
}

impl StoreState {
    /// Makes the state of an empty cache. `kept` contains the number of each kept block once.
    pub fn new(spending: &BudgetSplit, blocks: usize, groups: u32, kind: Kind, kept: &[u32]) -> StoreState {
        let empty = || Entry {
            phase: Phase::Empty,
            pins: 0,
            shadow: false,
            expected: false,
            announced: false,
            kept: false,
            ending: false,
            slot: None,
            staging: None,
            seen: 0,
        };
        let classes = &spending.classes;
        let mut entries: Vec<Entry> = (0..blocks).map(|_| empty()).collect();
        let mut of_class = vec![0; classes.len()];
        for &number in kept {
            entries[number as usize].kept = true;
            of_class[spending.class_of[number as usize]] += 1;
        }
        let others = classes.iter().zip(&of_class).map(|(class, kept)| class.count.saturating_sub(*kept) as usize);
        StoreState {
            entries,
            slots: Slots::new(classes),
            free_staging: (0..spending.staging.count).rev().collect(),
            policies: others.map(|count| kind.policy(count)).collect(),
            shadows: classes.iter().map(|_| BTreeSet::new()).collect(),
            pinned: of_class.clone(),
            kept: of_class,
            waiting: VecDeque::new(),
            arrived: VecDeque::new(),
            groups: (0..groups).map(|_| Group::default()).collect(),
            current: 0,
            released: false,
            operation: 0,
            sleepers: 0,
        }
    }

    pub fn phase(&self, number: u32) -> &Phase {
        &self.entries[number as usize].phase
    }

    /// Returns the slot and the staging buffer of a block that is being packed.
    pub fn places(&self, number: u32) -> Option<(u32, u32)> {
        let entry = &self.entries[number as usize];
        entry.slot.zip(entry.staging)
    }

    pub fn group_stats(&self) -> Vec<GroupStats> {
        self.groups.iter().map(|group| group.stats).collect()
    }

    fn entry(&mut self, number: u32) -> &mut Entry {
        &mut self.entries[number as usize]
    }

    fn stats(&mut self, fixed: &StoreConstants, number: u32) -> &mut GroupStats {
        &mut self.groups[fixed.block(number).id.group as usize].stats
    }

    /// Returns whether the current operation uses the block for the first time.
    fn first_seen(&mut self, number: u32) -> bool {
        let operation = self.operation;
        std::mem::replace(&mut self.entry(number).seen, operation) != operation
    }

    /// Returns how many of the first blocks of `numbers` can be pinned in addition to those that
    /// are pinned already.
    pub fn window(&mut self, fixed: &StoreConstants, numbers: &[u32]) -> usize {
        self.operation += 1;
        let mut pinned = self.pinned.clone();
        for (i, &number) in numbers.iter().enumerate() {
            if !self.first_seen(number) || self.entry(number).pins > 0 || self.entry(number).kept {
                continue;
            }
            let class = fixed.class_of[number as usize];
            pinned[class] += 1;
            if pinned[class] > self.slots.classes()[class].count {
                return i;
            }
        }
        numbers.len()
    }

    /// Requests blocks. The caller has checked with [`StoreState::window`] that they fit.
    /// [`StoreState::pump`] starts their reads.
    pub fn request(&mut self, fixed: &StoreConstants, group: u32, numbers: &[u32]) {
        // With a single group, a repeated request begins a new step. With several groups, it
        // belongs to the same step, for deferred experts.
        if group < self.current || (group == self.current && self.released && fixed.groups == 1) {
            self.policies.iter_mut().for_each(|policy| policy.begin_step());
        }
        (self.current, self.released) = (group, false);
        // Requested blocks are pinned first. Then wrong predictions are cancelled, and the misses
        // use their slots.
        self.operation += 1;
        let mut missing = Vec::new();
        for &number in numbers {
            if !self.first_seen(number) {
                continue;
            }
            self.pin(fixed, number);
            self.entry(number).announced = false;
            let shadow = std::mem::take(&mut self.entry(number).shadow);
            if shadow {
                self.confirm(fixed, number);
            }
            if self.entry(number).ending {
                // The block's read was cancelled, so its bytes are lost. The block is read again
                // when the cancelled read has ended.
                let first = self.entry(number).pins == 1;
                let stats = self.stats(fixed, number);
                *(if first { &mut stats.misses } else { &mut stats.on_the_way }) += 1;
                continue;
            }
            let class = fixed.class_of[number as usize];
            match self.entry(number).phase {
                Phase::Ready => {
                    let stats = self.stats(fixed, number);
                    stats.hits += 1;
                    stats.foreseen += u64::from(shadow);
                    if shadow && !self.entry(number).kept {
                        self.policies[class].insert(number);
                    } else {
                        self.policies[class].touch(number);
                    }
                }
                Phase::Waiting | Phase::Reading | Phase::Arrived | Phase::Packing => {
                    self.stats(fixed, number).on_the_way += 1;
                }
                Phase::Empty | Phase::Failed(_) => {
                    self.stats(fixed, number).misses += 1;
                    self.entry(number).phase = Phase::Waiting;
                    missing.push(number);
                }
            }
        }
        self.groups[group as usize].announced.retain(|&number| self.entries[number as usize].announced);
        self.refute(fixed, group);
        self.waiting.extend(missing);
    }

    fn pin(&mut self, fixed: &StoreConstants, number: u32) {
        let entry = self.entry(number);
        entry.pins += 1;
        if entry.pins == 1 {
            let others = u32::from(!entry.kept);
            self.pinned[fixed.class_of[number as usize]] += others;
            self.groups[fixed.block(number).id.group as usize].pinned.push(number);
        }
    }

    /// Confirms a predicted block that is now requested. Its slot becomes a primary slot.
    fn confirm(&mut self, fixed: &StoreConstants, number: u32) {
        self.shadows[fixed.class_of[number as usize]].remove(&number);
        if let Some(slot) = self.entry(number).slot {
            self.slots.promote(slot);
        }
        self.record_slot(fixed, number);
        if self.entry(number).ending {
            return;
        }
        self.stats(fixed, number).right_bytes += fixed.block(number).span();
        match self.entry(number).phase {
            Phase::Reading => fixed.queue.upgrade(number.into()),
            Phase::Arrived => _ = fixed.packable.fetch_add(1, Ordering::Relaxed),
            _ => {}
        }
    }

    /// Pins the kept blocks, queues reads of those that are not in memory, and returns all of them.
    /// These reads do not count as misses.
    pub fn read_kept(&mut self, fixed: &StoreConstants) -> Vec<u32> {
        let kept: Vec<u32> = (0u32..).zip(&self.entries).filter(|(_, entry)| entry.kept).map(|(i, _)| i).collect();
        for &number in &kept {
            self.pin(fixed, number);
            if matches!(self.entry(number).phase, Phase::Empty) {
                self.entry(number).phase = Phase::Waiting;
                self.waiting.push_back(number);
            }
        }
        kept
    }

    /// Returns for each group how many blocks are in memory and how many are kept.
    pub fn blocks_by_group(&self, fixed: &StoreConstants) -> Vec<GroupBlocks> {
        let mut groups = vec![GroupBlocks::default(); self.groups.len()];
        for (block, entry) in fixed.blocks.iter().zip(&self.entries) {
            let group = &mut groups[block.id.group as usize];
            group.in_memory += u32::from(matches!(entry.phase, Phase::Ready));
            group.kept += u32::from(entry.kept);
        }
        groups
    }

    /// Ends the predictions for this group. Unread blocks are cancelled. Blocks in memory are
    /// evicted when a slot is needed.
    pub fn refute(&mut self, fixed: &StoreConstants, group: u32) {
        let Some(of) = self.groups.get_mut(group as usize) else { return };
        for number in std::mem::take(&mut of.expected) {
            self.entry(number).expected = false;
            if self.entry(number).shadow && !self.entry(number).announced {
                self.take_back(fixed, number, false);
            }
        }
    }

    /// Ends the predictions for this group, like [`StoreState::refute`], and also the announcements
    /// of certain requests.
    pub fn forget(&mut self, fixed: &StoreConstants, group: u32) {
        let Some(of) = self.groups.get_mut(group as usize) else { return };
        for number in std::mem::take(&mut of.announced) {
            self.entry(number).announced = false;
            self.groups[group as usize].expected.push(number);
        }
        self.refute(fixed, group);
    }

    /// Reads blocks of a group before a request that is certain (if `sure` is true) or only likely.
    /// Returns the number of reads that it started.
    pub fn foresee(&mut self, fixed: &StoreConstants, group: u32, numbers: &[u32], sure: bool) -> usize {
        self.operation += 1;
        let mut jobs = Vec::new();
        // All blocks are marked first, so that no prediction evicts another block of the same
        // prediction.
        for &number in numbers {
            let (entry, of) = (&mut self.entries[number as usize], &mut self.groups[group as usize]);
            let (flag, list) = match sure {
                true => (&mut entry.announced, &mut of.announced),
                false => (&mut entry.expected, &mut of.expected),
            };
            if !std::mem::replace(flag, true) {
                list.push(number);
            }
        }
        for &number in numbers {
            if !self.first_seen(number) || !matches!(self.entry(number).phase, Phase::Empty) {
                continue;
            }
            let class = fixed.class_of[number as usize];
            // At least half of the slots are reserved for requests, and requests get staging
            // buffers before predictions.
            let count = self.slots.classes()[class].count - self.kept[class];
            let full = self.shadows[class].len() as u32 >= count / 2;
            if full || (fixed.is_raw(number) && self.free_staging.is_empty()) {
                continue;
            }
            if !self.take_places(fixed, number, Role::Shadow) {
                self.give_places(fixed, number);
                continue;
            }
            self.entry(number).shadow = true;
            self.shadows[class].insert(number);
            self.stats(fixed, number).predicted_bytes += fixed.block(number).span();
            jobs.extend(self.begin(fixed, number, Class::Predicted));
        }
        let count = jobs.len();
        self.submit(fixed, jobs);
        count
    }

    /// Gives slots to waiting blocks, and starts their reads.
    pub fn pump(&mut self, fixed: &StoreConstants) {
        let mut jobs = Vec::new();
        for number in std::mem::take(&mut self.waiting) {
            if self.take_places(fixed, number, Role::Primary) {
                jobs.extend(self.begin(fixed, number, Class::Routed));
            } else {
                self.waiting.push_back(number);
            }
        }
        self.submit(fixed, jobs);
    }

    /// Makes the job that reads a block into its slot or its staging buffer.
    fn begin(&mut self, fixed: &StoreConstants, number: u32, class: Class) -> Option<ReadJob> {
        let entry = self.entry(number);
        entry.phase = Phase::Reading;
        self.record_slot(fixed, number);
        let entry = self.entry(number);
        let extents = &fixed.block(number).extents;
        let mut parts: Vec<(Extent, u64)> = Vec::with_capacity(extents.len());
        if let Some(staging) = entry.staging {
            let mut at = *fixed.staging_offsets.get(staging as usize)?;
            for extent in extents {
                parts.push((*extent, at));
                at += extent.span();
            }
        } else {
            let begin = *fixed.slot_offsets.get(entry.slot? as usize)?;
            parts.extend(extents.iter().map(|extent| (*extent, begin + extent.at - extent.head())));
        }
        Some(ReadJob { tag: number.into(), class, parts })
    }

    fn submit(&mut self, fixed: &StoreConstants, jobs: Vec<ReadJob>) {
        if jobs.is_empty() {
            return;
        }
        let numbers: Vec<u32> = jobs.iter().map(|job| job.tag as u32).collect();
        if let Err(error) = fixed.queue.submit(jobs) {
            // The drive has failed, so blocks that wait for a slot would wait forever.
            let waiting = std::mem::take(&mut self.waiting);
            numbers.into_iter().chain(waiting).for_each(|number| self.fail(fixed, number, error.clone()));
        }
    }

    /// Records the contents of a block's slot in the trace.
    fn record_slot(&self, fixed: &StoreConstants, number: u32) {
        let entry = &self.entries[number as usize];
        let (Some(trace), Some(slot)) = (fixed.queue.trace(), entry.slot) else { return };
        let stage = match entry.phase {
            Phase::Arrived => Stage::Arrived,
            Phase::Packing => Stage::Packing,
            Phase::Ready => Stage::Resident,
            Phase::Empty | Phase::Waiting | Phase::Reading | Phase::Failed(_) => Stage::Loading,
        };
        trace.slot(slot, Some(trace::SlotContents { block: number, stage, shadow: entry.shadow }));
    }

    /// Returns how many requested blocks of a group were not ready when they were requested.
    pub fn waited_for(&self, group: u32) -> u64 {
        self.groups.get(group as usize).map_or(0, |group| group.stats.misses + group.stats.on_the_way)
    }

    fn fail(&mut self, fixed: &StoreConstants, number: u32, error: StreamError) {
        let shadow = self.entry(number).shadow;
        let stats = self.stats(fixed, number);
        stats.failures += 1;
        stats.predicted_bytes -= if shadow { fixed.block(number).span() } else { 0 };
        self.shadows[fixed.class_of[number as usize]].remove(&number);
        self.give_places(fixed, number);
        let entry = self.entry(number);
        entry.shadow = false;
        entry.phase = if entry.pins > 0 { Phase::Failed(error) } else { Phase::Empty };
    }

    /// Handles the end of a block's read.
    pub fn arrive(&mut self, fixed: &StoreConstants, number: u32, result: Result<(), StreamError>) {
        if !self.entries.get(number as usize).is_some_and(|entry| matches!(entry.phase, Phase::Reading)) {
            return;
        }
        if std::mem::take(&mut self.entry(number).ending) {
            let wanted = self.entry(number).pins > 0;
            self.empty(fixed, number);
            if wanted {
                self.entry(number).phase = Phase::Waiting;
                self.waiting.push_back(number);
            }
            return;
        }
        if let Err(error) = result {
            return self.fail(fixed, number, error);
        }
        self.stats(fixed, number).bytes += fixed.block(number).span();
        if fixed.is_raw(number) {
            self.entry(number).phase = Phase::Arrived;
            self.record_slot(fixed, number);
            self.arrived.push_back(number);
            if !self.entry(number).shadow {
                fixed.packable.fetch_add(1, Ordering::Relaxed);
            }
        } else {
            self.make_ready(fixed, number);
        }
    }

    /// Claims an arrived block for packing. See [`super::ExpertCache::claim`].
    pub fn claim(&mut self, fixed: &StoreConstants, wanted: Option<u32>) -> Option<u32> {
        let requested = |number: &u32| !self.entries[*number as usize].shadow;
        let own = self.arrived.iter().position(|number| Some(*number) == wanted && requested(number));
        let position = own
            .or_else(|| self.arrived.iter().position(requested))
            .or_else(|| (wanted.is_none() && !self.arrived.is_empty()).then_some(0))?;
        let number = self.arrived.remove(position)?;
        self.entry(number).phase = Phase::Packing;
        self.record_slot(fixed, number);
        if !self.entry(number).shadow {
            fixed.packable.fetch_sub(1, Ordering::Relaxed);
        }
        Some(number)
    }

    /// Handles the end of the packing of a claimed block.
    pub fn finish_packing(&mut self, fixed: &StoreConstants, number: u32, result: Result<(), StreamError>) {
        if let Err(error) = result {
            return self.fail(fixed, number, error);
        }
        let staging = self.entry(number).staging.take();
        self.free_staging.extend(staging);
        self.make_ready(fixed, number);
    }

    fn make_ready(&mut self, fixed: &StoreConstants, number: u32) {
        self.entry(number).phase = Phase::Ready;
        self.record_slot(fixed, number);
        if !self.entry(number).shadow && !self.entry(number).kept {
            self.policies[fixed.class_of[number as usize]].insert(number);
        }
        let slot = self.entry(number).slot.map_or(0, |slot| slot + 1);
        fixed.ready[number as usize].store(slot, Ordering::Release);
    }

    pub fn release(&mut self, fixed: &StoreConstants, group: u32) {
        self.released |= group == self.current;
        let Some(of) = self.groups.get_mut(group as usize) else { return };
        for number in std::mem::take(&mut of.pinned) {
            self.entry(number).pins = 0;
            self.unpin(fixed, number);
        }
    }

    pub fn release_block(&mut self, fixed: &StoreConstants, number: u32) {
        let entry = self.entry(number);
        entry.pins = entry.pins.saturating_sub(1);
        let group = &mut self.groups[fixed.block(number).id.group as usize];
        if self.entries[number as usize].pins == 0
            && let Some(position) = group.pinned.iter().position(|&other| other == number)
        {
            group.pinned.swap_remove(position);
            self.unpin(fixed, number);
        }
    }

    /// Handles the removal of a block's last pin. A read or packing in progress continues, because
    /// the block may be requested again.
    fn unpin(&mut self, fixed: &StoreConstants, number: u32) {
        let others = u32::from(!self.entry(number).kept);
        self.pinned[fixed.class_of[number as usize]] -= others;
        match self.entry(number).phase {
            Phase::Waiting => {
                self.waiting.retain(|&other| other != number);
                self.empty(fixed, number);
            }
            Phase::Failed(_) => self.entry(number).phase = Phase::Empty,
            _ => {}
        }
    }
}
