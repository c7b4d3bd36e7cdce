"""The two copies of the rule for user code agree: the hook's, which needs no unhang, and the one of the records."""

from __future__ import annotations

from pathlib import Path

import pytest

import unhang
from unhang.records import frames
from unhang.runtime.attach import user_files

HERE = str(Path(unhang.__file__).parent)

USER = [
    "/home/u/train.py",
    "train.py",
    "/home/u/lib/model.py",
    "/home/u/python3/train.py",
    "/home/u/torch/train.py",
    "/home/u/library/python3.11.py",
    "/home/u/unhang-main/recipes/t5_sft/train.py",
    "/opt/venv/lib/python3.11/site-packages/unhang/recipes/t5_sft/train.py",
    "/data/unhang/experiments/train.py",
    "/home/u/verl/train.py",
    "/home/u/ray/jobs/train.py",
    "/data/torch/distributed/ddp/main.py",
    "/srv/transformers_runs/src/model.py",
]
NOT_USER = [
    "",
    "<string>",
    "<frozen runpy>",
    "<ipython-input-1>",
    "/usr/lib/python3.11/threading.py",
    "/usr/lib64/python3.9/threading.py",
    "/root/.pyenv/versions/3.13.0t/lib/python3.13t/queue.py",
    "/usr/lib/python312.zip/json/decoder.py",
    "/opt/venv/lib/python3.11/site-packages/torch/_tensor.py",
    "/usr/lib/python3/dist-packages/yaml/loader.py",
    "/opt/pytorch/torch/nn/modules/module.py",
    "/opt/pytorch/pytorch/torch/distributed/distributed_c10d.py",
    "/build/pt-main/torch/autograd/__init__.py",
    "/workspace/DeepSpeed/deepspeed/runtime/engine.py",
    "/srv/sglang-0.5/python/sglang/srt/managers/scheduler.py",
    "/home/u/LLaMA-Factory/src/llamafactory/train/tuner.py",
    "/opt/Megatron-LM/megatron/core/tensor_parallel/layers.py",
    "/opt/conda/envs/rl/lib/python3.11/site-packages/accelerate/accelerator.py",
    "/srv/job/env.zip/torch/utils/data/dataloader.py",
    "/tmp/run.pex/transformers/trainer.py",
    "/opt/env/bin/torchrun",
    f"{HERE}/testing/faults.py",
    f"{HERE}/runtime/attach/heartbeat.py",
    f"{HERE}/runtime/attach/hook/sitecustomize.py",
]


@pytest.mark.parametrize(("path", "expected"), [*((p, True) for p in USER), *((p, False) for p in NOT_USER)])
def test_both_rules_agree(path, expected):
    assert frames.is_user_file(path) is expected
    assert user_files.is_user_file(path) is expected
    assert frames.checked_out(path) == user_files.checked_out(path)
