"""A file with what does nothing commented out, each with its reason, and old names replaced by those of today. All else stays byte for byte."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING

from unhang.knowledge.variables.files.found import Block, Found, Lines, Parsed

if TYPE_CHECKING:
    from unhang.knowledge.variables.judge import Judged

_USED = re.compile(r"(?<!\w)[A-Za-z_]\w*(?!\w|\+?=)")
_COMMA = re.compile(",")
# A comment: the first character of its line or behind a space.
_COMMENT = re.compile(r"(?:^|(?<=[ \t]))#.*", re.MULTILINE)


@dataclass(frozen=True, kw_only=True)
class Change:
    """`new_name` replaces the name; without one the setting goes. `why` is one line."""

    why: str
    new_name: str = ""


@dataclass(frozen=True, kw_only=True)
class Rewritten:
    """`left` are changes that could not be made without touching what must stay, `gone` the names that were taken out ("") or replaced."""

    text: str
    left: tuple[Found, ...] = ()
    gone: Mapping[str, str] = field(default_factory=dict)


def corrected(text: str, parsed: Parsed, judged: Iterable[tuple[int, Judged]], language: str) -> Rewritten:
    """The text of a file with old names replaced and what does nothing commented out. A name that was probably meant is said, never written."""
    changes: dict[int, Change] = {}
    pairs = tuple(judged)
    names = {j.name for _, j in pairs}
    for i, one in pairs:
        why = next((r.says.of(language) for r in one.remarks if r.kind in ("not-read", "typo", "renamed")), "")
        if one.state == "not-read" and why:
            changes[i] = Change(why=why)
        elif one.now and why:
            changes[i] = Change(why=why, new_name="" if one.now in names else one.now)
    return rewrite(text, parsed.settings, changes)


def still_used(done: Rewritten, parsed: Parsed) -> Iterator[tuple[str, int]]:
    """Names that are gone and still stand in the new text, `parsed`, with their lines: `echo $A`, `-x A`, `os.getenv("A")`."""
    lines = Lines(text=done.text)
    bare = _COMMENT.sub(lambda c: " " * len(c[0]), done.text)
    spans: dict[str, list[range]] = {}
    for s in parsed.settings:
        spans.setdefault(s.name, []).append(range(s.start, s.end))
    rows: dict[str, set[int]] = {name: set() for name in done.gone if name not in spans}
    for used in _USED.finditer(bare):
        # `export NEW=${OLD:-1}` takes what was set before.
        if used[0] in rows and not any(used.start() in span for span in spans.get(done.gone[used[0]], ())):
            rows[used[0]].add(lines.of(used.start()))
    yield from ((name, row) for name in sorted(rows) for row in sorted(rows[name]))


def rewrite(text: str, settings: Sequence[Found], changes: Mapping[int, Change]) -> Rewritten:
    """`changes` by the index of the setting."""
    lines = Lines(text=text)
    rows = [text[a:b] for a, b in pairwise([*lines.starts, len(text)])]
    ending = "\r\n" if rows and rows[0].endswith("\r\n") else "\n"
    edits: list[tuple[int, int, str]] = []
    above: dict[int, list[str]] = {}
    out: set[int] = set()
    emptied: dict[Block, set[int]] = {}
    left: list[Found] = []
    gone: dict[str, str] = {}
    # Where the first item stands that a list keeps.
    stays: dict[tuple[int, int], int | None] = {}

    going = {i for i, change in changes.items() if not change.new_name}
    on_lines, in_statement, in_list = (_grouped(keys) for keys in _keys(settings))
    lines_go, statements_go = ({key for key, members in groups.items() if members <= going} for groups in (on_lines, in_statement))

    for i, change in sorted(changes.items()):
        one = settings[i]
        if change.new_name:
            edits.append((one.name_at, one.name_at + len(one.name), change.new_name))
            gone[one.name] = change.new_name
            continue
        if one.alone and (one.first, one.last) in lines_go:
            out |= set(range(one.first, one.last + 1))
            if one.block is not None:
                emptied.setdefault(one.block, set()).add(one.last)
        elif one.listed is not None:
            if one.listed not in stays:
                start, end = one.listed
                leaving = {settings[j].start for j in in_list[one.listed] & going}
                stays[one.listed] = next((at for at in (start, *(c.end() for c in _COMMA.finditer(text, start, end))) if at not in leaving), None)
            kept = stays[one.listed]
            if kept is None:
                left.append(one)
                continue
            # With the comma ahead of it, or behind it where nothing ahead of it stays.
            edits.append((one.start - 1, one.end, "") if kept < one.start else (one.start, one.end + 1, ""))
        elif one.by_line:
            left.append(one)
            continue
        elif one.among is not None and one.among in statements_go:
            edits.append((*one.among, ":"))
        else:
            edits.append((one.start, one.end, ""))
        gone[one.name] = ""
        above.setdefault(_before(rows, one.first), []).append(f"unhang: {one.name}: {change.why}")
    for block, ends in emptied.items():
        if len(ends) == block.statements:
            row = max(ends)
            stop = lines.starts[row] + len(rows[row])
            closed = rows[row].endswith("\n")
            edits.append((stop, stop, f"{'' if closed else ending}{_indent(rows[row])}{block.filler}{ending if closed else ''}"))
    for row in sorted(above.keys() | out):
        start, indent = lines.starts[row], _indent(rows[row])
        said = "".join(f"{indent}# {' '.join(why.split())}{ending}" for why in above.get(row, ()))
        if said:
            edits.append((start, start, said))
        if row in out:
            edits.append((start + len(indent), start + len(indent), "# "))
    return Rewritten(text=_edited(text, edits), left=tuple(left), gone=gone)


_Key = tuple[int, int] | None


def _keys(settings: Sequence[Found]) -> tuple[list[_Key], list[_Key], list[_Key]]:
    """Of each setting the lines that it shares with its likes alone, the statement and the list that it is a part of."""
    return [(s.first, s.last) if s.alone else None for s in settings], [s.among for s in settings], [s.listed for s in settings]


def _grouped(keys: Sequence[_Key]) -> dict[tuple[int, int], set[int]]:
    groups: dict[tuple[int, int], set[int]] = {}
    for i, key in enumerate(keys):
        if key is not None:
            groups.setdefault(key, set()).add(i)
    return groups


def _edited(text: str, edits: list[tuple[int, int, str]]) -> str:
    kept, at = [], 0
    for start, end, new in sorted(dict.fromkeys(edits), key=lambda e: (e[0], e[1])):
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
