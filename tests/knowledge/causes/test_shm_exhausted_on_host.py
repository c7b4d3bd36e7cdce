import pytest

from unhang.facts import snapshot
from unhang.facts.host import Space
from unhang.knowledge import catalogue

CAUSE = catalogue.load()["shm-exhausted"]

MIB = 1024 * 1024
FIRST_NAMESPACE = {"/proc/self/ns/pid": "-> pid:[4026531836]"} | {
    f"/proc/{n}/{what}": text for n in (1, 2) for what, text in (("maps", ""), ("fd", None))
}


def found(machine, total, free, *, files=None, inodes=0, free_inodes=0):
    host = machine({"/proc/mounts": "shm /dev/shm tmpfs rw,size=65536k 0 0\n", "/dev/shm": None, "/proc/meminfo": "MemTotal: 1 kB\n"} | (files or {}))
    host.spaces["/dev/shm"] = Space(total_bytes=total, free_bytes=free, inodes=inodes, free_inodes=free_inodes)
    return list(CAUSE.on_host(snapshot.take(host, only=["shm", "container"])))


@pytest.mark.parametrize(
    ("files", "remedies"),
    [
        ({"/.dockerenv": ""}, ("docker-shm-size", "ipc-host", "fewer-workers")),
        ({"/var/run/secrets/kubernetes.io": None}, ("kubernetes-memory-volume", "fewer-workers")),
        ({}, ("enlarge", "fewer-workers")),
    ],
)
def test_a_containers_default(machine, files, remedies):
    (one,) = found(machine, 64 * MIB, 64 * MIB, files=files)
    assert (one.severity, one.area) == ("error", "shm")
    assert one.says == "/dev/shm holds 64 MiB in all, what a container gets unless somebody asks for more"
    assert tuple(r.id for r in one.remedies) == remedies
    assert one.evidence[0].text == "64 MiB in all, 64 MiB free; mounted rw,size=65536k"


@pytest.mark.parametrize(
    ("mount", "said"),
    [
        ("shm /dev/shm tmpfs rw,size=262144k 0 0\n", "/dev/shm holds 256 MiB in all, as this container was told"),
        ("tmpfs /dev/shm tmpfs rw,size=262144k 0 0\n", "/dev/shm holds 256 MiB in all, the size that it was mounted with"),
        ("tmpfs /dev/shm tmpfs rw 0 0\n", "/dev/shm holds 256 MiB in all, half of the memory"),
    ],
)
def test_who_made_it_small(machine, mount, said):
    (one,) = found(machine, 256 * MIB, 256 * MIB, files={"/proc/mounts": mount})
    assert (one.severity, one.says) == ("warning", said)


DEAD = {"/dev/shm/nccl-dead": "x" * 2048, "/proc/1/maps": "", "/proc/1/fd": None}


def test_full_although_large(machine):
    (one,) = found(machine, 4096 * MIB, 10 * MIB, files=DEAD | FIRST_NAMESPACE)
    assert (one.severity, one.says) == ("error", "/dev/shm is full: 10 MiB of 4 GiB free; 2 KiB of it belongs to no live process")
    assert one.remedies[0].command == "unhang doctor --fix --only shm"


def test_full_where_not_all_processes_are_seen(machine):
    (one,) = found(machine, 4096 * MIB, 10 * MIB, files=DEAD)
    assert one.says == "/dev/shm is full: 10 MiB of 4 GiB free; 2 KiB of it to no process seen here"


def test_full_of_what_lives(machine):
    (one,) = found(machine, 4096 * MIB, 10 * MIB, files=DEAD | FIRST_NAMESPACE | {"/proc/1/maps": "7f00-7f01 rw-s 0 00:19 5 /dev/shm/nccl-dead\n"})
    assert one.says == "/dev/shm is full: 10 MiB of 4 GiB free"
    assert one.remedies[0].command == CAUSE.remedy("clear-leftovers").command


def test_no_inodes(machine):
    (one,) = found(machine, 4096 * MIB, 4000 * MIB, inodes=4000, free_inodes=3)
    assert "3 of 4000 inodes" in one.says


@pytest.mark.parametrize("free", [4096, 500])
def test_with_room_nothing_is_said(machine, free):
    assert found(machine, 4096 * MIB, free * MIB) == []
