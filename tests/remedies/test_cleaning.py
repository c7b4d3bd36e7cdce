"""Removal on the real /dev/shm: only our own segments, only those that nobody anywhere has, and nothing else."""

from __future__ import annotations

import fcntl
import mmap
import os
import subprocess
import sys
import time
from dataclasses import replace

import pytest

from unhang.facts import shm
from unhang.facts.host import Host
from unhang.remedies import cleaning

HOUR_AGO = time.time() - 3600
MARK = f"nccl-unhangtest{os.getpid()}"


@pytest.fixture
def segment():
    """Makes a segment in /dev/shm, an hour old; all are removed in the end."""
    made = []

    def make(name="", *, size=4096, age_s=3600.0):
        path = f"/dev/shm/{MARK}-{name or len(made)}"
        made.append(path)
        with open(path, "wb") as file:
            file.write(b"x" * size)
        os.utime(path, (time.time() - age_s,) * 2)
        return path

    yield make
    for path in made:
        if os.path.lexists(path):
            os.unlink(path)


def proposed(paths):
    return {s.path: s for s in cleaning.propose(shm.collect(Host())) if s.path in paths}


def gone(path):
    return not os.path.lexists(path)


def test_a_dead_segment_is_proposed_and_removed(segment):
    path = segment()
    step = proposed([path])[path]
    assert (step.outcome, step.size_bytes, step.why) == ("proposed", 4096, "")
    assert 3590 < step.age_s < 3700
    assert not gone(path)
    (done,) = cleaning.apply((step,))
    assert (done.outcome, gone(path)) == ("removed", True)


@pytest.fixture
def batch():
    """Makes what torch's file_system strategy makes: a file that nobody has open, with its maker in its name."""
    made = []

    def make(maker):
        path = f"/dev/shm/torch_{maker}_{os.getpid()}_{len(made)}"
        made.append(path)
        with open(path, "wb") as file:
            file.write(b"x" * 64)
        os.utime(path, (HOUR_AGO,) * 2)
        return path

    yield make
    for path in made:
        if os.path.lexists(path):
            os.unlink(path)


def test_a_batch_that_waits_in_a_queue_is_left(batch):
    path = batch(os.getpid())
    step = proposed([path])[path]
    assert step.outcome == "left" and f"process {os.getpid()}" in step.why and "may still hand it over" in step.why
    assert not gone(cleaning.apply((step,))[0].path)


def test_what_dead_loaders_left_goes(batch):
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait(30)
    path = batch(dead.pid)
    seen = shm.collect(Host())
    step = {s.path: s for s in cleaning.propose(seen)}[path]
    # A manager of somebody else's loaders keeps it, and so do processes that may be hidden.
    if next(s for s in seen.segments if path.endswith(s.name)).kept_by == ():
        assert (step.outcome, cleaning.apply((step,))[0].outcome, gone(path)) == ("proposed", "removed", True)
    else:
        assert (step.outcome, gone(path)) == ("left", False)


def test_what_a_process_has_mapped_is_left(segment):
    path = segment()
    with open(path, "r+b") as file:
        mapped = mmap.mmap(file.fileno(), 4096)
    step = proposed([path])[path]
    assert (step.outcome, step.why) == ("left", f"in use by process {os.getpid()}")
    # Even where /proc does not tell, as with processes of another PID namespace.
    (done,) = cleaning.apply((replace(step, outcome="proposed"),))
    assert (done.outcome, done.why, gone(path)) == ("refused", "a process has it open or mapped", False)
    mapped.close()
    (done,) = cleaning.apply((replace(step, outcome="proposed"),))
    assert done.outcome == "removed"


def test_what_was_opened_for_reading_only_is_left(segment):
    path = segment()
    with open(path, "rb"):
        (done,) = cleaning.apply((replace(proposed([path])[path], outcome="proposed"),))
    assert (done.outcome, gone(path)) == ("refused", False)


