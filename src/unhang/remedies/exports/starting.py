"""The words that start a training in each launcher's way."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from unhang.errors import UnhangError
from unhang.remedies.exports.carrying import Carried
from unhang.remedies.exports.layout import Layout
from unhang.remedies.exports.rendering import render

SCRIPT = ("train.py",)


def script(layout: Layout) -> tuple[str, ...]:
    """The script with its arguments. Raises UnhangError for what torchrun and its like would hand to Python in vain."""
    first, *more = layout.command or SCRIPT
    if first == "-m":
        if not more or not more[0] or more[0].startswith("-"):
            raise UnhangError("-m without a module: there is nothing to start", hint="unhang export FORM -- -m package.train --lr 1e-4")
    elif first.startswith("-") or not first.endswith(".py"):
        hint = "unhang export FORM -- train.py --lr 1e-4, or -- -m package.train"
        raise UnhangError(f"{first!r} is no script of Python: a form starts a file that ends in .py, or a module", hint=hint)
    return first, *more


def through_unhang(carried: Carried, through: bool) -> tuple[str, ...]:
    """`unhang run --set KEY=VALUE`, or nothing."""
    if not through:
        return ()
    return ("unhang", "run", *(word for one in carried.sets for word in ("--set", one)))


def options(carried: Carried, *, leave_out: Sequence[str] = ()) -> tuple[str, ...]:
    return tuple(word for name, value in carried.options if name not in leave_out for word in (name, value))


def env(carried: Carried) -> tuple[tuple[str, str, str], ...]:
    """Name, value, and the setting that it is for."""
    return tuple((name, value, carried.why[name]) for name, value in carried.env.items())


def by_torchrun(template: str) -> Callable[[Layout, Carried, bool], tuple[str, Mapping[str, str]]]:
    """What writes a file in which torchrun is started on each host."""

    def write(layout: Layout, carried: Carried, through: bool) -> tuple[str, Mapping[str, str]]:
        return render(
            template,
            layout=layout,
            carried=carried,
            env=env(carried),
            start=through_unhang(carried, through),
            options=options(carried),
            script=(*script(layout), *carried.arguments),
        ), {}

    return write
