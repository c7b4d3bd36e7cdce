"""Changes of arms with their intervals as lines of text on one scale."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from unhang.bench.comparison import Comparison

_WIDEST = 72


def lines(rows: Sequence[Comparison], margin: float, *, width: int) -> Iterator[str]:
    """Plain ASCII, so that every terminal shows it: * a change, = its interval, : the margin around | none.

    The scale holds all changes, and the intervals where they fit.
    """
    label = max(len(row.arm) for row in rows)
    values = [-margin, margin, *(row.change for row in rows)]
    # An interval of few rounds may be hundreds of times as wide as what was measured.
    room = max(values) - min(values)
    ends = [end for row in rows for end in (row.low, row.high) if end is not None and min(values) - room <= end <= max(values) + room]
    low, high = min(values + ends), max(values + ends)
    columns = max(min(width, _WIDEST) - label - 2, 20)

    def column(value: float) -> int:
        return min(max(round((value - low) / (high - low) * (columns - 1)), 0), columns - 1)

    left, right = f"{low * 100:+.1f} %", f"{high * 100:+.1f} %"
    yield f"{'':{label + 2}}{left}{right:>{columns - len(left)}}"
    for row in rows:
        cells = [" "] * columns
        if row.low is not None or row.high is not None:
            first, last = 0 if row.low is None else column(row.low), columns - 1 if row.high is None else column(row.high)
            cells[first : last + 1] = "=" * (last + 1 - first)
        for at, mark in ((-margin, ":"), (margin, ":"), (0.0, "|"), (row.change, "*")):
            cells[column(at)] = mark
        yield f"{row.arm:>{label}}  {''.join(cells)}".rstrip()
