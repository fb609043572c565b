//! Models with layers of state spaces, convolutions or linear attention.

use std::collections::HashSet;

use super::super::config::Config;
use super::super::error::CheckpointError;
use super::super::keys::Keys;
use super::super::names::{
    Rule, by_group, decay, decay_of_first_heads, decay_of_heads, embedding, gate_up, gates, gates_of_layer,
    into_states, key, keys_of_attention, latent_keys_values, logits, norm_of_layer, of_attention, out_of_attention,
    out_of_network, out_of_states, plain, query, rate_of_heads, row, rule, skip, taps, whole_gates_of_layer,
};
use super::dense::PLAMO_BLOCKS;
use super::latent::{INDEX, LATENT, NORM_EPS, indexed, latent};
use super::{CONVOLVED, Family, SIGMOID, USUAL, WITHOUT_ROPE, qwen};

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
        when: |config| Ok(kinds(config)?.contains(&Kind::Experts)),
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
        model_types: &["lfm2"],
        architecture: "lfm2",
        keys: lfm_2,
        tensors: &[LFM_2],
        defaults: r#"{"hidden_size": 2560, "intermediate_size": 12288, "num_hidden_layers": 32, "num_attention_heads": 32,
            "num_key_value_heads": 8, "max_position_embeddings": 128000, "norm_eps": 1e-5, "rope_theta": 1e6, "tie_word_embeddings": true,
            "block_multiple_of": 256, "block_ffn_dim_multiplier": 1.0, "block_auto_adjust_ff_dim": true, "conv_L_cache": 3}"#,
        ..USUAL
    },
    Family {
        model_types: &["lfm3"],
        architecture: "lfm3",
        keys: lfm_3,
        tensors: &[LFM_3, LFM_2],
        defaults: r#"{"hidden_size": 2048, "intermediate_size": 7680, "num_hidden_layers": 24, "num_attention_heads": 16,
            "num_key_value_heads": 4, "head_dim": 128, "max_position_embeddings": 128000, "norm_eps": 1e-5, "tie_word_embeddings": true,
            "sliding_window": 256, "conv_L_cache": 7, "rope_parameters": {"full_attention": {"rope_type": "proportional",
            "rope_theta": 1e6, "partial_rotary_factor": 0.5}, "sliding_attention": {"rope_type": "default", "rope_theta": 1e4}}}"#,
        ..USUAL
    },
    Family {
        model_types: &["lfm2_moe"],
        architecture: "lfm2moe",
        keys: lfm_2_moe,
        tensors: &[LFM_2],
        defaults: r#"{"hidden_size": 2048, "intermediate_size": 7168, "num_hidden_layers": 32, "num_attention_heads": 32,
            "num_key_value_heads": 8, "max_position_embeddings": 128000, "norm_eps": 1e-5, "rope_theta": 1e6, "tie_word_embeddings": true,
            "moe_intermediate_size": 1792, "num_dense_layers": 2, "num_experts": 32, "num_experts_per_tok": 4, "norm_topk_prob": true,
            "routed_scaling_factor": 1.0, "conv_L_cache": 3}"#,
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
            let [taps, state, groups, heads, length] = sizes.map(|key| keys.config.require(&[key]));
            mamba(keys, [taps?, state?, groups?, heads?, length?])
        },
        tensors: &[NEMOTRON_H],
        ignores_head_dim: true,
        defaults: r#"{"hidden_size": 4096, "num_hidden_layers": 64, "num_heads": 128, "head_dim": 64, "state_size": 128, "n_groups": 8,
            "conv_kernel": 4, "layer_norm_epsilon": 1e-5}"#,
        ..USUAL
    },
    Family {
        model_types: &["kimi_k3", "kimi_linear"],
        architecture: "kimi-k3",
        keys: kimi_k3,
        tensors: &[KIMI_K3, LATENT, KDA, KIMI_LINEAR],
        single: &CONVOLVED,
        multiplied: &[("_res_proj.weight", "_res_norm.weight")],
        ignores_head_dim: true,
        activations: &["situ"],
        when: |config| Ok(config.has("attn_res_block_size")),
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
        model_types: &["minimax", "minimax_text_01", "minimax_m1"],
        architecture: "minimax-01",
        keys: minimax_01,
        tensors: &[MINIMAX_01],
        defaults: r#"{"hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32,
            "num_key_value_heads": 8, "max_position_embeddings": 131072, "rms_norm_eps": 1e-5, "num_experts_per_tok": 2, "num_local_experts": 8,
            "rope_theta": 1e6}"#,
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
        model_types: &["kimi_linear"],
        architecture: "kimi-linear",
        keys: kimi_linear,
        tensors: &[LATENT, KDA, KIMI_LINEAR],
        single: &CONVOLVED,
        ignores_head_dim: true,
        defaults: r#"{"hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 27, "num_attention_heads": 32,
            "model_max_length": 1048576, "rms_norm_eps": 1e-5, "kv_lora_rank": 512, "qk_rope_head_dim": 64,
            "qk_nope_head_dim": 128, "v_head_dim": 128, "moe_intermediate_size": 1024, "num_experts": 256, "num_experts_per_token": 8,
            "num_shared_experts": 1, "num_expert_group": 1, "topk_group": 1, "moe_renormalize": true, "routed_scaling_factor": 2.446,
            "linear_head_dim": 128, "linear_num_heads": 32, "linear_conv_kernel_dim": 4}"#,
        ..USUAL
    },
    Family {
        model_types: &["glm5_next_text", "glm5_next"],
        architecture: "glm5-next",
        keys: glm_5_next,
        tensors: &[LATENT, INDEX, KDA, GLM_5_NEXT],
        single: &[
            "ffn_gate_inp.weight",
            "ssm_conv1d_q.weight",
            "ssm_conv1d_k.weight",
            "ssm_conv1d_v.weight",
            "indexer.proj.weight",
            "indexer_compressor_ape.weight",
            "indexer_compressor_gate.weight",
            "_fn.weight",
            "_base.weight",
            "_scale.weight",
        ],
        ignores_head_dim: true,
        defaults: r#"{"hidden_size": 4096, "intermediate_size": 12288, "moe_intermediate_size": 2048, "num_hidden_layers": 45,
            "num_attention_heads": 64, "n_shared_experts": 1, "n_routed_experts": 288, "routed_scaling_factor": 2.5, "kv_lora_rank": 512,
            "q_lora_rank": 1536, "qk_rope_head_dim": 0, "v_head_dim": 256, "qk_nope_head_dim": 256, "n_group": 1, "topk_group": 1,
            "num_experts_per_tok": 8, "norm_topk_prob": true, "max_position_embeddings": 1048576, "rms_norm_eps": 1e-5,
            "index_topk": 2048, "index_head_dim": 128, "index_n_heads": 32, "index_kpool": 16, "swiglu_limit": 10.0,
            "linear_head_dim": 128, "linear_num_heads": 64, "linear_conv_kernel_dim": 4, "linear_lower_bound": -5.0,
            "hc_mult": 4, "hc_eps": 1e-6, "hc_sinkhorn_iters": 20}"#,
        ..USUAL
    },
    Family {
        model_types: &["bailing_hybrid", "bailing_moe_v3"],
        architecture: "bailingmoe3",
        keys: ling_3,
        tensors: &[LING_3],
        single: &CONVOLVED,
        ignores_head_dim: true,
        defaults: r#"{"hidden_size": 2560, "intermediate_size": 6144, "moe_intermediate_size": 768, "num_hidden_layers": 42,
            "num_attention_heads": 32, "num_shared_experts": 1, "routed_scaling_factor": 2.5, "kv_lora_rank": 512,
            "qk_rope_head_dim": 64, "v_head_dim": 128, "qk_nope_head_dim": 128, "n_group": 8, "topk_group": 4,
            "num_experts_per_tok": 8, "num_experts": 512, "first_k_dense_replace": 2, "norm_topk_prob": true,
            "max_position_embeddings": 262144, "rms_norm_eps": 1e-6, "rope_theta": 6000000.0, "head_dim": 128,
            "short_conv_kernel_size": 4, "layer_group_size": 6, "kda_lower_bound": -5.0}"#,
        ..USUAL
    },
    Family {
        model_types: &["olmo_hybrid"],
        architecture: "olmo-hybrid",
        keys: olmo_hybrid,
        tensors: &[OLMO_HYBRID],
        ignores_head_dim: true,
        defaults: r#"{"hidden_size": 3840, "intermediate_size": 11008, "num_hidden_layers": 32, "num_attention_heads": 30,
            "max_position_embeddings": 65536, "rms_norm_eps": 1e-6, "linear_conv_kernel_dim": 4, "linear_allow_neg_eigval": true}"#,
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

