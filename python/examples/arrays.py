"""Logits, vectors and experts of the built-in demo model as NumPy arrays."""

import numpy as np

import ixc


def main() -> None:
    with ixc.Model() as model:
        tokens = model.tokenize("The borrow checker")
        logits = model.logits(tokens)
        print(logits.shape, model.detokenize([int(logits[-1].argmax())]))
        vectors = model.embed(["The borrow checker", "A trait is"])
        print(vectors.shape, float(vectors[0] @ vectors[1]))
    with ixc.MoELayer() as experts:
        layer = experts.layers[0]
        rows = np.full((2, layer.width), 0.5, np.float32)
        ids = np.full((2, layer.used), -1)
        ids[:, 0] = 0
        job = experts.submit(rows, ids, np.ones((2, layer.used), np.float32))
        print(job.wait().shape)


main()
