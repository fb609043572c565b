//! Models with experts that belong to no other family.

use super::super::config::Config;
use super::super::error::CheckpointError;
use super::super::keys::Keys;
use super::super::names::{
    POST_ATTENTION, Rule, TURNED, first_row, gate_up, gate_up_columns, gate_up_elements, gate_up_rows, of_experts,
    plain, plus_one, query_key_value_of_layer, rule, skip, transposed, transposed_of_experts, turned_query_key_value,
};
use super::dense::ERNIE;
use super::recurrent::attends_linearly;
use super::{Family, SIGMOID, USUAL, base_by_alpha, leading_dense};

pub(super) static ROWS: &[Family] = &[
    Family {
        model_types: &["olmoe"],
        architecture: "olmoe",
        keys: |keys| {
            // This limit would apply after normalisation, unlike OLMo's.
            keys.refuse("clip_qkv", |_| true, "null")?;
            keys.normalise(&["norm_topk_prob"])
        },
        defaults: r#"{"max_position_embeddings": 4096, "rms_norm_eps": 1e-5, "num_experts": 64, "num_experts_per_tok": 8, "norm_topk_prob": false}"#,
        ..USUAL
    },
    Family {
        model_types: &["mellum"],
        architecture: "mellum",
        keys: |keys| {
            keys.count("expert_feed_forward_length", &["moe_intermediate_size"])?;
            keys.count("attention.sliding_window", &["sliding_window"])?;
            keys.windows()?;
            if !keys.config.has("layer_types") {
                let layers = keys.config.require(&["num_hidden_layers"])?;
                keys.flags("attention.sliding_window_pattern", (0..layers).map(|_| false));
            }
            keys.normalise(&["norm_topk_prob"])
        },
        defaults: r#"{"hidden_size": 2304, "intermediate_size": 7168, "num_hidden_layers": 28, "num_attention_heads": 32,
            "num_key_value_heads": 4, "head_dim": 128, "max_position_embeddings": 131072, "rms_norm_eps": 1e-6, "sliding_window": 1024,
            "moe_intermediate_size": 896, "num_experts": 64, "num_experts_per_tok": 8, "norm_topk_prob": true,
            "rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 5e5},
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4}}}"#,
        ..USUAL
    },
    // The limit of gates is a constant of its code, without a key.
    Family {
        model_types: &["maple"],
        architecture: "maple",
        keys: |keys| {
            let config = keys.config;
            keys.count("expert_feed_forward_length", &["moe_intermediate_size"])?;
            keys.count("attention.sliding_window", &["sliding_window"])?;
            keys.rotated_part(1.0)?;
            let limit = config.number(&["swiglu_limit"])?.unwrap_or(0.0) as f32;
            keys.put("swiglu_clamp_exp", vec![limit; config.require(&["num_hidden_layers"])? as usize]);
            keys.refuse("nope_on_global_attention", |value| value.as_bool() != Some(true), "true")?;
            keys.refuse("num_shared_experts", |value| value.as_u64() != Some(0), "0")?;
            keys.windows()
        },
        defaults: r#"{"max_position_embeddings": 131072, "rms_norm_eps": 1e-6, "rope_theta": 1e4, "swiglu_limit": 7.0}"#,
        ..USUAL
    },
    Family {
        model_types: &["smallthinker"],
        architecture: "smallthinker",
        keys: small_thinker,
        tensors: &[SMALL_THINKER],
        defaults: r#"{"max_position_embeddings": 16384, "rms_norm_eps": 1e-6, "moe_primary_router_apply_softmax": false}"#,
        ..USUAL
    },
    Family {
        model_types: &["arctic"],
        architecture: "arctic",
        keys: |keys| {
            keys.refuse("moe_layer_frequency", |value| value.as_u64() != Some(1), "1")?;
            for key in ["parallel_attn_mlp_res", "use_residual"] {
                keys.refuse(key, |value| value.as_bool() != Some(true), "true")?;
            }
            keys.put("expert_gating_func", 1u32);
            Ok(())
        },
        tensors: &[ARCTIC, TURNED],
        ignores_head_dim: true,
        defaults: r#"{"max_position_embeddings": 4096, "rms_norm_eps": 1e-5, "rope_theta": 1e6, "num_local_experts": 8, "num_experts_per_tok": 1}"#,
        ..USUAL
    },
    Family {
        model_types: &["dbrx"],
        architecture: "dbrx",
        keys: dbrx,
        tensors: &[DBRX],
        defaults: r#"{"max_seq_len": 2048}"#,
        ..USUAL
    },
    // Grok 2's `model_type` does not identify a decoder, so the class does.
    Family {
        model_types: &["Grok1ForCausalLM", "Grok1ModelForCausalLM"],
        architecture: "grok",
        keys: grok_2,
        tensors: &[GROK_2],
        defaults: r#"{"max_position_embeddings": 131072, "rms_norm_eps": 1e-5, "num_experts_per_tok": 2, "num_local_experts": 8, "head_dim": 128,
            "embedding_multiplier_scale": 1.0, "output_multiplier_scale": 1.0, "attn_logit_softcapping": 30.0, "rope_theta": 1e4,
            "tie_word_embeddings": false}"#,
        ..USUAL
    },
    // Names in files that others converted from the release.
    Family {
        model_types: &["grok-1"],
        architecture: "grok",
        keys: grok,
        tensors: &[GROK_1],
        defaults: r#"{"max_position_embeddings": 8192, "rms_norm_eps": 1e-5, "num_experts_per_tok": 2, "attn_output_multiplier": 0.08838834764831845,
            "embedding_multiplier_scale": 78.38367176906169, "output_multiplier_scale": 0.5773502691896257, "max_attn_value": 30.0,
            "tie_word_embeddings": true}"#,
        ..USUAL
    },
    Family {
        model_types: &["grove_moe"],
        architecture: "grovemoe",
        keys: |keys| {
            keys.count("expert_feed_forward_length", &["moe_intermediate_size"])?;
            // Constants of the model's code, without keys.
            let width = keys.config.count(&["head_dim"])?.unwrap_or(128);
            keys.put("expert_chunk_feed_forward_length", width);
            keys.put("experts_per_group", 2u32);
            keys.put("expert_group_scale", 0.05f32);
            Ok(())
        },
        tensors: &[GROVE],
        defaults: r#"{"max_position_embeddings": 32768, "rms_norm_eps": 1e-6, "num_key_value_heads": 4, "head_dim": 128}"#,
        ..USUAL
    },
    Family {
        model_types: &["gpt_oss"],
        architecture: "gpt-oss",
        keys: gpt_oss,
        tensors: &[GPT_OSS],
        truncated_yarn: false,
        defaults: r#"{"num_key_value_heads": 8, "head_dim": 64, "max_position_embeddings": 131072, "rms_norm_eps": 1e-5,
            "rope_theta": 150000.0, "sliding_window": 128, "num_experts_per_tok": 4, "rope_scaling": {"rope_type": "yarn", "factor": 32.0,
            "beta_fast": 32.0, "beta_slow": 1.0, "truncate": false, "original_max_position_embeddings": 4096}}"#,
        ..USUAL
    },
    Family {
        model_types: &["glm4_moe", "glm4v_moe", "glm4v_moe_text"],
        architecture: "glm4moe",
        keys: |keys| glm_4_moe(keys, 0.5),
        tensors: &[POST_ATTENTION],
        defaults: r#"{"hidden_size": 4096, "intermediate_size": 10944, "num_hidden_layers": 46, "num_attention_heads": 96,
            "num_key_value_heads": 8, "max_position_embeddings": 65536, "rms_norm_eps": 1e-5, "n_routed_experts": 128,
            "num_experts_per_tok": 8, "moe_intermediate_size": 1408, "n_shared_experts": 1, "first_k_dense_replace": 1,
            "routed_scaling_factor": 1.0, "n_group": 1, "topk_group": 1, "norm_topk_prob": true}"#,
        ..USUAL
    },
    Family {
        model_types: &["flint"],
        architecture: "flint",
        keys: |keys| {
            keys.put("expert_gating_func", SIGMOID);
            keys.count("expert_feed_forward_length", &["moe_intermediate_size"])?;
            keys.count("expert_shared_feed_forward_length", &["shared_expert_intermediate_size"])?;
            keys.count("attention.sliding_window", &["sliding_window"])?;
            keys.normalise(&["norm_topk_prob"])?;
            keys.windows()?;
            if !keys.config.has("layer_types") {
                let layers = keys.config.require(&["num_hidden_layers"])?;
                let whole = move |layer| layer < 2 || layer % 4 == 1 || layer + 1 == layers;
                keys.flags("attention.sliding_window_pattern", (0..layers).map(|layer| !whole(layer)));
            }
            Ok(())
        },
        tensors: &[FLINT],
        defaults: r#"{"hidden_size": 2048, "intermediate_size": 6144, "num_hidden_layers": 49, "num_attention_heads": 32,
            "num_key_value_heads": 4, "head_dim": 128, "max_position_embeddings": 262144, "rms_norm_eps": 1e-6, "rope_theta": 1e4,
            "sliding_window": 513, "moe_intermediate_size": 512, "shared_expert_intermediate_size": 1024, "num_experts": 256,
            "num_experts_per_tok": 6, "norm_topk_prob": true}"#,
        ..USUAL
    },
    // No dense layers, and RoPE rotates the whole head.
    Family {
        model_types: &["solar_open"],
        architecture: "glm4moe",
        keys: |keys| glm_4_moe(keys, 1.0),
        tensors: &[POST_ATTENTION],
        defaults: r#"{"hidden_size": 4096, "intermediate_size": 10240, "num_hidden_layers": 48, "num_attention_heads": 64,
            "num_key_value_heads": 8, "head_dim": 128, "max_position_embeddings": 131072, "rms_norm_eps": 1e-5, "rope_theta": 1e6,
            "n_routed_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 1280, "n_shared_experts": 1,
            "first_k_dense_replace": 0, "routed_scaling_factor": 1.0, "n_group": 1, "topk_group": 1, "norm_topk_prob": true}"#,
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
        window: true,
        defaults: r#"{"max_position_embeddings": 2048, "rms_norm_eps": 1e-6, "num_key_value_heads": 32, "norm_topk_prob": false,
            "sliding_window": 4096, "max_window_layers": 62, "routed_scaling_factor": 1.0, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 0, "moe_intermediate_size": 1408}"#,
        ..USUAL
    },
    Family {
        model_types: &["minimax_m2", "minimax"],
        architecture: "minimax-m2",
        keys: |keys| {
            keys.count("expert_feed_forward_length", &["intermediate_size"])?;
            // Configurations have the number of rotated elements; those of transformers have their
            // share.
            match keys.config.has("rotary_dim") {
                true => keys.count("rope.dimension_count", &["rotary_dim"]),
                false => keys.rotated_part(1.0),
            }
        },
        defaults: r#"{"max_position_embeddings": 196608, "rms_norm_eps": 1e-6, "num_key_value_heads": 8, "head_dim": 128, "rope_theta": 5e6,
            "num_experts_per_tok": 8}"#,
        // MiniMax-01 has the same name.
        when: |config| Ok(!attends_linearly(config)?),
        ..USUAL
    },
    Family {
        model_types: &["ernie4_5_moe"],
        architecture: "ernie4_5-moe",
        keys: ernie_moe,
        tensors: &[ERNIE],
        defaults: r#"{"max_position_embeddings": 131072, "rms_norm_eps": 1e-5, "num_key_value_heads": 4, "rope_theta": 5e5,
            "tie_word_embeddings": true, "moe_intermediate_size": 1536, "moe_num_experts": 64, "moe_k": 6, "moe_layer_interval": 1,
            "moe_layer_start_index": 1, "moe_num_shared_experts": 2}"#,
        ..USUAL
    },
    // Text uses the first of two groups of experts. The second group serves images and is not read.
    Family {
        model_types: &["ernie4_5_vl_moe", "ernie4_5_vl_moe_text", "ernie4_5_moe_vl"],
        architecture: "ernie4_5-moe",
        keys: ernie_vl_moe,
        tensors: &[ERNIE_VL, ERNIE],
        defaults: r#"{"hidden_size": 2560, "intermediate_size": 12288, "num_hidden_layers": 28, "num_attention_heads": 20,
            "max_position_embeddings": 131072, "rms_norm_eps": 1e-5, "num_key_value_heads": 4, "rope_theta": 5e5,
            "tie_word_embeddings": true, "moe_intermediate_size": [1536, 512], "moe_num_experts": 64, "moe_k": 6,
            "moe_layer_interval": 1, "moe_num_shared_experts": 2}"#,
        ..USUAL
    },
    Family {
        model_types: &["bailing_moe"],
        architecture: "bailingmoe",
        keys: |keys| {
            if keys.config.flag(&["norm_head"])? == Some(true) {
                // The embedding table would also be divided.
                let says = "false, since norm_head divides the output matrix";
                keys.refuse("tie_word_embeddings", |value| value.as_bool() == Some(true), says)?;
            }
            keys.count("leading_dense_block_count", &["first_k_dense_replace"])?;
            keys.count("expert_feed_forward_length", &["moe_intermediate_size"])?;
            keys.count("expert_shared_count", &["num_shared_experts"])?;
            keys.normalise(&["norm_topk_prob"])?;
            keys.rotated_part(1.0)
        },
        tensors: &[LING],
        unit_columns: true,
        ..USUAL
    },
    Family {
        model_types: &["bailing_moe_v2", "bailing_moe_2"],
        architecture: "bailingmoe2",
        keys: |keys| ling_2(keys, 0.5),
        tensors: &[LING_2],
        ..USUAL
    },
    // Selection biases are stored minus their mean, which selects the same experts.
    Family {
        model_types: &["sarvam_moe"],
        architecture: "bailingmoe2",
        keys: |keys| {
            keys.default("expert_gating_func", SIGMOID);
            ling_2(keys, 1.0)
        },
        tensors: &[LING_2],
        defaults: r#"{"hidden_size": 4096, "intermediate_size": 8192, "num_hidden_layers": 19, "num_attention_heads": 64,
            "num_key_value_heads": 4, "head_dim": 64, "max_position_embeddings": 131072, "rms_norm_eps": 1e-6, "rope_theta": 8e6,
            "num_experts_per_tok": 6, "moe_intermediate_size": 1024, "first_k_dense_replace": 1, "routed_scaling_factor": 2.5,
            "n_group": 1, "topk_group": 1, "norm_topk_prob": true}"#,
        ..USUAL
    },
    Family {
        model_types: &["hunyuan_v1_moe"],
        architecture: "hunyuan-moe",
        keys: hunyuan_moe,
        tensors: &[HUNYUAN_MOE],
        defaults: r#"{"max_position_embeddings": 2048, "rms_norm_eps": 1e-5}"#,
        ..USUAL
    },
    Family {
        model_types: &["phimoe"],
        architecture: "phimoe",
        window: true,
        defaults: r#"{"max_position_embeddings": 131072, "rms_norm_eps": 1e-5, "num_key_value_heads": 8, "rope_theta": 1e6,
            "num_local_experts": 16, "num_experts_per_tok": 2}"#,
        ..USUAL
    },
    Family {
        model_types: &["exaone_moe"],
        architecture: "exaone-moe",
        keys: |keys| {
            shared_beside(keys)?;
            keys.count("attention.sliding_window", &["sliding_window"])?;
            keys.number("expert_weights_scale", &["routed_scaling_factor"])?;
            keys.normalise(&["norm_topk_prob"])?;
            keys.windows()
        },
        tensors: &[&[rule("model.layers.{L}.mlp.e_score_correction_bias", "blk.{L}.exp_probs_b.bias", plain)]],
        defaults: r#"{"max_position_embeddings": 2048, "rms_norm_eps": 1e-5, "sliding_window": 4096, "sliding_window_pattern": 4,
            "first_k_dense_replace": 1, "moe_intermediate_size": 1024, "num_experts": 64, "num_experts_per_tok": 8,
            "num_shared_experts": 1, "norm_topk_prob": true, "routed_scaling_factor": 2.5, "n_group": 1, "topk_group": 1}"#,
        ..USUAL
    },
    Family {
        model_types: &["hy_v3"],
        architecture: "hy_v3",
        keys: |keys| {
            shared_beside(keys)?;
            keys.default("expert_gating_func", SIGMOID);
            keys.number("expert_weights_scale", &["router_scaling_factor"])?;
            keys.normalise(&["route_norm"])
        },
        tensors: &[HY_3],
        defaults: r#"{"max_position_embeddings": 131072, "rms_norm_eps": 1e-5, "num_key_value_heads": 8, "head_dim": 128,
            "rope_theta": 11158840.0, "num_experts": 192, "num_experts_per_tok": 8, "num_shared_experts": 1,
            "moe_intermediate_size": 1536, "router_scaling_factor": 2.826, "route_norm": true}"#,
        ..USUAL
    },
    Family {
        model_types: &["laguna"],
        architecture: "laguna",
        keys: laguna,
        tensors: &[LAGUNA],
        defaults: r#"{"max_position_embeddings": 131072, "rms_norm_eps": 1e-6, "num_key_value_heads": 8, "head_dim": 128,
            "rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 5e5, "partial_rotary_factor": 0.5},
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 1.0}}, "sliding_window": 512,
            "moe_intermediate_size": 512, "shared_expert_intermediate_size": 512, "num_experts": 256, "num_experts_per_tok": 8,
            "moe_routed_scaling_factor": 1.0}"#,
        ..USUAL
    },
    Family {
        model_types: &["cohere2_moe"],
        architecture: "cohere2moe",
        keys: cohere_2_moe,
        defaults: r#"{"max_position_embeddings": 8192, "layer_norm_eps": 1e-5, "logit_scale": 0.0625, "sliding_window": 4096,
            "sliding_window_pattern": 4, "prefix_dense_sliding_window_pattern": 1, "head_dim": 128, "tie_word_embeddings": true,
            "num_experts": 8, "num_experts_per_tok": 2, "num_shared_experts": 0, "expert_selection_fn": "softmax", "norm_topk_prob": true,
            "shared_expert_combination_strategy": "average"}"#,
        ..USUAL
    },
    Family {
        model_types: &["minimax_m3_vl_text", "minimax_m3_vl", "minimax_m3"],
        architecture: "minimax-m3",
        keys: minimax_m3,
        tensors: &[MINIMAX_M3],
        single: &["ffn_gate_inp.weight", "indexer.q_proj.weight", "indexer.k_proj.weight"],
        // Graphs clamp gates and up, which all these values mean.
        activations: &["silu", "swish", "swigluoai"],
        defaults: r#"{"hidden_size": 6144, "intermediate_size": 3072, "num_hidden_layers": 60, "num_attention_heads": 64,
            "num_key_value_heads": 4, "head_dim": 128, "max_position_embeddings": 524288, "rms_norm_eps": 1e-6, "rope_theta": 5e6,
            "num_local_experts": 128, "num_experts_per_tok": 4, "dense_intermediate_size": 12288, "n_shared_experts": 1,
            "routed_scaling_factor": 2.0, "rotary_dim": 64, "swiglu_alpha": 1.702, "swiglu_limit": 7.0, "index_n_heads": 4,
            "index_head_dim": 128, "index_block_size": 128, "index_topk_blocks": 16, "index_local_blocks": 1}"#,
        ..USUAL
    },
    Family {
        model_types: &["mimo_v2_flash", "mimo_v2"],
        architecture: "mimo2",
        keys: mimo_2,
        tensors: &[MIMO_2],
        by_rank: &["self_attn.qkv_proj.weight"],
        defaults: r#"{"max_position_embeddings": 131072, "rms_norm_eps": 1e-5, "num_key_value_heads": 4, "head_dim": 192, "v_head_dim": 128,
            "rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 5e6, "partial_rotary_factor": 0.334},
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.334}}, "sliding_window": 129,
            "moe_intermediate_size": 2048, "n_routed_experts": 256, "num_experts_per_tok": 8, "n_group": 1, "topk_group": 1,
            "norm_topk_prob": true, "attention_value_scale": 0.707}"#,
        ..USUAL
    },
    Family {
        model_types: &["step3p5", "step3p7"],
        architecture: "step35",
        keys: step_3_5,
        tensors: &[STEP_3_5],
        defaults: r#"{"hidden_size": 4096, "intermediate_size": 11264, "num_hidden_layers": 45, "num_attention_heads": 64,
            "num_key_value_heads": 8, "head_dim": 128, "max_position_embeddings": 128000, "rms_norm_eps": 1e-5,
            "num_experts_per_tok": 8, "n_routed_experts": 288, "moe_intermediate_size": 1280, "share_expert_dim": 1280,
            "moe_router_scaling_factor": 1.0}"#,
        ..USUAL
    },
];

