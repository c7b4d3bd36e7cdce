"""gpu-hardware: Xids are decoded, the gravest speaks, and the remedy carries the GPU's own address."""

from __future__ import annotations

import pytest
from tests.tables import for_each

from unhang.knowledge import catalogue
from unhang.knowledge.cause import LogView
from unhang.knowledge.causes.gpu_hardware import _XIDS
from unhang.logs import Hit, match

CAUSE = catalogue.load()["gpu-hardware"]


def found(*lines: str):
    hits = [h for n, line in enumerate(lines, 1) for h in match(line, CAUSE.signatures, source="dmesg", line=n)]
    assert CAUSE.in_logs is not None
    return CAUSE.in_logs(LogView(hits={CAUSE.id: tuple(hits)}))


def xid(number: int, bus: str = "0000:1b:00", rest: str = "pid=4711, name=python3") -> str:
    return f"[88123.41] NVRM: Xid (PCI:{bus}): {number}, {rest}"


def test_the_signatures_know_the_xids_that_have_words():
    seen = {n: [hit.signature.standing for hit in match(xid(n), CAUSE.signatures, source="dmesg")] for n in range(256)}
    assert {n: standings for n, standings in seen.items() if standings} == {n: [known["standing"]] for n, known in _XIDS.items()}


def test_an_xid_is_said_in_words_and_its_gpu_can_be_reset():
    finding = found(xid(79))
    assert finding.standing == "established"
    assert finding.says == "GPU 0000:1b:00 reported Xid 79: the GPU has fallen off the bus"
    finding = found(xid(94))
    assert next(r for r in finding.remedies if r.id == "reset-gpu").command == "sudo nvidia-smi --gpu-reset -i 0000:1b:00.0"


def test_the_gravest_speaks_and_the_others_are_named():
    finding = found(xid(63), xid(92, "0000:3d:00"), xid(48))
    assert "Xid 48" in finding.says and finding.standing == "established"
    assert "also Xid 63, Xid 92 on 0000:3d:00" in finding.says


@pytest.mark.parametrize(("number", "remedy"), [(79, "power-cycle"), (119, "update-driver"), (48, "check-memory"), (121, "check-nvlink")])
def test_remedies_follow_the_kind_of_fault(number, remedy):
    assert remedy in [r.id for r in found(xid(number)).remedies]


@for_each("number", [13, 31, 43, 45, 74, 136, 145, 149, 154])
def test_faults_of_the_application_of_links_and_consequences_are_not_the_hardware(number):
    assert found(xid(number)) is None


def test_a_cleanup_names_the_xid_that_caused_it():
    finding = found(xid(45, rest="pid=4711, name=python3, Ch 00000001 caused by previous Xid 94"))
    assert finding.standing == "likely"
    assert "Xid 94: an uncorrectable memory error" in finding.says
    assert found(xid(45, rest="pid=4711, name=python3, Ch 00000001 caused by previous Xid 31")) is None


def test_a_fatal_link_event_is_the_fabrics_and_established():
    for rest, standing in (("RLW_REMAP Fatal XC0 i0 Link 13 (0x0 0x0)", "established"), ("RLW_REMAP Nonfatal XC1 i0 Link 13 (0x0 0x0)", "likely")):
        hits = match(xid(145, rest=rest), catalogue.signatures(), source="dmesg", line=1)
        assert {(catalogue.signatures()[h.signature], h.signature.standing) for h in hits} == {("nvlink-nvswitch-fabric", standing)}


@pytest.mark.parametrize(("number", "standing"), [(79, "likely"), (63, "possible")])
def test_faults_of_kernels_stand_behind_the_gpus_own(number, standing):
    lines = [*(xid(13) for _ in range(3)), *("" for _ in range(400)), xid(number)]
    hits: dict[str, list[Hit]] = {}
    for n, line in enumerate(lines, 1):
        for h in match(line, catalogue.signatures(), source="dmesg", line=n):
            hits.setdefault(catalogue.signatures()[h.signature], []).append(h)
    view = LogView(hits={c: tuple(h) for c, h in hits.items()})
    kernels = catalogue.get("illegal-memory-access").in_logs
    assert kernels(view).standing == standing
    assert kernels(LogView(hits={"illegal-memory-access": view.hits_of("illegal-memory-access")})).standing == "likely"


def test_a_plain_message_speaks_where_it_says_more_than_the_xid():
    finding = found(xid(63), "RuntimeError: CUDA error: uncorrectable ECC error encountered")
    assert finding.says == "a GPU met an uncorrectable memory (ECC) error"
