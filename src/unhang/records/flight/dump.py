"""One rank's dump, opened once: its calls with their frames, and its columns."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from unhang.records.flight import confined
from unhang.records.flight.columns import Recording, recording_of, with_second
from unhang.records.flight.entries import Flight, alone, flight_of, together
from unhang.records.flight.opening import Opened, opened


@dataclass(frozen=True, kw_only=True)
class Dump:
    """What one rank's recorder held."""

    flight: Flight
    recording: Recording


def read(path: Path, *, rank: int) -> Dump:
    """Raises RecordError where the file is missing, foreign or refused, or nothing of it can be read."""
    return confined.one(
        lambda path: dump_of(alone(opened(path), str(path)), rank=rank, source=str(path)), path, path.stat().st_size if path.is_file() else 0
    )


def dump_of(found: Opened, *, rank: int, source: str) -> Dump:
    """The same, of what has been opened. Raises RecordError where it is no dump."""
    return Dump(flight=flight_of(found, source=source), recording=recording_of(found, rank=rank, source=source))


def both(accelerator: Dump, cpu: Dump) -> Dump:
    """Two recorders of one process."""
    return Dump(flight=together(accelerator.flight, cpu.flight), recording=with_second(accelerator.recording, cpu.recording))
