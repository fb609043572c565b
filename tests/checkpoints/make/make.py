"""Makes checkpoints for tests: tiny folders of safetensors as transformers saves them, with random
weights, their conversions by llama.cpp's converter, and exact logits.

    pip install torch transformers tokenizers numpy safetensors
    python make.py --llama-cpp vendor/llama.cpp          # any recent tree that has convert_hf_to_gguf.py and conversion/

Logits are computed in f32 from the numbers that the files represent. This program dequantises quantised weights by
their definition.
"""

import argparse
import json
import shutil
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import DeepseekV3Config, DeepseekV3ForCausalLM, GptOssConfig, GptOssForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM

HERE = Path(__file__).resolve().parent.parent
SEED = 20261126
TOKENS = 48
# The logits of the last positions are kept.
KEPT = 8
VOCABULARY = 320
SMALL = dict(
    vocab_size=VOCABULARY, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, max_position_embeddings=256,
    rms_norm_eps=1e-6, tie_word_embeddings=False,
)
# Merges are learned from the words of this text.
TEXT = ["the borrow checker said that the other borrow was there 1234 times, and it's the last: über naïve 日本語"] * 4
QWEN_2 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def randomise(model, generator):
    for name, parameter in sorted(model.named_parameters()):
        noise = torch.randn(parameter.shape, generator=generator)
        if "embed_tokens" in name:
            value = noise
        elif parameter.dim() >= 2:
            value = noise / parameter.shape[-1] ** 0.5
        elif name.endswith("bias") or name.endswith("sinks"):
            value = noise * 0.5
        else:
            value = parameter.data.mean() + noise * 0.2
        parameter.data.copy_(value)
    for name, buffer in model.named_buffers():
        if "correction_bias" in name:
            buffer.data.copy_(torch.randn(buffer.shape, generator=generator) * 0.1)


