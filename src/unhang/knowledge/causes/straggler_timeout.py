"""straggler-timeout: a rank is alive and merely slow."""

from __future__ import annotations

from unhang.knowledge import words
from unhang.knowledge.cause import Cause
from unhang.knowledge.stuck import held_back, in_loader
from unhang.model import Finding, Remedy
from unhang.records.picture import Picture


def _in_run(picture: Picture) -> Finding | None:
    slow = [
        r for r, state in held_back(picture) if state == "busy" or (picture.incident.kind == "straggler" and state in ("unknown", "idle", "loader"))
    ]
    if not slow:
        return None
    first, numbers = slow[0], [r.number for r in slow]
    at = picture.where(first)
    what = f"executing {first.place.name}() ({'last seen at ' if first.only_last_seen else ''}{at})" if first.place is not None else "executing"
    certain = first.busy and bool(first.frames) and picture.front is not None
    return CAUSE.finding(
        standing="established" if certain else "likely",
        says=f"{words.ranks(numbers)} {words.verb(numbers, 'is', 'are')} alive and {what}{words.stall(picture)}{words.while_waiting(picture)}",
        ranks=tuple(numbers),
        hosts=words.hosts(picture, numbers),
        where=at,
        evidence=(
            *words.activity_evidence(picture, first),
            *words.stack_evidence(picture, first),
            *words.waiting_evidence(picture, at_most=1),
            *words.absence_evidence(picture, first),
        ),
        remedies=("feed-the-loader", "raise-the-timeout") if in_loader(first) else ("share-the-work", "raise-the-timeout"),
    )


CAUSE = Cause(
    id="straggler-timeout",
    role="root",
    title="A rank is alive and slow; the others wait for it",
    title_zh="某个进程还在运行，只是太慢，其他进程都在等它",
    what="One rank computes, reads or writes much longer than usual before it joins the collective that the others already wait in.",
    why=(
        "Work that only one rank does (tokenising, saving a checkpoint, evaluating, downloading), uneven data, a slow disk, a slower or busier "
        "machine."
    ),
    in_run=_in_run,
    remedies=(
        Remedy(
            id="share-the-work",
            says="Do this work before the training starts, or on all ranks evenly, or outside the step; the line named above is where the time goes.",
        ),
        Remedy(
            id="feed-the-loader",
            says="The time goes into loading data: raise num_workers and prefetch_factor, or prepare the data once and keep it on a local disk.",
        ),
        Remedy(
            id="raise-the-timeout",
            says="If the work is meant to take this long, give the group more time: init_process_group(timeout=timedelta(hours=2)), "
            "InitProcessGroupKwargs in accelerate, ddp_timeout in transformers' TrainingArguments.",
        ),
    ),
    mistaken_for={
        "process-stuck": "a stuck rank uses no CPU and does not wake up",
        "collective-timeout": "the rank that prints the timeout is the one that waited, not the slow one",
    },
    sources=(
        "https://docs.pytorch.org/docs/stable/distributed.html",
        "https://huggingface.co/docs/transformers/main_classes/trainer",
    ),
    explain={
        "en": (
            "Nothing is broken: one rank still works, and the others wait for it in a collective. If it takes longer than the timeout of the "
            "process group (10 minutes for NCCL, 30 for Gloo by default), the waiting ranks end the job although the slow one would have arrived. "
            "Usual reasons are work that only rank 0 does, uneven data, a slow disk or a busier machine. The verdict names the function in which "
            "the slow rank was seen."
        ),
        "zh": (
            "没有东西坏掉：有一个进程还在干活，其他进程在集合通信里等它。如果超过进程组的超时时间（NCCL 默认 10 分钟，Gloo 默认 30 分钟），等待的进"
            "程会把整个任务结束掉，尽管慢的那个本来会到。常见原因：只有 rank 0 做的工作（分词、保存、评估、下载）、数据不均匀、磁盘慢、机器更忙。结"
            "论里给出的是慢进程当时所在的函数。"
        ),
    },
)
