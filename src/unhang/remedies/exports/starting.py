"""The words that start a training in each launcher's way."""

from __future__ import annotations

from collections.abc import Sequence

from unhang.remedies.exports.carrying import Carried
from unhang.remedies.exports.layout import Layout

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
