"""A training with DeepSpeed as its launcher starts it: ZeRO stage 1, or what the given configuration says."""

import argparse
import os
import threading
from pathlib import Path

import deepspeed
import torch
from deepspeed.accelerator.cuda_accelerator import CUDA_Accelerator

torch.set_num_threads(1)
deepspeed.init_distributed(dist_backend=os.environ["BACKEND"])
parser = argparse.ArgumentParser()
parser.add_argument("--local_rank")
parser.add_argument("--deepspeed_config")
given = parser.parse_args().deepspeed_config
once = Path(os.environ["FAULT_ONCE"])
model = torch.nn.Linear(8, 1)
engine, *_ = deepspeed.initialize(
    model=model,
    optimizer=torch.optim.AdamW(model.parameters(), lr=0.01),
    config=given or {"train_micro_batch_size_per_gpu": 4, "zero_optimization": {"stage": 1}},
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
    print("ZeRO stage", engine.zero_optimization_stage(), "batch", engine.train_batch_size())
    print("on GPUs it would be", CUDA_Accelerator().communication_backend_name())
deepspeed.comm.destroy_process_group()
