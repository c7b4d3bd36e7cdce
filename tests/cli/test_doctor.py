"""unhang doctor: exit codes, JSON as promised, snapshots that travel, and errors that say what to do."""

from __future__ import annotations

import errno
import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from unhang.cli import doctor
from unhang.errors import UnhangError
from unhang.facts import gpu, job, ports, shm, snapshot, snapshot_file
from unhang.facts.host import Host, Space
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
        path.write_bytes(snapshot_file.encode(snapshot.take(host, only=["container", "shm"])))
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
    path.write_bytes(snapshot_file.encode(snapshot.Snapshot(host="node7", taken="", parts=parts)))
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
    assert "后果: NCCL 为每对 GPU 占用几 MiB" in ran.output


@pytest.mark.parametrize(("level", "code"), [("error", 1), ("warning", 1), ("never", 0)])
def test_fail_on(run, saved, level, code):
    assert run("--snapshot", saved(), "--fail-on", level).exit_code == code
    assert run("--snapshot", saved(), "--fail-on", level, "--only", "container").exit_code == 0


def test_saved_and_judged_elsewhere(run, tmp_path):
    path = tmp_path / "host.json"
    assert run("--save", str(path), "--only", "memory", "--fail-on", "never").exit_code == 0
    again = run("--json", "--snapshot", str(path), "--fail-on", "never")
    assert [a["id"] for a in json.loads(again.stdout)["areas"]] == ["container", "memory", "numa"]


# A command line that was cut inside a quote, and a key without its end.
@pytest.mark.parametrize("command", ["serve token='abcdef0123456789", "serve -----BEGIN RSA PRIVATE KEY-----MIIEpAIBAAKCAQEA7x"])
def test_what_was_saved_can_be_read_back_whatever_was_hidden_in_it(run, tmp_path, monkeypatch, command):
    held = ports.Holder(port=29500, address="::", state="listening", uid=0, pid=7, command=command)
    seen = ports.Ports(
        listeners=(held, replace(held, port=29501, command="python train.py")),
        connections=(),
        store_port=29500,
        range_first=None,
        range_last=None,
        reserved=(),
        in_range=None,
        job=job.of({}),
    )
    taken = snapshot.Snapshot(host="node7", taken="t", parts={"ports": snapshot.Part(state="read", facts=seen)})
    monkeypatch.setattr(snapshot, "take", lambda host, only: taken)
    path = tmp_path / "host.json"
    run("--save", str(path), "--only", "ports")
    back = snapshot_file.decode(path.read_bytes(), name="x").get(ports.SUBJECT)
    assert "abcdef" not in path.read_text() and "MIIE" not in path.read_text()
    assert [(h.port, h.command.split()[0]) for h in back.listeners] == [(29500, "serve"), (29501, "python")]
    assert json.loads(run("--diff", "now", str(path), "--json").stdout)["differences"] == []


def test_a_snapshot_that_cannot_be_written_leaves_the_old_one(run, tmp_path, monkeypatch):
    path = tmp_path / "host.json"
    path.write_text(old := '{"schema": "unhang/host/2", "host": "x", "taken": "", "parts": {}}')

    def full(self, target):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    assert "No space left" in str(run("--save", str(path), "--only", "memory").exception)
    assert (path.read_text(), list(tmp_path.iterdir())) == (old, [path])


def test_names_that_are_no_text_are_saved_and_printed(run, tmp_path, monkeypatch):
    segment = shm.Segment(name="nccl-\udcff", size_bytes=1, uid=0, owner=None, mode=0o600, age_s=9e9, mapped_by=())
    taken = snapshot.take(Host(), only=["shm"])
    seen = replace(taken.get(shm.SUBJECT), segments=(segment,))
    monkeypatch.setattr(snapshot, "take", lambda host, only: replace(taken, parts={"shm": snapshot.Part(state="read", facts=seen)}))
    path = tmp_path / "host.json"
    ran = run("--save", str(path), "--only", "shm", "--json", "--fail-on", "never", "--fix")
    assert ran.exit_code == 0, ran.exception
    assert "/dev/shm/nccl-?" in [s["path"] for s in json.loads(ran.stdout)["repair"]["segments"]]
    assert [s.name for s in snapshot_file.decode(path.read_bytes(), name="x").get(shm.SUBJECT).segments] == ["nccl-?"]
    assert run("--diff", "now", str(path), "--only", "shm", "--json").exit_code == 1


