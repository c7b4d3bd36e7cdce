"""A file with what does nothing commented out, each with its reason, and old names replaced by those of today. All else stays byte for byte."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Literal

from unhang.knowledge.variables.files.found import Block, Found, Lines, Parsed

if TYPE_CHECKING:
    from unhang.knowledge.variables.judge import Judged

# What keeps a change from being made. "line": other things stand on its line. "list": nothing else stands in its list. "runs": a command runs for
# its value. "used": the file uses it.
Why = Literal["line", "list", "runs", "used"]
# `$A`, `${A`, and A where it is not set.
_NAMED = re.compile(r"(?P<taken>\$\{?[!#]?)?(?<![A-Za-z0-9_])(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?P<sets>\+?=(?!=))?")
_ROUNDS = 8


@dataclass(frozen=True, kw_only=True)
class Change:
    """`new_name` replaces the name; without one the setting goes. `why` is one line."""

    why: str
    new_name: str = ""


@dataclass(frozen=True, kw_only=True)
class Left:
    """A setting that stays though it should not. `line` counts from 0: its own, or for "used" the one that uses it, in the corrected file."""

    name: str
    why: Why
    line: int


@dataclass(frozen=True, kw_only=True)
class Rewritten:
    """`left` are changes that could not be made without touching what must stay."""

    text: str
    left: tuple[Left, ...] = ()


@dataclass(kw_only=True)
class _Plan:
    """`out` are lines to comment out, `above` comments by the line that they stand above, `cut` what goes, from character to character."""

    edits: list[tuple[int, int, str]] = field(default_factory=list)
    out: set[int] = field(default_factory=set)
    above: dict[int, list[str]] = field(default_factory=dict)
    cut: list[tuple[int, int]] = field(default_factory=list)
    left: list[Left] = field(default_factory=list)


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
    return rewrite(text, parsed, changes)


def rewrite(text: str, parsed: Parsed, changes: Mapping[int, Change]) -> Rewritten:
    """`changes` by the index of the setting. A name that the rest of the file uses keeps its settings: under `set -u` it would fail without them."""
    settings = parsed.settings
    lines = Lines(text=text)
    rows = [text[a:b] for a, b in pairwise([*lines.starts, len(text)])]
    runs = {i: settings[i].first for i, change in changes.items() if settings[i].acts and not change.new_name}
    used_at: dict[int, int] = {}
    named = tuple(_named(text, parsed, {settings[i].name for i in changes}))
    turn = 0
    while True:
        making = {i: change for i, change in changes.items() if i not in runs and i not in used_at}
        plan = _planned(text, settings, making, lines, rows)
        # What uses it may go, too, unless that stays for a reason of its own; after so many turns each use counts.
        used = _used(named, settings, making, plan, lines) if turn < _ROUNDS else {name: at for at, name in reversed(named)}
        still = {i: lines.of(used[settings[i].name]) for i in making if settings[i].name in used}
        if not still:
            break
        used_at |= still
        turn += 1
    edits = _edits(plan, lines, rows)

    def now(row: int) -> int:
        at = lines.starts[row] + len(_indent(rows[row]))
        return row + sum(new.count("\n") - text.count("\n", start, end) for start, end, new in edits if start <= at)

    left = [
        *(Left(name=settings[i].name, why="runs", line=now(row)) for i, row in runs.items()),
        *(Left(name=settings[i].name, why="used", line=now(row)) for i, row in used_at.items()),
        *(replace(one, line=now(one.line)) for one in plan.left),
    ]
    return Rewritten(text=_edited(text, edits), left=tuple(left))


def _named(text: str, parsed: Parsed, names: set[str]) -> Iterator[tuple[int, str]]:
    """Where a name stands outside of comments, other than to be set."""
    own = {s.name_at for s in parsed.settings}
    comments = [start for start, _ in parsed.commented]
    for m in _NAMED.finditer(text):
        at = m.start("name")
        if m["name"] not in names or (m["sets"] and not m["taken"]) or at in own:
            continue
        comment = bisect_right(comments, at) - 1
        if comment < 0 or parsed.commented[comment][1] <= at:
            yield at, m["name"]


def _used(named: Iterable[tuple[int, str]], settings: Sequence[Found], making: Mapping[int, Change], plan: _Plan, lines: Lines) -> dict[str, int]:
    """Names that are to go and that what stays uses, with the place."""
    going = {settings[i].name for i in making}
    cut = sorted([*plan.cut, *((lines.starts[row], lines.starts[row + 1] if row + 1 < len(lines.starts) else len(lines.text)) for row in plan.out)])
    starts = [start for start, _ in cut]
    # `export NEW=${OLD:-1}` takes what was set before.
    own = {(settings[i].name, at) for i, change in making.items() if change.new_name for at in range(settings[i].start, settings[i].end)}
    used: dict[str, int] = {}
    for at, name in named:
        if name in going and name not in used and (name, at) not in own:
            n = bisect_right(starts, at) - 1
            if n < 0 or cut[n][1] <= at:
                used[name] = at
    return used


def _planned(text: str, settings: Sequence[Found], changes: Mapping[int, Change], lines: Lines, rows: Sequence[str]) -> _Plan:
    ending = _ending(rows)
    plan = _Plan()
    emptied: dict[Block, set[int]] = {}
    groups: dict[object, list[int]] = {}
    for j, s in enumerate(settings):
        for key in _groups(s):
            groups.setdefault(key, []).append(j)

    def goes(j: int) -> bool:
        return j in changes and not changes[j].new_name

    for i, change in sorted(changes.items()):
        one = settings[i]
        if change.new_name:
            plan.edits.append((one.name_at, one.name_at + len(one.name), change.new_name))
            continue
        span, filler = (one.start, one.end), ""
        if one.alone and all(goes(j) for j in groups[("lines", one.first, one.last)]):
            plan.out |= set(range(one.first, one.last + 1))
            if one.block is not None:
                emptied.setdefault(one.block, set()).add(one.last)
        else:
            if one.by_line:
                plan.left.append(Left(name=one.name, why="line", line=one.first))
                continue
            if one.item is not None:
                items = groups[("items", one.item.of)]
                if not one.item.others and all(goes(j) for j in items):
                    plan.left.append(Left(name=one.name, why="list", line=one.first))
                    continue
                is_behind = one.item.others_ahead or any(not goes(j) and settings[j].name_at < one.name_at for j in items)
                chosen = one.item.ahead if is_behind else one.item.behind
                if chosen is None:
                    plan.left.append(Left(name=one.name, why="line", line=one.first))
                    continue
                span = chosen
            elif one.among is not None and all(goes(j) for j in groups[("among", one.among)]):
                span, filler = one.among, ":"
            plan.edits.append((*span, filler))
            plan.cut.append(span)
        row = one.above if one.above is not None else _before(rows, one.first)
        plan.above.setdefault(row, []).append(f"unhang: {one.name}: {change.why}")
    for block, ends in emptied.items():
        if len(ends) == block.statements:
            row = max(ends)
            stop = lines.starts[row] + len(rows[row])
            closed = rows[row].endswith("\n")
            plan.edits.append((stop, stop, f"{'' if closed else ending}{_indent(rows[row])}{block.filler}{ending if closed else ''}"))
    return plan


def _groups(one: Found) -> Iterator[object]:
    """Those that go together or not at all."""
    if one.alone:
        yield "lines", one.first, one.last
    if one.among is not None:
        yield "among", one.among
    if one.item is not None:
        yield "items", one.item.of


def _edits(plan: _Plan, lines: Lines, rows: Sequence[str]) -> list[tuple[int, int, str]]:
    edits = list(dict.fromkeys(plan.edits))
    ending = _ending(rows)
    for row in sorted(plan.above.keys() | plan.out):
        start, indent = lines.starts[row], _indent(rows[row])
        said = "".join(f"{indent}# {' '.join(why.split())}{ending}" for why in plan.above.get(row, ()))
        if said:
            edits.append((start, start, said))
        if row in plan.out:
            edits.append((start + len(indent), start + len(indent), "# "))
    return edits


def _ending(rows: Sequence[str]) -> str:
    return "\r\n" if rows and rows[0].endswith("\r\n") else "\n"


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
