//! Hyperparameters: what a file's keys say about its model, every value checked before anything is built from it.
//!
//! Keys that a decoder may give per layer (heads, feed-forward lengths, experts used) are read as a scalar or as an array
//! of exactly `block_count` elements. Keys that would change what is computed in a way that no builder here does are refused
//! unless they hold the value that changes nothing.

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
pub(super) use defaults::{Defaults, GuessFrom, Norms, Parts, Rotates, ScoreOf, States, Temperature, Widths, Windows};
pub(super) use indexer::index_run;
pub use indexer::{BlockIndex, Indexer};
pub(super) use mla::latent_lengths;
pub use ngrams::Ngrams;
pub use recurrent::Ssm;
pub use stacks::Stacks;
pub use wkv::Wkv;
pub use xielu::Xielu;

use self::experts::{IDENTITIES, experts};
use self::keys::Keys;
use self::recurrent::RATE;
use self::rope::{rope, sectioned, yarn_magnitude};
use self::shares::share;

/// Largest embedding, feed-forward and head sizes: an order of magnitude above any model's, far below what could wrap.
const MAX_WIDTH: u64 = 1 << 24;
/// Most heads, experts and layers.
const MAX_COUNT: u64 = 1 << 16;
/// Most layers that follow each other where each does so several times: no tensors speak for them. (As many as llama.cpp has.)
const MAX_ROUNDED: u64 = 512;
/// Most streams of a residual, and most iterations of what balances the matrix that mixes them.
const MAX_STREAMS: u64 = 1 << 8;
const MAX_ITERATIONS: u64 = 1 << 10;
/// Longest context: positions are i32.
const MAX_CONTEXT: u64 = i32::MAX as u64;

/// What a model's keys say.
#[derive(Clone, Debug, PartialEq)]
pub struct Hyper {
    /// `general.architecture`.
    pub architecture: String,
    /// Positions that the model was made for.
    pub context_length: u64,
    /// Width of the residual stream.
    pub embedding_length: u64,
    /// Rows of the embedding table.
    pub vocabulary: u64,
    /// Added to the mean square in norms.
    pub norm_eps: f64,
    /// Whether a token sees those before it alone, and not all of its text.
    pub causal: bool,
    /// Whether norms take the mean away first (layer norms), and have biases where files have them.
    pub layer_norms: bool,
    /// Whether norms have weights.
    pub weighted_norms: bool,
    /// Whether the file says that attention and the network stand beside each other; where it says nothing, they do.
    pub parallel: bool,
    /// How often the layers follow each other, each time with keys and values of their own.
    pub rounds: u64,
    /// Whether the last norm stands between these, too.
    pub normed_rounds: bool,
    /// Two stacks that the layers are, and how often these follow each other, where they are such.
    pub stacks: Option<Stacks>,
    /// Whether norms of the stream stand behind blocks and not before them, in architectures whose files say which.
    pub normed_behind: bool,
    /// Rotary embedding.
    pub rope: Rope,
    /// Whether layers have it at all: the files of some models switch it off.
    pub roped: bool,
    /// The same of layers with a window, where the file states one that layers may have, though none might have it.
    pub local_rope: Option<Rope>,
    /// Whether positions are of several dimensions, for images: of text all are one number.
    pub sectioned: bool,
    /// What queries of far positions are multiplied by, where layers do that.
    pub temperature: Option<TemperatureAttrs>,
    /// Factors on what layers pass on.
    pub scales: Scales,
    /// Streams that the residual is, where it is more than one.
    pub streams: Option<Streams>,
    /// Small experts that groups of experts share, where they do.
    pub adjugate: Option<Adjugate>,
    /// Streams of which a layer computes with one, where the residual is such.
    pub alternating: Option<Alternating>,
    /// Layers between two streams that rows keep to attend to (attention residuals), where they do.
    pub kept_every: Option<u64>,
    /// What gates and up are bent to stay within, where they are.
    pub bends: Option<Bends>,
    /// Rows of a table that the last tokens name together, where a layer takes them.
    pub ngrams: Option<Ngrams>,
    /// Compressed entries beside windows, where layers have them.
    pub compressed: Option<Compressed>,
    /// Ranks and sizes of latent attention, where layers have it.
    pub mla: Option<Mla>,
    /// The same of layers with a window, where theirs are others.
    pub local_mla: Option<Mla>,
    /// What chooses the positions of attention, where something does.
    pub indexer: Option<Indexer>,
    /// An index whose heads choose blocks, where it leaves any out.
    pub block_index: Option<BlockIndex>,
    /// Sizes of recurrent states, where layers have them.
    pub ssm: Option<Ssm>,
    /// Sizes of the recurrent states of RWKV, where layers have these.
    pub wkv: Option<Wkv>,
    /// Taps of the convolutions that layers have in place of attention, where they have them.
    pub conv_taps: Option<u64>,
    /// Length of what each layer takes of a token beside the stream, where layers do.
    pub layer_inputs: Option<LayerInputs>,
    /// One for each decoder layer; where what guesses is built ([`super::Nextn::Alone`]), with those that guess at the end.
    pub layers: Vec<Layer>,
    /// Layers behind those, which guess the tokens after the next one ("nextn", multi-token prediction) and which the model itself does not
    /// have.
    pub draft_layers: u64,
}

