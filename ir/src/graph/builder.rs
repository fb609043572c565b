//! Construction of a graph. Each op has a method that returns the values the op defines. If the
//! type rule rejects the op, it returns the reason.
//!
//! ```
//! use ixc_ir::format::Format;
//! use ixc_ir::graph::builder::GraphBuilder;
//!
//! # fn main() -> Result<(), ixc_ir::graph::types::TypeError> {
//! let mut b = GraphBuilder::new("step");
//! let step = b.step_params();
//! let table = b.weight("token_embd.weight", Format::F32, &[4096, 256], None)?;
//! let norm = b.weight("output_norm.weight", Format::F32, &[256], None)?;
//! let x = b.embed(step.ids, table)?;
//! let x = b.take_rows(x, step.rows)?;
//! let x = b.rms_norm(x, norm, 1e-6)?;
//! let w = b.dequantise(table)?;
//! let logits = b.matmul(x, w)?;
//! let module = b.finish(&[logits]);
//! # assert_eq!(module.functions[0].ty(logits).to_string(), "f32[L, 4096]");
//! # Ok(())
//! # }
//! ```
//!
//! Result: every op fits its type rule, and every value is defined before its use. The builder does
//! not detect a state token that is used twice or a name that is given twice; [`super::verify`]
//! does.

use std::collections::HashMap;

use super::attrs::{GateAttrs, RopeAttrs, RouteAttrs, RouteScore, ScoreAttrs, TemperatureAttrs, int, ngram_attrs};
use super::types::{TypeError, check_state, check_weight, result_types};
use super::view::{AttentionEntries, ExpertPrefetch, OpView, StreamWeights};
use super::{
    Attr, Dim, Function, Module, OpKind, Operand, Part, Place, State, StateId, Type, Unary, ValueId, Weight,
    WeightChoices, WeightId,
};
use crate::format::Format;
use crate::ngram::Hash;

/// A module under construction, with one unfinished function.
#[derive(Clone, Debug, Default)]
pub struct GraphBuilder {
    module: Module,
    function: Function,
    names: HashMap<String, WeightId>,
    states: HashMap<String, StateId>,
}

/// Parameters of the function `@step`, in order.
#[derive(Clone, Copy, Debug)]
pub struct StepParams {
    /// Token ids, `i32[T]`.
    pub ids: ValueId,
    /// Positions of the tokens, `i32[T]`.
    pub pos: ValueId,
    /// Output rows, `i32[L]`.
    pub rows: ValueId,
}

/// Weights with divisors of RoPE's frequencies.
#[derive(Clone, Copy, Debug, Default)]
pub struct RopeFactors {
    /// Divisors for contexts up to the original length. If `long` is `None`, they are for all
    /// contexts.
    pub short: Option<WeightId>,
    /// Divisors for contexts longer than the original length.
    pub long: Option<WeightId>,
}

/// Operands of `linear.qkv` for one of its three products: query, key or value.
#[derive(Clone, Copy, Debug)]
pub struct LinearPart {
    /// Input rows, in the activation format of `w`.
    pub x: ValueId,
    /// Weight matrix of the product.
    pub w: WeightId,
    /// Bias that is added to the product, or `None`.
    pub bias: Option<WeightId>,
}

fn opt_weight(weight: Option<WeightId>) -> Operand {
    weight.map_or(Operand::Absent, Operand::Weight)
}

fn opt_value(value: Option<ValueId>) -> Operand {
    value.map_or(Operand::Absent, Operand::Value)
}

impl GraphBuilder {
    /// Starts a new module with an unfinished function of this name.
    pub fn new(function: &str) -> GraphBuilder {
        GraphBuilder {
            function: Function { name: function.to_string(), ..Function::default() },
            ..GraphBuilder::default()
        }
    }