/// ERNIE 4.5 VL, for text: experts and biases for text come first; routers are transposed.
static ERNIE_VL: &[Rule] = &[
    rule("model.layers.{L}.mlp.gate.weight", "blk.{L}.ffn_gate_inp.weight", transposed),
    rule("model.layers.{L}.mlp.gate.weight_1", "", skip),
    rule("model.layers.{L}.mlp.moe_statics.e_score_correction_bias", "blk.{L}.exp_probs_b.bias", first_row),
    rule("model.layers.{L}.mlp.experts.{X}.gate_proj", "blk.{L}.ffn_gate_exps", plain),
    rule("model.layers.{L}.mlp.experts.{X}.up_proj", "blk.{L}.ffn_up_exps", plain),
    rule("model.layers.{L}.mlp.experts.{X}.down_proj", "blk.{L}.ffn_down_exps", plain),
];

/// Flint, as published and as transformers writes it.
static FLINT: &[Rule] = &[
    rule("model.layers.{L}.self_attn.softmax_offset", "blk.{L}.attn_sinks.weight", plain),
    rule("model.layers.{L}.self_attn.sinks", "blk.{L}.attn_sinks.weight", plain),
];

/// DBRX: one matrix has all experts.
static DBRX: &[Rule] = &[
    rule("model.wte", "token_embd", plain),
    rule("model.norm_f", "output_norm", plain),
    rule("model.blocks.{L}.norm_attn_norm.norm_1", "blk.{L}.attn_norm", plain),
    rule("model.blocks.{L}.norm_attn_norm.norm_2", "blk.{L}.attn_output_norm", plain),
    rule("model.blocks.{L}.norm_attn_norm.attn.Wqkv", "blk.{L}.attn_qkv", plain),
    rule("model.blocks.{L}.norm_attn_norm.attn.out_proj", "blk.{L}.attn_output", plain),
    rule("model.blocks.{L}.ffn.router.layer", "blk.{L}.ffn_gate_inp", plain),
    rule("model.blocks.{L}.ffn.experts.mlp.w1", "blk.{L}.ffn_gate_exps.weight", of_experts),
    rule("model.blocks.{L}.ffn.experts.mlp.v1", "blk.{L}.ffn_up_exps.weight", of_experts),
    rule("model.blocks.{L}.ffn.experts.mlp.w2", "blk.{L}.ffn_down_exps.weight", transposed_of_experts),
];

