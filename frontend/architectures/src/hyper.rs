//! Hyperparameters of a model, from the keys of its file. Every value is checked before anything is
//! built from it.
//!
//! Keys that a decoder may list per layer (heads, feed-forward lengths, experts used) are read as a
//! scalar or as an array of exactly `block_count` elements. A key that changes the computation in a
//! way that no builder supports is refused, unless its value changes nothing.

mod adjugate;
mod alternating;
mod compressed;
mod defaults;
mod experts;
mod indexer;
mod keys;
mod mla;
mod ngrams;
mod recurrent;
mod rope;
mod shares;
mod stacks;
mod wkv;
mod xielu;

use ixc_ir::graph::attrs::{RopeScaling, RouteScore, TemperatureAttrs};
use ixc_model_files::gguf::{Gguf, GgufError, StringArray, Value};

pub use adjugate::Adjugate;
pub use alternating::Alternating;
pub(super) use compressed::CHOSEN_RATIO;
pub use compressed::{Compressed, EntryIndex};
pub use defaults::Precise;
pub(super) use defaults::{
    Defaults, GuessFrom, HeadSizes, Norms, Parts, Rotates, States, Temperature, Widths, Windows,
};
pub(super) use indexer::index_run;
pub use indexer::{BlockIndex, Indexer};
pub(super) use mla::latent_lengths;
pub use ngrams::Ngrams;
pub use recurrent::Ssm;
pub(super) use rope::TRUNCATED;
pub use stacks::Stacks;
pub use wkv::Wkv;
pub use xielu::Xielu;
pub(super) use xielu::xielu;

pub(super) use self::experts::SCORE;
use self::experts::{IDENTITIES, experts};
pub(super) use self::keys::Keys;
use self::recurrent::RATE;
use self::rope::{plain, rotated, sectioned, usual, yarn_magnitude};
use self::shares::share;

/// Maximum embedding, feed-forward and head sizes: an order of magnitude above any model's, and far
/// below overflow.
const MAX_WIDTH: u64 = 1 << 24;
/// Maximum number of heads, experts and layers.
const MAX_COUNT: u64 = 1 << 16;
/// Maximum number of layers over all rounds of a model that repeats its layers. The number of
/// tensors does not bound it. (llama.cpp has the same limit.)
const MAX_ROUNDED: u64 = 512;
/// Maximum number of residual streams, and of Sinkhorn iterations on the matrix that mixes them.
const MAX_STREAMS: u64 = 1 << 8;
const MAX_ITERATIONS: u64 = 1 << 10;
/// Maximum context: positions are i32.
pub(super) const MAX_CONTEXT: u64 = i32::MAX as u64;

/// Hook of an architecture that reads the number of layers, up to a maximum.
pub(super) type CountLayers = fn(&Keys<'_>, u64) -> Result<u64, GgufError>;

/// Hook of an architecture that reads RoPE.
pub(super) type ReadRope = fn(&Keys<'_>, RopeSizes) -> Result<Rope, GgufError>;

/// Hook of an architecture that reads the indexer of these layers, for contexts of this length.
pub(super) type ReadIndexer = fn(&Keys<'_>, &[Layer], u64) -> Result<Option<Indexer>, GgufError>;

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
    /// Whether norms subtract the mean first (layer norms), and have biases if the file has them.
    pub layer_norms: bool,
    /// Whether norms have weights.
    pub weighted_norms: bool,
    /// Whether the file has attention and network in parallel; true if it has no key.
    pub parallel: bool,
    /// Number of times the layers are repeated, each time with their own keys and values.
    pub rounds: u64,
    /// Whether the last norm is also applied between repetitions.
    pub normed_rounds: bool,
    /// Two stacks of layers and the numbers of their repetitions, for models with such stacks.
    pub stacks: Option<Stacks>,
    /// Whether norms of the stream follow blocks instead of preceding them, in architectures whose
    /// files may have either.
    pub normed_behind: bool,
    /// Rotary embedding.
    pub rope: Rope,
    /// Whether the model has RoPE: the files of some models disable it.
    pub roped: bool,
    /// RoPE of layers with a window, if the file states a window, even if no layer has one.
    pub local_rope: Option<Rope>,
    /// Whether positions have several dimensions, for images; in a text, all of them are equal.
    pub sectioned: bool,
    /// Factor on queries that depends on the position, for models with one.
    pub temperature: Option<TemperatureAttrs>,
    /// Factors on the outputs of layers.
    pub scales: Scales,
    /// Residual streams, for models with several.
    pub streams: Option<Streams>,
    /// Small experts that groups of experts share.
    pub adjugate: Option<Adjugate>,
    /// Alternating residual streams: each layer computes one of them (AltUp).
    pub alternating: Option<Alternating>,
    /// Layers between two saved streams that later layers attend to (attention residuals).
    pub kept_every: Option<u64>,
    /// Soft limits of gates and up.
    pub bends: Option<Bends>,
    /// Rows of a table that are selected by the last tokens together.
    pub ngrams: Option<Ngrams>,
    /// Compressed entries in addition to a window.
    pub compressed: Option<Compressed>,
    /// Ranks and sizes of latent attention.
    pub mla: Option<Mla>,
    /// Ranks and sizes of latent attention in layers with a window, if they differ.
    pub local_mla: Option<Mla>,
    /// Indexer that selects the positions for attention.
    pub indexer: Option<Indexer>,
    /// Indexer whose heads select blocks of positions, unless it always selects all.
    pub block_index: Option<BlockIndex>,
    /// Sizes of recurrent states.
    pub ssm: Option<Ssm>,
    /// Sizes of the recurrent states of RWKV.
    pub wkv: Option<Wkv>,
    /// Taps of the convolutions that some layers have instead of attention.
    pub conv_taps: Option<u64>,
    /// Additional input of each layer from the token.
    pub layer_inputs: Option<LayerInputs>,
    /// All decoder layers; for a draft graph ([`super::Nextn::Alone`]), followed by the draft
    /// layers.
    pub layers: Vec<Layer>,
    /// Number of layers after those that draft tokens ("nextn", multi-token prediction) and are not
    /// part of the model itself.
    pub draft_layers: u64,
}

/// Additional input of each layer from the token (per-layer embeddings).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LayerInputs {
    /// Elements of one layer's input.
    pub length: u64,
    /// Layers with such an input; a row of the table has all of them.
    pub layers: u64,
}

/// Factors on the residual stream and on logits; 1 everywhere for most models.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scales {
    /// On rows of the embedding table.
    pub embedding: f64,
    /// On the output of a block, before it is added to the stream.
    pub residual: f64,
    /// Divisor of logits.
    pub logit: f64,
    /// Soft limit of logits; 0 for none.
    pub softcap: f64,
    /// Soft limit of attention scores; 0 for none.
    pub attention_softcap: f64,
    /// Soft limit of router logits; 0 for none.
    pub router_softcap: f64,
    /// Maximum bias, which determines the ALiBi slopes; 0 without ALiBi.
    pub max_bias: f64,
    /// Whether the factor on attention scores also applies to these slopes.
    pub scaled_slopes: bool,
    /// Limit to which queries, keys and values are clamped; 0 for none.
    pub clamp: f64,
    /// On the output of attention.
    pub value: f64,
    /// On the normalised input of a block, for models that add the output to it.
    pub normed: f64,
}

