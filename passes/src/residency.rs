//! `residency`: if the experts do not all fit in memory, adds ops that load, await and evict each
//! layer's experts.
//!
//! Needs: fused ops, for prediction; explicit loading alone also works on graphs from a frontend.
//! Leaves: the same function. Nothing changes if [`ResidencyOptions::memory`] is not set, or if the
//! experts of all layers fit, both as stored and as packed. Otherwise each layer's experts are
//! requested directly after its `route`. An `expert.wait` is inserted before the first op that
//! reads them, and this op takes the ids that it returns. After the last op that reads them, they
//! are evicted. Tokens from one `expert.slots` order all these ops.
//!
//! ```text
//!   %logits = linear %h, @router, _, _ : f32[T, 16]
//!   %ids, %p = route %logits, _, _ {top_k = 4, score = softmax, groups = 1, groups_kept = 1, normalise = true, scale = 1.0} : i32[T, 4], f32[T, 4]
//!   %a = expert.swiglu %q, %ids, @gate, @up, _, _ {act = silu, limit = 0.0, shift = 0.0, format = a8_super} : a8_super[T, 4, 256]
//!   %y = expert.down %a, %ids, %p, @down, _, %x : f32[T, 256]
//! ```
//! becomes
//! ```text
//!   %3 = expert.slots : token
//!   %logits = linear %h, @router, _, _ : f32[T, 16]
//!   %ids, %p = route %logits, _, _ {top_k = 4, score = softmax, groups = 1, groups_kept = 1, normalise = true, scale = 1.0} : i32[T, 4], f32[T, 4]
//!   %7 = expert.prefetch %3, %ids, @gate, @up, @down {layer = 0, when = routed} : token
//!   %8, %9 = expert.wait %7, %ids {layer = 0} : i32[T, 4], token
//!   %a = expert.swiglu %q, %8, @gate, @up, _, _ {act = silu, limit = 0.0, shift = 0.0, format = a8_super} : a8_super[T, 4, 256]
//!   %y = expert.down %a, %8, %p, @down, _, %x : f32[T, 256]
//!   %12 = expert.evict %9, %y {layer = 0} : token
//! ```
//!
//! **Prediction** ([`ResidencyOptions::predict`]): a layer's router is applied one layer early, to
//! the residual between the attention and the experts of the layer before. This is the method of
//! Eliseev and Mazur 2023, section 3.2. The experts that it selects are prefetched as `predicted`,
//! after the experts of the layer before. The early router runs in parallel with that layer's own
//! router. Both are equally long chains of ops, so the early router adds no barrier. Reads for the
//! next layer thus begin before this layer's experts have been multiplied.
//!
//! The pass finds the ops of a router by walking from its logits back to the residual of the
//! layer's `expert.down`. A layer is not predicted if this walk reaches anything except pure ops
//! and weights.
//!
//! **Deferral** (pass [`defer`](crate::defer)): experts that a layer defers to the next layer are
//! requested twice. The first request is `predicted`, directly after the experts that the layer
//! itself needs. The second request is `routed`, in the next layer. The next layer's own experts
//! are computed after the deferred ones, and are also requested twice. Every expert is thus read
//! while other work is computed.
//!
//! A layer's experts are loaded on demand only if they are matrices of one routing: gate, up and
//! down, or up and down. No other op may read them. In all other layers, all experts stay in
//! memory. The log reports each such layer.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use ixc_ir::format::packed::STRIP;
use ixc_ir::graph::attrs::Prefetch;
use ixc_ir::graph::op::Effect;
use ixc_ir::graph::rewrite::{Position, RewriteError};
use ixc_ir::graph::{
    DefUse, Function, Module, Op, OpKind, OpView, Operand, Rewriter, Type, ValueId, Weight, WeightId, view,
};
use ixc_ir::units::Bytes;

use crate::decision::Decision;
use crate::error::PassError;
use crate::options::{PassOptions, pass_options};
use crate::pack::factors;
use crate::pass::{Context, Pass, Run};

/// Entry of this pass in the list of passes.
pub static PASS: Pass = Pass {
    name: "residency",
    doc: "Adds ops that load, wait for and evict experts, if the experts do not all fit in memory.",
    options: ResidencyOptions::ROWS,
    run: Run::Graph(run),
};