def test_diff(run, saved):
    a, b = saved("a.json"), saved("b.json", total=128 * MIB)
    ran = run("--diff", a, b)
    assert ran.exit_code == 1
    assert "space.total_bytes" in ran.output
    assert f"{b}: {128 * MIB}" in ran.output.replace("\n      ", " ")
    assert run("--diff", a, a).exit_code == 0
    found = json.loads(run("--diff", a, b, "--json").stdout)
    assert (found["schema"], [d["path"] for d in found["differences"]]) == ("unhang/diff/1", ["space.total_bytes"])


def test_of_one_area_the_rest_is_still_known(run, saved):
    """Which command fits here, say."""
    found = json.loads(run("--snapshot", saved(), "--only", "shm", "--json").stdout)
    assert [a["id"] for a in found["areas"]] == ["shm"]
    (one,) = (f for f in found["findings"] if f["severity"] == "error")
    assert any((r["command"] or "").startswith("docker run --shm-size") for r in one["remedies"])


def test_a_snapshot_that_says_nothing(run, tmp_path):
    (tmp_path / "host.json").write_text('{"schema": "unhang/host/2", "host": "x", "taken": "", "parts": {}}')
    ran = run("--snapshot", str(tmp_path / "host.json"))
    assert isinstance(ran.exception, UnhangError)
    assert "holds nothing of what is asked for" in str(ran.exception)


def test_two_looks_at_one_machine_do_not_differ(run):
    assert run("--diff", "now", "now", "--only", "names", "--only", "numa", "--only", "limits").exit_code == 0


def test_list(run):
    assert {line.split()[0] for line in run("--list").output.splitlines()} == set(snapshot.subjects())


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["--only", "gpus"], "no area named 'gpus'"),
        (["--snapshot", "no-such-file"], "cannot read no-such-file"),
        (["--snapshot", __file__], "no snapshot of a host"),
        (["--save", "/no/such/directory/x", "--only", "memory"], "cannot write"),
        (["--only", "memory", "--path", "/"], "are for the area storage"),
        (["--only", "memory", "--write-speed"], "are for the area storage"),
        (["--snapshot", "x.json", "--path", "/"], "do not go with --snapshot"),
    ],
)
def test_bad_input_is_told(run, args, says):
    ran = run(*args)
    assert isinstance(ran.exception, UnhangError)
    assert says in str(ran.exception)


@pytest.mark.parametrize("also", [("--save", "s.json"), ("--snapshot", "b.json"), ("--live",), ("--fix",), ("--path", "."), ("--write-speed",)])
def test_what_diff_would_pass_over_is_refused(run, also):
    ended = run("--diff", "a.json", "now", *also)
    assert f"does not go with {also[0]}" in str(ended.exception)


def test_the_areas_as_json(run):
    areas = json.loads(run("--list", "--json").stdout)
    assert {"id": "shm", "title": "shared memory"} in areas


def test_what_others_may_read_stays_as_it_was(run, tmp_path):
    saved = tmp_path / "host.json"
    saved.write_text("")
    saved.chmod(0o600)
    assert run("--save", str(saved), "--only", "numa").exit_code == 0
    assert saved.stat().st_mode & 0o777 == 0o600 and [p.name for p in tmp_path.iterdir()] == ["host.json"]


@pytest.mark.parametrize(("name", "says"), [("gone", "there is no such directory"), ("file", "it is no directory")])
def test_a_path_that_is_no_directory_is_refused(run, tmp_path, name, says):
    (tmp_path / "file").write_text("")
    ended = run("--only", "storage", "--path", str(tmp_path / name))
    assert says in str(ended.exception) and ended.stdout == ""


def test_whose_snapshot_it_is_and_of_when(run, saved):
    path = saved()
    seen = json.loads(Path(path).read_text())
    first = run("--snapshot", path).stdout.splitlines()[0]
    assert seen["host"] in first and seen["taken"][:10] in first
    assert seen["taken"][:10] not in run("--only", "numa").stdout


def test_several_areas_at_once(run):
    areas = [a["id"] for a in json.loads(run("--only", "numa,clock", "--only", "shm", "--json").stdout)["areas"]]
    assert sorted(areas) == ["clock", "numa", "shm"]


