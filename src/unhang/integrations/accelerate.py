"""For scripts that use accelerate: `evaluate(accelerator, step, datasets, model=model, batch_size=64)`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch.utils.data import DataLoader

import unhang
from unhang.integrations.sharing import batches, moved
from unhang.runtime.evaluation.results import Evaluation

_SHARDED = ("FSDP", "MEGATRON_LM", "TP")


def evaluate(
    accelerator: Any,
    step: Callable[[Any, Any], Mapping[str, Any]],
    datasets: Mapping[str, Any],
    *,
    model: torch.nn.Module,
    batch_size: int,
    collate_fn: Callable[[list[Any]], Any] | None = None,
    num_workers: int = 0,
    global_step: int | None = None,
    **options: Any,
) -> Evaluation:
    """Each rank takes its share of each data set, calls `step(model, batch)` for each batch, and all get the same Evaluation; see `unhang.evaluate`.

    `model` is the one that accelerate prepared; `step` gets what is inside of DDP, whose forward would exchange buffers, under the accelerator's
    autocast, with the batch on its device, and returns metrics: a number for one sample, or a pair (sum, count). `datasets` are plain ones, not
    prepared: accelerate's loaders repeat samples so that all ranks get as many, and those of iterable data sets send batches around. `options` are
    those of `unhang.evaluate` (retries, shrink, deadline, monitor).

    Raises ValueError for models that are split among ranks (FSDP, ZeRO-3): their forward is a collective of the training's own group.
    """
    if accelerator.distributed_type.name in _SHARDED or getattr(getattr(accelerator.state, "deepspeed_plugin", None), "zero_stage", 0) == 3:
        raise ValueError(
            "this model is split among the ranks (FSDP, ZeRO-3), and its forward gathers it in the training's own group, where nothing can be given "
            "up: use `with unhang.evaluation(model=model)` around a loop with as many batches on each rank"
        )
    inner = accelerator.unwrap_model(model)

    def one(dataset: Any, size: int) -> Iterator[Mapping[str, Any]]:
        # Not before the evaluation: where it is so on one rank alone, all are told.
        if isinstance(dataset, DataLoader):
            raise TypeError(
                "datasets holds a DataLoader: give its data set (loader.dataset), the loader is made here, with batch_size and num_workers"
            )
        for batch in batches(dataset, size, collate_fn, num_workers):
            with accelerator.autocast():
                metrics = step(inner, moved(batch, accelerator.device))
            yield metrics

    return unhang.evaluate(one, datasets, batch_size=batch_size, step=global_step, model=inner, **options)
