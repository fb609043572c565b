//! Hyperparameters of a model, from the keys of its file. Each value is checked before the graph is
//! built.
//!
//! This file has the type. `read` reads the keys, and each other file reads the keys of one
//! concept. Keys that fewer than five architectures have are not here: files in `models` and
//! `layers` read them with `Builder::keys`.
//!
//! Some keys may differ between layers: heads, feed-forward lengths, experts used. They are read as
//! a scalar or as an array of exactly `block_count` elements. A key that changes the computation in
//! an unsupported way is refused, unless its value is neutral.

mod defaults;
mod experts;
mod gates;
mod indexer;
mod keys;
mod layers;
mod mla;
mod read;
mod recurrent;
mod rope;
mod scales;
mod shares;
mod vocabulary;
mod windows;

use ixc_ir::graph::attrs::RopeScaling;
use ixc_model_files::gguf::GgufError;

pub(super) use defaults::{Defaults, DraftInput, HeadSizes, LayerParts, RopeUse, Widths, Windows};
pub use defaults::{Norms, Precise};
pub use experts::Experts;
pub(super) use experts::SCORE;
pub use gates::Limits;
pub(super) use indexer::{HEADS as INDEXER_HEADS, Indexer, MAX_RUN, Runs};
pub(super) use keys::Keys;
pub(super) use layers::{ROPE_PATTERN, head_length};
pub use mla::Mla;
pub(super) use mla::{LatentLengths, latent_lengths};
pub(super) use read::{COUNT, RMS_EPS};
pub(super) use recurrent::{MAX_TAPS, Ssm, stated_layers};
pub(super) use rope::YARN_TRUNCATE;
pub(super) use scales::MAX_BIAS;

/// Maximum embedding, feed-forward and head sizes. It is an order of magnitude above any model's
/// sizes, and products of sizes stay far below overflow.
pub(super) const MAX_WIDTH: u64 = 1 << 24;
/// Maximum number of heads, experts and layers.
pub(super) const MAX_COUNT: u64 = 1 << 16;
/// Maximum number of layers over all rounds, in a model that repeats its layers. The number of
/// tensors does not bound this number. llama.cpp has the same limit.
pub(super) const MAX_ROUNDED: u64 = 512;
/// Maximum number of residual streams.
pub(super) const MAX_STREAMS: u64 = 1 << 8;
/// Maximum context: positions are i32.
pub(super) const MAX_CONTEXT: u64 = i32::MAX as u64;

