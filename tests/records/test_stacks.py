"""Stacks from py-spy and faulthandler, the user's line in them, and the guards around a line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap

import pytest
from tests.tables import for_each

from unhang.errors import RecordError
from unhang.frames import Frame, place, user_frame, without_hook
from unhang.records import stacks
from unhang.records.incident import Stacks, ThreadStack
from unhang.records.stacks import from_faulthandler, from_pyspy, guards_of, is_endless, main_thread, worker_of_pyspy

SITE = "/opt/venv/lib/python3.11/site-packages"


def frame(file, line=1, name="f"):
    return Frame(file=file, line=line, name=name)


def test_pyspy_of_a_real_process(tmp_path):
    script = tmp_path / "waits.py"
    script.write_text("import sys\n\ndef wait():\n    print('ready', flush=True)\n    sys.stdin.readline()\n\nwait()\n")
    process = subprocess.Popen([sys.executable, str(script)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert process.stdout.readline() == b"ready\n"
        tool = os.path.join(os.path.dirname(sys.executable), "py-spy")
        ran = subprocess.run([tool, "dump", "--json", "--pid", str(process.pid)], capture_output=True, timeout=30)
        if ran.returncode != 0:
            pytest.skip(f"py-spy may not read processes here: {ran.stderr.decode()[-200:]}")
        stacks = from_pyspy(ran.stdout)
    finally:
        process.communicate(b"\n", timeout=30)
    assert stacks.source == "py-spy" and stacks.threads[0].main
    assert [(f.name, f.line) for f in main_thread(stacks)] == [("<module>", 7), ("wait", 5)]
    assert place(user_frame(main_thread(stacks)), str(tmp_path)) == "waits.py:5 in wait"


@pytest.mark.parametrize("data", [b"", b"{}", b"[1]", b'[{"pid": 1}]', b"[" * 10_000])
def test_what_is_no_pyspy_output_is_refused(data):
    with pytest.raises(RecordError):
        from_pyspy(data)


def test_pyspy_marks_the_main_thread_by_id_too():
    thread = {"pid": 7, "thread_id": 1, "thread_name": None, "frames": []}
    stacks = from_pyspy(json.dumps([{**thread, "os_thread_id": 9}, {**thread, "os_thread_id": 7}]).encode())
    assert [t.main for t in stacks.threads] == [True, False]


@pytest.mark.parametrize(
    ("known", "expected"),
    [
        ({"fetch": {"idx": "53", "possibly_batched_index": "[52, 53]"}}, "53"),
        ({"fetch": {"possibly_batched_index": "[52, 53, ...]"}, "worker": {"index": "[52, 53]"}}, "[52, 53, ...]"),
        ({"worker": {"index": "(3, 4)", "idx": "9"}}, "(3, 4)"),
        # Whose names these are nobody but the user has to know.
        ({"fetch": {"idx": '"/home/u/patient-12.png"', "possibly_batched_index": '["a", "b"]'}}, None),
        ({"fetch": {"possibly_batched_index": "[None, None]"}}, None),
        ({"fetch": {}, "worker": {}}, None),
    ],
)
def test_pyspy_tells_what_a_worker_was_asked_for(known, expected):
    def frame(file, name, values):
        return {"filename": f"{SITE}/torch/utils/data/_utils/{file}.py", "name": name, "locals": [{"name": n, "repr": v} for n, v in values.items()]}

    own = {"filename": "/home/u/data.py", "name": "Rows.__getitem__", "locals": [{"name": "idx", "repr": "99"}, {"name": "self", "repr": None}]}
    loop = frame("worker", "_worker_loop", {"worker_id": "3", **known.get("worker", {})})
    thread = {"pid": 7, "thread_id": 1, "thread_name": "MainThread", "frames": [own, frame("fetch", "fetch", known.get("fetch", {})), loop]}
    data = json.dumps([thread]).encode()
    assert worker_of_pyspy(data) == (3, expected)
    assert [f.name for f in main_thread(from_pyspy(data))] == ["_worker_loop", "fetch", "__getitem__"]


def test_faulthandler_of_a_real_crash(tmp_path):
    script = tmp_path / "crash.py"
    script.write_text(
        "import faulthandler, os, sys, threading\n"
        "faulthandler.enable(file=open(sys.argv[1], 'w'))\n"
        "ready = threading.Event()\n"
        "def idle():\n    ready.set()\n    threading.Event().wait()\n"
        "threading.Thread(target=idle, daemon=True).start()\n"
        "ready.wait()\n"
        "def crash():\n    os.abort()\n"
        "crash()\n"
    )
    out = tmp_path / "fatal.txt"
    subprocess.run([sys.executable, str(script), str(out)], timeout=60)
    stacks = from_faulthandler(out.read_text())
    assert stacks.source == "fatal-signal" and [t.main for t in stacks.threads] == [True, False]
    assert [f.name for f in main_thread(stacks)] == ["<module>", "crash"]
    assert user_frame(main_thread(stacks)).line == 10


def test_faulthandler_without_a_stack_is_refused():
    with pytest.raises(RecordError):
        from_faulthandler("Fatal Python error: Aborted\n\nCurrent thread 0x00007f (most recent call first):\n  <no Python frame>\n")


def test_the_user_frame_is_the_innermost_of_the_users():
    frames = (frame("/home/u/train.py"), frame("/home/u/data.py", 2), frame(f"{SITE}/torch/utils/data/dataloader.py", 3), frame("<string>"))
    assert user_frame(frames).line == 2


def test_without_user_code_the_library_that_called_torch_is_named():
    frames = (frame("/usr/lib/python3.11/runpy.py"), frame(f"{SITE}/transformers/trainer.py", 5), frame(f"{SITE}/torch/_tensor.py", 6))
    assert user_frame(frames).line == 5
    assert user_frame(frames[:1]) is None


def test_place_is_relative_inside_the_working_directory_only():
    assert place(frame("/a/b/c.py", 3, "g"), "/a/b") == "c.py:3 in g"
    assert place(frame("/a/bc.py", 3, "g"), "/a/b") == "/a/bc.py:3 in g"
    assert place(frame("/a/b.py", 3, "g"), "/") == "/a/b.py:3 in g"


SOURCE = textwrap.dedent(
    """\
    def save(model):
        if model is None:
            return
        if rank == 0 and epoch > 1:
            with open("x") as f:
                try:
                    barrier()
                finally:
                    log()
        elif other:
            branch()
        else:
            last()
        for i in range(3):
            if i == 1:
                continue
            late()

    if rank == 0:
        def inner():
            free()
    if rank == 0: one_line()
    match x:
        case 1 if ready:
            if y:
                cased()
    """
)


@pytest.mark.parametrize(
    ("call", "guards"),
    [
        ("barrier()", ("not (model is None)", "rank == 0 and epoch > 1")),
        ("log()", ("not (model is None)", "rank == 0 and epoch > 1")),
        ("branch()", ("not (model is None)", "not (rank == 0 and epoch > 1)", "other")),
        ("last()", ("not (model is None)", "not (rank == 0 and epoch > 1)", "not (other)")),
        ("late()", ("not (model is None)", "not (i == 1)")),
        ("free()", ()),
        ("one_line()", ("rank == 0",)),
        ("cased()", ("y",)),
    ],
)
def test_guards(tmp_path, call, guards):
    path = tmp_path / "m.py"
    path.write_text(SOURCE)
    line = next(i for i, text in enumerate(SOURCE.splitlines(), 1) if call in text)
    assert guards_of(str(path), line) == guards


@for_each(
    ("source", "endless"),
    [
        ("while True: pass", True),
        ("while 1:\n    n = n + 1", True),
        ("for e in range(3):\n    while True:\n        x = x @ x", True),
        ("while True:\n    for i in data: work(i)", False),
        ("for i in range(9): work(i)", False),
        ("while time.monotonic() < end: work()", False),
        ("while True:\n    if done(): break", False),
        ("def f():\n    while True:\n        if x: return", False),
        ("while True:\n    batch = next(data)", False),
        ("while True:\n    if x: sys.exit()", False),
        ("while True:\n    os.execv(sys.executable, sys.argv)", False),
        ("while True:\n    batch = loader.fetch()\n    model.step(batch)\n    done.check()", False),
        ("while True:\n    train_one_batch(model)", False),
        ("while True:\n    def inner():\n        work()", False),
        ("work()", False),
        ("while True: (", False),
    ],
)
def test_a_loop_without_a_way_out(tmp_path, source, endless):
    path = tmp_path / "m.py"
    path.write_text(source + "\n")
    assert is_endless(str(path), len(source.splitlines())) == endless


def test_guards_of_what_cannot_be_read(tmp_path):
    bad = tmp_path / "bad.py"
    bad.write_text("if :\n")
    assert guards_of(str(bad), 1) == () and guards_of(str(tmp_path / "none.py"), 1) == () and guards_of("<string>", 1) == ()


def test_guards_of_one_physical_line(tmp_path):
    path = tmp_path / "one.py"
    path.write_text("for i in x:\n    if i > 3 and rank == 0: dist.barrier()\n    elif i: y()\n    else: z()\n")
    assert guards_of(str(path), 2) == ("i > 3 and rank == 0",)
    assert guards_of(str(path), 3) == ("not (i > 3 and rank == 0)", "i")


def test_the_hook_is_not_where_a_rank_stands():
    user, torch = frame("/home/u/train.py"), frame(f"{SITE}/torch/optim/adam.py")
    wait = frame("/usr/lib/python3.11/threading.py")
    for hook in (f"{SITE}/unhang/attach/session.py", "/src/unhang/testing/faults.py"):
        assert without_hook((user, torch, frame(hook), wait)) == (user, torch)
        # A wrapper around the user's call is passed through.
        assert without_hook((user, frame(hook), torch)) == (user, frame(hook), torch)
        assert without_hook((frame(hook), wait)) == (frame(hook), wait)
    assert without_hook((user, wait)) == (user, wait)


def test_threads_that_release_nothing_are_known_by_their_work_and_those_of_unhang_by_name():
    def thread(tid, name, file):
        return ThreadStack(name=name, main=False, frames=(Frame(file=file, line=1, name="run"),), tid=tid)

    found = (thread(1, "Thread-1", "/x/tqdm/_monitor.py"), thread(2, "unhang-store", "/x/threading.py"), thread(3, "Thread-2", "/x/threading.py"))
    assert stacks.idle_threads(Stacks(source="process", threads=found)) == {1, 2}
