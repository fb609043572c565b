"""Makes a small Kimi K3, and its logits in f64 from the weights of the file. transformers does not have this model.

    pip install numpy gguf          # gguf 0.19 or later
    python residuals.py

The formulas are those of the reports (Kimi Team, "Kimi Linear", 2025, and "Attention Residuals", 2026) and of
llama.cpp's `kimi-k3.cpp`. Before this program writes a file, it computes `kimi-linear` of this folder with the same
code. transformers computed the logits of that model. Except for gates, its linear attention, latent attention and
experts are the same.

    a layer's input: the sum of all streams that the row kept and of its own, by a softmax of w . norm(stream)
    gate of a network: beta tanh(g / beta) sigmoid(g) * lambda tanh(u / lambda)
"""

import json
from pathlib import Path

import gguf
import numpy as np

OUT = Path(__file__).resolve().parent.parent
NAME, ARCHITECTURE, KNOWN = "kimi-k3", "kimi-k3", "kimi-linear"
SEED, TOKENS, KEPT = 20261126, 140, 24
# Added to the squared lengths of queries and keys of linear attention (flash-linear-attention). It
# equals the epsilon of norms here, because llama.cpp uses that.
LENGTH_EPS = 1e-6

WIDTH, VOCABULARY, HEADS, HEAD, TAPS = 32, 64, 4, 16, 4
QUERY_RANK, RANK, STILL, REST, VALUE = 24, 32, 16, 8, 24
EXPERTS, USED, INNER, LATENT, DENSE = 5, 2, 16, 24, 40
ATTENDS = [0, 0, 1, 0, 1, 0]
KEYS = {
    "block_count": len(ATTENDS),
    "context_length": 512,
    "embedding_length": WIDTH,
    "feed_forward_length": DENSE,
    "vocab_size": VOCABULARY,
    "attention.head_count": HEADS,
    "attention.head_count_kv": ATTENDS,
    "attention.layer_norm_rms_epsilon": 1e-6,
    "attention.q_lora_rank": QUERY_RANK,
    "attention.kv_lora_rank": RANK,
    "attention.key_length": RANK + REST,
    "attention.value_length": RANK,
    "attention.key_length_mla": STILL + REST,
    "attention.value_length_mla": VALUE,
    "rope.dimension_count": REST,
    "ssm.conv_kernel": TAPS,
    "kda.head_dim": HEAD,
    "kda.gate_lower_bound": -5.0,
    "expert_count": EXPERTS,
    "expert_used_count": USED,
    "expert_feed_forward_length": INNER,
    "expert_shared_count": 1,
    "expert_latent_length": LATENT,
    "expert_weights_scale": 1.7,
    "expert_weights_norm": True,
    "expert_gating_func": 2,
    "leading_dense_block_count": 1,
    "activation.situ_beta": 1.5,
    "activation.situ_linear_beta": 0.75,
    "attn_res.block_size": 2,
}


