"""Rounds of runs, each arm once in each, until the answer is certain or the budget is spent.

Runs are started by `launch.supervise`, as `unhang run` does, and are never started again by it: a training that fails ends the comparison.
"""

from __future__ import annotations

import contextlib
import datetime
import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from unhang.bench import gpu_counters, in_force, measures, nccl_log, step_times
from unhang.bench.arms import Arm, Rules, order
from unhang.bench.comparison import Comparison
from unhang.bench.race import Out, Standing, stand
from unhang.bench.records import BenchDir, Run
from unhang.errors import EXIT_FOUND, EXIT_OK, RunDirError, UnhangError
from unhang.facts.host import Host
from unhang.launch import events, supervise
from unhang.launch.attempt import Options
from unhang.model import Verdict
from unhang.runtime.attach import protocol

Stopped = Literal["decided", "budget", "interrupted", "failed"]


@dataclass(frozen=True, kw_only=True)
class Running:
    """A run of a round goes on, number `position` of `of`; `step` is 0 before its first."""

    round: int
    arm: str
    position: int
    of: int
    step: int = 0


@dataclass(frozen=True, kw_only=True)
class RoundEnds:
    """`comparisons` are those of all rounds so far; `proof` comes once, with the first of them. `racing` are the arms of the next round."""

    round: int
    runs: tuple[Run, ...]
    comparisons: tuple[Comparison, ...]
    proof: in_force.Proof | None
    racing: tuple[str, ...] = ()


Progress = Running | RoundEnds


@dataclass(frozen=True, kw_only=True)
class Result:
    """`runs` are those of complete rounds. `failed` is the run directory of a training that failed, with the verdict on it.

    `out` says why an arm was left out, `failures` has the run directories of those of them whose training failed.
    """

    stopped: Stopped
    exitcode: int
    elapsed_s: float
    runs: tuple[Run, ...]
    comparisons: tuple[Comparison, ...]
    proof: in_force.Proof | None
    failed: str | None = None
    verdict: Verdict | None = None
    out: Mapping[str, Out] = field(default_factory=dict)
    failures: Mapping[str, str] = field(default_factory=dict)


