//! Checks of the steps around a sum over ranks, if the sum and these steps compute their rows in
//! two halves.
//!
//! Invariant: the buffers that the steps of one side access do not overlap in memory. Otherwise the
//! second half would read rows that the first half has overwritten. If layers run separately, all
//! of the steps belong to one layer. Otherwise a layer would end with a pending exchange, and a
//! later exchange would receive its messages.

use std::ops::Range;

use ixc_ir::plan::{BufferId, Exchange, RowCount, Step};

use super::Checker;
use crate::program::halves::{SumHalf, first_half};
use crate::program::{MAX_TOKENS, Problem, range};

/// Maximum number of steps on each side of a sum that compute their rows in halves.
const MAX_STEPS: u32 = 64;

impl Checker<'_> {
    /// Checks the steps around the sum, which is step `at`. They must be in `free`: the steps of
    /// the sum's layer that no earlier sum computes in halves. Returns the first step that a later
    /// sum may compute in halves.
    pub(in crate::program) fn check_halves(
        &self,
        at: usize,
        exchange: Exchange,
        free: Range<usize>,
    ) -> Result<usize, Problem> {
        let Some((sum, halves)) = first_half(exchange) else { return Ok(free.start) };
        range("the number of tokens from which a sum is computed in halves", halves.rows, 2, MAX_TOKENS)?;
        range("the number of steps before a sum in halves", halves.before, 0, MAX_STEPS)?;
        range("the number of steps after a sum in halves", halves.after, 0, MAX_STEPS)?;
        let (before, after) = (halves.before as usize, halves.after as usize);
        let first = at.checked_sub(before).filter(|first| *first >= free.start);
        let steps = self.plan.steps.get(..free.end).unwrap_or_default();
        let sides = first.and_then(|first| Some([steps.get(first..at)?, steps.get(at + 1..=at + after)?]));
        let Some(sides) = sides else {
            return Err(Problem::Shape { expected: "steps of the sum's layer that no other sum divides into halves" });
        };
        for buffer in [sum.part, sum.sum] {
            if self.plan.buffers.get(buffer.0 as usize).is_none_or(|buffer| buffer.rows != RowCount::Tokens) {
                return Err(Problem::Shape { expected: "a sum in halves over rows of tokens" });
            }
        }
        sides.into_iter().try_for_each(|steps| self.check_side(steps, sum))?;
        Ok(at + 1 + after)
    }

    /// Checks the steps on one side of the sum.
    fn check_side(&self, steps: &[Step], sum: SumHalf) -> Result<(), Problem> {
        let mut buffers = vec![sum.part, sum.sum];
        for step in steps {
            let Step::Run { tasks, .. } = step else {
                return Err(Problem::Shape { expected: "only tasks in the steps that compute halves of the rows" });
            };
            for task in tasks {
                if !task.reads_own_rows(&self.plan.buffers) {
                    return Err(Problem::Shape { expected: "tasks that compute each token from its own rows" });
                }
                buffers.extend(task.args.iter().filter_map(|arg| arg.source.arena()));
            }
        }
        buffers.sort_unstable_by_key(|buffer| (self.extent(*buffer).start, buffer.0));
        buffers.dedup();
        let is_apart = |pair: &[BufferId]| self.extent(pair[0]).end <= self.extent(pair[1]).start;
        match buffers.windows(2).all(is_apart) {
            true => Ok(()),
            false => Err(Problem::Shape {
                expected: "separate memory for each buffer of the steps that compute halves of the rows",
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use ixc_ir::kernel::Kernel;
    use ixc_ir::plan::{ArenaBuffer, ExpertLayer, Halves, Output, Plan};

    use super::*;
    use crate::program::PlanError;

    /// Returns a plan with two layers of three steps each. The second step of each layer is a sum
    /// over ranks.
    fn two_layers([first, second]: [Halves; 2]) -> Plan<Kernel> {
        let run = || Step::Run { tasks: Vec::new(), alone: 0 };
        let sum = |halves| Step::Exchange(Exchange::SumHalves { part: BufferId(0), sum: BufferId(1), halves });
        let buffer = |offset| ArenaBuffer { name: "x".to_owned(), row_bytes: 4, rows: RowCount::Tokens, offset };
        let id = BufferId(0);
        let layer =
            |layer: u32| ExpertLayer { layer, first: 3 * layer, steps: 3, rows: id, ids: id, weights: id, result: id };
        Plan {
            architecture: String::new(),
            target: String::new(),
            max_tokens: 8,
            context_length: 8,
            vocabulary: 8,
            files: Vec::new(),
            derived: Vec::new(),
            weights: Vec::new(),
            own_weight_bytes: 0,
            expert_groups: Vec::new(),
            ropes: Vec::new(),
            states: Vec::new(),
            buckets: 0,
            buffers: vec![buffer(0), buffer(64)],
            arena_bytes: 128,
            kernels: Vec::new(),
            steps: vec![run(), sum(first), run(), run(), sum(second), run()],
            logits: id,
            output: Output::Experts { width: 1 },
            takes: None,
            gives: None,
            expert_layers: vec![layer(0), layer(1)],
            ranks: None,
            tokenizer: Vec::new(),
        }
    }

    /// Returns the number of stages of each layer.
    fn stages(plan: &Plan<Kernel>) -> Result<Vec<usize>, PlanError> {
        let (_, layers) = Checker { plan, kernels: &[], routings: &[] }.stages()?;
        Ok(layers.into_iter().map(|stages| stages.len()).collect())
    }

    #[test]
    fn halves_of_a_sum_are_in_its_layer() {
        let halves = |before, after| Halves { rows: 2, before, after };
        // Each layer has an empty stage, and two stages for each of the two steps with halves.
        assert_eq!(stages(&two_layers([halves(1, 1), halves(1, 1)])), Ok(vec![5, 5]));
        // A step without halves has only one stage.
        assert_eq!(stages(&two_layers([halves(1, 0), halves(0, 1)])), Ok(vec![4, 4]));
        // In one plan, a sum tries to include a step of the next layer; in the other plan, a step
        // of the previous layer.
        for (at, sums) in [(1, [halves(1, 2), halves(0, 0)]), (4, [halves(0, 0), halves(2, 1)])] {
            let problem = Problem::Shape { expected: "steps of the sum's layer that no other sum divides into halves" };
            assert_eq!(stages(&two_layers(sums)), Err(PlanError { place: format!("step {at}"), problem }));
        }
    }
}
