//! Llama and models whose tensors have its names.

use super::super::error::CheckpointError;
use super::super::keys::{Keys, Yarn, yarn_magnitude};
use super::super::names::{POST_ATTENTION, Rule, TURNED, grouped, plain, rule, transposed, transposed_gate_up};
use super::{Family, USUAL};

pub(super) static ROWS: &[Family] = &[
    Family {
        model_types: &["llama"],
        architecture: "llama",
        tensors: &[TURNED],
        window: true,
        defaults: r#"{"max_position_embeddings": 2048, "rms_norm_eps": 1e-6}"#,
        ..USUAL
    },
    Family {
        model_types: &["mistral"],
        architecture: "llama",
        tensors: &[TURNED],
        window: true,
        defaults: r#"{"max_position_embeddings": 131072, "rms_norm_eps": 1e-6, "num_key_value_heads": 8}"#,
        ..USUAL
    },
    Family {
        model_types: &["mixtral"],
        architecture: "llama",
        tensors: &[TURNED],
        window: true,
        defaults: r#"{"max_position_embeddings": 131072, "rms_norm_eps": 1e-5, "num_key_value_heads": 8, "rope_theta": 1e6,
            "num_local_experts": 8, "num_experts_per_tok": 2}"#,
        ..USUAL
    },
    Family {
        model_types: &["smollm3"],
        architecture: "smollm3",
        keys: fourth_without_rope,
        tensors: &[TURNED],
        defaults: r#"{"max_position_embeddings": 32768, "rms_norm_eps": 1e-6, "num_key_value_heads": 4, "rope_theta": 2e6,
            "tie_word_embeddings": true}"#,
        ..USUAL
    },
    Family {
        model_types: &["seed_oss"],
        architecture: "seed_oss",
        tensors: &[POST_ATTENTION],
        defaults: r#"{"max_position_embeddings": 524288, "rms_norm_eps": 1e-6, "num_key_value_heads": 8, "head_dim": 128}"#,
        ..USUAL
    },
    // Of those that see, some have a decoder of Mistral's first kind, which says so.
    Family {
        model_types: &["ministral3", "mistral3"],
        architecture: "mistral3",
        keys: ministral_3,
        tensors: &[TURNED],
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
        tensors: &[TURNED],
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
        model_types: &["minicpm"],
        architecture: "minicpm",
        keys: minicpm,
        tensors: &[TURNED],
        defaults: r#"{"max_position_embeddings": 2048, "rms_norm_eps": 1e-6, "scale_emb": 1, "scale_depth": 1, "dim_model_base": 1}"#,
        ..USUAL
    },
    Family {
        model_types: &["minicpm3"],
        architecture: "minicpm3",
        keys: |keys| {
            minicpm(keys)?;
            let config = keys.config;
            let [still, turned] = ["qk_nope_head_dim", "qk_rope_head_dim"].map(|key| config.require(&[key]));
            let (still, turned) = (still?, turned?);
            keys.put("attention.key_length", still.saturating_add(turned));
            keys.count("attention.value_length", &["v_head_dim"])?;
            keys.put("rope.dimension_count", turned);
            keys.count("attention.q_lora_rank", &["q_lora_rank"])?;
            keys.count("attention.kv_lora_rank", &["kv_lora_rank"])
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
        tensors: &[TURNED],
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
        keys: windowed,
        tensors: &[POST_NORMS],
        defaults: r#"{"max_position_embeddings": 2048, "rms_norm_eps": 1e-5, "sliding_window": 4096, "sliding_window_pattern": 4}"#,
        ..USUAL
    },
    Family {
        model_types: &["exaone4"],
        architecture: "exaone4",
        keys: windowed,
        tensors: &[POST_NORMS],
        defaults: r#"{"max_position_embeddings": 2048, "rms_norm_eps": 1e-5, "sliding_window": 4096, "sliding_window_pattern": 4}"#,
        ..USUAL
    },
];

/// Norms behind blocks, and none before.
static POST_NORMS: &[Rule] = &[
    rule("model.layers.{L}.post_attention_layernorm", "blk.{L}.post_attention_norm", plain),
    rule("model.layers.{L}.post_feedforward_layernorm", "blk.{L}.post_ffw_norm", plain),
];

