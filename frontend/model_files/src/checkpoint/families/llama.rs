//! Llama and models with the same tensor names.

use super::super::conversions::{
    key_of_layer, plain, plus_one, rows_of_vocabulary, skip, split_groups, transpose, transposed_gate_up,
};
use super::super::error::CheckpointError;
use super::super::keys::{Keys, Yarn, yarn_magnitude};
use super::super::names::{ADJACENT_ROPE, POST_ATTENTION, Rule, rule};
use super::{Family, USUAL, turned_layers};

/// Key that lists the layers of Llama 3.2 that attend to images.
const CROSS_ATTENTION: &str = "cross_attention_layers";
/// Rule for the embedding table of Llama 3.2, which also has rows for image tokens.
static MLLAMA: &[Rule] = &[rule("model.embed_tokens.weight", "token_embd.weight", rows_of_vocabulary)];

pub(super) static ROWS: &[Family] = &[
    Family {
        model_types: &["llama"],
        architecture: "llama",
        tensors: &[ADJACENT_ROPE],
        defaults: r#"{"max_position_embeddings": 2048, "rms_norm_eps": 1e-6}"#,
        ..USUAL
    },
    Family {
        model_types: &["mistral"],
        architecture: "llama",
        tensors: &[ADJACENT_ROPE],
        window: true,
        defaults: r#"{"hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32,
            "max_position_embeddings": 131072, "rms_norm_eps": 1e-6, "num_key_value_heads": 8, "sliding_window": 4096}"#,
        ..USUAL
    },
    // The next models have Llama's graph, but a `model_type` of their own.
    Family {
        model_types: &["iquestcoder"],
        architecture: "llama",
        tensors: &[ADJACENT_ROPE],
        defaults: r#"{"max_position_embeddings": 131072, "rms_norm_eps": 1e-5, "num_key_value_heads": 8, "head_dim": 128}"#,
        ..USUAL
    },
    Family {
        model_types: &["internlm3"],
        architecture: "llama",
        tensors: &[ADJACENT_ROPE],
        defaults: r#"{"max_position_embeddings": 32768, "rms_norm_eps": 1e-5, "num_key_value_heads": 2, "head_dim": 128}"#,
        ..USUAL
    },
    Family {
        model_types: &["cwm"],
        architecture: "cwm",
        keys: put_window,
        tensors: &[ADJACENT_ROPE],
        defaults: r#"{"hidden_size": 6144, "intermediate_size": 21504, "num_hidden_layers": 64, "num_attention_heads": 48,
            "num_key_value_heads": 8, "head_dim": 128, "max_position_embeddings": 131072, "rms_norm_eps": 1e-5, "sliding_window": 8192,
            "rope_parameters": {"rope_type": "llama3", "rope_theta": 1e6, "factor": 16.0, "original_max_position_embeddings": 8192,
            "low_freq_factor": 1.0, "high_freq_factor": 4.0}}"#,
        ..USUAL
    },
    // If the configuration does not list layers, all layers have the window.
    Family {
        model_types: &["ministral"],
        architecture: "cwm",
        keys: |keys| {
            put_window(keys)?;
            if !keys.config.has("layer_types") {
                let layers = keys.config.require(&["num_hidden_layers"])?;
                keys.flags("attention.sliding_window_pattern", (0..layers).map(|_| true));
            }
            Ok(())
        },
        tensors: &[ADJACENT_ROPE],
        defaults: r#"{"max_position_embeddings": 131072, "rms_norm_eps": 1e-6, "num_key_value_heads": 8, "sliding_window": 4096}"#,
        ..USUAL
    },
    // This is Llama 3.2 with vision. Layers that attend to images are dropped. Image tokens have
    // rows in the embedding table, but not in the output matrix.
    Family {
        model_types: &["mllama_text_model", "mllama"],
        architecture: "llama",
        keys: |keys| {
            let config = keys.config;
            let skipped_layers = config.counts(CROSS_ATTENTION)?.unwrap_or_default().len() as u32;
            keys.put("block_count", config.require(&["num_hidden_layers"])?.saturating_sub(skipped_layers));
            Ok(())
        },
        tensors: &[MLLAMA, ADJACENT_ROPE],
        skipped_layers: Some(CROSS_ATTENTION),
        defaults: r#"{"vocab_size": 128256, "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 40, "num_attention_heads": 32,
            "num_key_value_heads": 8, "max_position_embeddings": 131072, "rms_norm_eps": 1e-5, "rope_theta": 5e5, "tie_word_embeddings": false,
            "cross_attention_layers": [3, 8, 13, 18, 23, 28, 33, 38]}"#,
        ..USUAL
    },
    // RoPE pairs are already adjacent, as in GGUF files of `llama`.
    Family {
        model_types: &["helium"],
        architecture: "llama",
        defaults: r#"{"max_position_embeddings": 4096, "rms_norm_eps": 1e-8, "num_key_value_heads": 20, "head_dim": 128, "rope_theta": 1e5}"#,
        ..USUAL
    },
    Family {
        model_types: &["mixtral"],
        architecture: "llama",
        tensors: &[ADJACENT_ROPE],
        window: true,
        defaults: r#"{"max_position_embeddings": 131072, "rms_norm_eps": 1e-5, "num_key_value_heads": 8, "rope_theta": 1e6,
            "num_local_experts": 8, "num_experts_per_tok": 2}"#,
        ..USUAL
    },
    Family {
        model_types: &["smollm3"],
        architecture: "smollm3",
        keys: |keys| {
            let turned = turned_layers(keys.config)?;
            keys.flags("attention.rope_pattern", turned.into_iter());
            Ok(())
        },
        tensors: &[ADJACENT_ROPE],
        defaults: r#"{"max_position_embeddings": 32768, "rms_norm_eps": 1e-6, "num_key_value_heads": 4, "rope_theta": 2e6,
            "tie_word_embeddings": true, "no_rope_layer_interval": 4}"#,
        ..USUAL
    },
    Family {
        model_types: &["seed_oss"],
        architecture: "seed_oss",
        tensors: &[POST_ATTENTION],
        defaults: r#"{"max_position_embeddings": 524288, "rms_norm_eps": 1e-6, "num_key_value_heads": 8, "head_dim": 128}"#,
        ..USUAL
    },
    // Some vision models contain a decoder like the first Mistral model; the configuration names
    // it.
    Family {
        model_types: &["ministral3", "mistral3"],
        architecture: "mistral3",
        keys: ministral_3,
        tensors: &[ADJACENT_ROPE],
        window: true,
        defaults: r#"{"max_position_embeddings": 262144, "rms_norm_eps": 1e-5, "num_key_value_heads": 8, "head_dim": 128,
            "rope_parameters": {"rope_type": "yarn", "rope_theta": 1e6, "factor": 16.0, "original_max_position_embeddings": 16384,
            "beta_fast": 32.0, "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.1}}"#,
        ..USUAL
    },
    Family {
        model_types: &["llama4_text", "llama4"],
        architecture: "llama4",
        keys: llama_4,
        tensors: &[LLAMA_4],
        defaults: r#"{"hidden_size": 5120, "intermediate_size": 8192, "intermediate_size_mlp": 16384, "num_hidden_layers": 48,
            "num_attention_heads": 40, "num_key_value_heads": 8, "head_dim": 128, "max_position_embeddings": 131072, "rms_norm_eps": 1e-5,
            "rope_theta": 5e5, "num_experts_per_tok": 1, "num_local_experts": 16, "interleave_moe_layer_step": 1, "use_qk_norm": true,
            "attention_chunk_size": 8192, "attn_temperature_tuning": true, "floor_scale": 8192, "attn_scale": 0.1}"#,
        ..USUAL
    },
    Family {
        model_types: &["arcee"],
        architecture: "arcee",
        tensors: &[ADJACENT_ROPE],
        activations: &["relu2"],
        defaults: r#"{"max_position_embeddings": 4096, "rms_norm_eps": 1e-5}"#,
        ..USUAL
    },
    Family {
        model_types: &["afmoe"],
        architecture: "afmoe",
        keys: |keys| {
            keys.count("expert_feed_forward_length", &["moe_intermediate_size"])?;
            keys.count("expert_shared_count", &["num_shared_experts"])?;
            keys.count("leading_dense_block_count", &["num_dense_layers"])?;
            keys.number("expert_weights_scale", &["route_scale"])?;
            keys.normalise(&["route_norm"])?;
            keys.count("attention.sliding_window", &["sliding_window"])?;
            keys.refuse("mup_enabled", |value| value.as_bool() != Some(true), "true")?;
            if !keys.config.has("layer_types") {
                keys.count("attention.sliding_window_pattern", &["global_attn_every_n_layers"])?;
            }
            keys.windows()
        },
        tensors: &[AFMOE],
        defaults: r#"{"max_position_embeddings": 16384, "rms_norm_eps": 1e-5, "head_dim": 128, "moe_intermediate_size": 1408,
            "num_dense_layers": 1, "num_experts": 64, "num_experts_per_tok": 6, "num_shared_experts": 2, "route_scale": 1.0,
            "global_attn_every_n_layers": 4, "sliding_window": 1024, "mup_enabled": false}"#,
        ..USUAL
    },
    Family {
        model_types: &["muse_glimmer_text", "muse_glimmer"],
        architecture: "muse-glimmer",
        keys: muse_glimmer,
        tensors: &[MUSE_GLIMMER, ADJACENT_ROPE],
        defaults: r#"{"hidden_size": 6656, "intermediate_size": 19968, "num_hidden_layers": 52, "num_attention_heads": 32,
            "num_key_value_heads": 2, "head_dim": 128, "max_position_embeddings": 131072, "rms_norm_eps": 1e-5, "sliding_window": 2048,
            "final_logit_softcapping": 20.0, "qk_scale_factor": 3.87, "output_multiplier": 0.19611613513818404, "post_norm_eps": 1e-8}"#,
        ..USUAL
    },
    Family {
        model_types: &["exaone"],
        architecture: "exaone",
        keys: |keys| {
            keys.number("attention.layer_norm_rms_epsilon", &["layer_norm_epsilon", "rms_norm_eps"])?;
            keys.refuse("activation_function", |value| value.as_str() != Some("silu"), "silu")?;
            keys.rotated_part(1.0)
        },
        tensors: &[EXAONE],
        defaults: r#"{"max_position_embeddings": 2048, "layer_norm_epsilon": 1e-5, "rope_theta": 1e4}"#,
        ..USUAL
    },
    // Norms have no weights, and their epsilon is a constant in the model's code.
    Family {
        model_types: &["olmo"],
        architecture: "olmo",
        keys: |keys| {
            keys.put("attention.layer_norm_epsilon", 1e-5f32);
            keys.number("attention.clamp_kqv", &["clip_qkv"])
        },
        tensors: &[ADJACENT_ROPE],
        defaults: r#"{"max_position_embeddings": 2048}"#,
        ..USUAL
    },
    Family {
        model_types: &["nanbeige"],
        architecture: "nanbeige",
        keys: |keys| {
            keys.count("num_loops", &["num_loops"])?;
            let skips = keys.config.flag(&["skip_loop_final_norm"])?.unwrap_or(false);
            keys.put("skip_loop_final_norm", skips);
            Ok(())
        },
        tensors: &[ADJACENT_ROPE],
        defaults: r#"{"max_position_embeddings": 2048, "rms_norm_eps": 1e-6, "num_loops": 1}"#,
        ..USUAL
    },
    Family {
        model_types: &["nemotron-nas"],
        architecture: "deci",
        keys: nemotron_nas,
        tensors: &[NEMOTRON_NAS, ADJACENT_ROPE],
        defaults: r#"{"max_position_embeddings": 131072, "rms_norm_eps": 1e-5, "rope_theta": 5e5}"#,
        ..USUAL
    },
    Family {
        model_types: &["minicpm"],
        architecture: "minicpm",
        keys: minicpm,
        tensors: &[ADJACENT_ROPE],
        defaults: r#"{"max_position_embeddings": 2048, "rms_norm_eps": 1e-6, "scale_emb": 1, "scale_depth": 1, "dim_model_base": 1}"#,
        ..USUAL
    },
    Family {
        model_types: &["minicpm3"],
        architecture: "minicpm3",
        keys: |keys| {
            minicpm(keys)?;
            of_all_heads(keys)
        },
        tensors: &[MINICPM_3],
        ignores_head_dim: true,
        defaults: r#"{"hidden_size": 2560, "intermediate_size": 6400, "num_hidden_layers": 62, "num_attention_heads": 40,
            "num_key_value_heads": 40, "max_position_embeddings": 32768, "rms_norm_eps": 1e-5, "tie_word_embeddings": true,
            "kv_lora_rank": 256, "q_lora_rank": 768, "qk_nope_head_dim": 64, "qk_rope_head_dim": 32, "scale_emb": 12, "scale_depth": 1.4,
            "dim_model_base": 256}"#,
        ..USUAL
    },
    Family {
        model_types: &["plm"],
        architecture: "plm",
        keys: of_all_heads,
        tensors: &[MINICPM_3],
        ignores_head_dim: true,
        activations: &["relu2"],
        defaults: r#"{"max_position_embeddings": 4096, "rms_norm_eps": 1e-6, "rope_theta": 1e5, "kv_lora_rank": 512, "qk_nope_head_dim": 128,
            "qk_rope_head_dim": 64, "v_head_dim": 128, "tie_word_embeddings": true}"#,
        ..USUAL
    },
    Family {
        model_types: &["internlm2"],
        architecture: "internlm2",
        tensors: &[INTERNLM_2],
        defaults: r#"{"max_position_embeddings": 2048, "rms_norm_eps": 1e-6}"#,
        ..USUAL
    },
    Family {
        model_types: &["deepseek"],
        architecture: "deepseek",
        keys: |keys| {
            keys.count("expert_feed_forward_length", &["moe_intermediate_size"])?;
            keys.count("expert_shared_count", &["n_shared_experts"])?;
            keys.count("leading_dense_block_count", &["first_k_dense_replace"])?;
            keys.refuse("moe_layer_freq", |value| value.as_u64() != Some(1), "1")?;
            keys.normalise(&["norm_topk_prob"])
        },
        tensors: &[ADJACENT_ROPE],
        defaults: r#"{"max_position_embeddings": 2048, "rms_norm_eps": 1e-6, "moe_intermediate_size": 1407, "first_k_dense_replace": 0,
            "norm_topk_prob": false, "scoring_func": "softmax"}"#,
        ..USUAL
    },
    Family {
        model_types: &["olmo2"],
        architecture: "olmo2",
        tensors: &[POST_NORMS],
        defaults: r#"{"max_position_embeddings": 2048, "rms_norm_eps": 1e-5}"#,
        ..USUAL
    },
    Family {
        model_types: &["olmo3"],
        architecture: "olmo2",
        keys: put_window,
        tensors: &[POST_NORMS],
        defaults: r#"{"rope_theta": 5e5, "max_position_embeddings": 2048, "rms_norm_eps": 1e-5, "sliding_window": 4096, "sliding_window_pattern": 4}"#,
        ..USUAL
    },
    Family {
        model_types: &["exaone4"],
        architecture: "exaone4",
        keys: put_window,
        tensors: &[POST_NORMS],
        defaults: r#"{"max_position_embeddings": 2048, "rms_norm_eps": 1e-5, "sliding_window": 4096, "sliding_window_pattern": 4}"#,
        ..USUAL
    },
];

