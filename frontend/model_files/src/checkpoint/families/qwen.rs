//! Qwen models.

use std::collections::HashSet;

use super::super::config::Config;
use super::super::conversions::{
    down_either, gate_up_either, index_query_key, plain, plus_one, plus_one_by_stream, skip,
};
use super::super::error::CheckpointError;
use super::super::keys::Keys;
use super::super::names::{Rule, rule};
use super::super::state_conversions::{
    by_key_head, decay, taps, turned_columns, turned_decay, turned_heads, turned_taps, turned_values, values_in_turns,
};
use super::{Family, USUAL};

pub(super) static ROWS: &[Family] = &[
    Family {
        model_types: &["qwen"],
        architecture: "qwen",
        keys: qwen_1,
        tensors: &[QWEN_1],
        defaults: r#"{"seq_length": 8192, "layer_norm_epsilon": 1e-6, "rotary_emb_base": 10000, "kv_channels": 128}"#,
        ..USUAL
    },
    Family {
        model_types: &["qwen2"],
        architecture: "qwen2",
        defaults: r#"{"max_position_embeddings": 32768, "rms_norm_eps": 1e-6, "num_key_value_heads": 32,
            "sliding_window": 4096, "max_window_layers": 28}"#,
        ..USUAL
    },
    Family {
        model_types: &["qwen2_moe"],
        architecture: "qwen2moe",
        keys: qwen_moe,
        defaults: r#"{"max_position_embeddings": 32768, "rms_norm_eps": 1e-6, "num_key_value_heads": 16, "num_experts": 60,
            "num_experts_per_tok": 4, "moe_intermediate_size": 1408, "shared_expert_intermediate_size": 5632, "norm_topk_prob": false}"#,
        dense: dense_layers,
        ..USUAL
    },
    Family {
        model_types: &["qwen3"],
        architecture: "qwen3",
        defaults: r#"{"max_position_embeddings": 32768, "rms_norm_eps": 1e-6, "num_key_value_heads": 32, "head_dim": 128,
            "sliding_window": 4096, "max_window_layers": 28}"#,
        ..USUAL
    },
    Family {
        model_types: &["qwen3_moe"],
        architecture: "qwen3moe",
        keys: qwen_moe,
        defaults: r#"{"max_position_embeddings": 32768, "rms_norm_eps": 1e-6, "num_key_value_heads": 4, "num_experts": 128,
            "num_experts_per_tok": 8, "moe_intermediate_size": 768, "norm_topk_prob": false}"#,
        dense: dense_layers,
        ..USUAL
    },
    Family {
        model_types: &["qwen3_next"],
        architecture: "qwen3next",
        keys: |keys| {
            all_sparse(keys)?;
            linear(keys)?;
            keys.normalise(&["norm_topk_prob"])
        },
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
        model_types: &["qwen4_exp_text", "qwen4_exp"],
        architecture: "qwen4exp",
        keys: qwen_4_exp,
        tensors: &[QWEN_4_EXP, QWEN_3_5],
        single: &["ffn_gate_inp.weight", "ffn_gate_inp_shexp.weight", "ssm_conv1d.weight", "ple_conv1d.weight"],
        numbers: &[
            ("ple_embedding.layer_multipliers", "ple.layer_multipliers"),
            ("ple_embedding.ngram_heads_offsets", "ple.head_offsets"),
            ("ple_embedding.ngram_heads_vocab_sizes", "ple.head_vocab_sizes"),
        ],
        defaults: r#"{"hidden_size": 2048, "num_hidden_layers": 40, "num_attention_heads": 16, "num_key_value_heads": 2,
            "head_dim": 256, "max_position_embeddings": 32768, "rms_norm_eps": 1e-6, "num_experts": 512, "num_experts_per_tok": 10,
            "moe_intermediate_size": 512, "shared_expert_intermediate_size": 512, "norm_topk_prob": true,
            "linear_conv_kernel_dim": 4, "linear_key_head_dim": 128, "linear_value_head_dim": 128,
            "linear_num_key_heads": 16, "linear_num_value_heads": 32, "hc_count": 4, "hc_lowrank": 320, "ple_conv_kernel_size": 4,
            "ngram_size": 3, "heads_per_ngram": 8, "split_ngram_parts": 512}"#,
        ..USUAL
    },
    Family {
        model_types: &["qwen2_vl", "qwen2_vl_text", "qwen2_5_vl", "qwen2_5_vl_text"],
        architecture: "qwen2vl",
        defaults: r#"{"hidden_size": 8192, "intermediate_size": 29568, "num_hidden_layers": 80, "num_attention_heads": 64,
            "num_key_value_heads": 8, "max_position_embeddings": 32768, "rms_norm_eps": 1e-5, "rope_theta": 1e6, "max_window_layers": 80}"#,
        ..USUAL
    },
    Family {
        model_types: &["qwen2_5_omni_text"],
        architecture: "qwen2vl",
        defaults: r#"{"hidden_size": 3584, "intermediate_size": 18944, "num_hidden_layers": 28, "num_attention_heads": 28,
            "num_key_value_heads": 4, "max_position_embeddings": 32768, "rms_norm_eps": 1e-6, "rope_theta": 1e6, "max_window_layers": 28}"#,
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
        dense: dense_layers,
        ..USUAL
    },
    // The files have no tensors for image inputs of layers ("deepstack").
    Family {
        model_types: &["qwen3_omni_moe_text"],
        architecture: "qwen3vlmoe",
        keys: |keys| {
            qwen_moe(keys)?;
            vision(keys)
        },
        defaults: r#"{"hidden_size": 2048, "num_hidden_layers": 28, "num_attention_heads": 28, "num_key_value_heads": 4,
            "max_position_embeddings": 32768, "rms_norm_eps": 1e-6, "rope_theta": 1e6, "num_experts": 128, "num_experts_per_tok": 8,
            "moe_intermediate_size": 768, "norm_topk_prob": true}"#,
        dense: dense_layers,
        ..USUAL
    },
];

