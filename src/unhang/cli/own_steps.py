"""--trial-command: the user's own few steps under a candidate, run as `unhang run` runs a training, so that hangs are seen and steps are timed."""

from __future__ import annotations

import contextlib
import json
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from unhang import encoding, fsio
from unhang.diagnosis import rerun_command
from unhang.errors import EXIT_INTERRUPTED, UnhangError
from unhang.i18n import NOTHING
from unhang.knowledge.words import Text, msg, same
from unhang.launch import terminate
from unhang.launch.command import resolve
from unhang.model import Finding, Steps
from unhang.records.rundir import RunDir
from unhang.remedies import ladder_steps
from unhang.remedies.trial import Wrong
from unhang.settings.setting import Choice, typed

LIMIT_S = 120.0
_LOOK_S = 0.25
# What an interrupted training may take to end by itself.
_END_S = 45.0
# Whoever is interrupted has asked for it; the second time everything is ended.
_PATIENCE_S = (2.0, 15.0)
_KEPT = 500
# What a shell, env and srun end with where they cannot start what they were given.
_NOT_STARTED = (126, 127)
_EXAMPLE = "--trial-command 'train.py --max-steps 5'"
# Importing torch alone takes as long.
_LEAST_S = 10.0


def _no_step(limit_s: float) -> Steps:
    says = msg("the command took no optimizer step within {s} s", s=f"{limit_s:g}")
    return Steps(exitcode=0, says=says)


def _too_little_time(left_s: float) -> Text:
    return msg("of the whole time only {left_s:.0f} s were left for the command", left_s=left_s)


def words(command: str, *, python: str, environ: Mapping[str, str]) -> list[str]:
    """The command's words. Raises UnhangError for what cannot be started: every change would seem to fail with it."""
    try:
        found = shlex.split(command)
    except ValueError as e:
        raise UnhangError(f"--trial-command {command}: {e}", cause="a quote is open", hint=_EXAMPLE) from e
    if not found:
        raise UnhangError("--trial-command is empty", hint=_EXAMPLE)
    try:
        resolve(found, python=python, environ=environ)
    except UnhangError as e:
        raise UnhangError(f"--trial-command {command}: {e}", cause=e.cause, hint=e.hint or _EXAMPLE) from e
    return found


def runner(
    command: str, *, python: str, environ: Mapping[str, str], limit_s: float, cancelled: Callable[[], bool] = lambda: False
) -> Callable[[Choice, int, float], Steps | Text | Wrong]:
    """What runs it under a choice, with so many ranks where it is a script, within so many seconds. Raises UnhangError as `words` does."""
    given = words(command, python=python, environ=environ)

    def run(choice: Choice, size: int, left_s: float) -> Steps | Text | Wrong:
        if left_s < min(limit_s, _LEAST_S):
            return _too_little_time(left_s)
        with fsio.temporary_directory("steps-") as folder:
            found = _run(folder, given, choice, size, python=python, environ=environ, limit_s=min(limit_s, left_s), cancelled=cancelled)
        # With all of its own time it might have stepped.
        if left_s < limit_s and found == _no_step(left_s):
            return _too_little_time(left_s)
        return found

    return run


def _run(
    base: Path, words: list[str], choice: Choice, size: int, *, python: str, environ: Mapping[str, str], limit_s: float, cancelled: Callable[[], bool]
) -> Steps | Text | Wrong:
    argv = [sys.executable, "-m", "unhang", "run", "--fallback", "off", "--on-failure", "abort", "--quiet", "--json", "--python", python]
    argv += ["--run-dir", str(base / "run"), *(w for key, value in choice.items() for w in ("--set", f"{key}={typed(value)}"))]
    if words[0].endswith(".py"):
        argv += ["-n", str(size)]
    out = base / "out"
    process: subprocess.Popen[bytes] | None = None
    try:
        with out.open("wb") as stdout, (base / "err").open("wb") as stderr:
            process = subprocess.Popen(
                [*argv, "--", *words],
                env=dict(environ),
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
                start_new_session=True,
                preexec_fn=terminate.die_with_parent,
            )
        over = _wait(process, limit_s, cancelled)
        found = _steps(out.read_bytes(), process.returncode, (base / "err").read_text(errors="replace"), choice, over=over, limit_s=limit_s)
        # What was refused may be what the settings have put there.
        return _not_run(found.why) if isinstance(found, Wrong) and not _as_given(RunDir(base / "run", is_trusted=True)) else found
    finally:
        if process is not None and process.poll() is None:
            _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    """With its training, which has a session of its own and may ignore signals: it ends that at once when it is interrupted twice."""
    try:
        for patience_s in _PATIENCE_S:
            process.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(patience_s)
                return
    finally:
        terminate.kill_tree(process)


def _wait(process: subprocess.Popen[bytes], limit_s: float, cancelled: Callable[[], bool]) -> bool:
    """Whether it had to be ended."""
    deadline = time.monotonic() + limit_s
    while process.poll() is None:
        if cancelled() or time.monotonic() > deadline:
            process.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_END_S)
            return True
        time.sleep(_LOOK_S)
    return False


def _as_given(run: RunDir) -> bool:
    """Whether it was started as it was given, without anything that a setting adds to command lines."""
    typed = rerun_command.of(run)
    if typed is None:
        return False
    started = tuple(run.read(run.run, dict)["command"])
    # A script has its launcher in front; of a launcher that was given the first word is found on PATH.
    return started[-len(typed.command) :] == typed.command if typed.command[0].endswith(".py") else started[1:] == typed.command[1:]


def _steps(out: bytes, exitcode: int, err: str, choice: Choice, *, over: bool, limit_s: float) -> Steps | Text | Wrong:
    """A command that still took steps when its time was over has worked; of one that was not started, or refuses its options, nothing is known."""
    try:
        told: dict[str, Any] = encoding.with_messages(json.loads(out))
    except ValueError:
        told = {}
    if "steps" not in told:
        if over:
            return _no_step(limit_s)
        return _not_run(same(" ".join(err.split())[-_KEPT:]) or msg("exit code {n}", n=exitcode))
    steps, rate = int(told["steps"] or 0), told.get("steps_per_s")
    step_s = round(1 / rate, 6) if rate else None
    if over and exitcode == EXIT_INTERRUPTED:
        return Steps(exitcode=0, steps=steps, step_s=step_s) if steps else _no_step(limit_s)
    primary = (told.get("verdict") or {}).get("primary") if exitcode else None
    found = msgspec.convert(primary, Finding) if primary else None
    said = NOTHING if found is None else msg("{cause}: {says}", cause=found.cause, says=found.says)
    if not steps and (exitcode in _NOT_STARTED or (found is not None and ladder_steps.beyond_settings(found, choice))):
        return Wrong(why=said or msg("exit code {exitcode}", exitcode=exitcode))
    if not steps and found is not None and found.cause == "config-error":
        return _not_run(said)
    return Steps(exitcode=exitcode, steps=steps, step_s=step_s, says=said)


def _not_run(why: Text) -> Text:
    return msg("the command cannot be run so: {why}", why=why)
