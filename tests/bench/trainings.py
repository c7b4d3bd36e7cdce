"""Comparisons of trainings that are only numbers: what the supervisor would have run, and the files that its ranks would have left."""

from __future__ import annotations

import json
import math
import random
import socket
import struct
from pathlib import Path
from types import SimpleNamespace

from unhang.bench import runner
from unhang.bench.arms import Arm, Rules
from unhang.bench.records import Asked, BenchDir
from unhang.launch import events
from unhang.launch.command import Command
from unhang.launch.supervise import Outcome
from unhang.model import Verdict

COMMAND = Command(argv=("train.py",), python="python", name="train", world_size=2, port=None)
OFF = "NCCL_SHM_DISABLE"


class Trainings:
    """`step_s` and `variables` of each arm; `exits` and `paces` of single runs, by their order. `started` has each run as (directory, arm)."""

    def __init__(self, path: Path, monkeypatch) -> None:
        monkeypatch.setattr(runner.supervise, "Supervisor", self.supervisor)
        monkeypatch.setattr(runner.time, "monotonic", lambda: self.clock_s)
        monkeypatch.setattr(runner.threading, "Timer", self.timer)
        self.step_s = {"a": 0.1, "b": 0.1}
        self.variables = {"a": {OFF: "0"}, "b": {OFF: "1"}}
        # Seconds in the loader, in calls and in what DDP does not hide; lines of NCCL's log in all ranks.
        self.parts_s: dict[str, tuple[float, float, float]] = {}
        self.nccl: dict[str, str] = {}
        self.device = "cpu"
        self.steps = 40
        self.steps_of: dict[str, int] = {}
        self.noise = 0.0001
        self.exits: dict[int, tuple[int, bool]] = {}
        self.fails: set[str] = set()
        self.verdict: Verdict | None = None
        self.elapsed_s = 1.0
        self.started: list[tuple[str, str]] = []
        self.commands: list[tuple[str, ...]] = []
        self.stopped = 0
        self.clock_s = 0.0
        self.events: list[runner.Progress] = []
        self.on_progress = self.events.append
        # Settings that the hook could not apply, by arm; what torch says in single runs, by their order.
        self.ignored: dict[str, str] = {}
        self.torch: dict[int, dict[str, str]] = {}
        self._random = random.Random(5)
        asked = Asked(
            words=("train.py",), hides=False, cwd="/", arms={"a": "shm=on", "b": "shm=off"}, argument=None, module=False, nproc_per_node=2,
            python=None, seed=4, margin=0.01, budget_s=100.0, steps=40,
        )  # fmt: skip
        self.directory = BenchDir(path, asked)
        self.arms = [Arm(name=n, asked=s, command=COMMAND, settings={"ARM": n}, changes=frozenset({OFF})) for n, s in asked.arms.items()]

    def more(self, **step_s: float) -> None:
        """Arms beside a and b, each with its own value of the variable."""
        self.step_s |= step_s
        self.variables |= {name: {OFF: name} for name in step_s}
        self.arms += [Arm(name=n, asked=f"other={n}", command=COMMAND, settings={"ARM": n}, changes=frozenset({OFF})) for n in step_s]

    def run(self, *, budget_s: float = 100.0, seed: int = 4, **rules: bool) -> runner.Result:
        rules = Rules(seed=seed, margin=0.01, budget_s=budget_s, steps=40, **rules)
        directory = BenchDir(self.directory.path, self.directory.asked)
        return runner.Benchmark(self.arms, rules, directory=directory, on_progress=self.on_progress).run()

    def timer(self, after_s, end):
        self.end, self.end_s = end, self.clock_s + after_s
        return SimpleNamespace(start=lambda: None, cancel=lambda: None)

    def supervisor(self, command, *, rundir, settings, tell, **options):
        self.commands.append(command.argv)
        return _Supervisor(self, rundir, settings, tell)

    def train(self, rundir, settings, tell) -> Outcome:
        arm = settings["ARM"]
        self.started.append((rundir.path.name, arm))
        self.clock_s += self.elapsed_s
        if self.clock_s > self.end_s:
            self.end()
        if arm in self.ignored:
            tell(events.Ignored(what=self.ignored[arm], value="4", why="other-loader", ranks=(0, 1)))
        for rank in (0, 1):
            told = {
                "rank": rank,
                "variables": self.variables[arm],
                "started_with": self.variables[arm],
                "torch": {"world size": "2", "device": self.device, "backend": "nccl", **self.torch.get(len(self.started), {})},
            }
            files = Path(settings["UNHANG_STEP_TIMES_DIR"])
            (files / f"{rank}.json").write_text(json.dumps(told))
            steps = self.steps_of.get(arm, self.steps)
            step_s = self.step_s[arm] * (1 + self._random.gauss(0, self.noise))
            (files / f"{rank}.times").write_bytes(b"".join(struct.pack("=4d", step_s * i, *self.parts(i, arm)) for i in range(steps)))
            (files / f"{rank}.peak").write_text(json.dumps({"host_bytes": (rank + 1) << 30}))
            if arm in self.nccl:
                name = settings["NCCL_DEBUG_FILE"].replace("%h", socket.gethostname().partition(".")[0]).replace("%p", str(rank))
                Path(name).write_text(self.nccl[arm])
        exitcode, interrupted = self.exits.get(len(self.started), (143, True) if self.stopped else (int(arm in self.fails), False))
        return Outcome(
            exitcode=exitcode,
            attempts=1,
            incidents=0,
            elapsed_s=self.elapsed_s,
            interrupted=interrupted,
            run_dir=str(rundir.path),
            verdict=self.verdict,
        )

    def parts(self, step: int, arm: str) -> tuple[float, float, float]:
        loader_s, calls_s, ddp_s = self.parts_s.get(arm, (math.nan,) * 3)
        return loader_s * step, calls_s * step, ddp_s


class _Supervisor:
    def __init__(self, trainings, *run):
        self.trainings, self._run = trainings, run
        self.arguments = dict.fromkeys((0, 1), ("train.py",))

    def run(self):
        return self.trainings.train(*self._run)

    def stop(self):
        self.trainings.stopped += 1
