"""The command `unhang`: from the first moment Ctrl-C and its like have their answer, so whatever takes time to import is imported behind that."""

from __future__ import annotations

import atexit
import contextlib
import gc
import os
import signal
import sys
from collections.abc import Callable
from types import FrameType

from unhang.errors import interrupted_by

# Nearly all that is made while modules are imported stays: with Python's own number, 700, it would be looked through again and again.
_OBJECTS_BEFORE_COLLECTION = 50_000

INTERRUPTS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def entry() -> None:
    """The console script."""
    # Nothing is open yet that would have to be closed, and an exception inside an import may be lost.
    answer_interrupts(_end)
    gc.set_threshold(_OBJECTS_BEFORE_COLLECTION, *gc.get_threshold()[1:])
    # Else all of them are looked through once more at the end, though everything goes anyway: a fifth of a short command.
    atexit.register(gc.freeze)
    from unhang.cli.app import run

    run()


def _end(number: int, frame: FrameType | None) -> None:
    say_nothing_was_started()
    os._exit(interrupted_by(number))


def say_nothing_was_started() -> None:
    """For `unhang run` until `unhang.cli.running` answers for itself: whoever pressed Ctrl-C looks for processes otherwise."""
    if sys.argv[1:2] == ["run"] and not hasattr(sys.modules.get("unhang.cli.running"), "run"):
        with contextlib.suppress(OSError):
            os.write(2, b"unhang: interrupted; nothing was started\n")


def answer_interrupts(answer: Callable[[int, FrameType | None], None] | signal.Handlers) -> None:
    """nohup, and shells that run a job in the background, have signals ignored on purpose: that stays."""
    for number in INTERRUPTS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, answer)
