"""What a blocked thread waits in, in words, and what helps: the holder of a lock, a file or a child is named first."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from unhang.knowledge import words
from unhang.knowledge.commands import Command, command
from unhang.knowledge.words import NOTHING, Text, msg
from unhang.model import Evidence, Wait

if TYPE_CHECKING:
    from unhang.records.incident_view import IncidentView

# The evidence of all ranks has to be complete before their collective times out: it takes a second or two, of slow ones up to ten.
_MARGIN_S = 10.0
_MARGIN_SHARE = 0.1


def described(picture: IncidentView | None, wait: Wait | None) -> Text:
    """ "waiting for a file lock on /data/cache.lock that process 4711 (python build.py) holds"; NOTHING if it is not known, or says nothing."""
    if wait is None:
        return NOTHING
    holder = _process(picture, wait)
    if holder and not wait.ends:
        return msg("waiting for {holder}, in which all threads wait for each other", holder=holder)
    path = msg(" {path}", path=wait.what) if wait.what else NOTHING
    if wait.kind == "file-lock":
        held = msg(" that {holder} holds", holder=holder) if holder else NOTHING
        on = msg(" on{path}", path=path) if path else NOTHING
        return msg("waiting for a file lock{on}{held}", on=on, held=held)
    if wait.kind == "child":
        child = msg("its child {holder}", holder=holder) if holder else msg("a child process")
        return msg("waiting for {child} to end", child=child)
    if wait.kind == "fifo":
        return msg("opening the FIFO{path}, which nobody opens at its other end", path=path)
    if wait.kind == "pipe":
        if holder:
            end = msg(", whose other end {holder} holds", holder=holder)
        else:
            end = NOTHING if wait.ends else msg(", whose other end no other process holds")
        return msg("waiting at the pipe{path}{end}", path=path, end=end)
    if wait.kind == "socket":
        peer = msg(" to{path}", path=path) if path else NOTHING
        return msg("waiting at a network connection{peer}", peer=peer)
    if wait.kind == "mutex" and not wait.ends:
        return msg("waiting for a lock that none of its threads can release")
    return _PLAIN.get(wait.kind, NOTHING).fill(path=path)


# Of a poll with several descriptors nothing can be said.
_PLAIN = {
    "mutex": msg("waiting for a lock of its own process"),
    "semaphore": msg("waiting for a lock that processes share"),
    "terminal": msg("waiting for input at the terminal{path}"),
    "file": msg("waiting for the file{path}"),
}


def most_s(timeout_s: float | None) -> float:
    """How long a collective with this timeout may be waited for; infinite if the timeout is not known."""
    return math.inf if timeout_s is None else timeout_s - min(_MARGIN_S, _MARGIN_SHARE * timeout_s)


def longer_s(bound_s: float, *, lasts_s: float = 0.0, timeout_s: float | None = None) -> int | None:
    """A --hang-after, in whole minutes, that is longer than `bound_s` and than a pause of `lasts_s`, within the collective's own timeout; None where
    that leaves no room.
    """
    minutes = min(math.ceil(max(lasts_s + 60, 2 * bound_s) / 60), most_s(timeout_s) // 60)
    return int(60 * minutes) if 60 * minutes > max(bound_s, lasts_s) else None


def longer(picture: IncidentView, *, lasts_s: float = 0.0) -> tuple[str, dict[str, Command | None]]:
    """The remedy for a pause that is meant, and its command: --hang-after, or the collective's own timeout where that comes first."""
    incident = picture.incident
    bound_s = max(incident.bound_s or 0.0, incident.stalled_for_s or 0.0, incident.threshold_s or 0.0)
    timeout_s = min((t for r in picture.ranks if (t := r.record.timeout_s) is not None), default=None)
    seconds = longer_s(bound_s, lasts_s=lasts_s, timeout_s=timeout_s)
    if seconds is None:
        return "raise-the-timeout", {}
    return "meant-to-sleep", {"meant-to-sleep": command("unhang run --hang-after {s:number} -- COMMAND", s=seconds)}


def evidence(picture: IncidentView, rank: int, wait: Wait | None) -> Evidence:
    """What the kernel says that a rank waits in."""
    return words.stated(picture.incident_source, words.of_rank(rank, described(picture, wait)))


def remedies(wait: Wait) -> tuple[str, ...]:
    """The ids of what helps against a wait, the most particular first."""
    if not wait.ends and (wait.kind == "mutex" or wait.holder is not None):
        return ("release-the-lock",)
    if wait.kind == "child":
        return ("bound-the-child",)
    if wait.holder is not None:
        return ("see-the-holder", "bound-the-wait")
    if wait.kind == "fifo" or (wait.kind == "pipe" and not wait.ends):
        return ("serve-the-pipe",)
    return ("bound-the-wait",)


def commands(wait: Wait | None) -> dict[str, Command | None]:
    """The commands of these remedies for a wait."""
    if wait is None or wait.holder is None:
        return {}
    return {"see-the-holder": command("ps -o pid,stat,etime,args -p {pid:pid}", pid=wait.holder)}


def _process(picture: IncidentView | None, wait: Wait) -> Text:
    """ "process 4711 (python build.py)", "rank 0 (pid 4700)"; NOTHING if nobody is known."""
    if wait.holder is None:
        return NOTHING
    rank = next((r.number for r in (picture.ranks if picture is not None else ()) if r.record.pid == wait.holder), None)
    if rank is not None:
        return msg("rank {rank} (pid {pid})", rank=rank, pid=wait.holder)
    command = msg(" ({command})", command=wait.command) if wait.command else NOTHING
    return msg("process {pid}{command}", pid=wait.holder, command=command)
