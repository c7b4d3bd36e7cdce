"""Errors that were printed and ended nothing."""

from __future__ import annotations

import pytest

from unhang.knowledge import catalogue
from unhang.knowledge.caught import went_on
from unhang.knowledge.cause import LogView
from unhang.records.incident import Frame
from unhang.records.logs import Traceback, match
from unhang.records.logs.said import At, Exit

TAKEN = "port: 29555, useIpv6: false, code: -98, name: EADDRINUSE, message: address already in use"
NO_MEMORY = "[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to allocate 4503599627370496 bytes."
ENDED = Exit(at=At(source="train.log", line=90, text="exitcode  : 1"), code=1)


def judge(cause: str, text: str, **parts: object):
    known = catalogue.get(cause)
    hits = tuple(match(text, known.signatures, source="train.log", line=10))
    assert hits and known.in_logs is not None
    return known.in_logs(LogView(hits={cause: hits}, **parts))  # type: ignore[arg-type]


@pytest.mark.parametrize(("cause", "text"), [("port-in-use", TAKEN), ("host-oom-or-killed", NO_MEMORY)])
def test_what_a_log_goes_on_behind_ended_nothing(cause, text):
    assert judge(cause, text, lines={"train.log": 100}) is None
    for parts in ({}, {"lines": {"train.log": 40}}, {"lines": {"train.log": 100}, "exits": (ENDED,)}):
        assert judge(cause, text, **parts) is not None


@pytest.mark.parametrize(("cause", "text"), [("port-in-use", TAKEN), ("host-oom-or-killed", NO_MEMORY)])
def test_a_warning_that_says_what_is_done_instead(cause, text):
    assert judge(cause, f"WARNING train: taken, trying the next one: {text}") is None
    assert judge(cause, f"WARNING train: taken, trying the next one: {text}", exits=(ENDED,)) is not None
    assert judge(cause, f"ERROR train: giving up: {text}") is not None


def raised(type: str, text: str, *, line: int = 1, end: int = 10, code: str = "", file: str = "/srv/job/train.py", ignored: bool = False):
    frame = Frame(file=file, line=33, name="main", code=code)
    return Traceback(source="train.log", line=line, end=end, type=type, text=text, frames=(frame,), ignored=ignored)


def exception(*backs: Traceback, **parts: object):
    cause = catalogue.get("rank-exception")
    assert cause.in_logs is not None
    return cause.in_logs(LogView(tracebacks=backs, **parts))  # type: ignore[arg-type]


def test_an_exception_that_was_logged_is_none():
    assert exception(raised("ValueError", "bad sample 17"), lines={"train.log": 100}) is None
    assert exception(raised("ValueError", "bad sample 17"), lines={"train.log": 40}) is not None
    assert exception(raised("ValueError", "bad sample 17"), lines={"train.log": 100}, exits=(ENDED,)) is not None
    # What followed was another traceback, close to the end.
    last = raised("KeyError", "'label'", line=80, end=95)
    assert "ValueError" in exception(raised("ValueError", "bad sample 17"), last, lines={"train.log": 100}).says


def test_what_python_passes_over_is_none():
    assert exception(raised("RuntimeError", "cache entry is gone", ignored=True)) is None


@pytest.mark.parametrize(
    ("file", "code", "found"),
    [
        ("/usr/lib/python3.11/logging/__init__.py", "stream.write(msg)", False),
        ("/srv/job/train.py", "print(loss)", False),
        ("/srv/job/train.py", "conn.send(x)", True),
    ],
)
def test_output_into_a_closed_pipe(file, code, found):
    assert (exception(raised("BrokenPipeError", "[Errno 32] Broken pipe", file=file, code=code)) is not None) == found


def test_of_a_data_loader_worker_the_original_is_told():
    carried = raised("OSError", "Caught OSError in DataLoader worker process 1.", line=1, end=9)
    original = raised("OSError", "broken data stream", line=10, end=18, file="/srv/job/data.py")
    found = exception(carried, original)
    assert found.says == "a process raised OSError: broken data stream (in DataLoader worker process 1) at /srv/job/data.py:33 in main"
    assert exception(carried) is not None


def test_where_nothing_is_known_nothing_went_on():
    assert not went_on(LogView(), "train.log", 3) and not went_on(LogView(lines={"train.log": 99}), "train.log", None)
