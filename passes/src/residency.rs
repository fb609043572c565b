//! `residency`: where experts do not all fit in memory, says in the graph when each layer's are loaded, needed and given up.
//!
//! Needs: fused ops, for prediction; loading alone is made explicit in graphs as a frontend writes them, too. Leaves: the same
//! function. Where [`Options::memory`] is not said, or holds the experts of all layers as they are stored and as kernels
//! read them, nothing changes. Otherwise each layer's experts are asked for directly after its `route`, waited for before the first
//! op that reads them, which takes its ids from there, and given up after the last. Tokens from one `expert.slots` order all that.
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
//! **Prediction** ([`Options::predict`]): a layer's router is applied a layer early, to the residual between attention and
//! experts of the layer before (Eliseev and Mazur 2023, section 3.2), and what it names is prefetched as `predicted` behind what the
//! layer before needs. It is computed beside that layer's own router, of a chain as long, so it takes no barrier; and reads
//! of the next layer begin before this one's experts have been multiplied with. Which ops that takes is found by walking from the
//! router's logits back to the residual of the layer's `expert.down`; a layer where that walk meets anything else than pure ops and
//! weights has no prediction.
//!
//! **Deferral** (pass [`defer`](crate::defer)): experts that a layer leaves to the next one are asked for as `predicted` as soon as they
//! are known, directly behind those that it needs itself, and as `routed` when their turn comes. So are the next layer's own, which come
//! after them: whatever is to be waited for is being read while something else is computed.
//!
//! A layer whose experts are not three matrices of one routing, gate, up and down, each read nowhere else, stays as it is: all of its
//! experts are in memory. The log says so.

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

/// The pass.
pub static PASS: Pass = Pass {
    name: "residency",
    doc: "Says when experts are loaded, waited for and given up, where memory does not hold all of them.",
    options: Options::ROWS,
    run: Run::Graph(run),
};

pass_options! {
    /// Options of the pass.
    pub struct Options for "residency" {
        #[doc = "Bytes that experts' weights may take in memory; `none` where all of them stay there."]
        pub memory: Option<u64> = None,
        #[doc = "How many experts more than a token is routed to are predicted for the next layer; `none` predicts nothing."]
        pub predict: Option<u32> = None,
    }
}

/// Runs the pass.
///
/// # Errors
/// None; passes have one signature.
pub fn run(mut module: Module, context: &Context<'_>) -> Result<Module, PassError> {
    let options: Options = context.options.of();
    let reads_experts = |op: &Op| matches!(op.kind, OpKind::ExpertSwiglu | OpKind::ExpertDown | OpKind::ExpertMatmul);
    let Some(memory) = options.memory else {
        if module.functions.iter().flat_map(|function| &function.ops).any(reads_experts) {
            context.decide(|| {
                let decision = Decision::of("experts", "", "residency").chose("all experts stay in memory");
                decision.over("experts are loaded when they are needed", "no budget says that they do not fit")
            });
        }
        return Ok(module);
    };
    // Functions share the memory.
    let read = |function| Uses::of(function).readers.into_iter().flat_map(|(_, weights)| weights);
    let all: BTreeSet<WeightId> = module.functions.iter().flat_map(read).collect();
    let bytes = all.iter().map(|w| module.weights.get(w.index()).map_or(0, bytes)).fold(0, u64::saturating_add);
    let fits = bytes <= memory;
    tracing::debug!(bytes, memory, fits, "experts");
    if !all.is_empty() {
        context.decide(|| {
            let sizes = format!("{} of experts, and {} for them", Bytes(bytes), Bytes(memory));
            let (chosen, other) = match fits {
                true => ("all experts stay in memory", "experts are loaded when they are needed"),
                false => ("experts are loaded when they are needed", "all experts stay in memory"),
            };
            Decision::of("experts", "", "residency").chose(chosen).over(other, sizes)
        });
    }
    if fits {
        return Ok(module);
    }
    let mut number = 0;
    for i in 0..module.functions.len() {
        let function = &module.functions[i];
        // Who has it already has said what is to be loaded when.
        if function.ops.iter().any(|op| op.kind == OpKind::ExpertSlots) {
            continue;
        }
        let uses = Uses::of(function);
        let layers = uses.layers(&module, function, number, context);
        // Layers of functions that stand behind this one have numbers of their own.
        number = layers.last().map_or(number, |layer| layer.number + 1);
        tell_prediction(&module, function, &uses, &layers, (options.predict, context));
        if !layers.is_empty() {
            module.functions[i] = explicit(&module, function, &uses, &layers, options.predict)?;
        }
    }
    Ok(module)
}

