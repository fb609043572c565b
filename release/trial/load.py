"""Measures requests per second of one replica and of two."""

import os
import shutil
import statistics
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from client import Missing, Traffic
from proxies import Balancer, Replica

# Clients of each replica, and tokens of each answer.
LOAD_CLIENTS, LOAD_TOKENS = 4, 256


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

        def rate(balancer: Balancer) -> float:
            traffic = Traffic(balancer.port, LOAD_CLIENTS * len(balancer.replicas), LOAD_TOKENS)
            # All clients are at work.
            traffic.more(2 * LOAD_CLIENTS)
            begin = time.monotonic()
            time.sleep(seconds)
            end = time.monotonic()
            traffic.end()
            assert not traffic.failures, traffic.failures
            return sum(begin < moment <= end for moment, _ in traffic.answers) / (end - begin)

        setup = f"{LOAD_CLIENTS} clients for each replica, {LOAD_TOKENS} tokens an answer"
        print(f"{kind.name}: replicas on cores {cores} with one thread each, {setup}", flush=True)
        rates = []
        for number in range(rounds):
            # Changes of the machine's speed then concern both sides.
            order = balancers if number % 2 == 0 else balancers[::-1]
            measured = {len(balancer.replicas): rate(balancer) for balancer in order}
            rates.append((measured[1], measured[2]))
            one, two = rates[-1]
            print(f"round {number + 1}: {one:.1f} and {two:.1f} requests per second, ratio {two / one:.2f}", flush=True)
    ratios = [two / one for one, two in rates]
    one, two, ratio = (statistics.median(column) for column in (*zip(*rates), ratios))
    spread = f"({min(ratios):.2f} to {max(ratios):.2f})"
    print(f"median of {rounds}: {one:.1f} and {two:.1f} requests per second, ratio {ratio:.2f} {spread}")
