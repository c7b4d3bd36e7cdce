"""Where this rank stands in the user's code, told to those that wait for it: a rank that does not come cannot say so itself, a thread of its can."""

from __future__ import annotations

import contextlib
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
