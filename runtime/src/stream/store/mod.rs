//! The weight store: asks for blocks, predictions of blocks, and waits for them; all under a hard budget.
//!
//! The executor calls [`ExpertCache::request`] as soon as the router has decided, computes what is ready first, and [`ExpertCache::wait`]s for
//! the rest block by block, with any number of threads. [`ExpertCache::release`] ends it: until then no block of the group is given up, unless
//! [`ExpertCache::release_block`] was called for it.
//!
//! ```
//! use ixc_runtime::stream::{Block, BlockId, Extent, Form, store::{Config, State, ExpertCache}};
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let path = std::env::temp_dir().join(format!("ixc-store-example-{}", std::process::id()));
//! // Two groups of four experts, a page each.
//! std::fs::write(&path, vec![7; 8 * 4096])?;
//! let block = |i: u32| Block {
//!     id: BlockId { group: i / 4, expert: i % 4 },
//!     extents: vec![Extent { file: 0, offset: u64::from(i) * 4096, bytes: 4096, at: 0 }],
//!     form: Form::Packed,
//! };
//! let config = Config { budget: 6 * 4096, top_k: 2, ..Config::default() };
//! let store = ExpertCache::new(&config, &[path.clone()], (0..8).map(block).collect(), None)?;
//!
//! store.predict(0, &[1, 2]);
//! let request = store.request(0, &[2, 3])?; // 2 is on its way or there; 1 is not wanted: taken back, or given up first
//! for (expert, state) in [2, 3].into_iter().zip(request.states) {
//!     let region = match state {
//!         State::Ready(region) => region,
//!         State::Coming => store.wait(BlockId { group: 0, expert })?,
//!     };
//!     assert_eq!(region.bytes(), 4096);
//! }
//! store.release(0);
//! # std::fs::remove_file(&path)?;
//! # Ok(()) }
//! ```
//!
//! A group that wants more blocks than there are slots (a prefill) takes them in windows: [`ExpertCache::window`] says how many fit,
//! [`ExpertCache::request`] is called with so many, and each [`ExpertCache::release_block`] makes room for one more.
//!
//! Some blocks can be [kept](Keep): they are read once, in the beginning ([`ExpertCache::read_kept`]), and stay.
//!
//! Raw blocks have to be packed after they were read. Whoever waits packs what has arrived for the running group; threads
//! with nothing else to do take any with [`ExpertCache::claim_arrived`].
//!
//! Invariant: slots and staging memory together never exceed the budget: they are all there is.
//! Invariant: a block is read once for all who want it (single flight), and never given up while it is pinned, read or packed.
//! Invariant: kept blocks leave as many slots as streaming needs at the least, and no request counts on theirs.

mod check;
mod state;
pub mod stats;

use std::collections::{HashMap, HashSet};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::memory::Region;
use crate::trace::Recorder;

use super::budget::Spending;
use super::counters::Counters;
use super::drive::{Backend, Drive, Options, Report, Sink};
use super::files::{Files, Identity};
use super::queue::Queue;
use super::reservation::Reservation;
use super::{Block, BlockId, Form, StreamError, cache};
use state::{Inner, Phase};
use stats::{ClassUse, Held, Stats};

/// Rounds of spinning before a thread that waits parks: a few microseconds. A read takes a hundred times as long.
const SPINS: u32 = 200;

/// Bytes of one read unless told otherwise.
pub const CHUNK: u64 = 256 << 10;

/// What a store is made with.
#[derive(Clone, Debug)]
pub struct Config {
    /// Bytes for all slots and staging memory.
    pub budget: u64,
    /// Experts that a token uses in a group.
    pub top_k: u32,
    /// Most bytes of one read: large blocks are cut, so that the drive has many reads at once.
    pub chunk: u64,
    /// Whether to read past the page cache.
    pub direct: bool,
    /// Staging buffers for raw blocks, where the budget has room for that many; else as many as `top_k`.
    pub staging: Option<u32>,
    /// What is given up first.
    pub policy: cache::Kind,
    /// What is not given up.
    pub keep: Keep,
    /// How the drive is used.
    pub drive: Options,
    /// Who is told what is read, and what lies in slots.
    pub trace: Option<Arc<Recorder>>,
    /// What reads, where it is neither of the two that there are.
    pub backend: Option<Make>,
}

