//! What the architecture files write graphs with: weights looked up by name and checked for shape, ops with their types.
//!
//! In: a checked file and its hyperparameters. Out: a module whose one function is `@step` (see [`ixc_ir::graph`]). A weight
//! that is asked for twice (tied output) is one weight. Weights that are never asked for are reported at the end.

use std::collections::HashMap;

use ixc_ir::graph::{Attr, Dim, Function, Module, OpKind, Operand, Place, Type, ValueId, Weight, WeightId};

use super::error::ArchError;
use super::hyper::{Experts, Hyper};
use crate::gguf::{Gguf, Tensor};

/// How the two numbers that RoPE turns together lie in a head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pairs {
    /// Next to each other (ggml "norm").
    Adjacent,
    /// Half a rotation apart (ggml "neox").
    Halves,
}

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
    module: Module,
    step: Function,
    weights: HashMap<String, WeightId>,
    ids: ValueId,
    positions: ValueId,
    rows: ValueId,
    kv: ValueId,
}

impl<'a> Builder<'a> {
    /// A function with its parameters and no ops.
    pub fn new(gguf: &'a Gguf, hyper: &'a Hyper, architecture: &'static str) -> Builder<'a> {
        let mut step = Function { name: "step".to_owned(), ..Function::default() };
        let (tokens, wanted) = (Dim::symbol("T"), Dim::symbol("L"));
        let ids = step.add_param("ids", Type::i32([tokens.clone()]));
        let positions = step.add_param("pos", Type::i32([tokens]));
        let rows = step.add_param("rows", Type::i32([wanted]));
        let kv = step.add_param("kv", Type::Token);
        let (module, weights) = (Module::default(), HashMap::new());
        Builder { gguf, hyper, architecture, module, step, weights, ids, positions, rows, kv }
    }

    /// Ends the function with its results; refuses or reports tensors that nothing used.
    pub fn finish(mut self, logits: ValueId) -> Result<Module, ArchError> {
        self.report_unused()?;
        self.step.results = vec![logits, self.kv];
        self.module.functions.push(self.step);
        Ok(self.module)
    }

    fn report_unused(&self) -> Result<(), ArchError> {
        for tensor in self.gguf.tensors().filter(|tensor| !self.weights.contains_key(tensor.name())) {
            // A bias or a scale of a matrix is part of its meaning; other tensors may be for other uses of the file.
            if tensor.name().ends_with(".bias") || tensor.name().ends_with(".scale") {
                let (path, tensor) = (self.gguf.metadata().path().into(), tensor.name().into());
                return Err(ArchError::UnusedTensor { path, tensor, architecture: self.architecture });
            }
            tracing::warn!(tensor = %crate::gguf::quoted(tensor.name()), architecture = self.architecture, "unused tensor");
        }
        Ok(())
    }

    /// The weight `name`, which must have `shape` (outermost first).
    pub fn weight(&mut self, name: &str, shape: &[u64]) -> Result<WeightId, ArchError> {
        let tensor = self.gguf.require_tensor(name)?;
        self.add_weight(tensor, shape)
    }

    /// The F32 vector `name` of `len` elements.
    pub fn vector(&mut self, name: &str, len: u64) -> Result<WeightId, ArchError> {
        let tensor = self.gguf.require_tensor(name)?;
        if tensor.tensor_type().name != "F32" {
            let (path, found) = (self.gguf.metadata().path().into(), tensor.tensor_type());
            return Err(ArchError::VectorType { path, tensor: name.into(), found });
        }
        self.add_weight(tensor, &[len])
    }

    /// The F32 vector `name`, where the file has it.
    pub fn optional_vector(&mut self, name: &str, len: u64) -> Result<Option<WeightId>, ArchError> {
        if self.has(name) { self.vector(name, len).map(Some) } else { Ok(None) }
    }

    /// Whether the file has a tensor `name`.
    pub fn has(&self, name: &str) -> bool {
        self.gguf.tensor(name).is_some()
    }

    fn add_weight(&mut self, tensor: &Tensor, shape: &[u64]) -> Result<WeightId, ArchError> {
        // Dimensions of 1 at the end say nothing: ggml pads to four of them.
        let found = tensor.dims();
        let significant = |dims: &[u64]| dims.iter().rposition(|&dim| dim != 1).map_or(0, |last| last + 1);
        let expected: Vec<u64> = shape.iter().rev().copied().collect();
        if found[..significant(found)] != expected[..significant(&expected)] {
            return Err(ArchError::Shape {
                path: self.gguf.metadata().path().into(),
                tensor: tensor.name().into(),
                found: found.into(),
                expected: expected.into(),
            });
        }
        if let Some(&id) = self.weights.get(tensor.name()) {
            return Ok(id);
        }
        let format = self.gguf.require_format(tensor)?;
        let place = Some(Place { file: tensor.file() as u32, offset: tensor.offset() });
        let id = WeightId(self.module.weights.len() as u32);
        self.module.weights.push(Weight { name: tensor.name().to_owned(), format, shape: shape.to_vec(), place });
        self.weights.insert(tensor.name().to_owned(), id);
        Ok(id)
    }

    fn op(&mut self, kind: OpKind, operands: Vec<Operand>, attrs: Vec<Attr>, ty: Type) -> ValueId {
        self.step.push(kind, operands, attrs, vec![ty])[0]
    }

    /// An op on values whose result has the type of the first.
    fn same(&mut self, kind: OpKind, values: &[ValueId]) -> ValueId {
        let ty = self.step.ty(values[0]).clone();
        self.op(kind, values.iter().map(|&value| Operand::Value(value)).collect(), vec![], ty)
    }

    /// The type of `value` with its last `dropped` dimensions replaced by `dims`.
    fn reshaped(&self, value: ValueId, dropped: usize, dims: &[u64]) -> Type {
        let old = self.step.ty(value).dims();
        let kept = old.iter().take(old.len().saturating_sub(dropped)).cloned();
        Type::f32(kept.chain(dims.iter().map(|&dim| Dim::Fixed(dim))).collect::<Vec<_>>())
    }

    fn dequantise(&mut self, weight: WeightId) -> ValueId {
        let shape: Vec<Dim> = self.module.weights[weight.index()].shape.iter().map(|&dim| Dim::Fixed(dim)).collect();
        self.op(OpKind::Dequantise, vec![Operand::Weight(weight)], vec![], Type::f32(shape))
    }

    /// Rows of `token_embd.weight` for the step's ids.
    pub fn embed(&mut self) -> Result<ValueId, ArchError> {
        let table = self.weight("token_embd.weight", &[self.hyper.vocabulary, self.hyper.embedding_length])?;
        let ty = self.reshaped(self.ids, 0, &[self.hyper.embedding_length]);
        Ok(self.op(OpKind::Embed, vec![Operand::Value(self.ids), Operand::Weight(table)], vec![], ty))
    }

    /// `output_norm` and the output matrix (tied to the embedding table where the file has none) on the wanted rows.
    pub fn logits(&mut self, x: ValueId) -> Result<ValueId, ArchError> {
        let Hyper { vocabulary, embedding_length, .. } = *self.hyper;
        let rows = Type::f32([Dim::symbol("L"), Dim::Fixed(embedding_length)]);
        let x = self.op(OpKind::TakeRows, vec![Operand::Value(x), Operand::Value(self.rows)], vec![], rows);
        let x = self.rms_norm(x, "output_norm.weight", embedding_length)?;
        if self.has("output.weight") {
            return self.linear(x, "output", embedding_length, vocabulary, Bias::Optional);
        }
        let table = self.weight("token_embd.weight", &[vocabulary, embedding_length])?;
        Ok(self.matmul(x, table, vocabulary))
    }

    /// RMS norm along the last dimension, of length `len`, with the weight `name`.
    pub fn rms_norm(&mut self, x: ValueId, name: &str, len: u64) -> Result<ValueId, ArchError> {
        let weight = self.vector(name, len)?;
        let attrs = vec![Attr::Float(self.hyper.norm_eps)];
        let ty = self.step.ty(x).clone();
        Ok(self.op(OpKind::RmsNorm, vec![Operand::Value(x), Operand::Weight(weight)], attrs, ty))
    }

    fn matmul(&mut self, x: ValueId, weight: WeightId, to: u64) -> ValueId {
        let w = self.dequantise(weight);
        let ty = self.reshaped(x, 1, &[to]);
        self.op(OpKind::Matmul, vec![Operand::Value(x), Operand::Value(w)], vec![], ty)
    }

    /// `x` times the transpose of `NAME.weight` (`to` rows of `from`), plus `NAME.bias`.
    pub fn linear(&mut self, x: ValueId, name: &str, from: u64, to: u64, bias: Bias) -> Result<ValueId, ArchError> {
        let weight = self.weight(&format!("{name}.weight"), &[to, from])?;
        let y = self.matmul(x, weight, to);
        let bias_name = format!("{name}.bias");
        let bias = match bias {
            Bias::Required => Some(self.vector(&bias_name, to)?),
            Bias::Optional => self.optional_vector(&bias_name, to)?,
        };
        let Some(bias) = bias else { return Ok(y) };
        let ty = self.step.ty(y).clone();
        Ok(self.op(OpKind::AddBias, vec![Operand::Value(y), Operand::Weight(bias)], vec![], ty))
    }

    /// Elementwise sum.
    pub fn add(&mut self, a: ValueId, b: ValueId) -> ValueId {
        self.same(OpKind::Add, &[a, b])
    }

    /// `silu(gate) * up`.
    pub fn swiglu(&mut self, gate: ValueId, up: ValueId) -> ValueId {
        let gate = self.same(OpKind::Silu, &[gate]);
        self.same(OpKind::Mul, &[gate, up])
    }

    /// `[T, heads * d]` as `[T, heads, d]`.
    pub fn split_heads(&mut self, x: ValueId, heads: u64, d: u64) -> ValueId {
        let ty = self.reshaped(x, 1, &[heads, d]);
        self.op(OpKind::SplitHeads, vec![Operand::Value(x)], vec![Attr::Int(heads as i64)], ty)
    }

    /// `[T, heads, d]` as `[T, heads * d]`.
    pub fn merge_heads(&mut self, x: ValueId, heads: u64, d: u64) -> ValueId {
        let ty = self.reshaped(x, 2, &[heads * d]);
        self.op(OpKind::MergeHeads, vec![Operand::Value(x)], vec![], ty)
    }

    /// Rotates heads by the step's positions; `rope_freqs.weight` divides the frequencies where the file has it.
    pub fn rope(&mut self, x: ValueId, pairs: Pairs) -> Result<ValueId, ArchError> {
        let rope = &self.hyper.rope;
        let factors = self.optional_vector("rope_freqs.weight", rope.dims / 2)?;
        let factors = factors.map_or(Operand::Absent, Operand::Weight);
        let style = match pairs {
            Pairs::Adjacent => "norm",
            Pairs::Halves => "neox",
        };
        let attrs = vec![
            Attr::Float(rope.base),
            Attr::Int(rope.dims as i64),
            Attr::Word(style.to_owned()),
            Attr::Word(rope.scaling.word().to_owned()),
            Attr::Float(rope.factor),
            Attr::Int(rope.original_context as i64),
            Attr::Float(rope.beta_fast),
            Attr::Float(rope.beta_slow),
            Attr::Float(rope.attn_factor),
        ];
        let ty = self.step.ty(x).clone();
        let operands = vec![Operand::Value(x), Operand::Value(self.positions), factors];
        Ok(self.op(OpKind::Rope, operands, attrs, ty))
    }

    /// Appends `k` and `v` to the cache of `layer`, then attends with `q`; all `[T, heads, d]`.
    pub fn attend(&mut self, layer: usize, q: ValueId, k: ValueId, v: ValueId) -> ValueId {
        let facts = &self.hyper.layers[layer];
        let layer = Attr::Int(layer as i64);
        let kv = [self.kv, k, v, self.positions].map(Operand::Value).to_vec();
        self.kv = self.op(OpKind::KvAppend, kv, vec![layer.clone()], Type::Token);
        let attrs = vec![layer, Attr::Int(facts.kv_heads as i64), Attr::Float(facts.attention_scale)];
        let operands = [q, self.kv, self.positions].map(Operand::Value).to_vec();
        let types = vec![self.reshaped(q, 1, &[facts.value_length]), Type::Token];
        let results = self.step.push(OpKind::Attention, operands, attrs, types);
        self.kv = results[1];
        results[0]
    }

    /// Ids and weights of the experts of each row of router logits.
    pub fn route(&mut self, logits: ValueId, experts: &Experts) -> (ValueId, ValueId) {
        let attrs = vec![
            Attr::Int(experts.used as i64),
            Attr::Word("softmax".to_owned()),
            Attr::Bool(experts.normalise),
            Attr::Float(experts.scale),
        ];
        let dims = [Dim::symbol("T"), Dim::Fixed(experts.used)];
        let types = vec![Type::i32(dims.clone()), Type::f32(dims)];
        let results = self.step.push(OpKind::Route, vec![Operand::Value(logits)], attrs, types);
        (results[0], results[1])
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
        let w = self.dequantise(weight);
        let dims = self.step.ty(ids).dims().iter().cloned().chain([Dim::Fixed(to)]).collect::<Vec<_>>();
        let operands = [x, ids, w].map(Operand::Value).to_vec();
        Ok(self.op(OpKind::ExpertMatmul, operands, vec![], Type::f32(dims)))
    }

    /// The experts' rows `[T, used, n]` summed with their weights.
    pub fn combine(&mut self, y: ValueId, weights: ValueId, to: u64) -> ValueId {
        let ty = self.reshaped(y, 2, &[to]);
        self.op(OpKind::ExpertCombine, vec![Operand::Value(y), Operand::Value(weights)], vec![], ty)
    }
}