/// OLMo Hybrid: norms follow blocks in layers with attention, and precede them in the others. The
/// latter have separate projections.
static OLMO_HYBRID: &[Rule] = &[
    rule("model.layers.{L}.attention_layer_norm", "blk.{L}.attn_norm", plain),
    rule("model.layers.{L}.feedforward_layer_norm.weight", "blk.{L}.{P}.weight", norm_of_layer),
    rule("model.layers.{L}.post_attention_layernorm.weight", "blk.{L}.{P}.weight", norm_of_layer),
    rule("model.layers.{L}.post_feedforward_layernorm", "blk.{L}.post_ffw_norm", plain),
    rule("model.layers.{L}.linear_attn.q_proj", "blk.{L}.attn_q", plain),
    rule("model.layers.{L}.linear_attn.k_proj", "blk.{L}.attn_k", plain),
    rule("model.layers.{L}.linear_attn.v_proj", "blk.{L}.attn_v", plain),
    rule("model.layers.{L}.linear_attn.g_proj", "blk.{L}.attn_gate", plain),
    rule("model.layers.{L}.linear_attn.a_proj", "blk.{L}.ssm_alpha", plain),
    rule("model.layers.{L}.linear_attn.b_proj", "blk.{L}.ssm_beta", plain),
    rule("model.layers.{L}.linear_attn.conv1d", "blk.{L}.ssm_conv1d", taps),
    rule("model.layers.{L}.linear_attn.{C}_conv1d", "blk.{L}.ssm_conv1d", taps),
    rule("model.layers.{L}.linear_attn.A_log", "blk.{L}.ssm_a", decay),
    rule("model.layers.{L}.linear_attn.dt_bias", "blk.{L}.ssm_dt.bias", plain),
    rule("model.layers.{L}.linear_attn.o_norm", "blk.{L}.ssm_norm", plain),
    rule("model.layers.{L}.linear_attn.o_proj", "blk.{L}.ssm_out", plain),
];

