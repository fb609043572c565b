//! Modules of any ops in any order, with one routine per op, over the values that exist.

use super::{Formats, IDS, Random, RandomModule, formats_of, ok, random_rope, random_route, with_weights};
use crate::format::Format;
use crate::graph::attrs::{Activation, GateAttrs, Prefetch, RopeAttrs, RouteScore, ScoreAttrs};
use crate::graph::builder::{GraphBuilder, LinearPart, RopeFactors};
use crate::graph::op::{OpKind, OperandKind};
use crate::graph::{Attr, Dim, Held, Operand, Part, Place, State, Type, Unary, ValueId, WeightId};
use crate::ngram::{BEFORE, Hash};
use crate::state::Rollback;

/// Makes one op after another from existing values, or from new parameters and weights.
pub(super) struct Soup {
    b: GraphBuilder,
    pub(super) rng: Random,
    formats: Formats,
    ids: ValueId,
    pos: ValueId,
    rows: ValueId,
    /// States of keys and values: heads, key and value sizes, and the last token.
    caches: Vec<((u64, u64, u64), ValueId)>,
    /// Routed ids with their weights and slots.
    routed: Vec<(ValueId, ValueId, u64)>,
    /// The last token of the experts' memory.
    slots: Option<ValueId>,
    made: u64,
}

const WIDTHS: [u64; 3] = [32, 64, 256];

impl Soup {
    pub(super) fn new(seed: u64, formats: Formats) -> Soup {
        let mut b = GraphBuilder::new("f");
        let step = b.step_params();
        Soup {
            b,
            rng: Random::new(seed),
            formats,
            ids: step.ids,
            pos: step.pos,
            rows: step.rows,
            caches: Vec::new(),
            routed: Vec::new(),
            slots: None,
            made: 0,
        }
    }

    pub(super) fn finish(mut self) -> RandomModule {
        let values = 0..self.b.function().values.len() as u32;
        let mut results: Vec<ValueId> = values.map(ValueId).collect();
        results.retain(|&value| !self.b.ty(value).is_token() && self.rng.once_in(3));
        results.extend(self.caches.iter().map(|(_, token)| *token));
        let seed = self.rng.bits();
        with_weights(self.b.finish(&results), seed)
    }

    fn width(&mut self) -> u64 {
        self.rng.pick(&WIDTHS)
    }

    fn name(&mut self, what: &str) -> String {
        self.made += 1;
        // Tensor names are any text. These must survive quoting and escaping.
        let odd = ["", " \"quoted\"", ".\u{e9}\n\\", ".weight"];
        format!("{what}{}{}", self.made, self.rng.pick(&odd))
    }

    fn weight(&mut self, shape: &[u64]) -> WeightId {
        let width = shape.last().copied().unwrap_or(1);
        let format = match shape.len() {
            1 => Format::F32,
            _ => self.rng.pick(&formats_of(self.formats, width)),
        };
        let name = self.name("w");
        let place = self.rng.once_in(2).then(|| Place { file: self.made as u32, offset: self.rng.bits() });
        let rows = if let [.., n, _] = shape { *n } else { 0 };
        let part = (rows > 0 && self.rng.once_in(4)).then(|| {
            let from = self.rng.below(3) * rows;
            Part { tensor: self.name("t"), rows: from + rows + self.rng.below(2) * rows, from }
        });
        ok(self.b.weight_part(&name, format, shape, place, part))
    }

    fn maybe_vector(&mut self, n: u64) -> Option<WeightId> {
        self.rng.once_in(2).then(|| self.weight(&[n]))
    }

    fn rope_factors(&mut self, rope: &RopeAttrs) -> RopeFactors {
        RopeFactors { short: self.maybe_vector(rope.dims / 2), long: self.maybe_vector(rope.dims / 2) }
    }

    /// Returns a weight with a row for each expert, such as biases.
    fn table(&mut self, n: u64) -> WeightId {
        let name = self.name("w");
        ok(self.b.weight(&name, Format::F32, &[IDS, n], None))
    }

    fn maybe_table(&mut self, n: u64) -> Option<WeightId> {
        self.rng.once_in(2).then(|| self.table(n))
    }