def random_tensors(random):
    def matrix(*shape):
        return random.normal(0, 1 / shape[-1] ** 0.5, shape)

    def vector(length, mean=1.0, deviation=0.2):
        return random.normal(mean, deviation, length)

    inner = HEADS * HEAD
    tensors = {
        "token_embd": random.normal(0, 1, (VOCABULARY, WIDTH)),
        "output_norm": vector(WIDTH),
        "output": matrix(VOCABULARY, WIDTH),
        "output_res_score": vector(WIDTH, 0, 0.2),
    }
    for layer, attends in enumerate(ATTENDS):
        own = {name: vector(WIDTH) for name in ("attn_norm", "ffn_norm")}
        own |= {name: vector(WIDTH, 0, 0.2) for name in ("attn_res_score", "ffn_res_score")}
        if attends:
            own |= {
                "attn_q_a": matrix(QUERY_RANK, WIDTH),
                "attn_q_a_norm": vector(QUERY_RANK),
                "attn_q_b": matrix(HEADS * (STILL + REST), QUERY_RANK),
                "attn_kv_a_mqa": matrix(RANK + REST, WIDTH),
                "attn_kv_a_norm": vector(RANK),
                "attn_k_b": matrix(HEADS, RANK, STILL),
                "attn_v_b": matrix(HEADS, VALUE, RANK),
                "attn_gate": matrix(HEADS * VALUE, WIDTH),
                "attn_output": matrix(WIDTH, HEADS * VALUE),
            }
        else:
            own |= {f"attn_{part}": matrix(inner, WIDTH) for part in "qkv"}
            own |= {f"ssm_conv1d_{part}": random.normal(0, 0.4, (inner, TAPS)) for part in "qkv"}
            own |= {
                "ssm_f_a": matrix(HEAD, WIDTH),
                "ssm_f_b": matrix(inner, HEAD),
                "ssm_beta": matrix(HEADS, WIDTH),
                "ssm_a": -random.uniform(0.25, 4.25, HEADS),
                "ssm_dt.bias": vector(inner, 0, 0.5),
                "ssm_g": matrix(inner, WIDTH),
                "ssm_norm": vector(HEAD),
                "attn_output": matrix(WIDTH, inner),
            }
        if layer < KEYS["leading_dense_block_count"]:
            own |= {"ffn_gate": matrix(DENSE, WIDTH), "ffn_up": matrix(DENSE, WIDTH), "ffn_down": matrix(WIDTH, DENSE)}
        else:
            own |= {
                "ffn_gate_inp": matrix(EXPERTS, WIDTH),
                "exp_probs_b.bias": vector(EXPERTS, 0, 0.1),
                "ffn_gate_exps": matrix(EXPERTS, INNER, LATENT),
                "ffn_up_exps": matrix(EXPERTS, INNER, LATENT),
                "ffn_down_exps": matrix(EXPERTS, LATENT, INNER),
                "ffn_routed_down": matrix(LATENT, WIDTH),
                "ffn_routed_norm": vector(LATENT),
                "ffn_routed_up": matrix(WIDTH, LATENT),
                "ffn_gate_shexp": matrix(INNER, WIDTH),
                "ffn_up_shexp": matrix(INNER, WIDTH),
                "ffn_down_shexp": matrix(WIDTH, INNER),
            }
        tensors |= {f"blk.{layer}.{name}": value for name, value in own.items()}
    bare = (".bias", "ssm_a")
    return {name + ("" if name.endswith(bare) else ".weight"): value for name, value in tensors.items()}


def stored(tensors):
    """Returns tensors in the types of the file: f16, or f32 for vectors and small tensors."""

    def single(name, value):
        return value.ndim < 2 or "conv1d" in name or "ffn_gate_inp" in name

    return {name: value.astype(np.float32 if single(name, value) else np.float16) for name, value in tensors.items()}


def write(path, keys, tensors):
    writer = gguf.GGUFWriter(path, ARCHITECTURE)
    writer.add_tokenizer_model("none")
    for key, value in keys.items():
        key = f"{ARCHITECTURE}.{key}"
        match value:
            case bool():
                writer.add_bool(key, value)
            case int():
                writer.add_uint32(key, value)
            case float():
                writer.add_float32(key, value)
            case list():
                writer.add_array(key, value)
    for name, value in tensors.items():
        writer.add_tensor(name, value)
    writer.write_header_to_file(), writer.write_kv_data_to_file(), writer.write_tensors_to_file(), writer.close()


def read(path):
    """Returns keys and tensors of a file."""
    reader = gguf.GGUFReader(path)
    begin = reader.fields["general.architecture"].contents() + "."
    keys = {name.removeprefix(begin): field.contents() for name, field in reader.fields.items() if name.startswith(begin)}
    return keys, {tensor.name: np.array(tensor.data) for tensor in reader.tensors}


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def softmax(x, axis=-1):
    weights = np.exp(x - x.max(axis, keepdims=True))
    return weights / weights.sum(axis, keepdims=True)


