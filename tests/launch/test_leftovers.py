"""What a supervisor that was killed leaves is taken away once it is dead for certain, and nothing else is."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from dataclasses import replace

import pytest

from unhang import encoding
from unhang.facts import processes
from unhang.facts.host import Host
from unhang.launch import leftovers

HOST = Host()


@pytest.fixture
def dead():
    """A process that has ended."""
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        owner = processes.identity(HOST, child.pid)
    finally:
        child.communicate(b"\n")
    return owner


@pytest.fixture
def left(tmp_path):
    def left(owner):
        directory = tmp_path / "unhang-abc"
        directory.mkdir(mode=0o700)
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(str(directory / "socket"))
        if owner is not None:
            (directory / "owner.json").write_bytes(encoding.encode(owner))
        return directory

    return left


def test_that_of_a_dead_one_goes(left, dead, tmp_path):
    directory = left(dead)
    leftovers.sweep(tmp_path, HOST)
    assert not directory.exists()


@pytest.mark.parametrize("whose", ["living", "nobody's", "another machine's", "damaged", "damaged and deep", "with a file in it"])
def test_nothing_else_goes(left, dead, tmp_path, whose):
    mine = processes.identity(HOST, os.getpid())
    owner = {"living": mine, "another machine's": replace(dead, boot_id="x"), "with a file in it": dead}.get(whose)
    directory = left(owner)
    if whose.startswith("damaged"):
        (directory / "owner.json").write_text("{" if whose == "damaged" else '{"x":' + "[" * 4000)
    if whose == "with a file in it":
        (directory / "kept.txt").touch()
    leftovers.sweep(tmp_path, HOST)
    assert directory.exists() and (directory / "socket").exists() is (whose != "with a file in it")


def test_a_pid_that_somebody_else_has_now_is_no_life(left, tmp_path):
    mine = processes.identity(HOST, os.getpid())
    directory = left(replace(mine, start_ticks=mine.start_ticks - 1))
    leftovers.sweep(tmp_path, HOST)
    assert not directory.exists()


def test_what_others_may_write_to_is_not_believed(left, dead, tmp_path):
    directory = left(dead)
    directory.chmod(0o770)
    (tmp_path / "unhang-link").symlink_to(directory)
    leftovers.sweep(tmp_path, HOST)
    assert (directory / "socket").exists()


def test_that_of_another_user_stays(left, dead, tmp_path, monkeypatch):
    directory = left(dead)
    monkeypatch.setattr(os, "getuid", lambda: directory.stat().st_uid + 1)
    leftovers.sweep(tmp_path, HOST)
    assert (directory / "socket").exists()


def test_a_link_is_not_followed(left, dead, tmp_path):
    directory = left(dead)
    elsewhere = directory.rename(tmp_path / "elsewhere")
    directory.symlink_to(elsewhere)
    leftovers.sweep(tmp_path, HOST)
    assert (elsewhere / "socket").exists()


def test_ones_own_is_marked(tmp_path):
    leftovers.mark(tmp_path, HOST)
    assert (tmp_path / "owner.json").read_bytes() == encoding.encode(processes.identity(HOST, os.getpid()))
    leftovers.remove(tmp_path)
    assert not tmp_path.exists()


def test_a_place_that_cannot_be_read_ends_nothing(tmp_path):
    leftovers.sweep(tmp_path / "none", HOST)
