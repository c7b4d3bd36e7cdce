"""`ENV A=b C="d e"` and `ENV A b` of Dockerfiles."""

from __future__ import annotations

import re

from unhang.knowledge.variables.files.found import Found, Lines, Parsed, lines_of_comments
from unhang.knowledge.variables.files.shell_words import unquoted

_INSTRUCTION = re.compile(r"[ \t]*ENV[ \t]+", re.IGNORECASE)
_PAIR = re.compile(
    r"(?P<space>(?:[ \t]|\\\r?\n(?:[ \t]*#.*\n)*)*)(?P<name>[A-Za-z_][\w.-]*)=(?P<value>(?:\"(?:[^\"\\]|\\.)*\"|'[^']*'|\\[^\n\r]|[^\s\\\"'])*)"
)
_OLD = re.compile(r"(?P<name>[A-Za-z_]\w*)[ \t]+(?P<value>.*)")


def parse(text: str) -> Parsed:
    lines = Lines(text=text)
    settings: list[Found] = []
    row = 0
    rows = text.split("\n")
    while row < len(rows):
        first = row
        while row < len(rows) - 1 and (rows[row].rstrip().endswith("\\") or (row > first and rows[row].lstrip().startswith("#"))):
            row += 1
        instruction = _INSTRUCTION.match(rows[first])
        if instruction is not None and not rows[first].lstrip().startswith("#"):
            begin = lines.starts[first] + instruction.end()
            settings += _of_env(text, begin, lines.starts[row] + len(rows[row]), first, row)
        row += 1
    return Parsed(settings=tuple(settings), commented=lines_of_comments(text))


def _of_env(text: str, begin: int, end: int, first: int, last: int) -> list[Found]:
    found = []
    at = begin
    while pair := _PAIR.match(text, at, end):
        start, stop = pair.start(), pair.end()
        if start == begin:
            # The first one takes the space behind it along.
            start = pair.start("name")
            stop = after.end() if (after := re.compile(r"[ \t]+").match(text, stop, end)) else stop
        found.append(
            Found(
                name=pair["name"],
                value=unquoted(pair["value"]),
                name_at=pair.start("name"),
                start=start,
                end=stop,
                first=first,
                last=last,
                alone=True,
            )
        )
        at = pair.end()
    if not found and (old := _OLD.match(text, begin, end)):
        value = old["value"].strip()
        found.append(Found(name=old["name"], value=value, name_at=old.start(), start=old.start(), end=end, first=first, last=last, alone=True))
    return found
