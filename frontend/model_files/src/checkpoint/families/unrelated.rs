//! Models whose tensor names and keys differ from those of all other families.

use super::super::conversions::{
    all_halves_side_by_side, gains_of_heads, gate_query_key_value, gate_up, halves_side_by_side, key_signs, plain,
    query_signs, skip,
};
use super::super::error::CheckpointError;
use super::super::keys::Keys;
use super::super::names::{ADJACENT_ROPE, Rule, rule};
use super::dense::gelu;
use super::gpt::GPT_2;
use super::{Family, USUAL};

pub(super) static ROWS: &[Family] = &[
    Family {
        model_types: &["openelm"],
        architecture: "openelm",
        keys: openelm,
        tensors: &[OPENELM],
        defaults: r#"{"max_context_length": 2048, "rope_freq_constant": 10000, "head_dim": 128, "normalize_qk_projections": false,
            "activation_fn_name": "swish", "ffn_with_glu": true, "normalization_layer_name": "rms_norm"}"#,
        ..USUAL
    },
    Family {
        model_types: &["codeshell"],
        architecture: "codeshell",
        keys: codeshell,
        tensors: &[CODESHELL, GPT_2],
        defaults: r#"{"n_positions": 8192, "n_embd": 4096, "n_layer": 42, "n_head": 32, "layer_norm_epsilon": 1e-5, "activation_function": "gelu_pytorch_tanh",
            "position_embedding_type": "learned_absolute", "group_query_attention": true, "num_query_groups": 1}"#,
        ..USUAL
    },
    // These configurations have a class name, but no `model_type`. CogVLM 2 is refused: its heads
    // share keys, and no source describes its RoPE.
    Family {
        model_types: &["CogVLMForCausalLM"],
        architecture: "cogvlm",
        keys: |keys| keys.refuse("num_multi_query_heads", |_| true, "absent, as in CogVLM 1"),
        tensors: &[COGVLM],
        defaults: r#"{"max_position_embeddings": 2048, "rms_norm_eps": 1e-6}"#,
        ..USUAL
    },
    Family {
        model_types: &["hrm_text"],
        architecture: "hrm_text",
        keys: hrm_text,
        tensors: &[HRM_TEXT],
        defaults: r#"{"hidden_size": 1536, "intermediate_size": 4096, "num_hidden_layers": 16, "num_attention_heads": 12, "head_dim": 128,
            "max_position_embeddings": 2048, "rms_norm_eps": 1e-6, "H_cycles": 2, "L_cycles": 3, "initializer_range": 0.02, "prefix_lm": true}"#,
        ..USUAL
    },
    Family {
        model_types: &["chameleon"],
        architecture: "chameleon",
        keys: |keys| {
            keys.put("swin_norm", keys.config.flag(&["swin_norm"])?.unwrap_or(false));
            Ok(())
        },
        tensors: &[CHAMELEON, ADJACENT_ROPE],
        defaults: r#"{"hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 32,
            "max_position_embeddings": 4096, "rms_norm_eps": 1e-5, "swin_norm": false}"#,
        ..USUAL
    },
    Family {
        model_types: &["talkie"],
        architecture: "talkie",
        keys: |keys| {
            keys.put("attention.layer_norm_rms_epsilon", f32::EPSILON);
            Ok(())
        },
        tensors: &[TALKIE],
        model_numbers: &[("lm_head_gain.w_g", "logit_scale")],
        defaults: r#"{"max_position_embeddings": 2048}"#,
        ..USUAL
    },
    Family {
        model_types: &["bitnet"],
        architecture: "bitnet-b1.58",
        tensors: &[BITNET],
        activations: &["relu2"],
        defaults: r#"{"hidden_size": 2560, "intermediate_size": 6912, "num_hidden_layers": 30, "num_attention_heads": 20, "num_key_value_heads": 5,
            "max_position_embeddings": 2048, "rms_norm_eps": 1e-5, "rope_theta": 5e5}"#,
        ..USUAL
    },
    // These models have attention without latent rows, although their configuration has
    // DeepSeek-V2's class.
    Family {
        model_types: &["deepseek_vl_v2", "deepseek_v2", "deepseek_ocr2_text", "deepseek_ocr2"],
        architecture: "deepseek2-ocr",
        keys: deepseek_ocr,
        defaults: r#"{"max_position_embeddings": 2048, "rms_norm_eps": 1e-6, "moe_intermediate_size": 1407, "first_k_dense_replace": 0,
            "routed_scaling_factor": 1.0, "norm_topk_prob": false, "scoring_func": "softmax", "n_group": 1}"#,
        ignores_head_dim: true,
        applies: |config| {
            let of_ocr = ["deepseek_ocr2_text", "deepseek_ocr2"].map(Some).contains(&config.text(&["model_type"])?);
            Ok(of_ocr || config.flag(&["use_mla"])? == Some(false))
        },
        ..USUAL
    },
];

