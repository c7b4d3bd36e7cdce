"""What a command says beside its answer: a line on standard error, in the language that it was asked for."""

from __future__ import annotations

import typer

from unhang.report import language
from unhang.text import Text


def say(says: Text) -> None:
    typer.echo(f"unhang: {says.of(language.spoken())}", err=True)
