"""Logs read by several processes: most of the time goes into Python's own work on the lines that hit, and threads would take turns at that.

Processes are forked where that is possible and worth it; threads do the same elsewhere.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from unhang.errors import UnhangError

if TYPE_CHECKING:
    from concurrent.futures import Executor, Future
    from multiprocessing.process import BaseProcess


T = TypeVar("T")
# What all tasks need: the needles of those who read logs.
S = TypeVar("S")

# More do not read faster from one disk.
_MAX_READERS = 8
_PR_SET_PDEATHSIG = 1
_INTERRUPTS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
# Far more than it takes to start them, on the slowest machine.
_START_S = 20.0
_NAP_S = 0.5


def cores() -> int:
    """How many readers are worth having."""
    affinity = getattr(os, "sched_getaffinity", None)
    return min(_MAX_READERS, len(affinity(0)) if affinity is not None else os.cpu_count() or 1)


class Readers(Generic[S]):
    """Runs functions of (needles, stop, ...) for us: `parallel` by processes or threads, otherwise at once."""

    def __init__(self, needles: S, *, parallel: bool) -> None:
        self.needles = needles
        self._parallel = parallel and cores() > 1
        # One byte that all processes share.
        self._told_to_stop = mmap.mmap(-1, 1)
        self._pool: Executor | None = None
        self._forked = False
        self._processes: list[BaseProcess] = []

    def __enter__(self) -> Readers[S]:
        try:
            if self._parallel:
                self._start_processes()
                self._forked = self._pool is not None
                self._pool = self._pool or _threads()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        # Nobody wants what they read any more, and to their next block it may be seconds.
        if error is not None:
            with uninterrupted():
                for process in self._processes:
                    process.kill()
        self._end()

    def _end(self) -> None:
        """Interrupted, nobody waits for logs that are still in the queue, and those under way end at their next block."""
        self._told_to_stop[0] = 1
        if self._pool is not None:
            with uninterrupted():
                self._pool.shutdown(wait=True, cancel_futures=True)

    def stopped(self) -> bool:
        """Whether whoever reads is to give up."""
        return self._told_to_stop[0] == 1

    def submit(self, task: Callable[..., T], *args: Any) -> Future[T]:
        """Have a function run; it stands in a module, and what it takes and returns can be pickled."""
        if self._pool is None:
            return _at_once(lambda: task(self.needles, self.stopped, *args))
        if not self._forked:
            return self._pool.submit(task, self.needles, self.stopped, *args)
        with _told():
            return self._pool.submit(_in_process, task, *args)

    def result(self, future: Future[T]) -> T:
        """What a function returned. Raises what it raised, and UnhangError where its process was ended from outside."""
        from concurrent.futures import wait

        # An interrupt in the moment before we sleep is answered only when we wake.
        while not future.done():
            wait([future], timeout=_NAP_S)
        if not self._forked:
            return future.result()
        with _told():
            return future.result()

    def _start_processes(self) -> None:
        """Nothing where they cannot be had: no /dev/shm for their locks, no more processes or threads allowed."""
        # Threads of the caller may hold locks that no forked process would see released; on macOS the system's libraries do.
        if sys.platform != "linux" or threading.active_count() > 1:
            return
        try:
            # Loaded before the fork: in a Python without libffi it cannot be.
            import ctypes  # noqa: F401
            import multiprocessing

            # The builtin one is another before Python 3.11.
            from concurrent.futures import ProcessPoolExecutor
            from concurrent.futures import TimeoutError as NotInTime
        except ImportError:
            return
        others = multiprocessing.active_children()
        try:
            # A process that is interrupted before it is set up would go the way out that is ours.
            with uninterrupted():
                self._pool = ProcessPoolExecutor(
                    cores(), mp_context=multiprocessing.get_context("fork"), initializer=_set_up, initargs=(self, os.getpid())
                )
                # The first task starts all of them; where their queue has no thread it is never answered.
                self._pool.submit(int).result(timeout=_START_S)
                self._processes = [p for p in multiprocessing.active_children() if p not in others]
        except (OSError, RuntimeError, NotImplementedError, ImportError, NotInTime):
            for process in multiprocessing.active_children():
                if process not in others:
                    process.kill()
                    process.join()
            self._pool = None


def _threads() -> Executor | None:
    """None where not even one more can be had."""
    from concurrent.futures import ThreadPoolExecutor

    pool = ThreadPoolExecutor(cores(), thread_name_prefix="read")
    try:
        pool.submit(int).result()
    except RuntimeError:
        return None
    return pool


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """Ctrl-C and its like wait. In other threads than the main one it never comes."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _INTERRUPTS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextlib.contextmanager
def _told() -> Iterator[None]:
    """Says in our words that a process is gone."""
    from concurrent.futures.process import BrokenProcessPool

    try:
        yield
    except BrokenProcessPool as e:
        raise UnhangError(
            "a process that read logs was ended from outside", cause="the kernel ended it for memory, or somebody did", hint="dmesg | tail"
        ) from e


# In a process of ours, what it was forked with.
_own: Readers[Any] | None = None


def _set_up(readers: Readers[Any], parent: int) -> None:
    """In a process of ours: it goes when we go, and Ctrl-C is for us to handle."""
    import ctypes

    global _own
    _own = readers
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # By SIGTERM the pool ends its processes once one of them is gone.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _INTERRUPTS)
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def _in_process(task: Callable[..., T], *args: Any) -> T:
    assert _own is not None
    return task(_own.needles, _own.stopped, *args)


def _at_once(task: Callable[[], T]) -> Future[T]:
    from concurrent.futures import Future

    future: Future[T] = Future()
    try:
        future.set_result(task())
    except Exception as e:
        future.set_exception(e)
    return future
