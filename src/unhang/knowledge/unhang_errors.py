"""What the errors of unhang's own collectives and evaluations say, as they stand in logs and in what a rank has raised.

Only where they ended a process: a line that begins with the type. An evaluation that failed tells them too, and the training goes on.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from unhang.frames import place, user_frame
from unhang.knowledge.cause import LogView
from unhang.knowledge.judge import Found

if TYPE_CHECKING:
    from unhang.logs import Hit
    from unhang.records.incident_view import IncidentView

_NUMBER = re.compile(r"\d+")


def numbers(said: str | None) -> tuple[int, ...]:
    """The ranks of "0, 1, 2"."""
    return tuple(sorted({int(n) for n in _NUMBER.findall(said or "")}))


def raisers(hits: Sequence[Hit]) -> tuple[int, ...]:
    return tuple(sorted({h.rank for h in hits if h.rank is not None}))


def line_of(hits: Sequence[Hit], seen: LogView | IncidentView) -> str | None:
    """The user's line from which the first of them was raised."""
    for hit in hits:
        if isinstance(seen, LogView):
            back = seen.traceback_of(hit)
            frame = user_frame(back.frames) if back is not None else None
            if frame is not None:
                return place(frame, "")
        elif (found := next((at for r in seen.raised if r.number == hit.rank and (at := seen.where(r)) is not None), None)) is not None:
            return found
    return None


def found(key: str, hits: Sequence[Hit], seen: LogView | IncidentView, *, ranks: Collection[int], where: str | None = None, **values: Any) -> Found:
    """`ranks` are those that it is about; hosts are told only where they are those of such ranks. {line} is where it was raised."""
    line = line_of(hits, seen)
    return Found(
        key,
        ranks=ranks,
        hosts=[h for h in hits if h.rank in ranks],
        where=where or line,
        evidence=list({h.text.strip(): h for h in hits}.values())[:2],
        line=line,
        **values,
    )


def fewest(counts: Mapping[int, int]) -> tuple[int, ...]:
    """Ranks whose count is not that of more than half of them; all where there is no such count."""
    values = list(counts.values())
    most = max(values, key=values.count)
    return tuple(r for r, n in sorted(counts.items()) if n != most) if 2 * values.count(most) > len(values) else tuple(sorted(counts))
