"""FSDP2 over what stands in: two ranks on CPU, whose tensors are taken for some on GPUs, train as one process does on both batches."""

import json
import sys
from pathlib import Path

import pytest

from unhang.attach import protocol

fsdp = pytest.importorskip("torch.distributed.fsdp")
pytestmark = [
    pytest.mark.torch,
    pytest.mark.integration,
    pytest.mark.skipif(not hasattr(fsdp, "fully_shard"), reason="this torch has no fully_shard"),
]

TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]

SHARDED = """
import json, sys, warnings
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
warnings.simplefilter("ignore")

def model():
    torch.manual_seed(0)
    # Sizes that two ranks do not divide.
    return torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.ReLU(), torch.nn.Linear(5, 1))

def train(model, batches):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
    for batch in batches:
        model(batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

dist.init_process_group("nccl")
sys.modules["_unhang_attach.gloo_stand_in"].away = lambda tensor: True
sys.modules["_unhang_attach.functional"].register(dist.distributed_c10d, "CPU")
rank, mesh = dist.get_rank(), init_device_mesh("cpu", (2,))
batches = torch.randn(4, 8, 3, generator=torch.Generator().manual_seed(1))
alone, sharded = model(), model()
for layer in (sharded[0], sharded[2], sharded):
    fully_shard(layer, mesh=mesh, reshard_after_forward=True)
train(alone, batches)
train(sharded, batches[:, 4 * rank : 4 * rank + 4])
parameters = list(sharded.parameters())
apart = max(float((whole - part.full_tensor()).abs().max()) for whole, part in zip(alone.parameters(), parameters))
moved = max(float((whole - first).abs().max()) for whole, first in zip(alone.parameters(), model().parameters()))
told = sorted(what for what, _, _ in sys.modules["_unhang_attach.overrides"]._said)
with open(f"{sys.argv[1]}.{rank}", "w") as file:
    json.dump([apart, moved, all(isinstance(p, DTensor) and p.to_local().numel() < p.numel() for p in parameters[:1]), told], file)
dist.destroy_process_group()
"""


def test_fully_shard_trains_as_one_process_does(listener):
    script, result = listener.directory / "train.py", listener.directory / "seen"
    script.write_text(SHARDED)
    env = listener.env(**{protocol.ENV_BACKEND: "gloo"})
    code, _, err = listener.finish(listener.run([*TORCHRUN, str(script), str(result)], env=env))
    assert code == 0, err[-4000:]
    for rank in (0, 1):
        apart, moved, is_sharded, told = json.loads(Path(f"{result}.{rank}").read_text())
        assert apart < 1e-5 < 1e-2 < moved and is_sharded
        # Gradients go by way of it, and so do the whole parameters that were looked at.
        assert any("reduce_scatter" in what for what in told) and "functional all_gather_into_tensor" in told
