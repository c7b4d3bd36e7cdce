"""Where a new attempt begins in one log: launchers start again after a failure, and shells append to the same file.

A start is what launchers and libraries print at the beginning, and a job prints many: it begins a new attempt only behind a failure. Many things fail
without ending a run (an exception that is caught, a warning), and libraries print their banners whenever they are first used: so a library's counts
only where processes have ended, or where one process would have printed twice what each prints once.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from unhang.records.logs.signature import Hit, Signature


@dataclass(frozen=True, kw_only=True)
class Failure:
    """Where one log says that the run failed. `ended`: that processes of the job have ended, as a launcher tells it."""

    place: int
    at_s: float | None = None
    ended: bool = False


def _start(needle: str, pattern: str = "") -> Signature:
    return Signature(needle=needle, pattern=pattern, role="context", keep=512)


# Only a launcher that starts several processes itself prints these.
AGENTS = (
    _start("Setting OMP_NUM_THREADS environment variable for each process"),
    _start("Starting elastic_operator with launch configs"),
    _start("] Restarting worker group"),
    _start("Worker group RUNNING at ", r"restart_count=[1-9]"),
    _start("attempts left; will restart worker group"),
    _start("[INFO] [runner.py:", r"cmd = "),
    _start("unhang: starting again"),
    _start("torch.distributed.launch is deprecated"),
)
LIBRARIES = (
    _start("Initializing distributed: GLOBAL_RANK: 0,"),
    _start("Initializing TorchBackend in DeepSpeed with backend"),
    _start("NCCL version ", r"NCCL version \d{1,4}\.\d{1,4}\.\d{1,4}\+cuda"),
    _start("Started a local Ray instance"),
)
SIGNATURES = (*AGENTS, *LIBRARIES)


def starts_of(hits: Iterable[Hit], failures: Iterable[Failure]) -> tuple[Hit, ...]:
    """The starts of one file that begin attempts 2, 3, ...: each behind a failure of the attempt before it.

    A start that is older than the failure in front of it belongs to another host's log that was appended.
    """
    failed = sorted(failures, key=lambda f: f.place)
    places = [f.place for f in failed]
    found: list[Hit] = []
    since: list[Failure] = []
    said: set[tuple[Signature, str | None, int | None]] = set()
    seen = 0
    for start in sorted(hits, key=lambda h: h.place):
        before = bisect_right(places, start.place)
        since += failed[seen:before]
        seen = before
        if since and (start.signature in AGENTS or any(f.ended for f in since) or _banner(start) in said) and not _is_older(start, since):
            found.append(start)
            since.clear()
        # Processes that name themselves; a banner without a pid may be another one's.
        if start.pid is not None:
            said.add(_banner(start))
    return tuple(found)


def _banner(start: Hit) -> tuple[Signature, str | None, int | None]:
    return (start.signature, start.host, start.pid)


def _is_older(start: Hit, since: Sequence[Failure]) -> bool:
    times = [f.at_s for f in since if f.at_s is not None]
    return start.at_s is not None and bool(times) and start.at_s < max(times) - 1


def attempt_of(place: float, starts: Sequence[float]) -> int:
    """Which attempt, from 1, a place of the file (or a time) belongs to, where `starts` are those of attempts 2, 3, ..."""
    return bisect_right(starts, place) + 1
