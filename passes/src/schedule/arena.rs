//! `arena`: places all buffers in one arena. Buffers with disjoint lifetimes may overlap.
//!
//! A buffer lives from the first step that writes it to the last step that reads it, both included.
//! Tasks of one step run in any order, so two buffers of one step never overlap. The steps that
//! read a group of experts can run first for some experts and later for the others. A buffer that
//! one of these steps accesses is therefore live during all of them. The same holds for steps that
//! compute halves of their rows one after the other.
//!
//! Buffers are placed largest first, each at the lowest free offset. Lifetimes like those of a
//! layer are nested. The arena is then close to the largest sum of buffers that are live at once.

use std::collections::BTreeMap;
use std::ops::Range;

use ixc_ir::plan::{ArenaBuffer, BucketId, BufferId, ExpertLayer, Plan, RowAxis, Task};
use ixc_ir::units::Bytes;
use ixc_kernels::KernelSpec;

use super::{Draft, Resource, ScheduleError, Work, WorkItem, halves, steps};
use crate::decision::Decision;
use crate::draft::DraftStep;
use crate::error::PassError;
use crate::pass::{Context, Pass, Run};

/// Entry of this pass in the list of passes.
pub static PASS: Pass = Pass {
    name: "arena",
    doc: "Places all buffers in one arena, where buffers that are not in use at the same time share bytes. The result is the plan.",
    options: &[],
    run: Run::Plan(run),
};

/// Runs the pass.
///
/// # Errors
/// The arena is too large, or the tasks are not in steps.
pub fn run(draft: Draft, context: &Context<'_>) -> Result<Plan<KernelSpec>, PassError> {
    let Draft { plan, work, steps, .. } = draft;
    let in_steps = || ScheduleError::Draft { problem: "no steps; the pass `steps` makes them".to_string() };
    let steps = steps.ok_or_else(in_steps)?;
    let mut lives = lives(&work, &steps, plan.buffers.len(), plan.logits);
    plan.expert_layers.iter().for_each(|layer| outlive(&mut lives, layer));
    let end = steps.len();
    let hidden = [(plan.takes, 0..1), (plan.gives, end..end + 1)];
    hidden
        .into_iter()
        .for_each(|(rows, also)| rows.iter().for_each(|rows| live_in(&mut lives, rows.buffer, also.clone())));
    let (max_tokens, max_outputs) = (plan.max_tokens, plan.output.most(plan.max_tokens));
    let (buffers, arena_bytes) = place(&plan.buffers, &lives, max_tokens, max_outputs)?;
    context.decide(|| {
        let own = buffers.iter().filter_map(|buffer| bytes(buffer, max_tokens, max_outputs));
        let apart = own.fold(0, u64::saturating_add);
        let decision = Decision::new("buffers", "", "memory")
            .chose(format!("{}, which buffers share over time", Bytes(arena_bytes)));
        decision.over("memory of its own for each buffer", format!("they would take {}", Bytes(apart)))
    });
    tracing::debug!(buffers = buffers.len(), arena_bytes, "placed");
    Ok(Plan { buffers, arena_bytes, steps: steps::build(work, &steps), ..plan })
}

/// Alignment of buffers, the size of a cache line. Threads that write different buffers thus never
/// share a line.
pub(super) const ALIGNMENT: u64 = 64;

/// First and last step of a buffer's life; `None` if no task accesses it.
pub(super) type Life = Option<(usize, usize)>;

