"""unhang why on the recorders of real Gloo ranks that parted: what torch writes today is what the verdict rests on."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.diagnosis.test_digests import told

from unhang.diagnosis.recorders import examine

pytestmark = [
    pytest.mark.integration,
    pytest.mark.torch,
    pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed"),
]

SCRIPT = """\
import contextlib, datetime, os, sys, threading
import torch, torch.distributed as dist
from torch._C._distributed_c10d import _dump_fr_trace, _dump_fr_trace_json

mode, out, world, backend = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]
odd = world - 1
waiting = threading.Event()


def train(rank):
    if backend == "nccl":
        torch.cuda.set_device(rank)
    t = torch.ones(4, device="cuda" if backend == "nccl" else "cpu")
    if mode in ("crossed", "chain"):
        # With a second group, a dump of Gloo does not tell the members of the first either.
        here, there = dist.new_group(range(world)), dist.new_group(range(world))
    for _ in range(4):
        dist.all_reduce(t)  # usual
    if mode == "missing":
        for _ in range(5):
            if rank == 0:
                dist.send(t, odd)
            if rank == odd:
                dist.recv(t, 0)
    if rank == odd and mode == "shape":
        t = torch.cat([t, t])
    dist.broadcast(t, 0)  # broadcast
    if mode == "shape":
        t = t[:4]
    open(f"{out}/near{rank}", "w").close()
    if rank == odd and mode == "missing":
        waiting.wait(100)
    if rank == odd and mode == "op":
        dist.barrier()  # instead
    if rank == odd and mode == "extra":
        dist.all_reduce(t)  # surplus
    if rank == odd and mode == "order":
        dist.barrier()  # early
        dist.all_reduce(t)  # late
    if rank == odd and mode == "dtype":
        t = t.int()
    if rank == odd and mode == "abort":
        t = torch.cat([t, t])
    if mode == "crossed":
        for group in (there, here) if rank == odd else (here, there):
            dist.all_reduce(t, group=group)  # crossed
    if mode == "chain" and rank == odd:
        waiting.wait(100)
    if mode in ("buckets", "failed") and rank != odd:
        together = [dist.all_reduce(torch.ones(4 + n), async_op=True) for n in range(3)]  # together
        for work in together if mode == "failed" else ():
            with contextlib.suppress(RuntimeError):
                work.wait()
        open(f"{out}/over{rank}", "w").close()
    if mode in ("buckets", "failed"):
        waiting.wait(100)
    if mode == "chain" and rank == odd - 1:
        dist.all_reduce(t, group=there)  # between
    dist.all_reduce(t)  # last
    if mode == "order":
        dist.barrier()  # then
    waiting.wait(100)


def witness(rank):
    while not all(os.path.exists(f"{out}/near{r}") for r in range(world)):
        waiting.wait(0.05)
    while mode == "failed" and not all(os.path.exists(f"{out}/over{r}") for r in range(odd)):
        waiting.wait(0.05)
    last, same = None, 0
    while same < 4:
        now = _dump_fr_trace_json(False, False)
        last, same = now, same + 1 if now == last else 0
        waiting.wait(0.2)
    data = _dump_fr_trace(includeCollectives=True, includeStackTraces=True, onlyActive=False)
    with open(f"{out}/.{rank}", "wb") as f:
        f.write(data)
    os.replace(f"{out}/.{rank}", f"{out}/gloo_trace_rank_{rank}")
    while not all(os.path.exists(f"{out}/gloo_trace_rank_{r}") or os.path.exists(f"{out}/gone{r}") for r in range(world)):
        waiting.wait(0.05)
    os._exit(0)


children = []
for rank in range(world):
    if pid := os.fork():
        children.append(pid)
        continue
    bound = datetime.timedelta(seconds=2 if mode == "failed" else 60)
    dist.init_process_group(backend, init_method=f"file://{out}/store", rank=rank, world_size=world, timeout=bound)
    threading.Thread(target=witness, args=(rank,), daemon=True).start()
    try:
        train(rank)
    except RuntimeError:
        waiting.wait(100)
    os._exit(1)
for _ in children:
    pid, _ = os.wait()
    open(f"{out}/gone{children.index(pid)}", "w").close()