pass_options! {
    /// Options of the pass.
    pub struct ResidencyOptions for "residency" {
        #[doc = "Memory limit in bytes for the weights of experts; `none` keeps all of them in memory."]
        pub memory: Option<u64> = None,
        #[doc = "Number of experts predicted for the next layer in addition to a token's top-k; `none` predicts nothing."]
        pub predict: Option<u32> = None,
    }
}

/// Places of a layer's experts, as named in decisions.
const IN_MEMORY: &str = "all in memory";
const STREAMED: &str = "streamed from the drive";

/// Runs the pass.
///
/// # Errors
/// Never fails; all passes have the same signature.
pub fn run(mut module: Module, context: &Context<'_>) -> Result<Module, PassError> {
    let options: ResidencyOptions = context.options.get();
    let reads_experts = |op: &Op| matches!(op.kind, OpKind::ExpertSwiglu | OpKind::ExpertDown | OpKind::ExpertMatmul);
    let Some(memory) = options.memory else {
        if module.functions.iter().flat_map(|function| &function.ops).any(reads_experts) {
            context.decide(|| {
                let decision = Decision::new("experts", "", "residency").chose(IN_MEMORY);
                decision.over(STREAMED, "experts have no memory limit of their own")
            });
        }
        return Ok(module);
    };
    // The experts of all functions share the memory budget.
    let all = experts(&module);
    let bytes = all.iter().map(|weight| max_bytes(weight)).fold(0, u64::saturating_add);
    let fits = bytes <= memory;
    tracing::debug!(bytes, memory, fits, "experts");
    if !all.is_empty() {
        context.decide(|| {
            let sizes = format!("the experts take {}; their limit is {}", Bytes(bytes), Bytes(memory));
            let (chosen, other) = match fits {
                true => (IN_MEMORY, STREAMED),
                false => (STREAMED, IN_MEMORY),
            };
            Decision::new("experts", "", "residency").chose(chosen).over(other, sizes)
        });
    }
    if fits {
        return Ok(module);
    }
    let mut number = 0;
    for i in 0..module.functions.len() {
        let function = &module.functions[i];
        // A function with slots already loads experts explicitly.
        if function.ops.iter().any(|op| op.kind == OpKind::ExpertSlots) {
            continue;
        }
        let uses = Uses::from_function(function);
        let layers = uses.layers(&module, function, number, context);
        // Layers of later functions get higher numbers.
        number = layers.last().map_or(number, |layer| layer.number + 1);
        tell_prediction(&module, function, &uses, &layers, options.predict, context);
        if !layers.is_empty() {
            module.functions[i] = explicit(&module, function, &uses, &layers, options.predict)?;
        }
    }
    Ok(module)
}

/// Records whether each layer's experts are predicted, and the input of the prediction.
fn tell_prediction(
    module: &Module,
    function: &Function,
    uses: &Uses,
    layers: &[Layer],
    predict: Option<u32>,
    context: &Context<'_>,
) {
    if !context.records_decisions() {
        return;
    }
    const ROUTER: &str = "an early router";
    const NONE: &str = "no prediction";
    for pair in layers.windows(2) {
        let [layer, next] = pair else { continue };
        context.decide(|| {
            let name = next.weights.first().map_or("", |w| module.weights[w.index()].name.as_str());
            let decision = Decision::new("experts", name, "predictor");
            match (predict, Router::find(function, uses, layer, next)) {
                (Some(extra), Some(router)) => {
                    let count = router.route.top_k.saturating_add(extra.into()).min(router.experts);
                    let chosen = format!("{ROUTER}: it names {count} experts per token");
                    decision.chose(chosen).over(NONE, format!("residency.predict is {extra}"))
                }
                (Some(_), None) => {
                    let why = "the router reads more than the residual of the previous layer, so it cannot run early";
                    decision.chose(NONE).over(ROUTER, why)
                }
                (None, _) => {
                    let why = "residency.predict is none, so a run can only predict experts from earlier tokens";
                    decision.chose(NONE).over(ROUTER, why)
                }
            }
        });
    }
}

/// Returns the weights of experts that ops read.
fn experts(module: &Module) -> Vec<&Weight> {
    let read = |function| Uses::from_function(function).readers.into_iter().flat_map(|(_, weights)| weights);
    let all: BTreeSet<WeightId> = module.functions.iter().flat_map(read).collect();
    all.into_iter().filter_map(|w| module.weights.get(w.index())).collect()
}

