"""The socket to the supervisor. Sending never waits: what the kernel does not take at once is kept and sent later, or dropped with the link."""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import socket
import threading
import time

from .protocol import MAX_MESSAGE_BYTES, decode, encode

CONNECT_TIMEOUT_S = 2.0
# Scripts that close "all" descriptors and open new ones take the lowest numbers: a number up here is not handed out again to another socket.
_FD_FROM = 400


class Link:
    """One connection. All methods may be called from any thread; `receive` from one at a time."""

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected
        # A signal handler of the training may come back here while its own thread is inside: hence reentrant.
        self._lock = threading.RLock()
        self._out = bytearray()
        self._in = bytearray()
        self.open = True

    @classmethod
    def connect(cls, path: str) -> Link | None:
        """Connect within two seconds, or None."""
        connected = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connected.settimeout(CONNECT_TIMEOUT_S)
            connected.connect(path)
            connected.setblocking(False)
        except (OSError, ValueError):
            connected.close()
            return None
        return cls(_out_of_the_way(connected))

    @property
    def pending(self) -> bool:
        return bool(self._out)

    def post(self, kind: str, **fields: object) -> bool:
        """Send a message, or queue what does not go out at once. False once the supervisor is gone."""
        if not self.open:
            return False
        data = encode(kind, **fields)
        with self._lock:
            if len(self._out) > MAX_MESSAGE_BYTES:
                self.close()
                return False
            self._out += data
        return self.flush()

    def flush(self) -> bool:
        with self._lock:
            try:
                while self._out and self.open:
                    sent = self._socket.send(self._out, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
                    del self._out[:sent]
            except (BlockingIOError, InterruptedError):
                pass
            except OSError:
                self.close()
        return self.open

    def drain(self, *, timeout_s: float) -> bool:
        """Wait, boundedly, until everything queued has gone out."""
        deadline = time.monotonic() + timeout_s
        while self.flush() and self._out:
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            self._wait(min(left, 0.1), writing=True)
        return self.open

    def receive(self, *, timeout_s: float) -> list[dict[str, object]]:
        """The messages that arrive within the time, at once when there are some. An end of the connection closes the link."""
        ready = self._wait(timeout_s, writing=self.pending)
        if ready & select.POLLOUT:
            self.flush()
        if ready & ~select.POLLOUT:
            try:
                self._take(self._socket.recv(1 << 16, socket.MSG_DONTWAIT))
            except (BlockingIOError, InterruptedError):
                pass
            except OSError:
                self.close()
        return self._messages()

    def receive_fds(self, count: int, *, timeout_s: float) -> list[int] | None:
        """Descriptors that come along with the next message within the time, or None."""
        if not self._wait(timeout_s, writing=False):
            return None
        try:
            data, fds, _, _ = socket.recv_fds(self._socket, 1 << 16, count)
        except OSError:
            self.close()
            return None
        self._take(data)
        if len(fds) == count:
            return fds
        for fd in fds:
            os.close(fd)
        return None

    def wake(self) -> None:
        """End a `receive` that is waiting in another thread; nothing is received afterwards."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RD)

    def close(self) -> None:
        self.open = False
        self._out.clear()
        # A script that closes all descriptors has closed this one, too.
        with contextlib.suppress(OSError):
            self._socket.close()

    def _wait(self, timeout_s: float, *, writing: bool) -> int:
        poller = select.poll()
        try:
            poller.register(self._socket, select.POLLIN | (select.POLLOUT if writing else 0))
            ready = poller.poll(max(0.0, timeout_s) * 1000)
        except (OSError, ValueError):
            self.close()
            return 0
        return ready[0][1] if ready else 0

    def _take(self, data: bytes) -> None:
        self._in += data
        if not data or len(self._in) > MAX_MESSAGE_BYTES:
            self.close()

    def _messages(self) -> list[dict[str, object]]:
        *lines, rest = self._in.split(b"\n")
        self._in = bytearray(rest)
        messages = []
        for line in lines:
            try:
                messages.append(decode(bytes(line)))
            except ValueError:
                self.close()
        return messages


def _out_of_the_way(connected: socket.socket) -> socket.socket:
    try:
        moved = fcntl.fcntl(connected.fileno(), fcntl.F_DUPFD_CLOEXEC, _FD_FROM)
    except OSError:
        return connected
    connected.close()
    return socket.socket(fileno=moved)
