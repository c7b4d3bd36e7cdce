"""collective-mismatch: ranks issue different collectives, sizes, dtypes or orders.

Long because it is proven in three ways (by a program's words, by several ranks' lines, by recorders), each with its own sentence.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from unhang.frames import other_line, place, user_frame
from unhang.knowledge import fingerprints, unhang_errors, words
from unhang.knowledge.cause import cause
from unhang.knowledge.fingerprints import Fingerprint
from unhang.knowledge.gloo_size_crash import SIZE_MISMATCH, Crash, crash_of, ended_of
from unhang.knowledge.judge import Answer, Found, LogView, RunView
from unhang.knowledge.rank_guards import guard_of_parting
from unhang.knowledge.watchdogs import GaveUpIn, Parted, collective, parted, rank_0_apart, ranks_of, stood
from unhang.knowledge.words import NOTHING, Text, msg
from unhang.logs import Hit
from unhang.model import Finding, Standing
from unhang.patterns import lazily
from unhang.user_files import is_user_file

if TYPE_CHECKING:
    from unhang.flight import Call, CollectiveWait, Mismatch, MismatchSide, Stall
    from unhang.flight.outcome import Kind

CAUSE = cause("collective-mismatch")
_TRACE = CAUSE.signature("trace")
_REFUSED = CAUSE.signature("refused")
_DESYNC = CAUSE.signature("desync")

# Which ranks issued what, and where.
Issued = tuple[Sequence[int], Text, "str | None"]
# Every group begins at 1: two groups meet in small numbers by chance.
_SELDOM_MET = 100
# The sequence number is a fingerprint's only part that a stray collective of a side process changes too.
_SEQUENCE = lazily(r"SequenceNumber=\d+,?\s*")


def in_run(picture: RunView) -> Answer:
    if refused := [h for h in picture.hits_of(CAUSE.id) if h.signature == _REFUSED]:
        return _of_refused(refused, picture)
    if (crash := crash_of(picture, picture.hits_of(CAUSE.id))) is not None:
        return _of_crash(picture, crash)
    if picture.front is not None and picture.front.parting is not None and guard_of_parting(picture) is None:
        return _of_parting(picture, picture.front.parting)
    if picture.front is not None and picture.front.crossed:
        return _of_crossing(picture, picture.front)
    # torch's own check (TORCH_DISTRIBUTED_DEBUG=DETAIL) names the ranks in its message.
    hits = [h for h in picture.hits_of(CAUSE.id) if "other" in h.groups]
    if not hits:
        return None
    if found := fingerprints.sides(hits):
        places = {r.number: at for r in picture.raised if (at := picture.where(r)) is not None}
        return _of_sides(found, len(picture.ranks), places)
    numbers, told = _named(hits), CAUSE.of_hits(hits, standing=_worth(hits))
    speaker = next((r for r in picture.raised if r.number in numbers), None)
    return told and replace(told, ranks=numbers or told.ranks, where=picture.where(speaker) if speaker is not None else None)


def _of_crossing(picture: RunView, front: Stall) -> Found:
    """Calls of one group may overtake those of another on NCCL, where each has a stream of its own: never more than likely."""
    crossed, strayed = front.crossed, front.strayed
    waits = list({_place_of(w): w for r in (*strayed, *crossed) if (w := picture.waits.get(r)) is not None}.values())
    groups = list(dict.fromkeys(w.group for w in waits if w.group is not None))
    first = NOTHING
    where = None
    if strayed and len(groups) == 2:
        first = words.crossed_by(front.by, strayed, groups[0], groups[1])
        line = picture.waits[strayed[0]].place if strayed[0] in picture.waits else None
        where = picture.place(line) if line is not None else None
    return Found(
        "sends" if all(w.op.startswith("send") for w in waits) else "groups" if len(groups) > 1 else "circle",
        ranks=strayed or crossed,
        where=where,
        remedies=("same-group", "same-order") if len({w.group for w in waits}) > len({w.op for w in waits}) else ("same-order",),
        picture=picture,
        first=first,
        each=[
            (
                w,
                [r for r in crossed if r in picture.waits and _place_of(picture.waits[r]) == _place_of(w)],
                words.wait_source(picture, w),
                words.call(w.call) if w.call is not None else w.op,
            )
            for w in waits[:3]
        ],
    )


def _place_of(wait: CollectiveWait) -> tuple[object, ...]:
    return (wait.group, wait.seq) if wait.seq is not None else (wait.group, wait.rank, wait.op)


def _of_parting(picture: RunView, parting: Mismatch) -> Found:
    sides = parting.sides
    numbers = parting.odd or tuple(s.rank for s in sides)
    # The same line called with another root or reduction is a fault even where only two ranks are compared, and neither is in the majority.
    same_line_differs = "=" in sides[0].says and len({s.place for s in sides}) == 1
    sure = parting.by == "pairs" or (parting.whole and (parting.odd or parting.by == "sums" or same_line_differs))
    kinds = list(dict.fromkeys(s.says for s in sides))
    first_odd = parting.side(numbers[0])
    rest = next(s for s in sides if s.says != first_odd.says)
    sums, places = NOTHING, set[str]()
    if parting.by == "sums":
        odd_first = sorted(kinds, key=lambda kind: kind != first_odd.says)
        sums = words.joined(words.sums(kind, [s.rank for s in sides if s.says == kind]) for kind in odd_first[:3])
        places = {picture.place(s.place) for s in sides if s.place is not None}
    return Found(
        "message-size" if parting.kind == "p2p-size" else "sums" if parting.by == "sums" else "mismatch",
        standing="established" if sure else "likely",
        ranks=numbers,
        where=_where(picture, parting, first_odd),
        remedies=advice(first_odd.says, rest.says, kind=parting.kind, one_line=not other_line(first_odd.place, rest.place)),
        picture=picture,
        parting=parting,
        sent=_sized(picture, sides[0]) if parting.kind == "p2p-size" else None,
        got=_sized(picture, sides[1]) if parting.kind == "p2p-size" else None,
        sums=sums,
        at=places.pop() if len(places) == 1 else None,
        one=_did(picture, parting, first_odd),
        other=_did(picture, parting, rest),
        edited=words.edited(parting.kind, parting.edit),
        known=parting.by if parting.by in ("majority", "history") else "two" if len(sides) == 2 else "astray",
        agree=len(sides) - len(parting.odd),
        total=len(sides),
        rare=next((s.place for s in sides if s.rank in parting.rare and s.place is not None), None),
        slipped=_slipped(picture, parting.slipped),
        each=[_shown(picture, next(s for s in sides if s.says == key)) for key in kinds[:3]],
    )


def _sized(picture: RunView, side: MismatchSide) -> Text:
    at = msg(" at {at}", at=picture.place(side.place)) if side.place is not None else NOTHING
    return msg("{what} (rank {rank}{at})", what=words.sized(side.says), rank=side.rank, at=at)


def _where(picture: RunView, parting: Mismatch, shown: MismatchSide) -> str | None:
    """The line to look at; None where the ranks stand at several and nothing tells which was meant."""
    if parting.slipped is not None and (earlier := user_frame(parting.slipped[0].frames)) is not None:
        return picture.place(earlier)
    if shown.place is None or (not parting.odd and any(other_line(shown.place, s.place) for s in parting.sides)):
        return None
    return picture.place(shown.place)


def _slipped(picture: RunView, calls: tuple[Call, Call] | None) -> Text:
    lines = [user_frame(c.frames) for c in calls or ()]
    here, there = (picture.place(line) for line in lines if line is not None) if calls and all(lines) else ("", "")
    return words.THEN + words.slipped(calls[0].seq, here, there) if calls and here else NOTHING


def _did(picture: RunView, parting: Mismatch, side: MismatchSide) -> list[Issued]:
    given = " ".join(word for word in side.says.split(" ") if "=" in word)
    call = (words.call(side.call) if side.call is not None else side.op) + (f" ({given})" if given else "")
    ranks = [s.rank for s in parting.sides if s.says == side.says]
    return [(ranks, words.worded_call(call), picture.place(side.place) if side.place is not None else None)]


def _shown(picture: RunView, side: MismatchSide) -> tuple[MismatchSide, str, Text | str]:
    record = picture.rank(side.rank).record
    source = record.flight if side.call is not None else record.stacks
    return side, source or picture.incident_source, words.call(side.call) if side.call is not None else side.op


_ADVICE = {
    "op": "same-order",
    "shape": "same-size",
    "dtype": "same-dtype",
    "splits": "fitting-splits",
    "root": "same-root",
    "reduction": "same-reduction",
}


def advice(one: str, other: str, *, kind: Kind, one_line: bool = True) -> tuple[str, ...]:
    """A remedy for each thing in which two calls differ, by what was compared of them; at two lines each may be a call of its own."""
    from unhang.flight import operations

    if kind == "p2p-size":
        one, other = (f"message {call.partition(' ')[2]}" for call in (one, other))
    differ = ("op",) if kind in ("order", "extra", "lacking") else operations.differences(one, other)
    return _advised((*(() if one_line else ("op",)), *differ))


def _advised(differ: Sequence[str]) -> tuple[str, ...]:
    """torch's own check compares neither roots, reductions nor splits."""
    checked = ("check-each-call",) if {"op", "shape", "dtype"} & {*differ} else ()
    return (*dict.fromkeys(_ADVICE[what] for what in differ), *checked)


