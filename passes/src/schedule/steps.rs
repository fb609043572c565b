//! `steps`: decides which tasks share a step, and which steps one thread runs alone.
//!
//! A task's step is the first after all work that it waits for. It waits for the writers of the
//! buffers and of the routing that it reads, and for the previous access to a state. The number of
//! barriers is then the length of the longest chain of waiting tasks, which is the minimum.
//!
//! With few rows, only tasks that are worth sharing between threads count in that chain. A task
//! that is not worth sharing ([`super::single_thread`]) runs at the barrier after its dependencies.
//! The thread that arrives last runs all such tasks, one after the other. Then the shared work
//! continues:
//!
//! ```text
//! step 3: run                          attention                 all threads
//! step 4: run, alone with 1 row        quantise                  one, where these have met
//! step 5: run                          linear attn_output        all threads
//! ```
//!
//! A task that one thread would run joins the next shared step, if no work up to that step's end
//! waits for the task.
//!
//! Layers that run separately do not share steps ([`Draft::layers`]). Each layer has the same steps
//! as it would have alone.
//!
//! The sorting of a routing's rows and the exchanges of ranks are separate steps, which one thread
//! also runs at a barrier. Requests and releases of experts run at the barrier after the step that
//! produces their input, so they add no level to the chain. With many rows, all of these are
//! ordinary steps. Parallel chains may then have a few more steps than the minimum.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashSet};

use ixc_ir::levels::Levels;
use ixc_ir::names::Label;
use ixc_ir::plan::{Plan, Step};
use ixc_ir::units::{Bytes, count_text};
use ixc_kernels::KernelSpec;

use super::single_thread::Effort;
use super::{Draft, Resource, ScheduleError, Work, WorkItem};
use crate::decision::Decision;
use crate::draft::{DraftStep, fit};
use crate::error::PassError;
use crate::options::{PassOptions, pass_options};
use crate::pass::{Context, Pass, Run};

/// Entry of this pass in the list of passes.
pub static PASS: Pass = Pass {
    name: "steps",
    doc: "Puts each task into the earliest possible step, with a barrier between steps. This gives as few steps as the longest chain of tasks that are worth sharing among threads.",
    options: StepsOptions::ROWS,
    run: Run::Draft(run),
};

/// Bytes that a thread processes in the time of a barrier of 16 threads. It takes 2 µs: 1.4 µs for
/// the barrier, and 0.6 µs until the last thread has started (measured on an Emerald Rapids Xeon).
/// Norms and quantisation run at 20 GB/s.
const MEETING_BYTES: u64 = 40 << 10;

pass_options! {
    /// Options of the pass.
    pub struct StepsOptions for "steps" {
        #[doc = "Bytes that one thread processes while all threads meet: if sharing a step saves less, one thread runs it alone; `none` shares all steps."]
        pub alone: Option<u64> = Some(MEETING_BYTES),
        #[doc = "Tokens of a step from which ranks add their parts in two halves of the rows: the messages of one half travel while the ranks compute the other; `none` adds all rows at once."]
        pub halves: Option<u64> = None,
    }
}

/// Runs the pass.
///
/// # Errors
/// The work ends with a request or release of experts, without computation after it.
pub fn run(mut draft: Draft, context: &Context<'_>) -> Result<Draft, PassError> {
    let StepsOptions { alone, halves } = context.options.get();
    let (mut steps, mut parts) = (Vec::new(), Vec::new());
    for (number, part) in draft.parts().collect::<Vec<_>>().into_iter().enumerate() {
        let own = self::steps(&draft.plan, &draft.work[part.clone()], alone);
        if let Some(layer) = draft.plan.expert_layers.get_mut(number) {
            layer.first = fit("number of steps", steps.len() as u64)?;
            layer.steps = fit("number of steps", own.len() as u64)?;
        }
        let in_all = |step: DraftStep| DraftStep { work: step.work.iter().map(|at| at + part.start).collect(), ..step };
        let first = steps.len();
        steps.extend(own.into_iter().map(in_all));
        parts.push(first..steps.len());
    }
    if ends_with_residency(&draft.work, &steps) {
        let problem = "experts evicted at the end of a step; a step must end with its logits".to_string();
        return Err(ScheduleError::Unsupported { op: "expert.evict", problem }.into());
    }
    if let Some(rows) = halves {
        let rows = fit("tokens of `steps.halves`", rows)?.max(2);
        parts.into_iter().for_each(|part| super::halves::divide(&mut draft, &steps, part, rows, context));
    }
    if context.records_decisions() {
        tell(&draft, &steps, alone, context);
    }
    tracing::debug!(steps = steps.len(), tasks = draft.work.len(), "in steps");
    Ok(Draft { steps: Some(steps), ..draft })
}

