"""Makes folders of models that are another architecture under another name. They are tiny, as
transformers saves them, with random weights and their exact logits.

    pip install torch transformers numpy safetensors          # transformers 5.24 or later
    python kin.py [NAME ...]

Matrices are in f16. Of the parts besides the decoder, one small tensor is kept, so that a reader must skip it. Logits
are computed in f64.
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
from hub import HUB

HERE = Path(__file__).resolve().parent.parent
SEED = 20261126
TOKENS = 40
# The logits of the last positions are kept.
KEPT = 8
DENSE = dict(
    vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=8,
    max_position_embeddings=256, pad_token_id=0, bos_token_id=1, eos_token_id=2, tie_word_embeddings=False,
)
EXPERTS = DENSE | dict(moe_intermediate_size=16, num_experts_per_tok=2)
LATENT = dict(kv_lora_rank=16, q_lora_rank=24, qk_rope_head_dim=8, qk_nope_head_dim=8, v_head_dim=16, num_key_value_heads=4)
# Sections for images, whose tokens have several positions.
SECTIONS = DENSE | dict(rope_parameters={"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 1, 1]})


def without(config, *keys):
    return {key: value for key, value in config.items() if key not in keys}


# By `model_type`: architecture of the decoder, and whether the model has other parts.
KIN = {
    "iquestcoder": (DENSE, False),
    "internlm3": (DENSE | dict(attention_bias=True, mlp_bias=True), False),
    "helium": (DENSE, False),
    "codegen": (dict(vocab_size=64, n_embd=64, n_layer=2, n_head=4, n_positions=256, rotary_dim=8, n_inner=96, tie_word_embeddings=False), False),
    "apertus1p5_text": (without(DENSE, "head_dim") | dict(vocab_size=80, output_vocab_size=64), False),
    # Layers with attention to images are first, in the middle and last.
    "mllama": (without(DENSE, "head_dim") | dict(num_hidden_layers=5, cross_attention_layers=[0, 2, 4]), True),
    "ministral": (DENSE | dict(sliding_window=16), False),
    "solar_open": (without(EXPERTS | dict(n_routed_experts=8, n_shared_experts=1, routed_scaling_factor=1.5), "intermediate_size"), False),
    "sarvam_moe": (EXPERTS | dict(n_routed_experts=8, n_shared_experts=1), False),
    "sarvam_mla": (without(EXPERTS | LATENT | dict(n_routed_experts=8, q_lora_rank=None), "head_dim"), False),
    "youtu": (without(DENSE | LATENT, "head_dim"), False),
    "exaone4_5": (DENSE, True),
    "glm4v": (SECTIONS, True),
    "glm_ocr": (SECTIONS, True),
    "paddleocr_vl": (SECTIONS, True),
    "ernie4_5_vl_moe": (
        without(DENSE, "head_dim")
        | dict(
            moe_intermediate_size=[16, 8], moe_num_experts=8, moe_k=2, moe_num_shared_experts=2,
            rope_parameters={"rope_type": "default", "rope_theta": 500000.0, "mrope_section": [1, 1, 2]},
        ),
        True,
    ),
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
# Columns that share a scale.
GROUP = 32
# Four heads of 16, so that groups divide all matrices.
WIDE = DENSE | dict(hidden_size=64, intermediate_size=128, head_dim=16)
COMPRESSED = {"quant_method": "compressed-tensors"}


def compressed(form, bits, symmetric, strategy="group", order=None):
    weights = {"num_bits": bits, "type": "int", "symmetric": symmetric, "strategy": strategy, "group_size": GROUP if strategy == "group" else None, "actorder": order}
    return COMPRESSED | {"format": form, "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}}}


def gptq(bits, symmetric, order=False, form="gptq"):
    return {"quant_method": "gptq", "bits": bits, "group_size": GROUP, "sym": symmetric, "desc_act": order, "checkpoint_format": form}


def fours(kind, nested):
    return {
        "quant_method": "bitsandbytes", "load_in_4bit": True, "load_in_8bit": False, "bnb_4bit_quant_type": kind, "bnb_4bit_use_double_quant": nested,
        "bnb_4bit_compute_dtype": "bfloat16", "bnb_4bit_quant_storage": "uint8", "llm_int8_skip_modules": ["lm_head", "model.layers.1.self_attn"],
    }


AWQ = {"quant_method": "awq", "bits": 4, "group_size": GROUP, "version": "gemm", "zero_point": True}
# Models with published integer formats. By folder: class that computes the matrices, decoder,
# `model_type`, quantised matrices, configuration of the quantiser, and packing.
INTEGERS = {
    "kimi_k2": (
        "deepseek_v3",
        without(EXPERTS, "head_dim")
        | LATENT
        | dict(hidden_size=64, moe_intermediate_size=32, n_routed_experts=8, n_group=1, topk_group=1, first_k_dense_replace=1),
        "kimi_k2",
        ".experts.",
        compressed("pack-quantized", 4, True),
        "words",
    ),
    "llama-gptq": ("llama", WIDE, "llama", "_proj.", gptq(4, True), "gptq"),
    "llama-gptq-8bit": ("llama", WIDE, "llama", "_proj.", gptq(8, True), "gptq"),
    "qwen2-gptq-zeros": ("qwen2", without(WIDE, "head_dim"), "qwen2", "_proj.weight", gptq(4, False), "gptq"),
    "llama-awq": ("llama", WIDE, "llama", "_proj.", AWQ, "awq"),
    "qwen3-packed-zeros": ("qwen3", WIDE, "qwen3", "_proj.", compressed("pack-quantized", 4, False), "words"),
    "qwen3-nvfp4": ("qwen3", WIDE, "qwen3", "_proj.", {"quant_method": "modelopt", "quant_algo": "NVFP4"}, "nvfp4"),
    "qwen3_moe-nvfp4": (
        "qwen3_moe",
        WIDE | dict(moe_intermediate_size=64, num_experts=4, num_experts_per_tok=2),
        "qwen3_moe",
        ".experts.",
        COMPRESSED | {"format": "nvfp4-pack-quantized", "config_groups": {"group_0": {"weights": {"num_bits": 4, "type": "float", "group_size": 16}}}},
        "nvfp4",
    ),
    "bitnet": (
        "bitnet",
        DENSE | dict(hidden_size=256, intermediate_size=256, head_dim=64),
        "bitnet",
        "_proj.",
        {"quant_method": "bitnet", "linear_class": "autobitlinear", "quantization_mode": "offline"},
        "ternary",
    ),
    "llama-gptq-order": ("llama", WIDE, "llama", "_proj.", gptq(4, True, order=True), "gptq"),
    "llama-gptq-8bit-order": ("llama", WIDE, "llama", "_proj.", gptq(8, True, order=True), "gptq"),
    "qwen2-gptq-order-zeros": ("qwen2", without(WIDE, "head_dim"), "qwen2", "_proj.weight", gptq(4, False, True, "gptq_v2"), "gptq"),
    "qwen3_moe-packed-order": (
        "qwen3_moe",
        WIDE | dict(moe_intermediate_size=64, num_experts=4, num_experts_per_tok=2),
        "qwen3_moe",
        ".experts.",
        compressed("pack-quantized", 4, True, order="group"),
        "words",
    ),
    "llama-nf4": ("llama", WIDE | dict(hidden_size=80, intermediate_size=144), "llama", "_proj.", fours("nf4", False), "fours"),
    "llama-fp4": ("llama", WIDE, "llama", "_proj.", fours("fp4", True), "fours"),
    "qwen3_moe-nf4": (
        "qwen3_moe",
        WIDE | dict(moe_intermediate_size=64, num_experts=4, num_experts_per_tok=2),
        "qwen3_moe",
        "_proj.",
        fours("nf4", True),
        "fours",
    ),
    "llama-bnb-8bit": (
        "llama",
        WIDE,
        "llama",
        "_proj.",
        {"quant_method": "bitsandbytes", "load_in_8bit": True, "load_in_4bit": False, "llm_int8_threshold": 6.0, "llm_int8_skip_modules": None},
        "largest",
    ),
    "qwen3-int8": ("qwen3", WIDE, "qwen3", "_proj.", compressed("int-quantized", 8, True, "channel"), "bytes"),
}
# Experts of four bits, with attention in FP8 and a scale per row; and networks of eight bits, with
# attention of four bits.
QWEN_3_MOE = WIDE | dict(moe_intermediate_size=64, num_experts=4, num_experts_per_tok=2)


def of_groups(form, *groups):
    named = {f"group_{number}": {"targets": targets, **said} for number, (targets, said) in enumerate(groups)}
    return COMPRESSED | {"format": form, "ignore": ["lm_head", "re:.*mlp.gate$"], "config_groups": named}


def group_of(bits, symmetric, form=None, strategy="group"):
    return {"weights": compressed("", bits, symmetric, strategy)["config_groups"]["group_0"]["weights"]} | ({"format": form} if form else {})


FLOATS = {"weights": {"num_bits": 8, "type": "float", "symmetric": True, "strategy": "channel"}, "format": "float-quantized"}
INTEGERS |= {
    "qwen3_moe-mixed": (
        "qwen3_moe",
        QWEN_3_MOE,
        "qwen3_moe",
        {".self_attn.": "eights", ".experts.": ("words", "group_0")},
        of_groups(
            "mixed-precision",
            ([r"re:.*mlp\.experts\.\d+\."], group_of(4, True, "pack-quantized")),
            (["Linear"], FLOATS),
        ),
        None,
    ),
    "llama-mixed": (
        "llama",
        WIDE,
        "llama",
        {"layers.0.mlp.down_proj": ("bytes", "group_2"), ".mlp.": ("words", "group_1"), ".self_attn.": ("words", "group_0")},
        of_groups(
            "mixed-precision",
            (["Linear"], group_of(4, False)),
            ([r"re:.*\.mlp\.(gate|up|down)_proj$"], group_of(8, True)),
            (["model.layers.0.mlp.down_proj"], group_of(8, True, "int-quantized", "channel")),
        ),
        None,
    ),
    # Dense layers among layers with experts, and no biases.
    "qwen3_moe-dense": ("qwen3_moe", EXPERTS | dict(num_experts=4, num_hidden_layers=4, decoder_sparse_step=2, mlp_only_layers=[3]), "qwen3_moe", None, None, None),
    # Head length times number of heads is not the width. Convolutions have biases, and the output
    # matrix is the embeddings plus a bias.
    "granite-heads": ("granite", DENSE | dict(head_dim=16, attention_multiplier=0.25), "granite", None, None, None),
    "lfm2-biased": ("lfm2", without(DENSE, "head_dim") | dict(conv_bias=True, layer_types=["conv", "full_attention"]), "lfm2", None, None, None),
    "phi-tied": ("phi", without(DENSE, "head_dim") | dict(tie_word_embeddings=True), "phi", None, None, None),
    "qwen2_moe-unbiased": (
        "qwen2_moe",
        without(EXPERTS, "head_dim") | dict(num_experts=4, shared_expert_intermediate_size=32, decoder_sparse_step=2, qkv_bias=False),
        "qwen2_moe",
        None,
        None,
        None,
    ),
}
# Models that speak: the class of the part that hears and reasons.
SPEAKING = {"qwen2_5_omni": "Qwen2_5OmniForConditionalGeneration", "qwen3_omni_moe": "Qwen3OmniMoeForConditionalGeneration"}


def shrunk(config):
    """Returns the smallest configuration of a part besides the decoder."""
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


class Integers:
    """A matrix of integers, with scales by groups of a row, and zero points if they are not the middle."""

    def __init__(self, matrix, said):
        weights = said.get("config_groups", {}).get(said.get("own", "group_0"), {}).get("weights", said)
        self.bits = weights.get("bits", weights.get("num_bits"))
        self.version_2 = said.get("checkpoint_format") == "gptq_v2"
        symmetric = weights.get("sym", weights.get("symmetric", False))
        # Order of columns in quantisation: by importance in published models, random here.
        self.order = None
        if weights.get("desc_act") or weights.get("actorder"):
            self.order = torch.randperm(matrix.shape[-1])
            matrix = matrix[..., self.order]
        groups = matrix.unflatten(-1, (-1, weights["group_size"] or matrix.shape[-1]))
        middle = 1 << (self.bits - 1)
        if symmetric:
            scales = groups.abs().amax(-1, keepdim=True) / (middle - 1)
            self.zeros = torch.full_like(scales, middle)
        else:
            least, most = groups.amin(-1, keepdim=True).clamp(max=0), groups.amax(-1, keepdim=True).clamp(min=0)
            scales = (most - least) / (2 * middle - 1)
            self.zeros = (-least / scales).round().clamp(1, 2 * middle - 1)
        # Scales have as many bits as bf16, or so few that a zero point times the scale, which is
        # added to a block, is exact in f16.
        mantissa, exponent = torch.frexp(scales)
        steps = 256 if symmetric else 128
        self.scales = torch.ldexp((mantissa * steps).round() / steps, exponent)
        self.integers = (groups / self.scales + self.zeros).round().clamp(0, 2 * middle - 1).flatten(-2)
        self.zeros_of_all = self.zeros.expand_as(groups).flatten(-2)
        self.scales_of_all = self.scales.expand_as(groups).flatten(-2)
        self.symmetric = symmetric
        self.group_of_all = torch.arange(matrix.shape[-1]) // groups.shape[-1]
        if self.order is not None:
            back = self.order.argsort()
            self.integers, self.zeros_of_all = self.integers[..., back], self.zeros_of_all[..., back]
            self.scales_of_all, self.group_of_all = self.scales_of_all[..., back], self.group_of_all[back]

    def matrix(self):
        numbers = (self.integers - self.zeros_of_all) * self.scales_of_all
        # Columns in another order do not form blocks. The quantiser's kernels compute these numbers
        # in f16.
        return numbers if self.order is None else numbers.half().float()


class Floats:
    """A matrix of numbers of four bits, with scales of eight bits by groups of a row, and one scale for all (NVFP4)."""

    NUMBERS = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])

    def __init__(self, matrix, said):
        groups = matrix.unflatten(-1, (-1, 16))
        self.factor = matrix.abs().max() / (6 * 448)
        self.scales = (groups.abs().amax(-1, keepdim=True) / 6 / self.factor).to(torch.float8_e4m3fn)
        self.scales_of_all = (self.scales.float() * self.factor).expand_as(groups).flatten(-2)
        sizes = (matrix / self.scales_of_all).nan_to_num()
        self.codes = (sizes.abs().unsqueeze(-1) - self.NUMBERS).abs().argmin(-1) | (sizes < 0).to(torch.int64) << 3

    def matrix(self):
        return self.NUMBERS[self.codes & 7] * (1 - 2 * (self.codes >> 3)) * self.scales_of_all


class Ternary:
    """A matrix of three values (BitNet)."""

    def __init__(self, matrix, said):
        self.scale = matrix.abs().mean().bfloat16().float()
        self.integers = (matrix / self.scale).round().clamp(-1, 1)

    def matrix(self):
        return self.integers * self.scale


class Eights:
    """A matrix of FP8 with a scale per row, rounded to bf16 when it is used."""

    def __init__(self, matrix, said):
        self.scales = (matrix.abs().amax(-1, keepdim=True) / 448).bfloat16()
        self.codes = (matrix / self.scales.float()).to(torch.float8_e4m3fn)

    def matrix(self):
        return (self.codes.float() * self.scales.float()).bfloat16().float()


def packed_eights(base, of):
    return {f"{base}.weight": of.codes, f"{base}.weight_scale": of.scales}


class Fours:
    """A matrix of codes with a scale per 64 numbers, rounded to bf16 when it is used.

    The scales may be codes too (bitsandbytes).
    """

    BLOCK = 64
    NESTED = 256
    NUMBERS = {
        "nf4": torch.tensor([
            -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334, -0.09105003625154495, 0.0,
            0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
        ]),
        "fp4": torch.tensor([0, 0.0625, 8, 12, 4, 6, 2, 3, -0.0, -0.0625, -8, -12, -4, -6, -2, -3]) / 12,
    }  # fmt: skip

    def __init__(self, matrix, said):
        self.kind, self.nested, self.shape = said["bnb_4bit_quant_type"], said["bnb_4bit_use_double_quant"], matrix.shape
        numbers = matrix.flatten()
        blocks = torch.nn.functional.pad(numbers, (0, -len(numbers) % self.BLOCK)).unflatten(0, (-1, self.BLOCK))
        self.scales = blocks.abs().amax(-1)
        if self.nested:
            self.offset = self.scales.mean().item()
            # Finer near zero, like the dynamic type.
            steps = torch.linspace(-1, 1, 256)
            self.nested_numbers = steps * steps.abs()
            rest = self.scales - self.offset
            self.nested_scales = torch.stack([part.abs().amax() for part in rest.split(self.NESTED)])
            of_all = self.nested_scales.repeat_interleave(self.NESTED)[: len(rest)]
            self.nested_codes = ((rest / of_all).unsqueeze(-1) - self.nested_numbers).abs().argmin(-1)
            self.scales = self.nested_numbers[self.nested_codes] * of_all + self.offset
        self.codes = ((blocks / self.scales.unsqueeze(-1)).unsqueeze(-1) - self.NUMBERS[self.kind]).abs().argmin(-1).flatten()[: len(numbers)]

    def matrix(self):
        scales = self.scales.repeat_interleave(self.BLOCK)[: len(self.codes)]
        return (self.NUMBERS[self.kind][self.codes] * scales).bfloat16().float().view(self.shape)


class Largest:
    """A matrix of integers of eight bits. 127 represents the largest magnitude of a row (bitsandbytes)."""

    def __init__(self, matrix, said):
        # A 127th of it is exact in f16.
        self.largest = (matrix.abs().amax(-1, keepdim=True) / 127).half().float() * 127
        self.integers = (matrix * 127 / self.largest).round().clamp(-127, 127)

    def matrix(self):
        return self.integers * (self.largest / 127)


def packed_ternary(base, of):
    """Packs rows that are a quarter of the matrix apart into one byte, the first in its lowest bits."""
    quarters = (of.integers + 1).to(torch.uint8).unflatten(0, (4, -1))
    packed = quarters[0] | quarters[1] << 2 | quarters[2] << 4 | quarters[3] << 6
    return {f"{base}.weight": packed, f"{base}.weight_scale": of.scale.bfloat16().reshape(1)}


def packed_floats(base, of):
    codes = (of.codes[..., 0::2] | of.codes[..., 1::2] << 4).to(torch.uint8)
    scales = of.scales.squeeze(-1)
    if ".experts." in base:
        made = {"weight_packed": codes, "weight_scale": scales, "weight_global_scale": 1 / of.factor.reshape(1)}
    else:
        made = {"weight": codes, "weight_scale": scales, "weight_scale_2": of.factor}
    return {f"{base}.{end}": tensor for end, tensor in made.items()}


def words(integers, bits, order=None):
    """Packs neighbours of the last dimension into words, the first in the lowest bits."""
    each = 32 // bits
    integers = integers.to(torch.int64).unflatten(-1, (-1, each))[..., order or list(range(each))]
    packed = (integers << torch.arange(0, 32, bits)).sum(-1)
    return torch.where(packed >= 2**31, packed - 2**32, packed).to(torch.int32)


def packed_words(base, of):
    shape = torch.tensor(of.integers.shape)
    made = {"weight_packed": words(of.integers, of.bits), "weight_scale": of.scales.squeeze(-1).bfloat16(), "weight_shape": shape}
    if not of.symmetric:
        made["weight_zero_point"] = words(of.zeros.squeeze(-1).T, of.bits).T.contiguous()
    if of.order is not None:
        made["weight_g_idx"] = of.group_of_all.to(torch.int32)
    return {f"{base}.{end}": tensor for end, tensor in made.items()}


def packed_bytes(base, of):
    return {f"{base}.weight": (of.integers - 128).to(torch.int8), f"{base}.weight_scale": of.scales.squeeze(-1).bfloat16()}


def packed_gptq(base, of):
    made = {
        "qweight": words(of.integers, of.bits).T.contiguous(),
        "qzeros": words(of.zeros.squeeze(-1).T - (0 if of.version_2 else 1), of.bits),
        "scales": of.scales.squeeze(-1).T.half().contiguous(),
        "g_idx": of.group_of_all.to(torch.int32),
    }
    return {f"{base}.{end}": tensor for end, tensor in made.items()}


def packed_fours(base, of):
    codes = of.codes.to(torch.uint8)
    state = {"quant_type": of.kind, "blocksize": of.BLOCK, "dtype": "bfloat16", "shape": list(of.shape)}
    made = {"weight": (codes[0::2] << 4 | codes[1::2]).unsqueeze(1), "weight.quant_map": of.NUMBERS[of.kind].clone()}
    if of.nested:
        made |= {"weight.absmax": of.nested_codes.to(torch.uint8), "weight.nested_absmax": of.nested_scales, "weight.nested_quant_map": of.nested_numbers.clone()}
        state |= {"nested_blocksize": of.NESTED, "nested_dtype": "float32", "nested_offset": of.offset}
    else:
        made["weight.absmax"] = of.scales
    made[f"weight.quant_state.bitsandbytes__{of.kind}"] = torch.tensor(list(json.dumps(state).encode()), dtype=torch.uint8)
    return {f"{base}.{end}": tensor for end, tensor in made.items()}


def packed_largest(base, of):
    return {f"{base}.weight": of.integers.to(torch.int8), f"{base}.SCB": of.largest.squeeze(-1), f"{base}.weight_format": torch.tensor(0, dtype=torch.uint8)}


def packed_awq(base, of):
    order = [0, 2, 4, 6, 1, 3, 5, 7]
    made = {
        "qweight": words(of.integers.T, of.bits, order),
        "qzeros": words(of.zeros.squeeze(-1).T, of.bits, order),
        "scales": of.scales.squeeze(-1).T.half().contiguous(),
    }
    return {f"{base}.{end}": tensor for end, tensor in made.items()}


PACKED = {
    "words": (Integers, packed_words),
    "bytes": (Integers, packed_bytes),
    "gptq": (Integers, packed_gptq),
    "awq": (Integers, packed_awq),
    "nvfp4": (Floats, packed_floats),
    "ternary": (Ternary, packed_ternary),
    "fours": (Fours, packed_fours),
    "eights": (Eights, packed_eights),
    "largest": (Largest, packed_largest),
}


def make(name):
    base, decoder, model_type, which, said, how = INTEGERS.get(name, (name, *KIN.get(name, (None, None))[:1], name, None, None, None))
    has_parts = name in KIN and KIN[name][1]
    torch.manual_seed(SEED)
    model = with_parts(name, decoder) if has_parts else AutoModelForCausalLM.from_config(AutoConfig.for_model(base, **decoder))
    model = model.eval()
    generator = torch.Generator().manual_seed(SEED)
    thinker = model.thinker if name in SPEAKING else model
    for part in {thinker, model}:
        if hasattr(part, "set_experts_implementation"):
            # Grouped products do not support f64.
            part.set_experts_implementation("eager")
    golden.randomise(model, generator)
    golden.round_matrices(model)
    folder = HERE / "kin" / name
    model.save_pretrained(folder)
    for file in folder.iterdir():
        if file.name not in ["config.json", "model.safetensors"]:
            file.unlink()
    tensors = load_file(folder / "model.safetensors")
    decoders = ("model.embed_tokens", "model.layers", "model.norm", "lm_head", "model.language_model", "language_model", "model.text_model", "thinker.model", "thinker.lm_head", "transformer")
    others = sorted((tensor.numel(), key) for key, tensor in tensors.items() if not key.startswith(decoders))
    for _, key in others[1:] if has_parts else []:
        del tensors[key]
    if said:
        # The quantised matrices, their packing, and their groups.
        parts = which if isinstance(which, dict) else {which: how}
        parts = {part: of if isinstance(of, tuple) else (of, "group_0") for part, of in parts.items()}
        part_of = {key: next((of for part, of in parts.items() if part in key), None) for key in tensors}
        plain = tuple(said.get("llm_int8_skip_modules") or ())
        quantised = {
            key: PACKED[part_of[key][0]][0](tensors.pop(key), said | {"own": part_of[key][1]})
            for key in list(tensors)
            if part_of[key] and tensors[key].dim() >= 2 and not key.startswith(plain)
        }
        save_file(tensors | {key: of.matrix() for key, of in quantised.items()}, folder / "model.safetensors", {"format": "pt"})
        thinker = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        if hasattr(thinker, "set_experts_implementation"):
            thinker.set_experts_implementation("eager")
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(config | {"model_type": model_type, "quantization_config": said}, indent=2) + "\n")
        for key, of in quantised.items():
            base = key.removesuffix(".weight")
            tensors |= PACKED[part_of[key][0]][1](base, of)
            if how == "gptq" and f"{base}.bias" not in tensors and "zeros" not in name:
                # The first quantisers wrote such biases.
                tensors[f"{base}.bias"] = torch.zeros(of.integers.shape[0]).half()
    halves = {
        key: tensor.half().contiguous() if tensor.dim() >= 2 and tensor.dtype == torch.float32 and not golden.is_taps(key) else tensor
        for key, tensor in tensors.items()
    }
    save_file(halves, folder / "model.safetensors", {"format": "pt"})
    tokens = torch.randint(3, 64, (TOKENS,), generator=generator).tolist()
    with torch.inference_mode():
        exact = thinker.double()(input_ids=torch.tensor([tokens])).logits[0].numpy()
    np.save(HERE / "expect" / f"{name}.npy", exact[-KEPT:].astype(np.float32))
    (HERE / "expect" / f"{name}.json").write_text(json.dumps({"tokens": tokens}) + "\n")
    print(f"{name}: {(folder / 'model.safetensors').stat().st_size} bytes, beside the decoder {len(others)} tensors", flush=True)


def make_unit_columns(name):
    """Makes Ling 1 in its published form.

    The output matrix is normalised when it is used, to columns of length 1. No class of transformers
    does this.
    """
    model, generator = golden.prepared("bailingmoe")
    folder = HERE / "kin" / name
    model.save_pretrained(folder)
    config, tensors = HUB["bailingmoe"](json.loads((folder / "config.json").read_text()), load_file(folder / "model.safetensors"))
    for file in folder.iterdir():
        if file.name not in ["config.json", "model.safetensors"]:
            file.unlink()
    (folder / "config.json").write_text(json.dumps(config | {"norm_head": True}, indent=2) + "\n")
    halves = {key: tensor.half().contiguous() if tensor.dim() >= 2 else tensor.contiguous() for key, tensor in tensors.items()}
    save_file(halves, folder / "model.safetensors", {"format": "pt"})
    tokens = torch.randint(3, 64, (TOKENS,), generator=generator).tolist()
    with torch.inference_mode():
        model = model.double()
        model.lm_head.weight.data /= model.lm_head.weight.data.norm(p=2, dim=0, keepdim=True) + 1e-7
        exact = model(input_ids=torch.tensor([tokens])).logits[0].numpy()
    np.save(HERE / "expect" / f"{name}.npy", exact[-KEPT:].astype(np.float32))
    (HERE / "expect" / f"{name}.json").write_text(json.dumps({"tokens": tokens}) + "\n")
    print(f"{name}: {(folder / 'model.safetensors').stat().st_size} bytes", flush=True)


UNIT_COLUMNS = "bailing_moe-head"
for name in sys.argv[1:] or [*KIN, *INTEGERS, UNIT_COLUMNS]:
    (make_unit_columns if name == UNIT_COLUMNS else make)(name)
