//! `residency`: where experts do not all fit in memory, says in the graph when each layer's are loaded, needed and given up.
//!
//! Needs: fused ops, for prediction; loading alone is made explicit in graphs as a frontend writes them, too. Leaves: the same
//! function. Where [`Options::expert_memory`] is not said, or holds the experts of all layers as they are stored and as kernels
//! read them, nothing changes. Otherwise each layer's experts are asked for directly after its `route`, waited for before the first
//! op that reads them, which takes its ids from there, and given up after the last. Tokens from one `expert.slots` order all that.
//!
//! ```text
//!   %logits = linear %h, @router, _, _ : f32[T, 16]
//!   %ids, %p = route %logits {top_k = 4, score = softmax, normalise = true, scale = 1.0} : i32[T, 4], f32[T, 4]
//!   %a = expert.swiglu %q, %ids, @gate, @up {format = a8_super} : a8_super[T, 4, 256]
//!   %y = expert.down %a, %ids, %p, @down, %x : f32[T, 256]
//! ```
//! becomes
//! ```text
//!   %3 = expert.slots : token
//!   %logits = linear %h, @router, _, _ : f32[T, 16]
//!   %ids, %p = route %logits {top_k = 4, score = softmax, normalise = true, scale = 1.0} : i32[T, 4], f32[T, 4]
//!   %7 = expert.prefetch %3, %ids, @gate, @up, @down {layer = 0, when = routed} : token
//!   %8, %9 = expert.wait %7, %ids {layer = 0} : i32[T, 4], token
//!   %a = expert.swiglu %q, %8, @gate, @up {format = a8_super} : a8_super[T, 4, 256]
//!   %y = expert.down %a, %8, %p, @down, %x : f32[T, 256]
//!   %12 = expert.evict %9, %y {layer = 0} : token
//! ```
//!
//! **Prediction** ([`Options::predict_extra`]): a layer's router is applied a layer early, to the residual between attention and
//! experts of the layer before (Eliseev and Mazur 2023, section 3.2), and what it names is prefetched as `predicted` behind what the
//! layer before needs. It is computed beside that layer's own router, of a chain as long, so it takes no barrier; and reads
//! of the next layer begin before this one's experts have been multiplied with. Which ops that takes is found by walking from the
//! router's logits back to the residual of the layer's `expert.down`; a layer where that walk meets anything else than pure ops and
//! weights has no prediction.
//!
//! A layer whose experts are not three matrices of one routing, gate, up and down, each read nowhere else, stays as it is: all of its
//! experts are in memory. The log says so.

use std::collections::{BTreeSet, HashMap};

use ixc_ir::format::packed::STRIP;
use ixc_ir::graph::attrs::{Prefetch, RouteAttrs};
use ixc_ir::graph::op::Effect;
use ixc_ir::graph::{Attr, Function, Module, OpKind, Operand, Type, ValueId, Weight, WeightId};

use crate::canonicalise::compact;
use crate::manager::{Options, PassError};

/// Runs the pass.
///
/// # Errors
/// None; passes have one signature.
pub fn run(mut module: Module, options: &Options) -> Result<Module, PassError> {
    let Some(memory) = options.expert_memory else { return Ok(module) };
    for i in 0..module.functions.len() {
        let function = &module.functions[i];
        // Who has it already has said what is to be loaded when.
        if function.ops.iter().any(|op| op.kind == OpKind::ExpertSlots) {
            continue;
        }
        let uses = Uses::of(function);
        let all: BTreeSet<WeightId> = uses.readers.iter().flat_map(|(_, weights)| weights.iter().copied()).collect();
        let bytes = all.iter().map(|w| module.weights.get(w.index()).map_or(0, bytes)).fold(0, u64::saturating_add);
        let fits = bytes <= memory;
        tracing::debug!(function = function.name, bytes, memory, fits, "experts");
        if fits {
            continue;
        }
        let layers = uses.layers(&module, function);
        if !layers.is_empty() {
            module.functions[i] = compact(&explicit(function, &uses, &layers, options.predict_extra));
        }
    }
    Ok(module)
}

/// Bytes of a weight in memory: as it is stored or as kernels read it packed, whatever is more.
fn bytes(weight: &Weight) -> u64 {
    let Some((&last, lead)) = weight.shape.split_last() else { return 0 };
    let strips = lead.last().is_some_and(|n| n.is_multiple_of(STRIP as u64));
    let packed = weight.format.packed().filter(|_| strips).and_then(|packed| packed.row_bytes(last));
    let row = weight.format.row_bytes(last).unwrap_or(0).max(packed.unwrap_or(0));
    lead.iter().fold(row, |bytes, &n| bytes.saturating_mul(n))
}

