"""The step times of one run, from the files that each rank wrote (attach/step_times), and what the steps were made of, rank by rank."""

from __future__ import annotations

import contextlib
import itertools
import math
import statistics
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import Any

import msgspec

from unhang.model import frozen

# The warm-up ends at the first of so many steps in a row whose median is usual in the second half of the run.
WINDOW = 5
# In robust standard deviations (1.4826 times the median absolute deviation).
USUAL = 2.0
# Few and long, so that most blocks contain a pause that comes every twenty steps.
BLOCKS = 5
LEAST_STEPS = 10


@frozen
class RankFile:
    """What one rank wrote at its first step, and of each step: when it ended (CLOCK_MONOTONIC, in seconds), the seconds that the rank had waited for
    its loader and been in calls of torch.distributed by then, and by how much DDP's communication outlasted its backward pass in one earlier step.
    These are NaN where there is nothing to tell. `gpu` is a PCI address; `host_bytes` and `cuda_bytes` are the most that it ever had.
    """

    rank: int
    argv: tuple[str, ...]
    started_with: dict[str, str]
    variables: dict[str, str]
    torch: dict[str, str]
    pid: int = 0
    gpu: str | None = None
    observed: Mapping[str, str] = field(default_factory=dict)
    ends_s: tuple[float, ...] = ()
    loader_s: tuple[float, ...] = ()
    calls_s: tuple[float, ...] = ()
    ddp_s: tuple[float, ...] = ()
    host_bytes: int | None = None
    cuda_bytes: int | None = None


@frozen
class Steps:
    """Durations in seconds. `typical_s` is what arms are compared by; `dropped` counts the steps of the warm-up.

    Not `is_steady`: the second half was not alike, or no step of the first half was as it is. All of the first half is dropped.
    """

    times_s: tuple[float, ...]
    dropped: int
    is_steady: bool
    typical_s: float
    mean_s: float
    median_s: float
    p95_s: float


def read(directory: Path, arguments: Mapping[int, tuple[str, ...]] | None = None) -> tuple[RankFile, ...]:
    """All ranks of a run, by rank, with their `arguments`. What a rank that was killed left half written is left out."""
    found = []
    for path in directory.glob("*.json"):
        try:
            told: dict[str, Any] = msgspec.json.decode(path.read_bytes())
            data = path.with_suffix(".times").read_bytes()
            steps = zip(*struct.iter_unpack("=4d", data[: len(data) // 32 * 32]), strict=True)
            of_steps = dict(zip(("ends_s", "loader_s", "calls_s", "ddp_s"), steps, strict=False))
            peak: dict[str, Any] = {}
            with contextlib.suppress(OSError, msgspec.DecodeError):  # a rank that was killed at its last step
                peak = msgspec.json.decode(path.with_suffix(".peak").read_bytes())
            told |= {"argv": (arguments or {}).get(told["rank"], ())}
            found.append(msgspec.convert({**told, **peak, **of_steps, "pid": int(path.stem)}, RankFile))
        except (OSError, ValueError, KeyError):
            continue
    return tuple(sorted(found, key=lambda one: one.rank))


def durations(ranks: Sequence[RankFile]) -> tuple[float, ...]:
    """Seconds from the end of each step to the end of the next. A step has ended when its slowest rank has ended it."""
    ends = [max(of_ranks) for of_ranks in zip(*(one.ends_s for one in ranks), strict=False)]
    return tuple(after - before for before, after in itertools.pairwise(ends))


def summarize(times_s: Sequence[float]) -> Steps | None:
    """None where fewer than LEAST_STEPS are left without the warm-up."""
    dropped, is_steady = warmup(times_s)
    steady = times_s[dropped:]
    if len(steady) < LEAST_STEPS:
        return None
    # A median of single steps would miss what happens every tenth step; a mean, what happened once.
    count = min(BLOCKS, len(steady))
    edges = [len(steady) * i // count for i in range(count + 1)]
    blocks = [statistics.fmean(steady[a:b]) for a, b in itertools.pairwise(edges)]
    return Steps(
        times_s=tuple(round(t, 7) for t in times_s),
        dropped=dropped,
        is_steady=is_steady,
        typical_s=statistics.median(blocks),
        mean_s=statistics.fmean(steady),
        median_s=statistics.median(steady),
        p95_s=statistics.quantiles(steady, n=20, method="inclusive")[-1],
    )


def warmup(times_s: Sequence[float]) -> tuple[int, bool]:
    """How many steps to drop, and whether the rhythm was steady before the second half, and in it."""
    half = len(times_s) // 2
    second = times_s[half:]
    if len(second) < WINDOW:
        return half, False
    usual = statistics.median(second)
    # Very regular steps have almost no spread: changes below a thousandth are ignored.
    sigma = max(1.4826 * statistics.median(abs(t - usual) for t in second), usual / 1000)
    middle = len(second) // 2
    # Three standard errors of a difference of two medians of normal values.
    if abs(statistics.median(second[:middle]) - statistics.median(second[middle:])) > 3 * 1.25 * sigma * math.sqrt(2 / middle):
        return half, False
    for i in range(half):
        window = times_s[i : i + WINDOW]
        if abs(statistics.median(window) - usual) <= USUAL * sigma:
            # A slow step does not hide before the usual ones that follow it.
            return i + next((j for j, t in enumerate(window) if abs(t - usual) <= USUAL * sigma), 0), True
    return half, False


# Fewer steps that DDP has timed do not stand for a run.
LEAST_TIMED = 5


@frozen
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
