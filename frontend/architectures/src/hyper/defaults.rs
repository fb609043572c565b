//! Defaults of keys that a file lacks, by architecture.

use ixc_ir::graph::attrs::RouteScore;
use ixc_model_files::gguf::{Gguf, GgufError};

use super::{Adjust, Scales};

/// Matrices that quantisers leave precise in addition to those of all models. They are parts of
/// names, as in llama-quantize.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Precise {
    /// Matrices that are not quantised.
    pub kept: &'static [&'static str],
    /// Matrices with at least a byte for each number.
    pub in_bytes: &'static [&'static str],
}

/// Properties of an architecture that its files do not state, and defaults of keys that a file
/// lacks.
#[derive(Clone, Copy, Debug)]
pub struct Defaults {
    /// Matrices that quantisers leave precise.
    pub precise: Precise,
    /// Function from router logits to weights.
    pub score: RouteScore,
    /// Whether the weights of a token's experts are divided by their sum.
    pub normalise: bool,
    /// Whether layers have RoPE.
    pub rope_use: RopeUse,
    /// Keys of [`NEUTRAL`](super::read::NEUTRAL) that the architecture reads. With
    /// [`COUNT`](super::read::COUNT), a file may count a layer several times, and `adjust` removes
    /// the repetitions.
    pub reads: &'static [&'static str],
    /// Adds tensors that older files lack to a file of an architecture of this name.
    pub complete: fn(Gguf, &str) -> Result<Gguf, GgufError>,
    /// Whether layers without a router (`ffn_gate_inp`) are dense: files have no key for that.
    pub dense_by_tensor: bool,
    /// Whether a token attends only to itself and earlier tokens; encoders attend to the whole
    /// text.
    pub causal: bool,
    /// Type of norms.
    pub norms: Norms,
    /// Default factors on the stream and on logits.
    pub scales: fn(&Widths) -> Scales,
    /// Whether `logit_scale` multiplies logits; otherwise it divides them.
    pub logits_multiplied: bool,
    /// Layers with the window of `attention.sliding_window`. For architectures without such layers,
    /// `None`: a window then applies to the layers that the file lists, or to all.
    pub windows: Option<Windows>,
    /// Meaning of a zero in a key with one number per layer, such as 0 key heads.
    pub layer_parts: LayerParts,
    /// Factor on attention scores, in files that do not state it.
    pub attention_scale: fn(HeadSizes) -> f64,
    /// Input of draft layers from the last layer, if the graph can be built.
    pub draft_input: Option<DraftInput>,
    /// Changes hyperparameters after all keys were read. The file of an architecture writes here
    /// the rules that few others have.
    pub adjust: Adjust,
}

/// Input of a draft layer: the last layer's output for the first draft, its own for the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DraftInput {
    /// The residual stream.
    Stream,
    /// The stream after the last norm, which is the input of the output matrix.
    Norm,
}

/// Type of norms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Norms {
    /// Root mean square.
    Rms,
    /// Layer norms.
    Layer,
    /// Layer norms without weights.
    UnweightedLayer,
    /// Root mean square, without weights.
    UnweightedRms,
}

impl Norms {
    /// Returns whether norms subtract the mean first, and have biases if the file has them.
    pub fn are_layer_norms(self) -> bool {
        matches!(self, Norms::Layer | Norms::UnweightedLayer)
    }

    /// Returns whether norms have weights.
    pub fn have_weights(self) -> bool {
        matches!(self, Norms::Rms | Norms::Layer)
    }
}

/// Sizes of the model from which an architecture derives default factors.
#[derive(Clone, Copy, Debug)]
pub struct Widths {
    /// Number of layers.
    pub layers: u64,
    /// Width of the residual stream.
    pub embedding: u64,
}

/// Sizes from which the factor on attention scores follows.
#[derive(Clone, Copy, Debug)]
pub struct HeadSizes {
    /// Number of layers.
    pub layers: usize,
    /// Width of the residual stream.
    pub embedding: u64,
    /// Query heads of the layer.
    pub heads: u64,
    /// Length of a query or key of one head.
    pub key_length: u64,
}

impl HeadSizes {
    /// Returns the inverse root of the length of a key.
    pub fn by_key(self) -> f64 {
        1.0 / (self.key_length as f64).sqrt()
    }

    /// Returns the inverse root of the stream's width divided by the number of heads.
    pub fn by_width(self) -> f64 {
        1.0 / (self.embedding as f64 / self.heads as f64).sqrt()
    }
}

/// Meaning of a zero in a key with one number per layer, such as 0 key heads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LayerParts {
    /// Each layer has all parts, so a zero is an error.
    All,
    /// A layer without key heads (`attention.head_count_kv`) has a recurrent state instead of
    /// attention.
    Keyless,
    /// Each layer has only one block: a network if it has a width (`feed_forward_length`),
    /// otherwise attention if it has key heads, otherwise a recurrent state.
    One,
    /// Each layer has a recurrent state instead of attention. Keys of heads have no meaning.
    Recurrent,
    /// A layer without heads (`attention.head_count`) has no attention. A layer with heads but
    /// without key heads has a matrix instead. A layer without a width has no network.
    Fewer,
}

impl LayerParts {
    /// Returns whether layers may have neither heads nor a network.
    pub fn lack_both(self) -> bool {
        match self {
            LayerParts::All | LayerParts::Keyless | LayerParts::Recurrent => false,
            LayerParts::One | LayerParts::Fewer => true,
        }
    }
}

/// Condition for RoPE. Without RoPE, its keys are not read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RopeUse {
    /// Layers always have RoPE.
    Always,
    /// Layers have RoPE unless `rope.scaling.finetuned` is false.
    IfFinetuned,
    /// Layers have RoPE unless the model has ALiBi.
    WithoutAlibi,
    /// No layer has RoPE.
    Never,
}

/// Layers with a window.
#[derive(Clone, Copy, Debug)]
pub struct Windows {
    /// Period of layers without a window, the last of each period; 0 if files list them.
    pub period: u64,
    /// Whether the layer without a window is the first of each period, instead of the last.
    pub first_is_full: bool,
    /// Default number of positions that a row attends to; `None` if files must state it.
    pub length: Option<u64>,
    /// Whether a file without a window is valid: its key is 0, or is missing while `length` is
    /// `None`.
    pub optional: bool,
    /// Base of RoPE in layers with a window, if it differs.
    pub base: Option<f32>,
    /// Whether RoPE in layers with a window is scaled like that of others.
    pub scaled: bool,
}

impl Windows {
    /// Architectures with one kind of layers: if a file has a window (Mistral's first, Phi-3,
    /// StarCoder 2), all layers have it, or those that the file lists.
    pub const STATED: Windows = Windows::every(u64::MAX);

    /// Usual windows: the last layer of each period attends to all positions, and all layers have
    /// the same RoPE.
    pub const fn every(period: u64) -> Windows {
        Windows { period, first_is_full: false, length: None, optional: false, base: None, scaled: true }
    }
}

impl Defaults {
    /// Usual properties.
    pub const USUAL: Defaults = Defaults {
        precise: Precise { kept: &[], in_bytes: &[] },
        score: RouteScore::Softmax,
        rope_use: RopeUse::Always,
        normalise: true,
        reads: &[],
        complete: |gguf, _| Ok(gguf),
        dense_by_tensor: false,
        causal: true,
        norms: Norms::Rms,
        scales: |_| Scales::NONE,
        logits_multiplied: false,
        windows: None,
        layer_parts: LayerParts::All,
        attention_scale: HeadSizes::by_key,
        draft_input: None,
        adjust: |_, _| Ok(()),
    };
}