/// Rules for Qwen 1, in which the second matrix is the gate.
static QWEN_1: &[Rule] = &[
    rule("model.wte", "token_embd", plain),
    rule("model.ln_f", "output_norm", plain),
    rule("model.h.{L}.ln_1", "blk.{L}.attn_norm", plain),
    rule("model.h.{L}.ln_2", "blk.{L}.ffn_norm", plain),
    rule("model.h.{L}.attn.c_attn", "blk.{L}.attn_qkv", plain),
    rule("model.h.{L}.attn.c_proj", "blk.{L}.attn_output", plain),
    rule("model.h.{L}.mlp.w1", "blk.{L}.ffn_up", plain),
    rule("model.h.{L}.mlp.w2", "blk.{L}.ffn_gate", plain),
    rule("model.h.{L}.mlp.c_proj", "blk.{L}.ffn_down", plain),
    rule("model.rotary_emb.inv_freq", "", skip),
];

/// Rules for Qwen3-Next, whose projections are fused by key head. Norms multiply by `1 + weight`,
/// except those in linear attention.
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

/// Rules for Qwen3.5. Value heads are reordered, so that consecutive value heads belong to
/// consecutive key heads.
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

/// Rules for Qwen3.8-Flash-Next: norms of streams, n-gram embeddings, and an indexer. All norms
/// multiply by `1 + weight`.
static QWEN_4_EXP: &[Rule] = &[
    rule("model.hyper_connection_mixer.hc_norm", "output_hc_norm", plus_one_by_stream),
    rule("model.hyper_connection_mixer.input_mix_weight_down", "output_hc_down", plain),
    rule("model.hyper_connection_mixer.input_mix_weight_up", "output_hc_up", plain),
    rule("model.layers.{L}.attn_hyper_connection.hc_norm", "blk.{L}.hc_attn_norm", plus_one_by_stream),
    rule("model.layers.{L}.attn_hyper_connection.input_mix_weight_down", "blk.{L}.hc_attn_down", plain),
    rule("model.layers.{L}.attn_hyper_connection.input_mix_weight_up", "blk.{L}.hc_attn_up", plain),
    rule("model.layers.{L}.attn_hyper_connection.block_inject_weight", "blk.{L}.hc_attn_inject", plain),
    rule("model.layers.{L}.mlp_hyper_connection.hc_norm", "blk.{L}.hc_ffn_norm", plus_one_by_stream),
    rule("model.layers.{L}.mlp_hyper_connection.input_mix_weight_down", "blk.{L}.hc_ffn_down", plain),
    rule("model.layers.{L}.mlp_hyper_connection.input_mix_weight_up", "blk.{L}.hc_ffn_up", plain),
    rule("model.layers.{L}.mlp_hyper_connection.block_inject_weight", "blk.{L}.hc_ffn_inject", plain),
    rule("model.layers.{L}.ple.key_proj", "blk.{L}.ple_key", plain),
    rule("model.layers.{L}.ple.value_proj", "blk.{L}.ple_value", plain),
    rule("model.layers.{L}.ple.norm_key", "blk.{L}.ple_norm_key", plus_one_by_stream),
    rule("model.layers.{L}.ple.norm_query", "blk.{L}.ple_norm_query", plus_one_by_stream),
    rule("model.layers.{L}.ple.norm_conv", "blk.{L}.ple_norm_conv", plus_one_by_stream),
    rule("model.layers.{L}.ple.conv1d", "blk.{L}.ple_conv1d", taps),
    rule("model.layers.{L}.ple.ple_embedding.ngram_embedding.shard_{S}", "per_layer_token_embd", plain),
    rule("model.layers.{L}.ple.ple_embedding.ngram_embedding", "per_layer_token_embd", plain),
    rule("model.layers.{L}.ple.ple_embedding.layer_multipliers", "", skip),
    rule("model.layers.{L}.ple.ple_embedding.ngram_heads_offsets", "", skip),
    rule("model.layers.{L}.ple.ple_embedding.ngram_heads_vocab_sizes", "", skip),
    rule("model.layers.{L}.self_attn.indexer.index_qk_proj.weight", "blk.{L}.indexer.{P}_proj.weight", index_query_key),
    rule("model.layers.{L}.self_attn.indexer.q_layernorm", "blk.{L}.indexer.q_norm", plus_one),
    rule("model.layers.{L}.self_attn.indexer.k_layernorm", "blk.{L}.indexer.k_norm", plus_one),
];

