"""What each golden model is: its configuration, its class, the largest error of its compiled logits (NMSE), and what is done to its tensors once converted.

Sizes are small and unlike each other, and keep the ratios of real models: several value heads for a key head, fewer key heads than query heads, a part of
a head that is rotated. Every kind of layer is there, and not only at the end.
"""

from dataclasses import dataclass, field
from typing import Callable

import numpy as np
from transformers import (
    Dots1Config,
    Dots1ForCausalLM,
    Ernie4_5Config,
    Ernie4_5ForCausalLM,
    Gemma4ForCausalLM,
    Gemma4TextConfig,
    GraniteConfig,
    GraniteForCausalLM,
    HunYuanMoEV1Config,
    HunYuanMoEV1ForCausalLM,
    Phi3Config,
    Phi3ForCausalLM,
    Qwen3_5ForCausalLM,
    Qwen3_5TextConfig,
    Qwen3NextConfig,
    Qwen3NextForCausalLM,
    Qwen3VLConfig,
    Qwen3VLForConditionalGeneration,
    Qwen3VLMoeConfig,
    Qwen3VLMoeForConditionalGeneration,
    SeedOssConfig,
    SeedOssForCausalLM,
    SmolLM3Config,
    SmolLM3ForCausalLM,
)
from transformers import DeepseekV4Config, DeepseekV4ForCausalLM
from transformers import GraniteMoeHybridConfig, GraniteMoeHybridForCausalLM
from transformers import Lfm2Config, Lfm2ForCausalLM, Lfm2MoeConfig, Lfm2MoeForCausalLM
from transformers import NemotronHConfig, NemotronHForCausalLM
from transformers import Qwen3_5ForCausalLM, Qwen3_5TextConfig, Qwen3NextConfig, Qwen3NextForCausalLM


@dataclass
class ByHand:
    """A file that llama.cpp's converter does not make of what transformers writes: its keys behind the architecture's name, its tensors, and parts of
    names of matrices that files have in f32."""

    keys: Callable
    tensors: Callable
    single: list = field(default_factory=list)


def deepseek4_keys(config):
    layers = config.num_hidden_layers
    rates = {"sliding_attention": 0}
    rates |= config.compress_rates
    rope = config.rope_parameters["compress"]
    return {
        "block_count": layers,
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "vocab_size": config.vocab_size,
        "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": 1,
        "attention.key_length": config.head_dim,
        "attention.value_length": config.head_dim,
        "attention.layer_norm_rms_epsilon": config.rms_norm_eps,
        "attention.q_lora_rank": config.q_lora_rank,
        "attention.sliding_window": config.sliding_window,
        "attention.output_group_count": config.o_groups,
        "attention.output_lora_rank": config.o_lora_rank,
        "attention.compress_ratios": [rates[layer] for layer in config.layer_types],
        "attention.compress_rope_freq_base": float(config.compress_rope_theta),
        "attention.indexer.head_count": config.index_n_heads,
        "attention.indexer.key_length": config.index_head_dim,
        "attention.indexer.top_k": config.index_topk,
        "rope.dimension_count": config.qk_rope_head_dim,
        "rope.freq_base": float(config.rope_theta),
        "rope.scaling.type": "yarn",
        "rope.scaling.factor": rope["factor"],
        "rope.scaling.original_context_length": rope["original_max_position_embeddings"],
        "rope.scaling.yarn_beta_fast": rope["beta_fast"],
        "rope.scaling.yarn_beta_slow": rope["beta_slow"],
        "expert_count": config.n_routed_experts,
        "expert_used_count": config.num_experts_per_tok,
        "expert_feed_forward_length": config.moe_intermediate_size,
        "expert_shared_count": config.n_shared_experts,
        "expert_weights_scale": config.routed_scaling_factor,
        "expert_weights_norm": config.norm_topk_prob,
        "expert_gating_func": 4,
        "swiglu_clamp_exp": [config.swiglu_limit] * layers,
        "swiglu_clamp_shexp": [config.swiglu_limit] * layers,
        "hyper_connection.count": config.hc_mult,
        "hyper_connection.sinkhorn_iterations": config.hc_sinkhorn_iters,
        "hyper_connection.epsilon": config.hc_eps,
        "hash_layer_count": config.mlp_layer_types.count("hash_moe"),
    }


