//! Models with layers of linear attention.

use super::super::config::Config;
use super::super::conversions::{
    gates_of_layer, latent_keys_values, norm_of_layer, plain, row, skip, whole_gates_of_layer,
};
use super::super::error::CheckpointError;
use super::super::keys::Keys;
use super::super::names::{Rule, rule};
use super::super::state_conversions::{decay, decay_of_first_heads, decay_of_heads, rate_of_heads, taps};
use super::latent::{INDEX, LATENT, NORM_EPS, indexed, latent};
use super::layer_kinds::{Kind, heads_of_kinds, kinds};
use super::{CONVOLVED, Family, SIGMOID, USUAL, qwen};

pub(super) static ROWS: &[Family] = &[
    Family {
        model_types: &["kimi_k3", "kimi_linear"],
        architecture: "kimi-k3",
        keys: kimi_k3,
        tensors: &[KIMI_K3, LATENT, KDA, KIMI_LINEAR],
        single: &CONVOLVED,
        scaled_vectors: &[("_res_proj.weight", "_res_norm.weight")],
        ignores_head_dim: true,
        activations: &["situ"],
        applies: |config| Ok(config.has("attn_res_block_size")),
        ..USUAL
    },
    Family {
        model_types: &["minimax", "minimax_text_01", "minimax_m1"],
        architecture: "minimax-01",
        keys: minimax_01,
        tensors: &[MINIMAX_01],
        defaults: r#"{"hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32,
            "num_key_value_heads": 8, "max_position_embeddings": 131072, "rms_norm_eps": 1e-5, "num_experts_per_tok": 2, "num_local_experts": 8,
            "rope_theta": 1e6}"#,
        ..USUAL
    },
    Family {
        model_types: &["kimi_linear"],
        architecture: "kimi-linear",
        keys: kimi_linear,
        tensors: &[LATENT, KDA, KIMI_LINEAR],
        single: &CONVOLVED,
        ignores_head_dim: true,
        defaults: r#"{"hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 27, "num_attention_heads": 32,
            "model_max_length": 1048576, "rms_norm_eps": 1e-5, "kv_lora_rank": 512, "qk_rope_head_dim": 64,
            "qk_nope_head_dim": 128, "v_head_dim": 128, "moe_intermediate_size": 1024, "num_experts": 256, "num_experts_per_token": 8,
            "num_shared_experts": 1, "num_expert_group": 1, "topk_group": 1, "moe_renormalize": true, "routed_scaling_factor": 2.446,
            "linear_head_dim": 128, "linear_num_heads": 32, "linear_conv_kernel_dim": 4}"#,
        ..USUAL
    },
    Family {
        model_types: &["glm5_next_text", "glm5_next"],
        architecture: "glm5-next",
        keys: glm_5_next,
        tensors: &[LATENT, INDEX, KDA, GLM_5_NEXT],
        single: &[
            "ffn_gate_inp.weight",
            "ssm_conv1d_q.weight",
            "ssm_conv1d_k.weight",
            "ssm_conv1d_v.weight",
            "indexer.proj.weight",
            "indexer_compressor_ape.weight",
            "indexer_compressor_gate.weight",
            "_fn.weight",
            "_base.weight",
            "_scale.weight",
        ],
        ignores_head_dim: true,
        defaults: r#"{"hidden_size": 4096, "intermediate_size": 12288, "moe_intermediate_size": 2048, "num_hidden_layers": 45,
            "num_attention_heads": 64, "n_shared_experts": 1, "n_routed_experts": 288, "routed_scaling_factor": 2.5, "kv_lora_rank": 512,
            "q_lora_rank": 1536, "qk_rope_head_dim": 0, "v_head_dim": 256, "qk_nope_head_dim": 256, "n_group": 1, "topk_group": 1,
            "num_experts_per_tok": 8, "norm_topk_prob": true, "max_position_embeddings": 1048576, "rms_norm_eps": 1e-5,
            "index_topk": 2048, "index_head_dim": 128, "index_n_heads": 32, "index_kpool": 16, "swiglu_limit": 10.0,
            "linear_head_dim": 128, "linear_num_heads": 64, "linear_conv_kernel_dim": 4, "linear_lower_bound": -5.0,
            "hc_mult": 4, "hc_eps": 1e-6, "hc_sinkhorn_iters": 20}"#,
        ..USUAL
    },
    Family {
        model_types: &["bailing_hybrid", "bailing_moe_v3"],
        architecture: "bailingmoe3",
        keys: ling_3,
        tensors: &[LING_3],
        single: &CONVOLVED,
        ignores_head_dim: true,
        defaults: r#"{"hidden_size": 2560, "intermediate_size": 6144, "moe_intermediate_size": 768, "num_hidden_layers": 42,
            "num_attention_heads": 32, "num_shared_experts": 1, "routed_scaling_factor": 2.5, "kv_lora_rank": 512,
            "qk_rope_head_dim": 64, "v_head_dim": 128, "qk_nope_head_dim": 128, "n_group": 8, "topk_group": 4,
            "num_experts_per_tok": 8, "num_experts": 512, "first_k_dense_replace": 2, "norm_topk_prob": true,
            "max_position_embeddings": 262144, "rms_norm_eps": 1e-6, "rope_theta": 6000000.0, "head_dim": 128,
            "short_conv_kernel_size": 4, "layer_group_size": 6, "kda_lower_bound": -5.0}"#,
        ..USUAL
    },
    Family {
        model_types: &["olmo_hybrid"],
        architecture: "olmo-hybrid",
        keys: olmo_hybrid,
        tensors: &[OLMO_HYBRID],
        ignores_head_dim: true,
        defaults: r#"{"hidden_size": 3840, "intermediate_size": 11008, "num_hidden_layers": 32, "num_attention_heads": 30,
            "max_position_embeddings": 65536, "rms_norm_eps": 1e-6, "linear_conv_kernel_dim": 4, "linear_allow_neg_eigval": true}"#,
        ..USUAL
    },
];

