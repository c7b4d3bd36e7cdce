"""A small training on several ranks: DDP on Gloo, with what real trainings put around it (options choose what)."""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=20)
parser.add_argument("--accumulate", type=int, default=1)
parser.add_argument("--checkpoint")
parser.add_argument("--unused", action="store_true", help="DDP searches for unused parameters, and there are none")
parser.add_argument("--hook", choices=("fp16", "powersgd"), help="a communication hook of DDP")
parser.add_argument("--fail-first", action="store_true", help="the first attempt raises on the last rank")
parser.add_argument("--step-s", type=float, default=0.0)
parser.add_argument("--static-graph", action="store_true")
parser.add_argument("--compile", action="store_true")
options = parser.parse_args()

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
logging.basicConfig(level=logging.INFO, format=f"%(asctime)s - %(levelname)s - rank {rank} - %(message)s", stream=sys.stdout, force=True)
log = logging.getLogger("train")
attempt = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
log.info("world size %d, local rank %s, attempt %d, torch %s, backend %s", world, os.environ.get("LOCAL_RANK"), attempt, torch.__version__, "gloo")

torch.manual_seed(0)
model: nn.Module = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 256), nn.GELU(), nn.Linear(256, 10))
ddp = DistributedDataParallel(model, find_unused_parameters=options.unused, static_graph=options.static_graph)
if options.hook == "fp16":
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

    ddp.register_comm_hook(None, default_hooks.fp16_compress_hook)
if options.hook == "powersgd":
    from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook

    ddp.register_comm_hook(powerSGD_hook.PowerSGDState(None, start_powerSGD_iter=10), powerSGD_hook.powerSGD_hook)
step_of = torch.compile(ddp) if options.compile else ddp
optimizer = torch.optim.AdamW(ddp.parameters(), lr=1e-3)
start = 0
if options.checkpoint and Path(options.checkpoint).exists():
    saved = torch.load(options.checkpoint, map_location="cpu")
    model.load_state_dict(saved["model"])
    start = saved["step"]
    log.info("resuming from checkpoint %s at step %d", options.checkpoint, start)

began = time.monotonic()
for step in range(start + 1, start + options.steps + 1):
    for micro in range(options.accumulate):
        last = micro == options.accumulate - 1
        with contextlib.nullcontext() if last else ddp.no_sync():
            x = torch.randn(32, 64)
            loss = nn.functional.cross_entropy(step_of(x), (x.sum(1) > 0).long()) / options.accumulate
            loss.backward()
    norm = nn.utils.clip_grad_norm_(ddp.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    if options.fail_first and attempt == 0 and step == 6 and rank == world - 1:
        raise RuntimeError("shard 7 of the data set is not there yet")
    if options.step_s:
        time.sleep(options.step_s)
    if step % 5 == 0:
        seconds = time.monotonic() - began
        speed = (step - start) / seconds
        log.info("step %d/%d loss %.4f grad_norm %.3f lr 1.0e-03 %.1f it/s errors 0", step, start + options.steps, loss, norm, speed)
if options.checkpoint and rank == 0:
    began = time.monotonic()
    torch.save({"model": model.state_dict(), "step": start + options.steps}, options.checkpoint)
    log.info("saved checkpoint %s in %.2f s, other ranks wait", options.checkpoint, time.monotonic() - began)
log.info("training finished")
# Gloo's destruction races with the last collective of a slower rank, and then aborts the process.
dist.barrier()
dist.destroy_process_group()
