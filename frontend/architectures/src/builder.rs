//! Builder of graphs, used by the files of architectures. It looks up weights by name, checks their
//! shapes, and adds ops, whose types it infers.
//!
//! The input is a checked file with its hyperparameters. The output is a module with one function,
//! `@step` (see [`ixc_ir::graph`]). A tensor that two ops use (an output matrix tied to the
//! embedding table) is one weight. At the end, the builder refuses a file with a tensor that is
//! neither used nor explicitly left out.

mod attention;
mod experts;
mod heads;
mod norms;
mod recurrent;
mod streams;
mod weights;

pub(crate) use attention::{BlockSelection, Compression, PositionIndex, RopePositions};
pub(crate) use experts::{GateUp, GroupScore, Route};
pub(crate) use recurrent::{DeltaNet, SsmScan, StateSizes, WkvDelta, WkvRows};
pub(crate) use streams::Streams;
pub(crate) use weights::Matrices;

use std::collections::{HashMap, HashSet};
use std::ops::Range;

use ixc_ir::format::Format;
use ixc_ir::graph::attrs::{Activation, GateAttrs, TemperatureAttrs};
use ixc_ir::graph::builder::{GraphBuilder, StepParams};
use ixc_ir::graph::types::TypeError;
use ixc_ir::graph::{Attr, Dim, Module, Place, State, Type, Unary, ValueId, WeightId};
use ixc_ir::ngram::{BEFORE, Hash};
use ixc_ir::state::Rollback;
use ixc_model_files::gguf::Gguf;

use super::error::ArchError;
use super::hyper::{Defaults, DraftInput, Hyper, Keys};

/// Whether the product with a matrix needs a bias in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Bias {
    /// The bias is used if the file has one.
    Optional,
    /// The bias must be in the file.
    Required,
}

/// Parameters of the activation xIELU, named as in the op.
#[derive(Clone, Copy, Debug)]
pub(super) struct Xielu {
    /// Factor on the exponential part, for elements below 0.
    pub alpha_n: f64,
    /// Factor on the square of elements above 0.
    pub alpha_p: f64,
    /// Factor on the linear part, which is the slope at 0.
    pub beta: f64,
    /// Upper bound of the argument of the exponential function, for elements below 0.
    pub eps: f64,
}

/// Name of an output matrix whose rows were scaled to length 1, for models that scale them at run
/// time.
pub(super) const UNIT_HEAD: &str = "output_unit";

/// Name ending of the gains of query heads. The file has a number for each head; the tensor repeats
/// it for each element of the head.
pub(super) const HEAD_GAIN: &str = "attn_q_gain";

/// Role of the graph in drafting by the model's own layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Drafting {
    /// No drafting.
    None,
    /// The graph also returns the hidden states that the draft layers take.
    Fed(DraftInput),
    /// The graph contains only the first draft layer.
    Alone(DraftInput),
}

/// A graph being built.
pub(super) struct Builder<'a> {
    gguf: &'a Gguf,
    pub hyper: &'a Hyper,
    architecture: &'static str,
    defaults: Defaults,
    /// Number of layers of the model, including layers that the graph leaves out.
    pub model_layers: usize,
    /// Whether the graph contains the output matrix.
    head: bool,
    drafting: Drafting,
    graph: GraphBuilder,
    step: StepParams,
    /// Hidden states that a draft layer takes as a parameter (`hidden`), and hidden states that the
    /// graph returns (`hidden_result`).
    hidden: Option<ValueId>,
    hidden_result: Option<ValueId>,
    used: HashSet<String>,
    /// Names of the tensors with factors on experts' outputs that are multiplied into the router's
    /// weights.
    routed_scales: HashSet<String>,
    /// State token of each layer's keys and values, after the last op that used them.
    caches: HashMap<usize, ValueId>,
    /// Index of the current repetition of the layers, in models that run their layers several
    /// times.
    round: usize,
    /// State token of each layer's compressed cache entries, after the last op that used them.
    entries: HashMap<usize, ValueId>,
}

