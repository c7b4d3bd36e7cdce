"""Who may read what `unhang run` writes, and what is left of one that was killed."""

from __future__ import annotations

import ast
import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

import unhang
from unhang import fsio
from unhang.records.rundir import RunDir, new_directory

PRIVATE = "[run]\nprivate = true\n"
OPEN = ("sh", "-c", 'umask 0; exec "$@"', "sh")
SECRET = "hf_" + "abcdefghijklmnopqrstuvwxyz012345"
FAILS = f"""
dist.init_process_group("gloo")
train(5)
if rank == 1:
    raise ValueError("cannot use {SECRET}")
train(100)
"""
HANGS = """
dist.init_process_group("gloo")
train(10)
if rank == 1:
    time.sleep(600)
dist.all_reduce(torch.ones(1))
"""


def others_may(path: Path) -> dict[str, str]:
    """What is below a path that others may do something with, and its mode; of run directories neither they themselves nor the logs."""
    found = {str(p.relative_to(path)): oct(stat.S_IMODE(p.lstat().st_mode)) for p in path.rglob("*") if p.lstat().st_mode & 0o077}
    return {name: mode for name, mode in found.items() if "logs" not in Path(name).parts and not (path / name / "run.json").exists()}


def unhang_does(*words: str, cwd: Path, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    argv = [*OPEN, sys.executable, "-m", "unhang", *words]
    return subprocess.run(argv, cwd=cwd, env={**os.environ, **(env or {})}, capture_output=True, text=True, timeout=300, check=False)


@pytest.mark.torch
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("script", "options"), [(FAILS, ("--max-restarts", "0")), (HANGS, ("--hang-after", "3", "--max-restarts", "0"))])
def test_records_are_their_owners_alone(launcher, script, options):
    process, run = launcher.start(*options, "-n", "2", str(launcher.script(script)), f"--token={SECRET}", within=OPEN)
    process.communicate(timeout=600)
    assert (run / "incidents/1/stacks/rank0.json").is_file() and (run / "report.html").is_file()
    out = launcher.tmp_path / "out"
    out.mkdir(mode=0o700)
    done = unhang_does("why", str(run), "--bundle", str(out / "b.tgz"), "--report", str(out / "r.html"), cwd=out)
    assert {p.name for p in out.iterdir()} == {"b.tgz", "r.html"}, done.stderr
    assert others_may(run) == others_may(out) == {}
    written = [p for p in run.rglob("*") if p.is_file() and "logs" not in p.relative_to(run).parts]
    # Lines of the script are quoted as they are.
    assert [
        p for p in written if f"--token={SECRET}" in p.read_text(errors="replace") or f'text": "cannot use {SECRET}' in p.read_text(errors="replace")
    ] == []


def test_what_a_user_names_is_private_until_he_says_otherwise(tmp_path):
    out = tmp_path / "out"
    out.mkdir(mode=0o700)
    unhang_does("doctor", "--only", "memory", "--save", str(out / "snapshot.json"), cwd=out)
    unhang_does("export", "torchrun", "-o", str(out / "job.sh"), cwd=out)
    assert {p.name for p in out.iterdir()} == {"snapshot.json", "job.sh"} and others_may(out) == {}
    (out / "job.sh").chmod(0o755)
    unhang_does("export", "torchrun", "--force", "-o", str(out / "job.sh"), cwd=out)
    assert others_may(out) == {"job.sh": "0o755"}


def test_a_link_is_replaced_and_not_followed(tmp_path):
    (tmp_path / "others").write_bytes(b"as it was")
    (tmp_path / "verdict.md").symlink_to("others")
    RunDir(tmp_path).write_bytes(tmp_path / "verdict.md", b"new")
    assert (tmp_path / "others").read_bytes() == b"as it was" and not (tmp_path / "verdict.md").is_symlink()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["others", "verdict.md"]
    # 252 of the 255 bytes that a name may have.
    RunDir(tmp_path).write_bytes(tmp_path / (84 * "名"), b"new")


