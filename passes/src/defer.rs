//! `defer`: a token's lowest-weighted experts are computed one layer later, where that is asked for. It changes results, so it is off by
//! default.
//!
//! Needs: fused ops. Leaves: another function, whose distance from the first is to be measured. Where [`Options::experts`] is 0 nothing changes.
//! Otherwise a layer with experts adds only those of most weight to its residual; the last `defer` of each token are multiplied with
//! the same rows during the next layer, and added there. Attention and router of that layer do not see them. So their reads have until
//! then: with `residency` behind it, the next layer's own experts are read while these are computed (KTransformers calls this deferral).
//!
//! ```text
//!   %ids0, %p0 = route %logits0 {top_k = 4, score = softmax, normalise = true, scale = 1.0} : i32[T, 4], f32[T, 4]
//!   %a0 = expert.swiglu %q0, %ids0, @gate0, @up0 {format = a8_super} : a8_super[T, 4, 256]
//!   %y0 = expert.down %a0, %ids0, %p0, @down0, %x0 : f32[T, 256]
//!   // attention: %x1 is %y0 and what it gives
//!   %ids1, %p1 = route %logits1 {top_k = 4, score = softmax, normalise = true, scale = 1.0} : i32[T, 4], f32[T, 4]
//!   %a1 = expert.swiglu %q1, %ids1, @gate1, @up1 {format = a8_super} : a8_super[T, 4, 256]
//!   %y1 = expert.down %a1, %ids1, %p1, @down1, %x1 : f32[T, 256]
//! ```
//! becomes, with one expert deferred,
//! ```text
//!   %ids0, %p0 = route %logits0 {top_k = 4, score = softmax, normalise = true, scale = 1.0} : i32[T, 4], f32[T, 4]
//!   %16, %17, %18, %19 = expert.split %ids0, %p0 {now = 3} : i32[T, 3], f32[T, 3], i32[T, 1], f32[T, 1]
//!   %a0 = expert.swiglu %q0, %16, @gate0, @up0 {format = a8_super} : a8_super[T, 3, 256]
//!   %y0 = expert.down %a0, %16, %17, @down0, %x0 : f32[T, 256]
//!   // attention
//!   %ids1, %p1 = route %logits1 {top_k = 4, score = softmax, normalise = true, scale = 1.0} : i32[T, 4], f32[T, 4]
//!   %30 = expert.swiglu %q0, %18, @gate0, @up0 {format = a8_super} : a8_super[T, 1, 256]
//!   %31 = expert.down %30, %18, %19, @down0, %x1 : f32[T, 256]
//!   %a1 = expert.swiglu %q1, %ids1, @gate1, @up1 {format = a8_super} : a8_super[T, 4, 256]
//!   %y1 = expert.down %a1, %ids1, %p1, @down1, %31 : f32[T, 256]
//! ```
//!
//! The last layer with experts defers none, nor does one that the next layer has none behind, or whose experts are no `expert.swiglu` and
//! `expert.down` of one routing; the log says so. Shared experts and dense layers stay as they are.

use std::collections::{HashMap, HashSet};

use ixc_ir::graph::attrs::RouteAttrs;
use ixc_ir::graph::{Attr, DefUse, Dim, Function, Module, Op, OpKind, Operand, Type, ValueId};

use crate::canonicalise::compact;
use crate::error::PassError;
use crate::options::{PassOptions, pass_options};
use crate::pass::{Context, Pass, Run};

/// The pass.
pub static PASS: Pass = Pass {
    name: "defer",
    doc: "Computes the experts of least weight one layer later, where that is asked for.",
    options: Options::ROWS,
    run: Run::Graph(run),
};

pass_options! {
    /// Options of the pass.
    pub struct Options for "defer" {
        #[doc = "How many of a token's experts, the lowest-weighted, are computed during the next layer; 0 defers none. It changes results."]
        pub experts: u32 = 0,
    }
}

