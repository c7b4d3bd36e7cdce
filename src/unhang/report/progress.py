"""A progress bar for the reading of logs: on a terminal only, and only where it takes longer than a second."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

# Shown only after this long: most logs are read before anybody could see it.
PATIENCE_S = 1.0


@contextmanager
def reading(*, quiet: bool = False) -> Iterator[Callable[[int, int | None], None]]:
    """Gives a function that is told the bytes done, and how many there are where that is known."""
    if quiet or not sys.stderr.isatty():
        yield lambda done, total: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    bar = Progress(
        TextColumn("reading"), BarColumn(), DownloadColumn(binary_units=True), TransferSpeedColumn(), console=Console(stderr=True), transient=True
    )
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
