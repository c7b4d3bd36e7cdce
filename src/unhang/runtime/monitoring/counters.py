"""What one rank counts of its calls, and what that of all ranks comes to. Counts only grow, so that the newest of a rank is all of it."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import field, replace

import msgspec
import torch

from unhang.errors import CollectiveMismatch, CollectiveTimeout, LatePeer, OutOfSync, PeerFailed, StoreLost
from unhang.model import frozen
from unhang.runtime.collectives.calls import Observed
from unhang.runtime.monitoring import histogram
from unhang.runtime.monitoring.histogram import Buckets

_SAID = 400
# A training of a thousand ranks has hundreds of groups: more than these are told by their sizes, and of each the worst stragglers.
_MOST_GROUPS = 32
_WORST, _MOST_STRAGGLERS = 8, 64


class Calls(msgspec.Struct, kw_only=True):
    """`bytes` are what this rank gave. Latencies are of those calls of which they are known: of torch's, often of none."""

    count: int = 0
    bytes: int = 0
    inside_s: float = 0.0
    latency_s: Buckets = {}
    busbw_gbps: Buckets = {}

    def ended(self, collective: str, ranks: int, given_bytes: int, seconds: float) -> None:
        """Count one; `seconds` is 0 where it is not known how long it took."""
        self.count += 1
        self.bytes += given_bytes
        if seconds > 0:
            histogram.add(self.latency_s, seconds)
            if (found := busbw_gbps(collective, ranks, given_bytes, seconds)) > 0:
                histogram.add(self.busbw_gbps, found)

    def merge(self, other: Calls) -> None:
        """Take in what another rank, or another group, has measured."""
        self.bytes = max(self.bytes, other.bytes)
        histogram.merge(self.latency_s, other.latency_s)
        histogram.merge(self.busbw_gbps, other.busbw_gbps)


class Moment(msgspec.Struct, frozen=True, kw_only=True):
    """When something happened on a rank: by its clock, and at which step of the training, None where it does not tell."""

    time_s: float
    step: int | None


class Tally(msgspec.Struct, kw_only=True):
    """Of one rank. Keys are (group, collective), and (group, collective, cause) of failures; torch's own collectives have names as "nccl:all_reduce".

    `torch` is what is known of those, None where nobody asked; `unread` are those, by group, that its recorder had forgotten before it was read.
    """

    rank: int
    closed: bool = False
    calls: dict[str, Calls] = {}
    failures: dict[str, int] = {}
    # Of the newest failure with each key.
    said: dict[str, str] = {}
    failed_at: dict[str, Moment] = {}
    deadlines_s: dict[str, float] = {}
    torch: str | None = None
    unread: dict[str, int] = {}
    # Each is counted by one rank, the first of its group.
    evaluations: int = 0
    evaluation_failures: int = 0
    # Of the newest that has failed.
    evaluation_said: str = ""
    evaluation_failed_at: Moment | None = None
    # Grows with each telling: a rank that has stopped leaves its last words in the store for ever.
    told: int = 0
    # By this rank's own clock, which is nobody else's.
    told_at_s: float = 0.0

    def saw(self, call: Observed, world_size: int, step: int | None = None) -> None:
        key = f"{group_name(call.ranks, world_size)}|{call.what}"
        if call.error is not None:
            failed = f"{key}|{cause(call.error)}"
            self.failures[failed] = self.failures.get(failed, 0) + 1
            self.said[failed] = shortened(str(call.error))
            self.failed_at[failed] = Moment(time_s=time.time(), step=step)
            return
        calls = self.calls.setdefault(key, Calls())
        calls.ended(call.what, len(call.ranks), size_bytes(call), call.seconds)
        calls.inside_s += call.seconds


@frozen
class OfCalls:
    """GB/s are 10^9 bytes a second, by the formula of nccl-tests. Latencies are those of `timed` of the calls, None where that is 0.

    `bytes` is the most that a rank gave.
    """

    group: str
    collective: str
    count: int
    latency_p50_s: float | None
    latency_p95_s: float | None
    latency_p99_s: float | None
    busbw_p50_gbps: float | None
    timed: int = 0
    bytes: int = 0
    # How many took less than so many seconds, and not less than a fourth of that: of all ranks, as is their sum.
    latency_counts: Mapping[float, int] = field(default_factory=dict)
    latency_sum_s: float = 0.0