def _of_crash(picture: RunView, crash: Crash) -> Found:
    each = msg("rank {n} at {at}")
    stood = [each.fill(n=n, at=picture.place(f)) for n, f in sorted(crash.lines.items(), key=lambda at: at[0] not in crash.odd)]
    # At another line it may be a call of its own; what differs does in any case.
    differ = [*crash.differs, *(("op",) if crash.lines_differ else ())]
    return Found(
        "crash-of-odd" if crash.odd else "crash",
        standing="established" if crash.certain else "likely",
        ranks=crash.odd or crash.involved,
        where=picture.place(crash.place) if crash.place is not None else None,
        evidence=(*crash.hits[:1], *crash.evidence),
        remedies=_advised(differ if crash.odd else sorted(differ, key=lambda what: what != "op")),
        picture=picture,
        crash=crash,
        thing="-".join(crash.differs),
        others=len(crash.involved) - len(crash.odd),
        call=words.call(crash.call) if crash.call is not None and (crash.odd or crash.certain) else None,
        stood=words.joined(stood[:2], msg(", ", "collective_mismatch")) if crash.lines_differ else None,
        two=len(crash.involved) == 2,
        slipped=_slipped(picture, crash.slip),
        received=crash.received or None,
    )


def _of_sides(found: Sequence[fingerprints.Side], world_size: int, places: Mapping[int, str]) -> Found:
    """`places` are the lines of the ranks that raised."""
    astray = fingerprints.odd(found, world_size)
    first, rest = (astray[0], found[0]) if astray else (found[0], found[1])
    at = {s.fingerprint.call: list(dict.fromkeys(places[r] for r in s.ranks if r in places)) for s in found}
    lines_differ = len({p for of_side in at.values() for p in of_side}) > 1

    def did(side: fingerprints.Side) -> Issued:
        return side.ranks, words.worded_call(side.fingerprint.says), next(iter(at[side.fingerprint.call]), None) if lines_differ else None

    return Found(
        "fingerprints",
        ranks=sorted(r for s in astray or found for r in s.ranks),
        hosts=[h for s in astray or found for h in s.hits],
        where=next(iter(at[first.fingerprint.call]), None) if astray or not lines_differ else None,
        evidence=[s.hits[0] for s in (first, *(s for s in found if s is not first)) if s.hits][:2],
        remedies=_of_kind(first.fingerprint, rest.fingerprint),
        one=[did(first)],
        others=[did(s) for s in (rest, *(s for s in found[1:3] if s not in (first, rest)))],
        seq=first.fingerprint.seq,
        agree=len(found[0].ranks) if astray else None,
        total=world_size,
    )