class Benchmark:
    """Start with `run`, in the main thread. Runs that `directory` holds already count."""

    def __init__(self, arms: Sequence[Arm], rules: Rules, *, directory: BenchDir, tell: Callable[[Progress], None]) -> None:
        self._arms = {arm.name: arm for arm in arms}
        self._rules = rules
        self._directory = directory
        self._tell = tell
        self._runs = list(directory.runs())
        self._is_proven = False
        # Arms of a race whose training fails, with the run directory.
        self._failed: dict[str, str] = {}
        self._longest_s = max((run.elapsed_s for run in self._runs), default=0.0)

    def run(self) -> Result:
        """Raises UnhangError where nothing can be compared: equal arms, no steps, a command that cannot be started."""
        self._began = time.monotonic()
        while True:
            # Of a directory that is resumed, the first round that is not complete.
            standing = self._stand()
            if standing.rounds > 0:
                self._tell_round(standing)
                if standing.is_decided:
                    return self._result("decided", EXIT_OK)
            if (ended := self._round(standing)) is not None:
                return ended

    def _stand(self) -> Standing:
        return stand(tuple(self._arms.values()), self._runs, self._rules, self._failed)

    def _tell_round(self, standing: Standing) -> None:
        new, self._is_proven = (None if self._is_proven else standing.proof), True
        runs = sorted((run for run in self._runs if run.round == standing.rounds), key=lambda run: run.arm)
        self._tell(RoundEnds(round=standing.rounds, runs=tuple(runs), comparisons=standing.comparisons, proof=new, racing=standing.racing))

    def _round(self, standing: Standing) -> Result | None:
        """Run what is missing of the next round; None once it is complete."""
        round = standing.rounds + 1
        done = {run.arm for run in self._runs if run.round == round}
        names = [name for name in order(list(self._arms), seed=self._rules.seed, round=round) if name in standing.racing]
        of, baseline = len(names), standing.racing[0]
        names = [name for name in names if name not in done]
        while names:
            name = names.pop(0)
            # A run that would be cut off tells nothing.
            if round > 1 and self._left_s() < self._longest_s:
                return self._result("budget", EXIT_OK)
            if (ended := self._measure(self._arms[name], Running(round=round, arm=name, position=of - len(names), of=of))) is None:
                continue
            if ended.stopped != "failed" or not self._rules.is_race or name == baseline:
                return ended
            self._failed[name] = str(ended.failed)
            if baseline in names and round == 1:
                # Whether it is the setting that fails, or the training.
                names.remove(baseline)
                names.insert(0, baseline)
        return None

    def _measure(self, arm: Arm, running: Running) -> Result | None:
        self._tell(running)
        rundir = self._directory.new_run(running.round, arm.name)
        files, nccl = rundir.path / "steps", rundir.path / "nccl"
        told: list[events.Event] = []
        is_over = False

        def tell(event: events.Event) -> None:
            nonlocal is_over
            if isinstance(event, (events.Overridden, events.Ignored)):
                told.append(event)
            elif isinstance(event, events.Pace):
                self._tell(replace(running, step=event.step))
                if self._left_s() < 0 and not is_over:
                    is_over = True
                    supervisor.stop()

        asked = {protocol.ENV_STEP_TIMES: str(files), protocol.ENV_STEP_LIMIT: str(self._rules.steps)}
        asked |= nccl_log.settings(self._arms.values(), nccl, os.environ)
        supervisor = supervise.Supervisor(
            arm.command,
            rundir=rundir,
            options=Options(),
            policy=supervise.Policy(on_failure="abort", max_restarts=0),
            tell=tell,
            sink=lambda rank, stream, data: None,
            settings={**arm.settings, **asked},
            described=arm.described,
        )
        try:
            files.mkdir(mode=0o700)
            nccl.mkdir()
            with signals_kept(), gpu_counters.GpuCounters(Host()) as counters:
                outcome = supervisor.run()
            ranks = nccl_log.read(nccl, step_times.read(files))
            # Beside the records of unhang run, which hold no values of variables that nobody asked for.
            shutil.rmtree(files)
        except OSError as e:
            raise RunDirError(f"cannot write {e.filename}: {e.strerror or e}") from e
        if is_over:
            return self._result("budget", EXIT_OK)
        if outcome.interrupted:
            return self._result("interrupted", outcome.exitcode)
        if outcome.exitcode != 0:
            return self._result("failed", EXIT_FOUND, failed=str(rundir.path), verdict=outcome.verdict)
        run = self._as_run(arm, running.round, rundir.path.name, ranks, told, outcome.elapsed_s)
        links = gpu_counters.links(Host(), {one.gpu for one in ranks if one.gpu}) if run.round == 1 else ()
        self._add(replace(run, ranks=measures.measure(ranks, run.steps, counters.over), gpu_links=links))
        return None

    def _as_run(
        self, arm: Arm, round: int, run_dir: str, ranks: Sequence[step_times.RankFile], told: Sequence[events.Event], elapsed_s: float
    ) -> Run:
        if not ranks:
            raise UnhangError(
                f"no optimizer step was seen in {self._directory.path / run_dir}",
                cause="only steps of torch.optim are counted, in ranks on this host",
                hint=f"unhang why {self._directory.path / run_dir}",
            )
        times = step_times.durations(ranks)
        steps = step_times.summarize(times)
        if steps is None:
            raise UnhangError(
                f"{len(times) + 1} steps are too few to be measured",
                cause=f"without the warm-up, {step_times.LEAST_STEPS} have to be left",
                hint="let the training take more steps, and raise --steps",
            )
        found, own = in_force.gather(ranks, told)
        return Run(
            round=round,
            arm=arm.name,
            run_dir=run_dir,
            ended=datetime.datetime.now().astimezone().isoformat(timespec="seconds"),
            elapsed_s=elapsed_s,
            steps=steps,
            in_force=found,
            set_by_script=own,
        )

    def _add(self, run: Run) -> None:
        try:
            self._directory.add(run)
        except OSError as e:
            raise RunDirError(f"cannot write {e.filename}: {e.strerror or e}") from e
        self._runs.append(run)
        self._longest_s = max(self._longest_s, run.elapsed_s)

    def _left_s(self) -> float:
        return self._rules.budget_s - (time.monotonic() - self._began)

    def _result(self, stopped: Stopped, exitcode: int, *, failed: str | None = None, verdict: Verdict | None = None) -> Result:
        standing = self._stand()
        return Result(
            stopped=stopped,
            exitcode=exitcode,
            elapsed_s=round(time.monotonic() - self._began, 3),
            runs=tuple(run for runs in standing.runs.values() for run in runs),
            comparisons=standing.comparisons,
            proof=standing.proof,
            out=standing.out,
            failures=dict(self._failed),
            failed=failed,
            verdict=verdict,
        )


@contextlib.contextmanager
def signals_kept() -> Iterator[None]:
    """The supervisor's event loop leaves signals at their defaults; what they did before comes back."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGWINCH, signal.SIGUSR1, signal.SIGUSR2)
    before = {number: signal.getsignal(number) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
