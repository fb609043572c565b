//! Models with latent attention (MLA).

use super::super::config::Config;
use super::super::conversions::{divisors, gate_up_of_experts, latent_keys_values, norm_of_rank, plain, table};
use super::super::error::CheckpointError;
use super::super::keys::Keys;
use super::super::names::{Rule, rule};
use super::{Family, INDEXED, SIGMOID, SOFTMAX, USUAL, leading_dense, turned_layers};

pub(super) static ROWS: &[Family] = &[
    Family {
        model_types: &["deepseek_v2"],
        architecture: "deepseek2",
        keys: |keys| {
            latent(keys)?;
            // The authors' router either normalises the weights of experts or multiplies them by
            // the factor. The router in transformers never normalises.
            if keys.config.flag(&["norm_topk_prob"])? == Some(true) {
                match keys.config.count(&["num_experts_per_tok"])? {
                    Some(1) => keys.put("expert_weights_norm", false),
                    _ => keys.put("expert_weights_scale", 1.0f32),
                }
            }
            groups_by_method(keys)
        },
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
            // Configurations that transformers writes have no `scoring_func`.
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
        model_types: &["sarvam_mla"],
        architecture: "deepseek2",
        keys: |keys| {
            keys.default("expert_gating_func", SIGMOID);
            keys.count("expert_shared_count", &["num_shared_experts"])?;
            latent(keys)
        },
        tensors: &[LATENT],
        ignores_head_dim: true,
        defaults: r#"{"max_position_embeddings": 4096, "rms_norm_eps": 1e-6, "norm_topk_prob": true, "routed_scaling_factor": 2.5,
            "n_group": 1, "topk_group": 1, "num_experts_per_tok": 8, "first_k_dense_replace": 1, "moe_intermediate_size": 2048,
            "kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128}"#,
        ..USUAL
    },
    Family {
        model_types: &["axk1"],
        architecture: "axk1",
        keys: |keys| {
            keys.default("expert_gating_func", SIGMOID);
            latent(keys)
        },
        tensors: &[AXK_1, LATENT],
        ignores_head_dim: true,
        defaults: r#"{"hidden_size": 7168, "intermediate_size": 18432, "num_hidden_layers": 61, "num_attention_heads": 64,
            "max_position_embeddings": 32768, "rms_norm_eps": 1e-6, "norm_topk_prob": true, "routed_scaling_factor": 2.5,
            "n_group": 8, "topk_group": 4, "num_experts_per_tok": 8, "n_routed_experts": 192, "n_shared_experts": 1,
            "first_k_dense_replace": 1, "moe_intermediate_size": 2048, "kv_lora_rank": 512, "q_lora_rank": 1536, "qk_rope_head_dim": 64,
            "qk_nope_head_dim": 128, "v_head_dim": 128}"#,
        ..USUAL
    },
    // This row is for models without experts.
    Family {
        model_types: &["youtu"],
        architecture: "deepseek2",
        keys: latent,
        tensors: &[LATENT],
        ignores_head_dim: true,
        defaults: r#"{"hidden_size": 2048, "intermediate_size": 6144, "num_hidden_layers": 32, "num_attention_heads": 16,
            "max_position_embeddings": 131072, "rms_norm_eps": 1e-6, "tie_word_embeddings": true, "kv_lora_rank": 512,
            "q_lora_rank": 1536, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128}"#,
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
        model_types: &["dots3_note"],
        architecture: "dots3note",
        keys: dots_3,
        tensors: &[DOTS_3, LATENT, INDEX],
        single: &INDEXED,
        ignores_head_dim: true,
        defaults: r#"{"max_position_embeddings": 524288, "rms_norm_eps": 1e-5, "norm_topk_prob": true, "routed_scaling_factor": 1.0,
            "n_group": 1, "topk_group": 1, "num_experts_per_tok": 8, "n_routed_experts": 256, "n_shared_experts": 1,
            "first_k_dense_replace": 1, "moe_intermediate_size": 1536, "kv_lora_rank": 512, "q_lora_rank": 1024, "qk_rope_head_dim": 64,
            "qk_nope_head_dim": 128, "v_head_dim": 128, "index_topk": 2048, "index_head_dim": 128, "index_n_heads": 64,
            "rope_theta": 8e7, "sliding_window_size": 512, "swa_num_attention_heads": 64, "swa_q_lora_rank": 1024,
            "swa_kv_lora_rank": 1024, "swa_qk_nope_head_dim": 192, "swa_qk_rope_head_dim": 64, "swa_v_head_dim": 128}"#,
        ..USUAL
    },
    Family {
        model_types: &["hy_v4"],
        architecture: "hy_v4",
        keys: hy_4,
        tensors: &[LATENT, INDEX, HY_4],
        single: &["ffn_gate_inp.weight", "indexer.proj.weight", "_fn.weight", "_base.weight", "_scale.weight"],
        ignores_head_dim: true,
        defaults: r#"{"max_position_embeddings": 262144, "rms_norm_eps": 1e-5, "norm_topk_prob": true, "routed_scaling_factor": 2.827,
            "n_group": 1, "topk_group": 1, "num_experts_per_tok": 8, "n_routed_experts": 256, "n_shared_experts": 1,
            "moe_intermediate_size": 768, "kv_lora_rank": 512, "q_lora_rank": 1536, "qk_rope_head_dim": 64, "qk_nope_head_dim": 192,
            "v_head_dim": 256, "index_topk": 2048, "index_head_dim": 128, "index_n_heads": 16, "hc_mult": 4, "hc_magnitude": 2.0,
            "hc_eps": 1e-6, "swiglu_limit": 10.0}"#,
        ..USUAL
    },
    Family {
        model_types: &["mistral4"],
        architecture: "mistral4",
        keys: |keys| {
            latent(keys)?;
            if let Some(scale) = keys.rope_number("llama_4_scaling_beta")? {
                keys.put("attention.temperature_scale", scale as f32);
                if let Some(context) = keys.rope_number("original_max_position_embeddings")? {
                    keys.put("attention.temperature_length", context as u32);
                }
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
    Family {
        model_types: &["mistral_large4_text", "mistral_large4"],
        architecture: "mistral-large4",
        keys: mistral_large_4,
        tensors: &[LATENT, INDEX, MISTRAL_LARGE_4],
        single: &INDEXED,
        ignores_head_dim: true,
        defaults: r#"{"vocab_size": 204800, "hidden_size": 6144, "intermediate_size": 24576, "moe_intermediate_size": 6144,
            "num_hidden_layers": 72, "num_attention_heads": 64, "n_shared_experts": 1, "n_routed_experts": 128,
            "routed_scaling_factor": 1.0, "kv_lora_rank": 512, "qk_rope_head_dim": 64, "v_head_dim": 128, "qk_nope_head_dim": 64,
            "n_group": 1, "topk_group": 1, "num_experts_per_tok": 4, "max_position_embeddings": 1048576, "rms_norm_eps": 1e-5,
            "index_topk": 2048, "index_head_dim": 128, "index_n_heads": 32, "first_k_dense_replace": 1,
            "final_logit_softcapping": 30.0, "no_rope_layer_interval": 4, "index_topk_freq": 1, "index_skip_topk_offset": 2,
            "rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4, "factor": 2048.0, "original_max_position_embeddings": 512,
            "beta_fast": 32.0, "beta_slow": 1.0, "attention_factor": 1.0}}"#,
        ..USUAL
    },
    Family {
        model_types: &["longcat_flash"],
        architecture: "longcat-flash",
        keys: longcat_flash,
        tensors: &[LONGCAT_FLASH],
        ignores_head_dim: true,
        defaults: r#"{"hidden_size": 6144, "ffn_hidden_size": 12288, "expert_ffn_hidden_size": 2048, "num_attention_heads": 64,
            "max_position_embeddings": 131072, "rms_norm_eps": 1e-5, "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128,
            "qk_rope_head_dim": 64, "v_head_dim": 128, "moe_topk": 12, "n_routed_experts": 512, "zero_expert_num": 256,
            "routed_scaling_factor": 6.0, "rope_theta": 1e7}"#,
        ..USUAL
    },
    // This model belongs to the series, but has no latent attention.
    Family {
        model_types: &["deepseek_v4"],
        architecture: "deepseek4",
        keys: deepseek_4,
        tensors: &[DEEPSEEK_4],
        single: &["_ape.weight", "_fn.weight", "_base.weight", "_scale.weight"],
        defaults: r#"{"hidden_size": 4096, "num_hidden_layers": 43, "num_attention_heads": 64, "num_key_value_heads": 1, "head_dim": 512,
            "max_position_embeddings": 1048576, "rms_norm_eps": 1e-6, "rope_theta": 1e4, "q_lora_rank": 1024, "qk_rope_head_dim": 64,
            "sliding_window": 128, "o_groups": 8, "o_lora_rank": 1024, "compress_rope_theta": 160000.0, "index_n_heads": 64,
            "index_head_dim": 128, "index_topk": 512, "n_routed_experts": 256, "num_experts_per_tok": 6, "n_shared_experts": 1,
            "moe_intermediate_size": 2048, "routed_scaling_factor": 1.5, "norm_topk_prob": true, "scoring_func": "sqrtsoftplus",
            "swiglu_limit": 10.0, "hc_mult": 4, "hc_sinkhorn_iters": 20, "hc_eps": 1e-6}"#,
        ..USUAL
    },
];

