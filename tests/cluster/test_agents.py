"""Agents that really run, on this machine: an `ssh` on the PATH starts them here, and misbehaves for some names."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import pytest

UNHANG = os.path.join(os.path.dirname(sys.executable), "unhang")
SSH = r"""#!/bin/sh
while [ "$1" != -- ]; do shift; done
case $2 in
  refused) echo "ssh: connect to host refused port 22: Connection refused" >&2; exit 255;;
  unknown) echo "ssh: Could not resolve hostname unknown: Name or service not known" >&2; exit 255;;
  old) echo '{"id":-1,"version":[3,8]}'; sleep 60;;
  mtu) echo 'Welcome!'; echo '{"id":-1,"version":[3,12]}'; sleep 60;;
  no-python) echo "sh: 1: exec: python3: not found" >&2; exit 127;;
  127.0.0.3) export PYTHONPATH=SITE;;
  silent) : > silent; sleep 60;;
  babbling) exec yes;;
  complaining) yes >&2;;
  endless) head -c 100000000 /dev/zero | tr '\0' x; sleep 60;;
  promising) echo '{"id":-1,"version":[3,11]}'; exec yes "+$(printf %0700d 0)";;
  wrong) echo '{"id":-1,"version":"x"}'; sleep 60;;
  127.0.0.4) sh -c "$3" | sed -u 's/"now_s": [0-9.]*/"now_s": "x"/'; exit;;
  127.0.0.2) printf '+----+\n| Hi |\n+----+\n';;
  127.0.0.7) sh -c "$3" | sed -u 's/"now_s":/"names": 5, "now_s":/'; exit;;
  127.0.0.5) sh -c "$3" | sed -u 's/"addresses": \[/"addresses": 7, "x": [/'; exit;;
  127.0.0.6) sh -c "$3" | sed -u 's/unhang.host.2/nothing/'; exit;;
