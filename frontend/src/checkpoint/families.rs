//! Models by `model_type`: which of GGUF's architectures each is, the keys that differ, and its tensors.

use super::error::CheckpointError;
use super::keys::Keys;
use super::names::{
    ERNIE, GEMMA_3, GPT_OSS, GRANITE_MOE, HUNYUAN_MOE, LATENT, LING_2, PHI_3, POST_ATTENTION, QWEN_3_5, QWEN_3_NEXT,
    QWEN_3_VL_MOE, Rule, TURNED,
};

/// `expert_gating_func` of sigmoids.
const SIGMOID: u32 = 2;

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
    /// Whether the output matrix is the embeddings' where a configuration does not say.
    pub tied: bool,
}

const USUAL: Family = Family {
    model_types: &[],
    architecture: "",
    keys: |_| Ok(()),
    tensors: &[],
    ignores_head_dim: false,
    activations: &["silu", "swish"],
    window: false,
    tied: false,
};

/// Every model that is read.
pub(super) static FAMILIES: &[Family] = &[
    Family {
        model_types: &["llama", "mistral", "mixtral"],
        architecture: "llama",
        tensors: TURNED,
        window: true,
        ..USUAL
    },
    Family { model_types: &["qwen2"], architecture: "qwen2", ..USUAL },
    Family { model_types: &["qwen2_moe"], architecture: "qwen2moe", keys: qwen_moe, ..USUAL },
    Family { model_types: &["qwen3"], architecture: "qwen3", ..USUAL },
    Family { model_types: &["qwen3_moe"], architecture: "qwen3moe", keys: qwen_moe, ..USUAL },
    Family { model_types: &["qwen3_next"], architecture: "qwen3next", keys: linear, tensors: QWEN_3_NEXT, ..USUAL },
    Family {
        model_types: &["qwen3_5", "qwen3_5_text"],
        architecture: "qwen35",
        keys: linear,
        tensors: QWEN_3_5,
        ..USUAL
    },
    Family {
        model_types: &["qwen3_5_moe", "qwen3_5_moe_text"],
        architecture: "qwen35moe",
        keys: linear,
        tensors: QWEN_3_5,
        ..USUAL
    },
    Family { model_types: &["qwen3_vl", "qwen3_vl_text"], architecture: "qwen3vl", keys: vision, ..USUAL },
    Family {
        model_types: &["qwen3_vl_moe", "qwen3_vl_moe_text"],
        architecture: "qwen3vlmoe",
        keys: |keys| {
            qwen_moe(keys)?;
            vision(keys)
        },
        tensors: QWEN_3_VL_MOE,
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
        ..USUAL
    },
    Family {
        model_types: &["gemma3_text", "gemma3"],
        architecture: "gemma3",
        keys: gemma_3,
        tensors: GEMMA_3,
        tied: true,
        activations: &["gelu_pytorch_tanh"],
        ..USUAL
    },
    Family { model_types: &["gpt_oss"], architecture: "gpt-oss", keys: gpt_oss, tensors: GPT_OSS, ..USUAL },
    Family {
        model_types: &["deepseek_v2"],
        architecture: "deepseek2",
        keys: latent,
        tensors: LATENT,
        ignores_head_dim: true,
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
        ..USUAL
    },
    Family { model_types: &["ernie4_5"], architecture: "ernie4_5", tensors: ERNIE, ..USUAL },
    Family { model_types: &["ernie4_5_moe"], architecture: "ernie4_5-moe", keys: ernie_moe, tensors: ERNIE, ..USUAL },
    Family {
        model_types: &["granite"],
        architecture: "granite",
        keys: granite,
        tensors: TURNED,
        ignores_head_dim: true,
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
        ..USUAL
    },
    Family { model_types: &["smollm3"], architecture: "smollm3", keys: smollm_3, tensors: TURNED, ..USUAL },
    Family { model_types: &["seed_oss"], architecture: "seed_oss", tensors: POST_ATTENTION, ..USUAL },
    Family {
        model_types: &["phi3"],
        architecture: "phi3",
        keys: |keys| keys.rotated_part(1.0),
        tensors: PHI_3,
        window: true,
        ..USUAL
    },
];

/// All values of `model_type`.
pub(super) fn known() -> Vec<&'static str> {
    FAMILIES.iter().flat_map(|family| family.model_types).copied().collect()
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
    // What the configuration's class has where a file is silent.
    keys.default("context_length", 131_072);
    keys.default("attention.head_count", 8);
    keys.default("attention.head_count_kv", 4);
    keys.default("attention.key_length", 256);
    keys.default("attention.value_length", 256);
    keys.default("attention.sliding_window", 4096);
    if !keys.has("attention.layer_norm_rms_epsilon") {
        keys.put("attention.layer_norm_rms_epsilon", 1e-6f32);
    }
    if !keys.has("rope.freq_base") {
        keys.put("rope.freq_base", 1e6f32);
    }
    if let Some(base) = keys.config.number(&["rope_local_base_freq"])? {
        keys.put("rope.freq_base_swa", base as f32);
    }
    if let Some(softcap) = keys.config.number(&["final_logit_softcapping"])? {
        keys.put("final_logit_softcapping", softcap as f32);
    }
    keys.count("attention.sliding_window", &["sliding_window"])?;
    keys.refuse("attn_logit_softcapping", |_| true, "null")?;
    keys.windows()
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
    let dense = match keys.config.count(&["first_k_dense_replace"])? {
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
