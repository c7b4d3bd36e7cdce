"""What the steps of a run were made of, rank by rank, beside how long they took; and the same of an arm."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from unhang.bench.step_times import RankFile, Steps

if TYPE_CHECKING:
    from unhang.bench.records import Run

# Fewer steps that DDP has timed do not stand for a run.
LEAST_TIMED = 5


@dataclass(frozen=True, kw_only=True)
class RankMeasures:
    """Means per step after the warm-up, on one rank, in seconds and joules; the most bytes ever. None is not measured.

    `loader_s`: the thread that trains waits in the iterator of a torch DataLoader. `exposed_s`: communication that computation does not hide, waiting
    for slower ranks included: how much DDP's communication outlasts its backward pass (by torch's own timers), and on the CPU also calls of
    torch.distributed. `compute_s` is the rest of the step, whatever it is. `energy_j` is of the whole GPU.
    """

    rank: int
    loader_s: float | None = None
    exposed_s: float | None = None
    compute_s: float | None = None
    host_bytes: int | None = None
    cuda_bytes: int | None = None
    gpu: str | None = None
    energy_j: float | None = None


def measure(ranks: Sequence[RankFile], steps: Steps, energy_j: Callable[[float, float], Mapping[str, float]]) -> tuple[RankMeasures, ...]:
    """`energy_j` returns that of each GPU, by its PCI address, between two times of CLOCK_MONOTONIC."""
    first, last = steps.dropped, len(steps.times_s)
    of_gpus = energy_j(*(max(one.ends_s[i] for one in ranks) for i in (first, last)))
    return tuple(_of_rank(one, first, last, steps.mean_s, of_gpus.get(one.gpu or "")) for one in ranks)


def _of_rank(one: RankFile, first: int, last: int, mean_s: float, energy_j: float | None) -> RankMeasures:
    loader_s = _gained(one.loader_s, first, last)
    exposed_s = _exposed(one, first, last)
    return RankMeasures(
        rank=one.rank,
        loader_s=loader_s,
        exposed_s=exposed_s,
        compute_s=None if exposed_s is None else max(0.0, mean_s - (loader_s or 0.0) - exposed_s),
        host_bytes=one.host_bytes,
        cuda_bytes=one.cuda_bytes,
        gpu=one.gpu,
        energy_j=None if energy_j is None else energy_j / (last - first),
    )


def _exposed(one: RankFile, first: int, last: int) -> float | None:
    """Seconds per step."""
    if one.torch.get("world size") == "1":
        return 0.0
    # It is read in the step that follows the one that was timed.
    timed = [s for s in one.ddp_s[first + 2 : last + 1] if not math.isnan(s)]
    # With CUDA a call returns at once.
    in_calls_s = _gained(one.calls_s, first, last) if one.torch.get("device") == "cpu" else None
    is_ddp = not all(map(math.isnan, one.ddp_s))
    if (is_ddp and len(timed) < LEAST_TIMED) or (in_calls_s is None and not is_ddp):
        return None
    return (statistics.fmean(timed) if is_ddp else 0.0) + (in_calls_s or 0.0)


def _gained(so_far_s: Sequence[float], first: int, last: int) -> float | None:
    """Per step, of what grows from step to step."""
    # Nothing was spent before the first call.
    gained = (so_far_s[last] - (0.0 if math.isnan(so_far_s[first]) else so_far_s[first])) / (last - first)
    return None if math.isnan(gained) else gained


_PARTS = ("loader_s", "exposed_s", "compute_s")
# How the ranks of a run are put together: the mean of all ranks, the one with the most, or each GPU once.
_OF_RANKS: Mapping[str, Callable[[Iterable[Any]], float]] = {
    "loader_s": statistics.fmean,
    "exposed_s": statistics.fmean,
    "compute_s": statistics.fmean,
    "host_bytes": max,
    "cuda_bytes": max,
    "energy_j": math.fsum,
}


def summarize(runs: Sequence[Run]) -> dict[str, float | None]:
    """Of an arm, by the names of RankMeasures: medians over its runs, of times means, which add up. None if a rank was not measured."""
    found: dict[str, float | None] = {}
    for name, together in _OF_RANKS.items():
        # Ranks may share a GPU.
        ranks = [{one.gpu: one for one in run.ranks}.values() if name == "energy_j" else run.ranks for run in runs]
        each = [[getattr(one, name) for one in of_run] for of_run in ranks]
        is_whole = each and all(values and None not in values for values in each)
        over_runs = statistics.fmean if name in _PARTS else statistics.median
        found[name] = over_runs(map(together, each)) if is_whole else None
    return found
