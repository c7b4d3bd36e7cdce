"""Whether a training is looked at before it is interrupted, and that the signal is passed on whatever happens."""

from __future__ import annotations

import asyncio
import signal
from types import SimpleNamespace

import pytest
from tests.chinese import zh

from unhang.frames import Frame
from unhang.launch import events, interruption
from unhang.launch.incidents import EvidenceRequest, Situation
from unhang.launch.interruption import Interruption, asked_to_end, still_there
from unhang.launch.watch import RankState, Stall
from unhang.records.incident import Ended
from unhang.records.status import Place, Seen

WAITING = Stall(since_s=3.0, threshold_s=300.0, waiting=(0,), absent=(1,))
SILENT = Stall(since_s=3.0, threshold_s=300.0, waiting=(), absent=(0, 1))
IDLE, BUSY = SimpleNamespace(busy=False), SimpleNamespace(busy=True)


class Around:
    """Ground, watch, sampler, incidents and alarm of an interruption. `then` is what the watch sees once the evidence is in."""

    def __init__(self, *, stall=WAITING, then=..., activity=IDLE, concluded=False, failed=False, gather=None):
        self.stall, self.then, self.seen, self.concluded, self.failed = stall, then, activity, concluded, failed
        self.does = gather
        self.ranks = {n: RankState(rank=n, pid=10 + n, host="h", local_rank=n, since_s=0.0) for n in (0, 1)}
        self.current = self.last = self.drawn = None
        self.happened = []
        self.told = []

    # the watch and the sampler
    def stands(self, now):
        return self.stall

    def activity(self, state, *, window_s, since_s):
        return self.seen

    # the incidents
    def open(self, kind, stall, *, told):
        assert (kind, told) == ("interrupted", False)
        self.current = SimpleNamespace(kind=kind, stall=stall, at_s=9.0, interrupted_by=None, gathered=asyncio.Event())
        return self.current

    async def gather(self, opened, asked, *, enough):
        self.happened.append("looked")
        if self.does is not None:
            await self.does(self, asked, enough)
        self.stall = self.stall if self.then is ... else self.then

    def announce(self, opened):
        self.happened.append("announced")

    def abandon(self):
        self.happened.append("abandoned")
        self.current = None

    async def draw(self, opened, situation):
        self.current, self.drawn = None, (opened, situation)
        self.last = self.drawn
        self.happened.append("drawn")

    def trouble(self, text):
        self.happened.append(text)

    # the ground
    def everybody(self, stall):
        return [EvidenceRequest(state=s, peer=None, activity=None) for s in self.ranks.values()]

    def situation(self, opened):
        return Situation(
            attempt=0,
            command=("x",),
            promised=2,
            usual_gap_s=None,
            states=tuple(self.ranks.values()),
            activities={},
            exitcodes={},
            exitcode=None,
            logs=(),
        )

    def running(self):
        return "ended" not in self.happened

    def anybody_failed(self):
        return self.failed

    def hand_on(self, number):
        self.happened.append(signal.Signals(number).name)

    def force(self):
        self.happened.append("forced")


@pytest.fixture
def interrupt(monkeypatch):
    """Interrupt it, and wait until it is over; what happened, in order."""
    monkeypatch.setattr(interruption, "EVIDENCE_S", 0.3)
    monkeypatch.setattr(interruption, "_LEEWAY_S", 0.3)
    monkeypatch.setattr(interruption, "JUDGING_S", 0.6)
    monkeypatch.setattr(interruption, "_POLL_S", 0.01)

    def run(around, *numbers, before=None):
        async def interrupt():
            it = Interruption(around, watch=around, sampler=around, incidents=around, alarm=around, clock=lambda: 9.0, tell=around.told.append)
            if before is not None:
                before(around, asyncio.get_running_loop())
            for number in numbers or (signal.SIGINT,):
                it.arrive(number)
                await asyncio.sleep(0)
                await asyncio.sleep(0)
            await asyncio.wait_for(it.over(), 100)
            assert it.count == len(numbers or (0,))

        asyncio.run(interrupt())
        return around.happened

    return run


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("stall", [WAITING, SILENT])
def test_what_stands_still_is_looked_at_first(interrupt, stall, number):
    around = Around(stall=stall)
    assert interrupt(around, number) == ["looked", signal.Signals(number).name, "announced", "drawn"]
    assert around.drawn[0].interrupted_by == signal.Signals(number).name
    assert [e.text for e in around.told] == ["nothing has moved for 6 s: taking stacks of 2 ranks, up to 0.3 s; Ctrl-C again to skip"]


@pytest.mark.parametrize(
    "around",
    [
        lambda: Around(stall=None),
        lambda: Around(stall=SILENT, activity=BUSY),
        lambda: Around(stall=SILENT, activity=None),
        lambda: Around(concluded=True),
    ],
    ids=["moves", "executes", "is not known to stand", "has its verdict"],
)
def test_anything_else_is_interrupted_at_once(interrupt, around):
    around = around()
    at = Frame(file="/p/train.py", line=16, name="step")
    around.ranks[0].place, around.ranks[0].last_beat_s, around.ranks[0].joined, around.ranks[0].last_progress_s = at, 8.9, True, 7.5
    assert interrupt(around) == ["SIGINT"]
    seen = Seen(ranks=(0,), place=Place(file="/p/train.py", line=16, name="step"), silent_s=0.1)
    # Where they were is told of by nobody else.
    assert around.told == [events.LastSeen(signal="SIGINT", seen=(seen, Seen(ranks=(1,))), still_s=None)]


def test_a_rank_that_executes_while_others_wait_is_looked_at(interrupt):
    assert "drawn" in interrupt(Around(activity=BUSY))


async def for_ever(around, asked, enough):
    await enough.wait()


