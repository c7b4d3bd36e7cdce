"""Remedies that name a process of a run: whether that very process still lives when the verdict is read, here or on another machine.

A pid is given anew once its process is gone, and a signal to it would then go to somebody else's.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from unhang.knowledge.text import Text, msg
from unhang.model import Finding, ProcessId, Remedy, Verdict

if TYPE_CHECKING:
    from unhang.records.incident import RankRecord

# At its beginning: a command of the user's own, which a remedy repeats, may have such words, too.
_PID = re.compile(r"kill (?:-\w+ )?(?P<killed>\d+)\b|py-spy dump (?:--\w+ )*--pid (?P<read>\d+)\b|cat /proc/(?P<looked_at>\d+)/")


def _seen_from_here(process: ProcessId) -> bool | None:
    from unhang.facts import processes
    from unhang.facts.host import Host

    return processes.is_alive(Host(), process)


def told(
    found: Verdict, records: Sequence[RankRecord], *, ends: bool = False, is_alive: Callable[[ProcessId], bool | None] = _seen_from_here
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
                _continued(
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
        return _continued(
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


def _continued(remedy: Remedy, more: Text) -> Remedy:
    if remedy.says.endswith(more):
        # A verdict that was drawn during the run says so already.
        return remedy
    return replace(remedy, says=remedy.says + more)
