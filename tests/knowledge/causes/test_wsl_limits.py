"""wsl-limits: that a host runs WSL2 is no cause by itself."""

from __future__ import annotations

from unhang.knowledge import catalogue
from unhang.knowledge.cause import LogView
from unhang.logs import Hit, match
from unhang.model import Finding

CAUSE = catalogue.load()["wsl-limits"]

PLATFORM = "Python platform: Linux-5.15.153.1-microsoft-standard-WSL2-x86_64-with-glibc2.35"
FAILED = "ncclUnhandledCudaError: unhandled cuda error (run with NCCL_DEBUG=INFO for details), NCCL version 2.20.5"


def asked(*lines: str) -> Finding | None:
    hits: dict[str, list[Hit]] = {}
    known = catalogue.signatures()
    for n, line in enumerate(lines, 1):
        for hit in match(line, known, source="job.log", line=n, around="\n".join(lines)):
            hits.setdefault(known[hit.signature], []).append(hit)
    assert CAUSE.in_logs is not None
    return CAUSE.in_logs(LogView(hits={k: tuple(v) for k, v in hits.items()}))


def test_the_platform_alone_says_nothing():
    assert asked(PLATFORM, "epoch 1 loss 0.3") is None


def test_a_failed_call_on_the_platform_is_likely():
    finding = asked(PLATFORM, FAILED)
    assert finding is not None and finding.standing == "likely" and "WSL2" in finding.says
    assert asked(FAILED) is None


def test_a_line_of_its_own_speaks_for_itself():
    finding = asked(PLATFORM, "Failed to initialize NVML: GPU access blocked by the operating system")
    assert finding is not None and finding.standing == "established"
    assert [r.id for r in finding.remedies] == ["wsl-driver", "native-linux"]


def test_a_host_that_windows_named_is_enough():
    finding = asked("DESKTOP-9K2LM41:812:901 [1] misc/shmutils.cc:103 NCCL WARN Cuda failure 'invalid argument'")
    assert finding is not None and "invalid argument" in finding.says


def test_memory_that_could_not_be_pinned_counts_on_the_platform_only():
    pinned = ("    return data.pin_memory(device)", "RuntimeError: CUDA error: out of memory")
    finding = asked(PLATFORM, *pinned)
    assert finding is not None and "pin" in finding.says
    assert asked(*pinned) is None
