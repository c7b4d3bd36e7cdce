import os

import pytest

from unhang.facts import snapshot
from unhang.facts.host import Space
from unhang.knowledge import catalogue

CAUSE = catalogue.load()["shm-stale-or-missing"]

MIB = 1024 * 1024
NOW_S = 1_800_000_000.0
FIRST_NAMESPACE = {"/proc/self/ns/pid": "-> pid:[4026531836]"} | {
    f"/proc/{n}/{what}": text for n in (1, 2) for what, text in (("maps", ""), ("fd", None))
}


def found(machine, segments, *, age_s=3600, total=64 * MIB, files=FIRST_NAMESPACE):
    base = {"/proc/mounts": "tmpfs /dev/shm tmpfs rw 0 0\n", "/dev/shm": None, "/proc/1/maps": "", "/proc/1/fd": None}
    host = machine(base | files | {f"/dev/shm/{name}": "" for name in segments}, now_s=NOW_S)
    for name, size in segments.items():
        path = host.path(f"/dev/shm/{name}")
        os.truncate(path, size)
        os.utime(path, (NOW_S - age_s,) * 2)
    host.spaces["/dev/shm"] = Space(total_bytes=total, free_bytes=total // 2, inodes=0, free_inodes=0)
    return list(CAUSE.on_host(snapshot.take(host, only=["shm"])))


def test_much_of_it(machine):
    (one,) = found(machine, {"nccl-a": 5 * MIB, "torch_4711_2_0": 4 * MIB})
    assert (one.severity, one.says) == ("warning", "2 segments of trainings in /dev/shm, 9 MiB in all, that no live process has mapped")
    assert [r.command for r in one.remedies] == ["unhang doctor --fix --only shm"]
    assert (one.evidence[0].source, one.evidence[0].text.split(",")[0]) == ("/dev/shm/nccl-a", "5 MiB")


def test_a_little_is_only_a_note(machine):
    (one,) = found(machine, {"nccl-a": MIB})
    assert one.severity == "note"
    assert one.says.startswith("1 segment of trainings")


def test_more_than_a_gibibyte_is_much_however_large_it_is(machine):
    (one,) = found(machine, {"nccl-a": 1025 * MIB}, total=512 << 30)
    assert one.severity == "warning"


def test_where_not_all_processes_are_seen_it_is_said(machine):
    (one,) = found(machine, {"nccl-a": MIB}, files={})
    assert one.says == "1 segment of trainings in /dev/shm, 1 MiB in all, that no process seen here has mapped"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another user")
def test_of_another_user(machine, monkeypatch):
    real = os.utime

    def give_away(path, times):
        real(path, times)
        os.chown(path, 12345, 12345)

    monkeypatch.setattr(os, "utime", give_away)
    (one,) = found(machine, {"nccl-a": MIB})
    assert one.says.endswith("; 1 of them of other users")
    assert [(r.id, r.command) for r in one.remedies] == [("of-others", "ls -l /dev/shm/nccl-a")]
    assert found(machine, {"nccl-a": MIB}, files={}) == []


@pytest.mark.parametrize(
    ("segments", "more"),
    [
        ({}, {}),
        ({"nccl-a": MIB}, {"age_s": 10}),
        ({"nccl-a": MIB}, {"files": FIRST_NAMESPACE | {"/proc/1/maps": "7f00-7f01 rw-s 0 00:19 5 /dev/shm/nccl-a\n"}}),
        ({"sem.backup-lock": 32, "database": MIB}, {}),
    ],
)
def test_nothing_dead(machine, segments, more):
    assert found(machine, segments, **more) == []


def test_a_batch_that_waits_to_be_opened_by_its_name_is_no_leftover(machine):
    assert not found(machine, {"torch_1_2_0": 4 * MIB})
