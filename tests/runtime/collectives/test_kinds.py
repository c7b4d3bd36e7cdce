"""Calls of different kinds under one number: they end at once, on all ranks alike, and it is said who called what; the next call works."""

from __future__ import annotations

import threading
import time

import pytest
import torch
from tests.runtime.collectives import world as of_ranks

import unhang
from unhang.runtime.collectives import guarded_group as circles

pytestmark = pytest.mark.torch

# Far below the deadlines, with a busy machine in mind.
AT_ONCE_S = 12.0
DEADLINE_S = 60.0


def call(kind: str) -> object:
    match kind:
        case "barrier":
            return unhang.barrier(deadline=DEADLINE_S)
        case "all_reduce":
            return unhang.all_reduce(torch.ones(6), deadline=DEADLINE_S)
        case "agree":
            return unhang.agree(1, deadline=DEADLINE_S)
        case "reduce_metrics":
            return unhang.reduce_metrics({"loss": 1.0}, deadline=DEADLINE_S)
        case "evaluate":
            return unhang.evaluate(lambda data, size: {"loss": 1.0}, {"one": [1]}, batch_size=1, deadline=DEADLINE_S)
        case "evaluation":
            with unhang.evaluation(deadline=DEADLINE_S) as guard:
                for _ in range(4):
                    unhang.all_reduce(torch.ones(3), deadline=DEADLINE_S)
            return guard.result
    raise AssertionError(kind)


def differs(rank: int, odd: int, most: str, other: str, often: int, late_s: float = 0.0) -> tuple[str, str, tuple[int, ...], float, float]:
    for kind in (most, other) * often:
        call(kind)
    if rank == odd:
        time.sleep(late_s)
    began = time.monotonic()
    name, said, stray = "", "", ()
    try:
        call(other if rank == odd else most)
    except unhang.CollectiveError as e:
        name, said, stray = type(e).__name__, str(e), getattr(e, "odd", ())
    took = time.monotonic() - began
    return name, said, stray, took, unhang.all_reduce(torch.full((5,), float(rank)), deadline=30)[0].item()


KINDS = [
    # most, other, as it is called, often
    ("barrier", "agree", "barrier", "agree", 0),
    ("all_reduce", "agree", "all_reduce", "agree", 4),
    ("agree", "reduce_metrics", "agree", "reduce_metrics", 0),
    ("barrier", "all_reduce", "barrier", "all_reduce", 4),
    ("agree", "evaluate", "agree", "an evaluation", 0),
    ("barrier", "evaluation", "barrier", "an evaluation", 1),
    ("evaluation", "barrier", "an evaluation", "barrier", 1),
]


@pytest.mark.parametrize(("most", "other", "mine", "theirs", "often"), KINDS)
def test_they_end_at_once_and_who_called_what_is_said(worlds, most, other, mine, theirs, often):
    for name, said, odd, took, after in worlds(3)(differs, 2, most, other, often, bound_s=60):
        assert name == "CollectiveMismatch", said
        assert mine in said and theirs in said and "rank 2 differs from most" in said
        assert odd == (2,)
        assert took < AT_ONCE_S
        assert after == 3.0


def test_who_comes_when_the_others_have_long_waited_inside_of_an_evaluation(worlds):
    for name, said, odd, took, after in worlds(3)(differs, 2, "evaluation", "barrier", 1, 1.5, bound_s=60):
        assert (name, odd, after) == ("CollectiveMismatch", (2,), 3.0) and took < 1.5 + AT_ONCE_S, said


def without_the_last(rank: int) -> None:
    if rank == 2:
        of_ranks.store.wait(["parted"])
    try:
        call("agree" if rank == 1 else "barrier")
    finally:
        of_ranks.store.set("parted", "")


def test_who_has_not_come_is_missing_here_as_well(fresh):
    world = fresh(3)
    *found, late = world.try_(without_the_last)
    for one in found:
        assert (one.kind, one.missing) == ("CollectiveMismatch", (2,))
        assert one.closed == found[0].closed and {said.rank: said.call for said in one.closed.reports} == {
            0: "barrier",
            1: "agree",
        }
    assert late.kind == "LatePeer" and late.closed == found[0].closed
    world(in_step)


def in_step(rank: int) -> None:
    unhang.barrier(deadline=DEADLINE_S)


def test_of_two_ranks_neither_is_odd(worlds):
    for name, _, odd, took, after in worlds(2)(differs, 1, "barrier", "agree", 1):
        assert (name, odd, after) == ("CollectiveMismatch", (), 1.0) and took < AT_ONCE_S


# -- threads of an evaluation's own


def in_a_thread(rank: int) -> list:
    """What a data loader's or a metric's thread does while the evaluation waits for it."""
    heard: list = []

    def calls() -> None:
        heard.append(dict(unhang.agree(rank, deadline=20).values))
        heard.append(unhang.all_reduce(torch.full((3,), float(rank)), deadline=20)[0].item())

    def score(data, size):
        thread = threading.Thread(target=calls)
        thread.start()
        thread.join()
        return {"score": (heard[-1], 1)}

    found = unhang.evaluate(score, {"one": [1]}, batch_size=1, deadline=20)
    with unhang.evaluation(deadline=20) as guard:
        guard.add("two", score=(score(None, 1)["score"]))
    return [found.flat()["eval/one/score"], guard.result.flat()["eval/two/score"], heard, unhang.agree(1, deadline=20).unanimous]


def test_a_thread_of_an_evaluation_s_own_may_call_the_library(worlds):
    expected = [{0: 0, 1: 1, 2: 2}, 3.0] * 2
    assert worlds(3)(in_a_thread) == [[3.0, 3.0, expected, True]] * 3


def finished(rank: int) -> list[bool]:
    """A call of a scope that was left, of one that goes on, and those that were not made."""
    circle = circles.of()
    key = circle.begin("evaluation")
    with circle.scope(key):
        unhang.barrier(deadline=20)
        inside = circle.has_finished(f"{key}/1")
    circle.exchange_at(key, b"1", 20)
    return [inside, circle.has_finished(f"{key}/1"), circle.has_finished(f"{key}/2"), circle.has_finished(key.rpartition("/")[0])]


def test_what_was_completed_in_a_scope_is_known_when_it_was_left(worlds):
    assert worlds(2)(finished) == [[True, True, False, True]] * 2


# -- numbers that are none


def not_a_number(rank: int) -> list:
    nan, endless = float("nan"), float("inf")
    agreed = unhang.agree(nan, deadline=20)
    both = unhang.agree({"loss": [nan, endless, -endless], "rank": 0}, deadline=20)
    unlike = unhang.agree(nan if rank else 1.0, deadline=20)
    return [repr(dict(agreed.values)), agreed.unanimous, repr(both.value), both.unanimous, repr(dict(unlike.values)), unlike.unanimous]


def test_not_a_number_and_infinities_come_back_as_they_were(worlds):
    loss = "{'loss': [nan, inf, -inf], 'rank': 0}"
    expected = ["{0: nan, 1: nan}", True, loss, True, "{0: 1.0, 1: nan}", False]
    assert worlds(2)(not_a_number) == [expected] * 2
