"""Checks of replicas and a proxy. Each has its title as documentation, and may return details."""

import http.client
import json
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.parse
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from client import KEY, PATIENCE, Answer, Exchange, Missing, Traffic, ask, completion, large, until
from proxies import LONG, PARALLEL, QUEUE, ROOT, Balancer, HAProxy, Replica, configuration, free_ports

# Bytes of a first message that proxies compare.
KEY_BYTES = 1024

# By name: path, and a function from the first text and the turn to a request.
INTERFACES = {
    "a system message": ("/v1/chat/completions", lambda text, turn: {
        "messages": [{"role": "system", "content": text}, {"role": "user", "content": f"Question {turn}"}], "max_tokens": 2}),
    "a first message": ("/v1/chat/completions", lambda text, turn: {
        "max_tokens": 2, "messages": [
            {"role": "user", "content": text}, {"role": "assistant", "content": "Yes"},
            {"role": "user", "content": f"Question {turn}"}]}),
    "a message in parts": ("/v1/chat/completions", lambda text, turn: {
        "max_tokens": 2, "messages": [
            {"role": "system", "content": [{"type": "text", "text": text}]}, {"role": "user", "content": f"Question {turn}"}]}),
    "a key": ("/v1/chat/completions", lambda text, turn: {
        "messages": [{"role": "user", "content": f"Question {turn}"}], "max_tokens": 2, "prompt_cache_key": text}),
    "a long prompt": ("/v1/completions", lambda text, turn: {
        "prompt": f"{text} {'word ' * (KEY_BYTES // 5)} {turn}", "max_tokens": 2}),
    "/v1/messages": ("/v1/messages", lambda text, turn: {
        "max_tokens": 2, "messages": [{"role": "user", "content": f"Question {turn}"}], "system": text}),
    "/v1/responses": ("/v1/responses", lambda text, turn: {
        "input": f"Question {turn}", "instructions": text, "max_output_tokens": 2}),
    "/v1/responses with a list": ("/v1/responses", lambda text, turn: {
        "max_output_tokens": 2, "input": [
            {"role": "user", "content": text}, {"role": "assistant", "content": "Yes"},
            {"role": "user", "content": f"Question {turn}"}]}),
    # The replicas refuse this text, because it is longer than their context.
    "a message longer than the buffer": ("/v1/chat/completions", lambda text, turn: {
        "messages": [{"role": "user", "content": f"{text} \"\\\n {'word ' * 40_000} {turn}"}], "max_tokens": 2}),
}  # fmt: skip


def routes(balancer: Balancer) -> str:
    """requests with equal beginnings go to one replica, and others are spread"""
    for name, (path, request) in INTERFACES.items():
        ports = set()
        for number in range(64):
            answers = []
            for turn in (0, 1, 2):
                balancer.settle()
                answers.append(ask(balancer.port, path, request(f'Role "{number}"\nof {name}', turn)))
            is_long = "longer" in name
            assert all(answer.status == (400 if is_long else 200) for answer in answers), (name, answers[0].text[:500])
            found = {balancer.replica(answer.replica).port for answer in answers}
            assert len(found) == 1, f"{name}: two replicas"
            ports |= found
            if len(ports) == 2 and number >= 4:
                break
        assert len(ports) == 2, f"{name}: one replica gets all"
    return f"{len(INTERFACES)} kinds of requests"


def cache_hits(balancer: Balancer) -> str:
    """conversations find their earlier turns in the prompt cache"""
    name = "prompt_tokens_cached_total"
    before = {replica.port: replica.metric(name) for replica in balancer.replicas}
    beginnings = balancer.firsts(3)
    role = " ".join(f"Rule {number}: answer in the words of rule {number + 1}." for number in range(20))
    chats = [[{"role": "system", "content": f"{first}. {role}"}] for firsts in beginnings.values() for first in firsts]
    prompt = cached = 0
    for turn in range(4):
        for chat in chats:
            chat.append({"role": "user", "content": f"Question {turn}"})
            balancer.settle()
            answer, _ = balancer.ask({"messages": chat, "max_tokens": 8, "temperature": 0}, "/v1/chat/completions")
            usage = answer.json()["usage"]
            found = usage["prompt_tokens_details"]["cached_tokens"]
            # Each turn adds less than a tenth of the role.
            assert turn == 0 or found > usage["prompt_tokens"] * 0.7, (turn, usage)
            chat.append(answer.json()["choices"][0]["message"])
            prompt, cached = prompt + usage["prompt_tokens"], cached + found
    grown = {replica.port: replica.metric(name) - before[replica.port] for replica in balancer.replicas}
    assert sum(grown.values()) >= cached > 0, (grown, cached)
    return f"{100 * cached / prompt:.0f} % of {prompt} prompt tokens cached; by replica {sorted(map(int, grown.values()))}"


