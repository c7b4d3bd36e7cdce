"""Races: who is left out and when, that an interruption changes nothing, and how often a race has a false winner."""

import collections
import random
from dataclasses import replace

import pytest
from tests.bench.trainings import OFF, Trainings

from unhang.bench import elimination
from unhang.bench.arms import Rules, order
from unhang.bench.comparison import Comparison, compare
from unhang.bench.effective_settings import EqualArms

RACE = {"is_race": True, "leaves_out_equal": True}


@pytest.fixture
def trainings(tmp_path, monkeypatch):
    return Trainings(tmp_path, monkeypatch)


def of_many(trainings):
    """b and c are faster, c most; d is the same, e slower, f is not applied, g ends its training."""
    trainings.noise = 0.002
    trainings.step_s |= {"b": 0.09}
    trainings.more(c=0.08, d=0.1002, e=0.12, f=0.1, g=0.1)
    trainings.variables["f"] = trainings.variables["a"]
    trainings.fails = {"g"}


def test_who_cannot_win_is_not_started_again(trainings):
    of_many(trainings)
    result = trainings.run(budget_s=1000.0, **RACE)
    assert (result.stopped, result.exitcode) == ("decided", 0)
    assert result.state.out == {"b": "beaten", "d": "beaten", "e": "beaten", "f": "equal", "g": "failed"}
    assert [(one.arm, one.round) for one in result.failures] == [("g", 1)] and result.failures[0].run_dir.endswith("round-1-g")
    runs = collections.Counter(arm for _, arm in trainings.started)
    assert runs["f"] == runs["g"] == 1 and max(runs["b"], runs["e"]) <= 5 and runs["a"] == max(runs.values())
    found = {one.arm: one for one in result.state.comparisons}
    assert found.keys() == {"b", "c", "d", "e"} and found["c"].outcome == "faster" and found["c"].change == pytest.approx(-0.2, abs=0.01)
    # Each one is compared over the rounds that it was in.
    assert {arm: one.rounds for arm, one in found.items()} == {arm: runs[arm] for arm in found}


@pytest.mark.parametrize(
    ("intervals", "out"),
    [
        # The best one stays, however narrow; what may still be better by more than the margin does, too.
        ({"b": (-0.202, -0.199), "c": (-0.19, -0.1)}, "c"),
        ({"b": (-0.3, -0.1), "c": (-0.105, -0.05)}, "c"),
        ({"b": (-0.3, -0.1), "c": (-0.2, -0.05)}, ""),
        # Nothing is faster than the script as it is for certain.
        ({"b": (-0.008, 0.3), "c": (-0.02, 0.02)}, "b"),
        ({"b": (None, None), "c": (-0.5, None)}, ""),
        ({"b": (None, -0.5), "c": (-0.4, -0.3)}, "c"),
    ],
)
def test_an_arm_is_out_once_it_cannot_win_by_more_than_the_margin(intervals, out):
    racing = [
        Comparison(arm=arm, baseline="a", rounds=5, change=0.0, low=low, high=high, outcome="undecided") for arm, (low, high) in intervals.items()
    ]
    assert elimination.find_losers(racing, 0.01) == list(out)


def test_of_two_that_are_faster_the_fastest_is_looked_for(trainings):
    trainings.noise = 0.01
    trainings.step_s["b"] = 0.08
    trainings.more(c=0.079)
    result = trainings.run(budget_s=25.0, **RACE)
    assert (result.stopped, result.state.out) == ("budget", {}) and {one.outcome for one in result.state.comparisons} == {"faster"}


def test_an_interruption_changes_nothing(trainings):
    of_many(trainings)
    stops = [2, 7, 12, 16]
    trainings.exits = dict.fromkeys(stops, (130, True))
    for _ in stops:
        assert trainings.run(budget_s=1000.0, **RACE).stopped == "interrupted"
    result = trainings.run(budget_s=1000.0, **RACE)
    assert result.stopped == "decided" and [name for name, why in result.state.out.items() if why == "beaten"] and "c" not in result.state.out
    # What was measured was not measured again.
    runs = [(run.round, run.arm) for run in trainings.directory.runs()]
    assert len(runs) == len(set(runs))


def test_a_training_that_fails_without_any_setting_fails_soon(trainings):
    of_many(trainings)
    trainings.fails = set("abcdefg")
    last = next(seed for seed in range(1000) if order(list("abcdefg"), seed=seed, round=1)[-1] == "a")
    result = trainings.run(budget_s=1000.0, seed=last, **RACE)
    assert (result.stopped, result.exitcode) == ("failed", 1) and len(trainings.started) <= 2


