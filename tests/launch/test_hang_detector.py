"""All ranks wait: how often their calls are compared."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest

from unhang.launch import events
from unhang.launch.hang_detector import COMPARISONS, Alarm
from unhang.launch.patience import Patience
from unhang.launch.step_rate import Rhythm
from unhang.launch.watch import RankState, Stall, Watch
from unhang.model import Counters
from unhang.records.incident import Activity

STALL = Stall(since_s=0.0, threshold_s=1000.0, waiting=(0, 1), absent=())


class Around:
    """Ground, watch and incidents of an alarm. The dumps come in at comparison `dumped` (1 is the first), and show then that the ranks parted."""

    def __init__(self, *, dumped=None, differ=True, moves=False):
        self.dumped, self.differ, self.moves = dumped, differ, moves
        self.compared = self.drawn = self.abandoned = self.opened = 0
        self.rhythm, self.ranks = SimpleNamespace(threshold_s=1000.0, allowance_s=None, usual_gap_s=0.1), {}
        self.taker = self

    # the taker
    @property
    def late(self):
        return self.dumped is None or self.compared < self.dumped

    async def wait_on(self, taken):
        assert self.late

    # the incidents
    def open(self, kind, stall, *, told=True):
        self.opened += 1
        return SimpleNamespace(kind=kind, stall=stall, taker=self, taken={}, number=1, spares=False)

    async def gather(self, opened, asked): ...

    async def parted(self, opened, situation):
        self.compared += 1
        return self.differ and not self.late

    def announce(self, opened): ...

    def abandon(self):
        self.abandoned += 1

    # the watch
    def suspects(self, now, *, window_s):
        return False

    def look(self, now):
        return None if self.moves and self.compared else STALL

    # the ground
    def everybody(self, stall):
        return []

    def situation(self, opened):
        return None

    def running(self):
        return True

    async def draw(self, opened):
        self.drawn += 1

    async def end(self): ...


@pytest.fixture
def look():
    """Look a few times at the same stall."""

    def run(around):
        alarm = Alarm(
            around, watch=around, sampler=None, incidents=around, patience=Patience(), leave_hung=False, clock=lambda: 1.0, tell=lambda event: None
        )

        async def look_on():
            for _ in range(3):
                await alarm.look(1.0)
                if around.drawn:
                    return

        asyncio.run(look_on())
        return around

    return run


@pytest.mark.parametrize("dumped", range(1, COMPARISONS + 1))
def test_dumps_that_come_late_are_compared(look, dumped):
    around = look(Around(dumped=dumped))
    assert (around.compared, around.drawn, around.opened) == (dumped, 1, 1)


@pytest.mark.parametrize(
    ("around", "compared"),
    [(Around(), COMPARISONS), (Around(dumped=1, differ=False), 1), (Around(dumped=2, differ=False), 2), (Around(moves=True), 1)],
)
def test_comparing_ends(look, around, compared):
    look(around)
    assert (around.compared, around.drawn, around.opened, around.abandoned) == (compared, 0, 1, 1)


@pytest.mark.parametrize(
    ("step", "startup_s", "waits", "said"),
    [
        (0, 180.0, True, ["no optimizer step seen yet: a standstill is taken for a hang after 180 s (--startup)"]),
        (1, 180.0, True, ["only 1 optimizer step seen yet: a standstill is taken for a hang after 180 s (--startup)"]),
        (0, 180.0, False, []),
        (0, 12.0, True, []),
    ],
)
def test_how_long_is_waited_before_the_rhythm_is_known_is_said_once(step, startup_s, waits, said):
    watch, told = Watch(Rhythm(startup_s=startup_s)), []
    for rank in range(2):
        watch.ranks[rank] = RankState(rank=rank, pid=rank + 1, host="h", local_rank=rank, since_s=0.0)

    def beat(t):
        for rank, state in watch.ranks.items():
            counters = Counters(enqueued=5, completed=4 if waits and not rank else 5)
            watch.beat(state, t=t, step=step, groups={"0": counters}, place=None, sig=0)

    beat(1.0)
    sampler = SimpleNamespace(look=lambda states, now: None, activity=lambda state, window_s: None)
    ground = SimpleNamespace(states=list)
    alarm = Alarm(ground, watch=watch, sampler=sampler, incidents=None, patience=Patience(), leave_hung=False, clock=lambda: 1.0, tell=told.append)

    async def look_on():
        for now in (10.0, 20.0, 30.0, 40.0):
            beat(now)
            await alarm.look(now)
            if now < 15.0:
                assert not told

    asyncio.run(look_on())
    assert [e.text for e in told] == said


def looked_at(*insides, promised_s=0.0, absent=(), hang_after_s=None):
    """At 100 s: ranks that have stood since 50 s. The kernel's numbers of all but the first are those of asking a store again and again."""
    asking = Activity(window_s=5.0, state="S", cpu_share=0.02, tree_cpu_share=0.03, switches_per_s=300.0, moved_share=0.1, places=2)
    still = Activity(window_s=5.0, state="S", cpu_share=0.0, tree_cpu_share=0.0, switches_per_s=0.0, moved_share=0.0)
    around, told = Around(differ=False), []
    around.rhythm.threshold_s = 8.0
    for rank, inside in enumerate(insides):
        around.ranks[rank] = RankState(rank=rank, pid=rank + 1, host="h", local_rank=rank, since_s=0.0, inside=inside)
        around.ranks[rank].last_progress_s, around.ranks[rank].promised_s = 50.0, promised_s if rank in absent else 0.0
    waiting = tuple(rank for rank in around.ranks if rank not in absent)
    around.look = lambda now: Stall(since_s=50.0, threshold_s=8.0, waiting=waiting, absent=tuple(absent))
    around.complete = lambda: True
    sampler = SimpleNamespace(
        look=lambda states, now: None, activity=lambda state, window_s: asking if state.rank else still, wait=lambda state, **known: None
    )
    alarm = Alarm(
        around,
        watch=around,
        sampler=sampler,
        incidents=around,
        patience=Patience(hang_after_s=hang_after_s),
        leave_hung=False,
        clock=lambda: 100.0,
        tell=told.append,
    )
    asyncio.run(alarm.look(100.0))
    return around.drawn, [(event.kind, event.ranks) for event in told if isinstance(event, events.Stalled)]


def test_who_waits_in_unhang_s_library_does_not_execute_because_it_asks():
    assert looked_at("all_reduce", "unhang.evaluate") == (1, [("joined", (0, 1))])
    assert looked_at("all_reduce", "all_reduce") == (0, [])


def test_who_waits_in_it_under_the_user_s_deadline_is_neither_slow_nor_a_hang():
    assert looked_at("all_reduce", "unhang.all_reduce", promised_s=60.0, absent=[1]) == (0, [])
    assert looked_at("all_reduce", "unhang.all_reduce", promised_s=20.0, absent=[1]) == (1, [("waits", (1,))])
    # One that does something else is slow; the one beside it is not.
    assert looked_at("all_reduce", None, "unhang.all_reduce", promised_s=60.0, absent=[1, 2]) == (1, [("repeats", (1,))])


@pytest.mark.parametrize(("hang_after_s", "drawn"), [(49.0, 1), (51.0, 1)])
def test_a_stall_that_is_named_when_its_time_is_over_is_ended_with_one_verdict(hang_after_s, drawn):
    found, told = looked_at("all_reduce", None, absent=[1], hang_after_s=hang_after_s)
    assert (found, [kind for kind, _ in told]) == (drawn, ["repeats"] if hang_after_s > 50 else [])
