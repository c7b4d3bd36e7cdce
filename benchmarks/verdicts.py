"""How often `unhang bench compare` is wrong, and how often it finds a difference: simulated comparisons with a look after each round.

    python benchmarks/verdicts.py [--comparisons 10000]

Times of runs follow one another on one machine and are given to the arms as the rounds order them. `drift`: the machine becomes 20 % slower;
`autocorrelated`: what slows one run slows the next; `outliers`: one run in twenty takes 20 % longer, exponentially distributed.
"""

from __future__ import annotations

import argparse
import collections
import json
import math
import platform
import statistics
from collections.abc import Sequence
from typing import Any, get_args

import numpy as np

from unhang.bench.arms import order
from unhang.bench.comparison import MARGIN, Outcome, compare

KINDS = ("plain", "drift", "autocorrelated", "outliers")
ROUNDS = 30
# Standard deviation of the time of a run.
NOISE = 0.005


def noise(kind: str, runs: int, rng: np.random.Generator) -> np.ndarray[Any, Any]:
    """Logs of the times of runs that follow one another."""
    own = rng.normal(0, NOISE, runs)
    if kind == "drift":
        return own + np.linspace(0, math.log(1.2), runs)
    if kind == "autocorrelated":
        for i in range(1, runs):
            own[i] += 0.8 * own[i - 1]
    if kind == "outliers":
        return own + np.where(rng.random(runs) < 0.05, rng.exponential(0.2, runs), 0)
    return own


def comparison(kind: str, change: float, seed: int) -> tuple[str, int]:
    """The first verdict, and the round in which it is drawn."""
    logs = iter(noise(kind, 2 * ROUNDS, np.random.default_rng(seed)))
    times: dict[str, list[float]] = {"a": [], "b": []}
    for number in range(1, ROUNDS + 1):
        for arm in order(["a", "b"], seed=seed, round=number):
            times[arm].append(math.exp(next(logs)) * (1 + change if arm == "b" else 1))
        (found,) = compare(times, margin=MARGIN)
        if found.outcome != "undecided":
            return found.outcome, number
    return "undecided", ROUNDS


def verdicts(kind: str, change: float, seeds: Sequence[int]) -> tuple[dict[str, float], float]:
    """The share of each verdict, and the median number of rounds."""
    found = [comparison(kind, change, seed) for seed in seeds]
    counts = collections.Counter(outcome for outcome, _ in found)
    return {outcome: n / len(found) for outcome, n in sorted(counts.items())}, statistics.median(rounds for _, rounds in found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--comparisons", type=int, default=1000)
    seeds = range(parser.parse_args().comparisons)
    told: dict[str, Any] = {"benchmark": "verdicts", "n": len(seeds), "rounds": ROUNDS, "noise": NOISE, "margin": MARGIN}
    for change in (0.0, 0.02, 0.05):
        for kind in KINDS:
            shares, rounds = verdicts(kind, change, seeds)
            print(f"{change:.0%} {kind:15} {rounds:4g} rounds  " + "  ".join(f"{outcome} {share:.1%}" for outcome, share in shares.items()))
            told[f"{change:.0%} {kind}"] = {"rounds": rounds, **dict.fromkeys(get_args(Outcome), 0.0), **shares}
    print(json.dumps({**told, "machine": f"{platform.machine()}, Python {platform.python_version()}"}))


if __name__ == "__main__":
    main()
