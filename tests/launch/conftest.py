"""Runs of `unhang run` as a user starts them, and the proof that nothing of them is left."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from tests.leftovers import end_all, living

PREAMBLE = """
import os, signal, sys, threading, time
import torch, torch.distributed as dist
torch.set_num_threads(1)
rank = int(os.environ.get("RANK", "0"))
first = os.environ.get("UNHANG_ATTEMPT", "0") == "0"
{compiler}
def train(steps, at=None, step_s=0.05):
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(steps):
        optimizer.zero_grad()
        model(torch.ones(1, 4)).sum().backward()
        optimizer.step()
        time.sleep(step_s)
        if at is not None:
            at(step)
"""

# Optimizers and DDP import torch's compiler to ask whether it is at work: two fifths of what it costs to start a rank.
NO_COMPILER = """
class NoCompiler(type(sys)):
    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return self

    def __call__(self, *args, **kwargs):
        return self

    def disable(self, function, *args, **kwargs):
        return function

sys.modules["torch._dynamo"] = torch._dynamo = NoCompiler("torch._dynamo")
"""


@dataclass
class Run:
    """A finished `unhang run --json`."""

    exitcode: int
    out: str
    err: str
    path: Path
    outcome: dict[str, Any] = field(default_factory=dict)

    @property
    def events(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.path / "events.jsonl").read_text().splitlines()]

    def happened(self, name: str) -> list[dict[str, Any]]:
        return [e for e in self.events if e["event"] == name]

    @property
    def primary(self) -> dict[str, Any]:
        verdict = self.outcome["verdict"]
        assert verdict is not None, self.err[-4000:]
        return verdict["primary"]

    def log(self, name: str, attempt: int = 0) -> str:
        return (self.path / "logs" / f"attempt-{attempt}" / name).read_text()


class Launcher:
    def __init__(self, tmp_path: Path) -> None:
        self.tmp_path = tmp_path
        self.mark = f"UNHANG_TEST_MARK={uuid.uuid4().hex}"
        self.processes: list[subprocess.Popen[bytes]] = []
        self.count = 0
        # None: unhang is to find the training's Python by itself.
        self.python: str | None = sys.executable

    def living(self) -> list[tuple[int, str]]:
        """Processes that a run of this test started and that still live."""
        return living(self.mark)

    @staticmethod
    def until(condition: Callable[[], Any], timeout_s: float = 300.0) -> Any:
        deadline = time.monotonic() + timeout_s
        while not (value := condition()):
            assert time.monotonic() < deadline, "this did not happen in time"
            time.sleep(0.05)
        return value

    def script(self, body: str, name: str = "train.py", *, compiler: bool = False) -> Path:
        path = self.tmp_path / name
        path.write_text(PREAMBLE.replace("{compiler}", "" if compiler else NO_COMPILER) + body)
        return path

    def start(self, *argv: str, env: dict[str, str] | None = None, within: Sequence[str] = ()) -> tuple[subprocess.Popen[bytes], Path]:
        self.count += 1
        run_dir = self.tmp_path / f"run{self.count}"
        key, _, value = self.mark.partition("=")
        # What one test has found is nothing that another one knows.
        env = {"XDG_CACHE_HOME": str(self.tmp_path / "cache"), **(env or {})}
        environ = {k: v for k, v in os.environ.items() if not k.startswith(("UNHANG_", "RANK", "WORLD_SIZE", "MASTER_", "PYTHONUNBUFFERED"))}
        err = (self.tmp_path / f"err{self.count}").open("wb")
        process = subprocess.Popen(
            [
                *within,
                sys.executable,
                "-m",
                "unhang",
                "run",
                "--json",
                "--run-dir",
                str(run_dir),
                *(("--python", self.python) if self.python else ()),
                *argv,
            ],
            env={**environ, key: value, **(env or {})},
            cwd=self.tmp_path,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=err,
            start_new_session=True,
        )
        err.close()
        self.processes.append(process)
        return process, run_dir

    def finish(self, process: subprocess.Popen[bytes], run_dir: Path, timeout_s: float = 500.0) -> Run:
        out, _ = process.communicate(timeout=timeout_s)
        err = (self.tmp_path / f"err{self.count}").read_text(errors="replace")
        run = Run(exitcode=process.returncode, out=out.decode(), err=err, path=run_dir)
        if run.out.strip():
            run.outcome = json.loads(run.out)
        assert not self.living(), "processes were left behind"
        return run

    def run(self, *argv: str, env: dict[str, str] | None = None, timeout_s: float = 500.0, within: Sequence[str] = ()) -> Run:
        return self.finish(*self.start(*argv, env=env, within=within), timeout_s=timeout_s)

    def train(self, body: str, *options: str, ranks: int = 2, compiler: bool = False, **more: Any) -> Run:
        return self.run("-n", str(ranks), *options, str(self.script(body, compiler=compiler)), **more)


@pytest.fixture
def launcher(tmp_path: Path) -> Iterator[Launcher]:
    launcher = Launcher(tmp_path)
    yield launcher
    for process in launcher.processes:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()
    end_all(launcher.mark)