DEEPSEEK4 = {
    "input_layernorm.weight": "attn_norm.weight",
    "post_attention_layernorm.weight": "ffn_norm.weight",
    "self_attn.sinks": "attn_sinks.weight",
    "self_attn.q_a_proj.weight": "attn_q_a.weight",
    "self_attn.q_a_norm.weight": "attn_q_a_norm.weight",
    "self_attn.q_b_proj.weight": "attn_q_b.weight",
    "self_attn.kv_proj.weight": "attn_kv.weight",
    "self_attn.kv_norm.weight": "attn_kv_a_norm.weight",
    "self_attn.o_a_proj.weight": "attn_output_a.weight",
    "self_attn.o_b_proj.weight": "attn_output_b.weight",
    "self_attn.compressor.position_bias": "attn_compressor_ape.weight",
    "self_attn.compressor.kv_proj.weight": "attn_compressor_kv.weight",
    "self_attn.compressor.gate_proj.weight": "attn_compressor_gate.weight",
    "self_attn.compressor.kv_norm.weight": "attn_compressor_norm.weight",
    "self_attn.compressor.indexer.position_bias": "indexer_compressor_ape.weight",
    "self_attn.compressor.indexer.kv_proj.weight": "indexer_compressor_kv.weight",
    "self_attn.compressor.indexer.gate_proj.weight": "indexer_compressor_gate.weight",
    "self_attn.compressor.indexer.kv_norm.weight": "indexer_compressor_norm.weight",
    "self_attn.compressor.indexer.q_b_proj.weight": "indexer.attn_q_b.weight",
    "self_attn.compressor.indexer.scorer.weights_proj.weight": "indexer.proj.weight",
    "mlp.gate.weight": "ffn_gate_inp.weight",
    "mlp.gate.tid2eid": "ffn_gate_tid2eid.weight",
    "mlp.gate.e_score_correction_bias": "exp_probs_b.bias",
    "mlp.experts.down_proj": "ffn_down_exps.weight",
    "mlp.shared_experts.gate_proj.weight": "ffn_gate_shexp.weight",
    "mlp.shared_experts.up_proj.weight": "ffn_up_shexp.weight",
    "mlp.shared_experts.down_proj.weight": "ffn_down_shexp.weight",
    **{f"{part}_hc.{name}": f"hc_{part}_{name}.weight" for part in ("attn", "ffn") for name in ("fn", "base", "scale")},
}
DEEPSEEK4_ENDS = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
    **{f"model.hc_head.hc_{name}": f"output_hc_{name}.weight" for name in ("fn", "base", "scale")},
}


def deepseek4_tensors(parameters, _config):
    """Names of DeepSeek-V4's files; its converter takes experts in four bits alone."""
    tensors = {}
    for name, data in parameters.items():
        if name in DEEPSEEK4_ENDS:
            tensors[DEEPSEEK4_ENDS[name]] = data
            continue
        layer, part = name.removeprefix("model.layers.").split(".", 1)
        if part == "mlp.experts.gate_up_proj":
            gate, up = np.split(data, 2, axis=1)
            tensors[f"blk.{layer}.ffn_gate_exps.weight"], tensors[f"blk.{layer}.ffn_up_exps.weight"] = gate, up
        else:
            tensors[f"blk.{layer}.{DEEPSEEK4[part]}"] = data
    return tensors


def fused_by_key_head(tensors, _keys, config):
    """`ssm_in` of the first files of Qwen3-Next: what is `attn_qkv` and `attn_gate` now, as queries, keys, values and gates of one key head after another."""
    for name in [name for name in tensors if name.endswith("attn_qkv.weight")]:
        layer = name.removesuffix("attn_qkv.weight")
        qkv, z = tensors.pop(name), tensors.pop(layer + "attn_gate.weight")
        groups, keys = config.linear_num_key_heads, config.linear_num_key_heads * config.linear_key_head_dim
        parts = [part.reshape(groups, -1, qkv.shape[-1]) for part in (qkv[:keys], qkv[keys : 2 * keys], qkv[2 * keys :], z)]
        tensors[layer + "ssm_in.weight"] = np.concatenate(parts, axis=1).reshape(-1, qkv.shape[-1])


def ling2(tensors, keys, config):
    """dots.llm1's file as Ling 2's: one matrix for queries, keys and values, and experts chosen of some of their groups (transformers has no Ling 2; its
    dots.llm1 knows groups, and its converter does not)."""
    for name in [name for name in tensors if name.endswith("attn_q.weight")]:
        layer = name.removesuffix("attn_q.weight")
        tensors[layer + "attn_qkv.weight"] = np.concatenate([tensors.pop(f"{layer}attn_{part}.weight") for part in "qkv"])
    for key in [key for key in keys if key.startswith("dots1.")]:
        keys[key.replace("dots1", "bailingmoe2")] = keys.pop(key)
    keys["general.architecture"] = "bailingmoe2"
    keys["bailingmoe2.expert_group_count"] = config.n_group
    keys["bailingmoe2.expert_group_used_count"] = config.topk_group