class Model:
    """Computes the model from the keys and weights of a file."""

    def __init__(self, keys, tensors):
        self.keys = keys
        self.tensors = {name: data.astype(np.float64) for name, data in tensors.items()}

    def norm(self, x, weight=1.0):
        return x / np.sqrt((x**2).mean(-1, keepdims=True) + np.float32(self.keys["attention.layer_norm_rms_epsilon"])) * weight

    def weight(self, layer, name, default=None):
        return self.tensors.get(f"blk.{layer}.{name}.weight", default)

    def linear_attention(self, layer, h):
        heads, length, taps = self.keys["attention.head_count"], self.keys["kda.head_dim"], self.keys["ssm.conv_kernel"]
        rows = len(h)

        def w(name):
            return self.weight(layer, name)

        def mixed(part):
            x = np.concatenate([np.zeros((taps - 1, heads * length)), h @ w(f"attn_{part}").T])
            own = w(f"ssm_conv1d_{part}").reshape(-1, taps)
            x = sum(x[tap : tap + rows] * own[:, tap] for tap in range(taps))
            return (x * sigmoid(x)).reshape(rows, heads, length)

        q, k, v = (mixed(part) for part in "qkv")
        q, k = (x / np.sqrt((x**2).sum(-1, keepdims=True) + LENGTH_EPS) for x in (q, k))
        q = q / length**0.5
        a = np.abs(self.tensors[f"blk.{layer}.ssm_a"]).reshape(heads, 1)
        alpha = ((h @ w("ssm_f_a").T) @ w("ssm_f_b").T + self.tensors[f"blk.{layer}.ssm_dt.bias"]).reshape(rows, heads, length)
        bound = self.keys.get("kda.gate_lower_bound")
        log = -a * np.logaddexp(0, alpha) if bound is None else np.float32(bound) * sigmoid(a * alpha)
        decay, rate = np.exp(log), sigmoid(h @ w("ssm_beta").T)
        state, y = np.zeros((heads, length, length)), np.zeros((rows, heads, length))
        for t in range(rows):
            state = state * decay[t][:, :, None]
            change = rate[t][:, None] * (v[t] - np.einsum("hij,hi->hj", state, k[t]))
            state = state + k[t][:, :, None] * change[:, None, :]
            y[t] = np.einsum("hij,hi->hj", state, q[t])
        y = self.norm(y, w("ssm_norm")).reshape(rows, -1)
        gate = h @ w("ssm_g").T if w("ssm_g") is not None else (h @ w("ssm_g_a").T) @ w("ssm_g_b").T
        return (y * sigmoid(gate)) @ w("attn_output").T

    def latent_attention(self, layer, h):
        keys, rows = self.keys, len(h)
        heads, rank, length = keys["attention.head_count"], keys["attention.kv_lora_rank"], keys["attention.key_length_mla"]
        still = length - keys["rope.dimension_count"]

        def w(name):
            return self.weight(layer, name)

        row = h if w("attn_q_a") is None else self.norm(h @ w("attn_q_a").T, w("attn_q_a_norm"))
        q = (row @ w("attn_q" if w("attn_q_a") is None else "attn_q_b").T).reshape(rows, heads, length)
        kept = h @ w("attn_kv_a_mqa").T
        c, rest = self.norm(kept[:, :rank], w("attn_kv_a_norm")), kept[:, rank:]
        k = np.einsum("kr,hrs->khs", c, w("attn_k_b"))
        scores = np.einsum("thd,khd->htk", q[..., :still], k) + np.einsum("thd,kd->htk", q[..., still:], rest)
        scores = np.where(np.tri(rows, dtype=bool), scores / length**0.5, -np.inf)
        y = np.einsum("htk,khv->thv", softmax(scores), np.einsum("kr,hvr->khv", c, w("attn_v_b"))).reshape(rows, -1)
        if w("attn_gate") is not None:
            y = y * sigmoid(h @ w("attn_gate").T)
        return y @ w("attn_output").T

    def network(self, h, gate, up, down):
        gate, up = h @ gate.T, h @ up.T
        if "activation.situ_beta" not in self.keys:
            return (gate * sigmoid(gate) * up) @ down.T
        of_gate, of_up = (float(np.float32(self.keys[f"activation.situ_{part}"])) for part in ("beta", "linear_beta"))
        return (of_gate * np.tanh(gate / of_gate) * sigmoid(gate) * of_up * np.tanh(up / of_up)) @ down.T

    def networks(self, layer, h):
        keys = self.keys

        def w(name, default=None):
            return self.weight(layer, name, default)

        parts = ("gate", "up", "down")
        if layer < keys["leading_dense_block_count"]:
            return self.network(h, *(w(f"ffn_{part}") for part in parts))
        scores = sigmoid(h @ w("ffn_gate_inp").T)
        biased = scores + self.tensors[f"blk.{layer}.exp_probs_b.bias"]
        chosen = np.argsort(-biased, axis=-1, kind="stable")[:, : keys["expert_used_count"]]
        latent = w("ffn_routed_down") is not None
        rows = h @ w("ffn_routed_down").T if latent else h
        matrices, y = [w(f"ffn_{part}_exps") for part in parts], np.zeros_like(rows)
        for t, ids in enumerate(chosen):
            weights = scores[t, ids] / scores[t, ids].sum() * np.float32(keys["expert_weights_scale"])
            for weight, expert in zip(weights, ids):
                y[t] += weight * self.network(rows[t], *(of[expert] for of in matrices))
        if latent:
            y = self.norm(y, w("ffn_routed_norm")) @ w("ffn_routed_up").T
        return y + self.network(h, *(w(f"ffn_{part}_shexp") for part in parts))

    def attended(self, kept, x, weight):
        """Returns the result of a row's attention to the streams that it kept and to its own."""
        if not kept:
            return x
        streams = np.stack([*kept, x], axis=1)
        shares = softmax(self.norm(streams) @ weight)
        return np.einsum("tn,tnd->td", shares, streams)

    def logits(self, tokens):
        x, kept = self.tensors["token_embd.weight"][tokens], []
        every = self.keys.get("attn_res.block_size", 0)
        for layer in range(self.keys["block_count"]):
            h = self.attended(kept, x, self.weight(layer, "attn_res_score"))
            begins = every and layer % every == 0
            if begins:
                kept.append(x)
            h = self.norm(h, self.weight(layer, "attn_norm"))
            y = self.latent_attention(layer, h) if self.keys["attention.head_count_kv"][layer] else self.linear_attention(layer, h)
            x = y if begins else x + y
            h = self.attended(kept, x, self.weight(layer, "ffn_res_score"))
            x = x + self.networks(layer, self.norm(h, self.weight(layer, "ffn_norm")))
        x = self.attended(kept, x, self.tensors.get("output_res_score.weight"))
        return self.norm(x, self.tensors["output_norm.weight"]) @ self.tensors["output.weight"].T


