import mmap
import os
import subprocess
import sys
import tempfile

import pytest

from unhang.facts import shm
from unhang.facts.host import Host, Space

MIB = 1024 * 1024
PLAIN = {
    "/proc/mounts": "overlay / overlay rw 0 0\nshm /dev/shm tmpfs rw,nosuid,nodev,noexec,size=65536k 0 0\n",
    "/proc/self/ns/pid": "-> pid:[4026531836]",
    "/proc/1/maps": "",
    "/proc/1/fd": None,
    "/proc/2/maps": "",
    "/proc/2/fd": None,
    "/dev/shm": None,
    "/proc/sys/kernel/shmmni": "4096\n",
    "/proc/sys/kernel/shmmax": "18446744073692774399\n",
    "/proc/sys/kernel/shmall": "18446744073692774399\n",
    "/proc/sysvipc/shm": (
        "       key      shmid perms                  size  cpid  lpid nattch   uid   gid  cuid  cgid      atime      dtime      ctime\n"
        "         0          3  1600               4194304   811   812      2  1000  1000  1000  1000 1 0 1\n"
        "         0          4  1600                   512   900     0      0  1000  1000  1000  1000 1 0 1\n"
    ),
}


def test_room_and_options(machine):
    host = machine(PLAIN)
    host.spaces["/dev/shm"] = Space(total_bytes=64 * MIB, free_bytes=60 * MIB, inodes=100, free_inodes=90)
    seen = shm.collect(host)
    assert (seen.present, seen.mounted, seen.kind, seen.options) == (True, True, "tmpfs", ("rw", "nosuid", "nodev", "noexec", "size=65536k"))
    assert seen.space.free_bytes == 60 * MIB
    assert seen.unread == ()
    assert shm.SUBJECT.summary(seen) == "64 MiB (what a container gets by default), 6 % used; no segments of trainings"