fn dbrx(keys: &mut Keys<'_>) -> Result<(), CheckpointError> {
    let config = keys.config;
    let part = |key: &str| config.object(key)?.ok_or_else(|| config.wrong(key, "missing", "an object"));
    let (attention, network) = (part("attn_config")?, part("ffn_config")?);
    keys.put("attention.layer_norm_epsilon", 1e-5f32);
    keys.put("attention.head_count_kv", attention.require(&["kv_n_heads"])?);
    if let Some(limit) = attention.number(&["clip_qkv"])? {
        keys.put("attention.clamp_kqv", limit as f32);
    }
    if let Some(base) = attention.number(&["rope_theta"])? {
        keys.put("rope.freq_base", base as f32);
    }
    keys.put("feed_forward_length", network.require(&["ffn_hidden_size"])?);
    keys.put("expert_count", network.require(&["moe_num_experts"])?);
    keys.put("expert_used_count", network.require(&["moe_top_k"])?);
    for (key, expected, is_right) in [
        ("moe_normalize_expert_weights", "1", (|value| value.as_f64() == Some(1.0)) as fn(&serde_json::Value) -> bool),
        ("ffn_act_fn", "silu", |value| {
            value.is_null() || value.get("name").and_then(|name| name.as_str()) == Some("silu")
        }),
    ] {
        if let Some(value) = network.value(key).filter(|value| !is_right(value)) {
            return Err(network.wrong(key, value.to_string(), format!("{expected}: nothing else is supported")));
        }
    }
    Ok(())
}

