"""Measures requests per second of one replica and of two."""

import json
import os
import shutil
import socket
import statistics
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from client import KEY, PATIENCE, Missing, Traffic
from proxies import Balancer, Replica

# Clients of each replica, and tokens of each answer.
LOAD_CLIENTS, LOAD_TOKENS = 4, 256


class LightTraffic(Traffic):
    """Traffic that takes little time from the cores of the replicas."""

    def exchange(self, body: dict) -> None:
        data = json.dumps(body).encode()
        head = f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {KEY}\r\nConnection: close\r\n"
        with socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE) as connection:
            connection.sendall(f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data)
            answer = b""
            while part := connection.recv(1 << 16):
                answer += part
        assert answer.startswith(b"HTTP/1.1 200"), answer


def cpu_seconds(replicas: list[Replica]) -> float:
    """Returns the CPU time of replicas."""
    ticks = 0
    for replica in replicas:
        # The fields after the name in parentheses begin with the third: proc(5).
        fields = Path(f"/proc/{replica.process.pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[14 - 3]) + int(fields[15 - 3])
    return ticks / os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Rate:
    """Requests per second, and cores that the replicas have used."""

    requests: float
    cores: float

    def __str__(self) -> str:
        return f"{self.requests:.1f} requests per second with {self.cores:.2f} cores"


def measure(balancer: Balancer, seconds: float) -> Rate:
    """Measures the replicas of a proxy."""
    traffic = LightTraffic(balancer.port, LOAD_CLIENTS * len(balancer.replicas), LOAD_TOKENS)
    try:
        # All clients are at work.
        traffic.more(2 * LOAD_CLIENTS)
        begin, used = time.monotonic(), cpu_seconds(balancer.replicas)
        time.sleep(seconds)
        end, used = time.monotonic(), cpu_seconds(balancer.replicas) - used
    finally:
        traffic.end()
    traffic.check()
    count = sum(begin < moment <= end for moment in traffic.moments)
    return Rate(count / (end - begin), used / (end - begin))


def load(kind: type[Balancer], program: Path, rounds: int, seconds: float) -> None:
    """Measures requests per second of one replica and of two, each with one core."""
    cores = sorted(os.sched_getaffinity(0))[:2]
    if len(cores) < 2 or not shutil.which("taskset"):
        raise Missing("there are no two cores, or no taskset")
    with tempfile.TemporaryDirectory() as work, ExitStack() as ends:
        folder = Path(work)
        folder.chmod(0o755)
        replicas = []
        for core in cores:
            replicas.append(Replica(program, folder, core))
            ends.callback(replicas[-1].end)
        balancers = []
        for count in (1, 2):
            own = folder / str(count)
            own.mkdir()
            balancers.append(kind(own, replicas[:count]))
            ends.callback(balancers[-1].end)

        setup = f"{LOAD_CLIENTS} clients for each replica, {LOAD_TOKENS} tokens an answer"
        print(f"{kind.name}: replicas on cores {cores} with one thread each, {setup}", flush=True)
        rates = []
        for number in range(rounds):
            # Changes of the machine's speed then concern both sides.
            order = balancers if number % 2 == 0 else balancers[::-1]
            measured = {len(balancer.replicas): measure(balancer, seconds) for balancer in order}
            rates.append((measured[1], measured[2]))
            one, two = rates[-1]
            print(f"round {number + 1}: {one}; {two}; ratio {two.requests / one.requests:.2f}", flush=True)
    ratios = [two.requests / one.requests for one, two in rates]
    by_core = [(two.requests / two.cores) / (one.requests / one.cores) for one, two in rates]
    for name, column in (("requests per second", ratios), ("requests per second of CPU time", by_core)):
        spread = f"{min(column):.2f} to {max(column):.2f}"
        print(f"ratio of {name}: median {statistics.median(column):.2f}, {spread} in {rounds} rounds")
