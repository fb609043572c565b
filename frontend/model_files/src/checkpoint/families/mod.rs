//! Models by `model_type`: which of GGUF's architectures each is, the keys that differ, and its tensors.

mod apart;
mod dense;
mod encoders;
mod experts;
mod gemma;
mod gpt;
mod granite;
mod latent;
mod llama;
mod qwen;
mod recurrent;

use super::config::Config;
use super::error::CheckpointError;
use super::keys::{Keys, head_dim};
use super::names::Rule;

/// `expert_gating_func` of a softmax, and of sigmoids.
const SOFTMAX: u32 = 1;
const SIGMOID: u32 = 2;
/// Positions that models without RoPE are said to have, as llama.cpp's converter says.
const WITHOUT_ROPE: u32 = 1 << 20;

/// Those of most that are f32: routers and kernels of convolutions.
const SINGLE: [&str; 4] =
    ["ffn_gate_inp.weight", "ffn_gate_inp_shexp.weight", "ssm_conv1d.weight", "shortconv.conv.weight"];
/// With what an index weighs its heads by.
const INDEXED: [&str; 2] = ["ffn_gate_inp.weight", "indexer.proj.weight"];
/// With the convolutions of linear attention whose queries, keys and values have one each.
const CONVOLVED: [&str; 4] =
    ["ffn_gate_inp.weight", "ssm_conv1d_q.weight", "ssm_conv1d_k.weight", "ssm_conv1d_v.weight"];

/// A row.
#[derive(Clone, Copy)]
pub(super) struct Family {
    /// Values of `model_type`.
    pub model_types: &'static [&'static str],
    /// GGUF's `general.architecture`.
    pub architecture: &'static str,
    /// Keys beyond those that all have.
    pub keys: fn(&mut Keys<'_>) -> Result<(), CheckpointError>,
    /// Rules of tensors before those that are shared, the first to be tried first.
    pub tensors: &'static [&'static [Rule]],
    /// Ends of names of matrices that are f32 whatever they are stored as: small, and what is chosen by them is sensitive.
    pub single: &'static [&'static str],
    /// Ends of names of tensors of integers that are keys of GGUF files, and those keys.
    pub numbers: &'static [(&'static str, &'static str)],
    /// Ends of names of tensors of one number, of which each layer has one, that are keys of GGUF files, and those keys, which have no architecture before them.
    pub numbers_of_layers: &'static [(&'static str, &'static str)],
    /// Names of tensors of one number that are keys of GGUF files, and those keys.
    pub numbers_of_model: &'static [(&'static str, &'static str)],
    /// Ends of names of matrices that several machines may have quantised, each its part: equal parts of queries, keys and values one behind another.
    pub by_rank: &'static [&'static str],
    /// Ends of names of vectors that are multiplied, number by number, by those whose names end otherwise, as the second says.
    pub multiplied: &'static [(&'static str, &'static str)],
    /// The key of a list of layers that are passed by where there is nothing but text, so that those behind them have other numbers.
    pub passed_by: Option<&'static str>,
    /// Whether heads are as long as the width by their number, whatever `head_dim` says.
    pub ignores_head_dim: bool,
    /// Values of `hidden_act` that are what the graph does.
    pub activations: &'static [&'static str],
    /// Whether all layers have the window that a configuration states.
    pub window: bool,
    /// A kind of RoPE's scaling that no other model has, and of which the row's keys say what it is.
    pub other_rope: Option<&'static str>,
    /// Whether graphs begin and end YaRN's ramp at whole pairs where files do not say.
    pub truncated_yarn: bool,
    /// What keys mean that a configuration does not have, as JSON: what transformers' class of it has. Configurations of models that see keep of
    /// their decoder's only what differs from that.
    pub defaults: &'static str,
    /// Whether a configuration is this row's, where several rows have its `model_type`.
    pub when: fn(&Config) -> Result<bool, CheckpointError>,
    /// Which layers a configuration has as dense among those with experts, where it says so of each: tensors have to agree, by which graphs know them.
    pub dense: fn(&Config) -> Result<Vec<bool>, CheckpointError>,
    /// Whether `norm_head` says that columns of the output matrix are divided by their length.
    pub unit_columns: bool,
    /// How a vocabulary of pieces is given.
    pub pieces: Pieces,
    /// Matrices that graphs have in place of sentence-transformers' `Dense` modules, in order.
    pub dense_modules: &'static [&'static str],
}

/// How a vocabulary of pieces with byte fallback is given to tokenizers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pieces {
    /// With scores, as SentencePiece's: `llama`.
    Scored,
    /// With merges.
    Merged {
        /// What GGUF calls such a tokenizer.
        name: &'static str,
        /// Tokens that are text, though the file says that they are not: answers are taken apart by them.
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
    numbers_of_layers: &[],
    numbers_of_model: &[],
    by_rank: &[],
    multiplied: &[],
    passed_by: None,
    ignores_head_dim: false,
    activations: &["silu", "swish"],
    window: false,
    other_rope: None,
    truncated_yarn: true,
    defaults: "{}",
    when: |_| Ok(true),
    dense: |_| Ok(Vec::new()),
    unit_columns: false,
    pieces: Pieces::Scored,
    dense_modules: &[],
};

/// Every model that is read, by kin.
static FAMILIES: [&[Family]; 11] = [
    encoders::ROWS,
    llama::ROWS,
    qwen::ROWS,
    gemma::ROWS,
    dense::ROWS,
    gpt::ROWS,
    apart::ROWS,
    experts::ROWS,
    latent::ROWS,
    granite::ROWS,
    recurrent::ROWS,
];

/// All rows, in the order in which they are tried.
pub(super) fn all() -> impl Iterator<Item = &'static Family> {
    FAMILIES.into_iter().flatten()
}

/// All values of `model_type`.
pub(super) fn known() -> Vec<&'static str> {
    let mut known: Vec<&str> = all().flat_map(|family| family.model_types).copied().collect();
    known.sort_unstable();
    known.dedup();
    known
}

/// Layers at the front whose networks are dense, where a configuration says how many.
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

/// Which layers have RoPE: those that a configuration says, which may be more than there are, or all but the last of every so many.
fn turned_layers(config: &Config) -> Result<Vec<bool>, CheckpointError> {
    let layers = config.require(&["num_hidden_layers"])?;
    if let Some(turned) = config.counts("no_rope_layers")? {
        return Ok(turned.iter().take(layers as usize).map(|turned| *turned != 0).collect());
    }
    let period = config.require(&["no_rope_layer_interval"])?;
    Ok((1..=layers).map(|layer| layer.checked_rem(period) != Some(0)).collect())
}

/// NTK by alpha: the base alone changes (llama.cpp's conversion, and the report of Hunyuan's model of 13 billion parameters).
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
    fn defaults_are_objects() {
        for family in all() {
            let defaults: serde_json::Value = serde_json::from_str(family.defaults).unwrap();
            assert!(defaults.is_object(), "{:?}", family.model_types);
        }
    }
}
