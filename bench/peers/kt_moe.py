"""Measures one layer of experts in kt-kernel, from a file that ixc-bench makes: one line of JSON for each number of tokens.

usage: kt_moe.py LAYER.gguf --threads N [--repetitions 3] [--variant avx2|native] [--compare OUTPUTS.npy]

What is timed is `MOE.forward` of the class that takes GGUF blocks, with rows in bf16 and with experts and weights chosen before:
the choice of experts is not in its time, and neither is Python's part but for one call. `--compare` says on standard error how far the
result is from what `ixc-bench layer --outputs` wrote.
"""
import argparse
import json
import os
import sys
import time

parser = argparse.ArgumentParser()
parser.add_argument("layer")
parser.add_argument("--threads", type=int, required=True)
parser.add_argument("--repetitions", type=int, default=3)
parser.add_argument("--variant", default="avx2")
parser.add_argument("--compare")
args = parser.parse_args()
# Before the package is loaded: it chooses its code then.
if args.variant != "native":
    os.environ["KT_KERNEL_CPU_VARIANT"] = args.variant

import numpy as np
import torch
from gguf import GGUFReader
import kt_kernel
from kt_kernel import kt_kernel_ext
from kt_kernel_ext.kvcache import ggml_type
from kt_kernel_ext.moe import MOE, MOEConfig

CALLS_OF = (1, 128)

torch.set_num_threads(args.threads)
reader = GGUFReader(args.layer)
tensors = {tensor.name: tensor for tensor in reader.tensors}
used = int(reader.fields["ixc-bench-layer.expert_used_count"].contents())
gate, up, down = (tensors[f"blk.0.ffn_{name}_exps.weight"] for name in ("gate", "up", "down"))
# GGUF has the row length first.
width, inner, experts = (int(dim) for dim in gate.shape)

rows = torch.from_numpy(np.array(tensors["layer.input"].data)).to(torch.bfloat16).contiguous()
logits = torch.from_numpy(np.array(tensors["layer.router"].data))
shares, ids = torch.topk(torch.softmax(logits, dim=-1), used, dim=-1)
shares = (shares / shares.sum(dim=-1, keepdim=True)).contiguous()
ids = ids.to(torch.int64).contiguous()

pool = kt_kernel_ext.WorkerPoolConfig()
pool.subpool_count = 1
pool.subpool_numa_map = [0]
pool.subpool_thread_count = [args.threads]
cpu = kt_kernel_ext.CPUInfer(pool)

mask = torch.zeros(experts, dtype=torch.bool)
config = MOEConfig(experts, used, width, inner, mask.data_ptr())
config.layer_idx = 0
config.pool = cpu.backend_
# As the package itself sets them for this class.
config.m_block = 32
config.group_min_len = 10
config.max_len = max(CALLS_OF)
config.group_max_len = max(CALLS_OF)
weights = [torch.from_numpy(np.array(tensor.data)).contiguous() for tensor in (gate, up, down)]
config.gate_proj, config.up_proj, config.down_proj = (weight.data_ptr() for weight in weights)
config.gate_type, config.up_type, config.down_type = (
    ggml_type(int(tensor.tensor_type)) for tensor in (gate, up, down)
)
config.hidden_type = ggml_type.BF16
moe = MOE(config)
identity = torch.arange(experts, dtype=torch.int32)
cpu.submit(moe.load_weights_task(identity.data_ptr()))
cpu.sync()
# It has copied them.
del weights

output = torch.zeros((max(CALLS_OF), width), dtype=torch.bfloat16)


def call(first, tokens):
    count = torch.tensor([tokens], dtype=torch.int32)
    cpu.submit(
        moe.forward_task(
            count.data_ptr(),
            used,
            ids[first:].data_ptr(),
            shares[first:].data_ptr(),
            rows[first:].data_ptr(),
            output.data_ptr(),
            False,
        )
    )
    cpu.sync()


if args.compare:
    right = np.load(args.compare)
    call(0, right.shape[0])
    found = output[: right.shape[0]].to(torch.float32).numpy()
    error = float(((found - right) ** 2).sum() / (right**2).sum())
    print(f"squared error against {args.compare}, relative: {error:.2e}", file=sys.stderr)

for tokens in CALLS_OF:
    values = []
    calls = rows.shape[0] // tokens
    for repetition in range(args.repetitions + 1):
        begin = time.perf_counter()
        for index in range(calls):
            call(index * tokens, tokens)
        seconds = (time.perf_counter() - begin) / calls
        # The first time does not count.
        if repetition > 0:
            values.append(seconds)
    print("RESULT " + json.dumps({"test": "layer", "tokens": tokens, "values": values}), flush=True)
print(f"kt-kernel {kt_kernel.__version__} {kt_kernel.__cpu_variant__}", file=sys.stderr)