    /// Starts a new function in an existing module.
    pub fn extend(module: Module, function: &str) -> GraphBuilder {
        let ids = (0..).map(WeightId);
        let names = module.weights.iter().map(|weight| weight.name.clone()).zip(ids).collect();
        let states = module.states.iter().map(|state| state.name.clone()).zip((0..).map(StateId)).collect();
        GraphBuilder { module, names, states, ..GraphBuilder::new(function) }
    }

    /// Returns the module so far, without the unfinished function.
    pub fn module(&self) -> &Module {
        &self.module
    }

    /// Returns the unfinished function.
    pub fn function(&self) -> &Function {
        &self.function
    }

    /// Returns the type of a value of the unfinished function.
    pub fn ty(&self, value: ValueId) -> &Type {
        self.function.ty(value)
    }

    /// Ends the function with these results and returns the module.
    pub fn finish(mut self, results: &[ValueId]) -> Module {
        self.function.results = results.to_vec();
        self.module.functions.push(self.function);
        self.module
    }

    /// Declares a weight that is a whole tensor.
    ///
    /// # Errors
    /// Fails if the name is taken, or if the rows are not whole blocks of the format.
    pub fn weight(
        &mut self,
        name: &str,
        format: Format,
        shape: &[u64],
        place: Option<Place>,
    ) -> Result<WeightId, TypeError> {
        self.weight_part(name, format, shape, place, None)
    }

    /// Declares a weight that is a range of rows of a tensor.
    ///
    /// # Errors
    /// Fails if the name is taken, if the rows are not whole blocks of the format, or if the tensor
    /// does not have these rows.
    pub fn weight_part(
        &mut self,
        name: &str,
        format: Format,
        shape: &[u64],
        place: Option<Place>,
        part: Option<Part>,
    ) -> Result<WeightId, TypeError> {
        let weight = Weight {
            name: name.to_string(),
            format,
            shape: shape.to_vec(),
            place,
            part,
            choice: WeightChoices::default(),
        };
        check_weight(&weight)?;
        let id = WeightId(self.module.weights.len() as u32);
        if self.names.insert(name.to_string(), id).is_some() {
            return Err(TypeError::DuplicateWeight { name: name.to_string() });
        }
        self.module.weights.push(weight);
        Ok(id)
    }

    /// Returns the weight of this name, or `None`.
    pub fn find_weight(&self, name: &str) -> Option<WeightId> {
        self.names.get(name).copied()
    }

    /// Declares a state.
    ///
    /// # Errors
    /// Fails if the name is taken, or if the state's shape does not fit its kind.
    pub fn state(&mut self, state: State) -> Result<StateId, TypeError> {
        check_state(&state)?;
        let id = StateId(self.module.states.len() as u32);
        if self.states.insert(state.name.clone(), id).is_some() {
            return Err(TypeError::DuplicateState { name: state.name });
        }
        self.module.states.push(state);
        Ok(id)
    }

    /// Adds a parameter to the function.
    pub fn param(&mut self, name: &str, ty: Type) -> ValueId {
        self.function.add_param(name, ty)
    }

    /// Adds the parameters of the function `@step`.
    pub fn step_params(&mut self) -> StepParams {
        StepParams {
            ids: self.param("ids", Type::i32([Dim::symbol("T")])),
            pos: self.param("pos", Type::i32([Dim::symbol("T")])),
            rows: self.param("rows", Type::i32([Dim::symbol("L")])),
        }
    }

    /// Names a value in the IR text. Names must be unique in a function.
    pub fn name(&mut self, value: ValueId, name: &str) {
        self.function.values[value.index()].name = Some(name.to_string());
    }

    /// Adds an op with these operands and attributes.
    ///
    /// # Errors
    /// Fails if the type rule rejects the op.
    pub fn op(&mut self, kind: OpKind, operands: Vec<Operand>, attrs: Vec<Attr>) -> Result<Vec<ValueId>, TypeError> {
        let types = result_types(&self.module, &self.function, kind, &operands, &attrs)?;
        Ok(self.function.push(kind, operands, attrs, types))
    }

