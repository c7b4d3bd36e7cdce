"""dataloader-deadlock: a data loader, or a worker of it, is stuck."""

from __future__ import annotations

from unhang.knowledge import words
from unhang.knowledge.cause import Cause, Signature
from unhang.knowledge.stuck import held_back, line_in_data_set
from unhang.model import Evidence, Finding, Remedy
from unhang.records.picture import Picture


def _in_run(picture: Picture) -> Finding | None:
    if picture.incident.kind == "straggler":
        return None
    found = [r for r, state in held_back(picture) if state == "loader"]
    if not found:
        return None
    first, numbers = found[0], [r.number for r in found]
    inner = line_in_data_set(first)
    frame = inner or first.place
    at = picture.place(frame) if frame is not None else None
    what = f"stuck in its data loader{f' at {at}' if at else ''}" if inner else f"waiting for a worker of its data loader{f' ({at})' if at else ''}"
    if at and inner is None and first.only_last_seen:
        what = f"waiting for a worker of its data loader (last seen at {at})"
    idle = " without using CPU" if first.activity is not None else ""
    stack = words.stack_evidence(picture, first)
    if inner is not None and first.record.stacks is not None:
        stack = (Evidence(source=first.record.stacks, text=f"rank {first.number}: {words.frame(inner)}"), *stack[1:])
    return CAUSE.finding(
        standing="established" if first.activity is not None else "likely",
        says=f"{words.ranks(numbers)} {words.verb(numbers, 'is', 'are')} {what}{idle}{words.stall(picture)}{words.while_waiting(picture)}",
        ranks=tuple(numbers),
        hosts=words.hosts(picture, numbers),
        where=at,
        evidence=(
            *stack,
            *words.activity_evidence(picture, first),
            *words.waiting_evidence(picture, at_most=1),
            *words.absence_evidence(picture, first),
        ),
        remedies=("bound-the-read",) if inner else ("loader-timeout", "start-method", "threads-in-workers"),
    )


CAUSE = Cause(
    id="dataloader-deadlock",
    role="root",
    title="A data loader is stuck",
    title_zh="数据加载器卡死",
    what="A rank waits for its next batch and gets none: the data set's own code blocks, or a worker process is deadlocked.",
    why="A lock that another thread held when the worker was forked (OpenCV, tokenizers, OpenMP, logging), a read without a timeout, "
    "a queue or an HDF5/LMDB handle shared between processes.",
    signatures=(Signature(needle="DataLoader timed out after", pattern=r"DataLoader timed out after (?P<seconds>[\d.]+) seconds"),),
    in_run=_in_run,
    remedies=(
        Remedy(
            id="bound-the-read",
            says="Give the read, lock or request in the named line of the data set a timeout, and raise: an exception is named at once.",
        ),
        Remedy(id="loader-timeout", says="Let a stuck worker raise instead of hang: DataLoader(..., timeout=120)."),
        Remedy(
            id="start-method",
            says='Do not fork a process that has threads: DataLoader(..., multiprocessing_context="forkserver"), or "spawn"; '
            "open files and databases in the worker (worker_init_fn), not before.",
        ),
        Remedy(
            id="threads-in-workers",
            says="Keep libraries in the workers single-threaded; cv2.setNumThreads(0) for OpenCV.",
            env={"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"},
        ),
    ),
    mistaken_for={
        "straggler-timeout": "a slow loader uses CPU or disk; a stuck one does neither",
        "process-stuck": "there the stack does not pass through torch/utils/data",
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
        "huggingface/tokenizers: The current process just got forked, after parallelism has already been used.",
    ),
    explain={
        "en": (
            "One rank waits for data and gets none, so it never reaches the collective in which the others wait. Either the code of the data set "
            "itself blocks (a read, a lock, a request without a timeout), or a worker process was forked while some thread held a lock that nobody "
            "will ever release in the child. Fork and threads do not mix: start the workers with forkserver or spawn, and give the loader a "
            "timeout so that it raises."
        ),
        "zh": (
            "有一个进程在等数据却一直等不到，所以到不了其他进程正在等待的集合通信。要么是数据集自己的代码卡住（没有超时的读取、锁或网络请求），要么"
            "是工作进程在 fork 的时候，另一个线程正拿着锁，而子进程里再也没有人会释放它。fork 和线程不能混用：用 forkserver 或 spawn 启动工作进程，"
            "并给 DataLoader 设置 timeout，让它抛出异常而不是挂住。"
        ),
    },
)
