"""Ray Train's runner of trainings, as far as the hook knows it; tests/launchers has the real one."""

import subprocess

RUNNER = """
import threading

class ThreadRunner:
    def __init__(self):
        self.error = None

    def run(self, target):
        def _run_target():
            try:
                target()
            except BaseException as e:
                self.error = e

        self.thread = threading.Thread(target=_run_target, name="TrainingThread", daemon=True)
        self.thread.start()
"""
START = "from ray.train.v2._internal.execution.worker_group.thread_runner import ThreadRunner\nrunner = ThreadRunner()\n"
MODULE = "ray/train/v2/_internal/execution/worker_group/thread_runner.py"


def actor(listener, code):
    path = listener.directory / MODULE
    path.parent.mkdir(parents=True)
    path.write_text(RUNNER)
    env = listener.env(RANK="1", LOCAL_RANK="1", WORLD_SIZE="2")
    process = listener.python(START + code, env=env, stdin=subprocess.PIPE)
    return process, listener.peer(pid=process.pid)


def test_the_thread_that_trains_is_watched(listener):
    code = "import os\ndef train():\n    os.read(0, 1)  # here\nrunner.run(train)\nrunner.thread.join()\n"
    process, peer = actor(listener, code)
    script = str(listener.directory / "train.py")
    listener.until(lambda: [b for b in peer.of("beat") if b["place"] == [script, 5, "train"]], "a beat that saw the training's line")
    (training,) = peer.of("training")
    assert training["pid"] == process.pid != training["tid"]
    assert listener.finish(process)[0] == 0


def test_an_exception_that_the_runner_keeps_is_told(listener):
    code = "def train():\n    raise ValueError('no label')\nrunner.run(train)\nrunner.thread.join()\nprint(repr(runner.error))\n"
    process, peer = actor(listener, code)
    listener.await_message(peer, "raised")
    (raised,) = peer.of("raised")
    assert (raised["type"], raised["text"]) == ("ValueError", "no label")
    assert [(line, name) for _, line, name, *_ in raised["frames"]] == [(4, "train")]
    assert listener.finish(process)[:2] == (0, "ValueError('no label')\n")


def test_a_thread_that_has_ended_is_watched_no_more(listener):
    """The main thread counts again, and the next trainer's thread takes its place; one that ends late takes nothing back."""
    code = """import os, threading
def train():
    os.read(0, 1)  # first
later = ThreadRunner()
def train_again():
    runner.thread.join()
    os.read(0, 1)  # second
go = threading.Event()
runner.run(train)
runner.thread.join()
os.read(0, 1)  # between
runner = ThreadRunner()
runner.run(go.wait)
later.run(train_again)
go.set()
later.thread.join()
os.read(0, 1)  # after
"""
    process, peer = actor(listener, code)
    words = ("first", "between", "second", "after")
    lines = {word: 1 + START.count("\n") + code[: code.index(f"# {word}")].count("\n") for word in words}
    for word in words:
        at = lines[word]
        listener.until(lambda at=at: [b for b in peer.of("beat")[-1:] if b["place"] and b["place"][1] == at], f"a beat in the {word} line")
        process.stdin.write("x")
        process.stdin.flush()
    assert listener.finish(process)[0] == 0
    first, none, _, last, at_last = (message["tid"] for message in peer.of("training"))
    assert none is at_last is None and first is not None and last is not None
