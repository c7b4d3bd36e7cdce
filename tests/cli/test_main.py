"""The command as a whole: streams that are closed or that nobody reads, exit codes, and what is printed of a dry run."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.tables import for_each

from unhang.cli import app, running
from unhang.errors import RunDirError
from unhang.launch import supervise

UNHANG = (sys.executable, "-m", "unhang")


def unhang(*argv: str, cwd: Path, shell: str = '"$@"', **popen) -> subprocess.CompletedProcess[str]:
    environ = {k: v for k, v in os.environ.items() if not k.startswith(("UNHANG_", "PYTHONUNBUFFERED"))} | {"COLUMNS": "200"}
    popen = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **popen}
    return subprocess.run(["sh", "-c", shell, "sh", *UNHANG, *argv], cwd=cwd, env=environ, stdin=subprocess.DEVNULL, text=True, timeout=60, **popen)


@pytest.mark.parametrize(
    ("argv", "code"),
    [
        (("explain", "--list"), 0),
        (("run", "--dry-run", "--json", "true"), 0),
        (("--help",), 0),
        (("why", "ok.log"), 0),
        (("why", "--json", "ok.log"), 0),
        (("why", "bad.log"), 1),
        (("why", "none.log"), 2),
    ],
)
def test_a_reader_that_has_gone_changes_no_exit_code(tmp_path, argv, code):
    (tmp_path / "ok.log").write_text("step 1\n")
    (tmp_path / "bad.log").write_text("OSError: [Errno 98] Address already in use\n")
    read, write = os.pipe()
    os.close(read)
    done = unhang(*argv, cwd=tmp_path, stdout=write)
    assert (done.returncode, done.stderr == "") == (code, code < 2)
    assert unhang(*argv, cwd=tmp_path, stdout=write, stderr=write).returncode == code
    os.close(write)


@pytest.mark.parametrize("argv", [("why", "a.log"), ("why", "--json", "a.log"), ("why", "--markdown", "a.log"), ("explain", "--list"), ("--help",)])
def test_a_disk_that_is_full_is_the_users(tmp_path, argv):
    (tmp_path / "a.log").write_text("Segmentation fault\n")
    with open("/dev/full", "w") as full:
        done = unhang(*argv, cwd=tmp_path, stdout=full)
    assert (done.returncode, done.stderr) == (2, "unhang: cannot write the report: No space left on device\n")


@pytest.mark.parametrize("argv", [("why", "none.log"), ("why", "--none")])
def test_errors_that_nobody_can_be_told_keep_their_exit_code(tmp_path, argv):
    with open("/dev/full", "w") as full:
        assert unhang(*argv, cwd=tmp_path, stderr=full).returncode == 2
        assert unhang(*argv, cwd=tmp_path, stdout=full, stderr=full).returncode == 2


def test_a_reader_that_has_seen_enough(tmp_path):
    (tmp_path / "a.log").write_text("OSError: [Errno 98] Address already in use\n")
    done = unhang("why", "a.log", cwd=tmp_path, shell='{ "$@"; echo $? > code; } | head -n 1')
    assert (done.stdout[:1], done.stderr, (tmp_path / "code").read_text()) == ("✗", "", "1\n")


@pytest.mark.parametrize("argv", [("why", "--json", "a.log"), ("run", "--json", "true")])
def test_json_for_a_reader_that_has_gone(tmp_path, argv):
    (tmp_path / "a.log").write_text("Segmentation fault\n")
    read, write = os.pipe()
    os.close(read)
    done = unhang(*argv, cwd=tmp_path, stdout=write)
    os.close(write)
    assert not any(word in done.stderr for word in ("Traceback", "BrokenPipe", "ignored"))


@for_each("encoding", ["latin-1", "ascii", "cp1252:strict"])
@for_each("how", [(), ("--json",), ("--markdown",), ("--all", "--lang", "zh")])
def test_streams_that_cannot_hold_every_character(tmp_path, monkeypatch, encoding, how):
    monkeypatch.setenv("PYTHONIOENCODING", encoding)
    (tmp_path / "a.log").write_text("[rank0]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB 显存不足\n")
    done = unhang("why", "a.log", *how, cwd=tmp_path)
    assert (done.returncode, "Traceback" in done.stderr or "Error" in done.stderr) == (1, False), done.stderr
    assert "gpu-oom" in done.stdout
    if how == ("--json",):
        assert json.loads(done.stdout)["schema"] == "unhang/verdict/1"


def test_a_tick_is_no_question_mark_where_it_cannot_be_printed(tmp_path, monkeypatch):
    asked = ("doctor", "--only", "numa", "--only", "gpu", "--only", "infiniband")
    shown = []
    for encoding in ("utf-8", "ascii"):
        monkeypatch.setenv("PYTHONIOENCODING", encoding)
        shown.append(unhang(*asked, cwd=tmp_path).stdout)
    assert "✓" in shown[0]
    assert shown[1] == shown[0].translate(str.maketrans("✓✗→", "+x>"))


def test_a_complaint_with_characters_that_no_stream_holds(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONIOENCODING", "ascii")
    done = unhang("why", "\u65e0\x1b[31m\u202e.log", cwd=tmp_path)
    assert (done.returncode, "\x1b" in done.stderr) == (2, False)


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_streams(tmp_path, closed):
    done = unhang("run", "--run-dir", "here", "sh", "-c", "echo out; echo err >&2", cwd=tmp_path, shell=f'"$@" {closed}')
    assert (done.returncode, "Traceback" in done.stderr) == (0, False)
    logs = tmp_path / "here" / "logs" / "attempt-0"
    assert ((logs / "launcher.out").read_text(), (logs / "launcher.err").read_text()) == ("out\n", "err\n")


@pytest.mark.parametrize("what", ["argument", "cwd", "run directory"])
def test_a_name_that_is_no_text_stops_no_training(tmp_path, what):
    odd = os.fsdecode(b"a\xff")
    cwd = tmp_path / (odd if what == "cwd" else "a")
    cwd.mkdir()
    run_dir = odd if what == "run directory" else "r"
    done = unhang("run", "--run-dir", run_dir, "--on-failure", "abort", "sh", "-c", "echo began; exit 3", odd if what == "argument" else "a", cwd=cwd)
    assert (done.returncode, done.stdout) == (3, "began\n"), done.stderr
    run = json.loads((cwd / run_dir / "run.json").read_bytes())
    assert (run["command"][-1] == "a?") is (what == "argument") and (run["cwd"].endswith("/a?")) is (what == "cwd")
    assert all(json.loads(line) for line in (cwd / run_dir / "events.jsonl").read_text().splitlines())
    assert (cwd / run_dir / "verdict.md").is_file() and (cwd / run_dir / "report.html").is_file()


def test_dry_run_as_json(tmp_path):
    done = unhang("run", "--dry-run", "--json", "--run-dir", "here", "sh", "-c", "exit 3", cwd=tmp_path)
    plan = json.loads(done.stdout)
    assert plan["command"][1:] == ["-c", "exit 3"]
    assert plan["environment"]["UNHANG_RUN_DIR"] == str(tmp_path / "here")
    assert plan["environment"]["UNHANG_FATAL_DIR"] == str(tmp_path / "here" / "fatal" / "attempt-0")
    assert list(tmp_path.iterdir()) == []


def test_help_shows_what_stands_in_brackets(tmp_path):
    told = " ".join(unhang("run", "--help", cwd=tmp_path).stdout.split())
    assert "Put [rank N] before" in told and "3 for a failure of unhang's own" in told and "SIGTERM" in told
    assert "unhang run -n 8 train.py --lr 1e-4 unhang run accelerate launch --num_processes 8 train.py" in told
    assert "unhang[demo]" in unhang("demo", "--help", cwd=tmp_path).stdout


@pytest.mark.torch
def test_a_module_that_is_misspelt_starts_nothing(tmp_path):
    done = unhang("run", "--python", sys.executable, "-m", "nosuchmodule", cwd=tmp_path)
    assert done.returncode == 2 and "finds no module nosuchmodule" in done.stderr and list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("columns", ["²", "0", "wide"])
def test_what_is_no_width_fails_nowhere(tmp_path, columns):
    environ = {**os.environ, "COLUMNS": columns, "LINES": columns}
    for argv, code in ((("--help",), 0), (("why", "--none"), 2), (("explain", "--list"), 0)):
        done = subprocess.run([*UNHANG, *argv], cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=60)
        assert done.returncode == code and "our own failure" not in done.stderr


def on_a_terminal(*argv: str, cwd: Path, **environ: str) -> bytes:
    master, terminal = os.openpty()
    cleared = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "FORCE_COLOR", "COLUMNS")}
    process = subprocess.Popen(
        [*UNHANG, *argv], cwd=cwd, env=cleared | {"TERM": "xterm-256color"} | environ, stdin=terminal, stdout=terminal, stderr=terminal
    )
    os.close(terminal)
    seen = b""
    try:
        # The other end is gone once nobody has it: EIO.
        with contextlib.suppress(OSError):
            while data := os.read(master, 65536):
                seen += data
        process.wait(60)
    finally:
        process.kill()
        process.wait()
        os.close(master)
    return seen


@pytest.mark.parametrize(
    "argv",
    [
        ("why", "a.log"),
        ("why", "--all", "a.log"),
        ("why", "none.log"),
        ("explain", "gpu-oom"),
        ("run", "--run-dir", "here", "true"),
        ("demo", "--only", "none"),
    ],
)
def test_no_color_is_no_escape_at_all(tmp_path, argv):
    (tmp_path / "a.log").write_text("OSError: [Errno 98] Address already in use\n")
    assert b"\x1b" in on_a_terminal(*argv, cwd=tmp_path)
    for number, (wanted, environ) in enumerate((((argv[0], "--no-color", *argv[1:]), {}), (argv, {"NO_COLOR": "1"}))):
        seen = on_a_terminal(*(f"here{number}" if word == "here" else word for word in wanted), cwd=tmp_path, **environ)
        assert seen and b"\x1b" not in seen


def test_no_color_is_not_for_the_training(tmp_path):
    done = unhang("run", "--no-color", "--run-dir", "here", "sh", "-c", "echo ${NO_COLOR-unset}", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "unset\n")


def test_a_run_directory_that_cannot_be_made(tmp_path):
    (tmp_path / "file").write_text("")
    done = unhang("run", "--run-dir", "file/run", "touch", "started", cwd=tmp_path)
    assert done.returncode == 2 and "cannot create the run directory" in done.stderr
    assert not (tmp_path / "started").exists()


@pytest.mark.parametrize(
    ("error", "raised"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), RunDirError),
        (OSError(errno.EACCES, "Permission denied", "{run}/run.json"), RunDirError),
        (OSError(errno.EMFILE, "Too many open files"), OSError),
        (OSError(errno.ENOSPC, "No space left on device", "/tmp/elsewhere"), OSError),
    ],
)
def test_only_errors_of_the_run_directory_are_the_users(tmp_path, monkeypatch, error, raised):
    def fail(self):
        raise OSError(error.errno, error.strerror, *([error.filename.format(run=tmp_path / "run")] if error.filename else []))

    monkeypatch.setattr(supervise.Supervisor, "run", fail)
    request = running.Request(
        words=("true",),
        nproc_per_node=None,
        module=False,
        on_failure="restart",
        max_restarts=0,
        hang_after_s=None,
        startup_s=1.0,
        run_dir=tmp_path / "run",
        prefix=False,
        quiet=True,
        python=None,
        check_world=True,
        dry_run=False,
        as_json=False,
    )
    with pytest.raises(raised) as caught:
        running.run(request)
    assert type(caught.value) is RunDirError or raised is OSError


@for_each(
    ("verb", "typed", "meant"),
    [
        ("why", "--markdwn", "--markdown"),
        ("doctor", "--liv", "--live"),
        ("run", "--hang-aftr", "--hang-after"),
        ("export", "--presett", "--preset"),
        ("vars", "--jsonn", "--json"),
        ("presets", "--setings", "--settings"),
        ("explain", "--jsonn", "--json"),
        ("demo", "--jsonn", "--json"),
        ("top", "--onc", "--once"),
    ],
)
def test_an_option_that_does_not_exist_gets_a_suggestion(tmp_path, verb, typed, meant):
    done = unhang(verb, typed, cwd=tmp_path)
    assert done.returncode == 2 and re.search(rf"No such option: {typed}.*{meant}\b", done.stderr)


def test_an_option_has_one_name():
    """Beside it, only how many processes there are has a letter."""

    def options(command):
        yield from (p for p in command.params if p.param_type_name == "option")
        for one in getattr(command, "commands", {}).values():
            yield from options(one)

    found = [p for verb in app.SAYS for p in options(app.whole(verb))]
    assert len(found) > 100
    assert [p.opts for p in found if len(p.opts) > 1 and "-n" not in p.opts] == [] == [p.opts for p in found if p.hidden]


def test_schemas_are_named_alike():
    """`unhang/THING/VERSION`, so that a program can tell ours by their beginning."""
    source = Path(running.__file__).parents[1]
    named = {name for path in source.rglob("*.py") for name in re.findall(r'(?:SCHEMA = |"schema": )"([^"]+)"', path.read_text())}
    assert len(named) > 10 and [name for name in named if not re.fullmatch(r"unhang/[a-z-]+/\d+", name)] == []
