import sys
import threading

import pytest

from unhang.runtime.attach import frames


@pytest.fixture
def thread():
    """A thread that waits twice in one function; `step` lets it go on to the next place."""
    at, go = threading.Semaphore(0), threading.Semaphore(0)

    def wait_twice():
        at.release()
        go.acquire()
        at.release()
        go.acquire()

    running = threading.Thread(target=wait_twice)
    running.start()
    at.acquire()

    def step():
        go.release()
        at.acquire()

    yield running, step
    go.release(2)
    running.join()


def settled(ident):
    """The thread may still be on its way from `at` to `go`."""
    seen, times = None, 0
    while times < 20_000:
        now = frames.glance(ident)
        seen, times = now, times + 1 if now == seen else 0
    return seen


def test_sig_changes_within_a_function(thread):
    running, step = thread
    first = settled(running.ident)
    step()
    second = settled(running.ident)
    assert first[0][0] == second[0][0] == __file__
    assert (first[0][2], second[0][1] - first[0][1]) == ("wait_twice", 2)
    assert first[1] != second[1]


def test_place_prefers_the_user_then_a_library():
    def place(*files):
        """The place seen with a stack of functions from these files, innermost last."""
        code = "def call(rest, look): return rest[0](rest[1:], look) if rest else look()"
        functions = []
        for file in files:
            namespace = {}
            exec(compile(code, file, "exec"), namespace)
            functions.append(namespace["call"])
        found = []
        # Generated code is nobody's place.
        scope = {"functions": functions, "found": found, "glance": frames.glance, "ident": threading.get_ident}
        run = eval(compile("lambda: functions[0](functions[1:], lambda: found.append(glance(ident())))", "<test>", "eval"), scope)
        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
        return found[0][0] and found[0][0][0]

    torch, accelerate = "/v/lib/python3.11/site-packages/torch/x.py", "/v/lib/python3.11/site-packages/accelerate/x.py"
    assert place("/home/me/train.py", "/home/me/model.py", accelerate, torch) == "/home/me/model.py"
    assert place(accelerate, torch) == accelerate
    assert place(torch) is None


def test_deep_stacks_keep_their_innermost_frames():
    def deep(n):
        return deep(n - 1) if n else frames.stacks(main_ident=threading.get_ident(), without=0)

    limit = sys.getrecursionlimit()
    main = deep(frames.MAX_FRAMES + limit // 10)[0]
    assert main["main"] and len(main["frames"]) == frames.MAX_FRAMES
    assert [frame[2] for frame in main["frames"][-3:]] == ["deep", "deep", "stacks"]


def test_tracebacks():
    def fail():
        raise ValueError

    with pytest.raises(ValueError) as error:
        fail()
    found = frames.traceback_frames(error.tb)
    assert found[-1][0] == __file__ and found[-1][2:] == ("fail", "raise ValueError")
