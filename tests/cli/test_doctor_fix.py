"""unhang doctor on machines that really have something wrong, and what --fix does about it."""

from __future__ import annotations

import json
import os
import pty
import socket
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from unhang.cli import doctor, doctor_fix
from unhang.errors import UnhangError
from unhang.facts.snapshot import Snapshot
from unhang.model import Examination, HostFinding, Remedy

UNHANG = (sys.executable, "-m", "unhang")
ROOT = os.geteuid() == 0
UNSHARE = ("unshare", "-m") if ROOT else ("unshare", "-rm")


def can_mount() -> bool:
    inside = "mount -t tmpfs tmpfs /dev/shm"
    try:
        return subprocess.run([*UNSHARE, "sh", "-c", inside], capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        return False


own_shm = pytest.mark.skipif(not can_mount(), reason="a /dev/shm of our own needs root, or user namespaces, and unshare")


def unhang(*argv: str, shell: str = "true", before: tuple[str, ...] = (), timeout: float = 60, **more) -> subprocess.CompletedProcess[str]:
    environ = {k: v for k, v in os.environ.items() if not k.startswith("UNHANG_")} | {"COLUMNS": "200", "LC_ALL": "C.UTF-8"}
    command = [*before, "sh", "-c", f'{shell} && exec "$@"', "sh", *UNHANG, *argv]
    more = {"stdin": subprocess.DEVNULL, **more}
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False, env=environ, **more)


def findings(done: subprocess.CompletedProcess[str]) -> dict[str, dict]:
    assert done.returncode in (0, 1), done.stderr
    return {f["cause"]: f for f in json.loads(done.stdout)["findings"]}


@own_shm
def test_a_dev_shm_of_one_mib():
    done = unhang("doctor", "--json", "--only", "shm", before=UNSHARE, shell="mount -t tmpfs -o size=1m tmpfs /dev/shm")
    assert done.returncode == 1
    (one,) = findings(done).values()
    assert (one["cause"], one["severity"]) == ("shm-exhausted", "error")
    assert one["says"] == "/dev/shm holds 1 MiB in all, the size that it was mounted with"


@own_shm
def test_a_dev_shm_that_is_read_only():
    done = unhang("doctor", "--json", "--only", "shm", before=UNSHARE, shell="mount -t tmpfs -o ro,size=8g tmpfs /dev/shm")
    assert [(c, f["severity"]) for c, f in findings(done).items()] == [("shm-permission", "error")]


def test_a_port_that_is_held():
    with socket.create_server(("127.0.0.1", 0)) as held:
        port = held.getsockname()[1]
        done = unhang("doctor", "--json", "--only", "ports", shell=f"export MASTER_ADDR=127.0.0.1 MASTER_PORT={port}")
    assert done.returncode == 1
    one = next(f for f in json.loads(done.stdout)["findings"] if f["severity"] != "note")
    assert (one["cause"], one["severity"]) == ("port-in-use", "warning")
    assert one["says"].startswith(f"MASTER_PORT={port} is taken by pid {os.getpid()} (")
    assert f"ps -fp {os.getpid()}" in [r["command"] for r in one["remedies"]]


def test_few_open_files():
    done = unhang("doctor", "--json", shell="ulimit -n 32")
    assert findings(done)["limits"]["severity"] == "error"
    assert "32 open files" in findings(done)["limits"]["says"]
    assert {a["id"]: a["state"] for a in json.loads(done.stdout)["areas"]}["memory"] != "unknown"


@pytest.fixture
def group():
    """Makes a control group of a controller below its top, with these files written."""
    made = []

    def make(controller: str, v1: dict[str, str], v2: dict[str, str]) -> str:
        for top, files in ((f"/sys/fs/cgroup/{controller}", v1), ("/sys/fs/cgroup", v2)):
            if os.path.exists(f"{top}/cgroup.procs"):
                path = f"{top}/unhang-test-{os.getpid()}"
                try:
                    os.mkdir(path)
                    made.append(path)
                    for name, text in files.items():
                        Path(path, name).write_text(text)
                except OSError as e:
                    pytest.skip(f"no control group can be made here: {e}")
                return path
        pytest.skip("there are no control groups here")

    yield make
    for path in made:
        os.rmdir(path)


