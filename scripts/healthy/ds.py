"""DeepSpeed on the CPU: ZeRO 2, a scheduler, a checkpoint."""

from __future__ import annotations

import deepspeed
import torch

deepspeed.init_distributed(dist_backend="gloo")
config = {
    "train_micro_batch_size_per_gpu": 4,
    "gradient_accumulation_steps": 2,
    "steps_per_print": 2,
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True}},
    "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 4}},
    "zero_optimization": {"stage": 2, "offload_optimizer": {"device": "none"}},
    "wall_clock_breakdown": True,
    "communication_data_type": "fp32",
}
model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1))
engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
for _ in range(16):
    loss = engine(torch.randn(4, 16)).mean()
    engine.backward(loss)
    engine.step()
engine.save_checkpoint("ds", tag="step16")
engine.load_checkpoint("ds", tag="step16")
