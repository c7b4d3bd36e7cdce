"""How fast it goes: the first step is counted from the start of its own attempt."""

from __future__ import annotations

from unhang.launch import events
from unhang.launch.step_rate import Rhythm
from unhang.launch.watch import Pace, RankState, Watch
from unhang.records.incident import Ended


def test_the_first_step_of_a_later_attempt():
    told = []
    watch = Watch(Rhythm())
    pace = Pace(watch, promised=1, tell=told.append)
    pace.look(100.0)
    watch.ranks[0] = RankState(rank=0, pid=7, host="node0", local_rank=0, since_s=103.0, world_size=1, step=0)
    pace.look(103.0)
    watch.ranks[0].step = 1
    pace.look(106.0)
    assert [e.after_s for e in told if isinstance(e, events.FirstStep)] == [6.0]
    assert [e.elapsed_s for e in told if isinstance(e, events.Pace)] == [106.0]


def test_no_first_step_is_told_of_what_is_left_of_a_training():
    told = []
    watch = Watch(Rhythm())
    pace = Pace(watch, promised=2, tell=told.append)
    pace.look(0.0)
    for number in (0, 1):
        watch.ranks[number] = RankState(rank=number, pid=7 + number, host="node0", local_rank=number, since_s=1.0, world_size=2, step=number)
    pace.look(2.0)
    watch.ranks[0].ended = Ended(at_s=2.5, exitcode=-9)
    # Long enough that nobody else is expected here.
    pace.look(20.0)
    assert told == []
