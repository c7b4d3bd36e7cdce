"""The command of a run as somebody types it again: what a remedy calls COMMAND, with all that `unhang run` was given; and the run's own Python."""

from __future__ import annotations

import contextlib
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from unhang.errors import RunDirError
from unhang.knowledge.commands import PYTHON, Command, command
from unhang.model import Finding, Remedy, Verdict

if TYPE_CHECKING:
    from unhang.records.rundir import RunDir

# As remedies write it, with options that go to those of the run.
_COMMAND = re.compile(r"unhang run(?P<added>(?: (?!-- )\S+)*?) (?:-- )?COMMAND\b|\bCOMMAND\b")
_SIGNAL = re.compile(r"\bkill (?:-\w+ )*\d")
# Options that are settings, too.
_SETS = {"-n": "--set processes", "--nproc-per-node": "--set processes", "--timeout": "--set timeout"}


@dataclass(frozen=True, kw_only=True)
class RunCommand:
    """What stood behind `unhang run`: its own options, up to a `--`, and the command."""

    options: tuple[str, ...] = ()
    command: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class _Run:
    command: tuple[str, ...] = ()
    typed: Any = None
    python: str | None = None
    torch: str | None = None


def of(rundir: RunDir) -> RunCommand | None:
    """None where the run does not tell, or a stranger may have written it. Of an older one what was started is known, and that is a command, too."""
    # A log has no run, and does not pay for it.
    import msgspec

    try:
        run = rundir.read(rundir.run, _Run)
    except RunDirError:
        return None
    typed = RunCommand(command=run.command)
    # One that a later release has written may be of another shape.
    with contextlib.suppress(msgspec.ValidationError):
        typed = msgspec.convert(run.typed, RunCommand)
    # A command that begins with a dash would be read as options.
    return typed if rundir.is_trusted and typed.command and not typed.command[0].startswith("-") else None


def again(added: Sequence[str], typed: RunCommand | None) -> Command | None:
    """`unhang run` with more options, as a shell takes it; of those that were typed, what contradicts them goes."""
    if (
        typed is not None
        and (own := command("unhang run {words:text*}", words=(*added, *_besides(typed.options, added), *typed.command))) is not None
    ):
        return own
    return command("unhang run {added:text*} COMMAND", added=added) if added else command("unhang run COMMAND")


def told(found: Verdict, rundir: RunDir) -> Verdict:
    """The verdict on a run, whose remedies name its command, and its Python where torch was seen in it; in a stranger's, no process to be ended."""
    texts = [text for f in found.findings for r in f.remedies for text in (r.command, r.verify) if text]
    typed = of(rundir) if any(_COMMAND.search(text) for text in texts) else None
    python = _with_torch(rundir) if any(PYTHON in text for text in texts) else None
    if typed is None and python is None and rundir.is_trusted:
        return found

    def named(text: str | None) -> str | None:
        if text and not rundir.is_trusted and _SIGNAL.search(text):
            return None
        if text and python is not None:
            text = text.replace(PYTHON, python)
        return text and _COMMAND.sub(lambda m: again(shlex.split(m["added"] or ""), typed) or m[0] if typed is not None else m[0], text)

    def remedied(remedy: Remedy) -> Remedy:
        return replace(remedy, command=named(remedy.command), verify=named(remedy.verify))

    def of_finding(finding: Finding) -> Finding:
        return replace(finding, remedies=tuple(map(remedied, finding.remedies)))

    return found.each(of_finding)


def _with_torch(rundir: RunDir) -> Command | None:
    """The run's Python; None where it has no torch, or that is not known: it may be the wrong one."""
    try:
        run = rundir.read(rundir.run, _Run)
    except RunDirError:
        return None
    return command("{python:path}", python=run.python) if run.torch is not None and rundir.is_trusted else None


def _besides(options: Sequence[str], added: Sequence[str]) -> list[str]:
    """Options without those that are set anew: of settings the same key, else the same name. Each has its value in a word of its own."""
    anew = {_key(added, i) for i, word in enumerate(added) if word.startswith("-")}
    gone = {i for i, word in enumerate(options) if word.startswith("-") and _key(options, i) in anew}
    return [word for i, word in enumerate(options) if i not in gone and i - 1 not in gone]


def _key(words: Sequence[str], at: int) -> str:
    if words[at] == "--set" and at + 1 < len(words):
        return f"--set {words[at + 1].partition('=')[0]}"
    return _SETS.get(words[at], words[at])
