"""Python stacks that stand in a log: of faulthandler (a signal, a fatal error, `dump_traceback_later`), or of a py-spy that somebody called.

Each writes one thread after the other, the innermost frame first. What may surprise: faulthandler names no thread, the main one is that without
threading's bootstrap; two dumps may stand directly behind each other, and are told apart because a thread comes again. torch's debug server (2.10
and later) collects the same from all ranks, in a file for each point in time or on a page, with a heading before the stacks of each rank.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from unhang.errors import RecordError
from unhang.patterns import lazily
from unhang.records.logs.line import Line, lines
from unhang.records.logs.said import Stack
from unhang.records.logs.signature import Hit, Signature

if TYPE_CHECKING:
    from unhang.records.incident import Stacks

FAULTHANDLER = Signature(
    needle="(most recent call first):", pattern=r"^(?:(?:Current thread|Thread) 0x[0-9a-f]{4,16}\b|Stack \()", role="context", keep=256, newest=True
)
PY_SPY = Signature(
    needle='): "MainThread"', pattern=r'^Thread (?:0x)?[0-9A-Fa-f]{1,16} \([\w+]{1,20}\): "MainThread"', role="context", keep=256, newest=True
)
# Of a process that has no names for its threads.
_UNNAMED = r"^Thread (?:0x)?[0-9A-Fa-f]{1,16} \((?:idle|active)(?:\+gil)?\)$"
NAMELESS = tuple(
    Signature(needle=f"({state})", pattern=_UNNAMED, role="context", keep=256, newest=True) for state in ("idle", "active", "idle+gil", "active+gil")
)
SIGNATURES = (FAULTHANDLER, PY_SPY, *NAMELESS)
# A log in which stacks stand is read once more, for the lines behind their heads.
MAX_BYTES = 256 * 1024 * 1024
_MAX_LINES = 4000
_HEAD = lazily(
    r"^(?P<id>(?:Current thread|Thread) (?:0x)?[0-9A-Fa-f]{1,16}\b|Stack) ?.{0,80}?(?:\(most recent call first\):|\([\w+]{1,20}\)(?:: \".*\")?$)"
)
_FRAME = lazily(r'^(?:  File ".+", line (?:\d+|\?\?\?) in |    \S.* \(.+:\d+\)$|  <no Python frame>$)')
_SPIED = lazily(r'^Thread (?:0x)?[0-9A-Fa-f]{1,16} \((?P<state>[\w+]{1,20})\)(?:: "(?P<name>.*)")?$')
# What Python prints before the stacks of a process that is ending by a signal, with lines between.
_CRASHES = lazily(r"Fatal Python error: ")
_BEHIND_CRASH = 4
# torch/distributed/debug: `dump_dir` writes files, /stacks and /pyspy_dump are pages.
_HEADING = lazily(r"^\s*(?:=== |<h2>)Rank (?P<rank>\d{1,9}): http\S{1,300}/handler/(?:dump_traceback|pyspy_dump)\b")


@dataclass(frozen=True, kw_only=True)
class Dumped:
    """The last stacks of each rank, and in how many dumps nothing tells whose they are. `left` are logs that are too large to be read once more.

    `standing` are the main threads: the last of each rank, and those of nobody known, without what a process wrote that was crashing.
    """

    stacks: Mapping[int, Stacks] = field(default_factory=dict)
    standing: tuple[Stack, ...] = ()
    unplaced: int = 0
    left: tuple[str, ...] = ()


def read(hits: Iterable[Hit], paths: Mapping[str, Path]) -> Dumped:
    """The stacks whose heads were hit; `paths` are the files of sources that can be opened again."""
    heads: dict[str, dict[int, int | None]] = {}
    for hit in hits:
        if hit.signature in SIGNATURES and hit.line is not None:
            heads.setdefault(hit.source, {})[hit.line] = hit.rank
    found: dict[int, Stacks] = {}
    standing: dict[int, Stack] = {}
    nobodys: list[Stack] = []
    unplaced = 0
    left: list[str] = []
    for source, ranks in heads.items():
        path = paths.get(source)
        try:
            if path is None or path.stat().st_size > MAX_BYTES:
                left.append(source)
                continue
            dumps = _dumps(lines(path), ranks)
        except (OSError, RecordError):
            left.append(source)
            continue
        for dump in dumps:
            if (read := _parsed(dump.text)) is None:
                continue
            stack = None if dump.fatal else _standing(source, dump, read)
            if dump.rank is None:
                unplaced += 1
                nobodys += [stack] if stack is not None else []
                continue
            found[dump.rank] = read
            if stack is not None:
                standing[dump.rank] = stack
    return Dumped(stacks=found, standing=(*(standing[r] for r in sorted(standing)), *nobodys), unplaced=unplaced, left=tuple(left))


@dataclass(kw_only=True)
class _Dump:
    """The lines of one dump from `line` to `end`; `ids` are the threads in it."""

    rank: int | None
    line: int
    end: int
    text: list[str]
    ids: set[str]
    fatal: bool

    def add(self, line: Line) -> None:
        self.text.append(line.text)
        self.end = line.number


def _standing(source: str, dump: _Dump, read: Stacks) -> Stack | None:
    from unhang.records import stacks

    frames = stacks.main_thread(read)
    if not frames:
        return None
    heads = [m for m in map(_SPIED.match, dump.text) if m is not None]
    main = next((m for m in heads if m["name"] == "MainThread"), heads[0] if len(heads) == 1 else None)
    executes = None if main is None else main["state"].startswith("active")
    return Stack(source=source, line=dump.line, end=dump.end, rank=dump.rank, frames=frames, executes=executes)


def _dumps(found: Iterable[Line], ranks: Mapping[int, int | None]) -> list[_Dump]:
    """Each dump, with the rank of the heading above it, or that its first head was given; lines of other writers may stand between."""
    first, last = min(ranks), max(ranks)
    of_heading: int | None = None
    done: list[_Dump] = []
    open_: dict[int | None, _Dump] = {}
    crashed: dict[int | None, int] = {}
    for line in found:
        if (heading := _HEADING.match(line.text)) is not None:
            of_heading = int(heading["rank"])
            done += open_.values()
            open_.clear()
        if _CRASHES.match(line.text):
            crashed[line.rank] = line.number
        if line.number < first:
            continue
        if line.number > last + _MAX_LINES or (line.number > last and not open_):
            break
        head = _HEAD.match(line.text)
        known = open_.get(line.rank)
        if head is not None and (known is None or head["id"] in (*known.ids, "Stack")):
            if known is not None:
                done.append(known)
            told = ranks.get(line.number, line.rank) if of_heading is None else of_heading
            fatal = 0 <= line.number - crashed.get(line.rank, -_BEHIND_CRASH) < _BEHIND_CRASH
            open_[line.rank] = _Dump(rank=told, line=line.number, end=line.number, text=[line.text], ids={head["id"]}, fatal=fatal)
        elif known is not None and head is not None:
            known.add(line)
            known.ids.add(head["id"])
        elif known is not None and _FRAME.match(line.text):
            known.add(line)
        elif known is not None:
            done.append(known)
            del open_[line.rank]
    return [*done, *open_.values()]


def _parsed(text: list[str]) -> Stacks | None:
    from unhang.records import stacks

    try:
        whole = "\n".join(text)
        return stacks.from_faulthandler(whole) if "(most recent call first):" in text[0] else stacks.from_pyspy_text(whole)
    except RecordError:
        return None
