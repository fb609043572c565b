//! Which tasks share a step.
//!
//! A task's step is the first after all that it waits for: after what wrote the buffers and the routing that it reads, and
//! for a cache after what touched it before. The number of barriers is then the length of the longest chain, which no
//! order can undercut. A routing is bucketed in a step of its own kind, beside a run of the same level.

use std::collections::HashMap;

use ixc_ir::plan::{Step, Task};

/// What tasks wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Resource {
    /// A buffer: written once, by one op.
    Buffer(u32),
    /// A routing's order.
    Bucket(u32),
    /// A layer of the cache.
    Cache(u32),
}

/// A task or a bucket step, with what it reads and writes.
#[derive(Clone, Debug)]
pub(super) struct Work {
    pub(super) what: What,
    pub(super) reads: Vec<Resource>,
    pub(super) writes: Vec<Resource>,
}

#[derive(Clone, Debug)]
pub(super) enum What {
    Task(Task),
    /// A [`Step::Bucket`].
    Bucket(Step),
}

/// Work by step, as positions in the work list; each step is all tasks or one bucket.
pub(super) fn steps(work: &[Work]) -> Vec<Vec<usize>> {
    let mut read: HashMap<Resource, usize> = HashMap::new();
    let mut written: HashMap<Resource, usize> = HashMap::new();
    let mut levels: Vec<Vec<usize>> = Vec::new();
    for (i, item) in work.iter().enumerate() {
        let after_write = item.reads.iter().filter_map(|r| written.get(r));
        // Two tasks may fill parts of one buffer or cache beside each other, since parts never meet; but not while another
        // reads what was there before.
        let after_read = item.writes.iter().filter_map(|r| read.get(r));
        let level = after_write.chain(after_read).map(|level| level + 1).max().unwrap_or(0);
        if levels.len() <= level {
            levels.resize(level + 1, Vec::new());
        }
        levels[level].push(i);
        for (resources, last) in [(&item.reads, &mut read), (&item.writes, &mut written)] {
            for &resource in resources {
                let last = last.entry(resource).or_insert(level);
                *last = level.max(*last);
            }
        }
    }
    let mut steps = Vec::with_capacity(levels.len());
    for level in levels {
        let (tasks, buckets): (Vec<_>, Vec<_>) =
            level.into_iter().partition(|&i| matches!(work[i].what, What::Task(_)));
        if !tasks.is_empty() {
            steps.push(tasks);
        }
        steps.extend(buckets.into_iter().map(|bucket| vec![bucket]));
    }
    steps
}

/// The plan's steps.
pub(super) fn build(work: Vec<Work>, steps: &[Vec<usize>]) -> Vec<Step> {
    let mut work: Vec<Option<What>> = work.into_iter().map(|item| Some(item.what)).collect();
    let mut built = Vec::with_capacity(steps.len());
    for step in steps {
        let mut tasks = Vec::with_capacity(step.len());
        for what in step.iter().filter_map(|&i| work[i].take()) {
            match what {
                What::Task(task) => tasks.push(task),
                What::Bucket(bucket) => built.push(bucket),
            }
        }
        if !tasks.is_empty() {
            built.push(Step::Run { tasks });
        }
    }
    built
}