def test_areas_with_commas(run, saved):
    path = saved()
    both = run("--snapshot", path, "--only", "shm,container", "--json")
    assert [a["id"] for a in json.loads(both.stdout)["areas"]] == [
        a["id"] for a in json.loads(run("--snapshot", path, "--only", "shm", "--only", "container", "--json").stdout)["areas"]
    ]
    assert both.exit_code == 1


def test_values_of_what_only_begins_as_ours_do_are_not_saved(run, tmp_path, monkeypatch):
    environ = {
        "NCCL_DEBUG": "INFO",
        "OMP_NUM_THREAD": "4",
        "NCCL_DOOR_OF_THE_LAB": "sesame-4711",
        "CUDA_PIN_OF_MY_CARD": "sesame-4712",
        "MASTER_PIN": "sesame-4713",
        "HOUSE_ADDR": "sesame-4714",
    }
    monkeypatch.setattr("unhang.facts.host.os.environ", {"HOME": str(tmp_path), "PATH": "/usr/bin", **environ})
    path = tmp_path / "host.json"
    run("--save", str(path), "--only", "variables", "--fail-on", "never")
    kept = json.loads(path.read_text())["parts"]["variables"]["facts"]
    assert {s["name"]: s["value"] for s in kept["settings"]} == {"NCCL_DEBUG": "INFO", "NCCL_DOOR_OF_THE_LAB": None}
    assert kept["plain"] == {"OMP_NUM_THREAD": "4"} and set(environ) - {"NCCL_DEBUG", "NCCL_DOOR_OF_THE_LAB"} <= set(kept["names"])
    assert "sesame" not in path.read_text()
    assert json.loads(run("--diff", "now", str(path), "--json", "--only", "variables").stdout)["differences"] == []


@pytest.mark.parametrize("option", ["--snapshot", "--diff"])
def test_only_files_of_a_bounded_size_are_read_as_snapshots(run, tmp_path, saved, option):
    os.mkfifo(tmp_path / "pipe")
    with (tmp_path / "large").open("wb") as f:
        f.truncate(doctor._MAX_BYTES + 1)
    for name, says in (("/dev/zero", "no regular file"), (str(tmp_path / "pipe"), "no regular file"), (str(tmp_path), "no regular file")):
        assert f"{name} is {says}" in str(run(option, name, *([saved()] if option == "--diff" else [])).exception)
    assert "is larger than 16 MiB" in str(run(option, str(tmp_path / "large"), *(["now"] if option == "--diff" else [])).exception)


def test_an_area_that_was_not_saved_is_unknown(run, saved):
    path = saved()
    ran = run("--snapshot", path, "--only", "shm,gpu", "--json")
    assert [(a["id"], a["state"], a["summary"]) for a in json.loads(ran.stdout)["areas"] if a["id"] == "gpu"] == [
        ("gpu", "unknown", "not in this snapshot")
    ]
    assert "? GPUs" in (shown := run("--snapshot", path, "--only", "gpu,container").stdout) and "not in this snapshot" in shown
    # The container, by which others are judged, is there, and was not asked for.
    nothing = run("--snapshot", path, "--only", "gpu")
    assert "holds nothing of what is asked for" in str(nothing.exception) and nothing.exception.cause == "it holds container, shm"
    # A whole one names only what it holds.
    assert {a["id"] for a in json.loads(run("--snapshot", path, "--json").stdout)["areas"]} == {"container", "shm"}


def test_what_is_no_snapshot_is_not_replaced(run, tmp_path):
    log = tmp_path / "b.log"
    log.write_text("step 1 loss 2.0\n")
    ran = run("--save", str(log), "--only", "numa")
    assert "no snapshot of ours; it would be lost" in str(ran.exception) and ran.stdout == ""
    assert log.read_text() == "step 1 loss 2.0\n"
    again = tmp_path / "host.json"
    for _ in range(2):
        assert run("--save", str(again), "--only", "numa").exit_code == 0
    assert snapshot_file.decode(again.read_bytes(), name="x").parts.keys() == {"container", "numa"}


def test_saved_to_standard_output(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    ran = run("--save", "-", "--only", "numa", "--fail-on", "never")
    assert snapshot_file.decode(ran.stdout.encode(), name="-").parts.keys() == {"container", "numa"}
    assert "NUMA" in ran.stderr and list(tmp_path.iterdir()) == []
    for also in ("--json", "--fix"):
        assert f"and so does {also}" in str(run("--save", "-", also, "--only", "numa").exception)
