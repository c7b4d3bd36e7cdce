import errno
import threading

import pytest

from unhang.facts import storage
from unhang.facts.host import Host, Space

MOUNTS = (
    "/dev/nvme0n1p2 / ext4 rw,relatime 0 0\n"
    "tmpfs /tmp tmpfs rw,size=1g 0 0\n"
    "nas:/home /home nfs4 rw,vers=4.2 0 0\n"
    "/dev/sdb1 /mnt/my\\040disk xfs rw 0 0\n"
)
ROOM = Space(total_bytes=1000, free_bytes=400, inodes=100, free_inodes=50)
ENVIRON = {"PWD": "/home/u/train", "HOME": "/home/u", "TORCH_HOME": "/mnt/my disk/torch", "TMPDIR": "//tmp/", "HF_HOME": "~/hf"}


def test_each_path_once_with_what_it_is_for(machine):
    host = machine({"/proc/mounts": MOUNTS, "/home/u/train": None, "/tmp": None, "/mnt/my disk": None}, environ=ENVIRON, places=("/tmp",))
    host.spaces = dict.fromkeys(("/home/u/train", "/tmp", "/home/u", "/mnt/my disk"), ROOM)
    seen = {p.path: (p.purpose, p.mount, p.kind, p.exists) for p in storage.collect(host).places}
    assert seen == {
        "/home/u/train": ("working directory", "/home", "nfs4", True),
        "/tmp": ("checkpoints, temporary files", "/tmp", "tmpfs", True),
        "/home/u/hf": ("Hugging Face cache", "/home", "nfs4", False),
        "/mnt/my disk/torch": ("torch cache", "/mnt/my disk", "xfs", False),
        "/home/u/.triton/cache": ("Triton cache", "/home", "nfs4", False),
    }
    assert all(p.space == ROOM and p.writable for p in storage.collect(host).places)


def test_one_that_does_not_answer_and_one_that_is_stale_hold_nobody_up(machine, monkeypatch):
    monkeypatch.setattr(storage, "_ANSWERS_S", 0.2)
    over = threading.Event()

    def space(path):
        if path == "/tmp":
            over.wait()
        if path.startswith("/home"):
            raise OSError(errno.ESTALE, "Stale file handle")
        return ROOM

    host = machine({"/proc/mounts": MOUNTS, "/home/u/train": None, "/tmp": None}, environ=ENVIRON)
    host.space = space
    seen = {p.path: (p.problem, p.space) for p in storage.collect(host).places}
    over.set()
    assert seen["/tmp"] == ("does not answer", None)
    assert seen["/home/u/train"] == ("stale", None)
    assert seen["/mnt/my disk/torch"] == (None, ROOM)


def test_space_that_is_not_known_is_named(machine):
    assert "the space of /tmp" in storage.collect(machine({"/proc/mounts": MOUNTS, "/tmp": None}, environ=ENVIRON)).unread


@pytest.mark.parametrize("path", ["//data", "data", "../data", "/data/../data"])
def test_paths_as_people_write_them(machine, path):
    host = machine({"/proc/mounts": MOUNTS}, environ={"PWD": "/", "TMPDIR": path})
    assert next(p.path for p in storage.collect(host).places if "temporary" in p.purpose) == "/data"


def test_on_this_machine(tmp_path):
    seen = storage.collect(Host(places=(str(tmp_path),)))
    mine = next(p for p in seen.places if "checkpoints" in p.purpose)
    assert mine.writable
    assert mine.space.total_bytes > 0
    assert seen.unread == ()
