"""A look, now and then, at whether all ranks still train the same model: step, parameters, and whether the loss is a number.

A rank that has diverged trains on for days without an error. The parameters' bits are summed as integers, which is exact and in any order the same:
one number for a rank goes through the store, and only where they differ it is asked which parameter.
"""

from __future__ import annotations

import math
import operator
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec
import torch

from unhang.errors import OutOfSync
from unhang.runtime.collectives import calls, deadlines
from unhang.runtime.collectives import guarded_group as circles
from unhang.runtime.collectives.calls import all_ranks
from unhang.runtime.collectives.deadlines import Deadline
from unhang.runtime.collectives.guarded_group import GuardedGroup

_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
# Odd, so that no power of two hides in it: equal parameters in another order give another sum.
_MIX = 0x9E3779B97F4A7C15
_MASK = (1 << 64) - 1
_MOST_NAMES, _MOST_SIDES = 5, 3
_NO_MAJORITY = "There is no majority: which rank is right cannot be told from this"
_ALIKE = "All hold the same parameters: on which of them it began cannot be told from this"
_NOT_COMPARED = "Parameters were not compared: without a model it cannot be told whether the ranks are alike"


class _Seen(msgspec.Struct, frozen=True):
    step: int
    parameters: str
    loss: str


def sync_check(
    step: int,
    *,
    model: torch.nn.Module | None = None,
    loss: torch.Tensor | float | None = None,
    every: int = 100,
    group: Any = None,
    deadline: Deadline = None,
) -> bool:
    """Call it after every step, on all ranks: at each `every`th it compares, and returns True; otherwise it costs nothing, and returns False.

    `model`: parameters that all ranks hold whole are compared; sharded ones (FSDP, ZeRO-3) differ by design and are left out.
    Raises OutOfSync with the `ranks` that differ from most, or have no finite loss; CollectiveTimeout and LatePeer where a rank does not come;
    PeerFailed where another rank could not look; TypeError and ValueError for what makes no sense.
    """
    if isinstance(every, bool) or not isinstance(every, int) or every < 1:
        raise ValueError(f"every is a whole number from 1 on, not {every!r}")
    if not _due(step, every):
        return False
    circle = circles.meant(group)
    began_s = time.monotonic()
    error: BaseException | None = None
    try:
        _compare(circle, group, step, model, loss, deadline)
    except BaseException as e:
        error = e
        raise
    finally:
        if calls.observers:
            seconds = time.monotonic() - began_s
            calls.tell_observers(calls.Observed(what="sync_check", ranks=circle.ranks, numel=0, dtype="", seconds=seconds, error=error))
    return True


def _due(step: Any, every: int) -> bool:
    """Raises TypeError for what is no number: nobody can know whether the others check at it."""
    if not isinstance(step, float):
        try:
            return operator.index(step) % every == 0
        except TypeError:
            raise TypeError(f"step is a whole number, not {step!r}") from None
    return step % every == 0


def _compare(circle: GuardedGroup, group: Any, step: Any, model: Any, loss: Any, deadline: Deadline) -> None:
    """Raises OutOfSync, and what exchanges do."""
    try:
        circles.checked(group)
        if isinstance(step, float):
            raise TypeError(f"step is a whole number, not {step!r}")
        if model is not None and not isinstance(model, torch.nn.Module):
            raise TypeError(f"model is a torch module, not {model!r}")
        deadline_s = deadlines.found(deadline, kind="sync_check")
        sums = {} if model is None else _sums(_whole(model))
        mine = msgspec.json.encode(_Seen(step=operator.index(step), parameters=_total(sums), loss=_loss(loss)))
    except Exception as e:
        # The others would wait for us, and be one exchange ahead ever after.
        circle.decline("sync", e)
        raise
    seen = {rank: msgspec.json.decode(said, type=_Seen) for rank, said in circle.exchange_all("sync", mine, deadline_s).items()}
    steps, parameters = (_unlike({rank: str(getattr(s, what)) for rank, s in seen.items()}) for what in ("step", "parameters"))
    endless = {rank for rank, s in seen.items() if s.loss != "finite"}
    said = []
    if steps:
        said.append("steps: " + "; ".join(f"rank {rank} is at {seen[rank].step}" for rank in sorted(seen)))
    if endless:
        said.append("loss: " + "; ".join(f"rank {rank} has {seen[rank].loss}" for rank in sorted(endless)))
    if parameters:
        said.append(f"parameters: {_which(circle, sums, deadline_s)}")
    if not said:
        return
    ranks = sorted(steps | endless | parameters)
    if len(endless) == len(seen) and len(said) == 1:
        raise OutOfSync(f"no rank has a finite loss at step {step}. {said[0]}. {_ALIKE if sums else _NOT_COMPARED}", ranks=ranks)
    if len(seen) in (len(steps), len(parameters)):
        said.append(_NO_MAJORITY)
    elif len(ranks) < len(seen) and 2 * len(endless) < len(seen):
        said.append(f"{all_ranks(ranks).capitalize()} differ{'' if len(ranks) > 1 else 's'} from most")
    # The same on all ranks, also where each is at another.
    numbers = [s.step for s in seen.values()]
    at = f"{min(numbers)}-{max(numbers)}" if steps else f"{step}"
    raise OutOfSync(f"the ranks are out of sync at step {at}. {'. '.join(said)}", ranks=ranks)