/// Which blocks stay once they are there.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Keep {
    /// Those that shall, each once, the most wanted first.
    pub blocks: Vec<BlockId>,
    /// The part of the slots of each size that they may take, in percent.
    pub percent: u32,
}

/// What was given up because somebody said so.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Evicted {
    /// Blocks.
    pub blocks: u32,
    /// Bytes of their slots, which are free now.
    pub bytes: u64,
}

/// What makes a backend for a queue.
pub type MakeBackend = dyn Fn(&Queue) -> Box<dyn Backend> + Send + Sync;

/// Makes a backend: one that plants faults, or that reads from elsewhere.
#[derive(Clone)]
pub struct Make(pub Arc<MakeBackend>);

impl std::fmt::Debug for Make {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Make")
    }
}

impl Default for Config {
    fn default() -> Config {
        Config {
            budget: 0,
            top_k: 8,
            chunk: CHUNK,
            direct: true,
            staging: None,
            policy: cache::Kind::default(),
            keep: Keep::default(),
            drive: Options::default(),
            trace: None,
            backend: None,
        }
    }
}

/// Packs raw blocks.
pub trait Pack: Send + Sync {
    /// Packs the extents of a block, in their order, into its slot. Other threads pack other blocks at the same time. The
    /// memory of all these regions is the caller's alone until this returns.
    ///
    /// # Errors
    /// What is wrong with the block, in words.
    fn pack(&self, block: BlockId, raw: &[Region], slot: Region) -> Result<(), String>;
}

/// Whether a requested block is there.
#[derive(Clone, Copy, Debug)]
pub enum State {
    /// It is, until it is released.
    Ready(Region),
    /// [`ExpertCache::wait`] for it.
    Coming,
}

/// What became of a request.
#[derive(Clone, Debug)]
pub struct Request {
    /// For each expert, in the order in which they were given.
    pub states: Vec<State>,
}

/// What never changes, and what is read without the lock.
struct Fixed {
    blocks: Vec<Block>,
    numbers: HashMap<BlockId, u32>,
    class_of: Vec<usize>,
    /// Where each slot begins.
    slot_offsets: Vec<u64>,
    /// Where each staging buffer begins.
    staging_offsets: Vec<u64>,
    queue: Arc<Queue>,
    /// By block: its slot's number and 1, 0 while it is not ready.
    ready: Vec<AtomicU32>,
    /// Blocks that have arrived for a running group and wait to be packed.
    packable: AtomicUsize,
    /// By group: nanoseconds that threads waited, all threads together.
    stalled: Vec<AtomicU64>,
    groups: u32,
}

impl Fixed {
    fn number(&self, block: BlockId) -> Result<u32, StreamError> {
        self.numbers.get(&block).copied().ok_or(StreamError::UnknownBlock { block })
    }

    fn block(&self, number: u32) -> &Block {
        &self.blocks[number as usize]
    }

    fn slot(&self, number: u32, slot: u32) -> Option<Region> {
        self.queue.reservation().region().part(*self.slot_offsets.get(slot as usize)?, self.block(number).bytes())
    }

    /// Where the block lies, when it is ready.
    fn ready(&self, number: u32) -> Option<Region> {
        let slot = self.ready[number as usize].load(Ordering::Acquire).checked_sub(1)?;
        self.slot(number, slot)
    }

    /// Where the extents of a raw block land in a staging buffer.
    fn raw(&self, number: u32, staging: u32) -> Vec<Region> {
        let mut at = self.staging_offsets.get(staging as usize).copied().unwrap_or(u64::MAX);
        let all = self.queue.reservation().region();
        let place = |extent: &super::Extent| {
            let begin = at.saturating_add(extent.head());
            at = at.saturating_add(extent.span());
            all.part(begin, extent.bytes)
        };
        self.block(number).extents.iter().map_while(place).collect()
    }
}

struct Shared {
    fixed: Fixed,
    inner: Mutex<Inner>,
    changed: Condvar,
    packer: Option<Box<dyn Pack>>,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Places what waited for a slot, and wakes who waits.
    fn settle(&self, mut inner: MutexGuard<'_, Inner>) {
        inner.pump(&self.fixed);
        if inner.sleepers > 0 {
            self.changed.notify_all();
        }
    }
}

