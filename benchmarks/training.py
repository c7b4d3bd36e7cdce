"""The training that overhead.py times: DDP over Gloo, steps of a known size, one JSON line from rank 0 at the end."""

from __future__ import annotations

import json
import sys
import threading
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def heartbeat_cpu_s() -> float | None:
    """CPU time of the heartbeat thread of this process so far; None where there is none."""
    for thread in threading.enumerate():
        if thread.name == "unhang-heartbeat" and thread.ident is not None:
            return time.clock_gettime(time.pthread_getcpuclockid(thread.ident))
    return None


def main() -> None:
    steps, warmup, width = (int(x) for x in sys.argv[1:4])
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo")
    model = DistributedDataParallel(torch.nn.Sequential(*(torch.nn.Linear(width, width) for _ in range(6))))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    batch = torch.randn(64, width)
    durations = []
    beat_before = None
    for step in range(warmup + steps):
        if step == warmup:
            beat_before = heartbeat_cpu_s()
        started = time.perf_counter()
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
        durations.append(time.perf_counter() - started)
    timed = durations[warmup:]
    beat = heartbeat_cpu_s()
    if dist.get_rank() == 0:
        share = None if beat is None or beat_before is None else (beat - beat_before) / sum(timed)
        print(json.dumps({"mean_step_s": sum(timed) / len(timed), "heartbeat_cpu_share": share}), flush=True)
    dist.destroy_process_group()


main()
