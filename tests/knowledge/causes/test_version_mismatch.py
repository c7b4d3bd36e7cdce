"""version-mismatch in plain logs: what NCCL names, and what the printed releases tell where NCCL names nothing."""

from __future__ import annotations

from unhang.knowledge import catalogue
from unhang.knowledge.cause import LogView
from unhang.logs import Hit, match
from unhang.logs.log_facts import At, Init, NcclSaid

CAUSE = catalogue.load()["version-mismatch"]

NAMED = "node8:61:90 [0] init.cc:1203 NCCL WARN Mismatched NCCL version detected : rank 8 version 2708 rank 0 version 22105"
GARBLED = "node8:61:90 [0] misc/socket.cc:441 NCCL WARN ncclSocketInit: connecting to address  with family 0 is neither AF_INET(2) nor AF_INET6(10)"


def hits(*texts: str) -> dict[str, tuple[Hit, ...]]:
    return {CAUSE.id: tuple(h for n, t in enumerate(texts) for h in match(t, CAUSE.signatures, source="job.log", line=n + 1))}


def at(host: str | None = None, rank: int | None = None, line: int = 1) -> At:
    return At(source="job.log", line=line, text="NCCL version", host=host, rank=rank)


def versions(**places: At) -> NcclSaid:
    return NcclSaid(versions={f"2.{name[1:].replace('_', '.')}+cuda12.4": (place,) for name, place in places.items()})


def judge(view: LogView):
    assert CAUSE.in_logs is not None
    return CAUSE.in_logs(view)


def test_releases_are_decoded_from_their_codes():
    found = judge(LogView(hits=hits(NAMED)))
    assert found.standing == "established"
    assert "rank 8 runs NCCL 2.7.8, rank 0 runs NCCL 2.21.5" in found.says


def test_hosts_that_print_different_releases_are_named_with_the_garbled_address():
    said = versions(v14_3=at("node7", line=3), v19_3=at("node8", line=9))
    found = judge(LogView(hits=hits(GARBLED), nccl=said))
    assert found.standing == "established"
    assert found.hosts == ("node7", "node8")
    assert "2.14.3 on node7" in found.says and "2.19.3 on node8" in found.says
    assert any("family 0" in e.text for e in found.evidence)


def test_different_releases_alone_are_likely_once_something_failed_and_nothing_before():
    said = versions(v14_3=at("node7"), v19_3=at("node8"))
    assert judge(LogView(nccl=said)) is None
    hung = Init(at=at("node7"), comm="0x1", rank=0, nranks=2, completed=False)
    found = judge(LogView(nccl=NcclSaid(versions=said.versions, inits=(hung,))))
    assert found.standing == "likely"


def test_two_nccls_in_one_process_are_no_mismatch():
    said = versions(v14_3=at("node7", 0), v19_3=at("node7", 0))
    hung = Init(at=at("node7"), comm="0x1", rank=0, nranks=2, completed=False)
    assert judge(LogView(nccl=NcclSaid(versions=said.versions, inits=(hung,)))) is None


def test_builds_of_one_release_are_one_release():
    places = {"2.21.5+cuda12.4": (at("node7"),), "2.21.5+cuda12.1": (at("node8"),)}
    hung = Init(at=at("node7"), comm="0x1", rank=0, nranks=2, completed=False)
    assert judge(LogView(nccl=NcclSaid(versions=places, inits=(hung,)))) is None
