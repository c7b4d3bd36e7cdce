"""What frames add where the calls of ranks part: whose line issued something else before, who stands at a line that is hardly ever reached.

Columns have no frames: the few ranks that parted are looked at again in objects.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from unhang.flight import operations
from unhang.flight.entries import pending_of
from unhang.flight.outcome import Kind, Outcome
from unhang.flight.voting import Edit
from unhang.frames import Frame, other_line, user_frame
from unhang.model import frozen
from unhang.user_files import is_user_file

if TYPE_CHECKING:
    from unhang.flight import Call, Flight

DIFFERENT: tuple[Kind, ...] = ("op", "shape", "dtype", "order", "extra", "lacking", "p2p-size")
Place = tuple[str, int]
# Of so many calls that a line makes one after another.
_MOST_SLIPPED = 3
# A line is the usual one when it was reached this often, and another one so many times less.
_HABIT = 3
_RARELY = 10


@frozen
class MismatchSide:
    """What one rank issued at the place where the ranks parted, `says` what of it was compared; `call` is None where only its stack tells."""

    rank: int
    op: str
    says: str
    call: Call | None
    frames: tuple[Frame, ...]
    waiting: bool

    @property
    def place(self) -> Frame | None:
        return user_frame(self.frames)


@frozen
class Mismatch:
    """Ranks of one group issued different calls at one sequence number, or two ranks halves of a message that do not fit.

    `odd` are the ranks that did what was not meant, () where that cannot be told; `by` is how that is known. `rare` are the ranks at a line that was
    hardly ever reached before, while the others stand at one that all came to again and again: seen, and no blame. The rank at the new line may be
    the one that rightly went on, and the other one may have had a batch too many. `whole`: no member of the group is without its call here.
    `slipped`: earlier calls of an odd rank and another one, alike but from two lines, since which their calls are shifted against each other.
    """

    group: str | None
    seq: int | None
    sides: tuple[MismatchSide, ...]
    odd: tuple[int, ...]
    by: Literal["majority", "history", "sums", "pairs", "nothing"]
    rare: tuple[int, ...] = ()
    kind: Kind = "op"
    edit: Edit | None = None
    whole: bool = False
    slipped: tuple[Call, Call] | None = None

    def side(self, rank: int) -> MismatchSide:
        return next(s for s in self.sides if s.rank == rank)


def key_of(call: Call) -> tuple[object, ...]:
    """What has to be equal on all ranks."""
    return (operations.of(call),)


def parting_of(outcome: Outcome, dumps: Mapping[int, Flight]) -> Mismatch | None:
    """The outcome with the calls themselves; None where it is none of calls that differ, or one of these is in no dump."""
    o = outcome
    if o.kind not in DIFFERENT or not o.sides or o.number is None:
        return None
    sides = []
    for s in o.sides:
        for rank in s.ranks:
            if o.kind == "p2p-size":
                found = pending_of(dumps.get(rank), o.group_name, s.number, is_p2p=True, kind=s.call.split(" ")[0])
            else:
                found = call_at(dumps.get(rank), o.group_name, o.number)
            if found is None:
                return None
            sides.append(MismatchSide(rank=rank, op=found.op, says=s.call, call=found, frames=found.frames, waiting=not found.done))
    sides = sides if o.kind == "p2p-size" else sorted(sides, key=lambda s: s.rank)
    parting = Mismatch(
        group=o.group_name,
        seq=None if o.kind == "p2p-size" else o.number,
        sides=tuple(sides),
        odd=o.ranks if o.by == "majority" and len(o.ranks) < len(sides) else (),
        by=o.by,
        kind=o.kind,
        edit=o.edit,
        whole=o.known and not (o.unseen or o.ahead),
    )
    if parting.odd:
        usual = next(s.rank for s in parting.sides if s.rank not in parting.odd)
        return replace(parting, slipped=slipped_of(o.group_name, dumps[parting.odd[0]], dumps[usual], until=o.number))
    if o.by != "nothing" or o.kind == "p2p-size":
        return parting
    history = {r: _by_number(o.group_name, f) for r, f in dumps.items()}
    if changed := _unlike_before(parting.sides, history, o.number):
        return replace(parting, odd=changed, by="history")
    return replace(parting, rare=_at_unusual_line(parting.sides, history, o.number))


def slipped_of(group: str, odd: Flight | None, usual: Flight | None, *, until: int) -> tuple[Call, Call] | None:
    """The calls of both ranks at the number that `slipped` finds."""
    if odd is None or usual is None:
        return None
    theirs, ours = (_by_number(group, flight) for flight in (odd, usual))
    number = slipped(*({n: user_frame(c.frames) for n, c in calls.items()} for calls in (theirs, ours)), until=until)
    return None if number is None else (theirs[number], ours[number])


def slipped(theirs: Mapping[int, Frame | None], ours: Mapping[int, Frame | None], *, until: int) -> int | None:
    """The first number from which on the lines of two ranks are shifted by a few calls against each other, up to `until`; None without any.

    Equal calls hide it: the ranks part in a call only where these differ. Lines that met before (`if` and `else` with a call each) count as equal.
    """
    habits = set[tuple[Place, Place]]()

    def fits(n: int, m: int) -> bool:
        a, b = _place(theirs.get(n)), _place(ours.get(m))
        return a is not None and b is not None and (a == b or (a, b) in habits)

    for n in sorted(n for n in theirs.keys() & ours.keys() if n < until):
        a, b = _place(theirs[n]), _place(ours[n])
        if a is None or b is None or a == b or (a, b) in habits:
            continue
        for by in range(1, min(_MOST_SLIPPED, until - n) + 1):
            behind = range(n, until - by + 1)
            if all(fits(m + by, m) for m in behind) or all(fits(m, m + by) for m in behind):
                return n
        habits.add((a, b))
    return None


def _place(frame: Frame | None) -> Place | None:
    return None if frame is None else (frame.file, frame.line)


def call_at(flight: Flight | None, group: str, number: int) -> Call | None:
    """A rank's call with this number; those that were launched together are one, named by all of them."""
    return _by_number(group, flight, only=number).get(number) if flight is not None else None