@pytest.mark.parametrize(
    ("toml", "options", "mode"),
    [
        ("", ("--private",), "0o700"),
        (PRIVATE, (), "0o700"),
        (PRIVATE, ("--no-private",), "0o775"),
        ("", (), "0o775"),
    ],
)
@pytest.mark.parametrize("is_there", [False, True])
def test_a_private_run(tmp_path, toml, options, mode, is_there):
    if toml:
        (tmp_path / "unhang.toml").write_text(toml)
    if is_there:
        new_directory(tmp_path / "run").chmod(0o775)
    done = unhang_does("run", *options, "--run-dir", "run", "--", "true", cwd=tmp_path)
    assert done.returncode == 0 and oct(stat.S_IMODE((tmp_path / "run").stat().st_mode)) == mode, done.stderr


@pytest.mark.parametrize(("option", "mode"), [("--no-private", "0o775"), ("--private", "0o700")])
def test_a_private_comparison(tmp_path, option, mode):
    (tmp_path / "unhang.toml").write_text(PRIVATE)
    done = unhang_does("bench", "compare", option, "--a", "none", "--b", "env.A=1", "--", "true", cwd=tmp_path)
    assert [oct(stat.S_IMODE(p.stat().st_mode)) for p in (tmp_path / "runs").iterdir()] == [mode], done.stderr


@pytest.mark.parametrize("run", ["run", "runs/a/b"])
def test_nobody_else_may_write_into_a_run(tmp_path, run):
    done = unhang_does("run", "--run-dir", run, "--", "sh", "-c", "echo told", cwd=tmp_path)
    made = [tmp_path / run, *(tmp_path / run).rglob("*"), *(p for p in (tmp_path / run).parents if p != tmp_path and tmp_path in p.parents)]
    assert done.returncode == 0 and {str(p): oct(p.stat().st_mode) for p in made if p.stat().st_mode & 0o002} == {}, done.stderr
    assert [p.read_text() for p in (tmp_path / run / "logs").rglob("*") if p.is_file() and p.stat().st_size] == ["told\n"]


def test_a_run_writes_to_no_link_in_its_directory(tmp_path):
    (tmp_path / "victim").write_text("as it was")
    plants = "rm -f run/events.jsonl && ln -s ../victim run/events.jsonl && touch done"
    done = unhang_does("run", "--run-dir", "run", "--", "sh", "-c", plants, cwd=tmp_path)
    assert (tmp_path / "done").exists() and "cannot write run/events.jsonl" in done.stderr.replace(f"{tmp_path}/", ""), done.stderr
    assert (tmp_path / "victim").read_text() == "as it was"


def test_what_a_killed_run_left_goes_with_the_next_one(launcher):
    base = tempfile.mkdtemp(prefix="t")  # the path of a socket is short
    env = {"TMPDIR": base}
    sleeps = launcher.script("time.sleep(600)")

    def started() -> tuple[subprocess.Popen[bytes], Path]:
        before = set(os.listdir(base))
        process, _ = launcher.start(sys.executable, str(sleeps), env=env)
        (name,) = launcher.until(lambda: [n for n in set(os.listdir(base)) - before if (Path(base, n) / "socket").exists()])
        return process, Path(base, name)

    process, left = started()
    living, kept = started()
    assert left.exists() and stat.S_IMODE(left.stat().st_mode) == 0o700
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=60)
    third, _ = started()
    assert not left.exists() and (kept / "socket").exists()
    for one in (living, third):
        one.send_signal(signal.SIGTERM)
        one.communicate(timeout=120)
    assert os.listdir(base) == []
    os.rmdir(base)


