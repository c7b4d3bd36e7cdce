"""Reports that the script has run to its end, before the interpreter is torn down: what dies after that took no result with it."""

from __future__ import annotations

import atexit
import contextlib
import sys
import threading

from . import last_words, session

_arranged = False


def arrange() -> None:
    """Register `tell` as the first exit handler."""
    global _arranged
    if _arranged:
        return
    _arranged = True
    # What is registered last is called first: no sooner than when the main thread has ended, and before threads that still train are waited for.
    # It is private, and refuses once the interpreter ends.
    with contextlib.suppress(AttributeError, RuntimeError):
        threading._register_atexit(atexit.register, tell)  # type: ignore[attr-defined]


def tell() -> None:
    """Do nothing if an exception ended the script, or it asked for an exit code."""
    attached = session.current()
    # What printed the exception has kept it there, also where sys.excepthook was replaced.
    if attached is not None and last_words.exit_status() in (None, 0) and getattr(sys, "last_type", None) is None:
        attached.link.post("finished")
        attached.link.drain(timeout_s=0.5)
