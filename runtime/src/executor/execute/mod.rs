//! One pass: all threads together execute the stages of a plan for one step.
//!
//! Every thread goes through the list of stages. The work items of a stage (task x rows x columns)
//! are numbered. Each thread computes its own range of numbers, and then takes items from the
//! ranges of other threads (`shares.rs`). All threads meet at a barrier after each stage. The last
//! thread to arrive sorts the routings that the next stage needs. It also runs stages with too few
//! rows to share (`barrier.rs`).
//!
//! Items are ordered by expert, then by column, by band of the column, and by chunk of rows.
//! Neighbouring columns are neighbouring weight rows, so a thread reads weights sequentially. With
//! many rows, all chunks use one tile of the weight while it is in the cache. If a kernel uses tile
//! products, and a chunk of rows is larger than a column, all columns use one chunk instead
//! (`items.rs`, `rows_are_larger`).
//!
//! Invariant: before a kernel runs, its dims are checked against its ranges, and every slice
//! against its memory. The limit of every index buffer is checked against the values that the
//! runtime wrote there. If a check fails, the pass returns an [`ExecuteError`]. After a failure, a
//! panic, or the end of the time limit ([`crate::watchdog`]), threads still meet at every barrier,
//! without work. So no thread hangs.

mod backend;
mod barrier;
mod buffers;
mod exchange;
mod gather;
mod halves;
mod item;
mod items;
mod parts;
mod shares;

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant};

use ixc_ir::plan::{RowAxis, RowCount, Source};

use crate::executor::sequences::{Piece, Sequences};
use crate::expert_sort::{Bucket, ExpertRows};
use crate::experts::Experts;
use crate::page_cache_hints::Advice;
use crate::pool::{Barrier, Pool, panic_message};
use crate::program::{Program, Stage};
use crate::stats::{self, Clock};
use crate::storage::memory::{Inputs, Mapped, Memory, Region, Rope};
use crate::storage::pack::Queue;
use crate::storage::pages::NamedRegions;
use crate::storage::weights::{self, WeightPart, Weights};
use crate::trace::{Recorder, Work};
use crate::watchdog::{RunningStep, StopFlag, Watchdog};

pub use crate::error::execute::{ExecuteError, ItemError, Problem};
pub(crate) use backend::Backend;
pub(crate) use exchange::{FLOAT_BYTES, RankLink, piece as sum_piece};
use item::Item;
pub(crate) use parts::PartResults;
use shares::Shares;

/// The memory that an engine uses in steps.
#[derive(Debug)]
pub(crate) struct EngineMemory {
    /// The arena: memory for activations.
    pub arena: Memory,
    /// The mapped model files and the mapped plan file, which contain weights.
    pub files: Vec<Mapped>,
    /// Weights, mapped or packed, indexed by their number in the plan.
    pub weights: Weights,
    /// The streamed experts, if experts are streamed.
    pub experts: Option<Experts>,
    /// Hints for the system's page cache, if experts stay in mapped files.
    pub advice: Option<Advice>,
    /// The recorder of events, if a trace is recorded.
    pub trace: Option<Arc<Recorder>>,
    /// Tables of rotary embeddings, indexed by their number in the plan.
    pub ropes: Vec<Rope>,
    /// The sequences, with their states.
    pub sequences: Sequences,
    /// Number of positions for which states have room.
    pub capacity: u32,
    /// Memory for the partial results of items whose positions are divided.
    pub parts: PartResults,
    /// Inputs of the current step, such as token ids.
    pub inputs: Inputs,
    /// Scratch memory of each thread.
    pub scratch: Vec<Memory>,
    /// Memory of each thread for copies of chosen cache slots.
    pub chosen: Vec<Memory>,
    /// For each routing, the rows of the current step sorted by expert.
    pub buckets: Vec<RwLock<Bucket>>,
    /// Connection to the other ranks, if the plan is that of one rank of several.
    pub ranks: Option<RankLink>,
    /// Working memory for sorting a routing.
    pub sorting: Mutex<Vec<u32>>,
}

