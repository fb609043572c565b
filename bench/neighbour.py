#!/usr/bin/env python3
"""Measures commands next to a process that keeps one processor busy for a part of each period.

usage: neighbour.py [--busy 0,25,50,100] [--cpu 0] [--period 10] [--rounds 3] --number REGEX [--number REGEX] -- COMMAND... [-- COMMAND...]

The first group of REGEX in a command's output is its result; larger is better. A REGEX that is given once applies to all commands. Commands are
interleaved. The table has medians, and their share of the result without a neighbour. For T threads with equal work and a neighbour that is busy for a
share b, 1 - b is expected. If other threads take work from the late thread, (T - b) / T is expected.

  bench/neighbour.py --number 'decode +64 +0 +([0-9.]+)' --number 'tg64 *\\| *([0-9.]+)' \\
      -- target/release/ixc bench model.gguf -p 0 -n 64 -t 2 -r 1 -- DIR/ik/build/bin/llama-bench -m model.gguf -rtr 1 -t 2 -p 0 -n 64 -r 1
"""
import argparse
import multiprocessing
import os
import re
import statistics
import subprocess
import sys
import time


def neighbour(cpu, busy, period):
    """Keeps a processor busy for a part of each period, until it is ended."""
    os.sched_setaffinity(0, {cpu})
    begin = time.monotonic()
    while True:
        while time.monotonic() - begin < busy * period:
            pass
        begin += period
        time.sleep(max(0.0, begin - time.monotonic()))


def main():
    parser = argparse.ArgumentParser(usage=__doc__.split("usage: ")[1].split("\n")[0])
    parser.add_argument("--busy", default="0,25,50,100", help="percent of a processor")
    parser.add_argument("--cpu", type=int, default=0)
    parser.add_argument("--period", type=float, default=10, help="milliseconds")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--number", action="append", required=True)
    own, *commands = split(sys.argv[1:])
    args = parser.parse_args(own)
    if not commands or len(args.number) not in (1, len(commands)):
        parser.error("expected commands after --, and one --number for all commands or for each")
    patterns = args.number * len(commands) if len(args.number) == 1 else args.number
    parts = [float(part) / 100 for part in args.busy.split(",")]
    found = {(command, part): [] for command in range(len(commands)) for part in parts}
    for _ in range(args.rounds):
        for part in parts:
            process = multiprocessing.Process(target=neighbour, args=(args.cpu, part, args.period / 1000), daemon=True)
            if part > 0:
                process.start()
            try:
                for number, command in enumerate(commands):
                    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
                    match = re.search(patterns[number], output)
                    if not match:
                        sys.exit(f"{' '.join(command)}: nothing matches {patterns[number]} in\n{output}")
                    found[number, part].append(float(match.group(1)))
            finally:
                if part > 0:
                    process.terminate()
                    process.join()
    for number, command in enumerate(commands):
        print(" ".join(command))
        base = statistics.median(found[number, parts[0]])
        for part in parts:
            values = found[number, part]
            median = statistics.median(values)
            print(f"  busy {part:4.0%}  {median:8.2f} ({min(values):.2f} to {max(values):.2f})  {median / base:.2f} of the first")


def split(words):
    """Splits words into lists at each `--`."""
    lists = [[]]
    for word in words:
        if word == "--":
            lists.append([])
        else:
            lists[-1].append(word)
    return lists


if __name__ == "__main__":
    main()
