"""unhang bench: what a setting costs, measured on the training itself."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, cast

import typer
from typer.core import TyperCommand

from unhang.cli import bench_comm
from unhang.cli.options import NoColor, duration

_ARM = "Settings as --set of unhang run takes them, or a preset, or none."


_PRIORITIES = """Which setting gains most? Every ready-made comparison that applies here, measured against the script as it is.

\b
    unhang bench priorities -n 2 train.py
    unhang bench priorities --budget 1h -- torchrun --nproc-per-node 8 train.py

All arms share the rounds of the baseline. One that cannot win any more by more than the margin, changes nothing, or fails is not started again. The
ranking has the gain of each one in throughput with its interval, and why others were not compared. Needs the extra bench.

Exit code: as that of unhang bench compare. A setting with which the training fails is reported in the ranking and is no failure.
"""


class _Compare(TyperCommand):
    """The name of a ready-made comparison stands in front of the command, and options on both sides of it."""

    def __init__(self, *args: Any, params: list[Any], **more: Any) -> None:
        super().__init__(*args, params=[p for p in params if p.name != "only"], **more)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        words = self.make_parser(ctx).parse_args(args=list(args))[0].get("command") or ()
        at = len(args) - len(words)
        # Behind -- it is a command.
        if words and args[at - 1 : at] != ["--"]:
            from unhang.bench.ready_made import READY_MADE

            if words[0] in READY_MADE:
                args = [*args[:at], "--ready-made", *args[at:]]
        return super().parse_args(ctx, args)


class _Priorities(TyperCommand):
    """As compare, without arms."""

    def __init__(self, *args: Any, params: list[Any], **more: Any) -> None:
        super().__init__(*args, params=[p for p in params if p.name not in ("ready_made", "a", "b", "c", "d", "argument")], **more)


def register(app: typer.Typer) -> None:
    app.callback()(_bench)
    own = {"allow_interspersed_args": False, "ignore_unknown_options": False}
    app.command("compare", cls=_Compare, context_settings=own)(compare)
    app.command("priorities", cls=_Priorities, context_settings=own, help=_PRIORITIES)(compare)
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
    ready_made: Annotated[str | None, typer.Option("--ready-made", hidden=True)] = None,
    a: Annotated[str | None, typer.Option("--a", metavar="ARM", help=f"What the others are compared with. {_ARM}")] = None,
    b: Annotated[str | None, typer.Option("--b", metavar="ARM", help=_ARM)] = None,
    c: Annotated[str | None, typer.Option("--c", metavar="ARM", help=_ARM)] = None,
    d: Annotated[str | None, typer.Option("--d", metavar="ARM", help=_ARM)] = None,
    argument: Annotated[
        str | None, typer.Option("--arg", metavar="NAME=V1,V2,...", help="In place of --a and --b: an argument of the script, an arm for each value.")
    ] = None,
    only: Annotated[str | None, typer.Option("--only", metavar="NAME,...", help="Rank these of the ready-made comparisons.")] = None,
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
    html: Annotated[Path | None, typer.Option(metavar="FILE", help="Write one HTML page with charts, which needs nothing from elsewhere.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="The result as JSON on stdout.")] = False,
    no_color: NoColor = False,
) -> None:
    """Compare trainings that differ in a setting or an argument: which one is faster, or are they the same?

    \b
        unhang bench compare --a shm=on --b shm=off -- torchrun --nproc-per-node 8 train.py
        unhang bench compare --a none --b detail=on -n 2 train.py
        unhang bench compare --arg batch=64,128 -n 2 train.py
        unhang bench compare workers -n 2 train.py

    Each round starts every arm once, in an order shuffled anew, as unhang run would. The first steps of a run are dropped until its rhythm is
    steady. The interval of the difference holds at every look, so the comparison stops as soon as it can tell: faster or slower by more than the
    margin, or the same within it. Ready-made, in place of --a and --b: shm, p2p, ib, backend, batch, amp, workers, cudnn, bucket, compile,
    interface. Arms that do not differ in what their ranks run with are refused. Needs the extra bench.

    Exit code: 0 if all runs went well, with or without a verdict; 1 if the training failed; 2 for bad input, equal arms included; 3 for our own
    failure; 130 if interrupted by Ctrl-C (143 by SIGTERM). What was measured is kept: --resume DIR goes on.
    """
    from unhang.cli import again, bench_compare

    bench_compare.run(
        bench_compare.Request(
            verb=cast(Any, context.command.name),
            ready_made=ready_made,
            only=only,
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
            html=html,
            as_json=as_json,
        )
    )
