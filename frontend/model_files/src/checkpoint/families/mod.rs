//! Table of models by `model_type`: the GGUF architecture, the keys that differ, and the tensors of
//! each.

mod convolutions;
mod dense;
mod encoders;
mod experts;
mod gemma;
mod gpt;
mod granite;
mod latent;
mod layer_kinds;
mod linear_attention;
mod llama;
mod qwen;
mod shared_experts;
mod state_spaces;
mod unrelated;

use super::config::Config;
use super::error::CheckpointError;
use super::keys::{Keys, head_dim};
use super::names::Rule;

/// Values of `expert_gating_func` for softmax and sigmoid.
const SOFTMAX: u32 = 1;
const SIGMOID: u32 = 2;
/// Context length of models without RoPE, as llama.cpp's converter writes it.
const WITHOUT_ROPE: u32 = 1 << 20;

/// Name endings of matrices that are f32 in most models: routers and kernels of convolutions.
const SINGLE: [&str; 4] =
    ["ffn_gate_inp.weight", "ffn_gate_inp_shexp.weight", "ssm_conv1d.weight", "shortconv.conv.weight"];
/// Routers, and the head weights of an indexer.
const INDEXED: [&str; 2] = ["ffn_gate_inp.weight", "indexer.proj.weight"];
/// Routers, and the convolutions of linear attention with one each for queries, keys and values.
const CONVOLVED: [&str; 4] =
    ["ffn_gate_inp.weight", "ssm_conv1d_q.weight", "ssm_conv1d_k.weight", "ssm_conv1d_v.weight"];

/// Row of the table: models that are read in the same way.
#[derive(Clone, Copy)]
pub(super) struct Family {
    /// Values of `model_type`.
    pub model_types: &'static [&'static str],
    /// GGUF's `general.architecture`.
    pub architecture: &'static str,
    /// Function that adds keys beyond the common ones.
    pub keys: fn(&mut Keys<'_>) -> Result<(), CheckpointError>,
    /// Lists of rules for tensors, tried in this order before the shared rules.
    pub tensors: &'static [&'static [Rule]],
    /// Name endings of matrices that become f32 in any case: they are small, and decisions that
    /// depend on them are sensitive.
    pub single: &'static [&'static str],
    /// Name endings of integer tensors that are keys of GGUF files, and those keys.
    pub numbers: &'static [(&'static str, &'static str)],
    /// Name endings of one-element tensors of each layer that are keys of GGUF files, and those
    /// keys without the architecture.
    pub layer_numbers: &'static [(&'static str, &'static str)],
    /// Names of one-element tensors that are keys of GGUF files, and those keys.
    pub model_numbers: &'static [(&'static str, &'static str)],
    /// Name endings of matrices that several machines may have quantised part by part. Each part
    /// has an equal share of queries, keys and values, one after the other.
    pub by_rank: &'static [&'static str],
    /// Name endings of vectors to multiply element by element with another vector, and the endings
    /// of the other vectors' names.
    pub scaled_vectors: &'static [(&'static str, &'static str)],
    /// Key of a list of layers that are skipped for text-only input; later layers are renumbered.
    pub skipped_layers: Option<&'static str>,
    /// Whether a head's length is always the width divided by the number of heads; `head_dim` is
    /// then ignored.
    pub ignores_head_dim: bool,
    /// Values of `hidden_act` that the graph supports.
    pub activations: &'static [&'static str],
    /// Whether all layers have the window that a configuration states.
    pub window: bool,
    /// Type of RoPE scaling that only this model has, and that its own keys describe.
    pub other_rope: Option<&'static str>,
    /// Whether graphs round the ends of YaRN's ramp to whole pairs by default.
    pub truncated_yarn: bool,
    /// Defaults of configuration keys, as JSON, from the model's class in transformers.
    /// Configurations of vision models list only the decoder's keys that differ from these.
    pub defaults: &'static str,
    /// Whether the row applies to a configuration, for rows that share a `model_type`.
    pub applies: fn(&Config) -> Result<bool, CheckpointError>,
    /// Returns for each layer whether it is dense, for configurations that list this. Graphs decide
    /// by the tensors; list and tensors must agree.
    pub dense: fn(&Config) -> Result<Vec<bool>, CheckpointError>,
    /// Whether `norm_head` means that columns of the output matrix are divided by their length.
    pub unit_columns: bool,
    /// Tokenizer of a vocabulary of pieces.
    pub pieces: PieceTokenizer,
    /// Matrices of the graph that correspond to the `Dense` modules of sentence-transformers, in
    /// order.
    pub dense_modules: &'static [&'static str],
}

