"""A client of replicas and proxies: requests, answers as they arrive, and traffic."""

import http.client
import json
import select
import socket
import threading
import time
from contextlib import suppress
from dataclasses import dataclass

# The API key of the replicas.
KEY = "key"
# Longest wait for a change, in seconds. It keeps CI from hanging, and is far above all times.
PATIENCE = 300


class Missing(Exception):
    """A tool that a check needs is absent."""


def until(what: str, condition, pause: float = 0.05) -> None:
    """Waits until a condition holds, with a pause after each test of it."""
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, f"{what} does not come"
        time.sleep(pause)


@dataclass
class Answer:
    """An answer, and the header that names its replica."""

    status: int
    replica: str
    headers: dict
    text: str

    def json(self) -> dict:
        """Returns the body of a successful answer."""
        assert self.status == 200, self
        return json.loads(self.text)


class Exchange:
    """A request, and its answer as it arrives."""

    def __init__(self, port: int, path: str, body: dict | None = None, key: str = KEY):
        self.connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {key}"}
        data = None if body is None else json.dumps(body)
        self.connection.request("GET" if body is None else "POST", path, data, headers)

    def begin(self) -> "Exchange":
        """Waits for the head of the answer."""
        self.response = self.connection.getresponse()
        return self

    @property
    def replica(self) -> str:
        """The header that names the replica."""
        return self.response.headers.get("X-Replica", "")

    def is_answered(self) -> bool:
        """Returns whether a part of the answer has arrived. For requests before `begin`."""
        return bool(select.select([self.connection.sock], [], [], 0)[0])

    def line(self) -> str:
        """Returns the next line of the answer."""
        return self.response.readline().decode()

    def rest(self) -> Answer:
        """Returns the whole answer."""
        text = self.response.read().decode()
        self.connection.close()
        return Answer(self.response.status, self.replica, dict(self.response.headers), text)

    def leave(self) -> None:
        """Closes the connection, also if the answer is incomplete."""
        with suppress(OSError):  # The server has closed the connection first.
            self.connection.sock.shutdown(socket.SHUT_RDWR) if self.connection.sock else self.response.close()
        self.connection.close()


def ask(port: int, path: str, body: dict | None = None, key: str = KEY) -> Answer:
    """Returns the answer to a request."""
    return Exchange(port, path, body, key).begin().rest()


def completion(first: str, tokens: int, is_stream: bool = False) -> dict:
    """Returns a request for a text of exactly this many tokens."""
    return {"prompt": first, "max_tokens": tokens, "ignore_eos": True, "temperature": 0, "stream": is_stream}


def large(first: str) -> dict:
    """Returns a request that is larger than HAProxy's buffer. The replica ignores its last field."""
    return {**completion(first, 1), "user": "x" * 200_000}


class Traffic:
    """Clients that send requests without pause, each with another beginning or all with one."""

    def __init__(self, port: int, clients: int, tokens: int, is_mixed: bool = False, beginning: str = ""):
        self.port, self.tokens, self.is_mixed, self.beginning = port, tokens, is_mixed, beginning
        # Times of the ends of answers, and headers that name the replicas of answers.
        self.moments: list[float] = []
        self.replicas: list[str] = []
        self.failures: list[str] = []
        self.is_over = False
        # Daemons do not keep a program alive that SIGTERM ends.
        self.threads = [threading.Thread(target=self.send, args=(number,), daemon=True) for number in range(clients)]
        for thread in self.threads:
            thread.start()

    def send(self, client: int) -> None:
        """Sends the requests of one client."""
        number = 0
        while not self.is_over:
            number += 1
            is_stream = self.is_mixed and number % 2 == 0
            try:
                first = self.beginning or f"Client {client}, story {number}"
                self.exchange(completion(first, self.tokens, is_stream))
                self.moments.append(time.monotonic())
            except (AssertionError, http.client.HTTPException, OSError, ValueError) as error:
                self.failures.append(f"{type(error).__name__} {error}"[:300])
                time.sleep(0.1)

    def exchange(self, body: dict) -> None:
        """Sends a request, and checks its answer."""
        answer = ask(self.port, "/v1/completions", body)
        assert answer.status == 200, answer
        assert answer.text.rstrip().endswith("[DONE]") if body["stream"] else answer.json(), answer
        self.replicas.append(answer.replica)

    def more(self, count: int) -> None:
        """Waits for this many more answers."""
        target = len(self.moments) + count
        until("answers", lambda: len(self.moments) >= target or self.failures)

    def end(self) -> None:
        """Waits for the last answers."""
        self.is_over = True
        for thread in self.threads:
            thread.join()

    def check(self) -> None:
        """Raises an error if requests failed."""
        assert not self.failures, f"{len(self.failures)} requests failed; the first: {self.failures[:5]}"
