"""Two machines for tests of ranks: network namespaces, joined by a pair of virtual interfaces.

Each machine also has a host name, shared memory and a view of /sys of its own. No namespace has a
name in the file system. A namespace and its interface exist while a process is in it. The first
process of each reads from a pipe of this script, so it ends with the script, also after SIGKILL.
"""

import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

ADDRESSES = ["10.251.7.1", "10.251.7.2"]
INTERFACE = "link0"
# Kinds of namespaces, as options of unshare and nsenter.
NAMESPACES = ["--net", "--uts", "--ipc", "--mount"]
# The new namespaces see their own interfaces in /sys, where UCX looks for them.
FIRST_PROCESS = "mount -t sysfs sysfs /sys && mount -t tmpfs tmpfs /dev/shm && hostname machine-{number} && echo ready && exec cat"
# Options and the host come first, as for ssh.
REMOTE_SHELL = """#!/bin/sh
# Runs a command on a machine. mpirun calls it in place of ssh.
while :; do
  case $1 in
{cases}
    '') echo "this is no machine of the test" >&2; exit 1 ;;
  esac
  shift
done
shift
exec nsenter {namespaces} --target "$process" sh -c "$*"
"""
# The kernel reports a new link as up after at most a second.
LINK_LIMIT = 10.0
END_LIMIT = 10.0
# Folders of system programs, which the search path of a user may lack.
SYSTEM_PATH = "/usr/sbin:/sbin"


class Unavailable(Exception):
    """This machine has no network namespaces for this user."""


def tool(name: str) -> str:
    """Returns the path of a program."""
    path = shutil.which(name, path=f"{os.environ.get('PATH', os.defpath)}:{SYSTEM_PATH}")
    if path is None:
        raise Unavailable(f"there is no {name} (Debian: {'iproute2' if name == 'ip' else 'util-linux'})")
    return path


class Network:
    """Two machines with a link between them. `folder` is for the remote shell of mpirun."""

    def __init__(self, folder: Path) -> None:
        if os.geteuid() != 0:
            raise Unavailable("namespaces need root")
        self.first: list[subprocess.Popen] = []
        self.remote_shell = folder / "remote-shell"
        try:
            for number in range(len(ADDRESSES)):
                self.first.append(self._first_process(number))
            self._connect()
        except Unavailable:
            self.close()
            raise
        except subprocess.CalledProcessError as error:
            self.close()
            raise Unavailable(f"{' '.join(error.cmd)}: {error.stderr.strip()}") from None
        cases = [f"    {address}) process={process.pid}; break ;;" for address, process in zip(ADDRESSES, self.first)]
        text = REMOTE_SHELL.format(cases="\n".join(cases), namespaces=" ".join(NAMESPACES))
        self.remote_shell.write_text(text)
        self.remote_shell.chmod(0o755)

    def __enter__(self) -> "Network":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _first_process(self, number: int) -> subprocess.Popen:
        """Starts the first process of a new machine."""
        tool("nsenter")
        words = [tool("unshare"), *NAMESPACES, "sh", "-c", FIRST_PROCESS.format(number=number)]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        # A signal of the terminal must not end it before the ranks.
        process = subprocess.Popen(words, text=True, start_new_session=True, **pipes)
        if process.stdout.readline() != "ready\n":
            process.kill()
            raise Unavailable(process.communicate()[1].strip())
        return process

    def _connect(self) -> None:
        peer = ["peer", "name", INTERFACE, "netns", str(self.first[1].pid)]
        self._ip(0, "link", "add", INTERFACE, "type", "veth", *peer)
        for number, address in enumerate(ADDRESSES):
            self._ip(number, "link", "set", "lo", "up")
            self._ip(number, "address", "add", f"{address}/24", "dev", INTERFACE)
        self.set_link("up")
        end = time.monotonic() + LINK_LIMIT
        while any(self._state(number, "operstate") != "up" for number in range(len(ADDRESSES))):
            if time.monotonic() > end:
                raise Unavailable(f"the link is not up after {LINK_LIMIT:.0f} s")
            time.sleep(0.02)

    def inside(self, number: int, words: list[str]) -> list[str]:
        """Returns a command that runs on a machine."""
        return ["nsenter", *NAMESPACES, "--target", str(self.first[number].pid), *words]

    def _ip(self, number: int, *words: str) -> None:
        subprocess.run(self.inside(number, [tool("ip"), *words]), check=True, capture_output=True, text=True)

    def _state(self, number: int, name: str) -> str:
        words = self.inside(number, ["cat", f"/sys/class/net/{INTERFACE}/{name}"])
        return subprocess.run(words, check=True, capture_output=True, text=True).stdout.strip()

    def set_link(self, state: str) -> None:
        """Connects the machines (`up`), or cuts the link (`down`)."""
        for number in range(len(ADDRESSES)):
            self._ip(number, "link", "set", INTERFACE, state)

    def sent_bytes(self) -> int:
        """Returns the bytes that the first machine has sent over the link."""
        return int(self._state(0, "statistics/tx_bytes"))

    def processes(self) -> list[int]:
        """Returns the ids of all processes on the machines, except the first ones."""
        places = [os.stat(f"/proc/{process.pid}/ns/net").st_ino for process in self.first if process.poll() is None]
        first = {process.pid for process in self.first}
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                if (folder / "ns/net").stat().st_ino in places and int(folder.name) not in first:
                    found.append(int(folder.name))
            except OSError:
                # The process has ended.
                continue
        return found

    def kill_all(self) -> None:
        """Kills all processes on the machines, except the first ones."""
        end = time.monotonic() + END_LIMIT
        while (processes := self.processes()) and time.monotonic() < end:
            for process in processes:
                try:
                    os.kill(process, signal.SIGKILL)
                except ProcessLookupError:
                    continue
            time.sleep(0.02)

    def close(self) -> None:
        """Removes the machines and the link."""
        self.kill_all()
        for process in self.first:
            process.kill()
            process.communicate()
        self.first.clear()
