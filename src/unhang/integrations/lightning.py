"""For Lightning's Trainer: `GuardedEvaluation({"nli": nli}, batch_size=64)` among its callbacks, and `evaluation_step(batch)` in the module.

Lightning's own validation cannot be ended from outside on all ranks together: it belongs switched off (limit_val_batches=0).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

import unhang
from unhang.integrations.sharing import batches
from unhang.runtime import log
from unhang.runtime.evaluation.results import Evaluation

try:
    from lightning.pytorch import Callback
except ImportError:
    from pytorch_lightning import Callback


class GuardedEvaluation(Callback):  # type: ignore[misc, unused-ignore]
    """Evaluates after every `every_n_epochs` epochs, or `every_n_steps` steps of the optimizer.

    The module's `evaluation_step(batch)` returns metrics: a number for one sample, or a pair (sum, count). Loggers get eval/<data set>/<metric>,
    eval/evaluation_failed and eval/attempts. Callbacks that watch a metric (ModelCheckpoint, EarlyStopping) find those of the last evaluation that
    succeeded: EarlyStopping takes not-a-number for the end of a training. Give it before them. `result` is the last Evaluation.
    """

    def __init__(
        self,
        datasets: Mapping[str, Any],
        *,
        batch_size: int,
        every_n_epochs: int | None = None,
        every_n_steps: int | None = None,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        num_workers: int = 0,
        **options: Any,
    ) -> None:
        """`options` are those of `unhang.evaluate` (retries, shrink, deadline, monitor)."""
        if every_n_epochs is not None and every_n_steps is not None:
            raise ValueError("every_n_epochs or every_n_steps, not both")
        self._datasets, self._batch_size, self._collate_fn, self._num_workers = datasets, batch_size, collate_fn, num_workers
        self._every_n_steps = every_n_steps
        self._every_n_epochs = every_n_epochs or 1
        self._options = options
        self._evaluated_at = 0
        self.result: Evaluation | None = None

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        name = type(trainer.strategy).__name__
        if any(split in name for split in ("FSDP", "ModelParallel")) or getattr(trainer.strategy, "zero_stage_3", False):
            raise ValueError(f"{name} splits the model among the ranks, and its forward gathers it in the training's own group: it cannot be guarded")
        if not callable(getattr(pl_module, "evaluation_step", None)):
            raise TypeError(f"{type(pl_module).__name__} has no evaluation_step(batch), which returns the metrics of a batch")

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        done = trainer.global_step
        # Of several batches that are accumulated all but the last leave the step as it was.
        if self._every_n_steps is not None and done and done % self._every_n_steps == 0 and done != self._evaluated_at:
            self._evaluated_at = done
            self._evaluate(trainer, pl_module)

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        if self._every_n_steps is None and (trainer.current_epoch + 1) % self._every_n_epochs == 0:
            self._evaluate(trainer, pl_module)

    def _evaluate(self, trainer: Any, pl_module: Any) -> None:
        def one(dataset: Any, size: int) -> Iterator[Mapping[str, Any]]:
            for batch in batches(dataset, size, self._collate_fn, self._num_workers):
                with trainer.precision_plugin.forward_context():
                    metrics = pl_module.evaluation_step(trainer.strategy.batch_to_device(batch))
                yield metrics

        step = int(trainer.global_step)
        self.result = unhang.evaluate(one, self._datasets, batch_size=self._batch_size, step=step, model=pl_module, **self._options)
        flat = self.result.flat()
        if not self.result.ok:
            log.warning("evaluation at step %d failed, the training goes on: %s", step, self.result.says)
        trainer.callback_metrics.update({name: torch.tensor(value) for name, value in flat.items() if not math.isnan(value)})
        for logger in trainer.loggers:
            logger.log_metrics(flat, step=step)
