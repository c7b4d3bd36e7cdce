"""A size mismatch on Gloo: the process with the smaller tensor is ended in its I/O thread, and only a survivor can still tell what was called.

With more than two ranks the crash travels around the ring, so that several may end; the survivors' recorders then decide by majority.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from math import ceil
from typing import TYPE_CHECKING

from unhang.frames import Frame, user_frame
from unhang.knowledge import words
from unhang.knowledge.cause import signature
from unhang.knowledge.words import NOTHING, Text, msg, ranks
from unhang.logs import Hit
from unhang.model import Evidence, frozen

if TYPE_CHECKING:
    from unhang.flight import Call
    from unhang.knowledge.cause import LogView
    from unhang.records.incident_view import IncidentView, RankView

SIZE_MISMATCH = signature("collective-mismatch", "size-mismatch")
_SIGABRT = -6
# The bytes of one element, by the names that recorders have for types.
_WIDTHS = {"Float": 4, "Double": 8, "Half": 2, "BFloat16": 2, "Int": 4, "Long": 8, "Short": 2, "Byte": 1, "Char": 1, "Bool": 1, "ComplexFloat": 8}
# In how many parts Gloo sends what goes through no ring; those that are not named, in one for each rank. Rings: two for each, of so much at most.
_PARTS = {"broadcast": 1, "gather": 1, "all_gather": 2, "all_gather_into_tensor": 2}
_SEGMENT_BYTES = 1024 * 1024


def ended_of(view: LogView) -> Text:
    """Whom Gloo ended, as the launcher reports it, NOTHING where it reports nothing of the kind: it need not be who strayed."""
    ended = [e for e in view.exits if e.code == _SIGABRT]
    numbers = {e.at.rank for e in ended if e.at.rank is not None}
    local = {e.local_rank for e in ended if e.local_rank is not None}
    if not numbers and not local:
        return NOTHING
    return msg(
        "; the launcher reports that {who} ended with SIGABRT, which need not be the one that strayed",
        who=msg("{who}", who=ranks(numbers)) if numbers else msg("local {who}", who=ranks(local)),
    )


@frozen
class Crash:
    """`odd`: the ranks whose size was not meant, () where that cannot be told. `place`, `call`: what an odd rank called, else any.

    `lines`: where each rank stood, as far as that is certain; `place` is None where these differ and nobody can tell which was meant. `slip`: as of a
    parting. `certain`: it is known in which call of the survivors the sizes met; `differs`: in what that and the one of the dead differ.
    """

    dead: tuple[int, ...]
    odd: tuple[int, ...]
    involved: tuple[int, ...]
    place: Frame | None
    call: Call | None
    lines: dict[int, Frame]
    lines_differ: bool
    slip: tuple[Call, Call] | None
    certain: bool
    differs: tuple[str, ...]
    received: str
    expected: str
    hits: tuple[Hit, ...]
    evidence: tuple[Evidence, ...]


def crash_of(picture: IncidentView, hits: Sequence[Hit]) -> Crash | None:
    """The crash that the incident is about; None where Gloo's message is in no log."""
    from unhang.flight.mismatch import slipped_of

    said = tuple(h for h in hits if h.signature == SIZE_MISMATCH)
    if not said:
        return None
    speakers = {h.rank for h in said}
    dead = [r for r in picture.gone if r.ended and (r.ended.exitcode == _SIGABRT or r.number in speakers)]
    dead = dead or [r for r in picture.ranks if r.number in speakers or r.fatal is not None]
    recent = {r.number: calls for r in picture.ranks if r not in dead and (calls := _recent(r, dead))}
    received, expected = (int(said[0].groups.get(name) or 0) for name in ("received", "expected"))
    world = len(picture.ranks)
    sizes = {g.name: len(g.members) or world for r in picture.ranks if r.flight is not None for g in r.flight.groups.values()}
    met = {r: [c for c in calls if _piece(c, sizes.get(c.group, world), _width(c)) == received] for r, calls in recent.items()}
    last, certain = _met(recent, met)
    perhaps = list(last.values()) if certain else [c for calls in recent.values() for c in calls]
    odd, reason = _odd(dead, last, perhaps, picture)
    shown = next((picture.rank(n) for n in odd), dead[0] if dead else None)
    call = last.get(shown.number) if shown is not None else None
    place = user_frame(call.frames) if call is not None and call.frames else shown.place if shown is not None else None
    sent, slip = next(iter(last.values()), None), None
    if call is not None and shown is not None and shown.number in odd:
        usual = next((picture.rank(n).flight for n in last if n not in odd), None)
        slip = slipped_of(call.group, shown.flight, usual, until=call.seq)
        place = user_frame(slip[0].frames) if slip is not None else place
    lines = {
        r.number: found
        for r in picture.ranks
        if (found := (user_frame(last[r.number].frames) if r.number in last else None if r.only_last_seen else r.place)) is not None
    }
    apart = len({(f.file, f.line) for f in lines.values()}) > 1
    differs = () if sent is None else next((these for c in last.values() if (these := _differences(sent, c))), ())
    if not differs:
        differs = ("shape",) if sent is None else _differs(sent, expected, sizes.get(sent.group, world), () if apart else _before(picture, last))
    evidence = [e for r in dead[:1] for e in words.stack_evidence(picture, r, innermost=False)]
    for number, c in list(last.items())[:2]:
        says = msg(
            "rank {n}: #{seq} {call}{at}{why}",
            n=number,
            seq=c.seq,
            call=words.call(c),
            at=msg(", {frame}", frame=words.frame(u)) if (u := user_frame(c.frames)) is not None else NOTHING,
            why=msg(" ({why})", why=reason) if number in odd else NOTHING,
        )
        evidence.append(words.stated(picture.rank(number).record.flight or picture.incident_source, says))
    return Crash(
        dead=tuple(r.number for r in dead),
        odd=odd,
        involved=tuple(r.number for r in picture.ranks),
        # Nobody tells what a rank that Gloo ended had issued before: at a line of its own it may have strayed long since.
        place=place
        if (odd and call is not None)
        or len({(f.file, f.line) for f in (*lines.values(), *map(user_frame, (c.frames for c in perhaps))) if f is not None}) < 2
        else None,
        slip=slip,
        certain=certain,
        differs=differs,
        call=call or sent,
        lines=lines,
        lines_differ=apart,
        received=said[0].groups.get("received", ""),
        expected=said[0].groups.get("expected", ""),
        hits=said,
        evidence=tuple(evidence),
    )


