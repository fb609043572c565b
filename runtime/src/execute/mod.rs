//! One pass over all steps, by all threads together.
//!
//! Every thread walks the list of stages. A stage's items (task x rows x columns) are numbered; threads take shares of the
//! numbers from one counter, large ones first and single items at the end, and meet at a barrier. The last one to come
//! there sorts the routings that the next stage needs.
//!
//! Order of items: experts, then columns, then chunks of rows. Neighbouring columns are neighbouring weight rows, so that a
//! share is a sequential read; with many rows, all chunks pass one tile of the weight while it is hot.
//!
//! Invariant: before a kernel runs, its dims have been checked against its ranges, every slice against its memory, and the
//! limit of every index buffer against what the runtime put there. A plan that fails that is an [`ExecuteError`]; threads
//! then still meet at every barrier, without work, so that none hangs. The same goes for a panic.

mod backend;
mod buffers;
mod error;
mod parts;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Instant;

use ixc_ir::plan::{BucketId, DimRule, RowAxis, RowCount, Source, Split, Task, Variant};

use crate::advise::Advice;
use crate::bucket::{Bucket, ExpertRows};
use crate::experts::Experts;
use crate::memory::{Cache, INDEX_BYTES, Inputs, Mapped, Memory, Region, Rope};
use crate::pack::Queue;
use crate::pool::{Barrier, Pool, panic_message};
use crate::program::{Ids, MAX_BUFFERS, MAX_DIMS, PartPlace, Program, Signature, Stage, Then};
use crate::stats::Clock;
use crate::trace::{Recorder, Work};
use crate::weights::{self, Part, Weights};

pub(crate) use backend::Backend;
use buffers::{SCRATCH, in_range};
pub use error::{ExecuteError, ItemError, Problem};
pub(crate) use parts::Parts;
use parts::Span;

/// A thread takes this part of what is left, divided by the number of threads: large shares are sequential reads, small ones
/// at the end keep threads from waiting.
const SHARES: u64 = 8;

/// All memory of an engine.
#[derive(Debug)]
pub(crate) struct Store {
    /// Activations.
    pub arena: Memory,
    /// Model files, and the plan's own: what keeps the weights mapped.
    pub files: Vec<Mapped>,
    /// Weights in the files or packed, by id.
    pub weights: Weights,
    /// Experts that are read when they are needed, where not all are in memory.
    pub experts: Option<Experts>,
    /// Experts that stay in mapped files, where the page cache is told what is needed.
    pub advice: Option<Advice>,
    /// Who is told what happens.
    pub trace: Option<Arc<Recorder>>,
    /// Rotary tables, by id.
    pub ropes: Vec<Rope>,
    /// KV cache.
    pub cache: Cache,
    /// Its capacity in positions.
    pub capacity: u32,
    /// What items that are parts leave.
    pub parts: Parts,
    /// Inputs of a step.
    pub inputs: Inputs,
    /// Scratch of each thread.
    pub scratch: Vec<Memory>,
    /// Rows of each routing, sorted.
    pub buckets: Vec<RwLock<Bucket>>,
}

/// What a step works on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Counts {
    /// Tokens.
    pub tokens: u32,
    /// Wanted outputs.
    pub outputs: u32,
    /// Position of the first token.
    pub position: u32,
}

impl Counts {
    fn of(&self, rows: RowCount) -> u64 {
        match rows {
            RowCount::Tokens => u64::from(self.tokens),
            RowCount::Outputs => u64::from(self.outputs),
            RowCount::Routed { top_k } => u64::from(self.tokens) * u64::from(top_k),
        }
    }
}

/// Items of one task and expert.
#[derive(Clone, Copy, Debug)]
struct Group {
    /// Number of the first item, and of the first after it, in the stage.
    start: u64,
    end: u64,
    task: usize,
    variant: usize,
    expert: u32,
    first_row: u64,
    rows: u64,
    chunk_rows: u64,
    chunks: u64,
    /// How the positions before an item are divided.
    span: Span,
}

/// An item.
#[derive(Clone, Copy, Debug)]
struct Item {
    row: u64,
    rows: u64,
    column: u32,
    expert: u32,
    /// The expert's block, where it is streamed.
    block: Option<Region>,
    span: Span,
}

