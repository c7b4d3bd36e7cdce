"""Counts optimizer steps. The first one attaches a process that never initialises torch.distributed."""

from __future__ import annotations

import os
import sys
import weakref
from collections.abc import Callable
from types import ModuleType
from typing import Any

from . import overrides, session
from .protocol import ENV_CUDNN_BENCHMARK, ENV_STEP_TIMES
from .session import gpu


def patch(module: ModuleType) -> None:
    """Register a hook that all optimizers of torch.optim call after each step."""
    counts: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
    record: Callable[[int, Callable[[], str | None]], None] | None = None
    if os.environ.get(ENV_STEP_TIMES):
        from .step_times import record

    def count_step(optimizer: Any, args: Any, kwargs: Any) -> None:
        try:
            attached = session.current()
            if attached is None:
                attached = session.attach()
            if attached is None:
                return
            # Two optimizers that take turns (a GAN) make one step of the training, not two; that of a later phase goes on where the first has ended.
            count = counts[optimizer] = counts.get(optimizer, attached.step if attached.step > 1 else 0) + 1
            is_new = count > attached.step
            attached.step = max(attached.step, count)
            if not attached.stepping:
                attached.stepping = True
                attached.link.post("stepping", **_surroundings(optimizer))
                _set_cudnn_benchmark()
                overrides.flush()
            if is_new and record is not None:
                record(attached.step, lambda: _device(sys.modules["torch"], optimizer))
        except Exception:
            pass

    # torch.compile of a step would otherwise trace into this.
    count_step._torchdynamo_disable = True  # type: ignore[attr-defined]
    module.register_optimizer_step_post_hook(count_step)


def _surroundings(optimizer: Any) -> dict[str, object]:
    torch: Any = sys.modules["torch"]
    distributed: Any = sys.modules.get("torch.distributed")
    try:
        initialized = bool(distributed.is_available() and distributed.is_initialized())
    except Exception:
        initialized = False
    device = _device(torch, optimizer)
    # Of arguments, which may hold credentials, nothing is written here: the supervisor can tell.
    argv = sys.argv if os.environ.get(ENV_STEP_TIMES) else []
    return {"device": device, "gpu": gpu(torch, device), "torch": str(torch.__version__), "initialized": initialized, "argv": argv}


def _set_cudnn_benchmark() -> None:
    """Over what the script has set before its first step; cuDNN reads it at each call."""
    wanted = overrides.switch(ENV_CUDNN_BENCHMARK)
    torch: Any = sys.modules["torch"]
    if wanted is not None and (was := torch.backends.cudnn.benchmark) != wanted:
        torch.backends.cudnn.benchmark = wanted
        # As bench reads it back (step_times).
        overrides.changed("cuDNN benchmark", was=was, now=wanted)


def _device(torch: Any, optimizer: Any) -> str | None:
    try:
        device = optimizer.param_groups[0]["params"][0].device
        return f"{device} ({torch.cuda.get_device_name(device)})" if device.type == "cuda" else str(device)
    except Exception:
        return None
