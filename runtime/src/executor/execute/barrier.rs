//! The loop of a thread over all stages, and the work at a barrier. The last thread to arrive at a
//! barrier does this work. It sorts routings, requests and predicts experts, and exchanges rows
//! with other ranks. It also runs short stages that would take less time than a barrier.
//!
//! ```text
//! 4 threads, 1 token      attention | quantise by the last thread | linear     one barrier
//! 4 threads, 30 tokens    attention | quantise by all threads | linear     two barriers
//! ```

use std::sync::PoisonError;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use ixc_ir::plan::{BucketId, RowAxis};

use super::items::Group;
use super::{ExecuteError, Pass};
use crate::expert_sort::Bucket;
use crate::experts::Experts;
use crate::program::halves::Half;
use crate::program::{BarrierAction, Ids, Stage};
use crate::stats::Clock;
use crate::storage::memory::INDEX_BYTES;
use crate::trace::Work;

impl Pass<'_> {
    /// Runs all stages on one thread.
    pub(super) fn walk(&self, thread: usize) {
        let mut clock = self.clocks.get(thread).map(|clock| clock.lock().unwrap_or_else(PoisonError::into_inner));
        if let Some(trace) = &self.store.trace {
            trace.enter(thread);
        }
        let mut groups = Vec::new();
        let (end, last) = (self.stages.end, self.stages.end.saturating_sub(1));
        let (mut i, mut round) = (self.stages.start, 0);
        let mut late = Duration::ZERO;
        while let Some(stage) = self.program.stages.get(i).filter(|_| i < end) {
            round += 1;
            self.pack(thread, stage, clock.as_deref_mut());
            self.run_guarded(|| self.work(thread, round, stage, &mut groups, clock.as_deref_mut()));
            if let Some(experts) = &self.store.experts {
                self.run_guarded(|| {
                    experts.pack_arrived();
                    Ok(())
                });
            }
            if i < last {
                let begin = self.now(clock.is_some());
                let mut is_last = false;
                late += self.barrier.wait(thread, || {
                    is_last = true;
                    self.mark(&self.last_came);
                    self.shares.between(round);
                    let next = self.act_at_barrier(thread, i, &mut groups, clock.as_deref_mut());
                    self.after.store(next, Ordering::Relaxed);
                    self.mark(&self.let_go);
                });
                self.trace(begin, Work::Barrier);
                if let (Some(clock), Some(begin)) = (clock.as_deref_mut(), begin) {
                    let [came, let_go] = [&self.last_came, &self.let_go]
                        .map(|at| self.begun + Duration::from_nanos(at.load(Ordering::Relaxed)));
                    // The last thread to arrive does not wait: its work at the barrier counts as
                    // time of its tasks.
                    let alone = if is_last { Duration::ZERO } else { let_go.saturating_duration_since(came) };
                    clock.wait(i, came.saturating_duration_since(begin), alone, let_go.elapsed());
                }
                // All threads read the same value, because it changes only at barriers.
                i = self.after.load(Ordering::Relaxed);
            } else {
                i += 1;
            }
        }
        if let Some(clock) = clock.as_deref_mut() {
            clock.leave(self.begun.elapsed());
        }
        self.late.fetch_add(late.as_nanos() as u64, Ordering::Relaxed);
    }

    /// Stores the current time in `at`, if statistics are collected.
    fn mark(&self, at: &AtomicU64) {
        if !self.clocks.is_empty() {
            at.store(self.begun.elapsed().as_nanos() as u64, Ordering::Relaxed);
        }
    }

    /// Does the work at the barrier after stage `i`, which is not the last stage. First it runs the
    /// actions of the stage, then the following stages that one thread runs alone, each with its
    /// actions. Returns the stage with which all threads continue. Only one thread calls this.
    fn act_at_barrier(&self, thread: usize, i: usize, groups: &mut Vec<Group>, mut clock: Option<&mut Clock>) -> usize {
        let (stages, end) = (&self.program.stages, self.stages.end.min(self.program.stages.len()));
        let mut next = i + 1;
        self.run_guarded(|| {
            // The loop ends at the last stage, because no action is needed after it.
            while next < end {
                if let Some(first) = self.actions(&stages[next - 1])? {
                    next = first;
                    break;
                }
                let stage = &stages[next];
                if !self.is_alone(stage) {
                    break;
                }
                self.work_alone(thread, stage, groups, clock.as_deref_mut())?;
                next += 1;
            }
            Ok(())
        });
        next
    }

    /// Returns whether a stage runs on only one thread: the last one to arrive at the barrier
    /// before the stage.
    fn is_alone(&self, stage: &Stage) -> bool {
        // This step does not compute halves, so the stage of the first half has all rows and this
        // stage has none.
        if stage.half.is_some_and(|half| half.half == Half::Second && !self.has_halves(half.rows)) {
            return true;
        }
        // A stage that repeats for streamed experts may have to wait for them, so all threads share
        // its work.
        let repeats = stage.window.is_some() && self.store.experts.is_some();
        let rows = stage.tasks.iter().map(|task| match task.rows {
            RowAxis::Tokens | RowAxis::Routed(_) => self.counts.tokens,
            RowAxis::Outputs => self.counts.outputs,
        });
        // If weights must be packed, all threads share that work.
        !repeats && rows.max().unwrap_or(0) <= stage.alone && self.missing(stage).is_empty()
    }

    /// Runs the actions after a stage. Returns the stage to continue with, if it is not the
    /// following one.
    fn actions(&self, stage: &Stage) -> Result<Option<usize>, ExecuteError> {
        for then in &stage.then {
            let begin = self.now(false);
            let repeated = self.run_action(*then);
            match (then, &repeated) {
                // The loop over streamed experts is finished, so there is nothing to record in the
                // trace.
                (BarrierAction::Repeat { .. }, Ok(None)) => continue,
                _ => self.trace(begin, action_work(*then)),
            }
            if let Some(first) = repeated? {
                return Ok(Some(first));
            }
        }
        Ok(None)
    }

    /// Runs one action of a barrier. If the action repeats a loop, returns the loop's first stage.
    /// Only one thread calls this.
    fn run_action(&self, then: BarrierAction) -> Result<Option<usize>, ExecuteError> {
        match then {
            BarrierAction::Repeat { first } => {
                let again = self.store.experts.as_ref().map_or(Ok(false), Experts::next)?;
                return Ok(again.then_some(first));
            }
            BarrierAction::Sort(bucket) => self.sort(bucket)?,
            BarrierAction::Request { window, group } => {
                let Some(facts) = self.program.windows.get(window as usize) else { return Ok(None) };
                let bucket = self.store.buckets[facts.bucket.0 as usize].read().unwrap_or_else(PoisonError::into_inner);
                if let Some(advice) = &self.store.advice {
                    advice.request(group, bucket.active(), &self.store.files);
                }
                if let Some(experts) = &self.store.experts {
                    experts.begin(window, group, bucket.active())?;
                }
            }
            BarrierAction::Announce { window, group } => {
                let (Some(experts), Some(facts)) = (&self.store.experts, self.program.windows.get(window as usize))
                else {
                    return Ok(None);
                };
                let routing = &self.program.routings[facts.bucket.0 as usize];
                experts.announce(window, group, routing.top_k, &self.ids(routing.ids, routing.top_k));
            }
            BarrierAction::Predict { group, ids, count } => {
                if let Some(experts) = &self.store.experts {
                    experts.predict(group, count, &self.ids(ids, count));
                }
            }
            BarrierAction::Release(group) => self.store.experts.iter().for_each(|experts| experts.end(group)),
            BarrierAction::Exchange(exchange) => self.exchange(exchange)?,
            BarrierAction::BeginSum(half) => self.begin_sum(half)?,
            BarrierAction::FinishSum(half) => self.finish_sum(half)?,
        }
        Ok(None)
    }

    /// Returns `count` expert ids for each token, read from the arena.
    fn ids(&self, ids: Ids, count: u32) -> Vec<u32> {
        let from = self.arena(ids.buffer.0 as usize);
        let words = from.bytes() / INDEX_BYTES;
        let row = |token: u64| {
            let first = token * ids.stride + u64::from(ids.first);
            first.min(words)..(first + u64::from(count)).min(words)
        };
        // SAFETY: the words lie in the arena, and all other threads wait at the barrier. The read
        // needs no alignment.
        let word = |i: u64| unsafe { from.base().cast::<u32>().add(i as usize).read_unaligned() };
        (0..u64::from(self.counts.tokens)).flat_map(row).map(word).collect()
    }

    /// Sorts the rows of a routing by expert. Only one thread calls this.
    fn sort(&self, id: BucketId) -> Result<(), ExecuteError> {
        let number = id.0 as usize;
        let routing = &self.program.routings[number];
        let mut bucket = self.store.buckets[number].write().unwrap_or_else(PoisonError::into_inner);
        let ids = self.ids(routing.ids, routing.top_k);
        let mut next = self.store.sorting.lock().unwrap_or_else(PoisonError::into_inner);
        let sort = if routing.partial { Bucket::sort_given } else { Bucket::sort };
        sort(&mut bucket, &ids, routing.top_k, routing.experts, &mut next)?;
        let (tokens, slots) = self.store.inputs.routed[number];
        for (words, to) in [(bucket.tokens(), tokens), (bucket.slots(), slots)] {
            debug_assert!(words.len() as u64 * INDEX_BYTES <= to.bytes());
            // If some ids name no expert, there are fewer routed rows than the kernels' inputs have
            // room for. The remaining words may come from an earlier, longer step. They are
            // cleared, because kernels assume values below this step's number of tokens.
            let (bytes, rest) = (size_of_val(words), (ids.len() - words.len()) * INDEX_BYTES as usize);
            // SAFETY: the inputs have room for `max_tokens` times `top_k` words, and there are at
            // most as many ids. All other threads wait at the barrier.
            unsafe {
                to.base().copy_from_nonoverlapping(words.as_ptr().cast(), bytes);
                to.base().add(bytes).write_bytes(0, rest);
            }
        }
        Ok(())
    }
}

/// Returns the trace entry for an action.
fn action_work(then: BarrierAction) -> Work {
    match then {
        BarrierAction::Sort(_) => Work::Sort,
        BarrierAction::Repeat { .. } => Work::Next,
        BarrierAction::Request { group, .. } => Work::Request(group),
        BarrierAction::Announce { group, .. } | BarrierAction::Predict { group, .. } => Work::Predict(group),
        BarrierAction::Release(group) => Work::Release(group),
        BarrierAction::Exchange(_) | BarrierAction::BeginSum(_) | BarrierAction::FinishSum(_) => Work::Exchange,
    }
}
