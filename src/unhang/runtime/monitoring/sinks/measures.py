"""What sinks share: the run directory, whether a library is there, and a snapshot as numbers.

`MEASURES` are those with labels. `flat` is for back ends that know no labels, by names that stay as they are: charts are made of them.

    unhang/calls/COLLECTIVE/GROUP/count, latency_p50_s, latency_p95_s, latency_p99_s, busbw_p50_gbps     all but count since the snapshot before
    unhang/failures/COLLECTIVE/GROUP/CAUSE          calls, by cause
    unhang/stragglers/GROUP/rank, share, waited_s   of the worst: a series for each of a thousand ranks is a chart of nothing
    unhang/interval_stragglers/GROUP/rank, share, waited_s      the same since the snapshot before
    unhang/deadlines_s/COLLECTIVE
    unhang/failed_calls, evaluations, evaluation_failures, restarts, world_size, heard_from, silent, dropped, store_lost
    unhang/unread, torch_read                       where torch's own collectives were asked for

Names are of letters, digits, `_`, `-` and `.`, which all back ends take. No name is the beginning of another one's path: MLflow keeps files by names.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
from collections.abc import Callable, Iterable
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from unhang.attach.protocol import ENV_RUN
from unhang.errors import MissingExtra
from unhang.runtime.monitoring.counters import Snapshot

Measured = Iterable[tuple[float, dict[str, str | int]]]


def run_dir() -> Path | None:
    """The run directory; None where `unhang run` is not above us."""
    found = os.environ.get(ENV_RUN)
    return Path(found) if found else None


def needed(sink: str, extra: str, *modules: str) -> None:
    """Raises MissingExtra with the command that installs what is not there; nothing is imported: sinks are made on every rank, and used on one."""
    missing = [name.partition(".")[0] for name in modules if not _there(name)]
    if missing:
        install = f'pip install "unhang[{extra}]"'
        raise MissingExtra(f"unhang.{sink} needs {missing[0]}, which is not installed: {install}", hint=install)


def _there(name: str) -> bool:
    try:
        spec = importlib.util.find_spec(name)
    except ModuleNotFoundError:
        return False
    # ./wandb is also what wandb writes, and ./tensorboard a usual name for logs: a directory without code can be imported, and holds nothing.
    return spec is not None and spec.origin is not None


_LONGEST = 60


def flat(snapshot: Snapshot) -> dict[str, float]:
    """What was not measured is left out; values are as they are, also where they are not finite."""
    found: dict[str, float] = {}
    for call in snapshot.calls:
        of = f"unhang/calls/{_word(call.collective)}/{group_word(call.group)}"
        found[f"{of}/count"] = call.count
    for call in snapshot.lately:
        of = f"unhang/calls/{_word(call.collective)}/{group_word(call.group)}"
        for name in ("latency_p50_s", "latency_p95_s", "latency_p99_s", "busbw_p50_gbps"):
            value = getattr(call, name)
            if value is not None:
                found[f"{of}/{name}"] = value
    for failure in snapshot.failures:
        found[f"unhang/failures/{_word(failure.collective)}/{group_word(failure.group)}/{_word(failure.cause)}"] = failure.count
    for name, stragglers in (("stragglers", snapshot.stragglers), ("interval_stragglers", snapshot.interval_stragglers)):
        # The worst of a group comes first in a snapshot.
        for one in reversed(stragglers):
            of = f"unhang/{name}/{group_word(one.group)}"
            found |= {f"{of}/rank": one.rank, f"{of}/share": one.share, f"{of}/waited_s": one.waited_s}
    for kind, seconds in snapshot.deadlines_s.items():
        found[f"unhang/deadlines_s/{_word(kind)}"] = seconds
    found["unhang/failed_calls"] = sum(one.count for one in snapshot.failures)
    found["unhang/silent"] = len(snapshot.silent)
    found["unhang/store_lost"] = snapshot.store_lost is not None
    if snapshot.torch_collectives is not None:
        found["unhang/unread"] = sum(snapshot.unread.values())
        found["unhang/torch_read"] = not snapshot.torch_collectives.startswith("not read")
    for name in ("evaluations", "evaluation_failures", "restarts", "world_size", "heard_from", "dropped"):
        found[f"unhang/{name}"] = getattr(snapshot, name)
    return {name: float(value) for name, value in found.items()}


def axis(snapshot: Snapshot, began_s: float) -> int:
    """The training's step, or else seconds since `began_s`, the first snapshot's time."""
    return snapshot.step if snapshot.step is not None else max(0, round(snapshot.time_s - began_s))


def group_word(group: str) -> str:
    """`ranks 0,1,2,3` is ranks_0-3, `ranks 0,8,16` ranks_0-16by8; what has no such order and many ranks ends in a digest of them."""
    kind, _, listed = group.partition(" ")
    ranks = [int(text) for text in listed.split(",") if text.isdecimal()]
    if kind != "ranks" or not ranks:
        return _word(group)
    strides = {after - before for before, after in pairwise(ranks)}
    if len(ranks) > 2 and len(strides) == 1:
        (stride,) = strides
        return f"ranks_{ranks[0]}-{ranks[-1]}" + (f"by{stride}" if stride != 1 else "")
    word = "ranks_" + "_".join(map(str, ranks))
    return (
        word if len(word) <= _LONGEST else f"ranks_{ranks[0]}_{ranks[1]}_and_{len(ranks) - 2}_more_{hashlib.sha256(listed.encode()).hexdigest()[:8]}"
    )


def _word(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9_.-]+", "_", text)


class Measure(NamedTuple):
    """One number of a snapshot for each of its labels. Where a back end gets it in another form, or not at all, it has no name there."""

    kind: str
    prometheus: str
    help: str
    opentelemetry: str
    unit: str
    description: str
    of: Callable[[Snapshot], Measured]


def _each(which: str, value: str, *labels: str) -> Callable[[Snapshot], Measured]:
    return lambda snapshot: [(getattr(one, value), {label: getattr(one, label) for label in labels}) for one in getattr(snapshot, which)]


def _number(name: str) -> Callable[[Snapshot], Measured]:
    return lambda snapshot: [(getattr(snapshot, name), {})]


def _latencies(snapshot: Snapshot) -> Measured:
    for one in snapshot.lately:
        for quantile, value in (("0.5", one.latency_p50_s), ("0.95", one.latency_p95_s), ("0.99", one.latency_p99_s)):
            if value is not None:
                yield value, {"group": one.group, "collective": one.collective, "quantile": quantile}


def _bandwidths(bytes_per_s: float) -> Callable[[Snapshot], Measured]:
    return lambda snapshot: [
        (one.busbw_p50_gbps * bytes_per_s, {"group": one.group, "collective": one.collective, "quantile": "0.5"})
        for one in snapshot.lately
        if one.busbw_p50_gbps is not None
    ]


MEASURES = (
    Measure("counter", "unhang_calls_total", "Calls that ended well.",
            "collective.count", "{call}", "Guarded calls that have ended well", _each("calls", "count", "group", "collective")),
    Measure("counter", "unhang_call_bytes_total", "The most that a rank has given.",
            "", "", "", _each("calls", "bytes", "group", "collective")),
    Measure("gauge", "unhang_call_seconds", "Latencies of the calls since the snapshot before.",
            "collective.duration", "s", "Time inside of calls, since the snapshot before", _latencies),
    Measure("gauge", "unhang_busbw_gigabytes_per_second", "Bus bandwidth as of nccl-tests since the snapshot before, in 10^9 bytes.",
            "", "", "", _bandwidths(1.0)),
    Measure("gauge", "", "",
            "collective.bus_bandwidth", "By/s", "Over the busiest link, by the formula of nccl-tests", _bandwidths(1e9)),
    Measure("counter", "unhang_failures_total", "Calls that have failed.",
            "collective.failures", "{call}", "Guarded calls that have failed", _each("failures", "count", "group", "collective", "cause")),
    Measure("gauge", "unhang_straggler_share", "A rank's part of all waiting in a group since the start.",
            "straggler.share", "1", "A rank's part of all waiting in a group", _each("stragglers", "share", "group", "rank")),
    Measure("gauge", "unhang_straggler_waited_seconds", "How much less a rank has waited than the most patient one of its group since the start.",
            "straggler.waited", "s", "How much less a rank has waited than the most patient one of its group",
            _each("stragglers", "waited_s", "group", "rank")),
    Measure("gauge", "unhang_straggler_interval_share", "A rank's part of all waiting in a group since the snapshot before.",
            "straggler.interval_share", "1", "A rank's part of all waiting in a group since the snapshot before",
            _each("interval_stragglers", "share", "group", "rank")),
    Measure("gauge", "unhang_straggler_interval_waited_seconds",
            "How much less a rank has waited than the most patient one of its group since the snapshot before.",
            "straggler.interval_waited", "s", "How much less a rank has waited than the most patient one of its group since the snapshot before",
            _each("interval_stragglers", "waited_s", "group", "rank")),
    Measure("gauge", "unhang_deadline_seconds", "Learned deadlines in force.",
            "deadline", "s", "Learned deadlines in force", lambda s: [(seconds, {"collective": kind}) for kind, seconds in s.deadlines_s.items()]),
    Measure("counter", "unhang_unread_calls_total", "Calls of torch's own that its recorder had forgotten before it was read.",
            "collective.unread", "{call}", "Of torch's own, forgotten before they were read",
            lambda s: [(count, {"group": group}) for group, count in s.unread.items()]),
    Measure("gauge", "unhang_ranks", "All ranks, those whose counts are in, those from which nothing new comes.",
            "ranks", "{rank}", "All ranks, those whose counts are in, those from which nothing new comes",
            lambda s: [(s.world_size, {"state": "all"}), (s.heard_from, {"state": "heard"}), (len(s.silent), {"state": "silent"})]),
    Measure("gauge", "unhang_step", "The training's own step.",
            "step", "{step}", "The training's own step", lambda s: [(s.step, {})] if s.step is not None else []),
    Measure("counter", "unhang_restarts_total", "By torchrun and by unhang run.",
            "restarts", "{restart}", "By torchrun and by unhang run", _number("restarts")),
    Measure("counter", "unhang_evaluations_total", "Guarded evaluations.",
            "evaluations", "{evaluation}", "Guarded evaluations", _number("evaluations")),
    Measure("counter", "unhang_evaluation_failures_total", "Guarded evaluations that have failed.",
            "evaluation.failures", "{evaluation}", "Guarded evaluations that have failed", _number("evaluation_failures")),
    Measure("counter", "unhang_snapshots_dropped_total", "For which a sink had no time.",
            "snapshots.dropped", "{snapshot}", "For which a sink had no time", _number("dropped")),
    Measure("gauge", "unhang_snapshot_timestamp_seconds", "When this was told, since 1970: it grows with each snapshot.",
            "", "", "", _number("time_s")),
    Measure("gauge", "unhang_store_lost", "1 where nothing is heard of other ranks any more.",
            "store_lost", "1", "Whether nothing is heard of other ranks any more", lambda s: [(int(s.store_lost is not None), {})]),
    Measure("gauge", "unhang_torch_read", "Whether torch's own collectives could be read.",
            "torch_read", "1", "Whether torch's own collectives could be read",
            lambda s: [] if s.torch_collectives is None else [(int(not s.torch_collectives.startswith("not read")), {})]),
)  # fmt: skip
