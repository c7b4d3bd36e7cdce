import pytest

from unhang.probes.worker import STAGES, is_lacking


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
