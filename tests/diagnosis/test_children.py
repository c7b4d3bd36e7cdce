"""Child processes in the records of a hang: which of them is named, with its line, its pid and its index."""

from __future__ import annotations

import pytest
from tests.chinese import zh
from tests.diagnosis.test_hangs import waiter

from unhang.records.incident import ChildRecord

WAITS = "multiprocessing/popen_fork.py"
# What a rank and its children do, and: cause, where, what the sentence has in it, what it has not.
CASES = {
    "a worker in the data set": (
        lambda lab: lab.in_loader(lab.user(70, "train")),
        lambda lab: [
            (ChildRecord(pid=71, state="S", worker=0), lab.worker(lab.std("multiprocessing/queues.py", "get"))),
            (ChildRecord(pid=72, state="S", worker=1, index="53"), lab.worker(lab.torch("utils/data/_utils/fetch.py", 54, "fetch"), data(lab))),
        ],
        ("dataloader-deadlock", "data.py:48 in __getitem__", ("worker 1 (pid 72)", "index 53"), ("71",)),
    ),
    "workers without work": (
        lambda lab: lab.in_loader(lab.user(70, "train")),
        lambda lab: [(ChildRecord(pid=71, state="S", worker=0), lab.worker(lab.std("multiprocessing/queues.py", "get")))],
        ("dataloader-deadlock", "train.py:70 in train", ("waiting for a worker",), ("71",)),
    ),
    "a rank that reads its data itself, beside another loader's worker": (
        lambda lab: lab.in_loader(lab.user(70, "train"), inner=lab.user(9, "__getitem__", file="own.py")),
        lambda lab: [(ChildRecord(pid=72, state="S", worker=1, index="53"), lab.worker(data(lab)))],
        ("dataloader-deadlock", "own.py:9 in __getitem__", ("stuck in its data loader",), ("72", "53")),
    ),
    "a child that is waited for": (
        lambda lab: (lab.user(70, "train"), lab.std("multiprocessing/process.py", "join"), lab.std(WAITS, "wait")),
        lambda lab: [(ChildRecord(pid=72, state="S"), lab.forked(data(lab)))],
        ("process-stuck", "train.py:70 in train", ("child process 72 stands at data.py:48 in __getitem__",), ()),
    ),
    "a child that has failed": (
        lambda lab: (lab.user(70, "train"), lab.std("multiprocessing/pool.py", "get")),
        lambda lab: [(ChildRecord(pid=72, state="Z", exitcode=-9), ()), (ChildRecord(pid=73, state="S"), lab.forked(data(lab)))],
        ("process-stuck", "train.py:70 in train", ("child process 72 was killed by SIGKILL",), ("73",)),
    ),
    "children that nobody waits for": (
        lambda lab: (lab.user(70, "train"), lab.std("threading.py", "wait")),
        lambda lab: [(ChildRecord(pid=72, state="Z", exitcode=1), ()), (ChildRecord(pid=73, state="S"), lab.forked(data(lab)))],
        ("process-stuck", "train.py:70 in train", (), ("72", "73")),
    ),
}


def data(lab):
    return lab.user(48, "__getitem__", file="data.py", code="self.lock.acquire()")


@pytest.mark.parametrize("case", CASES)
def test_children(build, lab, case):
    frames, children, (cause, where, told, untold) = CASES[case]
    found = waiter(build(), lab).rank(1, frames=frames(lab), entries=lab.steps(12), children=children(lab)).judge().primary
    assert (found.cause, found.where, found.ranks) == (cause, where, (1,))
    for says in (found.says, zh(found.says)):
        assert not [t for t in untold if t in says], says
    assert not [t for t in told if t not in found.says], found.says


def test_a_worker_is_in_the_evidence_with_its_index(build, lab):
    _, children, _ = CASES["a worker in the data set"]
    found = waiter(build(), lab).rank(1, frames=lab.in_loader(lab.user(70, "train")), entries=lab.steps(12), children=children(lab)).judge().primary
    first = found.evidence[0]
    assert first.source == "incidents/1/stacks/rank1-72.json"
    assert all(part in text for text in (first.text, zh(first.text)) for part in ("worker 1", "pid 72", "53", "data.py", "self.lock.acquire()"))


def test_a_busy_worker_is_what_a_slow_rank_executes(build, lab):
    frames, children, _ = CASES["a worker in the data set"]
    b = waiter(build(), lab).rank(1, frames=frames(lab), entries=lab.steps(12), activity=lab.BUSY, children=children(lab))
    found = b.judge("straggler").primary
    assert (found.cause, found.where) == ("straggler-timeout", "data.py:48 in __getitem__") and "worker 1 (pid 72)" in found.says


@pytest.mark.parametrize(
    ("said", "cause", "standing", "how"),
    [
        ("DataLoader worker (pid 72) exited unexpectedly with exit code 3. Details are lost", "loader-worker-died", "likely", "exit code 3"),
        ("DataLoader worker (pid(s) 72) exited unexpectedly", "loader-worker-died", "possible", "without a word"),
        ("DataLoader worker (pid 72) is killed by signal: Segmentation fault. ", "loader-worker-died", "established", "Segmentation fault"),
        ("DataLoader worker (pid 72) is killed by signal: Killed. ", "host-oom-or-killed", "established", "SIGKILL"),
    ],
)
@pytest.mark.parametrize("by_signal", [False, True])
def test_a_worker_that_died(build, lab, said, cause, standing, how, by_signal):
    handler = (lab.torch("utils/data/_utils/signal_handling.py", 73, "handler"),) if by_signal else ()
    raised = lab.Raised(type="RuntimeError", text=said, frames=(lab.user(70, "train"), *handler), at_s=30.0)
    b = build().rank(0, raised=lab.lost(), entries=lab.steps(12)).rank(1, raised=raised, entries=lab.steps(12))
    found = b.judge("failure").primary
    assert (found.cause, found.standing, found.ranks) == (cause, standing, (1,))
    assert found.where == (None if by_signal else "train.py:70 in train")
    assert how in found.says and "72" in found.says


def test_a_worker_that_the_oom_killer_took(build, lab):
    raised = lab.Raised(type="RuntimeError", text="DataLoader worker (pid 72) is killed by signal: Killed. ", frames=(), at_s=30.0)
    kernel = "[88123.41] Out of memory: Killed process 72 (pt_data_worker) total-vm:91234567kB, anon-rss:65012345kB\n"
    found = build().rank(0, raised=lab.lost()).rank(1, raised=raised).dmesg(kernel).judge("failure").primary
    assert found.cause == "host-oom-or-killed" and found.remedies[0].id == "less-memory"
    assert any("Killed process 72" in e.text for e in found.evidence)
