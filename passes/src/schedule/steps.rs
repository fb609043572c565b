//! `steps`: which tasks share a step, and which steps one thread does alone.
//!
//! A task's step is the first after all that it waits for: after what wrote the buffers and the routing that it reads, and
//! for a state after what touched it before. The number of barriers is then the length of the longest chain, which no
//! order can undercut.
//!
//! With few rows only what is worth sharing counts in that chain. A task that is not ([`super::alone`]) is done at the barrier behind what it
//! waits for, by the thread that came last, one after the other, and what is shared goes on behind them:
//!
//! ```text
//! step 3: run                          attention                 all threads
//! step 4: run, alone with 1 row        quantise                  one, where these have met
//! step 5: run                          linear attn_output        all threads
//! ```
//!
//! Where nothing waits for such a task before the shared step behind it, it is one of that step's.
//!
//! Layers that are run on their own share no steps ([`Draft::layers`]): each has the steps that it would have alone.
//!
//! A routing is bucketed likewise, in a step of its own kind; what is said of experts in memory is said at the barrier after the run that makes it
//! known, so that it adds no level either. With many rows all of these are steps like others: of chains that go beside each other
//! some steps are then more than the fewest.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashSet};

use ixc_ir::levels::Levels;
use ixc_ir::names::Label;
use ixc_ir::plan::{Plan, Step};
use ixc_ir::units::{Bytes, counted};
use ixc_kernels::KernelSpec;

use super::alone::Effort;
use super::{Draft, Resource, ScheduleError, What, Work};
use crate::decision::Decision;
use crate::draft::{DraftStep, fit};
use crate::error::PassError;
use crate::options::{PassOptions, pass_options};
use crate::pass::{Context, Pass, Run};

/// The pass.
pub static PASS: Pass = Pass {
    name: "steps",
    doc: "Puts each task into the earliest step that it can be in: as few barriers as the longest chain of tasks that are worth sharing has links.",
    options: Options::ROWS,
    run: Run::Draft(run),
};

/// Bytes that a thread gets through while 16 threads meet: 2 µs (1.4 µs for the barrier, 0.6 µs until the last of them has begun; measured on an
/// Emerald Rapids Xeon) at 20 GB/s, as norms and quantisation go.
const MEETING_BYTES: u64 = 40 << 10;

pass_options! {
    /// Options of the pass.
    pub struct Options for "steps" {
        #[doc = "Bytes that one thread gets through while all meet: steps in which sharing saves less are done by one alone; `none` shares all."]
        pub alone: Option<u64> = Some(MEETING_BYTES),
    }
}

/// Runs the pass.
///
/// # Errors
/// Where something is said of experts that nothing is computed after.
pub fn run(mut draft: Draft, context: &Context<'_>) -> Result<Draft, PassError> {
    let Options { alone } = context.options.of();
    let mut steps = Vec::new();
    for (number, part) in draft.parts().collect::<Vec<_>>().into_iter().enumerate() {
        let own = self::steps(&draft.plan, &draft.work[part.clone()], alone);
        if let Some(layer) = draft.plan.expert_layers.get_mut(number) {
            layer.first = fit("number of steps", steps.len() as u64)?;
            layer.steps = fit("number of steps", own.len() as u64)?;
        }
        let in_all = |step: DraftStep| DraftStep { work: step.work.iter().map(|at| at + part.start).collect(), ..step };
        steps.extend(own.into_iter().map(in_all));
    }
    if ends_with_residency(&draft.work, &steps) {
        let problem = "experts that nothing is computed after; a step ends with its logits".to_string();
        return Err(ScheduleError::Unsupported { op: "expert.evict", problem }.into());
    }
    if context.tells() {
        tell(&draft, &steps, alone, context);
    }
    tracing::debug!(steps = steps.len(), tasks = draft.work.len(), "in steps");
    Ok(Draft { steps: Some(steps), ..draft })
}

