"""All verbs, of which only the one that was asked for is imported, and the one place where errors become exit codes."""

from __future__ import annotations

import codecs
import contextlib
import errno
import importlib
import io
import os
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from unhang import __version__
from unhang.cli import json_errors
from unhang.cli.main import answer_interrupts, say_nothing_was_started
from unhang.errors import EXIT_OURS, EXIT_USER, UnhangError, interrupted_by
from unhang.printable import Printable
from unhang.report import screen

# In the order of the list.
SAYS = {
    "run": "Run a training: watch it, say why it failed, start it again.",
    "top": "Show how a run stands: its ranks, where they are, who is waited for.",
    "why": "Say why a run failed, and what to do.",
    "doctor": "Say what of this machine will make a training fail.",
    "presets": "Show settings that go together, and what this machine makes of them.",
    "export": "Write settings in the form of a launcher, or check such a file.",
    "plan": "Say what of a training fits this hardware, and how to divide it.",
    "bench": "Measure what a setting costs: compare trainings that differ in it.",
    "pack": "Move an environment to other hosts, and prove that it works there.",
    "vars": "Say which variables are read here, and which are wrong.",
    "explain": "Print what is known of a cause.",
    "demo": "Break a small training in seven ways, and see each found.",
}


class Verbs(TyperGroup):
    """Its `commands` are for the list, for completion and for what somebody may have meant; whoever calls one gets the whole of it."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.commands.update((name, TyperCommand(name, short_help=says)) for name, says in SAYS.items())

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, command, rest = super().resolve_command(ctx, args)
        return name, command and whole(command.name or ""), rest

    def make_context(self, *args: Any, **more: Any) -> Any:
        with json_errors.told():
            return super().make_context(*args, **more)

    def invoke(self, ctx: Any) -> Any:
        with json_errors.told():
            return super().invoke(ctx)


def whole(name: str) -> Any:
    """One verb with its options, as a command that can be called."""
    alone = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
    importlib.import_module(f"unhang.cli.{name}").register(alone)
    return typer.main.get_command(alone)


app = typer.Typer(
    name="unhang",
    cls=Verbs,
    help="Distributed PyTorch training that starts, stays up, and explains itself.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    # Half of the time that help takes would go into the import of what draws it.
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(value: bool) -> None:
    if value:
        screen.echo(f"unhang {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Print the version and exit."),
) -> None:
    pass


def run() -> None:
    """Every way out has its exit code (see unhang.errors)."""
    # A parent may have it ignored: then the kernel reaps our children, and gives their pids to others.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    _open_closed_streams()
    _outlive_readers()
    _replace_what_cannot_be_printed()
    screen.without_false_sizes()
    answer_interrupts(_interrupted)
    try:
        _answer()
    finally:
        # Callbacks and finalizers lose what a handler raises; the exit code says it all the same.
        if _interrupts:
            sys.exit(interrupted_by(_interrupts[0]))
        # All is told: what is still being closed keeps nobody waiting.
        answer_interrupts(lambda number, frame: os._exit(interrupted_by(number)))


def _answer() -> None:
    json_errors.answers(given=False)
    try:
        try:
            app()
        finally:
            # While its errors can still be caught.
            sys.stdout.flush()
    except UnhangError as e:
        _complain(e)
        sys.exit(EXIT_USER)
    except Exception as e:
        if isinstance(e, OSError) and _is_of_output(e):
            _give_up(1)
            _say(f"unhang: cannot write the report: {e.strerror}", red=True)
            sys.exit(EXIT_USER)
        said = f"this is our own failure: {type(e).__name__}: {e}"
        _say(f"unhang: {json_errors.shown(said)}", red=True)
        path = write_bug_report(e)
        if path is not None:
            _say(f"A report ready to paste is in {path}")
        json_errors.tell(said, exitcode=EXIT_OURS)
        if path is None:
            raise e
        sys.exit(EXIT_OURS)


def _open_closed_streams() -> None:
    """Open what the caller has closed (`>&-`) on nothing, lest the next file that we open becomes our standard output."""
    for fd, name in ((0, "stdin"), (1, "stdout"), (2, "stderr")):
        try:
            os.fstat(fd)
        except OSError:
            # The lowest number that is free.
            os.open(os.devnull, os.O_RDWR)
            setattr(sys, name, open(fd, "w" if fd else "r", closefd=False))  # noqa: SIM115


class _Outliving(io.FileIO):
    """A stream whose reader may go (`| head`): what comes behind that goes nowhere, and the exit code stays the verb's own. Click would make it 1."""

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except BrokenPipeError:
            _give_up(self.fileno())
            return len(data)


