//! Dense models with their own tensor names.

use super::super::conversions::{
    key_turned_back, output_in_turns, plain, plus_fifth, plus_one, plus_root_of_fifths, query_in_turns,
    query_key_value, query_turned_back, row, rows_of_vocabulary, skip, turned_query_key_value, unit_rows,
};
use super::super::error::CheckpointError;
use super::super::keys::Keys;
use super::super::names::{ADJACENT_ROPE, Rule, rule};
use super::{Family, USUAL, base_by_alpha};

pub(super) static ROWS: &[Family] = &[
    Family {
        model_types: &["ernie4_5"],
        architecture: "ernie4_5",
        tensors: &[ERNIE],
        defaults: r#"{"max_position_embeddings": 131072, "rms_norm_eps": 1e-5, "num_key_value_heads": 2, "head_dim": 128,
            "rope_theta": 5e5, "tie_word_embeddings": true}"#,
        ..USUAL
    },
    Family {
        model_types: &["paddleocr_vl_text", "paddleocr_vl"],
        architecture: "paddleocr",
        tensors: &[ERNIE],
        defaults: r#"{"hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 18, "num_attention_heads": 16,
            "num_key_value_heads": 2, "head_dim": 128, "max_position_embeddings": 131072, "rms_norm_eps": 1e-5, "rope_theta": 5e5,
            "tie_word_embeddings": true}"#,
        ..USUAL
    },
    Family {
        model_types: &["apertus"],
        architecture: "apertus",
        tensors: &[APERTUS],
        activations: &["xielu"],
        layer_numbers: &[
            ("mlp.act_fn.alpha_n", "xielu.alpha_n"),
            ("mlp.act_fn.alpha_p", "xielu.alpha_p"),
            ("mlp.act_fn.beta", "xielu.beta"),
            ("mlp.act_fn.eps", "xielu.eps"),
        ],
        defaults: r#"{"hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32,
            "max_position_embeddings": 65536, "rms_norm_eps": 1e-5, "rope_parameters": {"rope_type": "llama3", "rope_theta": 12000000.0,
            "factor": 8.0, "original_max_position_embeddings": 8192, "low_freq_factor": 1.0, "high_freq_factor": 4.0}}"#,
        ..USUAL
    },
    // Image and audio tokens are input only. They have rows in the embedding table, but not in the
    // output matrix.
    Family {
        model_types: &["apertus1p5_text", "apertus1p5"],
        architecture: "apertus",
        tensors: &[TEXT_ALONE, APERTUS],
        activations: &["xielu"],
        layer_numbers: &[
            ("mlp.act_fn.alpha_n", "xielu.alpha_n"),
            ("mlp.act_fn.alpha_p", "xielu.alpha_p"),
            ("mlp.act_fn.beta", "xielu.beta"),
            ("mlp.act_fn.eps", "xielu.eps"),
        ],
        defaults: r#"{"hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32,
            "max_position_embeddings": 65536, "rms_norm_eps": 1e-5, "rope_parameters": {"rope_type": "llama3", "rope_theta": 12000000.0,
            "factor": 8.0, "original_max_position_embeddings": 8192, "low_freq_factor": 1.0, "high_freq_factor": 4.0}}"#,
        ..USUAL
    },
    Family {
        model_types: &["phi3"],
        architecture: "phi3",
        keys: |keys| keys.rotated_part(1.0),
        tensors: &[PHI_3],
        window: true,
        defaults: r#"{"max_position_embeddings": 4096, "rms_norm_eps": 1e-5}"#,
        ..USUAL
    },
    // This is the multimodal model. Its additional matrices (LoRA) for images and audio do not
    // apply to text.
    Family {
        model_types: &["phi4mm", "phi4_multimodal"],
        architecture: "phi3",
        keys: |keys| keys.rotated_part(1.0),
        tensors: &[PHI_4_MULTIMODAL, PHI_3],
        window: true,
        defaults: r#"{"max_position_embeddings": 131072, "rms_norm_eps": 1e-5, "tie_word_embeddings": true}"#,
        ..USUAL
    },
    Family {
        model_types: &["phi"],
        architecture: "phi2",
        keys: |keys| {
            keys.refuse("qk_layernorm", |value| value.as_bool() == Some(true), "false")?;
            keys.rotated_part(0.5)
        },
        tensors: &[PHI_2],
        activations: &["gelu_new"],
        defaults: r#"{"max_position_embeddings": 2048, "layer_norm_eps": 1e-5}"#,
        ..USUAL
    },
    Family {
        model_types: &["stablelm"],
        architecture: "stablelm",
        keys: |keys| {
            let parallel = keys.config.flag(&["use_parallel_residual"])?.unwrap_or(false);
            keys.put("use_parallel_residual", parallel);
            keys.rotated_part(0.25)
        },
        tensors: &[STABLELM],
        defaults: r#"{"max_position_embeddings": 4096, "layer_norm_eps": 1e-5}"#,
        ..USUAL
    },
    Family {
        model_types: &["starcoder2"],
        architecture: "starcoder2",
        tensors: &[STARCODER_2],
        activations: &["gelu_pytorch_tanh"],
        window: true,
        defaults: r#"{"max_position_embeddings": 4096, "norm_epsilon": 1e-5, "num_key_value_heads": 2, "tie_word_embeddings": true}"#,
        ..USUAL
    },
    Family {
        model_types: &["nemotron"],
        architecture: "nemotron",
        keys: |keys| {
            keys.number("attention.layer_norm_epsilon", &["norm_eps"])?;
            let share = keys.config.number(&["rope_percent"])?;
            keys.rotated_part(share.unwrap_or(0.5))
        },
        tensors: &[NEMOTRON],
        activations: &["relu2"],
        defaults: r#"{"max_position_embeddings": 4096, "norm_eps": 1e-5}"#,
        ..USUAL
    },
    Family {
        model_types: &["baichuan"],
        architecture: "baichuan",
        keys: baichuan,
        tensors: &[UNIT_HEAD, BAICHUAN],
        defaults: r#"{"rms_norm_eps": 1e-6, "rope_theta": 1e4}"#,
        applies: |config| Ok(config.count(&["vocab_size"])? == Some(BAICHUAN_2_TOKENS)),
        ..USUAL
    },
    Family {
        model_types: &["baichuan"],
        architecture: "baichuan",
        keys: baichuan,
        tensors: &[BAICHUAN],
        defaults: r#"{"rms_norm_eps": 1e-6, "rope_theta": 1e4}"#,
        ..USUAL
    },
    Family {
        model_types: &["plamo"],
        architecture: "plamo",
        keys: |keys| {
            // `num_key_value_heads` in these configurations equals the number of query heads,
            // although several query heads share a key head.
            let (heads, shared) =
                (keys.config.require(&["num_attention_heads"])?, keys.config.require(&["n_shared_head"])?);
            keys.put("attention.head_count_kv", heads.checked_div(shared).unwrap_or(0));
            Ok(())
        },
        tensors: &[PLAMO],
        defaults: r#"{"max_position_embeddings": 4096, "rms_norm_eps": 1e-6, "rope_theta": 1e4, "n_shared_head": 8}"#,
        ..USUAL
    },
    Family {
        model_types: &["plamo3"],
        architecture: "plamo3",
        keys: |keys| {
            let config = keys.config;
            keys.refuse("rope_scaling_factor", |value| value.as_f64() != Some(1.0), "1")?;
            if let Some(window) = config.count(&["window_size", "sliding_window"])? {
                keys.put("attention.sliding_window", window);
                keys.windows()?;
                keys.number("rope.freq_base_swa", &["rope_local_theta"])?;
            }
            Ok(())
        },
        tensors: &[PLAMO_BLOCKS, PLAMO_3],
        defaults: r#"{"max_position_embeddings": 32768, "rms_norm_eps": 1e-6, "sliding_window_pattern": 8, "rope_local_theta": 1e4}"#,
        ..USUAL
    },
    Family {
        model_types: &["PanguEmbedded"],
        architecture: "pangu-embedded",
        defaults: r#"{"max_position_embeddings": 32768, "rms_norm_eps": 1e-5}"#,
        ..USUAL
    },
    Family {
        model_types: &["xverse"],
        architecture: "xverse",
        tensors: &[ADJACENT_ROPE],
        defaults: r#"{"max_position_embeddings": 2048, "rms_norm_eps": 1e-6}"#,
        ..USUAL
    },
    Family {
        model_types: &["orion"],
        architecture: "orion",
        // The model's norms are layer norms, in spite of the key's name `rms_norm_eps`.
        keys: |keys| keys.number("attention.layer_norm_epsilon", &["rms_norm_eps"]),
        defaults: r#"{"max_position_embeddings": 4096, "rms_norm_eps": 1e-5}"#,
        ..USUAL
    },
    Family {
        model_types: &["maincoder"],
        architecture: "maincoder",
        defaults: r#"{"max_position_embeddings": 2048, "rms_norm_eps": 1e-5}"#,
        ..USUAL
    },
    Family {
        model_types: &["nanochat"],
        architecture: "nanochat",
        keys: |keys| {
            // Without this key, the graph applies the limit of the released models. 0 is written to
            // state that the model has no limit.
            let cap = keys.config.number(&["final_logit_softcapping"])?.unwrap_or(0.0);
            keys.put("final_logit_softcapping", cap as f32);
            keys.refuse("attention_bias", |value| value.as_bool() == Some(true), "false")
        },
        tensors: &[NANOCHAT],
        activations: &["relu2"],
        defaults: r#"{"hidden_size": 768, "intermediate_size": 8192, "num_hidden_layers": 12, "num_attention_heads": 6,
            "max_position_embeddings": 2048, "rms_norm_eps": 1e-6, "final_logit_softcapping": 15.0}"#,
        ..USUAL
    },
    Family {
        model_types: &["spark2_5"],
        architecture: "spark2_5",
        keys: spark,
        tensors: &[SPARK],
        activations: &["gelu"],
        ..USUAL
    },
    Family {
        model_types: &["jais2"],
        architecture: "jais2",
        activations: &["relu2"],
        defaults: r#"{"max_position_embeddings": 8192, "layer_norm_eps": 1e-5}"#,
        ..USUAL
    },
    Family {
        model_types: &["cohere"],
        architecture: "command-r",
        keys: |keys| {
            // `max_position_embeddings` may state only the context length of the first training
            // phase.
            keys.count("context_length", &["model_max_length", "max_position_embeddings"])?;
            keys.number("logit_scale", &["logit_scale"])
        },
        defaults: r#"{"max_position_embeddings": 8192, "layer_norm_eps": 1e-5, "rope_theta": 5e5, "logit_scale": 0.0625,
            "tie_word_embeddings": true}"#,
        ..USUAL
    },
    Family {
        model_types: &["cohere2"],
        architecture: "cohere2",
        keys: |keys| {
            keys.number("logit_scale", &["logit_scale"])?;
            keys.count("attention.sliding_window", &["sliding_window"])?;
            keys.refuse("rotary_pct", |value| value.as_f64() != Some(1.0), "1")?;
            keys.windows()
        },
        defaults: r#"{"max_position_embeddings": 8192, "layer_norm_eps": 1e-5, "logit_scale": 0.0625, "sliding_window": 4096,
            "sliding_window_pattern": 4, "head_dim": 128, "tie_word_embeddings": true}"#,
        ..USUAL
    },
    Family {
        model_types: &["glm4"],
        architecture: "glm4",
        keys: |keys| keys.rotated_part(0.5),
        tensors: &[GLM_4],
        defaults: r#"{"max_position_embeddings": 131072, "rms_norm_eps": 1.5625e-7, "num_key_value_heads": 2, "head_dim": 128}"#,
        ..USUAL
    },
    // These are vision models. In text, all sections of RoPE have the same positions.
    Family {
        model_types: &["glm4v_text", "glm4v", "glm46v", "glmga"],
        architecture: "glm4",
        keys: |keys| keys.rotated_part(1.0),
        tensors: &[GLM_4],
        defaults: r#"{"hidden_size": 4096, "intermediate_size": 13696, "num_hidden_layers": 40, "num_attention_heads": 32,
            "num_key_value_heads": 2, "max_position_embeddings": 32768, "rms_norm_eps": 1e-5}"#,
        ..USUAL
    },
    Family {
        model_types: &["glm_ocr_text", "glm_ocr"],
        architecture: "glm4",
        keys: |keys| keys.rotated_part(1.0),
        tensors: &[GLM_4],
        defaults: r#"{"hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 16, "num_attention_heads": 16,
            "num_key_value_heads": 8, "max_position_embeddings": 131072, "rms_norm_eps": 1e-5}"#,
        ..USUAL
    },
    Family {
        model_types: &["glm"],
        architecture: "chatglm",
        keys: |keys| keys.rotated_part(0.5),
        tensors: &[GLM],
        defaults: r#"{"max_position_embeddings": 131072, "rms_norm_eps": 1.5625e-7, "num_key_value_heads": 2, "head_dim": 128}"#,
        ..USUAL
    },
    Family {
        model_types: &["chatglm"],
        architecture: "chatglm",
        keys: chatglm,
        tensors: &[CHATGLM],
        defaults: r#"{"seq_length": 2048, "layernorm_epsilon": 1e-5, "multi_query_attention": false, "rope_ratio": 1}"#,
        ..USUAL
    },
    Family {
        model_types: &["hunyuan_vl_text", "hunyuan_vl"],
        architecture: "hunyuan_vl",
        keys: hunyuan_vl,
        other_rope: Some("xdrope"),
        tensors: &[HUNYUAN],
        defaults: r#"{"max_position_embeddings": 2048, "rms_norm_eps": 1e-5}"#,
        ..USUAL
    },
    Family {
        model_types: &["hunyuan_v1_dense"],
        architecture: "hunyuan-dense",
        keys: base_by_alpha,
        tensors: &[HUNYUAN],
        defaults: r#"{"max_position_embeddings": 2048, "rms_norm_eps": 1e-5}"#,
        ..USUAL
    },
];

