"""What a form writes, and what goes beside it where it has no comments of its own."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

from unhang.knowledge.settings.setting import Refused
from unhang.knowledge.text import Text
from unhang.remedies.exports.carrying import Carried
from unhang.remedies.exports.layout import Layout


@dataclass(frozen=True, kw_only=True)
class Exported:
    """`companions` are texts by what is put behind the file's name."""

    text: str
    refused: tuple[Refused, ...] = ()
    companions: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Form:
    """`launcher` is whose options and variables it carries; `native` are the settings that it has keys for, which need no hook.

    `needs_unhang`: it starts through `unhang run` whatever is chosen. `reads` is what of a layout it has a place for: "address", "port", "name",
    "image"; of one host `alone`.
    """

    name: str
    file: str
    title: Text
    launcher: str
    write: Callable[[Layout, Carried, bool], tuple[str, Mapping[str, str]]]
    native: Collection[str] = ()
    needs_unhang: bool = False
    runs_unhang: bool = True
    reads: Collection[str] = ()
    alone: Collection[str] = ()

    def has_place_for(self, what: str, layout: Layout) -> bool:
        return what in (self.reads if layout.nodes > 1 else self.alone)
