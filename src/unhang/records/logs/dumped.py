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
from unhang.records.logs.signature import Hit, Signature

if TYPE_CHECKING:
    from unhang.records.incident import Stacks

FAULTHANDLER = Signature(
    needle="(most recent call first):", pattern=r"^(?:(?:Current thread|Thread) 0x[0-9a-f]{4,16}\b|Stack \()", role="context", keep=256, newest=True
)
PY_SPY = Signature(
    needle='): "MainThread"', pattern=r'^Thread (?:0x)?[0-9A-Fa-f]{1,16} \([\w+]{1,20}\): "MainThread"', role="context", keep=256, newest=True
)
SIGNATURES = (FAULTHANDLER, PY_SPY)
# A log in which stacks stand is read once more, for the lines behind their heads.
MAX_BYTES = 256 * 1024 * 1024
_MAX_LINES = 4000
_HEAD = lazily(
    r"^(?P<id>(?:Current thread|Thread) (?:0x)?[0-9A-Fa-f]{1,16}\b|Stack) ?.{0,80}?(?:\(most recent call first\):|\([\w+]{1,20}\)(?:: \".*\")?$)"
)
_FRAME = lazily(r'^(?:  File ".+", line (?:\d+|\?\?\?) in |    \S.* \(.+:\d+\)$|  <no Python frame>$)')
# torch/distributed/debug: `dump_dir` writes files, /stacks and /pyspy_dump are pages.
_HEADING = lazily(r"^\s*(?:=== |<h2>)Rank (?P<rank>\d{1,9}): http\S{1,300}/handler/(?:dump_traceback|pyspy_dump)\b")


@dataclass(frozen=True, kw_only=True)
class Dumped:
    """The last stacks of each rank, and in how many dumps nothing tells whose they are. `left` are logs that are too large to be read once more."""

    stacks: Mapping[int, Stacks] = field(default_factory=dict)
    unplaced: int = 0
    left: tuple[str, ...] = ()


def read(hits: Iterable[Hit], paths: Mapping[str, Path]) -> Dumped:
    """The stacks whose heads were hit; `paths` are the files of sources that can be opened again."""
    heads: dict[str, dict[int, int | None]] = {}
    for hit in hits:
        if hit.signature in SIGNATURES and hit.line is not None:
            heads.setdefault(hit.source, {})[hit.line] = hit.rank
    found: dict[int, Stacks] = {}
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
        for rank, text in dumps:
            read = _parsed(text)
            if read is not None and rank is not None:
                found[rank] = read
            unplaced += read is not None and rank is None
    return Dumped(stacks=found, unplaced=unplaced, left=tuple(left))


def _dumps(found: Iterable[Line], ranks: Mapping[int, int | None]) -> list[tuple[int | None, list[str]]]:
    """The lines of each dump, with the rank of the heading above it, or that its first head was given; those of other writers may stand between."""
    first, last = min(ranks), max(ranks)
    of_heading: int | None = None
    done: list[tuple[int | None, list[str]]] = []
    open_: dict[int | None, tuple[int | None, list[str], set[str]]] = {}
    for line in found:
        if (heading := _HEADING.match(line.text)) is not None:
            of_heading = int(heading["rank"])
            done += [known[:2] for known in open_.values()]
            open_.clear()
        if line.number < first:
            continue
        if line.number > last + _MAX_LINES or (line.number > last and not open_):
            break
        head = _HEAD.match(line.text)
        known = open_.get(line.rank)
        if head is not None and (known is None or head["id"] in (*known[2], "Stack")):
            if known is not None:
                done.append(known[:2])
            told = ranks.get(line.number, line.rank) if of_heading is None else of_heading
            open_[line.rank] = (told, [line.text], {head["id"]})
        elif known is not None and head is not None:
            known[1].append(line.text)
            known[2].add(head["id"])
        elif known is not None and _FRAME.match(line.text):
            known[1].append(line.text)
        elif known is not None:
            done.append(known[:2])
            del open_[line.rank]
    return [*done, *(known[:2] for known in open_.values())]


def _parsed(text: list[str]) -> Stacks | None:
    from unhang.records import stacks

    try:
        whole = "\n".join(text)
        return stacks.from_faulthandler(whole) if "(most recent call first):" in text[0] else stacks.from_pyspy_text(whole)
    except RecordError:
        return None
