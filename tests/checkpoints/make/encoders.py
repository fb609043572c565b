"""Makes folders of encoders as sentence-transformers saves them: tiny models with random weights,
with hidden states and vectors of texts.

    pip install torch transformers sentence-transformers numpy          # transformers 5.24, sentence-transformers 6.2
    python encoders.py [NAME ...]

Matrices are in f16. Hidden states and vectors are computed in f64. `bert` has the files that sentence-transformers
wrote before version 5.
"""

import json
import shutil
import sys
from pathlib import Path

import numpy as np
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.models import Dense, Normalize, Pooling, Transformer
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import (
    BertConfig, BertModel, EuroBertConfig, EuroBertModel, Gemma3TextConfig, Gemma3TextModel, ModernBertConfig, ModernBertModel, NomicBertConfig,
    NomicBertModel, PreTrainedTokenizerFast,
)

HERE = Path(__file__).resolve().parent.parent / "encoders"
SEED = 20261128
TEXTS = [
    "The borrow checker said that a reference outlives its owner.",
    "Übung macht den Meister: naïve façades, 日本語!",
    "a",
    "let mut total = 0; // 12345 + 67890\n\tfor x in 0..=9 { total += x; }",
]
CORPUS = TEXTS + [Path(__file__).read_text()]
SMALL = {"hidden_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 80}
# Change of vectors if a hook in transformers rounds keys and values to f16: 2.9e-7 for eurobert,
# 1.3e-6 for embedding_gemma.
ROUNDED = {"eurobert": 2e-6, "embedding_gemma": 2e-6}
# A token sees half of the window before it and half after it.
WINDOW = 16
LLAMA_3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def ends(tokenizer, first, last):
    """Adds the first and last tokens around each text."""
    pairs = [(token, tokenizer.token_to_id(token)) for token in (first, last)]
    tokenizer.post_processor = processors.TemplateProcessing(single=f"{first} $A {last}", special_tokens=pairs)


def word_pieces():
    """Returns BERT's tokenizer."""
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    tokenizer.train_from_iterator(CORPUS, trainers.WordPieceTrainer(vocab_size=256, special_tokens=special))
    ends(tokenizer, "[CLS]", "[SEP]")
    names = dict(unk_token="[UNK]", pad_token="[PAD]", cls_token="[CLS]", sep_token="[SEP]", mask_token="[MASK]")
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names)


def byte_level(pre_tokenizer, first, last, pad):
    """Returns a BPE of bytes."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=320, special_tokens=[pad, first, last], initial_alphabet=alphabet)
    tokenizer.train_from_iterator(CORPUS, trainer)
    ends(tokenizer, first, last)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token=first, eos_token=last, pad_token=pad)


def sentence_pieces():
    """Returns Gemma's tokenizer: a BPE of characters, with bytes for unknown ones."""
    special = ["<pad>", "<eos>", "<bos>", "<unk>"]
    bytes_ = [f"<0x{byte:02X}>" for byte in range(256)]
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    tokenizer.train_from_iterator(TEXTS[:1], trainers.BpeTrainer(vocab_size=340, special_tokens=special + bytes_))
    parts = json.loads(tokenizer.to_str())
    parts["added_tokens"] = [token for token in parts["added_tokens"] if token["content"] in special]
    tokenizer = Tokenizer.from_str(json.dumps(parts))
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    ends(tokenizer, "<bos>", "<eos>")
    names = dict(unk_token="<unk>", pad_token="<pad>", bos_token="<bos>", eos_token="<eos>")
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names)


# By name: configuration, class, tokenizer, pooling, widths between matrices after the mean, and
# whether vectors have length 1.
MODELS = {
    "bert": (lambda size: BertConfig(**SMALL, vocab_size=size, max_position_embeddings=160), BertModel, word_pieces, "mean", [], True),
    "nomic_bert": (lambda size: NomicBertConfig(**SMALL, vocab_size=size), NomicBertModel, word_pieces, "mean", [], False),
    "eurobert": (
        lambda size: EuroBertConfig(
            **SMALL, vocab_size=size, num_key_value_heads=2, max_position_embeddings=256, pad_token_id=0, bos_token_id=1, eos_token_id=2, mask_token_id=0,
        ),
        EuroBertModel,
        lambda: byte_level(
            pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(LLAMA_3), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]),
            "<|begin_of_text|>", "<|end_of_text|>", "<|pad|>",
        ),
        "lasttoken", [], True,
    ),
    "modernbert": (
        lambda size: ModernBertConfig(
            **SMALL | {"num_hidden_layers": 4}, vocab_size=size, local_attention=WINDOW, pad_token_id=0, bos_token_id=1, eos_token_id=2, cls_token_id=1,
            sep_token_id=2, max_position_embeddings=256,
        ),
        ModernBertModel,
        lambda: byte_level(pre_tokenizers.ByteLevel(add_prefix_space=False), "[CLS]", "[SEP]", "[PAD]"),
        "cls", [], True,
    ),
    "embedding_gemma": (
        lambda size: Gemma3TextConfig(
            **SMALL | {"num_hidden_layers": 6}, vocab_size=size, num_key_value_heads=2, head_dim=16, query_pre_attn_scalar=16, sliding_window=WINDOW,
            use_bidirectional_attention=True, max_position_embeddings=256, pad_token_id=0, eos_token_id=1, bos_token_id=2,
        ),
        Gemma3TextModel, sentence_pieces, "mean", [64, 48], True,
    ),
}


