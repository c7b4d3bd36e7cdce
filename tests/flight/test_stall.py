"""Who waits for whom, where the members of a group, or the ranks of other hosts, may not be known."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

import pytest

from unhang import flight
from unhang.flight import key_of, standstill
from unhang.flight.dump import dump_of
from unhang.flight.dump_file import DumpFile
from unhang.frames import Frame
from unhang.model import Counters
from unhang.records.incident import Ended, RankRecord

TORCH = "/opt/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py"


def record(rank, *, world=3, last_beat_s=1.0, **more):
    return RankRecord(rank=rank, pid=100 + rank, host="h", world_size=world, last_beat_s=last_beat_s, **more)


def inside(op, line=7):
    return (Frame(file="/home/user/train.py", line=line, name="step"), Frame(file=TORCH, line=99, name=op))


@dataclass(frozen=True)
class Call:
    """One recorded call, as a test asks for it."""

    group: str
    seq: int
    op: str = "all_reduce"
    done: bool = False
    p2p: bool = False
    at: int = 0
    backend: str = "nccl"
    op_id: int | None = None
    sizes: tuple[tuple[int, ...], ...] = ()
    dtypes: tuple[str, ...] = ()
    pg: int | None = None
    out: tuple[tuple[int, ...], ...] = ()
    started: bool = True


def call(group, seq, op="all_reduce", **more):
    return Call(group, seq, op, **more)


def entry(c, n):
    return {
        "record_id": n,
        "pg_id": sum(c.group.encode()) if c.pg is None else c.pg,
        "process_group": (c.group, "default_pg" if c.group == "0" else "undefined"),
        "collective_seq_id": 0 if c.p2p else c.seq,
        "p2p_seq_id": c.seq if c.p2p else 0,
        **({} if c.op_id is None else {"op_id": c.op_id}),
        "profiling_name": f"{c.backend}:{c.op}",
        "time_created_ns": (c.at or c.seq) * 1000,
        "input_sizes": [list(s) for s in c.sizes],
        "output_sizes": [list(s) for s in c.out],
        "input_dtypes": list(c.dtypes),
        "output_dtypes": [],
        "state": "completed" if c.done and c.backend != "gloo" else "started" if c.started and c.backend != "gloo" else "scheduled",
        "retired": c.done,
        "is_p2p": c.p2p,
        "frames": [{"name": f.name, "filename": f.file, "line": f.line} for f in reversed(inside(c.op.split()[0]))],
    }


def dump(*calls, members=None, counters=None, lost=False, cut=None):
    ordered = sorted(calls, key=lambda c: c.at or c.seq)
    raw = {
        "version": "2.10",
        "entries": [entry(c, n + lost) for n, c in enumerate(ordered)],
        "members": {name: list(ranks) for name, ranks in (members or {}).items()},
        "pg_status": {
            str(sum(name.encode())): {"last_enqueued_collective": c.enqueued, "last_completed_collective": c.completed}
            for name, c in (counters or {}).items()
        },
    }
    return DumpFile(raw=raw, cut=cut)


def front(records, dumps=None, stacks=None):
    return stands(records, dumps, stacks).front


def stands(records, dumps=None, stacks=None, **more):
    found = {rank: dump_of(opened, rank=rank, source=f"rank_{rank}") for rank, opened in (dumps or {}).items()}
    return standstill({r.rank: r for r in records}, found, stacks or {}, **{"at_s": 0.0, **more})


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
    # Rank 2 waits for rank 1, which waits for what rank 0 sends.
    assert (f.waiting, f.absent, f.parting, f.complete) == ((0, 1), (), None, True)


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


ALL = {"0": (0, 1, 2)}


def gloo(seq, op_id, *, done=True):
    return call("0", seq, done=done, backend="gloo", op_id=op_id)


def test_on_gloo_counters_count_messages_and_are_no_sequence_numbers():
    """Ranks 1 and 2 exchanged five messages; rank 2 never joins #3, although its counters say 7."""
    dumps = {
        0: dump(gloo(2, 2), gloo(3, 3, done=False), members=ALL, counters={"0": Counters(enqueued=3, completed=2)}),
        1: dump(gloo(2, 7), gloo(3, 8, done=False), members=ALL, counters={"0": Counters(enqueued=8, completed=7)}),
        2: dump(gloo(2, 7), members=ALL, counters={"0": Counters(enqueued=7, completed=7)}),
    }
    beats = {0: Counters(enqueued=3, completed=2), 1: Counters(enqueued=8, completed=7), 2: Counters(enqueued=7, completed=7)}
    f = front([record(r, groups={"0": beats[r]}) for r in range(3)], dumps)
    assert (f.seq, f.waiting, f.absent, f.complete) == (3, (0, 1), (2,), True)