def untransposed(tensors, _keys, _config):
    """Experts of Qwen3-VL as transformers holds them since version 5, rows first, which the converter takes for the hub's, columns first."""
    for name in [name for name in tensors if name.endswith("ffn_gate_exps.weight")]:
        layer = name.removesuffix("ffn_gate_exps.weight")
        halves = np.concatenate([tensors[f"{layer}ffn_{half}_exps.weight"] for half in ("gate", "up")], axis=1).transpose(0, 2, 1)
        gate, up = np.split(halves, 2, axis=1)
        down = tensors[f"{layer}ffn_down_exps.weight"].transpose(0, 2, 1)
        for part, rows in (("gate", gate), ("up", up), ("down", down)):
            tensors[f"{layer}ffn_{part}_exps.weight"] = np.ascontiguousarray(rows)


# What most have: two layers, two query heads for one of keys, no token of special meaning.
SMALL = {
    "vocab_size": 64,
    "hidden_size": 64,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "tie_word_embeddings": False,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}
# One layer is dense, one has experts.
DOTS1 = SMALL | {
    "intermediate_size": 48,
    "head_dim": 16,
    "moe_intermediate_size": 16,
    "n_shared_experts": 1,
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "first_k_dense_replace": 1,
    "norm_topk_prob": True,
    "routed_scaling_factor": 1.7,
}
# The part that sees, which is not converted.
VISION = {"depth": 1, "hidden_size": 16, "intermediate_size": 16, "num_heads": 2, "out_hidden_size": 64, "deepstack_visual_indexes": []}
SECTIONS = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [4, 2, 2], "mrope_interleaved": True}

# Windows shorter than a prompt; heads without one are twice as long.
GEMMA4 = SMALL | {
    "hidden_activation": "gelu_pytorch_tanh",
    "head_dim": 16,
    "global_head_dim": 32,
    "sliding_window": 24,
    "final_logit_softcapping": 30.0,
    "tie_word_embeddings": True,
    "rope_parameters": {
        "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
        "full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1000000.0},
    },
}

# Matrices in f16: what rounds are keys and values in f16 (2e-8 of their squares), sums in f32, and pairs of bf16 on targets with tiles.
ROUNDED = 5e-8
GRANITE_HYBRID = dict(
    hidden_size=32,
    num_hidden_layers=3,
    layer_types=["mamba", "attention", "mamba"],
    num_attention_heads=2,
    num_key_value_heads=1,
    mamba_n_heads=4,
    mamba_n_groups=1,
    mamba_d_state=24,
    mamba_d_head=16,
    mamba_d_conv=4,
    mamba_expand=2,
    mamba_chunk_size=64,
    max_position_embeddings=512,
    rms_norm_eps=1e-5,
    embedding_multiplier=3.0,
    residual_multiplier=0.5,
    attention_multiplier=0.2,
    logits_scaling=2.0,
)

NEMOTRON = dict(
    hidden_size=32,
    num_attention_heads=4,
    num_key_value_heads=1,
    head_dim=16,
    ssm_state_size=24,
    mamba_num_heads=4,
    mamba_head_dim=16,
    conv_kernel=4,
    chunk_size=64,
    # llama.cpp has no least step, and this is none.
    time_step_min=1e-30,
    max_position_embeddings=512,
    layer_norm_epsilon=1e-5,
    tie_word_embeddings=False,
)

