"""rendezvous-misconfig: the processes disagree on how many they are, who they are, or where they meet."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from unhang.knowledge import words
from unhang.knowledge.cause import Cause, LogView, Signature
from unhang.model import Evidence, Finding, Remedy
from unhang.records.logs import Hit
from unhang.records.picture import Picture


def _in_run(picture: Picture) -> Finding | None:
    if picture.incident.kind != "world-size":
        return _of_hits(picture.hits_of(CAUSE.id))
    records = [r.record for r in picture.ranks]
    worlds = Counter(r.world_size for r in records if r.world_size is not None)
    expected = picture.incident.expected_world
    numbers = Counter(r.rank for r in records)
    twice = sorted(rank for rank, count in numbers.items() if count > 1)
    reported = " and ".join(str(w) for w in sorted(worlds))
    if set(worlds) == {1} and len(records) > 1 and set(numbers) == {0}:
        says = f"{_count(len(records))} processes each believe they are rank 0 of 1"
    elif twice:
        says = f"{_count(numbers[twice[0]])} processes each believe they are rank {twice[0]} of {reported or 'an unknown number'}"
    else:
        says = f"the processes report a world of {reported or 'no known size'}"
    if expected is not None:
        says += f"; {expected} rank{'s' if expected != 1 else ''} {'were' if expected != 1 else 'was'} expected"
    alone = set(worlds) == {1}
    return CAUSE.finding(
        standing="established",
        says=says,
        ranks=tuple(sorted(numbers)),
        hosts=tuple(dict.fromkeys(r.host for r in records)),
        evidence=tuple(
            Evidence(source=picture.incident_source, text=f"pid {r.pid} on {r.host}: rank {r.rank} of {r.world_size}, local rank {r.local_rank}")
            for r in records[:4]
        ),
        remedies=("let-a-launcher-start-them", "read-the-environment") if alone else ("same-world", "read-the-environment"),
    )


def _in_logs(view: LogView) -> Finding | None:
    return _of_hits(view.hits.get(CAUSE.id, ()))


def _of_hits(hits: Sequence[Hit]) -> Finding | None:
    if not hits:
        return None
    numbers = tuple(sorted({h.rank for h in hits if h.rank is not None}))
    return CAUSE.finding(
        standing="established",
        says=f"{hits[0].groups.get('name', 'a variable')} is not set, so the process does not know who it is: no launcher started it",
        ranks=numbers,
        evidence=words.hit_evidence(hits),
        remedies=("let-a-launcher-start-them", "read-the-environment"),
    )


def _count(n: int) -> str:
    return {2: "two", 3: "three", 4: "four"}.get(n, str(n))


CAUSE = Cause(
    id="rendezvous-misconfig",
    role="root",
    title="The processes disagree on who and how many they are",
    title_zh="各进程对自己的编号或总数认识不一致",
    what=(
        "World size, rank or meeting point differ between the processes, or from what was asked for: they train apart, or wait for ranks that "
        "never come."
    ),
    why=(
        "A script that was started several times without a launcher, a launcher configuration for another number of processes, RANK or WORLD_SIZE "
        "left in the environment, code that sets them itself."
    ),
    signatures=(
        Signature(
            needle="environment variable",
            pattern=r"Error initializing torch\.distributed using env:// rendezvous: environment variable (?P<name>\w+) expected",
        ),
    ),
    in_run=_in_run,
    in_logs=_in_logs,
    remedies=(
        Remedy(
            id="let-a-launcher-start-them",
            says="Start the script once, through a launcher that numbers the processes; the script itself must read RANK and WORLD_SIZE.",
            command="unhang run --nproc-per-node N train.py",
        ),
        Remedy(
            id="same-world",
            says="Make launcher and configuration agree: --nproc-per-node, num_processes in accelerate's config, num_gpus in DeepSpeed's hostfile.",
        ),
        Remedy(
            id="read-the-environment",
            says="See what is left over in the environment, and unset it.",
            command="env | grep -E '^(RANK|LOCAL_RANK|WORLD_SIZE|MASTER_|GROUP_|NODE_)'",
        ),
    ),
    mistaken_for={
        "port-in-use": "several processes that are all rank 0 may also collide on the port",
        "network-blocked": "where the meeting point is right but out of reach, clients time out one by one",
    },
    sources=(
        "https://docs.pytorch.org/docs/stable/elastic/run.html",
        "https://docs.pytorch.org/docs/stable/distributed.html#environment-variable-initialization",
    ),
    hits=("ValueError: Error initializing torch.distributed using env:// rendezvous: environment variable RANK expected, but not set",),
    near_misses=(
        "torch.distributed.DistStoreError: wait timeout after 300000ms, keys: /default_pg/0//cpu//0/0",
        "W1121 01:31:40 set environment variable OMP_NUM_THREADS for each process to be 1 in default",
    ),
    explain={
        "en": (
            "The processes of a job learn from their environment who they are (RANK), how many there are (WORLD_SIZE) and where they meet "
            "(MASTER_ADDR, MASTER_PORT). Here these do not agree. Two processes that both believe they are rank 0 of 1 train two separate models, "
            "without any error, and overwrite each other's checkpoints; too large a world waits for ranks that nobody started."
        ),
        "zh": (
            "任务中的每个进程从环境变量得知自己是谁（RANK）、一共有多少（WORLD_SIZE）、在哪里会合（MASTER_ADDR、MASTER_PORT）。这里它们互相矛盾。两"
            "个都以为自己是 1 个进程中 rank 0 的进程，会不报错地各自训练一个模型，并互相覆盖检查点；总数设得太大，则会一直等没有人启动的进程。"
        ),
    },
)
