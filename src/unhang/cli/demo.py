"""unhang demo: the main job, shown on a real training."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from unhang.cli.options import NoColor


def register(app: typer.Typer) -> None:
    app.command("demo")(demo)


def demo(
    quick: Annotated[bool, typer.Option("--quick", help="Two of the faults only.")] = False,
    only: Annotated[list[str] | None, typer.Option("--only", metavar="NAME", help="This fault only; may be repeated.")] = None,
    directory: Annotated[
        Path | None, typer.Option("--dir", metavar="DIR", help="Where the runs go; must not exist.", show_default="runs/demo-TIME")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="The closing table as JSON on stdout.")] = False,
    no_color: NoColor = False,
) -> None:
    """Train a small T5 with 2 ranks on this machine, break it in seven ways, and see each one found, named and repaired.

    Needs the packages of unhang[demo]. Takes a few minutes; no GPU, no network. Exit code 1 if any fault was not handled as it should be.
    """
    from unhang.cli import demonstration

    demonstration.run(quick=quick, only=tuple(only or ()), directory=directory, as_json=as_json)