/// Tells of each step whether all threads share it.
fn tell(draft: &Draft, steps: &[DraftStep], alone: Option<u64>, context: &Context<'_>) {
    for step in steps {
        let tasks = step.work.iter().filter_map(|&i| match &draft.work[i].what {
            What::Task(task) => Some(task.label.as_str()),
            What::Bucket(_) | What::Residency(_) => None,
        });
        let Some(label) = tasks.clone().next() else { continue };
        let Label { op, rest: name } = Label::of(label);
        let op = if tasks.count() > 1 { format!("{op} and beside it") } else { op.to_owned() };
        let decision = Decision::of(op, name, "threads");
        context.decide(|| match (alone, step.alone) {
            (None, _) => decision.chose("all share it").over("one thread alone with few rows", "steps.alone is none"),
            (Some(_), 0) => {
                let why = "with one row, sharing it saves more than meeting takes";
                decision.chose("all share it").over("one thread alone with few rows", why)
            }
            (Some(bytes), rows) => {
                let why = format!("sharing saves less than a thread gets through while all meet, {}", Bytes(bytes));
                decision
                    .chose(format!("one alone with up to {}", counted(rows.into(), "row")))
                    .over("all share it", why)
            }
        });
    }
}

/// Where in the order of steps something is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Level {
    /// Steps that all threads share, before it.
    shared: usize,
    /// What one thread does at the barrier after these, before it and with it.
    alone: usize,
}

impl Level {
    /// Behind what all threads have to meet for.
    fn next(self) -> Level {
        Level { shared: self.shared + 1, alone: 0 }
    }

    /// Behind it, at the same barrier.
    fn then(self) -> Level {
        Level { alone: self.alone + 1, ..self }
    }
}

/// Work by step; each step is all tasks or one of something else. `alone` is [`Options::alone`].
fn steps(plan: &Plan<KernelSpec>, work: &[Work], alone: Option<u64>) -> Vec<DraftStep> {
    let mut by_level: BTreeMap<Level, Vec<usize>> = BTreeMap::new();
    for (i, level) in levels(plan, work, alone).into_iter().enumerate() {
        by_level.entry(level).or_default().push(i);
    }
    let mut steps = Vec::with_capacity(by_level.len());
    for (level, items) in by_level {
        let (tasks, others): (Vec<_>, Vec<_>) = items.into_iter().partition(|&i| matches!(work[i].what, What::Task(_)));
        if !tasks.is_empty() {
            let meeting = alone.filter(|_| level.alone > 0);
            let alone = meeting.map_or(0, |meeting| alone_rows(plan, work, &tasks, meeting));
            steps.push(DraftStep { work: tasks, alone });
        }
        steps.extend(others.into_iter().map(|other| DraftStep { work: vec![other], alone: 0 }));
    }
    steps
}

/// The level of each piece of work.
fn levels(plan: &Plan<KernelSpec>, work: &[Work], alone: Option<u64>) -> Vec<Level> {
    let is_small = |items: &[usize]| alone.is_some_and(|meeting| alone_rows(plan, work, items, meeting) > 0);
    let is_task = |i: usize| matches!(work[i].what, What::Task(_));
    let mut small: Vec<bool> = (0..work.len()).map(|i| is_task(i) && is_small(&[i])).collect();
    let mut levels = loop {
        let levels = placed(work, &small, alone.is_some());
        let mut together: BTreeMap<Level, Vec<usize>> = BTreeMap::new();
        for (i, level) in levels.iter().enumerate().filter(|(i, level)| level.alone > 0 && is_task(*i)) {
            together.entry(*level).or_default().push(i);
        }
        // Each of some tasks can be less than a meeting where all of them are not: then all threads share them. Layers that are alike are
        // found in the same round, so that these are few.
        let too_many: Vec<usize> = together.into_values().filter(|tasks| !is_small(tasks)).flatten().collect();
        if too_many.is_empty() {
            break levels;
        }
        too_many.into_iter().for_each(|i| small[i] = false);
    };
    beside(work, &mut levels);
    levels
}

