"""That the script has run to its end, said before the interpreter is torn down: what dies after that took no result with it."""

from __future__ import annotations

import atexit
import contextlib
import functools
import sys
import threading
from typing import Any, NoReturn

from . import session

_arranged = False
_status: Any = None


def arrange() -> None:
    """Wrap sys.exit, and say it first of all that is done at the end."""
    global _arranged
    if _arranged:
        return
    _arranged = True
    leave = sys.exit

    @functools.wraps(leave)
    def exit(status: Any = None, /) -> NoReturn:
        global _status
        if threading.current_thread() is threading.main_thread():
            _status = status
        leave(status)

    sys.exit = exit
    # What is registered last is called first: no sooner than when the main thread has ended, and before threads that still train are waited for.
    with contextlib.suppress(AttributeError):
        threading._register_atexit(atexit.register, tell)  # type: ignore[attr-defined]


def tell() -> None:
    """Nothing where an exception ended the script, or it asked for an exit code."""
    attached = session.current()
    # What printed the exception has kept it there, also where sys.excepthook was replaced.
    if attached is not None and not _status and getattr(sys, "last_type", None) is None:
        attached.link.post("finished")
        attached.link.drain(timeout_s=0.5)
