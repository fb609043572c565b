//! Description of a model, read from its configuration: its GGUF keys, and numbers that determine
//! how its tensors are split.
//!
//! ```text
//! num_hidden_layers: 28     ->  qwen3.block_count = 28
//! ```

use super::config::Config;
use super::error::CheckpointError;
use super::families::Family;
use super::keys::{CAUSAL, HEADS, Keys, LAYERS, MAX_LAYERS, WIDTH, head_dim};
use super::modules::Modules;
use super::sizes::{Factors, LayerConfig, Sizes};
use crate::gguf::Value;

/// GGUF keys of counts. Each has the names that configurations use for it.
const COUNTS: [(&str, &[&str]); 8] = [
    ("block_count", &LAYERS),
    (
        CONTEXT,
        &[
            "max_position_embeddings",
            "n_positions",
            "max_sequence_length",
            "model_max_length",
            "seq_length",
            "max_seq_len",
        ],
    ),
    ("embedding_length", &WIDTH),
    ("attention.head_count", &HEADS),
    ("expert_count", &["num_local_experts", "num_experts", "n_routed_experts"]),
    ("expert_used_count", &["num_experts_per_tok", "num_experts_per_token"]),
    ("expert_group_count", &["n_group"]),
    ("expert_group_used_count", &["topk_group"]),
];
/// GGUF's key for the maximum context.
const CONTEXT: &str = "context_length";
/// Number of positions in a block of attention. Tables of positions have rows for whole blocks.
const POSITIONS: u64 = ixc_ir::plan::ATTENTION_BLOCK as u64;
/// Names for the number of experts in configurations. The value of `OF_KINDS` may be a list with a
/// number for each kind of experts, such as text and image experts.
const EXPERTS: [&str; 5] =
    ["num_local_experts", "num_experts", "n_routed_experts", OF_KINDS, "moe_num_primary_experts"];
const OF_KINDS: &str = "moe_num_experts";
/// Names for the function that turns router logits into weights, in configurations.
const SCORE_KEYS: [&str; 5] =
    ["score_function", "scoring_func", "score_func", "moe_router_activation_func", "expert_selection_fn"];
/// Names of such functions in configurations, with GGUF's numbers (`expert_gating_func`).
const SCORES: [(&str, u32); 3] = [("softmax", 1), ("sigmoid", 2), ("sqrtsoftplus", 4)];

