"""A progress bar on stderr, if that is a terminal with escape sequences and the work takes longer than a second."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

from unhang.report import screen

# Shown only after this long: most logs are read before anybody could see it.
PATIENCE_S = 1.0
_REFRESH_S = 0.1


def reading(*, quiet: bool = False) -> AbstractContextManager[Callable[[int, int | None], None]]:
    """Give a function that takes the bytes done and their total, None if unknown."""
    return _bar("reading", in_bytes=True, quiet=quiet)


def counting(what: str, *, quiet: bool = False) -> AbstractContextManager[Callable[[int, int | None], None]]:
    """The same for a number of things, such as files."""
    return _bar(what, in_bytes=False, quiet=quiet)


@contextmanager
def _bar(what: str, *, in_bytes: bool, quiet: bool) -> Iterator[Callable[[int, int | None], None]]:
    if quiet or not sys.stderr.isatty() or screen.is_plain():
        yield lambda done, total: None
        return
    from rich.progress import BarColumn, DownloadColumn, MofNCompleteColumn, Progress, TextColumn, TransferSpeedColumn

    counts = (DownloadColumn(binary_units=True), TransferSpeedColumn()) if in_bytes else (MofNCompleteColumn(),)
    # Readers of logs and dumps fork only from a process without threads.
    bar = Progress(TextColumn(what), BarColumn(), *counts, console=screen.console(stderr=True), transient=True, auto_refresh=False)
    task = bar.add_task(what, total=None)
    due = time.monotonic() + PATIENCE_S

    def update(done: int, total: int | None) -> None:
        nonlocal due
        if (now := time.monotonic()) > due:
            due = now + _REFRESH_S
            bar.start()
            bar.update(task, completed=done, total=total, refresh=True)

    try:
        yield update
    finally:
        if bar.live.is_started:
            bar.stop()
