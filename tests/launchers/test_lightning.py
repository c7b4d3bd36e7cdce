"""Lightning under `unhang run`, with two processes on Gloo: plain python is its launcher."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from tests.launchers.conftest import FINISHED, fell_back, ran_clean, ran_over_gloo, recovered

pytestmark = [pytest.mark.torch, pytest.mark.integration, pytest.mark.timeout(1000)]

COMMAND = ("python",)


@pytest.fixture
def trained(training):
    return training("lightning", "lightning_ddp.py")


def test_clean(trained):
    ran_clean(trained.run(*COMMAND, str(trained.script)))


def test_hang(trained):
    run = trained.run(*COMMAND, str(trained.script), fault="hang")
    recovered(run, cause="process-stuck", where=trained.line("it stands here"))


def test_crash(trained):
    run = trained.run(*COMMAND, str(trained.script), fault="crash")
    recovered(run, cause="rank-exception", where=trained.line("it raises here"))


def test_fallback(trained):
    fell_back(trained.run_without_interface(*COMMAND, str(trained.script)))


def test_over_gloo(trained):
    ran_over_gloo(trained.run_over_gloo(*COMMAND, str(trained.script)), finished=f"{FINISHED} on gloo")


def test_exported(training, tmp_path):
    trained = training("lightning", "lightning_exported.py")
    script = Path(shutil.copy(trained.script, tmp_path))
    settings = ("--timeout", "10m", "--set", "batch=4", "--set", "accumulation=3", "--set", "loader-workers=1")
    trained.exported("lightning", "unhang_lightning.py", "--cpu", *settings, "--", script.name)
    run = trained.run(*COMMAND, str(script))
    ran_clean(run, finished=f"{FINISHED} on gloo")
    # 120 samples for two ranks in batches of four, three of them a step.
    assert "batches of 4 steps 5 timeout 0:10:00" in run.err
