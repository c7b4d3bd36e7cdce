import errno
import os
import threading
from pathlib import Path
from types import SimpleNamespace

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


def test_what_is_closed_to_this_user_cannot_be_written_and_is_no_fault_of_the_file_system(machine):
    def space(path):
        raise PermissionError(errno.EACCES, "Permission denied", path)

    host = machine({"/proc/mounts": MOUNTS, "/tmp": None}, environ=ENVIRON)
    host.space = space
    place = next(p for p in storage.collect(host).places if p.path == "/tmp")
    assert (place.problem, place.writable, place.space) == (None, False, None)


@pytest.mark.parametrize("home", ["/home/nobody-has-it", None])
def test_without_a_home_the_places_in_it_are_left_out(monkeypatch, home):
    def entry(uid):
        if home is None:
            raise KeyError(uid)
        return SimpleNamespace(pw_dir=home)

    monkeypatch.setattr(storage.pwd, "getpwuid", entry)
    seen = storage.collect(Host(environ={"HF_HOME": "~/hf", "TRITON_CACHE_DIR": "/tmp/triton"}))
    assert [p.purpose for p in seen.places] == ["working directory", "temporary files", "Triton cache"]


def test_without_a_variable_the_home_is_that_of_the_user(monkeypatch, tmp_path):
    monkeypatch.setattr(storage.pwd, "getpwuid", lambda uid: SimpleNamespace(pw_dir=str(tmp_path)))
    assert f"{tmp_path}/.cache/torch" in [p.path for p in storage.collect(Host(environ={})).places]


@pytest.mark.parametrize("dead", ["the user database", "the home"])
def test_a_home_that_does_not_answer_holds_nobody_up(monkeypatch, tmp_path, dead):
    monkeypatch.setattr(storage, "_ANSWERS_S", 0.2)
    over = threading.Event()
    home = tmp_path / "home"

    def entry(uid):
        if dead == "the user database":
            over.wait()
        return SimpleNamespace(pw_dir=str(home))

    def stat(path, **more):
        if path.is_relative_to(home):
            over.wait()
        return os.stat(path, **more)

    monkeypatch.setattr(storage.pwd, "getpwuid", entry)
    monkeypatch.setattr(Path, "stat", stat)
    asking = threading.Thread(target=lambda: seen.append(storage.collect(Host(environ={}))), daemon=True)
    seen = []
    asking.start()
    asking.join(20)
    ended = bool(seen)
    over.set()
    asking.join(20)
    assert ended
    problems = {p.path: p.problem for p in seen[0].places}
    assert problems["/tmp"] is None
    if dead == "the home":
        assert problems[f"{home}/.cache/torch"] == "does not answer"
    else:
        assert list(problems) == [str(Path.cwd()), "/tmp"]
        assert seen[0].unread == ("the home of this user (the user database does not answer)",)


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


class Timed(Host):
    """Its files are real, its speed is not."""

    def __init__(self, **more):
        super().__init__(writes_are_timed=True, **more)
        self.written = []

    def write_speed(self, directory, *, at_most_bytes, at_most_s):
        self.written.append((directory, at_most_bytes))
        if "bad" in directory:
            raise OSError(errno.ENOSPC, "No space left on device")
        return 200e6

    def space(self, path):
        return Space(total_bytes=1 << 40, free_bytes=1 << 20 if "full" in path else 1 << 31, inodes=0, free_inodes=0)


def test_the_speed_of_writing_is_measured_on_request_where_checkpoints_go(tmp_path):
    places = [tmp_path / name for name in ("good", "bad", "full")]
    for place in places:
        place.mkdir()
    host = Timed(places=[str(p) for p in places])
    seen = storage.collect(host)
    assert {p.path: p.written_bytes_per_s for p in seen.places if "checkpoints" in p.purpose} == dict(
        zip(map(str, places), [200e6, None, None], strict=True)
    )
    assert host.written == [(str(places[0]), 1 << 29), (str(places[1]), 1 << 29)]
    assert f"{places[0]} takes 191 MiB/s" in storage.SUBJECT.summary(seen)
    assert [t.partition(" (")[2] for t in seen.unread] == ["No space left on device)", "too little room)"]


def test_without_checkpoints_it_is_the_working_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    host = Timed()
    storage.collect(host)
    assert [directory for directory, _ in host.written] == [str(tmp_path)]


def test_a_real_file_is_written_and_nothing_of_it_stays(tmp_path):
    assert Host().write_speed(str(tmp_path), at_most_bytes=1 << 20, at_most_s=5) > 0
    assert not list(tmp_path.iterdir())
    with pytest.raises(OSError, match="No such file"):
        Host().write_speed(str(tmp_path / "none"), at_most_bytes=1, at_most_s=1)
