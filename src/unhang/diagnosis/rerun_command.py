"""What remedies of a run name: its command as somebody types it again (COMMAND), with all that `unhang run` was given, its Python, its processes."""

from __future__ import annotations

import contextlib
import re
import shlex
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from unhang.errors import RunDirError
from unhang.knowledge.commands import PYTHON, Command, command
from unhang.knowledge.words import Text, msg
from unhang.model import Finding, ProcessId, Remedy, Verdict, frozen

if TYPE_CHECKING:
    from unhang.records.incident import RankRecord
    from unhang.records.rundir import RunDir

# As remedies write it, with options that go to those of the run.
_COMMAND = re.compile(r"unhang run(?P<added>(?: (?!-- )\S+)*?) (?:-- )?COMMAND\b|\bCOMMAND\b")
_SIGNAL = re.compile(r"\bkill (?:-\w+ )*\d")
# Options that are settings, too.
_SETS = {"-n": "--set processes", "--nproc-per-node": "--set processes", "--timeout": "--set timeout"}


@frozen
class RunCommand:
    """What stood behind `unhang run`: its own options, up to a `--`, and the command."""

    options: tuple[str, ...] = ()
    command: tuple[str, ...]


@frozen
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


# Remedies that name a process of a run: whether that very process still lives when the verdict is read, here or on another machine. A pid is given
# anew once its process is gone, and a signal to it would then go to somebody else's.
# At its beginning: a command of the user's own, which a remedy repeats, may have such words, too.
_PID = re.compile(r"kill (?:-\w+ )?(?P<killed>\d+)\b|py-spy dump (?:--\w+ )*--pid (?P<read>\d+)\b|cat /proc/(?P<looked_at>\d+)/")


def seen_from_here(process: ProcessId) -> bool | None:
    from unhang.facts import processes
    from unhang.facts.host import Host

    return processes.is_alive(Host(), process)


def with_living_processes(
    found: Verdict, records: Sequence[RankRecord], *, ends: bool = False, is_alive: Callable[[ProcessId], bool | None] = seen_from_here
) -> Verdict:
    """The verdict, with no command for a process that is gone, and a warning where that is not known. `ends`: who lives is about to be ended."""
    of_pids = {r.pid: r for r in records}
    known: dict[int, bool | None] = {}

    def lives(pid: int) -> bool | None:
        if pid not in known:
            known[pid] = _lives(of_pids.get(pid), is_alive)
        return known[pid]

    def remedied(remedy: Remedy) -> Remedy:
        named = _PID.match(remedy.command or "")
        if named is None:
            return remedy
        pid = int(named["killed"] or named["read"] or named["looked_at"])
        alive = lives(pid)
        if alive is False or (ends and pid in of_pids):
            return replace(
                _with_warning(
                    remedy,
                    (
                        msg(" Process {pid} has ended since.")
                        if alive is False
                        else msg(" unhang run ends process {pid} together with the other ranks.")
                    ).fill(pid=pid),
                ),
                command=None,
            )
        if alive:
            return remedy
        return _with_warning(
            remedy,
            msg(
                " Only on {host}, and only while it is that process: that cannot be seen from here, and another one may have its number by now.",
                host=of_pids[pid].host if pid in of_pids else msg("its host"),
            ),
        )

    def of_finding(finding: Finding) -> Finding:
        return replace(finding, remedies=tuple(map(remedied, finding.remedies)))

    return found.each(of_finding)


def _lives(record: RankRecord | None, is_alive: Callable[[ProcessId], bool | None]) -> bool | None:
    if record is None:
        return None
    if record.ended is not None:
        return False
    return None if record.process is None else is_alive(record.process)


def _with_warning(remedy: Remedy, more: Text) -> Remedy:
    if remedy.says.endswith(more):
        # A verdict that was drawn during the run says so already.
        return remedy
    return replace(remedy, says=remedy.says + more)
