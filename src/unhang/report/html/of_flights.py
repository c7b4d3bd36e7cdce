"""A scene out of flight-recorder dumps: each rank's calls laid out by group and sequence number.

Several calls of one number (a coalesced launch) are one column: its state is that of the least finished, its time that of the first. Point-to-point
calls have numbers of their own, and so a group of their own. Gloo's recorder never tells how an operation ended, which is kept as it is.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping
from itertools import groupby
from typing import TypeVar

from unhang.records.flight import COALESCED, Call, Flight
from unhang.records.frames import place, user_frame
from unhang.report.html.scene import Group, Operation, RankRow, Scene, State, Track

_Key = TypeVar("_Key")

# Ids are 16 bits wide, and no recorder keeps more columns than this.
_MOST_IDS = 65_535
_MOST_COLUMNS = 65_536


def scene_of(flights: Mapping[int, Flight], *, cwd: str = "", hosts: Mapping[int, str] | None = None, until_ns: int = 0) -> Scene:
    """The tracks of all ranks. Lines are shown relative to `cwd`; `until_ns` is when the dumps were taken."""
    maker = _Maker(cwd)
    tracks = [track for rank, flight in sorted(flights.items()) for track in maker.tracks(rank, flight)]
    newest = max((t.starts_ns[-1] for t in tracks if t.starts_ns), default=0)
    return Scene(
        ranks=tuple(RankRow(rank=r, host=(hosts or {}).get(r, "")) for r in sorted(flights)),
        groups=tuple(maker.groups.values()),
        operations=tuple(Operation(name=name, says=says) for name, says in maker.operations),
        sites=tuple(maker.sites),
        tracks=tuple(tracks),
        until_ns=max(until_ns, newest),
        hosts_differ=len(set((hosts or {}).values())) > 1,
    )


class _Maker:
    def __init__(self, cwd: str) -> None:
        self.cwd = cwd
        self.groups: dict[tuple[str, bool], Group] = {}
        self.operations: dict[tuple[str, str], int] = {("", ""): 0}
        self.sites: dict[str, int] = {"": 0}

    def tracks(self, rank: int, flight: Flight) -> Iterable[Track]:
        for name, calls in sorted(flight.calls.items()):
            for p2p in (False, True):
                kept = sorted((c for c in calls if c.is_p2p is p2p and c.seq >= 0), key=lambda c: c.seq)
                if kept:
                    yield self._track(rank, self._group(name, flight, p2p), kept)

    def _group(self, name: str, flight: Flight, p2p: bool) -> int:
        told = flight.groups.get(name)
        known = self.groups.get((name, p2p))
        if known is None or (told is not None and not known.members):
            members = told.members if told is not None and not p2p else ()
            self.groups[(name, p2p)] = Group(name=name, desc=told.desc if told is not None else "", members=members, point_to_point=p2p)
        return list(self.groups).index((name, p2p))

    def _track(self, rank: int, group: int, calls: list[Call]) -> Track:
        # A damaged dump may claim any number.
        first = max(calls[0].seq, calls[-1].seq - _MOST_COLUMNS + 1)
        count = calls[-1].seq - first + 1
        ops, sites = array("H", bytes(2 * count)), array("H", bytes(2 * count))
        states, starts = bytearray(count), array("q", bytes(8 * count))
        for seq, same in groupby(calls, key=lambda c: c.seq):
            if seq < first:
                continue
            parts = list(same)
            i = seq - first
            ops[i] = self._operation(parts)
            sites[i] = self._site(parts[0])
            states[i] = max(map(_state, parts))
            starts[i] = min(c.created_ns for c in parts)
        timed = any(starts)
        return Track(rank=rank, group=group, first=first, ops=ops, states=bytes(states), starts_ns=starts if timed else None, sites=sites)

    def _operation(self, parts: list[Call]) -> int:
        # The entry that ends a launch is no call; of a launch whose beginning is lost it may be all there is.
        calls = [c for c in parts if c.op != COALESCED] or parts
        call = calls[0]
        key = (call.op, _says(call)) if len(parts) == 1 else (COALESCED, f"{len(calls)} × {call.op}")
        return _numbered(self.operations, key)

    def _site(self, call: Call) -> int:
        frame = user_frame(call.frames)
        return 0 if frame is None else _numbered(self.sites, place(frame, self.cwd))


def _numbered(table: dict[_Key, int], key: _Key) -> int:
    number = table.get(key)
    if number is None:
        if len(table) >= _MOST_IDS:
            return 0
        number = table[key] = len(table)
    return number


def _state(call: Call) -> State:
    if not call.done:
        return State.ISSUED
    return State.ENDED if call.backend == "gloo" else State.COMPLETED


def _says(call: Call) -> str:
    """ "6,553,600 × BFloat16"; what is received where nothing is sent."""
    sizes = call.input_sizes or call.output_sizes
    counts = []
    for size in sizes[:3]:
        elements = 1
        for n in size:
            elements *= n
        counts.append(f"{elements:,}")
    if len(sizes) > 3:
        counts.append("…")
    dtypes = ", ".join(dict.fromkeys(call.dtypes))
    return " × ".join(part for part in (" + ".join(counts), dtypes) if part)
