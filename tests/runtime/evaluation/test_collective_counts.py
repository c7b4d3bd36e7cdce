"""A group that an evaluation leaves out of step is found, whichever it is, on all ranks alike; nothing is said of any other."""

from __future__ import annotations

import logging
import threading
import time

import pytest
import torch
import torch.distributed as dist
from tests.runtime.collectives import world as of_ranks
from tests.runtime.collectives.world import reads_its_keys

import unhang
from unhang.runtime.evaluation import collective_counts

pytestmark = pytest.mark.torch

BOUND_S = 60.0


def told(fn, *, deadline: float = 60.0) -> str:
    """What all ranks raise, or "" where the evaluation is complete."""
    try:
        found = unhang.evaluate(lambda data, size: fn() or {"a": 1.0}, {"a": 1}, batch_size=1, deadline=deadline, retries=0)
    except unhang.EvaluationFailed as e:
        return str(e)
    return "" if found.ok else f"not ok: {found.data_sets} {found.why}"


def of_a_second_group(rank: int, members: list[int], odd: int) -> str:
    group = dist.new_group(members)

    def uses() -> None:
        if rank in members:
            dist.all_reduce(torch.ones(1), group=group)
        if rank == odd:
            dist.all_reduce(torch.ones(1), group=group, async_op=True)

    return told(uses)


@pytest.mark.parametrize(("size", "members", "odd"), [(2, [0, 1], 1), (3, [1, 2], 2), (4, [0, 2, 3], 0)])
def test_a_second_group_that_is_out_of_step_ends_it_on_all_ranks(fresh, size, members, odd):
    (said,) = set(fresh(size)(of_a_second_group, members, odd, bound_s=BOUND_S))
    counts = ", ".join(f"rank {rank} {1 + (rank == odd)}" for rank in members)
    assert "group '1' " in said and f"({counts})" in said


def of_two_backends(rank: int) -> str:
    # Those that torch makes of one kind are one.
    dist.Backend.register_backend("another", dist.ProcessGroupGloo, devices=["cuda"])
    group = dist.new_group([0, 1], backend="cpu:gloo,cuda:another")
    backend = group._get_backend(torch.device("cuda" if rank else "cpu"))
    return told(lambda: backend.allreduce([torch.ones(1)]) and None)


def test_each_backend_of_a_group_counts_by_itself(fresh):
    said = set(fresh(2)(of_two_backends, bound_s=BOUND_S))
    assert len(said) == 1 and said.pop().count("is out of step") == 2


def in_step(rank: int, what: str) -> str:
    size = dist.get_world_size()
    mine = [dist.new_group([0, 1]), dist.new_group([1, 2])]

    def uses() -> None:
        if what == "subgroups":
            for index, group in enumerate(mine):
                for _ in range(3 * (rank in (index, index + 1))):
                    dist.all_reduce(torch.ones(1), group=group)
        elif what == "a pipeline":
            if rank:
                dist.recv(torch.ones(1), rank - 1)
            if rank < size - 1:
                dist.send(torch.ones(1), rank + 1)
            dist.barrier()
        elif what == "groups of its own":
            kept, dropped = dist.new_group(list(range(size))), dist.new_group(list(range(size)))
            dist.all_reduce(torch.ones(1), group=kept)
            if rank:
                dist.all_reduce(torch.ones(1), group=dropped, async_op=True)
            dist.destroy_process_group(dropped)

    return told(uses)


@pytest.mark.parametrize("what", ["subgroups", "a pipeline", "groups of its own"])
def test_nothing_is_said_of_groups_that_are_in_step(fresh, what):
    assert fresh(3)(in_step, what, bound_s=BOUND_S) == [""] * 3


def beside_a_thread(rank: int, late: str) -> tuple[str, list[str]]:
    group = dist.new_group([0, 1])
    ended = threading.Event()

    def serves() -> None:
        if rank:
            of_ranks.store.wait(["ahead"])
            if late == "soon":
                time.sleep(0.5)
            else:
                ended.wait(BOUND_S)
        dist.barrier(group)

    thread = threading.Thread(target=serves, daemon=True)
    warned: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: warned.append(record.getMessage())
    logging.getLogger("unhang").addHandler(handler)

    def uses() -> None:
        thread.start()
        if rank == 0:
            until = time.monotonic() + BOUND_S
            # Also counted: who stands in the call may not have come that far.
            while not ("1" in collective_counts._stood_in(threading.get_ident()) and any(dict(collective_counts._numbers(group)).values())):
                assert time.monotonic() < until
                time.sleep(0.01)
            of_ranks.store.set("ahead", "yes")
        else:
            of_ranks.store.wait(["ahead"])

    said = told(uses)
    ended.set()
    thread.join(BOUND_S)
    return said, warned


