"""Replicas with the demo model, and proxies with the configurations of `release/replicas`."""

import http.client
import itertools
import os
import random
import re
import shutil
import socket
import subprocess
from contextlib import ExitStack
from pathlib import Path

from client import KEY, PATIENCE, Answer, Exchange, Missing, ask, completion, until

ROOT = Path(__file__).resolve().parent.parent.parent
CONFIGURATIONS = ROOT / "release/replicas"
# Sequences of a replica, and requests that wait for one.
PARALLEL, QUEUE = 8, 4
# Seconds between SIGTERM or Ctrl-C and the end of accepting requests.
DRAIN_DELAY = 5
# Tokens of a long answer. The context has 2,048.
LONG = 1500


def free_ports(count: int) -> list[int]:
    """Returns different ports that are free now. Linux does not give these ports to outgoing connections."""
    ports = []
    with ExitStack() as held:
        for port in random.sample(range(20_000, 32_000), 1000):
            try:
                held.enter_context(socket.create_server(("127.0.0.1", port)))
            except OSError:
                continue
            ports.append(port)
            if len(ports) == count:
                return ports
    raise AssertionError("there are no free ports")


def start(command: list[str], log, environment: dict[str, str] | None = None) -> subprocess.Popen:
    """Starts a process that writes to a log, and has no terminal or pipe of this program."""
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment)


class Replica:
    """A replica with the demo model."""

    def __init__(self, program: Path, folder: Path, core: int | None = None):
        self.program, self.core, (self.port,) = program, core, free_ports(1)
        self.log = folder / f"replica-{self.port}.log"
        self.start()

    def start(self) -> None:
        """Starts the process, and waits until it is ready."""
        words = [self.program, "serve", "demo", "--port", self.port, "--parallel", PARALLEL, "--queue", QUEUE]
        words += ["-t", 1, "-c", 2048, "--prompt-cache-memory", "64MiB", "--drain-delay", DRAIN_DELAY]
        pinned = [] if self.core is None else ["taskset", "-c", self.core]
        with self.log.open("a") as log:
            command = [str(word) for word in [*pinned, *words]]
            self.process = start(command, log, {**os.environ, "IXC_API_KEY": KEY})
        try:
            until("the replica", self.is_ready)
        except BaseException:
            self.end()
            raise

    def is_ready(self) -> bool:
        """Returns whether the replica takes requests."""
        assert self.process.poll() is None, self.log.read_text()
        try:
            return ask(self.port, "/health").status == 200
        except (http.client.HTTPException, OSError):
            return False

    def metric(self, name: str) -> float:
        """Returns the sum of a metric's series."""
        text = ask(self.port, "/metrics").text
        series = re.findall(rf"^ixc:{name}(?:{{.*}})? (\S+)$", text, flags=re.MULTILINE)
        assert series, f"there is no metric {name}"
        return sum(map(float, series))

    def end(self) -> None:
        """Ends the process by SIGKILL."""
        self.process.kill()
        self.process.wait()


def replaced(text: str, old: str, new: str) -> str:
    """Returns a text with another part, which must be there once."""
    assert text.count(old) == 1, f"{old!r} is in the configuration {text.count(old)} times"
    return text.replace(old, new)


def configuration(name: str, replicas: list[Replica]) -> str:
    """Returns a file of `release/replicas` with the ports of replicas. A single replica gets both ports."""
    text = CONFIGURATIONS.joinpath(name).read_text()
    for standard, replica in zip((":8081", ":8082"), [*replicas, *replicas]):
        assert standard in text, name
        text = text.replace(standard, f":{replica.port}")
    return text


