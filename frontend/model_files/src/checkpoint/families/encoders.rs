//! Encoders: models that read a whole text and return hidden states, from which embeddings are
//! made.

use super::super::conversions::{plain, rows_of_context, skip};
use super::super::error::CheckpointError;
use super::super::keys::Keys;
use super::super::names::{Rule, rule};
use super::{Family, USUAL, gemma};

/// Tables that are F32 in GGUF files, whatever type they have in the folder.
const TABLES: [&str; 2] = ["position_embd.weight", "token_types.weight"];

pub(super) static ROWS: &[Family] = &[
    Family {
        model_types: &["bert"],
        architecture: "bert",
        keys: bert,
        tensors: &[BERT],
        single: &TABLES,
        activations: &["gelu"],
        defaults: r#"{"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 3072, "hidden_act": "gelu",
            "max_position_embeddings": 512, "layer_norm_eps": 1e-12}"#,
        ..USUAL
    },
    Family {
        model_types: &["nomic_bert"],
        architecture: "nomic-bert",
        keys: nomic,
        tensors: &[NOMIC],
        single: &TABLES,
        defaults: r#"{"layer_norm_eps": 1e-12, "rope_theta": 1000.0}"#,
        ..USUAL
    },
    Family {
        model_types: &["eurobert"],
        architecture: "eurobert",
        keys: not_causal,
        tensors: &[&[rule("lm_head", "", skip)]],
        defaults: r#"{"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 3072,
            "max_position_embeddings": 8192, "rms_norm_eps": 1e-5, "rope_theta": 250000.0}"#,
        ..USUAL
    },
    Family {
        model_types: &["modernbert"],
        architecture: "modern-bert",
        keys: modern,
        tensors: &[MODERN],
        activations: &["gelu", "silu"],
        defaults: r#"{"hidden_size": 768, "num_hidden_layers": 22, "num_attention_heads": 12, "intermediate_size": 1152,
            "max_position_embeddings": 8192, "norm_eps": 1e-5, "global_rope_theta": 160000.0, "local_rope_theta": 10000.0,
            "local_attention": 128, "global_attn_every_n_layers": 3, "hidden_activation": "gelu"}"#,
        ..USUAL
    },
    // EmbeddingGemma has the same `model_type` as Gemma 3. Only the key that `applies` reads
    // distinguishes them.
    Family {
        model_types: &["gemma3_text", "gemma3"],
        architecture: "gemma-embedding",
        keys: gemma_embedding,
        tensors: &[DENSE, gemma::GEMMA_3],
        dense_modules: &["dense_2", "dense_3"],
        applies: |config| Ok(config.flag(&["use_bidirectional_attention"])? == Some(true)),
        activations: &["gelu_pytorch_tanh"],
        defaults: gemma::GEMMA_3_DEFAULTS,
        ..USUAL
    },
];

/// Rules for BERT: norms follow the addition of each block's output. Older files call a norm's
/// weight and bias `gamma` and `beta`.
static BERT: &[Rule] = &[
    rule("embeddings.word_embeddings", "token_embd", plain),
    rule("embeddings.position_embeddings", "position_embd", rows_of_context),
    rule("embeddings.token_type_embeddings", "token_types", plain),
    rule("embeddings.position_ids", "", skip),
    rule("embeddings.LayerNorm", "token_embd_norm", plain),
    rule("embeddings.LayerNorm.gamma", "token_embd_norm.weight", plain),
    rule("embeddings.LayerNorm.beta", "token_embd_norm.bias", plain),
    rule("encoder.layer.{L}.attention.self.query", "blk.{L}.attn_q", plain),
    rule("encoder.layer.{L}.attention.self.key", "blk.{L}.attn_k", plain),
    rule("encoder.layer.{L}.attention.self.value", "blk.{L}.attn_v", plain),
    rule("encoder.layer.{L}.attention.output.dense", "blk.{L}.attn_output", plain),
    rule("encoder.layer.{L}.attention.output.LayerNorm", "blk.{L}.attn_output_norm", plain),
    rule("encoder.layer.{L}.attention.output.LayerNorm.gamma", "blk.{L}.attn_output_norm.weight", plain),
    rule("encoder.layer.{L}.attention.output.LayerNorm.beta", "blk.{L}.attn_output_norm.bias", plain),
    rule("encoder.layer.{L}.intermediate.dense", "blk.{L}.ffn_up", plain),
    rule("encoder.layer.{L}.output.dense", "blk.{L}.ffn_down", plain),
    rule("encoder.layer.{L}.output.LayerNorm", "blk.{L}.layer_output_norm", plain),
    rule("encoder.layer.{L}.output.LayerNorm.gamma", "blk.{L}.layer_output_norm.weight", plain),
    rule("encoder.layer.{L}.output.LayerNorm.beta", "blk.{L}.layer_output_norm.bias", plain),
    // These output layers serve only BERT's training.
    rule("pooler.dense", "", skip),
    rule("cls.predictions", "", skip),
    rule("cls.predictions.decoder", "", skip),
    rule("cls.predictions.transform.dense", "", skip),
    rule("cls.predictions.transform.LayerNorm", "", skip),
    rule("cls.predictions.transform.LayerNorm.gamma", "", skip),
    rule("cls.predictions.transform.LayerNorm.beta", "", skip),
    rule("cls.seq_relationship", "", skip),
];

