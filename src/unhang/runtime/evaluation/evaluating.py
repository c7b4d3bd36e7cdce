"""Evaluation of several data sets, each tried by all ranks together until it is done or given up by all of them; or around a loop that exists.

`evaluate` can try again, with smaller batches or as it was; `evaluation` cannot: a block of code runs once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec
import torch

from unhang.errors import EvaluationFailed
from unhang.runtime.collectives import circle as circles
from unhang.runtime.collectives import deadlines
from unhang.runtime.collectives.agreement import pair
from unhang.runtime.collectives.circle import Circle
from unhang.runtime.evaluation.attempt import Progress, Status, batches, tried
from unhang.runtime.evaluation.keeping import as_it_was
from unhang.runtime.evaluation.results import Evaluation, OfDataSet, Sums, add, means

_WORTH_ANOTHER_TRY = frozenset({"ok", "memory", "passing", "ended"})


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
    `deadline`: seconds without progress until a rank is given up (30 minutes by default). `model`: put into eval mode meanwhile.
    `monitor` is called with the result on the group's first rank; what it raises is its own affair.

    Raises ValueError and TypeError for arguments that make no sense; EvaluationFailed where the training's own group is no longer in step (an
    evaluation with collectives of its own, in which ranks stopped at different places): going on would mix metrics into gradients.
    """
    _checked(fn, datasets, batch_size, retries, shrink)
    circle = circles.of(group)
    deadline_s = deadlines.EVALUATION_S if deadline is None else deadlines.checked(deadline)
    began = time.monotonic()
    found: dict[str, OfDataSet] = {}
    missing: tuple[int, ...] = ()
    with as_it_was(_models(model)):
        names, absent = _names(circle, datasets, deadline_s)
        if absent:
            missing = absent
            names = ()
        for name in names:
            found[name], missing = _one(fn, datasets, name, circle, batch_size, retries, shrink, deadline_s)
            if missing:
                break
    why = f"{_ranks(missing)} did not answer within {deadline_s:g} s" if missing else None
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
        add(self._sums.setdefault(dataset, {}), {name: pair(name, value) for name, value in metrics.items()})
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
    circle = circles.of(group)
    deadline_s = deadlines.EVALUATION_S if deadline is None else deadlines.checked(deadline)
    began = time.monotonic()
    guarded = Guarded()
    raised: list[BaseException] = []

    def again(sums: Sums, progress: Progress) -> None:
        for name, found in guarded._sums.items():
            add(sums, {f"{name}\0{metric}": value for metric, value in found.items()})
        if raised:
            raise raised[0]

    key = circle.begin("evaluation")
    with as_it_was(_models(model)):
        guarded._progress = Progress(circle, key)
        with circle.scope(key):
            try:
                yield guarded
            except BaseException as e:
                raised.append(e)
    statuses = tried(again, circle, key, deadline_s)
    guarded._progress = None
    guarded._result = _of_block(statuses, circle, step, deadline_s, time.monotonic() - began)
    _in_step(statuses, circle)
    _shown(monitor, guarded._result, circle)


def _of_block(statuses: dict[int, Status], circle: Circle, step: int | None, deadline_s: float, seconds: float) -> Evaluation:
    missing = tuple(rank for rank in circle.ranks if rank not in statuses)
    why, failed = _why(statuses, missing, deadline_s)
    by_name: dict[str, Sums] = {}
    for status in statuses.values():
        for key, value in status.sums.items():
            name, _, metric = key.partition("\0")
            add(by_name.setdefault(name, {}), {metric: _number(value)})
    sets = {name: _data_set(sums, attempts=1, batch_size=0, why=why, failed=failed) for name, sums in sorted(by_name.items())}
    return Evaluation(step=step, data_sets=sets, missing=missing, why=why, seconds=round(seconds, 3))


def _names(circle: Circle, datasets: Mapping[str, Any], deadline_s: float) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """All names that any rank has, in one order for all; and who did not come at all."""
    found = circle.exchange("evaluation", msgspec.json.encode(sorted(datasets)), deadline_s)
    names = sorted({name for packed in found.values() for name in msgspec.json.decode(packed, type=list[str])})
    return tuple(names), tuple(rank for rank in circle.ranks if rank not in found)