/// Grok 1.
static GROK_1: &[Rule] = &[
    rule("model.in_out_embed", "token_embd", plain),
    rule("model.rms_norm", "output_norm", plain),
    rule("model.decoder_layer.{L}.rms_norm", "blk.{L}.attn_norm", plain),
    rule("model.decoder_layer.{L}.rms_norm_1", "blk.{L}.attn_output_norm", plain),
    rule("model.decoder_layer.{L}.rms_norm_2", "blk.{L}.ffn_norm", plain),
    rule("model.decoder_layer.{L}.rms_norm_3", "blk.{L}.layer_output_norm", plain),
    rule("model.decoder_layer.{L}.multi_head_attention.query", "blk.{L}.attn_q", plain),
    rule("model.decoder_layer.{L}.multi_head_attention.key", "blk.{L}.attn_k", plain),
    rule("model.decoder_layer.{L}.multi_head_attention.value", "blk.{L}.attn_v", plain),
    rule("model.decoder_layer.{L}.multi_head_attention.linear", "blk.{L}.attn_output", plain),
    rule("model.decoder_layer.{L}.router", "blk.{L}.ffn_gate_inp", plain),
    rule("model.decoder_layer.{L}.moe.{E}.linear", "blk.{L}.ffn_gate_exps", plain),
    rule("model.decoder_layer.{L}.moe.{E}.linear_v", "blk.{L}.ffn_up_exps", plain),
    rule("model.decoder_layer.{L}.moe.{E}.linear_1", "blk.{L}.ffn_down_exps", plain),
];

/// Grok 2: norms have other names.
static GROK_2: &[Rule] = &[
    rule("model.layers.{L}.pre_attn_norm", "blk.{L}.attn_norm", plain),
    rule("model.layers.{L}.post_attn_norm", "blk.{L}.attn_output_norm", plain),
    rule("model.layers.{L}.pre_moe_norm", "blk.{L}.ffn_norm", plain),
    rule("model.layers.{L}.post_moe_norm", "blk.{L}.post_ffw_norm", plain),
];

fn grok_2(keys: &mut Keys<'_>) -> Result<(), CheckpointError> {
    let config = keys.config;
    grok(keys)?;
    keys.count("expert_feed_forward_length", &["moe_intermediate_size", "intermediate_size"])?;
    if !keys.has("attention.output_scale") {
        keys.put("attention.output_scale", f64::from(config.require(&["head_dim"])?).powf(-0.5) as f32);
    }
    // A value below 1 means none.
    if let Some(length) = config.number(&["attn_temperature_len"])?.filter(|length| *length >= 1.0) {
        keys.put("attention.temperature_length", length as u32);
    }
    // llama.cpp's converter writes "original", which scales nothing, as YaRN.
    if let Some("original" | "yarn") = config.text(&["rope_type"])? {
        keys.put("rope.scaling.type", "yarn");
        for (key, from) in [
            ("factor", "scaling_factor"),
            ("yarn_ext_factor", "extrapolation_factor"),
            ("yarn_attn_factor", "attn_factor"),
            ("yarn_beta_fast", "beta_fast"),
            ("yarn_beta_slow", "beta_slow"),
        ] {
            keys.number(&format!("rope.scaling.{key}"), &[from])?;
        }
        keys.count("rope.scaling.original_context_length", &["original_max_position_embeddings"])?;
    }
    keys.refuse("attn_logit_softcapping_method", |value| value.as_str() != Some("tanh"), "tanh")?;
    keys.refuse("rope_rotate_half_dims", |value| value.as_bool() == Some(true), "false")
}

fn grok(keys: &mut Keys<'_>) -> Result<(), CheckpointError> {
    keys.number("attention.output_scale", &["attn_output_multiplier"])?;
    keys.number("embedding_scale", &["embedding_multiplier_scale"])?;
    keys.number("logit_scale", &["output_multiplier_scale"])?;
    keys.number("attn_logit_softcapping", &["attn_logit_softcapping", "max_attn_value"])?;
    let cap = keys.config.number(&["router_logit_softcapping"])?;
    keys.put("router_logit_softcapping", cap.unwrap_or(30.0) as f32);
    keys.number("final_logit_softcapping", &["final_logit_softcapping"])
}