def streams(balancer: Balancer) -> None:
    """events arrive before the answer ends, and an answer ends when its client leaves"""

    def count(name: str) -> float:
        return sum(replica.metric(name) for replica in balancer.replicas)

    def is_cancelled(is_stream: bool) -> bool:
        """Leaves a request, and returns whether its answer was incomplete."""
        before = count("requests_cancelled_total")
        exchange = Exchange(balancer.port, "/v1/completions", completion("Once", LONG, is_stream))
        if is_stream:
            assert exchange.begin().line().startswith("data: ")
        else:
            until("the request", lambda: count("requests_processing") > 0 or exchange.is_answered())
        exchange.leave()
        until("the end of the request", lambda: count("requests_processing") == 0)
        return count("requests_cancelled_total") > before

    for is_stream in (True, False):
        # A client on a busy machine may leave after the end of the answer.
        until("a cancelled request", lambda: is_cancelled(is_stream))


def access(balancer: Balancer) -> None:
    """keys are needed, and paths of one replica are refused"""
    assert ask(balancer.port, "/v1/models").status == 200
    assert ask(balancer.port, "/v1/models", key="wrong").status == 401
    assert ask(balancer.port, "/v1/completions", completion("Hi", 1), key="wrong").status == 401
    for path in ("/metrics", "/slots", "/slots/0?action=erase", "/experts", "/experts/evict"):
        answer = ask(balancer.port, path)
        assert answer.status == 404 and "not served for all replicas" in answer.text, (path, answer)


