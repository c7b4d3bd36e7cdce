"""unhang top as a user starts it: what it takes for a run, what it refuses and how, exit codes, and a terminal that is left as it was found."""

from __future__ import annotations

import fcntl
import importlib.util
import json
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest
from tests.records.runs import Laid
from tests.tables import for_each

from unhang.facts import processes
from unhang.facts.host import Host

UNHANG = (sys.executable, "-m", "unhang")
has_textual = pytest.mark.skipif(importlib.util.find_spec("textual") is None, reason="comes with the extra top")


def environ(**more: str) -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("UNHANG_", "LC_", "LANG", "NO_COLOR"))}
    return kept | {"COLUMNS": "200", "LC_ALL": "C.UTF-8"} | more


def top(*argv: str, cwd: Path, code: str | None = None, **more: str) -> subprocess.CompletedProcess[str]:
    start = (sys.executable, "-c", code, "top") if code else (*UNHANG, "top")
    return subprocess.run(
        [*start, *argv], cwd=cwd, env=environ(**more), stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=False
    )


def over(path: Path, *, exitcode: int = 0) -> Laid:
    """A run that has ended."""
    laid = Laid(path)
    laid.begin()
    laid.now(laid.rank(0, ended_s=50.0, announced=True), laid.rank(1, ended_s=50.0, announced=True), last=True)
    laid.tell("Finished", exitcode=exitcode, attempts=1, incidents=0, elapsed_s=51.0, run_dir=str(path))
    return laid


def living(path: Path) -> Laid:
    """A run whose supervisor is this process, and that wrote a moment ago."""
    laid = Laid(path)
    began = time.time() - laid.at
    supervisor = processes.identity(Host(), os.getpid())
    assert supervisor is not None
    laid.run(supervisor=vars(supervisor), started=time.strftime("%Y-%m-%dT%H:%M:%S+00:00", time.gmtime(began)))
    laid.begin()
    laid.now(laid.rank(0), laid.rank(1))
    now = json.loads((path / "now.json").read_text())
    laid.write("now.json", now | {"time_s": time.time()})
    return laid


@pytest.mark.parametrize(("exitcode", "code"), [(0, 0), (7, 1)])
def test_once_and_json_of_a_run_that_is_over(tmp_path, exitcode, code):
    over(tmp_path / "run", exitcode=exitcode)
    once = top("run", "--once", cwd=tmp_path)
    assert (once.returncode, once.stderr) == (code, "")
    assert f"ended  exit code {exitcode}" in once.stdout and "2 done" in once.stdout and "\x1b" not in once.stdout
    told = top("run", "--json", cwd=tmp_path)
    picture = json.loads(told.stdout)
    assert (told.returncode, picture["schema"], picture["job"]["exitcode"], picture["counts"]) == (code, "unhang/top/1", exitcode, {"done": 2})
    followed = top("run", "--json", "--follow", cwd=tmp_path)
    assert (followed.returncode, len(followed.stdout.splitlines())) == (code, 1)


def test_one_that_goes_on_and_one_that_nobody_can_tell_of(tmp_path):
    laid = living(tmp_path / "run")
    assert top("run", "--once", cwd=tmp_path).returncode == 0
    laid.write("now.json", json.loads((laid.path / "now.json").read_text()) | {"time_s": time.time() - 60})
    once = top("run", "--once", cwd=tmp_path)
    assert (once.returncode, "2 unknown" in once.stdout, "whether it goes on is not known" in once.stdout) == (2, True, True)


def test_chinese(tmp_path):
    over(tmp_path / "run")
    assert "已结束  退出码 0" in top("run", "--once", "--lang", "zh", cwd=tmp_path).stdout
    assert "已结束" in top("run", "--once", cwd=tmp_path, LC_ALL="zh_CN.UTF-8").stdout
    assert "没有运行目录 /none" in top("/none", "--once", "--lang", "zh", cwd=tmp_path).stderr
    (tmp_path / "run" / "now.json").write_text("{")
    assert "? now.json 无法读取：" in top("run", "--once", "--lang", "zh", cwd=tmp_path).stdout