impl EngineMemory {
    /// Returns the memory that lies on the NUMA nodes of an engine's home, named by its contents.
    pub(crate) fn node_regions(&self) -> Vec<NamedRegions> {
        let list = |what, regions: Vec<Region>| NamedRegions { what, regions };
        let experts = self.experts.as_ref().map(|experts| experts.store().memory());
        let each = self.scratch.iter().chain(&self.chosen).map(Memory::region);
        vec![
            list("weights", vec![self.weights.packed_region()]),
            list("streamed experts", experts.into_iter().collect()),
            list("states", self.sequences.iter().map(|sequence| sequence.states.memory()).collect()),
            list("activations", std::iter::once(self.arena.region()).chain(each).collect()),
        ]
    }
}

/// The number of rows of a step on each axis.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Counts {
    /// Number of tokens.
    pub tokens: u32,
    /// Number of rows with requested outputs.
    pub outputs: u32,
}

impl Counts {
    /// Sums the rows of all pieces of a step.
    pub(crate) fn of_pieces(pieces: &[Piece]) -> Counts {
        let sum = |of: fn(&Piece) -> u32| pieces.iter().map(of).fold(0, u32::saturating_add);
        Counts { tokens: sum(|piece| piece.rows), outputs: sum(|piece| piece.outputs) }
    }

    fn get(&self, rows: RowCount) -> u64 {
        match rows {
            RowCount::Tokens => u64::from(self.tokens),
            RowCount::Outputs => u64::from(self.outputs),
            RowCount::Routed { top_k } => u64::from(self.tokens) * u64::from(top_k),
        }
    }
}

/// A pass over a range of the plan's stages.
struct Pass<'a> {
    program: &'a Program,
    backend: &'a Backend,
    store: &'a EngineMemory,
    counts: Counts,
    /// Range of the stages to run.
    stages: Range<usize>,
    /// The pieces (rows of one sequence each) of the step, in order of their rows.
    pieces: &'a [Piece],
    /// Whether the results of each piece must have the same bits as in a step with only that piece,
    /// at the expense of speed.
    exact: bool,
    clocks: &'a [Mutex<Clock>],
    barrier: Barrier,
    shares: Shares,
    /// The rule that decides which weights are packed before a stage. Other weights are packed by
    /// the items that read them.
    step: weights::Step,
    /// Counter of strips that threads have taken, while weights are packed before a stage.
    next_strip: AtomicU64,
    /// Time when the last thread arrived at the current barrier, in nanoseconds since `begun`. It
    /// is only set if statistics are collected.
    last_came: AtomicU64,
    /// Time when the last thread released the other threads, in nanoseconds since `begun`.
    let_go: AtomicU64,
    begun: Instant,
    /// The stage that follows the current barrier; written only at barriers.
    after: AtomicUsize,
    /// Sum over all threads of the time that they waited at barriers after they stopped spinning,
    /// in nanoseconds.
    late: AtomicU64,
    failed: AtomicBool,
    /// Flag that is raised at the deadline of the step.
    stop: StopFlag,
    failure: Mutex<Option<ExecuteError>>,
}

/// Parameters of a pass.
pub(crate) struct PassParams<'a> {
    /// The pieces (rows of one sequence each) of the step, in order of their rows.
    pub pieces: &'a [Piece],
    /// Whether the results of each piece must have the same bits as in a step with only that piece,
    /// at the expense of speed.
    pub exact: bool,
    /// Range of the stages to run: all stages, or those of one layer (see [`Program::layers`]).
    pub stages: Range<usize>,
    /// Number of threads to use. These are the first threads of the pool.
    pub threads: usize,
    /// One clock for each thread; empty if no statistics are collected.
    pub clocks: &'a [Mutex<Clock>],
    /// The watchdog that ends the pass at its deadline; `None` without a time limit.
    pub watchdog: Option<&'a Watchdog>,
}

