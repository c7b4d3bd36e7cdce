"""A rank without torch: hello, beats, evidence, exceptions, signals, forks, the end."""

import os
import signal
import subprocess
import sys

import pytest

from unhang.attach import protocol

RANK = {"RANK": "1", "LOCAL_RANK": "0", "WORLD_SIZE": "4"}
# Blocks in C until standard input is closed.
WAIT = "import os\ndef wait():\n    os.read(0, 1)  # waiting\n"


def waiting(listener, code="wait()\n", **popen):
    popen.setdefault("env", listener.env(**RANK))
    return listener.python(WAIT + code, stdin=subprocess.PIPE, **popen)


def test_hello_beats_and_leaving(listener):
    process = waiting(listener)
    peer = listener.peer(pid=process.pid)
    hello = peer.hello
    assert (hello["v"], hello["token"], hello["wants_stdio"]) == (protocol.VERSION, "a-token", False)
    assert (hello["rank"], hello["local_rank"], hello["world_size"], hello["host"]) == (1, 0, 4, os.uname().nodename)
    assert hello["argv"][-1].endswith("train.py")
    script = str(listener.directory / "train.py")
    listener.until(lambda: [b for b in peer.of("beat") if b["place"] == [script, 3, "wait"]], "a beat that saw the line")
    settled = len(peer.of("beat"))
    listener.await_message(peer, "beat", number=settled + 3)
    beats = peer.of("beat")[settled:]
    assert {(b["step"], b["sig"]) for b in beats} == {(0, beats[0]["sig"])}
    assert all(b["groups"] == {} for b in beats)
    assert sorted(b["t"] for b in beats) == [b["t"] for b in beats]
    assert listener.finish(process) == (0, "", "")
    listener.await_message(peer, "leaving")
    listener.until(lambda: not peer.open)


def test_a_thread_that_moves_has_another_sig(listener):
    code = "import math\ndef half():\n    for i in range(100): math.sqrt(i)\ndef other(): half()\nwhile True:\n    half()\n    other()\n"
    process = listener.python(code, env=listener.env(**RANK))
    peer = listener.peer(pid=process.pid)
    listener.until(lambda: len({b["sig"] for b in peer.of("beat")}) > 2, "different sigs")


def test_evidence_shows_all_threads(listener):
    code = "import threading\nthreading.Thread(target=wait, name='loader', daemon=True).start()\nwait()\n"
    process = waiting(listener, code)
    peer = listener.peer(pid=process.pid)
    script = str(listener.directory / "train.py")
    # Not earlier: while the thread starts, the main one is in threading.
    listener.until(lambda: any(b["place"] == [script, 3, "wait"] for b in peer.of("beat")), "a beat that saw the line")
    flight = listener.directory / "flight"
    peer.send("evidence", id=7, flight=str(flight))
    answer = listener.await_message(peer, "evidence")
    assert (answer["id"], answer["groups"], answer["step"]) == (7, {}, 0)
    dumped = listener.await_message(peer, "dumped")
    assert (dumped["id"], dumped["flight"]) == (7, False)
    assert "not initialised" in dumped["error"]
    assert not flight.exists()
    assert [(t["name"], t["main"]) for t in answer["threads"]] == [("MainThread", True), ("loader", False)]
    assert answer["threads"][0]["frames"][-2:] == [[script, 6, "<module>", "wait()", ""], [script, 3, "wait", "os.read(0, 1)  # waiting", ""]]
    assert answer["threads"][1]["frames"][-1] == [script, 3, "wait", "os.read(0, 1)  # waiting", ""]


def test_stacks_are_on_their_way_before_the_dump_is_made(listener):
    code = (
        "import sys, threading\n"
        "class Stuck:\n"
        "    groups = lambda self: {'default_pg': [3, 2]}\n"
        "    dump = lambda self, path: threading.Event().wait()\n"
        "sys.modules['_unhang_attach.session'].current().recorders = Stuck()\n"
        "wait()\n"
    )
    process = waiting(listener, code)
    peer = listener.peer(pid=process.pid)
    listener.until(lambda: any(b["groups"] for b in peer.of("beat")))
    peer.send("evidence", id=3, flight=str(listener.directory / "flight"))
    assert listener.await_message(peer, "evidence")["groups"] == {"default_pg": [3, 2]}
    assert peer.of("dumped") == []


