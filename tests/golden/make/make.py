"""Makes golden models: tiny models with random weights by Hugging Face transformers, converted by
llama.cpp's converter, with their exact logits.

    pip install torch transformers numpy          # torch for CPUs is enough; transformers 5.23 or later
    pip download --no-deps --no-binary :all: llama-cpp-python==0.3.36    # unpack it: the converter is in vendor/llama.cpp
    python make.py --llama-cpp vendor/llama.cpp [NAME ...]

`models.py` lists the models. Logits are computed from the weights of the file (matrices in f16), in f64 unless the
code of transformers uses another type.
"""

import argparse
import json
import re
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file

from models import MODELS, ByHand

GOLDEN = Path(__file__).resolve().parent.parent
# Two chunks of 64 and an incomplete one.
TOKENS = 140
# The logits of the last positions are kept.
KEPT = 24
SEED = 20261125


def is_taps(name):
    """Returns whether a parameter belongs to a convolution and stays in f32.

    Converters treat the one for states of last tokens as a matrix.
    """
    return name.endswith(("conv1d.weight", "conv.weight")) and ".ple." not in name


def randomise(model, generator):
    """Gives every parameter random numbers, also norms and others that begin at 1 or 0, so that
    swapped parameters are noticed.
    """
    # The biases of routers are buffers, not parameters.
    biases = [(name, buffer) for name, buffer in model.named_buffers() if name.endswith("bias")]
    for name, parameter in sorted([*model.named_parameters(), *biases], key=lambda named: named[0]):
        noise = torch.randn(parameter.shape, generator=generator)
        if name.endswith("A_log"):
            value = torch.log(torch.rand(parameter.shape, generator=generator) * 4 + 0.25)
        elif is_taps(name):
            value = noise * 0.4
        elif "embed_tokens" in name:
            value = noise
        elif parameter.dim() >= 2:
            # Products keep about the magnitude of their inputs.
            value = noise / parameter.shape[-1] ** 0.5
        elif name.endswith(("bias", "dt_bias", "D")):
            value = noise * 0.5
        else:
            value = parameter.data.mean() + noise * 0.2
        parameter.data.copy_(value)
    for name, buffer in sorted(model.named_buffers()):
        if name.endswith("layer_scalar"):
            buffer.copy_(torch.rand(buffer.shape, generator=generator) + 0.5)
        # Table of experts by token.
        if name.endswith("tid2eid"):
            experts = max(child.shape[0] for n, child in model.named_parameters() if n.endswith("mlp.gate.weight"))
            rows = [torch.randperm(experts, generator=generator)[: buffer.shape[1]] for _ in range(buffer.shape[0])]
            buffer.copy_(torch.stack(rows))
        # Bias that a router adds only for the choice.
        if name.endswith(("e_score_correction_bias", "expert_bias")):
            buffer.copy_(torch.randn(buffer.shape, generator=generator) * 0.1)


def round_matrices(model):
    """Rounds matrices to f16, as in the file."""
    for name, parameter in model.named_parameters():
        if parameter.dim() >= 2 and not is_taps(name):
            parameter.data.copy_(parameter.data.half().float())


# Values of configurations that transformers has renamed, in the form that the converter knows.
OLD_WORDS = {
    "granitemoehybrid": {"layer_types": {"linear_attention": "mamba", "full_attention": "attention"}},
    "qwen4_exp_text": {"layer_types": {"indexed_attention": "full_attention"}},
}
# Classes of models in the converter's names, and converter classes that serve several kinds of a
# model.
OLD_CLASSES = {"PhimoeForCausalLM": "PhiMoEForCausalLM", "Mistral4ForCausalLM": "Mistral3ForConditionalGeneration"}
OLD_CLASSES |= {"MptForCausalLM": "MPTForCausalLM", "MptNormed": "MPTForCausalLM"}
PARTS = {"ministral3": "Ministral3Model", "mistral4": "Mistral4Model"}
# Layers of Nemotron-H in the letters of its first files.
PATTERN = {"mamba": "M", "linear_attention": "M", "attention": "*", "full_attention": "*", "mlp": "-", "moe": "E"}


