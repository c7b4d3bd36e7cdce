"""The command `unhang`: from the first moment Ctrl-C and its like have their answer, so whatever takes time to import is imported behind that."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from types import FrameType

from unhang.errors import EXIT_INTERRUPTED

INTERRUPTS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def entry() -> None:
    """The console script."""
    # Nothing is open yet that would have to be closed, and an exception inside an import may be lost.
    answer_interrupts(lambda number, frame: os._exit(EXIT_INTERRUPTED))
    from unhang.cli.app import run

    run()


def answer_interrupts(answer: Callable[[int, FrameType | None], None] | signal.Handlers) -> None:
    """nohup, and shells that run a job in the background, have signals ignored on purpose: that stays."""
    for number in INTERRUPTS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, answer)