def test_few_processes_in_the_control_group(group):
    path = group("pids", {"pids.max": "40"}, {"pids.max": "40"})
    one = findings(unhang("doctor", "--json", "--only", "limits", shell=f"echo $$ > {path}/cgroup.procs"))["limits"]
    assert (one["severity"], one["evidence"][0]["source"]) == ("error", f"{path}/pids.max")
    assert "of 40 processes and threads" in one["says"]


def test_little_memory_in_the_control_group_and_its_oom_killer(group):
    limit = str(200 << 20)
    path = group("memory", {"memory.limit_in_bytes": limit}, {"memory.max": limit, "memory.swap.max": "0"})
    here = f"echo $$ > {path}/cgroup.procs"
    one = json.loads(unhang("doctor", "--json", "--only", "memory", shell=here).stdout)["findings"][0]
    assert (one["cause"], one["severity"]) == ("host-oom-or-killed", "error")
    assert "the control group may use 200 MiB" in one["says"]
    eaten = subprocess.run(["sh", "-c", f'{here} && exec "$@"', "sh", sys.executable, "-c", "x = b'x' * (400 << 20)"], check=False, timeout=60)
    if eaten.returncode != -9:
        pytest.skip("nothing was killed here: there is swap")
    second = json.loads(unhang("doctor", "--json", "--only", "memory", shell=here).stdout)["findings"][1]
    assert (second["severity"], second["says"]) == ("warning", "the OOM killer has ended 1 process of this control group")


# In a /dev/shm of its own: two dead segments, one that a process has mapped without a descriptor, a young one, and another user's.
SEGMENTS = textwrap.dedent(
    """
    import mmap, os, subprocess, sys, time

    def make(name, age_s=3600):
        with open(f"/dev/shm/{name}", "wb") as file:
            file.write(b"x" * (1 << 20))
        os.utime(f"/dev/shm/{name}", (time.time() - age_s,) * 2)

    for name in ("nccl-dead01", "torch_4194000_2_3", "nccl-live01", "nccl-other1", "sem.backup-lock"):
        make(name)
    make("nccl-young1", age_s=0)
    if os.getuid() == 0 and sys.argv[1] == "chown":
        os.chown("/dev/shm/nccl-other1", 12345, 12345)
    with open("/dev/shm/nccl-live01", "r+b") as file:
        mapped = mmap.mmap(file.fileno(), 0)
    done = subprocess.run(sys.argv[2:])
    print("left:", *sorted(os.listdir("/dev/shm")))
    sys.exit(done.returncode)
    """
)
OTHER = "chown" if ROOT else "keep"
ALL = ["nccl-dead01", "nccl-live01", "nccl-other1", "nccl-young1", "sem.backup-lock", "torch_4194000_2_3"]
KEPT = ["nccl-live01", *(["nccl-other1"] if ROOT else []), "nccl-young1", "sem.backup-lock"]


def in_own_shm(*argv: str, **more) -> subprocess.CompletedProcess[str]:
    inside = 'mount -t tmpfs -o size=4g tmpfs /dev/shm && exec "$@"'
    command = [*UNSHARE, "sh", "-c", inside, "sh", sys.executable, "-c", SEGMENTS, OTHER, *UNHANG, "doctor", "--only", "shm", "--lang", "en", *argv]
    more = {"stdin": subprocess.DEVNULL, **more}
    environ = dict(os.environ) | {"COLUMNS": "200"}
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=environ, **more)


def left(output: str) -> list[str]:
    return output.partition("left:")[2].split()


@own_shm
def test_dead_segments_go_and_the_others_stay():
    done = in_own_shm("--fix", "--yes")
    assert (done.stderr, left(done.stdout)) == ("", KEPT)
    assert "would remove" in done.stdout
    assert "/dev/shm/nccl-dead01: 1 MiB, of " in done.stdout
    assert "/dev/shm/nccl-live01: 1 MiB, of root, 1 h old; in use by process" in done.stdout
    assert "younger than 60 s" in done.stdout
    assert ("it belongs to another user" in done.stdout) == ROOT
    assert "removed 2 of 2 segments" in done.stdout or not ROOT
    # Judged again.
    first, _, second = done.stdout.partition("would remove")
    assert "in all, that no" in first
    assert ("6 segments" in second, "✓ shared memory" in second or "? shared memory" in second, done.returncode) == (False, True, 0)


