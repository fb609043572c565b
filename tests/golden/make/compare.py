"""Compares golden models with llama.cpp: most likely tokens of all positions, and errors of logits,
from the same weights.

    g++ -O1 -I llama.cpp/include -I llama.cpp/ggml/include llama_logits.cpp -o llama_logits -L build/bin -lllama -lggml -lggml-base
    python compare.py --llama-cpp llama.cpp --logits ./llama_logits --ixc target/debug/ixc [--golden FOLDER] [NAME ...]

llama.cpp reads copies in f32, so that it rounds only sums. The copies also have keys and shapes that its loaders
require and that golden files lack (`LACKING`). The interpreter of ixc reads the files themselves. The differences and
their causes are in docs/testing.md.
"""

import argparse
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

# Keys that converters write and golden files lack, with their values.
LACKING = {
    "afmoe": {"expert_weights_norm": True},
    "bailingmoe2": {"expert_gating_func": 2},
    "deepseek32": {"expert_gating_func": 2},
    "exaone-moe": {"expert_gating_func": 2},
}
# Convolutions of layers with three of them. In converted files they have two more dimensions.
TAPS = re.compile(r"ssm_conv1d_[qkv]\.weight$")
# Max error (NMSE) that is only due to sums. The largest comes from a table of GELU in f16.
SAME = 1e-6


def copied(gguf, path, out):
    """Writes a copy of a model with all weights in f32."""
    reader = gguf.GGUFReader(path)
    architecture = reader.fields["general.architecture"].contents()
    writer = gguf.GGUFWriter(out, architecture)
    integer, unsigned, array = gguf.GGUFValueType.INT32, gguf.GGUFValueType.UINT32, gguf.GGUFValueType.ARRAY
    for key, field in reader.fields.items():
        if key.startswith("GGUF.") or key == "general.architecture":
            continue
        kind = unsigned if field.types[0] == integer else field.types[0]
        writer.add_key_value(key, field.contents(), kind, field.types[-1] if kind == array else None)
    for key, value in LACKING.get(architecture, {}).items():
        kind = gguf.GGUFValueType.get_type(value)
        writer.add_key_value(f"{architecture}.{key}", value, unsigned if kind == integer else kind)
    for tensor in reader.tensors:
        data = np.array(tensor.data)
        if data.dtype != np.int32:
            data = gguf.quants.dequantize(data, tensor.tensor_type).astype(np.float32)
        if TAPS.search(tensor.name):
            data = data.reshape(1, -1, 1, data.shape[-1])
        writer.add_tensor(tensor.name, data)
    writer.write_header_to_file(), writer.write_kv_data_to_file(), writer.write_tensors_to_file(), writer.close()


def nmse(found, exact):
    return ((found - exact) ** 2).sum() / (exact**2).sum()


def compare(arguments, gguf, expect, scratch):
    """Returns the line of a model: whether the tokens agree, and the errors."""
    said = json.loads(expect.read_text())
    model, ids = arguments.golden / said["model"], said["prompt_tokens"]
    tokens = ",".join(map(str, ids))
    out, copy = scratch / "logits.npy", scratch / "copy.gguf"
    command = [arguments.ixc, "logits", "--force", "-q", "--engine", "interpreter", "--tokens", tokens, "-o", out, model]
    subprocess.run(command, check=True)
    ours = np.load(out).astype(np.float64)
    copied(gguf, model, copy)
    theirs = subprocess.run([arguments.logits, copy, scratch / "theirs", tokens], capture_output=True, text=True)
    if theirs.returncode:
        reasons = [line for line in theirs.stderr.splitlines() if re.search(r"error loading model|ASSERT", line)]
        return f"cannot load it: {reasons[-1].rpartition('error loading model')[2].strip(': ') if reasons else theirs.returncode}"
    theirs = np.fromfile(scratch / "theirs", np.float32).reshape(len(ids), -1)[:, : ours.shape[1]].astype(np.float64)
    exact = np.load(arguments.golden / said["logits"]).astype(np.float64)
    own, other = (nmse(logits[-len(exact) :], exact) for logits in (ours, theirs))
    same, error = (ours.argmax(1) == theirs.argmax(1)).sum(), nmse(theirs, ours)
    verdict = "agrees" if same == len(ids) and error <= SAME else "differs"
    return f"{verdict}: {same} of {len(ids)} tokens, NMSE {error:.0e}; of exact logits: ixc {own:.0e}, llama.cpp {other:.0e}"


def main():
    here = Path(__file__).resolve().parent.parent
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--llama-cpp", type=Path, required=True)
    arguments.add_argument("--logits", type=Path, required=True)
    arguments.add_argument("--ixc", type=Path, required=True)
    arguments.add_argument("--golden", type=Path, default=here)
    arguments.add_argument("names", nargs="*")
    arguments = arguments.parse_args()
    sys.path.insert(0, str(arguments.llama_cpp / "gguf-py"))
    import gguf
    import gguf.quants

    with tempfile.TemporaryDirectory() as scratch:
        for expect in sorted((arguments.golden / "expect").glob("*.json")):
            if not arguments.names or expect.stem in arguments.names:
                print(f"{expect.stem}: {compare(arguments, gguf, expect, Path(scratch))}", flush=True)


if __name__ == "__main__":
    main()
