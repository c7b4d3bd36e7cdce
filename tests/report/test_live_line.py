import io
import os
import re
import threading

import pytest
from tests.chinese import both

from unhang.diagnosis.proven_in_logs import RECORDS
from unhang.launch import events
from unhang.model import Wait
from unhang.report import language
from unhang.report.console import Console
from unhang.report.live_line import Live


@pytest.fixture
def shown(capfdbinary):
    """A Live on captured streams, and what it showed: (stdout, stderr)."""

    def make(**options):
        return Live(**options), lambda: capfdbinary.readouterr()

    return make


def test_output_goes_where_it_came_from(shown):
    live, seen = shown()
    live.output(0, "out", b"to out\n")
    live.output(1, "err", b"to err\r")
    assert tuple(seen()) == (b"to out\n", b"to err\r")


def test_with_json_nothing_of_the_training_is_on_stdout(shown):
    live, seen = shown(output_to_stderr=True)
    live.output(0, "out", b"x\n")
    assert tuple(seen()) == (b"", b"x\n")


def test_quiet(shown):
    live, seen = shown(quiet=True)
    live.output(0, "out", b"x\n")
    live.tell(events.Note(text="told"))
    out, err = seen()
    assert out == b""
    assert err == b"unhang: told\n"


def test_prefixes_cut_at_lines_only(shown):
    live, seen = shown(prefix=True)
    live.output(3, "out", b"half")
    live.output(None, "out", b"launcher\n")
    live.output(3, "out", b" line\nrest")
    live.close()
    assert seen()[0] == b"[launcher] launcher\n[rank 3] half line\n[rank 3] rest\n"


def test_a_reader_that_has_gone_does_not_matter(monkeypatch):
    read, write = os.pipe()
    os.close(read)
    live = Live(console=Console(io.StringIO()))
    with os.fdopen(write, "wb", buffering=0) as target:
        live._targets["out"] = target
        live.output(0, "out", b"x")
        assert live._targets["out"] is None
        live.output(0, "out", b"y")


def test_ours_begin_on_a_line_of_their_own(shown):
    live, seen = shown()
    live.output(0, "err", b"50%")
    live.tell(events.Restarting(attempt=1, of=3))
    assert seen()[1] == b"50%\nunhang: starting again (restart 1 of 3)\n"


@pytest.mark.parametrize(
    ("event", "text"),
    [
        (
            events.FirstStep(ranks=8, devices=("cuda:0 (H100)", "cuda:1 (H100)"), backend="nccl", after_s=41.2),
            "8 ranks on cuda:0 (H100), cuda:1 (H100) (nccl)",
        ),
        (
            events.Overridden(what="backend", was="nccl", now="gloo", ranks=(0, 1), place=("/a/train.py", 4)),
            "backend nccl -> gloo in 2 ranks (train.py:4)",
        ),
        (events.Ignored(what="UNHANG_TIMEOUT_S", value="ten", why="value", ranks=(0,)), "UNHANG_TIMEOUT_S=ten is no value for it; ignored in 1 rank"),
        (events.Ignored(what="accelerate", value="backend", why="unknown", ranks=(0,)), "accelerate was not told of the backend"),
        (
            events.Stalled(ranks=(3,), waiting=(0, 1), for_s=12.0, kind="works", place="a.py:7", left_s=None),
            "rank 3 works at a.py:7 for 0:12; ranks 0, 1 wait",
        ),
        (
            events.Stalled(ranks=(1,), waiting=(0,), for_s=40.0, kind="repeats", place="a.py:7", left_s=260.0),
            "rank 0 waits; the training is ended in 4:20 unless it goes on (--hang-after)",
        ),
        (
            events.Stalled(
                ranks=(1,),
                waiting=(0,),
                for_s=12.0,
                kind="waits",
                wait=Wait(kind="file-lock", what="/data/lock", holder=7, command="sleep 9"),
                left_s=1.0,
                met_before=1,
            ),
            "is waiting for a file lock on /data/lock that process 7 (sleep 9) holds for 0:12; rank 0 waits",
        ),
        (events.CaughtUp(after_s=15.0), "moving again after 15 s"),
        (events.GaveUp(why="because"), "not starting again: because"),
        (events.Asking(ways=2, within_s=150.0), "an answer is waited for 2:30 at most"),
        (events.Finished(exitcode=0, attempts=2, incidents=1, elapsed_s=3725.0), "training finished after 1:02:05, 2 attempts"),
        (events.Finished(exitcode=7, attempts=1, incidents=1, elapsed_s=5.0), "ended with exit code 7 after 0:05"),
    ],
)
def test_what_is_said(shown, event, text):
    live, seen = shown()
    live.tell(event)
    assert text.encode() in seen()[1]


