"""Where two sources tell different things of the same rank. Neither is believed over the other: both are shown, and what rests on one is worth less.

Sources are of different age, and that alone is no contradiction: a heartbeat may know less than the dump that was taken after it, never more. What
may surprise: torch's recorder takes an NCCL call only when NCCL has returned from enqueuing it, so that a rank can be inside a call of which its
recorder knows nothing; on Gloo calls of one group may end out of order, so that its counters say nothing of a call that is older than the newest.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from unhang.knowledge import words
from unhang.knowledge.cause import STANDINGS
from unhang.model import Contradiction, Evidence, Finding
from unhang.records.flight import operations
from unhang.records.match import counting_messages

if TYPE_CHECKING:
    from unhang.records.flight import Call, Flight
    from unhang.records.flight.columns import Recording
    from unhang.records.logs.said import Status
    from unhang.records.picture import Picture, RankView

_SIGKILL = -9
# Every rank of a large job may differ in the same way.
MOST = 64


def of_picture(picture: Picture) -> tuple[Contradiction, ...]:
    """The contradictions in what one incident left, rank by rank."""
    messages = counting_messages({r.number: r.flight for r in picture.ranks if r.flight})
    found: list[Contradiction] = []
    for rank in picture.ranks:
        found += _heartbeat(picture, rank, messages)
        found += _stack(picture, rank)
        found += _watchdog(picture, rank)
        found += _ras(picture, rank)
        found += _launcher(picture, rank)
        found += _kernel(picture, rank)
    return tuple(found[:MOST])


def of_logs_and_dumps(statuses: Iterable[Status], recordings: Mapping[int, Recording]) -> tuple[Contradiction, ...]:
    """What the watchdogs of ranks printed, against the dumps of the same ranks that were given beside the logs."""
    found: list[Contradiction] = []
    for status in statuses:
        recording = recordings.get(status.at.rank) if status.at.rank is not None else None
        if recording is None or recording.cut:
            continue
        for track in recording.tracks:
            if track.group.name != _group(status) or track.gloo or not track.ids:
                continue
            pending = min(track.pending_ns, default=None)
            found += _against(status, recording.source, newest=track.last, pending=pending, op="")
    return tuple(found[:MOST])


def lowered(finding: Finding, contradictions: Sequence[Contradiction]) -> Finding:
    """The finding, one standing lower where a contradiction bears on it: where it is about its ranks, and rests on a source that is denied."""
    if finding.standing in ("established", "likely") and any(_bears(c, finding) for c in contradictions):
        return replace(finding, standing=STANDINGS[STANDINGS.index(finding.standing) + 1])
    return finding


def _bears(contradiction: Contradiction, finding: Finding) -> bool:
    if set(finding.ranks).isdisjoint(contradiction.ranks):
        return False
    denied = {s.source for s in contradiction.statements}
    rests = {e.source for e in finding.evidence}
    if contradiction.about in ("issued", "completed"):
        # incident.json holds everything that was seen of all ranks: that both name it says nothing.
        denied = {source for source in denied if not source.endswith("incident.json")}
    return not denied.isdisjoint(rests)


def _heartbeat(picture: Picture, rank: RankView, messages: frozenset[str]) -> Iterator[Contradiction]:
    flight, record = rank.flight, rank.record
    # Heartbeats go on while evidence is taken: only of what stands still are they never newer.
    if picture.incident.kind != "hang" or flight is None or flight.cut is not None or record.flight is None:
        return
    for group, beat in sorted(record.groups.items()):
        calls = _collectives(flight, group)
        if not calls or group in messages:
            continue
        newest = max(c.seq for c in calls)
        if beat.enqueued > newest:
            yield Contradiction(
                about="issued",
                says=f"rank {rank.number}: its heartbeat counts {beat.enqueued} calls issued in group {group}, its recorder's newest is #{newest}",
                ranks=(rank.number,),
                statements=(
                    Evidence(
                        source=picture.incident_source,
                        text=f"rank {rank.number}: {beat.enqueued} issued and {beat.completed} completed in group {group}{_beaten(rank)}",
                    ),
                    Evidence(source=record.flight, text=f"rank {rank.number}: the newest call of group {group} is {_called(calls[-1])}"),
                ),
            )
        pending = _oldest_pending(calls)
        if pending is not None and pending.backend == "nccl" and beat.completed >= pending.seq:
            yield Contradiction(
                about="completed",
                says=f"rank {rank.number}: its heartbeat counts {beat.completed} calls completed in group {group}, and in its recorder "
                f"{_called(pending)} has not ended",
                ranks=(rank.number,),
                statements=(
                    Evidence(source=picture.incident_source, text=f"rank {rank.number}: {beat.completed} completed in group {group}{_beaten(rank)}"),
                    Evidence(source=record.flight, text=f"rank {rank.number}: {_called(pending)} of group {group} has not ended"),
                ),
            )


def _stack(picture: Picture, rank: RankView) -> Iterator[Contradiction]:
    wait, flight, record = picture.waits.get(rank.number), rank.flight, rank.record
    if (
        picture.incident.kind != "hang"
        or wait is None
        or wait.group is not None
        or flight is None
        or flight.cut is not None
        or rank.busy
        or not rank.captured
    ):
        return
    if record.stacks is None or record.flight is None or not operations.needs_all(wait.op):
        return
    calls = [c for of_group in flight.calls.values() for c in of_group if not c.is_p2p]
    last = max(calls, key=lambda c: c.created_ns, default=None)
    has = f"its last call is {_called(last)}, which has ended" if last is not None else "it has no call at all"
    late = "; torch records a call only when NCCL has taken it" if "nccl" in (record.backend or "") else ""
    inner = next((f for f in reversed(wait.frames) if f.name == wait.op), wait.frames[-1])
    yield Contradiction(
        about="issued",
        says=f"rank {rank.number}: its stack is inside {wait.op}, and its recorder has no such call that has not ended ({has}{late})",
        ranks=(rank.number,),
        statements=(
            Evidence(source=record.stacks, text=f"rank {rank.number}: {words.frame(inner)}"),
            Evidence(source=record.flight, text=f"rank {rank.number}: {has}"),
        ),
    )


def _watchdog(picture: Picture, rank: RankView) -> Iterator[Contradiction]:
    flight = rank.flight
    if flight is None or flight.cut is not None or rank.record.flight is None:
        return
    for status in picture.statuses:
        calls = _collectives(flight, _group(status))
        if status.at.rank != rank.number or not calls or any(c.backend == "gloo" for c in calls):
            continue
        pending = _oldest_pending(calls)
        yield from _against(
            status,
            rank.record.flight,
            newest=max(c.seq for c in calls),
            pending=None if pending is None else pending.seq,
            op="" if pending is None else f" {pending.op}",
        )


def _against(status: Status, source: str, *, newest: int, pending: int | None, op: str) -> Iterator[Contradiction]:
    """A watchdog's counters against the newest number and the oldest pending one of the same rank's recorder, in one group."""
    rank, group = status.at.rank, _group(status)
    if rank is None:
        return
    printed = Evidence(source=status.at.source, line=status.at.line, text=status.at.text.strip())
    if status.enqueued > newest:
        yield Contradiction(
            about="issued",
            says=f"rank {rank}: its log says that #{status.enqueued} of group {group} was issued, its recorder's newest is #{newest}",
            ranks=(rank,),
            statements=(printed, Evidence(source=source, text=f"rank {rank}: the newest call of group {group} is #{newest}")),
        )
    if pending is not None and status.completed >= pending:
        yield Contradiction(
            about="completed",
            says=f"rank {rank}: its log says that #{status.completed} of group {group} was completed, and in its recorder #{pending}{op} has not",
            ranks=(rank,),
            statements=(printed, Evidence(source=source, text=f"rank {rank}: #{pending}{op} of group {group} has not ended")),
        )


def _ras(picture: Picture, rank: RankView) -> Iterator[Contradiction]:
    """NCCL's numbers are those of a communicator, its hosts are addresses: only in one of all ranks, with the same pid, it is surely this one."""
    report, record, ended = picture.ras, rank.record, rank.ended
    if report is None:
        return
    world = max((r.record.world_size or 1 for r in picture.ranks), default=1)
    everywhere = (c.member(rank.number) for c in report.communicators if c.size == world)
    told = next((m for m in everywhere if m is not None and m.pid == record.pid), None)
    if told is None:
        return
    from unhang.records.ras import Member

    how = _ended(rank) if ended is not None else ""
    if isinstance(told, Member) and ended is not None:
        state = f" ({told.state})" if told.state else ""
        yield Contradiction(
            about="alive",
            says=f"rank {rank.number}: NCCL's RAS has an answer of it{state}, and the supervisor saw that it {how}",
            ranks=(rank.number,),
            statements=(
                Evidence(source=report.source, text=f"rank {rank.number} (pid {told.pid}) answers{state}"),
                Evidence(source=picture.incident_source, text=f"rank {rank.number} (pid {record.pid}) {how} at {words.seconds(ended.at_s)}"),
            ),
        )
    elif not isinstance(told, Member) and (told.dead or told.unresponsive) and rank.alive and record.answered:
        gone = "is dead" if told.dead else "does not answer"
        yield Contradiction(
            about="alive",
            says=f"rank {rank.number}: to NCCL's RAS it {gone}, and it answered the supervisor",
            ranks=(rank.number,),
            statements=(
                Evidence(source=report.source, text=f"rank {rank.number} (pid {told.pid}) {gone}"),
                Evidence(source=picture.incident_source, text=f"rank {rank.number} (pid {record.pid}) answered when it was asked for evidence"),
            ),
        )