impl Scales {
    /// Neutral values.
    pub const NONE: Scales = Scales {
        embedding: 1.0,
        residual: 1.0,
        logit: 1.0,
        softcap: 0.0,
        attention_softcap: 0.0,
        router_softcap: 0.0,
        max_bias: 0.0,
        scaled_slopes: false,
        clamp: 0.0,
        value: 1.0,
        normed: 1.0,
    };
    /// ALiBi of "Train Short, Test Long" (arXiv 2108.12409), for files without a key.
    pub(super) const ALIBI: Scales = Scales { max_bias: 8.0, ..Scales::NONE };
}

/// Several residual streams (hyper-connections).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Streams {
    /// Number of streams.
    pub count: u64,
    /// Length of the row from which weights of elements are made, if a block's input is weighted
    /// element by element.
    pub rank: Option<u64>,
    /// Sinkhorn iterations on the mixing matrix; 0 without such a matrix.
    pub iterations: u64,
    /// Epsilon on weights and on sums.
    pub eps: f64,
    /// Maximum weight of a block's output.
    pub magnitude: f64,
}

impl Streams {
    fn read(keys: &Keys<'_>) -> Result<Option<Streams>, GgufError> {
        let Some(count) = keys.optional("hyper_connection.count", 1, MAX_STREAMS)? else { return Ok(None) };
        let rank = keys.optional("hyper_connection.low_rank", 1, MAX_WIDTH)?;
        // Independent hyper-connections have no mixing matrix to balance. Other streams have a
        // magnitude of 2 and no key for it.
        const MAGNITUDE: &str = "hyper_connection.magnitude";
        let apart = keys.metadata.get(&keys.name(MAGNITUDE)).is_some();
        let magnitude = keys.float(MAGNITUDE, 2.0, |x| x > 0.0, "a positive number")?;
        let iterations = match rank {
            Some(_) => 0,
            None if apart => 0,
            None => keys.required("hyper_connection.sinkhorn_iterations", 1, MAX_ITERATIONS)?,
        };
        let eps = keys.float("hyper_connection.epsilon", 1e-6, |x| (0.0..=1.0).contains(&x), "from 0 to 1")?;
        Ok(Some(Streams { count, rank, iterations, eps, magnitude }))
    }
}

/// Key of the number of layers between two saved streams.
pub(super) const KEPT_EVERY: &str = "attn_res.block_size";

/// Soft limits of gates and up (SiTU, Kimi K3): `bend * tanh(x / bend)`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bends {
    /// Soft limit of gates.
    pub gate: f64,
    /// Soft limit of up; 0 for none.
    pub up: f64,
}

impl Bends {
    fn read(keys: &Keys<'_>) -> Result<Option<Bends>, GgufError> {
        const GATE: &str = "activation.situ_beta";
        if keys.metadata.get(&keys.name(GATE)).is_none() {
            return Ok(None);
        }
        // Caps have an inverse, like those of all models, because the formula divides by them.
        let cap = |x: f64| (1e-3..=1e6).contains(&x);
        Ok(Some(Bends {
            gate: keys.float(GATE, 0.0, cap, "from 0.001 to 1000000")?,
            up: keys.float(
                "activation.situ_linear_beta",
                0.0,
                |x| x == 0.0 || (1e-3..=1e6).contains(&x),
                "0, or from 0.001 to 1000000",
            )?,
        }))
    }
}

