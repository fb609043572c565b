"""Measures one layer of experts in kt-kernel, from a file that ixc-bench makes: one line of JSON for each number of tokens.

usage: kt_moe.py LAYER.gguf --threads N [--repetitions 3] [--variant avx2|native] [--compare OUTPUTS.npy]

The measured function is `MOE.forward` of the class that takes GGUF blocks, with rows in bf16. Experts and their weights are
inputs, so the time does not include routing. It includes one call from Python. The calling thread spins until the workers are
done. With as many workers as processors, one worker shares a processor with it. `--compare` prints to standard error the
difference to the result of `ixc-bench layer --outputs`.

Only the package's extension module is loaded, because the rest of the package imports torch.
"""
import argparse
import importlib.util
import json
import pathlib
import sys
import time
from importlib.metadata import version

import numpy as np
from gguf import GGUFReader

parser = argparse.ArgumentParser()
parser.add_argument("layer")
parser.add_argument("--threads", type=int, required=True)
parser.add_argument("--repetitions", type=int, default=3)
parser.add_argument("--variant", default="avx2")
parser.add_argument("--compare")
args = parser.parse_args()

# Rows of a call.
CALLS_OF = (1, 128)
# Calls that are timed together, as in ixc's own measurement.
MOST_CALLS = 512
# Builds of the extension, best first, with a feature that each needs.
BUILDS = [
    ("amx", "amx_int8"),
    ("avx512_bf16", "avx512_bf16"),
    ("avx512_vbmi", "avx512_vbmi"),
    ("avx512_vnni", "avx512_vnni"),
    ("avx512_base", "avx512f"),
    ("avx2", "avx2"),
]


def extension(variant):
    if variant == "native":
        features = set(pathlib.Path("/proc/cpuinfo").read_text().split())
        variant = next(build for build, feature in BUILDS if feature in features)
    folder = pathlib.Path(importlib.util.find_spec("kt_kernel").submodule_search_locations[0])
    path = next(folder.glob(f"_kt_kernel_ext_{variant}.*.so"))
    spec = importlib.util.spec_from_file_location("kt_kernel_ext", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module, variant


def to_bf16(values):
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    # Rounds to the nearest number, and in a tie to the even one.
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def from_bf16(bits):
    return (bits.astype(np.uint32) << 16).view(np.float32)


kt, variant = extension(args.variant)
reader = GGUFReader(args.layer)
tensors = {tensor.name: tensor for tensor in reader.tensors}
used = int(reader.fields["ixc-bench-layer.expert_used_count"].contents())
gate, up, down = (tensors[f"blk.0.ffn_{name}_exps.weight"] for name in ("gate", "up", "down"))
# GGUF has the row length first.
width, inner, experts = (int(dim) for dim in gate.shape)

rows = to_bf16(tensors["layer.input"].data)
logits = np.array(tensors["layer.router"].data)
ids = np.ascontiguousarray(np.argsort(-logits, axis=1, kind="stable")[:, :used].astype(np.int64))
# A softmax over all experts, divided by the sum over the used experts, is a softmax over the used
# experts.
shares = np.exp(np.take_along_axis(logits, ids, axis=1))
shares = np.ascontiguousarray(shares / shares.sum(axis=1, keepdims=True), dtype=np.float32)

pool = kt.WorkerPoolConfig()
pool.subpool_count = 1
pool.subpool_numa_map = [0]
pool.subpool_thread_count = [args.threads]
cpu = kt.CPUInfer(pool)

mask = np.zeros(experts, dtype=np.bool_)
config = kt.moe.MOEConfig(experts, used, width, inner, mask.ctypes.data)
config.layer_idx = 0
config.pool = cpu.backend_
# The package itself sets these values for this class.
config.m_block = 32
config.group_min_len = 10
config.max_len = max(CALLS_OF)
config.group_max_len = max(CALLS_OF)
# kt-kernel reads the weights in this memory, so the arrays must live as long as the layer.
weights = [np.array(tensor.data) for tensor in (gate, up, down)]
config.gate_proj, config.up_proj, config.down_proj = (weight.ctypes.data for weight in weights)
types = [kt.kvcache.ggml_type(int(tensor.tensor_type)) for tensor in (gate, up, down)]
config.gate_type, config.up_type, config.down_type = types
config.hidden_type = kt.kvcache.ggml_type.BF16
moe = kt.moe.MOE(config)
identity = np.arange(experts, dtype=np.int32)
cpu.submit(moe.load_weights_task(identity.ctypes.data))
cpu.sync()
del tensors, reader, gate, up, down

output = np.zeros((max(CALLS_OF), width), dtype=np.uint16)
counts = {tokens: np.array([tokens], dtype=np.int32) for tokens in CALLS_OF}


def call(first, tokens):
    addresses = (ids[first:].ctypes.data, shares[first:].ctypes.data, rows[first:].ctypes.data, output.ctypes.data)
    moe.forward(counts[tokens].ctypes.data, used, *addresses, False)


if args.compare:
    right = np.load(args.compare)
    call(0, right.shape[0])
    found = from_bf16(output[: right.shape[0]])
    error = float(((found - right) ** 2).sum() / (right**2).sum())
    print(f"squared error against {args.compare}, relative: {error:.2e}", file=sys.stderr)

for tokens in CALLS_OF:
    values = []
    calls = min(rows.shape[0] // tokens, MOST_CALLS)
    for repetition in range(args.repetitions + 1):
        begin = time.perf_counter()
        for index in range(calls):
            call(index * tokens, tokens)
        seconds = (time.perf_counter() - begin) / calls
        # The first repetition does not count.
        if repetition > 0:
            values.append(seconds)
    print("RESULT " + json.dumps({"test": "layer", "tokens": tokens, "values": values}), flush=True)
print(f"kt-kernel {version('kt-kernel')}, {variant}", file=sys.stderr)
