"""What sinks by other libraries share: a snapshot as named numbers, for back ends that know no attributes, and whether the library is there.

Names stay as they are: charts are made of them.

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
import re
from itertools import pairwise

from unhang.errors import MissingExtra
from unhang.runtime.monitoring.counters import Snapshot


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
