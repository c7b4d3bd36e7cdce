"""What an evaluation found, the same on all ranks, and what of it is missing. What failed is not-a-number, never zero: zero looks like a score."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import field, replace

from unhang.model import frozen


@frozen
class OfDataSet:
    """`metrics` are means over the samples of all ranks, not-a-number where it failed. `partial` are those over what was done before it failed.

    `why` is None where it is complete; `failed_ranks` are those on which it failed or that did not answer. Where nothing was measured it is not
    complete either. `samples`, of the metric that counts most of them; `attempts` 0: it was not reached.
    """

    metrics: Mapping[str, float]
    samples: float
    attempts: int
    batch_size: int
    why: str | None = None
    failed_ranks: tuple[int, ...] = ()
    partial: Mapping[str, float] = field(default_factory=dict)

    @property
    def complete(self) -> bool:
        return self.why is None


@frozen
class Evaluation:
    """By data set, those that were not reached as well; `why`: what ended all of it; `missing`: ranks that did not answer.

    The same on all ranks, the late ones too, but for `seconds`, which is each rank's own.
    """

    step: int | None
    data_sets: Mapping[str, OfDataSet]
    seconds: float
    missing: tuple[int, ...] = ()
    why: str | None = None

    @property
    def ok(self) -> bool:
        """Whether it is complete, on all data sets and all ranks."""
        return self.why is None and all(found.complete for found in self.data_sets.values())

    @property
    def says(self) -> str:
        """Why it is not ok, in one line; empty where it is."""
        said = [f"{name}: {found.why}" for name, found in self.data_sets.items() if found.attempts and found.why not in (None, self.why)]
        left = [name for name, found in self.data_sets.items() if not found.attempts]
        said += [self.why] if self.why is not None and self.why not in said else []
        return "; ".join([*said, *([f"not reached: {', '.join(left)}"] if left else [])])

    @property
    def failed_ranks(self) -> tuple[int, ...]:
        """Those on which any data set failed, or that did not answer."""
        return tuple(sorted({*self.missing, *(rank for found in self.data_sets.values() for rank in found.failed_ranks)}))

    @property
    def attempts(self) -> int:
        return max((found.attempts for found in self.data_sets.values()), default=0)

    def flat(self) -> dict[str, float]:
        """As loggers take it: eval/<data set>/<metric>, eval/evaluation_failed (0 or 1), eval/attempts."""
        found = {f"eval/{name}/{metric}": value for name, one in self.data_sets.items() for metric, value in one.metrics.items()}
        return {**found, "eval/evaluation_failed": 0.0 if self.ok else 1.0, "eval/attempts": float(self.attempts)}


# Names may be as many as evaluations.
_KEPT = 256

# By the ranks that evaluate together, who all know the same, and the data set.
_known: dict[tuple[tuple[int, ...], str], tuple[str, ...]] = {}


def completed(ranks: Sequence[int], found: Mapping[str, OfDataSet]) -> dict[str, OfDataSet]:
    """With the metrics of each data set when it was last complete; of one that never was, those of the others in this evaluation.

    One that fails, or is not reached, is not-a-number by name, and no gap in a plot.
    """
    complete = {name: one for name, one in found.items() if one.complete}
    others = tuple(sorted({metric for one in found.values() for metric in one.metrics}))
    for name, one in complete.items():
        _known.pop((tuple(ranks), name), None)
        _known[tuple(ranks), name] = tuple(one.metrics)
        if len(_known) > _KEPT:
            del _known[next(iter(_known))]
    filled = {}
    for name, one in found.items():
        names = () if one.complete else _known.get((tuple(ranks), name), () if one.metrics else others)
        filled[name] = replace(one, metrics={**dict.fromkeys(names, math.nan), **one.metrics})
    return filled
