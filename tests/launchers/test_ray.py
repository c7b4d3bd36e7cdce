"""Ray Train under `unhang run`, with two processes on Gloo: its ranks are no children of the script, but of Ray's daemon."""

from __future__ import annotations

import pytest
from tests.launchers.conftest import ABORT, ended, ran_clean, recovered

pytestmark = [pytest.mark.torch, pytest.mark.integration, pytest.mark.timeout(1000)]

COMMAND = ("python",)


@pytest.fixture
def trained(training, tmp_path):
    return training("ray", "ray_ddp.py", RAY_STORAGE=str(tmp_path), RAY_USAGE_STATS_ENABLED="0")


def test_clean(trained):
    ran_clean(trained.run(*COMMAND, str(trained.script)))


def test_hang(trained):
    run = trained.run(*COMMAND, str(trained.script), fault="hang")
    recovered(run, cause="process-stuck", where=trained.line("it stands here"))


def test_crash(trained):
    run = trained.run(*COMMAND, str(trained.script), fault="crash", options=ABORT)
    ended(run, cause="rank-exception", where=trained.line("it raises here"))
