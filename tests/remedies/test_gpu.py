"""The rungs of NCCL on one real GPU, and a failure that is NCCL's own: two ranks on it."""

from __future__ import annotations

import os
import sys
from dataclasses import replace

import pytest

from unhang.remedies import ladder, ladder_steps, trial
from unhang.settings.installed import installed

pytestmark = [pytest.mark.gpu, pytest.mark.torch, pytest.mark.integration, pytest.mark.timeout(900)]


@pytest.fixture
def one_gpu():
    here = replace(installed(sys.executable), gpus=1)
    if here.nccl is None:
        pytest.skip("this torch is built without NCCL")
    environ = {**os.environ, "CUDA_VISIBLE_DEVICES": os.environ.get("CUDA_VISIBLE_DEVICES", "0").partition(",")[0]}
    environ.pop("NCCL_MULTI_RANK_GPU_ENABLE", None)
    return trial.Bench(python=sys.executable, world_size=1, backend="nccl", environ=environ, installed=here)


@pytest.mark.parametrize("key", [None, *ladder_steps.TRANSPORTS])
def test_each_rung_works_with_one_rank(one_gpu, key):
    choice = {} if key is None else {key: False}
    if one_gpu.refused(choice):
        pytest.skip(one_gpu.refused(choice)[0].why)
    found = trial.run(one_gpu, choice, limit_s=300)
    assert found.outcome == "passed", found.says
    assert found.backend == "nccl"
    assert any(name.startswith(("Bootstrap", "NET/")) for name in found.interfaces)
    assert set(one_gpu.applied(choice).env.items()) <= set(found.environment.items())


def test_two_ranks_on_one_gpu_end_on_gloo(one_gpu):
    """NCCL refuses it as a duplicate GPU, whichever transport is off; Gloo does not mind, and neither does one process."""
    bench = replace(one_gpu, world_size=2)
    first = trial.run(bench, {}, limit_s=300)
    assert first.outcome == "failed"
    assert first.verdict is not None and first.verdict.primary is not None and first.verdict.primary.cause == "duplicate-gpu"
    candidates = ladder_steps.rungs(verdict=first.verdict, installed=bench.installed, backend="nccl", world_size=2)
    found = ladder.climb(bench, candidates, why="duplicate-gpu", limit_s=800)
    assert found.chosen == {"backend": "gloo"} and found.confirmed
