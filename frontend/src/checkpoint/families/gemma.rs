//! Gemma.

use super::super::error::CheckpointError;
use super::super::keys::Keys;
use super::super::names::{Rule, plain, plus_one, rule};
use super::{Family, Pieces, USUAL};

pub(super) static ROWS: &[Family] = &[
    Family {
        model_types: &["gemma3_text", "gemma3"],
        architecture: "gemma3",
        keys: gemma_3,
        tensors: &[GEMMA_3],
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
        tensors: &[GEMMA_4],
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
        model_types: &["gemma"],
        architecture: "gemma",
        tensors: &[GEMMA],
        // "gelu" in published files means the other.
        activations: &["gelu_pytorch_tanh", "gelu"],
        defaults: r#"{"max_position_embeddings": 8192, "rms_norm_eps": 1e-6, "num_key_value_heads": 16, "head_dim": 256, "tie_word_embeddings": true}"#,
        ..USUAL
    },
    Family {
        model_types: &["gemma2"],
        architecture: "gemma2",
        keys: |keys| {
            scores(keys)?;
            keys.count("attention.sliding_window", &["sliding_window"])?;
            keys.number("attn_logit_softcapping", &["attn_logit_softcapping"])?;
            // Files without these keys mean what the released models have.
            for cap in ["attn_logit_softcapping", "final_logit_softcapping"] {
                if !keys.has(cap) {
                    keys.put(cap, 0f32);
                }
            }
            keys.windows()
        },
        tensors: &[GEMMA_3],
        activations: &["gelu_pytorch_tanh"],
        defaults: r#"{"max_position_embeddings": 8192, "rms_norm_eps": 1e-6, "num_key_value_heads": 4, "head_dim": 256,
            "query_pre_attn_scalar": 256, "sliding_window": 4096, "final_logit_softcapping": 30.0, "attn_logit_softcapping": 50.0,
            "tie_word_embeddings": true}"#,
        ..USUAL
    },
];

/// Gemma 1: norms multiply by one more.
static GEMMA: &[Rule] = &[
    rule("model.norm", "output_norm", plus_one),
    rule("model.layers.{L}.input_layernorm", "blk.{L}.attn_norm", plus_one),
    rule("model.layers.{L}.post_attention_layernorm", "blk.{L}.ffn_norm", plus_one),
];

/// Gemma 3: norms multiply by one more, and stand on both sides of a block.
static GEMMA_3: &[Rule] = &[
    rule("model.norm", "output_norm", plus_one),
    rule("model.layers.{L}.input_layernorm", "blk.{L}.attn_norm", plus_one),
    rule("model.layers.{L}.post_attention_layernorm", "blk.{L}.post_attention_norm", plus_one),
    rule("model.layers.{L}.pre_feedforward_layernorm", "blk.{L}.ffn_norm", plus_one),
    rule("model.layers.{L}.post_feedforward_layernorm", "blk.{L}.post_ffw_norm", plus_one),
    rule("model.layers.{L}.self_attn.q_norm", "blk.{L}.attn_q_norm", plus_one),
    rule("model.layers.{L}.self_attn.k_norm", "blk.{L}.attn_k_norm", plus_one),
];

/// Gemma 4: norms multiply by what is stored; experts stand beside the dense network, gates and up in one tensor.
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

/// What scores are divided by, and what logits stay within.
fn scores(keys: &mut Keys<'_>) -> Result<(), CheckpointError> {
    // The root of this: of a head's length, where files need no key for it.
    if let Some(scalar) = keys.config.number(&["query_pre_attn_scalar"])?
        && keys.config.number(&["head_dim"])? != Some(scalar)
    {
        keys.put("attention.scale", (1.0 / scalar.sqrt()) as f32);
    }
    keys.number("final_logit_softcapping", &["final_logit_softcapping"])?;
    keys.refuse("use_bidirectional_attention", |value| value.as_bool() == Some(true), "false")
}

fn gemma_3(keys: &mut Keys<'_>) -> Result<(), CheckpointError> {
    scores(keys)?;
    if let Some(base) = keys.config.number(&["rope_local_base_freq"])? {
        keys.put("rope.freq_base_swa", base as f32);
    }
    keys.count("attention.sliding_window", &["sliding_window"])?;
    keys.refuse("attn_logit_softcapping", |_| true, "null")?;
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
