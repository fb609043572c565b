"""Converts golden models (`tests/golden/make/models.py`) to folders in the hub's form, for models
without a class in transformers.

Each function takes configuration and tensors, and returns those of the model's own code.
"""

import re

import torch
from make import OLD_NAMES, apart, as_converter_knows
from models import SPARK


def deepseek(config, tensors):
    """DeepSeek's first model with experts."""
    return config | {"model_type": "deepseek", "architectures": ["DeepseekForCausalLM"], "norm_topk_prob": False, "moe_layer_freq": 1}, tensors


def minicpm(config, tensors):
    """MiniCPM: its factors have other names and other values."""
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
    """InternLM 2: queries, keys and values in one matrix, grouped by key head."""
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
        # The converter's key, next to that of transformers.
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


STEP35 = {
    "mlp.gate.weight": "moe.gate.weight",
    "mlp.gate.e_score_correction_bias": "moe.router_bias",
    "mlp.experts.down_proj": "moe.down_proj.weight",
    **{f"mlp.shared_experts.{part}_proj.weight": f"share_expert.{part}_proj.weight" for part in ["gate", "up", "down"]},
}


def step35(config, tensors):
    """Step-3.5 Flash: numbers of RoPE by layer, layers with experts as one string, and lists that
    are longer than the number of layers.
    """
    kinds, ropes = config["layer_types"], config["rope_parameters"]
    own = {
        "model_type": "step3p5",
        "architectures": ["Step3p5ForCausalLM"],
        **{key: config[key] for key in ["hidden_size", "intermediate_size", "num_hidden_layers", "vocab_size", "head_dim", "rms_norm_eps"]},
        **{key: config[key] for key in ["max_position_embeddings", "num_attention_heads", "sliding_window", "moe_intermediate_size", "share_expert_dim"]},
        "tie_word_embeddings": False,
        "num_attention_groups": config["num_key_value_heads"],
        "attention_other_setting": {
            "attention_type": "sliding_attention",
            "num_attention_heads": config["num_sliding_attention_heads"],
            "num_attention_groups": config["num_key_value_heads"],
            "head_dim": config["head_dim"],
        },
        "moe_num_experts": config["n_routed_experts"],
        "moe_top_k": config["num_experts_per_tok"],
        "moe_layers_enum": ",".join(str(layer) for layer, kind in enumerate(config["mlp_layer_types"]) if kind == "sparse"),
        "moe_router_activation": "sigmoid",
        "moe_router_scaling_factor": config["moe_router_scaling_factor"],
        "norm_expert_weight": True,
        "zero_centered": True,
        "layer_types": [*kinds, "full_attention"],
        "rope_theta": [ropes[kind]["rope_theta"] for kind in [*kinds, "full_attention"]],
        "partial_rotary_factors": [ropes[kind]["partial_rotary_factor"] for kind in [*kinds, "full_attention"]],
        "rope_scaling": {key: value for key, value in ropes["full_attention"].items() if key not in ("rope_theta", "partial_rotary_factor")},
        "swiglu_limits": [limit or None for limit in [*config["swiglu_limits"], 0.0]],
        "swiglu_limits_shared": [limit or None for limit in [*config["swiglu_limits_shared"], 0.0]],
    }
    made = {}
    for name, tensor in tensors.items():
        stem, both, _ = name.partition("mlp.experts.gate_up_proj")
        if both:
            gate, up = tensor.chunk(2, dim=1)
            made |= {f"{stem}moe.gate_proj.weight": gate, f"{stem}moe.up_proj.weight": up}
            continue
        for part, other in STEP35.items():
            name = name.replace(part, other)
        made[name] = tensor
    return own, made


def glm5_next(config, tensors):
    """GLM-5.3-Flash: sizes of linear attention in an object, separate convolutions and experts."""
    text = config | {
        "layer_types": ["full_attention" if kind == "indexed_attention" else kind for kind in config["layer_types"]],
        "mla_use_nope": True,
        "first_k_dense_replace": config["mlp_layer_types"].count("dense"),
        "linear_attn_config": {
            "head_dim": config["linear_head_dim"],
            "num_heads": config["linear_num_heads"],
            "short_conv_kernel_size": config["linear_conv_kernel_dim"],
            "gate_lower_bound": config["linear_lower_bound"],
        },
    }
    own = {"model_type": "glm5_next", "architectures": ["Glm5NextForConditionalGeneration"], "tie_word_embeddings": False, "text_config": text}
    made = {}
    for name, tensor in tensors.items():
        for part, other in [("forget_gate.", ""), ("attn_hc.", "hc_attn_"), ("ffn_hc.", "hc_ffn_")]:
            name = name.replace(part, other)
        stem, part, _ = name.partition("conv1d.weight")
        if part:
            made |= {f"{stem}{letter}_conv1d.weight": own for letter, own in zip("qkv", tensor.chunk(3))}
        elif name.endswith("experts.gate_up_proj"):
            for expert, both in enumerate(tensor):
                gate, up = both.chunk(2)
                stem = name.replace("gate_up_proj", str(expert))
                made |= {f"{stem}.gate_proj.weight": gate, f"{stem}.up_proj.weight": up}
        elif name.endswith("experts.down_proj"):
            made |= {name.replace("down_proj", f"{expert}.down_proj.weight"): down for expert, down in enumerate(tensor)}
        else:
            made[name] = tensor
    return own, made


