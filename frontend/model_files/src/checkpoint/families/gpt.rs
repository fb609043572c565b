//! GPT-2 and related models. Most have learned positions or ALiBi, layer norms with biases, and
//! networks without a gate.

use super::super::conversions::{
    by_key_heads, embedding, embedding_and_logits, gate_up, key_value, logits, plain, query_value_key_of_four,
    rows_behind_two, skip, transpose,
};
use super::super::error::CheckpointError;
use super::super::keys::Keys;
use super::super::names::{Rule, rule};
use super::dense::gelu;
use super::{Family, USUAL};

pub(super) static ROWS: &[Family] = &[
    Family {
        model_types: &["gpt2"],
        architecture: "gpt2",
        keys: gpt_2,
        tensors: &[TRANSPOSED, GPT_2],
        single: &["position_embd.weight"],
        defaults: r#"{"n_positions": 1024, "n_embd": 768, "n_layer": 12, "n_head": 12, "layer_norm_epsilon": 1e-5,
            "activation_function": "gelu_new", "tie_word_embeddings": true}"#,
        ..USUAL
    },
    Family {
        model_types: &["opt"],
        architecture: "opt",
        keys: opt,
        tensors: &[OPT],
        single: &["position_embd.weight"],
        defaults: r#"{"vocab_size": 50272, "hidden_size": 768, "num_hidden_layers": 12, "ffn_dim": 3072, "max_position_embeddings": 2048,
            "num_attention_heads": 12, "do_layer_norm_before": true, "activation_function": "relu", "layer_norm_epsilon": 1e-5,
            "tie_word_embeddings": true}"#,
        ..USUAL
    },
    Family {
        model_types: &["gpt_neo"],
        architecture: "gptneo",
        keys: gpt_neo,
        tensors: &[GPT_NEO, GPT_2],
        single: &["position_embd.weight"],
        defaults: r#"{"max_position_embeddings": 2048, "hidden_size": 2048, "num_layers": 24, "num_heads": 16, "window_size": 256,
            "attention_types": [[["global", "local"], 12]], "layer_norm_epsilon": 1e-5, "activation_function": "gelu_new",
            "tie_word_embeddings": true}"#,
        ..USUAL
    },
    Family {
        model_types: &["gptj", "codegen"],
        architecture: "gptj",
        keys: gpt_j,
        tensors: &[GPT_J, GPT_2],
        defaults: r#"{"n_positions": 2048, "n_embd": 4096, "n_layer": 28, "n_head": 16, "rotary_dim": 64, "layer_norm_epsilon": 1e-5,
            "activation_function": "gelu_new", "tie_word_embeddings": false}"#,
        ..USUAL
    },
    Family {
        model_types: &["gpt_bigcode"],
        architecture: "starcoder",
        keys: |keys| {
            gpt_2(keys)?;
            keys.refuse("multi_query", |value| value.as_bool() != Some(true), "true")?;
            keys.put("attention.head_count_kv", 1u32);
            Ok(())
        },
        tensors: &[GPT_2],
        single: &["position_embd.weight"],
        defaults: r#"{"n_positions": 1024, "n_embd": 768, "n_layer": 12, "n_head": 12, "layer_norm_epsilon": 1e-5,
            "activation_function": "gelu_pytorch_tanh", "multi_query": true, "tie_word_embeddings": true}"#,
        ..USUAL
    },
    Family {
        model_types: &["gpt_neox"],
        architecture: "gptneox",
        keys: |keys| {
            let parallel = keys.config.flag(&["use_parallel_residual"])?.unwrap_or(true);
            keys.put("use_parallel_residual", parallel);
            keys.number("rope.freq_base", &["rotary_emb_base"])?;
            // GPT-NeoX itself has an approximation of GELU. All other models must have exact GELU,
            // as the graph has it.
            let near = keys.config.require(&["hidden_size"])? == 6144;
            let expected = if near { "gelu_fast" } else { "gelu" };
            keys.refuse("hidden_act", |value| (value.as_str() == Some("gelu")) == near, expected)?;
            let share = keys.config.number(&["rotary_pct"])?;
            keys.rotated_part(share.unwrap_or(0.25))
        },
        tensors: &[GPT_NEOX],
        activations: &["gelu", "gelu_fast", "gelu_new"],
        defaults: r#"{"max_position_embeddings": 2048, "layer_norm_eps": 1e-5}"#,
        ..USUAL
    },
    Family {
        model_types: &["falcon", "RefinedWebModel", "RefinedWeb"],
        architecture: "falcon",
        keys: falcon,
        tensors: &[FALCON],
        defaults: r#"{"max_position_embeddings": 2048, "layer_norm_epsilon": 1e-5, "alibi": false, "multi_query": true,
            "new_decoder_architecture": false, "parallel_attn": true, "bias": false, "tie_word_embeddings": true}"#,
        ..USUAL
    },
    Family {
        model_types: &["bloom"],
        architecture: "bloom",
        keys: |keys| {
            let width = keys.config.require(&["hidden_size", "n_embed"])?;
            keys.put("feed_forward_length", keys.config.count(&["n_inner"])?.unwrap_or(width.saturating_mul(4)));
            keys.refuse("apply_residual_connection_post_layernorm", |value| value.as_bool() == Some(true), "false")
        },
        tensors: &[BLOOM],
        defaults: r#"{"seq_length": 2048, "layer_norm_epsilon": 1e-5, "tie_word_embeddings": true}"#,
        ..USUAL
    },
    Family {
        model_types: &["mpt"],
        architecture: "mpt",
        keys: mpt,
        tensors: &[MPT],
        single: &["position_embd.weight"],
        defaults: r#"{"max_seq_len": 2048, "expansion_ratio": 4, "layer_norm_epsilon": 1e-5, "attn_config": {},
            "tie_word_embeddings": true}"#,
        ..USUAL
    },
    Family {
        model_types: &["gpt_refact"],
        architecture: "refact",
        keys: refact,
        tensors: &[REFACT],
        defaults: r#"{"n_positions": 4096, "layer_norm_epsilon": 1e-5, "multi_query": true}"#,
        ..USUAL
    },
    // If the embedding table is also the output matrix, each of them gets its own factor.
    Family {
        model_types: &["jais"],
        architecture: "jais",
        keys: jais,
        tensors: &[JAIS_TIED, JAIS, TRANSPOSED, GPT_2],
        defaults: JAIS_DEFAULTS,
        applies: |config| Ok(config.flag(&["tie_word_embeddings"])? == Some(true)),
        ..USUAL
    },
    Family {
        model_types: &["jais"],
        architecture: "jais",
        keys: jais,
        tensors: &[JAIS, TRANSPOSED, GPT_2],
        defaults: JAIS_DEFAULTS,
        ..USUAL
    },
];