/// Falcon-H1: attention and state spaces in parallel. GGUF files have its factors in the matrices.
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

/// Linear attention with a decay for each element of a key.
static KDA: &[Rule] = &[
    rule("model.layers.{L}.self_attn.q_conv1d", "blk.{L}.ssm_conv1d_q", taps),
    rule("model.layers.{L}.self_attn.k_conv1d", "blk.{L}.ssm_conv1d_k", taps),
    rule("model.layers.{L}.self_attn.v_conv1d", "blk.{L}.ssm_conv1d_v", taps),
    rule("model.layers.{L}.self_attn.A_log", "blk.{L}.ssm_a", decay_of_heads),
    rule("model.layers.{L}.self_attn.dt_bias", "blk.{L}.ssm_dt.bias", plain),
    rule("model.layers.{L}.self_attn.b_proj", "blk.{L}.ssm_beta", plain),
    rule("model.layers.{L}.self_attn.f_a_proj", "blk.{L}.ssm_f_a", plain),
    rule("model.layers.{L}.self_attn.f_b_proj", "blk.{L}.ssm_f_b", plain),
    rule("model.layers.{L}.self_attn.g_a_proj", "blk.{L}.ssm_g_a", plain),
    rule("model.layers.{L}.self_attn.g_b_proj", "blk.{L}.ssm_g_b", plain),
    rule("model.layers.{L}.self_attn.o_norm", "blk.{L}.ssm_norm", plain),
];

/// GLM-5.3-Flash: streams, and indexer keys that positions share.
static GLM_5_NEXT: &[Rule] = &[
    rule("model.layers.{L}.hc_attn_fn", "blk.{L}.hc_attn_fn.weight", plain),
    rule("model.layers.{L}.hc_attn_base", "blk.{L}.hc_attn_base.weight", plain),
    rule("model.layers.{L}.hc_attn_scale", "blk.{L}.hc_attn_scale.weight", plain),
    rule("model.layers.{L}.hc_ffn_fn", "blk.{L}.hc_ffn_fn.weight", plain),
    rule("model.layers.{L}.hc_ffn_base", "blk.{L}.hc_ffn_base.weight", plain),
    rule("model.layers.{L}.hc_ffn_scale", "blk.{L}.hc_ffn_scale.weight", plain),
    rule(
        "model.layers.{L}.self_attn.indexer.index_kpool_compress_gate",
        "blk.{L}.indexer_compressor_gate.weight",
        plain,
    ),
    rule("model.layers.{L}.self_attn.indexer.index_kpool_compress_ape", "blk.{L}.indexer_compressor_ape.weight", plain),
];

/// Ling 3: each gate of linear attention is one matrix, and attention's parts have other names.
static LING_3: &[Rule] = &[
    rule("model.word_embeddings", "token_embd", plain),
    rule("model.layers.{L}.attention.q_proj", "blk.{L}.attn_q", plain),
    rule("model.layers.{L}.attention.k_proj", "blk.{L}.attn_k", plain),
    rule("model.layers.{L}.attention.v_proj", "blk.{L}.attn_v", plain),
    rule("model.layers.{L}.attention.dense", "blk.{L}.attn_output", plain),
    rule("model.layers.{L}.attention.q_a_proj", "blk.{L}.attn_q_a", plain),
    rule("model.layers.{L}.attention.q_a_layernorm", "blk.{L}.attn_q_a_norm", plain),
    rule("model.layers.{L}.attention.q_b_proj", "blk.{L}.attn_q_b", plain),
    rule("model.layers.{L}.attention.kv_a_proj_with_mqa", "blk.{L}.attn_kv_a_mqa", plain),
    rule("model.layers.{L}.attention.kv_a_layernorm", "blk.{L}.attn_kv_a_norm", plain),
    rule("model.layers.{L}.attention.kv_b_proj.weight", "blk.{L}.attn_{P}.weight", latent_keys_values),
    rule("model.layers.{L}.attention.q_conv1d", "blk.{L}.ssm_conv1d_q", taps),
    rule("model.layers.{L}.attention.k_conv1d", "blk.{L}.ssm_conv1d_k", taps),
    rule("model.layers.{L}.attention.v_conv1d", "blk.{L}.ssm_conv1d_v", taps),
    rule("model.layers.{L}.attention.A_log", "blk.{L}.ssm_a", rate_of_heads),
    rule("model.layers.{L}.attention.dt_bias", "blk.{L}.ssm_dt.bias", plain),
    rule("model.layers.{L}.attention.b_proj", "blk.{L}.ssm_beta", plain),
    rule("model.layers.{L}.attention.f_proj", "blk.{L}.ssm_f_a", plain),
    rule("model.layers.{L}.attention.g_proj", "blk.{L}.{P}", gates_of_layer),
    rule("model.layers.{L}.attention.o_norm", "blk.{L}.ssm_norm", plain),
    rule("model.layers.{L}.mlp.gate.expert_bias", "blk.{L}.exp_probs_b.bias", plain),
];

