//! The expert cache: requests for blocks, predictions of blocks, and waiting for blocks, within a
//! hard memory budget.
//!
//! The executor calls [`ExpertCache::request`] as soon as the router has chosen experts, and first
//! computes the experts that are ready. Meanwhile, any number of threads can [`ExpertCache::wait`]
//! for the other blocks, one by one. [`ExpertCache::release`] ends the request. Until then, the
//! cache keeps all requested blocks of the group in memory, except those passed to
//! [`ExpertCache::release_block`].
//!
//! ```
//! use ixc_runtime::streaming::store::{Config, ExpertCache, State};
//! use ixc_runtime::streaming::{Block, BlockEncoding, BlockId, Extent};
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let path = std::env::temp_dir().join(format!("ixc-store-example-{}", std::process::id()));
//! // Two groups of four experts, a page each.
//! std::fs::write(&path, vec![7; 8 * 4096])?;
//! let block = |i: u32| Block {
//!     id: BlockId { group: i / 4, expert: i % 4 },
//!     extents: vec![Extent { file: 0, offset: u64::from(i) * 4096, bytes: 4096, at: 0 }],
//!     form: BlockEncoding::Packed,
//! };
//! let config = Config { budget: 6 * 4096, top_k: 2, ..Config::default() };
//! let store = ExpertCache::new(&config, &[path.clone()], (0..8).map(block).collect(), None)?;
//!
//! store.predict(0, &[1, 2]);
//! // Expert 2 is being read or has arrived. The cache cancels the read of 1, or evicts 1 first.
//! let request = store.request(0, &[2, 3])?;
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
//! A group may need more blocks than there are slots, for example in prefill. The executor then
//! requests them in several parts. [`ExpertCache::window`] returns the number of blocks that can be
//! pinned, and each [`ExpertCache::release_block`] makes room for one more.
//!
//! Some blocks can be [kept](KeptBlocks). The cache reads them once, at the start
//! ([`ExpertCache::read_kept`]), and never evicts them.
//!
//! Raw blocks are packed after they are read. A thread that waits for a block packs blocks that
//! have arrived for the running group. A thread without other work can pack any arrived block
//! ([`ExpertCache::claim_arrived`]).
//!
//! Invariant: slots and staging memory are the only memory of streaming, and together never exceed
//! the budget. Invariant: one read of a block serves all its requests (single flight). Invariant: a
//! block is never evicted while it is pinned, being read or being packed. Invariant: kept blocks
//! leave as many slots as streaming needs, and requests never rely on the slots of kept blocks.

mod arrived;
mod check;
mod config;
mod state;
pub mod stats;

use std::collections::{HashMap, HashSet};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use ixc_files::changed::Identity;

use crate::storage::memory::Region;
use crate::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use crate::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, hint, spin_rounds};
use crate::watchdog::StopFlag;

use super::backend::Backend;
use super::budget::BudgetSplit;
use super::counters::Counters;
use super::drive::{Drive, EndedJob, Report, Sink};
use super::files::Files;
use super::queue::Queue;
use super::reservation::Reservation;
use super::{Block, BlockEncoding, BlockId, StreamError};
pub use arrived::{ArrivedBlock, Pack};
pub use config::{BackendFactory, CHUNK, Config, KeptBlocks, MakeBackend};
use state::{Phase, StoreState};
use stats::{ClassUse, GroupBlocks, Stats};

/// Number of rounds that a thread spins before it sleeps while it waits for a block; this takes
/// some microseconds. A read takes about a hundred times as long.
const SPINS: u32 = spin_rounds(200);
/// Interval at which a sleeping thread tests the flag that ends its step.
const STOP_INTERVAL: Duration = Duration::from_millis(50);

/// Result of [`ExpertCache::evict`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EvictionResult {
    /// Number of evicted blocks.
    pub blocks: u32,
    /// Bytes of the evicted blocks' slots, which are now free.
    pub bytes: u64,
}

/// State of a requested block at the time of the request.
#[derive(Clone, Copy, Debug)]
pub enum State {
    /// The block is in memory, and stays there until it is released.
    Ready(Region),
    /// The block is not in memory yet, so the caller must call [`ExpertCache::wait`].
    Coming,
}

/// Result of [`ExpertCache::request`].
#[derive(Clone, Debug)]
pub struct Request {
    /// State of each requested expert, in the order of the request.
    pub states: Vec<State>,
}

