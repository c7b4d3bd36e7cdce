import pytest

from unhang.facts import processes


def test_v2_innermost_first(machine):
    files = {f"/sys/fs/cgroup/{d}pids.max": "max\n" for d in ("a/", "a/b/")}
    host = machine({"/proc/self/cgroup": "0::/a/b/c\n", "/sys/fs/cgroup/a/b/c": None} | files)
    assert processes.control_groups(host, "pids", holding=("pids.max",)) == ("/sys/fs/cgroup/a/b", "/sys/fs/cgroup/a")


def test_v1_beside_an_empty_v2(machine):
    host = machine({"/proc/self/cgroup": "4:cpu,cpuacct:/job\n1:name=systemd:/x\n0::/x\n", "/sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_quota_us": "-1\n"})
    assert processes.control_groups(host, "cpu", holding=("cpu.max", "cpu.cfs_quota_us")) == ("/sys/fs/cgroup/cpu,cpuacct/job",)


@pytest.mark.parametrize("text", ["", "\n", "nonsense", "4:memory", "0::", "::\n:::", "\xff\x00"])
def test_damaged(machine, text):
    assert processes.control_groups(machine({"/proc/self/cgroup": text}), "pids", holding=("pids.max",)) == ()


@pytest.mark.parametrize(("text", "number"), [("12\n", 12), ("-1\n", -1), ("max\n", None), ("", None), ("1 2", None), ("²", None)])
def test_numbers(machine, text, number):
    assert machine({"/x": text}).number("/absent", "/x") == number
