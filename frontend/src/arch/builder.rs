//! What the architecture files write graphs with: weights looked up by name and checked for shape, ops with their types.
//!
//! In: a checked file and its hyperparameters. Out: a module whose one function is `@step` (see [`ixc_ir::graph`]). A weight
//! that is asked for twice (tied output) is one weight. A tensor that is never asked for, nor known to be read by nobody, is refused at the end.

mod norms;

use std::collections::{HashMap, HashSet};
use std::ops::Range;

use ixc_ir::format::Format;
use ixc_ir::graph::attrs::{GateAttrs, KeyHeads, RopeAttrs, RopeStyle, RouteAttrs, RouteScore, ScoreAttrs};
use ixc_ir::graph::builder::{GraphBuilder, RopeFactors, StepParams};
use ixc_ir::graph::types::TypeError;
use ixc_ir::graph::{
    Attr, Dim, Module, OpKind, Operand, Part, Place, Recurrent, State, Type, Unary, ValueId, WeightId,
};
use ixc_ir::ngram::{BEFORE, Hash};
use ixc_ir::state::Rollback;

use super::error::ArchError;
use super::hyper::{
    Adjugate, Alternating, Compressed, Experts, GuessFrom, Hyper, Indexer, KEPT_EVERY, LayerInputs, Mla, Ngrams, Rope,
    Scales, Ssm, Streams, Wkv, Xielu,
};
use crate::gguf::{Gguf, Tensor};

/// Whether a matrix has a bias beside it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Bias {
    /// Where the file has one.
    Optional,
    /// Always.
    Required,
}

/// The output matrix with rows of length 1, where a file's are to be so and are not.
pub(super) const UNIT_HEAD: &str = "output_unit";

/// Numbers of a layer's heads of queries, of each as often as it is long.
pub(super) const HEAD_GAIN: &str = "attn_q_gain";

/// What a graph has of guessing by the model's own layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Guessing {
    /// Nothing.
    None,
    /// It gives what they take.
    Fed(GuessFrom),
    /// It is the first of them.
    Alone(GuessFrom),
}

/// A graph being built.
pub(super) struct Builder<'a> {
    gguf: &'a Gguf,
    pub hyper: &'a Hyper,
    architecture: &'static str,
    /// Whether the model ends with its output matrix, or before it.
    head: bool,
    guessing: Guessing,
    graph: GraphBuilder,
    step: StepParams,
    /// The hidden states that come in, where it guesses, and those that it gives.
    hidden: Option<ValueId>,
    given: Option<ValueId>,
    used: HashSet<String>,
    /// Factors of experts that routers have in their weights.
    routed_scales: HashSet<String>,
    /// The token of each layer's keys and values, behind what was done with them last.
    caches: HashMap<usize, ValueId>,
    /// Which time the layers are built, from 0.
    round: usize,
    /// The same of entries beside them.
    entries: HashMap<usize, ValueId>,
}

