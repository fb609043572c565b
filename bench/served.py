"""Server for the scripts of this folder: `ixc serve`, or a program with llama-server's arguments."""

import contextlib
import http.client
import json
import shlex
import signal
import socket
import subprocess
import sys
import time

# Max seconds until a server answers: a large model is first packed, or read from a slow drive.
STARTS_IN = 600
# Max seconds for the end of a server: its last answers, and the files that it writes then.
ENDS_IN = 60


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


class Server:
    """A server on a free port of this machine. The constructor returns when the server reports that it is ready."""

    def __init__(self, command, log=subprocess.DEVNULL):
        self.port = free_port()
        command = [*command, "--host", "127.0.0.1", "--port", str(self.port)]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=log)
        begun = time.monotonic()
        while time.monotonic() - begun < STARTS_IN:
            if self.process.poll() is not None:
                sys.exit(f"it has ended: {shlex.join(command)}")
            try:
                if self.ask("GET", "/health", timeout=5)[0] == 200:
                    return
            except OSError:
                pass
            time.sleep(0.1)
        sys.exit(f"it does not begin: {shlex.join(command)}")

    @contextlib.contextmanager
    def answer(self, method, path, body=None, timeout=STARTS_IN, key=None):
        """Returns an answer whose body is not read yet. `key` is the API key of the request."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        try:
            headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})
            connection.request(method, path, None if body is None else json.dumps(body), headers)
            yield connection.getresponse()
        finally:
            connection.close()

    def ask(self, method, path, body=None, timeout=STARTS_IN, key=None):
        """Returns status, text and headers of an answer."""
        with self.answer(method, path, body, timeout, key) as answer:
            return answer.status, answer.read().decode(errors="replace"), answer.headers

    def end(self):
        """Ends the server and returns its exit status. Kills it if it does not end."""
        self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(ENDS_IN)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait()
