"""Elements of a page.

Every text and every attribute goes through here, and comes out as text: nothing that stood in a log can become markup.
"""

from __future__ import annotations

import html
import json
from collections.abc import Iterable
from typing import Union

_VOID = frozenset({"meta", "input", "br", "hr"})


class Markup(str):
    """Text that is markup already. Made by this module only."""

    __slots__ = ()


Child = Union[str, None, Iterable["Child"]]  # noqa: UP007 (it is evaluated on Python 3.10)


def element(name: str, /, *children: Child, **attributes: str | bool | int | None) -> Markup:
    """One element: `class_` stands for class, `aria_label` for aria-label; True gives a bare attribute, None and False none."""
    written = "".join(
        _attribute(key.strip("_").replace("_", "-"), value) for key, value in attributes.items() if value is not None and value is not False
    )
    if name in _VOID:
        return Markup(f"<{name}{written}>")
    return Markup(f"<{name}{written}>{''.join(_flat(children))}</{name}>")


def many(*children: Child) -> Markup:
    """Elements one after another."""
    return Markup("".join(_flat(children)))


def data(id: str, value: object) -> Markup:
    """A block of JSON for the page's scripts; no text in it can end the block."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    for char in "<>&\u2028\u2029":
        text = text.replace(char, f"\\u{ord(char):04x}")
    return Markup(f'<script type="application/json" id="{id}">{text}</script>')


def column(id: str, base64: str) -> Markup:
    """A block of packed numbers."""
    assert "<" not in base64
    return Markup(f'<script type="application/octet-stream" id="{id}">{base64}</script>')


def _attribute(name: str, value: str | bool | int) -> str:
    return f" {name}" if value is True else f' {name}="{html.escape(str(value), quote=True)}"'


def _flat(children: Iterable[Child]) -> Iterable[str]:
    for child in children:
        if child is None:
            continue
        if isinstance(child, Markup):
            yield child
        elif isinstance(child, str):
            yield html.escape(child, quote=False)
        else:
            yield from _flat(child)