/// Rules for OPT.
static OPT: &[Rule] = &[
    rule("model.decoder.embed_tokens", "token_embd", plain),
    rule("model.decoder.embed_positions.weight", "position_embd.weight", rows_behind_two),
    rule("model.decoder.final_layer_norm", "output_norm", plain),
    rule("model.decoder.layers.{L}.self_attn_layer_norm", "blk.{L}.attn_norm", plain),
    rule("model.decoder.layers.{L}.final_layer_norm", "blk.{L}.ffn_norm", plain),
    rule("model.decoder.layers.{L}.self_attn.q_proj", "blk.{L}.attn_q", plain),
    rule("model.decoder.layers.{L}.self_attn.k_proj", "blk.{L}.attn_k", plain),
    rule("model.decoder.layers.{L}.self_attn.v_proj", "blk.{L}.attn_v", plain),
    rule("model.decoder.layers.{L}.self_attn.out_proj", "blk.{L}.attn_output", plain),
    rule("model.decoder.layers.{L}.fc1", "blk.{L}.ffn_up", plain),
    rule("model.decoder.layers.{L}.fc2", "blk.{L}.ffn_down", plain),
];

/// Rules for GPT-Neo.
static GPT_NEO: &[Rule] = &[
    rule("model.h.{L}.attn.attention.q_proj", "blk.{L}.attn_q", plain),
    rule("model.h.{L}.attn.attention.k_proj", "blk.{L}.attn_k", plain),
    rule("model.h.{L}.attn.attention.v_proj", "blk.{L}.attn_v", plain),
    rule("model.h.{L}.attn.attention.out_proj", "blk.{L}.attn_output", plain),
    rule("model.h.{L}.attn.attention.bias", "", skip),
    rule("model.h.{L}.attn.attention.masked_bias", "", skip),
];

