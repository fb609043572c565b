//! Models with layers of short convolutions.

use super::super::conversions::{gate_up, plain};
use super::super::error::CheckpointError;
use super::super::keys::Keys;
use super::super::names::{Rule, rule};
use super::super::state_conversions::taps;
use super::layer_kinds::{Kind, heads_of_kinds, kinds};
use super::{Family, SIGMOID, USUAL};

pub(super) static ROWS: &[Family] = &[
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
];

/// Rules for LFM2, dense and with experts.
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

/// Rules for LFM3: gates of heads, and norms after blocks.
static LFM_3: &[Rule] = &[
    rule("model.layers.{L}.post_operator_norm", "blk.{L}.post_attention_norm", plain),
    rule("model.layers.{L}.post_ffn_norm", "blk.{L}.post_ffw_norm", plain),
    rule("model.layers.{L}.self_attn.gate_proj", "blk.{L}.attn_gate", plain),
];

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
        // By default, every second layer has attention, and every second of these attention layers
        // has the window.
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
