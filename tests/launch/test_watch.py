import pytest

from unhang.launch.step_rate import Rhythm
from unhang.launch.watch import RankState, Watch
from unhang.model import Counters
from unhang.records.incident import Ended


class Training:
    """Ranks that beat as told."""

    def __init__(self, ranks: int = 2, *, hang_after_s: float | None = 10.0) -> None:
        self.watch = Watch(Rhythm(hang_after_s=hang_after_s))
        for rank in range(ranks):
            state = RankState(rank=rank, pid=100 + rank, host="node1", local_rank=rank, since_s=0.0)
            self.watch.ranks[rank] = state

    def beat(self, rank: int, t: float, *, enqueued: int, completed: int, step: int = 0, sig: int = 0, group: str = "0") -> None:
        state = self.watch.ranks[rank]
        groups = {**state.groups, group: Counters(enqueued=enqueued, completed=completed)}
        self.watch.beat(state, t=t, step=step, groups=groups, place=None, sig=sig)


def test_nobody_moves_and_one_never_came():
    training = Training()
    for t in range(20):
        training.beat(0, t, enqueued=5, completed=4)
        training.beat(1, t, enqueued=4, completed=4)
    assert training.watch.look(9.0) is None
    stall = training.watch.look(10.5)
    assert stall is not None
    assert (stall.waiting, stall.absent) == ((0,), (1,))
    assert stall.since_s == 0.0


def test_progress_of_the_group_is_no_stall():
    training = Training()
    for t in range(60):
        training.beat(0, t, enqueued=t + 1, completed=t)
        training.beat(1, t, enqueued=t + 1, completed=t)
        assert training.watch.look(float(t)) is None


def test_a_group_that_moves_does_not_hide_one_that_is_stuck():
    training = Training()
    for t in range(20):
        training.beat(0, t, enqueued=1, completed=0, group="tensor")
        training.beat(0, t, enqueued=t + 1, completed=t, group="monitor")
        training.beat(1, t, enqueued=t + 1, completed=t, group="monitor")
    stall = training.watch.look(19.0)
    assert stall is not None
    assert stall.waiting == (0,)


def test_all_wait():
    training = Training(ranks=3)
    for t in range(12):
        for rank in range(3):
            training.beat(rank, t, enqueued=7, completed=6)
    stall = training.watch.look(11.0)
    assert stall is not None
    assert (stall.waiting, stall.absent) == ((0, 1, 2), ())


def test_ranks_that_ended_or_left_are_not_waited_for():
    training = Training(ranks=3)
    for t in range(12):
        training.beat(0, t, enqueued=7, completed=6)
    training.watch.ranks[1].ended = Ended(at_s=1.0, announced=True)
    training.watch.ranks[2].left = True
    stall = training.watch.look(11.0)
    assert stall is not None
    assert (stall.waiting, stall.absent) == ((0,), ())


def test_silence_where_nobody_waits_needs_longer():
    training = Training(hang_after_s=None)
    for i in range(60):
        t = i * 0.2
        for rank in range(2):
            training.beat(rank, t, enqueued=i, completed=i, step=i)
    last = 59 * 0.2
    assert training.watch.rhythm.threshold_s == pytest.approx(8.0)
    assert training.watch.look(last + 100) is None
    stall = training.watch.look(last + 121)
    assert stall is not None
    assert (stall.waiting, stall.absent) == ((), (0, 1))


@pytest.mark.parametrize("how", ["left", "ended"])
def test_silence_at_the_end_of_a_training_has_to_last_long(how):
    training = Training(hang_after_s=None)
    for i in range(60):
        for rank in range(2):
            training.beat(rank, i * 0.1, enqueued=i, completed=i, step=i)
    if how == "left":
        training.watch.ranks[1].left = True
    else:
        training.watch.ranks[1].ended = Ended(at_s=6.0, announced=True)
    assert training.watch.look(500.0) is None
    # A rank that is stuck at its exit is found all the same.
    stall = training.watch.look(700.0)
    assert stall is not None
    assert 0 in stall.absent