/// Rules for GPT-J, and for CodeGen, whose queries, values and keys have one matrix.
static GPT_J: &[Rule] = &[
    rule("model.h.{L}.attn.qkv_proj.weight", "blk.{L}.attn_{P}.weight", query_value_key_of_four),
    rule("model.h.{L}.attn.q_proj", "blk.{L}.attn_q", plain),
    rule("model.h.{L}.attn.k_proj", "blk.{L}.attn_k", plain),
    rule("model.h.{L}.attn.v_proj", "blk.{L}.attn_v", plain),
    rule("model.h.{L}.attn.out_proj", "blk.{L}.attn_output", plain),
    rule("model.h.{L}.mlp.fc_in", "blk.{L}.ffn_up", plain),
    rule("model.h.{L}.mlp.fc_out", "blk.{L}.ffn_down", plain),
    rule("model.h.{L}.attn.causal_mask", "", skip),
];

/// Rules for GPT-2, SantaCoder and StarCoder.
pub(super) static GPT_2: &[Rule] = &[
    rule("model.wte", "token_embd", plain),
    rule("model.wpe", "position_embd", plain),
    rule("model.ln_f", "output_norm", plain),
    rule("model.h.{L}.ln_1", "blk.{L}.attn_norm", plain),
    rule("model.h.{L}.ln_2", "blk.{L}.ffn_norm", plain),
    rule("model.h.{L}.attn.c_attn", "blk.{L}.attn_qkv", plain),
    rule("model.h.{L}.attn.c_proj", "blk.{L}.attn_output", plain),
    rule("model.h.{L}.mlp.c_fc", "blk.{L}.ffn_up", plain),
    rule("model.h.{L}.mlp.c_proj", "blk.{L}.ffn_down", plain),
    rule("model.h.{L}.attn.bias", "", skip),
    rule("model.h.{L}.attn.masked_bias", "", skip),
];

/// Rules for GPT-NeoX: one matrix has, head by head, the rows of queries, keys and values.
static GPT_NEOX: &[Rule] = &[
    rule("gpt_neox.embed_in", "token_embd", plain),
    rule("gpt_neox.final_layer_norm", "output_norm", plain),
    rule("embed_out", "output", plain),
    rule("gpt_neox.layers.{L}.input_layernorm", "blk.{L}.attn_norm", plain),
    rule("gpt_neox.layers.{L}.post_attention_layernorm", "blk.{L}.ffn_norm", plain),
    rule("gpt_neox.layers.{L}.attention.query_key_value", "blk.{L}.attn_qkv", by_key_heads),
    rule("gpt_neox.layers.{L}.attention.dense", "blk.{L}.attn_output", plain),
    rule("gpt_neox.layers.{L}.mlp.dense_h_to_4h", "blk.{L}.ffn_up", plain),
    rule("gpt_neox.layers.{L}.mlp.dense_4h_to_h", "blk.{L}.ffn_down", plain),
    rule("gpt_neox.layers.{L}.attention.rotary_emb.inv_freq", "", skip),
    rule("gpt_neox.layers.{L}.attention.bias", "", skip),
    rule("gpt_neox.layers.{L}.attention.masked_bias", "", skip),
];

/// Rules for Falcon: larger models have separate norms for attention and for the network.
static FALCON: &[Rule] = &[
    rule("model.word_embeddings", "token_embd", plain),
    rule("model.ln_f", "output_norm", plain),
    rule("model.h.{L}.input_layernorm", "blk.{L}.attn_norm", plain),
    rule("model.h.{L}.ln_mlp", "blk.{L}.attn_norm", plain),
    rule("model.h.{L}.ln_attn", "blk.{L}.attn_norm_2", plain),
    rule("model.h.{L}.post_attention_layernorm", "blk.{L}.ffn_norm", plain),
    rule("model.h.{L}.self_attention.query_key_value", "blk.{L}.attn_qkv", by_key_heads),
    rule("model.h.{L}.self_attention.dense", "blk.{L}.attn_output", plain),
    rule("model.h.{L}.mlp.dense_h_to_4h", "blk.{L}.ffn_up", plain),
    rule("model.h.{L}.mlp.dense_4h_to_h", "blk.{L}.ffn_down", plain),
];

/// Rules for BLOOM: one matrix has, head by head, the rows of queries, keys and values.
static BLOOM: &[Rule] = &[
    rule("model.word_embeddings", "token_embd", plain),
    rule("model.word_embeddings_layernorm", "token_embd_norm", plain),
    rule("model.ln_f", "output_norm", plain),
    rule("model.h.{L}.input_layernorm", "blk.{L}.attn_norm", plain),
    rule("model.h.{L}.post_attention_layernorm", "blk.{L}.ffn_norm", plain),
    rule("model.h.{L}.self_attention.query_key_value", "blk.{L}.attn_qkv", by_key_heads),
    rule("model.h.{L}.self_attention.dense", "blk.{L}.attn_output", plain),
    rule("model.h.{L}.mlp.dense_h_to_4h", "blk.{L}.ffn_up", plain),
    rule("model.h.{L}.mlp.dense_4h_to_h", "blk.{L}.ffn_down", plain),
];

