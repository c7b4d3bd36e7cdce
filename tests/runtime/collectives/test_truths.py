"""What plain torch does, and why there is anything here at all: each beside the same with unhang. Each in processes of its own."""

from __future__ import annotations

from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from tests.runtime.collectives import world as of_ranks
from tests.runtime.collectives.world import Gone, Raised

import unhang

pytestmark = pytest.mark.torch

PATTERN = -5.0
KEPT: dict[str, object] = {}


def gives_up_plainly(rank: int) -> str:
    """The only soft timeout that torch has; then the buffer is used for something else."""
    tensor = KEPT["tensor"] = torch.full((1000,), float(rank + 1))
    if rank == 1:
        of_ranks.store.wait(["given up"])
    work = KEPT["work"] = dist.all_reduce(tensor, async_op=True)
    try:
        work.wait(timedelta(seconds=0.5 if rank == 0 else 20))
    except RuntimeError:
        tensor.fill_(PATTERN)
        of_ranks.store.set("given up", "yes")
        return "gave up"
    return "done"


def gives_up_guarded(rank: int) -> str:
    tensor = KEPT["tensor"] = torch.full((1000,), float(rank + 1))
    if rank == 1:
        of_ranks.store.wait(["given up"])
    try:
        unhang.all_reduce(tensor, deadline=0.5 if rank == 0 else 20)
    except unhang.CollectiveTimeout as e:
        tensor.fill_(PATTERN)
        of_ranks.store.set("given up", "yes")
        return type(e).__name__
    return "done"


def is_written(rank: int) -> bool:
    if "work" in KEPT:
        KEPT["work"].wait(timedelta(seconds=20))
    dist.barrier()
    return KEPT["tensor"].unique().tolist() != [PATTERN]


def test_a_late_peer_writes_into_memory_that_is_in_use_again(fresh):
    world = fresh(2)
    assert world(gives_up_plainly) == ["gave up", "done"]
    assert world(is_written)[0]


def test_not_with_unhang(fresh):
    world = fresh(2)
    assert world(gives_up_guarded) == ["CollectiveTimeout", "LatePeer"]
    assert world(is_written) == [False, False]


def of_other_sizes_plainly(rank: int) -> None:
    dist.all_reduce(torch.ones(100_000 + 70_000 * rank))


def of_other_sizes_guarded(rank: int) -> None:
    unhang.all_reduce(torch.ones(100_000 + 70_000 * rank), deadline=20)


def test_sizes_that_differ_end_the_process(fresh):
    """Inside of Gloo's own thread: no Python can catch it."""
    found = fresh(2).try_(of_other_sizes_plainly)
    assert any(isinstance(one, Gone) and one.code < 0 for one in found), found


def test_they_are_refused_by_unhang(fresh):
    world = fresh(2)
    found = world.try_(of_other_sizes_guarded)
    assert all(isinstance(one, Raised) and one.kind == "CollectiveMismatch" for one in found)
    assert world(goes_on) == [3.0, 3.0]


def goes_on(rank: int) -> float:
    tensor = torch.full((3,), float(rank + 1))
    dist.all_reduce(tensor)
    return tensor[0].item()


def of_columns(rank: int, guarded: bool) -> tuple[bool, bool]:
    """Whether the columns are the sum, and the others untouched."""
    base = torch.full((4, 6), float(rank + 1))
    columns = base[:, 1:3]
    if guarded:
        unhang.all_reduce(columns)
    else:
        dist.all_reduce(columns)
    others = torch.cat([base[:, :1], base[:, 3:]], 1)
    return bool((columns == 3.0).all()), bool((others == rank + 1).all())


def test_of_a_view_plain_gloo_reduces_the_wrong_memory(fresh):
    assert fresh(2)(of_columns, False) == [(False, False)] * 2


def test_unhang_reduces_what_was_given(fresh):
    assert fresh(2)(of_columns, True) == [(True, True)] * 2


def of_other_types_plainly(rank: int) -> list[float]:
    mine = torch.full((4,), 1.0) if rank == 0 else torch.full((4,), 1, dtype=torch.int32)
    dist.all_reduce(mine)
    return mine.double().tolist()


def test_types_of_equal_size_are_added_up_as_if_they_were_one(fresh):
    assert fresh(2)(of_other_types_plainly)[0] != [2.0] * 4
