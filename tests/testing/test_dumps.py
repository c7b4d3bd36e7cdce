"""Dumps for tests are what torch writes."""

from __future__ import annotations

import pickle
import subprocess
import sys

import pytest

from unhang.testing.dumps import pickled

RECORD = """
import os, sys
os.environ.update(TORCH_FR_BUFFER_SIZE="1000", MASTER_ADDR="127.0.0.1", MASTER_PORT="0")
import torch, torch.distributed as dist
dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
other = dist.new_group([0])
for n in range(300):
    if n % 3:
        dist.all_reduce(torch.ones(n), group=other)
    else:
        dist.broadcast(torch.ones(2, n, dtype=torch.int64), 0)
open(sys.argv[1], "wb").write(torch._C._distributed_c10d._dump_fr_trace())
dist.destroy_process_group()
"""


def test_byte_for_byte(tmp_path):
    pytest.importorskip("torch")
    path = tmp_path / "dump"
    subprocess.run([sys.executable, "-c", RECORD, str(path)], check=True, timeout=120, capture_output=True)
    data = path.read_bytes()
    assert pickled(pickle.loads(data)) == data


def test_what_no_dump_holds():
    with pytest.raises(TypeError, match="float"):
        pickled({"duration_ms": 0.5})
