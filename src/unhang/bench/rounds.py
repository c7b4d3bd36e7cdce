"""Where all arms stand after the rounds that are complete, and which of them the next round still measures.

A function of the runs alone, so that a comparison that is resumed goes on as if it had never stopped. In a race (`unhang bench priorities`) an arm is
left out once it cannot win by more than the margin. Intervals hold at all rounds at once, so leaving out by them keeps their confidence.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from unhang.bench import in_force
from unhang.bench.arms import Arm, Rules
from unhang.bench.comparison import CONFIDENCE, Comparison, compare
from unhang.bench.records import Run

# "equal": nothing that its ranks run with differs from the baseline. "beaten": it cannot win any more. "failed": its training fails.
Out = Literal["equal", "beaten", "failed"]


@dataclass(frozen=True, kw_only=True)
class Standing:
    """`racing` are the arms of the next round, the baseline first; `out` says why each other one is left out.

    `runs` of each arm are those of complete rounds, in their order: the baseline has all rounds, each other arm the first ones. `is_decided`: nothing
    is left to be measured.
    """

    rounds: int
    racing: tuple[str, ...]
    out: Mapping[str, Out]
    runs: Mapping[str, tuple[Run, ...]]
    comparisons: tuple[Comparison, ...]
    proof: in_force.Proof | None
    is_decided: bool


def stand(arms: Sequence[Arm], runs: Collection[Run], rules: Rules, failed: Collection[str] = ()) -> Standing:
    """`failed` are arms that are not started again. Raises EqualArms for arms that must differ, and do not."""
    baseline, *others = (arm.name for arm in arms)
    out: dict[str, Out] = {}
    whole: dict[str, list[Run]] = {arm.name: [] for arm in arms}
    found = tuple[Comparison, ...]()
    proof = None
    rounds = 0
    while True:
        out |= {name: "failed" for name in others if name in failed and name not in out}
        due = [baseline, *(name for name in others if name not in out)]
        of_round = {run.arm: run for run in runs if run.round == rounds + 1}
        if len(due) == 1 or not of_round.keys() >= set(due):
            break
        rounds += 1
        for name in due:
            whole[name].append(of_round[name])
        if proof is None:
            proof, equal = _prove(arms, of_round, due, rules)
            out |= dict.fromkeys(equal, "equal")
        seconds = {arm.name: [seconds_of(run, arm, rules) for run in whole[arm.name]] for arm in arms}
        found = compare_each(seconds, len(others), rules.margin, without=[name for name, why in out.items() if why == "equal"])
        if rules.is_race:
            out |= dict.fromkeys(beaten([one for one in found if one.arm not in out], rules.margin), "beaten")
    racing = [name for name in others if name not in out]
    # Of several that are faster, a race looks for the fastest.
    is_open = (rules.is_race and len(racing) > 1) or any(one.outcome == "undecided" for one in found if one.arm in racing)
    return Standing(
        rounds=rounds,
        racing=(baseline, *racing),
        out=out,
        runs={name: tuple(of_arm) for name, of_arm in whole.items()},
        comparisons=found,
        proof=proof,
        is_decided=rounds > 0 and not is_open,
    )


def seconds_of(run: Run, arm: Arm, rules: Rules) -> float:
    """What arms are compared by: the time of a step, or of a sample."""
    return run.steps.typical_s / ((arm.samples if rules.is_per_sample else None) or 1)


def compare_each(seconds: Mapping[str, Sequence[float]], others: int, margin: float, *, without: Collection[str] = ()) -> tuple[Comparison, ...]:
    """Each arm against the first one over the rounds that it was in; all intervals of `others` arms hold together."""
    (baseline, first), *rest = seconds.items()
    each = 1 - (1 - CONFIDENCE) / others
    return tuple(
        compare({baseline: first[: len(times)], arm: times}, margin=margin, confidence=each)[0] for arm, times in rest if times and arm not in without
    )


def beaten(racing: Sequence[Comparison], margin: float) -> list[str]:
    """Arms that cannot be faster by more than the margin than the best one is for certain, the baseline included."""
    highs = {one.arm: math.log1p(one.high) for one in racing if one.high is not None and one.high < 0}
    leader = min(highs, key=lambda arm: highs[arm], default=None)
    best = 0.0 if leader is None else highs[leader]
    cannot = {one.arm for one in racing if one.low is not None and best - math.log1p(one.low) <= math.log1p(margin)}
    return [one.arm for one in racing if one.outcome in ("same", "slower") or (one.arm in cannot and one.arm != leader)]


def _prove(arms: Sequence[Arm], runs: Mapping[str, Run], due: Sequence[str], rules: Rules) -> tuple[in_force.Proof, list[str]]:
    """The proof, and the arms that do not differ from the baseline where that is no error."""
    baseline, *others = (arm for arm in arms if arm.name in due)
    if not rules.leaves_out_equal:
        return in_force.prove([baseline, *others], runs), []
    differences: list[in_force.Difference] = []
    without: list[tuple[str, str]] = []
    equal: dict[str, in_force.EqualArms | None] = {}
    for arm in others:
        try:
            one = in_force.prove([baseline, arm], runs)
        except in_force.EqualArms as e:
            equal[arm.name] = e
            continue
        if arm.changes and all(runs[arm.name].in_force.get(name, "").startswith("ignored (") for name in arm.changes):
            equal[arm.name] = None
            continue
        differences += one.differences
        without += one.without_effect
    if len(equal) == len(others) and not rules.is_race and (first := next(filter(None, equal.values()), None)) is not None:
        raise first
    return in_force.Proof(differences=tuple(differences), without_effect=tuple(without)), list(equal)


@dataclass(frozen=True, kw_only=True)
class Look:
    """A round of an arm: the change of this round alone, and the comparison as it was after it."""

    change: float
    after: Comparison


def looks(arms: Sequence[Arm], runs: Collection[Run], rules: Rules) -> Mapping[str, tuple[Look, ...]]:
    """Of each arm but the baseline, what each of its rounds showed. `runs` are those of complete rounds."""
    by_arm = {arm.name: sorted((run for run in runs if run.arm == arm.name), key=lambda run: run.round) for arm in arms}
    seconds = {arm.name: [seconds_of(run, arm, rules) for run in by_arm[arm.name]] for arm in arms}
    (baseline, first), *others = seconds.items()
    return {
        name: tuple(
            Look(change=b / a - 1, after=compare_each({baseline: first, name: times[:n]}, len(others), rules.margin)[0])
            for n, (a, b) in enumerate(zip(first, times, strict=False), 1)
        )
        for name, times in others
    }
