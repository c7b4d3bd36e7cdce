"""Evaluation of several data sets, each tried by all ranks together until it is done or given up by all of them; or around a loop that exists.

`evaluate` can try again, with smaller batches or as it was; `evaluation` cannot: a block of code runs once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from contextlib import contextmanager
from typing import Any

import msgspec
import torch

from unhang.errors import EvaluationFailed
from unhang.runtime import log
from unhang.runtime.collectives import deadlines
from unhang.runtime.collectives import guarded_group as circles
from unhang.runtime.collectives.agreement import Sums, add, can_be_told, means, paired
from unhang.runtime.collectives.guarded_group import GuardedGroup
from unhang.runtime.evaluation import results
from unhang.runtime.evaluation.attempt import Outcome, Progress, Status, batches, tried, within
from unhang.runtime.evaluation.collective_counts import Calls
from unhang.runtime.evaluation.results import Evaluation, OfDataSet
from unhang.runtime.evaluation.state_guard import as_it_was

_WORTH_ANOTHER_TRY = frozenset({"memory", "passing"})
_AGAINST_IT = frozenset({"wrong", "interrupted"})


class _Asked(msgspec.Struct, frozen=True, kw_only=True):
    """What one rank asks for: but for the names all have to ask alike, since what follows is decided by it. `says`: what is wrong with it."""

    names: list[str] = []
    # Those that have a length, which is 0.
    empty: list[str] = []
    step: int | None = None
    batch_size: int = 1
    retries: int = 0
    shrink: float = 0.5
    deadline_s: float = deadlines.EVALUATION_S
    says: str = ""


def evaluate(
    fn: Callable[[Any, int], Mapping[str, Any] | Iterable[Mapping[str, Any]]],
    datasets: Mapping[str, Any],
    *,
    batch_size: int,
    step: int | None = None,
    model: torch.nn.Module | Sequence[torch.nn.Module] = (),
    retries: int = 3,
    shrink: float = 0.5,
    deadline: float | None = None,
    group: Any = None,
    monitor: Callable[[Evaluation], None] | None = None,
) -> Evaluation:
    """Calls `fn(data, batch_size)` for each data set of this rank; all ranks get the same Evaluation, and none of them an exception of another's.

    `fn` returns metrics, or yields them batch by batch (then what was done before a failure is kept, and a slow rank is told from one that stands
    still): a number for one sample, or a pair (sum, count). Ranks may have different data sets; all ranks have to call this.
    After too little memory all ranks try again with `shrink` times the batch size, after anything that may pass as it was, `retries` times.
    `deadline`: seconds without progress of any rank until those that have not come are given up (30 minutes by default). `model`: put into eval mode
    meanwhile.
    `monitor` is called with the result on the group's first rank; what it raises is its own affair.

    Raises ValueError and TypeError, on all ranks, for arguments that make no sense or differ; EvaluationFailed where a group is no longer in
    step (an evaluation with collectives of torch's, in which ranks stopped at different places): going on would mix metrics into gradients.
    """
    circle = circles.meant_or_alone(group)
    began = time.monotonic()
    key = circle.begin("evaluation")
    try:
        circles.checked(group)
        asked = _checked(fn, datasets, step, batch_size, retries, shrink, deadline)
        _check_monitor(monitor)
        models = _models(model)
    except (TypeError, ValueError) as e:
        circle.leave_at(key, msgspec.msgpack.encode(_Asked(says=f"{type(e).__name__}: {e}")))
        raise
    with as_it_was(models):
        found: dict[str, OfDataSet] = {}
        names, empty, missing, why = _names(circle, key, asked)
        gone = missing
        for name in names:
            if why:
                found[name] = _not_reached(asked, why, gone)
                continue
            found[name], outcome = _one(fn, datasets, name, circle, asked, empty=name in empty)
            missing, left = _missing(circle, outcome), _left(outcome)
            gone = tuple(sorted({*missing, *left}))
            if gone:
                why = f"{name}: {'; '.join([*left.values(), *([outcome.silent] if outcome.silent else [])])}"
        found = results.completed(circle.ranks, found)
        evaluation = Evaluation(step=step, data_sets=found, missing=missing, why=why, seconds=round(time.monotonic() - began, 3))
        _shown(monitor, evaluation, circle)
    return evaluation


class Guarded:
    """What the body of `with evaluation()` adds to, and where the result stands afterwards."""

    def __init__(self) -> None:
        self._sums: dict[str, Sums] = {}
        self._progress: Progress | None = None
        self._result: Evaluation | None = None

    def add(self, dataset: str, **metrics: Any) -> None:
        """Metrics of one batch, each a number or a pair (sum, count). Call it for every batch: it also tells the others that this rank goes on."""
        if not can_be_told(dataset):
            raise TypeError(f"a data set's name is text that UTF-8 can hold, not {dataset!r}")
        add(self._sums.setdefault(dataset, {}), paired(metrics))
        if self._progress is not None:
            self._progress.step()

    @property
    def result(self) -> Evaluation:
        """Raises EvaluationFailed inside of the block."""
        if self._result is None:
            raise EvaluationFailed("the result is there once the block has been left")
        return self._result


@contextmanager
def evaluation(
    *,
    step: int | None = None,
    model: torch.nn.Module | Sequence[torch.nn.Module] = (),
    deadline: float | None = None,
    group: Any = None,
    monitor: Callable[[Evaluation], None] | None = None,
) -> Iterator[Guarded]:
    """Around a loop that exists: what it raises on any rank ends it on all of them, and is in `.result`, the same everywhere; nothing is raised.

    Loops with collectives of their own should use unhang's. Interrupts and exits go on. Raises EvaluationFailed as `evaluate` does.
    """
    circle = circles.meant_or_alone(group)
    key = circle.begin("evaluation")
    try:
        circles.checked(group)
        deadline_s, models = _deadline(deadline), _models(model)
        _check_monitor(monitor)
    except (TypeError, ValueError) as e:
        circle.leave_at(key, msgspec.msgpack.encode(Status(kind="wrong", says=f"{type(e).__name__}: {e}")))
        # The others give their lanes up, because of what was begun in the block.
        circle.broken()
        raise
    began = time.monotonic()
    guarded = Guarded()
    raised: list[BaseException] = []

    def again(sums: Sums, progress: Progress) -> None:
        for name, found in guarded._sums.items():
            add(sums, {f"{name}\0{metric}": value for metric, value in found.items()})
        if raised:
            raise raised.pop()

    calls = Calls(circle)
    with as_it_was(models):
        guarded._progress = Progress(circle, key, deadline_s)
        with circle.scope(key), within(deadline_s), calls.told(key):
            try:
                yield guarded
            except BaseException as e:
                raised.append(e)
        guarded._progress = None
        outcome = tried(again, circle, key, deadline_s, calls)
        guarded._result = _of_block(outcome, circle, step, time.monotonic() - began)
        _shown(monitor, guarded._result, circle)


def _of_block(outcome: Outcome, circle: GuardedGroup, step: int | None, seconds: float) -> Evaluation:
    statuses = outcome.statuses
    missing = _missing(circle, outcome)
    why, failed = _why(outcome, missing)
    by_name: dict[str, Sums] = {}
    for status in statuses.values():
        for key, value in status.sums.items():
            name, _, metric = key.partition("\0")
            add(by_name.setdefault(name, {}), {metric: value})
    sets = {
        name: _data_set(sums, attempts=1, batch_size=0, why=why or _nothing(sums, False), failed=failed) for name, sums in sorted(by_name.items())
    }
    return Evaluation(step=step, data_sets=sets, missing=missing, why=why, seconds=round(seconds, 3))


def _names(circle: GuardedGroup, key: str, asked: _Asked) -> tuple[tuple[str, ...], frozenset[str], tuple[int, ...], str | None]:
    """All names that any rank has, in one order for all; those that are empty on all that have them; who did not come, and why nothing follows."""
    mine = msgspec.structs.replace(asked, deadline_s=float(asked.deadline_s))

    def half_way() -> None:
        # Whoever does not come tells where it stands.
        circle.end_calls(key, "not all ranks have come to it")

    packed = circle.exchange_at(key, msgspec.msgpack.encode(mine), asked.deadline_s, half_way)
    found = {rank: msgspec.msgpack.decode(one, type=_Asked) for rank, one in sorted(packed.items())}
    if wrong := "; ".join(f"rank {rank}: {one.says}" for rank, one in found.items() if one.says):
        raise ValueError(f"an evaluation was asked for with arguments that make no sense: {wrong}")
    for name in ("step", "batch_size", "retries", "shrink", "deadline_s"):
        values = {rank: getattr(one, name) for rank, one in found.items()}
        if len(set(values.values())) > 1:
            said = ", ".join(f"rank {rank} {value}" for rank, value in values.items())
            raise ValueError(f"the ranks ask for different evaluations: {name.removesuffix('_s')} is {said}")
    missing = tuple(rank for rank in circle.ranks if rank not in found)
    names = tuple(sorted({name for one in found.values() for name in one.names}))
    empty = frozenset(name for name in names if all(name in one.empty for one in found.values() if name in one.names))
    return names, empty, missing, packed.silent(circle.ranks, asked.deadline_s) or (None if names else "no rank has given a data set")


def _one(
    fn: Callable[[Any, int], Any], datasets: Mapping[str, Any], name: str, circle: GuardedGroup, asked: _Asked, *, empty: bool
) -> tuple[OfDataSet, Outcome]:
    """What was found, and how the last attempt ended."""
    attempts, batch_size = 0, asked.batch_size
    logged: set[str] = set()
    while True:
        attempts += 1

        def body(sums: Sums, progress: Progress, size: int = batch_size) -> None:
            if name in datasets:
                batches(fn(datasets[name], size), sums, progress)

        outcome = tried(body, circle, circle.begin("attempt"), asked.deadline_s, about=f"{name!r} (attempt {attempts})", logged=logged)
        statuses, missing = outcome.statuses, _missing(circle, outcome)
        why, failed = _why(outcome, missing)
        sums: Sums = {}
        for status in statuses.values():
            add(sums, status.sums)
        kinds = {status.kind for status in statuses.values()}
        smaller = max(1, int(batch_size * asked.shrink)) if "memory" in kinds else batch_size
        may_pass = bool(kinds & _WORTH_ANOTHER_TRY) and not kinds & _AGAINST_IT and not ("memory" in kinds and smaller == batch_size)
        if missing or not may_pass or attempts > asked.retries:
            return _data_set(sums, attempts=attempts, batch_size=batch_size, why=why or _nothing(sums, empty), failed=failed), outcome
        batch_size = smaller


def _missing(circle: GuardedGroup, outcome: Outcome) -> tuple[int, ...]:
    return tuple(rank for rank in circle.ranks if rank not in outcome.statuses)


def _left(outcome: Outcome) -> dict[int, str]:
    """Ranks that were interrupted, which go on with no other data set, and how that is said."""
    return {rank: f"rank {rank} has left: {status.says}" for rank, status in outcome.statuses.items() if status.kind == "interrupted"}


def _nothing(sums: Sums, empty: bool) -> str | None:
    """Why nothing was measured; None where something was."""
    if any(count for _, count in sums.values()):
        return None
    if empty:
        return "nothing to measure: the data set is empty on all ranks"
    return "no sample was counted on any rank" if sums else "no metric was given on any rank: fn returned or yielded none"


def _not_reached(asked: _Asked, why: str, gone: tuple[int, ...]) -> OfDataSet:
    return OfDataSet(metrics={}, samples=0.0, attempts=0, batch_size=asked.batch_size, why=f"not reached: {why}", failed_ranks=gone)


def _why(outcome: Outcome, missing: tuple[int, ...]) -> tuple[str | None, tuple[int, ...]]:
    failed = {rank: f"rank {rank}: {status.says}" for rank, status in outcome.statuses.items() if status.kind not in ("ok", "ended")}
    said = list((failed | _left(outcome)).values())
    if outcome.silent:
        said.append(outcome.silent)
    if not said:
        said = [f"rank {rank} waited for it in vain: {status.says}" for rank, status in outcome.statuses.items() if status.kind == "ended"]
    return ("; ".join(said) or None), (*sorted(failed), *missing)


def _data_set(sums: Sums, *, attempts: int, batch_size: int, why: str | None, failed: tuple[int, ...]) -> OfDataSet:
    found = means(sums)
    samples = max((count for _, count in sums.values()), default=0.0)
    metrics = found if why is None else dict.fromkeys(found, float("nan"))
    return OfDataSet(
        metrics=metrics,
        partial={} if why is None else found,
        samples=samples,
        attempts=attempts,
        batch_size=batch_size,
        why=why,
        failed_ranks=failed,
    )


def _models(model: Any) -> list[torch.nn.Module]:
    models = [model] if isinstance(model, torch.nn.Module) else list(model)
    if not all(isinstance(one, torch.nn.Module) for one in models):
        raise TypeError(f"model is a torch module or several, not {model!r}")
    return models


def _shown(monitor: Callable[[Evaluation], None] | None, evaluation: Evaluation, circle: GuardedGroup) -> None:
    if monitor is None or circle.rank != 0:
        return
    try:
        monitor(evaluation)
    except Exception:
        # Neither a full disk nor a logger's server is a reason to lose a training; a warning would be one under -W error.
        log.exception("the monitor of an evaluation failed; the training goes on")


def _deadline(deadline: float | None) -> float:
    return deadlines.EVALUATION_S if deadline is None else deadlines.checked(deadline)


def _checked(fn: Any, datasets: Any, step: Any, batch_size: Any, retries: Any, shrink: Any, deadline: Any) -> _Asked:
    if not callable(fn):
        raise TypeError(f"fn is called with data and a batch size; {type(fn).__name__} cannot be called")
    if not isinstance(datasets, Mapping):
        raise TypeError(f"datasets is a mapping of names to data, not {type(datasets).__name__}")
    if nameless := [name for name in datasets if not isinstance(name, str)]:
        raise TypeError(f"the name of a data set is text, not {type(nameless[0]).__name__} {nameless[0]!r}")
    if untold := [name for name in datasets if not can_be_told(name)]:
        raise ValueError(f"a data set's name is text that UTF-8 can hold, not {untold[0]!r}")
    if step is not None and (isinstance(step, bool) or not isinstance(step, int)):
        raise TypeError(f"step is a whole number, not {step!r}")
    if isinstance(batch_size, bool) or not isinstance(batch_size, int) or batch_size < 1:
        raise ValueError(f"batch_size is a whole number from 1 on, not {batch_size!r}")
    if isinstance(retries, bool) or not isinstance(retries, int) or retries < 0:
        raise ValueError(f"retries is a whole number from 0 on, not {retries!r}")
    if isinstance(shrink, bool) or not isinstance(shrink, int | float) or not 0 < shrink < 1:
        raise ValueError(f"shrink is between 0 and 1, not {shrink!r}")
    empty = [name for name, data in datasets.items() if _is_empty(data)]
    return _Asked(names=list(datasets), empty=empty, step=step, batch_size=batch_size, retries=retries, shrink=shrink, deadline_s=_deadline(deadline))


def _check_monitor(monitor: Any) -> None:
    if monitor is not None and not callable(monitor):
        raise TypeError(f"monitor is called with the result; {type(monitor).__name__} cannot be called")


def _is_empty(data: Any) -> bool:
    try:
        return isinstance(data, Sized) and len(data) == 0
    except Exception:
        # Of an IterableDataset, a DataLoader has no length.
        return False
