"""Searches one block of a log: cuts out, cleans and matches the lines around each needle."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from itertools import islice
from time import thread_time
from typing import TYPE_CHECKING

from unhang.logs import tracebacks, watchdog
from unhang.logs.alarms import CRASHES, OF_ANY_LEVEL
from unhang.logs.line import JSON_BEGINS, MAX_LINE_BYTES, Line, decode, parse
from unhang.logs.needles import TRACEBACK
from unhang.logs.prefixes import writer_at
from unhang.logs.signature import HARMLESS, NEAR_LINES, Hit, Signature, compiled, groups_of, unanchored
from unhang.logs.timestamps import Stamp
from unhang.logs.tracebacks import Traceback
from unhang.patterns import lazily

if TYPE_CHECKING:
    import re
    from collections import Counter

    from unhang.logs.blocks import Block
    from unhang.logs.owner import Owner

# Lines with the needle of a signature that are parsed in one block, from each end; and lines that are only matched.
MAX_LOOKS = 64
MAX_GLANCES = 16_384
# CPU time for the lines of a block, which takes a tenth of it in the log of a failure. Behind that, and in a block with more needles than such a log
# has (30), little of each signature is looked at, with so many bytes on each side; behind as much again nothing.
BLOCK_S = 0.4
MANY_NEEDLES, FEW_LOOKS, FEW_GLANCES, FEW_BYTES = 200, 2, 4, 2048
# Shorter lines are matched in no time, whatever the pattern.
_SLOW_BYTES = 512
# Parsing a line takes as long as matching N lines.
LOOK_COSTS = 16
# Evidence is read by people; context only by us.
MAX_TEXT = 2000
MAX_CONTEXT_TEXT = 400
# Lines longer than MAX_LINE_BYTES are matched in pieces: at most N pieces per signature, from the front of a part and from its end.
MAX_PIECES = 16
# Widths of terminals, the least and the greatest one, and how many lines a message is wrapped into.
WIDTHS = (80, 100, 120, 132)
MIN_WIDTH, MAX_WIDTH = 79, 1024
MAX_WRAPPED = 12
# Parsed lines that are kept: at least those of a block, for each signature goes through all of it. One takes about as much beside its text.
MAX_KEPT_BYTES = 24 * 1024 * 1024
_LINE_BYTES = 512
# The neighbourhood of a line, on each side.
MAX_NEAR_BYTES = 16 * 1024
_JSON = JSON_BEGINS.encode()
_FRAME = b'File "'
# Python 3.13 quotes all lines of a call, up to eight.
_CODE_BYTES = 4096
# Thousands of empty lines in a row cost no more than one.
_BREAKS = b"\r\n"
_IN_LINE = lazily(rb"[^\r\n]")
# Steps behind a hit that are told.
STEPS = 2

_CRASHES = frozenset(CRASHES)
_HALF_LINE = MAX_LINE_BYTES // 2

Found = tuple[Hit | Traceback, Stamp | None]


class Kept(dict[tuple[int, int], Line]):
    """Parsed lines of a part of a log, by their place and length; and the memory that they take."""

    bytes = 0


class Budget:
    """The CPU time that is left for the lines of a block, in seconds: for little at 0, and for nothing at -BLOCK_S."""

    def __init__(self, needles: int) -> None:
        self.left_s = BLOCK_S if needles <= MANY_NEEDLES else 0.0

    def spend(self, since_s: float) -> None:
        self.left_s -= thread_time() - since_s


class BlockSearch:
    """One block of a log, behind so many lines. `rank` is the log's owner if that is certain, whatever its lines say.

    `pieces` counts pieces of overlong lines; blocks that are searched in one direction share it. `lines` are parsed ones, which
    all blocks of a part share.
    """

    def __init__(
        self,
        block: Block,
        source: str,
        owner: Owner,
        rank: int | None,
        *,
        lines_before: int,
        newlines: int,
        pieces: Counter[Signature],
        lines: Kept,
        budget: Budget,
    ) -> None:
        self.block = block
        self.window = block.window
        self.source = source
        self.owner = owner
        self.rank = rank
        self.pieces = pieces
        self.budget = budget
        self._lines = lines
        # Places whose lines' numbers are known, in order.
        self._known = [(block.begin, lines_before + 1), (block.end, lines_before + 1 + newlines)]
        # Behind the end of a line: the end of the next one, and the step that it counts.
        self._counts: dict[int, tuple[int, tuple[str, ...]]] = {}

    def first(self, signature: Signature, at: int, count: int) -> tuple[list[Found], int | None]:
        """The first `count` hits of a signature from a place in the window on; and where the search stopped, None at the end of the block."""
        found: list[Found] = []
        literal, looks = signature.needle.encode(), 0
        end, pattern = self._reach(literal), unanchored(signature.pattern)
        for glances in range(MAX_GLANCES):
            if len(found) == count or self._is_enough(looks, glances):
                break
            at = self.window.find(literal, at, end)
            if at < 0:
                return found, None
            start, stop = self._segment(at)
            matches, hit = self._hit_at(signature, pattern, at, start, stop)
            looks += matches
            if hit is not None:
                found.append(hit)
            at = max(stop, at + len(literal))
        return found, at

    def last(self, signature: Signature, from_: int, count: int, *, at_most: int) -> tuple[list[Found], int]:
        """The last `count` hits of a signature that begin at `from_` or later, newest first; and the cost in matched lines, about `at_most`."""
        found: list[Found] = []
        literal, looks = signature.needle.encode(), 0
        end, pattern, seen = self._reach(literal), unanchored(signature.pattern), 0
        while seen < at_most and len(found) < count and not self._is_enough(looks, seen):
            at = self.window.rfind(literal, from_, end)
            if at < 0:
                break
            seen += 1
            start, stop = self._segment(at)
            # Of a line with several of them the first one, as from the front.
            at = self.window.find(literal, max(start, from_), end)
            matches, hit = self._hit_at(signature, pattern, at, start, stop)
            looks += matches
            seen += LOOK_COSTS * matches
            if hit is not None:
                found.append(hit)
            end = max(start, from_)
        return found, seen

    def _is_enough(self, looks: int, glances: int) -> bool:
        left_s = self.budget.left_s
        return looks >= MAX_LOOKS or (left_s <= 0 and (looks >= FEW_LOOKS or glances >= FEW_GLANCES or left_s <= -BLOCK_S))

    def _hit_at(self, signature: Signature, pattern: re.Pattern[str], at: int, start: int, stop: int) -> tuple[bool, Found | None]:
        """Whether a line may match, and its hit if it does."""
        begun_s = thread_time() if stop - start > _SLOW_BYTES else None
        hit = None
        if matches := self._may_match(signature, pattern, at, start, stop):
            begun_s = thread_time() if begun_s is None else begun_s
            hit = self._found(signature, at, start, stop)
        if begun_s is not None:
            self.budget.spend(begun_s)
        return matches, hit

    def _most(self, size: int) -> int:
        return size if self.budget.left_s > 0 else FEW_BYTES

    def _reach(self, literal: bytes) -> int:
        """Where a literal that begins in the block ends at the latest."""
        return min(self.block.end + len(literal) - 1, len(self.window))

    def _may_match(self, signature: Signature, pattern: re.Pattern[str], at: int, start: int, stop: int) -> bool:
        """Rejects most lines with a common needle before they are parsed; not those in which a colour may split what the pattern matches."""
        if start < self.block.begin and 0 <= self.window.find(signature.needle.encode(), start, at) < self.block.begin:
            # The line began in the block before, which has seen it.
            return False
        if stop - start >= MAX_LINE_BYTES:
            self.pieces[signature] += 1
            if self.pieces[signature] > MAX_PIECES:
                return False
        if not signature.pattern:
            return True
        raw = self.window[start:stop]
        if _matches(pattern, raw) or b"\x1b" in raw or b"[0m" in raw or raw.startswith(_JSON):
            return True
        # The rest of what a terminal wrapped is in the next lines.
        width = len(raw)
        if (
            not _may_be_wrapped(signature)
            or not MIN_WIDTH <= width <= MAX_WIDTH
            or (width not in WIDTHS and self.window[stop + 1 + width : stop + 2 + width] != b"\n")
        ):
            return False
        # A line with the needle is no rest of another.
        if self.window.find(signature.needle.encode(), stop + 1, self._end(stop + 1, min(len(self.window), stop + 1 + MAX_LINE_BYTES))) >= 0:
            return False
        return _matches(pattern, self.window[start : stop + 3 * (width + 1)].replace(b"\n", b""))

    def _found(self, signature: Signature, at: int, start: int, stop: int) -> Found | None:
        # To compare signatures takes as long as to compare all that they say.
        if signature is TRACEBACK:
            before = [self._line(*bounds) for bounds in self._above(start, tracebacks.BEFORE)][::-1]
            mark = self._line(start, stop)
            back = tracebacks.read(before, mark, self._after(stop), source=self.source)
            return None if back is None else (self._owned(back, at), mark.time or self._time_before(start))
        if signature.pattern == tracebacks.CLASS:
            # The exception in a line that no header of a traceback leads to.
            line = self._line(start, stop)
            above = (self._line(*bounds) for bounds in self._above(start, tracebacks.ABOVE))
            back = tracebacks.alone(above, line, self._after(stop), source=self.source)
            if back is None:
                return None
            if not back.frames:
                back = replace(back, steps=self._steps(stop, tracebacks.BEHIND))
            return self._owned(back, at), line.time or self._time_before(start)
        return self._hit(signature, at, start, stop)

    def _hit(self, signature: Signature, at: int, start: int, stop: int) -> tuple[Hit, Stamp | None] | None:
        if signature.role in ("root", "symptom") and self._is_code(start, stop):
            return None
        line = self._line(start, stop)
        if signature.role == "alarm":
            if line.level in tracebacks.PASSED and signature not in OF_ANY_LEVEL:
                return None
            if signature not in _CRASHES and compiled(HARMLESS).search(line.text) is not None:
                return None
            if line.level == signature.needle and signature.needle not in line.text:
                # It was taken off with the prefix.
                line = replace(line, text=f"{line.level} {line.text}")
        message, is_certain = (
            self._unwrapped(line, start, stop, signature.needle) if _may_be_wrapped(signature) and stop - start <= MAX_WIDTH else ("", False)
        )
        said = [text for text in (line.text, message) if text and (not signature.pattern or compiled(signature.pattern).search(text) is not None)]
        if not said:
            return None
        # What matches in one line needs no other, unless it is certain that they are one.
        message = message if message in said and (is_certain or line.text not in said) else ""
        around = self._around(start, stop, signature.lines) if signature.near or signature.unless else ""
        behind = self._behind(stop, signature.lines) if signature.over or signature.then else ""
        groups = groups_of(signature, message or line.text, around, behind)
        if groups is None:
            return None
        position = line.text.find(signature.needle)
        writer = writer_at(line.text, position)
        # The number inside `[Rank 1]` may be one within a group.
        told = _first(_int(groups.get("rank")), self.rank, writer.rank, line.rank if line.rank != writer.group_rank else None)
        host = groups.get("host") or writer.host or line.host
        hit = Hit(
            signature=signature,
            source=self.source,
            line=line.number,
            text=_shown(line.text + (line.ending or ""), position, MAX_CONTEXT_TEXT if signature.role == "context" else MAX_TEXT),
            groups=groups,
            message=message[:MAX_TEXT],
            rank=_first(told, self.owner.rank, writer.group_rank),
            label=line.label,
            launcher=line.launcher,
            local_rank=_first(line.local_rank, self.owner.local_rank),
            host=host or self.owner.host,
            pid=_first(_int(groups.get("pid")), writer.pid, line.pid, self.owner.pid),
            place=self._place(at),
            by_name=told is None and self.owner.rank is not None,
            host_by_name=host is None,
            steps=self._steps(stop, STEPS) if signature.role in ("root", "alarm") else (),
        )
        return hit, line.time or self._time_before(start)

    def _place(self, at: int) -> int:
        return self.block.offset + at - self.block.begin

    def _time_before(self, start: int) -> Stamp | None:
        """The time of the nearest line above that has one."""
        return next((time for first, stop in self._above(start, NEAR_LINES) if (time := self._line(first, stop).time) is not None), None)

    def _is_code(self, start: int, stop: int) -> bool:
        """Whether a line is the code that a traceback quotes: it and all lines between it and the frame's are indented further than the frame."""
        frame = self.window.rfind(_FRAME, max(0, start - _CODE_BYTES), start)
        if frame < 0:
            return False
        column = frame - self.window.rfind(b"\n", 0, frame) - 1
        end = self.window.find(b"\n", frame, start)
        return end >= 0 and all(line[column : column + 2] == b"  " for line in self.window[end + 1 : stop].split(b"\n"))

    def _segment(self, at: int) -> tuple[int, int]:
        """The line around a place; of a progress bar the state behind the last carriage return."""
        window, size = self.window, len(self.window)
        reach = self._most(_HALF_LINE)
        low = at - reach if at > reach else 0
        high = at + reach if at + reach < size else size
        start = window.rfind(b"\n", low, at) + 1 or low
        stop = window.find(b"\n", at, high)
        stop = high if stop < 0 else stop
        # Most lines have none.
        if window.find(b"\r", start, stop) >= 0:
            start = window.rfind(b"\r", start, at) + 1 or start
            stop = self._end(at, stop)
        return start, stop

    def _start(self, at: int, limit: int) -> int:
        newline = self.window.rfind(b"\n", limit, at)
        state = self.window.rfind(b"\r", max(limit, newline), at)
        return max(newline, state) + 1 or limit

    def _end(self, at: int, limit: int) -> int:
        # Most lines are short, and a progress bar may write a megabyte without a line feed.
        for reach in (min(limit, at + _CODE_BYTES), limit):
            newline = self.window.find(b"\n", at, reach)
            state = self.window.find(b"\r", at, reach if newline < 0 else newline)
            if (end := newline if state < 0 else state) >= 0:
                return end
        return limit

    def _line(self, start: int, stop: int) -> Line:
        # What stands behind one error also stands behind the next: taking it apart again would be most of the work.
        key = (self._place(start), stop - start)
        if (line := self._lines.get(key)) is None:
            self._lines.bytes += _LINE_BYTES + stop - start
            if self._lines.bytes > MAX_KEPT_BYTES:
                self._lines.clear()
                self._lines.bytes = 0
            line = self._lines[key] = parse(self.window[start:stop], number=self._number(start))
        return line

    def _unwrapped(self, line: Line, start: int, stop: int, needle: str) -> tuple[str, bool]:
        """A line with the rest of its message if it may have been wrapped, "" if not; and whether that is certain.

        It is where two lines of it are equally wide, or where parentheses close; a single line that is as wide as a terminal may end there.
        """
        text, before, is_certain = line.text, start - 1, False
        for _ in range(MAX_WRAPPED):
            raw = decode(self.window[start:stop])
            next_stop = self._end(stop + 1, min(len(self.window), stop + 1 + MAX_LINE_BYTES))
            below = decode(self.window[stop + 1 : next_stop])
            above = before - self._start(before, max(0, before - MAX_LINE_BYTES)) if before > 0 else 0
            in_a_row = len(raw) in (len(below), above)
            is_full = len(raw) >= MIN_WIDTH and len(raw.rstrip()) >= len(raw) - 2 and (len(raw) in WIDTHS or in_a_row)
            is_open = text.count("(") > text.count(")") and below.count(")") > below.count("(")
            behind = self._line(stop + 1, next_stop) if (is_full or is_open) and below.strip() else None
            if behind is None or behind.text != below.rstrip() or behind.text.startswith(("[", text[:8])) or needle in below:
                break
            text = f"{text}{'' if is_full and raw[-1:].strip() else ' '}{below.strip() if is_open else below.rstrip()}"
            is_certain = is_certain or in_a_row or is_open
            before, start, stop = stop, stop + 1, next_stop
        return (text, is_certain) if text != line.text else ("", False)

    def _number(self, at: int) -> int:
        """Of the line at a place, from 1 on, counted from the nearest place whose number is known."""
        i = bisect_left(self._known, (at, 0))
        place, number = min(self._known[max(0, i - 1) : i + 1], key=lambda known: abs(known[0] - at))
        number += self.window.count(b"\n", place, at) if place <= at else -self.window.count(b"\n", at, place)
        self._known.insert(i, (at, number))
        return number

    def _around(self, start: int, stop: int, count: int) -> str:
        """The lines around one, and itself: `count` on each side that are not empty, and no more than MAX_NEAR_BYTES."""
        above = [self._line(*bounds).text for bounds in self._above(start, count)]
        return "\n".join((*above[::-1], self._line(start, stop).text, self._behind(stop, count)))

    def _behind(self, stop: int, count: int) -> str:
        bounds = islice(self._bounds(stop + 1, min(len(self.window), stop + 1 + self._most(MAX_NEAR_BYTES))), count)
        return "\n".join(self._line(*b).text for b in bounds)

    def _above(self, start: int, count: int) -> Iterator[tuple[int, int]]:
        """The lines above one that are not empty, from the nearest up."""
        limit = max(0, start - self._most(MAX_NEAR_BYTES))
        stop = start - 1
        while count:
            if stop > limit and self.window[stop - 1] in _BREAKS:
                stop = limit + len(self.window[limit:stop].rstrip(_BREAKS))
            if stop <= limit:
                break
            first = self._start(stop, limit)
            yield first, stop
            count -= 1
            stop = first - 1

    def _bounds(self, first: int, last: int) -> Iterator[tuple[int, int]]:
        """The lines from one place to another that are not empty."""
        while (begins := _IN_LINE.search(self.window, first, last)) is not None:
            first = begins.start()
            stop = self._end(first, last)
            yield first, min(stop, first + MAX_LINE_BYTES)
            first = stop + 1

    def begins(self) -> Stamp | None:
        """The time of the first lines of the log, in its first block."""
        first = islice(self._bounds(0, min(len(self.window), MAX_NEAR_BYTES)), NEAR_LINES)
        return next((time for bounds in first if (time := self._line(*bounds).time) is not None), None)

    def _owned(self, back: Traceback, at: int) -> Traceback:
        told = _first(self.rank, back.rank)
        return replace(
            back,
            text=_shown(back.text, 0, MAX_TEXT),
            rank=_first(told, self.owner.rank),
            by_name=told is None and self.owner.rank is not None,
            local_rank=_first(back.local_rank, self.owner.local_rank),
            host=back.host or self.owner.host,
            host_by_name=back.host is None,
            pid=_first(back.pid, self.owner.pid),
            place=self._place(at),
        )

    def _after(self, stop: int) -> Iterator[Line]:
        """The lines behind one that ends at `stop`."""
        return (self._line(*bounds) for bounds in self._bounds(stop + 1, len(self.window)))

    def _steps(self, stop: int, at_most: int) -> tuple[str, ...]:
        """The first steps that the next lines count, each once. These lines stand behind other hits as well: each is looked at once."""
        found: dict[str, None] = {}
        for _ in range(tracebacks.BEHIND):
            if stop not in self._counts:
                first, last = next(self._bounds(stop + 1, len(self.window)), (stop, stop))
                counts = tracebacks.may_count(self.window[first:last])
                self._counts[stop] = last, tracebacks.steps((self._line(first, last),)) if counts else ()
            stop, told = self._counts[stop]
            if told:
                found[told[0]] = None
                if len(found) == at_most:
                    break
        return tuple(found)


# Kept in front of a needle, so that the name stands before a value when secrets are looked for.
_LEFT_TEXT = 300


@lru_cache(maxsize=512)
def _search(pattern: re.Pattern[str], raw: bytes) -> bool:
    return pattern.search(decode(raw).rstrip()) is not None


def _matches(pattern: re.Pattern[str], raw: bytes) -> bool:
    """Whether a pattern is found in a line. The answers for short lines are kept: logs repeat them."""
    return (_search if len(raw) <= _CODE_BYTES else _search.__wrapped__)(pattern, raw)


def _may_be_wrapped(signature: Signature) -> bool:
    return signature.role in ("root", "symptom") or signature.needle in watchdog.NEEDLES


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
