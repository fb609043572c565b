//! Qwen.

use super::super::error::CheckpointError;
use super::super::keys::Keys;
use super::super::names::{
    Rule, by_key_head, decay, down_either, gate_up_either, plain, plus_one, rule, taps, turned_columns, turned_decay,
    turned_heads, turned_taps, turned_values, values_in_turns,
};
use super::{Family, USUAL};

pub(super) static ROWS: &[Family] = &[
    Family {
        model_types: &["qwen2"],
        architecture: "qwen2",
        defaults: r#"{"max_position_embeddings": 32768, "rms_norm_eps": 1e-6, "num_key_value_heads": 32}"#,
        ..USUAL
    },
    Family {
        model_types: &["qwen2_moe"],
        architecture: "qwen2moe",
        keys: qwen_moe,
        defaults: r#"{"max_position_embeddings": 32768, "rms_norm_eps": 1e-6, "num_key_value_heads": 16, "num_experts": 60,
            "num_experts_per_tok": 4, "moe_intermediate_size": 1408, "shared_expert_intermediate_size": 5632, "norm_topk_prob": false}"#,
        ..USUAL
    },
    Family {
        model_types: &["qwen3"],
        architecture: "qwen3",
        defaults: r#"{"max_position_embeddings": 32768, "rms_norm_eps": 1e-6, "num_key_value_heads": 32, "head_dim": 128}"#,
        ..USUAL
    },
    Family {
        model_types: &["qwen3_moe"],
        architecture: "qwen3moe",
        keys: qwen_moe,
        defaults: r#"{"max_position_embeddings": 32768, "rms_norm_eps": 1e-6, "num_key_value_heads": 4, "num_experts": 128,
            "num_experts_per_tok": 8, "moe_intermediate_size": 768, "norm_topk_prob": false}"#,
        ..USUAL
    },
    Family {
        model_types: &["qwen3_next"],
        architecture: "qwen3next",
        keys: linear,
        tensors: &[QWEN_3_NEXT],
        defaults: r#"{"max_position_embeddings": 32768, "rms_norm_eps": 1e-6, "num_attention_heads": 16, "num_key_value_heads": 2,
            "head_dim": 256, "num_experts": 512, "num_experts_per_tok": 10, "moe_intermediate_size": 512,
            "shared_expert_intermediate_size": 512, "norm_topk_prob": true, "linear_conv_kernel_dim": 4, "linear_key_head_dim": 128,
            "linear_value_head_dim": 128, "linear_num_key_heads": 16, "linear_num_value_heads": 32}"#,
        ..USUAL
    },
    Family {
        model_types: &["qwen3_5", "qwen3_5_text"],
        architecture: "qwen35",
        keys: linear,
        tensors: &[QWEN_3_5],
        defaults: r#"{"hidden_size": 4096, "intermediate_size": 12288, "num_hidden_layers": 32, "num_attention_heads": 16,
            "num_key_value_heads": 4, "head_dim": 256, "max_position_embeddings": 32768, "rms_norm_eps": 1e-6,
            "linear_conv_kernel_dim": 4, "linear_key_head_dim": 128, "linear_value_head_dim": 128,
            "linear_num_key_heads": 16, "linear_num_value_heads": 32}"#,
        ..USUAL
    },
    Family {
        model_types: &["qwen3_5_moe", "qwen3_5_moe_text"],
        architecture: "qwen35moe",
        keys: linear,
        tensors: &[QWEN_3_5],
        defaults: r#"{"hidden_size": 2048, "num_hidden_layers": 40, "num_attention_heads": 16, "num_key_value_heads": 2,
            "head_dim": 256, "max_position_embeddings": 32768, "rms_norm_eps": 1e-6, "num_experts": 256, "num_experts_per_tok": 8,
            "moe_intermediate_size": 512, "shared_expert_intermediate_size": 512,
            "linear_conv_kernel_dim": 4, "linear_key_head_dim": 128, "linear_value_head_dim": 128,
            "linear_num_key_heads": 16, "linear_num_value_heads": 32}"#,
        ..USUAL
    },
    Family {
        model_types: &["qwen3_vl", "qwen3_vl_text"],
        architecture: "qwen3vl",
        keys: vision,
        defaults: r#"{"hidden_size": 4096, "intermediate_size": 22016, "num_hidden_layers": 32, "num_attention_heads": 32,
            "num_key_value_heads": 32, "head_dim": 128, "max_position_embeddings": 128000, "rms_norm_eps": 1e-6, "rope_theta": 5e5}"#,
        ..USUAL
    },
    Family {
        model_types: &["qwen3_vl_moe", "qwen3_vl_moe_text"],
        architecture: "qwen3vlmoe",
        keys: |keys| {
            qwen_moe(keys)?;
            vision(keys)
        },
        tensors: &[QWEN_3_VL_MOE],
        defaults: r#"{"hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 24, "num_attention_heads": 16,
            "num_key_value_heads": 16, "head_dim": 128, "max_position_embeddings": 128000, "rms_norm_eps": 1e-6, "rope_theta": 5e5,
            "num_experts": 60, "num_experts_per_tok": 4, "moe_intermediate_size": 1408}"#,
        ..USUAL
    },
];

