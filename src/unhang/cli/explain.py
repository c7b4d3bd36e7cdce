"""unhang explain: what is known of a cause."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from unhang.cli import json_errors
from unhang.cli.options import Causes, Lang, NoColor
from unhang.errors import EXIT_FOUND, EXIT_OK, UnhangError
from unhang.i18n import msg
from unhang.report import language, screen

if TYPE_CHECKING:
    from unhang.knowledge.cause import Cause

EXPLAIN_SCHEMA = "unhang/explain/1"
_TOLD = ("id", "role", "title", "what", "why", "explain", "remedies", "leads_to", "mistaken_for", "sources")


def register(app: typer.Typer) -> None:
    app.command("explain")(explain)


def _complete(begun: str) -> list[str]:
    from unhang.knowledge import catalogue

    return [id for id in catalogue.load() if id.startswith(begun)]


def explain(
    cause: Annotated[
        str | None, typer.Argument(metavar="CAUSE", autocompletion=_complete, help="The id that a verdict names, for example process-stuck.")
    ] = None,
    check: Annotated[Path | None, typer.Option(metavar="FILE", help="Say what is wrong with a file of a cause, and run the tests in it.")] = None,
    new: Annotated[
        list[str] | None,
        typer.Option("--new", metavar="LINE", help="Print a first file for a cause of your own, from a line of a log; also several times."),
    ] = None,
    causes: Causes = None,
    show_list: Annotated[bool, typer.Option("--list", help="List all causes.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False,
    lang: Lang = None,
    no_color: NoColor = False,
) -> None:
    """Print what is known of a cause: what it is, why it happens, how it looks, what to do, what it is mistaken for."""
    from rich.markdown import Markdown

    from unhang.knowledge import catalogue
    from unhang.report.cause_page import for_terminal, list_for_terminal

    if check is not None or new:
        if cause is not None or show_list or (check is not None and new):
            raise UnhangError("--check and --new go alone")
        raise typer.Exit(_check(check) if check is not None else _draft(new or []))
    chosen = language.chosen(lang)
    console = screen.console()
    if cause is None and not show_list:
        raise UnhangError("name a cause", hint="unhang explain --list")
    is_unknown = cause is not None and cause.strip().lower() == "unknown"
    if as_json:
        if cause is None:
            told: dict[str, Any] = {"causes": [_described(one) for one in catalogue.load().values()]}
        elif is_unknown:
            told = {"id": "unknown", "explain": {lang: language.LABELS[lang]["unknown"] for lang in ("en", "zh")}}
        else:
            told = _described(catalogue.get(cause))
        json_errors.print_json({"schema": EXPLAIN_SCHEMA, **told})
        return
    if show_list or cause is None:
        console.print_all(list_for_terminal(catalogue.load().values(), chosen, screen.width(console)))
        return
    if is_unknown:
        console.print(f"unknown: {language.LABELS[chosen]['unknown']}")
        return
    page = Markdown(for_terminal(catalogue.get(cause), chosen))
    if console.is_terminal:
        console.print(page)
        return
    with console.capture() as printed:
        console.print(page)
    # rich fills lines up to the width.
    screen.echo("".join(f"{line.rstrip()}\n" for line in printed.get().splitlines()), end="")


def _check(path: Path) -> int:
    from unhang.knowledge import site

    if not path.is_file():
        raise UnhangError(f"{path} is no file", hint="unhang explain --check causes/my-cause.toml")
    problems = list(site.check(path))
    for problem in problems:
        screen.echo(problem)
    if not problems:
        screen.echo(f"{path}: nothing is wrong; it is {site.PREFIX}{path.stem}")
    return EXIT_FOUND if problems else EXIT_OK


def _draft(lines: list[str]) -> int:
    from unhang.knowledge import site

    screen.echo(site.draft([one for line in lines for one in line.splitlines()]), end="")
    return EXIT_OK


def _described(cause: Cause) -> dict[str, Any]:
    signatures = [{"needle": s.needle, "says": msg(s.says) if s.says else None} for s in cause.signatures]
    return {**{field: getattr(cause, field) for field in _TOLD}, "signatures": signatures}