/// Returns the lives of `count` buffers. The buffer `result` is live until the end.
pub(super) fn lives(work: &[Work], steps: &[DraftStep], count: usize, result: BufferId) -> Vec<Life> {
    let mut lives: Vec<Life> = vec![None; count];
    for (number, step) in steps.iter().enumerate() {
        for item in step.work.iter().map(|&i| &work[i]) {
            for resource in item.reads.iter().chain(&item.writes) {
                if let Resource::Buffer(buffer) = *resource {
                    let life = &mut lives[buffer as usize];
                    *life = Some((life.map_or(number, |(first, _)| first), number));
                }
            }
        }
    }
    // Live buffers of each step, so that each window of steps examines only the buffers that are
    // live in it. A model has one window per layer, each with many buffers.
    let mut alive: Vec<Vec<usize>> = vec![Vec::new(); steps.len()];
    for (buffer, life) in lives.iter().enumerate() {
        let Some((first, last)) = *life else { continue };
        alive[first..=last].iter_mut().for_each(|alive| alive.push(buffer));
    }
    let halves = halves::sides(work, steps).map(|steps| (steps.start, steps.end.saturating_sub(1)));
    for (first, last) in windows(work, steps).chain(halves) {
        let mut met = alive[first..=last].concat();
        met.sort_unstable();
        met.dedup();
        for buffer in met {
            let Some(life) = &mut lives[buffer] else { continue };
            let longer = (life.0.min(first), life.1.max(last));
            for step in (longer.0..life.0).chain(life.1 + 1..longer.1 + 1) {
                alive[step].push(buffer);
            }
            *life = longer;
        }
    }
    if let Some(life) = lives.get_mut(result.0 as usize) {
        *life = Some((life.map_or(0, |(first, _)| first), steps.len()));
    }
    lives
}

/// Extends the life of a buffer to a range of steps.
fn live_in(lives: &mut [Life], buffer: BufferId, steps: Range<usize>) {
    if let Some(life) = lives.get_mut(buffer.0 as usize) {
        let own = life.map_or(steps.clone(), |(first, last)| first..last + 1);
        *life = Some((own.start.min(steps.start), own.end.max(steps.end) - 1));
    }
}

/// Extends the lives of the input and result buffers of a layer that runs separately. Inputs are
/// live from the layer's first step on, and the result until its last step.
fn outlive(lives: &mut [Life], layer: &ExpertLayer) {
    let (first, last) = (layer.first as usize, layer.first.saturating_add(layer.steps).saturating_sub(1) as usize);
    let ExpertLayer { rows, ids, weights, result, .. } = *layer;
    for buffer in [rows, ids, weights] {
        if let Some(life) = lives.get_mut(buffer.0 as usize) {
            *life = Some((first, life.map_or(first, |(_, last)| last)));
        }
    }
    if let Some(life) = lives.get_mut(result.0 as usize) {
        *life = Some((life.map_or(last, |(first, _)| first), last));
    }
}

/// For each group of experts and each routing that selects some of them, returns the first and last
/// step that read the experts.
fn windows(work: &[Work], steps: &[DraftStep]) -> impl Iterator<Item = (usize, usize)> {
    let mut windows: BTreeMap<(u32, BucketId), (usize, usize)> = BTreeMap::new();
    for (number, step) in steps.iter().enumerate() {
        for item in step.work.iter().map(|&i| &work[i]) {
            let WorkItem::Task(Task { rows: RowAxis::Routed(bucket), .. }) = &item.what else { continue };
            for resource in &item.reads {
                if let Resource::Group(group) = *resource {
                    windows.entry((group, *bucket)).or_insert((number, number)).1 = number;
                }
            }
        }
    }
    windows.into_values()
}

