"""Run real trainings that pause or hang, and report what `unhang run` made of each.

    python scripts/stalls.py [harmless] [hangs] [NAME ...] [--jobs N]

Harmless pauses must not end the training. Hangs must be named within 15 s and ended at the time that was announced. Each case is two ranks of Gloo on
the CPU with the default options, unless it says otherwise. One after the other is started and named; then they wait side by side. Prints the tables of
docs/run.md, then one JSON line. Takes half an hour with --jobs 12; run those that compute while they hang two at a time, if there are two cores.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

NAMED_S = 15.0
# Until a case is named, no other is started: their imports would make it late.
ALONE_S = 45.0
_alone = threading.Lock()
# Between the announced end and the moment at which the last evidence of a busy machine is in.
LATE_S = 30.0

PREAMBLE = """
import ctypes, fcntl, multiprocessing, os, pdb, queue, re, select, signal, socket, subprocess, sys, threading, time
import torch, torch.distributed as dist
from torch.utils.data import DataLoader, Dataset
torch.set_num_threads(1)
dist.init_process_group("gloo")
rank, first = dist.get_rank(), os.environ.get("UNHANG_ATTEMPT", "0") == "0"
second_group = dist.new_group([0, 1])
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
def later(seconds, code):
    return subprocess.Popen([sys.executable, "-c", f"import time\\ntime.sleep({seconds})\\n{code}"])
def server(code):
    listening = socket.create_server(("127.0.0.1", 0))
    if os.fork() == 0:
        peer = listening.accept()[0]
        exec(code, {"peer": peer, "time": time})
        os._exit(0)
    return socket.create_connection(listening.getsockname())
def locked(path, seconds):
    lock = open(path, "w")
    if os.fork() == 0:
        fcntl.flock(lock := open(path), fcntl.LOCK_EX)
        open(path + ".held", "w")
        time.sleep(seconds)
        os._exit(0)
    while not os.path.exists(path + ".held"): time.sleep(0.01)
    return lock
def busy(seconds):
    end = time.monotonic() + seconds
    while time.monotonic() < end: yield
class Data(Dataset):
    def __init__(self, block): self.block = block
    def __len__(self): return 240
    def __getitem__(self, i):
        if i == 100 and rank == 1 and first: self.block()
        return torch.ones(64)
def step(batch):
    optimizer.zero_grad()
    model(batch).sum().backward()
    optimizer.step()
    time.sleep(0.05)
"""
# {body} runs in rank 1, in the first attempt, after 40 steps; {everywhere} in every rank.
STEPS = """
def body():
{body}
def everywhere():
{everywhere}
for number in range(60):
    step(torch.ones(4, 64))
    if number == 40 and first:
        everywhere()
        if rank == 1: body()
"""
LOADER = """
def block():
{body}
for epoch in range(2):
    for batch in DataLoader(Data(block), batch_size=4, num_workers={workers}):
        step(batch)