def _launcher(picture: Picture, rank: RankView) -> Iterator[Contradiction]:
    record, ended = rank.record, rank.ended
    told = next((e for e in picture.exits if e.at.pid == record.pid and e.at.host in (None, record.host)), None)
    if told is None:
        return
    printed = Evidence(source=told.at.source, line=told.at.line, text=told.at.text.strip())
    if ended is None:
        if not (record.answered or (rank.activity is not None and rank.activity.state != "Z")):
            return
        yield Contradiction(
            about="alive",
            says=f"rank {rank.number}: the launcher's log says that it ended with exit code {told.code}, and the supervisor saw it alive",
            ranks=(rank.number,),
            statements=(printed, Evidence(source=picture.incident_source, text=f"rank {rank.number} (pid {record.pid}) is alive")),
        )
    elif ended.exitcode is not None and _as_signal(ended.exitcode) != _as_signal(told.code):
        yield Contradiction(
            about="ending",
            says=f"rank {rank.number}: the launcher's log says exit code {told.code}, the supervisor saw that it {_ended(rank)}",
            ranks=(rank.number,),
            statements=(printed, Evidence(source=picture.incident_source, text=f"rank {rank.number} (pid {record.pid}) {_ended(rank)}")),
        )


def _kernel(picture: Picture, rank: RankView) -> Iterator[Contradiction]:
    event, ended = picture.oom_kill_of(rank), rank.ended
    if event is None or picture.kernel_source is None or (ended is not None and (ended.exitcode is None or _as_signal(ended.exitcode) == _SIGKILL)):
        return
    how = "saw it alive" if ended is None else f"saw that it {_ended(rank)}"
    yield Contradiction(
        about="alive" if ended is None else "ending",
        says=f"rank {rank.number}: the kernel log says that the OOM killer ended its process, and the supervisor {how}",
        ranks=(rank.number,),
        statements=(
            Evidence(source=picture.kernel_source, line=event.line, text=event.text),
            Evidence(
                source=picture.incident_source,
                text=f"rank {rank.number} (pid {rank.record.pid}) {_ended(rank) if ended is not None else 'is alive'}",
            ),
        ),
    )


def _group(status: Status) -> str:
    """The name of a group without its description: "0(default_pg)"."""
    return (status.group or "").partition("(")[0]


def _collectives(flight: Flight, group: str) -> list[Call]:
    """The collectives of a group by number; of several launched together, which share one, the last."""
    found: dict[int, Call] = {}
    for call in flight.calls.get(group, ()):
        if not call.is_p2p:
            found[call.seq] = call
    return [found[number] for number in sorted(found)]


def _oldest_pending(calls: Sequence[Call]) -> Call | None:
    return next((c for c in calls if not c.done), None)


def _called(call: Call) -> str:
    return f"{call.op} #{call.seq}"


def _beaten(rank: RankView) -> str:
    return f" ({words.seconds(rank.record.last_beat_s)} after the start)" if rank.record.last_beat_s is not None else ""


def _ended(rank: RankView) -> str:
    code = rank.ended.exitcode if rank.ended is not None else None
    return f"ended with exit code {code}" if code is not None else "ended"


def _as_signal(code: int) -> int:
    """A shell tells a signal as 128 plus its number."""
    return 128 - code if 128 < code < 160 else code