/// Rules for DeepSeek-V4, for published files and for files that transformers writes.
static DEEPSEEK_4: &[Rule] = &[
    rule("embed", "token_embd", plain),
    rule("head", "output", plain),
    rule("hc_head_fn", "output_hc_fn.weight", plain),
    rule("hc_head_base", "output_hc_base.weight", plain),
    rule("hc_head_scale", "output_hc_scale.weight", plain),
    rule("model.hc_head.hc_fn", "output_hc_fn.weight", plain),
    rule("model.hc_head.hc_base", "output_hc_base.weight", plain),
    rule("model.hc_head.hc_scale", "output_hc_scale.weight", plain),
    rule("model.layers.{L}.attn_norm", "blk.{L}.attn_norm", plain),
    rule("model.layers.{L}.ffn_norm", "blk.{L}.ffn_norm", plain),
    rule("model.layers.{L}.hc_attn_fn", "blk.{L}.hc_attn_fn.weight", plain),
    rule("model.layers.{L}.hc_attn_base", "blk.{L}.hc_attn_base.weight", plain),
    rule("model.layers.{L}.hc_attn_scale", "blk.{L}.hc_attn_scale.weight", plain),
    rule("model.layers.{L}.hc_ffn_fn", "blk.{L}.hc_ffn_fn.weight", plain),
    rule("model.layers.{L}.hc_ffn_base", "blk.{L}.hc_ffn_base.weight", plain),
    rule("model.layers.{L}.hc_ffn_scale", "blk.{L}.hc_ffn_scale.weight", plain),
    rule("model.layers.{L}.attn.attn_sink", "blk.{L}.attn_sinks.weight", plain),
    rule("model.layers.{L}.attn.wq_a", "blk.{L}.attn_q_a", plain),
    rule("model.layers.{L}.attn.q_norm", "blk.{L}.attn_q_a_norm", plain),
    rule("model.layers.{L}.attn.wq_b", "blk.{L}.attn_q_b", plain),
    rule("model.layers.{L}.attn.wkv", "blk.{L}.attn_kv", plain),
    rule("model.layers.{L}.attn.kv_norm", "blk.{L}.attn_kv_a_norm", plain),
    rule("model.layers.{L}.attn.norm", "blk.{L}.attn_kv_a_norm", plain),
    rule("model.layers.{L}.attn.wo_a", "blk.{L}.attn_output_a", plain),
    rule("model.layers.{L}.attn.wo_b", "blk.{L}.attn_output_b", plain),
    rule("model.layers.{L}.attn.compressor.ape", "blk.{L}.attn_compressor_ape.weight", plain),
    rule("model.layers.{L}.attn.compressor.wkv", "blk.{L}.attn_compressor_kv", plain),
    rule("model.layers.{L}.attn.compressor.wgate", "blk.{L}.attn_compressor_gate", plain),
    rule("model.layers.{L}.attn.compressor.norm", "blk.{L}.attn_compressor_norm", plain),
    rule("model.layers.{L}.attn.indexer.compressor.ape", "blk.{L}.indexer_compressor_ape.weight", plain),
    rule("model.layers.{L}.attn.indexer.compressor.wkv", "blk.{L}.indexer_compressor_kv", plain),
    rule("model.layers.{L}.attn.indexer.compressor.wgate", "blk.{L}.indexer_compressor_gate", plain),
    rule("model.layers.{L}.attn.indexer.compressor.norm", "blk.{L}.indexer_compressor_norm", plain),
    rule("model.layers.{L}.attn.indexer.wq_b", "blk.{L}.indexer.attn_q_b", plain),
    rule("model.layers.{L}.attn.indexer.weights_proj", "blk.{L}.indexer.proj", plain),
    rule("model.layers.{L}.ffn.gate.bias", "blk.{L}.exp_probs_b.bias", plain),
    rule("model.layers.{L}.ffn.gate.bias_vl", "blk.{L}.exp_probs_b_vl.bias", plain),
    rule("model.layers.{L}.ffn.gate.tid2eid", "blk.{L}.ffn_gate_tid2eid.weight", table),
    rule("model.layers.{L}.ffn.gate", "blk.{L}.ffn_gate_inp", plain),
    rule("model.layers.{L}.ffn.experts.{E}.w1", "blk.{L}.ffn_gate_exps", plain),
    rule("model.layers.{L}.ffn.experts.{E}.w2", "blk.{L}.ffn_down_exps", plain),
    rule("model.layers.{L}.ffn.experts.{E}.w3", "blk.{L}.ffn_up_exps", plain),
    rule("model.layers.{L}.ffn.shared_experts.w1", "blk.{L}.ffn_gate_shexp", plain),
    rule("model.layers.{L}.ffn.shared_experts.w2", "blk.{L}.ffn_down_shexp", plain),
    rule("model.layers.{L}.ffn.shared_experts.w3", "blk.{L}.ffn_up_shexp", plain),
];