/// Rules for OpenELM, whose gate and up matrices are one matrix.
static OPENELM: &[Rule] = &[
    rule("model.token_embeddings", "token_embd", plain),
    rule("model.layers.{L}.attn_norm", "blk.{L}.attn_norm", plain),
    rule("model.layers.{L}.attn.qkv_proj", "blk.{L}.attn_qkv", plain),
    rule("model.layers.{L}.attn.q_norm", "blk.{L}.attn_q_norm", plain),
    rule("model.layers.{L}.attn.k_norm", "blk.{L}.attn_k_norm", plain),
    rule("model.layers.{L}.attn.out_proj", "blk.{L}.attn_output", plain),
    rule("model.layers.{L}.ffn_norm", "blk.{L}.ffn_norm", plain),
    rule("model.layers.{L}.ffn.proj_1.weight", "blk.{L}.ffn_{P}.weight", gate_up),
    rule("model.layers.{L}.ffn.proj_2", "blk.{L}.ffn_down", plain),
];

/// Rules for CodeShell: like GPT-2, with RoPE.
static CODESHELL: &[Rule] = &[rule("model.h.{L}.attn.rotary_emb.inv_freq", "", skip)];

/// Rules for CogVLM. A layer has matrices for text, and other matrices for images.
static COGVLM: &[Rule] = &[
    rule("model.layers.{L}.self_attn.language_expert_query_key_value", "blk.{L}.attn_qkv", plain),
    rule("model.layers.{L}.self_attn.language_expert_dense", "blk.{L}.attn_output", plain),
    rule("model.layers.{L}.self_attn.vision_expert_query_key_value", "blk.{L}.vis_attn_qkv", plain),
    rule("model.layers.{L}.self_attn.vision_expert_dense", "blk.{L}.vis_attn_output", plain),
    rule("model.layers.{L}.mlp.language_mlp.gate_proj", "blk.{L}.ffn_gate", plain),
    rule("model.layers.{L}.mlp.language_mlp.up_proj", "blk.{L}.ffn_up", plain),
    rule("model.layers.{L}.mlp.language_mlp.down_proj", "blk.{L}.ffn_down", plain),
    rule("model.layers.{L}.mlp.vision_mlp.gate_proj", "blk.{L}.vis_gate", plain),
    rule("model.layers.{L}.mlp.vision_mlp.up_proj", "blk.{L}.vis_up", plain),
    rule("model.layers.{L}.mlp.vision_mlp.down_proj", "blk.{L}.vis_down", plain),
];

/// Rules for HRM-Text: layers of the upper stack follow those of the lower stack.
static HRM_TEXT: &[Rule] = &[
    rule("model.z_L_init", "hrm.z_l_init", plain),
    rule("model.L_module.layers.{L}.self_attn.gate_proj", "blk.{L}.attn_gate", plain),
    rule("model.L_module.layers.{L}.self_attn.q_proj", "blk.{L}.attn_q", plain),
    rule("model.L_module.layers.{L}.self_attn.k_proj", "blk.{L}.attn_k", plain),
    rule("model.L_module.layers.{L}.self_attn.v_proj", "blk.{L}.attn_v", plain),
    rule("model.L_module.layers.{L}.self_attn.o_proj", "blk.{L}.attn_output", plain),
    rule("model.L_module.layers.{L}.attn.gqkv_proj.weight", "blk.{L}.attn_{P}.weight", gate_query_key_value),
    rule("model.L_module.layers.{L}.attn.o_proj", "blk.{L}.attn_output", plain),
    rule("model.L_module.layers.{L}.mlp.gate_up_proj.weight", "blk.{L}.ffn_{P}.weight", gate_up),
    rule("model.L_module.layers.{L}.mlp.gate_proj", "blk.{L}.ffn_gate", plain),
    rule("model.L_module.layers.{L}.mlp.up_proj", "blk.{L}.ffn_up", plain),
    rule("model.L_module.layers.{L}.mlp.down_proj", "blk.{L}.ffn_down", plain),
    rule("model.H_module.layers.{U}.self_attn.gate_proj", "blk.{L}.attn_gate", plain),
    rule("model.H_module.layers.{U}.self_attn.q_proj", "blk.{L}.attn_q", plain),
    rule("model.H_module.layers.{U}.self_attn.k_proj", "blk.{L}.attn_k", plain),
    rule("model.H_module.layers.{U}.self_attn.v_proj", "blk.{L}.attn_v", plain),
    rule("model.H_module.layers.{U}.self_attn.o_proj", "blk.{L}.attn_output", plain),
    rule("model.H_module.layers.{U}.attn.gqkv_proj.weight", "blk.{L}.attn_{P}.weight", gate_query_key_value),
    rule("model.H_module.layers.{U}.attn.o_proj", "blk.{L}.attn_output", plain),
    rule("model.H_module.layers.{U}.mlp.gate_up_proj.weight", "blk.{L}.ffn_{P}.weight", gate_up),
    rule("model.H_module.layers.{U}.mlp.gate_proj", "blk.{L}.ffn_gate", plain),
    rule("model.H_module.layers.{U}.mlp.up_proj", "blk.{L}.ffn_up", plain),
    rule("model.H_module.layers.{U}.mlp.down_proj", "blk.{L}.ffn_down", plain),
];