/// What each layer takes of a token beside the stream (per-layer embeddings).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LayerInputs {
    /// Elements of a layer's.
    pub length: u64,
    /// Layers that have one, side by side in a row of the table.
    pub layers: u64,
}

/// Factors on the residual stream and on logits; 1 everywhere for most models.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scales {
    /// On rows of the embedding table.
    pub embedding: f64,
    /// On what a block adds to the stream.
    pub residual: f64,
    /// What logits are divided by.
    pub logit: f64,
    /// What logits are bent to stay within; 0 where they are not.
    pub softcap: f64,
    /// The same of scores of attention.
    pub attention_softcap: f64,
    /// The same of logits of routers.
    pub router_softcap: f64,
    /// What slopes follow from, by which scores of attention fall with distance (ALiBi); 0 where they do not.
    pub max_bias: f64,
    /// Whether these slopes have the factor on products of queries and keys, too.
    pub scaled_slopes: bool,
    /// What queries, keys and values are cut off to stay within; 0 where they are not.
    pub clamp: f64,
    /// On what attention gives.
    pub value: f64,
    /// On the normalised input of a block, where that is what it adds to.
    pub normed: f64,
}

impl Scales {
    /// Nothing is scaled.
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
    /// Scores fall with distance as in "Train Short, Test Long" (arXiv 2108.12409), where files have no key for it.
    pub(super) const ALIBI: Scales = Scales { max_bias: 8.0, ..Scales::NONE };
}

/// Streams that the residual is, where it is more than one (hyper-connections).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Streams {
    /// How many.
    pub count: u64,
    /// Length of the row that weights of their elements are made of, where a block's input is weighted element by element.
    pub rank: Option<u64>,
    /// How often the columns of the matrix that mixes them are divided by their sums; 0 where there is none.
    pub iterations: u64,
    /// What is added to weights and to sums.
    pub eps: f64,
    /// What weights of a block's output do not exceed.
    pub magnitude: f64,
}