def _by_number(group: str, flight: Flight, *, only: int | None = None) -> dict[int, Call]:
    """The collectives of a group."""
    parts: dict[int, list[Call]] = {}
    for call in flight.calls.get(group, ()):
        if not call.is_p2p and only in (None, call.seq):
            parts.setdefault(call.seq, []).append(call)
    return {seq: calls[0] if len(calls) == 1 else _together(calls) for seq, calls in parts.items()}


def _together(calls: Sequence[Call]) -> Call:
    op = "+".join(operations.of(c) for c in calls)
    return replace(calls[0], op=op, input_sizes=(), output_sizes=(), dtypes=())


def _unlike_before(sides: Sequence[MismatchSide], history: Mapping[int, Mapping[int, Call]], seq: int) -> tuple[int, ...]:
    """The ranks whose line issued something else before; () unless the others did as their lines always did."""
    unusual = tuple(s.rank for s in sides if s.call is not None and _differs_from_history(s.call, history, seq))
    usual = tuple(s.rank for s in sides if s.call is not None and key_of(s.call) in _before(s.call, history, seq))
    return unusual if usual and len(unusual) + len(usual) == len(sides) else ()


def _at_unusual_line(sides: Sequence[MismatchSide], history: Mapping[int, Mapping[int, Call]], seq: int) -> tuple[int, ...]:
    """The ranks at a line that was hardly ever reached before, while the others are at the line that all ranks were at again and again."""
    if any(s.place is None for s in sides):
        return ()
    usual = max(sides, key=lambda s: min(_times(s.place, history, seq)))
    odd = tuple(s.rank for s in sides if _is_habit(usual.place, s.place, history, seq))
    return odd if all(s.rank in odd or not other_line(s.place, usual.place) for s in sides) else ()


def _is_habit(line: Frame | None, other: Frame | None, history: Mapping[int, Mapping[int, Call]], seq: int) -> bool:
    """Whether every rank reached `line` again and again before, and none of them `other` more than now and then."""
    often = min(_times(line, history, seq))
    return often >= _HABIT and max(_times(other, history, seq)) * _RARELY <= often


def _times(line: Frame | None, history: Mapping[int, Mapping[int, Call]], seq: int) -> list[int]:
    """How often each rank was at a line before."""
    if line is None or not history:
        return [0]
    at = (line.file, line.line)
    return [
        sum(1 for s, c in calls.items() if s < seq and (u := user_frame(c.frames)) is not None and (u.file, u.line) == at)
        for calls in history.values()
    ]


def _before(call: Call, history: Mapping[int, Mapping[int, Call]], seq: int) -> set[tuple[object, ...]]:
    """What the line of this call issued at earlier sequence numbers, on any rank."""
    way = way_to(call.frames)
    return {key_of(c) for calls in history.values() for s, c in calls.items() if s < seq and way and way_to(c.frames) == way}


def way_to(frames: Sequence[Frame]) -> tuple[Place, ...]:
    """The user's lines that led to a call, outermost first: a function that is called from two places may well issue different calls."""
    own = tuple((f.file, f.line) for f in frames if is_user_file(f.file))
    return own or ((line.file, line.line),) if (line := user_frame(frames)) is not None else ()


def _differs_from_history(call: Call, history: Mapping[int, Mapping[int, Call]], seq: int) -> bool:
    before = _before(call, history, seq)
    return len(before) == 1 and key_of(call) not in before
