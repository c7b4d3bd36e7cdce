import common
import deepspeed
import torch

from unhang.integrations.deepspeed import evaluate

deepspeed.init_distributed("gloo")
config = {
    "train_micro_batch_size_per_gpu": common.BATCH,
    "optimizer": {"type": "AdamW", "params": {"lr": 0.01, "torch_adam": True}},
    "zero_optimization": {"stage": 2},
}
torch.manual_seed(0)
engine, _, loader, _ = deepspeed.initialize(model=common.model(), config=config, training_data=common.TRAINED)
evaluations = []
for step, batch in enumerate(loader, 1):
    engine.backward(engine(batch["x"], batch["labels"])["loss"])
    engine.step()
    if common.FAULT != "none" and step % 4 == 0:
        found = evaluate(engine, common.metrics_of, common.EVALUATED, batch_size=common.BATCH, deadline=common.DEADLINE_S)
        evaluations.append(found.flat())
    if step == common.STEPS:
        break
common.leave(engine.module, evaluations, engine_training=engine.training)
