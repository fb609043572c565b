//! Gemma models.

use super::super::conversions::{plain, plus_one, rows_for_all_tokens};
use super::super::error::CheckpointError;
use super::super::keys::Keys;
use super::super::names::{Rule, rule};
use super::{Family, PieceTokenizer, USUAL};

pub(super) static ROWS: &[Family] = &[
    Family {
        model_types: &["gemma3_text", "gemma3"],
        architecture: "gemma3",
        keys: gemma_3,
        tensors: &[GEMMA_3],
        activations: &["gelu_pytorch_tanh"],
        defaults: GEMMA_3_DEFAULTS,
        ..USUAL
    },
    Family {
        model_types: &["gemma3n_text", "gemma3n"],
        architecture: "gemma3n",
        keys: gemma_3n,
        tensors: &[GEMMA_3N],
        single: &["altup_predict_coef.weight", "altup_correct_coef.weight"],
        activations: &["gelu_pytorch_tanh"],
        defaults: r#"{"vocab_size": 262400, "hidden_size": 2048, "intermediate_size": 16384, "num_hidden_layers": 35, "num_attention_heads": 8,
            "num_key_value_heads": 2, "head_dim": 256, "max_position_embeddings": 32768, "rms_norm_eps": 1e-6, "sliding_window": 512,
            "final_logit_softcapping": 30.0, "rope_theta": 1e6, "rope_local_base_freq": 1e4, "hidden_size_per_layer_input": 256,
            "altup_active_idx": 0, "altup_num_inputs": 4, "num_kv_shared_layers": 15, "tie_word_embeddings": true}"#,
        ..USUAL
    },
    Family {
        model_types: &["gemma4_text", "gemma4"],
        architecture: "gemma4",
        keys: gemma_4,
        tensors: &[GEMMA_4],
        activations: &["gelu_pytorch_tanh"],
        defaults: r#"{"hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 30, "num_attention_heads": 8,
            "num_key_value_heads": 4, "head_dim": 256, "max_position_embeddings": 131072, "rms_norm_eps": 1e-6, "sliding_window": 512,
            "hidden_size_per_layer_input": 256, "num_kv_shared_layers": 0, "tie_word_embeddings": true,
            "rope_parameters": {"sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
            "full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1e6}}}"#,
        pieces: GEMMA_4_PIECES,
        ..USUAL
    },
    Family {
        model_types: &["gemma4_unified_text", "gemma4_unified"],
        architecture: "gemma4",
        keys: gemma_4,
        tensors: &[GEMMA_4],
        activations: &["gelu_pytorch_tanh"],
        defaults: r#"{"hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 30, "num_attention_heads": 8,
            "num_key_value_heads": 4, "head_dim": 256, "max_position_embeddings": 262144, "rms_norm_eps": 1e-6, "sliding_window": 1024,
            "num_kv_shared_layers": 0, "tie_word_embeddings": true,
            "rope_parameters": {"sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
            "full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1e6}}}"#,
        pieces: GEMMA_4_PIECES,
        ..USUAL
    },
    Family {
        model_types: &["gemma"],
        architecture: "gemma",
        tensors: &[GEMMA],
        // In published files, "gelu" means the approximation `gelu_pytorch_tanh`.
        activations: &["gelu_pytorch_tanh", "gelu"],
        defaults: r#"{"max_position_embeddings": 8192, "rms_norm_eps": 1e-6, "num_key_value_heads": 16, "head_dim": 256, "tie_word_embeddings": true}"#,
        ..USUAL
    },
    Family {
        model_types: &["gemma2"],
        architecture: "gemma2",
        keys: gemma_2,
        tensors: &[GEMMA_3],
        activations: &["gelu_pytorch_tanh"],
        defaults: r#"{"max_position_embeddings": 8192, "rms_norm_eps": 1e-6, "num_key_value_heads": 4, "head_dim": 256,
            "query_pre_attn_scalar": 256, "sliding_window": 4096, "final_logit_softcapping": 30.0, "attn_logit_softcapping": 50.0,
            "tie_word_embeddings": true}"#,
        ..USUAL
    },
    Family {
        model_types: &["vaultgemma"],
        architecture: "vaultgemma",
        keys: gemma_2,
        tensors: &[GEMMA_3],
        activations: &["gelu_pytorch_tanh"],
        defaults: r#"{"hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 26, "num_attention_heads": 8,
            "num_key_value_heads": 4, "head_dim": 256, "max_position_embeddings": 8192, "rms_norm_eps": 1e-6, "query_pre_attn_scalar": 256,
            "sliding_window": 4096, "final_logit_softcapping": 30.0, "attn_logit_softcapping": 50.0, "tie_word_embeddings": true}"#,
        ..USUAL
    },
];