/// Rules for norms after blocks, in models without norms before blocks.
static POST_NORMS: &[Rule] = &[
    rule("model.layers.{L}.post_attention_layernorm", "blk.{L}.post_attention_norm", plain),
    rule("model.layers.{L}.post_feedforward_layernorm", "blk.{L}.post_ffw_norm", plain),
];

/// Rules for Llama 4. If all experts are one tensor, their matrices are stored transposed.
static LLAMA_4: &[Rule] = &[
    rule("model.layers.{L}.feed_forward.gate_proj", "blk.{L}.ffn_gate", plain),
    rule("model.layers.{L}.feed_forward.up_proj", "blk.{L}.ffn_up", plain),
    rule("model.layers.{L}.feed_forward.down_proj", "blk.{L}.ffn_down", plain),
    rule("model.layers.{L}.feed_forward.router", "blk.{L}.ffn_gate_inp", plain),
    rule("model.layers.{L}.feed_forward.experts.gate_up_proj", "blk.{L}.ffn_{P}_exps.weight", transposed_gate_up),
    rule("model.layers.{L}.feed_forward.experts.down_proj", "blk.{L}.ffn_down_exps.weight", transpose),
    rule("model.layers.{L}.feed_forward.experts.{E}.gate_proj", "blk.{L}.ffn_gate_exps", plain),
    rule("model.layers.{L}.feed_forward.experts.{E}.up_proj", "blk.{L}.ffn_up_exps", plain),
    rule("model.layers.{L}.feed_forward.experts.{E}.down_proj", "blk.{L}.ffn_down_exps", plain),
    rule("model.layers.{L}.feed_forward.shared_expert.gate_proj", "blk.{L}.ffn_gate_shexp", plain),
    rule("model.layers.{L}.feed_forward.shared_expert.up_proj", "blk.{L}.ffn_up_shexp", plain),
    rule("model.layers.{L}.feed_forward.shared_expert.down_proj", "blk.{L}.ffn_down_shexp", plain),
];

