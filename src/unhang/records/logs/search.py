"""Signatures searched in a log of any size: needle first, regex second.

A log is cut into blocks. In each block the engine tells which needles stand in it at all; only around those, lines are cut out, cleaned and
matched. Of each signature the first and the last hits of a file are kept, and only so many lines are looked at in each block, so that memory and
time stay bounded whatever a log says a million times. Plain files are read with pread and never mapped: a log that its writer cuts short while it
is read would end a process that has mapped it.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Protocol

from unhang.errors import RecordError
from unhang.records.logs import tracebacks
from unhang.records.logs.line import MAX_LINE_BYTES, Line, decode, parse
from unhang.records.logs.needles import Engine, engine
from unhang.records.logs.owner import Owner, owner_of
from unhang.records.logs.signature import NEAR_LINES, Hit, Signature, compiled, groups_of
from unhang.records.logs.stamp import Stamp, resolve
from unhang.records.logs.tracebacks import Traceback
from unhang.records.logs.writer import writer_at

BLOCK_BYTES = 1024 * 1024
# Read on both sides of a block, so that a line, its neighbours and a traceback that cross the edge are seen whole.
MARGIN_BYTES = MAX_LINE_BYTES
# Lines with the needle of a signature that are looked at in one block, from each end.
MAX_LOOKS = 256
# Evidence is read by people.
MAX_TEXT = 2000
# Whose lines begin with `[rank17]` is told by the engine in passing.
MAX_RANKS = 1024
# Blocks of one log that are under way at once.
_AHEAD = 8

# An exception that led to another one stands this close before it.
CHAIN_LINES = 40

_TRACEBACK = Signature(needle=tracebacks.MARK, role="context", keep=100)


class Readable(Protocol):
    """A stream of bytes."""

    def read(self, size: int, /) -> bytes: ...


@dataclass(frozen=True, kw_only=True)
class LogRead:
    """What one log holds; `ranks` are those that the beginning of some line names, and the log's owner."""

    source: str
    bytes: int
    lines: int = 0
    hits: tuple[Hit, ...] = ()
    tracebacks: tuple[Traceback, ...] = ()
    ranks: frozenset[int] = frozenset()


class Needles:
    """Signatures made ready for the search; made once, used for many logs and by many threads."""

    def __init__(self, signatures: Iterable[Signature], *, make_engine: Callable[[Sequence[bytes]], Engine] = engine) -> None:
        by_literal: dict[bytes, list[Signature]] = {}
        for s in (*signatures, _TRACEBACK):
            by_literal.setdefault(s.needle.encode(), []).append(s)
        self.literals = tuple(by_literal)
        self.signatures = tuple(tuple(v) for v in by_literal.values())
        self.reach = max(map(len, self.literals))
        self._engine = make_engine((*self.literals, *(b"[rank%d]" % n for n in range(MAX_RANKS))))

    def present(self, data: memoryview) -> tuple[dict[int, int], frozenset[int]]:
        """Which literals stand in the data, by index, and where first; and which ranks' prefixes."""
        found = self._engine.present(data)
        count = len(self.literals)
        return {i: at for i, at in found.items() if i < count}, frozenset(i - count for i in found if i >= count)


def read(
    log: Path | Readable,
    needles: Needles,
    *,
    source: str | None = None,
    limit_bytes: int | None = None,
    rank: int | None = None,
    latest_s: float | None = None,
    pool: ThreadPoolExecutor | None = None,
    progress: Callable[[int], None] = lambda n: None,
) -> LogRead:
    """Search one log: a plain file (its first `limit_bytes`), or a stream from where it stands to its end.

    `rank` is the log's owner where that is known, `latest_s` the time (since the epoch) that no line is later than. `pool` searches the blocks of a
    large log in parallel; `progress` is told the bytes of each.
    Raises RecordError where a file cannot be read, and whatever the stream raises.
    """
    name = source or str(log)
    owner = owner_of(name)
    merged = _Merged(name, _first(rank, owner.rank))
    try:
        with _blocks(log, limit_bytes) as blocks:
            for looked in _in_order(blocks, lambda block: _Look(block, needles, name, owner, rank).done(), pool):
                merged.add(looked)
                progress(looked.bytes)
    except OSError as e:
        if not isinstance(log, Path):
            raise
        raise RecordError(f"cannot read {name}: {e.strerror or e}") from e
    return merged.read(latest_s)


def scan(
    path: Path, signatures: Iterable[Signature], *, limit_bytes: int | None = None, source: str | None = None, rank: int | None = None
) -> list[Hit]:
    """The hits of signatures in one file, in its order. Raises RecordError."""
    return list(read(path, Needles(signatures), source=source, limit_bytes=limit_bytes, rank=rank).hits)


