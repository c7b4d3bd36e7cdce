"""A training as torchrun starts it: DistributedDataParallel on Gloo."""

import os
import threading
from pathlib import Path

import torch
import torch.distributed as dist

torch.set_num_threads(1)
# Ray makes the group by itself.
if not dist.is_initialized():
    dist.init_process_group(os.environ["BACKEND"])
once = Path(os.environ["FAULT_ONCE"])
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(60):
    if step == 20 and dist.get_rank() == 1 and not once.exists():
        once.touch()
        if os.environ["FAULT"] == "hang":
            threading.Event().wait()  # it stands here
        if os.environ["FAULT"] == "crash":
            raise ValueError("this sample has no label")  # it raises here
    optimizer.zero_grad()
    model(torch.ones(4, 8)).sum().backward()
    optimizer.step()
    threading.Event().wait(0.05)
if dist.get_rank() == 0:
    print("finished with", dist.get_world_size(), "processes")
dist.destroy_process_group()
