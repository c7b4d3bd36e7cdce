"""What a command says beside its answer: a line on standard error, in the language that it was asked for."""

from __future__ import annotations

from unhang.report import language, screen
from unhang.text import Text


def say(says: Text) -> None:
    screen.echo(f"unhang: {says.of(language.spoken())}", stderr=True)