@pytest.mark.parametrize(
    ("mount", "total", "environ", "said"),
    [
        ("shm /dev/shm tmpfs rw,size=65536k 0 0", 64 * MIB, {}, "runtime-default"),
        ("shm /dev/shm tmpfs rw,size=8388608k 0 0", 8192 * MIB, {}, "runtime-option"),
        ("tmpfs /dev/shm tmpfs rw,nosuid,nodev 0 0", 8192 * MIB, {}, "half-of-memory"),
        ("tmpfs /dev/shm tmpfs rw,size=1024k 0 0", MIB, {}, "mount-option"),
        ("tmpfs /dev/shm tmpfs rw,size=1024k 0 0", MIB, {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, "empty-dir"),
        ("/dev/sda1 /dev/shm ext4 rw 0 0", MIB, {}, "empty-dir"),
        ("tmpfs /dev tmpfs rw,size=65536k 0 0", 64 * MIB, {}, None),
    ],
)
def test_where_the_limit_comes_from(machine, mount, total, environ, said):
    row = "812 700 8:1 /var/lib/kubelet/pods/7c1e/volumes/kubernetes.io~empty-dir/dshm /dev/shm rw - ext4 /dev/sda1 rw\n"
    host = machine(PLAIN | {"/proc/mounts": f"overlay / overlay rw 0 0\n{mount}\n", "/proc/self/mountinfo": row}, environ=environ)
    host.spaces["/dev/shm"] = Space(total_bytes=total, free_bytes=total, inodes=0, free_inodes=0)
    assert shm.collect(host).limit_from == said


def test_of_two_mounts_the_last_counts(machine):
    host = machine(PLAIN | {"/proc/mounts": "tmpfs /dev/shm tmpfs rw 0 0\ntmpfs /dev/shm tmpfs ro 0 0\ntmpfs / tmpfs rw 0 0\n"})
    assert shm.collect(host).options == ("ro",)


def segments(machine, files):
    host = machine(PLAIN | files)
    host.spaces["/dev/shm"] = Space(total_bytes=MIB, free_bytes=MIB, inodes=0, free_inodes=0)
    return shm.collect(host)


FILES = {
    "/dev/shm/nccl-Qr4tZp": "x" * 4096,
    "/dev/shm/torch_811_77_0": "x" * 100,
    "/dev/shm/sem.mp-dead": "x" * 32,
    "/dev/shm/some-database": "x" * 7,
    "/proc/811/maps": "7f00-7f01 rw-s 00000000 00:19 5 /dev/shm/nccl-Qr4tZp\n7f02-7f03 rw-s 0 00:19 6 /dev/shm/sem.mp-dead (deleted)\n",
    "/proc/811/fd/4": "-> /dev/shm/torch_811_77_0",
    "/proc/811/fd/5": "-> socket:[1]",
    "/proc/900/maps": "",
    "/proc/900/fd": None,
    "/etc/passwd": "root:x:0:0:root:/root:/bin/sh\ndamaged\n+::::::\nzoë:x:²:1::/:\n",
}


def test_segments_and_who_maps_them(machine):
    seen = segments(machine, FILES)
    assert {s.name: (s.size_bytes, s.mapped_by) for s in seen.segments} == {
        "nccl-Qr4tZp": (4096, (811,)),
        "torch_811_77_0": (100, (811,)),
        "sem.mp-dead": (32, ()),
    }
    assert {s.owner for s in seen.segments} == {"root"}


@pytest.mark.parametrize(
    ("files", "kept_by", "abandoned"),
    [
        ({}, (), True),
        ({"/proc/77/maps": ""}, (77,), False),
        ({"/proc/99/comm": "torch_shm_manag\n", "/proc/99/maps": ""}, (99,), False),
        ({"/proc/99/comm": "python3\n", "/proc/99/maps": ""}, (), True),
        ({"/proc/99/fd/4": "-> /dev/shm/torch_77_123_0", "/proc/99/maps": ""}, (), False),
        ({"/proc/self/ns/pid": "-> pid:[4026532999]"}, None, False),
        ({"/proc/99/maps": None}, (), None),
    ],
    ids=["dead", "its maker lives", "a manager lives", "another program", "mapped", "makers may be hidden", "a process that may not be looked into"],
)
def test_what_is_handed_over_by_name_is_abandoned_only_if_nobody_could_hand_it_over(machine, files, kept_by, abandoned):
    (one,) = segments(machine, {"/dev/shm/torch_77_123_0": "x" * 100} | files).segments
    assert (one.kept_by, one.abandoned) == (kept_by, abandoned)


def test_in_another_pid_namespace_dead_is_not_known(machine):
    seen = segments(machine, {k: v for k, v in FILES.items() if k != "/proc/self/ns/pid"} | {"/proc/self/ns/pid": "-> pid:[4026532999]"})
    assert {s.name: s.mapped_by for s in seen.segments} == {"nccl-Qr4tZp": (811,), "torch_811_77_0": (811,), "sem.mp-dead": None}
    assert seen.unread == ("whether processes outside of this container have segments mapped",)


def test_where_proc_hides_processes_dead_is_not_known(machine):
    own = {k: v for k, v in PLAIN.items() if not k.startswith(("/proc/1/", "/proc/2/"))}
    host = machine(own | FILES)
    seen = shm.collect(host)
    assert {s.name: s.mapped_by for s in seen.segments} == {"nccl-Qr4tZp": (811,), "torch_811_77_0": (811,), "sem.mp-dead": None}
    assert "whether processes that /proc hides have segments mapped" in seen.unread


def test_on_a_busy_machine_the_rest_is_seen_and_nothing_is_called_dead(machine, monkeypatch):
    monkeypatch.setattr(shm, "_PATIENCE_S", -1)
    seen = segments(machine, FILES)
    assert seen.space.total_bytes == MIB
    assert {s.mapped_by for s in seen.segments} == {None}
    assert seen.unread == ("whether processes that -1 s were too short for have segments mapped",)


def test_a_name_that_is_no_text_is_found_in_maps(machine):
    host = machine(PLAIN)
    name = "nccl-\udcff\n"
    host.path(f"/dev/shm/{name}").touch()
    host.path("/proc/1/maps").write_bytes(b"7f00-7f01 rw-s 0 00:19 5 /dev/shm/nccl-\xff\\012\n")
    (segment,) = shm.collect(host).segments
    assert (segment.name, segment.mapped_by) == (name, (1,))


def test_what_any_program_may_make_and_keep_is_shown_and_not_of_trainings(machine):
    kinds = {"sem.backup-lock": False, "sem.mp-x": True, "psm_5a1f20cc": False, "psm2_shm.1": True, "nccl-abc": True}
    seen = segments(machine, {f"/dev/shm/{name}": "x" for name in kinds})
    assert {s.name: s.of_trainings for s in seen.segments} == kinds


def test_without_dev_shm(machine):
    seen = shm.collect(machine({k: v for k, v in PLAIN.items() if k != "/dev/shm"}))
    assert (seen.present, seen.mode, seen.space) == (False, None, None)
    assert shm.SUBJECT.summary(seen) == "there is no /dev/shm"


@pytest.mark.parametrize("text", ["", "\x00\xff", "a b\n", "  \n\n", "x" * 10_000, "1 2 3 4 5 6 7 8\n" * 3, "key\n a b c d e f g\n"])
def test_damaged_files(machine, text):
    files = {"/proc/mounts": text, "/proc/sysvipc/shm": text, "/etc/passwd": text, "/dev/shm/nccl-a": "", "/proc/1/maps": text, "/proc/1/fd": None}
    seen = segments(machine, files)
    shm.SUBJECT.summary(seen)


def test_a_mapped_file_without_a_descriptor_is_seen_on_this_machine():
    with tempfile.NamedTemporaryFile(dir="/dev/shm", prefix="nccl-test") as file:
        file.write(b"x" * 4096)
        file.flush()
        mapped = mmap.mmap(file.fileno(), 4096)
        name = os.path.basename(file.name)
        mine = next(s for s in shm.collect(Host()).segments if s.name == name)
        assert mine.mapped_by == (os.getpid(),)
        mapped.close()


def can_unshare() -> bool:
    return subprocess.run(["unshare", "-m", "true"], capture_output=True, check=False).returncode == 0 if os.geteuid() == 0 else False


@pytest.mark.skipif(not can_unshare(), reason="a mount namespace needs root and unshare")
def test_a_real_tmpfs_of_one_mib():
    code = (
        "from unhang.facts import shm; from unhang.facts.host import Host; s = shm.collect(Host());"
        "print(s.space.total_bytes, s.limit_from, ','.join(s.options))"
    )
    inside = f'mount -t tmpfs -o size=1m,noexec shm /dev/shm && exec {sys.executable} -c "{code}"'
    done = subprocess.run(["unshare", "-m", "sh", "-c", inside], capture_output=True, text=True, timeout=60, check=True)
    total, said, options = done.stdout.split()
    assert (int(total), said) == (MIB, "runtime-option")
    assert {"noexec", "size=1024k"} <= set(options.split(","))