/// Returns the minimum bytes of memory for all experts of a graph: as stored or packed, whichever
/// is less.
pub fn min_expert_bytes(module: &Module) -> u64 {
    let least = |weight: &Weight| {
        let [stored, packed] = bytes(weight);
        stored.min(packed)
    };
    experts(module).into_iter().map(least).fold(0, u64::saturating_add)
}

/// Returns the maximum number of bytes that a weight takes in memory.
fn max_bytes(weight: &Weight) -> u64 {
    let [stored, packed] = bytes(weight);
    stored.max(packed)
}

/// Returns the bytes of a weight as stored, and as kernels read it packed. They are equal if it
/// cannot be packed.
fn bytes(weight: &Weight) -> [u64; 2] {
    let Some((&last, lead)) = weight.shape.split_last() else { return [0; 2] };
    let strips = lead.last().is_some_and(|n| n.is_multiple_of(STRIP as u64));
    let stored = weight.format.row_bytes(last).unwrap_or(0);
    let packed =
        weight.format.packed_format().filter(|_| strips).and_then(|packed| packed.row_bytes(last)).unwrap_or(stored);
    [stored, packed].map(|row| lead.iter().fold(row, |bytes, &n| bytes.saturating_mul(n)))
}

/// Ops that read experts.
struct Uses {
    def_use: DefUse,
    /// Positions of ops that multiply with experts, in order, each with the weights that it reads.
    readers: Vec<(usize, Vec<WeightId>)>,
    /// For the ids of experts, the positions in `readers` of the ops that take them, and the
    /// positions of `expert.split`s.
    readers_of: HashMap<ValueId, Vec<usize>>,
    splits_of: HashMap<ValueId, Vec<usize>>,
    /// Number of ops that read each weight; a `dequantise` counts once for each reader of its
    /// result.
    reads: HashMap<WeightId, usize>,
}

/// A layer whose experts can be loaded on demand.
struct Layer {
    number: i64,
    /// Position of the op that returns the ids: a `route`, or the op that removes identity experts
    /// from its result.
    route: usize,
    /// Weights of the layer's experts: gate (if present), up, down.
    weights: Vec<WeightId>,
    /// Parts of the routing in the order of the ops that read their experts. Either the whole
    /// routing is one part, or there are the slots of this layer and the deferred slots.
    parts: Vec<Part>,
}

/// Slots of a routing whose experts are needed at the same time.
#[derive(Clone)]
struct Part {
    ids: ValueId,
    /// Position of the op that returns the ids.
    named: usize,
    /// Positions of the ops that read the experts, in order; then the first and the last of them.
    readers: Vec<usize>,
    first: usize,
    last: usize,
}

impl Uses {
    fn from_function(function: &Function) -> Uses {
        let def_use = DefUse::from_function(function);
        let dequantised = |value: ValueId| def_use.defining(function, value).map(|view::Dequantise { w }| w);
        let (mut readers, mut reads) = (Vec::new(), HashMap::<WeightId, usize>::new());
        let (mut readers_of, mut splits_of) = (HashMap::<_, Vec<_>>::new(), HashMap::<_, Vec<_>>::new());
        for (i, op) in function.ops.iter().enumerate().filter(|(_, op)| op.kind != OpKind::Dequantise) {
            let weights = op.operands.iter().filter_map(|operand| match operand {
                Operand::Weight(weight) => Some(*weight),
                Operand::Value(value) => dequantised(*value),
                Operand::State(_) | Operand::Absent => None,
            });
            let weights: Vec<WeightId> = weights.collect();
            weights.iter().for_each(|&weight| *reads.entry(weight).or_default() += 1);
            // Only matrices are loaded on demand; biases stay in memory.
            let is_bias = |w: &WeightId| factors(op.kind).iter().all(|name| op.operand(name) != Operand::Weight(*w));
            let weights = match op.kind {
                OpKind::ExpertMatmul => weights,
                _ => weights.into_iter().filter(|w| !is_bias(w)).collect(),
            };
            if let OpKind::ExpertSwiglu | OpKind::ExpertDown | OpKind::ExpertMatmul = op.kind {
                if let Operand::Value(ids) = op.operand("ids") {
                    readers_of.entry(ids).or_default().push(readers.len());
                }
                readers.push((i, weights));
            }
            if let Some(split) = view::ExpertSplit::from_op(op) {
                splits_of.entry(split.ids).or_default().push(i);
            }
        }
        // If the function returns a dequantised weight, it counts as one more reader.
        for weight in function.results.iter().filter_map(|&result| dequantised(result)) {
            *reads.entry(weight).or_default() += 1;
        }
        Uses { def_use, readers, readers_of, splits_of, reads }
    }