    fn gate(&mut self) -> GateAttrs {
        let act = self.rng.pick(&[
            Activation::Silu,
            Activation::Gelu,
            Activation::QuickGelu,
            Activation::LimitedSilu,
            Activation::BentSilu,
            Activation::Relu,
            Activation::ReluSquared,
            Activation::GeluErf,
        ]);
        GateAttrs {
            act,
            limit: self.rng.pick(&[0.0, 7.0, 0.25]),
            shift: self.rng.pick(&[0.0, 1.0]),
            bend: if act.bends() { self.rng.pick(&[0.5, 4.0]) } else { 0.0 },
        }
    }

    /// Returns an existing value of this type, or a new parameter.
    fn value(&mut self, ty: Type) -> ValueId {
        let values = (0..self.b.function().values.len() as u32).map(ValueId);
        let fitting: Vec<ValueId> = values.filter(|&value| *self.b.ty(value) == ty).collect();
        if !fitting.is_empty() && !self.rng.once_in(4) {
            return self.rng.pick(&fitting);
        }
        self.made += 1;
        self.b.param(&format!("x{}", self.made), ty)
    }

    /// Returns a value of type f32[T, dims].
    fn f32(&mut self, dims: &[u64]) -> ValueId {
        let dims: Vec<Dim> = [Dim::symbol("T")].into_iter().chain(dims.iter().map(|&n| n.into())).collect();
        self.value(Type::f32(dims))
    }

    /// Returns a value [T, dims] in the activation format of a weight.
    fn activation(&mut self, weight: WeightId, dims: &[u64]) -> ValueId {
        let format = self.b.module().weights[weight.index()].format.activation();
        let x = self.f32(dims);
        if format == Format::F32 { x } else { ok(self.b.quantise(x, format)) }
    }

    /// Returns an activation format whose blocks divide `width` elements.
    fn activation_format(&mut self, width: u64) -> Format {
        let formats: Vec<Format> = formats_of(self.formats, width).iter().map(|format| format.activation()).collect();
        self.rng.pick(&formats)
    }

    /// Returns gate and up, with one shape and one activation format.
    fn gate_up(&mut self, shape: &[u64]) -> (WeightId, WeightId) {
        let gate = self.weight(shape);
        let format = self.b.module().weights[gate.index()].format;
        let name = self.name("up");
        (gate, ok(self.b.weight(&name, format, shape, None)))
    }

    fn routed(&mut self) -> (ValueId, ValueId, u64) {
        if self.routed.is_empty() || self.rng.once_in(3) {
            self.op(OpKind::Route);
        }
        self.rng.pick(&self.routed)
    }

    /// Returns the token of the experts' memory; a function has only one.
    fn slots(&mut self) -> ValueId {
        match self.slots {
            Some(slots) => slots,
            None => *self.slots.insert(ok(self.b.expert_slots())),
        }
    }

    /// Returns the number of a state with keys and values of these sizes: an existing one, or a new
    /// one. The token of a new one is a parameter, or begun here.
    fn cache(&mut self, sizes: (u64, u64, u64)) -> usize {
        if let Some(cache) = self.caches.iter().position(|(cache, _)| *cache == sizes) {
            return cache;
        }
        let name = self.name("kv");
        let window = self.rng.once_in(3).then(|| 1 + self.rng.below(8));
        let state = ok(self.b.state(State { window, ..State::paged(&name, sizes.0, sizes.1, sizes.2) }));
        let token = if self.rng.once_in(2) {
            self.made += 1;
            self.b.param(&format!("x{}", self.made), Type::Token(Held::State(state)))
        } else {
            ok(self.b.state_begin(state))
        };
        self.caches.push((sizes, token));
        self.caches.len() - 1
    }

