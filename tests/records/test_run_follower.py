"""How a run stands, from directories in every state: what is not known is never called healthy."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import subprocess
import sys
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.records.runs import Laid

from unhang import encoding
from unhang.errors import RunDirError
from unhang.records.run_follower import Looker
from unhang.records.run_snapshot import STATES, Phase, RunSnapshot
from unhang.records.status import Place, Standstill, Waiting


@pytest.fixture
def laid(tmp_path):
    return Laid(tmp_path / "run")


def states(picture: RunSnapshot) -> dict[int, str]:
    return {r.rank: r.state for r in picture.ranks}


def test_one_that_goes_on(laid):
    laid.begin()
    laid.now(laid.rank(0, steps_per_s=2.5, place=Place(file="/home/u/train.py", line=7, name="main")), laid.rank(1, step=99, timeout_s=1800.0))
    laid.at += 0.5
    picture = laid.look()
    job = picture.job
    assert (job.phase, job.attempt, job.expected, job.step, job.max_restarts, job.timeout_s) == ("running", 0, 2, 99, 3, 1800.0)
    assert (job.hang_after_s, job.usual_gap_s, job.elapsed_s, job.supervisor.alive) == (11.0, 0.2, 60.5, True)
    assert states(picture) == {0: "running", 1: "running"} and picture.counts == {"running": 2}
    assert (picture.ranks[0].age_s, picture.ranks[0].steps_per_s, picture.ranks[0].place.line) == (0.5, 2.5, 7)
    assert not picture.is_wrong and picture.is_known and picture.notes == ()


def test_before_anything_has_begun(laid):
    picture = laid.look()
    assert (picture.job.phase, picture.ranks) == ("starting", ())
    assert picture.notes == ("events.jsonl is missing: what has happened is not known",)
    laid.begin(s=59.0, ranks=1)
    assert (laid.look().job.phase, states(laid.look())) == ("starting", {0: "starting"})
    laid.now()
    assert (laid.look().job.phase, laid.look().is_wrong) == ("starting", False)
    laid.now(laid.rank(0, step=0, world_size=None))
    assert laid.look().job.phase == "starting"


def test_of_a_supervisor_that_stands_still_it_is_not_known_what_ranks_wait_for(laid):
    laid.begin()
    laid.now(laid.rank(0, waiting=Waiting(since_s=58.0, call="all_reduce", group="0", number=5)), laid.rank(1))
    laid.at += 3
    assert (laid.look().ranks[0].waits_s, laid.look().ranks[1].quiet_s) == (5.0, 3.0)
    laid.at += 20
    one, other = laid.look().ranks
    assert (one.state, one.call, one.waits_s, other.quiet_s) == ("unknown", "all_reduce", None, None)


def test_a_training_of_which_no_step_was_seen_has_none(laid):
    laid.begin()
    laid.now(laid.rank(0, step=0), laid.rank(1, step=0))
    picture = laid.look()
    assert (picture.job.step, {r.step for r in picture.ranks}, states(picture)) == (None, {None}, {0: "running", 1: "running"})


@pytest.mark.parametrize(("number", "cause"), [(errno.EIO, None), (errno.ESTALE, None), (errno.EACCES, "it belongs to another user")])
def test_a_directory_that_cannot_be_read(laid, monkeypatch, number, cause):
    def fails(path):
        raise OSError(number, os.strerror(number))

    (laid.path / "run.json").unlink()
    monkeypatch.setattr(type(laid.path), "iterdir", fails)
    with pytest.raises(RunDirError, match=os.strerror(number)) as caught:
        laid.look()
    assert caught.value.cause == cause


def test_a_snapshot_tells_of_silence_and_of_what_was_not_seen(laid):
    laid.begin()
    told = {"silent": [{"rank": 1, "for_s": 31.0}], "torch_collectives": "counted", "unread": {"world": 5}, "evaluation_says": "a label"}
    laid.write("monitor.jsonl", {"time_s": 1.0, "world_size": 2, "heard_from": 2, "restarts": 0, "store_lost": "gone", **told})
    with (laid.path / "monitor.jsonl").open("a") as f:
        f.write("\n")
    monitor = laid.look().monitor
    assert (monitor.silent[0].rank, monitor.store_lost, monitor.unread, monitor.evaluation_says) == (1, "gone", {"world": 5}, "a label")


def test_a_rank_without_heartbeats_is_silent_and_others_wait(laid):
    laid.begin()
    waiting = Waiting(since_s=52.0, call="all_reduce", group="0", number=5)
    laid.now(laid.rank(0, waiting=waiting), laid.rank(1, beat_s=51.0, process="T"), standstill=Standstill(since_s=52.0, waiting=(0,), absent=(1,)))
    picture = laid.look()
    assert (picture.job.phase, states(picture)) == ("standing", {0: "waiting", 1: "silent"})
    assert (picture.ranks[0].waits_s, picture.ranks[0].call, picture.ranks[1].age_s, picture.ranks[1].process) == (8.0, "all_reduce", 9.0, "T")
    assert picture.is_wrong


@pytest.mark.parametrize(("since_s", "state", "wrong"), [(56.0, "late", False), (48.0, "stuck", True)])
def test_who_is_waited_for_is_late_and_then_stuck(laid, since_s, state, wrong):
    laid.begin()
    laid.now(laid.rank(0, waiting=Waiting(since_s=since_s)), laid.rank(1), standstill=Standstill(since_s=since_s, waiting=(0,), absent=(1,)))
    picture = laid.look()
    assert (states(picture)[1], picture.is_wrong) == (state, wrong)


def test_a_slow_rank_is_slow_until_it_has_caught_up(laid):
    laid.begin()
    laid.tell("Opened", incident=1, kind="straggler")
    laid.tell("Stalled", ranks=[1], waiting=[0], for_s=12.0, kind="works", incident=1)
    laid.tell("Drawn", incident=1, verdict={"cause": "straggler-timeout", "says": "rank 1 is slow"}, took_s=1.0)
    stands = Standstill(since_s=40.0, waiting=(0,), absent=(1,))
    laid.now(laid.rank(0, waiting=Waiting(since_s=40.0)), laid.rank(1), standstill=stands)
    picture = laid.look()
    assert (picture.job.phase, states(picture), picture.is_wrong) == ("standing", {0: "waiting", 1: "slow"}, False)
    assert picture.job.trouble is not None and (picture.job.trouble.kind, picture.job.trouble.judged) == ("straggler", True)
    laid.tell("CaughtUp", after_s=20.0)
    laid.now(laid.rank(0), laid.rank(1))
    laid.write(
        "verdict.json",
        {"schema": "unhang/verdict/1", "primary": {"cause": "straggler-timeout", "standing": "likely", "says": "rank 1 is slow", "ranks": [1]}},
    )
    picture = laid.look()
    assert (picture.job.phase, picture.job.trouble, states(picture)) == ("running", None, {0: "running", 1: "running"})
    # What it was blamed for is over.
    assert picture.job.verdict.ranks == (1,) and not any(r.blamed for r in picture.ranks)


def test_a_hang_and_the_attempt_behind_it(laid):
    laid.begin()
    laid.tell("Opened", incident=1, kind="hang")
    laid.now(laid.rank(0, waiting=Waiting(since_s=40.0)), laid.rank(1), standstill=Standstill(since_s=40.0, waiting=(0,), absent=(1,)))
    picture = laid.look()
    assert (picture.job.phase, states(picture), picture.job.trouble.judged) == ("wrong", {0: "waiting", 1: "stuck"}, False)
    verdict = {"cause": "process-stuck", "standing": "established", "says": "rank 1 is stuck", "ranks": [1], "where": "train.py:7 in main"}
    laid.write("verdict.json", {"schema": "unhang/verdict/1", "primary": verdict})
    laid.tell("Drawn", incident=1, verdict={"cause": "process-stuck", "says": "rank 1 is stuck"}, took_s=1.0)
    picture = laid.look()
    assert (picture.job.verdict.cause, picture.job.verdict.where, [r.rank for r in picture.ranks if r.blamed]) == (
        "process-stuck",
        "train.py:7 in main",
        [1],
    )
    laid.now(laid.rank(0, ended_s=60.0, by_launcher=True), laid.rank(1, ended_s=60.0, by_launcher=True), last=True)
    assert laid.look().job.phase == "between"
    laid.tell("Restarting", attempt=1, of=3)
    laid.begin(1, s=60.0)
    picture = laid.look()
    # Of the former attempt's ranks nothing is carried over.
    assert (picture.job.phase, picture.job.attempt, states(picture), picture.job.trouble) == ("starting", 1, {0: "starting", 1: "starting"}, None)
    assert picture.job.verdict.attempt == 0 and not any(r.blamed for r in picture.ranks) and not picture.is_wrong
    laid.begin(2, s=60.0, ranks=1)
    assert states(laid.look()) == {0: "starting"}


def test_ranks_that_ended(laid):
    laid.begin(ranks=5)
    laid.now(
        laid.rank(0, raised="ValueError: no such batch"),
        laid.rank(1, ended_s=50.0),
        laid.rank(2, ended_s=50.0, exitcode=3, announced=True),
        laid.rank(3, ended_s=50.0, by_launcher=True, exitcode=-15),
        laid.rank(4, ended_s=50.0, announced=True, left=True),
    )
    picture = laid.look()
    assert states(picture) == {0: "failed", 1: "failed", 2: "failed", 3: "stopped", 4: "done"} and picture.is_wrong


@pytest.mark.parametrize(("exitcode", "wrong"), [(0, False), (1, True)])
def test_one_that_has_ended_shows_its_end(laid, exitcode, wrong):
    laid.begin()
    laid.now(laid.rank(0, ended_s=50.0, announced=True), laid.rank(1, ended_s=50.0, announced=True), last=True)
    laid.tell("Finished", exitcode=exitcode, attempts=1, incidents=0, elapsed_s=51.0, run_dir="x")
    laid.alive, laid.at = False, 100_000.0
    picture = laid.look()
    assert (picture.job.phase, picture.job.exitcode, picture.job.elapsed_s, picture.is_wrong) == ("ended", exitcode, 51.0, wrong)
    assert states(picture) == {0: "done", 1: "done"} and picture.is_known


def test_a_supervisor_that_is_gone_leaves_nothing_known(laid):
    laid.begin()
    laid.now(laid.rank(0), laid.rank(1))
    assert states(laid.look()) == {0: "running", 1: "running"}
    laid.alive = False
    picture = laid.look()
    assert (picture.job.phase, states(picture), picture.is_wrong) == ("gone", {0: "unknown", 1: "unknown"}, True)


def test_a_supervisor_that_writes_no_more_is_not_believed(laid):
    """It is stopped, or its disk is full."""
    laid.begin()
    laid.now(laid.rank(0), laid.rank(1))
    laid.look()
    laid.at += 30
    picture = laid.look()
    assert (picture.job.phase, states(picture), picture.job.supervisor.silent_s) == ("unknown", {0: "unknown", 1: "unknown"}, 30.0)
    assert not picture.is_known and picture.ranks[0].steps_per_s is None and picture.ranks[0].age_s == 30.0


def test_while_settings_are_tried_what_was_seen_grows_old(laid):
    laid.begin()
    laid.now(laid.rank(0), laid.rank(1, ended_s=59.0, by_launcher=True))
    laid.tell("Climbing", cause="network-blocked", ranks=2, limit_s=600.0)
    assert (laid.look().job.phase, states(laid.look())) == ("trying", {0: "running", 1: "stopped"})
    laid.at += 60
    assert (laid.look().job.phase, states(laid.look())) == ("trying", {0: "unknown", 1: "stopped"})


def test_one_on_another_machine_is_believed_while_it_writes(laid):
    laid.begin()
    laid.alive = None
    # Its clock is an hour ahead of ours: how old the first picture is nobody can tell.
    laid.skew_s = -3600.0
    laid.now(laid.rank(0), laid.rank(1))
    assert (laid.look().job.phase, laid.look().is_known) == ("unknown", False)
    laid.at += 1
    laid.now(laid.rank(0), laid.rank(1))
    picture = laid.look()
    assert (picture.job.phase, states(picture), picture.ranks[0].age_s) == ("running", {0: "running", 1: "running"}, 0.0)
    laid.at += 30
    assert laid.look().job.phase == "unknown"


def test_a_run_of_an_unhang_that_wrote_no_pictures(laid):
    laid.begin()
    laid.run(supervisor=None)
    picture = laid.look()
    assert (picture.job.phase, states(picture)) == ("unknown", {0: "unknown", 1: "unknown"})
    assert any(note.startswith("now.json is missing") for note in picture.notes)
    laid.alive = True
    laid.run(supervisor={"host": "n", "pid": 1, "start_ticks": 1, "boot_id": "", "pid_namespace": ""})
    assert laid.look().job.phase == "unknown"


def test_a_newer_version_is_shown_as_far_as_it_is_known(laid):
    laid.begin()
    laid.run(schema="unhang/run/2", colour="green")
    laid.tell("Teleported", ranks=[1])
    now = json.loads(encoding.encode(laid.now(laid.rank(0))))
    laid.write("now.json", now | {"schema": "unhang/now/9", "mood": "fine"})
    picture = laid.look()
    assert states(picture) == {0: "running", 1: "starting"} and picture.events[-1].event == "Teleported"
    assert [note.split()[2] for note in picture.notes] == ["unhang/run/2,", "unhang/now/9,"]


def test_damaged_lines_are_counted_and_the_rest_is_read(laid):
    laid.begin()
    with (laid.path / "events.jsonl").open("ab") as f:
        f.write(b'\xff\xfe\n{"s": 3, "event": "Opened", "incident": "x"}\n[1]\n' + b"[" * 5000 + b"\n\n")
    laid.tell("Note", text="here")
    laid.now(laid.rank(0), laid.rank(1))
    picture = laid.look()
    assert (picture.job.phase, picture.events[-1].fields) == ("running", {"text": "here"})
    assert picture.notes == ("events.jsonl: 4 damaged lines left out",)


def test_what_the_monitor_told_last(laid):
    laid.begin(1)
    laid.now(laid.rank(0), laid.rank(1), attempt=1)
    line = {"time_s": 1_795_230_950.0, "world_size": 2, "heard_from": 1, "restarts": 1, "stragglers": [], "evaluations": 3, "new": 1}
    calls = {"group": "world", "collective": "all_reduce", "count": 4, "latency_p50_s": 0.1, "latency_p95_s": 0.2, "latency_p99_s": 0.3}
    with (laid.path / "monitor.jsonl").open("ab") as f:
        f.write(b"{}\n")
        f.write(json.dumps(line | {"calls": [calls]}).encode() + b'\n{"time_s": 17952')
    picture = laid.look()
    assert (picture.monitor.evaluations, picture.monitor.calls[0].latency_p95_s, picture.monitor_age_s) == (3, 0.2, 10.0)
    assert not picture.monitor_of_before and picture.notes == ("monitor.jsonl: 1 damaged line left out",)
    # Another attempt has begun since, and much has happened in it.
    laid.begin(2, s=58.0)
    for number in range(200):
        laid.tell("Note", text=str(number))
    assert laid.look().monitor_of_before


def test_an_events_file_that_was_written_anew(laid):
    laid.begin()
    laid.tell("Opened", incident=1, kind="hang")
    laid.now(laid.rank(0), laid.rank(1))
    assert laid.look().job.phase == "wrong"
    (laid.path / "events.jsonl").unlink()
    laid.begin()
    assert (laid.look().job.phase, len(laid.look().events)) == ("running", 1)


def test_what_is_no_run_directory(tmp_path):
    laid = Laid(tmp_path / "run")
    laid.look()
    shutil.rmtree(laid.path)
    with pytest.raises(RunDirError, match="there is no run directory"):
        laid.look()
    laid.path.mkdir()
    with pytest.raises(RunDirError, match="is empty"):
        laid.look()
    (laid.path / "a.txt").touch()
    with pytest.raises(RunDirError, match="is not a run directory"):
        laid.look()
    (laid.path / "events.jsonl").touch()
    assert "run.json is missing: what was started is not known" in laid.look().notes


def laid_out(path) -> Laid:
    laid = Laid(path)
    laid.begin()
    laid.tell("Opened", incident=1, kind="hang")
    laid.tell("Drawn", incident=1, verdict={"cause": "process-stuck", "says": "rank 1 is stuck"}, took_s=1.0)
    laid.write("verdict.json", {"schema": "unhang/verdict/1", "primary": {"cause": "process-stuck", "standing": "likely", "says": "x", "ranks": [1]}})
    (laid.path / "monitor.jsonl").write_text('{"time_s": 1795230950.0, "world_size": 2, "heard_from": 2}\n')
    laid.now(laid.rank(0, waiting=Waiting(since_s=40.0)), laid.rank(1, raised="x"), standstill=Standstill(since_s=40.0, waiting=(0,), absent=(1,)))
    return laid


NAMES = ("run.json", "events.jsonl", "now.json", "verdict.json", "monitor.jsonl")


@given(name=st.sampled_from(NAMES), cut=st.integers(0, 400), garbage=st.binary(max_size=40), keeps=st.booleans())
def test_cut_and_garbled_files_are_looked_at_without_a_fault(tmp_path_factory, name, cut, garbage, keeps):
    laid = laid_out(tmp_path_factory.mktemp("garbled") / "run")
    laid.look()
    file = laid.path / name
    whole = file.read_bytes()
    file.write_bytes(whole[:cut] + garbage + (whole[cut + len(garbage) :] if keeps else b""))
    for looker in (laid.looker, Looker(laid.path, is_alive=lambda process: True)):
        with contextlib.suppress(RunDirError):
            picture = looker.look()
            assert picture.job.phase in get_args(Phase) and set(picture.counts) <= set(STATES)
            assert sum(picture.counts.values()) == len(picture.ranks)
            encoding.encode(picture)
    file.write_bytes(whole)
    assert laid.look().notes == () and states(laid.look()) == {0: "waiting", 1: "failed"}


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda value: st.lists(value, max_size=3) | st.dictionaries(st.text(max_size=8), value, max_size=3),
)


@given(data=st.data())
def test_fields_of_any_type_are_looked_at_without_a_fault(tmp_path_factory, data):
    laid = laid_out(tmp_path_factory.mktemp("typed") / "run")
    name = data.draw(st.sampled_from(("run.json", "now.json", "verdict.json")))
    whole = json.loads((laid.path / name).read_text())
    laid.write(name, whole | {data.draw(st.sampled_from(sorted(whole))): data.draw(_JSON)})
    picture = laid.look()
    assert picture.job.phase in get_args(Phase)
    encoding.encode(picture)


def look_without_permission(path):
    laid = laid_out(path)
    (laid.path / "now.json").chmod(0)
    assert any("now.json cannot be read: Permission denied" in note for note in laid.look().notes)
    laid.path.chmod(0)
    with pytest.raises(RunDirError, match="Permission denied"):
        laid.look()
    laid.path.chmod(0o700)


def test_no_permission(tmp_path):
    if os.geteuid() != 0:
        look_without_permission(tmp_path / "run")
        return
    # Root without its privilege over files.
    as_user = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"]
    if not shutil.which("setpriv") or subprocess.run([*as_user, "true"], capture_output=True, check=False).returncode != 0:
        pytest.skip("root cannot give its privileges up here")
    code = "import sys, pathlib, tests.records.test_run_follower as t; t.look_without_permission(pathlib.Path(sys.argv[1]))"
    command = [*as_user, sys.executable, "-c", code, str(tmp_path / "run")]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    ran = subprocess.run(command, env=env, capture_output=True, text=True, timeout=100, check=False)
    assert ran.returncode == 0, ran.stderr


def test_a_gone_run_took_as_long_as_its_last_word(laid):
    """Not until now, which would grow with each look; now.json may be missing, damaged, or older than the last event."""
    laid.begin(s=1.0)
    laid.at, laid.alive = 885.0, False
    assert laid.look().job.elapsed_s == 3.0
    laid.write("now.json", "[")
    laid.tell("Note", s=16.25, text="x")
    assert laid.look().job.elapsed_s == 16.2
    laid.at = 20.0
    laid.now(laid.rank(0))
    laid.at = 2000.0
    assert laid.look().job.elapsed_s == 20.0


def test_how_long_a_gone_run_took_of_which_nothing_is_recorded_is_not_known(laid):
    laid.alive = False
    (laid.path / "events.jsonl").write_text("")
    picture = laid.look()
    assert (picture.job.phase, picture.job.elapsed_s) == ("gone", None)
