"""NCCL's own words."""

from __future__ import annotations

import pytest
from tests.logs.scanned import scan

from unhang.logs import nccl_lines

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
    return nccl_lines.read(scan(path, nccl_lines.SIGNATURES))


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
    (hit,) = scan(path, nccl_lines.SIGNATURES)
    assert hit.rank is None and [i.rank for i in nccl_lines.read([hit]).inits] == [3]


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


def call(op, count, *, comm="0x55aa", pid=4711, nranks=2, more=""):
    return (
        f"node{pid // 100 - 40}:{pid}:{pid} [0] NCCL INFO {op}: opCount {count:x} sendbuff 0x7f00 recvbuff 0x7f00 count 64 datatype 7 op 0 root 0 "
        f"comm {comm} [nranks={nranks}] stream 0x5e{more}\n"
    )


def calls(tmp_path, *lines):
    return sorted((c.at.pid, c.op, c.count, c.comm_id, c.nranks) for c in read(tmp_path, "".join(lines)).calls)


def test_the_last_call_on_each_communicator(tmp_path):
    steps = [call("AllReduce", n) + call("AllGather", n // 2, comm="0x66bb", nranks=4) for n in range(29)]
    other = [call("AllReduce", n, pid=4811) for n in range(20, 31)]
    assert calls(tmp_path, LOG, *steps, *other) == [
        (4711, "AllGather", 14, None, 4),
        (4711, "AllReduce", 28, "0x77aa", 2),
        (4811, "AllReduce", 30, "0x77aa", 2),
    ]


def test_what_is_only_called_long_before_the_end_is_not_the_last(tmp_path):
    """Between the first and the last hits that are kept there may be others."""
    found = calls(tmp_path, *(call("AllGather", n, comm="0x66bb") for n in range(100)), *(call("AllReduce", n) for n in range(1000)))
    assert found == [(4711, "AllReduce", 999, None, 2)]


def test_point_to_point_is_not_counted_alike(tmp_path):
    assert calls(tmp_path, call("AllReduce", 1), call("AllReduce", 2), call("Send", 3), call("AllReduce", 4)) == []


def test_rccl_tells_whose_call_it_is(tmp_path):
    (found,) = read(tmp_path, call("AllReduce", 3, more=" task 0 globalrank 5")).calls
    assert found.at.rank == 5


def test_the_last_call_of_each_rank_in_one_log_of_all(tmp_path):
    """Also of one that stopped early; of one that stopped long ago nothing is known."""
    line = "node7:47{r}:47{r} [0] NCCL INFO AllReduce: opCount {n:x} sendbuff 0x7f recvbuff 0x7f comm 0x5{r} [nranks=4]\n"
    path = tmp_path / "job.log"
    for steps, seen in ((20, [19, 19, 5, 19]), (200, [199, 199, None, 199])):
        path.write_text("".join(line.format(r=r, n=n) for n in range(steps) for r in range(4) if r != 2 or n <= 5))
        calls = {c.at.pid: c.count for c in nccl_lines.read(scan(path, nccl_lines.SIGNATURES)).calls}
        assert [calls.get(470 + r) for r in range(4)] == seen


WORDS = """node7:4711:4790 [0] transport/net.cc:718 NCCL WARN lane 6 is empty
[rank0]: ncclSystemError: System call failed.
[rank0]: Last error:

[rank0]: lane 6 is empty
[rank1]: ncclSystemError: System call failed.
[rank1]: Last error:
[rank1]: lane 7 is empty
[rank2]: Last error:
[rank2]: Traceback (most recent call last):
[rank3]: NCCL Async Error: unhandled system error NCCL Last Error: lane 8 is empty
[E NCCLBootstrap.cpp:55] [TC] User did not provide device ID; using device cuda:3
"""


def test_its_own_words_about_a_failure(tmp_path):
    said = read(tmp_path, WORDS)
    assert {words: [a.line for a in at] for words, at in said.warnings.items()} == {"lane 6 is empty": [1]}
    assert {words: [(a.rank, a.line) for a in at] for words, at in said.last_errors.items()} == {
        "lane 6 is empty": [(0, 3)],
        "lane 7 is empty": [(1, 7)],
        "lane 8 is empty": [(3, 11)],
    }
    assert list(said.guessed) == ["cuda:3"] and not said.informs and read(tmp_path).informs
