"""Python stacks that stand in a log: of faulthandler (a signal, a fatal error, `dump_traceback_later`), or of a py-spy that somebody called.

Each writes one thread after the other, the innermost frame first. What may surprise: faulthandler names no thread, the main one is that without
threading's bootstrap; two dumps may stand directly behind each other, and are told apart because a thread comes again. torch's debug server (2.10
and later) collects the same from all ranks, in a file for each point in time or on a page, with a heading before the stacks of each rank.
faulthandler prints no time, and a program may call it whenever it likes: how old a stack is, only the lines behind it tell (`Behind`).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from unhang.errors import RecordError
from unhang.logs import attempts, tracebacks
from unhang.logs.line import Line, Readable, wanted_lines
from unhang.logs.log_facts import Stack
from unhang.logs.signature import Hit, Signature, compiled
from unhang.logs.timestamps import Stamp
from unhang.model import frozen
from unhang.patterns import lazily

if TYPE_CHECKING:
    from unhang.records.incident import Stacks

# Lines of the same writer that are looked at behind a stack, and of all.
MOST_LINES = 200
MOST_OF_ALL = 2000
# Ranks that wait for one finish the step that they are in.
_STEPS_OF_OTHERS = 2
_LOSSES = tuple(s.pattern for s in attempts.STEPS)
# What failed names the step in which it did.
_OF_ERRORS = ("WARNING", "ERROR", "CRITICAL")
_CODE = " " * 4
_NUMBERS = lazily(r"\d+")


def writer(line: Line) -> int | None:
    """Who wrote a line, as far as it tells: its rank, or a launcher's number of the task, below 0; None where neither is there."""
    return line.rank if line.label is None else -1 - line.label


def progress(line: Line) -> str:
    """What a training counts in a line; "" for nothing, and for what an error or the code of a traceback names."""
    if line.level in _OF_ERRORS or line.text.startswith(_CODE) or tracebacks.sums_up(line.text):
        return ""
    return tracebacks.step_of(line.text)


class Behind:
    """What follows a stack of one writer. `step` is what he had counted before it: the same again is no progress.

    `went_on` is the line in which somebody counts on, `later` the first time that he prints. `far`: that so much follows, up to a line that tells of
    a failure or to the end, that nothing is known. Lines of stacks do not count, those that a bundle left out do. `over`: nothing more has
    to be looked at.
    """

    def __init__(self, writer: int | None, step: str = "") -> None:
        self.writer = writer
        self.went_on: int | None = None
        self.later: Stamp | None = None
        self.far = False
        self.over = False
        self._own = 0
        self._all = 0
        self._counted = _numbers(step)
        self._of_others: set[str] = set()

    def add(self, line: Line, by: int | None, counts: str, lines: int) -> None:
        """The next line, who wrote it, what it counts, and for how many lines it stands."""
        self._all += lines
        if by == self.writer:
            self._own += lines
            if self.later is None and line.time is not None and line.time.clock == "wall":
                self.later = line.time
            if not _numbers(counts) <= self._counted if counts else _tells_a_loss(line):
                self.went_on = line.number
        elif counts and counts not in self._of_others:
            self._of_others.add(counts)
            if len(self._of_others) >= _STEPS_OF_OTHERS:
                self.went_on = line.number
        if self._own > MOST_LINES or self._all > MOST_OF_ALL:
            self.far = True
        self.over = self.far or self.went_on is not None


def left_out(line: Line) -> int:
    """How many more lines stood where a bundle of an earlier version left them out, before as many empty lines."""
    return int("".join(_NUMBERS.findall(line.text))[:9] or 0) if line.text.startswith("[unhang: lines left out") else 0


def _numbers(counted: str) -> frozenset[str]:
    return frozenset(_NUMBERS.findall(counted))