/// Runs a range of stages with the first threads of the pool. Returns the sum over all threads of
/// the time that they waited for other threads after they stopped spinning.
///
/// The inputs of `store` must be those of `pieces`. The pieces are ordered as in
/// [`crate::executor::sequences`], their sequences exist, and `store` has memory for the partial
/// results of that many pieces. Every token id must be below the vocabulary, every output row below
/// the number of tokens, and every position inside the cache. The exclusive borrow of `store`
/// ensures that no other pass uses it.
///
/// # Errors
/// See [`ExecuteError`].
pub(crate) fn run(
    program: &Program,
    backend: &Backend,
    store: &mut EngineMemory,
    pool: &mut Pool,
    params: PassParams<'_>,
) -> Result<Duration, ExecuteError> {
    let PassParams { pieces, exact, stages, threads, clocks, watchdog } = params;
    let counts = Counts::of_pieces(pieces);
    let threads = threads.clamp(1, pool.threads());
    if let Some(experts) = &store.experts {
        experts.store().check_unchanged()?;
        experts.begin_step(counts.tokens);
    }
    let running = watchdog.map(Watchdog::begin_step);
    store.parts.reset();
    // The longest piece decides: a step of many sequences with one token each is not prefill.
    let longest = pieces.iter().map(|piece| piece.rows).max().unwrap_or(0);
    let step = store.weights.step(longest, &store.files);
    let pass = Pass {
        program,
        backend,
        store,
        counts,
        stages,
        pieces,
        exact,
        clocks,
        barrier: Barrier::new(threads),
        shares: Shares::new(threads),
        step,
        next_strip: AtomicU64::new(0),
        last_came: AtomicU64::new(0),
        let_go: AtomicU64::new(0),
        begun: Instant::now(),
        after: AtomicUsize::new(0),
        late: AtomicU64::new(0),
        failed: AtomicBool::new(false),
        stop: watchdog.map(Watchdog::flag).unwrap_or_default(),
        failure: Mutex::new(None),
    };
    let result = pool.run_with(threads, &|thread| pass.walk(thread)).map_err(ExecuteError::from);
    stats::end(clocks.iter().take(threads), pass.stages.end.saturating_sub(1));
    let failure = pass.failure.into_inner().unwrap_or_else(PoisonError::into_inner).map_or(Ok(()), Err);
    // If a file changed during the pass, some bytes may come from before the change and others from
    // after it. Blocks of a model file have no checksum, so only this check detects the change.
    let unchanged = || -> Result<(), ExecuteError> {
        store.experts.as_ref().map_or(Ok(()), |experts| experts.store().check_unchanged())?;
        Ok(store.files.iter().try_for_each(Mapped::check_unchanged)?)
    };
    let exceeded = running.as_ref().and_then(RunningStep::exceeded_limit);
    let in_time = || exceeded.map_or(Ok(()), |limit| Err(ExecuteError::Deadline { limit }));
    // The raised flag may have interrupted a thread's wait and so caused another error. The
    // deadline is therefore reported first.
    let result = in_time().and(result).and(failure).and_then(|()| unchanged());
    match (&result, &store.experts) {
        (Ok(()), Some(experts)) => experts.end_step(),
        (Err(_), Some(experts)) => experts.abandon(),
        (_, None) => {}
    }
    let late = Duration::from_nanos(pass.late.into_inner());
    result.map(|()| late)
}