/// Vocabulary size of Baichuan 2, which identifies the model.
const BAICHUAN_2_TOKENS: u32 = 125_696;

/// Rules for Apertus: parameters of activations become keys.
static APERTUS: &[Rule] = &[
    rule("model.layers.{L}.attention_layernorm", "blk.{L}.attn_norm", plain),
    rule("model.layers.{L}.feedforward_layernorm", "blk.{L}.ffn_norm", plain),
    rule("model.layers.{L}.mlp.act_fn.alpha_n", "", skip),
    rule("model.layers.{L}.mlp.act_fn.alpha_p", "", skip),
    rule("model.layers.{L}.mlp.act_fn.beta", "", skip),
    rule("model.layers.{L}.mlp.act_fn.eps", "", skip),
];

/// Rules for ERNIE 4.5, dense and with experts.
pub(super) static ERNIE: &[Rule] = &[
    rule("model.layers.{L}.self_attn.qkv_proj.weight", "blk.{L}.attn_{P}.weight", query_key_value),
    rule("model.layers.{L}.mlp.moe_statics.e_score_correction_bias", "blk.{L}.exp_probs_b.bias", row),
];

/// Rules for Phi-1 and Phi-2.
static PHI_2: &[Rule] = &[
    rule("model.final_layernorm", "output_norm", plain),
    rule("model.layers.{L}.self_attn.dense", "blk.{L}.attn_output", plain),
    rule("model.layers.{L}.mlp.fc1", "blk.{L}.ffn_up", plain),
    rule("model.layers.{L}.mlp.fc2", "blk.{L}.ffn_down", plain),
];

