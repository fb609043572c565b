#!/usr/bin/env python3
"""`ixc serve` under the arguments of llama-server, for llama.cpp's tests. The model is the demo model, whatever is asked for."""

import os
import sys

# What is called the same or otherwise here, and takes a value.
VALUES = {
    "--port": "--port", "--host": "--host", "--alias": "--alias", "--ctx-size": "--ctx", "--parallel": "--parallel",
    "--threads": "--threads", "--api-key": "--api-key", "--chat-template": "--chat-template",
    "--chat-template-file": "--chat-template", "--slot-save-path": "--slot-save-path", "--temp": "--temp", "--seed": "--seed",
    "--n-predict": "-n", "--pooling": "--pooling",
}
# What is called the same and takes none.
FLAGS = {"--context-shift", "--embedding", "--embeddings"}
# What takes a value and is not there, or changes nothing of what is tested.
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
                # The demo model has no more, and the other's is of all sequences together.
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
