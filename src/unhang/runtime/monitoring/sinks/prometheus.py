"""An endpoint that Prometheus scrapes. Its text format is a dozen lines; the client library would add a registry of the whole process."""

from __future__ import annotations

import os
import socketserver
import sys
import threading
import weakref
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from unhang.runtime import log
from unhang.runtime.monitoring.counters import Snapshot

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


_TIMES = "unhang_call_duration_seconds"
# 1 us to 17 minutes, as a snapshot counts.
_BELOW_S = tuple(4.0**power for power in range(-10, 6))
_HELP = {
    "unhang_calls_total": "Calls that ended well.",
    "unhang_call_bytes_total": "The most that a rank has given.",
    _TIMES: "Latencies of the calls since the start, of all ranks.",
    "unhang_call_seconds": "Latencies of the calls since the snapshot before.",
    "unhang_busbw_gigabytes_per_second": "Bus bandwidth as of nccl-tests since the snapshot before, in 10^9 bytes.",
    "unhang_failures_total": "Calls that have failed.",
    "unhang_straggler_share": "A rank's part of all waiting in a group since the start.",
    "unhang_straggler_waited_seconds": "How much less a rank has waited than the most patient one of its group since the start.",
    "unhang_straggler_interval_share": "A rank's part of all waiting in a group since the snapshot before.",
    "unhang_straggler_interval_waited_seconds": "How much less a rank has waited than the most patient one of its group since the snapshot before.",
    "unhang_deadline_seconds": "Learned deadlines in force.",
    "unhang_unread_calls_total": "Calls of torch's own that its recorder had forgotten before it was read.",
    "unhang_ranks": "All ranks, those whose counts are in, those from which nothing new comes.",
    "unhang_step": "The training's own step.",
    "unhang_restarts_total": "By torchrun and by unhang run.",
    "unhang_evaluations_total": "Guarded evaluations.",
    "unhang_evaluation_failures_total": "Guarded evaluations that have failed.",
    "unhang_snapshots_dropped_total": "For which a sink had no time.",
    "unhang_snapshot_timestamp_seconds": "When this was told, since 1970: it grows with each snapshot.",
    "unhang_store_lost": "1 where nothing is heard of other ranks any more.",
    "unhang_torch_read": "Whether torch's own collectives could be read.",
}


def text(snapshot: Snapshot) -> str:
    """In Prometheus's text format."""
    families: dict[tuple[str, str], list[tuple[str, dict[str, object], float]]] = {}

    def tell(name: str, kind: str, value: float, *, part: str = "", **labels: object) -> None:
        families.setdefault((name, kind), []).append((part, labels, value))

    for call in snapshot.calls:
        of = {"group": call.group, "collective": call.collective}
        tell("unhang_calls_total", "counter", call.count, **of)
        tell("unhang_call_bytes_total", "counter", call.bytes, **of)
        if call.latency_counts:
            timed = sum(call.latency_counts.values())
            for below_s in _BELOW_S:
                tell(_TIMES, "histogram", sum(n for s, n in call.latency_counts.items() if s <= below_s), part="_bucket", **of, le=below_s)
            tell(_TIMES, "histogram", timed, part="_bucket", **of, le="+Inf")
            tell(_TIMES, "histogram", call.latency_sum_s, part="_sum", **of)
            tell(_TIMES, "histogram", timed, part="_count", **of)
    for call in snapshot.lately:
        of = {"group": call.group, "collective": call.collective}
        for quantile, value in (("0.5", call.latency_p50_s), ("0.95", call.latency_p95_s), ("0.99", call.latency_p99_s)):
            if value is not None:
                tell("unhang_call_seconds", "gauge", value, **of, quantile=quantile)
        if call.busbw_p50_gbps is not None:
            tell("unhang_busbw_gigabytes_per_second", "gauge", call.busbw_p50_gbps, **of, quantile="0.5")
    for failure in snapshot.failures:
        tell("unhang_failures_total", "counter", failure.count, group=failure.group, collective=failure.collective, cause=failure.cause)
    for one in snapshot.stragglers:
        tell("unhang_straggler_share", "gauge", one.share, group=one.group, rank=one.rank)
        tell("unhang_straggler_waited_seconds", "gauge", one.waited_s, group=one.group, rank=one.rank)
    for one in snapshot.interval_stragglers:
        tell("unhang_straggler_interval_share", "gauge", one.share, group=one.group, rank=one.rank)
        tell("unhang_straggler_interval_waited_seconds", "gauge", one.waited_s, group=one.group, rank=one.rank)
    for kind, seconds in snapshot.deadlines_s.items():
        tell("unhang_deadline_seconds", "gauge", seconds, collective=kind)
    for group, count in snapshot.unread.items():
        tell("unhang_unread_calls_total", "counter", count, group=group)
    for state, ranks in (("all", snapshot.world_size), ("heard", snapshot.heard_from), ("silent", len(snapshot.silent))):
        tell("unhang_ranks", "gauge", ranks, state=state)
    if snapshot.step is not None:
        tell("unhang_step", "gauge", snapshot.step)
    tell("unhang_restarts_total", "counter", snapshot.restarts)
    tell("unhang_evaluations_total", "counter", snapshot.evaluations)
    tell("unhang_evaluation_failures_total", "counter", snapshot.evaluation_failures)
    tell("unhang_snapshots_dropped_total", "counter", snapshot.dropped)
    tell("unhang_snapshot_timestamp_seconds", "gauge", snapshot.time_s)
    tell("unhang_store_lost", "gauge", int(snapshot.store_lost is not None))
    if snapshot.torch_collectives is not None:
        tell("unhang_torch_read", "gauge", int(not snapshot.torch_collectives.startswith("not read")))
    lines = []
    for (name, kind), samples in families.items():
        lines += [f"# HELP {name} {_HELP[name]}", f"# TYPE {name} {kind}"]
        lines += [f"{name}{part}{_labels(labels)} {value!r}" for part, labels, value in samples]
    return "\n".join(lines) + "\n"


def _labels(labels: dict[str, object]) -> str:
    return "{" + ",".join(f'{name}="{_escaped(str(value))}"' for name, value in labels.items()) + "}" if labels else ""


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
