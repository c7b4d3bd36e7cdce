"""A process group of our own, in which guarded collectives travel, and which can be broken at will.

A collective that is given up cannot be called back: a late peer would complete it, and write into memory that is in use again. So it is not given
up: the lane is broken, the sockets are closed on the spot, what was under way ends with an error, and a late peer meets a closed door. The training's
own group never sees any of it.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from unhang.records.incident import OWN_GROUPS
from unhang.runtime.collectives import shutdown
from unhang.runtime.collectives.bounded_store import BoundedStore

# All ranks have just said that they come: what takes longer is lost.
OPENS_WITHIN_S = 30.0
# So often Gloo tries to connect with a peer that does not answer, each time for the whole timeout (seen in torch 2.13 and 2.15).
_CONNECTS_TIMES = 5
# Gloo should not time out by itself: it would do so at another moment on each rank. But where a connection is closed under a send, Gloo (of torch
# 2.13, at least) forgets to tell the thread that waits for it: nothing else ends that.
NEVER_S = 7 * 86400.0
# Descriptors of a rank for lanes of their own over Gloo: half of what Linux grants a process that asks for no more (RLIMIT_NOFILE), whatever this
# host grants, since all ranks have to keep as many. Each has a socket for every other rank, and four of its own.
_MOST_DESCRIPTORS = 512
_OF_EACH_LANE = 4
_MOST_LANES = 16
# Each takes some hundred MB of a GPU's memory: buffers for every channel and neighbour.
_MOST_OF_NCCL = 2


def kind(what: str, device: str, group: Any) -> str:
    """What carries a call: nccl, gloo, or the store, where a barrier would be all that connects every rank with every other by Gloo."""
    backends = dist.get_backend_config(group)
    if device == "cuda" and "nccl" in backends:
        return "nccl"
    return "store" if what == "barrier" and "gloo" not in backends else "gloo"


def most(kind: str, size: int) -> int:
    """How many kinds of calls get a lane of their own, among `size` ranks: the same on all of them."""
    if kind == "store":
        return 0
    return _MOST_OF_NCCL if kind == "nccl" else min(_MOST_LANES, _MOST_DESCRIPTORS // (size - 1 + _OF_EACH_LANE))


class AbortableGroup:
    """What a lane has to do; what only some have to do is nothing here."""

    def expect(self, deadline_s: float) -> None:
        """How long the operations that follow may go on without progress; the lane itself ends them only long after that."""

    def leaves(self) -> list[str]:
        """What this rank leaves in the lane's store, which nobody reads once all are connected."""
        return []

    def all_reduce(self, tensor: torch.Tensor, op: Any) -> Any:
        raise NotImplementedError

    def broadcast(self, tensor: torch.Tensor, root: int) -> Any:
        raise NotImplementedError

    def all_gather(self, outputs: Sequence[torch.Tensor], tensor: torch.Tensor) -> Any:
        raise NotImplementedError

    def ended(self, work: Any, within_s: float) -> bool:
        """Whether it is complete; raises what it failed with. Neither waits longer nor harms what is under way."""
        raise NotImplementedError

    def destroy(self) -> None:
        """Closes it, whatever is under way: that ends with an error, here and at the other ranks. Waits for nothing."""

    def gone(self, within_s: float) -> bool:
        """Of one that was destroyed: whether nothing of it touches memory any more, but for what its works still say. Waits no longer."""
        return True


class GlooLane(AbortableGroup):
    def __init__(self, store: Any, rank: int, size: int, *, name: str = "", within_s: float = OPENS_WITHIN_S) -> None:
        """`name` tells the lane's calls from those of other groups in the flight recorder. Raises RuntimeError where not all ranks come."""
        self._rank, self._size = rank, size
        # One of Python's is not held by torch.
        self._store = store
        self._group = dist.ProcessGroupGloo(store, rank, size, timedelta(seconds=within_s / _CONNECTS_TIMES))
        _name(self._group, f"{OWN_GROUPS}{name}")
        self._expects_s, self._never = NEVER_S, timedelta(seconds=NEVER_S)
        # By operation: to make them takes longer than to give them.
        self._reduces: dict[Any, Any] = {}

    def expect(self, deadline_s: float) -> None:
        if deadline_s != self._expects_s:
            # Of two that are under way one may have waited for as long as the other took.
            self._expects_s, self._never = deadline_s, timedelta(seconds=min(2 * deadline_s + 1, NEVER_S))
            self._reduces.clear()

    def leaves(self) -> list[str]:
        # By device, of which there is one.
        return [f"0/{self._rank}"]

    def all_reduce(self, tensor: torch.Tensor, op: Any) -> Any:
        if (options := self._reduces.get(op)) is None:
            options = self._reduces[op] = _async(dist.AllreduceOptions())
            options.reduceOp, options.timeout = op, self._never
        return self._group.allreduce([tensor], options)

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


