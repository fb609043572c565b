"""Checks of replicas and a proxy. Each has its title as documentation, and may return details."""

import http.client
import json
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import urllib.parse
from pathlib import Path

from client import KEY, PATIENCE, Exchange, Missing, Traffic, ask, completion, large, until
from proxies import LONG, PARALLEL, QUEUE, ROOT, Balancer, HAProxy, configuration, free_port

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
    for is_stream in (True, False):
        def count(name: str) -> float:
            return sum(replica.metric(name) for replica in balancer.replicas)

        before = count("requests_cancelled_total")
        exchange = Exchange(balancer.port, "/v1/completions", completion("Once", LONG, is_stream))
        if is_stream:
            assert exchange.begin().line().startswith("data: ")
        until("the request", lambda: count("requests_processing") == 1)
        exchange.leave()
        until("the end of the request", lambda: count("requests_cancelled_total") == before + 1)


def access(balancer: Balancer) -> None:
    """keys are needed, and paths of one replica are refused"""
    assert ask(balancer.port, "/v1/models").status == 200
    assert ask(balancer.port, "/v1/models", key="wrong").status == 401
    assert ask(balancer.port, "/v1/completions", completion("Hi", 1), key="wrong").status == 401
    for path in ("/metrics", "/slots", "/slots/0?action=erase", "/experts", "/experts/evict"):
        answer = ask(balancer.port, path)
        assert answer.status == 404 and "not served for all replicas" in answer.text, (path, answer)


def refusals(balancer: Balancer) -> None:
    """another replica answers requests that a full one refuses; when all are full, clients learn it"""
    (first,), _ = balancer.firsts(1).values()
    running = []
    for number, replica in enumerate(balancer.replicas):
        # Directly, since the proxy would spread them.
        running += [Exchange(replica.port, "/v1/completions", completion("Long", LONG)) for _ in range(PARALLEL + QUEUE)]
        until("the full queue", lambda: replica.metric("requests_deferred") == QUEUE)
        for body in (completion(first, 1), large(first)):
            answer = ask(balancer.port, "/v1/completions", body)
            is_retried = "user" not in body or balancer.retries_large
            if number == 0 and (is_retried or answer.status == 200):
                assert answer.status == 200 and balancer.replica(answer.replica) != replica, answer
            else:
                assert answer.status == 503 and "retry-after" in {name.lower() for name in answer.headers}, answer
                assert json.loads(answer.text)["error"]["type"] == "unavailable_error", answer
    for exchange in running:
        exchange.leave()
    for replica in balancer.replicas:
        until("the end of the requests", lambda: replica.metric("requests_processing") == 0)


def killed(balancer: Balancer) -> str:
    """after kill -9 of a replica only its streams break, and later requests succeed"""
    firsts = balancer.firsts(3)
    dead, alive = balancer.replicas
    running: dict[int, list[Exchange]] = {replica.port: [] for replica in balancer.replicas}
    for exchange in [balancer.stream(first) for texts in firsts.values() for first in texts]:
        # Not always the replica of the hash, if that one is busier than the other.
        running[balancer.replica(exchange.replica).port].append(exchange)
    assert all(running.values()), "one replica has all streams"
    dead.end()
    for first in firsts[dead.port] * 2:
        for body in (completion(first, 1), large(first)):
            assert balancer.ask(body)[1] == alive
    for exchange in running[dead.port]:
        try:
            assert "[DONE]" not in exchange.rest().text
        except (http.client.HTTPException, OSError):
            pass
    for exchange in running[alive.port]:
        assert exchange.rest().text.rstrip().endswith("data: [DONE]")
    dead.start()
    # The hash is consistent: the replica gets its requests back, and the other one keeps its own.
    until("the replica in the pool", lambda: balancer.ask(completion(firsts[dead.port][0], 1))[1] == dead)
    for port, texts in firsts.items():
        for first in texts:
            balancer.settle()
            assert balancer.ask(completion(first, 1))[1].port == port, "the hash has changed"
    counts = (len(running[dead.port]), len(running[alive.port]), 4 * len(firsts[dead.port]))
    return "{} streams of it, {} of the other, {} later requests".format(*counts)


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


def drained(balancer: Balancer) -> str:
    """a replica that gets SIGTERM ends its streams and leaves the pool, and no request fails"""
    leaving, _ = balancer.replicas
    firsts = balancer.firsts(2)
    running = [balancer.stream(first) for first in firsts[leaving.port]]
    traffic = Traffic(balancer.port, 6, 16, is_mixed=True)
    try:
        traffic.more(40)
        before = len(traffic.moments)
        leaving.process.send_signal(signal.SIGTERM)
        if balancer.checks_health:
            until("the end in the pool", lambda: not balancer.is_up(leaving))
            assert leaving.process.poll() is None, "the replica ended before it left the pool"
        assert leaving.process.wait(PATIENCE) == 0
        during = len(traffic.moments) - before
        traffic.more(40)
    finally:
        traffic.end()
    assert not traffic.failures, traffic.failures
    for exchange in running:
        assert exchange.rest().text.rstrip().endswith("data: [DONE]")
    leaving.start()
    until("the replica in the pool", lambda: balancer.ask(completion(firsts[leaving.port][0], 1))[1] == leaving)
    return f"{len(traffic.moments)} requests, {during} of them while it left"


def prometheus(balancer: Balancer) -> str:
    """Prometheus has the metrics of all replicas, and the queries of the dashboard work"""
    if not shutil.which("prometheus"):
        raise Missing("there is no prometheus")
    text = configuration("prometheus.yml", balancer.replicas).replace("127.0.0.1:8404", f"127.0.0.1:{balancer.metrics_port}")
    folder = Path(tempfile.mkdtemp(dir=balancer.folder))
    folder.joinpath("key.txt").write_text(KEY)
    folder.joinpath("prometheus.yml").write_text(text.replace("scrape_interval: 5s", "scrape_interval: 1s"))
    port = free_port()
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
        except (OSError, ValueError):
            return False

    process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        for replica in balancer.replicas:
            ask(replica.port, "/v1/completions", completion("Hi", 8))
        until("both replicas", lambda: is_scraped('up{job="ixc"} == 1', 2))
        if isinstance(balancer, HAProxy):
            until("the proxy", lambda: is_scraped('up{job="haproxy"} == 1', 1))
        until("rates", lambda: is_scraped("rate(ixc:tokens_predicted_total[1m])", 2))
        (total,) = query("sum by (model_name) (ixc:tokens_predicted_total)")
        parts = query("ixc:tokens_predicted_total")
        assert float(total["value"][1]) == sum(float(part["value"][1]) for part in parts) > 0
        assert {part["metric"]["instance"] for part in parts} == {f"127.0.0.1:{replica.port}" for replica in balancer.replicas}
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
    running = [balancer.stream("A popular beginning") for _ in range(PARALLEL)]
    ports = [balancer.replica(exchange.replica).port for exchange in running]
    counts = sorted(ports.count(port) for port in set(ports))
    assert len(counts) == 2 and counts[0] < counts[1], ports
    for exchange in running:
        exchange.leave()
    return f"{counts[1]} of {len(ports)} at one"


CHECKS = (routes, cache_hits, streams, access, refusals, killed, drained, prometheus)


def checks_of(kind: type[Balancer]) -> tuple:
    """Returns the checks of a kind of proxy."""
    return (*CHECKS, popular, stopped) if kind is HAProxy else CHECKS
