"""Two sources that cannot both be right: shown with both statements, and what rests on one of them is worth less."""

from __future__ import annotations

import html
import io
import json

import pytest
from tests.chinese import zh
from tests.ras.nccl_ras import V28, in_json, job
from typer.testing import CliRunner

from unhang.cli.app import app
from unhang.report import markdown, terminal
from unhang.report.console import Console
from unhang.report.html import render as page

STATUS = (
    "[rank0]:[E1103 10:00:00.123456789 ProcessGroupNCCL.cpp:1792] [PG ID 0 PG GUID 0(default_pg) Rank {rank}] Exception (either an error or timeout) "
    "detected by watchdog at work: {failed}, last enqueued NCCL work: {enqueued}, last completed NCCL work: {completed}.\n"
)


def waits(lab, line=20):
    return lab.in_collective("all_reduce", lab.user(40, "main"), lab.user(line, "step"))


def two_waiting(b, lab, *, backend="nccl", world=3):
    for number in (0, 1):
        pending = lab.Entry(seq=6, done=False, frames=waits(lab))
        b.rank(number, frames=waits(lab), entries=[*lab.steps(5), pending], backend=backend, world=world)
    return b


def test_a_heartbeat_that_counts_more_than_the_recorder_has(build, lab):
    b = two_waiting(build(), lab)
    b.rank(2, frames=(lab.user(61, "load"),), entries=lab.steps(5), enqueued=9, completed=5, backend="nccl", world=3)
    (c,) = b.judge().contradictions
    assert (c.about, c.ranks) == ("issued", (2,))
    assert c.says == "rank 2: its heartbeat counts 9 calls issued in group 0, but its recorder's newest is #5"
    assert zh(c.says) == "rank 2：心跳显示组 0 中发出了 9 次调用，而 flight recorder 中最新的是 #5"
    assert [s.source for s in c.statements] == ["incidents/1/incident.json", "incidents/1/flight/rank_2"]


def test_a_heartbeat_that_is_merely_older_is_no_contradiction(build, lab):
    b = two_waiting(build(), lab)
    b.rank(2, frames=(lab.user(61, "load"),), entries=lab.steps(5), enqueued=4, completed=4, backend="nccl", world=3)
    assert b.judge().contradictions == ()


def test_a_heartbeat_that_counts_completed_what_the_recorder_has_pending(build, lab):
    b = two_waiting(build(), lab)
    pending = [*lab.steps(5), lab.Entry(seq=6, done=False, frames=waits(lab))]
    b.rank(2, frames=waits(lab), entries=pending, enqueued=6, completed=6, backend="nccl", world=3)
    (c,) = b.judge().contradictions
    assert (c.about, c.ranks) == ("completed", (2,)) and "all_reduce #6 has not ended" in c.says


def test_calls_of_gloo_may_end_out_of_order(build, lab):
    b = two_waiting(build(), lab, backend="gloo")
    pending = [*lab.steps(5), lab.Entry(seq=6, done=False, frames=waits(lab))]
    b.rank(2, frames=waits(lab), entries=pending, enqueued=6, completed=6, world=3)
    assert b.judge().contradictions == ()


def test_a_stack_inside_a_call_that_the_recorder_has_not(build, lab):
    b = two_waiting(build(), lab)
    b.rank(2, frames=waits(lab), entries=lab.steps(5), backend="nccl", world=3)
    verdict = b.judge()
    (c,) = verdict.contradictions
    assert (c.about, c.ranks) == ("issued", (2,))
    assert [s.source for s in c.statements] == ["incidents/1/stacks/rank2.json", "incidents/1/flight/rank_2"]
    assert "inside all_reduce" in c.statements[0].text and "all_reduce #5" in c.statements[1].text


def test_a_stack_in_what_no_recorder_takes_is_no_contradiction(build, lab):
    b = two_waiting(build(), lab)
    b.rank(2, frames=lab.in_collective("recv", lab.user(61, "load")), entries=lab.steps(5), backend="nccl", world=3)
    assert b.judge().contradictions == ()