/// Rules for nanochat, whose RoPE rotates in the opposite direction.
static NANOCHAT: &[Rule] = &[
    rule("model.layers.{L}.self_attn.q_proj", "blk.{L}.attn_q", query_turned_back),
    rule("model.layers.{L}.self_attn.k_proj", "blk.{L}.attn_k", key_turned_back),
    rule("model.layers.{L}.mlp.fc1", "blk.{L}.ffn_up", plain),
    rule("model.layers.{L}.mlp.fc2", "blk.{L}.ffn_down", plain),
];

/// Rules for Spark X2.5: queries, keys and values have one matrix, and each head has a gate.
static SPARK: &[Rule] = &[
    rule("model.layers.{L}.self_attn.q_k_v_proj", "blk.{L}.attn_qkv", plain),
    rule("model.layers.{L}.self_attn.g_proj", "blk.{L}.attn_gate", plain),
];

/// Rules for StableLM: the larger models have a norm for each head.
static STABLELM: &[Rule] = &[
    rule("model.layers.{L}.self_attn.q_layernorm.norms.{Q}", "blk.{L}.attn_q_norm", plain),
    rule("model.layers.{L}.self_attn.k_layernorm.norms.{K}", "blk.{L}.attn_k_norm", plain),
];

/// Rules for StarCoder 2.
static STARCODER_2: &[Rule] = &[
    rule("model.layers.{L}.mlp.c_fc", "blk.{L}.ffn_up", plain),
    rule("model.layers.{L}.mlp.c_proj", "blk.{L}.ffn_down", plain),
];