def test_a_rank_without_a_dump_is_not_placed_by_counters_that_count_messages():
    dumps = {r: dump(gloo(2, op - 1), gloo(3, op, done=False), members=ALL) for r, op in {0: 3, 1: 8}.items()}
    f = front([record(0), record(1), record(2, groups={"0": Counters(enqueued=7, completed=7)})], dumps)
    assert (f.waiting, f.absent, f.unseen, f.complete) == ((0, 1), (), (2,), False)
    # As many operations as the others had collectives before: it cannot be in the next.
    f = front([record(0), record(1), record(2, groups={"0": Counters(enqueued=2, completed=2)})], dumps)
    assert (f.absent, f.unseen) == ((2,), ())
    f = front([record(0), record(1), record(2, groups={"0": Counters(enqueued=9, completed=8)})], dumps)
    assert (f.seq, f.waiting, f.unseen, f.complete) == (3, (0, 1), (2,), False)


def test_of_whom_there_is_nothing_is_not_absent():
    dumps = {r: dump(call("0", 3, done=True), call("0", 4), members=ALL) for r in (0, 1)}
    f = front([record(0), record(1), record(2, last_beat_s=None)], dumps)
    assert (f.waiting, f.absent, f.unseen, f.complete) == ((0, 1), (), (2,), False)
    f = front([record(0), record(1), record(2, last_beat_s=None, ended=Ended(at_s=1.0))], dumps)
    assert (f.absent, f.unseen) == ((2,), ())


def test_a_recorder_that_has_lost_its_beginning_may_have_lost_the_group():
    dumps = {r: dump(call("dp", 4, at=9), members={"dp": (0, 1)}) for r in (0,)} | {1: dump(call("tp", 900, done=True), lost=True)}
    f = front([record(r) for r in range(2)], dumps)
    assert (f.absent, f.unseen) == ((), (1,))
    f = front([record(r) for r in range(2)], dumps | {1: dump(call("tp", 900, done=True))})
    assert (f.absent, f.unseen) == ((1,), ())


def test_counters_that_contradict_the_dump_are_shown_and_not_averaged():
    dumps = {r: dump(call("0", 3, done=True), *(() if r == 2 else [call("0", 4)]), members=ALL) for r in range(3)}
    f = front([record(0), record(1), record(2, groups={"0": Counters(enqueued=5, completed=3)})], dumps)
    assert (f.waiting, f.absent, f.disputed, f.complete) == ((0, 1), (), (2,), False)
    # A heartbeat is older than the dump.
    f = front([record(0), record(1), record(2, groups={"0": Counters(enqueued=2, completed=2)})], dumps)
    assert (f.absent, f.disputed, f.complete) == ((2,), (), True)