/// Rules for Trinity: gates on the output of attention, and norms before and after each block.
static AFMOE: &[Rule] = &[
    rule("model.layers.{L}.post_attention_layernorm", "blk.{L}.post_attention_norm", plain),
    rule("model.layers.{L}.pre_mlp_layernorm", "blk.{L}.ffn_norm", plain),
    rule("model.layers.{L}.post_mlp_layernorm", "blk.{L}.post_ffw_norm", plain),
    rule("model.layers.{L}.self_attn.gate_proj", "blk.{L}.attn_gate", plain),
    rule("model.layers.{L}.mlp.router.gate", "blk.{L}.ffn_gate_inp", plain),
    rule("model.layers.{L}.mlp.expert_bias", "blk.{L}.exp_probs_b.bias", plain),
];

/// Rules for Muse Glimmer: gates on the output of attention, and norms before and after each block.
/// The norms multiply by `1 + weight`.
static MUSE_GLIMMER: &[Rule] = &[
    rule("model.layers.{L}.input_layernorm.weight", "blk.{L}.attn_norm.weight", plus_one),
    rule("model.layers.{L}.post_attention_layernorm.weight", "blk.{L}.post_attention_norm.weight", plus_one),
    rule("model.layers.{L}.pre_feedforward_layernorm.weight", "blk.{L}.ffn_norm.weight", plus_one),
    rule("model.layers.{L}.post_feedforward_layernorm.weight", "blk.{L}.post_ffw_norm.weight", plus_one),
    rule("model.layers.{L}.self_attn.gate_proj", "blk.{L}.attn_gate", plain),
];

