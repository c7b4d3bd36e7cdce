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
    assert [(line, name) for _, line, name, _ in raised["frames"]] == [(4, "train")]
    assert listener.finish(process)[:2] == (0, "ValueError('no label')\n")