/// Rules for OLMo Hybrid. In layers with attention, norms follow blocks. In layers with linear
/// attention, norms precede blocks, and queries, keys and values have separate matrices.
static OLMO_HYBRID: &[Rule] = &[
    rule("model.layers.{L}.attention_layer_norm", "blk.{L}.attn_norm", plain),
    rule("model.layers.{L}.feedforward_layer_norm.weight", "blk.{L}.{P}.weight", norm_of_layer),
    rule("model.layers.{L}.post_attention_layernorm.weight", "blk.{L}.{P}.weight", norm_of_layer),
    rule("model.layers.{L}.post_feedforward_layernorm", "blk.{L}.post_ffw_norm", plain),
    rule("model.layers.{L}.linear_attn.q_proj", "blk.{L}.attn_q", plain),
    rule("model.layers.{L}.linear_attn.k_proj", "blk.{L}.attn_k", plain),
    rule("model.layers.{L}.linear_attn.v_proj", "blk.{L}.attn_v", plain),
    rule("model.layers.{L}.linear_attn.g_proj", "blk.{L}.attn_gate", plain),
    rule("model.layers.{L}.linear_attn.a_proj", "blk.{L}.ssm_alpha", plain),
    rule("model.layers.{L}.linear_attn.b_proj", "blk.{L}.ssm_beta", plain),
    rule("model.layers.{L}.linear_attn.conv1d", "blk.{L}.ssm_conv1d", taps),
    rule("model.layers.{L}.linear_attn.{C}_conv1d", "blk.{L}.ssm_conv1d", taps),
    rule("model.layers.{L}.linear_attn.A_log", "blk.{L}.ssm_a", decay),
    rule("model.layers.{L}.linear_attn.dt_bias", "blk.{L}.ssm_dt.bias", plain),
    rule("model.layers.{L}.linear_attn.o_norm", "blk.{L}.ssm_norm", plain),
    rule("model.layers.{L}.linear_attn.o_proj", "blk.{L}.ssm_out", plain),
];

