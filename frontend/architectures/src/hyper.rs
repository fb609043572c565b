//! Hyperparameters of a model, from the keys of its file. Every value is checked before anything is
//! built from it.
//!
//! This file has the type. `read` reads it, and the other files read the keys of one concept each.
//! Keys of fewer than five architectures are not here: files in `models` and `layers` read them,
//! with `Builder::keys`.
//!
//! Keys that a decoder may list per layer (heads, feed-forward lengths, experts used) are read as a
//! scalar or as an array of exactly `block_count` elements. A key that changes the computation in a
//! way that no builder supports is refused, unless its value changes nothing.

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

/// Maximum embedding, feed-forward and head sizes: an order of magnitude above any model's, and far
/// below overflow.
pub(super) const MAX_WIDTH: u64 = 1 << 24;
/// Maximum number of heads, experts and layers.
pub(super) const MAX_COUNT: u64 = 1 << 16;
/// Maximum number of layers over all rounds of a model that repeats its layers. The number of
/// tensors does not bound it. (llama.cpp has the same limit.)
pub(super) const MAX_ROUNDED: u64 = 512;
/// Maximum number of residual streams.
pub(super) const MAX_STREAMS: u64 = 1 << 8;
/// Maximum context: positions are i32.
pub(super) const MAX_CONTEXT: u64 = i32::MAX as u64;

/// Function of an architecture that reads RoPE.
pub(super) type ReadRope = fn(&Keys<'_>, RopeSizes) -> Result<Rope, GgufError>;

/// Hook of an architecture that changes hyperparameters after all keys have the usual meaning.
pub(super) type Adjust = fn(&Keys<'_>, &mut Hyper) -> Result<(), GgufError>;

/// Hyperparameters of a model.
#[derive(Clone, Debug, PartialEq)]
pub struct Hyper {
    /// `general.architecture`.
    pub architecture: String,
    /// Maximum number of positions of the model.
    pub context_length: u64,
    /// Width of the residual stream.
    pub embedding_length: u64,
    /// Rows of the embedding table.
    pub vocabulary: u64,
    /// Epsilon that norms add to the mean square.
    pub norm_eps: f64,
    /// Whether a token attends only to itself and earlier tokens, rather than to the whole text.
    pub causal: bool,
    /// Type of norms.
    pub norms: Norms,
    /// Rotary embedding.
    pub rope: Rope,
    /// Whether the model has RoPE: the files of some models disable it.
    pub has_rope: bool,
    /// RoPE of layers with a window, if the file states a window, even if no layer has one.
    pub local_rope: Option<Rope>,
    /// Factors on the outputs of layers.
    pub scales: Scales,
    /// Ranks and sizes of latent attention.
    pub mla: Option<Mla>,
    /// All decoder layers; for a draft graph ([`super::Nextn::Alone`]), followed by the draft
    /// layers.
    pub layers: Vec<Layer>,
    /// Number of layers after those that draft tokens ("nextn", multi-token prediction) and are not
    /// part of the model itself.
    pub draft_layers: u64,
}

/// Factors on the residual stream and on logits; 1 everywhere for most models.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scales {
    /// Factor on rows of the embedding table.
    pub embedding: f64,
    /// Factor on the output of a block, before it is added to the stream.
    pub residual: f64,
    /// Divisor of logits.
    pub logit: f64,
    /// Soft limit of logits; 0 for none.
    pub softcap: f64,
    /// Maximum bias, which determines the ALiBi slopes; 0 without ALiBi.
    pub max_bias: f64,
}

impl Scales {
    /// Neutral values.
    pub const NONE: Scales = Scales { embedding: 1.0, residual: 1.0, logit: 1.0, softcap: 0.0, max_bias: 0.0 };
    /// ALiBi of "Train Short, Test Long" (arXiv 2108.12409), for files without a key.
    pub(super) const ALIBI: Scales = Scales { max_bias: 8.0, ..Scales::NONE };
}

/// One decoder layer.
#[derive(Clone, Debug, PartialEq)]
pub struct Layer {
    /// Whether the layer mixes tokens by a recurrent state instead of attention.
    pub recurrent: bool,
    /// Query heads.
    pub heads: u64,
    /// Key and value heads; divides `heads`. 0 in a layer without attention.
    pub kv_heads: u64,
    /// Length of a query or key of one head.
    pub key_length: u64,
    /// Length of a value of one head.
    pub value_length: u64,
    /// Factor on attention scores.
    pub attention_scale: f64,
    /// Number of positions that a row attends to, including its own; `None` for all earlier ones.
    pub window: Option<u64>,
    /// Layer whose keys and values this layer uses, if this layer computes none.
    pub shares: Option<usize>,
    /// Width of the dense feed-forward network; 0 if the file has only experts.
    pub feed_forward: u64,
    /// Experts, where the layer has them.
    pub experts: Option<Experts>,
    /// Limits of gates and up.
    pub limits: Limits,
    /// Whether RoPE rotates queries and keys, if the model has RoPE. In latent attention without
    /// it, the whole key is made from the latent row.
    pub has_rope: bool,
}

/// Rotary position embedding, without the pairing, which depends on the architecture.
#[derive(Clone, Debug, PartialEq)]
pub struct Rope {
    /// Base of the frequencies.
    pub base: f64,
    /// Leading dimensions of a head that are rotated; even. 0 for none.
    pub dims: u64,
    /// Method to extend the trained context.
    pub scaling: RopeScaling,
    /// Factor of this method; 1 without scaling.
    pub factor: f64,
    /// Context before scaling.
    pub original_context: u64,
    /// YaRN: rotations above which a frequency is unchanged.
    pub beta_fast: f64,
    /// YaRN: rotations below which a frequency is interpolated.
    pub beta_slow: f64,
    /// Factor on the rotated values, in addition to that of YaRN.
    pub attn_factor: f64,
    /// Whether the frequencies are divided by `rope_freqs.weight`, or by
    /// `rope_factors_short.weight` and `rope_factors_long.weight`, if the file has them.
    pub divided: bool,
}

/// Sizes from which defaults of RoPE follow.
#[derive(Clone, Copy, Debug)]
pub(super) struct RopeSizes {
    /// Maximum number of positions of the model.
    pub context_length: u64,
    /// Length of a key of one head.
    pub key_length: u64,
}
