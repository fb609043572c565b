//! Models with layers of state spaces: Mamba, Mamba-2, and hybrids of these with attention.

use std::collections::HashSet;

use super::super::conversions::{
    embedding, gates, key, keys_of_attention, logits, of_attention, out_of_attention, out_of_network, plain, query,
};
use super::super::error::CheckpointError;
use super::super::keys::Keys;
use super::super::names::{Rule, rule};
use super::super::state_conversions::{by_group, decay, into_states, out_of_states, taps};
use super::dense::PLAMO_BLOCKS;
use super::layer_kinds::{Kind, heads_of_kinds, kinds};
use super::{Family, USUAL, WITHOUT_ROPE};

const NEMOTRON: &str = r#"{"hidden_size": 4096, "intermediate_size": 21504, "num_attention_heads": 32, "num_key_value_heads": 8,
    "head_dim": 128, "layer_norm_epsilon": 1e-5, "ssm_state_size": 128, "mamba_num_heads": 128, "mamba_head_dim": 64, "n_groups": 8,
    "conv_kernel": 4, "n_shared_experts": 1, "moe_intermediate_size": 7688, "moe_shared_expert_intermediate_size": 7688,
    "routed_scaling_factor": 1.0, "n_group": 1, "topk_group": 1, "norm_topk_prob": true, "num_experts_per_tok": 2,
    "n_routed_experts": 8}"#;

pub(super) static ROWS: &[Family] = &[
    Family {
        model_types: &["nemotron_h"],
        architecture: "nemotron_h_moe",
        keys: nemotron_h,
        tensors: &[NEMOTRON_H],
        defaults: NEMOTRON,
        applies: |config| Ok(kinds(config)?.contains(&Kind::Experts)),
        ..USUAL
    },
    Family {
        model_types: &["nemotron_h"],
        architecture: "nemotron_h",
        keys: nemotron_h,
        tensors: &[NEMOTRON_H],
        defaults: NEMOTRON,
        ..USUAL
    },
    Family {
        model_types: &["mamba2"],
        architecture: "mamba2",
        keys: |keys| {
            keys.put("context_length", WITHOUT_ROPE);
            keys.put("feed_forward_length", 0u32);
            keys.put("attention.head_count", 0u32);
            keys.number("attention.layer_norm_rms_epsilon", &["layer_norm_epsilon"])?;
            keys.refuse("use_bias", |value| value.as_bool() == Some(true), "false")?;
            let sizes = ["conv_kernel", "state_size", "n_groups", "num_heads", "head_dim"];
            let [taps, state, groups, heads, head_dim] = sizes.map(|key| keys.config.require(&[key]));
            let sizes = Mamba2 { taps: taps?, state_size: state?, groups: groups?, heads: heads?, head_dim: head_dim? };
            mamba(keys, sizes)
        },
        tensors: &[NEMOTRON_H],
        ignores_head_dim: true,
        defaults: r#"{"hidden_size": 4096, "num_hidden_layers": 64, "num_heads": 128, "head_dim": 64, "state_size": 128, "n_groups": 8,
            "conv_kernel": 4, "layer_norm_epsilon": 1e-5}"#,
        ..USUAL
    },
    Family {
        model_types: &["mamba", "falcon_mamba"],
        architecture: "mamba",
        keys: mamba_1,
        tensors: &[MAMBA, NEMOTRON_H],
        ignores_head_dim: true,
        defaults: r#"{"hidden_size": 768, "num_hidden_layers": 32, "state_size": 16, "expand": 2, "conv_kernel": 4,
            "layer_norm_epsilon": 1e-5, "mixer_rms_eps": 1e-6, "head_dim": 1, "tie_word_embeddings": true}"#,
        ..USUAL
    },
    Family {
        model_types: &["jamba"],
        architecture: "jamba",
        keys: jamba,
        tensors: &[JAMBA],
        ignores_head_dim: true,
        defaults: r#"{"hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32,
            "num_key_value_heads": 8, "max_position_embeddings": 262144, "rms_norm_eps": 1e-6, "num_experts_per_tok": 2, "num_experts": 16,
            "attn_layer_period": 8, "attn_layer_offset": 4, "mamba_d_state": 16, "mamba_d_conv": 4, "mamba_expand": 2}"#,
        ..USUAL
    },
    Family {
        model_types: &["plamo2"],
        architecture: "plamo2",
        keys: plamo_2,
        tensors: &[PLAMO_BLOCKS, PLAMO_2],
        ignores_head_dim: true,
        defaults: r#"{"hidden_size": 4096, "intermediate_size": 13312, "num_hidden_layers": 32, "num_attention_heads": 32,
            "num_key_value_heads": 4, "hidden_size_per_head": 128, "max_position_embeddings": 2048, "attention_window_size": 2048,
            "rms_norm_eps": 1e-6, "rope_theta": 1e4, "mamba_d_state": 64, "mamba_d_conv": 4, "mamba_num_heads": 64, "mamba_step": 2,
            "mamba_enabled": true, "tie_word_embeddings": true}"#,
        ..USUAL
    },
    Family {
        model_types: &["falcon_h1"],
        architecture: "falcon-h1",
        keys: falcon_h1,
        tensors: &[FALCON_H1],
        defaults: r#"{"hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32,
            "num_key_value_heads": 8, "max_position_embeddings": 8192, "rms_norm_eps": 1e-5, "mamba_d_ssm": 1024, "mamba_n_heads": 128,
            "mamba_n_groups": 1, "mamba_d_state": 256, "mamba_d_conv": 4, "mamba_expand": 2, "mamba_norm_before_gate": true,
            "mamba_rms_norm": false}"#,
        ..USUAL
    },
];

