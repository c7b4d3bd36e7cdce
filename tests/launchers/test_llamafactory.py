"""llamafactory-cli under `unhang run`, with two processes on Gloo. It starts the `torchrun` of its PATH; the model's own code brings the faults."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.launchers.conftest import ABORT, SCRIPTS, ended, fell_back, ran_clean, ran_over_gloo, recovered

pytestmark = [pytest.mark.torch, pytest.mark.integration, pytest.mark.timeout(1000)]

PREPARE = Path(__file__).parents[2] / "recipes/llamafactory/prepare.py"
# LLaMA-Factory's own word for two processes with one sample each.
FINISHED = "Total train batch size (w. parallel, distributed & accumulation) = 2"


@pytest.fixture
def made(tmp_path):
    """The recipe's model and data, with code of the model's own."""
    folder, ours = tmp_path / "tiny", SCRIPTS / "llamafactory"
    subprocess.run([sys.executable, PREPARE, folder], check=True, timeout=60)
    shutil.copy(ours / "modeling_tiny.py", folder)
    config = folder / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | json.loads((ours / "config.json").read_text())))
    return folder


@pytest.fixture
def command(tmp_path, made):
    config = tmp_path / "train.yaml"
    config.write_text((SCRIPTS / "llamafactory" / "train.yaml").read_text().format(here=made, output=tmp_path / "output"))
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


def test_fallback(trained, command):
    fell_back(trained.run_without_interface(*command), finished=FINISHED)


def test_exported_over_gloo(trained, made, tmp_path):
    """The exported file, with fields of ours behind --; it asks for NCCL."""
    fields = {
        "model_name_or_path": made,
        "trust_remote_code": "true",
        "train_from_scratch": "true",
        "finetuning_type": "full",
        "template": "default",
        "dataset": "sums",
        "dataset_dir": made,
        "output_dir": tmp_path / "output",
        "max_steps": 5,
        "report_to": "none",
        "ddp_backend": "nccl",
    }
    words = [f"{key}={value}" for key, value in fields.items()]
    file = trained.exported("llamafactory", "llamafactory.yaml", "--cpu", "--set", "accumulation=2", "--", *words)
    finished = "Total train batch size (w. parallel, distributed & accumulation) = 4"
    ran_over_gloo(trained.run_over_gloo("llamafactory-cli", "train", str(file)), finished=finished)
