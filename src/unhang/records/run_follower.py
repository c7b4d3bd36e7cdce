"""Looks at a run directory again and again, and says each time how the run stands.

Nothing is taken for granted: a supervisor that is gone, or that has not written for a while, leaves ranks of which nothing is known.
"""

from __future__ import annotations

import datetime
import errno
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import field, replace
from pathlib import Path
from typing import Any

from unhang.errors import RunDirError
from unhang.model import ProcessId, Verdict, frozen
from unhang.records.run_snapshot import STATES, Job, Memory, Phase, Rank, RunSnapshot, State, Supervisor, Trouble, VerdictSummary
from unhang.records.run_so_far import LAST_BYTES, History, Monitored, Snapshots
from unhang.records.rundir import RUN_SCHEMA, RunDir
from unhang.records.status import NOW_SCHEMA, Now, RankNow
from unhang.records.tail import Appended, Replaced

# A heartbeat comes four times a second, also while the main thread is blocked.
SILENT_AFTER_S = 5.0
# A supervisor writes every second; one that has not for so many of its own intervals, and so long, is not believed any more.
STALE_INTERVALS, STALE_S = 3.0, 6.0
# A collective that takes longer is worth a word, if its rank is not late itself.
WAITS_S = 3.0
EVENTS = 50


@frozen
class _Run:
    """run.json, as far as it matters here."""

    schema: str = ""
    command: tuple[str, ...] = ()
    cwd: str | None = None
    python: str | None = None
    torch: str | None = None
    world_size: int | None = None
    settings: Mapping[str, Any] | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    supervisor: ProcessId | None = None
    started: str = ""


def why_unreadable(error: OSError) -> str | None:
    """The usual cause; None where there are many."""
    return "it belongs to another user" if error.errno in (errno.EACCES, errno.EPERM) else None