/// Result of reading a configuration.
pub(super) struct ModelDescription {
    /// Keys and values, as in a GGUF file.
    pub entries: Vec<(Box<str>, Value)>,
    /// Numbers that determine how tensors are split.
    pub sizes: Sizes,
    /// Numbers that differ from layer to layer.
    pub layers: Vec<LayerConfig>,
    /// Tensors that no file of the folder has: divisors of RoPE frequencies, for models with such
    /// divisors.
    pub constants: Vec<(&'static str, Vec<f32>)>,
}

/// Reads a configuration: the GGUF keys, and the numbers derived from them.
pub(super) fn read(config: &Config, family: &Family, modules: &Modules) -> Result<ModelDescription, CheckpointError> {
    let mut keys = Keys { config, architecture: family.architecture, entries: Vec::new() };
    keys.entries.push(("general.architecture".into(), family.architecture.into()));
    if let Some(name) = config.text(&["_name_or_path"])?.filter(|name| !name.is_empty()) {
        keys.entries.push(("general.name".into(), name.into()));
    }
    for (key, from) in COUNTS {
        keys.count(key, from)?;
    }
    // If neither the configuration nor its class states a number, there is a key head for each
    // query head.
    match config.count(&["num_key_value_heads"])? {
        Some(heads) => keys.put("attention.head_count_kv", heads),
        None => keys.count("attention.head_count_kv", &HEADS)?,
    }
    keys.counts_of_layers("feed_forward_length", "intermediate_size")?;
    keys.number("attention.layer_norm_rms_epsilon", &["rms_norm_eps", "norm_eps"])?;
    keys.number("attention.layer_norm_epsilon", &["layer_norm_eps", "layer_norm_epsilon", "norm_epsilon"])?;
    if let Some(score) = config.text(&SCORE_KEYS)? {
        let found = SCORES.iter().find(|(name, _)| *name == score);
        let (_, number) =
            found.ok_or_else(|| config.wrong("scoring_func", format!("\"{score}\""), "softmax or sigmoid"))?;
        keys.put("expert_gating_func", *number);
    }
    if let Some(length) = config.count(&["head_dim"])?.filter(|_| !family.ignores_head_dim) {
        keys.put("attention.key_length", length);
        keys.put("attention.value_length", length);
    }
    keys.rope(family.other_rope)?;
    keys.set_ramp_truncation(family.truncated_yarn)?;
    // Some configurations state a window, but disable it with `use_sliding_window`.
    let used = config.flag(&["use_sliding_window"])?;
    if used.unwrap_or(family.window) {
        keys.stated_window()?;
    }
    (family.keys)(&mut keys)?;
    keys.embeddings(modules);
    if !keys.has(CAUSAL) {
        keys.refuse("is_causal", |value| value.as_bool() != Some(true), "true")?;
    }
    for key in ["hidden_act", "hidden_activation"] {
        let other = |value: &serde_json::Value| value.as_str().is_none_or(|name| !family.activations.contains(&name));
        keys.refuse(key, other, &family.activations.join(" or "))?;
    }
    let sizes = sizes(&keys)?;
    let constants = keys.divisors()?;
    Ok(ModelDescription { layers: keys.layer_configs(), entries: keys.entries, sizes, constants })
}

impl Keys<'_> {
    /// Adds keys from the modules of sentence-transformers: pooling, scaling to length 1, and the
    /// maximum text length.
    fn embeddings(&mut self, modules: &Modules) {
        if let Some(pooling) = modules.pooling {
            self.put("pooling_type", pooling);
        }
        if modules.unscaled {
            self.put("embedding_normalized", false);
        }
        let (longest, context) = (modules.longest.map(u64::from), self.key_number(CONTEXT));
        // Tables of positions have rows for whole blocks, so the length is rounded up to whole
        // blocks.
        let longest = longest.map(|longest| longest.next_multiple_of(POSITIONS));
        if let (Some(longest), Some(context)) = (longest, context)
            && let Ok(longest) = u32::try_from(longest.min(context))
        {
            self.put(CONTEXT, longest);
        }
    }

    /// Returns the numbers of each layer. The list is empty if the number of key heads is unknown.
    fn layer_configs(&self) -> Vec<LayerConfig> {
        let flag = |key: &str, layer: usize, usual: bool| match self.find(key) {
            Some(Value::Array(array)) => array.bool(layer).unwrap_or(usual),
            _ => usual,
        };
        let heads = self.kv_heads().into_iter().enumerate();
        let of_layer = |(layer, kv_heads): (usize, u64)| LayerConfig {
            kv_heads,
            has_window: flag("attention.sliding_window_pattern", layer, false),
            has_rope: flag("attention.rope_pattern", layer, true),
        };
        heads.map(of_layer).collect()
    }

    /// Returns the number of key heads of each layer. The list is empty if it is unknown.
    fn kv_heads(&self) -> Vec<u64> {
        let heads = |number: i128| u64::try_from(number).unwrap_or(0);
        match self.find("attention.head_count_kv") {
            Some(Value::Array(array)) => (0..array.len()).map(|layer| array.integer(layer).map_or(0, heads)).collect(),
            Some(value) => {
                let layers = self.key_number("block_count").unwrap_or(0).min(MAX_LAYERS.into());
                vec![value.integer().map_or(0, heads); layers as usize]
            }
            None => Vec::new(),
        }
    }
}