impl Sink for Shared {
    fn ended(&self, jobs: Vec<(u64, Result<(), StreamError>)>) {
        let mut inner = self.lock();
        for (tag, result) in jobs {
            inner.arrive(&self.fixed, tag as u32, result);
        }
        self.settle(inner);
    }
}

/// The store. Dropping it ends its thread; regions that it gave are gone then.
pub struct ExpertCache {
    shared: Arc<Shared>,
    drive: Drive,
}

impl ExpertCache {
    /// The least budget that a store of these blocks works with: the `top_k` blocks of two groups that follow each other.
    pub fn minimum_bytes(blocks: &[Block], top_k: u32) -> u64 {
        Spending::least(blocks, top_k).bytes()
    }

    /// Opens the files and starts the drive. `packer` is needed where blocks are raw.
    ///
    /// # Errors
    /// [`StreamError::Open`], [`StreamError::BadBlock`], [`StreamError::Truncated`] for blocks that lie outside their files,
    /// [`StreamError::Budget`], [`StreamError::Memory`], [`StreamError::Closed`].
    pub fn new(
        config: &Config,
        files: &[PathBuf],
        blocks: Vec<Block>,
        packer: Option<Box<dyn Pack>>,
    ) -> Result<ExpertCache, StreamError> {
        if let Some(Make(make)) = config.backend.clone() {
            return ExpertCache::with_backend(config, files, blocks, packer, move |queue| make(queue));
        }
        ExpertCache::start(config, files, blocks, packer, |queue, sink| Drive::start(&config.drive, queue, sink))
    }

    /// As [`ExpertCache::new`], reading with a backend that `make` makes.
    ///
    /// # Errors
    /// As [`ExpertCache::new`].
    pub fn with_backend(
        config: &Config,
        files: &[PathBuf],
        blocks: Vec<Block>,
        packer: Option<Box<dyn Pack>>,
        make: impl FnOnce(&Queue) -> Box<dyn Backend> + Send + 'static,
    ) -> Result<ExpertCache, StreamError> {
        ExpertCache::start(config, files, blocks, packer, |queue, sink| {
            let shared = Arc::clone(queue);
            Drive::start_with(&config.drive, queue, sink, move || Ok((make(&shared), Vec::new())))
        })
    }

    fn start(
        config: &Config,
        files: &[PathBuf],
        blocks: Vec<Block>,
        packer: Option<Box<dyn Pack>>,
        drive: impl FnOnce(&Arc<Queue>, Arc<dyn Sink>) -> Result<Drive, StreamError>,
    ) -> Result<ExpertCache, StreamError> {
        let files = Arc::new(Files::open(files, config.direct)?);
        let numbers = check::blocks(&blocks, &files, packer.is_some())?;
        let spending = Spending::of(&blocks, config.top_k, config.budget, config.staging)?;
        let reservation = Arc::new(Reservation::new(spending.bytes())?);
        let queue = Arc::new(Queue::new(files, reservation, config.chunk).traced(config.trace.clone()));
        let groups = blocks.iter().map(|block| block.id.group + 1).max().unwrap_or(0);
        let mut seen = HashSet::new();
        let wanted = config.keep.blocks.iter().filter_map(|block| numbers.get(block).copied());
        let wanted = wanted.filter(|number| seen.insert(*number));
        let kept = spending.kept(&Spending::least(&blocks, config.top_k), wanted, config.keep.percent);
        let inner = Inner::new(&spending, blocks.len(), groups, config.policy, &kept);
        let slot_offsets = inner.slots.offsets();
        let staging_begin = super::slots::Slots::bytes(&spending.classes);
        let staging = u64::from(spending.staging.count);
        if let Some(trace) = &config.trace {
            let sizes = spending.classes.iter().flat_map(|class| (0..class.count).map(|_| class.bytes));
            trace.describe_blocks(blocks.iter().map(|block| block.id).collect(), sizes.collect());
        }
        let fixed = Fixed {
            ready: blocks.iter().map(|_| AtomicU32::new(0)).collect(),
            packable: AtomicUsize::new(0),
            stalled: (0..groups).map(|_| AtomicU64::new(0)).collect(),
            blocks,
            numbers,
            class_of: spending.class_of,
            slot_offsets,
            staging_offsets: (0..staging).map(|i| staging_begin + i * spending.staging.bytes).collect(),
            queue: Arc::clone(&queue),
            groups,
        };
        let shared = Arc::new(Shared { fixed, inner: Mutex::new(inner), changed: Condvar::new(), packer });
        let drive = drive(&queue, Arc::clone(&shared) as Arc<dyn Sink>)?;
        Ok(ExpertCache { shared, drive })
    }

