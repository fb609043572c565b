"""Makes a small DeepSeek-V4 whose tokens choose compressed entries, and its logits in f64 from the weights of the file.

    pip install numpy gguf          # gguf 0.19 or later
    python entries.py

The formula is that of the report (DeepSeek-AI, "DeepSeek-V4", 2026, 2.3): a token chooses among the entries that are
complete at its position. transformers chooses among all entries of a prompt. Before this program writes a file, it
computes `deepseek4` of this folder with the same code. All tokens of that model see all entries, and transformers
computed its logits.

    score(t, s) = sum over heads of w_h relu(q_h . k_s),   s < (t + 1) div 4
    attention of t over its window and the top_k entries of the highest scores, the first of equal ones, in one softmax

If two scores are nearly equal, an index with keys in f16 could choose another entry. Therefore the program tries many
seeds and takes the one with the largest gap between scores. Sizes are such that llama.cpp also accepts the model
(`compare.py`).
"""

import json
from pathlib import Path

import gguf
import numpy as np

OUT = Path(__file__).resolve().parent.parent
NAME, KNOWN = "deepseek4-chosen", "deepseek4"
SEEDS = range(120)
TOKENS, KEPT = 140, 24
# Entries of 4 positions overlap. Tokens choose among them.
CHOSEN_RATIO = 4

WIDTH, VOCABULARY, HEADS, HEAD, TURNED, QUERY_RANK = 32, 64, 4, 16, 8, 16
GROUPS, OUTPUT_RANK, EXPERTS, USED, INNER, STREAMS = 2, 12, 4, 2, 16, 4
RATIOS = [4, 0, 4, 128]
INDEX_HEADS, INDEX_KEY = 4, 64
KEYS = {
    "block_count": len(RATIOS),
    "context_length": 512,
    "embedding_length": WIDTH,
    "vocab_size": VOCABULARY,
    "attention.head_count": HEADS,
    "attention.head_count_kv": 1,
    "attention.key_length": HEAD,
    "attention.value_length": HEAD,
    "attention.layer_norm_rms_epsilon": 1e-5,
    "attention.q_lora_rank": QUERY_RANK,
    "attention.sliding_window": 10,
    "attention.output_group_count": GROUPS,
    "attention.output_lora_rank": OUTPUT_RANK,
    "attention.compress_ratios": RATIOS,
    "attention.compress_rope_freq_base": 160000.0,
    "attention.indexer.head_count": INDEX_HEADS,
    "attention.indexer.key_length": INDEX_KEY,
    "attention.indexer.top_k": 5,
    "rope.dimension_count": TURNED,
    "rope.freq_base": 10000.0,
    "rope.scaling.type": "yarn",
    "rope.scaling.factor": 4.0,
    "rope.scaling.original_context_length": 64,
    "rope.scaling.yarn_beta_fast": 32.0,
    "rope.scaling.yarn_beta_slow": 1.0,
    "expert_count": EXPERTS,
    "expert_used_count": USED,
    "expert_feed_forward_length": INNER,
    "expert_shared_count": 1,
    "expert_weights_scale": 1.5,
    "expert_weights_norm": True,
    "expert_gating_func": 4,
    "swiglu_clamp_exp": [1.0] * len(RATIOS),
    "swiglu_clamp_shexp": [1.0] * len(RATIOS),
    "hyper_connection.count": STREAMS,
    "hyper_connection.sinkhorn_iterations": 5,
    "hyper_connection.epsilon": 1e-3,
    "hash_layer_count": 1,
}


