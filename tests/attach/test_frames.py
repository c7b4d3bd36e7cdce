import sys
import threading

import pytest

from unhang.attach import frames


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


def seen(*files):
    """A glance at a stack of functions from these files, innermost last."""
    functions = []
    for file in files:
        namespace = {}
        name = file.rpartition("/")[2].removesuffix(".py")
        exec(compile(f"def {name}(rest, look): return rest[0](rest[1:], look) if rest else look()", file, "exec"), namespace)
        functions.append(namespace[name])
    found = []
    # Generated code is nobody's place.
    scope = {"functions": functions, "found": found, "glance": frames.glance, "ident": threading.get_ident}
    run = eval(compile("lambda: functions[0](functions[1:], lambda: found.append(glance(ident())))", "<test>", "eval"), scope)
    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return found[0]


OURS = "/v/lib/python3.11/site-packages/unhang"
TORCH = "/v/lib/python3.11/site-packages/torch"


@pytest.mark.parametrize(
    ("files", "inside"),
    [
        (["/home/me/train.py", f"{TORCH}/distributed/distributed_c10d.py"], "distributed_c10d"),
        (["/home/me/train.py", f"{OURS}/runtime/collectives/collectives.py", f"{OURS}/runtime/collectives/guarded_group.py"], "unhang.collectives"),
        (["/home/me/train.py", f"{OURS}/runtime/evaluation/evaluation.py", "/usr/lib/python3.11/threading.py"], "unhang.evaluation"),
        (["/home/me/train.py", f"{OURS}/runtime/collectives/guarded_group.py", f"{TORCH}/distributed/distributed_c10d.py"], "unhang.guarded_group"),
        # What an evaluation calls is no wait of its.
        (["/home/me/train.py", f"{OURS}/runtime/evaluation/evaluation.py", "/home/me/test.py"], None),
        (["/home/me/train.py", f"{OURS}/runtime/evaluation/evaluation.py", f"{OURS}/integrations/sharing.py", f"{TORCH}/utils/data/x.py"], None),
        (["/home/me/train.py", f"{OURS}/runtime/evaluation/evaluation.py", f"{TORCH}/nn/modules.py"], None),
        (["/home/me/train.py", f"{TORCH}/utils/file_baton.py"], None),
    ],
)
def test_what_a_thread_waits_in(files, inside):
    assert seen(*files)[2] == inside


def test_a_lock_file_that_is_polled():
    namespace = {}
    exec(compile("def wait(look): return look()", f"{TORCH}/utils/file_baton.py", "exec"), namespace)
    assert namespace["wait"](lambda: frames.glance(threading.get_ident()))[2] is None
    scope = {"glance": frames.glance, "ident": threading.get_ident}
    look = eval(compile("lambda: glance(ident())", f"{TORCH}/utils/file_baton.py", "eval"), scope)
    assert namespace["wait"](look)[2] == frames.POLLS_A_LOCK


def test_place_prefers_the_user_then_a_library():
    def place(*files):
        found = seen(*files)[0]
        return found and found[0]

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
    assert found[-1][0] == __file__ and found[-1][2:] == ("fail", "raise ValueError", "")


@pytest.mark.parametrize(
    ("call", "given"),
    [
        ("broadcast('x', 3, group_src=1)", "group_src=1"),
        ("reduce('x', 1, Sum())", "dst=1 op=SUM"),
        ("reduce('x', 1, object())", "dst=1"),
        ("barrier()", ""),
    ],
)
def test_roots_and_reductions_of_torchs_functions_are_told(call, given):
    """No recorder holds them; of a function that counts its root within the group that number counts."""
    source = "def broadcast(tensor, src=None, group_src=None): fail()\ndef reduce(tensor, dst, op): fail()\ndef barrier(): fail()\n"
    names = {"fail": fail_in_torch, "Sum": type("Sum", (), {"__str__": lambda self: "RedOpType.SUM"})}
    exec(compile(source, "/venv/torch/distributed/distributed_c10d.py", "exec"), names)
    with pytest.raises(ValueError) as error:
        eval(call, names)
    assert [f[4] for f in frames.traceback_frames(error.tb)][-2:] == [given, ""]


def test_a_thread_that_refuses_attributes_starts_all_the_same(monkeypatch):
    start = threading.Thread.start
    monkeypatch.setattr(threading.Thread, "start", start)
    frames.remember_starts()

    class Sealed(threading.Thread):
        def __setattr__(self, name, value):
            if name == frames.STARTED:
                raise AttributeError(name)
            super().__setattr__(name, value)

    ran = threading.Event()
    thread = Sealed(target=ran.set)
    thread.start()
    thread.join()
    assert ran.is_set() and getattr(thread, frames.STARTED)[0] == __file__ and threading.Thread.start.__doc__ == start.__doc__


def fail_in_torch():
    raise ValueError
