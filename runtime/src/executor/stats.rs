//! Where the time of steps went: in each task, in packing weights, and waiting at barriers.
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
    /// Time at barriers, summed over threads: stalls for want of work.
    pub waiting: Duration,
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
    waiting: Duration,
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

    /// Adds to the time at barriers.
    pub fn wait(&mut self, time: Duration) {
        self.waiting += time;
    }

    /// Adds to the time of packing weights.
    pub fn pack(&mut self, time: Duration) {
        self.packing += time;
    }

    /// Adds this clock to the sum.
    pub fn add_to(&self, program: &Program, stats: &mut Stats) {
        stats.waiting += self.waiting;
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
        self.tasks.fill((Duration::ZERO, 0));
        (self.waiting, self.packing) = (Duration::ZERO, Duration::ZERO);
    }
}
