"""Makes a model with sparse attention for measurements of long contexts: few layers, and heads as wide as in real models.

    python long.py ../tests/golden/models/deepseek32.gguf long32.gguf        # DeepSeek-V3.2: attends to 2048 of the earlier positions
    python long.py ../tests/golden/models/deepseek4-chosen.gguf long4.gguf   # DeepSeek-V4: attends to 512 entries of 4 positions each
    ixc bench long32.gguf -p 64 -n 16 -d 8192,32768

Keys and names are those of the golden model, sizes are those below, and weights are random. Attention and index have an
eighth of the heads of real models, so that a context is filled in minutes.
"""

import random
import struct
import sys

F32, F16, I32 = 0, 1, 26
SIZES = {F32: 4, F16: 2, I32: 4}
CODES = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
TEXT, LIST = 8, 9
LAYERS, WIDTH, VOCABULARY = 2, 256, 256
HEADS, INDEX_HEADS, INDEX_KEY, QUERY_RANK = 16, 8, 128, 128


class Latent:
    """Sizes of a model in the form of DeepSeek-V3.2 and GLM-5."""

    rank, turned, still, value, inner, experts, expert_inner = 512, 64, 128, 128, 256, 8, 64
    keys = {
        "block_count": LAYERS,
        "context_length": 163840,
        "embedding_length": WIDTH,
        "feed_forward_length": inner,
        "vocab_size": VOCABULARY,
        "attention.head_count": HEADS,
        "attention.key_length": rank + turned,
        "attention.value_length": rank,
        "attention.q_lora_rank": QUERY_RANK,
        "attention.kv_lora_rank": rank,
        "attention.key_length_mla": still + turned,
        "attention.value_length_mla": value,
        "expert_feed_forward_length": expert_inner,
        "rope.dimension_count": turned,
        "attention.indexer.head_count": INDEX_HEADS,
        "attention.indexer.key_length": INDEX_KEY,
        "attention.indexer.top_k": 2048,
    }
    shapes = {
        "output": [WIDTH, VOCABULARY],
        "token_embd": [WIDTH, VOCABULARY],
        "ffn_down": [inner, WIDTH],
        "ffn_gate": [WIDTH, inner],
        "ffn_up": [WIDTH, inner],
        "indexer.k_norm": [INDEX_KEY],
        "indexer.proj": [WIDTH, INDEX_HEADS],
        "indexer.attn_k": [WIDTH, INDEX_KEY],
        "indexer.attn_q_b": [QUERY_RANK, INDEX_HEADS * INDEX_KEY],
        "attn_kv_a_norm": [rank],
        "attn_kv_a_mqa": [WIDTH, rank + turned],
        "attn_k_b": [still, rank, HEADS],
        "attn_v_b": [rank, value, HEADS],
        "attn_output": [HEADS * value, WIDTH],
        "attn_q_a_norm": [QUERY_RANK],
        "attn_q_a": [WIDTH, QUERY_RANK],
        "attn_q_b": [QUERY_RANK, HEADS * (still + turned)],
        "ffn_down_exps": [expert_inner, WIDTH, experts],
        "ffn_gate_exps": [WIDTH, expert_inner, experts],
        "ffn_up_exps": [WIDTH, expert_inner, experts],
        "exp_probs_b": [experts],
        "ffn_gate_inp": [WIDTH, experts],
        "ffn_down_shexp": [expert_inner, WIDTH],
        "ffn_gate_shexp": [WIDTH, expert_inner],
        "ffn_up_shexp": [WIDTH, expert_inner],
    }