/// GroveMoE: small experts that groups share, and biases that are not read.
static GROVE: &[Rule] = &[
    rule("model.layers.{L}.mlp.chunk_experts.{G}.gate_proj", "blk.{L}.ffn_gate_chexps", plain),
    rule("model.layers.{L}.mlp.chunk_experts.{G}.up_proj", "blk.{L}.ffn_up_chexps", plain),
    rule("model.layers.{L}.mlp.chunk_experts.{G}.down_proj", "blk.{L}.ffn_down_chexps", plain),
    rule("model.layers.{L}.mlp.expert_bias", "", skip),
];

/// SmallThinker: names of experts' matrices without `proj`.
static SMALL_THINKER: &[Rule] = &[
    rule("model.layers.{L}.block_sparse_moe.primary_router", "blk.{L}.ffn_gate_inp", plain),
    rule("model.layers.{L}.block_sparse_moe.experts.{E}.gate", "blk.{L}.ffn_gate_exps", plain),
    rule("model.layers.{L}.block_sparse_moe.experts.{E}.up", "blk.{L}.ffn_up_exps", plain),
    rule("model.layers.{L}.block_sparse_moe.experts.{E}.down", "blk.{L}.ffn_down_exps", plain),
];

/// Arctic: a dense network in parallel to the experts. The norm of the experts is named
/// `post_attention_layernorm`.
static ARCTIC: &[Rule] = &[
    rule("model.layers.{L}.post_attention_layernorm", "blk.{L}.ffn_norm_exps", plain),
    rule("model.layers.{L}.residual_layernorm", "blk.{L}.ffn_norm", plain),
    rule("model.layers.{L}.residual_mlp.w1", "blk.{L}.ffn_gate", plain),
    rule("model.layers.{L}.residual_mlp.w2", "blk.{L}.ffn_down", plain),
    rule("model.layers.{L}.residual_mlp.w3", "blk.{L}.ffn_up", plain),
];

/// Puts keys of SmallThinker: windows and RoPE are listed by layer, and must agree.
fn small_thinker(keys: &mut Keys<'_>) -> Result<(), CheckpointError> {
    let config = keys.config;
    keys.count("expert_count", &["moe_num_primary_experts"])?;
    keys.count("expert_used_count", &["moe_num_active_primary_experts"])?;
    keys.count("expert_feed_forward_length", &["moe_ffn_hidden_size"])?;
    keys.count("feed_forward_length", &["moe_ffn_hidden_size"])?;
    let softmax = config.flag(&["moe_primary_router_apply_softmax"])? == Some(true);
    keys.put("expert_gating_func", if softmax { 1u32 } else { SIGMOID });
    keys.refuse("moe_enable_early_router", |value| value.as_bool() != Some(true), "true")?;
    keys.refuse("moe_enable_secondary_experts", |value| value.as_bool() == Some(true), "false")?;
    let windows = config.counts("sliding_window_layout")?.unwrap_or_default();
    let any = windows.iter().any(|window| *window != 0);
    if any {
        keys.count("attention.sliding_window", &["sliding_window_size"])?;
        keys.flags("attention.sliding_window_pattern", windows.iter().map(|window| *window != 0));
    }
    const TURNED: &str = "rope_layout";
    if let Some(turned) = config.counts(TURNED)? {
        if any && turned.iter().zip(&windows).any(|(turned, window)| *turned != 0 && *window == 0) {
            return Err(config.wrong(TURNED, "one that turns layers without a window", "those with a window alone"));
        }
        keys.flags("attention.rope_pattern", turned.into_iter().map(|turned| turned != 0));
    }
    Ok(())
}

/// MiMo-V2, and V2.5 with one matrix for queries, keys and values.
static MIMO_2: &[Rule] = &[
    rule("model.layers.{L}.self_attn.attention_sink_bias", "blk.{L}.attn_sinks.weight", plain),
    rule("model.layers.{L}.self_attn.qkv_proj", "blk.{L}.attn_{P}", query_key_value_of_layer),
    rule("model.layers.{L}.self_attn.qkv_proj.weight.{R}", "blk.{L}.attn_{P}.weight", query_key_value_of_layer),
];

/// Step-3.5 and 3.7 Flash, as published: norms multiply by `1 + weight`, and experts are
/// concatenated.
static STEP_3_5: &[Rule] = &[
    rule("model.norm", "output_norm", plus_one),
    rule("model.layers.{L}.input_layernorm", "blk.{L}.attn_norm", plus_one),
    rule("model.layers.{L}.post_attention_layernorm", "blk.{L}.ffn_norm", plus_one),
    rule("model.layers.{L}.self_attn.q_norm", "blk.{L}.attn_q_norm", plus_one),
    rule("model.layers.{L}.self_attn.k_norm", "blk.{L}.attn_k_norm", plus_one),
    rule("model.layers.{L}.self_attn.g_proj", "blk.{L}.attn_gate", plain),
    rule("model.layers.{L}.moe.gate", "blk.{L}.ffn_gate_inp", plain),
    rule("model.layers.{L}.moe.router_bias", "blk.{L}.exp_probs_b.bias", plain),
    rule("model.layers.{L}.moe.gate_proj", "blk.{L}.ffn_gate_exps", plain),
    rule("model.layers.{L}.moe.up_proj", "blk.{L}.ffn_up_exps", plain),
    rule("model.layers.{L}.moe.down_proj", "blk.{L}.ffn_down_exps", plain),
    rule("model.layers.{L}.share_expert.gate_proj", "blk.{L}.ffn_gate_shexp", plain),
    rule("model.layers.{L}.share_expert.up_proj", "blk.{L}.ffn_up_shexp", plain),
    rule("model.layers.{L}.share_expert.down_proj", "blk.{L}.ffn_down_shexp", plain),
];

/// Hy3.
static HY_3: &[Rule] = &[
    rule("model.layers.{L}.mlp.router.gate", "blk.{L}.ffn_gate_inp", plain),
    rule("model.layers.{L}.mlp.expert_bias", "blk.{L}.exp_probs_b", plain),
    rule("model.layers.{L}.mlp.shared_mlp.gate_proj", "blk.{L}.ffn_gate_shexp", plain),
    rule("model.layers.{L}.mlp.shared_mlp.up_proj", "blk.{L}.ffn_up_shexp", plain),
    rule("model.layers.{L}.mlp.shared_mlp.down_proj", "blk.{L}.ffn_down_shexp", plain),
];

/// Laguna: gates on the output of attention.
static LAGUNA: &[Rule] = &[
    rule("model.layers.{L}.self_attn.g_proj", "blk.{L}.attn_gate", plain),
    rule("model.layers.{L}.mlp.experts.e_score_correction_bias", "blk.{L}.exp_probs_b.bias", plain),
];

