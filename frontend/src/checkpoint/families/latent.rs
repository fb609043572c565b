//! Models with latent attention.

use super::super::error::CheckpointError;
use super::super::keys::Keys;
use super::super::names::{Rule, latent_keys_values, plain, rule};
use super::{Family, INDEXED, SIGMOID, USUAL, leading_dense};

pub(super) static ROWS: &[Family] = &[
    Family {
        model_types: &["deepseek_v2"],
        architecture: "deepseek2",
        keys: latent,
        tensors: &[LATENT],
        ignores_head_dim: true,
        defaults: r#"{"max_position_embeddings": 2048, "rms_norm_eps": 1e-6, "norm_topk_prob": false, "routed_scaling_factor": 1.0,
            "n_shared_experts": 2, "first_k_dense_replace": 0, "moe_intermediate_size": 1407, "kv_lora_rank": 512, "q_lora_rank": 1536,
            "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128}"#,
        ..USUAL
    },
    Family {
        model_types: &["deepseek_v3", "kimi_k2"],
        architecture: "deepseek2",
        keys: |keys| {
            // Configurations that transformers wrote itself have no `scoring_func`.
            keys.default("expert_gating_func", SIGMOID);
            latent(keys)
        },
        tensors: &[LATENT],
        ignores_head_dim: true,
        defaults: r#"{"max_position_embeddings": 4096, "rms_norm_eps": 1e-6, "norm_topk_prob": true, "routed_scaling_factor": 2.5,
            "n_group": 8, "topk_group": 4, "num_experts_per_tok": 8, "n_shared_experts": 1, "first_k_dense_replace": 3,
            "moe_intermediate_size": 2048, "kv_lora_rank": 512, "q_lora_rank": 1536, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128,
            "v_head_dim": 128}"#,
        ..USUAL
    },
    Family {
        model_types: &["glm4_moe_lite"],
        architecture: "deepseek2",
        keys: |keys| {
            keys.default("expert_gating_func", SIGMOID);
            latent(keys)
        },
        tensors: &[LATENT],
        ignores_head_dim: true,
        defaults: r#"{"max_position_embeddings": 202752, "rms_norm_eps": 1e-5, "norm_topk_prob": true, "routed_scaling_factor": 1.8,
            "n_group": 1, "topk_group": 1, "num_experts_per_tok": 4, "n_shared_experts": 1, "moe_intermediate_size": 1536,
            "kv_lora_rank": 512, "q_lora_rank": 768, "qk_rope_head_dim": 64, "qk_nope_head_dim": 192, "v_head_dim": 256}"#,
        ..USUAL
    },
    Family {
        model_types: &["deepseek_v32"],
        architecture: "deepseek32",
        keys: indexed,
        tensors: &[LATENT, INDEX],
        single: &INDEXED,
        ignores_head_dim: true,
        defaults: r#"{"max_position_embeddings": 163840, "rms_norm_eps": 1e-6, "norm_topk_prob": true, "routed_scaling_factor": 2.5,
            "n_group": 8, "topk_group": 4, "num_experts_per_tok": 8, "n_shared_experts": 1, "first_k_dense_replace": 3,
            "moe_intermediate_size": 2048, "kv_lora_rank": 512, "q_lora_rank": 1536, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128,
            "v_head_dim": 128, "index_topk": 2048, "index_head_dim": 128, "index_n_heads": 64}"#,
        ..USUAL
    },
    Family {
        model_types: &["glm_moe_dsa"],
        architecture: "glm-dsa",
        keys: |keys| {
            indexed(keys)?;
            if let Some(kinds) = keys.config.texts("indexer_types")? {
                keys.flags("attention.indexer.types", kinds.iter().map(|kind| *kind == "full"));
            }
            Ok(())
        },
        tensors: &[LATENT, INDEX],
        single: &INDEXED,
        ignores_head_dim: true,
        defaults: r#"{"max_position_embeddings": 202752, "rms_norm_eps": 1e-5, "norm_topk_prob": true, "routed_scaling_factor": 2.5,
            "n_group": 1, "topk_group": 1, "num_experts_per_tok": 8, "n_shared_experts": 1, "first_k_dense_replace": 3,
            "moe_intermediate_size": 2048, "kv_lora_rank": 512, "q_lora_rank": 2048, "qk_rope_head_dim": 64, "qk_nope_head_dim": 192,
            "v_head_dim": 256, "index_topk": 2048, "index_head_dim": 128, "index_n_heads": 32}"#,
        ..USUAL
    },
    Family {
        model_types: &["mistral4"],
        architecture: "mistral4",
        keys: |keys| {
            latent(keys)?;
            if let (Some(scale), Some(yarn)) = (keys.rope_number("llama_4_scaling_beta")?, keys.yarn()?) {
                keys.put("attention.temperature_scale", scale as f32);
                keys.put("attention.temperature_length", yarn.context);
            }
            Ok(())
        },
        tensors: &[LATENT, MISTRAL_4],
        ignores_head_dim: true,
        defaults: r#"{"max_position_embeddings": 1048576, "rms_norm_eps": 1e-6, "norm_topk_prob": true, "routed_scaling_factor": 1.0,
            "n_group": 1, "topk_group": 1, "num_experts_per_tok": 4, "n_routed_experts": 128, "n_shared_experts": 1,
            "first_k_dense_replace": 0, "moe_intermediate_size": 2048, "kv_lora_rank": 256, "q_lora_rank": 1024, "qk_rope_head_dim": 64,
            "qk_nope_head_dim": 64, "v_head_dim": 128, "rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4, "factor": 128.0,
            "original_max_position_embeddings": 8192, "beta_fast": 32.0, "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0,
            "llama_4_scaling_beta": 0.1}}"#,
        ..USUAL
    },
];

