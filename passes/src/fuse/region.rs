//! Regions: finds points at which a function is cut, and turns the ops between two cuts into a
//! function.
//!
//! A cut loses no fusion if no rule matches across it. Only values that cross the cut matter:
//! values defined before it and used after it. Parameters and results of ops with effects are
//! leaves on both sides anyway. Any other value may cross under two conditions. First, it is
//! *closed* ([`super::rules::Closed`]): no rule matches a user of the value together with the op
//! that defines it. Second, no op before the cut uses it. The two sides then share no value that is
//! computed from it, such as its quantised rows. The residual stream meets both conditions between
//! a layer's attention and its network, and between two layers:
//!
//! ```text
//!   %x1 = add %x, %attended : f32[T, 256]      // a residual is added into a product; no rule looks into the sum
//!   ---------------------------------------- cut
//!   %h = rms_norm %x1, @norm {eps = 1e-6} : f32[T, 256]
//! ```
//!
//! A layer of a model is thus two regions. Weights, states, values and layers are numbered from the
//! region's start, so regions of equal layers have equal text. A region that would exceed the
//! maximum length is cut at the point with the fewest crossing values. A crossing value becomes a
//! parameter after the cut, which is always correct but may lose a fusion.

use std::collections::HashMap;
use std::ops::Range;

use ixc_ir::graph::op::Effect;
use ixc_ir::graph::{
    Attr, Function, Module, Op, Operand, State, StateId, TokenOwner, Type, ValueId, Weight, WeightChoices, WeightId,
};

use crate::error::PassError;

/// Returns the value in the rebuilt function that replaces `value`.
///
/// # Errors
/// [`PassError::Undefined`] if the rebuilt function lacks the value.
pub(crate) fn moved_to(moved: &[Option<ValueId>], function: &Function, value: ValueId) -> Result<ValueId, PassError> {
    let place = moved.get(value.index()).copied().flatten();
    place.ok_or_else(|| PassError::Undefined { function: function.name.clone(), value: value.0 })
}

/// Positions of the first and last op that use each value; results of the function count as used
/// after the last op.
pub(crate) struct Spans {
    first_use: Vec<usize>,
    last_use: Vec<usize>,
}

/// A function's regions.
pub(crate) struct Cuts {
    /// Ops of each region, in order.
    pub(crate) regions: Vec<Range<usize>>,
    /// Number of cuts at the maximum length, which may have lost a fusion.
    pub(crate) forced: usize,
}

impl Spans {
    /// Returns the spans of values. The function must not have unused ops.
    pub(crate) fn new(function: &Function) -> Spans {
        let end = function.ops.len();
        let mut spans = Spans { first_use: vec![end; function.values.len()], last_use: vec![0; function.values.len()] };
        for (at, op) in function.ops.iter().enumerate() {
            for (_, value) in op.values() {
                spans.first_use[value.index()] = spans.first_use[value.index()].min(at);
                spans.last_use[value.index()] = at;
            }
        }
        function.results.iter().for_each(|result| spans.last_use[result.index()] = end);
        spans
    }

    /// Cuts a function wherever that loses no fusion, and at least every `longest` ops. A user
    /// further than half of `longest` from a value's definition does not prevent a cut, because it
    /// will be in another region anyway. Examples are values that the first layer passes to all
    /// others, such as RWKV-7's values and Gemma 4's per-layer rows.
    pub(crate) fn cut(&self, function: &Function, longest: usize, mut closed: impl FnMut(&Op) -> bool) -> Cuts {
        let end = function.ops.len();
        // For each position, the change in the number of values that cross it, and in the number of
        // crossing values that prevent a cut.
        let (mut crossing, mut forbidding) = (vec![0i64; end + 2], vec![0i64; end + 2]);
        let add = |counts: &mut [i64], positions: Range<usize>| {
            if positions.start < positions.end {
                counts[positions.start] += 1;
                counts[positions.end] -= 1;
            }
        };
        // Last near use of each value (0 without one), and the position of its definition.
        let (mut near, mut made) = (vec![0; function.values.len()], vec![None; function.values.len()]);
        for (at, op) in function.ops.iter().enumerate() {
            for (_, value) in op.values() {
                if made[value.index()].is_some_and(|made| at - made <= longest / 2) {
                    near[value.index()] = at;
                }
            }
            op.results.iter().for_each(|result| made[result.index()] = Some(at));
        }
        for (at, op) in function.ops.iter().enumerate() {
            if op.kind.row().effect == Effect::State {
                continue;
            }
            let closed = closed(op);
            for result in &op.results {
                let (first, last) = (self.first_use[result.index()], self.last_use[result.index()]);
                add(&mut crossing, at + 1..last + 1);
                add(&mut forbidding, if closed { first.max(at) + 1 } else { at + 1 }..near[result.index()] + 1);
            }
        }
        let sum = |counts: &mut [i64]| {
            let mut sum = 0;
            counts.iter_mut().for_each(|count| {
                sum += *count;
                *count = sum;
            });
        };
        sum(&mut crossing);
        sum(&mut forbidding);
        let mut cuts = Cuts { regions: Vec::new(), forced: 0 };
        let mut start = 0;
        let is_free = |at: usize| at == end || forbidding[at] == 0;
        for at in 1..=end {
            let longest = longest.max(1);
            if is_free(at) {
                cuts.regions.push(start..at);
                start = at;
            } else if at - start == longest {
                // A forced cut is in the second half of the region. This minimum length bounds the
                // number of regions.
                let best = (start + longest / 2 + 1..=at).rev().min_by_key(|&at| crossing[at]).unwrap_or(at);
                cuts.regions.push(start..best);
                cuts.forced += 1;
                start = best;
            }
        }
        cuts
    }
}