def test_stdio_is_exchanged_for_a_rank_only(listener):
    out, launcher_out = os.pipe()
    own_out, rank_out = os.pipe()
    own_err, rank_err = os.pipe()
    stat = os.fstat(launcher_out)
    listener.stdio = (rank_out, rank_err)
    # Standard error went elsewhere: only standard output is exchanged.
    env = listener.env(**RANK, UNHANG_STDIO=f"{stat.st_dev}:{stat.st_ino},1:1")
    code = "import sys\nprint('out', flush=True)\nprint('err', file=sys.stderr)\n"
    process = listener.python(code, env=env, stdout=launcher_out)
    assert process.wait(40) == 0
    assert listener.peer(pid=process.pid).hello["wants_stdio"] is True
    plain = listener.python("print('plain')", env=listener.env(UNHANG_STDIO=env["UNHANG_STDIO"]), stdout=launcher_out)
    assert plain.wait(40) == 0
    for fd in (launcher_out, rank_out, rank_err):
        os.close(fd)
    with os.fdopen(own_out) as rank, os.fdopen(own_err) as unused, os.fdopen(out) as launcher:
        assert (rank.read(), unused.read(), launcher.read()) == ("out\n", "", "plain\n")
    assert process.stderr.read() == "err\n"


def test_no_answer_about_stdio(listener):
    stat = os.stat(os.devnull)
    env = listener.env(**RANK, UNHANG_STDIO=f"{stat.st_dev}:{stat.st_ino},{stat.st_dev}:{stat.st_ino}")
    process = listener.python("print(1)", env=env, stdout=subprocess.DEVNULL)
    assert process.wait(40) == 0
    assert listener.peer(pid=process.pid).hello["wants_stdio"] is True


RAISES = """
def train():
    try:
        {}["key"]
    except KeyError as e:
        raise ValueError("x" * 30_000 if BIG else "no such key") from e
train()
"""


def test_an_exception_is_told_before_it_is_printed(listener):
    listener.go.clear()
    process = listener.python("BIG = False" + RAISES, env=listener.env(**RANK))
    peer = listener.peer(pid=process.pid)
    raised = listener.await_message(peer, "raised")
    script = str(listener.directory / "train.py")
    assert (raised["type"], raised["text"], raised["flight"]) == ("ValueError", "no such key\ncaused by KeyError: 'key'", False)
    assert [frame[:3] for frame in raised["frames"]] == [[script, 7, "<module>"], [script, 6, "train"]]
    assert raised["frames"][0][3] == "train()"
    # It waits, and answers meanwhile.
    peer.send("evidence", id=1, flight="/nowhere")
    listener.await_message(peer, "evidence")
    assert process.poll() is None and peer.of("leaving") == []
    peer.send("go")
    code, _, err = listener.finish(process)
    assert code == 1 and err.endswith("ValueError: no such key\n") and "_unhang" not in err and "attach" not in err
    listener.await_message(peer, "leaving")


def test_a_long_exception_is_cut(listener):
    process = listener.python("BIG = True" + RAISES, env=listener.env(**RANK))
    assert len(listener.await_message(listener.peer(pid=process.pid), "raised")["text"]) == 20_000


@pytest.mark.parametrize("code", ["raise KeyboardInterrupt", "raise SystemExit(3)"])
def test_what_is_no_failure_is_not_told(listener, code):
    listener.go.clear()
    process = listener.python(code, env=listener.env(**RANK))
    peer = listener.peer(pid=process.pid)
    listener.finish(process)
    listener.until(lambda: not peer.open)
    assert peer.of("raised") == []
    assert len(peer.of("leaving")) == 1


REPLACED_HOOKS = {
    "prints": "sys.excepthook = lambda *e: print('mine')",
    "raises": "sys.excepthook = lambda *e: 1 / 0",
    "leaves": "sys.excepthook = lambda *e: os._exit(1)",
    "with a thread that goes on": "sys.excepthook = lambda *e: None\nthreading.Thread(target=wait).start()",
}


