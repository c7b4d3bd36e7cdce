"""Tests of distributed code, as a project has them: they spawn ranks, expect failures, and one is known to fail."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def _sum(rank: int, port: int) -> None:
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    t = torch.ones(3) * rank
    dist.all_reduce(t)
    assert t.tolist() == [1.0, 1.0, 1.0]
    dist.barrier()
    dist.destroy_process_group()


@pytest.mark.parametrize("port", [29601, 29602])
def test_sum_over_two_ranks(port):
    mp.spawn(_sum, args=(port,), nprocs=2)


def test_a_failing_rank_is_reported():
    with pytest.raises(mp.ProcessRaisedException, match="ValueError"):
        mp.spawn(_fail, nprocs=2)


def _fail(rank: int) -> None:
    raise ValueError("this rank fails on purpose")


@pytest.mark.xfail(reason="NCCL error: unhandled system error, needs a GPU")
def test_on_a_gpu():
    torch.ones(1).cuda()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="CUDA out of memory on small machines")
def test_on_a_large_gpu():
    raise AssertionError
