"""A progress bar for the reading of logs: on a terminal that may be given escape sequences, and only where it takes longer than a second."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from unhang.report import screen

# Shown only after this long: most logs are read before anybody could see it.
PATIENCE_S = 1.0


@contextmanager
def reading(*, quiet: bool = False) -> Iterator[Callable[[int, int | None], None]]:
    """Gives a function that is told the bytes done, and how many there are where that is known."""
    if quiet or not sys.stderr.isatty() or screen.is_plain():
        yield lambda done, total: None
        return
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    columns = (TextColumn("reading"), BarColumn(), DownloadColumn(binary_units=True), TransferSpeedColumn())
    bar = Progress(*columns, console=screen.console(stderr=True), transient=True)
    task = bar.add_task("reading", total=None)
    began, started = time.monotonic(), False

    def tell(done: int, total: int | None) -> None:
        nonlocal started
        if not started and time.monotonic() - began > PATIENCE_S:
            bar.start()
            started = True
        if started:
            bar.update(task, completed=done, total=total)

    try:
        yield tell
    finally:
        if started:
            bar.stop()