@pytest.mark.parametrize("hook", REPLACED_HOOKS)
def test_a_replaced_excepthook_hides_no_exception(listener, hook):
    listener.go.clear()
    process = waiting(listener, f"import sys, threading\n{REPLACED_HOOKS[hook]}\ndef train():\n    raise ValueError('lost')\ntrain()\n")
    peer = listener.peer(pid=process.pid)
    raised = listener.await_message(peer, "raised")
    assert (raised["type"], raised["text"], raised["frames"][-1][2:4]) == ("ValueError", "lost", ["train", "raise ValueError('lost')"])
    assert process.poll() is None and peer.of("leaving") == []
    peer.send("go")
    assert listener.finish(process)[0] == 1
    assert len(peer.of("raised")) == 1


def test_an_exception_is_told_once(listener):
    process = listener.python("import sys\nours = sys.excepthook\nsys.excepthook = lambda *e: ours(*e)\nraise ValueError", env=listener.env(**RANK))
    peer = listener.peer(pid=process.pid)
    assert listener.finish(process)[0] == 1
    listener.await_message(peer, "leaving")
    assert len(peer.of("raised")) == 1


SWALLOWED = "try:\n        sys.exit(3)\n    except SystemExit:\n        pass"


@pytest.mark.parametrize(
    ("call", "code", "line"),
    [
        ("sys.exit()", 0, "sys.exit()"),
        ("sys.exit('a message')", 1, "sys.exit('a message')"),
        ("exit(4)", 4, "exit(4)"),
        ("try:\n        sys.exit(5)\n    finally:\n        print('last')", 5, "sys.exit(5)"),
        ("argparse.ArgumentParser().parse_args(['--what'])", 2, "argparse.ArgumentParser().parse_args(['--what'])"),
        ("os._exit(6)", 6, "os._exit(6)"),
        (f"{SWALLOWED}", 0, None),
        (f"{SWALLOWED}\n    exit(7)", 7, "exit(7)"),
        ("t = threading.Thread(target=sys.exit)\n    t.start()\n    t.join()", 0, None),
        ("if not os.fork():\n        os._exit(3)\n    os.wait()", 0, None),
        ("raise SystemExit(8)", 8, None),
    ],
)
def test_the_line_that_ends_the_script_is_told(listener, call, code, line):
    listener.go.clear()
    process = listener.python(f"import argparse, os, sys, threading\ndef main():\n    {call}\nmain()\n", env=listener.env(**RANK))
    peer = listener.peer(pid=process.pid)
    assert listener.finish(process)[0] == code
    listener.until(lambda: not peer.open)
    script = str(listener.directory / "train.py")
    told = [[f[2:4] for f in m["frames"] if f[0] == script][-1] for m in peer.of("exits")]
    assert told == ([["main", line]] if line else [])


def test_a_supervisor_that_goes_away_is_forgotten(listener):
    process = waiting(listener, "wait()\nraise ValueError\n")
    peer = listener.peer(pid=process.pid)
    listener.await_message(peer, "beat")
    listener.close()
    listener.until(lambda: not peer.open)
    code, _, err = listener.finish(process)
    assert code == 1 and err.endswith("ValueError\n") and "heartbeat" not in err


def test_refused(listener):
    process = waiting(listener)
    peer = listener.peer(pid=process.pid)
    peer.send("refused", why="test")
    listener.until(lambda: not peer.open)
    assert process.poll() is None
    assert listener.finish(process) == (0, "", "")


def test_a_supervisor_that_does_not_read_stops_nothing(listener):
    code = (
        "import sys\n"
        "link = sys.modules['_unhang_attach.session'].current().link\n"
        "for _ in range(2000): link.post('left', filler='x' * 10_000)\n"
        "print(link.open)\n"
    )
    listener.deaf = True
    assert listener.finish(listener.python(code, env=listener.env(**RANK))) == (0, "False\n", "")


def test_a_forked_child_is_another_process(listener):
    code = (
        "import os, sys, threading\n"
        "pid = os.fork()\n"
        "if pid == 0:\n"
        "    print([t.name for t in threading.enumerate()], sys.modules['_unhang_attach.session'].current(), flush=True)\n"
        "    raise ValueError\n"
        "os.waitpid(pid, 0)\n"
        "wait()\n"
    )
    process = waiting(listener, code)
    peer = listener.peer(pid=process.pid)
    script = str(listener.directory / "train.py")
    listener.until(lambda: [b for b in peer.of("beat") if b["place"] == [script, 3, "wait"]], "the parent beats on")
    code, out, err = listener.finish(process)
    assert (code, out) == (0, "['MainThread'] None\n")
    assert err.endswith("ValueError\n")
    listener.await_message(peer, "leaving")
    assert peer.of("raised") == [] and len(peer.of("leaving")) == 1 and len(listener.peers) == 1
    assert (listener.fatal / "rank1.txt").read_text() == ""