/// Rules for linear attention with a decay for each element of a key (KDA).
static KDA: &[Rule] = &[
    rule("model.layers.{L}.self_attn.q_conv1d", "blk.{L}.ssm_conv1d_q", taps),
    rule("model.layers.{L}.self_attn.k_conv1d", "blk.{L}.ssm_conv1d_k", taps),
    rule("model.layers.{L}.self_attn.v_conv1d", "blk.{L}.ssm_conv1d_v", taps),
    rule("model.layers.{L}.self_attn.A_log", "blk.{L}.ssm_a", decay_of_heads),
    rule("model.layers.{L}.self_attn.dt_bias", "blk.{L}.ssm_dt.bias", plain),
    rule("model.layers.{L}.self_attn.b_proj", "blk.{L}.ssm_beta", plain),
    rule("model.layers.{L}.self_attn.f_a_proj", "blk.{L}.ssm_f_a", plain),
    rule("model.layers.{L}.self_attn.f_b_proj", "blk.{L}.ssm_f_b", plain),
    rule("model.layers.{L}.self_attn.g_a_proj", "blk.{L}.ssm_g_a", plain),
    rule("model.layers.{L}.self_attn.g_b_proj", "blk.{L}.ssm_g_b", plain),
    rule("model.layers.{L}.self_attn.o_norm", "blk.{L}.ssm_norm", plain),
];

/// Rules for GLM-5.3-Flash: several residual streams, and indexer keys that several positions
/// share.
static GLM_5_NEXT: &[Rule] = &[
    rule("model.layers.{L}.hc_attn_fn", "blk.{L}.hc_attn_fn.weight", plain),
    rule("model.layers.{L}.hc_attn_base", "blk.{L}.hc_attn_base.weight", plain),
    rule("model.layers.{L}.hc_attn_scale", "blk.{L}.hc_attn_scale.weight", plain),
    rule("model.layers.{L}.hc_ffn_fn", "blk.{L}.hc_ffn_fn.weight", plain),
    rule("model.layers.{L}.hc_ffn_base", "blk.{L}.hc_ffn_base.weight", plain),
    rule("model.layers.{L}.hc_ffn_scale", "blk.{L}.hc_ffn_scale.weight", plain),
    rule(
        "model.layers.{L}.self_attn.indexer.index_kpool_compress_gate",
        "blk.{L}.indexer_compressor_gate.weight",
        plain,
    ),
    rule("model.layers.{L}.self_attn.indexer.index_kpool_compress_ape", "blk.{L}.indexer_compressor_ape.weight", plain),
];

/// Rules for Ling 3: each gate of linear attention has one matrix, and tensors of attention have
/// other names.
static LING_3: &[Rule] = &[
    rule("model.word_embeddings", "token_embd", plain),
    rule("model.layers.{L}.attention.q_proj", "blk.{L}.attn_q", plain),
    rule("model.layers.{L}.attention.k_proj", "blk.{L}.attn_k", plain),
    rule("model.layers.{L}.attention.v_proj", "blk.{L}.attn_v", plain),
    rule("model.layers.{L}.attention.dense", "blk.{L}.attn_output", plain),
    rule("model.layers.{L}.attention.q_a_proj", "blk.{L}.attn_q_a", plain),
    rule("model.layers.{L}.attention.q_a_layernorm", "blk.{L}.attn_q_a_norm", plain),
    rule("model.layers.{L}.attention.q_b_proj", "blk.{L}.attn_q_b", plain),
    rule("model.layers.{L}.attention.kv_a_proj_with_mqa", "blk.{L}.attn_kv_a_mqa", plain),
    rule("model.layers.{L}.attention.kv_a_layernorm", "blk.{L}.attn_kv_a_norm", plain),
    rule("model.layers.{L}.attention.kv_b_proj.weight", "blk.{L}.attn_{P}.weight", latent_keys_values),
    rule("model.layers.{L}.attention.q_conv1d", "blk.{L}.ssm_conv1d_q", taps),
    rule("model.layers.{L}.attention.k_conv1d", "blk.{L}.ssm_conv1d_k", taps),
    rule("model.layers.{L}.attention.v_conv1d", "blk.{L}.ssm_conv1d_v", taps),
    rule("model.layers.{L}.attention.A_log", "blk.{L}.ssm_a", rate_of_heads),
    rule("model.layers.{L}.attention.dt_bias", "blk.{L}.ssm_dt.bias", plain),
    rule("model.layers.{L}.attention.b_proj", "blk.{L}.ssm_beta", plain),
    rule("model.layers.{L}.attention.f_proj", "blk.{L}.ssm_f_a", plain),
    rule("model.layers.{L}.attention.g_proj", "blk.{L}.{P}", gates_of_layer),
    rule("model.layers.{L}.attention.o_norm", "blk.{L}.ssm_norm", plain),
    rule("model.layers.{L}.mlp.gate.expert_bias", "blk.{L}.exp_probs_b.bias", plain),
];

