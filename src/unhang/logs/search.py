"""Signatures searched in a log of any size: needle first, regex second.

A log is cut into blocks, and the engine finds which needles a block contains. The first and the last hits of each signature are kept: the first as
the blocks come; for the last ones the blocks with its needle wait until there are enough of them, and are then searched from the newest back. Lines
are cut out, cleaned and matched only around needles (`line_matcher`), at most N in each block: memory and time stay bounded if a log repeats.
"""

from __future__ import annotations

import sys
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeAlias, TypeVar

from unhang.errors import RecordError
from unhang.logs.alarms import TAIL_BYTES
from unhang.logs.blocks import Block, blocks
from unhang.logs.line import Readable
from unhang.logs.line_matcher import MAX_GLANCES, MAX_PIECES, BlockSearch, Budget, Found, Kept
from unhang.logs.needles import Needles
from unhang.logs.owner import Owner, owner_of
from unhang.logs.prefixes import rank_at
from unhang.logs.signature import Hit, Signature
from unhang.logs.timestamps import Stamp, resolve
from unhang.logs.tracebacks import Traceback, writer
from unhang.model import frozen

if TYPE_CHECKING:
    from concurrent.futures import Future, ThreadPoolExecutor

Tail: TypeAlias = bytes
Piece = TypeVar("Piece", Hit, Traceback)

# Blocks of one log that are under way at once.
_AHEAD = 8
# Blocks that wait to be looked at from behind; those of a stream, which cannot be read again, are held.
_WAITING = 64
_HELD = 8
# Lines that are looked at for the newest alarms of a kind: what is common is mostly no alarm, and they are a last resort.
_ALARM_GLANCES = 1024
# An exception that led to another one stands this close before it.
CHAIN_LINES = 40


class Stopped(Exception):
    """The search was told to stop."""


@frozen
class LogRead:
    """What one log holds.

    `ranks` are those that the beginning of some line names, and the log's owner: that of its name, which may be a node's where lines name others.
    `attempt` is the one that its path names. `begins_at_s` is the time of its first lines, where they have one. `tail` are its last bytes.
    `sampled`: of lines that are too long to be matched as a whole, or take too long, only some were.
    """

    source: str
    bytes: int
    lines: int = 0
    hits: tuple[Hit, ...] = ()
    tracebacks: tuple[Traceback, ...] = ()
    ranks: frozenset[int] = frozenset()
    attempt: int | None = None
    begins_at_s: float | None = None
    begins_utc_offset_s: int | None = None
    tail: Tail = b""
    sampled: bool = False


def read(
    log: Path | Readable,
    needles: Needles,
    *,
    source: str | None = None,
    limit_bytes: int | None = None,
    rank: int | None = None,
    latest_s: float | None = None,
    at_most: int | None = None,
    pool: ThreadPoolExecutor | None = None,
    progress: Callable[[int], None] = lambda n: None,
    stop: Callable[[], bool] = lambda: False,
) -> LogRead:
    """Search one log: a plain file (its first `limit_bytes`), or a stream from where it stands to its end.

    `rank` is the log's owner where that is known, `latest_s` the time (since the epoch) that no line is later than. `at_most` bounds the hits that
    are kept. `pool` searches blocks in parallel; `progress` is told the bytes of each; `stop` ends the search with Stopped.
    Raises RecordError where a file cannot be read, and whatever the stream raises.
    """
    part = read_part(log, needles, source=source, limit_bytes=limit_bytes, rank=rank, pool=pool, progress=progress, stop=stop)
    return part.as_log(latest_s=latest_s, at_most=at_most)


