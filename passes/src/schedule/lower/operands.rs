//! Operands of an op. The verifier has checked their kinds with the op table.

use ixc_ir::format::Format;
use ixc_ir::graph::{Op, OpKind, Operand, StateId, TokenOwner, Type, ValueId, WeightId};
use ixc_ir::plan::Source;

use super::{ArenaRows, Binding, Lowering, Rows, ScheduleError, Slots, unsupported_error};

impl Lowering<'_> {
    pub(super) fn meaning(&self, op: &'static str, value: ValueId) -> Result<Binding, ScheduleError> {
        match self.meanings.get(value.index()) {
            Some(Some(meaning)) => Ok(*meaning),
            Some(None) | None => unsupported_error(op, format!("value {} is used before it is defined", value.0)),
        }
    }

    /// Returns the arena rows of a value.
    pub(in crate::schedule) fn arena_rows(&self, op: &'static str, value: ValueId) -> Result<ArenaRows, ScheduleError> {
        match self.meaning(op, value)? {
            Binding::ArenaRows(stored) => Ok(stored),
            Binding::Weight(w) => unsupported_error(
                op,
                format!(
                    "the dequantised weight @{} as a value; only products read weights",
                    self.module.weights[w.index()].name
                ),
            ),
            Binding::Chosen(_) => {
                unsupported_error(op, "slots of an expert.split as data; only ops on experts take them")
            }
            Binding::Marks { .. } => {
                unsupported_error(op, "the positions of an index as data; only attention takes them")
            }
            other => unsupported_error(op, format!("the parameter {other:?} as data")),
        }
    }

    pub(super) fn value_operand(&self, op: &Op, name: &str) -> Result<ValueId, ScheduleError> {
        match op.operand(name) {
            Operand::Value(value) => Ok(value),
            Operand::Weight(_) | Operand::State(_) | Operand::Absent => {
                unsupported_error(op.kind.row().mnemonic, format!("no operand {name}"))
            }
        }
    }

    pub(super) fn operand(&self, op: &Op, name: &str) -> Result<ArenaRows, ScheduleError> {
        self.arena_rows(op.kind.row().mnemonic, self.value_operand(op, name)?)
    }

    /// Returns the ids or weights of slots.
    pub(super) fn slots(&self, op: &Op, name: &str) -> Result<Slots, ScheduleError> {
        match self.meaning(op.kind.row().mnemonic, self.value_operand(op, name)?)? {
            Binding::Chosen(slots) => Ok(slots),
            _ => self.operand(op, name).map(|of| Slots { of, first: 0, count: of.width }),
        }
    }

    pub(super) fn opt_operand(&self, op: &Op, name: &str) -> Result<Option<ArenaRows>, ScheduleError> {
        match op.operand(name) {
            Operand::Value(value) => self.arena_rows(op.kind.row().mnemonic, value).map(Some),
            Operand::Weight(_) | Operand::State(_) | Operand::Absent => Ok(None),
        }
    }

    pub(super) fn opt_weight(&self, op: &Op, name: &str) -> Option<WeightId> {
        match op.operand(name) {
            Operand::Weight(weight) => Some(weight),
            Operand::Value(_) | Operand::State(_) | Operand::Absent => None,
        }
    }

    pub(super) fn weight_operand(&self, op: &Op, name: &str) -> WeightId {
        match self.opt_weight(op, name) {
            Some(weight) => weight,
            None => unreachable!("operand {name} of {} is a weight, as the op table says", op.kind.row().mnemonic),
        }
    }

    /// Checks that `x` has rows of `width` elements in `format`.
    pub(in crate::schedule) fn expect(
        &self,
        op: &'static str,
        x: &ArenaRows,
        format: Format,
        width: u64,
    ) -> Result<(), ScheduleError> {
        if (x.format, x.width) == (format, width) {
            return Ok(());
        }
        unsupported_error(
            op,
            format!("rows of {} elements in {}; expected {width} elements in {format}", x.width, x.format),
        )
    }

    pub(super) fn label(&self, kind: OpKind, w: WeightId) -> String {
        let name = &self.module.weights[w.index()].name;
        format!("{} {}", kind.row().mnemonic, name.strip_suffix(".weight").unwrap_or(name))
    }

    /// Returns the state of the token that an op takes as operand `name`.
    pub(in crate::schedule) fn state(&self, op: &Op, name: &str) -> Result<StateId, ScheduleError> {
        match self.function.ty(self.value_operand(op, name)?) {
            Type::Token(TokenOwner::State(state)) => Ok(*state),
            other => unsupported_error(
                op.kind.row().mnemonic,
                format!("{name} of type {other}; expected the token of a state"),
            ),
        }
    }

    /// Returns the memory of a state's field, as an argument's source.
    pub(in crate::schedule) fn field(&self, state: StateId, field: &str) -> Source {
        Source::State { state: state.0, field: self.module.states[state.index()].kind.field(field) }
    }

    /// Checks that the rows `x` are tokens, and that their positions are the function's parameter.
    pub(super) fn positions(&self, op: &Op, x: &ArenaRows) -> Result<(), ScheduleError> {
        let name = op.kind.row().mnemonic;
        match (self.meaning(name, self.value_operand(op, "pos")?)?, x.rows) {
            (Binding::Positions, Rows::Tokens) => Ok(()),
            _ => unsupported_error(name, "positions that are not the parameter `pos`, or rows other than tokens"),
        }
    }

    /// Returns how an op's positions are changed before its rows are rotated: the multiple to which
    /// they are rounded down, and whether the direction is reversed.
    pub(super) fn rotation(&self, op: &Op, x: &ArenaRows) -> Result<(u32, bool), ScheduleError> {
        match (self.meaning(op.kind.row().mnemonic, self.value_operand(op, "pos")?)?, x.rows) {
            (Binding::Turned { every, back }, Rows::Tokens) => Ok((every, back)),
            _ => self.positions(op, x).map(|()| (1, false)),
        }
    }
}
