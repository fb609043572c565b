//! Access to the operands of the op that is evaluated, by their names in the op table.

use std::borrow::Cow;

use super::{InterpretError, Interpreter, Value, index, math};
use crate::format::Format;
use crate::graph::quantise::quantise_rows;
use crate::graph::{Function, Op, Operand, StateId, TokenOwner, Type, ValueId, WeightId};

/// Result of an index op: lists of chosen positions, or of chosen entries of a state.
pub(super) struct PlaceLists<'a> {
    /// Dimensions; the last one is the length of a list.
    pub(super) dims: &'a [usize],
    /// Elements of the lists, one list after the other.
    pub(super) places: &'a [i32],
}

/// Values of a function that were computed so far.
pub(super) struct Env<'a> {
    pub(super) function: &'a Function,
    pub(super) values: Vec<Option<Value>>,
}

impl Env<'_> {
    /// Sets the results of an op.
    pub(super) fn set(&mut self, op: &Op, results: Vec<Value>) {
        for (id, value) in op.results.iter().zip(results) {
            self.values[id.index()] = Some(value);
        }
    }

    pub(super) fn get(&self, id: ValueId) -> &Value {
        match &self.values[id.index()] {
            Some(value) => value,
            None => unreachable!("verified: {} is defined before it is used", self.function.label(id)),
        }
    }
}

/// One evaluation of an op.
pub(super) struct Call<'c, 'm> {
    pub(super) interpreter: &'c mut Interpreter<'m>,
    pub(super) op: &'c Op,
    pub(super) env: &'c Env<'c>,
}

impl<'c> Call<'c, '_> {
    pub(super) fn mnemonic(&self) -> &'static str {
        self.op.kind.row().mnemonic
    }

    fn value_id(&self, name: &str) -> ValueId {
        match self.op.operand(name) {
            Operand::Value(value) => value,
            other => unreachable!("verified: operand {name} is {other:?}"),
        }
    }

    pub(super) fn value(&self, name: &str) -> &'c Value {
        self.env.get(self.value_id(name))
    }

    /// Returns the value of an optional operand, or `None` if the operand is absent.
    pub(super) fn value_if_given(&self, name: &str) -> Option<&'c Value> {
        match self.op.operand(name) {
            Operand::Value(value) => Some(self.env.get(value)),
            Operand::Weight(_) | Operand::State(_) | Operand::Absent => None,
        }
    }

    pub(super) fn dims(&self, name: &str) -> Vec<usize> {
        self.interpreter.dims(self.value(name))
    }

    /// Returns the elements of an operand as f32. Quantised activations and weights are
    /// dequantised.
    pub(super) fn f32s(&self, name: &str) -> Result<Cow<'c, [f32]>, InterpretError> {
        self.interpreter.floats(self.value(name))
    }

    pub(super) fn ints(&self, name: &str) -> &'c [i32] {
        ints(self.value(name))
    }

    pub(super) fn weight(&self, name: &str) -> WeightId {
        match self.op.operand(name) {
            Operand::Weight(weight) => weight,
            other => unreachable!("verified: operand {name} is {other:?}"),
        }
    }

    /// Returns the dequantised elements of a weight operand.
    pub(super) fn dequantise(&self, name: &str) -> Result<Vec<f32>, InterpretError> {
        self.interpreter.dequantise(self.weight(name))
    }

    /// Returns the dequantised elements of an optional weight operand, or `None` if it is absent.
    pub(super) fn dequantised_if_given(&self, name: &str) -> Result<Option<Vec<f32>>, InterpretError> {
        match self.op.operand(name) {
            Operand::Weight(weight) => self.interpreter.dequantise(weight).map(Some),
            Operand::Absent => Ok(None),
            other @ (Operand::Value(_) | Operand::State(_)) => unreachable!("verified: {other:?} is no weight"),
        }
    }

    /// Adds the operand `residual` to `y`, unless it is absent.
    pub(super) fn add_residual(&self, y: Vec<f32>) -> Result<Vec<f32>, InterpretError> {
        match self.value_if_given("residual") {
            Some(residual) => Ok(math::add(&y, &self.interpreter.floats(residual)?)),
            None => Ok(y),
        }
    }

    /// Returns the state of the token operand with this name.
    pub(super) fn state(&self, token: &str) -> StateId {
        match self.env.function.ty(self.value_id(token)) {
            Type::Token(TokenOwner::State(state)) => *state,
            other => unreachable!("verified: {other} is no token of a state"),
        }
    }

    /// Returns the elements of the `recurrent` state of the token operand with this name.
    pub(super) fn recurrent_state(&mut self, token: &str) -> &mut [f32] {
        let state = self.state(token);
        let [elements] = &mut self.interpreter.states[state.index()][..] else {
            unreachable!("verified: a recurrent state has one field")
        };
        elements
    }

    /// Returns the lists of the operand `chosen`, or `None` if it is absent.
    pub(super) fn choice(&self) -> Option<PlaceLists<'c>> {
        self.value_if_given("chosen").map(|chosen| match chosen {
            Value::I32 { dims, data } => PlaceLists { dims, places: data },
            other => unreachable!("verified: {other:?} is no choice"),
        })
    }

    /// Returns `x` quantised to the format in the op's attribute `format`.
    pub(super) fn quantise(&self, dims: Vec<usize>, x: &[f32]) -> Value {
        match self.op.attr("format").format() {
            Format::F32 => Value::F32 { dims, data: x.to_vec() },
            format => {
                let bytes = quantise_rows(format, x, dims.last().copied().unwrap_or(1));
                Value::Blocks { format, dims, bytes }
            }
        }
    }

    /// Returns a number from the data as an index. Fails if it is not in `0..bound`.
    pub(super) fn index(&self, what: &'static str, found: i32, bound: usize) -> Result<usize, InterpretError> {
        index(self.mnemonic(), what, found, bound)
    }
}

pub(super) fn ints(value: &Value) -> &[i32] {
    match value {
        Value::I32 { data, .. } => data,
        other => unreachable!("verified: {other:?} is no i32"),
    }
}
