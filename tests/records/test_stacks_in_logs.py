"""Stacks that faulthandler and py-spy wrote into logs, as stacks of the rank whose log it is."""

from __future__ import annotations

import subprocess
import sys

import pytest

from unhang import logs
from unhang.errors import RecordError
from unhang.logs import Needles
from unhang.records import stacks_in_logs
from unhang.records.stacks import from_pyspy_text, main_thread

SCRIPT = """\
import faulthandler, threading, sys

ready = threading.Event()

def idle():
    ready.set()
    threading.Event().wait(60)

def load():
    faulthandler.dump_traceback(file=sys.stdout)
    print("still here", flush=True)
    faulthandler.dump_traceback(file=sys.stdout)
    faulthandler.dump_traceback(file=sys.stdout, all_threads=False)

threading.Thread(target=idle, daemon=True).start()
ready.wait()
load()
"""

# `py-spy dump --pid 4003` (0.4.0).
PY_SPY = """\
Process 4003: /usr/bin/python3.11 -u train.py
Python v3.11.9 (/usr/bin/python3.11)

Thread 4003 (idle): "MainThread"
    all_reduce (torch/distributed/distributed_c10d.py:2501)
    step (train.py:20)
    main (train.py:40)
    <module> (train.py:44)
Thread 4020 (idle): "pt_autograd_0"
    wait (threading.py:320)
"""


def read(tmp_path, **texts):
    hits, paths = [], {}
    needles = Needles(stacks_in_logs.SIGNATURES)
    for name, text in texts.items():
        path = tmp_path / f"{name}.log"
        path.write_text(text)
        found = logs.read(path, needles, source=name, rank=int(name[4:]) if name.startswith("rank") else None)
        hits += found.hits
        paths[name] = path
    return stacks_in_logs.read(hits, paths)


def names(found, rank):
    return [(f.line, f.name) for f in main_thread(found.stacks[rank])]


@pytest.fixture(scope="module")
def real(tmp_path_factory):
    """What faulthandler of this Python really writes: all threads twice with a line between, then one thread alone."""
    script = tmp_path_factory.mktemp("dumped") / "train.py"
    script.write_text(SCRIPT)
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=60, check=True)
    return done.stdout


def test_faulthandler_of_a_real_process(tmp_path, real):
    found = read(tmp_path, rank3="epoch 1\n" + real + "epoch 2\n")
    assert set(found.stacks) == {3} and found.unplaced == 0
    assert names(found, 3) == [(17, "<module>"), (13, "load")]
    assert len(found.stacks[3].threads) == 1


def test_all_threads_of_one_dump_stay_together(tmp_path, real):
    first = real.partition("still here")[0]
    found = read(tmp_path, rank0=first)
    assert len(found.stacks[0].threads) == 2 and names(found, 0) == [(17, "<module>"), (10, "load")]


def test_ranks_that_write_into_one_log(tmp_path, real):
    first = real.partition("still here")[0].splitlines()
    both = [f"[rank{rank}]:{line}" for line in first for rank in (0, 1)]
    found = read(tmp_path, train="\n".join(both) + "\n")
    assert set(found.stacks) == {0, 1}
    assert names(found, 0) == names(found, 1) == [(17, "<module>"), (10, "load")]


def test_whose_stacks_nothing_tells_are_counted(tmp_path, real):
    found = read(tmp_path, train=real.partition("still here")[0])
    assert found.stacks == {} and found.unplaced == 1


def test_pyspy_for_people(tmp_path):
    found = read(tmp_path, rank1=PY_SPY)
    assert names(found, 1) == [(44, "<module>"), (40, "main"), (20, "step"), (2501, "all_reduce")]
    assert [t.name for t in found.stacks[1].threads] == ["MainThread", "pt_autograd_0"]


def test_traces_of_c_plus_plus_are_no_python_stacks(tmp_path):
    text = (
        "Exception raised from checkTimeout at ProcessGroupNCCL.cpp:618 (most recent call first):\nframe #0: c10::Error::Error(c10::SourceLocation)\n"
    )
    found = read(tmp_path, rank0=text)
    assert found.stacks == {} and found.unplaced == 0


@pytest.mark.parametrize("text", ["", "Thread 1 (idle)\n", "    step (train.py:20)\n"])
def test_what_is_no_pyspy_output_is_refused(text):
    with pytest.raises(RecordError):
        from_pyspy_text(text)


def test_where_processes_stand_without_those_that_crashed(tmp_path):
    unnamed = "Thread 17 (active+gil)\n    read (data.py:8)\n    <module> (train.py:4)\n"
    crash = 'Fatal Python error: Aborted\n\nCurrent thread 0x00007f58253e8b80 (most recent call first):\n  File "/u/a.py", line 3 in f\n'
    found = read(tmp_path, rank0=PY_SPY, rank1=unnamed, rank2=crash, other=unnamed)
    seen = [(s.rank, s.source, s.line, s.executes, s.frames[-1].name) for s in found.standing]
    assert seen == [(0, "rank0", 4, False, "all_reduce"), (1, "rank1", 1, True, "read"), (None, "other", 1, True, "read")]
    assert set(found.stacks) == {0, 1, 2} and found.unplaced == 1


def test_each_line_is_held_against_few_stacks(tmp_path, monkeypatch):
    """Of those that nobody's name stands before, each is one of its own."""
    added = []
    add = stacks_in_logs.Behind.add
    monkeypatch.setattr(stacks_in_logs.Behind, "add", lambda self, line, *more: added.append(line.number) or add(self, line, *more))
    unit = 'Current thread 0x00007f4ebf9d3740 (most recent call first):\n  File "a.py", line 7 in f\n[rank5]: x\n'
    found = read(tmp_path, log=unit * 1200)
    assert found.standing and all(s.far for s in found.standing[:900]) and not found.standing[-1].far
    assert len(added) < 300 * len(set(added))


def test_many_heads_take_little_time(tmp_path, cpu_seconds):
    cpu_seconds(10)
    text = "".join(f'Thread 0x{n:08x} (most recent call first):\n  File "t.py", line {n} in f\n' for n in range(20_000))
    assert read(tmp_path, rank0=text).stacks.keys() == {0}
