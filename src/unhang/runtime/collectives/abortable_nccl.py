"""A lane over NCCL: nothing in it waits without bound, and nothing of it ends the process. What may never answer is asked for in a thread.

What torch has around a group of NCCL is meant for one that is never given up. Its watchdog ends the process over a failure, or has the monitors of
default groups end all processes by way of the store; a collective that has failed counts as completed, and to wait for it may hang.
"""

from __future__ import annotations

import contextlib
import os
import queue
import threading
import time
import weakref
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from unhang.runtime.collectives import shutdown
from unhang.runtime.collectives.abortable_group import NEVER_S, OPENS_WITHIN_S, AbortableGroup
from unhang.runtime.collectives.bounded_store import BoundedStore

_SPINS_S = 0.0005
_RAISES_WITHIN_S = 10.0
# A group reads these where it is made (torch 2.4 to 2.15), and never again: those of the training keep what they have.
_UNWATCHED = {
    # No watchdog is started (from torch 2.6 on), or it ends nothing, also under TORCH_DISTRIBUTED_DEBUG=DETAIL, which overrides the next one.
    "TORCH_NCCL_BLOCKING_WAIT": "1",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0",
    "TORCH_NCCL_DESYNC_DEBUG": "0",
    # Where there is a watchdog: what it has seen fail it says in the store, and monitors end their processes.
    "TORCH_NCCL_DUMP_ON_TIMEOUT": "0",
    "TORCH_NCCL_PROPAGATE_ERROR": "0",
    "TORCH_NCCL_ENABLE_MONITORING": "0",
    # Without a watchdog the flight recorder is not told that a work has gone, and goes on asking its events: those of the cache are never freed.
    "TORCH_NCCL_CUDA_EVENT_CACHE": "1",
}
# Of calls: to ask for one of them in the thread again costs little.
_KNOWN_KINDS = 4096
_making = threading.Lock()
# By board: the connection by which NCCL's ranks find each other.
_stores: weakref.WeakKeyDictionary[BoundedStore, Any] = weakref.WeakKeyDictionary()


@contextmanager
def unwatched() -> Iterator[None]:
    """A group of NCCL that is made inside has no watchdog that could end the process. The environment is as it was afterwards."""
    with _making:
        before = {name: os.environ.get(name) for name in _UNWATCHED}
        os.environ.update(_UNWATCHED)
        try:
            yield
        finally:
            for name, value in before.items():
                if value is None:
                    del os.environ[name]
                else:
                    os.environ[name] = value


def store_beside(board: BoundedStore) -> Any:
    """For lanes of NCCL: torch waits in it for the first rank, and so does whoever shares its connection. One for all lanes of a circle."""
    if board not in _stores:
        within = timedelta(seconds=OPENS_WITHIN_S)
        store, server = BoundedStore.beside(board.name).store, c10d._get_default_store()
        while hasattr(server, "underlying_store"):
            server = server.underlying_store
        if hasattr(server, "clone"):
            store.set_timeout(within)
        elif isinstance(server, dist.TCPStore):
            # In torch 2.4 the other one is the training's own, which waits for as long as the training says.
            store = dist.PrefixStore(board.name, dist.TCPStore(server.host, server.port, None, False, within, False))
        _stores[board] = store
    return _stores[board]


class NcclLane(AbortableGroup):
    """NCCL connects the ranks in the first collectives, on the devices of their tensors: `ended` is what waits for that."""

    def __init__(self, store: Any, rank: int, size: int) -> None:
        """Raises ValueError where this host has no GPU."""
        options = dist.ProcessGroupNCCL.Options()
        options._timeout = timedelta(seconds=NEVER_S)
        with unwatched():
            self._group = dist.ProcessGroupNCCL(store, rank, size, options)
        self._asking = Asking()
        self._devices: set[torch.device] = set()
        self._aborting: TimedCall | None = None

    def leaves(self) -> list[str]:
        # Of its first communicator. There is one for each device, and so one only, unless a rank changes its own.
        return ["0"]

    def all_reduce(self, tensor: torch.Tensor, op: Any) -> Any:
        options = dist.AllreduceOptions()
        options.reduceOp = op
        return self._asked(f"all_reduce {op}", tensor, lambda: self._group.allreduce([tensor], options))

    def broadcast(self, tensor: torch.Tensor, root: int) -> Any:
        options = dist.BroadcastOptions()
        options.rootRank, options.rootTensor = root, 0
        return self._asked(f"broadcast {root}", tensor, lambda: self._group.broadcast([tensor], options))

    def all_gather(self, outputs: Sequence[torch.Tensor], tensor: torch.Tensor) -> Any:
        return self._asked("all_gather", tensor, lambda: self._group.allgather([list(outputs)], [tensor], c10d.AllgatherOptions()))

    def _asked(self, what: str, tensor: torch.Tensor, ask: Callable[[], Any]) -> Any:
        device = tensor.device
        self._devices.add(device)
        stream = torch.cuda.current_stream(device)

        def there() -> Any:
            with torch.cuda.stream(stream):
                return ask()

        # By size as well: NCCL (2.22 and newer) connects for an algorithm when it first chooses it.
        return self._asking((what, tensor.numel(), tensor.dtype, device), there)

    def ended(self, work: Any, within_s: float) -> bool:
        until = time.monotonic() + within_s
        if isinstance(work, TimedCall):
            work = work.work(within_s)
            if work is None:
                return False
        # Its own wait with a timeout would abort the communicator.
        while not work.is_completed():
            if time.monotonic() > until:
                return False
            time.sleep(_SPINS_S)
        if (error := _failure(work)) is not None:
            raise RuntimeError(str(error)) from error
        # For the current stream: there is nothing to wait for any more.
        work.wait()
        return True

    def destroy(self) -> None:
        # Aborting waits for NCCL's own threads, and the device for whatever else is stuck on it: the training's collective, say. Seconds, in which
        # the others are told already.
        self._asking.close()
        if self._aborting is None:
            self._aborting = in_a_thread(self._aborted)

    def gone(self, within_s: float) -> bool:
        return self._aborting is None or self._aborting.answers(within_s)

    def _aborted(self) -> None:
        # Before torch 2.6 a shutdown is what aborts.
        abort = getattr(self._group, "abort", None) or self._group._shutdown
        abort()
        for device in self._devices:
            torch.cuda.synchronize(device)


