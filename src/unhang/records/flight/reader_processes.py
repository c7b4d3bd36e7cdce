"""Files from strangers, each read in a process of ours within a budget of CPU time and memory: reading any of them ends, and can be ended.

What may surprise: hashing a tuple of tuples or multiplying thousands of large numbers is one call into C, during which Python answers no signal. So
this process only waits, and the kernel ends the other one (setitimer(2), ITIMER_PROF). The budget is CPU time, which a busy machine does not use up.
"""

from __future__ import annotations

import contextlib
import gc
import os
import pickle
import resource
import select
import signal
import struct
import sys
import threading
from collections.abc import Callable, Generator, Sequence
from typing import Generic, TypeVar

from unhang.errors import RecordError
from unhang.records.logs.readers import uninterrupted

T = TypeVar("T")
R = TypeVar("R")

# A dump takes some 0.05 s for each megabyte, and one of nothing but sizes of tensors 0.2 s.
_BASE_S, _S_PER_BYTE = 0.8, 0.5e-6
# Where many files have used up their budget, each further one gets less, but never less than a real dump takes.
_FULL_BUDGETS, _LEAST_S = 8, 0.25
# What a process may take beside what it has: unpickled, a dump is some 20 times its size.
_ROOM_BYTES, _GROWTH = 384 * 1024**2, 40
# Of a packed file so many times its size counts.
_MOST_PACKED = 16
_NAP_MS = 500
_REQUEST = struct.Struct("<Id")
_PROBABLY = "it is no flight-recorder dump, or one that was made to take long"

# In a process that reads for another one: the bytes that it may take, and the size of the file that they are for.
_limit: tuple[int, int] | None = None


def is_bounded() -> bool:
    """Whether this process is kept from taking more memory than its file can be worth."""
    return _limit is not None


