import contextlib

import pytest

from unhang.probes.worker import STAGES, Rank, Wrong, is_lacking


@pytest.mark.parametrize("stage", ["all_reduce-bfloat16", "reduce_scatter", "all_to_all"])
def test_gloo_has_not_got_everything(stage):
    assert is_lacking("gloo", stage, RuntimeError("ProcessGroupGloo does not support alltoall"))
    assert is_lacking("gloo", stage, NotImplementedError("not implemented for 'BFloat16'"))
    assert not is_lacking("gloo", stage, RuntimeError("Connection closed by peer"))
    assert not is_lacking("gloo", stage, AssertionError("does not support"))


@pytest.mark.parametrize("stage", STAGES)
def test_with_nccl_the_same_words_are_a_failure(stage):
    error = RuntimeError("NCCL Error 5: invalid usage: this driver does not support peer access; not implemented; Unsupported")
    assert not is_lacking("nccl", stage, error)


@pytest.mark.parametrize("stage", ["import", "device", "train-step", "process-group", "barrier", "broadcast", "all_reduce-float32", "ddp-step"])
def test_what_every_backend_has_fails(stage):
    assert not is_lacking("gloo", stage, RuntimeError("Unsupported device: does not support it"))


@pytest.mark.torch
@pytest.mark.parametrize("stage", ["all_reduce-float32", "all_reduce-bfloat16", "all_reduce-int64"])
@pytest.mark.parametrize("world_size", [2, 73, 74, 100, 256])
def test_the_sums_of_many_ranks_are_exact(monkeypatch, stage, world_size):
    dist = pytest.importorskip("torch.distributed")
    monkeypatch.setenv("WORLD_SIZE", str(world_size))
    sums = []

    def all_reduce(x):
        """One rank after the other: what each brings is added up, and at the end the last one gets the sum."""
        sums.append(x.clone() if not sums else sums[-1] + x)
        x.copy_(sums[-1])

    monkeypatch.setattr(dist, "all_reduce", all_reduce)
    for number in range(world_size):
        monkeypatch.setenv("RANK", str(number))
        rank = Rank(backend="gloo", port=0, timeout_s=1)
        if number < world_size - 1:
            with contextlib.suppress(Wrong):
                STAGES[stage](rank, print)
        else:
            STAGES[stage](rank, print)
    # One that brings something else is told of.
    sums[-1] += 1
    with pytest.raises(Wrong):
        STAGES[stage](rank, print)