/// One pass.
struct Pass<'a> {
    program: &'a Program,
    backend: &'a Backend,
    store: &'a Store,
    counts: Counts,
    threads: usize,
    clocks: &'a [Mutex<Clock>],
    barrier: Barrier,
    next: AtomicU64,
    /// What says which weights are packed before a stage, and not by the items that read them.
    step: weights::Step,
    /// Strips taken of the weights that are packed before a stage.
    next_strip: AtomicU64,
    /// Whether the stages of a window are run again, for other experts.
    again: AtomicBool,
    failed: AtomicBool,
    failure: Mutex<Option<ExecuteError>>,
}

/// Runs all steps. `clocks` has one clock for each thread, or none.
///
/// The inputs of `store` must be those of `counts`, with every token below the vocabulary, every output row below the tokens,
/// and every position inside the cache; `store` is borrowed exclusively for that no other pass uses it.
///
/// # Errors
/// See [`ExecuteError`].
pub(crate) fn run(
    program: &Program,
    backend: &Backend,
    store: &mut Store,
    pool: &mut Pool,
    counts: Counts,
    clocks: &[Mutex<Clock>],
) -> Result<(), ExecuteError> {
    if let Some(experts) = &store.experts {
        experts.store().check_unchanged()?;
        experts.begin_step(counts.tokens);
    }
    store.parts.reset();
    let step = store.weights.step(counts.tokens, &store.files);
    let pass = Pass {
        program,
        backend,
        store,
        counts,
        threads: pool.threads(),
        clocks,
        barrier: Barrier::new(pool.threads()),
        next: AtomicU64::new(0),
        step,
        next_strip: AtomicU64::new(0),
        again: AtomicBool::new(false),
        failed: AtomicBool::new(false),
        failure: Mutex::new(None),
    };
    let result = pool.run(&|thread| pass.walk(thread)).map_err(ExecuteError::from);
    let failure = pass.failure.into_inner().unwrap_or_else(PoisonError::into_inner).map_or(Ok(()), Err);
    // A file that was written to while it was read may have given bytes of both: nothing else tells, blocks of a model file have no checksum.
    let unchanged = || store.experts.as_ref().map_or(Ok(()), |experts| Ok(experts.store().check_unchanged()?));
    let result = result.and(failure).and_then(|()| unchanged());
    match (&result, &store.experts) {
        (Ok(()), Some(experts)) => experts.end_step(),
        (Err(_), Some(experts)) => experts.abandon(),
        (_, None) => {}
    }
    result
}