class Looker:
    """`look` as often as is wanted. `is_alive` says whether a process lives, None where that cannot be seen from here; `memory` of a device (its host
    and its PCI address), None where it is not known.
    """

    def __init__(
        self,
        path: Path,
        *,
        is_alive: Callable[[ProcessId], bool | None],
        memory: Callable[[str, str], Memory | None] = lambda host, gpu: None,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        rundir = self._rundir = RunDir(path)
        self.path = path
        self._is_alive, self._memory = is_alive, memory
        self._clock, self._monotonic = clock, monotonic
        self._run = Replaced(rundir.run, _Run)
        self._now = Replaced(rundir.now, Now)
        self._verdict = Replaced(rundir.verdict, Verdict)
        self._history = History(Appended(rundir.events))
        self._snapshots = Snapshots(Appended(rundir.monitor, from_last_bytes=LAST_BYTES))
        self._written: tuple[float, float | None] | None = None

    def look(self) -> RunSnapshot:
        """How it stands now. Raises RunDirError where there is no run directory, or none that may be read."""
        try:
            names = {p.name for p in self.path.iterdir()} if not (self.path / "run.json").is_file() else {"run.json"}
        except FileNotFoundError as e:
            raise RunDirError(f"there is no run directory {self.path}", hint="unhang top without a name takes the newest one here") from e
        except NotADirectoryError as e:
            raise RunDirError(f"{self.path} is no directory", cause="unhang run makes run directories as runs/<name>-<time>/") from e
        except OSError as e:
            raise RunDirError(f"cannot read {self.path}: {e.strerror or e}", cause=why_unreadable(e)) from e
        for file in (self._run, self._now, self._verdict, self._history.lines, self._snapshots.lines):
            self._rundir.check(file.path)
        if not names:
            raise RunDirError(f"{self.path} is empty", cause="unhang run has not begun to write there yet, or was ended before it could")
        if "run.json" not in names and "events.jsonl" not in names:
            raise RunDirError(f"{self.path} is not a run directory: it has no run.json", cause="unhang run makes them as runs/<name>-<time>/")
        run = self._run.read() or _Run()
        self._history.read()
        # Behind the events: of what both tell it is the newer.
        now = self._now.read()
        verdict = self._verdict.read()
        monitored = self._snapshots.read()
        return _Drawing(self, run, now, verdict, monitored).picture()

    @property
    def now(self) -> Now | None:
        """The record of the ranks that the last look was drawn from, None where there is none of the present attempt."""
        now, started = self._now.value, self._history.started
        return now if now is not None and (started is None or now.attempt == started.attempt) else None

    def news(self, picture: RunSnapshot) -> tuple[object, ...]:
        """Differs from that of an earlier look where there is more to tell than time that went by."""
        history, now = self._history, self._now.value
        return (
            now.time_s if now is not None else None,
            history.newest_s,
            len(history.recent),
            picture.monitor.time_s if picture.monitor is not None else None,
            picture.job.phase,
            picture.job.supervisor.alive,
            picture.job.verdict,
            dict(picture.counts),
            picture.notes,
        )

    def age_s(self, now: Now) -> float | None:
        """How old it is. By our own clock once it was seen to be replaced: that of another host may be wrong."""
        mono = self._monotonic()
        if self._written is None:
            age = self._clock() - now.time_s
            # From the future: nobody can tell.
            self._written = (now.time_s, mono - max(age, 0.0) if age > -1 else None)
        elif self._written[0] != now.time_s:
            self._written = (now.time_s, mono)
        return None if self._written[1] is None else max(mono - self._written[1], 0.0)


class _Drawing:
    """One look, put together."""

    def __init__(self, looker: Looker, run: _Run, now: Now | None, verdict: Verdict | None, monitored: Monitored | None) -> None:
        self._looker = looker
        self._run, self._now, self._verdict, self._monitored = run, now, verdict, monitored
        self._history = looker._history
        self._time_s = looker._clock()
        self._age_s = looker.age_s(now) if now is not None else None
        process = self._run.supervisor
        silent_s = self._age_s
        if silent_s is None and self._started_s() is not None and self._history.newest_s is not None:
            silent_s = max(self._time_s - (self._started_s() or 0.0) - self._history.newest_s, 0.0)
        self._supervisor = Supervisor(
            host=process.host if process is not None else self._now.host if self._now is not None else None,
            pid=process.pid if process is not None else None,
            alive=None if process is None else self._looker._is_alive(process),
            silent_s=None if silent_s is None else round(silent_s, 1),
        )
        started = _since_1970(run.started)
        # run.json tells whole seconds only.
        self._started = now.time_s - now.at_s if now is not None else started
        self._phase: Phase = self._of_phase()

    def picture(self) -> RunSnapshot:
        ranks = self._ranks()
        if self._phase == "running" and all(r.state == "starting" for r in ranks):
            self._phase = "starting"
        monitored, before, age = self._monitored, False, None
        if monitored is not None:
            age = max(self._time_s - monitored.time_s, 0.0)
            before = monitored.time_s < self._attempt_began()
        return RunSnapshot(
            run_dir=str(self._looker.path),
            time_s=round(self._time_s, 3),
            job=self._job(ranks),
            counts={state: n for state in STATES if (n := Counter(r.state for r in ranks)[state])},
            ranks=ranks,
            monitor=monitored,
            monitor_age_s=None if age is None else round(age, 1),
            monitor_of_before=before,
            events=tuple(self._history.recent)[-EVENTS:],
            notes=tuple(self._notes()),
        )

    # -- the run

    def _started_s(self) -> float | None:
        return _since_1970(self._run.started)

    @property
    def _is_fresh(self) -> bool:
        """Whether what the supervisor wrote last tells how it is now."""
        now = self._now
        return now is not None and self._age_s is not None and self._age_s <= max(STALE_S, STALE_INTERVALS * now.every_s)

    @property
    def _is_of_this_attempt(self) -> bool:
        return self._looker.now is not None

    def _of_phase(self) -> Phase:
        history = self._history
        if history.finished is not None:
            return "ended"
        if self._supervisor.alive is False:
            return "gone"
        if self._supervisor.alive is None and not self._is_fresh:
            return "unknown"
        if history.trying is not None:
            return "trying"
        if history.started is None:
            return "starting"
        if self._is_of_this_attempt and self._now is not None and self._now.last:
            return "between"
        if not (self._is_of_this_attempt and self._is_fresh):
            # It lives, and this attempt may have begun a moment ago; else nobody knows what it does.
            return "starting" if self._supervisor.alive and self._since_start_s() < STALE_S else "unknown"
        if history.wrong is not None and history.wrong.kind != "straggler":
            return "wrong"
        return "standing" if self._now is not None and self._now.standstill is not None else "running"

    def _since_start_s(self) -> float:
        """How long ago the present attempt began, as far as clocks tell."""
        return self._time_s - self._attempt_began()

    def _attempt_began(self) -> float:
        after_s = self._history.started.s if self._history.started is not None else 0.0
        return (self._started if self._started is not None else self._time_s) + after_s

    def _job(self, ranks: tuple[Rank, ...]) -> Job:
        run, history, now = self._run, self._history, self._now if self._is_of_this_attempt else None
        described = run.settings or {}
        asked = described.get("settings")
        finished = history.finished
        moving = [r for r in ranks if r.step is not None and r.state not in ("left", "done", "stopped", "failed")] or [
            r for r in ranks if r.step is not None
        ]
        slowest = min(moving, key=lambda r: r.step or 0, default=None)
        timeouts = [r.timeout_s for r in now.ranks if r.timeout_s is not None] if now is not None else []
        worlds = [r.world_size for r in ranks if r.world_size is not None]
        return Job(
            command=run.command,
            cwd=run.cwd,
            python=run.python,
            torch=run.torch,
            preset=_text(described.get("preset")),
            settings={str(s["key"]): s.get("value") for s in asked if isinstance(s, dict) and "key" in s} if isinstance(asked, list) else {},
            on_failure=_text(run.options.get("on_failure")),
            max_restarts=n if isinstance(n := run.options.get("max_restarts"), int) else None,
            started=None if self._started is None else round(self._started, 3),
            elapsed_s=finished.elapsed_s if finished is not None else self._elapsed_s(),
            attempt=history.started.attempt if history.started is not None else None,
            phase=self._phase,
            supervisor=self._supervisor,
            expected=max([*worlds, *([run.world_size] if run.world_size is not None else [])], default=None),
            step=None if slowest is None else slowest.step,
            steps_per_s=None if slowest is None else slowest.steps_per_s,
            usual_gap_s=None if now is None else now.usual_gap_s,
            hang_after_s=None if now is None else now.hang_after_s,
            timeout_s=min(timeouts, default=None),
            trouble=self._trouble(),
            verdict=self._told(),
            exitcode=None if finished is None else finished.exitcode,
            attempts=history.starts if finished is None else finished.attempts,
            gave_up=None if history.gave_up is None else history.gave_up.why,
        )

    def _elapsed_s(self) -> float | None:
        if self._started is None:
            return None
        if self._phase != "gone":
            return round(max(self._time_s - self._started, 0.0), 1)
        # Of one that is gone only its last word is known.
        last = [*([self._now.time_s - self._started] if self._now is not None else []), *([s] if (s := self._history.newest_s) is not None else [])]
        return round(max(*last, 0.0), 1) if last else None

    def _trouble(self) -> Trouble | None:
        wrong = self._history.wrong
        if wrong is None or self._phase == "ended":
            return None
        for_s = None if self._started is None else round(max(self._time_s - self._started - wrong.at_s, 0.0), 1)
        return Trouble(kind=wrong.kind, number=wrong.number, for_s=for_s, judged=wrong.closed)

    def _told(self) -> VerdictSummary | None:
        """The last verdict; in full where verdict.json is of the same incident as the events are."""
        wrong = next((wrong for wrong in reversed(self._history.incidents) if wrong.verdict is not None), None)
        last = wrong.verdict if wrong is not None else None
        attempt = wrong.attempt if wrong is not None else None
        primary = self._verdict.primary if self._verdict is not None else None
        if primary is not None and (last is None or (primary.cause, primary.says) == (last.cause, last.says)):
            return VerdictSummary(
                attempt=attempt,
                cause=primary.cause,
                says=primary.says,
                standing=primary.standing,
                where=primary.where,
                ranks=primary.ranks,
            )
        return None if last is None else VerdictSummary(attempt=attempt, cause=last.cause, says=last.says)

    # -- its ranks

    def _ranks(self) -> tuple[Rank, ...]:
        ranks: dict[int, Rank] = {}
        told = self._told()
        wrong = self._history.incidents[-1] if self._history.incidents else None
        of_this = wrong is not None and self._history.started is not None and wrong.attempt == self._history.started.attempt and not wrong.passed
        blamed = frozenset(told.ranks) if told is not None and of_this else frozenset()
        if self._now is not None and self._is_of_this_attempt:
            ranks = {r.rank: self._rank(r, self._now, blamed) for r in self._now.ranks}
        for number, seen in self._history.ranks.items():
            if number not in ranks:
                state: State = "starting" if self._phase in ("starting", "running") else "unknown"
                ranks[number] = Rank(rank=number, state=state, host=seen.host, pid=seen.pid, world_size=seen.world_size, blamed=number in blamed)
        return tuple(ranks[number] for number in sorted(ranks))

    def _rank(self, told: RankNow, now: Now, blamed: frozenset[int]) -> Rank:
        since_s = self._age_s or 0.0
        ended = told.ended_s is not None
        age_s = None if told.beat_s is None or self._age_s is None else now.at_s - told.beat_s + since_s
        waiting = told.waiting
        return Rank(
            rank=told.rank,
            state=self._state(told, now),
            host=told.host,
            pid=told.pid,
            local_rank=told.local_rank,
            world_size=told.world_size,
            backend=told.backend,
            device=told.device,
            gpu=told.gpu,
            memory=self._looker._memory(told.host, told.gpu) if told.gpu is not None and not ended and self._is_fresh else None,
            # Nobody sees the steps of a training that has no optimizer of torch's.
            step=told.step or None,
            steps_per_s=told.steps_per_s if self._is_fresh and not ended else None,
            age_s=None if age_s is None else round(age_s, 1),
            quiet_s=round(now.at_s - told.progress_s + since_s, 1) if told.progress_s is not None and self._is_fresh else None,
            place=told.place,
            call=waiting.call if waiting is not None else None,
            group=waiting.group if waiting is not None else None,
            number=waiting.number if waiting is not None else None,
            # Of one that nobody looks at any more it is not known whether it waits still.
            waits_s=round(now.at_s - waiting.since_s + since_s, 1) if waiting is not None and self._is_fresh else None,
            process=told.process,
            alive=self._lives(told),
            cpu_share=told.cpu_share,
            raised=told.raised,
            exitcode=told.exitcode,
            blamed=told.rank in blamed,
        )

    def _lives(self, told: RankNow) -> bool | None:
        """Of a rank that nobody watches any more. The kernel told its pid to the supervisor: it is of the supervisor's machine and namespace."""
        supervisor = self._run.supervisor
        if self._phase != "gone" or supervisor is None or told.ended_s is not None or told.start_ticks is None:
            return None
        return self._looker._is_alive(replace(supervisor, pid=told.pid, start_ticks=told.start_ticks))

    def _state(self, told: RankNow, now: Now) -> State:
        if told.raised is not None or (told.exitcode not in (None, 0) and not told.by_launcher):
            return "failed"
        if told.ended_s is not None:
            if told.by_launcher:
                return "stopped"
            return "done" if told.announced or told.left else "failed"
        if self._phase in ("gone", "unknown", "ended") or not self._is_fresh:
            return "unknown"
        if told.left:
            return "left"
        joined = told.world_size is not None or told.step > 0
        if joined and now.at_s - (told.beat_s if told.beat_s is not None else told.since_s) > SILENT_AFTER_S:
            return "silent"
        stands = now.standstill
        if stands is not None and told.rank in stands.absent:
            for_long = now.at_s - stands.since_s >= now.hang_after_s
            stalled, wrong = self._history.stalled, self._history.wrong
            if stalled is not None and told.rank in stalled.ranks:
                return "slow" if stalled.kind in ("works", "repeats") else "stuck" if stalled.kind in ("stuck", "stopped") else "late"
            return "stuck" if for_long or (wrong is not None and wrong.kind == "hang") else "late"
        if (stands is not None and told.rank in stands.waiting) or (told.waiting is not None and now.at_s - told.waiting.since_s >= WAITS_S):
            return "waiting"
        return "running" if joined else "starting"

    # -- what could not be read

    def _notes(self) -> list[str]:
        looker, history = self._looker, self._history
        notes = []
        for file in (looker._run, looker._now, looker._verdict, history.lines, looker._snapshots.lines):
            if file.error is not None:
                notes.append(f"{file.path.name} cannot be read: {file.error}")
        if looker._run.missing:
            notes.append("run.json is missing: what was started is not known")
        if history.lines.missing:
            notes.append("events.jsonl is missing: what has happened is not known")
        for name, damaged in (("events.jsonl", history.damaged + history.lines.too_long), ("monitor.jsonl", looker._snapshots.damaged)):
            if damaged:
                notes.append(f"{name}: {damaged} damaged line{'' if damaged == 1 else 's'} left out")
        if history.lines.is_cut and self._phase in ("ended", "gone", "unknown"):
            notes.append("events.jsonl ends in the middle of a line: what it was to tell is not known")
        for name, found, ours in (("run.json", self._run.schema, RUN_SCHEMA), ("now.json", self._now.schema if self._now else "", NOW_SCHEMA)):
            if found and found != ours:
                notes.append(f"{name} is {found}, of another version of unhang: what is known here is shown")
        if looker._now.missing and history.started is not None and self._phase != "starting":
            notes.append("now.json is missing: how the ranks stand is not known (it was removed, or this run's unhang writes none)")
        return notes


def _since_1970(text: str) -> float | None:
    try:
        return datetime.datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError, OSError):
        return None


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None