def random_tensors(random):
    def matrix(*shape):
        return random.normal(0, 1 / shape[-1] ** 0.5, shape)

    def vector(length, mean=1.0, deviation=0.2):
        return random.normal(mean, deviation, length)

    def compressor(name, length):
        return {
            f"{name}_kv": matrix(series * length, WIDTH),
            f"{name}_gate": 2 * matrix(series * length, WIDTH),
            f"{name}_ape": random.normal(0, 1, (ratio, series * length)),
            f"{name}_norm": vector(length),
        }

    mixes = (2 + STREAMS) * STREAMS
    tensors = {
        "token_embd": random.normal(0, 1, (VOCABULARY, WIDTH)),
        "output_norm": vector(WIDTH),
        "output": matrix(VOCABULARY, WIDTH),
        "output_hc_fn": matrix(STREAMS, STREAMS * WIDTH),
        "output_hc_base": vector(STREAMS, 0, 0.5),
        "output_hc_scale": vector(1),
    }
    for layer, ratio in enumerate(RATIOS):
        own = {
            "attn_norm": vector(WIDTH),
            "ffn_norm": vector(WIDTH),
            "attn_sinks": vector(HEADS, 0, 1),
            "attn_q_a": matrix(QUERY_RANK, WIDTH),
            "attn_q_a_norm": vector(QUERY_RANK),
            "attn_q_b": matrix(HEADS * HEAD, QUERY_RANK),
            "attn_kv": matrix(HEAD, WIDTH),
            "attn_kv_a_norm": vector(HEAD),
            "attn_output_a": matrix(GROUPS * OUTPUT_RANK, HEADS * HEAD // GROUPS),
            "attn_output_b": matrix(WIDTH, GROUPS * OUTPUT_RANK),
            "ffn_gate_inp": matrix(EXPERTS, WIDTH),
            "ffn_gate_exps": matrix(EXPERTS, INNER, WIDTH),
            "ffn_up_exps": matrix(EXPERTS, INNER, WIDTH),
            "ffn_down_exps": matrix(EXPERTS, WIDTH, INNER),
            "ffn_gate_shexp": matrix(INNER, WIDTH),
            "ffn_up_shexp": matrix(INNER, WIDTH),
            "ffn_down_shexp": matrix(WIDTH, INNER),
        }
        if layer < KEYS["hash_layer_count"]:
            own["ffn_gate_tid2eid"] = random.permuted(np.tile(np.arange(EXPERTS), (VOCABULARY, 1)), axis=1)[:, :USED].astype(np.int32)
        else:
            own["exp_probs_b.bias"] = vector(EXPERTS, 0, 0.1)
        if ratio:
            series = 2 if ratio == CHOSEN_RATIO else 1
            own |= compressor("attn_compressor", HEAD)
        if ratio == CHOSEN_RATIO:
            own |= compressor("indexer_compressor", INDEX_KEY)
            own["indexer.attn_q_b"] = matrix(INDEX_HEADS * INDEX_KEY, QUERY_RANK)
            own["indexer.proj"] = matrix(INDEX_HEADS, WIDTH)
        for part in ("attn", "ffn"):
            own[f"hc_{part}_fn"] = matrix(mixes, STREAMS * WIDTH)
            own[f"hc_{part}_base"] = vector(mixes, 0, 0.5)
            own[f"hc_{part}_scale"] = vector(3)
        tensors |= {f"blk.{layer}.{name}": value for name, value in own.items()}
    # One element is equal in all tokens, so that most heads of the index have scores above 0.
    # Programs differ in their choice among equal scores of 0.
    tensors["token_embd"][:, 0] = 3
    for name in [name for name in tensors if name.endswith("indexer.proj")]:
        tensors[name][:, 0] += 1
    return {name + ("" if name.endswith(".bias") else ".weight"): value for name, value in tensors.items()}


def stored(tensors):
    """Returns tensors in the types of the file: f16, or f32 for vectors and small tensors."""

    def single(name, value):
        return value.ndim < 2 or "_ape." in name or "hc_" in name

    def of(name, value):
        return value if value.dtype == np.int32 else value.astype(np.float32 if single(name, value) else np.float16)

    return {name: of(name, value) for name, value in tensors.items()}


def write(path, keys, tensors):
    writer = gguf.GGUFWriter(path, "deepseek4")
    writer.add_tokenizer_model("none")
    for key, value in keys.items():
        key = f"deepseek4.{key}"
        match value:
            case bool():
                writer.add_bool(key, value)
            case int():
                writer.add_uint32(key, value)
            case float():
                writer.add_float32(key, value)
            case str():
                writer.add_string(key, value)
            case list():
                writer.add_array(key, value)
    for name, value in tensors.items():
        writer.add_tensor(name, value)
    writer.write_header_to_file(), writer.write_kv_data_to_file(), writer.write_tensors_to_file(), writer.close()


def read(path):
    """Returns keys and tensors of a file."""
    reader = gguf.GGUFReader(path)
    begin = "deepseek4."
    keys = {name.removeprefix(begin): field.contents() for name, field in reader.fields.items() if name.startswith(begin)}
    return keys, {tensor.name: tensor.data for tensor in reader.tensors}


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def softmax(x, axis=-1):
    weights = np.exp(x - x.max(axis, keepdims=True))
    return weights / weights.sum(axis, keepdims=True)


class Model:
    """Computes the model from the keys and weights of a file."""

    def __init__(self, keys, tensors):
        self.keys = keys
        self.tensors = {name: data if data.dtype == np.int32 else data.astype(np.float64) for name, data in tensors.items()}
        self.ratios = keys["attention.compress_ratios"]
        # Smallest gap between a chosen and a rejected score, relative to the largest score.
        self.gap = np.inf

    def norm(self, x, weight=1.0):
        return x / np.sqrt((x**2).mean(-1, keepdims=True) + np.float32(self.keys["attention.layer_norm_rms_epsilon"])) * weight

    def frequencies(self, ratio):
        keys, dims = self.keys, self.keys["rope.dimension_count"]
        base = keys["attention.compress_rope_freq_base"] if ratio else keys["rope.freq_base"]
        plain = base ** (-2 * np.arange(dims // 2) / dims)
        if not ratio:
            return plain

        def turns(beta):
            return dims * np.log(keys["rope.scaling.original_context_length"] / (beta * 2 * np.pi)) / (2 * np.log(base))

        low = max(np.floor(turns(keys["rope.scaling.yarn_beta_fast"])), 0)
        high = min(np.ceil(turns(keys["rope.scaling.yarn_beta_slow"])), dims - 1)
        slowed = np.clip((np.arange(dims // 2) - low) / max(high - low, 0.001), 0, 1)
        return plain * (1 - slowed) + plain / keys["rope.scaling.factor"] * slowed

    def turn(self, x, positions, ratio):
        """Rotates the last elements of heads `[rows, heads, length]`, in pairs of neighbours."""
        dims = self.keys["rope.dimension_count"]
        angles = positions[:, None, None] * self.frequencies(ratio)
        a, b = x[..., -dims::2], x[..., -dims + 1 :: 2]
        y = x.copy()
        y[..., -dims::2] = a * np.cos(angles) - b * np.sin(angles)
        y[..., -dims + 1 :: 2] = a * np.sin(angles) + b * np.cos(angles)
        return y

    def mixed(self, name, streams):
        """Returns the weights of a half-layer's hyper-connection: those of its input and of its
        output, and the matrix.
        """
        count, eps = self.keys["hyper_connection.count"], np.float32(self.keys["hyper_connection.epsilon"])
        fn, base, scale = (self.tensors[f"{name}_{part}.weight"] for part in ("fn", "base", "scale"))
        x = self.norm(streams.reshape(len(streams), -1)) @ fn.T
        if len(scale) == 1:
            return sigmoid(x * scale + base) + eps
        x = x * np.repeat(scale, [count, count, count * count]) + base
        matrix = softmax(x[:, 2 * count :].reshape(-1, count, count)) + eps
        for iteration in range(self.keys["hyper_connection.sinkhorn_iterations"]):
            if iteration:
                matrix = matrix / (matrix.sum(2, keepdims=True) + eps)
            matrix = matrix / (matrix.sum(1, keepdims=True) + eps)
        return sigmoid(x[:, :count]) + eps, 2 * sigmoid(x[:, count : 2 * count]), matrix

    def around(self, name, streams, block):
        before, behind, matrix = self.mixed(name, streams)
        y = block(np.einsum("tn,tnd->td", before, streams))
        return behind[:, :, None] * y[:, None, :] + np.einsum("tjk,tjd->tkd", matrix, streams)

    def entries(self, layer, name, h, length):
        """Returns all complete entries of rows, `[entries, length]`, rotated."""
        ratio = self.ratios[layer]
        kv, gate, ape, weight = (self.tensors[f"blk.{layer}.{name}_{part}.weight"] for part in ("kv", "gate", "ape", "norm"))
        count = len(h) // ratio
        kv, gate = (rows[: count * ratio].reshape(count, ratio, -1) for rows in (h @ kv.T, h @ gate.T))
        gate = gate + ape
        if ratio == CHOSEN_RATIO:
            # First halves come from the previous entry, second halves from the entry itself.
            nothing = np.zeros((1, ratio, length))
            kv = np.concatenate([np.concatenate([nothing, kv[:-1, :, :length]]), kv[:, :, length:]], axis=1)
            gate = np.concatenate([np.concatenate([nothing - np.inf, gate[:-1, :, :length]]), gate[:, :, length:]], axis=1)
        made = self.norm((softmax(gate, 1) * kv).sum(1), weight)
        return self.turn(made[:, None], np.arange(count) * ratio, ratio)[:, 0]

    def chosen(self, layer, h, row, whole):
        """Returns the complete entries to which each row attends."""
        heads, length, top_k = (self.keys[f"attention.indexer.{key}"] for key in ("head_count", "key_length", "top_k"))
        q, w = (self.tensors[f"blk.{layer}.indexer.{part}.weight"] for part in ("attn_q_b", "proj"))
        q = self.turn((row @ q.T).reshape(len(h), heads, length), np.arange(len(h)), self.ratios[layer])
        keys = self.entries(layer, "indexer_compressor", h, length)
        scores = np.einsum("thk,th->tk", np.maximum(np.einsum("thd,kd->thk", q, keys), 0), h @ w.T)
        sees = np.zeros(scores.shape, bool)
        for t, count in enumerate(whole):
            order = np.argsort(-scores[t, :count], kind="stable")
            sees[t, order[:top_k]] = True
            if count > top_k:
                last, next = scores[t, order[top_k - 1 : top_k + 1]]
                self.gap = min(self.gap, (last - next) / np.abs(scores[t, :count]).max())
        return sees

    def attention(self, layer, x):
        keys, ratio = self.keys, self.ratios[layer]
        heads, length, groups = keys["attention.head_count"], keys["attention.key_length"], keys["attention.output_group_count"]
        positions = np.arange(len(x))

        def w(name):
            return self.tensors[f"blk.{layer}.{name}.weight"]

        h = self.norm(x, w("attn_norm"))
        row = self.norm(h @ w("attn_q_a").T, w("attn_q_a_norm"))
        q = self.turn(self.norm((row @ w("attn_q_b").T).reshape(len(h), heads, length)), positions, ratio)
        kv = self.norm(h @ w("attn_kv").T, w("attn_kv_a_norm"))
        kv = self.turn(kv[:, None], positions, ratio)[:, 0]
        behind = positions[:, None] - positions[None, :]
        sees = (behind >= 0) & (behind < keys["attention.sliding_window"])
        if ratio:
            entries, whole = self.entries(layer, "attn_compressor", h, length), (positions + 1) // ratio
            seen = np.arange(len(entries)) < whole[:, None]
            if ratio == CHOSEN_RATIO:
                seen &= self.chosen(layer, h, row, whole)
            kv, sees = np.concatenate([kv, entries]), np.concatenate([sees, seen], axis=1)
        scores = np.einsum("thd,kd->thk", q, kv) / length**0.5
        scores = np.where(sees[:, None], scores, -np.inf)
        sinks = np.broadcast_to(w("attn_sinks")[None, :, None], (len(h), heads, 1))
        weights = softmax(np.concatenate([scores, sinks], axis=2))[..., :-1]
        y = self.turn(np.einsum("thk,kd->thd", weights, kv), -positions, ratio)
        matrices = w("attn_output_a").reshape(groups, keys["attention.output_lora_rank"], -1)
        y = np.einsum("tgi,goi->tgo", y.reshape(len(h), groups, -1), matrices).reshape(len(h), -1)
        return y @ w("attn_output_b").T

    def experts(self, layer, x, tokens):
        keys = self.keys

        def w(name):
            return self.tensors[f"blk.{layer}.{name}.weight"]

        def network(h, gate, up, down, limit):
            gate, up = np.minimum(h @ gate.T, limit), np.clip(h @ up.T, -limit, limit)
            return (gate * sigmoid(gate) * up) @ down.T

        parts = ("gate", "up", "down")
        h = self.norm(x, w("ffn_norm"))
        scores = np.sqrt(np.log1p(np.exp(h @ w("ffn_gate_inp").T)))
        if layer < keys["hash_layer_count"]:
            chosen = w("ffn_gate_tid2eid")[tokens]
        else:
            biased = scores + self.tensors[f"blk.{layer}.exp_probs_b.bias"]
            chosen = np.argsort(-biased, axis=-1, kind="stable")[:, : keys["expert_used_count"]]
        y = network(h, *(w(f"ffn_{part}_shexp") for part in parts), keys["swiglu_clamp_shexp"][layer])
        matrices = [w(f"ffn_{part}_exps") for part in parts]
        for t, ids in enumerate(chosen):
            weights = scores[t, ids] / scores[t, ids].sum() * keys["expert_weights_scale"]
            for weight, expert in zip(weights, ids):
                y[t] += weight * network(h[t], *(of[expert] for of in matrices), keys["swiglu_clamp_exp"][layer])
        return y

    def logits(self, tokens):
        x = self.tensors["token_embd.weight"][tokens]
        x = np.repeat(x[:, None], self.keys["hyper_connection.count"], axis=1)
        for layer in range(self.keys["block_count"]):
            x = self.around(f"blk.{layer}.hc_attn", x, lambda h: self.attention(layer, h))
            x = self.around(f"blk.{layer}.hc_ffn", x, lambda h: self.experts(layer, h, tokens))
        x = np.einsum("tn,tnd->td", self.mixed("output_hc", x), x)
        return self.norm(x, self.tensors["output_norm.weight"]) @ self.tensors["output.weight"].T


def check():
    """Checks that this code reproduces the logits of transformers."""
    expect = json.loads((OUT / f"expect/{KNOWN}.json").read_text())
    known = np.load(OUT / expect["logits"]).astype(np.float64)
    model = Model(*read(OUT / expect["model"]))
    logits = model.logits(np.array(expect["prompt_tokens"]))[-len(known) :]
    error = ((logits - known) ** 2).sum() / (known**2).sum()
    print(f"{KNOWN}: {error:.1e} from what transformers computed")
    assert error < 1e-11


def made(seed):
    random = np.random.default_rng(seed)
    tensors = stored(random_tensors(random))
    tokens = random.integers(0, VOCABULARY, TOKENS)
    model = Model(KEYS, tensors)
    return model.logits(tokens), model.gap, tensors, tokens


def main():
    check()
    seed = max(SEEDS, key=lambda seed: made(seed)[1])
    logits, gap, tensors, tokens = made(seed)
    path = OUT / f"models/{NAME}.gguf"
    write(path, KEYS, tensors)
    # The file contains the same numbers.
    assert np.array_equal(Model(*read(path)).logits(tokens), logits)
    everything = Model(KEYS | {"attention.indexer.top_k": TOKENS}, tensors).logits(tokens)
    missed = ((everything - logits)[-KEPT:] ** 2).sum() / (logits[-KEPT:] ** 2).sum()
    print(f"{NAME}: seed {seed}, {path.stat().st_size} bytes; scores {gap:.1e} apart; without choice an error of {missed:.1e}")
    np.save(OUT / f"expect/{NAME}.npy", logits[-KEPT:].astype(np.float32))
    expect = {
        "model": f"models/{NAME}.gguf",
        "architecture": "deepseek4",
        "prompt_tokens": [int(token) for token in tokens],
        "logits": f"expect/{NAME}.npy",
        "interpreter_nmse_max": 1e-9,
        "compiled_nmse_max": 1e-7,
    }
    (OUT / f"expect/{NAME}.json").write_text(json.dumps(expect) + "\n")


if __name__ == "__main__":
    main()