/// Rules for the matrices of latent attention.
pub(super) static LATENT: &[Rule] = &[
    rule("model.layers.{L}.self_attn.q_a_proj", "blk.{L}.attn_q_a", plain),
    rule("model.layers.{L}.self_attn.q_a_layernorm", "blk.{L}.attn_q_a_norm", plain),
    rule("model.layers.{L}.self_attn.q_b_proj", "blk.{L}.attn_q_b", plain),
    rule("model.layers.{L}.self_attn.kv_a_proj_with_mqa", "blk.{L}.attn_kv_a_mqa", plain),
    rule("model.layers.{L}.self_attn.kv_a_layernorm", "blk.{L}.attn_kv_a_norm", plain),
    rule("model.layers.{L}.self_attn.kv_b_proj.weight", "blk.{L}.attn_{P}.weight", latent_keys_values),
];

/// Rules for A.X K1: a norm follows the experts. In published files, it is not part of `mlp`.
static AXK_1: &[Rule] = &[
    rule("model.layers.{L}.post_mlp_layernorm", "blk.{L}.post_ffw_norm", plain),
    rule("model.layers.{L}.mlp.post_mlp_layernorm", "blk.{L}.post_ffw_norm", plain),
];

/// Rules for LongCat-Flash. A stored layer becomes two layers in GGUF files, and its experts belong
/// to the first. Identity experts have no matrices; the gate and up matrices that transformers
/// writes for them are dropped. Factors on latent rows are multiplied into the norms.
static LONGCAT_FLASH: &[Rule] = &[
    rule("model.layers.{L}.input_layernorm.{H}", "blk.{L}.attn_norm", plain),
    rule("model.layers.{L}.post_attention_layernorm.{H}", "blk.{L}.ffn_norm", plain),
    rule("model.layers.{L}.self_attn.{H}.q_a_proj", "blk.{L}.attn_q_a", plain),
    rule("model.layers.{L}.self_attn.{H}.q_a_layernorm", "blk.{L}.attn_q_a_norm", norm_of_rank),
    rule("model.layers.{L}.self_attn.{H}.q_b_proj", "blk.{L}.attn_q_b", plain),
    rule("model.layers.{L}.self_attn.{H}.kv_a_proj_with_mqa", "blk.{L}.attn_kv_a_mqa", plain),
    rule("model.layers.{L}.self_attn.{H}.kv_a_layernorm", "blk.{L}.attn_kv_a_norm", norm_of_rank),
    rule("model.layers.{L}.self_attn.{H}.kv_b_proj.weight", "blk.{L}.attn_{P}.weight", latent_keys_values),
    rule("model.layers.{L}.self_attn.{H}.o_proj", "blk.{L}.attn_output", plain),
    rule("model.layers.{L}.mlps.{H}.gate_proj", "blk.{L}.ffn_gate", plain),
    rule("model.layers.{L}.mlps.{H}.up_proj", "blk.{L}.ffn_up", plain),
    rule("model.layers.{L}.mlps.{H}.down_proj", "blk.{L}.ffn_down", plain),
    rule("model.layers.{L}.mlp.router.classifier", "blk.{2L}.ffn_gate_inp", plain),
    rule("model.layers.{L}.mlp.router.e_score_correction_bias", "blk.{2L}.exp_probs_b.bias", plain),
    rule("model.layers.{L}.mlp.experts.{X}.gate_proj", "blk.{2L}.ffn_gate_exps", plain),
    rule("model.layers.{L}.mlp.experts.{X}.up_proj", "blk.{2L}.ffn_up_exps", plain),
    rule("model.layers.{L}.mlp.experts.{E}.down_proj", "blk.{2L}.ffn_down_exps", plain),
    rule("model.layers.{L}.mlp.experts.gate_up_proj", "blk.{2L}.ffn_{P}_exps.weight", gate_up_of_experts),
    rule("model.layers.{L}.mlp.experts.down_proj", "blk.{2L}.ffn_down_exps.weight", plain),
];

