"""A dump does not import torch's compiler into the training, and keeps it from nobody."""

import subprocess
import sys
import threading
from types import ModuleType

import pytest

from unhang.attach.recorder import left_alone

DUMP = """
import os, pickle, sys
os.environ |= {"TORCH_FR_BUFFER_SIZE": "100"}
import torch, torch.distributed as dist
from unhang.attach.recorder import Recorders
dist.init_process_group("gloo", init_method="file://" + sys.argv[1] + "/meet", rank=0, world_size=1)
for _ in range(3):
    dist.all_reduce(torch.ones(2))
Recorders(dist.distributed_c10d, sys.modules["torch._C._distributed_c10d"]).dump(sys.argv[1] + "/rank_0")
entries = pickle.load(open(sys.argv[1] + "/rank_0", "rb"))["entries"]
print(len(entries), any(f["filename"] == sys.argv[0] for f in entries[0]["frames"]))
print([name for name in sys.modules if name.startswith("torch._inductor")], "_inductor" in vars(torch))
dist.destroy_process_group()
"""


def test_the_first_dump_of_a_process_imports_nothing(tmp_path):
    if not hasattr(pytest.importorskip("torch._C._distributed_c10d"), "_dump_fr_trace"):
        pytest.skip("this torch has no flight recorder for Gloo")
    script = tmp_path / "dump.py"
    script.write_text(DUMP)
    ran = subprocess.run([sys.executable, str(script), str(tmp_path)], capture_output=True, text=True, timeout=120, check=False)
    assert ran.stdout.splitlines() == ["3 True", "[] False"], ran.stderr[-3000:]


@pytest.fixture
def torch(monkeypatch):
    """A torch that has not imported its compiler, which is there to be imported."""
    torch = ModuleType("torch")
    monkeypatch.setitem(sys.modules, "torch", torch)
    real = ModuleType("torch._inductor")
    real.codecache = "the real one"
    monkeypatch.setitem(sys.modules, "torch._inductor", real)
    return torch


def test_other_threads_find_the_real_one(torch):
    found = []
    with left_alone():
        assert hasattr(torch, "_inductor") and not hasattr(torch._inductor, "codecache")
        thread = threading.Thread(target=lambda: found.append(torch._inductor.codecache))
        thread.start()
        thread.join(10)
    assert found == ["the real one"]
    assert not hasattr(torch, "_inductor")


def test_two_dumps_at_a_time_keep_it_from_each_other(torch):
    """The excepthook's and the helper's."""

    def other():
        with left_alone():
            found.append(hasattr(torch._inductor, "codecache"))

    found = []
    with left_alone():
        thread = threading.Thread(target=other)
        thread.start()
        thread.join(10)
        assert found == [False] and not hasattr(torch._inductor, "codecache")
    assert not hasattr(torch, "_inductor")


def test_one_that_is_there_stays(torch):
    torch._inductor = there = ModuleType("there")
    with left_alone():
        assert torch._inductor is there
    assert torch._inductor is there


def test_one_that_another_thread_imports_meanwhile_stays(torch):
    with left_alone():
        torch._inductor = imported = ModuleType("imported")
    assert torch._inductor is imported


def test_after_an_error_it_is_taken_away(torch):
    with pytest.raises(RuntimeError), left_alone():
        raise RuntimeError
    assert not hasattr(torch, "_inductor")


def test_without_torch(monkeypatch):
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    with left_alone():
        pass