"""


def line(mark: str) -> int:
    return next(n for n, text in enumerate(SCRIPT.splitlines(), 1) if text.endswith(f"# {mark}"))


def dumps(tmp_path: Path, mode: str, world: int, backend: str = "gloo") -> list[Path]:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("UNHANG_", "TORCH_", "GLOO_"))} | {"OMP_NUM_THREADS": "1"}
    process = subprocess.Popen([sys.executable, str(script), mode, str(tmp_path), str(world), backend], env=environment, start_new_session=True)
    try:
        process.wait(timeout=300)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    found = sorted(tmp_path.glob("gloo_trace_rank_*"))
    assert found
    return found


MANY = pytest.param(8, marks=pytest.mark.integration)


@pytest.mark.parametrize("world", [3, MANY])
def test_one_never_comes_and_had_exchanged_messages(tmp_path, world):
    p = examine(dumps(tmp_path, "missing", world)).verdict.primary
    assert (p.cause, p.ranks) == ("collective-timeout", (world - 1,))
    assert re.search(rf"never came to all_reduce #6 .* at \S*train.py:{line('last')} in train; its last call was broadcast #5", p.says)
    assert p.where.endswith(f"train.py:{line('broadcast')} in train")


@pytest.mark.parametrize("world", [4, MANY])
def test_one_misses_calls_that_the_others_issued_together(tmp_path, world):
    p = examine(dumps(tmp_path, "buckets", world)).verdict.primary
    assert (p.cause, p.ranks) == ("collective-timeout", (world - 1,))
    assert re.search(rf"never came to all_reduce #6 .* wait at \S*train.py:{line('together')} in", p.says)
    assert p.where.endswith(f"train.py:{line('broadcast')} in train")


def test_calls_issued_together_that_have_timed_out(tmp_path):
    """Gloo says that they have ended. Where one of them is still called pending, it is known for want of whom they failed."""
    p = examine(dumps(tmp_path, "failed", 4)).verdict.primary
    assert p.ranks in ((), (3,)) and "rank 3" in p.says
    assert p.cause == "collective-timeout" or "for want of rank 3" in p.says


@pytest.mark.parametrize("world", [3, MANY])
def test_one_calls_something_else(tmp_path, world):
    p = examine(dumps(tmp_path, "op", world)).verdict.primary
    assert (p.cause, p.standing, p.ranks) == ("collective-mismatch", "established", (world - 1,))
    assert f"issued barrier at {tmp_path}/train.py:{line('instead')} in train as call #6" in p.says and f"train.py:{line('last')}" in p.says


@pytest.mark.parametrize("world", [2, 3])
def test_a_dtype_that_gloo_adds_up_as_bytes(tmp_path, world):
    p = examine(dumps(tmp_path, "dtype", world)).verdict.primary
    assert p.cause == "collective-mismatch" and "all_reduce of [4] Int" in p.says and "all_reduce of [4] Float" in p.says
    assert p.ranks == ((world - 1,) if world > 2 else (0, 1))


def test_one_calls_once_too_often(tmp_path):
    p = examine(dumps(tmp_path, "extra", 3)).verdict.primary
    assert (p.cause, p.ranks) == ("collective-timeout", (2,))
    assert p.where is not None and p.where.endswith(f"train.py:{line('surplus')} in train")
    assert "ranks 0 and 1 never came to all_reduce #7" in p.says and "or rank 2 has made a call too many" in p.says
    assert f"already #6 came from {tmp_path}/train.py:{line('surplus')} in train" in p.says


def test_nothing_is_wrong(tmp_path):
    """The last call may have failed for all that Gloo's recorder tells."""
    p = examine(dumps(tmp_path, "none", 2)).verdict.primary
    assert (p.cause, p.standing) == ("unknown", "not-established")
    assert "none of the 2 ranks with a dump waits in a recorded call; the last call of group 0 (default_pg), all_reduce #6, is over" in p.says


