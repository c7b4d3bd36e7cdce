"""Other kinds of parallelism on Gloo: tensor parallel with DTensor, a pipeline, uneven inputs with Join, a sharded optimizer, RPC."""

# ruff: noqa: T201
from __future__ import annotations

import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def tensor() -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 32))
    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("tp",))
    model = parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    print(dist.get_rank(), "mesh", mesh, "weights", model[0].weight.to_local().shape, flush=True)
    for step in range(4):
        torch.manual_seed(step)
        loss = model(torch.randn(8, 32)).sum()
        loss.backward()
        print(dist.get_rank(), "step", step, f"loss {loss.item():.3f}", flush=True)


def pipeline() -> None:
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B

    rank, world = dist.get_rank(), dist.get_world_size()
    stage = PipelineStage(nn.Linear(16, 16), rank, world, torch.device("cpu"))
    schedule = Schedule1F1B(stage, n_microbatches=4, loss_fn=nn.functional.mse_loss)
    for step in range(3):
        if rank == 0:
            schedule.step(torch.randn(8, 16))
        elif rank == world - 1:
            losses: list[torch.Tensor] = []
            schedule.step(target=torch.randn(8, 16), losses=losses)
            print("step", step, "losses", [round(x.item(), 3) for x in losses], flush=True)
        else:
            schedule.step()


def join() -> None:
    from torch.distributed.algorithms.join import Join

    model = DistributedDataParallel(nn.Linear(8, 1))
    with Join([model]):
        for step in range(4 + 2 * dist.get_rank()):
            model(torch.ones(4, 8)).sum().backward()
            print(f"rank {dist.get_rank()} step {step}", flush=True)
    print(f"rank {dist.get_rank()} joined: uneven inputs are exhausted", flush=True)


def zero() -> None:
    from torch.distributed.optim import ZeroRedundancyOptimizer

    model = DistributedDataParallel(nn.Linear(64, 64))
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=1e-3)
    for step in range(4):
        model(torch.randn(8, 64)).sum().backward()
        optimizer.step()
        print(f"rank {dist.get_rank()} step {step}", flush=True)
    optimizer.consolidate_state_dict()


def remote() -> None:
    from torch.distributed import rpc

    rpc.init_rpc(f"worker{dist.get_rank()}", rank=dist.get_rank(), world_size=dist.get_world_size())
    if dist.get_rank() == 0:
        print("sum from the other side:", rpc.rpc_sync("worker1", torch.add, args=(torch.ones(2), 1)).tolist(), flush=True)
        try:
            rpc.rpc_sync("worker1", torch.mm, args=(torch.ones(2, 3), torch.ones(2, 3)))
        except RuntimeError as e:
            print("as expected, the remote call failed:", str(e)[:400], flush=True)
    rpc.shutdown()


def shared_file() -> None:
    torch.ones(4)
    print(f"rank {dist.get_rank()} met over a file", flush=True)


kind = sys.argv[1]
if kind == "shared_file":
    dist.init_process_group("gloo", init_method="file:///srv/job/store", rank=int(os.environ["RANK"]), world_size=int(os.environ["WORLD_SIZE"]))
else:
    dist.init_process_group("gloo")
{"tensor": tensor, "pipeline": pipeline, "join": join, "zero": zero, "remote": remote, "shared_file": shared_file}[kind]()
dist.barrier()
dist.destroy_process_group()
