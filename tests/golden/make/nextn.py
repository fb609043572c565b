"""Makes small models with a draft layer (nextn, multi-token prediction), and the layer's logits in
f64 from the weights of the file.

    pip install numpy gguf          # gguf 0.19 or later
    python nextn.py

No library that makes the other golden models has such layers. The formula is that of DeepSeek-V3's report (arXiv
2412.19437, section 2.2), with hidden states after the last norm, as in llama.cpp and vLLM.

    x = eh_proj (enorm(embedding of token t + 1) | hnorm(h of token t)),   h = norm(layer(x)),   logits of token t + 2 = head h

| model  | contents |
| ------ | --- |
| own    | all weights random and different; the layer has its own embedding, norm and head |
| shared | a token mostly determines the next one, and the layer predicts it; it has the model's embedding, norm and head; the tokenizer has bytes |
"""

import json
from pathlib import Path

import gguf
import numpy as np

OUT = Path(__file__).resolve().parent.parent / "nextn"
SEED = 20261126
WIDTH, HEADS, KV_HEADS, HEAD, TURNED = 64, 4, 2, 24, 12
FEED, EXPERTS, USED, INNER, SCALE = 96, 6, 2, 32, 1.5
VOCABULARY, CONTEXT, BASE, EPS = 288, 512, 10000.0, 1e-5
# The model's layers, the first of them dense, and the draft layer.
LAYERS = 2
TOKENS = 40
# The numbers of the last positions are kept.
KEPT = 12


def layer_tensors(random, layer, quiet):
    """Returns the tensors of a layer of glm4moe. `quiet` is the size of its contribution to the stream."""

    def matrix(*shape, size=1.0):
        return random.normal(0, size / shape[-1] ** 0.5, shape)

    def vector(length, mean=1.0, deviation=0.2):
        return random.normal(mean, deviation, length)

    tensors = {
        "attn_norm": vector(WIDTH),
        "attn_q": matrix(HEADS * HEAD, WIDTH),
        "attn_k": matrix(KV_HEADS * HEAD, WIDTH),
        "attn_v": matrix(KV_HEADS * HEAD, WIDTH),
        "attn_q.bias": vector(HEADS * HEAD, 0, 0.5),
        "attn_k.bias": vector(KV_HEADS * HEAD, 0, 0.5),
        "attn_v.bias": vector(KV_HEADS * HEAD, 0, 0.5),
        "attn_q_norm": vector(HEAD),
        "attn_k_norm": vector(HEAD),
        "attn_output": matrix(WIDTH, HEADS * HEAD, size=quiet),
        "post_attention_norm": vector(WIDTH),
    }
    if layer == 0:
        tensors |= {
            "ffn_gate": matrix(FEED, WIDTH),
            "ffn_up": matrix(FEED, WIDTH),
            "ffn_down": matrix(WIDTH, FEED, size=quiet),
        }
    else:
        tensors |= {
            "ffn_gate_inp": matrix(EXPERTS, WIDTH),
            "exp_probs_b.bias": vector(EXPERTS, 0, 0.1),
            "ffn_gate_exps": matrix(EXPERTS, INNER, WIDTH),
            "ffn_up_exps": matrix(EXPERTS, INNER, WIDTH),
            "ffn_down_exps": matrix(EXPERTS, WIDTH, INNER, size=quiet),
            "ffn_gate_shexp": matrix(INNER, WIDTH),
            "ffn_up_shexp": matrix(INNER, WIDTH),
            "ffn_down_shexp": matrix(WIDTH, INNER, size=quiet),
        }
    return {f"blk.{layer}.{name}" + ("" if "." in name else ".weight"): value for name, value in tensors.items()}


def own(random):
    def vector(length):
        return random.normal(1, 0.2, length)

    tensors = {
        "token_embd.weight": random.normal(0, 1, (VOCABULARY, WIDTH)),
        "output_norm.weight": vector(WIDTH),
        "output.weight": random.normal(0, 1 / WIDTH**0.5, (VOCABULARY, WIDTH)),
    }
    for layer in range(LAYERS + 1):
        tensors |= layer_tensors(random, layer, 1.0)
    name = f"blk.{LAYERS}.nextn"
    return tensors | {
        f"{name}.eh_proj.weight": random.normal(0, 1 / (2 * WIDTH) ** 0.5, (WIDTH, 2 * WIDTH)),
        f"{name}.enorm.weight": vector(WIDTH),
        f"{name}.hnorm.weight": vector(WIDTH),
        f"{name}.embed_tokens.weight": random.normal(0, 1, (VOCABULARY, WIDTH)),
        f"{name}.shared_head_norm.weight": vector(WIDTH),
        f"{name}.shared_head_head.weight": random.normal(0, 1 / WIDTH**0.5, (VOCABULARY, WIDTH)),
    }


