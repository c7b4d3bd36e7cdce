"""Every collective that Gloo has, on the default group and on subgroups, with a monitored barrier and a rank that comes late."""

# ruff: noqa: T201
from __future__ import annotations

import datetime
import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=60))
rank, world = dist.get_rank(), dist.get_world_size()
print(f"rank {rank} of {world} is up, timeout 60 s", flush=True)
t = torch.full((1024,), float(rank))
dist.all_reduce(t)
dist.broadcast(t, 0)
dist.reduce(t, 0, op=dist.ReduceOp.MAX)
dist.all_gather([torch.empty(4) for _ in range(world)], torch.ones(4))
dist.gather(torch.ones(2), [torch.empty(2) for _ in range(world)] if rank == 0 else None)
dist.scatter(torch.empty(2), [torch.ones(2)] * world if rank == 0 else None)
dist.all_to_all_single(torch.empty(world), torch.ones(world))
names: list[object] = [None] * world
dist.all_gather_object(names, {"rank": rank, "error": None})
print(f"rank {rank}: objects {names}", flush=True)
halves = [dist.new_group(list(range(0, world, 2))), dist.new_group(list(range(1, world, 2)))]
mine = halves[rank % 2]
dist.all_reduce(t, group=mine)
if rank == world - 1:
    print("rank 3: slow start of the data pipeline, the others wait" if world > 3 else "the last rank is slow, the others wait", flush=True)
    time.sleep(2)
dist.monitored_barrier(timeout=datetime.timedelta(seconds=30), wait_all_ranks=True)
work = dist.all_reduce(t, async_op=True)
work.wait()
if rank == 0:
    dist.send(torch.ones(8), world - 1)
if rank == world - 1:
    dist.recv(torch.empty(8), 0)
print(f"rank {rank}: all collectives completed, sum {t.sum().item():.0f}", flush=True)
dist.barrier()
dist.destroy_process_group()