@frozen
class OfFailures:
    """`count` is the most that a rank has counted.

    `says`, `time_s` and `step` are of the newest, as rank 0 saw it, or another rank where it did not; None where that is not known.
    """

    group: str
    collective: str
    cause: str
    count: int
    says: str = ""
    time_s: float | None = None
    step: int | None = None


@frozen
class Straggler:
    """`waited_s` is how much longer than this rank the group's most patient one stood in calls; `share` its part of all such waiting."""

    group: str
    rank: int
    waited_s: float
    share: float


@frozen
class Silent:
    rank: int
    for_s: float


@frozen
class Snapshot:
    """All ranks together, since the start. `heard_from` are those whose counts are in it, `silent` those from which nothing new has come for a while.

    `interval_calls` and `interval_stragglers` are of what has ended in the `interval_s` since the snapshot before (None for the first), and was told.
    `step` is the training's own, None where it does not tell; `evaluation_says` is why the newest failed evaluation did, and when.
    `store_lost`: why nothing is heard of other ranks any more; their counts are the last ones then.
    `torch_collectives`: None where nobody asked for them, "counted", "none recorded", or why they could not be read; the worst of all ranks.
    """

    time_s: float
    world_size: int
    heard_from: int
    restarts: int
    calls: list[OfCalls] = field(default_factory=list)
    failures: list[OfFailures] = field(default_factory=list)
    stragglers: list[Straggler] = field(default_factory=list)
    deadlines_s: Mapping[str, float] = field(default_factory=dict)
    evaluations: int = 0
    evaluation_failures: int = 0
    evaluation_says: str = ""
    evaluation_time_s: float | None = None
    evaluation_step: int | None = None
    dropped: int = 0
    torch_collectives: str | None = None
    unread: Mapping[str, int] = field(default_factory=dict)
    step: int | None = None
    silent: list[Silent] = field(default_factory=list)
    store_lost: str | None = None
    interval_s: float | None = None
    interval_calls: list[OfCalls] = field(default_factory=list)
    interval_stragglers: list[Straggler] = field(default_factory=list)

    @property
    def lately(self) -> list[OfCalls]:
        """Of the last interval; of the first snapshot those since the start."""
        return self.calls if self.interval_s is None else self.interval_calls


class Intervals:
    """What was waited between two snapshots. Totals would name a rank for hours after it has recovered."""

    def __init__(self) -> None:
        self._time_s: float | None = None
        self._before: dict[int, Tally] = {}

    def since(self, tallies: Iterable[Tally], time_s: float) -> tuple[float | None, list[Straggler]]:
        """Seconds since the time before, and who was waited for in them."""
        before, self._before = self._before, {one.rank: one for one in tallies}
        interval_s = None if self._time_s is None else time_s - self._time_s
        self._time_s = time_s
        if interval_s is None or interval_s <= 0:
            return None, []
        waited: dict[str, dict[int, float]] = {}
        for rank, now in self._before.items():
            # Ranks tell when they do: one may have told twice since, another not at all.
            if (earlier := before.get(rank)) is None or (for_s := now.told_at_s - earlier.told_at_s) <= 0:
                continue
            old = _inside(earlier)
            for group, inside_s in _inside(now).items():
                waited.setdefault(group, {})[rank] = (inside_s - old.get(group, 0.0)) * interval_s / for_s
        return interval_s, _of_all(waited)


# Asked for each call; joining the names of 512 ranks takes 46 us.
@functools.lru_cache(maxsize=1024)
def group_name(ranks: tuple[int, ...], world_size: int) -> str:
    return "world" if len(ranks) == world_size else "ranks " + ",".join(map(str, ranks))


def shortened(text: str) -> str:
    """One line: what an error says goes through the store with every telling."""
    line = " ".join(text.split())
    return line if len(line) <= _SAID else line[: _SAID - 1] + "…"


