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


FULL = (
    "MemTotal: 1000 kB\nMemAvailable: 400 kB\nSwapTotal: 64 kB\nSwapFree: 32 kB\nCommitLimit: 500 kB\nCommitted_AS: 480 kB\n"
    "HugePages_Total:     8\nHugePages_Free:      3\nHugepagesize:       2048 kB\n"
)


def test_huge_pages_and_what_is_promised(tmp_path):
    files = {
        "proc/meminfo": FULL,
        "proc/sys/vm/overcommit_memory": "2\n",
        "sys/kernel/mm/transparent_hugepage/enabled": "always [madvise] never\n",
        "proc/vmstat": "oom_kill 9\n",
    }
    found = memory.collect(machine(tmp_path, files))
    assert (found.overcommit, found.commit_limit_bytes, found.committed_bytes) == (2, 512000, 491520)
    assert (found.transparent_huge_pages, found.host_oom_kills) == ("madvise", 9)


@pytest.mark.parametrize(
    ("stat", "left"),
    [
        ("anon 100\nfile 900\ninactive_file 500\nactive_file 200\nshmem 200\n", 1700),
        # v1: the names without total_ are those of the group without the ones below it.
        ("inactive_file 1\nactive_file 2\ntotal_inactive_file 300\ntotal_active_file 100\n", 1400),
        ("", 1000),
    ],
)
def test_cache_is_taken_back_before_anybody_is_killed(tmp_path, stat, left):
    group = "sys/fs/cgroup/job"
    files = {"proc/meminfo": MEMINFO, "proc/self/cgroup": "0::/job\n", f"{group}/memory.events": "oom_kill 0\n", f"{group}/memory.stat": stat}
    found = memory.collect(machine(tmp_path, files | {f"{group}/memory.max": "4096\n", f"{group}/memory.current": "3096\n"}))
    assert found.left_bytes == left


def test_the_group_with_the_least_room_counts(tmp_path):
    files = {"proc/meminfo": MEMINFO, "proc/self/cgroup": "0::/pod/job\n"}
    for group, limit, used in (("pod", 9000, 8500), ("pod/job", 5000, 100)):
        directory = f"sys/fs/cgroup/{group}"
        files |= {f"{directory}/memory.events": "oom_kill 0\n", f"{directory}/memory.max": f"{limit}\n", f"{directory}/memory.current": f"{used}\n"}
    found = memory.collect(machine(tmp_path, files))
    assert (found.cgroup, found.left_bytes) == ("/sys/fs/cgroup/pod", 500)


@pytest.mark.parametrize("text", ["", ":::\n", "MemTotal:\n", "MemTotal: many kB\n", "MemTotal: ² kB\nMemFree: 1", "\xff\x00\n" * 50])
def test_damaged(tmp_path, text):
    files = ("proc/meminfo", "proc/self/cgroup", "proc/vmstat", "proc/sys/vm/overcommit_memory", "sys/kernel/mm/transparent_hugepage/enabled")
    with pytest.raises(ValueError, match="how much memory there is"):
        memory.collect(machine(tmp_path / "a", dict.fromkeys(files, text)))
    found = memory.collect(machine(tmp_path / "b", dict.fromkeys(files, text) | {"proc/meminfo": f"MemTotal: 1 kB\n{text}"}))
    memory.SUBJECT.summary(found)
    assert found.unread == (() if "MemFree" in text else ("how much memory is available",))


def test_of_this_machine():
    found = memory.collect(Host())
    assert 0 < found.left_bytes <= found.available_bytes <= found.total_bytes
