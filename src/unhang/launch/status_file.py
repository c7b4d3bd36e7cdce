"""Writes down once a second what the ranks are doing, for onlookers. A slow or dead file system is waited for by a thread, and by nobody else."""

from __future__ import annotations

import contextlib
import queue
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass

import msgspec

from unhang.facts import processes
from unhang.facts.host import Host
from unhang.launch.outside_view import INTERVAL_S as SAMPLED_EVERY_S
from unhang.launch.outside_view import Sampler
from unhang.launch.rank_table import RankTable
from unhang.launch.still_running import placed
from unhang.launch.watch import RankState, Stall, Watch, rate
from unhang.records.rundir import RunDir, not_written
from unhang.records.status import MOST_CHARACTERS, Now, RankNow, Standstill, Waiting

INTERVAL_S = 1.0
# Taking it down may cost this share of a core at most: with very many ranks it is done less often.
MOST_SHARE = 0.05
SPAN = 10
# At the end of an attempt; what is not written by then never is.
LAST_WITHIN_S = 1.0


@dataclass(eq=False)
class StatusWriter:
    """Call `look` again and again, and `close` at the end of the attempt. Times are seconds since the start of the run; no disk is waited for."""

    rundir: RunDir
    _: KW_ONLY
    attempt: int
    watch: Watch
    roster: RankTable
    sampler: Sampler
    clock: Callable[[], float]
    trouble: Callable[[str], None]
    host: Host

    def __post_init__(self) -> None:
        self._due_s = 0.0
        self._every_s = INTERVAL_S
        # By pid, and since when it has reported.
        self._start_ticks: dict[tuple[int, float], int | None] = {}
        self._steps: dict[int, deque[tuple[float, int]]] = {}
        # One that is not taken yet is enough: the next one will be newer.
        self._queue: queue.Queue[Now | None] = queue.Queue(1)
        self._failed: str | None = None
        self._thread = threading.Thread(target=self._write, name="unhang onlookers", daemon=True)
        self._begun = False

    def look(self) -> None:
        """Take down what is so now, if it is time."""
        now = self.clock()
        if now < self._due_s:
            return
        began = time.perf_counter()
        if not self._begun:
            self._begun = True
            self._thread.start()
        if not self._queue.full():
            taken = self._taken(now)
            with contextlib.suppress(queue.Full):
                self._queue.put_nowait(taken)
        self._every_s = max(INTERVAL_S, (time.perf_counter() - began) / MOST_SHARE)
        self._due_s = now + self._every_s
        if self._failed is not None:
            self.trouble(self._failed)

    def close(self) -> None:
        """The last word on this attempt: waited for within LAST_WITHIN_S."""
        if not self._begun:
            return
        until = time.monotonic() + LAST_WITHIN_S
        try:
            self._queue.put(self._taken(self.clock(), last=True), timeout=LAST_WITHIN_S)
            self._queue.put(None, timeout=max(0.0, until - time.monotonic()))
        except queue.Full:
            return
        self._thread.join(max(0.0, until - time.monotonic()))

    def _write(self) -> None:
        while (taken := self._queue.get()) is not None:
            try:
                # Of a run directory that somebody has removed nothing is made again.
                self.rundir.path.stat()
                self.rundir.write_bytes(self.rundir.now, encoded(taken))
            except OSError as e:
                self._failed = not_written(self.rundir.now, e)

    def _taken(self, now: float, *, last: bool = False) -> Now:
        stall = self.watch.stands(now)
        return Now(
            attempt=self.attempt,
            host=socket.gethostname(),
            time_s=round(time.time(), 3),
            at_s=round(now, 3),
            every_s=round(self._every_s, 3),
            hang_after_s=round(self.watch.rhythm.threshold_s, 3),
            usual_gap_s=None if (gap := self.watch.rhythm.usual_gap_s) is None else round(gap, 4),
            standstill=None if stall is None else _standstill(stall),
            last=last,
            ranks=tuple(self._of(state, now, self.roster.exitcodes) for state in self.roster.states()),
        )

    def _of(self, state: RankState, now: float, exitcodes: Mapping[int, int]) -> RankNow:
        sampled = self.sampler.newest(state)
        # One of a suspicion that has passed says nothing about now.
        activity = self.sampler.activity(state) if sampled is not None and now - sampled <= 2 * SAMPLED_EVERY_S + INTERVAL_S else None
        ended = state.ended
        return RankNow(
            rank=state.rank,
            pid=state.pid,
            host=state.host,
            since_s=round(state.since_s, 3),
            start_ticks=self._started(state),
            local_rank=state.local_rank,
            world_size=state.world_size,
            backend=state.backend,
            device=state.device,
            gpu=state.gpu,
            timeout_s=state.timeout_s,
            step=state.step,
            steps_per_s=self._pace(state, now),
            beat_s=_rounded(state.last_beat_s),
            progress_s=_rounded(state.last_progress_s),
            place=placed(state.place),
            waiting=None if ended is not None else _waiting(state, now),
            process=activity.state if activity is not None and ended is None else None,
            cpu_share=activity.cpu_share if activity is not None and ended is None else None,
            left=state.left,
            raised=None if state.raised is None else f"{state.raised.type}: {state.raised.text}"[:MOST_CHARACTERS],
            ended_s=None if ended is None else round(ended.at_s, 3),
            exitcode=exitcodes.get(state.pid) if ended is None or ended.exitcode is None else ended.exitcode,
            announced=state.announced,
            by_launcher=ended is not None and ended.by_launcher,
        )

    def _started(self, state: RankState) -> int | None:
        """Asked once, of one that lives: later its pid may be another's."""
        key = (state.pid, state.since_s)
        if key not in self._start_ticks:
            self._start_ticks[key] = processes.start_ticks(self.host, state.pid) if state.ended is None else None
        return self._start_ticks[key]

    def _pace(self, state: RankState, now: float) -> float | None:
        """Steps a second over the last SPAN looks; None until there are two of the same process."""
        seen = self._steps.setdefault(state.pid, deque(maxlen=SPAN))
        if state.step > 0:
            seen.append((now, state.step))
        return _rounded(rate(seen))


def encoded(taken: Now) -> bytes:
    """As JSON without what is not known: most of a rank's fields mostly are."""
    from unhang import encoding

    told = msgspec.to_builtins(taken)
    told["ranks"] = [{name: value for name, value in rank.items() if value is not None and value is not False} for rank in told["ranks"]]
    return encoding.encode(told) + b"\n"


def _waiting(state: RankState, now: float) -> Waiting | None:
    wait = state.wait(now)
    if wait is None:
        return None
    # How long is told from its last progress on: what its library's call was promised is no part of being late.
    since_s = now - wait.for_s if wait.group is not None else state.last_progress_s
    return Waiting(since_s=round(since_s, 3), call=state.inside, group=wait.group, number=wait.enqueued if wait.group is not None else None)


def _standstill(stall: Stall) -> Standstill:
    return Standstill(since_s=round(stall.since_s, 3), waiting=stall.waiting, absent=stall.absent)


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 3)
