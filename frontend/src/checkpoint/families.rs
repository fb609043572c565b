//! Models by `model_type`: which of GGUF's architectures each is, the keys that differ, and its tensors.

use super::config::Config;
use super::error::CheckpointError;
use super::keys::Keys;
use super::names::{
    ERNIE, GEMMA_3, GEMMA_4, GPT_OSS, GRANITE_HYBRID, GRANITE_MOE, HUNYUAN_MOE, LATENT, LFM_2, LING_2, NEMOTRON_H,
    PHI_3, POST_ATTENTION, QWEN_3_5, QWEN_3_NEXT, QWEN_3_VL_MOE, Rule, TURNED,
};

/// `expert_gating_func` of sigmoids.
const SIGMOID: u32 = 2;
/// Positions that models without RoPE are said to have, as llama.cpp's converter says.
const WITHOUT_ROPE: u32 = 1 << 20;
/// Granite's, dense and with experts.
const GRANITE: &str = r#"{"max_position_embeddings": 2048, "rms_norm_eps": 1e-6, "attention_multiplier": 1.0,
    "embedding_multiplier": 1.0, "residual_multiplier": 1.0, "logits_scaling": 1.0}"#;
const GRANITE_EXPERTS: &str = r#"{"max_position_embeddings": 2048, "rms_norm_eps": 1e-6, "attention_multiplier": 1.0,
    "embedding_multiplier": 1.0, "residual_multiplier": 1.0, "logits_scaling": 1.0, "num_local_experts": 8, "num_experts_per_tok": 2}"#;
const GRANITE_H: &str = r#"{"max_position_embeddings": 2048, "rms_norm_eps": 1e-6, "attention_multiplier": 1.0,
    "embedding_multiplier": 1.0, "residual_multiplier": 1.0, "logits_scaling": 1.0, "num_local_experts": 8, "num_experts_per_tok": 2,
    "shared_intermediate_size": 1024, "mamba_n_heads": 128, "mamba_n_groups": 1, "mamba_d_state": 256, "mamba_d_conv": 4,
    "mamba_expand": 2}"#;
const NEMOTRON: &str = r#"{"hidden_size": 4096, "intermediate_size": 21504, "num_attention_heads": 32, "num_key_value_heads": 8,
    "head_dim": 128, "layer_norm_epsilon": 1e-5, "ssm_state_size": 128, "mamba_num_heads": 128, "mamba_head_dim": 64, "n_groups": 8,
    "conv_kernel": 4, "n_shared_experts": 1, "moe_intermediate_size": 7688, "moe_shared_expert_intermediate_size": 7688,
    "routed_scaling_factor": 1.0, "n_group": 1, "topk_group": 1, "norm_topk_prob": true, "num_experts_per_tok": 2,
    "n_routed_experts": 8}"#;

/// A row.
#[derive(Clone, Copy)]
pub(super) struct Family {
    /// Values of `model_type`.
    pub model_types: &'static [&'static str],
    /// GGUF's `general.architecture`.
    pub architecture: &'static str,
    /// Keys beyond those that all have.
    pub keys: fn(&mut Keys<'_>) -> Result<(), CheckpointError>,
    /// Rules of tensors before those that are shared.
    pub tensors: &'static [Rule],
    /// Whether heads are as long as the width by their number, whatever `head_dim` says.
    pub ignores_head_dim: bool,
    /// Values of `hidden_act` that are what the graph does.
    pub activations: &'static [&'static str],
    /// Whether all layers have the window that a configuration states.
    pub window: bool,
    /// What keys mean that a configuration does not have, as JSON: what transformers' class of it has. Configurations of models that see keep of
    /// their decoder's only what differs from that.
    pub defaults: &'static str,
    /// Whether a configuration is this row's, where several rows have its `model_type`.
    pub when: fn(&Config) -> Result<bool, CheckpointError>,
    /// How a vocabulary of pieces is given.
    pub pieces: Pieces,
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
    ignores_head_dim: false,
    activations: &["silu", "swish"],
    window: false,
    defaults: "{}",
    when: |_| Ok(true),
    pieces: Pieces::Scored,
};