@own_shm
def test_without_a_terminal_nothing_is_done():
    plain, fix = in_own_shm(), in_own_shm("--fix")
    assert (left(fix.stdout), fix.returncode) == (ALL, plain.returncode)
    assert "would remove" in fix.stdout
    assert "Remove them?" not in fix.stdout
    assert "nothing was changed" in fix.stdout and "--yes" in fix.stdout


@own_shm
@pytest.mark.parametrize(("answer", "expected"), [("y\n", KEPT), ("n\n", ALL), ("\n", ALL), ("\x04", ALL)])
def test_on_a_terminal_it_asks(answer, expected):
    ours, theirs = pty.openpty()
    os.write(ours, answer.encode())
    done = in_own_shm("--fix", stdin=theirs)
    os.close(ours)
    os.close(theirs)
    assert "Remove them? [y/N]" in done.stdout
    assert ("nothing was removed" in done.stdout) is (answer != "y\n")
    assert left(done.stdout) == expected
    assert "Aborted" not in done.stderr


@own_shm
def test_as_json():
    done = in_own_shm("--fix", "--yes", "--json")
    text, _, names = done.stdout.partition("\nleft:")
    assert names.split() == KEPT
    found = json.loads(text)
    outcomes = {Path(s["path"]).name: s["outcome"] for s in found["repair"]["segments"]}
    assert outcomes == {n: "left" if n in KEPT else "removed" for n in ALL if n != "sem.backup-lock"}
    assert [f for f in found["findings"] if "no live process has mapped" in f["says"] and "of other users" not in f["says"]] == []
    preview = json.loads(in_own_shm("--fix", "--json").stdout.partition("\nleft:")[0])
    assert {s["outcome"] for s in preview["repair"]["segments"]} == {"proposed", "left"}
    assert "repair" not in json.loads(in_own_shm("--json").stdout.partition("\nleft:")[0])


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["--yes"], "--yes is for --fix"),
        (["--fix", "--snapshot", "x"], "does not go with --snapshot"),
        (["--fix-limit", "40s", "--fix"], "--fix-limit is for --live --fix"),
        (["--diff", "now", "now", "--fix-limit", "40s"], "--diff compares, and does nothing else: it does not go with --fix-limit"),
    ],
)
def test_bad_input(args, says):
    app = typer.Typer()
    app.callback()(lambda: None)
    doctor.register(app)
    ran = CliRunner().invoke(app, ["doctor", *args])
    assert isinstance(ran.exception, UnhangError)
    assert says in str(ran.exception)


def examined(**env: str) -> Examination:
    remedy = Remedy(id="cumem-host-off", says="s", env=env)
    finding = HostFinding(cause="cumem-host-numa", area="numa", severity="error", says="s", leads_to="l", remedies=(remedy,))
    return Examination(host="h", taken="t", areas=(), findings=(finding,))


def repaired(examination: Examination, *, yes: bool = True, goes_on: bool = False) -> doctor_fix.Repair:
    dialogue = doctor_fix.Dialogue(yes=yes, quiet=False, lang="en")
    return doctor_fix.repair(Snapshot(host="h", taken="t"), examination, dialogue, goes_on=goes_on)


