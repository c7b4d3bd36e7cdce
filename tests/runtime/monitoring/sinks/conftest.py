"""Snapshots as a training makes them, and a server that keeps what it is sent."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from tests.launchers.environments import NotMade, environment, supported

import unhang
from unhang.runtime.monitoring.counters import OfCalls, OfFailures, Silent, Snapshot, Straggler

BEGAN_S = 1_800_000_000.0


@pytest.fixture
def snapshot() -> Callable[..., Snapshot]:
    """`snapshot(20, step=3, restarts=1)`: twenty seconds after the first."""

    def made(at_s: float = 0.0, **more: Any) -> Snapshot:
        return Snapshot(**{"time_s": BEGAN_S + at_s, "world_size": 4, "heard_from": 4, "restarts": 0, **more})

    return made


@pytest.fixture
def busy(snapshot) -> Callable[..., Snapshot]:
    """One that has something of everything; a latency and a bandwidth in it are not finite."""

    def made(at_s: float = 0.0, **more: Any) -> Snapshot:
        return snapshot(
            at_s,
            **{
                "calls": [
                    calls("world", "all_reduce", 40, busbw_p50_gbps=2.5),
                    calls("ranks 0,2", "barrier", 3, latency_p99_s=float("nan")),
                    calls("ranks 1,3", "broadcast", 2, busbw_p50_gbps=float("inf")),
                ],
                "failures": [OfFailures(group="world", collective="all_reduce", cause="broken connection", count=2, says="rank 3 is gone")],
                "stragglers": [Straggler(group="world", rank=3, waited_s=8.0, share=0.8), Straggler(group="world", rank=1, waited_s=2.0, share=0.2)],
                "interval_s": 10.0,
                "interval_calls": [
                    calls("world", "all_reduce", 4, latency_p95_s=0.08, busbw_p50_gbps=1.5),
                    calls("ranks 0,2", "barrier", 3, latency_p99_s=float("nan")),
                    calls("ranks 1,3", "broadcast", 2, busbw_p50_gbps=float("inf")),
                ],
                "interval_stragglers": [Straggler(group="world", rank=2, waited_s=1.5, share=1.0)],
                "deadlines_s": {"all_reduce": 30.0},
                "evaluations": 5,
                "evaluation_failures": 1,
                "evaluation_says": "rank 1: KeyError: a label",
                "restarts": 1,
                "silent": [Silent(rank=2, for_s=31.0)],
                **more,
            },
        )

    return made


def calls(group: str, collective: str, count: int, **more: Any) -> OfCalls:
    given = {"latency_p50_s": 0.01, "latency_p95_s": 0.02, "latency_p99_s": 0.04, "busbw_p50_gbps": None, **more}
    return OfCalls(group=group, collective=collective, count=count, **given)


@dataclass
class Server:
    """Answers each POST with the next of `answers`, and the last one for ever: a status, or what is called with the handler."""

    url: str = ""
    answers: list[Any] = field(default_factory=lambda: [200])
    paths: list[str] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)
    arrived: threading.Condition = field(default_factory=threading.Condition)

    @property
    def messages(self) -> list[dict[str, Any]]:
        return [json.loads(body) for body in self.bodies]

    def wait_for(self, count: int) -> None:
        with self.arrived:
            assert self.arrived.wait_for(lambda: len(self.bodies) >= count, timeout=20), self.bodies


@pytest.fixture
def server() -> Iterator[Server]:
    kept = Server()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            with kept.arrived:
                answer = kept.answers.pop(0) if len(kept.answers) > 1 else kept.answers[0]
                kept.paths.append(self.path)
                kept.bodies.append(body)
                kept.arrived.notify_all()
            if callable(answer):
                answer(self)
                return
            self.send_response(answer)
            if 300 <= answer < 400:
                self.send_header("Location", f"{kept.url}/elsewhere")
            self.send_header("Content-Length", "0")
            self.end_headers()

        do_GET = do_POST

        def log_message(self, *_: object) -> None:
            pass

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    http.daemon_threads = True
    kept.url = f"http://127.0.0.1:{http.server_address[1]}"
    thread = threading.Thread(target=http.serve_forever, daemon=True)
    thread.start()
    yield kept
    http.shutdown()
    http.server_close()
    thread.join(10)


@dataclass(frozen=True)
class Done:
    """What a script has left: the JSON that it printed last, and what it said."""

    found: dict[str, Any]
    err: str


@pytest.fixture
def beside(tmp_path: Path) -> Callable[..., Done]:
    """Runs a script of scripts/ with the heavy libraries; a variable that is None is not there."""
    if not supported():
        pytest.skip("the lock file of the sinks is of Python 3.11 and newer")
    try:
        python = environment("sinks") / "bin" / "python"
    except NotMade as e:
        raise pytest.fail.Exception(f"{e}\nto try again: python -m tests.launchers.environments sinks", pytrace=False) from None

    def run(script: str, *argv: str, terminal: bool = False, **env: str | None) -> Done:
        home = tmp_path / "home"
        home.mkdir(exist_ok=True)
        ours = {"HOME": str(home), "XDG_CACHE_HOME": str(home), "PYTHONPATH": str(Path(unhang.__file__).parents[1]), "OMP_NUM_THREADS": "1"}
        environ = {name: value for name, value in {**os.environ, **ours, **env}.items() if value is not None}
        controls, stdin = pty.openpty() if terminal else (-1, subprocess.DEVNULL)
        try:
            with subprocess.Popen(
                [str(python), str(Path(__file__).parent / "scripts" / script), *argv],
                env=environ,
                cwd=tmp_path,
                stdin=stdin,
                stdout=subprocess.PIPE,
                stderr=stdin if terminal else subprocess.PIPE,
                text=True,
                start_new_session=True,
            ) as process:
                try:
                    out, err = process.communicate(timeout=100)
                finally:
                    if process.poll() is None:
                        os.killpg(process.pid, signal.SIGKILL)
                if terminal:
                    err = os.read(controls, 65536).decode(errors="replace")
        finally:
            if terminal:
                os.close(controls)
                os.close(stdin)
        assert process.returncode == 0, err[-4000:]
        return Done(json.loads(out.splitlines()[-1]), err)

    return run