/// Data that never changes, and atomic values that threads read without the lock.
struct StoreConstants {
    blocks: Vec<Block>,
    numbers: HashMap<BlockId, u32>,
    class_of: Vec<usize>,
    /// Offset of each slot in the reservation.
    slot_offsets: Vec<u64>,
    /// Offset of each staging buffer in the reservation.
    staging_offsets: Vec<u64>,
    queue: Arc<Queue>,
    /// For each block, its slot number plus 1; 0 while the block is not ready.
    ready: Vec<AtomicU32>,
    /// Number of blocks that have arrived for a running group and are not packed yet.
    packable: AtomicUsize,
    /// For each group, the nanoseconds that threads waited for its blocks, summed over all threads.
    stalled: Vec<AtomicU64>,
    groups: u32,
    /// Flag that is raised at the deadline of a step, to end waits for blocks.
    stop: StopFlag,
}

impl StoreConstants {
    fn is_raw(&self, number: u32) -> bool {
        matches!(self.block(number).form, BlockEncoding::Raw { .. })
    }

    fn number(&self, block: BlockId) -> Result<u32, StreamError> {
        self.numbers.get(&block).copied().ok_or(StreamError::UnknownBlock { block })
    }

    fn block(&self, number: u32) -> &Block {
        &self.blocks[number as usize]
    }

    fn slot(&self, number: u32, slot: u32) -> Option<Region> {
        self.queue.reservation().region().part(*self.slot_offsets.get(slot as usize)?, self.block(number).bytes())
    }

    /// Returns the memory of a block if the block is ready.
    fn ready(&self, number: u32) -> Option<Region> {
        let slot = self.ready[number as usize].load(Ordering::Acquire).checked_sub(1)?;
        self.slot(number, slot)
    }

    /// Returns the memory of a raw block's extents in a staging buffer.
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
    fixed: StoreConstants,
    inner: Mutex<StoreState>,
    changed: Condvar,
    packer: Option<Box<dyn Pack>>,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, StoreState> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives slots to blocks that wait for a slot, and wakes sleeping threads.
    fn settle(&self, mut inner: MutexGuard<'_, StoreState>) {
        inner.pump(&self.fixed);
        if inner.sleepers > 0 {
            self.changed.notify_all();
        }
    }
}

impl Sink for Shared {
    fn handle_ended(&self, jobs: Vec<EndedJob>) {
        let mut inner = self.lock();
        for EndedJob { tag, result } in jobs {
            inner.arrive(&self.fixed, tag as u32, result);
        }
        self.settle(inner);
    }
}

/// The expert cache. Dropping it ends the drive's thread and unmaps the regions that it returned.
pub struct ExpertCache {
    shared: Arc<Shared>,
    drive: Drive,
}

impl ExpertCache {
    /// Returns the minimum budget in bytes for these blocks: slots for `top_k` blocks of each of
    /// two consecutive groups, for any two such groups.
    pub fn minimum_bytes(blocks: &[Block], top_k: u32) -> u64 {
        BudgetSplit::minimum(blocks, top_k).bytes()
    }

    /// Opens the files and starts the drive's thread. If there are raw blocks, a `packer` is
    /// needed.
    ///
    /// # Errors
    /// [`StreamError::Open`], [`StreamError::BadBlock`], [`StreamError::Truncated`] for blocks that
    /// lie outside their files, [`StreamError::Budget`], [`StreamError::Memory`] or
    /// [`StreamError::Closed`].
    pub fn new(
        config: &Config,
        files: &[PathBuf],
        blocks: Vec<Block>,
        packer: Option<Box<dyn Pack>>,
    ) -> Result<ExpertCache, StreamError> {
        if let Some(BackendFactory(make)) = config.backend.clone() {
            return ExpertCache::with_backend(config, files, blocks, packer, move |queue| make(queue));
        }
        ExpertCache::start(config, files, blocks, packer, |queue, sink| Drive::start(&config.drive, queue, sink))
    }