impl<'a> Builder<'a> {
    /// A function with its parameters and no ops.
    pub fn new(
        gguf: &'a Gguf,
        hyper: &'a Hyper,
        architecture: &'static str,
        (head, guessing): (bool, Guessing),
    ) -> Builder<'a> {
        let mut graph = GraphBuilder::new("step");
        let step = graph.step_params();
        let hidden = matches!(guessing, Guessing::Alone(_))
            .then(|| graph.param("hidden", Type::f32([Dim::symbol("T"), Dim::Fixed(hyper.embedding_length)])));
        Builder {
            gguf,
            hyper,
            architecture,
            head,
            guessing,
            graph,
            step,
            hidden,
            given: None,
            used: HashSet::new(),
            routed_scales: HashSet::new(),
            caches: HashMap::new(),
            round: 0,
            entries: HashMap::new(),
        }
    }

    /// Ends the function with its results; refuses tensors that nothing used, unless layers were left out on purpose.
    pub fn finish(self, logits: ValueId, whole: bool) -> Result<Module, ArchError> {
        if whole {
            self.check_unused()?;
        }
        let results: Vec<ValueId> = [logits].into_iter().chain(self.given).collect();
        Ok(self.graph.finish(&results))
    }

    /// The layers that are built.
    pub fn layers(&self) -> Range<usize> {
        let count = self.hyper.layers.len();
        match self.guessing {
            Guessing::None | Guessing::Fed(_) => 0..count,
            Guessing::Alone(_) => {
                let first = count.saturating_sub(self.hyper.draft_layers as usize);
                first..count.min(first + 1)
            }
        }
    }

    fn check_unused(&self) -> Result<(), ArchError> {
        let layers = self.hyper.layers.len() as u64;
        let drafts = layers..layers + self.hyper.draft_layers;
        let own = self.layers();
        let is_left_out = |name: &str| match (layer_of(name), self.guessing) {
            (layer, Guessing::None | Guessing::Fed(_)) => layer.is_some_and(|layer| drafts.contains(&layer)),
            (layer, Guessing::Alone(_)) => layer.is_none_or(|layer| !own.contains(&(layer as usize))),
        };
        let tensors = self.gguf.tensors().filter(|tensor| !is_left_out(tensor.name()));
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
    pub fn vectors(&mut self, name: &str, shape: &[u64]) -> Result<WeightId, ArchError> {
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

    /// A tensor that files may have though nothing reads it: it has a place, and no weight is made of it. Its shape is checked as any other's.
    pub fn unread(&mut self, name: &str, shape: &[u64]) -> Result<(), ArchError> {
        if let Some(tensor) = self.gguf.tensor(name) {
            self.check_shape(tensor, shape)?;
            self.used.insert(name.to_owned());
        }
        Ok(())
    }

    /// Rows of the matrix `name`, where the file has it.
    pub fn rows(&self, name: &str) -> Option<u64> {
        self.gguf.tensor(name)?.dims().get(1).copied()
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

    /// The number that is the F32 tensor `name`.
    pub fn scalar(&mut self, name: &str) -> Result<f64, ArchError> {
        self.gguf.require_tensor(name)?;
        Ok(self.optional_scalar(name)?.unwrap_or_default())
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
        // Matrices may be one behind another in one.
        match found.dims() {
            [_, _] => self.check_shape(found, &[shape[0].saturating_mul(rows), shape[2]])?,
            _ => self.check_shape(found, &[shape[0], rows, shape[2]])?,
        }
        let format = self.gguf.require_format(found)?;
        let place = Some(Place { file: found.file() as u32, offset: found.offset() });
        let part = Part { tensor: tensor.to_owned(), rows, from };
        let weight = self.graph.weight_part(name, format, &shape, place, Some(part));
        self.used.insert(tensor.to_owned());
        self.typed(weight)
    }

    fn check_shape(&self, tensor: &Tensor, shape: &[u64]) -> Result<(), ArchError> {
        // Dimensions of 1 say nothing, as elements lie the same without them: ggml pads to four dimensions, `ssm_a` has rows of one element, and taps
        // of a convolution matrices of one row.
        let found = tensor.dims();
        let expected: Vec<u64> = shape.iter().rev().copied().collect();
        let [significant, wanted] = [found, &expected].map(|dims| dims.iter().filter(|&&dim| dim != 1));
        if significant.eq(wanted) {
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

    /// Rows of `token_embd.weight` for the step's ids. What guesses has them beside the hidden states that come in, and takes both by one matrix (DeepSeek-V3's
    /// report, arXiv 2412.19437, section 2.2).
    pub fn embed(&mut self) -> Result<ValueId, ArchError> {
        let own = self.of_guess("nextn.embed_tokens.weight").filter(|own| self.has(own));
        let x = self.rows_of(own.as_deref().unwrap_or("token_embd.weight"), self.hyper.embedding_length)?;
        // The stream is what the model's is divided by `residual`: then what blocks add needs no factor, and norms take it away again.
        let x = self.scale(x, self.hyper.scales.embedding / self.hyper.scales.residual)?;
        let names = ["nextn.enorm.weight", "nextn.hnorm.weight", "nextn.eh_proj"].map(|part| self.of_guess(part));
        let (Some(hidden), [Some(enorm), Some(hnorm), Some(matrix)]) = (self.hidden, names) else { return Ok(x) };
        let (x, hidden) = (self.norm(x, &enorm)?, self.norm(hidden, &hnorm)?);
        let both = self.concat(x, hidden)?;
        let width = self.hyper.embedding_length;
        self.linear(both, &matrix, 2 * width, width, Bias::Optional)
    }

    /// The name of a tensor of the layer that guesses, where that is what is built.
    fn of_guess(&self, part: &str) -> Option<String> {
        let layer = self.layers().start;
        matches!(self.guessing, Guessing::Alone(_)).then(|| format!("blk.{layer}.{part}"))
    }

    /// Rows of `len` elements of the table `name` for the step's ids.
    pub fn rows_of(&mut self, name: &str, len: u64) -> Result<ValueId, ArchError> {
        let table = self.weight(name, &[self.hyper.vocabulary, len])?;
        let x = self.graph.embed(self.step.ids, table);
        self.typed(x)
    }

    /// Rows of the table `name`, which has one for each position of the context, for the step's positions.
    pub fn position_rows(&mut self, name: &str) -> Result<ValueId, ArchError> {
        const BLOCK: u64 = ixc_ir::plan::ATTENTION_BLOCK as u64;
        let rows = self.hyper.context_length;
        if !rows.is_multiple_of(BLOCK) {
            let limit = format!("a multiple of {BLOCK}, as there is a row of {name} for each position of whole blocks");
            return Err(self.refused("context_length", rows, &limit));
        }
        let table = self.weight(name, &[rows, self.hyper.embedding_length])?;
        let x = self.graph.embed(self.step.pos, table);
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

    /// Rows times what their positions make of them, where the model has a temperature.
    pub fn temperature(&mut self, x: ValueId) -> Result<ValueId, ArchError> {
        let Some(of) = self.hyper.temperature else { return Ok(x) };
        let y = self.graph.temperature(x, self.step.pos, &of);
        self.typed(y)
    }

    /// Heads times what their positions make of two numbers of each head, `NAME.bias + NAME.weight * ln(1 + position)`.
    pub fn heads_temperature(&mut self, x: ValueId, name: &str, heads: u64) -> Result<ValueId, ArchError> {
        let scales = self.vector(&format!("{name}.weight"), heads)?;
        let biases = self.vector(&format!("{name}.bias"), heads)?;
        let y = self.graph.heads_temperature(x, self.step.pos, [scales, biases]);
        self.typed(y)
    }

    /// `output_norm` and the output matrix (tied to the embedding table where the file has none) on the wanted rows.
    pub fn logits(&mut self, x: ValueId) -> Result<ValueId, ArchError> {
        self.logits_behind(x, "output_norm.weight")
    }

    /// The same with a norm of another name.
    pub fn logits_behind(&mut self, x: ValueId, norm: &str) -> Result<ValueId, ArchError> {
        // Some files have the norm of what guesses by another name.
        let own = ["nextn.shared_head_norm.weight", "layer_output_norm.weight"].map(|part| self.of_guess(part));
        let own = own.into_iter().flatten().find(|own| self.has(own));
        let norm = own.as_deref().unwrap_or(norm);
        match self.guessing {
            Guessing::None => {}
            Guessing::Fed(GuessFrom::Stream) | Guessing::Alone(GuessFrom::Stream) => self.given = Some(x),
            // Logits are computed as they are without.
            Guessing::Fed(GuessFrom::Norm) => self.given = Some(self.norm(x, norm)?),
            Guessing::Alone(GuessFrom::Norm) => {
                let x = self.norm(x, norm)?;
                self.given = Some(x);
                let x = self.wanted(x)?;
                return self.output(x);
            }
        }
        let x = self.wanted(x)?;
        self.head(x, norm)
    }

    /// The rows whose logits are wanted.
    pub fn wanted(&mut self, x: ValueId) -> Result<ValueId, ArchError> {
        let x = self.graph.take_rows(x, self.step.rows);
        self.typed(x)
    }

    /// Logits of rows: a norm, and the output matrix.
    pub fn head(&mut self, x: ValueId, norm: &str) -> Result<ValueId, ArchError> {
        let x = self.norm(x, norm)?;
        self.output(x)
    }

    /// Logits of rows that are normalised already; the rows themselves of a model that ends before its output matrix.
    pub fn output(&mut self, x: ValueId) -> Result<ValueId, ArchError> {
        let Hyper { vocabulary, embedding_length, scales, .. } = *self.hyper;
        if !self.head {
            let matrix = [vocabulary, embedding_length];
            for (part, shape) in [("weight", &matrix[..]), ("scale", &[1]), ("bias", &[vocabulary])] {
                self.unread(&format!("output.{part}"), shape)?;
            }
            self.unread(&format!("{UNIT_HEAD}.weight"), &matrix)?;
            return Ok(x);
        }
        let own = self.of_guess("nextn.shared_head_head").filter(|own| self.has(&format!("{own}.weight")));
        let is_unit = self.has(&format!("{UNIT_HEAD}.weight"));
        if is_unit {
            self.leave_out("output.weight");
        }
        let name = own.as_deref().unwrap_or(if is_unit { UNIT_HEAD } else { "output" });
        let y = if self.has(&format!("{name}.weight")) {
            self.linear(x, name, embedding_length, vocabulary, Bias::Optional)?
        } else {
            let table = self.weight("token_embd.weight", &[vocabulary, embedding_length])?;
            let y = self.matmul(x, table)?;
            self.optional_bias(y, "output.bias", vocabulary)?
        };
        let y = self.scale(y, 1.0 / scales.logit)?;
        if scales.softcap == 0.0 { Ok(y) } else { self.softcap(y, scales.softcap) }
    }

    /// Elements, bent so that they stay within a cap.
    pub fn softcap(&mut self, x: ValueId, cap: f64) -> Result<ValueId, ArchError> {
        let y = self.graph.unary(Unary::Softcap, x, vec![Attr::rounded(cap)]);
        self.typed(y)
    }

    /// How far elements are above a number; 0 for those below.
    pub fn relu(&mut self, x: ValueId, from: f64) -> Result<ValueId, ArchError> {
        let y = self.graph.unary(Unary::Relu, x, vec![Attr::rounded(from)]);
        self.typed(y)
    }

    /// Elements, cut off to stay within a limit; as they are where that is 0.
    pub fn clamp(&mut self, x: ValueId, limit: f64) -> Result<ValueId, ArchError> {
        if limit == 0.0 {
            return Ok(x);
        }
        let y = self.graph.unary(Unary::Clamp, x, vec![Attr::rounded(limit)]);
        self.typed(y)
    }

    /// Rows plus the vector `name`, where the file has it.
    pub fn optional_bias(&mut self, x: ValueId, name: &str, len: u64) -> Result<ValueId, ArchError> {
        if self.has(name) { self.bias(x, name, len) } else { Ok(x) }
    }

    /// Rows plus the vector `name`.
    pub fn bias(&mut self, x: ValueId, name: &str, len: u64) -> Result<ValueId, ArchError> {
        let bias = self.vector(name, len)?;
        let y = self.graph.add_bias(x, bias);
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

    /// What stands between up and down of a layer's network, without a gate.
    pub fn activation(&mut self, layer: usize, function: Unary, x: ValueId) -> Result<ValueId, ArchError> {
        let attrs = match (function, self.hyper.layers[layer].xielu) {
            (Unary::Xielu, Some(Xielu { alpha_n, alpha_p, beta, eps })) => {
                [alpha_n, alpha_p, beta, eps].map(Attr::rounded).to_vec()
            }
            (Unary::Relu, _) => return self.relu(x, 0.0),
            (function, _) => return self.unary(function, x),
        };
        let y = self.graph.unary(function, x, attrs);
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

    /// Rotates heads by the step's positions, each rounded down to a multiple of `every`, and `back` where it is to be undone.
    pub fn rope_by(
        &mut self,
        x: ValueId,
        rope: &Rope,
        style: RopeStyle,
        (every, back): (u64, bool),
    ) -> Result<ValueId, ArchError> {
        let pos = match (every, back) {
            (1, false) => self.step.pos,
            _ => {
                let pos = self.graph.positions(self.step.pos, every, back);
                self.typed(pos)?
            }
        };
        let y = self.graph.rope(x, pos, RopeFactors::default(), &rope_attrs(rope, style));
        self.typed(y)
    }

    /// Rotates heads by the step's positions; `rope_freqs.weight` divides the frequencies where the file has it, or
    /// `rope_factors_short.weight` and, in long contexts, `rope_factors_long.weight`.
    pub fn rope(&mut self, layer: usize, x: ValueId, style: RopeStyle) -> Result<ValueId, ArchError> {
        let local = self.hyper.local_rope.as_ref().filter(|_| self.hyper.layers[layer].window.is_some());
        let rope = local.unwrap_or(&self.hyper.rope);
        let factors = match rope.divided {
            true => RopeFactors {
                short: match self.divisors("rope_freqs.weight", rope)? {
                    None => self.divisors("rope_factors_short.weight", rope)?,
                    divisors => divisors,
                },
                long: self.divisors("rope_factors_long.weight", rope)?,
            },
            false => RopeFactors::default(),
        };
        let attrs = rope_attrs(rope, style);
        let y = self.graph.rope(x, self.step.pos, factors, &attrs);
        self.typed(y)
    }

    /// What divides the frequencies of `rope`, where the file has it: a number for each pair, or for as many as turn in the layers that rotate most.
    fn divisors(&mut self, name: &str, rope: &Rope) -> Result<Option<WeightId>, ArchError> {
        let Some(tensor) = self.gguf.tensor(name) else { return Ok(None) };
        let pairs = rope.dims / 2;
        let all = self.hyper.local_rope.as_ref().map_or(pairs, |local| pairs.max(local.dims / 2));
        if tensor.dims() != [all] || tensor.tensor_type().name != "F32" {
            return self.vector(name, pairs).map(Some);
        }
        let place = Place { file: tensor.file() as u32, offset: tensor.offset() };
        if let Some(id) = self.graph.find_weight(name) {
            return Ok(Some(id));
        }
        let weight = self.graph.weight(name, Format::F32, &[pairs], Some(place));
        self.used.insert(name.to_owned());
        self.typed(weight).map(Some)
    }

    /// Builds the layers another time: those that follow have keys and values of their own.
    pub fn next_round(&mut self) {
        self.round += 1;
    }

    /// The number of a layer's keys and values.
    fn cache(&self, layer: usize) -> usize {
        self.round * self.hyper.layers.len() + layer
    }

    /// Appends `k` and `v` to the state of `layer`; both `[T, heads, d]`.
    pub fn append(&mut self, layer: usize, k: ValueId, v: ValueId) -> Result<(), ArchError> {
        let facts = &self.hyper.layers[layer];
        let cache = self.cache(layer);
        let state = State::paged(&format!("kv.{cache}"), facts.kv_heads, facts.key_length, facts.value_length);
        let state = State { window: facts.window, chunked: facts.chunked, ..state };
        let state = self.graph.state(state);
        let state = self.typed(state)?;
        let kv = self.graph.state_begin(state);
        let kv = self.typed(kv)?;
        let kv = self.graph.kv_append(kv, k, v, self.step.pos);
        let kv = self.typed(kv)?;
        self.caches.insert(cache, kv);
        Ok(())
    }

    /// Attends in `layer` with `q`, `[T, heads, d]`, over what was appended, there or in the layer that it shares, with `sinks` or without.
    pub fn attend(&mut self, layer: usize, q: ValueId, sinks: bool) -> Result<ValueId, ArchError> {
        self.attend_to(layer, q, sinks, None)
    }

    /// As [`Builder::attend`], over `chosen` positions where there are any.
    pub fn attend_to(
        &mut self,
        layer: usize,
        q: ValueId,
        sinks: bool,
        chosen: Option<ValueId>,
    ) -> Result<ValueId, ArchError> {
        let facts = &self.hyper.layers[layer];
        let (scale, heads, of) = (facts.attention_scale, facts.heads, self.cache(facts.shares.unwrap_or(layer)));
        let kv =
            *self.caches.get(&of).unwrap_or_else(|| unreachable!("layer {of} appends before layer {layer} attends"));
        let sinks = match sinks {
            true => Some(self.vector(&format!("blk.{layer}.attn_sinks.weight"), heads)?),
            false => None,
        };
        let Scales { attention_softcap: cap, max_bias, scaled_slopes, .. } = self.hyper.scales;
        let slope = if scaled_slopes && max_bias != 0.0 { scale } else { 0.0 };
        let scores = ScoreAttrs { scale, cap, max_bias, slope };
        let y = self.graph.attention(q, kv, self.step.pos, sinks, chosen, &scores);
        let (y, kv) = self.typed(y)?;
        self.caches.insert(of, kv);
        Ok(y)
    }

    /// Appends rows of one head, which are keys and values, to the entries of `layer`: each to that of its `every` positions.
    pub fn append_entries(&mut self, layer: usize, entry: ValueId, every: u64) -> Result<(), ArchError> {
        let facts = &self.hyper.layers[layer];
        let state = State::paged(&format!("entries.{layer}"), facts.kv_heads, facts.key_length, facts.value_length);
        let state = self.graph.state(State { every, ..state });
        let state = self.typed(state)?;
        let token = self.graph.state_begin(state);
        let token = self.typed(token)?;
        let token = self.graph.kv_append(token, entry, entry, self.step.pos);
        let token = self.typed(token)?;
        self.entries.insert(layer, token);
        Ok(())
    }

    /// Attends in `layer` with `q`, `[T, heads, d]`, over what was appended and over whole entries, or those of them that are `chosen`, with sinks.
    pub fn attend_entries(&mut self, layer: usize, q: ValueId, chosen: Option<ValueId>) -> Result<ValueId, ArchError> {
        let facts = &self.hyper.layers[layer];
        let (scale, heads) = (facts.attention_scale, facts.heads);
        let appended = |of: &HashMap<usize, ValueId>| of.get(&layer).copied();
        let (Some(kv), Some(entries)) = (appended(&self.caches), appended(&self.entries)) else {
            unreachable!("layer {layer} appends before it attends")
        };
        let sinks = self.vector(&format!("blk.{layer}.attn_sinks.weight"), heads)?;
        let y = self.graph.attention_entries(q, [kv, entries], self.step.pos, (Some(sinks), chosen), scale);
        let (y, [kv, entries]) = self.typed(y)?;
        self.caches.insert(layer, kv);
        self.entries.insert(layer, entries);
        Ok(y)
    }

    /// Of every `every` positions a row: the mean of the first of the values by the second plus its row of the weight `ape`; with the state `state`.
    pub fn compress(
        &mut self,
        state: &str,
        values: [ValueId; 2],
        ape: &str,
        [every, width]: [u64; 2],
        overlap: bool,
    ) -> Result<ValueId, ArchError> {
        let ape = self.vectors(ape, &[every, width])?;
        let [kv, gate] = values.map(Operand::Value);
        let operands = [kv, gate, Operand::Value(self.step.pos), Operand::Weight(ape)];
        let attrs = vec![Attr::Int(every.cast_signed()), Attr::Bool(overlap)];
        let (rows, d) = if overlap { (6, width / 2) } else { (3, width) };
        self.recurrent(Recurrent::Compress, (state, &[rows, d]), &operands, attrs)
    }

    /// Ids and weights of the experts that the table `name` has for each of the step's ids.
    pub fn route_listed(
        &mut self,
        logits: ValueId,
        name: &str,
        experts: &Experts,
    ) -> Result<(ValueId, ValueId), ArchError> {
        let shape = [self.hyper.vocabulary, experts.used];
        let tensor = self.gguf.require_tensor(name)?;
        if tensor.tensor_type().name != "I32" {
            let (path, found) = (self.path(), tensor.tensor_type());
            return Err(ArchError::TableType { path, tensor: name.into(), found });
        }
        self.check_shape(tensor, &shape)?;
        let numbers = self.gguf.tensor_data(tensor);
        let mut ids = numbers.as_chunks().0.iter().map(|bytes| i32::from_le_bytes(*bytes));
        if let Some(found) = ids.find(|&id| u64::try_from(id).map_or(true, |id| id >= experts.count)) {
            return Err(ArchError::TableId { path: self.path(), tensor: name.into(), found, count: experts.count });
        }
        let place = Some(Place { file: tensor.file() as u32, offset: tensor.offset() });
        // No format is of integers: these have the bytes of as many floats.
        let table = self.graph.weight(name, Format::F32, &shape, place);
        let table = self.typed(table)?;
        self.used.insert(name.to_owned());
        let how = (experts.score, experts.normalise, experts.scale);
        let routed = self.graph.route_listed(logits, self.step.ids, table, how);
        self.typed(routed)
    }

    /// A tensor, where the file has it, that changes nothing of what is built.
    pub fn leave_out(&mut self, name: &str) {
        self.used.insert(name.to_owned());
    }

    /// The experts of a layer, which the file must have.
    pub fn experts(&self, layer: usize) -> Result<Experts, ArchError> {
        let key = format!("{}.expert_count", self.architecture);
        self.hyper.layers[layer].experts.clone().ok_or_else(|| self.gguf.metadata().missing(&key, "u32").into())
    }

    /// Keys of compressed entries, which the file must have.
    pub fn compressed(&self) -> Result<Compressed, ArchError> {
        let key = format!("{}.attention.compress_ratios", self.architecture);
        self.hyper.compressed.clone().ok_or_else(|| self.gguf.metadata().missing(&key, "array of u32").into())
    }

    /// How many streams the residual is, and how they are mixed, which the file must say.
    pub fn streams(&self) -> Result<Streams, ArchError> {
        let key = format!("{}.hyper_connection.count", self.architecture);
        self.hyper.streams.ok_or_else(|| self.gguf.metadata().missing(&key, "u32").into())
    }

    /// How many streams the residual is, and the length of the row that weights of their elements are made of, which the file must say.
    pub fn weighted_streams(&self) -> Result<(u64, u64), ArchError> {
        let Streams { count, rank, .. } = self.streams()?;
        let key = format!("{}.hyper_connection.low_rank", self.architecture);
        Ok((count, rank.ok_or_else(|| self.gguf.metadata().missing(&key, "u32"))?))
    }

    /// Small experts that groups of experts share, which the file must have.
    pub fn adjugate(&self) -> Result<Adjugate, ArchError> {
        let key = format!("{}.experts_per_group", self.architecture);
        self.hyper.adjugate.ok_or_else(|| self.gguf.metadata().missing(&key, "u32").into())
    }

    /// Ids and weights of experts that have matrices, so many, and the sum of the weights of those that have none.
    pub fn identities(
        &mut self,
        (ids, weights): (ValueId, ValueId),
        experts: u64,
    ) -> Result<((ValueId, ValueId), ValueId), ArchError> {
        let parted = self.graph.route_identities(ids, weights, experts);
        let (ids, weights, passed) = self.typed(parted)?;
        Ok(((ids, weights), passed))
    }

    /// The groups of so many experts that these ids are of.
    pub fn expert_groups(&mut self, ids: ValueId, size: u64) -> Result<ValueId, ArchError> {
        let groups = self.graph.expert_groups(ids, size);
        self.typed(groups)
    }

    /// The streams of which layers compute with one, which the file must have.
    pub fn alternating(&self) -> Result<Alternating, ArchError> {
        let key = format!("{}.altup.num_inputs", self.architecture);
        self.hyper.alternating.ok_or_else(|| self.gguf.metadata().missing(&key, "u32").into())
    }

    /// What each layer takes of a token beside the stream, which the file must have.
    pub fn layer_inputs(&self) -> Result<LayerInputs, ArchError> {
        let key = format!("{}.embedding_length_per_layer_input", self.architecture);
        self.hyper.layer_inputs.ok_or_else(|| self.gguf.metadata().missing(&key, "u32").into())
    }

    /// What streams are mixed with, of projections `x` with these scales and this base.
    pub fn stream_weights(&mut self, x: ValueId, vectors: [WeightId; 2]) -> Result<ValueId, ArchError> {
        let Streams { count, iterations, eps, magnitude, .. } = self.streams()?;
        let y = self.graph.stream_weights(x, vectors, count, (iterations, eps, magnitude));
        self.typed(y)
    }

    /// The sum of the streams `x` with their weights in a block's input.
    pub fn stream_input(&mut self, x: ValueId, w: ValueId) -> Result<ValueId, ArchError> {
        let y = self.graph.stream_input(x, w);
        self.typed(y)
    }

    /// The streams `x` behind a block that gave `y`.
    pub fn stream_mix(&mut self, x: ValueId, y: ValueId, w: ValueId) -> Result<ValueId, ArchError> {
        let z = self.graph.stream_mix(x, y, w);
        self.typed(z)
    }

    /// Attention of `y` over the streams `x` that rows kept, scored with the weight `name`.
    pub fn stream_attend(&mut self, x: ValueId, y: ValueId, name: &str) -> Result<ValueId, ArchError> {
        let weight = self.vector(name, self.hyper.embedding_length)?;
        let z = self.graph.stream_attend(x, y, weight, self.hyper.norm_eps);
        self.typed(z)
    }

    /// Layers between two streams that rows keep to attend to, which the file must say.
    pub fn kept_every(&self) -> Result<usize, ArchError> {
        let key = format!("{}.{KEPT_EVERY}", self.architecture);
        let every = self.hyper.kept_every.ok_or_else(|| self.gguf.metadata().missing(&key, "u32"))?;
        Ok(every as usize)
    }

    /// The error of a key whose value no graph is made for.
    pub fn refused(&self, key: &str, found: u64, limit: &str) -> ArchError {
        let key = format!("{}.{key}", self.architecture);
        self.gguf.metadata().bad_value(&key, found, limit).into()
    }

    /// Sizes of latent attention, which the file must have.
    pub fn mla(&self) -> Result<Mla, ArchError> {
        let key = format!("{}.attention.kv_lora_rank", self.architecture);
        self.hyper.mla.ok_or_else(|| self.gguf.metadata().missing(&key, "u32").into())
    }

    /// Length of the row that queries of latent attention are made of, which the file must have.
    pub fn query_rank(&self) -> Result<u64, ArchError> {
        let key = format!("{}.attention.q_lora_rank", self.architecture);
        self.mla()?.query_rank.ok_or_else(|| self.gguf.metadata().missing(&key, "u32").into())
    }

    /// The index that chooses positions, which the file must have.
    pub fn indexer(&self) -> Result<Indexer, ArchError> {
        let key = format!("{}.attention.indexer.head_count", self.architecture);
        self.hyper.indexer.clone().ok_or_else(|| self.gguf.metadata().missing(&key, "u32").into())
    }

    /// Positions that an index chooses, with the state `state`; values are its queries `[T, heads, d]`, their weights `[T, heads]` and keys `[T, 1, d]`, which
    /// are of `run` positions as far as they came. Of `entries` it chooses those of so many positions themselves.
    pub fn index_top_k(
        &mut self,
        state: &str,
        [q, w, k]: [ValueId; 3],
        key_length: u64,
        (top_k, run, entries): (u64, u64, bool),
    ) -> Result<ValueId, ArchError> {
        let kv = self.index_keys(state, k, key_length, run)?;
        let chosen = self.graph.index_top_k(q, w, kv, self.step.pos, (top_k, entries));
        Ok(self.typed(chosen)?.0)
    }

    /// Positions that each head of an index chooses for itself, in blocks, with the state `state`; values are its queries `[T, heads, d]` and keys `[T, 1, d]`.
    pub fn index_blocks(
        &mut self,
        state: &str,
        [q, k]: [ValueId; 2],
        key_length: u64,
        numbers: [u64; 3],
    ) -> Result<ValueId, ArchError> {
        let kv = self.index_keys(state, k, key_length, 1)?;
        let chosen = self.graph.index_blocks(q, kv, self.step.pos, numbers);
        Ok(self.typed(chosen)?.0)
    }

    /// The token of a new state with keys of an index, `run` positions each.
    fn index_keys(&mut self, state: &str, k: ValueId, key_length: u64, run: u64) -> Result<ValueId, ArchError> {
        // A state of keys and values, of which nobody reads the latter.
        let state = self.graph.state(State { every: run, ..State::paged(state, 1, key_length, 1) });
        let state = self.typed(state)?;
        let none = self.slice(k, 0, 1)?;
        let kv = self.graph.state_begin(state);
        let kv = self.typed(kv)?;
        let kv = self.graph.kv_append(kv, k, none, self.step.pos);
        self.typed(kv)
    }

    /// Sizes of the recurrent states, which the file must have.
    pub fn ssm(&self) -> Result<Ssm, ArchError> {
        let key = format!("{}.ssm.state_size", self.architecture);
        self.hyper.ssm.ok_or_else(|| self.gguf.metadata().missing(&key, "u32").into())
    }

    /// Length of the row that steps of state spaces are made of, which the file must have.
    pub fn step_rank(&self) -> Result<u64, ArchError> {
        let key = format!("{}.ssm.time_step_rank", self.architecture);
        self.ssm()?.rank.ok_or_else(|| self.gguf.metadata().missing(&key, "u32").into())
    }

    /// Sizes of RWKV's layers, which the file must have.
    pub fn wkv_sizes(&self) -> Result<Wkv, ArchError> {
        let key = format!("{}.wkv.head_size", self.architecture);
        self.hyper.wkv.ok_or_else(|| self.gguf.metadata().missing(&key, "u32").into())
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
        self.dilated_conv(state, x, name, [channels, taps], 1)
    }

    /// The same with taps of every `dilation` tokens.
    pub fn dilated_conv(
        &mut self,
        state: &str,
        x: ValueId,
        name: &str,
        [channels, taps]: [u64; 2],
        dilation: u64,
    ) -> Result<ValueId, ArchError> {
        let w = self.weight(name, &[channels, taps])?;
        let operands = [Operand::Value(x), Operand::Weight(w)];
        let attrs = vec![Attr::Int(dilation.cast_signed())];
        self.recurrent(Recurrent::ShortConv, (state, &[(taps - 1) * dilation, channels]), &operands, attrs)
    }

    /// The rows of `length` elements of a part of the table `name` of so many rows, which the step's ids name together with those before them.
    pub fn ngram_rows(
        &mut self,
        (state, hash): (&str, &Hash),
        (name, rows, length): (&str, u64, u64),
    ) -> Result<ValueId, ArchError> {
        let state = self.graph.state(State::recurrent(state, &[1, BEFORE as u64], Rollback::Snapshot));
        let state = self.typed(state)?;
        let token = self.graph.state_begin(state);
        let token = self.typed(token)?;
        let ids = self.graph.ngram(token, self.step.ids, hash);
        let (ids, _) = self.typed(ids)?;
        let table = self.weight(name, &[rows, length])?;
        let x = self.graph.embed(ids, table);
        self.typed(x)
    }

    /// How the last tokens name rows of a table, where the file has one.
    pub fn ngrams(&self) -> Option<Ngrams> {
        self.hyper.ngrams.clone()
    }

    /// The sum of each head.
    pub fn heads_sum(&mut self, x: ValueId) -> Result<ValueId, ArchError> {
        let y = self.graph.heads_sum(x);
        self.typed(y)
    }

    /// Linear attention by the gated delta rule; values are queries, keys, values, alpha and beta, weights are `a` and `dt`; `eps` is added to the squares of
    /// lengths. Decays have the model's bound, where it has one.
    pub fn delta_net(
        &mut self,
        state: &str,
        values: [ValueId; 5],
        weights: [WeightId; 2],
        keys: KeyHeads,
        eps: f64,
    ) -> Result<ValueId, ArchError> {
        let Ssm { heads, key_length, value_length, decay_bound, rate, .. } = self.ssm()?;
        let operands: Vec<Operand> =
            values.map(Operand::Value).into_iter().chain(weights.map(Operand::Weight)).collect();
        let rate = if rate == 1.0 { 0.0 } else { rate };
        let numbers = [eps, decay_bound, rate].map(Attr::rounded);
        let attrs = [Attr::Word(keys.word().to_owned())].into_iter().chain(numbers).collect();
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

    /// Linear attention with decays of each token (RWKV): values are queries, keys, values and decays, then what is found and what is taken away, where something is;
    /// whether rows are of the state before them, and whether keys count times what decays take away.
    pub fn wkv(
        &mut self,
        state: &str,
        values: [ValueId; 4],
        deltas: Option<[ValueId; 2]>,
        [before, filled]: [bool; 2],
    ) -> Result<ValueId, ArchError> {
        let Wkv { heads, length, .. } = self.wkv_sizes()?;
        let deltas = match deltas {
            Some(deltas) => deltas.map(Operand::Value),
            None => [Operand::Absent; 2],
        };
        let operands: Vec<Operand> = values.map(Operand::Value).into_iter().chain(deltas).collect();
        let attrs = vec![Attr::Bool(before), Attr::Bool(filled)];
        self.recurrent(Recurrent::Wkv, (state, &[heads, length, length]), &operands, attrs)
    }

    /// Ids and weights of the experts of each row of router logits.
    ///
    /// `exp_probs_b.bias` is added for choosing alone, where the file has it. What an expert gives is a product with `ffn_down_exps`, and the factor
    /// `ffn_down_exps.scale` of it, where nothing is added, a factor of the expert's weight.
    pub fn route(&mut self, layer: usize, logits: ValueId, experts: &Experts) -> Result<(ValueId, ValueId), ArchError> {
        let down = |part: &str| format!("blk.{layer}.ffn_down_exps.{part}");
        // What is no expert with matrices has no factor.
        let apart = self.has(&down("bias")) || experts.identities > 0;
        let scales = if apart { None } else { self.optional_vector(&down("scale"), experts.count)? };
        self.routed_scales.extend(scales.map(|_| down("scale")));
        self.route_of(layer, logits, experts, scales)
    }

    /// As [`Builder::route`], with these factors of experts.
    pub fn route_of(
        &mut self,
        layer: usize,
        logits: ValueId,
        experts: &Experts,
        scales: Option<WeightId>,
    ) -> Result<(ValueId, ValueId), ArchError> {
        let Experts { used: top_k, score, groups, groups_kept, best_of_group, normalise, scale, .. } = *experts;
        let count = experts.routed();
        let bias = match self.optional_vector(&format!("blk.{layer}.exp_probs_b.bias"), count)? {
            // As Hy3's files have it.
            None => self.optional_vector(&format!("blk.{layer}.exp_probs_b"), count)?,
            bias => bias,
        };
        let alone = score == RouteScore::Softmax && bias.is_none();
        let group_best = u64::from(groups > 1 && best_of_group && alone);
        let attrs = RouteAttrs { top_k, score, groups, groups_kept, group_best, normalise, scale };
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

    /// As [`Builder::heads_linear`], of a matrix whose rows, those of one head behind the other's, may be in the file as one.
    pub fn rows_linear(&mut self, x: ValueId, stem: &str, [heads, to, from]: [u64; 3]) -> Result<ValueId, ArchError> {
        let name = format!("{stem}.weight");
        let tensor = self.gguf.require_tensor(&name)?;
        let shape = [heads, to, from];
        match tensor.dims().len() {
            0..=2 => self.check_shape(tensor, &[heads.saturating_mul(to), from])?,
            _ => self.check_shape(tensor, &shape)?,
        }
        let format = self.gguf.require_format(tensor)?;
        let place = Some(Place { file: tensor.file() as u32, offset: tensor.offset() });
        let weight = self.graph.weight(&name, format, &shape, place);
        let weight = self.typed(weight)?;
        self.used.insert(name);
        let y = self.graph.dequantise(weight).and_then(|w| self.graph.heads_matmul(x, w));
        let y = self.typed(y)?;
        self.scaled(y, stem)
    }

    /// The same with a part of `tensor`, whose heads have `before` rows before it, as a weight called `name`.
    pub fn heads_part(
        &mut self,
        x: ValueId,
        [name, tensor]: [&str; 2],
        [heads, to, from]: [u64; 3],
        before: u64,
    ) -> Result<ValueId, ArchError> {
        let weight = self.part(name, tensor, [heads, to, from], [before + to, before])?;
        let y = self.graph.dequantise(weight).and_then(|w| self.graph.heads_matmul(x, w));
        self.typed(y)
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

fn rope_attrs(rope: &Rope, style: RopeStyle) -> RopeAttrs {
    RopeAttrs {
        base: rope.base,
        dims: rope.dims,
        style,
        scaling: rope.scaling,
        factor: rope.factor,
        original_context: rope.original_context,
        beta_fast: rope.beta_fast,
        beta_slow: rope.beta_slow,
        attn_factor: rope.attn_factor,
    }
}

/// The layer of a tensor `blk.LAYER.NAME`.
pub fn layer_of(name: &str) -> Option<u64> {
    name.strip_prefix("blk.")?.split_once('.')?.0.parse().ok()
}

/// Tensors that change nothing: frequencies that old converters wrote out, which follow from keys, and scales of activations, for targets that
/// round those to the same format as weights.
fn is_harmless(name: &str) -> bool {
    name.ends_with(".attn_rot_embd") || name.ends_with(".rotary_emb.inv_freq") || name.ends_with(".input_scale")
}