def test_a_stack_inside_the_call_that_the_recorder_has_not_got():
    """ncclAllReduce may block, and torch records a call only once it has returned."""
    dumps = {r: dump(call("0", 3, done=True), *(() if r == 2 else [call("0", 4)]), members=ALL) for r in range(3)}
    f = front([record(r) for r in range(3)], dumps, {2: inside("all_reduce", line=99)})
    assert (f.waiting, f.absent, f.disputed) == ((0, 1), (), (2,))
    f = front([record(r) for r in range(3)], dumps, {2: inside("recv", line=99)})
    assert (f.waiting, f.absent, f.disputed) == ((0, 1), (2,), ())


def test_two_groups_of_one_name():
    """torch.distributed.split_group gives every part the same name."""
    dumps = {r: dump(call("1", 1, done=True), call("1", 2), members={"1": (0, 1)}) for r in (0, 1)}
    dumps |= {2: dump(call("1", 1, done=True), call("1", 2), members={"1": (2, 3)}), 3: dump(call("1", 1, done=True), members={"1": (2, 3)})}
    f = front([record(r, world=4) for r in range(4)], dumps)
    assert (f.waiting, f.absent, f.complete) == ((2,), (3,), True)


def test_a_rank_that_is_far_ahead_has_lost_what_it_issued():
    def windows(first):
        return dump(*(call("0", first + i, done=i < 3) for i in range(4)), members=ALL, lost=True)

    f = front([record(r) for r in range(3)], {0: windows(10), 1: windows(10), 2: windows(400)})
    assert (f.seq, f.waiting, f.absent, f.lost, f.complete) == (13, (0, 1), (), (2,), False)


def test_two_groups_in_different_orders():
    pair = {"x": (0, 1), "y": (0, 1)}
    x, y = (partial(call, group, 1, started=False) for group in "xy")
    dumps = {0: dump(x(at=1), y(at=2), members=pair), 1: dump(y(at=1), x(at=2), members=pair)}
    f = front([record(r, world=2) for r in range(2)], dumps)
    assert f.crossed == (0, 1)
    dumps = {0: dump(x(at=1), members=pair), 1: dump(y(at=1), members=pair)}
    found = front([record(r, world=2) for r in range(2)], dumps)
    assert (found.crossed, found.strayed) == ((0, 1), ())
    three = {"x": (0, 1, 2), "y": (0, 1, 2)}
    found = front([record(r) for r in range(3)], {r: dump((y if r == 1 else x)(at=1), members=three) for r in range(3)})
    assert (found.crossed, found.strayed, found.by) == ((0, 1, 2), (1,), "majority")
    dumps |= {1: dump(x(at=1), y(at=2), members=pair)}
    assert front([record(r, world=2) for r in range(2)], dumps).crossed == ()


def test_what_has_to_be_equal():
    def key(op, sizes, out=((4,),)):
        return key_of(flight.Call(group="0", seq=1, op=op, done=True, input_sizes=sizes, output_sizes=out))

    assert key("all_gather_v", ((1,),)) == key("all_gather_v", ((2,),))
    assert key("reduce_scatter_v", ((1,),)) == key("reduce_scatter_v", ((2,),))
    assert key("_allgather_base", ((4,),), ((16,),)) != key("_allgather_base", ((4,),), ((8,),))
    assert key("allgather", ((4,),), ((4,), (4,))) == key("allgather", ((2, 2),), ((8,),))
    assert key("all_reduce", ((4,),)) != key("all_reduce", ((5,),))
    assert key("gather", ((4,),), ()) == key("gather", ((4,),), ((4,), (4,)))


def test_a_dump_that_is_cut_off_has_lost_its_newest_calls():
    dumps = {r: dump(call("0", 3, done=True), call("0", 4), members=ALL) for r in (0, 1)}
    dumps |= {2: dump(call("0", 3, done=True), members=ALL, cut="its newest entries are lost")}
    f = front([record(r) for r in range(3)], dumps)
    assert (f.waiting, f.absent, f.unseen, f.complete) == ((0, 1), (), (2,), False)


