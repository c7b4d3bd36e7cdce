"""Ranks as real processes over Gloo, on which functions of a test module are called, and of which nothing is left behind."""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import multiprocessing
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import pytest

# What takes longer has hung.
BOUND_S = 25.0
_PR_SET_PDEATHSIG = 1


def reads_its_keys(test: Callable[..., Any]) -> Callable[..., Any]:
    """Of a test that waits for what somebody has said: what stores of torch 2.4 hold they do not tell."""
    import torch.distributed as dist

    return pytest.mark.skipif(not hasattr(dist.TCPStore, "list_keys"), reason="a store that does not tell its keys (torch 2.4)")(test)


# In a rank: the tests' own, without the prefixes of groups.
store: Any = None

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["tests.runtime.collectives.preloaded"])


@dataclass(frozen=True)
class Raised:
    """An exception of a rank's; `text` is its message, `trace` all of it."""

    kind: str
    text: str
    trace: str
    missing: tuple[int, ...] = ()
    odd: tuple[int, ...] = ()
    calls: dict[int, str] | None = None
    closed: Any = None


@dataclass(frozen=True)
class Gone:
    """A rank that has ended; `code` as multiprocessing has it."""

    code: int | None


class World:
    """`world(fn, *args)` is fn(rank, *args) of every rank. `try_` has Raised and Gone among its results, and so have `start` and `ended`."""

    def __init__(self, size: int, directory: Path, *, store: bool = True, ends: bool = False) -> None:
        """With `ends` the ranks are interpreters that come to their ends by themselves; those of a server of processes are ended without."""
        import torch.distributed as dist

        self.size, self._directory = size, directory
        self.store = dist.TCPStore("127.0.0.1", 0, None, is_master=True, wait_for_workers=False) if store else None
        port = self.store.port if self.store else 0
        self._pipes: list[Connection] = []
        self._processes = []
        for rank in range(size):
            context = multiprocessing.get_context("spawn") if ends else _context
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(rank, size, port, theirs, str(self.stderr_of(rank))), daemon=True)
            process.start()
            theirs.close()
            self._pipes.append(ours)
            self._processes.append(process)
        self(_ready)

    def __call__(self, fn: Callable[..., Any], *args: Any, bound_s: float = BOUND_S) -> list[Any]:
        found = self.try_(fn, *args, bound_s=bound_s)
        for rank, answer in enumerate(found):
            if isinstance(answer, Raised | Gone):
                raise AssertionError(f"rank {rank}: {answer.trace if isinstance(answer, Raised) else answer}")
        return found

    def try_(self, fn: Callable[..., Any], *args: Any, bound_s: float = BOUND_S) -> list[Any]:
        self.start(fn, *args)
        return self.ended(bound_s=bound_s)

    def start(self, fn: Callable[..., Any], *args: Any) -> None:
        for pipe in self._pipes:
            with contextlib.suppress(OSError):
                pipe.send((fn, args))

    def ended(self, ranks: Sequence[int] | None = None, *, bound_s: float = BOUND_S) -> list[Any]:
        """The answers of `ranks`, by default of all."""
        ranks = range(self.size) if ranks is None else ranks
        until = time.monotonic() + bound_s
        found: dict[int, Any] = {}
        while len(found) < len(ranks):
            waiting = {self._pipes[r]: r for r in ranks if r not in found}
            ready = wait(list(waiting), timeout=max(0.0, until - time.monotonic()))
            if not ready:
                raise AssertionError(f"ranks {sorted(waiting.values())} have not answered within {bound_s:g} s\n{self._stand()}")
            for pipe in ready:
                rank = waiting[pipe]
                try:
                    found[rank] = pipe.recv()
                except (EOFError, ConnectionError):
                    self._processes[rank].join(10)
                    found[rank] = Gone(self._processes[rank].exitcode)
        return [found[rank] for rank in ranks]

    def signal(self, rank: int, number: int) -> None:
        os.kill(self._processes[rank].pid, number)

    def stderr_of(self, rank: int) -> Path:
        return self._directory / f"rank{rank}.err"

    def finish(self, how: Callable[[int], Any], *, bound_s: float = BOUND_S) -> list[int | None]:
        """Calls `how`, lets the ranks come to their ends, and returns their exit codes."""
        self(how)
        for pipe in self._pipes:
            pipe.send(None)
        until = time.monotonic() + bound_s
        for process in self._processes:
            process.join(max(0.0, until - time.monotonic()))
        return [process.exitcode for process in self._processes]

    def close(self) -> None:
        for process in self._processes:
            if process.is_alive():
                process.kill()
        for process in self._processes:
            process.join(10)
        for pipe in self._pipes:
            pipe.close()
        self.store = None

    def _stand(self) -> str:
        for process in self._processes:
            if process.is_alive():
                os.kill(process.pid, signal.SIGCONT)
                os.kill(process.pid, signal.SIGUSR2)
        time.sleep(0.5)
        return "\n".join(f"-- rank {rank}\n{self.stderr_of(rank).read_text()[-4000:]}" for rank in range(self.size))


@contextlib.contextmanager
def world_of(size: int, directory: Path, **options: Any) -> Iterator[World]:
    directory.mkdir(parents=True, exist_ok=True)
    world = World(size, directory, **options)
    try:
        yield world
    finally:
        world.close()


def _ready(rank: int) -> None:
    pass


def _serve(rank: int, size: int, port: int, pipe: Connection, stderr: str) -> None:
    # The forkserver ends when the tests' process does.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    written = os.open(stderr, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(written, 2)
    sys.stderr = os.fdopen(2, "w", buffering=1, closefd=False)
    faulthandler.register(signal.SIGUSR2, file=2, all_threads=True)

    import torch
    import torch.distributed as dist

    global store
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    if port:
        store = dist.TCPStore("127.0.0.1", port, None, is_master=False, timeout=timedelta(seconds=60))
        # A client serves one call at a time.
        theirs = dist.TCPStore("127.0.0.1", port, None, is_master=False, timeout=timedelta(seconds=60))
        dist.init_process_group("gloo", store=theirs, rank=rank, world_size=size, timeout=timedelta(seconds=60))
    while (asked := _next(pipe)) is not None:
        fn, args = asked
        try:
            answer = fn(rank, *args)
        except BaseException as e:
            answer = _raised(e)
        pipe.send(answer)


def _next(pipe: Connection) -> Any:
    # An interrupt that comes when the call has ended is nobody's.
    while True:
        try:
            return pipe.recv()
        except EOFError:
            return None
        except KeyboardInterrupt:
            continue


def _raised(error: BaseException) -> Raised:
    return Raised(
        kind=type(error).__name__,
        text=str(error),
        trace="".join(traceback.format_exception(error)),
        missing=getattr(error, "missing", ()),
        odd=getattr(error, "odd", ()),
        calls=getattr(error, "calls", None),
        closed=getattr(error, "closed", None),
    )
