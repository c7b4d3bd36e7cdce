"""Interleaved writers: who wrote what stands at a place in a line."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from tests.tables import for_each

from unhang.logs import Writer, rank_at, writer_at


@for_each(
    ("text", "writer"),
    [
        ("boom", Writer()),
        ("[rank2]: boom", Writer(rank=2)),
        ("[rank2]: one[rank3]: boom", Writer(rank=3)),
        ("boom [rank3]: two", Writer()),
        ("[Rank 2] Watchdog boom", Writer(group_rank=2)),
        ("x [PG ID 0 PG GUID 0(default_pg) Rank 4] boom", Writer(group_rank=4)),
        ("[rank3]: x [PG ID 2 PG GUID 5(tensor) Rank 1] boom", Writer(rank=3)),
        ("node7:4711:4712 [0] NCCL INFO boom", Writer(host="node7", pid=4711)),
        ("[rank2]: half a linenode7:4711:4712 [0] NCCL INFO boom", Writer(host="linenode7", pid=4711)),
        ("node7:4711:4712 [0] NCCL INFO Cha[rank1]: boom", Writer(rank=1)),
        ("[Rank 1] half a line node7:4711:4712 [0] NCCL INFO boom", Writer(host="node7", pid=4711)),
        ("node7:1:2 [0] NCCL INFO Cha node8:4711:4712 [1] NCCL WARN boom", Writer(host="node8", pid=4711)),
        ("[rank2]:[2026-11-03 10:00:01] node7:4711:4712 [0] boom", Writer(rank=2, host="node7", pid=4711)),
        ("[rank9]:[E321 02:07:08.408271257 ProcessGroupNCCL.cpp:607] [Rank 1] boom", Writer(rank=9, group_rank=1)),
        ("(Worker pid=812, ip=10.0.0.2) [rank2]: boom", Writer(rank=2, host="10.0.0.2", pid=812)),
        ("(Worker pid=812) one (Worker pid=813) boom", Writer(pid=813)),
    ],
)
def test_the_nearest_marker_tells(text, writer):
    assert writer_at(text, text.index("boom")) == writer
    assert rank_at(text, text.index("boom")) == (writer.group_rank if writer.rank is None else writer.rank)


def test_a_marker_at_the_place_itself_counts():
    assert rank_at("[rank1]: a [Rank 2] b", 11) == 2


@given(st.text(alphabet="[rank1]: PGnode7:():. NCCL\n"), st.integers(-5, 100))
def test_it_never_raises(text, position):
    writer_at(text, position)