class Entries:
    """Sizes of a model in the form of DeepSeek-V4, whose second layer attends only to its window."""

    head, groups, rank, inner, experts, streams, mixes = 512, 2, 64, 64, 4, 4, 24
    keys = {
        "block_count": LAYERS,
        "context_length": 262144,
        "embedding_length": WIDTH,
        "vocab_size": VOCABULARY,
        "attention.head_count": HEADS,
        "attention.key_length": head,
        "attention.value_length": head,
        "attention.q_lora_rank": QUERY_RANK,
        "attention.sliding_window": 128,
        "attention.output_lora_rank": rank,
        "attention.compress_ratios": (5, [4, 0]),
        "attention.indexer.head_count": INDEX_HEADS,
        "attention.indexer.key_length": INDEX_KEY,
        "attention.indexer.top_k": 512,
        "rope.dimension_count": 64,
        "expert_feed_forward_length": inner,
        "swiglu_clamp_exp": (6, [1.0] * LAYERS),
        "swiglu_clamp_shexp": (6, [1.0] * LAYERS),
    }
    shapes = {
        "token_embd": [WIDTH, VOCABULARY],
        "output": [WIDTH, VOCABULARY],
        "output_hc_fn": [streams * WIDTH, streams],
        "output_hc_base": [streams],
        "output_hc_scale": [1],
        "attn_sinks": [HEADS],
        "attn_q_a": [WIDTH, QUERY_RANK],
        "attn_q_a_norm": [QUERY_RANK],
        "attn_q_b": [QUERY_RANK, HEADS * head],
        "attn_kv": [WIDTH, head],
        "attn_kv_a_norm": [head],
        "attn_output_a": [HEADS * head // groups, groups * rank],
        "attn_output_b": [groups * rank, WIDTH],
        "ffn_gate_inp": [WIDTH, experts],
        "ffn_gate_exps": [WIDTH, inner, experts],
        "ffn_up_exps": [WIDTH, inner, experts],
        "ffn_down_exps": [inner, WIDTH, experts],
        "ffn_gate_shexp": [WIDTH, inner],
        "ffn_up_shexp": [WIDTH, inner],
        "ffn_down_shexp": [inner, WIDTH],
        "ffn_gate_tid2eid": [2, VOCABULARY],
        "attn_compressor_kv": [WIDTH, 2 * head],
        "attn_compressor_gate": [WIDTH, 2 * head],
        "attn_compressor_ape": [2 * head, 4],
        "attn_compressor_norm": [head],
        "indexer_compressor_kv": [WIDTH, 2 * INDEX_KEY],
        "indexer_compressor_gate": [WIDTH, 2 * INDEX_KEY],
        "indexer_compressor_ape": [2 * INDEX_KEY, 4],
        "indexer_compressor_norm": [INDEX_KEY],
        "indexer.attn_q_b": [QUERY_RANK, INDEX_HEADS * INDEX_KEY],
        "indexer.proj": [WIDTH, INDEX_HEADS],
        "exp_probs_b": [experts],
        "hc_attn_fn": [streams * WIDTH, mixes],
        "hc_attn_base": [mixes],
        "hc_attn_scale": [3],
        "hc_ffn_fn": [streams * WIDTH, mixes],
        "hc_ffn_base": [mixes],
        "hc_ffn_scale": [3],
    }


SHAPES = {"deepseek32": Latent, "glm-dsa": Latent, "deepseek4": Entries}


def read(path):
    """Returns the keys of a GGUF file with their values, and its tensors with their types."""
    with open(path, "rb") as file:

        def number(code):
            return struct.unpack("<" + code, file.read(struct.calcsize("<" + code)))[0]

        def text():
            return file.read(number("Q")).decode()

        def value(kind):
            if kind == TEXT:
                return text()
            if kind == LIST:
                inner, count = number("I"), number("Q")
                return inner, [value(inner) for _ in range(count)]
            return number(CODES[kind])

        file.read(8)
        tensors, keys = number("Q"), number("Q")
        keys = [(text(), kind := number("I"), value(kind)) for _ in range(keys)]
        names = []
        for _ in range(tensors):
            name = text()
            [number("Q") for _ in range(number("I"))]
            names.append((name, number("I")))
            number("Q")
        return keys, names


def main(template, path):
    keys, names = read(template)
    architecture = next(value for key, _, value in keys if key == "general.architecture")
    sizes = SHAPES[architecture]
    names = [(name, kind) for name, kind in names if not name.startswith("blk.") or int(name.split(".")[1]) < LAYERS]

    def shape(name):
        part = name.removesuffix(".weight").removesuffix(".bias")
        part = part.split(".", 2)[2] if part.startswith("blk.") else part
        return sizes.shapes.get(part, [WIDTH])

    draw = random.Random(1)
    normal = [draw.gauss(0, 1) for _ in range(65537)]
    with open(path, "wb") as file:

        def number(code, *values):
            file.write(struct.pack("<" + code, *values))

        def text(value):
            number("Q", len(value.encode()))
            file.write(value.encode())

        def put(kind, value):
            if kind == TEXT:
                text(value)
            elif kind == LIST:
                number("IQ", value[0], len(value[1]))
                for item in value[1]:
                    put(value[0], item)
            else:
                number(CODES[kind], value)

        file.write(b"GGUF")
        number("IQQ", 3, len(names), len(keys))
        for key, kind, value in keys:
            part = key.removeprefix(architecture + ".")
            # Every layer of GLM-5 has an index of its own here.
            value = (7, [True] * LAYERS) if part == "attention.indexer.types" else sizes.keys.get(part, value)
            text(key)
            number("I", kind)
            put(kind, value)
        offset = 0
        for name, kind in names:
            dims, count = shape(name), 1
            text(name)
            number("I", len(dims))
            for dim in dims:
                number("Q", dim)
                count *= dim
            number("IQ", kind, offset)
            offset += (count * SIZES[kind] + 31) // 32 * 32
        file.write(bytes(-file.tell() % 32))
        for name, kind in names:
            dims, count = shape(name), 1
            for dim in dims:
                count *= dim
            if kind == I32:
                # Two experts of four for each token.
                number(f"{count}i", *((i + i // 2) % 4 for i in range(count)))
            else:
                scale, mean = (dims[0] ** -0.5, 0) if len(dims) > 1 else (0.1, 0 if name.endswith(".bias") else 1)
                first = draw.randrange(len(normal))
                values = (mean + scale * normal[(first + i * 7) % len(normal)] for i in range(count))
                number(f"{count}{'f' if kind == F32 else 'e'}", *values)
            file.write(bytes(-file.tell() % 32))


main(*sys.argv[1:])
