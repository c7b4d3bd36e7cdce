"""Accelerate: prepare, gather, a batch size that is searched, state saved and loaded."""

from __future__ import annotations

import torch
from accelerate import Accelerator
from accelerate.logging import get_logger
from accelerate.utils import find_executable_batch_size, set_seed
from torch.utils.data import DataLoader, TensorDataset

accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2, log_with="tensorboard", project_dir="accelerated")
log = get_logger(__name__, log_level="INFO")
set_seed(7)
accelerator.init_trackers("run")
accelerator.print(accelerator.state)


@find_executable_batch_size(starting_batch_size=64)
def train(batch_size: int) -> None:
    accelerator.free_memory()
    accelerator.print(f"trying a batch size of {batch_size}")
    if batch_size > 16:
        raise RuntimeError(f"CUDA out of memory. Tried to allocate {batch_size}.00 GiB")  # what the decorator listens to; it halves the batch
    model = torch.nn.Linear(8, 2)
    optimizer = torch.optim.AdamW(model.parameters())
    loader = DataLoader(TensorDataset(torch.randn(128, 8), torch.randint(0, 2, (128,))), batch_size=batch_size)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for step, (x, y) in enumerate(loader):
        with accelerator.accumulate(model):
            loss = torch.nn.functional.cross_entropy(model(x), y)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        mean = accelerator.gather(loss.detach()).mean()
        accelerator.print(f"step {step} loss {mean.item():.4f}")
        accelerator.log({"loss": mean.item()}, step=step)
    accelerator.save_state("accelerated/state")
    accelerator.load_state("accelerated/state")


train()
accelerator.wait_for_everyone()
accelerator.end_training()
