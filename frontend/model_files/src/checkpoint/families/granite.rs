//! Granite models: dense, with experts, and with layers of Mamba-2.

use super::super::conversions::{gate_up, key, key_of_part, plain, query, query_of_part, shared_down, shared_gate_up};
use super::super::error::CheckpointError;
use super::super::keys::Keys;
use super::super::names::{ADJACENT_ROPE, Rule, rule};
use super::super::state_conversions::{by_group, decay, taps};
use super::layer_kinds::{Kind, heads_of_kinds, kinds};
use super::state_spaces::{Mamba2, mamba};
use super::{Family, USUAL, WITHOUT_ROPE};

/// Defaults of Granite's configurations, dense and with experts.
const GRANITE: &str = r#"{"max_position_embeddings": 2048, "rms_norm_eps": 1e-6, "attention_multiplier": 1.0,
    "embedding_multiplier": 1.0, "residual_multiplier": 1.0, "logits_scaling": 1.0}"#;

const GRANITE_EXPERTS: &str = r#"{"max_position_embeddings": 2048, "rms_norm_eps": 1e-6, "attention_multiplier": 1.0,
    "embedding_multiplier": 1.0, "residual_multiplier": 1.0, "logits_scaling": 1.0, "num_local_experts": 8, "num_experts_per_tok": 2}"#;

const GRANITE_H: &str = r#"{"max_position_embeddings": 2048, "rms_norm_eps": 1e-6, "attention_multiplier": 1.0,
    "embedding_multiplier": 1.0, "residual_multiplier": 1.0, "logits_scaling": 1.0, "num_local_experts": 8, "num_experts_per_tok": 2,
    "shared_intermediate_size": 1024, "mamba_n_heads": 128, "mamba_n_groups": 1, "mamba_d_state": 256, "mamba_d_conv": 4,
    "mamba_expand": 2}"#;