/// Latent attention (MLA): queries and keys are made from short rows. Only the row for keys and
/// values is cached.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Mla {
    /// Length of the row from which queries are made; `None` if they are made from the stream.
    pub query_rank: Option<u64>,
    /// Length of the row from which keys and values are made.
    pub rank: u64,
    /// Length of a query of one head, including its rotated part.
    pub key_length: u64,
    /// Length of a value of one head.
    pub value_length: u64,
    /// Epsilon of the norms of these rows, if it differs from that of other norms.
    pub norm_eps: Option<f64>,
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
    /// Whether the window is a chunk: a row attends to positions from the last multiple of `window`
    /// on.
    pub chunked: bool,
    /// Layer whose keys and values this layer uses, if it has none of its own.
    pub shares: Option<usize>,
    /// Width of the dense feed-forward network; 0 if the file has only that of experts.
    pub feed_forward: u64,
    /// Experts, where the layer has them.
    pub experts: Option<Experts>,
    /// Limits of gates and up.
    pub limits: Limits,
    /// Whether RoPE rotates queries and keys, if the model has RoPE. In latent attention without
    /// it, the whole key is made from the latent row.
    pub roped: bool,
    /// Parameters of xIELU between up and down, for networks with it.
    pub xielu: Option<Xielu>,
    /// Standard deviations above the mean that a gate of the dense network needs to count; `None`
    /// if all count.
    pub sparsity: Option<f64>,
}

/// Limits of gates and up in a layer's networks; 0 for none.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Limits {
    /// In routed experts.
    pub routed: f64,
    /// In shared experts, and in the dense network.
    pub shared: f64,
}

impl Limits {
    /// Reads the limits of each layer, for architectures with these keys.
    fn read(keys: &Keys<'_>, layers: usize) -> Result<Vec<Limits>, GgufError> {
        const ROUTED: &str = "swiglu_clamp_exp";
        if !keys.defaults.reads.contains(&ROUTED) {
            return Ok(vec![Limits::default(); layers]);
        }
        let (routed, shared) = (keys.limits(ROUTED, layers)?, keys.limits(SHARED_LIMIT, layers)?);
        let [routed, shared] = [routed, shared].map(|limits| limits.unwrap_or_else(|| vec![0.0; layers]));
        Ok(routed.into_iter().zip(shared).map(|(routed, shared)| Limits { routed, shared }).collect())
    }
}

/// The experts of a layer.
#[derive(Clone, Debug, PartialEq)]
pub struct Experts {
    /// Number of experts with matrices.
    pub count: u64,
    /// Number of identity experts after these: they have no matrices and return their input.
    pub identities: u64,
    /// Number of experts for each token.
    pub used: u64,
    /// Width of one expert.
    pub feed_forward: u64,
    /// Whether the weights of a token's experts are divided by their sum.
    pub normalise: bool,
    /// Factor on the weights.
    pub scale: f64,
    /// Function from router logits to weights.
    pub score: RouteScore,
    /// Width of the network for every token (the shared expert, or several merged into one); 0 for
    /// none.
    pub shared: u64,
    /// Width of the experts' input and output, if it differs from the stream's.
    pub latent: Option<u64>,
    /// Number of groups of equal size.
    pub groups: u64,
    /// Number of groups from which a token's experts are selected.
    pub groups_kept: u64,
    /// Whether a group is ranked by its best expert, for softmax scores; otherwise by the sum of
    /// its two best.
    pub best_of_group: bool,
}

