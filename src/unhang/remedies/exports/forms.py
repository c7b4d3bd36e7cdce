"""All forms by name, and how one is written."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace

from unhang.errors import UnhangError
from unhang.knowledge.settings.setting import Choice, Installed, Refused
from unhang.remedies.exports.carrying import TODAY, carried
from unhang.remedies.exports.exported import Exported, Form
from unhang.remedies.exports.layout import Layout

NAMES = (
    "accelerate",
    "deepspeed",
    "llamafactory",
    "lightning",
    "torchrun",
    "bash",
    "slurm",
    "kubernetes",
    "kubernetes-job",
    "ray",
    "skypilot",
    "dockerfile",
)


def form(name: str) -> Form:
    """Raises UnhangError that lists all."""
    wanted = name.strip().lower()
    if wanted not in NAMES:
        near = difflib.get_close_matches(wanted, NAMES, 1)
        raise UnhangError(f"there is no form {name!r}", cause=f"did you mean {near[0]}?" if near else None, hint=f"forms: {', '.join(NAMES)}")
    found: Form = importlib.import_module(f"unhang.remedies.exports.{wanted.replace('-', '_')}").FORM
    return found


def export(
    name: str,
    choice: Choice,
    layout: Layout,
    *,
    installed: Installed = TODAY,
    arguments: Mapping[str, str] | None = None,
    with_unhang: bool | None = None,
    suggested: Collection[str] = (),
) -> Exported:
    """`with_unhang`: None starts through `unhang run` only where something chosen needs its hook. `suggested`: keys that only a preset of ours chose.

    Raises UnhangError for what the form cannot be.
    """
    found = form(name)
    if found.needs_unhang and with_unhang is False:
        raise UnhangError(f"{name} starts through unhang run: its ways are what unhang's hook does", hint="unhang export torchrun --without-unhang")
    if not found.runs_unhang and with_unhang:
        raise UnhangError(f"{name} starts nothing by itself", hint="start it by unhang run")
    one = carried(
        {key: value for key, value in choice.items() if key != "processes"},
        installed,
        launcher=found.launcher,
        native=found.native,
        arguments=arguments,
        with_unhang=with_unhang,
        runs_unhang=found.runs_unhang,
        suggested=suggested,
    )
    one = replace(one, refused=(*one.refused, *_homeless(found, layout)))
    through = bool(with_unhang or one.sets or found.needs_unhang)
    text, companions = found.write(layout, one, through)
    return Exported(text=text, refused=one.refused, companions=companions)


def with_place_for(what: str, layout: Layout) -> tuple[str, ...]:
    """The forms in whose files "address", "port", "name" or "image" of a layout stands."""
    return tuple(name for name in NAMES if form(name).has_place_for(what, layout))


def _homeless(found: Form, layout: Layout) -> Iterator[Refused]:
    """Of where ranks meet, what was named and has no place in the file."""
    given = {"address": layout.address or None, "port": layout.given_port}
    for what, value in given.items():
        if value is not None and not found.has_place_for(what, layout):
            why = f"{found.name} names the master's {what} by itself"
            why_zh = f"{found.name} 自行确定主节点的{'地址' if what == 'address' else '端口'}"
            if layout.nodes == 1:
                why, why_zh = "one host needs none", "单台主机不需要"
            yield Refused(key=f"master {what}", value=value, why=why, why_zh=why_zh)
