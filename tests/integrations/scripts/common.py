"""What the trainings of all frameworks share: data, a model with buffers and dropout, faults in their evaluations, and what they leave behind."""

import hashlib
import json
import math
import os
import time
from pathlib import Path

import torch

torch.set_num_threads(1)
FAULT = os.environ["FAULT"]
RANK, WORLD_SIZE = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
BATCH, STEPS = 8, 12
# Of a rank that sleeps; otherwise no deadline should be met, however slow the machine.
DEADLINE_S = 4.0 if FAULT == "sleep" else 60.0
_calls = 0


class Points(torch.utils.data.Dataset):
    """Two classes, on both sides of a plane."""

    def __init__(self, size, seed):
        generator = torch.Generator().manual_seed(seed)
        self.x = torch.randn(size, 4, generator=generator)
        self.y = (self.x.sum(1) > 0).long()

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return {"x": self.x[i], "labels": self.y[i]}


TRAINED, EVALUATED = Points(200, 0), {"a": Points(43, 1), "b": Points(20, 2)}


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(4, 16), torch.nn.LayerNorm(16), torch.nn.Dropout(0.3), torch.nn.Linear(16, 2))

    def forward(self, x=None, labels=None):
        if not self.training:
            misbehave(len(x))
        logits = self.layers(x)
        return {"loss": torch.nn.functional.cross_entropy(logits, labels), "logits": logits}


def model():
    torch.manual_seed(0)
    return Model()


def misbehave(size):
    global _calls
    _calls += 1
    if RANK != WORLD_SIZE - 1:
        return
    if FAULT == "exception" and _calls == 2:
        raise KeyError("a label that does not exist")
    if FAULT == "memory" and size > BATCH // 2:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
    if FAULT == "sleep" and _calls == 2:
        time.sleep(DEADLINE_S + 4)


def metrics_of(model, batch):
    # As a user would, who draws numbers in an evaluation.
    torch.rand(3)
    out = model(batch["x"], batch["labels"])
    count = len(batch["x"])
    return {"loss": (out["loss"].item() * count, count), "accuracy": ((out["logits"].argmax(1) == batch["labels"]).sum().item(), count)}


def leave(model, evaluations, **more):
    """One JSON of this rank: not-a-number as null."""
    digest = hashlib.sha256(b"".join(value.detach().float().cpu().numpy().tobytes() for value in model.state_dict().values())).hexdigest()
    found = [{name: None if math.isnan(value) else value for name, value in one.items()} for one in evaluations]
    text = json.dumps({"digest": digest, "training": model.training, "random": torch.rand(1).item(), "evaluations": found, **more})
    Path(os.environ["LEFT"], f"rank{RANK}.json").write_text(text)
    if torch.distributed.is_initialized():
        torch.distributed.barrier()
        torch.distributed.destroy_process_group()
