"""Where two sources tell different things of the same rank. Neither is believed over the other: both are shown, and what rests on one is worth less.

Sources are of different age, and that alone is no contradiction: a heartbeat may know less than the dump that was taken after it, never more. What
may surprise: torch's recorder takes an NCCL call only when NCCL has returned from enqueuing it, so that a rank can be inside a call of which its
recorder knows nothing; on Gloo calls of one group may end out of order, so that its counters say nothing of a call that is older than the newest.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from unhang.flight import counting_messages, operations
from unhang.knowledge import words
from unhang.knowledge.cause import STANDINGS
from unhang.knowledge.words import NOTHING, Text, msg
from unhang.model import Contradiction, Disagreement, Evidence, Finding

if TYPE_CHECKING:
    from unhang.flight import Call, Flight
    from unhang.flight.recording import Recording
    from unhang.logs.log_facts import Status
    from unhang.records.incident_view import IncidentView, RankView

_SIGKILL, _GONE = -9, -1000
# Every rank of a large job may differ in the same way.
MOST = 64


class _Claim(NamedTuple):
    """What a source says of a rank, in a clause that {n}, {done} and {group} may stand in; `line` and `text` where it is printed there."""

    source: str
    says: Text
    line: int | None = None
    text: str = ""

    def stated(self, number: int) -> Evidence:
        if self.line is not None:
            return Evidence(source=self.source, line=self.line, text=self.text.strip())
        return words.stated(self.source, words.of_rank(number, self.says))

    def counting(self, n: int, done: Text, group: str) -> _Claim:
        return self._replace(says=self.says.fill(n=n, done=done, group=group))


class _Counter(NamedTuple):
    group: str
    issued: int
    completed: int
    claim: _Claim


def of_picture(picture: IncidentView) -> tuple[Contradiction, ...]:
    """The contradictions in what one incident left, rank by rank."""
    messages = counting_messages({r.number: r.flight for r in picture.ranks if r.flight})
    return tuple(c for rank in picture.ranks for c in (*_calls(picture, rank, messages), *_life(picture, rank)))[:MOST]


def of_logs_and_dumps(statuses: Iterable[Status], recordings: Mapping[int, Recording]) -> tuple[Contradiction, ...]:
    """What the watchdogs of ranks printed, against the dumps of the same ranks that were given beside the logs.

    Which of them is newer nothing tells: a log that knows of more calls than the dump was written later, or by another generation of the group.
    """
    found: list[Contradiction] = []
    for status in statuses:
        number, counter = status.at.rank, _printed(status)
        recording = recordings.get(number) if number is not None else None
        if number is None or recording is None or recording.cut:
            continue
        for track in recording.tracks:
            if track.group.name == counter.group and not track.gloo and track.ids and track.pending_ns and counter.issued <= track.last:
                found += _completed(number, counter, min(track.pending_ns), "", recording.source)
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


def _made(about: Disagreement, number: int, one: _Claim, other: _Claim) -> Contradiction:
    says = words.of_rank(number, msg("{one}, but {other}", one=one.says, other=other.says))
    return Contradiction(about=about, says=says, ranks=(number,), statements=(one.stated(number), other.stated(number)))


def _calls(picture: IncidentView, rank: RankView, messages: frozenset[str]) -> Iterator[Contradiction]:
    """The counters and the stack of a rank, against its recorder."""
    flight, number = rank.flight, rank.number
    if flight is None or flight.cut is not None or (source := rank.record.flight) is None:
        return
    stands = picture.incident.kind == "hang"
    counters = list[_Counter]()
    # Heartbeats go on while evidence is taken: only of what stands still are they never newer.
    for group, beat in sorted(rank.record.groups.items()) if stands else ():
        says = msg("its heartbeat counts {n} calls {done} in group {group}")
        if group not in messages:
            counters.append(_Counter(group, beat.enqueued, beat.completed, _Claim(picture.incident_source, says)))
    printed = (_printed(s) for s in picture.statuses if s.at.rank == number)
    counters += [counter for counter in printed if not any(c.backend == "gloo" for c in _collectives(flight, counter.group))]
    for counter in counters:
        calls = _collectives(flight, counter.group)
        if calls and counter.issued > calls[-1].seq:
            newest = msg("its recorder's newest is #{seq}", seq=calls[-1].seq)
            claim = counter.claim.counting(counter.issued, msg("issued"), counter.group)
            yield _made("issued", number, claim, _Claim(source, newest))
        # On Gloo calls of one group may end out of order: one that is pending tells nothing of those behind it.
        pending = next((c for c in calls if not c.done), None)
        if pending is not None and pending.backend == "nccl":
            yield from _completed(number, counter, pending.seq, f"{pending.op} ", source)
    wait, stacks = picture.waits.get(number), rank.record.stacks
    if stands and stacks and rank.captured and not rank.busy and wait is not None and wait.group is None and operations.needs_all(wait.op):
        last = max((c for of_group in flight.calls.values() for c in of_group if not c.is_p2p), key=lambda c: c.created_ns, default=None)
        call = "" if last is None else f"{last.op} #{last.seq}"
        ended = msg("the last call in its recorder, {call}, has ended", call=call)
        has = ended if call else msg("its recorder has no call at all")
        inside = msg("its stack is inside {op}", op=wait.op)
        yield _made("issued", number, _Claim(stacks, inside), _Claim(source, has))


def _completed(number: int, counter: _Counter, pending: int, op: str, source: str) -> Iterator[Contradiction]:
    """A counter may know less of what was completed than the recorder, and never of what is pending in it."""
    if counter.completed >= pending:
        has = msg("in its recorder {call} has not ended", call=f"{op}#{pending}")
        yield _made(
            "completed", number, counter.claim.counting(counter.completed, msg("completed", "contradictions"), counter.group), _Claim(source, has)
        )


def _life(picture: IncidentView, rank: RankView) -> Iterator[Contradiction]:
    """What other sources tell of a process, against what the supervisor saw of it: an exit code, or that it is gone or lives."""
    record, ended = rank.record, rank.ended
    claims: list[tuple[_Claim, int | None]] = []
    told = next((e for e in picture.exits if e.at.pid == record.pid and e.at.host in (None, record.host)), None)
    if told is not None and (ended is not None or record.answered or (rank.activity is not None and rank.activity.state != "Z")):
        says = msg("the launcher's log says that it ended with exit code {code}", code=told.code)
        claims.append((_Claim(told.at.source, says, told.at.line, told.at.text), _as_signal(told.code)))
    if (event := picture.oom_kill_of(rank)) is not None and picture.kernel_source is not None:
        says = msg("the kernel log says that the OOM killer ended its process")
        claims.append((_Claim(picture.kernel_source, says, event.line, event.text), _SIGKILL))
    claims += _of_ras(picture, rank)
    code = None if ended is None else ended.exitcode
    how = msg(" with exit code {code}", code=code) if code is not None else NOTHING
    saw = msg("the supervisor saw it end") + how if ended else msg("the supervisor saw it alive")
    for claim, of_claim in claims:
        if (ended is None) != (of_claim is None):
            yield _made("alive", rank.number, claim, _Claim(picture.incident_source, saw))
        elif code is not None and of_claim not in (_GONE, _as_signal(code)):
            yield _made("ending", rank.number, claim, _Claim(picture.incident_source, saw))


def _of_ras(picture: IncidentView, rank: RankView) -> Iterator[tuple[_Claim, int | None]]:
    """NCCL's numbers are those of a communicator, its hosts are addresses: only in one of all ranks, with the same pid, it is surely this one."""
    if (report := picture.ras) is None:
        return
    from unhang.ras import Member

    world = max((r.record.world_size or 1 for r in picture.ranks), default=1)
    everywhere = (c.member(rank.number) for c in report.communicators if c.size == world)
    told = next((m for m in everywhere if m is not None and m.pid == rank.record.pid), None)
    if isinstance(told, Member):
        yield _Claim(report.source, msg("NCCL's RAS has an answer of it")), None
    elif told is not None and (told.dead or told.unresponsive) and rank.record.answered:
        yield _Claim(report.source, msg("NCCL's RAS has no answer of it")), _GONE


def _printed(status: Status) -> _Counter:
    says = msg("its log says that #{n} of group {group} was {done}")
    # The name of a group without its description: "0(default_pg)".
    group = (status.group or "").partition("(")[0]
    return _Counter(group, status.enqueued, status.completed, _Claim(status.at.source, says, status.at.line, status.at.text))


def _collectives(flight: Flight, group: str) -> list[Call]:
    """The collectives of a group by number; of several launched together, which share one, the last."""
    found = {call.seq: call for call in flight.calls.get(group, ()) if not call.is_p2p}
    return [found[number] for number in sorted(found)]


def _as_signal(code: int) -> int:
    """A shell tells a signal as 128 plus its number."""
    return 128 - code if 128 < code < 160 else code