/// Defaults of transformers' class of Gemma 3.
pub(super) const GEMMA_3_DEFAULTS: &str = r#"{"hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 26,
    "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "max_position_embeddings": 131072, "rms_norm_eps": 1e-6,
    "rope_theta": 1e6, "sliding_window": 4096, "query_pre_attn_scalar": 256, "tie_word_embeddings": true}"#;

/// Tokenizer of Gemma 4, whose vocabulary has merges instead of scores.
const GEMMA_4_PIECES: PieceTokenizer = PieceTokenizer::Merged {
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
};

/// Rules for Gemma 1, whose norms multiply by `1 + weight`.
static GEMMA: &[Rule] = &[
    rule("model.norm", "output_norm", plus_one),
    rule("model.layers.{L}.input_layernorm", "blk.{L}.attn_norm", plus_one),
    rule("model.layers.{L}.post_attention_layernorm", "blk.{L}.ffn_norm", plus_one),
];

/// Rules for Gemma 3: norms precede and follow each block, and multiply by `1 + weight`.
pub(super) static GEMMA_3: &[Rule] = &[
    rule("model.norm", "output_norm", plus_one),
    rule("model.layers.{L}.input_layernorm", "blk.{L}.attn_norm", plus_one),
    rule("model.layers.{L}.post_attention_layernorm", "blk.{L}.post_attention_norm", plus_one),
    rule("model.layers.{L}.pre_feedforward_layernorm", "blk.{L}.ffn_norm", plus_one),
    rule("model.layers.{L}.post_feedforward_layernorm", "blk.{L}.post_ffw_norm", plus_one),
    rule("model.layers.{L}.self_attn.q_norm", "blk.{L}.attn_q_norm", plus_one),
    rule("model.layers.{L}.self_attn.k_norm", "blk.{L}.attn_k_norm", plus_one),
];

/// Rules for Gemma 3n: norms multiply by the stored weight, and the matrices of all streams become
/// one tensor.
static GEMMA_3N: &[Rule] = &[
    rule("model.layers.{L}.post_attention_layernorm", "blk.{L}.post_attention_norm", plain),
    rule("model.layers.{L}.pre_feedforward_layernorm", "blk.{L}.ffn_norm", plain),
    rule("model.layers.{L}.post_feedforward_layernorm", "blk.{L}.post_ffw_norm", plain),
    rule("model.layers.{L}.laurel.linear_left", "blk.{L}.laurel_l", plain),
    rule("model.layers.{L}.laurel.linear_right", "blk.{L}.laurel_r", plain),
    rule("model.layers.{L}.laurel.post_laurel_norm", "blk.{L}.laurel_post_norm", plain),
    rule("model.layers.{L}.altup.correct_output_scale", "blk.{L}.altup_correct_scale.weight", plain),
    rule("model.layers.{L}.altup.correction_coefs", "blk.{L}.altup_correct_coef", plain),
    rule("model.layers.{L}.altup.prediction_coefs", "blk.{L}.altup_predict_coef", plain),
    rule("model.layers.{L}.altup.modality_router", "blk.{L}.altup_router", plain),
    rule("model.layers.{L}.altup.router_norm", "blk.{L}.altup_router_norm", plain),
    rule("model.altup_projections.{A}", "altup_proj", plain),
    rule("model.altup_unembed_projections.{A}", "altup_unembd_proj", plain),
    rule("model.embed_tokens_per_layer", "per_layer_token_embd", rows_for_all_tokens),
    rule("model.per_layer_model_projection", "per_layer_model_proj", plain),
    rule("model.per_layer_projection_norm", "per_layer_proj_norm", plain),
    rule("model.layers.{L}.per_layer_input_gate", "blk.{L}.inp_gate", plain),
    rule("model.layers.{L}.per_layer_projection", "blk.{L}.proj", plain),
    rule("model.layers.{L}.post_per_layer_input_norm", "blk.{L}.post_norm", plain),
];

