"""What each host's supervisor wrote of its own ranks, laid into one run directory as if one supervisor had watched all."""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from pathlib import Path

from unhang import fsio
from unhang.errors import RunDirError
from unhang.model import frozen
from unhang.records.incident import GuardedLine, Incident, IncidentKind, LogRef, Missed, RankRecord
from unhang.records.rundir import RunDir
from unhang.records.status import MOST_CHARACTERS, Now, RankNow, Standstill

# What a job has come to when its hosts tell of different things: what says most of it.
_KINDS: tuple[IncidentKind, ...] = ("failure", "world-size", "hang", "straggler", "interrupted")


@frozen
class Part:
    """What one host has: a copy of its run directory, the incident in it, and how many seconds after the job's start that host's run began."""

    host: str
    rundir: RunDir
    incident: Incident
    began_s: float


def merge(
    into: RunDir,
    parts: Sequence[Part],
    *,
    number: int,
    attempt: int,
    command: Sequence[str],
    cwd: str,
    logs: Sequence[LogRef],
    without: Mapping[str, str],
    lost: Mapping[str, tuple[int, ...]],
    closed: tuple[str, ...] = (),
) -> Incident:
    """Write the incident of all hosts, with all files that its ranks have; `logs` are here already, and nothing is of the hosts `without`, with the
    reason. `lost`: those that no longer answer, with their ranks; `closed`: those of them that closed the
    connection themselves.

    A rank that a second host has as well is left out, and named.
    """
    ranks: dict[int, RankRecord] = {}
    missed = [Missed(what=f"evidence of {host}", why=why) for host, why in without.items()]
    for part in parts:
        lay = _Laying(into, part, number=number, attempt=attempt)
        for record in part.incident.ranks:
            if (other := ranks.get(record.rank)) is not None:
                missed.append(Missed(what=f"rank {record.rank} of {part.host}", why=f"{other.host} has a rank of that number, too"))
                continue
            ranks[record.rank] = lay.record(record)
        missed += [Missed(what=f"{m.what} ({part.host})", why=m.why) for m in (*part.incident.missed, *lay.missed)]
    incidents = [part.incident for part in parts]
    kind = min((i.kind for i in incidents), key=_KINDS.index)
    first = min((part for part in parts if part.incident.kind == kind), key=lambda part: part.began_s + part.incident.at_s)
    codes = [i.exitcode for i in incidents if i.exitcode]
    kills = [i.oom_kills for i in incidents if i.oom_kills is not None]
    guards: dict[tuple[str, int], GuardedLine] = {(g.file, g.line): g for i in incidents for g in i.guards}
    made = replace(
        first.incident,
        number=number,
        attempt=attempt,
        at_s=first.began_s + first.incident.at_s,
        cwd=cwd,
        command=tuple(command),
        stalled_for_s=max((i.stalled_for_s for i in incidents if i.stalled_for_s is not None), default=None),
        exitcode=codes[0] if codes else None,
        oom_kills=sum(kills) if kills else None,
        kernel=_Laying(into, first, number=number, attempt=attempt).kernel(),
        # All ranks of the job are here now.
        elsewhere={},
        lost=dict(lost),
        closed=closed,
        ranks=tuple(ranks[rank] for rank in sorted(ranks)),
        logs=tuple(logs),
        guards=tuple(guards[at] for at in sorted(guards)),
        missed=tuple(dict.fromkeys(missed)),
    )
    into.write(into.incident(number), made)
    return made


def now(each: Sequence[tuple[Now, float]], *, attempt: int, at_s: float) -> Now:
    """What all ranks do at `at_s`, from what each host's supervisor last wrote, and when its run began. They stand still where all hosts do."""
    living = [(told, later) for told, later in each if not told.last]
    stands = [replace(told.standstill, since_s=told.standstill.since_s + later) for told, later in living if told.standstill is not None]
    waiting = tuple(sorted({rank for one in stands for rank in one.waiting}))
    whole = Standstill(
        since_s=max((one.since_s for one in stands), default=0.0),
        waiting=waiting,
        absent=tuple(sorted({rank for one in stands for rank in one.absent} - set(waiting))),
    )
    return Now(
        attempt=attempt,
        host=",".join(told.host for told, _ in each)[:MOST_CHARACTERS],
        time_s=time.time(),
        at_s=at_s,
        every_s=max(told.every_s for told, _ in each),
        hang_after_s=max(told.hang_after_s for told, _ in each),
        usual_gap_s=max((told.usual_gap_s for told, _ in each if told.usual_gap_s is not None), default=None),
        standstill=whole if living and len(stands) == len(living) else None,
        last=not living,
        ranks=tuple(sorted((_rank_later(rank, later) for told, later in each for rank in told.ranks), key=lambda rank: rank.rank)),
    )


def _rank_later(rank: RankNow, later: float) -> RankNow:
    return replace(
        rank,
        since_s=rank.since_s + later,
        # Ticks of another machine.
        start_ticks=None,
        beat_s=_later(rank.beat_s, later),
        progress_s=_later(rank.progress_s, later),
        ended_s=_later(rank.ended_s, later),
        waiting=None if rank.waiting is None else replace(rank.waiting, since_s=rank.waiting.since_s + later),
    )


@dataclass(eq=False)
class _Laying:
    """Copies the files of one host to the places that they have in the job's run directory."""

    into: RunDir
    part: Part
    _: KW_ONLY
    number: int
    attempt: int
    missed: list[Missed] = field(default_factory=list)

    def record(self, record: RankRecord) -> RankRecord:
        """The record with times since the job's start, and files of the job's directory."""
        later = self.part.began_s
        stacks, flight = self.into.stacks(self.number, record.rank), self.into.flight(self.number, record.rank)
        fatal = self.part.rundir.fatal_of(self.part.incident.attempt, record.rank)
        if fatal.is_file():
            self._copy(fatal, self.into.fatal_of(self.attempt, record.rank))
        return replace(
            record,
            host=self.part.host,
            last_beat_s=_later(record.last_beat_s, later),
            last_progress_s=_later(record.last_progress_s, later),
            raised=None if record.raised is None else replace(record.raised, at_s=record.raised.at_s + later),
            ended=None if record.ended is None else replace(record.ended, at_s=record.ended.at_s + later),
            stacks=self._named(record.stacks, stacks),
            flight=self._named(record.flight, flight),
            children=tuple(
                replace(child, stacks=self._named(child.stacks, self.into.stacks(self.number, record.rank, child=child.pid)))
                for child in record.children
            ),
        )

    def kernel(self) -> str | None:
        return self._named(self.part.incident.kernel, self.into.kernel(self.number))

    def _named(self, relative: str | None, target: Path) -> str | None:
        """The path of a copy of a file that a record names; None where there is none."""
        if relative is None:
            return None
        source = self.part.rundir.path / relative
        if not self.part.rundir.holds(source):
            self.missed.append(Missed(what=relative, why="it was not brought here"))
            return None
        return self.into.relative(target) if self._copy(source, target) else None

    def _copy(self, source: Path, target: Path) -> bool:
        try:
            fsio.make_directory(target.parent)
            shutil.copyfile(source, target)
        except OSError as e:
            self.missed.append(Missed(what=source.name, why=f"cannot be copied: {e.strerror}"))
            return False
        return True


def newest(rundir: RunDir) -> Incident | None:
    """The last incident of a host's run; None where it has none that can be read."""
    for number in reversed(rundir.incident_numbers()):
        with contextlib.suppress(RunDirError):
            return rundir.read_incident(number)
    return None


def _later(at_s: float | None, later: float) -> float | None:
    return None if at_s is None else at_s + later