    /// Requests experts of a group, which its router chose, and pins them. Missing ones are read, all of them at once and before
    /// anything that is only predicted; predictions for this group that turn out wrong are taken back.
    ///
    /// # Errors
    /// [`StreamError::UnknownBlock`]; [`StreamError::TooMany`] where more are asked for than [`ExpertCache::window`] says. Nothing is
    /// pinned then. Failed reads are told by [`ExpertCache::wait`]; a new request tries again.
    pub fn request(&self, group: u32, experts: &[u32]) -> Result<Request, StreamError> {
        let fixed = &self.shared.fixed;
        if group >= fixed.groups {
            return Err(StreamError::UnknownBlock { block: BlockId { group, expert: 0 } });
        }
        let numbers =
            experts.iter().map(|&expert| fixed.number(BlockId { group, expert })).collect::<Result<Vec<u32>, _>>()?;
        let mut inner = self.shared.lock();
        let possible = inner.window(fixed, &numbers);
        if possible < numbers.len() {
            return Err(StreamError::TooMany { group, wanted: numbers.len(), possible });
        }
        inner.request(fixed, group, &numbers);
        self.shared.settle(inner);
        let state = |&number: &u32| fixed.ready(number).map_or(State::Coming, State::Ready);
        Ok(Request { states: numbers.iter().map(state).collect() })
    }

    /// How many of these experts, from the first on, [`ExpertCache::request`] can pin beside what is pinned now.
    pub fn window(&self, group: u32, experts: &[u32]) -> usize {
        let fixed = &self.shared.fixed;
        let numbers: Vec<u32> =
            experts.iter().map_while(|&expert| fixed.number(BlockId { group, expert }).ok()).collect();
        self.shared.lock().window(fixed, &numbers)
    }

    /// Reads experts that the router may choose, likeliest first, when the drive is idle and as far as there are slots without pinned or
    /// predicted blocks. Experts in memory are kept until the group's request. Gives how many blocks are being read because of it.
    pub fn predict(&self, group: u32, experts: &[u32]) -> usize {
        self.foresee(group, experts, false)
    }

    /// As [`ExpertCache::predict`], for experts that are certain to be requested: they stay expected until then, whatever else of the group is
    /// requested before.
    pub fn announce(&self, group: u32, experts: &[u32]) -> usize {
        self.foresee(group, experts, true)
    }

    fn foresee(&self, group: u32, experts: &[u32], sure: bool) -> usize {
        let fixed = &self.shared.fixed;
        let known: Vec<u32> =
            experts.iter().filter_map(|&expert| fixed.number(BlockId { group, expert }).ok()).collect();
        self.shared.lock().foresee(fixed, group, &known, sure)
    }

    /// Begins to read the blocks that are kept, and pins them until their groups are [released](ExpertCache::release). Who waits for one gets it, and
    /// packs it where it is raw.
    pub fn read_kept(&self) -> Vec<BlockId> {
        let fixed = &self.shared.fixed;
        let mut inner = self.shared.lock();
        let kept = inner.read_kept(fixed);
        self.shared.settle(inner);
        kept.into_iter().map(|number| fixed.block(number).id).collect()
    }

    /// Gives up the blocks of a group that are there and not pinned, and takes predictions for it back; those that are kept stay unless `kept` says that
    /// they are not kept any more.
    pub fn evict(&self, group: u32, kept: bool) -> Evicted {
        let mut inner = self.shared.lock();
        let evicted = inner.evict(&self.shared.fixed, group, kept);
        self.shared.settle(inner);
        evicted
    }

    /// By group: how many blocks are there, and how many are kept.
    pub fn held(&self) -> Vec<Held> {
        let inner = self.shared.lock();
        inner.held(&self.shared.fixed)
    }

