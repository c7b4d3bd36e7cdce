"""accelerate under `unhang run`, with two processes on Gloo."""

from __future__ import annotations

import pytest
from tests.launchers.conftest import fell_back, ran_clean, ran_over_gloo, recovered

pytestmark = [pytest.mark.torch, pytest.mark.integration, pytest.mark.timeout(600)]

COMMAND = ("accelerate", "launch", "--multi_gpu", "--num_processes", "2", "--num_machines", "1", "--mixed_precision", "no", "--dynamo_backend", "no")


@pytest.fixture
def trained(training):
    return training("accelerate", "accelerate_ddp.py", ACCELERATE_USE_CPU="1")


def test_clean(trained):
    ran_clean(trained.run(*COMMAND, str(trained.script)))


def test_hang(trained):
    run = trained.run(*COMMAND, str(trained.script), fault="hang")
    recovered(run, cause="process-stuck", where=trained.line("it stands here"))


def test_crash(trained):
    run = trained.run(*COMMAND, str(trained.script), fault="crash")
    recovered(run, cause="rank-exception", where=trained.line("it raises here"))


def test_one_process_where_two_were_asked_for(trained):
    run = trained.run("accelerate", "launch", "--cpu", "--num_processes", "2", str(trained.script))
    assert run.exitcode == 1, run.err[-4000:]
    assert run.primary["cause"] == "rendezvous-misconfig"


def test_fallback(trained):
    fell_back(trained.run_without_interface(*COMMAND, str(trained.script)))


def test_over_gloo(trained):
    # InitProcessGroupKwargs does not hand on its default, nccl.
    asked = "cpu:gloo,cuda:nccl"
    ran_over_gloo(trained.run_over_gloo(*COMMAND, str(trained.script), backend=asked), backend=asked)