def test_a_thread_that_catches_up_is_no_disagreement(fresh):
    assert fresh(2)(beside_a_thread, "soon", bound_s=BOUND_S) == [("", [])] * 2


def test_a_group_in_which_a_thread_stands_is_told_of_and_not_judged(fresh):
    for said, warned in fresh(2)(beside_a_thread, "later", bound_s=BOUND_S):
        assert said == "" and len(warned) == 1 and "not judged" in warned[0] and "group '1'" in warned[0]


def without_one(rank: int, members: list[int]) -> str:
    group = dist.new_group(members)

    def uses() -> None:
        if rank in members:
            dist.all_reduce(torch.ones(1), group=group)
        if rank == 2:
            of_ranks.store.wait(["over"])

    said = told(uses, deadline=6.0)
    if rank == 2:
        return said
    of_ranks.store.set("over", "yes")
    return said


def test_of_who_does_not_answer_only_its_own_groups_are_unknown(fresh):
    told = fresh(3)(without_one, [0, 1], bound_s=BOUND_S)
    assert all("not ok" in said and "out of step" not in said for said in told), told


def meets(rank: int) -> None:
    unhang.agree(rank, deadline=20)


@reads_its_keys
def test_what_was_told_and_decided_meanwhile_is_forgotten_once_the_late_one_has_come(fresh):
    world = fresh(3)
    world(without_one, [0, 1], bound_s=BOUND_S)
    world(meets)
    assert [key for key in world.store.list_keys() if key.endswith("/known") or "/used/" in key] == []


def test_a_group_of_who_does_not_answer_is_out_of_step(fresh):
    (said,) = set(fresh(3)(without_one, [1, 2], bound_s=BOUND_S))
    assert "group '1' of ranks 1-2 may be out of step" in said and "some of its ranks made is not known (rank 1 1)" in said
    assert "Rank 2 did not answer within 6 s (at test_collective_counts.py:" in said and "in uses)" in said


@pytest.mark.parametrize(("ranks", "said"), [((0,), "0"), ((3, 0, 1, 2), "0-3"), ((0, 2, 3, 9), "0,2-3,9")])
def test_ranks_are_told_in_short(ranks, said):
    assert collective_counts._ranges(ranks) == said and collective_counts._members(said) == frozenset(ranks)


def in_a_block(rank: int) -> str:
    group = dist.new_group([0, 2])
    try:
        with unhang.evaluation(deadline=60) as guard:
            guard.add("nli", loss=(1.0, 1))
            if rank == 2:
                dist.all_reduce(torch.ones(1), group=group, async_op=True)
    except unhang.EvaluationFailed as e:
        return str(e)
    return ""


def test_a_block_counts_as_well(fresh):
    (said,) = set(fresh(3)(in_a_block, bound_s=BOUND_S))
    assert "group '1' of ranks 0, 2 is out of step" in said and "(rank 0 0, rank 2 1)" in said


def one_comes_not_again(rank: int) -> str:
    """Rank 1 answers, and is held up before its counts are looked at again."""
    group = dist.new_group([0, 1])
    collective_counts._COMES_WITHIN_S = 2.0
    if rank:
        of_ranks.store.set("held", "no")
        closely = collective_counts.Calls._closely

        def held(calls, keys):
            of_ranks.store.wait(["over"])
            return closely(calls, keys)

        collective_counts.Calls._closely = held

    def uses() -> None:
        if rank:
            dist.all_reduce(torch.ones(1), group=group, async_op=True)

    said = told(uses)
    of_ranks.store.set("over", "yes")
    return said


@pytest.mark.integration
def test_who_does_not_come_again_has_made_what_it_said(fresh):
    (said,) = set(fresh(2)(one_comes_not_again, bound_s=BOUND_S))
    assert "(rank 0 0, rank 1 1" in said