    /// Creates a cache like [`ExpertCache::new`], with a backend that `make` creates.
    ///
    /// # Errors
    /// See [`ExpertCache::new`].
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
        let spending = BudgetSplit::spend(&blocks, config.top_k, config.budget, config.staging)?;
        let reservation = Arc::new(Reservation::new(spending.bytes())?);
        let queue = Arc::new(Queue::new(files, reservation, config.chunk).with_trace(config.trace.clone()));
        let groups = blocks.iter().map(|block| block.id.group + 1).max().unwrap_or(0);
        let mut seen = HashSet::new();
        let wanted = config.keep.blocks.iter().filter_map(|block| numbers.get(block).copied());
        let wanted = wanted.filter(|number| seen.insert(*number));
        let kept = spending.choose_kept(&BudgetSplit::minimum(&blocks, config.top_k), wanted, config.keep.percent);
        let inner = StoreState::new(&spending, blocks.len(), groups, config.policy, &kept);
        let slot_offsets = inner.slots.offsets();
        let staging_begin = super::slots::Slots::bytes(&spending.classes);
        let staging = u64::from(spending.staging.count);
        if let Some(trace) = &config.trace {
            let sizes = spending.classes.iter().flat_map(|class| (0..class.count).map(|_| class.bytes));
            trace.describe_blocks(blocks.iter().map(|block| block.id).collect(), sizes.collect());
        }
        let fixed = StoreConstants {
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
            stop: config.stop.clone(),
        };
        let shared = Arc::new(Shared { fixed, inner: Mutex::new(inner), changed: Condvar::new(), packer });
        let drive = drive(&queue, Arc::clone(&shared) as Arc<dyn Sink>)?;
        Ok(ExpertCache { shared, drive })
    }

    /// Requests and pins experts of a group, which the group's router has chosen. All missing
    /// blocks are read at once, before any block that is only predicted. Wrong predictions for this
    /// group are cancelled.
    ///
    /// # Errors
    /// [`StreamError::UnknownBlock`] if an expert does not exist. [`StreamError::TooMany`] if there
    /// are more blocks than [`ExpertCache::window`] allows. In both cases nothing is pinned.
    /// [`ExpertCache::wait`] reports failed reads; a new request reads the block again.
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

    /// Returns how many of the first of these experts [`ExpertCache::request`] can pin, in addition
    /// to the experts that are already pinned.
    pub fn window(&self, group: u32, experts: &[u32]) -> usize {
        let fixed = &self.shared.fixed;
        let numbers: Vec<u32> =
            experts.iter().map_while(|&expert| fixed.number(BlockId { group, expert }).ok()).collect();
        self.shared.lock().window(fixed, &numbers)
    }

    /// Reads experts that the router may choose, likeliest first, while the drive has time. Only
    /// slots without pinned or predicted blocks are used. If predicted experts are already in
    /// memory, they stay there until the group's request, if possible. Returns the number of
    /// started reads.
    pub fn predict(&self, group: u32, experts: &[u32]) -> usize {
        self.foresee(group, experts, false)
    }

    /// Predicts experts that will certainly be requested. After [`ExpertCache::predict`], any
    /// request of the group ends the prediction. But announced experts stay expected until they are
    /// requested.
    pub fn announce(&self, group: u32, experts: &[u32]) -> usize {
        self.foresee(group, experts, true)
    }

    fn foresee(&self, group: u32, experts: &[u32], sure: bool) -> usize {
        let fixed = &self.shared.fixed;
        let known: Vec<u32> =
            experts.iter().filter_map(|&expert| fixed.number(BlockId { group, expert }).ok()).collect();
        self.shared.lock().foresee(fixed, group, &known, sure)
    }

    /// Starts reading the kept blocks, and pins them until their groups are
    /// [released](ExpertCache::release). If a kept block is raw, a thread that waits for it also
    /// packs it. Returns the ids of the kept blocks.
    pub fn read_kept(&self) -> Vec<BlockId> {
        let fixed = &self.shared.fixed;
        let mut inner = self.shared.lock();
        let kept = inner.read_kept(fixed);
        self.shared.settle(inner);
        kept.into_iter().map(|number| fixed.block(number).id).collect()
    }

    /// Evicts the unpinned blocks of a group from memory, and cancels predictions for the group.
    /// Kept blocks are evicted only if `kept` is true, and are then no longer kept.
    pub fn evict(&self, group: u32, kept: bool) -> EvictionResult {
        let mut inner = self.shared.lock();
        let evicted = inner.evict(&self.shared.fixed, group, kept);
        self.shared.settle(inner);
        evicted
    }

    /// Returns, for each group, the number of blocks in memory and the number of kept blocks.
    pub fn blocks_by_group(&self) -> Vec<GroupBlocks> {
        let inner = self.shared.lock();
        inner.blocks_by_group(&self.shared.fixed)
    }

    /// Cancels predictions and announcements for a group that will not run after all. Wrong
    /// predictions are also cancelled by [`ExpertCache::request`].
    pub fn refute(&self, group: u32) {
        let mut inner = self.shared.lock();
        inner.forget(&self.shared.fixed, group);
        self.shared.settle(inner);
    }

    /// Returns the memory of a block if the block is ready. It is certain to stay in memory only
    /// while it is pinned.
    pub fn ready(&self, block: BlockId) -> Option<Region> {
        let fixed = &self.shared.fixed;
        fixed.ready(*fixed.numbers.get(&block)?)
    }

    /// Waits until a requested block is ready. Meanwhile, the thread packs raw blocks that have
    /// arrived for requests.
    ///
    /// # Errors
    /// [`StreamError::Read`], [`StreamError::Truncated`], [`StreamError::Pack`] or
    /// [`StreamError::Closed`] if the block is not available. [`StreamError::NotRequested`] for a
    /// block that was not requested, or that was released. [`StreamError::TooLate`] after the
    /// step's deadline.
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
        let work = |fixed: &StoreConstants| shared.packer.is_some() && fixed.packable.load(Ordering::Relaxed) > 0;
        loop {
            for _ in 0..SPINS {
                if let Some(region) = fixed.ready(number) {
                    return Ok(region);
                }
                if work(fixed) {
                    break;
                }
                hint::spin_loop();
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
                if fixed.stop.is_raised() {
                    return Err(StreamError::TooLate { block: fixed.block(number).id });
                }
                inner.sleepers += 1;
                let wait = shared.changed.wait_timeout(inner, STOP_INTERVAL);
                inner = wait.unwrap_or_else(PoisonError::into_inner).0;
                inner.sleepers -= 1;
            }
        }
    }

    /// Claims a raw block that has arrived and that no thread is packing: a requested block if
    /// there is one, otherwise a predicted block.
    pub fn claim_arrived(&self) -> Option<ArrivedBlock<'_>> {
        self.claim(None)
    }

    /// Claims the requested block `number` if possible, otherwise another requested block. If
    /// `number` is `None`, claims any arrived block.
    fn claim(&self, number: Option<u32>) -> Option<ArrivedBlock<'_>> {
        let fixed = &self.shared.fixed;
        let mut inner = self.shared.lock();
        let number = inner.claim(fixed, number)?;
        let (slot, staging) = inner.places(number)?;
        let (raw, slot) = (fixed.raw(number, staging), fixed.slot(number, slot)?);
        Some(ArrivedBlock { shared: &self.shared, number, raw, slot, finished: false })
    }

    /// Removes all pins of a group's blocks.
    pub fn release(&self, group: u32) {
        let mut inner = self.shared.lock();
        inner.release(&self.shared.fixed, group);
        self.shared.settle(inner);
    }

    /// Removes one pin of a block. It must be called once for each request of the block.
    pub fn release_block(&self, block: BlockId) {
        let Ok(number) = self.shared.fixed.number(block) else { return };
        let mut inner = self.shared.lock();
        inner.release_block(&self.shared.fixed, number);
        self.shared.settle(inner);
    }

    /// Evicts a block that is ready and not pinned, for example because it is damaged. The next
    /// request reads it again.
    pub fn discard(&self, block: BlockId) {
        let Ok(number) = self.shared.fixed.number(block) else { return };
        let mut inner = self.shared.lock();
        inner.discard(&self.shared.fixed, number);
        self.shared.settle(inner);
    }

    /// Returns the mean time that threads waited for a block of a group that was requested but not
    /// ready. For each block, the waiting times of all threads are added.
    pub fn miss_time(&self, group: u32) -> Duration {
        let Some(stalled) = self.shared.fixed.stalled.get(group as usize) else { return Duration::ZERO };
        let waited_for = self.shared.lock().waited_for(group);
        Duration::from_nanos(stalled.load(Ordering::Relaxed).checked_div(waited_for).unwrap_or(0))
    }

    /// Checks that the files are still those that were opened, and that they have not changed.
    ///
    /// # Errors
    /// [`StreamError::Changed`] for the first file that was replaced or changed.
    pub fn check_unchanged(&self) -> Result<(), StreamError> {
        self.shared.fixed.queue.files().check_unchanged()
    }

    /// Compares the files with `before`, the identities of the same files when they were opened
    /// earlier. `None` matches any file.
    ///
    /// # Errors
    /// [`StreamError::Changed`] for the first file that differs.
    pub fn check_same(&self, before: &[Option<Identity>]) -> Result<(), StreamError> {
        self.shared.fixed.queue.files().check_same(before)
    }

    /// Returns a description of the backend, and of the features that the system refused.
    pub fn report(&self) -> Report {
        self.drive.report()
    }

    /// Returns the number of bytes of all slots and staging memory.
    pub fn bytes(&self) -> u64 {
        self.shared.fixed.queue.reservation().region().bytes()
    }

    /// Returns the memory of all slots and staging buffers.
    pub fn memory(&self) -> Region {
        self.shared.fixed.queue.reservation().region()
    }

    /// Returns the drive's counters since the start.
    pub fn drive(&self) -> Counters {
        self.shared.fixed.queue.counters()
    }

    /// Returns the number of bytes read since the start.
    pub fn bytes_read(&self) -> u64 {
        self.drive().bytes()
    }

    /// Returns all statistics since the start.
    pub fn stats(&self) -> Stats {
        let fixed = &self.shared.fixed;
        let inner = self.shared.lock();
        let mut groups = inner.group_stats();
        for (group, stalled) in groups.iter_mut().zip(&fixed.stalled) {
            group.stall = Duration::from_nanos(stalled.load(Ordering::Relaxed));
        }
        let classes = ClassUse::from_slots(&inner.slots);
        drop(inner);
        Stats { groups, classes, drive: fixed.queue.counters() }
    }
}
