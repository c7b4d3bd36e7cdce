"""Options that every verb has."""

from __future__ import annotations

from typing import Annotated

import typer

from unhang.report import screen


def _no_color(asked: bool) -> None:
    if asked:
        screen.without_colours()


# Read before the others, so that it holds for what is said about them. Nobody has to look at its value.
NoColor = Annotated[
    bool, typer.Option("--no-color", callback=_no_color, is_eager=True, help="No colours in what unhang says (NO_COLOR does the same).")
]