@pytest.mark.parametrize(
    ("enqueued", "completed", "about"),
    [(6, 5, []), (8, 5, ["issued"]), (6, 6, ["completed"]), (8, 6, ["issued", "completed"])],
)
def test_what_the_watchdog_printed_against_the_dump(build, lab, enqueued, completed, about):
    b = two_waiting(build(), lab)
    b.rank(2, frames=(lab.user(61, "load"),), entries=lab.steps(5), backend="nccl", world=3)
    b.log(0, "epoch 1\n" + STATUS.format(rank=0, failed=6, enqueued=enqueued, completed=completed))
    found = b.judge().contradictions
    assert [c.about for c in found] == about
    for c in found:
        assert c.ranks == (0,) and (c.statements[0].source, c.statements[0].line) == ("logs/attempt-0/rank0.err", 2)
        assert c.statements[1].source == "incidents/1/flight/rank_0"


def test_of_workers_that_a_launcher_started_again_nothing_is_concluded(build, lab):
    b = two_waiting(build(), lab)
    b.rank(2, frames=(lab.user(61, "load"),), entries=lab.steps(5), backend="nccl", world=3)
    b.log(0, STATUS.format(rank=0, failed=90, enqueued=99, completed=88))
    b.log(None, "[default] Worker group FAILED. 2/3 attempts left; will restart worker group\n")
    assert b.judge().contradictions == ()


def test_ras_says_running_of_a_process_that_has_ended(build, lab):
    b = build()
    for number in (0, 1):
        pending = lab.Entry(seq=65, done=False, frames=waits(lab))
        b.rank(number, frames=waits(lab), entries=[*lab.steps(64), pending], backend="nccl", world=16)
    answer = in_json(V28, job())
    told = answer["communicators"][0]["ranks"][2]
    b.rank(2, ended=lab.Ended(at_s=20.0, exitcode=1), backend="nccl", world=16, pid=told["pid"])
    path = b.rundir.ras(1, "json")
    b.rundir.write_bytes(path, json.dumps(answer).encode())
    (c,) = b.judge(ras=b.rundir.relative(path)).contradictions
    assert (c.about, c.ranks) == ("alive", (2,))
    assert "RAS" in c.says and "with exit code 1" in c.says
    assert c.statements[0].source.endswith("incidents/1/ras.json")


def test_ras_of_another_process_with_that_number_is_none(build, lab):
    b = build()
    for number in (0, 1):
        pending = lab.Entry(seq=65, done=False, frames=waits(lab))
        b.rank(number, frames=waits(lab), entries=[*lab.steps(64), pending], backend="nccl", world=16)
    b.rank(2, ended=lab.Ended(at_s=20.0, exitcode=1), backend="nccl", world=16, pid=77_777)
    path = b.rundir.ras(1, "json")
    b.rundir.write_bytes(path, json.dumps(in_json(V28, job())).encode())
    assert b.judge(ras=b.rundir.relative(path)).contradictions == ()


def test_ras_of_a_living_process_contradicts_nothing(build, lab):
    b = build()
    answer = in_json(V28, job())
    for number in (0, 1):
        pending = lab.Entry(seq=65, done=False, frames=waits(lab))
        pid = answer["communicators"][0]["ranks"][number]["pid"]
        b.rank(number, frames=waits(lab), entries=[*lab.steps(64), pending], backend="nccl", world=16, pid=pid)
    path = b.rundir.ras(1, "json")
    b.rundir.write_bytes(path, json.dumps(answer).encode())
    assert b.judge(ras=b.rundir.relative(path)).contradictions == ()


FAILED = (
    "E1103 10:00:00.000000 4000 torch/distributed/elastic/multiprocessing/api.py:882] failed (exitcode: {code}) local_rank: 1 (pid: 4001) of binary\n"
)


@pytest.mark.parametrize(("code", "about"), [(1, []), (3, ["ending"]), (-9, ["ending"])])
def test_how_a_rank_ended_by_the_launcher_and_by_the_supervisor(build, lab, code, about):
    b = build()
    b.rank(0, frames=waits(lab), raised=lab.lost())
    b.rank(1, ended=lab.Ended(at_s=20.0, exitcode=1))
    b.log(None, FAILED.format(code=code))
    found = b.judge("failure").contradictions
    assert [c.about for c in found] == about
    assert all(str(code) in c.says and "exit code 1" in c.says and c.statements[0].line == 1 for c in found)


def test_a_kill_in_the_kernel_log_of_a_process_that_ended_otherwise(build, lab):
    b = build()
    b.rank(0, frames=waits(lab), raised=lab.lost())
    b.rank(1, ended=lab.Ended(at_s=20.0, exitcode=1))
    b.dmesg("[88123.4] Out of memory: Killed process 4001 (python3) total-vm:91234567kB, anon-rss:65012345kB\n")
    (c,) = b.judge("failure").contradictions
    assert (c.about, c.ranks, c.statements[0].line) == ("ending", (1,), 1)
    assert "OOM killer" in c.says and "exit code 1" in c.says
    assert zh(c.says) == "rank 1：内核日志说它的进程被 OOM killer 结束，而 unhang 看到它已经结束，退出码 1"


