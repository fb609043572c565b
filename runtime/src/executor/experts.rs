//! Streamed experts: the blocks of a plan's expert weights, and the experts that a stage computes.
//!
//! A block holds one expert of a group: its matrices of all weights of the group, in the layout of
//! the kernels. If the plan file has blocks, each block is read into a slot of the cache in one
//! piece. Matrices that a model file stores in another format are read into staging memory, and
//! packed from there into the slot.
//!
//! ```text
//! barrier      request experts 3 of bucket 3        submit reads of all that are not in memory
//! gate, up     experts that are in memory
//! down         the same experts
//! barrier      if others were requested: back to `gate, up` with these, waiting for each
//! barrier      if slots were too few: release these, request the next ones, and back to `gate, up`
//! barrier      release experts 3
//! ```
//!
//! Invariant: the result of a work item does not depend on when its block arrived. So runs with
//! streamed experts have the same bits as runs with all experts in memory.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard};
use std::time::Instant;

use ixc_ir::format::Format;
use ixc_ir::plan::PlanWeight;

use crate::error::execute::ExecuteError;
use crate::expert_prefetch::{Prefetcher, by_rank};
use crate::expert_sort::ExpertRows;
use crate::pool::{Pool, PoolError};
use crate::program::Program;
use crate::progress::{Activity, ProgressCounter};
use crate::storage::blocks::{BLOCK_HEADER, BlockError, BlockShape};
use crate::storage::memory::Region;
use crate::storage::pack::Job;
use crate::streaming::affinity;
use crate::streaming::files::PAGE;
use crate::streaming::predict;
use crate::streaming::store::{Config, ExpertCache, Pack, State};
use crate::streaming::{Block, BlockEncoding, BlockId, Extent, StreamError};
use crate::trace::{Recorder, Work};

/// Alignment of matrices in a packed block: a cache line, so that each vector load reads only one
/// line.
const LINE: u64 = 64;

/// The formats and length of one matrix of an expert.
#[derive(Clone, Copy, Debug)]
struct ExpertMatrix {
    /// Format in which kernels read the matrix.
    format: Format,
    /// Format in which the file stores the matrix.
    stored: Format,
    columns: u64,
    /// Length in the kernels' format, in bytes.
    bytes: u64,
}

/// Layout of the blocks of one expert group.
#[derive(Clone, Debug)]
struct Blocks {
    parts: Vec<ExpertMatrix>,
    /// Offset of each matrix in its block, indexed by `[expert][matrix]`.
    offsets: Vec<u64>,
    /// The layout of blocks in the plan file; `None` if it has no blocks.
    shape: Option<BlockShape>,
}

impl Blocks {
    fn offset(&self, expert: u32, part: usize) -> Option<u64> {
        self.offsets.get((expert as usize).checked_mul(self.parts.len())?.checked_add(part)?).copied()
    }
}

/// Packer of blocks whose matrices are read from a model file.
struct Packer {
    groups: Arc<[Blocks]>,
    trace: Option<Arc<Recorder>>,
}

impl Pack for Packer {
    unsafe fn pack(&self, block: BlockId, raw: &[Region], slot: Region) -> Result<(), String> {
        let begun = self.trace.is_some().then(Instant::now);
        let blocks = self.groups.get(block.group as usize).ok_or("no such group")?;
        for (i, (part, &from)) in blocks.parts.iter().zip(raw).enumerate() {
            let to = blocks.offset(block.expert, i).and_then(|offset| slot.part(offset, part.bytes));
            let to = to.ok_or("a matrix outside its slot")?;
            if part.format == part.stored {
                if from.bytes() != to.bytes() {
                    return Err(format!("a matrix of {} bytes in {}", from.bytes(), to.bytes()));
                }
                // SAFETY: both regions have the same length, and the caller has exclusive access to
                // them.
                unsafe { to.base().copy_from_nonoverlapping(from.base(), to.bytes() as usize) };
                continue;
            }
            let job =
                Job::new(part.stored, part.format, part.columns, from, to).ok_or("a matrix of no whole strips")?;
            // SAFETY: the caller has exclusive access to both regions.
            unsafe { job.run(&mut Vec::new()) };
        }
        if let (Some(trace), Some(begun)) = (&self.trace, begun) {
            trace.work(begun, Work::Pack(block));
        }
        Ok(())
    }
}