def check():
    """Checks that this code reproduces the logits of transformers."""
    expect = json.loads((OUT / f"expect/{KNOWN}.json").read_text())
    known = np.load(OUT / expect["logits"]).astype(np.float64)
    logits = Model(*read(OUT / expect["model"])).logits(np.array(expect["prompt_tokens"]))[-len(known) :]
    error = ((logits - known) ** 2).sum() / (known**2).sum()
    print(f"{KNOWN}: {error:.1e} from what transformers computed")
    assert error < 1e-11


def main():
    check()
    random = np.random.default_rng(SEED)
    tensors = stored(random_tensors(random))
    tokens = random.integers(0, VOCABULARY, TOKENS)
    logits = Model(KEYS, tensors).logits(tokens)
    path = OUT / f"models/{NAME}.gguf"
    write(path, KEYS, tensors)
    # The file contains the same numbers.
    assert np.array_equal(Model(*read(path)).logits(tokens), logits)
    print(f"{NAME}: {path.stat().st_size} bytes, logits of deviation {logits.std():.2f}")
    np.save(OUT / f"expect/{NAME}.npy", logits[-KEPT:].astype(np.float32))
    expect = {
        "model": f"models/{NAME}.gguf",
        "architecture": ARCHITECTURE,
        "prompt_tokens": [int(token) for token in tokens],
        "logits": f"expect/{NAME}.npy",
        "interpreter_nmse_max": 1e-9,
        # Due to keys and values in f16: llama.cpp's error with such a cache is 4.7e-7.
        "compiled_nmse_max": 5e-7,
    }
    (OUT / f"expect/{NAME}.json").write_text(json.dumps(expect) + "\n")


if __name__ == "__main__":
    main()
