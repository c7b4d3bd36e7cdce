"""framework-bug: a known bug of torch or of a framework on top of it, not of the training."""

from __future__ import annotations

from unhang.knowledge import words
from unhang.knowledge.cause import Cause, LogView, Signature
from unhang.model import Evidence, Finding, Remedy
from unhang.records.picture import Picture

_SIGABRT = -6


def _in_run(picture: Picture) -> Finding | None:
    """torch's Gloo threads abort a process that has already ended in order: seen with torch 2.13, exit code -6 after the last line of the script."""
    aborted = [r for r in picture.gone if r.ended and r.ended.announced and r.ended.exitcode == _SIGABRT and r.raised is None]
    if not aborted:
        return None
    first, numbers = aborted[0], [r.number for r in aborted]
    hits = [h for h in picture.hits_of(CAUSE.id) if h.rank is None or h.rank in numbers]
    return CAUSE.finding(
        standing="likely" if hits else "possible",
        says=f"{words.ranks(numbers)} had finished and {words.verb(numbers, 'was', 'were')} aborted (SIGABRT) while Python shut down",
        ranks=tuple(numbers),
        hosts=words.hosts(picture, numbers),
        evidence=(
            Evidence(
                source=picture.incident_source,
                text=f"rank {first.number} (pid {first.record.pid}) had begun to end in order, then ended with exit code {_SIGABRT} (SIGABRT)",
            ),
            *words.hit_evidence(hits),
        ),
    )


def _in_logs(logs: LogView) -> Finding | None:
    """The line alone does not say that the process had finished."""
    hits = logs.hits.get(CAUSE.id, ())
    if not hits:
        return None
    return CAUSE.finding(
        standing="possible",
        says="a process was aborted by its own C++ runtime without an exception, as happens when a Gloo thread outlives Python",
        ranks=tuple(sorted({h.rank for h in hits if h.rank is not None})),
        evidence=words.hit_evidence(hits),
    )


CAUSE = Cause(
    id="framework-bug",
    role="root",
    title="A known bug of torch or a framework",
    title_zh="torch 或框架自身的已知缺陷",
    what="The training did nothing wrong: a thread of torch's Gloo backend drops its last tensor while Python is shutting down, and the C++ runtime "
    "aborts the process.",
    why="The process group is still alive when the interpreter ends: something holds a reference to it (a DDP module, a default argument) although "
    "destroy_process_group() was called, or it was never called.",
    signatures=(Signature(needle="terminate called without an active exception", pattern=r"^terminate called without an active exception"),),
    in_run=_in_run,
    in_logs=_in_logs,
    remedies=(
        Remedy(
            id="let-go-first",
            says="Before destroy_process_group(), drop what holds the group (del model, del optimizer) and collect: import gc; gc.collect().",
        ),
        Remedy(id="skip-the-teardown", says="Where everything is saved, leave without the interpreter's teardown: sys.stdout.flush(); os._exit(0)."),
    ),
    mistaken_for={
        "collective-mismatch": "there the abort names an exception (gloo::EnforceNotMet) and strikes in the middle of the training",
        "premature-exit": "there the others still needed the rank; here all had finished",
    },
    sources=(
        "https://docs.python.org/3/c-api/init.html#cautions-regarding-runtime-finalization",
        "https://docs.pytorch.org/docs/stable/distributed.html#shutdown",
    ),
    hits=("terminate called without an active exception",),
    near_misses=(
        "terminate called after throwing an instance of 'gloo::EnforceNotMet'",
        "terminate called after throwing an instance of 'c10::Error'",
    ),
    explain={
        "en": (
            "The training was over: the rank had reached the end of its script. While the interpreter was being taken down, a background thread of "
            "torch asked it for the lock that no longer exists, and the C++ runtime aborted the process. torchrun then reports the whole job as "
            "failed. What was saved is good. Let go of everything that holds the process group before destroy_process_group(), so that its threads "
            "end in time."
        ),
        "zh": (
            "训练其实已经结束：该进程已经走到脚本末尾。解释器退出的过程中，torch 的一个后台线程还去申请已经不存在的锁，C++ 运行时于是中止了进程，"
            "torchrun 便把整个作业报告为失败。已保存的结果是好的。在 destroy_process_group() 之前释放所有持有进程组的对象，让它的线程及时结束即可。"
        ),
    },
)
