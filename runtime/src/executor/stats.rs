//! Where the time of steps went: in each task, in packing weights, and at barriers, waiting for the last thread, then for what it does alone, and
//! meeting.
//!
//! Each thread has a [`Clock`] of its own; [`Stats`] is their sum. Measuring costs two readings of the clock for each share
//! of work that a thread takes, below 1 % of a step.

use std::collections::HashMap;
use std::ops::AddAssign;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use ixc_ir::kernel::products::Products;

use crate::program::Program;

/// A task's share of the time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskTime {
    /// The task's label.
    pub label: String,
    /// What its items did.
    pub work: Work,
}

/// What items did, and how long they took for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Work {
    /// Time in kernels, summed over threads.
    pub time: Duration,
    /// Items that ran.
    pub items: u64,
    /// Bytes that they were given to read: of weights and states, for each item again; where there are none, of all that they read and write.
    /// Where an index says a row of a table, what is moved.
    pub bytes: u64,
    /// Their multiply-adds.
    pub products: Products,
}

impl AddAssign for Work {
    fn add_assign(&mut self, other: Work) {
        self.time += other.time;
        self.items += other.items;
        self.bytes += other.bytes;
        self.products += other.products;
    }
}

/// Where the time went.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Threads.
    pub threads: usize,
    /// Steps (a prefill is one for each chunk).
    pub steps: u64,
    /// Tokens of all steps.
    pub tokens: u64,
    /// Threads of each step, all together.
    pub thread_steps: u64,
    /// Steps that had fewer threads, since others use the processors, too.
    pub reduced: u64,
    /// Time of the steps, as the caller saw it.
    pub wall: Duration,
    /// Time at barriers, and at the end, until the last thread came, summed over threads: shares of the work that were not even.
    pub imbalance: Duration,
    /// Time at barriers from then on in which the last thread worked alone, summed over the others: small stages, and what one does for all.
    pub alone: Duration,
    /// Time at barriers from then on, summed over threads: what meeting takes.
    pub meeting: Duration,
    /// Barriers that were passed.
    pub barriers: u64,
    /// Time in which weights were packed that a step needed, summed over threads; no part of any task's.
    pub packing: Duration,
    /// Tasks in the plan's order; those with the same label are one.
    pub tasks: Vec<TaskTime>,
    /// For each of the plan's steps the time in its kernels, and behind it until the last thread came, summed over threads: so many times
    /// what it took.
    pub stages: Vec<Duration>,
}

/// The end of a pass for all threads that had a part in it: those that were done with its last stage have waited for the last one. There is no barrier.
pub(crate) fn end<'c>(clocks: impl Iterator<Item = &'c Mutex<Clock>>, stage: usize) {
    let mut clocks: Vec<_> = clocks.map(|clock| clock.lock().unwrap_or_else(PoisonError::into_inner)).collect();
    let last = clocks.iter().map(|clock| clock.left).max().unwrap_or_default();
    for clock in &mut clocks {
        let imbalance = last.saturating_sub(clock.left);
        clock.waits.get_mut(stage).into_iter().for_each(|wait| *wait += imbalance);
        clock.imbalance += imbalance;
    }
}

/// One thread's times.
#[derive(Clone, Debug, Default)]
pub struct Clock {
    /// Of each task, counted over the whole plan.
    tasks: Vec<Work>,
    /// Behind each stage, until the last thread came.
    waits: Vec<Duration>,
    imbalance: Duration,
    alone: Duration,
    meeting: Duration,
    barriers: u64,
    packing: Duration,
    /// When this thread had done its part of a pass, from the pass's begin.
    left: Duration,
}

impl Clock {
    /// For a program.
    pub fn new(program: &Program) -> Clock {
        let tasks = program.stages.iter().map(|stage| stage.tasks.len()).sum();
        let waits = vec![Duration::ZERO; program.stages.len()];
        Clock { tasks: vec![Work::default(); tasks], waits, ..Clock::default() }
    }

    /// Adds to a task.
    pub fn work(&mut self, task: usize, work: Work) {
        if let Some(entry) = self.tasks.get_mut(task) {
            *entry += work;
        }
    }

    /// Adds the time at the barrier behind a stage: until the last thread came, while that one worked, and from then on.
    pub fn wait(&mut self, stage: usize, imbalance: Duration, alone: Duration, meeting: Duration) {
        self.waits.get_mut(stage).into_iter().for_each(|wait| *wait += imbalance);
        self.imbalance += imbalance;
        self.alone += alone;
        self.meeting += meeting;
        self.barriers += 1;
    }

    /// Notes when this thread had done its part of a pass, from the pass's begin.
    pub fn leave(&mut self, at: Duration) {
        self.left = at;
    }

    /// Adds to the time of packing weights.
    pub fn pack(&mut self, time: Duration) {
        self.packing += time;
    }

    /// Adds this clock to the sum.
    pub fn add_to(&self, program: &Program, stats: &mut Stats) {
        stats.imbalance += self.imbalance;
        stats.alone += self.alone;
        stats.meeting += self.meeting;
        // Every thread passes each.
        stats.barriers += self.barriers;
        stats.packing += self.packing;
        stats.stages.resize(program.stages.len(), Duration::ZERO);
        for (i, (stage, sum)) in program.stages.iter().zip(&mut stats.stages).enumerate() {
            let tasks = self.tasks.iter().skip(stage.first_task).take(stage.tasks.len());
            *sum += tasks.map(|work| work.time).sum::<Duration>() + self.waits.get(i).copied().unwrap_or_default();
        }
        let labels = program.stages.iter().flat_map(|stage| &stage.tasks).map(|task| &task.label);
        let mut known: HashMap<String, usize> =
            stats.tasks.iter().enumerate().map(|(i, entry)| (entry.label.clone(), i)).collect();
        for (label, &work) in labels.zip(&self.tasks) {
            match known.get(label.as_str()).and_then(|&i| stats.tasks.get_mut(i)) {
                Some(entry) => entry.work += work,
                None => {
                    known.insert(label.clone(), stats.tasks.len());
                    stats.tasks.push(TaskTime { label: label.clone(), work });
                }
            }
        }
    }

    /// Starts again from nothing.
    pub fn reset(&mut self) {
        let (tasks, waits) = (std::mem::take(&mut self.tasks), std::mem::take(&mut self.waits));
        *self = Clock { tasks, waits, ..Clock::default() };
        self.tasks.fill(Work::default());
        self.waits.fill(Duration::ZERO);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_ends_first_waits_for_the_last_one() {
        let ms = Duration::from_millis;
        let clock = |left| Mutex::new(Clock { waits: vec![ms(1); 2], left: ms(left), ..Clock::default() });
        // The last one had no part in it.
        let clocks = [clock(5), clock(9), clock(3), clock(100)];
        end(clocks.iter().take(3), 1);
        let [waits, imbalance] = [|clock: &Clock| clock.waits[1], |clock: &Clock| clock.imbalance]
            .map(|of| clocks.iter().map(|clock| of(&clock.lock().unwrap()).as_millis()).collect::<Vec<_>>());
        assert_eq!((waits, imbalance), (vec![5, 1, 7, 1], vec![4, 0, 6, 0]));
    }
}
