"""host-oom-or-killed: a rank was ended by SIGKILL."""

from __future__ import annotations

from unhang.knowledge import words
from unhang.knowledge.cause import Cause, Signature
from unhang.model import Evidence, Finding, Remedy
from unhang.records.picture import Picture, RankView

_SIGKILL = -9


def _in_run(picture: Picture) -> Finding | None:
    reported = _reported(picture)
    killed = [
        r
        for r in picture.gone
        if r.ended and (r.ended.exitcode == _SIGKILL or (r.ended.exitcode is None and not r.ended.announced and r in reported))
    ]
    if not killed:
        return None
    first, numbers = killed[0], [r.number for r in killed]
    who, oom, evidence = _killer(picture, killed)
    at = picture.where(first)
    hits = [h for h in picture.hits_of(CAUSE.id) if h.source != picture.incident_source]
    return CAUSE.finding(
        standing="established",
        says=f"{words.ranks(numbers)} {words.verb(numbers, 'was', 'were')} killed (SIGKILL){f', last seen at {at}' if at else ''}; {who}",
        ranks=tuple(numbers),
        hosts=words.hosts(picture, numbers),
        where=at,
        evidence=(
            Evidence(source=picture.incident_source, text=f"rank {first.number} (pid {first.record.pid}) ended with exit code {_SIGKILL} (SIGKILL)"),
            *evidence,
            *words.stack_evidence(picture, first, innermost=False),
            *words.hit_evidence(hits, at_most=1),
        ),
        remedies=("less-memory", "more-memory") if oom else ("find-the-killer", "watch-memory"),
    )


def _reported(picture: Picture) -> list[RankView]:
    """Ranks of which a launcher wrote that SIGKILL ended them."""
    pids = {h.groups.get("pid") for h in picture.hits_of(CAUSE.id)}
    return [r for r in picture.ranks if str(r.record.pid) in pids]


def _killer(picture: Picture, killed: list[RankView]) -> tuple[str, bool, tuple[Evidence, ...]]:
    """Who did it, as far as the evidence goes; whether it was the OOM killer; and the lines that say so."""
    for rank in killed:
        if (event := picture.oom_kill_of(rank)) is not None and picture.kernel_source is not None:
            return "the kernel's OOM killer did it", True, (Evidence(source=picture.kernel_source, line=event.line, text=event.text),)
    kills = picture.incident.oom_kills
    if kills:
        # Inside a container the kernel's log shows other pids, or cannot be read at all; the counter of the cgroup is ours.
        counted = Evidence(
            source=picture.incident_source, text=f"the OOM killer took {kills} process{'es' if kills > 1 else ''} of this memory cgroup"
        )
        return "the OOM killer of its memory cgroup counted it", True, (counted,)
    log = "could not be read" if picture.kernel is None else "shows no OOM kill of it"
    counter = "could not be read" if kills is None else "counted none"
    return f"by whom is not in evidence (the kernel log {log}; the memory cgroup {counter})", False, ()