/// Runs the pass.
///
/// # Errors
/// [`PassError::NoExperts`], [`PassError::Deferred`].
pub fn run(mut module: Module, context: &Context<'_>) -> Result<Module, PassError> {
    let deferred = context.options.of::<Options>().experts;
    if deferred == 0 {
        return Ok(module);
    }
    let routes = module.functions.iter().flat_map(|function| &function.ops).filter(|op| op.kind == OpKind::Route);
    let top_k = routes.map(|op| RouteAttrs::from_op(op).top_k).min().ok_or(PassError::NoExperts { deferred })?;
    if u64::from(deferred) >= top_k {
        return Err(PassError::Deferred { deferred, top_k });
    }
    for function in &mut module.functions {
        // Where slots are split already, it has been said what is computed when; loading is made explicit last.
        let done = |op: &Op| matches!(op.kind, OpKind::ExpertSplit | OpKind::ExpertSlots);
        if function.ops.iter().any(done) {
            continue;
        }
        let layers = layers(function);
        let mut pairs: Vec<(&Layer, &Layer)> = Vec::new();
        for pair in layers.windows(2) {
            match (&pair[0].1, &pair[1].1) {
                (Some(layer), Some(next)) if pair[0].0 + 1 == pair[1].0 && fit(function, layer, next) => {
                    pairs.push((layer, next));
                }
                _ => tracing::warn!(layer = pair[0].0, "its experts are not deferred: the next layer cannot add them"),
            }
        }
        tracing::debug!(function = function.name, deferred, layers = pairs.len(), of = layers.len(), "deferred");
        if !pairs.is_empty() {
            *function = compact(&deferring(function, &pairs, deferred.into()));
        }
    }
    Ok(module)
}

/// Positions of a layer's ops.
struct Layer {
    route: usize,
    swiglu: usize,
    down: usize,
}

/// Layers with experts, by how many ops before mix tokens; `None` for one that is of another form.
fn layers(function: &Function) -> Vec<(usize, Option<Layer>)> {
    let (mut layers, mut number) = (Vec::new(), 0);
    let def_use = DefUse::of(function);
    for (i, op) in function.ops.iter().enumerate() {
        number += usize::from(op.mixes(function));
        if op.kind == OpKind::Route {
            layers.push((number, layer(function, &def_use, i)));
        }
    }
    layers
}

/// The layer of a route whose results only one `expert.swiglu` and one `expert.down` of that take, which adds to a value that is there before.
fn layer(function: &Function, def_use: &DefUse, route: usize) -> Option<Layer> {
    let [ids, p] = function.ops[route].results[..] else { return None };
    let (&[swiglu, down], &[weighted]) = (&def_use.users(ids)?[..], &def_use.users(p)?[..]) else { return None };
    let (product, sum) = (&function.ops[swiglu], &function.ops[down]);
    let right = weighted == down && (product.kind, sum.kind) == (OpKind::ExpertSwiglu, OpKind::ExpertDown);
    if !right || def_use.users(product.results[0])? != [down] || sum.operand("x") != Operand::Value(product.results[0])
    {
        return None;
    }
    let residual = sum.operand("residual").value()?;
    def_use.is_defined_before(residual, swiglu).then_some(Layer { route, swiglu, down })
}

/// Whether what a layer's experts give can be added where the next layer's are.
fn fit(function: &Function, layer: &Layer, next: &Layer) -> bool {
    let sum = |layer: &Layer| function.ty(function.ops[layer.down].results[0]);
    layer.down < next.route && sum(layer) == sum(next)
}

/// Slots of a layer that wait for the next one.
struct Waiting {
    ids: ValueId,
    p: ValueId,
    slots: u64,
}