/// Every model that is read.
pub(super) static FAMILIES: &[Family] = &[
    Family {
        model_types: &["llama"],
        architecture: "llama",
        tensors: TURNED,
        window: true,
        defaults: r#"{"max_position_embeddings": 2048, "rms_norm_eps": 1e-6}"#,
        ..USUAL
    },
    Family {
        model_types: &["mistral"],
        architecture: "llama",
        tensors: TURNED,
        window: true,
        defaults: r#"{"max_position_embeddings": 131072, "rms_norm_eps": 1e-6, "num_key_value_heads": 8}"#,
        ..USUAL
    },
    Family {
        model_types: &["mixtral"],
        architecture: "llama",
        tensors: TURNED,
        window: true,
        defaults: r#"{"max_position_embeddings": 131072, "rms_norm_eps": 1e-5, "num_key_value_heads": 8, "rope_theta": 1e6,
            "num_local_experts": 8, "num_experts_per_tok": 2}"#,
        ..USUAL
    },
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
        tensors: QWEN_3_NEXT,
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
        tensors: QWEN_3_5,
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
        tensors: QWEN_3_5,
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
        tensors: QWEN_3_VL_MOE,
        defaults: r#"{"hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 24, "num_attention_heads": 16,
            "num_key_value_heads": 16, "head_dim": 128, "max_position_embeddings": 128000, "rms_norm_eps": 1e-6, "rope_theta": 5e5,
            "num_experts": 60, "num_experts_per_tok": 4, "moe_intermediate_size": 1408}"#,
        ..USUAL
    },
    // The code of OLMoE has no other epsilon.
    Family {
        model_types: &["olmoe"],
        architecture: "olmoe",
        keys: |keys| {
            keys.put("attention.layer_norm_rms_epsilon", 1e-5f32);
            keys.normalise(&["norm_topk_prob"])
        },
        defaults: r#"{"max_position_embeddings": 4096, "num_experts": 64, "num_experts_per_tok": 8, "norm_topk_prob": false}"#,
        ..USUAL
    },
    Family {
        model_types: &["gemma3_text", "gemma3"],
        architecture: "gemma3",
        keys: gemma_3,
        tensors: GEMMA_3,
        activations: &["gelu_pytorch_tanh"],
        defaults: r#"{"hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 26, "num_attention_heads": 8,
            "num_key_value_heads": 4, "head_dim": 256, "max_position_embeddings": 131072, "rms_norm_eps": 1e-6, "rope_theta": 1e6,
            "sliding_window": 4096, "query_pre_attn_scalar": 256, "tie_word_embeddings": true}"#,
        ..USUAL
    },
    Family {
        model_types: &["gemma4_text", "gemma4"],
        architecture: "gemma4",
        keys: gemma_4,
        tensors: GEMMA_4,
        activations: &["gelu_pytorch_tanh"],
        defaults: r#"{"hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 30, "num_attention_heads": 8,
            "num_key_value_heads": 4, "head_dim": 256, "max_position_embeddings": 131072, "rms_norm_eps": 1e-6, "sliding_window": 512,
            "hidden_size_per_layer_input": 256, "num_kv_shared_layers": 0, "tie_word_embeddings": true,
            "rope_parameters": {"sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
            "full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1e6}}}"#,
        pieces: Pieces::Merged {
            name: "gemma4",
            visible: &[
                "<|channel>",
                "<channel|>",
                "<|tool_call>",
                "<tool_call|>",
                "<|tool_response>",
                "<tool_response|>",
                "<|\"|>",
            ],
        },
        ..USUAL
    },
    Family {
        model_types: &["gpt_oss"],
        architecture: "gpt-oss",
        keys: gpt_oss,
        tensors: GPT_OSS,
        defaults: r#"{"num_key_value_heads": 8, "head_dim": 64, "max_position_embeddings": 131072, "rms_norm_eps": 1e-5,
            "rope_theta": 150000.0, "sliding_window": 128, "num_experts_per_tok": 4, "rope_scaling": {"rope_type": "yarn", "factor": 32.0,
            "beta_fast": 32.0, "beta_slow": 1.0, "truncate": false, "original_max_position_embeddings": 4096}}"#,
        ..USUAL
    },
    Family {
        model_types: &["deepseek_v2"],
        architecture: "deepseek2",
        keys: latent,
        tensors: LATENT,
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
        tensors: LATENT,
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
        tensors: LATENT,
        ignores_head_dim: true,
        defaults: r#"{"max_position_embeddings": 202752, "rms_norm_eps": 1e-5, "norm_topk_prob": true, "routed_scaling_factor": 1.8,
            "n_group": 1, "topk_group": 1, "num_experts_per_tok": 4, "n_shared_experts": 1, "moe_intermediate_size": 1536,
            "kv_lora_rank": 512, "q_lora_rank": 768, "qk_rope_head_dim": 64, "qk_nope_head_dim": 192, "v_head_dim": 256}"#,
        ..USUAL
    },
    Family {
        model_types: &["glm4_moe", "glm4v_moe", "glm4v_moe_text"],
        architecture: "glm4moe",
        keys: |keys| {
            keys.default("expert_gating_func", SIGMOID);
            keys.rotated_part(0.5)?;
            keys.count("expert_feed_forward_length", &["moe_intermediate_size"])?;
            keys.count("expert_shared_count", &["n_shared_experts"])?;
            keys.count("leading_dense_block_count", &["first_k_dense_replace"])?;
            keys.number("expert_weights_scale", &["routed_scaling_factor"])?;
            keys.normalise(&["norm_topk_prob"])
        },
        tensors: POST_ATTENTION,
        defaults: r#"{"hidden_size": 4096, "intermediate_size": 10944, "num_hidden_layers": 46, "num_attention_heads": 96,
            "num_key_value_heads": 8, "max_position_embeddings": 65536, "rms_norm_eps": 1e-5, "n_routed_experts": 128,
            "num_experts_per_tok": 8, "moe_intermediate_size": 1408, "n_shared_experts": 1, "first_k_dense_replace": 1,
            "routed_scaling_factor": 1.0, "n_group": 1, "topk_group": 1, "norm_topk_prob": true}"#,
        ..USUAL
    },
    Family {
        model_types: &["dots1"],
        architecture: "dots1",
        keys: |keys| {
            keys.count("expert_feed_forward_length", &["moe_intermediate_size"])?;
            keys.count("expert_shared_count", &["n_shared_experts"])?;
            keys.count("leading_dense_block_count", &["first_k_dense_replace"])?;
            keys.number("expert_weights_scale", &["routed_scaling_factor"])?;
            keys.normalise(&["norm_topk_prob"])
        },
        defaults: r#"{"max_position_embeddings": 2048, "rms_norm_eps": 1e-6, "num_key_value_heads": 32, "norm_topk_prob": false,
            "routed_scaling_factor": 1.0, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 0, "moe_intermediate_size": 1408}"#,
        ..USUAL
    },
    Family {
        model_types: &["minimax_m2", "minimax"],
        architecture: "minimax-m2",
        keys: |keys| {
            keys.count("expert_feed_forward_length", &["intermediate_size"])?;
            keys.count("rope.dimension_count", &["rotary_dim"])?;
            Ok(())
        },
        defaults: r#"{"max_position_embeddings": 196608, "rms_norm_eps": 1e-6, "num_key_value_heads": 8, "head_dim": 128, "rope_theta": 5e6,
            "num_experts_per_tok": 8}"#,
        ..USUAL
    },
    Family {
        model_types: &["ernie4_5"],
        architecture: "ernie4_5",
        tensors: ERNIE,
        defaults: r#"{"max_position_embeddings": 131072, "rms_norm_eps": 1e-5, "num_key_value_heads": 2, "head_dim": 128,
            "rope_theta": 5e5, "tie_word_embeddings": true}"#,
        ..USUAL
    },
    Family {
        model_types: &["ernie4_5_moe"],
        architecture: "ernie4_5-moe",
        keys: ernie_moe,
        tensors: ERNIE,
        defaults: r#"{"max_position_embeddings": 131072, "rms_norm_eps": 1e-5, "num_key_value_heads": 4, "rope_theta": 5e5,
            "tie_word_embeddings": true, "moe_intermediate_size": 1536, "moe_num_experts": 64, "moe_k": 6, "moe_layer_interval": 1,
            "moe_layer_start_index": 1, "moe_num_shared_experts": 2}"#,
        ..USUAL
    },
    Family {
        model_types: &["granite"],
        architecture: "granite",
        keys: granite,
        tensors: TURNED,
        ignores_head_dim: true,
        defaults: GRANITE,
        ..USUAL
    },
    Family {
        model_types: &["granitemoe", "granitemoeshared"],
        architecture: "granitemoe",
        keys: |keys| {
            keys.count("expert_shared_feed_forward_length", &["shared_intermediate_size"])?;
            granite(keys)
        },
        tensors: GRANITE_MOE,
        ignores_head_dim: true,
        defaults: GRANITE_EXPERTS,
        ..USUAL
    },
    Family {
        model_types: &["granitemoehybrid"],
        architecture: "granitehybrid",
        keys: granite_hybrid,
        tensors: GRANITE_HYBRID,
        ignores_head_dim: true,
        defaults: GRANITE_H,
        when: |config| Ok(kinds(config)?.contains(&Kind::Recurrent)),
        ..USUAL
    },
    // Of the same class, without a layer of its kind.
    Family {
        model_types: &["granitemoehybrid"],
        architecture: "granitemoe",
        keys: granite_hybrid,
        tensors: GRANITE_HYBRID,
        ignores_head_dim: true,
        defaults: GRANITE_H,
        when: |config| {
            Ok(!kinds(config)?.contains(&Kind::Recurrent) && config.count(&["num_local_experts"])?.unwrap_or(0) > 0)
        },
        ..USUAL
    },
    Family {
        model_types: &["granitemoehybrid"],
        architecture: "granite",
        keys: granite_hybrid,
        tensors: GRANITE_HYBRID,
        ignores_head_dim: true,
        defaults: GRANITE_H,
        when: |config| Ok(!kinds(config)?.contains(&Kind::Recurrent)),
        ..USUAL
    },
    Family {
        model_types: &["nemotron_h"],
        architecture: "nemotron_h_moe",
        keys: nemotron_h,
        tensors: NEMOTRON_H,
        defaults: NEMOTRON,
        when: |config| Ok(kinds(config)?.contains(&Kind::Experts)),
        ..USUAL
    },
    Family {
        model_types: &["nemotron_h"],
        architecture: "nemotron_h",
        keys: nemotron_h,
        tensors: NEMOTRON_H,
        defaults: NEMOTRON,
        ..USUAL
    },
    Family {
        model_types: &["lfm2"],
        architecture: "lfm2",
        keys: lfm_2,
        tensors: LFM_2,
        defaults: r#"{"hidden_size": 2560, "intermediate_size": 12288, "num_hidden_layers": 32, "num_attention_heads": 32,
            "num_key_value_heads": 8, "max_position_embeddings": 128000, "norm_eps": 1e-5, "rope_theta": 1e6, "tie_word_embeddings": true,
            "block_multiple_of": 256, "block_ffn_dim_multiplier": 1.0, "block_auto_adjust_ff_dim": true, "conv_L_cache": 3}"#,
        ..USUAL
    },
    Family {
        model_types: &["lfm2_moe"],
        architecture: "lfm2moe",
        keys: lfm_2_moe,
        tensors: LFM_2,
        defaults: r#"{"hidden_size": 2048, "intermediate_size": 7168, "num_hidden_layers": 32, "num_attention_heads": 32,
            "num_key_value_heads": 8, "max_position_embeddings": 128000, "norm_eps": 1e-5, "rope_theta": 1e6, "tie_word_embeddings": true,
            "moe_intermediate_size": 1792, "num_dense_layers": 2, "num_experts": 32, "num_experts_per_tok": 4, "norm_topk_prob": true,
            "routed_scaling_factor": 1.0, "conv_L_cache": 3}"#,
        ..USUAL
    },
    Family {
        model_types: &["bailing_moe_v2", "bailing_moe_2"],
        architecture: "bailingmoe2",
        keys: |keys| {
            keys.rotated_part(0.5)?;
            keys.count("leading_dense_block_count", &["first_k_dense_replace"])?;
            keys.count("expert_feed_forward_length", &["moe_intermediate_size"])?;
            keys.count("expert_shared_count", &["num_shared_experts"])?;
            keys.count("expert_shared_feed_forward_length", &["moe_shared_expert_intermediate_size"])?;
            keys.number("expert_weights_scale", &["routed_scaling_factor"])?;
            keys.normalise(&["norm_topk_prob"])
        },
        tensors: LING_2,
        ..USUAL
    },
    Family {
        model_types: &["hunyuan_v1_moe"],
        architecture: "hunyuan-moe",
        keys: hunyuan_moe,
        tensors: HUNYUAN_MOE,
        defaults: r#"{"max_position_embeddings": 2048, "rms_norm_eps": 1e-5}"#,
        ..USUAL
    },
    Family {
        model_types: &["smollm3"],
        architecture: "smollm3",
        keys: smollm_3,
        tensors: TURNED,
        defaults: r#"{"max_position_embeddings": 32768, "rms_norm_eps": 1e-6, "num_key_value_heads": 4, "rope_theta": 2e6,
            "tie_word_embeddings": true}"#,
        ..USUAL
    },
    Family {
        model_types: &["seed_oss"],
        architecture: "seed_oss",
        tensors: POST_ATTENTION,
        defaults: r#"{"max_position_embeddings": 524288, "rms_norm_eps": 1e-6, "num_key_value_heads": 8, "head_dim": 128}"#,
        ..USUAL
    },
    Family {
        model_types: &["phi3"],
        architecture: "phi3",
        keys: |keys| keys.rotated_part(1.0),
        tensors: PHI_3,
        window: true,
        defaults: r#"{"max_position_embeddings": 4096, "rms_norm_eps": 1e-5}"#,
        ..USUAL
    },
];

