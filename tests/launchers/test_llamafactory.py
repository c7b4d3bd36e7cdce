"""llamafactory-cli under `unhang run`, with two processes on Gloo. It starts the `torchrun` of its PATH; the model's own code brings the faults."""

from __future__ import annotations

import pytest
from tests.launchers.conftest import ABORT, SCRIPTS, ended, ran_clean, recovered

pytestmark = [pytest.mark.torch, pytest.mark.integration, pytest.mark.timeout(1000)]

# LLaMA-Factory's own word for two processes with one sample each.
FINISHED = "Total train batch size (w. parallel, distributed & accumulation) = 2"


@pytest.fixture
def command(tmp_path):
    config = tmp_path / "train.yaml"
    config.write_text((SCRIPTS / "llamafactory" / "train.yaml").read_text().format(here=SCRIPTS / "llamafactory", output=tmp_path / "output"))
    return ["llamafactory-cli", "train", str(config)]


@pytest.fixture
def trained(training, tmp_path):
    env = {"FORCE_TORCHRUN": "1", "NPROC_PER_NODE": "2", "HF_HOME": str(tmp_path / "hf")}
    return training("llamafactory", "llamafactory/modeling_tiny.py", **env)


def test_clean(trained, command):
    ran_clean(trained.run(*command), finished=FINISHED)


def test_hang(trained, command):
    run = trained.run(*command, fault="hang")
    recovered(run, cause="process-stuck", where=trained.line("it stands here"), finished=FINISHED)


def test_crash(trained, command):
    run = trained.run(*command, fault="crash", options=ABORT)
    ended(run, cause="rank-exception", where=trained.line("it raises here"))
