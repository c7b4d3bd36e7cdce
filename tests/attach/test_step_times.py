"""What a rank writes for a benchmark: its variables without credentials, and the end of each step."""

import json
import math
import os
import struct
import subprocess
import sys

import pytest

from unhang.attach import step_times

RANK = """
import os, sys, types
backends = types.SimpleNamespace(cudnn=types.SimpleNamespace(benchmark=False))
sys.modules["torch"] = types.SimpleNamespace(get_num_threads=lambda: 1, get_float32_matmul_precision=lambda: "highest", backends=backends)
from unhang.attach import step_times
os.environ["NCCL_SHM_DISABLE"] = "1"
for step in range(1, 100):
    step_times.record(step, lambda: "cpu")
"""


def test_files_of_a_rank_that_ends_at_its_last_step(tmp_path):
    own = {"UNHANG_STEP_TIMES_DIR": str(tmp_path), "UNHANG_STEP_LIMIT": "7", "RANK": "3", "NCCL_SHM_DISABLE": "0", "NCCL_ALGO": "Ring"}
    own |= {"READ_AHEAD": "4", "UNHANG_STEP_VARIABLES": "READ_AHEAD,arguments"}
    hidden = {"HF_TOKEN": "hf_secret", "NCCL_AUTH_TOKEN": "secret", "EDITOR": "vi"}
    done = subprocess.run([sys.executable, "-c", RANK, "--lr", "1"], env={**os.environ, **own, **hidden}, timeout=60, check=False)
    (path,) = tmp_path.glob("*.json")
    told = json.loads(path.read_text())
    assert (done.returncode, told["rank"], told["torch"]["device"]) == (0, 3, "cpu")
    assert (told["started_with"]["NCCL_SHM_DISABLE"], told["variables"]["NCCL_SHM_DISABLE"], told["variables"]["NCCL_ALGO"]) == ("0", "1", "Ring")
    assert told["started_with"]["READ_AHEAD"] == told["variables"]["READ_AHEAD"] == "4"
    assert "argv" not in told and not hidden.keys() & told["variables"].keys() and path.stat().st_mode & 0o777 == 0o600
    ends, *parts = zip(*struct.iter_unpack("=4d", path.with_suffix(".times").read_bytes()), strict=True)
    assert list(ends) == sorted(ends) and len(ends) == 7 and all(math.isnan(part) for of_steps in parts for part in of_steps)
    assert json.loads(path.with_suffix(".peak").read_text())["host_bytes"] > 1 << 20


@pytest.mark.parametrize(
    ("name", "is_recorded"), [("TOKENIZERS_PARALLELISM", True), ("OMP_NUM_THREADS", True), ("ACCELERATE_API_KEY", False), ("HOME", False)]
)
def test_only_what_training_libraries_read_is_recorded(name, is_recorded):
    assert step_times.is_of_interest(name) is is_recorded
