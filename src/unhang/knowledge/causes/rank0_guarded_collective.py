"""rank0-guarded-collective: a collective that only some ranks can reach."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unhang.frames import place
from unhang.knowledge import text, words
from unhang.knowledge.cause import LogView, cause
from unhang.knowledge.rank_guards import Guarded, guard_of_parting, guard_of_wait
from unhang.knowledge.text import NOTHING, Text
from unhang.knowledge.watchdogs import GaveUpIn, collective, evidence_of, first_of_each, guard_in, parted, rank_0_apart, ranks_of, silent
from unhang.model import Evidence, Finding

if TYPE_CHECKING:
    from unhang.logs.log_facts import At
    from unhang.records.incident_view import IncidentView


def _in_run(picture: IncidentView) -> Finding | None:
    if (parted := guard_of_parting(picture)) is not None and picture.front is not None and picture.front.parting is not None:
        odd, guard, side = parted
        other = next(s for s in picture.front.parting.sides if s.says != side.says)
        others = [s.rank for s in picture.front.parting.sides if s.says == other.says]
        at = Text(" ({at})", "（{at}）").fill(at=picture.place(other.place)) if other.place else NOTHING
        elsewhere = Text("; {who} issued {op}{at}", "；{who} 发出了 {op}{at}").fill(who=text.ranks(others), op=other.op, at=at)
        under = [s.rank for s in picture.front.parting.sides if s.says == side.says]
        return _finding(picture, odd, under, guard, side.op, elsewhere)
    if (guard_alone := guard_of_wait(picture)) is not None and picture.front is not None:
        waiting = list(picture.front.waiting)
        gone = Text("; {who} left in order without it", "；{who} 没有参加就正常退出").fill(who=text.ranks(picture.front.absent))
        return _finding(picture, tuple(waiting), waiting, guard_alone, picture.waits[waiting[0]].op, gone)
    return None


def _in_logs(view: LogView) -> Finding | None:
    """A test of the rank is in no log. Rank 0 alone in a collective, or in another one than all others, looks like one: likely where lines tell."""
    if (apart := rank_0_apart(view)) is not None:
        return _of_places(*apart)
    if (found := parted(view)) is not None and len(found.sides) == 2:
        alone = next((s for s in found.sides if ranks_of(s) == (0,)), None)
        others = next((s for s in found.sides if 0 not in ranks_of(s)), None)
        if alone is None or others is None or len(others) < 2:
            return None
        told = Text("rank 0 alone gave up {one}, and {who} {other}", "只有 rank 0 放弃了 {one}，而 {who} 放弃的是 {other}").fill(
            one=collective(alone[0]), who=text.ranks(ranks_of(others)), other=collective(others[0])
        )
        places: tuple[At, ...] = (alone[0].at, others[0].at)
    else:
        waited = first_of_each(view)
        missing = silent(view)
        # Of two ranks the silent one may as well be slow or stuck.
        if ranks_of(waited) != (0,) or len(missing) < 2:
            return None
        told = Text("rank 0 alone gave up {one}; {who} printed no timeout", "只有 rank 0 放弃了 {one}；{who} 没有打印超时").fill(
            one=collective(waited[0]), who=text.ranks(missing)
        )
        places = (waited[0].at,)
    return CAUSE.finding(
        standing="possible",
        says=told + _UNDER.fill(test="`if rank == 0`"),
        ranks=(0,),
        evidence=evidence_of(places),
    )


_UNDER = Text(", as happens when a collective stands under {test}", "，集合通信写在 {test} 之下时就会这样")


def _of_places(own: GaveUpIn, others: tuple[GaveUpIn, ...]) -> Finding:
    numbers = [s.rank for s in others]
    guard = guard_in(own)
    test = f"`{guard}`" if guard is not None else "`if rank == 0`"
    return CAUSE.finding(
        standing="likely",
        says=Text(
            "rank 0 alone gave up in {one} at {here}, and {who} in {other} at {there}",
            "只有 rank 0 在 {one} 中放弃（位于 {here}），而 {who} 在 {other} 中放弃（位于 {there}）",
        ).fill(one=own.call, here=place(own.frame, ""), who=text.ranks(numbers), other=others[0].call, there=place(others[0].frame, ""))
        + _UNDER.fill(test=test),
        ranks=(0,),
        where=place(own.frame, ""),
        evidence=tuple(Evidence(source=s.back.source, line=s.back.end, text=s.back.says) for s in (own, others[0])),
    )


def _finding(picture: IncidentView, odd: tuple[int, ...], under: list[int], guard: Guarded, op: str, elsewhere: Text) -> Finding:
    at = picture.place(guard.frame)
    view = picture.rank(guard.rank)
    return CAUSE.finding(
        standing="established",
        says=Text(
            "{who} {are} in {op} at {at}, which only ranks with `{test}` reach{elsewhere}",
            "{who} 在 {op} 中（位于 {at}），只有满足 `{test}` 的 rank 才会到这里{elsewhere}",
        ).fill(who=text.ranks(under), are=words.verb(under, "is", "are"), op=op, at=at, test=guard.test, elsewhere=elsewhere),
        ranks=odd,
        hosts=words.hosts(picture, odd),
        where=at,
        evidence=(
            words.stated(
                view.record.stacks if view.captured and view.record.stacks else picture.incident_source,
                Text("rank {n}: if {test}:  around {frame}", "rank {n}：if {test}:  之下是 {frame}").fill(
                    n=guard.rank, test=guard.test, frame=words.frame(guard.frame)
                ),
            ),
            *words.waiting_evidence(picture),
        ),
    )


CAUSE = cause("rank0-guarded-collective", in_run=_in_run, in_logs=_in_logs)
