"""Ray: tasks and actors whose failures are retried, or Ray Train with two workers."""

# ruff: noqa: T201
from __future__ import annotations

import sys
from pathlib import Path

import ray

ray.init(num_cpus=4, include_dashboard=False, object_store_memory=200_000_000, log_to_driver=True)
if sys.argv[1] == "core":

    @ray.remote(max_retries=2, retry_exceptions=True)
    def flaky(path: str) -> str:
        if not Path(path).exists():
            Path(path).touch()
            raise OSError("the first attempt fails, Ray tries again")
        print("second attempt ok")
        return path

    @ray.remote
    class Worker:
        def step(self, n: int) -> int:
            print(f"worker step {n}")
            return n

    print(ray.get([flaky.remote(f"/tmp/flaky{i}") for i in range(2)]))
    workers = [Worker.remote() for _ in range(2)]
    print(ray.get([w.step.remote(n) for n, w in enumerate(workers * 3)]))
    ray.kill(workers[0])
else:
    import ray.train
    import torch
    from ray.train import ScalingConfig
    from ray.train.torch import TorchConfig, TorchTrainer

    def loop() -> None:
        model = ray.train.torch.prepare_model(torch.nn.Linear(4, 1))
        for step in range(4):
            loss = model(torch.randn(8, 4)).mean()
            loss.backward()
            ray.train.report({"loss": loss.item(), "step": step})
            print("step", step, "rank", ray.train.get_context().get_world_rank())

    result = TorchTrainer(loop, torch_config=TorchConfig(backend="gloo"), scaling_config=ScalingConfig(num_workers=2)).fit()
    print(result.metrics)
ray.shutdown()
