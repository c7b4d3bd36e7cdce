"""One line of JSON for each snapshot: in the run directory where `unhang run` made one, else in ./unhang-monitor/rank0.jsonl."""

from __future__ import annotations

from pathlib import Path

import msgspec

from unhang.runtime.monitoring.supervised import run_dir
from unhang.runtime.monitoring.tally import Snapshot


class JSONL:
    def __init__(self, path: str | Path | None = None) -> None:
        self.path = _default() if path is None else Path(path)

    def write(self, snapshot: Snapshot) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        # Opened anew each time: what was written is there when a rank is killed, and a file that was moved away is no lost one.
        with self.path.open("ab") as f:
            f.write(msgspec.json.encode(snapshot) + b"\n")

    def close(self) -> None:
        pass


def _default() -> Path:
    run = run_dir()
    return Path("unhang-monitor/rank0.jsonl") if run is None else run / "monitor.jsonl"
