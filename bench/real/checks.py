"""Comparisons with other engines: tokens, logits, perplexity, greedy text, speed and vectors."""

import json
import statistics
import subprocess
from pathlib import Path

import numpy as np

import hf
import texts
from tables import cell, spread

ROOT = Path(__file__).resolve().parents[2]
# Max error of logits, as a multiple of llama.cpp's on the same file.
ERROR_RATIO = 1.25
# Max difference of the perplexities of two engines on one file.
PERPLEXITY = 0.02
COSINE = 0.99999
# Tokens of a text whose logits are compared, and of greedy text.
TEXT_TOKENS, GREEDY_TOKENS = 24, 32


def nmse(found, exact):
    return float(((found.astype(np.float64) - exact) ** 2).sum() / (exact.astype(np.float64) ** 2).sum())


def tokens(report, ixc, llama, name, path, server):
    """Compares token ids of 1,000 texts with those of Hugging Face and llama.cpp."""
    report.title(f"{name}: token ids")
    all_texts = texts.all_texts()
    tokenizer = hf.tokenizer(path)
    ours = ixc.ids(server, all_texts)
    theirs = [tokenizer.encode(text, add_special_tokens=False).ids for text in all_texts]
    how = "its tokenizer.json" if path.is_dir() else "built from the file's tokens and merges"
    rows = [(f"Hugging Face tokenizers, {how}", *compared(ours, theirs))]
    if llama and path.is_file():
        with llama.model(path, 64) as model:
            rows.append(("llama.cpp", *compared(ours, [model.ids(text) for text in all_texts])))
    report.table(["beside", "texts", "equal", "ixc's tokens"], [(row[0], len(all_texts), row[1], sum(map(len, ours))) for row in rows])
    for who, equal, first in rows:
        if first is not None:
            report.line(f"- the first text that differs from {who}: {all_texts[first]!r}: {ours[first]} and {theirs[first]}")
    report.check(rows[0][1] == len(all_texts), f"{name}: ids are those of Hugging Face's tokenizers")
    return ours


def compared(ours, theirs):
    """Returns the number of equal texts, and the index of the first different one."""
    other = [number for number, (a, b) in enumerate(zip(ours, theirs)) if list(a) != list(b)]
    return len(ours) - len(other), other[0] if other else None


def prompts_of(ixc, server, count):
    """Returns the token ids of texts, with the tokens that the model needs before a text."""
    return [ids[:TEXT_TOKENS] for ids in ixc.ids(server, texts.short_texts(count), special=True)]


def logits(report, ixc, llama, name, path, server, count=20):
    """Compares the errors of both engines' logits, relative to the reference interpreter's logits."""
    report.title(f"{name}: error of logits over the reference interpreter's, {count} texts")
    rows, ratios, ours_all, theirs_all, same = [], [], [], [], 0
    prompts = prompts_of(ixc, server, count)
    with llama.model(path) if llama else no_model() as model:
        for ids in prompts:
            exact = ixc.logits(path, ids, "interpreter")
            ours = ixc.logits(path, ids)
            ours_all.append(nmse(ours, exact))
            same += int((ours.argmax(1) == exact.argmax(1)).sum())
            if model:
                theirs_all.append(nmse(model.logits(ids), exact))
                ratios.append(ours_all[-1] / theirs_all[-1])
    rows.append(("ixc", f"{statistics.mean(ours_all):.2e}", f"{max(ours_all):.2e}"))
    if model:
        rows.append(("llama.cpp", f"{statistics.mean(theirs_all):.2e}", f"{max(theirs_all):.2e}"))
    report.table(["engine", "mean NMSE", "largest"], rows)
    report.line()
    total = sum(map(len, prompts))
    report.line(f"The most likely token is the interpreter's at {same} of {total} positions.")
    if model:
        ratio = statistics.mean(ours_all) / statistics.mean(theirs_all)
        report.line(f"ixc's error is {ratio:.2f} of llama.cpp's; by text {spread(ratios)}.")
        report.check(ratio <= ERROR_RATIO, f"{name}: error at most {ERROR_RATIO} times llama.cpp's")


class no_model:
    """Context manager that stands for the model of an engine that is left out."""

    def __enter__(self):
        return None

    def __exit__(self, *_):
        return None


