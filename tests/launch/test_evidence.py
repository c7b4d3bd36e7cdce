"""Asking a rank: stacks and dump are two answers, and only those of the asked process count."""

import asyncio

import pytest

from unhang.launch import evidence
from unhang.launch.evidence import Taker
from unhang.launch.watch import RankState
from unhang.records.rundir import RunDir

STACKS = {
    "m": "evidence",
    "threads": [{"name": "MainThread", "main": True, "frames": [["/t/train.py", 7, "train", "step()"]]}],
    "groups": {"0": [3, 2]},
    "step": 5,
}


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
def take(tmp_path, monkeypatch):
    """Ask one process: what was taken, and what was missed."""
    monkeypatch.setattr(evidence, "_py_spy", lambda: None)
    monkeypatch.setattr(evidence, "ANSWER_TIMEOUT_S", 0.2)
    monkeypatch.setattr(evidence, "DUMP_TIMEOUT_S", 0.2)
    rundir = RunDir.create(tmp_path / "run")

    def write(path, value):
        rundir.write(path, value)
        return True

    def ask(say):
        taker = Taker(rundir, write)
        peer = Asked(lambda peer, number: say(taker, peer, number))
        state = RankState(rank=1, pid=1, host="h", local_rank=1, since_s=0.0)
        taken = asyncio.run(taker.take(1, state, peer, None))
        return taken, [f"{m.what}: {m.why}" for m in taker.missed], peer

    return ask


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
