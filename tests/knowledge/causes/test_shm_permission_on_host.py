import os

import pytest

from unhang.facts import snapshot
from unhang.facts.host import Space
from unhang.facts.shm import SUBJECT
from unhang.facts.snapshot import Part, Snapshot
from unhang.knowledge import catalogue

CAUSE = catalogue.load()["shm-permission"]

GIB = 1 << 30


def seen(machine, mounts="tmpfs /dev/shm tmpfs rw,nosuid,nodev,noexec 0 0\n", *, mode=0o1777, files=None):
    host = machine({"/proc/mounts": mounts, "/dev/shm": None} | (files or {}))
    host.path("/dev/shm").chmod(mode)
    host.spaces["/dev/shm"] = Space(total_bytes=64 * GIB, free_bytes=64 * GIB, inodes=0, free_inodes=0)
    return snapshot.take(host, only=["shm"])


def found(*args, **more):
    return [(f.severity, f.says) for f in CAUSE.on_host(seen(*args, **more))]


def as_user(snap, uid, **more):
    facts = snap.get(SUBJECT)
    return Snapshot(host="h", taken="t", parts={"shm": Part(state="read", facts=type(facts)(**(vars(facts) | {"uid": uid, "owner_uid": 0} | more)))})


@pytest.mark.parametrize("mode", [0o1777, 0o777])
def test_sane(machine, mode):
    assert found(machine, mode=mode) == []
    assert list(CAUSE.on_host(as_user(seen(machine, mode=mode), 1000))) == []


def test_read_only(machine):
    (one,) = CAUSE.on_host(seen(machine, "tmpfs /dev/shm tmpfs ro,nosuid 0 0\n"))
    assert (one.severity, one.says) == ("error", "/dev/shm is mounted read-only")
    assert one.remedies[0].command == "sudo mount -o remount,rw /dev/shm"


def test_mode(machine):
    snap = seen(machine, mode=0o755)
    (one,) = CAUSE.on_host(as_user(snap, 1000))
    assert (one.severity, one.says) == ("error", "/dev/shm has mode 0755 and belongs to user 0: this user (1000) may not make files there")
    assert list(CAUSE.on_host(as_user(snap, 1000, owner_uid=1000))) == []
    (one,) = CAUSE.on_host(as_user(snap, 0))
    assert (one.severity, one.says) == ("note", "/dev/shm has mode 0755: root may make files there, other users may not")


def test_a_group_that_may_write_may_be_ours(machine):
    assert list(CAUSE.on_host(as_user(seen(machine, mode=0o770), 1000))) == []


def test_missing(machine):
    snap = snapshot.take(machine({"/proc/mounts": "overlay / overlay rw 0 0\n"}), only=["shm"])
    assert [(f.severity, f.says) for f in CAUSE.on_host(snap)] == [("error", "there is no /dev/shm")]


@pytest.mark.parametrize(
    ("mounts", "said"),
    [
        ("overlay / overlay rw 0 0\n", "/dev/shm is no tmpfs: it lies on overlay"),
        ("/dev/sda1 /dev/shm ext4 rw 0 0\n", "/dev/shm is no tmpfs: it lies on ext4; it is an emptyDir volume of the pod without `medium: Memory`"),
    ],
)
def test_on_a_disk(machine, mounts, said):
    row = "812 700 8:1 /var/lib/kubelet/pods/7c1e/volumes/kubernetes.io~empty-dir/dshm /dev/shm rw - ext4 /dev/sda1 rw\n"
    assert found(machine, mounts, files={"/proc/self/mountinfo": row}) == [("warning", said)]


@pytest.mark.parametrize("mounts", ["devtmpfs /dev devtmpfs rw 0 0\n", "tmpfs /dev tmpfs rw 0 0\noverlay / overlay rw 0 0\n"])
def test_a_directory_of_a_dev_in_memory_will_do(machine, mounts):
    assert found(machine, mounts) == []


def test_what_could_not_be_looked_at_is_no_finding():
    assert list(CAUSE.on_host(Snapshot(host="h", taken="t", parts={"shm": Part(state="unknown", why="x")}))) == []


def test_on_this_machine():
    if os.path.ismount("/dev/shm"):
        from unhang.facts.host import Host

        assert [f for f in CAUSE.on_host(snapshot.take(Host(), only=["shm"])) if f.severity == "error"] == []
