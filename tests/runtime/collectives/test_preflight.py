"""Ranks that want different things: all are told what each wanted, the processes live, and the next call works."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from tests.runtime.collectives import world as of_ranks

import unhang
from unhang.runtime.collectives import guarded_group as circles

pytestmark = pytest.mark.torch


def one(kind: str, **options) -> None:
    match kind:
        case "sum":
            unhang.all_reduce(torch.ones(6), **options)
        case "more":
            unhang.all_reduce(torch.ones(7), **options)
        case "wider":
            unhang.all_reduce(torch.ones(6, dtype=torch.float64), **options)
        case "same_bytes":
            unhang.all_reduce(torch.ones(6, dtype=torch.int32), **options)
        case "max":
            unhang.all_reduce(torch.ones(6), "max", **options)
        case "turned":
            unhang.all_reduce(torch.ones(2, 3).t(), **options)
        case "chunks":
            unhang.all_reduce(torch.ones(600), chunk_bytes=1024, **options)
        case "whole":
            unhang.all_reduce(torch.ones(600), **options)
        case "atomic":
            unhang.all_reduce(torch.ones(6), atomic=True, **options)
        case "kept":
            unhang.all_reduce(torch.ones(6), out=torch.ones(6), **options)
        case "from 0":
            unhang.broadcast(torch.ones(6), 0, **options)
        case "from 1":
            unhang.broadcast(torch.ones(6), 1, **options)
        case "gather":
            unhang.all_gather(torch.ones(6), **options)
        case "barrier":
            unhang.barrier(**options)


PAIRS = [
    ("sum", "more", "6 float32", "7 float32"),
    ("sum", "wider", "float32", "float64"),
    ("sum", "same_bytes", "float32", "int32"),
    ("sum", "max", "SUM", "MAX"),
    ("sum", "turned", "SUM)", "in memory 1,0"),
    ("sum", "atomic", "SUM)", "atomic"),
    ("atomic", "kept", "atomic", "kept"),
    ("whole", "chunks", "SUM)", "in pieces of 256"),
    ("from 0", "from 1", "from 0", "from 1"),
    ("sum", "gather", "all_reduce", "all_gather"),
    ("sum", "barrier", "all_reduce", "barrier"),
]


def parted(rank: int, odd: int, most: str, other: str, often: int, deadline: float) -> tuple[str, str, tuple[int, ...], float]:
    for kind in (most, other):
        for _ in range(often):
            one(kind, deadline=30)
    said, name, stray = "", "", ()
    try:
        one(other if rank == odd else most, deadline=deadline)
    except unhang.CollectiveError as e:
        said, name, stray = str(e), type(e).__name__, getattr(e, "odd", ())
    after = unhang.all_reduce(torch.full((5,), float(rank)), deadline=30)[0].item()
    return name, said, stray, after


@pytest.mark.parametrize(("most", "other", "mine", "theirs"), PAIRS)
@pytest.mark.parametrize("size", [2, 3])
def test_they_are_refused_before_anything_is_sent(worlds, size, most, other, mine, theirs):
    for name, said, odd, after in worlds(size)(parted, size - 1, most, other, 0, 30.0):
        assert name == "CollectiveMismatch"
        assert mine in said and theirs in said
        assert odd == ((2,) if size == 3 else ())
        assert after == sum(range(size))


@pytest.mark.parametrize("size", [2, pytest.param(3, marks=pytest.mark.integration)])
@pytest.mark.parametrize(("most", "other", "mine", "theirs"), [PAIRS[0], PAIRS[3], PAIRS[-1]])
def test_those_that_have_connections_of_their_own_are_told_apart(worlds, size, most, other, mine, theirs):
    """Nothing of one call is ever taken for another's."""
    found = worlds(size)(parted, size - 1, most, other, 4, 30.0)
    for name, said, odd, after in found:
        assert name == "CollectiveMismatch"
        assert mine in said and theirs in said
        assert odd == ((2,) if size == 3 else ())
        assert after == sum(range(size))


def one_asks(rank: int) -> tuple[str, str, float]:
    """The last rank wants what nobody has ever wanted, the others what they have connections for."""
    for _ in range(4):
        one("sum", deadline=30)
    name, said = "", ""
    try:
        one("more" if rank == 2 else "sum", deadline=30)
    except unhang.CollectiveError as e:
        name, said = type(e).__name__, str(e)
    return name, said, unhang.all_reduce(torch.full((5,), float(rank)), deadline=30)[0].item()


