"""Who asks for what may never answer goes on, and in order."""

from __future__ import annotations

import threading
import time

import pytest

from unhang.runtime.collectives import abortable_nccl as asking_module
from unhang.runtime.collectives.abortable_nccl import Asking, TimedCall, raised

pytestmark = pytest.mark.torch


class Done:
    def is_completed(self) -> bool:
        return True


@pytest.fixture
def asking():
    made = Asking()
    yield made
    made.close()


def test_a_kind_that_was_answered_is_asked_for_at_once(asking):
    by = []
    first = asking("a", lambda: by.append(threading.current_thread()) or Done())
    assert isinstance(first, TimedCall) and isinstance(first.work(10), Done) and first.is_completed()
    assert isinstance(asking("a", lambda: by.append(threading.current_thread()) or Done()), Done)
    assert by[0] is not by[1] is threading.current_thread()


def test_what_comes_behind_one_that_does_not_answer_waits_its_turn(asking):
    answer, order = threading.Event(), []
    first = asking("a", lambda: order.append(1) or answer.wait(30) or Done())
    second, third = (asking(kind, lambda n=n: order.append(n) or Done()) for n, kind in ((2, "a"), (3, "b")))
    assert first.work(0.05) is None and not first.is_completed() and second.work(0) is None
    answer.set()
    assert isinstance(third.work(10), Done) and order == [1, 2, 3]
    assert isinstance(asking("b", Done), Done)


def test_what_is_raised_comes_to_who_waits(asking):
    asked = asking("a", lambda: 1 / 0)
    with pytest.raises(RuntimeError, match="division"):
        asked.work(10)
    assert asked.is_completed()


def test_after_a_close_nothing_is_asked_for_any_more():
    made, answer, begun, order = Asking(), threading.Event(), threading.Event(), []
    stuck = made("a", lambda: begun.set() or answer.wait(30) or Done())
    behind = made("b", lambda: order.append("asked") or Done())
    assert begun.wait(10)
    made.close()
    with pytest.raises(RuntimeError, match="broken before"):
        behind.work(10)
    assert not stuck.is_completed() and behind.is_completed()
    with pytest.raises(RuntimeError, match="broken"):
        made("a", Done)
    # Another one gets another thread, as long as this one's is stuck.
    other = Asking()
    assert isinstance(other("a", Done).work(10), Done)
    other.close()
    answer.set()
    assert stuck.work(10) is not None and order == []


def test_threads_are_used_again():
    def ident() -> int:
        made, seen = Asking(), []
        made("a", lambda: seen.append(threading.get_ident()) or Done()).work(10)
        made.close()
        made.close()
        return seen[0]

    assert len({ident() for _ in range(20)}) == 1


def test_who_finds_the_last_idle_thread_taken_starts_one(monkeypatch):
    class Taken(list):
        def __bool__(self) -> bool:
            return True

    monkeypatch.setattr(asking_module, "_idle", Taken())
    asking = Asking()
    assert asking("a", Done).work(10).is_completed()
    asking.close()


def test_a_thread_that_was_stuck_is_used_again_once_it_is_free():
    made, answer, begun = Asking(), threading.Event(), threading.Event()
    stuck = made("a", lambda: begun.set() or (answer.wait(30), threading.get_ident())[1])
    assert begun.wait(10)
    made.close()
    idle = len(asking_module._idle)
    answer.set()
    until = time.monotonic() + 10
    while len(asking_module._idle) == idle:
        assert time.monotonic() < until
        time.sleep(0.001)
    again = Asking()
    assert again("a", threading.get_ident).work(10) == stuck.work(10)
    again.close()


def test_kinds_that_are_known_are_no_more_than_some(monkeypatch):
    monkeypatch.setattr(asking_module, "_KNOWN_KINDS", 3)
    made = Asking()
    for kind in range(10):
        assert made(kind, lambda: 7).work(10) == 7
    assert len(made._known) <= 3
    made.close()


def test_what_a_call_raises_or_that_it_does_not_end():
    answer = threading.Event()
    assert raised(lambda: None, 10) is None
    assert "division" in str(raised(lambda: 1 / 0, 10))
    began = time.monotonic()
    assert "within 0.05 s" in str(raised(lambda: answer.wait(30), 0.05))
    assert time.monotonic() - began < 10
    answer.set()
