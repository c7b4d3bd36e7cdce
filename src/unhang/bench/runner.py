"""Rounds of runs, each arm once in each, until the answer is certain or the budget is spent.

Runs are started by `launch.supervise`, as `unhang run` does, and are never started again by it: a training that fails ends the comparison.
"""

from __future__ import annotations

import datetime
import os
import shutil
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from unhang.attach import protocol
from unhang.bench import effective_settings, gpu_counters, step_times
from unhang.bench.arms import Arm, Rules, order
from unhang.bench.elimination import RaceState, evaluate_rounds, find_round
from unhang.bench.records import BenchDir, Failure, Run, last_words
from unhang.errors import EXIT_FOUND, EXIT_OK, EXIT_UNDECIDED, RunDirError, UnhangError
from unhang.facts.host import Host
from unhang.fsio import as_argument
from unhang.i18n import msg
from unhang.launch import events, supervise
from unhang.launch.attempt import Options
from unhang.launch.command import Command
from unhang.model import Verdict, frozen
from unhang.records.rundir import RunDir

Stopped = Literal["decided", "budget", "interrupted", "failed"]


@frozen
class RunProgress:
    """A run of a round goes on, number `position` of `of`; `step` is 0 before its first."""

    round: int
    arm: str
    position: int
    of: int
    step: int = 0


# A state comes after each complete round.
Progress = RunProgress | RaceState


@frozen
class Result:
    """The `state` after all complete rounds. `failed` is the run directory of a training that failed, with its arm and the verdict on it.

    `failures` are the arms of a race that were left out because they failed.
    """

    stopped: Stopped
    exitcode: int
    elapsed_s: float
    state: RaceState
    failed: str | None = None
    failed_arm: str | None = None
    verdict: Verdict | None = None
    failures: tuple[Failure, ...] = ()


