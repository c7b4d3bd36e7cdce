"""duplicate-gpu in plain logs: the pairs of all ranks together."""

from __future__ import annotations

import pytest

from unhang.knowledge import catalogue
from unhang.knowledge.cause import LogView
from unhang.knowledge.causes.duplicate_gpu import _bus_id
from unhang.logs import Hit, match
from unhang.logs.log_facts import NcclSaid

CAUSE = catalogue.load()["duplicate-gpu"]

TEXT = "NCCL WARN Duplicate GPU detected : rank {} and rank {} both on CUDA device {}"


def hit(a: int, b: int, device: str, host: str | None = None) -> Hit:
    (found,) = match(TEXT.format(a, b, device), CAUSE.signatures, source="a.log", line=a)
    return Hit(signature=found.signature, source="a.log", line=a, text=found.text, groups=found.groups, rank=a, host=host)


def judge(*hits: Hit):
    assert CAUSE.in_logs is not None
    return CAUSE.in_logs(LogView(hits={CAUSE.id: hits}))


@pytest.mark.parametrize(("device", "address"), [("1000", "01:00.0"), ("4f000", "4f:00.0"), ("40", "00:04.0"), ("10012000", "0100:12:00.0")])
def test_the_number_is_a_pci_address(device, address):
    assert _bus_id(device) == address


def test_all_ranks_on_one_gpu():
    found = judge(hit(1, 0, "1000"), hit(2, 0, "1000"), hit(3, 0, "1000"))
    assert "ranks 0 to 3 share one GPU (01:00.0)" in found.says
    assert [r.id for r in found.remedies] == ["set-the-device", "one-rank-per-gpu"]


def test_two_ranks_on_each_gpu():
    found = judge(hit(0, 4, "1000", "node7"), hit(1, 5, "24000", "node7"))
    assert "ranks 0, 1, 4 and 5 share 2 GPUs (01:00.0, 24:00.0)" in found.says


def test_a_line_that_was_cut_still_counts():
    (found,) = match("DistBackendError: Duplicate GPU detectedTraceback (most recent call last):", CAUSE.signatures, source="a.log", line=1)
    assert judge(found).standing == "established"


@pytest.mark.parametrize(("release", "first"), [("2.27.7", "set-the-device"), ("2.30.7", "name-the-device"), ("2.31.2", "name-the-device")])
def test_the_guess_of_nccl2_has_its_own_remedy(release, first):
    assert CAUSE.in_logs is not None
    found = CAUSE.in_logs(LogView(hits={CAUSE.id: (hit(1, 0, "1000"),)}, nccl=NcclSaid(versions={release: ()})))
    assert found.remedies[0].id == first
    guessed = CAUSE.in_logs(LogView(hits={CAUSE.id: (hit(1, 0, "1000"),)}, nccl=NcclSaid(guessed={"cuda:0": ()})))
    assert guessed.remedies[0].id == "name-the-device" and "device_id=" in guessed.remedies[0].says


def test_what_newer_nccl_prints_instead():
    (found,) = match("NCCL WARN Multiple Ranks are using the same GPU/Partition.", CAUSE.signatures, source="a.log", line=1)
    assert [r.id for r in judge(found).remedies] == ["name-the-device", "set-the-device", "one-rank-per-gpu", "share-on-purpose"]


def test_hosts_that_nccl_cannot_tell_apart():
    found = judge(hit(7, 15, "e4000", "node7"), hit(15, 7, "e4000", "node8"))
    assert "node7, node8" in found.says
    assert [r.id for r in found.remedies] == ["tell-hosts-apart", "set-the-device"]
