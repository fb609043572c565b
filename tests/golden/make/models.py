"""What each golden model is: its configuration, its class, the largest error of its compiled logits (NMSE), and what is done to its tensors once converted.

Sizes are small and unlike each other, and keep the ratios of real models: several value heads for a key head, fewer key heads than query heads, a part of
a head that is rotated. Every kind of layer is there, and not only at the end.
"""

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
from transformers import GraniteMoeHybridConfig, GraniteMoeHybridForCausalLM
from transformers import Lfm2Config, Lfm2ForCausalLM, Lfm2MoeConfig, Lfm2MoeForCausalLM
from transformers import NemotronHConfig, NemotronHForCausalLM
from transformers import DeepseekV32Config, DeepseekV32ForCausalLM, GlmMoeDsaConfig, GlmMoeDsaForCausalLM
from transformers import MiniMaxM3VLForCausalLM, MiniMaxM3VLTextConfig
from transformers import MiMoV2FlashConfig, MiMoV2FlashForCausalLM
from transformers import FalconH1Config, FalconH1ForCausalLM, KimiLinearConfig, KimiLinearForCausalLM, Mamba2Config, Mamba2ForCausalLM
from transformers import Qwen3_5ForCausalLM, Qwen3_5TextConfig, Qwen3NextConfig, Qwen3NextForCausalLM


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

# Most positions are behind those that an index chooses. Keys of the index in f16 may choose another one, whose error would be thousands of times this:
# of these sizes and numbers none does.
CHOSEN = 1e-7
INDEXED = dict(
    vocab_size=64,
    hidden_size=48,
    intermediate_size=64,
    moe_intermediate_size=16,
    num_hidden_layers=3,
    first_k_dense_replace=1,
    num_attention_heads=4,
    num_key_value_heads=4,
    n_routed_experts=8,
    num_experts_per_tok=3,
    n_shared_experts=1,
    norm_topk_prob=True,
    routed_scaling_factor=1.7,
    q_lora_rank=24,
    kv_lora_rank=32,
    qk_rope_head_dim=8,
    qk_nope_head_dim=16,
    v_head_dim=24,
    index_topk=16,
    index_head_dim=24,
    index_n_heads=8,
    max_position_embeddings=512,
    tie_word_embeddings=False,
    rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
    bos_token_id=None,
    eos_token_id=None,
    pad_token_id=None,
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
    # The first layer is dense; two have a decay for each element of a key.
    "kimi-linear": (
        KimiLinearConfig(
            vocab_size=64,
            hidden_size=48,
            intermediate_size=64,
            moe_intermediate_size=16,
            num_hidden_layers=3,
            layer_types=["linear_attention", "full_attention", "linear_attention"],
            num_attention_heads=4,
            num_key_value_heads=4,
            n_shared_experts=1,
            num_local_experts=8,
            num_experts_per_tok=3,
            routed_scaling_factor=2.446,
            kv_lora_rank=32,
            q_lora_rank=None,
            qk_rope_head_dim=8,
            qk_nope_head_dim=16,
            v_head_dim=24,
            linear_head_dim=16,
            linear_num_heads=4,
            linear_conv_kernel_dim=4,
            max_position_embeddings=512,
            bos_token_id=None,
            eos_token_id=None,
            pad_token_id=None,
        ),
        KimiLinearForCausalLM,
        ROUNDED,
        None,
    ),
    "deepseek32": (DeepseekV32Config(**INDEXED, n_group=4, topk_group=2), DeepseekV32ForCausalLM, CHOSEN, None),
    # The second layer takes the first one's choice.
    "glm-dsa": (
        GlmMoeDsaConfig(**INDEXED, n_group=1, topk_group=1, indexer_types=["full", "shared", "full"]),
        GlmMoeDsaForCausalLM,
        CHOSEN,
        None,
    ),
    # All blocks are chosen.
    "minimax-m3": (
        MiniMaxM3VLTextConfig(
            **SMALL
            | {
                "intermediate_size": 16,
                "num_hidden_layers": 3,
                "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5},
            },
            dense_intermediate_size=48,
            shared_intermediate_size=16,
            head_dim=16,
            rotary_dim=8,
            num_local_experts=8,
            num_experts_per_tok=3,
            routed_scaling_factor=1.7,
            mlp_layer_types=["dense", "sparse", "sparse"],
            layer_types=["full_attention", "minimax_m3_sparse", "minimax_m3_sparse"],
            index_n_heads=2,
            index_head_dim=16,
            index_block_size=32,
            index_topk_blocks=5,
            index_local_blocks=1,
        ),
        MiniMaxM3VLForCausalLM,
        ROUNDED,
        None,
    ),
    # Windowed layers have sinks and twice as many key heads, and values are shorter than keys.
    "mimo2": (
        MiMoV2FlashConfig(
            **SMALL
            | {
                "num_hidden_layers": 4,
                "num_key_value_heads": 1,
                "intermediate_size": 48,
                "rope_parameters": {
                    "full_attention": {"rope_type": "default", "rope_theta": 500000.0, "partial_rotary_factor": 0.5},
                    "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5},
                },
            },
            head_dim=24,
            v_head_dim=16,
            moe_intermediate_size=16,
            n_routed_experts=6,
            num_experts_per_tok=3,
            sliding_window=33,
            layer_types=["full_attention", "sliding_attention", "sliding_attention", "full_attention"],
            mlp_layer_types=["dense", "sparse", "sparse", "sparse"],
            attention_value_scale=0.75,
        ),
        MiMoV2FlashForCausalLM,
        ROUNDED,
        None,
    ),
    # Factors are powers of two: the converter multiplies matrices with them.
    "falcon-h1": (
        FalconH1Config(
            vocab_size=64,
            hidden_size=48,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=16,
            mamba_d_ssm=96,
            mamba_n_heads=6,
            mamba_d_head=16,
            mamba_n_groups=2,
            mamba_d_state=24,
            mamba_d_conv=4,
            mamba_chunk_size=64,
            mamba_conv_bias=True,
            mamba_rms_norm=True,
            mamba_norm_before_gate=False,
            time_step_limit=[0.0, float("inf")],
            max_position_embeddings=512,
            tie_word_embeddings=False,
            lm_head_multiplier=0.5,
            embedding_multiplier=2.0,
            mlp_multipliers=[0.5, 2.0],
            key_multiplier=0.5,
            attention_in_multiplier=2.0,
            attention_out_multiplier=0.5,
            ssm_multipliers=[2.0, 0.5, 1.0, 2.0, 0.5],
            ssm_in_multiplier=0.5,
            ssm_out_multiplier=2.0,
            rope_parameters={"rope_type": "default", "rope_theta": 100000.0},
            bos_token_id=None,
            eos_token_id=None,
            pad_token_id=None,
        ),
        FalconH1ForCausalLM,
        ROUNDED,
        None,
    ),
    "mamba2": (
        Mamba2Config(
            vocab_size=64,
            hidden_size=48,
            num_hidden_layers=3,
            num_heads=6,
            head_dim=16,
            expand=2,
            state_size=24,
            n_groups=1,
            conv_kernel=4,
            chunk_size=64,
            use_conv_bias=True,
            layer_norm_epsilon=1e-5,
            tie_word_embeddings=False,
            bos_token_id=None,
            eos_token_id=None,
            pad_token_id=None,
        ),
        Mamba2ForCausalLM,
        1e-8,
        None,
    ),
}
