"""loader-worker-died: a worker of a data loader, or its thread that pins batches, ended."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unhang.knowledge import text
from unhang.knowledge.cause import Cause, LogView, Signature
from unhang.knowledge.causes import dataloader_deadlock
from unhang.knowledge.text import NOTHING, Text
from unhang.model import Finding, Remedy

if TYPE_CHECKING:
    from unhang.records.incident_view import IncidentView

# What a rank raises that asks a worker for a tensor in shared memory, and finds nobody.
_GONE = frozenset(("ConnectionResetError", "ConnectionRefusedError", "BrokenPipeError", "EOFError", "FileNotFoundError"))


_TOLD_ELSEWHERE = (
    r"killed by signal|[Bb]us error|shared memory|No space left|[Oo]ut of memory|oom[-_]kill|Too many open files|Caught \w+ in DataLoader worker"
)
_ASKED_IN_VAIN = Text(
    "a worker of a data loader was gone when its batch was asked for ({error}): look whether it was killed, and for its memory",
    "向 DataLoader 的一个 worker 取 batch 时，它已经不在了（{error}）：请查看它是否被杀死，以及它用了多少内存",
)
_NOT_PINNED = Text("the thread that pins batches ended, so that no more come: {error}", "把批次放入锁页内存的线程结束了，不会再有批次：{error}")


def _in_run(picture: IncidentView) -> Finding | None:
    return CAUSE.of_raised(picture)


def _in_logs(view: LogView) -> Finding | None:
    return CAUSE.of_hits(view.hits_of(CAUSE.id), view) or _worker_gone(view)


def _worker_gone(view: LogView) -> Finding | None:
    """A worker that was killed leaves no word, and its tensors are asked for in vain. Workers of a rank that is ended go the same way.

    What the thread that pins batches raises ends nobody else: its rank waits for the next batch.
    """
    known = {(h.source, h.line) for hits in view.hits.values() for h in hits if h.signature.role == "root"}
    own = [t for t in view.tracebacks if t.ignored and not t.steps and (t.source, t.end) not in known]
    pinning = [t for t in own if any(f.name == "_pin_memory_loop" for f in t.frames)]
    gone = [t for t in view.tracebacks if t.type.rpartition(".")[2] in _GONE and any(f.name == "rebuild_storage_fd" for f in t.frames)] or pinning
    if not gone:
        return None
    others = any(t not in gone for t in view.tracebacks) or view.timeouts or any(e.code in (-9, -15, 137, 143) for e in view.exits)
    first, numbers = gone[0], tuple(sorted({t.rank for t in gone if t.rank is not None}))
    who = Text("{who}: ", "{who}：").fill(who=text.ranks(numbers)) if numbers else NOTHING
    says = _NOT_PINNED if gone is pinning else _ASKED_IN_VAIN
    return CAUSE.finding(
        standing="likely" if gone is pinning or not (others or first.ignored) else "possible",
        says=who + says.fill(error=first.says),
        ranks=numbers,
        hosts=tuple(dict.fromkeys(t.host for t in gone if t.host is not None)),
        evidence=(first.evidence(),),
        remedies=("no-pinning", "no-workers") if gone is pinning else ("no-workers", "watch-shm", "start-method"),
    )


CAUSE = Cause(
    id="loader-worker-died",
    role="root",
    title="A worker of a data loader died",
    title_zh="DataLoader 的 worker 已死亡",
    what="A worker process of a data loader, or the thread that pins its batches, ended, so that the rank gets no more batches.",
    why="A crash in native code (OpenCV, a decoder, HDF5), an exception that was printed elsewhere, or the memory of the host or of /dev/shm.",
    signatures=(
        # torch 1.x to 2.15: `(pid(s) 12, 13)` where the parent noticed by itself, `(pid 12) ... with exit code 1` where SIGCHLD told it.
        Signature(
            needle="exited unexpectedly with exit code ",
            pattern=r"DataLoader worker \(pid (?P<pids>\d+)\) exited unexpectedly with exit code (?P<code>\d+)",
            unless=_TOLD_ELSEWHERE,
            standing="likely",
            says="data loader worker {pids} ended with exit code {code}: look for what it printed, and for what calls exit",
            says_zh="DataLoader 的 worker {pids} 以退出码 {code} 结束：查看它打印了什么，以及哪里调用了 exit",
            remedies=("no-workers", "start-method", "watch-shm"),
        ),
        Signature(
            needle="exited unexpectedly",
            pattern=r"DataLoader worker \(pid(?:\(s\))? (?P<pids>[\d, ]+)\) exited unexpectedly(?! with exit code)",
            unless=_TOLD_ELSEWHERE,
            standing="possible",
            says="data loader worker {pids} ended without a word: look for what the worker printed, and for its memory",
            says_zh="DataLoader 的 worker {pids} 没有留下任何信息就结束了：查看它打印了什么，以及它的内存",
            remedies=("no-workers", "start-method", "watch-shm"),
        ),
        Signature(
            needle="is killed by signal: ",
            pattern=r"DataLoader worker \(pid (?P<pids>\d+)\) is killed by signal: (?P<signal>Segmentation fault|Aborted|Floating point "
            r"exception|Illegal instruction)",
            says="data loader worker {pids} crashed in native code ({signal})",
            says_zh="DataLoader 的 worker {pids} 在原生代码中崩溃（{signal}）",
            remedies=("no-workers", "threads-in-workers", "start-method"),
        ),
        Signature(
            needle="Pin memory thread exited unexpectedly",
            standing="likely",
            says="the thread that pins batches ended, so that no batch comes any more",
            says_zh="把批次放入锁页内存的线程结束了，因此不会再有批次到来",
            remedies=("no-pinning", "no-workers"),
        ),
    ),
    in_run=_in_run,
    in_logs=_in_logs,
    remedies=(
        Remedy(
            id="no-workers",
            says="Run once with num_workers=0: the exception or crash then happens in the rank itself, with a traceback.",
            says_zh="用 num_workers=0 运行一次：异常或崩溃就会发生在训练进程本身，并带有 traceback。",
            command="python -X faulthandler train.py   # with num_workers=0",
        ),
        Remedy(
            id="watch-shm",
            says="See whether /dev/shm or the memory of the host fills up while the workers run.",
            says_zh="在工作进程运行时观察 /dev/shm 和主机内存是否被占满。",
            command="watch -n 1 'df -h /dev/shm; free -g'",
        ),
        Remedy(
            id="no-pinning",
            says="Run once with pin_memory=False, to see the error that ended the thread.",
            says_zh="用 pin_memory=False 运行一次，查看导致该线程结束的错误。",
        ),
        *(dataloader_deadlock.CAUSE.remedy(id) for id in ("start-method", "threads-in-workers")),
    ),
    leads_to=("rank-exception",),
    mistaken_for={
        "dataloader-deadlock": "there the worker lives and answers nothing, and the loader waits until its timeout",
        "host-oom-or-killed": "a worker that the OOM killer took is 'killed by signal: Killed'",
        "shm-exhausted": "a worker that found /dev/shm full ends with a bus error",
    },
    sources=("https://docs.pytorch.org/docs/stable/data.html",),
    hits=(
        "RuntimeError: DataLoader worker (pid(s) 372, 373) exited unexpectedly",
        "RuntimeError: DataLoader worker (pid 8064) exited unexpectedly with exit code 1. Details are lost due to multiprocessing.",
        "(RayTrainWorker pid=812) RuntimeError: DataLoader worker (pid 8064) is killed by signal: Segmentation fault. ",
        "RuntimeError: Pin memory thread exited unexpectedly",
    ),
    near_misses=(
        "RuntimeError: DataLoader timed out after 120 seconds",
        "RuntimeError: Caught KeyError in DataLoader worker process 0.",
        "RuntimeError: DataLoader worker (pid 991) is killed by signal: Terminated. ",
        "RuntimeError: DataLoader worker (pid 991) is killed by signal: Killed. \nRuntimeError: DataLoader worker (pid(s) 991) exited unexpectedly",
    ),
    explain={
        "en": (
            "The rank asked its data loader for a batch and found a worker gone. torch names the pid and, if it can, how the worker ended: a "
            "signal is a crash in native code, an exit code an exception that the worker printed itself, and neither is often a lack of memory. "
            "Run once with num_workers=0: what kills the worker then happens in the rank itself, with a traceback."
        ),
        "zh": (
            "进程向 DataLoader 要一个批次，却发现某个 worker 已经不在了。torch 会给出 pid，可能的话还有它是如何结束的：信号说明原生代码崩溃，退出码"
            "说明 worker 自己打印过异常，两者都没有则往往是内存不足。用 num_workers=0 运行一次：杀死 worker 的问题就会发生在训练进程本身，并带有 "
            "traceback。"
        ),
    },
)