/// Kimi K3: attention residuals, experts on a narrower row, and gates in both kinds of layers.
/// Norms of attention residuals are multiplied into the score matrices.
static KIMI_K3: &[Rule] = &[
    rule("model.output_attn_res_proj.weight", "output_res_score.weight", row),
    rule("model.layers.{L}.self_attention_res_proj.weight", "blk.{L}.attn_res_score.weight", row),
    rule("model.layers.{L}.mlp_res_proj.weight", "blk.{L}.ffn_res_score.weight", row),
    rule("model.layers.{L}.self_attn.g_proj.weight", "blk.{L}.{P}.weight", whole_gates_of_layer),
    rule("model.layers.{L}.self_attn.A_log", "blk.{L}.ssm_a", decay_of_first_heads),
    rule("model.layers.{L}.block_sparse_moe.routed_expert_down_proj", "blk.{L}.ffn_routed_down", plain),
    rule("model.layers.{L}.block_sparse_moe.routed_expert_norm", "blk.{L}.ffn_routed_norm", plain),
    rule("model.layers.{L}.block_sparse_moe.routed_expert_up_proj", "blk.{L}.ffn_routed_up", plain),
];

/// Kimi Linear: linear attention between layers of latent attention. Transformers names the dense
/// network like experts.
static KIMI_LINEAR: &[Rule] = &[
    rule("model.layers.{L}.block_sparse_moe.gate_proj", "blk.{L}.ffn_gate", plain),
    rule("model.layers.{L}.block_sparse_moe.up_proj", "blk.{L}.ffn_up", plain),
    rule("model.layers.{L}.block_sparse_moe.down_proj", "blk.{L}.ffn_down", plain),
    rule("model.layers.{L}.block_sparse_moe.shared_experts.gate_proj", "blk.{L}.ffn_gate_shexp", plain),
    rule("model.layers.{L}.block_sparse_moe.shared_experts.up_proj", "blk.{L}.ffn_up_shexp", plain),
    rule("model.layers.{L}.block_sparse_moe.shared_experts.down_proj", "blk.{L}.ffn_down_shexp", plain),
];

/// LFM2, dense and with experts.
static LFM_2: &[Rule] = &[
    rule("model.embedding_norm", "token_embd_norm", plain),
    rule("model.layers.{L}.operator_norm", "blk.{L}.attn_norm", plain),
    rule("model.layers.{L}.ffn_norm", "blk.{L}.ffn_norm", plain),
    rule("model.layers.{L}.conv.conv.bias", "blk.{L}.shortconv.conv.bias", plain),
    rule("model.layers.{L}.conv.conv", "blk.{L}.shortconv.conv", taps),
    rule("model.layers.{L}.conv.in_proj", "blk.{L}.shortconv.in_proj", plain),
    rule("model.layers.{L}.conv.out_proj", "blk.{L}.shortconv.out_proj", plain),
    rule("model.layers.{L}.self_attn.out_proj", "blk.{L}.attn_output", plain),
    rule("model.layers.{L}.self_attn.q_layernorm", "blk.{L}.attn_q_norm", plain),
    rule("model.layers.{L}.self_attn.k_layernorm", "blk.{L}.attn_k_norm", plain),
    rule("model.layers.{L}.feed_forward.w1", "blk.{L}.ffn_gate", plain),
    rule("model.layers.{L}.feed_forward.w2", "blk.{L}.ffn_down", plain),
    rule("model.layers.{L}.feed_forward.w3", "blk.{L}.ffn_up", plain),
    rule("model.layers.{L}.feed_forward.gate", "blk.{L}.ffn_gate_inp", plain),
    rule("model.layers.{L}.feed_forward.expert_bias", "blk.{L}.exp_probs_b.bias", plain),
    rule("model.layers.{L}.feed_forward.experts.{E}.w1", "blk.{L}.ffn_gate_exps", plain),
    rule("model.layers.{L}.feed_forward.experts.{E}.w2", "blk.{L}.ffn_down_exps", plain),
    rule("model.layers.{L}.feed_forward.experts.{E}.w3", "blk.{L}.ffn_up_exps", plain),
    rule("model.layers.{L}.feed_forward.experts.gate_up_proj", "blk.{L}.ffn_{P}_exps.weight", gate_up),
    rule("model.layers.{L}.feed_forward.experts.down_proj", "blk.{L}.ffn_down_exps.weight", plain),
];