"""
END = """
dist.destroy_process_group()
"""


@dataclass(frozen=True, kw_only=True)
class Case:
    """One training. `body` is what rank 1 does; `everywhere` what all ranks do before that; `workers` puts `body` into a data set instead."""

    name: str
    says: str
    body: str = "pass"
    everywhere: str = "pass"
    workers: int | None = None
    script: str | None = None
    needs: str = ""

    def text(self) -> str:
        if self.script is not None:
            return PREAMBLE + self.script + END
        body, everywhere = _indented(self.body), _indented(self.everywhere)
        if self.workers is not None:
            return PREAMBLE + LOADER.format(body=body, workers=self.workers) + END
        return PREAMBLE + STEPS.format(body=body, everywhere=everywhere) + END


def _indented(code: str) -> str:
    return "\n".join(f"    {line}" for line in code.splitlines())


HARMLESS = (
    Case(name="slow-save", says="saving over a slow link", body="time.sleep(40)"),
    Case(name="upload", says="45 s until a server answers", body="server('time.sleep(45); peer.send(b\"1\")').recv(1)"),
    Case(
        name="download",
        says="a download of 60 s in small pieces",
        body="s = server('for _ in range(600): peer.send(b\"x\" * 999); time.sleep(0.1)')\nwhile s.recv(4096): pass",
    ),
    Case(name="subprocess", says="a child process of 60 s", body="subprocess.run(['sleep', '60'], check=True)"),
    Case(
        name="evaluation",
        says="an evaluation on one rank, 2 min",
        body="net = torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(8)])\nfor _ in busy(120): net(torch.ones(32, 64)).mean().item()",
    ),
    Case(
        name="tokenising",
        says="tokenising on one rank, 2 min",
        body="for _ in busy(120): [len(re.findall(r'\\w+|[^\\w\\s]', 'some words, and more. ' * n)) for n in range(9)]",
    ),
    Case(
        name="long-call",
        says="one native call of 60 s",
        body="hashlib = __import__('hashlib')\nn = 1 << 20\nt = time.monotonic(); hashlib.pbkdf2_hmac('sha256', b'a', b'b', n); t = time.monotonic() - t\nhashlib.pbkdf2_hmac('sha256', b'a', b'b', int(n * 60 / t))",
    ),
    Case(
        name="compile",
        says="torch.compile on one rank",
        body="torch.compile(torch.nn.Sequential(*[torch.nn.Linear(32, 32) for _ in range(60)]))(torch.ones(4, 32))",
        needs="g++",
    ),
    Case(
        name="logger",
        says="a logger that waits 30 s for its server",
        body="s = server('time.sleep(30); peer.send(b\"HTTP/1.1 200 OK\\\\r\\\\n\")')\ns.settimeout(60)\ns.recv(99)",
    ),
    Case(name="fuse", says="a read of 40 s from a FUSE file system", body="open(os.environ['SLOW_FILE']).read()", needs="fuse"),
    Case(
        name="stopped",
        says="SIGSTOP, and SIGCONT 20 s later",
        body="later(20, f'import os; os.kill({os.getpid()}, 18)')\nos.kill(os.getpid(), signal.SIGSTOP)",
    ),
    Case(
        name="pdb",
        says="40 s in pdb",
        body="ours, theirs = os.openpty()\nif os.fork() == 0:\n    time.sleep(40); os.write(ours, b'c\\n'); os._exit(0)\npdb.Pdb(stdin=os.fdopen(theirs, 'r'), stdout=sys.stderr).set_trace()",
    ),
    Case(name="data-set", says="a data set that blocks 30 s every epoch", body="time.sleep(30)", workers=0),
    Case(name="data-set-workers", says="the same in a worker of the loader", body="time.sleep(30)", workers=2),
    Case(
        name="accumulation",
        says="20 s of micro-steps on one rank before each step",
        script="for number in range(40):\n    with model.no_sync():\n        for _ in range(100 if rank and number % 20 == 19 else 1):\n            model(torch.ones(4, 64)).sum().backward()\n            time.sleep(0.2 if rank and number % 20 == 19 else 0)\n    step(torch.ones(4, 64))\n",
    ),
    Case(
        name="slower-rank",
        says="one rank ten times slower than the other",
        script="for number in range(40):\n    step(torch.ones(4, 64))\n    if rank: time.sleep(0.7)\n",
    ),
    Case(
        name="clock",
        says="a clock that jumps by an hour",
        everywhere="before = time.time()\ndist.barrier()\nopen('jump', 'w')\ntime.sleep(2)\nassert time.time() - before > 3000",
        needs="clock",
    ),
    Case(name="file-lock", says="a file lock that another process holds for 40 s", body="fcntl.flock(locked('lock', 40), fcntl.LOCK_EX)"),
    Case(
        name="thread",
        says="a thread that waits 40 s for the network",
        body="t = threading.Thread(target=lambda: server('time.sleep(40); peer.send(b\"1\")').recv(1)); t.start(); t.join()",
    ),
    Case(
        name="pool",
        says="a pool of processes that computes for 40 s",
        body="code = 'import time; e = time.time() + 40\\nwhile time.time() < e: pass'\nchildren = [subprocess.Popen([sys.executable, '-c', code]) for _ in range(2)]\n[c.wait() for c in children]",
    ),
    Case(
        name="poll-file",
        says="looking for another job's file every 0.5 s, 60 s",
        body="later(60, 'open(\"there\", \"w\")')\nwhile not os.path.exists('there'): time.sleep(0.5)",
    ),
    Case(name="queue", says="a queue that a thread fills after 40 s", body="q = queue.Queue(); threading.Timer(40, q.put, [1]).start(); q.get()"),
    Case(
        name="pipe",
        says="a child that writes into a pipe after 40 s",
        body="subprocess.run([sys.executable, '-c', 'import time; time.sleep(40); print(1)'], stdout=subprocess.PIPE)",
    ),
    Case(
        name="last-upload",
        says="one rank uploads for 60 s after the others have ended",
        script="for number in range(40): step(torch.ones(4, 64))\ndist.destroy_process_group()\nif rank: time.sleep(60)\nsys.exit(0)\n",
    ),
)

HANGS = (
    Case(name="loop", says="an endless loop", body="while True: pass"),
    Case(name="regex", says="a catastrophic regular expression", body="re.match(r'(a+)+$', 'a' * 60 + 'b')"),
    Case(name="spin", says="looking for a file 100 times a second", body="while not os.path.exists('never'): time.sleep(0.01)"),
    Case(name="sleep", says="a sleep of a day", body="time.sleep(86400)"),
    Case(name="flock", says="a file lock that another process keeps", body="fcntl.flock(locked('lock', 86400), fcntl.LOCK_EX)"),
    Case(
        name="flock-circle",
        says="a file lock that a waiting rank holds",
        everywhere="globals()['lock'] = open('lock', 'w')\nif rank == 0: fcntl.flock(lock, fcntl.LOCK_EX); open('held', 'w')\nwhile not os.path.exists('held'): time.sleep(0.01)",
        body="fcntl.flock(lock, fcntl.LOCK_EX)",
    ),
    Case(name="thread-lock", says="a lock taken twice", body="lock = threading.Lock(); lock.acquire(); lock.acquire()"),
    Case(name="event", says="an event that nobody sets", body="threading.Event().wait()"),
    Case(
        name="dead-thread",
        says="a queue whose producer has died",
        body="q = queue.Queue(); t = threading.Thread(target=lambda: None); t.start(); q.get()",
    ),
    Case(
        name="thread-join",
        says="joining a thread that waits for a lock",
        body="lock = threading.Lock(); lock.acquire(); t = threading.Thread(target=lock.acquire, daemon=True); t.start(); t.join()",
    ),
    Case(
        name="process-lock",
        says="a lock of multiprocessing that is never released",
        body="lock = multiprocessing.Lock(); lock.acquire(); lock.acquire()",
    ),
    Case(name="process-queue", says="a queue of multiprocessing that nobody fills", body="multiprocessing.Queue().get()"),
    Case(name="subprocess", says="a child process that never ends", body="subprocess.run(['sleep', '86400'])"),
    Case(name="fifo", says="a FIFO that nobody opens", body="os.mkfifo('fifo'); open('fifo').read()"),
    Case(name="pipe", says="a pipe that nobody else can write", body="os.read(os.pipe()[0], 1)"),
    Case(name="socket", says="a server that never answers", body="server('time.sleep(86400)').recv(1)"),
    Case(name="accept", says="a server that nobody connects to", body="socket.create_server(('127.0.0.1', 0)).accept()"),
    Case(name="select", says="select without a timeout", body="select.select([socket.create_server(('127.0.0.1', 0))], [], [])"),
    Case(name="worker-lock", says="a loader worker in a lock", body="lock = threading.Lock(); lock.acquire(); lock.acquire()", workers=2),
    Case(name="worker-fifo", says="a loader worker in a FIFO", body="os.mkfifo('fifo'); open('fifo').read()", workers=2),
    Case(
        name="data-set-lock", says="a data set in a lock, without workers", body="lock = threading.Lock(); lock.acquire(); lock.acquire()", workers=0
    ),
    Case(name="stopped", says="SIGSTOP", body="os.kill(os.getpid(), signal.SIGSTOP)"),
    Case(name="gil-asleep", says="a native call that sleeps with the GIL", body="ctypes.PyDLL(None).sleep(86400)"),
    Case(name="gil-busy", says="a native call that computes with the GIL", body="sum(range(10**13))"),
    Case(
        name="crossed-groups",
        says="two groups used in another order",
        everywhere="for group in (None, second_group) if rank else (second_group, None): dist.all_reduce(torch.ones(8), group=group)",
    ),
    Case(name="skipped", says="a collective that one rank skips", everywhere="if rank == 0: dist.broadcast(torch.ones(8), 1)"),
    Case(name="guarded-barrier", says="a barrier under `if rank == 0`", everywhere="if rank == 0:\n    dist.barrier()"),
    Case(
        name="other-size",
        says="another size on one rank",
        everywhere="dist.all_gather([torch.ones(8 + 8 * rank)] * 2, torch.ones(8 + 8 * rank), group=second_group); dist.all_reduce(torch.ones(8 + rank))",
    ),
    Case(name="lost-message", says="a message that nobody sends", body="dist.recv(torch.ones(1), 0)"),
)


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What became of one case. Times in seconds; `named_s` since the others began to wait, `late_s` how long after the announced end."""

    case: Case
    exitcode: int | None
    attempts: int = 0
    named_s: float | None = None
    waited_s: float | None = None
    late_s: float | None = None
    cause: str = ""
    standing: str = ""
    ranks: tuple[int, ...] = ()
    kind: str = ""
    skipped: str = ""

    @property
    def is_right(self) -> bool:
        if self.case in HARMLESS:
            return self.exitcode == 0 and self.attempts == 1
        on_time = self.named_s is not None and self.named_s <= NAMED_S and (self.late_s is None or -5 <= self.late_s <= LATE_S)
        return self.exitcode == 0 and self.attempts == 2 and on_time


