"""Child processes of ranks: which are read, without touching them; and real runs whose loader workers block or die."""

from __future__ import annotations

import asyncio
import fcntl
import os
import subprocess
import sys
import time

import pytest

from unhang.facts.host import Host
from unhang.facts.processes import child
from unhang.launch import outside_view as children
from unhang.launch.outside_view import ChildReader, relevant
from unhang.records.rundir import RunDir
from unhang.records.stacks import main_thread

PARENT = """
import multiprocessing, os, signal, subprocess, sys, time

def works(index, secret):
    time.sleep(600)

def stops():
    os.kill(os.getpid(), signal.SIGSTOP)
    works(1, 2)

if __name__ == "__main__":
    fork = multiprocessing.get_context("fork")
    processes = [fork.Process(target=works, args=(53, "a secret"), daemon=True), fork.Process(target=stops, daemon=True)]
    for process in processes:
        process.start()
    sleep = subprocess.Popen(["sleep", "600"])
    # Not by multiprocessing, which asks those that it has started how they ended.
    ended = [os.fork() or os._exit(code) for code in (7, 0)]
    print(*(p.pid for p in processes), *ended, sleep.pid, flush=True)
    sys.stdin.readline()
    os.kill(processes[1].pid, signal.SIGKILL)
    sleep.kill()
"""