/// LFM3: gates of heads, and norms after blocks.
static LFM_3: &[Rule] = &[
    rule("model.layers.{L}.post_operator_norm", "blk.{L}.post_attention_norm", plain),
    rule("model.layers.{L}.post_ffn_norm", "blk.{L}.post_ffw_norm", plain),
    rule("model.layers.{L}.self_attn.gate_proj", "blk.{L}.attn_gate", plain),
];

/// Nemotron-H: each layer is one part after one norm. There is no RoPE, but queries and keys are
/// ordered as for adjacent RoPE pairs.
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

/// Mamba-1: in addition to Mamba-2's, the matrices that make steps, keys and queries.
static MAMBA: &[Rule] = &[
    rule("model.layers.{L}.mixer.x_proj", "blk.{L}.ssm_x", plain),
    rule("model.layers.{L}.mixer.dt_proj", "blk.{L}.ssm_dt", plain),
];

/// PLaMo 2: tensors in addition to the blocks of PLaMo 3.
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

/// Jamba: state spaces of Mamba-1 with norms. Layers have either experts or a dense network.
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

/// MiniMax-01: linear attention with constant decays that follow from the sizes.
static MINIMAX_01: &[Rule] = &[
    rule("model.layers.{L}.self_attn.qkv_proj", "blk.{L}.attn_qkv", plain),
    rule("model.layers.{L}.self_attn.out_proj", "blk.{L}.attn_output", plain),
    rule("model.layers.{L}.self_attn.output_gate", "blk.{L}.attn_gate", plain),
    rule("model.layers.{L}.self_attn.norm", "blk.{L}.attn_norm_2", plain),
    rule("model.layers.{L}.self_attn.slope_rate", "", skip),
    rule("model.layers.{L}.self_attn.query_decay", "", skip),
    rule("model.layers.{L}.self_attn.key_decay", "", skip),
    rule("model.layers.{L}.self_attn.diagonal_decay", "", skip),
];

/// Kind of a layer in a hybrid model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Recurrent,
    Attention,
    Network,
    Experts,
}