/// Rules for BitNet: norms precede the last matrix of each block.
static BITNET: &[Rule] = &[
    rule("model.layers.{L}.self_attn.attn_sub_norm", "blk.{L}.attn_sub_norm", plain),
    rule("model.layers.{L}.mlp.ffn_sub_norm", "blk.{L}.ffn_sub_norm", plain),
];

/// Rules for Chameleon: norm weights of queries and keys are reordered like their rows.
static CHAMELEON: &[Rule] = &[
    rule("model.layers.{L}.self_attn.q_norm.bias", "blk.{L}.attn_q_norm.bias", all_halves_side_by_side),
    rule("model.layers.{L}.self_attn.k_norm.bias", "blk.{L}.attn_k_norm.bias", all_halves_side_by_side),
    rule("model.layers.{L}.self_attn.q_norm", "blk.{L}.attn_q_norm", halves_side_by_side),
    rule("model.layers.{L}.self_attn.k_norm", "blk.{L}.attn_k_norm", halves_side_by_side),
];

/// Rules for Talkie, whose RoPE rotates in the opposite direction. The signs of some rows are
/// changed to compensate.
static TALKIE: &[Rule] = &[
    rule("model.embed.weight", "token_embd.weight", plain),
    rule("model.embed", "token_embd.weight", plain),
    rule("lm_head.weight", "output.weight", plain),
    rule("lm_head", "output.weight", plain),
    rule("lm_head_gain.w_g", "", skip),
    rule("model.blocks.{L}.attn.attn_query", "blk.{L}.attn_q", query_signs),
    rule("model.blocks.{L}.attn.attn_key", "blk.{L}.attn_k", key_signs),
    rule("model.blocks.{L}.attn.attn_value", "blk.{L}.attn_v", plain),
    rule("model.blocks.{L}.attn.attn_resid", "blk.{L}.attn_output", plain),
    rule("model.blocks.{L}.attn.head_gain.head_g", "blk.{L}.attn_q_{P}.weight", gains_of_heads),
    rule("model.blocks.{L}.mlp.mlp_gate", "blk.{L}.ffn_gate", plain),
    rule("model.blocks.{L}.mlp.mlp_linear", "blk.{L}.ffn_up", plain),
    rule("model.blocks.{L}.mlp.mlp_resid", "blk.{L}.ffn_down", plain),
    rule("model.blocks.{L}.attn_gain.a_g", "blk.{L}.attn_output.scale", plain),
    rule("model.blocks.{L}.mlp_gain.a_g", "blk.{L}.ffn_down.scale", plain),
    rule("model.blocks.{L}.embed_skip.a_g", "blk.{L}.layer_output_scale.weight", plain),
];