/// Rules for the indexer, which selects the positions to attend to.
pub(super) static INDEX: &[Rule] = &[
    rule("model.layers.{L}.self_attn.indexer.k_norm", "blk.{L}.indexer.k_norm", plain),
    rule("model.layers.{L}.self_attn.indexer.weights_proj", "blk.{L}.indexer.proj", plain),
    rule("model.layers.{L}.self_attn.indexer.wk", "blk.{L}.indexer.attn_k", plain),
    rule("model.layers.{L}.self_attn.indexer.wq_b", "blk.{L}.indexer.attn_q_b", plain),
];

/// Rules for dots.3 note: gates of heads, a norm of a key's rotated part, and factors on latent
/// rows, which GGUF files have in norms.
static DOTS_3: &[Rule] = &[
    rule("model.layers.{L}.self_attn.g_proj", "blk.{L}.attn_gate", plain),
    rule("model.layers.{L}.self_attn.k_rope_only_layernorm", "blk.{L}.attn_k_norm", plain),
    rule("model.layers.{L}.self_attn.q_a_layernorm", "blk.{L}.attn_q_a_norm", norm_of_rank),
    rule("model.layers.{L}.self_attn.kv_a_layernorm", "blk.{L}.attn_kv_a_norm", norm_of_rank),
];

