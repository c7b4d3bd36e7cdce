"""For the Trainer of transformers: `class MyTrainer(GuardedEvaluation, Trainer)`.

The Trainer's own evaluation gathers losses, predictions and labels in the training's group batch by batch: a rank that leaves it by an exception
leaves the others waiting, or shifts their next collective by one. Here each rank evaluates its share by itself, and what is exchanged goes through
unhang.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy
import torch
from transformers import EarlyStoppingCallback, EvalPrediction
from transformers.trainer_pt_utils import find_batch_size, nested_concat, nested_numpify
from transformers.trainer_utils import denumpify_detensorize, speed_metrics

import unhang
from unhang.integrations.sharing import rank_and_size, share
from unhang.runtime import log
from unhang.runtime.evaluation.results import Evaluation, OfDataSet

_PADDING = -100


class GuardedEvaluation:
    """Replaces `evaluate`; `predict` stays the Trainer's. Class attributes are the options of `unhang.evaluate`.

    A failed evaluation leaves its metrics not-a-number and `eval_evaluation_failed` 1 (eval/evaluation_failed in loggers); it is never the best one,
    and neither counts against early stopping nor against a learning rate that waits for a plateau.
    `compute_metrics` gets the predictions of all ranks, as ever, in the order of the data set.
    """

    evaluation_retries = 3
    evaluation_shrink = 0.5
    evaluation_deadline: float | None = None
    evaluation_monitor: Any = None
    # The last one.
    evaluation_result: Evaluation | None = None

    _names_seen: Mapping[str, tuple[str, ...]] = {}

    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        """Raises ValueError, before anything is trained, for what cannot be guarded."""
        super().__init__(*args, **kwargs)
        if self.is_fsdp_enabled or (self.is_deepspeed_enabled and self.accelerator.state.deepspeed_plugin.zero_stage == 3):
            raise ValueError(
                "this model is split among the ranks (FSDP, ZeRO-3), and its forward gathers it in the training's own group, where nothing can be "
                "given up: such an evaluation cannot be guarded; use the Trainer without GuardedEvaluation"
            )
        if self.args.batch_eval_metrics:
            raise ValueError(
                "batch_eval_metrics computes metrics from batches of all ranks: switch it off, or reduce by preprocess_logits_for_metrics"
            )

    def evaluate(self: Any, eval_dataset: Any = None, ignore_keys: list[str] | None = None, metric_key_prefix: str = "eval") -> dict[str, float]:
        """As the Trainer's, for one data set or a dictionary of them. All ranks have to call it."""
        override = eval_dataset is not None
        given = eval_dataset if override else self.eval_dataset
        several = isinstance(given, dict)
        # What get_eval_dataloader is called with: persistent workers are kept by name.
        sets = {str(name): (one if override else name) for name, one in given.items()} if several else {metric_key_prefix: eval_dataset}
        prefixes = {name: f"{metric_key_prefix}_{name}" if several else metric_key_prefix for name in sets}
        computed: dict[str, dict[str, Any]] = {}
        self._memory_tracker.start()
        began = time.time()

        def one(item: Any, batch_size: int) -> Iterator[Mapping[str, Any]]:
            name, dataset = item
            computed.pop(name, None)
            with _alone(self, batch_size):
                yield from _evaluated(self, dataset, ignore_keys, computed.setdefault(name, {}))

        optimizer = getattr(self, "optimizer", None)
        _mode(optimizer, "eval")
        result = unhang.evaluate(
            one,
            {name: (name, dataset) for name, dataset in sets.items()},
            batch_size=self.args.eval_batch_size,
            step=self.state.global_step,
            model=self.model,
            retries=self.evaluation_retries,
            shrink=self.evaluation_shrink,
            deadline=self.evaluation_deadline,
            monitor=self.evaluation_monitor,
        )
        if self.is_in_train:
            _mode(optimizer, "train")
        self.evaluation_result = result
        metrics: dict[str, Any] = {}
        for name, prefix in prefixes.items():
            metrics |= _metrics(self, prefix, result.data_sets.get(name), computed.get(name, {}), began)
        metrics[f"{metric_key_prefix}_evaluation_failed"] = 0.0 if result.ok else 1.0
        metrics[f"{metric_key_prefix}_attempts"] = float(result.attempts)
        if not result.ok:
            log.warning("evaluation at step %d failed, the training goes on: %s", self.state.global_step, result.says)
        self.log(metrics)
        with _not_counted(self, failed=not result.ok):
            self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        self._memory_tracker.stop_and_update_metrics(metrics)
        return metrics

    def _evaluate(self: Any, *args: Any, **kwargs: Any) -> dict[str, float]:
        """The Trainer steps a scheduler that waits for a plateau by what this returns."""
        scheduler: Any = getattr(self, "lr_scheduler", None)
        before = copy.deepcopy(scheduler.state_dict()) if hasattr(scheduler, "state_dict") else None
        rates = [group["lr"] for group in self.optimizer.param_groups] if self.optimizer is not None else []
        metrics: dict[str, float] = super()._evaluate(*args, **kwargs)  # type: ignore[misc]
        if before is not None and self.evaluation_result is not None and not self.evaluation_result.ok:
            scheduler.load_state_dict(before)
            for group, rate in zip(self.optimizer.param_groups, rates, strict=False):
                group["lr"] = rate
        return metrics

    def _determine_best_metric(self: Any, metrics: dict[str, float], trial: Any) -> bool:
        name = self.args.metric_for_best_model
        if name is not None and _is_nan(metrics.get(name if name.startswith("eval_") else f"eval_{name}")):
            return False
        return bool(super()._determine_best_metric(metrics=metrics, trial=trial))  # type: ignore[misc]