@pytest.fixture
def family(tmp_path):
    """A process whose children work, are stopped, have failed, have succeeded, and are no Python: its pid and theirs."""
    script = tmp_path / "parent.py"
    script.write_text(PARENT)
    parent = subprocess.Popen([sys.executable, str(script)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        pids = [int(pid) for pid in parent.stdout.readline().split()]
        states = dict(zip(pids, "STZZS", strict=True))
        deadline = time.monotonic() + 300
        while {pid: getattr(child(Host(), pid), "state", None) for pid in pids} != states:
            assert time.monotonic() < deadline, "the children did not come to where they belong"
            time.sleep(0.02)
        yield parent.pid, pids
    finally:
        parent.communicate(b"\n", timeout=300)


def read(pid):
    kept, found = {}, []
    missed = asyncio.run(ChildReader(Host(), lambda of, stacks: kept.setdefault(of, stacks) and f"stacks/{of}.json").read(1, pid, found, set()))
    return {c.pid: c for c in found}, kept, missed


def test_python_children_are_read_and_left_as_they_are(family):
    pid, (works, stops, failed, *_) = family
    assert {c.pid for c in relevant(Host(), pid)} == {works, stops, failed}
    found, kept, missed = read(pid)
    assert (found[failed].exitcode, found[works].exitcode, found[stops].state) == (7, None, "T")
    assert child(Host(), stops).state == "T" and set(found) == {works, stops, failed}
    if missed:
        pytest.skip(f"py-spy may not read processes here: {missed[0].why}")
    assert (set(kept), found[works].stacks) == ({works, stops}, f"stacks/{works}.json")
    assert [f.name for f in main_thread(kept[works])][-1] == "works" and "a secret" not in repr((found, kept))


def test_without_py_spy_it_is_said_once(family, monkeypatch):
    monkeypatch.setattr(children, "find_py_spy", lambda: None)
    found, kept, missed = read(family[0])
    assert (len(found), kept, [(m.what, m.why) for m in missed]) == (3, {}, [("child processes of rank 1", "py-spy is not installed")])


def test_a_reader_that_takes_too_long_keeps_what_it_has(family, monkeypatch):
    async def dump(*_):
        await asyncio.sleep(60)

    monkeypatch.setattr(children, "dump_by_py_spy", dump)
    monkeypatch.setattr(children, "TIMEOUT_S", 0.5)
    found, _, missed = read(family[0])
    assert [c.exitcode for c in found.values()] == [7] and "within 0.5 s" in missed[0].why


def test_of_many_the_most_relevant_are_read(family, monkeypatch):
    monkeypatch.setattr(children, "AT_MOST", 1)
    pid, (*_, failed, _, _) = family
    assert [c.pid for c in relevant(Host(), pid)] == [failed]


# Worker 1 of rank 1 is asked for samples 52 to 55 in one batch, and meets its fault at 53.
BODY = """
from torch.utils.data import DataLoader, Dataset

class Rows(Dataset):
    def __init__(self):
        self.lock = threading.Lock()
        self.lock.acquire()

    def __len__(self):
        return 400

    def __getitem__(self, index):
        if first and rank == 1 and index == 53:
            {fault}
        return torch.ones(4)

dist.init_process_group("gloo")
batches = iter(DataLoader(Rows(), batch_size=4, num_workers=2, persistent_workers=True))
train(30, lambda step: next(batches))
dist.destroy_process_group()
"""


def line_of(launcher, body: str, text: str) -> int:
    return max(i for i, line in enumerate(launcher.script(body).read_text().splitlines(), 1) if text in line)


@pytest.mark.torch
@pytest.mark.integration
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("fault", "standing"),
    [
        pytest.param("self.lock.acquire()", "established", id="lock"),
        # Somebody may still open its other end.
        pytest.param("open(os.environ['FIFO']).read()", "likely", id="fifo"),
    ],
)
def test_a_worker_that_blocks_is_named(launcher, fault, standing):
    fifo = launcher.tmp_path / "fifo"
    os.mkfifo(fifo)
    body = BODY.replace("{fault}", fault)
    run = launcher.train(body, "--hang-after", "5", "--on-failure", "abort", env={"FIFO": str(fifo)})
    found = run.primary
    assert (found["cause"], found["ranks"], found["standing"]) == ("dataloader-deadlock", [1], standing)
    assert found["where"] == f"train.py:{line_of(launcher, body, fault)} in __getitem__"
    incident = RunDir(run.path).read_incident(1)
    by_worker = {c.worker: c for c in incident.ranks[1].children if c.worker is not None}
    assert by_worker[1].index == "53" and f"worker 1 (pid {by_worker[1].pid})" in found["says"] and "index 53" in found["says"]
    assert (by_worker[0].index, incident.ranks[0].children) == (None, ())
    assert (found["evidence"][0]["source"], fault in found["evidence"][0]["text"]) == (by_worker[1].stacks, True)
    # A lock that was held when the worker was forked; a FIFO that nobody opens to write.
    waited = by_worker[1].wait
    assert waited and (waited.kind, waited.what) == (("fifo", str(fifo)) if "FIFO" in fault else ("mutex", None)) and waited.ends is ("FIFO" in fault)
    assert found["remedies"][0]["id"] == ("serve-the-pipe" if "FIFO" in fault else "release-the-lock")
    # Of all variables only the index is kept.
    assert not [p for p in (run.path / "incidents/1").rglob("*.json") if "base_seed" in p.read_text()]


@pytest.mark.torch
@pytest.mark.integration
@pytest.mark.timeout(900)
def test_a_rank_names_its_child_and_who_holds_its_file(launcher):
    """Rank 1 waits for a lock that another program holds, rank 2 for a child; both are named with pid and command."""
    body = """
import fcntl, subprocess
def at(step):
    if first and step == 20:
        if rank == 1:
            fcntl.flock(open("cache.lock", "w"), fcntl.LOCK_EX)
        if rank == 2:
            subprocess.run(["sleep", "600"])

dist.init_process_group("gloo")
train(30, at)
dist.destroy_process_group()
"""
    path = launcher.tmp_path / "cache.lock"
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        run = launcher.train(body, "--hang-after", "5", "--on-failure", "abort", ranks=3)
    assert (run.primary["cause"], run.primary["ranks"]) == ("process-stuck", [1, 2])
    told = [e["text"] for e in run.primary["evidence"]]
    assert any("rank 1: " in t and str(path) in t and f"process {os.getpid()} (" in t for t in told), told
    assert any("rank 2: " in t and "(sleep 600)" in t for t in told), told


@pytest.mark.torch
@pytest.mark.integration
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("fault", "cause", "standing", "how"),
    [
        ("os._exit(3)", "loader-worker-died", "likely", "exit code 3"),
        ("os.kill(os.getpid(), signal.SIGKILL)", "host-oom-or-killed", "established", "SIGKILL"),
    ],
)
def test_a_worker_that_died_is_told_with_how_it_ended(launcher, fault, cause, standing, how):
    body = BODY.replace("{fault}", fault)
    found = launcher.train(body, "--hang-after", "5", "--on-failure", "abort").primary
    assert (found["cause"], found["ranks"], found["standing"]) == (cause, [1], standing)
    # torch raises in a signal handler, wherever the rank happens to be.
    assert found["where"] in (None, f"train.py:{line_of(launcher, body, 'next(batches)')} in <lambda>")
    assert how in found["says"]
