"""Paths behind a directory that one may not enter: the user's error, said with its reason, and never a failure of ours."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
from tests.flight import jobs
from tests.flight.test_outcome import history, last

import unhang
from unhang.errors import RunDirError
from unhang.records.rundir import RunDir

# Root without its privilege over files, and with its own interpreter still in reach.
AS_USER = ("setpriv", "--bounding-set=-dac_override,-dac_read_search") if os.geteuid() == 0 else ()


@pytest.fixture
def place(tmp_path):
    """A directory with `locked` in it, which may not be entered."""
    if AS_USER and subprocess.run([*AS_USER, "true"], capture_output=True, check=False).returncode != 0:
        pytest.skip("root cannot give its privileges up here")
    for name in ("locked/oom.log", "open/run.log"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text("step 1\n")
    (tmp_path / "locked").chmod(0)
    yield tmp_path
    (tmp_path / "locked").chmod(0o700)


def unhang_as_user(place, *words):
    """The exit code and what was said, where permissions count."""
    ran = subprocess.run(
        [*AS_USER, sys.executable, "-m", "unhang", *words],
        cwd=place,
        env={"PATH": os.environ["PATH"], "HOME": "/nonexistent", "PYTHONPATH": str(Path(unhang.__file__).parents[1]), "PYTHONDONTWRITEBYTECODE": "1"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return ran.returncode, ran.stdout, ran.stderr.splitlines()


@pytest.mark.parametrize(
    "words",
    [
        ("why", "locked/oom.log"),
        ("why", "locked"),
        ("why", "locked/*.log"),
        ("why", "lock*/oom.log"),
        ("why", "lock*/*.log"),
        ("why", "**/oom.log"),
        ("why", "open/run.log", "locked/oom.log"),
        ("why", "open/run.log", "locked/*.log"),
        ("why", "--ras", "locked/ras.json"),
        ("vars", "locked/train.sh"),
        ("vars", "--libs", "locked/site-packages", "NCCL_DEBUG"),
        ("run", "locked/train.py"),
        ("run", "locked/start"),
    ],
    ids=" ".join,
)
def test_the_path_and_the_reason_are_said(place, words):
    code, out, said = unhang_as_user(place, *words)
    named = next(w for w in words if "lock" in w or "oom" in w)
    assert (code, out, said[0]) == (2, "", f"unhang: cannot read {named}: Permission denied")


def test_a_pattern_reads_what_it_may_and_says_what_it_could_not(place):
    code, out, _ = unhang_as_user(place, "why", "*/*.log", "--json")
    assert code == 2 and '"locked"' in out and "it cannot be read: Permission denied" in out


def test_nothing_there_is_still_nothing_there(place):
    assert unhang_as_user(place, "why", "open/other.log")[2][0] == "unhang: there is no open/other.log"
    assert unhang_as_user(place, "why", "open/*.txt")[2][0] == "unhang: no log matches open/*.txt"


def test_incidents_that_cannot_be_looked_at(tmp_path):
    (tmp_path / "incidents").symlink_to("incidents")
    assert RunDir(tmp_path).incident_numbers() == []
    (tmp_path / "incidents").unlink()
    (tmp_path / "incidents" / "1").mkdir(parents=True)
    (tmp_path / "incidents" / "1" / "incident.json").symlink_to("x" * 300)
    with pytest.raises(RunDirError, match="File name too long"):
        RunDir(tmp_path).incident_numbers()


def test_a_directory_for_checkpoints_that_is_closed_is_not_called_absent(place):
    code, shown, said = unhang_as_user(place, "doctor", "--lang", "en", "--only", "storage", "--path", "locked/ckpt", "--fail-on", "never")
    assert (code, said) == (0, []) and "storage" in shown
    code, _, said = unhang_as_user(place, "doctor", "--lang", "en", "--only", "storage", "--path", "open/ckpt")
    assert code == 2 and "there is no such directory" in said[0]


def test_a_dump_that_may_not_be_read_is_named_with_what_to_do(place):
    everybody = {"0": ("default_pg", [0, 1, 2])}
    for folder, groups in (("told", everybody), ("untold", {})):
        (place / folder).mkdir()
        for r in range(3):
            path = place / folder / f"nccl_trace_rank_{r}"
            path.write_bytes(pickle.dumps(jobs.dump([*history(3), last(4, "started")], groups), protocol=2))
            path.chmod(0 if r == 2 else 0o644)
        code, out, _ = unhang_as_user(place, "why", "--json", folder)
        verdict = json.loads(out)
        p = verdict["primary"]
        assert (code, p["cause"], p["ranks"]) == (1, "unknown", [0, 1])
        assert "the dump of rank 2 could not be read: permission denied" in p["says"] and "there is no dump" not in p["says"]
        assert p["remedies"][0]["id"] == "readable-dumps" and p["remedies"][0]["command"] == f"sudo chmod a+r {folder}/nccl_trace_rank_2"
        assert any(n["what"] == f"{folder}/nccl_trace_rank_2" and n["unread"] for n in verdict["not_examined"])
        assert not any("no dump of it was given" in n["why"] for n in verdict["not_examined"])