/// Rules for Hy4: several residual streams, and gates and sinks of attention.
static HY_4: &[Rule] = &[
    rule("model.hc_head.hc_head_fn", "output_hc_fn.weight", plain),
    rule("model.hc_head.hc_head_base", "output_hc_base.weight", plain),
    rule("model.hc_head.hc_head_scale", "output_hc_scale.weight", plain),
    rule("model.layers.{L}.hc_attn_layer.hc_pre.hc_fn", "blk.{L}.hc_attn_fn.weight", plain),
    rule("model.layers.{L}.hc_attn_layer.hc_pre.hc_base", "blk.{L}.hc_attn_base.weight", plain),
    rule("model.layers.{L}.hc_attn_layer.hc_pre.hc_scale", "blk.{L}.hc_attn_scale.weight", plain),
    rule("model.layers.{L}.hc_mlp_layer.hc_pre.hc_fn", "blk.{L}.hc_ffn_fn.weight", plain),
    rule("model.layers.{L}.hc_mlp_layer.hc_pre.hc_base", "blk.{L}.hc_ffn_base.weight", plain),
    rule("model.layers.{L}.hc_mlp_layer.hc_pre.hc_scale", "blk.{L}.hc_ffn_scale.weight", plain),
    rule("model.layers.{L}.self_attn.linear_gate", "blk.{L}.attn_gate", plain),
    rule("model.layers.{L}.self_attn.learnable_sink_param", "blk.{L}.attn_sinks.weight", plain),
];

/// Rules for Mistral 4: the gate and up matrices of experts stay one tensor.
static MISTRAL_4: &[Rule] =
    &[rule("model.layers.{L}.mlp.experts.gate_up_proj", "blk.{L}.ffn_gate_up_exps.weight", plain)];

/// Rules for Mistral Large 4, with the tensor names of transformers and those of files on the
/// Hugging Face Hub.
static MISTRAL_LARGE_4: &[Rule] = &[
    rule("tok_embeddings", "token_embd", plain),
    rule("output", "output", plain),
    rule("lerope.alpha", "rope_freqs.weight", divisors),
    rule("model.rotary_emb.alpha", "rope_freqs.weight", divisors),
    rule("model.layers.{L}.attention_norm", "blk.{L}.attn_norm", plain),
    rule("model.layers.{L}.ffn_norm", "blk.{L}.ffn_norm", plain),
    rule("model.layers.{L}.self_attn.softmax_scaling.scale", "blk.{L}.attn_temperature.weight", plain),
    rule("model.layers.{L}.self_attn.softmax_scaling", "blk.{L}.attn_temperature", plain),
    rule("model.layers.{L}.self_attn.indexer.softmax_scaling.scale", "blk.{L}.indexer.temperature.weight", plain),
    rule("model.layers.{L}.self_attn.indexer.softmax_scaling", "blk.{L}.indexer.temperature", plain),
    rule("model.layers.{L}.self_attn.indexer.q_input_norm", "blk.{L}.indexer.q_norm", plain),
    rule("model.layers.{L}.attention.wq", "blk.{L}.attn_q", plain),
    rule("model.layers.{L}.attention.wkv_a_with_mqa", "blk.{L}.attn_kv_a_mqa", plain),
    rule("model.layers.{L}.attention.kv_a_norm", "blk.{L}.attn_kv_a_norm", plain),
    rule("model.layers.{L}.attention.wkv_b.weight", "blk.{L}.attn_{P}.weight", latent_keys_values),
    rule("model.layers.{L}.attention.wo", "blk.{L}.attn_output", plain),
    rule("model.layers.{L}.attention.ssmax_scaling.s", "blk.{L}.attn_temperature.weight", plain),
    rule("model.layers.{L}.attention.ssmax_scaling.b", "blk.{L}.attn_temperature.bias", plain),
    rule("model.layers.{L}.attention.indexer.ssmax_scaling.s", "blk.{L}.indexer.temperature.weight", plain),
    rule("model.layers.{L}.attention.indexer.ssmax_scaling.b", "blk.{L}.indexer.temperature.bias", plain),
    rule("model.layers.{L}.attention.indexer.q_input_norm", "blk.{L}.indexer.q_norm", plain),
    rule("model.layers.{L}.attention.indexer.k_norm", "blk.{L}.indexer.k_norm", plain),
    rule("model.layers.{L}.attention.indexer.weights_proj", "blk.{L}.indexer.proj", plain),
    rule("model.layers.{L}.attention.indexer.wk", "blk.{L}.indexer.attn_k", plain),
    rule("model.layers.{L}.attention.indexer.wq_b", "blk.{L}.indexer.attn_q_b", plain),
    rule("model.layers.{L}.feed_forward.w1", "blk.{L}.ffn_gate", plain),
    rule("model.layers.{L}.feed_forward.w2", "blk.{L}.ffn_down", plain),
    rule("model.layers.{L}.feed_forward.w3", "blk.{L}.ffn_up", plain),
    rule("model.layers.{L}.gate", "blk.{L}.ffn_gate_inp", plain),
    rule("model.layers.{L}.experts.{E}.w1", "blk.{L}.ffn_gate_exps", plain),
    rule("model.layers.{L}.experts.{E}.w2", "blk.{L}.ffn_down_exps", plain),
    rule("model.layers.{L}.experts.{E}.w3", "blk.{L}.ffn_up_exps", plain),
    rule("model.layers.{L}.shared_experts.w1", "blk.{L}.ffn_gate_shexp", plain),
    rule("model.layers.{L}.shared_experts.w2", "blk.{L}.ffn_down_shexp", plain),
    rule("model.layers.{L}.shared_experts.w3", "blk.{L}.ffn_up_shexp", plain),
];

