"""DeepSpeed's launcher under `unhang run`, with two processes on Gloo."""

from __future__ import annotations

import os
import shutil

import pytest
from tests.launchers.conftest import ABORT, ended, fell_back, ran_clean, ran_over_gloo, recovered
from tests.launchers.environments import ROOT

pytestmark = [pytest.mark.torch, pytest.mark.integration, pytest.mark.timeout(1000)]

COMMAND = ("deepspeed", "--num_gpus", "2")


@pytest.fixture
def trained(training):
    if shutil.which("g++") is None:
        assert not os.environ.get("CI"), "CI tests DeepSpeed, which compiles its operator for shared memory: scripts/apt installs g++"
        pytest.skip("DeepSpeed compiles its operator for shared memory: g++ is needed (scripts/apt installs it)")
    # Outside of the environment, so that one that is made anew need not compile again.
    extensions = ROOT / "deepspeed-extensions"
    # Left by a build that was killed, it lets every later one wait for ever (torch.utils.file_baton).
    for lock in extensions.glob("**/lock"):
        lock.unlink()
    return training("deepspeed", "deepspeed_zero.py", DS_ACCELERATOR="cpu", TORCH_EXTENSIONS_DIR=str(extensions))


def test_clean(trained):
    ran_clean(trained.run(*COMMAND, str(trained.script)))


def test_hang(trained):
    run = trained.run(*COMMAND, str(trained.script), fault="hang")
    recovered(run, cause="process-stuck", where=trained.line("it stands here"))


def test_crash(trained):
    run = trained.run(*COMMAND, str(trained.script), fault="crash", options=ABORT)
    ended(run, cause="rank-exception", where=trained.line("it raises here"))


def test_fallback(trained):
    fell_back(trained.run_without_interface(*COMMAND, str(trained.script)))


def test_exported_over_gloo(trained):
    """The exported start, with the exported configuration, of a script that asks for NCCL."""
    settings = ("--set", "backend=gloo", "--set", "batch=3", "--set", "precision=no")
    config = trained.exported("deepspeed", "zero.json", *settings, "--", str(trained.script))
    run = trained.start("bash", f"{config}.start.sh", str(config), BACKEND="nccl")
    ran_over_gloo(run)
    assert "ZeRO stage 2 batch 6" in run.err
    assert "on GPUs it would be gloo" in run.err
