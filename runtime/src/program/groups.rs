//! Checks of expert groups. They ensure that tasks read experts only between the request and the
//! release of the experts' blocks.
//!
//! ```text
//! bucket 0 by route ids           stages between request and release that read the group's weights
//! request experts 0 of bucket 0   are a loop: they run for some experts, then again for the others
//! run: expert.swiglu gate, up
//! run: expert.down down           then: repeat from expert.swiglu on
//! release experts 0
//! ```
//!
//! After the check, a group's weights have one matrix for each of its experts, and belong to no
//! other group. Groups are requested and released one after the other. A group is requested once,
//! or several times if some of a token's experts are deferred to the next layer. A group's weights
//! are read only between a request and the next release (a *window*), by tasks over the rows of the
//! requested routing. In a window, all other tasks read no results of tasks over routed rows.

use ixc_ir::kernel::Kernel;
use ixc_ir::plan::{Arg, BucketId, BufferId, ExpertGroup, Plan, RowAxis, Source, Step, Task, WeightFile};

use std::collections::HashMap;

use super::check::Checker;
use super::extents::Extents;
use super::tables::{check_inside, shorten};
use super::{Access, BarrierAction, BlockPlace, Group, MAX_EXPERTS, PlanError, Problem, Stage, Window, at, id, range};
use crate::storage::blocks::{BLOCK_HEADER, BlockShape};
use crate::storage::pack::ALIGNMENT;

/// The results of the checks: the plan's stages, expert groups and windows.
pub(super) struct CheckedGroups {
    pub(super) stages: Vec<Stage>,
    pub(super) groups: Vec<Group>,
    pub(super) windows: Vec<Window>,
}

/// Checks the expert groups of a plan, and the windows in which their experts are read. Stores in
/// each stage the window that it belongs to.
pub(super) fn check(checker: &Checker<'_>, mut stages: Vec<Stage>) -> Result<CheckedGroups, PlanError> {
    let plan = checker.plan;
    let mut group_of_weight: Vec<Option<usize>> = vec![None; plan.weights.len()];
    let mut groups = Vec::with_capacity(plan.expert_groups.len());
    let mut end = 0;
    for (number, group) in plan.expert_groups.iter().enumerate() {
        let place = format!("experts {number}");
        at(&place, weights(plan, group, number, &mut group_of_weight))?;
        let blocks = at(&place, blocks(plan, group, &mut end))?;
        groups.push(Group { weights: group.weights.clone(), experts: group.experts, blocks });
    }
    for (weight, _) in plan.weights.iter().zip(&group_of_weight).filter(|(_, group)| group.is_none()) {
        if let WeightFile::Blocks { .. } = weight.file {
            let place = format!("weight {:?}", shorten(&weight.name));
            return Err(PlanError {
                place,
                problem: Problem::Shape { expected: "a group of experts for a weight in blocks" },
            });
        }
    }
    let mut windows = Vec::new();
    for Bounds { group, bucket, after, before } in bounds(plan, &stages)? {
        let (place, number) = (format!("experts {group}"), group as usize);
        let reads = |stage: &Stage| stage.tasks.iter().any(|task| reads_group(task, &group_of_weight, number));
        let mut readers = (after + 1..=before).filter(|&i| stages.get(i).is_some_and(reads));
        let Some(first) = readers.next() else {
            return Err(PlanError {
                place,
                problem: Problem::Shape { expected: "a task that reads the experts between their request and release" },
            });
        };
        let last = readers.next_back().unwrap_or(first);
        for (i, stage) in stages.iter().enumerate().take(last + 1).skip(first) {
            for task in &stage.tasks {
                let place = format!("stage {i}, task {:?}", shorten(&task.label));
                at(&place, reader(plan, task, &group_of_weight, number, bucket))?;
            }
        }
        at(&place, repeatable(checker, &stages[first..=last], bucket))?;
        for stage in &mut stages[first..=last] {
            stage.window = Some(windows.len() as u32);
        }
        stages[last].then.insert(0, BarrierAction::Repeat { first });
        windows.push(Window { group, bucket });
    }
    // Stages in windows were checked above. No other stage may read experts.
    for (i, stage) in stages.iter().enumerate().filter(|(_, stage)| stage.window.is_none()) {
        if let Some(task) = stage.tasks.iter().find(|task| weight_args(task, &group_of_weight).next().is_some()) {
            let place = format!("stage {i}, task {:?}", shorten(&task.label));
            let expected = "one that reads experts after they are requested and before they are released";
            return Err(PlanError { place, problem: Problem::Shape { expected } });
        }
    }
    // A prediction whose ids are exactly those of a later request is certain, so it becomes an
    // announcement.
    let mut by_ids: HashMap<_, Vec<usize>> = HashMap::new();
    for (number, window) in windows.iter().enumerate() {
        if let Some(routing) = checker.routings.get(window.bucket.0 as usize) {
            by_ids.entry((window.group, routing.ids, routing.top_k)).or_default().push(number);
        }
    }
    let mut requested = 0;
    for then in stages.iter_mut().flat_map(|stage| &mut stage.then) {
        let BarrierAction::Predict { group, ids, count } = *then else {
            requested += usize::from(matches!(then, BarrierAction::Request { .. }));
            continue;
        };
        let known = by_ids.get(&(group, ids, count)).map_or(&[][..], Vec::as_slice);
        let later = known.partition_point(|window| *window < requested);
        if let Some(&window) = known.get(later) {
            *then = BarrierAction::Announce { window: window as u32, group };
        }
    }
    Ok(CheckedGroups { stages, groups, windows })
}