def older(folder, way):
    """Writes the list of modules in the form of versions before 5 and of all-MiniLM-L6-v2."""
    kinds = [("", "Transformer"), ("1_Pooling", "Pooling"), ("2_Normalize", "Normalize")]
    modules = [{"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"} for i, (path, kind) in enumerate(kinds)]
    (folder / "modules.json").write_text(json.dumps(modules, indent=2))
    flags = {"mean": "mean_tokens", "cls": "cls_token", "max": "max_tokens", "root": "mean_sqrt_len_tokens"}
    config = {"word_embedding_dimension": SMALL["hidden_size"]} | {f"pooling_mode_{flag}": name == way for name, flag in flags.items()}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(config, indent=2))
    (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 128, "do_lower_case": False}))


def randomise(model, generator):
    """Gives norms and biases values that have an effect."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            is_norm = parameter.dim() == 1 and name.endswith("weight")
            parameter.copy_(1 + noise / 8 if is_norm else noise / (parameter.shape[-1] ** 0.5 if parameter.dim() > 1 else 8))


def write(name):
    config, model_class, tokenizer, way, lengths, unit = MODELS[name]
    generator = torch.Generator().manual_seed(SEED)
    tokenizer, folder = tokenizer(), HERE / "models" / name
    tokenizer.model_max_length = 128
    model = model_class(config(len(tokenizer)))
    randomise(model, generator)
    shutil.rmtree(folder, ignore_errors=True)
    model.half().save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    transformer = Transformer(str(folder), max_seq_length=128)
    modules = [transformer, Pooling(SMALL["hidden_size"], pooling_mode=way)]
    for before, behind in zip([SMALL["hidden_size"], *lengths], lengths):
        modules.append(Dense(before, behind, bias=False, activation_function=torch.nn.Identity()))
    modules += [Normalize()] if unit else []
    sentences = SentenceTransformer(modules=modules, device="cpu").half()
    shutil.rmtree(folder)
    sentences.save(str(folder))
    if name == "bert":
        older(folder, way)
    for path in [*folder.glob("README.md"), *folder.rglob("*.bin")]:
        path.unlink()
    # Numbers other than weights, such as Gemma's factor of embeddings, must not be rounded to f16
    # when the model is loaded.
    sentences = SentenceTransformer(str(folder), device="cpu", model_kwargs={"dtype": torch.float64}).double()
    vectors = np.stack([sentences.encode(text, convert_to_numpy=True) for text in TEXTS])
    ids = tokenizer(TEXTS[0])["input_ids"]
    with torch.inference_mode():
        hidden = sentences[0].auto_model(input_ids=torch.tensor([ids]), attention_mask=torch.ones(1, len(ids), dtype=torch.long)).last_hidden_state[0]
        for dense in [module for module in sentences if isinstance(module, Dense)]:
            hidden = dense.linear(hidden)
    expect = HERE / "expect"
    expect.mkdir(parents=True, exist_ok=True)
    np.save(expect / f"{name}.npy", hidden.numpy().astype(np.float32))
    np.save(expect / f"{name}-vectors.npy", vectors.astype(np.float32))
    facts = {
        "model": f"models/{name}", "pooling": {"lasttoken": "last"}.get(way, way), "unit": unit, "prompt_tokens": ids, "hidden": f"expect/{name}.npy",
        "texts": TEXTS, "ids": [tokenizer(text)["input_ids"] for text in TEXTS], "vectors": f"expect/{name}-vectors.npy",
        "interpreter_nmse_max": 1e-9, "compiled_nmse_max": ROUNDED.get(name, 2e-7),
    }
    (expect / f"{name}.json").write_text(json.dumps(facts, ensure_ascii=False) + "\n")
    print(name, sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()), np.linalg.norm(vectors, axis=1))


if __name__ == "__main__":
    for name in sys.argv[1:] or MODELS:
        write(name)