/// Who reads experts.
struct Uses {
    /// The op that defines each value.
    definitions: HashMap<ValueId, usize>,
    /// Ops that multiply with experts, and the weights, in order.
    readers: Vec<(usize, Vec<WeightId>)>,
    /// How many ops read each weight; a `dequantise` counts for as many as read its result.
    reads: HashMap<WeightId, usize>,
}

/// A layer whose experts can be loaded on their own.
struct Layer {
    number: i64,
    /// Position of the `route`.
    route: usize,
    ids: ValueId,
    /// Gate, up, down.
    weights: [WeightId; 3],
    /// Positions of the ops that read them, in order.
    readers: Vec<usize>,
}

impl Uses {
    fn of(function: &Function) -> Uses {
        let mut uses = Uses { definitions: HashMap::new(), readers: Vec::new(), reads: HashMap::new() };
        let mut dequantised: HashMap<ValueId, WeightId> = HashMap::new();
        for (i, op) in function.ops.iter().enumerate() {
            uses.definitions.extend(op.results.iter().map(|&result| (result, i)));
            if let (OpKind::Dequantise, Operand::Weight(weight)) = (op.kind, op.operands[0]) {
                dequantised.extend(op.results.iter().map(|&result| (result, weight)));
                continue;
            }
            let weights = op.operands.iter().filter_map(|operand| match operand {
                Operand::Weight(weight) => Some(*weight),
                Operand::Value(value) => dequantised.get(value).copied(),
                Operand::Absent => None,
            });
            let weights: Vec<WeightId> = weights.collect();
            weights.iter().for_each(|&weight| *uses.reads.entry(weight).or_default() += 1);
            if let OpKind::ExpertSwiglu | OpKind::ExpertDown | OpKind::ExpertMatmul = op.kind {
                uses.readers.push((i, weights));
            }
        }
        // A weight that the function returns dequantised is read by more than its products.
        for weight in function.results.iter().filter_map(|result| dequantised.get(result)) {
            *uses.reads.entry(*weight).or_default() += 1;
        }
        uses
    }

    fn layers(&self, module: &Module, function: &Function) -> Vec<Layer> {
        let (mut layers, mut number): (Vec<Layer>, i64) = (Vec::new(), 0);
        for (i, op) in function.ops.iter().enumerate() {
            match op.kind {
                // Experts follow the attention of their layer.
                OpKind::Attention => number = number.max(op.attr("layer").int()),
                OpKind::Route => {
                    let found = self.layer(module, function, i, number);
                    if found.is_none() {
                        tracing::warn!(
                            layer = number,
                            "experts stay in memory: they are not three matrices of their own"
                        );
                    }
                    number += i64::from(found.is_some());
                    layers.extend(found);
                }
                _ => {}
            }
        }
        layers
    }

    fn layer(&self, module: &Module, function: &Function, route: usize, number: i64) -> Option<Layer> {
        let ids = *function.ops[route].results.first()?;
        let of_route = |&&(i, _): &&(usize, Vec<WeightId>)| function.ops[i].operand("ids") == Operand::Value(ids);
        let readers: Vec<&(usize, Vec<WeightId>)> = self.readers.iter().filter(of_route).collect();
        let weights: Vec<WeightId> = readers.iter().flat_map(|(_, weights)| weights.iter().copied()).collect();
        let weights = <[WeightId; 3]>::try_from(weights).ok()?;
        let shape = |w: WeightId| <[u64; 3]>::try_from(&module.weights.get(w.index())?.shape[..]).ok();
        let ([experts, n, k], up, [down_experts, _, inner]) =
            (shape(weights[0])?, shape(weights[1])?, shape(weights[2])?);
        let fits = up == [experts, n, k] && (down_experts, inner) == (experts, n);
        // Each read once is each another, too.
        let own = weights.iter().all(|weight| self.reads.get(weight) == Some(&1));
        let readers: Vec<usize> = readers.iter().map(|(i, _)| *i).collect();
        let last = function.ty(*function.ops[*readers.last()?].results.first()?);
        let after = last.element() == Type::f32([]).element();
        (fits && own && after).then_some(Layer { number, route, ids, weights, readers })
    }

    /// The ops that make a layer's logits of `x`, in order, and the value that they make of it.
    fn router(&self, function: &Function, layer: &Layer, x: ValueId) -> Option<(Vec<usize>, ValueId)> {
        let Operand::Value(logits) = function.ops[layer.route].operand("logits") else { return None };
        let (mut ops, mut open, mut met) = (BTreeSet::new(), vec![logits], false);
        while let Some(value) = open.pop() {
            if value == x {
                met = true;
                continue;
            }
            let &at = self.definitions.get(&value)?;
            let op = &function.ops[at];
            if op.kind.row().effect == Effect::State {
                return None;
            }
            if ops.insert(at) {
                open.extend(op.operands.iter().filter_map(|operand| match operand {
                    Operand::Value(value) => Some(*value),
                    Operand::Weight(_) | Operand::Absent => None,
                }));
            }
        }
        met.then(|| (ops.into_iter().collect(), logits))
    }
}