/// Rules for Qwen3-VL with experts: most files store the experts' matrices transposed.
static QWEN_3_VL_MOE: &[Rule] = &[
    rule("model.layers.{L}.mlp.experts.gate_up_proj", "blk.{L}.ffn_{P}_exps.weight", gate_up_either),
    rule("model.layers.{L}.mlp.experts.down_proj", "blk.{L}.ffn_down_exps.weight", down_either),
];

fn qwen_moe(keys: &mut Keys<'_>) -> Result<(), CheckpointError> {
    keys.count("expert_feed_forward_length", &["moe_intermediate_size"])?;
    keys.count("expert_shared_feed_forward_length", &["shared_expert_intermediate_size"])?;
    // If the configuration does not list layers, it does not determine which layers have a window:
    // models differ.
    if !keys.config.has("layer_types") {
        keys.refuse("use_sliding_window", |value| value.as_bool() == Some(true), "false")?;
    }
    keys.normalise(&["norm_topk_prob"])
}

/// Returns whether each layer is dense. These are the listed layers, and all layers except every
/// n-th (`decoder_sparse_step`).
fn dense_layers(config: &Config) -> Result<Vec<bool>, CheckpointError> {
    const STEP: &str = "decoder_sparse_step";
    let layers = config.count(&["num_hidden_layers"])?.unwrap_or(0);
    let dense: HashSet<u32> = config.counts("mlp_only_layers")?.unwrap_or_default().into_iter().collect();
    let step = config.count(&[STEP])?.unwrap_or(1);
    if step == 0 {
        return Err(config.wrong(STEP, "0", "a count above 0: 1 where all layers have experts"));
    }
    Ok((0..layers).map(|layer| dense.contains(&layer) || !(layer + 1).is_multiple_of(step)).collect())
}

/// Refuses configurations in which some layers have no experts.
fn all_sparse(keys: &Keys<'_>) -> Result<(), CheckpointError> {
    keys.refuse("mlp_only_layers", |value| value.as_array().is_none_or(|layers| !layers.is_empty()), "an empty array")?;
    keys.refuse("decoder_sparse_step", |value| value.as_u64() != Some(1), "1")
}

/// Sets the number of layers with image inputs to 0, because only text is supported.
fn vision(keys: &mut Keys<'_>) -> Result<(), CheckpointError> {
    keys.put("n_deepstack_layers", 0u32);
    Ok(())
}

/// Puts the keys of layers with linear attention.
fn linear(keys: &mut Keys<'_>) -> Result<(), CheckpointError> {
    keys.count("expert_feed_forward_length", &["moe_intermediate_size"])?;
    keys.count("expert_shared_feed_forward_length", &["shared_expert_intermediate_size"])?;
    let sizes = ["linear_num_key_heads", "linear_num_value_heads", "linear_key_head_dim", "linear_value_head_dim"];
    let [key_heads, value_heads, key_dim, value_dim] = sizes.map(|key| keys.config.require(&[key]));
    delta_rule(keys, key_heads?, value_heads?, key_dim?, value_dim?)?;
    match keys.config.texts("layer_types")? {
        Some(types) => keys.flags("attention.recurrent_layers", types.iter().map(|kind| *kind == "linear_attention")),
        None => keys.put("full_attention_interval", keys.config.count(&["full_attention_interval"])?.unwrap_or(4)),
    }
    keys.rotated_part(0.25)
}