@contextmanager
def full(replica: Replica) -> Iterator[None]:
    """Keeps a replica full. It has a free place for a moment after each answer."""
    # The requests go directly to the replica, since the proxy would spread them.
    traffic = Traffic(replica.port, PARALLEL + QUEUE + 4, LONG // 3)
    try:
        until("the full queue", lambda: replica.metric("requests_deferred") == QUEUE)
        yield
    finally:
        # The replica refuses some of these requests.
        traffic.end()


def assert_refused(answer: Answer) -> None:
    """Expects the answer of a full replica, or the same answer of a proxy."""
    assert answer.status == 503 and "retry-after" in {name.lower() for name in answer.headers}, answer
    assert json.loads(answer.text)["error"]["type"] == "unavailable_error", answer


def refusals(balancer: Balancer) -> None:
    """another replica answers requests that a full one refuses; when all are full, clients get 503"""
    (first,), _ = balancer.firsts(1).values()

    def is_answered_by(other: Replica, body: dict) -> bool:
        answer = ask(balancer.port, "/v1/completions", body)
        if "user" in body and not balancer.retries_large and answer.status != 200:
            assert_refused(answer)
            return True
        assert answer.status == 200, answer
        return balancer.replica(answer.replica) == other

    def is_refused(body: dict) -> bool:
        answer = ask(balancer.port, "/v1/completions", body)
        if answer.status == 200:
            return False
        assert_refused(answer)
        return True

    one, two = balancer.replicas
    bodies = (completion(first, 1), large(first))
    with full(one):
        for body in bodies:
            until("an answer of the other replica", lambda: is_answered_by(two, body))
        with full(two):
            for body in bodies:
                until("a refusal", lambda: is_refused(body))


@dataclass
class Kill:
    """Streams of a killed replica that broke, streams of the other one, and requests after the kill."""

    broken: int
    whole: int
    later: int


def kill(balancer: Balancer) -> Kill:
    """Kills a replica that has streams, and starts it again."""
    firsts = balancer.firsts(3)
    dead, alive = balancer.replicas
    running: dict[int, list[Exchange]] = {replica.port: [] for replica in balancer.replicas}
    for exchange in [balancer.stream(first) for replica in (alive, dead) for first in firsts[replica.port]]:
        # This is not always the replica that the hash selects: the proxy avoids the busier replica.
        running[balancer.replica(exchange.replica).port].append(exchange)
    dead.end()
    for first in firsts[dead.port] * 2:
        for body in (completion(first, 1), large(first)):
            assert balancer.ask(body)[1] == alive
    broken = 0
    for exchange in running[dead.port]:
        try:
            broken += "[DONE]" not in exchange.rest().text
        except (http.client.HTTPException, OSError):
            broken += 1
    for exchange in running[alive.port]:
        assert exchange.rest().text.rstrip().endswith("data: [DONE]")

    def is_error() -> bool:
        answer = ask(balancer.port, "/v1/completions", completion(firsts[alive.port][0], 1))
        if answer.status == 200:
            return False
        assert answer.status in (502, 503), answer
        assert json.loads(answer.text)["error"]["type"] in ("server_error", "unavailable_error"), answer
        return True

    if balancer.checks_health:
        # Until then, HAProxy 2.6.12 closes connections without an answer.
        until("the end in the pool", lambda: not balancer.is_up(dead))
    with full(alive):
        until("an error", is_error)
    dead.start()
    # The hash is consistent: the replica gets its requests back, and the other one keeps its own.
    until("the replica in the pool", lambda: balancer.ask(completion(firsts[dead.port][0], 1))[1] == dead)
    for port, texts in firsts.items():
        for first in texts:
            balancer.settle()
            assert balancer.ask(completion(first, 1))[1].port == port, "the hash has changed"
    return Kill(broken, len(running[alive.port]), 4 * len(firsts[dead.port]))


def killed(balancer: Balancer) -> str:
    """after kill -9 of a replica only its streams break, later requests succeed, and errors are JSON"""
    kills: list[Kill] = []

    def breaks_streams() -> bool:
        kills.append(kill(balancer))
        return kills[-1].broken > 0 and kills[-1].whole > 0

    # Streams on a busy machine may end before the kill.
    until("a kill that breaks streams", breaks_streams)
    return "{0.broken} streams of it, {0.whole} of the other, {0.later} later requests".format(kills[-1])


def stopped(balancer: Balancer) -> None:
    """a replica that no longer answers leaves the pool, and returns to it"""
    hung, alive = balancer.replicas
    (first, *_) = balancer.firsts(1)[hung.port]
    hung.process.send_signal(signal.SIGSTOP)
    try:
        until("the end in the pool", lambda: not balancer.is_up(hung))
        assert balancer.ask(completion(first, 1))[1] == alive
    finally:
        hung.process.send_signal(signal.SIGCONT)
    until("the replica in the pool", lambda: balancer.ask(completion(first, 1))[1] == hung)


class LastStreams(Traffic):
    """Clients that send streams to a replica until it no longer listens."""

    def __init__(self, replica: Replica):
        self.refusals: list[float] = []
        # With the other traffic of `drain`, these fit into the replica and its queue.
        super().__init__(replica.port, 3, LONG, is_mixed=True)

    def send(self, client: int) -> None:
        while not self.is_over:
            try:
                # Streams of equal length would all end at once.
                self.exchange(completion(f"Client {client}", self.tokens // (client + 2), is_stream=True))
                self.moments.append(time.monotonic())
            except ConnectionRefusedError:
                self.refusals.append(time.monotonic())
                return
            except (AssertionError, http.client.HTTPException, OSError) as error:
                self.failures.append(f"{type(error).__name__} {error}"[:300])
                time.sleep(0.1)


@dataclass
class Drain:
    """Events of a drain."""

    # Requests during the drain.
    requests: int
    # Streams that ended after the replica had stopped listening.
    last_streams: int
    # Whether the replica left the pool while it answered health checks, for proxies with checks.
    left_early: bool


def drain(balancer: Balancer) -> Drain:
    """Drains a replica during traffic, and starts it again."""
    leaving, _ = balancer.replicas
    firsts = balancer.firsts(2)
    with ExitStack() as ends:
        running = [balancer.stream(first) for first in firsts[leaving.port]]
        traffic = Traffic(balancer.port, 6, 16, is_mixed=True)
        ends.callback(traffic.end)
        last = LastStreams(leaving)
        ends.callback(last.end)
        traffic.more(40)
        before, departures = len(traffic.moments), balancer.departures(leaving)
        leaving.process.send_signal(signal.SIGTERM)
        assert leaving.process.wait(PATIENCE) == 0
        during = len(traffic.moments) - before
        if balancer.checks_health:
            until("the end in the pool", lambda: not balancer.is_up(leaving))
        traffic.more(40)
    traffic.check()
    last.check()
    for exchange in running:
        assert exchange.rest().text.rstrip().endswith("data: [DONE]")
    left_early = balancer.departures(leaving) > departures
    leaving.start()
    until("the replica in the pool", lambda: balancer.ask(completion(firsts[leaving.port][0], 1))[1] == leaving)
    return Drain(during, sum(moment > min(last.refusals) for moment in last.moments), left_early)


def drained(balancer: Balancer) -> str:
    """a replica that gets SIGTERM ends its streams and leaves the pool, and no request fails"""
    drains: list[Drain] = []

    def is_complete() -> bool:
        drains.append(drain(balancer))
        return drains[-1].last_streams > 0 and (drains[-1].left_early or not balancer.checks_health)

    # On a busy machine the health checks may come late, and the last streams may end together.
    until("a drain with last streams, early for the health checks", is_complete)
    return "{0.requests} requests and {0.last_streams} last streams".format(drains[-1])


def prometheus(balancer: Balancer) -> str:
    """Prometheus has the metrics of all replicas, and the queries of the dashboard work"""
    if not shutil.which("prometheus"):
        raise Missing("there is no prometheus")
    text = configuration("prometheus.yml", balancer.replicas).replace("127.0.0.1:8404", f"127.0.0.1:{balancer.metrics_port}")
    folder = Path(tempfile.mkdtemp(dir=balancer.folder))
    folder.joinpath("key.txt").write_text(KEY)
    folder.joinpath("prometheus.yml").write_text(text.replace("scrape_interval: 5s", "scrape_interval: 1s"))
    (port,) = free_ports(1)
    words = ["prometheus", f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data"]
    words.append(f"--web.listen-address=127.0.0.1:{port}")

    def query(expression: str) -> list[dict]:
        answer = ask(port, f"/api/v1/query?{urllib.parse.urlencode({'query': expression})}")
        read = json.loads(answer.text)
        assert read["status"] == "success", (expression, read)
        return read["data"]["result"]

    def is_scraped(expression: str, count: int) -> bool:
        try:
            return len(query(expression)) == count
        except (http.client.HTTPException, OSError, ValueError):
            return False

    def is_summed() -> bool:
        # A scrape may be late on a busy machine, and its series are then absent.
        total, parts = query("sum by (model_name) (ixc:tokens_predicted_total)"), query("ixc:tokens_predicted_total")
        instances = {part["metric"]["instance"] for part in parts}
        is_whole = len(total) == 1 and instances == {f"127.0.0.1:{replica.port}" for replica in balancer.replicas}
        return is_whole and float(total[0]["value"][1]) == sum(float(part["value"][1]) for part in parts) > 0

    process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        for replica in balancer.replicas:
            ask(replica.port, "/v1/completions", completion("Hi", 8))
        until("both replicas", lambda: is_scraped('up{job="ixc"} == 1', 2))
        if isinstance(balancer, HAProxy):
            until("the proxy", lambda: is_scraped('up{job="haproxy"} == 1', 1))
        until("rates", lambda: is_scraped("rate(ixc:tokens_predicted_total[1m])", 2))
        until("the sum of both replicas", is_summed)
        sys.path.insert(0, str(ROOT / "release/pack"))
        from dashboard import PANELS

        queries = [(legend, expression) for _, _, panel in PANELS for expression, legend in panel]
        for legend, expression in queries:
            legends = [re.sub(r"{{(\w+)}}", lambda name: one["metric"].get(name[1], ""), legend) for one in query(expression)]
            assert len(set(legends)) == len(legends), f"{expression}: two series are called {legends}"
        return f"{len(queries)} queries"
    finally:
        process.kill()
        process.wait()


def popular(balancer: Balancer) -> str:
    """many simultaneous requests with one beginning use both replicas"""
    balancer.settle()
    traffic = Traffic(balancer.port, PARALLEL, LONG // 3, beginning="A popular beginning")
    try:
        until("answers of both replicas", lambda: len(set(traffic.replicas)) == 2 or traffic.failures)
    finally:
        traffic.end()
    traffic.check()
    counts = sorted(traffic.replicas.count(name) for name in set(traffic.replicas))
    return f"{counts[1]} of {sum(counts)} at one"


CHECKS = (routes, cache_hits, streams, access, refusals, killed, drained, prometheus)


def checks_of(kind: type[Balancer]) -> tuple:
    """Returns the checks of a kind of proxy."""
    return (*CHECKS, popular, stopped) if kind is HAProxy else CHECKS
