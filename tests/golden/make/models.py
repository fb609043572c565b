"""What each golden model is: its configuration, its class, the largest error of its compiled logits (NMSE), and what is done to its tensors once converted.

Sizes are small and unlike each other, and keep the ratios of real models: several value heads for a key head, fewer key heads than query heads, a part of
a head that is rotated. Every kind of layer is there, and not only at the end.
"""

import numpy as np
from transformers import GraniteMoeHybridConfig, GraniteMoeHybridForCausalLM
from transformers import Lfm2Config, Lfm2ForCausalLM, Lfm2MoeConfig, Lfm2MoeForCausalLM
from transformers import NemotronHConfig, NemotronHForCausalLM
from transformers import Qwen3_5ForCausalLM, Qwen3_5TextConfig, Qwen3NextConfig, Qwen3NextForCausalLM


def fused_by_key_head(tensors, config):
    """`ssm_in` of the first files of Qwen3-Next: what is `attn_qkv` and `attn_gate` now, as queries, keys, values and gates of one key head after another."""
    for name in [name for name in tensors if name.endswith("attn_qkv.weight")]:
        layer = name.removesuffix("attn_qkv.weight")
        qkv, z = tensors.pop(name), tensors.pop(layer + "attn_gate.weight")
        groups, keys = config.linear_num_key_heads, config.linear_num_key_heads * config.linear_key_head_dim
        parts = [part.reshape(groups, -1, qkv.shape[-1]) for part in (qkv[:keys], qkv[keys : 2 * keys], qkv[2 * keys :], z)]
        tensors[layer + "ssm_in.weight"] = np.concatenate(parts, axis=1).reshape(-1, qkv.shape[-1])


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
        # Matrices in f16: what rounds are sums in f32, keys and values in f16, and pairs of bf16 on targets with tiles.
        1e-8,
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
        # Experts flip where two score nearly the same.
        1e-8,
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
}