/// A region as a function. Weights, states, values and layers are numbered in the order in which
/// the region names them, so that the text of equal regions is equal.
pub(crate) struct Piece<'a> {
    /// Weights of the region and its function.
    pub(crate) module: Module,
    function: &'a Function,
    /// Original values, by their numbers in the region.
    values: Vec<ValueId>,
    /// Original weights, by their numbers in the region.
    weights: Vec<WeightId>,
    /// Original states, by their numbers in the region.
    states: Vec<StateId>,
    /// Original ops with effects and attributes, in order; fusing keeps the order.
    state: Vec<&'a Op>,
}

impl<'a> Piece<'a> {
    /// Creates the piece of a function's `ops`. The function must define every value that it uses.
    pub(crate) fn new(module: &Module, function: &'a Function, ops: Range<usize>, spans: &Spans) -> Piece<'a> {
        let end = ops.end;
        let mut own = Function { name: "region".to_owned(), ..Function::default() };
        let mut piece = Piece {
            module: Module::default(),
            function,
            values: Vec::new(),
            weights: Vec::new(),
            states: Vec::new(),
            state: Vec::new(),
        };
        let (mut values, mut weights, mut layers) = (HashMap::new(), HashMap::new(), HashMap::new());
        for op in &function.ops[ops] {
            let operands = op.operands.iter().map(|operand| match operand {
                Operand::Value(value) => Operand::Value(*values.entry(*value).or_insert_with(|| {
                    piece.values.push(*value);
                    let ty = piece.own_type(module, function.ty(*value));
                    let param = own.add_value(None, ty);
                    own.params.push(param);
                    param
                })),
                Operand::Weight(weight) => Operand::Weight(*weights.entry(*weight).or_insert_with(|| {
                    piece.weights.push(*weight);
                    piece.module.weights.push(own_weight(module, *weight, piece.weights.len()));
                    WeightId(piece.weights.len() as u32 - 1)
                })),
                Operand::State(state) => Operand::State(piece.own_state(module, *state)),
                Operand::Absent => Operand::Absent,
            });
            let operands = operands.collect();
            let mut attrs = op.attrs.clone();
            if op.kind.row().effect == Effect::State {
                if has_layer(op) {
                    piece.state.push(op);
                }
                for (attr, row) in attrs.iter_mut().zip(op.kind.row().attrs) {
                    if let (Attr::Int(layer), "layer") = (attr, row.name) {
                        let next = layers.len() as i64;
                        *layer = *layers.entry(*layer).or_insert(next);
                    }
                }
            }
            let types = op.results.iter().map(|&result| piece.own_type(module, function.ty(result))).collect();
            for (&old, new) in op.results.iter().zip(own.push(op.kind, operands, attrs, types)) {
                values.insert(old, new);
                piece.values.push(old);
                // The name contains the value's number in the region, which identifies the original
                // value. Only values with an original name get one. In equal regions, the same
                // values must have names.
                let named = function.values[old.index()].name.is_some();
                own.values[new.index()].name = named.then(|| name_of(new));
                if spans.last_use[old.index()] >= end {
                    own.results.push(new);
                }
            }
        }
        piece.module.functions.push(own);
        piece
    }

    /// Returns the weight of the module for a weight number of the region.
    pub(crate) fn weight(&self, own: WeightId) -> WeightId {
        self.weights.get(own.index()).copied().unwrap_or(own)
    }

    /// Appends the fused region to `out`. `moved` maps the function's values to values of `out`;
    /// the method adds the region's values.
    ///
    /// # Errors
    /// [`PassError::Undefined`] if a value that the region uses has no value in `out`.
    pub(crate) fn paste(
        &self,
        fused: &Function,
        out: &mut Function,
        moved: &mut [Option<ValueId>],
    ) -> Result<(), PassError> {
        let own = &self.module.functions[0];
        let mut places: Vec<Option<ValueId>> = vec![None; fused.values.len()];
        for (&param, &original) in fused.params.iter().zip(&self.values_of(&own.params)) {
            places[param.index()] = Some(moved_to(moved, self.function, original)?);
        }
        let mut state = self.state.iter();
        for op in &fused.ops {
            let operands = op.operands.iter().map(|operand| match operand {
                Operand::Value(value) => moved_to(&places, fused, *value).map(Operand::Value),
                Operand::Weight(weight) => Ok(Operand::Weight(self.weights[weight.index()])),
                Operand::State(state) => Ok(Operand::State(self.states[state.index()])),
                Operand::Absent => Ok(Operand::Absent),
            });
            let operands = operands.collect::<Result<_, _>>()?;
            let attrs = match op.kind.row().effect {
                // The layer number differs between equal regions, so it comes from the original op.
                Effect::State if has_layer(op) => {
                    state.next().map_or_else(|| op.attrs.clone(), |original| original.attrs.clone())
                }
                Effect::State | Effect::Pure => op.attrs.clone(),
            };
            let types = op.results.iter().map(|&result| self.original_type(fused.ty(result))).collect();
            for (&result, new) in op.results.iter().zip(out.push(op.kind, operands, attrs, types)) {
                places[result.index()] = Some(new);
                let named = fused.values[result.index()].name.as_deref().and_then(number_of);
                let original = named.and_then(|number| self.values.get(number));
                out.values[new.index()].name =
                    original.and_then(|value| self.function.values[value.index()].name.clone());
            }
        }
        for (&result, original) in fused.results.iter().zip(self.values_of(&own.results)) {
            moved[original.index()] = Some(moved_to(&places, fused, result)?);
        }
        Ok(())
    }

    /// Returns the number of a state in the region.
    fn own_state(&mut self, module: &Module, state: StateId) -> StateId {
        let number = self.states.iter().position(|known| *known == state).unwrap_or_else(|| {
            let own = State { name: format!("s{}", self.states.len()), ..module.states[state.index()].clone() };
            self.states.push(state);
            self.module.states.push(own);
            self.states.len() - 1
        });
        StateId(number as u32)
    }

    fn own_type(&mut self, module: &Module, ty: &Type) -> Type {
        match ty {
            Type::Token(TokenOwner::State(state)) => Type::Token(TokenOwner::State(self.own_state(module, *state))),
            Type::Token(TokenOwner::Experts | TokenOwner::Ranks(_)) | Type::Tensor { .. } => ty.clone(),
        }
    }

    fn original_type(&self, own: &Type) -> Type {
        match own {
            Type::Token(TokenOwner::State(state)) => Type::Token(TokenOwner::State(self.states[state.index()])),
            Type::Token(TokenOwner::Experts | TokenOwner::Ranks(_)) | Type::Tensor { .. } => own.clone(),
        }
    }

    fn values_of(&self, own: &[ValueId]) -> Vec<ValueId> {
        own.iter().map(|value| self.values[value.index()]).collect()
    }
}

/// Whether an op has the number of a layer, which differs between equal regions.
fn has_layer(op: &Op) -> bool {
    op.kind.row().attrs.iter().any(|attr| attr.name == "layer")
}

/// Returns the `count`th weight of a region, with only the properties of `weight` that rules read.
fn own_weight(module: &Module, weight: WeightId, count: usize) -> Weight {
    let Weight { format, shape, .. } = &module.weights[weight.index()];
    let (shape, choice) = (shape.clone(), WeightChoices::default());
    Weight { name: format!("w{count}"), format: *format, shape, place: None, part: None, choice }
}

/// Returns a name that contains the number of a value in its region.
fn name_of(value: ValueId) -> String {
    format!("v{}", value.0)
}

fn number_of(name: &str) -> Option<usize> {
    name.strip_prefix('v')?.parse().ok()
}
