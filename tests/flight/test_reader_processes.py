"""Dumps from strangers: whatever is in one, `unhang why` leaves it out in bounded time and memory, says so, and judges the others as usual."""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import pickle
import resource
import select
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from tests.flight import jobs

from unhang.errors import RecordError
from unhang.flight import reader_processes
from unhang.flight.reader_processes import extend_budget, map_bounded, run_bounded

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="readers are forked on Linux only")

# Far more than any of this takes, on a machine that does a dozen other things.
WAIT_S = 120
TEXT = "x" * 1_000_000


def doubled(last: bytes) -> bytes:
    """A pickle of a tuple that is twice in the next one, 40 times, and of what is made of the last."""
    steps = b"".join(b"h%ch%c\x86q%c" % (i, i, i + 1) for i in range(40))
    return b"\x80\x02}(X\x09\0\0\0pg_config}X\x07\0\0\0entries]X\x01\0\0\0z(X\x01\0\0\0aq\0" + steps + last + b"tu."


def one_hash(count: int) -> bytes:
    """Keys of a dict that all have the hash 0, with their values."""
    return b"".join(b"\x8a\x0a" + (n * ((1 << 61) - 1)).to_bytes(10, "little") + b"N" for n in range(count))


def entry(**fields):
    return jobs.entry(0, ("0", "default_pg"), 1, "all_reduce", 4, 20, "started", t=1) | fields


def dumped(entries, **fields) -> bytes:
    return pickle.dumps(jobs.dump(entries) | fields, protocol=4)


def nested() -> list[object]:
    lists: list[object] = [[1]]
    for _ in range(40):
        lists = [lists, lists]
    return lists


OVER, REFUSED, MANY = "left out: it took more than", "refused", "more entries than a file of its size"
# With what is said of it.
HOSTILE = {
    "tuples as a key": (lambda: doubled(b"}h(Ns"), OVER),
    "tuples in a set": (lambda: doubled(b"\x8f(h(\x90"), OVER),
    "tuples in a frozenset": (lambda: doubled(b"(h(\x91"), OVER),
    "keys with one hash": (lambda: b"\x80\x02}(X\x09\0\0\0pg_config}X\x07\0\0\0entries}(" + one_hash(70_000) + b"uu.", OVER),
    "lists in lists as a group": (lambda: dumped([entry(process_group=nested())]), OVER),
    "a long name in many entries": (lambda: dumped([entry(collective_seq_id=n, profiling_name=TEXT) for n in range(2_000)]), OVER),
    "one entry many times": (lambda: dumped([entry()] * 200_000), MANY),
    "groups without end": (lambda: dumped([entry()], pg_config={str(n): {} for n in range(20_000)}), "more groups"),
    "dimensions without end": (lambda: dumped([entry(input_sizes=[[10**18] * 100_000])]), "none of its entries is one"),
    "numbers of 4,000 digits": (lambda: json.dumps(jobs.dump([entry(input_sizes=[[10**3999] * 250])])).encode(), "none of its entries is one"),
    "tensors without end": (lambda: dumped([entry(input_sizes=[[10**18]] * 50_000)]), "none of its entries is one"),
    "a long whole number": (lambda: dumped([entry(collective_seq_id=1 << 4_000_000)]), "none of its entries is one"),
    "packed": (lambda: gzip.compress(doubled(b"}h(Ns") + bytes(20_000_000), 1), OVER),
    "room for 4 GB": (lambda: b"\x80\x04}(X\x07\0\0\0entries]X\x09\0\0\0pg_configNr\xff\xff\xff\x0fu.", REFUSED),
}


def test_each_is_left_out_and_the_others_are_judged(tmp_path):
    for rank, raw in jobs.run(jobs.Plan(world=3, steps=4), {1: [*jobs.Plan(world=3, steps=4).calls(1)[:9], None]}).items():
        (tmp_path / f"nccl_trace_rank_{rank}").write_bytes(pickle.dumps(raw, protocol=2))
    for n, (make, _) in enumerate(HOSTILE.values(), 100):
        (tmp_path / f"nccl_trace_rank_{n}").write_bytes(make())
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        [sys.executable, "-m", "unhang", "why", "--json", str(tmp_path)], capture_output=True, text=True, timeout=WAIT_S, check=False
    )
    spent = resource.getrusage(resource.RUSAGE_CHILDREN)
    verdict = json.loads(done.stdout)
    assert done.returncode == 1 and verdict["primary"]["ranks"] == [1], done.stdout + done.stderr
    said = {Path(n["what"]).name: n["why"] for n in verdict["not_examined"]}
    for n, (kind, (_, why)) in enumerate(HOSTILE.items(), 100):
        assert why in said.get(f"nccl_trace_rank_{n}", ""), (kind, said)
    assert not said.keys() & {f"nccl_trace_rank_{rank}" for rank in range(3)}
    # A second or so for each of those that take all they may.
    assert spent.ru_utime - before.ru_utime < 30
    assert spent.ru_maxrss < max(1024 * 1024, before.ru_maxrss + 1)


@pytest.fixture
def forking(monkeypatch):
    """A runner of tests may have threads of its own."""
    monkeypatch.setattr(threading, "active_count", lambda: 1)


def test_nothing_else_is_left_out_after_many_that_are_slow(monkeypatch, forking):
    """What each gets becomes less, and never less than a dump takes."""
    monkeypatch.setattr(reader_processes, "_FULL_BUDGETS", 1)

    def task(n: int) -> int:
        if n == 3:
            raise RecordError("it is none")
        while n % 2:
            pass
        return n

    found = list(map_bounded(task, range(8), [0] * 8, processes=2))
    assert found[::2] == [0, 2, 4, 6] and str(found[3]) == "it is none"
    assert all(isinstance(e, RecordError) and "CPU time" in str(e) for e in (*found[1:3:2], *found[5::2]))


