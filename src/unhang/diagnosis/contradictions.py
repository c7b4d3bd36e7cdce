"""Where two sources tell different things of the same rank. Neither is believed over the other: both are shown, and what rests on one is worth less.

Sources are of different age, and that alone is no contradiction: a heartbeat may know less than the dump that was taken after it, never more. What
may surprise: torch's recorder takes an NCCL call only when NCCL has returned from enqueuing it, so that a rank can be inside a call of which its
recorder knows nothing; on Gloo calls of one group may end out of order, so that its counters say nothing of a call that is older than the newest.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from unhang.knowledge import words
from unhang.knowledge.cause import STANDINGS
from unhang.knowledge.text import NOTHING, Text, same
from unhang.model import Contradiction, Disagreement, Evidence, Finding
from unhang.records.flight import operations
from unhang.records.match import counting_messages

if TYPE_CHECKING:
    from unhang.records.flight import Call, Flight
    from unhang.records.flight.columns import Recording
    from unhang.records.logs.said import Status
    from unhang.records.picture import Picture, RankView

_SIGKILL = -9
_LATE = Text("; torch records a call only when NCCL has taken it", "；torch 要等 NCCL 接受一次调用之后才记录它")
# Every rank of a large job may differ in the same way.
MOST = 64


@dataclass(frozen=True)
class _Numbered:
    """A call by its number in its group; `op` is "" where that is not kept."""

    seq: int
    op: str = ""

    @property
    def says(self) -> str:
        return f"{self.op} #{self.seq}".lstrip()


@dataclass(frozen=True, kw_only=True)
class _Recorder:
    """What a rank's recorder has of one group: its newest call, and its oldest that has not ended."""

    newest: _Numbered
    pending: _Numbered | None
    source: str


@dataclass(frozen=True, kw_only=True)
class _Counter:
    """What another source counted in the same group. `says` is a template with {n}, {done} and {group}; `statement` is where both numbers stand."""

    issued: int
    completed: int
    says: Text
    statement: Evidence


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
    """What the watchdogs of ranks printed, against the dumps of the same ranks that were given beside the logs.

    Which of them is newer nothing tells: a log that knows of more calls than the dump was written later, or by another generation of the group.
    """
    found: list[Contradiction] = []
    for status in statuses:
        recording = recordings.get(status.at.rank) if status.at.rank is not None else None
        if recording is None or recording.cut:
            continue
        for track in recording.tracks:
            if track.group.name != _group(status) or track.gloo or not track.ids:
                continue
            if status.enqueued > track.last:
                continue
            pending = min(track.pending_ns, default=None)
            recorder = _Recorder(newest=_Numbered(track.last), pending=None if pending is None else _Numbered(pending), source=recording.source)
            found += _against(status.at.rank, _group(status), _printed(status), recorder)
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
        told = Text("{n} issued and {done} completed in group {group}{beaten}", "组 {group} 中已发出 {n} 次、已完成 {done} 次{beaten}")
        told = words.of_rank(rank.number, told.fill(n=beat.enqueued, done=beat.completed, group=group, beaten=_beaten(rank)))
        counter = _Counter(
            issued=beat.enqueued,
            completed=beat.completed,
            says=Text("its heartbeat counts {n} calls {done} in group {group}", "心跳显示组 {group} 中{done}了 {n} 次调用"),
            statement=words.stated(picture.incident_source, told),
        )
        yield from _against(rank.number, group, counter, _recorder(calls, record.flight))


def _against(number: int | None, group: str, counter: _Counter, recorder: _Recorder) -> Iterator[Contradiction]:
    """A counter against the recorder of the same rank: it may know less of what was issued, never more; and nothing completed that is pending."""
    if number is None:
        return
    if counter.issued > recorder.newest.seq:
        says = counter.says.fill(n=counter.issued, done=Text("issued", "发出"), group=group)
        has = Text(", its recorder's newest is #{seq}", "，而 flight recorder 中最新的是 #{seq}").fill(seq=recorder.newest.seq)
        stands = Text("the newest call of group {group} is {call}", "组 {group} 中最新的调用是 {call}").fill(group=group, call=recorder.newest.says)
        yield _made("issued", number, says + has, counter.statement, words.stated(recorder.source, words.of_rank(number, stands)))
    if recorder.pending is not None and counter.completed >= recorder.pending.seq:
        says = counter.says.fill(n=counter.completed, done=Text("completed", "完成"), group=group)
        has = Text(", and in its recorder {call} has not ended", "，而 flight recorder 中 {call} 还没有结束").fill(call=recorder.pending.says)
        stands = Text("{call} of group {group} has not ended", "组 {group} 的 {call} 还没有结束").fill(call=recorder.pending.says, group=group)
        yield _made("completed", number, says + has, counter.statement, words.stated(recorder.source, words.of_rank(number, stands)))


def _made(about: Disagreement, number: int, says: Text, *statements: Evidence) -> Contradiction:
    one, other = statements
    told = Text("rank {number}: {says}", "rank {number}：{says}").fill(number=number, says=says)
    return Contradiction(about=about, says=told.en, says_zh=told.zh, ranks=(number,), statements=(one, other))


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
    has = Text("it has no call at all", "其中没有任何调用")
    if last is not None:
        has = Text("its last call is {call}, which has ended", "最后一次调用是 {call}，已经结束").fill(call=_called(last))
    says = Text(
        "its stack is inside {op}, and its recorder has no such call that has not ended ({has}{late})",
        "调用栈停在 {op} 中，而 flight recorder 中没有这样一个未结束的调用（{has}{late}）",
    ).fill(op=wait.op, has=has, late=_LATE if "nccl" in (record.backend or "") else same(""))
    inner = next((f for f in reversed(wait.frames) if f.name == wait.op), wait.frames[-1])
    yield _made(
        "issued",
        rank.number,
        says,
        words.stated(record.stacks, words.of_rank(rank.number, words.frame(inner))),
        words.stated(record.flight, words.of_rank(rank.number, has)),
    )


