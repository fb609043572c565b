//! Generator of random modules: any ops in any order, whose operands are the values that exist.
//! Each op has its own routine.

mod attention;
mod experts;
mod products;
mod states;
mod streams;
mod values;

use super::{Formats, IDS, Random, RandomModule, formats_of, ok, with_weights};
use ixc_ir::format::Format;
use ixc_ir::graph::attrs::{Activation, GateAttrs, RopeAttrs};
use ixc_ir::graph::builder::{GraphBuilder, RopeFactors};
use ixc_ir::graph::op::OpKind;
use ixc_ir::graph::types::CacheShape;
use ixc_ir::graph::{Dim, OpView, Operand, Part, Place, State, TokenOwner, Type, ValueId, WeightId, view};

/// Generator of ops. Operands are existing values, or new parameters and weights.
pub(super) struct Soup {
    b: GraphBuilder,
    pub(super) rng: Random,
    formats: Formats,
    ids: ValueId,
    pos: ValueId,
    rows: ValueId,
    /// States of keys and values, each with its latest token.
    caches: Vec<(CacheShape, ValueId)>,
    /// Ids of routings, each with its weights and its number of slots.
    routed: Vec<(ValueId, ValueId, u64)>,
    /// Latest token of the experts' memory.
    slots: Option<ValueId>,
    /// Latest token of the group of ranks.
    group: Option<ValueId>,
    made: u64,
}

const WIDTHS: [u64; 3] = [32, 64, 256];