/// Rules for Nemotron, whose norms multiply by `1 + weight`.
static NEMOTRON: &[Rule] = &[
    rule("model.norm.weight", "output_norm.weight", plus_one),
    rule("model.layers.{L}.input_layernorm.weight", "blk.{L}.attn_norm.weight", plus_one),
    rule("model.layers.{L}.post_attention_layernorm.weight", "blk.{L}.ffn_norm.weight", plus_one),
];

/// Rules for GLM-4 of 2025: norms precede and follow each block, and the gate and up matrices are
/// one matrix.
static GLM_4: &[Rule] = &[
    rule("model.layers.{L}.post_self_attn_layernorm", "blk.{L}.post_attention_norm", plain),
    rule("model.layers.{L}.post_mlp_layernorm", "blk.{L}.post_ffw_norm", plain),
    rule("model.layers.{L}.mlp.gate_up_proj", "blk.{L}.ffn_up", plain),
];

/// Rules for GLM-4 of 2024, in files that transformers' class reads.
static GLM: &[Rule] = &[rule("model.layers.{L}.mlp.gate_up_proj", "blk.{L}.ffn_up", plain)];

/// Rules for GLM-4 of 2024 and ChatGLM 3, in files that come with their own code.
static CHATGLM: &[Rule] = &[
    rule("model.embedding.word_embeddings", "token_embd", plain),
    rule("model.encoder.final_layernorm", "output_norm", plain),
    rule("model.output_layer", "output", plain),
    rule("model.rotary_pos_emb.inv_freq", "", skip),
    rule("model.encoder.layers.{L}.input_layernorm", "blk.{L}.attn_norm", plain),
    rule("model.encoder.layers.{L}.post_attention_layernorm", "blk.{L}.ffn_norm", plain),
    rule("model.encoder.layers.{L}.self_attention.query_key_value", "blk.{L}.attn_qkv", plain),
    rule("model.encoder.layers.{L}.self_attention.dense", "blk.{L}.attn_output", plain),
    rule("model.encoder.layers.{L}.mlp.dense_h_to_4h", "blk.{L}.ffn_up", plain),
    rule("model.encoder.layers.{L}.mlp.dense_4h_to_h", "blk.{L}.ffn_down", plain),
];

