"""Real recorders of real Gloo processes: what torch writes today is what the verdict rests on."""

from __future__ import annotations

import importlib.util
import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from unhang.records import stacks

pytestmark = [
    pytest.mark.integration,
    pytest.mark.torch,
    pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed"),
]

SCRIPT = """\
import datetime, faulthandler, json, os, sys, threading, traceback
import torch, torch.distributed as dist
from torch._C._distributed_c10d import _dump_fr_trace

mode, out = sys.argv[1:]
dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=3 if mode == "expire" else 60))
rank = dist.get_rank()
faulthandler.enable(file=open(f"{out}/fatal{rank}", "w"))


def write(name, data):
    with open(f"{out}/.{name}", "wb") as f:
        f.write(data)
    os.replace(f"{out}/.{name}", f"{out}/{name}")


def dump():
    write(f"flight{rank}", _dump_fr_trace(includeCollectives=True, includeStackTraces=True, onlyActive=False))


def stood():
    return all(os.path.exists(f"{out}/stack{r}") for r in range(2))


def raised(kind, value, tb):
    if stood():
        # Both have been seen to wait: this one failed because the other has ended since, and its recorder holds no wait any more.
        os._exit(0)
    dump()
    frames = [[f.filename, f.lineno, f.name] for f in traceback.extract_tb(tb)]
    write(f"raised{rank}", json.dumps({"type": kind.__name__, "text": str(value), "frames": frames}).encode())
    sys.__excepthook__(kind, value, tb)


def witness():
    # Not before both stand in their last call: the file of each says so.
    while not all(os.path.exists(f"{out}/near{r}") for r in range(2)):
        waiting.wait(0.02)
    main = threading.main_thread().ident
    last = None
    while True:
        stack = traceback.extract_stack(sys._current_frames()[main])
        inside = any(f.filename.endswith("distributed_c10d.py") for f in stack)
        here = [[f.filename, f.lineno, f.name] for f in stack]
        if here == last and (inside or any(f.name == "rest" for f in stack)):
            break
        last = here
        waiting.wait(0.3)
    dump()
    write(f"stack{rank}", json.dumps(here).encode())
    while not stood():
        waiting.wait(0.02)
    os._exit(0)


waiting = threading.Event()
sys.excepthook = raised
if mode != "expire":
    threading.Thread(target=witness, daemon=True).start()


def reduce(n):
    t = torch.ones(n)
    dist.all_reduce(t)


def save():
    if rank == 0:
        dist.barrier()  # guarded


def rest():
    waiting.wait(60)


for step in range(5):
    if step == 4:
        write(f"near{rank}", b"")
        if mode in ("guard", "expire"):
            save()
    reduce(int(mode[4:]) if mode.startswith("size") and rank == 1 and step == 4 else 4)
rest()
"""


def provoke(tmp_path: Path, mode: str) -> dict[int, int]:
    """Run two ranks to their end; exit codes by rank."""
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    environment = {
        **os.environ,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "WORLD_SIZE": "2",
        "UNHANG_ATTACH": "0",
        "OMP_NUM_THREADS": "1",
    }
    environment.pop("UNHANG_SOCKET", None)
    processes = {}
    for rank in range(2):
        with (tmp_path / f"err{rank}").open("wb") as err:
            processes[rank] = subprocess.Popen(
                [sys.executable, str(script), mode, str(tmp_path)], env={**environment, "RANK": str(rank)}, stderr=err, stdout=err
            )
    try:
        return {rank: p.wait(timeout=90) for rank, p in processes.items()}
    finally:
        for p in processes.values():
            p.kill()
            p.wait()


def loaded(b, lab, tmp_path, codes):
    """What the processes left, as the supervisor would have written it down."""
    for rank, code in codes.items():
        frames, raised, ended = (), None, None
        stack = tmp_path / f"stack{rank}"
        if stack.exists():
            frames = tuple(lab.Frame(file=f, line=n, name=name, guards=stacks.guards_of(f, n)) for f, n, name in json.loads(stack.read_text()))
        if (tmp_path / f"raised{rank}").exists():
            told = json.loads((tmp_path / f"raised{rank}").read_text())
            told["frames"] = tuple(lab.Frame(file=f, line=n, name=name, guards=stacks.guards_of(f, n)) for f, n, name in told["frames"])
            raised = lab.Raised(at_s=30.0, **told)
        if code < 0:
            ended = lab.Ended(at_s=29.9, exitcode=code)
        b.rank(rank, frames=frames, raised=raised, ended=ended)
        flight = tmp_path / f"flight{rank}"
        if flight.exists():
            path = b.rundir.flight(1, rank)
            b.rundir.write_bytes(path, flight.read_bytes())
            b.ranks[-1] = lab.dataclasses.replace(b.ranks[-1], flight=b.rundir.relative(path))
        b.fatal(rank, (tmp_path / f"fatal{rank}").read_text())
        b.log(rank, (tmp_path / f"err{rank}").read_text(errors="replace"))
    return b


def line_of(text: str) -> int:
    return next(i for i, line in enumerate(SCRIPT.splitlines(), 1) if text in line)


def test_a_guarded_barrier(build, lab, tmp_path):
    codes = provoke(tmp_path, "guard")
    v = loaded(build(), lab, tmp_path, codes).judge("hang", cwd=str(tmp_path))
    assert (v.primary.cause, v.primary.standing, v.primary.ranks) == ("rank0-guarded-collective", "established", (0,))
    assert v.primary.where == f"train.py:{line_of('# guarded')} in save"


def test_a_guarded_barrier_that_has_timed_out(build, lab, tmp_path):
    codes = provoke(tmp_path, "expire")
    assert codes == {0: 1, 1: 1}
    v = loaded(build(), lab, tmp_path, codes).judge("failure", cwd=str(tmp_path))
    assert (v.primary.cause, v.primary.standing, v.primary.ranks) == ("rank0-guarded-collective", "established", (0,))
    assert v.primary.where == f"train.py:{line_of('# guarded')} in save"


def test_a_larger_tensor_on_rank_1_ends_rank_0(build, lab, tmp_path):
    codes = provoke(tmp_path, "size8")
    assert codes[0] == -6, codes
    v = loaded(build(), lab, tmp_path, codes).judge("failure", cwd=str(tmp_path))
    assert (v.primary.cause, v.primary.standing, v.primary.ranks) == ("collective-mismatch", "established", (1,))
    assert v.primary.where == f"train.py:{line_of('dist.all_reduce(t)')} in reduce"
    assert "peer-lost" in [s.cause for s in v.symptoms]


def test_a_smaller_tensor_on_rank_1_leaves_rank_0_waiting(build, lab, tmp_path):
    codes = provoke(tmp_path, "size2")
    kind = "failure" if min(codes.values()) < 0 else "hang"
    v = loaded(build(), lab, tmp_path, codes).judge(kind, cwd=str(tmp_path))
    assert (v.primary.cause, v.primary.ranks) == ("collective-mismatch", (1,))
    assert v.primary.where == f"train.py:{line_of('dist.all_reduce(t)')} in reduce"