def test_a_group_that_is_served_by_a_thread_of_its_own():
    """A stop signal: one rank waits in a broadcast for the whole training, and goes on stepping."""
    training = Training()
    for t in range(60):
        training.beat(0, t, enqueued=t, completed=t, step=t // 5)
        training.beat(1, t, enqueued=t, completed=t, step=t // 5)
        training.beat(1, t, enqueued=1, completed=0, step=t // 5, group="signal")
        assert training.watch.look(float(t)) is None


@pytest.mark.parametrize("group", ["unhang/0/meeting", "cpu:unhang/0/meeting"])
def test_in_groups_of_unhang_nobody_waits(group):
    """Built for GPUs, torch has two recorders, and heartbeats say which one a group of Gloo stands in."""
    training = Training()
    for t in range(20):
        for rank in range(2):
            training.beat(rank, t, enqueued=5, completed=4, group=group)
    assert training.watch.ranks[0].wait(19.0) is None


def test_to_have_joined_a_group_is_neither_a_step_nor_a_collective():
    state = (training := Training()).watch.ranks[0]
    training.beat(0, 1.0, enqueued=0, completed=0)
    assert (state.last_progress_s, state.acted_s) == (1.0, None)
    training.beat(0, 2.0, enqueued=0, completed=0, step=1)
    assert state.acted_s == 2.0
    training.beat(0, 3.0, enqueued=0, completed=0, step=1)
    assert state.acted_s == 2.0
    training.beat(0, 4.0, enqueued=1, completed=0, step=1)
    assert state.acted_s == 4.0
    # Of calls of unhang's own lanes this alone is known.
    for t, inside in ((5.0, "unhang.all_reduce"), (6.0, None)):
        training.watch.beat(state, t=t, step=1, groups=state.groups, place=None, sig=0, inside=inside)
        assert state.acted_s == t


def test_who_was_missing_has_just_come():
    training = Training()
    for t in range(15):
        training.beat(0, t, enqueued=5, completed=4)
        training.beat(1, t, enqueued=4, completed=4)
    training.beat(1, 15.0, enqueued=5, completed=4)
    assert training.watch.look(15.1) is None
    # It did not help: now both wait.
    for t in range(16, 27):
        training.beat(0, t, enqueued=5, completed=4)
        training.beat(1, t, enqueued=5, completed=4)
    stall = training.watch.look(26.0)
    assert stall is not None
    assert (stall.waiting, stall.absent) == ((0, 1), ())


@pytest.mark.parametrize(("enqueued", "completed", "last"), [(4, 3, 1.0), (5, 4, 2.0), (6, 5, 2.0)])
def test_a_rank_that_has_fallen_silent_is_not_known_to_wait(enqueued, completed, last):
    """Stopped between two heartbeats: what the last one told may have been over long before, and counts are lower bounds."""
    training = Training(ranks=3)
    for t in range(14):
        if t <= last:
            training.beat(1, t, enqueued=enqueued, completed=completed)
        training.beat(0, t, enqueued=6, completed=5)
        training.beat(2, t, enqueued=6, completed=5)
    stall = training.watch.look(13.0)
    assert stall is not None
    assert (stall.waiting, stall.absent) == ((0, 2), (1,))
    assert training.watch.ranks[1].wait(13.0) is None


def test_a_rank_of_another_group_is_not_blamed():
    training = Training(ranks=3)
    for t in range(12):
        training.beat(0, t, enqueued=5, completed=4, group="tensor")
        training.beat(1, t, enqueued=4, completed=4, group="tensor")
        training.beat(2, t, enqueued=t, completed=t, group="other")
    stall = training.watch.look(11.0)
    assert stall is not None
    assert (stall.waiting, stall.absent) == ((0,), (1,))


def test_on_gloo_messages_are_counted_too_and_nobody_is_behind_by_count():
    """Ranks 1 and 2 exchanged messages: the rank that never came has counted more than one that waits, and rank 3 less than all."""
    training = Training(ranks=4)
    for t in range(12):
        training.beat(0, t, enqueued=3, completed=2)
        training.beat(1, t, enqueued=8, completed=7)
        training.beat(2, t, enqueued=7, completed=7)
        training.beat(3, t, enqueued=1, completed=1)
    stall = training.watch.look(11.0)
    assert stall is not None
    assert (stall.waiting, stall.absent) == ((0, 1), (2, 3))


def test_all_wait_is_worth_a_comparison_before_the_rhythm_is_known():
    training = Training(hang_after_s=None)
    for t in range(12):
        training.beat(0, t, enqueued=7, completed=6)
        training.beat(1, t, enqueued=7, completed=6)
    assert training.watch.rhythm.usual_gap_s is None
    stall = training.watch.look(11.0)
    assert stall is not None
    assert (stall.waiting, stall.absent) == ((0, 1), ())


def test_numbers_are_asked_for_in_time_and_not_before():
    training = Training(hang_after_s=60.0)
    training.beat(0, 0.0, enqueued=1, completed=0)
    training.beat(1, 0.0, enqueued=1, completed=1)
    assert not training.watch.suspects(1.5, window_s=10.0)
    # Before a user who sees that nothing moves may interrupt it.
    assert training.watch.suspects(2.5, window_s=10.0)
    for t in range(60):
        # Another group goes on: rank 0 waits all the same.
        training.beat(0, float(t), enqueued=t, completed=t, group="monitor")
        training.beat(1, float(t), enqueued=t, completed=t, group="monitor")
    assert training.watch.suspects(59.0, window_s=10.0)


def test_moved_share():
    state = RankState(rank=0, pid=1, host="h", local_rank=0, since_s=0.0)
    for t in range(10):
        state.places.append((float(t), t // 5))
    assert state.moved_share(0.0) == pytest.approx(1 / 9)
    assert state.moved_share(5.0) == 0.0
    assert state.moved_share(8.0) is None


def test_inside_a_call_that_the_recorder_does_not_know():
    training = Training()
    for t in range(15):
        state = training.watch.ranks[0]
        training.watch.beat(state, t=float(t), step=0, groups={}, place=None, sig=0, inside="recv")
        training.watch.beat(training.watch.ranks[1], t=float(t), step=t, groups={}, place=None, sig=0)
    stall = training.watch.look(14.0)
    assert stall is not None
    assert stall.waiting == (0,)


@pytest.mark.parametrize(
    ("told", "local", "joined", "complete"),
    [
        # One host, where a rank has never come: nobody else is to be waited for.
        (4, 4, None, True),
        # Others are on other hosts, before and after they have met.
        (4, 2, None, False),
        (4, 2, 4, False),
        (2, 2, 2, True),
        # A plain start: only the number of all is told.
        (4, None, None, False),
        (None, None, None, True),
        # Platforms that put the number of hosts into WORLD_SIZE.
        (1, None, 8, False),
    ],
)
def test_whether_all_ranks_are_here(told, local, joined, complete):
    training = Training(ranks=2)
    for state in training.watch.ranks.values():
        state.told_world, state.told_local_world, state.world_size = told, local, joined
    assert training.watch.complete() is complete


@pytest.mark.parametrize("waits", [True, False])
def test_what_stands_before_it_is_a_hang(waits):
    training = Training(hang_after_s=60.0)
    for t in range(10):
        training.beat(0, float(t), enqueued=t + 1, completed=t if waits else t + 1)
        training.beat(1, float(t), enqueued=t, completed=t)
    for t in range(10, 14):
        training.beat(0, float(t), enqueued=10, completed=9 if waits else 10)
        training.beat(1, float(t), enqueued=9, completed=9)
    assert training.watch.stands(11.5) is None
    stall = training.watch.stands(13.0)
    assert stall is not None and training.watch.look(13.0) is None
    assert (stall.since_s, stall.threshold_s) == (9.0, 60.0)
    assert (stall.waiting, stall.absent) == (((0,), (1,)) if waits else ((), (0, 1)))


def test_the_last_rank_of_a_training_may_upload():
    training = Training(hang_after_s=None)
    for rank in (0, 1):
        training.beat(rank, 1.0, enqueued=5, completed=5)
    assert training.watch.stands(30.0) is not None
    training.watch.ranks[1].left = True
    assert training.watch.stands(30.0) is None


def test_a_deadline_that_the_user_gave_is_waited_for():
    """unhang's library ends such a call by itself."""
    training = Training()
    for t in range(70):
        waiting, absent = training.watch.ranks.values()
        training.watch.beat(waiting, t=float(t), step=0, groups={}, place=None, sig=0, inside="unhang.evaluate", promised_s=60.0)
        training.watch.beat(absent, t=float(t), step=0, groups={}, place=None, sig=0)
    assert training.watch.look(69.0) is None
    # Whoever interrupts has no patience left.
    stands = training.watch.stands(12.0)
    assert stands is not None
    assert (stands.since_s, stands.waiting, stands.absent) == (0.0, (0,), (1,))
    stall = training.watch.look(71.0)
    assert stall is not None
    assert (stall.waiting, stall.absent) == ((0,), (1,))


def test_ranks_that_poll_a_lock_wait_for_nobody_here():
    """A build is waited for: in silence, and no longer than in a collective once all ranks wait."""
    training = Training(hang_after_s=None)
    for t in range(200):
        for state in training.watch.ranks.values():
            training.watch.beat(state, t=float(t), step=0, groups={}, place=None, sig=0, inside="file_baton")
    assert training.watch.look(179.0) is None
    stall = training.watch.look(181.0)
    assert stall is not None
    assert (stall.waiting, stall.absent) == ((), (0, 1))


def test_who_builds_is_given_the_time_that_silence_is_given():
    training = Training(hang_after_s=None)
    for t in range(200):
        for rank, state in training.watch.ranks.items():
            training.watch.beat(state, t=float(t), step=0, groups={}, place=None, sig=0, inside="file_baton" if rank else None)
    assert training.watch.look(300.0) is None


@pytest.mark.parametrize(("moves", "found"), [(False, True), (True, False)])
def test_who_was_waited_for_in_vain_is_given_no_time_to_upload(moves, found):
    training = Training(hang_after_s=None if moves else 10.0)
    waited, missing = training.watch.ranks.values()
    training.beat(1, 0.0, enqueued=0, completed=0)
    missing.missed_s = 5.0
    training.beat(1, 6.0, enqueued=int(moves), completed=int(moves))
    waited.ended = Ended(at_s=6.0, announced=True, by_launcher=False)
    for t in range(7, 30):
        training.beat(1, float(t), enqueued=int(moves), completed=int(moves))
    assert (training.watch.look(29.0) is not None) is found