    /// Returns the layers whose experts can be loaded on demand. The number of the first layer is
    /// at least `first`.
    fn layers(&self, module: &Module, function: &Function, first: i64, context: &Context<'_>) -> Vec<Layer> {
        let (mut layers, mut number, mut mixed): (Vec<Layer>, i64, i64) = (Vec::new(), first, first);
        for (i, op) in function.ops.iter().enumerate() {
            // A layer begins with an op that mixes tokens; its experts come after it.
            if op.mixes(function) {
                number = number.max(mixed);
                mixed += 1;
            }
            let routes = matches!(
                op.kind,
                OpKind::RouteListed | OpKind::RouteGiven | OpKind::RouteIdentities | OpKind::RouteOwned | OpKind::Route
            );
            if routes && !self.is_parted(function, op) {
                let found = self.layer(module, function, i, number);
                if found.is_none() {
                    context.decide(|| {
                        let why = "the layer needs 2 or 3 expert matrices that no other op reads";
                        let name = format!("layer.{number}");
                        Decision::new("experts", name, "residency").chose(IN_MEMORY).over(STREAMED, why)
                    });
                    tracing::warn!(
                        layer = number,
                        "the layer's experts stay in memory: they are not two or three matrices that no other op reads"
                    );
                }
                number += i64::from(found.is_some());
                layers.extend(found);
            }
        }
        layers
    }

    /// Whether a later op removes identity experts, or those of other ranks, from an op's result.
    /// If so, readers take the result of that op.
    fn is_parted(&self, function: &Function, op: &Op) -> bool {
        let users = op.results.first().and_then(|&ids| self.def_use.users(ids)).unwrap_or_default();
        users.iter().any(|&user| matches!(function.ops[user].kind, OpKind::RouteIdentities | OpKind::RouteOwned))
    }

    fn layer(&self, module: &Module, function: &Function, route: usize, number: i64) -> Option<Layer> {
        let mut parts: Vec<(Part, Vec<WeightId>)> = Vec::new();
        let mut open = vec![(*function.ops[route].results.first()?, route)];
        while let Some((ids, named)) = open.pop() {
            for &i in self.splits_of.get(&ids).into_iter().flatten() {
                let parts = view::ExpertSplit::results(&function.ops[i]);
                open.extend(parts.into_iter().flat_map(|[now, _, later, _]| [(now, i), (later, i)]));
            }
            let readers = self.readers_of.get(&ids).into_iter().flatten();
            let readers: Vec<&(usize, Vec<WeightId>)> = readers.map(|&reader| &self.readers[reader]).collect();
            let (Some(&&(first, _)), Some(&&(last, _))) = (readers.first(), readers.last()) else { continue };
            let weights: Vec<WeightId> = readers.iter().flat_map(|(_, weights)| weights.iter().copied()).collect();
            let readers = readers.iter().map(|(i, _)| *i).collect();
            parts.push((Part { ids, named, readers, first, last }, weights));
        }
        parts.sort_by_key(|(part, _)| part.first);
        let weights = parts.first()?.1.clone();
        let shape = |w: WeightId| <[u64; 3]>::try_from(&module.weights.get(w.index())?.shape[..]).ok();
        let (gate, [up, down]) = gate_up_down(&weights)?;
        let ([experts, n, k], [down_experts, _, inner]) = (shape(up)?, shape(down)?);
        let gate = gate.map_or(Some([experts, n, k]), shape)?;
        let fits = gate == [experts, n, k] && (down_experts, inner) == (experts, n);
        // Each part must read each weight once, and no other op may read the weights.
        let own = weights.iter().all(|weight| self.reads.get(weight) == Some(&parts.len()));
        let same = parts.iter().all(|(_, of_part)| *of_part == weights);
        let apart = parts.windows(2).all(|pair| pair[0].0.last < pair[1].0.first);
        let after = |part: &Part| {
            let result = function.ops[part.last].results.first();
            result.is_some_and(|&result| function.ty(result).element() == Type::f32([]).element())
        };
        let parts: Vec<Part> = parts.iter().map(|(part, _)| part.clone()).collect();
        let right = fits && own && same && apart && parts.iter().all(after);
        right.then_some(Layer { number, route, weights, parts })
    }
}