/// Rules for Falcon-H1, which has attention and a state space in parallel. The model's factors are
/// multiplied into the matrices, as in GGUF files.
static FALCON_H1: &[Rule] = &[
    rule("model.embed_tokens", "token_embd", embedding),
    rule("model.final_layernorm", "output_norm", plain),
    rule("lm_head", "output", logits),
    rule("model.layers.{L}.pre_ff_layernorm.weight", "blk.{L}.ffn_norm", plain),
    rule("model.layers.{L}.self_attn.q_proj", "blk.{L}.attn_q", of_attention),
    rule("model.layers.{L}.self_attn.k_proj", "blk.{L}.attn_k", keys_of_attention),
    rule("model.layers.{L}.self_attn.v_proj", "blk.{L}.attn_v", of_attention),
    rule("model.layers.{L}.self_attn.o_proj", "blk.{L}.attn_output", out_of_attention),
    rule("model.layers.{L}.feed_forward.gate_proj", "blk.{L}.ffn_gate", gates),
    rule("model.layers.{L}.feed_forward.up_proj", "blk.{L}.ffn_up", plain),
    rule("model.layers.{L}.feed_forward.down_proj", "blk.{L}.ffn_down", out_of_network),
    rule("model.layers.{L}.mamba.in_proj", "blk.{L}.ssm_in", into_states),
    rule("model.layers.{L}.mamba.conv1d", "blk.{L}.ssm_conv1d", taps),
    rule("model.layers.{L}.mamba.A_log", "blk.{L}.ssm_a", decay),
    rule("model.layers.{L}.mamba.D", "blk.{L}.ssm_d", plain),
    rule("model.layers.{L}.mamba.dt_bias", "blk.{L}.ssm_dt.bias", plain),
    rule("model.layers.{L}.mamba.norm", "blk.{L}.ssm_norm", by_group),
    rule("model.layers.{L}.mamba.out_proj", "blk.{L}.ssm_out", out_of_states),
];

