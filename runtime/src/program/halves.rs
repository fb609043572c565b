//! Stages that compute one half of their rows, around sums over ranks that are computed in two
//! halves ([`Halves`]).
//!
//! Each plan step around such a sum becomes two stages, one for each half of the rows. If a step of
//! the engine has too few tokens for halves, the first stage computes all rows, and the second
//! stage is empty.

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

/// Position of a step relative to a sum over ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The step is before the sum: it computes this rank's part of the sum.
    Before,
    /// The step is after the sum: it reads the result.
    After,
}

/// The half of the rows that a stage computes. The stages of the first half are consecutive, and
/// those of the second half follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StageHalf {
    /// Half of the rows.
    pub half: Half,
    /// Position of the stage relative to the sum.
    pub side: Side,
    /// Index of the first stage of the first half.
    pub first: usize,
    /// Number of stages of each half.
    pub count: usize,
    /// Index of the stage among those of its half, below `count`.
    pub position: usize,
    /// Minimum number of tokens of a step for computing in halves.
    pub rows: u32,
}

/// One half of a sum over ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SumHalf {
    /// Half of the rows.
    pub half: Half,
    /// Buffer with the part of this rank.
    pub part: BufferId,
    /// Buffer for the sum over all ranks.
    pub sum: BufferId,
    /// Minimum number of tokens of a step for computing in halves.
    pub rows: u32,
}

/// Steps after a sum in halves whose stages are not complete yet.
pub(super) struct OpenHalves {
    /// Index of the last of these steps in the plan.
    pub last: usize,
    steps: usize,
    sum: SumHalf,
}

/// Returns the first half of an exchange if it is a sum in halves.
pub(super) fn first_half(exchange: Exchange) -> Option<(SumHalf, Halves)> {
    match exchange {
        Exchange::SumHalves { part, sum, halves } => {
            Some((SumHalf { half: Half::First, part, sum, rows: halves.rows }, halves))
        }
        Exchange::Sum { .. } | Exchange::Gather { .. } | Exchange::Send { .. } | Exchange::Receive { .. } => None,
    }
}

/// Adds an action to the barrier after the last stage.
pub(super) fn add_action(stages: &mut Vec<Stage>, then: BarrierAction) {
    if stages.is_empty() {
        stages.push(Stage::default());
    }
    if let Some(stage) = stages.last_mut() {
        stage.then.push(then);
    }
}

/// Divides the stages before a sum into halves, and adds the sum's actions. If the sum also covers
/// steps after it, returns them, for [`finish_sum`]. `last` is the index of the last of these
/// steps.
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

/// Divides the stages after a sum into halves. They are the last stages.
pub(super) fn finish_sum(stages: &mut Vec<Stage>, open: &OpenHalves, first_task: &mut usize) {
    let finish = BarrierAction::FinishSum(SumHalf { half: Half::Second, ..open.sum });
    divide(stages, Side::After, open.steps, open.sum, finish, first_task);
}

/// Divides each of the last `count` stages into two stages, one for each half of its rows. The
/// action `between` runs between the halves.
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

/// Returns the stage that computes the second half of a stage's rows.
fn second_half(stage: &Stage) -> Stage {
    let half = stage.half.map(|half| StageHalf { half: Half::Second, ..half });
    Stage { half, then: Vec::new(), ..stage.clone() }
}
