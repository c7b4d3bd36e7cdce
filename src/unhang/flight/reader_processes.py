"""Reads untrusted files in child processes with a budget of CPU time and memory, so that every read ends and can be interrupted.

Hashing nested tuples is one C call during which Python handles no signal. The parent only waits; the kernel kills the child (setitimer(2),
ITIMER_PROF). CPU time, so a busy machine does not shorten the budget.
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
import traceback
from collections.abc import Callable, Generator, MutableMapping, Sequence
from typing import Generic, TypeVar

from unhang.errors import RecordError
from unhang.logs.readers import uninterrupted

T = TypeVar("T")
R = TypeVar("R")

# A dump takes some 0.05 s per megabyte, and one of nothing but tensor sizes 0.2 s.
_BASE_S, _S_PER_BYTE = 0.65, 0.5e-6
# For what a packed file holds, with the most of it and the most for each byte of the file. Hence all reads of 1 MB take 1.45 s at most, and
# starting and judging some 0.4 s more.
_S_PER_UNPACKED_BYTE, _UNPACKED_S, _UNPACKED_S_PER_BYTE = 0.05e-6, 0.3, 0.3e-6
# After many files that exceeded their budget each further one gets less, but never less than a real dump takes.
_FULL_BUDGETS, _LEAST_S = 8, 0.25
# Zero would mean no budget to setitimer(2).
_NOTHING_S = 0.01
# Memory a child may add to what it starts with; an unpickled dump is about 20 times its file.
_ROOM_BYTES, _GROWTH = 384 * 1024**2, 40
# A packed file counts for at most 16 times its size.
_MOST_PACKED = 16
_NAP_MS = 500
# The item, its CPU time, and whether that is what an earlier read of it left; in the answer what is left now.
_REQUEST = struct.Struct("<Id?")
_LEFT = struct.Struct("<d")
_PROBABLY = "not a flight-recorder dump, or built to be slow"

# In a child: (bytes it may allocate, file size they derive from, its RLIMIT_AS before).
_limit: tuple[int, int, tuple[int, int]] | None = None
_is_again = False


def is_bounded() -> bool:
    """Whether the memory of this process is limited to what its file can need."""
    return _limit is not None


def map_bounded(
    task: Callable[[T], R], items: Sequence[T], sizes: Sequence[int], *, processes: int = 1, left_s: MutableMapping[T, float] | None = None
) -> Generator[R | RecordError]:
    """Yield task(item) in order, or the RecordError for it: the one it raised, or the budget it exceeded.

    `sizes` are those of the files in bytes. `left_s` is the CPU time left by earlier reads of an item, which share one budget; it is updated.
    The processes live until the iterator is closed. The task runs here, without a budget, if forking is not possible: on systems other than Linux,
    and if the caller has threads, which may hold locks. Raises RuntimeError if the task raises anything else.
    """
    if sys.platform != "linux" or threading.active_count() > 1:
        yield from (_run(task, item) for item in items)
        return
    readers, answers = list[_Reader[T, R]](), dict[int, R | RecordError]()
    given = over = 0
    try:
        for wanted in range(len(items)):
            while wanted not in answers:
                for reader in (r for r in readers if r.item is None and given < len(items)):
                    left = None if left_s is None else left_s.get(items[given])
                    budget_s = max(_LEAST_S, (_BASE_S + sizes[given] * _S_PER_BYTE) / (1 + over // _FULL_BUDGETS))
                    reader.request(given, budget_s if left is None else left, is_again=left is not None)
                    given += 1
                if given < len(items) and len(readers) < processes:
                    with contextlib.suppress(OSError):
                        readers.append(_Reader(task, items, sizes, readers))
                        continue
                if not readers:
                    answers[given] = RecordError("left out: no reader process could be started")
                    given += 1
                for n, reader in _ready(readers):
                    answers[n] = reader.receive()
                    over += reader.ended
                    if left_s is not None:
                        left_s[items[n]] = reader.left_s
                    readers = [r for r in readers if not r.ended]
            yield answers.pop(wanted)
    finally:
        for reader in readers:
            reader.end()


def run_bounded(task: Callable[[T], R], item: T, size: int, *, left_s: MutableMapping[T, float] | None = None) -> R:
    """Return task(item). Raises RecordError as `map_bounded` yields it."""
    with contextlib.closing(map_bounded(task, [item], [size], left_s=left_s)) as answers:
        found = next(answers)
    if isinstance(found, RecordError):
        raise found
    return found


def extend_budget(size: int) -> None:
    """Extend the budget to the unpacked size."""
    global _limit
    if _limit is not None and (more := min(size, _MOST_PACKED * _limit[1]) - _limit[1]) > 0:
        if not _is_again:
            more_s = min(more * _S_PER_UNPACKED_BYTE, max(_UNPACKED_S, _limit[1] * _UNPACKED_S_PER_BYTE))
            signal.setitimer(signal.ITIMER_PROF, signal.getitimer(signal.ITIMER_PROF)[0] + more_s)
        _limit = (_limit[0] + _GROWTH * more, _limit[1] + more, _limit[2])
        _bound(_limit[0], _limit[2])


class _Reader(Generic[T, R]):
    """A process that runs the task for one item after another; `item` is its current one."""

    def __init__(self, task: Callable[[T], R], items: Sequence[T], sizes: Sequence[int], others: Sequence[_Reader[T, R]]) -> None:
        self.item: int | None = None
        self.ended = False
        self.left_s = _NOTHING_S
        request_r, self.request_w = os.pipe()
        answer_r, answer_w = os.pipe()
        self.answer_r = os.fdopen(answer_r, "rb")
        with uninterrupted():
            try:
                self._pid = os.fork()
                if not self._pid:
                    try:
                        # The child exits once nobody holds the other end of its requests.
                        for request_w in (self.request_w, *(r.request_w for r in others)):
                            os.close(request_w)
                        _serve(task, items, sizes, request_r, answer_w)
                    finally:
                        os._exit(1)
            except OSError:
                os.close(self.request_w)
                self.answer_r.close()
                raise
            finally:
                os.close(request_r)
                os.close(answer_w)

    def request(self, item: int, budget_s: float, *, is_again: bool) -> None:
        self.item, self.left_s = item, _NOTHING_S
        with contextlib.suppress(BrokenPipeError):
            os.write(self.request_w, _REQUEST.pack(item, budget_s, is_again))

    def receive(self) -> R | RecordError:
        """Return the answer, or why the child gave none. Raises RuntimeError for a fault of ours."""
        self.item = None
        try:
            left = self.answer_r.read(_LEFT.size)
            answer: R | RecordError | RuntimeError = pickle.load(self.answer_r)
            self.left_s = max(_NOTHING_S, _LEFT.unpack(left)[0])
        except (EOFError, pickle.UnpicklingError):
            number = os.waitstatus_to_exitcode(self.end())
            if number == -signal.SIGPROF:
                return RecordError("left out: it took more than the CPU time allowed for its size", cause=_PROBABLY)
            how = "signal" if number < 0 else "exit code"
            return RecordError(f"left out: its reader process ended with {how} {abs(number)}", cause="usually the kernel, out of memory")
        if isinstance(answer, RuntimeError):
            raise RuntimeError(str(answer).splitlines()[-1]) from answer
        return answer

    def end(self) -> int:
        """Kill the child; return its wait status, 0 if already reaped."""
        if self.ended:
            return 0
        with uninterrupted():
            self.ended = True
            os.close(self.request_w)
            self.answer_r.close()
            # A child that exited by itself keeps its own status. The kernel reaps it where SIGCHLD is ignored.
            with contextlib.suppress(ProcessLookupError, ChildProcessError):
                os.kill(self._pid, signal.SIGKILL)
                return os.waitpid(self._pid, 0)[1]
            return 0


def _ready(readers: Sequence[_Reader[T, R]]) -> list[tuple[int, _Reader[T, R]]]:
    """Those that have an answer, with its item; [] after a nap: an interrupt just before poll() is only handled when we wake."""
    poll = select.poll()
    busy = {r.answer_r.fileno(): (r.item, r) for r in readers if r.item is not None}
    for answer_r in busy:
        poll.register(answer_r, select.POLLIN)
    return [busy[answer_r] for answer_r, _ in poll.poll(_NAP_MS)] if busy else []


def _serve(task: Callable[[T], R], items: Sequence[T], sizes: Sequence[int], request_r: int, answer_w: int) -> None:
    """Answer requests, in the child. Ctrl-C is left to the parent."""
    global _limit, _is_again
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM, signal.SIGPROF):
        signal.signal(number, signal.SIG_IGN if number in (signal.SIGINT, signal.SIGHUP) else signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    before = resource.getrlimit(resource.RLIMIT_AS)
    with os.fdopen(answer_w, "wb") as answers:
        while len(request := os.read(request_r, _REQUEST.size)) == _REQUEST.size:
            n, budget_s, _is_again = _REQUEST.unpack(request)
            allowed = _ROOM_BYTES + _GROWTH * sizes[n]
            _limit = (allowed, sizes[n], before) if _bound(allowed, before) else None
            signal.setitimer(signal.ITIMER_PROF, budget_s)
            try:
                answer: bytes | Exception = _run(lambda item: pickle.dumps(task(item), pickle.HIGHEST_PROTOCOL), items[n])
            except Exception:
                answer = RuntimeError(traceback.format_exc())
            left_s, _ = signal.setitimer(signal.ITIMER_PROF, 0)
            resource.setrlimit(resource.RLIMIT_AS, before)
            answers.write(_LEFT.pack(left_s))
            answers.write(answer if isinstance(answer, bytes) else pickle.dumps(answer))
            answers.flush()


def _bound(size: int, before: tuple[int, int]) -> bool:
    """Let this process allocate `size` bytes more, within its limits `before`; return whether that could be set."""
    try:
        with open("/proc/self/statm", "rb") as f:  # noqa: PTH123
            limit = int(f.read().split()[0]) * os.sysconf("SC_PAGE_SIZE") + size
        resource.setrlimit(resource.RLIMIT_AS, (limit if before[0] == resource.RLIM_INFINITY else min(limit, before[0]), before[1]))
    except (OSError, ValueError):
        return False
    return True


def _run(task: Callable[[T], R], item: T) -> R | RecordError:
    """Return task(item), or the RecordError that it raised or that stands for what its file did. Raises what else it raises."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        return task(item)
    except RecordError as e:
        return e
    except MemoryError:
        if _limit is None:
            return RecordError("there is not enough memory for it")
        resource.setrlimit(resource.RLIMIT_AS, _limit[2])
        return RecordError(f"left out: it took more than {_limit[0] >> 20} MiB of memory", cause=_PROBABLY)
    except RecursionError:
        return RecordError("it is nested too deep", cause="it is no flight-recorder dump")
    finally:
        if collecting:
            gc.enable()
