"""shm-exhausted: sizes are told in MiB, and who asked for the memory decides the remedies."""

from __future__ import annotations

from unhang.knowledge import catalogue
from unhang.knowledge.cause import LogView
from unhang.logs import match
from unhang.model import Finding

CAUSE = catalogue.load()["shm-exhausted"]


def found(text: str) -> Finding | None:
    lines = text.splitlines()
    hits = [h for n, line in enumerate(lines, 1) for h in match(line, CAUSE.signatures, source="job.log", line=n, around=text)]
    assert CAUSE.in_logs is not None
    return CAUSE.in_logs(LogView(hits={CAUSE.id: tuple(hits)} if hits else {}))


def names(finding: Finding | None) -> set[str]:
    assert finding is not None
    return {r.id for r in finding.remedies}


def test_the_size_is_told_twice_and_segments_are_counted():
    finding = found(
        "n7:812:901 [1] misc/shmutils.cc:87 NCCL WARN Error: failed to extend /dev/shm/nccl-Qr4tZp to 33030532 bytes, error: No space left on "
        "device (28)\n"
        "n7:813:902 [2] misc/shmutils.cc:87 NCCL WARN Error: failed to extend /dev/shm/nccl-a1B2c3 to 33030532 bytes, error: No space left on "
        "device (28)\n"
    )
    assert finding is not None and finding.standing == "established"
    assert finding.says == (
        "NCCL could not extend /dev/shm/nccl-Qr4tZp to 31.5 MiB (33030532 bytes): no space left in /dev/shm; 2 segments failed so"
    )
    assert "without-shm" in names(finding) and "fewer-workers" not in names(finding)


def test_nccl_without_a_reason_is_only_likely():
    finding = found("node7:812:901 [1] misc/shmutils.cc:72 NCCL WARN Error: failed to extend /dev/shm/nccl-Qr4tZp to 9637892 bytes")
    assert finding is not None and finding.standing == "likely"
    assert "9.2 MiB (9637892 bytes)" in finding.says


def test_a_data_loader_gets_the_remedies_of_a_data_loader():
    finding = found(
        "RuntimeError: DataLoader worker (pid 991) is killed by signal: Bus error. It is possible that dataloader's workers are out of shared memory."
    )
    assert finding is not None and "worker 991" in finding.says
    assert "fewer-workers" in names(finding) and "without-shm" not in names(finding)


def test_the_memory_limit_is_no_matter_of_the_size_of_shm():
    finding = found(
        "n7:812:901 [1] misc/shmutils.cc:88 NCCL WARN Error: failed to extend /dev/shm/nccl-Qr4tZp to 9637892 bytes, error: Cannot allocate memory "
        "(12)"
    )
    assert "memory-limit" in names(finding) and "docker-shm-size" not in names(finding)


def test_nothing_without_hits():
    assert found("node7:812:901 [1] NCCL INFO Allocated 9637892 bytes of shared memory in /dev/shm/nccl-Qr4tZp") is None
