"""Files from strangers, each read in a process of ours within a budget of CPU time and memory: reading any of them ends, and can be ended.

What may surprise: hashing a tuple of tuples or multiplying thousands of large numbers is one call into C, during which Python answers no signal. So
this process only waits, and the other one is killed by the kernel (setitimer(2), ITIMER_PROF). The budget is CPU time: a busy machine does not use
it up.
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
_ROOM_BYTES = 384 * 1024**2
_GROWTH = 40
# Of a packed file so many times its size counts.
_MOST_PACKED = 16
_NAP_MS = 500
_REQUEST = struct.Struct("<Id")
_LENGTH = struct.Struct("<Q")
_BLOCK_BYTES = 1 << 20
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
    # None of what has to be done here.
    readers, answers = list[_Reader[T, R]](), dict[int, tuple[R | RecordError] | None]()
    given = over = 0
    try:
        for wanted in range(len(items)):
            while wanted not in answers:
                for reader in readers:
                    if reader.item is None and given < len(items):
                        reader.ask(given, max(_LEAST_S, (_BASE_S + sizes[given] * _S_PER_BYTE) / (1 + over // _FULL_BUDGETS)))
                        given += 1
                if given < len(items) and len(readers) < processes and (started := _started(task, items, sizes, readers)) is not None:
                    readers.append(started)
                elif not readers:
                    answers[given] = None
                    given += 1
                else:
                    for reader in _ready(readers):
                        if (n := reader.item) is None or not reader.receive():
                            continue
                        answers[n] = reader.answer
                        if not reader.alive:
                            over += 1
                            readers.remove(reader)
            found = answers.pop(wanted)
            yield answer(task, items[wanted]) if found is None else found[0]
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
    if _limit is None or (more := min(size, _MOST_PACKED * _limit[1]) - _limit[1]) <= 0:
        return
    signal.setitimer(signal.ITIMER_PROF, signal.getitimer(signal.ITIMER_PROF)[0] + more * _S_PER_BYTE)
    _limit = (_limit[0] + _GROWTH * more, _limit[1] + more)
    _bound(_limit[0])


class _Reader(Generic[T, R]):
    """A process that runs the task for one item after another. `item` is the one that it is at, `answer` the last: None where the task raised what it
    should not, which it does once more where somebody sees it."""

    def __init__(self, task: Callable[[T], R], items: Sequence[T], sizes: Sequence[int], others: Sequence[_Reader[T, R]]) -> None:
        self.item: int | None = None
        self.answer: tuple[R | RecordError] | None = None
        self.alive = True
        self._budget_s = 0.0
        self._data = bytearray()
        asked, self._asks = os.pipe()
        self.told, tells = os.pipe()
        with uninterrupted():
            try:
                self._pid = os.fork()
                if not self._pid:
                    try:
                        for fd in (self._asks, self.told, *(fd for r in others for fd in (r._asks, r.told))):
                            os.close(fd)
                        _serve(task, items, sizes, asked, tells)
                    finally:
                        os._exit(1)
            except OSError:
                os.close(self._asks)
                os.close(self.told)
                raise
            finally:
                os.close(asked)
                os.close(tells)

    def ask(self, item: int, budget_s: float) -> None:
        self.item, self._budget_s = item, budget_s
        with contextlib.suppress(BrokenPipeError):
            os.write(self._asks, _REQUEST.pack(item, budget_s))

    def receive(self) -> bool:
        """Whether that was the last of an answer."""
        part = os.read(self.told, _BLOCK_BYTES)
        self._data += part
        if not part:
            self.answer = (self._left_out(self.end()),)
        elif len(self._data) < _LENGTH.size or len(self._data) < _LENGTH.size + _LENGTH.unpack_from(self._data)[0]:
            return False
        else:
            self.answer = pickle.loads(memoryview(self._data)[_LENGTH.size :])
            self._data = bytearray()
        self.item = None
        return True

    def _left_out(self, status: int) -> RecordError:
        ended_by = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
        if ended_by == signal.SIGPROF:
            return RecordError(f"left out: it took more than {self._budget_s:.2g} s of CPU time", cause=_PROBABLY)
        return RecordError(
            f"left out: the process that read it was ended by signal {ended_by}" if ended_by else "left out: the process that read it has ended",
            cause="the kernel ended it for memory, or somebody did",
        )

    def end(self) -> int:
        """How it has ended; 0 where that is known already."""
        if not self.alive:
            return 0
        with uninterrupted():
            self.alive = False
            os.close(self._asks)
            os.close(self.told)
            # Where it has ended by itself that stays its status.
            os.kill(self._pid, signal.SIGKILL)
            return os.waitpid(self._pid, 0)[1]


def _started(task: Callable[[T], R], items: Sequence[T], sizes: Sequence[int], others: Sequence[_Reader[T, R]]) -> _Reader[T, R] | None:
    if sys.platform != "linux" or threading.active_count() > 1:
        return None
    try:
        return _Reader(task, items, sizes, others)
    except OSError:
        return None


def _ready(readers: Sequence[_Reader[T, R]]) -> list[_Reader[T, R]]:
    """Those that have anything to tell; [] after a nap, since an interrupt in the moment before we sleep is answered only when we wake."""
    poll = select.poll()
    for reader in readers:
        poll.register(reader.told, select.POLLIN)
    told = {fd for fd, _ in poll.poll(_NAP_MS)} if readers else set()
    return [r for r in readers if r.told in told]


def _serve(task: Callable[[T], R], items: Sequence[T], sizes: Sequence[int], asked: int, tells: int) -> None:
    """In a process of ours. Ctrl-C is for the one that waits to handle; when that has gone, so has who asks."""
    global _limit
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    for number in (signal.SIGTERM, signal.SIGPROF):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    before = resource.getrlimit(resource.RLIMIT_AS)
    while len(request := os.read(asked, _REQUEST.size)) == _REQUEST.size:
        n, budget_s = _REQUEST.unpack(request)
        _limit = (_ROOM_BYTES + _GROWTH * sizes[n], sizes[n])
        _limit = _limit if _bound(_limit[0]) else None
        signal.setitimer(signal.ITIMER_PROF, budget_s)
        allowed = 0
        try:
            data = pickle.dumps((answer(task, items[n]),), pickle.HIGHEST_PROTOCOL)
        except MemoryError:
            allowed = _limit[0] if _limit is not None else 0
            data = b""
        except Exception:
            data = pickle.dumps(None)
        signal.setitimer(signal.ITIMER_PROF, 0)
        resource.setrlimit(resource.RLIMIT_AS, before)
        if allowed:
            data = pickle.dumps((RecordError(f"left out: it took more than {allowed >> 20} MiB of memory", cause=_PROBABLY),))
        left = memoryview(_LENGTH.pack(len(data)) + data)
        while left:
            left = left[os.write(tells, left) :]


def _bound(size: int) -> bool:
    """Keep this process from taking so many bytes more than it has; False where that cannot be."""
    try:
        with open("/proc/self/statm", "rb") as f:  # noqa: PTH123
            now = int(f.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
        hard = resource.getrlimit(resource.RLIMIT_AS)[1]
        limit = now + size if hard == resource.RLIM_INFINITY else min(now + size, hard)
        resource.setrlimit(resource.RLIMIT_AS, (limit, hard))
    except (OSError, ValueError):
        return False
    return True


def answer(task: Callable[[T], R], item: T) -> R | RecordError:
    """What a task returns, or the RecordError that it raised. Raises MemoryError where this process is bounded, and what is a fault of ours."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        return task(item)
    except RecordError as e:
        return e
    except MemoryError:
        if _limit is not None:
            raise
        return RecordError("there is not enough memory for it")
    except RecursionError:
        return RecordError("it is nested too deep: it is no flight-recorder dump")
    finally:
        if collecting:
            gc.enable()
