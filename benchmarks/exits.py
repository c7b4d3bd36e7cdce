"""Do processes that used the library end in order? Short jobs in turns with jobs of plain torch; one JSON line last.

Each job is three ranks over Gloo that come to the end of their script without `destroy_process_group`. A run is wrong if a rank dies of a signal,
ends with another exit code than its script's, writes to stderr, or takes longer than a bound from the end of its script to the end of its process.
The race that this looks for is one of a few milliseconds while the interpreter is torn down, so it takes hundreds of runs. Ranks are forked from a
process that has imported torch, and meet in a store of the parent's, as they do in that of torchrun's agent (`--torchrun` starts them with torchrun).
`--switch-s 1` makes the race far more likely, for plain torch as well: whoever waits for the interpreter's lock gets it only when it is let go.

    python benchmarks/exits.py --runs 500 --parallel 2
    python benchmarks/exits.py --runs 40 --cases monitor,timed_out --alone --switch-s 1
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import mmap
import os
import random
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

RANKS = 3
# From the end of the script to the end of the process; the machine may be busy.
ENDS_WITHIN_S = 30.0
JOB_WITHIN_S = 120.0
HERE = Path(__file__).resolve()
_TIME = struct.Struct("d")
_kept: list[mmap.mmap] = []


class Case:
    """What a rank does up to the end of its script, and the exit code that it has to have."""

    def __init__(self, script: Callable[[int], Any], code: int, store: str) -> None:
        self.script, self.code, self.store = script, code, store


CASES: dict[str, Case] = {}


def case(code: int = 0, store: str = "agent") -> Callable[[Callable[[int], Any]], Callable[[int], Any]]:
    """`store`: where its server is, in the launcher's process or in rank 0, which takes it away when it ends."""

    def add(script: Callable[[int], Any]) -> Callable[[int], Any]:
        CASES[script.__name__] = Case(script, code, store)
        return script

    return add


@case()
def plain(rank: int) -> None:
    """What torch does by itself, with a second group, as the library has one."""
    import torch
    import torch.distributed as dist

    group = dist.new_group()
    for _ in range(5):
        dist.all_reduce(torch.ones(8), group=group)
    for _ in range(2):
        dist.barrier()


@case()
def collectives(rank: int) -> None:
    import torch

    import unhang

    for _ in range(5):
        unhang.all_reduce(torch.ones(8))
    for _ in range(2):
        unhang.barrier()


@case(store="rank0")
def store_in_rank_0(rank: int) -> None:
    collectives(rank)


@case()
def destroyed(rank: int) -> None:
    import torch.distributed as dist

    collectives(rank)
    dist.destroy_process_group()


@case()
def evaluate(rank: int) -> None:
    import unhang

    def score(data: Any, batch_size: int) -> Any:
        yield {"loss": 1.0}

    assert unhang.evaluate(score, {"data": [1, 2]}, batch_size=1).ok


@case()
def monitor(rank: int) -> None:
    import unhang

    unhang.Monitor([unhang.JSONL(f"monitor-{rank}.jsonl")], every_s=0.05, torch_collectives=True)
    collectives(rank)


@case()
def sync_check(rank: int) -> None:
    import torch

    import unhang

    model = torch.nn.Linear(2, 2)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(1.0)
    for step in range(5):
        unhang.sync_check(step, model=model, loss=1.0, every=1)


@case()
def timed_out(rank: int) -> None:
    import torch

    import unhang

    collectives(rank)
    if rank == 2:
        time.sleep(1.0)
        return
    with contextlib.suppress(unhang.CollectiveError):
        unhang.all_reduce(torch.ones(8), deadline=0.3)


@case()
def peer_ended(rank: int) -> None:
    import torch

    import unhang

    collectives(rank)
    if rank != 2:
        with contextlib.suppress(unhang.CollectiveError):
            unhang.all_reduce(torch.ones(8), deadline=5)


@case(code=1)
def raised(rank: int) -> None:
    collectives(rank)
    sys.excepthook = lambda *_: None
    raise RuntimeError("of the script")


@case(code=7)
def exited(rank: int) -> None:
    collectives(rank)
    sys.exit(7)


@case()
def thread_joined(rank: int) -> None:
    thread = threading.Thread(target=collectives, args=(rank,))
    thread.start()
    thread.join()