/// MiniMax-M3, as published and as transformers writes it: norms multiply by `1 + weight`.
static MINIMAX_M3: &[Rule] = &[
    rule("model.norm", "output_norm", plus_one),
    rule("model.layers.{L}.input_layernorm", "blk.{L}.attn_norm", plus_one),
    rule("model.layers.{L}.post_attention_layernorm", "blk.{L}.ffn_norm", plus_one),
    rule("model.layers.{L}.self_attn.q_norm", "blk.{L}.attn_q_norm", plus_one),
    rule("model.layers.{L}.self_attn.k_norm", "blk.{L}.attn_k_norm", plus_one),
    rule("model.layers.{L}.self_attn.index_q_norm", "blk.{L}.indexer.q_norm", plus_one),
    rule("model.layers.{L}.self_attn.index_k_norm", "blk.{L}.indexer.k_norm", plus_one),
    rule("model.layers.{L}.self_attn.index_q_proj", "blk.{L}.indexer.q_proj", plain),
    rule("model.layers.{L}.self_attn.index_k_proj", "blk.{L}.indexer.k_proj", plain),
    rule("model.layers.{L}.self_attn.indexer.q_norm", "blk.{L}.indexer.q_norm", plus_one),
    rule("model.layers.{L}.self_attn.indexer.k_norm", "blk.{L}.indexer.k_norm", plus_one),
    rule("model.layers.{L}.self_attn.indexer.q_proj", "blk.{L}.indexer.q_proj", plain),
    rule("model.layers.{L}.self_attn.indexer.k_proj", "blk.{L}.indexer.k_proj", plain),
    rule("model.layers.{L}.mlp.gate_up_proj.weight", "blk.{L}.ffn_{P}.weight", gate_up),
    rule("model.layers.{L}.mlp.shared_experts.gate_up_proj.weight", "blk.{L}.ffn_{P}_shexp.weight", gate_up),
    rule("model.layers.{L}.block_sparse_moe.shared_experts.gate_proj", "blk.{L}.ffn_gate_shexp", plain),
    rule("model.layers.{L}.block_sparse_moe.shared_experts.up_proj", "blk.{L}.ffn_up_shexp", plain),
    rule("model.layers.{L}.block_sparse_moe.shared_experts.down_proj", "blk.{L}.ffn_down_shexp", plain),
];

/// gpt-oss: transposed matrices of experts, or MXFP4 blocks that are not transposed.
static GPT_OSS: &[Rule] = &[
    rule("model.layers.{L}.post_attention_layernorm", "blk.{L}.post_attention_norm", plain),
    rule("model.layers.{L}.self_attn.sinks", "blk.{L}.attn_sinks.weight", plain),
    rule("model.layers.{L}.mlp.router", "blk.{L}.ffn_gate_inp", plain),
    rule("model.layers.{L}.mlp.experts.gate_up_proj_bias", "blk.{L}.ffn_{P}_exps.bias", gate_up_elements),
    rule("model.layers.{L}.mlp.experts.down_proj_bias", "blk.{L}.ffn_down_exps.bias", plain),
    rule("model.layers.{L}.mlp.experts.gate_up_proj", "blk.{L}.ffn_{P}_exps.weight", |s, x| match x.element() {
        Ok(ixc_ir::derived::Element::Mxfp4) => gate_up_rows(s, x),
        _ => gate_up_columns(s, x),
    }),
    rule("model.layers.{L}.mlp.experts.down_proj", "blk.{L}.ffn_down_exps.weight", |s, x| match x.element() {
        Ok(ixc_ir::derived::Element::Mxfp4) => plain(s, x),
        _ => transposed(s, x),
    }),
];

/// Ling 1.
static LING: &[Rule] = &[
    rule("model.word_embeddings", "token_embd", plain),
    rule("model.layers.{L}.attention.query_key_value.weight", "blk.{L}.attn_{P}.weight", turned_query_key_value),
    rule("model.layers.{L}.attention.dense", "blk.{L}.attn_output", plain),
];

/// Ling 2.
static LING_2: &[Rule] = &[
    rule("model.word_embeddings", "token_embd", plain),
    rule("model.layers.{L}.attention.query_key_value", "blk.{L}.attn_qkv", plain),
    rule("model.layers.{L}.attention.dense", "blk.{L}.attn_output", plain),
    rule("model.layers.{L}.attention.query_layernorm", "blk.{L}.attn_q_norm", plain),
    rule("model.layers.{L}.attention.key_layernorm", "blk.{L}.attn_k_norm", plain),
    rule("model.layers.{L}.mlp.gate.expert_bias", "blk.{L}.exp_probs_b.bias", plain),
];

/// Hunyuan with experts.
static HUNYUAN_MOE: &[Rule] = &[
    rule("model.layers.{L}.self_attn.query_layernorm", "blk.{L}.attn_q_norm", plain),
    rule("model.layers.{L}.self_attn.key_layernorm", "blk.{L}.attn_k_norm", plain),
    rule("model.layers.{L}.mlp.gate.wg", "blk.{L}.ffn_gate_inp", plain),
    rule("model.layers.{L}.mlp.shared_mlp.gate_proj", "blk.{L}.ffn_gate_shexp", plain),
    rule("model.layers.{L}.mlp.shared_mlp.up_proj", "blk.{L}.ffn_up_shexp", plain),
    rule("model.layers.{L}.mlp.shared_mlp.down_proj", "blk.{L}.ffn_down_shexp", plain),
];

/// Puts keys of Ling 2. `turned` is the share of a head that RoPE rotates.
fn ling_2(keys: &mut Keys<'_>, turned: f64) -> Result<(), CheckpointError> {
    keys.rotated_part(turned)?;
    keys.count("leading_dense_block_count", &["first_k_dense_replace"])?;
    keys.count("expert_feed_forward_length", &["moe_intermediate_size"])?;
    keys.count("expert_shared_count", &["num_shared_experts", "n_shared_experts"])?;
    keys.count("expert_shared_feed_forward_length", &["moe_shared_expert_intermediate_size"])?;
    keys.number("expert_weights_scale", &["routed_scaling_factor"])?;
    keys.normalise(&["norm_topk_prob"])
}

/// Puts keys of GLM-4 with experts. `turned` is the share of a head that RoPE rotates.
fn glm_4_moe(keys: &mut Keys<'_>, turned: f64) -> Result<(), CheckpointError> {
    keys.default("expert_gating_func", SIGMOID);
    keys.rotated_part(turned)?;
    keys.count("expert_feed_forward_length", &["moe_intermediate_size"])?;
    keys.count("expert_shared_count", &["n_shared_experts"])?;
    keys.count("leading_dense_block_count", &["first_k_dense_replace"])?;
    keys.number("expert_weights_scale", &["routed_scaling_factor"])?;
    keys.normalise(&["norm_topk_prob"])
}

fn gpt_oss(keys: &mut Keys<'_>) -> Result<(), CheckpointError> {
    keys.count("attention.sliding_window", &["sliding_window"])?;
    keys.count("expert_feed_forward_length", &["intermediate_size"])?;
    keys.refuse("swiglu_limit", |value| value.as_f64() != Some(7.0), "7")?;
    keys.refuse("swiglu_alpha", |value| value.as_f64() != Some(1.702), "1.702")?;
    keys.windows()
}