def _evaluated(trainer: Any, dataset: Any, ignore_keys: list[str] | None, computed: dict[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Metrics by batch; what compute_metrics makes of all predictions goes into `computed`."""
    for_metrics = trainer.compute_metrics is not None and not trainer.args.prediction_loss_only
    wanted = trainer.args.include_for_metrics
    loader = trainer.get_eval_dataloader(dataset)
    trainer.callback_handler.eval_dataloader = loader
    parts: list[dict[str, Any]] = []
    for inputs in share(loader):
        size = find_batch_size(inputs) or loader.batch_size or 1
        with torch.no_grad():
            # Not through DDP, whose forward exchanges buffers.
            loss, logits, labels = trainer.prediction_step(trainer.model, inputs, not for_metrics, ignore_keys=ignore_keys)
        if for_metrics and logits is not None:
            if trainer.preprocess_logits_for_metrics is not None:
                logits = trainer.preprocess_logits_for_metrics(logits, labels)
            part = {"predictions": logits, "label_ids": labels}
            if "loss" in wanted and loss is not None:
                part["losses"] = loss.repeat(size)
            if "inputs" in wanted:
                part["inputs"] = inputs[getattr(trainer.model, "main_input_name", "input_ids")]
            parts.append({name: nested_numpify(value) for name, value in part.items() if value is not None})
        trainer.control = trainer.callback_handler.on_prediction_step(trainer.args, trainer.state, trainer.control)
        yield {} if loss is None else {"loss": (float(loss) * size, size)}
    if for_metrics:
        of_ranks = unhang.all_gather_object(parts) if rank_and_size()[1] > 1 else [parts]
        # Every n-th batch is a rank's: one of each in turn is the data set's own order.
        longest = max(map(len, of_ranks))
        in_order = [of_rank[number] for number in range(longest) for of_rank in of_ranks if number < len(of_rank)]
        if in_order and "label_ids" in in_order[0]:
            whole = {name: _joined([part[name] for part in in_order]) for name in in_order[0]}
            found = trainer.compute_metrics(EvalPrediction(**whole))
            computed.update(denumpify_detensorize(found))


def _joined(values: list[Any]) -> Any:
    whole = values[0]
    for value in values[1:]:
        whole = nested_concat(whole, value, padding_index=_PADDING)
    return whole


def _metrics(trainer: Any, prefix: str, found: OfDataSet | None, computed: Mapping[str, Any], began: float) -> dict[str, Any]:
    """What the Trainer returns of one data set; if it failed, the same names with not-a-number."""
    complete = found is not None and found.complete
    named = {name if name.startswith(f"{prefix}_") else f"{prefix}_{name}": value for name, value in computed.items()} if complete else {}
    if complete:
        trainer._names_seen = {**trainer._names_seen, prefix: tuple(named)}
    else:
        named = dict.fromkeys(trainer._names_seen.get(prefix, ()), math.nan)
        best = trainer.args.metric_for_best_model
        if best is not None and (best := best if best.startswith("eval_") else f"eval_{best}").startswith(f"{prefix}_"):
            named[best] = math.nan
    samples = int(found.samples) if found is not None else 0
    speed = speed_metrics(
        prefix, began, num_samples=samples, num_steps=math.ceil(samples / max(1, trainer.args.eval_batch_size * rank_and_size()[1]))
    )
    return {f"{prefix}_loss": math.nan if found is None else found.metrics.get("loss", math.nan), **named, **speed}


@contextmanager
def _alone(trainer: Any, batch_size: int) -> Iterator[None]:
    """What the Trainer does for an evaluation, without asking other ranks: no loaders of accelerate's, no counting of tokens over all ranks."""
    args, accelerator = trainer.args, trainer.accelerator
    settings = {
        "per_device_eval_batch_size": max(1, batch_size // max(1, args.n_gpu)),
        "average_tokens_across_devices": False,
        # A loader that is kept would keep its batch size.
        "dataloader_persistent_workers": False,
    }
    before = {name: args.__dict__[name] for name in settings if name in args.__dict__}
    args.__dict__.update({name: settings[name] for name in before})
    accelerator.prepare = lambda *loaders, **_: loaders[0] if len(loaders) == 1 else loaders
    try:
        yield
    finally:
        del accelerator.prepare
        args.__dict__.update(before)


@contextmanager
def _not_counted(trainer: Any, *, failed: bool) -> Iterator[None]:
    """Early stopping counts evaluations that are no better; one that failed is neither better nor worse."""
    stopping = [callback for callback in trainer.callback_handler.callbacks if isinstance(callback, EarlyStoppingCallback)] if failed else []
    before = [callback.early_stopping_patience_counter for callback in stopping]
    stop = trainer.control.should_training_stop
    yield
    for callback, count in zip(stopping, before, strict=True):
        callback.early_stopping_patience_counter = count
    if stopping:
        trainer.control.should_training_stop = stop


def _mode(optimizer: Any, mode: str) -> None:
    # Optimizers without a schedule keep other parameters for evaluations.
    if callable(switch := getattr(optimizer, mode, None)):
        switch()


def _is_nan(value: Any) -> bool:
    return isinstance(value, float | numpy.floating) and math.isnan(value)