@dataclass(frozen=True)
class _Block:
    """The block is window[begin:end]; what stands around it belongs to its neighbours."""

    window: bytearray
    begin: int
    end: int
    offset: int


@dataclass
class _Looked:
    """What one block held. Line numbers count from 0 within the block."""

    bytes: int
    newlines: int
    hits: list[tuple[Hit, Stamp | None]] = field(default_factory=list)
    tracebacks: list[tuple[Traceback, Stamp | None]] = field(default_factory=list)
    ranks: frozenset[int] = frozenset()


@contextmanager
def _blocks(log: Path | Readable, limit_bytes: int | None) -> Iterator[Iterator[Callable[[], _Block]]]:
    """The blocks of a log, each to be read by whoever searches it; the file stays open until all of them are done."""
    if not isinstance(log, Path):
        yield _of_stream(log)
        return
    fd = os.open(log, os.O_RDONLY | os.O_CLOEXEC)
    try:
        size = os.fstat(fd).st_size
        size = size if limit_bytes is None else min(size, limit_bytes)
        yield (partial(_pread, fd, offset, size) for offset in range(0, size, BLOCK_BYTES))
    finally:
        os.close(fd)


def _pread(fd: int, offset: int, size: int) -> _Block:
    start = max(0, offset - MARGIN_BYTES)
    window = bytearray(min(size, offset + BLOCK_BYTES + MARGIN_BYTES) - start)
    got = 0
    view = memoryview(window)
    while got < len(window) and (n := os.preadv(fd, [view[got:]], start + got)):
        got += n
    view.release()
    # Fewer than promised: it was cut short in the meantime.
    del window[got:]
    return _Block(window, min(offset - start, got), min(offset + BLOCK_BYTES - start, got), offset)


def _of_stream(stream: Readable) -> Iterator[Callable[[], _Block]]:
    before, offset = b"", 0
    current = _fill(stream, b"", BLOCK_BYTES + MARGIN_BYTES)
    while current:
        rest = current[BLOCK_BYTES:]
        block = _Block(bytearray(before + current), len(before), len(before) + min(len(current), BLOCK_BYTES), offset)
        yield partial(_itself, block)
        if len(current) <= BLOCK_BYTES:
            return
        before = (before + current[:BLOCK_BYTES])[-MARGIN_BYTES:]
        offset += BLOCK_BYTES
        current = _fill(stream, rest, BLOCK_BYTES + MARGIN_BYTES)


def _itself(block: _Block) -> _Block:
    return block


def _fill(stream: Readable, have: bytes, size: int) -> bytes:
    parts, length = [have], len(have)
    while length < size and (data := stream.read(size - length)):
        parts.append(data)
        length += len(data)
    return b"".join(parts)


def _in_order(blocks: Iterator[Callable[[], _Block]], look: Callable[[_Block], _Looked], pool: ThreadPoolExecutor | None) -> Iterator[_Looked]:
    if pool is None:
        for block in blocks:
            yield look(block())
        return

    def looked_at(block: Callable[[], _Block]) -> _Looked:
        return look(block())

    under_way: deque[Future[_Looked]] = deque()
    try:
        for block in blocks:
            under_way.append(pool.submit(looked_at, block))
            if len(under_way) >= _AHEAD:
                yield under_way.popleft().result()
        while under_way:
            yield under_way.popleft().result()
    finally:
        # The file is closed behind us: nobody may still be reading it.
        for future in under_way:
            if not future.cancel():
                future.exception()


