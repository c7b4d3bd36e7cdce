"""What a process says at its end: the exception that nothing caught, the call that ended it, and that the interpreter ends in order."""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import sys
import threading
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any

from . import session
from .frames import CodeFrame, call_stack, traceback_frames
from .protocol import GO_TIMEOUT_S

_MAX_TEXT = 20_000
_DRAIN_S = 0.5
_arranged = False
_told: int | None = None


def arrange() -> None:
    """Chain sys.excepthook, wrap what ends a process, register the goodbye; all concern only the process that is attached when they are called."""
    global _arranged
    multiprocessing = sys.modules.get("multiprocessing")
    if multiprocessing is not None and multiprocessing.parent_process() is not None:
        # A forked worker ends with os._exit: no atexit. (A spawned one has both: the second goodbye finds nobody to say it to.)
        sys.modules["multiprocessing.util"].Finalize(None, _leave, exitpriority=-100)
    if _arranged:
        return
    _arranged = True
    previous = sys.excepthook

    def excepthook(kind: type[BaseException], value: BaseException, traceback: TracebackType | None) -> None:
        tell(kind, value, traceback)
        previous(kind, value, traceback)

    sys.excepthook = excepthook
    sys.exit = _remembering(sys.exit)
    # exit() and quit(); absent under `python -S`.
    if quitter := getattr(sys.modules.get("_sitebuiltins"), "Quitter", None):
        quitter.__call__ = _remembering(quitter.__call__)
    os._exit = _reporting(os._exit)
    # Called before the threads of the script are waited for, which may take for ever. Private, and used by concurrent.futures: 3.9 to 3.14.
    with contextlib.suppress(RuntimeError):
        getattr(threading, "_register_atexit", atexit.register)(_tell_last)
    # Registered first, called last.
    atexit.register(_leave)


def tell(kind: type[BaseException], value: BaseException, traceback: TracebackType | None) -> None:
    """Report an exception that will end this process, and wait until the supervisor has taken the evidence of the others. Never raises."""
    global _told
    attached = session.current()
    if attached is None or not issubclass(kind, Exception):
        return
    with contextlib.suppress(Exception):
        _told = id(value)
        attached.go.clear()
        if attached.link.post("raised", type=_name(kind), text=_text(value), frames=traceback_frames(traceback), flight=False):
            attached.wait_for_go(GO_TIMEOUT_S)


def _tell_last() -> None:
    """Report the uncaught exception that a replaced sys.excepthook kept from ours: the interpreter sets sys.last_value before it calls any hook."""
    value = getattr(sys, "last_value", None)
    if isinstance(value, BaseException) and id(value) != _told:
        tell(type(value), value, getattr(sys, "last_traceback", None))


class _Exit:
    """The call stack of sys.exit and its status, carried by the SystemExit that it raises and gone with it."""

    last: tuple[CodeFrame, ...] = ()
    last_status: Any = None

    def __init__(self, frames: list[CodeFrame], status: Any) -> None:
        self.frames = frames
        self.status = status

    def __del__(self, frame: Callable[[], FrameType] = sys._getframe) -> None:
        # The interpreter releases the exception that ends it with no Python frame below. An `except SystemExit` is a frame, a thread has some.
        if frame().f_back is None:
            _Exit.last, _Exit.last_status = tuple(self.frames), self.status


def exit_status() -> Any:
    """What the script gave to the sys.exit that ended it; None without one."""
    return _Exit.last_status


def _remembering(leave: Callable[..., Any]) -> Any:
    """Wrap sys.exit and its like, which raise SystemExit: no excepthook is called for that, and sys.last_value is not set."""

    @functools.wraps(leave)
    def leave_and_remember(*args: Any, **kwargs: Any) -> Any:
        try:
            return leave(*args, **kwargs)
        except SystemExit as e:
            with contextlib.suppress(Exception):
                e.__dict__["_unhang_exit"] = _Exit(call_stack(sys._getframe(1)), e.code)
            raise

    return leave_and_remember


def _reporting(leave: Callable[[int], Any]) -> Any:
    """Wrap os._exit, after which nothing of this process runs."""

    @functools.wraps(leave)
    def report_and_leave(status: int) -> Any:
        with contextlib.suppress(Exception):
            _tell_last()
            _tell_exit(call_stack(sys._getframe(1)))
        leave(status)

    return report_and_leave


def _tell_exit(frames: list[CodeFrame]) -> None:
    attached = session.current()
    if attached is not None and frames and attached.link.post("exits", frames=frames):
        attached.link.drain(timeout_s=_DRAIN_S)


def _leave() -> None:
    attached = session.current()
    if attached is not None:
        _tell_last()
        _tell_exit(list(_Exit.last))
        attached.end()


def _name(kind: type[BaseException]) -> str:
    return kind.__qualname__ if kind.__module__ in ("builtins", "__main__") else f"{kind.__module__}.{kind.__qualname__}"


def _text(value: BaseException) -> str:
    lines = [_say(value)]
    seen = {id(value)}
    cause = value.__cause__
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        lines.append(f"caused by {_name(type(cause))}: {_say(cause)}")
        cause = cause.__cause__
    return "\n".join(lines)[:_MAX_TEXT]


def _say(value: BaseException) -> str:
    try:
        return str(value)
    except Exception:
        return "<the exception has no readable text>"