/// Epsilon of the norms of latent rows, which is a constant in transformers (`q_a_layernorm` and
/// `kv_a_layernorm`). The next constant is its GGUF key.
const LATENT_EPS: f64 = 1e-6;
pub(super) const NORM_EPS: &str = "attention.latent_norm_epsilon";

pub(super) fn latent(keys: &mut Keys<'_>) -> Result<(), CheckpointError> {
    keys.refuse("rope_interleave", |value| value.as_bool() != Some(true), "true")?;
    // In absorbed form, attention has one key head: the latent row that is cached for a position.
    keys.put("attention.head_count_kv", 1u32);
    let rank = keys.config.require(&["kv_lora_rank"])?;
    let turned = keys.config.require(&["qk_rope_head_dim"])?;
    let still = keys.config.require(&["qk_nope_head_dim"])?;
    let (Some(kept), Some(key)) = (rank.checked_add(turned), still.checked_add(turned)) else {
        return Err(keys.config.wrong("kv_lora_rank", rank.to_string(), "a length of a row"));
    };
    keys.put("attention.kv_lora_rank", rank);
    // Transformers' classes ignore `rms_norm_eps` for the norms of latent rows.
    if keys.config.number(&["rms_norm_eps"])?.is_some_and(|eps| eps != LATENT_EPS) {
        keys.put(NORM_EPS, LATENT_EPS as f32);
    }
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
        // GGUF files store a tenth of this number.
        keys.put("rope.scaling.yarn_log_multiplier", (0.1 * weight) as f32);
    }
    if let Some(yarn) = keys.yarn()? {
        // The factor on attention scores is separate. Rotated elements are multiplied by this
        // magnitude only.
        keys.put("rope.scaling.yarn_attn_factor", yarn.magnitude as f32);
    }
    Ok(())
}

/// Puts the keys for groups of experts in DeepSeek-V2. The selection method "greedy" has no groups
/// (transformers, `DeepseekV2TopkRouter`).
fn groups_by_method(keys: &mut Keys<'_>) -> Result<(), CheckpointError> {
    const METHOD: &str = "topk_method";
    let config = keys.config;
    match config.text(&[METHOD])?.unwrap_or("greedy") {
        "greedy" => {
            keys.put("expert_group_count", 1u32);
            keys.put("expert_group_used_count", 1u32);
            Ok(())
        }
        "group_limited_greedy" => Ok(()),
        _ if config.count(&["n_group"])?.unwrap_or(1) <= 1 => Ok(()),
        other => Err(config.wrong(METHOD, format!("{other:?}"), "greedy or group_limited_greedy")),
    }
}

pub(super) fn indexed(keys: &mut Keys<'_>) -> Result<(), CheckpointError> {
    latent(keys)?;
    keys.count("attention.indexer.head_count", &["index_n_heads"])?;
    keys.count("attention.indexer.key_length", &["index_head_dim"])?;
    keys.count("attention.indexer.top_k", &["index_topk"])
}

fn longcat_flash(keys: &mut Keys<'_>) -> Result<(), CheckpointError> {
    latent(keys)?;
    let config = keys.config;
    // Each stored layer becomes two layers in GGUF files. `num_hidden_layers` of transformers
    // counts the latter.
    let layers = config.require(&["num_layers"])?;
    keys.put("block_count", layers.saturating_mul(2));
    for (key, from) in [
        ("feed_forward_length", "ffn_hidden_size"),
        ("expert_feed_forward_length", "expert_ffn_hidden_size"),
        ("expert_used_count", "moe_topk"),
        ("expert_identity_count", "zero_expert_num"),
    ] {
        keys.count(key, &[from])?;
    }
    keys.default("expert_gating_func", SOFTMAX);
    for on in ["mla_scale_q_lora", "mla_scale_kv_lora"] {
        keys.refuse(on, |value| value.as_bool() != Some(true), "true")?;
    }
    for off in ["router_bias", "norm_topk_prob"] {
        keys.refuse(off, |value| value.as_bool() != Some(false), "false")?;
    }
    keys.refuse("attention_method", |value| value.as_str() != Some("MLA"), "MLA")?;
    keys.refuse("zero_expert_type", |value| value.as_str() != Some("identity"), "identity")
}