def test_many_forks(listener):
    # Python 3.12 and newer remark on every fork of a process that has threads, and a heartbeat is one.
    forks = "for _ in range(200):\n    pid = os.fork()\n    if pid == 0: os._exit(0)\n    os.waitpid(pid, 0)\n"
    code = f"import os, warnings\nwarnings.simplefilter('ignore')\n{forks}wait()\n"
    process = waiting(listener, code)
    peer = listener.peer(pid=process.pid)
    listener.until(lambda: [b for b in peer.of("beat") if b["place"] and b["place"][2] == "wait"])
    assert listener.finish(process) == (0, "", "")


def test_children_of_a_rank_are_left_alone(listener):
    child = "import sys; print(any(type(f).__name__ == 'PatchAfterImport' for f in sys.meta_path))"
    code = f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {child!r}], check=True)\n"
    process = listener.python(code, env=listener.env(**RANK))
    code, out, err = listener.finish(process)
    assert (code, out, err) == (0, "False\n", "")
    listener.await_message(listener.peer(pid=process.pid), "leaving")
    assert len(listener.peers) == 1
    # The environment remains for what is started beside the rank.
    assert listener.finish(listener.python("", env=listener.env(**RANK)))[0] == 0
    listener.until(lambda: len(listener.peers) == 2)


def test_sigterm_leaves_the_stacks_and_still_ends_the_rank(listener):
    process = waiting(listener)
    peer = listener.peer(pid=process.pid)
    listener.until(lambda: any(b["place"] and b["place"][2] == "wait" for b in peer.of("beat")))
    process.terminate()
    assert process.wait(40) == -signal.SIGTERM
    text = (listener.fatal / "rank1.txt").read_text()
    assert f'File "{listener.directory / "train.py"}", line 3 in wait' in text
    assert peer.of("leaving") == []


def test_a_crash_leaves_the_stacks(listener):
    process = listener.python("import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)\n", env=listener.env(**RANK))
    assert process.wait(40) == -signal.SIGSEGV
    text = (listener.fatal / "rank1.txt").read_text()
    assert "Segmentation fault" in text and "line 2 in <module>" in text


def test_a_handler_of_the_script_replaces_ours(listener):
    code = "import signal, sys\nsignal.signal(signal.SIGTERM, lambda *_: sys.exit(5))\nwait()\n"
    process = waiting(listener, code)
    peer = listener.peer(pid=process.pid)
    listener.until(lambda: any(b["place"] and b["place"][2] == "wait" for b in peer.of("beat")))
    process.terminate()
    assert process.wait(40) == 5
    assert (listener.fatal / "rank1.txt").read_text() == ""
    listener.await_message(peer, "leaving")


def test_the_users_faulthandler_stays(listener):
    code = "import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)\n"
    _, _, err = listener.finish(listener.python(code, env=listener.env(**RANK), args=("-X", "faulthandler")))
    assert "Segmentation fault" in err
    assert (listener.fatal / "rank1.txt").read_text() == ""


def test_stacks_that_cannot_be_written(listener):
    process = listener.python("print(1)", env=listener.env(**RANK, UNHANG_FATAL_DIR="/no/such/directory"))
    assert listener.finish(process) == (0, "1\n", "")
    listener.await_message(listener.peer(pid=process.pid), "leaving")


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="Linux")
def test_scripts_that_close_all_descriptors(listener):
    code = (
        "import socket\n"
        "os.closerange(3, 10_000)\n"
        "pairs = [socket.socketpair() for _ in range(10)]\n"
        "wait()\n"
        "for ends in pairs:\n"
        "    for end in ends:\n"
        "        end.setblocking(False)\n"
        "        try: print(end.recv(10))\n"
        "        except BlockingIOError: pass\n"
    )
    process = waiting(listener, code)
    peer = listener.peer(pid=process.pid)
    listener.until(lambda: not peer.open)
    assert listener.finish(process) == (0, "", "")