def _outlive_readers() -> None:
    for fd, name in ((1, "stdout"), (2, "stderr")):
        before = getattr(sys, name)
        if isinstance(before, io.TextIOWrapper) and not before.closed and before.fileno() == fd:
            raw = io.BufferedWriter(_Outliving(fd, "w", closefd=False))
            stream = Printable(raw, before.encoding, before.errors, line_buffering=before.line_buffering, write_through=before.write_through)
            setattr(sys, name, stream)


# A question mark in place of a tick would say that something could not be looked at.
_PLAIN = {"✓": "+", "✗": "x", "→": ">", "…": "~", "–": "-"}


def _replace_what_cannot_be_printed() -> None:
    """Streams that are no UTF-8 (LC_ALL, PYTHONIOENCODING) get plain marks, and question marks for what else they cannot hold."""
    codecs.register_error("unhang", _plain)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="unhang")


def _plain(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return "".join(_PLAIN.get(c, "?") for c in error.object[error.start : error.end]), error.end


def _give_up(fd: int) -> None:
    """Let what is still buffered for a stream go nowhere, lest it fails once more at the exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), fd)


def _is_of_output(error: OSError) -> bool:
    """Whether it comes from writing to a stream: a full disk behind it, or a terminal that has gone. Verbs answer for their own files."""
    return error.filename is None and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


_interrupts: list[int] = []
# Time to clean up; the next process removes the temporary directories that are left. Other verbs end trainings.
_WAY_OUT_S = {"why": 2.0, "doctor": 10.0}


def _interrupted(number: int, frame: FrameType | None) -> None:
    _interrupts.append(number)
    say_nothing_was_started()
    # Once is enough: another one would end what is on its way out already, in the middle of that.
    answer_interrupts(signal.SIG_IGN)
    if limit_s := _WAY_OUT_S.get("".join(sys.argv[1:2])):
        # A callback may swallow what is raised here, and cleanup may block. At worst a temporary file of --report or --bundle is left.
        signal.signal(signal.SIGALRM, lambda alarm, frame: _exit_now(number))
        signal.setitimer(signal.ITIMER_REAL, limit_s)
    sys.exit(interrupted_by(number))


def _exit_now(number: int) -> None:
    if os.isatty(2):
        # rich hides the cursor.
        os.write(2, b"\x1b[?25h")
    try:
        import psutil

        for child in psutil.Process().children(recursive=True):
            with contextlib.suppress(psutil.Error):
                child.kill()
    finally:
        os._exit(interrupted_by(number))


def _complain(error: UnhangError) -> None:
    from unhang.report import language

    labels = language.LABELS[language.spoken()]
    _say(f"unhang: {json_errors.shown(language.refusal(error.message))}", red=True)
    if error.cause:
        _say(f"{labels['usual_cause']}: {json_errors.shown(language.refusal(error.cause))}")
    if error.hint:
        _say(f"{labels['try']}: {json_errors.shown(language.refusal(error.hint))}")
    json_errors.tell(error.message, exitcode=EXIT_USER, cause=error.cause, hint=error.hint)


def write_bug_report(error: BaseException) -> Path | None:
    """Write one of our own failures to a new file, ready to paste, and return its path; None where no file can be written."""
    import platform
    import tempfile
    import traceback

    from unhang.diagnosis.redact import redact
    from unhang.printable import escape

    lines = [
        "### What happened",
        f"`{' '.join(sys.argv)}` ended with {type(error).__name__}: {error}",
        "",
        "### Versions",
        f"unhang {__version__}, Python {platform.python_version()}, {platform.platform()}",
        "",
        "### Traceback",
        "```",
        "".join(traceback.format_exception(type(error), error, error.__traceback__)).rstrip(),
        "```",
        "",
    ]
    try:
        with tempfile.NamedTemporaryFile("w", prefix="unhang-report-", suffix=".md", delete=False, encoding="utf-8", errors="replace") as f:
            f.write(escape(redact("\n".join(lines))))
    except OSError:
        return None
    return Path(f.name)


def _say(text: str, *, red: bool = False) -> None:
    try:
        screen.echo(text, stderr=True, red=red)
    except OSError:
        # Nobody can be told; the exit code still says it.
        _give_up(2)
