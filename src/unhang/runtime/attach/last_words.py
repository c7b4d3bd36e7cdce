"""What a process says at its end: the exception that nothing caught, and that the interpreter ends in order."""

from __future__ import annotations

import atexit
import contextlib
import sys
from types import TracebackType

from . import session
from .frames import traceback_frames
from .protocol import GO_TIMEOUT_S

_MAX_TEXT = 20_000
_arranged = False


def arrange() -> None:
    """Chain sys.excepthook and register the goodbye; both concern only the process that is attached when they are called."""
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
    # Registered first, called last.
    atexit.register(_leave)


def tell(kind: type[BaseException], value: BaseException, traceback: TracebackType | None) -> None:
    """Report an exception that will end this process, and wait until the supervisor has taken the evidence of the others. Never raises."""
    attached = session.current()
    if attached is None or not issubclass(kind, Exception):
        return
    with contextlib.suppress(Exception):
        attached.go.clear()
        if attached.link.post("raised", type=_name(kind), text=_text(value), frames=traceback_frames(traceback), flight=False):
            attached.wait_for_go(GO_TIMEOUT_S)


def _leave() -> None:
    attached = session.current()
    if attached is not None:
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