/// Names in decisions for the threads that run a step.
const ALL: &str = "all";
const ONE: &str = "one for few rows";

/// Records for each step whether all threads share it.
fn tell(draft: &Draft, steps: &[DraftStep], alone: Option<u64>, context: &Context<'_>) {
    for step in steps {
        let tasks = step.work.iter().filter_map(|&i| match &draft.work[i].what {
            WorkItem::Task(task) => Some(task.label.as_str()),
            WorkItem::Bucket(_) | WorkItem::Residency(_) | WorkItem::Exchange(_) => None,
        });
        let Some(label) = tasks.clone().next() else { continue };
        let Label { op, rest: name } = Label::parse(label);
        let op = if tasks.count() > 1 { format!("{op} and tasks in parallel") } else { op.to_owned() };
        let decision = Decision::new(op, name, "threads");
        context.decide(|| match (alone, step.alone) {
            (None, _) => decision.chose(ALL).over(ONE, "steps.alone is none"),
            (Some(_), 0) => {
                let why = "even with 1 row, sharing saves more than a barrier takes";
                decision.chose(ALL).over(ONE, why)
            }
            (Some(bytes), rows) => {
                let why = format!("sharing saves less than a barrier costs ({} of data)", Bytes(bytes));
                decision.chose(format!("one for up to {}", count_text(rows.into(), "row"))).over(ALL, why)
            }
        });
    }
}

/// Position of a step in the order of steps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Level {
    /// Number of earlier steps that all threads share.
    shared: usize,
    /// Number of steps since the last shared step that one thread runs at the barrier, including
    /// this one.
    alone: usize,
}

impl Level {
    /// Returns the level after the next barrier that all threads wait at.
    fn next(self) -> Level {
        Level { shared: self.shared + 1, alone: 0 }
    }

    /// Returns the next level for one thread at the same barrier.
    fn then(self) -> Level {
        Level { alone: self.alone + 1, ..self }
    }
}

/// Returns the steps. Each has some tasks, or one piece of other work such as an exchange. `alone`
/// is [`StepsOptions::alone`].
fn steps(plan: &Plan<KernelSpec>, work: &[Work], alone: Option<u64>) -> Vec<DraftStep> {
    let mut by_level: BTreeMap<Level, Vec<usize>> = BTreeMap::new();
    for (i, level) in levels(plan, work, alone).into_iter().enumerate() {
        by_level.entry(level).or_default().push(i);
    }
    let mut steps = Vec::with_capacity(by_level.len());
    for (level, items) in by_level {
        let (tasks, others): (Vec<_>, Vec<_>) =
            items.into_iter().partition(|&i| matches!(work[i].what, WorkItem::Task(_)));
        if !tasks.is_empty() {
            let meeting = alone.filter(|_| level.alone > 0);
            let alone = meeting.map_or(0, |meeting| alone_rows(plan, work, &tasks, meeting));
            steps.push(DraftStep { work: tasks, alone });
        }
        steps.extend(others.into_iter().map(|other| DraftStep { work: vec![other], alone: 0 }));
    }
    steps
}

/// Returns the level of each piece of work.
fn levels(plan: &Plan<KernelSpec>, work: &[Work], alone: Option<u64>) -> Vec<Level> {
    let is_small = |items: &[usize]| alone.is_some_and(|meeting| alone_rows(plan, work, items, meeting) > 0);
    let is_task = |i: usize| matches!(work[i].what, WorkItem::Task(_));
    let mut small: Vec<bool> = (0..work.len()).map(|i| is_task(i) && is_small(&[i])).collect();
    let mut levels = loop {
        let levels = place_tasks(work, &small, alone.is_some());
        let mut together: BTreeMap<Level, Vec<usize>> = BTreeMap::new();
        for (i, level) in levels.iter().enumerate().filter(|(i, level)| level.alone > 0 && is_task(*i)) {
            together.entry(*level).or_default().push(i);
        }
        // Several tasks can each be less work than a barrier, but together more. In that case, all
        // threads share them. Equal layers need the same number of rounds, so there are few rounds.
        let too_many: Vec<usize> = together.into_values().filter(|tasks| !is_small(tasks)).flatten().collect();
        if too_many.is_empty() {
            break levels;
        }
        too_many.into_iter().for_each(|i| small[i] = false);
    };
    fill_shared_steps(work, &mut levels);
    levels
}

