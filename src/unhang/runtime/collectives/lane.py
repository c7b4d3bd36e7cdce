"""A process group of our own, in which guarded collectives travel, and which can be broken at will.

A collective that is given up cannot be called back: a late peer would complete it, and write into memory that is in use again. So it is not given
up: the lane is broken, the sockets are closed on the spot, what was under way ends with an error, and a late peer meets a closed door. The training's
own group never sees any of it.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

# All ranks have just said that they come: what takes longer is lost.
OPENS_WITHIN_S = 30.0
# Gloo must not time out by itself: it would do so at another moment on each rank.
_NEVER = timedelta(days=7)
_SPINS_S = 0.0005


class Lane(Protocol):
    def all_reduce(self, tensor: torch.Tensor, op: Any) -> Any: ...

    def broadcast(self, tensor: torch.Tensor, root: int) -> Any: ...

    def all_gather(self, outputs: Sequence[torch.Tensor], tensor: torch.Tensor) -> Any: ...

    def ended(self, work: Any, within_s: float) -> bool:
        """Whether it is complete; raises what it failed with. Neither waits longer nor harms what is under way."""

    def destroy(self) -> None:
        """Closes it on the spot, whatever is under way: that ends at once, with an error, here and at the other ranks."""


class GlooLane:
    def __init__(self, store: Any, rank: int, size: int, *, within_s: float = OPENS_WITHIN_S) -> None:
        """Raises RuntimeError where not all ranks come."""
        self._rank, self._size = rank, size
        self._group = dist.ProcessGroupGloo(store, rank, size, timedelta(seconds=within_s))

    def all_reduce(self, tensor: torch.Tensor, op: Any) -> Any:
        options = dist.AllreduceOptions()
        options.reduceOp, options.timeout = op, _NEVER
        return self._group.allreduce([tensor], _async(options))

    def broadcast(self, tensor: torch.Tensor, root: int) -> Any:
        options = dist.BroadcastOptions()
        options.rootRank, options.rootTensor, options.timeout = root, 0, _NEVER
        return self._group.broadcast([tensor], _async(options))

    def all_gather(self, outputs: Sequence[torch.Tensor], tensor: torch.Tensor) -> Any:
        options = c10d.AllgatherOptions()
        options.timeout = _NEVER
        return self._group.allgather([list(outputs)], [tensor], _async(options))

    def ended(self, work: Any, within_s: float) -> bool:
        try:
            work.wait(timedelta(seconds=within_s))
        except RuntimeError:
            # A wait that times out is soft: it leaves the operation where it is.
            if not work.is_completed():
                return False
            # It may have ended in between.
            work.wait(timedelta(seconds=within_s))
        return True

    def destroy(self) -> None:
        # A receive that times out is not soft: Gloo closes all connections of the group.
        with contextlib.suppress(RuntimeError):
            self._group.recv([torch.empty(1)], (self._rank + 1) % self._size, 0).wait(timedelta(milliseconds=1))


class NcclLane:
    def __init__(self, store: Any, rank: int, size: int, device: torch.device) -> None:
        self._device = device
        options = dist.ProcessGroupNCCL.Options()
        # Of a watchdog that ends the process nobody would be left to tell.
        options._timeout = _NEVER
        self._group = dist.ProcessGroupNCCL(store, rank, size, options)

    def all_reduce(self, tensor: torch.Tensor, op: Any) -> Any:
        options = dist.AllreduceOptions()
        options.reduceOp = op
        return self._group.allreduce([tensor], options)

    def broadcast(self, tensor: torch.Tensor, root: int) -> Any:
        options = dist.BroadcastOptions()
        options.rootRank, options.rootTensor = root, 0
        return self._group.broadcast([tensor], options)

    def all_gather(self, outputs: Sequence[torch.Tensor], tensor: torch.Tensor) -> Any:
        return self._group.allgather([list(outputs)], [tensor], c10d.AllgatherOptions())

    def ended(self, work: Any, within_s: float) -> bool:
        # Its own wait with a timeout would abort the communicator.
        until = time.monotonic() + within_s
        while not work.is_completed():
            if time.monotonic() > until:
                return False
            time.sleep(_SPINS_S)
        work.wait()
        return True

    def destroy(self) -> None:
        self._group.abort()
        torch.cuda.synchronize(self._device)


def _async(options: Any) -> Any:
    # Otherwise newer torch may run it at once, in the thread that asks.
    if hasattr(options, "asyncOp"):
        options.asyncOp = True
    return options