/// Checks the weights of a group, and stores the group's number for each of them.
fn weights(
    plan: &Plan<Kernel>,
    group: &ExpertGroup,
    number: usize,
    group_of_weight: &mut [Option<usize>],
) -> Result<(), Problem> {
    range("experts", group.experts, 1, MAX_EXPERTS)?;
    range("weights of a group", group.weights.len() as u64, 1, 16u64)?;
    for &weight in &group.weights {
        let facts = id("weight", weight, &plan.weights)?;
        if facts.shape.len() != 3 || facts.shape[0] != u64::from(group.experts) {
            return Err(Problem::Shape { expected: "weights with one matrix for each expert" });
        }
        if group_of_weight[weight as usize].replace(number).is_some() {
            return Err(Problem::Shape { expected: "weights that are in one group only, and once" });
        }
    }
    Ok(())
}

/// Returns the layout of a group's blocks in the plan file, if it has blocks. The blocks must begin
/// at a page at or after `end`. Sets `end` to the end of these blocks.
fn blocks(plan: &Plan<Kernel>, group: &ExpertGroup, end: &mut u64) -> Result<Option<BlockPlace>, Problem> {
    let weights: Vec<_> = group.weights.iter().filter_map(|&weight| plan.weights.get(weight as usize)).collect();
    if !weights.iter().any(|weight| matches!(weight.file, WeightFile::Blocks { .. })) {
        return Ok(None);
    }
    let shape = BlockShape::new(weights.iter().copied());
    let shape = shape.ok_or(Problem::Shape { expected: "weights that fit a block" })?;
    let wrong = Problem::Shape { expected: "weights in consecutive blocks that start at pages" };
    let header = weights.first().and_then(|weight| weight.offset.checked_sub(BLOCK_HEADER));
    let first = header.filter(|first| first.is_multiple_of(ALIGNMENT) && first >= end).ok_or(wrong.clone())?;
    for (weight, part) in weights.iter().zip(&shape.parts) {
        let file = WeightFile::Blocks { stride: shape.stride() };
        if weight.file != file || first.checked_add(part.offset) != Some(weight.offset) {
            return Err(wrong);
        }
    }
    let bytes = shape.stride().checked_mul(u64::from(group.experts));
    check_inside("the weights of the plan", first, bytes, plan.own_weight_bytes)?;
    let place = BlockPlace { shape, first };
    *end = place.block(group.experts);
    Ok(Some(place))
}

/// A request of experts and its release: the stages at whose barriers they happen.
struct Bounds {
    group: u32,
    bucket: BucketId,
    after: usize,
    before: usize,
}

