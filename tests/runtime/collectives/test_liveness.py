"""Which ranks' processes have ended, by real processes."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys

import pytest
import torch.distributed as dist

from unhang import encoding
from unhang.facts.host import Host
from unhang.facts.processes import identity
from unhang.runtime.collectives.bounded_store import BoundedStore, Connection
from unhang.runtime.collectives.call_sites import LocalPeers, _Rank

pytestmark = pytest.mark.torch


def board() -> BoundedStore:
    return BoundedStore(Connection(dist.HashStore()), "group")


def says(on: BoundedStore, under: str, rank: int, pid: int, **other: object) -> None:
    process = identity(Host(), pid)
    assert process is not None
    on.put(f"{under}/{on.count(f'{under}/n')}", encoding.encode(_Rank(rank, dataclasses.replace(process, **other))))


def test_who_has_ended_is_told_from_who_stands_still_or_is_elsewhere():
    there = board()
    neighbours = LocalPeers(there, 0)
    processes = [subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) for _ in range(2)]
    try:
        for rank, process in enumerate(processes, 1):
            says(there, neighbours._under, rank, process.pid)
        # Of another host, whose numbers of processes mean nothing here; and one whose number another process has by now.
        says(there, neighbours._under, 3, processes[0].pid, boot_id="another")
        says(there, neighbours._under, 4, os.getpid(), start_ticks=1)
        assert neighbours.stopped(there) == set()
        processes[0].send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, processes[0].pid, os.WSTOPPED)
        assert neighbours.ended(there) == {4} and neighbours.stopped(there) == {1}
        processes[1].kill()
        # Nobody has waited for it yet.
        os.waitid(os.P_PID, processes[1].pid, os.WEXITED | os.WNOWAIT)
        assert neighbours.ended(there) == {2, 4}
    finally:
        for process in processes:
            process.kill()
            process.communicate()
    assert neighbours.ended(there) == {1, 2, 4}


class Interleaved:
    """Another thread asks while the first one's answer is on its way."""

    def __init__(self, real: BoundedStore) -> None:
        self.real, self.other = real, lambda: None

    def count(self, key: str, by: int = 1) -> int:
        return self.real.count(key, by)

    def put(self, key: str, value: bytes) -> None:
        self.real.put(key, value)

    def look(self, key: str) -> bytes | None:
        other, self.other = self.other, lambda: None
        other()
        return self.real.look(key)


def test_who_was_interrupted_while_it_said_who_it_is_hides_nobody():
    """Counted, and never heard of; or said twice, by the next try. To walk on only where somebody new is found would have no end."""
    there = board()
    neighbours = LocalPeers(there, 0)
    there.count(f"{neighbours._under}/n")
    LocalPeers(there, 0)
    says(there, neighbours._under, 1, os.getpid(), start_ticks=1)
    assert neighbours.ended(there) == {1}


def test_threads_that_ask_at_once_leave_nobody_out():
    there = Interleaved(board())
    neighbours = LocalPeers(there, 0)
    there.other = lambda: neighbours.ended(there)
    neighbours.ended(there)
    says(there, neighbours._under, 1, os.getpid(), start_ticks=1)
    assert neighbours.ended(there) == {1}
