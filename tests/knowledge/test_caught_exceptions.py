"""Errors that were printed and ended nothing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from unhang.diagnosis.logs import judge_logs
from unhang.frames import Frame
from unhang.knowledge import catalogue
from unhang.knowledge.caught_exceptions import went_on
from unhang.knowledge.cause import LogView
from unhang.logs import Traceback, match
from unhang.logs.log_facts import At, Exit
from unhang.model import Verdict

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


def raised(type: str, text: str, *, line: int = 1, end: int = 10, code: str = "", file: str = "/srv/job/train.py", **marks: object):
    frame = Frame(file=file, line=33, name="main", code=code)
    return Traceback(source="train.log", line=line, end=end, type=type, text=text, frames=(frame,), **marks)


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


GOES_ON = {"logged": True, "steps": ("step 3", "step 4")}


def test_what_was_logged_before_further_steps_is_none():
    caught = raised("ValueError", "bad sample 17", **GOES_ON)
    assert exception(caught, lines={"train.log": 12}) is None
    assert exception(caught, lines={"train.log": 12}, exits=(ENDED,)) is not None
    # Nobody caught it; what follows is the step that the other ranks are in; another one came later.
    assert exception(replace(caught, logged=False), lines={"train.log": 12}) is not None
    assert exception(replace(caught, steps=("step 3",)), lines={"train.log": 20}) is not None
    found = exception(caught, raised("KeyError", "'label'", line=30, end=40), lines={"train.log": 42})
    assert found is not None and "KeyError" in found.says


def test_the_steps_behind_the_last_are_behind_all_and_one_is_enough_for_what_was_survived_before():
    first = raised("OSError", "cannot read 13", logged=True, steps=("epoch 0",))
    again = raised("OSError", "cannot read 21", logged=True, steps=("epoch 1",), line=20, end=30)
    assert exception(first, again) is None
    assert exception(raised("KeyError", "'label'", logged=True), replace(first, line=20, end=30), replace(again, line=40, end=50)) is None
    for other in (replace(again, steps=()), replace(again, steps=("epoch 0",)), replace(again, type="KeyError"), replace(again, rank=1)):
        assert exception(first, other) is not None


@pytest.mark.parametrize(
    ("marks", "parts", "found"),
    [
        ({}, {}, False),
        ({}, {"world_size": 1, "printed": frozenset({0})}, False),
        ({}, {"world_size": 8}, True),
        ({}, {"printed": frozenset({0})}, True),
        ({"label": 0}, {"world_size": 8}, True),
        ({"rank": 3}, {"world_size": 8, "printed": frozenset({0, 3})}, False),
        ({"pid": 812}, {"world_size": 8}, False),
    ],
)
def test_steps_of_nobody_in_particular_may_be_another_ranks(marks, parts, found):
    assert (exception(raised("ValueError", "bad sample 17", **GOES_ON, **marks), **parts) is not None) == found


def test_what_begins_where_the_process_does_was_caught_by_nobody():
    back = raised("ValueError", "bad sample 17", **GOES_ON)
    whole = (replace(back.frames[0], name="<module>"), *back.frames)
    assert exception(replace(back, frames=whole)) is not None
    # Unless its own steps follow.
    assert exception(replace(back, frames=whole, rank=3)) is None


STEPS = "2026-11-21 09:14:0{n},000 INFO fit: step {n} loss 0.{n}\n"
CRASH = 'Traceback (most recent call last):\n  File "/srv/job/fit.py", line 40, in {name}\n    feed(batch)\nValueError: label 11 is out of range\n'
FAILED = "2026-11-21 09:14:02,500 ERROR fit: giving up\n"
SUMMARY = "wandb: Run history:\nwandb: epoch ▁▅█\nwandb:\nwandb: Run summary:\nwandb: epoch 3\nwandb:     step 40\nwandb:     train/loss 0.8\n"


@pytest.mark.parametrize(
    "log",
    [
        STEPS.format(n=2) + CRASH.format(name="<module>") + STEPS.format(n=3),
        STEPS.format(n=2) + CRASH.format(name="<module>") + STEPS.format(n=3) + STEPS.format(n=4),
        FAILED + CRASH.format(name="main") + STEPS.format(n=3),
        FAILED.replace("ERROR", "WARNING") + CRASH.format(name="<module>") + STEPS.format(n=3) + STEPS.format(n=4),
        STEPS.format(n=2) + CRASH.format(name="<module>") + SUMMARY,
        FAILED + CRASH.format(name="main") + SUMMARY,
    ],
)
def test_a_crash_is_told_whatever_others_print_behind_it(tmp_path, log):
    path = tmp_path / "train.log"
    path.write_text(STEPS.format(n=1) + log, "utf-8")
    primary = judge_logs([str(path)]).verdict.primary
    assert primary is not None and primary.cause == "rank-exception"


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
    (hit,) = match(TAKEN, catalogue.get("port-in-use").signatures, source="train.log", line=3)
    assert went_on(LogView(lines={"train.log": 99}), hit)
    assert not went_on(LogView(), hit) and not went_on(LogView(lines={"train.log": 99}), replace(hit, line=None))


MISSING = 'Traceback (most recent call last):\n  File "/srv/job/fit.py", line 40, in <module>\n    feed(batch["labels"])\nKeyError: \'labels\''
NO_ROOM = MISSING.replace("KeyError: 'labels'", "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.").replace("<module>", "feed")


def each(before: str, text: str) -> str:
    return "".join(f"{before}{line}\n" for line in text.splitlines())


def counted(before: str, *numbers: int) -> str:
    return "".join(f"{before}step {n} loss 0.{n:03d}\n" for n in numbers)


def verdict_on(folder: Path, log: str, name: str = "train.log") -> Verdict:
    path = folder / name
    path.write_text(log, "utf-8")
    return judge_logs([str(path)]).verdict


def passed_over(verdict: Verdict) -> list[str]:
    return [n.what.rpartition("/")[2] for n in verdict.not_examined if n.why.startswith("passed over")]


@pytest.mark.parametrize("others", ["[rank0]: ", "", "(Worker pid=801) "])
@pytest.mark.parametrize("who", ["[rank2]: ", "(Worker pid=812) "])
def test_other_ranks_do_not_tell_that_one_went_on(tmp_path, who, others):
    log = counted(others, *range(100)) + each(who, MISSING) + counted(others, *range(100, 150))
    primary = verdict_on(tmp_path, log).primary
    assert primary is not None and primary.cause == "rank-exception" and primary.says.endswith("KeyError: 'labels' at /srv/job/fit.py:40 in <module>")
    # One more step is not enough: the lines of two writers may cross.
    assert verdict_on(tmp_path, log + counted(who, 100)).primary is not None


@pytest.mark.parametrize("who", ["[rank2]: ", "(Worker pid=812) "])
def test_its_own_steps_do(tmp_path, who):
    log = counted("[rank0]: ", *range(100)) + each(who, MISSING)
    verdict = verdict_on(tmp_path, log + "".join(counted(w, n) for n in range(100, 150) for w in ("[rank0]: ", who)))
    assert verdict.primary is None and passed_over(verdict) == ["train.log:104 KeyError: 'labels'"]


def test_the_lines_of_its_own_log_do(tmp_path):
    log = each("", MISSING) + "".join(f"reading shard {n}\n" for n in range(50))
    assert verdict_on(tmp_path, log, "rank2.log").primary is None
    assert verdict_on(tmp_path, each("[rank2]: ", MISSING) + "".join(f"reading shard {n}\n" for n in range(50))).primary is not None


def test_what_was_passed_over_is_said(tmp_path):
    texts = ("KeyError: 'labels'", "ValueError: bad", "KeyError: 'labels'", "OSError: lost", "app.errors.ClientError: " + 90 * "x", "TypeError: none")
    log = "".join(each("", MISSING.replace("KeyError: 'labels'", text)) + counted("", n) for n, text in enumerate(texts))
    verdict = verdict_on(tmp_path, log + counted("", *range(100, 150)))
    assert verdict.primary is None and not any(n.unread for n in verdict.not_examined)
    told = ["train.log:4 KeyError: 'labels'", "train.log:9 ValueError: bad", "train.log:19 OSError: lost"]
    assert passed_over(verdict) == [*told, "2 more of the kind"]
    found = verdict_on(tmp_path, log)
    assert found.primary is not None and not passed_over(found)


def test_of_a_long_one_the_beginning_is_said(tmp_path):
    verdict = verdict_on(tmp_path, each("", MISSING.replace("'labels'", 90 * "x")) + counted("", *range(50)))
    assert passed_over(verdict) == [f"train.log:4 KeyError: {50 * 'x'}…"]


RETRYING = "WARNING fit: OOM at batch size 64, retrying with 32\n"


@pytest.mark.parametrize(
    ("told", "behind"),
    [
        (RETRYING + each("", NO_ROOM), counted("", *range(100, 300)) + "Training finished.\n"),
        (RETRYING + each("", NO_ROOM.replace("in feed", "in <module>")), counted("", *range(100, 300))),
        ("WARNING fit: retrying: CUDA out of memory. Tried to allocate 2.00 GiB.\n" + each("", NO_ROOM), counted("", *range(100, 300))),
        (each("", NO_ROOM), counted("", *range(100, 300))),
        (RETRYING + each("", NO_ROOM), counted("", 100, 101)),
        (each("[rank2]: ", NO_ROOM), "".join(counted(f"[rank{r}]: ", n) for n in range(100, 150) for r in (0, 2))),
    ],
)
def test_an_oom_that_was_survived_is_none(tmp_path, told, behind):
    verdict = verdict_on(tmp_path, counted("", *range(100)) + told + behind)
    assert verdict.primary is None
    assert [p for p in passed_over(verdict) if "torch.OutOfMemoryError" in p] == passed_over(verdict) != []


@pytest.mark.parametrize(
    ("told", "behind", "standing"),
    [
        # It begins where the process does, and nobody logged it.
        (each("", NO_ROOM.replace("in feed", "in <module>")), counted("", *range(100, 300)), "possible"),
        # Whose steps these are nothing tells.
        (counted("[rank0]: ", 99) + RETRYING + each("", NO_ROOM), counted("", *range(100, 300)), "possible"),
        (RETRYING + each("", NO_ROOM), "".join(f"reading shard {n}\n" for n in range(50)), "possible"),
        # Those of others.
        (each("[rank2]: ", NO_ROOM), counted("[rank0]: ", *range(100, 300)), "established"),
        # Right above one that was survived.
        (each("[rank1]: ", NO_ROOM) + each("[rank2]: ", NO_ROOM), counted("[rank2]: ", *range(100, 150)), "established"),
        # It came again, and nothing more.
        (RETRYING + each("", NO_ROOM) + counted("", 100) + RETRYING + each("", NO_ROOM), "", "established"),
    ],
)
def test_an_oom_that_may_not_have_been_survived_is_told(tmp_path, told, behind, standing):
    primary = verdict_on(tmp_path, counted("", *range(99)) + told + behind).primary
    assert primary is not None and (primary.cause, primary.standing) == ("gpu-oom", standing)