def as_converter_knows(parameters):
    """Changes a configuration to the form that the converter knows."""
    for key, words in OLD_WORDS.get(parameters["model_type"], {}).items():
        parameters[key] = [words.get(word, word) for word in parameters[key]]
    if parameters["model_type"] == "gpt2":
        parameters["n_ctx"] = parameters["n_positions"]
    if parameters["model_type"] == "gpt_neox":
        parameters["rotary_pct"] = parameters["rope_parameters"]["partial_rotary_factor"]
    if parameters["model_type"] == "falcon" and not parameters["new_decoder_architecture"] and parameters["multi_query"]:
        parameters["num_kv_heads"] = 1
    if parameters["model_type"] == "bamba":
        parameters["attn_rotary_emb"] = parameters["hidden_size"] // parameters["num_attention_heads"] // 2
    if parameters["model_type"] == "cohere2":
        parameters["rotary_pct"] = 1.0
    if parameters["model_type"] == "nemotron_h":
        layers = parameters["layers_block_type"]
        parameters["hybrid_override_pattern"] = "".join(PATTERN[layer] for layer in layers)
        # This key tells the converter that the model has experts.
        if "moe" not in layers:
            for key in ["num_experts_per_tok", "n_routed_experts", "n_group", "topk_group"]:
                del parameters[key]
    if parameters["model_type"] == "kimi_linear":
        layers = list(enumerate(parameters["layer_types"], 1))
        parameters["linear_attn_config"] = {
            "full_attn_layers": [layer for layer, kind in layers if kind == "full_attention"],
            "kda_layers": [layer for layer, kind in layers if kind == "linear_attention"],
            "head_dim": parameters["linear_head_dim"],
            "num_heads": parameters["linear_num_heads"],
            "short_conv_kernel_size": parameters["linear_conv_kernel_dim"],
        }
        parameters["first_k_dense_replace"] = parameters["mlp_layer_types"].count("dense")
        parameters["moe_router_activation_func"] = "sigmoid"
    if parameters["model_type"] == "minimax":
        parameters["architectures"] = ["MiniMaxText01ForCausalLM"]
        parameters["rotary_dim"] = parameters["head_dim"]
        for part, old in [("full_attn", "full_attention"), ("linear_attn", "linear_attention"), ("mlp", "mlp")]:
            for factor in ("alpha", "beta"):
                parameters[f"layernorm_{old}_{factor}"] = parameters[f"{part}_{factor}_factor"]
    if parameters["model_type"] in ("granite_swa", "granitemoe_swa"):
        parameters["no_rope_layers"] = [int(base > 0) for base in parameters["layer_rope_theta"]]
    if parameters["model_type"] == "dots3_note_text" and "per_layer_config" in parameters:
        sizes = ["num_attention_heads", "num_key_value_heads", "q_lora_rank", "kv_lora_rank", "head_dim", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"]
        local = {key: parameters[key] for key in sizes} | next(iter(parameters["per_layer_config"].values()))
        ropes = parameters.pop("rope_parameters")
        parameters |= {f"swa_{key}": local[key] for key in sizes} | {
            "layer_types": ["full_attention" if kind == "indexed_attention" else kind for kind in parameters["layer_types"]],
            "first_k_dense_replace": parameters["mlp_layer_types"].count("dense"),
            "sliding_window_size": parameters["sliding_window"],
            "scoring_func": "sigmoid",
            "apply_mla_qkv_lora_rescale": True,
            "rope_theta": ropes["indexed_attention"]["rope_theta"],
            "swa_rope_theta": ropes["sliding_attention"]["rope_theta"],
        }
    if parameters["model_type"] == "mimo_v2_flash":
        local = [int(kind == "sliding_attention") for kind in parameters["layer_types"]]
        ropes = parameters["rope_parameters"]
        parameters |= {
            "hybrid_layer_pattern": local,
            "swa_head_dim": parameters["head_dim"],
            "swa_v_head_dim": parameters["v_head_dim"],
            "swa_num_attention_heads": parameters["num_attention_heads"],
            "swa_num_key_value_heads": 2 * parameters["num_key_value_heads"],
            "topk_method": "noaux_tc",
            "scoring_func": "sigmoid",
            "layernorm_epsilon": parameters["rms_norm_eps"],
            "rope_parameters": ropes["full_attention"],
            "swa_rope_theta": ropes["sliding_attention"]["rope_theta"],
        }
    if parameters["model_type"] == "minimax_m3_vl_text":
        parameters["architectures"] = ["MiniMaxM3SparseForCausalLM"]
        parameters["n_shared_experts"] = 1
        parameters["moe_layer_freq"] = [int(kind == "sparse") for kind in parameters["mlp_layer_types"]]
        parameters["scoring_func"] = "sigmoid"
        parameters["sparse_attention_config"] = {
            "sparse_num_index_heads": parameters["index_n_heads"],
            "sparse_index_dim": parameters["index_head_dim"],
            "sparse_topk_blocks": parameters["index_topk_blocks"],
            "sparse_block_size": parameters["index_block_size"],
            "sparse_local_block": parameters["index_local_blocks"],
        }
    return parameters


# Tensor names of transformers as patterns, and their names on the hub. An empty name marks tensors
# that the hub does not have.
OLD_NAMES = {
    "minimax": [(r".*\.self_attn\.(slope_rate|\w+_decay)$", "")],
    "hy_v4": [
        (r"hc_pre\.(hc_\w+_layer)\.", r"\1.hc_pre."),
        (r"hc_pre\.hc_head\.", "hc_head."),
        (r"(mlp|shared_experts)\.linear_gate", r"\1.gate_proj"),
    ],
    "kimi_linear": [(r"block_sparse_moe\.(\w+_proj)", r"mlp.\1")],
    "minimax_m3_vl_text": [
        (r"mlp\.(gate\.|experts\.|shared_experts\.)", r"block_sparse_moe.\1"),
        (r"gate\.e_score", "e_score"),
        (r"indexer\.", "index_"),
    ],
}


def apart(tensors):
    """Divides tensors that contain gate and up, and tensors of all experts."""
    for name, tensor in tensors.items():
        stem, both, rest = name.partition("gate_up_proj")
        names = [name]
        if both:
            tensor, names = torch.cat(tensor.chunk(2, dim=-2)), [stem + half + rest for half in ("gate_proj", "up_proj")]
        if tensor.dim() == 3 and "experts" in name:
            parts = {"gate_proj": "w1", "down_proj": "w2", "up_proj": "w3"}
            halves = tensor.chunk(len(names))
            for name, half in zip(names, halves):
                stem, _, part = name.rpartition(".")
                yield from ((f"{stem}.{i}.{parts[part]}.weight", matrix.clone()) for i, matrix in enumerate(half))
        else:
            yield from zip(names, (half.clone() for half in tensor.chunk(len(names))))


def rename(folder, model_type):
    """Gives the tensors of a folder the names that the converter knows."""
    if rules := OLD_NAMES.get(model_type):
        path = folder / "model.safetensors"
        tensors = dict(apart(load_file(path))) if model_type == "minimax_m3_vl_text" else load_file(path)
        for pattern, name in rules:
            tensors = {re.sub(pattern, name, old): tensor for old, tensor in tensors.items()}
        tensors.pop("", None)
        save_file(tensors, path, {"format": "pt"})


def convert(llama_cpp, folder, out):
    """Writes the model in `folder` as GGUF: matrices in f16, no tokenizer."""
    sys.path[:0] = [str(llama_cpp), str(llama_cpp / "gguf-py")]
    import gguf
    from conversion import ModelBase, ModelType, get_model_architecture, get_model_class

    parameters = as_converter_knows(ModelBase.load_hparams(folder, False))
    architecture = get_model_architecture(parameters, ModelType.TEXT)
    converter = get_model_class(OLD_CLASSES.get(architecture, architecture))
    converter = getattr(converter, PARTS.get(parameters["model_type"], ""), converter)
    vocabulary = parameters.get("text_config", parameters)["vocab_size"]

    # Some converters count the tokens of this file.
    tokens = {"model": {"vocab": {str(i): i for i in range(vocabulary)}}, "added_tokens": []}
    (folder / "tokenizer.json").write_text(json.dumps(tokens))

    class WithoutTokenizer(converter):
        model_arch = converter.model_arch
        # transformers makes no draft layers.
        no_mtp = True
        # The converter of RWKV collects these from a model, and would keep them for the next model.
        lerp_weights = {}

        def _get_suppress_tokens(self):
            return None

        def modify_tensors(self, *tensor):
            # Some overrides return an iterator where they should yield.
            rest = yield from super().modify_tensors(*tensor)
            if rest is not None:
                yield from rest

        def set_vocab(self):
            self._set_vocab_none()
            self.gguf_writer.add_vocab_size(vocabulary)

    with torch.inference_mode():
        WithoutTokenizer(folder, gguf.LlamaFileType.MOSTLY_F16, out, eager=True, model_name=out.stem, hparams=parameters).write()


def write_by_hand(llama_cpp, out, name, by_hand, model, config):
    """Writes a file that the converter cannot write: keys and tensors from `by_hand`, matrices in
    f16, or f32 if `by_hand` names them.
    """
    sys.path[:0] = [str(llama_cpp / "gguf-py")]
    import gguf

    architecture = by_hand.architecture or name.split("-")[0]
    writer = gguf.GGUFWriter(out, architecture)
    writer.add_string("tokenizer.ggml.model", "none")
    for key, value in by_hand.keys(config).items():
        kind = gguf.GGUFValueType.get_type(value)
        if isinstance(value, int) and not isinstance(value, bool):
            kind = gguf.GGUFValueType.UINT32
        writer.add_key_value(f"{architecture}.{key}", value, kind)
    for tensor, data in by_hand.tensors({key: value.numpy() for key, value in model.state_dict().items()}, config).items():
        single = data.ndim < 2 or any(part in tensor for part in by_hand.single)
        kind = np.int32 if np.issubdtype(data.dtype, np.integer) else np.float32 if single else np.float16
        writer.add_tensor(tensor, np.ascontiguousarray(data.astype(kind)))
    writer.write_header_to_file(), writer.write_kv_data_to_file(), writer.write_tensors_to_file(), writer.close()


def rewrite(path, change):
    """Writes a file again after `change` has edited its tensors (arrays by name) and the keys of the architecture."""
    import gguf

    reader = gguf.GGUFReader(path)
    tensors = {tensor.name: np.array(tensor.data) for tensor in reader.tensors}
    keys = {key: field.contents() for key, field in reader.fields.items() if not key.startswith("GGUF.")}
    change(tensors, keys)
    writer = gguf.GGUFWriter(path, keys.pop("general.architecture"))
    for key, value in keys.items():
        if field := reader.fields.get(key):
            kind = field.types[0]
            writer.add_key_value(key, value, kind, field.types[-1] if kind == gguf.GGUFValueType.ARRAY else None)
        else:
            writer.add_key_value(key, value, gguf.GGUFValueType.get_type(value))
    for name, data in tensors.items():
        writer.add_tensor(name, data)
    writer.write_header_to_file(), writer.write_kv_data_to_file(), writer.write_tensors_to_file(), writer.close()


def prepared(name):
    """Returns a model by name with random parameters, and the state of the generator after them."""
    config, model_class, *_ = MODELS[name]
    generator = torch.Generator().manual_seed(SEED)
    # Some parameters begin at random numbers (sinks), and their mean remains.
    torch.manual_seed(SEED)
    model = model_class(config).eval()
    if hasattr(model, "set_experts_implementation"):
        # Grouped products do not support f64.
        model.set_experts_implementation("eager")
    randomise(model, generator)
    round_matrices(model)
    return model, generator


def make(name, llama_cpp):
    config, _, limit, rewritten = MODELS[name]
    model, generator = prepared(name)
    vocabulary = config.get_text_config().vocab_size
    tokens = torch.randint(0, vocabulary, (TOKENS,), generator=generator).tolist()
    out = GOLDEN / "models" / f"{name}.gguf"
    if isinstance(rewritten, ByHand):
        write_by_hand(llama_cpp, out, name, rewritten, model, config)
        rewritten = None
    else:
        with tempfile.TemporaryDirectory() as folder:
            model.save_pretrained(folder)
            rename(Path(folder), config.model_type)
            convert(llama_cpp, Path(folder), out)
    if rewritten:
        rewrite(out, lambda tensors, keys: rewritten(tensors, keys, config))
    with torch.inference_mode():
        ids = torch.tensor([tokens])
        single = model(input_ids=ids).logits[0].double().numpy()
        exact = model.double()(input_ids=ids).logits[0].double().numpy()
    difference = ((single - exact) ** 2).sum() / (exact**2).sum()
    print(f"{name}: {out.stat().st_size} bytes, f32 against f64: NMSE {difference:.1e}, logits of deviation {exact.std():.2f}")
    np.save(GOLDEN / "expect" / f"{name}.npy", exact[-KEPT:].astype(np.float32))
    expect = {
        "model": f"models/{name}.gguf",
        "architecture": name.split("-")[0],
        "prompt_tokens": tokens,
        "logits": f"expect/{name}.npy",
        "interpreter_nmse_max": 1e-9,
        "compiled_nmse_max": limit,
    }
    (GOLDEN / "expect" / f"{name}.json").write_text(json.dumps(expect) + "\n")


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--llama-cpp", type=Path, required=True)
    arguments.add_argument("names", nargs="*", default=sorted(MODELS))
    arguments = arguments.parse_args()
    for name in arguments.names or sorted(MODELS):
        make(name, arguments.llama_cpp.resolve())


if __name__ == "__main__":
    main()