/// The function, where the first layer of each pair defers experts to the second.
fn deferring(function: &Function, pairs: &[(&Layer, &Layer)], deferred: u64) -> Function {
    let mut out = Function { ops: Vec::new(), ..function.clone() };
    // What a layer's experts take in place of all slots.
    let mut now: HashMap<ValueId, ValueId> = HashMap::new();
    let mut waiting: HashMap<usize, Waiting> = HashMap::new();
    // What each `expert.down` that receives adds to.
    let mut sums: HashMap<usize, ValueId> = HashMap::new();
    // Each route has an `expert.swiglu` and an `expert.down` of its own.
    let receiving: HashMap<usize, (&Layer, &Layer)> = pairs.iter().map(|pair| (pair.1.swiglu, *pair)).collect();
    let products: HashMap<usize, &Layer> = pairs.iter().map(|(layer, _)| (layer.swiglu, *layer)).collect();
    let sums_now: HashSet<usize> = pairs.iter().map(|(layer, _)| layer.down).collect();
    let routes: HashSet<usize> = pairs.iter().map(|(layer, _)| layer.route).collect();
    for (i, op) in function.ops.iter().enumerate() {
        if let Some((layer, next)) = receiving.get(&i)
            && let Some(waiting) = waiting.remove(&layer.route)
        {
            sums.insert(next.down, late(&mut out, function, layer, next, &waiting));
        }
        let mut op = op.clone();
        if products.contains_key(&i) || sums_now.contains(&i) {
            for operand in &mut op.operands {
                if let Operand::Value(value) = operand {
                    *value = now.get(value).copied().unwrap_or(*value);
                }
            }
        }
        if let Some(layer) = products.get(&i) {
            let slots = RouteAttrs::from_op(&function.ops[layer.route]).top_k - deferred;
            for result in &op.results {
                out.values[result.index()].ty = with_slots(function.ty(*result), slots);
            }
        }
        if let Some(&sum) = sums.get(&i) {
            let residual = op.kind.row().operands.iter().position(|operand| operand.name == "residual");
            residual.into_iter().for_each(|at| op.operands[at] = Operand::Value(sum));
        }
        let results = op.results.clone();
        out.ops.push(op);
        if let (true, &[ids, p]) = (routes.contains(&i), &results[..]) {
            let slots = RouteAttrs::from_op(&function.ops[i]).top_k - deferred;
            let operands = vec![Operand::Value(ids), Operand::Value(p)];
            let types = [slots, deferred].map(|n| [ids, p].map(|value| with_slots(function.ty(value), n))).concat();
            let attrs = vec![Attr::Int(i64::try_from(slots).unwrap_or(i64::MAX))];
            let parts = out.push(OpKind::ExpertSplit, operands, attrs, types);
            now.extend([(ids, parts[0]), (p, parts[1])]);
            waiting.insert(i, Waiting { ids: parts[2], p: parts[3], slots: deferred });
        }
    }
    out
}

/// A layer's deferred experts, added to what the next layer adds its own to; gives the sum.
fn late(out: &mut Function, function: &Function, layer: &Layer, next: &Layer, waiting: &Waiting) -> ValueId {
    let (product, sum) = (&function.ops[layer.swiglu], &function.ops[layer.down]);
    let ids = Operand::Value(waiting.ids);
    let operands = vec![product.operand("x"), ids, product.operand("gate"), product.operand("up")];
    let types = vec![with_slots(function.ty(product.results[0]), waiting.slots)];
    let y = out.push(OpKind::ExpertSwiglu, operands, product.attrs.clone(), types)[0];
    let residual = function.ops[next.down].operand("residual");
    let operands = vec![Operand::Value(y), ids, Operand::Value(waiting.p), sum.operand("w"), residual];
    out.push(OpKind::ExpertDown, operands, Vec::new(), vec![function.ty(sum.results[0]).clone()])[0]
}

/// A type `[T, slots, ...]` with other slots.
fn with_slots(ty: &Type, slots: u64) -> Type {
    let mut ty = ty.clone();
    if let Type::Tensor { dims, .. } = &mut ty
        && let Some(dim) = dims.get_mut(1)
    {
        *dim = Dim::Fixed(slots);
    }
    ty
}