pub(super) static ROWS: &[Family] = &[
    Family {
        model_types: &["granite", "granite4_vision_text", "granite4_vision"],
        architecture: "granite",
        keys: granite,
        tensors: &[ADJACENT_ROPE],
        ignores_head_dim: true,
        defaults: GRANITE,
        ..USUAL
    },
    Family {
        model_types: &["granite_docling_text", "granite_docling"],
        architecture: "granite",
        keys: granite,
        tensors: &[ADJACENT_ROPE],
        ignores_head_dim: true,
        defaults: r#"{"max_position_embeddings": 32768, "rms_norm_eps": 1e-5, "attention_multiplier": 0.015625, "embedding_multiplier": 12.0,
            "residual_multiplier": 0.263, "logits_scaling": 4.0}"#,
        ..USUAL
    },
    Family {
        model_types: &["hyperclovax"],
        architecture: "hyperclovax",
        keys: granite,
        tensors: &[HYPERCLOVA_X, ADJACENT_ROPE],
        defaults: r#"{"max_position_embeddings": 2048, "rms_norm_eps": 1e-6, "embedding_multiplier": 1.0, "residual_multiplier": 1.0,
            "logits_scaling": 1.0}"#,
        ..USUAL
    },
    Family {
        model_types: &["granitemoe", "granitemoeshared"],
        architecture: "granitemoe",
        keys: |keys| {
            keys.count("expert_shared_feed_forward_length", &["shared_intermediate_size"])?;
            granite(keys)
        },
        tensors: &[GRANITE_MOE],
        ignores_head_dim: true,
        defaults: GRANITE_EXPERTS,
        ..USUAL
    },
    Family {
        model_types: &["granitemoehybrid"],
        architecture: "granitehybrid",
        keys: granite_hybrid,
        tensors: &[GRANITE_HYBRID],
        ignores_head_dim: true,
        defaults: GRANITE_H,
        applies: |config| Ok(kinds(config)?.contains(&Kind::Recurrent)),
        ..USUAL
    },
    // Converters to GGUF use this architecture name for Bamba.
    Family {
        model_types: &["bamba"],
        architecture: "granitehybrid",
        keys: bamba,
        tensors: &[BAMBA, GRANITE_HYBRID],
        ignores_head_dim: true,
        defaults: r#"{"hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32,
            "num_key_value_heads": 8, "max_position_embeddings": 262144, "rms_norm_eps": 1e-5, "attn_layer_indices": [], "mamba_n_heads": 128,
            "mamba_n_groups": 1, "mamba_d_state": 256, "mamba_d_conv": 4, "mamba_expand": 2}"#,
        ..USUAL
    },
    Family {
        model_types: &["granite_swa"],
        architecture: "granite_swa",
        keys: granite_windows,
        tensors: &[GRANITE_WINDOWS],
        ignores_head_dim: true,
        defaults: r#"{"hidden_size": 2560, "intermediate_size": 8192, "num_hidden_layers": 24, "num_attention_heads": 20, "num_key_value_heads": 4,
            "max_position_embeddings": 8192, "rms_norm_eps": 1e-5, "tie_word_embeddings": true, "attention_multiplier": 1.0,
            "embedding_multiplier": 1.0, "residual_multiplier": 1.0, "logits_scaling": 1.0, "sliding_window": 128}"#,
        ..USUAL
    },
    Family {
        model_types: &["granitemoe_swa"],
        architecture: "granite_swa",
        keys: |keys| {
            keys.count("expert_shared_feed_forward_length", &["shared_intermediate_size"])?;
            granite_windows(keys)
        },
        tensors: &[GRANITE_WINDOWS],
        ignores_head_dim: true,
        defaults: r#"{"hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32, "num_attention_heads": 32,
            "max_position_embeddings": 2048, "rms_norm_eps": 1e-6, "attention_multiplier": 1.0, "embedding_multiplier": 1.0,
            "residual_multiplier": 1.0, "logits_scaling": 1.0, "num_local_experts": 8, "num_experts_per_tok": 2,
            "shared_intermediate_size": 0, "sliding_window": 128}"#,
        ..USUAL
    },
    // This row is for models of the same class without layers of Mamba-2.
    Family {
        model_types: &["granitemoehybrid"],
        architecture: "granitemoe",
        keys: granite_hybrid,
        tensors: &[GRANITE_HYBRID],
        ignores_head_dim: true,
        defaults: GRANITE_H,
        applies: |config| {
            Ok(!kinds(config)?.contains(&Kind::Recurrent) && config.count(&["num_local_experts"])?.unwrap_or(0) > 0)
        },
        ..USUAL
    },
    Family {
        model_types: &["granitemoehybrid"],
        architecture: "granite",
        keys: granite_hybrid,
        tensors: &[GRANITE_HYBRID],
        ignores_head_dim: true,
        defaults: GRANITE_H,
        applies: |config| Ok(!kinds(config)?.contains(&Kind::Recurrent)),
        ..USUAL
    },
];

/// Rules for Granite with experts. One tensor has the gate and up matrices of all routed experts;
/// another has those of the shared expert. RoPE pairs are adjacent in GGUF files.
static GRANITE_MOE: &[Rule] = &[
    rule("model.layers.{L}.self_attn.q_proj", "blk.{L}.attn_q", query),
    rule("model.layers.{L}.self_attn.k_proj", "blk.{L}.attn_k", key),
    rule("model.layers.{L}.block_sparse_moe.router.layer", "blk.{L}.ffn_gate_inp", plain),
    rule("model.layers.{L}.block_sparse_moe.input_linear.weight", "blk.{L}.ffn_{P}_exps.weight", gate_up),
    rule("model.layers.{L}.block_sparse_moe.output_linear", "blk.{L}.ffn_down_exps", plain),
    rule("model.layers.{L}.shared_mlp.input_linear.weight", "blk.{L}.ffn_{P}_shexp.weight", gate_up),
    rule("model.layers.{L}.shared_mlp.output_linear", "blk.{L}.ffn_down_shexp", plain),
];