/// Rules for Nemotron-H: each layer is one block after one norm. There is no RoPE, but rows of
/// queries and keys are ordered as for adjacent RoPE pairs.
static NEMOTRON_H: &[Rule] = &[
    rule("model.embeddings", "token_embd", plain),
    rule("model.norm_f", "output_norm", plain),
    rule("model.layers.{L}.norm", "blk.{L}.attn_norm", plain),
    rule("model.layers.{L}.mixer.q_proj", "blk.{L}.attn_q", query),
    rule("model.layers.{L}.mixer.k_proj", "blk.{L}.attn_k", key),
    rule("model.layers.{L}.mixer.v_proj", "blk.{L}.attn_v", plain),
    rule("model.layers.{L}.mixer.o_proj", "blk.{L}.attn_output", plain),
    rule("model.layers.{L}.mixer.in_proj", "blk.{L}.ssm_in", plain),
    rule("model.layers.{L}.mixer.conv1d", "blk.{L}.ssm_conv1d", taps),
    rule("model.layers.{L}.mixer.A_log", "blk.{L}.ssm_a", decay),
    rule("model.layers.{L}.mixer.D", "blk.{L}.ssm_d", plain),
    rule("model.layers.{L}.mixer.dt_bias", "blk.{L}.ssm_dt.bias", plain),
    rule("model.layers.{L}.mixer.norm", "blk.{L}.ssm_norm", by_group),
    rule("model.layers.{L}.mixer.out_proj", "blk.{L}.ssm_out", plain),
    rule("model.layers.{L}.mixer.up_proj", "blk.{L}.ffn_up", plain),
    rule("model.layers.{L}.mixer.down_proj", "blk.{L}.ffn_down", plain),
    rule("model.layers.{L}.mixer.gate", "blk.{L}.ffn_gate_inp", plain),
    rule("model.layers.{L}.mixer.gate.e_score_correction_bias", "blk.{L}.exp_probs_b.bias", plain),
    rule("model.layers.{L}.mixer.gate.e_score_correction.bias", "blk.{L}.exp_probs_b.bias", plain),
    rule("model.layers.{L}.mixer.experts.{E}.up_proj", "blk.{L}.ffn_up_exps", plain),
    rule("model.layers.{L}.mixer.experts.{E}.down_proj", "blk.{L}.ffn_down_exps", plain),
    rule("model.layers.{L}.mixer.experts.up_proj", "blk.{L}.ffn_up_exps.weight", plain),
    rule("model.layers.{L}.mixer.experts.down_proj", "blk.{L}.ffn_down_exps.weight", plain),
    rule("model.layers.{L}.mixer.shared_experts.up_proj", "blk.{L}.ffn_up_shexp", plain),
    rule("model.layers.{L}.mixer.shared_experts.down_proj", "blk.{L}.ffn_down_shexp", plain),
    rule("model.layers.{L}.mixer.fc1_latent_proj", "blk.{L}.ffn_latent_down", plain),
    rule("model.layers.{L}.mixer.fc2_latent_proj", "blk.{L}.ffn_latent_up", plain),
];

/// Rules for Mamba-1. In addition to the tensors of Mamba-2, it has matrices that make steps, keys
/// and queries.
static MAMBA: &[Rule] = &[
    rule("model.layers.{L}.mixer.x_proj", "blk.{L}.ssm_x", plain),
    rule("model.layers.{L}.mixer.dt_proj", "blk.{L}.ssm_dt", plain),
];

/// Rules for the tensors that PLaMo 2 has in addition to those of PLaMo 3's blocks.
static PLAMO_2: &[Rule] = &[
    rule("model.layers.layers.{L}.mixer.q_weight", "blk.{L}.attn_q_norm.weight", plain),
    rule("model.layers.layers.{L}.mixer.k_weight", "blk.{L}.attn_k_norm.weight", plain),
    rule("model.layers.layers.{L}.mixer.in_proj", "blk.{L}.ssm_in", plain),
    rule("model.layers.layers.{L}.mixer.conv1d", "blk.{L}.ssm_conv1d", taps),
    rule("model.layers.layers.{L}.mixer.bcdt_proj", "blk.{L}.ssm_x", plain),
    rule("model.layers.layers.{L}.mixer.dt_proj", "blk.{L}.ssm_dt", plain),
    rule("model.layers.layers.{L}.mixer.dt_bias", "blk.{L}.ssm_dt.bias", plain),
    rule("model.layers.layers.{L}.mixer.dt_norm_weight", "blk.{L}.ssm_dt_norm", plain),
    rule("model.layers.layers.{L}.mixer.B_norm_weight", "blk.{L}.ssm_b_norm", plain),
    rule("model.layers.layers.{L}.mixer.C_norm_weight", "blk.{L}.ssm_c_norm", plain),
    rule("model.layers.layers.{L}.mixer.A_log", "blk.{L}.ssm_a", decay),
    rule("model.layers.layers.{L}.mixer.D", "blk.{L}.ssm_d", plain),
    rule("model.layers.layers.{L}.mixer.out_proj", "blk.{L}.ssm_out", plain),
    rule("model.layers.layers.{L}.mlp.gate_up_proj", "blk.{L}.ffn_up", plain),
];