def run(case: Case, root: Path) -> Outcome:
    """One case, in a directory of its own. `unhang run` starts it once more after a hang, and then it runs to its end."""
    there = root / f"{'harmless' if case in HARMLESS else 'hang'}-{case.name}"
    there.mkdir()
    (there / "train.py").write_text(case.text())
    env = {**os.environ, "XDG_CACHE_HOME": str(there)}
    lacking = _provide(case, there, env)
    if lacking:
        return Outcome(case=case, exitcode=None, skipped=lacking)
    command = [sys.executable, "-m", "unhang", "run", "--json", "--run-dir", "run", "-n", "2", "--python", sys.executable, "train.py"]
    log = there / "run" / "events.jsonl"
    with (there / "err").open("wb") as err:
        with _alone:
            process = subprocess.Popen(command, cwd=there, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=err)
            end = time.monotonic() + ALONE_S
            while process.poll() is None and time.monotonic() < end and not (log.exists() and b'"Drawn"' in log.read_bytes()):
                time.sleep(0.2)
        out, _ = process.communicate()
    events = [json.loads(line) for line in log.read_text().splitlines()]
    return _outcome(case, json.loads(out or b"{}"), events)


def _outcome(case: Case, outcome: dict[str, Any], events: Sequence[dict[str, Any]]) -> Outcome:
    first = events[: next((i for i, e in enumerate(events) if e["event"] in ("Restarting", "Finished")), len(events))]
    drawn = [e for e in first if e["event"] == "Drawn"]
    stalled = [e for e in first if e["event"] == "Stalled"]
    caught_up = next((e["after_s"] for e in first if e["event"] == "CaughtUp"), None)
    opened = [e for e in first if e["event"] == "Opened"]
    promised = next((e["s"] + e["left_s"] for e in reversed(stalled) if e["left_s"] is not None), None)
    verdict = json.loads(json.dumps((outcome.get("verdict") or {}).get("primary") or {}))
    return Outcome(
        case=case,
        exitcode=outcome.get("exitcode"),
        attempts=outcome.get("attempts", 0),
        named_s=drawn[0]["took_s"] if drawn else None,
        waited_s=caught_up if caught_up is not None else drawn[-1]["took_s"] if drawn else None,
        late_s=None if promised is None or caught_up is not None or not opened else round(opened[-1]["s"] - promised, 1),
        cause=verdict.get("cause", ""),
        standing=verdict.get("standing", ""),
        ranks=tuple(verdict.get("ranks", ())),
        kind=stalled[-1]["kind"] if stalled else "at once" if drawn else "",
    )


