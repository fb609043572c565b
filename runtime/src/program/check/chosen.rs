//! Checks of chosen cache slots, which an index (sparse attention) selects from a state.

use ixc_ir::plan::{
    ATTENTION_BLOCK, Arg, BufferId, ChoiceUnit, PositionChoice, RowAxis, RowCount, Source, Task, Variant,
};

use super::super::{Access, LINE_BYTES, MAX_CONTEXT, Parameter, Problem, id, range};
use super::Checker;

/// Checks that a choice selects at least one slot, and whole runs or blocks of slots.
fn check(choice: PositionChoice) -> Result<(), Problem> {
    range("the number of chosen cache slots", choice.top_k, 1, MAX_CONTEXT)?;
    range("the number of positions that are chosen together", choice.every, 1, MAX_CONTEXT)?;
    if choice.is_valid() {
        Ok(())
    } else {
        Err(Problem::Shape { expected: "a choice of whole runs or blocks of positions" })
    }
}

/// Returns the choice that determines which positions a task's rows see; `None` if they see all
/// positions.
pub fn position_choice(task: &Task) -> Result<Option<PositionChoice>, Problem> {
    let chosen = |arg: &Arg| match arg.source {
        Source::Chosen { choice, .. } => Some(choice),
        _ => None,
    };
    let mut choices = task.args.iter().filter_map(chosen);
    let Some(choice) = choices.next() else { return Ok(None) };
    if task.rows != RowAxis::Tokens || choices.any(|other| other != choice) {
        return Err(Problem::Shape {
            expected: "rows of tokens and a single choice, because an index chose cache slots",
        });
    }
    // Chosen entries are read in addition to positions, so they do not limit the positions.
    if choice.of == ChoiceUnit::Entries {
        let alone = task.variants.iter().all(|variant| variant.row_chunk == 1);
        return if alone {
            Ok(None)
        } else {
            Err(Problem::Shape { expected: "one row at a time, because an index chose compressed entries" })
        };
    }
    if task.args.iter().any(|arg| matches!(arg.source, Source::State { .. })) {
        return Err(Problem::Shape { expected: "no arguments from other states, because an index chose positions" });
    }
    Ok(Some(choice))
}

impl Checker<'_> {
    /// Checks that an argument covers all chosen slots from the first one on; other ranges are not
    /// supported. Also checks that a row of the mask has bits for all columns.
    pub(super) fn check_unshifted(&self, columns: u32, arg: &Arg) -> Result<(), Problem> {
        let Source::Chosen { marks, choice, .. } = arg.source else { return Ok(()) };
        let Arg { offset, row_stride, column_stride, expert_stride, .. } = *arg;
        if [offset, row_stride, expert_stride] != [0; 3] || !column_stride.is_multiple_of(4) {
            return Err(Problem::Shape { expected: "all chosen cache slots, from the first" });
        }
        let marks = id("buffer", marks.0, &self.plan.buffers)?;
        let last = column_stride.saturating_mul(u64::from(columns).saturating_sub(1));
        match last.saturating_add(self.bytes_of_bits(choice)) <= marks.row_bytes {
            true => Ok(()),
            false => Err(Problem::Shape { expected: "a bit for each column and each cache slot of the context" }),
        }
    }

    /// Returns the number of bytes of a mask with one bit for each slot of the context, rounded up
    /// to whole words.
    fn bytes_of_bits(&self, choice: PositionChoice) -> u64 {
        u64::from(self.plan.context_length.div_ceil(choice.of_bit()).div_ceil(ATTENTION_BLOCK)) * 4
    }

    /// Checks that an index chooses among the slots of a suitable state, and that its mask has a
    /// bit for each slot of the context.
    pub(super) fn check_choice(
        &self,
        state: u32,
        field: u32,
        marks: BufferId,
        choice: PositionChoice,
    ) -> Result<(), Problem> {
        check(choice)?;
        let state = id("state", state, &self.plan.states)?;
        let held = id("field of a state", field, &state.fields)?;
        let every = choice.of_bit();
        // Slots are copied as elements of two bytes, so the format must have two bytes for each
        // element.
        let halves = (held.format.block_len(), held.format.block_bytes()) == (1, 2);
        if !held.positions || !halves || state.window.is_some() || state.every != every {
            return Err(Problem::Shape {
                expected: "an f16 state without a window, with as many positions per cache slot as the choice",
            });
        }
        let marks = id("buffer", marks.0, &self.plan.buffers)?;
        let aligned = marks.offset.is_multiple_of(4) && marks.row_bytes.is_multiple_of(4);
        if marks.rows != RowCount::Tokens || !aligned || marks.row_bytes < self.bytes_of_bits(choice) {
            return Err(Problem::Shape {
                expected: "aligned rows for tokens, with one bit for each cache slot of the context",
            });
        }
        Ok(())
    }

    /// Checks that no task of a step writes a state from which a task of the same step takes chosen
    /// slots. The runtime copies such slots before the kernel runs.
    pub(super) fn chosen_of_others(&self, tasks: &[Task]) -> Result<(), Problem> {
        let chosen = |arg: &Arg| match arg.source {
            Source::Chosen { state, field, .. } => Some((state, field)),
            _ => None,
        };
        let chosen: Vec<(u32, u32)> = tasks.iter().flat_map(|task| &task.args).filter_map(chosen).collect();
        for task in tasks.iter().filter(|_| !chosen.is_empty()) {
            for kernel in task.variants.iter().flat_map(Variant::kernels) {
                let kernel = id("kernel", kernel.0, self.kernels)?;
                let writes = |(buffer, arg): (&Parameter, &Arg)| match arg.source {
                    Source::State { state, field } => {
                        matches!(buffer.access, Access::Write) && chosen.contains(&(state, field))
                    }
                    _ => false,
                };
                if kernel.buffers.iter().zip(&task.args).any(writes) {
                    return Err(Problem::Shape { expected: "a step after the one that writes the chosen cache slots" });
                }
            }
        }
        Ok(())
    }

    /// Returns the maximum number of bytes of chosen slots that are copied for one item of a task.
    pub(in crate::program) fn chosen_bytes(&self, task: &Task) -> u64 {
        let bytes = |arg: &Arg| match arg.source {
            Source::Chosen { state, field, choice, .. } => {
                let field = self.plan.states.get(state as usize)?.fields.get(field as usize)?;
                let places =
                    choice.most().min(self.plan.context_length.into()).next_multiple_of(ATTENTION_BLOCK.into());
                Some(field.row_bytes()?.checked_mul(places)?.next_multiple_of(LINE_BYTES))
            }
            _ => Some(0),
        };
        task.args.iter().map(bytes).fold(0, |sum, bytes| sum.saturating_add(bytes.unwrap_or(u64::MAX)))
    }
}
