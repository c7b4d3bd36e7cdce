"""unhang bench: what a setting costs, measured on the training itself."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any, cast

import typer
from typer.core import TyperCommand

from unhang.cli.options import NoColor, Private, duration, is_typed, percentage
from unhang.errors import MissingExtra

_ARM = "Settings as --set of unhang run takes them, env.NAME=VALUE, a preset, or none."


_PRIORITIES = """Which setting gains most? Every ready-made comparison that applies here, measured against the script as it is.

\b
    unhang bench priorities -n 2 train.py
    unhang bench priorities --budget 1h -- torchrun --nproc-per-node 8 train.py

All arms share the rounds of the baseline. One that cannot win any more by more than the margin, changes nothing, or fails is not started again. The
ranking has the gain of each one in throughput with its interval, and why others were not compared. Needs the extra bench.

Exit code: as that of unhang bench compare. A setting with which the training fails is reported in the ranking and is no failure.
"""


_NOT_OF = {"compare": ("ready_made", "only"), "priorities": ("ready_made", "a", "b", "c", "d", "argument")}


class _Command(TyperCommand):
    """The options of `compare` that a verb has. The name of a ready-made comparison stands before the command, options on both sides of it."""

    def __init__(self, name: str, *args: Any, params: list[Any], **more: Any) -> None:
        super().__init__(name, *args, params=[p for p in params if p.name not in _NOT_OF[name]], **more)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        words = self.make_parser(ctx).parse_args(args=list(args))[0].get("command") or ()
        at = len(args) - len(words)
        # Behind -- it is a command.
        if words and args[at - 1 : at] != ["--"] and self.name == "compare":
            from unhang.bench.arms import READY_MADE

            if words[0] in READY_MADE:
                ctx.params["ready_made"] = args.pop(at)
        return super().parse_args(ctx, args)


def need_scipy() -> None:
    """Raises MissingExtra without SciPy, which comparisons take."""
    if importlib.util.find_spec("scipy") is None:
        raise MissingExtra("unhang bench needs SciPy, which is not installed here", hint="pip install 'unhang[bench]'")


LEAST_ROUNDS = 4
_Launcher = Annotated[
    list[str] | None,
    typer.Argument(metavar="[-- LAUNCHER...]", help="What starts the ranks, such as torchrun with its options; each is a script that comes last."),
]
_Ranks = Annotated[
    int | None, typer.Option("--nproc-per-node", "-n", min=2, help="Ranks to start on this host.", show_default="one for each GPU; 2 without")
]
_Backend = Annotated[str | None, typer.Option(metavar="nccl|gloo", help="How ranks communicate.", show_default="nccl with two GPUs, else gloo")]
_Sizes = Annotated[str, typer.Option(metavar="SIZES", help="LOW..HIGH, in steps of a factor of 4, or a list: 1M,16M.")]
_Ops = Annotated[str | None, typer.Option(metavar="OP,...", help="What is measured.", show_default="all")]
_Time = Annotated[float, typer.Option("--time", parser=duration(0.01), metavar="TIME", help="For each size, the warm-up apart.", show_default="0.3s")]
_Python = Annotated[
    str | None, typer.Option(metavar="PATH", help="The Python of the ranks.", show_default="ours if it has torch, else the first on PATH")
]
_Json = Annotated[bool, typer.Option("--json", help="The result as JSON on stdout.")]


def register(app: typer.Typer) -> None:
    app.callback()(_bench)
    own = {"allow_interspersed_args": False, "ignore_unknown_options": False}
    app.command("compare", cls=_Command, context_settings=own)(compare)
    app.command("priorities", cls=_Command, context_settings=own, help=_PRIORITIES)(compare)
    app.command("comm", context_settings=own)(comm)
    app.command("record", context_settings=own)(record)
    app.command("check")(check)


def _bench() -> None:
    """Measure what a setting costs."""


def compare(
    context: typer.Context,
    command: Annotated[
        list[str] | None, typer.Argument(metavar="[--] COMMAND...", help="A Python script or module, or any launcher's command line.")
    ] = None,
    ready_made: str | None = None,
    a: Annotated[str | None, typer.Option("--a", metavar="ARM", help=f"What the others are compared with. {_ARM}")] = None,
    b: Annotated[str | None, typer.Option("--b", metavar="ARM", help="Compared with --a; written in the same way.")] = None,
    c: Annotated[str | None, typer.Option("--c", metavar="ARM", help="A third arm.")] = None,
    d: Annotated[str | None, typer.Option("--d", metavar="ARM", help="A fourth arm.")] = None,
    argument: Annotated[
        str | None, typer.Option("--arg", metavar="NAME=V1,V2,...", help="In place of --a and --b: an argument of the script, an arm for each value.")
    ] = None,
    only: Annotated[str | None, typer.Option("--only", metavar="NAME,...", help="Rank these of the ready-made comparisons.")] = None,
    # The parser is given the default, too: both are percentages.
    margin: Annotated[
        float, typer.Option(parser=percentage, metavar="PERCENT", help="Differences smaller than this count as the same.", show_default="1%")
    ] = 1.0,
    budget: Annotated[float, typer.Option(parser=duration(1), metavar="TIME", help="Stop after this time.", show_default="20m")] = 1200.0,
    steps: Annotated[int, typer.Option(min=24, help="Optimizer steps of each run, which ends there.")] = 100,
    nproc_per_node: Annotated[
        int | None, typer.Option("--nproc-per-node", "-n", min=1, help="Processes to start, for a script or module.", show_default="1")
    ] = None,
    module: Annotated[bool, typer.Option("-m", help="COMMAND is a Python module.")] = False,
    python: _Python = None,
    private: Private = None,
    resume: Annotated[Path | None, typer.Option(metavar="DIR", help="Go on with a comparison that was interrupted or ran out of its budget.")] = None,
    markdown: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the table and the verdict as Markdown.")] = None,
    as_json: _Json = False,
    no_color: NoColor = False,
) -> None:
    """Compare trainings that differ in a setting or an argument: which one is faster, or are they the same?

    \b
        unhang bench compare --a shm=on --b shm=off -- torchrun --nproc-per-node 8 train.py
        unhang bench compare --a none --b detail=on -n 2 train.py
        unhang bench compare --a none --b env.OMP_NUM_THREADS=4 -n 2 train.py
        unhang bench compare --arg batch=64,128 -n 2 train.py
        unhang bench compare workers -n 2 train.py

    Each round starts every arm once, in an order shuffled anew, as unhang run would. The first steps of a run are dropped until its rhythm is
    steady. The interval of the difference holds at every look, so the comparison stops as soon as it can tell: faster or slower by more than the
    margin, or the same within it. Ready-made, in place of --a and --b: shm, p2p, ib, backend, batch, amp, workers, cudnn, bucket, compile,
    interface. Arms that do not differ in what their ranks run with are refused. Needs the extra bench.

    Exit code: 0 if every arm has a verdict; 4 if the budget was spent before; 1 if the training failed; 2 for bad input, equal arms included; 3 for
    our own failure; 130 if interrupted by Ctrl-C (143 by SIGTERM). What was measured is kept: --resume DIR goes on.
    """
    options = SimpleNamespace(**locals())
    from unhang.cli import bench_compare

    typed = {p.opts[0] for p in context.command.params if is_typed(context, str(p.name))}
    bench_compare.run(cast(Any, context.command.name), options, typed)


def comm(
    launcher: _Launcher = None,
    ranks: _Ranks = None,
    backend: _Backend = None,
    sizes: _Sizes = "8..256M",
    ops: _Ops = None,
    time_s: _Time = 0.3,
    python: _Python = None,
    as_json: _Json = False,
    no_color: NoColor = False,
) -> None:
    """Measure collectives and pairs of ranks over sizes, and check their results.

    \b
        unhang bench comm -n 8
        unhang bench comm --ops all_reduce,pairs --sizes 1M..64M -- torchrun --nnodes 2 --nproc-per-node 8 --rdzv-endpoint HOST:29500

    Algorithm and bus bandwidth are those of nccl-tests, in GB/s.

    Exit code: 0 if all results were right; 1 if one was wrong or the ranks failed; 2 for bad input; 3 for our own failure; 130 for Ctrl-C.
    """
    options = SimpleNamespace(**locals())
    from unhang.cli import bench_comm

    bench_comm.comm(options)


def record(
    launcher: _Launcher = None,
    ranks: _Ranks = None,
    backend: _Backend = None,
    sizes: _Sizes = "1M,16M",
    ops: _Ops = "all_reduce,pairs,memory,loader",
    time_s: _Time = 0.3,
    python: _Python = None,
    rounds: Annotated[int, typer.Option(min=LEAST_ROUNDS, help="How often the ranks are started and measured.")] = 10,
    as_json: _Json = False,
    no_color: NoColor = False,
) -> None:
    """Keep how fast this machine is now, for unhang bench check.

    Each round starts the ranks anew: connections that last have a speed of their own.
    """
    options = SimpleNamespace(**locals())
    from unhang.cli import bench_comm

    bench_comm.record(options)


def check(
    margin: Annotated[
        float, typer.Option(parser=percentage, metavar="PERCENT", help="Differences smaller than this count as the same.", show_default="10%")
    ] = 10.0,
    python: _Python = None,
    as_json: _Json = False,
    no_color: NoColor = False,
) -> None:
    """Measure what unhang bench record has measured, and say what has become slower. Needs the extra bench.

    Exit code: 0 if nothing is slower, 1 if something is, 4 if nothing is and of something it cannot be told, 2 without a baseline of this machine,
    130 for Ctrl-C.
    """
    options = SimpleNamespace(**locals())
    from unhang.cli import bench_comm

    bench_comm.check(options)
