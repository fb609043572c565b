//! What the architecture files write graphs with: weights looked up by name and checked for shape, ops with their types.
//!
//! In: a checked file and its hyperparameters. Out: a module whose one function is `@step` (see [`ixc_ir::graph`]). A weight
//! that is asked for twice (tied output) is one weight. One that is never asked for is refused at the end.

use std::collections::{HashMap, HashSet};

use ixc_ir::graph::attrs::{GateAttrs, KeyHeads, RopeAttrs, RopeStyle, RouteAttrs};
use ixc_ir::graph::builder::{GraphBuilder, StepParams};
use ixc_ir::graph::types::TypeError;
use ixc_ir::graph::{Attr, Module, OpKind, Operand, Part, Place, Recurrent, State, Unary, ValueId, WeightId};
use ixc_ir::state::Rollback;

use super::error::ArchError;
use super::hyper::{Experts, Hyper, Mla, Ssm};
use crate::gguf::{Gguf, Tensor};

/// Whether a matrix has a bias beside it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Bias {
    /// Where the file has one.
    Optional,
    /// Always.
    Required,
}

/// A graph being built.
pub(super) struct Builder<'a> {
    gguf: &'a Gguf,
    pub hyper: &'a Hyper,
    architecture: &'static str,
    graph: GraphBuilder,
    step: StepParams,
    used: HashSet<String>,
    /// Factors of experts that routers have in their weights.
    routed_scales: HashSet<String>,
    /// The token of each layer's keys and values, behind what was done with them last.
    caches: HashMap<usize, ValueId>,
}