class _Look:
    """One block, searched."""

    def __init__(self, block: _Block, needles: Needles, source: str, owner: Owner, rank: int | None) -> None:
        self.block = block
        self.window = block.window
        self.needles = needles
        self.source = source
        self.owner = owner
        self.rank = rank
        self._counted = (block.begin, 0)
        self._lines: dict[tuple[int, int], Line] = {}

    def done(self) -> _Looked:
        begin, end = self.block.begin, self.block.end
        with memoryview(self.window) as whole, whole[begin : min(end + self.needles.reach - 1, len(self.window))] as data:
            present, ranks = self.needles.present(data)
        found = _Looked(bytes=end - begin, newlines=self.window.count(b"\n", begin, end), ranks=ranks)
        for i, first in present.items():
            for signature in self.needles.signatures[i]:
                if signature == _TRACEBACK:
                    found.tracebacks += self._tracebacks(self.needles.literals[i], begin + first)
                else:
                    found.hits += self._hits(signature, self.needles.literals[i], begin + first)
        found.hits.sort(key=lambda h: h[0].place)
        return found

    def _hits(self, signature: Signature, literal: bytes, first: int) -> Iterator[tuple[Hit, Stamp | None]]:
        """The first and the last hits of one signature: looks at the lines with its literal, from `first` where it stands first, and from the end."""
        end = min(self.block.end + len(literal) - 1, len(self.window))
        at, left = first, (signature.keep + 1) // 2
        for _ in range(MAX_LOOKS):
            if left == 0:
                break
            at = self.window.find(literal, at, end)
            if at < 0:
                return
            start, stop = self._segment(at)
            if (hit := self._hit(signature, at, start, stop)) is not None:
                yield hit
                left -= 1
            at = max(stop, at + len(literal))
        left = signature.keep // 2
        for _ in range(MAX_LOOKS):
            behind = self.window.rfind(literal, at, end)
            if left == 0 or behind < 0:
                return
            start, stop = self._segment(behind)
            if (hit := self._hit(signature, behind, start, stop)) is not None:
                yield hit
                left -= 1
            end = max(start, at)

    def _hit(self, signature: Signature, at: int, start: int, stop: int) -> tuple[Hit, Stamp | None] | None:
        raw = self.window[start:stop]
        # Most lines with a common needle do not match: that is told before the line is taken apart, unless an anchor or a colour could deceive.
        if signature.pattern and b"\x1b" not in raw and "^" not in signature.pattern and not compiled(signature.pattern).search(decode(bytes(raw))):
            return None
        line = self._line(start, stop)
        around = self._around(start, stop) if signature.near or signature.unless else ""
        groups = groups_of(signature, line.text, around)
        if groups is None:
            return None
        position = line.text.find(signature.needle)
        writer = writer_at(line.text, position)
        hit = Hit(
            signature=signature,
            source=self.source,
            line=self._number(at),
            text=_shown(line.text, position),
            groups=groups,
            rank=_first(_int(groups.get("rank")), self.rank, writer.rank, line.rank, writer.group_rank, self.owner.rank),
            label=line.label,
            host=groups.get("host") or writer.host or line.host or self.owner.host,
            pid=_first(_int(groups.get("pid")), writer.pid, line.pid, self.owner.pid),
            place=self._place(at),
        )
        return hit, line.time or self._time_before(start)

    def _place(self, at: int) -> int:
        return self.block.offset + at - self.block.begin

    def _time_before(self, start: int) -> Stamp | None:
        """The time of the nearest line above that has one."""
        for _ in range(NEAR_LINES):
            if start <= 0:
                return None
            stop = start - 1
            start = self.window.rfind(b"\n", max(0, stop - MAX_LINE_BYTES), stop) + 1
            if (time := self._line(start, min(stop, start + MAX_LINE_BYTES)).time) is not None:
                return time
        return None

    def _segment(self, at: int) -> tuple[int, int]:
        """The line around a place; of a progress bar the state behind the last carriage return."""
        low, high = max(0, at - MAX_LINE_BYTES // 2), min(len(self.window), at + MAX_LINE_BYTES // 2)
        newline = self.window.rfind(b"\n", low, at)
        start = max(newline, self.window.rfind(b"\r", max(low, newline), at)) + 1
        return start or low, self._end(at, high)

    def _line(self, start: int, stop: int) -> Line:
        if (start, stop) not in self._lines:
            if len(self._lines) > 256:
                self._lines.clear()
            self._lines[start, stop] = parse(bytes(self.window[start:stop]))
        return self._lines[start, stop]

    def _number(self, at: int) -> int:
        """The number of a line, from 0 in this block; negative in the margin before it. Asked in rising order of place, mostly."""
        place, count = self._counted
        if at >= place:
            count += self.window.count(b"\n", place, at)
        else:
            count -= self.window.count(b"\n", at, place)
        self._counted = (at, count)
        return count

    def _around(self, start: int, stop: int) -> str:
        first = self.window.rfind(b"\n", 0, start) + 1
        last = self.window.find(b"\n", stop)
        last = len(self.window) if last < 0 else last
        for _ in range(NEAR_LINES):
            first = self.window.rfind(b"\n", max(0, first - MAX_LINE_BYTES), max(0, first - 1)) + 1
            last = self.window.find(b"\n", min(last + 1, len(self.window)))
            if last < 0:
                last = len(self.window)
        return "\n".join(self._line(*bounds).text for bounds in self._bounds(first, last))

    def _bounds(self, first: int, last: int) -> Iterator[tuple[int, int]]:
        """Segments from one place to another."""
        while first < last:
            stop = self._end(first, last)
            if stop > first:
                yield first, min(stop, first + MAX_LINE_BYTES)
            first = stop + 1

    def _end(self, at: int, limit: int) -> int:
        """Where the line, or the state of a line, that stands at a place ends."""
        newline = self.window.find(b"\n", at, limit)
        limit = limit if newline < 0 else newline
        state = self.window.find(b"\r", at, limit)
        return limit if state < 0 else state

    def _tracebacks(self, literal: bytes, first: int) -> Iterator[tuple[Traceback, Stamp | None]]:
        end = min(self.block.end + len(literal) - 1, len(self.window))
        places: list[int] = []
        at = first
        while (at := self.window.find(literal, at, end)) >= 0:
            places.append(at)
            at += len(literal)
        half = _TRACEBACK.keep // 2
        for at in places if len(places) <= _TRACEBACK.keep else (*places[:half], *places[-half:]):
            if (found := self._traceback(at)) is not None:
                yield found

    def _traceback(self, at: int) -> tuple[Traceback, Stamp | None] | None:
        start, stop = self._segment(at)
        first = start
        for _ in range(tracebacks.BEFORE):
            first = self.window.rfind(b"\n", max(0, first - MAX_LINE_BYTES), max(0, first - 1)) + 1
        before = [self._line(*bounds) for bounds in self._bounds(first, start)]
        mark = replace(self._line(start, stop), number=self._number(at))
        back = tracebacks.read(before, mark, self._after(stop, mark.number), source=self.source)
        if back is None:
            return None
        back = replace(
            back,
            rank=_first(self.rank, back.rank, self.owner.rank),
            host=back.host or self.owner.host,
            pid=_first(back.pid, self.owner.pid),
            place=self._place(at),
        )
        return back, mark.time or self._time_before(start)

    def _after(self, stop: int, number: int) -> Iterator[Line]:
        """The lines behind one that ends at `stop`."""
        counted = stop
        for first, last in self._bounds(stop + 1, len(self.window)):
            number += self.window.count(b"\n", counted, first)
            counted = first
            yield parse(bytes(self.window[first:last]), number=number)


class _Merged:
    """The blocks of one log, put together in their order."""

    def __init__(self, source: str, rank: int | None) -> None:
        self.source = source
        self.bytes = 0
        self.lines = 0
        self.ranks = set() if rank is None else {rank}
        # With each, the number of lines before its block.
        self.first: dict[Signature, list[tuple[Hit, Stamp | None, int]]] = {}
        self.last: dict[Signature, deque[tuple[Hit, Stamp | None, int]]] = {}
        self.first_backs: list[tuple[Traceback, Stamp | None, int]] = []
        self.last_backs: deque[tuple[Traceback, Stamp | None, int]] = deque(maxlen=_TRACEBACK.keep // 2)

    def add(self, looked: _Looked) -> None:
        for hit, time in looked.hits:
            first = self.first.setdefault(hit.signature, [])
            if len(first) < (hit.signature.keep + 1) // 2:
                first.append((hit, time, self.lines))
            elif hit.signature.keep > 1:
                self.last.setdefault(hit.signature, deque(maxlen=hit.signature.keep // 2)).append((hit, time, self.lines))
        for back, time in looked.tracebacks:
            (self.first_backs if len(self.first_backs) < _TRACEBACK.keep // 2 else self.last_backs).append((back, time, self.lines))
        self.lines += looked.newlines
        self.bytes += looked.bytes
        self.ranks |= looked.ranks

    def read(self, latest_s: float | None) -> LogRead:
        hits = [h for kept in (*self.first.values(), *self.last.values()) for h in kept]
        hits.sort(key=lambda h: h[0].place)
        backs = [*self.first_backs, *self.last_backs]
        times = resolve([time for _, time, _ in (*hits, *backs)], latest_s=latest_s)
        seconds = [t.seconds if t is not None and t.clock == "wall" and t.has_year else None for t in times]
        return LogRead(
            source=self.source,
            bytes=self.bytes,
            lines=self.lines,
            hits=tuple(replace(h, line=(h.line or 0) + n + 1, at_s=s) for (h, _, n), s in zip(hits, seconds, strict=False)),
            tracebacks=_last_of_chains(
                [replace(b, line=b.line + n + 1, end=b.end + n + 1, at_s=s) for (b, _, n), s in zip(backs, seconds[len(hits) :], strict=True)]
            ),
            ranks=frozenset(self.ranks),
        )


def _last_of_chains(found: Sequence[Traceback]) -> tuple[Traceback, ...]:
    """Of chained exceptions the last one of each writer: the one that nothing caught."""
    kept: list[Traceback] = []
    for back in found:
        if back.chained:
            led = next((i for i in range(len(kept) - 1, -1, -1) if kept[i].rank == back.rank and back.line - kept[i].end < CHAIN_LINES), None)
            if led is not None:
                del kept[led]
        kept.append(back)
    return tuple(kept)


def _shown(text: str, position: int) -> str:
    """The line as evidence; of a very long one the part around the needle."""
    if len(text) <= MAX_TEXT:
        return text
    start = max(0, min(position - MAX_TEXT // 4, len(text) - MAX_TEXT))
    return f"{'…' if start else ''}{text[start : start + MAX_TEXT]}…"


def _first(*numbers: int | None) -> int | None:
    return next((n for n in numbers if n is not None), None)


def _int(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdecimal() else None
