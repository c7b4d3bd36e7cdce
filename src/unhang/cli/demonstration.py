"""What `unhang demo` does: an undisturbed run, one run for each fault, and a table that holds them against each other."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import math
import os
import signal
import subprocess
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path
from types import FrameType
from typing import Any

import typer
from rich import box
from rich.table import Table

from unhang.errors import EXIT_FOUND, MissingExtra, RecordError, RunDirError, UnhangError, interrupted_by
from unhang.flight import load
from unhang.launch.supervise import run_path
from unhang.launch.terminate import die_with_parent
from unhang.model import frozen
from unhang.records.rundir import RunDir, new_directory
from unhang.report import screen
from unhang.report.console import Console
from unhang.testing.scenarios import QUICK, SCENARIOS, Scenario, places

RANKS = 2
ROWS = 512


@frozen
class Row:
    """One run of the demo as its artifacts tell it. `found_s`: from the moment the fault fired to the verdict."""

    name: str
    says: str
    ok: bool
    problems: tuple[str, ...]
    found_s: float | None
    cause: str | None
    ranks: tuple[int, ...]
    where: str | None
    steps_lost: int
    final_loss: float | None
    exitcode: int
    elapsed_s: float
    run_dir: str


def run(*, quick: bool, only: tuple[str, ...], directory: Path | None, as_json: bool) -> None:
    """Run the demo and leave with 0, or with 1 if anything was not as it should be. Raises UnhangError."""
    names = [s.name for s in SCENARIOS]
    unknown = [name for name in only if name not in names]
    if unknown:
        raise UnhangError(f"there is no fault {', '.join(unknown)}", hint=f"one of {', '.join(names)}")
    wanted = only or (QUICK if quick else tuple(names))
    chosen = [s for s in SCENARIOS if s.name in wanted]
    missing = [name for name in ("torch", "transformers", "tokenizers", "pyarrow") if importlib.util.find_spec(name) is None]
    if missing:
        raise MissingExtra(f"the demo needs {', '.join(missing)}", hint="pip install 'unhang[demo]'")
    recipe = _recipe()
    try:
        base = new_directory(lambda: (directory or run_path(Path("runs"), "demo")).absolute())
    except OSError as e:
        raise RunDirError(f"cannot create {e.filename}: {e.strerror}", hint="name another place with --dir DIR") from e
    console = screen.console(stderr=True)
    data = base / "data"
    console.print(f"unhang demo: {recipe.name} with {RANKS} ranks; everything is kept in {base}")
    _call([sys.executable, str(recipe / "train.py"), "prepare", "--rows", str(ROWS), "--out", str(data)])
    started = time.monotonic()
    rows = [_one(console, recipe, base, data, None, None)]
    for scenario in chosen:
        rows.append(_one(console, recipe, base, data, scenario, rows[0]))
    _show(screen.console(stderr=as_json), rows, time.monotonic() - started)
    if as_json:
        screen.echo(json.dumps([asdict(row) for row in rows]))
    raise typer.Exit(0 if all(row.ok for row in rows) else EXIT_FOUND)


def _one(console: Console, recipe: Path, base: Path, data: Path, scenario: Scenario | None, calm: Row | None) -> Row:
    name = scenario.name if scenario else "undisturbed"
    console.rule(f"{name}: {scenario.says if scenario else 'no fault'}", style="dim")
    run_dir, output, record = base / name, base / f"{name}-output", base / f"{name}-fault.jsonl"
    environ = {k: v for k, v in os.environ.items() if not k.startswith("UNHANG_")}
    if scenario is not None:
        environ |= {"UNHANG_FAULT": scenario.fault, "UNHANG_FAULT_RECORD": str(record)}
    argv = [sys.executable, "-m", "unhang", "run", "--json", "--quiet", "-n", str(RANKS), "--python", sys.executable, "--run-dir", str(run_dir)]
    argv += ["--no-color"] if screen.is_plain() else []
    # What one fault brings to light is nothing that the next one may know, nor the next demo: a pause that was survived here is no news again.
    argv += ["--fallback", "off"]
    environ["XDG_CACHE_HOME"] = str(base / f"{name}-cache")
    argv += [str(recipe / "train.py"), "train", "--preset", "demo", "--is_finetune", "--data", str(data), "--output", str(output)]
    started = time.monotonic()
    outcome = json.loads(_call(argv, environ, any_exit=True) or b"{}")
    elapsed = time.monotonic() - started
    events = [json.loads(line) for line in (run_dir / "events.jsonl").read_text().splitlines()] if run_dir.is_dir() else []
    primary = (outcome.get("verdict") or {}).get("primary") or {}
    file = output / "metrics.jsonl"
    metrics = [json.loads(line) for line in file.read_text().splitlines()] if file.is_file() else []
    row = Row(
        name=name,
        says=scenario.says if scenario else "undisturbed",
        ok=True,
        problems=(),
        found_s=_found_s(record, run_dir, events),
        cause=primary.get("cause"),
        ranks=tuple(primary.get("ranks", ())),
        where=primary.get("where"),
        steps_lost=_steps_lost(metrics),
        final_loss=next((m["eval_loss"] for m in reversed(metrics) if m.get("final")), None),
        exitcode=int(outcome.get("exitcode", -1)),
        elapsed_s=round(elapsed, 1),
        run_dir=str(run_dir),
    )
    problems = tuple(_problems(row, recipe, scenario, calm, restarts=int(outcome.get("attempts", 0)) - 1))
    return replace(row, ok=not problems, problems=problems)


def _problems(row: Row, recipe: Path, scenario: Scenario | None, calm: Row | None, *, restarts: int) -> list[str]:
    """Everything about a run that is not as it should be."""
    found = []
    if row.exitcode != 0:
        found.append(f"exit code {row.exitcode}")
    if row.final_loss is None:
        found.append("no final loss")
    if scenario is None:
        return [*found, *([f"false alarm: {row.cause}"] if row.cause else [])]
    if row.cause != scenario.cause:
        found.append(f"cause {row.cause}, not {scenario.cause}")
    if row.ranks != (scenario.rank,):
        found.append(f"ranks {list(row.ranks)}, not [{scenario.rank}]")
    expected = places(recipe, scenario.line)
    if _place(row.where) not in expected:
        found.append(f"where {row.where}, not one of {sorted(expected)}")
    if restarts != int(scenario.restarts):
        found.append(f"{restarts} restarts")
    silent = {rank for rank in range(RANKS) if not (scenario.mute and rank == scenario.rank)} - _recorded(RunDir(Path(row.run_dir)))
    if silent:
        found.append(f"no flight-recorder dump of {sorted(silent)}")
    if calm is not None and not math.isclose(row.final_loss or math.nan, calm.final_loss or math.nan, rel_tol=1e-6):
        found.append(f"loss {row.final_loss!r}, not {calm.final_loss!r}")
    return found


def _recorded(rundir: RunDir) -> set[int]:
    """The ranks whose collectives are in the first incident: asked while the ranks still lived, since nobody answers afterwards."""
    found = set()
    for rank in range(RANKS):
        with contextlib.suppress(RecordError):
            if load(rundir.flight(1, rank)).calls:
                found.add(rank)
    return found


def _place(where: str | None) -> tuple[str, int] | None:
    if where is None:
        return None
    file, _, line = where.partition(" in ")[0].rpartition(":")
    return Path(file).name, int(line)


def _found_s(record: Path, run_dir: Path, events: list[dict[str, Any]]) -> float | None:
    """Seconds from the fault, as the faulty process recorded it, to the first verdict, as the supervisor did."""
    drawn = next((e for e in events if e["event"] == "Drawn"), None)
    if drawn is None or not record.is_file():
        return None
    fired = json.loads(record.read_text().splitlines()[0])["time"]
    verdict = (run_dir / "incidents" / str(drawn["incident"]) / "verdict.json").stat().st_mtime
    return round(float(verdict - fired), 1)


def _steps_lost(metrics: list[dict[str, Any]]) -> int:
    """Training steps that had to be done again."""
    steps = [m["step"] for m in metrics if "lr" in m]
    return len(steps) - len(set(steps))


def _show(console: Console, rows: list[Row], elapsed_s: float) -> None:
    table = _table(rows, wide=True)
    if console.measure(table, options=console.options.update(max_width=1000)).maximum > console.width:
        table = _table(rows, wide=False)
    console.print()
    console.print("What was injected, and what became of it", style="italic")
    console.print(table)
    console.print(
        "found: from the fault to the first verdict; lost: training steps done again; loss: at the end, that of the undisturbed run",
        style="dim",
        soft_wrap=False,
    )
    for row in rows:
        if not row.ok:
            console.print(f"{row.name}: {'; '.join(row.problems)}", style="red")
    good = sum(row.ok for row in rows)
    console.print(f"{good} of {len(rows)} runs as they should be, in {elapsed_s:.0f} s.", style="green" if good == len(rows) else "red")


def _table(rows: list[Row], *, wide: bool) -> Table:
    """All columns with room to spare, or what 80 characters hold."""
    table = Table(box=box.SIMPLE if wide else None, padding=(0, 1, 0, 0), pad_edge=False)
    for heading in ("fault", "found", "cause", *(("rank", "line") if wide else ("rank, line",)), "lost", "loss", ""):
        table.add_column(heading, no_wrap=True, justify="right" if heading in ("found", "lost", "loss") else "left")
    for row in rows:
        ranks, line = ",".join(map(str, row.ranks)), _short(row.where)
        loss = "none" if row.final_loss is None else f"{row.final_loss:.{6 if wide else 4}f}"
        table.add_row(
            row.name,
            _seconds(row.found_s),
            row.cause or "nothing wrong",
            *((ranks, line) if wide else (f"{ranks} {line}",)),
            str(row.steps_lost),
            loss,
            ("ok" if wide else "✓") if row.ok else "✗",
        )
    return table


def _seconds(seconds: float | None) -> str:
    if seconds is None:
        return ""
    return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"


def _short(where: str | None) -> str:
    place = _place(where)
    return f"{place[0]}:{place[1]}" if place else ""


def _recipe() -> Path:
    """The recipe: in a checkout beside src/, in an installed package inside it."""
    package = Path(__file__).parents[1]
    for candidate in (package.parents[1] / "recipes" / "t5_sft", package / "recipes" / "t5_sft"):
        if (candidate / "train.py").is_file():
            return candidate
    raise UnhangError("the recipe t5_sft is not part of this installation", cause="the package was built without it")


def _call(argv: list[str], environ: dict[str, str] | None = None, *, any_exit: bool = False) -> bytes:
    """Run a command to its end; its stdout. Raises UnhangError if it fails. Whatever interrupts us ends it first, and then us."""
    process: subprocess.Popen[bytes] | None = None
    interrupted = 0

    def interrupt(number: int, frame: FrameType | None) -> None:
        nonlocal interrupted
        interrupted = number
        if process is not None:
            process.terminate()

    before = {number: signal.signal(number, interrupt) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        # In a session of its own: a Ctrl-C reaches it through us, and once.
        process = subprocess.Popen(argv, env=environ, stdout=subprocess.PIPE, start_new_session=True, preexec_fn=die_with_parent)
        if interrupted:
            process.terminate()
        out, _ = process.communicate()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if interrupted:
        sys.exit(interrupted_by(interrupted))
    if process.returncode != 0 and not any_exit:
        raise UnhangError(f"{' '.join(argv[:4])} ... ended with {process.returncode}")
    return out
