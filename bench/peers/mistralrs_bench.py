"""Measures mistral.rs as ixc-bench does others: prefill and decode of a GGUF file, one line of JSON for each.

usage: mistralrs_bench.py MODEL.gguf --threads N [--prefill 32,128] [--decode 64] [--depth 0] [--repetitions 1]

The package says for each request how long it took to read the prompt and to write the answer; these are the times used here.
A request is the text of a prompt, so its length is found by trying: the length that is reported is the one it has.
"""
import argparse
import json
import os
import sys

parser = argparse.ArgumentParser()
parser.add_argument("model")
parser.add_argument("--threads", type=int, required=True)
parser.add_argument("--prefill", default="0")
parser.add_argument("--decode", default="0")
parser.add_argument("--depth", type=int, default=0)
parser.add_argument("--repetitions", type=int, default=1)
args = parser.parse_args()

# Before the package is loaded: its pools are made then.
os.environ["RAYON_NUM_THREADS"] = str(args.threads)
os.environ["CANDLE_NUM_THREADS"] = str(args.threads)
os.environ["OMP_NUM_THREADS"] = str(args.threads)
print("to be found out", file=sys.stderr)