def _provide(case: Case, there: Path, env: dict[str, str]) -> str:
    """What the machine has to have for a case; says what is missing."""
    if case.needs == "g++":
        return "" if _found("g++") else "no g++"
    if case.needs == "clock":
        (there / "clock.c").write_text(_CLOCK)
        built = subprocess.run(["cc", "-shared", "-fPIC", "-o", str(there / "clock.so"), str(there / "clock.c"), "-ldl"], capture_output=True)
        env["LD_PRELOAD"] = str(there / "clock.so")
        return "" if built.returncode == 0 else "no C compiler"
    if case.needs == "fuse":
        return _mount(there, env)
    return ""


# Once the file `jump` is there, the wall clock is an hour ahead.
_CLOCK = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <time.h>
#include <unistd.h>
int clock_gettime(clockid_t clock, struct timespec *at) {
    static int (*next)(clockid_t, struct timespec *);
    if (!next) next = dlsym(RTLD_NEXT, "clock_gettime");
    int failed = next(clock, at);
    if (clock == CLOCK_REALTIME && !access("jump", F_OK)) at->tv_sec += 3600;
    return failed;
}
"""
_SLOW_FILES = """
import sys, time
from mfusepy import FUSE, Operations
class Slow(Operations):
    def getattr(self, path, fh=None):
        return {"st_mode": 0o40755, "st_nlink": 2} if path == "/" else {"st_mode": 0o100644, "st_nlink": 1, "st_size": 4}
    def readdir(self, path, fh): return [".", "..", "slow"]
    def read(self, path, size, offset, fh):
        if not offset: time.sleep(40)
        return b"slow"[offset:offset + size]
