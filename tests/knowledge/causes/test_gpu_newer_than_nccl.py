"""gpu-newer-than-nccl in plain logs: the toolkit that NCCL was built with decides whether it could know the GPU."""

from __future__ import annotations

import pytest

from unhang.knowledge import catalogue
from unhang.knowledge.cause import LogView
from unhang.logs import Hit, Traceback, match
from unhang.logs.log_facts import At, NcclSaid

CAUSE = catalogue.load()["gpu-newer-than-nccl"]

FAILED = "node7:51:60 [0] enqueue.cc:197 NCCL WARN Cuda failure 'invalid device function'"
CAPABILITY = "node7:51:51 [7] NCCL INFO Using 256 threads, Min Comp Cap 8, Trees disabled"
WARNING = "NVIDIA GeForce RTX 5080 with CUDA capability sm_120 is not compatible with the current PyTorch installation."


def judge(version: str | None, *texts: str):
    hits: dict[str, tuple[Hit, ...]] = {
        c.id: tuple(h for n, t in enumerate(texts) for h in match(t, c.signatures, source="a.log", line=n + 1))
        for c in (CAUSE, catalogue.load()["arch-not-in-build"])
    }
    said = NcclSaid(versions={version: (At(source="a.log", line=9, text=f"NCCL version {version}"),)} if version else {})
    assert CAUSE.in_logs is not None
    return CAUSE.in_logs(LogView(hits=hits, nccl=said))


def test_a_new_gpu_and_missing_kernels_establish_it():
    found = judge("2.4.8+cuda10.2", CAPABILITY, FAILED)
    assert found.standing == "established"
    assert "2.4.8+cuda10.2 was made before GPUs of compute capability 8" in found.says
    assert {e.line for e in found.evidence} == {1, 2}


def test_missing_kernels_alone_leave_the_build_to_blame():
    assert judge("2.21.5+cuda12.4", FAILED) is None


def test_a_torch_that_does_not_know_the_gpu_comes_first():
    assert judge("2.14.3+cuda11.8", WARNING, CAPABILITY, FAILED) is None


@pytest.mark.parametrize(("raised", "standing"), [(True, "possible"), (False, None)])
def test_an_old_release_on_blackwell_counts_once_something_failed(raised, standing):
    texts = ("#  Rank  1 Group  0 Pid 51 on node7 device  1 [0xca] NVIDIA GB200", "NCCL version 2.21.5+cuda12.8")
    hits = tuple(match(texts[1], CAUSE.signatures, source="a.log", line=2, around="\n".join(texts)))
    error = Traceback(source="a.log", line=3, end=5, type="RuntimeError", text="NCCL error", frames=())
    assert CAUSE.in_logs is not None
    found = CAUSE.in_logs(LogView(hits={CAUSE.id: hits}, tracebacks=(error,) if raised else ()))
    assert (found.standing if found else None) == standing


def test_a_new_gpu_alone_is_no_failure():
    assert judge("2.4.8+cuda10.2", CAPABILITY) is None


def test_shared_memory_speaks_for_itself():
    found = judge(None, "node7:51:60 [0] NCCL INFO ncclMaxSharedMem 82240 exceeds device/fn maxSharedMem 79856")
    assert found.standing == "likely" and "82240 bytes" in found.says