def perplexity(report, ixc, llama, name, path, folder, pieces=16, context=512):
    """Compares the perplexity of this repository's documentation."""
    text = folder / "docs.txt"
    text.write_text("\n".join(page.read_text() for page in sorted((ROOT / "docs").glob("*.md"))))
    report.title(f"{name}: perplexity of docs/*.md, {pieces} pieces of {context} tokens")
    found = ixc.perplexity(path, text, context, pieces)
    ours = found["perplexity"]
    rows = [("ixc eval", f"{ours:.4f}")]
    if llama:
        theirs, error = llama.perplexity(path, text, context, pieces)
        rows.append(("llama-perplexity", f"{theirs:.4f} ± {error:.4f}"))
    report.table(["program", "perplexity"], rows)
    if llama:
        report.check(abs(ours / theirs - 1) <= PERPLEXITY, f"{name}: perplexities are within {PERPLEXITY:.0%}: ratio {ours / theirs:.4f}")


def greedy(report, ixc, llama, name, path, server):
    """Compares the greedy text of 20 prompts. If two engines differ, exact logits decide."""
    report.title(f"{name}: greedy text of {len(texts.PROMPTS)} prompts, {GREEDY_TOKENS} tokens each")
    rows, agreed = [], 0
    with llama.model(path) if llama else no_model() as model:
        for prompt, ids in zip(texts.PROMPTS, ixc.ids(server, texts.PROMPTS, special=True)):
            body = {"prompt": ids, "n_predict": GREEDY_TOKENS, "temperature": 0, "return_tokens": True, "ignore_eos": True}
            answer = ixc.ask(server, "/completion", body)
            ours = answer["tokens"]
            equal, who = "-", ""
            if model:
                theirs = model.greedy(ids, GREEDY_TOKENS)
                equal = next((at for at, pair in enumerate(zip(ours, theirs)) if pair[0] != pair[1]), GREEDY_TOKENS)
                agreed += equal
                if equal < GREEDY_TOKENS:
                    exact = ixc.logits(path, ids + ours[:equal], "interpreter")[-1]
                    right = {ours[equal]: "ixc", theirs[equal]: "llama.cpp"}.get(int(exact.argmax()), "neither")
                    who = f"{right} (by {abs(float(exact[ours[equal]] - exact[theirs[equal]])):.3f})"
            rows.append((cell(prompt), cell(answer["content"]), equal, who))
    report.table(["prompt", "ixc's text", "tokens that agree", "the interpreter takes the side of"], rows)
    if model:
        report.line()
        report.line(f"{agreed} of {GREEDY_TOKENS * len(rows)} tokens come before the first difference.")


def speed(report, bench, ixc, llama, models, threads, rounds):
    """Compares prefill and decode with llama.cpp, in turns."""
    report.title("Speed beside llama.cpp, in turns")
    command = [bench, "compare", "--ixc", ixc.path, "--llama", llama.programs, *models, "-t", threads, "-p", "128,512", "-n", "64", "-r", rounds]
    run = subprocess.run(list(map(str, command)), capture_output=True, text=True)
    report.line("```text")
    report.line((run.stdout or run.stderr).rstrip())
    report.line("```")
    report.check(run.returncode == 0, "ixc-bench compare ends well")


def vectors(report, ixc, name, path, count=100):
    """Compares vectors of texts with those of sentence-transformers."""
    report.title(f"{name}: vectors of {count} texts")
    try:
        from sentence_transformers import SentenceTransformer
    except ImportError as error:
        report.line(f"NOT COMPARED: vectors with sentence-transformers: {error}")
        return
    model = SentenceTransformer(str(path), device="cpu")
    all_texts = texts.short_texts(count)
    right = model.encode(all_texts, convert_to_numpy=True).astype(np.float64)
    with ixc.server(path, "--embeddings", "--parallel", "8") as server:
        answer = ixc.ask(server, "/v1/embeddings", {"input": all_texts})
    found = np.array([row["embedding"] for row in answer["data"]])
    cosines = (found * right).sum(1) / np.linalg.norm(found, axis=1) / np.linalg.norm(right, axis=1)
    lengths = np.linalg.norm(found, axis=1) / np.linalg.norm(right, axis=1)
    report.table(
        ["beside", "texts", "least cosine", "mean of 1 - cosine", "lengths, ratio"],
        [("sentence-transformers", count, f"{cosines.min():.8f}", f"{(1 - cosines).mean():.1e}", f"{lengths.min():.6f} to {lengths.max():.6f}")],
    )
    report.check(cosines.min() >= COSINE, f"{name}: cosine at least {COSINE}")
