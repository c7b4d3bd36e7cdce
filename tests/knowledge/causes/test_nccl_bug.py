"""nccl-bug in plain logs: the release decides whether a symptom is a known fault."""

from __future__ import annotations

from tests.tables import for_each

from unhang.knowledge import catalogue
from unhang.knowledge.cause import LogView
from unhang.logs import Hit, match
from unhang.logs.log_facts import NcclSaid

CAUSE = catalogue.load()["nccl-bug"]

TRUNCATED = "node2:4827:6900 [4] bootstrap.cc:77 NCCL WARN Message truncated : received 256 bytes instead of 4"
ABORTED = "node2:1:1 [0] misc/socket.cc:483 NCCL WARN socketStartConnect: Connect to 10.0.0.2<45763> failed : Software caused connection abort"


def judge(text: str, *releases: str):
    known = catalogue.signatures()
    hits: dict[str, tuple[Hit, ...]] = {}
    for h in match(text, known, source="a.log", line=1):
        hits[known[h.signature]] = (*hits.get(known[h.signature], ()), h)
    assert CAUSE.in_logs is not None
    return CAUSE.in_logs(LogView(hits=hits, nccl=NcclSaid(versions=dict.fromkeys(releases, ()))))


def test_another_release_is_not_blamed():
    assert judge(TRUNCATED, "2.18.6") is None and judge(TRUNCATED, "2.21.5") is None and judge(ABORTED, "2.26.2") is None
    assert judge(TRUNCATED) is None


def test_two_releases_are_a_mismatch_and_no_bug():
    assert judge(TRUNCATED, "2.19.3", "2.20.5") is None


SHARED = "node2:1:1 [0] NCCL INFO ncclMaxSharedMem 82240 exceeds device/fn maxSharedMem 79856"
NET_ID = "node2:1:1 [0] graph/topo.h:234 NCCL WARN Could not find NET with id 2"
ROCE = "node2:1:1 [0] transport/net_ib.cc:268 NCCL WARN NET/IB: read failed in ncclIbRoceGetVersionNum: Invalid argument"
PCI = "node2:1:1 [0] graph/xml.cc:469 NCCL WARN Could not find real path of /sys/class/pci_bus/0000:0b/../../0000:0b:00.0"


@for_each(
    ("text", "release", "standing"),
    [
        (SHARED, "2.25.1+cuda12.8", "established"),
        (SHARED, None, "possible"),
        (SHARED, "2.21.5", None),
        (SHARED, "2.26.2", None),
        (NET_ID, "2.25.1", "likely"),
        (NET_ID, "2.26.5", "likely"),
        (NET_ID, None, "likely"),
        (NET_ID, "2.27.3", None),
        (NET_ID, "2.21.5", None),
        (ROCE, "2.21.5", "likely"),
        (ROCE, "2.26.2", None),
        (PCI, "2.8.3", "likely"),
        (PCI, None, "likely"),
        (PCI, "2.18.5", None),
    ],
)
def test_the_release_decides_what_the_line_leaves_open(text, release, standing):
    found = judge(text, *([release] if release else []))
    assert (found.standing if found else None) == standing
