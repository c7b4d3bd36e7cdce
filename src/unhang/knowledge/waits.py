"""What a blocked thread waits in, in words, and what helps: the holder of a lock, a file or a child is named first."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from unhang.knowledge import words
from unhang.knowledge.commands import Command, command
from unhang.knowledge.text import NOTHING, Text
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
        return Text("waiting for {holder}, in which all threads wait for each other", "在等待{holder}，其中所有线程都在互相等待").fill(holder=holder)
    path = Text(" {path}", " {path}").fill(path=wait.what) if wait.what else NOTHING
    if wait.kind == "file-lock":
        held = Text(" that {holder} holds", "，由{holder}持有").fill(holder=holder) if holder else NOTHING
        on = Text(" on{path}", "{path} 上的").fill(path=path) if path else NOTHING
        return Text("waiting for a file lock{on}{held}", "在等待{on}文件锁{held}").fill(on=on, held=held)
    if wait.kind == "child":
        child = Text("its child {holder}", "它的子{holder}").fill(holder=holder) if holder else Text("a child process", "一个子进程")
        return Text("waiting for {child} to end", "在等待{child}结束").fill(child=child)
    if wait.kind == "fifo":
        return Text("opening the FIFO{path}, which nobody opens at its other end", "在打开 FIFO{path}，而没有人打开它的另一端").fill(path=path)
    if wait.kind == "pipe":
        if holder:
            end = Text(", whose other end {holder} holds", "，另一端由{holder}持有").fill(holder=holder)
        else:
            end = NOTHING if wait.ends else Text(", whose other end no other process holds", "，没有其他进程持有它的另一端")
        return Text("waiting at the pipe{path}{end}", "在管道{path}上等待{end}").fill(path=path, end=end)
    if wait.kind == "socket":
        peer = Text(" to{path}", "（对端{path}）").fill(path=path) if path else NOTHING
        return Text("waiting at a network connection{peer}", "在网络连接上等待{peer}").fill(peer=peer)
    if wait.kind == "mutex" and not wait.ends:
        return Text("waiting for a lock that none of its threads can release", "在等待一个锁，而它的任何线程都无法释放该锁")
    return _PLAIN.get(wait.kind, NOTHING).fill(path=path)


# Of a poll with several descriptors nothing can be said.
_PLAIN = {
    "mutex": Text("waiting for a lock of its own process", "在等待本进程内的锁"),
    "semaphore": Text("waiting for a lock that processes share", "在等待进程间共享的锁"),
    "terminal": Text("waiting for input at the terminal{path}", "在终端{path}上等待输入"),
    "file": Text("waiting for the file{path}", "在等待文件{path}"),
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
        return Text("rank {rank} (pid {pid})", " rank {rank}（pid {pid}）").fill(rank=rank, pid=wait.holder)
    command = Text(" ({command})", "（{command}）").fill(command=wait.command) if wait.command else NOTHING
    return Text("process {pid}{command}", "进程 {pid}{command}").fill(pid=wait.holder, command=command)