/// Rules for EXAONE 3 and 3.5.
static EXAONE: &[Rule] = &[
    rule("model.wte", "token_embd", plain),
    rule("model.ln_f", "output_norm", plain),
    rule("model.h.{L}.ln_1", "blk.{L}.attn_norm", plain),
    rule("model.h.{L}.ln_2", "blk.{L}.ffn_norm", plain),
    rule("model.h.{L}.attn.attention.q_proj", "blk.{L}.attn_q", plain),
    rule("model.h.{L}.attn.attention.k_proj", "blk.{L}.attn_k", plain),
    rule("model.h.{L}.attn.attention.v_proj", "blk.{L}.attn_v", plain),
    rule("model.h.{L}.attn.attention.out_proj", "blk.{L}.attn_output", plain),
    rule("model.h.{L}.attn.rotary.inv_freq", "", skip),
    rule("model.h.{L}.mlp.c_fc_0", "blk.{L}.ffn_gate", plain),
    rule("model.h.{L}.mlp.c_fc_1", "blk.{L}.ffn_up", plain),
    rule("model.h.{L}.mlp.c_proj", "blk.{L}.ffn_down", plain),
];

/// Rules for Nemotron models that were made by removing blocks from Llama. One matrix may replace
/// attention.
static NEMOTRON_NAS: &[Rule] = &[
    rule("model.layers.{L}.self_attn.linear_attn", "blk.{L}.attn_output", plain),
    rule("model.layers.{L}.self_attn.k_proj", "blk.{L}.attn_k", key_of_layer),
];

