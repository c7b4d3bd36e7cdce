"""Asking a rank: stacks and dump are two answers, and only those of the asked process count."""

import asyncio

import pytest

from unhang.launch import evidence
from unhang.launch.evidence import Taken, Taker
from unhang.launch.watch import RankState
from unhang.records.rundir import RunDir

STACKS = {
    "m": "evidence",
    "threads": [{"name": "MainThread", "main": True, "frames": [["/t/train.py", 7, "train", "step()", ""]]}],
    "groups": {"0": [3, 2]},
    "step": 5,
}


STATE = RankState(rank=1, pid=1, host="h", local_rank=1, since_s=0.0)


class Asked:
    """A process; `say` gives its answers to the number of the request."""

    def __init__(self, say):
        self.say = say
        self.numbers = []

    async def send(self, kind, *, id, flight):
        assert kind == "evidence"
        self.numbers.append(id)
        self.say(self, id)


@pytest.fixture
def taker(tmp_path, monkeypatch):
    """Makes one that is soon out of patience."""
    monkeypatch.setattr(evidence, "find_py_spy", lambda: None)
    monkeypatch.setattr(evidence, "ANSWER_TIMEOUT_S", 0.2)
    monkeypatch.setattr(evidence, "DUMP_TIMEOUT_S", 0.2)
    rundir = RunDir.create(tmp_path / "run")

    def write(path, value):
        rundir.write(path, value)
        return True

    return lambda: Taker(rundir, write)


def missed_by(taker):
    return [f"{m.what}: {m.why}" for m in taker.missed]


@pytest.fixture
def take(taker):
    """Ask one process: what was taken, and what was missed."""

    def ask(say):
        t = taker()
        peer = Asked(lambda peer, number: say(t, peer, number))
        taken = Taken(activity=None)
        asyncio.run(t.take(1, STATE, peer, taken))
        return taken, missed_by(t), peer

    return ask


@pytest.fixture
def take_twice(taker):
    """Ask one process and wait for it once more, in which it does something `later`; and whether answers were late each time."""

    async def ask(t, peer, later):
        taken = Taken(activity=None)
        await t.take(1, STATE, peer, taken)
        late = [t.late]
        asyncio.get_running_loop().call_soon(later, t, peer)
        await t.wait_on({1: taken})
        return taken, missed_by(t), [*late, t.late]

    def run(say, later):
        t = taker()
        return asyncio.run(ask(t, Asked(lambda peer, number: say(t, peer, number)), later))

    return run


def test_both_answers(take):
    def say(taker, peer, number):
        taker.answer(peer, {**STACKS, "id": number})
        taker.answer(peer, {"m": "dumped", "id": number, "flight": True, "error": None})

    taken, missed, _ = take(say)
    assert (taken.answered, taken.stacks, taken.flight, missed) == (True, "incidents/1/stacks/rank1.json", "incidents/1/flight/rank_1", [])


def test_a_dump_that_does_not_come_loses_no_stacks(take):
    taken, missed, _ = take(lambda taker, peer, number: taker.answer(peer, {**STACKS, "id": number}))
    assert (taken.answered, taken.stacks, taken.flight) == (True, "incidents/1/stacks/rank1.json", None)
    assert len(missed) == 1 and missed[0].startswith("flight recorder of rank 1: ") and "no dump within" in missed[0]


def test_a_dump_that_failed(take):
    def say(taker, peer, number):
        taker.answer(peer, {**STACKS, "id": number})
        taker.answer(peer, {"m": "dumped", "id": number, "flight": False, "error": "no space"})

    taken, missed, _ = take(say)
    assert (taken.flight, missed) == (None, ["flight recorder of rank 1: no space"])


def test_another_process_does_not_answer_for_the_asked_one(take):
    taken, missed, _ = take(lambda taker, peer, number: taker.answer(Asked(None), {**STACKS, "id": number}))
    assert (taken.answered, taken.stacks) == (False, None)
    assert "did not answer" in missed[0]


def test_numbers_are_never_used_twice(take):
    numbers = [number for _ in range(3) for number in take(lambda *_: None)[2].numbers]
    assert len(set(numbers)) == 3


