"""One rank's dump, opened once: its calls with their frames, its columns, and what is drawn of it."""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unhang.errors import RecordError
from unhang.flight.coalesced import COALESCED
from unhang.flight.dump_file import DumpFile, opened, size_of
from unhang.flight.entries import NOT_UNDERSTOOD, Call, Flight, Group, alone, not_understood, sites_of, together, understood
from unhang.flight.reader_processes import map_bounded, run_bounded
from unhang.flight.recording import COMPLETED, ENDED, Columns, Recording, columns_of, compared, with_second
from unhang.frames import Frame
from unhang.model import frozen

if TYPE_CHECKING:
    from unhang.flight.timeline_rows import Lanes


@frozen
class Dump:
    """What one rank's recorder held; `lanes` where they were asked for."""

    flight: Flight
    recording: Recording
    lanes: Lanes | None = None


def read(path: Path, *, rank: int) -> Dump:
    """Raises RecordError if the file is missing, foreign or refused, or nothing of it can be read."""
    return run_bounded(_dump, (path, rank), size_of(path))


def read_all(paths: Sequence[tuple[Path, int]], *, drawn: bool = False) -> Generator[Dump | RecordError]:
    """Yield the dump in each file, which is of that rank, or why it cannot be read; `drawn`: with what a timeline draws of it."""
    return map_bounded(partial(_dump, drawn=drawn), paths, [size_of(path) for path, _ in paths])


def load(path: Path) -> Flight:
    """Read the dump of one rank. Raises RecordError where it is missing, foreign or refused, or nothing of it can be read."""
    return flight_of(alone(opened(path), str(path)), source=str(path))


def flight_of(dump: DumpFile, *, source: str) -> Flight:
    """One dump in objects. Raises RecordError where it is none."""
    with understood(source):
        return _flight(*columns_of(dump))


def _dump(of: tuple[Path, int], *, drawn: bool = False) -> Dump:
    path, rank = of
    return dump_of(alone(opened(path), str(path)), rank=rank, source=str(path), drawn=drawn)


def dump_of(found: DumpFile, *, rank: int, source: str, drawn: bool = False) -> Dump:
    """The same, of what has been opened. Raises RecordError where it is no dump."""
    with understood(source):
        columns, entries = columns_of(found)
        dump = Dump(flight=_flight(columns, entries), recording=compared(columns, rank=rank, source=source))
    if drawn:
        # Few want it.
        from unhang.flight.timeline_rows import lanes_of

        # That it cannot be drawn costs nothing else.
        with contextlib.suppress(*NOT_UNDERSTOOD):
            return replace(dump, lanes=lanes_of(columns, sites_of(entries)))
    return dump


def both(accelerator: Dump, cpu: Dump) -> Dump:
    """Two recorders of one process."""
    return replace(accelerator, flight=together(accelerator.flight, cpu.flight), recording=with_second(accelerator.recording, cpu.recording))


def _flight(columns: Columns, entries: Sequence[Mapping[str, Any]]) -> Flight:
    calls: dict[str, list[Call]] = {}
    shared = _Frames()
    rows = zip(columns.kind_of, columns.numbers, columns.ends, columns.created, entries, strict=True)
    for place, (form, number, end, created, entry) in enumerate(rows):
        kind = columns.kinds[form]
        call = Call(
            group=kind.group,
            seq=columns.message_numbers[place] if kind.p2p else number,
            op=kind.op,
            backend=kind.backend,
            input_sizes=kind.input_sizes,
            output_sizes=kind.output_sizes,
            dtypes=kind.input_dtypes,
            done=end == COMPLETED or (kind.gloo and end == ENDED),
            op_id=op_id if isinstance(op_id := entry.get("op_id"), int) else None,
            is_p2p=kind.p2p,
            frames=shared.of(entry.get("frames") or ()),
            created_ns=created,
        )
        calls.setdefault(kind.group, []).append(call)
    return Flight(
        groups={**{k.group: Group(name=k.group, desc=k.desc) for k in reversed(columns.kinds)}, **columns.configured},
        calls={name: _in_order(found) for name, found in calls.items()},
        counters=columns.counters,
        lost=columns.lost,
        cut=columns.cut or not_understood(columns.skipped),
        untold=columns.untold,
        skipped=columns.skipped,
    )


def _in_order(calls: Sequence[Call]) -> tuple[Call, ...]:
    """The calls of one group, oldest first; those that were launched together have ended where the last entry of their number has."""
    ended = {(c.is_p2p, c.seq): c.done for c in calls if c.op == COALESCED}
    if ended:
        calls = [replace(c, done=done) if c.done is not (done := ended.get((c.is_p2p, c.seq), c.done)) else c for c in calls]
    return tuple(sorted(calls, key=lambda c: (c.created_ns, c.seq)))


class _Frames:
    """Frames repeat: in a pickle the very same objects stand in thousands of entries."""

    def __init__(self) -> None:
        self._stacks: dict[tuple[int, ...], tuple[Frame, ...]] = {}
        self._frames: dict[int, Frame] = {}

    def of(self, raw: Sequence[Mapping[str, Any]]) -> tuple[Frame, ...]:
        """Innermost last; () for what are no frames."""
        with contextlib.suppress(*NOT_UNDERSTOOD):
            key = tuple(map(id, raw))
            if key not in self._stacks:
                self._stacks[key] = tuple(self._frames.get(id(f)) or self._frame(f) for f in reversed(raw))
            return self._stacks[key]
        return ()

    def _frame(self, raw: Mapping[str, Any]) -> Frame:
        line = int(raw.get("line") or 0)
        found = Frame(file=str(raw.get("filename", "")), line=line if 0 <= line < 1 << 31 else 0, name=str(raw.get("name", "")))
        self._frames[id(raw)] = found
        return found