def _recent(rank: RankView, dead: Sequence[RankView]) -> list[Call]:
    """The calls in which a survivor may have met the rank that Gloo ended, oldest first: its newest one, and those before that it may have completed
    with the little that came. It gets no further than one call behind one that needs all, and calls of other operations do not meet.
    """
    from unhang.flight import operations

    if rank.flight is None:
        return []
    calls = sorted((c for found in rank.flight.calls.values() for c in found if not c.is_p2p), key=lambda c: c.created_ns)
    before = [n for n, c in enumerate(calls[:-1]) if operations.needs_all(c.op)]
    found = calls[before[-1] if before else 0 :]
    ops = {operations.spelling(f.name) for r in dead for f in r.frames}
    return [c for c in found if operations.spelling(c.op) in ops] or found


def _piece(call: Call, ranks: int, width: int) -> int:
    """The bytes that Gloo sends of a call at once, if its elements are so wide: `segmentBytes` in its allreduce.cc."""
    from unhang.flight import operations

    op, elements = operations.spelling(call.op), operations.elements(call.input_sizes)
    ring = ranks * max(ceil(elements * width / ranks / _SEGMENT_BYTES), 2)
    return ceil(elements * width / (ring if op.startswith(("all_reduce", "reduce")) else _PARTS.get(op, ranks)) / width) * width


def _width(call: Call) -> int:
    return _WIDTHS.get(next(iter(call.dtypes), ""), 1)