/// Returns the kinds of layers, from the words or letters in a configuration.
pub(super) fn kinds(config: &Config) -> Result<Vec<Kind>, CheckpointError> {
    const KEYS: [&str; 5] =
        ["layer_types", "layers_block_type", "hybrid_override_pattern", "full_attn_idxs", "attn_layer_indices"];
    let unknown =
        |key: &str, found: &str| config.wrong(key, format!("of \"{found}\""), "kinds of layers that are known");
    let of_word = |key: &str, word: &str| match word {
        "mamba" | "linear_attention" | "conv" | "M" => Ok(Kind::Recurrent),
        "attention" | "full_attention" | "indexed_attention" | "sliding_attention" | "*" => Ok(Kind::Attention),
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
    let attention = match config.counts(KEYS[3])? {
        None => config.counts(KEYS[4])?,
        attention => attention,
    };
    let of = |layer| match &attention {
        Some(attention) if !attention.contains(&layer) => Kind::Recurrent,
        _ => Kind::Attention,
    };
    Ok((0..layers).map(of).collect())
}

/// Puts the number of key heads: 0 in layers without attention.
pub(super) fn heads_of_kinds(keys: &mut Keys<'_>, kinds: &[Kind]) -> Result<(), CheckpointError> {
    let heads = keys.config.require(&["num_key_value_heads", "num_attention_heads"])?;
    let heads = kinds.iter().map(|kind| if *kind == Kind::Attention { heads } else { 0 });
    keys.put("attention.head_count_kv", heads.collect::<Vec<u32>>());
    Ok(())
}

/// Puts sizes of Mamba-2's states: taps, elements of a key, groups, heads and the length of a head.
pub(super) fn mamba(
    keys: &mut Keys<'_>,
    [taps, state, groups, heads, length]: [u32; 5],
) -> Result<(), CheckpointError> {
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

/// Puts sizes of Mamba-1's states: taps, elements of a key, and growth of the width. The rank of
/// steps is a sixteenth of the width, unless the key `rank` has a number.
fn selective(keys: &mut Keys<'_>, [taps, state, expand]: [u32; 3], rank: &str) -> Result<(), CheckpointError> {
    let config = keys.config;
    let width = config.require(&["hidden_size"])?;
    let inner = width.checked_mul(expand).ok_or_else(|| config.wrong("expand", expand.to_string(), "a factor"))?;
    let rank = match config.value(rank).is_some_and(|value| value.is_number()) {
        true => config.require(&[rank])?,
        false => width.div_ceil(16),
    };
    for (key, value) in [("conv_kernel", taps), ("state_size", state), ("time_step_rank", rank), ("inner_size", inner)]
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
    selective(keys, [taps?, state?, expand?], "time_step_rank")
}

/// Returns whether a configuration has layers with linear attention.
pub(super) fn attends_linearly(config: &Config) -> Result<bool, CheckpointError> {
    let listed = config.counts("attn_type_list")?.is_some_and(|kinds| kinds.contains(&0));
    Ok(listed || config.texts("layer_types")?.is_some_and(|kinds| kinds.contains(&"linear_attention")))
}

fn minimax_01(keys: &mut Keys<'_>) -> Result<(), CheckpointError> {
    let config = keys.config;
    let layers = config.require(&["num_hidden_layers"])?;
    // The default in transformers' class is 1.
    let factor = |keys: [&str; 2]| Ok::<_, CheckpointError>(config.number(&keys)?.unwrap_or(1.0));
    let alpha = factor(["mlp_alpha_factor", "layernorm_mlp_alpha"])?;
    for names in [
        ["full_attn_alpha_factor", "layernorm_full_attention_alpha"],
        ["linear_attn_alpha_factor", "layernorm_linear_attention_alpha"],
    ] {
        let other = factor(names)?;
        if other != alpha {
            return Err(config.wrong(names[1], other.to_string(), format!("{alpha}, as layernorm_mlp_alpha")));
        }
    }
    for names in [
        ["full_attn_beta_factor", "layernorm_full_attention_beta"],
        ["linear_attn_beta_factor", "layernorm_linear_attention_beta"],
        ["mlp_beta_factor", "layernorm_mlp_beta"],
    ] {
        let other = factor(names)?;
        if other != 1.0 {
            return Err(config.wrong(names[1], other.to_string(), "1: nothing else is supported"));
        }
    }
    keys.put("residual_scale", alpha as f32);
    keys.refuse("postnorm", |value| value.as_bool() != Some(true), "true")?;
    keys.refuse("shared_intermediate_size", |value| value.as_u64() != Some(0), "0")?;
    match config.count(&["rotary_dim"])? {
        Some(turned) => keys.put("rope.dimension_count", turned),
        None => keys.rotated_part(1.0)?,
    }
    let recurrent: Vec<bool> = if config.has("attn_type_list") {
        config.counts("attn_type_list")?.unwrap_or_default().into_iter().map(|kind| kind == 0).collect()
    } else if config.has("layer_types") {
        kinds(config)?.into_iter().map(|kind| kind == Kind::Recurrent).collect()
    } else {
        // Default of the class.
        (0..layers).map(|layer| layer % 2 == 1).collect()
    };
    keys.flags("attention.recurrent_layers", recurrent.into_iter());
    Ok(())
}

fn plamo_2(keys: &mut Keys<'_>) -> Result<(), CheckpointError> {
    let config = keys.config;
    keys.refuse("mamba_enabled", |value| value.as_bool() != Some(true), "true")?;
    let (layers, step) = (config.require(&["num_hidden_layers"])?, config.require(&["mamba_step"])?.max(1));
    // In a shallow model only the last layer attends.
    let attends = |layer: u32| if layers <= step / 2 { layer + 1 == layers } else { layer % step == step / 2 };
    let kinds: Vec<Kind> =
        (0..layers).map(|layer| if attends(layer) { Kind::Attention } else { Kind::Recurrent }).collect();
    heads_of_kinds(keys, &kinds)?;
    let heads = config.require(&["num_attention_heads"])?;
    let of_layer = kinds.iter().map(|kind| if *kind == Kind::Attention { heads } else { 0 });
    keys.put("attention.head_count", of_layer.collect::<Vec<u32>>());
    // Layers with attention have a window, except the listed ones.
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
    mamba(keys, [taps?, state?, 0, heads?, length])
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
    selective(keys, [taps?, state?, expand?], "mamba_dt_rank")
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

fn lfm_3(keys: &mut Keys<'_>) -> Result<(), CheckpointError> {
    let config = keys.config;
    let windowed: Vec<bool> = match config.texts("layer_types")? {
        Some(words) => {
            heads_of_kinds(keys, &kinds(config)?)?;
            words.into_iter().map(|word| word == "sliding_attention").collect()
        }
        // By default every second layer attends, and every second of these has the window.
        None => {
            let layers = config.require(&["num_hidden_layers"])?;
            let of = |layer| if layer % 2 == 0 && layer > 0 { Kind::Attention } else { Kind::Recurrent };
            heads_of_kinds(keys, &(0..layers).map(of).collect::<Vec<_>>())?;
            (0..layers).map(|layer| layer % 4 == 0 && layer > 0).collect()
        }
    };
    keys.flags("attention.sliding_window_pattern", windowed.into_iter());
    keys.count("attention.sliding_window", &["sliding_window"])?;
    keys.count("shortconv.l_cache", &["conv_L_cache"])?;
    keys.put("rope.dimension_count", config.require(&["head_dim"])?);
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

/// Puts sizes of linear attention with a decay for each element of a key. They are keys of a nested
/// object if there is one, with other names.
fn delta_attention(keys: &mut Keys<'_>, nested: Option<&Config>) -> Result<(), CheckpointError> {
    let config = keys.config;
    let of = |inner: &str, outer: &str| match nested {
        Some(nested) => nested.require(&[inner]),
        None => config.require(&[outer]),
    };
    keys.put("ssm.conv_kernel", of("short_conv_kernel_size", "linear_conv_kernel_dim")?);
    keys.put("kda.head_dim", of("head_dim", "linear_head_dim")?);
    let (heads, all) = (of("num_heads", "linear_num_heads")?, config.require(&["num_attention_heads"])?);
    if heads != all {
        return Err(config.wrong("num_heads", heads.to_string(), format!("{all}, as num_attention_heads")));
    }
    keys.default("expert_gating_func", SIGMOID);
    Ok(())
}

/// Puts the number of cached rows: 1 in layers with attention, 0 in others.
fn kept_rows(keys: &mut Keys<'_>, kinds: &[Kind]) {
    let kept = kinds.iter().map(|kind| u32::from(*kind == Kind::Attention));
    keys.put("attention.head_count_kv", kept.collect::<Vec<u32>>());
}

fn kimi_linear(keys: &mut Keys<'_>) -> Result<(), CheckpointError> {
    let config = keys.config;
    latent(keys)?;
    let nested = config.object("linear_attn_config")?;
    delta_attention(keys, nested.as_ref())?;
    let kinds = match &nested {
        Some(nested) => {
            // The numbers count from 1.
            let attention = nested.counts("full_attn_layers")?.unwrap_or_default();
            let kind = |layer| if attention.contains(&layer) { Kind::Attention } else { Kind::Recurrent };
            (1..=config.require(&["num_hidden_layers"])?).map(kind).collect()
        }
        None => kinds(config)?,
    };
    kept_rows(keys, &kinds);
    keys.count("expert_shared_count", &["num_shared_experts"])?;
    keys.count("expert_group_count", &["num_expert_group"])?;
    keys.normalise(&["moe_renormalize"])?;
    keys.refuse("mla_use_nope", |value| value.as_bool() != Some(true), "true")
}

fn kimi_k3(keys: &mut Keys<'_>) -> Result<(), CheckpointError> {
    kimi_linear(keys)?;
    let nested = keys.config.object("linear_attn_config")?;
    if let Some(bound) = nested.map(|nested| nested.number(&["gate_lower_bound"])).transpose()?.flatten() {
        keys.put("kda.gate_lower_bound", bound as f32);
    }
    keys.count("expert_latent_length", &["routed_expert_hidden_size"])?;
    keys.number("activation.situ_beta", &["activation_situ_beta"])?;
    keys.number("activation.situ_linear_beta", &["activation_situ_linear_beta"])?;
    keys.count("attn_res.block_size", &["attn_res_block_size"])
}

fn glm_5_next(keys: &mut Keys<'_>) -> Result<(), CheckpointError> {
    let config = keys.config;
    indexed(keys)?;
    // The class uses `rms_norm_eps` here.
    keys.number(NORM_EPS, &["rms_norm_eps"])?;
    let nested = config.object("linear_attn_config")?;
    delta_attention(keys, nested.as_ref())?;
    let bound = match &nested {
        Some(nested) => nested.number(&["gate_lower_bound"])?.or(Some(-5.0)),
        None => config.number(&["linear_lower_bound"])?,
    };
    if let Some(bound) = bound {
        keys.put("kda.gate_lower_bound", bound as f32);
    }
    let kinds = match config.has("layer_types") {
        true => kinds(config)?,
        // Every fourth layer attends.
        false => every(config.require(&["num_hidden_layers"])?, 4),
    };
    kept_rows(keys, &kinds);
    // Epsilon of the norm of the indexer's keys.
    keys.put("attention.layer_norm_epsilon", 1e-6f32);
    if let Some(own) = own_indexes(config)? {
        keys.flags("attention.indexer.types", own.into_iter());
    }
    keys.count("attention.indexer.kpool", &["index_kpool"])?;
    if let Some(tail) = config.flag(&["index_kpool_always_select_tail"])? {
        keys.put("attention.indexer.kpool_select_tail", tail);
    }
    keys.count("hyper_connection.count", &["hc_mult"])?;
    keys.count("hyper_connection.sinkhorn_iterations", &["hc_sinkhorn_iters"])?;
    keys.number("hyper_connection.epsilon", &["hc_eps"])?;
    if let Some(limit) = config.number(&["swiglu_limit"])? {
        for key in ["swiglu_clamp_exp", "swiglu_clamp_shexp"] {
            keys.put(key, vec![limit as f32; kinds.len()]);
        }
    }
    for key in ["mhc", "mla_use_nope"] {
        keys.refuse(key, |value| value.as_bool() != Some(true), "true")?;
    }
    Ok(())
}

/// Returns which layers have their own indexer, from a list, from letters, or from a period and an
/// offset.
fn own_indexes(config: &Config) -> Result<Option<Vec<bool>>, CheckpointError> {
    if let Some(kinds) = config.texts("indexer_types")? {
        return Ok(Some(kinds.iter().map(|kind| *kind == "full").collect()));
    }
    if let Some(letters) = config.text(&["index_topk_pattern"])? {
        return Ok(Some(letters.bytes().map(|letter| letter == b'F').collect()));
    }
    let Some(period) = config.count(&["index_topk_freq"])? else { return Ok(None) };
    let before = config.count(&["index_skip_topk_offset"])?.unwrap_or(2);
    let layers = 0..config.require(&["num_hidden_layers"])?;
    Ok(Some(layers.map(|layer| (layer + 1).saturating_sub(before).is_multiple_of(period.max(1))).collect()))
}

/// Returns kinds in which the last of every `period` layers attends.
fn every(layers: u32, period: u32) -> Vec<Kind> {
    let attends = |layer: u32| (layer + 1).is_multiple_of(period.max(1));
    (0..layers).map(|layer| if attends(layer) { Kind::Attention } else { Kind::Recurrent }).collect()
}

fn ling_3(keys: &mut Keys<'_>) -> Result<(), CheckpointError> {
    let config = keys.config;
    latent(keys)?;
    keys.count("ssm.conv_kernel", &["short_conv_kernel_size"])?;
    // In files written by transformers, `head_dim` is the rotated part.
    keys.count("kda.head_dim", &["linear_head_dim", "head_dim"])?;
    keys.put("kda.safe_gate", config.flag(&["kda_safe_gate"])?.unwrap_or(true));
    keys.number("kda.gate_lower_bound", &["kda_lower_bound"])?;
    let kinds = match config.has("layer_types") {
        true => kinds(config)?,
        false => {
            // Layers after the last complete group also attend.
            let (layers, group) =
                (config.require(&["num_hidden_layers"])?, config.require(&["layer_group_size"])?.max(1));
            let mut kinds = every(layers, group);
            kinds.iter_mut().skip((layers / group * group) as usize).for_each(|kind| *kind = Kind::Attention);
            kinds
        }
    };
    kept_rows(keys, &kinds);
    keys.count("expert_shared_count", &["num_shared_experts", "n_shared_experts"])?;
    keys.count("expert_shared_feed_forward_length", &["moe_shared_expert_intermediate_size"])?;
    keys.count("expert_group_count", &["num_expert_group", "n_group"])?;
    keys.normalise(&["moe_renormalize", "norm_topk_prob"])?;
    keys.default("expert_gating_func", SIGMOID);
    keys.limits("swiglu_clamp_exp", "expert_swiglu_limit_list")?;
    keys.limits("swiglu_clamp_shexp", "share_expert_swiglu_limit_list")?;
    keys.refuse("gated_attention_proj_granularity_type", |value| value.as_str() != Some("head_wise"), "head_wise")?;
    keys.refuse("no_kda_lora", |value| value.as_bool() != Some(true), "true")
}

fn olmo_hybrid(keys: &mut Keys<'_>) -> Result<(), CheckpointError> {
    let config = keys.config;
    let (layers, heads) = (config.require(&["num_hidden_layers"])?, config.require(&["num_attention_heads"])?);
    let kinds = match config.has("layer_types") {
        true => kinds(config)?,
        false => {
            // The last of each four layers attends; in a shallower model, the last.
            let mut kinds = every(layers, 4);
            kinds.last_mut().into_iter().filter(|_| layers < 4).for_each(|last| *last = Kind::Attention);
            kinds
        }
    };
    heads_of_kinds(keys, &kinds)?;
    // Parameters without a base mean no RoPE, as in the released models.
    let roped = config.object("rope_parameters")?.is_none() || keys.rope_number("rope_theta")?.is_some();
    keys.put("rope.scaling.finetuned", roped);
    let count = |key: &str| config.count(&[key]);
    let (key_heads, value_heads) =
        (count("linear_num_key_heads")?.unwrap_or(heads), count("linear_num_value_heads")?.unwrap_or(heads));
    let width = config.require(&["hidden_size"])?;
    let key = match count("linear_key_head_dim")? {
        Some(length) => length,
        None => (0.75 * f64::from(width) / f64::from(key_heads.max(1))) as u32,
    };
    let value = count("linear_value_head_dim")?.unwrap_or(key.saturating_mul(2));
    qwen::delta_rule(keys, [key_heads, value_heads, key, value])?;
    if config.flag(&["linear_allow_neg_eigval"])? == Some(true) {
        keys.put("ssm.beta_scale", 2f32);
    }
    Ok(())
}

fn falcon_h1(keys: &mut Keys<'_>) -> Result<(), CheckpointError> {
    let config = keys.config;
    let heads = config.require(&["mamba_n_heads"])?;
    let inner = match config.count(&["mamba_d_ssm"])? {
        Some(inner) => inner,
        None => config.require(&["hidden_size"])?.saturating_mul(config.require(&["mamba_expand"])?),
    };
    let length = inner.checked_div(heads).filter(|length| length.checked_mul(heads) == Some(inner));
    let length = length.ok_or_else(|| {
        config.wrong("mamba_d_ssm", inner.to_string(), format!("a multiple of mamba_n_heads, {heads}"))
    })?;
    if config.flag(&["mamba_rms_norm"])? == Some(true) {
        keys.refuse("mamba_norm_before_gate", |value| value.as_bool() == Some(true), "false")?;
    }
    // The factor on the embedding differs from that on logits.
    keys.refuse("tie_word_embeddings", |value| value.as_bool() == Some(true), "false")?;
    let [taps, state, groups] = ["mamba_d_conv", "mamba_d_state", "mamba_n_groups"].map(|key| config.require(&[key]));
    mamba(keys, [taps?, state?, groups?, heads, length])
}