/// Rules for Hunyuan, dense.
static HUNYUAN: &[Rule] = &[
    rule("model.layers.{L}.self_attn.query_layernorm", "blk.{L}.attn_q_norm", plain),
    rule("model.layers.{L}.self_attn.key_layernorm", "blk.{L}.attn_k_norm", plain),
];

/// Rules for Phi-3: queries, keys and values have one matrix, and so have gate and up.
static PHI_3: &[Rule] = &[
    rule("model.layers.{L}.self_attn.qkv_proj", "blk.{L}.attn_qkv", plain),
    rule("model.layers.{L}.mlp.gate_up_proj", "blk.{L}.ffn_up", plain),
];

/// Rules for Phi-4-multimodal: base matrices are kept, and additional matrices (LoRA) for images
/// and audio are dropped.
static PHI_4_MULTIMODAL: &[Rule] = &[
    rule("model.layers.{L}.self_attn.qkv_proj.base_layer", "blk.{L}.attn_qkv", plain),
    rule("model.layers.{L}.self_attn.o_proj.base_layer", "blk.{L}.attn_output", plain),
    rule("model.layers.{L}.mlp.gate_up_proj.base_layer", "blk.{L}.ffn_up", plain),
    rule("model.layers.{L}.mlp.down_proj.base_layer", "blk.{L}.ffn_down", plain),
    rule("model.layers.{L}.self_attn.qkv_proj.lora_A.vision", "", skip),
    rule("model.layers.{L}.self_attn.qkv_proj.lora_B.vision", "", skip),
    rule("model.layers.{L}.self_attn.qkv_proj.lora_A.speech", "", skip),
    rule("model.layers.{L}.self_attn.qkv_proj.lora_B.speech", "", skip),
    rule("model.layers.{L}.self_attn.o_proj.lora_A.vision", "", skip),
    rule("model.layers.{L}.self_attn.o_proj.lora_B.vision", "", skip),
    rule("model.layers.{L}.self_attn.o_proj.lora_A.speech", "", skip),
    rule("model.layers.{L}.self_attn.o_proj.lora_B.speech", "", skip),
    rule("model.layers.{L}.mlp.gate_up_proj.lora_A.vision", "", skip),
    rule("model.layers.{L}.mlp.gate_up_proj.lora_B.vision", "", skip),
    rule("model.layers.{L}.mlp.gate_up_proj.lora_A.speech", "", skip),
    rule("model.layers.{L}.mlp.gate_up_proj.lora_B.speech", "", skip),
    rule("model.layers.{L}.mlp.down_proj.lora_A.vision", "", skip),
    rule("model.layers.{L}.mlp.down_proj.lora_B.vision", "", skip),
    rule("model.layers.{L}.mlp.down_proj.lora_A.speech", "", skip),
    rule("model.layers.{L}.mlp.down_proj.lora_B.speech", "", skip),
];