def _failure(work: Any) -> Exception | None:
    """Of a work that counts as completed, as one that has failed does as well."""
    try:
        # Torch calls this deprecated, in one line on stderr; nothing else tells without aborting.
        found: Exception | None = work.exception()
    except TypeError:
        # Older torch (2.4) cannot hand it over. There a wait raises it, and may hang before.
        found = raised(work.wait, _RAISES_WITHIN_S)
    return found


class TimedCall:
    """A question, instead of the work that comes of it."""

    def __init__(self, ask: Callable[[], Any]) -> None:
        self._ask = ask
        self._begun = threading.Lock()
        self._answered = threading.Event()
        self._work: Any = None
        self._error: Exception | None = None

    def is_completed(self) -> bool:
        """Whether nothing of it touches memory any more."""
        return self.answered and (self._error is not None or self._work.is_completed())

    @property
    def answered(self) -> bool:
        return self._answered.is_set()

    def answers(self, within_s: float) -> bool:
        return self._answered.wait(within_s)

    def work(self, within_s: float) -> Any:
        """None where there is no answer yet. Raises RuntimeError with what the question raised."""
        if not self.answers(within_s):
            return None
        if self._error is not None:
            raise RuntimeError(str(self._error)) from self._error
        return self._work

    def ask(self) -> None:
        if not self._begun.acquire(blocking=False):
            return
        try:
            with shutdown.inside_torch():
                self._work = self._ask()
        except Exception as e:
            self._error = e
        self._answered.set()

    def withdraw(self) -> None:
        """Where it has not been asked yet, it never is."""
        if self._begun.acquire(blocking=False):
            self._error = RuntimeError("the lane was broken before")
            self._answered.set()


class Asking:
    """Asks at once for a kind that has been answered before, and in a thread for one that is new; always in the same order."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._thread = _answering()
        self._known: set[Hashable] = set()
        self._waiting: list[TimedCall] = []
        self._closed = False

    def __call__(self, kind: Hashable, ask: Callable[[], Any]) -> Any:
        """The work, or a TimedCall. Raises RuntimeError once it is closed."""
        with self._lock:
            if self._closed:
                raise RuntimeError("the lane is broken")
            self._waiting = [asked for asked in self._waiting if not asked.answered]
            if self._waiting or kind not in self._known:
                if len(self._known) >= _KNOWN_KINDS:
                    self._known.clear()
                self._known.add(kind)
                asked = TimedCall(ask)
                self._waiting.append(asked)
                self._thread.put(asked)
                return asked
        return ask()

    def close(self) -> None:
        """What has not been asked for never is."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            for asked in self._waiting:
                asked.withdraw()
            if all(asked.answered for asked in self._waiting):
                _idle.append(self._thread)
            else:
                # Once it has been answered after all.
                self._thread.put(TimedCall(lambda: _idle.append(self._thread)))


# Threads that answer, each by what it is asked. They never end: torch 2.6 keeps CUDA's events by thread, and uses them when the thread has ended.
_idle: list[queue.SimpleQueue[TimedCall]] = []


def _answering() -> queue.SimpleQueue[TimedCall]:
    # Whether there is one is known only when it has been taken: circles of two threads may want the last.
    with contextlib.suppress(IndexError):
        return _idle.pop()
    return _started()


def _started() -> queue.SimpleQueue[TimedCall]:
    questions: queue.SimpleQueue[TimedCall] = queue.SimpleQueue()
    threading.Thread(target=_answers, args=(questions,), name="unhang-asks", daemon=True).start()
    return questions


def _answers(questions: queue.SimpleQueue[TimedCall]) -> None:
    while True:
        questions.get().ask()


def in_a_thread(call: Callable[[], Any]) -> TimedCall:
    asked = TimedCall(call)
    threading.Thread(target=asked.ask, name="unhang-asks-once", daemon=True).start()
    return asked


def raised(call: Callable[[], Any], within_s: float) -> Exception | None:
    """What `call` raises, or that it has not answered in time; it is left to itself then."""
    asked = in_a_thread(call)
    try:
        asked.work(within_s)
    except RuntimeError as e:
        return e
    return None if asked.answered else RuntimeError(f"no answer within {within_s:g} s")


# A child has none of the threads.
os.register_at_fork(after_in_child=_idle.clear)