def test_reads_of_one_file_share_its_budget(forking, monkeypatch):
    """However often it is read again, and also if it is packed."""
    monkeypatch.setattr(reader_processes, "_BASE_S", 1.5)
    left_s: dict[str, float] = {}

    def task(name: str) -> float:
        extend_budget(16)
        until = time.process_time() + 1
        while time.process_time() < until:
            pass
        return signal.getitimer(signal.ITIMER_PROF)[0]

    assert run_bounded(task, "a", 1, left_s=left_s) > 0 and 0 < left_s["a"] < 1
    for _ in range(3):
        with pytest.raises(RecordError, match="CPU time"):
            run_bounded(task, "a", 1, left_s=left_s)
    assert run_bounded(task, "b", 1, left_s=left_s) > 0, "another file has its own"


def test_a_fault_of_ours_is_raised_here_and_nothing_is_run_here(forking):
    here = os.getpid()

    def task(n: int) -> int:
        assert os.getpid() != here, "without a budget"
        return 1 // n

    with pytest.raises(RuntimeError, match=r"^ZeroDivisionError") as raised:
        list(map_bounded(task, [1, 0], [0, 0]))
    assert "return 1 // n" in str(raised.value.__cause__)


def test_nothing_is_run_here_once_threads_have_come_or_no_process_is_left(forking, monkeypatch):
    here, real, forks = os.getpid(), os.fork, []

    def fork() -> int:
        forks.append(1)
        if len(forks) > 1:
            raise BlockingIOError
        monkeypatch.setattr(threading, "active_count", lambda: 2)
        return real()

    def task(n: int) -> int:
        assert os.getpid() != here, "without a budget"
        return os._exit(7) if n == 1 else n

    monkeypatch.setattr(os, "fork", fork)
    first, ended, left = map_bounded(task, range(3), [0] * 3)
    assert first == 0 and "exit code 7" in str(ended) and "no reader process" in str(left)


def test_what_is_unpacked_extends_the_time_by_far_less_than_what_is_read(forking):
    def task(size: int) -> float:
        extend_budget(size)
        return signal.getitimer(signal.ITIMER_PROF)[0]

    packed, *unpacked = (run_bounded(task, size, 1_000_000) for size in (0, 16_000_000, 10**9))
    assert packed < min(unpacked) and max(unpacked) < 2 * packed


def test_a_limit_of_the_caller_is_not_raised(forking):
    def task(size: int) -> int:
        extend_budget(size)
        return resource.getrlimit(resource.RLIMIT_AS)[0]

    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    low = 1 << 40
    assert low < run_bounded(task, 1 << 36, 1 << 36)
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (low, hard))
    try:
        assert run_bounded(task, 1 << 36, 1 << 36) == low
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def test_readers_end_where_the_kernel_reaps_them(forking, tmp_path):
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        assert list(map_bounded(lambda n: n, range(3), [0] * 3, processes=2)) == [0, 1, 2]
        (tmp_path / "nccl_trace_rank_0").write_bytes(dumped([entry()]))
        command = [sys.executable, "-m", "unhang", "why", str(tmp_path)]
        # What is ignored is inherited.
        done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S, check=False)
        assert done.returncode in (0, 1), done.stderr
    finally:
        signal.signal(signal.SIGCHLD, before)


def test_a_bar_on_a_terminal_keeps_the_budgets(tmp_path):
    """A thread that draws it would forbid to fork, and the next dump would be read without one."""
    for rank in range(4):
        (tmp_path / f"nccl_trace_rank_{rank}").write_bytes(doubled(b"}h(Ns"))
    ours, theirs = os.openpty()
    environ = {k: v for k, v in os.environ.items() if k != "NO_COLOR"} | {"TERM": "xterm-256color"}
    command = [sys.executable, "-m", "unhang", "why", str(tmp_path)]
    with (
        (tmp_path / "told").open("w+") as told,
        subprocess.Popen(command, stdout=told, stderr=theirs, env=environ, start_new_session=True) as process,
    ):
        os.close(theirs)
        drawn, until = b"", time.monotonic() + WAIT_S
        try:
            with contextlib.suppress(OSError):
                while select.select([ours], [], [], max(0.0, until - time.monotonic()))[0]:
                    drawn += os.read(ours, 65536)
            assert process.wait(1) in (0, 1, 2), drawn
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            os.close(ours)
    assert b"reading" in drawn


# Reads for an hour what is made to take as long.
SLOW = """
import sys
from unhang.flight import reader_processes
reader_processes._BASE_S = 3600.0
from unhang.cli.main import entry
entry()
"""


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_whoever_wants_it_to_end_does_not_wait(tmp_path, number, code):
    (tmp_path / "nccl_trace_rank_0").write_bytes(doubled(b"}h(Ns"))
    command = [sys.executable, "-c", SLOW, "why", str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True) as process:
        try:
            until = time.monotonic() + WAIT_S
            children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
            # What it reads with, which is in the call that does not end once it has used up CPU time.
            while not (readers := [c for c in children.read_text().split() if _ticks(c) > 20]):
                assert process.poll() is None and time.monotonic() < until
                time.sleep(0.02)
            process.send_signal(number)
            assert process.wait(WAIT_S) == code
            assert not any(Path(f"/proc/{reader}").exists() for reader in readers)
        finally:
            process.kill()


def _ticks(pid: str) -> int:
    """The CPU time of a process in its own code, in hundredths of a second."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11])
    except OSError:
        return 0