def test_settings_are_written(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert repaired(examined(NCCL_CUMEM_HOST_ENABLE="0")).written == "unhang.env"
    assert Path("unhang.env").read_text() == "export NCCL_CUMEM_HOST_ENABLE=0  # cumem-host-numa\n"
    assert "written: unhang.env" in capsys.readouterr().out


def test_settings_are_only_shown_where_nobody_agreed(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys.stdin, "isatty", lambda: False, raising=False)
    assert repaired(examined(NCCL_CUMEM_HOST_ENABLE="0"), yes=False).written == ""
    assert "export NCCL_CUMEM_HOST_ENABLE=0" in capsys.readouterr().out
    assert os.listdir() == []


def test_a_file_that_is_there_is_not_overwritten_by_yes(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("unhang.env").write_text("mine\n")
    monkeypatch.setattr(sys.stdin, "isatty", lambda: False, raising=False)
    done = repaired(examined(NCCL_CUMEM_HOST_ENABLE="0"))
    assert (done.written, done.why) == ("", "unhang.env is there already, and is left as it is")
    assert Path("unhang.env").read_text() == "mine\n"


@pytest.mark.timeout(300)
def test_a_pipe_of_that_name_is_left_as_it_is(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    os.mkfifo("unhang.env")
    done = repaired(examined(NCCL_CUMEM_HOST_ENABLE="0"))
    assert (done.written, done.why) == ("", "cannot write unhang.env: it is no regular file")


def test_nothing_to_repair(capsys):
    nothing = Examination(host="h", taken="t", areas=())
    repaired(nothing)
    assert capsys.readouterr().out == "nothing can be repaired without a guess\n"
    # More is tried afterwards.
    repaired(nothing, goes_on=True)
    assert capsys.readouterr().out == ""


@pytest.mark.torch
@pytest.mark.integration
def test_live_fix_writes_what_works(tmp_path):
    """Gloo is told of an interface that is not there: one answer of what is seen, what was run and what was tried, and the file holds it."""
    argv = ["doctor", "--only", "network", "--live", "--ranks", "2", "--fix", "--yes", "--json", "--fail-on", "never"]
    done = subprocess.run(
        [sys.executable, "-m", "unhang", *argv],
        env={**os.environ, "GLOO_SOCKET_IFNAME": "nosuch0"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout)
    seen = next(f for f in found["findings"] if f["cause"] == "interface-selection")
    ran = next(s for s in found["live"]["stages"] if s["state"] == "failed")["verdict"]["primary"]
    assert [f["remedies"][0]["id"] for f in (seen, ran)] == ["unset-gloo", "unset-gloo"]
    assert found["ladder"]["chosen"] == {"interface": "auto"} and found["ladder"]["confirmed"]
    assert found["written"] == "unhang.env"
    assert (tmp_path / "unhang.env").read_text() == "unset GLOO_SOCKET_IFNAME  # interface-selection\n"


LIVE = ("doctor", "--live", "--ranks", "2", "--fix", "--fail-on", "never", "--lang", "en")
WRONG_INTERFACE = "export GLOO_SOCKET_IFNAME=nosuch0"


@pytest.mark.torch
@pytest.mark.integration
@pytest.mark.timeout(300)
def test_live_fix_proposes_and_asks(tmp_path):
    """The same at a terminal: what failed, what works, the question; and what was written really is the remedy."""
    ours, theirs = pty.openpty()
    os.write(ours, b"y\n")
    done = unhang(*LIVE, "--only", "python_env", shell=WRONG_INTERFACE, stdin=theirs, cwd=tmp_path, timeout=200)
    os.close(ours)
    os.close(theirs)
    said = " ".join(done.stdout.split())
    assert done.returncode == 0, done.stderr[-2000:]
    assert "Gloo finds no address on the interface nosuch0" in said
    before, found, after = said.partition("interface=auto is the smallest change that works here; it passed twice")
    assert found and "unset GLOO_SOCKET_IFNAME # interface-selection" not in before, said
    assert "unset GLOO_SOCKET_IFNAME" in after and "[y/N]" in after and "written: unhang.env" in after, said
    again = unhang(*LIVE, "--only", "python_env", shell=f"{WRONG_INTERFACE} && . ./unhang.env", cwd=tmp_path, timeout=200)
    assert "everything that was tested works: no setting has to be changed" in again.stdout, again.stdout


@own_shm
@pytest.mark.torch
@pytest.mark.integration
@pytest.mark.timeout(300)
def test_live_fix_where_dev_shm_is_small(tmp_path):
    """Ranks on Gloo do not need it, so that no setting is called the answer; what the container has to be given is."""
    done = unhang(*LIVE, "--only", "shm", "--yes", before=UNSHARE, shell="mount -t tmpfs -o size=1m tmpfs /dev/shm", cwd=tmp_path, timeout=200)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "shm-exhausted" in done.stdout and "$ docker run --shm-size=8g IMAGE" in done.stdout
    assert "everything that was tested works: no setting has to be changed" in done.stdout, done.stdout
    assert list(tmp_path.iterdir()) == []
