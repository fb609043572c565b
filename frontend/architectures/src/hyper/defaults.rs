//! What keys mean that a file does not have, where architectures differ in that.

use ixc_ir::graph::attrs::{RouteScore, TemperatureAttrs};
use ixc_model_files::gguf::{Gguf, GgufError, Made};

use super::Scales;

/// Matrices of an architecture that quantisers leave alone beside those of every model's, or nearly so: parts of their names, as llama-quantize has them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Precise {
    /// They stay as they are.
    pub kept: &'static [&'static str],
    /// They have a byte for each number, whatever others get.
    pub in_bytes: &'static [&'static str],
}

/// What keys mean that a file does not have, where architectures differ in that.
#[derive(Clone, Copy, Debug)]
pub struct Defaults {
    /// Matrices that quantisers leave alone, or nearly so.
    pub precise: Precise,
    /// How logits of experts become weights.
    pub score: RouteScore,
    /// Whether the weights of the used experts are divided by their sum.
    pub normalise: bool,
    /// Another score in the files of one model, which are known by these numbers alone.
    pub score_of: Option<ScoreOf>,
    /// Whether layers have RoPE.
    pub rotates: Rotates,
    /// Keys of [`NEUTRAL`](super::NEUTRAL) that the architecture reads.
    pub reads: &'static [&'static str],
    /// Tensors that older files lack, and what they are made of there.
    pub made: fn(&Gguf, &str) -> Result<Vec<Made>, GgufError>,
    /// Whether the table of embeddings is the output matrix in files that have the latter alone.
    pub embeds_by_output: bool,
    /// Whether layers without a router (`ffn_gate_inp`) are dense: files have no key for that.
    pub dense_by_tensor: bool,
    /// Whether a token sees those before it alone; the layers of encoders see all of a text.
    pub causal: bool,
    /// What norms are.
    pub norms: Norms,
    /// What queries of far positions are multiplied by.
    pub temperature: Temperature,
    /// Whether the ramp of YaRN begins and ends at whole pairs, in files that do not say (`rope.scaling.yarn_truncate`).
    pub truncated_yarn: bool,
    /// Whether RoPE is not scaled, though files say that it is.
    pub unscaled: bool,
    /// Whether all of a head turns, whatever files say.
    pub turns_whole: bool,
    /// Whether the base of RoPE grows by `rope.scaling.alpha`.
    pub based_by_alpha: bool,
    /// The last of every so many layers has no RoPE, in files without `attention.rope_pattern`.
    pub unroped_every: Option<usize>,
    /// Whether no layer has a window, though files state one.
    pub unwindowed: bool,
    /// Whether layers are two stacks, which follow each other several times.
    pub stacked: bool,
    /// The key of a number of positions behind which layers do what no graph here does: the context is cut to it.
    pub context_of: Option<&'static str>,
    /// What scales the stream and logits where files have no keys.
    pub scales: fn(&Widths) -> Scales,
    /// Whether `logit_scale` multiplies logits; it divides them otherwise.
    pub logits_multiplied: bool,
    /// Which layers have the window of `attention.sliding_window`; where the architecture has no such layers, those that a file says, or all of them.
    pub windows: Option<Windows>,
    /// Whether layers may have compressed entries beside a window.
    pub compressed: bool,
    /// Whether files say by layer how many positions share a key of an index (`attention.compress_ratios`).
    pub runs_by_layer: bool,
    /// Whether limits of routed experts are those of shared ones, too, in files that have no others.
    pub one_limit: bool,
    /// What recurrent states are of.
    pub states: States,
    /// Whether blocks add to their normalised input times `residual_scale`.
    pub adds_to_normed: bool,
    /// What norms of latent rows add to mean squares, where it is not what others add.
    pub latent_eps: Option<f64>,
    /// Whether xIELU stands between up and down.
    pub xielu: bool,
    /// Whether layers without a window rotate half of what `rope.dimension_count` says.
    pub half_rotated: bool,
    /// Whether `feed_forward_length` counts gates and up together.
    pub gates_counted: bool,
    /// Whether groups of experts count for their best, where scores are a softmax.
    pub best_of_group: bool,
    /// Which layers have no attention.
    pub parts: Parts,
    /// A number of layers in whose model scores are divided by the root of `embedding_length / head_count`, for which files have no key; 0 where
    /// there is no such model.
    pub scaled_by_width: usize,
    /// The factor on attention scores; 0 where it is one by the root of the length of a key.
    pub attention_scale: f64,
    /// Whether it is one by that length and not by its root (muP).
    pub scaled_by_length: bool,
    /// What layers that guess take of the last one, where they are built.
    pub guess_from: Option<GuessFrom>,
}

/// What a layer that guesses takes of the last one, and of itself for the next guess.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GuessFrom {
    /// The residual stream.
    Stream,
    /// The stream behind the last norm: what the output matrix takes.
    Norm,
}

/// What norms are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Norms {
    /// Root mean square.
    Rms,
    /// Layer norms.
    Layer,
    /// Layer norms without weights.
    Bare,
    /// Root mean square, without weights.
    Plain,
    /// Layer norms in files that say `attention.layer_norm_epsilon` and no `attention.layer_norm_rms_epsilon`.
    ByKey,
}