def each(task: Callable[[T], R], items: Sequence[T], sizes: Sequence[int], *, processes: int = 1) -> Generator[R | RecordError]:
    """What `task` returns for each item, in order, or why that is left out: a RecordError that it raised, or the budget that it went over.

    `sizes` are those of the files. Processes live until the iterator is closed. Where none can be forked (threads of the caller may hold locks) the
    task runs here, without a budget.
    """
    readers = list[_Reader[T, R]]()
    # None: to be done here.
    answers = dict[int, tuple[R | RecordError] | None]()
    given = over = 0
    try:
        for wanted in range(len(items)):
            while wanted not in answers:
                for reader in (r for r in readers if r.item is None and given < len(items)):
                    reader.ask(given, max(_LEAST_S, (_BASE_S + sizes[given] * _S_PER_BYTE) / (1 + over // _FULL_BUDGETS)))
                    given += 1
                if given < len(items) and len(readers) < processes and (started := _started(task, items, sizes, readers)) is not None:
                    readers.append(started)
                    continue
                if not readers:
                    answers[given] = None
                    given += 1
                for n, reader in _ready(readers):
                    answers[n] = reader.receive()
                    over += reader.ended
                    readers = [r for r in readers if not r.ended]
            answer = answers.pop(wanted)
            yield _answer(task, items[wanted]) if answer is None else answer[0]
    finally:
        for reader in readers:
            reader.end()


def one(task: Callable[[T], R], item: T, size: int) -> R:
    """The same of one item. Raises RecordError."""
    with contextlib.closing(each(task, [item], [size])) as answers:
        found = next(answers)
    if isinstance(found, RecordError):
        raise found
    return found


def allow_unpacked(size: int) -> None:
    """Of what a packed file was worth, more counts than its own size."""
    global _limit
    if _limit is not None and (more := min(size, _MOST_PACKED * _limit[1]) - _limit[1]) > 0:
        signal.setitimer(signal.ITIMER_PROF, signal.getitimer(signal.ITIMER_PROF)[0] + more * _S_PER_BYTE)
        _limit = (_limit[0] + _GROWTH * more, _limit[1] + more)
        _bound(_limit[0])


class _Reader(Generic[T, R]):
    """A process that runs the task for one item after another; `item` is the one that it is at."""

    def __init__(self, task: Callable[[T], R], items: Sequence[T], sizes: Sequence[int], others: Sequence[_Reader[T, R]]) -> None:
        self.item: int | None = None
        self.ended = False
        self._budget_s = 0.0
        asked, self.asks = os.pipe()
        told, tells = os.pipe()
        self.told = os.fdopen(told, "rb")
        with uninterrupted():
            try:
                self._pid = os.fork()
                if not self._pid:
                    try:
                        # It ends when nobody can ask it any more.
                        for asks in (self.asks, *(r.asks for r in others)):
                            os.close(asks)
                        _serve(task, items, sizes, asked, tells)
                    finally:
                        os._exit(1)
            except OSError:
                os.close(self.asks)
                self.told.close()
                raise
            finally:
                os.close(asked)
                os.close(tells)

    def ask(self, item: int, budget_s: float) -> None:
        self.item, self._budget_s = item, budget_s
        with contextlib.suppress(BrokenPipeError):
            os.write(self.asks, _REQUEST.pack(item, budget_s))

    def receive(self) -> tuple[R | RecordError] | None:
        """The answer, None where the task raised what it should not: it is to do so where somebody sees it. Why there is none, once it has ended."""
        self.item = None
        try:
            answer: tuple[R | RecordError] | None = pickle.load(self.told)
        except (EOFError, pickle.UnpicklingError):
            number = os.waitstatus_to_exitcode(self.end())
            if number == -signal.SIGPROF:
                return (RecordError(f"left out: it took more than {self._budget_s:.2g} s of CPU time", cause=_PROBABLY),)
            return (RecordError(f"left out: the process that read it has ended ({number})", cause="the kernel ended it for memory, or somebody did"),)
        return answer

    def end(self) -> int:
        """How it has ended; 0 where that has been told."""
        if self.ended:
            return 0
        with uninterrupted():
            self.ended = True
            os.close(self.asks)
            self.told.close()
            # Of one that has ended by itself the status stays.
            os.kill(self._pid, signal.SIGKILL)
            return os.waitpid(self._pid, 0)[1]


def _started(task: Callable[[T], R], items: Sequence[T], sizes: Sequence[int], others: Sequence[_Reader[T, R]]) -> _Reader[T, R] | None:
    with contextlib.suppress(OSError):
        return _Reader(task, items, sizes, others) if sys.platform == "linux" and threading.active_count() == 1 else None
    return None


def _ready(readers: Sequence[_Reader[T, R]]) -> list[tuple[int, _Reader[T, R]]]:
    """Those that have an answer, with the item; [] after a nap, since an interrupt in the moment before we sleep is answered only when we wake."""
    poll = select.poll()
    asked = {r.told.fileno(): (r.item, r) for r in readers if r.item is not None}
    for told in asked:
        poll.register(told, select.POLLIN)
    return [asked[told] for told, _ in poll.poll(_NAP_MS)] if asked else []


def _serve(task: Callable[[T], R], items: Sequence[T], sizes: Sequence[int], asked: int, tells: int) -> None:
    """In a process of ours. Ctrl-C is for the one that waits to handle."""
    global _limit
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM, signal.SIGPROF):
        signal.signal(number, signal.SIG_IGN if number in (signal.SIGINT, signal.SIGHUP) else signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    before = resource.getrlimit(resource.RLIMIT_AS)
    with os.fdopen(tells, "wb") as answers:
        while len(request := os.read(asked, _REQUEST.size)) == _REQUEST.size:
            n, budget_s = _REQUEST.unpack(request)
            allowed = _ROOM_BYTES + _GROWTH * sizes[n]
            _limit = (allowed, sizes[n]) if _bound(allowed) else None
            signal.setitimer(signal.ITIMER_PROF, budget_s)
            try:
                data = pickle.dumps((_answer(task, items[n]),), pickle.HIGHEST_PROTOCOL)
            except MemoryError:
                resource.setrlimit(resource.RLIMIT_AS, before)
                allowed = _limit[0] if _limit is not None else allowed
                data = pickle.dumps((RecordError(f"left out: it took more than {allowed >> 20} MiB of memory", cause=_PROBABLY),))
            except Exception:
                data = pickle.dumps(None)
            signal.setitimer(signal.ITIMER_PROF, 0)
            resource.setrlimit(resource.RLIMIT_AS, before)
            answers.write(data)
            answers.flush()


def _bound(size: int) -> bool:
    """Keep this process from taking so many bytes more than it has; False where that cannot be."""
    try:
        with open("/proc/self/statm", "rb") as f:  # noqa: PTH123
            limit = int(f.read().split()[0]) * os.sysconf("SC_PAGE_SIZE") + size
        hard = resource.getrlimit(resource.RLIMIT_AS)[1]
        resource.setrlimit(resource.RLIMIT_AS, (limit if hard == resource.RLIM_INFINITY else min(limit, hard), hard))
    except (OSError, ValueError):
        return False
    return True


def _answer(task: Callable[[T], R], item: T) -> R | RecordError:
    """What a task returns, or the RecordError that it raised. Raises MemoryError where this process is bounded, and what is a fault of ours."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        return task(item)
    except RecordError as e:
        return e
    except MemoryError:
        if is_bounded():
            raise
        return RecordError("there is not enough memory for it")
    except RecursionError:
        return RecordError("it is nested too deep: it is no flight-recorder dump")
    finally:
        if collecting:
            gc.enable()
