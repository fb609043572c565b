//! What each block is at, and the moves between that. All of it happens under the store's lock.
//!
//! ```text
//!         request                    arrives             claim          packed
//! Empty ───────────▶ Reading ───────────────▶ Arrived ───────▶ Packing ───────▶ Ready    (raw)
//!   │                 ▲   └──────────────────────────────────────────────────────▲       (packed)
//!   └───▶ Waiting ────┘  a slot or a staging buffer came free
//! ```
//!
//! A predicted block goes the same way, in a shadow slot, until a request confirms it; then it is as if it had been requested from
//! the start. What fails, is given up, or is taken back, is `Empty` again, or `Failed` as long as it is pinned.
//!
//! There is no deadlock: a request pins no more blocks than there are slots, so the slot that one waits for is free, or holds
//! what nobody pinned. That either can be given up, or is being read or packed and can be as soon as it is not.

mod room;

use std::collections::{BTreeSet, VecDeque};
use std::sync::atomic::Ordering;

use super::super::budget::Spending;
use super::super::cache::{Kind, Policy};
use super::super::counters::Class;
use super::super::queue::Job;
use super::super::slots::{Role, Slots};
use super::super::{Extent, StreamError};
use super::Fixed;
use super::stats::{GroupStats, Held};
use crate::trace::{self, Stage};

#[derive(Clone, Debug)]
pub enum Phase {
    /// Not there.
    Empty,
    /// Requested, and without a slot or a staging buffer.
    Waiting,
    /// With the drive.
    Reading,
    /// Raw, in staging memory.
    Arrived,
    /// Somebody packs it.
    Packing,
    /// There.
    Ready,
    /// Requested, and cannot be had.
    Failed(StreamError),
}

struct Entry {
    phase: Phase,
    pins: u32,
    /// In a shadow slot: nobody has requested it since it was read.
    shadow: bool,
    /// Predicted for a request that is still to come.
    expected: bool,
    /// Known to be requested later, whatever else its group requests before.
    announced: bool,
    /// Never given up for another: no policy knows it.
    kept: bool,
    /// Taken back while it is read: it ends as soon as the reads that are on have ended.
    ending: bool,
    slot: Option<u32>,
    staging: Option<u32>,
    /// The last operation that saw it: finds what is named twice.
    seen: u64,
}

#[derive(Default)]
struct Group {
    pinned: Vec<u32>,
    expected: Vec<u32>,
    announced: Vec<u32>,
    stats: GroupStats,
}

pub struct Inner {
    entries: Vec<Entry>,
    pub slots: Slots,
    free_staging: Vec<u32>,
    /// By size class, as the next three.
    policies: Vec<Box<dyn Policy>>,
    shadows: Vec<BTreeSet<u32>>,
    /// Slots that nobody else can count on: of pinned blocks and of kept ones, there or not.
    pinned: Vec<u32>,
    /// Those of kept ones among them.
    kept: Vec<u32>,
    /// Requested blocks without a place, first come first served.
    waiting: VecDeque<u32>,
    arrived: VecDeque<u32>,
    groups: Vec<Group>,
    /// The group that was requested last, and whether it was released since.
    current: u32,
    released: bool,
    operation: u64,
    pub sleepers: usize,
}

impl Entry {
    /// Whether somebody says that it will be requested.
    fn is_foreseen(&self) -> bool {
        self.expected || self.announced
    }
}

