"""A training of weeks: what calls leave in the store, in sockets and in memory does not grow with their number."""

from __future__ import annotations

import os
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from tests.runtime.collectives import world as of_ranks

import unhang
from unhang.runtime.collectives import abortable_group, call_sites, preflight
from unhang.runtime.collectives import guarded_group as circles

pytestmark = pytest.mark.torch


def well(rank: int, size: int, rounds: int) -> None:
    with unhang.deadline(20):
        for n in range(rounds):
            unhang.all_reduce(torch.ones(8))
            unhang.all_reduce(torch.ones(8), atomic=True)
            # A kind that does not come again, and three that come in turns.
            unhang.all_reduce(torch.ones(1000 + circles.of()._turns))
            unhang.broadcast(torch.ones(9 + n % 3))
            unhang.all_gather_object({"n": n})
            unhang.barrier()
            unhang.agree(n)
            unhang.reduce_metrics({"loss": 1.0})
            if n % 5 == 0:
                assert unhang.evaluate(lambda data, batch_size: [{"loss": unhang.all_reduce(torch.ones(2))[0].item()}], {"few": [1]}, batch_size=1).ok


def badly(rank: int, size: int, rounds: int) -> None:
    call_sites.ALARMS_KEPT = 4
    for n in range(rounds):
        # A mismatch, an error of one rank's own, and one that is late.
        with pytest.raises(unhang.CollectiveMismatch):
            unhang.all_reduce(torch.ones(3 + rank), deadline=20)
        with pytest.raises((unhang.CollectiveError, TypeError)):
            unhang.all_reduce([1.0] if rank == n % size else torch.ones(3), deadline=20)
        if rank == 0:
            of_ranks.store.wait([f"gave up {n}"])
        try:
            unhang.all_reduce(torch.ones(3), deadline=0.3 if rank else 20)
            raise AssertionError("a rank was late")
        except unhang.CollectiveTimeout:
            if rank:
                of_ranks.store.set(f"gave up {n}", "")
        # One that cannot say what it is asked for.
        cannot = rank == n % size
        with pytest.raises(TypeError) if cannot else nullcontext():
            unhang.agree(object() if cannot else n, deadline=20)
        found = unhang.evaluate(lambda data, batch_size: [1 / 0], {"few": [1]}, batch_size=1, retries=1)
        assert not found.ok
        unhang.agree(n, deadline=20)
        unhang.barrier(deadline=20)
    for n in range(rounds):
        of_ranks.store.delete_key(f"gave up {n}")


def held(rank: int) -> tuple[int, int, int]:
    """Keys of the store, descriptors, and resident memory in MB."""
    with unhang.deadline(20):
        # What is forgotten once all have come to a later call.
        unhang.all_reduce(torch.ones(5, dtype=torch.float64))
        unhang.agree(0)
    status = Path("/proc/self/statm").read_text().split()
    return of_ranks.store.num_keys(), len(os.listdir("/proc/self/fd")), int(status[1]) * 4096 >> 20


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("how", "first", "more"), [(well, 60, 90), (badly, 5, 5)], ids=["well", "badly"])
def test_nothing_grows_with_the_number_of_calls(fresh, how, first, more):
    world = fresh(2)
    world(how, 2, first, bound_s=120)
    before = world(held)
    world(how, 2, more, bound_s=120)
    after = world(held)
    for (keys, descriptors, memory), (keys_after, descriptors_after, memory_after) in zip(before, after, strict=True):
        assert keys_after <= keys + 4, "\n".join(keys_of(world))
        assert descriptors_after <= descriptors + 2
        assert memory_after <= memory + 20


def many_kinds(rank: int) -> tuple[int, int, int]:
    preflight._SEEN_KINDS, preflight._IDLE_CALLS = 20, 4
    with unhang.deadline(20):
        for n in range(60):
            assert unhang.all_reduce(torch.ones(1000 + n))[0].item() == 2.0
        for n in range(25):
            for _ in range(4):
                assert unhang.all_reduce(torch.ones(3000 + n))[0].item() == 2.0
    circle = circles.of()
    return len(circle._seen), len(circle._used), len(circle._own)


def test_kinds_that_do_not_come_again_are_forgotten(fresh):
    for seen, used, own in fresh(2)(many_kinds):
        assert seen <= 20 and used == own == 16


def keys_of(world) -> list[str]:
    return sorted(world.store.list_keys()) if hasattr(world.store, "list_keys") else []


def lanes_of(rank: int, most: int) -> tuple[int, int]:
    """With descriptors for so many kinds, among more of them."""
    abortable_group._MOST_DESCRIPTORS = most * 6
    before = len(os.listdir("/proc/self/fd"))
    with unhang.deadline(20):
        for _ in range(4):
            for numel in range(1, most + 4):
                assert unhang.all_reduce(torch.ones(numel))[0].item() == 3.0
    return len(circles.of()._own), len(os.listdir("/proc/self/fd")) - before


def test_lanes_keep_to_their_descriptors(fresh):
    """Of three ranks each has two sockets and four more in every lane; one lane is common."""
    for own, descriptors in fresh(3)(lanes_of, 3):
        assert own == 3 and descriptors <= 6 * (3 + 1) + 6


@pytest.mark.parametrize(
    ("kind", "size", "kinds"), [("gloo", 2, 16), ("gloo", 33, 14), ("gloo", 257, 1), ("gloo", 1024, 0), ("nccl", 8, 2), ("store", 8, 0)]
)
def test_fewer_kinds_keep_lanes_among_more_ranks(kind, size, kinds):
    assert abortable_group.most(kind, size) == kinds