def _differences(call: Call, other: Call) -> tuple[str, ...]:
    """What differs between two survivors' entries of one call."""
    if (call.seq, call.group, call.op) != (other.seq, other.group, other.op):
        return ()
    sizes = (call.input_sizes, call.output_sizes) != (other.input_sizes, other.output_sizes)
    return (*(("dtype",) if call.dtypes != other.dtypes else ()), *(("shape",) if sizes else ()))


def _differs(call: Call, expected: int, ranks: int, before: Collection[Call]) -> tuple[str, ...]:
    """What differs between a call and that of the rank that Gloo ended: "dtype", "shape", or both if its bytes tell no more."""
    # DDP broadcasts by the way of its all_reduce, too.
    if usual := next((c for c in before if c.op == call.op and _piece(c, ranks, _width(c)) == expected), None):
        return ("shape",) if usual.dtypes == call.dtypes else ("dtype",) if usual.input_sizes == call.input_sizes else ("dtype", "shape")
    as_many = any(_piece(call, ranks, width) == expected for width in _WIDTHS.values() if width != _width(call))
    return (*(("dtype",) if as_many else ()), *(() if as_many and expected % _width(call) else ("shape",)))


def _met(recent: Mapping[int, Sequence[Call]], sent: Mapping[int, Sequence[Call]]) -> tuple[dict[int, Call], bool]:
    """The call of each survivor in which sizes met, and whether that is certain: the first in which survivors differ, else the only one whose pieces
    are as large as the one that arrived (`sent`), else the newest."""
    from unhang.flight.mismatch import key_of, way_to

    for number in sorted({(c.seq, c.group) for calls in recent.values() for c in calls}):
        here = {r: c for r, calls in recent.items() for c in calls if (c.seq, c.group) == number}
        if len({key_of(c) for c in here.values()}) > 1:
            return here, True
    found = {(way_to(c.frames), key_of(c)) for calls in sent.values() for c in calls}
    return {r: (sent[r] or calls)[-1] for r, calls in recent.items()}, len(found) == 1


def _odd(dead: Sequence[RankView], last: Mapping[int, Call], recent: Collection[Call], picture: IncidentView) -> tuple[tuple[int, ...], Text]:
    from unhang.flight.mismatch import key_of, way_to

    if not dead or not last:
        return (), NOTHING
    newest = max(c.seq for c in last.values())
    here = {n: c for n, c in last.items() if c.seq == newest}
    votes = Counter(key_of(c) for c in here.values()).most_common()
    most = votes[0][0]
    others = tuple(n for n, c in here.items() if key_of(c) != most)
    # Of those whom Gloo has ended no size is known; only where nobody else stands at their line are they of one mind with the survivors there.
    at = {n: (u.file, u.line) for n, c in here.items() if (u := user_frame(c.frames)) is not None}
    common = {line for n, line in at.items() if n not in others} - {at.get(n) for n in others}
    fell = sum(1 for r in dead if r.place is not None and not r.only_last_seen and (r.place.file, r.place.line) in common) if others else 0
    if 2 * (votes[0][1] + fell) > len(picture.ranks):
        if others:
            return others, msg("differs from the majority")
        return tuple(r.number for r in dead), msg("the survivors agree")
    if len({way_to(c.frames) for c in recent} | {way_to(r.frames) for r in dead if r.frames}) > 1:
        # At two lines both sizes may be what they always were, and either rank may be the one that went astray.
        return (), NOTHING
    before = {key_of(c) for c in _before(picture, here)}
    if len(before) != 1:
        return (), NOTHING
    unusual = tuple(n for n, c in here.items() if key_of(c) not in before)
    if unusual:
        return unusual, msg("the same line issued something else before")
    if len(dead) > 1:
        return (), NOTHING
    return tuple(r.number for r in dead), msg("the survivor did as before")


def _before(picture: IncidentView, here: Mapping[int, Call]) -> list[Call]:
    """What the survivors issued by the same way before."""
    from unhang.flight.mismatch import way_to

    calls = [(c, way_to(of.frames), of) for r, of in here.items() if (f := picture.rank(r).flight) is not None for c in f.calls.get(of.group, ())]
    return [c for c, way, of in calls if way and c.seq < of.seq and not c.is_p2p and way_to(c.frames) == way]
