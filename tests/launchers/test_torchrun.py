"""torchrun under `unhang run`, with two processes on Gloo."""

from __future__ import annotations

import pytest
from tests.launchers.conftest import fell_back, ran_clean, ran_over_gloo, recovered

pytestmark = [pytest.mark.torch, pytest.mark.integration, pytest.mark.timeout(600)]

COMMAND = ("torchrun", "--standalone", "--nproc-per-node", "2")


@pytest.fixture
def trained(training):
    return training(None, "torchrun_ddp.py")


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


@pytest.mark.parametrize("answer", ["1", ""])
def test_the_exported_menu(trained, answer):
    """Way 1, typed at a terminal or taken by Enter: Gloo for a script that asks for NCCL."""
    start = trained.exported("bash", "start.sh", "--", str(trained.script))
    run = trained.start("bash", str(start), answer=answer, BACKEND="nccl")
    assert "way [1]: " in run.err
    ran_over_gloo(run)


def test_exported_over_gloo(trained):
    start = trained.exported("torchrun", "start.sh", "--set", "backend=gloo", "--", str(trained.script))
    ran_over_gloo(trained.start("bash", str(start), BACKEND="nccl"))