def _one(
    fn: Callable[[Any, int], Any],
    datasets: Mapping[str, Any],
    name: str,
    circle: Circle,
    batch_size: int,
    retries: int,
    shrink: float,
    deadline_s: float,
) -> tuple[OfDataSet, tuple[int, ...]]:
    attempts = 0
    while True:
        attempts += 1

        def body(sums: Sums, progress: Progress, size: int = batch_size) -> None:
            if name in datasets:
                batches(fn(datasets[name], size), sums, progress, pair)

        statuses = tried(body, circle, circle.begin("attempt"), deadline_s)
        missing = tuple(rank for rank in circle.ranks if rank not in statuses)
        why, failed = _why(statuses, missing, deadline_s)
        sums: Sums = {}
        for status in statuses.values():
            add(sums, {metric: _number(value) for metric, value in status.sums.items()})
        kinds = {status.kind for status in statuses.values()}
        of_memory = "memory" in kinds
        smaller = max(1, int(batch_size * shrink)) if of_memory else batch_size
        again = why is not None and not missing and attempts <= retries and kinds <= _WORTH_ANOTHER_TRY and not (of_memory and smaller == batch_size)
        _in_step(statuses, circle)
        if not again:
            return _data_set(sums, attempts=attempts, batch_size=batch_size, why=why, failed=failed), missing
        batch_size = smaller


def _in_step(statuses: dict[int, Status], circle: Circle) -> None:
    """Raises on all ranks where the training's own group was used by some more than by others."""
    calls = {rank: status.calls for rank, status in statuses.items()}
    if len(set(calls.values())) <= 1 and (len(calls) == circle.size or not any(calls.values())):
        return
    said = ", ".join(f"rank {rank} {count}" for rank, count in sorted(calls.items()))
    raise EvaluationFailed(
        f"the training's own group is out of step: in this evaluation its ranks made different numbers of collectives ({said}). To go on would mix "
        "results of the evaluation into the training. Use unhang's collectives inside of evaluations, or restart the training (unhang run does)."
    )


def _why(statuses: dict[int, Status], missing: tuple[int, ...], deadline_s: float) -> tuple[str | None, tuple[int, ...]]:
    failed = {rank: status.says for rank, status in statuses.items() if status.kind not in ("ok", "ended")}
    said = [f"rank {rank}: {says}" for rank, says in failed.items()]
    if missing:
        said.append(f"{_ranks(missing)} did not answer within {deadline_s:g} s")
    if not said and any(status.kind == "ended" for status in statuses.values()):
        said.append(next(status.says for status in statuses.values() if status.kind == "ended"))
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


def _number(value: tuple[float | None, float]) -> tuple[float, float]:
    return (float("nan") if value[0] is None else value[0]), value[1]


def _models(model: Any) -> list[torch.nn.Module]:
    return [model] if isinstance(model, torch.nn.Module) else list(model)


def _ranks(ranks: Sequence[int]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"


def _shown(monitor: Callable[[Evaluation], None] | None, evaluation: Evaluation, circle: Circle) -> None:
    if monitor is None or circle.rank != 0:
        return
    try:
        monitor(evaluation)
    except Exception as e:
        # Neither a full disk nor a logger's server is a reason to lose a training.
        import warnings

        warnings.warn(f"the monitor of unhang.evaluate raised {type(e).__name__}: {e}", RuntimeWarning, stacklevel=3)


def _checked(fn: Any, datasets: Any, batch_size: Any, retries: Any, shrink: Any) -> None:
    if not callable(fn):
        raise TypeError(f"fn is called with data and a batch size; {type(fn).__name__} cannot be called")
    if not isinstance(datasets, Mapping):
        raise TypeError(f"datasets is a mapping of names to data, not {type(datasets).__name__}")
    if isinstance(batch_size, bool) or not isinstance(batch_size, int) or batch_size < 1:
        raise ValueError(f"batch_size is a whole number from 1 on, not {batch_size!r}")
    if isinstance(retries, bool) or not isinstance(retries, int) or retries < 0:
        raise ValueError(f"retries is a whole number from 0 on, not {retries!r}")
    if not 0 < shrink < 1:
        raise ValueError(f"shrink is between 0 and 1, not {shrink!r}")
