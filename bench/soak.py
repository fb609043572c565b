#!/usr/bin/env python3
"""Soak test: runs `ixc serve` at twice its capacity, with clients that disconnect, send invalid requests, read slowly, or send half of a request.

    bench/soak.py MODEL [--ixc target/release/ixc] [--minutes 30] [--parallel 4] [--threads 2] [--seed 1]

Well-behaved clients request texts that an idle server generated before. They must get the same texts, or 503 with Retry-After. Every ten seconds a line
reports the counts. At the end the other clients leave, and the test checks the server. All sequences must be free,
files closed, and memory as large as after the first fifth of the time. SIGTERM must end the server with status 0. The
test exits with 1 if a check fails.
"""

import argparse
import http.client
import json
import os
import random
import socket
import sys
import threading
import time

import served

# Seconds after which an answer counts as missing. No request waits longer for a slot and tokens.
ANSWERED_IN = 120
# Allowed growth of memory from the first fifth of the time to the end: a factor, and bytes that an
# allocator keeps.
MORE = (1.1, 32 << 20)


class Counts:
    """Counts of events, and the failures."""

    def __init__(self):
        self.lock, self.counts, self.wrong = threading.Lock(), {}, []

    def add(self, what):
        with self.lock:
            self.counts[what] = self.counts.get(what, 0) + 1

    def fail(self, what):
        with self.lock:
            self.wrong.append(what)
        print(f"WRONG: {what}", flush=True)


class Server(served.Server):
    def __init__(self, given, log):
        command = [given.ixc, "serve", given.model, "--parallel", str(given.parallel), "--queue", str(2 * given.parallel), "--ctx", "512"]
        super().__init__([*command, "--threads", str(given.threads)], log)

    def memory(self):
        """Resident bytes that are no file's, and open files."""
        with open(f"/proc/{self.process.pid}/status") as status:
            lines = dict(line.split(":", 1) for line in status)
        return int(lines["RssAnon"].split()[0]) << 10, len(os.listdir(f"/proc/{self.process.pid}/fd"))


def completion(number, streamed):
    prompt = f"The {['borrow', 'type', 'trait', 'macro', 'crate'][number % 5]} {number} checker is"
    return {"prompt": prompt, "n_predict": 8 + number % 24, "temperature": 0, "ignore_eos": True, "cache_prompt": False, "stream": streamed}


def text_of(body, streamed):
    if not streamed:
        return json.loads(body)["content"]
    events = [json.loads(line[6:]) for line in body.splitlines() if line.startswith("data: {")]
    wrong = [event for event in events if "error" in event]
    if wrong:
        raise ValueError(wrong[0])
    return "".join(event.get("content", "") for event in events)


def behaved(server, draw, counts, expected):
    number, streamed = draw.randrange(len(expected)), draw.random() < 0.5
    status, body, headers = server.ask("POST", "/completion", completion(number, streamed), ANSWERED_IN)
    if status == 503 and headers.get("Retry-After"):
        counts.add("busy")
        time.sleep(0.2)
    elif status != 200:
        counts.fail(f"status {status}: {body[:200]}")
    elif text_of(body, streamed) != expected[number]:
        counts.fail(f"another text of prompt {number}: {text_of(body, streamed)!r}, not {expected[number]!r}")
    else:
        counts.add("answered")


def connected(server):
    stream = socket.create_connection(("127.0.0.1", server.port), ANSWERED_IN)
    return stream


def request(body):
    text = json.dumps(body).encode()
    return b"POST /completion HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(text) + text


def goes_away(server, draw, counts):
    with connected(server) as stream:
        stream.sendall(request({**completion(draw.randrange(1000), True), "n_predict": 400}))
        for _ in range(draw.randrange(4)):
            stream.recv(200)
    counts.add("went away")