    pub(super) fn op(&mut self, kind: OpKind) {
        let (k, n) = (self.width(), self.width());
        let (heads, d) = (self.rng.pick(&[1, 2, 4]), self.rng.pick(&[8, 16]));
        match kind {
            OpKind::Embed => {
                let table = self.weight(&[IDS + n, k]);
                ok(self.b.embed(self.ids, table));
            }
            OpKind::Dequantise => {
                let w = if self.rng.once_in(2) { self.weight(&[n, k]) } else { self.weight(&[IDS, 2, k]) };
                ok(self.b.dequantise(w));
            }
            OpKind::Matmul => {
                let w = self.weight(&[n, k]);
                let w = ok(self.b.dequantise(w));
                let x = if self.rng.once_in(2) { self.f32(&[k]) } else { self.f32(&[heads, k]) };
                ok(self.b.matmul(x, w));
                let matrix = self.value(Type::f32([Dim::Fixed(n), Dim::Fixed(k)]));
                ok(self.b.matmul(x, matrix));
            }
            OpKind::Add | OpKind::Mul => {
                let (a, b) = (self.f32(&[k]), self.f32(&[k]));
                ok(if kind == OpKind::Add { self.b.add(a, b) } else { self.b.mul(a, b) });
            }
            OpKind::AddBias => {
                let (x, bias) = (self.f32(&[k]), self.weight(&[k]));
                ok(self.b.add_bias(x, bias));
            }
            OpKind::Gated => {
                let (gate, up, attrs) = (self.f32(&[k]), self.f32(&[k]), self.gate());
                ok(self.b.gated(gate, up, &attrs));
            }
            OpKind::ScaleHeads => {
                let (x, s) = (self.f32(&[heads * d]), self.f32(&[heads]));
                let residual = self.rng.once_in(2).then(|| Operand::Value(self.f32(&[heads * d])));
                let operands = vec![Operand::Value(x), Operand::Value(s), residual.unwrap_or(Operand::Absent)];
                ok(self.b.op(kind, operands, vec![]));
            }
            OpKind::Unary(function) => {
                let (x, row) = (self.f32(&[k]), kind.row());
                // Bounded operands keep later results finite.
                let x = if function == Unary::Exp { ok(self.b.sigmoid(x)) } else { x };
                let attrs = row.attrs.iter().map(|_| Attr::rounded(self.rng.pick(&[1.0, 30.0]))).collect();
                let y = ok(self.b.unary(function, x, attrs));
                self.b.name(y, &format!("{}.{}", row.mnemonic, y.0));
            }
            OpKind::RmsNorm => {
                let of_head = self.rng.once_in(2);
                let shape = if of_head { vec![heads, d] } else { vec![d] };
                let x = self.f32(&[heads, d]);
                let w = self.rng.once_in(2).then(|| self.weight(&shape));
                ok(self.b.rms_norm(x, w, 1e-5));
            }
            OpKind::SplitHeads => {
                let x = self.f32(&[k]);
                ok(self.b.split_heads(x, heads));
            }
            OpKind::MergeHeads => {
                let x = self.f32(&[heads, d]);
                ok(self.b.merge_heads(x));
            }
            OpKind::Slice => {
                let x = if self.rng.once_in(2) { self.f32(&[k]) } else { self.f32(&[heads, d]) };
                let count = 1 + self.rng.below(d);
                let from = self.rng.below(d - count + 1);
                ok(self.b.slice(x, from, count));
            }
            OpKind::Concat => {
                let (a, b) = if self.rng.once_in(2) {
                    (self.f32(&[k]), self.f32(&[n]))
                } else {
                    (self.f32(&[heads, d]), self.f32(&[heads, k]))
                };
                ok(self.b.concat(a, b));
            }
            OpKind::Rope => {
                let x = self.f32(&[heads, d]);
                let rope = random_rope(&mut self.rng, d);
                let factors = self.rope_factors(&rope);
                ok(self.b.rope(x, self.pos, factors, &rope));
            }
            OpKind::Temperature => {
                let x = if self.rng.once_in(2) { self.f32(&[k]) } else { self.f32(&[heads, d]) };
                let attrs = vec![
                    Attr::Float(self.rng.pick(&[0.1, 0.0])),
                    Attr::Int(self.rng.pick(&[1, 3, 8192])),
                    Attr::Int(self.rng.pick(&[0, 1])),
                ];
                ok(self.b.op(kind, vec![Operand::Value(x), Operand::Value(self.pos)], attrs));
            }
            OpKind::HeadsTemperature => {
                let (x, scales, biases) = (self.f32(&[heads, d]), self.weight(&[heads]), self.weight(&[heads]));
                ok(self.b.heads_temperature(x, self.pos, [scales, biases]));
            }
            OpKind::Centre => {
                let x = if self.rng.once_in(2) { self.f32(&[k]) } else { self.f32(&[heads, d]) };
                ok(self.b.centre(x));
            }
            OpKind::HeadsSum => {
                let x = self.f32(&[heads, d]);
                ok(self.b.heads_sum(x));
            }
            OpKind::Ngram => {
                let name = self.name("s");
                let state = ok(self.b.state(State::recurrent(&name, &[1, BEFORE as u64], Rollback::Snapshot)));
                let token = ok(self.b.state_begin(state));
                let multipliers = [1, 3, (1 << 40) | 5, self.rng.pick(&[0, 7])];
                let hash = Hash { end: 0, multipliers, modulus: self.rng.pick(&[1, 97]), offset: 2 };
                ok(self.b.ngram(token, self.ids, &hash));
            }
            OpKind::StateBegin => {
                // A state that no other op touches.
                let name = self.name("s");
                let rollback = self.rng.pick(&[Rollback::Snapshot, Rollback::None]);
                let state = ok(self.b.state(State::recurrent(&name, &[heads, d], rollback)));
                ok(self.b.state_begin(state));
            }
            OpKind::Recurrent(op) => {
                let example = (op.definition().example)(&mut self.rng);
                let name = self.name("s");
                let rollback = self.rng.pick(&[Rollback::Snapshot, Rollback::None]);
                let state = ok(self.b.state(State::recurrent(&name, &example.state, rollback)));
                let mut operands = vec![Operand::Value(ok(self.b.state_begin(state)))];
                for (dims, row) in example.operands.iter().zip(&kind.row().operands[1..]) {
                    operands.push(match row.kind {
                        OperandKind::Weight | OperandKind::OptWeight => {
                            let name = self.name("w");
                            Operand::Weight(ok(self.b.weight(&name, Format::F32, dims, None)))
                        }
                        OperandKind::Value if dims.is_empty() => Operand::Value(self.pos),
                        OperandKind::OptValue if dims.is_empty() => Operand::Absent,
                        OperandKind::Value | OperandKind::OptValue => Operand::Value(self.f32(dims)),
                        OperandKind::State => Operand::State(state),
                    });
                }
                ok(self.b.op(kind, operands, example.attrs));
            }
            OpKind::KvAppend => {
                let dv = self.rng.pick(&[d, 4]);
                let cache = self.cache((heads, d, dv));
                let (k, v) = (self.f32(&[heads, d]), self.f32(&[heads, dv]));
                self.caches[cache].1 = ok(self.b.kv_append(self.caches[cache].1, k, v, self.pos));
            }
            OpKind::IndexTopK => {
                let cache = self.cache((1, d, 4));
                let (k, v) = (self.f32(&[1, d]), self.f32(&[1, 4]));
                self.caches[cache].1 = ok(self.b.kv_append(self.caches[cache].1, k, v, self.pos));
                let (q, kv) = (self.f32(&[heads, d]), self.caches[cache].1);
                (_, self.caches[cache].1) = if self.rng.once_in(2) {
                    let (block, local) = (1 + self.rng.below(3), 1 + self.rng.below(2));
                    let top_k = block * (local + self.rng.below(2));
                    ok(self.b.index_blocks(q, kv, self.pos, [top_k, block, local]))
                } else {
                    let w = self.f32(&[heads]);
                    let top_k = self.rng.pick(&[1, 3]);
                    ok(self.b.index_top_k(q, w, kv, self.pos, (top_k, false)))
                };
            }
            OpKind::Attention => {
                if self.caches.is_empty() {
                    self.op(OpKind::KvAppend);
                }
                let cache = self.rng.below(self.caches.len() as u64) as usize;
                let (kv_heads, d, _) = self.caches[cache].0;
                let heads = kv_heads * self.rng.pick(&[1, 3]);
                let q = self.f32(&[heads, d]);
                let sinks = self.maybe_vector(heads);
                let [cap, max_bias, slope] =
                    self.rng.pick(&[[0.0, 0.0, 0.0], [2.0, 0.0, 0.0], [0.0, 8.0, 0.5], [2.0, 8.0, 0.0]]);
                let scores = ScoreAttrs { cap, max_bias, slope, ..ScoreAttrs::plain(0.25) };
                (_, self.caches[cache].1) =
                    ok(self.b.attention(q, self.caches[cache].1, self.pos, sinks, None, &scores));
            }
            OpKind::HeadsMatmul => {
                let (x, w) = (self.f32(&[heads, k]), self.weight(&[heads, n, k]));
                let w = ok(self.b.dequantise(w));
                ok(self.b.heads_matmul(x, w));
            }
            OpKind::LinearHeads => {
                let w = self.weight(&[heads, n, k]);
                let x = self.activation(w, &[heads, k]);
                ok(self.b.op(kind, vec![Operand::Value(x), Operand::Weight(w)], vec![]));
            }
            OpKind::Route => {
                let slots = 1 + self.rng.below(IDS);
                let (logits, route) = (self.f32(&[IDS]), random_route(&mut self.rng, slots));
                let bias = if route.score.weighs_by_those_left() { None } else { self.maybe_vector(IDS) };
                let vectors = [bias, self.maybe_vector(IDS)];
                let (ids, p) = ok(self.b.route(logits, vectors, &route));
                self.routed.push((ids, p, slots));
            }
            OpKind::ExpertMatmul => {
                let (ids, _, slots) = self.routed();
                let w = self.weight(&[IDS + 1, n, k]);
                let w = ok(self.b.dequantise(w));
                let x = if self.rng.once_in(2) { self.f32(&[k]) } else { self.f32(&[slots, k]) };
                ok(self.b.expert_matmul(x, ids, w));
            }
            OpKind::ExpertAddBias => {
                let (ids, _, slots) = self.routed();
                let (y, bias) = (self.f32(&[slots, k]), self.table(k));
                ok(self.b.expert_add_bias(y, ids, bias));
            }
            OpKind::ExpertScale => {
                let (ids, _, slots) = self.routed();
                let (y, factors) = (self.f32(&[slots, k]), self.weight(&[IDS]));
                ok(self.b.expert_scale(y, ids, factors));
            }
            OpKind::ExpertCombine => {
                let (_, p, slots) = self.routed();
                let y = self.f32(&[slots, k]);
                ok(self.b.expert_combine(y, p));
            }
            OpKind::Positions => {
                let (every, back) = (1 + self.rng.below(4), self.rng.once_in(2));
                ok(self.b.positions(self.pos, every, back));
            }
            OpKind::Ends => {
                ok(self.b.ends(self.pos));
            }
            OpKind::AttentionEntries => {
                let every = 2 + self.rng.below(3);
                let chooses = self.rng.once_in(2);
                let [kv, entries, index] = [(heads, 1), (heads, every), (1, every)].map(|(heads, every)| {
                    let name = self.name("kv");
                    let state = ok(self.b.state(State { every, ..State::paged(&name, heads, d, d) }));
                    let token = ok(self.b.state_begin(state));
                    let (k, v) = (self.f32(&[heads, d]), self.f32(&[heads, d]));
                    ok(self.b.kv_append(token, k, v, self.pos))
                });
                let chosen = chooses.then(|| {
                    let (q, w) = (self.f32(&[heads, d]), self.f32(&[heads]));
                    let top_k = self.rng.pick(&[1, 3]);
                    ok(self.b.index_top_k(q, w, index, self.pos, (top_k, true))).0
                });
                let (q, sinks) = (self.f32(&[3 * heads, d]), self.maybe_vector(3 * heads));
                ok(self.b.attention_entries(q, [kv, entries], self.pos, (sinks, chosen), 0.25));
            }
            OpKind::RouteListed => {
                let table = self.table(2);
                let (logits, route) = (self.f32(&[IDS]), random_route(&mut self.rng, 2));
                // Listed experts need not be near the highest logit.
                let score = if route.score.weighs_by_those_left() { RouteScore::Sigmoid } else { route.score };
                let how = (score, route.normalise, route.scale);
                let (ids, p) = ok(self.b.route_listed(logits, self.ids, table, how));
                self.routed.push((ids, p, 2));
            }
            OpKind::RouteGiven => {
                let (ids, p, slots) = self.routed();
                let (ids, p) = ok(self.b.route_given(ids, p, IDS));
                self.routed.push((ids, p, slots));
            }
            OpKind::RouteIdentities => {
                let (ids, p, slots) = self.routed();
                let experts = 1 + self.rng.below(IDS);
                let (ids, p, _) = ok(self.b.route_identities(ids, p, experts));
                self.routed.push((ids, p, slots));
            }
            OpKind::ExpertGroups => {
                let (ids, p, slots) = self.routed();
                let groups = ok(self.b.expert_groups(ids, self.rng.pick(&[1, 2])));
                self.routed.push((groups, p, slots));
            }
            OpKind::StreamWeights => {
                let n = self.rng.pick(&[1, 4]);
                let (width, parts) = self.rng.pick(&[((2 + n) * n, 3), (2 * n, 2), (n, 1)]);
                let (x, scale, base) = (self.f32(&[width]), self.weight(&[parts]), self.weight(&[width]));
                ok(self.b.stream_weights(x, [scale, base], n, (1 + self.rng.below(3), 1e-5, 1.5)));
            }
            OpKind::StreamInput => {
                let (x, w) = (self.f32(&[heads, d]), self.f32(&[heads + n]));
                ok(self.b.stream_input(x, w));
            }
            OpKind::StreamMix => {
                let width = self.rng.pick(&[(2 + heads) * heads, 2 * heads]);
                let (x, y, w) = (self.f32(&[heads, d]), self.f32(&[d]), self.f32(&[width]));
                ok(self.b.stream_mix(x, y, w));
            }
            OpKind::StreamAttend => {
                let (x, y, w) = (self.f32(&[heads, d]), self.f32(&[d]), self.weight(&[d]));
                ok(self.b.stream_attend(x, y, w, 1e-5));
            }
            OpKind::TakeRows => {
                let x = self.f32(&[k]);
                ok(self.b.take_rows(x, self.rows));
            }
            OpKind::Quantise => {
                let (x, format) = (self.f32(&[k]), self.activation_format(k));
                ok(self.b.quantise(x, format));
            }
            OpKind::RmsNormQuantise => {
                let (x, w, format) = (self.f32(&[k]), self.maybe_vector(k), self.activation_format(k));
                ok(self.b.rms_norm_quantise(x, w, 1e-6, format));
            }
            OpKind::Linear => {
                let w = self.weight(&[n, k]);
                let (x, bias) = (self.activation(w, &[k]), self.maybe_vector(n));
                let residual = self.rng.once_in(2).then(|| self.f32(&[n]));
                ok(self.b.linear(x, w, bias, residual));
            }
            OpKind::LinearQkv => {
                let [q, k, v] = [n, 32, 32].map(|n| {
                    let w = self.weight(&[n, k]);
                    LinearPart { x: self.activation(w, &[k]), w, bias: self.maybe_vector(n) }
                });
                ok(self.b.linear_qkv(q, k, v));
            }
            OpKind::LinearSwiglu => {
                let (gate, up) = self.gate_up(&[n, k]);
                let (x, format) = (self.activation(gate, &[k]), self.activation_format(n));
                let biases = [self.maybe_vector(n), self.maybe_vector(n)].map(maybe_weight);
                let mut operands = vec![Operand::Value(x), Operand::Weight(gate), Operand::Weight(up)];
                operands.extend(biases);
                let attrs = self.gate().attrs().into_iter().chain([Attr::Format(format)]).collect();
                ok(self.b.op(kind, operands, attrs));
            }
            OpKind::RopeHeads => {
                let x = self.f32(&[heads * d]);
                let rope = random_rope(&mut self.rng, d);
                let (norm, factors) = (self.maybe_vector(d), self.rope_factors(&rope));
                ok(self.b.rope_heads(x, self.pos, norm, factors, heads, 1e-6, &rope));
            }
            OpKind::RopeAppend => {
                let cache = self.cache((heads, d, 8));
                let (k, v) = (self.f32(&[heads * d]), self.f32(&[heads * 8]));
                let rope = random_rope(&mut self.rng, d);
                let (norm, factors) = (self.maybe_vector(d), self.rope_factors(&rope));
                let kv = self.caches[cache].1;
                self.caches[cache].1 = ok(self.b.rope_append(kv, k, v, self.pos, norm, factors, heads, 1e-6, &rope));
            }
            OpKind::ExpertSwiglu => {
                let (ids, _, _) = self.routed();
                let (gate, up) = self.gate_up(&[IDS, n, k]);
                let (x, format) = (self.activation(gate, &[k]), self.activation_format(n));
                let biases = [self.maybe_table(n), self.maybe_table(n)].map(maybe_weight);
                let mut operands =
                    vec![Operand::Value(x), Operand::Value(ids), Operand::Weight(gate), Operand::Weight(up)];
                operands.extend(biases);
                let attrs = self.gate().attrs().into_iter().chain([Attr::Format(format)]).collect();
                ok(self.b.op(kind, operands, attrs));
            }
            OpKind::ExpertDown => {
                let (ids, p, slots) = self.routed();
                let w = self.weight(&[IDS, n, k]);
                let (x, residual) = (self.activation(w, &[slots, k]), self.f32(&[n]));
                let bias = maybe_weight(self.maybe_table(n));
                let [x, ids, p, residual] = [x, ids, p, residual].map(Operand::Value);
                ok(self.b.op(kind, vec![x, ids, p, Operand::Weight(w), bias, residual], vec![]));
            }
            OpKind::ColumnSquares => {
                let (ids, _, slots) = self.routed();
                let (routed, by_slot) = (self.rng.once_in(2), self.rng.once_in(2));
                let format = self.activation_format(k);
                let dims = if routed && by_slot { vec![slots, k] } else { vec![k] };
                let x = self.f32(&dims);
                let x = if format == Format::F32 { x } else { ok(self.b.quantise(x, format)) };
                let name = self.name("s");
                let shape = [if routed { IDS } else { 1 }, k + 1];
                let state = ok(self.b.state(State::recurrent(&name, &shape, Rollback::None)));
                let token = ok(self.b.state_begin(state));
                let ids = if routed { Operand::Value(ids) } else { Operand::Absent };
                ok(self.b.op(kind, vec![Operand::Value(token), Operand::Value(x), ids], vec![]));
            }
            OpKind::ExpertSplit => {
                let (ids, p, slots) = self.routed();
                if slots < 2 {
                    return;
                }
                let now = 1 + self.rng.below(slots - 1);
                let [(now_ids, now_p), (later_ids, later_p)] = ok(self.b.expert_split(ids, p, now));
                self.routed.extend([(now_ids, now_p, now), (later_ids, later_p, slots - now)]);
            }
            OpKind::ExpertSlots => {
                self.slots();
            }
            OpKind::ExpertPrefetch => {
                let ((ids, _, _), (gate, up)) = (self.routed(), self.gate_up(&[IDS, n, k]));
                let (slots, down) = (self.slots(), self.weight(&[IDS, 32, n]));
                let when = self.rng.pick(&[Prefetch::Routed, Prefetch::Predicted]);
                let gate = Some(gate).filter(|_| self.rng.once_in(2));
                self.slots = Some(ok(self.b.expert_prefetch(slots, ids, (gate, [up, down]), heads, when)));
            }
            OpKind::ExpertWait => {
                let (ids, p, top_k) = self.routed();
                let slots = self.slots();
                let (ids, slots) = ok(self.b.expert_wait(slots, ids, heads));
                self.slots = Some(slots);
                self.routed.push((ids, p, top_k));
            }
            OpKind::ExpertEvict => {
                let (slots, after) = (self.slots(), self.f32(&[k]));
                self.slots = Some(ok(self.b.expert_evict(slots, after, heads)));
            }
        }
    }
}

fn maybe_weight(weight: Option<WeightId>) -> Operand {
    weight.map_or(Operand::Absent, Operand::Weight)
}
