"""The words that start a training in each launcher's way."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from unhang.remedies.exports.carrying import Carried
from unhang.remedies.exports.layout import Layout
from unhang.remedies.exports.rendering import render

SCRIPT = ("train.py",)


def script(layout: Layout) -> tuple[str, ...]:
    return layout.command or SCRIPT


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
