"""What W&B has written offline when a training and a sink log side by side: `wandb_runs.py CASE`. Prints what each run holds as JSON."""

from __future__ import annotations

import json
import logging
import struct
import sys
import time
from pathlib import Path
from typing import Any

import wandb
from wandb.proto.wandb_internal_pb2 import Record

import unhang
from unhang.runtime.monitoring.counters import OfCalls, Snapshot

NOT_FINITE = OfCalls(
    group="world", collective="barrier", count=1, latency_p50_s=float("nan"), latency_p95_s=float("inf"), latency_p99_s=0.1, busbw_p50_gbps=None
)


def snapshot(at_s: float, **more: Any) -> Snapshot:
    return Snapshot(**{"time_s": 1.8e9 + at_s, "world_size": 1, "heard_from": 1, "restarts": 0, "calls": [NOT_FINITE], **more})


def run() -> Any:
    return wandb.init(project="theirs", mode="offline", settings=wandb.Settings(console="off"))


def beside_a_training() -> None:
    """Steps of the training's own, in its own numbers, and two snapshots at each but the last."""
    theirs, sink = run(), unhang.WandB()
    for step in range(100, 105):
        theirs.log({"loss": 1.0 / step}, step=step)
        if step < 104:
            sink.write(snapshot(step, step=step, restarts=1))
            sink.write(snapshot(step + 0.5, step=step, restarts=2))
    theirs.finish()
    # It has had a run, and has none any more: nobody starts another one for the last snapshot.
    sink.write(snapshot(200, step=104))
    sink.close()


def during_a_hang() -> None:
    """Nothing more is logged by the training, and it is killed."""
    theirs, sink = run(), unhang.WandB(run=None)
    theirs.log({"loss": 1.0})
    sink.write(snapshot(0, restarts=7))
    print("summary", theirs.summary["unhang/restarts"], file=sys.stderr)
    sink.close()
    theirs.finish()


def given() -> None:
    """A run that is not the active one."""
    theirs = wandb.init(project="given", mode="offline", reinit="create_new", settings=wandb.Settings(console="off"))
    sink = unhang.WandB(theirs)
    sink.write(snapshot(0, restarts=3))
    sink.close()
    theirs.finish()
    sink.write(snapshot(1))


def of_its_own() -> None:
    """Nobody has a run, no key, no mode; later the training makes its own."""
    sink = unhang.WandB(name="seen by unhang")
    sink.write(snapshot(0, step=1, restarts=1))
    sink.write(snapshot(10, step=2, restarts=2))
    assert wandb.run is None
    theirs = run()
    assert theirs.project == "theirs"
    sink.write(snapshot(20, step=3, restarts=3))
    theirs.log({"loss": 1.0}, step=0)
    sink.close()
    theirs.finish()


def monitored() -> None:
    with unhang.Monitor([unhang.WandB(mode="offline")], every_s=60, patience_s=60) as monitor:
        monitor.step = 77


def unreachable() -> None:
    monitor = unhang.Monitor([unhang.WandB()], every_s=0.1, patience_s=60)
    until = time.monotonic() + 60
    while not monitor._outlets[0].off and time.monotonic() < until:
        time.sleep(0.05)
    monitor.close()


def held(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = {"project": None, "rows": [], "summary": {}, "metrics": {}}
    for data in records(path.read_bytes()):
        record = Record.FromString(data)
        if record.HasField("run") and record.run.project:
            found["project"] = record.run.project
        if record.HasField("history"):
            found["rows"].append({item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in record.history.item})
        if record.HasField("summary"):
            found["summary"] |= {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in record.summary.update}
        if record.HasField("metric"):
            found["metrics"][record.metric.name or record.metric.glob_name] = record.metric.step_metric
    return found


def records(data: bytes) -> list[bytes]:
    """Of LevelDB's log format, behind W&B's own seven bytes: blocks of 32 KiB, in each (checksum, size, whole or first or middle or last)."""
    found, parts, at = [], b"", 7
    while at + 7 <= len(data):
        if 32768 - at % 32768 < 7:
            at += 32768 - at % 32768
            continue
        _, size, kind = struct.unpack_from("<IHB", data, at)
        parts += data[at + 7 : at + 7 + size]
        at += 7 + size
        if kind in (1, 4):
            found.append(parts)
            parts = b""
    return found


if __name__ == "__main__":
    logging.basicConfig(format="logged: %(message)s")
    globals()[sys.argv[1]]()
    # Files are complete when the process that writes them has ended.
    wandb.teardown()
    print(json.dumps({path.stem: held(path) for path in sorted(Path("wandb").glob("offline-run-*/*.wandb"))}))