/// Rules for Kimi K3: attention residuals, experts that take narrower rows, and gates on attention
/// and linear attention. The norms of attention residuals are multiplied into the score matrices.
static KIMI_K3: &[Rule] = &[
    rule("model.output_attn_res_proj.weight", "output_res_score.weight", row),
    rule("model.layers.{L}.self_attention_res_proj.weight", "blk.{L}.attn_res_score.weight", row),
    rule("model.layers.{L}.mlp_res_proj.weight", "blk.{L}.ffn_res_score.weight", row),
    rule("model.layers.{L}.self_attn.g_proj.weight", "blk.{L}.{P}.weight", whole_gates_of_layer),
    rule("model.layers.{L}.self_attn.A_log", "blk.{L}.ssm_a", decay_of_first_heads),
    rule("model.layers.{L}.block_sparse_moe.routed_expert_down_proj", "blk.{L}.ffn_routed_down", plain),
    rule("model.layers.{L}.block_sparse_moe.routed_expert_norm", "blk.{L}.ffn_routed_norm", plain),
    rule("model.layers.{L}.block_sparse_moe.routed_expert_up_proj", "blk.{L}.ffn_routed_up", plain),
];

/// Rules for Kimi Linear, which has layers of linear attention and of latent attention.
/// Transformers writes the dense network under the names of experts.
static KIMI_LINEAR: &[Rule] = &[
    rule("model.layers.{L}.block_sparse_moe.gate_proj", "blk.{L}.ffn_gate", plain),
    rule("model.layers.{L}.block_sparse_moe.up_proj", "blk.{L}.ffn_up", plain),
    rule("model.layers.{L}.block_sparse_moe.down_proj", "blk.{L}.ffn_down", plain),
    rule("model.layers.{L}.block_sparse_moe.shared_experts.gate_proj", "blk.{L}.ffn_gate_shexp", plain),
    rule("model.layers.{L}.block_sparse_moe.shared_experts.up_proj", "blk.{L}.ffn_up_shexp", plain),
    rule("model.layers.{L}.block_sparse_moe.shared_experts.down_proj", "blk.{L}.ffn_down_shexp", plain),
];

/// Rules for MiniMax-01: linear attention with constant decays. The stored decays are dropped, as
/// they follow from the sizes.
static MINIMAX_01: &[Rule] = &[
    rule("model.layers.{L}.self_attn.qkv_proj", "blk.{L}.attn_qkv", plain),
    rule("model.layers.{L}.self_attn.out_proj", "blk.{L}.attn_output", plain),
    rule("model.layers.{L}.self_attn.output_gate", "blk.{L}.attn_gate", plain),
    rule("model.layers.{L}.self_attn.norm", "blk.{L}.attn_norm_2", plain),
    rule("model.layers.{L}.self_attn.slope_rate", "", skip),
    rule("model.layers.{L}.self_attn.query_decay", "", skip),
    rule("model.layers.{L}.self_attn.key_decay", "", skip),
    rule("model.layers.{L}.self_attn.diagonal_decay", "", skip),
];

/// Returns whether a configuration has layers with linear attention.
pub(super) fn attends_linearly(config: &Config) -> Result<bool, CheckpointError> {
    let listed = config.counts("attn_type_list")?.is_some_and(|kinds| kinds.contains(&0));
    Ok(listed || config.texts("layer_types")?.is_some_and(|kinds| kinds.contains(&"linear_attention")))
}

