"""A scene out of a run directory: what one incident left of each rank, beside the verdict that was drawn from it.

Logs are not read again. What cannot be read is left out here; the verdict says that it could not be.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from typing import Any

from unhang import flight
from unhang.diagnosis.redact import redact_data
from unhang.errors import UnhangError
from unhang.flight import CollectiveWait, Stall, dump
from unhang.frames import Frame, place, short_path, user_frame
from unhang.model import frozen
from unhang.printable import one_line
from unhang.records import stack_tree
from unhang.records.incident import Ended, Incident, RankRecord
from unhang.records.rundir import RunDir
from unhang.report.html.of_lanes import focus_on, group_at, scene_of, sides_of, with_missing
from unhang.report.html.scene import Concern, Divergence, Fact, Facts, RankRow, Scene, StackGroup, StackLine
from unhang.text import size
from unhang.user_files import is_user_file

_MOST_FACTS = 60
_MOST_FACT_CHARS = 400


@frozen
class _Left:
    """What could be read of one incident."""

    incident: Incident
    dumps: Mapping[int, dump.Dump]
    frames: Mapping[int, tuple[Frame, ...]]
    waits: Mapping[int, CollectiveWait]
    front: Stall | None


def gather(rundir: RunDir, *, number: int | None = None) -> Scene:
    """The scene of incident `number`, by default of the last that can be read; where none can, the facts of the run. Without credentials."""
    scene = Scene(title=one_line(rundir.path.name), facts=tuple(_facts(rundir)))
    for n in [number] if number is not None else reversed(rundir.incident_numbers()):
        try:
            incident = rundir.read_incident(n)
            given = [(path, r.rank) for r in incident.ranks if r.flight and rundir.holds(path := rundir.path / r.flight)]
            with closing(dump.read_all(given, drawn=True)) as found:
                dumps = {rank: d for (_, rank), d in zip(given, found, strict=True) if isinstance(d, dump.Dump)}
            frames = stack_tree.main_threads(rundir, incident)
            records = {r.rank: r for r in incident.ranks}
            alive = [rank for rank, r in records.items() if r.ended is None or r.raised is not None]
            stands = flight.standstill(records, dumps, frames, at_s=incident.at_s, alive=alive)
            left = _Left(incident=incident, dumps=dumps, frames=frames, waits=stands.waits, front=stands.front)
        except UnhangError:
            continue
        scene = _scene(left, scene)
        break
    return redact_data(scene)


def _scene(left: _Left, scene: Scene) -> Scene:
    incident = left.incident
    drawn = scene_of(
        {rank: (d.lanes,) if d.lanes is not None else () for rank, d in left.dumps.items()},
        cwd=incident.cwd,
        hosts={r.rank: r.host for r in incident.ranks},
        until_ns=_nanoseconds(incident.at),
    )
    divergence = _divergence(left, drawn)
    if divergence is not None:
        drawn = with_missing(drawn, divergence)
    return replace(
        drawn,
        title=scene.title,
        taken=incident.at.replace("T", " ").split(".")[0].split("+")[0] + " UTC",
        ranks=tuple(_row(r, left, divergence) for r in sorted(incident.ranks, key=lambda r: r.rank)),
        divergences=(divergence,) if divergence is not None else (),
        focus=focus_on(drawn, left.front.group, left.front.seq, left.front.waiting) if divergence is None and left.front is not None else None,
        stacks=_stacks(left),
        facts=scene.facts,
    )


def _nanoseconds(at: str) -> int:
    try:
        return int(datetime.datetime.fromisoformat(at).timestamp() * 1e9)
    except ValueError:
        return 0


def _divergence(left: _Left, scene: Scene) -> Divergence | None:
    """Where the job stands still, if it is drawn: a rank that left no dump and no counters is unknown, not missing."""
    front = left.front
    if front is None:
        return None
    parting = front.parting
    name, number = (front.group, front.seq) if parting is None else (parting.group, parting.seq)
    records = {r.rank: r for r in left.incident.ranks}
    absent = [r for r in front.absent if r not in left.waits] if parting is None else []
    known = tuple(r for r in absent if r in left.dumps or name in records[r].groups)
    unknown = (*(r for r in absent if r not in known), *(() if parting is not None else front.unseen))
    odd = parting.odd if parting is not None else ()
    group = group_at(scene, name, (*odd, *known)) if name is not None else None
    if group is None or number is None or not (odd or known):
        return None
    return Divergence(group=group, number=number, odd=odd, missing=known, sides=sides_of(scene, group, number, odd, known, unknown))


def _row(record: RankRecord, left: _Left, divergence: Divergence | None) -> RankRow:
    wait = left.waits.get(record.rank)
    concern, says = _concern(record, wait, divergence, known=record.rank in left.frames)
    frame = (wait.place if wait is not None else None) or user_frame(left.frames.get(record.rank, ())) or record.last_place
    return RankRow(
        rank=record.rank,
        concern=concern,
        host=record.host,
        says=says,
        where=place(frame, left.incident.cwd) if frame is not None else "",
        step=record.step,
        exitcode=record.ended.exitcode if record.ended is not None else None,
        unseen=record.rank not in left.dumps,
    )


def _concern(record: RankRecord, wait: CollectiveWait | None, divergence: Divergence | None, *, known: bool) -> tuple[Concern, str]:
    doing = f"waits in {wait.op}" if wait is not None else _doing(record)
    if record.ended is None and record.activity is not None and record.activity.stopped:
        return "stopped", "stopped (SIGSTOP)" if record.activity.state == "T" else "stopped by a debugger"
    if divergence is not None and record.rank in divergence.odd:
        return "odd", doing
    if divergence is not None and record.rank in divergence.missing:
        return "missing", doing
    if record.raised is not None:
        return "failed", f"{record.raised.type}: {next(iter(record.raised.text.splitlines()), '')}"
    if record.ended is not None:
        failed = not record.ended.by_launcher and record.ended.exitcode != 0
        return "failed" if failed else "ended", _ending(record.ended)
    if wait is not None:
        return "waiting", doing
    return ("outside", doing) if known else ("unknown", doing)


def _doing(record: RankRecord) -> str:
    activity = record.activity
    if activity is None or record.ended is not None:
        return ""
    return f"executes ({activity.tree_cpu_share:.0%} of a core)" if activity.busy else f"idle (state {activity.state})"


def _ending(ended: Ended) -> str:
    by = " by the launcher" if ended.by_launcher else ""
    if ended.exitcode is None:
        return f"ended{by}"
    return f"ended{by} by signal {-ended.exitcode}" if ended.exitcode < 0 else f"ended{by} with exit code {ended.exitcode}"


def _stacks(left: _Left) -> tuple[StackGroup, ...]:
    trunk = stack_tree.group(left.frames)
    if trunk is None:
        return ()
    shared = len(trunk.frames) if trunk.branches else 0
    return tuple(
        StackGroup(ranks=ranks, lines=tuple(_line(f, left.incident.cwd) for f in frames), shared=min(shared, len(frames) - 1))
        for ranks, frames in stack_tree.ends(trunk)
    )


def _line(frame: Frame, cwd: str) -> StackLine:
    return StackLine(file=short_path(frame.file, cwd), line=frame.line, name=frame.name, code=frame.code, own=is_user_file(frame.file))


def _facts(rundir: RunDir) -> Iterator[Facts]:
    run = _json(rundir, rundir.run)
    environment = run.pop("environment", None)
    command = run.get("command")
    if isinstance(command, list):
        run["command"] = " ".join(map(str, command))
    run.pop("schema", None)
    yield Facts(title="run", facts=_flat(run))
    if isinstance(environment, dict):
        yield Facts(title="environment", facts=_flat(environment))
    host = _json(rundir, rundir.host)
    parts = host.get("parts")
    seen = {name: part.get("facts") for name, part in parts.items() if isinstance(part, dict)} if isinstance(parts, dict) else {}
    yield Facts(title="host", facts=_flat({"host": host.get("host")} | seen))


def _json(rundir: RunDir, path: Any) -> dict[str, Any]:
    try:
        return rundir.read(path, dict) if rundir.holds(path) else {}
    except UnhangError:
        return {}


def _flat(value: Mapping[str, Any], prefix: str = "") -> tuple[Fact, ...]:
    return tuple(_pairs(value, prefix))[:_MOST_FACTS]


def _pairs(value: Mapping[str, Any], prefix: str) -> Iterable[Fact]:
    for key, inner in value.items():
        name = str(key) if str(key).isupper() else f"{prefix}{key}".removesuffix("_bytes").replace("_", " ")
        if isinstance(inner, dict):
            yield from _pairs(inner, f"{prefix}{key} ")
        elif isinstance(inner, list):
            if inner and not any(isinstance(i, (dict, list)) for i in inner):
                yield Fact(name=name, value=", ".join(map(str, inner))[:_MOST_FACT_CHARS])
        elif inner is not None and inner != "":
            yield Fact(name=name, value=_shown(str(key), inner))


def _shown(key: str, value: object) -> str:
    if key.endswith("_bytes") and isinstance(value, int):
        return size(value)
    return str(value)[:_MOST_FACT_CHARS]
