"""Why arms are as fast as they are: sentences made only of what was measured and recorded in their runs; what was not measured is left out."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from unhang.bench.arms import Arm
from unhang.bench.comparison import Comparison
from unhang.bench.effective_settings import OBSERVED, UNKNOWN
from unhang.bench.records import Run
from unhang.i18n import COMMA, NOTHING, Text, joined, msg, texts

_PARTS = texts("bench-parts")


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


def explain(arms: Sequence[Arm], runs: Sequence[Run], comparisons: Sequence[Comparison]) -> Iterator[Text]:
    """Sentences for a result: transports and topology, what a step is made of, and where the difference of an arm lies."""
    by_arm = {arm.name: own for arm in arms if (own := [run for run in runs if run.arm == arm.name])}
    if len(by_arm) < 2 or arms[0].name not in by_arm:
        return
    for name in sorted(OBSERVED):
        values = {arm: own[0].in_force.get(name, UNKNOWN) for arm, own in by_arm.items()}
        if set(values.values()) != {UNKNOWN}:
            yield msg("{name}: {values}", name=name, values=_by_arm(values))
    links = {one for own in by_arm.values() for one in own[0].gpu_links}
    if links:
        yield msg("the GPUs of this host are joined by {links}", links=", ".join(sorted(links)))
    parts = {arm: summarize(own) for arm, own in by_arm.items()}
    steps = {arm: sum(run.steps.mean_s for run in own) / len(own) for arm, own in by_arm.items()}
    first = arms[0].name
    yield from _shares(first, steps[first], parts[first])
    for one in comparisons:
        # Signs of two means and of the verdict may differ where single steps were long.
        if one.outcome in ("faster", "slower") and (steps[one.arm] > steps[first]) == (one.outcome == "slower"):
            pairs = {name: (parts[first][name], parts[one.arm][name]) for name in _PARTS}
            known = {name: _PARTS[name].fill(time=_milliseconds(b - a)) for name, (a, b) in pairs.items() if a is not None and b is not None}
            if "exposed_s" in known:
                step = _milliseconds(steps[one.arm] - steps[first])
                yield msg(
                    "the mean step of {arm} differs from that of {baseline} by {step}: {parts}",
                    arm=one.arm,
                    baseline=first,
                    step=step,
                    parts=joined(known.values(), COMMA),
                )


def _by_arm(values: Mapping[str, str]) -> Text:
    if len(set(values.values())) == 1:
        return msg("{value} in all arms", value=next(iter(values.values())))
    return joined((msg("{value} in {arm}", value=value, arm=arm) for arm, value in values.items()), COMMA)


def _shares(arm: str, step_s: float, parts: Mapping[str, float | None]) -> Iterator[Text]:
    loader_s, exposed_s, rest_s = (parts[name] for name in _PARTS)
    if exposed_s is None or rest_s is None:
        return
    waiting, exposed = (round((value or 0.0) / step_s * 100, 1) for value in (loader_s, exposed_s))
    loader = NOTHING if loader_s is None else msg("{share} waiting for the data loader, ", share=f"{waiting:.1f} %")
    rest = f"{max(0.0, 100 - waiting - exposed):.1f} %"
    yield msg(
        "the mean step of {arm} takes {step}: {loader}{exposed} in communication that computation does not hide, {rest} in the rest; "
        "so a faster transport can shorten a step of {arm} by at most about {exposed}",
        arm=arm,
        step=f"{step_s * 1000:.4g} ms",
        loader=loader,
        exposed=f"{exposed:.1f} %",
        rest=rest,
    )


def _milliseconds(seconds: float) -> str:
    # No minus before nothing.
    return f"{round(seconds * 1000, 2) + 0.0:+.2f} ms"