def cause(error: BaseException) -> str:
    if isinstance(error, LatePeer):
        return "late"
    if isinstance(error, CollectiveTimeout):
        return "broken connection" if "connection broke" in getattr(error.closed, "says", "") else "timeout"
    if isinstance(error, PeerFailed):
        return "failed elsewhere"
    if isinstance(error, CollectiveMismatch):
        return "mismatch"
    if isinstance(error, OutOfSync):
        return "out of sync"
    return "store lost" if isinstance(error, StoreLost) else "error"


def cause_of_text(says: str) -> str:
    """Of an error of torch's own, which have no types."""
    lower = says.lower()
    # Gloo closes the connections of a group of which a call has timed out.
    if "timed out" in lower or "timeout" in lower:
        return "broken connection" if "pair closure" in lower else "timeout"
    return "broken connection" if "connection" in lower or "closed by peer" in lower else "error"


def busbw_gbps(collective: str, ranks: int, given_bytes: int, seconds: float) -> float:
    """What went over the busiest link, as nccl-tests has it; 0 for what moves no data."""
    factor = _FACTORS.get(collective)
    return float(factor(ranks) * given_bytes / seconds / 1e9) if factor is not None and ranks > 1 else 0.0


def size_bytes(call: Observed) -> int:
    """What this rank gives; 0 for what moves no data."""
    return call.numel * int(getattr(torch, call.dtype.removeprefix("torch.")).itemsize) if call.dtype else 0


# Of what one rank gives, for `n` ranks.
_FACTORS: Mapping[str, Callable[[int], float]] = {
    "all_reduce": lambda n: 2 * (n - 1) / n,
    # Of all that is gathered, n times what one rank gives: (n - 1) / n of it.
    "all_gather": lambda n: n - 1,
    "all_gather_into_tensor": lambda n: n - 1,
    "reduce_scatter": lambda n: (n - 1) / n,
    "reduce_scatter_tensor": lambda n: (n - 1) / n,
    "all_to_all": lambda n: (n - 1) / n,
    "broadcast": lambda n: 1,
    "reduce": lambda n: 1,
}


def summed(
    tallies: Iterable[Tally], *, calls: Mapping[str, Calls] | None = None, left_out: Collection[int] = ()
) -> tuple[list[OfCalls], list[OfFailures], list[Straggler], dict[str, float]]:
    """`calls`: what `merged` has made of these; `left_out`: ranks that are no stragglers, as they have stopped to count."""
    tallies = list(tallies)
    failed: dict[str, list[Tally]] = {}
    inside: dict[str, dict[int, float]] = {}
    deadlines: dict[str, float] = {}
    for tally in tallies:
        for group, inside_s in _inside(tally).items() if tally.rank not in left_out else ():
            inside.setdefault(group, {})[tally.rank] = inside_s
        for key in tally.failures:
            failed.setdefault(key, []).append(tally)
        for kind, seconds in tally.deadlines_s.items():
            deadlines[kind] = max(deadlines.get(kind, 0.0), seconds)
    return (
        of_calls(merged(tallies) if calls is None else calls),
        [_of_failures(key, of_key) for key, of_key in sorted(failed.items())],
        _of_all(inside),
        deadlines,
    )


def newest_evaluation_failed(tallies: Iterable[Tally]) -> tuple[Moment | None, str]:
    """When, and why."""
    found = [(one.evaluation_failed_at, one.evaluation_said) for one in tallies if one.evaluation_failed_at is not None]
    return max(found, key=lambda one: one[0].time_s, default=(None, ""))


def merged(tallies: Iterable[Tally]) -> dict[str, Calls]:
    """The calls of all ranks; where there are too many groups, those of one size together as "groups of 8"."""
    found: dict[str, Calls] = {}
    for tally in tallies:
        for key, one in tally.calls.items():
            into = found.setdefault(key, Calls())
            # A call of a group is one call, however many ranks were in it.
            into.count = max(into.count, one.count)
            into.merge(one)
    if len({key.partition("|")[0] for key in found}) <= _MOST_GROUPS:
        return found
    together: dict[str, Calls] = {}
    for key, one in found.items():
        group, _, collective = key.partition("|")
        of_size = f"groups of {group.count(',') + 1}" if group.startswith("ranks ") else group
        into = together.setdefault(f"{of_size}|{collective}", Calls())
        into.count += one.count
        into.merge(one)
    return together