/// Random sizes for the operands of an op.
#[derive(Clone, Copy)]
struct Sizes {
    /// Number of columns of a weight, which is the width of its input.
    k: u64,
    /// Number of rows of a weight, which is the width of its result.
    n: u64,
    /// Number of heads of an operand.
    heads: u64,
    /// Number of elements of a head.
    d: u64,
}

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
            group: None,
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
        // Tensor names can be any text. These names must survive quoting and escaping.
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

    /// Returns a weight with a row for each expert, such as a table of biases.
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

    /// Returns an existing value of type `ty`, or a new parameter.
    fn value(&mut self, ty: Type) -> ValueId {
        let values = (0..self.b.function().values.len() as u32).map(ValueId);
        let fitting: Vec<ValueId> = values.filter(|&value| *self.b.ty(value) == ty).collect();
        if !fitting.is_empty() && !self.rng.once_in(4) {
            return self.rng.pick(&fitting);
        }
        self.made += 1;
        self.b.param(&format!("x{}", self.made), ty)
    }

    /// Returns a value of type `f32[T, dims]`.
    fn f32(&mut self, dims: &[u64]) -> ValueId {
        let dims: Vec<Dim> = [Dim::symbol("T")].into_iter().chain(dims.iter().map(|&n| n.into())).collect();
        self.value(Type::f32(dims))
    }

    /// Returns a value of shape `[T, dims]` in the activation format of a weight.
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

    /// Returns a gate and an up projection with the same shape and the same activation format.
    fn gate_up(&mut self, shape: &[u64]) -> (WeightId, WeightId) {
        let gate = self.weight(shape);
        let format = self.b.module().weights[gate.index()].format;
        let name = self.name("up");
        (gate, ok(self.b.weight(&name, format, shape, None)))
    }

    fn pick_route(&mut self) -> (ValueId, ValueId, u64) {
        if self.routed.is_empty() || self.rng.once_in(3) {
            self.op(OpKind::Route);
        }
        self.rng.pick(&self.routed)
    }

    /// Returns the latest token of the experts' memory. A function has only one such memory.
    fn slots(&mut self) -> ValueId {
        match self.slots {
            Some(slots) => slots,
            None => *self.slots.insert(ok(self.b.expert_slots())),
        }
    }

    /// Returns the latest token of a group of one rank. A function has only one group.
    fn group(&mut self) -> ValueId {
        match self.group {
            Some(group) => group,
            None => {
                let begin = view::RanksBegin { rank: 0, ranks: 1 };
                *self.group.insert(ok(self.b.op(OpKind::RanksBegin, begin.operands(), begin.attrs()))[0])
            }
        }
    }

    fn collective(&mut self, kind: OpKind, Sizes { k, .. }: Sizes) {
        let operands = [self.group(), self.f32(&[k])].map(Operand::Value);
        self.group = ok(self.b.op(kind, operands.to_vec(), Vec::new())).last().copied();
    }

    /// Returns the index of a state of this shape: an existing state or a new one. The token of a
    /// new state is a parameter, or the result of a new `state.begin`.
    fn cache(&mut self, shape: CacheShape) -> usize {
        if let Some(cache) = self.caches.iter().position(|(cache, _)| *cache == shape) {
            return cache;
        }
        let name = self.name("kv");
        let window = self.rng.once_in(3).then(|| 1 + self.rng.below(8));
        let state = ok(self.b.state(State { window, ..State::paged(&name, shape.heads, shape.key, shape.value) }));
        let token = if self.rng.once_in(2) {
            self.made += 1;
            self.b.param(&format!("x{}", self.made), Type::Token(TokenOwner::State(state)))
        } else {
            ok(self.b.state_begin(state))
        };
        self.caches.push((shape, token));
        self.caches.len() - 1
    }

    /// Adds an op of this kind, and the operands that it needs.
    pub(super) fn op(&mut self, kind: OpKind) {
        let (k, n) = (self.width(), self.width());
        let (heads, d) = (self.rng.pick(&[1, 2, 4]), self.rng.pick(&[8, 16]));
        let sizes = Sizes { k, n, heads, d };
        match kind {
            OpKind::Embed => self.embed(sizes),
            OpKind::Dequantise => self.dequantise(sizes),
            OpKind::Matmul => self.matmul(sizes),
            OpKind::Add | OpKind::Mul => self.add_or_mul(kind, sizes),
            OpKind::AddBias => self.add_bias(sizes),
            OpKind::Gated => self.gated(sizes),
            OpKind::ScaleHeads => self.scale_heads(kind, sizes),
            OpKind::Unary(function) => self.unary(kind, function, sizes),
            OpKind::RmsNorm => self.rms_norm(sizes),
            OpKind::SplitHeads => self.split_heads(sizes),
            OpKind::MergeHeads => self.merge_heads(sizes),
            OpKind::Slice => self.slice(sizes),
            OpKind::Concat => self.concat(sizes),
            OpKind::Rope => self.rope(sizes),
            OpKind::Temperature => self.temperature(kind, sizes),
            OpKind::HeadsTemperature => self.heads_temperature(sizes),
            OpKind::Centre => self.centre(sizes),
            OpKind::HeadsSum => self.heads_sum(sizes),
            OpKind::Ngram => self.ngram(),
            OpKind::StateBegin => self.state_begin(sizes),
            OpKind::Recurrent(op) => self.recurrent(kind, op),
            OpKind::KvAppend => self.kv_append(sizes),
            OpKind::IndexTopK => self.index_top_k(sizes),
            OpKind::Attention => self.attention(),
            OpKind::HeadsMatmul => self.heads_matmul(sizes),
            OpKind::LinearHeads => self.linear_heads(kind, sizes),
            OpKind::Route => self.route(),
            OpKind::ExpertMatmul => self.expert_matmul(sizes),
            OpKind::ExpertAddBias => self.expert_add_bias(sizes),
            OpKind::ExpertScale => self.expert_scale(sizes),
            OpKind::ExpertCombine => self.expert_combine(sizes),
            OpKind::Positions => self.positions(),
            OpKind::Ends => self.ends(),
            OpKind::AttentionEntries => self.attention_entries(sizes),
            OpKind::RouteListed => self.route_listed(),
            OpKind::RouteGiven => self.route_given(),
            OpKind::RouteIdentities => self.route_identities(),
            OpKind::ExpertGroups => self.expert_groups(),
            OpKind::StreamWeights => self.stream_weights(),
            OpKind::StreamInput => self.stream_input(sizes),
            OpKind::StreamMix => self.stream_mix(sizes),
            OpKind::StreamAttend => self.stream_attend(sizes),
            OpKind::TakeRows => self.take_rows(sizes),
            OpKind::Quantise => self.quantise(sizes),
            OpKind::RmsNormQuantise => self.rms_norm_quantise(sizes),
            OpKind::Linear => self.linear(sizes),
            OpKind::LinearQkv => self.linear_qkv(sizes),
            OpKind::LinearSwiglu => self.linear_swiglu(kind, sizes),
            OpKind::RopeHeads => self.rope_heads(sizes),
            OpKind::RopeAppend => self.rope_append(sizes),
            OpKind::ExpertSwiglu => self.expert_swiglu(kind, sizes),
            OpKind::ExpertDown => self.expert_down(kind, sizes),
            OpKind::ColumnSquares => self.column_squares(kind, sizes),
            OpKind::ExpertSplit => self.expert_split(),
            OpKind::ExpertSlots => self.expert_slots(),
            OpKind::ExpertPrefetch => self.expert_prefetch(sizes),
            OpKind::ExpertWait => self.expert_wait(sizes),
            OpKind::ExpertEvict => self.expert_evict(sizes),
            OpKind::RanksBegin => {
                self.group();
            }
            OpKind::AllReduce | OpKind::AllGather => self.collective(kind, sizes),
            // The group has only one rank, so there is no rank to exchange messages with.
            OpKind::Send | OpKind::Recv => {}
            OpKind::RouteOwned => self.route_owned(),
        }
    }
}

fn maybe_weight(weight: Option<WeightId>) -> Operand {
    weight.map_or(Operand::Absent, Operand::Weight)
}
