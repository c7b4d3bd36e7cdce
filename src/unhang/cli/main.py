"""The command line: one module for each verb, and the one place where errors become exit codes."""

from __future__ import annotations

import io
import os
import signal
import sys
from types import FrameType

import typer

from unhang import __version__
from unhang.cli import demo, explain, run, why
from unhang.errors import EXIT_INTERRUPTED, EXIT_OURS, EXIT_USER, UnhangError

app = typer.Typer(
    name="unhang",
    help="Distributed PyTorch training that starts, stays up, and explains itself.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(value: bool) -> None:
    if value:
        typer.echo(f"unhang {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Print the version and exit."),
    no_color: bool = typer.Option(False, "--no-color", help="No colours (NO_COLOR does the same)."),
) -> None:
    if no_color:
        os.environ["NO_COLOR"] = "1"


for verb in (run, why, explain, demo):
    verb.register(app)


def entry() -> None:
    """The console script. Every way out has its exit code (see unhang.errors)."""
    _open_closed_streams()
    _replace_what_cannot_be_printed()
    signal.signal(signal.SIGINT, _interrupted)
    try:
        app()
    except UnhangError as e:
        _complain(e)
        sys.exit(EXIT_USER)
    except Exception as e:
        _report(e)
        sys.exit(EXIT_OURS)
    finally:
        _flush()


def _open_closed_streams() -> None:
    """Open what the caller has closed (`>&-`) on nothing, lest the next file that we open becomes our standard output."""
    for fd, name in ((0, "stdin"), (1, "stdout"), (2, "stderr")):
        try:
            os.fstat(fd)
        except OSError:
            # The lowest number that is free.
            os.open(os.devnull, os.O_RDWR)
            setattr(sys, name, open(fd, "w" if fd else "r", closefd=False))  # noqa: SIM115


def _replace_what_cannot_be_printed() -> None:
    """Streams that are no UTF-8 (LC_ALL, PYTHONIOENCODING) get question marks for what they cannot hold: a verdict is worth more than its marks."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def _flush() -> None:
    """Flush stdout while its errors can still be caught; a write to a reader that has gone, for example `| head`, click has answered already."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def _interrupted(number: int, frame: FrameType | None) -> None:
    sys.exit(EXIT_INTERRUPTED)


def _complain(error: UnhangError) -> None:
    typer.secho(f"unhang: {_shown(error)}", err=True, fg=typer.colors.RED)
    if error.cause:
        typer.echo(f"Usual cause: {_shown(error.cause)}", err=True)
    if error.hint:
        typer.echo(f"Try: {_shown(error.hint)}", err=True)


def _report(error: Exception) -> None:
    from unhang.cli import bug_report

    typer.secho(f"unhang: this is our own failure: {type(error).__name__}: {_shown(error)}", err=True, fg=typer.colors.RED)
    path = bug_report.write(error)
    if path is None:
        raise error
    typer.echo(f"A report ready to paste is in {path}", err=True)


def _shown(said: object) -> str:
    """Errors quote names of files and lines of logs."""
    from unhang.diagnosis.redact import redact
    from unhang.records.logs.line import CONTROLS

    return redact(CONTROLS.sub("", str(said)))