/// Rules for Nomic Embed: the network's gate and up matrices have numbers in their names.
static NOMIC: &[Rule] = &[
    rule("embeddings.word_embeddings", "token_embd", plain),
    rule("embeddings.token_type_embeddings", "token_types", plain),
    rule("emb_ln", "token_embd_norm", plain),
    rule("encoder.layers.{L}.attn.Wqkv", "blk.{L}.attn_qkv", plain),
    rule("encoder.layers.{L}.attn.out_proj", "blk.{L}.attn_output", plain),
    rule("encoder.layers.{L}.norm1", "blk.{L}.attn_output_norm", plain),
    rule("encoder.layers.{L}.mlp.fc11", "blk.{L}.ffn_up", plain),
    rule("encoder.layers.{L}.mlp.fc12", "blk.{L}.ffn_gate", plain),
    rule("encoder.layers.{L}.mlp.fc2", "blk.{L}.ffn_down", plain),
    rule("encoder.layers.{L}.norm2", "blk.{L}.layer_output_norm", plain),
];

/// Rules for ModernBERT: the first layer has no norm before attention.
static MODERN: &[Rule] = &[
    rule("embeddings.tok_embeddings", "token_embd", plain),
    rule("model.embeddings.tok_embeddings", "token_embd", plain),
    rule("embeddings.norm", "token_embd_norm", plain),
    rule("model.embeddings.norm", "token_embd_norm", plain),
    rule("model.layers.{L}.attn_norm", "blk.{L}.attn_norm", plain),
    rule("model.layers.{L}.attn.Wqkv", "blk.{L}.attn_qkv", plain),
    rule("model.layers.{L}.attn.Wo", "blk.{L}.attn_output", plain),
    rule("model.layers.{L}.mlp_norm", "blk.{L}.ffn_norm", plain),
    rule("model.layers.{L}.mlp.Wi", "blk.{L}.ffn_up", plain),
    rule("model.layers.{L}.mlp.Wo", "blk.{L}.ffn_down", plain),
    rule("final_norm", "output_norm", plain),
    rule("model.final_norm", "output_norm", plain),
    // This output layer serves only training.
    rule("head.dense", "", skip),
    rule("head.norm", "", skip),
    rule("model.decoder", "", skip),
];

/// Rules for the matrices of sentence-transformers after EmbeddingGemma's mean pooling.
static DENSE: &[Rule] = &[rule("dense_2.linear", "dense_2", plain), rule("dense_3.linear", "dense_3", plain)];

/// Marks attention as not causal, and refuses configurations with causal attention.
fn not_causal(keys: &mut Keys<'_>) -> Result<(), CheckpointError> {
    for key in ["is_causal", "causal", "is_decoder"] {
        keys.refuse(key, |value| value.as_bool() == Some(true), "false")?;
    }
    keys.not_causal();
    Ok(())
}

fn bert(keys: &mut Keys<'_>) -> Result<(), CheckpointError> {
    not_causal(keys)?;
    keys.refuse("position_embedding_type", |value| value.as_str() != Some("absolute"), "absolute")
}

/// Puts the keys of Nomic Embed. Configurations on the Hugging Face Hub have GPT-2's names;
/// configurations that transformers writes have other names.
fn nomic(keys: &mut Keys<'_>) -> Result<(), CheckpointError> {
    not_causal(keys)?;
    let is_true = |value: &serde_json::Value| value.as_bool() == Some(true);
    for key in ["prenorm", "qkv_proj_bias", "mlp_fc1_bias", "mlp_fc2_bias", "rotary_emb_interleaved"] {
        keys.refuse(key, is_true, "false")?;
    }
    keys.refuse("rotary_emb_fraction", |value| value.as_f64() != Some(1.0), "1")?;
    keys.refuse("rotary_emb_scale_base", |_| true, "null")?;
    keys.refuse("moe_every_n_layers", |value| value.as_u64() != Some(0), "0")?;
    keys.refuse("activation_function", |value| value.as_str() != Some("swiglu"), "swiglu")?;
    keys.count("feed_forward_length", &["n_inner", "intermediate_size"])?;
    keys.number("rope.freq_base", &["rotary_emb_base"])?;
    // For longer texts than in training, the code on the Hub changes RoPE with the text length.
    const TRAINED: u32 = 2048;
    if let Some(positions) = keys.config.count(&["n_positions"])? {
        let trained = keys.config.count(&["max_trained_positions"])?.unwrap_or(TRAINED);
        keys.put("context_length", positions.min(trained));
    }
    Ok(())
}

/// Puts the keys of ModernBERT. Half of its window is before a token and half after it.
fn modern(keys: &mut Keys<'_>) -> Result<(), CheckpointError> {
    not_causal(keys)?;
    keys.number("attention.layer_norm_epsilon", &["norm_eps"])?;
    keys.count("attention.sliding_window", &["local_attention"])?;
    match keys.config.has("layer_types") {
        true => keys.windows()?,
        false => keys.count("attention.sliding_window_pattern", &["global_attn_every_n_layers"])?,
    }
    if !keys.config.has("rope_parameters") {
        keys.number("rope.freq_base", &["global_rope_theta"])?;
        keys.number("rope.freq_base_swa", &["local_rope_theta"])?;
    }
    if let Some(activation) = keys.config.text(&["hidden_activation"])? {
        let activation = activation.to_owned();
        keys.put("hidden_activation", activation.as_str());
    }
    Ok(())
}

fn gemma_embedding(keys: &mut Keys<'_>) -> Result<(), CheckpointError> {
    gemma::scores(keys)?;
    gemma::put_window(keys)?;
    keys.not_causal();
    Ok(())
}
