"""What the complete rounds of all arms say, and which arms the next round still measures.

A function of the runs alone, so that a comparison that is resumed goes on as if it had never stopped. In a race (`unhang bench priorities`) an arm is
left out once it cannot win by more than the margin. Intervals hold at all rounds at once, so leaving out by them keeps their confidence.
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Mapping, Sequence
from typing import Literal

from unhang.bench import effective_settings
from unhang.bench.arms import Arm, Rules
from unhang.bench.comparison import CONFIDENCE, Comparison, compare
from unhang.bench.records import Failure, Run
from unhang.model import frozen

# A pair shares the state of the machine: no run of a round counts that ended longer before the next one began.
APART_S = 600.0
# "equal": nothing that its ranks run with differs from the baseline. "beaten": it cannot win any more. "failed": its training fails.
Out = Literal["equal", "beaten", "failed"]


@frozen
class RaceState:
    """`racing` are the arms of the next round, the baseline first; `out` says why each other one is left out.

    `runs` are those of complete rounds, of the first one also before; `comparisons` has each arm that was compared, over all rounds that it was in.
    `is_decided`: nothing is left to be measured.
    """

    rounds: int
    racing: tuple[str, ...]
    out: Mapping[str, Out]
    runs: tuple[Run, ...]
    comparisons: tuple[Comparison, ...]
    proof: effective_settings.Proof | None
    is_decided: bool


def evaluate_rounds(arms: Sequence[Arm], runs: Sequence[Run], rules: Rules, failures: Sequence[Failure] = ()) -> RaceState:
    """`runs` in the order of their ends; arms of `failures` are out from that round on. Raises EqualArms for arms that must differ, and do not."""
    by_name = {arm.name: arm for arm in arms}
    baseline, *others = by_name
    out: dict[str, Out] = {}
    whole: list[Run] = []
    seconds: dict[str, list[float]] = {name: [] for name in by_name}
    compared: dict[str, Comparison] = {}
    proof = None
    rounds = 0
    while True:
        out |= {one.arm: "failed" for one in failures if one.round <= rounds + 1 and one.arm not in out}
        due = [name for name in by_name if name not in out]
        of_round = find_round(runs, rounds + 1)
        if len(due) == 1 or not of_round.keys() >= set(due):
            break
        rounds += 1
        whole += (of_round[name] for name in due)
        for name in due:
            seconds[name].append(of_round[name].steps.typical_s / work(of_round[name], by_name[name], rules))
        if proof is None:
            proof, equal = effective_settings.prove(
                [by_name[name] for name in due], of_round, leaves_out=rules.leaves_out_equal, may_be_none=rules.is_race
            )
            out |= dict.fromkeys(equal, "equal")
        for name in (name for name in due[1:] if out.get(name) != "equal"):
            first, times = seconds[baseline], seconds[name]
            # Bonferroni: all arms are compared with one.
            alpha = (1 - CONFIDENCE) / len(others)
            compared[name] = compare(first, times, arm=name, baseline=baseline, alpha=alpha, margin=rules.margin)
        if rules.is_race:
            out |= dict.fromkeys(find_losers([one for name, one in compared.items() if name not in out], rules.margin), "beaten")
    racing = [name for name in others if name not in out]
    # Of several that are faster, a race looks for the fastest.
    is_open = (rules.is_race and len(racing) > 1) or any(name not in compared or compared[name].outcome == "undecided" for name in racing)
    return RaceState(
        rounds=rounds,
        racing=(baseline, *racing),
        out=out,
        runs=tuple(whole or find_round(runs, 1).values()),
        comparisons=tuple(compared[name] for name in others if name in compared),
        proof=proof,
        is_decided=not is_open,
    )


def find_round(runs: Sequence[Run], number: int) -> dict[str, Run]:
    """The runs of a round that count, by their arms. `runs` are in the order of their ends."""
    found: dict[str, Run] = {}
    before: Run | None = None
    for run in (run for run in runs if run.round == number):
        if before is not None and (_ended(run) - _ended(before)).total_seconds() - run.elapsed_s > APART_S:
            found.clear()
        found[run.arm] = before = run
    return found


def _ended(run: Run) -> datetime.datetime:
    return datetime.datetime.fromisoformat(run.ended)


def work(run: Run, arm: Arm, rules: Rules) -> int:
    """What times are divided by to be compared: the samples of a step, of all ranks, or 1."""
    world = run.in_force.get(effective_settings.WORLD_SIZE, "")
    return (arm.samples or 1) * (int(world) if world.isdecimal() else 1) if rules.is_per_sample else 1


def find_losers(racing: Sequence[Comparison], margin: float) -> list[str]:
    """Arms that cannot be faster by more than the margin than the best one is for certain, the baseline included."""
    highs = {one.arm: math.log1p(one.high) for one in racing if one.high is not None and one.high < 0}
    leader = min(highs, key=lambda arm: highs[arm], default=None)
    best = 0.0 if leader is None else highs[leader]
    cannot = {one.arm for one in racing if one.low is not None and best - math.log1p(one.low) <= math.log1p(margin)}
    return [one.arm for one in racing if one.outcome in ("same", "slower") or (one.arm in cannot and one.arm != leader)]