fn minimax_01(keys: &mut Keys<'_>) -> Result<(), CheckpointError> {
    let config = keys.config;
    let layers = config.require(&["num_hidden_layers"])?;
    // The default of these factors in transformers' class is 1.
    let factor = |keys: [&str; 2]| Ok::<_, CheckpointError>(config.number(&keys)?.unwrap_or(1.0));
    let alpha = factor(["mlp_alpha_factor", "layernorm_mlp_alpha"])?;
    for names in [
        ["full_attn_alpha_factor", "layernorm_full_attention_alpha"],
        ["linear_attn_alpha_factor", "layernorm_linear_attention_alpha"],
    ] {
        let other = factor(names)?;
        if other != alpha {
            return Err(config.wrong(names[1], other.to_string(), format!("{alpha}, as layernorm_mlp_alpha")));
        }
    }
    for names in [
        ["full_attn_beta_factor", "layernorm_full_attention_beta"],
        ["linear_attn_beta_factor", "layernorm_linear_attention_beta"],
        ["mlp_beta_factor", "layernorm_mlp_beta"],
    ] {
        let other = factor(names)?;
        if other != 1.0 {
            return Err(config.wrong(names[1], other.to_string(), "1: nothing else is supported"));
        }
    }
    keys.put("residual_scale", alpha as f32);
    keys.refuse("postnorm", |value| value.as_bool() != Some(true), "true")?;
    keys.refuse("shared_intermediate_size", |value| value.as_u64() != Some(0), "0")?;
    match config.count(&["rotary_dim"])? {
        Some(turned) => keys.put("rope.dimension_count", turned),
        None => keys.rotated_part(1.0)?,
    }
    let recurrent: Vec<bool> = if config.has("attn_type_list") {
        config.counts("attn_type_list")?.unwrap_or_default().into_iter().map(|kind| kind == 0).collect()
    } else if config.has("layer_types") {
        kinds(config)?.into_iter().map(|kind| kind == Kind::Recurrent).collect()
    } else {
        // This is the default in transformers' class.
        (0..layers).map(|layer| layer % 2 == 1).collect()
    };
    keys.flags("attention.recurrent_layers", recurrent.into_iter());
    Ok(())
}

/// Puts the sizes of linear attention with a decay for each element of a key. If `nested` is given,
/// it has the keys, under other names.
fn delta_attention(keys: &mut Keys<'_>, nested: Option<&Config>) -> Result<(), CheckpointError> {
    let config = keys.config;
    let of = |inner: &str, outer: &str| match nested {
        Some(nested) => nested.require(&[inner]),
        None => config.require(&[outer]),
    };
    keys.put("ssm.conv_kernel", of("short_conv_kernel_size", "linear_conv_kernel_dim")?);
    keys.put("kda.head_dim", of("head_dim", "linear_head_dim")?);
    let (heads, all) = (of("num_heads", "linear_num_heads")?, config.require(&["num_attention_heads"])?);
    if heads != all {
        return Err(config.wrong("num_heads", heads.to_string(), format!("{all}, as num_attention_heads")));
    }
    keys.default("expert_gating_func", SIGMOID);
    Ok(())
}

/// Puts the number of key heads: 1 (the latent row) in layers with attention, 0 in other layers.
fn kept_rows(keys: &mut Keys<'_>, kinds: &[Kind]) {
    let kept = kinds.iter().map(|kind| u32::from(*kind == Kind::Attention));
    keys.put("attention.head_count_kv", kept.collect::<Vec<u32>>());
}

fn kimi_linear(keys: &mut Keys<'_>) -> Result<(), CheckpointError> {
    let config = keys.config;
    latent(keys)?;
    let nested = config.object("linear_attn_config")?;
    delta_attention(keys, nested.as_ref())?;
    let kinds = match &nested {
        Some(nested) => {
            // This list numbers layers from 1.
            let attention = nested.counts("full_attn_layers")?.unwrap_or_default();
            let kind = |layer| if attention.contains(&layer) { Kind::Attention } else { Kind::Recurrent };
            (1..=config.require(&["num_hidden_layers"])?).map(kind).collect()
        }
        None => kinds(config)?,
    };
    kept_rows(keys, &kinds);
    keys.count("expert_shared_count", &["num_shared_experts"])?;
    keys.count("expert_group_count", &["num_expert_group"])?;
    keys.normalise(&["moe_renormalize"])?;
    keys.refuse("mla_use_nope", |value| value.as_bool() != Some(true), "true")
}

