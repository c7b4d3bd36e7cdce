"""The command `unhang`: from the first moment Ctrl-C has its answer, so whatever takes time to import is imported behind that."""

from __future__ import annotations

import os
import signal

from unhang.errors import EXIT_INTERRUPTED


def entry() -> None:
    """The console script."""
    # Nothing is open yet that would have to be closed, and an exception inside an import may be lost.
    signal.signal(signal.SIGINT, lambda number, frame: os._exit(EXIT_INTERRUPTED))
    from unhang.cli.app import run

    run()
