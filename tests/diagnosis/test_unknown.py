"""Standstills of trainings in which some ranks wait in unhang's library: what is certain is told, whether it explains them or not."""

from __future__ import annotations

import pytest
from tests.chinese import zh


@pytest.fixture
def in_the_library(build, lab):
    """Rank 0 waits in a collective of the training's own, inside of an evaluation; rank 1 has left that, and waits in unhang for the others."""

    def in_the_library(world):
        frames = lab.in_collective("all_reduce", lab.user(20, "step"))
        asks = lab.Frame(file="/v/lib/python3.11/site-packages/unhang/runtime/evaluation/evaluation.py", line=87, name="evaluate")
        activity = lab.Activity(window_s=3.0, state="S", cpu_share=0.01, tree_cpu_share=0.02, switches_per_s=300.0, moved_share=0.1)
        entries = [*lab.steps(12), lab.Entry(seq=13, op="all_reduce", done=False, frames=frames)]
        b = build().rank(0, frames=frames, entries=entries, world=world)
        return b.rank(1, frames=(lab.user(58, "main"), asks), entries=lab.steps(12), activity=activity, world=world)

    return in_the_library


def test_a_collective_and_a_call_of_the_library_wait_for_each_other(in_the_library):
    primary = in_the_library(2).judge().primary
    assert (primary.cause, primary.standing, primary.ranks) == ("collective-mismatch", "likely", (0, 1))
    assert primary.says.startswith("ranks wait for each other in a circle: rank 0 in all_reduce #13 of group 0 (train.py:20 in step); ")
    assert "rank 1 in unhang.evaluate (train.py:58 in main)" in primary.says


def test_who_has_not_come_is_told_with_his_place(in_the_library):
    """Where ranks of other hosts may explain it."""
    primary = in_the_library(3).judge(expected_world=3).primary
    assert (primary.cause, primary.standing, primary.ranks) == ("unknown", "not-established", (0, 1))
    said = (
        "no progress for 21 s; rank 0 waits in all_reduce (train.py:20 in step); rank 1 has not come to it, and stands at train.py:58 in main; why is"
    )
    assert primary.says.startswith(said)
    assert "rank 1 没有来到这里，停在 train.py:58 in main；从现有证据看不出原因" in zh(primary.says)
    assert any(e.text.startswith('rank 1: File "') and "line 58" in e.text for e in primary.evidence)
