"""Dumps laid out as tracks: aligned by number, nothing called completed that is not, whatever a dump claims."""

from __future__ import annotations

from array import array
from dataclasses import dataclass

from tests.report.html import jobs
from tests.report.html.unpacking import unpacked

from unhang.flight.entries import Group, Site
from unhang.flight.recording import COMPLETED, ENDED, ISSUED, CallForm, Columns
from unhang.flight.timeline_rows import Lanes, lanes_of
from unhang.report.html import of_lanes, render
from unhang.report.html.packing import pack
from unhang.report.html.scene import Scene, State

LINE = ("/home/u/p/train.py", 20, "step")


@dataclass(frozen=True, kw_only=True)
class Call:
    seq: int
    op: str = "all_reduce"
    backend: str = "nccl"
    done: bool = True
    created_ns: int
    is_p2p: bool = False
    input_sizes: tuple[tuple[int, ...], ...] = ()
    dtypes: tuple[str, ...] = ()
    site: Site | None = LINE

    @property
    def end(self) -> int:
        return ISSUED if not self.done else ENDED if self.backend == "gloo" else COMPLETED


def call(seq: int, **more) -> Call:
    return Call(**({"seq": seq, "created_ns": 1000 + seq} | more))


def flight(*calls: Call, group: str = "0", members: tuple[int, ...] = (0, 1), desc: str = "default_pg") -> Lanes:
    columns = Columns(
        kinds=[CallForm(((group, desc), f"{c.backend}:{c.op}", c.input_sizes, (), c.dtypes, (), c.is_p2p)) for c in calls],
        kind_of=array("I", range(len(calls))),
        numbers=array("q", (0 if c.is_p2p else c.seq for c in calls)),
        ends=bytearray(c.end for c in calls),
        created=array("q", (c.created_ns for c in calls)),
        message_numbers={n: c.seq for n, c in enumerate(calls) if c.is_p2p},
        configured={group: Group(name=group, desc=desc, members=members)},
    )
    return lanes_of(columns, [c.site for c in calls])


def scene_of(lanes, **more) -> Scene:
    return of_lanes.scene_of({rank: (of,) for rank, of in lanes.items()}, **more)


def states(scene: Scene, track: int = 0) -> list[State]:
    return [State(s) for s in scene.tracks[track].states]


def test_calls_stand_at_their_numbers_whatever_order_they_come_in():
    made = scene_of({1: flight(call(8), call(7, done=False), call(5)), 0: flight(call(4), call(5))}, cwd="/home/u/p")
    assert [(t.rank, t.first, len(t.states)) for t in made.tracks] == [(0, 4, 2), (1, 5, 4)]
    assert states(made, 1) == [State.COMPLETED, State.NONE, State.ISSUED, State.COMPLETED]
    assert made.sites == ("", "train.py:20 in step") and list(made.tracks[1].sites) == [1, 0, 1, 1]
    assert [r.rank for r in made.ranks] == [0, 1] and made.groups[0].members == (0, 1)


def test_what_gloo_has_retired_is_over_and_no_more_is_told():
    made = scene_of({0: flight(call(1, backend="gloo"), call(2, backend="gloo", done=False))})
    assert states(made) == [State.ENDED, State.ISSUED]


def test_operations_are_told_apart_by_size_and_type():
    two = call(1, input_sizes=((1024, 2), (3,)), dtypes=("Float", "Float"))
    made = scene_of({0: flight(two, call(2, input_sizes=((7,),), dtypes=("Half",)), call(3, op="barrier"))})
    assert [(o.name, o.says) for o in made.operations] == [("", ""), ("all_reduce", "2,048 + 3 × Float"), ("all_reduce", "7 × Half"), ("barrier", "")]


def test_several_calls_of_one_number_are_one_column_of_the_least_finished():
    made = scene_of({0: flight(call(1, created_ns=9), call(1, done=False, created_ns=5), call(1, created_ns=7))})
    assert states(made) == [State.ISSUED] and made.operations[1].name == "coalesced" and list(made.tracks[0].starts_ns) == [5]


def test_send_and_receive_have_a_group_of_their_own():
    made = scene_of({0: flight(call(1), call(1, op="send 0->1", is_p2p=True), call(2, op="send 0->1", is_p2p=True))})
    assert [(g.name, g.point_to_point) for g in made.groups] == [("0", False), ("0", True)]
    assert [(t.group, len(t.states)) for t in made.tracks] == [(0, 1), (1, 2)]


def test_a_dump_may_claim_any_number_and_time():
    made = scene_of({0: flight(call(-4), call(3), call(2**62, created_ns=2**62), call(2**62 + 1, created_ns=0)), 1: flight()})
    assert sum(len(t.states) for t in made.tracks) <= 65_536 and states(made)[-1] == State.COMPLETED
    assert unpacked(pack(made))[0].states == made.tracks[0].states


def test_no_times_and_more_operations_than_ids():
    made = scene_of({0: flight(*(call(i, op=f"op{i}", created_ns=0) for i in range(66_000)))})
    assert made.tracks[0].starts_ns is None and len(made.operations) < 65_536 and made.tracks[0].ops[-1] == 0


def test_hosts_whose_clocks_may_differ():
    two = {0: flight(call(1)), 1: flight(call(1))}
    assert not scene_of(two, hosts={0: "a", 1: "a"}).hosts_differ and scene_of(two, hosts={0: "a", 1: "b"}).hosts_differ


def test_when_dumps_were_taken_is_not_made_up():
    one = {0: flight(call(1), call(2))}
    assert scene_of(one).until_ns == 0 and scene_of(one, until_ns=500).until_ns == 1002 and scene_of(one, until_ns=2000).until_ns == 2000
    assert '"until_told":false' in render(jobs.mismatch(), scene_of(one)) and '"until_told":true' in render(
        jobs.mismatch(), scene_of(one, until_ns=1)
    )


def test_no_dump_at_all():
    assert scene_of({}).tracks == () and "No call of a flight recorder was read" in render(jobs.mismatch(), scene_of({}))


def test_the_entry_that_ends_a_launch_is_no_call():
    made = scene_of({0: flight(call(1, op="broadcast"), call(1, op="broadcast"), call(1, op="coalesced"), call(2, op="coalesced"))})
    assert [(o.name, o.says) for o in made.operations[1:]] == [("coalesced", "2 × broadcast"), ("coalesced", "")]
