#!/usr/bin/env python3
"""Concurrent streams: compares `ixc serve` with llama-server on the same file, one after the other.

    bench/serving.py MODEL --llama BUILD/bin/llama-server [--ixc target/release/ixc] [--streams 1,4,16] [--prompt 128] [--tokens 64]
                     [--threads 2] [--rounds 3] [--least 1.5] [--json FILE] [--ixc-option=OPTION]... [--ixc-variant="OPTIONS OF ixc serve"]...
                     [--variant="OPTIONS OF llama-server"]...

Each round starts each server once, in a new order, with a sequence for each stream. It requests that many greedy
completions at once, for prompts of different random tokens. The table has tokens per second of all streams together,
from the first request to the last answer. It also has seconds to a stream's first token, and seconds between its tokens
(median and 99 %). The last column compares variants of ixc with the default.
Exits with 1 if ixc generates fewer tokens per second than --least times those of llama-server's best variant.
"""

import argparse
import json
import random
import shlex
import statistics
import sys
import threading
import time

import served


class Server(served.Server):
    """A program that answers `POST /completion`."""

    def stream(self, prompt, count):
        """Returns pairs of a time and the number of tokens that had arrived by then."""
        body = {"prompt": prompt, "n_predict": count, "temperature": 0, "ignore_eos": True, "stream": True, "cache_prompt": False}
        moments, made = [], 0
        with self.answer("POST", "/completion", body) as answer:
            if answer.status != 200:
                raise RuntimeError(answer.read().decode())
            for line in answer:
                if not line.startswith(b"data: ") or line.startswith(b"data: [DONE]"):
                    continue
                event = json.loads(line[6:])
                if "error" in event:
                    raise RuntimeError(event)
                # Some servers report the number of tokens so far in each event. All report it at
                # the end.
                made = event.get("tokens_predicted", made + 1)
                if not moments or made > moments[-1][1]:
                    moments.append((time.monotonic(), made))
        return moments

    def streams(self, prompts, count):
        """Runs `count` streams at once, and returns their measurements."""
        results, errors = [None] * len(prompts), []

        def one(number):
            try:
                results[number] = self.stream(prompts[number], count)
            except Exception as error:
                errors.append(error)

        begun = time.monotonic()
        threads = [threading.Thread(target=one, args=(number,)) for number in range(len(prompts))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if errors:
            sys.exit(f"a stream failed: {errors[0]}")
        for moments in results:
            if moments[-1][1] != count:
                sys.exit(f"a stream has {moments[-1][1]} tokens, not {count}")
        end = max(moments[-1][0] for moments in results)
        # Tokens that arrive together count with their average distance.
        between = [
            (after - before) / (more - fewer)
            for moments in results
            for (before, fewer), (after, more) in zip(moments, moments[1:])
            for _ in range(more - fewer)
        ]
        return {
            "rate": len(prompts) * count / (end - begun),
            "first": statistics.median(moments[0][0] - begun for moments in results),
            "first_most": max(moments[0][0] - begun for moments in results),
            "between": statistics.median(between),
            "between_99": sorted(between)[int(len(between) * 0.99)],
        }


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("model")
    arguments.add_argument("--llama", required=True)
    arguments.add_argument("--ixc", default="target/release/ixc")
    arguments.add_argument("--streams", default="1,4,16")
    arguments.add_argument("--prompt", type=int, default=128)
    arguments.add_argument("--tokens", type=int, default=64)
    arguments.add_argument("--threads", type=int, default=2)
    arguments.add_argument("--rounds", type=int, default=3)
    arguments.add_argument("--least", type=float, default=1.5)
    arguments.add_argument("--json")
    arguments.add_argument("--ixc-option", action="append", default=[])
    arguments.add_argument("--ixc-variant", action="append", default=[], help="options of another ixc serve; may be given several times")
    arguments.add_argument("--variant", action="append", default=[], help="options of llama-server; may be given several times")
    given = arguments.parse_args()
    streams = [int(count) for count in given.streams.split(",")]
    most, context = max(streams), given.prompt + given.tokens + 64
    threads = ["--threads", str(given.threads)]
    served = [given.ixc, "serve", given.model, "--parallel", str(most), "--ctx", str(context), *threads, *given.ixc_option]
    entrants = {f"ixc {variant}".strip(): served + shlex.split(variant) for variant in ["", *given.ixc_variant]}
    for variant in given.variant or [""]:
        of = [given.llama, "--model", given.model, "--parallel", str(most), "--ctx-size", str(context * most), *threads]
        entrants[f"llama-server {variant}".strip()] = of + shlex.split(variant)
    draw = random.Random(1)
    # Token ids that all vocabularies have, after the control tokens.
    prompt = lambda length: [draw.randrange(300, 1000) for _ in range(length)]
    found = {name: {count: [] for count in streams} for name in entrants}
    for number in range(given.rounds):
        names = list(entrants)
        draw.shuffle(names)
        for name in names:
            server = Server(entrants[name])
            # Warms the server up: weights are read into memory. They are packed if the server packs
            # at run time.
            for _ in range(2):
                server.streams([prompt(given.prompt) for _ in range(min(most, 4))], 16)
            for count in streams:
                result = server.streams([prompt(given.prompt) for _ in range(count)], given.tokens)
                found[name][count].append(result)
                print(f"round {number + 1}: {name}, {count}: {result['rate']:.1f} tokens/s", file=sys.stderr)
            server.end()
    print(f"{'streams':>7} {'server':32} {'tokens/s':>22} {'first token, s':>15} {'the last, s':>12} {'between, ms':>12} {'99 %':>7} {'ixc':>18}")
    is_enough, own = True, [name for name in entrants if name.startswith("ixc")]
    for count in streams:
        rates = {name: [result["rate"] for result in of[count]] for name, of in found.items()}
        for name, of in found.items():
            of = of[count]
            median = lambda key: statistics.median(result[key] for result in of)
            rate = rates[name]
            spread = f"{statistics.median(rate):.1f} ({min(rate):.1f}..{max(rate):.1f})"
            ratios = [ours / theirs for ours, theirs in zip(rates["ixc"], rate)]
            times = "" if name == "ixc" else f"{statistics.median(ratios):.2f} ({min(ratios):.2f}..{max(ratios):.2f})"
            print(
                f"{count:7} {name:32} {spread:>22} {median('first'):15.2f} {median('first_most'):12.2f}"
                f" {median('between') * 1e3:12.1f} {median('between_99') * 1e3:7.0f} {times:>18}"
            )
            is_enough &= name in own or statistics.median(ratios) >= given.least
    if given.json:
        with open(given.json, "w") as file:
            json.dump({"given": vars(given), "found": found}, file, indent=1)
    sys.exit(0 if is_enough else 1)


if __name__ == "__main__":
    main()
