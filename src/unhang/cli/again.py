"""The options that a command was started with, as words that start it so again."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

import typer


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