/// What a layer's experts are added to.
fn residual(function: &Function, layer: &Layer) -> Option<ValueId> {
    let down = &function.ops[*layer.readers.last()?];
    if down.kind != OpKind::ExpertDown {
        return None;
    }
    match down.operand("residual") {
        Operand::Value(value) => Some(value),
        Operand::Weight(_) | Operand::Absent => None,
    }
}

/// The function, where loading is explicit.
fn explicit(function: &Function, uses: &Uses, layers: &[Layer], predict_extra: Option<u32>) -> Function {
    let mut out = Function { ops: Vec::new(), ..function.clone() };
    let mut slots = out.push(OpKind::ExpertSlots, Vec::new(), Vec::new(), vec![Type::Token])[0];
    // Ids of each layer once they have been waited for.
    let mut ready: HashMap<ValueId, ValueId> = HashMap::new();
    for (i, op) in function.ops.iter().enumerate() {
        let layer_attr = |layer: &Layer| Attr::Int(layer.number);
        for layer in layers.iter().filter(|layer| layer.readers.first() == Some(&i)) {
            let operands = vec![Operand::Value(slots), Operand::Value(layer.ids)];
            let types = vec![function.ty(layer.ids).clone(), Type::Token];
            let results = out.push(OpKind::ExpertWait, operands, vec![layer_attr(layer)], types);
            ready.insert(layer.ids, results[0]);
            slots = results[1];
        }
        let mut op = op.clone();
        if layers.iter().any(|layer| layer.readers.contains(&i)) {
            for operand in &mut op.operands {
                if let Operand::Value(value) = operand {
                    *value = ready.get(value).copied().unwrap_or(*value);
                }
            }
        }
        let result = op.results.first().copied();
        out.ops.push(op);
        for (at, layer) in layers.iter().enumerate() {
            if layer.route == i {
                slots = prefetch(&mut out, slots, layer.ids, layer, Prefetch::Routed);
                if let (Some(extra), Some(next)) = (predict_extra, layers.get(at + 1))
                    && let Some(ids) = predict(&mut out, function, uses, layer, next, extra)
                {
                    slots = prefetch(&mut out, slots, ids, next, Prefetch::Predicted);
                }
            }
            if let (Some(&last), Some(result)) = (layer.readers.last(), result)
                && last == i
            {
                let operands = vec![Operand::Value(slots), Operand::Value(result)];
                slots = out.push(OpKind::ExpertEvict, operands, vec![layer_attr(layer)], vec![Type::Token])[0];
            }
        }
    }
    out
}

fn prefetch(out: &mut Function, slots: ValueId, ids: ValueId, layer: &Layer, when: Prefetch) -> ValueId {
    let mut operands = vec![Operand::Value(slots), Operand::Value(ids)];
    operands.extend(layer.weights.map(Operand::Weight));
    let attrs = vec![Attr::Int(layer.number), Attr::Word(when.word().to_string())];
    out.push(OpKind::ExpertPrefetch, operands, attrs, vec![Type::Token])[0]
}

/// The next layer's router applied behind this layer's: the ids that it names.
fn predict(
    out: &mut Function,
    function: &Function,
    uses: &Uses,
    layer: &Layer,
    next: &Layer,
    extra: u32,
) -> Option<ValueId> {
    let (here, there) = (residual(function, layer)?, residual(function, next)?);
    let is_before = uses.definitions.get(&here).is_none_or(|&at| at < layer.route);
    if !is_before || function.ty(here) != function.ty(there) {
        return None;
    }
    let (ops, logits) = uses.router(function, next, there)?;
    let experts = function.ty(logits).dims().last()?.fixed()?;
    let mut moved = HashMap::from([(there, here)]);
    for at in ops {
        let op = &function.ops[at];
        let operands = op.operands.iter().map(|operand| match operand {
            Operand::Value(value) => Operand::Value(moved.get(value).copied().unwrap_or(*value)),
            Operand::Weight(_) | Operand::Absent => *operand,
        });
        let types = op.results.iter().map(|&result| function.ty(result).clone()).collect();
        let results = out.push(op.kind, operands.collect(), op.attrs.clone(), types);
        moved.extend(op.results.iter().copied().zip(results));
    }
    let route = &function.ops[next.route];
    let slots = RouteAttrs::from_op(route).top_k.saturating_add(extra.into()).min(experts);
    let attrs = RouteAttrs { top_k: slots, ..RouteAttrs::from_op(route) }.attrs();
    let dims = [function.ty(logits).dims().first()?.clone(), slots.into()];
    let types = vec![Type::i32(dims.clone()), Type::f32(dims)];
    let logits = *moved.get(&logits)?;
    Some(out.push(OpKind::Route, vec![Operand::Value(logits)], attrs, types)[0])
}
