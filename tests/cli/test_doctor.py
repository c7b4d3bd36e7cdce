"""unhang doctor: exit codes, JSON as promised, snapshots that travel, and errors that say what to do."""

from __future__ import annotations

import json

import pytest
import typer
from typer.testing import CliRunner

from unhang.cli import doctor
from unhang.errors import UnhangError
from unhang.facts import gpu, snapshot
from unhang.facts.host import Space
from unhang.facts.nvml import Gpu

MIB = 1024 * 1024


@pytest.fixture
def app():
    app = typer.Typer()
    app.callback()(lambda: None)
    doctor.register(app)
    return app


@pytest.fixture
def run(app):
    return lambda *args: CliRunner().invoke(app, ["doctor", "--lang", "en", *args])


@pytest.fixture
def saved(machine, tmp_path):
    """A container with Docker's default /dev/shm."""

    def save(name="host.json", total=64 * MIB):
        host = machine({"/proc/mounts": "tmpfs /dev/shm tmpfs rw 0 0\n", "/dev/shm": None, "/.dockerenv": ""})
        host.spaces["/dev/shm"] = Space(total_bytes=total, free_bytes=total, inodes=0, free_inodes=0)
        path = tmp_path / name
        path.write_bytes(snapshot.encode(snapshot.take(host, only=["container", "shm"])))
        return str(path)

    return save


def test_of_this_machine(run):
    ran = run("--only", "memory")
    assert ran.exit_code in (0, 1), ran.output
    assert "memory" in ran.output
    assert "available" in ran.output


def test_where_checkpoints_go(run, tmp_path, monkeypatch):
    monkeypatch.setattr("unhang.facts.storage._WRITTEN_BYTES", MIB * 16)
    ran = run("--only", "storage", "--path", str(tmp_path), "--write-speed", "--json")
    (place,) = [line for line in json.loads(ran.stdout)["areas"][0]["summary"].split(", ") if "takes" in line]
    assert place.startswith(str(tmp_path)) and place.endswith("/s")
    assert not list(tmp_path.iterdir())


def test_details_are_for_who_asks(run, tmp_path):
    plain = {"gpus": (Gpu(index=0, address=None), Gpu(index=1, address=None)), "libraries": (), "nvswitches": (), "kernel_drivers": {}}
    pairs = (gpu.Pair(first=0, second=1, link="PIX", p2p="ok"),)
    values = dict.fromkeys(f for f in gpu.Gpus.__dataclass_fields__ if f != "unread") | plain | {"pairs": pairs}
    parts = {"gpu": snapshot.Part(state="read", facts=gpu.Gpus(**values))}
    path = tmp_path / "gpus.json"
    path.write_bytes(snapshot.encode(snapshot.Snapshot(host="node7", taken="", parts=parts)))
    assert "GPU0   X      PIX" in run("--snapshot", str(path), "--only", "gpu").stdout
    assert "GPU0" not in run("--snapshot", str(path)).stdout


def test_json(run, saved):
    ran = run("--json", "--snapshot", saved())
    found = json.loads(ran.stdout)
    assert (ran.exit_code, found["schema"], found["host"]) == (1, "unhang/doctor/1", "node7")
    assert {a["id"]: a["state"] for a in found["areas"]}["shm"] == "found"
    assert [(f["cause"], f["area"], f["severity"]) for f in found["findings"] if f["severity"] != "note"] == [("shm-exhausted", "shm", "error")]


def test_on_a_terminal(run, saved):
    ran = run("--snapshot", saved())
    assert "✗ shared memory" in ran.output
    assert "$ docker run --shm-size=8g IMAGE" in ran.output
    assert "errors 1, warnings 0" in ran.output


def test_in_chinese(run, saved):
    ran = run("--snapshot", saved(), "--lang", "zh")
    assert "共享内存" in ran.output
    assert "后果" in ran.output


@pytest.mark.parametrize(("level", "code"), [("error", 1), ("warning", 1), ("never", 0)])
def test_fail_on(run, saved, level, code):
    assert run("--snapshot", saved(), "--fail-on", level).exit_code == code
    assert run("--snapshot", saved(), "--fail-on", level, "--only", "container").exit_code == 0


def test_saved_and_judged_elsewhere(run, tmp_path):
    path = tmp_path / "host.json"
    assert run("--save", str(path), "--only", "memory", "--fail-on", "never").exit_code == 0
    again = run("--json", "--snapshot", str(path), "--fail-on", "never")
    assert [a["id"] for a in json.loads(again.stdout)["areas"]] == ["memory"]


def test_diff(run, saved):
    a, b = saved("a.json"), saved("b.json", total=128 * MIB)
    ran = run("--diff", a, b)
    assert ran.exit_code == 1
    assert "space.total_bytes" in ran.output
    assert f"{b}: {128 * MIB}" in ran.output.replace("\n      ", " ")
    assert run("--diff", a, a).exit_code == 0
    found = json.loads(run("--diff", a, b, "--json").stdout)
    assert (found["schema"], [d["path"] for d in found["differences"]]) == ("unhang/diff/1", ["space.total_bytes"])


def test_list(run):
    assert {line.split()[0] for line in run("--list").output.splitlines()} == set(snapshot.subjects())


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["--only", "gpus"], "no area named 'gpus'"),
        (["--snapshot", "no-such-file"], "cannot read no-such-file"),
        (["--snapshot", __file__], "no snapshot of a host"),
        (["--save", "/no/such/directory/x", "--only", "memory"], "cannot write"),
    ],
)
def test_bad_input_is_told(run, args, says):
    ran = run(*args)
    assert isinstance(ran.exception, UnhangError)
    assert says in str(ran.exception)
