//! Checks of the steps around a sum of ranks in halves of the rows.
//!
//! Invariant: each buffer that the steps of one side access has memory of its own. Otherwise the
//! second half would read rows that the first half has overwritten.

use ixc_ir::plan::{BufferId, Exchange, RowAxis, RowCount, Source, Step, Task};

use super::Checker;
use crate::program::halves::{SumHalf, first_half};
use crate::program::{MAX_TOKENS, Problem, range};

/// Max steps on each side of a sum that compute the halves one after the other.
const MAX_STEPS: u32 = 64;

impl Checker<'_> {
    /// Checks the steps around the sum that is step `at`. Steps before `free` compute the halves of
    /// another sum. Returns the first step that later sums may divide.
    pub(in crate::program) fn check_halves(
        &self,
        at: usize,
        exchange: Exchange,
        free: usize,
    ) -> Result<usize, Problem> {
        let Some((sum, halves)) = first_half(exchange) else { return Ok(free) };
        range("tokens from which a sum has halves", halves.rows, 2, MAX_TOKENS)?;
        range("steps before a sum in halves", halves.before, 0, MAX_STEPS)?;
        range("steps after a sum in halves", halves.after, 0, MAX_STEPS)?;
        let (before, after) = (halves.before as usize, halves.after as usize);
        let first = at.checked_sub(before).filter(|first| *first >= free);
        let sides =
            first.and_then(|first| Some([self.plan.steps.get(first..at)?, self.plan.steps.get(at + 1..=at + after)?]));
        let Some(sides) = sides else {
            return Err(Problem::Shape { expected: "steps around a sum that no other sum divides into halves" });
        };
        for buffer in [sum.part, sum.sum] {
            if self.plan.buffers.get(buffer.0 as usize).is_none_or(|buffer| buffer.rows != RowCount::Tokens) {
                return Err(Problem::Shape { expected: "a sum in halves over rows of tokens" });
            }
        }
        sides.into_iter().try_for_each(|steps| self.check_side(steps, sum))?;
        Ok(at + 1 + after)
    }

    /// Checks the steps of a side.
    fn check_side(&self, steps: &[Step], sum: SumHalf) -> Result<(), Problem> {
        let mut buffers = vec![sum.part, sum.sum];
        for step in steps {
            let Step::Run { tasks, .. } = step else {
                return Err(Problem::Shape { expected: "only tasks in the steps that compute halves of the rows" });
            };
            for task in tasks {
                if !self.reads_own_rows(task) {
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
            false => Err(Problem::Shape { expected: "memory of its own for each buffer of steps that compute halves" }),
        }
    }

    /// Returns whether a task computes each token from its own rows, and uses no state.
    fn reads_own_rows(&self, task: &Task) -> bool {
        let is_own = |source: Source, row_stride: u64| match source {
            Source::Arena(buffer) => {
                let buffer = self.plan.buffers.get(buffer.0 as usize);
                buffer.is_some_and(|buffer| buffer.rows == RowCount::Tokens && buffer.row_bytes == row_stride)
            }
            Source::Weight(_) | Source::Rope(_) | Source::Scratch | Source::Input(_) => true,
            Source::State { .. } | Source::Chosen { .. } => false,
        };
        task.rows == RowAxis::Tokens
            && task.variants.iter().all(|variant| variant.split.is_none())
            && task.args.iter().all(|arg| is_own(arg.source, arg.row_stride))
    }
}