def test_the_newest_run_here_is_taken(tmp_path):
    over(tmp_path / "runs" / "a") if (tmp_path / "runs").mkdir() is None else None
    newer = over(tmp_path / "runs" / "b", exitcode=3)
    newer.run(started="2026-11-22T03:15:00+00:00")
    for argv, cwd in (((), tmp_path), (("runs",), tmp_path), ((), tmp_path / "runs"), ((), newer.path), (("runs/b/events.jsonl",), tmp_path)):
        done = top(*argv, "--once", cwd=cwd)
        assert (done.returncode, "exit code 3" in done.stdout) == (1, True), done.stderr
    assert "showing runs/b, the newest of 2 runs" in top("--once", cwd=tmp_path).stderr


@for_each(
    ("argv", "said"),
    [
        (("none", "--once"), "there is no run directory none"),
        (("empty", "--once"), "empty is empty"),
        (("other", "--once"), "other is not a run directory"),
        (("file", "--once"), "file is no directory"),
        (("", "--once"), "RUN_DIR is empty"),
        (("n" * 300, "--once"), "File name too long"),
        (("run", "--once", "--json"), "--once and --json: choose one"),
        (("run", "--follow"), "--follow is for --json"),
        (("run", "--once", "--lang", "xx"), "--lang xx: it is one of en, zh"),
        (("--once",), "there is no run here"),
    ],
)
def test_what_is_refused(tmp_path, argv, said):
    for name in ("empty", "other", "here"):
        (tmp_path / name).mkdir()
    (tmp_path / "file").touch()
    (tmp_path / "other" / "train.py").touch()
    cwd = tmp_path
    if argv == ("--once",):
        cwd = tmp_path / "here"
    else:
        over(tmp_path / "run")
    done = top(*argv, cwd=cwd)
    assert (done.returncode, done.stdout == "") == (2, "--json" not in argv) and said in done.stderr and "Traceback" not in done.stderr


def test_without_textual_one_sentence_says_what_works(tmp_path):
    over(tmp_path / "run")
    code = "import sys; sys.modules['textual'] = None; sys.argv[0] = 'unhang'\nfrom unhang.cli import top; top._is_terminal = lambda: True\n"
    done = top("run", cwd=tmp_path, code=code + "from unhang.cli.main import entry; entry()")
    assert done.returncode == 2 and "Textual" in done.stderr and "pip install 'unhang[top]'" in done.stderr and "--once and --json" in done.stderr
    done = top("run", "--once", cwd=tmp_path, code=code + "from unhang.cli.main import entry; entry()")
    assert (done.returncode, done.stderr) == (0, "")


def test_without_a_terminal_there_is_one_picture(tmp_path):
    over(tmp_path / "run")
    done = top("run", cwd=tmp_path)
    assert (done.returncode, "exit code 0" in done.stdout) == (0, True) and "this is no terminal" in done.stderr


@pytest.mark.timeout(60)
def test_a_follower_that_nobody_reads_ends(tmp_path):
    laid = living(tmp_path / "run")
    follower = subprocess.Popen(
        [*UNHANG, "top", "run", "--json", "--follow", "--every", "0.2"], cwd=tmp_path, env=environ(), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert follower.stdout is not None and follower.stderr is not None
    assert json.loads(follower.stdout.readline())["job"]["phase"] == "running"
    follower.stdout.close()
    laid.tell("Note", text="something new")
    assert follower.wait(timeout=300) == 0
    assert follower.stderr.read() == b""
    follower.stderr.close()


class Terminal:
    """`unhang top` on a terminal of its own."""

    def __init__(self, *argv: str, cwd: Path, start: tuple[str, ...] = (*UNHANG, "top"), **more: str) -> None:
        self.master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        self.before = termios.tcgetattr(slave)
        self.slave = slave
        env = {k: v for k, v in environ(TERM="xterm-256color", **more).items() if k != "COLUMNS"}
        self.process = subprocess.Popen([*start, *argv], cwd=cwd, env=env, stdin=slave, stdout=slave, stderr=slave, start_new_session=True)
        self.seen = b""

    def until(self, text: bytes, timeout_s: float = 30.0) -> None:
        deadline = time.monotonic() + timeout_s
        while text not in self.seen:
            assert time.monotonic() < deadline, self.seen[-2000:]
            self._read(0.2)

    def _read(self, wait_s: float) -> bool:
        """Take what comes next, which may be a part of what was written; whether anything came."""
        if not select.select([self.master], [], [], wait_s)[0]:
            return False
        self.seen += os.read(self.master, 1 << 16)
        return True

    def end(self) -> int:
        deadline = time.monotonic() + 300
        while self.process.poll() is None:
            assert time.monotonic() < deadline, "it does not end"
            self._read(0.05)
        while self._read(0.2):
            pass
        return self.process.returncode

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self.master)
        os.close(self.slave)