def test_a_failure_beside_that_of_the_script_itself_says_nothing_about_a_setting(trainings):
    of_many(trainings)
    trainings.fails = {"a", "c"}
    first = next(seed for seed in range(1000) if order(list("abcdefg"), seed=seed, round=1)[0] == "c")
    assert trainings.run(budget_s=1000.0, seed=first, **RACE).stopped == "failed"
    trainings.fails = set()
    result = trainings.run(budget_s=1000.0, seed=first, **RACE)
    assert result.stopped == "decided" and "c" not in result.state.out and not result.failures


def test_arms_of_a_ready_made_comparison_that_change_nothing_are_left_out(trainings):
    trainings.step_s["b"] = 0.11
    trainings.more(c=0.1)
    trainings.variables["c"] = trainings.variables["a"]
    with pytest.raises(EqualArms):
        trainings.run()
    result = trainings.run(leaves_out_equal=True)
    assert (result.state.out, [(c.arm, c.outcome) for c in result.state.comparisons]) == ({"c": "equal"}, [("b", "slower")])


def test_settings_that_the_hook_could_not_apply_make_no_difference(trainings):
    trainings.variables["b"], trainings.ignored = trainings.variables["a"], {"b": OFF}
    with pytest.raises(EqualArms, match="arms a and b do not differ in anything effective"):
        trainings.run(leaves_out_equal=True)


@pytest.mark.parametrize("fails", ["bcdefg", "cg"])
def test_arms_that_fail_are_not_started_again(trainings, fails):
    """Also if no other one is left, and if some take too few steps."""
    of_many(trainings)
    trainings.fails, trainings.steps_of = set(fails), {"b": 5}
    trainings.exits = {7: (130, True)} if fails == "cg" else {}
    first = trainings.run(budget_s=1000.0, **RACE)
    result = trainings.run(budget_s=1000.0, **RACE)
    runs = collections.Counter(arm for _, arm in trainings.started)
    assert result.stopped == "decided" and {result.state.out[arm] for arm in {*fails, "b"}} == {"failed"}
    assert all(runs[arm] <= (2 if first.stopped == "interrupted" else 1) for arm in fails)
    why = {one.arm: one.why for one in result.failures}
    assert why["c"] == "" and ("b" in fails or why["b"].startswith("arm b: 5 steps are too few to be measured, in /"))


def test_an_arm_that_fails_later_keeps_its_rounds(trainings):
    of_many(trainings)
    trainings.fails = set()
    trainings.exits = {8 + 2: (1, False)}
    result = trainings.run(budget_s=1000.0, **RACE)
    (failed,) = result.failures or [None]
    assert failed is not None and failed.round == 2 and result.state.out[failed.arm] == "failed"
    assert {one.arm: one.rounds for one in result.state.comparisons}[failed.arm] == 1


def test_samples_of_all_ranks_are_the_work_of_a_step(trainings):
    result = trainings.run(is_per_sample=True)
    b = replace(trainings.arms[1], samples=8)
    runs = [replace(run, in_force={**run.in_force, "world size": "4"}) if run.arm == "b" else run for run in result.state.runs]
    rules = Rules(seed=4, margin=0.01, budget_s=1.0, steps=40, is_per_sample=True)
    a = replace(trainings.arms[0], samples=8)
    (found,) = elimination.evaluate_rounds([a, b], runs, rules).comparisons
    assert found.change == pytest.approx(-0.5, abs=0.01)
    (found,) = elimination.evaluate_rounds([a, b], runs, replace(rules, is_per_sample=False)).comparisons
    assert found.change == pytest.approx(0.0, abs=0.01)


def test_a_race_of_equals_has_no_winner():
    """What is found of an arm while it is measured, with arms that leave: less than one in twenty may be wrong."""
    rng = random.Random(3)
    wrong = 0
    for _ in range(60):
        times: dict[str, list[float]] = {name: [] for name in "abcde"}
        racing = list("bcde")
        while racing and len(times["a"]) < 12:
            for name in ("a", *racing):
                times[name].append(rng.gauss(0.1, 0.002))
            found = [compare(times["a"], times[name], arm=name, baseline="a", alpha=0.05 / 4) for name in racing]
            wrong += any(one.outcome in ("faster", "slower") for one in found if one.arm in racing)
            racing = [name for name in racing if name not in elimination.find_losers([one for one in found if one.arm in racing], 0.01)]
    assert wrong <= 3