def test_a_rank_that_asks_while_the_others_send(worlds):
    for name, said, after in worlds(3)(one_asks):
        assert name == "CollectiveMismatch" and "rank 2: all_reduce of 7" in said and "ranks 0, 1: all_reduce of 6" in said
        assert after == 3.0


@pytest.mark.parametrize("often", [0, 4])
def test_a_rank_that_skips_a_call_is_named_and_learns_of_it(fresh, often):
    """It is told in its next call, which the others have given up; after that all are in step again."""
    found = fresh(3)(skipped, often)
    for rank in (0, 2):
        assert found[rank] == ["CollectiveTimeout (1,)", "ok"]
    assert found[1] == ["LatePeer (1,)", "ok"]


def skipped(rank: int, often: int) -> list[str]:
    for _ in range(often):
        one("sum", deadline=30)
    said = []
    if rank == 1:
        # It does something else until the others have given up.
        of_ranks.store.wait(["given up"])
    for _ in range(2):
        try:
            one("sum", deadline=20 if said or rank == 1 else 2)
            said.append("ok")
        except unhang.CollectiveTimeout as e:
            said.append(f"{type(e).__name__} {e.missing}")
            of_ranks.store.set("given up", "yes")
    return said


def lanes(rank: int, kinds: int, rounds: int) -> tuple[int, int]:
    circle = circles.of()
    opened = 0
    before = circle._open

    def counted(*args):
        nonlocal opened
        opened += 1
        return before(*args)

    circle._open = counted
    try:
        for _ in range(rounds):
            for kind in range(kinds):
                unhang.all_reduce(torch.ones(kind + 1), deadline=30)
    finally:
        circle._open = before
    return opened, len(circle._own)


def test_more_kinds_than_connections_do_not_open_them_again_and_again(fresh):
    """A training that reduces each parameter by itself has hundreds."""
    for opened, kept in fresh(2)(lanes, 40, 5):
        assert kept == 16
        assert opened <= 17


def test_a_kind_that_comes_often_takes_the_place_of_one_that_no_longer_comes(fresh):
    world = fresh(2)
    world(lanes, 20, 4)
    assert world(late_kind, 130) == [True, True]


def late_kind(rank: int, calls: int) -> bool:
    for _ in range(calls):
        last = torch.ones(1000)
        unhang.all_reduce(last, deadline=30)
    return any(call.numel == 1000 for call in circles.of()._own)


def keys_left(rank: int, calls: int) -> int:
    store = dist.distributed_c10d._get_default_store()
    for _ in range(2):
        unhang.barrier()
    before = store.num_keys()
    for number in range(calls):
        unhang.all_reduce(torch.ones(number + 1), atomic=True)
        unhang.agree(number)
    unhang.barrier()
    return store.num_keys() - before


def test_the_store_does_not_grow_with_every_call(fresh):
    assert max(fresh(2)(keys_left, 30)) <= 16


def other_group(rank: int, ranks: list[int]) -> list[float] | str:
    group = dist.new_group(ranks)
    try:
        return [unhang.all_reduce(torch.full((3,), float(rank)), group=group, deadline=30)[0].item() for _ in range(4)]
    except unhang.CollectiveError as e:
        return str(e)


def test_groups_of_some_ranks_count_for_themselves(fresh):
    found = fresh(3)(other_group, [0, 2])
    assert found[0] == found[2] == [2.0] * 4
    assert "no member" in found[1]


def without_a_group() -> str:
    try:
        unhang.barrier()
    except unhang.CollectiveError as e:
        return str(e)
    return ""


def left(rank: int) -> str:
    dist.destroy_process_group()
    return without_a_group()


def test_without_a_group_it_says_what_to_call(fresh):
    assert all("init_process_group" in said for said in fresh(2)(left))


def alone(rank: int) -> list:
    kept = torch.ones(3)
    found = [unhang.all_reduce(torch.full((3,), 2.0), "avg").tolist(), unhang.all_reduce(kept, out=torch.zeros(3), atomic=True).tolist()]
    unhang.barrier()
    found += [unhang.broadcast(torch.ones(2), 0).tolist(), [t.tolist() for t in unhang.all_gather(torch.ones(2))], unhang.all_gather_object("x")]
    agreed = unhang.agree(3)
    return [*found, agreed.values, unhang.all_ok(False), unhang.reduce_metrics({"a": (6, 3)}), unhang.reduce_scatter(torch.ones(2)).tolist()]


def test_a_world_of_one(fresh):
    ones = [1.0, 1.0]
    assert fresh(1)(alone) == [[[2.0] * 3, [1.0] * 3, ones, [ones], ["x"], {0: 3}, False, {"a": 2.0}, ones]]