def test_a_kill_that_both_saw_is_none(build, lab):
    b = build()
    b.rank(0, frames=waits(lab), raised=lab.lost())
    b.rank(1, ended=lab.Ended(at_s=20.0, exitcode=-9))
    b.dmesg("[88123.4] Out of memory: Killed process 4001 (python3) total-vm:91234567kB\n")
    verdict = b.judge("failure")
    assert verdict.contradictions == () and verdict.primary.standing == "established"


def test_what_rests_on_a_denied_source_is_worth_less(build, lab):
    def mismatch(**how):
        b = build()
        for number in (0, 1, 2):
            sizes = ((8,),) if number == 2 else ((4,),)
            entries = [*lab.steps(5), lab.Entry(seq=6, done=False, sizes=sizes, frames=waits(lab))]
            b.rank(number, frames=waits(lab), entries=entries, backend="nccl", world=3, **(how if number == 2 else {}))
        return b.judge()

    plain, denied = mismatch(), mismatch(enqueued=9, completed=5)
    assert (plain.primary.cause, plain.primary.standing, plain.contradictions) == ("collective-mismatch", "established", ())
    assert (denied.primary.cause, denied.primary.standing) == ("collective-mismatch", "likely")
    assert denied.primary.ranks == (2,) and len(denied.contradictions) == 1


def test_a_contradiction_about_another_rank_lowers_nothing(build, lab):
    b = build()
    for number in (0, 1, 2):
        sizes = ((8,),) if number == 2 else ((4,),)
        entries = [*lab.steps(5), lab.Entry(seq=6, done=False, sizes=sizes, frames=waits(lab))]
        b.rank(number, frames=waits(lab), entries=entries, backend="nccl", world=3, enqueued=9 if number == 0 else None, completed=5)
    verdict = b.judge()
    assert verdict.primary.standing == "established" and [c.ranks for c in verdict.contradictions] == [(0,)]


def test_every_report_shows_both_statements(build, lab):
    b = two_waiting(build(), lab)
    b.rank(2, frames=(lab.user(61, "load"),), entries=lab.steps(5), enqueued=9, completed=5, backend="nccl", world=3)
    verdict = b.judge()
    out = io.StringIO()
    terminal.render(verdict, Console(out, width=100), lang="en", whole=True)
    for text in (out.getvalue(), markdown.render(verdict), html.unescape(page(verdict))):
        flat = " ".join(text.replace("\\", "").split())
        assert "sources disagree" in flat
        assert "its heartbeat counts 9 calls issued in group 0" in flat and "rank 2: its recorder's newest is #5" in flat
    out = io.StringIO()
    terminal.render(verdict, Console(out, width=80, force_terminal=True, color_system=None), lang="en")
    rows = out.getvalue().splitlines()
    assert len(rows) <= 25 and "sources disagree" in out.getvalue() and "its heartbeat counts 9 calls" in out.getvalue()


@pytest.mark.parametrize(
    ("enqueued", "completed", "about"),
    # Where the log knows of more calls it is newer than the dump, or of a group that was made again.
    [(6, 5, []), (6, 6, [("completed", [0])]), (8, 5, []), (10, 9, [])],
)
def test_logs_and_dumps_that_were_given_together(tmp_path, lab, enqueued, completed, about):
    for number in (0, 1, 2):
        entries = lab.steps(5) if number == 2 else [*lab.steps(5), lab.Entry(seq=6, done=False, frames=waits(lab))]
        (tmp_path / f"nccl_trace_rank_{number}").write_bytes(lab.dump(entries, backend="nccl", world=3))
    (tmp_path / "train.log").write_text(STATUS.format(rank=0, failed=6, enqueued=enqueued, completed=completed))
    done = CliRunner().invoke(app, ["why", "--json", str(tmp_path)])
    assert done.exit_code == 1, done.output
    found = json.loads(done.stdout)["contradictions"]
    assert [(c["about"], c["ranks"]) for c in found] == about
    if about:
        assert [s["source"].rpartition("/")[2] for s in found[0]["statements"]] == ["train.log", "nccl_trace_rank_0"]
