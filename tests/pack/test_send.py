"""Environments that are sent over a real sshd."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys

import pytest
from tests.pack import sshd
from tests.pack.conftest import run, unhang

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(sshd.SSHD is None or shutil.which("ssh") is None, reason="there is no sshd"),
    pytest.mark.skipif(os.geteuid() != 0, reason="an sshd of one's own takes root in most installations"),
]


@pytest.fixture(scope="module")
def ssh(tmp_path_factory):
    with sshd.started(tmp_path_factory.mktemp("sshd")) as options:
        yield options


def send(env, *hosts: str, to, ssh: str, code: int = 0) -> tuple[int, dict[str, dict]]:
    told = json.loads(unhang("send", "--json", env, *hosts, "--to", to, "--ssh", ssh, code=code))
    return told["total_bytes"], {h["host"]: h for h in told["hosts"]}


def test_only_what_differs_is_sent_again_and_all_is_proven(env, tmp_path, ssh):
    # Two hosts with one file system: one of them brings it, the other one finds it there. The third does not exist.
    dest = tmp_path / "far away" / "env"
    total, hosts = send(env, "127.0.0.1", "localhost", "127.0.0.1", "host.invalid", to=dest, ssh=ssh, code=1)
    assert {hosts[h]["state"] for h in ("127.0.0.1", "localhost")} <= {"sent", "unchanged"}
    assert hosts["host.invalid"]["state"] == "failed" and hosts["host.invalid"]["why"]
    assert max(h["sent_bytes"] for h in hosts.values()) >= total
    assert run(dest / "bin" / "demo-cli") == f"first {dest} {dest}/.python\n"
    assert [p.name for p in dest.parent.iterdir()] == ["env"]
    assert json.loads(unhang("verify", "--json", dest))["findings"] == []

    source = env.parent / "project" / "src" / "demo_pkg" / "__init__.py"
    before = source.read_text()
    source.write_text(before.replace("first", "second"))
    try:
        _, hosts = send(env, "127.0.0.1", to=dest, ssh=ssh)
        assert hosts["127.0.0.1"]["state"] == "sent"
        assert hosts["127.0.0.1"]["sent_bytes"] < total / 100
        assert run(dest / "bin" / "demo-cli").startswith("second ")
        areas = {a["id"]: a["state"] for a in hosts["127.0.0.1"]["areas"]}
        assert (areas["files"], areas["imports"], areas["scripts"]) == ("ok", "ok", "ok")
    finally:
        source.write_text(before)


def test_what_was_changed_there_is_put_right(env, tmp_path, ssh, monkeypatch):
    dest = tmp_path / "far" / "env"
    # More on stderr than a pipe holds: tar has a line for each file if the disk is full.
    talkative = tmp_path / "ssh"
    talkative.write_text(f'#!/bin/sh\nhead -c 200000 /dev/zero >&2\nexec {shutil.which("ssh")} "$@"\n')
    talkative.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    total, _ = send(env, "127.0.0.1", to=dest, ssh=ssh)
    library = next((dest / ".python" / "lib").glob("python3*")) / "json" / "decoder.py"
    site = next((dest / "lib").glob("python3*")) / "site-packages"
    (site / "one.bin").write_bytes(b"other")
    _, hosts = send(env, "127.0.0.1", to=dest, ssh=ssh)
    assert (hosts["127.0.0.1"]["state"], hosts["127.0.0.1"]["sent_bytes"] < total / 100) == ("sent", True)
    library.unlink()
    _, hosts = send(env, "127.0.0.1", to=dest, ssh=ssh)
    assert library.exists() and hosts["127.0.0.1"]["state"] == "sent"
    (dest / ".unhang" / "placed.json").write_text("{}")
    _, hosts = send(env, "127.0.0.1", to=dest, ssh=ssh)
    assert hosts["127.0.0.1"]["state"] == "sent" and hosts["127.0.0.1"]["sent_bytes"] >= total


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_goes_on_after_an_interrupt(number, env, tmp_path, ssh):
    dest = tmp_path / "env"
    argv = [sys.executable, "-m", "unhang", "pack", "send", env, "127.0.0.1", "--to", dest, "--ssh", ssh]
    process = subprocess.Popen(list(map(str, argv)), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    assert any("piece 1 of 2" in line for line in process.stderr)
    process.send_signal(number)
    said = process.communicate()[1]
    assert number == signal.SIGKILL or (process.returncode == 130 and said.endswith("the same command goes on\n"))
    assert not dest.exists()
    total, hosts = send(env, "127.0.0.1", to=dest, ssh=ssh)
    assert hosts["127.0.0.1"]["sent_bytes"] < total * 0.75
    assert [p.name for p in tmp_path.iterdir()] == ["env"]
    assert run(dest / "bin" / "demo-cli").startswith("first ")


def test_what_is_not_ours_is_left_alone(env, tmp_path, ssh):
    (tmp_path / "env").mkdir()
    (tmp_path / "env" / "thesis.tex").write_text("three years")
    _, hosts = send(env, "127.0.0.1", to=tmp_path / "env", ssh=ssh, code=1)
    assert "was not placed by unhang pack" in hosts["127.0.0.1"]["why"]
    assert (tmp_path / "env" / "thesis.tex").read_text() == "three years"