/// Function of an architecture that reads RoPE.
pub(super) type ReadRope = fn(&Keys<'_>, RopeSizes) -> Result<Rope, GgufError>;

/// Hook of an architecture that changes hyperparameters after all keys were read in the usual way.
pub(super) type Adjust = fn(&Keys<'_>, &mut Hyper) -> Result<(), GgufError>;

/// Hyperparameters of a model.
#[derive(Clone, Debug, PartialEq)]
pub struct Hyper {
    /// Name of the architecture, from `general.architecture`.
    pub architecture: String,
    /// Maximum number of positions that the model supports.
    pub context_length: u64,
    /// Width of the residual stream.
    pub embedding_length: u64,
    /// Rows of the embedding table.
    pub vocabulary: u64,
    /// Epsilon that norms add to the mean square (layer norms: the variance).
    pub norm_eps: f64,
    /// Whether a token attends only to itself and earlier tokens, rather than to the whole text.
    pub causal: bool,
    /// Type of the stream's norms.
    pub norms: Norms,
    /// Rotary embedding.
    pub rope: Rope,
    /// Whether the model has RoPE. The files of some models disable it.
    pub has_rope: bool,
    /// RoPE of layers with an attention window, if the file states a window. It is present even if
    /// no layer has the window.
    pub local_rope: Option<Rope>,
    /// Factors on embeddings, on the outputs of layers and on logits. Also the soft limit of
    /// logits, and the maximum bias of ALiBi.
    pub scales: Scales,
    /// Ranks and sizes of latent attention (MLA), if the model has it.
    pub mla: Option<Mla>,
    /// All decoder layers. In a draft graph ([`super::Nextn::Alone`]), the draft layers follow
    /// them.
    pub layers: Vec<Layer>,
    /// Number of draft layers in the file ("nextn", multi-token prediction). They follow the
    /// model's own layers.
    pub draft_layers: u64,
}

/// Factors on the residual stream and on logits, the soft limit of logits, and the maximum bias of
/// ALiBi. In most models, all factors are 1, and there is neither a limit nor a bias.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scales {
    /// Factor on rows of the embedding table.
    pub embedding: f64,
    /// Factor on the output of attention or a network, before it is added to the stream.
    pub residual: f64,
    /// Divisor of logits.
    pub logit: f64,
    /// Soft limit of logits; 0 means no limit.
    pub softcap: f64,
    /// Maximum bias of ALiBi, which determines its slopes; 0 means no ALiBi.
    pub max_bias: f64,
}

impl Scales {
    /// Values that change nothing.
    pub const NONE: Scales = Scales { embedding: 1.0, residual: 1.0, logit: 1.0, softcap: 0.0, max_bias: 0.0 };
    /// Scales of models with ALiBi whose files lack the key of the maximum bias. The 8 is from
    /// "Train Short, Test Long" (arXiv 2108.12409).
    pub(super) const ALIBI: Scales = Scales { max_bias: 8.0, ..Scales::NONE };
}

/// Hyperparameters of one decoder layer.
#[derive(Clone, Debug, PartialEq)]
pub struct Layer {
    /// Whether the layer mixes tokens by a recurrent state instead of attention.
    pub recurrent: bool,
    /// Number of query heads.
    pub heads: u64,
    /// Number of key and value heads, a divisor of `heads`; 0 in a layer without attention.
    pub kv_heads: u64,
    /// Length of a query or key of one head.
    pub key_length: u64,
    /// Length of a value of one head.
    pub value_length: u64,
    /// Factor on attention scores.
    pub attention_scale: f64,
    /// Number of positions that a row attends to, including its own; `None` if it attends to all
    /// earlier positions.
    pub window: Option<u64>,
    /// Layer whose keys and values this layer uses, if this layer computes none.
    pub shares: Option<usize>,
    /// Width of the dense feed-forward network; 0 if the layer has only experts.
    pub feed_forward: u64,
    /// Sizes of the experts, if the layer has them.
    pub experts: Option<Experts>,
    /// Limits that gates and up products are clamped to.
    pub limits: Limits,
    /// Whether RoPE rotates queries and keys in this layer, if the model has RoPE. In latent
    /// attention without RoPE, the whole key is made from the latent row.
    pub has_rope: bool,
}

/// Parameters of rotary position embedding. The pairing of elements depends on the architecture and
/// is not here.
#[derive(Clone, Debug, PartialEq)]
pub struct Rope {
    /// Base of the frequencies.
    pub base: f64,
    /// Number of elements at the start of a head that are rotated; even. 0 means none.
    pub dims: u64,
    /// Method that extends the context for which the model was trained.
    pub scaling: RopeScaling,
    /// Ratio of the extended context to the original one; 1 without scaling.
    pub factor: f64,
    /// Context length before scaling.
    pub original_context: u64,
    /// YaRN: number of rotations over the context above which a frequency is unchanged.
    pub beta_fast: f64,
    /// YaRN: number of rotations over the context below which a frequency is fully interpolated.
    pub beta_slow: f64,
    /// Factor on the rotated elements, in addition to YaRN's factor.
    pub attn_factor: f64,
    /// Whether the frequencies are divided by `rope_freqs.weight`, or by
    /// `rope_factors_short.weight` and `rope_factors_long.weight`, if the file has them.
    pub divided: bool,
}

/// Sizes that determine the defaults of RoPE.
#[derive(Clone, Copy, Debug)]
pub(super) struct RopeSizes {
    /// Maximum number of positions that the model supports.
    pub context_length: u64,
    /// Length of a key of one head.
    pub key_length: u64,
}