impl Experts {
    /// Returns the number of experts in the router's logits.
    pub fn routed(&self) -> u64 {
        self.count.saturating_add(self.identities)
    }
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

impl Rope {
    /// Returns the same RoPE without scaling.
    pub(super) fn unscaled(&self) -> Rope {
        Rope { scaling: RopeScaling::None, factor: 1.0, attn_factor: 1.0, ..self.clone() }
    }
}

/// Reads whether attention is causal; most files have no key.
fn is_causal(keys: &Keys<'_>, hyper: &Hyper) -> Result<bool, GgufError> {
    let name = keys.name("attention.causal");
    let causal = keys.metadata.read_or(&name, keys.defaults.causal)?;
    if causal && !keys.defaults.causal {
        return Err(keys.metadata.bad_value(&name, true, "absent or false: the architecture is one of encoders"));
    }
    if !causal && hyper.only_before(&keys.defaults) {
        let limit = "absent or true: layers have states, windows or scores that are of what is before a token";
        return Err(keys.metadata.bad_value(&name, false, limit));
    }
    Ok(causal)
}

/// Key of the limits of shared experts.
const SHARED_LIMIT: &str = "swiglu_clamp_shexp";

/// Key of the layers with RoPE.
pub(super) const ROPED: &str = "attention.rope_pattern";

/// Key of the number of times the layers are repeated.
const ROUNDS: &str = "num_loops";

/// Key of the maximum bias of ALiBi.
pub(super) const MAX_BIAS: &str = "attention.max_alibi_bias";

/// Keys that change the computation, with the values that change nothing. An architecture that
/// supports a key lists it in `reads`.
const NEUTRAL: [(&str, &[f64]); 19] = [
    ("attention.clamp_kqv", &[0.0]),
    (MAX_BIAS, &[0.0]),
    ("attn_logit_softcapping", &[0.0]),
    ("final_logit_softcapping", &[0.0]),
    ("router_logit_softcapping", &[0.0]),
    (ROUNDS, &[0.0, 1.0]),
    ("embedding_scale", &[0.0, 1.0]),
    ("residual_scale", &[0.0, 1.0]),
    ("logit_scale", &[0.0, 1.0]),
    ("attention.temperature_scale", &[0.0]),
    ("attention.shared_kv_layers", &[0.0]),
    ("attention.value_scale", &[0.0, 1.0]),
    ("embedding_length_per_layer_input", &[0.0]),
    ("swiglu_clamp_exp", &[0.0]),
    ("swiglu_clamp_shexp", &[0.0]),
    ("rope.scaling.yarn_log_multiplier", &[0.0]),
    (KEPT_EVERY, &[0.0]),
    (IDENTITIES, &[0.0]),
    (RATE, &[1.0]),
];

impl Hyper {
    /// Reads and checks the keys of `gguf`, whose architecture is `architecture`. Draft layers are
    /// read only if `guessing` is set.
    ///
    /// # Errors
    /// When a key or tensor is missing or invalid.
    pub(super) fn read(
        gguf: &Gguf,
        architecture: &str,
        defaults: Defaults,
        guessing: bool,
    ) -> Result<Hyper, GgufError> {
        let keys = Keys { metadata: gguf.metadata(), architecture, defaults };
        if gguf.tensors().len() == 0 {
            // A file with only a vocabulary is valid, but has no model.
            let path = gguf.metadata().path().into();
            return Err(GgufError::TensorMissing { path, tensor: "token_embd.weight".into() });
        }
        // Every layer has tensors, so their number bounds that of layers, and thereby the size of
        // all lists by layer.
        let most = MAX_COUNT.min(gguf.tensors().len() as u64);
        let layers = (defaults.layers)(&keys, most)?;
        let context_length = keys.required("context_length", 1, MAX_CONTEXT)?;
        const WINDOW: &str = "attention.sliding_window";
        let window = match defaults.windows {
            Some(Windows { optional: true, length, .. }) => {
                keys.optional(WINDOW, 0, MAX_CONTEXT)?.or(length).unwrap_or(0)
            }
            Some(Windows { length: Some(length), .. }) => keys.optional(WINDOW, 1, MAX_CONTEXT)?.unwrap_or(length),
            Some(_) => keys.required(WINDOW, 1, MAX_CONTEXT)?,
            None => keys.optional(WINDOW, 0, u64::MAX)?.unwrap_or(0),
        };
        let windows = match defaults.windows {
            // Files of an architecture with windows may have none.
            Some(windows) => Some(windows).filter(|_| window > 0),
            // Files of an architecture without windows may have a window smaller than the context.
            None => Some(Windows::STATED).filter(|_| (1..context_length).contains(&window)),
        };
        let defaults = Defaults { windows, ..defaults };
        let keys = Keys { defaults, ..keys };
        let embedding_length = keys.required("embedding_length", 1, MAX_WIDTH)?;
        let vocabulary = vocabulary(gguf, &keys)?;
        // Files of Nemotron-H may have only the epsilon of their draft layers. Current files of
        // llama.cpp's converter have this key for Qwen 1.
        let [own, other] =
            ["attention.layer_norm_rms_epsilon", "attention.layer_norm_epsilon"].map(|key| keys.name(key));
        let [has_own, has_other] = [&own, &other].map(|key| keys.metadata.get(key).is_some());
        let layer_norms = match defaults.norms {
            Norms::Rms | Norms::Plain => false,
            Norms::Layer | Norms::Bare => true,
            Norms::ByKey => !has_own,
        };
        let takes_other = match layer_norms {
            true => has_other || !has_own,
            false => has_other && !has_own,
        };
        let eps_key = if takes_other { other } else { own };
        let norm_eps = keys.metadata.read::<f32>(&eps_key)?;
        if !(norm_eps > 0.0 && norm_eps <= 1.0) {
            return Err(keys.metadata.bad_value(&eps_key, norm_eps, "above 0 and at most 1"));
        }
        for (name, neutral) in NEUTRAL.into_iter().filter(|(name, _)| !defaults.reads.contains(name)) {
            keys.neutral(name, neutral)?;
        }
        let widths = Widths { layers, embedding: embedding_length };
        let roped = match defaults.rotates {
            Rotates::Always => true,
            Rotates::IfFinetuned => keys.metadata.read_or(&keys.name("rope.scaling.finetuned"), true)?,
            Rotates::IfUnbiased => Scales::read(&keys, &widths)?.max_bias == 0.0,
            Rotates::Never => false,
        };
        let draft_layers = draft_layers(gguf, &keys, layers)?;
        let windowed = match defaults.windows {
            Some(windows) => windowed(&keys, windows, [layers, draft_layers].map(|count| count as usize))?,
            None => vec![false; layers as usize],
        };
        let wkv = Wkv::read(&keys, embedding_length)?;
        let mut layers = read_layers(&keys, &windowed, embedding_length, wkv)?;
        if !guessing {
            layers.truncate(layers.len() - draft_layers as usize);
        }
        if defaults.dense_by_tensor {
            let has_router = |layer: usize| gguf.tensor(&format!("blk.{layer}.ffn_gate_inp.weight")).is_some();
            let dense = layers.iter_mut().enumerate().filter(|(layer, of)| of.feed_forward > 0 && !has_router(*layer));
            dense.for_each(|(_, of)| of.experts = None);
        }
        let ssm = Ssm::read(&keys)?;
        if ssm.is_some() && defaults.parts == Parts::All {
            let recurrent = recurrent::layers(gguf, &keys, layers.len())?;
            layers.iter_mut().zip(recurrent).for_each(|(layer, recurrent)| layer.recurrent = recurrent);
        }
        let mla = Mla::read(&keys)?;
        let local_mla = match (mla, defaults.windows) {
            (Some(mla), Some(_)) => mla.read_local(&keys)?,
            _ => None,
        };
        let key_length = |local: bool| {
            let mut own = layers.iter().zip(&windowed).filter(|(_, windowed)| **windowed == local);
            own.next().map(|(layer, _)| layer.key_length)
        };
        let [full, local] = [false, true].map(key_length);
        let mut rope = match roped {
            true => (defaults.rope)(&keys, RopeSizes { context_length, key_length: full.or(local).unwrap_or(0) })?,
            false => Rope::none(context_length),
        };
        match mla {
            Some(mla) => {
                mla.absorb(&keys, &mut layers, &rope);
                let scale = mla.attention_scale(&keys, &mut rope)?;
                for (sizes, local) in [(mla, false), (local_mla.unwrap_or(mla), true)] {
                    let mut own: Vec<&mut Layer> =
                        layers.iter_mut().zip(&windowed).filter(|(_, of)| **of == local).map(|(own, _)| own).collect();
                    sizes.check(&keys, &mut own, &rope)?;
                    let scale = scale * (mla.key_length as f64 / sizes.key_length as f64).sqrt();
                    own.iter_mut().for_each(|layer| layer.attention_scale = scale);
                }
            }
            None => yarn_magnitude(&keys, &mut rope)?,
        }
        let mut local_rope = None;
        if let Some(windows) = defaults.windows {
            for (layer, windowed) in layers.iter_mut().zip(&windowed) {
                layer.window = windowed.then_some(window);
                layer.chunked = *windowed && windows.chunked;
            }
            local_rope = Some(windows.rope(&keys, &rope, local.or(full).unwrap_or(0))?);
        }
        share(&keys, &mut layers)?;
        alternating::sparsity(&keys, &mut layers)?;
        let indexer = (defaults.indexer)(&keys, &layers, context_length)?;
        let block_index = BlockIndex::read(&keys, &layers, context_length)?;
        let ngrams = Ngrams::read(&keys, layers.len(), vocabulary)?;
        let layer_inputs = match keys.optional("embedding_length_per_layer_input", 0, MAX_WIDTH)? {
            _ if ngrams.is_some() => None,
            None | Some(0) => None,
            Some(length) => Some(LayerInputs { length, layers: layers.len() as u64 }),
        };
        let scales = Scales::read(&keys, &Widths { layers: layers.len() as u64, embedding: embedding_length })?;
        let architecture = architecture.to_owned();
        let mut hyper = Hyper {
            architecture,
            causal: defaults.causal,
            context_length,
            embedding_length,
            vocabulary,
            norm_eps: norm_eps.into(),
            layer_norms,
            weighted_norms: !matches!(defaults.norms, Norms::Bare | Norms::Plain),
            parallel: keys.metadata.read_or(&keys.name("use_parallel_residual"), true)?,
            rounds: match defaults.reads.contains(&ROUNDS) {
                true => keys.optional(ROUNDS, 0, (MAX_ROUNDED / layers.len() as u64).max(1))?.unwrap_or(1).max(1),
                false => 1,
            },
            normed_rounds: !keys.metadata.read_or(&keys.name("skip_loop_final_norm"), false)?,
            stacks: None,
            normed_behind: keys.metadata.read_or(&keys.name("swin_norm"), false)?,
            temperature: temperature(&keys, &rope)?,
            rope,
            roped,
            sectioned: sectioned(&keys),
            local_rope,
            scales,
            streams: Streams::read(&keys)?,
            adjugate: Adjugate::read(&keys)?,
            alternating: Alternating::read(&keys)?,
            kept_every: match defaults.reads.contains(&KEPT_EVERY) {
                true => keys.optional(KEPT_EVERY, 1, MAX_COUNT)?,
                false => None,
            },
            bends: Bends::read(&keys)?,
            ngrams,
            compressed: None,
            mla,
            local_mla,
            indexer,
            block_index,
            ssm,
            wkv,
            conv_taps: recurrent::conv_taps(&keys)?,
            layer_inputs,
            layers,
            draft_layers,
        };
        (defaults.adjust)(&keys, &mut hyper)?;
        hyper.causal = is_causal(&keys, &hyper)?;
        Ok(hyper)
    }