/// Rules for InternLM 2.
static INTERNLM_2: &[Rule] = &[
    rule("model.tok_embeddings", "token_embd", plain),
    rule("output", "output", plain),
    rule("model.layers.{L}.attention_norm", "blk.{L}.attn_norm", plain),
    rule("model.layers.{L}.ffn_norm", "blk.{L}.ffn_norm", plain),
    rule("model.layers.{L}.attention.wqkv.weight", "blk.{L}.attn_{P}.weight", split_groups),
    rule("model.layers.{L}.attention.wo", "blk.{L}.attn_output", plain),
    rule("model.layers.{L}.feed_forward.w1", "blk.{L}.ffn_gate", plain),
    rule("model.layers.{L}.feed_forward.w2", "blk.{L}.ffn_down", plain),
    rule("model.layers.{L}.feed_forward.w3", "blk.{L}.ffn_up", plain),
];

/// Checks that RoPE rotates all layers except every fourth layer, as the graph assumes.
fn fourth_without_rope(keys: &mut Keys<'_>) -> Result<(), CheckpointError> {
    let Some(layers) = keys.config.counts("no_rope_layers")? else { return Ok(()) };
    let usual = layers.iter().enumerate().all(|(layer, roped)| (*roped == 1) == ((layer + 1) % 4 != 0));
    if usual {
        Ok(())
    } else {
        Err(keys.config.wrong("no_rope_layers", "another pattern", "0 for every fourth layer, else 1"))
    }
}

