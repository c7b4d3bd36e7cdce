"""unhang bench: what a setting costs, measured on the training itself."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from unhang.cli import bench_comm
from unhang.cli.options import NoColor, duration

_ARM = "Settings as --set of unhang run takes them, or a preset, or none."


def register(app: typer.Typer) -> None:
    # With a callback, one verb stays a verb of its own.
    app.callback()(_bench)
    app.command("compare", context_settings={"allow_interspersed_args": False, "ignore_unknown_options": False})(compare)
    bench_comm.register(app)


def _bench() -> None:
    """Measure what a setting costs."""


def _margin(given: str | float) -> float:
    try:
        value = float(str(given).removesuffix("%")) / 100
    except ValueError:
        value = 0.0
    if not 0 < value < 1:
        raise typer.BadParameter(f"{given}: it is a percentage above 0 and below 100, such as 1%")
    return value


def compare(
    context: typer.Context,
    command: Annotated[
        list[str] | None, typer.Argument(metavar="[--] COMMAND...", help="A Python script or module, or any launcher's command line.")
    ] = None,
    a: Annotated[str | None, typer.Option("--a", metavar="ARM", help=f"What the others are compared with. {_ARM}")] = None,
    b: Annotated[str | None, typer.Option("--b", metavar="ARM", help=_ARM)] = None,
    c: Annotated[str | None, typer.Option("--c", metavar="ARM", help=_ARM)] = None,
    d: Annotated[str | None, typer.Option("--d", metavar="ARM", help=_ARM)] = None,
    argument: Annotated[
        str | None, typer.Option("--arg", metavar="NAME=V1,V2,...", help="In place of --a and --b: an argument of the script, an arm for each value.")
    ] = None,
    # The parser is given the default, too: both are percentages.
    margin: Annotated[float, typer.Option(parser=_margin, metavar="PERCENT", help="Differences below it are none.", show_default="1%")] = 1.0,
    budget: Annotated[float, typer.Option(parser=duration(1), metavar="TIME", help="Stop after this time.", show_default="20m")] = 1200.0,
    steps: Annotated[int, typer.Option(min=24, help="Optimizer steps of each run, which ends there.")] = 100,
    nproc_per_node: Annotated[
        int | None, typer.Option("--nproc-per-node", "-n", min=1, help="Processes to start, for a script or module.", show_default="1")
    ] = None,
    module: Annotated[bool, typer.Option("--module", "-m", help="COMMAND is a Python module.")] = False,
    python: Annotated[
        str | None,
        typer.Option(metavar="PATH", help="The training's Python.", show_default="the one beside unhang if it has torch, else python on PATH"),
    ] = None,
    resume: Annotated[Path | None, typer.Option(metavar="DIR", help="Go on with a comparison that was interrupted or ran out of its budget.")] = None,
    csv: Annotated[Path | None, typer.Option(metavar="FILE", help="Write a line for each run as CSV.")] = None,
    markdown: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the table and the verdict as Markdown.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="The result as JSON on stdout.")] = False,
    no_color: NoColor = False,
) -> None:
    """Compare trainings that differ in a setting or an argument: which one is faster, or are they the same?

    \b
        unhang bench compare --a shm=on --b shm=off -- torchrun --nproc-per-node 8 train.py
        unhang bench compare --a none --b detail=on -n 2 train.py
        unhang bench compare --arg batch=64,128 -n 2 train.py

    Each round starts every arm once, in an order shuffled anew, as unhang run would. The first steps of a run are dropped until its rhythm is
    steady. The interval of the difference holds at every look, so the comparison stops as soon as it can tell: faster or slower by more than the
    margin, or the same within it. Arms that do not differ in what their ranks run with are refused. Needs the extra bench.

    Exit code: 0 if all runs went well, with or without a verdict; 1 if the training failed; 2 for bad input, equal arms included; 3 for our own
    failure; 130 if interrupted by Ctrl-C (143 by SIGTERM). What was measured is kept: --resume DIR goes on.
    """
    from unhang.cli import again, bench_compare

    bench_compare.run(
        bench_compare.Request(
            words=tuple(command or ()),
            arms={name: text for name, text in zip("abcd", (a, b, c, d), strict=True) if text is not None},
            argument=argument,
            margin=margin,
            budget_s=budget,
            steps=steps,
            nproc_per_node=nproc_per_node,
            module=module,
            python=python,
            resume=resume,
            typed=frozenset(p.opts[0] for p in context.command.params if again.is_typed(context, str(p.name))),
            csv=csv,
            markdown=markdown,
            as_json=as_json,
        )
    )