@dataclass(kw_only=True)
class Part:
    """What was found in a part of a log, to be joined with those before and behind it. Lines are counted from the beginning of the part."""

    source: str
    bytes: int = 0
    lines: int = 0
    ranks: set[int] = field(default_factory=set)
    begins: Stamp | None = None
    tail: Tail = b""
    sampled: bool = False
    first: dict[Signature, list[Found]] = field(default_factory=dict)
    last: dict[Signature, list[Found]] = field(default_factory=dict)

    def missing(self, signature: Signature) -> int:
        """How many of the first hits of a signature are still to be found: of what follows them only the last ones count."""
        return signature.firsts - len(self.first.get(signature, ()))

    def add_first(self, signature: Signature, found: Iterable[Found]) -> None:
        self.first.setdefault(signature, []).extend(found)

    def add_last(self, signature: Signature, found: Sequence[Found]) -> None:
        """Hits behind all those that are there, in order."""
        if signature.lasts and found:
            self.last[signature] = [*self.last.get(signature, ()), *found][-signature.lasts :]

    def append(self, behind: Part) -> None:
        """Join the part that follows."""
        if not self.bytes:
            self.begins = behind.begins
        for signature in dict.fromkeys((*behind.first, *behind.last)):
            moved = [_moved(f, self.lines) for f in (*behind.first.get(signature, ()), *behind.last.get(signature, ()))]
            missing = max(0, self.missing(signature))
            self.add_first(signature, moved[:missing])
            self.add_last(signature, moved[missing:])
        self.lines += behind.lines
        self.bytes += behind.bytes
        if behind.bytes:
            self.tail = behind.tail
        self.ranks |= behind.ranks
        self.sampled |= behind.sampled

    def as_log(self, *, latest_s: float | None = None, at_most: int | None = None) -> LogRead:
        """What was found, if this is all of the log. `at_most` bounds the hits that are kept, `latest_s` is a time that no line is later than."""
        signatures = dict.fromkeys((*self.first, *self.last))
        each = None if at_most is None else max(2, at_most // max(1, len(signatures)))
        kept = [f for s in signatures for f in _fewer([*self.first.get(s, ()), *self.last.get(s, ())], each, s)]
        # However it was cut, and whoever was first: one order.
        hits = sorted(((h, t) for h, t in kept if isinstance(h, Hit)), key=lambda f: (f[0].place, f[0].signature.needle, f[0].signature.pattern))
        backs = _each_once(sorted(((b, t) for b, t in kept if isinstance(b, Traceback)), key=lambda f: f[0].place))
        if passed := [b for b, _ in backs if b.passed_on]:
            hits = [(_raised_by(h, passed), t) for h, t in hits]
        hosts = {h.host for h, _ in hits} | {b.host for b, _ in backs}
        if len({h.partition(".")[0] for h in hosts if h is not None}) > 1:
            # Lines of several hosts are collected here: the file's name tells only where.
            hits, backs = [(_of_no_host(h), t) for h, t in hits], [(_of_no_host(b), t) for b, t in backs]
        owned, ranks = self._owned(hits, backs)
        begins, *times = resolve([self.begins, *(time for _, time in (*hits, *backs))], latest_s=latest_s)
        begins = begins if begins is not None and begins.clock == "wall" and begins.has_year else None
        return LogRead(
            source=self.source,
            bytes=self.bytes,
            lines=self.lines,
            hits=tuple(_timed(h if owned else _disowned(h), t) for (h, _), t in zip(hits, times, strict=False)),
            tracebacks=_last_of_chains([_timed(b if owned else _nobodys(b), t) for (b, _), t in zip(backs, times[len(hits) :], strict=True)]),
            ranks=frozenset(ranks),
            attempt=owner_of(self.source).attempt,
            begins_at_s=None if begins is None else begins.seconds,
            begins_utc_offset_s=None if begins is None else begins.offset_s,
            tail=self.tail,
            sampled=self.sampled,
        )

    def _owned(self, hits: Iterable[tuple[Hit, Stamp | None]], backs: Iterable[tuple[Traceback, Stamp | None]]) -> tuple[bool, set[int]]:
        """Whether all is of the rank that the name tells; and the ranks that wrote here."""
        rank = owner_of(self.source).rank
        named = {h.rank for h, _ in hits if not h.by_name and "rank" not in h.groups} | {b.rank for b, _ in backs if not b.by_name}
        named |= self.ranks
        in_groups = {rank_at(h.text, h.text.find(h.signature.needle)) for h, _ in hits if h.by_name}
        if rank is None or named - {rank, None} or len(in_groups - {None}) > 1:
            return False, self.ranks
        return True, {*self.ranks, rank}


def read_part(
    log: Path | Readable,
    needles: Needles,
    *,
    source: str | None = None,
    limit_bytes: int | None = None,
    span: range | None = None,
    rank: int | None = None,
    pool: ThreadPoolExecutor | None = None,
    progress: Callable[[int], None] = lambda n: None,
    stop: Callable[[], bool] = lambda: False,
) -> Part:
    """Search the blocks that begin in `span`, a range of bytes of a file; all of them without it. As for the rest see `read`."""
    name = source or str(log)

    def survey(load: Callable[[], Block]) -> _Survey:
        block = load()
        begin, end = block.begin, block.end
        with memoryview(block.window) as whole, whole[begin : min(end + needles.reach - 1, len(block.window))] as data:
            present, ranks = needles.present(data)
        return _Survey(block, load, {i: begin + at for i, at in present.items()}, ranks, block.window.count(b"\n", begin, end))

    try:
        with blocks(log, limit_bytes, span) as all_blocks, closing(_in_order(all_blocks, survey, pool)) as surveys:
            owner = owner_of(name)
            collector = _Collector(needles, Part(source=name), owner, rank, _WAITING if isinstance(log, Path) else _HELD)
            for surveyed in surveys:
                if stop():
                    raise Stopped
                collector.add(surveyed)
                progress(surveyed.block.end - surveyed.block.begin)
            collector.settle()
    except OSError as e:
        if not isinstance(log, Path):
            raise
        raise RecordError(f"cannot read {name}: {e.strerror or e}") from e
    return collector.part


class _Survey(NamedTuple):
    """A block, and how to get it once more: which literals stand in it, by index, and where the first of each; whose prefixes."""

    block: Block
    load: Callable[[], Block]
    present: dict[int, int]
    ranks: frozenset[int]
    newlines: int


def _in_order(
    parts: Iterator[Callable[[], Block]], survey: Callable[[Callable[[], Block]], _Survey], pool: ThreadPoolExecutor | None
) -> Generator[_Survey, None, None]:
    if pool is None:
        for block in parts:
            yield survey(block)
        return
    under_way: deque[Future[_Survey]] = deque()
    try:
        for block in parts:
            under_way.append(pool.submit(survey, block))
            if len(under_way) >= _AHEAD:
                yield under_way.popleft().result()
        while under_way:
            yield under_way.popleft().result()
    finally:
        # The file is closed behind us: nobody may still be reading it.
        for future in under_way:
            if not future.cancel():
                future.exception()


class _Waiting(NamedTuple):
    load: Callable[[], Block]
    lines_before: int
    newlines: int
    budget: Budget


class _Collector:
    """Takes the blocks of a part in their order."""

    def __init__(self, needles: Needles, part: Part, owner: Owner, rank: int | None, most_waiting: int) -> None:
        self.needles = needles
        self.part = part
        self.owner = owner
        self.rank = rank
        if rank is not None:
            part.ranks.add(rank)
        # For each signature the blocks in which its last hits may stand, and from where in each. They are read again: held, they would cost
        # fresh memory for every block.
        self.waiting: dict[Signature, list[tuple[_Waiting, int]]] = {}
        self.blocks_waiting = 0
        self.most_waiting = most_waiting
        self.pieces: Counter[Signature] = Counter()
        self.lines = Kept()

    def add(self, surveyed: _Survey) -> None:
        part, block = self.part, surveyed.block
        waiting = _Waiting(surveyed.load, part.lines, surveyed.newlines, Budget(len(surveyed.present)))
        look = self._look_at(block, waiting, self.pieces)
        if not block.offset:
            part.begins = look.begins()
        if surveyed.present:
            waits = [self._look(look, waiting, s, at) for i, at in surveyed.present.items() for s in self.needles.signatures[i]]
            self.blocks_waiting += any(waits)
        part.sampled |= waiting.budget.left_s <= 0
        part.lines += surveyed.newlines
        part.bytes += block.end - block.begin
        part.tail = block.window[max(0, block.end - TAIL_BYTES) : block.end]
        part.ranks |= surveyed.ranks
        if self.blocks_waiting >= self.most_waiting:
            self.settle()

    def _look(self, look: BlockSearch, waiting: _Waiting, signature: Signature, at: int) -> bool:
        """Take what belongs to the first hits; whether the block may hold some of the last ones."""
        rest: int | None = at
        if (missing := self.part.missing(signature)) > 0:
            found, rest = look.first(signature, at, missing)
            if found:
                self.part.add_first(signature, found)
        if rest is None or not signature.lasts:
            return False
        self.waiting.setdefault(signature, []).append((waiting, rest))
        return True

    def _look_at(self, block: Block, waiting: _Waiting, pieces: Counter[Signature]) -> BlockSearch:
        return BlockSearch(
            block,
            self.part.source,
            self.owner,
            self.rank,
            lines_before=waiting.lines_before,
            newlines=waiting.newlines,
            pieces=pieces,
            lines=self.lines,
            budget=waiting.budget,
        )

    def settle(self) -> None:
        """Search the waiting blocks, for each signature from the newest back, until its last hits are found; older ones do not count."""
        looks: dict[_Waiting, BlockSearch] = {}
        pieces: Counter[Signature] = Counter()
        for signature, blocks_of_it in self.waiting.items():
            found: list[Found] = []
            glances = _ALARM_GLANCES if signature.role == "alarm" else sys.maxsize
            for waiting, begin in reversed(blocks_of_it):
                if waiting not in looks:
                    looks[waiting] = self._look_at(waiting.load(), waiting, pieces)
                hits, seen = looks[waiting].last(signature, begin, signature.lasts - len(found), at_most=min(glances, MAX_GLANCES))
                found += hits
                glances -= seen
                if len(found) == signature.lasts or glances <= 0:
                    break
            self.part.add_last(signature, found[::-1])
        self.part.sampled |= any(n > MAX_PIECES for n in (*self.pieces.values(), *pieces.values())) or any(w.budget.left_s <= 0 for w in looks)
        self.waiting.clear()
        self.blocks_waiting = 0


def _moved(found: Found, lines: int) -> Found:
    piece, time = found
    if isinstance(piece, Hit):
        return replace(piece, line=(piece.line or 0) + lines), time
    return replace(piece, line=piece.line + lines, end=piece.end + lines, more=tuple(n + lines for n in piece.more)), time


def _fewer(kept: list[Found], at_most: int | None, signature: Signature) -> list[Found]:
    """The first and the last ones, or of a signature that keeps the newest only those."""
    if at_most is None or len(kept) <= at_most:
        return kept
    firsts = 0 if signature.newest else (at_most + 1) // 2
    return [*kept[:firsts], *kept[len(kept) - at_most + firsts :]]


def _raised_by(hit: Hit, passed: Iterable[Traceback]) -> Hit:
    """The hit as one of the process that raised, where another one passed its traceback on."""
    back = next((b for b in passed if hit.line is not None and b.line <= hit.line <= b.end), None)
    return hit if back is None else replace(hit, rank=back.rank, local_rank=back.local_rank, host=back.host, pid=back.pid, by_name=False)


def _of_no_host(piece: Piece) -> Piece:
    return replace(piece, host=None) if piece.host_by_name else piece


def _disowned(hit: Hit) -> Hit:
    return replace(hit, rank=rank_at(hit.text, hit.text.find(hit.signature.needle)), by_name=False) if hit.by_name else hit


def _nobodys(back: Traceback) -> Traceback:
    return replace(back, rank=None, by_name=False) if back.by_name else back


def _timed(piece: Piece, time: Stamp | None) -> Piece:
    if time is None or time.clock != "wall" or not time.has_year:
        return piece
    return replace(piece, at_s=time.seconds, utc_offset_s=time.offset_s)


def _each_once(backs: Iterable[tuple[Traceback, Stamp | None]]) -> list[tuple[Traceback, Stamp | None]]:
    """The tracebacks that end in different lines: of one that is found twice, the longer; frames behind an end take none from those above it."""
    kept: dict[int, tuple[Traceback, Stamp | None]] = {}
    for back, time in backs:
        known = kept.get(back.end)
        if known is None or back.line < known[0].line or (known[0].line >= known[0].end and len(back.frames) > len(known[0].frames)):
            kept[back.end] = (back, time)
    return sorted(kept.values(), key=lambda f: f[0].place)


def _last_of_chains(found: Sequence[Traceback]) -> tuple[Traceback, ...]:
    """Of chained exceptions the last one of each writer: the one that nothing caught."""
    kept: list[Traceback] = []
    for back in found:
        if back.chained:
            near = (i for i in range(len(kept) - 1, -1, -1) if writer(kept[i]) == writer(back) and back.line - kept[i].end < CHAIN_LINES)
            if (led := next(near, None)) is not None:
                # Of a chain only the first one stands behind the logger's record.
                first = kept.pop(led)
                back = replace(back, led=(*first.led, first.end), logged=(first.logged and bool(first.frames)) or back.logged)
        kept.append(back)
    return tuple(kept)