EXAONE = {
    "input_layernorm": "ln_1",
    "post_attention_layernorm": "ln_2",
    **{f"self_attn.{part}_proj": f"attn.attention.{part}_proj" for part in "qkv"},
    "self_attn.o_proj": "attn.attention.out_proj",
    "mlp.gate_proj": "mlp.c_fc_0",
    "mlp.up_proj": "mlp.c_fc_1",
    "mlp.down_proj": "mlp.c_proj",
}


def exaone(config, tensors):
    """EXAONE 3 and 3.5."""
    config |= {"model_type": "exaone", "architectures": ["ExaoneForCausalLM"], "activation_function": config.pop("hidden_act")}
    config |= {"num_layers": config.pop("num_hidden_layers"), "layer_norm_epsilon": config.pop("rms_norm_eps")}
    made = {
        "transformer.wte.weight": tensors["model.embed_tokens.weight"],
        "transformer.ln_f.weight": tensors["model.norm.weight"],
        "lm_head.weight": tensors["lm_head.weight"],
    }
    for layer in range(config["num_layers"]):
        for part, own in EXAONE.items():
            made[f"transformer.h.{layer}.{own}.weight"] = tensors[f"model.layers.{layer}.{part}.weight"]
    return config, made


def nemotron_nas(config, tensors):
    """Pruned Nemotron models: the configuration has the remaining parts of each layer."""
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    blocks = []
    for attention, network in config.pop("parts"):
        whole = attention == "attention"
        blocks.append(
            {
                "attention": {"n_heads_in_group": heads // kv_heads if whole else None, "no_op": attention == "none", "replace_with_linear": attention == "linear"},
                # The code computes the width from this factor: two thirds of the product, rounded
                # up to a multiple of 256.
                "ffn": {"ffn_mult": 1.5 * config["intermediate_size"] / config["hidden_size"] if network else None, "no_op": not network, "replace_with_linear": False},
            }
        )
    for key in ["intermediate_size", "num_key_value_heads"]:
        config[key] = None
    linear = {f"model.layers.{layer}.self_attn.o_proj" for layer, block in enumerate(blocks) if block["attention"]["replace_with_linear"]}
    names = {name: name.replace("o_proj", "linear_attn") if name.removesuffix(".weight") in linear else name for name in tensors}
    config |= {"model_type": "nemotron-nas", "architectures": ["DeciLMForCausalLM"], "block_configs": blocks}
    return config, {names[name]: tensor for name, tensor in tensors.items()}


def ling(config, tensors):
    """Ling 1: one matrix of queries, keys and values."""
    config |= {"model_type": "bailing_moe", "architectures": ["BailingMoeForCausalLM"], "norm_head": False}
    config |= {"num_experts": config.pop("n_routed_experts"), "num_shared_experts": config.pop("n_shared_experts")}
    del config["scoring_func"]
    made = {}
    for name, tensor in tensors.items():
        stem, attention, part = name.partition("self_attn.")
        if name == "model.embed_tokens.weight":
            made["model.word_embeddings.weight"] = tensor
        elif part == "q_proj.weight":
            parts = [tensors[f"{stem}self_attn.{part}_proj.weight"] for part in "qkv"]
            made[f"{stem}attention.query_key_value.weight"] = torch.cat(parts)
        elif part == "o_proj.weight":
            made[f"{stem}attention.dense.weight"] = tensor
        elif not attention:
            made[name] = tensor
    return config, made


def typed(model_type):
    """Returns a conversion that keeps the tensor names of transformers' class."""
    return lambda config, tensors: (config | {"model_type": model_type}, tensors)


def maincoder(config, tensors):
    """Maincoder: RoPE rotates pairs of neighbours."""

    def turned(name, tensor):
        heads = {"q_proj": config["num_attention_heads"], "k_proj": config["num_key_value_heads"], "query_layernorm": 1, "key_layernorm": 1}.get(name.split(".")[-2])
        return tensor.view(heads, 2, -1, *tensor.shape[1:]).transpose(1, 2).reshape(tensor.shape) if heads else tensor

    names = {name: name.replace("query_layernorm", "q_norm").replace("key_layernorm", "k_norm") for name in tensors}
    return config | {"model_type": "maincoder"}, {names[name]: turned(name, tensor) for name, tensor in tensors.items()}


def hy_v4(config, tensors):
    """Hy4:

    RoPE rotates neighbours, where transformers rotates halves. transformers also writes names of
    its own, and some of them are wrong.
    """
    turned, still = config["qk_rope_head_dim"], config["qk_nope_head_dim"]
    order = torch.arange(turned).view(2, -1).T.flatten()
    lengths = {
        "self_attn.q_b_proj.weight": still + turned,
        "self_attn.kv_a_proj_with_mqa.weight": config["kv_lora_rank"] + turned,
        **{f"self_attn.indexer.{part}": config["index_head_dim"] for part in ["wq_b.weight", "wk.weight", "k_norm.weight", "k_norm.bias"]},
    }
    made = {}
    for name, tensor in tensors.items():
        for part, length in lengths.items():
            if name.endswith(part):
                heads = tensor.unflatten(0, (-1, length)).clone()
                heads[:, -turned:] = heads[:, length - turned + order]
                tensor = heads.flatten(0, 1)
        for pattern, other in OLD_NAMES["hy_v4"]:
            name = re.sub(pattern, other, name)
        made[name] = tensor
    own = {"layer_types": ["deepseek_sparse_attention"] * config["num_hidden_layers"], "gated_mla": True, "gating_type": "elementwise", "learnable_sink": True}
    return config | own, made


def dots3note(config, tensors):
    """dots.3 note: sizes of layers with a window have names of their own."""
    own = as_converter_knows(dict(config)) | {"model_type": "dots3_note"}
    del own["per_layer_config"]
    return own, tensors


def maple(config, tensors):
    """Maple: one table of RoPE. The limit has a key only if it differs from that of the code."""
    own = {"model_type": "maple", "architectures": ["MapleForCausalLM"], "nope_on_global_attention": True, "num_shared_experts": 0}
    return config | own | {"rope_parameters": config["rope_parameters"]["sliding_attention"]}, tensors


GROK = {
    "input_layernorm": "rms_norm",
    "post_attention_layernorm": "rms_norm_1",
    "pre_moe_layernorm": "rms_norm_2",
    "post_moe_layernorm": "rms_norm_3",
    **{f"self_attn.{part}_proj": f"multi_head_attention.{own}" for part, own in zip("qkvo", ["query", "key", "value", "linear"])},
    "mlp.gate": "router",
}


def one_by_one(stem, names, tensor):
    """Divides a tensor of experts' matrices into one tensor for each of these names."""
    for expert, both in enumerate(tensor):
        yield from ((f"{stem}{expert}.{name}.weight", own) for name, own in zip(names, both.chunk(len(names))))


def grok(config, tensors):
    """Grok 1."""
    own = {
        "model_type": "grok-1",
        "architectures": ["Grok1ForCausalLM"],
        "hidden_size": config["hidden_size"],
        "intermediate_size": config["moe_intermediate_size"],
        "num_hidden_layers": config["num_hidden_layers"],
        "num_attention_heads": config["num_attention_heads"],
        "num_key_value_heads": config["num_key_value_heads"],
        "vocab_size": config["vocab_size"],
        "max_position_embeddings": 512,
        "rms_norm_eps": config["rms_norm_eps"],
        "num_local_experts": config["num_local_experts"],
        "num_experts_per_tok": config["num_experts_per_tok"],
        "attn_output_multiplier": config["attention_scale"],
        "attn_logit_softcapping": config["attention_cap"],
        "router_logit_softcapping": config["router_cap"],
        "embedding_multiplier_scale": config["embedding_scale"],
        "output_multiplier_scale": config["logit_scale"],
        "rope_theta": config["rope_theta"],
        "tie_word_embeddings": False,
    }
    made = {"lm_head.weight": tensors["lm_head.weight"], "transformer.in_out_embed.weight": tensors["model.embed_tokens.weight"], "transformer.rms_norm.weight": tensors["model.norm.weight"]}
    for name, tensor in tensors.items():
        _, layer, part = name.partition("model.layers.")
        if not layer:
            continue
        number, part = part.split(".", 1)
        stem = f"transformer.decoder_layer.{number}."
        if part.startswith("mlp.experts."):
            made |= one_by_one(f"{stem}moe.", ["linear", "linear_v"] if "gate_up" in part else ["linear_1"], tensor)
        else:
            part, end = part.rsplit(".", 1)
            made[f"{stem}{GROK[part]}.{end}"] = tensor
    return own, made


GROK_2 = {
    "input_layernorm": "pre_attn_norm",
    "post_attention_layernorm": "post_attn_norm",
    "pre_moe_layernorm": "pre_moe_norm",
    "post_moe_layernorm": "post_moe_norm",
    "mlp.gate.": "block_sparse_moe.gate.",
}


def grok_2(config, tensors):
    """Grok 2, without division of its matrices among devices."""
    first = {name: tensor for name, tensor in tensors.items() if not (name.endswith("_proj.weight") and ".mlp." in name)}
    own = grok(config, first)[0] | {"model_type": "git", "intermediate_size": config["intermediate_size"], "moe_intermediate_size": config["moe_intermediate_size"]}
    own |= {"head_dim": config["head_dim"], "final_logit_softcapping": config["logit_cap"], "residual_moe": True, "attn_temperature_len": 384, "sliding_window_size": -1}
    own |= {"rope_type": "original", "original_max_position_embeddings": 32, "scaling_factor": 16.0, "extrapolation_factor": 1.0, "attn_factor": 1.0, "beta_fast": 8, "beta_slow": 1}
    made = {}
    for name, tensor in tensors.items():
        stem, experts, part = name.partition("mlp.experts.")
        if experts:
            parts = ["w1", "w3"] if "gate_up" in part else ["w2"]
            made |= dict(one_by_one(f"{stem}block_sparse_moe.experts.", parts, tensor))
        else:
            made |= renamed({name: tensor}, GROK_2)
    return own, made


def grovemoe(config, tensors):
    """GroveMoE: small experts that groups share."""
    made = {}
    for name, tensor in tensors.items():
        stem, _, part = name.rpartition("experts.")
        if part in ("gate_up_proj", "down_proj"):
            made |= one_by_one(f"{stem}experts.", ["gate_proj", "up_proj"] if part == "gate_up_proj" else ["down_proj"], tensor)
        else:
            made[name] = tensor
    if "num_local_experts" in config:
        config["num_experts"] = config.pop("num_local_experts")
    made |= {f"model.layers.{layer}.mlp.expert_bias": torch.zeros(config["num_experts"]) for layer in range(config["num_hidden_layers"])}
    return config | {"model_type": "grove_moe", "architectures": ["GroveMoeForCausalLM"]}, made


def plamo(config, tensors):
    """PLaMo 1: heads that share a key are not neighbours."""
    heads, kv_heads, width = config["num_attention_heads"], config["num_key_value_heads"], config["hidden_size"]
    own = {key: config[key] for key in ["hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "vocab_size", "rms_norm_eps", "max_position_embeddings"]}
    own |= {"model_type": "plamo", "architectures": ["PlamoForCausalLM"], "num_key_value_heads": heads, "n_shared_head": heads // kv_heads, "tie_word_embeddings": False}
    made = {}
    for name, tensor in tensors.items():
        if "q_proj" in name:
            tensor = tensor.view(kv_heads, heads // kv_heads, -1, width).transpose(0, 1).reshape(width, width)
        if "o_proj" in name:
            tensor = tensor.view(width, kv_heads, heads // kv_heads, -1).transpose(1, 2).reshape(width, width)
        made[name.replace("model.layers.", "model.layers.layers.").replace("input_layernorm", "norm")] = tensor
    return own, made


PLAMO3 = [
    ("input_layernorm", "pre_mixer_norm", 1.0),
    ("post_attention_layernorm", "post_mixer_norm", 1.0 / 5),
    ("pre_mlp_layernorm", "pre_mlp_norm", 1.0),
    ("post_mlp_layernorm", "post_mlp_norm", 1.0 / 5**1.5),
    ("self_attn.q_norm", "mixer.q_norm", 1.0),
    ("self_attn.k_norm", "mixer.k_norm", 1.0),
    ("self_attn.o_proj", "mixer.o_proj", 0.0),
    ("model.norm", "model.norm", 1.0),
]


def plamo_tensors(tensors, names):
    """Returns tensors in the form of PLaMo: one matrix for queries, keys and values, PLaMo's names,
    and norms less their offsets.
    """
    made = {}
    for name, tensor in tensors.items():
        if "self_attn.q_proj" in name:
            name, tensor = name.replace("self_attn.q_proj", "mixer.qkv_proj"), torch.cat([tensors[name.replace("q_proj", f"{part}_proj")] for part in "qkv"])
        elif "self_attn.k_proj" in name or "self_attn.v_proj" in name:
            continue
        for part, other, more in names:
            if part in name:
                name, tensor = name.replace(part, other), tensor - more if more else tensor
        made[name.replace("model.layers.", "model.layers.layers.")] = tensor
    return made


def plamo3(config, tensors):
    """PLaMo 3: the factor of a norm is its weight plus an offset."""
    own = {key: config[key] for key in ["hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim", "vocab_size", "rms_norm_eps", "rope_theta"]}
    own |= {"model_type": "plamo3", "architectures": ["Plamo3ForCausalLM"], "max_position_embeddings": 512, "tie_word_embeddings": False, "hidden_act": "silu"}
    own |= {"window_size": max(config["windows"]), "sliding_window_pattern": 3, "rope_local_theta": config["local_theta"]}
    return own, plamo_tensors(tensors, PLAMO3)


PLAMO2 = [
    *(row for row in PLAMO3 if "_norm" not in row[1] or "mixer.q" not in row[1] and "mixer.k" not in row[1]),
    ("self_attn.q_norm.weight", "mixer.q_weight", 0.0),
    ("self_attn.k_norm.weight", "mixer.k_weight", 0.0),
    *((f"self_attn.{part}_norm.weight", f"mixer.{part}_norm_weight", 0.0) for part in ("B", "C", "dt")),
    ("self_attn.", "mixer.", 0.0),
]


def plamo2(config, tensors):
    """PLaMo 2: like PLaMo 3, with layers of a state space."""
    own = {key: config[key] for key in ["hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "vocab_size", "rms_norm_eps", "rope_theta"]}
    own |= {"model_type": "plamo2", "architectures": ["Plamo2ForCausalLM"], "max_position_embeddings": 512, "attention_window_size": 512, "tie_word_embeddings": False}
    own |= {"hidden_size_per_head": config["head_dim"], "mamba_d_state": config["state"], "mamba_d_conv": config["taps"], "mamba_num_heads": config["state_heads"]}
    own |= {"mamba_step": 2, "mamba_enabled": True}
    return own, plamo_tensors(tensors, PLAMO2)


MISTRAL_LARGE_4 = [
    (r"^model\.(layers|norm)\.", r"\1."),
    (r"^model\.embed_tokens\.", "tok_embeddings."),
    (r"^model\.rotary_emb\.", "lerope."),
    (r"^lm_head\.", "output."),
    (r"\.self_attn\.", ".attention."),
    (r"\.input_layernorm\.", ".attention_norm."),
    (r"\.post_attention_layernorm\.", ".ffn_norm."),
    (r"\.q_proj\.", ".wq."),
    (r"\.o_proj\.", ".wo."),
    (r"\.kv_a_proj_with_mqa\.", ".wkv_a_with_mqa."),
    (r"\.kv_b_proj\.", ".wkv_b."),
    (r"\.kv_a_layernorm\.", ".kv_a_norm."),
    (r"\.softmax_scaling\.(s|b)\w+", r".ssmax_scaling.\1"),
    (r"\.mlp\.(gate\.|experts\.|shared_experts\.)", r".\1"),
    (r"\.mlp\.", ".feed_forward."),
    (r"\.gate_proj\.", ".w1."),
    (r"\.down_proj\.", ".w2."),
    (r"\.up_proj\.", ".w3."),
]


def mistral_large4(config, tensors):
    """Mistral Large 4: the text part of a model for images, under Mistral's own names, with tensors
    of the other parts.
    """
    made = {"vision_encoder.ln_pre.weight": torch.ones(8), "mtp_dspark.norm.weight": torch.ones(8)}
    for name, tensor in apart(tensors):
        for pattern, other in MISTRAL_LARGE_4:
            name = re.sub(pattern, other, name)
        made[name] = tensor
    return {"model_type": "mistral_large4", "architectures": ["MistralLarge4ForConditionalGeneration"], "text_config": config}, made


def baichuan(config, tensors):
    """Baichuan: one matrix for queries, keys and values.

    The model with ALiBi has another key for its context length.
    """
    own = {key: config[key] for key in ["hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "vocab_size", "rms_norm_eps"]}
    own |= {"model_type": "baichuan", "architectures": ["BaichuanForCausalLM"], "hidden_act": "silu", "tie_word_embeddings": False}
    made = {}
    for name, tensor in tensors.items():
        if "q_proj" in name:
            name, tensor = name.replace("q_proj", "W_pack"), torch.cat([tensors[name.replace("q_proj", f"{part}_proj")] for part in "qkv"])
        elif "k_proj" in name or "v_proj" in name:
            continue
        made[name] = tensor
    return own | {"max_position_embeddings": config["max_position_embeddings"]}, made


def baichuan_alibi(config, tensors):
    config, tensors = baichuan(config, tensors)
    return config | {"model_max_length": config.pop("max_position_embeddings")}, tensors


REFACT = [
    ("model.embed_tokens.", "transformer.wte."),
    ("model.norm.", "transformer.ln_f."),
    ("model.layers.", "transformer.h."),
    ("input_layernorm", "ln_1"),
    ("post_attention_layernorm", "ln_2"),
    ("self_attn.q_proj", "attn.q"),
    ("self_attn.o_proj", "attn.c_proj"),
    ("mlp.down_proj", "mlp.c_proj"),
]


def refact(config, tensors):
    """Refact: one matrix for keys and values, and one for gate and up."""
    own = {"model_type": "gpt_refact", "architectures": ["GPTRefactForCausalLM"], "multi_query": True, "tie_word_embeddings": False}
    for key, other in [("n_embd", "hidden_size"), ("n_head", "num_attention_heads"), ("n_layer", "num_hidden_layers"), ("n_positions", "max_position_embeddings")]:
        own[key] = config[other]
    own |= {"layer_norm_epsilon": config["rms_norm_eps"], "vocab_size": config["vocab_size"]}
    made = {}
    for name, tensor in tensors.items():
        if "v_proj" in name or "up_proj" in name:
            continue
        for part, other, fused in [("self_attn.k_proj", "self_attn.v_proj", "attn.kv"), ("mlp.gate_proj", "mlp.up_proj", "mlp.gate_up_proj")]:
            if part in name:
                name, tensor = name.replace(part, fused), torch.cat([tensor, tensors[name.replace(part, other)]])
        for part, other in REFACT:
            name = name.replace(part, other)
        made[name] = tensor
    return own, made


JAIS = [
    ("model.embed_tokens.", "transformer.wte."),
    ("model.norm.", "transformer.ln_f."),
    ("model.layers.", "transformer.h."),
    ("input_layernorm", "ln_1"),
    ("post_attention_layernorm", "ln_2"),
    ("self_attn.q_proj", "attn.c_attn"),
    ("self_attn.o_proj", "attn.c_proj"),
    ("mlp.gate_proj", "mlp.c_fc2"),
    ("mlp.up_proj", "mlp.c_fc"),
    ("mlp.down_proj", "mlp.c_proj"),
]


def jais(config, tensors):
    """Jais: transposed matrices, and factors on embeddings and logits."""
    own = {"model_type": "jais", "architectures": ["JAISLMHeadModel"], "activation_function": "swiglu", "position_embedding_type": "alibi", "tie_word_embeddings": False}
    for key, other in [("n_embd", "hidden_size"), ("n_head", "num_attention_heads"), ("n_layer", "num_hidden_layers"), ("n_positions", "max_position_embeddings")]:
        own[key] = config[other]
    own |= {"n_inner": config["intermediate_size"], "layer_norm_epsilon": config["rms_norm_eps"], "vocab_size": config["vocab_size"]}
    own |= {"mup_embeddings_scale": 0.5, "mup_width_scale": 0.25, "mup_output_alpha": 2.0, "mup_scale_qk_dot_by_d": True}
    made = {"transformer.relative_pe.slopes": torch.tensor([2.0 ** (-2 * head) for head in range(1, 5)])}
    for name, tensor in tensors.items():
        if "k_proj" in name or "v_proj" in name:
            continue
        if "q_proj" in name:
            tensor = torch.cat([tensors[name.replace("q_proj", f"{part}_proj")] for part in "qkv"])
        if "embed_tokens" in name or "lm_head" in name:
            tensor = tensor * 2
        elif tensor.dim() == 2:
            tensor = tensor.T
        for part, other in JAIS:
            name = name.replace(part, other)
        made[name] = tensor
    return own, made


QWEN = [
    ("model.embed_tokens.", "transformer.wte."),
    ("model.norm.", "transformer.ln_f."),
    ("model.layers.", "transformer.h."),
    ("input_layernorm", "ln_1"),
    ("post_attention_layernorm", "ln_2"),
    ("self_attn.q_proj", "attn.c_attn"),
    ("self_attn.o_proj", "attn.c_proj"),
    ("mlp.gate_proj", "mlp.w2"),
    ("mlp.up_proj", "mlp.w1"),
    ("mlp.down_proj", "mlp.c_proj"),
]


def qwen(config, tensors):
    """Qwen 1 in the form of Qwen-VL, which has a vision tower: one matrix for queries, keys and values."""
    own = {key: config[key] for key in ["hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size", "tie_word_embeddings"]}
    own |= {"model_type": "qwen", "architectures": ["QWenLMHeadModel"], "intermediate_size": 2 * config["intermediate_size"]}
    own |= {"kv_channels": config["hidden_size"] // config["num_attention_heads"], "layer_norm_epsilon": config["rms_norm_eps"]}
    own |= {"seq_length": config["max_position_embeddings"], "max_position_embeddings": 4 * config["max_position_embeddings"], "no_bias": True}
    own |= {"rotary_emb_base": 10000, "rotary_pct": 1.0, "scale_attn_weights": True, "use_dynamic_ntk": True, "use_logn_attn": True}
    made = {"transformer.visual.ln_post.weight": torch.ones(8)}
    for name, tensor in tensors.items():
        if "k_proj" in name or "v_proj" in name:
            continue
        if "q_proj" in name:
            tensor = torch.cat([tensors[name.replace("q_proj", f"{part}_proj")] for part in "qkv"])
        for part, other in QWEN:
            name = name.replace(part, other)
        made[name] = tensor
    return own, made


def plm(config, tensors):
    """PLM."""
    keys = ["hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "vocab_size", "intermediate_size", "max_position_embeddings"]
    keys += ["rms_norm_eps", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim", "hidden_act"]
    own = {key: config[key] for key in keys} | {"rope_theta": 10000.0, "q_lora_rank": None, "tie_word_embeddings": True}
    return own | {"model_type": "plm", "architectures": ["PLMForCausalLM"]}, tensors


def spark(config, tensors):
    """Spark X2.5: queries, keys and values in one matrix."""
    keys = ["hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "vocab_size", "intermediate_size", "max_position_embeddings"]
    own = {key: config[key] for key in [*keys, "rms_norm_eps", "head_dim", "hidden_act", "tie_word_embeddings"]}
    kinds = ["full_attention", "sliding_attention"]
    ropes = {kind: {"rope_theta": base, "rope_type": "default", "partial_rotary_factor": dims / config["head_dim"]} for kind, base, dims in zip(kinds, SPARK["bases"], SPARK["dims"])}
    own |= {"model_type": "spark2_5", "architectures": ["Spark2_5ForCausalLM"], "rope_parameters": ropes, "sliding_window": SPARK["window"]}
    own |= {"layer_types": [kinds[local] for local in SPARK["local"]], "gate_attn_act_mode": "sigmoid", "headwise_attn_output_gate": True}
    made = {}
    for name, tensor in tensors.items():
        if "q_proj" in name:
            name, tensor = name.replace("q_proj", "q_k_v_proj"), torch.cat([tensors[name.replace("q_proj", f"{part}_proj")] for part in "qkv"])
        elif "k_proj" in name or "v_proj" in name:
            continue
        made[name] = tensor
    return own, made


def renamed(tensors, names):
    """Renames tensors: replaces parts of their names, one after the other."""
    made = {}
    for name, tensor in tensors.items():
        for part, other in names.items():
            name = name.replace(part, other)
        made[name] = tensor
    return made


def fused(tensors, name="qkv_proj"):
    """Joins queries, keys and values of each layer to one matrix."""
    made = {}
    for key, tensor in tensors.items():
        if "q_proj" in key:
            key, tensor = key.replace("q_proj", name), torch.cat([tensors[key.replace("q_proj", f"{part}_proj")] for part in "qkv"])
        elif "k_proj" in key or "v_proj" in key:
            continue
        made[key] = tensor
    return made


OPENELM = {
    "model.embed_tokens": "transformer.token_embeddings",
    "model.norm": "transformer.norm",
    "model.layers": "transformer.layers",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.o_proj": "attn.out_proj",
    "self_attn.": "attn.",
    "mlp.gate_proj": "ffn.proj_1",
    "mlp.down_proj": "ffn.proj_2",
}


def openelm(config, tensors):
    """OpenELM: heads of each layer, and widths as factors whose products are near whole multiples."""
    heads, kv_heads, inner = zip(*config["sizes"])
    width = config["hidden_size"]
    own = {"model_type": "openelm", "architectures": ["OpenELMForCausalLM"], "model_dim": width, "num_transformer_layers": len(heads), "vocab_size": config["vocab_size"]}
    own |= {"num_query_heads": heads, "num_kv_heads": kv_heads, "ffn_multipliers": [length / width for length in inner], "ffn_dim_divisor": 16, "head_dim": config["head_dim"]}
    own |= {"max_context_length": config["max_position_embeddings"], "rope_freq_constant": 10000, "normalize_qk_projections": True, "share_input_output_layers": True}
    own |= {"activation_fn_name": "swish", "ffn_with_glu": True, "normalization_layer_name": "rms_norm"}
    tensors = fused(tensors)
    both = {name: torch.cat([tensor, tensors[name.replace("gate_proj", "up_proj")]]) for name, tensor in tensors.items() if "gate_proj" in name}
    return own, renamed({name: tensor for name, tensor in (tensors | both).items() if "up_proj" not in name}, OPENELM)


CODESHELL = {
    "model.embed_tokens": "transformer.wte",
    "model.norm": "transformer.ln_f",
    "model.layers": "transformer.h",
    "input_layernorm": "ln_1",
    "post_attention_layernorm": "ln_2",
    "self_attn.c_attn": "attn.c_attn",
    "self_attn.o_proj": "attn.c_proj",
}


def codeshell(config, tensors):
    """CodeShell: names like GPT-2's."""
    own = {"model_type": "codeshell", "architectures": ["CodeShellForCausalLM"], "n_embd": config["hidden_size"], "n_layer": config["num_hidden_layers"]}
    own |= {"n_head": config["num_attention_heads"], "num_query_groups": config["num_key_value_heads"], "group_query_attention": True, "vocab_size": config["vocab_size"]}
    own |= {"n_inner": config["intermediate_size"], "n_positions": config["max_position_embeddings"], "layer_norm_epsilon": config["norm_epsilon"]}
    own |= {"activation_function": "gelu_pytorch_tanh", "position_embedding_type": "rope", "rope_scaling": None, "tie_word_embeddings": False}
    return own, renamed(fused(tensors, "c_attn"), CODESHELL)


def codeshell_one(config, tensors):
    """CodeShell with only the output matrix, which is also the table of embeddings."""
    tensors = dict(tensors)
    tensors["lm_head.weight"] = tensors.pop("model.embed_tokens.weight")
    return codeshell(config, tensors)


COGVLM = {
    "self_attn.qkv_proj": "self_attn.language_expert_query_key_value",
    "self_attn.o_proj": "self_attn.language_expert_dense",
    "mlp.": "mlp.language_mlp.",
    "vis_attn_qkv": "self_attn.vision_expert_query_key_value",
    "vis_attn_output": "self_attn.vision_expert_dense",
    **{f"vis_{part}": f"mlp.vision_mlp.{part}_proj" for part in ["gate", "up", "down"]},
}
PLAIN = ["hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "vocab_size", "max_position_embeddings", "rms_norm_eps", "tie_word_embeddings"]


def cogvlm(config, tensors):
    """CogVLM: a class name in place of a model type, separate matrices for texts and images, and a vision tower."""
    own = {key: config[key] for key in PLAIN} | {"model_type": "", "architectures": ["CogVLMForCausalLM"], "hidden_act": "silu"}
    return own | {"rope_theta": 10000.0}, renamed(fused(tensors), COGVLM) | {"model.vision.boi": torch.ones(8)}


def chameleon(config, tensors):
    """Chameleon, with tensors of its image tokenizer."""
    own = {key: config[key] for key in [*PLAIN, "num_key_value_heads", "swin_norm"]} | {"model_type": "chameleon", "architectures": ["ChameleonForConditionalGeneration"]}
    return own | {"rope_theta": 10000.0}, tensors | {"model.vqmodel.quant_conv.bias": torch.ones(8)}


TALKIE = {
    "model.embed_tokens.weight": "model.embed.weight",
    "lm_head.weight": "lm_head",
    "model.layers": "model.blocks",
    "self_attn.q_proj": "attn.attn_query",
    "self_attn.k_proj": "attn.attn_key",
    "self_attn.v_proj": "attn.attn_value",
    "self_attn.o_proj": "attn.attn_resid",
    "mlp.gate_proj": "mlp.mlp_gate",
    "mlp.up_proj": "mlp.mlp_linear",
    "mlp.down_proj": "mlp.mlp_resid",
    "attn_gain": "attn_gain.a_g",
    "mlp_gain": "mlp_gain.a_g",
    "embed_skip": "embed_skip.a_g",
    "head_gain": "attn.head_gain.head_g",
}


def talkie(config, tensors):
    """Talkie: RoPE in the other direction, and a tensor as the factor of logits."""
    own = {key: config[key] for key in PLAIN if key != "rms_norm_eps"} | {"model_type": "talkie", "architectures": ["TalkieForCausalLM"]}
    own |= {"head_dim": config["hidden_size"] // config["num_attention_heads"], "rope_theta": 10000.0}
    return own, renamed(tensors, TALKIE) | {"lm_head_gain.w_g": torch.tensor([config["logit_scale"]])}


def deepseek_ocr(config, tensors):
    """DeepSeek-OCR.

    The keys of latent attention are empty in its configuration. Its window applies only to
    generated text.
    """
    keys = [*PLAIN, "num_key_value_heads", "moe_intermediate_size", "n_shared_experts", "n_routed_experts", "num_experts_per_tok", "first_k_dense_replace"]
    own = {key: config[key] for key in keys} | {"architectures": ["DeepseekV2ForCausalLM"], "rope_theta": 10000.0, "topk_method": "greedy"}
    own |= {"kv_lora_rank": None, "q_lora_rank": None, "qk_nope_head_dim": 0, "qk_rope_head_dim": 0, "v_head_dim": 0, "use_mla": False, "n_group": 1, "topk_group": 1}
    own = own | {"sliding_window_size": 24}
    return own | {"model_type": "deepseek_vl_v2", "architectures": ["DeepseekOCRForCausalLM"], "language_config": own}, tensors | {"model.sam_model.neck.1.bias": torch.ones(8)}


def longcat_flash(config, tensors):
    """LongCat-Flash: separate experts without tensors for identities, a draft layer, and the other
    keys of its configuration.
    """
    count = config["n_routed_experts"]
    own = {key: value for key, value in config.items() if key != "rope_parameters"} | {
        "rope_theta": config["rope_parameters"]["rope_theta"],
        "attention_method": "MLA",
        "mla_scale_q_lora": True,
        "mla_scale_kv_lora": True,
        "norm_topk_prob": False,
        "router_bias": False,
        "zero_expert_type": "identity",
    }
    made = {"model.mtp.norm.weight": torch.ones(8)}
    for name, tensor in tensors.items():
        stem, _, part = name.rpartition("experts.")
        number = part.split(".")[0]
        if part in ("gate_up_proj", "down_proj"):
            made |= one_by_one(f"{stem}experts.", ["gate_proj", "up_proj"] if part == "gate_up_proj" else ["down_proj"], tensor[:count])
        elif not (stem and number.isdigit() and int(number) >= count):
            made[name] = tensor
    return own, made


HUB = {
    "openelm": openelm,
    "codeshell": codeshell,
    "codeshell-one": codeshell_one,
    "cogvlm": cogvlm,
    "chameleon": chameleon,
    "chameleon-behind": chameleon,
    "talkie": talkie,
    "deepseek2-ocr": deepseek_ocr,
    "qwen": qwen,
    "plm": plm,
    "spark2_5": spark,
    "jais": jais,
    "baichuan": baichuan,
    "baichuan-alibi": baichuan_alibi,
    "refact": refact,
    "longcat-flash": longcat_flash,
    "plamo": plamo,
    "plamo2": plamo2,
    "plamo3": plamo3,
    "grok": grok,
    "grok-2": grok_2,
    "grovemoe": grovemoe,
    "nanbeige": typed("nanbeige"),
    "maple": maple,
    "mistral-large4": mistral_large4,
    "pangu-embedded": typed("PanguEmbedded"),
    "xverse": typed("xverse"),
    "orion": typed("orion"),
    "maincoder": maincoder,
    "exaone": exaone,
    "deci": nemotron_nas,
    "bailingmoe": ling,
    "hy_v4": hy_v4,
    "dots3note": dots3note,
    "step35": step35,
    "glm5-next": glm5_next,
    "deepseek": deepseek,
    "minicpm": minicpm,
    "internlm2": internlm2,
    "chatglm": chatglm,
}
