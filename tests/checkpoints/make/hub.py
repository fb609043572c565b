"""What transformers has no class for: folders of golden models (`tests/golden/make/models.py`) as the files of the hub are, with configurations and tensors
of code of their own."""

import torch


def deepseek(config, tensors):
    """DeepSeek's first model with experts."""
    return config | {"model_type": "deepseek", "architectures": ["DeepseekForCausalLM"], "norm_topk_prob": False, "moe_layer_freq": 1}, tensors


def minicpm(config, tensors):
    """MiniCPM: factors under names of their own, and of other numbers."""
    for key in ["embedding_multiplier", "logits_scaling", "residual_multiplier", "attention_multiplier"]:
        del config[key]
    own = {"model_type": "minicpm", "architectures": ["MiniCPMForCausalLM"], "scale_emb": 12, "dim_model_base": 256, "scale_depth": 1.4}
    return config | own, tensors


INTERNLM2 = {
    "input_layernorm": "attention_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "feed_forward.w1",
    "mlp.down_proj": "feed_forward.w2",
    "mlp.up_proj": "feed_forward.w3",
    "self_attn.o_proj": "attention.wo",
}


def internlm2(config, tensors):
    """InternLM 2: queries, keys and values in one matrix, those of heads with the same key together."""
    config |= {"model_type": "internlm2", "architectures": ["InternLM2ForCausalLM"], "bias": False}
    kv_heads, length = config["num_key_value_heads"], config.pop("head_dim")
    made = {
        "model.tok_embeddings.weight": tensors["model.embed_tokens.weight"],
        "output.weight": tensors["lm_head.weight"],
        "model.norm.weight": tensors["model.norm.weight"],
    }
    for layer in range(config["num_hidden_layers"]):
        name = f"model.layers.{layer}."
        for part, own in INTERNLM2.items():
            made[f"{name}{own}.weight"] = tensors[f"{name}{part}.weight"]
        parts = [tensors[f"{name}self_attn.{part}_proj.weight"].view(kv_heads, -1, length, config["hidden_size"]) for part in "qkv"]
        made[f"{name}attention.wqkv.weight"] = torch.cat(parts, 1).flatten(0, 2)
    return config, made


CHATGLM = {
    "input_layernorm": "input_layernorm",
    "post_attention_layernorm": "post_attention_layernorm",
    "self_attn.o_proj": "self_attention.dense",
    "mlp.gate_up_proj": "mlp.dense_h_to_4h",
    "mlp.down_proj": "mlp.dense_4h_to_h",
}


def chatglm(config, tensors):
    """ChatGLM 3 and GLM-4 of 2024."""
    own = {
        "model_type": "chatglm",
        "architectures": ["ChatGLMModel"],
        "add_bias_linear": False,
        "add_qkv_bias": True,
        "apply_residual_connection_post_layernorm": False,
        "ffn_hidden_size": config["intermediate_size"],
        "hidden_size": config["hidden_size"],
        "kv_channels": config["head_dim"],
        # The converter's own, where transformers' class is converted.
        "layernorm_epsilon": 1e-5,
        "multi_query_attention": True,
        "multi_query_group_num": config["num_key_value_heads"],
        "num_attention_heads": config["num_attention_heads"],
        "num_layers": config["num_hidden_layers"],
        "original_rope": True,
        "padded_vocab_size": config["vocab_size"],
        "rmsnorm": True,
        "rope_ratio": 1,
        "seq_length": config["max_position_embeddings"],
        "tie_word_embeddings": False,
        "vocab_size": config["vocab_size"],
    }
    made = {
        "transformer.embedding.word_embeddings.weight": tensors["model.embed_tokens.weight"],
        "transformer.output_layer.weight": tensors["lm_head.weight"],
        "transformer.encoder.final_layernorm.weight": tensors["model.norm.weight"],
        "transformer.rotary_pos_emb.inv_freq": torch.ones(4),
    }
    for layer in range(config["num_hidden_layers"]):
        name, to = f"model.layers.{layer}.", f"transformer.encoder.layers.{layer}."
        for part, other in CHATGLM.items():
            made[f"{to}{other}.weight"] = tensors[f"{name}{part}.weight"]
        for end in ["weight", "bias"]:
            parts = [tensors[f"{name}self_attn.{part}_proj.{end}"] for part in "qkv"]
            made[f"{to}self_attention.query_key_value.{end}"] = torch.cat(parts)
    return own, made


HUB = {"deepseek": deepseek, "minicpm": minicpm, "internlm2": internlm2, "chatglm": chatglm}