/// Returns the value to which a layer's experts are added. Sums of experts that the layer before
/// deferred come first, and are skipped.
fn residual(function: &Function, uses: &Uses, layer: &Layer) -> Option<ValueId> {
    let mut at = layer.parts.first()?.last;
    loop {
        let value = view::ExpertDown::from_op(&function.ops[at])?.residual?;
        match uses.def_use.definition(value) {
            // The loop ends because every op comes after its operands.
            Some(before) if before > layer.route && before < at => at = before,
            _ => return Some(value),
        }
    }
}

/// Maximum number of ops, such as those of shared experts, whose results are added in parallel with
/// the routed experts.
const MAX_PARALLEL_OPS: usize = 2;

/// Returns the value that bypasses a layer's experts, including shared ones, and that the layer's
/// router reads.
fn passed_by(function: &Function, uses: &Uses, layer: &Layer) -> Option<ValueId> {
    let logits = view::Route::from_op(&function.ops[layer.route])?.logits;
    let mut value = residual(function, uses, layer)?;
    for _ in 0..MAX_PARALLEL_OPS {
        if uses.def_use.between(value, logits).is_some() {
            break;
        }
        let op = &function.ops[uses.def_use.definition(value)?];
        let added = op.kind.row().operands.iter().position(|operand| operand.name == "residual")?;
        let Some(Operand::Value(before)) = op.operands.get(added) else { return None };
        value = *before;
    }
    Some(value)
}

/// Indices of parts or layers, by the position of an op.
type ByOp = HashMap<usize, BTreeSet<usize>>;

/// Returns the function with explicit loading.
fn explicit(
    module: &Module,
    function: &Function,
    uses: &Uses,
    layers: &[Layer],
    predict_extra: Option<u32>,
) -> Result<Function, RewriteError> {
    let mut rewriter = Rewriter::new(module, function);
    let [mut slots] = rewriter.insert(Position::Before(0), view::ExpertSlots {})?;
    let parts: Vec<(&Layer, &Part)> =
        layers.iter().flat_map(|layer| layer.parts.iter().map(move |part| (layer, part))).collect();
    // For the first op of each part, the last op of all parts that begin no later than this part.
    let mut ends: BTreeMap<usize, usize> = BTreeMap::new();
    let mut end = 0;
    let mut by_first: Vec<&Part> = parts.iter().map(|(_, part)| *part).collect();
    by_first.sort_by_key(|part| part.first);
    for part in by_first {
        end = end.max(part.last);
        ends.insert(part.first, end);
    }
    // Whether the ids of a part are known before an earlier part has been computed. Parts are
    // computed one after the other.
    let is_early = |part: &Part| ends.range(..part.first).next_back().is_some_and(|(_, &last)| part.named < last);
    // Parts by the positions of their first and last op, and layers by the positions of the ops
    // that return their ids.
    let (mut firsts, mut lasts, mut named) = (ByOp::new(), ByOp::new(), ByOp::new());
    for (at, (_, part)) in parts.iter().enumerate() {
        firsts.entry(part.first).or_default().insert(at);
        lasts.entry(part.last).or_default().insert(at);
    }
    for (at, layer) in layers.iter().enumerate() {
        for part in &layer.parts {
            named.entry(part.named).or_default().insert(at);
        }
    }
    let at = |by_op: &ByOp, op: usize| by_op.get(&op).into_iter().flatten().copied().collect::<Vec<usize>>();
    for (i, op) in function.ops.iter().enumerate() {
        let (before, after) = (Position::Before(i), Position::After(i));
        for (layer, part) in at(&firsts, i).into_iter().map(|at| parts[at]) {
            if is_early(part) {
                slots = prefetch(&mut rewriter, before, slots, part.ids, layer, Prefetch::Routed)?;
            }
            let wait = view::ExpertWait { slots, ids: part.ids, layer: layer.number };
            let [ids, next] = rewriter.insert(before, wait)?;
            for &reader in &part.readers {
                rewriter.replace_uses_in(reader, part.ids, ids)?;
            }
            slots = next;
        }
        for at in at(&named, i) {
            let layer = &layers[at];
            for part in layer.parts.iter().filter(|part| part.named == i) {
                let when = if is_early(part) { Prefetch::Predicted } else { Prefetch::Routed };
                slots = prefetch(&mut rewriter, after, slots, part.ids, layer, when)?;
            }
            if layer.parts.iter().map(|part| part.named).max() == Some(i)
                && let (Some(extra), Some(next)) = (predict_extra, layers.get(at + 1))
                && let Some(router) = Router::find(function, uses, layer, next)
            {
                let ids = router.predict(&mut rewriter, function, after, extra)?;
                slots = prefetch(&mut rewriter, after, slots, ids, next, Prefetch::Predicted)?;
            }
        }
        for (layer, _) in at(&lasts, i).into_iter().map(|at| parts[at]) {
            if let Some(&result) = op.results.first() {
                let evict = view::ExpertEvict { slots, after: result, layer: layer.number };
                [slots] = rewriter.insert(after, evict)?;
            }
        }
    }
    rewriter.finish()
}