fn ernie_moe(keys: &mut Keys<'_>) -> Result<(), CheckpointError> {
    let config = keys.config;
    let last = i64::from(config.require(&["num_hidden_layers"])?) - 1;
    // -1 also means the last layer.
    let before = |value: &serde_json::Value| value.as_i64().is_none_or(|end| end != -1 && end < last);
    keys.refuse("moe_layer_end_index", before, &format!("{last}, the last layer"))?;
    keys.count("expert_count", &["moe_num_experts"])?;
    keys.count("expert_used_count", &["moe_k"])?;
    keys.count("interleave_moe_layer_step", &["moe_layer_interval"])?;
    keys.count("leading_dense_block_count", &["moe_layer_start_index"])?;
    keys.count("expert_feed_forward_length", &["moe_intermediate_size"])?;
    keys.count("expert_shared_count", &["moe_num_shared_experts"])
}

/// Puts keys of ERNIE 4.5 VL. Some values have a number for text and one for images, in this order;
/// shared experts have the width of text experts.
fn ernie_vl_moe(keys: &mut Keys<'_>) -> Result<(), CheckpointError> {
    let config = keys.config;
    let of_text = |key: &str| match config.value(key).is_some_and(|value| value.is_array()) {
        true => Ok::<_, CheckpointError>(config.counts(key)?.unwrap_or_default().first().copied()),
        false => config.count(&[key]),
    };
    let dense = match leading_dense(config)? {
        Some(dense) => dense,
        None => of_text("moe_layer_start_index")?.unwrap_or(1),
    };
    for (key, from) in [("expert_count", "moe_num_experts"), ("expert_feed_forward_length", "moe_intermediate_size")] {
        let count =
            of_text(from)?.ok_or_else(|| config.wrong(from, "[]", "a count, or one of text and one of pictures"))?;
        keys.put(key, count);
    }
    keys.count("expert_used_count", &["moe_k"])?;
    keys.count("interleave_moe_layer_step", &["moe_layer_interval"])?;
    keys.put("leading_dense_block_count", dense);
    keys.count("expert_shared_count", &["moe_num_shared_experts"])?;
    keys.refuse("use_bias", |value| value.as_bool() == Some(true), "false")
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
    base_by_alpha(keys)
}

/// Puts keys of models with shared experts that are merged into one, after leading dense layers.
fn shared_beside(keys: &mut Keys<'_>) -> Result<(), CheckpointError> {
    let config = keys.config;
    let width = config.require(&["moe_intermediate_size"])?;
    let shared = config.count(&["num_shared_experts"])?.unwrap_or(1);
    let all = width.checked_mul(shared);
    let all = all.ok_or_else(|| config.wrong("num_shared_experts", shared.to_string(), "a count of experts"))?;
    keys.put("expert_feed_forward_length", width);
    keys.put("expert_shared_count", shared);
    keys.put("expert_shared_feed_forward_length", all);
    if let Some(dense) = leading_dense(config)? {
        keys.put("leading_dense_block_count", dense);
    }
    Ok(())
}

fn laguna(keys: &mut Keys<'_>) -> Result<(), CheckpointError> {
    let config = keys.config;
    if let Some(heads) = config.counts("num_attention_heads_per_layer")? {
        keys.put("attention.head_count", heads);
    }
    keys.count("expert_feed_forward_length", &["moe_intermediate_size"])?;
    keys.count("expert_shared_feed_forward_length", &["shared_expert_intermediate_size"])?;
    keys.put("leading_dense_block_count", leading_dense(config)?.unwrap_or(0));
    keys.put("expert_weights_norm", true);
    keys.number("expert_weights_scale", &["moe_routed_scaling_factor"])?;
    keys.default("expert_gating_func", SIGMOID);
    keys.refuse("gating", |value| value.as_bool() == Some(false), "per-head or per-element")?;
    keys.refuse("moe_apply_router_weight_on_input", |value| value.as_bool() == Some(true), "false")?;
    keys.refuse("moe_router_logit_softcapping", |value| value.as_f64() != Some(0.0), "0")?;
    keys.rotated_part(1.0)?;
    let windowed = |types: Vec<&str>| types.contains(&"sliding_attention");
    if config.texts("layer_types")?.is_some_and(windowed) {
        keys.count("attention.sliding_window", &["sliding_window"])?;
        keys.windows()?;
        if let Some(share) = keys.local_rope_number("partial_rotary_factor")? {
            let length = f64::from(config.require(&["head_dim"])?);
            keys.put("rope.dimension_count_swa", (length * share) as u32);
        }
    }
    Ok(())
}

fn cohere_2_moe(keys: &mut Keys<'_>) -> Result<(), CheckpointError> {
    let config = keys.config;
    keys.count("feed_forward_length", &["prefix_dense_intermediate_size", "intermediate_size"])?;
    let width = config.require(&["intermediate_size"])?;
    keys.put("expert_feed_forward_length", width);
    let dense = leading_dense(config)?.unwrap_or(0);
    keys.put("leading_dense_block_count", dense);
    if let Some(shared) = config.count(&["num_shared_experts"])?.filter(|shared| *shared > 0) {
        let all = width.checked_mul(shared);
        let all = all.ok_or_else(|| config.wrong("num_shared_experts", shared.to_string(), "a count of experts"))?;
        keys.put("expert_shared_count", shared);
        keys.put("expert_shared_feed_forward_length", all);
    }
    let average = |value: &serde_json::Value| value.as_str() != Some("average");
    keys.refuse("shared_expert_combination_strategy", average, "average")?;
    keys.number("logit_scale", &["logit_scale"])?;
    keys.normalise(&["norm_topk_prob"])?;
    keys.count("attention.sliding_window", &["sliding_window"])?;
    if config.has("layer_types") {
        return keys.windows();
    }
    // Leading dense layers have their own period.
    let period = |key| config.require(&[key]).map(|period| period.max(1));
    let (front, behind) = (period("prefix_dense_sliding_window_pattern")?, period("sliding_window_pattern")?);
    let windowed = |layer: u32| match layer.checked_sub(dense) {
        None => !(layer + 1).is_multiple_of(front),
        Some(layer) => !(layer + 1).is_multiple_of(behind),
    };
    keys.flags("attention.sliding_window_pattern", (0..config.require(&["num_hidden_layers"])?).map(windowed));
    Ok(())
}

fn minimax_m3(keys: &mut Keys<'_>) -> Result<(), CheckpointError> {
    let config = keys.config;
    keys.count("feed_forward_length", &["dense_intermediate_size"])?;
    keys.count("expert_feed_forward_length", &["intermediate_size"])?;
    keys.count("expert_shared_count", &["n_shared_experts"])?;
    keys.count("expert_shared_feed_forward_length", &["shared_intermediate_size"])?;
    keys.count("rope.dimension_count", &["rotary_dim"])?;
    keys.number("expert_weights_scale", &["routed_scaling_factor"])?;
    keys.put("expert_weights_norm", true);
    keys.default("expert_gating_func", SIGMOID);
    keys.put("leading_dense_block_count", leading_dense(config)?.unwrap_or(0));
    let nested = config.object("sparse_attention_config")?;
    for (key, inner, outer) in [
        ("head_count", "sparse_num_index_heads", "index_n_heads"),
        ("key_length", "sparse_index_dim", "index_head_dim"),
        ("top_k", "sparse_topk_blocks", "index_topk_blocks"),
        ("block_size", "sparse_block_size", "index_block_size"),
        ("local_blocks", "sparse_local_block", "index_local_blocks"),
    ] {
        let count = match &nested {
            Some(nested) => nested.require(&[inner])?,
            None => config.require(&[outer])?,
        };
        keys.put(&format!("attention.indexer.{key}"), count);
    }
    keys.refuse("swiglu_alpha", |value| value.as_f64() != Some(1.702), "1.702")?;
    keys.refuse("swiglu_limit", |value| value.as_f64() != Some(7.0), "7")
}

