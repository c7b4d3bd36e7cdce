"""What a command says beside its answer: a line on standard error, in the language that it was asked for."""

from __future__ import annotations

import functools

from unhang.report import language, screen
from unhang.text import Text


def say(says: Text) -> None:
    screen.echo(f"unhang: {says.of(language.spoken())}", stderr=True)


@functools.cache
def say_once(says: Text) -> None:
    """The same, however often a command comes to it."""
    say(says)