/// Rule that limits the embedding table to the rows of the output matrix.
static TEXT_ALONE: &[Rule] = &[rule("model.embed_tokens.weight", "token_embd.weight", rows_of_vocabulary)];

/// Rules for PLaMo 1, in which the query heads that share a key head are not adjacent.
static PLAMO: &[Rule] = &[
    rule("model.layers.layers.{L}.norm", "blk.{L}.attn_norm", plain),
    rule("model.layers.layers.{L}.self_attn.q_proj", "blk.{L}.attn_q", query_in_turns),
    rule("model.layers.layers.{L}.self_attn.k_proj", "blk.{L}.attn_k", plain),
    rule("model.layers.layers.{L}.self_attn.v_proj", "blk.{L}.attn_v", plain),
    rule("model.layers.layers.{L}.self_attn.o_proj", "blk.{L}.attn_output", output_in_turns),
    rule("model.layers.layers.{L}.self_attn.rotary_emb.inv_freq", "", skip),
    rule("model.layers.layers.{L}.mlp.gate_proj", "blk.{L}.ffn_gate", plain),
    rule("model.layers.layers.{L}.mlp.up_proj", "blk.{L}.ffn_up", plain),
    rule("model.layers.layers.{L}.mlp.down_proj", "blk.{L}.ffn_down", plain),
];

/// Rules for PLaMo 2 and 3. Their norms of the residual stream multiply by the stored weight plus a
/// constant.
pub(super) static PLAMO_BLOCKS: &[Rule] = &[
    rule("model.norm", "output_norm", plus_one),
    rule("model.layers.layers.{L}.pre_mixer_norm", "blk.{L}.attn_norm", plus_one),
    rule("model.layers.layers.{L}.post_mixer_norm.weight", "blk.{L}.post_attention_norm", plus_fifth),
    rule("model.layers.layers.{L}.pre_mlp_norm", "blk.{L}.ffn_norm", plus_one),
    rule("model.layers.layers.{L}.post_mlp_norm.weight", "blk.{L}.post_ffw_norm", plus_root_of_fifths),
    rule("model.layers.layers.{L}.mixer.qkv_proj", "blk.{L}.attn_qkv", plain),
    rule("model.layers.layers.{L}.mixer.o_proj", "blk.{L}.attn_output", plain),
    rule("model.layers.layers.{L}.mlp.down_proj", "blk.{L}.ffn_down", plain),
];

