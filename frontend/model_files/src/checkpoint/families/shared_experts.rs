//! Models with routed and shared experts that belong to no other family.

use super::super::config::Config;
use super::super::conversions::{first_row, gate_up, plain, plus_one, skip, transpose, turned_query_key_value};
use super::super::error::CheckpointError;
use super::super::keys::Keys;
use super::super::names::{POST_ATTENTION, Rule, rule};
use super::dense::ERNIE;
use super::{Family, SIGMOID, USUAL, base_by_alpha, leading_dense};

pub(super) static ROWS: &[Family] = &[
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
    // These models have no dense layers, and RoPE rotates the whole head.
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
        model_types: &["ernie4_5_moe"],
        architecture: "ernie4_5-moe",
        keys: ernie_moe,
        tensors: &[ERNIE],
        defaults: r#"{"max_position_embeddings": 131072, "rms_norm_eps": 1e-5, "num_key_value_heads": 4, "rope_theta": 5e5,
            "tie_word_embeddings": true, "moe_intermediate_size": 1536, "moe_num_experts": 64, "moe_k": 6, "moe_layer_interval": 1,
            "moe_layer_start_index": 1, "moe_num_shared_experts": 2}"#,
        ..USUAL
    },
    // The model has two groups of experts. Text uses the first; the second, for images, is not
    // read.
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
                // `norm_head` changes the output matrix. If it were also the embedding table, that
                // would change, too.
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
    // The selection biases are stored minus their mean. This selects the same experts as the
    // original biases.
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
        // All these names mean the graph's gate with limits on gates and up products.
        activations: &["silu", "swish", "swigluoai"],
        defaults: r#"{"hidden_size": 6144, "intermediate_size": 3072, "num_hidden_layers": 60, "num_attention_heads": 64,
            "num_key_value_heads": 4, "head_dim": 128, "max_position_embeddings": 524288, "rms_norm_eps": 1e-6, "rope_theta": 5e6,
            "num_local_experts": 128, "num_experts_per_tok": 4, "dense_intermediate_size": 12288, "n_shared_experts": 1,
            "routed_scaling_factor": 2.0, "rotary_dim": 64, "swiglu_alpha": 1.702, "swiglu_limit": 7.0, "index_n_heads": 4,
            "index_head_dim": 128, "index_block_size": 128, "index_topk_blocks": 16, "index_local_blocks": 1}"#,
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

/// Rules for the text part of ERNIE 4.5 VL. Experts and biases for text precede those for images,
/// and routers are transposed.
static ERNIE_VL: &[Rule] = &[
    rule("model.layers.{L}.mlp.gate.weight", "blk.{L}.ffn_gate_inp.weight", transpose),
    rule("model.layers.{L}.mlp.gate.weight_1", "", skip),
    rule("model.layers.{L}.mlp.moe_statics.e_score_correction_bias", "blk.{L}.exp_probs_b.bias", first_row),
    rule("model.layers.{L}.mlp.experts.{X}.gate_proj", "blk.{L}.ffn_gate_exps", plain),
    rule("model.layers.{L}.mlp.experts.{X}.up_proj", "blk.{L}.ffn_up_exps", plain),
    rule("model.layers.{L}.mlp.experts.{X}.down_proj", "blk.{L}.ffn_down_exps", plain),
];

/// Rules for Flint, for published files and for files that transformers writes.
static FLINT: &[Rule] = &[
    rule("model.layers.{L}.self_attn.softmax_offset", "blk.{L}.attn_sinks.weight", plain),
    rule("model.layers.{L}.self_attn.sinks", "blk.{L}.attn_sinks.weight", plain),
];

/// Rules for published files of Step-3.5 and 3.7 Flash. Norms multiply by `1 + weight`, and the
/// matrices of all experts are one tensor.
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

/// Rules for Hy3.
static HY_3: &[Rule] = &[
    rule("model.layers.{L}.mlp.router.gate", "blk.{L}.ffn_gate_inp", plain),
    rule("model.layers.{L}.mlp.expert_bias", "blk.{L}.exp_probs_b", plain),
    rule("model.layers.{L}.mlp.shared_mlp.gate_proj", "blk.{L}.ffn_gate_shexp", plain),
    rule("model.layers.{L}.mlp.shared_mlp.up_proj", "blk.{L}.ffn_up_shexp", plain),
    rule("model.layers.{L}.mlp.shared_mlp.down_proj", "blk.{L}.ffn_down_shexp", plain),
];

/// Rules for Laguna, which has gates on the output of attention.
static LAGUNA: &[Rule] = &[
    rule("model.layers.{L}.self_attn.g_proj", "blk.{L}.attn_gate", plain),
    rule("model.layers.{L}.mlp.experts.e_score_correction_bias", "blk.{L}.exp_probs_b.bias", plain),
];

/// Rules for MiniMax-M3: published files, and files of transformers. Norms use `1 + weight`.
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

/// Rules for Ling 1.
static LING: &[Rule] = &[
    rule("model.word_embeddings", "token_embd", plain),
    rule("model.layers.{L}.attention.query_key_value.weight", "blk.{L}.attn_{P}.weight", turned_query_key_value),
    rule("model.layers.{L}.attention.dense", "blk.{L}.attn_output", plain),
];

