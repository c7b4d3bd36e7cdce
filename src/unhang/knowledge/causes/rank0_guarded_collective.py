"""rank0-guarded-collective: a collective that only some ranks can reach."""

from __future__ import annotations

from unhang.frames import place
from unhang.knowledge import words
from unhang.knowledge.judge import Answer, Found, LogView, RunView
from unhang.knowledge.rank_guards import Guarded, guard_of_parting, guard_of_wait
from unhang.knowledge.watchdogs import GaveUpIn, collective, first_of_each, guard_in, rank_0_apart, ranks_of, silent
from unhang.knowledge.words import NOTHING, Text, msg


def in_run(picture: RunView) -> Answer:
    if (parted := guard_of_parting(picture)) is not None and picture.front is not None and picture.front.parting is not None:
        odd, guard, side = parted
        other = next(s for s in picture.front.parting.sides if s.says != side.says)
        others = [s.rank for s in picture.front.parting.sides if s.says == other.says]
        at = msg(" ({at})", at=picture.place(other.place)) if other.place else NOTHING
        elsewhere = msg("; {who} issued {op}{at}", who=words.ranks(others), op=other.op, at=at)
        under = [s.rank for s in picture.front.parting.sides if s.says == side.says]
        return _finding(picture, odd, under, guard, side.op, elsewhere)
    if (guard_alone := guard_of_wait(picture)) is not None and picture.front is not None:
        waiting = list(picture.front.waiting)
        gone = msg("; {who} left in order without it", who=words.ranks(picture.front.absent))
        return _finding(picture, tuple(waiting), waiting, guard_alone, picture.waits[waiting[0]].op, gone)
    return None


def in_logs(view: LogView) -> Answer:
    """A test of the rank is in no log. Rank 0 alone in a collective, or in another one than all others, looks like one: likely where lines tell."""
    if (apart := rank_0_apart(view)) is not None:
        return _of_places(*apart)
    waited = first_of_each(view)
    missing = silent(view)
    # Of two ranks the silent one may as well be slow or stuck.
    if ranks_of(waited) != (0,) or len(missing) < 2:
        return None
    return Found("alone", ranks=(0,), evidence=(waited[0].at,), one=collective(waited[0]), missing=missing)


def _of_places(own: GaveUpIn, others: tuple[GaveUpIn, ...]) -> Found:
    return Found(
        "places",
        ranks=(0,),
        where=place(own.frame, ""),
        evidence=(own.back, others[0].back),
        own=own,
        others=[s.rank for s in others],
        other=others[0],
        there=place(others[0].frame, ""),
        test=guard_in(own) or "if rank == 0",
    )


def _finding(picture: RunView, odd: tuple[int, ...], under: list[int], guard: Guarded, op: str, elsewhere: Text) -> Found:
    view = picture.rank(guard.rank)
    return Found(
        "guarded",
        ranks=odd,
        where=picture.place(guard.frame),
        evidence=words.waiting_evidence(picture),
        picture=picture,
        source=view.record.stacks if view.captured and view.record.stacks else picture.incident_source,
        guard=guard,
        under=under,
        op=op,
        elsewhere=elsewhere,
    )
