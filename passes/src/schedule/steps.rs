//! `steps`: which tasks share a step.
//!
//! A task's step is the first after all that it waits for: after what wrote the buffers and the routing that it reads, and
//! for a state after what touched it before. The number of barriers is then the length of the longest chain, which no
//! order can undercut. A routing is bucketed in a step of its own kind, beside a run of the same level; what is said of experts in
//! memory is said at the barrier after the run that makes it known, so that it adds no level either.

use ixc_ir::levels::Levels;
use ixc_ir::plan::Step;

use super::{Draft, Resource, ScheduleError, What, Work};
use crate::error::PassError;
use crate::pass::{Context, Pass, Run};

/// The pass.
pub static PASS: Pass = Pass {
    name: "steps",
    doc: "Puts each task into the earliest step that it can be in: as few barriers as the longest chain of tasks has links.",
    options: &[],
    run: Run::Draft(run),
};

/// Runs the pass.
///
/// # Errors
/// Where something is said of experts that nothing is computed after.
pub fn run(draft: Draft, _: &Context<'_>) -> Result<Draft, PassError> {
    let steps = steps(&draft.work);
    if ends_with_residency(&draft.work, &steps) {
        let problem = "experts that nothing is computed after; a step ends with its logits".to_string();
        return Err(ScheduleError::Unsupported { op: "expert.evict", problem }.into());
    }
    tracing::debug!(steps = steps.len(), tasks = draft.work.len(), "in steps");
    Ok(Draft { steps: Some(steps), ..draft })
}

/// Work by step, as positions in the work list; each step is all tasks or one of something else.
pub(super) fn steps(work: &[Work]) -> Vec<Vec<usize>> {
    let (mut read, mut written): (Levels<&Resource>, Levels<&Resource>) = Default::default();
    let mut levels: Vec<Vec<usize>> = Vec::new();
    for (i, item) in work.iter().enumerate() {
        let after_write = written.longest(&item.reads);
        // Two tasks may fill parts of one buffer or state beside each other, since parts never meet; but not while another
        // reads what was there before.
        let after_read = read.longest(&item.writes);
        let later = usize::from(!matches!(item.what, What::Residency(_)));
        let level = after_write.max(after_read).map_or(0, |level| level + later);
        if levels.len() <= level {
            levels.resize(level + 1, Vec::new());
        }
        levels[level].push(i);
        item.reads.iter().for_each(|resource| read.reach(resource, level));
        item.writes.iter().for_each(|resource| written.reach(resource, level));
    }
    let mut steps = Vec::with_capacity(levels.len());
    for level in levels {
        let (tasks, others): (Vec<_>, Vec<_>) = level.into_iter().partition(|&i| matches!(work[i].what, What::Task(_)));
        if !tasks.is_empty() {
            steps.push(tasks);
        }
        steps.extend(others.into_iter().map(|other| vec![other]));
    }
    steps
}

/// Whether something is said of experts in memory after the last barrier, where nobody acts on it.
pub(super) fn ends_with_residency(work: &[Work], steps: &[Vec<usize>]) -> bool {
    steps.last().is_some_and(|step| step.iter().any(|&i| matches!(work[i].what, What::Residency(_))))
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
                What::Bucket(step) | What::Residency(step) => built.push(step),
            }
        }
        if !tasks.is_empty() {
            built.push(Step::Run { tasks });
        }
    }
    built
}
