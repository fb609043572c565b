#!/usr/bin/env python3
"""Writes GGUF files with the shape of a published model and holes in place of its weights.

    python3 examples/shapes.py deepseek-v3 q8_0 deepseek-v3.gguf
    ixc simulate deepseek-v3.gguf --ranks 8

A file has all keys and tensors of the model, except its vocabulary. It takes a few kilobytes on
the drive, on file systems with sparse files. Shapes are those of the published `config.json`.
Norms, routers and biases are f32, and all other tensors have the requested format.
"""

import struct
import sys

# Format: id of llama.cpp, elements of a block, bytes of a block.
FORMATS = {"f32": (0, 1, 4), "f16": (1, 1, 2), "bf16": (30, 1, 2), "q8_0": (8, 32, 34), "q4_k": (12, 256, 144)}

DEEPSEEK_V3 = dict(
    architecture="deepseek2", layers=61, width=7168, heads=128, kv_heads=1, inner=18432, vocabulary=129280,
    context=163840, rope_base=1e4, query_rank=1536, rank=512, plain=128, rotated=64, value=128,
    dense_layers=3, experts=256, used=8, expert_inner=2048, shared=1, groups=8, groups_kept=4, scale=2.5,
)
SHAPES = {
    # huggingface.co/deepseek-ai/DeepSeek-V3, and DeepSeek-R1
    "deepseek-v3": DEEPSEEK_V3,
    # huggingface.co/moonshotai/Kimi-K2-Instruct
    "kimi-k2": DEEPSEEK_V3 | dict(
        heads=64, vocabulary=163840, context=131072, rope_base=5e4, dense_layers=1, experts=384, groups=1,
        groups_kept=1, scale=2.827,
    ),
    # huggingface.co/Qwen/Qwen3-235B-A22B
    "qwen3-235b": dict(
        architecture="qwen3moe", layers=94, width=4096, heads=64, kv_heads=4, head=128, inner=12288,
        vocabulary=151936, context=40960, rope_base=1e6, experts=128, used=8, expert_inner=1536,
    ),
    # huggingface.co/Qwen/Qwen-72B
    "qwen-72b": dict(
        architecture="qwen2", layers=80, width=8192, heads=64, kv_heads=64, head=128, inner=24576,
        vocabulary=152064, context=32768, rope_base=1e6,
    ),
}


def keys(name, shape):
    """Returns the keys: name, value. Integers are u32, and floats f32."""
    own = {
        "block_count": shape["layers"],
        "context_length": shape["context"],
        "embedding_length": shape["width"],
        "feed_forward_length": shape["inner"],
        "attention.head_count": shape["heads"],
        "attention.head_count_kv": shape["kv_heads"],
        "attention.layer_norm_rms_epsilon": 1e-6,
        "rope.freq_base": shape["rope_base"],
        "vocab_size": shape["vocabulary"],
    }
    if "head" in shape:
        own |= {"attention.key_length": shape["head"], "attention.value_length": shape["head"]}
    if "rank" in shape:
        own |= {
            "attention.q_lora_rank": shape["query_rank"],
            "attention.kv_lora_rank": shape["rank"],
            "attention.key_length": shape["rank"] + shape["rotated"],
            "attention.value_length": shape["rank"],
            "attention.key_length_mla": shape["plain"] + shape["rotated"],
            "attention.value_length_mla": shape["value"],
            "rope.dimension_count": shape["rotated"],
        }
    if "experts" in shape:
        own |= {
            "expert_count": shape["experts"],
            "expert_used_count": shape["used"],
            "expert_feed_forward_length": shape["expert_inner"],
        }
    if "shared" in shape:
        own |= {
            "leading_dense_block_count": shape["dense_layers"],
            "expert_shared_count": shape["shared"],
            "expert_group_count": shape["groups"],
            "expert_group_used_count": shape["groups_kept"],
            "expert_gating_func": 2,
            "expert_weights_norm": True,
            "expert_weights_scale": shape["scale"],
        }
    architecture = shape["architecture"]
    return {"general.architecture": architecture, "general.name": name} | {
        f"{architecture}.{key}": value for key, value in own.items()
    }


