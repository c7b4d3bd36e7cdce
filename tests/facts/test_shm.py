import mmap
import os
import tempfile

from unhang.facts import shm
from unhang.facts.host import Host, Space

MIB = 1024 * 1024
PLAIN = {
    "/proc/mounts": "overlay / overlay rw 0 0\ntmpfs /dev/shm tmpfs rw,nosuid,nodev,noexec,size=65536k 0 0\n",
    "/dev/shm": None,
    "/proc/sys/kernel/shmmni": "4096\n",
    "/proc/sys/kernel/shmmax": "18446744073692774399\n",
    "/proc/sys/kernel/shmall": "18446744073692774399\n",
    "/proc/sysvipc/shm": "       key      shmid perms                  size  cpid\n         0          3  1600               4194304  811\n",
}


def test_room_and_options(machine):
    host = machine(PLAIN)
    host.spaces["/dev/shm"] = Space(total_bytes=64 * MIB, free_bytes=60 * MIB, inodes=100, free_inodes=90)
    seen = shm.collect(host)
    assert (seen.kind, seen.options) == ("tmpfs", ("rw", "nosuid", "nodev", "noexec", "size=65536k"))
    assert seen.space.free_bytes == 60 * MIB
    assert (seen.system_v.segments, seen.system_v.size_bytes, seen.system_v.shmmni, seen.system_v.shmmax) == (1, 4194304, 4096, 18446744073692774399)
    assert seen.unread == ()
    assert shm.SUBJECT.summary(seen) == "64 MiB, 6 % used; no segments of trainings"


def test_segments_and_who_maps_them(machine):
    files = {
        "/dev/shm/nccl-Qr4tZp": "x" * 4096,
        "/dev/shm/torch_811_77_0": "x" * 100,
        "/dev/shm/sem.mp-dead": "x" * 32,
        "/dev/shm/some-database": "x" * 7,
        "/proc/811/maps": "7f00-7f01 rw-s 00000000 00:19 5 /dev/shm/nccl-Qr4tZp\n7f02-7f03 rw-s 0 00:19 6 /dev/shm/sem.mp-dead (deleted)\n",
        "/proc/811/fd/4": "-> /dev/shm/torch_811_77_0",
        "/proc/811/fd/5": "-> socket:[1]",
        "/proc/900/maps": "",
        "/proc/900/fd": None,
    }
    host = machine(PLAIN | files)
    host.spaces["/dev/shm"] = Space(total_bytes=MIB, free_bytes=MIB, inodes=0, free_inodes=0)
    seen = shm.collect(host)
    assert {s.name: (s.size_bytes, s.mapped_by) for s in seen.segments} == {
        "nccl-Qr4tZp": (4096, (811,)),
        "torch_811_77_0": (100, (811,)),
        "sem.mp-dead": (32, ()),
    }
    assert (seen.other_files, seen.other_bytes) == (1, 7)


def test_without_dev_shm(machine):
    seen = shm.collect(machine({k: v for k, v in PLAIN.items() if k != "/dev/shm"}))
    assert seen.mode is None
    assert seen.space is None
    assert shm.SUBJECT.summary(seen) == "there is no /dev/shm"


def test_a_mapped_file_without_a_descriptor_is_seen_on_this_machine():
    with tempfile.NamedTemporaryFile(dir="/dev/shm", prefix="nccl-test") as file:
        file.write(b"x" * 4096)
        file.flush()
        mapped = mmap.mmap(file.fileno(), 4096)
        name = os.path.basename(file.name)
        mine = next(s for s in shm.collect(Host()).segments if s.name == name)
        assert mine.mapped_by == (os.getpid(),)
        mapped.close()
