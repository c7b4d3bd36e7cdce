"""Runs whose end is not recorded: whether they are watched is told as it is known, with where the ranks were last, and none is called healthy."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from tests.chinese import zh
from tests.records.runs import SUPERVISOR, Laid

from unhang.diagnosis import run_history, unfinished
from unhang.diagnosis.why import judge
from unhang.facts import processes
from unhang.facts.host import Host
from unhang.records.rundir import RunDir
from unhang.records.status import Now, Place, RankNow, Standstill, Waiting

AT = Place(file="/p/train.py", line=16, name="step")
ELSEWHERE = Place(file="/p/data.py", line=7, name="load")


@pytest.fixture
def laid(tmp_path):
    def laid(*, alive, stands_s=None, **more):
        run = Laid(tmp_path / "run", alive=alive, **more)
        run.begin()
        waits = Waiting(since_s=50.0, call="all_reduce") if stands_s is not None else None
        standstill = None if stands_s is None else Standstill(since_s=run.at - stands_s, waiting=(0,), absent=(1,))
        run.now(run.rank(0, place=AT, waiting=waits), run.rank(1, place=ELSEWHERE, beat_s=run.at - 7.0), standstill=standstill)
        return run

    return laid


def told(run, logs="run/logs/attempt-0"):
    return unfinished.told(run.look(), run.looker.now, called="run", logs=logs)


def commands(found):
    return [r.command for r in found.remedies]


def test_of_a_dead_one_it_is_told_that_it_is_dead_and_where_ranks_were(laid):
    run = laid(alive=False)
    run.at += 120
    found = told(run).finding()
    assert found.standing == "not-established" and found.cause == "unknown"
    assert "unhang run (pid 4711 on node1) lives no longer, and has not said that the run was over" in found.says
    assert (
        "by its last record (120 s ago) and their last heartbeats: rank 0 at train.py:16 in step (step 100); "
        "rank 1 at data.py:7 in load (step 100, no heartbeat for 7.0 s by then); nothing was judged yet" in found.says
    )
    assert "已不存在" in zh(found.says) and "rank 1 在 data.py:7 in load（第 100 步、当时已有 7.0 s 没有心跳）" in zh(found.says)
    assert commands(found) == [
        "ps -o pid,stat,etime,args -p 200,201",
        "dmesg -T | grep -i 'killed process'",
        "unhang why run/logs/attempt-0",
    ]
    assert found.evidence[1].source == "now.json" and "rank 1 (pid 201) last seen at /p/data.py:7 in load, heartbeat 7.0 s" in found.evidence[1].text


def test_of_a_living_one_it_is_told_that_nothing_was_judged(laid):
    found = told(laid(alive=True)).finding()
    assert "the run still goes on, unhang run (pid 4711 on node1) lives" in found.says
    assert "a hang was not found, and is not ruled out" in found.says and "killed" not in found.says
    assert commands(found) == ["unhang top run"]


def test_of_one_that_stands_still_it_is_told_for_how_long(laid):
    found = told(laid(alive=True, stands_s=6.0)).finding()
    assert "rank 0 at train.py:16 in step (all_reduce, step 100)" in found.says
    assert "nothing had moved for 6.0 s then, less than the 11 s after which it is taken for a hang" in found.says
    assert commands(found) == ["unhang top run", "kill -INT 4711"]


def test_one_that_has_not_written_for_long_is_not_said_to_go_on(laid):
    run = laid(alive=True)
    run.at += 60
    assert "goes on" not in told(run).why and "has not written for so long" in told(run).why


def test_one_that_cannot_be_seen_stays_unknown(laid):
    found = told(laid(alive=None))
    assert "cannot be seen from here: it was killed, or the run still goes on" in found.why
    assert commands(found)[0] == "ssh -- node1 ps -o pid,stat,etime,args -p 4711"


def test_how_ranks_had_ended_is_told_apart(laid):
    run = laid(alive=False)
    gone = run.rank(0, place=AT, raised="ValueError: x", ended_s=59.0, exitcode=1)
    run.now(gone, run.rank(1, place=ELSEWHERE, ended_s=59.5, exitcode=-9))
    assert "; rank 0 had raised ValueError: x, rank 1 had been ended by SIGKILL; nothing was judged yet" in told(run).says
    assert "by its last record" not in told(run).says and "ps " not in str(commands(told(run)))


LOST = "it was killed, or failed itself, or its end was recorded in what is lost here"


def whole(run, logs="run/logs/attempt-0"):
    """As it is told with all that its directory holds."""
    rundir = RunDir(run.path)
    went = run_history.read(rundir.events, source="events.jsonl")
    return unfinished.look(rundir, went, called="run", logs=logs, is_alive=lambda process: run.alive).finding()


def cut_off(run):
    run.tell("Finished", s=60.0, exitcode=0, attempts=1, incidents=0, elapsed_s=60.0)
    events = run.path / "events.jsonl"
    events.write_bytes(events.read_bytes()[:-40])


@pytest.mark.parametrize("lose", [cut_off, lambda run: (run.path / "events.jsonl").unlink()], ids=["cut off", "not copied"])
def test_an_end_that_may_have_been_recorded_is_not_said_not_to_have_been(laid, lose):
    run = laid(alive=False)
    lose(run)
    found = whole(run)
    assert LOST in found.says and "has not said that the run was over" not in found.says
    assert "或者其结尾记录在此处丢失的内容中" in zh(found.says)
    assert [r.id for r in found.remedies] == ["look-for-what-is-left", "read-log", "who-killed-it"]
    # Of another machine, too.
    assert "it was killed, or the run still goes on, or its end was recorded in what is lost here" in judge(RunDir(run.path)).primary.says


def test_the_last_word_on_an_attempt_leaves_open_that_the_end_was_recorded(laid):
    run = laid(alive=False)
    run.now(run.rank(0, ended_s=59.0, exitcode=0, announced=True), last=True)
    assert LOST in whole(run).says and whole(run, logs=None).remedies == ()
    assert [r.id for r in whole(run).remedies] == ["read-log", "who-killed-it"]
    run.alive = None
    run.at += 60
    assert "it was killed, or the run still goes on, or its end was recorded in what is lost here" in whole(run).says


def test_what_followed_that_word_was_not_the_end(laid):
    run = laid(alive=False)
    run.now(run.rank(0, ended_s=59.0, exitcode=1, announced=True), last=True)
    run.at += 1
    run.tell("Note", text="port 29777 is still taken")
    assert "has not said that the run was over" in whole(run).says and "lost here" not in whole(run).says


def test_nor_was_what_is_damaged_before_the_last_event(laid):
    run = laid(alive=False)
    events = run.path / "events.jsonl"
    first, *others = events.read_bytes().splitlines(keepends=True)
    events.write_bytes(b"".join([first[:20] + b"\n", *others]))
    assert "has not said that the run was over" in whole(run).says and "lost here" not in whole(run).says


def test_of_an_attempt_that_is_followed_by_another_it_is_no_last_word(laid):
    run = laid(alive=False)
    run.now(run.rank(0), last=True)
    run.begin(1)
    assert "lost here" not in whole(run).says


def test_without_any_record_an_end_may_have_been_recorded(tmp_path):
    (tmp_path / "incidents").mkdir()
    assert "or its end was recorded in what is lost here" in judge(RunDir(tmp_path)).primary.says


@pytest.mark.parametrize("lose", ["now.json", "both", "attached", "older"])
def test_without_a_record_of_the_ranks_their_places_are_not_known(laid, lose):
    run = laid(alive=False)
    if lose == "older":
        run.tell("Started", attempt=1, pid=100)
    else:
        (run.path / "now.json").unlink()
    if lose == "both":
        (run.path / "events.jsonl").unlink()
    if lose == "attached":
        (run.path / "events.jsonl").write_text('{"s":0.5,"event":"Started","attempt":0,"pid":100}\n{"s":1.5,"event":"Attached","ra\n')
    says = told(run).says
    assert "where the ranks were is not known: no record of it is here" in says and "no rank had reported" not in says
    assert "不知道各 rank 在哪里：此处没有记录" in says.of("zh")


def test_a_run_of_which_nothing_is_written_down_is_not_known_either(laid):
    run = laid(alive=None)
    (run.path / "now.json").unlink()
    (run.path / "events.jsonl").unlink()
    run.run(supervisor=None)
    assert "where the ranks were is not known" in told(run).says


def test_that_no_rank_had_reported_is_told_by_the_record_of_them(laid):
    run = laid(alive=False)
    run.now()
    assert "no rank had reported to it" in told(run).says


FIRST_PID_NAMESPACE = "pid:[4026531836]"


def test_the_kernel_is_asked_for_a_pid_only_where_it_counts_by_the_same(laid):
    run = laid(alive=False)
    (run.path / "now.json").unlink()
    for namespace, asks, warns in (("pid:[4026532000]", "killed process", True), (FIRST_PID_NAMESPACE, "killed process 4711 ", False)):
        run.run(supervisor=vars(replace(SUPERVISOR, pid_namespace=namespace)))
        (killed,) = whole(run, logs=None).remedies
        assert killed.command == f"dmesg -T | grep -i '{asks}'"
        assert ("its own pids" in killed.says, "pid 4711" in killed.says) == (warns, warns) and ("4711" in zh(killed.says)) is warns


def test_a_host_is_no_option_of_ssh(laid):
    run = laid(alive=None)
    run.run(supervisor=vars(replace(SUPERVISOR, host="-oProxyCommand=touch x")))
    assert commands(told(run))[0] is None


def test_beside_the_verdict_on_an_incident_it_is_said_where_the_ranks_were_later(build, lab):
    rundir = build().rank(0, enqueued=13, completed=12).rank(1, enqueued=12, activity=lab.STOPPED, answered=False).write()
    rundir.events.write_text('{"s":3.5,"event":"Opened","incident":1,"kind":"hang"}\n')
    later = Now(
        attempt=0, host="node1", time_s=9.0, at_s=9.0, every_s=1.0, hang_after_s=11.0, ranks=(RankNow(rank=0, pid=7, host="node1", since_s=0.0),)
    )
    rundir.write(rundir.now, later)
    found = lab.judge(rundir)
    said = {n.what: n for n in found.not_examined}["the end of the run"]
    assert found.primary.cause == "process-stuck" and "rank 0 at a place that is not known (no heartbeat came)" in said.why
    assert "未知的位置" in zh(said.why)


def test_a_run_is_judged_by_its_very_process(laid):
    run = laid(alive=None)
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        run.run(supervisor=vars(processes.identity(Host(), child.pid)))
        lives = judge(RunDir(run.path))
    finally:
        child.communicate(b"\n")
    assert f"unhang run (pid {child.pid} on {os.uname().nodename}) lives" in lives.primary.says
    assert lives.not_examined[0].what == "the end of the run" and "lives" in lives.not_examined[0].why and "存活" in zh(lives.not_examined[0].why)
    dead = judge(RunDir(run.path))
    assert "lives no longer" in dead.primary.says and "lives no longer" in dead.not_examined[0].why


def test_ranks_that_outlive_a_killed_supervisor_are_named(laid):
    """As under a shell script, which does not take along what it has started."""
    run = laid(alive=None)
    host = Host()
    child, gone = (subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) for _ in range(2))
    try:
        supervisor = processes.identity(host, gone.pid)
        ticks = processes.start_ticks(host, child.pid)
        gone.communicate(b"\n")
        run.run(supervisor=vars(supervisor))
        # One is here, of one the pid is another's by now, of one the record does not tell, and one had ended.
        pids = {"pid": child.pid}
        run.now(*(run.rank(0, **pids, start_ticks=ticks), run.rank(1, **pids, start_ticks=ticks - 1), run.rank(2), run.rank(3, ended_s=5.0)))
        found = judge(RunDir(run.path)).primary
        run.path.chmod(0o777)
        strangers = judge(RunDir(run.path)).primary
        run.path.chmod(0o755)
        elsewhere = replace(supervisor, boot_id="another")
        run.run(supervisor=vars(elsewhere))
        unseen = judge(RunDir(run.path)).primary
    finally:
        child.communicate(b"\n")
    assert f"; still running, unwatched: rank 0 (pid {child.pid} on node1); no longer alive: rank 1" in found.says
    assert f"；仍在运行，但无人监视：rank 0（pid {child.pid}，node1）；进程已不存在：rank 1" in zh(found.says)
    assert commands(found)[:2] == [f"kill {child.pid}", "ps -o pid,stat,etime,args -p 202"]
    assert [r.id for r in strangers.remedies] == [r.id for r in found.remedies] and "'kill " not in str(commands(strangers))
    assert "still running" not in unseen.says and "no longer alive" not in unseen.says and "kill " not in str(commands(unseen))


@pytest.mark.parametrize("alive", [True, False, None])
def test_commands_for_a_directory_that_is_named_like_an_option_can_be_run(laid, tmp_path, monkeypatch, alive):
    run = laid(alive=alive)
    run.path.rename(tmp_path / "-x")
    (tmp_path / "-x" / "logs" / "attempt-0").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    found = unfinished.look(
        RunDir(Path("-x")), run_history.read(Path("-x/events.jsonl"), source="e"), called="-x", logs="-x/logs", is_alive=lambda process: alive
    )
    named = [c for c in commands(found) if "-x" in c]
    assert named == (["unhang top ./-x"] if alive else ["unhang why ./-x/logs"])