def _watchdog(picture: Picture, rank: RankView) -> Iterator[Contradiction]:
    flight = rank.flight
    if flight is None or flight.cut is not None or rank.record.flight is None:
        return
    for status in picture.statuses:
        calls = _collectives(flight, _group(status))
        if status.at.rank != rank.number or not calls or any(c.backend == "gloo" for c in calls):
            continue
        yield from _against(rank.number, _group(status), _printed(status), _recorder(calls, rank.record.flight))


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

    if isinstance(told, Member) and ended is not None:
        state = f" ({told.state})" if told.state else ""
        answers = words.stated(report.source, _told(rank.number, told.pid, Text("answers{state}", "有应答{state}").fill(state=state)))
        says = Text("NCCL's RAS has an answer of it{state}", "NCCL 的 RAS 得到了它的应答{state}").fill(state=state)
        yield _unlike_supervisor("alive", picture, rank, says, answers)
    elif not isinstance(told, Member) and (told.dead or told.unresponsive) and rank.alive and record.answered:
        gone = Text("is dead", "已死") if told.dead else Text("does not answer", "没有应答")
        yield _made(
            "alive",
            rank.number,
            Text("to NCCL's RAS it {gone}, and it answered the supervisor", "在 NCCL 的 RAS 看来它{gone}，而它应答了 unhang").fill(gone=gone),
            words.stated(report.source, _told(rank.number, told.pid, gone)),
            words.stated(
                picture.incident_source,
                _told(rank.number, record.pid, Text("answered when it was asked for evidence", "在被要求提供证据时有应答")),
            ),
        )


def _unlike_supervisor(about: Disagreement, picture: Picture, rank: RankView, says: Text, statement: Evidence) -> Contradiction:
    """What another source says of a process, against what the supervisor saw of it."""
    code = None if rank.ended is None else rank.ended.exitcode
    if rank.ended is None:
        saw, stands = Text(", and the supervisor saw it alive", "，而 unhang 看到它还活着"), Text("is alive", "还活着")
    else:
        ended = Text("ended", "已经结束")
        if code is not None:
            ended = Text("ended with exit code {code}", "以退出码 {code} 结束").fill(code=code)
        saw = Text(", and the supervisor saw that it {ended}", "，而 unhang 看到它{ended}").fill(ended=ended)
        stands = ended + Text(" at {s}", "，时间 {s}").fill(s=words.seconds(rank.ended.at_s))
    return _made(about, rank.number, says + saw, statement, words.stated(picture.incident_source, _told(rank.number, rank.record.pid, stands)))


def _told(number: int, pid: int | None, said: Text) -> Text:
    return Text("rank {n} (pid {pid}) {said}", "rank {n}（pid {pid}）{said}").fill(n=number, pid=str(pid), said=said)


def _launcher(picture: Picture, rank: RankView) -> Iterator[Contradiction]:
    record, ended = rank.record, rank.ended
    told = next((e for e in picture.exits if e.at.pid == record.pid and e.at.host in (None, record.host)), None)
    if told is None:
        return
    printed = Evidence(source=told.at.source, line=told.at.line, text=told.at.text.strip())
    says = Text("the launcher's log says that it ended with exit code {code}", "启动器的日志说它以退出码 {code} 结束").fill(code=told.code)
    if ended is None:
        if record.answered or (rank.activity is not None and rank.activity.state != "Z"):
            yield _unlike_supervisor("alive", picture, rank, says, printed)
    elif ended.exitcode is not None and _as_signal(ended.exitcode) != _as_signal(told.code):
        yield _unlike_supervisor("ending", picture, rank, says, printed)


def _kernel(picture: Picture, rank: RankView) -> Iterator[Contradiction]:
    event, ended = picture.oom_kill_of(rank), rank.ended
    if event is None or picture.kernel_source is None or (ended is not None and (ended.exitcode is None or _as_signal(ended.exitcode) == _SIGKILL)):
        return
    killed = Text("the kernel log says that the OOM killer ended its process", "内核日志说它的进程被 OOM killer 结束")
    statement = Evidence(source=picture.kernel_source, line=event.line, text=event.text)
    yield _unlike_supervisor("alive" if ended is None else "ending", picture, rank, killed, statement)


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


def _recorder(calls: Sequence[Call], source: str) -> _Recorder:
    """On Gloo calls of one group may end out of order: one that is pending tells nothing of those behind it."""
    pending = next((c for c in calls if not c.done), None)
    newest = max(calls, key=lambda c: c.seq)
    in_order = pending is not None and pending.backend == "nccl"
    return _Recorder(
        newest=_Numbered(newest.seq, newest.op),
        pending=_Numbered(pending.seq, pending.op) if pending is not None and in_order else None,
        source=source,
    )


def _printed(status: Status) -> _Counter:
    return _Counter(
        issued=status.enqueued,
        completed=status.completed,
        says=Text("its log says that #{n} of group {group} was {done}", "日志说组 {group} 的 #{n} 已经{done}"),
        statement=Evidence(source=status.at.source, line=status.at.line, text=status.at.text.strip()),
    )


def _called(call: Call) -> str:
    return f"{call.op} #{call.seq}"


def _beaten(rank: RankView) -> Text:
    beat_s = rank.record.last_beat_s
    return Text(" ({s} after the start)", "（启动后 {s}）").fill(s=words.seconds(beat_s)) if beat_s is not None else NOTHING


def _as_signal(code: int) -> int:
    """A shell tells a signal as 128 plus its number."""
    return 128 - code if 128 < code < 160 else code