/// Returns the numbers that determine how tensors are split. A number that the configuration lacks
/// is 0.
fn sizes(keys: &Keys<'_>) -> Result<Sizes, CheckpointError> {
    let config = keys.config;
    let count = |keys: &[&str]| Ok::<_, CheckpointError>(u64::from(config.count(keys)?.unwrap_or(0)));
    let heads = count(&HEADS)?;
    Ok(Sizes {
        layers: keys.key_number("block_count").unwrap_or(0),
        layer_kv_heads: 0,
        experts_per_group: keys.key_number("experts_per_group").unwrap_or(0),
        experts: match count(
            // If the configuration has a list here, or no number, the GGUF key `expert_count` has
            // the number.
            if config.value(OF_KINDS).is_some_and(|value| value.is_array()) { &EXPERTS[..0] } else { &EXPERTS },
        )? {
            0 => keys.key_number("expert_count").unwrap_or(0),
            count => count,
        },
        stack: keys.key_number("hrm.layers_per_stack").unwrap_or(0),
        heads,
        kv_heads: config.count(&["num_key_value_heads"])?.map_or(heads, u64::from),
        head_dim: head_dim(config)?,
        still: count(&["qk_nope_head_dim"])?,
        turned: count(&["qk_rope_head_dim"])?,
        value: count(&["v_head_dim"])?,
        local: [count(&["swa_num_attention_heads"])?, count(&["swa_qk_nope_head_dim"])?, count(&["swa_v_head_dim"])?],
        width: count(&WIDTH)?,
        expert_width: keys.key_number("expert_feed_forward_length").unwrap_or(0),
        key_heads: count(&["linear_num_key_heads"])?,
        value_heads: count(&["linear_num_value_heads"])?,
        key_len: count(&["linear_key_head_dim"])?,
        value_len: count(&["linear_value_head_dim"])?,
        rotated: keys.key_number("rope.dimension_count").map_or_else(|| head_dim(config), Ok)?,
        groups: count(&["n_groups", "mamba_n_groups"])?,
        state: count(&["mamba_d_state"])?,
        inner: keys.key_number("ssm.inner_size").unwrap_or(0),
        streams: count(&["hc_count", "altup_num_inputs"])?,
        vocabulary: count(&["output_vocab_size", "vocab_size"])?,
        context: keys.key_number(CONTEXT).unwrap_or(0),
        index: count(&["indexer_n_heads"])?.saturating_mul(count(&["indexer_head_dim"])?),
        table_parts: count(&["split_ngram_parts"])?,
        factors: factors(config)?,
    })
}

/// Returns the factors on the results of matrices. A factor that the configuration lacks is 1.
fn factors(config: &Config) -> Result<Factors, CheckpointError> {
    let number = |key: &str| Ok::<_, CheckpointError>(config.number(&[key])?.unwrap_or(1.0) as f32);
    // These are keys of Jais, which has two factors on logits; their product is used.
    let width = config.number(&["width_scale"])?.unwrap_or(1.0);
    let alpha =
        config.number(&["mup_output_alpha"])?.unwrap_or(1.0) * config.number(&["mup_width_scale"])?.unwrap_or(width);
    let list = |key: &str, len: usize| match config.numbers(key)? {
        None => Ok(vec![1.0; len]),
        Some(numbers) if numbers.len() == len => Ok(numbers.into_iter().map(|number| number as f32).collect()),
        Some(numbers) => Err(config.wrong(key, format!("an array of {}", numbers.len()), format!("{len} numbers"))),
    };
    let (network, parts) = (list("mlp_multipliers", 2)?, list("ssm_multipliers", 5)?);
    let mut ssm_parts = [1.0; 5];
    ssm_parts.copy_from_slice(&parts);
    Ok(Factors {
        embedding: config.number(&["embedding_multiplier", "mup_embeddings_scale", "embeddings_scale"])?.unwrap_or(1.0)
            as f32,
        logits: config.number(&["lm_head_multiplier"])?.unwrap_or(alpha) as f32,
        attention: number("attention_in_multiplier")?,
        key: number("key_multiplier")?,
        attention_out: number("attention_out_multiplier")?,
        gate: network[0],
        down: network[1],
        ssm: number("ssm_in_multiplier")?,
        ssm_parts,
        ssm_out: number("ssm_out_multiplier")?,
    })
}
