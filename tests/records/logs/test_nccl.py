"""NCCL's own words."""

from __future__ import annotations

import pytest

from unhang.records.logs import nccl, scan

LOG = """node7:4711:4711 [0] NCCL INFO Bootstrap : Using eth0:10.0.0.7<0>
node7:4711:4711 [0] NCCL INFO NCCL_SOCKET_IFNAME set by environment to eth0
node7:4711:4711 [0] NCCL INFO NCCL_IB_DISABLE set by environment to 1.
NCCL version 2.21.5+cuda12.4
node8:4811:4811 [0] NCCL INFO NET/Socket : Using [0]eth0:10.0.0.8<0>
node7:4711:4790 [0] NCCL INFO ncclCommInitRank comm 0x55aa rank 0 nranks 2 cudaDev 0 nvmlDev 0 busId 1000 commId 0x77aa - Init START
node8:4811:4890 [0] NCCL INFO ncclCommInitRank comm 0x55aa rank 1 nranks 2 cudaDev 0 nvmlDev 0 busId 1000 commId 0x77aa - Init START
node7:4711:4790 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[0] [send] via NET/IB/0/GDRDMA
node7:4711:4790 [0] NCCL INFO Channel 01 : 0[1b000] -> 1[1c000] via P2P/IPC
node7:4711:4790 [0] NCCL INFO Channel 00/24 :    0   1
node8:4811:4890 [0] NCCL INFO ncclCommInitRank comm 0x55aa rank 1 nranks 2 cudaDev 0 nvmlDev 0 busId 1000 commId 0x77aa - Init COMPLETE
node7:4711:4790 [0] NCCL INFO transport/net.cc:304 -> 2
node7:4711:4790 [0] NCCL INFO group.cc:65 -> 2 [Async thread]
"""


def read(tmp_path, text=LOG):
    path = tmp_path / "log"
    path.write_text(text)
    return nccl.read(scan(path, nccl.SIGNATURES))


def test_all_of_it(tmp_path):
    said = read(tmp_path)
    assert list(said.versions) == ["2.21.5"]
    assert set(said.transports) == {"NET/IB/0/GDRDMA", "P2P/IPC"}
    assert set(said.interfaces) == {"Bootstrap eth0:10.0.0.7<0>", "NET/Socket [0]eth0:10.0.0.8<0>"}
    assert set(said.settings) == {"NCCL_SOCKET_IFNAME=eth0", "NCCL_IB_DISABLE=1"}
    assert [t.line for t in said.traces] == [12, 13]


def test_the_rank_whose_start_was_never_completed(tmp_path):
    # The same pointer in two processes is two communicators.
    inits = {i.rank: i.completed for i in read(tmp_path).inits}
    assert inits == {0: False, 1: True}
    assert {i.at.host for i in read(tmp_path).inits} == {"node7", "node8"}


def test_the_rank_in_a_communicator_is_not_the_writers(tmp_path):
    path = tmp_path / "log"
    path.write_text("node7:4711:4790 [5] NCCL INFO ncclCommSplit comm 0x55 rank 3 nranks 4 cudaDev 5 busId 1 commId 0x7 - Init START\n")
    (hit,) = scan(path, nccl.SIGNATURES)
    assert hit.rank is None and [i.rank for i in nccl.read([hit]).inits] == [3]


@pytest.mark.parametrize(("nranks", "read_as"), [("1048576", [1048576]), ("1048577", []), ("9" * 5000, [])])
def test_sizes_that_no_job_has_are_passed_over(tmp_path, nranks, read_as):
    said = read(tmp_path, f"n7:1:2 [0] NCCL INFO comm 0x5 rank 0 nranks {nranks} cudaDev 0 busId 1 commId 0x7 - Init START\n")
    assert [i.nranks for i in said.inits] == read_as


@pytest.mark.parametrize(
    "line",
    [
        "comm 0x5 rank {n} nranks 2 cudaDev 0 - Init COMPLETE",
        "NCCL version {n}.1",
        "Channel 00/0 : {n}[0] -> 1[0] via P2P",
        "graph/x.cc:{n} -> 2",
    ],
)
def test_endless_numbers_are_none(tmp_path, line):
    said = read(tmp_path, "n7:1:2 [0] NCCL INFO " + line.format(n="7" * 5000) + "\n")
    assert not (said.inits or said.versions or said.traces) and set(said.transports) <= {"P2P"}