FUSE(Slow(), sys.argv[1], foreground=True, direct_io=True)
"""


def _mount(there: Path, env: dict[str, str]) -> str:
    if not Path("/dev/fuse").exists() or subprocess.run([sys.executable, "-c", "import mfusepy"], capture_output=True).returncode:
        return "no FUSE"
    (there / "mount").mkdir()
    serving = subprocess.Popen([sys.executable, "-c", _SLOW_FILES, str(there / "mount")], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    env["SLOW_FILE"] = str(there / "mount" / "slow")
    threading.Timer(300, lambda: (subprocess.run(["umount", "-l", str(there / "mount")], check=False), serving.kill())).start()
    return ""


def _found(program: str) -> bool:
    return subprocess.run(["which", program], capture_output=True).returncode == 0


def table(outcomes: Sequence[Outcome]) -> str:
    """Markdown, a row a case."""
    lines = ["| what | named after | waited | kind | verdict | right |", "|---|---|---|---|---|---|"]
    for o in outcomes:
        if o.skipped:
            lines.append(f"| {o.case.says} | | | | not run: {o.skipped} | |")
            continue
        named = "" if o.named_s is None else f"{o.named_s:.0f} s"
        waited = "" if o.waited_s is None else f"{o.waited_s:.0f} s"
        verdict = f"{o.cause}, {o.standing}" if o.cause else ""
        lines.append(f"| {o.case.says} | {named} | {waited} | {o.kind} | {verdict} | {'yes' if o.is_right else 'NO'} |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("cases", nargs="*", help="harmless, hangs, or names of cases; all by default")
    parser.add_argument("--jobs", type=int, default=2)
    given = parser.parse_args()
    groups = {"harmless": HARMLESS, "hangs": HANGS}
    chosen = {name: [c for c in cases if not given.cases or name in given.cases or c.name in given.cases] for name, cases in groups.items()}
    root = Path(tempfile.mkdtemp(prefix="stalls-"))
    print(f"trainings in {root}", file=sys.stderr)

    def one(case: Case) -> Outcome:
        outcome = run(case, root)
        print(f"{'ok ' if outcome.is_right else 'NO '} {outcome}", file=sys.stderr, flush=True)
        return outcome

    wrong, found = [], {}
    with ThreadPoolExecutor(given.jobs) as pool:
        for name, cases in chosen.items():
            outcomes = list(pool.map(one, cases))
            if outcomes:
                print(f"\n{name}\n\n{table(outcomes)}")
            found[name] = [o for o in outcomes if not o.skipped]
            wrong += [o.case.name for o in found[name] if not o.is_right]
    print(json.dumps({"schema": "unhang/stalls/1", **{name: len(o) for name, o in found.items()}, "wrong": wrong}))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