    /// Sets the epsilon of the norms of latent rows, unless the file states it.
    pub(super) fn default_latent_eps(&mut self, eps: f64) {
        for mla in [&mut self.mla, &mut self.local_mla].into_iter().flatten() {
            mla.norm_eps.get_or_insert(eps);
        }
    }

    /// Applies the limits of routed experts also to shared ones, unless the file states others.
    pub(super) fn limit_shared_experts(&mut self, keys: &Keys<'_>) {
        if !keys.has(SHARED_LIMIT) {
            self.layers.iter_mut().for_each(|layer| layer.limits.shared = layer.limits.routed);
        }
    }

    /// Returns whether the layers support only causal attention.
    fn only_before(&self, defaults: &Defaults) -> bool {
        // In encoders, half of a window precedes a row and half follows it.
        let symmetric = |window: u64| !defaults.causal && window > 1;
        let one_sided =
            |layer: &Layer| layer.recurrent || layer.chunked || layer.window.is_some_and(|window| !symmetric(window));
        self.layers.iter().any(one_sided)
            || self.scales.max_bias != 0.0
            || self.compressed.is_some()
            || self.indexer.is_some()
            || self.block_index.is_some()
            || self.ngrams.is_some()
    }
}

/// Returns the length of a head's query, for models in which all layers have the same heads.
///
/// # Errors
/// When the keys lack it, or a value is invalid.
pub(super) fn head_length(gguf: &Gguf, architecture: &str) -> Result<u64, GgufError> {
    let keys = Keys { metadata: gguf.metadata(), architecture, defaults: Defaults::USUAL };
    let stated = keys.optional("attention.key_length", 1, MAX_WIDTH)?;
    let width = keys.required("embedding_length", 1, MAX_WIDTH)?;
    let heads = keys.required("attention.head_count", 1, MAX_COUNT)?;
    Ok(stated.unwrap_or((width / heads).max(1)))
}

/// Sizes from which defaults of RoPE follow.
#[derive(Clone, Copy, Debug)]
pub(super) struct RopeSizes {
    /// Maximum number of positions of the model.
    pub context_length: u64,
    /// Length of a key of one head.
    pub key_length: u64,
}

impl Rope {
    /// Reads RoPE from its usual keys.
    pub(super) fn usual(keys: &Keys<'_>, sizes: RopeSizes) -> Result<Rope, GgufError> {
        usual(keys, sizes)
    }

