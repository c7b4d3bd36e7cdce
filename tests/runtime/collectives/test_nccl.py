"""The same over NCCL: a lane by itself and all that a user calls on one GPU; on several, ranks that do not come."""

from __future__ import annotations

import ctypes
import os

import pytest
import torch
import torch.distributed as dist
from tests.runtime.collectives import world as of_ranks

import unhang
from unhang.runtime.collectives.abortable_nccl import NcclLane, unwatched

pytestmark = pytest.mark.torch

KEPT: dict[str, object] = {}
# What begins on a GPU takes seconds.
BOUND_S = 120.0
ASYNC, WAIT = "TORCH_NCCL_ASYNC_ERROR_HANDLING", "TORCH_NCCL_BLOCKING_WAIT"


def gpus(count: int):
    found = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return lambda test: pytest.mark.gpu(
        pytest.mark.timeout(300)(pytest.mark.skipif(found < count, reason=f"needs {count} GPUs that torch can use, and there are {found}")(test))
    )


one, several = gpus(1), gpus(2)


def as_torch_reads(name: str) -> str | None:
    getenv = ctypes.CDLL(None).getenv
    getenv.restype = ctypes.c_char_p
    found = getenv(name.encode())
    return None if found is None else found.decode()


def test_a_lane_s_group_is_made_without_a_watchdog_and_the_next_one_as_ever(monkeypatch):
    monkeypatch.setenv(ASYNC, "1")
    monkeypatch.delenv(WAIT, raising=False)
    before = dict(os.environ)
    with pytest.raises(ValueError, match="no GPUs"), unwatched():
        assert (as_torch_reads(WAIT), as_torch_reads(ASYNC)) == ("1", "0")
        raise ValueError("no GPUs found")
    assert (as_torch_reads(WAIT), as_torch_reads(ASYNC)) == (None, "1")
    assert dict(os.environ) == before


def lane_of_one(rank: int) -> list[float]:
    device = torch.device("cuda", 0)
    lane = NcclLane(dist.PrefixStore("lane", of_ranks.store), 0, 1)
    tensor, gathered = torch.arange(4.0, device=device), [torch.zeros(4, device=device)]
    for _ in range(2):
        # First in a thread, then at once.
        for work in (lane.all_reduce(tensor, dist.ReduceOp.SUM), lane.broadcast(tensor, 0), lane.all_gather(gathered, tensor)):
            assert lane.ended(work, 60)
    assert WAIT not in os.environ
    lane.destroy()
    with pytest.raises(RuntimeError, match="broken"):
        lane.broadcast(tensor, 0)
    return gathered[0].tolist()


@one
def test_a_lane_of_one_gpu_reduces_gathers_and_is_destroyed(fresh):
    assert fresh(1)(lane_of_one, bound_s=BOUND_S) == [[0.0, 1.0, 2.0, 3.0]]


def group_of(rank: int) -> None:
    torch.cuda.set_device(rank)
    KEPT["group"] = dist.new_group(backend="nccl")


def everything(rank: int, size: int) -> None:
    """Three times: from the third on a kind has a lane of its own."""
    group = KEPT["group"]
    total = size * (size + 1) / 2
    for _ in range(3):
        strided = torch.full((4, 2), rank + 1.0, device="cuda")[:, 1]
        assert unhang.all_reduce(strided, "avg", group).tolist() == [total / size] * 4
        assert unhang.all_reduce(torch.full((3,), rank + 1, device="cuda"), "sum", group).tolist() == [int(total)] * 3
        assert unhang.all_reduce(torch.full((3,), 60000.0, device="cuda", dtype=torch.float16), "avg", group).tolist() == [60000.0] * 3
        assert unhang.all_reduce(torch.tensor([rank == 0], device="cuda"), "sum", group).item() is True
        assert unhang.reduce_scatter(torch.arange(2.0 * size, device="cuda"), "sum", group).tolist() == [2.0 * rank * size, (2.0 * rank + 1) * size]
        assert [part.item() for part in unhang.all_gather(torch.tensor(rank, device="cuda"), group)] == list(range(size))
        eight = torch.full((5,), float(rank), device="cuda").to(torch.float8_e4m3fn)
        assert unhang.broadcast(eight, size - 1, group).float().tolist() == [size - 1.0] * 5
        assert unhang.all_gather_object({"rank": rank}, group) == [{"rank": r} for r in range(size)]
        unhang.barrier(group)
    with pytest.raises(unhang.CollectiveError, match="rounding"):
        unhang.all_reduce(torch.ones(3, dtype=torch.int32, device="cuda"), "avg", group)


def evaluated(rank: int) -> float:
    def mean(data, batch_size):
        yield {"loss": (torch.tensor(data, device="cuda").sum().item(), len(data))}

    found = unhang.evaluate(mean, {"few": [1.0, 3.0]}, batch_size=2)
    assert found.ok
    return found.data_sets["few"].metrics["loss"]


@one
def test_a_world_of_one_gpu(fresh):
    world = fresh(1)
    world(group_of, bound_s=BOUND_S)
    world(everything, 1, bound_s=BOUND_S)
    assert world(evaluated, bound_s=BOUND_S) == [2.0]


@several
def test_a_world_of_two_gpus(fresh):
    world = fresh(2)
    world(group_of, bound_s=BOUND_S)
    world(everything, 2, bound_s=BOUND_S)
    assert world(evaluated, bound_s=BOUND_S) == [2.0, 2.0]


def through_gloo(rank: int, size: int) -> tuple[list[float], str]:
    """CUDA tensors of a training that has only Gloo go through host memory."""
    tensor = torch.full((3,), rank + 1.0, device="cuda")
    return unhang.all_reduce(tensor).tolist(), unhang.all_gather(tensor)[0].device.type


@one
def test_gpus_of_a_training_over_gloo(fresh):
    assert fresh(2)(through_gloo, 2, bound_s=BOUND_S) == [([3.0] * 3, "cuda")] * 2


def reduced(rank: int, numel: int, chunk_bytes: int) -> float:
    tensor = torch.empty(numel, device="cuda")
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


def connects_alone(rank: int) -> str:
    """Rank 1 has a lane and asks it for nothing: rank 0 waits in NCCL's own search for its peers."""
    torch.cuda.set_device(rank)
    lane = NcclLane(dist.PrefixStore("alone", of_ranks.store), rank, 2)
    if rank == 1:
        return ""
    work = lane.all_reduce(torch.ones(4, device="cuda"), dist.ReduceOp.SUM)
    assert not lane.ended(work, 5)
    lane.destroy()
    return "gave up"


@several
def test_a_first_collective_that_cannot_connect_is_given_up(fresh):
    assert fresh(2)(connects_alone, bound_s=BOUND_S) == ["gave up", ""]


def fails_alone(rank: int) -> list[str]:
    """Gloo tells of its failures as NCCL does: a work that has failed counts as completed."""
    from unhang.runtime.collectives.abortable_group import GlooLane
    from unhang.runtime.collectives.abortable_nccl import _failure

    lane = GlooLane(dist.PrefixStore("failing", of_ranks.store), rank, 2)
    together = lane.all_reduce(torch.ones(2), dist.ReduceOp.SUM)
    assert lane.ended(together, 20)
    lane.destroy()
    alone = lane.all_reduce(torch.ones(2), dist.ReduceOp.SUM)
    with pytest.raises(RuntimeError):
        lane.ended(alone, 20)
    assert alone.is_completed()
    return [str(_failure(together)), type(_failure(alone)).__name__]


def test_what_counts_as_completed_may_have_failed(fresh):
    assert fresh(2)(fails_alone) == [["None", "RuntimeError"]] * 2
