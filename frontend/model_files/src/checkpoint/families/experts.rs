//! Models with routed experts, but no shared experts, in all layers or after dense layers. Models
//! of other families are not here.

use super::super::conversions::{
    gate_up_columns, gate_up_elements, gate_up_rows, of_experts, plain, query_key_value_of_layer, skip, transpose,
    transposed_of_experts,
};
use super::super::error::CheckpointError;
use super::super::keys::Keys;
use super::super::names::{ADJACENT_ROPE, Rule, rule};
use super::linear_attention::attends_linearly;
use super::{Family, SIGMOID, USUAL};

pub(super) static ROWS: &[Family] = &[
    Family {
        model_types: &["olmoe"],
        architecture: "olmoe",
        keys: |keys| {
            // OLMoE would apply this limit after the norm of queries and keys, unlike OLMo.
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
    // The limit of gates is a constant in the model's code, so the configuration has no key for it.
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
        tensors: &[ARCTIC, ADJACENT_ROPE],
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
    // The `model_type` of Grok 2 does not identify a decoder, so the class name in `architectures`
    // does.
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
    // These are the tensor names in files of Grok 1 that others converted from the release.
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
            // These values are constants in the model's code, so the configuration has no keys for
            // them.
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
        model_types: &["minimax_m2", "minimax"],
        architecture: "minimax-m2",
        keys: |keys| {
            keys.count("expert_feed_forward_length", &["intermediate_size"])?;
            // Published configurations state the number of rotated elements. Configurations that
            // transformers writes state their share of the head.
            match keys.config.has("rotary_dim") {
                true => keys.count("rope.dimension_count", &["rotary_dim"]),
                false => keys.rotated_part(1.0),
            }
        },
        defaults: r#"{"max_position_embeddings": 196608, "rms_norm_eps": 1e-6, "num_key_value_heads": 8, "head_dim": 128, "rope_theta": 5e6,
            "num_experts_per_tok": 8}"#,
        // MiniMax-01 has the same `model_type`, but some layers with linear attention.
        applies: |config| Ok(!attends_linearly(config)?),
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
];

/// Rules for DBRX: one matrix has the rows of all experts.
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

/// Rules for Grok 1.
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

/// Rules for Grok 2, whose norms have other names.
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
    // A value below 1 means no temperature.
    if let Some(length) = config.number(&["attn_temperature_len"])?.filter(|length| *length >= 1.0) {
        keys.put("attention.temperature_length", length as u32);
    }
    // "original" means no scaling, but llama.cpp's converter writes YaRN for it.
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

/// Rules for GroveMoE: groups of experts share small experts, and selection biases are dropped.
static GROVE: &[Rule] = &[
    rule("model.layers.{L}.mlp.chunk_experts.{G}.gate_proj", "blk.{L}.ffn_gate_chexps", plain),
    rule("model.layers.{L}.mlp.chunk_experts.{G}.up_proj", "blk.{L}.ffn_up_chexps", plain),
    rule("model.layers.{L}.mlp.chunk_experts.{G}.down_proj", "blk.{L}.ffn_down_chexps", plain),
    rule("model.layers.{L}.mlp.expert_bias", "", skip),
];

/// Rules for SmallThinker: the names of experts' matrices lack `proj`.
static SMALL_THINKER: &[Rule] = &[
    rule("model.layers.{L}.block_sparse_moe.primary_router", "blk.{L}.ffn_gate_inp", plain),
    rule("model.layers.{L}.block_sparse_moe.experts.{E}.gate", "blk.{L}.ffn_gate_exps", plain),
    rule("model.layers.{L}.block_sparse_moe.experts.{E}.up", "blk.{L}.ffn_up_exps", plain),
    rule("model.layers.{L}.block_sparse_moe.experts.{E}.down", "blk.{L}.ffn_down_exps", plain),
];

/// Rules for Arctic, which has a dense network in parallel to the experts. The experts' norm has
/// the name `post_attention_layernorm`.
static ARCTIC: &[Rule] = &[
    rule("model.layers.{L}.post_attention_layernorm", "blk.{L}.ffn_norm_exps", plain),
    rule("model.layers.{L}.residual_layernorm", "blk.{L}.ffn_norm", plain),
    rule("model.layers.{L}.residual_mlp.w1", "blk.{L}.ffn_gate", plain),
    rule("model.layers.{L}.residual_mlp.w2", "blk.{L}.ffn_down", plain),
    rule("model.layers.{L}.residual_mlp.w3", "blk.{L}.ffn_up", plain),
];

/// Puts the keys of SmallThinker. Its configuration lists the layers with a window and those with
/// RoPE. If some layers have a window, layers without one may not have RoPE.
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
    const ADJACENT_ROPE: &str = "rope_layout";
    if let Some(turned) = config.counts(ADJACENT_ROPE)? {
        if any && turned.iter().zip(&windows).any(|(turned, window)| *turned != 0 && *window == 0) {
            return Err(config.wrong(
                ADJACENT_ROPE,
                "one that turns layers without a window",
                "those with a window alone",
            ));
        }
        keys.flags("attention.rope_pattern", turned.into_iter().map(|turned| turned != 0));
    }
    Ok(())
}

/// Rules for MiMo-V2, and for V2.5, whose queries, keys and values have one matrix.
static MIMO_2: &[Rule] = &[
    rule("model.layers.{L}.self_attn.attention_sink_bias", "blk.{L}.attn_sinks.weight", plain),
    rule("model.layers.{L}.self_attn.qkv_proj", "blk.{L}.attn_{P}", query_key_value_of_layer),
    rule("model.layers.{L}.self_attn.qkv_proj.weight.{R}", "blk.{L}.attn_{P}.weight", query_key_value_of_layer),
];

/// Rules for gpt-oss: matrices of experts are transposed, or are MXFP4 blocks that are not
/// transposed.
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
        _ => transpose(s, x),
    }),
];

fn gpt_oss(keys: &mut Keys<'_>) -> Result<(), CheckpointError> {
    keys.count("attention.sliding_window", &["sliding_window"])?;
    keys.count("expert_feed_forward_length", &["intermediate_size"])?;
    keys.refuse("swiglu_limit", |value| value.as_f64() != Some(7.0), "7")?;
    keys.refuse("swiglu_alpha", |value| value.as_f64() != Some(1.702), "1.702")?;
    keys.windows()
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