    fn one(&mut self, kind: OpKind, operands: Vec<Operand>, attrs: Vec<Attr>) -> Result<ValueId, TypeError> {
        Ok(self.op(kind, operands, attrs)?[0])
    }

    fn two(&mut self, kind: OpKind, operands: Vec<Operand>, attrs: Vec<Attr>) -> Result<(ValueId, ValueId), TypeError> {
        let results = self.op(kind, operands, attrs)?;
        Ok((results[0], results[1]))
    }
}

use Operand::{Value as V, Weight as W};

/// Methods for the ops of the op table, except the ops of ranks, which only a pass adds. Each
/// returns a [`TypeError`] if the type rule rejects the op.
#[allow(clippy::missing_errors_doc)] // the comment on the `impl` states the errors
impl GraphBuilder {
    /// Adds op `embed`.
    pub fn embed(&mut self, ids: ValueId, table: WeightId) -> Result<ValueId, TypeError> {
        self.one(OpKind::Embed, vec![V(ids), W(table)], vec![])
    }

    /// Adds op `dequantise`.
    pub fn dequantise(&mut self, w: WeightId) -> Result<ValueId, TypeError> {
        self.one(OpKind::Dequantise, vec![W(w)], vec![])
    }

    /// Adds op `matmul`.
    pub fn matmul(&mut self, x: ValueId, w: ValueId) -> Result<ValueId, TypeError> {
        self.one(OpKind::Matmul, vec![V(x), V(w)], vec![])
    }

    /// Adds op `add`.
    pub fn add(&mut self, a: ValueId, b: ValueId) -> Result<ValueId, TypeError> {
        self.one(OpKind::Add, vec![V(a), V(b)], vec![])
    }

    /// Adds op `add_bias`.
    pub fn add_bias(&mut self, x: ValueId, bias: WeightId) -> Result<ValueId, TypeError> {
        self.one(OpKind::AddBias, vec![V(x), W(bias)], vec![])
    }

    /// Adds op `mul`.
    pub fn mul(&mut self, a: ValueId, b: ValueId) -> Result<ValueId, TypeError> {
        self.one(OpKind::Mul, vec![V(a), V(b)], vec![])
    }

    /// Adds an elementwise op, which applies `function` to every element.
    pub fn unary(&mut self, function: Unary, x: ValueId, attrs: Vec<Attr>) -> Result<ValueId, TypeError> {
        self.one(OpKind::Unary(function), vec![V(x)], attrs)
    }

    /// Adds op `silu`.
    pub fn silu(&mut self, x: ValueId) -> Result<ValueId, TypeError> {
        self.unary(Unary::Silu, x, vec![])
    }

    /// Adds op `gated`.
    pub fn gated(&mut self, gate: ValueId, up: ValueId, attrs: &GateAttrs) -> Result<ValueId, TypeError> {
        self.one(OpKind::Gated, vec![V(gate), V(up)], attrs.attrs())
    }

    /// Adds op `sigmoid`.
    pub fn sigmoid(&mut self, x: ValueId) -> Result<ValueId, TypeError> {
        self.unary(Unary::Sigmoid, x, vec![])
    }

    /// Adds op `scale_heads`, without a residual.
    pub fn scale_heads(&mut self, x: ValueId, s: ValueId) -> Result<ValueId, TypeError> {
        self.one(OpKind::ScaleHeads, vec![V(x), V(s), Operand::Absent], vec![])
    }

    /// Adds op `rms_norm`.
    pub fn rms_norm(&mut self, x: ValueId, w: impl Into<Option<WeightId>>, eps: f64) -> Result<ValueId, TypeError> {
        self.one(OpKind::RmsNorm, vec![V(x), opt_weight(w.into())], vec![Attr::rounded(eps)])
    }

    /// Adds op `split_heads`.
    pub fn split_heads(&mut self, x: ValueId, heads: u64) -> Result<ValueId, TypeError> {
        self.one(OpKind::SplitHeads, vec![V(x)], vec![int(heads)])
    }

