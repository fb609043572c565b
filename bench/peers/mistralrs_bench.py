"""Measures mistral.rs as ixc-bench does others: prefill and decode of a GGUF file, one line of JSON for each.

usage: mistralrs_bench.py MODEL.gguf --threads N [--prefill 32,128] [--decode 64] [--depth 0] [--repetitions 1]

The package takes text. For each request it reports the number of tokens, and the times of prefill (to the millisecond) and of decode.
The results are computed from these times. Sampling is greedy, and the time of decode includes it. No prefixes are cached.
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

# This is set before the import, because the package starts its threads then.
os.environ["RAYON_NUM_THREADS"] = str(args.threads)
# The package has further threads. All threads together get as many processors as the other engines.
available = sorted(os.sched_getaffinity(0))
os.sched_setaffinity(0, available[: args.threads])

import mistralrs

# Letters of a prompt. Most tokenizers have a token for each letter, and none for several in a row.
LETTERS = "zqxjkvbw"

folder, name = os.path.split(os.path.abspath(args.model))
which = mistralrs.Which.GGUF(quantized_model_id=folder, quantized_filename=name)
runner = mistralrs.Runner(which=which, prefix_cache_n=0, max_seqs=1)


def request(prompt, tokens):
    asked = mistralrs.CompletionRequest(model="default", prompt=prompt, max_tokens=tokens, temperature=0.0)
    return runner.send_completion_request(asked).usage


def prompt_of(tokens):
    """Returns a prompt of `tokens` tokens."""
    text = lambda letters: "".join(LETTERS[(index * index + index // 7) % len(LETTERS)] for index in range(letters))
    count = lambda letters: len(runner.tokenize_text(text(letters), False, None))
    least, most = 1, 2
    while count(most) < tokens:
        least, most = most, most * 2
    while least < most:
        middle = (least + most) // 2
        if count(middle) < tokens:
            least = middle + 1
        else:
            most = middle
    if count(least) != tokens:
        sys.exit(f"there is no prompt of {tokens} tokens: {least} letters have {count(least)}")
    return text(least)


def measure(test, tokens, depth, rate):
    values = [rate() for _ in range(args.repetitions + 1)]
    # The first repetition does not count.
    row = {"test": test, "tokens": tokens, "depth": depth, "values": values[1:]}
    print("RESULT " + json.dumps(row), flush=True)


def prefill_rate(prompt, tokens):
    usage = request(prompt, 1)
    if usage.prompt_tokens != tokens:
        sys.exit(f"a prompt of {tokens} tokens had {usage.prompt_tokens}")
    return tokens / usage.total_prompt_time_sec


def decode_rate(prompt, tokens):
    usage = request(prompt, tokens)
    if usage.completion_tokens != tokens:
        sys.exit(f"it ended after {usage.completion_tokens} tokens of {tokens}")
    return usage.avg_compl_tok_per_sec


for tokens in (int(tokens) for tokens in args.prefill.split(",")):
    if tokens > 0:
        prompt = prompt_of(tokens)
        measure("prefill", tokens, 0, lambda: prefill_rate(prompt, tokens))
for tokens in (int(tokens) for tokens in args.decode.split(",")):
    if tokens > 0:
        # A prompt cannot be empty, so the shortest one replaces it.
        prompt = prompt_of(args.depth) if args.depth > 0 else LETTERS[0]
        measure("decode", tokens, args.depth, lambda: decode_rate(prompt, tokens))
