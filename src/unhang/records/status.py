"""What the ranks of a run are doing, as its supervisor writes it down once a second for onlookers (`unhang top`): facts only, no judgement.

Times called `_s` are seconds since the start of the run. One file is all there is: it is replaced, never appended to, and its size is bounded by
the number of ranks.
"""

from __future__ import annotations

from collections.abc import Iterable, Set
from dataclasses import replace

from unhang.model import frozen
from unhang.records.incident import SILENT_S

NOW_SCHEMA = "unhang/now/1"
# Of names of files and texts of exceptions, whose length is nobody's promise.
MOST_CHARACTERS = 200


@frozen
class Place:
    """Where a main thread stood at a heartbeat."""

    file: str
    line: int
    name: str


@frozen
class Waiting:
    """A rank inside a collective: `call` is the function that its main thread waits in, `group` the one whose counter stays behind, at `number`."""

    since_s: float
    call: str | None = None
    group: str | None = None
    number: int | None = None


@frozen
class RankNow:
    """One rank. `beat_s` is its newest heartbeat, `progress_s` when it last moved on (a step, a collective).

    `process` is the kernel's letter for it (as in `records.incident.Activity`), looked at only where something is suspected; `cpu_share` is of one
    core. `exitcode` as in subprocess. `announced`: it ended in order; `by_launcher`: it was ended. `world_size` is what it has joined, None before;
    `timeout_s` is that of its group. `start_ticks`: when its process started, which with the supervisor's `boot_id` and `pid_namespace` (run.json)
    tells it from others.
    """

    rank: int
    pid: int
    host: str
    since_s: float
    start_ticks: int | None = None
    local_rank: int | None = None
    world_size: int | None = None
    backend: str | None = None
    device: str | None = None
    gpu: str | None = None
    timeout_s: float | None = None
    step: int = 0
    steps_per_s: float | None = None
    beat_s: float | None = None
    progress_s: float | None = None
    place: Place | None = None
    waiting: Waiting | None = None
    process: str | None = None
    cpu_share: float | None = None
    left: bool = False
    raised: str | None = None
    ended_s: float | None = None
    exitcode: int | None = None
    announced: bool = False
    by_launcher: bool = False


@frozen
class Standstill:
    """Nothing has moved since then, for longer than is usual: `waiting` ranks are inside a collective, `absent` ones did not come to it."""

    since_s: float
    waiting: tuple[int, ...] = ()
    absent: tuple[int, ...] = ()


@frozen
class Now:
    """All ranks that one supervisor sees, at `time_s` since 1970 (`at_s` since the start of the run).

    `hang_after_s` is the threshold in force, `usual_gap_s` what it was learned from, None until it is known. `last` is the supervisor's last word on
    the attempt. `every_s` is how long until the next one, where nothing is in the way.
    """

    schema: str = NOW_SCHEMA
    attempt: int
    host: str
    time_s: float
    at_s: float
    every_s: float
    hang_after_s: float
    usual_gap_s: float | None = None
    standstill: Standstill | None = None
    last: bool = False
    ranks: tuple[RankNow, ...] = ()


@frozen
class Seen:
    """Ranks whose last heartbeats told of one place, inside one `call` if in any: all there is where nobody could be asked any more.

    What is None is not known. `least_step` and `step`: the fewest and the most optimizer steps among them.
    `silent_s`: how old the oldest of these heartbeats was.
    """

    ranks: tuple[int, ...]
    place: Place | None = None
    call: str | None = None
    least_step: int | None = None
    step: int | None = None
    silent_s: float | None = None


def together(each: Iterable[Seen]) -> tuple[Seen, ...]:
    """Those at one place as one, in the order of their first ranks: of whom no steps are known, or no heartbeats came, stands apart."""
    found: dict[tuple[Place | None, str | None, bool, bool | None], Seen] = {}
    for one in sorted(each, key=lambda s: s.ranks):
        key = (one.place, one.call, one.step is None, None if one.silent_s is None else one.silent_s > SILENT_S)
        found[key] = one if (before := found.get(key)) is None else _joined(before, one)
    return tuple(found.values())


def fewer(seen: Seen, without: Set[int]) -> Seen | None:
    """The others of these ranks, None where there are none. A range of steps was that of all: which of them are whose is not known."""
    ranks = tuple(r for r in seen.ranks if r not in without)
    if not ranks or ranks == seen.ranks:
        return seen if ranks else None
    step = seen.step if seen.least_step == seen.step else None
    return replace(seen, ranks=ranks, least_step=step, step=step)


def _joined(a: Seen, b: Seen) -> Seen:
    return replace(
        a,
        ranks=tuple(sorted({*a.ranks, *b.ranks})),
        least_step=min((s for s in (a.least_step, b.least_step) if s is not None), default=None),
        step=max((s for s in (a.step, b.step) if s is not None), default=None),
        silent_s=max((s for s in (a.silent_s, b.silent_s) if s is not None), default=None),
    )
