"""One line of JSON for each snapshot: in the run directory where `unhang run` made one, else in ./unhang-monitor/rank0.jsonl."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

import msgspec

from unhang import fsio
from unhang.runtime.monitoring.counters import Snapshot
from unhang.runtime.monitoring.sinks.measures import run_dir


class JSONL:
    def __init__(self, path: str | Path | None = None) -> None:
        run = run_dir()
        self.path = Path(path) if path is not None else run / "monitor.jsonl" if run is not None else Path("unhang-monitor/rank0.jsonl")
        self.where = str(self.path)
        # A link is followed where the script has named it.
        self._opener = partial(fsio.open_private, mode=0o664) if path is None else None

    def write(self, snapshot: Snapshot) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        # Opened anew each time: what was written is there when a rank is killed, and a file that was moved away is no lost one.
        with open(self.path, "ab", opener=self._opener) as f:
            f.write((b"\n" if _is_cut(self.path) else b"") + msgspec.json.encode(snapshot) + b"\n")

    def close(self) -> None:
        pass


def _is_cut(path: Path) -> bool:
    """Whether its last line has no end, as after a kill or on a full disk: a line behind it would be lost as well."""
    try:
        if not path.is_file() or not path.stat().st_size:
            return False
        with path.open("rb") as f:
            f.seek(-1, os.SEEK_END)
            return f.read(1) != b"\n"
    except OSError:
        # Of a file that may be written, and not read.
        return False
