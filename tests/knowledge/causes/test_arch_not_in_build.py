"""arch-not-in-build in plain logs: the error names no GPU, the warning before it does."""

from __future__ import annotations

from unhang.knowledge import catalogue
from unhang.knowledge.cause import LogView
from unhang.logs import Hit, match

CAUSE = catalogue.load()["arch-not-in-build"]

WARNING = "NVIDIA GeForce RTX 5080 with CUDA capability sm_120 is not compatible with the current PyTorch installation."
ERROR = "RuntimeError: CUDA error: no kernel image is available for execution on the device"


def judge(*texts: str):
    found: list[Hit] = [h for n, t in enumerate(texts) for h in match(t, CAUSE.signatures, source="a.log", line=n + 1)]
    assert CAUSE.in_logs is not None
    return CAUSE.in_logs(LogView(hits={CAUSE.id: tuple(found)}))


def test_the_gpu_is_named_with_the_error():
    found = judge(WARNING, ERROR)
    assert found.standing == "established"
    assert "NVIDIA GeForce RTX 5080 (sm_120)" in found.says
    assert [r.id for r in found.remedies] == ["torch-for-this-gpu"]


def test_the_error_alone_does_not_know_which_library_it_was():
    found = judge(ERROR)
    assert found.standing == "established"
    assert [r.id for r in found.remedies] == ["torch-for-this-gpu", "rebuild-the-extension"]


def test_the_warning_alone_is_no_failure_for_certain():
    assert judge(WARNING).standing == "likely"


def test_an_nccl_without_the_kernels_asks_for_another_nccl():
    found = judge("node7:51:60 [0] enqueue.cc:58 NCCL WARN Cuda failure 'named symbol not found'")
    assert [r.id for r in found.remedies] == ["nccl-for-this-gpu"]


def test_a_torch_and_its_nccl_without_the_gpu_are_one_cause():
    found = judge(WARNING, "node7:51:60 [0] enqueue.cc:58 NCCL WARN Cuda failure 'named symbol not found'")
    assert found.standing == "established" and [r.id for r in found.remedies] == ["torch-for-this-gpu"]


def test_an_amd_gpu_asks_for_another_rocm():
    found = judge("[rank1]: RuntimeError: HIP error: invalid device function")
    assert found.standing == "established"
    assert [r.id for r in found.remedies] == ["torch-for-this-amd-gpu", "rebuild-the-rocm-extension"]


def test_a_trace_of_modules_that_were_passed_over_is_no_failure():
    assert judge(":3:hip_platform.cpp :715 : 8802 us: init: Returned hipErrorNoBinaryForGpu : continue parsing remaining modules") is None
