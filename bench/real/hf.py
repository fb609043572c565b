"""Hugging Face tokenizers of the models: from `tokenizer.json`, or from the metadata of a GGUF file.

The packages of SmolLM2 and Gemma 3 hold no `tokenizer.json`. Their tokenizers are built from the file's tokens and merges with the steps that the
published `tokenizer.json` has: SmolLM's digits and bytes, and Gemma's SentencePiece BPE, whose merges transformers makes from scores.
"""

import gguf
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers

# ggml's kinds of tokens.
CONTROL, USER_DEFINED = 3, 4


class File:
    """Keys of a GGUF file."""

    def __init__(self, path):
        self.reader = gguf.GGUFReader(str(path))

    def get(self, key):
        field = self.reader.get_field(f"tokenizer.ggml.{key}")
        return None if field is None else field.contents()


def of_folder(path):
    """Returns the tokenizer of a folder, without its settings for padding and truncation."""
    tokenizer = Tokenizer.from_file(str(path / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer


def of_bytes(file):
    """Returns SmolLM's tokenizer: each digit is a separate word, then words are those of GPT-2."""
    tokens, merges = file.get("tokens"), file.get("merges")
    pairs = [tuple(merge.split(" ")) for merge in merges]
    tokenizer = Tokenizer(models.BPE({token: id for id, token in enumerate(tokens)}, pairs))
    steps = [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)]
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps)
    tokenizer.decoder = decoders.ByteLevel()
    return added(tokenizer, tokens, file.get("token_type"))


def of_pieces(file):
    """Returns Gemma's tokenizer. Merges are all pairs of tokens that form a token, in the order of its score."""
    tokens, scores, kinds = file.get("tokens"), file.get("scores"), file.get("token_type")
    ids = {token: id for id, token in enumerate(tokens)}
    ranked = []
    for token, score in zip(tokens, scores):
        pairs = [(ids[token[:at]], ids[token[at:]]) for at in range(1, len(token)) if token[:at] in ids and token[at:] in ids]
        ranked += [(-score, left, right) for left, right in sorted(pairs)]
    # Sorting is stable: among pairs of one token the first ids come first.
    ranked.sort(key=lambda pair: pair[0])
    merges = [(tokens[left], tokens[right]) for _, left, right in ranked]
    unknown = tokens[file.get("unknown_token_id")]
    tokenizer = Tokenizer(models.BPE(ids, merges, unk_token=unknown, fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    return added(tokenizer, tokens, kinds)


def added(tokenizer, tokens, kinds):
    special = [token for token, kind in zip(tokens, kinds) if kind == CONTROL]
    defined = [token for token, kind in zip(tokens, kinds) if kind == USER_DEFINED]
    tokenizer.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in special])
    tokenizer.add_tokens([AddedToken(token, normalized=False) for token in defined])
    return tokenizer


BUILDERS = {"gpt2": of_bytes, "llama": of_pieces}


def tokenizer(path):
    if path.is_dir():
        return of_folder(path)
    file = File(path)
    return BUILDERS[file.get("model")](file)