class StoreLane(AbortableGroup):
    """For barriers: all ranks have just agreed on one in the store, and so have come."""

    def all_reduce(self, tensor: torch.Tensor, op: Any) -> Any:
        return self

    def is_completed(self) -> bool:
        return True

    def ended(self, work: Any, within_s: float) -> bool:
        return True


def unconnected(kind: str, says: str) -> str:
    """What is told where a lane could not be opened."""
    if kind != "gloo":
        return f"no connection among all ranks: {says}"
    return (
        f"no connection among all ranks by Gloo: {says}. If hosts cannot reach each other's addresses, name the interface that joins them in "
        "GLOO_SOCKET_IFNAME (it is the host name's by default)"
    )


def _name(backend: Any, name: str) -> None:
    """Only a process group can name its back ends; without a name the calls of all lanes would be numbered as those of one group."""
    # A torch that makes process groups otherwise: the lane is as good without.
    with contextlib.suppress(AttributeError, TypeError):
        group: Any = dist.ProcessGroup(0, 1)
        group._register_backend(torch.device("cpu"), dist.ProcessGroup.BackendType.GLOO, backend)
        group._set_group_name(name)


def _async(options: Any) -> Any:
    # Otherwise newer torch may run it at once, in the thread that asks.
    if hasattr(options, "asyncOp"):
        options.asyncOp = True
    return options


# Broken lanes in which something has not ended. A group that is dropped waits for its threads, as a process does that drops it at its end.
_buried: list[tuple[AbortableGroup, list[Any]]] = []


def bury(lanes: Sequence[AbortableGroup], works: Sequence[Any]) -> None:
    """Keep these lanes until nothing of `works` is under way in them."""
    global _buried
    _buried = [(lane, under_way) for lane, under_way in _buried if not all(work.is_completed() for work in under_way)]
    if unended := [work for work in works if not work.is_completed()]:
        _buried += [(lane, unended) for lane in lanes]


# At the process's end nobody waits for them any more.
shutdown.at_end(lambda until: shutdown.keep(_buried))

_LOOKS_EVERY_S = 0.25


class Addresses(dist.Store):  # type: ignore[misc]
    """Where the ranks of a lane over Gloo read each other's addresses: under `key` on the board.

    Torch's own stores wait in C++, deaf to everything, and keep the connection from all others. Here whoever waits for an address goes on listening:
    who has been interrupted, or has failed, never tells one. Gloo asks in the thread that makes the group, and what `hears` raises comes out of there
    (torch 2.4 to 2.15).
    """

    def __init__(self, board: BoundedStore, key: str, within_s: float, hears: Callable[[], object]) -> None:
        super().__init__()
        self._board, self._key, self._within_s = board, key, within_s
        self._hears: Callable[[], object] | None = hears
        # Gloo waits for each, and then asks for it.
        self._found: dict[str, bytes] = {}

    def connected(self) -> None:
        """Nobody is asked any more. What listens holds the lane, and would keep its sockets."""
        self._hears = None
        self._found.clear()

    def set(self, key: str, value: Any) -> None:
        self._board.put(f"{self._key}/{key}", value)

    def get(self, key: str) -> bytes:
        if key in self._found:
            return self._found.pop(key)
        until = time.monotonic() + self._within_s
        while (found := self._board.wait(f"{self._key}/{key}", _LOOKS_EVERY_S)) is None:
            if self._hears is not None:
                self._hears()
            if time.monotonic() > until:
                raise RuntimeError(f"rank {key.rpartition('/')[2]} of the group has told no address within {self._within_s:g} s")
        return found

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        for key in keys:
            self._found[key] = self.get(key)
