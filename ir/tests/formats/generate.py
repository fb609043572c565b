#!/usr/bin/env python3
"""Writes checksums.txt: checksums of pseudo-random blocks of each format, dequantised by the Python package `gguf`.

    pip install gguf==0.19 numpy && python3 ir/tests/formats/generate.py > ir/tests/formats/checksums.txt

`formats_of_gguf.rs` makes the same blocks and compares. A line is a format's name, its id, and a checksum (FNV-1a, 64 bits) of the f32 as
little-endian bytes, where -0 is 0.
"""

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType as Type
from gguf.quants import dequantize

BLOCKS = 64
# Offsets of half-precision numbers in a block, whose exponents are kept small.
HALVES = {
    "Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0],
    "Q2_K": [80, 82], "Q3_K": [108], "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208],
    "IQ4_NL": [0], "IQ4_XS": [0], "IQ3_XXS": [0], "IQ3_S": [0], "IQ2_XXS": [0], "IQ2_XS": [0], "IQ2_S": [0], "IQ1_S": [0],
    "TQ1_0": [52], "TQ2_0": [64], "MXFP4": [], "NVFP4": [], "IQ1_M": [],
}
# Formats that the package does not know: id, bytes of a block, and a function from the bytes after
# the scale to numbers (ggml's `dequantize_row_q1_0`, `dequantize_row_q2_0`,
# `quantize_row_q8_1_ref`).
OTHERS = {
    "Q8_1": (9, 36, lambda codes: codes[:, 2:].copy().view(np.int8)),
    "Q1_0": (41, 18, lambda codes: 2.0 * np.unpackbits(codes, axis=1, bitorder="little") - 1.0),
    "Q2_0": (42, 18, lambda codes: (codes[:, :, None] >> np.array([0, 2, 4, 6]) & 3).reshape(BLOCKS, -1) - 1.0),
}


def blocks(size, halves):
    """Bytes of a linear congruential generator, one a step."""
    state, out = 1, bytearray()
    for _ in range(BLOCKS * size):
        state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
        out.append(state >> 33 & 0xFF)
    for block in range(BLOCKS):
        for half in halves:
            # No infinity and no NaN.
            out[block * size + half + 1] &= 0xBB
    return np.frombuffer(bytes(out), dtype=np.uint8).reshape(BLOCKS, size)


def checksum(data):
    hash = 0xCBF29CE484222325
    for byte in data:
        hash = (hash ^ byte) * 0x100000001B3 % 2**64
    return hash


for name, halves in HALVES.items():
    format = Type[name]
    data = blocks(GGML_QUANT_SIZES[format][1], halves)
    if name == "IQ1_M":
        # The f16 scale is in the top four bits of four words; the last word has the exponent.
        data = data.copy()
        data[:, 55] &= 0xBF
    if name == "NVFP4":
        # Scales have no sign.
        data = data.copy()
        data[:, :4] &= 0x7F
    x = dequantize(data, format).astype(np.float32) + np.float32(0)
    print(name.lower(), int(format), f"{checksum(x.astype('<f4').tobytes()):016x}")

for name, (number, size, of) in OTHERS.items():
    data = blocks(size, [0])
    d = data[:, :2].copy().view(np.float16).astype(np.float32)
    x = d * of(data[:, 2:]).astype(np.float32) + np.float32(0)
    print(name.lower(), number, f"{checksum(x.astype('<f4').tobytes()):016x}")
