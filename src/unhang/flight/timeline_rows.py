"""What is drawn of one rank's dump: the calls of each group laid out by number, a dozen bytes for each, made in the pass that reads the dump.

Several calls of one number, a coalesced launch, are one column: it ends with the entry "coalesced", or where its least finished call does, and its
time is that of the first. Messages have numbers of their own, and so a lane of their own. Ranks of one job repeat each other, and their columns are
equal bytes that can be held once; only times differ.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import replace
from math import prod
from typing import NamedTuple, TypeVar

from unhang.flight.coalesced import COALESCED
from unhang.flight.entries import Group, Site
from unhang.flight.recording import COMPLETED, ENDED, ISSUED, STARTED, CallForm, Columns, split
from unhang.model import frozen

_K = TypeVar("_K")

# In `TimelineRow.ends`, beside what the columns have: there is no entry of this number.
NOTHING = 255
# Ids are 16 bits wide, and no recorder keeps more numbers than this.
MOST_IDS = 65_535
MOST_COLUMNS = 65_536
# Of several calls that were launched together the first of these tells.
_LEAST_FINISHED = (ISSUED, STARTED, ENDED, COMPLETED)
# Numbers of one group are dense, but for what the ring has lost.
_HOLES, _MORE_HOLES = 64, 4096
# A call of more tensors is told by the first ones.
_MOST_TENSORS = 4


class CallKind(NamedTuple):
    """A kind of call as it is shown: elements of each tensor and dtypes of what is sent, else of what is received; `together`: how many were launched
    as one, 0 for one alone."""

    op: str = ""
    elements: tuple[int, ...] = ()
    dtypes: tuple[str, ...] = ()
    together: int = 0


@frozen
class TimelineRow:
    """One group of one rank. Column i is number `first` + i.

    `ops` and `sites` are 16 bits a column in this machine's order, indexes into the tables of `Lanes`; `ends` one byte, as in `columns`, or NOTHING.
    `starts_ns` are 0 where not recorded, None where no time is.
    """

    group: Group
    p2p: bool
    gloo: bool
    first: int
    ops: bytes
    sites: bytes
    ends: bytes
    starts_ns: array[int] | None


@frozen
class Lanes:
    """All lanes of one dump. Both tables begin with what stands for nothing. `left_out`: older columns that were too many."""

    calls: tuple[CallKind, ...]
    sites: tuple[Site | None, ...]
    lanes: tuple[TimelineRow, ...]
    left_out: int = 0

    def of_second(self) -> Lanes:
        """The same of a process's second recorder, whose groups are called "cpu:NAME"."""
        return replace(self, lanes=tuple(replace(lane, group=replace(lane.group, name=f"cpu:{lane.group.name}")) for lane in self.lanes))


