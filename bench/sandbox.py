#!/usr/bin/env python3
"""Measures the cost of the sandbox: two servers of the same program, with and without it, answer the same requests in turn.

    bench/sandbox.py MODEL [--ixc target/release/ixc] [--rounds 40] [--tokens 64] [--threads 2]

A round asks both servers for a greedy text, in alternating order. The report has the medians of tokens per second and of processor time per token, and the
median of the ratios of the rounds with its quartiles. Texts of both servers must be equal.
"""

import argparse
import json
import statistics
import sys
import time
from pathlib import Path

import served

KINDS = ["off", "auto"]


def processor_seconds(server):
    """Returns the processor time of all threads, which the kernel counts in nanoseconds."""
    threads = Path(f"/proc/{server.process.pid}/task").iterdir()
    return sum(int((thread / "schedstat").read_text().split()[0]) for thread in threads) / 1e9


def measure(server, tokens):
    """Returns the text, the seconds for a token, and the seconds of all processors for it."""
    body = {"prompt": "The borrow checker", "n_predict": tokens, "temperature": 0, "ignore_eos": True, "cache_prompt": True}
    before, begun = processor_seconds(server), time.monotonic()
    status, text, _ = server.ask("POST", "/completion", body)
    seconds, busy = time.monotonic() - begun, processor_seconds(server) - before
    if status != 200:
        sys.exit(f"status {status}: {text}")
    return json.loads(text)["content"], seconds / tokens, busy / tokens


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("model")
    arguments.add_argument("--ixc", default="target/release/ixc")
    arguments.add_argument("--rounds", type=int, default=40)
    arguments.add_argument("--tokens", type=int, default=64)
    arguments.add_argument("--threads", type=int, default=2)
    given = arguments.parse_args()
    command = [given.ixc, "serve", given.model, "-q", "--parallel", "1", "--ctx", "2048", "--threads", str(given.threads)]
    servers = {kind: served.Server([*command, "--sandbox", kind]) for kind in KINDS}
    texts = {measure(servers[kind], given.tokens)[0] for kind in KINDS}
    found = {kind: [] for kind in KINDS}
    for number in range(given.rounds):
        for kind in KINDS if number % 2 else reversed(KINDS):
            text, *numbers = measure(servers[kind], given.tokens)
            texts.add(text)
            found[kind].append(numbers)
    if len(texts) != 1:
        sys.exit(f"the servers have {len(texts)} different texts")
    for index, what in enumerate(["time for a token", "processor time for a token"]):
        off, auto = ([numbers[index] for numbers in found[kind]] for kind in KINDS)
        ratios = [with_it / without for with_it, without in zip(auto, off)]
        low, middle, high = statistics.quantiles(ratios, n=4)
        medians = [1000 * statistics.median(seconds) for seconds in (off, auto)]
        print(f"{what}: {medians[0]:.3f} ms without, {medians[1]:.3f} ms with; ratio {middle:.4f} ({low:.4f} to {high:.4f})")
    statuses = [server.end() for server in servers.values()]
    sys.exit(1 if any(statuses) else 0)


if __name__ == "__main__":
    main()
