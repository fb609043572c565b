"""Engines of the comparison: the program `ixc`, and llama.cpp from `bench/peers/setup.sh llama`."""

import contextlib
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import served


class Failed(Exception):
    """A program ended with an error."""


def output(command, **options):
    run = subprocess.run([str(word) for word in command], capture_output=True, text=True, **options)
    if run.returncode:
        raise Failed(f"{' '.join(map(str, command[:4]))} … ended with {run.returncode}: {run.stderr.strip()[-400:]}")
    return run.stdout + run.stderr if options.get("stderr_too") else run.stdout


class Ixc:
    """The program at `path`, with `threads` threads."""

    def __init__(self, path, threads):
        self.path, self.threads = Path(path).resolve(), threads

    @contextlib.contextmanager
    def server(self, model, *options):
        """Runs a server of one model during the block."""
        server = served.Server([str(self.path), "serve", str(model), "-t", str(self.threads), *options])
        try:
            yield server
        finally:
            server.end()

    def ask(self, server, path, body):
        """Returns the answer to a request that must succeed."""
        status, text, _ = server.ask("POST", path, body)
        if status != 200:
            raise Failed(f"{path} answered {status}: {text[:400]}")
        return json.loads(text)

    def ids(self, server, texts, special=False):
        """Returns the token ids of texts. Names of special tokens count as text."""
        ask = lambda text: self.ask(server, "/tokenize", {"content": text, "add_special": special, "parse_special": False})
        return [ask(text)["tokens"] for text in texts]

    def logits(self, model, ids, engine="compiled"):
        """Logits [tokens, vocabulary] of token ids."""
        import numpy

        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder) / "logits.npy"
            threads = ["-t", str(self.threads)] if engine == "compiled" else []
            output([self.path, "logits", "-q", model, "--tokens", ",".join(map(str, ids)), "-o", out, "--engine", engine, *threads])
            return numpy.load(out)

    def perplexity(self, model, text, context, pieces):
        out = output([self.path, "eval", "-q", model, "--text", text, "-c", str(context), "--pieces", str(pieces), "-t", str(self.threads), "--json"])
        return json.loads(out)


class Llama:
    """llama.cpp in the folder of `setup.sh llama`: its programs, and its library through the package's own binding."""

    def __init__(self, folder, threads):
        self.folder, self.threads = Path(folder).resolve(), threads
        self.programs = self.folder / "build" / "bin"

    def is_there(self):
        return (self.programs / "llama-bench").exists()

    @contextlib.contextmanager
    def model(self, path, context=256):
        """Loads a model in this process. It keeps all logits of a context, so long contexts take memory."""
        os.environ["LLAMA_CPP_LIB_PATH"] = str(self.programs)
        sys.path.insert(0, str(self.folder / "source"))
        from llama_cpp import Llama as Binding

        binding = Binding(str(path), n_ctx=context, n_threads=self.threads, n_threads_batch=self.threads, logits_all=True, verbose=False)
        try:
            yield Loaded(binding)
        finally:
            binding.close()

    def perplexity(self, model, text, context, pieces):
        """Returns the final estimate of llama-perplexity, and its error."""
        command = [self.programs / "llama-perplexity", "-m", model, "-f", text, "-c", context, "--chunks", pieces, "-t", self.threads]
        run = subprocess.run(list(map(str, command)), capture_output=True, text=True)
        found = re.search(r"Final estimate: PPL = ([0-9.]+) \+/- ([0-9.]+)", run.stdout + run.stderr)
        if not found:
            raise Failed(f"llama-perplexity: {run.stderr.strip()[-400:]}")
        return float(found.group(1)), float(found.group(2))


class Loaded:
    """A loaded model of llama.cpp."""

    def __init__(self, binding):
        self.binding = binding

    def ids(self, text):
        return self.binding.tokenize(text.encode(), add_bos=False, special=False)

    def logits(self, ids):
        self.binding.reset()
        self.binding.eval(ids)
        return self.binding.scores[: len(ids)].copy()

    def greedy(self, ids, count):
        """Returns the most likely next tokens, one after the other."""
        self.binding.reset()
        self.binding.eval(ids)
        made = []
        for _ in range(count):
            made.append(int(self.binding.scores[self.binding.n_tokens - 1].argmax()))
            self.binding.eval(made[-1:])
        return made