/// All values of `model_type`.
pub(super) fn known() -> Vec<&'static str> {
    let mut known: Vec<&str> = FAMILIES.iter().flat_map(|family| family.model_types).copied().collect();
    known.dedup();
    known
}

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

fn gemma_3(keys: &mut Keys<'_>) -> Result<(), CheckpointError> {
    // Scores are divided by the root of this: of a head's length, where files need no key for it.
    if let Some(scalar) = keys.config.number(&["query_pre_attn_scalar"])?
        && keys.config.number(&["head_dim"])? != Some(scalar)
    {
        keys.put("attention.scale", (1.0 / scalar.sqrt()) as f32);
    }
    if let Some(base) = keys.config.number(&["rope_local_base_freq"])? {
        keys.put("rope.freq_base_swa", base as f32);
    }
    if let Some(softcap) = keys.config.number(&["final_logit_softcapping"])? {
        keys.put("final_logit_softcapping", softcap as f32);
    }
    keys.count("attention.sliding_window", &["sliding_window"])?;
    keys.refuse("attn_logit_softcapping", |_| true, "null")?;
    keys.refuse("use_bidirectional_attention", |value| value.as_bool() == Some(true), "false")?;
    keys.windows()
}

/// Layers with a window have heads of other sizes than those without, and those at the end read keys and values of others.
fn gemma_4(keys: &mut Keys<'_>) -> Result<(), CheckpointError> {
    let config = keys.config;
    keys.refuse("use_bidirectional_attention", |value| value.as_str() == Some("all"), "null or vision")?;
    let layers = config.require(&["num_hidden_layers"])?;
    let windowed: Vec<bool> = match config.texts("layer_types")? {
        Some(types) => types.iter().map(|kind| *kind == "sliding_attention").collect(),
        // Every sixth, and the last.
        None => (1..=layers).map(|layer| layer % 6 != 0 && layer != layers).collect(),
    };
    // Newer configurations list what differs layer by layer.
    let full = windowed.iter().position(|windowed| !windowed).map(|layer| layer.to_string());
    let own = match (config.object("per_layer_config")?, full) {
        (Some(layers), Some(full)) => layers.object(&full)?,
        _ => None,
    };
    let of_full = |key: &str, other: &str| match config.count(&[other])? {
        None => own.as_ref().map_or(Ok(None), |own| own.count(&[key])),
        found => Ok::<_, CheckpointError>(found),
    };
    let local = config.require(&["head_dim"])?;
    let length = of_full("head_dim", "global_head_dim")?.unwrap_or(512);
    for (key, length) in
        [("key_length", length), ("value_length", length), ("key_length_swa", local), ("value_length_swa", local)]
    {
        keys.put(&format!("attention.{key}"), length);
    }
    // All of a head turns; `rope_freqs` says which pairs stand still.
    keys.put("rope.dimension_count", length);
    keys.put("rope.dimension_count_swa", local);
    let heads = config.require(&["num_key_value_heads"])?;
    let stated = config.has("per_layer_config") || config.flag(&["attention_k_eq_v"])? == Some(true);
    if let Some(full) = of_full("num_key_value_heads", "num_global_key_value_heads")?.filter(|_| stated) {
        let heads = windowed.iter().map(|windowed| if *windowed { heads } else { full });
        keys.put("attention.head_count_kv", heads.collect::<Vec<u32>>());
    }
    keys.count("attention.sliding_window", &["sliding_window"])?;
    keys.flags("attention.sliding_window_pattern", windowed.into_iter());
    keys.count("attention.shared_kv_layers", &["num_kv_shared_layers"])?;
    keys.count("embedding_length_per_layer_input", &["hidden_size_per_layer_input"])?;
    keys.number("final_logit_softcapping", &["final_logit_softcapping"])?;
    if config.flag(&["use_double_wide_mlp"])? == Some(true) {
        let shared = config.count(&["num_kv_shared_layers"])?.unwrap_or(0);
        let width = config.require(&["intermediate_size"])?;
        let wide =
            width.checked_mul(2).ok_or_else(|| config.wrong("intermediate_size", width.to_string(), "a width"))?;
        let widths = (0..layers).map(|layer| if layer < layers.saturating_sub(shared) { width } else { wide });
        keys.put("feed_forward_length", widths.collect::<Vec<u32>>());
    }
    if config.flag(&["enable_moe_block"])? == Some(true) {
        keys.count("expert_used_count", &["top_k_experts"])?;
        keys.count("expert_feed_forward_length", &["moe_intermediate_size"])?;
    }
    Ok(())
}

