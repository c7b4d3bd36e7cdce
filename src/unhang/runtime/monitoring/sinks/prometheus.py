"""An endpoint that Prometheus scrapes. Its text format is a dozen lines; the client library would add a registry of the whole process."""

from __future__ import annotations

import os
import socketserver
import sys
import threading
import weakref
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from unhang.runtime import log
from unhang.runtime.monitoring.counters import Snapshot
from unhang.runtime.monitoring.sinks.measures import MEASURES

_LAST_PORT = 65535


class Prometheus:
    """Serves /metrics; port 0 takes a free one (`port`). Listens on this machine alone unless told otherwise: there is no password.

    A port that is taken is warned of once, and tried again with each snapshot: that of the training before may not have ended yet.
    Raises ValueError for what is no port, TypeError for what is no name of a host.
    """

    def __init__(self, port: int = 9464, *, host: str = "127.0.0.1") -> None:
        if not isinstance(port, int) or isinstance(port, bool) or not 0 <= port <= _LAST_PORT:
            raise ValueError(f"port is a whole number from 0 to {_LAST_PORT}, not {port!r}")
        if not isinstance(host, str):
            raise TypeError(f"host is a name or an address, such as '127.0.0.1', not {host!r}")
        self._asked = (host, port)
        self.where = f"{host}:{port}"
        self._text = b""
        self._server: _Server | None = None
        self._refused = False

    @property
    def port(self) -> int:
        return int(self._server.server_address[1]) if self._server else 0

    def write(self, snapshot: Snapshot) -> None:
        self._text = text(snapshot).encode()
        # Only rank 0 writes; the other ranks of the host made this object as well, and must not listen.
        if self._server is None:
            self._listen()

    def _listen(self) -> None:
        try:
            self._server = _Server(self._asked, _Handler)
        except OSError as e:
            if not self._refused:
                self._refused = True
                log.warning(
                    "the monitor's Prometheus cannot listen on %s:%d yet, the training goes on: %s (tried again with each snapshot)", *self._asked, e
                )
            return
        self._server.sink = self
        _listening.add(self._server)
        threading.Thread(target=self._server.serve_forever, name="unhang monitor /metrics", daemon=True).start()

    def close(self) -> None:
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    sink: Prometheus

    def handle_error(self, request: Any, client_address: Any) -> None:
        # Who asked has gone before the answer: no traceback belongs into the training's log.
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)

    def server_bind(self) -> None:
        # HTTPServer's looks up what this machine is called, for which a name server may take longer than anybody waits.
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])


_listening: weakref.WeakSet[_Server] = weakref.WeakSet()


def _leave_to_the_parent() -> None:
    """A worker of a DataLoader would keep the port when the training has ended, and answer nobody."""
    for server in list(_listening):
        server.socket.close()


os.register_at_fork(after_in_child=_leave_to_the_parent)


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    timeout = 10

    def do_GET(self) -> None:
        if self.path.partition("?")[0] != "/metrics":
            self.send_error(404)
            return
        body = self.server.sink._text
        self.send_response(200)
        self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


# 1 us to 17 minutes, as a snapshot counts.
_BELOW_S = tuple(4.0**power for power in range(-10, 6))
_DURATIONS = ("unhang_call_duration_seconds", "histogram", "Latencies of the calls since the start, of all ranks.")


def text(snapshot: Snapshot) -> str:
    """In Prometheus's text format."""
    families = [((one.prometheus, one.kind, one.help), [("", *sample) for sample in one.of(snapshot)]) for one in MEASURES if one.prometheus]
    lines = []
    for (name, kind, says), samples in (*families, (_DURATIONS, list(_durations(snapshot)))):
        if samples:
            lines += [f"# HELP {name} {says}", f"# TYPE {name} {kind}"]
        lines += [f"{name}{part}{_labels(labels)} {value!r}" for part, value, labels in samples]
    return "\n".join(lines) + "\n"


def _durations(snapshot: Snapshot) -> Iterator[tuple[str, float, dict[str, str | int]]]:
    for call in snapshot.calls:
        of: dict[str, str | int] = {"group": call.group, "collective": call.collective}
        if call.latency_counts:
            timed = sum(call.latency_counts.values())
            for below_s in _BELOW_S:
                yield "_bucket", sum(n for s, n in call.latency_counts.items() if s <= below_s), {**of, "le": str(below_s)}
            yield "_bucket", timed, {**of, "le": "+Inf"}
            yield "_sum", call.latency_sum_s, of
            yield "_count", timed, of


def _labels(labels: dict[str, str | int]) -> str:
    return "{" + ",".join(f'{name}="{_escaped(str(value))}"' for name, value in labels.items()) + "}" if labels else ""


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
