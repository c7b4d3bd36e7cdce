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
    with _bar("reading", in_bytes=True, quiet=quiet) as tell:
        yield tell


@contextmanager
def counting(what: str, *, quiet: bool = False) -> Iterator[Callable[[int, int | None], None]]:
    """The same for a number of things, such as files."""
    with _bar(what, in_bytes=False, quiet=quiet) as tell:
        yield tell


@contextmanager
def _bar(what: str, *, in_bytes: bool, quiet: bool) -> Iterator[Callable[[int, int | None], None]]:
    if quiet or not sys.stderr.isatty() or screen.is_plain():
        yield lambda done, total: None
        return
    from rich.progress import BarColumn, DownloadColumn, MofNCompleteColumn, Progress, TextColumn, TransferSpeedColumn

    counts = (DownloadColumn(binary_units=True), TransferSpeedColumn()) if in_bytes else (MofNCompleteColumn(),)
    bar = Progress(TextColumn(what), BarColumn(), *counts, console=screen.console(stderr=True), transient=True)
    task = bar.add_task(what, total=None)
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