/// Returns the matrices of experts, with or without a gate.
fn gate_up_down(weights: &[WeightId]) -> Option<(Option<WeightId>, [WeightId; 2])> {
    match *weights {
        [gate, up, down] => Some((Some(gate), [up, down])),
        [up, down] => Some((None, [up, down])),
        _ => None,
    }
}

fn prefetch(
    rewriter: &mut Rewriter<'_>,
    place: Position,
    slots: ValueId,
    ids: ValueId,
    layer: &Layer,
    when: Prefetch,
) -> Result<ValueId, RewriteError> {
    // A layer always has two or three matrices.
    let Some((gate, [up, down])) = gate_up_down(&layer.weights) else { return Ok(slots) };
    let op = view::ExpertPrefetch { slots, ids, gate, up, down, layer: layer.number, when };
    let [slots] = rewriter.insert(place, op)?;
    Ok(slots)
}

/// The next layer's router, which this layer also applies to predict the next layer's experts.
struct Router {
    /// Value that the router reads when it is applied in this layer, and value that it reads in its
    /// own layer.
    here: ValueId,
    there: ValueId,
    /// Positions of the router's ops.
    ops: Vec<usize>,
    route: view::Route,
    /// Number of experts.
    experts: i64,
}

impl Router {
    fn find(function: &Function, uses: &Uses, layer: &Layer, next: &Layer) -> Option<Router> {
        let (here, there) = (passed_by(function, uses, layer)?, passed_by(function, uses, next)?);
        let fits = uses.def_use.is_defined_before(here, layer.route) && function.ty(here) == function.ty(there);
        let route = view::Route::from_op(&function.ops[next.route])?;
        let experts = i64::try_from(function.ty(route.logits).dims().last()?.fixed()?).ok()?;
        let ops = uses.def_use.between(there, route.logits)?;
        let pure = ops.iter().all(|&at| function.ops[at].kind.row().effect == Effect::Pure);
        (fits && pure).then_some(Router { here, there, ops, route, experts })
    }

    /// Inserts the router's ops, and returns the ids of top-k plus `extra` experts for each token.
    fn predict(
        &self,
        rewriter: &mut Rewriter<'_>,
        function: &Function,
        place: Position,
        extra: u32,
    ) -> Result<ValueId, RewriteError> {
        let mut moved = HashMap::from([(self.there, self.here)]);
        let to = |moved: &HashMap<ValueId, ValueId>, value| moved.get(&value).copied().unwrap_or(value);
        for op in self.ops.iter().map(|&at| &function.ops[at]) {
            let operands = op.operands.iter().map(|operand| operand.map_value(|value| to(&moved, value))).collect();
            let results = rewriter.insert_op(place, op.kind, operands, op.attrs.clone())?;
            moved.extend(op.results.iter().copied().zip(results));
        }
        let top_k = self.route.top_k.saturating_add(extra.into()).min(self.experts);
        let route = view::Route { logits: to(&moved, self.route.logits), top_k, ..self.route };
        let [ids, _] = rewriter.insert(place, route)?;
        Ok(ids)
    }
}