/// Rules for Granite with windows, which has attention sinks. The gate and up matrices of routed
/// experts are one tensor, and so are those of the shared expert.
static GRANITE_WINDOWS: &[Rule] = &[
    rule("model.layers.{L}.self_attn.q_proj", "blk.{L}.attn_q", query),
    rule("model.layers.{L}.self_attn.k_proj", "blk.{L}.attn_k", key),
    rule("model.layers.{L}.self_attn.sinks", "blk.{L}.attn_sinks.weight", plain),
    rule("model.layers.{L}.block_sparse_moe.router", "blk.{L}.ffn_gate_inp", plain),
    rule("model.layers.{L}.block_sparse_moe.experts.gate_up_proj", "blk.{L}.ffn_gate_up_exps.weight", plain),
    rule("model.layers.{L}.block_sparse_moe.experts.down_proj", "blk.{L}.ffn_down_exps.weight", plain),
    rule("model.layers.{L}.shared_mlp.input_linear", "blk.{L}.ffn_up_shexp", plain),
    rule("model.layers.{L}.shared_mlp.output_linear", "blk.{L}.ffn_down_shexp", plain),
];

/// Rules for Granite with layers of Mamba-2. The last block of each layer is the shared expert, or
/// the dense network in models without experts.
static GRANITE_HYBRID: &[Rule] = &[
    rule("model.layers.{L}.self_attn.q_proj", "blk.{L}.attn_q", query),
    rule("model.layers.{L}.self_attn.k_proj", "blk.{L}.attn_k", key),
    rule("model.layers.{L}.mamba.in_proj", "blk.{L}.ssm_in", plain),
    rule("model.layers.{L}.mamba.conv1d", "blk.{L}.ssm_conv1d", taps),
    rule("model.layers.{L}.mamba.A_log", "blk.{L}.ssm_a", decay),
    rule("model.layers.{L}.mamba.D", "blk.{L}.ssm_d", plain),
    rule("model.layers.{L}.mamba.dt_bias", "blk.{L}.ssm_dt.bias", plain),
    rule("model.layers.{L}.mamba.norm", "blk.{L}.ssm_norm", by_group),
    rule("model.layers.{L}.mamba.out_proj", "blk.{L}.ssm_out", plain),
    rule("model.layers.{L}.block_sparse_moe.router.layer", "blk.{L}.ffn_gate_inp", plain),
    rule("model.layers.{L}.block_sparse_moe.router", "blk.{L}.ffn_gate_inp", plain),
    rule("model.layers.{L}.block_sparse_moe.input_linear.weight", "blk.{L}.ffn_{P}_exps.weight", gate_up),
    rule("model.layers.{L}.block_sparse_moe.output_linear", "blk.{L}.ffn_down_exps", plain),
    rule("model.layers.{L}.shared_mlp.input_linear.weight", "blk.{L}.ffn_{P}.weight", shared_gate_up),
    rule("model.layers.{L}.shared_mlp.output_linear.weight", "blk.{L}.ffn_{P}.weight", shared_down),
];

/// Rules for Bamba: the dense network and its norm have the same names as in Jamba, and RoPE
/// rotates half of each head.
static BAMBA: &[Rule] = &[
    rule("model.final_layernorm", "output_norm", plain),
    rule("model.layers.{L}.pre_ff_layernorm", "blk.{L}.ffn_norm", plain),
    rule("model.layers.{L}.self_attn.q_proj", "blk.{L}.attn_q", query_of_part),
    rule("model.layers.{L}.self_attn.k_proj", "blk.{L}.attn_k", key_of_part),
    rule("model.layers.{L}.feed_forward.gate_proj", "blk.{L}.ffn_gate", plain),
    rule("model.layers.{L}.feed_forward.up_proj", "blk.{L}.ffn_up", plain),
    rule("model.layers.{L}.feed_forward.down_proj", "blk.{L}.ffn_down", plain),
];

/// Rules for HyperCLOVA X, in which norms also follow blocks.
static HYPERCLOVA_X: &[Rule] = &[
    rule("model.layers.{L}.post_norm1", "blk.{L}.post_attention_norm", plain),
    rule("model.layers.{L}.post_norm2", "blk.{L}.post_ffw_norm", plain),
];

fn granite(keys: &mut Keys<'_>) -> Result<(), CheckpointError> {
    head_length(keys)?;
    for (key, from) in [
        ("attention.scale", "attention_multiplier"),
        ("embedding_scale", "embedding_multiplier"),
        ("residual_scale", "residual_multiplier"),
        ("logit_scale", "logits_scaling"),
    ] {
        keys.number(key, &[from])?;
    }
    Ok(())
}

