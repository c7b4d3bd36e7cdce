import os
import signal
import subprocess
import sys
import time
from dataclasses import replace

import pytest

from unhang.facts import processes
from unhang.facts.host import Host

STAT = "{pid} (pt main) thread) {state} {ppid} 1 1 0 -1 4194304 9 0 0 0 {utime} {stime} {cutime} {cstime} 20 0 3 0 100 1000 25 0 0\n"
STATUS = "Name:\tx\nvoluntary_ctxt_switches:\t42\nnonvoluntary_ctxt_switches:\t7\n"


@pytest.fixture
def host(tmp_path):
    """A machine with process 50, whose child is 51, and 60, which belongs to somebody else."""
    for pid, ppid, state, ticks in ((50, 1, "D", 100), (51, 50, "R", 300), (52, 51, "S", 50), (60, 1, "S", 0)):
        task = tmp_path / "proc" / str(pid) / "task" / str(pid)
        task.mkdir(parents=True)
        for directory in (tmp_path / "proc" / str(pid), task):
            (directory / "stat").write_text(STAT.format(pid=pid, state=state, ppid=ppid, utime=ticks, stime=ticks, cutime=0, cstime=0))
        (task / "status").write_text(STATUS)
    (tmp_path / "proc" / "50" / "io").write_text("rchar: 100\nwchar: 20\nsyscr: 9\nread_bytes: 4096\n")
    (tmp_path / "proc" / "51" / "io").write_text("rchar: 3\nwchar: 0\n")
    (tmp_path / "proc" / "50" / "wchan").write_text("nfs_wait_bit_killable")
    (tmp_path / "proc" / "meminfo").write_text("")
    return Host(tmp_path)


def test_sample(host):
    found = processes.sample(host, 50, t=1.0, children=(51, 52, 99))
    assert found is not None
    assert (found.state, found.switches, found.wchan) == ("D", 42, "nfs_wait_bit_killable")
    assert found.cpu_s == pytest.approx(200 / processes.TICKS_PER_S)
    assert found.tree_cpu_s == pytest.approx((200 + 600 + 100) / processes.TICKS_PER_S)
    assert found.io_bytes == 123
    assert found.rss_bytes == 25 * processes.PAGE_BYTES


def test_children_that_have_ended_count(host):
    for pid, ended in ((50, 1000), (51, 7)):
        (host.path(f"/proc/{pid}/stat")).write_text(STAT.format(pid=pid, state="S", ppid=1, utime=1, stime=2, cutime=ended, cstime=2 * ended))
    found = processes.sample(host, 50, t=1.0, children=(51,))
    assert found is not None
    assert found.cpu_s == pytest.approx(200 / processes.TICKS_PER_S)
    assert found.tree_cpu_s == pytest.approx((3 + 3000 + 3 + 21) / processes.TICKS_PER_S)


def test_a_process_that_is_no_more(host):
    assert processes.sample(host, 99, t=0.0) is None


def test_descendants(host):
    assert processes.descendants(host, (50, 60)) == {50: (51, 52), 60: ()}


def test_a_real_process():
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        host = Host()
        deadline = time.monotonic() + 10
        os.kill(child.pid, signal.SIGSTOP)
        while (found := processes.sample(host, child.pid, t=0.0)) is not None and found.state != "T":
            assert time.monotonic() < deadline
        assert found is not None
        assert child.pid in processes.descendants(host, (os.getpid(),))[os.getpid()]
    finally:
        child.kill()
        child.communicate()


def test_a_process_is_told_from_all_others(tmp_path, host):
    boot, own = tmp_path / "proc" / "sys" / "kernel" / "random" / "boot_id", tmp_path / "proc" / "self" / "ns" / "pid"
    assert processes.identity(host, 50) is None
    for place in (boot.parent, own.parent, tmp_path / "etc"):
        place.mkdir(parents=True)
    (tmp_path / "etc" / "hostname").write_text("node7\n")
    boot.write_text("one\n")
    own.symlink_to("pid:[7]")
    found = processes.identity(host, 50)
    assert found is not None and (found.host, found.pid, found.start_ticks, found.boot_id, found.pid_namespace) == (
        "node7",
        50,
        100,
        "one",
        "pid:[7]",
    )
    assert processes.is_alive(host, found) is True
    # Its number was given to another one; it is a zombie; it is no more.
    assert processes.is_alive(host, replace(found, start_ticks=99)) is False
    stat = tmp_path / "proc" / "50" / "stat"
    stat.write_text(stat.read_text().replace(" D ", " Z "))
    assert processes.is_alive(host, found) is False
    stat.unlink()
    assert processes.is_alive(host, found) is False
    # Another start of the machine, another container: that cannot be seen from here.
    assert processes.is_alive(host, replace(found, boot_id="two")) is None
    assert processes.is_alive(host, replace(found, pid_namespace="pid:[8]")) is None


def test_this_process_lives():
    own = processes.identity(Host(), os.getpid())
    assert own is not None and processes.is_alive(Host(), own) is True
    ended = subprocess.Popen(["true"])
    of_ended = processes.identity(Host(), ended.pid)
    ended.wait()
    assert of_ended is None or processes.is_alive(Host(), of_ended) is False
