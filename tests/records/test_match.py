"""Who waits for whom, where the members of a group, or the ranks of other hosts, may not be known."""

from __future__ import annotations

import pytest

from unhang.records.flight import Call, Flight, Group
from unhang.records.frames import Frame
from unhang.records.incident import Counters, Ended, RankRecord
from unhang.records.match import front_of, waits_of

TORCH = "/opt/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py"


def record(rank, *, world=3, **more):
    return RankRecord(rank=rank, pid=100 + rank, host="h", world_size=world, **more)


def inside(op, line=7):
    return (Frame(file="/home/user/train.py", line=line, name="step"), Frame(file=TORCH, line=99, name=op))


def call(group, seq, op="all_reduce", *, done=False, p2p=False, at=0):
    return Call(group=group, seq=seq, op=op, done=done, is_p2p=p2p, frames=inside(op.split()[0]), created_ns=at or seq)


def dump(*calls, members=None):
    groups = {name: Group(name=name, members=ranks) for name, ranks in (members or {}).items()}
    return Flight(version="2.10", groups=groups, calls={c.group: tuple(x for x in calls if x.group == c.group) for c in calls})


def front(records, dumps=None, stacks=None):
    dumps, stacks = dumps or {}, stacks or {}
    by_rank = {r.rank: r for r in records}
    found = {rank: w for rank, r in by_rank.items() if (w := waits_of(r, dumps.get(rank), stacks.get(rank, ()))) is not None}
    return front_of(by_rank, dumps, found)


def test_a_member_that_never_used_its_group_is_absent_and_others_are_not():
    f = front([record(r) for r in range(3)], {0: dump(call("1", 1), members={"1": (0, 1)})})
    assert (f.waiting, f.absent, f.complete) == ((0,), (1,), True)


def test_counters_of_a_build_with_two_recorders_have_the_same_members():
    waiting = record(0, groups={"cpu:1": Counters(enqueued=1, completed=0)})
    f = front([waiting, record(1), record(2)], {1: dump(members={"1": (0, 1)})})
    assert (f.waiting, f.absent, f.complete) == ((0,), (1,), True)


def test_where_the_members_are_not_known_whoever_lives_and_waits_in_nothing_may_be_missing():
    records = [record(0, world=5), record(1, world=5), record(2, world=5, ended=Ended(at_s=1.0)), record(3, world=5), record(4, world=5)]
    f = front(records, {0: dump(call("1", 1))}, {3: inside("recv")})
    assert (f.waiting, f.absent, f.complete) == ((0,), (1, 4), False)
    f = front(records[:1], {0: dump(call("1", 1))})
    assert (f.absent, f.complete) == ((), False)


def test_two_groups_that_wait_for_the_same_rank():
    pairs = {0: dump(call("1", 1), members={"1": (0, 1)}), 2: dump(call("2", 1), members={"2": (1, 2)})}
    assert front([record(r) for r in range(3)], pairs).absent == (1,)
    unknown = {0: dump(call("1", 1)), 2: dump(call("2", 1))}
    assert front([record(r) for r in range(3)], unknown).absent == (1,)


def test_a_member_on_another_host_may_be_the_one():
    f = front([record(r) for r in range(2)], {r: dump(call("1", 4), members={"1": (0, 1, 2)}) for r in range(2)})
    assert (f.waiting, f.absent, f.complete) == ((0, 1), (), False)
    f = front([record(r) for r in range(2)], {r: dump(call("0", 4)) for r in range(2)})
    assert (f.absent, f.complete) == ((), False)


def test_a_pipeline_at_work_has_not_parted():
    """A recv is under way, and the gradients' all_reduce is enqueued behind it."""
    dumps = {
        r: dump(
            call("dp", 1, done=True),
            call("pp", 7, f"recv {r}<-{r - 1}" if r else "send 0->1", p2p=True, at=2),
            call("dp", 2, at=3),
            members={"dp": (0, 1, 2), "pp": (0, 1, 2)},
        )
        for r in range(3)
    }
    f = front([record(r) for r in range(3)], dumps)
    assert (f.waiting, f.parting, f.complete) == ((0, 1, 2), None, False)


@pytest.mark.parametrize("op", ["send", "recv", "isend", "irecv", "batch_isend_irecv", "send_object_list"])
def test_stacks_in_point_to_point_calls_are_no_parting(op):
    two = [record(r, world=2) for r in range(2)]
    assert front(two, stacks={0: inside(op), 1: inside("recv")}).parting is None
    open_group = [record(r, world=2, groups={"0": Counters(enqueued=3, completed=2)}) for r in range(2)]
    assert front(open_group, stacks={0: inside(op), 1: inside("all_reduce")}).parting is None


@pytest.mark.parametrize("groups", [{}, {"0": Counters(enqueued=3, completed=2)}])
def test_stacks_are_compared_once_all_hosts_are_here(groups):
    stacks = {0: inside("barrier"), 1: inside("all_reduce")}
    assert front([record(r, world=2, groups=groups) for r in range(2)], stacks=stacks).parting is not None
    assert front([record(r, world=3, groups=groups) for r in range(2)], stacks=stacks).parting is None