/// Qwen3-Next: fused projections by key head; norms multiply by one more, but for that of linear attention.
static QWEN_3_NEXT: &[Rule] = &[
    rule("model.norm", "output_norm", plus_one),
    rule("model.layers.{L}.input_layernorm", "blk.{L}.attn_norm", plus_one),
    rule("model.layers.{L}.post_attention_layernorm", "blk.{L}.post_attention_norm", plus_one),
    rule("model.layers.{L}.self_attn.q_norm", "blk.{L}.attn_q_norm", plus_one),
    rule("model.layers.{L}.self_attn.k_norm", "blk.{L}.attn_k_norm", plus_one),
    rule("model.layers.{L}.linear_attn.in_proj_qkvz.weight", "blk.{L}.attn_{P}.weight", by_key_head),
    rule("model.layers.{L}.linear_attn.in_proj_ba", "blk.{L}.ssm_ba", plain),
    rule("model.layers.{L}.linear_attn.conv1d", "blk.{L}.ssm_conv1d", taps),
    rule("model.layers.{L}.linear_attn.A_log", "blk.{L}.ssm_a", decay),
    rule("model.layers.{L}.linear_attn.dt_bias", "blk.{L}.ssm_dt.bias", plain),
    rule("model.layers.{L}.linear_attn.norm", "blk.{L}.ssm_norm", plain),
    rule("model.layers.{L}.linear_attn.out_proj", "blk.{L}.ssm_out", plain),
];

/// Qwen3.5: value heads in turns.
static QWEN_3_5: &[Rule] = &[
    rule("model.norm", "output_norm", plus_one),
    rule("model.layers.{L}.input_layernorm", "blk.{L}.attn_norm", plus_one),
    rule("model.layers.{L}.post_attention_layernorm", "blk.{L}.post_attention_norm", plus_one),
    rule("model.layers.{L}.self_attn.q_norm", "blk.{L}.attn_q_norm", plus_one),
    rule("model.layers.{L}.self_attn.k_norm", "blk.{L}.attn_k_norm", plus_one),
    rule("model.layers.{L}.linear_attn.in_proj_qkv", "blk.{L}.attn_qkv", values_in_turns),
    rule("model.layers.{L}.linear_attn.in_proj_z", "blk.{L}.attn_gate", turned_values),
    rule("model.layers.{L}.linear_attn.in_proj_b", "blk.{L}.ssm_beta", turned_heads),
    rule("model.layers.{L}.linear_attn.in_proj_a", "blk.{L}.ssm_alpha", turned_heads),
    rule("model.layers.{L}.linear_attn.conv1d", "blk.{L}.ssm_conv1d", turned_taps),
    rule("model.layers.{L}.linear_attn.A_log", "blk.{L}.ssm_a", turned_decay),
    rule("model.layers.{L}.linear_attn.dt_bias", "blk.{L}.ssm_dt.bias", turned_heads),
    rule("model.layers.{L}.linear_attn.norm", "blk.{L}.ssm_norm", plain),
    rule("model.layers.{L}.linear_attn.out_proj", "blk.{L}.ssm_out", turned_columns),
];

/// Qwen3-VL with experts: their matrices are transposed, mostly.
static QWEN_3_VL_MOE: &[Rule] = &[
    rule("model.layers.{L}.mlp.experts.gate_up_proj", "blk.{L}.ffn_{P}_exps.weight", gate_up_either),
    rule("model.layers.{L}.mlp.experts.down_proj", "blk.{L}.ffn_down_exps.weight", down_either),
];

fn qwen_moe(keys: &mut Keys<'_>) -> Result<(), CheckpointError> {
    keys.count("expert_feed_forward_length", &["moe_intermediate_size"])?;
    keys.count("expert_shared_feed_forward_length", &["shared_expert_intermediate_size"])?;
    keys.refuse("mlp_only_layers", |value| value.as_array().is_none_or(|layers| !layers.is_empty()), "an empty array")?;
    keys.refuse("decoder_sparse_step", |value| value.as_u64() != Some(1), "1")?;
    keys.normalise(&["norm_topk_prob"])
}

/// What only pictures need is left out.
fn vision(keys: &mut Keys<'_>) -> Result<(), CheckpointError> {
    keys.put("n_deepstack_layers", 0u32);
    Ok(())
}

/// Layers of linear attention between others.
fn linear(keys: &mut Keys<'_>) -> Result<(), CheckpointError> {
    keys.count("expert_feed_forward_length", &["moe_intermediate_size"])?;
    keys.count("expert_shared_feed_forward_length", &["shared_expert_intermediate_size"])?;
    keys.count("ssm.conv_kernel", &["linear_conv_kernel_dim"])?;
    keys.count("ssm.state_size", &["linear_key_head_dim"])?;
    keys.count("ssm.group_count", &["linear_num_key_heads"])?;
    let heads = keys.config.require(&["linear_num_value_heads"])?;
    let inner = heads.checked_mul(keys.config.require(&["linear_value_head_dim"])?);
    keys.put("ssm.time_step_rank", heads);
    let inner = inner.ok_or_else(|| keys.config.wrong("linear_value_head_dim", "too large", "a length of a head"))?;
    keys.put("ssm.inner_size", inner);
    match keys.config.texts("layer_types")? {
        Some(types) => keys.flags("attention.recurrent_layers", types.iter().map(|kind| *kind == "linear_attention")),
        None => keys.put("full_attention_interval", keys.config.count(&["full_attention_interval"])?.unwrap_or(4)),
    }
    keys.rotated_part(0.25)
}
