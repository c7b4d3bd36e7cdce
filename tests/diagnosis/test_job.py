"""What the logs tell of the job, in words."""

from __future__ import annotations

from unhang.diagnosis.job import told
from unhang.knowledge.cause import LogView
from unhang.logs.log_facts import At, Exit, NcclSaid


def at(rank=None, text="", host=None):
    return At(source="log", line=1, text=text, rank=rank, host=host)


def test_nothing_told_nothing_said():
    assert list(told(LogView())) == []


def test_versions_that_disagree_name_their_ranks():
    nccl = NcclSaid(
        versions={"2.21.5": (at(0), at(1)), "2.19.3": (at(2),)},
        transports={"NET/IB/0/GDRDMA": (at(0),)},
        traces=(at(0, "node7:1:2 [0] NCCL INFO transport/net.cc:304 -> 2"), at(1, "node7:1:2 [0] NCCL INFO transport/net.cc:304 -> 2")),
    )
    view = LogView(nccl=nccl, world_size=4, printed=frozenset({0, 1, 2}), exits=(Exit(at=at(3), code=-9), Exit(at=at(1), code=1)))
    said = list(told(view))
    assert ("NCCL version", "2.21.5 (ranks 0 and 1); 2.19.3 (rank 2)") in said
    assert ("NCCL transports", "NET/IB/0/GDRDMA") in said
    assert said.count(("NCCL returned", "transport/net.cc:304 -> 2 (system error)")) == 1
    assert ("world size", "4; no line is known to be of rank 3") in said
    assert ("ended", "SIGKILL: rank 3") in said and ("ended", "exit code 1: rank 1") in said