impl Pass<'_> {
    fn walk(&self, thread: usize) {
        let mut clock = self.clocks.get(thread).map(|clock| clock.lock().unwrap_or_else(PoisonError::into_inner));
        if let Some(trace) = &self.store.trace {
            trace.enter(thread);
        }
        let mut groups = Vec::new();
        let last = self.program.stages.len().saturating_sub(1);
        let mut i = 0;
        while let Some(stage) = self.program.stages.get(i) {
            self.pack(stage, clock.as_deref_mut());
            self.guarded(|| self.work(thread, stage, &mut groups, clock.as_deref_mut()));
            if let Some(experts) = &self.store.experts {
                self.guarded(|| {
                    experts.pack_arrived();
                    Ok(())
                });
            }
            if i < last {
                let begin = self.now(clock.is_some());
                let window = stage.window.and_then(|window| self.program.windows.get(window as usize));
                let window = window.filter(|window| window.last == i);
                self.barrier.wait(|| {
                    self.next.store(0, Ordering::Relaxed);
                    self.again.store(false, Ordering::Relaxed);
                    self.guarded(|| {
                        let begin = self.now(false);
                        if window.is_some() && self.go_on()? {
                            self.trace(begin, Work::Next);
                            self.again.store(true, Ordering::Relaxed);
                            return Ok(());
                        }
                        stage.then.iter().try_for_each(|then| {
                            let begin = self.now(false);
                            let result = self.then(*then);
                            self.trace(begin, work_of(*then));
                            result
                        })
                    });
                });
                self.trace(begin, Work::Barrier);
                if let (Some(clock), Some(begin)) = (clock.as_deref_mut(), begin) {
                    clock.wait(begin.elapsed());
                }
                // All threads see what the last one at the barrier stored: it changes only at the next one.
                if let Some(window) = window.filter(|_| self.again.load(Ordering::Relaxed)) {
                    i = window.first;
                    continue;
                }
            }
            i += 1;
        }
    }

    /// The time, where somebody wants to know it.
    fn now(&self, wanted: bool) -> Option<Instant> {
        (wanted || self.store.trace.is_some()).then(Instant::now)
    }

    /// Tells who records it what this thread did since then.
    fn trace(&self, begin: Option<Instant>, work: Work) {
        if let (Some(trace), Some(begin)) = (&self.store.trace, begin) {
            trace.work(begin, work);
        }
    }

    /// Whether a window has experts that were not worked on; they are asked for then.
    fn go_on(&self) -> Result<bool, ExecuteError> {
        Ok(self.store.experts.as_ref().map_or(Ok(false), Experts::next)?)
    }

    /// Does something, unless the pass has failed; notes the first failure.
    fn guarded(&self, run: impl FnOnce() -> Result<(), ExecuteError>) {
        if self.failed.load(Ordering::Relaxed) {
            return;
        }
        let error = match catch_unwind(AssertUnwindSafe(run)) {
            Ok(Ok(())) => return,
            Ok(Err(error)) => error,
            Err(payload) => ExecuteError::Panic { message: panic_message(&*payload) },
        };
        self.failure.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
        self.failed.store(true, Ordering::Relaxed);
    }

    /// Packs what a stage needs of the weights and is not yet packed, by all threads.
    fn pack(&self, stage: &Stage, clock: Option<&mut Clock>) {
        // The same on all threads, so that all of them meet: what is ready changes only where they do.
        let missing = self.missing(stage);
        if missing.is_empty() {
            return;
        }
        let begin = Instant::now();
        self.guarded(|| {
            let queue = Queue::new(self.store.weights.jobs(&missing));
            let packed = |job, strip| self.store.weights.release(missing[job], strip, &self.store.files);
            // SAFETY: the sources lie in mapped files. Parts that are not ready are read by no kernel, and written only here, by the
            // threads of this pass, which share one counter.
            unsafe { queue.work(&self.next_strip, &mut Vec::new(), &packed) };
            Ok(())
        });
        self.barrier.wait(|| {
            self.next_strip.store(0, Ordering::Relaxed);
            // A pass that failed may have left strips unpacked.
            if !self.failed.load(Ordering::Relaxed) {
                self.store.weights.mark_ready(&missing, &self.store.files);
            }
        });
        self.trace(Some(begin), Work::PackWeights);
        if let Some(clock) = clock {
            clock.wait(begin.elapsed());
        }
    }

    /// The parts of weights that a stage needs, that are not yet packed, and that are to be kept.
    fn missing(&self, stage: &Stage) -> Vec<Part> {
        let (weights, mut missing) = (&self.store.weights, Vec::new());
        if weights.unpacked_parts() == 0 {
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

    /// The group whose experts a task takes from blocks, where they are streamed.
    fn streamed(&self, stage: &Stage, axis: RowAxis) -> Option<(u32, &Experts)> {
        let (experts, window) = (self.store.experts.as_ref()?, self.program.windows.get(stage.window? as usize)?);
        (axis == RowAxis::Routed(window.bucket)).then_some((window.group, experts))
    }

    /// Rows of an axis, expert by expert.
    fn each_expert(&self, stage: &Stage, axis: RowAxis, add: &mut dyn FnMut(ExpertRows)) {
        if let Some((_, experts)) = self.streamed(stage, axis) {
            return experts.window().rows.iter().copied().for_each(add);
        }
        // In stages that are run again, what is not of experts is done the first time.
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

    /// What is done at a barrier. Runs alone.
    fn then(&self, then: Then) -> Result<(), ExecuteError> {
        match then {
            Then::Sort(bucket) => self.sort(bucket),
            Then::Request { window, group } => {
                let Some(facts) = self.program.windows.get(window as usize) else { return Ok(()) };
                let bucket = self.store.buckets[facts.bucket.0 as usize].read().unwrap_or_else(PoisonError::into_inner);
                if let Some(advice) = &self.store.advice {
                    advice.request(group, bucket.active(), &self.store.files);
                }
                match &self.store.experts {
                    Some(experts) => Ok(experts.begin(window, group, bucket.active())?),
                    None => Ok(()),
                }
            }
            Then::Announce { window, group } => {
                let (Some(experts), Some(facts)) = (&self.store.experts, self.program.windows.get(window as usize))
                else {
                    return Ok(());
                };
                let routing = &self.program.routings[facts.bucket.0 as usize];
                experts.announce(window, group, routing.top_k, &self.ids(routing.ids, routing.top_k));
                Ok(())
            }
            Then::Predict { group, ids, count } => {
                let Some(experts) = &self.store.experts else { return Ok(()) };
                experts.predict(group, count, &self.ids(ids, count));
                Ok(())
            }
            Then::Release(group) => {
                self.store.experts.iter().for_each(|experts| experts.end(group));
                Ok(())
            }
        }
    }

    /// So many ids of each token.
    fn ids(&self, ids: Ids, count: u32) -> Vec<u32> {
        let from = self.arena(ids.buffer.0 as usize);
        let words = from.bytes() / INDEX_BYTES;
        let row = |token: u64| {
            let first = token * ids.stride + u64::from(ids.first);
            first.min(words)..(first + u64::from(count)).min(words)
        };
        // SAFETY: the words lie in the arena; all other threads wait at the barrier. No alignment is assumed.
        let word = |i: u64| unsafe { from.base().cast::<u32>().add(i as usize).read_unaligned() };
        (0..u64::from(self.counts.tokens)).flat_map(row).map(word).collect()
    }

    /// Sorts a routing. Runs alone.
    fn sort(&self, id: BucketId) -> Result<(), ExecuteError> {
        let number = id.0 as usize;
        let routing = &self.program.routings[number];
        let mut bucket = self.store.buckets[number].write().unwrap_or_else(PoisonError::into_inner);
        let ids = self.ids(routing.ids, routing.top_k);
        bucket.sort(&ids, routing.top_k, routing.experts)?;
        let (tokens, slots) = self.store.inputs.routed[number];
        for (words, to) in [(bucket.tokens(), tokens), (bucket.slots(), slots)] {
            debug_assert!(words.len() as u64 * INDEX_BYTES <= to.bytes());
            // SAFETY: the inputs were made for `max_tokens` times `top_k` words, and there are no more tokens than that; all
            // other threads wait at the barrier.
            unsafe { to.base().copy_from_nonoverlapping(words.as_ptr().cast(), size_of_val(words)) };
        }
        Ok(())
    }

    fn work(
        &self,
        thread: usize,
        stage: &Stage,
        groups: &mut Vec<Group>,
        mut clock: Option<&mut Clock>,
    ) -> Result<(), ExecuteError> {
        let total = self.groups(stage, groups);
        loop {
            let left = total.saturating_sub(self.next.load(Ordering::Relaxed));
            if left == 0 || self.failed.load(Ordering::Relaxed) {
                return Ok(());
            }
            let share = (left / (SHARES * self.threads as u64)).max(1);
            let start = self.next.fetch_add(share, Ordering::Relaxed);
            let end = start.saturating_add(share).min(total);
            let mut at = start;
            let mut number = groups.partition_point(|group| group.end <= start);
            while at < end {
                let Some(group) = groups.get(number) else { break };
                let stop = group.end.min(end);
                let begin = self.now(clock.is_some());
                self.items(thread, stage, group, at..stop)?;
                let task = (stage.first_task + group.task) as u32;
                let expert = matches!(stage.tasks[group.task].rows, RowAxis::Routed(_)).then_some(group.expert);
                self.trace(begin, Work::Task { task, expert, items: stop - at });
                if let (Some(clock), Some(begin)) = (clock.as_deref_mut(), begin) {
                    clock.work(stage.first_task + group.task, begin.elapsed(), stop - at);
                }
                at = stop;
                number += 1;
            }
        }
    }

    /// Numbers the items of a stage; gives how many there are.
    fn groups(&self, stage: &Stage, groups: &mut Vec<Group>) -> u64 {
        groups.clear();
        let mut end = 0u64;
        for (number, task) in stage.tasks.iter().enumerate() {
            let mut add = |rows: ExpertRows| {
                let fits = task.variants.iter().position(|variant| rows.rows <= variant.up_to_rows);
                let (Some(variant), true) = (fits, rows.rows > 0 && task.columns > 0) else { return };
                let chosen = &task.variants[variant];
                // Rows that are divided are one at a time, as the program's check says: each has parts of its own.
                let each = if chosen.split.is_some() { 1 } else { rows.rows };
                for first in (0..rows.rows).step_by(each as usize) {
                    let count = u64::from(each);
                    let chunk_rows = chunk_rows(chosen, count);
                    let chunks = count.div_ceil(chunk_rows);
                    let first_row = u64::from(rows.first) + u64::from(first);
                    let span = match chosen.split {
                        // Rows are tokens, as the check says, too.
                        Some(split) => Span::divided(u64::from(self.counts.position) + first_row, split.division),
                        None => Span::WHOLE,
                    };
                    let start = end;
                    let items = chunks.saturating_mul(u64::from(task.columns)).saturating_mul(u64::from(span.parts));
                    end = end.saturating_add(items);
                    let expert = rows.expert;
                    let rows = count;
                    groups.push(Group {
                        start,
                        end,
                        task: number,
                        variant,
                        expert,
                        first_row,
                        rows,
                        chunk_rows,
                        chunks,
                        span,
                    });
                }
            };
            self.each_expert(stage, task.rows, &mut add);
        }
        end
    }

    fn items(
        &self,
        thread: usize,
        stage: &Stage,
        group: &Group,
        numbers: std::ops::Range<u64>,
    ) -> Result<(), ExecuteError> {
        let (task, place) = (&stage.tasks[group.task], &stage.parts[group.task]);
        let block = match self.streamed(stage, task.rows) {
            Some((number, experts)) => Some(experts.wait(number, group.expert)?),
            None => None,
        };
        let variant = &task.variants[group.variant];
        let kernel = &self.program.kernels[variant.kernel.0 as usize];
        for number in numbers {
            let number = number - group.start;
            let parts = u64::from(group.span.parts);
            // Below the number of parts.
            let (part, number) = ((number % parts) as u32, number / parts);
            let skipped = number % group.chunks * group.chunk_rows;
            let item = Item {
                row: group.first_row + skipped,
                rows: group.chunk_rows.min(group.rows - skipped),
                // Below the number of columns.
                column: (number / group.chunks) as u32,
                expert: group.expert,
                block,
                span: Span { part, ..group.span },
            };
            let failed = |kernel: &Signature, problem| {
                let (task, kernel) = (task.label.clone(), kernel.name.clone());
                ExecuteError::Item(Box::new(ItemError { task, kernel, problem }))
            };
            self.item(thread, (task, place), variant, kernel, &item).map_err(|problem| failed(kernel, problem))?;
            if let Some(split) = &variant.split
                && self.store.parts.finished(place, (item.row, item.column), item.span.parts)
            {
                let combine = &self.program.kernels[split.combine.0 as usize];
                let combined = self.combine(thread, (task, place), split, combine, &item);
                combined.map_err(|problem| failed(combine, problem))?;
            }
        }
        Ok(())
    }

    fn item(
        &self,
        thread: usize,
        (task, place): (&Task, &PartPlace),
        variant: &Variant,
        kernel: &Signature,
        item: &Item,
    ) -> Result<(), Problem> {
        let mut dims = [0i64; MAX_DIMS];
        for ((value, &rule), dim) in dims.iter_mut().zip(&variant.dims).zip(&kernel.dims) {
            *value = in_range(self.dim(rule, item), dim)?;
        }
        let dims = &dims[..kernel.dims.len()];
        let (mut pointers, mut sizes) = ([std::ptr::null_mut(); MAX_BUFFERS], [0; MAX_BUFFERS]);
        for (i, arg) in task.args.iter().enumerate().take(kernel.buffers.len()) {
            let region = match variant.split {
                Some(split) if split.argument as usize == i => {
                    self.parts(place, &kernel.buffers[i], item, (item.span.part, 1), dims)?
                }
                _ => self.slice((thread, i), &kernel.buffers[i], arg, item, dims)?,
            };
            pointers[i] = region.base();
            sizes[i] = region.bytes();
        }
        let count = kernel.buffers.len();
        // SAFETY: dims are in their ranges. Each slice lies in its memory, which `store` keeps mapped; what the kernel may write
        // comes from the arena, the cache, an item's own part or this thread's scratch memory, and overlaps nothing else of the
        // call, as the program's check says. Index buffers come from inputs, which nothing writes now, and their values are
        // below the kernel's limits. What other threads write at the same time, if the plan is wrong, are bytes that no
        // address depends on.
        unsafe { self.backend.call(variant.kernel.0 as usize, &pointers[..count], &sizes[..count], dims) }
    }

    /// Makes the result of an item's parts, all of which are done.
    fn combine(
        &self,
        thread: usize,
        (task, place): (&Task, &PartPlace),
        split: &Split,
        kernel: &Signature,
        item: &Item,
    ) -> Result<(), Problem> {
        let parts = item.span.parts;
        let dims = [kernel.dims.first().map_or(Ok(0), |dim| in_range(u64::from(parts), dim))?];
        let (mut pointers, mut sizes) = ([std::ptr::null_mut(); MAX_BUFFERS], [0; MAX_BUFFERS]);
        let argument = &task.args[split.argument as usize];
        for (i, buffer) in kernel.buffers.iter().enumerate() {
            let region = match i {
                0 => self.parts(place, buffer, item, (0, parts), &dims)?,
                1 => self.slice((thread, i), buffer, argument, item, &dims)?,
                _ => self.slice((thread, i), buffer, &SCRATCH, item, &dims)?,
            };
            pointers[i] = region.base();
            sizes[i] = region.bytes();
        }
        let count = kernel.buffers.len();
        // SAFETY: as for an item's kernel: the program's check says that the kernel reads its first buffer, the parts, which no
        // thread writes any more; writes its second, a slice of what the task writes; and has scratch memory of this thread.
        unsafe { self.backend.call(split.combine.0 as usize, &pointers[..count], &sizes[..count], &dims) }
    }
}

/// What a thread does alone.
fn work_of(then: Then) -> Work {
    match then {
        Then::Sort(_) => Work::Sort,
        Then::Request { group, .. } => Work::Request(group),
        Then::Announce { group, .. } | Then::Predict { group, .. } => Work::Predict(group),
        Then::Release(group) => Work::Release(group),
    }
}

/// Rows of each item but the last: as many chunks as the variant's largest makes, but even ones, in whole row groups.
fn chunk_rows(variant: &Variant, rows: u64) -> u64 {
    let most = u64::from(variant.row_chunk.max(1));
    let even = rows.div_ceil(rows.div_ceil(most).max(1));
    let group = variant.dims.iter().find_map(|rule| match rule {
        DimRule::RowGroups(n) => Some(u64::from(*n)),
        _ => None,
    });
    even.next_multiple_of(group.unwrap_or(1).max(1)).clamp(1, most)
}

#[cfg(test)]
mod tests {
    use super::*;
    use ixc_ir::plan::KernelId;

    #[test]
    fn chunks_are_even_and_in_whole_groups() {
        let variant =
            |row_chunk, dims| Variant { up_to_rows: u32::MAX, row_chunk, kernel: KernelId(0), dims, split: None };
        let groups = || vec![DimRule::RowGroups(6), DimRule::RowRest(6)];
        assert_eq!(chunk_rows(&variant(96, groups()), 512), 90);
        assert_eq!(chunk_rows(&variant(96, groups()), 96), 96);
        assert_eq!(chunk_rows(&variant(96, groups()), 97), 54);
        assert_eq!(chunk_rows(&variant(96, groups()), 7), 12);
        assert_eq!(chunk_rows(&variant(1, vec![]), 512), 1);
        assert_eq!(chunk_rows(&variant(4, vec![DimRule::Rows]), 5), 3);
        assert_eq!(chunk_rows(&variant(5, vec![DimRule::RowGroups(u32::MAX)]), 4), 5);
    }
}
