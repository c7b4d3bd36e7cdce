from dataclasses import fields, replace

import pytest

from unhang.facts import container
from unhang.facts.limits import Group, Limit, Limits
from unhang.facts.numa import Device, Numa
from unhang.facts.snapshot import Part, Snapshot
from unhang.knowledge import catalogue

CAUSE = catalogue.load()["limits"]

FREE = Limit(soft=None, hard=None)
# A login shell on a laptop, as most distributions make it.
SANE = Limits(
    open_files=Limit(soft=1024, hard=524288),
    processes=Limit(soft=62847, hard=62847),
    memlock_bytes=Limit(soft=8 << 20, hard=8 << 20),
    stack_bytes=Limit(soft=8 << 20, hard=None),
    address_space_bytes=FREE,
    lifts_memlock=False,
    lifts_processes=False,
    lifts_ptrace=False,
    user_threads=900,
    pids=Group(directory="/sys/fs/cgroup/user.slice/user-1000.slice", limit=20000, current=1200),
    cpus_online=16,
    cpus_allowed=16,
    cpu_quota=None,
    threads=2000,
    threads_max=250000,
    pid_max=4194304,
    open_files_of_all=14000,
    file_max=9223372036854775807,
    max_map_count=65530,
    ptrace_scope=1,
    infiniband=(),
)


def found(*, gpus=0, **changed):
    devices = tuple(Device(kind="gpu", address=str(i), node=0) for i in range(gpus))
    nodes = Numa(nodes=(), cpus_allowed=None, memory_allowed=None, balancing=None, devices=devices, cumem_host_enable=None)
    parts = {"limits": Part(state="read", facts=replace(SANE, **changed)), "numa": Part(state="read", facts=nodes)}
    return list(CAUSE.on_host(Snapshot(host="h", taken="t", parts=parts)))


@pytest.fixture
def within(monkeypatch):
    return lambda kind: monkeypatch.setattr(container, "kind", lambda snapshot: kind)


def severities(**changed):
    return [f.severity for f in found(**changed)]


@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"gpus": 1},
        # A container for tests of a CPU-only project.
        {"cpus_allowed": 2, "cpu_quota": 0.5, "pids": Group(directory="/", limit=512, current=20), "lifts_processes": None},
        # A DGX with limits as its makers set them, in a container with RDMA.
        {"gpus": 8, "cpus_allowed": 224, "open_files": Limit(soft=1048576, hard=1048576), "memlock_bytes": FREE, "infiniband": ("mlx5_0",)},
        {"gpus": 8, "infiniband": ("mlx5_0",), "lifts_memlock": True},
        {"gpus": 8, "memlock_bytes": Limit(soft=65536, hard=65536)},
        dict.fromkeys(f.name for f in fields(Limits) if f.name not in ("infiniband", "unread")),
    ],
)
def test_sane(changed):
    assert found(**changed) == []


@pytest.mark.parametrize(
    ("soft", "gpus", "severity"),
    [(32, 0, "error"), (64, 0, "warning"), (256, 0, "warning"), (257, 0, None), (128, 1, "error"), (512, 1, "warning"), (1024, 1, None)],
)
def test_open_files(soft, gpus, severity):
    one = found(open_files=Limit(soft=soft, hard=4096), gpus=gpus)
    assert [f.severity for f in one] == ([severity] if severity else [])
    if one:
        assert one[0].says.startswith(f"{soft} open files for each process (ulimit -n)")
        assert one[0].remedies[0].command == "ulimit -n 4096"


def test_open_files_on_a_large_machine_are_a_note():
    assert severities(gpus=8, cpus_allowed=224) == ["note"]


@pytest.mark.parametrize(
    ("kind", "command"),
    [("bare", "echo '* - nofile"), ("docker", "docker run --ulimit nofile=65536"), ("systemd", "sudo systemctl edit"), ("slurm", "echo '* - nofile")],
)
def test_open_files_that_cannot_be_raised_here(within, kind, command):
    within(kind)
    (one,) = found(open_files=Limit(soft=32, hard=32))
    assert one.remedies[0].command.startswith(command)


@pytest.mark.parametrize(("gpus", "soft", "severity"), [(8, 65536, "error"), (8, 8 << 20, "error"), (8, 16 << 30, "warning"), (0, 65536, "note")])
def test_locked_memory_with_rdma(gpus, soft, severity):
    (one,) = found(gpus=gpus, memlock_bytes=Limit(soft=soft, hard=soft), infiniband=("mlx5_0", "mlx5_1"))
    assert one.severity == severity
    assert "there are RDMA adapters (mlx5_0, mlx5_1)" in one.says
    (one,) = found(gpus=8, memlock_bytes=Limit(soft=65536, hard=None), infiniband=("mlx5_0",))
    assert one.remedies[0].command == "ulimit -l unlimited"


def test_processes_of_the_control_group(within):
    within("docker")
    group = Group(directory="/sys/fs/cgroup/job", limit=100, current=60)
    (one,) = found(pids=group)
    assert (one.severity, one.says) == ("error", "the control group has 60 of 100 processes and threads: 40 are left")
    assert one.remedies[0].command == "docker update --pids-limit=-1 CONTAINER"
    assert severities(pids=replace(group, limit=135)) == ["warning"]
    assert severities(pids=replace(group, limit=141)) == []
    # Eight ranks start more threads than one.
    assert severities(pids=replace(group, limit=500), gpus=8) == ["warning"]


def test_processes_of_the_user():
    (one,) = found(processes=Limit(soft=950, hard=2000))
    assert (one.severity, one.says) == ("error", "this user has 900 of 950 processes and threads (ulimit -u): 50 are left")
    assert one.remedies[0].command == "ulimit -u 2000"
    assert severities(processes=Limit(soft=950, hard=2000), lifts_processes=True) == []
    assert severities(processes=Limit(soft=1000, hard=2000)) == []


def test_one_cpu_for_gpus():
    (one,) = found(gpus=4, cpus_allowed=1)
    assert (one.severity, one.says) == ("warning", "what is started here has 1 of 16 CPUs, by its affinity")
    (one,) = found(gpus=4, cpu_quota=0.5)
    assert one.says == "what is started here has 0.5 of 16 CPUs, by the quota of the control group"


def test_what_the_machine_has_left():
    assert severities(threads=249_990) == ["error"]
    assert severities(threads=230_000) == ["warning"]
    assert severities(open_files_of_all=99_000, file_max=100_000) == ["error"]


def test_addresses():
    assert severities(address_space_bytes=Limit(soft=64 << 30, hard=None), gpus=1) == ["warning"]
    assert severities(address_space_bytes=Limit(soft=64 << 30, hard=None)) == []
    assert severities(address_space_bytes=Limit(soft=4 << 30, hard=None)) == ["warning"]


@pytest.mark.parametrize(("scope", "lifts", "expected"), [(2, False, ["note"]), (3, False, ["note"]), (2, True, []), (2, None, [])])
def test_reading_of_processes(scope, lifts, expected):
    assert severities(ptrace_scope=scope, lifts_ptrace=lifts) == expected