impl Inner {
    /// `kept` are blocks by number, each once.
    pub fn new(spending: &Spending, blocks: usize, groups: u32, kind: Kind, kept: &[u32]) -> Inner {
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
        Inner {
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

    /// Slot and staging buffer of a block that is being packed.
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

    fn stats(&mut self, fixed: &Fixed, number: u32) -> &mut GroupStats {
        &mut self.groups[fixed.block(number).id.group as usize].stats
    }

    /// Whether this operation sees the block for the first time.
    fn first_seen(&mut self, number: u32) -> bool {
        let operation = self.operation;
        std::mem::replace(&mut self.entry(number).seen, operation) != operation
    }

    /// How many of these, from the first on, can be pinned beside what is.
    pub fn window(&mut self, fixed: &Fixed, numbers: &[u32]) -> usize {
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

    /// The blocks fit: [`Inner::window`] said so. They are read by [`Inner::pump`].
    pub fn request(&mut self, fixed: &Fixed, group: u32, numbers: &[u32]) {
        // The same group again is a new step where there is no other: otherwise what it left to be computed later is asked for.
        if group < self.current || (group == self.current && self.released && fixed.groups == 1) {
            self.policies.iter_mut().for_each(|policy| policy.begin_step());
        }
        (self.current, self.released) = (group, false);
        // Wanted blocks are pinned first. Then unwanted predictions are taken back, and their slots serve the misses.
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
                // What was read of it is lost: it is read again when that has ended.
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

    fn pin(&mut self, fixed: &Fixed, number: u32) {
        let entry = self.entry(number);
        entry.pins += 1;
        if entry.pins == 1 {
            let others = u32::from(!entry.kept);
            self.pinned[fixed.class_of[number as usize]] += others;
            self.groups[fixed.block(number).id.group as usize].pinned.push(number);
        }
    }

    /// A predicted block is requested: its slot is a primary one from now on.
    fn confirm(&mut self, fixed: &Fixed, number: u32) {
        self.shadows[fixed.class_of[number as usize]].remove(&number);
        if let Some(slot) = self.entry(number).slot {
            self.slots.promote(slot);
        }
        self.tell(fixed, number);
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

    /// Pins kept blocks, and has those read that are not there; gives all of them. Nobody asked for them: they count as no misses.
    pub fn read_kept(&mut self, fixed: &Fixed) -> Vec<u32> {
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

    /// By group: how many blocks are there, and how many are kept.
    pub fn held(&self, fixed: &Fixed) -> Vec<Held> {
        let mut held = vec![Held::default(); self.groups.len()];
        for (block, entry) in fixed.blocks.iter().zip(&self.entries) {
            let held = &mut held[block.id.group as usize];
            held.in_memory += u32::from(matches!(entry.phase, Phase::Ready));
            held.kept += u32::from(entry.kept);
        }
        held
    }

    /// Predictions of this group are no longer expected: unread ones are taken back, the others are given up when a slot is needed.
    pub fn refute(&mut self, fixed: &Fixed, group: u32) {
        let Some(of) = self.groups.get_mut(group as usize) else { return };
        for number in std::mem::take(&mut of.expected) {
            self.entry(number).expected = false;
            if self.entry(number).shadow && !self.entry(number).announced {
                self.take_back(fixed, number, false);
            }
        }
    }

    /// As [`Inner::refute`], of what was announced, too.
    pub fn forget(&mut self, fixed: &Fixed, group: u32) {
        let Some(of) = self.groups.get_mut(group as usize) else { return };
        for number in std::mem::take(&mut of.announced) {
            self.entry(number).announced = false;
            self.groups[group as usize].expected.push(number);
        }
        self.refute(fixed, group);
    }

    /// Reads blocks of a group ahead that will be requested, perhaps (`sure` is false) or for certain. Gives how many are being read because of it.
    pub fn foresee(&mut self, fixed: &Fixed, group: u32, numbers: &[u32], sure: bool) -> usize {
        self.operation += 1;
        let mut jobs = Vec::new();
        // Blocks in memory are protected first, so that no prediction drives out another.
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
            // Requests have at least half of the slots for themselves, and staging buffers before predictions.
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

    /// Finds places for what waits for one, and reads it.
    pub fn pump(&mut self, fixed: &Fixed) {
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

    /// The job that reads a block to the places that it has.
    fn begin(&mut self, fixed: &Fixed, number: u32, class: Class) -> Option<Job> {
        let entry = self.entry(number);
        entry.phase = Phase::Reading;
        self.tell(fixed, number);
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
        Some(Job { tag: number.into(), class, parts })
    }

    fn submit(&mut self, fixed: &Fixed, jobs: Vec<Job>) {
        if jobs.is_empty() {
            return;
        }
        let numbers: Vec<u32> = jobs.iter().map(|job| job.tag as u32).collect();
        if let Err(error) = fixed.queue.submit(jobs) {
            // Nothing is read any more: what waits for a place would wait for ever.
            let waiting = std::mem::take(&mut self.waiting);
            numbers.into_iter().chain(waiting).for_each(|number| self.fail(fixed, number, error.clone()));
        }
    }

    /// Tells who records it what is in a block's slot.
    fn tell(&self, fixed: &Fixed, number: u32) {
        let entry = &self.entries[number as usize];
        let (Some(trace), Some(slot)) = (fixed.queue.trace(), entry.slot) else { return };
        let stage = match entry.phase {
            Phase::Arrived => Stage::Arrived,
            Phase::Packing => Stage::Packing,
            Phase::Ready => Stage::Resident,
            Phase::Empty | Phase::Waiting | Phase::Reading | Phase::Failed(_) => Stage::Loading,
        };
        trace.slot(slot, Some(trace::Held { block: number, stage, shadow: entry.shadow }));
    }

    /// Requested blocks of a group that were not there.
    pub fn waited_for(&self, group: u32) -> u64 {
        self.groups.get(group as usize).map_or(0, |group| group.stats.misses + group.stats.on_the_way)
    }

    fn fail(&mut self, fixed: &Fixed, number: u32, error: StreamError) {
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

    /// The drive is done with a block.
    pub fn arrive(&mut self, fixed: &Fixed, number: u32, result: Result<(), StreamError>) {
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
            self.tell(fixed, number);
            self.arrived.push_back(number);
            if !self.entry(number).shadow {
                fixed.packable.fetch_add(1, Ordering::Relaxed);
            }
        } else {
            self.make_ready(fixed, number);
        }
    }

    /// See [`super::ExpertCache::claim`].
    pub fn claim(&mut self, fixed: &Fixed, wanted: Option<u32>) -> Option<u32> {
        let requested = |number: &u32| !self.entries[*number as usize].shadow;
        let own = self.arrived.iter().position(|number| Some(*number) == wanted && requested(number));
        let position = own
            .or_else(|| self.arrived.iter().position(requested))
            .or_else(|| (wanted.is_none() && !self.arrived.is_empty()).then_some(0))?;
        let number = self.arrived.remove(position)?;
        self.entry(number).phase = Phase::Packing;
        self.tell(fixed, number);
        if !self.entry(number).shadow {
            fixed.packable.fetch_sub(1, Ordering::Relaxed);
        }
        Some(number)
    }

    /// A claimed block is packed, or cannot be.
    pub fn packed(&mut self, fixed: &Fixed, number: u32, result: Result<(), StreamError>) {
        if let Err(error) = result {
            return self.fail(fixed, number, error);
        }
        let staging = self.entry(number).staging.take();
        self.free_staging.extend(staging);
        self.make_ready(fixed, number);
    }

    fn make_ready(&mut self, fixed: &Fixed, number: u32) {
        self.entry(number).phase = Phase::Ready;
        self.tell(fixed, number);
        if !self.entry(number).shadow && !self.entry(number).kept {
            self.policies[fixed.class_of[number as usize]].insert(number);
        }
        let slot = self.entry(number).slot.map_or(0, |slot| slot + 1);
        fixed.ready[number as usize].store(slot, Ordering::Release);
    }

    pub fn release(&mut self, fixed: &Fixed, group: u32) {
        self.released |= group == self.current;
        let Some(of) = self.groups.get_mut(group as usize) else { return };
        for number in std::mem::take(&mut of.pinned) {
            self.entry(number).pins = 0;
            self.unpinned(fixed, number);
        }
    }

    pub fn release_block(&mut self, fixed: &Fixed, number: u32) {
        let entry = self.entry(number);
        entry.pins = entry.pins.saturating_sub(1);
        let group = &mut self.groups[fixed.block(number).id.group as usize];
        if self.entries[number as usize].pins == 0
            && let Some(position) = group.pinned.iter().position(|&other| other == number)
        {
            group.pinned.swap_remove(position);
            self.unpinned(fixed, number);
        }
    }

    /// Nobody wants a block any more. What is being read or packed goes on: it may be wanted again.
    fn unpinned(&mut self, fixed: &Fixed, number: u32) {
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
