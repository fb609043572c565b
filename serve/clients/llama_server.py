#!/usr/bin/env python3
"""Runs `ixc serve` with the arguments of llama-server, for llama.cpp's tests. The model is always the demo model."""

import os
import sys

# Options with a value, and their names in `ixc serve`.
VALUES = {
    "--port": "--port", "--host": "--host", "--alias": "--alias", "--ctx-size": "--ctx", "--parallel": "--parallel",
    "--threads": "--threads", "--api-key": "--api-key", "--chat-template": "--chat-template",
    "--chat-template-file": "--chat-template", "--slot-save-path": "--slot-save-path", "--temp": "--temp", "--seed": "--seed",
    "--n-predict": "-n", "--pooling": "--pooling",
}
# Options without a value, which have the same names.
FLAGS = {"--context-shift", "--embedding", "--embeddings"}
# Options with a value that `ixc serve` lacks, or that the tests do not depend on.
PASSED_OVER = {
    "--model", "--model-url", "--hf-repo", "--hf-file", "--batch-size", "--ubatch-size", "--n-gpu-layers",
    "--tags", "-fa", "-ctk", "-ctv", "--reasoning-format", "--reasoning", "--cache-ram",
}


def main():
    ixc = os.environ.get("IXC", "ixc")
    arguments, out = sys.argv[1:], [ixc, "serve", "demo"]
    parallel = int(arguments[arguments.index("--parallel") + 1]) if "--parallel" in arguments else 1
    while arguments:
        argument = arguments.pop(0)
        if argument in VALUES:
            value = arguments.pop(0)
            if argument == "--host" and value == "localhost":
                value = "127.0.0.1"
            if argument == "--ctx-size":
                # The demo model has at most 2048 positions. llama-server's context is the
                # sum of all sequences.
                value = str(min(int(value) // parallel, 2048))
            out += [VALUES[argument], value]
        elif argument in PASSED_OVER:
            arguments.pop(0)
        elif argument in FLAGS:
            out.append(argument)
    if "--chat-template" not in out:
        out += ["--chat-template", "chatml"]
    os.execvp(ixc, out)


main()
