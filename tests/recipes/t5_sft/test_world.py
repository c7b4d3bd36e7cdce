"""Joining and leaving the process group."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import world

pytestmark = pytest.mark.torch

# Joins, trains one step, uses unhang as the training does, leaves; prints the threads of Gloo that are left.
LEAVE = """
import sys
sys.path.insert(0, sys.argv[1])
from pathlib import Path
import library, torch, world
def threads():
    return sum("gloo" in task.read_text() for task in Path("/proc/self/task").glob("*/comm"))
world.join(timeout_s=30, bf16="auto")
ddp = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
ddp(torch.ones(1, 4)).sum().backward()
library.sync_check(1, model=ddp.module, every=1)
monitor = library.Monitor([], torch_collectives=True)
monitor.close()
before = threads()
del ddp
world.leave()
print(before > 0, threads())
"""


def test_leaving_ends_the_threads_of_gloo() -> None:
    done = subprocess.run([sys.executable, "-c", LEAVE, str(Path(world.__file__).parent)], check=True, capture_output=True, text=True, timeout=100)
    assert done.stdout.split() == ["True", "0"]
