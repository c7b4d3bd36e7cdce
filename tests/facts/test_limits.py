import os
import subprocess
import sys

import pytest
from tests.tables import for_each

from unhang.facts import limits
from unhang.facts.host import Host

ROWS = """Limit                     Soft Limit           Hard Limit           Units
Max cpu time              unlimited            unlimited            seconds
Max stack size            8388608              unlimited            bytes
Max core file size        0                    unlimited            bytes
Max processes             4096                 8192                 processes
Max open files            1024                 524288               files
Max locked memory         65536                65536                bytes
Max address space         unlimited            unlimited            bytes
Max nice priority         0                    0
"""
PLAIN = {
    "/proc/self/limits": ROWS,
    "/proc/self/status": "Name:\tpython\nCapEff:\t0000000000000000\nCpus_allowed_list:\t0-3,8\n",
    "/proc/self/uid_map": "         0          0 4294967295\n",
}


def test_what_a_process_may(machine):
    files = {
        "/proc/7/status": "Name:\ta\nUid:\t0\t0\t0\t0\nThreads:\t12\n",
        "/proc/8/status": "Name:\tb\nUid:\t5\t0\t0\t0\nThreads:\t90\n",
        "/proc/loadavg": "0.00 0.01 0.05 2/345 6789\n",
        "/proc/sys/kernel/pid_max": "4194304\n",
        "/proc/sys/kernel/threads-max": "1000000\n",
        "/proc/sys/fs/file-nr": "1234\t0\t9223372036854775807\n",
        "/proc/sys/vm/max_map_count": "65530\n",
        "/proc/sys/kernel/yama/ptrace_scope": "1\n",
        "/sys/devices/system/cpu/online": "0-15\n",
        "/sys/class/infiniband/mlx5_0/ports/1/state": "4: ACTIVE\n",
        "/sys/class/infiniband/mlx5_1/ports/1/state": "1: DOWN\n",
    }
    seen = limits.collect(machine(PLAIN | files))
    assert (seen.open_files, seen.processes) == (limits.Limit(soft=1024, hard=524288), limits.Limit(soft=4096, hard=8192))
    assert (seen.memlock_bytes, seen.stack_bytes) == (limits.Limit(soft=65536, hard=65536), limits.Limit(soft=8388608, hard=None))
    assert seen.address_space_bytes == limits.Limit(soft=None, hard=None)
    assert (seen.lifts_memlock, seen.lifts_processes, seen.lifts_ptrace) == (False, False, False)
    assert (seen.user_threads, seen.threads, seen.pid_max, seen.threads_max) == (12, 345, 4194304, 1000000)
    assert (seen.open_files_of_all, seen.file_max, seen.max_map_count, seen.ptrace_scope) == (1234, 9223372036854775807, 65530, 1)
    assert (seen.cpus_online, seen.cpus_allowed, seen.cpu_quota, seen.cpus) == (16, 5, None, 5)
    assert (seen.infiniband, seen.pids) == (("mlx5_0",), None)
    assert limits.SUBJECT.summary(seen) == "open files 1024, processes 4096, locked memory 64 KiB, 5 CPUs"


@pytest.mark.parametrize(
    ("capabilities", "lifts"),
    [("00000000a80425fb", (False, False, False)), ("000001ffffffffff", (True, True, True)), ("0000000000004000", (True, False, False))],
)
def test_capabilities(machine, capabilities, lifts):
    seen = limits.collect(machine(PLAIN | {"/proc/self/status": f"CapEff:\t{capabilities}\n"}))
    assert (seen.lifts_memlock, seen.lifts_processes, seen.lifts_ptrace) == lifts


@pytest.mark.parametrize(
    ("uid_map", "lifts"),
    [
        ("         0          0 4294967295\n", (True, True, True)),
        ("         0       1000          1\n", (False, False, True)),
        ("0 1000 1\n1 100000 65536\n", (False, False, True)),
        ("", (None, None, True)),
    ],
)
def test_capabilities_of_a_user_namespace_lift_no_limit_of_the_machine(machine, uid_map, lifts):
    seen = limits.collect(machine(PLAIN | {"/proc/self/status": "CapEff:\t000001ffffffffff\n", "/proc/self/uid_map": uid_map}))
    assert (seen.lifts_memlock, seen.lifts_processes, seen.lifts_ptrace) == lifts