/// Puts which layers have RoPE, which layers have an indexer, and whose latent rows each layer uses
/// (transformers, `MistralLarge4TextConfig`).
fn mistral_large_4(keys: &mut Keys<'_>) -> Result<(), CheckpointError> {
    indexed(keys)?;
    keys.put("expert_weights_norm", true);
    keys.default("expert_gating_func", SOFTMAX);
    keys.number("final_logit_softcapping", &["final_logit_softcapping"])?;
    let config = keys.config;
    let layers = config.require(&["num_hidden_layers"])?;
    let turned = turned_layers(config)?;
    if let Some(sources) = config.counts("kv_source_layers")? {
        check_kv_sources(config, &turned, &sources)?;
        keys.put("attention.kv_source_layers", sources);
    }
    keys.flags("attention.rope_pattern", turned.into_iter());
    let own: Vec<bool> = match (config.texts("indexer_types"), config.value("index_topk_pattern")) {
        (Ok(Some(kinds)), _) => kinds.iter().map(|kind| *kind == "full").collect(),
        (Err(error), _) => return Err(error),
        (Ok(None), Some(serde_json::Value::String(letters))) => letters.bytes().map(|letter| letter == b'F').collect(),
        (Ok(None), Some(_)) => {
            let kinds = config.texts("index_topk_pattern")?.unwrap_or_default();
            kinds.iter().map(|kind| *kind == "full").collect()
        }
        (Ok(None), None) => {
            let period = config.require(&["index_topk_freq"])?.max(1);
            let offset = config.require(&["index_skip_topk_offset"])?;
            (0..layers).map(|layer| (layer + 1).saturating_sub(offset).is_multiple_of(period)).collect()
        }
    };
    keys.flags("attention.indexer.types", own.into_iter());
    Ok(())
}

/// Checks `kv_source_layers`. A layer with RoPE that uses earlier latent rows must use those of the
/// last earlier layer with RoPE that shares its rows. The same holds for layers without RoPE.
/// Transformers' code uses these whatever the list states, so any other value would describe
/// another model.
fn check_kv_sources(config: &Config, turned: &[bool], sources: &[u32]) -> Result<(), CheckpointError> {
    // For each layer, this is the last layer that uses its latent rows.
    let mut readers = vec![0; sources.len()];
    for (at, source) in sources.iter().enumerate() {
        readers.get_mut(*source as usize).into_iter().for_each(|reader| *reader = at);
    }
    // These are the last layers so far that share their rows: one without RoPE, and one with RoPE.
    let mut last = [None; 2];
    for (at, (&source, &turns)) in sources.iter().zip(turned).enumerate() {
        let last = &mut last[usize::from(turns)];
        if source as usize != at && *last != Some(source as usize) {
            let expected = match last {
                Some(last) => format!("{last} or {at}: the last layer before it of its kind that is read, or itself"),
                None => format!("{at}: no layer before it of its kind is read"),
            };
            return Err(config.wrong("kv_source_layers", format!("{source} for layer {at}"), expected));
        }
        if readers[at] > at {
            *last = Some(at);
        }
    }
    Ok(())
}

fn dots_3(keys: &mut Keys<'_>) -> Result<(), CheckpointError> {
    indexed(keys)?;
    let config = keys.config;
    let count = config.require(&["num_hidden_layers"])?;
    let windowed: Vec<bool> = match config.texts("layer_types")? {
        Some(kinds) => kinds.iter().take(count as usize).map(|kind| *kind == "sliding_attention").collect(),
        None => (0..count).map(|layer| layer >= 2 && layer % 4 != 1).collect(),
    };
    let [full, local] = [config.require(&["num_attention_heads"])?, config.require(&["swa_num_attention_heads"])?];
    keys.put(
        "attention.head_count",
        windowed.iter().map(|windowed| if *windowed { local } else { full }).collect::<Vec<u32>>(),
    );
    let rank = config.require(&["swa_kv_lora_rank"])?;
    let [still, turned] = [config.require(&["swa_qk_nope_head_dim"])?, config.require(&["swa_qk_rope_head_dim"])?];
    let (Some(kept), Some(key)) = (rank.checked_add(turned), still.checked_add(turned)) else {
        return Err(config.wrong("swa_kv_lora_rank", rank.to_string(), "a length of a row"));
    };
    for (key, number) in [
        ("attention.kv_lora_rank_swa", rank),
        ("attention.key_length_swa", kept),
        ("attention.value_length_swa", rank),
        ("attention.key_length_mla_swa", key),
    ] {
        keys.put(key, number);
    }
    keys.count("attention.value_length_mla_swa", &["swa_v_head_dim"])?;
    keys.count("attention.sliding_window", &["sliding_window_size", "sliding_window"])?;
    keys.number("rope.freq_base_swa", &["swa_rope_theta"])?;
    keys.flags("attention.indexer.types", windowed.iter().map(|windowed| !windowed));
    keys.flags("attention.sliding_window_pattern", windowed.into_iter());
    keys.default("expert_gating_func", SIGMOID);
    for (other, same) in [("swa_q_lora_rank", "q_lora_rank"), ("swa_qk_rope_head_dim", "qk_rope_head_dim")] {
        let expected = config.require(&[same])?;
        keys.refuse(other, |value| value.as_u64() != Some(expected.into()), &format!("{expected}, as {same}"))?;
    }
    for gate in ["attention_gate_type", "swa_attention_gate_type"] {
        keys.refuse(gate, |value| value.as_str() != Some("headwise"), "headwise")?;
    }
    for on in ["use_dsa", "k_rope_only_layernorm", "apply_mla_qkv_lora_rescale"] {
        keys.refuse(on, |value| value.as_bool() != Some(true), "true")?;
    }
    for off in ["use_dynamic_rsf", "moe_gating_fp32"] {
        keys.refuse(off, |value| value.as_bool() != Some(false), "false")?;
    }
    Ok(())
}