fn ministral_3(keys: &mut Keys<'_>) -> Result<(), CheckpointError> {
    if let Some(scale) = keys.rope_number("llama_4_scaling_beta")? {
        keys.put("attention.temperature_scale", scale as f32);
        // Only YaRN has already put this key.
        if let Some(context) = keys.rope_number("original_max_position_embeddings")? {
            keys.default("rope.scaling.original_context_length", context as u32);
        }
    }
    if let (Some(weight), Some(Yarn { factor, magnitude, .. })) = (keys.rope_number("mscale_all_dim")?, keys.yarn()?) {
        // If a separate key already states the whole magnitude, this factor is 1. Otherwise it is
        // the part of the magnitude that the logarithm's weight does not give.
        let beside = match keys.has("rope.scaling.yarn_attn_factor") {
            true => 1.0,
            false => magnitude * yarn_magnitude(factor, weight) / yarn_magnitude(factor, 1.0),
        };
        keys.put("rope.scaling.yarn_log_multiplier", weight as f32);
        keys.put("rope.scaling.attn_factor", beside as f32);
    }
    Ok(())
}

fn llama_4(keys: &mut Keys<'_>) -> Result<(), CheckpointError> {
    /// Number of experts of Maverick, the model that does not normalise queries and keys.
    const PLAIN_EXPERTS: u32 = 128;
    let config = keys.config;
    keys.count("feed_forward_length", &["intermediate_size_mlp"])?;
    keys.count("expert_feed_forward_length", &["intermediate_size"])?;
    let step = config.require(&["interleave_moe_layer_step"])?;
    keys.put("interleave_moe_layer_step", step);
    let whole = config.texts("layer_types")?.is_some_and(|types| types.iter().all(|kind| *kind == "full_attention"));
    let chunk = config.count(&["attention_chunk_size"])?.filter(|_| !whole);
    keys.put("attention.sliding_window", chunk.unwrap_or(0));
    let untuned = config
        .value("attn_temperature_tuning")
        .is_some_and(|value| value.as_bool() == Some(false) || value.as_f64() == Some(0.0));
    match untuned {
        true => keys.put("attention.temperature_scale", 0f32),
        false => keys.number("attention.temperature_scale", &["attn_scale"])?,
    }
    if let Some(length) = config.number(&["floor_scale"])? {
        keys.put("attention.temperature_length", length as u32);
    }
    let normalised = config.count(&["num_local_experts"])? != Some(PLAIN_EXPERTS);
    keys.refuse("use_qk_norm", |value| value.as_bool() != Some(normalised), if normalised { "true" } else { "false" })?;
    let layers = config.require(&["num_hidden_layers"])?;
    let sparse = |layer: &u32| (layer + 1).is_multiple_of(step.max(1));
    if config.counts("moe_layers")?.is_some_and(|found| !found.into_iter().eq((0..layers).filter(sparse))) {
        return Err(config.wrong("moe_layers", "others", format!("the last of every {step}")));
    }
    fourth_without_rope(keys)
}

