//! Extraction of the routed experts of each layer into a function of their own.
//!
//! The router is not part of these functions: their parameters are rows, and the ids and weights of
//! each row's experts. The input is `@step` as a frontend writes it. The search for a layer's
//! experts begins at the sum of their results, `expert.combine`. It walks back through all ops
//! whose values have one row for each slot.
//!
//! ```text
//! func @step(%ids: i32[T], %pos: i32[T], %rows: i32[L]) -> (f32[L, 4096]) {
//!   ...
//!   %7, %8 = route %6, _, _ {...} : i32[T, 4], f32[T, 4]
//!   %9 = dequantise @blk.3.ffn_up_exps.weight : f32[16, 512, 256]
//!   %10 = expert.matmul %5, %7, %9 : f32[T, 4, 512]
//!   ...
//!   %14 = expert.combine %13, %8 : f32[T, 256]
//! ```
//! becomes
//! ```text
//! func @experts.3(%x: f32[T, 256], %ids: i32[T, 4], %p: f32[T, 4]) -> (f32[T, 256]) {
//!   %3, %4 = route.given %ids, %p {experts = 16} : i32[T, 4], f32[T, 4]
//!   %5 = dequantise @blk.3.ffn_up_exps.weight : f32[16, 512, 256]
//!   %6 = expert.matmul %x, %3, %5 : f32[T, 4, 512]
//!   ...
//!   return %10
//! }
//! ```
//!
//! Result: weights keep their numbers (`WeightId`). The module has no states and no other
//! functions.

use std::collections::{BTreeSet, HashMap};

use ixc_failure::Class;

use super::builder::GraphBuilder;
use super::op::Effect;
use super::types::TypeError;
use super::{DefUse, Dim, Element, Function, Module, OpView, ValueId, view};

/// Prefix of the name of a layer's function, followed by the layer's number.
pub const PREFIX: &str = "experts.";

/// Reason why a model's experts cannot become functions.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum CutError {
    /// The module has no function `@step`.
    #[error("the module has no function @step")]
    NoStep,
    /// The model has no routed experts.
    #[error("the model has no routed experts")]
    NoExperts,
    /// A layer whose experts have inputs other than one tensor of rows and one routing.
    #[error(
        "layer {layer}: experts must take one input of rows and one routing, through ops without effects; they {problem}"
    )]
    Layer {
        /// Number of the layer.
        layer: u64,
        /// Description of the values that the experts take.
        problem: String,
    },
    /// Two groups of experts with the same layer number.
    #[error("layer {layer} has experts twice; each layer has one function")]
    Twice {
        /// Number of the layer.
        layer: u64,
    },
    /// An op that the type rule rejects in the new function. This is a bug of the extraction.
    #[error(transparent)]
    Type(#[from] TypeError),
}

impl CutError {
    /// Returns the kind of failure.
    pub fn class(&self) -> Class {
        match self {
            CutError::NoStep
            | CutError::NoExperts
            | CutError::Layer { .. }
            | CutError::Twice { .. }
            | CutError::Type(_) => Class::Data,
        }
    }
}

/// Returns the name of a layer's function.
pub fn function_name(layer: u64) -> String {
    format!("{PREFIX}{layer}")
}

/// Returns the layer number in a function's name, or `None` for other names.
pub fn layer_of_function(name: &str) -> Option<u32> {
    name.strip_prefix(PREFIX)?.parse().ok()
}

/// Returns a module with one function for the experts of each layer. `layer_of` returns the layer
/// number in a weight's name. If it returns `None` for all weights of a layer, the layer gets the
/// next number.
///
/// # Errors
/// See [`CutError`].
pub fn cut(module: &Module, layer_of: &dyn Fn(&str) -> Option<u64>) -> Result<Module, CutError> {
    let function = module.functions.iter().find(|function| function.name == "step").ok_or(CutError::NoStep)?;
    let def_use = DefUse::from_function(function);
    let mut cut = Module { weights: module.weights.clone(), ..Module::default() };
    let mut seen = BTreeSet::new();
    for op in &function.ops {
        let Some(view::ExpertCombine { y, p }) = view::ExpertCombine::from_op(op) else { continue };
        let mut part = Part::default();
        let problem = part.walk(function, &def_use, y).err();
        let weights = || part.ops.iter().flat_map(|&at| function.ops[at].weights());
        let named = weights().find_map(|weight| layer_of(&module.weights.get(weight.index())?.name));
        let layer = named.unwrap_or(seen.len() as u64);
        let problem = problem.or_else(|| part.problem());
        if let Some(problem) = problem {
            return Err(CutError::Layer { layer, problem });
        }
        if !seen.insert(layer) {
            return Err(CutError::Twice { layer });
        }
        cut = part.build(cut, function, layer, y, p)?;
    }
    if seen.is_empty() { Err(CutError::NoExperts) } else { Ok(cut) }
}

