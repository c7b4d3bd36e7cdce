"""The one rule for user code."""

from __future__ import annotations

from pathlib import Path

from tests.tables import for_each

import unhang
from unhang.user_files import is_library_file, is_user_file

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
    "/home/me/lib/python_tools/train.py",
    "/home/me/project/bin/train",
    "/home/me/project/bin/train.py",
    "/srv/job/bin/evaluate",
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
    "/opt/conda/lib/python3.13t/asyncio/events.py",
    "/srv/tools/bin/torchrun",
    "/opt/env/bin/my-tool",
    "/usr/local/bin/my-tool",
    "/root/miniconda3/bin/my-tool",
    "/home/u/.pyenv/versions/3.12.4/bin/my-tool",
    f"{HERE}/testing/faults.py",
    f"{HERE}/attach/heartbeat.py",
    f"{HERE}/attach/hook/sitecustomize.py",
]


@for_each(("path", "expected"), [*((p, True) for p in USER), *((p, False) for p in NOT_USER)])
def test_whose_a_file_is(path, expected):
    assert is_user_file(path) is expected


def test_second_best_are_libraries_other_than_torch():
    assert is_library_file("/v/lib/python3.11/site-packages/accelerate/utils.py")
    assert not is_library_file("/v/lib/python3.11/site-packages/torch/nn/modules.py")
    assert not is_library_file("/usr/lib/python3.12/threading.py")
    assert not is_library_file("<string>")


def test_every_module_of_ours_is_ours():
    root = Path(unhang.__file__).parent
    for path in root.iterdir():
        if path.suffix == ".py" or (path / "__init__.py").is_file():
            assert not is_user_file(str(path if path.suffix else path / "x.py")), path
