"""A refusal for the program that asked for --json: one object in the place of the answer. What people read stays on stderr."""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import Callable, Iterator
from typing import IO, TYPE_CHECKING, Any

import typer

from unhang.i18n import msg
from unhang.report import language, screen

if TYPE_CHECKING:
    from unhang.report.console import Console

REFUSAL_SCHEMA = "unhang/refusal/1"
_answered = False


def answers(*, given: bool) -> None:
    """Whether this command's answer is on stdout, or on its way there: what fails behind it takes no place in what a program reads."""
    global _answered
    _answered = given


def answer(document: object, show: Callable[[Console], object], *, as_json: bool) -> None:
    """Print the answer: the document as JSON, or what `show` prints on a console."""
    from unhang import encoding

    answers(given=True)
    if as_json:
        sys.stdout.buffer.write(encoding.encode(document) + b"\n")
        sys.stdout.flush()
    else:
        show(screen.console())


def print_json(document: object) -> None:
    """Print an answer as JSON that people read as well."""
    import msgspec

    from unhang import encoding

    screen.echo(msgspec.json.format(encoding.encode(document), indent=2).decode())


def tell(error: str, *, exitcode: int, cause: str | None = None, hint: str | None = None, misread: bool = False) -> None:
    """Print it, where --json is a word of the command's own, and nothing was answered yet.

    `misread`: its words were not understood, so nobody knows where those end. Never raises: it is called on the way out.
    """
    try:
        if not _answered and _is_asked_for(sys.argv[1:], misread=misread):
            _print(error, exitcode=exitcode, cause=cause, hint=hint)
    except Exception:
        # Where a verb cannot be imported it cannot be asked for its words either: what people are told has to stand for it.
        return


def _print(error: str, *, exitcode: int, cause: str | None, hint: str | None) -> None:
    from unhang import encoding

    told: dict[str, object] = {"schema": REFUSAL_SCHEMA, "exitcode": exitcode}
    for name, said in (("error", error), ("cause", cause), ("try", hint)):
        told[name] = None if said is None else shown(said)
        zh = None if said is None else language.refusal(said, "zh")
        told[f"{name}_zh"] = None if zh is None or zh == said else shown(zh)
    try:
        screen.echo(encoding.encode(told).decode())
    except OSError:
        # Nobody reads it; the exit code still says it.
        with contextlib.suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def shown(said: object) -> str:
    """Errors quote names of files and lines of logs. If a credential takes a quote with it, nothing quoted is shown: a shell would read it."""
    from unhang.diagnosis.redact import HIDDEN, redact, redact_quoted

    # A name with a line feed could begin a line that looks like a command.
    said = " ".join(line.strip() for line in str(said).split("\n"))
    clean = redact_quoted(said)
    return clean if clean is not None else redact(re.split("['\"]", said, maxsplit=1)[0]) + HIDDEN


def _is_asked_for(argv: list[str], *, misread: bool) -> bool:
    if "--json" not in argv:
        return False
    from unhang.cli import app

    name, rest = next(((word, argv[i + 1 :]) for i, word in enumerate(argv) if not word.startswith("-")), ("", []))
    if name not in app.SAYS:
        return False
    command = app.whole(name)
    while hasattr(command, "commands"):
        # A verb with verbs of its own.
        name, rest = next(((word, rest[i + 1 :]) for i, word in enumerate(rest) if not word.startswith("-")), ("", []))
        if name not in command.commands:
            return False
        command = command.commands[name]
    if misread:
        own = rest[: rest.index("--")] if "--" in rest else rest
        return "--json" in own and any("--json" in p.opts for p in command.params)
    # Behind the script of `unhang run` it is the script's.
    return bool(command.make_context(name, rest, resilient_parsing=True).params.get("as_json"))


@contextlib.contextmanager
def told() -> Iterator[None]:
    """Options and arguments that do not exist, are missing or have no such value: what typer says of them, in Chinese where that is spoken."""
    try:
        yield
    except Exception as e:
        # Its class has a home of its own in each version of typer. Help that is shown for want of arguments is no error.
        if hasattr(e, "format_message") and type(e).__name__ != "NoArgsIsHelpError":
            _translate(e)
            _tell(e)
        raise


def _tell(error: Any) -> None:
    hint = f"{error.ctx.command_path} -h" if error.ctx is not None else None
    tell(error.format_message(), exitcode=error.exit_code, hint=hint, misread=True)


def _translate(error: Any) -> None:
    as_it_is = error.show
    # Its own way to standard error would go around ours where that is no UTF-8.
    error.show = lambda file=None: as_it_is(file or sys.stderr)
    if language.spoken() != "zh":
        return
    said = language.refusal(error.format_message())

    def show(file: IO[Any] | None = None) -> None:
        file = file or sys.stderr
        lines = [msg("Error: {said}", said=said)]
        if (context := getattr(error, "ctx", None)) is not None:
            lines[:0] = [msg("Try {command} {option} for help.\n", command=context.command_path, option=o) for o in context.help_option_names[:1]]
            lines[:0] = [msg("Usage: {usage}", usage=context.get_usage().removeprefix("Usage: "))]
        for line in lines:
            typer.echo(line.of("zh"), file=file)

    error.show = show