/// Returns the earliest possible level of each piece of work. Tasks that are `small` run at the
/// barrier after their dependencies. If `alone` is set, sorting of routings and exchanges do too.
fn place_tasks(work: &[Work], small: &[bool], alone: bool) -> Vec<Level> {
    let (mut read, mut written): (Levels<&Resource, Level>, Levels<&Resource, Level>) = Default::default();
    let mut levels = Vec::with_capacity(work.len());
    for (item, small) in work.iter().zip(small) {
        let after_write = written.longest(&item.reads);
        // Two tasks may write parts of one buffer or state in parallel, because the parts never
        // overlap. A third task that reads the earlier contents must come before.
        let after_read = read.longest(&item.writes);
        let level = match (after_write.max(after_read), &item.what) {
            (None, _) => Level::default(),
            (Some(level), WorkItem::Residency(_)) => level,
            (Some(level), WorkItem::Bucket(_) | WorkItem::Exchange(_)) if alone => level.then(),
            (Some(level), WorkItem::Task(_)) if *small => level.then(),
            (Some(level), WorkItem::Task(_) | WorkItem::Bucket(_) | WorkItem::Exchange(_)) => level.next(),
        };
        levels.push(level);
        item.reads.iter().for_each(|resource| read.reach(resource, level));
        item.writes.iter().for_each(|resource| written.reach(resource, level));
    }
    levels
}

/// Moves a task that one thread would run alone into the next shared step. This requires such a
/// step, and that no work up to its end waits for the task. Other threads can then run other tasks
/// in parallel.
fn fill_shared_steps(work: &[Work], levels: &mut [Level]) {
    let is_task = |i: usize| matches!(work[i].what, WorkItem::Task(_));
    let shared: HashSet<Level> =
        (0..work.len()).filter(|&i| is_task(i) && levels[i].alone == 0).map(|i| levels[i]).collect();
    // Level of the first later reader and writer of each resource. The work is visited from the
    // end.
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

/// Returns the maximum rows for which one thread runs all these tasks alone; 0 if even one row is
/// worth sharing.
fn alone_rows(plan: &Plan<KernelSpec>, work: &[Work], items: &[usize], meeting: u64) -> u32 {
    let tasks = items.iter().filter_map(|&i| match &work[i].what {
        WorkItem::Task(task) => Some(task),
        WorkItem::Bucket(_) | WorkItem::Residency(_) | WorkItem::Exchange(_) => None,
    });
    let all =
        tasks.map(|task| Effort::from_task(plan, task)).try_fold(Effort::default(), |all, one| Some(all.and(one?)));
    all.map_or(0, |all| all.rows(meeting, plan.max_tokens))
}

/// Whether the last step has a request or release of experts, which would have no effect.
pub(super) fn ends_with_residency(work: &[Work], steps: &[DraftStep]) -> bool {
    steps.last().is_some_and(|step| step.work.iter().any(|&i| matches!(work[i].what, WorkItem::Residency(_))))
}

/// Returns the plan's steps.
pub(super) fn build(work: Vec<Work>, steps: &[DraftStep]) -> Vec<Step> {
    let mut work: Vec<Option<WorkItem>> = work.into_iter().map(|item| Some(item.what)).collect();
    let mut built = Vec::with_capacity(steps.len());
    for step in steps {
        let mut tasks = Vec::with_capacity(step.work.len());
        for what in step.work.iter().filter_map(|&i| work[i].take()) {
            match what {
                WorkItem::Task(task) => tasks.push(task),
                WorkItem::Bucket(step) | WorkItem::Residency(step) | WorkItem::Exchange(step) => built.push(step),
            }
        }
        if !tasks.is_empty() {
            built.push(Step::Run { tasks, alone: step.alone });
        }
    }
    built
}