class Benchmark:
    """Start with `run`, in the main thread. Runs that `directory` holds already count."""

    def __init__(self, arms: Sequence[Arm], rules: Rules, *, directory: BenchDir, on_progress: Callable[[Progress], None]) -> None:
        self._arms = {arm.name: arm for arm in arms}
        self._rules = rules
        self._directory = directory
        self._on_progress = on_progress
        self._runs = list(directory.runs())
        # Where the baseline did not run either, the setting may not be the reason.
        ran = {run.round for run in self._runs if run.arm == arms[0].name}
        self._failures = [one for one in directory.failures() if one.round in ran]
        self._longest_s = max((run.elapsed_s for run in self._runs), default=0.0)

    def run(self) -> Result:
        """Returns also if it is interrupted. Raises UnhangError if nothing can be compared: equal arms, no steps, a command that cannot start."""
        self._began = time.monotonic()
        reported = 0
        try:
            while True:
                # Of a directory that is resumed, the first round that is not complete.
                state = self._evaluate()
                if state.rounds > reported:
                    self._on_progress(state)
                    reported = state.rounds
                if state.is_decided:
                    return self._result("decided", EXIT_OK)
                if (ended := self._round(state)) is not None:
                    return ended
        except SystemExit as e:
            # A signal between two runs.
            return self._result("interrupted", e.code if isinstance(e.code, int) else EXIT_FOUND)

    def _evaluate(self) -> RaceState:
        return evaluate_rounds(tuple(self._arms.values()), self._runs, self._rules, self._failures)

    def _round(self, state: RaceState) -> Result | None:
        """Run what is missing of the next round; None once it is complete."""
        round = state.rounds + 1
        done = find_round(self._runs, round)
        names = [name for name in order(list(self._arms), seed=self._rules.seed, round=round) if name in state.racing]
        of, baseline = len(names), state.racing[0]
        names = [name for name in names if name not in done]
        while names:
            name = names.pop(0)
            # A run that would be cut off tells nothing.
            if round > 1 and self._left_s() < self._longest_s:
                return self._result("budget", EXIT_UNDECIDED)
            ended = self._measure(self._arms[name], RunProgress(round=round, arm=name, position=of - len(names), of=of))
            if isinstance(ended, Result):
                if ended.stopped != "failed" or not self._rules.is_race or name == baseline:
                    return ended
                ended = Failure(round=round, arm=name, run_dir=str(ended.failed), said=last_words(ended.verdict))
            if isinstance(ended, Failure):
                self._directory.add(ended)
                self._failures.append(ended)
                if baseline in names and round == 1:
                    # Whether it is the setting that fails, or the training.
                    names.remove(baseline)
                    names.insert(0, baseline)
        return None

    def _measure(self, arm: Arm, progress: RunProgress) -> Result | Failure | None:
        self._on_progress(progress)
        rundir = self._directory.new_run(progress.round, arm.name)
        files, nccl = rundir.path / "steps", rundir.path / "nccl"
        overridden: list[events.Overridden] = []
        is_over = threading.Event()

        def on_event(event: events.Event) -> None:
            if isinstance(event, events.Overridden):
                overridden.append(event)
            elif isinstance(event, events.Pace):
                self._on_progress(replace(progress, step=event.step))

        def end() -> None:
            is_over.set()
            supervisor.stop()

        asked = {protocol.ENV_STEP_TIMES: str(files), protocol.ENV_STEP_LIMIT: str(self._rules.steps)}
        asked[protocol.ENV_STEP_VARIABLES] = ",".join(sorted({name for one in self._arms.values() for name in one.changes}))
        asked |= effective_settings.nccl_settings(self._arms.values(), nccl, os.environ)
        supervisor = supervise.Supervisor(
            replace(arm.command, argv=tuple(word.replace(effective_settings.RUN_DIR, str(rundir.path)) for word in arm.command.argv)),
            rundir=rundir,
            options=Options(),
            policy=supervise.Policy(on_failure="abort", max_restarts=0),
            tell=on_event,
            sink=lambda rank, stream, data: None,
            settings={**arm.settings, **asked},
            described=arm.described,
        )
        # Before the first step nothing may be told for long: of a model that is compiled, for instance.
        timer = threading.Timer(self._left_s(), end)
        timer.daemon = True
        try:
            files.mkdir(mode=0o700)
            nccl.mkdir(mode=0o700)
            with supervise.signals_kept(), gpu_counters.GpuCounters(Host()) as counters:
                timer.start()
                outcome = supervisor.run()
            ranks = effective_settings.with_nccl_log(nccl, step_times.read(files, supervisor.arguments))
            # Beside the records of unhang run, which hold no values of variables that nobody asked for.
            shutil.rmtree(files)
        except OSError as e:
            raise RunDirError(f"cannot write {e.filename}: {e.strerror or e}") from e
        finally:
            timer.cancel()
        if is_over.is_set() and outcome.interrupted:
            return self._result("budget", EXIT_UNDECIDED)
        if outcome.interrupted:
            return self._result("interrupted", outcome.exitcode)
        if outcome.exitcode != 0:
            return self._result("failed", EXIT_FOUND, failed=str(rundir.path), failed_arm=arm.name, verdict=outcome.verdict)
        try:
            steps = self._steps(arm, rundir.path, ranks)
        except UnhangError as e:
            if not self._rules.is_race or arm.name == next(iter(self._arms)):
                raise
            return Failure(round=progress.round, arm=arm.name, run_dir=str(rundir.path), why=str(e))
        found, own = effective_settings.gather(ranks, overridden, run_dir=str(rundir.path))
        run = Run(
            round=progress.round,
            arm=arm.name,
            run_dir=rundir.path.name,
            ended=datetime.datetime.now().astimezone().isoformat(timespec="seconds"),
            elapsed_s=outcome.elapsed_s,
            steps=steps,
            in_force=found,
            set_by_script=own,
            ranks=step_times.measure(ranks, steps, counters.over),
            gpu_links=gpu_counters.links(Host(), {one.gpu for one in ranks if one.gpu}) if progress.round == 1 else (),
        )
        if (first := next((one for one in self._runs if one.arm == arm.name), None)) is not None:
            effective_settings.check_alike(arm, first, run)
        self._directory.add(run)
        self._runs.append(run)
        self._longest_s = max(self._longest_s, run.elapsed_s)
        return None

    def _steps(self, arm: Arm, path: Path, ranks: Sequence[step_times.RankFile]) -> step_times.Steps:
        count = min((len(one.ends_s) for one in ranks), default=0)
        if not count:
            raise UnhangError(
                f"no optimizer step was seen in {path}",
                cause="only steps of torch.optim are counted, in ranks on this host",
                hint=f"unhang why {as_argument(path)}",
            )
        steps = step_times.summarize(step_times.durations(ranks))
        if steps is None:
            raise UnhangError(
                f"arm {arm.name}: {count} steps are too few to be measured, in {path}",
                cause=f"without the warm-up, {step_times.LEAST_STEPS} have to be left",
                hint="let the training take more steps, and raise --steps",
            )
        return steps

    def _left_s(self) -> float:
        return self._rules.budget_s - (time.monotonic() - self._began)

    def _result(self, stopped: Stopped, exitcode: int, **failed: Any) -> Result:
        return Result(
            stopped=stopped,
            exitcode=exitcode,
            elapsed_s=round(time.monotonic() - self._began, 3),
            state=self._evaluate(),
            failures=tuple(self._failures),
            **failed,
        )


def measure_peak(command: Command, rundir: RunDir, *, steps: int, tell: Callable[[events.Event], None]) -> tuple[step_times.RankFile, ...]:
    """Run the command until the optimizer step `steps` of every rank, for the most memory that they take.

    Raises UnhangError if it fails or takes none, SystemExit for Ctrl-C.
    """
    files = rundir.path / "steps"
    files.mkdir(mode=0o700)
    supervisor = supervise.Supervisor(
        command,
        rundir=rundir,
        options=Options(),
        policy=supervise.Policy(on_failure="abort", max_restarts=0),
        tell=tell,
        sink=lambda rank, stream, data: None,
        settings={protocol.ENV_STEP_TIMES: str(files), protocol.ENV_STEP_LIMIT: str(steps)},
    )
    with supervise.signals_kept():
        outcome = supervisor.run()
    ranks = step_times.read(files)
    shutil.rmtree(files)
    if outcome.interrupted:
        raise SystemExit(outcome.exitcode)
    if outcome.exitcode or not any(one.host_bytes for one in ranks):
        raise UnhangError(
            msg("the training failed before its memory could be measured") if outcome.exitcode else msg("no optimizer step was seen"),
            hint=f"unhang why {as_argument(rundir.path)}",
        )
    return ranks
