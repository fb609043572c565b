//! Sums over ranks in two halves of the rows: the messages of one half travel while the ranks
//! compute the other half.
//!
//! Needs: steps. Leaves: each sum over tokens as [`Exchange::SumHalves`]. On each side of the sum,
//! the steps up to the nearest product also run in halves, because a product takes longer than
//! other tasks. Steps between the sum and that product must compute each token from its own rows:
//!
//! ```text
//! step 7: run                                  linear attn_output         halves
//! step 8: add parts of all ranks, in halves    with 1 before and 2 after
//! step 9: run, alone with 1 row                norm, quantise             halves
//! step 10: run                                 linear ffn_gate, ffn_up    halves
//! step 11: run                                 linear ffn_down            halves of the next sum
//! ```
//!
//! The result has the same bits as without halves, because each row gets the same kernel calls. The
//! rule depends on no size, so all ranks divide the same sums.

use std::ops::Range;

use ixc_ir::plan::{BufferId, Exchange, Halves, Plan, RowCount, Source, Step, Task};
use ixc_ir::units::count_text;
use ixc_kernels::KernelSpec;

use crate::decision::Decision;
use crate::draft::{Draft, DraftStep, Work, WorkItem};
use crate::pass::Context;

/// Max steps that run in halves on each side of a sum.
const MAX_STEPS: usize = 16;

/// Divides the sums in the step range `own`, which is one separately run layer or the whole plan.
/// Halves are used in runs with at least `rows` tokens.
pub(super) fn divide(draft: &mut Draft, steps: &[DraftStep], own: Range<usize>, rows: u32, context: &Context<'_>) {
    // The first step that no earlier sum divides.
    let mut free = own.start;
    let end = own.end;
    for at in own {
        let Some((item, part, sum)) = sum_at(draft, &steps[at]) else { continue };
        let before = nearest(draft, steps, (free..at).rev());
        let after = nearest(draft, steps, at + 1..end);
        free = at + 1 + after;
        let halves = Halves { rows, before: before as u32, after: after as u32 };
        context.decide(|| decision(draft, part, halves));
        draft.work[item].what = WorkItem::Exchange(Step::Exchange(Exchange::SumHalves { part, sum, halves }));
    }
}

/// For each sum in halves, returns two ranges of steps: the steps before it with the sum, and the
/// sum with the steps after it.
pub(super) fn sides(work: &[Work], steps: &[DraftStep]) -> impl Iterator<Item = Range<usize>> {
    let halves = |step: &DraftStep| {
        step.work.iter().find_map(|&i| match &work[i].what {
            WorkItem::Exchange(Step::Exchange(exchange)) => exchange.halves(),
            _ => None,
        })
    };
    let sums = steps.iter().enumerate().filter_map(move |(at, step)| Some((at, halves(step)?)));
    let end = steps.len();
    sums.flat_map(move |(at, Halves { before, after, .. })| {
        [at.saturating_sub(before as usize)..at + 1, at..(at + 1).saturating_add(after as usize).min(end)]
    })
}

/// If a step adds rows of tokens over ranks, returns its work, the buffer of this rank's part and
/// the buffer of the sum.
fn sum_at(draft: &Draft, step: &DraftStep) -> Option<(usize, BufferId, BufferId)> {
    let [item] = step.work[..] else { return None };
    match draft.work[item].what {
        WorkItem::Exchange(Step::Exchange(Exchange::Sum { part, sum })) => {
            [part, sum].iter().all(|buffer| is_of_tokens(&draft.plan, *buffer)).then_some((item, part, sum))
        }
        _ => None,
    }
}

/// Returns the number of steps in `order` up to and including the first one with a product. Returns
/// 0 if one of them needs rows of other tokens.
fn nearest(draft: &Draft, steps: &[DraftStep], order: impl Iterator<Item = usize>) -> usize {
    for (count, at) in (1..=MAX_STEPS).zip(order) {
        let mut has_product = false;
        for &item in &steps[at].work {
            let WorkItem::Task(task) = &draft.work[item].what else { return 0 };
            if !task.reads_own_rows(&draft.plan.buffers) {
                return 0;
            }
            has_product |= is_product(&draft.plan, task);
        }
        if has_product {
            return count;
        }
    }
    0
}

fn is_of_tokens(plan: &Plan<KernelSpec>, buffer: BufferId) -> bool {
    plan.buffers.get(buffer.0 as usize).is_some_and(|buffer| buffer.rows == RowCount::Tokens)
}

/// Returns whether a task is a matrix product: it reads a matrix of more than one row, column by
/// column.
fn is_product(plan: &Plan<KernelSpec>, task: &Task) -> bool {
    task.args.iter().any(|arg| match arg.source {
        Source::Weight(weight) => {
            arg.column_stride > 0 && plan.weights.get(weight as usize).is_some_and(|weight| weight.shape.len() > 1)
        }
        _ => false,
    })
}

fn decision(draft: &Draft, part: BufferId, halves: Halves) -> Decision {
    let name = draft.plan.buffers.get(part.0 as usize).map_or("", |buffer| buffer.name.as_str());
    let Halves { rows, before, after } = halves;
    let chosen = format!("in two halves of the rows, from steps of {} on", count_text(rows.into(), "token"));
    let why = match (before, after) {
        (0, 0) => "the messages of the two halves travel together, because no step near the sum can compute only one half of the rows".to_owned(),
        _ => format!(
            "the messages of one half of the rows travel while ranks compute the other half: in {} before and {} after the sum",
            count_text(before.into(), "step"),
            count_text(after.into(), "step")
        ),
    };
    Decision::new("all_reduce", name, "rows").chose(chosen).over("all rows at once", why)
}