def _tells_a_loss(line: Line) -> bool:
    if "oss" not in line.text or line.level in _OF_ERRORS or tracebacks.sums_up(line.text):
        return False
    return any(compiled(p).search(line.text) for p in _LOSSES)


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
# Stacks whose next lines are looked at, as many as heads are kept: each line is held against all of them.
_MOST_WATCHED = FAULTHANDLER.keep
# A log in which stacks stand is read once more, for the lines behind their heads.
MAX_BYTES = 256 * 1024 * 1024
_MAX_LINES = 4000
# Lines in front of a head in which stands what its writer had counted until then.
_BEFORE = 50
# Lines in front of the first head that was found in which others may stand.
_REACH = 20_000
_NEEDLES = tuple(s.needle.encode() for s in SIGNATURES)
_HEAD = lazily(
    r"^(?P<id>(?:Current thread|Thread) (?:0x)?[0-9A-Fa-f]{1,16}\b|Stack) ?.{0,80}?(?:\(most recent call first\):|\([\w+]{1,20}\)(?:: \".*\")?$)"
)
_FRAME = lazily(r'^(?:  File ".+", line (?:\d+|\?\?\?) in |    \S.* \(.+:\d+\)$|  <no Python frame>$)')
_SPIED = lazily(r'^Thread (?:0x)?[0-9A-Fa-f]{1,16} \((?P<state>[\w+]{1,20})\)(?:: "(?P<name>.*)")?$')
# What Python prints before the stacks of a process that is ending by a signal, with lines between.
_CRASHES = lazily(r"Fatal Python error: ")
_CRASH = b"Fatal Python error: "
_BEHIND_CRASH = 4
# torch/distributed/debug: `dump_dir` writes files, /stacks and /pyspy_dump are pages.
_HEADING = lazily(r"^\s*(?:=== |<h2>)Rank (?P<rank>\d{1,9}): http\S{1,300}/handler/(?:dump_traceback|pyspy_dump)\b")
_HANDLER = b"/handler/"


@frozen
class Dumped:
    """The last stacks of each rank, and in how many dumps nothing tells whose they are. `left` are logs that are too large to be read once more.

    `standing` are the main threads: the last of each rank in each log, and those of nobody known, without what a process wrote that was crashing.
    """

    stacks: Mapping[int, Stacks] = field(default_factory=dict)
    standing: tuple[Stack, ...] = ()
    unplaced: int = 0
    left: tuple[str, ...] = ()


def read(
    hits: Iterable[Hit],
    paths: Mapping[str, Path],
    *,
    again: Callable[[Set[str]], Iterable[tuple[str, Readable]]] = lambda names: (),
    spans: Mapping[str, range] | None = None,
    failed: Mapping[str, Set[int]] | None = None,
    seconds: Callable[[str, Stamp], float | None] = lambda source, time: None,
) -> Dumped:
    """The stacks whose heads were hit; `paths` are the files of sources that can be opened again, `again` gives the streams of others.

    `spans`: the lines of the attempt, where there are others. `failed`: those at which ranks give up or end. `seconds` gives a time of a
    source on the scale of the job.
    """
    heads: dict[str, list[Hit]] = {}
    for hit in hits:
        if hit.signature in SIGNATURES and hit.line is not None:
            heads.setdefault(hit.source, []).append(hit)
    found: dict[int, Stacks] = {}
    standing: dict[tuple[int, str], Stack] = {}
    nobodys: list[Stack] = []
    unplaced = 0
    left: list[str] = []
    of_log = {s: _Dumps(of_source, (spans or {}).get(s), (failed or {}).get(s, frozenset())) for s, of_source in heads.items()}
    packed = of_log.keys() - paths.keys()
    files: Iterable[tuple[str, Path | Readable]] = ((s, paths[s]) for s in of_log if s in paths)
    # A stream can be read until the next one is asked for.
    for source, log in chain(files, again(packed) if packed else ()):
        try:
            if not isinstance(log, Path) or log.stat().st_size <= MAX_BYTES:
                of_log[source].read(log)
        except (OSError, RecordError):
            continue
    for source, dumps in of_log.items():
        if not dumps.complete:
            left.append(source)
            continue
        for dump in dumps.done:
            if (read := _parsed(dump.text)) is None:
                continue
            stack = None if dump.fatal else _standing(source, dump, read, seconds)
            if dump.rank is None:
                unplaced += 1
                nobodys += [stack] if stack is not None else []
                continue
            found[dump.rank] = read
            if stack is not None:
                standing[dump.rank, source] = stack
    in_order = sorted(standing, key=lambda key: key[0])
    return Dumped(stacks=found, standing=(*(standing[key] for key in in_order), *nobodys), unplaced=unplaced, left=tuple(left))


@dataclass(kw_only=True)
class _Dump:
    """The lines of one dump from `line` to `end`; `ids` are the threads in it."""

    rank: int | None
    line: int
    end: int
    text: list[str]
    ids: set[str]
    fatal: bool
    behind: Behind

    def add(self, line: Line) -> None:
        self.text.append(line.text)
        self.end = line.number


def _standing(source: str, dump: _Dump, read: Stacks, seconds: Callable[[str, Stamp], float | None]) -> Stack | None:
    from unhang.records import stacks

    frames = stacks.main_thread(read)
    if not frames:
        return None
    heads = [m for m in map(_SPIED.match, dump.text) if m is not None]
    main = next((m for m in heads if m["name"] == "MainThread"), heads[0] if len(heads) == 1 else None)
    return Stack(
        source=source,
        line=dump.line,
        end=dump.end,
        rank=dump.rank,
        frames=frames,
        executes=None if main is None else main["state"].startswith("active"),
        went_on=dump.behind.went_on,
        far=dump.behind.far,
        later_s=None if dump.behind.later is None else seconds(source, dump.behind.later),
    )