/// Puts the length of heads if it is not the width divided by the number of heads. Converters omit
/// the keys if it is.
fn head_length(keys: &mut Keys<'_>) -> Result<(), CheckpointError> {
    let config = keys.config;
    let Some(length) = config.count(&["head_dim"])? else { return Ok(()) };
    let (width, heads) = (config.require(&["hidden_size"])?, config.require(&["num_attention_heads"])?);
    if u64::from(length) * u64::from(heads) != u64::from(width) {
        keys.put("attention.key_length", length);
        keys.put("attention.value_length", length);
    }
    Ok(())
}

fn granite_windows(keys: &mut Keys<'_>) -> Result<(), CheckpointError> {
    granite(keys)?;
    let config = keys.config;
    keys.count("attention.sliding_window", &["sliding_window"])?;
    keys.windows()?;
    if !config.has("layer_types") {
        let layers = config.require(&["num_hidden_layers"])?;
        keys.flags("attention.sliding_window_pattern", (0..layers).map(|layer| layer % 4 != 0));
    }
    const BASES: &str = "layer_rope_theta";
    if let Some(bases) = config.numbers(BASES)? {
        // A base of 0 means that the layer has no RoPE.
        let mut turned = bases.iter().copied().filter(|base| *base != 0.0);
        if let Some(base) = turned.next() {
            if let Some(other) = turned.find(|other| *other != base) {
                return Err(config.wrong(BASES, format!("{base} and {other}"), "one number for all layers, or 0"));
            }
            keys.put("rope.freq_base", base as f32);
        }
        keys.flags("attention.rope_pattern", bases.into_iter().map(|base| base != 0.0));
    }
    Ok(())
}

fn granite_hybrid(keys: &mut Keys<'_>) -> Result<(), CheckpointError> {
    let config = keys.config;
    granite(keys)?;
    let kinds = kinds(config)?;
    let roped = config.text(&["position_embedding_type"])? == Some("rope");
    keys.put("rope.scaling.finetuned", roped);
    if !roped {
        keys.put("context_length", WITHOUT_ROPE);
    }
    if config.count(&["num_local_experts"])?.unwrap_or(0) == 0 {
        // Without routed experts, the shared expert is the dense network.
        keys.count("feed_forward_length", &["shared_intermediate_size"])?;
        keys.put("expert_used_count", 0u32);
    }
    keys.count("expert_shared_feed_forward_length", &["shared_intermediate_size"])?;
    if kinds.contains(&Kind::Recurrent) { states(keys, &kinds) } else { Ok(()) }
}

fn bamba(keys: &mut Keys<'_>) -> Result<(), CheckpointError> {
    let kinds = kinds(keys.config)?;
    keys.put("rope.scaling.finetuned", true);
    keys.rotated_part(0.5)?;
    for key in ["attention_bias", "mlp_bias", "mamba_proj_bias"] {
        keys.refuse(key, |value| value.as_bool() == Some(true), "false")?;
    }
    states(keys, &kinds)
}

/// Puts the sizes of recurrent states, and the layers that have them.
fn states(keys: &mut Keys<'_>, kinds: &[Kind]) -> Result<(), CheckpointError> {
    let config = keys.config;
    heads_of_kinds(keys, kinds)?;
    let heads = config.require(&["mamba_n_heads"])?;
    // If the value is "auto", the inner width is divided equally among the heads.
    let head_dim = match config.value("mamba_d_head").is_some_and(|value| value.is_number()) {
        true => config.require(&["mamba_d_head"])?,
        false => {
            let inner = config.require(&["hidden_size"])?.checked_mul(config.require(&["mamba_expand"])?);
            inner.and_then(|inner| inner.checked_div(heads)).unwrap_or(0)
        }
    };
    let [taps, state, groups] = ["mamba_d_conv", "mamba_d_state", "mamba_n_groups"].map(|key| config.require(&[key]));
    mamba(keys, Mamba2 { taps: taps?, state_size: state?, groups: groups?, heads, head_dim })
}
