//! Table of models, by `model_type`. Each row has the GGUF architecture, the keys that differ, and
//! the rules for tensors.

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

/// Values of `expert_gating_func`: softmax, then sigmoid.
const SOFTMAX: u32 = 1;
const SIGMOID: u32 = 2;
/// Context length that llama.cpp's converter writes for models without RoPE.
const WITHOUT_ROPE: u32 = 1 << 20;

/// Name endings of matrices that are f32 in most models: routers and kernels of convolutions.
const SINGLE: [&str; 4] =
    ["ffn_gate_inp.weight", "ffn_gate_inp_shexp.weight", "ssm_conv1d.weight", "shortconv.conv.weight"];
/// Name endings of f32 matrices in models with an indexer: routers, and weights of the indexer's
/// heads.
const INDEXED: [&str; 2] = ["ffn_gate_inp.weight", "indexer.proj.weight"];
/// Name endings of f32 matrices in models whose queries, keys and values each have a convolution:
/// routers, and taps of the convolutions.
const CONVOLVED: [&str; 4] =
    ["ffn_gate_inp.weight", "ssm_conv1d_q.weight", "ssm_conv1d_k.weight", "ssm_conv1d_v.weight"];

/// Row of the table: models whose folders are read in the same way.
#[derive(Clone, Copy)]
pub(super) struct Family {
    /// Values of `model_type` in configurations.
    pub model_types: &'static [&'static str],
    /// Name of the architecture in GGUF files (`general.architecture`).
    pub architecture: &'static str,
    /// Function that puts keys in addition to those of all models.
    pub keys: fn(&mut Keys<'_>) -> Result<(), CheckpointError>,
    /// Lists of rules for tensors. They are tried in this order, before the shared rules.
    pub tensors: &'static [&'static [Rule]],
    /// Name endings of matrices that always become f32. They are small, and rounding them could
    /// change decisions such as the selection of experts.
    pub single: &'static [&'static str],
    /// Name endings of integer tensors, each with the GGUF key that the tensor becomes.
    pub numbers: &'static [(&'static str, &'static str)],
    /// Name endings of one-element tensors of layers, each with the GGUF key, without architecture
    /// prefix, that they become.
    pub layer_numbers: &'static [(&'static str, &'static str)],
    /// Names of one-element tensors, each with the GGUF key that the tensor becomes.
    pub model_numbers: &'static [(&'static str, &'static str)],
    /// Name endings of matrices that may have been quantised in parts, one on each of several
    /// machines. Each part has an equal share of queries, keys and values, one after the other.
    pub by_rank: &'static [&'static str],
    /// Name endings of vectors to multiply by another vector, element by element, each with the
    /// name ending of that other vector.
    pub scaled_vectors: &'static [(&'static str, &'static str)],
    /// Key that lists layers which text input skips. Later layers are renumbered.
    pub skipped_layers: Option<&'static str>,
    /// Whether `head_dim` is ignored, because a head's length is always the width divided by the
    /// number of heads.
    pub ignores_head_dim: bool,
    /// Values of `hidden_act` that the graph supports.
    pub activations: &'static [&'static str],
    /// Whether a window that the configuration states applies although `use_sliding_window` is
    /// absent.
    pub window: bool,
    /// Type of RoPE scaling that only this model has. Its function `keys` handles it.
    pub other_rope: Option<&'static str>,
    /// Whether the architecture's graph, by default, rounds the bounds of YaRN's ramp to whole
    /// pairs.
    pub truncated_yarn: bool,
    /// Defaults of configuration keys as JSON, from the model's class in transformers.
    /// Configurations of vision models list only those decoder keys that differ from the defaults.
    pub defaults: &'static str,
    /// Function that decides whether the row applies to a configuration, for rows that share a
    /// `model_type`.
    pub applies: fn(&Config) -> Result<bool, CheckpointError>,
    /// Function that returns whether each layer is dense, for configurations that state this. The
    /// tensors must agree, because graphs decide by tensors.
    pub dense: fn(&Config) -> Result<Vec<bool>, CheckpointError>,
    /// Whether `norm_head` means that the model divides columns of the output matrix by their
    /// length.
    pub unit_columns: bool,
    /// Tokenizer of a SentencePiece-like vocabulary.
    pub pieces: PieceTokenizer,
    /// Names of the graph's matrices for the `Dense` modules of sentence-transformers, in the order
    /// of the modules.
    pub dense_modules: &'static [&'static str],
}

/// Tokenizer of a SentencePiece-like vocabulary, which has a token for each byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PieceTokenizer {
    /// Tokens with scores, as in SentencePiece. GGUF calls this tokenizer `llama`.
    Scored,
    /// Tokens with merges.
    Merged {
        /// Name of the tokenizer in GGUF files.
        name: &'static str,
        /// Tokens that are shown as text although the file marks them as hidden. Answers are parsed
        /// by these markers.
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

/// Architectures that the table has no row for, so that their models are read from GGUF files only.
/// Each other architecture must have a row.
pub(super) static ONLY_IN_GGUF: &[&str] = &[
    // Ternary weights of this model are made only when a GGUF file is written.
    "bitnet",
    // Transformers has no classes for these architectures, so no reference exists for their
    // folders.
    "rwkv6",
    "rwkv6qwen2",
    "rwkv7",
    "arwkv7",
];

/// Returns all rows of the table, in the order in which they are tried.
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

/// Returns the number of first layers that are dense, if the configuration states it.
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

/// Returns whether each layer has RoPE. The configuration lists this for at least all layers, or
/// states a period whose last layer has no RoPE.
fn turned_layers(config: &Config) -> Result<Vec<bool>, CheckpointError> {
    let layers = config.require(&["num_hidden_layers"])?;
    if let Some(turned) = config.counts("no_rope_layers")? {
        return Ok(turned.iter().take(layers as usize).map(|turned| *turned != 0).collect());
    }
    let period = config.require(&["no_rope_layer_interval"])?;
    Ok((1..=layers).map(|layer| layer.checked_rem(period) != Some(0)).collect())
}

/// Multiplies the RoPE base for NTK scaling by `alpha` (llama.cpp's conversion, and the report on
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