def test_young_ones_are_left(segment):
    path = segment(age_s=5)
    step = proposed([path])[path]
    assert (step.outcome, step.why) == ("left", "younger than 60 s: a job may be starting")
    (done,) = cleaning.apply((replace(step, outcome="proposed"),))
    assert (done.outcome, gone(path)) == ("refused", False)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another user")
def test_those_of_another_user_are_left_even_by_root(segment):
    path = segment()
    os.chown(path, 12345, 12345)
    step = proposed([path])[path]
    assert (step.outcome, step.owner) == ("left", "12345")
    (done,) = cleaning.apply((replace(step, outcome="proposed"),))
    assert (done.outcome, done.why, gone(path)) == ("refused", "it is no file of ours", False)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_without_privileges_ones_own_are_removed(segment):
    path = segment()
    os.chown(path, 12345, 12345)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.setresgid(12345, 12345, 12345)
            os.setresuid(12345, 12345, 12345)
            steps = tuple(s for s in cleaning.propose(shm.collect(Host())) if s.path == path)
            code = 0 if [s.outcome for s in cleaning.apply(steps)] == ["removed"] else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert gone(path)


def test_a_link_is_not_followed(segment, tmp_path):
    target = tmp_path / "precious"
    target.write_text("x")
    os.utime(target, (HOUR_AGO, HOUR_AGO))
    path = segment()
    step = proposed([path])[path]
    os.unlink(path)
    os.symlink(target, path)
    (done,) = cleaning.apply((step,))
    assert (done.outcome, target.exists(), os.path.lexists(path)) == ("refused", True, True)


def test_what_is_gone_meanwhile_and_what_is_left_stay_as_they_are(segment):
    path = segment()
    step = proposed([path])[path]
    os.unlink(path)
    left = replace(step, outcome="left", why="because")
    assert [(s.outcome, s.why) for s in cleaning.apply((step, left))] == [("refused", "it is gone already"), ("left", "because")]


@pytest.mark.parametrize("name", ["sem.backup-lock", "psm_5a1f20cc"])
def test_what_another_program_may_have_left_on_purpose_is_not_even_named(name):
    segment = shm.Segment(name=name, size_bytes=32, uid=os.geteuid(), owner=None, mode=0o600, age_s=9e9, mapped_by=())
    seen = replace(shm.collect(Host()), segments=(segment,))
    assert cleaning.propose(seen) == ()


def test_where_the_kernel_grants_no_leases_nothing_is_removed(segment, monkeypatch):
    path = segment()
    step = proposed([path])[path]
    real = fcntl.fcntl

    def refuses(file, command, *rest):
        if command == fcntl.F_SETLEASE:
            raise BlockingIOError(11, "Resource temporarily unavailable")
        return real(file, command, *rest)

    monkeypatch.setattr(fcntl, "fcntl", refuses)
    (done,) = cleaning.apply((step,))
    assert (done.outcome, gone(path)) == ("refused", False)
    assert "grants no leases" in done.why


@pytest.mark.skipif(
    os.geteuid() != 0 or subprocess.run(["unshare", "-pf", "true"], capture_output=True, check=False).returncode != 0,
    reason="a PID namespace needs root and unshare",
)
def test_from_another_pid_namespace_the_live_one_survives(segment):
    live, dead = segment("live"), segment("dead")
    code = (
        "import sys; from unhang.facts import shm; from unhang.facts.host import Host; from unhang.remedies import cleaning\n"
        "s = shm.collect(Host()); steps = tuple(x for x in cleaning.propose(s) if x.path in sys.argv[1:])\n"
        "print([x.mapped_by for x in s.segments if '/dev/shm/' + x.name in sys.argv[1:]])\n"
        "print({x.path: x.outcome for x in cleaning.apply(steps)})"
    )
    with open(live, "r+b") as file:
        mapped = mmap.mmap(file.fileno(), 4096)
    argv = ["unshare", "-p", "-f", "--mount-proc", sys.executable, "-c", code, live, dead]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.splitlines() == ["[None, None]", str({dead: "removed", live: "refused"})]
    mapped.close()