def of_calls(calls: Mapping[str, Calls]) -> list[OfCalls]:
    return [_of_calls(key, one) for key, one in sorted(calls.items())]


def calls_since(now: Mapping[str, Calls], before: Mapping[str, Calls]) -> list[OfCalls]:
    """What was called between two `merged`: percentiles since the start would hide for hours that calls have become slow."""
    found: dict[str, Calls] = {}
    for key, one in now.items():
        old = before.get(key, Calls())
        if one.count > old.count:
            found[key] = Calls(
                count=one.count - old.count,
                bytes=one.bytes - old.bytes,
                latency_s=histogram.since(one.latency_s, old.latency_s),
                busbw_gbps=histogram.since(one.busbw_gbps, old.busbw_gbps),
            )
    return [replace(one, latency_counts={}, latency_sum_s=0.0) for one in of_calls(found)]


def _of_all(inside: Mapping[str, Mapping[int, float]]) -> list[Straggler]:
    """By group; of many the worst."""
    found = [one for group, waited in sorted(inside.items()) for one in _stragglers(group, waited)[:_WORST]]
    if len(found) <= _MOST_STRAGGLERS:
        return found
    at_least_s = sorted((one.waited_s for one in found), reverse=True)[_MOST_STRAGGLERS - 1]
    return [one for one in found if one.waited_s >= at_least_s][:_MOST_STRAGGLERS]


def _inside(tally: Tally) -> dict[str, float]:
    """Seconds that this rank has spent in calls, by group."""
    found: dict[str, float] = {}
    for key, one in tally.calls.items():
        group = key.partition("|")[0]
        found[group] = found.get(group, 0.0) + one.inside_s
    return found


def _of_calls(key: str, calls: Calls) -> OfCalls:
    group, _, collective = key.partition("|")
    p50, p95, p99 = (histogram.percentile(calls.latency_s, share) for share in (0.5, 0.95, 0.99))
    return OfCalls(
        group=group,
        collective=collective,
        count=calls.count,
        latency_p50_s=p50,
        latency_p95_s=p95,
        latency_p99_s=p99,
        busbw_p50_gbps=histogram.percentile(calls.busbw_gbps, 0.5),
        timed=min(calls.count, sum(calls.latency_s.values())),
        bytes=calls.bytes,
        latency_counts=histogram.coarse(calls.latency_s),
        latency_sum_s=histogram.total(calls.latency_s),
    )


def _of_failures(key: str, tallies: Sequence[Tally]) -> OfFailures:
    """`tallies`: those that have the key."""
    group, collective, why = key.split("|")
    # Rank 0, whose clock and step are the snapshot's; another where rank 0 has seen none, or that has counted more and since then.
    first = next((one for one in tallies if one.rank == 0 and key in one.failed_at), None)
    asked = tallies if first is None else [first, *(one for one in tallies if one.failures[key] > first.failures[key])]
    newest = max(asked, key=lambda one: at.time_s if (at := one.failed_at.get(key)) else float("-inf"))
    at = newest.failed_at.get(key)
    return OfFailures(
        group=group,
        collective=collective,
        cause=why,
        count=max(one.failures[key] for one in tallies),
        says=newest.said.get(key, ""),
        time_s=at.time_s if at else None,
        step=at.step if at else None,
    )


def _stragglers(group: str, inside: Mapping[int, float]) -> list[Straggler]:
    """Whoever comes last waits least."""
    most = max(inside.values())
    total = sum(most - one for one in inside.values())
    found = [Straggler(group=group, rank=rank, waited_s=most - one, share=(most - one) / total) for rank, one in inside.items() if one < most]
    return sorted(found, key=lambda one: (-one.share, one.rank))