@has_textual
@pytest.mark.timeout(90)
@pytest.mark.parametrize(("how", "code"), [(b"q", 0), (b"\x03", 130), (signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_the_terminal_is_left_as_it_was(tmp_path, how, code):
    living(tmp_path / "run")
    terminal = Terminal("run", cwd=tmp_path)
    try:
        terminal.until(b"quit")
        assert termios.tcgetattr(terminal.slave) != terminal.before
        if isinstance(how, bytes):
            os.write(terminal.master, how)
        else:
            os.kill(terminal.process.pid, how)
        assert terminal.end() == code
        assert termios.tcgetattr(terminal.slave) == terminal.before
        # The alternate screen is left, the cursor is shown, and nothing is said of a fault.
        assert terminal.seen.rindex(b"\x1b[?1049l") > terminal.seen.rindex(b"\x1b[?1049h") and b"\x1b[?25h" in terminal.seen
        assert b"Traceback" not in terminal.seen and b"Error" not in terminal.seen
    finally:
        terminal.close()


# What is raised where nobody can catch it is printed and passed over.
LOST = """
import os, signal, sys
class Lost:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGINT)
"""
WHILE_IMPORTING = """
class Finder:
    def find_spec(self, name, *_):
        if name == "textual.app":
            sys.meta_path.remove(self)
            Lost()
sys.meta_path.insert(0, Finder())
"""
WHILE_STARTING = """
import unhang.report.top.app as app
compose = app.Top.compose
def composed(self):
    Lost()
    return compose(self)
app.Top.compose = composed
"""
NO_END = """
import unhang.report.top.app as app
app.Top.exit = lambda self, *_, **__: None
"""
START = """
sys.argv[:1] = ["unhang", "top"]
from unhang.cli.main import entry
entry()
"""


@has_textual
@pytest.mark.timeout(90)
@pytest.mark.parametrize("when", [WHILE_IMPORTING, WHILE_STARTING, NO_END], ids=["importing", "starting", "no end"])
def test_no_interruption_is_lost(tmp_path, when):
    living(tmp_path / "run")
    terminal = Terminal("run", cwd=tmp_path, start=(sys.executable, "-c", LOST + when + START))
    try:
        if when is NO_END:
            terminal.until(b"quit")
            os.kill(terminal.process.pid, signal.SIGINT)
        assert terminal.end() == 130
        assert termios.tcgetattr(terminal.slave) == terminal.before
        assert terminal.seen.count(b"\x1b[?1049l") >= terminal.seen.count(b"\x1b[?1049h")
    finally:
        terminal.close()


@has_textual
@pytest.mark.timeout(60)
@pytest.mark.parametrize("plain", [{"NO_COLOR": "1"}, {}, "--no-color"])
def test_no_colour_where_none_is_wanted(tmp_path, plain):
    living(tmp_path / "run")
    more = plain if isinstance(plain, dict) else {}
    terminal = Terminal("run", *([plain] if isinstance(plain, str) else []), cwd=tmp_path, COLORTERM="truecolor", **more)
    try:
        terminal.until(b"quit")
        os.write(terminal.master, b"q")
        assert terminal.end() == 0
        colours = [c for c in terminal.seen.split(b"\x1b[38;2;")[1:] if len(set(c.partition(b"m")[0].split(b";")[:3])) > 1]
        assert bool(colours) == (plain == {}), colours[:3]
    finally:
        terminal.close()