def test_a_dump_that_comes_late_is_waited_for_again(take_twice):
    """Without asking again: the process would only begin a second dump."""

    def say(taker, peer, number):
        taker.answer(peer, {**STACKS, "id": number})

    def later(taker, peer):
        (number,) = peer.numbers
        taker.answer(peer, {"m": "dumped", "id": number, "flight": True, "error": None})

    taken, missed, late = take_twice(say, later)
    assert (taken.flight, missed, late) == ("incidents/1/flight/rank_1", [], [True, False])
    taken, missed, late = take_twice(say, lambda taker, peer: None)
    assert (taken.stacks, taken.flight, late) == ("incidents/1/stacks/rank1.json", None, [True, True])
    assert len(missed) == 1 and "no dump within" in missed[0]


def test_a_process_that_says_nothing_at_first(take_twice):
    def later(taker, peer):
        (number,) = peer.numbers
        taker.answer(peer, {**STACKS, "id": number})
        taker.answer(peer, {"m": "dumped", "id": number, "flight": True, "error": None})

    taken, _, late = take_twice(lambda *_: None, later)
    assert (taken.answered, taken.stacks, taken.flight) == (True, "incidents/1/stacks/rank1.json", "incidents/1/flight/rank_1")
    assert late == [True, False]


class Thread:
    """What /proc says of the thread that dumps; `looks` are (state, CPU time in seconds), the last for ever."""

    def __init__(self, looks):
        self.looks = iter(looks)
        self.now = None
        self.seen = 0

    def __call__(self, host, pid, tid):
        assert (pid, tid) == (STATE.pid, 77)
        self.seen += 1
        self.now = next(self.looks, self.now)
        return self.now


@pytest.mark.parametrize(
    ("looks", "looked"),
    [
        ([("S", 1.0), ("S", 1.5)], 3),  # it worked, and works no longer
        ([("S", 1.0)], 2),
        ([None], 2),
        ([("S", 1.0), None], 2),
        ([("S", 1.0)] + [("R", 1.0)] * 4 + [("S", 1.0)], 6),  # it waits for a core
    ],
)
def test_a_dump_is_waited_for_while_its_thread_works(take, monkeypatch, looks, looked):
    monkeypatch.setattr(evidence, "DUMP_TIMEOUT_S", 0.01)
    monkeypatch.setattr(evidence, "WORK_INTERVAL_S", 0.01)
    thread = Thread(looks)
    monkeypatch.setattr(evidence.processes, "thread", thread)
    taken, missed, _ = take(lambda taker, peer, number: taker.answer(peer, {**STACKS, "id": number, "tid": 77}))
    assert taken.flight is None and len(missed) == 1
    assert thread.seen == looked


def test_a_thread_that_works_for_ever_is_not_waited_for_as_long(take, monkeypatch):
    monkeypatch.setattr(evidence, "DUMP_TIMEOUT_S", 0.01)
    monkeypatch.setattr(evidence, "WORK_INTERVAL_S", 0.01)
    monkeypatch.setattr(evidence, "DUMP_WORKING_S", 0.1)
    monkeypatch.setattr(evidence.processes, "thread", lambda *_: ("R", 1.0))
    _, missed, _ = take(lambda taker, peer, number: taker.answer(peer, {**STACKS, "id": number, "tid": 77}))
    assert len(missed) == 1 and "no dump within" in missed[0]


def test_a_dump_that_comes_while_its_thread_works(take, monkeypatch):
    monkeypatch.setattr(evidence, "DUMP_TIMEOUT_S", 0.01)
    monkeypatch.setattr(evidence, "WORK_INTERVAL_S", 0.01)

    def say(taker, peer, number):
        def thread(*_):
            thread.seen += 1
            if thread.seen == 6:
                taker.answer(peer, {"m": "dumped", "id": number, "flight": True, "error": None})
            return "R", 1.0

        thread.seen = 0
        monkeypatch.setattr(evidence.processes, "thread", thread)
        taker.answer(peer, {**STACKS, "id": number, "tid": 77})

    taken, missed, _ = take(say)
    assert (taken.flight, missed) == ("incidents/1/flight/rank_1", [])
