"""Rounds of runs: when they stop, what they keep, and how they go on."""

import pytest
from tests.bench.trainings import OFF, Trainings

from unhang.bench import runner
from unhang.bench.in_force import EqualArms
from unhang.errors import RecordError, UnhangError


@pytest.fixture
def trainings(tmp_path, monkeypatch):
    return Trainings(tmp_path, monkeypatch)


def test_it_stops_when_the_answer_is_certain(trainings):
    trainings.step_s["b"] = 0.11
    result = trainings.run()
    assert (result.stopped, result.exitcode) == ("decided", 0)
    (found,) = result.comparisons
    assert (found.outcome, found.rounds) == ("slower", 3) and found.change == pytest.approx(0.1, abs=0.005)
    # Each arm once in each round, not always in the same order.
    arms = [arm for _, arm in trainings.started]
    pairs = [tuple(arms[i : i + 2]) for i in range(0, len(arms), 2)]
    assert all(sorted(pair) == ["a", "b"] for pair in pairs) and set(pairs) == {("a", "b"), ("b", "a")}
    assert [type(event).__name__ for event in trainings.told] == [*["Running"] * 4, "RoundEnds"] * 3
    assert [event.proof is None for event in trainings.told if isinstance(event, runner.RoundEnds)] == [False, True, True]
    assert not list(trainings.directory.path.glob("*/steps")) and len(trainings.directory.runs()) == 6


def test_equal_arms_end_after_one_round(trainings):
    trainings.variables["b"] = {OFF: "0"}
    with pytest.raises(EqualArms, match="arms a and b do not differ in anything effective"):
        trainings.run()
    assert len(trainings.started) == 2


def test_no_run_is_begun_that_would_not_end_within_the_budget(trainings):
    trainings.noise, trainings.elapsed_s = 0.3, 10.0
    result = trainings.run(budget_s=55.0)
    assert (result.stopped, result.exitcode, len(trainings.started), trainings.stopped) == ("budget", 0, 5, 0)
    # The half of a round counts for nothing yet.
    assert len(result.runs) == 4 and result.comparisons[0].outcome == "undecided"


def test_a_run_that_outlasts_the_budget_is_ended(trainings):
    trainings.elapsed_s = 200.0
    result = trainings.run()
    assert (result.stopped, result.comparisons, trainings.stopped, len(trainings.started)) == ("budget", (), 1, 1)


def test_what_was_interrupted_goes_on_where_it_was(trainings):
    trainings.step_s["b"] = 0.12
    trainings.exits[4] = (130, True)
    result = trainings.run()
    assert (result.stopped, result.exitcode, len(trainings.directory.runs())) == ("interrupted", 130, 3)
    missing = trainings.started[3]
    result = trainings.run()
    # The run that was interrupted is made again, beside what it left, and no other.
    assert trainings.started[4] == (f"{missing[0]}-2", missing[1])
    assert (result.stopped, len(result.runs), result.comparisons[0].rounds) == ("decided", 6, 3)
    # Nothing is left to do.
    before = len(trainings.started)
    assert trainings.run().comparisons == result.comparisons and len(trainings.started) == before


def test_a_line_that_was_cut_off_is_measured_again(trainings):
    trainings.exits[3] = (130, True)
    trainings.run()
    path = trainings.directory.path / "runs.jsonl"
    path.write_bytes(path.read_bytes()[:-20])
    assert len(trainings.directory.runs()) == 1 and path.read_bytes().count(b"\n") == 1
    trainings.run()
    assert {run.arm for run in trainings.directory.runs() if run.round == 1} == {"a", "b"}
    path.write_bytes(b"{}\n")
    with pytest.raises(RecordError, match="damaged"):
        trainings.directory.runs()


def test_a_training_that_fails_ends_the_comparison(trainings):
    trainings.exits[3] = (1, False)
    result = trainings.run()
    assert (result.stopped, result.exitcode, len(result.runs)) == ("failed", 1, 2)
    assert result.failed == str(trainings.directory.path / trainings.started[2][0])


def test_what_cannot_be_measured_is_refused(trainings):
    trainings.steps = 8
    with pytest.raises(UnhangError, match="8 steps are too few to be measured"):
        trainings.run()
    trainings.steps = 0
    with pytest.raises(UnhangError, match="1 steps are too few"):
        trainings.run()
    trainings.train = lambda rundir, settings, tell: runner.supervise.Outcome(
        exitcode=0, attempts=1, incidents=0, elapsed_s=1.0, interrupted=False, run_dir="", verdict=None
    )
    with pytest.raises(UnhangError, match="no optimizer step was seen"):
        trainings.run()
