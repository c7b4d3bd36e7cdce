"""A stall over time: when it is named, what is announced, and when it ends the training. Time is passed in; nothing is started."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from types import SimpleNamespace

import pytest

from unhang.frames import Frame
from unhang.launch import events
from unhang.launch.evidence import Taken
from unhang.launch.hang_detector import Alarm
from unhang.launch.patience import LIMIT_S, Patience
from unhang.launch.watch import RankState, Stall
from unhang.model import Counters, Wait
from unhang.records.incident import Activity

QUIET = Activity(window_s=5.0, state="S", cpu_share=0.0, tree_cpu_share=0.0, switches_per_s=0.0, places=1)
WORKS = replace(QUIET, state="R", cpu_share=1.0, tree_cpu_share=1.0, places=50)
LOOPS = replace(WORKS, places=2)
STOPPED = replace(QUIET, state="T")
TRACED = replace(QUIET, state="t")
SLEEPS = Wait(kind="sleep", timed=True)
LOCKED = Wait(kind="mutex", ends=False)


class Training:
    """Rank 0 has waited since 0 s; rank 1 is absent until `comes_s`, and does what `doing(t)` says. It plays all partners of an alarm."""

    def __init__(
        self,
        doing,
        *,
        comes_s=None,
        complete=True,
        absent=(1,),
        timeout_s=1800.0,
        patience=None,
        leave_hung=False,
        in_collective=False,
        beats=True,
        evidence=None,
    ):
        self.doing, self.comes_s, self.is_complete = doing, comes_s, complete
        self.stall = Stall(since_s=0.0, threshold_s=8.0, waiting=(0,) if absent else (0, 1), absent=absent)
        self.rhythm = SimpleNamespace(threshold_s=8.0, allowance_s=None, usual_gap_s=0.1)
        self.ranks = {r: RankState(rank=r, pid=10 + r, host="h", local_rank=r, since_s=-9.0, timeout_s=timeout_s) for r in range(2)}
        self.ranks[1].place = Frame(file="/a/train.py", line=7, name="save")
        if in_collective:
            self.ranks[1].groups = {"1": Counters(enqueued=5, completed=4)}
        self.beats, self.evidence = beats, evidence
        self.now, self.told, self.drawn, self.ended_s = 0.0, [], [], None
        self.patience = patience or Patience()
        self.alarm = Alarm(
            self, watch=self, sampler=self, incidents=self, patience=self.patience, leave_hung=leave_hung, clock=lambda: self.now, tell=self.tell
        )

    def tell(self, event):
        self.told.append((self.now, event))

    # the watch and the sampler
    def suspects(self, now, *, window_s):
        return True

    def complete(self):
        return self.is_complete

    def activity(self, state, *, window_s):
        return QUIET if state.rank == 0 else self.doing(self.now)[0]

    def wait(self, state, **known):
        found = None if state.rank == 0 else self.doing(self.now)[1]
        return replace(found, ends=True) if found is not None and state.is_in_collective else found

    def look(self, *args, now=None):
        at = args[0] if args and isinstance(args[0], float) else now
        return None if self.comes_s is not None and at >= self.comes_s else self.stall if at >= 8.0 else None

    # the incidents
    taker = SimpleNamespace(late=False)

    def open(self, kind, stall, *, told=True):
        return SimpleNamespace(kind=kind, stall=stall, taker=self.taker, taken={}, number=len(self.drawn) + 1, spares=False)

    async def gather(self, opened, asked):
        if self.evidence:
            opened.taken = {1: Taken(activity=LOOPS, place=self.evidence)}

    async def parted(self, opened, situation):
        return False

    def abandon(self): ...

    # the ground
    def states(self):
        return list(self.ranks.values())

    def everybody(self, stall):
        return []

    def situation(self, opened):
        return None

    def running(self):
        return self.ended_s is None

    async def draw(self, opened):
        self.drawn.append((self.now, opened.kind, opened.spares))

    async def end(self):
        self.ended_s = self.now

    def run(self, until_s=4000.0):
        async def looks():
            while self.now < until_s and self.ended_s is None:
                self.now = round(self.now + 0.5, 1)
                for state in self.ranks.values():
                    state.last_beat_s = self.now if self.beats else -1.0 if self.evidence else None
                await self.alarm.look(self.now)

        asyncio.run(looks())
        return self

    def announced(self):
        """(when it was said, the kind, when the training would end)"""
        return [(at, e.kind, None if e.left_s is None else at + e.left_s) for at, e in self.told if isinstance(e, events.Stalled)]


@pytest.mark.parametrize(
    ("doing", "ended_s"),
    [
        (lambda t: (QUIET, SLEEPS), LIMIT_S),
        (lambda t: (LOOPS, None), LIMIT_S),
        (lambda t: (STOPPED, None), 60.0),
        (lambda t: (WORKS, None), 1790.0),
        (lambda t: (QUIET, Wait(kind="terminal")), 1790.0),
        # It worked at first: the promise of half an hour does not stand for what it does now.
        (lambda t: (WORKS, None) if t < 40 else (LOOPS, None), LIMIT_S),
        (lambda t: (WORKS, None) if t < 400 else (QUIET, SLEEPS), 465.0),
        # Somebody looks at it with a debugger for an instant.
        (lambda t: (TRACED, None) if 50 < t < 52 else (QUIET, SLEEPS), LIMIT_S),
    ],
)
def test_a_stall_is_named_early_and_ends_the_training_when_that_was_announced(doing, ended_s):
    run = Training(doing).run()
    (named_s, _, spared), (_, kind, _) = run.drawn
    assert named_s <= 15.0 and spared and kind == "hang"
    assert run.ended_s == pytest.approx(ended_s, abs=6.0)
    assert run.announced()[-1][2] == pytest.approx(run.ended_s, abs=1.5)
    # At growing intervals.
    assert len(run.announced()) <= 9


def test_what_nothing_can_end_is_ended_at_once_with_one_verdict():
    run = Training(lambda t: (QUIET, LOCKED)).run()
    assert run.ended_s <= 12.0 and len(run.drawn) == 1 and not run.announced()


def test_a_rank_that_has_come_to_another_collective_is_not_stuck_in_its_threads():
    assert Training(lambda t: (QUIET, LOCKED), in_collective=True).run().ended_s == pytest.approx(LIMIT_S, abs=2.0)


def test_a_rank_that_tells_nothing_is_named_all_the_same():
    run = Training(lambda t: (QUIET, LOCKED), beats=False).run()
    assert run.drawn[0][0] <= 15.0 and run.ended_s == pytest.approx(LIMIT_S, abs=2.0)


def test_one_look_at_a_rank_that_has_just_come_ends_nothing():
    """The kernel shows it waiting for its own threads before a heartbeat has told of its collective."""
    run = Training(lambda t: (QUIET, LOCKED if t > 39.9 else SLEEPS), comes_s=40.5).run(until_s=60.0)
    assert run.ended_s is None and isinstance(run.told[-1][1], events.CaughtUp)


@pytest.mark.parametrize(("timeout_s", "ended_s"), [(1800.0, 1790.0), (40.0, 36.0)])
def test_ranks_that_wait_for_another_host_are_ended_by_their_own_timeout_alone(timeout_s, ended_s):
    run = Training(lambda t: (QUIET, SLEEPS), complete=False, absent=(), timeout_s=timeout_s).run()
    assert run.ended_s == pytest.approx(ended_s, abs=2.0)
    assert {kind for _, kind, _ in run.announced()} == {"remote"} and len(run.drawn) == 1


@pytest.mark.parametrize(
    ("loop", "complete", "doing", "is_named"),
    [
        ("while True:", False, LOOPS, True),
        ("while True:", True, LOOPS, False),
        ("while True:", False, WORKS, False),
        ("for batch in batches:", False, LOOPS, False),
    ],
)
def test_of_ranks_that_nobody_here_waits_for_an_endless_loop_is_named_if_others_run_elsewhere(tmp_path, loop, complete, doing, is_named):
    script = tmp_path / "train.py"
    script.write_text(f"{loop}\n    pass\n")
    training = Training(lambda t: (doing, None), complete=complete)
    training.stall = replace(training.stall, waiting=())
    training.ranks[1].place = Frame(file=str(script), line=2, name="<module>")
    run = training.run(until_s=200.0)
    assert [spared for _, _, spared in run.drawn] == [True] * is_named and run.ended_s is None


def test_a_pause_that_was_survived_gets_a_line_and_no_evidence_until_it_is_longer():
    patience = Patience()
    Training(lambda t: (QUIET, SLEEPS), comes_s=40.0, patience=patience).run(until_s=50.0)
    again = Training(lambda t: (QUIET, SLEEPS), comes_s=40.0, patience=patience).run(until_s=50.0)
    assert not again.drawn and len(again.announced()) >= 1
    longer = Training(lambda t: (QUIET, SLEEPS), patience=patience).run()
    assert [round(at) for at, _, _ in longer.drawn] == [60, 300]


def test_a_place_that_ended_the_training_is_given_more_time():
    patience = Patience()
    Training(lambda t: (QUIET, SLEEPS), patience=patience).run()
    again = Training(lambda t: (QUIET, SLEEPS), patience=patience).run()
    assert again.ended_s == pytest.approx(4 * LIMIT_S, abs=2.0)
    told = [e for _, e in again.told if isinstance(e, events.Stalled)]
    assert {(e.met_before, e.longer_s) for e in told} == {(1, 1740)}


@pytest.mark.parametrize(("hang_after_s", "told"), [(None, {"train.py:6"}), (5.0, set())])
def test_a_rank_whose_heartbeats_have_stopped_is_placed_by_its_evidence(hang_after_s, told):
    """As one that a regular expression holds: its last heartbeat came from another line."""
    patience = Patience(hang_after_s=hang_after_s)
    run = Training(lambda t: (LOOPS, None), beats=False, evidence=Frame(file="/a/train.py", line=6, name="parse"), patience=patience).run()
    assert {e.place for _, e in run.told if isinstance(e, events.Stalled)} == told
    assert run.patience.pauses.ended == {"/a/train.py:6": 1}


@pytest.mark.parametrize("doing", [lambda t: (QUIET, SLEEPS), lambda t: (QUIET, LOCKED), lambda t: (LOOPS, None)])
def test_what_is_only_reported_is_never_ended(doing):
    run = Training(doing, leave_hung=True).run()
    assert run.ended_s is None and len(run.drawn) == 1 and {left for _, _, left in run.announced()} == {None}
