"""Collectives under an `if` that tests the rank: only some ranks can reach them."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from unhang.frames import Frame, user_frame
from unhang.model import frozen
from unhang.patterns import lazily
from unhang.user_files import is_user_file

if TYPE_CHECKING:
    from unhang.flight import Mismatch, MismatchSide
    from unhang.records.incident_view import IncidentView

_NAMES = lazily(
    r"\b(?:\w*_)?(?:rank|rank_?id|rank_?0|rank_zero\w*|process_index)\b"
    r"|\bis_(?:main|master|chief|local_main|local_master|global_zero|rank_zero|rank_?0|first_rank|world_process_zero|local_process_zero|world_zero)\w*\b"
    r"|\br\b(?=\s*(?:[=!]=|not in\b|in\b))"
    r"|\b(?:main_process|master_process|on_main|on_master)\b",
    re.IGNORECASE,
)
_NEEDS_ALL = ("all_reduce", "allreduce", "all_gather", "allgather", "_allgather_base", "barrier")
# True on every rank of a distributed job, or on none: these select nobody.
_SELECTS_NOBODY = lazily(r"rank\b\)?\s*(?:is(?: not)? None|>=\s*0|>\s*-1|[!=]=\s*-1|<\s*0)")
# Those of the whole job: of a local rank its host would have to be known, and of what else has a rank (a node, a group, a mesh) its members.
_RANK = lazily(
    r"(?:(?:self|args|cfg|opt)\.)*(?:(?:torch\.)?(?:distributed|dist)\.|rank_zero_only\.)?(?:rank|get_rank\(\))|(?:\w+\.)*(?:(?:global|world)_?rank|process_index)",
    re.IGNORECASE,
)
_COMPARED: dict[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.In: lambda a, b: a in b,
    ast.NotIn: lambda a, b: a not in b,
}
_UNKNOWN = object()


@frozen
class Guarded:
    """A frame of a rank's stack, and the test around it that chooses ranks."""

    rank: int
    frame: Frame
    test: str


def tests_rank(guard: str) -> bool:
    """Whether a test chooses some ranks and leaves out others: `rank == 0`, `accelerator.is_main_process`, `local_rank in (-1, 0)`."""
    return any(_NAMES.search(part) and not _SELECTS_NOBODY.search(part) for part in re.split(r"\band\b|\bor\b", guard))


def outcome(test: str, rank: int) -> bool | None:
    """What a test gives on a rank; None where that depends on more than its rank."""
    try:
        return _truth(ast.parse(test.strip(), mode="eval").body, rank)
    except (SyntaxError, ValueError, TypeError, RecursionError):
        return None


def _truth(node: ast.expr, rank: int) -> bool | None:
    if isinstance(node, ast.BoolOp):
        settles = isinstance(node.op, ast.Or)
        parts = [_truth(value, rank) for value in node.values]
        return settles if settles in parts else None if None in parts else not settles
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        inner = _truth(node.operand, rank)
        return None if inner is None else not inner
    if isinstance(node, ast.Compare) and len(node.ops) == 1 and (compare := _COMPARED.get(type(node.ops[0]))) is not None:
        sides = _value(node.left, rank), _value(node.comparators[0], rank)
        return None if _UNKNOWN in sides else bool(compare(*sides))
    value = _value(node, rank)
    return None if value is _UNKNOWN else bool(value)


def _value(node: ast.expr, rank: int) -> Any:
    if _RANK.fullmatch(ast.unparse(node)):
        return rank
    try:
        return ast.literal_eval(node)
    except ValueError:
        return _UNKNOWN


def guarded(picture: IncidentView, rank: int, call_frames: tuple[Frame, ...] = ()) -> Guarded | None:
    """The innermost rank test around the collective that a rank stands in, or, given the frames of a call, around that call.

    The tests were read with the evidence: with the stacks, and with the flight recorders for a rank that has gone on since (NCCL returns at once).
    """
    stack = picture.rank(rank).frames
    tests = {(f.file, f.line): f.guards for f in stack if f.guards} | {(g.file, g.line): g.tests for g in picture.incident.guards}
    for frame in reversed(call_frames or stack):
        if is_user_file(frame.file):
            for test in reversed(tests.get((frame.file, frame.line), ())):
                if tests_rank(test):
                    return Guarded(rank=rank, frame=frame, test=test)
    return None


