"""The end of a process that has used the library: nothing of it is inside torch when the interpreter is torn down, and it does not take long."""

from __future__ import annotations

import atexit
import contextlib
import functools
import json
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.torch

LOCK = threading.Lock()
REPOSITORY = Path(__file__).parents[3]


def native() -> int:
    """Threads that are none of Python's, Gloo's among them."""
    return len(list(Path("/proc/self/task").iterdir())) - threading.active_count()


def at_end(before: int, began: list[float]) -> None:
    with LOCK:
        after_s = time.monotonic() - began[0]
    from unhang.runtime.collectives import shutdown

    until = time.monotonic() + 5
    # One of Python's that has just ended is no longer counted by Python.
    while (left := native() - before) and time.monotonic() < until:
        time.sleep(0.05)
    print(f"left: {left} threads of torch's, {len(shutdown._inside)} inside, after {after_s:.1f} s", file=sys.stderr)


def reduced(rank: int) -> None:
    import torch

    import unhang

    for _ in range(5):
        unhang.all_reduce(torch.ones(8))
    unhang.barrier()


def evaluated(rank: int) -> None:
    import unhang

    monitor = unhang.Monitor([], every_s=0.05)
    assert unhang.evaluate(lambda data, size: [{"loss": 1.0}], {"data": [1]}, batch_size=1, monitor=monitor).ok
    unhang.sync_check(0, loss=1.0)


def failed(rank: int) -> None:
    import torch

    import unhang

    reduced(rank)
    if rank == 0:
        with contextlib.suppress(unhang.CollectiveError):
            unhang.all_reduce(torch.ones(8), deadline=0.5)


def left_in_a_call(rank: int) -> None:
    """By a thread that nobody waits for."""
    import torch

    import unhang

    reduced(rank)
    if rank == 0:
        threading.Thread(target=unhang.all_reduce, args=(torch.ones(8),), daemon=True).start()
        time.sleep(0.5)


def left_in_a_call_with_a_lock(rank: int) -> None:
    """An exit handler that needs the lock gets it."""
    import torch

    import unhang

    reduced(rank)

    def call() -> None:
        with LOCK:
            unhang.all_reduce(torch.ones(8))

    if rank == 0:
        threading.Thread(target=call, daemon=True).start()
        time.sleep(0.5)


def script(rank: int, *, how: str) -> None:
    import torch.distributed as dist

    dist.barrier()
    began = [0.0]
    # Registered before the library is imported: called after its own.
    atexit.register(at_end, native(), began)
    globals()[how](rank)
    atexit.register(lambda: began.__setitem__(0, time.monotonic()))


@pytest.mark.integration
@pytest.mark.parametrize("how", ["reduced", "evaluated", "failed", "left_in_a_call", "left_in_a_call_with_a_lock"])
def test_no_thread_is_inside_torch_when_the_interpreter_ends(fresh, how):
    world = fresh(2, ends=True)
    assert world.finish(functools.partial(script, how=how), bound_s=60) == [0, 0]
    for rank in range(2):
        (said,) = [line for line in world.stderr_of(rank).read_text().splitlines() if line.startswith("left: ")]
        is_left = how.startswith("left_in_a_call") and rank == 0
        assert is_left or said.startswith("left: 0 threads of torch's, 0 inside"), said
        assert float(said.split()[-2]) < 4, said


@pytest.mark.integration
@pytest.mark.timeout(400)
def test_short_jobs_end_as_their_scripts_do(tmp_path):
    """The soak, for a minute: as many jobs as that needs to see the worst of what it has found."""
    command = [sys.executable, str(REPOSITORY / "benchmarks" / "exits.py"), "--runs", "20", "--minutes", "3", "--alone"]
    ended = subprocess.run([*command, "--cases", "collectives,thread_left,timed_out"], cwd=tmp_path, capture_output=True, text=True, timeout=380)
    found = json.loads(ended.stdout.splitlines()[-1])
    assert found["runs"] > 5 and found["wrong"] == 0, ended.stderr