    /// Adds op `merge_heads`.
    pub fn merge_heads(&mut self, x: ValueId) -> Result<ValueId, TypeError> {
        self.one(OpKind::MergeHeads, vec![V(x)], vec![])
    }

    /// Adds op `slice`.
    pub fn slice(&mut self, x: ValueId, from: u64, count: u64) -> Result<ValueId, TypeError> {
        self.one(OpKind::Slice, vec![V(x)], vec![int(from), int(count)])
    }

    /// Adds op `concat`.
    pub fn concat(&mut self, a: ValueId, b: ValueId) -> Result<ValueId, TypeError> {
        self.one(OpKind::Concat, vec![V(a), V(b)], vec![])
    }

    /// Adds op `rope`.
    pub fn rope(
        &mut self,
        x: ValueId,
        pos: ValueId,
        factors: RopeFactors,
        rope: &RopeAttrs,
    ) -> Result<ValueId, TypeError> {
        self.one(OpKind::Rope, vec![V(x), V(pos), opt_weight(factors.short), opt_weight(factors.long)], rope.attrs())
    }

    /// Adds op `temperature`.
    pub fn temperature(&mut self, x: ValueId, pos: ValueId, of: &TemperatureAttrs) -> Result<ValueId, TypeError> {
        self.one(OpKind::Temperature, vec![V(x), V(pos)], of.attrs())
    }

    /// Adds op `heads.temperature`.
    pub fn heads_temperature(
        &mut self,
        x: ValueId,
        pos: ValueId,
        scales: WeightId,
        biases: WeightId,
    ) -> Result<ValueId, TypeError> {
        self.one(OpKind::HeadsTemperature, vec![V(x), V(pos), W(scales), W(biases)], vec![])
    }

    /// Adds op `centre`.
    pub fn centre(&mut self, x: ValueId) -> Result<ValueId, TypeError> {
        self.one(OpKind::Centre, vec![V(x)], vec![])
    }

    /// Adds op `state.begin`, which returns the first token of a state.
    pub fn state_begin(&mut self, state: StateId) -> Result<ValueId, TypeError> {
        self.one(OpKind::StateBegin, vec![Operand::State(state)], vec![])
    }

    /// Adds op `kv.append`, which returns the state's next token.
    pub fn kv_append(&mut self, kv: ValueId, k: ValueId, v: ValueId, pos: ValueId) -> Result<ValueId, TypeError> {
        self.one(OpKind::KvAppend, vec![V(kv), V(k), V(v), V(pos)], vec![])
    }

    /// Adds op `heads.sum`.
    pub fn heads_sum(&mut self, x: ValueId) -> Result<ValueId, TypeError> {
        self.one(OpKind::HeadsSum, vec![V(x)], vec![])
    }

    /// Adds op `ngram`. Returns its rows and the state's next token.
    pub fn ngram(&mut self, tokens: ValueId, ids: ValueId, hash: &Hash) -> Result<(ValueId, ValueId), TypeError> {
        self.two(OpKind::Ngram, vec![V(tokens), V(ids)], ngram_attrs(hash))
    }

    /// Adds op `index.top_k`. Returns the chosen positions and the state's next token. With
    /// `entries`, it chooses compressed entries, each of several positions.
    pub fn index_top_k(
        &mut self,
        q: ValueId,
        w: ValueId,
        kv: ValueId,
        pos: ValueId,
        top_k: u64,
        entries: bool,
    ) -> Result<(ValueId, ValueId), TypeError> {
        let attrs = vec![Attr::Int(top_k as i64), Attr::Bool(entries), Attr::Int(0), Attr::Int(0)];
        self.two(OpKind::IndexTopK, vec![V(q), V(w), V(kv), V(pos)], attrs)
    }