class _Dumps:
    """The dumps of one log in the lines of `span`; `hits` are their heads. Lines of other writers may stand between theirs.

    The search keeps so many hits of a log, and of a part of it: the heads of processes with many threads are looked for once more.
    """

    def __init__(self, hits: Sequence[Hit], span: range | None, failed: Set[int]) -> None:
        self.done: list[_Dump] = []
        self.complete = False
        self._ranks = {h.line: h.rank for h in hits}
        self._of_writer = {-1 - h.label: h.rank for h in hits if h.label is not None}
        self._owner = hits[0].rank if len(set(self._ranks.values())) == 1 else None
        self._heads = sorted(h.line for h in hits if h.line is not None)
        self._span = span
        self._failed = failed
        self._open: dict[int | None, _Dump] = {}
        # Of each rank the last one; what follows it is looked at.
        self._watched: dict[object, _Dump] = {}
        self._counted: dict[int | None, str] = {}
        self._crashed: dict[int | None, int] = {}
        self._of_heading: int | None = None

    def wants(self, number: int, raw: bytes) -> bool:
        """Whether a line has to be looked at."""
        if self._span is not None and number < self._span.start:
            return False
        if self._open or self._watched or _CRASH in raw or _HANDLER in raw:
            return True
        if number >= self._heads[0] - _REACH and any(needle in raw for needle in _NEEDLES):
            return True
        at = bisect_left(self._heads, number)
        return at == len(self._heads) or self._heads[at] - number <= _BEFORE

    def read(self, log: Path | Readable) -> None:
        """Raises OSError and RecordError."""
        for line in wanted_lines(log, self.wants):
            if self._span is not None and line.number >= self._span.stop:
                break
            if line.number > self._heads[-1] and not (self._open or self._watched):
                break
            if line.number > self._heads[-1] + _MAX_LINES:
                for dump in self._watched.values():
                    dump.behind.far = True
                break
            self.complete = self.complete or line.number >= self._heads[-1]
            self._take(line)
        self.done += self._open.values()

    def _take(self, line: Line) -> None:
        by = writer(line)
        if (heading := _HEADING.match(line.text)) is not None:
            self._of_heading = int(heading["rank"])
            self.done += self._open.values()
            self._open.clear()
        if _CRASHES.match(line.text):
            self._crashed[by] = line.number
        head = _HEAD.match(line.text)
        known = self._open.get(by)
        if head is not None and (known is None or head["id"] == "Stack" or head["id"] in known.ids):
            if known is not None:
                self.done.append(known)
            self._begin(line, by, head["id"])
        elif known is not None and head is not None:
            known.add(line)
            known.ids.add(head["id"])
        elif known is not None and _FRAME.match(line.text):
            known.add(line)
        else:
            if known is not None:
                self.done.append(self._open.pop(by))
            if line.number in self._failed:
                # What stands behind it is of the failure.
                self._watched.clear()
            counts, lines = progress(line), 1 + left_out(line)
            for key, dump in list(self._watched.items()):
                dump.behind.add(line, by, counts, lines)
                if dump.behind.over:
                    del self._watched[key]
            if counts:
                self._counted[by] = counts

    def _begin(self, line: Line, by: int | None, id: str) -> None:
        told = self._of_heading
        if told is None:
            told = self._ranks[line.number] if line.number in self._ranks else self._rank(line, by)
        fatal = 0 <= line.number - self._crashed.get(by, -_BEHIND_CRASH) < _BEHIND_CRASH
        dump = _Dump(
            rank=told,
            line=line.number,
            end=line.number,
            text=[line.text],
            ids={id},
            fatal=fatal,
            behind=Behind(by, self._counted.get(by, "")),
        )
        self._open[by] = dump
        self._watched[line.number if told is None else (told,)] = dump
        if len(self._watched) > _MOST_WATCHED:
            self._watched.pop(next(iter(self._watched))).behind.far = True

    def _rank(self, line: Line, by: int | None) -> int | None:
        if line.rank is not None:
            return line.rank
        return self._owner if by is None else self._of_writer.get(by)


def _parsed(text: list[str]) -> Stacks | None:
    from unhang.records import stacks

    try:
        whole = "\n".join(text)
        return stacks.from_faulthandler(whole) if "(most recent call first):" in text[0] else stacks.from_pyspy_text(whole)
    except RecordError:
        return None
