"""Run directories as `unhang run` writes them, laid out by a test at a time of its choice."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from unhang.launch.status_file import encoded
from unhang.model import ProcessId
from unhang.records.run_follower import Looker
from unhang.records.run_snapshot import RunSnapshot
from unhang.records.status import Now, RankNow

STARTED = "2026-11-21T03:15:00+00:00"
STARTED_S = 1_795_230_900.0
SUPERVISOR = ProcessId(host="node1", pid=4711, start_ticks=99, boot_id="b", pid_namespace="pid:[1]")


class Laid:
    """`at` is how long the run has gone on by now, in seconds; `alive` what is seen of its supervisor."""

    def __init__(self, path: Path, *, at: float = 60.0, alive: bool | None = True) -> None:
        self.path = path
        self.at = at
        self.alive = alive
        self.skew_s = 0.0
        path.mkdir()
        self.write("run.json", {"schema": "unhang/run/1", "command": ["torchrun", "train.py"], "world_size": 2, "started": STARTED})
        self.run(supervisor=vars(SUPERVISOR), options={"on_failure": "restart", "max_restarts": 3})
        self.looker = Looker(path, is_alive=lambda process: self.alive, clock=lambda: STARTED_S + self.at + self.skew_s, monotonic=lambda: self.at)

    def write(self, name: str, value: Any) -> None:
        (self.path / name).write_text(json.dumps(value))

    def run(self, **fields: Any) -> None:
        self.write("run.json", json.loads((self.path / "run.json").read_text()) | fields)

    def tell(self, event: str, *, s: float | None = None, **fields: Any) -> None:
        with (self.path / "events.jsonl").open("a") as f:
            f.write(json.dumps({"s": self.at if s is None else s, "event": event, **fields}) + "\n")

    def begin(self, attempt: int = 0, *, s: float = 0.5, ranks: int = 2) -> None:
        self.tell("Started", s=s, attempt=attempt, pid=100, command=["torchrun"])
        for rank in range(ranks):
            self.tell("Attached", s=s + 1, rank=rank, pid=200 + rank, host="node1")
            self.tell("Joined", s=s + 2, rank=rank, world_size=ranks, backend="gloo", device="cpu")

    def now(self, *ranks: RankNow, attempt: int = 0, **fields: Any) -> Now:
        """What the supervisor writes at this moment."""
        fields = {"host": "node1", "every_s": 1.0, "hang_after_s": 11.0, "usual_gap_s": 0.2, **fields}
        made = Now(attempt=attempt, time_s=STARTED_S + self.at, at_s=self.at, ranks=ranks, **fields)
        temporary = self.path / ".now"
        temporary.write_bytes(encoded(made))
        temporary.replace(self.path / "now.json")
        return made

    def rank(self, number: int, **fields: Any) -> RankNow:
        told = {"since_s": 1.0, "host": "node1", "pid": 200 + number, "local_rank": number, "world_size": 2, "backend": "gloo", "device": "cpu"}
        return RankNow(**(told | {"rank": number, "step": 100, "beat_s": self.at, "progress_s": self.at} | fields))

    def look(self) -> RunSnapshot:
        return self.looker.look()