def _of_kind(one: Fingerprint, other: Fingerprint) -> tuple[str, ...]:
    if one.op != other.op:
        return ("same-order",)
    return ("same-size", "same-order") if one.shape != other.shape else ("same-dtype", "same-order")


def _named(hits: Sequence[Hit]) -> tuple[int, ...]:
    return tuple(sorted({int(h.groups[k]) for h in hits for k in ("one", "other")}))


def _worth(hits: Sequence[Hit]) -> Standing:
    """Only where more than the sequence numbers differ did the calls differ: SGLang's side processes alone make those differ."""
    first = hits[0].groups
    if "mine" not in first or "theirs" not in first:
        return "established"
    mine, theirs = (_SEQUENCE.sub("", first[k]).rstrip(").") for k in ("mine", "theirs"))
    # Up to torch 2.0 the other side's fingerprint is cut off behind its operation.
    return "likely" if mine == theirs or (mine.startswith(theirs) and "TensorShape" in theirs) else "established"


def _of_refused(hits: Sequence[Hit], seen: LogView | RunView) -> Found:
    """unhang's own collectives ask what all want before anything is sent; the error names who differs."""
    odd = unhang_errors.numbers(hits[0].groups.get("odd"))
    return unhang_errors.found("refused", hits, seen, ranks=odd or unhang_errors.raisers(hits), said=hits[0].groups["sides"].strip(), odd=odd)