/// Rules for PLaMo 3: norms of queries and keys multiply by `1 + weight`, and the gate and up
/// matrices are one matrix.
static PLAMO_3: &[Rule] = &[
    rule("model.layers.layers.{L}.mixer.q_norm", "blk.{L}.attn_q_norm", plus_one),
    rule("model.layers.layers.{L}.mixer.k_norm", "blk.{L}.attn_k_norm", plus_one),
    rule("model.layers.layers.{L}.mlp.gate_up_proj", "blk.{L}.ffn_up", plain),
];

/// Rules for Baichuan: one matrix has the rows of queries, keys and values, one after the other.
static BAICHUAN: &[Rule] =
    &[rule("model.layers.{L}.self_attn.W_pack.weight", "blk.{L}.attn_{P}.weight", turned_query_key_value)];

/// Rule for an output matrix whose rows the model divides by their length.
static UNIT_HEAD: &[Rule] = &[rule("lm_head.weight", "output.weight", unit_rows)];

fn spark(keys: &mut Keys<'_>) -> Result<(), CheckpointError> {
    keys.refuse("gate_attn_act_mode", |value| value.as_str() != Some("sigmoid"), "sigmoid")?;
    keys.refuse("headwise_attn_output_gate", |value| value.as_bool() != Some(true), "true")?;
    keys.count("attention.sliding_window", &["sliding_window"])?;
    keys.windows()?;
    keys.rotated_part(1.0)?;
    // Without this key, RoPE rotates as many elements as in layers without a window.
    if let Some(share) = keys.local_rope_number("partial_rotary_factor")? {
        let dims = f64::from(keys.config.require(&["head_dim"])?) * share;
        if !(0.0..=f64::from(u32::MAX)).contains(&dims) {
            return Err(keys.config.wrong("partial_rotary_factor", share.to_string(), "from 0 to 1"));
        }
        keys.put("rope.dimension_count_swa", dims as u32);
    }
    Ok(())
}

fn baichuan(keys: &mut Keys<'_>) -> Result<(), CheckpointError> {
    // Configurations of models with ALiBi state their context under another key than models with
    // RoPE.
    if keys.config.value("max_position_embeddings").is_none() {
        keys.put("attention.max_alibi_bias", 8f32);
    }
    Ok(())
}

/// Refuses activations other than the approximation of GELU that graphs have.
pub(super) fn gelu(keys: &Keys<'_>) -> Result<(), CheckpointError> {
    let known = ["gelu_new", "gelu_pytorch_tanh", "gelu_fast"];
    let other = |value: &serde_json::Value| value.as_str().is_none_or(|name| !known.contains(&name));
    keys.refuse("activation_function", other, &known.join(" or "))
}

fn hunyuan_vl(keys: &mut Keys<'_>) -> Result<(), CheckpointError> {
    if !matches!(keys.rope_kind()?.as_deref(), Some("dynamic" | "xdrope")) {
        return Ok(());
    }
    if let Some(alpha) = keys.rope_number("alpha")? {
        keys.put("rope.scaling.alpha", alpha as f32);
    }
    // Only the base is scaled (NTK), so RoPE itself has no scaling.
    keys.put("rope.scaling.type", "none");
    keys.put("rope.scaling.factor", keys.rope_number("factor")?.unwrap_or(1.0) as f32);
    keys.count("rope.scaling.original_context_length", &["max_position_embeddings"])
}

fn chatglm(keys: &mut Keys<'_>) -> Result<(), CheckpointError> {
    let config = keys.config;
    keys.count("feed_forward_length", &["ffn_hidden_size"])?;
    if config.flag(&["multi_query_attention"])? == Some(true) {
        keys.count("attention.head_count_kv", &["multi_query_group_num"])?;
    }
    keys.count("attention.key_length", &["kv_channels"])?;
    keys.count("attention.value_length", &["kv_channels"])?;
    keys.number("attention.layer_norm_rms_epsilon", &["layernorm_epsilon"])?;
    keys.put("rope.freq_base", (10_000.0 * config.number(&["rope_ratio"])?.unwrap_or(1.0)) as f32);
    keys.refuse("rmsnorm", |value| value.as_bool() != Some(true), "true")?;
    keys.refuse("apply_residual_connection_post_layernorm", |value| value.as_bool() == Some(true), "false")?;
    keys.rotated_part(0.5)
}
