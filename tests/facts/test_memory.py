import pytest

from unhang.facts import memory
from unhang.facts.host import Host

MEMINFO = "MemTotal:       1000 kB\nMemFree: 100 kB\nMemAvailable:    400 kB\nHugePages_Total:  0\n"


def machine(root, files):
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return Host(root)


def test_cgroup_v2(tmp_path):
    host = machine(
        tmp_path,
        {
            "proc/meminfo": MEMINFO,
            "proc/self/cgroup": "0::/job\n",
            "sys/fs/cgroup/job/memory.events": "low 0\noom 5\noom_kill 3\n",
            "sys/fs/cgroup/job/memory.max": "max\n",
            "sys/fs/cgroup/job/memory.current": "4096\n",
        },
    )
    found = memory.collect(host)
    assert (found.total_bytes, found.available_bytes) == (1024000, 409600)
    assert (found.cgroup_limit_bytes, found.cgroup_used_bytes, found.oom_kills) == (None, 4096, 3)


def test_cgroup_v1(tmp_path):
    host = machine(
        tmp_path,
        {
            "proc/meminfo": MEMINFO,
            "proc/self/cgroup": "4:cpu,memory:/docker/x\n0::/\n",
            "sys/fs/cgroup/memory/docker/x/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n",
            "sys/fs/cgroup/memory/docker/x/memory.limit_in_bytes": "8192\n",
        },
    )
    found = memory.collect(host)
    assert (found.cgroup_limit_bytes, found.oom_kills) == (8192, 2)


def test_limits_of_the_groups_around_it_count(tmp_path):
    files = {"proc/meminfo": MEMINFO, "proc/self/cgroup": "0::/pod/job/rank\n"}
    for group, limit, used in (("pod", "5000", 3000), ("pod/job", "9000", 2000), ("pod/job/rank", "max", 1000)):
        directory = f"sys/fs/cgroup/{group}"
        files |= {f"{directory}/memory.events": "oom_kill 0\n", f"{directory}/memory.max": f"{limit}\n", f"{directory}/memory.current": f"{used}\n"}
    found = memory.collect(machine(tmp_path, files))
    assert (found.cgroup_limit_bytes, found.cgroup_used_bytes) == (5000, 3000)


def test_inside_a_container_that_sees_the_hosts_path(tmp_path):
    files = {
        "proc/meminfo": MEMINFO,
        "proc/self/cgroup": "4:memory:/docker/x\n",
        "sys/fs/cgroup/memory/memory.oom_control": "oom_kill 4\n",
        "sys/fs/cgroup/memory/memory.limit_in_bytes": "8192\n",
    }
    found = memory.collect(machine(tmp_path, files))
    assert (found.cgroup_limit_bytes, found.oom_kills) == (8192, 4)


def test_no_group_counts_so_the_host_does(tmp_path):
    host = machine(tmp_path, {"proc/meminfo": MEMINFO, "proc/self/cgroup": "0::/\n", "proc/vmstat": "nr_free 1\noom_kill 9\n"})
    assert memory.oom_kills(host) == 9


def test_nothing_counts(tmp_path):
    assert memory.oom_kills(machine(tmp_path, {"proc/meminfo": MEMINFO})) is None


def test_without_meminfo(tmp_path):
    with pytest.raises(OSError):
        memory.collect(Host(tmp_path))
