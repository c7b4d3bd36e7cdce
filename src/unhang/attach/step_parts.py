"""Where the time of a step goes, for `unhang bench`: how long the thread that trains waits for the data loader, and how long it is inside
torch.distributed; and what DDP's own timers tell of the end of its backward pass.

Two readings of a clock for each batch and each call, about a microsecond. Nothing here asks CUDA for anything. DDP does, at the iterations that it
times: it waits for the GPU to end the backward pass before, at the next forward pass.
"""

from __future__ import annotations

import contextlib
import functools
import math
import threading
import time
import weakref
from _thread import get_ident
from types import ModuleType
from typing import Any

from . import session

# With CUDA DDP times its first ten iterations and every so many that follow; torch's own number is 100. On the CPU its timers wait for nothing.
DDP_EVERY = 10
# Those of objects are made of these.
_CALLS = (
    "all_gather", "all_gather_into_tensor", "all_gather_single", "all_gather_coalesced", "all_reduce", "all_reduce_coalesced", "all_to_all",
    "all_to_all_single", "barrier", "batch_isend_irecv", "broadcast", "gather", "monitored_barrier", "recv", "reduce", "reduce_scatter",
    "reduce_scatter_single", "reduce_scatter_tensor", "scatter", "send",
)  # fmt: skip


class _Clock:
    """Seconds that the thread that trains has spent inside some functions; NaN until it has called one."""

    _is_inside = False

    def __init__(self) -> None:
        self.spent_s = math.nan

    def timed(self, function: Any) -> Any:
        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            if _Clock._is_inside or get_ident() != _training_thread():
                return function(*args, **kwargs)
            _Clock._is_inside = True
            began = time.monotonic()
            try:
                return function(*args, **kwargs)
            finally:
                _Clock._is_inside = False
                spent_s = time.monotonic() - began
                self.spent_s = spent_s if math.isnan(self.spent_s) else self.spent_s + spent_s

        return call

    def patch(self, owner: Any, *names: str) -> None:
        for name in names:
            if hasattr(owner, name):
                setattr(owner, name, self.timed(getattr(owner, name)))


loader, calls = _Clock(), _Clock()
# Each DistributedDataParallel, with how often it is timed, and the last of its iterations that was read.
_models: list[tuple[weakref.ref[Any], int, dict[str, int]]] = []


def patch_loader(module: ModuleType) -> None:
    """torch.utils.data.dataloader."""
    loader.patch(module._BaseDataLoaderIter, "__next__")


def patch_collectives(module: ModuleType) -> None:
    """torch.distributed.distributed_c10d."""
    calls.patch(module, *_CALLS)
    calls.patch(module.Work, "wait")


def patch_ddp(module: ModuleType) -> None:
    """torch.nn.parallel.distributed."""
    kind: Any = module.DistributedDataParallel
    initialise = kind.__init__
    # Buffers are broadcast in C++.
    calls.patch(kind, "_sync_buffers")

    @functools.wraps(initialise)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        initialise(self, *args, **kwargs)
        with contextlib.suppress(Exception):  # a torch that times otherwise: nothing is measured
            every = 1 if self.device_type == "cpu" else DDP_EVERY
            self._set_ddp_runtime_logging_sample_rate(every)
            _models.append((weakref.ref(self), every, {}))

    kind.__init__ = __init__


def ddp_exposed_s(step: int) -> float:
    """Seconds by which the communication of one earlier backward pass ended later than its computation; NaN where there is none to tell of."""
    found_s = math.nan
    for reference, every, seen in _models:
        if step % every != 1 % every:
            continue
        with contextlib.suppress(Exception):
            told = reference()._get_ddp_logging_data()  # type: ignore[union-attr]
            iteration = told["iteration"]
            # backward_comm_time begins with the first bucket, and so within the computation.
            exposed_s = (told["backward_comm_time"] - told["backward_compute_comm_overlap_time"]) / 1e9
            if seen.get("iteration") != iteration and told["backward_comm_time"] > 0:
                found_s = exposed_s if math.isnan(found_s) else found_s + exposed_s
            seen["iteration"] = iteration
    return found_s


def _training_thread() -> int | None:
    attached = session.current()
    return attached.main_ident if attached is not None else threading.main_thread().ident
