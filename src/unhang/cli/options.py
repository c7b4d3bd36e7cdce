"""What verbs share: options, those that were typed as words that start a command so again, and the cache directory."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Annotated

import typer

from unhang import cache
from unhang.errors import UnhangError
from unhang.report import screen


def _no_color(asked: bool) -> None:
    if asked:
        screen.without_colours()


# Read before the others, so that it holds for what is said about them. Nobody has to look at its value.
NoColor = Annotated[
    bool, typer.Option("--no-color", callback=_no_color, is_eager=True, help="No colours in what unhang says (NO_COLOR does the same).")
]
Lang = Annotated[str | None, typer.Option(help="en or zh.", show_default="from the locale")]
_ALONE = "Make the run directory accessible to you alone; by default others can read its logs only."
Private = Annotated[bool | None, typer.Option("--private/--no-private", help=_ALONE, show_default="no")]


def _causes(folders: list[Path] | None) -> None:
    from unhang.knowledge import site

    if missing := next((folder for folder in folders or () if not folder.is_dir()), None):
        raise UnhangError(f"{missing} is no directory", hint="--causes DIR with files of causes: unhang explain --new writes a first one")
    if folders:
        os.environ[site.VARIABLE] = os.pathsep.join(map(str, folders))


Causes = Annotated[
    list[Path] | None,
    typer.Option(
        "--causes",
        metavar="DIR",
        callback=_causes,
        is_eager=True,
        help="Also use the causes in DIR (*.toml), as those of ~/.config/unhang/causes.",
    ),
]


def duration(least_s: float) -> Callable[[str | float], float]:
    """Reads a time as --timeout takes it: 600, 90s, 10m, 2h."""

    def read(given: str | float) -> float:
        from unhang.settings.setting import seconds

        try:
            return seconds(str(given), least_s)
        except ValueError as e:
            raise typer.BadParameter(f"{given}: {e}") from e

    return read


def percentage(given: str | float) -> float:
    """Reads "1%" or 1 as 0.01. Raises BadParameter for what is not between 0 and 100."""
    try:
        value = float(str(given).removesuffix("%")) / 100
    except ValueError:
        value = 0.0
    if not 0 < value < 1:
        raise typer.BadParameter(f"{given}: it is a percentage above 0 and below 100, such as 1%")
    return value


def words(context: typer.Context, *, without: Collection[str] = ()) -> tuple[str, ...]:
    """Those that were typed, by their shortest names, in the order of `--help`; `without` names parameters. Times are in seconds."""
    typed = ((p, str(p.name)) for p in context.command.params if p.name not in without and is_typed(context, str(p.name)))
    return tuple(word for p, name in typed for word in _words(p.opts, p.secondary_opts, context.params[name]))


def is_typed(context: typer.Context, name: str) -> bool:
    """Whether a parameter stands on the command line."""
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def _words(names: Sequence[str], negated: Sequence[str], value: object) -> Iterator[str]:
    if isinstance(value, bool):
        yield min(names if value else negated, key=len)
        return
    for one in value if isinstance(value, (list, tuple)) else (value,):
        yield min(names, key=len)
        # A float of a million seconds would go over to exponents.
        yield f"{one:.12g}" if isinstance(one, float) else str(one)


def cache_folder() -> Path | None:
    """The user's cache directory; None if no variable names one, or, with a note, if another user may have filled it."""
    path, wrong = cache.directory()
    if wrong is not None:
        screen.say_once(wrong)
    return path