def shared(random):
    embedding = random.choice([-1.0, 1.0], (VOCABULARY, WIDTH))
    # Letters and spaces follow each other in a circle. All other tokens lead into it.
    letters = [ord(letter) for letter in " the borrow checker says: move, copy and drop.\n"]
    letters = list(dict.fromkeys(letters))
    follows = np.array([letters[token % len(letters)] for token in range(VOCABULARY)])
    follows[letters] = letters[1:] + letters[:1]
    head = random.normal(0, 0.02, (VOCABULARY, WIDTH))
    # If several tokens lead to one token, their embeddings are added.
    for token, following in enumerate(follows):
        head[following] += (0.14 if token in letters else 0.03) * embedding[token]
    tensors = {
        "token_embd.weight": embedding,
        "output_norm.weight": random.normal(1, 0.02, WIDTH),
        "output.weight": head,
    }
    for layer in range(LAYERS + 1):
        tensors |= layer_tensors(random, layer, 0.1)
    name = f"blk.{LAYERS}.nextn"
    # The half of the token passes unchanged.
    through = np.concatenate([np.eye(WIDTH), np.zeros((WIDTH, WIDTH))], axis=1)
    return tensors | {
        f"{name}.eh_proj.weight": through + random.normal(0, 0.01, through.shape),
        f"{name}.enorm.weight": random.normal(1, 0.02, WIDTH),
        f"{name}.hnorm.weight": random.normal(1, 0.02, WIDTH),
    }


def stored(name, value):
    """Returns a tensor as stored in the file, its type, and the numbers that it represents."""
    kinds = gguf.GGMLQuantizationType
    if value.ndim < 2 or "ffn_gate_inp" in name:
        kind = kinds.F32
    elif "embd" in name or "eh_proj" in name:
        kind = kinds.F16
    else:
        kind = kinds.Q8_0
    data = gguf.quants.quantize(value.astype(np.float32), kind)
    return data, kind, gguf.quants.dequantize(data, kind).reshape(value.shape).astype(np.float64)


def bytes_as_letters():
    """Returns the letters that represent bytes in vocabularies of gpt2."""
    own = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = iter(range(256, 512))
    return [chr(byte if byte in own else next(others)) for byte in range(256)]


def write(name, tensors, tokenizer):
    """Writes a model, and returns the weights as stored in the file."""
    writer = gguf.GGUFWriter(OUT / f"{name}.gguf", "glm4moe")
    writer.add_block_count(LAYERS + 1)
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(WIDTH)
    writer.add_feed_forward_length(FEED)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_key_length(HEAD)
    writer.add_value_length(HEAD)
    writer.add_rope_dimension_count(TURNED)
    writer.add_rope_freq_base(BASE)
    writer.add_layer_norm_rms_eps(EPS)
    writer.add_expert_count(EXPERTS)
    writer.add_expert_used_count(USED)
    writer.add_expert_shared_count(1)
    writer.add_expert_feed_forward_length(INNER)
    writer.add_expert_weights_scale(SCALE)
    writer.add_expert_weights_norm(True)
    writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
    writer.add_leading_dense_block_count(1)
    writer.add_nextn_predict_layers(1)
    writer.add_vocab_size(VOCABULARY)
    if tokenizer:
        letters = bytes_as_letters()
        # llama.cpp requires a merge.
        words = letters + [f"<|{number}|>" for number in range(VOCABULARY - len(letters) - 1)] + ["zz"]
        normal, control = gguf.TokenType.NORMAL, gguf.TokenType.CONTROL
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre("gpt-2")
        writer.add_token_list(words)
        writer.add_token_types([normal] * len(letters) + [control] * (len(words) - len(letters) - 1) + [normal])
        writer.add_token_merges(["z z"])
        writer.add_eos_token_id(len(letters))
        writer.add_add_bos_token(False)
    else:
        writer.add_tokenizer_model("none")
    exact = {}
    for tensor, value in tensors.items():
        data, kind, exact[tensor] = stored(tensor, value)
        writer.add_tensor(tensor, data, raw_dtype=kind)
    writer.write_header_to_file(), writer.write_kv_data_to_file(), writer.write_tensors_to_file(), writer.close()
    return exact


def norm(x, weight):
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + EPS) * weight


def silu(x):
    return x / (1 + np.exp(-x))


def turn(x, positions):
    """Rotates the first elements of heads, `[tokens, heads, HEAD]`, in pairs of halves."""
    half = TURNED // 2
    angles = positions[:, None, None] * BASE ** (-2 * np.arange(half) / TURNED)
    a, b = x[..., :half], x[..., half:TURNED]
    return np.concatenate([a * np.cos(angles) - b * np.sin(angles), a * np.sin(angles) + b * np.cos(angles), x[..., TURNED:]], -1)