impl Streams {
    fn read(keys: &Keys<'_>) -> Result<Option<Streams>, GgufError> {
        let Some(count) = keys.optional("hyper_connection.count", 1, MAX_STREAMS)? else { return Ok(None) };
        let rank = keys.optional("hyper_connection.low_rank", 1, MAX_WIDTH)?;
        // Streams that stay apart (independent hyper-connections) have no matrix that is balanced; others have a magnitude of 2, and no key for it.
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

/// Of a file that says so: after how many layers rows keep a stream.
pub(super) const KEPT_EVERY: &str = "attn_res.block_size";

/// What gates and up are bent to stay within (SiTU, Kimi K3): `bend * tanh(x / bend)`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bends {
    /// Of gates.
    pub gate: f64,
    /// Of up; 0 where it is not bent.
    pub up: f64,
}

impl Bends {
    fn read(keys: &Keys<'_>) -> Result<Option<Bends>, GgufError> {
        const GATE: &str = "activation.situ_beta";
        if keys.metadata.get(&keys.name(GATE)).is_none() {
            return Ok(None);
        }
        // A cap is divided by: it has an inverse, as have those of all models.
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

/// Latent attention (MLA): queries and keys are made of short rows, of which the keys' alone are kept.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Mla {
    /// Length of the row that queries are made of, where they are not made of the stream itself.
    pub query_rank: Option<u64>,
    /// Length of the row that keys and values are made of.
    pub rank: u64,
    /// Length of a query of one head, its rotated part included.
    pub key_length: u64,
    /// Length of a value of one head.
    pub value_length: u64,
    /// What norms of these rows add to mean squares, where it is not what others add.
    pub norm_eps: Option<f64>,
}

/// One decoder layer.
#[derive(Clone, Debug, PartialEq)]
pub struct Layer {
    /// Whether it mixes tokens by a recurrent state and not by attention.
    pub recurrent: bool,
    /// Query heads.
    pub heads: u64,
    /// Key and value heads; divides `heads`. 0 where there is no attention.
    pub kv_heads: u64,
    /// Length of a query or key of one head.
    pub key_length: u64,
    /// Length of a value of one head.
    pub value_length: u64,
    /// Factor on attention scores.
    pub attention_scale: f64,
    /// How many positions a row sees, its own included, where not all before it.
    pub window: Option<u64>,
    /// Whether that is a chunk: it sees the positions from the last multiple of `window` on.
    pub chunked: bool,
    /// The layer whose keys and values it reads, where it has none of its own.
    pub shares: Option<usize>,
    /// Width of the dense feed-forward network; 0 where only experts are given.
    pub feed_forward: u64,
    /// Experts, where the layer has them.
    pub experts: Option<Experts>,
    /// What gates and up do not exceed.
    pub limits: Limits,
    /// Whether queries and keys are rotated, where the model's are. With latent attention, all of a key is made of the latent row where they are not.
    pub roped: bool,
    /// The numbers of what stands between up and down, where that is xIELU.
    pub xielu: Option<Xielu>,
    /// How many deviations above their mean gates of the dense network must be, where not all count.
    pub sparsity: Option<f64>,
}

/// What gates and up of a layer's networks do not exceed; 0 where there is no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Limits {
    /// In routed experts.
    pub routed: f64,
    /// In shared experts, and in the dense network.
    pub shared: f64,
}

impl Limits {
    /// One for each layer, of an architecture whose files have such keys.
    fn read(keys: &Keys<'_>, layers: usize) -> Result<Vec<Limits>, GgufError> {
        const ROUTED: &str = "swiglu_clamp_exp";
        const SHARED: &str = "swiglu_clamp_shexp";
        if !keys.defaults.reads.contains(&ROUTED) {
            return Ok(vec![Limits::default(); layers]);
        }
        let (routed, mut shared) = (keys.limits(ROUTED, layers)?, keys.limits(SHARED, layers)?);
        if keys.defaults.one_limit {
            shared = shared.or_else(|| routed.clone());
        }
        let [routed, shared] = [routed, shared].map(|limits| limits.unwrap_or_else(|| vec![0.0; layers]));
        Ok(routed.into_iter().zip(shared).map(|(routed, shared)| Limits { routed, shared }).collect())
    }
}

/// The experts of a layer.
#[derive(Clone, Debug, PartialEq)]
pub struct Experts {
    /// How many there are.
    pub count: u64,
    /// How many there are behind these, without matrices, which give back what they take.
    pub identities: u64,
    /// How many each token is routed to.
    pub used: u64,
    /// Width of one expert.
    pub feed_forward: u64,
    /// Whether the weights of the used ones are divided by their sum.
    pub normalise: bool,
    /// Factor on the weights.
    pub scale: f64,
    /// How logits become weights.
    pub score: RouteScore,
    /// Width of what every token goes through beside its experts (the shared expert, or several side by side); 0 where there is none.
    pub shared: u64,
    /// Width of the row that experts take and give, where it is not the stream's.
    pub latent: Option<u64>,
    /// Equal groups that the experts are in.
    pub groups: u64,
    /// Groups that a token's experts are chosen of.
    pub groups_kept: u64,
    /// Whether a group counts for its best expert, where scores are a softmax; for the sum of its two best otherwise.
    pub best_of_group: bool,
}

impl Experts {
    /// How many a router chooses from.
    pub fn routed(&self) -> u64 {
        self.count.saturating_add(self.identities)
    }
}

/// Rotary position embedding, without the pairing, which is the architecture's.
#[derive(Clone, Debug, PartialEq)]
pub struct Rope {
    /// Base of the frequencies.
    pub base: f64,
    /// Leading dimensions of a head that are rotated; even. 0 where none are.
    pub dims: u64,
    /// How positions beyond the trained context are reached.
    pub scaling: RopeScaling,
    /// By which factor; 1 without scaling.
    pub factor: f64,
    /// The context before scaling.
    pub original_context: u64,
    /// YaRN: rotations above which a frequency is left alone.
    pub beta_fast: f64,
    /// YaRN: rotations below which a frequency is interpolated.
    pub beta_slow: f64,
    /// Factor on the rotated values, beside the one that YaRN implies.
    pub attn_factor: f64,
    /// Whether the frequencies are divided by `rope_freqs.weight`, or by `rope_factors_short.weight` and `rope_factors_long.weight`, where the file
    /// has them.
    pub divided: bool,
}

impl Rope {
    /// The same without a scaling.
    pub(super) fn unscaled(&self) -> Rope {
        Rope { scaling: RopeScaling::None, factor: 1.0, attn_factor: 1.0, ..self.clone() }
    }
}

/// Whether a file says that its attention is causal, as most do that say nothing; `only_before` is whether its layers can see nothing else.
fn is_causal(keys: &Keys<'_>, only_before: bool) -> Result<bool, GgufError> {
    let name = keys.name("attention.causal");
    let causal = keys.metadata.read_or(&name, keys.defaults.causal)?;
    if causal && !keys.defaults.causal {
        return Err(keys.metadata.bad_value(&name, true, "absent or false: the architecture is one of encoders"));
    }
    if !causal && only_before {
        let limit = "absent or true: layers have states, windows or scores that are of what is before a token";
        return Err(keys.metadata.bad_value(&name, false, limit));
    }
    Ok(causal)
}

/// Of a file that says so: how often its layers follow each other.
const ROUNDS: &str = "num_loops";

/// Of a file whose scores of attention fall with distance: what slopes follow from.
pub(super) const MAX_BIAS: &str = "attention.max_alibi_bias";

/// Keys that change the computation, with the values that change nothing. A builder that learns one takes it out.
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
    /// Reads and checks the keys of `gguf`, whose architecture is `architecture`. Layers that guess come behind the model's, or are left out.
    ///
    /// # Errors
    /// The key or tensor that is missing or cannot be meant.
    pub(super) fn read(
        gguf: &Gguf,
        architecture: &str,
        defaults: Defaults,
        guessing: bool,
    ) -> Result<Hyper, GgufError> {
        let keys = Keys { metadata: gguf.metadata(), architecture, defaults };
        if gguf.tensors().len() == 0 {
            // A file with nothing but a vocabulary, which is sound, but no model.
            let path = gguf.metadata().path().into();
            return Err(GgufError::TensorMissing { path, tensor: "token_embd.weight".into() });
        }
        // Every layer has tensors, so a layer count beyond their number is a lie, and what is made per layer is bounded.
        let most = MAX_COUNT.min(gguf.tensors().len() as u64);
        let stacks = if defaults.stacked { Some(Stacks::read(&keys, most)?) } else { None };
        let layers = match stacks {
            Some(stacks) => 2 * stacks.layers,
            None => keys.required("block_count", 1, most)?,
        };
        let mut context_length = keys.required("context_length", 1, MAX_CONTEXT)?;
        const WINDOW: &str = "attention.sliding_window";
        let window = match defaults.windows {
            Some(Windows { optional: true, length, .. }) => {
                keys.optional(WINDOW, 0, MAX_CONTEXT)?.or(length).unwrap_or(0)
            }
            Some(Windows { length: Some(length), .. }) => keys.optional(WINDOW, 1, MAX_CONTEXT)?.unwrap_or(length),
            Some(_) => keys.required(WINDOW, 1, MAX_CONTEXT)?,
            None if defaults.unwindowed => 0,
            None => keys.optional(WINDOW, 0, u64::MAX)?.unwrap_or(0),
        };
        let windows = match defaults.windows {
            // Files of an architecture with windows may have none.
            Some(windows) => Some(windows).filter(|_| window > 0),
            // And those of one without may have one that means something.
            None => Some(Windows::STATED).filter(|_| (1..context_length).contains(&window)),
        };
        let defaults = Defaults { windows, ..defaults };
        let keys = Keys { defaults, ..keys };
        if let Some(key) = defaults.context_of {
            let most = keys.optional(key, 0, MAX_CONTEXT)?.filter(|&most| most > 0).unwrap_or(context_length);
            if most < context_length {
                tracing::warn!(
                    most,
                    context_length,
                    "what changes behind {key} is not computed: the context is cut to it"
                );
                context_length = most;
            }
        }
        let embedding_length = keys.required("embedding_length", 1, MAX_WIDTH)?;
        let vocabulary = vocabulary(gguf, &keys)?;
        let known = |of: &ScoreOf| of.layers.contains(&layers) && of.vocabulary == vocabulary;
        let score = defaults.score_of.filter(known).map_or(defaults.score, |of| of.score);
        let defaults = Defaults { score, ..defaults };
        let keys = Keys { defaults, ..keys };
        // Those of Nemotron-H may have the one of their drafts alone, and llama.cpp's converter of today calls Qwen 1's so.
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
            true => rope(&keys, context_length, full.or(local).unwrap_or(0))?,
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
        if defaults.half_rotated {
            if !rope.dims.is_multiple_of(4) {
                let limit = "a multiple of 4: layers without a window rotate half of it, in pairs";
                return Err(keys.metadata.bad_value(&keys.name("rope.dimension_count"), rope.dims, limit));
            }
            rope.dims /= 2;
        }
        share(&keys, &mut layers)?;
        alternating::sparsity(&keys, &mut layers)?;
        xielu::xielu(&keys, &mut layers)?;
        let compressed = Compressed::read(&keys, layers.len(), &rope, context_length)?;
        // An index of entries is read with them.
        let indexer = match compressed {
            Some(_) => None,
            None => Indexer::read(&keys, &layers, context_length)?,
        };
        let block_index = BlockIndex::read(&keys, &layers, context_length)?;
        let ngrams = Ngrams::read(&keys, layers.len(), vocabulary)?;
        let layer_inputs = match keys.optional("embedding_length_per_layer_input", 0, MAX_WIDTH)? {
            _ if ngrams.is_some() => None,
            None | Some(0) => None,
            Some(length) => Some(LayerInputs { length, layers: layers.len() as u64 }),
        };
        let scales = Scales::read(&keys, &Widths { layers: layers.len() as u64, embedding: embedding_length })?;
        // A window is half before a row and half behind it, in architectures of encoders.
        let symmetric = |window: u64| !defaults.causal && window > 1;
        let only_before = layers
            .iter()
            .any(|layer| layer.recurrent || layer.chunked || layer.window.is_some_and(|window| !symmetric(window)))
            || scales.max_bias != 0.0
            || [compressed.is_some(), indexer.is_some(), block_index.is_some(), ngrams.is_some()].contains(&true);
        let causal = is_causal(&keys, only_before)?;
        let architecture = architecture.to_owned();
        Ok(Hyper {
            architecture,
            causal,
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
            stacks,
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
            compressed,
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
        })
    }
}

