"""What torch prints of a hang when it is asked to (torch 2.13 on Gloo, really provoked; `torch_debug/`): checks of every call, barriers, stacks."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.chinese import zh

from unhang.cli.why_outputs import Beside
from unhang.diagnosis.logs import judge_logs
from unhang.logs.discovery import find
from unhang.records.stack_tree import ends

SAID = Path(__file__).with_name("torch_debug")
DESYNC = """\
[rank0]:[E1122 10:10:00.1 ProcessGroupNCCL.cpp:607] [Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=120, \
OpType=ALLREDUCE, NumelIn=64, NumelOut=64, Timeout(ms)=600000) ran for 600010 milliseconds before timing out.
\t - [0] Timeout at collective: ALLREDUCE, #120
"""


def judge(name):
    return judge_logs([str(SAID / name)]).verdict.primary


@pytest.fixture
def judge_text(tmp_path):
    def judge_text(text):
        (tmp_path / "train.log").write_text(text)
        return judge_logs([str(tmp_path / "train.log")]).verdict.primary

    return judge_text


@pytest.mark.parametrize("name", ["mismatch_op.log", "mismatch_cpp_stacks.log"])
def test_the_check_of_every_call_names_the_odd_rank_its_call_and_its_line(name):
    p = judge(name)
    assert (p.cause, p.standing, p.ranks, p.where) == ("collective-mismatch", "established", (1,), "/srv/job/train.py:12 in train")
    assert p.says == (
        "rank 1 issued BROADCAST of [64] Float at /srv/job/train.py:12 in train as call #3, where ranks 0 and 2 issued ALLREDUCE of [64] Float "
        "at /srv/job/train.py:8 in step (torch's own check; 2 of 3 ranks agree)"
    )
    assert zh(p.says) == (
        "调用 #3：rank 1 发出了 BROADCAST [64] Float（位于 /srv/job/train.py:12 in train），而 rank 0、2 发出了 ALLREDUCE [64] Float"
        "（位于 /srv/job/train.py:8 in step）（torch 自己的检查；3 个 rank 中有 2 个一致）"
    )
    assert p.remedies[0].id == "same-order" and "Rank 1 is running" in p.evidence[0].text


def test_the_check_tells_sizes(name="mismatch_shape.log"):
    p = judge(name)
    assert (p.ranks, p.remedies[0].id) == ((1,), "same-size")
    assert "rank 1 issued ALLREDUCE of [96] Float as call #3, where ranks 0 and 2 issued ALLREDUCE of [64] Float (" in p.says


@pytest.mark.parametrize(
    ("name", "ranks", "says"),
    [
        ("barrier.log", (1,), "ranks 0 and 2 waited 4.0 s in monitored_barrier (/srv/job/train.py:26 in train); rank 1 did not come to it"),
        ("barrier_all.log", (1, 2), "ranks 0 and 3 waited 4.0 s in monitored_barrier (/srv/job/train.py:29 in train); ranks 1 and 2 did not"),
        ("missing.log", (1,), "ranks 0 and 2 waited 15 s in all_reduce (/srv/job/train.py:8 in step); rank 1 did not come to it"),
    ],
)
def test_a_monitored_barrier_names_who_did_not_come(name, ranks, says):
    p = judge(name)
    assert (p.cause, p.standing, p.ranks) == ("collective-timeout", "not-established", ranks)
    assert p.says.startswith(says) and "ended by the launcher" in p.says
    assert "failed to pass monitoredBarrier" in p.evidence[0].text


def test_numbers_within_a_smaller_group_are_no_ranks(judge_text):
    """Ranks 0, 4 and 6 of eight have a group: the one that prints 2 is rank 6."""
    said = "[rank0]: RuntimeError: [Rank 0]: Ranks 1 failed to pass monitoredBarrier in 4000 ms\n"
    reached = "Rank {} successfully reached monitoredBarrier, but received errors while waiting for send/recv from rank 0. Please check rank 0 logs\n"
    assert judge_text(said + "[rank6]: RuntimeError: " + reached.format(2)).ranks != (1,)
    assert judge_text(said + "[rank2]: RuntimeError: " + reached.format(2)).ranks == (1,)


def test_a_desync_report_names_who_is_late(judge_text):
    late = "\t     [2] finished collective #119, but didn't join collective #120 (count from 1)\n"
    p = judge_text(DESYNC + late)
    assert p.ranks == (2,) and "rank 2 did not come to it (torch's own desync report, in the numbers" in p.says and len(p.evidence) == 2
    status = (
        "[rank0]:[E1122 10:10:00.2 ProcessGroupNCCL.cpp:2199] [PG ID {id} PG GUID {guid} Rank 0] failure detected by watchdog at work sequence id: "
        "120 PG status: last enqueued work: 121, last completed work: 119\n"
    )
    assert "(torch's own desync report);" in judge_text(DESYNC + status.format(id=0, guid="0(default_pg)") + late).says
    assert judge_text(DESYNC + status.format(id=2, guid="7(mesh_tp)") + late).ranks != (2,)
    never = "\t - To our best knowledge, ranks [1, 3] are the lagging ranks that caused this timeout. They never joined any collectives\n"
    assert judge_text(DESYNC + never).ranks == (1, 3)


def test_a_desync_report_of_two_operations_under_one_number(judge_text):
    began = "\t - Snapshot of ranks' latest states:\n\t   #120 started ranks:\n\t     [0, 1, 3] started ALLREDUCE\n"
    assert judge_text(DESYNC + began).cause == "collective-timeout"
    p = judge_text(DESYNC + began + "\t     [2] started BROADCAST\n")
    assert (p.cause, p.standing) == ("collective-mismatch", "established")
    assert "rank(s) 0, 1, 3 began ALLREDUCE as number 120, and rank(s) 2 BROADCAST" in p.says


@pytest.mark.parametrize("page", [False, True])
def test_stacks_of_torchs_debug_server_are_those_of_its_headings(tmp_path, page):
    text = (SAID / "stacks_20261122_122334.txt").read_text()
    name = "stacks_20261122_122334.txt"
    if page:
        name = "stacks.html"
        for rank, port in enumerate((55225, 33093, 58919)):
            address = f"http://node7:{port}/handler/dump_traceback?"
            text = text.replace(f"=== Rank {rank}: {address} ===\n", f"        <h2>Rank {rank}: {address}</h2>\n        \n            <pre>")
    (tmp_path / name).write_text(text)
    # Of files for several points in time the last one counts.
    (tmp_path / f"{name.partition('.')[0][:-1]}0.txt").write_text(text.replace("load_batch", "load_before"))
    found = find([str(tmp_path)])
    beside = Beside(stacks=True)
    judged = judge_logs([str(tmp_path)], found=found)
    beside.take_files(found, judged.verdict, judged)
    told = {ranks: frames[-1].name for ranks, frames in ends(beside.trunk)}
    assert told == {(1,): "load_batch", (0, 2): "all_reduce"} and beside.untold == []