fn openelm(keys: &mut Keys<'_>) -> Result<(), CheckpointError> {
    const WIDTHS: &str = "ffn_multipliers";
    let config = keys.config;
    let (layers, width) = (config.require(&["num_transformer_layers"])?, config.require(&["model_dim"])?);
    let divisor = f64::from(config.count(&["ffn_dim_divisor"])?.unwrap_or(256).max(1));
    // The width is rounded to the nearest multiple of the divisor, but by at most 10 % down.
    let inner = |factor: f64| {
        let exact = factor * f64::from(width);
        let near = (((exact + divisor / 2.0) / divisor).floor() * divisor).max(divisor);
        (if near < 0.9 * exact { near + divisor } else { near }) as u32
    };
    let widths: Vec<u32> = config.numbers(WIDTHS)?.unwrap_or_default().into_iter().map(inner).collect();
    let lists = [
        ("attention.head_count", "num_query_heads", config.counts("num_query_heads")?.unwrap_or_default()),
        ("attention.head_count_kv", "num_kv_heads", config.counts("num_kv_heads")?.unwrap_or_default()),
        ("feed_forward_length", WIDTHS, widths),
    ];
    for (key, from, list) in lists {
        if list.len() != layers as usize {
            let expected = format!("{layers}, one for each layer (num_transformer_layers)");
            return Err(config.wrong(from, format!("an array of {}", list.len()), expected));
        }
        keys.put(key, list);
    }
    keys.put("block_count", layers);
    keys.put("embedding_length", width);
    keys.count("context_length", &["max_context_length"])?;
    keys.number("rope.freq_base", &["rope_freq_constant"])?;
    // This epsilon is a constant in the model's code.
    keys.put("attention.layer_norm_rms_epsilon", 1e-6f32);
    keys.refuse("normalize_qk_projections", |value| value.as_bool() != Some(true), "true")?;
    keys.refuse("activation_fn_name", |value| value.as_str() != Some("swish"), "swish")?;
    keys.refuse("ffn_with_glu", |value| value.as_bool() != Some(true), "true")?;
    keys.refuse("normalization_layer_name", |value| value.as_str() != Some("rms_norm"), "rms_norm")
}

fn codeshell(keys: &mut Keys<'_>) -> Result<(), CheckpointError> {
    let config = keys.config;
    let wide = config.require(&["n_embd"])?.saturating_mul(4);
    keys.put("feed_forward_length", config.count(&["n_inner"])?.unwrap_or(wide));
    gelu(keys)?;
    keys.refuse("position_embedding_type", |value| value.as_str() != Some("rope"), "rope")?;
    if config.flag(&["group_query_attention"])? == Some(true) {
        keys.count("attention.head_count_kv", &["num_query_groups"])?;
    }
    // llama.cpp's converter writes these keys for RoPE without scaling.
    if !keys.has("rope.scaling.type") {
        keys.put("rope.scaling.type", "linear");
        keys.put("rope.scaling.factor", 1f32);
    }
    keys.put("rope.freq_base", 10_000f32);
    Ok(())
}

fn hrm_text(keys: &mut Keys<'_>) -> Result<(), CheckpointError> {
    let config = keys.config;
    // The first key counts the layers of one stack. `num_hidden_layers` may count all computed
    // layers.
    let layers = config.require(&["num_layers_per_stack", "num_hidden_layers"])?;
    let (cycles, lower) = (config.require(&["H_cycles"])?, config.require(&["L_cycles"])?);
    let all = u64::from(layers) * u64::from(cycles).saturating_mul(u64::from(lower) + 1);
    keys.put("block_count", u32::try_from(all).unwrap_or(u32::MAX));
    keys.put("hrm.layers_per_stack", layers);
    keys.put("hrm.h_cycles", cycles);
    keys.put("hrm.l_cycles", lower);
    keys.put("hrm.prefix_lm", config.flag(&["prefix_lm"])?.unwrap_or(false));
    keys.count("attention.head_count_kv", &["num_attention_heads"])?;
    let scale = match config.number(&["embedding_scale"])? {
        Some(scale) => scale,
        None => 1.0 / config.number(&["initializer_range"])?.unwrap_or(0.02),
    };
    keys.put("embedding_scale", scale as f32);
    Ok(())
}

fn deepseek_ocr(keys: &mut Keys<'_>) -> Result<(), CheckpointError> {
    keys.count("expert_feed_forward_length", &["moe_intermediate_size"])?;
    keys.count("expert_shared_count", &["n_shared_experts"])?;
    keys.count("leading_dense_block_count", &["first_k_dense_replace"])?;
    keys.number("expert_weights_scale", &["routed_scaling_factor"])?;
    // GGUF files have this key, but graphs ignore it.
    keys.count("attention.sliding_window", &["sliding_window_size", "sliding_window"])?;
    keys.refuse("n_group", |value| value.as_u64() != Some(1), "1")?;
    keys.normalise(&["norm_topk_prob"])
}
