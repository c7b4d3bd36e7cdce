from dataclasses import replace

import pytest

from unhang.facts.memory import Memory
from unhang.facts.numa import Device, Numa
from unhang.facts.snapshot import Part, Snapshot
from unhang.knowledge import catalogue

CAUSE = catalogue.load()["host-oom-or-killed"]

MIB, GIB = 1 << 20, 1 << 30
SANE = Memory(
    total_bytes=16 * GIB,
    available_bytes=9 * GIB,
    transparent_huge_pages="madvise",
    overcommit=0,
    commit_limit_bytes=8 * GIB,
    committed_bytes=9 * GIB,
    cgroup=None,
    cgroup_limit_bytes=None,
    cgroup_used_bytes=None,
    cgroup_reclaimable_bytes=None,
    oom_kills=0,
    host_oom_kills=0,
)


def found(*, gpus=0, **changed):
    devices = tuple(Device(kind="gpu", address=str(i), node=0) for i in range(gpus))
    nodes = Numa(nodes=(), cpus_allowed=None, memory_allowed=None, balancing=None, devices=devices, cumem_host_enable=None)
    parts = {"memory": Part(state="read", facts=replace(SANE, **changed)), "numa": Part(state="read", facts=nodes)}
    return list(CAUSE.on_host(Snapshot(host="h", taken="t", parts=parts)))


def group(limit, used, back):
    return {"cgroup": "/sys/fs/cgroup/job", "cgroup_limit_bytes": limit, "cgroup_used_bytes": used, "cgroup_reclaimable_bytes": back}


@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"gpus": 1},
        # Used to the limit, by files' cache: any group that has read a data set looks so.
        group(64 * GIB, 64 * GIB, 50 * GIB),
        group(2 * GIB, 500 * MIB, 0),
        {"oom_kills": None, "host_oom_kills": None, "available_bytes": None, "overcommit": None},
        {"overcommit": 2, "commit_limit_bytes": 15 * GIB, "committed_bytes": 5 * GIB},
        {"overcommit": 2, "commit_limit_bytes": None},
    ],
)
def test_sane(changed):
    assert found(**changed) == []


def test_little_in_a_control_group():
    (one,) = found(**group(4 * GIB, 4 * GIB, 100 * MIB))
    assert (one.severity, one.says) == ("error", "100 MiB of host memory are left: the control group may use 4 GiB, /dev/shm included")
    assert [r.id for r in one.remedies] == ["more-memory", "less-memory"]
    assert one.evidence[0].text == "limit 4 GiB, used 4 GiB, of which 100 MiB are cache that can be taken back"
    (one,) = found(**group(1 * GIB, 100 * MIB, 0))
    assert one.severity == "warning"
    (one,) = found(gpus=1, **group(4 * GIB, 100 * MIB, 0))
    assert one.severity == "warning"


def test_little_on_the_machine():
    (one,) = found(available_bytes=300 * MIB)
    assert (one.severity, one.says) == ("error", "300 MiB of host memory are left of 16 GiB")
    assert [r.id for r in one.remedies] == ["less-memory", "who-takes-it"]


def test_oom_kills():
    (one,) = found(oom_kills=3, host_oom_kills=7, **group(None, None, None))
    assert (one.severity, one.says) == ("warning", "the OOM killer has ended 3 processes of this control group")
    (one,) = found(oom_kills=0, host_oom_kills=1, **group(None, None, None))
    assert (one.severity, one.says) == ("note", "the OOM killer has ended 1 process on this machine since it started")


def test_without_overcommit():
    (one,) = found(overcommit=2)
    assert (one.severity, [r.id for r in one.remedies]) == ("warning", ["overcommit"])
    assert one.says == "the kernel promises 0 B more although 9 GiB are available (vm.overcommit_memory is 2)"
