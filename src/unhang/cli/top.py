"""unhang top: how a run stands, live in the terminal, once, or as JSON."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from unhang.cli.options import Lang, NoColor, duration
from unhang.errors import EXIT_FOUND, EXIT_OK, EXIT_USER, MissingExtra, RunDirError, UnhangError, interrupted_by
from unhang.i18n import NOTHING, msg
from unhang.printable import one_line
from unhang.report import language, screen

if TYPE_CHECKING:
    from unhang.records.run_follower import Looker
    from unhang.records.run_snapshot import RunSnapshot
    from unhang.report.language import Language


def register(app: typer.Typer) -> None:
    app.command("top")(top)


def top(
    run_dir: Annotated[
        str | None,
        typer.Argument(
            metavar="[RUN_DIR]", help="A run directory, a part of it, or a directory that holds some.", show_default="the newest run here"
        ),
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="Print one picture as plain text, and exit.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One picture as a JSON object.")] = False,
    follow: Annotated[bool, typer.Option("--follow", help="With --json: a line whenever there is something new, until the run is over.")] = False,
    everything: Annotated[bool, typer.Option("--all", help="Show all ranks, also those that nothing is to be said of.")] = False,
    every_s: Annotated[float, typer.Option("--every", parser=duration(0.2), metavar="TIME", help="How often to look.")] = 1.0,
    lang: Lang = None,
    no_color: NoColor = False,
) -> None:
    """Show how a run stands: its ranks, where they are, who is waited for, what has happened.

    Only reads the run directory: neither the training nor its supervisor notices. Needs the extra `top` (pip install 'unhang[top]');
    --once and --json work without it. What is not known is shown as "?" or "unknown".

    Exit code: 0, and of --once and --json also 1 if something is wrong (a rank failed, stuck or without heartbeat; an incident; unhang
    run gone; a run that ended badly); 2 for bad input, or where it cannot be told how the run stands; 3 for our own failure; 130 if
    interrupted (143 by SIGTERM).
    """

    chosen = language.chosen(lang)
    if follow and not as_json:
        raise UnhangError("--follow is for --json", hint="unhang top shows what changes by itself")
    if once and as_json:
        raise UnhangError("--once and --json: choose one", hint="--json prints one picture, unless there is --follow")
    path = _run_dir(run_dir)
    looker = _looker(path)
    if not (once or as_json) and not _is_terminal():
        screen.say(msg("this is no terminal: one picture, as of --once"))
        once = True
    if once or (as_json and not follow):
        picture = looker.look()
        if as_json:
            _print(picture)
        else:
            from unhang.report.top.lines import render

            render(picture, screen.console(), lang=chosen, everything=everything)
        raise typer.Exit(_exitcode(picture))
    if as_json:
        raise typer.Exit(_follow(looker, every_s))
    raise typer.Exit(_watch(looker, every_s=every_s, everything=everything, lang=chosen))


def _run_dir(given: str | None) -> Path:
    """Raises UnhangError where there is none."""
    from unhang.records.rundir import RunDir, runs_in

    if given == "":
        raise UnhangError("RUN_DIR is empty", cause="the variable that stood there has no value")
    path = Path(given) if given is not None else Path()
    try:
        if RunDir.is_one(path) or (path / "run.json").exists():
            return path
        if (holding := RunDir.holding(path)) is not None:
            return holding.path
        runs = runs_in(path) if path.is_dir() else []
    except OSError as e:
        from unhang.records.run_follower import why_unreadable

        raise RunDirError(f"cannot read {one_line(str(e.filename or path))}: {e.strerror or e}", cause=why_unreadable(e)) from e
    if runs:
        if given is None or len(runs) > 1:
            others = msg(", the newest of {n} runs", n=len(runs)) if len(runs) > 1 else NOTHING
            screen.say(msg("showing {run}{others}", run=one_line(str(runs[-1])), others=others))
        return runs[-1]
    if given is None:
        raise RunDirError("there is no run here", cause="unhang run makes run directories as runs/<name>-<time>/", hint="unhang top RUN_DIR")
    # Whatever is wrong with it is told by whoever looks into it.
    return path


def _looker(path: Path) -> Looker:
    from unhang.facts import processes
    from unhang.facts.host import Host
    from unhang.facts.nvml import GpuMemory
    from unhang.records.run_follower import Looker
    from unhang.records.run_snapshot import Memory

    host = Host()
    gpus = GpuMemory(host)

    def memory(of_host: str, gpu: str) -> Memory | None:
        found = gpus.of(of_host, gpu)
        return None if found is None else Memory(used_bytes=found[0], total_bytes=found[1])

    return Looker(path, is_alive=lambda process: processes.is_alive(host, process), memory=memory)


def _is_terminal() -> bool:
    return sys.stdin.isatty() and sys.stdout.isatty() and os.environ.get("TERM") not in (None, "", "dumb")


def _exitcode(picture: RunSnapshot) -> int:
    return EXIT_FOUND if picture.is_wrong else EXIT_OK if picture.is_known else EXIT_USER


def _print(picture: RunSnapshot) -> None:
    from unhang import encoding

    screen.echo(encoding.encode(picture).decode())


def _follow(looker: Looker, every_s: float) -> int:
    """A line for each change that is more than time going by."""
    out = os.fstat(1)
    before = None
    while True:
        picture = looker.look()
        if (news := looker.news(picture)) != before:
            before = news
            _print(picture)
        if picture.job.phase in ("ended", "gone"):
            return _exitcode(picture)
        # Whoever read this has gone: what comes now goes nowhere.
        if (os.fstat(1).st_dev, os.fstat(1).st_ino) != (out.st_dev, out.st_ino):
            return _exitcode(picture)
        time.sleep(every_s)


def _watch(looker: Looker, *, every_s: float, everything: bool, lang: Language) -> int:
    from unhang.cli.main import answer_interrupts

    # What is no run directory is said before the screen is taken.
    first = looker.look()
    # An exception inside an import may be lost, and with it the interruption; the screen is not taken yet.
    answer_interrupts(lambda number, frame: os._exit(interrupted_by(number)))
    try:
        from unhang.report.top.app import Top
    except ImportError as e:
        if (e.name or "").partition(".")[0] != "textual":
            raise
        raise MissingExtra(
            "unhang top needs Textual, which is not installed here",
            cause="it comes with the extra top; --once and --json work without it",
            hint="pip install 'unhang[top]'",
        ) from e
    return Top(looker.look, first=first, every_s=every_s, everything=everything, lang=lang, plain=screen.is_plain()).until_the_end()