def test_launches_of_several_calls_are_compared_whole():
    def launched(n, *ops, closed=True, done=True):
        parts = [call("0", n, op, done=done, at=10 * n + i) for i, op in enumerate(ops)]
        return [*parts, *([call("0", n, "coalesced", done=done, at=10 * n + 9)] if closed else [])]

    def last(r, parts):
        return dump(call("0", 1, done=True), *parts, call("0", 3, at=99), members={"0": (0, 1, 2)})

    records = [record(r) for r in range(3)]
    usual = launched(2, "all_gather", "broadcast")
    assert front(records, {r: last(r, usual) for r in range(3)}).parting is None
    found = front(records, {r: last(r, launched(2, "all_reduce", "broadcast") if r == 1 else usual) for r in range(3)})
    assert found.parting.odd == (1,) and found.parting.seq == 2
    # One of them had not been launched yet when the dump was taken.
    pending = {r: launched(2, "all_gather", "broadcast", closed=r != 1, done=False) for r in range(3)}
    assert front(records, {r: dump(call("0", 1, done=True), *parts, members={"0": (0, 1, 2)}) for r, parts in pending.items()}).parting is None


def test_dtypes_that_a_version_does_not_tell_are_no_difference():
    def of(dtypes):
        return dump(call("0", 1, sizes=((4,),), dtypes=dtypes), members={"0": (0, 1, 2)})

    records = [record(r) for r in range(3)]
    assert front(records, {0: of(("Float",)), 1: of(("Float",)), 2: of(())}).parting is None
    assert front(records, {0: of(("Float",)), 1: of(("Float",)), 2: of(("Half",))}).parting.odd == (2,)


def test_a_rank_without_a_dump_is_placed_by_its_heartbeats():
    """Rank 2 gave no dump: its heartbeats tell whether it came, and on which call of another group it waits."""
    dumps = {r: dump(call("0", 3, done=True), call("0", 4), members=ALL) for r in (0, 1)}
    for enqueued, completed, absent in ((3, 3, (2,)), (4, 3, ()), (4, 4, ())):
        f = front([record(0), record(1), record(2, groups={"0": Counters(enqueued=enqueued, completed=completed)})], dumps)
        assert (f.seq, f.absent, f.unseen, f.complete) == (4, absent, (), True)
        assert f.finished == ((2,) if completed == 4 else ())
    # It waits in a group of its own with a rank that nobody waits for.
    dumps[0] = dump(call("0", 3, done=True), members=ALL | {"1": (0, 2)})
    waiting = record(2, groups={"0": Counters(enqueued=3, completed=3), "1": Counters(enqueued=1, completed=0)})
    found = stands([record(0), record(1), waiting], dumps)
    assert (found.waits[2].group, found.waits[2].seq, found.front.group, found.front.absent) == ("1", 1, "1", (0,))


@pytest.mark.parametrize("elsewhere", [True, False])
@pytest.mark.parametrize(("enqueued", "completed"), [(3, 3), (4, 3), (5, 4)])
def test_what_a_silent_rank_told_last_is_a_lower_bound(enqueued, completed, elsewhere):
    """Stopped between two heartbeats: it may have left the call that the last one tells of, and come to the one in which the others wait."""
    dumps = {r: dump(*(call("0", n, done=True) for n in (3, 4, 5)), call("0", 6), members=ALL) for r in (0, 1)}
    silent = record(2, groups={"0": Counters(enqueued=enqueued, completed=completed)})
    stacks = {2: (Frame(file="/home/user/train.py", line=9, name="load"),)} if elsewhere else None
    found = stands([record(0), record(1), silent], dumps, stacks, at_s=9.0)
    assert set(found.waits) == {0, 1}
    assert (found.front.seq, found.front.waiting, found.front.complete) == (6, (0, 1), False)
    assert (found.front.absent, found.front.unseen) == (((2,), ()) if elsewhere else ((), (2,)))
    # Whoever answers is not silent, whenever it was heard of.
    told = stands([record(0), record(1), replace(silent, answered=True)], dumps, stacks, at_s=9.0)
    assert (2 in told.waits) == (enqueued > completed)


