"""unhang.toml: the nearest one, what stands in it, and errors that name the file and the key."""

from __future__ import annotations

import os
from typing import get_args

import pytest
from tests.tables import for_each

from unhang.cli.fallback import Mode
from unhang.errors import UnhangError
from unhang.settings import configuration


def written(folder, text):
    path = folder / "unhang.toml"
    path.write_text(text, "utf-8")
    return path


def test_the_nearest_file_from_the_directory_upwards(tmp_path):
    below = tmp_path / "a" / "b"
    below.mkdir(parents=True)
    assert configuration.load(below).path == ""
    top = written(tmp_path, "")
    assert configuration.load(below).path == str(top)
    near = written(tmp_path / "a", "")
    assert configuration.load(below).path == str(near)


def test_all_that_it_may_say(tmp_path):
    path = written(
        tmp_path,
        """
[run]
preset = "my_own"
timeout = "30m"
loader_workers = 2
shm = false

[presets.my_own]
title = "for the small machine"
base = "basic"
batch = 256

[arguments]
batch = "--batch-size"
""",
    )
    found = configuration.read(path)
    assert found.preset == "my_own" and found.settings == {"timeout": 1800, "loader-workers": 2, "shm": False}
    assert found.presets["my-own"] == configuration.Own(name="my-own", title="for the small machine", base="basic", settings={"batch": 256})
    assert found.arguments == {"batch": "--batch-size"}


@for_each(
    ("text", "says"),
    [
        ("[run", "is no TOML"),
        ("[foo]", r"there is no \[foo\]"),
        ("run = 3", "run is 3"),
        ('[run]\nshm = "maybe"', r"\[run\] shm=maybe: it is on or off"),
        ("[run]\nshm = [1]", r"\[run\] shm = \[1\]"),
        ("[run]\nshn = 1", r"there is no \[run\] shn"),
        ("[run]\npreset = 1", r"\[run\] preset = 1: it is a text"),
        ("[presets]\nmine = 1", "presets.mine is 1"),
        ("[presets.mine]\nbatch = 0", r"\[presets.mine\] batch=0: it is a whole number, 1 or more"),
        ("[presets.mine]\nbas = 'basic'", r"there is no \[presets.mine\] bas"),
        ("[arguments]\nbatch = 3", r"\[arguments\] batch = 3: it is a text"),
        ("[arguments]\nbatch = ' '", r"\[arguments\] batch is empty"),
        ("[arguments]\nbatch = '--b \"open'", r"\[arguments\] batch = .*No closing quotation"),
        ("[arguments]\nshm = '--on|\"--off'", r"\[arguments\] shm = .*No closing quotation"),
        ('[arguments]\nbatch = "--b\\u0000="', r"\[arguments\] batch = .*holds a NUL"),
        ("[run]\nloader-workers = 1\nloader_workers = 4", r"\[run\] loader-workers and \[run\] loader_workers are one name"),
        ("[run]\npreset = 'basic'\nPreset = 'debug'", r"\[run\] preset and \[run\] Preset are one name"),
        ("[presets.a_b]\nbatch = 1\n[presets.a-b]\nbatch = 2", r"presets.a_b and presets.a-b are one name"),
        ("[presets.a]\nloader-workers = 1\nloader_workers = 4", r"\[presets.a\] loader-workers and \[presets.a\] loader_workers are"),
        ("[arguments]\nloader-workers = '-a'\nLoader-Workers = '-b'", r"\[arguments\] loader-workers and \[arguments\] Loader-Workers are"),
        ("[run]\nbuffer = '999999999999G'", r"\[run\] buffer=999999999999G: it is a number of bytes below 2G"),
        ("[run]\nbatch = inf", r"\[run\] batch=inf: it is a whole number"),
        ("x = " + "[" * 50_000, "nested too deeply"),
        ("[run]\n" + "a." * 500_000 + "a = 1", "more than 256 dots"),
        ("[run]\nx = " + "9" * 100_000, "is no TOML"),
        ("[arguments]\nbtch = '--b'", r"there is no \[arguments\] btch"),
    ],
)
def test_what_is_wrong_names_the_file_and_the_key(tmp_path, text, says):
    path = written(tmp_path, text)
    with pytest.raises(UnhangError, match=says) as e:
        configuration.read(path)
    assert str(path) in str(e.value)


def test_a_file_that_is_no_text(tmp_path):
    path = tmp_path / "unhang.toml"
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(UnhangError, match="is no TOML"):
        configuration.load(tmp_path)


@pytest.mark.timeout(20)
def test_a_pipe_is_no_file_of_settings(tmp_path):
    os.mkfifo(tmp_path / "unhang.toml")
    with pytest.raises(UnhangError, match=r"unhang\.toml: it is no regular file"):
        configuration.load(tmp_path)


def test_what_editors_of_windows_put_in_front(tmp_path):
    assert configuration.read(written(tmp_path, "\ufeff[run]\nshm = false\n")).settings == {"shm": False}


def test_numbers_with_a_point_are_numbers(tmp_path):
    text = "[run]\nbatch = 1000000.0\nfallback-limit = 33.333333333333336\n"
    found = configuration.read(written(tmp_path, text))
    assert found.settings == {"batch": 1_000_000} and found.fallback_limit_s == 33.333333


def test_how_settings_are_tried(tmp_path):
    found = configuration.read(written(tmp_path, "[run]\nfallback = 'ask'\nfallback_limit = '5m'\n"))
    assert (found.fallback, found.fallback_limit_s, found.settings) == ("ask", 300, {})
    assert configuration.read(written(tmp_path, "[run]\nfallback = false\n")).fallback == "off"
    assert get_args(Mode) == configuration.FALLBACKS


@pytest.mark.parametrize(
    ("text", "says"),
    [("fallback = 'of'", "it is one of auto, ask, off"), ("fallback = 3", "a text in quotes"), ("fallback-limit = 1", "from 30 seconds")],
)
def test_how_they_cannot_be(tmp_path, text, says):
    path = written(tmp_path, f"[run]\n{text}\n")
    with pytest.raises(UnhangError, match=says) as raised:
        configuration.read(path)
    assert str(path) in str(raised.value)
