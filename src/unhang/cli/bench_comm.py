"""unhang bench comm, record and check: how fast ranks communicate, and whether that has become slower."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from unhang.cli.options import NoColor, duration

if TYPE_CHECKING:
    from unhang.bench.comm import Asked, Result, Row

_LEAST_ROUNDS = 4
_WITH_LAUNCHER = {"allow_interspersed_args": False, "ignore_unknown_options": False}
_Launcher = Annotated[
    list[str] | None,
    typer.Argument(metavar="[-- LAUNCHER...]", help="What starts the ranks, such as torchrun with its options; each is a script that comes last."),
]
_Ranks = Annotated[
    int | None, typer.Option("--nproc-per-node", "-n", min=2, help="Ranks to start on this host.", show_default="one for each GPU; 2 without")
]
_Backend = Annotated[str | None, typer.Option(metavar="nccl|gloo", help="How ranks communicate.", show_default="nccl with two GPUs, else gloo")]
_Sizes = Annotated[str, typer.Option(metavar="SIZES", help="LOW..HIGH[*FACTOR], with a factor of 4, or a list: 1M,16M.")]
_Ops = Annotated[str | None, typer.Option(metavar="OP,...", help="What is measured.", show_default="all")]
_Time = Annotated[float, typer.Option("--time", parser=duration(0.01), metavar="TIME", help="For each size, the warm-up apart.", show_default="0.3s")]
_Python = Annotated[str | None, typer.Option(metavar="PATH", help="The ranks' Python.", show_default="ours if it has torch, else the first on PATH")]
_Json = Annotated[bool, typer.Option("--json", help="The result as JSON on stdout.")]
_Name = Annotated[str, typer.Option(metavar="NAME", help="Which baseline.")]
_Database = Annotated[Path | None, typer.Option("--db", metavar="FILE", help="Where baselines are.", show_default="~/.cache/unhang/bench.sqlite")]


def register(app: typer.Typer) -> None:
    app.command("comm", context_settings=_WITH_LAUNCHER)(comm)
    app.command("record", context_settings=_WITH_LAUNCHER)(record)
    app.command("check")(check)


def comm(
    launcher: _Launcher = None,
    ranks: _Ranks = None,
    backend: _Backend = None,
    sizes: _Sizes = "8..256M",
    ops: _Ops = None,
    time_s: _Time = 0.3,
    python: _Python = None,
    csv: Annotated[
        typer.FileTextWrite | None, typer.Option(metavar="FILE", lazy=False, help="Write a line for each operation and size as CSV.")
    ] = None,
    as_json: _Json = False,
    no_color: NoColor = False,
) -> None:
    """Measure collectives and pairs of ranks over sizes, and check their results.

    \b
        unhang bench comm -n 8
        unhang bench comm --ops all_reduce,pairs --sizes 1M..64M -- torchrun --nnodes 2 --nproc-per-node 8 --rdzv-endpoint HOST:29500
        unhang bench comm -- srun python

    Algorithm and bus bandwidth are those of nccl-tests, in GB/s. Within a group (RANK and WORLD_SIZE are set) each rank calls it without a launcher.

    Exit code: 0 if all results were right; 1 if one was wrong or the ranks failed; 2 for bad input; 3 for our own failure; 130 for Ctrl-C.
    """
    from unhang.bench import hardware
    from unhang.report.comm import Report

    asked = _asked(launcher, ranks, backend, sizes, ops, time_s, python)
    result = _measured(asked)
    memory = next((row.algbw_gbps for row in result.rows if row.op == "memory"), None)
    report = Report(result=result, limit=None if result.group is None else hardware.limit(result.group, memory_gbps=memory))
    if result.stopped == "complete" and not result.rows:
        # Another rank's: the first one reports.
        return
    if csv is not None:
        csv.write(report.csv())
    _answer(report.json() if as_json else report)
    raise typer.Exit(1 if result.stopped == "failed" or any(row.wrong for row in result.rows) else 0)


def record(
    launcher: _Launcher = None,
    ranks: _Ranks = None,
    backend: _Backend = None,
    sizes: _Sizes = "1M,16M",
    ops: _Ops = "all_reduce,pairs,memory,loader",
    time_s: _Time = 0.3,
    python: _Python = None,
    rounds: Annotated[int, typer.Option(min=_LEAST_ROUNDS, help="How often the ranks are started and measured.")] = 10,
    name: _Name = "default",
    database: _Database = None,
    as_json: _Json = False,
    no_color: NoColor = False,
) -> None:
    """Keep how fast this machine is now, for unhang bench check.

    Each round starts the ranks anew: connections that last have a speed of their own.
    """
    from unhang.bench import baseline

    store, asked, seconds = _store(database), _asked(launcher, ranks, backend, sizes, ops, time_s, python), dict[str, list[float]]()
    machine = baseline.machine(asked.python)
    for round in range(1, rounds + 1):
        if not (rows := _sound(asked, f"{round}/{rounds} ", as_json=as_json)):
            # Fewer decide nothing.
            if round <= _LEAST_ROUNDS:
                raise typer.Exit(1)
            break
        baseline.add(seconds, rows)
    kept = baseline.Baseline(
        name=name, recorded=baseline.now(), machine=machine, asked=asked, seconds={key: tuple(values) for key, values in seconds.items()}
    )
    store.keep(kept)
    _answer({"schema": "unhang/bench-baseline/1", "file": str(store.path), **_builtins(kept)} if as_json else f"recorded {name} in {store.path}")


def check(
    margin: Annotated[float, typer.Option(min=0.1, max=99, metavar="PERCENT", help="Differences below it are none.")] = 10,
    name: _Name = "default",
    python: _Python = None,
    database: _Database = None,
    as_json: _Json = False,
    no_color: NoColor = False,
) -> None:
    """Measure what unhang bench record has measured, and say what has become slower. Needs the extra bench.

    Exit code: 0 if nothing is slower or it cannot be told, 1 if something is, 2 without a baseline of this machine, 130 for Ctrl-C.
    """
    import importlib.util

    from unhang.bench import baseline
    from unhang.errors import MissingExtra
    from unhang.probes import live
    from unhang.report.comm import check_table

    if importlib.util.find_spec("scipy") is None:
        raise MissingExtra("unhang bench needs SciPy, which is not installed here", hint="pip install 'unhang[bench]'")
    store, seconds, share = _store(database), dict[str, list[float]](), margin / 100
    before = store.find(name, baseline.machine(live.find_python(python)))
    rounds = len(next(iter(before.seconds.values())))
    found: tuple[Any, ...] = ()
    for round in range(1, rounds + 1):
        if not (rows := _sound(before.asked, f"{round}/{rounds} ", as_json=as_json)):
            break
        baseline.add(seconds, rows)
        found = baseline.judge(before, seconds, margin=share)
        if all(one.outcome != "undecided" for one in found):
            break
    if not found:
        raise typer.Exit(1)
    store.keep_check(before, found)
    told = {"schema": "unhang/bench-check/1", "baseline": name, "recorded": before.recorded, "margin": share, "measured": _builtins(found)}
    _answer(told if as_json else check_table(before, seconds, found, share))
    raise typer.Exit(1 if any(one.outcome == "slower" for one in found) else 0)


def _asked(
    launcher: list[str] | None, ranks: int | None, backend: str | None, sizes: str, ops: str | None, time_s: float, python: str | None
) -> Asked:
    """Raises UnhangError and BadParameter."""
    import os

    from unhang.bench import comm
    from unhang.probes import live
    from unhang.probes.comm import LOCAL, OPS

    words = tuple(launcher or ())
    chosen = live.find_python(python)
    backend = backend or ("nccl" if live.gpus_of(chosen, os.environ) > 1 else "gloo")
    named = tuple((ops or ",".join(("memory", *OPS))).split(","))
    if backend not in ("nccl", "gloo"):
        raise typer.BadParameter(f"{backend}: it is nccl or gloo", param_hint="--backend")
    if unknown := [op for op in named if op not in (*OPS, *LOCAL)]:
        raise typer.BadParameter(f"{unknown[0]}: it is one of {', '.join((*OPS, *LOCAL))}", param_hint="--ops")
    try:
        found = comm.parse_sizes(sizes)
    except ValueError:
        raise typer.BadParameter(f"{sizes}: it is LOW..HIGH, LOW..HIGH*FACTOR, or a list such as 1M,16M", param_hint="--sizes") from None
    started = comm.launcher(words[1:] if words[:1] == ("--",) else words, ranks=ranks, python=chosen, environ=os.environ)
    return comm.Asked(launcher=started, backend=backend, ops=named, sizes=found, time_s=time_s, python=chosen)


def _measured(asked: Asked, prefix: str = "") -> Result:
    """With progress on standard error: a line that changes on a terminal, else one for each operation."""
    from unhang.bench.comm import measure
    from unhang.facts.units import size
    from unhang.report import screen

    console, last = screen.console(stderr=True), ""

    def tell(row: Row) -> None:
        nonlocal last
        if console.is_terminal:
            status.update(f"{prefix}{row.op} {size(row.size_bytes)}")
        elif row.op != last:
            console.print(f"unhang: {prefix}{row.op}", markup=False)
        last = row.op

    with console.status(f"{prefix}...") as status:
        return measure(asked, tell=tell)


def _sound(asked: Asked, prefix: str, *, as_json: bool) -> tuple[Row, ...]:
    """One round; () if it was interrupted. Exits where the ranks failed or a result was wrong: times of such say nothing."""
    from unhang.report.comm import Report

    result = _measured(asked, prefix)
    if result.stopped == "interrupted":
        return ()
    if result.stopped == "failed" or any(row.wrong for row in result.rows):
        report = Report(result=result, limit=None)
        _answer(report.json() if as_json else report)
        raise typer.Exit(1)
    return result.rows


def _store(path: Path | None) -> Any:
    from unhang.bench.baseline import Store
    from unhang.cli import caches
    from unhang.errors import UnhangError
    from unhang.facts.speed import FILE

    folder = caches.folder()
    if path is None and folder is None:
        raise UnhangError("nothing says where the cache is: HOME is not set", says_zh="不知道缓存目录在哪里：未设置 HOME", hint="--db FILE")
    return Store(path or folder / FILE)  # type: ignore[operator]


def _answer(what: Any) -> None:
    from unhang import encoding
    from unhang.cli import refused
    from unhang.report import screen

    refused.answers(given=True)
    if isinstance(what, dict):
        sys.stdout.buffer.write(encoding.encode(what) + b"\n")
    elif hasattr(what, "says"):
        what.print(screen.console())
    else:
        screen.console().print(what)


def _builtins(what: Any) -> Any:
    import msgspec

    return msgspec.to_builtins(what)
