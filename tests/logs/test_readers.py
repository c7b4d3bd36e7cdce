"""Work shared out: to processes where they can be had, to threads elsewhere, with equal results, and nobody is left behind."""

from __future__ import annotations

import multiprocessing
import multiprocessing.synchronize
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import wait
from pathlib import Path

import pytest

from unhang.errors import RecordError, UnhangError
from unhang.logs import Needles, Signature, readers
from unhang.logs.readers import Readers

NEEDLES = Needles([Signature(needle="needle")])
SOURCE = Path(readers.__file__).parents[3]
forked = pytest.mark.skipif(sys.platform != "linux", reason="processes are forked on Linux only")


@pytest.fixture(autouse=True)
def alone_on_two_cores(monkeypatch):
    """Threads that other tests have left are none of the caller's."""
    monkeypatch.setattr(readers, "cores", lambda: 2)
    monkeypatch.setattr(threading, "active_count", lambda: 1)


def told(needles, stop, word):
    return os.getpid(), word, stop(), [s.needle for s in needles.signatures[0]]


def refused(needles, stop):
    raise RecordError("cannot read it", cause="it is gone", hint="look")


def ended(needles, stop):
    assert multiprocessing.parent_process() is not None, "this is the test itself"
    os.kill(os.getpid(), signal.SIGKILL)


def until_stopped(needles, stop, path):
    open(path, "w").close()
    while not stop():
        time.sleep(0.01)
    os.unlink(path)


def deaf(needles, stop, path):
    Path(path).write_text("reading")
    time.sleep(30)
    Path(path).write_text("read")


@forked
def test_processes_have_the_needles(tmp_path):
    with Readers(NEEDLES, parallel=True) as group:
        results = [group.result(group.submit(told, n)) for n in range(4)]
    assert [r[1:] for r in results] == [(n, False, ["needle"]) for n in range(4)]
    assert os.getpid() not in {r[0] for r in results} and not multiprocessing.active_children()


@forked
def test_an_error_comes_back_whole():
    with Readers(NEEDLES, parallel=True) as group, pytest.raises(RecordError, match="cannot read it") as error:
        group.result(group.submit(refused))
    assert (error.value.cause, error.value.hint) == ("it is gone", "look")


@forked
def test_a_process_that_is_killed_is_told():
    with Readers(NEEDLES, parallel=True) as group, pytest.raises(UnhangError, match="ended from outside"):
        group.result(group.submit(ended))
    assert not multiprocessing.active_children()


@forked
def test_whoever_reads_is_stopped_with_us(tmp_path):
    mark = tmp_path / "reading"
    with Readers(NEEDLES, parallel=True) as group:
        group.submit(until_stopped, str(mark))
        limit = time.monotonic() + 20
        while not mark.exists() and time.monotonic() < limit:
            time.sleep(0.01)
        assert mark.exists()
    assert not mark.exists() and not multiprocessing.active_children()


@forked
def test_an_error_of_ours_waits_for_nobody(tmp_path):
    """An interrupt, say: who reads looks at `stop` only between blocks, and one may take long."""
    mark = tmp_path / "reading"
    with pytest.raises(KeyboardInterrupt), Readers(NEEDLES, parallel=True) as group:
        group.submit(deaf, str(mark))
        limit = time.monotonic() + 20
        while not mark.exists() and time.monotonic() < limit:
            time.sleep(0.01)
        raise KeyboardInterrupt
    assert not multiprocessing.active_children() and mark.read_text() == "reading"


def refuse_a_fork(monkeypatch, number):
    real, forks = os.fork, []

    def fork():
        forks.append(1)
        if len(forks) == number:
            raise OSError(11, "Resource temporarily unavailable")
        return real()

    monkeypatch.setattr(os, "fork", fork)


def no_semaphores(monkeypatch):
    def none(*_):
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(multiprocessing.synchronize._multiprocessing, "SemLock", none)


def no_thread_for_the_queue(monkeypatch):
    """Started by a thread of the pool's own, which dies of it: nobody would ever answer."""
    real = threading.Thread.start

    def start(thread):
        if thread.name.startswith("QueueFeeder"):
            raise RuntimeError("can't start new thread")
        real(thread)

    monkeypatch.setattr(threading.Thread, "start", start)
    monkeypatch.setattr(readers, "_START_S", 1.0)


def no_ctypes(monkeypatch):
    monkeypatch.setitem(sys.modules, "ctypes", None)


WITHOUT = {
    "no fork": lambda m: refuse_a_fork(m, 1),
    "one fork": lambda m: refuse_a_fork(m, 2),
    "semaphores": no_semaphores,
    "queue": no_thread_for_the_queue,
    "ctypes": no_ctypes,
}


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("without", WITHOUT)
def test_threads_do_it_where_no_process_can_be_had(monkeypatch, without):
    WITHOUT[without](monkeypatch)
    with Readers(NEEDLES, parallel=True) as group:
        assert group.result(group.submit(told, "x")) == (os.getpid(), "x", False, ["needle"])
    assert not multiprocessing.active_children()


def test_we_do_it_where_no_thread_can_be_had(monkeypatch):
    def none(thread):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", none)
    with Readers(NEEDLES, parallel=True) as group:
        assert group.result(group.submit(told, "x")) == (os.getpid(), "x", False, ["needle"])
    assert not multiprocessing.active_children()


@forked
def test_a_process_that_is_gone_before_the_next_log_is_told():
    with Readers(NEEDLES, parallel=True) as group:
        # Not asked for in a loop without a pause: the pool's own thread would read wake-ups for as long as they come.
        assert wait([group.submit(ended)], timeout=20).done
        with pytest.raises(UnhangError, match="ended from outside"):
            group.submit(told, "x")


@forked
def test_ctrl_c_while_they_are_started(tmp_path):
    """Sent to all of the group as soon as the first is there, as a terminal does: one way out, and nothing on the screen."""
    code = f"""
import os, signal, sys
sys.path.insert(0, {str(SOURCE)!r})
from unhang.logs import Needles, Signature, readers
readers.cores = lambda: 4
signal.signal(signal.SIGINT, lambda *_: sys.exit(130))
needles, real, delay = Needles([Signature(needle="needle")]), os.fork, int(sys.argv[1])
def fork():
    global delay
    pid = real()
    if pid and not delay:
        os.killpg(0, signal.SIGINT)
    delay -= 1 if pid else 0
    return pid
os.fork = fork
with readers.Readers(needles, parallel=True) as group:
    sys.exit("it went on")
"""
    for delay in range(4):
        command = [sys.executable, "-c", code, str(delay)]
        ran = subprocess.run(command, start_new_session=True, capture_output=True, text=True, timeout=60, check=False)
        assert (ran.returncode, ran.stdout, ran.stderr) == (130, "", ""), delay


def test_nothing_is_forked_beside_threads_of_the_caller(monkeypatch):
    monkeypatch.undo()
    monkeypatch.setattr(readers, "cores", lambda: 2)
    over = threading.Event()
    thread = threading.Thread(target=over.wait)
    thread.start()
    try:
        with Readers(NEEDLES, parallel=True) as group:
            assert group.result(group.submit(told, "x"))[0] == os.getpid()
    finally:
        over.set()
        thread.join()


def test_alone_it_is_done_at_once():
    with Readers(NEEDLES, parallel=False) as group:
        assert group.submit(told, "x").result()[0] == os.getpid()
        with pytest.raises(RecordError):
            group.result(group.submit(refused))