/// Rules for Gemma 4: norms multiply by the stored weight. Experts are parallel to the dense
/// network; their gate and up matrices are one tensor.
static GEMMA_4: &[Rule] = &[
    rule("model.layers.{L}.post_attention_layernorm", "blk.{L}.post_attention_norm", plain),
    rule("model.layers.{L}.pre_feedforward_layernorm", "blk.{L}.ffn_norm", plain),
    rule("model.layers.{L}.pre_feedforward_layernorm_2", "blk.{L}.pre_ffw_norm_2", plain),
    rule("model.layers.{L}.post_feedforward_layernorm", "blk.{L}.post_ffw_norm", plain),
    rule("model.layers.{L}.post_feedforward_layernorm_1", "blk.{L}.post_ffw_norm_1", plain),
    rule("model.layers.{L}.post_feedforward_layernorm_2", "blk.{L}.post_ffw_norm_2", plain),
    rule("model.layers.{L}.layer_scalar", "blk.{L}.layer_output_scale.weight", plain),
    rule("model.layers.{L}.router.proj", "blk.{L}.ffn_gate_inp", plain),
    rule("model.layers.{L}.router.scale", "blk.{L}.ffn_gate_inp.scale", plain),
    rule("model.layers.{L}.router.per_expert_scale", "blk.{L}.ffn_down_exps.scale", plain),
    rule("model.layers.{L}.experts.gate_up_proj", "blk.{L}.ffn_gate_up_exps.weight", plain),
    rule("model.layers.{L}.experts.down_proj", "blk.{L}.ffn_down_exps.weight", plain),
    rule("model.embed_tokens_per_layer", "per_layer_token_embd", plain),
    rule("model.per_layer_model_projection", "per_layer_model_proj", plain),
    rule("model.per_layer_projection_norm", "per_layer_proj_norm", plain),
    rule("model.layers.{L}.per_layer_input_gate", "blk.{L}.inp_gate", plain),
    rule("model.layers.{L}.per_layer_projection", "blk.{L}.proj", plain),
    rule("model.layers.{L}.post_per_layer_input_norm", "blk.{L}.post_norm", plain),
];

/// Puts the factor on attention scores and the soft limit of logits.
pub(super) fn scores(keys: &mut Keys<'_>) -> Result<(), CheckpointError> {
    // Scores are divided by the square root of this number. If it is the length of a head, GGUF
    // files need no key.
    if let Some(scalar) = keys.config.number(&["query_pre_attn_scalar"])?
        && keys.config.number(&["head_dim"])? != Some(scalar)
    {
        keys.put("attention.scale", (1.0 / scalar.sqrt()) as f32);
    }
    keys.number("final_logit_softcapping", &["final_logit_softcapping"])
}

/// Refuses attention to later tokens.
fn causal(keys: &Keys<'_>) -> Result<(), CheckpointError> {
    keys.refuse("use_bidirectional_attention", |value| value.as_bool() == Some(true), "false")
}

fn gemma_2(keys: &mut Keys<'_>) -> Result<(), CheckpointError> {
    causal(keys)?;
    scores(keys)?;
    keys.count("attention.sliding_window", &["sliding_window"])?;
    keys.number("attn_logit_softcapping", &["attn_logit_softcapping"])?;
    // Without these keys, the graph applies the limits of the released models. 0 states that the
    // model has no limit.
    for cap in ["attn_logit_softcapping", "final_logit_softcapping"] {
        if !keys.has(cap) {
            keys.put(cap, 0f32);
        }
    }
    keys.windows()
}

fn gemma_3(keys: &mut Keys<'_>) -> Result<(), CheckpointError> {
    causal(keys)?;
    scores(keys)?;
    put_window(keys)
}

/// Puts the keys of layers with a window: its length, the layers, and their own RoPE base.
pub(super) fn put_window(keys: &mut Keys<'_>) -> Result<(), CheckpointError> {
    if let Some(base) = keys.config.number(&["rope_local_base_freq"])? {
        keys.put("rope.freq_base_swa", base as f32);
    }
    keys.count("attention.sliding_window", &["sliding_window"])?;
    keys.refuse("attn_logit_softcapping", |_| true, "null")?;
    keys.windows()
}