def _which(circle: GuardedGroup, sums: Mapping[str, int], deadline_s: float) -> str:
    """Which parameters differ, and on which ranks."""
    found = circle.exchange_all("sync", msgspec.json.encode({name: str(value) for name, value in sums.items()}), deadline_s)
    all_ = {rank: msgspec.json.decode(said, type=dict[str, str]) for rank, said in found.items()}
    differing = []
    for name in dict.fromkeys(name for one in all_.values() for name in one):
        values = {rank: one.get(name, "none") for rank, one in all_.items()}
        if len(set(values.values())) > 1:
            ranks = _unlike(values)
            differing.append(f"{name} ({all_ranks(ranks) if len(ranks) < len(values) else _sides(values)})")
    more = f" and {len(differing) - _MOST_NAMES} more" if len(differing) > _MOST_NAMES else ""
    return f"{', '.join(differing[:_MOST_NAMES])}{more} differ{'s' if len(differing) == 1 else ''}"


def _sides(values: Mapping[int, str]) -> str:
    """Who has the same value, where none has a majority."""
    sides: dict[str, list[int]] = {}
    for rank, value in sorted(values.items()):
        sides.setdefault(value, []).append(rank)
    named = " against ".join(map(all_ranks, list(sides.values())[:_MOST_SIDES]))
    return f"{named} and {len(sides) - _MOST_SIDES} other values" if len(sides) > _MOST_SIDES else named


def _unlike(values: Mapping[int, str]) -> set[int]:
    """Ranks that differ from most; all of them where there is no most."""
    return set() if len(set(values.values())) == 1 else set(calls.odd(values)) or set(values)


def _whole(model: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Without those that FSDP's older form has divided among the ranks: with use_orig_params they look like any other."""
    parts = {
        id(parameter)
        for module in model.modules()
        if any(kind.__name__ == "FullyShardedDataParallel" for kind in type(module).__mro__)
        and getattr(getattr(module, "sharding_strategy", None), "name", "") != "NO_SHARD"
        for parameter in module.parameters()
    }
    return ((name, parameter) for name, parameter in model.named_parameters() if id(parameter) not in parts)


def _sums(parameters: Iterable[tuple[str, torch.Tensor]]) -> dict[str, int]:
    names, found = [], []
    for name, parameter in parameters:
        # A DTensor, a flat parameter of FSDP, a partitioned one of ZeRO-3 (empty here, ds_id set): a part, of which each rank has another.
        if type(parameter) not in (torch.Tensor, torch.nn.Parameter) or (hasattr(parameter, "ds_id") and not parameter.numel()):
            continue
        bits = parameter.detach()
        bits = torch.view_as_real(bits) if bits.is_complex() else bits
        bits = bits.contiguous().view(_INTEGERS[bits.element_size()])
        # Positions count: two elements that have changed places are a difference, too.
        names.append(name)
        found.append(_bit_sum(bits.view(-1)))
    return dict(zip(names, torch.stack([f.to("cpu") for f in found]).tolist() if found else [], strict=True))


def _bit_sum(bits: torch.Tensor) -> torch.Tensor:
    """In 64 bits, with overflow: of all elements, and of every second, third, ... so that exchanged elements show."""
    total = bits.sum(dtype=torch.int64)
    for stride in (2, 3, 5, 7):
        total = total * 31 + bits[::stride].sum(dtype=torch.int64)
    return total


def _total(sums: Mapping[str, int]) -> str:
    total = 0
    for value in sums.values():
        total = (total * _MIX + value + 1) & _MASK
    return f"{total:016x}"


def _loss(loss: torch.Tensor | float | None) -> str:
    if loss is None:
        return "finite"
    if isinstance(loss, torch.Tensor):
        if loss.numel() != 1:
            raise ValueError(f"loss is a number or a tensor of one element, not one of {loss.numel()}")
        # torch 2.13 warns of a conversion that leaves the graph.
        value = float(loss.detach())
    else:
        try:
            value = float(loss)
        except (TypeError, ValueError):
            raise TypeError(f"loss is a number or a tensor of one element, not {loss!r:.80}") from None
    return "finite" if math.isfinite(value) else str(value)
