"""What each golden model is: its configuration, its class, and the largest error of its compiled logits (NMSE).

Sizes are small and unlike each other, and keep the ratios of real models: several value heads for a key head, fewer key heads than query heads, a part of
a head that is rotated. Every kind of layer is there, and not only at the end.
"""

from transformers import Qwen3_5ForCausalLM, Qwen3_5TextConfig

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
        # Matrices in f16, keys and values too; bf16 pairs on targets with tiles.
        1e-5,
    ),
}