/// Rules for Jamba: state spaces of Mamba-1 with norms. Each layer has experts or a dense network.
static JAMBA: &[Rule] = &[
    rule("model.final_layernorm", "output_norm", plain),
    rule("model.layers.{L}.pre_ff_layernorm", "blk.{L}.ffn_norm", plain),
    rule("model.layers.{L}.feed_forward.router", "blk.{L}.ffn_gate_inp", plain),
    rule("model.layers.{L}.feed_forward.gate_proj", "blk.{L}.ffn_gate", plain),
    rule("model.layers.{L}.feed_forward.up_proj", "blk.{L}.ffn_up", plain),
    rule("model.layers.{L}.feed_forward.down_proj", "blk.{L}.ffn_down", plain),
    rule("model.layers.{L}.feed_forward.experts.{E}.gate_proj", "blk.{L}.ffn_gate_exps", plain),
    rule("model.layers.{L}.feed_forward.experts.{E}.up_proj", "blk.{L}.ffn_up_exps", plain),
    rule("model.layers.{L}.feed_forward.experts.{E}.down_proj", "blk.{L}.ffn_down_exps", plain),
    rule("model.layers.{L}.mamba.in_proj", "blk.{L}.ssm_in", plain),
    rule("model.layers.{L}.mamba.conv1d", "blk.{L}.ssm_conv1d", taps),
    rule("model.layers.{L}.mamba.x_proj", "blk.{L}.ssm_x", plain),
    rule("model.layers.{L}.mamba.dt_proj", "blk.{L}.ssm_dt", plain),
    rule("model.layers.{L}.mamba.dt_layernorm", "blk.{L}.ssm_dt_norm", plain),
    rule("model.layers.{L}.mamba.b_layernorm", "blk.{L}.ssm_b_norm", plain),
    rule("model.layers.{L}.mamba.c_layernorm", "blk.{L}.ssm_c_norm", plain),
    rule("model.layers.{L}.mamba.A_log", "blk.{L}.ssm_a", decay),
    rule("model.layers.{L}.mamba.D", "blk.{L}.ssm_d", plain),
    rule("model.layers.{L}.mamba.out_proj", "blk.{L}.ssm_out", plain),
];

/// Sizes of Mamba-2's states.
pub(super) struct Mamba2 {
    /// Number of taps of the convolution.
    pub taps: u32,
    /// Number of elements of a key.
    pub state_size: u32,
    /// Number of groups of heads that share keys and queries.
    pub groups: u32,
    pub heads: u32,
    /// Number of elements of a head.
    pub head_dim: u32,
}

/// Puts sizes of Mamba-2's states.
pub(super) fn mamba(keys: &mut Keys<'_>, sizes: Mamba2) -> Result<(), CheckpointError> {
    let Mamba2 { taps, state_size, groups, heads, head_dim } = sizes;
    let inner = heads.checked_mul(head_dim);
    let inner = inner.ok_or_else(|| keys.config.wrong("mamba_head_dim", head_dim.to_string(), "a length of a head"))?;
    for (key, value) in [
        ("conv_kernel", taps),
        ("state_size", state_size),
        ("group_count", groups),
        ("time_step_rank", heads),
        ("inner_size", inner),
    ] {
        keys.put(&format!("ssm.{key}"), value);
    }
    Ok(())
}