def attention(w, h, positions):
    def heads(name, count):
        rows = h @ w(f"attn_{name}.weight").T + w(f"attn_{name}.bias")
        return rows.reshape(len(h), count, HEAD)

    q = turn(norm(heads("q", HEADS), w("attn_q_norm.weight")), positions)
    k = turn(norm(heads("k", KV_HEADS), w("attn_k_norm.weight")), positions)
    v = heads("v", KV_HEADS)
    k, v = (np.repeat(x, HEADS // KV_HEADS, axis=1) for x in (k, v))
    scores = np.einsum("qhd,khd->hqk", q, k) / HEAD**0.5
    scores = np.where(positions[:, None] >= positions[None, :], scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    y = np.einsum("hqk,khd->qhd", weights, v).reshape(len(h), HEADS * HEAD)
    return y @ w("attn_output.weight").T


def network(h, gate, up, down):
    return (silu(h @ gate.T) * (h @ up.T)) @ down.T


def experts(w, h):
    probabilities = 1 / (1 + np.exp(-(h @ w("ffn_gate_inp.weight").T)))
    chosen = np.argsort(-(probabilities + w("exp_probs_b.bias")), axis=-1, kind="stable")[:, :USED]
    y = network(h, *(w(f"ffn_{part}_shexp.weight") for part in ("gate", "up", "down")))
    for row, ids in enumerate(chosen):
        weights = probabilities[row, ids]
        weights = weights / weights.sum() * SCALE
        for weight, expert in zip(weights, ids):
            y[row] += weight * network(h[row], *(w(f"ffn_{part}_exps.weight")[expert] for part in ("gate", "up", "down")))
    return y


def layer(tensors, number, x, positions):
    def w(name):
        return tensors[f"blk.{number}.{name}"]

    x = x + attention(w, norm(x, w("attn_norm.weight")), positions)
    h = norm(x, w("post_attention_norm.weight"))
    if number == 0:
        return x + network(h, *(w(f"ffn_{part}.weight") for part in ("gate", "up", "down")))
    return x + experts(w, h)


def run(tensors, tokens):
    """Returns logits and hidden states of the model."""
    x = tensors["token_embd.weight"][tokens]
    for number in range(LAYERS):
        x = layer(tensors, number, x, np.arange(len(tokens)))
    hidden = norm(x, tensors["output_norm.weight"])
    return hidden @ tensors["output.weight"].T, hidden


def guess(tensors, tokens, hidden):
    """Returns logits and hidden states of the draft layer.

    Each token comes with the hidden state of the previous token.
    """

    def own(name, other):
        return tensors.get(f"blk.{LAYERS}.nextn.{name}.weight", tensors.get(other))

    e = norm(own("embed_tokens", "token_embd.weight")[tokens], own("enorm", None))
    h = norm(hidden, own("hnorm", None))
    x = np.concatenate([e, h], axis=-1) @ own("eh_proj", None).T
    x = layer(tensors, LAYERS, x, np.arange(len(tokens)))
    hidden = norm(x, own("shared_head_norm", "output_norm.weight"))
    return hidden @ own("shared_head_head", "output.weight").T, hidden


def make(name, tensors, tokens, tokenizer):
    tensors = write(name, tensors, tokenizer)
    logits, hidden = run(tensors, tokens)
    guessed, own_hidden = guess(tensors, tokens[1:], hidden[:-1])
    # Second draft token: its inputs are the first draft token and the hidden state of the draft
    # layer.
    deeper = [int(guessed[-1].argmax())]
    deep, _ = guess(tensors, np.append(tokens[1:], deeper), np.append(hidden[:-1], own_hidden[-1:], axis=0))
    true = (guessed[:-1].argmax(-1) == logits[1:-1].argmax(-1)).mean()
    print(f"{name}: {(OUT / name).with_suffix('.gguf').stat().st_size} bytes; guesses are the model's own in {true:.0%}")
    for what, numbers in [("logits", logits), ("hidden", hidden), ("guess", deep), ("guess-hidden", own_hidden)]:
        np.save(OUT / f"{name}-{what}.npy", numbers[-KEPT:].astype(np.float32))
    expect = {"tokens": [int(token) for token in tokens], "deeper": deeper, "kept": KEPT}
    (OUT / f"{name}.json").write_text(json.dumps(expect) + "\n")


def main():
    OUT.mkdir(exist_ok=True)
    random = np.random.default_rng(SEED)
    make("own", own(random), random.integers(0, VOCABULARY, TOKENS), False)
    make("shared", shared(random), random.integers(32, 127, TOKENS), True)


if __name__ == "__main__":
    main()