impl<'a> Builder<'a> {
    /// A function with its parameters and no ops.
    pub fn new(gguf: &'a Gguf, hyper: &'a Hyper, architecture: &'static str) -> Builder<'a> {
        let mut graph = GraphBuilder::new("step");
        let step = graph.step_params();
        let (used, routed_scales) = (HashSet::new(), HashSet::new());
        Builder { gguf, hyper, architecture, graph, step, used, routed_scales, caches: HashMap::new() }
    }

    /// Ends the function with its results; refuses tensors that nothing used, unless layers were left out on purpose.
    pub fn finish(self, logits: ValueId, whole: bool) -> Result<Module, ArchError> {
        if whole {
            self.check_unused()?;
        }
        Ok(self.graph.finish(&[logits]))
    }

    fn check_unused(&self) -> Result<(), ArchError> {
        let layers = self.hyper.layers.len() as u64;
        let drafts = layers..layers + self.hyper.draft_layers;
        let is_of_draft = |name: &str| layer_of(name).is_some_and(|layer| drafts.contains(&layer));
        let tensors = self.gguf.tensors().filter(|tensor| !is_of_draft(tensor.name()));
        match tensors.filter(|tensor| !self.used.contains(tensor.name())).find(|tensor| !is_harmless(tensor.name())) {
            Some(tensor) => {
                let (path, tensor) = (self.path(), tensor.name().into());
                Err(ArchError::UnusedTensor { path, tensor, architecture: self.architecture })
            }
            None => Ok(()),
        }
    }

    fn path(&self) -> Box<std::path::Path> {
        self.gguf.metadata().path().into()
    }

    /// The value of an op, or its type error with the file's name.
    fn typed<T>(&self, result: Result<T, TypeError>) -> Result<T, ArchError> {
        result.map_err(|source| ArchError::Graph { path: self.path(), source: Box::new(source) })
    }

    /// The weight `name`, which must have `shape` (outermost first).
    pub fn weight(&mut self, name: &str, shape: &[u64]) -> Result<WeightId, ArchError> {
        let tensor = self.gguf.require_tensor(name)?;
        self.add_weight(tensor, shape)
    }

    /// The F32 vector `name` of `len` elements.
    pub fn vector(&mut self, name: &str, len: u64) -> Result<WeightId, ArchError> {
        self.vectors(name, &[len])
    }

    /// F32 vectors `name`.
    fn vectors(&mut self, name: &str, shape: &[u64]) -> Result<WeightId, ArchError> {
        let tensor = self.gguf.require_tensor(name)?;
        if tensor.tensor_type().name != "F32" {
            let (path, found) = (self.path(), tensor.tensor_type());
            return Err(ArchError::VectorType { path, tensor: name.into(), found });
        }
        self.add_weight(tensor, shape)
    }

    /// The F32 vector `name`, where the file has it.
    pub fn optional_vector(&mut self, name: &str, len: u64) -> Result<Option<WeightId>, ArchError> {
        if self.has(name) { self.vector(name, len).map(Some) } else { Ok(None) }
    }

    /// Whether the file has a tensor `name`.
    pub fn has(&self, name: &str) -> bool {
        self.gguf.tensor(name).is_some()
    }

    /// The number that is the F32 tensor `name`, where the file has it.
    pub fn optional_scalar(&mut self, name: &str) -> Result<Option<f64>, ArchError> {
        let Some(tensor) = self.gguf.tensor(name) else { return Ok(None) };
        let bytes = self.gguf.tensor_data(tensor);
        let found = <[u8; 4]>::try_from(&*bytes).ok().filter(|_| tensor.tensor_type().name == "F32");
        self.used.insert(name.to_owned());
        match found.map(f32::from_le_bytes) {
            Some(number) if number.is_finite() => Ok(Some(number.into())),
            Some(number) => Err(ArchError::Scalar { path: self.path(), tensor: name.into(), found: number }),
            None => {
                self.vector(name, 1)?;
                Err(ArchError::Scalar { path: self.path(), tensor: name.into(), found: f32::NAN })
            }
        }
    }

    /// Rows of the matrices of `tensor`, one for each of `shape[0]` experts, as a weight called `name`: `shape[1]` of `rows` from row `from` on.
    fn part(
        &mut self,
        name: &str,
        tensor: &str,
        shape: [u64; 3],
        [rows, from]: [u64; 2],
    ) -> Result<WeightId, ArchError> {
        if let Some(id) = self.graph.find_weight(name) {
            return Ok(id);
        }
        let found = self.gguf.require_tensor(tensor)?;
        self.check_shape(found, &[shape[0], rows, shape[2]])?;
        let format = self.gguf.require_format(found)?;
        let place = Some(Place { file: found.file() as u32, offset: found.offset() });
        let part = Part { tensor: tensor.to_owned(), rows, from };
        let weight = self.graph.weight_part(name, format, &shape, place, Some(part));
        self.used.insert(tensor.to_owned());
        self.typed(weight)
    }

    fn check_shape(&self, tensor: &Tensor, shape: &[u64]) -> Result<(), ArchError> {
        // Dimensions of 1 at the end say nothing: ggml pads to four of them.
        let found = tensor.dims();
        let significant = |dims: &[u64]| dims.iter().rposition(|&dim| dim != 1).map_or(0, |last| last + 1);
        let expected: Vec<u64> = shape.iter().rev().copied().collect();
        // A vector may lie in any of the dimensions: `ssm_a` has rows of one element.
        let is_vector = expected.len() == 1;
        let leading =
            if is_vector { found.iter().take_while(|&&dim| dim == 1).count().min(found.len() - 1) } else { 0 };
        if found[leading..significant(found).max(leading)] == expected[..significant(&expected)] {
            return Ok(());
        }
        Err(ArchError::Shape {
            path: self.path(),
            tensor: tensor.name().into(),
            found: found.into(),
            expected: expected.into(),
        })
    }

    fn add_weight(&mut self, tensor: &Tensor, shape: &[u64]) -> Result<WeightId, ArchError> {
        self.check_shape(tensor, shape)?;
        if let Some(id) = self.graph.find_weight(tensor.name()) {
            return Ok(id);
        }
        let format = self.gguf.require_format(tensor)?;
        let place = Some(Place { file: tensor.file() as u32, offset: tensor.offset() });
        let weight = self.graph.weight(tensor.name(), format, shape, place);
        self.used.insert(tensor.name().to_owned());
        self.typed(weight)
    }

    /// Rows of `token_embd.weight` for the step's ids.
    pub fn embed(&mut self) -> Result<ValueId, ArchError> {
        let x = self.rows_of("token_embd.weight", self.hyper.embedding_length)?;
        // The stream is what the model's is divided by `residual`: then what blocks add needs no factor, and norms take it away again.
        self.scale(x, self.hyper.scales.embedding / self.hyper.scales.residual)
    }

    /// Rows of `len` elements of the table `name` for the step's ids.
    pub fn rows_of(&mut self, name: &str, len: u64) -> Result<ValueId, ArchError> {
        let table = self.weight(name, &[self.hyper.vocabulary, len])?;
        let x = self.graph.embed(self.step.ids, table);
        self.typed(x)
    }

    /// `x` times a factor.
    pub fn scale(&mut self, x: ValueId, factor: f64) -> Result<ValueId, ArchError> {
        if factor == 1.0 {
            return Ok(x);
        }
        let y = self.graph.unary(Unary::Scale, x, vec![Attr::rounded(factor)]);
        self.typed(y)
    }

    /// RMS norm of the residual stream, with the weight `name`.
    pub fn norm(&mut self, x: ValueId, name: &str) -> Result<ValueId, ArchError> {
        let weight = self.vector(name, self.hyper.embedding_length)?;
        let y = self.graph.rms_norm(x, weight, self.hyper.norm_eps / self.hyper.scales.residual.powi(2));
        self.typed(y)
    }

    /// `output_norm` and the output matrix (tied to the embedding table where the file has none) on the wanted rows.
    pub fn logits(&mut self, x: ValueId) -> Result<ValueId, ArchError> {
        self.logits_behind(x, "output_norm.weight")
    }

    /// The same with a norm of another name.
    pub fn logits_behind(&mut self, x: ValueId, norm: &str) -> Result<ValueId, ArchError> {
        let Hyper { vocabulary, embedding_length, scales, .. } = *self.hyper;
        let x = self.graph.take_rows(x, self.step.rows);
        let x = self.typed(x)?;
        let x = self.norm(x, norm)?;
        let y = if self.has("output.weight") {
            self.linear(x, "output", embedding_length, vocabulary, Bias::Optional)?
        } else {
            let table = self.weight("token_embd.weight", &[vocabulary, embedding_length])?;
            self.matmul(x, table)?
        };
        let y = self.scale(y, 1.0 / scales.logit)?;
        if scales.softcap == 0.0 {
            return Ok(y);
        }
        let y = self.graph.unary(Unary::Softcap, y, vec![Attr::rounded(scales.softcap)]);
        self.typed(y)
    }

    /// RMS norm along the last dimension, of length `len`, with the weight `name`.
    pub fn rms_norm(&mut self, x: ValueId, name: &str, len: u64) -> Result<ValueId, ArchError> {
        self.rms_norm_of(x, name, len, self.hyper.norm_eps)
    }

    /// As [`Builder::rms_norm`], with another number added to the mean square.
    pub fn rms_norm_of(&mut self, x: ValueId, name: &str, len: u64, eps: f64) -> Result<ValueId, ArchError> {
        let weight = self.vector(name, len)?;
        let y = self.graph.rms_norm(x, weight, eps);
        self.typed(y)
    }

    /// RMS norm of each of `groups` equal parts of every row, which have weights of their own; nothing where the file has no weight `name`.
    pub fn grouped_norm(&mut self, x: ValueId, name: &str, [groups, len]: [u64; 2]) -> Result<ValueId, ArchError> {
        if !self.has(name) {
            return Ok(x);
        }
        if groups == 1 {
            return self.rms_norm(x, name, len);
        }
        let weight = self.vectors(name, &[groups, len])?;
        let x = self.split_heads(x, groups)?;
        let y = self.graph.rms_norm(x, weight, self.hyper.norm_eps);
        let y = self.typed(y)?;
        self.merge_heads(y)
    }

    /// Rows plus the vector `name`, where the file has it.
    pub fn optional_bias(&mut self, x: ValueId, name: &str, len: u64) -> Result<ValueId, ArchError> {
        let Some(bias) = self.optional_vector(name, len)? else { return Ok(x) };
        let y = self.graph.add_bias(x, bias);
        self.typed(y)
    }

    /// RMS norm along the last dimension, without a weight.
    pub fn plain_norm(&mut self, x: ValueId) -> Result<ValueId, ArchError> {
        let y = self.graph.rms_norm(x, None, self.hyper.norm_eps);
        self.typed(y)
    }

    /// `x` times the transpose of a matrix.
    pub fn matmul(&mut self, x: ValueId, weight: WeightId) -> Result<ValueId, ArchError> {
        let y = self.graph.dequantise(weight).and_then(|w| self.graph.matmul(x, w));
        self.typed(y)
    }

    /// A product with `NAME.weight` times the number `NAME.scale`, where the file has one: formats whose own scales have a short range leave the
    /// rest of it to that.
    fn scaled(&mut self, y: ValueId, name: &str) -> Result<ValueId, ArchError> {
        let factor = self.optional_scalar(&format!("{name}.scale"))?;
        self.scale(y, factor.unwrap_or(1.0))
    }

    /// `x` times the transpose of `NAME.weight` (`to` rows of `from`), times `NAME.scale`, plus `NAME.bias`.
    pub fn linear(&mut self, x: ValueId, name: &str, from: u64, to: u64, bias: Bias) -> Result<ValueId, ArchError> {
        let weight = self.weight(&format!("{name}.weight"), &[to, from])?;
        let y = self.matmul(x, weight)?;
        let y = self.scaled(y, name)?;
        let bias_name = format!("{name}.bias");
        let bias = match bias {
            Bias::Required => Some(self.vector(&bias_name, to)?),
            Bias::Optional => self.optional_vector(&bias_name, to)?,
        };
        let Some(bias) = bias else { return Ok(y) };
        let y = self.graph.add_bias(y, bias);
        self.typed(y)
    }

    /// Elementwise sum.
    pub fn add(&mut self, a: ValueId, b: ValueId) -> Result<ValueId, ArchError> {
        let y = self.graph.add(a, b);
        self.typed(y)
    }

    /// Elementwise product.
    pub fn mul(&mut self, a: ValueId, b: ValueId) -> Result<ValueId, ArchError> {
        let y = self.graph.mul(a, b);
        self.typed(y)
    }

    /// A function without attributes of every element.
    pub fn unary(&mut self, function: Unary, x: ValueId) -> Result<ValueId, ArchError> {
        let y = self.graph.unary(function, x, Vec::new());
        self.typed(y)
    }

    /// `x / (1 + exp(-x))`, elementwise.
    pub fn silu(&mut self, x: ValueId) -> Result<ValueId, ArchError> {
        let y = self.graph.silu(x);
        self.typed(y)
    }

    /// Logistic function of every element.
    pub fn sigmoid(&mut self, x: ValueId) -> Result<ValueId, ArchError> {
        let y = self.graph.sigmoid(x);
        self.typed(y)
    }

    /// The equal parts of every row of `x`, each times its number of `s`.
    pub fn scale_heads(&mut self, x: ValueId, s: ValueId) -> Result<ValueId, ArchError> {
        let y = self.graph.scale_heads(x, s);
        self.typed(y)
    }

    /// A gated linear unit.
    pub fn gated(&mut self, gate: ValueId, up: ValueId, attrs: &GateAttrs) -> Result<ValueId, ArchError> {
        let y = self.graph.gated(gate, up, attrs);
        self.typed(y)
    }

    /// `[T, heads * d]` as `[T, heads, d]`.
    pub fn split_heads(&mut self, x: ValueId, heads: u64) -> Result<ValueId, ArchError> {
        let y = self.graph.split_heads(x, heads);
        self.typed(y)
    }

    /// `[T, heads, d]` as `[T, heads * d]`.
    pub fn merge_heads(&mut self, x: ValueId) -> Result<ValueId, ArchError> {
        let y = self.graph.merge_heads(x);
        self.typed(y)
    }

    /// Elements `from` to `from + count` of each row, or of each head.
    pub fn slice(&mut self, x: ValueId, from: u64, count: u64) -> Result<ValueId, ArchError> {
        let y = self.graph.slice(x, from, count);
        self.typed(y)
    }

    /// Rows of `a`, each followed by that of `b`.
    pub fn concat(&mut self, a: ValueId, b: ValueId) -> Result<ValueId, ArchError> {
        let y = self.graph.concat(a, b);
        self.typed(y)
    }

    /// Rotates heads by the step's positions; `rope_freqs.weight` divides the frequencies where the file has it.
    pub fn rope(&mut self, layer: usize, x: ValueId, style: RopeStyle) -> Result<ValueId, ArchError> {
        let local = self.hyper.local_rope.as_ref().filter(|_| self.hyper.layers[layer].window.is_some());
        let rope = local.unwrap_or(&self.hyper.rope);
        let factors = match rope.divided {
            true => self.optional_vector("rope_freqs.weight", rope.dims / 2)?,
            false => None,
        };
        let attrs = RopeAttrs {
            base: rope.base,
            dims: rope.dims,
            style,
            scaling: rope.scaling,
            factor: rope.factor,
            original_context: rope.original_context,
            beta_fast: rope.beta_fast,
            beta_slow: rope.beta_slow,
            attn_factor: rope.attn_factor,
        };
        let y = self.graph.rope(x, self.step.pos, factors, &attrs);
        self.typed(y)
    }

    /// Appends `k` and `v` to the state of `layer`; both `[T, heads, d]`.
    pub fn append(&mut self, layer: usize, k: ValueId, v: ValueId) -> Result<(), ArchError> {
        let facts = &self.hyper.layers[layer];
        let state = State::paged(&format!("kv.{layer}"), facts.kv_heads, facts.key_length, facts.value_length);
        let state = State { window: facts.window, ..state };
        let state = self.graph.state(state);
        let state = self.typed(state)?;
        let kv = self.graph.state_begin(state);
        let kv = self.typed(kv)?;
        let kv = self.graph.kv_append(kv, k, v, self.step.pos);
        let kv = self.typed(kv)?;
        self.caches.insert(layer, kv);
        Ok(())
    }

    /// Attends in `layer` with `q`, `[T, heads, d]`, over what was appended, there or in the layer that it shares, with `sinks` or without.
    pub fn attend(&mut self, layer: usize, q: ValueId, sinks: bool) -> Result<ValueId, ArchError> {
        let facts = &self.hyper.layers[layer];
        let (scale, heads, of) = (facts.attention_scale, facts.heads, facts.shares.unwrap_or(layer));
        let kv =
            *self.caches.get(&of).unwrap_or_else(|| unreachable!("layer {of} appends before layer {layer} attends"));
        let sinks = match sinks {
            true => Some(self.vector(&format!("blk.{layer}.attn_sinks.weight"), heads)?),
            false => None,
        };
        let y = self.graph.attention(q, kv, self.step.pos, sinks, scale);
        let (y, kv) = self.typed(y)?;
        self.caches.insert(of, kv);
        Ok(y)
    }

    /// Sizes of latent attention, which the file must have.
    pub fn mla(&self) -> Result<Mla, ArchError> {
        let key = format!("{}.attention.kv_lora_rank", self.architecture);
        self.hyper.mla.ok_or_else(|| self.gguf.metadata().missing(&key, "u32").into())
    }

    /// Sizes of the recurrent states, which the file must have.
    pub fn ssm(&self) -> Result<Ssm, ArchError> {
        let key = format!("{}.ssm.state_size", self.architecture);
        self.hyper.ssm.ok_or_else(|| self.gguf.metadata().missing(&key, "u32").into())
    }

    /// Taps of convolutions in place of attention, which the file must have.
    pub fn conv_taps(&self) -> Result<u64, ArchError> {
        let key = format!("{}.shortconv.l_cache", self.architecture);
        self.hyper.conv_taps.ok_or_else(|| self.gguf.metadata().missing(&key, "u32").into())
    }

    /// An op with a recurrent state `state` of these dimensions, which it takes first: its rows.
    fn recurrent(
        &mut self,
        op: Recurrent,
        (state, dims): (&str, &[u64]),
        operands: &[Operand],
        attrs: Vec<Attr>,
    ) -> Result<ValueId, ArchError> {
        let state = self.graph.state(State::recurrent(state, dims, Rollback::Snapshot));
        let state = self.typed(state)?;
        let token = self.graph.state_begin(state);
        let token = Operand::Value(self.typed(token)?);
        let operands = [&[token], operands].concat();
        let results = self.graph.op(OpKind::Recurrent(op), operands, attrs);
        Ok(self.typed(results)?[0])
    }

    /// A causal convolution of each channel of `x` with its taps, of the weight `name`.
    pub fn short_conv(
        &mut self,
        state: &str,
        x: ValueId,
        name: &str,
        [channels, taps]: [u64; 2],
    ) -> Result<ValueId, ArchError> {
        let w = self.weight(name, &[channels, taps])?;
        let operands = [Operand::Value(x), Operand::Weight(w)];
        self.recurrent(Recurrent::ShortConv, (state, &[taps - 1, channels]), &operands, Vec::new())
    }

    /// Linear attention by the gated delta rule; values are queries, keys, values, alpha and beta, weights are `a` and `dt`.
    pub fn delta_net(
        &mut self,
        state: &str,
        values: [ValueId; 5],
        weights: [WeightId; 2],
        keys: KeyHeads,
    ) -> Result<ValueId, ArchError> {
        let Ssm { heads, key_length, value_length, .. } = self.ssm()?;
        let operands: Vec<Operand> =
            values.map(Operand::Value).into_iter().chain(weights.map(Operand::Weight)).collect();
        let attrs = vec![Attr::Word(keys.word().to_owned()), Attr::rounded(self.hyper.norm_eps)];
        self.recurrent(Recurrent::DeltaNet, (state, &[heads, key_length, value_length]), &operands, attrs)
    }

    /// A selective state space; values are `x`, `b`, `c` and `dt`, weights are `a`, the bias of `dt`, and `d`.
    pub fn ssm_scan(
        &mut self,
        state: &str,
        values: [ValueId; 4],
        weights: [WeightId; 3],
    ) -> Result<ValueId, ArchError> {
        let Ssm { heads, key_length, value_length, .. } = self.ssm()?;
        let operands: Vec<Operand> =
            values.map(Operand::Value).into_iter().chain(weights.map(Operand::Weight)).collect();
        self.recurrent(Recurrent::SsmScan, (state, &[heads, key_length, value_length]), &operands, Vec::new())
    }

    /// Ids and weights of the experts of each row of router logits.
    ///
    /// `exp_probs_b.bias` is added for choosing alone, where the file has it. What an expert gives is a product with `ffn_down_exps`, and the factor
    /// `ffn_down_exps.scale` of it, where nothing is added, a factor of the expert's weight.
    pub fn route(&mut self, layer: usize, logits: ValueId, experts: &Experts) -> Result<(ValueId, ValueId), ArchError> {
        let Experts { count, used: top_k, score, groups, groups_kept, normalise, scale, .. } = *experts;
        let bias = self.optional_vector(&format!("blk.{layer}.exp_probs_b.bias"), count)?;
        let down = |part: &str| format!("blk.{layer}.ffn_down_exps.{part}");
        let scales = if self.has(&down("bias")) { None } else { self.optional_vector(&down("scale"), count)? };
        self.routed_scales.extend(scales.map(|_| down("scale")));
        let attrs = RouteAttrs { top_k, score, groups, groups_kept, normalise, scale };
        let routed = self.graph.route(logits, [bias, scales], &attrs);
        self.typed(routed)
    }

    /// Each head of `x` times its own matrix of `name` (`to` rows of `from`).
    pub fn heads_linear(&mut self, x: ValueId, name: &str, [heads, to, from]: [u64; 3]) -> Result<ValueId, ArchError> {
        let weight = self.weight(&format!("{name}.weight"), &[heads, to, from])?;
        let y = self.graph.dequantise(weight).and_then(|w| self.graph.heads_matmul(x, w));
        let y = self.typed(y)?;
        self.scaled(y, name)
    }

    /// `x` times the matrices `name` (`to` rows of `from`) of the experts `ids`: `[T, used, to]`.
    pub fn expert_linear(
        &mut self,
        x: ValueId,
        ids: ValueId,
        name: &str,
        [count, to, from]: [u64; 3],
    ) -> Result<ValueId, ArchError> {
        let weight = self.weight(&format!("{name}.weight"), &[count, to, from])?;
        let y = self.expert_matmul(x, ids, weight)?;
        let y = self.expert_scaled(y, ids, name, count)?;
        let bias = format!("{name}.bias");
        if !self.has(&bias) {
            return Ok(y);
        }
        let bias = self.weight(&bias, &[count, to])?;
        let y = self.graph.expert_add_bias(y, ids, bias);
        self.typed(y)
    }

    /// Products with `NAME.weight`, each times its expert's number of `NAME.scale`, where the file has these and no router has them in its weights.
    fn expert_scaled(&mut self, y: ValueId, ids: ValueId, name: &str, count: u64) -> Result<ValueId, ArchError> {
        let name = format!("{name}.scale");
        if self.routed_scales.contains(&name) {
            return Ok(y);
        }
        let Some(factors) = self.optional_vector(&name, count)? else { return Ok(y) };
        let y = self.graph.expert_scale(y, ids, factors);
        self.typed(y)
    }

    fn expert_matmul(&mut self, x: ValueId, ids: ValueId, weight: WeightId) -> Result<ValueId, ArchError> {
        let y = self.graph.dequantise(weight).and_then(|w| self.graph.expert_matmul(x, ids, w));
        self.typed(y)
    }

    /// `x` times the gate and up matrices (`to` rows of `from`) of the experts `ids`, which files have as two tensors or as one.
    pub fn expert_gate_up(
        &mut self,
        layer: usize,
        x: ValueId,
        ids: ValueId,
        [count, to, from]: [u64; 3],
    ) -> Result<[ValueId; 2], ArchError> {
        let name = |part: &str| format!("blk.{layer}.ffn_{part}_exps");
        let both = format!("{}.weight", name("gate_up"));
        let mut half = |half: &str, first: u64| {
            if !self.has(&both) {
                return self.expert_linear(x, ids, &name(half), [count, to, from]);
            }
            let half = format!("{}.weight", name(half));
            let weight = self.part(&half, &both, [count, to, from], [2 * to, first])?;
            let y = self.expert_matmul(x, ids, weight)?;
            self.expert_scaled(y, ids, &name("gate_up"), count)
        };
        Ok([half("gate", 0)?, half("up", to)?])
    }

    /// The experts' rows `[T, used, n]` summed with their weights.
    pub fn combine(&mut self, y: ValueId, weights: ValueId) -> Result<ValueId, ArchError> {
        let y = self.graph.expert_combine(y, weights);
        self.typed(y)
    }
}

/// The layer of a tensor `blk.LAYER.NAME`.
fn layer_of(name: &str) -> Option<u64> {
    name.strip_prefix("blk.")?.split_once('.')?.0.parse().ok()
}

/// Tensors that change nothing: frequencies that old converters wrote out, which follow from keys, and scales of activations, for targets that
/// round those to the same format as weights.
fn is_harmless(name: &str) -> bool {
    name.ends_with(".attn_rot_embd") || name.ends_with(".rotary_emb.inv_freq") || name.ends_with(".input_scale")
}