impl Pass<'_> {
    /// Returns the current time if `wanted`, or if a trace is recorded.
    fn now(&self, wanted: bool) -> Option<Instant> {
        (wanted || self.store.trace.is_some()).then(Instant::now)
    }

    /// Records the work of this thread since `begin` in the trace.
    fn trace(&self, begin: Option<Instant>, work: Work) {
        if let (Some(trace), Some(begin)) = (&self.store.trace, begin) {
            trace.work(begin, work);
        }
    }

    /// Returns whether the pass has failed, or has exceeded its time limit.
    fn is_over(&self) -> bool {
        self.failed.load(Ordering::Relaxed) || self.stop.is_raised()
    }

    /// Calls `run`, unless the pass has failed or exceeded its time limit. Stores the first failure
    /// or panic.
    fn run_guarded(&self, run: impl FnOnce() -> Result<(), ExecuteError>) {
        if self.is_over() {
            return;
        }
        let error = match catch_unwind(AssertUnwindSafe(run)) {
            Ok(Ok(())) => return,
            Ok(Err(error)) => error,
            Err(payload) => ExecuteError::Panic { message: panic_message(&*payload) },
        };
        // The failure ends the group of ranks, because other ranks would wait for this one.
        self.store.ranks.iter().for_each(|link| link.fail(&error));
        self.failure.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
        self.failed.store(true, Ordering::Relaxed);
    }

    /// Packs the weights that a stage needs and that are not packed yet. All threads take part.
    fn pack(&self, thread: usize, stage: &Stage, clock: Option<&mut Clock>) {
        // Matrices become ready only at barriers. So all threads compute the same list, and meet at
        // the same barriers.
        let missing = self.missing(stage);
        if missing.is_empty() {
            return;
        }
        let begin = Instant::now();
        self.run_guarded(|| {
            let queue = Queue::new(self.store.weights.jobs(&missing));
            let packed = |job, strip| self.store.weights.release(missing[job], strip, &self.store.files);
            // SAFETY: the sources lie in mapped files. No kernel reads matrices that are not ready.
            // Only the threads of this pass write them, and the shared counter gives each strip to
            // one thread.
            unsafe { queue.work(&self.next_strip, &mut Vec::new(), &packed) };
            Ok(())
        });
        self.barrier.wait(thread, || {
            self.next_strip.store(0, Ordering::Relaxed);
            // If the pass has failed or exceeded its time limit, some strips may not be packed.
            if !self.is_over() {
                self.store.weights.mark_ready(&missing, &self.store.files);
            }
        });
        self.trace(Some(begin), Work::PackWeights);
        let time = begin.elapsed();
        self.store.weights.add_packing(time);
        if let Some(clock) = clock {
            clock.pack(time);
        }
    }

    /// Returns the matrices that a stage needs and that must be packed before the stage.
    fn missing(&self, stage: &Stage) -> Vec<WeightPart> {
        let (weights, mut missing) = (&self.store.weights, Vec::new());
        if weights.on_demand_parts() == 0 {
            return missing;
        }
        for task in &stage.tasks {
            let mut add = |rows: ExpertRows| {
                for arg in task.args.iter().filter(|_| rows.rows > 0) {
                    let Source::Weight(weight) = arg.source else { continue };
                    let offset = arg.offset.saturating_add(u64::from(rows.expert).saturating_mul(arg.expert_stride));
                    let bytes = u64::from(task.columns).saturating_mul(arg.column_stride).max(1);
                    weights.missing(self.step, weight, offset, bytes, &mut missing);
                }
            };
            self.each_expert(stage, task.rows, &mut add);
        }
        missing.sort_unstable();
        missing.dedup();
        missing
    }

    /// Returns the expert group whose streamed blocks a task reads, if it reads streamed experts.
    fn streamed_experts(&self, stage: &Stage, axis: RowAxis) -> Option<(u32, &Experts)> {
        let (experts, window) = (self.store.experts.as_ref()?, self.program.windows.get(stage.window? as usize)?);
        (axis == RowAxis::Routed(window.bucket)).then_some((window.group, experts))
    }

    /// Calls `add` with the rows of an axis; for a routed axis, once for each expert.
    fn each_expert(&self, stage: &Stage, axis: RowAxis, add: &mut dyn FnMut(ExpertRows)) {
        if let Some((_, experts)) = self.streamed_experts(stage, axis) {
            return experts.window().rows.iter().copied().for_each(add);
        }
        // If stages run again for later streamed experts, tasks without experts are done only the
        // first time.
        if let (Some(experts), Some(_)) = (&self.store.experts, stage.window)
            && !experts.window().first
        {
            return;
        }
        match axis {
            RowAxis::Tokens => add(ExpertRows { expert: 0, first: 0, rows: self.counts.tokens }),
            RowAxis::Outputs => add(ExpertRows { expert: 0, first: 0, rows: self.counts.outputs }),
            RowAxis::Routed(bucket) => {
                let bucket = self.store.buckets[bucket.0 as usize].read().unwrap_or_else(PoisonError::into_inner);
                bucket.active().iter().copied().for_each(add);
            }
        }
    }
}
