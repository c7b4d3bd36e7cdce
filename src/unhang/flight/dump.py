"""One rank's dump, opened once: its calls with their frames, and its columns."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from pathlib import Path

from unhang.errors import RecordError
from unhang.flight.dump_file import DumpFile, opened, size_of
from unhang.flight.entries import Flight, alone, flight_of, together
from unhang.flight.reader_processes import map_bounded, run_bounded
from unhang.flight.recording import Recording, recording_of, with_second


@dataclass(frozen=True, kw_only=True)
class Dump:
    """What one rank's recorder held."""

    flight: Flight
    recording: Recording


def read(path: Path, *, rank: int) -> Dump:
    """Raises RecordError if the file is missing, foreign or refused, or nothing of it can be read."""
    return run_bounded(_dump, (path, rank), size_of(path))


def read_all(paths: Sequence[tuple[Path, int]]) -> Generator[Dump | RecordError]:
    """Yield the dump in each file, which is of that rank, or why it cannot be read."""
    return map_bounded(_dump, paths, [size_of(path) for path, _ in paths])


def _dump(of: tuple[Path, int]) -> Dump:
    path, rank = of
    return dump_of(alone(opened(path), str(path)), rank=rank, source=str(path))


def dump_of(found: DumpFile, *, rank: int, source: str) -> Dump:
    """The same, of what has been opened. Raises RecordError where it is no dump."""
    return Dump(flight=flight_of(found, source=source), recording=recording_of(found, rank=rank, source=source))


def both(accelerator: Dump, cpu: Dump) -> Dump:
    """Two recorders of one process."""
    return Dump(flight=together(accelerator.flight, cpu.flight), recording=with_second(accelerator.recording, cpu.recording))