/// The experts of a window, which lasts from the request of a group's experts to their release.
#[derive(Debug, Default)]
pub(crate) struct Window {
    group: u32,
    /// Experts that stages compute now, with their rows, in the order of computation.
    pub(crate) rows: Vec<ExpertRows>,
    /// Experts that are requested, but not all in memory yet.
    coming: Vec<ExpertRows>,
    /// Experts of the window that are not requested yet.
    rest: Vec<ExpertRows>,
    /// Whether stages compute the first experts of this window.
    pub(crate) first: bool,
}

/// All streamed experts of a plan, and the state of their reading.
pub(crate) struct Experts {
    store: ExpertCache,
    groups: Arc<[Blocks]>,
    trace: Option<Arc<Recorder>>,
    /// For each streamed weight, its group and its index among the matrices of a block.
    group_of_weight: Vec<Option<(u32, usize)>>,
    window: RwLock<Window>,
    checks: Option<Checks>,
    prefetcher: Mutex<Prefetcher>,
}

/// The verification of blocks in the plan file. Each block is compared with its checksum when it is
/// first read.
struct Checks {
    path: PathBuf,
    /// Whether each block was checked, indexed by `[group][expert]`. The lock prevents two threads
    /// from checking one block at the same time.
    done: Vec<Vec<(AtomicBool, Mutex<()>)>>,
    /// Damaged blocks. They are read again when they are needed the next time.
    damaged: Mutex<Vec<BlockId>>,
}

impl Checks {
    fn new(path: PathBuf, groups: &[Blocks]) -> Checks {
        let done = groups.iter().map(|blocks| (0..blocks.experts()).map(|_| Default::default()).collect());
        Checks { path, done: done.collect(), damaged: Mutex::default() }
    }

    /// Checks a block, unless it was already checked.
    ///
    /// # Safety
    /// The region must be readable, and must not be written meanwhile.
    unsafe fn first(&self, shape: &BlockShape, block: BlockId, region: Region) -> Result<(), BlockError> {
        let done = self.done.get(block.group as usize).and_then(|group| group.get(block.expert as usize));
        let Some((done, lock)) = done.filter(|(done, _)| !done.load(Ordering::Acquire)) else { return Ok(()) };
        let _lock = lock.lock().unwrap_or_else(PoisonError::into_inner);
        if !done.load(Ordering::Acquire) {
            // SAFETY: the caller meets the conditions under `# Safety`.
            unsafe { shape.check_block(&self.path, block, region) }
                .inspect_err(|_| self.damaged.lock().unwrap_or_else(PoisonError::into_inner).push(block))?;
            done.store(true, Ordering::Release);
        }
        Ok(())
    }
}

impl std::fmt::Debug for Experts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Experts").field("groups", &self.groups.len()).field("bytes", &self.store.bytes()).finish()
    }
}

/// A function that returns the file number, and the offset in that file, of a byte of a weight.
type PlaceOf<'a> = dyn Fn(&PlanWeight, u64) -> Option<(u32, u64)> + 'a;

/// The blocks of a plan's experts, from which an expert cache is made.
#[derive(Debug)]
pub(crate) struct Layout {
    groups: Vec<Blocks>,
    group_of_weight: Vec<Option<(u32, usize)>>,
    pub(crate) blocks: Vec<Block>,
    /// Maximum number of experts of a group that one token needs.
    pub(crate) top_k: u32,
    raw: bool,
}

