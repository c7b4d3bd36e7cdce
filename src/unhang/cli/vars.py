"""unhang vars: which variables does anything installed here read, and what do they bring about."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from unhang.cli import json_errors
from unhang.cli.options import Lang, NoColor, cache_folder
from unhang.errors import EXIT_FOUND, EXIT_OK, EXIT_USER, UnhangError
from unhang.i18n import msg
from unhang.report import language, screen

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from unhang.facts.variables import Variables
    from unhang.files.found import Parsed
    from unhang.model import NotExamined
    from unhang.variables.judge import Judged
    from unhang.variables.readers import Scan

_NAME = re.compile(r"[A-Z][A-Z0-9_]+")
_SETTING = re.compile(r"[A-Z][A-Z0-9_]+=[^\n]*")


def register(app: typer.Typer) -> None:
    app.command("vars")(vars)


def vars(
    what: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[FILE|NAME|NAME=VALUE]...", help="Scripts, Dockerfiles, YAML, Python; or variables. The environment where nothing is given."
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="What was found as JSON.")] = False,
    show_all: Annotated[bool, typer.Option("--all", help="All variables that are known, set or not.")] = False,
    libs: Annotated[Path | None, typer.Option(metavar="PATH", help="Judge for this site-packages, for example another machine's.")] = None,
    lang: Lang = None,
    no_color: NoColor = False,
) -> None:
    """Say of each variable that touches communication who reads it here, what it does, and what is wrong with it.

    A checked table decides for the releases that it holds; for others the installed files are searched. Nothing is imported.

    Exit code: 0 if nothing is wrong, 1 if something is, 2 for bad input, 3 for our own failure, 130 if interrupted (143 by SIGTERM).
    A quote, a bracket or a here-document that is not closed counts as bad input: what follows it is not looked at.
    """
    from dataclasses import replace

    from unhang import fsio
    from unhang.facts import variable_readers, variables
    from unhang.facts.host import Host
    from unhang.facts.variable_readers import Reader
    from unhang.variables import examine

    chosen = language.chosen(lang)
    if libs is not None and not fsio.is_dir(libs):
        raise UnhangError(f"there is no directory {libs}", hint="unhang vars --libs /path/to/lib/python3.11/site-packages")
    host = Host()
    found = variable_readers.installed(host, str(libs.resolve()) if libs is not None else None)
    if libs is not None and not found:
        raise UnhangError(f"none of the libraries that read variables is installed in {libs}", cause="that is no site-packages directory")
    seen = variables.collect(host, {library.id: library.version for library in found})
    if libs is not None:
        # What this host has says nothing about the one that those libraries are for.
        seen = replace(seen, interfaces=None, running=None, adapters=None, gpus=None, installed=None, plugins=())
    reader = Reader(cache_folder())
    plugins = variable_readers.plugins(host) if libs is None else None
    scan = examine.scanner(found if plugins is None else (*found, plugins), reader)
    if show_all and what:
        raise UnhangError("--all lists every variable that is known: it takes no names and files")
    judged, missed = _judged(what or [], show_all, seen, scan)
    reader.save()
    from unhang.report.vars import redacted, render

    examined = redacted(examine.Examined(libraries=seen.libraries, variables=judged, not_examined=(*missed, *examine.unseen(judged, seen))))
    if as_json:
        json_errors.print_json(examined)
    else:
        render(examined, screen.console(), lang=chosen)
    if any(m.unread for m in missed):
        raise typer.Exit(EXIT_USER)
    raise typer.Exit(EXIT_FOUND if examined.something_is_wrong and not show_all else EXIT_OK)


def _judged(what: Sequence[str], show_all: bool, seen: Variables, scan: Scan) -> tuple[tuple[Judged, ...], list[NotExamined]]:
    """What was asked for, and what of several files could not be read. Raises UnhangError where none could."""
    from unhang import fsio
    from unhang.files import opening
    from unhang.model import NotExamined
    from unhang.variables import examine

    if show_all:
        return examine.of_names(examine.all_names(), seen, scan), []
    if not what:
        return examine.of_environment(seen, scan), []
    judged: list[Judged] = []
    missed: list[NotExamined] = []
    unread = 0
    for one in what:
        try:
            is_file = fsio.exists(one)
            if _NAME.fullmatch(one) and not is_file:
                judged += examine.of_names([one], seen, scan)
                continue
            given = _SETTING.fullmatch(one) is not None and not is_file
            parsed = opening.parse("settings.env", one) if given else _read(one)
        except UnhangError as e:
            if len(what) == 1:
                raise
            missed.append(NotExamined(what=one, why=str(e), unread=True))
            unread += 1
            continue
        judged += examine.in_file(parsed, "command line" if given else one, seen, scan)
        missed += _unclosed(one, parsed)
    if unread == len(what):
        raise UnhangError(f"none of the files could be read: {missed[0].why}")
    return tuple(judged), missed


def _read(name: str) -> Parsed:
    from unhang import fsio
    from unhang.files import opening
    from unhang.variables.known import is_known

    try:
        data = fsio.read_stdin().read(opening.MAX_BYTES + 1) if name == "-" else _of_file(Path(name))
    except OSError as e:
        capitals = f"unhang vars {name.upper()}" if _NAME.fullmatch(name.upper()) else "unhang vars train.sh"
        if isinstance(e, IsADirectoryError):
            inside = fsio.as_argument(f"{name.rstrip('/')}/train.sh")
            raise UnhangError(msg("{name} is a directory", name=name), hint=f"unhang vars {inside}") from e
        raise UnhangError(f"cannot read {name or 'a file without a name'}: {e.strerror}", hint=capitals) from e
    if len(data) > opening.MAX_BYTES:
        raise UnhangError(f"{name} is larger than {opening.MAX_BYTES >> 10} KiB: no script")
    if b"\0" in data:
        raise UnhangError(f"{name} is no text")
    parsed = opening.parse(name, data.decode("utf-8", errors="surrogateescape"))
    opening.check_number(sum(is_known(s.name) for s in parsed.settings))
    return parsed


def _of_file(path: Path) -> bytes:
    from unhang import fsio
    from unhang.files import opening

    # A shell's <(command) is one, too, and has a writer.
    if path.is_fifo() and path.parts[1:2] not in (("dev",), ("proc",)):
        raise UnhangError(f"{path} is a FIFO, not a file", hint=f"unhang vars - < {fsio.as_argument(path)}")
    with path.open("rb") as f:
        return f.read(opening.MAX_BYTES + 1)


def _unclosed(name: str, parsed: Parsed) -> Iterator[NotExamined]:
    from unhang.model import NotExamined

    for one in parsed.unclosed:
        yield NotExamined(what=f"{name} behind line {one.line + 1}", why=f"a {one.what} that begins there is not closed", unread=True)