async def deaf(around, asked, enough):
    await asyncio.sleep(60)


def test_no_longer_than_that(interrupt):
    assert interrupt(Around(gather=for_ever)) == ["looked", "SIGINT", "announced", "drawn"]


def test_one_that_is_skipped_and_judged_is_told_by_its_verdict_alone(interrupt):
    around = Around(gather=for_ever)
    interrupt(around, signal.SIGINT, signal.SIGINT)
    assert around.drawn is not None and [type(e) for e in around.told] == [events.Note]


def test_one_that_is_skipped_and_comes_to_nothing_is_told_once(interrupt):
    around = Around(gather=deaf)
    assert interrupt(around, signal.SIGINT, signal.SIGINT) == ["looked", "SIGINT"]
    assert [type(e) for e in around.told] == [events.Note, events.LastSeen]


def test_a_look_that_does_not_end_keeps_no_signal_back(interrupt):
    around = Around(gather=deaf)
    assert interrupt(around) == ["looked", "SIGINT"]
    assert isinstance(around.told[-1], events.LastSeen)


def test_a_second_one_skips_it_and_a_third_one_forces(interrupt):
    assert interrupt(Around(gather=for_ever), signal.SIGINT, signal.SIGINT) == ["looked", "SIGINT", "announced", "drawn"]
    assert interrupt(Around(gather=deaf), signal.SIGINT, signal.SIGTERM, signal.SIGINT)[:3] == ["looked", "SIGTERM", "forced"]
    assert interrupt(Around(stall=None), signal.SIGINT, signal.SIGINT) == ["SIGINT", "forced"]


def test_one_that_has_gone_on_meanwhile_is_no_incident(interrupt):
    around = Around(then=None)
    assert interrupt(around) == ["looked", "abandoned", "SIGINT"]
    assert isinstance(around.told[-1], events.LastSeen)
    later = Stall(since_s=8.0, threshold_s=300.0, waiting=(0,), absent=(1,))
    assert interrupt(Around(then=later)) == ["looked", "abandoned", "SIGINT"]


def test_what_the_signal_itself_does_to_the_ranks_is_not_written_down(interrupt):
    """A batch system sends it to all processes."""

    async def gather(around, asked, enough):
        for state in around.ranks.values():
            state.ended = Ended(at_s=9.5)
        asked[0].state.step = 7

    around = Around(gather=gather, then=None)
    assert interrupt(around, signal.SIGTERM)[-1] == "drawn"
    assert [(s.rank, s.ended, s.step) for s in around.drawn[1].states] == [(0, None, 7), (1, None, 0)]


def test_a_look_that_fails_keeps_no_signal_back(interrupt):
    async def fail(around, asked, enough):
        raise OSError("no space")

    assert interrupt(Around(gather=fail)) == ["looked", "SIGINT", "the look before the interruption failed: OSError: no space"]


def opened(kind, *, then):
    """An incident was open already; `then` happens to it."""

    def before(around, loop):
        around.current = SimpleNamespace(kind=kind, gathered=asyncio.Event())
        loop.call_later(0.05, then, around)

    return before


def conclude(around):
    around.last, around.current = "verdict", None
    around.happened.append("concluded")


def test_evidence_that_is_being_taken_of_a_hang_is_waited_for(interrupt):
    assert interrupt(Around(), before=opened("hang", then=conclude)) == ["concluded", "SIGINT"]
    assert interrupt(Around(), signal.SIGINT, signal.SIGINT, before=opened("hang", then=lambda around: None)) == ["SIGINT"]


def test_calls_that_were_compared_and_fit_are_looked_at(interrupt):
    def found_none(around):
        around.current = None

    assert interrupt(Around(), before=opened("hang", then=found_none)) == ["looked", "SIGINT", "announced", "drawn"]


def test_a_failure_gets_its_verdict(interrupt):
    assert interrupt(Around(failed=True), before=opened("failure", then=lambda a: a.current.gathered.set())) == ["SIGINT", "drawn"]
    # One that has only ended may have done its work.
    assert interrupt(Around(), before=opened("failure", then=lambda a: None)) == ["SIGINT"]


def test_a_command_that_has_ended_is_waited_for_no_longer(interrupt):
    assert interrupt(Around(), before=opened("hang", then=lambda around: around.happened.append("ended"))) == ["ended", "SIGINT"]


def test_who_is_waited_for():
    ranks = [RankState(rank=n, pid=10 + n, host="h", local_rank=n, since_s=0.0) for n in range(10)]
    assert asked_to_end(signal.SIGTERM, 60.0).text.endswith("(another signal ends it at once)")
    note = still_there(signal.SIGTERM, ranks, "", after_s=5.0, left_s=55.0)
    assert "rank 7 (pid 17), 2 more ranks; to be ended by force in 55 s (another signal ends all at once)" in note.text
    assert "另有 2 个 rank；55 秒后强制结束" in zh(note.text)
    assert "after it: sh train.sh (pid 3); to be" in still_there(signal.SIGINT, [], "sh train.sh (pid 3)", after_s=5.0, left_s=25.0).text


def test_that_a_launcher_may_end_its_ranks_sooner_is_said():
    note = asked_to_end(signal.SIGTERM, 60.0, launchers_s=30.0)
    assert note.text.endswith("end by itself; its launcher may end it after 30 s (another signal ends it at once)")
    assert "自行结束；其启动器可能在 30 秒后就结束它（" in zh(note.text)
    note = still_there(signal.SIGTERM, [], "x (pid 3)", after_s=5.0, left_s=55.0, launchers_s=25.0)
    assert note.text.endswith("to be ended by force in 55 s, by their launcher maybe in 25 s (another signal ends all at once)")
    assert "55 秒后强制结束，启动器可能在 25 秒后就这样做（" in zh(note.text)
