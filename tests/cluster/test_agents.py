"""Agents that really run, on this machine: an `ssh` on the PATH starts them here, and misbehaves for some names."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

UNHANG = os.path.join(os.path.dirname(sys.executable), "unhang")
SSH = """#!/bin/sh
while [ "$1" != -- ]; do shift; done
case $2 in
  refused) echo "ssh: connect to host refused port 22: Connection refused" >&2; exit 255;;
  old) echo '{"id":-1,"version":[3,8]}'; sleep 60;;
  mtu) echo 'Welcome!'; echo '{"id":-1,"version":[3,12]}'; sleep 60;;
  no-python) echo "sh: 1: exec: python3: not found" >&2; exit 127;;
  127.0.0.3) export PYTHONPATH=SITE;;
esac
exec sh -c "$3"
"""


@pytest.fixture
def doctor(tmp_path):
    (tmp_path / "bin").mkdir()
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text("import time\nnow = time.time\ntime.time = lambda: now() + 300\n")
    (tmp_path / "bin" / "ssh").write_text(SSH.replace("SITE", str(tmp_path / "site")))
    (tmp_path / "bin" / "ssh").chmod(0o755)

    def run(*words, **environ):
        path = f"{tmp_path / 'bin'}:{os.environ['PATH']}"
        words = [UNHANG, "doctor", "--hosts", *map(str, words)]
        return subprocess.run(words, env={**os.environ, "PATH": path, **environ}, capture_output=True, text=True, timeout=300, cwd=tmp_path)

    return run


def test_hosts_that_cannot_be_used_are_told_apart(doctor, tmp_path):
    ran = doctor("127.0.0.1,127.0.0.2,127.0.0.3,refused,old,mtu,no-python", "--json", "--exclude", tmp_path / "out.txt")
    found = json.loads(ran.stdout)
    told = {f["says"].split()[0]: (f["cause"], f["says"]) for f in found["examination"]["findings"] if f["area"] == "reach"}
    assert ran.returncode == 1 and set(told) == {"refused", "old", "mtu", "no-python"}
    assert told["mtu"][0] == "network-mtu" and "Connection refused" in told["refused"][1]
    assert all("Python" in told[name][1] for name in ("old", "no-python"))
    (clock,) = [f["says"] for f in found["examination"]["findings"] if f["area"] == "clocks"]
    assert "127.0.0.3 +300.0 s" in clock
    links = {(link["sender"], link["receiver"]): link for link in found["links"]}
    assert len(links) == 6 and all(link["failed"] is None and link["bytes_per_s"] > 1e6 for link in links.values())
    assert found["coverage"] == 1.0
    assert set((tmp_path / "out.txt").read_text().split()) >= set(told)
    assert not [line for line in ran.stderr.splitlines() if "Traceback" in line]


def test_on_a_terminal_and_in_chinese(doctor):
    ran = doctor("127.0.0.1,127.0.0.2", "--no-color")
    assert "reached" in ran.stdout and "links" in ran.stdout and "MB/s" in ran.stdout
    assert "链路" in doctor("127.0.0.1,127.0.0.2", "--lang", "zh").stdout


def test_bad_input(doctor, tmp_path):
    (tmp_path / "hosts").write_text("node1 what\n")
    for words, says in (
        (["one"], "one host alone"),
        (["./nothing"], "cannot read"),
        (["./hosts"], "line 1"),
        (["a,a"], "twice"),
        (["slurm"], "allocation"),
        (["a,b", "--live"], "--live"),
        (["a,b", "--only", "shm"], "--only"),
    ):
        ran = doctor(*words)
        assert ran.returncode == 2 and says in ran.stderr, (words, ran.stderr)