/// Latent attention.
pub(super) static LATENT: &[Rule] = &[
    rule("model.layers.{L}.self_attn.q_a_proj", "blk.{L}.attn_q_a", plain),
    rule("model.layers.{L}.self_attn.q_a_layernorm", "blk.{L}.attn_q_a_norm", plain),
    rule("model.layers.{L}.self_attn.q_b_proj", "blk.{L}.attn_q_b", plain),
    rule("model.layers.{L}.self_attn.kv_a_proj_with_mqa", "blk.{L}.attn_kv_a_mqa", plain),
    rule("model.layers.{L}.self_attn.kv_a_layernorm", "blk.{L}.attn_kv_a_norm", plain),
    rule("model.layers.{L}.self_attn.kv_b_proj.weight", "blk.{L}.attn_{P}.weight", latent_keys_values),
];

/// What chooses the positions of attention.
static INDEX: &[Rule] = &[
    rule("model.layers.{L}.self_attn.indexer.k_norm", "blk.{L}.indexer.k_norm", plain),
    rule("model.layers.{L}.self_attn.indexer.weights_proj", "blk.{L}.indexer.proj", plain),
    rule("model.layers.{L}.self_attn.indexer.wk", "blk.{L}.indexer.attn_k", plain),
    rule("model.layers.{L}.self_attn.indexer.wq_b", "blk.{L}.indexer.attn_q_b", plain),
];

/// Mistral 4: gates and up of experts stay one tensor.
static MISTRAL_4: &[Rule] =
    &[rule("model.layers.{L}.mlp.experts.gate_up_proj", "blk.{L}.ffn_gate_up_exps.weight", plain)];

pub(super) fn latent(keys: &mut Keys<'_>) -> Result<(), CheckpointError> {
    // Absorbed: one key head, which is what is kept of a position.
    keys.put("attention.head_count_kv", 1u32);
    let rank = keys.config.require(&["kv_lora_rank"])?;
    let turned = keys.config.require(&["qk_rope_head_dim"])?;
    let still = keys.config.require(&["qk_nope_head_dim"])?;
    let (Some(kept), Some(key)) = (rank.checked_add(turned), still.checked_add(turned)) else {
        return Err(keys.config.wrong("kv_lora_rank", rank.to_string(), "a length of a row"));
    };
    keys.put("attention.kv_lora_rank", rank);
    keys.count("attention.q_lora_rank", &["q_lora_rank"])?;
    keys.put("attention.key_length", kept);
    keys.put("attention.value_length", rank);
    keys.put("attention.key_length_mla", key);
    keys.count("attention.value_length_mla", &["v_head_dim"])?;
    keys.put("rope.dimension_count", turned);
    keys.count("expert_feed_forward_length", &["moe_intermediate_size", "intermediate_size"])?;
    keys.count("expert_shared_count", &["n_shared_experts"])?;
    let dense = match leading_dense(keys.config)? {
        Some(dense) => dense,
        None if ["n_routed_experts", "num_experts"].into_iter().any(|key| keys.config.has(key)) => 0,
        None => keys.config.require(&["num_hidden_layers"])?,
    };
    keys.put("leading_dense_block_count", dense);
    keys.number("expert_weights_scale", &["routed_scaling_factor"])?;
    if keys.config.flag(&["norm_topk_prob"])? == Some(true) {
        keys.put("expert_weights_norm", true);
    }
    if let Some(weight) = keys.rope_number("mscale_all_dim")? {
        // GGUF has a tenth of it.
        keys.put("rope.scaling.yarn_log_multiplier", (0.1 * weight) as f32);
    }
    if let Some(yarn) = keys.yarn()? {
        // Scores have their factor: what turns is multiplied by nothing else than this.
        keys.put("rope.scaling.attn_factor", yarn.magnitude as f32);
    }
    Ok(())
}

fn indexed(keys: &mut Keys<'_>) -> Result<(), CheckpointError> {
    latent(keys)?;
    keys.count("attention.indexer.head_count", &["index_n_heads"])?;
    keys.count("attention.indexer.key_length", &["index_head_dim"])?;
    keys.count("attention.indexer.top_k", &["index_topk"])
}