/// Ops between the input rows and the sum over the experts, and their inputs.
#[derive(Default)]
struct Part {
    /// Positions of the ops in `@step`.
    ops: BTreeSet<usize>,
    /// Input rows of the ops.
    rows: BTreeSet<ValueId>,
    /// Expert ids that the ops use.
    ids: BTreeSet<ValueId>,
    /// Numbers of experts that the weight matrices have.
    experts: BTreeSet<u64>,
}

impl Part {
    /// Walks back from a value that has one row for each slot. If an op cannot be moved to another
    /// function, fails with the reason.
    fn walk(&mut self, function: &Function, def_use: &DefUse, value: ValueId) -> Result<(), String> {
        let mut open = vec![value];
        while let Some(value) = open.pop() {
            let Some(at) = def_use.definition(value) else {
                return Err(format!("{} is a parameter of the step", function.label(value)));
            };
            if !self.ops.insert(at) {
                continue;
            }
            let op = &function.ops[at];
            if op.kind.row().effect != Effect::Pure {
                return Err(format!("{} has effects", op.kind.row().mnemonic));
            }
            for (_, taken) in op.values() {
                let ty = function.ty(taken);
                let is_of_rows = matches!(ty.dims().first(), Some(Dim::Symbol(_)));
                match ty.element() {
                    Some(Element::I32) => {
                        self.ids.insert(taken);
                    }
                    _ if is_of_rows && ty.dims().len() < 3 => {
                        self.rows.insert(taken);
                    }
                    _ => open.push(taken),
                }
            }
            if let Some(product) = view::ExpertMatmul::from_op(op) {
                self.experts.extend(function.ty(product.w).dims().first().and_then(Dim::fixed));
            }
        }
        Ok(())
    }

    /// Returns the problem with the inputs of the ops, or `None`.
    fn problem(&self) -> Option<String> {
        let counts =
            [("rows", self.rows.len()), ("routings", self.ids.len()), ("numbers of experts", self.experts.len())];
        let (what, count) = counts.into_iter().find(|(_, count)| *count != 1)?;
        Some(format!("take {count} {what}"))
    }

    /// Builds the function. Its result is the sum of the rows `y` with the weights `p`.
    fn build(
        &self,
        module: Module,
        function: &Function,
        layer: u64,
        y: ValueId,
        p: ValueId,
    ) -> Result<Module, TypeError> {
        let (Some(&rows), Some(&ids), Some(&experts)) = (self.rows.first(), self.ids.first(), self.experts.first())
        else {
            return Ok(module);
        };
        let mut b = GraphBuilder::extend(module, &function_name(layer));
        let [x, own_ids, own_p] =
            [("x", rows), ("ids", ids), ("p", p)].map(|(name, value)| b.param(name, function.ty(value).clone()));
        let (given, weights) = b.route_given(own_ids, own_p, experts)?;
        let mut moved = HashMap::from([(rows, x), (ids, given)]);
        for op in self.ops.iter().map(|&at| &function.ops[at]) {
            let to = |value: ValueId| moved.get(&value).copied().unwrap_or(value);
            let operands = op.operands.iter().map(|operand| operand.map_value(to)).collect();
            let results = b.op(op.kind, operands, op.attrs.clone())?;
            moved.extend(op.results.iter().copied().zip(results));
        }
        let y = b.expert_combine(moved.get(&y).copied().unwrap_or(y), weights)?;
        Ok(b.finish(&[y]))
    }
}