/// Puts the sizes of linear attention by the gated delta rule: numbers and lengths of key and value
/// heads.
pub(super) fn delta_rule(
    keys: &mut Keys<'_>,
    key_heads: u32,
    value_heads: u32,
    key_dim: u32,
    value_dim: u32,
) -> Result<(), CheckpointError> {
    let inner = value_heads.checked_mul(value_dim);
    let inner = inner.ok_or_else(|| keys.config.wrong("linear_value_head_dim", "too large", "a length of a head"))?;
    keys.count("ssm.conv_kernel", &["linear_conv_kernel_dim"])?;
    for (name, size) in
        [("state_size", key_dim), ("group_count", key_heads), ("time_step_rank", value_heads), ("inner_size", inner)]
    {
        keys.put(&format!("ssm.{name}"), size);
    }
    Ok(())
}

fn qwen_4_exp(keys: &mut Keys<'_>) -> Result<(), CheckpointError> {
    let config = keys.config;
    linear(keys)?;
    keys.normalise(&["norm_topk_prob"])?;
    // The default gate in transformers is not a sigmoid, so the key must be present.
    if config.text(&["output_gate_type"])? != Some("sigmoid") {
        let found =
            config.text(&["output_gate_type"])?.map_or_else(|| "missing".to_owned(), |found| format!("\"{found}\""));
        return Err(config.wrong("output_gate_type", found, "\"sigmoid\": nothing else is supported"));
    }
    for (key, from) in [
        ("hyper_connection.count", "hc_count"),
        ("hyper_connection.low_rank", "hc_lowrank"),
        ("attention.indexer.head_count", "indexer_n_heads"),
        ("attention.indexer.key_length", "indexer_head_dim"),
        ("attention.indexer.top_k", "indexer_budget"),
    ] {
        keys.count(key, &[from])?;
    }
    if let (Some(ratio), Some(kinds)) = (config.count(&["indexer_compress_ratio"])?, config.texts("layer_types")?) {
        let of_layer = kinds.iter().map(|kind| if *kind == "linear_attention" { 0 } else { ratio });
        keys.put("attention.compress_ratios", of_layer.collect::<Vec<u32>>());
    }
    let named = config.counts("ple_layer_ids")?.unwrap_or_default();
    if named.is_empty() {
        return Ok(());
    }
    // These layer numbers begin with 1.
    let layers = named.iter().map(|layer| layer.checked_sub(1)).collect::<Option<Vec<u32>>>();
    let layers =
        layers.ok_or_else(|| config.wrong("ple_layer_ids", format!("{named:?}"), "numbers of layers, from 1"))?;
    keys.put("ple.layers", layers);
    keys.count("ple.ngram_size", &["ngram_size"])?;
    keys.count("ple.heads_per_ngram", &["heads_per_ngram"])?;
    keys.count("ple.conv_kernel", &["ple_conv_kernel_size"])?;
    let (tokens, of_each) = (config.require(&["ngram_size"])?, config.require(&["heads_per_ngram"])?);
    let heads = tokens.saturating_sub(1).saturating_mul(of_each);
    let width = config.require(&["ple_embed_dim", "hidden_size"])?;
    let length = width.checked_div(heads).filter(|length| length.checked_mul(heads) == Some(width));
    let length = length.ok_or_else(|| {
        config.wrong("ple_embed_dim", width.to_string(), format!("a multiple of {heads}, the rows of a token"))
    })?;
    keys.put("embedding_length_per_layer_input", length);
    let end = match config.value("eos_token_id").and_then(|ends| ends.as_array()) {
        Some(_) => config.counts("eos_token_id")?.unwrap_or_default().first().copied(),
        None => config.count(&["eos_token_id"])?,
    };
    let end =
        end.ok_or_else(|| config.wrong("eos_token_id", "missing", "a token: rows of a text are named from it on"))?;
    keys.put("ple.eos_token_id", end);
    Ok(())
}

fn qwen_1(keys: &mut Keys<'_>) -> Result<(), CheckpointError> {
    // For longer texts than in training, the model's own code would change RoPE and queries, so the
    // context ends there.
    keys.count("context_length", &["seq_length"])?;
    keys.count("attention.key_length", &["kv_channels"])?;
    keys.count("attention.value_length", &["kv_channels"])?;
    keys.number("attention.layer_norm_rms_epsilon", &["layer_norm_epsilon"])?;
    keys.number("rope.freq_base", &["rotary_emb_base"])?;
    keys.refuse("rotary_pct", |value| value.as_f64() != Some(1.0), "1")?;
    keys.refuse("scale_attn_weights", |value| value.as_bool() == Some(false), "true")
}