esac
exec sh -c "$3"
"""

# All tasks get its standard input; their lines are labelled.
SRUN = """#!/bin/bash
for last; do :; done
exec 3<&0
tee <&3 >(SLURM_PROCID=0 sh -c "$last" | sed -u 's/^/0: /') >(SLURM_PROCID=2 sh -c "$last" | sed -u 's/^/2: /') >/dev/null &
yes $(printf %0500d 0) | head -n 8000 | sed -u 's/^/1: /' &
wait %1
"""


@pytest.fixture
def doctor(tmp_path):
    (tmp_path / "bin").mkdir()
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text("import time\nnow = time.time\ntime.time = lambda: now() + 300\n")
    (tmp_path / "bin" / "ssh").write_text(SSH.replace("SITE", str(tmp_path / "site")))
    (tmp_path / "bin" / "srun").write_text(SRUN)
    for program in (tmp_path / "bin").iterdir():
        program.chmod(0o755)

    def run(*words, wait=True, **environ):
        path = f"{tmp_path / 'bin'}:{os.environ['PATH']}"
        words = [UNHANG, "doctor", "--hosts", *map(str, words)]
        where = {"env": {**os.environ, "PATH": path, **environ}, "cwd": tmp_path, "stdin": subprocess.DEVNULL}
        if wait:
            return subprocess.run(words, **where, capture_output=True, text=True, timeout=300)
        # A shell in the background hands on that SIGINT is ignored.
        back = {"preexec_fn": lambda: signal.signal(signal.SIGINT, signal.default_int_handler)}
        return subprocess.Popen(words, **where, **back, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)

    return run


def test_hosts_that_cannot_be_used_are_told_apart(doctor, tmp_path):
    ran = doctor("127.0.0.1,127.0.0.2,127.0.0.3,refused,unknown,old,mtu,no-python", "--json", "--exclude", tmp_path / "out.txt")
    found = json.loads(ran.stdout)
    told = {f["says"].split()[0]: (f["cause"], f["says"]) for f in found["examination"]["findings"] if f["area"] == "reach"}
    assert ran.returncode == 1 and set(told) == {"refused", "unknown", "old", "mtu", "no-python"}
    assert told["mtu"][0] == "network-mtu" and "Connection refused" in told["refused"][1] and told["unknown"][0] == "dns-resolution"
    assert all("Python" in told[name][1] for name in ("old", "no-python"))
    (clock,) = [f["says"] for f in found["examination"]["findings"] if f["area"] == "clocks"]
    assert "127.0.0.3 +300.0 s" in clock
    links = {(link["sender"], link["receiver"]): link for link in found["links"]}
    assert len(links) == 6 and all(link["failed"] is None and link["bytes_per_s"] > 1e6 for link in links.values())
    assert found["coverage"] == 1.0
    assert set((tmp_path / "out.txt").read_text().split()) >= set(told)
    assert not [line for line in ran.stderr.splitlines() if "Traceback" in line]


BAD = ("babbling", "complaining", "endless", "promising", "wrong")
LIARS = ("127.0.0.4", "127.0.0.5")


def test_whatever_a_host_sends_the_others_are_looked_at(doctor):
    ran = doctor(",".join(["127.0.0.1", "127.0.0.2", "127.0.0.6", "127.0.0.7", *BAD, *LIARS]), "--json")
    assert "Traceback" not in ran.stderr and "Exception" not in ran.stderr
    examined = json.loads(ran.stdout)["examination"]
    told = {f["says"].split()[0]: f["says"] for f in examined["findings"] if f["area"] == "reach"}
    assert set(told) == {*BAD, *LIARS}, told
    assert all("answer that is not valid" in told[name] for name in ("wrong", *LIARS))
    assert not {name: told[name] for name in BAD if name != "wrong" and "sends without end" not in told[name]}
    (reached,) = [area for area in examined["areas"] if area["id"] == "reach"]
    assert any("facts: 127.0.0.6" in why for why in reached["unread"])


def test_one_task_that_sends_without_end_is_not_taken_for_all(doctor):
    ran = doctor("slurm", "--json", SLURM_JOB_NODELIST="127.0.0.1,127.0.0.2,127.0.0.3")
    examined = json.loads(ran.stdout)["examination"]
    assert [f["says"] for f in examined["findings"] if f["area"] == "reach"] == ["127.0.0.2 sends without end"]
    assert [area["summary"] for area in examined["areas"] if area["id"] == "reach"] == ["2 of 3 hosts"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it(doctor, tmp_path, number):
    running = doctor(",".join(["127.0.0.1", "silent", *BAD]), wait=False)
    until = time.monotonic() + 60
    try:
        while not (tmp_path / "silent").exists() and time.monotonic() < until:
            time.sleep(0.05)
        assert (tmp_path / "silent").exists()
        running.send_signal(number)
        said = running.communicate(timeout=60)[1]
    finally:
        running.kill()
    assert running.returncode == 128 + number and "Traceback" not in said


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


def test_bad_input_where_hosts_join_by_themselves(tmp_path):
    (tmp_path / "train.py").touch()
    at, known = ("--nnodes", "3", "--master-addr", "192.0.2.1"), {"UNHANG_SECRET": "of-the-tests-of-unhang"}
    for words, environ, says in (
        ((*at, "--node-rank", "0"), {}, "UNHANG_SECRET is not set"),
        ((*at, "--node-rank", "0"), {"UNHANG_SECRET": "short"}, "shorter than 16 characters"),
        ((*at, "--node-rank", "0"), known, "cannot listen at 192.0.2.1:29500"),
        ((*at, "--node-rank", "3"), known, "--node-rank 3 is not between 0 and 2"),
        (at, known, "--node-rank is missing"),
        (("--nnodes", "3", "--node-rank", "0"), known, "--master-addr is missing"),
        (at, {**known, "NODE_RANK": "1", "MASTER_PORT": "none"}, "MASTER_PORT=none"),
        (("--nnodes", "two"), known, "is no number of hosts"),
        (("--node-rank", "0"), known, "go with --nnodes"),
    ):
        clean = {k: v for k, v in os.environ.items() if k not in ("UNHANG_SECRET", "MASTER_ADDR", "MASTER_PORT", "NODE_RANK")}
        words = [UNHANG, "run", *words, "--", "train.py"]
        ended = subprocess.run(words, env={**clean, **environ}, cwd=tmp_path, capture_output=True, text=True, timeout=120)
        assert ended.returncode == 2 and says in ended.stderr, ended.stderr
        assert not (tmp_path / "runs").exists() or not list((tmp_path / "runs").iterdir())
