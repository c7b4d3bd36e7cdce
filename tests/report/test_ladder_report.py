from dataclasses import replace

import pytest
from tests.chinese import both

from unhang.cli.doctor_fix import proposed
from unhang.model import Finding, Outcome, StageResult, Steps, Trial, Tried, Verdict
from unhang.report import ladder_report


def trial(choice, outcome="passed", **more):
    return Trial(choice=choice, outcome=outcome, world_size=2, backend="gloo", **{"says": both("it was | seen", "已见"), **more})


def tried(id, made=None, skipped=""):
    return Tried(id=id, title=both(f"way {id}", f"方案 {id}"), cost=both("some", "一些"), trial=made, skipped=both(skipped, skipped and "无 NCCL"))


STAGES = (
    StageResult(stage="import", world_size=2, state="passed", says="torch 2.13"),
    StageResult(stage="process-group", world_size=2, state="failed", says="Connection refused"),
    StageResult(stage="barrier", world_size=2, state="not-tested"),
)
OUTCOME = Outcome(
    chosen={"interface": "lo"},
    rungs=(
        tried("as-is", trial({}, "failed", stages=STAGES, verdict=Verdict(primary=Finding(cause="gloo-connect", standing="likely", says="refused")))),
        tried("shm-off", skipped="no NCCL"),
        tried("interface", trial({"interface": "lo"}, busbw_gbps=1.0)),
        tried("gloo", trial({"backend": "gloo"}, busbw_gbps=4.0, steps=Steps(exitcode=0, steps=5, step_s=0.25))),
    ),
    dropping=(trial({"interface": "lo"}, busbw_gbps=2.0, transports=("Gloo/TCP",), interfaces=("lo (127.0.0.1)",)),),
    confirmed=True,
    says=both("interface=lo is the smallest", "interface=lo 是最小改动"),
    why="gloo-connect",
    environment={"GLOO_SOCKET_IFNAME": "lo"},
    seconds=31.4,
)


def test_it_tells_what_failed_what_was_measured_and_what_was_chosen():
    text = ladder_report.render(OUTCOME, lang="en", command=["-n", "2", "train.py"])
    assert "- ✓ import torch: torch 2.13" in text
    assert "- ✗ process group: Connection refused" in text
    assert "- not reached: barrier" in text and "- ?" not in text and "| ?" not in text
    assert "\nAs it is, " in text and "With as it is" not in text
    assert "| way gloo | ✓ works | ★★★★★ | ★★★★★ | 4 GB/s, 0.25 s a step, 1 of 1 trials passed | some |" in text
    # The better of its two trials is half as fast as the best.
    assert "| way interface | ✓ works | ★★☆☆☆ | ★★★★★ | 1 to 2 GB/s, 2 of 2 trials passed | some |" in text
    assert "| way shm-off | - not tried: no NCCL |" in text
    assert "export GLOO_SOCKET_IFNAME=lo" in text
    assert "unhang run --set interface=lo -n 2 train.py" in text
    assert "lo (127.0.0.1)" in text and "took 31 s" in text


@pytest.mark.parametrize(
    "more",
    [
        {"chosen": {"interface": "lo", "backend": "gloo"}, "environment": {"GLOO_SOCKET_IFNAME": "lo", "UNHANG_BACKEND": "gloo"}},
        {"chosen": {"shm": False, "processes": 2}, "environment": {"NCCL_SHM_DISABLE": "1"}, "arguments": ("--nproc-per-node", "2")},
        {"chosen": {"processes": 2}, "environment": {"NPROC_PER_NODE": "2"}},
    ],
)
def test_a_part_of_what_was_proven_is_not_offered(more):
    outcome = replace(OUTCOME, **more)
    text = ladder_report.render(outcome, lang="en")
    assert "export" not in text and "By hand" not in text and "variables alone do not" in text
    assert all(f"--set {key}=" in text for key in outcome.chosen)
    assert proposed(outcome) == ()
    assert [s.name for s in proposed(OUTCOME)] == ["GLOO_SOCKET_IFNAME"]


def test_the_best_comes_first_and_failures_last():
    assert [w.title for w in ladder_report.ways(OUTCOME, "en")] == ["way gloo", "way interface", "way as-is"]


def test_in_chinese_no_english_sentence_is_left():
    text = ladder_report.render(OUTCOME, lang="zh")
    assert "## 选定的方案" in text and "进程组" in text and "方案 interface" in text and "无 NCCL" in text
    assert " works" not in text and "not tried" not in text


def test_a_bar_in_a_message_breaks_no_table():
    rows = [line for line in ladder_report.render(OUTCOME, lang="en").splitlines() if line.startswith("| way")]
    assert all(row.replace("\\|", "").count("|") == 7 for row in rows)


@pytest.mark.parametrize(
    ("chosen", "said"), [(None, "no change of settings is proven"), ({}, "the probes pass as it is, and so can prove no change")]
)
def test_nothing_is_recommended_that_was_not_proven(chosen, said):
    text = ladder_report.render(Outcome(chosen=chosen, rungs=OUTCOME.rungs[:1], says="x"), lang="en")
    assert said in text and "export" not in text


def test_what_passes_as_it_is_is_not_said_to_work():
    text = ladder_report.render(Outcome(chosen={}, rungs=(tried("as-is", trial({}, busbw_gbps=1.0)),), says="x"), lang="en")
    assert "| way as-is | ✓ the probes pass |" in text and "works |" not in text


@pytest.mark.parametrize(("share", "stars"), [(1.0, "★★★★★"), (0.5, "★★☆☆☆"), (0.01, "★☆☆☆☆"), (2.0, "★★★★★")])
def test_stars_are_shares(share, stars):
    assert ladder_report.stars_of(share) == stars