    /// Takes predictions and announcements for a group back, where it is not run after all. [`ExpertCache::request`] takes predictions for
    /// its group back.
    pub fn refute(&self, group: u32) {
        let mut inner = self.shared.lock();
        inner.forget(&self.shared.fixed, group);
        self.shared.settle(inner);
    }

    /// Where a block lies, if it is there. That it stays there is sure only while it is pinned.
    pub fn ready(&self, block: BlockId) -> Option<Region> {
        let fixed = &self.shared.fixed;
        fixed.ready(*fixed.numbers.get(&block)?)
    }

    /// Waits until a requested block is there. The waiting thread packs raw blocks of requests that have arrived meanwhile.
    ///
    /// # Errors
    /// Why the block cannot be had: [`StreamError::Read`], [`StreamError::Truncated`], [`StreamError::Pack`],
    /// [`StreamError::Closed`]; [`StreamError::NotRequested`] for one that nobody asked for, or that was released.
    pub fn wait(&self, block: BlockId) -> Result<Region, StreamError> {
        let fixed = &self.shared.fixed;
        let number = fixed.number(block)?;
        if let Some(region) = fixed.ready(number) {
            return Ok(region);
        }
        let (began, mut worked) = (Instant::now(), Duration::ZERO);
        let result = self.wait_for(number, &mut worked);
        if let Some(stalled) = fixed.stalled.get(block.group as usize) {
            let nanoseconds = began.elapsed().saturating_sub(worked).as_nanos();
            stalled.fetch_add(u64::try_from(nanoseconds).unwrap_or(u64::MAX), Ordering::Relaxed);
        }
        result
    }

    fn wait_for(&self, number: u32, worked: &mut Duration) -> Result<Region, StreamError> {
        let (shared, fixed) = (&*self.shared, &self.shared.fixed);
        let work = |fixed: &Fixed| shared.packer.is_some() && fixed.packable.load(Ordering::Relaxed) > 0;
        loop {
            for _ in 0..SPINS {
                if let Some(region) = fixed.ready(number) {
                    return Ok(region);
                }
                if work(fixed) {
                    break;
                }
                std::hint::spin_loop();
            }
            if let (true, Some(packer)) = (work(fixed), &shared.packer)
                && let Some(arrived) = self.claim(Some(number))
            {
                let began = Instant::now();
                arrived.pack(&**packer);
                *worked += began.elapsed();
                continue;
            }
            let mut inner = shared.lock();
            loop {
                match inner.phase(number) {
                    Phase::Ready => {
                        return fixed.ready(number).ok_or(StreamError::NotRequested { block: fixed.block(number).id });
                    }
                    Phase::Failed(error) => return Err(error.clone()),
                    Phase::Empty => return Err(StreamError::NotRequested { block: fixed.block(number).id }),
                    Phase::Waiting | Phase::Reading | Phase::Arrived | Phase::Packing => {}
                }
                if work(fixed) {
                    break;
                }
                inner.sleepers += 1;
                inner = shared.changed.wait(inner).unwrap_or_else(PoisonError::into_inner);
                inner.sleepers -= 1;
            }
        }
    }

