//! Stages that compute halves of their rows, around sums of ranks in halves ([`Halves`]).
//!
//! Each step around such a sum becomes two stages, one for each half of its rows. In steps with too
//! few tokens, the first one computes all rows, and the second one is empty.

use ixc_ir::plan::{BufferId, Exchange, Halves};

use super::{BarrierAction, Stage};

/// A half of the rows of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Half {
    /// First half of the rows.
    First,
    /// Second half of the rows.
    Second,
}

/// Side of a sum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The steps that compute the parts.
    Before,
    /// The steps that read the sum.
    After,
}

/// The half of its rows that a stage computes. The stages of the first half are consecutive, in
/// front of those of the second half.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StageHalf {
    /// The half.
    pub half: Half,
    /// Side of the sum.
    pub side: Side,
    /// Number of the first stage of the first half.
    pub first: usize,
    /// Number of stages of each half.
    pub count: usize,
    /// Position of the stage in its half, below `count`.
    pub position: usize,
    /// Min tokens of a step for halves.
    pub rows: u32,
}

/// A half of a sum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SumHalf {
    /// The half.
    pub half: Half,
    /// The part of this rank.
    pub part: BufferId,
    /// The sum.
    pub sum: BufferId,
    /// Min tokens of a step for halves.
    pub rows: u32,
}

/// Steps after a sum whose stages are incomplete.
pub(super) struct OpenHalves {
    /// Number of the last step.
    pub last: usize,
    steps: usize,
    sum: SumHalf,
}

/// Returns the first half of an exchange in halves.
pub(super) fn first_half(exchange: Exchange) -> Option<(SumHalf, Halves)> {
    match exchange {
        Exchange::SumHalves { part, sum, halves } => {
            Some((SumHalf { half: Half::First, part, sum, rows: halves.rows }, halves))
        }
        Exchange::Sum { .. } | Exchange::Gather { .. } | Exchange::Send { .. } | Exchange::Receive { .. } => None,
    }
}

/// Adds an action after the last stage.
pub(super) fn add_action(stages: &mut Vec<Stage>, then: BarrierAction) {
    if stages.is_empty() {
        stages.push(Stage::default());
    }
    if let Some(stage) = stages.last_mut() {
        stage.then.push(then);
    }
}

/// Divides the stages before a sum, and adds the actions of the sum. Returns the steps after the
/// sum, if any, whose stages [`finish_sum`] divides. `last` is the last of these steps.
pub(super) fn begin_sum(
    stages: &mut Vec<Stage>,
    exchange: Exchange,
    last: usize,
    first_task: &mut usize,
) -> Option<OpenHalves> {
    let (sum, halves) = first_half(exchange)?;
    let begin = |half| BarrierAction::BeginSum(SumHalf { half, ..sum });
    let finish = |half| BarrierAction::FinishSum(SumHalf { half, ..sum });
    divide(stages, Side::Before, halves.before as usize, sum, begin(Half::First), first_task);
    add_action(stages, begin(Half::Second));
    add_action(stages, finish(Half::First));
    if halves.after > 0 {
        return Some(OpenHalves { last, steps: halves.after as usize, sum });
    }
    add_action(stages, finish(Half::Second));
    None
}

/// Divides the stages after a sum, the last ones.
pub(super) fn finish_sum(stages: &mut Vec<Stage>, open: &OpenHalves, first_task: &mut usize) {
    let finish = BarrierAction::FinishSum(SumHalf { half: Half::Second, ..open.sum });
    divide(stages, Side::After, open.steps, open.sum, finish, first_task);
}

/// Divides the last `count` stages into halves of their rows. `between` is the action between the
/// halves.
fn divide(
    stages: &mut Vec<Stage>,
    side: Side,
    count: usize,
    sum: SumHalf,
    between: BarrierAction,
    first_task: &mut usize,
) {
    let first = stages.len().saturating_sub(count);
    for (position, stage) in stages.iter_mut().skip(first).enumerate() {
        stage.half = Some(StageHalf { half: Half::First, side, first, count, position, rows: sum.rows });
    }
    let second: Vec<Stage> = stages.iter().skip(first).map(second_half).collect();
    add_action(stages, between);
    for mut stage in second {
        stage.first_task = *first_task;
        *first_task += stage.tasks.len();
        stages.push(stage);
    }
}

/// Returns the stage of the second half.
fn second_half(stage: &Stage) -> Stage {
    let half = stage.half.map(|half| StageHalf { half: Half::Second, ..half });
    Stage { half, then: Vec::new(), ..stage.clone() }
}