class Balancer:
    """A proxy with the configuration of `release/replicas`, on free ports."""

    name = file = ""
    # Whether requests larger than its buffer can go to another replica after a refusal.
    retries_large = False
    # Whether it requests the health of replicas.
    checks_health = False

    def __init__(self, folder: Path, replicas: list[Replica]):
        self.folder, self.replicas = folder, replicas
        self.port, self.metrics_port = free_ports(2)
        self.configuration, self.log = folder / self.file, folder / f"{self.name}.log"
        self.configuration.write_text(self.local(configuration(self.file, replicas)))
        with self.log.open("w") as log:
            self.process = start(self.command(), log)
        try:
            until("the proxy", self.is_ready)
        except BaseException:
            self.end()
            raise

    @classmethod
    def check_installed(cls) -> None:
        """Raises `Missing` if this proxy is not installed, or is too old."""
        if not shutil.which(cls.name):
            raise Missing(f"there is no {cls.name}")

    def local(self, text: str) -> str:
        """Returns the configuration with ports and folders of this run."""
        raise NotImplementedError

    def command(self) -> list[str]:
        """Returns the command that runs the proxy."""
        raise NotImplementedError

    def replica(self, header: str) -> Replica:
        """Returns the replica that the header of an answer names."""
        raise NotImplementedError

    def is_up(self, replica: Replica) -> bool:
        """Returns whether the replica is in the pool, for proxies that check its health."""
        raise NotImplementedError

    def departures(self, replica: Replica) -> int:
        """Returns how often the replica left the pool because its answer to a health check was 503."""
        return 0

    def is_ready(self) -> bool:
        """Returns whether the proxy answers with a replica's answer."""
        assert self.process.poll() is None, self.log.read_text()
        try:
            return ask(self.port, "/health").status == 200
        except (http.client.HTTPException, OSError):
            return False

    def restore(self) -> None:
        """Starts replicas that have ended, after a check that failed."""
        for replica in self.replicas:
            if replica.process.poll() is not None:
                replica.start()
        until("the proxy", self.is_ready)

    def settle(self) -> None:
        """Waits until the proxy counts no requests, if it routes by their number."""

    def ask(self, body: dict, path: str = "/v1/completions") -> tuple[Answer, Replica]:
        """Returns an answer that must succeed, and its replica."""
        answer = ask(self.port, path, body)
        assert answer.status == 200, answer
        return answer, self.replica(answer.replica)

    def stream(self, first: str) -> Exchange:
        """Begins a long stream, and returns it after its first event."""
        exchange = Exchange(self.port, "/v1/completions", completion(first, LONG, is_stream=True)).begin()
        assert exchange.response.status == 200 and exchange.line().startswith("data: ")
        return exchange

    def firsts(self, count: int) -> dict[int, list[str]]:
        """Returns this many beginnings of prompts for each replica, by its port."""
        found: dict[int, list[str]] = {replica.port: [] for replica in self.replicas}
        numbers = itertools.count()

        def is_complete() -> bool:
            first = f"Story {next(numbers)}"
            self.settle()
            found[self.ask(completion(first, 1))[1].port].append(first)
            return min(map(len, found.values())) >= count

        until("requests for both replicas", is_complete, pause=0)
        return {port: texts[:count] for port, texts in found.items()}

    def end(self) -> None:
        """Ends the proxy."""
        self.process.terminate()
        try:
            self.process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


class HAProxy(Balancer):
    """HAProxy."""

    name, file, checks_health = "haproxy", "haproxy.cfg", True

    @classmethod
    def check_installed(cls) -> None:
        super().check_installed()
        text = subprocess.run([cls.name, "-v"], stdout=subprocess.PIPE, check=True, text=True).stdout
        version = re.search(r"version (\d+)\.(\d+)\S*", text)
        # The first version that hashes any expression.
        if (int(version[1]), int(version[2])) < (2, 6):
            raise Missing(f"HAProxy has {version[0]}, and the configuration needs 2.6")

    def local(self, text: str) -> str:
        text = replaced(text, "bind 127.0.0.1:8080\n", f"bind 127.0.0.1:{self.port}\n")
        return replaced(text, "bind 127.0.0.1:8404\n", f"bind 127.0.0.1:{self.metrics_port}\n")

    def command(self) -> list[str]:
        return ["haproxy", "-db", "-f", str(self.configuration)]

    def replica(self, header: str) -> Replica:
        return self.replicas[("one", "two").index(header)]

    def is_up(self, replica: Replica) -> bool:
        """Returns whether the replica is in the pool."""
        name = ("one", "two")[self.replicas.index(replica)]
        return self.metric(f'haproxy_server_status{{proxy="replicas",server="{name}",state="UP"}}') == 1

    def departures(self, replica: Replica) -> int:
        name = ("one", "two")[self.replicas.index(replica)]
        return self.log.read_text().count(f"Server replicas/{name} is DOWN, reason: Layer7 wrong status, code: 503")

    def settle(self) -> None:
        until("the end of all requests", lambda: self.metric('haproxy_backend_current_sessions{proxy="replicas"}') == 0)

    def metric(self, series: str) -> float:
        """Returns a metric of the proxy."""
        return float(re.search(rf"^{re.escape(series)} (\S+)$", ask(self.metrics_port, "/metrics").text, re.MULTILINE)[1])


class Nginx(Balancer):
    """nginx."""

    name, file, retries_large = "nginx", "nginx.conf", True

    @classmethod
    def check_installed(cls) -> None:
        super().check_installed()
        text = subprocess.run([cls.name, "-v"], stderr=subprocess.PIPE, check=True, text=True).stderr
        version = re.search(r"nginx/(\d+)\.(\d+)\.(\d+)", text)
        # The first version with the option -e, which this trial uses.
        if tuple(map(int, version.groups())) < (1, 19, 5):
            raise Missing(f"{version[0]} is too old: this trial needs nginx 1.19.5")

    def local(self, text: str) -> str:
        kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
        folders = "".join(f"    {kind}_temp_path {self.folder}/{kind};\n" for kind in kinds)
        text = replaced(text, "http {\n", f"http {{\n{folders}    access_log off;\n")
        return replaced(text, "listen 127.0.0.1:8080;", f"listen 127.0.0.1:{self.port};")

    def command(self) -> list[str]:
        settings = f"daemon off; pid {self.folder}/nginx.pid;"
        return ["nginx", "-p", str(self.folder), "-e", "stderr", "-c", str(self.configuration), "-g", settings]

    def replica(self, header: str) -> Replica:
        # The header lists all replicas of a request. The last one has answered.
        port = int(re.findall(r"127\.0\.0\.1:(\d+)", header)[-1])
        return next(replica for replica in self.replicas if replica.port == port)