/// Rules for MPT.
static MPT: &[Rule] = &[
    rule("model.wte", "token_embd", plain),
    rule("model.wpe", "position_embd", plain),
    rule("model.norm_f", "output_norm", plain),
    rule("model.blocks.{L}.norm_1", "blk.{L}.attn_norm", plain),
    rule("model.blocks.{L}.norm_2", "blk.{L}.ffn_norm", plain),
    rule("model.blocks.{L}.attn.Wqkv", "blk.{L}.attn_qkv", plain),
    rule("model.blocks.{L}.attn.q_ln", "blk.{L}.attn_q_norm", plain),
    rule("model.blocks.{L}.attn.k_ln", "blk.{L}.attn_k_norm", plain),
    rule("model.blocks.{L}.attn.out_proj", "blk.{L}.attn_output", plain),
    rule("model.blocks.{L}.ffn.up_proj", "blk.{L}.ffn_up", plain),
    rule("model.blocks.{L}.ffn.down_proj", "blk.{L}.ffn_down", plain),
];

const JAIS_DEFAULTS: &str = r#"{"n_positions": 1024, "layer_norm_epsilon": 1e-5, "activation_function": "gelu_new", "position_embedding_type": "learned",
    "mup_scale_qk_dot_by_d": false, "tie_word_embeddings": true}"#;

/// Rules for Jais: like GPT-2, with gates, and factors on embeddings and logits.
static JAIS: &[Rule] = &[
    rule("model.wte", "token_embd", embedding),
    rule("lm_head", "output", logits),
    rule("model.relative_pe.slopes", "", skip),
    rule("model.h.{L}.mlp.c_fc2.weight", "blk.{L}.ffn_gate.weight", transpose),
    rule("model.h.{L}.mlp.c_fc2", "blk.{L}.ffn_gate", plain),
];

/// Rule for Jais models whose embedding table is also the output matrix.
static JAIS_TIED: &[Rule] = &[rule("model.wte.weight", "{P}.weight", embedding_and_logits)];

/// Rules for Refact: one matrix has keys and values, another has gate and up.
static REFACT: &[Rule] = &[
    rule("model.wte", "token_embd", plain),
    rule("model.ln_f", "output_norm", plain),
    rule("model.h.{L}.ln_1", "blk.{L}.attn_norm", plain),
    rule("model.h.{L}.ln_2", "blk.{L}.ffn_norm", plain),
    rule("model.h.{L}.attn.q", "blk.{L}.attn_q", plain),
    rule("model.h.{L}.attn.kv.weight", "blk.{L}.attn_{P}.weight", key_value),
    rule("model.h.{L}.attn.c_proj", "blk.{L}.attn_output", plain),
    rule("model.h.{L}.mlp.gate_up_proj.weight", "blk.{L}.ffn_{P}.weight", gate_up),
    rule("model.h.{L}.mlp.c_proj", "blk.{L}.ffn_down", plain),
];

/// Rules for matrices of GPT-2, which are stored transposed.
static TRANSPOSED: &[Rule] = &[
    rule("model.h.{L}.attn.c_attn.weight", "blk.{L}.attn_qkv.weight", transpose),
    rule("model.h.{L}.attn.c_proj.weight", "blk.{L}.attn_output.weight", transpose),
    rule("model.h.{L}.mlp.c_fc.weight", "blk.{L}.ffn_up.weight", transpose),
    rule("model.h.{L}.mlp.c_proj.weight", "blk.{L}.ffn_down.weight", transpose),
];

