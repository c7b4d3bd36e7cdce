"""A plan beside a real training: on the processors always, on a GPU where there is one."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.torch, pytest.mark.integration, pytest.mark.timeout(600)]
CONFIG = {"model_type": "llama", "hidden_size": 512, "num_hidden_layers": 8, "num_attention_heads": 8, "num_key_value_heads": 8,
          "intermediate_size": 1408, "vocab_size": 16000, "tie_word_embeddings": False}  # fmt: skip
TRAINING = """
import json, os, torch, transformers
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
device = "cuda" if torch.cuda.is_available() else "cpu"
if device == "cuda":
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl" if device == "cuda" else "gloo")
config = transformers.AutoConfig.for_model(**json.load(open("config.json")))
model = DistributedDataParallel(transformers.AutoModelForCausalLM.from_config(config, attn_implementation="sdpa").float().to(device))
optimizer = torch.optim.AdamW(model.parameters())
tokens = torch.zeros(4, 256, dtype=torch.long, device=device)
for _ in range(50):
    model(input_ids=tokens, labels=tokens, use_cache=False).loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.fixture
def calibrated(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    (tmp_path / "train.py").write_text(TRAINING)

    def calibrated(ranks):
        shape = ["--batch", "4", "--sequence", "256", "--precision", "fp32", "--strategy", "ddp"]
        launcher = [str(Path(sys.executable).with_name("torchrun")), "--nproc-per-node", str(ranks)]
        command = [sys.executable, "-m", "unhang", "plan", "config.json", *shape, "--json", "--calibrate", "--", *launcher, "train.py"]
        # Mapped blocks leave the process when they are freed, as those of a GPU's allocator are used again.
        environ = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536", "OMP_NUM_THREADS": "1"}
        done = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=500, check=False)
        assert done.returncode == 0, done.stderr[-3000:]
        return json.loads(done.stdout)["calibration"]

    return calibrated


def test_a_real_step_lies_within_the_plan_of_its_process(calibrated):
    found = calibrated(2)
    assert found["of"] in ("cpu", "cuda") and found["measured_bytes"] > 500e6
    assert 0.9 * found["low_bytes"] <= found["measured_bytes"] <= 1.1 * found["high_bytes"], found


@pytest.mark.gpu
def test_a_real_step_on_a_gpu_is_within_a_tenth_of_the_plan(calibrated):
    found = calibrated(1)
    assert found["of"] == "cuda" and abs(found["error"]) <= 0.10, found


def test_a_training_that_fails_is_reported(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    (tmp_path / "train.py").write_text("raise SystemExit(3)")
    command = [sys.executable, "-m", "unhang", "plan", "config.json", "--closed-form", "--calibrate", "--", "train.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 2 and "failed before its memory could be measured" in done.stderr and "/runs/plan-" in done.stderr