@case()
def thread_left(rank: int) -> None:
    """A daemon thread that is in a call, or between two, when the script ends."""
    import torch

    import unhang

    def calls() -> None:
        while True:
            # Between two calls it is in torch as well, for moments.
            tensors = [torch.ones(8) for _ in range(100)]
            unhang.all_reduce(tensors[0])

    collectives(rank)
    threading.Thread(target=calls, daemon=True).start()
    time.sleep(random.random() / 20)


@case()
def forked(rank: int) -> None:
    """A worker of multiprocessing. What forks by itself and comes to the end of its interpreter hangs with plain torch as well (2.13)."""
    import multiprocessing

    collectives(rank)
    worker = multiprocessing.get_context("fork").Process(target=time.sleep, args=(0.01,))
    worker.start()
    worker.join()
    assert worker.exitcode == 0, f"the worker ended with {worker.exitcode}"


def run(name: str) -> None:
    """One rank, in its own process: what a script does."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    sys.setswitchinterval(float(os.environ["SOAK_SWITCH_S"]))
    dist.init_process_group("gloo")
    # What waits for the kernel at the end would let other threads run, and hide the race: nothing is written there, or closed.
    _kept.append(mmap.mmap(os.open(os.environ["SOAK_ENDED"], os.O_RDWR), _TIME.size))
    try:
        CASES[name].script(int(os.environ["RANK"]))
    finally:
        _TIME.pack_into(_kept[0], 0, time.monotonic())


def serve() -> None:
    """Fork the ranks of one job after the other, as the parent asks for them on standard input."""
    # What takes a second in each rank, torch with it.
    import unhang.runtime.evaluation.evaluation
    import unhang.runtime.monitoring.monitor
    import unhang.runtime.sync_check  # noqa: F401

    # What was imported is not looked through once more by each rank.
    gc.freeze()
    while line := sys.stdin.readline():
        job = json.loads(line)
        ranks: dict[int, int] = {}
        for rank in range(RANKS):
            if (pid := os.fork()) == 0:
                os.environ.update(job["environ"], RANK=str(rank), LOCAL_RANK=str(rank), SOAK_ENDED=f"{job['directory']}/{rank}.ended")
                os.chdir(job["directory"])
                null, written = os.open(os.devnull, os.O_RDWR), os.open(f"{rank}.err", os.O_WRONLY | os.O_CREAT, 0o600)
                for fd, onto in ((null, 0), (null, 1), (written, 2)):
                    os.dup2(fd, onto)
                # What the interpreter does at the end of a script follows.
                run(job["case"])
                return
            ranks[pid] = rank
        found = {rank: ["hung", 0.0] for rank in range(RANKS)}
        until = time.monotonic() + JOB_WITHIN_S
        while ranks:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid in ranks:
                found[ranks.pop(pid)] = [os.waitstatus_to_exitcode(status), time.monotonic()]
            elif time.monotonic() > until:
                for pid in ranks:
                    os.kill(pid, signal.SIGKILL)
                until = time.monotonic() + JOB_WITHIN_S
            else:
                time.sleep(0.01)
        print(json.dumps(found), flush=True)


def seen(name: str, rank: int, code: Any, ended_s: float, directory: Path) -> tuple[str, str]:
    """What is wrong with the end of one rank, "" if nothing is; and what it wrote."""
    err = directory / f"{rank}.err"
    text = err.read_text(errors="replace") if err.exists() else ""
    if isinstance(code, int) and code < 0:
        return signal.Signals(-code).name, text
    if code != CASES[name].code:
        return f"exit code {code}", text
    if ended_s - _TIME.unpack((directory / f"{rank}.ended").read_bytes())[0] > ENDS_WITHIN_S:
        return f"ended after more than {ENDS_WITHIN_S:g} s", text
    return ("wrote to stderr", text) if text.strip() else ("", "")


class Starter:
    """Starts one job after the other, in a thread of its own."""

    def __init__(self) -> None:
        self._process = subprocess.Popen([sys.executable, str(HERE), "--serve"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def __call__(self, name: str) -> list[tuple[str, str]]:
        import torch.distributed as dist

        assert self._process.stdin is not None and self._process.stdout is not None
        is_agent = CASES[name].store == "agent"
        # Of a server in rank 0 the port has to be known before; it is free for as long as nobody else is quicker.
        store = dist.TCPStore("127.0.0.1", 0, None, is_master=True, wait_for_workers=False)
        port = store.port
        if not is_agent:
            del store
        environ = {
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "WORLD_SIZE": str(RANKS),
            "GLOO_SOCKET_IFNAME": "lo",
            "TORCHELASTIC_USE_AGENT_STORE": str(is_agent),
        }
        with tempfile.TemporaryDirectory(prefix="soak-exit-") as directory:
            for rank in range(RANKS):
                Path(directory, f"{rank}.ended").write_bytes(_TIME.pack(0.0))
            self._process.stdin.write(json.dumps({"case": name, "environ": environ, "directory": directory}) + "\n")
            self._process.stdin.flush()
            found = json.loads(self._process.stdout.readline())
            return [seen(name, int(rank), code, ended_s, Path(directory)) for rank, (code, ended_s) in found.items()]

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(JOB_WITHIN_S)


class Torchrun:
    """The same by torchrun, a process of its own for each rank: four times as slow."""

    def __call__(self, name: str) -> list[tuple[str, str]]:
        with tempfile.TemporaryDirectory(prefix="soak-exit-") as directory:
            argv = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(RANKS), str(HERE), "--rank", name]
            Path(directory, "ended").write_bytes(_TIME.pack(0.0))
            environ = {**os.environ, "SOAK_ENDED": f"{directory}/ended", "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
            ended = subprocess.run(
                [sys.executable, *argv], env=environ, cwd=directory, capture_output=True, text=True, timeout=JOB_WITHIN_S, check=False
            )
            dead = [word for word in ("SIGABRT", "SIGSEGV") if word in ended.stderr]
            return [(dead[0] if dead else "", ended.stderr)] if ended.returncode == 0 or dead else [(f"exit code {ended.returncode}", ended.stderr)]

    def close(self) -> None:
        pass


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=500, help="jobs that use the library, and as many of plain torch")
    parser.add_argument("--parallel", type=int, default=2, help="jobs at a time")
    parser.add_argument("--minutes", type=float, default=60.0, help="start no job after this")
    parser.add_argument("--cases", default="", help="some of: " + ", ".join(name for name in CASES if name != "plain"))
    parser.add_argument("--alone", action="store_true", help="without plain torch")
    parser.add_argument("--switch-s", default="0.005", help="sys.setswitchinterval of the ranks; Python's own is 0.005")
    parser.add_argument("--torchrun", action="store_true", help="start each job with torchrun")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--rank", help=argparse.SUPPRESS)
    given = parser.parse_args()
    os.environ.setdefault("SOAK_SWITCH_S", given.switch_s)
    if given.serve:
        serve()
        return 0
    if given.rank:
        run(given.rank)
        return 0
    names = given.cases.split(",") if given.cases else [name for name in CASES if name != "plain"]
    jobs = iter([job for number in range(given.runs) for job in (names[number % len(names)], *([] if given.alone else ["plain"]))])
    wrong: dict[str, Counter[str]] = {name: Counter() for name in (*names, "plain")}
    done: Counter[str] = Counter()
    lock = threading.Lock()

    began_s = time.monotonic()

    def work() -> None:
        starter = Torchrun() if given.torchrun else Starter()
        while True:
            with lock:
                name = next(jobs, None) if time.monotonic() < began_s + 60 * given.minutes else None
            if name is None:
                break
            ends = starter(name)
            with lock:
                done[name] += 1
                for says, text in {says: text for says, text in ends if says}.items():
                    wrong[name][says] += 1
                    print(f"{name}: {says}\n{text[-2000:]}", file=sys.stderr, flush=True)
        starter.close()

    threads = [threading.Thread(target=work) for _ in range(given.parallel)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = {
        "what": "ends of processes that used the library, in turns with plain torch",
        "ranks": RANKS,
        "switch_s": float(given.switch_s),
        "runs": sum(done[name] for name in names),
        "wrong": sum(sum(wrong[name].values()) for name in names),
        "plain_runs": done["plain"],
        "plain_wrong": sum(wrong["plain"].values()),
        "cases": {name: {"runs": done[name], "wrong": dict(wrong[name])} for name in (*names, "plain")},
        "seconds": round(time.monotonic() - began_s, 1),
        "cores": len(os.sched_getaffinity(0)),
    }
    print(json.dumps(found))
    return 1 if found["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