/// Rules for Ling 2.
static LING_2: &[Rule] = &[
    rule("model.word_embeddings", "token_embd", plain),
    rule("model.layers.{L}.attention.query_key_value", "blk.{L}.attn_qkv", plain),
    rule("model.layers.{L}.attention.dense", "blk.{L}.attn_output", plain),
    rule("model.layers.{L}.attention.query_layernorm", "blk.{L}.attn_q_norm", plain),
    rule("model.layers.{L}.attention.key_layernorm", "blk.{L}.attn_k_norm", plain),
    rule("model.layers.{L}.mlp.gate.expert_bias", "blk.{L}.exp_probs_b.bias", plain),
];

/// Rules for Hunyuan with experts.
static HUNYUAN_MOE: &[Rule] = &[
    rule("model.layers.{L}.self_attn.query_layernorm", "blk.{L}.attn_q_norm", plain),
    rule("model.layers.{L}.self_attn.key_layernorm", "blk.{L}.attn_k_norm", plain),
    rule("model.layers.{L}.mlp.gate.wg", "blk.{L}.ffn_gate_inp", plain),
    rule("model.layers.{L}.mlp.shared_mlp.gate_proj", "blk.{L}.ffn_gate_shexp", plain),
    rule("model.layers.{L}.mlp.shared_mlp.up_proj", "blk.{L}.ffn_up_shexp", plain),
    rule("model.layers.{L}.mlp.shared_mlp.down_proj", "blk.{L}.ffn_down_shexp", plain),
];

/// Puts the keys of Ling 2. `turned` is the default share of a head that RoPE rotates.
fn ling_2(keys: &mut Keys<'_>, turned: f64) -> Result<(), CheckpointError> {
    keys.rotated_part(turned)?;
    keys.count("leading_dense_block_count", &["first_k_dense_replace"])?;
    keys.count("expert_feed_forward_length", &["moe_intermediate_size"])?;
    keys.count("expert_shared_count", &["num_shared_experts", "n_shared_experts"])?;
    keys.count("expert_shared_feed_forward_length", &["moe_shared_expert_intermediate_size"])?;
    keys.number("expert_weights_scale", &["routed_scaling_factor"])?;
    keys.normalise(&["norm_topk_prob"])
}

/// Puts the keys of GLM-4 with experts. `turned` is the default share of a head that RoPE rotates.
fn glm_4_moe(keys: &mut Keys<'_>, turned: f64) -> Result<(), CheckpointError> {
    keys.default("expert_gating_func", SIGMOID);
    keys.rotated_part(turned)?;
    keys.count("expert_feed_forward_length", &["moe_intermediate_size"])?;
    keys.count("expert_shared_count", &["n_shared_experts"])?;
    keys.count("leading_dense_block_count", &["first_k_dense_replace"])?;
    keys.number("expert_weights_scale", &["routed_scaling_factor"])?;
    keys.normalise(&["norm_topk_prob"])
}

fn ernie_moe(keys: &mut Keys<'_>) -> Result<(), CheckpointError> {
    let config = keys.config;
    let last = i64::from(config.require(&["num_hidden_layers"])?) - 1;
    // An end of -1 also means the last layer.
    let before = |value: &serde_json::Value| value.as_i64().is_none_or(|end| end != -1 && end < last);
    keys.refuse("moe_layer_end_index", before, &format!("{last}, the last layer"))?;
    keys.count("expert_count", &["moe_num_experts"])?;
    keys.count("expert_used_count", &["moe_k"])?;
    keys.count("interleave_moe_layer_step", &["moe_layer_interval"])?;
    keys.count("leading_dense_block_count", &["moe_layer_start_index"])?;
    keys.count("expert_feed_forward_length", &["moe_intermediate_size"])?;
    keys.count("expert_shared_count", &["moe_num_shared_experts"])
}

/// Puts the keys of ERNIE 4.5 VL. Some values are lists: a number for text, then one for images.
/// Shared experts have the width of text experts.
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

/// Puts the keys of models that have leading dense layers and several shared experts, merged into
/// one.
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
    // The leading dense layers have their own period of layers with a window.
    let period = |key| config.require(&[key]).map(|period| period.max(1));
    let (front, after) = (period("prefix_dense_sliding_window_pattern")?, period("sliding_window_pattern")?);
    let windowed = |layer: u32| match layer.checked_sub(dense) {
        None => !(layer + 1).is_multiple_of(front),
        Some(layer) => !(layer + 1).is_multiple_of(after),
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

fn step_3_5(keys: &mut Keys<'_>) -> Result<(), CheckpointError> {
    let config = keys.config;
    let layers = config.require(&["num_hidden_layers"])? as usize;
    // Published files list draft layers, too, after the model's layers.
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
    // The graph always rotates half of a head in layers without a window, and the whole head in
    // layers with one.
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

/// Returns the first layer with experts. The source is the list of layer kinds, or a list of
/// layers, which may be an array or a text with commas.
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
