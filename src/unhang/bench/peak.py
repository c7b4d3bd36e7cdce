"""The most memory that the ranks of a training take in its first steps, by the same files that comparisons read."""

from __future__ import annotations

import shutil
from collections.abc import Callable

from unhang.bench import step_times
from unhang.errors import UnhangError
from unhang.files import as_argument
from unhang.launch import supervise
from unhang.launch.attempt import Options
from unhang.launch.command import Command
from unhang.launch.events import Event
from unhang.records.rundir import RunDir
from unhang.runtime.attach import protocol


def measure(command: Command, rundir: RunDir, *, steps: int, tell: Callable[[Event], None]) -> tuple[step_times.RankFile, ...]:
    """Run the command until the optimizer step `steps` of every rank. Raises UnhangError if it fails or takes none, SystemExit for Ctrl-C."""
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
            "the training failed before its memory could be measured" if outcome.exitcode else "no optimizer step was seen",
            says_zh="训练在测得内存之前失败" if outcome.exitcode else "没有观察到优化器更新",
            hint=f"unhang why {as_argument(rundir.path)}",
        )
    return ranks