    /// A raw block that has arrived and is nobody's yet: a requested one if there is one, else a predicted one.
    pub fn claim_arrived(&self) -> Option<Arrived<'_>> {
        self.claim(None)
    }

    /// The requested block of that number if it can be, or another requested one, or without a number any at all.
    fn claim(&self, number: Option<u32>) -> Option<Arrived<'_>> {
        let fixed = &self.shared.fixed;
        let mut inner = self.shared.lock();
        let number = inner.claim(fixed, number)?;
        let (slot, staging) = inner.places(number)?;
        let (raw, slot) = (fixed.raw(number, staging), fixed.slot(number, slot)?);
        Some(Arrived { shared: &self.shared, number, raw, slot, finished: false })
    }

    /// Unpins all blocks of a group.
    pub fn release(&self, group: u32) {
        let mut inner = self.shared.lock();
        inner.release(&self.shared.fixed, group);
        self.shared.settle(inner);
    }

    /// Takes one pin off a block: as often as it was requested.
    pub fn release_block(&self, block: BlockId) {
        let Ok(number) = self.shared.fixed.number(block) else { return };
        let mut inner = self.shared.lock();
        inner.release_block(&self.shared.fixed, number);
        self.shared.settle(inner);
    }

    /// Gives up a block that is there and is not pinned, such as one that turned out to be damaged: who requests it next has it read again.
    pub fn discard(&self, block: BlockId) {
        let Ok(number) = self.shared.fixed.number(block) else { return };
        let mut inner = self.shared.lock();
        inner.discard(&self.shared.fixed, number);
        self.shared.settle(inner);
    }

    /// How long threads waited, all together, for a requested block of a group that was not there, on average.
    pub fn miss_time(&self, group: u32) -> Duration {
        let Some(stalled) = self.shared.fixed.stalled.get(group as usize) else { return Duration::ZERO };
        let waited_for = self.shared.lock().waited_for(group);
        Duration::from_nanos(stalled.load(Ordering::Relaxed).checked_div(waited_for).unwrap_or(0))
    }

    /// Whether the files are still those that were opened.
    ///
    /// # Errors
    /// [`StreamError::Changed`].
    pub fn check_unchanged(&self) -> Result<(), StreamError> {
        self.shared.fixed.queue.files().check_unchanged()
    }

    /// Whether the files are those that somebody opened before, by number; where it is not known, any is.
    ///
    /// # Errors
    /// [`StreamError::Changed`].
    pub fn check_same(&self, before: &[Option<Identity>]) -> Result<(), StreamError> {
        self.shared.fixed.queue.files().check_same(before)
    }

    /// How reading is done here.
    pub fn report(&self) -> Report {
        self.drive.report()
    }

    /// Bytes of all slots and staging memory.
    pub fn bytes(&self) -> u64 {
        self.shared.fixed.queue.reservation().region().bytes()
    }

    /// All slots and staging memory.
    pub fn memory(&self) -> Region {
        self.shared.fixed.queue.reservation().region()
    }

    /// What the drive did so far.
    pub fn drive(&self) -> Counters {
        self.shared.fixed.queue.counters()
    }

    /// Bytes that were read so far.
    pub fn bytes_read(&self) -> u64 {
        self.drive().bytes()
    }

    /// What happened so far.
    pub fn stats(&self) -> Stats {
        let fixed = &self.shared.fixed;
        let inner = self.shared.lock();
        let mut groups = inner.group_stats();
        for (group, stalled) in groups.iter_mut().zip(&fixed.stalled) {
            group.stall = Duration::from_nanos(stalled.load(Ordering::Relaxed));
        }
        let classes = ClassUse::of(&inner.slots);
        drop(inner);
        Stats { groups, classes, drive: fixed.queue.counters() }
    }
}

/// A raw block that has arrived: whoever holds this packs it. Dropped without a word, the block counts as failed.
pub struct Arrived<'a> {
    shared: &'a Shared,
    number: u32,
    raw: Vec<Region>,
    slot: Region,
    finished: bool,
}

impl Arrived<'_> {
    /// Which block it is.
    pub fn id(&self) -> BlockId {
        self.shared.fixed.block(self.number).id
    }

    /// Its extents, in their order; nobody else touches them.
    pub fn raw(&self) -> &[Region] {
        &self.raw
    }

    /// Where it is to be packed; nobody else touches it.
    pub fn slot(&self) -> Region {
        self.slot
    }

    /// Says that it is packed, or why not.
    pub fn finish(mut self, result: Result<(), String>) {
        self.end(result);
    }

    /// Packs it.
    pub fn pack(self, packer: &dyn Pack) {
        let result = packer.pack(self.id(), &self.raw, self.slot);
        self.finish(result);
    }

    fn end(&mut self, result: Result<(), String>) {
        if std::mem::replace(&mut self.finished, true) {
            return;
        }
        let result = result.map_err(|why| StreamError::Pack { block: self.id(), why });
        let mut inner = self.shared.lock();
        inner.packed(&self.shared.fixed, self.number, result);
        self.shared.settle(inner);
    }
}

impl Drop for Arrived<'_> {
    fn drop(&mut self) {
        self.end(Err("whoever packed it gave up".into()));
    }
}

impl Fixed {
    fn is_raw(&self, number: u32) -> bool {
        matches!(self.block(number).form, Form::Raw { .. })
    }
}