/// The first level of each piece of work, where tasks that are `small` are done at the barrier behind what they wait for; and so are routings
/// sorted, where `alone`.
fn placed(work: &[Work], small: &[bool], alone: bool) -> Vec<Level> {
    let (mut read, mut written): (Levels<&Resource, Level>, Levels<&Resource, Level>) = Default::default();
    let mut levels = Vec::with_capacity(work.len());
    for (item, small) in work.iter().zip(small) {
        let after_write = written.longest(&item.reads);
        // Two tasks may fill parts of one buffer or state beside each other, since parts never meet; but not while another
        // reads what was there before.
        let after_read = read.longest(&item.writes);
        let level = match (after_write.max(after_read), &item.what) {
            (None, _) => Level::default(),
            (Some(level), What::Residency(_)) => level,
            (Some(level), What::Bucket(_)) if alone => level.then(),
            (Some(level), What::Task(_)) if *small => level.then(),
            (Some(level), What::Task(_) | What::Bucket(_)) => level.next(),
        };
        levels.push(level);
        item.reads.iter().for_each(|resource| read.reach(resource, level));
        item.writes.iter().for_each(|resource| written.reach(resource, level));
    }
    levels
}

/// Moves what one thread would do alone to the step that is shared behind it, where there is one and nothing waits for it before: there others can
/// do something else meanwhile.
fn beside(work: &[Work], levels: &mut [Level]) {
    let is_task = |i: usize| matches!(work[i].what, What::Task(_));
    let shared: HashSet<Level> =
        (0..work.len()).filter(|&i| is_task(i) && levels[i].alone == 0).map(|i| levels[i]).collect();
    // Of what comes later, the first to read and to write something: the lowest level is the longest way from the end.
    let mut read: Levels<&Resource, Reverse<Level>> = Levels::default();
    let mut written: Levels<&Resource, Reverse<Level>> = Levels::default();
    for (i, item) in work.iter().enumerate().rev() {
        let (next, first) = (levels[i].next(), read.longest(&item.writes).max(written.longest(&item.reads)));
        let is_free = first.is_none_or(|Reverse(first)| first > next);
        if levels[i].alone > 0 && is_task(i) && is_free && shared.contains(&next) {
            levels[i] = next;
        }
        item.reads.iter().for_each(|resource| read.reach(resource, Reverse(levels[i])));
        item.writes.iter().for_each(|resource| written.reach(resource, Reverse(levels[i])));
    }
}

/// With how many rows one thread does all of these tasks alone; 0 where a row is worth sharing.
fn alone_rows(plan: &Plan<KernelSpec>, work: &[Work], items: &[usize], meeting: u64) -> u32 {
    let tasks = items.iter().filter_map(|&i| match &work[i].what {
        What::Task(task) => Some(task),
        What::Bucket(_) | What::Residency(_) => None,
    });
    let all = tasks.map(|task| Effort::of(plan, task)).try_fold(Effort::default(), |all, one| Some(all.and(one?)));
    all.map_or(0, |all| all.rows(meeting, plan.max_tokens))
}

/// Whether something is said of experts in memory after the last barrier, where nobody acts on it.
pub(super) fn ends_with_residency(work: &[Work], steps: &[DraftStep]) -> bool {
    steps.last().is_some_and(|step| step.work.iter().any(|&i| matches!(work[i].what, What::Residency(_))))
}

/// The plan's steps.
pub(super) fn build(work: Vec<Work>, steps: &[DraftStep]) -> Vec<Step> {
    let mut work: Vec<Option<What>> = work.into_iter().map(|item| Some(item.what)).collect();
    let mut built = Vec::with_capacity(steps.len());
    for step in steps {
        let mut tasks = Vec::with_capacity(step.work.len());
        for what in step.work.iter().filter_map(|&i| work[i].take()) {
            match what {
                What::Task(task) => tasks.push(task),
                What::Bucket(step) | What::Residency(step) => built.push(step),
            }
        }
        if !tasks.is_empty() {
            built.push(Step::Run { tasks, alone: step.alone });
        }
    }
    built
}