fn falcon(keys: &mut Keys<'_>) -> Result<(), CheckpointError> {
    let config = keys.config;
    let wide = config.require(&["hidden_size"])?.saturating_mul(4);
    keys.put("feed_forward_length", config.count(&["ffn_hidden_size"])?.unwrap_or(wide));
    // With `multi_query`, the first Falcon models have one key head, whatever number the
    // configuration states. Without it, each query head has its own key head.
    let [grouped, one] = ["new_decoder_architecture", "multi_query"]
        .map(|key| Ok::<_, CheckpointError>(config.flag(&[key])? == Some(true)));
    match (grouped?, one?) {
        (true, _) => keys.count("attention.head_count_kv", &["num_kv_heads", "n_head_kv"])?,
        (false, true) => keys.put("attention.head_count_kv", 1u32),
        (false, false) => {}
    }
    keys.refuse("activation", |value| value.as_str() != Some("gelu"), "gelu")?;
    // With `new_decoder_architecture`, attention and the network are parallel, whatever
    // `parallel_attn` states.
    if config.flag(&["new_decoder_architecture"])? != Some(true) && config.flag(&["parallel_attn"])? == Some(false) {
        keys.put("use_parallel_residual", false);
    }
    if config.flag(&["alibi"])? == Some(true) {
        keys.put("attention.max_alibi_bias", 8f32);
        return Ok(());
    }
    // RoPE rotates the whole head by default.
    keys.rotated_part(1.0)
}

fn mpt(keys: &mut Keys<'_>) -> Result<(), CheckpointError> {
    let config = keys.config;
    let (width, ratio) = (config.require(&["d_model"])?, config.require(&["expansion_ratio"])?);
    keys.put("feed_forward_length", width.saturating_mul(ratio));
    keys.refuse("logit_scale", |value| value.as_f64() != Some(1.0), "null, or 1")?;
    let Some(attention) = config.object("attn_config")? else { return Ok(()) };
    for key in ["prefix_lm", "rope", "qk_gn"] {
        if attention.flag(&[key])? == Some(true) {
            return Err(attention.wrong(key, "true", "false: nothing else is supported"));
        }
    }
    let falls = attention.flag(&["alibi"])? != Some(false);
    let max_bias = if falls { attention.number(&["alibi_bias_max"])?.unwrap_or(8.0) } else { 0.0 };
    keys.put("attention.max_alibi_bias", max_bias as f32);
    for (key, from) in [("attention.clamp_kqv", "clip_qkv"), ("attention.scale", "softmax_scale")] {
        if let Some(number) = attention.number(&[from])? {
            keys.put(key, number as f32);
        }
    }
    // If the number of key heads is not stated, the type of attention decides: one key head, or one
    // for each query head.
    let kind = attention.text(&["attn_type"])?.unwrap_or_default().to_owned();
    match (attention.count(&["kv_n_heads"])?, kind.as_str()) {
        (Some(heads), _) => keys.put("attention.head_count_kv", heads),
        (None, "multiquery_attention") => keys.put("attention.head_count_kv", 1u32),
        (None, _) => {}
    }
    Ok(())
}

fn jais(keys: &mut Keys<'_>) -> Result<(), CheckpointError> {
    let config = keys.config;
    keys.put("feed_forward_length", config.require(&["n_inner"])?);
    keys.refuse("activation_function", |value| value.as_str() != Some("swiglu"), "swiglu")?;
    keys.refuse("position_embedding_type", |value| value.as_str() != Some("alibi"), "alibi")?;
    keys.refuse("alibi_scaling", |_| true, "null")?;
    keys.refuse("scale_attn_by_inverse_layer_idx", |value| value.as_bool() == Some(true), "false")?;
    keys.refuse("scale_attn_weights", |value| value.as_bool() == Some(false), "true")?;
    keys.put("attention.max_alibi_bias", 8f32);
    // With this flag, scores are divided by the length of a key; without it, by its square root.
    if config.flag(&["scale_qk_dot_by_d", "mup_scale_qk_dot_by_d"])? != Some(true) {
        let (width, heads) = (config.require(&["n_embd"])?, config.require(&["n_head"])?);
        keys.put("attention.scale", (f64::from(heads) / f64::from(width)).sqrt() as f32);
    }
    Ok(())
}

fn refact(keys: &mut Keys<'_>) -> Result<(), CheckpointError> {
    /// Number that network widths are multiples of.
    const MULTIPLE: u32 = 256;
    let width = keys.config.require(&["n_embd"])?;
    // The width is two thirds of four times the stream's width, as usual for networks with gates.
    let inner = (u64::from(width) * 8 / 3).next_multiple_of(MULTIPLE.into());
    keys.put("feed_forward_length", u32::try_from(inner).unwrap_or(u32::MAX));
    keys.number("attention.layer_norm_rms_epsilon", &["layer_norm_epsilon"])?;
    keys.refuse("multi_query", |value| value.as_bool() != Some(true), "true")?;
    keys.put("attention.head_count_kv", 1u32);
    Ok(())
}

