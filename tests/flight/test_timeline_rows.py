"""What is drawn of a dump: each call at its number, whatever the dump claims, the same from columns and from objects."""

from __future__ import annotations

from array import array

from tests.flight import jobs

from unhang.flight.dump_file import DumpFile
from unhang.flight.entries import sites_of
from unhang.flight.recording import COMPLETED, ENDED, ISSUED, STARTED, columns_of
from unhang.flight.timeline_rows import MOST_COLUMNS, NOTHING, CallKind, lanes_of

DEFAULT = ("0", "default_pg")


def entry(n, state="completed", op="all_reduce", *, record=None, group=DEFAULT, line=20, elements=4, **more):
    made = jobs.entry(n if record is None else record, group, n, op, elements, line, state, t=(n if record is None else record) * 1000)
    return made | more


def lanes(*entries, groups=None, **more):
    columns, read = columns_of(DumpFile(raw=jobs.dump(entries, groups)))
    return lanes_of(columns, sites_of(read), **more)


def ids(column):
    return list(array("H", column))


def calls(found, lane):
    return [found.calls[i] for i in ids(lane.ops)]


def test_calls_stand_at_their_numbers():
    found = lanes(entry(5), entry(6, op="broadcast", line=31), entry(7, "started"), entry(8, "scheduled"), entry(9, "started", retired=True))
    (lane,) = found.lanes
    assert (lane.first, lane.p2p, lane.gloo, found.left_out) == (5, False, False, 0)
    assert list(lane.ends) == [COMPLETED, COMPLETED, STARTED, ISSUED, ENDED]
    assert [c.op for c in calls(found, lane)] == ["all_reduce", "broadcast", "all_reduce", "all_reduce", "all_reduce"]
    assert calls(found, lane)[0] == CallKind(op="all_reduce", elements=(4,), dtypes=("Float",))
    assert [found.sites[i] for i in ids(lane.sites)][:2] == [(jobs.TRAIN, 20, "step"), (jobs.TRAIN, 31, "step")]
    assert list(lane.starts_ns) == [jobs.T0 + n * 1000 for n in range(5, 10)]


def test_groups_have_lanes_of_their_own_and_their_members():
    tp = ("7", "tp")
    found = lanes(entry(1), entry(1, record=2, group=tp), entry(2, record=3), groups={"0": ("default_pg", [0, 1, 2, 3]), "7": ("tp", [2, 3])})
    assert [(x.group.name, x.group.members, x.first, len(x.ends)) for x in found.lanes] == [("0", (0, 1, 2, 3), 1, 2), ("7", (2, 3), 1, 1)]


def test_messages_have_numbers_of_their_own():
    sent = [entry(1, record=n, op="send 0->1", is_p2p=True, p2p_seq_id=n) for n in (2, 3)]
    found = lanes(entry(1), *sent, entry(2, record=4))
    assert [(x.p2p, x.first, len(x.ends)) for x in found.lanes] == [(False, 1, 2), (True, 2, 2)]


def test_calls_that_were_launched_together_are_one_column():
    parts = [entry(2, "scheduled", record=n, op="broadcast", line=40 + n) for n in (2, 3)]
    found = lanes(entry(1), *parts, entry(2, record=4, op="coalesced", line=50), entry(3, record=5))
    (lane,) = found.lanes
    assert calls(found, lane)[1] == CallKind(op="broadcast", together=2)
    assert list(lane.ends) == [COMPLETED] * 3 and found.sites[ids(lane.sites)[1]] == (jobs.TRAIN, 42, "step")
    assert lane.starts_ns[1] == jobs.T0 + 2000
    # As long as that entry is not there, the least finished of them tells.
    found = lanes(entry(1, record=1), entry(1, "started", record=2), entry(1, "scheduled", record=3), entry(2, record=4))
    assert list(found.lanes[0].ends) == [ISSUED, COMPLETED]


def test_numbers_that_are_not_there_and_those_that_a_damaged_dump_claims():
    found = lanes(entry(3), entry(6))
    assert list(found.lanes[0].ends) == [COMPLETED, NOTHING, NOTHING, COMPLETED] and ids(found.lanes[0].ops)[1:3] == [0, 0]
    far = lanes(entry(-4), entry(3), entry(2**61, record=5), entry(2**61 + 1, record=6))
    (lane,) = far.lanes
    assert len(lane.ends) <= MOST_COLUMNS and lane.first + len(lane.ends) == 2**61 + 2 and lane.ends[-1] == COMPLETED
    assert lanes(entry(-1), entry(-2)).lanes == ()
    assert lanes(entry(1), entry(1, record=2, op="send 0->1", is_p2p=True, p2p_seq_id=2**70)).lanes[0].ends == bytes([COMPLETED])


def test_sizes_that_are_none():
    huge = lanes(
        entry(1, input_sizes=[[2**62, 2**62]]), entry(2, input_sizes=[[2], [3], [4], [5], [6]]), entry(3, input_sizes=[], output_sizes=[[7]])
    )
    assert [c.elements for c in calls(huge, huge.lanes[0])] == [(-1,), (2, 3, 4, 5), (7,)]


def test_frames_that_are_none_cost_the_line_alone():
    found = lanes(entry(1, frames=[{"filename": "/home/u/x.py", "line": "?"}]), entry(2, frames=None), entry(3, frames=7), entry(4))
    assert [found.sites[i] for i in ids(found.lanes[0].sites)] == [None, None, None, (jobs.TRAIN, 20, "step")]


def test_the_newest_are_kept_where_not_all_can_be():
    tp = ("7", "tp")
    found = lanes(*(entry(n, record=n) for n in range(100)), *(entry(n, record=100 + n, group=tp) for n in range(300)), most=40)
    assert [(x.group.name, x.first, len(x.ends)) for x in found.lanes] == [("0", 90, 10), ("7", 270, 30)] and found.left_out == 360
    for lane in found.lanes:
        assert len(lane.ops) == len(lane.sites) == 2 * len(lane.ends) == 2 * len(lane.starts_ns)
        assert lane.starts_ns[-1] == jobs.T0 + (99 if lane.group.name == "0" else 399) * 1000


def test_columns_without_times_have_none():
    assert lanes(entry(0, record=0, time_created_ns=0)).lanes[0].starts_ns is None


def test_gloo_is_told_apart():
    made = [entry(n, "scheduled", profiling_name="gloo:all_reduce", retired=n < 3) for n in (1, 2, 3)]
    found = lanes(*made)
    assert found.lanes[0].gloo and list(found.lanes[0].ends) == [ENDED, ENDED, ISSUED]
