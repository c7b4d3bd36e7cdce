"""Where things are shown: how wide it is, whether escape sequences may be used, and a bar of progress."""

from __future__ import annotations

import functools
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING

from unhang.i18n import in_language
from unhang.patterns import lazily
from unhang.printable import escape, styled
from unhang.report import language

if TYPE_CHECKING:
    from rich.status import Status

    from unhang.report.console import Console

MIN_WIDTH = 40
# Longer lines are hard to read; a file or a pager behind a pipe has no width of its own.
MAX_WIDTH = 140
# What rich fails at, or shows nothing with, is no width: `COLUMNS=0`, `COLUMNS=²`.
_SIZE = lazily(r"0*[1-9][0-9]{0,4}")
# Shown only after this long: most logs are read before anybody could see it.
PATIENCE_S = 1.0
_REFRESH_S = 0.1
_without_colours = False


def without_colours() -> None:
    """What --no-color asks for; the environment of trainings is theirs and stays as it is."""
    global _without_colours
    _without_colours = True


def is_plain() -> bool:
    """Whether no escape sequences are wanted at all: bold and dim are no colours, and just as unwelcome in a file."""
    return _without_colours or bool(os.environ.get("NO_COLOR"))


def console(*, stderr: bool = False) -> Console:
    from unhang.report.console import Console

    made = Console(sys.stderr if stderr else sys.stdout, color_system=None if is_plain() else "auto", _environ=_environ())
    if not made.is_terminal and not _asked():
        made.width = MAX_WIDTH
    return made


def status(says: str) -> Status:
    """A line on stderr that changes while something is done; nothing if that is no terminal, or no escape sequences are wanted."""
    from unhang.report.console import Console

    return Console(sys.stderr, force_terminal=False if is_plain() else None, _environ=_environ()).status(says, refresh_per_second=4)


def echo(text: str = "", *, stderr: bool = False, red: bool = False, end: str = "\n") -> None:
    """Print text of a command, whatever names stand in it. Raises OSError."""
    stream = sys.stderr if stderr else sys.stdout
    text = escape(text)
    styled(stream).write((f"\x1b[31m{text}\x1b[0m" if red and stream.isatty() and not is_plain() else text) + end)
    stream.flush()


def say(says: str) -> None:
    """Print what a command says beside its answer: a line on standard error, in the language that it was asked for."""
    echo(f"unhang: {in_language(says, language.spoken())}", stderr=True)


@functools.cache
def say_once(says: str) -> None:
    """The same, however often a command comes to it."""
    say(says)


def width(console: Console) -> int:
    """How long lines may be: as COLUMNS says, or as is good to read."""
    return max(console.width if _asked() else min(console.width, MAX_WIDTH), MIN_WIDTH)


def _asked() -> bool:
    return _SIZE.fullmatch(os.environ.get("COLUMNS", "")) is not None


def without_false_sizes() -> None:
    """Consoles that others make, typer's for help, fail at what is no width as well. The environment itself is left to the trainings."""
    if len(environ := _environ()) < len(os.environ):
        from rich.console import Console

        Console._environ = environ


def _environ() -> dict[str, str]:
    return {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "LINES") or _SIZE.fullmatch(v)}


def reading(*, quiet: bool = False) -> AbstractContextManager[Callable[[int, int | None], None]]:
    """Give a function that takes the bytes done and their total, None if unknown.

    It draws a bar on stderr, if that is a terminal with escape sequences and the work takes longer than a second.
    """
    return _bar("reading", in_bytes=True, quiet=quiet)


def counting(what: str, *, quiet: bool = False) -> AbstractContextManager[Callable[[int, int | None], None]]:
    """The same for a number of things, such as files."""
    return _bar(what, in_bytes=False, quiet=quiet)


@contextmanager
def _bar(what: str, *, in_bytes: bool, quiet: bool) -> Iterator[Callable[[int, int | None], None]]:
    if quiet or not sys.stderr.isatty() or is_plain():
        yield lambda done, total: None
        return
    from rich.progress import BarColumn, DownloadColumn, MofNCompleteColumn, Progress, TextColumn, TransferSpeedColumn

    counts = (DownloadColumn(binary_units=True), TransferSpeedColumn()) if in_bytes else (MofNCompleteColumn(),)
    # Readers of logs and dumps fork only from a process without threads.
    bar = Progress(TextColumn(what), BarColumn(), *counts, console=console(stderr=True), transient=True, auto_refresh=False)
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