fn kimi_k3(keys: &mut Keys<'_>) -> Result<(), CheckpointError> {
    kimi_linear(keys)?;
    let nested = keys.config.object("linear_attn_config")?;
    if let Some(bound) = nested.map(|nested| nested.number(&["gate_lower_bound"])).transpose()?.flatten() {
        keys.put("kda.gate_lower_bound", bound as f32);
    }
    keys.count("expert_latent_length", &["routed_expert_hidden_size"])?;
    keys.number("activation.situ_beta", &["activation_situ_beta"])?;
    keys.number("activation.situ_linear_beta", &["activation_situ_linear_beta"])?;
    keys.count("attn_res.block_size", &["attn_res_block_size"])
}

fn glm_5_next(keys: &mut Keys<'_>) -> Result<(), CheckpointError> {
    let config = keys.config;
    indexed(keys)?;
    // In transformers' class, norms of latent rows use `rms_norm_eps`.
    keys.number(NORM_EPS, &["rms_norm_eps"])?;
    let nested = config.object("linear_attn_config")?;
    delta_attention(keys, nested.as_ref())?;
    let bound = match &nested {
        Some(nested) => nested.number(&["gate_lower_bound"])?.or(Some(-5.0)),
        None => config.number(&["linear_lower_bound"])?,
    };
    if let Some(bound) = bound {
        keys.put("kda.gate_lower_bound", bound as f32);
    }
    let kinds = match config.has("layer_types") {
        true => kinds(config)?,
        // By default, every fourth layer has attention.
        false => attend_every(config.require(&["num_hidden_layers"])?, 4),
    };
    kept_rows(keys, &kinds);
    // This is the epsilon of the norm of the indexer's keys.
    keys.put("attention.layer_norm_epsilon", 1e-6f32);
    if let Some(own) = own_indexes(config)? {
        keys.flags("attention.indexer.types", own.into_iter());
    }
    keys.count("attention.indexer.kpool", &["index_kpool"])?;
    if let Some(tail) = config.flag(&["index_kpool_always_select_tail"])? {
        keys.put("attention.indexer.kpool_select_tail", tail);
    }
    keys.count("hyper_connection.count", &["hc_mult"])?;
    keys.count("hyper_connection.sinkhorn_iterations", &["hc_sinkhorn_iters"])?;
    keys.number("hyper_connection.epsilon", &["hc_eps"])?;
    if let Some(limit) = config.number(&["swiglu_limit"])? {
        for key in ["swiglu_clamp_exp", "swiglu_clamp_shexp"] {
            keys.put(key, vec![limit as f32; kinds.len()]);
        }
    }
    for key in ["mhc", "mla_use_nope"] {
        keys.refuse(key, |value| value.as_bool() != Some(true), "true")?;
    }
    Ok(())
}

/// Returns whether each layer has its own indexer. The source is a list of words, a text with a
/// letter for each layer, or a period and an offset.
fn own_indexes(config: &Config) -> Result<Option<Vec<bool>>, CheckpointError> {
    if let Some(kinds) = config.texts("indexer_types")? {
        return Ok(Some(kinds.iter().map(|kind| *kind == "full").collect()));
    }
    if let Some(letters) = config.text(&["index_topk_pattern"])? {
        return Ok(Some(letters.bytes().map(|letter| letter == b'F').collect()));
    }
    let Some(period) = config.count(&["index_topk_freq"])? else { return Ok(None) };
    let before = config.count(&["index_skip_topk_offset"])?.unwrap_or(2);
    let layers = 0..config.require(&["num_hidden_layers"])?;
    Ok(Some(layers.map(|layer| (layer + 1).saturating_sub(before).is_multiple_of(period.max(1))).collect()))
}

