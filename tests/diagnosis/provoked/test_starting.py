"""Trainings that torchrun cannot start, and a rank that never comes, over Gloo."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.torch

RANKS = """\
import datetime, threading, torch, torch.distributed as dist
dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=2))
"""


@pytest.fixture
def script(tmp_path):
    def script(text, name="train.py"):
        path = tmp_path / name
        path.write_text(text)
        return path

    return script


def test_a_script_that_is_not_there(provoke, tmp_path):
    ran = provoke.torchrun(tmp_path / "trian.py")
    primary = provoke.primary(ran.log)
    assert (primary["cause"], primary["standing"]) == ("config-error", "established")
    assert primary["says"] == f"the script does not exist: {tmp_path}/trian.py"


def test_a_directory_in_place_of_a_script(provoke, tmp_path):
    (tmp_path / "job").mkdir()
    primary = provoke.primary(provoke.torchrun(tmp_path / "job").log)
    assert primary["cause"] == "config-error" and "__main__.py" in primary["says"]


def test_a_script_that_is_not_executable(provoke, script):
    primary = provoke.primary(provoke.torchrun(script("print(1)\n"), options=("--nproc-per-node=2", "--no-python")).log)
    assert primary["cause"] == "config-error" and "is not executable" in primary["says"] and primary["where"] is None


def test_a_script_that_python_cannot_take_apart(provoke, script):
    path = script("def f():\npass\n")
    # Python writes this error in pieces: those of two ranks may mix within a line.
    primary = provoke.primary(provoke.torchrun(path, options=("--nproc-per-node=1",)).log)
    assert primary["cause"] == "rank-exception" and "IndentationError" in primary["says"] and primary["where"].startswith(f"{path}:2")
    assert primary["remedies"][1]["command"] == f"python -m py_compile {path}"


def test_a_backend_that_cannot_work_here(provoke, script):
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("NCCL works here")
    primary = provoke.primary(provoke.torchrun(script('import torch.distributed as dist\ndist.init_process_group("nccl")\n')).log)
    assert (primary["cause"], primary["standing"]) == ("backend-unavailable", "established")
    assert primary["remedies"][0]["command"] == "unhang run --set backend=gloo -- COMMAND"


def test_a_rank_that_never_comes(provoke, script):
    path = script(RANKS + "if dist.get_rank() == 1:\n    threading.Event().wait(60)\ndist.all_reduce(torch.ones(4))\n")
    verdict = provoke.verdict(provoke.torchrun(path).log)
    primary = verdict["primary"]
    assert (primary["cause"], primary["standing"], primary["ranks"]) == ("collective-timeout", "not-established", [1])
    assert "rank 1 printed nothing about it and was ended by the launcher" in primary["says"] and "NCCL_DEBUG" not in str(primary["remedies"])
    assert "collective-timeout" not in [s["cause"] for s in verdict["symptoms"]]


def test_sizes_that_differ(provoke, script):
    path = script(RANKS + "dist.all_reduce(torch.ones(4 + 4 * dist.get_rank()))\n")
    primary = provoke.primary(provoke.torchrun(path).log)
    # The one traceback is that of a rank that may have been right.
    assert (primary["cause"], primary["ranks"], primary["where"]) == ("collective-mismatch", [], None)
    assert "ended with SIGABRT, which need not be the one that strayed" in primary["says"]