fn muse_glimmer(keys: &mut Keys<'_>) -> Result<(), CheckpointError> {
    keys.number("logit_scale", &["output_multiplier"])?;
    keys.number("final_logit_softcapping", &["final_logit_softcapping"])?;
    keys.count("attention.sliding_window", &["sliding_window"])?;
    keys.refuse("post_norm_eps", |value| value.as_f64() != Some(1e-8), "1e-8")?;
    // The listed bases must be 0 in layers without a window, which have no RoPE, and equal to
    // `rope_theta` in other layers.
    let bases = keys.config.numbers("layer_rope_theta")?;
    let kinds = keys.config.texts("layer_types")?;
    if let (Some(bases), Some(kinds)) = (&bases, &kinds) {
        let base = keys.rope_number("rope_theta")?.unwrap_or(10_000.0);
        let right = |(found, kind): (&f64, &&str)| *found == if *kind == "sliding_attention" { base } else { 0.0 };
        if bases.len() != kinds.len() || !bases.iter().zip(kinds).all(right) {
            return Err(keys.config.wrong(
                "layer_rope_theta",
                "others",
                "rope_theta in layers with a window, 0 in others",
            ));
        }
    }
    // Norms of heads have no weights here, so this factor on queries becomes part of the factor on
    // scores. In GGUF files it is the weight of the queries' norm.
    let scale = keys.config.number(&["qk_scale_factor"])?.unwrap_or(1.0);
    let length = f64::from(keys.config.require(&["head_dim"])?);
    keys.put("attention.scale", (scale / length.sqrt()) as f32);
    keys.windows()
}