def guard_of_parting(picture: IncidentView) -> tuple[tuple[int, ...], Guarded, MismatchSide] | None:
    """Where ranks issued different calls: the odd ranks, the guard that explains it, and the side that stands under it."""
    parting = picture.front.parting if picture.front else None
    # Who sends and who receives is chosen by a test of the rank, and one line may bring other sizes.
    if parting is None or parting.by == "sums" or parting.kind == "p2p-size":
        return None
    found = {s.rank: g for s in parting.sides if (g := guarded(picture, s.rank, s.frames if s.call is not None else ())) is not None}
    odd, everybody = set(parting.odd), {s.rank for s in parting.sides}
    under = sorted(odd if odd and odd <= found.keys() else everybody - odd if odd else found)
    if not under or len(under) == len(everybody) or not found.keys() >= set(under):
        return None
    guard = found[under[0]]
    # Two branches of one test are two lines at which ranks may meet; one side of a parting is all under one test, or the test does not explain it.
    if any((found[r].test, found[r].frame.file, found[r].frame.line) != (guard.test, guard.frame.file, guard.frame.line) for r in under):
        return None
    says = {parting.side(r).says for r in under}
    waiting = [r for r in under if parting.side(r).waiting]
    if not waiting or (not odd and (len(says) > 1 or any(s.says in says and s.rank not in under for s in parting.sides))):
        return None
    if parting.by == "history" and not set(under) <= odd:
        # The guarded side did what its line always did: the guard does not explain the other one.
        return None
    beyond = sorted(everybody - set(under))
    if any(outcome(guard.test, r) is True for r in beyond):
        # The test lets them in.
        return None
    if all(_came_before(picture, r, guard.frame, parting.seq) for r in beyond):
        # The others came to this very line before: the test lets them in, and something else keeps them away now.
        return None
    if any(_met_before(picture, under[0], r, guard.frame, parting) for r in beyond):
        return None
    return parting.odd or tuple(waiting), guard, parting.side(waiting[0])


def _met_before(picture: IncidentView, rank: int, other: int, line: Frame, parting: Mismatch) -> bool:
    """Whether ranks have met before in calls that one issued at a guarded line, the other at a line of its own: `if` and `else` with a call each."""
    ours, theirs = (picture.rank(r).flight for r in (rank, other))
    if ours is None or theirs is None or parting.group is None or parting.seq is None:
        return False
    mine, others = ({c.seq: c for c in f.calls.get(parting.group, ()) if not c.is_p2p and c.seq < (parting.seq or 0)} for f in (ours, theirs))
    own = {(f.file, f.line) for c in mine.values() if (f := user_frame(c.frames)) is not None}
    at = (n for n, c in mine.items() if n in others and any((f.file, f.line) == (line.file, line.line) for f in c.frames))
    return any((u := user_frame(others[n].frames)) is not None and (u.file, u.line) not in own for n in at)


def _came_before(picture: IncidentView, rank: int, line: Frame, seq: int | None) -> bool:
    """Whether a rank issued calls from this line before the ranks parted."""
    flight = picture.rank(rank).flight
    if flight is None or seq is None:
        return False
    earlier = (c for calls in flight.calls.values() for c in calls if c.seq < seq)
    return any((f.file, f.line) == (line.file, line.line) for c in earlier for f in c.frames)


def _joined_before(picture: IncidentView, rank: int) -> bool:
    """Whether the others came to the line that a rank waits at before: no rank can finish alone what its group has done there, or later on."""
    wait, flight = picture.waits[rank], picture.rank(rank).flight
    if wait.call is None or wait.seq is None or wait.place is None or flight is None:
        return False
    earlier = [c for c in flight.calls.get(wait.call.group, ()) if c.done and c.seq < wait.seq]
    joined = max((c.seq for c in earlier if c.op.startswith(_NEEDS_ALL)), default=-1)
    places = (user_frame(c.frames) for c in earlier if c.seq <= joined)
    return any(u is not None and (u.file, u.line) == (wait.place.file, wait.place.line) for u in places)


def guard_of_wait(picture: IncidentView) -> Guarded | None:
    """Ranks wait under a rank test for ranks that have all left in order: those could never come."""
    front = picture.front
    if front is None or not front.absent:
        return None
    absent = [picture.rank(r) for r in front.absent]
    if not all(r.ended is not None and r.ended.announced and r.ended.exitcode in (0, None) for r in absent):
        return None
    if any(_joined_before(picture, r) for r in front.waiting):
        # The others came to this very line before: an early exit from the loop, not the test, keeps them away now.
        return None
    found = [guarded(picture, r, w.call.frames if (w := picture.waits[r]).call is not None else ()) for r in front.waiting]
    return found[0] if found and all(found) else None