/// Puts the keys of Gemma 3n: residual streams, layers that share keys and values, and sparse
/// gates.
fn gemma_3n(keys: &mut Keys<'_>) -> Result<(), CheckpointError> {
    put_window(keys)?;
    keys.number("final_logit_softcapping", &["final_logit_softcapping"])?;
    let config = keys.config;
    let layers = config.require(&["num_hidden_layers"])?;
    if !config.has("layer_types") {
        keys.flags("attention.sliding_window_pattern", (1..=layers).map(|layer| layer % 5 != 0));
    }
    keys.refuse("altup_correct_scale", |value| value.as_bool() != Some(true), "true")?;
    keys.count("attention.shared_kv_layers", &["num_kv_shared_layers"])?;
    keys.count("embedding_length_per_layer_input", &["hidden_size_per_layer_input"])?;
    keys.count("altup.num_inputs", &["altup_num_inputs"])?;
    keys.count("altup.active_idx", &["altup_active_idx"])?;
    const SPARSITY: &str = "activation_sparsity_pattern";
    let parts = match config.numbers(SPARSITY)? {
        Some(parts) => parts,
        // In transformers' class, the default is sparse gates in the first ten layers, if the model
        // has more layers.
        None => (0..layers).map(|layer| if layers > 10 && layer < 10 { 0.95 } else { 0.0 }).collect(),
    };
    if let Some(part) = parts.iter().find(|part| !(0.0..1.0).contains(*part)) {
        return Err(config.wrong(SPARSITY, part.to_string(), "numbers from 0 to below 1"));
    }
    let deviations = parts.iter().map(|part| deviations_of_part(*part as f32)).collect::<Vec<f32>>();
    keys.put("activation_sparsity_scale", deviations);
    Ok(())
}

/// Returns the quantile of the standard normal distribution at probability `part`: the number of
/// standard deviations. It is computed as in torch, in single precision, and is -inf for 0.
fn deviations_of_part(part: f32) -> f32 {
    let part = f64::from(part);
    if part <= 0.0 {
        return f32::NEG_INFINITY;
    }
    // The cumulative distribution as a series: the probability between 0 and x is the density times
    // (x + x^3 / 3 + x^5 / (3 * 5) + ...).
    let below = |x: f64| {
        let (mut term, mut sum, mut power) = (x, 0.0, 1.0);
        while sum + term != sum {
            sum += term;
            power += 2.0;
            term *= x * x / power;
        }
        0.5 + sum * (-x * x / 2.0).exp() / (2.0 * std::f64::consts::PI).sqrt()
    };
    // The function is monotonic, so bisection finds the quantile.
    let (mut low, mut high) = (-8.0, 8.0);
    for _ in 0..64 {
        let middle: f64 = (low + high) / 2.0;
        if below(middle) < part { low = middle } else { high = middle }
    }
    (low / std::f64::consts::SQRT_2) as f32 * std::f32::consts::SQRT_2
}

/// Puts the keys of Gemma 4: layers with a window, whose heads have other sizes, and the last
/// layers, which share keys and values.
fn gemma_4(keys: &mut Keys<'_>) -> Result<(), CheckpointError> {
    let config = keys.config;
    keys.refuse("use_bidirectional_attention", |value| value.as_str() == Some("all"), "null or vision")?;
    let layers = config.require(&["num_hidden_layers"])?;
    let windowed: Vec<bool> = match config.texts("layer_types")? {
        Some(types) => types.iter().map(|kind| *kind == "sliding_attention").collect(),
        // By default, every sixth layer and the last layer have no window.
        None => (1..=layers).map(|layer| layer % 6 != 0 && layer != layers).collect(),
    };
    // Newer configurations list, by layer, the keys that differ from those of other layers.
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
    // If this list lacks the length, it is that of layers with a window. For older configurations,
    // the default is that of transformers' class.
    let usual = if config.has("per_layer_config") { local } else { 512 };
    let length = of_full("head_dim", "global_head_dim")?.unwrap_or(usual);
    for (key, length) in
        [("key_length", length), ("value_length", length), ("key_length_swa", local), ("value_length_swa", local)]
    {
        keys.put(&format!("attention.{key}"), length);
    }
    // RoPE counts the whole head as rotated; large divisors in `rope_freqs` disable some pairs.
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
