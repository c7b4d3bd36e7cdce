"""A training with accelerate: it chooses the backend, wraps the model and averages the gradients."""

import os
import threading
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.utils import InitProcessGroupKwargs

torch.set_num_threads(1)
accelerator = Accelerator(kwargs_handlers=[InitProcessGroupKwargs(backend=os.environ["BACKEND"])])
once = Path(os.environ["FAULT_ONCE"])
model = torch.nn.Linear(8, 1)
model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.01))
for step in range(60):
    if step == 20 and accelerator.process_index == 1 and not once.exists():
        once.touch()
        if os.environ["FAULT"] == "hang":
            threading.Event().wait()  # it stands here
        if os.environ["FAULT"] == "crash":
            raise ValueError("this sample has no label")  # it raises here
    optimizer.zero_grad()
    accelerator.backward(model(torch.ones(4, 8)).sum())
    optimizer.step()
    threading.Event().wait(0.05)
accelerator.print("finished with", accelerator.num_processes, "processes")
accelerator.end_training()
