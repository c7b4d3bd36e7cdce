"""What stacks in logs tell where no cause speaks: where everybody stands."""

from __future__ import annotations

from collections.abc import Sequence

from unhang.diagnosis.remains import SUPERVISE, TRANSPORT, WAITING
from unhang.frames import place
from unhang.knowledge import collective_waits
from unhang.knowledge.cause import LogView
from unhang.knowledge.text import Text, joined, msg, possible, ranks
from unhang.logs.log_facts import Stack
from unhang.model import Finding

_SHOWN = 4
_MISMATCHED = ("collective-mismatch", "rank0-guarded-collective")


def standing_in_stacks(view: LogView) -> Finding | None:
    """Where the processes stand, and no blame: all in one collective, in several, or in none. None without stacks near the ends of their logs."""
    shown = collective_waits.recent(view)
    if not shown:
        return None
    found = collective_waits.scene(view)
    alone = [s for s in shown if not collective_waits.op_of(s)]
    nobodys = _of_nobody([s for s in shown if s.rank is None and collective_waits.op_of(s)])
    if len(found.inside) == 1 and not (alone or nobodys):
        op, frame, stacks = found.inside[0]
        numbers = [s.rank for s in stacks if s.rank is not None]
        where = op if frame is None else f"{op} ({place(frame, '')})"
        says = msg("{who} stand in {op}", who=ranks(numbers), op=where)
        if len(numbers) == 1:
            says = msg("{who} stands in {op}", who=ranks(numbers), op=where)
        unseen = sorted(set(range(view.world_size)) - set(numbers)) if view.world_size is not None else []
        if len(numbers) == 1 and view.world_size is None:
            says += msg("; of no other rank there is a stack") + possible(WAITING)
        elif unseen:
            says += msg("; of {who} there is no stack", who=ranks(unseen)) + possible(WAITING)
        else:
            says += msg("; by these stacks nobody is missing") + possible((*TRANSPORT, *WAITING[:1]))
    elif len(found.inside) > 1 and not (alone or nobodys):
        says = collective_waits.within(found) + msg("; whether these belong to one group is not in the stacks") + possible(_MISMATCHED)
    else:
        says = joined((collective_waits.stands(s) for s in alone[:_SHOWN]), msg(", ", "stack_summary"))
        if len(alone) > _SHOWN:
            says += msg(", and {n} more", n=len(alone) - _SHOWN)
        inside = [t for t in (collective_waits.within(found), *nobodys) if t]
        says = joined(t for t in (says, *inside) if t)
        if not inside:
            says += msg(", and none of them is in a collective")
        says += msg("; whether they stay there is not in evidence")
    return Finding(
        cause="unknown",
        standing="not-established",
        says=says,
        ranks=tuple(sorted({s.rank for s in shown if s.rank is not None})),
        evidence=collective_waits.evidence(shown[:_SHOWN]),
        remedies=(SUPERVISE,),
    )


def _of_nobody(stacks: Sequence[Stack]) -> list[Text]:
    """ "2 stacks of ranks that are not told are in all_reduce": they may be of one process, seen twice."""
    counts: dict[str, int] = {}
    for stack in stacks:
        op = collective_waits.op_of(stack)
        counts[op] = counts.get(op, 0) + 1
    return [
        msg("{n} whose rank is not told {are} in {op}", n=f"{n} stack{'' if n == 1 else 's'}", are="is" if n == 1 else "are", zh=n, op=op)
        for op, n in counts.items()
    ]