def test_cgroup_v2(machine):
    files = {
        "/proc/self/cgroup": "0::/pod/rank\n",
        "/sys/fs/cgroup/pod/pids.max": "1000\n",
        "/sys/fs/cgroup/pod/pids.current": "990\n",
        "/sys/fs/cgroup/pod/rank/pids.max": "100\n",
        "/sys/fs/cgroup/pod/rank/pids.current": "5\n",
        "/sys/fs/cgroup/pod/cpu.max": "150000 100000\n",
        "/sys/fs/cgroup/pod/rank/cpu.max": "max 100000\n",
    }
    seen = limits.collect(machine(PLAIN | files))
    assert (seen.pids, seen.cpu_quota) == (limits.Group(directory="/sys/fs/cgroup/pod", limit=1000, current=990), 1.5)
    assert "990 of 1000 processes of the control group, 1.5 CPUs" in limits.SUBJECT.summary(seen)


def test_cgroup_v1(machine):
    files = {
        "/proc/self/cgroup": "8:pids:/docker/x\n4:cpu,cpuacct:/docker/x\n",
        "/sys/fs/cgroup/pids/pids.max": "64\n",
        "/sys/fs/cgroup/pids/pids.current": "10\n",
        "/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "50000\n",
        "/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000\n",
    }
    seen = limits.collect(machine(PLAIN | files))
    assert (seen.pids.limit, seen.pids.current, seen.cpu_quota) == (64, 10, 0.5)
    no_quota = {"/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "-1\n", "/sys/fs/cgroup/pids/pids.max": "max\n"}
    seen = limits.collect(machine(PLAIN | files | no_quota))
    assert (seen.pids, seen.cpu_quota) == (None, None)


@for_each("text", ["", "\x00\xff", "Max open files many few", "0 0 0", "max", "max max", "::", "Uid:\nThreads:", "CapEff:\tzz", "9" * 60])
def test_damaged(machine, text):
    paths = (
        "/proc/self/limits", "/proc/self/status", "/proc/self/cgroup", "/proc/7/status", "/proc/loadavg", "/proc/sys/fs/file-nr",
        "/proc/sys/kernel/pid_max", "/sys/devices/system/cpu/online", "/sys/fs/cgroup/pids.max", "/sys/fs/cgroup/cpu.max",
        "/sys/class/infiniband/mlx5_0/ports/1/state",
    )  # fmt: skip
    limits.SUBJECT.summary(limits.collect(machine(dict.fromkeys(paths, text))))


def test_limits_that_are_not_told_are_unread(machine):
    rows = "\n".join(line for line in ROWS.splitlines() if "processes" not in line and "locked" not in line)
    assert limits.collect(machine(PLAIN)).unread == ()
    assert limits.collect(machine(PLAIN | {"/proc/self/limits": rows})).unread == ("the limit of processes", "the limit of locked memory")


def test_without_proc(machine):
    with pytest.raises(OSError):
        limits.collect(machine())


def test_of_this_machine():
    seen = limits.collect(Host())
    assert seen.cpus_allowed == len(os.sched_getaffinity(0))
    assert seen.threads > 1


def ran(shell, code):
    code = f"from unhang.facts import limits; from unhang.facts.host import Host; s = limits.collect(Host()); print({code})"
    argv = ["sh", "-c", f'{shell} && exec "$@"', "sh", sys.executable, "-c", code]
    return subprocess.run(argv, capture_output=True, text=True, timeout=60, check=True).stdout


def test_what_a_shell_set_is_inherited():
    assert ran("ulimit -Sn 77", "s.open_files.soft") == "77\n"


def pids_root():
    return next((d for d in ("/sys/fs/cgroup/pids", "/sys/fs/cgroup") if os.path.exists(f"{d}/cgroup.procs") and os.access(d, os.W_OK)), None)


@pytest.fixture
def group():
    root = pids_root()
    path = f"{root}/unhang-test-{os.getpid()}"
    try:
        os.mkdir(path)
    except OSError as e:
        pytest.skip(f"no control group can be made here: {e}")
    try:
        if not os.path.exists(f"{path}/pids.max"):
            pytest.skip("control groups here count no processes")
        yield path
    finally:
        os.rmdir(path)


@pytest.mark.skipif(pids_root() is None, reason="no control groups that may be written to")
def test_a_real_control_group_with_a_limit_of_processes(group):
    with open(f"{group}/pids.max", "w") as file:
        file.write("20")
    assert ran(f"echo $$ > {group}/cgroup.procs", "s.pids.limit, s.pids.current") == "20 1\n"
