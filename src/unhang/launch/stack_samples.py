"""What the kernel says the ranks have been doing lately. Only looked at once something is suspected."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from itertools import pairwise

from unhang.facts import processes
from unhang.facts.host import Host
from unhang.launch.children import wait_of
from unhang.launch.watch import RankState
from unhang.model import Wait
from unhang.records.incident import Activity

INTERVAL_S = 0.5
# The kernel's numbers must cover at least this long before a rank is said to be blocked.
MIN_WINDOW_S = 3.0
MAX_WINDOW_S = 10.0
# What a rank executes is compared over so long, or since it last moved on.
LOOP_WINDOW_S = 30.0


def window_s(threshold_s: float) -> float:
    """How far to look back: half the threshold at most, because what a rank did before it stopped must not count as a sign of life."""
    return min(max(threshold_s / 2, MIN_WINDOW_S + 2 * INTERVAL_S), MAX_WINDOW_S)


class Sampler:
    """Keeps the recent samples of every rank of this host. Times are seconds since the start of the run."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._samples: dict[int, deque[processes.Sample]] = {}
        self._threads: dict[int, int | None] = {}
        self._last_s = -INTERVAL_S

    def look(self, states: Sequence[RankState], *, now: float) -> None:
        """Take a sample of each, at most every INTERVAL_S."""
        if now - self._last_s < INTERVAL_S:
            return
        self._last_s = now
        children = processes.descendants(self._host, tuple(s.pid for s in states))
        for state in states:
            if self._threads.setdefault(state.pid, state.tid) != state.tid:
                # What one thread has done says nothing about another.
                self._threads[state.pid] = state.tid
                self._samples.pop(state.pid, None)
            found = processes.sample(self._host, state.pid, t=now, tid=state.tid, children=children[state.pid])
            if found is not None:
                self._samples.setdefault(state.pid, deque(maxlen=int(2 * MAX_WINDOW_S / INTERVAL_S))).append(found)

    def newest(self, state: RankState) -> float | None:
        """When the rank was last looked at."""
        samples = self._samples.get(state.pid)
        return samples[-1].t if samples else None

    def wait(self, state: RankState, *, idle: Collection[int] = (), workers: Collection[int] = ()) -> Wait | None:
        """What the rank waits in now. `idle` and `workers` as in `waits_in`. It may take a while."""
        found = wait_of(self._host, state.pid, tid=state.tid, idle=idle, workers=workers)
        # Its own threads complete a collective for it.
        return replace(found, ends=True) if found is not None and state.is_in_collective else found

    def activity(self, state: RankState, *, window_s: float = MAX_WINDOW_S, since_s: float = 0.0) -> Activity | None:
        """What the rank did during the last `window_s` or less, and not before `since_s`, None if it was never looked at."""
        samples = self._samples.get(state.pid)
        if not samples:
            return None
        last = samples[-1]
        seen = [s for s in samples if last.t - s.t <= window_s and s.t >= since_s] or [last]
        first = seen[0]
        window = max(last.t - first.t, 1e-3)
        return Activity(
            window_s=round(window, 3),
            state=last.state,
            cpu_share=round((last.cpu_s - first.cpu_s) / window, 4),
            tree_cpu_share=round(_gained(s.tree_cpu_s for s in seen) / window, 4),
            io_bytes_per_s=round(_gained(s.io_bytes for s in seen) / window, 1),
            switches_per_s=round((last.switches - first.switches) / window, 2),
            moved_share=state.moved_share(first.t),
            rss_bytes=last.rss_bytes,
            wchan=last.wchan,
            places=state.places_seen(max(last.t - LOOP_WINDOW_S, state.last_progress_s + 1.0)),
        )


def _gained(values: Iterable[float]) -> float:
    """How much a sum over processes has grown: one that nobody waited for takes what it had used out of the sum."""
    return sum(max(after - before, 0.0) for before, after in pairwise(values))