/// What queries of far positions are multiplied by: `1 + attention.temperature_scale * ln(1 + floor((position + offset) / length))`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Temperature {
    /// Nothing.
    None,
    /// Steps are as long as the context before scaling.
    OfContext,
    /// Steps are `attention.temperature_length` long.
    OfLength,
    /// The same, with what files mean that lack these keys.
    Or(TemperatureAttrs),
}

/// Sizes that scales may follow from.
#[derive(Clone, Copy, Debug)]
pub struct Widths {
    /// Layers.
    pub layers: u64,
    /// Width of the residual stream.
    pub embedding: u64,
}

/// What zeros in keys that are given per layer say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parts {
    /// Nothing: there are none.
    All,
    /// A layer without key heads (`attention.head_count_kv`) has a recurrent state and no attention.
    Keyless,
    /// A layer is one part alone: a network where it has the width of one (`feed_forward_length`), else attention where it has key heads, else
    /// it has a recurrent state.
    One,
    /// A layer without heads (`attention.head_count`) has no attention; with heads and without key heads it has a matrix in its place. Without a width it
    /// has no network.
    Fewer,
}

impl Parts {
    /// Whether layers may have neither heads nor a network.
    pub fn lack_both(self) -> bool {
        match self {
            Parts::All | Parts::Keyless => false,
            Parts::One | Parts::Fewer => true,
        }
    }
}

/// Whether layers have RoPE. Where they have none, its keys say nothing, and are not read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rotates {
    /// They have.
    Always,
    /// Unless `rope.scaling.finetuned` is false.
    IfFinetuned,
    /// Unless scores fall with distance.
    IfUnbiased,
    /// They have none.
    Never,
}

/// A model whose files lack `expert_gating_func`.
#[derive(Clone, Copy, Debug)]
pub struct ScoreOf {
    /// Its numbers of layers, with those that draft or without.
    pub layers: &'static [u64],
    /// Rows of its embedding table.
    pub vocabulary: u64,
    /// How logits of its experts become weights.
    pub score: RouteScore,
}

/// What recurrent states are of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum States {
    /// Heads, of which files say how many there are.
    Usual,
    /// Single elements, with a decay for each element of a key (Mamba-1).
    Selective,
    /// Heads of attention with constant decays (MiniMax-01).
    Lightning,
    /// Heads of all layers, with decays of each token (RWKV); how many parts of a layer mix rows with those before.
    Wkv {
        /// 2 where the network does, too.
        shifts: u64,
    },
}

/// Layers with a window.
#[derive(Clone, Copy, Debug)]
pub struct Windows {
    /// Every so many layers one has none: the last of them; 0 where files say which.
    pub period: u64,
    /// Whether it is the first of them.
    pub first_is_full: bool,
    /// How many positions a row sees in files that do not say; `None` where they must.
    pub length: Option<u64>,
    /// Whether no layer has a window in files that say 0, or say nothing where there is no `length`.
    pub optional: bool,
    /// Whether a window is a chunk: a row sees its chunk's positions up to its own.
    pub chunked: bool,
    /// Base of their RoPE, where it is not the others'.
    pub base: Option<f32>,
    /// Whether their RoPE is scaled as the others' is.
    pub scaled: bool,
    /// Whether `rope_freqs.weight` is for them, too.
    pub divided: bool,
}

impl Windows {
    /// Of architectures without layers of two kinds: where a file has a window (Mistral's first, Phi-3, StarCoder 2), all have it, or those that it says.
    pub const STATED: Windows = Windows::every(u64::MAX);

    /// As most have them: every so many layers the last one sees all, with RoPE as those with a window have it.
    pub const fn every(period: u64) -> Windows {
        Windows {
            period,
            first_is_full: false,
            length: None,
            optional: false,
            chunked: false,
            base: None,
            scaled: true,
            divided: true,
        }
    }
}

impl Defaults {
    /// Those of most.
    pub const USUAL: Defaults = Defaults {
        precise: Precise { kept: &[], in_bytes: &[] },
        score: RouteScore::Softmax,
        score_of: None,
        rotates: Rotates::Always,
        normalise: true,
        reads: &[],
        made: |_, _| Ok(Vec::new()),
        embeds_by_output: false,
        dense_by_tensor: false,
        causal: true,
        norms: Norms::Rms,
        temperature: Temperature::None,
        truncated_yarn: true,
        unscaled: false,
        turns_whole: false,
        based_by_alpha: false,
        unroped_every: None,
        unwindowed: false,
        stacked: false,
        context_of: None,
        scales: |_| Scales::NONE,
        logits_multiplied: false,
        windows: None,
        compressed: false,
        runs_by_layer: false,
        one_limit: false,
        states: States::Usual,
        adds_to_normed: false,
        latent_eps: None,
        xielu: false,
        half_rotated: false,
        gates_counted: false,
        best_of_group: false,
        parts: Parts::All,
        scaled_by_width: 0,
        attention_scale: 0.0,
        scaled_by_length: false,
        guess_from: None,
    };
}