impl Layout {
    /// Computes the block layout of a checked plan's expert groups. `place` returns the file and
    /// offset of a byte of a weight. Returns `None` if a number overflows, which cannot happen for
    /// a plan whose files exist.
    pub(crate) fn new(program: &Program, weights: &[PlanWeight], place: &PlaceOf<'_>) -> Option<Layout> {
        let mut layout = Layout {
            groups: Vec::new(),
            group_of_weight: vec![None; weights.len()],
            blocks: Vec::new(),
            top_k: (0u32..).zip(&program.groups).map(|(number, _)| program.experts_of_token(number)).max()?,
            raw: false,
        };
        for (number, group) in (0u32..).zip(&program.groups) {
            let experts = u64::from(group.experts);
            let (mut parts, mut places) = (Vec::new(), Vec::new());
            let shape = group.blocks.as_ref().map(|place| place.shape.clone());
            for (i, &weight) in group.weights.iter().enumerate() {
                let facts = weights.get(weight as usize)?;
                layout.group_of_weight[weight as usize] = Some((number, i));
                let bytes = facts.bytes_in(facts.format)? / experts;
                let columns = *facts.shape.last()?;
                parts.push(ExpertMatrix { format: facts.format, stored: facts.stored, columns, bytes });
                places.push((facts, facts.bytes / experts));
            }
            let raw = parts.iter().any(|part| part.format != part.stored);
            layout.raw |= raw;
            let mut offsets = Vec::new();
            if let (Some(shape), Some((file, begin))) =
                (&shape, places.first().and_then(|(weight, _)| place(weight, 0)))
            {
                let first = begin.checked_sub(BLOCK_HEADER)?;
                for expert in 0..group.experts {
                    let offset = first.checked_add(shape.stride().checked_mul(expert.into())?)?;
                    offsets.extend(shape.parts.iter().map(|part| part.offset));
                    let extents = vec![Extent { file, offset, bytes: shape.bytes(), at: 0 }];
                    layout.blocks.push(Block {
                        id: BlockId { group: number, expert },
                        extents,
                        form: BlockEncoding::Packed,
                    });
                }
                layout.groups.push(Blocks { parts, offsets, shape: Some(shape.clone()) });
                continue;
            }
            for expert in 0..group.experts {
                let (mut at, mut extents) = (0u64, Vec::new());
                for (part, &(weight, stored)) in parts.iter().zip(&places) {
                    let (file, offset) = place(weight, stored.checked_mul(u64::from(expert))?)?;
                    // Whole pages are read. So the first byte of a matrix has the same offset in a
                    // page of memory as in a page of the file.
                    at = match raw {
                        true => at.checked_next_multiple_of(LINE)?,
                        false => at.checked_next_multiple_of(PAGE)?.checked_add(offset % PAGE)?,
                    };
                    offsets.push(at);
                    extents.push(Extent { file, offset, bytes: stored, at: if raw { 0 } else { at } });
                    at = at.checked_add(part.bytes)?;
                }
                let form = if raw { BlockEncoding::Raw { bytes: at } } else { BlockEncoding::Packed };
                layout.blocks.push(Block { id: BlockId { group: number, expert }, extents, form });
            }
            layout.groups.push(Blocks { parts, offsets, shape });
        }
        Some(layout)
    }

    /// Returns the minimum memory for streaming, in bytes.
    pub(crate) fn min_bytes(&self) -> u64 {
        ExpertCache::minimum_bytes(&self.blocks, self.top_k)
    }
}

impl Experts {
    /// Opens the files, and starts the threads that read experts. `checked` is the path of the plan
    /// file if its blocks are to be compared with their checksums.
    ///
    /// # Errors
    /// See [`ExpertCache::new`].
    pub(crate) fn new(
        layout: Layout,
        files: &[PathBuf],
        checked: Option<PathBuf>,
        config: &Config,
        prefetcher: Prefetcher,
    ) -> Result<Experts, StreamError> {
        let groups: Arc<[Blocks]> = layout.groups.into();
        let trace = config.trace.clone();
        let packer = Packer { groups: Arc::clone(&groups), trace: trace.clone() };
        let packer = layout.raw.then(|| Box::new(packer) as Box<dyn Pack>);
        let mut config = Config { top_k: layout.top_k, ..config.clone() };
        let first = layout.blocks.first().and_then(|block| files.get(block.extents.first()?.file as usize));
        config.drive.cpus = config.drive.cpus.or_else(|| affinity::processors_near_file(first?));
        let store = ExpertCache::new(&config, files, layout.blocks, packer)?;
        let checks = checked.map(|path| Checks::new(path, &groups));
        let prefetcher = Mutex::new(prefetcher);
        Ok(Experts {
            store,
            groups,
            trace,
            group_of_weight: layout.group_of_weight,
            window: RwLock::default(),
            checks,
            prefetcher,
        })
    }

    /// Returns the expert cache.
    pub(crate) fn store(&self) -> &ExpertCache {
        &self.store
    }

    fn prefetcher(&self) -> MutexGuard<'_, Prefetcher> {
        self.prefetcher.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the scores of the prediction strategies.
    pub(crate) fn predictions(&self) -> predict::Report {
        self.prefetcher().report()
    }

