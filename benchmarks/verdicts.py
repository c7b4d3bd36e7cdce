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
from typing import Any, get_args

import numpy as np

from unhang.bench.comparison import CONFIDENCE, MARGIN, Outcome, compare, critical_t

KINDS = ("plain", "drift", "autocorrelated", "outliers")
ROUNDS = 30
# Standard deviation of the time of a run.
NOISE = 0.005


def noise(kind: str, comparisons: int, rng: np.random.Generator) -> np.ndarray[Any, Any]:
    """Logs of the times of runs that follow one another: (comparisons, 2 * ROUNDS)."""
    shape = (comparisons, 2 * ROUNDS)
    own = rng.normal(0, NOISE, shape)
    if kind == "drift":
        return own + np.linspace(0, math.log(1.2), 2 * ROUNDS)
    if kind == "autocorrelated":
        for i in range(1, 2 * ROUNDS):
            own[:, i] += 0.8 * own[:, i - 1]
    if kind == "outliers":
        return own + np.where(rng.random(shape) < 0.05, rng.exponential(0.2, shape), 0)
    return own


def verdicts(kind: str, change: float, comparisons: int, *, seed: int = 1) -> tuple[dict[str, float], float]:
    """The share of each first verdict, and the median number of rounds until it is drawn."""
    rng = np.random.default_rng(seed)
    first, second = noise(kind, comparisons, rng).reshape(comparisons, ROUNDS, 2).transpose(2, 0, 1)
    # Which arm goes first is drawn anew in each round.
    is_a = rng.random(first.shape) < 0.5
    a, b = np.where(is_a, first, second), np.where(is_a, second, first) + math.log1p(change)
    rounds = np.arange(1, ROUNDS + 1)
    mean = np.cumsum(b - a, axis=1) / rounds
    squares = np.cumsum((b - a) ** 2, axis=1) - rounds * mean**2
    error = np.sqrt(np.maximum(squares, 0) / np.maximum(rounds - 1, 1) / rounds)
    reach = np.array([critical_t(int(n), 1 - CONFIDENCE) for n in rounds])
    reach[~np.isfinite(reach)] = 1e9
    low, high, margin = mean - reach * error, mean + reach * error, math.log1p(MARGIN)
    # One round has no spread.
    is_drawn = ((low > margin) | (high < -margin) | ((low >= -margin) & (high <= margin))) & (rounds > 1)
    taken = np.where(is_drawn.any(axis=1), is_drawn.argmax(axis=1) + 1, ROUNDS)
    found = [
        compare(np.exp(a[i, :n]), np.exp(b[i, :n]), arm="b", baseline="a", alpha=1 - CONFIDENCE, margin=MARGIN).outcome for i, n in enumerate(taken)
    ]
    assert [outcome != "undecided" for outcome in found] == list(is_drawn.any(axis=1))
    return {outcome: n / comparisons for outcome, n in sorted(collections.Counter(found).items())}, float(np.median(taken))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--comparisons", type=int, default=1000)
    comparisons = parser.parse_args().comparisons
    told: dict[str, Any] = {"benchmark": "verdicts", "n": comparisons, "rounds": ROUNDS, "noise": NOISE, "margin": MARGIN}
    for change in (0.0, 0.02, 0.05):
        for kind in KINDS:
            shares, rounds = verdicts(kind, change, comparisons)
            print(f"{change:.0%} {kind:15} {rounds:4g} rounds  " + "  ".join(f"{outcome} {share:.1%}" for outcome, share in shares.items()))
            told[f"{change:.0%} {kind}"] = {"rounds": rounds, **dict.fromkeys(get_args(Outcome), 0.0), **shares}
    print(json.dumps({**told, "machine": f"{platform.machine()}, Python {platform.python_version()}"}))


if __name__ == "__main__":
    main()