def dead(base: Path, name: str = "unhang-dead") -> Path:
    """As a process leaves it that is killed."""
    with fsio.temporary_directory(base=str(base)) as made:
        copied = base / name
        copied.mkdir(mode=0o700)
        (copied / fsio.MARK).write_bytes((made / fsio.MARK).read_bytes())
    (copied / "kept.txt").touch()
    return copied


def test_only_what_is_left_for_certain_is_removed(tmp_path, monkeypatch):
    base, elsewhere = tmp_path / "base", tmp_path / "elsewhere"
    base.mkdir()
    elsewhere.mkdir()
    gone, outside = dead(base), dead(elsewhere)
    open_to_others, other_machine, unmarked = (dead(base, f"unhang-{name}") for name in ("open", "other", "unmarked"))
    open_to_others.chmod(0o770)
    (other_machine / fsio.MARK).write_text("another boot")
    (unmarked / fsio.MARK).unlink()
    link = base / "unhang-link"
    link.symlink_to(outside)
    (gone / "link").symlink_to(outside)
    linked_mark = base / "unhang-linked-mark"
    linked_mark.mkdir(mode=0o700)
    (linked_mark / fsio.MARK).symlink_to(outside / fsio.MARK)
    with fsio.temporary_directory(base=str(base)) as alive:
        monkeypatch.setattr(os, "geteuid", lambda: gone.stat().st_uid + 1)
        fsio.sweep(str(base))
        assert gone.exists()
        monkeypatch.undo()
        fsio.sweep(str(base))
        assert sorted(base.iterdir()) == sorted([alive, open_to_others, other_machine, unmarked, link, linked_mark])
    assert (outside / "kept.txt").exists() and not alive.exists()


def test_nothing_is_open_in_what_is_removed(tmp_path, monkeypatch):
    """On NFS the directory of an open file cannot be removed."""
    opened, remove = [], shutil.rmtree

    def removed(path, **more):
        opened.append([p for n in os.listdir("/proc/self/fd") if (p := os.path.realpath(f"/proc/self/fd/{n}")).startswith(str(path))])
        remove(path, **more)

    monkeypatch.setattr(shutil, "rmtree", removed)
    dead(tmp_path)
    fsio.sweep(str(tmp_path))
    assert opened == [[], []] and list(tmp_path.iterdir()) == []


def test_what_is_kept_for_the_user_stays(tmp_path):
    with fsio.temporary_directory(base=str(tmp_path)) as made:
        fsio.keep(made)
    fsio.sweep(str(tmp_path))
    assert made.is_dir()


# Where other things than records are written: logs, what the user packs, and what a training writes by our library.
ELSEWHERE = {"attach", "fsio.py", "runtime", "testing", "pack", "probes"}
WRITERS = {"write_text", "write_bytes", "mkstemp", "mkdtemp", "TemporaryDirectory", "NamedTemporaryFile"}
# Made 0600 or 0700 by Python, or read by nobody else: logs, and what lies in a temporary directory of ours.
ALLOWED = {
    "bundle.py: mkstemp", "trial.py: mkdtemp", "app.py: NamedTemporaryFile", "collective_bench.py: NamedTemporaryFile",
    "packed.py: open", "own_steps.py: open", "agent.py: open",
}  # fmt: skip


def test_records_are_written_in_one_place():
    package = Path(unhang.__file__).parent
    found = set()
    for path in package.rglob("*.py"):
        if path.relative_to(package).parts[0] in {*ELSEWHERE, "recipes"}:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call):
                of, _, name = ast.unparse(node.func).rpartition(".")
                modes = [a.value for a in node.args[:2] if isinstance(a, ast.Constant) and isinstance(a.value, str) and set(a.value) <= set("wxab+")]
                opens = name == "open" and any(set(mode) & set("wxa") for mode in modes) and not any(k.arg == "opener" for k in node.keywords)
                if opens or (name in WRITERS and not of.endswith(("rundir", "self"))):
                    found.add(f"{path.name}: {name}")
    assert found == ALLOWED
