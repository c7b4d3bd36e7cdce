"""Asking for what may never answer: in a thread, so that whoever asks can go on."""

from __future__ import annotations

import contextlib
import os
import queue
import threading
from collections.abc import Callable, Hashable
from typing import Any

from unhang.runtime.collectives import shutdown

# To ask for one of them in the thread again costs little.
_KNOWN_KINDS = 4096


class TimedCall:
    """A question, instead of the work that comes of it."""

    def __init__(self, ask: Callable[[], Any]) -> None:
        self._ask = ask
        self._begun = threading.Lock()
        self._answered = threading.Event()
        self._work: Any = None
        self._error: Exception | None = None

    def is_completed(self) -> bool:
        """Whether nothing of it touches memory any more."""
        return self.answered and (self._error is not None or self._work.is_completed())

    @property
    def answered(self) -> bool:
        return self._answered.is_set()

    def answers(self, within_s: float) -> bool:
        return self._answered.wait(within_s)

    def work(self, within_s: float) -> Any:
        """None where there is no answer yet. Raises RuntimeError with what the question raised."""
        if not self.answers(within_s):
            return None
        if self._error is not None:
            raise RuntimeError(str(self._error)) from self._error
        return self._work

    def ask(self) -> None:
        if not self._begun.acquire(blocking=False):
            return
        try:
            with shutdown.inside_torch():
                self._work = self._ask()
        except Exception as e:
            self._error = e
        self._answered.set()

    def withdraw(self) -> None:
        """Where it has not been asked yet, it never is."""
        if self._begun.acquire(blocking=False):
            self._error = RuntimeError("the lane was broken before")
            self._answered.set()


class Asking:
    """Asks at once for a kind that has been answered before, and in a thread for one that is new; always in the same order."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._thread = _answering()
        self._known: set[Hashable] = set()
        self._waiting: list[TimedCall] = []
        self._closed = False

    def __call__(self, kind: Hashable, ask: Callable[[], Any]) -> Any:
        """The work, or an Asked. Raises RuntimeError once it is closed."""
        with self._lock:
            if self._closed:
                raise RuntimeError("the lane is broken")
            self._waiting = [asked for asked in self._waiting if not asked.answered]
            if self._waiting or kind not in self._known:
                if len(self._known) >= _KNOWN_KINDS:
                    self._known.clear()
                self._known.add(kind)
                asked = TimedCall(ask)
                self._waiting.append(asked)
                self._thread.put(asked)
                return asked
        return ask()

    def close(self) -> None:
        """What has not been asked for never is."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            for asked in self._waiting:
                asked.withdraw()
            if all(asked.answered for asked in self._waiting):
                _idle.append(self._thread)
            else:
                # Once it has been answered after all.
                self._thread.put(TimedCall(lambda: _idle.append(self._thread)))


# Threads that answer, each by what it is asked. They never end: torch 2.6 keeps CUDA's events by thread, and uses them when the thread has ended.
_idle: list[queue.SimpleQueue[TimedCall]] = []


def _answering() -> queue.SimpleQueue[TimedCall]:
    # Whether there is one is known only when it has been taken: circles of two threads may want the last.
    with contextlib.suppress(IndexError):
        return _idle.pop()
    return _started()


def _started() -> queue.SimpleQueue[TimedCall]:
    questions: queue.SimpleQueue[TimedCall] = queue.SimpleQueue()
    threading.Thread(target=_answers, args=(questions,), name="unhang-asks", daemon=True).start()
    return questions


def _answers(questions: queue.SimpleQueue[TimedCall]) -> None:
    while True:
        questions.get().ask()


def in_a_thread(call: Callable[[], Any]) -> TimedCall:
    asked = TimedCall(call)
    threading.Thread(target=asked.ask, name="unhang-asks-once", daemon=True).start()
    return asked


def raised(call: Callable[[], Any], within_s: float) -> Exception | None:
    """What `call` raises, or that it has not answered in time; it is left to itself then."""
    asked = in_a_thread(call)
    try:
        asked.work(within_s)
    except RuntimeError as e:
        return e
    return None if asked.answered else RuntimeError(f"no answer within {within_s:g} s")


# A child has none of the threads.
os.register_at_fork(after_in_child=_idle.clear)
