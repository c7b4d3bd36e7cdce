"""What `unhang bench compare` measures of real trainings: where the time of a step goes on Gloo, and on GPUs also what NCCL says and NVML counts."""

# ruff: noqa: F811
from __future__ import annotations

import json

import pytest
from tests.bench.test_compare import bench  # noqa: F401
from tests.launch.conftest import NO_COMPILER

pytestmark = [pytest.mark.torch, pytest.mark.integration, pytest.mark.timeout(900)]

# Rank 0 computes for longer, so rank 1 waits for it in DDP's communication; both wait for their loader, and in a barrier for each other.
TRAIN = f"""
import os, sys, time
import torch, torch.distributed as dist
{NO_COMPILER}
torch.set_num_threads(1)
pause = float(sys.argv[-1]) if len(sys.argv) > 1 else 0.0
on_gpu = torch.cuda.is_available() and os.environ.get("TRAIN_ON") == "gpu"
dist.init_process_group("nccl" if on_gpu else "gloo")
device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if on_gpu else torch.device("cpu")
if on_gpu:
    torch.cuda.set_device(device)

class Slow(torch.utils.data.Dataset):
    def __len__(self):
        return 100_000
    def __getitem__(self, index):
        time.sleep(0.01)
        return torch.ones(64)

model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64).to(device))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for batch in torch.utils.data.DataLoader(Slow(), batch_size=2):
    optimizer.zero_grad()
    loss = model(batch.to(device)).sum()
    time.sleep(0.05 if dist.get_rank() == 0 else 0.0)
    loss.backward()
    optimizer.step()
    time.sleep(pause if dist.get_rank() == 1 else 0.0)
    dist.barrier()
"""


def measured(bench, *words):
    (bench.folder / "train.py").write_text(TRAIN)
    out, _ = bench.run(*words, "--budget", "5m", "--json", "train.py")
    return json.loads(out)


def test_where_the_time_of_a_step_goes(bench):
    told = measured(bench, "--arg", "pause=0,0.04", "--steps", "36", "-n", "2")
    first, second = ({one["rank"]: one for one in run["ranks"]} for run in sorted(bench.runs()[:2], key=lambda run: run["arm"]))
    for ranks in (first, second):
        for one in ranks.values():
            assert one["loader_s"] >= 0.02 and one["host_bytes"] > 1 << 26 and one["cuda_bytes"] is None and one["energy_j"] is None
    # In DDP's communication (at its samples), and in the barrier.
    assert first[1]["exposed_s"] >= 0.03
    # Every step is timed: no rest is shorter than what the script sleeps.
    assert first[0]["compute_s"] >= 0.05 and first[1]["compute_s"] < first[0]["compute_s"]
    assert second[0]["exposed_s"] - first[0]["exposed_s"] >= 0.02
    assert told["in_force"]["a"]["TCP addresses"] and told["in_force"]["a"]["interop threads"]
    assert told["arms"][1]["exposed_s"] > told["arms"][0]["exposed_s"] > 0.01 and told["arms"][0]["loader_s"] >= 0.02
    assert any("so a faster transport can shorten a step of a by at most" in said for said in told["explains"])


@pytest.mark.gpu
def test_energy_and_memory_of_one_gpu(bench, monkeypatch):
    monkeypatch.setenv("TRAIN_ON", "gpu")
    told = measured(bench, "--arg", "pause=0,0.04", "--steps", "60", "-n", "1")
    for arm in told["arms"]:
        assert arm["energy_j"] > 0 and arm["cuda_bytes"] > 64 * 64 * 4


@pytest.mark.gpu
def test_shared_memory_on_and_off_differ_in_nccl_s_own_words(bench, monkeypatch):
    torch = pytest.importorskip("torch")
    if torch.cuda.device_count() < 2:
        pytest.skip("needs 2 GPUs")
    monkeypatch.setenv("TRAIN_ON", "gpu")
    told = measured(bench, "--a", "p2p=off shm=on", "--b", "p2p=off shm=off", "--steps", "100", "-n", "2")
    used = {arm: found["NCCL transports"] for arm, found in told["in_force"].items()}
    assert "SHM/" in used["a"] and "SHM/" not in used["b"] and "NET/" in used["b"] and "not known" not in used["a"] + used["b"]
    assert {"NCCL transports", "NCCL_SHM_DISABLE"} <= {one["name"] for one in told["differences"]}
    assert all(arm["exposed_s"] is not None and arm["energy_j"] > 0 for arm in told["arms"]) and told["explains"]
