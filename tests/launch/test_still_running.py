"""Where ranks were as a signal came, and which of them had to be killed."""

from __future__ import annotations

from unhang.frames import Frame
from unhang.launch import events, still_running
from unhang.launch.watch import RankState
from unhang.records.incident import Ended, Raised
from unhang.records.status import Place, Seen

AT = Place(file="/p/train.py", line=16, name="step")


def rank(number, **fields):
    at = Frame(file=AT.file, line=AT.line, name=AT.name)
    known = {"joined": True, "step": 5, "place": at, "last_beat_s": 9.75, "last_progress_s": 9.5, "acted_s": 9.5}
    return RankState(rank=number, pid=10 + number, host="h", local_rank=number, since_s=0.0, **(known | fields))


def test_ranks_at_one_place_are_told_together_and_those_that_have_ended_are_not():
    ended = rank(3, ended=Ended(at_s=9.0))
    told = still_running.at_signal("SIGTERM", [rank(0), rank(1, step=7, last_beat_s=9.5), rank(2, inside="all_reduce"), ended], 10.0)
    assert told == events.LastSeen(
        signal="SIGTERM",
        seen=(
            Seen(ranks=(0, 1), place=AT, least_step=5, step=7, silent_s=0.5),
            Seen(ranks=(2,), place=AT, call="all_reduce", least_step=5, step=5, silent_s=0.25),
        ),
        still_s=0.5,
    )


def test_without_a_living_rank_there_is_nothing_to_tell():
    assert still_running.at_signal("SIGTERM", [rank(0, ended=Ended(at_s=9.0))], 10.0) is None


def test_of_a_training_that_has_not_begun_it_is_not_told_when_it_moved():
    told = still_running.at_signal("SIGTERM", [rank(0, joined=False, step=0, place=None, last_beat_s=None, acted_s=None)], 10.0)
    assert told == events.LastSeen(signal="SIGTERM", seen=(Seen(ranks=(0,)),), still_s=None)


def test_of_one_that_has_only_joined_it_is_not_told_when_it_moved():
    joined = rank(0, step=0, last_progress_s=99.0, acted_s=None)
    assert still_running.at_signal("SIGTERM", [joined], 100.0).still_s is None
    # Those that have begun tell it alone, whoever has joined since.
    assert still_running.at_signal("SIGTERM", [joined, rank(1)], 100.0).still_s == 90.5


def test_who_was_killed_by_whom():
    ours, launchers, orderly, gone = rank(0), rank(1), rank(2), rank(3)
    overdue = still_running.StillRunning()
    overdue.note([ours, launchers, orderly, gone], now=40.0, since_s=11.0, exists=lambda pid: pid != gone.pid, by_us=False)
    launchers.ended = Ended(at_s=41.0)
    orderly.announced = True
    overdue.note([ours, launchers], now=41.0, since_s=11.0, exists=lambda pid: True, by_us=True)
    seen = [Seen(ranks=(n,), place=AT, least_step=5, step=5, silent_s=30.25) for n in (0, 1)]
    assert overdue.killed() == [events.Forced(seen=(seen[0],), after_s=30.0, by_us=True), events.Forced(seen=(seen[1],), after_s=29.0, by_us=False)]


RAISED = Raised(type="KeyboardInterrupt", text="", frames=(), at_s=12.0)


def test_one_that_raised_is_not_told_as_gone_without_a_word():
    before, since = rank(0, raised=RAISED), rank(1)
    overdue = still_running.StillRunning()
    overdue.note([before, since], now=40.0, since_s=11.0, exists=lambda pid: True, by_us=False)
    since.raised = RAISED
    assert overdue.killed() == []


def test_one_that_raised_and_was_there_all_the_same_was_ended_by_us():
    before, since = rank(0, raised=RAISED), rank(1)
    overdue = still_running.StillRunning()
    overdue.note([before, since], now=40.0, since_s=11.0, exists=lambda pid: True, by_us=False)
    overdue.note([before, since], now=41.0, since_s=11.0, exists=lambda pid: True, by_us=True)
    since.raised = RAISED
    assert [(f.seen[0].ranks, f.by_us) for f in overdue.killed()] == [((0,), True)]


def test_nobody_was_killed():
    assert still_running.StillRunning().killed() == []