/// Llama 4: matrices of experts are transposed where they are one tensor.
static LLAMA_4: &[Rule] = &[
    rule("model.layers.{L}.feed_forward.gate_proj", "blk.{L}.ffn_gate", plain),
    rule("model.layers.{L}.feed_forward.up_proj", "blk.{L}.ffn_up", plain),
    rule("model.layers.{L}.feed_forward.down_proj", "blk.{L}.ffn_down", plain),
    rule("model.layers.{L}.feed_forward.router", "blk.{L}.ffn_gate_inp", plain),
    rule("model.layers.{L}.feed_forward.experts.gate_up_proj", "blk.{L}.ffn_{P}_exps.weight", transposed_gate_up),
    rule("model.layers.{L}.feed_forward.experts.down_proj", "blk.{L}.ffn_down_exps.weight", transposed),
    rule("model.layers.{L}.feed_forward.experts.{E}.gate_proj", "blk.{L}.ffn_gate_exps", plain),
    rule("model.layers.{L}.feed_forward.experts.{E}.up_proj", "blk.{L}.ffn_up_exps", plain),
    rule("model.layers.{L}.feed_forward.experts.{E}.down_proj", "blk.{L}.ffn_down_exps", plain),
    rule("model.layers.{L}.feed_forward.shared_expert.gate_proj", "blk.{L}.ffn_gate_shexp", plain),
    rule("model.layers.{L}.feed_forward.shared_expert.up_proj", "blk.{L}.ffn_up_shexp", plain),
    rule("model.layers.{L}.feed_forward.shared_expert.down_proj", "blk.{L}.ffn_down_shexp", plain),
];

/// Trinity: gates on what attention gives, and norms on both sides of a block.
static AFMOE: &[Rule] = &[
    rule("model.layers.{L}.post_attention_layernorm", "blk.{L}.post_attention_norm", plain),
    rule("model.layers.{L}.pre_mlp_layernorm", "blk.{L}.ffn_norm", plain),
    rule("model.layers.{L}.post_mlp_layernorm", "blk.{L}.post_ffw_norm", plain),
    rule("model.layers.{L}.self_attn.gate_proj", "blk.{L}.attn_gate", plain),
    rule("model.layers.{L}.mlp.router.gate", "blk.{L}.ffn_gate_inp", plain),
    rule("model.layers.{L}.mlp.expert_bias", "blk.{L}.exp_probs_b.bias", plain),
];

/// InternLM 2.
static INTERNLM_2: &[Rule] = &[
    rule("model.tok_embeddings", "token_embd", plain),
    rule("output", "output", plain),
    rule("model.layers.{L}.attention_norm", "blk.{L}.attn_norm", plain),
    rule("model.layers.{L}.ffn_norm", "blk.{L}.ffn_norm", plain),
    rule("model.layers.{L}.attention.wqkv.weight", "blk.{L}.attn_{P}.weight", grouped),
    rule("model.layers.{L}.attention.wo", "blk.{L}.attn_output", plain),
    rule("model.layers.{L}.feed_forward.w1", "blk.{L}.ffn_gate", plain),
    rule("model.layers.{L}.feed_forward.w2", "blk.{L}.ffn_down", plain),
    rule("model.layers.{L}.feed_forward.w3", "blk.{L}.ffn_up", plain),
];

/// The graph rotates all layers but every fourth.
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
    }
    if let (Some(weight), Some(Yarn { factor, magnitude, .. })) = (keys.rope_number("mscale_all_dim")?, keys.yarn()?) {
        // What files have beside it is what is left of the magnitude.
        let beside = magnitude * yarn_magnitude(factor, weight) / yarn_magnitude(factor, 1.0);
        keys.put("rope.scaling.yarn_log_multiplier", weight as f32);
        keys.put("rope.scaling.attn_factor", beside as f32);
    }
    Ok(())
}

fn llama_4(keys: &mut Keys<'_>) -> Result<(), CheckpointError> {
    /// Experts of the model that does not normalise queries and keys.
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

/// MiniCPM 3: keys and values of all heads are one matrix, as its GGUF files have them.
static MINICPM_3: &[Rule] = &[
    rule("model.layers.{L}.self_attn.q_a_proj", "blk.{L}.attn_q_a", plain),
    rule("model.layers.{L}.self_attn.q_a_layernorm", "blk.{L}.attn_q_a_norm", plain),
    rule("model.layers.{L}.self_attn.q_b_proj", "blk.{L}.attn_q_b", plain),
    rule("model.layers.{L}.self_attn.kv_a_proj_with_mqa", "blk.{L}.attn_kv_a_mqa", plain),
    rule("model.layers.{L}.self_attn.kv_a_layernorm", "blk.{L}.attn_kv_a_norm", plain),
    rule("model.layers.{L}.self_attn.kv_b_proj", "blk.{L}.attn_kv_b", plain),
];

fn minicpm(keys: &mut Keys<'_>) -> Result<(), CheckpointError> {
    let config = keys.config;
    keys.number("embedding_scale", &["scale_emb"])?;
    let depth = config.number(&["scale_depth"])?.unwrap_or(1.0);
    keys.put("residual_scale", (depth / f64::from(config.require(&["num_hidden_layers"])?).sqrt()) as f32);
    let base = config.number(&["dim_model_base"])?.unwrap_or(1.0);
    keys.put("logit_scale", (f64::from(config.require(&["hidden_size"])?) / base) as f32);
    Ok(())
}

/// Layers with a window, where there is one, say so.
fn windowed(keys: &mut Keys<'_>) -> Result<(), CheckpointError> {
    if keys.config.has("sliding_window") {
        keys.count("attention.sliding_window", &["sliding_window"])?;
        keys.windows()?;
    }
    Ok(())
}