/// Places buffers for steps of at most these numbers of tokens and outputs; returns them and the
/// arena's length.
pub(super) fn place(
    drafts: &[ArenaBuffer],
    lives: &[Life],
    max_tokens: u32,
    max_outputs: u32,
) -> Result<(Vec<ArenaBuffer>, u64), ScheduleError> {
    let mut sizes = Vec::with_capacity(drafts.len());
    for draft in drafts {
        sizes.push(bytes(draft, max_tokens, max_outputs).ok_or_else(|| ScheduleError::TooLarge {
            what: format!("buffer {} in bytes", draft.name),
            value: format!("{} for each of {:?} of {max_tokens} tokens", draft.row_bytes, draft.rows),
            limit: u64::MAX,
        })?);
    }
    let mut order: Vec<usize> = (0..drafts.len()).collect();
    order.sort_unstable_by_key(|&i| (std::cmp::Reverse(sizes[i]), i));
    let mut offsets = vec![0u64; drafts.len()];
    // Placed buffers of each step in which they are live. A step has few live buffers.
    let steps = lives.iter().flatten().map(|(_, last)| last + 1).max().unwrap_or(0);
    let mut placed: Vec<Vec<usize>> = vec![Vec::new(); steps];
    let mut end = 0u64;
    for i in order {
        let life = lives[i].map_or(0..0, |(first, last)| first..last + 1);
        // The sums fit u64, because the ends of all placed buffers were checked when they were
        // placed.
        let others = placed[life.clone()].iter().flatten();
        let mut taken: Vec<(u64, u64)> = others.map(|&i| (offsets[i], offsets[i] + sizes[i])).collect();
        taken.sort_unstable();
        let mut at = 0u64;
        for (from, to) in taken {
            if from.saturating_sub(at) >= sizes[i] && from >= at {
                break;
            }
            at = at.max(to);
        }
        let too_large = || ScheduleError::TooLarge {
            what: "the arena in bytes".to_string(),
            value: format!("{at} and {} more", sizes[i]),
            limit: u64::MAX,
        };
        end = end.max(at.checked_add(sizes[i]).ok_or_else(too_large)?);
        offsets[i] = at;
        placed[life].iter_mut().for_each(|placed| placed.push(i));
    }
    let buffers = drafts.iter().zip(offsets).map(|(draft, offset)| ArenaBuffer {
        name: draft.name.clone(),
        row_bytes: draft.row_bytes,
        rows: draft.rows,
        offset,
    });
    Ok((buffers.collect(), end))
}

/// Returns the length of a buffer in whole cache lines.
fn bytes(draft: &ArenaBuffer, tokens: u32, outputs: u32) -> Option<u64> {
    draft.row_bytes.checked_mul(draft.rows.most(tokens, outputs))?.checked_next_multiple_of(ALIGNMENT)
}

#[cfg(test)]
mod tests {
    use super::*;
    use ixc_ir::plan::RowCount;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn buffers_whose_lives_meet_do_not_overlap(
            buffers in prop::collection::vec((1u64..5000, 0usize..20, 0usize..6, 0u32..4), 1..40),
            max_tokens in 1u32..700,
        ) {
            let rows = |k| if k == 0 { RowCount::Tokens } else { RowCount::Routed { top_k: k } };
            let draft = |&(row_bytes, _, _, k): &(u64, usize, usize, u32)| ArenaBuffer { name: String::new(), row_bytes, rows: rows(k), offset: 0 };
            let drafts: Vec<ArenaBuffer> = buffers.iter().map(draft).collect();
            let lives: Vec<Life> = buffers.iter().map(|&(_, first, length, _)| Some((first, first + length))).collect();
            let (placed, end) = place(&drafts, &lives, max_tokens, max_tokens)?;
            let range = |i: usize| (placed[i].offset, placed[i].offset + bytes(&drafts[i], max_tokens, max_tokens).unwrap_or(0));
            for i in 0..placed.len() {
                prop_assert!(range(i).1 <= end);
                prop_assert_eq!(placed[i].offset % ALIGNMENT, 0);
                for j in 0..i {
                    let ((a0, a1), (b0, b1)) = (lives[i].unwrap_or_default(), lives[j].unwrap_or_default());
                    let ((a, a_end), (b, b_end)) = (range(i), range(j));
                    prop_assert!(a1 < b0 || b1 < a0 || a_end <= b || b_end <= a, "{i} and {j}");
                }
            }
        }
    }

    #[test]
    fn an_arena_that_does_not_fit_is_an_error() {
        let draft = ArenaBuffer { name: "x".to_string(), row_bytes: u64::MAX / 2, rows: RowCount::Tokens, offset: 0 };
        assert!(matches!(place(&[draft], &[Some((0, 1))], 3, 3), Err(ScheduleError::TooLarge { .. })));
    }
}
