"""Makes folders of models that are another architecture under a name of their own, as transformers saves them, tiny and of random weights, and their exact logits.

    pip install torch transformers numpy safetensors          # transformers 5.24 or later
    python kin.py [NAME ...]

Matrices are in f16. Of what a model has beside its decoder one small tensor is kept, so that a reader must pass by it. Logits are computed in f64.
"""

import json
import sys
from pathlib import Path

import numpy as np
import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "golden" / "make"))
import make as golden

HERE = Path(__file__).resolve().parent.parent
SEED = 20261126
TOKENS = 40
# Positions whose logits are kept: the last ones.
KEPT = 8
DENSE = dict(
    vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=8,
    max_position_embeddings=256, pad_token_id=0, bos_token_id=1, eos_token_id=2, tie_word_embeddings=False,
)
EXPERTS = DENSE | dict(moe_intermediate_size=16, num_experts_per_tok=2)
LATENT = dict(kv_lora_rank=16, q_lora_rank=24, qk_rope_head_dim=8, qk_nope_head_dim=8, v_head_dim=16, num_key_value_heads=4)
# Of pictures, whose positions are several.
SECTIONS = DENSE | dict(rope_parameters={"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 1, 1]})


def without(config, *keys):
    return {key: value for key, value in config.items() if key not in keys}


# By `model_type`: what a decoder is, and whether the model has other parts.
KIN = {
    "iquestcoder": (DENSE, False),
    "internlm3": (DENSE | dict(attention_bias=True, mlp_bias=True), False),
    "helium": (DENSE, False),
    "ministral": (DENSE | dict(sliding_window=16), False),
    "solar_open": (without(EXPERTS | dict(n_routed_experts=8, n_shared_experts=1, routed_scaling_factor=1.5), "intermediate_size"), False),
    "sarvam_moe": (EXPERTS | dict(n_routed_experts=8, n_shared_experts=1), False),
    "sarvam_mla": (without(EXPERTS | LATENT | dict(n_routed_experts=8, q_lora_rank=None), "head_dim"), False),
    "youtu": (without(DENSE | LATENT, "head_dim"), False),
    "exaone4_5": (DENSE, True),
    "glm4v": (SECTIONS, True),
    "glm_ocr": (SECTIONS, True),
    "paddleocr_vl": (SECTIONS, True),
    "hunyuan_vl": (DENSE | dict(rope_parameters={"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [1, 1, 1, 1]}), True),
    "smolvlm": (DENSE, True),
    "granite_docling": (without(DENSE, "head_dim") | dict(attention_multiplier=0.2, logits_scaling=2.0), True),
    "gemma4_unified": (
        DENSE
        | dict(
            global_head_dim=16, layer_types=["sliding_attention", "full_attention"], sliding_window=16, num_kv_shared_layers=0,
            hidden_size_per_layer_input=0,
        ),
        True,
    ),
    "qwen2_5_omni": (without(SECTIONS, "head_dim"), True),
    "qwen3_omni_moe": (EXPERTS | dict(num_experts=8, rope_parameters=SECTIONS["rope_parameters"]), True),
}
# Experts are of integers of four bits (compressed-tensors), as they are published: with a scale for each 32 columns.
INTEGERS = {
    "kimi_k2": (
        "deepseek_v3",
        without(EXPERTS, "head_dim")
        | LATENT
        | dict(hidden_size=64, moe_intermediate_size=32, n_routed_experts=8, n_group=1, topk_group=1, first_k_dense_replace=1),
        {
            "config_groups": {
                "group_0": {
                    "targets": ["Linear"],
                    "weights": {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": 32, "actorder": None},
                }
            },
            "format": "pack-quantized",
            "quant_method": "compressed-tensors",
        },
    ),
}
GROUP = 32
# Of models that speak: what hears and thinks.
SPEAKING = {"qwen2_5_omni": "Qwen2_5OmniForConditionalGeneration", "qwen3_omni_moe": "Qwen3OmniMoeForConditionalGeneration"}


def shrunk(config):
    """The least that a part of a model beside its decoder can be."""
    for key, value in config.to_dict().items():
        if isinstance(value, bool) or not isinstance(value, int):
            continue
        if "layer" in key or key.endswith("depth"):
            setattr(config, key, 1)
        elif "head" in key:
            setattr(config, key, min(value, 2))
        elif value >= 256 and ("size" in key or "dim" in key or key == "d_model"):
            setattr(config, key, 32)


def with_parts(name, decoder):
    base = AutoConfig.for_model(name)
    outer = base.thinker_config if name in SPEAKING else base
    text = type(outer.get_text_config(decoder=True))(**decoder)
    parts = {}
    for part in outer.sub_configs:
        config = getattr(outer, part, None)
        if part != "text_config" and config is not None:
            shrunk(config)
            parts[part] = config
    config = type(outer)(text_config=text, **parts)
    if name not in SPEAKING:
        return AutoModelForImageTextToText.from_config(config, attn_implementation="eager")
    config = type(base)(thinker_config=config.to_dict(), enable_audio_output=False)
    return getattr(transformers, SPEAKING[name])(config)


def scales_of(matrix):
    """Of groups of a row, so that the largest number is the largest integer."""
    groups = matrix.unflatten(-1, (-1, GROUP))
    return (groups.abs().amax(-1, keepdim=True) / 7).bfloat16().float(), groups


def rounded(matrix):
    scales, groups = scales_of(matrix)
    return ((groups / scales).round().clamp(-8, 7) * scales).flatten(-2)


def packed(matrix):
    """Words of eight integers, the first in the lowest bits, and scales."""
    scales, groups = scales_of(matrix)
    integers = ((groups / scales).round().to(torch.int64).flatten(-2) + 8).unflatten(-1, (-1, 8))
    words = (integers << torch.arange(0, 32, 4)).sum(-1)
    return torch.where(words >= 2**31, words - 2**32, words).to(torch.int32), scales.squeeze(-1).bfloat16()


def make(name):
    base, decoder, said = INTEGERS.get(name, (name, *KIN.get(name, (None, None))[:1], None))
    has_parts = name in KIN and KIN[name][1]
    torch.manual_seed(SEED)
    model = with_parts(name, decoder) if has_parts else AutoModelForCausalLM.from_config(AutoConfig.for_model(base, **decoder))
    model = model.eval()
    generator = torch.Generator().manual_seed(SEED)
    thinker = model.thinker if name in SPEAKING else model
    for part in {thinker, model}:
        if hasattr(part, "set_experts_implementation"):
            # Products of groups know no f64.
            part.set_experts_implementation("eager")
    golden.randomise(model, generator)
    golden.round_matrices(model)
    for key, parameter in model.named_parameters():
        if said and ".experts." in key:
            parameter.data.copy_(rounded(parameter.data))
    folder = HERE / "kin" / name
    model.save_pretrained(folder)
    for file in folder.iterdir():
        if file.name not in ["config.json", "model.safetensors"]:
            file.unlink()
    tensors = load_file(folder / "model.safetensors")
    decoders = ("model.embed_tokens", "model.layers", "model.norm", "lm_head", "model.language_model", "language_model", "model.text_model", "thinker.model", "thinker.lm_head")
    others = sorted((tensor.numel(), key) for key, tensor in tensors.items() if not key.startswith(decoders))
    for _, key in others[1:]:
        del tensors[key]
    if said:
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(config | {"model_type": name, "quantization_config": said}, indent=2) + "\n")
        for key in [key for key in tensors if ".experts." in key]:
            matrix = tensors.pop(key)
            tensors[f"{key}_packed"], tensors[f"{key}_scale"] = packed(matrix)
            tensors[f"{key}_shape"] = torch.tensor(matrix.shape)
    halves = {key: tensor.half().contiguous() if tensor.dim() >= 2 and tensor.dtype == torch.float32 else tensor for key, tensor in tensors.items()}
    save_file(halves, folder / "model.safetensors", {"format": "pt"})
    tokens = torch.randint(3, 64, (TOKENS,), generator=generator).tolist()
    with torch.inference_mode():
        exact = thinker.double()(input_ids=torch.tensor([tokens])).logits[0].numpy()
    np.save(HERE / "expect" / f"{name}.npy", exact[-KEPT:].astype(np.float32))
    (HERE / "expect" / f"{name}.json").write_text(json.dumps({"tokens": tokens}) + "\n")
    print(f"{name}: {(folder / 'model.safetensors').stat().st_size} bytes, beside the decoder {len(others)} tensors", flush=True)


for name in sys.argv[1:] or [*KIN, *INTEGERS]:
    make(name)
