"""All numbers of the arms of a comparison, side by side, with their differences from the first arm; and the changes drawn on one scale."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from unhang.bench.arms import Arm
from unhang.bench.comparison import Comparison
from unhang.i18n import Text, msg, same
from unhang.text import size

_WIDEST = 72


def _ms(value: float) -> str:
    return f"{value * 1000:.4g} ms"


# By the names in the JSON: what it is called, and how it is written.
_ROWS: Mapping[str, tuple[Text, Callable[[float], str]]] = {
    "samples_per_s_total": (msg("throughput, all ranks"), lambda v: f"{v:.5g} samples/s"),
    "samples_per_s": (msg("throughput, each rank"), lambda v: f"{v:.5g} samples/s"),
    "steps_per_s": (msg("steps per second"), lambda v: f"{v:.4g}"),
    "mean_s": (msg("mean"), _ms),
    "median_s": (msg("median"), _ms),
    "p95_s": (msg("p95"), _ms),
    "loader_s": (msg("waiting for the loader"), _ms),
    "exposed_s": (msg("communication not hidden"), _ms),
    "compute_s": (msg("the rest (computation)"), _ms),
    "host_bytes": (msg("most host memory of a rank"), lambda v: size(round(v))),
    "cuda_bytes": (msg("most GPU memory of a rank"), lambda v: size(round(v))),
    "energy_j": (msg("energy of the GPUs"), lambda v: f"{v:.4g} J"),
}
_OF_GPUS = ("cuda_bytes", "energy_j")


def rows(arms: Sequence[Arm], found: Sequence[Mapping[str, float | None]], *, on_gpus: bool) -> list[list[Text]]:
    """The heads, and a row for each number; without what only a GPU has if there is none, and without samples if the batch is not known."""
    table = [[msg("per step, of all runs"), *(same(arm.name) for arm in arms)]]
    for name, (title, write) in _ROWS.items():
        values = [numbers.get(name) for numbers in found]
        if any(value is not None for value in values) or not (name.startswith("samples") or (name in _OF_GPUS and not on_gpus)):
            table.append([title, *(_cell(value, values[0], write, is_first=i == 0) for i, value in enumerate(values))])
    return table


def _cell(value: float | None, first: float | None, write: Callable[[float], str], *, is_first: bool) -> Text:
    if value is None:
        return msg("not measured")
    return same(write(value) + (f" ({(value / first - 1) * 100:+.1f} %)" if first and not is_first else ""))


def lines(compared: Sequence[Comparison], margin: float, *, width: int) -> Iterator[str]:
    """Changes of arms with their intervals. Plain ASCII, so that every terminal shows it: * a change, = its interval, : the margin around | none.

    The scale holds all changes, and the intervals where they fit.
    """
    label = max(len(row.arm) for row in compared)
    values = [-margin, margin, *(row.change for row in compared)]
    # An interval of few rounds may be hundreds of times as wide as what was measured.
    room = max(values) - min(values)
    ends = [end for row in compared for end in (row.low, row.high) if end is not None and min(values) - room <= end <= max(values) + room]
    low, high = min(values + ends), max(values + ends)
    columns = max(min(width, _WIDEST) - label - 2, 20)

    def column(value: float) -> int:
        return min(max(round((value - low) / (high - low) * (columns - 1)), 0), columns - 1)

    left, right = f"{low * 100:+.1f} %", f"{high * 100:+.1f} %"
    yield f"{'':{label + 2}}{left}{right:>{columns - len(left)}}"
    for row in compared:
        cells = [" "] * columns
        if row.low is not None or row.high is not None:
            first, last = 0 if row.low is None else column(row.low), columns - 1 if row.high is None else column(row.high)
            cells[first : last + 1] = "=" * (last + 1 - first)
        for at, mark in ((-margin, ":"), (margin, ":"), (0.0, "|"), (row.change, "*")):
            cells[column(at)] = mark
        yield f"{row.arm:>{label}}  {''.join(cells)}".rstrip()