def byte_level(folder):
    """Writes a tokenizer like Qwen's: words by a pattern, then bytes; special tokens come last."""
    tokenizer = Tokenizer(models.BPE())
    split = pre_tokenizers.Split(Regex(QWEN_2), "isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator(TEXT, trainers.BpeTrainer(vocab_size=300, initial_alphabet=alphabet, show_progress=False))
    tokenizer.add_special_tokens(["<|endoftext|>", "<|im_start|>", "<|im_end|>"])
    tokenizer.add_tokens([AddedToken("<think>", special=False)])
    tokenizer.save(str(folder / "tokenizer.json"))
    template = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    config = {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>", "add_bos_token": False, "chat_template": template}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


def sentence_piece(folder):
    """Writes a tokenizer like Llama's: spaces are letters, bytes represent characters without a
    token, and texts begin with BOS.
    """
    letters = ["<unk>", "<s>", "</s>"] + [f"<0x{byte:02X}>" for byte in range(256)]
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    trainer = trainers.BpeTrainer(vocab_size=VOCABULARY, special_tokens=letters, show_progress=False, limit_alphabet=24)
    tokenizer.train_from_iterator(TEXT, trainer)
    # The trainer marks byte tokens as special, but they are ordinary.
    state = json.loads(tokenizer.to_str())
    state["added_tokens"] = [token for token in state["added_tokens"] if token["id"] < 3]
    state["model"].update(unk_token="<unk>", byte_fallback=True, fuse_unk=True)
    # SentencePiece gives scores to tokens, not to pairs. Every pair that forms a token is a merge,
    # as in converters.
    vocabulary = state["model"]["vocab"]
    order = sorted((id, token) for token, id in vocabulary.items() if id >= len(letters) and len(token) > 1)
    state["model"]["merges"] = [
        [token[:at], token[at:]] for _, token in order for at in range(1, len(token)) if token[:at] in vocabulary and token[at:] in vocabulary
    ]
    tokenizer = Tokenizer.from_str(json.dumps(state))
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", 1)])
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"bos_token": {"content": "<s>"}, "eos_token": "</s>", "unk_token": "<unk>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


def to_f8(state, rows, columns):
    """Quantises matrices of products to `float8_e4m3fn` with a scale per block.

    Also returns the numbers that they represent.
    """
    stored, meant = {}, {}
    for name, value in state.items():
        if value.dim() != 2 or any(part in name for part in ("embed_tokens", "lm_head", "mlp.gate.")):
            stored[name] = meant[name] = value
            continue
        value = value.float()
        scales = torch.empty(-(-value.shape[0] // rows), -(-value.shape[1] // columns))
        codes = torch.empty_like(value, dtype=torch.float8_e4m3fn)
        numbers = torch.empty_like(value)
        for i in range(scales.shape[0]):
            for j in range(scales.shape[1]):
                at = (slice(i * rows, (i + 1) * rows), slice(j * columns, (j + 1) * columns))
                scales[i, j] = value[at].abs().max() / 448
                codes[at] = (value[at] / scales[i, j]).to(torch.float8_e4m3fn)
                numbers[at] = codes[at].float() * scales[i, j]
        stored[name], stored[f"{name}_scale_inv"] = codes, scales
        meant[name] = numbers.to(torch.bfloat16)
    return stored, meant


def to_mxfp4(state, generator):
    """Makes matrices of experts from random MXFP4 blocks. Also returns the numbers that they represent."""
    values = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6])
    stored, meant = {}, {}
    for name, value in state.items():
        if not name.endswith(("experts.gate_up_proj", "experts.down_proj")):
            stored[name] = meant[name] = value
            continue
        experts, inner, outer = value.shape
        blocks = torch.randint(0, 256, (experts, outer, inner // 32, 16), generator=generator, dtype=torch.uint8)
        scales = torch.randint(122, 126, (experts, outer, inner // 32), generator=generator, dtype=torch.uint8)
        stored[f"{name}_blocks"], stored[f"{name}_scales"] = blocks, scales
        codes = torch.stack((blocks & 15, blocks >> 4), dim=-1).reshape(experts, outer, inner // 32, 32)
        numbers = values[codes.long()] * torch.exp2(scales.float() - 127).unsqueeze(-1)
        meant[name] = numbers.reshape(experts, outer, inner).transpose(1, 2).contiguous().to(value.dtype)
    return stored, meant


def convert(llama_cpp, folder, out):
    """Writes the folder as GGUF: matrices in bf16, no tokenizer."""
    sys.path[:0] = [str(llama_cpp), str(llama_cpp / "gguf-py")]
    import gguf
    from conversion import ModelBase, ModelType, get_model_architecture, get_model_class

    parameters = ModelBase.load_hparams(folder, False)
    converter = get_model_class(get_model_architecture(parameters, ModelType.TEXT))

    class WithoutTokenizer(converter):
        model_arch = converter.model_arch

        def set_vocab(self):
            self._set_vocab_none()
            self.gguf_writer.add_vocab_size(VOCABULARY)

    with torch.inference_mode():
        WithoutTokenizer(folder, gguf.LlamaFileType.MOSTLY_BF16, out, eager=True, model_name=out.stem).write()


def configure(folder, changes):
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes, indent=1) + "\n")


def make(name, config, model_class, llama_cpp):
    generator = torch.Generator().manual_seed(SEED)
    model = model_class(config).eval()
    model.set_experts_implementation("eager")
    randomise(model, generator)
    model = model.to(torch.bfloat16)
    folder = HERE / name
    shutil.rmtree(folder, ignore_errors=True)
    model.save_pretrained(folder, max_shard_size="40KB" if name == "qwen3moe" else "1GB")
    stored = {}
    for file in folder.glob("*.safetensors"):
        stored |= load_file(file)
    if name == "deepseek-fp8":
        files, meant = to_f8(stored, 48, 16)
        # The configuration of transformers lacks these keys.
        configure(folder, {"scoring_func": "sigmoid", "quantization_config": {"quant_method": "fp8", "weight_block_size": [48, 16]}})
    elif name == "gpt-oss-mxfp4":
        files, meant = to_mxfp4(stored, generator)
        configure(folder, {"quantization_config": {"quant_method": "mxfp4", "modules_to_not_convert": []}})
    else:
        files, meant = None, stored
    if files:
        save_file(files, folder / "model.safetensors", metadata={"format": "pt"})
    {"qwen3moe": byte_level, "deepseek-fp8": sentence_piece}.get(name, lambda _: None)(folder)
    out = HERE / "gguf" / f"{name}.gguf"
    out.parent.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as plain:
        convert(llama_cpp, folder, out)
        # The represented numbers, in a folder that transformers reads.
        save_file(meant, Path(plain) / "model.safetensors", metadata={"format": "pt"})
        config.save_pretrained(plain)
        exact = model_class.from_pretrained(plain, dtype=torch.float32).eval()
    exact.set_experts_implementation("eager")
    tokens = torch.randint(0, VOCABULARY, (TOKENS,), generator=generator).tolist()
    with torch.inference_mode():
        logits = exact(input_ids=torch.tensor([tokens])).logits[0].numpy()
    np.save(HERE / "expect" / f"{name}.npy", logits[-KEPT:])
    (HERE / "expect" / f"{name}.json").write_text(json.dumps({"tokens": tokens, "logits": f"{name}.npy"}) + "\n")


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--llama-cpp", type=Path, required=True)
    llama_cpp = arguments.parse_args().llama_cpp.resolve()
    (HERE / "expect").mkdir(exist_ok=True)
    make(
        "qwen3moe",
        Qwen3MoeConfig(
            **SMALL, intermediate_size=64, moe_intermediate_size=16, num_key_value_heads=2, head_dim=16, num_experts=4, num_experts_per_tok=2, norm_topk_prob=True
        ),
        Qwen3MoeForCausalLM,
        llama_cpp,
    )
    make(
        "deepseek-fp8",
        DeepseekV3Config(
            **SMALL, intermediate_size=64, moe_intermediate_size=16, num_key_value_heads=4, n_routed_experts=4, num_experts_per_tok=2, n_shared_experts=1,
            first_k_dense_replace=1, q_lora_rank=24, kv_lora_rank=32, qk_nope_head_dim=16, qk_rope_head_dim=8, v_head_dim=16, n_group=2, topk_group=1,
            routed_scaling_factor=2.0, norm_topk_prob=True,
        ),
        DeepseekV3ForCausalLM,
        llama_cpp,
    )
    make(
        "gpt-oss-mxfp4",
        GptOssConfig(**SMALL, intermediate_size=32, num_key_value_heads=2, head_dim=16, num_local_experts=3, num_experts_per_tok=2, sliding_window=16, rope_parameters={"rope_type": "default", "rope_theta": 10000.0}),
        GptOssForCausalLM,
        llama_cpp,
    )


main()