/// Tells whether each layer's experts are predicted, and by what.
fn tell_prediction(
    module: &Module,
    function: &Function,
    uses: &Uses,
    layers: &[Layer],
    (predict, context): (Option<u32>, &Context<'_>),
) {
    if !context.tells() {
        return;
    }
    const ROUTER: &str = "its router, applied a layer early";
    for pair in layers.windows(2) {
        let [layer, next] = pair else { continue };
        context.decide(|| {
            let name = next.weights.first().map_or("", |w| module.weights[w.index()].name.as_str());
            let decision = Decision::of("experts", name, "predictor");
            match (predict, Router::of(function, uses, layer, next)) {
                (Some(extra), Some(router)) => {
                    let count = router.route.top_k.saturating_add(extra.into()).min(router.experts);
                    let chosen = format!("{ROUTER}, names {count} for each token");
                    decision.chose(chosen).over("no prediction in the plan", format!("residency.predict is {extra}"))
                }
                (Some(_), None) => {
                    let why = "it takes more than pure ops on what goes by the layer before";
                    decision.chose("no prediction in the plan").over(ROUTER, why)
                }
                (None, _) => {
                    let why = "residency.predict is none: what was used before is all that a run predicts by";
                    decision.chose("no prediction in the plan").over(ROUTER, why)
                }
            }
        });
    }
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
    def_use: DefUse,
    /// Ops that multiply with experts, and the weights, in order.
    readers: Vec<(usize, Vec<WeightId>)>,
    /// By the ids that they take: positions in `readers`, and positions of `expert.split`s.
    readers_of: HashMap<ValueId, Vec<usize>>,
    splits_of: HashMap<ValueId, Vec<usize>>,
    /// How many ops read each weight; a `dequantise` counts for as many as read its result.
    reads: HashMap<WeightId, usize>,
}

/// A layer whose experts can be loaded on their own.
struct Layer {
    number: i64,
    /// Position of the op that gives its ids: a `route`, or what takes experts without matrices out of one.
    route: usize,
    /// Gate, where there is one, up, down.
    weights: Vec<WeightId>,
    /// All that is routed, or what is computed here and what later, in the order of their readers.
    parts: Vec<Part>,
}

/// Slots of a routing whose experts are needed together.
#[derive(Clone)]
struct Part {
    ids: ValueId,
    /// Position of the op that gives the ids.
    named: usize,
    /// Positions of the ops that read the experts, in order; the first and the last.
    readers: Vec<usize>,
    first: usize,
    last: usize,
}

impl Uses {
    fn of(function: &Function) -> Uses {
        let def_use = DefUse::of(function);
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
            // Biases stay in memory.
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
            if let Some(split) = view::ExpertSplit::of(op) {
                splits_of.entry(split.ids).or_default().push(i);
            }
        }
        // A weight that the function returns dequantised is read by more than its products.
        for weight in function.results.iter().filter_map(|&result| dequantised(result)) {
            *reads.entry(weight).or_default() += 1;
        }
        Uses { def_use, readers, readers_of, splits_of, reads }
    }

    /// The layers, the first of which has at least this number.
    fn layers(&self, module: &Module, function: &Function, first: i64, context: &Context<'_>) -> Vec<Layer> {
        let (mut layers, mut number, mut mixed): (Vec<Layer>, i64, i64) = (Vec::new(), first, first);
        for (i, op) in function.ops.iter().enumerate() {
            // Experts follow what mixes the tokens of their layer.
            if op.mixes(function) {
                number = number.max(mixed);
                mixed += 1;
            }
            let routes =
                matches!(op.kind, OpKind::RouteListed | OpKind::RouteGiven | OpKind::RouteIdentities | OpKind::Route);
            if routes && !self.is_parted(function, op) {
                let found = self.layer(module, function, i, number);
                if found.is_none() {
                    context.decide(|| {
                        let why = "they are not two or three matrices of one routing, each read nowhere else";
                        let name = format!("layer.{number}");
                        let decision =
                            Decision::of("experts", name, "residency").chose("all of this layer stay in memory");
                        decision.over("they are loaded when they are needed", why)
                    });
                    tracing::warn!(
                        layer = number,
                        "experts stay in memory: they are not two or three matrices of their own"
                    );
                }
                number += i64::from(found.is_some());
                layers.extend(found);
            }
        }
        layers
    }

    /// Whether experts without matrices are taken out of what an op gives: what is left is what is read.
    fn is_parted(&self, function: &Function, op: &Op) -> bool {
        let users = op.results.first().and_then(|&ids| self.def_use.users(ids)).unwrap_or_default();
        users.iter().any(|&user| function.ops[user].kind == OpKind::RouteIdentities)
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
        // Each read once by each part is each another, too.
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

/// What a layer's experts are added to; what was left from the layer before, which is added first, left out.
fn residual(function: &Function, uses: &Uses, layer: &Layer) -> Option<ValueId> {
    let mut at = layer.parts.first()?.last;
    loop {
        let value = view::ExpertDown::of(&function.ops[at])?.residual?;
        match uses.def_use.definition(value) {
            // Ops stand behind what they take: this ends.
            Some(before) if before > layer.route && before < at => at = before,
            _ => return Some(value),
        }
    }
}

/// Ops that add something beside the routed experts at most: shared experts.
const BESIDE: usize = 2;

/// What goes by a layer's experts, shared ones too, and what its router is applied to.
fn passed_by(function: &Function, uses: &Uses, layer: &Layer) -> Option<ValueId> {
    let logits = view::Route::of(&function.ops[layer.route])?.logits;
    let mut value = residual(function, uses, layer)?;
    for _ in 0..BESIDE {
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

/// Positions of parts or layers, by the op where something is said of them.
type ByOp = HashMap<usize, BTreeSet<usize>>;

/// The function, where loading is explicit.
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
    // By the op that each part begins with, the last op of all that begin no later.
    let mut ends: BTreeMap<usize, usize> = BTreeMap::new();
    let mut end = 0;
    let mut by_first: Vec<&Part> = parts.iter().map(|(_, part)| *part).collect();
    by_first.sort_by_key(|part| part.first);
    for part in by_first {
        end = end.max(part.last);
        ends.insert(part.first, end);
    }
    // Whether these experts are named while those of an earlier part are still computed with. Parts are computed one after the other.
    let is_early = |part: &Part| ends.range(..part.first).next_back().is_some_and(|(_, &last)| part.named < last);
    // Parts and layers, by the ops where something is said of them.
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
                && let Some(router) = Router::of(function, uses, layer, next)
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

/// The matrices of experts, with a gate or without.
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
    // A layer has two or three.
    let Some((gate, [up, down])) = gate_up_down(&layer.weights) else { return Ok(slots) };
    let op = view::ExpertPrefetch { slots, ids, gate, up, down, layer: layer.number, when };
    let [slots] = rewriter.insert(place, op)?;
    Ok(slots)
}

/// The next layer's router, applied behind this layer's.
struct Router {
    /// What it is applied to, and what the next layer applies it to.
    here: ValueId,
    there: ValueId,
    /// Its ops.
    ops: Vec<usize>,
    route: view::Route,
    /// How many experts there are.
    experts: i64,
}

impl Router {
    fn of(function: &Function, uses: &Uses, layer: &Layer, next: &Layer) -> Option<Router> {
        let (here, there) = (passed_by(function, uses, layer)?, passed_by(function, uses, next)?);
        let fits = uses.def_use.is_defined_before(here, layer.route) && function.ty(here) == function.ty(there);
        let route = view::Route::of(&function.ops[next.route])?;
        let experts = i64::try_from(function.ty(route.logits).dims().last()?.fixed()?).ok()?;
        let ops = uses.def_use.between(there, route.logits)?;
        let pure = ops.iter().all(|&at| function.ops[at].kind.row().effect == Effect::Pure);
        (fits && pure).then_some(Router { here, there, ops, route, experts })
    }

    /// The ids that it names, and `extra` for each token.
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
