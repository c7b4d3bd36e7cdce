"""What a blocked rank or worker waits in, by the kernel: the holder, the file and the child are named, and come first in what helps."""

from __future__ import annotations

import dataclasses

from tests.chinese import zh
from tests.diagnosis.test_hangs import waiter
from tests.tables import for_each

from unhang.knowledge import catalogue
from unhang.model import Wait
from unhang.records.incident import ChildRecord

CAUSE = catalogue.load()["process-stuck"]

HELD = {"kind": "file-lock", "what": "/data/cache.lock", "holder": 4711, "command": "python build.py"}
# A wait: what the sentence names of it, the first remedy, and its command.
CASES = {
    "a lock": (HELD, ("/data/cache.lock", "4711", "python build.py"), "see-the-holder", "ps -o pid,stat,etime,args -p 4711"),
    "a lock that a rank holds": ({**HELD, "holder": 4000}, ("/data/cache.lock", "rank 0", "4000"), "see-the-holder", None),
    "a lock of nobody that is seen": ({**HELD, "holder": None, "command": None}, ("/data/cache.lock",), "bound-the-wait", None),
    "a child": ({"kind": "child", "holder": 4712, "command": "sleep 100000"}, ("4712", "sleep 100000"), "bound-the-child", None),
    "a pipe": ({"kind": "pipe", "holder": 4711, "command": "cat"}, ("4711", "cat"), "see-the-holder", None),
    "a child without a way out": ({"kind": "poll", "holder": 4711, "command": "python", "ends": False}, ("4711",), "release-the-lock", None),
    "a pipe of its own": ({"kind": "pipe", "ends": False}, (), "serve-the-pipe", None),
    "a FIFO": ({"kind": "fifo", "what": "/data/fifo"}, ("/data/fifo",), "serve-the-pipe", None),
    "a socket": ({"kind": "socket", "what": "10.0.0.7:443"}, ("10.0.0.7:443",), "bound-the-wait", None),
    "a dead lock": ({"kind": "mutex", "ends": False}, (), "release-the-lock", None),
    "a live lock": ({"kind": "mutex"}, (), "bound-the-wait", None),
    "a semaphore": ({"kind": "semaphore"}, (), "bound-the-wait", None),
    "a terminal": ({"kind": "terminal", "what": "/dev/pts/3"}, ("/dev/pts/3",), "bound-the-wait", None),
    "a file": ({"kind": "file", "what": "/data/x"}, ("/data/x",), "bound-the-wait", None),
}


def stuck(build, lab, **wait):
    """A rank that waits in this, in user code, while another one waits for it."""
    return waiter(build(), lab).rank(1, frames=(lab.user(33, "load"),), entries=lab.steps(12), activity=lab.blocked(**wait))


@for_each("case", CASES)
def test_a_rank_names_what_it_waits_in(build, lab, case):
    wait, named, remedy, command = CASES[case]
    found = stuck(build, lab, **wait).judge().primary
    # Something outside may end most waits.
    standing = "established" if wait.get("ends") is False else "likely"
    assert (found.cause, found.standing, found.ranks, found.where) == ("process-stuck", standing, (1,), "train.py:33 in load")
    for says in (found.says, zh(found.says)):
        assert not [part for part in named if part not in says], says
    assert "look-inside" not in [r.id for r in found.remedies] and found.remedies[0].id == remedy
    assert command in (None, found.remedies[0].command)
    # A command for a process that nobody knows is none.
    assert wait.get("holder") or "PID" not in str([r.command for r in found.remedies])


@for_each("case", CASES)
def test_a_worker_and_a_data_set_name_what_they_wait_in(build, lab, case):
    wait, named, remedy, _ = CASES[case]
    data = lab.user(48, "__getitem__", file="data.py")
    worker = ChildRecord(pid=72, state="S", worker=1, index="53", wait=Wait(**wait))
    by_worker = waiter(build(), lab).rank(
        1, frames=lab.in_loader(lab.user(70, "train")), entries=lab.steps(12), children=[(worker, lab.worker(data))]
    )
    by_itself = waiter(build(), lab).rank(1, frames=lab.in_loader(lab.user(70, "train"), inner=data), activity=lab.blocked(**wait))
    for found in (by_worker.judge().primary, by_itself.judge().primary):
        assert (found.cause, found.where) == ("dataloader-deadlock", "data.py:48 in __getitem__")
        for says in (found.says, zh(found.says)):
            assert not [part for part in named if part not in says], says
        assert found.remedies[0].id == ("bound-the-read" if remedy == "bound-the-wait" else remedy)


def test_what_is_not_known_is_looked_for(build, lab):
    for activity in (lab.IDLE, lab.blocked("poll", timed=True)):
        found = waiter(build(), lab).rank(1, frames=(lab.user(33, "load"),), entries=lab.steps(12), activity=activity).judge().primary
        assert found.remedies[0].id == "look-inside"


def test_a_sleep_is_one_by_the_kernel(build, lab):
    assert stuck(build, lab, kind="sleep", timed=True).judge().primary.remedies[0].id == "meant-to-sleep"


def test_ranks_that_wait_in_different_things_are_not_told_to_wait_in_one(build, lab):
    b = stuck(build, lab, **HELD)
    b.rank(2, frames=(lab.user(33, "load"),), entries=lab.steps(12), activity=lab.blocked("child", holder=4712, command="sleep 9"))
    b.ranks = [dataclasses.replace(r, world_size=3) for r in b.ranks]
    found = b.judge().primary
    told = [e.text for e in found.evidence]
    assert found.ranks == (1, 2) and "4711" not in found.says
    assert any("rank 1: " in t and "4711" in t for t in told) and any("rank 2: " in t and "4712" in t for t in told)


def test_a_child_is_never_told_to_be_ended(build, lab):
    assert CAUSE.remedy("bound-the-child").command is None
