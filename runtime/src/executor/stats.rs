//! Where the time of steps went: in each task, in packing weights, and at barriers, waiting for the last thread and meeting.
//!
//! Each thread has a [`Clock`] of its own; [`Stats`] is their sum. Measuring costs two readings of the clock for each share
//! of work that a thread takes, below 1 % of a step.

use std::collections::HashMap;
use std::time::Duration;

use crate::program::Program;

/// A task's share of the time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskTime {
    /// The task's label.
    pub label: String,
    /// Time in its kernels, summed over threads.
    pub time: Duration,
    /// Items that ran.
    pub items: u64,
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
    /// Time of the steps, as the caller saw it.
    pub wall: Duration,
    /// Time at barriers until the last thread came, summed over threads: shares of the work that were not even.
    pub imbalance: Duration,
    /// Time at barriers from then on, summed over threads: what meeting takes, and what one thread does there for all.
    pub meeting: Duration,
    /// Barriers that were passed.
    pub barriers: u64,
    /// Time in which weights were packed that a step needed, summed over threads; no part of any task's.
    pub packing: Duration,
    /// Tasks in the plan's order; those with the same label are one.
    pub tasks: Vec<TaskTime>,
}

/// One thread's times.
#[derive(Clone, Debug, Default)]
pub struct Clock {
    /// Time and items of each task, counted over the whole plan.
    tasks: Vec<(Duration, u64)>,
    imbalance: Duration,
    meeting: Duration,
    barriers: u64,
    packing: Duration,
}

impl Clock {
    /// For a program.
    pub fn new(program: &Program) -> Clock {
        let tasks = program.stages.iter().map(|stage| stage.tasks.len()).sum();
        Clock { tasks: vec![(Duration::ZERO, 0); tasks], ..Clock::default() }
    }

    /// Adds to a task.
    pub fn work(&mut self, task: usize, time: Duration, items: u64) {
        if let Some(entry) = self.tasks.get_mut(task) {
            entry.0 += time;
            entry.1 += items;
        }
    }

    /// Adds the time at a barrier, until the last thread came and from then on.
    pub fn wait(&mut self, imbalance: Duration, meeting: Duration) {
        self.imbalance += imbalance;
        self.meeting += meeting;
        self.barriers += 1;
    }

    /// Adds to the time of packing weights.
    pub fn pack(&mut self, time: Duration) {
        self.packing += time;
    }

    /// Adds this clock to the sum.
    pub fn add_to(&self, program: &Program, stats: &mut Stats) {
        stats.imbalance += self.imbalance;
        stats.meeting += self.meeting;
        // Every thread passes each.
        stats.barriers += self.barriers;
        stats.packing += self.packing;
        let labels = program.stages.iter().flat_map(|stage| &stage.tasks).map(|task| &task.label);
        let mut known: HashMap<String, usize> =
            stats.tasks.iter().enumerate().map(|(i, entry)| (entry.label.clone(), i)).collect();
        for (label, &(time, items)) in labels.zip(&self.tasks) {
            match known.get(label.as_str()).and_then(|&i| stats.tasks.get_mut(i)) {
                Some(entry) => {
                    entry.time += time;
                    entry.items += items;
                }
                None => {
                    known.insert(label.clone(), stats.tasks.len());
                    stats.tasks.push(TaskTime { label: label.clone(), time, items });
                }
            }
        }
    }

    /// Starts again from nothing.
    pub fn reset(&mut self) {
        let tasks = std::mem::take(&mut self.tasks);
        *self = Clock { tasks, ..Clock::default() };
        self.tasks.fill((Duration::ZERO, 0));
    }
}