def tensors(shape):
    """Returns the tensors: name, dims (columns first), whether they are f32."""
    width, heads = shape["width"], shape["heads"]
    yield "token_embd.weight", [width, shape["vocabulary"]], False
    for layer in range(shape["layers"]):
        parts = [("attn_norm.weight", [width], True), *attention(shape), ("ffn_norm.weight", [width], True)]
        if "experts" in shape and layer >= shape.get("dense_layers", 0):
            parts += experts(shape)
        else:
            parts += network("", width, shape["inner"])
        for name, dims, precise in parts:
            yield f"blk.{layer}.{name}", dims, precise
    yield "output_norm.weight", [width], True
    yield "output.weight", [width, shape["vocabulary"]], False


def attention(shape):
    width, heads = shape["width"], shape["heads"]
    if "rank" in shape:
        rank, query_rank = shape["rank"], shape["query_rank"]
        return [
            ("attn_q_a.weight", [width, query_rank], False),
            ("attn_q_a_norm.weight", [query_rank], True),
            ("attn_q_b.weight", [query_rank, heads * (shape["plain"] + shape["rotated"])], False),
            ("attn_kv_a_mqa.weight", [width, rank + shape["rotated"]], False),
            ("attn_kv_a_norm.weight", [rank], True),
            ("attn_k_b.weight", [shape["plain"], rank, heads], False),
            ("attn_v_b.weight", [rank, shape["value"], heads], False),
            ("attn_output.weight", [heads * shape["value"], width], False),
        ]
    head, keys_width = shape["head"], shape["kv_heads"] * shape["head"]
    parts = [
        ("attn_q.weight", [width, heads * head], False),
        ("attn_k.weight", [width, keys_width], False),
        ("attn_v.weight", [width, keys_width], False),
        ("attn_output.weight", [heads * head, width], False),
    ]
    if shape["architecture"] == "qwen3moe":
        parts += [("attn_q_norm.weight", [head], True), ("attn_k_norm.weight", [head], True)]
    if shape["architecture"] == "qwen2":
        parts += [
            ("attn_q.bias", [heads * head], True),
            ("attn_k.bias", [keys_width], True),
            ("attn_v.bias", [keys_width], True),
        ]
    return parts


def experts(shape):
    width, inner, count = shape["width"], shape["expert_inner"], shape["experts"]
    parts = [
        ("ffn_gate_inp.weight", [width, count], True),
        ("ffn_gate_exps.weight", [width, inner, count], False),
        ("ffn_up_exps.weight", [width, inner, count], False),
        ("ffn_down_exps.weight", [inner, width, count], False),
    ]
    if "shared" in shape:
        parts += [("exp_probs_b.bias", [count], True), *network("_shexp", width, inner * shape["shared"])]
    return parts


def network(suffix, width, inner):
    return [
        (f"ffn_gate{suffix}.weight", [width, inner], False),
        (f"ffn_up{suffix}.weight", [width, inner], False),
        (f"ffn_down{suffix}.weight", [inner, width], False),
    ]


def text(value):
    return struct.pack("<Q", len(value)) + value.encode()


def key_value(value):
    if isinstance(value, bool):
        return struct.pack("<I?", 7, value)
    if isinstance(value, int):
        return struct.pack("<II", 4, value)
    if isinstance(value, float):
        return struct.pack("<If", 6, value)
    return struct.pack("<I", 8) + text(value)


def write(name, quantised, path):
    """Writes the file."""
    shape = SHAPES[name]
    infos, offset = [], 0
    for tensor, dims, precise in tensors(shape):
        identifier, block, block_bytes = FORMATS["f32" if precise else quantised]
        # Rows that are no multiple of a block are f16, as llama.cpp's quantiser leaves them.
        if dims[0] % block:
            identifier, block, block_bytes = FORMATS["f16"]
        infos.append(text(tensor) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, identifier, offset))
        elements = 1
        for dim in dims:
            elements *= dim
        offset += -(-elements // block * block_bytes // 32) * 32
    pairs = [text(key) + key_value(value) for key, value in keys(name, shape).items()]
    header = struct.pack("<4sIQQ", b"GGUF", 3, len(infos), len(pairs)) + b"".join(pairs) + b"".join(infos)
    header += bytes(-len(header) % 32)
    with open(path, "xb") as file:
        file.write(header)
        file.truncate(len(header) + offset)


def main():
    if len(sys.argv) != 4 or sys.argv[1] not in SHAPES or sys.argv[2] not in FORMATS:
        sys.exit(f"usage: shapes.py {'|'.join(SHAPES)} {'|'.join(FORMATS)} OUTPUT.gguf")
    write(*sys.argv[1:])


if __name__ == "__main__":
    main()
