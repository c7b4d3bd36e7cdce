"""An endpoint that Prometheus scrapes. Its text format is a dozen lines; the client library would add a registry of the whole process."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from unhang.runtime.monitoring.tally import Snapshot


class Prometheus:
    """Serves /metrics; port 0 takes a free one (`port`). Listens on this machine alone unless told otherwise: there is no password."""

    def __init__(self, port: int = 9464, *, host: str = "127.0.0.1") -> None:
        self._asked = (host, port)
        self._text = b""
        self._server: ThreadingHTTPServer | None = None

    @property
    def port(self) -> int:
        return int(self._server.server_address[1]) if self._server else 0

    def write(self, snapshot: Snapshot) -> None:
        self._text = text(snapshot).encode()
        # Only rank 0 writes; the other ranks of the host made this object as well, and must not listen.
        if self._server is None:
            self._server = _Server(self._asked, _Handler)
            self._server.sink = self
            threading.Thread(target=self._server.serve_forever, name="unhang monitor /metrics", daemon=True).start()

    def close(self) -> None:
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    sink: Prometheus


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


def text(snapshot: Snapshot) -> str:
    """In Prometheus's text format."""
    families: dict[tuple[str, str], list[tuple[dict[str, object], float]]] = {}

    def tell(name: str, kind: str, value: float, **labels: object) -> None:
        families.setdefault((name, kind), []).append((labels, value))

    for call in snapshot.calls:
        of = {"group": call.group, "collective": call.collective}
        tell("unhang_calls_total", "counter", call.count, **of)
        tell("unhang_call_bytes_total", "counter", call.bytes, **of)
        for quantile, value in (("0.5", call.latency_p50_s), ("0.95", call.latency_p95_s), ("0.99", call.latency_p99_s)):
            if value is not None:
                tell("unhang_call_seconds", "gauge", value, **of, quantile=quantile)
        if call.busbw_p50_gbps is not None:
            tell("unhang_busbw_gigabytes_per_second", "gauge", call.busbw_p50_gbps, **of, quantile="0.5")
    for failure in snapshot.failures:
        tell("unhang_failures_total", "counter", failure.count, group=failure.group, collective=failure.collective, cause=failure.cause)
    for one in snapshot.stragglers:
        tell("unhang_straggler_share", "gauge", one.share, group=one.group, rank=one.rank)
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
    lines = []
    for (name, kind), samples in families.items():
        lines.append(f"# TYPE {name} {kind}")
        lines += [f"{name}{_labels(labels)} {value!r}" for labels, value in samples]
    return "\n".join(lines) + "\n"


def _labels(labels: dict[str, object]) -> str:
    return "{" + ",".join(f'{name}="{value}"' for name, value in labels.items()) + "}" if labels else ""