@pytest.mark.parametrize(
    ("mode", "world"), [("op", 3), *(pytest.param(m, w, marks=pytest.mark.integration) for m, w in (("missing", 4), ("dtype", 2)))]
)
def test_two_digests_give_the_verdict_of_the_dumps(tmp_path, mode, world):
    paths = dumps(tmp_path, mode, world)
    whole = examine(paths).verdict
    for host in range(2):
        folder = tmp_path / f"host{host}"
        folder.mkdir()
        for path in paths[host::2]:
            shutil.copy(path, folder)
        command = [sys.executable, "-m", "unhang", "why", "--digest", str(tmp_path / "digests"), str(folder)]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
        done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False, env=environment)
        assert done.returncode == 0, done.stderr
    digests = sorted((tmp_path / "digests").iterdir())
    merged = examine(digests).verdict
    assert len(digests) == 2 and told(merged) == told(whole) and whole.primary.cause in ("collective-mismatch", "collective-timeout")
    assert f"train.py:{line('last')}" in merged.primary.says
    if mode == "op":
        assert f"train.py:{line('instead')}" in merged.primary.says and merged.primary.where.endswith(f"train.py:{line('instead')} in train")
    assert sum(d.stat().st_size for d in digests) < 4000


def test_two_calls_in_another_order(tmp_path):
    p = examine(dumps(tmp_path, "order", 3)).verdict.primary
    assert (p.cause, p.ranks) == ("collective-mismatch", (2,))
    assert f"issued barrier at {tmp_path}/train.py:{line('early')} in train as call #6" in p.says and f"train.py:{line('last')}" in p.says


@pytest.mark.parametrize("world", [3, MANY])
def test_another_shape_that_gloo_lets_pass(tmp_path, world):
    p = examine(dumps(tmp_path, "shape", world)).verdict.primary
    assert (p.cause, p.ranks) == ("collective-mismatch", (world - 1,))
    assert "issued broadcast of [8] Float" in p.says and p.where.endswith(f"train.py:{line('broadcast')} in train")


def test_another_shape_by_which_gloo_aborts_a_rank(tmp_path):
    verdict = examine(dumps(tmp_path, "abort", 3)).verdict
    assert verdict.primary.cause == "collective-mismatch" and "all_reduce of [8] Float" in verdict.primary.says
    # The aborted rank left nothing, and which of two went astray is not guessed.
    assert verdict.primary.standing == "likely" and verdict.primary.ranks == (0, 2)
    assert any(n.what == "the flight recorder of rank 1" for n in verdict.not_examined)


def test_groups_in_another_order(tmp_path):
    """Gloo's dumps do not tell who belongs to a group: that nobody is missing is not said."""
    p = examine(dumps(tmp_path, "crossed", 3)).verdict.primary
    assert (p.cause, p.standing, p.ranks) == ("unknown", "not-established", (0, 1))
    assert "who belongs to group 1 is not in the dumps, and rank 2 may" in p.says
    assert "rank 2 waits in all_reduce #1 of group 2: if these belong to both groups, they were called in different orders" in p.says
    assert {e.text[:22] for e in p.evidence} >= {"rank 0: #1 all_reduce ", "rank 2: #1 all_reduce "} and all("train.py" in e.text for e in p.evidence)


def test_a_chain_of_groups_leads_to_the_rank_that_never_came(tmp_path):
    p = examine(dumps(tmp_path, "chain", 4)).verdict.primary
    assert (p.cause, p.ranks) == ("collective-timeout", (3,)) and "never came to" in p.says


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("mode", "cause", "mark"),
    [
        ("missing", "collective-timeout", "broadcast"),
        ("op", "collective-mismatch", "instead"),
        ("dtype", "collective-mismatch", "last"),
        ("shape", "collective-mismatch", "broadcast"),
        ("crossed", "collective-mismatch", None),
        ("none", None, None),
    ],
)
def test_the_recorders_of_nccl(tmp_path, mode, cause, mark):
    import torch

    if (world := torch.cuda.device_count()) < 3:
        pytest.skip("a majority needs three GPUs: NCCL refuses two ranks on one")
    p = examine(dumps(tmp_path, mode, min(world, 8), "nccl")).verdict.primary
    assert (p and p.cause) == cause
    if p is not None and mode != "crossed":
        assert p.ranks == (min(world, 8) - 1,) and p.where.endswith(f"train.py:{line(mark)} in train")