    /// Adds op `index.top_k` without weights. Returns the chosen positions of each head and the
    /// state's next token. The op chooses `top_k` positions in blocks of `block` positions. The
    /// last `local` blocks are always chosen.
    pub fn index_blocks(
        &mut self,
        q: ValueId,
        kv: ValueId,
        pos: ValueId,
        top_k: u64,
        block: u64,
        local: u64,
    ) -> Result<(ValueId, ValueId), TypeError> {
        let number = |value: u64| Attr::Int(value as i64);
        let attrs = vec![number(top_k), Attr::Bool(false), number(block), number(local)];
        self.two(OpKind::IndexTopK, vec![V(q), Operand::Absent, V(kv), V(pos)], attrs)
    }

    /// Adds op `attention`. Returns its rows and the state's next token.
    pub fn attention(
        &mut self,
        q: ValueId,
        kv: ValueId,
        pos: ValueId,
        sinks: Option<WeightId>,
        chosen: Option<ValueId>,
        scores: &ScoreAttrs,
    ) -> Result<(ValueId, ValueId), TypeError> {
        let operands = vec![V(q), V(kv), V(pos), opt_weight(sinks), chosen.map_or(Operand::Absent, V)];
        self.two(OpKind::Attention, operands, scores.attrs())
    }

    /// Adds op `heads.matmul`.
    pub fn heads_matmul(&mut self, x: ValueId, w: ValueId) -> Result<ValueId, TypeError> {
        self.one(OpKind::HeadsMatmul, vec![V(x), V(w)], vec![])
    }

    /// Adds op `route`. Returns the ids of the chosen experts and their weights.
    pub fn route(
        &mut self,
        logits: ValueId,
        bias: Option<WeightId>,
        scales: Option<WeightId>,
        route: &RouteAttrs,
    ) -> Result<(ValueId, ValueId), TypeError> {
        self.two(OpKind::Route, vec![V(logits), opt_weight(bias), opt_weight(scales)], route.attrs())
    }

    /// Adds op `expert.matmul`.
    pub fn expert_matmul(&mut self, x: ValueId, ids: ValueId, w: ValueId) -> Result<ValueId, TypeError> {
        self.one(OpKind::ExpertMatmul, vec![V(x), V(ids), V(w)], vec![])
    }

    /// Adds op `expert.scale`.
    pub fn expert_scale(&mut self, y: ValueId, ids: ValueId, s: WeightId) -> Result<ValueId, TypeError> {
        self.one(OpKind::ExpertScale, vec![V(y), V(ids), W(s)], vec![])
    }

    /// Adds op `expert.add_bias`.
    pub fn expert_add_bias(&mut self, y: ValueId, ids: ValueId, bias: WeightId) -> Result<ValueId, TypeError> {
        self.one(OpKind::ExpertAddBias, vec![V(y), V(ids), W(bias)], vec![])
    }

    /// Adds op `expert.combine`.
    pub fn expert_combine(&mut self, y: ValueId, p: ValueId) -> Result<ValueId, TypeError> {
        self.one(OpKind::ExpertCombine, vec![V(y), V(p)], vec![])
    }

    /// Adds op `positions`.
    pub fn positions(&mut self, pos: ValueId, every: u64, back: bool) -> Result<ValueId, TypeError> {
        self.one(OpKind::Positions, vec![V(pos)], vec![int(every), Attr::Bool(back)])
    }

    /// Adds op `ends`.
    pub fn ends(&mut self, pos: ValueId) -> Result<ValueId, TypeError> {
        self.one(OpKind::Ends, vec![V(pos)], vec![])
    }

    /// Adds op `attention.entries` over all compressed entries, or over the entries in `chosen`.
    /// Returns its rows and the next tokens of both states.
    pub fn attention_entries(&mut self, op: &AttentionEntries) -> Result<(ValueId, [ValueId; 2]), TypeError> {
        let results = self.op(OpKind::AttentionEntries, op.operands(), op.attrs())?;
        Ok((results[0], [results[1], results[2]]))
    }

