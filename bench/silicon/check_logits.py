#!/usr/bin/env python3
"""Checks that native and emulated logits have the same bits, and measures their distance from exact logits.

usage: check_logits.py MODEL TARGET       compares MODEL-TARGET.npy with MODEL-TARGET-e.npy, and with the logits in models/MODEL.json, if it exists
       check_logits.py --tokens MODEL     prints the tokens to compute logits for
"""
import json
import pathlib
import sys

import numpy as np

KNOWN = 8  # Exact logits are of the last positions.


def expected(model):
    """Returns the stored expectations of a model, if any."""
    path = pathlib.Path(f"models/{model}.json")
    return json.loads(path.read_text()) if path.exists() else None


def main():
    if sys.argv[1] == "--tokens":
        known = expected(sys.argv[2])
        tokens = known["prompt_tokens"] if known else range(1, 40)
        print(",".join(map(str, tokens)))
        return
    model, target = sys.argv[1:]
    native = np.load(f"{model}-{target}.npy")
    try:
        emulated = np.load(f"{model}-{target}-e.npy")
        same = "yes" if (native.view(np.uint32) == emulated.view(np.uint32)).all() else "NO"
    except OSError as error:
        same = f"NOT COMPARED: {error}"
    distance = ""
    if known := expected(model):
        exact = np.load("models/" + known["logits"].split("/")[-1]).astype(float)
        error = ((native[-KNOWN:] - exact) ** 2).sum() / (exact**2).sum()
        verdict = "" if error <= known["compiled_nmse_max"] else " TOO FAR"
        distance = f"nmse {error:.2e}, at most {known['compiled_nmse_max']:.1e}{verdict}; "
    print(f"{model:20} {target:7} {distance}native = emulated: {same}")


if __name__ == "__main__":
    main()