fn gpt_2(keys: &mut Keys<'_>) -> Result<(), CheckpointError> {
    let width = keys.config.require(&["n_embd"])?;
    keys.put("feed_forward_length", keys.config.count(&["n_inner"])?.unwrap_or(width.saturating_mul(4)));
    gelu(keys)?;
    for key in ["scale_attn_by_inverse_layer_idx", "add_cross_attention"] {
        keys.refuse(key, |value| value.as_bool() == Some(true), "false")?;
    }
    keys.refuse("scale_attn_weights", |value| value.as_bool() == Some(false), "true")
}

fn opt(keys: &mut Keys<'_>) -> Result<(), CheckpointError> {
    keys.count("feed_forward_length", &["ffn_dim"])?;
    keys.refuse("activation_function", |value| value.as_str() != Some("relu"), "relu")?;
    keys.refuse("do_layer_norm_before", |value| value.as_bool() == Some(false), "true")?;
    for key in ["_remove_final_layer_norm", "layer_norm_elementwise_affine"] {
        let other = key.starts_with('_');
        keys.refuse(key, |value| value.as_bool() == Some(other), if other { "false" } else { "true" })?;
    }
    let width = keys.config.require(&["hidden_size"])?;
    keys.refuse("word_embed_proj_dim", |value| value.as_u64() != Some(width.into()), &format!("{width}, hidden_size"))
}

fn gpt_neo(keys: &mut Keys<'_>) -> Result<(), CheckpointError> {
    const LISTED: &str = "attention_layers";
    const TYPES: &str = "attention_types";
    let config = keys.config;
    let width = config.require(&["hidden_size"])?;
    keys.put("feed_forward_length", config.count(&["intermediate_size"])?.unwrap_or(width.saturating_mul(4)));
    for key in ["attention.head_count", "attention.head_count_kv"] {
        keys.put(key, config.require(&["num_heads"])?);
    }
    keys.put("attention.scale", 1f32);
    gelu(keys)?;
    let layers = config.require(&["num_layers"])? as usize;
    let is_local = |kind: &str| match kind {
        "local" => Some(true),
        "global" => Some(false),
        _ => None,
    };
    // Each run is a list of layer kinds and a number of repetitions. The expanded runs may not
    // exceed the number of layers.
    let of_runs = |runs: &[serde_json::Value]| -> Option<Vec<bool>> {
        let mut all = Vec::new();
        for run in runs {
            let kinds = run.get(0)?.as_array()?;
            let times = usize::try_from(run.get(1)?.as_u64()?).ok()?;
            if kinds.len().checked_mul(times)? > layers - all.len() {
                return None;
            }
            let kinds = kinds.iter().map(|kind| is_local(kind.as_str()?)).collect::<Option<Vec<_>>>()?;
            all.extend(kinds.repeat(times));
        }
        Some(all)
    };
    let windowed: Vec<bool> = match config.texts(LISTED)? {
        Some(kinds) => {
            let wrong = || config.wrong(LISTED, "others", "global or local for each layer");
            kinds.iter().map(|kind| is_local(kind)).collect::<Option<_>>().ok_or_else(wrong)?
        }
        None => {
            let runs = config.value(TYPES).and_then(|types| types.as_array());
            let wrong = || {
                let expected =
                    format!("lists of global and local, each with how often it is there, of {layers} layers");
                config.wrong(TYPES, "others", expected)
            };
            runs.and_then(|runs| of_runs(runs)).ok_or_else(wrong)?
        }
    };
    if windowed.len() != layers {
        return Err(config.wrong(LISTED, format!("of {} layers", windowed.len()), format!("one for each of {layers}")));
    }
    if windowed.contains(&true) {
        keys.count("attention.sliding_window", &["window_size"])?;
        keys.flags("attention.sliding_window_pattern", windowed.into_iter());
    }
    Ok(())
}

fn gpt_j(keys: &mut Keys<'_>) -> Result<(), CheckpointError> {
    let width = keys.config.require(&["n_embd"])?;
    keys.put("feed_forward_length", keys.config.count(&["n_inner"])?.unwrap_or(width.saturating_mul(4)));
    keys.put("rope.freq_base", 10_000f32);
    gelu(keys)?;
    // Without this key, RoPE rotates the whole head.
    match keys.config.count(&["rotary_dim"])? {
        Some(dims) => keys.put("rope.dimension_count", dims),
        None => keys.rotated_part(1.0)?,
    }
    Ok(())
}