fn gpt_oss(keys: &mut Keys<'_>) -> Result<(), CheckpointError> {
    keys.count("attention.sliding_window", &["sliding_window"])?;
    keys.count("expert_feed_forward_length", &["intermediate_size"])?;
    keys.windows()
}

fn latent(keys: &mut Keys<'_>) -> Result<(), CheckpointError> {
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
    let kinds = keys.config.texts("mlp_layer_types")?;
    let leading = kinds.map(|kinds| kinds.iter().take_while(|kind| **kind == "dense").count() as u32);
    let dense = match keys.config.count(&["first_k_dense_replace"])?.or(leading) {
        Some(dense) => dense,
        None if keys.config.has("n_routed_experts") => 0,
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

fn ernie_moe(keys: &mut Keys<'_>) -> Result<(), CheckpointError> {
    keys.count("expert_count", &["moe_num_experts"])?;
    keys.count("expert_used_count", &["moe_k"])?;
    keys.count("interleave_moe_layer_step", &["moe_layer_interval"])?;
    keys.count("leading_dense_block_count", &["moe_layer_start_index"])?;
    keys.count("expert_feed_forward_length", &["moe_intermediate_size"])?;
    keys.count("expert_shared_count", &["moe_num_shared_experts"])
}

fn granite(keys: &mut Keys<'_>) -> Result<(), CheckpointError> {
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

/// What a layer of a hybrid is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Recurrent,
    Attention,
    Network,
    Experts,
}

/// Layers of a hybrid, by the words or the letters that configurations have for them.
fn kinds(config: &Config) -> Result<Vec<Kind>, CheckpointError> {
    const KEYS: [&str; 4] = ["layer_types", "layers_block_type", "hybrid_override_pattern", "full_attn_idxs"];
    let unknown =
        |key: &str, found: &str| config.wrong(key, format!("of \"{found}\""), "kinds of layers that are known");
    let of_word = |key: &str, word: &str| match word {
        "mamba" | "linear_attention" | "conv" | "M" => Ok(Kind::Recurrent),
        "attention" | "full_attention" | "*" => Ok(Kind::Attention),
        "mlp" | "-" => Ok(Kind::Network),
        "moe" | "E" => Ok(Kind::Experts),
        other => Err(unknown(key, other)),
    };
    for key in &KEYS[..2] {
        if let Some(words) = config.texts(key)? {
            return words.into_iter().map(|word| of_word(key, word)).collect();
        }
    }
    if let Some(letters) = config.text(&[KEYS[2]])? {
        return letters.chars().map(|letter| of_word(KEYS[2], letter.encode_utf8(&mut [0; 4]))).collect();
    }
    let layers = config.require(&["num_hidden_layers"])?;
    let attention = config.counts(KEYS[3])?;
    let of = |layer| match &attention {
        Some(attention) if !attention.contains(&layer) => Kind::Recurrent,
        _ => Kind::Attention,
    };
    Ok((0..layers).map(of).collect())
}

/// Key heads of layers that attend, 0 in the others.
fn heads_of_kinds(keys: &mut Keys<'_>, kinds: &[Kind]) -> Result<(), CheckpointError> {
    let heads = keys.config.require(&["num_key_value_heads", "num_attention_heads"])?;
    let heads = kinds.iter().map(|kind| if *kind == Kind::Attention { heads } else { 0 });
    keys.put("attention.head_count_kv", heads.collect::<Vec<u32>>());
    Ok(())
}

/// Sizes of the states of Mamba-2: taps, elements of a key, groups, heads and the length of a head.
fn mamba(keys: &mut Keys<'_>, [taps, state, groups, heads, length]: [u32; 5]) -> Result<(), CheckpointError> {
    let inner = heads.checked_mul(length);
    let inner = inner.ok_or_else(|| keys.config.wrong("mamba_head_dim", length.to_string(), "a length of a head"))?;
    for (key, value) in [
        ("conv_kernel", taps),
        ("state_size", state),
        ("group_count", groups),
        ("time_step_rank", heads),
        ("inner_size", inner),
    ] {
        keys.put(&format!("ssm.{key}"), value);
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
        // What the shared expert would be is all that there is.
        keys.count("feed_forward_length", &["shared_intermediate_size"])?;
        keys.put("expert_used_count", 0u32);
    }
    keys.count("expert_shared_feed_forward_length", &["shared_intermediate_size"])?;
    if !kinds.contains(&Kind::Recurrent) {
        return Ok(());
    }
    heads_of_kinds(keys, &kinds)?;
    let heads = config.require(&["mamba_n_heads"])?;
    // "auto" is what the heads share.
    let length = match config.value("mamba_d_head").is_some_and(|value| value.is_number()) {
        true => config.require(&["mamba_d_head"])?,
        false => {
            let inner = config.require(&["hidden_size"])?.checked_mul(config.require(&["mamba_expand"])?);
            inner.and_then(|inner| inner.checked_div(heads)).unwrap_or(0)
        }
    };
    let [taps, state, groups] = ["mamba_d_conv", "mamba_d_state", "mamba_n_groups"].map(|key| config.require(&[key]));
    mamba(keys, [taps?, state?, groups?, heads, length])
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
    let [taps, state, groups, heads, length] = sizes.map(|key| config.require(&[key]));
    mamba(keys, [taps?, state?, groups?, heads?, length?])
}

fn lfm_2(keys: &mut Keys<'_>) -> Result<(), CheckpointError> {
    let config = keys.config;
    let kinds = kinds(config)?;
    heads_of_kinds(keys, &kinds)?;
    keys.count("shortconv.l_cache", &["conv_L_cache"])?;
    let mut width = u64::from(config.require(&["block_ff_dim", "intermediate_size"])?);
    if config.flag(&["block_auto_adjust_ff_dim"])? == Some(true) {
        width = 2 * width / 3;
        if let Some(factor) = config.number(&["block_ffn_dim_multiplier"])? {
            width = (factor * width as f64) as u64;
        }
        width = width.checked_next_multiple_of(u64::from(config.require(&["block_multiple_of"])?)).unwrap_or(u64::MAX);
    }
    let width = u32::try_from(width).map_err(|_| config.wrong("intermediate_size", width.to_string(), "a width"))?;
    keys.put("feed_forward_length", width);
    Ok(())
}

fn lfm_2_moe(keys: &mut Keys<'_>) -> Result<(), CheckpointError> {
    let kinds = kinds(keys.config)?;
    heads_of_kinds(keys, &kinds)?;
    keys.count("shortconv.l_cache", &["conv_L_cache"])?;
    keys.count("expert_feed_forward_length", &["moe_intermediate_size"])?;
    keys.count("leading_dense_block_count", &["num_dense_layers"])?;
    keys.number("expert_weights_scale", &["routed_scaling_factor"])?;
    keys.put("expert_gating_func", SIGMOID);
    keys.normalise(&["norm_topk_prob"])
}

fn hunyuan_moe(keys: &mut Keys<'_>) -> Result<(), CheckpointError> {
    for (key, from) in [
        ("expert_feed_forward_length", "moe_intermediate_size"),
        ("expert_used_count", "moe_topk"),
        ("expert_shared_count", "num_shared_expert"),
    ] {
        keys.same_for_all(key, from)?;
    }
    keys.count("expert_shared_feed_forward_length", &["intermediate_size"])?;
    // NTK by alpha: the base alone changes (llama.cpp's conversion, and the report of the 13 B model).
    if let (Some("dynamic"), Some(alpha)) = (keys.rope_kind()?.as_deref(), keys.rope_number("alpha")?) {
        let dims = f64::from(keys.config.require(&["hidden_size"])?)
            / f64::from(keys.config.require(&["num_attention_heads"])?.max(1));
        let base = keys.rope_number("rope_theta")?.unwrap_or(10_000.0);
        keys.put("rope.freq_base", (base * alpha.powf(dims / (dims - 2.0))) as f32);
        keys.put("rope.scaling.type", "none");
        keys.put("context_length", 256u32 << 10);
    }
    Ok(())
}

/// The graph rotates all layers but every fourth.
fn smollm_3(keys: &mut Keys<'_>) -> Result<(), CheckpointError> {
    let Some(layers) = keys.config.counts("no_rope_layers")? else { return Ok(()) };
    let usual = layers.iter().enumerate().all(|(layer, roped)| (*roped == 1) == ((layer + 1) % 4 != 0));
    if usual {
        Ok(())
    } else {
        Err(keys.config.wrong("no_rope_layers", "another pattern", "0 for every fourth layer, else 1"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_are_objects() {
        for family in FAMILIES {
            let defaults: serde_json::Value = serde_json::from_str(family.defaults).unwrap();
            assert!(defaults.is_object(), "{:?}", family.model_types);
        }
    }
}