def test_nobody_waits_in_a_group_of_unhangs_own():
    """Its library keeps the deadline; a lane that was broken stays as it was left, whatever its last call came to."""
    ours = {"unhang/0/3/own": Counters(enqueued=1, completed=1)}
    dumps = {0: dump(call("0", 1, done=True), call("unhang/0/3/own", 2, at=2), call("0", 2, at=3), members={"0": (0, 1)})}
    found = stands([record(0, world=2), record(1, world=2, groups={"0": Counters(enqueued=1, completed=1), **ours})], dumps)
    assert (found.waits[0].group, found.waits[0].seq, found.front.absent) == ("0", 2, (1,))


def test_heartbeats_of_a_rank_without_a_dump_may_be_of_a_group_that_was_destroyed():
    def made_again(rank):
        old = [call("0", n, done=True, pg=0) for n in (1, 2, 3)]
        return dump(*old, call("0", 1, at=9, pg=1), members=ALL)

    dumps = {r: made_again(r) for r in (0, 1)}
    f = front([record(0), record(1), record(2, groups={"0": Counters(enqueued=3, completed=3)})], dumps)
    assert (f.seq, f.waiting, f.absent, f.unseen, f.complete) == (1, (0, 1), (), (2,), False)


def test_who_has_ended_waits_in_nothing():
    dumps = {r: dump(call("0", 3, done=True), call("0", 4), members=ALL) for r in range(3)}
    found = stands([record(0), record(1), record(2, ended=Ended(at_s=1.0))], dumps, alive=[0, 1])
    assert set(found.waits) == {0, 1} and (found.front.waiting, found.front.absent) == ((0, 1), ())
    assert stands([record(r, ended=Ended(at_s=1.0)) for r in range(3)], dumps, alive=[]).front is None


def test_a_gloo_call_that_has_ended_is_waited_in_by_whom_its_stack_shows_there():
    dumps = {r: dump(gloo(3, 3), gloo(4, 4), members=ALL) if r != 2 else dump(gloo(3, 3), members=ALL) for r in range(3)}
    f = front([record(r) for r in range(3)], dumps, {0: inside("all_reduce"), 1: inside("all_reduce"), 2: inside("work")[:1]})
    assert (f.seq, f.waiting, f.absent) == (4, (0, 1), (2,))
    # At another line both have gone on.
    assert front([record(r) for r in range(3)], dumps, {r: inside("work", line=8)[:1] for r in range(3)}) is None


@pytest.mark.parametrize("also_alive", [False, True])
def test_a_message_that_no_recorder_holds_while_all_others_wait_for_its_rank(also_alive):
    dumps = {r: dump(gloo(2, 2), gloo(3, 3, done=False), members=ALL) for r in (0, 1)} | {2: dump(gloo(2, 2), members=ALL)}
    if also_alive:
        dumps[1] = dump(gloo(2, 2), members=ALL)
    f = front([record(r) for r in range(3)], dumps, {2: inside("recv")})
    # Whom rank 2 receives from is not told: a rank at work may be about to send.
    assert f.crossed == (() if also_alive else (0, 1, 2))


@pytest.mark.parametrize("enqueued", [5, 6])
def test_a_call_that_only_heartbeats_tell_of(enqueued):
    """Rank 0 waits in another group; that it has come to all_reduce #5 as well its dump does not show."""
    records = [record(r, world=2, groups={"0": Counters(enqueued=n, completed=4)}) for r, n in ((0, enqueued), (1, 5))]
    members = {"0": (0, 1), "a": (0, 1)}
    f = front(records, {0: dump(call("a", 1, at=1), members=members), 1: dump(call("0", 5, at=3), members=members)})
    assert (f.group, f.waiting, f.crossed) == ("a", (0, 1), (0, 1))
