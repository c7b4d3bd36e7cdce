"""unhang bench comm, record and check: how fast ranks communicate, and whether that has become slower."""

from __future__ import annotations

import os
from types import SimpleNamespace

import msgspec
import typer

from unhang.bench import baseline
from unhang.bench import collective_bench as measuring
from unhang.bench.collective_bench import LOCAL, OPS, Asked, Result, Row
from unhang.bench.comparison import Comparison
from unhang.cli import json_errors
from unhang.cli.bench import LEAST_ROUNDS, need_scipy
from unhang.cli.options import cache_folder
from unhang.diagnosis.redact import redact_command
from unhang.errors import EXIT_FOUND, EXIT_OK, EXIT_UNDECIDED, UnhangError
from unhang.facts.speed import FILE
from unhang.i18n import msg
from unhang.probes import live
from unhang.report import screen
from unhang.report.collective_bench import INTERRUPTED, Report, check_table
from unhang.settings.installed import installed
from unhang.text import size


def comm(options: SimpleNamespace) -> None:
    """`options` are those of `cli.bench`, here and below."""
    asked = _asked(options)
    result = _measured(asked)
    memory = next((row.algbw_gbps for row in result.rows if row.op == "memory"), None)
    report = Report(result=result, limit=None if result.group is None else measuring.link_limit(result.group, memory_gbps=memory))
    json_errors.answer(report.json(), report.print, as_json=options.as_json)
    raise typer.Exit(1 if result.stopped == "failed" or any(row.wrong for row in result.rows) else 0)


def record(options: SimpleNamespace) -> None:
    """Keep a round for each start of the ranks, and at the end the baseline."""
    store, asked, seconds = _store(), _asked(options), dict[str, list[float]]()
    if redact_command(asked.launcher) != asked.launcher:
        raise UnhangError(
            msg("the launcher's command holds a credential, and a baseline keeps the command"),
            hint="export it, and leave it out of the command",
        )
    machine = baseline.machine(asked.python)
    for round in range(1, options.rounds + 1):
        if not (rows := _sound(asked, f"{round}/{options.rounds} ", as_json=options.as_json)):
            # Fewer decide nothing.
            if round <= LEAST_ROUNDS:
                raise typer.Exit(1)
            break
        baseline.add(seconds, rows)
    if not seconds:
        raise UnhangError(msg("nothing was measured: this backend has none of these operations"))
    kept = baseline.Baseline(recorded=baseline.now(), machine=machine, asked=asked, seconds={key: tuple(values) for key, values in seconds.items()})
    store.keep(kept)
    document = {"schema": "unhang/bench-baseline/1", "file": str(store.path), **msgspec.to_builtins(kept)}
    json_errors.answer(document, lambda console: console.print(f"recorded in {store.path}"), as_json=options.as_json)


def check(options: SimpleNamespace) -> None:
    """Round by round until each measurement has a verdict. Raises MissingExtra without SciPy, UnhangError without a baseline."""
    need_scipy()
    store, seconds = _store(), dict[str, list[float]]()
    before = store.find(baseline.machine(live.find_python(options.python)))
    rounds = len(next(iter(before.seconds.values())))
    found: tuple[Comparison, ...] = ()
    for round in range(1, rounds + 1):
        if not (rows := _sound(before.asked, f"{round}/{rounds} ", as_json=options.as_json)):
            break
        baseline.add(seconds, rows)
        found = baseline.judge(before, seconds, margin=options.margin)
        if all(one.outcome != "undecided" for one in found):
            break
    if not rows:
        screen.say(INTERRUPTED)
    if not found:
        raise typer.Exit(1)
    store.keep_check(found)
    document = {"schema": "unhang/bench-check/1", "recorded": before.recorded, "margin": options.margin, "interrupted": not rows}
    document["measured"] = msgspec.to_builtins(found)
    json_errors.answer(document, lambda console: console.print(check_table(before, seconds, found, options.margin)), as_json=options.as_json)
    outcomes = {one.outcome for one in found}
    raise typer.Exit(EXIT_FOUND if "slower" in outcomes else EXIT_UNDECIDED if "undecided" in outcomes else EXIT_OK)


def _asked(options: SimpleNamespace) -> Asked:
    """Raises UnhangError and BadParameter."""
    words = tuple(options.launcher or ())
    chosen = live.find_python(options.python)
    backend = options.backend or ("nccl" if live.gpus_of(chosen, os.environ) > 1 else "gloo")
    named = tuple((options.ops or ",".join(("memory", *OPS))).split(","))
    if backend not in ("nccl", "gloo"):
        raise typer.BadParameter(f"{backend}: it is nccl or gloo", param_hint="--backend")
    # Another launcher's ranks may use another Python, which is not known here.
    if backend == "nccl" and not words and (found_here := installed(chosen)).torch and found_here.nccl is None:
        raise UnhangError(msg("--backend nccl: this torch is built without NCCL"), hint="--backend gloo")
    if unknown := [op for op in named if op not in (*OPS, *LOCAL)]:
        raise typer.BadParameter(f"{unknown[0]}: it is one of {', '.join((*OPS, *LOCAL))}", param_hint="--ops")
    try:
        found = measuring.parse_sizes(options.sizes)
    except ValueError:
        raise typer.BadParameter(f"{options.sizes}: it is LOW..HIGH or a list such as 1M,16M", param_hint="--sizes") from None
    started = measuring.launcher(words, ranks=options.ranks, python=chosen)
    return Asked(launcher=started, backend=backend, ops=named, sizes=found, time_s=options.time_s, python=chosen)


def _measured(asked: Asked, prefix: str = "") -> Result:
    """With progress on standard error: a line that changes on a terminal, else one for each operation."""
    last = ""

    def show(row: Row) -> None:
        nonlocal last
        if status.console.is_terminal:
            status.update(f"{prefix}{row.op} {size(row.size_bytes)}")
        elif row.op != last:
            status.console.print(f"unhang: {prefix}{row.op}")
        last = row.op

    with screen.status(f"{prefix}...") as status:
        return measuring.measure(asked, on_row=show)


def _sound(asked: Asked, prefix: str, *, as_json: bool) -> tuple[Row, ...]:
    """One round; () if it was interrupted. Exits where the ranks failed or a result was wrong: times of such say nothing."""
    result = _measured(asked, prefix)
    if result.stopped == "interrupted":
        return ()
    if result.stopped == "failed" or any(row.wrong for row in result.rows):
        report = Report(result=result, limit=None)
        json_errors.answer(report.json(), report.print, as_json=as_json)
        raise typer.Exit(1)
    return result.rows


def _store() -> baseline.Store:
    if (folder := cache_folder()) is None:
        raise UnhangError(msg("no cache can be used: HOME is not set, or the cache is ignored"))
    return baseline.Store(folder / FILE)