    /// Begins a step of `tokens` tokens, for the predictions.
    pub(crate) fn begin_step(&self, tokens: u32) {
        self.prefetcher().begin_step(&self.store, tokens);
    }

    /// Ends a successful step, for the predictions.
    pub(crate) fn end_step(&self) {
        self.prefetcher().end_step(&self.store);
    }

    /// Returns the window with the experts that stages compute now.
    pub(crate) fn window(&self) -> RwLockReadGuard<'_, Window> {
        self.window.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins window `number`: requests the experts of `rows`, or as many of them as the cache has
    /// slots for. Only one thread may call this, [`Experts::next`] or [`Experts::end`], while no
    /// other thread computes experts.
    pub(crate) fn begin(&self, number: u32, group: u32, rows: &[ExpertRows]) -> Result<(), StreamError> {
        let mut window = self.window.write().unwrap_or_else(PoisonError::into_inner);
        *window = Window { group, rest: rows.to_vec(), first: true, ..Window::default() };
        self.fill(&mut window)?;
        let chosen: Vec<u32> = rows.iter().map(|rows| rows.expert).collect();
        self.prefetcher().on_window(&self.store, group, number, &chosen);
        // Long prompts need nearly all experts of each layer, so the next layer's experts are read
        // ahead. If experts are divided among machines, this one may have only some of them. So
        // only the range from the first to the last chosen expert is read.
        let (next, experts) = (group + 1, |group: u32| self.groups.get(group as usize).map(Blocks::experts));
        if !self.prefetcher().is_token()
            && experts(group).is_some_and(|all| 2 * rows.len() >= all as usize)
            && let (Some(all), Some(first), Some(last)) = (experts(next), chosen.iter().min(), chosen.iter().max())
        {
            self.store.predict(next, &(*first..all.min(last.saturating_add(1))).collect::<Vec<_>>());
        }
        Ok(())
    }

    /// Releases the experts that were computed, and continues with the next experts of the window.
    /// Returns whether there are any.
    pub(crate) fn next(&self) -> Result<bool, StreamError> {
        let mut window = self.window.write().unwrap_or_else(PoisonError::into_inner);
        if window.coming.is_empty() && window.rest.is_empty() {
            return Ok(false);
        }
        let coming = std::mem::take(&mut window.coming);
        for rows in std::mem::replace(&mut window.rows, coming) {
            self.store.release_block(BlockId { group: window.group, expert: rows.expert });
        }
        window.first = false;
        if window.rows.is_empty() {
            self.fill(&mut window)?;
        }
        Ok(true)
    }

    /// Requests the next experts of the window. Those that are in memory are computed first, while
    /// the others are read.
    fn fill(&self, window: &mut Window) -> Result<(), StreamError> {
        let experts: Vec<u32> = window.rest.iter().map(|rows| rows.expert).collect();
        let possible = self.store.window(window.group, &experts).clamp(1, experts.len().max(1));
        // If not all experts fit into the cache, requests half of those that fit, so that the other
        // half can be read meanwhile.
        let count = if possible < experts.len() { possible.div_ceil(2) } else { experts.len() };
        let request = self.store.request(window.group, &experts[..count])?;
        if count < experts.len() {
            self.store.predict(window.group, &experts[count..possible.max(count)]);
        }
        let taken: Vec<ExpertRows> = window.rest.drain(..count).collect();
        let is_there = |(_, state): &(ExpertRows, State)| matches!(state, State::Ready(_));
        let (there, coming): (Vec<_>, Vec<_>) = taken.into_iter().zip(request.states).partition(is_there);
        let [there, coming] = [there, coming].map(|of| of.into_iter().map(|(rows, _)| rows).collect::<Vec<_>>());
        (window.rows, window.coming) = if there.is_empty() { (coming, there) } else { (there, coming) };
        Ok(())
    }

    /// Predicts experts of a group with the result of the plan's early router. `ids` has `count`
    /// ids for each token, likeliest first.
    pub(crate) fn predict(&self, group: u32, count: u32, ids: &[u32]) {
        self.prefetcher().on_early_router(&self.store, group, count, ids);
    }

    /// Announces the experts that window `number` will request. They are read after all blocks that
    /// are needed sooner. `ids` has `count` ids for each token.
    pub(crate) fn announce(&self, number: u32, group: u32, count: u32, ids: &[u32]) {
        let experts = by_rank(ids, count, self.groups.get(group as usize).map_or(0, Blocks::experts));
        self.store.announce(group, &experts);
        self.prefetcher().on_window(&self.store, group, number, &experts);
    }