/// Puts the head counts and network width of each layer, which are 0 for removed blocks.
fn nemotron_nas(keys: &mut Keys<'_>) -> Result<(), CheckpointError> {
    const BLOCKS: &str = "block_configs";
    let config = keys.config;
    let (all, width) = (config.require(&["num_attention_heads"])?, f64::from(config.require(&["hidden_size"])?));
    let wrong = |found: &str| config.wrong(BLOCKS, found, "an object for each layer with \"attention\" and \"ffn\"");
    let blocks = config.value(BLOCKS).and_then(|value| value.as_array()).ok_or_else(|| wrong("no array"))?;
    if blocks.len() != config.require(&["num_hidden_layers"])? as usize {
        return Err(wrong(&format!("{} objects", blocks.len())));
    }
    let (mut heads, mut kv_heads, mut widths) = (Vec::new(), Vec::new(), Vec::new());
    for block in blocks {
        let attention = block.get("attention").ok_or_else(|| wrong("one without attention"))?;
        let network = block.get("ffn").ok_or_else(|| wrong("one without ffn"))?;
        let group = attention.get("n_heads_in_group").and_then(|group| group.as_u64()).filter(|group| *group > 0);
        let linear = attention.get("replace_with_linear").and_then(|flag| flag.as_bool()) == Some(true);
        heads.push(if group.is_some() || linear { all } else { 0 });
        kv_heads.push(group.map_or(0, |group| (u64::from(all) / group) as u32));
        if network.get("replace_with_linear").and_then(|flag| flag.as_bool()) == Some(true) {
            return Err(wrong("a matrix in place of a network"));
        }
        // As in the model's code, two thirds of the product are rounded up to a multiple of 256.
        let factor = network.get("ffn_mult").and_then(|factor| factor.as_f64()).unwrap_or(0.0);
        widths.push((((2.0 * factor * width / 3.0) as u32).saturating_add(255)) / 256 * 256);
    }
    keys.put("attention.head_count", heads);
    keys.put("attention.head_count_kv", kv_heads);
    keys.put("feed_forward_length", widths);
    for key in ["attention.key_length", "attention.value_length"] {
        keys.put(key, config.count(&["head_dim"])?.unwrap_or(width as u32 / all.max(1)));
    }
    keys.rotated_part(1.0)
}

/// Rules for MiniCPM 3: one matrix has the keys and values of all heads, as in its GGUF files.
static MINICPM_3: &[Rule] = &[
    rule("model.layers.{L}.self_attn.q_a_proj", "blk.{L}.attn_q_a", plain),
    rule("model.layers.{L}.self_attn.q_a_layernorm", "blk.{L}.attn_q_a_norm", plain),
    rule("model.layers.{L}.self_attn.q_b_proj", "blk.{L}.attn_q_b", plain),
    rule("model.layers.{L}.self_attn.kv_a_proj_with_mqa", "blk.{L}.attn_kv_a_mqa", plain),
    rule("model.layers.{L}.self_attn.kv_a_layernorm", "blk.{L}.attn_kv_a_norm", plain),
    rule("model.layers.{L}.self_attn.kv_b_proj", "blk.{L}.attn_kv_b", plain),
];

/// Puts the keys of latent attention, for models in which one matrix has the keys and values of all
/// heads, as in older GGUF files.
fn of_all_heads(keys: &mut Keys<'_>) -> Result<(), CheckpointError> {
    let config = keys.config;
    let [still, turned] = ["qk_nope_head_dim", "qk_rope_head_dim"].map(|key| config.require(&[key]));
    let (still, turned) = (still?, turned?);
    keys.put("attention.key_length", still.saturating_add(turned));
    keys.count("attention.value_length", &["v_head_dim"])?;
    keys.put("rope.dimension_count", turned);
    keys.count("attention.q_lora_rank", &["q_lora_rank"])?;
    keys.count("attention.kv_lora_rank", &["kv_lora_rank"])
}

fn minicpm(keys: &mut Keys<'_>) -> Result<(), CheckpointError> {
    let config = keys.config;
    keys.number("embedding_scale", &["scale_emb"])?;
    let depth = config.number(&["scale_depth"])?.unwrap_or(1.0);
    keys.put("residual_scale", (depth / f64::from(config.require(&["num_hidden_layers"])?).sqrt()) as f32);
    let base = config.number(&["dim_model_base"])?.unwrap_or(1.0);
    keys.put("logit_scale", (f64::from(config.require(&["hidden_size"])?) / base) as f32);
    Ok(())
}

/// Puts the length of the window and the layers that have it, if the configuration states a window.
fn put_window(keys: &mut Keys<'_>) -> Result<(), CheckpointError> {
    if keys.config.has("sliding_window") {
        keys.count("attention.sliding_window", &["sliding_window"])?;
        keys.windows()?;
    }
    Ok(())
}