/// Tokenizer of a vocabulary of pieces with byte fallback.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PieceTokenizer {
    /// Scored pieces, like SentencePiece's: `llama`.
    Scored,
    /// Pieces with merges.
    Merged {
        /// GGUF's name of the tokenizer.
        name: &'static str,
        /// Tokens that are shown as text although the file marks them as hidden, because answers
        /// are parsed by these markers.
        visible: &'static [&'static str],
    },
}

const USUAL: Family = Family {
    model_types: &[],
    architecture: "",
    keys: |_| Ok(()),
    tensors: &[],
    single: &SINGLE,
    numbers: &[],
    layer_numbers: &[],
    model_numbers: &[],
    by_rank: &[],
    scaled_vectors: &[],
    skipped_layers: None,
    ignores_head_dim: false,
    activations: &["silu", "swish"],
    window: false,
    other_rope: None,
    truncated_yarn: true,
    defaults: "{}",
    applies: |_| Ok(true),
    dense: |_| Ok(Vec::new()),
    unit_columns: false,
    pieces: PieceTokenizer::Scored,
    dense_modules: &[],
};

/// All models, by family.
static FAMILIES: [&[Family]; 14] = [
    encoders::ROWS,
    llama::ROWS,
    qwen::ROWS,
    gemma::ROWS,
    dense::ROWS,
    gpt::ROWS,
    unrelated::ROWS,
    experts::ROWS,
    shared_experts::ROWS,
    latent::ROWS,
    granite::ROWS,
    state_spaces::ROWS,
    convolutions::ROWS,
    linear_attention::ROWS,
];

/// Architectures without a row: their models are read from GGUF files only. Each other architecture
/// needs a row of a family.
pub(super) static ONLY_IN_GGUF: &[&str] = &[
    // Its ternary weights are made when the GGUF file is written.
    "bitnet",
    // transformers has no classes for these, so there is no reference for their folders.
    "rwkv6",
    "rwkv6qwen2",
    "rwkv7",
    "arwkv7",
];

/// Returns all rows, in the order in which they are tried.
pub(super) fn all() -> impl Iterator<Item = &'static Family> {
    FAMILIES.into_iter().flatten()
}

/// Returns all values of `model_type`.
pub(super) fn model_types() -> Vec<&'static str> {
    let mut known: Vec<&str> = all().flat_map(|family| family.model_types).copied().collect();
    known.sort_unstable();
    known.dedup();
    known
}

/// Returns the number of leading dense layers, if the configuration has it.
fn leading_dense(config: &Config) -> Result<Option<u32>, CheckpointError> {
    if let Some(kinds) = config.texts("mlp_layer_types")? {
        return Ok(Some(kinds.iter().take_while(|kind| **kind == "dense").count() as u32));
    }
    if config.value("moe_layer_freq").is_some_and(|value| value.is_array()) {
        let sparse = config.counts("moe_layer_freq")?.unwrap_or_default();
        return Ok(Some(sparse.iter().take_while(|sparse| **sparse == 0).count() as u32));
    }
    config.count(&["first_k_dense_replace"])
}

/// Returns for each layer whether it has RoPE. A configuration lists the layers (the list may be
/// too long), or has a period whose last layer has none.
fn turned_layers(config: &Config) -> Result<Vec<bool>, CheckpointError> {
    let layers = config.require(&["num_hidden_layers"])?;
    if let Some(turned) = config.counts("no_rope_layers")? {
        return Ok(turned.iter().take(layers as usize).map(|turned| *turned != 0).collect());
    }
    let period = config.require(&["no_rope_layer_interval"])?;
    Ok((1..=layers).map(|layer| layer.checked_rem(period) != Some(0)).collect())
}

/// Changes the RoPE base for NTK scaling by alpha (llama.cpp's conversion, and the report of
/// Hunyuan's model of 13 billion parameters).
fn base_by_alpha(keys: &mut Keys<'_>) -> Result<(), CheckpointError> {
    let (Some("dynamic"), Some(alpha)) = (keys.rope_kind()?.as_deref(), keys.rope_number("alpha")?) else {
        return Ok(());
    };
    let dims = head_dim(keys.config)? as f64;
    let base = keys.rope_number("rope_theta")?.unwrap_or(10_000.0);
    keys.put("rope.freq_base", (base * alpha.powf(dims / (dims - 2.0))) as f32);
    keys.put("rope.scaling.type", "none");
    keys.put("context_length", 256u32 << 10);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn family_defaults_are_json_objects() {
        for family in all() {
            let defaults: serde_json::Value = serde_json::from_str(family.defaults).unwrap();
            assert!(defaults.is_object(), "{:?}", family.model_types);
        }
    }
}
