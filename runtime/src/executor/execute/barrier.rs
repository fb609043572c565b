//! The walk of a thread through all stages, and what the last one to come to a barrier does there: sorting, requests, predictions.

use std::sync::PoisonError;
use std::sync::atomic::Ordering;
use std::time::Duration;

use ixc_ir::plan::BucketId;

use super::{ExecuteError, Pass};
use crate::experts::Experts;
use crate::memory::INDEX_BYTES;
use crate::program::{BarrierAction, Ids};
use crate::trace::Work;

impl Pass<'_> {
    /// What each thread does.
    pub(super) fn walk(&self, thread: usize) {
        let mut clock = self.clocks.get(thread).map(|clock| clock.lock().unwrap_or_else(PoisonError::into_inner));
        if let Some(trace) = &self.store.trace {
            trace.enter(thread);
        }
        let mut groups = Vec::new();
        let last = self.program.stages.len().saturating_sub(1);
        let (mut i, mut round) = (0, 0);
        while let Some(stage) = self.program.stages.get(i) {
            round += 1;
            self.pack(thread, stage, clock.as_deref_mut());
            self.guarded(|| self.work((thread, round), stage, &mut groups, clock.as_deref_mut()));
            if let Some(experts) = &self.store.experts {
                self.guarded(|| {
                    experts.pack_arrived();
                    Ok(())
                });
            }
            if i < last {
                let begin = self.now(clock.is_some());
                self.barrier.wait(thread, || {
                    if !self.clocks.is_empty() {
                        self.last_came.store(self.begun.elapsed().as_nanos() as u64, Ordering::Relaxed);
                    }
                    self.shares.between(round);
                    self.after.store(i + 1, Ordering::Relaxed);
                    self.guarded(|| {
                        for then in &stage.then {
                            let begin = self.now(false);
                            let repeated = self.then(*then);
                            match (then, &repeated) {
                                // The loop ends.
                                (BarrierAction::Repeat { .. }, Ok(None)) => continue,
                                _ => self.trace(begin, work_of(*then)),
                            }
                            if let Some(first) = repeated? {
                                self.after.store(first, Ordering::Relaxed);
                                break;
                            }
                        }
                        Ok(())
                    });
                });
                self.trace(begin, Work::Barrier);
                if let (Some(clock), Some(begin)) = (clock.as_deref_mut(), begin) {
                    let last_came = self.begun + Duration::from_nanos(self.last_came.load(Ordering::Relaxed));
                    clock.wait(last_came.saturating_duration_since(begin), last_came.elapsed());
                }
                // All threads see what the last one at the barrier stored: it changes only at the next one.
                i = self.after.load(Ordering::Relaxed);
            } else {
                i += 1;
            }
        }
    }

    /// What is done at a barrier; the stage to go on with where a loop is run again. Runs alone.
    fn then(&self, then: BarrierAction) -> Result<Option<usize>, ExecuteError> {
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
        }
        Ok(None)
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
        let mut next = self.store.sorting.lock().unwrap_or_else(PoisonError::into_inner);
        bucket.sort(&ids, routing.top_k, routing.experts, &mut next)?;
        let (tokens, slots) = self.store.inputs.routed[number];
        for (words, to) in [(bucket.tokens(), tokens), (bucket.slots(), slots)] {
            debug_assert!(words.len() as u64 * INDEX_BYTES <= to.bytes());
            // SAFETY: the inputs were made for `max_tokens` times `top_k` words, and there are no more tokens than that; all
            // other threads wait at the barrier.
            unsafe { to.base().copy_from_nonoverlapping(words.as_ptr().cast(), size_of_val(words)) };
        }
        Ok(())
    }
}

/// What a thread does alone.
fn work_of(then: BarrierAction) -> Work {
    match then {
        BarrierAction::Sort(_) => Work::Sort,
        BarrierAction::Repeat { .. } => Work::Next,
        BarrierAction::Request { group, .. } => Work::Request(group),
        BarrierAction::Announce { group, .. } | BarrierAction::Predict { group, .. } => Work::Predict(group),
        BarrierAction::Release(group) => Work::Release(group),
    }
}
