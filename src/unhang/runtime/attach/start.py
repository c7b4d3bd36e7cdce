"""Decides what kind of process this is. Runs at the start of every Python process, so it imports next to nothing."""

from __future__ import annotations

import os
import sys

# protocol.ENV_RANK_PID, repeated: importing protocol means importing json, 8 ms that a process which is no rank need not pay.
RANK_PID = "UNHANG_RANK_PID"
# Likewise ENV_BACKEND, ENV_STEP_TIMES, ENV_BUCKET, and those for torch's DataLoader.
BACKEND = "UNHANG_BACKEND"
STEP_TIMES = "UNHANG_STEP_TIMES_DIR"
BUCKET = "UNHANG_DDP_BUCKET_MB"
LOADER = ("UNHANG_LOADER_WORKERS", "UNHANG_LOADER_WORKERS_MOST", "UNHANG_PIN_MEMORY", "UNHANG_PERSISTENT_WORKERS", "UNHANG_PREFETCH")


def start() -> None:
    """Prepare the attachment: a rank at once, any other process when it initialises torch.distributed or takes an optimizer step."""
    if belongs_to_rank():
        return
    from .imports import PatchAfterImport

    patches = {
        "torch.distributed.distributed_c10d": ("distributed", "patch"),
        "torch.optim.optimizer": ("optimizer", "patch"),
        "torch.multiprocessing.spawn": ("spawn", "patch"),
        "torch.distributed.elastic.multiprocessing.api": ("launcher", "patch"),
        "ray.train.v2._internal.execution.worker_group.thread_runner": ("ray_train", "patch"),
    }
    if os.environ.get(BACKEND):
        from .frameworks import PATCHES

        patches.update(PATCHES)
    if os.environ.get(BUCKET):
        patches["torch.nn.parallel.distributed"] = ("ddp", "patch")
    if any(map(os.environ.get, LOADER)):
        patches["torch.utils.data.dataloader"] = ("loader", "patch")
        patches["torchdata.stateful_dataloader.stateful_dataloader"] = ("loader", "patch_stateful")
    package = __name__.rpartition(".")[0]
    PatchAfterImport(patches, package=package).install(sys.meta_path)
    if os.environ.get(STEP_TIMES):
        # By a finder of their own: settings patch some of these modules, too.
        parts = {
            "torch.distributed.distributed_c10d": ("step_parts", "patch_collectives"),
            "torch.nn.parallel.distributed": ("step_parts", "patch_ddp"),
            "torch.utils.data.dataloader": ("step_parts", "patch_loader"),
            "torch._dynamo.trace_rules": ("functional", "patch_compiler"),
        }
        PatchAfterImport(parts, package=package).install(sys.meta_path)
    if "RANK" in os.environ and "LOCAL_RANK" in os.environ:
        os.environ[RANK_PID] = str(os.getpid())
        from .session import attach

        attach(rank_process=True)


def belongs_to_rank() -> bool:
    """True for children of a rank (loader workers, compile workers): they inherit its environment and must not be taken for it."""
    return os.environ.get(RANK_PID, str(os.getpid())) != str(os.getpid())
