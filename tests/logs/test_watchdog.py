"""The watchdog's words, as each version of torch writes them."""

from __future__ import annotations

import pytest
from tests.logs.scanned import scan

from unhang.logs import watchdog


@pytest.fixture
def hits(tmp_path):
    def hits(*lines):
        path = tmp_path / "log"
        path.write_text("\n".join(lines) + "\n")
        return scan(path, watchdog.SIGNATURES)

    return hits


GAVE_UP = "WorkNCCL(SeqNum=120, OpType=ALLREDUCE, NumelIn=1024, NumelOut=2048, Timeout(ms)=600000) ran for 600012 milliseconds before timing out."
BLOCKED = "WorkNCCL(SeqNum=120, OpType=ALLREDUCE, NumelIn=1024, NumelOut=2048, Timeout(ms)=600000) timed out in blocking wait"


@pytest.mark.parametrize(
    ("line", "rank", "seq", "numel_in", "ran_ms"),
    [
        (
            ("[E ProcessGroupNCCL.cpp:566] [Rank 3] Watchdog caught collective operation timeout: WorkNCCL(OpType=ALLREDUCE, TensorShape=[64], "
            "Timeout(ms)=600000) ran for 600100 milliseconds before timing out."),
            3, None, None, 600100,
        ),
        (
            ("[E ProcessGroupNCCL.cpp:828] [Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7, OpType=ALLREDUCE, "
            "TensorShape=[64], Timeout(ms)=600000) ran for 600100 milliseconds before timing out."),
            3, 7, None, 600100,
        ),
        (f"[rank2]:[E ProcessGroupNCCL.cpp:523] [Rank 2] Watchdog caught collective operation timeout: {GAVE_UP}", 2, 120, 1024, 600012),
        # A group of some ranks: the prefix is the global rank, the number inside the one in the group.
        (f"[rank6]:[E321 02:07:08 x.cpp:607] [Rank 1] Watchdog caught collective operation timeout: {GAVE_UP}", 6, 120, 1024, 600012),
        (f"[rank2]:[E1103 02:07:08.40 x.cpp:6] [PG 3 Rank 0] Watchdog caught collective operation timeout: {GAVE_UP}", 2, 120, 1024, 600012),
        # TORCH_NCCL_BLOCKING_WAIT=1, by version.
        (f"[E ProcessGroupNCCL.cpp:566] [Rank 3] Work {BLOCKED} (NCCL_BLOCKING_WAIT=1).", 3, 120, 1024, None),
        (f"[rank5]:[E321 02:07:08.4 ProcessGroupNCCL.cpp:607] [Rank 1] Work {BLOCKED} (TORCH_NCCL_BLOCKING_WAIT=1).", 5, 120, 1024, None),
        (f"[rank5]:[E1103 02:07:08.4 ProcessGroupNCCL.cpp:756] [Rank 1] Work {BLOCKED}.", 5, 120, 1024, None),
    ],
)  # fmt: skip
def test_timeouts(hits, line, rank, seq, numel_in, ran_ms):
    (found,) = watchdog.timeouts(hits("noise", line))
    assert (found.at.rank, found.seq, found.numel_in, found.ran_ms, found.op, found.timeout_ms) == (rank, seq, numel_in, ran_ms, "ALLREDUCE", 600000)
    assert found.at.line == 2


@pytest.mark.parametrize(
    ("line", "rank", "group", "numbers"),
    [
        (
            "[rank1]:[E ProcessGroupNCCL.cpp:577] [PG 1 Rank 1] Timeout at NCCL work: 8, last enqueued NCCL work: 9, last completed NCCL work: 7.",
            1, "1", (8, 9, 7),
        ),
        (
            ("[rank0]:[E321 02:07:08.46 ProcessGroupNCCL.cpp:1598] [PG 1 Rank 0] Exception (either an error or timeout) detected by watchdog at "
            "work: 8, last enqueued NCCL work: 8, last completed NCCL work: 7."),
            0, "1", (8, 8, 7),
        ),
        (
            ("[rank5]:[E1103 02:07:08 ProcessGroupNCCL.cpp:1834] [PG ID 2 PG GUID 7(mesh_tp) Rank 1] Exception (either an error or timeout) detected "
            "by watchdog at work: 8, last enqueued NCCL work: 8, last completed NCCL work: 7."),
            5, "7(mesh_tp)", (8, 8, 7),
        ),
        (
            ("[rank118]:[E1103 02:07:08.4 ProcessGroupNCCL.cpp:1785] [PG ID 0 PG GUID 0(default_pg) Rank 118]  failure detected by watchdog at work "
            "sequence id: 8 PG status: last enqueued work: 7, last completed work: 7"),
            118, "0(default_pg)", (8, 7, 7),
        ),
        ("[PG 4 Rank 3] Timeout at NCCL work: 8, last enqueued NCCL work: -1, last completed NCCL work: -1.", 3, "4", (8, -1, -1)),
    ],
)  # fmt: skip
def test_statuses(hits, line, rank, group, numbers):
    (found,) = watchdog.statuses(hits(line))
    assert (found.at.rank, found.group, (found.failed, found.enqueued, found.completed)) == (rank, group, numbers)


def test_the_group_of_a_timeout_is_that_of_the_status_beside_it(hits):
    found = hits(
        f"[rank2]:[E1103 02:07:08.4 x.cpp:6] [Rank 2] Watchdog caught collective operation timeout: {GAVE_UP}",
        "[rank2]:[E1103 02:07:08.4 x.cpp:9] [PG ID 0 PG GUID 0(default_pg) Rank 2]  failure detected by watchdog at work sequence id: 120 PG "
        "status: last enqueued work: 121, last completed work: 119",
        f"[rank3]:[E1103 02:07:08.4 x.cpp:6] [Rank 3] Watchdog caught collective operation timeout: {GAVE_UP}",
    )
    assert [t.group for t in watchdog.timeouts(found)] == ["0(default_pg)", None]


def test_torn_lines_say_nothing(hits):
    assert not hits("Watchdog caught collective operation timeout: WorkNCCL(SeqNum=12", "last enqueued NCCL work: ", "last enqueued messages: 5")
    assert not hits("NumelOut=64, Timeout(ms)=600000) timed out in blocking wait.")


@pytest.mark.parametrize("name", ["SeqNum=120", "NumelIn=1024", "NumelOut=2048", "Timeout(ms)=600000", "ran for 600012"])
def test_endless_numbers_of_a_timeout_are_none(hits, name):
    line = f"[rank0]:[E x.cpp:6] [Rank 0] Watchdog caught collective operation timeout: {GAVE_UP}".replace(name, name + "0" * 5000)
    assert name + "0" in line and [t.ran_ms for t in watchdog.timeouts(hits(line))] in ([], [None])


@pytest.mark.parametrize("place", range(3))
def test_endless_counters_of_a_status_are_none(hits, place):
    numbers = ["8", "9", "7"]
    numbers[place] = "5" * 5000
    line = "[PG 1 Rank 1] Timeout at NCCL work: {}, last enqueued NCCL work: {}, last completed NCCL work: {}.".format(*numbers)
    assert not watchdog.statuses(hits(line))