    /// Ends a group's window and releases its experts.
    pub(crate) fn end(&self, group: u32) {
        let mut window = self.window.write().unwrap_or_else(PoisonError::into_inner);
        if window.group == group {
            window.rows.clear();
            window.coming.clear();
        }
        drop(window);
        self.store.release(group);
    }

    /// Releases all experts after a failed pass.
    pub(crate) fn abandon(&self) {
        for group in 0..self.groups.len() as u32 {
            self.end(group);
            self.store.refute(group);
        }
        self.prefetcher().forget();
        self.discard_damaged();
    }

    /// Removes damaged blocks from the cache. All threads have finished the pass, so no thread
    /// reads them.
    fn discard_damaged(&self) {
        if let Some(checks) = &self.checks {
            for block in checks.damaged.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
                self.store.discard(block);
            }
        }
    }

    /// Reads the blocks of pinned experts, with all threads. An unreadable or damaged block is no
    /// error here: the step that needs it fails.
    ///
    /// # Errors
    /// Fails if a thread panics.
    pub(crate) fn read_kept(&self, pool: &mut Pool, progress: Option<&ProgressCounter>) -> Result<(), PoolError> {
        let kept = self.store.read_kept();
        if kept.is_empty() {
            return Ok(());
        }
        let bytes = |block: &BlockId| {
            let parts = self.groups.get(block.group as usize).into_iter().flat_map(|blocks| &blocks.parts);
            parts.map(|part| part.bytes).sum::<u64>()
        };
        let total = kept.iter().map(bytes).sum();
        progress.iter().for_each(|progress| progress.begin(Activity::Experts, total));
        let (threads, begin) = (pool.threads(), Instant::now());
        let read = pool.run(&|thread| {
            self.trace.iter().for_each(|trace| trace.enter(thread));
            for block in kept.iter().skip(thread).step_by(threads) {
                if let Err(error) = self.wait(block.group, block.expert) {
                    tracing::warn!(%block, %error, "cannot read a pinned expert");
                }
                progress.iter().for_each(|progress| progress.add(bytes(block)));
            }
        });
        (0..self.groups.len() as u32).for_each(|group| self.store.release(group));
        self.discard_damaged();
        tracing::info!(experts = kept.len(), bytes = total, elapsed = ?begin.elapsed(), "pinned experts have been read");
        read
    }

    /// Waits until the block of a requested expert is in memory, and returns its region.
    pub(crate) fn wait(&self, group: u32, expert: u32) -> Result<Region, ExecuteError> {
        let block = BlockId { group, expert };
        let region = match (&self.trace, self.store.ready(block)) {
            (Some(trace), None) => {
                let begun = Instant::now();
                let region = self.store.wait(block);
                trace.work(begun, Work::Wait(block));
                region?
            }
            _ => self.store.wait(block)?,
        };
        let shape = self.groups.get(group as usize).and_then(|blocks| blocks.shape.as_ref());
        if let (Some(checks), Some(shape)) = (&self.checks, shape) {
            // SAFETY: the block was requested, and stays in its slot until it is released. No
            // thread writes it, because kernels only read blocks.
            unsafe { checks.first(shape, block, region) }?;
        }
        Ok(region)
    }

    /// Packs blocks that have arrived and that no thread waits for. A thread without other work
    /// calls this, to free staging memory for the next reads.
    pub(crate) fn pack_arrived(&self) {
        while let Some(arrived) = self.store.claim_arrived() {
            arrived.pack(&Packer { groups: Arc::clone(&self.groups), trace: self.trace.clone() });
        }
    }

    /// Returns the offset and length of a weight's matrix in the block of an expert. Returns `None`
    /// if the weight is not streamed.
    pub(crate) fn place(&self, weight: u32, expert: u32) -> Option<(u64, u64)> {
        let (group, part) = (*self.group_of_weight.get(weight as usize)?)?;
        let blocks = self.groups.get(group as usize)?;
        Some((blocks.offset(expert, part)?, blocks.parts.get(part)?.bytes))
    }
}

impl Blocks {
    fn experts(&self) -> u32 {
        (self.offsets.len() / self.parts.len().max(1)) as u32
    }
}
