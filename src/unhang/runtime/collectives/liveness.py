"""Which ranks' processes have ended or are stopped, as this host's kernel knows it: such a rank cannot say so, and a store keeps no connections that
would tell.

Each rank says who it is under the name of its host, so that a thousand ranks ask for a few.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence

import msgspec

from unhang.facts.host import Host
from unhang.facts.processes import identity, is_alive, is_stopped
from unhang.model import ProcessId
from unhang.runtime.collectives.bounded_store import BoundedStore

ENDED = "its process has ended"
STOPPED = "its process is stopped: SIGSTOP or Ctrl-Z"
# Whoever waits.
LOOKS_EVERY_S = 1.0


def have_ended(ranks: Sequence[int]) -> str:
    return f"rank {ranks[0]} has ended" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks))} have ended"


class _Rank(msgspec.Struct, frozen=True, array_like=True):
    rank: int
    process: ProcessId


class LocalPeers:
    """The ranks of this host, in one round of a meeting."""

    def __init__(self, board: BoundedStore, me: int) -> None:
        """Says who we are. Raises StoreLost."""
        self._host, self._me = Host(), me
        # By their place in the list.
        self._known: dict[int, _Rank] = {}
        self._ended: set[int] = set()
        self._under = ""
        if (mine := identity(self._host, os.getpid())) is not None:
            self._under = f"on/{hashlib.sha256(f'{mine.boot_id} {mine.pid_namespace}'.encode()).hexdigest()[:12]}"
            board.put(f"{self._under}/{board.count(f'{self._under}/n')}", msgspec.json.encode(_Rank(me, mine)))

    def ended(self, board: BoundedStore) -> frozenset[int]:
        """Global ranks; one that only stands still is never among them. Raises StoreLost."""
        others = {rank: process for rank, process in self._others(board).items() if rank not in self._ended}
        self._ended |= {rank for rank, process in others.items() if _has_ended(self._host, process)}
        return frozenset(self._ended)

    def stopped(self, board: BoundedStore) -> frozenset[int]:
        """Global ranks that are stopped now, by a signal. Raises StoreLost."""
        return frozenset(rank for rank, process in self._others(board).items() if is_stopped(self._host, process))

    def _others(self, board: BoundedStore) -> dict[int, ProcessId]:
        there = board.count(f"{self._under}/n", 0) if self._under else 0
        # By place: several threads of an evaluation may ask. Who has counted itself is about to say who it is, or was interrupted before and never
        # does; who was interrupted behind it stands there twice.
        for place in range(1, there + 1):
            if place not in self._known and (said := board.look(f"{self._under}/{place}")) is not None:
                self._known[place] = msgspec.json.decode(said, type=_Rank)
        return {one.rank: one.process for one in list(self._known.values()) if one.rank != self._me}


def _has_ended(host: Host, process: ProcessId) -> bool:
    if is_alive(host, process) is not False:
        return False
    try:
        # /proc may hide the processes of other users (hidepid); this does not.
        os.kill(process.pid, 0)
    except ProcessLookupError:
        return True
    except OSError:
        return False
    return True
