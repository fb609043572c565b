//! What the architecture files write graphs with: weights looked up by name and checked for shape, ops with their types.
//!
//! In: a checked file and its hyperparameters. Out: a module whose one function is `@step` (see [`ixc_ir::graph`]). A weight
//! that is asked for twice (tied output) is one weight. A tensor that is never asked for, nor known to be read by nobody, is refused at the end.

mod attention;
mod experts;
mod norms;
mod recurrent;

use std::collections::{HashMap, HashSet};
use std::ops::Range;

use ixc_ir::format::Format;
use ixc_ir::graph::attrs::{Activation, GateAttrs};
use ixc_ir::graph::builder::{GraphBuilder, StepParams};
use ixc_ir::graph::types::TypeError;
use ixc_ir::graph::{Attr, Dim, Module, Part, Place, State, Type, Unary, ValueId, WeightId};
use ixc_ir::ngram::{BEFORE, Hash};
use ixc_ir::state::Rollback;
use ixc_model_files::gguf::{Gguf, Tensor};

use super::error::ArchError;
use super::hyper::{Adjugate, Alternating, GuessFrom, Hyper, KEPT_EVERY, LayerInputs, Ngrams, Streams, Xielu};

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

    /// What `hidden_activation` says that gates go through, in files that say it.
    pub fn hidden_activation(&self, usual: Activation) -> Result<Activation, ArchError> {
        let (metadata, key) = (self.gguf.metadata(), format!("{}.hidden_activation", self.architecture));
        match metadata.read_optional::<&str>(&key)? {
            None => Ok(usual),
            Some("gelu") => Ok(Activation::GeluErf),
            Some("silu") => Ok(Activation::Silu),
            Some(other) => Err(metadata.bad_value(&key, other, "gelu or silu").into()),
        }
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

    /// Rows plus the first row of `token_types.weight`: that of texts of one part.
    pub fn first_token_type(&mut self, x: ValueId) -> Result<ValueId, ArchError> {
        const NAME: &str = "token_types.weight";
        let (tensor, width) = (self.gguf.require_tensor(NAME)?, self.hyper.embedding_length);
        if tensor.tensor_type().name != "F32" {
            let (path, found) = (self.path(), tensor.tensor_type());
            return Err(ArchError::VectorType { path, tensor: NAME.into(), found });
        }
        let types = tensor.dims().get(1).copied().unwrap_or(1);
        self.check_shape(tensor, &[types, width])?;
        let place = Some(Place { file: tensor.file() as u32, offset: tensor.offset() });
        let weight = self.graph.weight(NAME, Format::F32, &[width], place);
        let weight = self.typed(weight)?;
        self.used.insert(NAME.to_owned());
        let y = self.graph.add_bias(x, weight);
        self.typed(y)
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

    /// Builds the layers another time: those that follow have keys and values of their own.
    pub fn next_round(&mut self) {
        self.round += 1;
    }

    /// A tensor, where the file has it, that changes nothing of what is built.
    pub fn leave_out(&mut self, name: &str) {
        self.used.insert(name.to_owned());
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
