import os
import sys

import common
from transformers import EarlyStoppingCallback, Trainer, TrainingArguments

from unhang.integrations.huggingface import GuardedEvaluation


class Guarded(GuardedEvaluation, Trainer):
    evaluation_deadline = common.DEADLINE_S


def computed(prediction):
    # All samples, each once.
    assert len(prediction.predictions) in (43, 20)
    order = [common.EVALUATED[name].y.tolist() for name in ("a", "b")]
    assert prediction.label_ids.tolist() in order
    return {"accuracy": float((prediction.predictions.argmax(1) == prediction.label_ids).mean())}


evaluates = common.FAULT != "none"
when = {"eval_strategy": "steps", "eval_steps": 4, "save_strategy": "steps", "save_steps": 4} if evaluates else {"save_strategy": "no"}
best = {"metric_for_best_model": "a_accuracy", "load_best_model_at_end": False} if evaluates else {}
arguments = TrainingArguments(
    sys.argv[1],
    per_device_train_batch_size=common.BATCH,
    per_device_eval_batch_size=common.BATCH,
    max_steps=common.STEPS,
    use_cpu=True,
    ddp_backend="gloo",
    report_to=[],
    disable_tqdm=True,
    lr_scheduler_type=os.environ.get("SCHEDULER", "linear"),
    ddp_find_unused_parameters=False,
    **when,
    **best,
)
model = common.model()
stopping = [EarlyStoppingCallback(early_stopping_patience=3)] if evaluates else []
trainer = Guarded(
    model, arguments, train_dataset=common.TRAINED, eval_dataset=common.EVALUATED, compute_metrics=computed if evaluates else None, callbacks=stopping
)
trainer.train()
names = ("eval_a_loss", "eval_a_accuracy", "eval_b_loss", "eval_b_accuracy", "eval_evaluation_failed", "eval_attempts")
evaluations = [{name: entry[name] for name in names} for entry in trainer.state.log_history if "eval_a_loss" in entry]
model.train()
common.leave(
    model,
    evaluations,
    best=trainer.state.best_metric,
    patience=[callback.early_stopping_patience_counter for callback in stopping],
    rate=trainer.optimizer.param_groups[0]["lr"],
    steps=trainer.state.global_step,
)