    /// Reads RoPE that rotates `dims` elements and is not scaled, even if the file states a
    /// scaling.
    pub(super) fn plain(keys: &Keys<'_>, sizes: RopeSizes, dims: u64) -> Result<Rope, GgufError> {
        plain(keys, sizes, dims)
    }

    /// Reads the number of elements of a head that RoPE rotates.
    pub(super) fn rotated(keys: &Keys<'_>, sizes: RopeSizes) -> Result<u64, GgufError> {
        rotated(keys, sizes)
    }

    /// Returns the RoPE of layers that are not rotated.
    fn none(context_length: u64) -> Rope {
        Rope {
            base: 10_000.0,
            dims: 0,
            scaling: RopeScaling::None,
            factor: 1.0,
            original_context: context_length,
            beta_fast: 32.0,
            beta_slow: 1.0,
            attn_factor: 1.0,
            divided: false,
        }
    }
}

/// Reads an indexer from its usual keys.
fn usual_indexer(keys: &Keys<'_>, layers: &[Layer], context: u64) -> Result<Option<Indexer>, GgufError> {
    Indexer::read(keys, layers, context)
}

impl Windows {
    /// Returns the RoPE of layers with a window and keys of this length.
    fn rope(&self, keys: &Keys<'_>, rope: &Rope, key_length: u64) -> Result<Rope, GgufError> {
        const DIMS: &str = "rope.dimension_count_swa";
        let dims = keys.optional(DIMS, 1, key_length)?.unwrap_or(rope.dims);
        if !dims.is_multiple_of(2) || dims > key_length {
            let limit = format!("even and at most {key_length}, the length of a key in layers with a window");
            return Err(keys.metadata.bad_value(&keys.name(DIMS), dims, limit));
        }
        let base = self.base.unwrap_or(rope.base as f32);
        let base = keys.float("rope.freq_base_swa", base, |x| x > 0.0, "a positive number")?;
        let plain = Rope { scaling: RopeScaling::None, factor: 1.0, attn_factor: 1.0, ..rope.clone() };
        Ok(Rope { base, dims, divided: self.divided, ..if self.scaled { rope.clone() } else { plain } })
    }
}

/// Returns the number of trailing layers that only draft. Files may count draft layers that they
/// lack (early ones of DeepSeek-V4): an existing layer drafts only if it has the matrix of a draft
/// layer.
fn draft_layers(gguf: &Gguf, keys: &Keys<'_>, layers: u64) -> Result<u64, GgufError> {
    let stated = keys.optional("nextn_predict_layers", 0, layers - 1)?.unwrap_or(0);
    let first = format!("blk.{}.", layers - stated);
    let is_there = gguf.tensors().any(|tensor| tensor.name().starts_with(&first));
    let drafts = gguf.tensor(&format!("{first}nextn.eh_proj.weight")).is_some();
    Ok(if is_there && !drafts { 0 } else { stated })
}

/// Returns for each of `count` layers whether it has a window. Files may omit the last `drafts`
/// layers, which only draft.
fn windowed(keys: &Keys<'_>, windows: Windows, [count, drafts]: [usize; 2]) -> Result<Vec<bool>, GgufError> {
    const KEY: &str = "attention.sliding_window_pattern";
    if let Some(Value::Array(pattern)) = keys.metadata.get(&keys.name(KEY)) {
        let said = pattern.len().clamp(count - drafts, count);
        let pattern = keys.first_per_layer(KEY, said, 0, 1)?;
        let drafts = std::iter::repeat_n(false, count - said);
        return Ok(pattern.into_iter().map(|windowed| windowed == 1).chain(drafts).collect());
    }
    let period = match keys.optional(KEY, 1, MAX_COUNT)?.unwrap_or(windows.period) {
        0 => return Err(keys.metadata.missing(&keys.name(KEY), "array of bools")),
        period => period,
    };
    let full = if windows.first_is_full { 0 } else { period - 1 };
    Ok((0..count as u64).map(|layer| layer % period != full).collect())
}

/// Reads the factor on queries that depends on the position.
fn temperature(keys: &Keys<'_>, rope: &Rope) -> Result<Option<TemperatureAttrs>, GgufError> {
    const SCALE: &str = "attention.temperature_scale";
    const LENGTH: &str = "attention.temperature_length";
    let usual = match keys.defaults.temperature {
        Temperature::None => return Ok(None),
        Temperature::OfContext => TemperatureAttrs { scale: 0.0, length: rope.original_context, offset: 0 },
        Temperature::OfLength => TemperatureAttrs { scale: 0.0, length: 0, offset: 0 },
        Temperature::Or(usual) => usual,
    };
    let scale = keys.float(SCALE, usual.scale as f32, |x| x >= 0.0, "0 or a positive number")?;
    if scale == 0.0 {
        return Ok(None);
    }
    let length = match keys.defaults.temperature {
        Temperature::OfContext => usual.length,
        _ => keys.optional(LENGTH, 0, MAX_CONTEXT)?.unwrap_or(usual.length),
    };
    if length == 0 {
        return Err(keys.missing(LENGTH));
    }
    Ok(Some(TemperatureAttrs { scale, length, ..usual }))
}

impl Scales {
    fn read(keys: &Keys<'_>, widths: &Widths) -> Result<Scales, GgufError> {
        let usual = (keys.defaults.scales)(widths);
        let reads = |key: &str| keys.defaults.reads.contains(&key);
        let factor = |key: &str, usual: f64| -> Result<f64, GgufError> {
            if !reads(key) {
                return Ok(usual);
            }
            // Some converters write 0 for an absent key.
            let found = keys.float(key, 0.0, |x| x >= 0.0, "0 or a positive number")?;
            Ok(if found == 0.0 { usual } else { found })
        };
        let cap = |key: &str, usual: f64| match reads(key) {
            true => keys.float(key, usual as f32, |x| x >= 0.0, "0 or a positive number"),
            false => Ok(usual),
        };
        let multiplied = keys.defaults.logits_multiplied;
        let logit = factor("logit_scale", if multiplied { 1.0 / usual.logit } else { usual.logit })?;
        Ok(Scales {
            embedding: factor("embedding_scale", usual.embedding)?,
            residual: factor("residual_scale", usual.residual)?,
            normed: usual.normed,
            logit: if multiplied { 1.0 / logit } else { logit },
            softcap: cap("final_logit_softcapping", usual.softcap)?,
            attention_softcap: cap("attn_logit_softcapping", usual.attention_softcap)?,
            router_softcap: cap("router_logit_softcapping", usual.router_softcap)?,
            max_bias: cap(MAX_BIAS, usual.max_bias)?,
            scaled_slopes: usual.scaled_slopes,
            clamp: cap("attention.clamp_kqv", usual.clamp)?,
            value: factor("attention.value_scale", usual.value)?,
        })
    }
}

/// Returns the rows of the embedding table; all other sizes of the vocabulary must agree.
fn vocabulary(gguf: &Gguf, keys: &Keys<'_>) -> Result<u64, GgufError> {
    let table = gguf.require_tensor("token_embd.weight")?;
    let rows = table.dims().get(1).copied().unwrap_or(1);
    let agree = |key: &str, found: u64| match found == rows {
        true => Ok(()),
        false => Err(keys.metadata.bad_value(key, found, format!("{rows}, the rows of token_embd.weight"))),
    };
    if let Some(found) = keys.optional("vocab_size", 1, u64::MAX)? {
        agree(&keys.name("vocab_size"), found)?;
    }
    if let Some(tokens) = keys.metadata.read_optional::<&StringArray>("tokenizer.ggml.tokens")? {
        agree("tokenizer.ggml.tokens", tokens.len() as u64).map_err(|error| match error {
            GgufError::KeyValue { path, key, found, limit } => {
                GgufError::KeyValue { path, key, found: format!("{found} tokens").into(), limit }
            }
            other => other,
        })?;
    }
    if rows > i32::MAX as u64 {
        return Err(keys.metadata.bad_value("token_embd.weight", rows, "at most 2^31 - 1 rows"));
    }
    Ok(rows)
}

/// Reads all layers. `windowed` has an element for each: layers with a window may have heads of
/// other sizes.
fn read_layers(
    keys: &Keys<'_>,
    windowed: &[bool],
    embedding_length: u64,
    wkv: Option<Wkv>,
) -> Result<Vec<Layer>, GgufError> {
    let count = windowed.len();
    // Layers without attention may have no heads.
    let least = u64::from(keys.defaults.parts == Parts::All);
    let heads = match wkv {
        // Files have this key with the value 0.
        Some(wkv) => vec![wkv.heads; count],
        None => keys
            .per_layer("attention.head_count", count, least, MAX_COUNT)?
            .ok_or_else(|| keys.missing("attention.head_count"))?,
    };
    let kv_heads = keys.per_layer("attention.head_count_kv", count, least, MAX_COUNT)?.unwrap_or_else(|| heads.clone());
    let [key_length, value_length] =
        ["attention.key_length", "attention.value_length"].map(|key| keys.optional(key, 1, MAX_WIDTH));
    let full = [key_length?, value_length?];
    let mut local = full;
    if keys.defaults.windows.is_some() {
        let [key_length, value_length] =
            ["attention.key_length_swa", "attention.value_length_swa"].map(|key| keys.optional(key, 1, MAX_WIDTH));
        local = [key_length?.or(full[0]), value_length?.or(full[1])];
    }
    // Grok's files have another key.
    let [scale, other] = ["attention.scale", "attention.output_scale"]
        .map(|key| keys.float(key, 0.0, |x| x >= 0.0, "0 or a positive number"));
    let (scale, other) = (scale?, other?);
    let scale = if scale == 0.0 { other } else { scale };
    let experts = experts(keys, count)?;
    let least = u64::from(experts.is_none() && !keys.defaults.parts.lack_both());
    let feed_forward = keys.per_layer("feed_forward_length", count, least, MAX_WIDTH)?;
    if feed_forward.is_none() && experts.is_none() {
        return Err(keys.missing("feed_forward_length"));
    }
    // A truncated model may have fewer layers than this.
    let leading_dense = keys.optional("leading_dense_block_count", 0, MAX_COUNT)?.unwrap_or(0) as usize;
    let step = keys.optional("interleave_moe_layer_step", 1, MAX_COUNT)?.unwrap_or(1) as usize;
    let limits = Limits::read(keys, count)?;
    let roped: Vec<bool> = match keys.metadata.get(&keys.name(ROPED)) {
        None => vec![true; count],
        Some(_) => keys.first_per_layer(ROPED, count, 0, 1)?.into_iter().map(|roped| roped == 1).collect(),
    };
    let mut layers = Vec::with_capacity(count);
    for i in 0..count {
        let (heads, kv_heads) = (heads[i], kv_heads[i]);
        let [key_length, value_length] = if windowed[i] { local } else { full };
        if kv_heads > 0 && (heads == 0 || !heads.is_multiple_of(kv_heads)) {
            let limit = format!("a divisor of attention.head_count, {heads}");
            return Err(keys.metadata.bad_value(&keys.name("attention.head_count_kv"), kv_heads, limit));
        }
        let default_length = key_length.is_none() || value_length.is_none();
        if default_length && heads > 0 && !embedding_length.is_multiple_of(heads) {
            let limit = format!("a divisor of embedding_length, {embedding_length}, where key_length is not given");
            return Err(keys.metadata.bad_value(&keys.name("attention.head_count"), heads, limit));
        }
        let of_width = embedding_length.checked_div(heads).unwrap_or(0);
        let key_length = key_length.unwrap_or(of_width);
        let feed_forward = feed_forward.as_ref().map_or(0, |lengths| lengths[i]);
        layers.push(Layer {
            recurrent: match keys.defaults.parts {
                _ if wkv.is_some() => true,
                Parts::All | Parts::Fewer => false,
                Parts::Keyless => kv_heads == 0,
                Parts::One => kv_heads == 0 && feed_forward == 0,
            },
            heads,
            kv_heads,
            key_length,
            value_length: value_length.unwrap_or(of_width),
            attention_scale: match scale {
                0.0 => (keys.defaults.attention_scale)(HeadSizes {
                    layers: count,
                    embedding: embedding_length,
                    heads,
                    key_length,
                }),
                scale => scale,
            },
            window: None,
            chunked: false,
            shares: None,
            feed_forward,
            experts: match &experts {
                Some(_) if keys.defaults.parts == Parts::One && feed_forward == 0 => None,
                Some(experts) if i >= leading_dense && (i + 1).is_multiple_of(step) => {
                    Some(experts.layer(keys, i, feed_forward)?)
                }
                Some(_) | None => None,
            },
            limits: limits[i],
            roped: roped[i],
            xielu: None,
            sparsity: None,
        });
    }
    Ok(layers)
}
