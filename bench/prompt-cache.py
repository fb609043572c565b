#!/usr/bin/env python3
"""Measures the time to the first token of prompts with a common beginning: without a cache, in a running server, and after a restart.

    bench/prompt-cache.py MODEL [--ixc target/release/ixc] [--tokens 8000] [--least 20] [-- OPTIONS OF ixc serve]

Two prompts begin with the same --tokens tokens and differ in a few last ones. The server has one sequence. Between the two
prompts, another prompt takes the sequence, so that the common part comes from the prompt cache. Exits with 1 if the first
token is not --least times as early as without the cache.
"""

import argparse
import json
import random
import sys
import tempfile
import time

import served

TAIL = 16


class Server(served.Server):
    """`ixc serve` with a prompt cache."""

    def __init__(self, ixc, model, folder, tokens, more):
        super().__init__([ixc, "serve", model, "--parallel", "1", "-c", str(tokens + 64), "--prompt-cache", folder, *more])

    def first(self, prompt, count=1):
        """Returns the seconds to the last of `count` tokens of an answer, and how many tokens of the prompt were not computed."""
        begin = time.monotonic()
        status, text, _ = self.ask("POST", "/completion", {"prompt": prompt, "n_predict": count, "temperature": 0})
        seconds = time.monotonic() - begin
        if status != 200:
            sys.exit(text)
        return seconds, json.loads(text)["tokens_cached"]


def warm(server, tokens):
    """Reads weights into memory, and generates tokens so that experts are packed. In the measured prompt, this would take seconds."""
    for _ in range(4):
        server.first(tokens(600), 16)


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("model")
    arguments.add_argument("--ixc", default="target/release/ixc")
    arguments.add_argument("--tokens", type=int, default=8000)
    arguments.add_argument("--least", type=float, default=20)
    given, more = arguments.parse_known_args()
    more = [argument for argument in more if argument != "--"]
    draw = random.Random(1)
    # Token ids that all vocabularies have, after the control tokens.
    tokens = lambda count: [draw.randrange(300, 1000) for _ in range(count)]
    common = tokens(given.tokens)
    with tempfile.TemporaryDirectory() as folder:
        folder += "/prompts"
        server = Server(given.ixc, given.model, folder, given.tokens, more)
        warm(server, tokens)
        first, _ = server.first(common + tokens(TAIL))
        server.first(tokens(600))
        second, held = server.first(common + tokens(TAIL))
        server.end()
        server = Server(given.ixc, given.model, folder, given.tokens, more)
        warm(server, tokens)
        third, found = server.first(common + tokens(TAIL))
        server.end()
    print(f"{'':24} {'seconds':>8} {'not computed':>13} {'times as soon':>14}")
    rows = [("new", first, 0), ("kept", second, held), ("after a restart", third, found)]
    for name, seconds, cached in rows:
        print(f"{name:24} {seconds:8.3f} {cached:13} {first / seconds:14.1f}")
    if min(first / second, first / third) < given.least:
        sys.exit(1)


if __name__ == "__main__":
    main()