def nonsense(server, draw, counts):
    say = [
        lambda: bytes(draw.randrange(256) for _ in range(draw.randrange(1, 400))) + b"\r\n\r\n",
        lambda: b"GET /" + b"a" * 20000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
        lambda: b"POST /completion HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999999\r\n\r\n{",
        lambda: b"POST /completion HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        lambda: request({"prompt": [[-1], {"a": 1}], "n_predict": "many"}),
        lambda: request({"prompt": "x", "grammar": "root ::= ((((" * 50}),
        lambda: request({"prompt": "x " * 4000}),
        lambda: b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n[[[[[[[[[",
    ]
    with connected(server) as stream:
        stream.sendall(draw.choice(say)())
        stream.shutdown(socket.SHUT_WR)
        answer = b""
        while part := stream.recv(4096):
            answer += part
    if answer.startswith((b"HTTP/1.1 2", b"HTTP/1.1 5")):
        counts.fail(f"nonsense was answered: {answer[:200]}")
    counts.add("nonsense")


def reads_slowly(server, draw, counts):
    with connected(server) as stream:
        stream.sendall(request({**completion(draw.randrange(1000), True), "n_predict": 300}))
        end = time.monotonic() + draw.randrange(5, 20)
        while time.monotonic() < end and stream.recv(1):
            time.sleep(0.5)
    counts.add("read slowly")


def says_half(server, draw, counts):
    whole = request(completion(0, False))
    with connected(server) as stream:
        stream.sendall(whole[: draw.randrange(1, len(whole) - 1)])
        stream.settimeout(draw.randrange(5, 40))
        try:
            stream.recv(4096)
        except TimeoutError:
            pass
    counts.add("said half")


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("model")
    arguments.add_argument("--ixc", default="target/release/ixc")
    arguments.add_argument("--minutes", type=float, default=30)
    arguments.add_argument("--parallel", type=int, default=4)
    arguments.add_argument("--threads", type=int, default=2)
    arguments.add_argument("--seed", type=int, default=1)
    given = arguments.parse_args()
    counts, ending = Counts(), threading.Event()
    server = Server(given, sys.stderr)
    expected = [text_of(server.ask("POST", "/completion", completion(number, False))[1], False) for number in range(40)]

    def repeat(act, seed):
        draw = random.Random(seed)
        while not ending.is_set():
            try:
                act(server, draw, counts)
            except (ConnectionError, TimeoutError, http.client.HTTPException, ValueError) as error:
                # The server may disconnect a client with an invalid request, but not one that waits
                # for an answer.
                if act is asks:
                    counts.fail(f"no answer: {error!r}")
                counts.add("cut off")
            if act is nonsense:
                time.sleep(draw.random() / 5)

    def asks(server, draw, counts):
        behaved(server, draw, counts, expected)

    acts = [asks] * (2 * given.parallel) + [goes_away] * 2 + [nonsense] * 2 + [reads_slowly] * 2 + [says_half] * 3
    threads = [threading.Thread(target=repeat, args=(act, given.seed + i), daemon=True) for i, act in enumerate(acts)]
    begun = time.monotonic()
    for thread in threads:
        thread.start()
    seconds, kept, most = given.minutes * 60, None, 0
    while (now := time.monotonic() - begun) < seconds:
        time.sleep(min(10, max(0.1, seconds - now)))
        if server.process.poll() is not None:
            sys.exit(f"the server has ended with status {server.process.returncode}")
        memory, files = server.memory()
        if kept is None and time.monotonic() - begun > seconds / 5:
            kept = memory
        most = max(most, memory)
        print(f"{now:6.0f} s: {memory >> 20} MiB, {files} files, {dict(sorted(counts.counts.items()))}", flush=True)
    ending.set()
    for thread in threads:
        thread.join(ANSWERED_IN)
        if thread.is_alive():
            counts.fail("a client has waited for two minutes")
    # The server notices the last disconnections within a step.
    time.sleep(3)
    slots = json.loads(server.ask("GET", "/slots")[1])
    if len(slots) != given.parallel or any(slot["is_processing"] for slot in slots):
        counts.fail(f"a sequence is not free: {slots}")
    memory, files = server.memory()
    print(f"in the end: {memory >> 20} MiB ({(kept or memory) >> 20} after a fifth of the time, {most >> 20} at most), {files} files")
    if kept and memory > kept * MORE[0] + MORE[1]:
        counts.fail("memory grew")
    # Files of the program itself, and the connection of this check.
    if files > 40:
        counts.fail(f"{files} files are open")
    status = server.end()
    if status != 0:
        counts.fail(f"SIGTERM ended it with status {status}")
    print(f"{len(counts.wrong)} wrong; {dict(sorted(counts.counts.items()))}")
    sys.exit(1 if counts.wrong else 0)


if __name__ == "__main__":
    main()
