"""Compares folders of safetensors with the GGUF files that llama.cpp's converter makes of them, for
models that the repository has only as GGUF files.

    pip install torch transformers numpy safetensors
    python compare.py --llama-cpp vendor/llama.cpp --ixc target/debug/ixc [NAME ...]

The models are golden models (`tests/golden/make/models.py`), as transformers saves them: matrices in f16, the rest in
f32. Logits of the folder must have the same bits as those of the GGUF file, in the interpreter and compiled for
`avx2`. They must also be near the logits of transformers. The program writes only to a temporary folder.
`--keep FOLDER` keeps the checkpoints there. `--describe FOLDER` writes their configurations, and names, types and
shapes of their tensors (`frontend/model_files/tests/vectors/checkpoints`).
"""

import argparse
import copy
import dataclasses
import json
import shutil
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "golden" / "make"))
import make as golden
from hub import HUB
from models import attends_every_second, half_turned, temperature_length, with_llama4_lengths, without_windows

TOKENS = 48
# Matrices that the converter keeps in f32. Golden files that it did not write may have them in f16.
SINGLE = ["ffn_gate_inp", "indexer.proj"]
# Folders in the hub's form from which the converter makes no comparable file. It lacks a key that
# llama.cpp requires, knows only the sizes of one model, needs a class of the model's authors, or
# recurses without end.
LACKING = ["exaone", "pangu-embedded", "orion", "maincoder", "plamo", "maple", "mistral-large4", "baichuan", "baichuan-alibi", "longcat-flash", "qwen", "falcon-rw", "opt", "gptneo", "gptj", "chameleon", "chameleon-behind", "cogvlm"]
# Max error of the interpreter's logits, which differ from those of the file only in the order of
# sums.
NEAR = 1e-9


def halves(model):
    """Rounds matrices to f16, as in a file of that type. `save_pretrained` keeps the type of each parameter."""
    for name, parameter in model.named_parameters():
        if parameter.dim() >= 2 and not golden.is_taps(name) and not name.endswith("A_log"):
            parameter.data = parameter.data.half()


def logits(ixc, model, tokens, out, arguments):
    ids = ",".join(map(str, tokens))
    subprocess.run([ixc, "logits", "--force", "-q", "-t", "2", "--tokens", ids, "-o", out, model, *arguments], check=True)
    return np.load(out)


def as_on_the_hub(folder, change):
    """Writes a folder again with a changed configuration and changed tensors."""
    config, tensors = change(json.loads((folder / "config.json").read_text()), load_file(folder / "model.safetensors"))
    (folder / "config.json").write_text(json.dumps(config))
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "model.safetensors", {"format": "pt"})


def describe(folder, out):
    """Writes the configuration of a checkpoint of one file and its tensors. Only integer tensors have their numbers."""
    with open(folder / "model.safetensors", "rb") as file:
        header = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
    tensors = {name: [tensor["dtype"], tensor["shape"]] for name, tensor in sorted(header.items()) if name != "__metadata__"}
    numbers = load_file(folder / "model.safetensors")
    tensors |= {name: [*tensor, numbers[name].tolist()] for name, tensor in tensors.items() if tensor[0] == "I64"}
    config = json.loads((folder / "config.json").read_text())
    out.write_text(json.dumps({"config": config, "tensors": tensors}, separators=(",", ":")) + "\n")


def compare(name, arguments, scratch):
    model, generator = golden.prepared(name)
    vocabulary = model.config.get_text_config().vocab_size
    tokens = torch.randint(0, vocabulary, (TOKENS,), generator=generator).tolist()
    with torch.inference_mode():
        expected = copy.deepcopy(model).double()(input_ids=torch.tensor([tokens])).logits[0].numpy()
    halves(model)
    folder = (arguments.keep or scratch) / name
    model.save_pretrained(folder)
    if name in HUB:
        as_on_the_hub(folder, HUB[name])
    if arguments.describe:
        describe(folder, arguments.describe / f"{name}.json")
    gguf = scratch / f"{name}.gguf"
    llama_cpp, rewritten = arguments.llama_cpp.resolve(), golden.MODELS[name][3]
    if isinstance(rewritten, golden.ByHand) and (name not in HUB or name in LACKING):
        as_converted = dataclasses.replace(rewritten, single=[*rewritten.single, *SINGLE])
        golden.write_by_hand(llama_cpp, gguf, name, as_converted, model.float(), model.config)
    else:
        # The converter reads other names, and a made vocabulary in place of a tokenizer.
        converted = scratch / f"{name}-converted"
        shutil.copytree(folder, converted)
        golden.rename(converted, model.config.model_type)
        golden.convert(llama_cpp, converted, gguf)
        if rewritten and name not in HUB:
            golden.rewrite(gguf, lambda tensors, keys: rewritten(tensors, keys, model.config))
    out = scratch / "logits.npy"
    for engine in (["--engine", "interpreter"], ["--target", "avx2"]):
        ours, converted = (logits(arguments.ixc, path, tokens, out, engine) for path in (folder, gguf))
        if ours.tobytes() != converted.tobytes():
            difference = np.abs(ours - converted).max()
            return f"other bits than the GGUF file's ({' '.join(engine)}): {difference:.1e} at most"
        if engine[1] == "interpreter":
            error = ((ours - expected) ** 2).sum() / (expected**2).sum()
            if not error <= NEAR:
                return f"NMSE {error:.1e} of transformers' logits"
    return None


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--llama-cpp", type=Path, required=True)
    arguments.add_argument("--ixc", type=Path, required=True)
    arguments.add_argument("--keep", type=Path)
    arguments.add_argument("--describe", type=Path)
    arguments.add_argument("names", nargs="*")
    arguments = arguments.parse_args()
    # Tensors that the golden file changed differ from those of the folder.
    keys = [None, attends_every_second, temperature_length, with_llama4_lengths, without_windows, half_turned]
    names = arguments.names or sorted(name for name, (*_, rewritten) in golden.MODELS.items() if rewritten in keys or name in HUB or isinstance(rewritten, golden.ByHand))
    failed = 0
    with tempfile.TemporaryDirectory() as scratch:
        for name in names:
            try:
                problem = compare(name, arguments, Path(scratch))
            except subprocess.CalledProcessError as error:
                problem = f"{error.cmd[1]} of {error.cmd[-3]}: status {error.returncode}"
            failed += problem is not None
            print(f"{name}: {problem or 'the same bits'}", flush=True)
    sys.exit(failed > 0)


main()
