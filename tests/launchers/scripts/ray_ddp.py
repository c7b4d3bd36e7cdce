"""A training with Ray Train: the ranks are actors that Ray's own daemon starts."""

import os
import threading
from pathlib import Path

import ray
import torch
from ray import train
from ray.train.torch import TorchConfig, TorchTrainer, prepare_model


def rank_main(config):
    torch.set_num_threads(1)
    rank = train.get_context().get_world_rank()
    once = Path(os.environ["FAULT_ONCE"])
    model = prepare_model(torch.nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(60):
        if step == 20 and rank == 1 and not once.exists():
            once.touch()
            if os.environ["FAULT"] == "hang":
                threading.Event().wait()  # it stands here
            if os.environ["FAULT"] == "crash":
                raise ValueError("this sample has no label")  # it raises here
        optimizer.zero_grad()
        model(torch.ones(4, 8)).sum().backward()
        optimizer.step()
        threading.Event().wait(0.05)
    if rank == 0:
        print("finished with", train.get_context().get_world_size(), "processes")


ray.init(num_cpus=2, include_dashboard=False, object_store_memory=100_000_000)
trainer = TorchTrainer(
    rank_main,
    torch_config=TorchConfig(backend=os.environ["BACKEND"]),
    scaling_config=train.ScalingConfig(num_workers=2),
    run_config=train.RunConfig(storage_path=os.environ["RAY_STORAGE"]),
)
trainer.fit()
