"""Ray Train under `unhang run`, with two processes on Gloo: its ranks are no children of the script, but of Ray's daemon."""

from __future__ import annotations

import pytest
from tests.launchers.conftest import ABORT, ended, fell_back, ran_clean, ran_over_gloo, recovered

pytestmark = [pytest.mark.torch, pytest.mark.integration, pytest.mark.timeout(1000)]

COMMAND = ("python",)


@pytest.fixture
def trained(training, tmp_path):
    return training("ray", "ray_ddp.py", RAY_STORAGE=str(tmp_path), RAY_USAGE_STATS_ENABLED="0")


def test_clean(trained):
    ran_clean(trained.run(*COMMAND, str(trained.script)))


def test_hang(trained):
    run = trained.run(*COMMAND, str(trained.script), fault="hang")
    # Threads of Ray live beside it, and any of them might set the event.
    recovered(run, cause="process-stuck", where=trained.line("it stands here"), certain=False)


def test_crash(trained):
    run = trained.run(*COMMAND, str(trained.script), fault="crash", options=ABORT)
    ended(run, cause="rank-exception", where=trained.line("it raises here"))


def test_fallback(trained):
    fell_back(trained.run_without_interface(*COMMAND, str(trained.script)))


def test_over_gloo(trained):
    ran_over_gloo(trained.run_over_gloo(*COMMAND, str(trained.script)))


def test_exported(training, tmp_path):
    """The exported program runs a plain script in the group that Ray has made."""
    trained = training("ray", "torchrun_ddp.py", HOME=str(tmp_path), RAY_USAGE_STATS_ENABLED="0")
    program = trained.exported("ray", "ray_train.py", "--cpu", "--timeout", "10m", "--", str(trained.script))
    ran_clean(trained.run(*COMMAND, str(program)))
