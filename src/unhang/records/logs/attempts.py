"""Where a new attempt begins in one log: launchers start again after a failure, and shells append to the same file.

A start is what launchers and libraries print once at the beginning. It begins a new attempt only if something has failed since the last one: large
jobs print their starts many times.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence

from unhang.records.logs.signature import Hit, Signature


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
SIGNATURES = (
    *AGENTS,
    _start("Initializing distributed: GLOBAL_RANK: 0,"),
    _start("Initializing TorchBackend in DeepSpeed with backend"),
    _start("NCCL version ", r"NCCL version \d+\.\d+\.\d+\+cuda"),
    _start("Started a local Ray instance"),
)


def starts_of(hits: Iterable[Hit], failures: Iterable[tuple[int, float | None]]) -> tuple[int, ...]:
    """The places of one file at which attempts 2, 3, ... begin: a start behind a failure (place, seconds) of the attempt before it.

    A start that is older than the failure in front of it belongs to another host's log that was appended.
    """
    failed = sorted(failures, key=lambda f: f[0])
    found: list[int] = []
    since: list[float] = []
    seen = 0
    for start in sorted(hits, key=lambda h: h.place):
        before = bisect_right(failed, start.place, key=lambda f: f[0])
        since += (at_s for _, at_s in failed[seen:before] if at_s is not None)
        fails, seen = before > seen or bool(since), before
        if fails and not (start.at_s is not None and since and start.at_s < max(since) - 1):
            found.append(start.place)
            since.clear()
    return tuple(found)


def attempt_of(place: int, starts: Sequence[int]) -> int:
    """Which attempt, from 1, a place of the file belongs to."""
    return bisect_right(starts, place) + 1