CAUSE = Cause(
    id="host-oom-or-killed",
    role="root",
    title="A rank was killed (SIGKILL)",
    title_zh="某个进程被强制杀死（SIGKILL）",
    what="A process of the training was ended from outside, with no chance to say anything. The others lose their peer.",
    why="The kernel's OOM killer, the memory limit of a container or a job, a scheduler's time limit, or a person.",
    signatures=(
        Signature(needle="(exitcode: -9)", pattern=r"failed \(exitcode: -9\) local_rank: (?P<local_rank>\d+) \(pid: (?P<pid>\d+)\)"),
        Signature(needle="(SIGKILL)", pattern=r"exitcode +: -9 \(pid: (?P<pid>\d+)\)|Signal 9 \(SIGKILL\) received by PID \d+"),
        Signature(needle="exits with return code = -9", pattern=r"(?P<pid>\d+) exits with return code = -9"),
        Signature(needle="terminated with signal SIGKILL", pattern=r"process (?P<process>\d+) terminated with signal SIGKILL"),
        Signature(needle="ut of memory: Killed process", pattern=r"[Oo]ut of memory: Killed process (?P<pid>\d+)"),
        Signature(needle="is killed by signal: Killed", pattern=r"DataLoader worker \(pid (?P<worker>\d+)\) is killed by signal: Killed"),
    ),
    in_run=_in_run,
    remedies=(
        Remedy(
            id="less-memory",
            says=(
                "Use less host memory: fewer data loader workers, pin_memory off, data sets mapped from disk instead of lists, one rank less on "
                "this host."
            ),
        ),
        Remedy(
            id="more-memory",
            says="Raise the limit: docker run --memory, resources.limits.memory in Kubernetes, --mem in Slurm.",
            command="cat /sys/fs/cgroup/memory.max /sys/fs/cgroup/memory.peak",
        ),
        Remedy(
            id="find-the-killer",
            says="Ask the kernel and the scheduler who sent it (sacct -j JOB in Slurm, kubectl describe pod in Kubernetes).",
            command="dmesg -T | grep -iE 'killed process|oom-kill'; cat /sys/fs/cgroup/memory.events",
        ),
        Remedy(
            id="watch-memory",
            says=(
                "Run again and look at the memory that each incident records: growth over the steps points to the data set or to metrics kept in "
                "lists."
            ),
        ),
    ),
    mistaken_for={
        "launcher-teardown": "a launcher that gives up waiting sends SIGKILL too, after its SIGTERM; that is a consequence",
        "gpu-oom": "GPU memory raises torch.OutOfMemoryError in Python and kills nobody",
        "peer-lost": "what the other ranks print is only the loss of this one",
    },
    sources=(
        "https://docs.kernel.org/admin-guide/cgroup-v2.html",
        "https://man7.org/linux/man-pages/man7/signal.7.html",
    ),
    hits=(
        (
            "E1103 09:12:44.120000 4711 torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: -9) local_rank: 1 (pid: 4720) of "
            "binary: /opt/venv/bin/python3"
        ),
        "ERROR:torch.distributed.elastic.multiprocessing.api:failed (exitcode: -9) local_rank: 4 (pid: 5120) of binary: /usr/bin/python3",
        "  exitcode  : -9 (pid: 4720)  (SIGKILL)",
        "  traceback : Signal 9 (SIGKILL) received by PID 4720",
        "[2026-11-03 10:00:01,000] [ERROR] [launch.py:341:sigkill_handler] ['python', 'train.py'] 5100 exits with return code = -9",
        "torch.multiprocessing.spawn.ProcessExitedException: process 1 terminated with signal SIGKILL",
        "[88123.41] Memory cgroup out of memory: Killed process 4720 (python3) total-vm:91234567kB, anon-rss:65012345kB",
        "RuntimeError: DataLoader worker (pid 991) is killed by signal: Killed. ",
    ),
    near_misses=(
        (
            "E1103 09:12:44.120000 4711 torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: -15) local_rank: 1 (pid: 4720) of "
            "binary: python3"
        ),
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.",
        (
            "RuntimeError: DataLoader worker (pid 991) is killed by signal: Bus error. It is possible that dataloader's workers are out of shared "
            "memory."
        ),
        "Sending process 4720 closing signal SIGTERM",
    ),
    explain={
        "en": (
            "SIGKILL cannot be caught: the process is gone in the middle of an instruction and prints nothing. On training machines the sender is "
            "nearly always the kernel's OOM killer (host memory, not GPU memory) or the memory limit of a container or a job. The other ranks then "
            "lose their connection and print errors that are only consequences. The kernel log and the cgroup's memory.events say whether it was "
            "the OOM killer."
        ),
        "zh": (
            "SIGKILL 无法被捕获：进程在执行途中突然消失，什么也不会打印。在训练机器上，发出它的几乎总是内核的 OOM killer（主机内存，不是显存），或"
            "者容器、作业的内存限制。其他进程随后失去连接，打印出来的错误只是后果。内核日志和 cgroup 的 memory.events 能说明是不是 OOM killer 干"
            "的。"
        ),
    },
)
