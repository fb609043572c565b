//! Defaults, by architecture, for keys that a file lacks.

use ixc_ir::graph::attrs::RouteScore;
use ixc_model_files::gguf::{Gguf, GgufError};

use super::{Adjust, Scales};

/// Matrices of an architecture that quantisers keep in a precise format, in addition to those of
/// all models. Each string is part of a tensor's name, as in llama-quantize.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Precise {
    /// Matrices that are not quantised.
    pub kept: &'static [&'static str],
    /// Matrices that are quantised to formats with at least one byte for each number.
    pub in_bytes: &'static [&'static str],
}

/// Properties of an architecture that its files do not state, and defaults of keys that a file
/// lacks.
#[derive(Clone, Copy, Debug)]
pub struct Defaults {
    /// Matrices that quantisers keep in a precise format.
    pub precise: Precise,
    /// Function that turns router logits into weights.
    pub score: RouteScore,
    /// Whether the weights of a token's experts are divided by their sum.
    pub normalise: bool,
    /// Condition under which layers have RoPE.
    pub rope_use: RopeUse,
    /// Keys of [`NEUTRAL`](super::read::NEUTRAL) that the architecture supports. It lists
    /// [`COUNT`](super::read::COUNT) if its files may count a layer several times; `adjust` then
    /// removes the repetitions.
    pub reads: &'static [&'static str],
    /// Function that adds tensors that older files lack. The string is the architecture's name.
    pub complete: fn(Gguf, &str) -> Result<Gguf, GgufError>,
    /// Whether layers without a router (`ffn_gate_inp`) are dense. Such files have no key for this.
    pub dense_by_tensor: bool,
    /// Whether a token attends only to itself and earlier tokens; encoders attend to the whole
    /// text.
    pub causal: bool,
    /// Type of the stream's norms.
    pub norms: Norms,
    /// Default factors on the stream and on logits, from the sizes of the model.
    pub scales: fn(&Widths) -> Scales,
    /// Whether logits are multiplied by `logit_scale`. Otherwise they are divided by it.
    pub logits_multiplied: bool,
    /// Layers that have the window of `attention.sliding_window`. `None` for architectures that
    /// usually have no window: a stated window then applies to the layers that the file lists, or
    /// to all layers.
    pub windows: Option<Windows>,
    /// Meaning of a zero in a key with one number per layer, such as 0 key heads.
    pub layer_parts: LayerParts,
    /// Factor on attention scores, for files that do not state it.
    pub attention_scale: fn(HeadSizes) -> f64,
    /// Input of the draft layers. `None` if no graph of them can be built.
    pub draft_input: Option<DraftInput>,
    /// Function that changes hyperparameters after all keys were read. Architectures use it for
    /// rules that few others have.
    pub adjust: Adjust,
}

/// Input of a draft layer. The first draft takes it from the model's last layer, later drafts from
/// the draft layer itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DraftInput {
    /// The residual stream.
    Stream,
    /// The residual stream after the last norm, which is the input of the output matrix.
    Norm,
}

/// Type of the stream's norms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Norms {
    /// RMS norms.
    Rms,
    /// Layer norms.
    Layer,
    /// Layer norms without weights.
    UnweightedLayer,
    /// RMS norms without weights.
    UnweightedRms,
}

impl Norms {
    /// Returns whether norms subtract the mean first. Those with weights also have biases, if the
    /// file has them.
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

/// Sizes that determine the factor on attention scores.
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
    /// Returns `1 / sqrt(key_length)`.
    pub fn by_key(self) -> f64 {
        1.0 / (self.key_length as f64).sqrt()
    }

    /// Returns `1 / sqrt(embedding / heads)`.
    pub fn by_width(self) -> f64 {
        1.0 / (self.embedding as f64 / self.heads as f64).sqrt()
    }
}

/// Meaning of a zero in a key with one number per layer, such as 0 key heads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LayerParts {
    /// Each layer has attention and a network, so a zero is an error.
    All,
    /// A layer without key heads (`attention.head_count_kv`) has a recurrent state instead of
    /// attention.
    Keyless,
    /// Each layer has only one block. It is a network if it has a width (`feed_forward_length`),
    /// otherwise attention if it has key heads, otherwise a recurrent state.
    One,
    /// Each layer has a recurrent state instead of attention. The keys for heads have no meaning.
    Recurrent,
    /// Layers may lack parts. Without heads (`attention.head_count`), a layer has no attention.
    /// With heads but no key heads, it has a matrix instead of attention. Without a width, it has
    /// no network.
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

/// Condition under which layers have RoPE. Without RoPE, its keys are not read.
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

/// Properties of layers with an attention window.
#[derive(Clone, Copy, Debug)]
pub struct Windows {
    /// Period of layers without a window: the last layer of each period has none. 0 if files list
    /// the layers.
    pub period: u64,
    /// Whether the first layer of each period has no window, instead of the last.
    pub first_is_full: bool,
    /// Default number of positions that a row attends to; `None` if files must state it.
    pub length: Option<u64>,
    /// Whether a file may state no window: its key is 0, or is missing while `length` is `None`.
    pub optional: bool,
    /// Base of RoPE in layers with a window, if it differs from that of other layers.
    pub base: Option<f32>,
    /// Whether RoPE in layers with a window is scaled like RoPE in other layers.
    pub scaled: bool,
}

impl Windows {
    /// Architectures that usually have no window. If a file has one (Mistral's first model, Phi-3,
    /// StarCoder 2), all layers have it, or the layers that the file lists.
    pub const STATED: Windows = Windows::every(u64::MAX);

    /// Returns the usual windows: the last layer of each period attends to all positions, and all
    /// layers have the same RoPE.
    pub const fn every(period: u64) -> Windows {
        Windows { period, first_is_full: false, length: None, optional: false, base: None, scaled: true }
    }
}

impl Defaults {
    /// Defaults of most architectures.
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
