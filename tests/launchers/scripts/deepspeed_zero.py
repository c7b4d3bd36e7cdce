"""A training with DeepSpeed, ZeRO stage 1, as its launcher starts it."""

import os
import threading
from pathlib import Path

import deepspeed
import torch

torch.set_num_threads(1)
deepspeed.init_distributed(dist_backend="gloo")
once = Path(os.environ["FAULT_ONCE"])
model = torch.nn.Linear(8, 1)
engine, *_ = deepspeed.initialize(
    model=model,
    optimizer=torch.optim.SGD(model.parameters(), lr=0.01),
    config={"train_micro_batch_size_per_gpu": 4, "zero_optimization": {"stage": 1}, "zero_allow_untested_optimizer": True},
)
for step in range(60):
    if step == 20 and deepspeed.comm.get_rank() == 1 and not once.exists():
        once.touch()
        if os.environ["FAULT"] == "hang":
            threading.Event().wait()  # it stands here
        if os.environ["FAULT"] == "crash":
            raise ValueError("this sample has no label")  # it raises here
    engine.backward(engine(torch.ones(4, 8)).sum())
    engine.step()
    threading.Event().wait(0.05)
if deepspeed.comm.get_rank() == 0:
    print("finished with", deepspeed.comm.get_world_size(), "processes")
deepspeed.comm.destroy_process_group()
