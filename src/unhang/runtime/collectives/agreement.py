"""Decisions that are the same on all ranks, even if one never answers: what comes too late is not in them, and whoever comes late obeys them."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import torch

from unhang.model import frozen
from unhang.runtime.collectives import deadlines
from unhang.runtime.collectives import guarded_group as circles
from unhang.runtime.collectives.calls import Call
from unhang.runtime.collectives.deadlines import Deadline

# (sum, count) by metric.
Sums = dict[str, tuple[float, float]]

_KIND = "agree"
# Of all ranks together: torch's server ends a connection by which more than 8 MiB come at once.
_MOST_BYTES = 8_000_000
_BARRIER = Call(what="barrier", numel=1, dtype="torch.uint8", device="cpu", chunk=1)
_REDUCES = torch.distributed.ReduceOp.MAX


@frozen
class Agreed:
    """`values` by global rank; `missing` are ranks that had not answered when the decision fell, this one maybe among them."""

    values: Mapping[int, Any]
    missing: tuple[int, ...]

    def __bool__(self) -> bool:
        raise TypeError("what was agreed on is neither true nor false: ask for its value, for unanimous or missing, or call unhang.all_ok")

    @property
    def unanimous(self) -> bool:
        """All answered, and all the same; not-a-number is the same as itself."""
        return not self.missing and all(_same(value, self.value) for value in self.values.values())

    @property
    def value(self) -> Any:
        """What the lowest rank that answered said."""
        return self.values[min(self.values)] if self.values else None


def agree(value: Any, group: Any = None, *, deadline: Deadline = None) -> Agreed:
    """What every rank said, the same on all ranks. `value` is what JSON can hold, or not-a-number and infinities.

    Raises TypeError for what it cannot, and ValueError for more than 8 MB of all ranks together; StoreLost; CollectiveMismatch where others call
    something else; never a timeout.
    """
    return _agreed(lambda: value, group, deadline)


def _agreed(said: Callable[[], Any], group: Any, deadline: Deadline) -> Agreed:
    circle = circles.meant(group)
    try:
        circles.checked(group)
        packed, deadline_s = _packed(said(), circle.size), deadlines.found(deadline, kind=_KIND)
    except Exception:
        # Whoever cannot answer says so: the others would wait, and be one call ahead ever after.
        circle.decline(_KIND)
        raise
    found = circle.exchange(_KIND, packed, deadline_s)
    values = {rank: json.loads(packed) for rank, packed in sorted(found.items())}
    return Agreed(values=values, missing=tuple(rank for rank in circle.ranks if rank not in values))


def _packed(value: Any, ranks: int = 1) -> bytes:
    packed = _as_json(value)
    if len(packed) > _MOST_BYTES // ranks:
        raise ValueError(f"value has {len(packed):,} bytes as JSON, of {_MOST_BYTES // ranks:,} that each of {ranks} ranks may give")
    return packed


def _as_json(value: Any) -> bytes:
    try:
        # Python's own JSON knows NaN and Infinity, and makes nothing else of what it does not know: a set's order need not be that of another rank.
        packed = json.dumps(value, separators=(",", ":")).encode()
        _refuse_other_keys(value)
        return packed
    except Exception as e:
        raise TypeError(f"value is what JSON can hold (None, a truth, number, text, list, or a mapping of such), not {short(value)}: {e}") from e


def _refuse_other_keys(value: Any) -> None:
    """Than texts: 1 would come back as "1"."""
    if isinstance(value, dict):
        for key in value:
            if not isinstance(key, str):
                raise TypeError(f"the keys of a mapping are text, not {short(key)}")
        value = value.values()
    elif not isinstance(value, list | tuple):
        return
    for one in value:
        _refuse_other_keys(one)


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_same, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_same(value, other[key]) for key, value in one.items())
    return bool(one == other) or (isinstance(one, float) and isinstance(other, float) and math.isnan(one) and math.isnan(other))


def all_ok(ok: bool, group: Any = None, *, deadline: Deadline = None) -> bool:
    """Whether every rank says so; False where one has not answered. The same on all ranks. Raises TypeError for what is neither true nor false."""
    agreed = _agreed(lambda: _truth(ok), group, deadline)
    return not agreed.missing and all(agreed.values.values())


def _truth(ok: Any) -> bool:
    # A text would always be true, and so would a list; None is what a check without a return gives. What was meant is a truth, or a number or tensor
    # that holds one.
    if ok is None or not hasattr(ok, "__bool__"):
        raise TypeError(f"ok is true or false, not {short(ok)}")
    try:
        return bool(ok)
    except Exception as e:
        raise TypeError(f"ok is true or false, not {short(ok)}") from e


def barrier(group: Any = None, deadline: Deadline = None) -> None:
    """Until all ranks are here. Raises CollectiveTimeout with the `missing` ones, on every rank, where nobody comes any more for `deadline` seconds.

    Orders what the processes do, not what runs on their GPUs.
    """
    circle = circles.meant(group)
    with circle.preparing(_BARRIER.what):
        circles.checked(group)
        deadline_s = deadlines.found(deadline, kind=_BARRIER.what)
    # New each time: what is given up keeps its own.
    sent = torch.zeros(1, dtype=torch.uint8)
    if circle.again(_BARRIER, sent, _REDUCES, deadline_s):
        return
    with circle.turn(_BARRIER, deadline_s) as turn:
        if turn.lane is not None:
            turn.works.append(turn.lane.all_reduce(sent, _REDUCES))
            circle.wait(turn, turn.works[0])
            turn.works.clear()


def reduce_metrics(metrics: Mapping[str, Any], group: Any = None, *, deadline: Deadline = None) -> dict[str, float]:
    """The mean of each metric over all samples of all ranks, by name, over the union of names: a rank may lack some.

    A value is a number (weight 1) or a pair (sum, count). Few numbers, by the store: never a gather of predictions. Raises CollectiveTimeout with the
    `missing` ranks where not all answered: a mean over some of them would look like a score. LatePeer, PeerFailed, TypeError and ValueError as well.
    """
    circle = circles.meant(group)
    try:
        circles.checked(group)
        # JSON has no infinity.
        packed = msgspec.msgpack.encode(paired(metrics))
        deadline_s = deadlines.found(deadline, kind="metrics")
    except Exception as e:
        circle.decline("metrics", e)
        raise
    found = circle.exchange_all("metrics", packed, deadline_s)
    sums: Sums = {}
    for _, packed in sorted(found.items()):
        add(sums, msgspec.msgpack.decode(packed, type=Sums))
    return means(sums)


def add(sums: Sums, more: Mapping[str, tuple[float, float]]) -> None:
    for name, (total, count) in more.items():
        before = sums.get(name, (0.0, 0.0))
        sums[name] = (before[0] + total, before[1] + count)


def means(sums: Mapping[str, tuple[float, float]]) -> dict[str, float]:
    return {name: total / count if count else math.nan for name, (total, count) in sorted(sums.items())}


def paired(metrics: Any) -> Sums:
    """(sum, count) by metric. Raises TypeError for what is no mapping of names to numbers or such pairs, ValueError for what counts nothing."""
    if not isinstance(metrics, Mapping) or not all(map(can_be_told, metrics)):
        raise TypeError(f"metrics are a mapping of names to numbers or pairs (sum, count), not {short(metrics)}")
    return {name: _pair(name, value) for name, value in metrics.items()}


def _pair(name: str, value: Any) -> tuple[float, float]:
    total, count = value if isinstance(value, tuple | list) and len(value) == 2 else (value, 1.0)
    try:
        found = _number(total), _number(count)
    except (TypeError, ValueError) as e:
        raise TypeError(f"metric {name!r} is a number or a pair (sum, count), not {value!r}") from e
    if not 0 <= found[1] < math.inf:
        raise ValueError(f"the count of metric {name!r} is a number from 0 on, not {count!r}")
    return found


def _number(value: Any) -> float:
    # torch 2.13 warns of a conversion that leaves the graph, as a training's loss does.
    return float(value.detach() if isinstance(value, torch.Tensor) else value)


def can_be_told(name: Any) -> bool:
    """Whether it is a text that can be sent: a name that was taken from a file's may not be."""
    if not isinstance(name, str):
        return False
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def short(value: Any) -> str:
    said = repr(value)
    return f"{type(value).__name__} {said[:80]}{'…' if len(said) > 80 else ''}"