    /// Adds op `route.listed`. Returns the ids of the experts and their weights.
    pub fn route_listed(
        &mut self,
        logits: ValueId,
        ids: ValueId,
        table: WeightId,
        score: RouteScore,
        normalise: bool,
        scale: f64,
    ) -> Result<(ValueId, ValueId), TypeError> {
        let attrs = vec![Attr::Word(score.word().to_string()), Attr::Bool(normalise), Attr::rounded(scale)];
        self.two(OpKind::RouteListed, vec![V(logits), V(ids), W(table)], attrs)
    }

    /// Adds op `route.given`. Returns the ids of the experts and their weights.
    pub fn route_given(&mut self, ids: ValueId, p: ValueId, experts: u64) -> Result<(ValueId, ValueId), TypeError> {
        self.two(OpKind::RouteGiven, vec![V(ids), V(p)], vec![int(experts)])
    }

    /// Adds op `route.identities`. Returns ids and weights of the experts that have matrices, and
    /// the sum of the weights of the identity experts.
    pub fn route_identities(
        &mut self,
        ids: ValueId,
        p: ValueId,
        experts: u64,
    ) -> Result<(ValueId, ValueId, ValueId), TypeError> {
        let results = self.op(OpKind::RouteIdentities, vec![V(ids), V(p)], vec![int(experts)])?;
        Ok((results[0], results[1], results[2]))
    }

    /// Adds op `expert.groups`.
    pub fn expert_groups(&mut self, ids: ValueId, size: u64) -> Result<ValueId, TypeError> {
        self.one(OpKind::ExpertGroups, vec![V(ids)], vec![int(size)])
    }

    /// Adds op `stream.weights`.
    pub fn stream_weights(&mut self, op: &StreamWeights) -> Result<ValueId, TypeError> {
        self.one(OpKind::StreamWeights, op.operands(), op.attrs())
    }

    /// Adds op `stream.input`.
    pub fn stream_input(&mut self, x: ValueId, w: ValueId) -> Result<ValueId, TypeError> {
        self.one(OpKind::StreamInput, vec![V(x), V(w)], vec![])
    }

    /// Adds op `stream.mix`.
    pub fn stream_mix(&mut self, x: ValueId, y: ValueId, w: ValueId) -> Result<ValueId, TypeError> {
        self.one(OpKind::StreamMix, vec![V(x), V(y), V(w)], vec![])
    }

    /// Adds op `stream.attend`.
    pub fn stream_attend(&mut self, x: ValueId, y: ValueId, w: WeightId, eps: f64) -> Result<ValueId, TypeError> {
        self.one(OpKind::StreamAttend, vec![V(x), V(y), W(w)], vec![Attr::rounded(eps)])
    }

    /// Adds op `take_rows`.
    pub fn take_rows(&mut self, x: ValueId, rows: ValueId) -> Result<ValueId, TypeError> {
        self.one(OpKind::TakeRows, vec![V(x), V(rows)], vec![])
    }

    /// Adds op `quantise`.
    pub fn quantise(&mut self, x: ValueId, format: Format) -> Result<ValueId, TypeError> {
        self.one(OpKind::Quantise, vec![V(x)], vec![Attr::Format(format)])
    }

    /// Adds op `rms_norm.quantise`.
    pub fn rms_norm_quantise(
        &mut self,
        x: ValueId,
        w: Option<WeightId>,
        eps: f64,
        format: Format,
    ) -> Result<ValueId, TypeError> {
        self.one(OpKind::RmsNormQuantise, vec![V(x), opt_weight(w)], vec![Attr::rounded(eps), Attr::Format(format)])
    }

    /// Adds op `linear`.
    pub fn linear(
        &mut self,
        x: ValueId,
        w: WeightId,
        bias: Option<WeightId>,
        residual: Option<ValueId>,
    ) -> Result<ValueId, TypeError> {
        self.one(OpKind::Linear, vec![V(x), W(w), opt_weight(bias), opt_value(residual)], vec![])
    }