fn hy_4(keys: &mut Keys<'_>) -> Result<(), CheckpointError> {
    let config = keys.config;
    keys.default("expert_gating_func", SIGMOID);
    let layers = config.require(&["num_hidden_layers"])?;
    // Earlier versions of transformers have other names for sparse attention.
    let is_sparse = |kind: &&str| ["indexed_attention", "deepseek_sparse_attention", "sparse_attention"].contains(kind);
    let own: Option<Vec<bool>> = match (config.texts("indexer_types")?, config.texts("layer_types")?) {
        (Some(kinds), _) => Some(kinds.iter().map(|kind| *kind == "full").collect()),
        (None, Some(kinds)) if !kinds.iter().any(is_sparse) => None,
        (None, _) => Some((0..layers).map(|layer| layer == 0 || (layer - 1).is_multiple_of(4)).collect()),
    };
    match own {
        Some(own) => {
            indexed(keys)?;
            keys.flags("attention.indexer.types", own.into_iter());
        }
        None => latent(keys)?,
    }
    keys.count("hyper_connection.count", &["hc_mult"])?;
    keys.number("hyper_connection.epsilon", &["hc_eps"])?;
    keys.number("hyper_connection.magnitude", &["hc_magnitude"])?;
    // This limit applies to routed experts, but not to shared experts.
    if let Some(limit) = config.number(&["swiglu_limit"])?.filter(|limit| *limit > 0.0) {
        keys.put("swiglu_clamp_exp", vec![limit as f32; layers as usize]);
    }
    for key in ["gated_mla", "learnable_sink"] {
        keys.refuse(key, |value| value.as_bool() != Some(true), "true")?;
    }
    keys.refuse("gating_type", |value| value.as_str() != Some("elementwise"), "elementwise")
}

fn deepseek_4(keys: &mut Keys<'_>) -> Result<(), CheckpointError> {
    let config = keys.config;
    for (key, from) in [
        ("rope.dimension_count", "qk_rope_head_dim"),
        ("attention.q_lora_rank", "q_lora_rank"),
        ("attention.sliding_window", "sliding_window"),
        ("attention.output_group_count", "o_groups"),
        ("attention.output_lora_rank", "o_lora_rank"),
        ("attention.indexer.head_count", "index_n_heads"),
        ("attention.indexer.key_length", "index_head_dim"),
        ("attention.indexer.top_k", "index_topk"),
        ("expert_feed_forward_length", "moe_intermediate_size"),
        ("expert_shared_count", "n_shared_experts"),
        ("hyper_connection.count", "hc_mult"),
        ("hyper_connection.sinkhorn_iterations", "hc_sinkhorn_iters"),
    ] {
        keys.count(key, &[from])?;
    }
    for (key, from) in [
        ("rope.freq_base", "rope_theta"),
        ("attention.compress_rope_freq_base", "compress_rope_theta"),
        ("expert_weights_scale", "routed_scaling_factor"),
        ("hyper_connection.epsilon", "hc_eps"),
    ] {
        keys.number(key, &[from])?;
    }
    keys.normalise(&["norm_topk_prob"])?;
    let layers = config.require(&["num_hidden_layers"])?;
    if let Some(limit) = config.number(&["swiglu_limit"])? {
        for key in ["swiglu_clamp_exp", "swiglu_clamp_shexp"] {
            keys.put(key, vec![limit as f32; layers as usize]);
        }
    }
    let listed = match config.texts("mlp_layer_types")? {
        Some(kinds) => kinds.iter().filter(|kind| **kind == "hash_moe").count() as u32,
        None => config.count(&["num_hash_layers"])?.unwrap_or(3).min(layers),
    };
    keys.put("hash_layer_count", listed);
    let ratios = match (config.counts("compress_ratios")?, config.texts("layer_types")?) {
        (Some(ratios), _) => ratios,
        (None, Some(kinds)) => {
            let rates = config.object("compress_rates")?;
            let ratio = |kind: &str| match (kind, &rates) {
                ("sliding_attention", _) => Ok(0),
                (kind, Some(rates)) => rates.require(&[kind]),
                ("compressed_sparse_attention", None) => Ok(4),
                (_, None) => Ok(128),
            };
            kinds.into_iter().map(ratio).collect::<Result<_, _>>()?
        }
        (None, None) => return Err(config.wrong("compress_ratios", "missing", "a count of positions for each layer")),
    };
    keys.put("attention.compress_ratios", ratios);
    Ok(())
}