def lanes_of(columns: Columns, sites: Sequence[Site | None], *, most: int = MOST_COLUMNS) -> Lanes:
    """The lanes of columns; `sites` are the user's lines of their entries. `most`: of so many columns.

    Raises TypeError, ValueError, AttributeError or OverflowError where a dump has something else in place of sizes, numbers or frames.
    """
    kinds = columns.kinds
    calls: dict[CallKind, int] = {CallKind(): 0}
    lines = _numbers_of(sites)
    keys = {key: n for n, key in enumerate(sorted({(kind.group, kind.p2p) for kind in kinds}))}
    gloo = {(kind.group, kind.p2p) for kind in kinds if kind.gloo}
    descs = {kind.group: kind.desc for kind in reversed(kinds)}
    of_kind = tuple((keys[kind.group, kind.p2p], numbered(calls, _drawn(kind))) for kind in kinds)
    of_entry = array("H", map(lines.__getitem__, sites))
    numbers = columns.numbers
    if columns.message_numbers:
        numbers = array("q", numbers)
        for place, number in columns.message_numbers.items():
            # What is no number of 64 bits is none.
            numbers[place] = number if -1 <= number < 1 << 62 else -1
    found = []
    for (name, p2p), (places, ids) in zip(keys, split(columns.kind_of.tobytes(), of_kind, len(keys)), strict=True):
        group = columns.configured.get(name) or Group(name=name, desc=descs[name])
        whole = (numbers, columns.ends, columns.created, of_entry)
        if places is not None:
            whole = (
                array("q", places(numbers)),
                bytearray(places(columns.ends)),
                array("q", places(columns.created)),
                array("H", places(of_entry)),
            )
        lane = _lane(group, ids, *whole, calls, p2p=p2p, gloo=(name, p2p) in gloo)
        if lane is not None:
            found.append(lane)
    # The newest columns of each lane, so many of all of them.
    lanes = Lanes(calls=tuple(calls), sites=tuple(lines)[:MOST_IDS], lanes=tuple(found))
    total = sum(len(lane.ends) for lane in lanes.lanes)
    if total <= most:
        return lanes
    kept = []
    for lane in lanes.lanes:
        count = max(1, len(lane.ends) * most // total)
        begin = len(lane.ends) - count
        kept.append(
            replace(
                lane,
                first=lane.first + begin,
                ops=lane.ops[2 * begin :],
                sites=lane.sites[2 * begin :],
                ends=lane.ends[begin:],
                starts_ns=None if lane.starts_ns is None else lane.starts_ns[begin:],
            )
        )
    return replace(lanes, lanes=tuple(kept), left_out=total - sum(len(lane.ends) for lane in kept))


def _numbers_of(sites: Iterable[Site | None]) -> dict[Site | None, int]:
    """0 for None, and for what is more than there are numbers."""
    return {site: n if n < MOST_IDS else 0 for n, site in enumerate(dict.fromkeys((None, *sites)))}


def _drawn(kind: CallForm) -> CallKind:
    sizes = (kind.input_sizes or kind.output_sizes)[:_MOST_TENSORS]
    return CallKind(op=kind.op, elements=tuple(map(_elements, sizes)), dtypes=tuple(dict.fromkeys(kind.input_dtypes or kind.dtypes)))


def _elements(size: Sequence[int]) -> int:
    """-1 for what is no size."""
    count = prod(map(int, size))
    return count if 0 <= count < 1 << 63 else -1


def numbered(table: dict[_K, int], key: _K) -> int:
    """The number of `key`, its first one where it is new; 0 once the table is full."""
    number = table.get(key)
    if number is None:
        if len(table) >= MOST_IDS:
            return 0
        number = table[key] = len(table)
    return number


def _lane(
    group: Group,
    ids: array[int],
    numbers: array[int],
    ends: bytearray,
    starts: array[int],
    sites: array[int],
    calls: dict[CallKind, int],
    *,
    p2p: bool,
    gloo: bool,
) -> TimelineRow | None:
    """None where no number is one."""
    if not numbers:
        return None
    first, last = numbers[0], numbers[-1]
    if first < 0 or last - first + 1 != len(numbers) or numbers != array("q", range(first, last + 1)):
        laid = _by_number(ids, numbers, ends, starts, sites, calls)
        if laid is None:
            return None
        first, ids, ends, starts, sites = laid
    newest = slice(max(0, len(ends) - MOST_COLUMNS), None)
    return TimelineRow(
        group=group,
        p2p=p2p,
        gloo=gloo,
        first=first + newest.start,
        ops=array("H", ids[newest]).tobytes(),
        sites=sites[newest].tobytes(),
        ends=bytes(ends[newest]),
        starts_ns=starts[newest] if any(starts) else None,
    )


def _by_number(
    ids: array[int], numbers: array[int], ends: bytearray, starts: array[int], sites: array[int], calls: dict[CallKind, int]
) -> tuple[int, array[int], bytearray, array[int], array[int]] | None:
    """The same with one column for each number. A damaged dump may claim any: of those far apart the highest are kept."""
    parts: dict[int, list[int]] = {}
    for place, number in enumerate(numbers):
        if number >= 0:
            parts.setdefault(number, []).append(place)
    if not parts:
        return None
    last = max(parts)
    first = max(min(parts), last + 1 - min(MOST_COLUMNS, _HOLES * len(parts) + _MORE_HOLES))
    count = last - first + 1
    of, lines, times = array("I", bytes(4 * count)), array("H", bytes(2 * count)), array("q", bytes(8 * count))
    states = bytearray([NOTHING]) * count
    names = list(calls)
    for number, places in parts.items():
        i = number - first
        if i < 0:
            continue
        if len(places) == 1:
            (earliest,) = places
            of[i], states[i] = ids[earliest], ends[earliest]
        else:
            places.sort(key=starts.__getitem__)
            earliest = places[0]
            closing = [p for p in places if names[ids[p]].op == COALESCED]
            launched = [p for p in places if p not in closing] or places
            of[i] = numbered(calls, CallKind(op=names[ids[launched[0]]].op, together=len(launched)))
            states[i] = ends[closing[-1]] if closing else min((ends[p] for p in places), key=_LEAST_FINISHED.index)
        lines[i], times[i] = sites[earliest], starts[earliest]
    return first, of, states, times, lines