    /// Adds op `linear.qkv`. Returns queries, keys and values.
    pub fn linear_qkv(
        &mut self,
        q: LinearPart,
        k: LinearPart,
        v: LinearPart,
    ) -> Result<(ValueId, ValueId, ValueId), TypeError> {
        let parts = [q, k, v];
        let mut operands: Vec<Operand> = parts.iter().map(|part| V(part.x)).collect();
        operands.extend(parts.iter().map(|part| W(part.w)));
        operands.extend(parts.iter().map(|part| opt_weight(part.bias)));
        let results = self.op(OpKind::LinearQkv, operands, vec![])?;
        Ok((results[0], results[1], results[2]))
    }

    /// Adds op `rope.heads`. `eps` is the epsilon of `norm`.
    #[allow(clippy::too_many_arguments)] // the op has this many operands and attributes
    pub fn rope_heads(
        &mut self,
        x: ValueId,
        pos: ValueId,
        norm: Option<WeightId>,
        factors: RopeFactors,
        heads: u64,
        eps: f64,
        rope: &RopeAttrs,
    ) -> Result<ValueId, TypeError> {
        let mut attrs = vec![int(heads), Attr::rounded(eps)];
        attrs.extend(rope.attrs());
        let operands = vec![V(x), V(pos), opt_weight(norm), opt_weight(factors.short), opt_weight(factors.long)];
        self.one(OpKind::RopeHeads, operands, attrs)
    }

    /// Adds op `rope.append`, which returns the state's next token. `eps` is the epsilon of `norm`.
    #[allow(clippy::too_many_arguments)] // the op has this many operands and attributes
    pub fn rope_append(
        &mut self,
        kv: ValueId,
        k: ValueId,
        v: ValueId,
        pos: ValueId,
        norm: Option<WeightId>,
        factors: RopeFactors,
        heads: u64,
        eps: f64,
        rope: &RopeAttrs,
    ) -> Result<ValueId, TypeError> {
        let factors = [factors.short, factors.long].map(opt_weight);
        let operands = [vec![V(kv), V(k), V(v), V(pos), opt_weight(norm)], factors.to_vec()].concat();
        let mut attrs = vec![int(heads), Attr::rounded(eps)];
        attrs.extend(rope.attrs());
        self.one(OpKind::RopeAppend, operands, attrs)
    }

    /// Adds op `expert.split`. Returns ids and weights of the first `now` slots, then of the other
    /// slots.
    pub fn expert_split(&mut self, ids: ValueId, p: ValueId, now: u64) -> Result<[(ValueId, ValueId); 2], TypeError> {
        let results = self.op(OpKind::ExpertSplit, vec![V(ids), V(p)], vec![int(now)])?;
        Ok([(results[0], results[1]), (results[2], results[3])])
    }

    /// Adds op `expert.slots`, which returns the first token of the expert slots.
    pub fn expert_slots(&mut self) -> Result<ValueId, TypeError> {
        self.one(OpKind::ExpertSlots, vec![], vec![])
    }

    /// Adds op `expert.prefetch`, which returns the next token of the expert slots.
    pub fn expert_prefetch(&mut self, op: &ExpertPrefetch) -> Result<ValueId, TypeError> {
        self.one(OpKind::ExpertPrefetch, op.operands(), op.attrs())
    }

    /// Adds op `expert.wait`. Returns the expert ids and the next token of the expert slots.
    pub fn expert_wait(&mut self, slots: ValueId, ids: ValueId, layer: u64) -> Result<(ValueId, ValueId), TypeError> {
        self.two(OpKind::ExpertWait, vec![V(slots), V(ids)], vec![int(layer)])
    }

    /// Adds op `expert.evict`, which returns the next token of the expert slots.
    pub fn expert_evict(&mut self, slots: ValueId, after: ValueId, layer: u64) -> Result<ValueId, TypeError> {
        self.one(OpKind::ExpertEvict, vec![V(slots), V(after)], vec![int(layer)])
    }
}
