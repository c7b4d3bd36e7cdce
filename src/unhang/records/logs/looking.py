"""One block of a log, searched: around each needle that stands in it, lines are cut out, cleaned and matched."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

from unhang.records.logs import tracebacks
from unhang.records.logs.blocks import Block
from unhang.records.logs.line import MAX_LINE_BYTES, Line, decode, parse
from unhang.records.logs.needles import TRACEBACK, Needles
from unhang.records.logs.owner import Owner
from unhang.records.logs.signature import NEAR_LINES, Hit, Signature, compiled, groups_of
from unhang.records.logs.stamp import Stamp
from unhang.records.logs.tracebacks import Traceback
from unhang.records.logs.writer import writer_at

# Lines with the needle of a signature that are taken apart in one block, from each end; and those that are only held against the pattern.
MAX_LOOKS = 64
MAX_GLANCES = 16_384
# Evidence is read by people; context only by us.
MAX_TEXT = 2000
MAX_CONTEXT_TEXT = 400
# The neighbourhood of a line, on each side.
MAX_NEAR_BYTES = 16 * 1024


@dataclass
class Looked:
    """What one block held. Line numbers count from 0 within the block."""

    bytes: int
    newlines: int
    hits: list[tuple[Hit, Stamp | None]] = field(default_factory=list)
    tracebacks: list[tuple[Traceback, Stamp | None]] = field(default_factory=list)
    ranks: frozenset[int] = frozenset()


class Look:
    """One block. `rank` is the log's owner where that is known; `full` tells of which signatures the first hits of the log are all found already."""

    def __init__(self, block: Block, needles: Needles, source: str, owner: Owner, rank: int | None, full: Callable[[Signature], bool]) -> None:
        self.block = block
        self.window = block.window
        self.needles = needles
        self.source = source
        self.owner = owner
        self.rank = rank
        self.full = full
        self._counted = (block.begin, 0)
        self._lines: dict[tuple[int, int], Line] = {}

    def done(self) -> Looked:
        begin, end = self.block.begin, self.block.end
        with memoryview(self.window) as whole, whole[begin : min(end + self.needles.reach - 1, len(self.window))] as data:
            present, ranks = self.needles.present(data)
        found = Looked(bytes=end - begin, newlines=self.window.count(b"\n", begin, end), ranks=ranks)
        for i, first in present.items():
            for signature in self.needles.signatures[i]:
                if signature == TRACEBACK:
                    found.tracebacks += self._tracebacks(self.needles.literals[i], begin + first)
                else:
                    found.hits += self._hits(signature, self.needles.literals[i], begin + first)
        found.hits.sort(key=lambda h: h[0].place)
        return found

    def _hits(self, signature: Signature, literal: bytes, first: int) -> Iterator[tuple[Hit, Stamp | None]]:
        """The first and the last hits of one signature: looks at the lines with its literal, from `first` where it stands first, and from the end."""
        end = min(self.block.end + len(literal) - 1, len(self.window))
        at, left, looks = first, (signature.keep + 1) // 2, MAX_LOOKS
        if self.full(signature):
            left = 0
        for _ in range(MAX_GLANCES):
            if left == 0 or looks == 0:
                break
            at = self.window.find(literal, at, end)
            if at < 0:
                return
            start, stop = self._segment(at)
            if self._may_match(signature, literal, at, start, stop):
                looks -= 1
                if (hit := self._hit(signature, at, start, stop)) is not None:
                    yield hit
                    left -= 1
            at = max(stop, at + len(literal))
        left, looks = signature.keep // 2, MAX_LOOKS
        for _ in range(MAX_GLANCES):
            behind = self.window.rfind(literal, at, end)
            if left == 0 or looks == 0 or behind < 0:
                return
            start, stop = self._segment(behind)
            if self._may_match(signature, literal, behind, start, stop):
                looks -= 1
                if (hit := self._hit(signature, behind, start, stop)) is not None:
                    yield hit
                    left -= 1
            end = max(start, at)

    def _may_match(self, signature: Signature, literal: bytes, at: int, start: int, stop: int) -> bool:
        """Most lines with a common needle do not match: that is told before a line is taken apart, unless an anchor or a colour could deceive."""
        if start < self.block.begin and 0 <= self.window.find(literal, start, at) < self.block.begin:
            # The line began in the block before, which has seen it.
            return False
        if not signature.pattern or "^" in signature.pattern:
            return True
        raw = self.window[start:stop]
        return b"\x1b" in raw or b"[0m" in raw or compiled(signature.pattern).search(decode(bytes(raw))) is not None

    def _hit(self, signature: Signature, at: int, start: int, stop: int) -> tuple[Hit, Stamp | None] | None:
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
            text=_shown(line.text, position, MAX_CONTEXT_TEXT if signature.role == "context" else MAX_TEXT),
            groups=groups,
            rank=_first(_int(groups.get("rank")), self.rank, writer.rank, line.rank, writer.group_rank, self.owner.rank),
            label=line.label,
            local_rank=_first(line.local_rank, self.owner.local_rank),
            host=groups.get("host") or writer.host or line.host or self.owner.host,
            pid=_first(_int(groups.get("pid")), writer.pid, line.pid, self.owner.pid),
            place=self._place(at),
        )
        return hit, line.time or self._time_before(start)

    def _place(self, at: int) -> int:
        return self.block.offset + at - self.block.begin

    def _time_before(self, start: int) -> Stamp | None:
        """The time of the nearest line above that has one."""
        return next((time for first, stop in self._above(start, NEAR_LINES) if (time := self._line(first, stop).time) is not None), None)

    def _segment(self, at: int) -> tuple[int, int]:
        """The line around a place; of a progress bar the state behind the last carriage return."""
        low, high = max(0, at - MAX_LINE_BYTES // 2), min(len(self.window), at + MAX_LINE_BYTES // 2)
        return self._start(at, low), self._end(at, high)

    def _start(self, at: int, limit: int) -> int:
        newline = self.window.rfind(b"\n", limit, at)
        state = self.window.rfind(b"\r", max(limit, newline), at)
        return max(newline, state) + 1 or limit

    def _end(self, at: int, limit: int) -> int:
        newline = self.window.find(b"\n", at, limit)
        limit = limit if newline < 0 else newline
        state = self.window.find(b"\r", at, limit)
        return limit if state < 0 else state

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
        """The lines around one, and itself: NEAR_LINES on each side that are not empty, and no more than MAX_NEAR_BYTES."""
        above = [*self._above(start, NEAR_LINES)][::-1]
        below = [b for b, _ in zip(self._bounds(stop + 1, min(len(self.window), stop + 1 + MAX_NEAR_BYTES)), range(NEAR_LINES), strict=False)]
        return "\n".join(self._line(*bounds).text for bounds in (*above, (start, stop), *below))

    def _above(self, start: int, count: int) -> Iterator[tuple[int, int]]:
        """The lines above one that are not empty, from the nearest up."""
        limit = max(0, start - MAX_NEAR_BYTES)
        stop = start - 1
        while count and stop > limit:
            first = self._start(stop, limit)
            if first < stop:
                yield first, stop
                count -= 1
            stop = first - 1

    def _bounds(self, first: int, last: int) -> Iterator[tuple[int, int]]:
        """The lines from one place to another that are not empty."""
        while first < last:
            stop = self._end(first, last)
            if stop > first:
                yield first, min(stop, first + MAX_LINE_BYTES)
            first = stop + 1

    def _tracebacks(self, literal: bytes, first: int) -> Iterator[tuple[Traceback, Stamp | None]]:
        end = min(self.block.end + len(literal) - 1, len(self.window))
        half = TRACEBACK.keep // 2
        places: list[int] = []
        at = first
        while len(places) < half and (at := self.window.find(literal, at, end)) >= 0:
            places.append(at)
            at += len(literal)
        last: list[int] = []
        while at >= 0 and len(last) < half and (behind := self.window.rfind(literal, at, end)) >= 0:
            last.append(behind)
            end = behind
        for at in (*(() if self.full(TRACEBACK) and last else places), *last[::-1]):
            if (found := self._traceback(at)) is not None:
                yield found

    def _traceback(self, at: int) -> tuple[Traceback, Stamp | None] | None:
        start, stop = self._segment(at)
        before = [self._line(*bounds) for bounds in self._above(start, tracebacks.BEFORE)][::-1]
        mark = replace(self._line(start, stop), number=self._number(at))
        back = tracebacks.read(before, mark, self._after(stop, mark.number), source=self.source)
        if back is None:
            return None
        back = replace(
            back,
            text=_shown(back.text, 0, MAX_TEXT),
            rank=_first(self.rank, back.rank, self.owner.rank),
            local_rank=_first(back.local_rank, self.owner.local_rank),
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


# Kept in front of a needle, so that the name stands before a value when secrets are looked for.
_LEFT_TEXT = 300


def _shown(text: str, position: int, limit: int) -> str:
    """The line as evidence; of a very long one the part around the needle, cut between words."""
    if len(text) <= limit:
        return text
    start = max(0, min(position - min(_LEFT_TEXT, limit // 2), len(text) - limit))
    if start:
        space = text.find(" ", start, position)
        start = space + 1 if space >= 0 else start
    return f"{'…' if start else ''}{text[start : start + limit]}…"


def _first(*numbers: int | None) -> int | None:
    return next((n for n in numbers if n is not None), None)


def _int(text: str | None) -> int | None:
    return int(text) if text is not None and text.isascii() and text.isdecimal() and len(text) <= 9 else None