MODELS = {
    "granite": (
        GraniteConfig(**SMALL, embedding_multiplier=3.0, logits_scaling=2.5, residual_multiplier=0.4, attention_multiplier=0.15),
        GraniteForCausalLM,
        ROUNDED,
        None,
    ),
    "ernie4_5": (Ernie4_5Config(**SMALL, head_dim=16), Ernie4_5ForCausalLM, ROUNDED, None),
    "dots1": (Dots1Config(**DOTS1), Dots1ForCausalLM, ROUNDED, None),
    "bailingmoe2": (Dots1Config(**DOTS1 | {"n_group": 4, "topk_group": 2}), Dots1ForCausalLM, ROUNDED, ling2),
    "hunyuan-moe": (
        HunYuanMoEV1Config(
            **SMALL | {"intermediate_size": 32},
            head_dim=16,
            num_experts=4,
            moe_topk=[2, 2],
            moe_intermediate_size=[32, 32],
            num_shared_expert=[1, 1],
        ),
        HunYuanMoEV1ForCausalLM,
        ROUNDED,
        None,
    ),
    "qwen3vl": (
        Qwen3VLConfig(text_config=SMALL | {"head_dim": 16, "rope_parameters": SECTIONS}, vision_config=VISION, tie_word_embeddings=False),
        Qwen3VLForConditionalGeneration,
        ROUNDED,
        None,
    ),
    "qwen3vlmoe": (
        Qwen3VLMoeConfig(
            text_config=SMALL
            | {"head_dim": 16, "rope_parameters": SECTIONS, "num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 16},
            vision_config=VISION,
            tie_word_embeddings=False,
        ),
        Qwen3VLMoeForConditionalGeneration,
        ROUNDED,
        untransposed,
    ),
    # The fourth layer has no RoPE.
    "smollm3": (SmolLM3Config(**SMALL | {"num_hidden_layers": 5, "intermediate_size": 32}), SmolLM3ForCausalLM, ROUNDED, None),
    "seed_oss": (SeedOssConfig(**SMALL, head_dim=16), SeedOssForCausalLM, ROUNDED, None),
    "phi3": (
        Phi3Config(**SMALL | {"rope_parameters": SMALL["rope_parameters"] | {"partial_rotary_factor": 0.75}}),
        Phi3ForCausalLM,
        ROUNDED,
        None,
    ),
    # The last two layers have no keys and values, and wider networks.
    "gemma4-e": (
        Gemma4TextConfig(
            **GEMMA4
            | {
                "intermediate_size": 32,
                "num_hidden_layers": 6,
                "num_attention_heads": 2,
                "layer_types": ["sliding_attention", "full_attention"] * 3,
                "num_key_value_heads": 1,
                "num_kv_shared_layers": 2,
                "use_double_wide_mlp": True,
                "hidden_size_per_layer_input": 16,
                "vocab_size_per_layer_input": 64,
            }
        ),
        Gemma4ForCausalLM,
        ROUNDED,
        None,
    ),
    "gemma4-moe": (
        Gemma4TextConfig(
            **GEMMA4
            | {
                "intermediate_size": 48,
                "layer_types": ["sliding_attention", "full_attention"],
                "hidden_size_per_layer_input": 0,
                "attention_k_eq_v": True,
                "num_global_key_value_heads": 1,
                "enable_moe_block": True,
                "num_experts": 6,
                "top_k_experts": 2,
                "moe_intermediate_size": 32,
            }
        ),
        Gemma4ForCausalLM,
        ROUNDED,
        None,
    ),
    "qwen35": (
        Qwen3_5TextConfig(
            vocab_size=96,
            hidden_size=64,
            intermediate_size=80,
            num_hidden_layers=3,
            layer_types=["linear_attention", "full_attention", "linear_attention"],
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=32,
            linear_num_key_heads=2,
            linear_num_value_heads=6,
            linear_key_head_dim=16,
            linear_value_head_dim=16,
            linear_conv_kernel_dim=4,
            max_position_embeddings=512,
            rms_norm_eps=1e-6,
            tie_word_embeddings=False,
            rope_parameters={"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.25},
        ),
        Qwen3_5ForCausalLM,
        ROUNDED,
        None,
    ),
    "qwen3next-ssm_in": (
        Qwen3NextConfig(
            vocab_size=80,
            hidden_size=64,
            intermediate_size=96,
            num_hidden_layers=2,
            layer_types=["linear_attention", "full_attention"],
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=32,
            linear_num_key_heads=2,
            linear_num_value_heads=6,
            linear_key_head_dim=16,
            linear_value_head_dim=16,
            linear_conv_kernel_dim=4,
            num_experts=4,
            num_experts_per_tok=2,
            moe_intermediate_size=32,
            shared_expert_intermediate_size=32,
            max_position_embeddings=512,
            rms_norm_eps=1e-6,
            tie_word_embeddings=False,
            rope_parameters={"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.25},
        ),
        Qwen3NextForCausalLM,
        ROUNDED,
        fused_by_key_head,
    ),
    "lfm2": (
        Lfm2Config(
            vocab_size=88,
            hidden_size=48,
            intermediate_size=80,
            block_auto_adjust_ff_dim=False,
            num_hidden_layers=4,
            layer_types=["conv", "full_attention", "conv", "conv"],
            num_attention_heads=3,
            num_key_value_heads=1,
            conv_L_cache=3,
            max_position_embeddings=512,
            norm_eps=1e-5,
            tie_word_embeddings=True,
            rope_parameters={"rope_type": "default", "rope_theta": 1000000.0},
        ),
        Lfm2ForCausalLM,
        1e-8,
        None,
    ),
    "lfm2moe": (
        Lfm2MoeConfig(
            vocab_size=80,
            hidden_size=32,
            intermediate_size=48,
            moe_intermediate_size=24,
            num_hidden_layers=4,
            layer_types=["conv", "conv", "full_attention", "conv"],
            num_attention_heads=2,
            num_key_value_heads=1,
            conv_L_cache=3,
            num_dense_layers=1,
            num_experts=8,
            num_experts_per_tok=3,
            max_position_embeddings=512,
            norm_eps=1e-5,
            tie_word_embeddings=True,
            rope_parameters={"rope_type": "default", "rope_theta": 1000000.0},
        ),
        Lfm2MoeForCausalLM,
        1e-8,
        None,
    ),
    "granitehybrid": (
        GraniteMoeHybridConfig(
            **GRANITE_HYBRID,
            vocab_size=96,
            intermediate_size=80,
            shared_intermediate_size=80,
            num_local_experts=0,
            num_experts_per_tok=0,
            position_embedding_type=None,
            tie_word_embeddings=True,
        ),
        GraniteMoeHybridForCausalLM,
        1e-8,
        None,
    ),
    "granitehybrid-moe": (
        GraniteMoeHybridConfig(
            **GRANITE_HYBRID,
            vocab_size=64,
            intermediate_size=24,
            shared_intermediate_size=40,
            num_local_experts=8,
            num_experts_per_tok=3,
            position_embedding_type=None,
            tie_word_embeddings=False,
        ),
        GraniteMoeHybridForCausalLM,
        1e-8,
        None,
    ),
    "nemotron_h": (
        NemotronHConfig(
            **NEMOTRON,
            vocab_size=96,
            n_groups=2,
            layers_block_type=["mamba", "mlp", "attention", "mlp", "mamba"],
            intermediate_size=80,
        ),
        NemotronHForCausalLM,
        1e-8,
        None,
    ),
    "nemotron_h_moe": (
        NemotronHConfig(
            **NEMOTRON,
            vocab_size=64,
            n_groups=4,
            layers_block_type=["mamba", "moe", "attention", "moe", "mamba"],
            intermediate_size=40,
            n_routed_experts=8,
            num_experts_per_tok=3,
            moe_intermediate_size=24,
            moe_shared_expert_intermediate_size=40,
            moe_latent_size=16,
            routed_scaling_factor=2.5,
        ),
        NemotronHForCausalLM,
        1e-8,
        None,
    ),
    # Windows and entries of both kinds close many times; a token sees all entries, since it may choose as many. Clamps show.
    "deepseek4": (
        DeepseekV4Config(
            vocab_size=64,
            hidden_size=32,
            moe_intermediate_size=16,
            num_hidden_layers=4,
            num_attention_heads=4,
            num_key_value_heads=1,
            head_dim=16,
            q_lora_rank=24,
            num_experts_per_tok=2,
            n_routed_experts=6,
            n_shared_experts=1,
            routed_scaling_factor=1.5,
            max_position_embeddings=512,
            layer_types=[
                "sliding_attention",
                "heavily_compressed_attention",
                "compressed_sparse_attention",
                "heavily_compressed_attention",
            ],
            compress_rates={"compressed_sparse_attention": 4, "heavily_compressed_attention": 16},
            compress_rope_theta=160000.0,
            hc_mult=4,
            hc_sinkhorn_iters=5,
            hc_eps=1e-3,
            mlp_layer_types=["hash_moe", "moe", "moe", "moe"],
            swiglu_limit=1.0,
            sliding_window=20,
            o_groups=2,
            o_lora_rank=12,
            index_n_heads=2,
            index_head_dim=8,
            index_topk=64,
            partial_rotary_factor=0.5,
            rms_norm_eps=1e-5,
            bos_token_id=None,
            eos_token_id=None,
            pad_token_id=None,
            rope_parameters={
                "rope_type": "yarn",
                "factor": 4.0,
                "original_max_position_embeddings": 64,
                "beta_fast": 32.0,
                "beta_slow": 1.0,
            },
        ),
        DeepseekV4ForCausalLM,
        # Keys in f16 are values, too, of four layers, and so are their means.
        2 * ROUNDED,
        ByHand(deepseek4_keys, deepseek4_tensors, single=["_ape.", "hc_"]),
    ),
}
