"""A supervisor that only listens, and real Python processes that are attached to it."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest
from tests.leftovers import end_all

import unhang.attach as attach
from unhang.attach import protocol

HOOK = Path(attach.__file__).parent / "hook"
TOKEN = "a-token"
# Two ranks that import torch, on a machine that has much else to do.
WAIT_S = 90.0


class Peer:
    """One connection, and all that came over it."""

    def __init__(self, connected: socket.socket) -> None:
        self.socket = connected
        self.messages: list[dict] = []
        self.open = True

    def of(self, kind: str) -> list[dict]:
        return [message for message in list(self.messages) if message["m"] == kind]

    @property
    def hello(self) -> dict:
        return self.of("hello")[0]

    def send(self, kind: str, **fields) -> None:
        with contextlib.suppress(OSError):
            self.socket.sendall(protocol.encode(kind, **fields))


class Listener:
    """`stdio`: two descriptors for whoever wants them. `go`: kinds of message that are answered with go at once. `deaf`: reads nothing."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.path = str(directory / "s")
        self.fatal = directory / "fatal"
        self.fatal.mkdir()
        self.peers: list[Peer] = []
        self.stdio: tuple[int, int] | None = None
        self.go: set[str] = {"raised", "stopping"}
        self.deaf = False
        self._changed = threading.Condition()
        self._processes: list[subprocess.Popen] = []
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.bind(self.path)
        self._socket.listen(64)
        threading.Thread(target=self._accept, daemon=True).start()

    def env(self, **extra: str | None) -> dict[str, str]:
        env = {
            name: value for name, value in os.environ.items() if not name.startswith(("UNHANG_", "PYTHONPATH", "RANK", "LOCAL_RANK", "WORLD_SIZE"))
        }
        env |= {
            "PYTHONPATH": str(HOOK),
            protocol.ENV_SOCKET: self.path,
            protocol.ENV_TOKEN: TOKEN,
            protocol.ENV_SUPERVISOR: str(os.getpid()),
            protocol.ENV_FATAL: str(self.fatal),
            "OMP_NUM_THREADS": "1",
        }
        env |= {name: value for name, value in extra.items() if value is not None}
        return {name: value for name, value in env.items() if extra.get(name, "") is not None}

    def python(self, code: str, *, args: tuple[str, ...] = (), name: str = "train.py", **popen) -> subprocess.Popen:
        """Run a script; what it prints comes back by `finish`."""
        script = self.directory / name
        script.write_text(code)
        return self.run([sys.executable, *args, str(script)], **popen)

    def run(self, argv: list[str], *, env: dict[str, str] | None = None, **popen) -> subprocess.Popen:
        popen = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **popen}
        process = subprocess.Popen(argv, env=env or self.env(), start_new_session=True, text=True, cwd=self.directory, **popen)
        self._processes.append(process)
        return process

    def finish(self, process: subprocess.Popen, *, wait_s: float = WAIT_S) -> tuple[int, str, str]:
        out, err = process.communicate(timeout=wait_s)
        return process.returncode, out, err

    def until(self, condition, what: str = ""):
        """The first true value of `condition()`, looked at whenever a message arrives."""
        deadline = time.monotonic() + WAIT_S
        with self._changed:
            while not (value := condition()):
                left = deadline - time.monotonic()
                if left <= 0:
                    raise AssertionError(f"{what or 'condition'} not met; messages: {[[m['m'] for m in p.messages] for p in self.peers]}")
                self._changed.wait(min(left, 0.2))
            return value

    def peer(self, **hello) -> Peer:
        """Wait for the process whose hello has these fields."""

        def find():
            return next((p for p in self.peers if p.messages and all(p.messages[0].get(k) == v for k, v in hello.items())), None)

        return self.until(find, f"hello of {hello}")

    def await_message(self, peer: Peer, kind: str, *, number: int = 1) -> dict:
        return self.until(lambda: len(found := peer.of(kind)) >= number and found[-1], kind)

    def close(self) -> None:
        """As if the supervisor had been killed."""
        self._socket.close()
        for peer in self.peers:
            with contextlib.suppress(OSError):
                peer.socket.shutdown(socket.SHUT_RDWR)

    def end(self) -> None:
        for process in self._processes:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(WAIT_S)
            for stream in (process.stdout, process.stderr):
                if stream is not None:
                    stream.close()
        # torchrun makes a session of its own for each worker, one that has not said hello yet as well.
        end_all(f"{protocol.ENV_SOCKET}={self.path}")
        self.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connected, _ = self._socket.accept()
                peer = Peer(connected)
                if self.deaf:
                    self.peers.append(peer)
                    continue
                threading.Thread(target=self._serve, args=(peer,), daemon=True).start()

    def _serve(self, peer: Peer) -> None:
        buffer = b""
        with self._changed:
            self.peers.append(peer)
        with contextlib.suppress(OSError):
            while data := peer.socket.recv(1 << 16):
                *lines, buffer = (buffer + data).split(b"\n")
                for line in lines:
                    self._take(peer, protocol.decode(line))
        peer.open = False
        peer.socket.close()
        with self._changed:
            self._changed.notify_all()

    def _take(self, peer: Peer, message: dict) -> None:
        if message["m"] == "hello":
            if message["wants_stdio"] and self.stdio is not None:
                socket.send_fds(peer.socket, [protocol.encode("stdio")], list(self.stdio))
        elif message["m"] in self.go:
            peer.send("go")
        with self._changed:
            peer.messages.append(message)
            self._changed.notify_all()


@contextlib.contextmanager
def listening():
    # A socket's path has 108 characters at most: pytest's own directories may be longer.
    directory = Path(tempfile.mkdtemp(prefix="unhang-"))
    listener = Listener(directory)
    try:
        yield listener
    finally:
        listener.end()
        shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture
def listener():
    with listening() as it:
        yield it


@pytest.fixture(scope="module")
def shared_listener():
    with listening() as it:
        yield it
