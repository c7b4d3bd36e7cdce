"""The same over NCCL: a lane by itself on one GPU, and on several all that a user calls."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from tests.runtime.collectives import world as of_ranks

import unhang
from unhang.runtime.collectives.lane import NcclLane

pytestmark = [pytest.mark.gpu, pytest.mark.torch, pytest.mark.timeout(300)]

KEPT: dict[str, object] = {}
BOUND_S = 120.0


def lane_of_one(rank: int) -> list[float]:
    device = torch.device("cuda", 0)
    lane = NcclLane(dist.PrefixStore("lane", of_ranks.store), 0, 1, device)
    tensor, gathered = torch.arange(4.0, device=device), [torch.zeros(4, device=device)]
    for work in (lane.all_reduce(tensor, dist.ReduceOp.SUM), lane.broadcast(tensor, 0), lane.all_gather(gathered, tensor)):
        assert lane.ended(work, 60)
    lane.destroy()
    return gathered[0].tolist()


def test_a_lane_of_one_gpu_reduces_gathers_and_is_destroyed(fresh):
    assert fresh(1)(lane_of_one, bound_s=BOUND_S) == [[0.0, 1.0, 2.0, 3.0]]


def alone(rank: int) -> list[float]:
    group = dist.new_group(backend="nccl")
    strided = torch.arange(8.0, device="cuda:0").reshape(4, 2)[:, 1]
    unhang.all_reduce(strided, "avg", group)
    unhang.barrier(group)
    return unhang.all_gather(strided, group)[0].tolist()


def test_a_world_of_one_gpu(fresh):
    assert fresh(1)(alone, bound_s=BOUND_S) == [[1.0, 3.0, 5.0, 7.0]]


several = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="there are no two GPUs here")


def group_of(rank: int) -> None:
    torch.cuda.set_device(rank)
    KEPT["group"] = dist.new_group(backend="nccl")


def reduced(rank: int, numel: int, chunk_bytes: int) -> float:
    tensor = torch.full((numel,), rank + 1.0, device="cuda")
    for _ in range(4):
        tensor.fill_(rank + 1.0)
        unhang.all_reduce(tensor, group=KEPT["group"], chunk_bytes=chunk_bytes, deadline=60)
    assert bool((tensor == tensor[0]).all())
    return tensor[0].item()


@several
def test_chunks_over_nccl(fresh):
    world = fresh(2)
    world(group_of, bound_s=BOUND_S)
    assert world(reduced, 1_000_003, 1 << 20, bound_s=BOUND_S) == [3.0, 3.0]


def skips(rank: int) -> None:
    """The lane is open: rank 0's kernel waits on the device for one that is not launched until all have decided."""
    if rank == 1:
        # Until rank 0 has given it up.
        of_ranks.store.wait(["given up"])
    try:
        unhang.all_reduce(torch.ones(1024, device="cuda"), group=KEPT["group"], chunk_bytes=1 << 20, deadline=5)
    finally:
        of_ranks.store.set("given up", b"1")


@several
def test_a_rank_that_does_not_come_is_named_and_the_next_call_works(fresh):
    world = fresh(2)
    world(group_of, bound_s=BOUND_S)
    world(reduced, 1024, 1 << 20, bound_s=BOUND_S)
    found = world.try_(skips, bound_s=BOUND_S)
    assert (found[0].kind, found[0].missing) == ("CollectiveTimeout", (1,))
    assert found[1].kind == "LatePeer"
    assert world(reduced, 1024, 1 << 20, bound_s=BOUND_S) == [3.0, 3.0]