/// Puts the sizes of Mamba-1's states. `expand` is the ratio of the inner width to the stream's
/// width. The rank of steps is a sixteenth of the stream's width, unless the configuration's key
/// `rank` states a number.
fn selective(keys: &mut Keys<'_>, taps: u32, state_size: u32, expand: u32, rank: &str) -> Result<(), CheckpointError> {
    let config = keys.config;
    let width = config.require(&["hidden_size"])?;
    let inner = width.checked_mul(expand).ok_or_else(|| config.wrong("expand", expand.to_string(), "a factor"))?;
    let rank = match config.value(rank).is_some_and(|value| value.is_number()) {
        true => config.require(&[rank])?,
        false => width.div_ceil(16),
    };
    for (key, value) in
        [("conv_kernel", taps), ("state_size", state_size), ("time_step_rank", rank), ("inner_size", inner)]
    {
        keys.put(&format!("ssm.{key}"), value);
    }
    Ok(())
}

fn mamba_1(keys: &mut Keys<'_>) -> Result<(), CheckpointError> {
    let config = keys.config;
    keys.put("context_length", WITHOUT_ROPE);
    keys.put("feed_forward_length", 0u32);
    keys.put("attention.head_count", 0u32);
    keys.number("attention.layer_norm_rms_epsilon", &["layer_norm_epsilon"])?;
    keys.refuse("use_bias", |value| value.as_bool() == Some(true), "false")?;
    let normed = config.text(&["model_type"])? == Some("falcon_mamba");
    keys.put("ssm.dt_b_c_rms", normed);
    if normed {
        keys.refuse("mixer_rms_eps", |value| value.as_f64() != Some(1e-6), "1e-6")?;
    }
    let [taps, state, expand] = ["conv_kernel", "state_size", "expand"].map(|key| config.require(&[key]));
    selective(keys, taps?, state?, expand?, "time_step_rank")
}

fn plamo_2(keys: &mut Keys<'_>) -> Result<(), CheckpointError> {
    let config = keys.config;
    keys.refuse("mamba_enabled", |value| value.as_bool() != Some(true), "true")?;
    let (layers, step) = (config.require(&["num_hidden_layers"])?, config.require(&["mamba_step"])?.max(1));
    // If the model has too few layers for the period, only the last layer has attention.
    let attends = |layer: u32| if layers <= step / 2 { layer + 1 == layers } else { layer % step == step / 2 };
    let kinds: Vec<Kind> =
        (0..layers).map(|layer| if attends(layer) { Kind::Attention } else { Kind::Recurrent }).collect();
    heads_of_kinds(keys, &kinds)?;
    let heads = config.require(&["num_attention_heads"])?;
    let of_layer = kinds.iter().map(|kind| if *kind == Kind::Attention { heads } else { 0 });
    keys.put("attention.head_count", of_layer.collect::<Vec<u32>>());
    // Attention layers have a window, except those that the configuration lists.
    let listed: HashSet<u32> = config.counts("full_attention_idx")?.unwrap_or_default().into_iter().collect();
    let windowed: Vec<bool> = (0..layers).map(|layer| attends(layer) && !listed.contains(&layer)).collect();
    if windowed.contains(&true) {
        keys.count("attention.sliding_window", &["attention_window_size"])?;
        keys.flags("attention.sliding_window_pattern", windowed.into_iter());
    }
    let length = config.require(&["hidden_size_per_head"])?;
    keys.put("attention.key_length", length);
    keys.put("attention.value_length", length);
    let [taps, state, heads] = ["mamba_d_conv", "mamba_d_state", "mamba_num_heads"].map(|key| config.require(&[key]));
    mamba(keys, Mamba2 { taps: taps?, state_size: state?, groups: 0, heads: heads?, head_dim: length })
}