def finished(path, **more):
    return events.Finished(**{"exitcode": 0, "attempts": 1, "incidents": 0, "elapsed_s": 5.0, "run_dir": str(path), **more})


def test_the_last_line_says_where_it_is_kept(shown, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    live, seen = shown()
    live.tell(finished(tmp_path / "runs" / "a"))
    live.tell(finished(tmp_path / "runs" / "a b", incidents=1, exitcode=1))
    live.tell(finished("/elsewhere/a", incidents=2))
    live.tell(finished("/elsewhere/a", interrupted=True, exitcode=130))
    live.tell(finished(tmp_path / "-x", incidents=1, exitcode=1))
    said = seen()[1].decode().splitlines()
    # Read back from logs, the words of the others tell of a verdict.
    assert said[7] == "unhang: records in /elsewhere/a (where its ranks were: unhang why /elsewhere/a)"
    assert [bool(re.search(RECORDS.pattern, line)) for line in said[1::2]] == [False, True, True, False, True]
    assert said[1] == "unhang: records in runs/a"
    assert said[3] == "unhang: records in 'runs/a b'; unhang why 'runs/a b'"
    assert said[5] == "unhang: records in /elsewhere/a; unhang why /elsewhere/a"
    assert said[9] == "unhang: records in ./-x; unhang why ./-x"


class Screen(io.StringIO):
    """A terminal that keeps everything; what goes to its descriptor is in `raw`."""

    def isatty(self):
        return True


def test_the_live_line_ends_with_the_run(monkeypatch):
    drawn = []
    live = Live(console=Console(Screen(), force_terminal=True, width=80))
    monkeypatch.setattr(live, "_raw", drawn.append)
    live.tell(events.Pace(step=1, steps_per_s=None, ranks=1, elapsed_s=61.0))
    assert drawn == [b"\x1b[2munhang: step 1  1 rank  1:01\x1b[0m"]
    live.tell(finished("/r"))
    live.tell(events.Note(text="late"))
    live.output(0, "out", b"last words\n")
    live.close()
    assert drawn[1:] == [b"\r" + b" " * 28 + b"\r"]


def test_the_live_line_without_colours(monkeypatch):
    drawn = []
    live = Live(console=Console(Screen(), force_terminal=True, color_system=None, width=80))
    monkeypatch.setattr(live, "_raw", drawn.append)
    live.tell(events.Pace(step=1, steps_per_s=None, ranks=1, elapsed_s=61.0))
    live.close()
    assert drawn == [b"unhang: step 1  1 rank  1:01", b"\r" + b" " * 28 + b"\r"]


def test_streams_that_were_closed_at_the_start(monkeypatch):
    monkeypatch.setattr("sys.stdout", None)
    live = Live(console=Console(io.StringIO()))
    assert not live.is_terminal("out")
    live.output(0, "out", b"x")


@pytest.fixture
def slow():
    """A pipe whose writing end does not block: (reading end, a file to write to)."""
    read, write = os.pipe()
    os.set_blocking(write, False)
    with os.fdopen(write, "wb") as target:
        yield read, target
    os.close(read)


def test_a_slow_reader_gets_everything(slow):
    read, target = slow
    live = Live(console=Console(io.StringIO()))
    live._targets["out"] = target
    data = os.urandom(500_000)
    got = []
    reader = threading.Thread(target=lambda: [got.append(os.read(read, 7000)) for _ in iter(lambda: sum(map(len, got)) < len(data), False)])
    reader.start()
    live.output(0, "out", data)
    reader.join(30)
    assert b"".join(got) == data
    assert live._targets["out"] is target


def test_a_reader_that_stays_away_is_waited_for_once(slow, monkeypatch):
    read, target = slow
    waits = []

    class Poll:
        register = staticmethod(lambda fd, events: None)
        poll = staticmethod(lambda ms: waits.append(ms))

    monkeypatch.setattr("select.poll", Poll)
    live = Live(console=Console(io.StringIO()))
    live._targets["out"] = target
    for _ in range(3):
        live.output(0, "out", b"x" * 200_000)
    assert 0 < waits[0] <= 5000 and waits[1:] == [0, 0]
    while len(os.read(read, 1 << 20)) == 1 << 20:
        pass
    live.output(0, "out", b"again\n")
    assert os.read(read, 100) == b"again\n"
    assert live._patience[target.fileno()] == 5.0


def rung(title, outcome="skipped", says="only NCCL has it"):
    return events.RungTried(rung=title, title=title, outcome=outcome, says=says, seconds=0.0 if outcome == "skipped" else 2.0)


def test_changes_that_were_not_tried_for_one_reason_are_one_line(shown):
    live, seen = shown()
    for event in (rung("a"), rung("b"), rung("c", says="no time"), rung("d", "passed"), rung("e")):
        live.tell(event)
    live.close()
    assert seen()[1].decode().splitlines() == [
        "unhang:   a; b: not tried: only NCCL has it",
        "unhang:   c: not tried: no time",
        "unhang:   d: works (2.0 s)",
        "unhang:   e: not tried: only NCCL has it",
    ]


def test_what_was_held_back_stands_before_a_question(shown):
    live, seen = shown()
    for event in (rung("a"), events.Asking(ways=2, within_s=9.0)):
        live.tell(event)
    assert [line.split(":")[1].strip() for line in seen()[1].decode().splitlines()] == ["a", "an answer is waited for 0"]


def test_why_a_change_failed_ends_with_a_word(shown):
    live, seen = shown()
    live.tell(rung("a", "failed", says="process group: " + "Unable to find address. " * 20))
    (line,) = seen()[1].decode().splitlines()
    assert line.endswith(("find ...", "address ...", "to ...", "Unable ..."))


def test_what_is_tried_fits_a_terminal_of_80_columns():
    out = io.StringIO()
    live = Live(console=Console(out, force_terminal=True, width=80, color_system=None))
    live.tell(rung("host memory by cuMem off", "failed", says="rank 0: RuntimeError: Unable to find address for: nosuch0; " * 3))
    lines = out.getvalue().splitlines()
    assert len(lines) > 2 and all(len(line) <= 80 for line in lines)
    assert all(line.startswith(("unhang: ", "          ")) for line in lines)


@pytest.mark.parametrize(
    ("event", "text"),
    [
        (
            events.FirstStep(ranks=8, devices=("cuda:0 (H100)",), backend="nccl", after_s=41.2),
            "8 个 rank，位于 cuda:0 (H100) (nccl)；启动后 41.2 秒完成第一步",
        ),
        (
            events.Stalled(ranks=(1,), waiting=(0, 2), for_s=31.0, kind="works", left_s=260.0),
            "rank 1 在工作，已 0:31；rank 0, 2 在等待；若无进展，4:20 后结束训练（--hang-after）",
        ),
        (events.Opened(incident=1, kind="hang"), "不再有任何进展；正在采集证据"),
        (events.Restarting(attempt=1, of=3), "重新启动（第 1 次，共 3 次）"),
        (events.Note(text="port 29500 is still taken; waiting for it"), "端口 29500 仍被占用；正在等待"),
        (
            events.RungTried(rung="x", title=both("no shm", "不用共享内存"), outcome="failed", says=both("it fails", "它失败了")),
            "  不用共享内存：失败：它失败了",
        ),
        (events.Asking(ways=2, within_s=75), "最多等待回答 1:15；没有回答则按原样重新启动"),
        (events.Finished(exitcode=3, attempts=2, incidents=0, elapsed_s=61.0), "以退出码 3 结束，用时 1:01，共 2 次尝试"),
        (events.Finished(exitcode=0, attempts=2, incidents=0, elapsed_s=61.0), "训练正常结束，用时 1:01，共 2 次尝试"),
        (
            events.Climbing(cause="shm-exhausted", ranks=2, limit_s=300.0, answer_s=75.0),
            "shm-exhausted：更改设置也许能解决；正在本机用 2 个 rank 测试，最多 5:00，其中 1:15 留给您回答",
        ),
        (
            events.FellBack(choice={"shm": False}, environment={"NCCL_SHM_DISABLE": "1"}, arguments=(), says=both("it works", "它可行")),
            "它可行；从现在起使用 NCCL_SHM_DISABLE=1",
        ),
        (events.Note(text=both("of one run only", "只属于这次运行")), "只属于这次运行"),
        (
            events.GaveUp(why="the same failure again, each time before the first optimizer step: starting again would not help"),
            "不再重新启动：每次都在优化器的第一步之前出现同样的失败，再次启动也没有用",
        ),
        (
            events.GaveUp(why="the same failure again, each time after 7 steps: starting again would not help"),
            "不再重新启动：每次都在 7 步之后出现同样的失败，再次启动也没有用",
        ),
        (events.GaveUp(why="--max-restarts 3 is used up"), "不再重新启动：--max-restarts 3 已用完"),
    ],
)
def test_lines_of_ours_in_chinese(shown, monkeypatch, event, text):
    language.chosen(None)
    monkeypatch.setenv("LC_ALL", "zh_CN.UTF-8")
    live, seen = shown()
    live.tell(event)
    assert seen()[1].decode() == f"unhang: {text}\n"


def test_of_the_time_of_the_ladder_a_part_is_for_the_answer(shown):
    live, seen = shown()
    live.tell(events.Climbing(cause="shm-exhausted", ranks=2, limit_s=300.0, answer_s=75.0))
    assert seen()[1].endswith(b"with 2 ranks, 5:00 at most, 1:15 of it for your answer\n")
