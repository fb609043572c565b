#!/usr/bin/env python3
"""Soak test: runs `ixc serve` at twice its capacity, with hostile clients.

Hostile clients disconnect, cancel, read slowly, and send invalid requests, half of a request, slow or huge bodies, and wrong keys. They also send more
requests with one key than the key may have.

    bench/soak.py MODEL [--ixc target/release/ixc] [--minutes 30] [--parallel 4] [--threads 2] [--seed 1] [--keys 4]

Well-behaved clients, each with a key, request texts that an idle server generated before. They must get the same texts, or 503 with Retry-After. In the
first tenth of the time they are alone, for a comparison of latencies. Every ten seconds a line reports the counts. At the
end the hostile clients leave, and the test checks the server. All sequences must be free, files closed, and memory as
large as after the first fifth of the time. SIGTERM must end the server with status 0. The last lines are a table row for
a report. The test exits with 1 if a check fails.
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


# Key of all hostile clients.
HOSTILE = "hostile"
# Bytes of a huge body.
HUGE = 8 << 20


class Counts:
    """Counts of events, the failures, and latencies of well-behaved clients: alone, and among hostile ones."""

    def __init__(self):
        self.lock, self.counts, self.wrong = threading.Lock(), {}, []
        self.alone, self.seconds = True, {True: [], False: []}

    def took(self, seconds, tokens):
        with self.lock:
            self.seconds[self.alone].append(seconds / tokens)

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
        keys = [option for key in keys_of(given) for option in ("--api-key", key)]
        limits = ["--per-key-parallel", "2", "--request-timeout", "60"]
        super().__init__([*command, *keys, *limits, "--threads", str(given.threads)], log)

    def memory(self):
        """Returns the resident bytes that belong to no file, and the number of open files."""
        with open(f"/proc/{self.process.pid}/status") as status:
            lines = dict(line.split(":", 1) for line in status)
        return int(lines["RssAnon"].split()[0]) << 10, len(os.listdir(f"/proc/{self.process.pid}/fd"))


def keys_of(given):
    return [HOSTILE, *(f"client-{number}" for number in range(given.keys))]


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


def behaved(server, draw, counts, expected, key):
    number, streamed = draw.randrange(len(expected)), draw.random() < 0.5
    begun, wanted = time.monotonic(), completion(number, streamed)
    status, body, headers = server.ask("POST", "/completion", wanted, ANSWERED_IN, key)
    if status == 503 and headers.get("Retry-After"):
        counts.add("busy")
        time.sleep(0.2)
    elif status != 200:
        counts.fail(f"status {status}: {body[:200]}")
    elif text_of(body, streamed) != expected[number]:
        counts.fail(f"another text of prompt {number}: {text_of(body, streamed)!r}, not {expected[number]!r}")
    else:
        counts.took(time.monotonic() - begun, wanted["n_predict"])
        counts.add("answered")


def connected(server):
    stream = socket.create_connection(("127.0.0.1", server.port), ANSWERED_IN)
    return stream


def request(body):
    text = json.dumps(body).encode()
    return head("/completion", len(text)) + text


def head(path, length, key=HOSTILE):
    lines = ["Host: localhost", "Content-Type: application/json", f"Authorization: Bearer {key}", f"Content-Length: {length}"]
    return "\r\n".join([f"POST {path} HTTP/1.1", *lines, "", ""]).encode()


def goes_away(server, draw, counts):
    with connected(server) as stream:
        stream.sendall(request({**completion(draw.randrange(1000), True), "n_predict": 400}))
        for _ in range(draw.randrange(4)):
            stream.recv(200)
    counts.add("went away")


def sends_slowly(server, draw, counts):
    with connected(server) as stream:
        stream.sendall(head("/completion", HUGE))
        end = time.monotonic() + draw.randrange(5, 40)
        while time.monotonic() < end:
            stream.sendall(b" " * 100)
            time.sleep(0.1)
    counts.add("sent slowly")


def huge(server, draw, counts):
    prompt = "word " * (HUGE // 5) if draw.random() < 0.5 else "x" * HUGE
    status, body, _ = server.ask("POST", "/completion", {"prompt": prompt}, ANSWERED_IN, HOSTILE)
    if status not in (400, 503):
        counts.fail(f"a huge prompt has status {status}: {body[:200]}")
    counts.add("huge prompt")


def wrong_key(server, draw, counts):
    with connected(server) as stream:
        stream.sendall(head("/completion", HUGE, f"key-{draw.randrange(1 << 30)}"))
        if not stream.recv(4096).startswith(b"HTTP/1.1 401"):
            counts.fail("a wrong key was accepted")
    counts.add("wrong key")


def crowds(server, draw, counts):
    """Sends many requests of one key at once, and leaves some of them."""
    streams = []
    try:
        for _ in range(40):
            streams.append(connected(server))
            streams[-1].sendall(request({**completion(draw.randrange(1000), True), "n_predict": 100}))
        time.sleep(draw.random() * 10)
    finally:
        for stream in streams:
            stream.close()
    counts.add("crowd of 40")


def nonsense(server, draw, counts):
    say = [
        lambda: bytes(draw.randrange(256) for _ in range(draw.randrange(1, 400))) + b"\r\n\r\n",
        lambda: b"GET /" + b"a" * 20000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
        lambda: head("/completion", 99999999999) + b"{",
        lambda: head("/completion", 9).replace(b"Content-Length: 9", b"Transfer-Encoding: chunked") + b"zz\r\n",
        lambda: request({"prompt": [[-1], {"a": 1}], "n_predict": "many"}),
        lambda: request({"prompt": "x", "grammar": "root ::= ((((" * 50}),
        lambda: request({"prompt": "x " * 4000}),
        lambda: head("/v1/chat/completions", 9) + b"[[[[[[[[[",
    ]
    with connected(server) as stream:
        stream.sendall(draw.choice(say)())
        stream.shutdown(socket.SHUT_WR)
        answer = b""
        while part := stream.recv(4096):
            answer += part
    if answer.startswith((b"HTTP/1.1 2", b"HTTP/1.1 500")):
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
    arguments.add_argument("--keys", type=int, default=4, help="keys of well-behaved clients")
    given = arguments.parse_args()
    counts, ending = Counts(), threading.Event()
    server = Server(given, sys.stderr)
    keys = keys_of(given)
    expected = [text_of(server.ask("POST", "/completion", completion(number, False), key=keys[1])[1], False) for number in range(40)]

    def repeat(act, seed):
        draw = random.Random(seed)
        while not ending.is_set():
            try:
                if act is asks:
                    act(server, draw, counts, keys[1 + seed % given.keys])
                else:
                    act(server, draw, counts)
            except (ConnectionError, TimeoutError, http.client.HTTPException, ValueError) as error:
                # The server may disconnect a client with an invalid request, but not one that waits
                # for an answer.
                if act is asks:
                    counts.fail(f"no answer: {error!r}")
                counts.add("cut off")
            if act in (nonsense, wrong_key):
                time.sleep(draw.random() / 5)

    def asks(server, draw, counts, key):
        behaved(server, draw, counts, expected, key)

    hostile = [goes_away] * 2 + [nonsense] * 2 + [reads_slowly] * 2 + [says_half] * 3
    hostile += [sends_slowly] * 3 + [huge, wrong_key, crowds]
    acts = [asks] * (2 * given.parallel) + hostile
    threads = [threading.Thread(target=repeat, args=(act, given.seed + i), daemon=True) for i, act in enumerate(acts)]
    seconds, kept, most = given.minutes * 60, None, 0
    start = server.memory()[0]
    begun = time.monotonic()
    for thread, act in zip(threads, acts):
        if act is not asks and counts.alone:
            time.sleep(seconds / 10)
            counts.alone = False
        thread.start()
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
    slots = json.loads(server.ask("GET", "/slots", key=keys[1])[1])
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
    report(given, counts, [start, kept or memory, memory])
    sys.exit(1 if counts.wrong else 0)


def report(given, counts, memory):
    """Prints a row: numbers of requests, memory, and milliseconds for each token of well-behaved clients."""
    of = counts.counts
    behaved = {"answered", "busy", "cut off"}
    hostile = sum(count * (40 if what == "crowd of 40" else 1) for what, count in of.items() if what not in behaved)
    unanswered = sum("no answer" in wrong or "has waited" in wrong for wrong in counts.wrong)
    other = sum("another text" in wrong for wrong in counts.wrong)

    def at(share, alone):
        seconds = sorted(counts.seconds[alone])
        return f"{seconds[int(share * (len(seconds) - 1))] * 1000:.1f}" if seconds else "-"

    print("| minutes | texts | busy | hostile requests | unanswered | other texts | MiB: start, 1/5, end | ms per token, median: alone, among hostile | 95 %: alone, among hostile |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    mib = ", ".join(f"{part / (1 << 20):.1f}" for part in memory)
    latencies = [f"{at(share, True)}, {at(share, False)}" for share in (0.5, 0.95)]
    print(f"| {given.minutes:g} | {of.get('answered', 0)} | {of.get('busy', 0)} | {hostile} | {unanswered} | {other} | {mib} | {latencies[0]} | {latencies[1]} |")


if __name__ == "__main__":
    main()