/// Elements of a head's query, of a model whose layers have the same heads.
///
/// # Errors
/// When keys say nothing of that, or it cannot be meant.
pub(super) fn head_length(gguf: &Gguf, architecture: &str) -> Result<u64, GgufError> {
    let keys = Keys { metadata: gguf.metadata(), architecture, defaults: Defaults::USUAL };
    let stated = keys.optional("attention.key_length", 1, MAX_WIDTH)?;
    let width = keys.required("embedding_length", 1, MAX_WIDTH)?;
    let heads = keys.required("attention.head_count", 1, MAX_COUNT)?;
    Ok(stated.unwrap_or((width / heads).max(1)))
}

impl Rope {
    /// That of layers which are not rotated.
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

impl Windows {
    /// RoPE of layers with a window, whose keys are so long.
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

/// Of `layers` those that only draft, which come last. Files may count some that they do not have (early ones of DeepSeek-V4): a layer that
/// is there drafts if it has the matrix of one.
fn draft_layers(gguf: &Gguf, keys: &Keys<'_>, layers: u64) -> Result<u64, GgufError> {
    let stated = keys.optional("nextn_predict_layers", 0, layers - 1)?.unwrap_or(0);
    let first = format!("blk.{}.", layers - stated);
    let is_there = gguf.tensors().any(|tensor| tensor.name().starts_with(&first));
    let drafts = gguf.tensor(&format!("{first}nextn.eh_proj.weight")).is_some();
    Ok(if is_there && !drafts { 0 } else { stated })
}

/// Whether each of `count` layers has a window, of which `drafts` only draft: files may leave those out.
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

/// What queries of far positions are multiplied by.
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
            // 0 stands for an absent key in files of some converters.
            let found = keys.float(key, 0.0, |x| x >= 0.0, "0 or a positive number")?;
            Ok(if found == 0.0 { usual } else { found })
        };
        let cap = |key: &str, usual: f64| match reads(key) {
            true => keys.float(key, usual as f32, |x| x >= 0.0, "0 or a positive number"),
            false => Ok(usual),
        };
        let multiplied = keys.defaults.logits_multiplied;
        let logit = factor("logit_scale", if multiplied { 1.0 / usual.logit } else { usual.logit })?;
        let residual = factor("residual_scale", usual.residual)?;
        let adds_to_normed = keys.defaults.adds_to_normed;
        Ok(Scales {
            embedding: factor("embedding_scale", usual.embedding)?,
            residual: if adds_to_normed { 1.0 } else { residual },
            normed: if adds_to_normed { residual } else { 1.0 },
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

/// The rows of the embedding table, with which every other claim about the vocabulary must agree.
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

/// One for each of `windowed`, which says whether it has a window: those may have heads of other sizes.
fn read_layers(
    keys: &Keys<'_>,
    windowed: &[bool],
    embedding_length: u64,
    wkv: Option<Wkv>,
) -> Result<Vec<Layer>, GgufError> {
    let count = windowed.len();
    // Layers without any attention may have no heads.
    let least = u64::from(keys.defaults.parts == Parts::All);
    let heads = match wkv {
        // Files have a key for that, and 0 there.
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
    // Grok's files call it otherwise.
    let [scale, other] = ["attention.scale", "attention.output_scale"]
        .map(|key| keys.float(key, 0.0, |x| x >= 0.0, "0 or a positive number"));
    let (scale, other) = (scale?, other?);
    let scale = if scale == 0.0 { other } else { scale };
    let scale = if scale == 0.0 { keys.defaults.attention_scale } else { scale };
    let experts = experts(keys, count)?;
    let least = u64::from(experts.is_none() && !keys.defaults.parts.lack_both());
    let mut feed_forward = keys.per_layer("feed_forward_length", count, least, MAX_WIDTH)?;
    if keys.defaults.gates_counted {
        for length in feed_forward.iter_mut().flatten() {
            if !length.is_multiple_of(2) {
                let limit = "even: that of gates and up together";
                return Err(keys.metadata.bad_value(&keys.name("feed_forward_length"), *length, limit));
            }
            *length /= 2;
        }
    }
    if feed_forward.is_none() && experts.is_none() {
        return Err(keys.missing("feed_forward_length"));
    }
    // Of a model that was cut short there may be more than layers.
    let leading_dense = keys.optional("leading_dense_block_count", 0, MAX_COUNT)?.unwrap_or(0) as usize;
    let step = keys.optional("interleave_moe_layer_step", 1, MAX_COUNT)?.unwrap_or(1) as usize;
    let limits = Limits::read(keys, count)?;
    const ROPED: &str = "attention.rope_pattern";
    let roped: Vec<bool> = match keys.metadata.get(&keys.name(ROPED)) {
        None => {
            let period = keys.defaults.unroped_every;
            (1..=count).map(|layer| period.is_none_or(|period| !layer.is_multiple_of(period))).collect()
        }
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
                0.0 if count == keys.defaults.scaled_by_width => 1.0 / (embedding_length as f64 / heads as f64).sqrt(),
                0.0 if keys.defaults.scaled_by_length => 1.0 / key_length as f64,
                0.0 => 1.0 / (key_length as f64).sqrt(),
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