/// Returns the kinds of layers, if the last of every `period` layers has attention.
fn attend_every(layers: u32, period: u32) -> Vec<Kind> {
    let attends = |layer: u32| (layer + 1).is_multiple_of(period.max(1));
    (0..layers).map(|layer| if attends(layer) { Kind::Attention } else { Kind::Recurrent }).collect()
}

fn ling_3(keys: &mut Keys<'_>) -> Result<(), CheckpointError> {
    let config = keys.config;
    latent(keys)?;
    keys.count("ssm.conv_kernel", &["short_conv_kernel_size"])?;
    // In configurations that transformers writes, `head_dim` is the length of a key's rotated part.
    keys.count("kda.head_dim", &["linear_head_dim", "head_dim"])?;
    keys.put("kda.safe_gate", config.flag(&["kda_safe_gate"])?.unwrap_or(true));
    keys.number("kda.gate_lower_bound", &["kda_lower_bound"])?;
    let kinds = match config.has("layer_types") {
        true => kinds(config)?,
        false => {
            // Layers of an incomplete last group have attention, too.
            let (layers, group) =
                (config.require(&["num_hidden_layers"])?, config.require(&["layer_group_size"])?.max(1));
            let mut kinds = attend_every(layers, group);
            kinds.iter_mut().skip((layers / group * group) as usize).for_each(|kind| *kind = Kind::Attention);
            kinds
        }
    };
    kept_rows(keys, &kinds);
    keys.count("expert_shared_count", &["num_shared_experts", "n_shared_experts"])?;
    keys.count("expert_shared_feed_forward_length", &["moe_shared_expert_intermediate_size"])?;
    keys.count("expert_group_count", &["num_expert_group", "n_group"])?;
    keys.normalise(&["moe_renormalize", "norm_topk_prob"])?;
    keys.default("expert_gating_func", SIGMOID);
    keys.limits("swiglu_clamp_exp", "expert_swiglu_limit_list")?;
    keys.limits("swiglu_clamp_shexp", "share_expert_swiglu_limit_list")?;
    keys.refuse("gated_attention_proj_granularity_type", |value| value.as_str() != Some("head_wise"), "head_wise")?;
    keys.refuse("no_kda_lora", |value| value.as_bool() != Some(true), "true")
}

fn olmo_hybrid(keys: &mut Keys<'_>) -> Result<(), CheckpointError> {
    let config = keys.config;
    let (layers, heads) = (config.require(&["num_hidden_layers"])?, config.require(&["num_attention_heads"])?);
    let kinds = match config.has("layer_types") {
        true => kinds(config)?,
        false => {
            // The last of every four layers has attention. In a model with fewer layers, it is the
            // last layer.
            let mut kinds = attend_every(layers, 4);
            kinds.last_mut().into_iter().filter(|_| layers < 4).for_each(|last| *last = Kind::Attention);
            kinds
        }
    };
    heads_of_kinds(keys, &kinds)?;
    // If the configuration has RoPE parameters without a base, the model has no RoPE, like the
    // released models.
    let roped = config.object("rope_parameters")?.is_none() || keys.rope_number("rope_theta")?.is_some();
    keys.put("rope.scaling.finetuned", roped);
    let count = |key: &str| config.count(&[key]);
    let (key_heads, value_heads) =
        (count("linear_num_key_heads")?.unwrap_or(heads), count("linear_num_value_heads")?.unwrap_or(heads));
    let width = config.require(&["hidden_size"])?;
    let key_dim = match count("linear_key_head_dim")? {
        Some(length) => length,
        None => (0.75 * f64::from(width) / f64::from(key_heads.max(1))) as u32,
    };
    let value_dim = count("linear_value_head_dim")?.unwrap_or(key_dim.saturating_mul(2));
    qwen::delta_rule(keys, key_heads, value_heads, key_dim, value_dim)?;
    if config.flag(&["linear_allow_neg_eigval"])? == Some(true) {
        keys.put("ssm.beta_scale", 2f32);
    }
    Ok(())
}