/// Returns all requests with their releases, in order. Requests and releases must alternate, and
/// each group must have at least one request.
fn bounds(plan: &Plan<Kernel>, stages: &[Stage]) -> Result<Vec<Bounds>, PlanError> {
    let requests = plan.steps.iter().filter_map(|step| match step {
        Step::Request { group, bucket } => Some((*group, *bucket)),
        _ => None,
    });
    let requests: Vec<(u32, BucketId)> = requests.collect();
    let mut missing: Vec<bool> = vec![true; plan.expert_groups.len()];
    let wrong = |group: u32| {
        let expected = "requested, then released, each before the next request and before the last step";
        PlanError { place: format!("experts {group}"), problem: Problem::Shape { expected } }
    };
    let (mut bounds, mut open): (Vec<Bounds>, Option<(u32, BucketId, usize)>) = (Vec::new(), None);
    for (i, stage) in stages.iter().enumerate() {
        for then in &stage.then {
            match *then {
                BarrierAction::Request { window, .. } => {
                    let (group, bucket) = requests.get(window as usize).copied().ok_or(wrong(0))?;
                    if open.replace((group, bucket, i)).is_some() {
                        return Err(wrong(group));
                    }
                }
                BarrierAction::Release(released) => match open.take() {
                    // No action runs after the last stage.
                    Some((group, bucket, after)) if group == released && i + 1 < stages.len() => {
                        missing.get_mut(group as usize).into_iter().for_each(|missing| *missing = false);
                        bounds.push(Bounds { group, bucket, after, before: i });
                    }
                    _ => return Err(wrong(released)),
                },
                BarrierAction::Sort(_)
                | BarrierAction::Predict { .. }
                | BarrierAction::Announce { .. }
                | BarrierAction::Repeat { .. }
                | BarrierAction::Exchange(_)
                | BarrierAction::BeginSum(_)
                | BarrierAction::FinishSum(_) => {}
            }
        }
    }
    match (open, missing.iter().position(|&missing| missing)) {
        (None, None) => Ok(bounds),
        (Some((group, ..)), _) => Err(wrong(group)),
        (None, Some(group)) => Err(wrong(group as u32)),
    }
}

fn weight_args<'a>(
    task: &'a Task,
    group_of_weight: &'a [Option<usize>],
) -> impl Iterator<Item = (&'a Arg, u32, usize)> {
    task.args.iter().filter_map(|arg| match arg.source {
        Source::Weight(weight) => Some((arg, weight, group_of_weight.get(weight as usize).copied().flatten()?)),
        _ => None,
    })
}

fn reads_group(task: &Task, group_of_weight: &[Option<usize>], number: usize) -> bool {
    weight_args(task, group_of_weight).any(|(_, _, group)| group == number)
}

/// Checks that a task reads only experts of this group, and only the matrix of the row's expert.
fn reader(
    plan: &Plan<Kernel>,
    task: &Task,
    group_of_weight: &[Option<usize>],
    number: usize,
    bucket: BucketId,
) -> Result<(), Problem> {
    for (arg, weight, group) in weight_args(task, group_of_weight) {
        let facts = id("weight", weight, &plan.weights)?;
        let bytes = facts.bytes_in(facts.format).and_then(|bytes| bytes.checked_div(facts.shape[0]));
        if group != number || task.rows != RowAxis::Routed(bucket) || Some(arg.expert_stride) != bytes {
            return Err(Problem::Shape {
                expected: "a task that reads its expert's matrix, over the rows of the group's routing",
            });
        }
    }
    Ok(())
}

/// Checks that a loop of stages can run for some experts, and then again for other experts. All
/// stages run again. So no stage may overwrite memory that expert tasks of an earlier stage use.
/// And no expert task may write memory that tasks over other rows use.
fn repeatable(checker: &Checker<'_>, stages: &[Stage], bucket: BucketId) -> Result<(), Problem> {
    let routed = |task: &Task| task.rows == RowAxis::Routed(bucket);
    // Memory ranges that tasks over other rows use, in any stage of the loop.
    let mut taken = Extents::default();
    for task in stages.iter().flat_map(|stage| &stage.tasks).filter(|task| !routed(task)) {
        buffers(checker, task, false)?.into_iter().for_each(|buffer| taken.add(checker.extent(buffer)));
    }
    // Memory ranges that the expert tasks of earlier stages use.
    let mut again = Extents::default();
    for stage in stages {
        for task in &stage.tasks {
            for written in buffers(checker, task, true)? {
                let written = checker.extent(written);
                if again.overlap(&written) || routed(task) && taken.overlap(&written) {
                    return Err(Problem::Shape {
                        expected: "buffers that earlier stages and tasks over other rows do not use",
                    });
                }
            }
        }
        for task in stage.tasks.iter().filter(|task| routed(task)) {
            buffers(checker, task, false)?.into_iter().for_each(|buffer| again.add(checker.extent(buffer)));
        }
    }
    Ok(())
}

/// Returns the arena buffers that a task uses. With `written`, returns only those that it writes.
fn buffers(checker: &Checker<'_>, task: &Task, written: bool) -> Result<Vec<BufferId>, Problem> {
    let mut found = Vec::new();
    for variant in &task.variants {
        for kernel in variant.kernels() {
            let kernel = id("kernel", kernel.0, checker.kernels)?;
            for (arg, parameter) in task.args.iter().zip(&kernel.buffers) {
                let written = !written || matches!(parameter.access, Access::Write);
                if let (Some(buffer), true) = (arg.source.arena(), written) {
                    found.push(buffer);
                }
            }
        }
    }
    Ok(found)
}