def in_logs(view: LogView) -> Answer:
    hits = view.hits_of(CAUSE.id)
    if refused := [h for h in hits if h.signature == _REFUSED]:
        return _of_refused(refused, view)
    if not any("GATHER" in t.op for t in view.timeouts):
        hits = tuple(h for h in hits if h.signature != _TRACE)
    if checked := [h for h in hits if "other" in h.groups]:
        return _of_check(checked, view)
    if found := parted(view):
        return _of_parted(found)
    if desync := [h for h in hits if h.signature == _DESYNC]:
        return CAUSE.of_hits(desync, view, Found("desync", said=desync[0].groups))
    if established := [h for h in hits if h.signature.standing == "established"]:
        return _of_said(established, view)
    return CAUSE.of_hits(hits, view) or _of_places(view)


def _of_places(view: LogView) -> Found | None:
    """Ranks that gave up in different calls at different lines. With groups beside the first one each may have waited for a third rank."""
    where = stood(view)
    if rank_0_apart(view) is not None:
        return None
    sides: dict[tuple[str, str, int], list[GaveUpIn]] = {}
    for s in where:
        sides.setdefault((s.call, s.frame.file, s.frame.line), []).append(s)
    if len({s.call for s in where}) < 2 or not any(h.rank is not None for h in view.hits_of("collective-timeout")):
        return None
    shown = list(sides.values())[:3]
    return Found(
        "different-calls",
        standing="likely" if view.world_size == len(where) else "possible",
        ranks=[s.rank for s in where],
        evidence=[s[0].back for s in shown],
        sides=[([t.rank for t in s], s[0].call, place(s[0].frame, "")) for s in shown],
    )


def _of_check(hits: Sequence[Hit], view: LogView) -> Found | None:
    if sides := fingerprints.sides(hits):
        return _of_sides(sides, view.world_size or _least_size(sides, view), _places(hits, view))
    numbers, standing = _named(hits), _worth(hits)
    differ = next((d.strip() for h in hits if (d := h.groups.get("differ"))), "")
    found = CAUSE.of_hits(hits, view)
    if found is None:
        return None
    return Found(
        "check",
        standing=standing,
        ranks=numbers,
        hosts=found.hosts,
        where=found.where,
        evidence=found.evidence,
        differ=differ,
        counts=standing != "established",
    )


def _least_size(found: Sequence[fingerprints.Side], view: LogView) -> int:
    """Where nothing tells the size of the job, it has at least the ranks below the highest that is named."""
    return max({*view.printed, *(r for s in found for r in s.ranks)}) + 1


def _places(hits: Sequence[Hit], view: LogView) -> dict[int, str]:
    """The user's line of each rank that raised what the check found."""
    found: dict[int, str] = {}
    for h in hits:
        back = view.traceback_of(h)
        frame = user_frame(back.frames) if back is not None else None
        if frame is not None:
            found.setdefault(int(h.groups["one"]) if h.rank is None else h.rank, place(frame, ""))
    return found


def _of_parted(found: Parted) -> Found:
    """Two lines prove it where both name the group; else the number may be that of two groups."""
    sides = found.sides
    odd = ranks_of(t for s in sides[1:] for t in s) if len(sides[0]) > sum(len(s) for s in sides[1:]) else ranks_of(t for s in sides for t in s)
    return Found(
        "parted",
        standing="established" if found.group is not None else "likely" if found.seq >= _SELDOM_MET else "possible",
        ranks=odd,
        evidence=[s[0].at for s in sides[:3]],
        remedies=("same-size" if len({s[0].op for s in sides}) == 1 else "same-order", "check-each-call"),
        found=found,
        sides=[(ranks_of(s), collective(s[0])) for s in sides[:3]],
        unclear=len(sides[0]) <= len(sides[1]),
    )


def _of_said(hits: Sequence[Hit], view: LogView) -> Finding | None:
    found = CAUSE.of_hits(hits, view)
    if found is not None and hits[0].signature == SIZE_MISMATCH:
        # Tracebacks are those of the survivors: where they agree, it is the line of the innocent, most likely.
        return replace(words.continued(found, ended_of(view)), where=_where_lost(view, agreed=False))
    return found if found is None or found.where is not None else replace(found, where=_where_lost(view))


def _where_lost(view: LogView, *, agreed: bool = True) -> str | None:
    """The user's line in which ranks lost the peer that the mismatch ended: the one that they agree on, or of many the one that stands alone."""
    lost = {(h.source, h.line) for cause in ("peer-lost", "collective-timeout") for h in view.hits_of(cause)}
    frames = [user_frame(t.frames) for t in view.tracebacks if (t.source, t.end) in lost]
    places = Counter(place(f, "") for f in frames if f is not None and is_user_file(f.file))
    if len(places) < 2:
        return next(iter(places), None) if agreed else None
    alone = [p for p, n in places.items() if n == 1]
    return alone[0] if len(alone) == 1 and len(places) == 2 and sum(places.values()) > 2 else None
