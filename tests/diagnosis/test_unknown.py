"""Standstills that nothing explains: what is certain is told all the same."""

from __future__ import annotations

import pytest

WAITS = "rank 0 waits in all_reduce (train.py:20 in step)"


@pytest.fixture
def in_the_library(build, lab):
    """Rank 0 waits in a collective of the training's own, inside of an evaluation; rank 1 has left that, and waits in unhang for the others."""
    frames = lab.in_collective("all_reduce", lab.user(20, "step"))
    asks = lab.Frame(file="/v/lib/python3.11/site-packages/unhang/runtime/evaluation/evaluating.py", line=87, name="evaluate")
    activity = lab.Activity(window_s=3.0, state="S", cpu_share=0.01, tree_cpu_share=0.02, switches_per_s=300.0, moved_share=0.1)
    return (
        build()
        .rank(0, frames=frames, entries=[*lab.steps(12), lab.Entry(seq=13, op="all_reduce", done=False, frames=frames)])
        .rank(1, frames=(lab.user(58, "main"), asks), entries=lab.steps(12), activity=activity)
    )


def test_who_has_not_come_is_told_with_his_place(in_the_library):
    primary = in_the_library.judge().primary
    assert (primary.cause, primary.standing, primary.ranks) == ("unknown", "not-established", (0, 1))
    assert primary.says.startswith(f"no progress for 21 s; {WAITS}; rank 1 has not come to it, and stands at train.py:58 in main; why is not in")
    assert "rank 1 没有来到这里，停在 train.py:58 in main；原因不在证据之中" in primary.says_zh
    assert any(e.text.startswith('rank 1: File "') and "line 58" in e.text for e in primary.evidence)