fn mimo_2(keys: &mut Keys<'_>) -> Result<(), CheckpointError> {
    let config = keys.config;
    let kinds = config.texts("layer_types")?;
    let windowed: Vec<bool> = match (config.counts("hybrid_layer_pattern")?, kinds) {
        (Some(pattern), _) => pattern.into_iter().map(|windowed| windowed == 1).collect(),
        (None, Some(kinds)) => kinds.into_iter().map(|kind| kind == "sliding_attention").collect(),
        (None, None) => {
            return Err(config.wrong("hybrid_layer_pattern", "missing", "1 for each layer with a window, else 0"));
        }
    };
    let heads = config.require(&["num_key_value_heads"])?;
    let local = match config.count(&["swa_num_key_value_heads"])? {
        Some(local) => local,
        None => heads
            .checked_mul(2)
            .ok_or_else(|| config.wrong("num_key_value_heads", heads.to_string(), "a count of heads"))?,
    };
    let of_layer = windowed.iter().map(|windowed| if *windowed { local } else { heads });
    keys.put("attention.head_count_kv", of_layer.collect::<Vec<u32>>());
    keys.flags("attention.sliding_window_pattern", windowed.into_iter());
    keys.count("attention.sliding_window", &["sliding_window"])?;
    for (key, same) in [
        ("swa_head_dim", "head_dim"),
        ("swa_v_head_dim", "v_head_dim"),
        ("swa_num_attention_heads", "num_attention_heads"),
    ] {
        let expected = config.require(&[same])?;
        keys.refuse(key, |value| value.as_u64() != Some(expected.into()), &format!("{expected}, as {same}"))?;
    }
    keys.count("attention.value_length", &["v_head_dim"])?;
    keys.number("attention.value_scale", &["attention_value_scale"])?;
    keys.number("attention.layer_norm_rms_epsilon", &["layernorm_epsilon", "rms_norm_eps"])?;
    keys.count("expert_feed_forward_length", &["moe_intermediate_size"])?;
    keys.number("expert_weights_scale", &["routed_scaling_factor"])?;
    keys.normalise(&["norm_topk_prob"])?;
    keys.default("expert_gating_func", SIGMOID);
    keys.number("rope.freq_base_swa", &["swa_rope_theta"])?;
    keys.rotated_part(0.334)
}

fn step_3_5(keys: &mut Keys<'_>) -> Result<(), CheckpointError> {
    let config = keys.config;
    let layers = config.require(&["num_hidden_layers"])? as usize;
    // Published files also list the layers that draft, after the others.
    let windowed: Vec<bool> = match config.texts("layer_types")? {
        Some(kinds) => kinds.into_iter().map(|kind| kind == "sliding_attention").take(layers).collect(),
        None => vec![false; layers],
    };
    if windowed.len() != layers {
        let found = format!("an array of {}", windowed.len());
        return Err(config.wrong("layer_types", found, format!("{layers} layers, as num_hidden_layers")));
    }
    let other = config.object("attention_other_setting")?;
    let of_windowed = |key: &str, usual: u32| match &other {
        Some(other) => Ok::<_, CheckpointError>(other.count(&[key])?.unwrap_or(usual)),
        None => Ok(usual),
    };
    let heads = config.require(&["num_attention_heads"])?;
    let kv_heads = match config.count(&["num_attention_groups"])? {
        Some(groups) => groups,
        None => config.require(&["num_key_value_heads"])?,
    };
    let local = match config.count(&["num_sliding_attention_heads"])? {
        Some(heads) => heads,
        None => of_windowed("num_attention_heads", heads)?,
    };
    let length = config.require(&["head_dim"])?;
    let local_length = of_windowed("head_dim", length)?;
    if local_length != length {
        return Err(config.wrong(
            "attention_other_setting",
            local_length.to_string(),
            format!("{length}, as head_dim"),
        ));
    }
    for (key, [of_local, of_full]) in [
        ("attention.head_count", [local, heads]),
        ("attention.head_count_kv", [of_windowed("num_attention_groups", kv_heads)?, kv_heads]),
    ] {
        let of_layer = windowed.iter().map(|windowed| if *windowed { of_local } else { of_full });
        keys.put(key, of_layer.collect::<Vec<u32>>());
    }
    if windowed.contains(&true) {
        keys.count("attention.sliding_window", &["sliding_window"])?;
        keys.flags("attention.sliding_window_pattern", windowed.into_iter());
    }
    // The graph rotates half of a head in layers without a window, and the whole head in others.
    for (found, expected) in
        [(keys.rope_number("partial_rotary_factor")?, 0.5), (keys.local_rope_number("partial_rotary_factor")?, 1.0)]
    {
        if let Some(found) = found.filter(|found| *found != expected) {
            return Err(config.wrong(
                "partial_rotary_factors",
                found.to_string(),
                format!("{expected} in such layers"),
            ));
        }
    }
    keys.count("expert_count", &["moe_num_experts"])?;
    keys.count("expert_used_count", &["moe_top_k"])?;
    keys.count("expert_feed_forward_length", &["moe_intermediate_size"])?;
    keys.count("expert_shared_feed_forward_length", &["share_expert_dim", "share_expert_dims"])?;
    keys.put("leading_dense_block_count", first_sparse(config)?);
    keys.number("expert_weights_scale", &["moe_router_scaling_factor"])?;
    keys.put("expert_weights_norm", config.flag(&["norm_expert_weight"])?.unwrap_or(true));
    keys.default("expert_gating_func", SIGMOID);
    keys.refuse("moe_router_activation", |value| value.as_str() != Some("sigmoid"), "sigmoid")?;
    keys.refuse("zero_centered", |value| value.as_bool() != Some(true), "true")?;
    keys.refuse(
        "query_pre_attn_scalar",
        |value| value.as_f64() != Some(length.into()),
        &format!("{length}, as head_dim"),
    )?;
    keys.limits("swiglu_clamp_exp", "swiglu_limits")?;
    keys.limits("swiglu_clamp_shexp", "swiglu_limits_shared")
}

/// Returns the first layer with experts, from the kinds of layers, or from a list of layers that
/// may be one text.
fn first_sparse(config: &Config) -> Result<u32, CheckpointError> {
    const LIST: &str = "moe_layers_enum";
    if let Some(dense) = leading_dense(config)? {
        return Ok(dense);
    }
    let layers = match config.value(LIST) {
        None => return Ok(3),
        Some(list) if list.is_array() => config.counts(LIST)?,
        Some(_) => {
            config.text(&[LIST])?.and_then(|list| list.split(',').map(|layer| layer.trim().parse().ok()).collect())
        }
    };
    let first = layers.and_then(|layers: Vec<u32>| layers.into_iter().min());
    first.ok_or_else(|| config.wrong(LIST, "malformed", "numbers of layers with commas between them"))
}
