//! The routed experts of a model's layers, each as a function of its own.
//!
//! What routes stays behind: rows come in with the ids and weights of their experts. Takes `@step` as a frontend writes it, and finds a layer's experts by
//! walking back from their sum, `expert.combine`, as far as values have slots.
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
//! Leaves true: weights have the numbers that they had; the module has no states and no other functions.

use std::collections::{BTreeSet, HashMap};

use ixc_failure::Class;

use super::builder::GraphBuilder;
use super::op::Effect;
use super::types::TypeError;
use super::{DefUse, Dim, Element, Function, Module, OpView, ValueId, view};

/// What the name of a layer's function has before the layer's number.
pub const PREFIX: &str = "experts.";

/// Why a model's experts cannot be functions of their own.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum CutError {
    /// No function `@step`.
    #[error("the module has no function @step")]
    NoStep,
    /// None of its layers has routed experts.
    #[error("the model has no routed experts")]
    NoExperts,
    /// A layer's experts take something else than rows and one routing.
    #[error(
        "layer {layer}: its experts are to take one kind of rows and one routing, by ops without effects, and {problem}"
    )]
    Layer {
        /// The layer.
        layer: u64,
        /// What they take.
        problem: String,
    },
    /// Two layers of one number.
    #[error("layer {layer} has experts twice; each layer has one function")]
    Twice {
        /// The layer.
        layer: u64,
    },
    /// An op that has no type where it is: a bug.
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

/// The name of a layer's function.
pub fn function_name(layer: u64) -> String {
    format!("{PREFIX}{layer}")
}

/// The layer whose experts a function of this name is.
pub fn layer_of_function(name: &str) -> Option<u32> {
    name.strip_prefix(PREFIX)?.parse().ok()
}

/// The experts of all layers. `layer_of` tells a weight's layer by its name; layers of which it tells nothing are counted.
///
/// # Errors
/// [`CutError`].
pub fn cut(module: &Module, layer_of: &dyn Fn(&str) -> Option<u64>) -> Result<Module, CutError> {
    let function = module.functions.iter().find(|function| function.name == "step").ok_or(CutError::NoStep)?;
    let def_use = DefUse::of(function);
    let mut cut = Module { weights: module.weights.clone(), ..Module::default() };
    let mut seen = BTreeSet::new();
    for op in &function.ops {
        let Some(view::ExpertCombine { y, p }) = view::ExpertCombine::of(op) else { continue };
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
        cut = part.build(cut, function, layer, (y, p))?;
    }
    if seen.is_empty() { Err(CutError::NoExperts) } else { Ok(cut) }
}

/// What stands between rows that are not routed and the rows that are summed.
#[derive(Default)]
struct Part {
    /// Positions of its ops.
    ops: BTreeSet<usize>,
    /// Rows that it takes.
    rows: BTreeSet<ValueId>,
    /// Ids that it takes.
    ids: BTreeSet<ValueId>,
    /// How many experts its matrices are of.
    experts: BTreeSet<u64>,
}

impl Part {
    /// Goes back from a value with slots. What is wrong, where an op is not one that can be moved.
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
            if let Some(product) = view::ExpertMatmul::of(op) {
                self.experts.extend(function.ty(product.w).dims().first().and_then(Dim::fixed));
            }
        }
        Ok(())
    }

    /// What is wrong with what it takes.
    fn problem(&self) -> Option<String> {
        let counts =
            [("rows", self.rows.len()), ("routings", self.ids.len()), ("numbers of experts", self.experts.len())];
        let (what, count) = counts.into_iter().find(|(_, count)| *count != 1)?;
        Some(format!("take {count} {what}"))
    }

    /// The function: `y` are the rows that are summed with the weights `p`.
    fn build(
        &self,
        module: Module,
        function: &Function,
        layer: u64,
        (y, p): (ValueId, ValueId),
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