fn jamba(keys: &mut Keys<'_>) -> Result<(), CheckpointError> {
    let config = keys.config;
    let [period, offset] = ["attn_layer_period", "attn_layer_offset"].map(|key| config.require(&[key]));
    let (period, offset) = (period?.max(1), offset?);
    let kind = |layer: u32| if layer % period == offset { Kind::Attention } else { Kind::Recurrent };
    let kinds: Vec<Kind> = (0..config.require(&["num_hidden_layers"])?).map(kind).collect();
    heads_of_kinds(keys, &kinds)?;
    keys.refuse("mamba_proj_bias", |value| value.as_bool() == Some(true), "false")?;
    let [taps, state, expand] = ["mamba_d_conv", "mamba_d_state", "mamba_expand"].map(|key| config.require(&[key]));
    selective(keys, taps?, state?, expand?, "mamba_dt_rank")
}

fn nemotron_h(keys: &mut Keys<'_>) -> Result<(), CheckpointError> {
    let config = keys.config;
    let kinds = kinds(config)?;
    let with_experts = kinds.contains(&Kind::Experts);
    keys.put("block_count", kinds.len() as u32);
    keys.put("context_length", WITHOUT_ROPE);
    keys.number("attention.layer_norm_rms_epsilon", &["layer_norm_epsilon", "rms_norm_eps"])?;
    let length = config.require(&["head_dim", "attention_head_dim"])?;
    keys.put("attention.key_length", length);
    keys.put("attention.value_length", length);
    heads_of_kinds(keys, &kinds)?;
    let width = config.require(&[if with_experts { "moe_intermediate_size" } else { "intermediate_size" }])?;
    let networks = kinds.iter().map(|kind| if matches!(kind, Kind::Network | Kind::Experts) { width } else { 0 });
    keys.put("feed_forward_length", networks.collect::<Vec<u32>>());
    if with_experts && kinds.contains(&Kind::Network) {
        return Err(config.wrong("layers_block_type", "of networks and of experts", "one of both"));
    }
    if with_experts {
        keys.count("expert_feed_forward_length", &["moe_intermediate_size"])?;
        keys.count("expert_shared_feed_forward_length", &["moe_shared_expert_intermediate_size"])?;
        keys.count("expert_shared_count", &["n_shared_experts"])?;
        keys.number("expert_weights_scale", &["routed_scaling_factor"])?;
        keys.count("moe_latent_size", &["moe_latent_size"])?;
        keys.normalise(&["norm_topk_prob"])?;
    } else {
        keys.put("expert_count", 0u32);
        keys.put("expert_used_count", 0u32);
    }
    keys.refuse("mlp_hidden_act", |value| value.as_str() != Some("relu2"), "relu2")?;
    let sizes = ["conv_kernel", "ssm_state_size", "n_groups", "mamba_num_heads", "mamba_head_dim"];
    let [taps, state, groups, heads, head_dim] = sizes.map(|key| config.require(&[key]));
    mamba(keys, Mamba2 { taps: taps?, state_size: state?, groups: groups?, heads: heads?, head_dim: head_dim? })
}

fn falcon_h1(keys: &mut Keys<'_>) -> Result<(), CheckpointError> {
    let config = keys.config;
    let heads = config.require(&["mamba_n_heads"])?;
    let inner = match config.count(&["mamba_d_ssm"])? {
        Some(inner) => inner,
        None => config.require(&["hidden_size"])?.saturating_mul(config.require(&["mamba_expand"])?),
    };
    let head_dim = inner.checked_div(heads).filter(|length| length.checked_mul(heads) == Some(inner));
    let head_dim = head_dim.ok_or_else(|| {
        config.wrong("mamba_d_ssm", inner.to_string(), format!("a multiple of mamba_n_heads, {heads}"))
    })?;
    if config.flag(&["mamba_rms_norm"])? == Some(true) {
        keys.refuse("mamba_norm_before_gate", |value| value.as_bool() == Some(true), "false")?;
    }
    // The embedding table and the output matrix have different factors, so they cannot be one
    // matrix.
    keys.refuse("tie_word_embeddings", |value| value.as_bool() == Some(true), "false")?;
    let [taps, state, groups] = ["mamba_d_conv", "mamba_d_state", "mamba_n_groups"].map(|key| config.require(&[key]));
    mamba(keys, Mamba2 { taps: taps?, state_size: state?, groups: groups?, heads, head_dim })
}
