"""Makes golden models of encoders: tiny models with random weights by Hugging Face transformers,
converted by llama.cpp's converter, with their exact hidden states.

    python encoders.py --llama-cpp vendor/llama.cpp [NAME ...]          # make.py lists the requirements

Hidden states are those of all tokens of one text, after the last norm. They are computed in f64 from the weights of
the file (matrices in f16).
"""

import argparse
import json
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from transformers import BertConfig, BertModel, EuroBertConfig, EuroBertModel, Gemma3TextConfig, Gemma3TextModel, ModernBertConfig, ModernBertModel, NomicBertConfig, NomicBertModel, Qwen3Config, Qwen3Model

import make

ENCODERS = make.GOLDEN / "encoders"
NO_TOKENS = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": 0}
# Error of a compiled plan: it rounds keys, values and activations of matrices to f16. The value is
# squared.
ROUNDED = 5e-8


def pooled(folder, way):
    """Writes the modules of sentence-transformers that declare the pooling of rows."""
    (folder / "modules.json").write_text(json.dumps([{"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"}]))
    (folder / "1_Pooling").mkdir()
    names = {"mean": "pooling_mode_mean_tokens", "cls": "pooling_mode_cls_token", "last": "pooling_mode_lasttoken"}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({name: key == way for key, name in names.items()}))


def as_nomic(parameters):
    """Adds keys of the hub's configuration that transformers names differently or assumes."""
    del parameters["max_position_embeddings"]
    return parameters | {
        "n_positions": 8192, "max_trained_positions": 2048, "activation_function": "swiglu", "causal": False, "prenorm": False, "qkv_proj_bias": False,
        "mlp_fc1_bias": False, "mlp_fc2_bias": False, "rotary_emb_fraction": 1.0, "rotary_emb_interleaved": False, "rotary_emb_scale_base": None,
    }


# A row sees half of the window before it and half after it. (transformers halves EmbeddingGemma's
# value itself.)
WINDOW = 48


def as_gemma(parameters):
    """Adds the window of the hub's configuration."""
    return parameters | {"sliding_window": WINDOW}


def as_modern(parameters):
    """Adds keys that the hub's configuration names differently."""
    ropes = parameters["rope_parameters"]
    return parameters | {
        "global_attn_every_n_layers": 3, "global_rope_theta": ropes["full_attention"]["rope_theta"], "local_rope_theta": ropes["sliding_attention"]["rope_theta"],
    }


SMALL = {"vocab_size": 64, "hidden_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 80}

# By name: configuration, class, pooling, and the change to the configuration that the converter
# expects.
MODELS = {
    "bert": (
        BertConfig(**NO_TOKENS, **SMALL, max_position_embeddings=160),
        BertModel,
        "cls",
        dict,
    ),
    "nomic-bert": (NomicBertConfig(**NO_TOKENS, **SMALL), NomicBertModel, "mean", as_nomic),
    "eurobert": (EuroBertConfig(**NO_TOKENS, **SMALL, num_key_value_heads=2, classifier_pooling="mean"), EuroBertModel, "last", dict),
    "gemma-embedding": (
        Gemma3TextConfig(
            **NO_TOKENS, **SMALL | {"num_hidden_layers": 6, "intermediate_size": 64}, num_key_value_heads=2, head_dim=16, query_pre_attn_scalar=16, sliding_window=WINDOW,
            use_bidirectional_attention=True, max_position_embeddings=512,
        ),
        Gemma3TextModel,
        "mean",
        as_gemma,
    ),
    "modern-bert": (
        ModernBertConfig(
            **SMALL | {"num_hidden_layers": 4}, local_attention=WINDOW, pad_token_id=0, bos_token_id=1, eos_token_id=2, cls_token_id=1, sep_token_id=2, max_position_embeddings=256, classifier_pooling="mean",
        ),
        ModernBertModel,
        "cls",
        as_modern,
    ),
    "qwen3-whole": (Qwen3Config(**SMALL, num_key_value_heads=2, head_dim=16), Qwen3Model, "mean", dict),
}
# Decoders whose files declare attention in both directions: every token sees the whole text.
WHOLE = {"qwen3-whole": "qwen3"}
# Models with two matrices after the mean in sentence-transformers, and the width between them.
DENSE = {"gemma-embedding": 64}


def write(name, llama_cpp):
    config, model_class, way, known = MODELS[name]
    generator = torch.Generator().manual_seed(make.SEED)
    torch.manual_seed(make.SEED)
    config._attn_implementation = "eager"
    model = model_class(config).eval()
    make.randomise(model, generator)
    make.round_matrices(model)
    tokens = torch.randint(0, config.vocab_size, (make.TOKENS,), generator=generator).tolist()
    out = ENCODERS / "models" / f"{name}.gguf"
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        pooled(Path(folder), way)
        path = Path(folder) / "config.json"
        path.write_text(json.dumps(known(json.loads(path.read_text()))))
        sys.path[:0] = [str(llama_cpp), str(llama_cpp / "gguf-py")]
        from conversion.bert import NomicBertModel as Nomic

        # The folder has no tokenizer that the converter could look at.
        Nomic._is_tokenizer_xlmroberta = lambda self: False
        make.convert(llama_cpp, Path(folder), out)
    dense = []
    if inner := DENSE.get(name):
        shapes = [(inner, config.hidden_size), (config.hidden_size, inner)]
        dense = [(torch.randn(shape, generator=generator) / shape[1] ** 0.5).half() for shape in shapes]
        make.rewrite(out, lambda tensors, keys: tensors.update({f"dense_{i}.weight": matrix.numpy() for i, matrix in enumerate(dense, 2)}))
    ids = torch.tensor([tokens])
    mask = torch.ones_like(ids)
    if architecture := WHOLE.get(name):
        make.rewrite(out, lambda tensors, keys: keys.update({f"{architecture}.attention.causal": False, f"{architecture}.pooling_type": 1}))
        mask = {"full_attention": torch.zeros(1, 1, len(tokens), len(tokens))}
    with torch.inference_mode():
        single = model(input_ids=ids, attention_mask=mask).last_hidden_state[0].double().numpy()
        exact = model.double()(input_ids=ids, attention_mask=mask).last_hidden_state[0].double().numpy()
    for matrix in dense:
        single, exact = (rows @ matrix.double().numpy().T for rows in (single, exact))
    difference = ((single - exact) ** 2).sum() / (exact**2).sum()
    print(f"{name}: {out.stat().st_size} bytes, f32 against f64: NMSE {difference:.1e}, of deviation {exact.std():.2f}")
    np.save(ENCODERS / "expect" / f"{name}.npy", exact.astype(np.float32))
    expect = {
        "model": f"models/{name}.gguf",
        "pooling": way,
        "prompt_tokens": tokens,
        "hidden": f"expect/{name}.npy",
        "interpreter_nmse_max": 1e-9,
        "compiled_nmse_max": ROUNDED,
    }
    (ENCODERS / "expect" / f"{name}.json").write_text(json.dumps(expect) + "\n")


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--llama-cpp", type=Path, required=True)
    arguments.add_argument("names", nargs="*")
    arguments = arguments.parse_args()
    for part in ("models", "expect"):
        (ENCODERS / part).mkdir(parents=True, exist_ok=True)
    for name in arguments.names or sorted(MODELS):
        write(name, arguments.llama_cpp.resolve())


if __name__ == "__main__":
    main()
