"""What a rank that does not come cannot say itself: where it stands in the user's code, which a thread of its tells those that wait for it.

And whether its process has ended or is stopped, as the kernel of this host knows: a store keeps no connections that would tell.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import sys
import threading
import weakref
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from torch.distributed import distributed_c10d as c10d

from unhang.errors import StoreLost
from unhang.facts.host import Host
from unhang.facts.processes import identity, is_alive, is_stopped
from unhang.model import ProcessId
from unhang.runtime.collectives import shutdown
from unhang.runtime.collectives.bounded_store import BoundedStore
from unhang.user_files import is_user_file

if TYPE_CHECKING:
    from unhang.runtime.collectives.guarded_group import GuardedGroup

# What a rank reports that cannot help any more.
FINISHED = "has completed it, and gone on"
# Well within the time that the others grant for reports.
_EVERY_S = 0.25
# Who has not asked for alarms for so long must have stood still (SIGSTOP, a debugger, swapping).
STOOD_STILL_S = 4 * _EVERY_S
# Who was away for longer need not tell where it stood: of those calls all is decided.
ALARMS_KEPT = 64
_TOLD_KEPT = 8
ENDED = "its process has ended"
STOPPED = "its process is stopped: SIGSTOP or Ctrl-Z"
# Whoever waits.
LOOKS_EVERY_S = 1.0
_main = threading.main_thread().ident


def here(ident: int | None = None) -> str | None:
    """file.py:LINE in function, of the innermost frame of the user's code in this thread, or in thread `ident`."""
    frame = sys._current_frames().get(ident or threading.get_ident())
    while frame is not None:
        code = frame.f_code
        if is_user_file(code.co_filename):
            # A name need not be UTF-8, and goes through the store as JSON.
            file = Path(code.co_filename).name.encode(errors="backslashreplace").decode()
            return f"{file}:{frame.f_lineno} in {code.co_name}"
        frame = frame.f_back
    return None


def missed(ranks: Sequence[int]) -> None:
    """The supervisor learns, where there is one, that these were waited for in vain: nobody else may be left that does."""
    hook = sys.modules.get("_unhang_attach.session")
    if ranks and hook is not None and (attached := hook.current()) is not None:
        attached.link.post("missed", ranks=list(ranks))


def answer(circle: GuardedGroup) -> None:
    """From now on whoever comes to this circle finds us, whoever gives a call of it up learns where we stand, and the circle learns of it."""
    board = BoundedStore.beside(circle.meeting.root.name)
    threading.Thread(target=_answers, args=(board, weakref.ref(circle)), name="unhang-places", daemon=True).start()


def _answers(root: BoundedStore, whose: weakref.ref[GuardedGroup]) -> None:
    told, round_, every_s = 0, "", _EVERY_S
    left: deque[list[str]] = deque()
    # A store whose server has ended makes torch print a page of warnings: it is not asked once the training has left its group.
    with contextlib.suppress(StoreLost):
        while not shutdown.ended.wait(every_s) and (circle := whose()) is not None and circle.group in c10d._world.pg_map:
            every_s = circle.meeting.tend(root)
            circle.entered()
            if circle.meeting.round != round_:
                told, round_ = 0, circle.meeting.round
                left.clear()
            if round_:
                board = root.under(round_)
                circle.listen(board)
                told = max(told, circle.alarms - ALARMS_KEPT)
                while told < circle.alarms and (key := board.look(f"alarm/{told + 1}")) is not None:
                    told += 1
                    left.append(_tell(board, circle, key.decode()))
                    if len(left) > _TOLD_KEPT:
                        board.forget(left.popleft())
            del circle


def _tell(board: BoundedStore, circle: GuardedGroup, key: str) -> list[str]:
    """Returns under which keys."""
    if circle.has_finished(key):
        board.put(f"{key}/r/{circle.me}", msgspec.json.encode({"rank": circle.me, "says": FINISHED}))
        board.count(f"{key}/reports")
        return [f"{key}/r/{circle.me}", f"{key}/reports"]
    if (call := circle.stands_in(key)) is not None:
        # It does not wait for them there, and cannot say it.
        said = {"rank": circle.me, "says": f"goes on with {call}", "call": call, "place": here(_main)}
        board.put(f"{key}/r/{circle.me}", msgspec.json.encode(said))
        return [f"{key}/r/{circle.me}"]
    if (place := here(_main)) is not None:
        board.put(f"{key}/place/{circle.me}", place.encode())
        return [f"{key}/place/{circle.me}"]
    return []


def have_ended(ranks: Sequence[int]) -> str:
    return f"rank {ranks[0]} has ended" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks))} have ended"


class _Rank(msgspec.Struct, frozen=True, array_like=True):
    rank: int
    process: ProcessId


class LocalPeers:
    """The ranks of this host, in one round of a meeting. Each says who it is under the name of its host, so that a thousand ranks ask for a few."""

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