impl<'a> Builder<'a> {
    /// Returns a builder of a function `step` that has its parameters, but no ops.
    pub fn new(
        gguf: &'a Gguf,
        hyper: &'a Hyper,
        architecture: &'static str,
        defaults: Defaults,
        model_layers: usize,
        head: bool,
        drafting: Drafting,
    ) -> Builder<'a> {
        let mut graph = GraphBuilder::new("step");
        let step = graph.step_params();
        let hidden = matches!(drafting, Drafting::Alone(_))
            .then(|| graph.param("hidden", Type::f32([Dim::symbol("T"), Dim::Fixed(hyper.embedding_length)])));
        Builder {
            gguf,
            hyper,
            architecture,
            defaults,
            model_layers,
            head,
            drafting,
            graph,
            step,
            hidden,
            hidden_result: None,
            used: HashSet::new(),
            routed_scales: HashSet::new(),
            caches: HashMap::new(),
            round: 0,
            entries: HashMap::new(),
        }
    }

    /// Ends the function with its results. If the graph has all layers (`whole`), refuses tensors
    /// that no op uses.
    pub fn finish(self, logits: ValueId, whole: bool) -> Result<Module, ArchError> {
        if whole {
            self.check_unused()?;
        }
        let results: Vec<ValueId> = [logits].into_iter().chain(self.hidden_result).collect();
        Ok(self.graph.finish(&results))
    }

    /// Returns the keys of the file, for architectures and layers that read keys of their own. They
    /// read these keys before they add ops.
    pub fn keys(&self) -> Keys<'a> {
        Keys { metadata: self.gguf.metadata(), architecture: self.architecture, defaults: self.defaults }
    }

    /// Returns the indices of the layers to build.
    pub fn layers(&self) -> Range<usize> {
        let count = self.hyper.layers.len();
        match self.drafting {
            Drafting::None | Drafting::Fed(_) => 0..count,
            Drafting::Alone(_) => {
                let first = count.saturating_sub(self.hyper.draft_layers as usize);
                first..count.min(first + 1)
            }
        }
    }

    fn check_unused(&self) -> Result<(), ArchError> {
        let layers = self.hyper.layers.len() as u64;
        let drafts = layers..layers + self.hyper.draft_layers;
        let own = self.layers();
        let is_left_out = |name: &str| match (layer_of(name), self.drafting) {
            (layer, Drafting::None | Drafting::Fed(_)) => layer.is_some_and(|layer| drafts.contains(&layer)),
            (layer, Drafting::Alone(_)) => layer.is_none_or(|layer| !own.contains(&(layer as usize))),
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

    /// Returns the value of an op, or its type error with the path of the model file.
    fn op_result<T>(&self, result: Result<T, TypeError>) -> Result<T, ArchError> {
        result.map_err(|source| ArchError::Graph { path: self.path(), source: Box::new(source) })
    }

    /// Returns the activation of gates that the key `hidden_activation` states, or `usual` without
    /// the key.
    pub fn hidden_activation(&self, usual: Activation) -> Result<Activation, ArchError> {
        let (metadata, key) = (self.gguf.metadata(), format!("{}.hidden_activation", self.architecture));
        match metadata.read_optional::<&str>(&key)? {
            None => Ok(usual),
            Some("gelu") => Ok(Activation::GeluErf),
            Some("silu") => Ok(Activation::Silu),
            Some(other) => Err(metadata.bad_value(&key, other, "gelu or silu").into()),
        }
    }

    /// Looks up the rows of `token_embd.weight` for the step's token ids. A draft layer
    /// concatenates them with the hidden states that it takes. It then multiplies the result by the
    /// matrix `eh_proj` (DeepSeek-V3's report, arXiv 2412.19437, section 2.2).
    pub fn embed(&mut self) -> Result<ValueId, ArchError> {
        let own = self.draft_tensor("nextn.embed_tokens.weight").filter(|own| self.has(own));
        let x = self.rows_of(own.as_deref().unwrap_or("token_embd.weight"), self.hyper.embedding_length)?;
        // The graph's residual stream is the model's stream divided by `residual`. Outputs of
        // attention and of networks then need no factor `residual`, and the norms before them
        // cancel the division.
        let x = self.scale(x, self.hyper.scales.embedding / self.hyper.scales.residual)?;
        let names = ["nextn.enorm.weight", "nextn.hnorm.weight", "nextn.eh_proj"].map(|part| self.draft_tensor(part));
        let (Some(hidden), [Some(enorm), Some(hnorm), Some(matrix)]) = (self.hidden, names) else { return Ok(x) };
        let (x, hidden) = (self.norm(x, &enorm)?, self.norm(hidden, &hnorm)?);
        let both = self.concat(x, hidden)?;
        let width = self.hyper.embedding_length;
        self.linear(both, &matrix, 2 * width, width, Bias::Optional)
    }

    /// Returns the full name of a draft layer's tensor `part`, if the graph is that draft layer.
    fn draft_tensor(&self, part: &str) -> Option<String> {
        let layer = self.layers().start;
        matches!(self.drafting, Drafting::Alone(_)).then(|| format!("blk.{layer}.{part}"))
    }

    /// Looks up rows of `len` elements in the table `name` for the step's token ids.
    pub fn rows_of(&mut self, name: &str, len: u64) -> Result<ValueId, ArchError> {
        let table = self.weight(name, &[self.hyper.vocabulary, len])?;
        let x = self.graph.embed(self.step.ids, table);
        self.op_result(x)
    }

    /// Looks up rows in the table `name` for the step's positions. The table has a row for each
    /// position of the context.
    pub fn position_rows(&mut self, name: &str) -> Result<ValueId, ArchError> {
        const BLOCK: u64 = ixc_ir::plan::ATTENTION_BLOCK as u64;
        let rows = self.hyper.context_length;
        if !rows.is_multiple_of(BLOCK) {
            let limit = format!(
                "a multiple of {BLOCK}, because {name} has a row for each position, and positions come in blocks"
            );
            return Err(self.key_error("context_length", rows, &limit));
        }
        let table = self.weight(name, &[rows, self.hyper.embedding_length])?;
        let x = self.graph.embed(self.step.pos, table);
        self.op_result(x)
    }

    /// Adds the first row of `token_types.weight` to each row: the token type of a text's first
    /// segment.
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
        let weight = self.op_result(weight)?;
        self.used.insert(NAME.to_owned());
        let y = self.graph.add_bias(x, weight);
        self.op_result(y)
    }

    /// Multiplies `x` by a factor.
    pub fn scale(&mut self, x: ValueId, factor: f64) -> Result<ValueId, ArchError> {
        if factor == 1.0 {
            return Ok(x);
        }
        let y = self.graph.unary(Unary::Scale, x, vec![Attr::rounded(factor)]);
        self.op_result(y)
    }

    /// Multiplies rows by a function of their positions. A scale of 0 leaves the rows unchanged.
    pub fn temperature(&mut self, x: ValueId, of: &TemperatureAttrs) -> Result<ValueId, ArchError> {
        if of.scale == 0.0 {
            return Ok(x);
        }
        let y = self.graph.temperature(x, self.step.pos, of);
        self.op_result(y)
    }

    /// Multiplies heads by a function of their positions, with two parameters for each head:
    /// `NAME.bias + NAME.weight * ln(1 + position)`.
    pub fn heads_temperature(&mut self, x: ValueId, name: &str, heads: u64) -> Result<ValueId, ArchError> {
        let scales = self.vector(&format!("{name}.weight"), heads)?;
        let biases = self.vector(&format!("{name}.bias"), heads)?;
        let y = self.graph.heads_temperature(x, self.step.pos, scales, biases);
        self.op_result(y)
    }

    /// Builds `output_norm` and the output matrix (tied to the embedding table if the file has
    /// none) on the requested rows.
    pub fn logits(&mut self, x: ValueId) -> Result<ValueId, ArchError> {
        self.logits_after(x, "output_norm.weight")
    }

    /// Does what [`Builder::logits`] does, but with the norm `norm` instead of `output_norm`.
    pub fn logits_after(&mut self, x: ValueId, norm: &str) -> Result<ValueId, ArchError> {
        // In some files, the norm before the logits of draft layers has the name
        // `layer_output_norm`.
        let own = ["nextn.shared_head_norm.weight", "layer_output_norm.weight"].map(|part| self.draft_tensor(part));
        let own = own.into_iter().flatten().find(|own| self.has(own));
        let norm = own.as_deref().unwrap_or(norm);
        match self.drafting {
            Drafting::None => {}
            Drafting::Fed(DraftInput::Stream) | Drafting::Alone(DraftInput::Stream) => self.hidden_result = Some(x),
            // The hidden result has its own norm, so the logits are computed as without drafting.
            Drafting::Fed(DraftInput::Norm) => self.hidden_result = Some(self.norm(x, norm)?),
            Drafting::Alone(DraftInput::Norm) => {
                let x = self.norm(x, norm)?;
                self.hidden_result = Some(x);
                let x = self.requested_rows(x)?;
                return self.output(x);
            }
        }
        let x = self.requested_rows(x)?;
        self.head(x, norm)
    }

    /// Selects the rows whose logits are requested.
    pub fn requested_rows(&mut self, x: ValueId) -> Result<ValueId, ArchError> {
        let x = self.graph.take_rows(x, self.step.rows);
        self.op_result(x)
    }

    /// Builds logits: the norm `norm`, then the output matrix.
    pub fn head(&mut self, x: ValueId, norm: &str) -> Result<ValueId, ArchError> {
        let x = self.norm(x, norm)?;
        self.output(x)
    }

    /// Builds logits of normalised rows. If the graph ends before the output matrix, returns the
    /// rows unchanged.
    pub fn output(&mut self, x: ValueId) -> Result<ValueId, ArchError> {
        let Hyper { vocabulary, embedding_length, scales, .. } = *self.hyper;
        if !self.head {
            let matrix = [vocabulary, embedding_length];
            for (part, shape) in [("weight", &matrix[..]), ("scale", &[1]), ("bias", &[vocabulary])] {
                self.accept_unused(&format!("output.{part}"), shape)?;
            }
            self.accept_unused(&format!("{UNIT_HEAD}.weight"), &matrix)?;
            return Ok(x);
        }
        let own = self.draft_tensor("nextn.shared_head_head").filter(|own| self.has(&format!("{own}.weight")));
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

    /// Builds `cap * tanh(x / cap)`, elementwise: a soft limit.
    pub fn softcap(&mut self, x: ValueId, cap: f64) -> Result<ValueId, ArchError> {
        let y = self.graph.unary(Unary::Softcap, x, vec![Attr::rounded(cap)]);
        self.op_result(y)
    }

    /// Builds `max(x - from, 0)`, elementwise.
    pub fn relu(&mut self, x: ValueId, from: f64) -> Result<ValueId, ArchError> {
        let y = self.graph.unary(Unary::Relu, x, vec![Attr::rounded(from)]);
        self.op_result(y)
    }

    /// Clamps elements to the range from `-limit` to `limit`. A limit of 0 means no limit.
    pub fn clamp(&mut self, x: ValueId, limit: f64) -> Result<ValueId, ArchError> {
        if limit == 0.0 {
            return Ok(x);
        }
        let y = self.graph.unary(Unary::Clamp, x, vec![Attr::rounded(limit)]);
        self.op_result(y)
    }

    /// Adds the vector `name` to each row, if the file has it.
    pub fn optional_bias(&mut self, x: ValueId, name: &str, len: u64) -> Result<ValueId, ArchError> {
        if self.has(name) { self.bias(x, name, len) } else { Ok(x) }
    }

    /// Adds the vector `name` to each row.
    pub fn bias(&mut self, x: ValueId, name: &str, len: u64) -> Result<ValueId, ArchError> {
        let bias = self.vector(name, len)?;
        let y = self.graph.add_bias(x, bias);
        self.op_result(y)
    }

    /// Builds `x` times the transpose of a matrix.
    pub fn matmul(&mut self, x: ValueId, weight: WeightId) -> Result<ValueId, ArchError> {
        let y = self.graph.dequantise(weight).and_then(|w| self.graph.matmul(x, w));
        self.op_result(y)
    }

    /// Multiplies `y`, a product with `NAME.weight`, by the number `NAME.scale`, if the file has
    /// it. Block formats whose own scales have a small range need this factor.
    fn scale_product(&mut self, y: ValueId, name: &str) -> Result<ValueId, ArchError> {
        let factor = self.optional_scalar(&format!("{name}.scale"))?;
        self.scale(y, factor.unwrap_or(1.0))
    }

    /// Builds `x` times the transpose of `NAME.weight` (`to` rows of `from`), times `NAME.scale`,
    /// plus `NAME.bias`.
    pub fn linear(&mut self, x: ValueId, name: &str, from: u64, to: u64, bias: Bias) -> Result<ValueId, ArchError> {
        let weight = self.weight(&format!("{name}.weight"), &[to, from])?;
        let y = self.matmul(x, weight)?;
        let y = self.scale_product(y, name)?;
        let bias_name = format!("{name}.bias");
        let bias = match bias {
            Bias::Required => Some(self.vector(&bias_name, to)?),
            Bias::Optional => self.optional_vector(&bias_name, to)?,
        };
        let Some(bias) = bias else { return Ok(y) };
        let y = self.graph.add_bias(y, bias);
        self.op_result(y)
    }

    /// Builds an elementwise sum.
    pub fn add(&mut self, a: ValueId, b: ValueId) -> Result<ValueId, ArchError> {
        let y = self.graph.add(a, b);
        self.op_result(y)
    }

    /// Builds an elementwise product.
    pub fn mul(&mut self, a: ValueId, b: ValueId) -> Result<ValueId, ArchError> {
        let y = self.graph.mul(a, b);
        self.op_result(y)
    }

    /// Applies a function without attributes to each element.
    pub fn unary(&mut self, function: Unary, x: ValueId) -> Result<ValueId, ArchError> {
        let y = self.graph.unary(function, x, Vec::new());
        self.op_result(y)
    }

    /// Applies the activation between the up and down matrices of a network without a gate.
    pub fn activation(&mut self, function: Unary, x: ValueId) -> Result<ValueId, ArchError> {
        if function == Unary::Relu { self.relu(x, 0.0) } else { self.unary(function, x) }
    }

    /// Applies xIELU to each element.
    pub fn xielu(&mut self, x: ValueId, of: &Xielu) -> Result<ValueId, ArchError> {
        let attrs = [of.alpha_n, of.alpha_p, of.beta, of.eps].map(Attr::rounded).to_vec();
        let y = self.graph.unary(Unary::Xielu, x, attrs);
        self.op_result(y)
    }

    /// Builds `x / (1 + exp(-x))`, elementwise.
    pub fn silu(&mut self, x: ValueId) -> Result<ValueId, ArchError> {
        let y = self.graph.silu(x);
        self.op_result(y)
    }

    /// Applies the logistic function to each element.
    pub fn sigmoid(&mut self, x: ValueId) -> Result<ValueId, ArchError> {
        let y = self.graph.sigmoid(x);
        self.op_result(y)
    }

    /// Multiplies each head (an equal part of a row of `x`) by its element of `s`.
    pub fn scale_heads(&mut self, x: ValueId, s: ValueId) -> Result<ValueId, ArchError> {
        let y = self.graph.scale_heads(x, s);
        self.op_result(y)
    }

    /// Builds a gated linear unit: the activation of `gate`, times `up`.
    pub fn gated(&mut self, gate: ValueId, up: ValueId, attrs: &GateAttrs) -> Result<ValueId, ArchError> {
        let y = self.graph.gated(gate, up, attrs);
        self.op_result(y)
    }

    /// Reshapes `[T, heads * d]` to `[T, heads, d]`.
    pub fn split_heads(&mut self, x: ValueId, heads: u64) -> Result<ValueId, ArchError> {
        let y = self.graph.split_heads(x, heads);
        self.op_result(y)
    }

    /// Reshapes `[T, heads, d]` to `[T, heads * d]`.
    pub fn merge_heads(&mut self, x: ValueId) -> Result<ValueId, ArchError> {
        let y = self.graph.merge_heads(x);
        self.op_result(y)
    }

    /// Takes elements `from` to `from + count` of each row, or of each head.
    pub fn slice(&mut self, x: ValueId, from: u64, count: u64) -> Result<ValueId, ArchError> {
        let y = self.graph.slice(x, from, count);
        self.op_result(y)
    }

    /// Concatenates each row of `a` with the same row of `b`.
    pub fn concat(&mut self, a: ValueId, b: ValueId) -> Result<ValueId, ArchError> {
        let y = self.graph.concat(a, b);
        self.op_result(y)
    }

    /// Begins another repetition of the layers. Layers built after this call have their own KV
    /// caches.
    pub fn next_round(&mut self) {
        self.round += 1;
    }

    /// Accepts the tensor `name`, which does not affect the graph. The file may lack it.
    pub fn leave_out(&mut self, name: &str) {
        self.used.insert(name.to_owned());
    }

    /// Returns the error for a key whose value no graph supports.
    pub fn key_error(&self, key: &str, found: u64, limit: &str) -> ArchError {
        let key = format!("{}.{key}", self.architecture);
        self.gguf.metadata().bad_value(&key, found, limit).into()
    }

    /// Builds rows of `length` elements from a table with `rows` rows. A hash of each id and the
    /// preceding ids selects the row.
    pub fn ngram_rows(
        &mut self,
        state: &str,
        hash: &Hash,
        table: &str,
        rows: u64,
        length: u64,
    ) -> Result<ValueId, ArchError> {
        let state = self.graph.state(State::recurrent(state, &[1, BEFORE as u64], Rollback::Snapshot));
        let state = self.op_result(state)?;
        let token = self.graph.state_begin(state);
        let token = self.op_result(token)?;
        let ids = self.graph.ngram(token, self.step.ids, hash);
        let (ids, _) = self.op_result(ids)?;
        let table = self.weight(table, &[rows, length])?;
        let x = self.graph.embed(ids, table);
        self.op_result(x)
    }
}

/// Returns the layer index in a tensor name `blk.LAYER.NAME`.
pub fn layer_of(name: &str) -> Option<u64> {
    name.strip_prefix("blk.")?.split_once('.')?.0.parse().ok()
}

/// Returns whether a tensor does not affect the result. Old converters wrote RoPE frequencies,
/// which keys determine, too. Scales for quantised activations (`input_scale`) are not used.
fn is_harmless(name: &str) -> bool {
    name.ends_with(".attn_rot_embd") || name.ends_with(".rotary_emb.inv_freq") || name.ends_with(".input_scale")
}
