"""A file with what does nothing commented out, each with its reason, and old names replaced by those of today. All else stays byte for byte."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from unhang.knowledge.variables.files.found import Found, Lines


@dataclass(frozen=True, kw_only=True)
class Change:
    """`new_name` replaces the name; without one the setting goes. `why` is one line."""

    why: str
    new_name: str = ""


@dataclass(frozen=True, kw_only=True)
class Rewritten:
    """`left` are changes that could not be made without touching what must stay."""

    text: str
    left: tuple[Found, ...] = ()


def rewrite(text: str, settings: Sequence[Found], changes: Mapping[int, Change]) -> Rewritten:
    """`changes` by the index of the setting."""
    lines = Lines(text=text)
    rows = [text[a:b] for a, b in pairwise([*lines.starts, len(text)])]
    ending = "\r\n" if rows and rows[0].endswith("\r\n") else "\n"
    edits: list[tuple[int, int, str]] = []
    above: dict[int, list[str]] = {}
    out: set[int] = set()
    passes: set[int] = set()
    left: list[Found] = []
    for i, change in sorted(changes.items()):
        one = settings[i]
        if change.new_name:
            edits.append((one.name_at, one.name_at + len(one.name), change.new_name))
            continue
        siblings = [j for j, s in enumerate(settings) if (s.first, s.last, s.alone) == (one.first, one.last, one.alone)]
        if one.alone and all(j in changes and not changes[j].new_name for j in siblings):
            out |= set(range(one.first, one.last + 1))
            if one.needs_pass:
                passes.add(one.last)
        elif one.by_line:
            left.append(one)
            continue
        else:
            edits.append((one.start, one.end, one.instead))
        above.setdefault(_before(rows, one.first), []).append(f"unhang: {one.name}: {change.why}")
    for row in sorted(above.keys() | out):
        start, indent = lines.starts[row], _indent(rows[row])
        said = "".join(f"{indent}# {' '.join(why.split())}{ending}" for why in above.get(row, ()))
        if said:
            edits.append((start, start, said))
        if row in out:
            edits.append((start + len(indent), start + len(indent), "# "))
    for row in passes:
        stop = lines.starts[row] + len(rows[row])
        closed = rows[row].endswith("\n")
        edits.append((stop, stop, f"{'' if closed else ending}{_indent(rows[row])}pass{ending if closed else ''}"))
    return Rewritten(text=_edited(text, edits), left=tuple(left))


def _edited(text: str, edits: list[tuple[int, int, str]]) -> str:
    kept, at = [], 0
    for start, end, new in sorted(edits, key=lambda e: (e[0], e[1])):
        start = max(start, at)
        kept += [text[at:start], new]
        at = max(at, end)
    return "".join([*kept, text[at:]])


def _before(rows: Sequence[str], row: int) -> int:
    """The line above which a comment can stand: not inside of a continued line."""
    while row > 0 and rows[row - 1].rstrip("\r\n").endswith("\\"):
        row -= 1
    return row


def _indent(row: str) -> str:
    found = re.match(r"[ \t]*", row)
    return found[0] if found else ""
