"""dataloader-deadlock: a data loader, or a worker of it, is stuck."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unhang.knowledge import collective_waits, text, waits, words
from unhang.knowledge.blocked_threads import held_back, line_in_data_set, workers_at_work
from unhang.knowledge.cause import Cause, LogView, Signature
from unhang.knowledge.text import NOTHING, Text
from unhang.model import Finding, Remedy

if TYPE_CHECKING:
    from unhang.records.incident_view import IncidentView

# Workers that the evidence names.
_SHOWN = 3
_FOR_WORKERS = ("loader-timeout", "start-method", "threads-in-workers")


def _in_run(picture: IncidentView) -> Finding | None:
    if picture.incident.kind == "straggler":
        return None
    found = [r for r, state in held_back(picture) if state == "loader"]
    if not found:
        return CAUSE.of_raised(picture)
    first, numbers = found[0], [r.number for r in found]
    inner = line_in_data_set(first)
    workers = workers_at_work(first)
    frame = inner or (workers[0].place if workers else first.place)
    at = picture.place(frame) if frame is not None else None
    if inner:
        what = Text("stuck in its data loader{at}", "卡在自己的 DataLoader 里{at}").fill(
            at=Text(" at {at}", "（{at}）").fill(at=at) if at else NOTHING
        )
    elif workers:
        index = workers[0].record.index
        what = Text(
            "waiting for worker {n} (pid {pid}) of its data loader, stuck at {at}{index}",
            "在等待自己 DataLoader 的 worker {n}（pid {pid}），后者卡在 {at}{index}",
        ).fill(
            n=str(workers[0].record.worker),
            pid=workers[0].record.pid,
            at=str(at),
            index=Text(" (index {index})", "（索引 {index}）").fill(index=index) if index else NOTHING,
        )
    else:
        seen = Text("last seen at ", "最后见于 ") if first.only_last_seen else NOTHING
        place = Text(" ({seen}{at})", "（{seen}{at}）").fill(seen=seen, at=at) if at else NOTHING
        what = Text("waiting for a worker of its data loader{place}", "在等待自己 DataLoader 的 worker{place}").fill(place=place)
    idle = Text(", without using CPU" if workers else " without using CPU", "，不占用 CPU") if first.activity is not None else NOTHING
    wait = first.wait if inner else workers[0].record.wait if workers else None
    # What a line of the data set waits in; bound-the-read is this cause's own name for bound-the-wait.
    of_wait = tuple(r for r in waits.remedies(wait) if r != "bound-the-wait") if wait is not None else ()
    if doing := waits.described(picture, wait):
        idle = Text(", ", "，") + doing + (Text(",", "") if workers else NOTHING)
    stack = words.stack_evidence(picture, first)
    if inner is not None and first.record.stacks is not None:
        stack = (words.stated(first.record.stacks, words.of_rank(first.number, words.frame(inner))), *stack[1:])
    return CAUSE.finding(
        standing="established" if any(w is not None and not w.ends for w in (wait, first.wait)) else "likely",
        says=Text("{who} {are} {what}{since}", "{who} {what}{since}").fill(
            who=text.ranks(numbers),
            are=words.verb(numbers, "is", "are"),
            what=what,
            since=idle + text.stall(picture) + text.while_waiting(picture),
        ),
        ranks=tuple(numbers),
        hosts=words.hosts(picture, numbers),
        where=at,
        evidence=(
            *(words.child_evidence(picture, first, worker) for worker in workers[:_SHOWN]),
            *stack,
            *words.activity_evidence(picture, first),
            *words.waiting_evidence(picture, at_most=1),
            *words.absence_evidence(picture, first),
        ),
        remedies=(*of_wait, *(("bound-the-read",) if inner else ("bound-the-read", "start-method", "loader-timeout") if workers else _FOR_WORKERS)),
        commands=waits.commands(wait),
    )


def _in_logs(view: LogView) -> Finding | None:
    return CAUSE.of_hits(view.hits_of(CAUSE.id), view) or collective_waits.held(view, CAUSE, "loader", _FOR_WORKERS)


CAUSE = Cause(
    id="dataloader-deadlock",
    role="root",
    title="A data loader is stuck",
    title_zh="数据加载器卡死",
    what="A rank waits for its next batch and gets none: the data set's own code blocks, or a worker process is deadlocked.",
    why=(
        "A lock that another thread held when the worker was forked (OpenCV, tokenizers, OpenMP, logging), a read without a timeout, a queue or "
        "an HDF5/LMDB handle shared between processes."
    ),
    signatures=(
        Signature(
            needle="DataLoader timed out after",
            pattern=r"DataLoader timed out after (?P<seconds>[\d.]+) seconds",
            says="a data loader got no batch from its workers within {seconds} s",
            says_zh="某个 DataLoader 在 {seconds} s 内没有从它的 worker 得到批次",
            remedies=("start-method", "threads-in-workers", "find-the-line"),
        ),
    ),
    in_run=_in_run,
    in_logs=_in_logs,
    remedies=(
        *waits.REMEDIES,
        Remedy(
            id="bound-the-read",
            says="Give the read, lock or request in the named line of the data set a timeout, and raise: an exception is named at once.",
            says_zh="给所指数据集代码行中的读取、锁或网络请求设置超时并抛出异常：异常会立刻指出问题所在。",
        ),
        Remedy(
            id="loader-timeout",
            says="Let a stuck worker raise instead of hang: DataLoader(..., timeout=120).",
            says_zh="让卡住的工作进程抛出异常而不是一直挂住：DataLoader(..., timeout=120)。",
        ),
        Remedy(
            id="start-method",
            says=(
                'Do not fork a process that has threads: DataLoader(..., multiprocessing_context="forkserver"), or "spawn"; open files and '
                "databases in the worker (worker_init_fn), not before."
            ),
            says_zh=(
                '不要 fork 一个带线程的进程：DataLoader(..., multiprocessing_context="forkserver") 或 "spawn"；文件和数据库在工作进程里打开（'
                "worker_init_fn），不要提前打开。"
            ),
        ),
        Remedy(
            id="threads-in-workers",
            says="Keep libraries in the workers single-threaded; cv2.setNumThreads(0) for OpenCV.",
            says_zh="让工作进程里的库只用单线程；OpenCV 用 cv2.setNumThreads(0)。",
            env={"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"},
            verify="ps -o nlwp,pid,args --ppid RANK_PID",
        ),
        Remedy(
            id="find-the-line",
            says="See where the workers stand while the loader waits.",
            says_zh="在数据加载器等待时查看各工作进程停在哪里。",
            command="for p in $(pgrep -P RANK_PID); do py-spy dump --pid $p; done",
        ),
    ),
    leads_to=("rank-exception",),
    mistaken_for={
        "straggler-timeout": "a slow loader uses CPU or disk; a stuck one does neither",
        "process-stuck": "there the stack does not pass through torch/utils/data",
        "loader-worker-died": "a worker that ended is named by torch, with its pid; a stuck one lives",
    },
    sources=(
        "https://docs.pytorch.org/docs/stable/data.html",
        "https://docs.python.org/3/library/multiprocessing.html#contexts-and-start-methods",
    ),
    hits=(
        "RuntimeError: DataLoader timed out after 120 seconds",
        "[rank1]: RuntimeError: DataLoader timed out after 30.0 seconds",
    ),
    near_misses=(
        "DataLoader(timeout=120, num_workers=4)",
        (
            "huggingface/tokenizers: The current process just got forked, after parallelism has already been used. Disabling parallelism to "
            "avoid deadlocks..."
        ),
        "RuntimeError: Caught KeyError in DataLoader worker process 0.",
        "RuntimeError: DataLoader worker (pid(s) 372, 373) exited unexpectedly",
        "UserWarning: This DataLoader will create 16 worker processes in total. Our suggested max number of worker in current system is 8",
    ),
    explain={
        "en": (
            "One rank waits for data and gets none, so it never reaches the collective in which the others wait. Either the code of the data set "
            "itself blocks (a read, a lock, a request without a timeout), or a worker process was forked while some thread held a lock that "
            "nobody will ever release in the child. Fork and threads do not mix: start the workers with forkserver or spawn, and give the loader "
            "a timeout so that it raises."
        ),
        "zh": (
            "有一个进程在等数据却一直等不到，所以到不了其他进程正在等待的集合通信。要么是数据集自己的代码卡住（没有超时的读取、锁或网络请求），要"
            "么是工作进程在 fork 的时候，另一个线程正拿着锁，而子进程里再也没有人会释放它。fork 和线程不能混用：用 forkserver 或 spawn 启动工作进"
            "程，并给 DataLoader 设置 timeout，让它抛出异常而不是挂住。"
        ),
    },
)
