"""A process group of our own, in which guarded collectives travel, and which can be broken at will.

A collective that is given up cannot be called back: a late peer would complete it, and write into memory that is in use again. So it is not given
up: the lane is broken, the sockets are closed on the spot, what was under way ends with an error, and a late peer meets a closed door. The training's
own group never sees any of it.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import threading
import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

# All ranks have just said that they come: what takes longer is lost.
OPENS_WITHIN_S = 30.0
# Gloo should not time out by itself: it would do so at another moment on each rank. But where a connection is closed under a send, Gloo (of torch
# 2.13, at least) forgets to tell the thread that waits for it: nothing else ends that.
_NEVER_S = 7 * 86400.0
_SPINS_S = 0.0005
_ABORTS_WITHIN_S = 10.0


class Lane(Protocol):
    def expect(self, deadline_s: float) -> None:
        """How long the operations that follow may go on without progress; the lane itself ends them only long after that."""

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
        self._never = timedelta(seconds=_NEVER_S)

    def expect(self, deadline_s: float) -> None:
        # Of two that are under way one may have waited for as long as the other took.
        self._never = timedelta(seconds=min(2 * deadline_s + 1, _NEVER_S))

    def all_reduce(self, tensor: torch.Tensor, op: Any) -> Any:
        options = dist.AllreduceOptions()
        options.reduceOp, options.timeout = op, self._never
        return self._group.allreduce([tensor], _async(options))

    def broadcast(self, tensor: torch.Tensor, root: int) -> Any:
        options = dist.BroadcastOptions()
        options.rootRank, options.rootTensor, options.timeout = root, 0, self._never
        return self._group.broadcast([tensor], _async(options))

    def all_gather(self, outputs: Sequence[torch.Tensor], tensor: torch.Tensor) -> Any:
        options = c10d.AllgatherOptions()
        options.timeout = self._never
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
        # A receive that times out is not soft: Gloo closes all connections of the group. One that meets a closed connection ends at once and closes
        # no other, and a peer that has broken its lane before us leaves such.
        for peer in range(self._size):
            if peer != self._rank:
                with contextlib.suppress(RuntimeError):
                    self._group.recv([torch.empty(1)], peer, 0).wait(timedelta(milliseconds=1))


class NcclLane:
    def __init__(self, store: Any, rank: int, size: int, device: torch.device) -> None:
        self._device = device
        options = dist.ProcessGroupNCCL.Options()
        # Of a watchdog that ends the process nobody would be left to tell.
        options._timeout = timedelta(seconds=_NEVER_S)
        self._group = dist.ProcessGroupNCCL(store, rank, size, options)

    def expect(self, deadline_s: float) -> None:
        pass

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
        # Aborting waits for NCCL's own threads, and the device for whatever else is stuck on it: the training's collective, say.
        ending = threading.Thread(target=self._aborted, name="unhang-abort", daemon=True)
        ending.start()
        ending.join(_ABORTS_WITHIN_S)

    def _aborted(self) -> None:
        # Before torch 2.6 only a shutdown aborts.
        abort = getattr(self._group, "abort", None) or self._group._shutdown
        abort()
        torch.cuda.synchronize(self._device)


def _async(options: Any) -> Any:
    # Otherwise newer torch may run it at once, in the thread that asks.
    if hasattr(options, "asyncOp"):
        options.asyncOp = True
    return options


class Graveyard:
    """Broken lanes in which something has not ended. A group that is dropped waits for its threads, as a process does that drops it at its end."""

    def __init__(self) -> None:
        self._buried: list[tuple[Lane, list[Any]]] = []

    def bury(self, lanes: Sequence[Lane], works: Sequence[Any]) -> None:
        self._buried = [(lane, under_way) for lane, under_way in self._buried if not all(work.is_completed() for work in under_way)]
        if unended := [work for work in works if not work.is_completed()]:
            self._buried += [(lane, unended) for lane in lanes]

    def leave(self) -> None:
        """At the process's end: nobody waits for them any more."""
        if self._buried:
            # Never dropped, not even with this module.
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._buried))


graveyard = Graveyard()
atexit.register(graveyard.leave)
