"""For DeepSpeed's engine, of ZeRO stages 0 to 2: `evaluate(engine, step, datasets, batch_size=64)`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import unhang
from unhang.integrations.sharing import batches, moved
from unhang.runtime.evaluation.results import Evaluation


def evaluate(
    engine: Any,
    step: Callable[[Any, Any], Mapping[str, Any]],
    datasets: Mapping[str, Any],
    *,
    batch_size: int,
    collate_fn: Callable[[list[Any]], Any] | None = None,
    num_workers: int = 0,
    **options: Any,
) -> Evaluation:
    """Each rank takes its share of each data set, calls `step(engine, batch)` for each batch, and all get the same Evaluation; see `unhang.evaluate`.

    `step` calls the engine as the training does, which casts inputs to its type, and returns metrics: a number for one sample, or a pair (sum,
    count). The batch is on the engine's device. `options` are those of `unhang.evaluate` (retries, shrink, deadline, monitor).

    Raises ValueError for ZeRO-3 and pipelines: their forward is made of collectives of the training's own group.
    """
    if engine.zero_optimization_stage() == 3 or type(engine).__name__ == "PipelineEngine":
        raise ValueError(
            "this model is split among the ranks (ZeRO-3, a pipeline), and its forward gathers it in the training's own group, where nothing can be "
            "given up: use `with unhang.evaluation(model=engine)` around a loop with as many batches on each rank"
        )

    def one(dataset: Any, size: int) -> Iterator[Mapping[str, Any]]:
        for batch in batches(dataset, size, collate_fn, num_workers):
            yield step(engine, moved(batch, engine.device))

    return unhang.evaluate(one, datasets, batch_size=batch_size, step=engine.global_steps, model=engine, **options)
