"""Rounds of runs: when they stop, what they keep, and how they go on."""

from dataclasses import replace

import msgspec
import pytest
from tests.bench.trainings import OFF, Trainings

from unhang import encoding
from unhang.bench import runner
from unhang.bench.effective_settings import EqualArms, find_changes
from unhang.bench.records import BenchDir
from unhang.errors import RecordError, RunDirError, UnhangError


@pytest.fixture
def trainings(tmp_path, monkeypatch):
    return Trainings(tmp_path, monkeypatch)


def test_it_stops_when_the_answer_is_certain(trainings):
    trainings.step_s["b"] = 0.11
    result = trainings.run()
    assert (result.stopped, result.exitcode) == ("decided", 0)
    (found,) = result.state.comparisons
    assert (found.outcome, found.rounds) == ("slower", 3) and found.change == pytest.approx(0.1, abs=0.005)
    # Each arm once in each round, not always in the same order.
    arms = [arm for _, arm in trainings.started]
    pairs = [tuple(arms[i : i + 2]) for i in range(0, len(arms), 2)]
    assert all(sorted(pair) == ["a", "b"] for pair in pairs) and set(pairs) == {("a", "b"), ("b", "a")}
    assert [type(event).__name__ for event in trainings.events] == [*["RunProgress"] * 2, "RaceState"] * 3
    assert not list(trainings.directory.path.glob("*/steps")) and len(trainings.directory.runs()) == 6


def test_equal_arms_end_after_one_round(trainings):
    trainings.variables["b"] = {OFF: "0"}
    with pytest.raises(EqualArms, match="arms a and b do not differ in anything effective"):
        trainings.run()
    assert len(trainings.started) == 2


def test_no_run_is_begun_that_would_not_end_within_the_budget(trainings):
    trainings.noise, trainings.elapsed_s = 0.3, 10.0
    result = trainings.run(budget_s=55.0)
    assert (result.stopped, result.exitcode, len(trainings.started), trainings.stopped) == ("budget", 4, 5, 0)
    # The half of a round counts for nothing yet.
    assert len(result.state.runs) == 4 and result.state.comparisons[0].outcome == "undecided"


def test_a_run_that_outlasts_the_budget_is_ended(trainings):
    trainings.elapsed_s = 200.0
    result = trainings.run()
    assert (result.stopped, result.state.comparisons, trainings.stopped, len(trainings.started)) == ("budget", (), 1, 1)


def test_what_was_interrupted_goes_on_where_it_was(trainings):
    trainings.step_s["b"] = 0.12
    trainings.exits[4] = (130, True)
    result = trainings.run()
    assert (result.stopped, result.exitcode, len(trainings.directory.runs())) == ("interrupted", 130, 3)
    missing = trainings.started[3]
    result = trainings.run()
    # The run that was interrupted is made again, beside what it left, and no other.
    assert trainings.started[4] == (f"{missing[0]}-2", missing[1])
    assert (result.stopped, len(result.state.runs), result.state.comparisons[0].rounds) == ("decided", 6, 3)
    # Nothing is left to do.
    before = len(trainings.started)
    assert trainings.run().state.comparisons == result.state.comparisons and len(trainings.started) == before


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
    assert (result.stopped, result.exitcode, len(result.state.runs)) == ("failed", 1, 2)
    assert result.failed == str(trainings.directory.path / trainings.started[2][0])


def test_what_cannot_be_measured_is_refused(trainings):
    trainings.steps = 8
    with pytest.raises(UnhangError, match=r"arm [ab]: 8 steps are too few to be measured, in .*/round-1-[ab]"):
        trainings.run()
    trainings.steps = 0
    with pytest.raises(UnhangError, match="no optimizer step was seen"):
        trainings.run()
    trainings.train = lambda rundir, settings, tell: runner.supervise.Outcome(
        exitcode=0, attempts=1, incidents=0, elapsed_s=1.0, interrupted=False, run_dir="", verdict=None
    )
    with pytest.raises(UnhangError, match="no optimizer step was seen"):
        trainings.run()


def test_a_signal_between_two_runs_keeps_what_was_measured(trainings):
    def on_progress(event):
        if isinstance(event, runner.RaceState):
            raise SystemExit(130)

    trainings.on_progress = on_progress
    result = trainings.run()
    assert (result.stopped, result.exitcode, len(result.state.runs)) == ("interrupted", 130, 2)


@pytest.mark.parametrize(
    ("changed", "says"),
    [({"torch version": "2.99"}, "torch version was not set in the first run of [ab], and is 2.99 now"), ({"threads": "9"}, None)],
)
def test_what_changes_after_the_first_round_is_refused_or_reported(trainings, changed, says):
    trainings.exits[3] = (130, True)
    trainings.run()
    # Also of a comparison that goes on.
    trainings.torch = dict.fromkeys((4, 5), changed)
    if says is not None:
        with pytest.raises(UnhangError, match=says):
            trainings.run()
        assert len(trainings.directory.runs()) == 2
    else:
        assert find_changes([run for run in trainings.run().state.runs if run.arm == "a"]) == ["threads"]


def test_the_runs_of_a_round_are_not_far_apart_in_time(trainings):
    trainings.exits[4] = (130, True)
    trainings.run()
    path = trainings.directory.path / "runs.jsonl"
    *rest, last = (msgspec.json.decode(line) for line in path.read_bytes().splitlines())
    last["ended"] = "2020-01-01T00:00:00+00:00"
    path.write_bytes(b"".join(encoding.encode(line) + b"\n" for line in (*rest, last)))
    result = trainings.run()
    runs = [(run.round, run.arm) for run in trainings.directory.runs()]
    assert runs.count((2, last["arm"])) == 2 and len(result.state.runs) == 6
    assert all(run.ended > "2021" for run in result.state.runs)


def test_a_directory_is_of_one_process_at_a_time_and_each_run_has_its_own(trainings):
    (trainings.directory.path / "bench.json").write_bytes(encoding.encode(trainings.directory.asked))
    trainings.directory.lock()
    with pytest.raises(RunDirError, match="another unhang bench is at work in"):
        BenchDir.open(trainings.directory.path).lock()
    trainings.arms = [replace(arm, command=replace(arm.command, argv=("train.py", "--output={run_dir}/out"))) for arm in trainings.arms]
    trainings.run()
    folder, _ = trainings.started[0]
    assert trainings.commands[0] == ("train.py", f"--output={trainings.directory.path / folder}/out")
