"""host-oom-or-killed: a process was ended by SIGKILL, or host memory ran out.

Long because kernel, cgroup, Slurm, Kubernetes, Ray and launchers each tell it in words of their own; most of it is signatures and their lines.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from unhang.knowledge import cann, srun_ranges, text, words
from unhang.knowledge.caught_exceptions import passed_over
from unhang.knowledge.cause import Cause, LogView, Signature, command
from unhang.knowledge.kernel_pids import KILLED, is_of_a_rank
from unhang.knowledge.text import NOTHING, Text
from unhang.model import Evidence, Finding, HostFinding, Remedy
from unhang.patterns import lazily

if TYPE_CHECKING:
    from unhang.facts.kernel_log import Event
    from unhang.facts.memory import Memory
    from unhang.facts.snapshot import Snapshot
    from unhang.logs import Hit
    from unhang.logs.log_facts import At
    from unhang.records.incident_view import IncidentView, RankView

_SIGKILL = -9
_SHELL = lazily(r"^Killed$|line \d+: +\S{1,20} Killed ")
# A server that gives up announces it, and then kills all its processes, itself among them.
_ENDS_ITS_OWN = r"(?i)\bsigquit\b|watchdog timeout|\bkill(?:ing|s|ed)? (?:its |the )?(?:process tree|whole process group|process group|all processes)"
_MEMORY = ("less-memory", "more-memory", "watch-memory")
_KILLER = "dmesg -T | grep -iE 'killed process|oom-kill'; grep oom_kill {group:path}/memory.*"
_KILLED = ("find-the-killer", "watch-memory", "less-memory")
# What a rank of a training is called in a kernel log: 15 characters of the command or of the thread.
_OURS = lazily(r"py|torch|pt_|ray|vllm|sglang|deepspeed|accelerate|train|trtllm|nccl|mpi", re.IGNORECASE)
# What a rank takes of the host before it has loaded anything: torch alone some 300 MiB, with CUDA's context and NCCL 2 to 4 GiB.
_TINY_BYTES = 512 * 1024 * 1024
_WITH_CUDA_BYTES = 4 * 1024**3


def _on_host(host: Snapshot) -> Iterable[HostFinding]:
    from unhang.facts import container, kernel_log, memory, numa
    from unhang.facts.units import size

    log = host.get(kernel_log.SUBJECT)
    told = log.events if log is not None else ()
    yield from _faulty_memory(told)
    seen = host.get(memory.SUBJECT)
    if seen is None:
        return
    nodes = host.get(numa.SUBJECT)
    gpus = len(nodes.gpus) if nodes is not None else 0
    gib = max(64, 2 * (seen.cgroup_limit_bytes or 0) >> 30)
    more = {
        "docker": command("docker update --memory={gib:number}g --memory-swap={gib:number}g CONTAINER", gib=gib),
        "podman": command("podman update --memory={gib:number}g CONTAINER", gib=gib),
        "slurm": command("sbatch --mem=0 JOB"),
        "kubernetes": command("kubectl set resources deployment NAME --limits=memory={gib:number}Gi", gib=gib),
        "systemd": command("sudo systemctl set-property UNIT MemoryMax=infinity"),
    }.get(container.kind(host))
    left = seen.left_bytes
    if left is not None and left < (_WITH_CUDA_BYTES if gpus else 2 * _TINY_BYTES):
        limited = seen.available_bytes is None or left < seen.available_bytes
        yield CAUSE.host_finding(
            area="memory",
            severity="error" if left < _TINY_BYTES else "warning",
            says=Text("{left} of host memory are left{of}", "主机内存还剩 {left}{of}").fill(
                left=size(left), of=_limited(seen) if limited else Text(" of {all}", "，共 {all}").fill(all=size(seen.total_bytes))
            ),
            leads_to=Text("{who} before anything is loaded; then it is killed", "还没加载任何东西，{who}；随后就会被杀死").fill(
                who=Text("one rank on a GPU takes 2 to 4 GiB", "GPU 上的一个 rank 就要 2 到 4 GiB")
                if gpus
                else Text("torch alone takes 300 MiB", "光 torch 就要 300 MiB")
            ),
            evidence=_evidence(seen) if limited else (Evidence(source="/proc/meminfo", text=f"MemAvailable: {size(left)}"),),
            remedies=("more-memory", "less-memory") if limited else ("less-memory", "who-takes-it"),
            commands={"more-memory": more} if more is not None else None,
        )
    in_group = seen.oom_kills if seen.cgroup is not None else None
    if in_group or seen.host_oom_kills:
        count = in_group or seen.host_oom_kills or 0
        killed = [e for e in told if e.kind == "oom-kill"]
        # Of a whole machine it may be anybody's; in a container nobody's that is here.
        last = next((e for e in reversed(killed) if _OURS.search(e.process or "")), killed[-1] if killed else None)
        ours = container.kind(host) in ("bare", "systemd") and last is not None and kernel_log.recent(last) and _OURS.search(last.process or "")
        who = NOTHING
        if last is not None:
            when = Text(kernel_log.ago(last.last_age_s), kernel_log.ago_zh(last.last_age_s))
            who = Text(", {process} ({pid}) {when}", "，最近一次是 {process}（{pid}），{when}").fill(
                process=str(last.process), pid=str(last.pid), when=when
            )
        yield CAUSE.host_finding(
            area="memory",
            severity="warning" if in_group or ours else "note",
            says=Text("the OOM killer has ended {count} process{es} {where}", "{where}OOM killer 已结束 {count} 个进程").fill(
                count=count, es="" if count == 1 else "es", where=Text("of this control group", "在本控制组中 ")
            )
            if in_group
            else Text(
                "the OOM killer has ended {count} process{es} on this machine since it started{who}",
                "本机启动以来 OOM killer 已结束 {count} 个进程{who}",
            ).fill(count=count, es="" if count == 1 else "es", who=who),
            leads_to=Text(
                "a rank or loader worker that it ends is gone without a word; the same load will meet it again",
                "被它结束的 rank 或 DataLoader worker 会无声消失；同样的负载还会再遇到它",
            ),
            evidence=(
                Evidence(source="memory control group" if in_group else "/proc/vmstat", text=f"oom_kill {count}"),
                *((Evidence(source="kernel log", text=last.text),) if last is not None and not in_group else ()),
            ),
            remedies=("find-the-killer", "watch-memory"),
            # memory.events, or memory.oom_control in version 1.
            commands={"find-the-killer": command(_KILLER, group=seen.cgroup)} if in_group else None,
        )
    available, limit, committed = seen.available_bytes, seen.commit_limit_bytes, seen.committed_bytes
    if seen.overcommit == 2 and available is not None and limit is not None and committed is not None:
        promised = max(0, limit - committed)
        if promised < available // 2:
            yield CAUSE.host_finding(
                area="memory",
                severity="warning",
                says=Text(
                    f"the kernel promises {size(promised)} more although {size(available)} are available (vm.overcommit_memory is 2)",
                    f"可用内存有 {size(available)}，内核却只允许再分配 {size(promised)}（vm.overcommit_memory 为 2）",
                ),
                leads_to=Text(
                    "fork and large reservations, CUDA's among them, fail with 'Cannot allocate memory' while memory is free",
                    "内存还有空闲时，fork 和大块预留（包括 CUDA 的）就会失败：'Cannot allocate memory'",
                ),
                evidence=(Evidence(source="/proc/meminfo", text=f"CommitLimit: {size(limit)}, Committed_AS: {size(committed)}"),),
                remedies=("overcommit",),
            )


def _faulty_memory(events: Iterable[Event]) -> Iterable[HostFinding]:
    """What a machine tells of its last crash it tells while it starts: that is a note as soon as it has run for some hours."""
    from unhang.facts import kernel_log

    faults = [e for e in events if e.kind == "memory"]
    for last in faults[-1:]:
        yield CAUSE.host_finding(
            area="kernel",
            severity="warning" if kernel_log.recent(last) else "note",
            says=Text(
                f"the hardware reported errors that could not be corrected, in host memory or a processor ({kernel_log.times(last)})",
                f"硬件报告了主机内存或处理器中无法纠正的错误（{kernel_log.times_zh(last)}）",
            ),
            leads_to=Text(
                "the kernel ends the process that meets such memory (SIGBUS), or the host stops altogether",
                "碰到这块内存的进程会被内核结束（SIGBUS），或整台主机停机",
            ),
            evidence=tuple(Evidence(source="kernel log", text=e.text) for e in faults[-3:]),
            remedies=("test-memory",),
        )


def _limited(seen: Memory) -> Text:
    from unhang.facts.units import size

    limit = Text(": the control group may use {limit}, /dev/shm included", "：控制组最多可用 {limit}，包括 /dev/shm")
    return limit.fill(limit=size(seen.cgroup_limit_bytes or 0))


def _evidence(seen: Memory) -> tuple[Evidence, ...]:
    from unhang.facts.units import size

    used, back = size(seen.cgroup_used_bytes or 0), size(seen.cgroup_reclaimable_bytes or 0)
    text = f"limit {size(seen.cgroup_limit_bytes or 0)}, used {used}, of which {back} are cache that can be taken back"
    return (Evidence(source=seen.cgroup or "cgroup", text=text),)


def _in_run(picture: IncidentView) -> Finding | None:
    reported = _reported(picture)
    killed = [
        r
        for r in picture.gone
        # One with an exception was on its way out: a launcher that lost patience with it is not what ended the training.
        if r.ended and (r.ended.exitcode == _SIGKILL or (r.ended.exitcode is None and r.raised is None and not r.ended.announced and r in reported))
    ]
    if not killed:
        return _worker_killed(picture)
    first, numbers = killed[0], [r.number for r in killed]
    who, oom, evidence = _killer(picture, killed)
    at = picture.where(first)
    hits = [h for h in picture.hits_of(CAUSE.id) if h.source != picture.incident_source]
    return CAUSE.finding(
        standing="established",
        says=Text("{ranks} {were} killed (SIGKILL){at}; {who}", "{ranks} 被杀死（SIGKILL）{at}；{who}").fill(
            ranks=text.ranks(numbers), were=words.verb(numbers, "was", "were"), at=text.at(picture, first), who=who
        ),
        ranks=tuple(numbers),
        hosts=words.hosts(picture, numbers),
        where=f"{at} (last seen{text.before_its_end(first).en})" if at is not None and first.only_last_seen else at,
        evidence=(
            words.stated(
                picture.incident_source,
                Text("rank {n} (pid {pid}) ended with exit code {code} (SIGKILL)", "rank {n}（pid {pid}）以退出码 {code}（SIGKILL）结束").fill(
                    n=first.number, pid=first.record.pid, code=_SIGKILL
                ),
            ),
            *evidence,
            *words.stack_evidence(picture, first, innermost=False),
            *words.hit_evidence(hits, at_most=1),
        ),
        remedies=("less-memory", "more-memory", "watch-memory") if oom else ("find-the-killer", "watch-memory"),
    )


def _worker_killed(picture: IncidentView) -> Finding | None:
    """A rank raises when a worker of its data loader was killed; the kernel log may tell by whom."""
    found = CAUSE.of_raised(picture)
    if found is None:
        return None
    pids = {int(pid) for r in picture.raised for h in r.raised_hits if (pid := h.groups.get("worker", "")).isdecimal()}
    told = [e for e in picture.kernel or () if e.kind == "oom-kill" and e.pid in pids and picture.incident.host_pids is not False]
    evidence = (Evidence(source=str(picture.kernel_source), line=e.line, text=e.text) for e in told[:1])
    return replace(found, evidence=(*found.evidence, *evidence), remedies=tuple(map(CAUSE.remedy, _MEMORY)) if told else found.remedies)


def _in_logs(view: LogView) -> Finding | None:
    """Lines that say who did it speak before those that say only that it was SIGKILL; a launcher's exit code alone is enough for the latter."""
    hits = tuple(h for h in view.hits_of(CAUSE.id) if _is_ours(h, view) and not ("llocator" in h.signature.needle and passed_over(view, h)))
    # A launcher kills what does not leave after its SIGTERM.
    forced = {h.groups["pid"] for h in view.hits_of("launcher-teardown") if "forcefully exiting" in h.text and "pid" in h.groups}
    hits = tuple(h for h in hits if h.signature.remedies != _KILLED or h.groups.get("pid") not in forced)
    in_teardown = _in_teardown(view)
    hits = tuple(h for h in hits if h.signature.remedies != _KILLED or not in_teardown(h))
    killed = tuple(e for e in view.exits if e.code == _SIGKILL and str(e.at.pid) not in forced and not in_teardown(e.at))
    numbers = tuple(sorted({e.at.rank for e in killed if e.at.rank is not None}))
    if hits:
        told = [h for h in hits if h.signature.remedies != _KILLED] or hits
        # Which task it was stands in srun's line; slurmstepd, which may print first, names none.
        told = sorted(told, key=lambda h: "tasks" not in h.groups)
        return srun_ranges.named(CAUSE.of_hits(srun_ranges.shortened(told), view), told[0], view)
    if not killed:
        return None
    first = killed[0]
    who = Text("process {pid}", "进程 {pid}").fill(pid=first.at.pid) if first.at.pid is not None else Text("a process", "某个进程")
    return CAUSE.finding(
        standing="established",
        says=Text("{who} {were} killed (SIGKILL); by whom is not in the log", "{who} 被杀死（SIGKILL）；日志里没有说明是谁所为").fill(
            who=text.ranks(numbers) if numbers else who, were=words.verb(numbers or (0,), "was", "were")
        ),
        ranks=numbers,
        hosts=tuple(dict.fromkeys(e.at.host for e in killed if e.at.host is not None)),
        evidence=tuple(e.at.evidence() for e in killed[:2]),
        remedies=_KILLED,
    )


def _in_teardown(view: LogView) -> Callable[[Hit | At], bool]:
    """Whether Slurm or a shell tells of it behind what explains it: the step was cancelled, another task failed, a collective was given up."""
    cancelled = (h for h in view.hits_of("launcher-teardown") if " CANCELLED AT " in h.text)
    ended = _first_lines((*cancelled, *(e.at for e in view.exits if e.code not in (0, _SIGKILL, -signal.SIGTERM))))
    given_up = _first_lines(view.hits_of("collective-timeout"))

    def is_behind(killed: Hit | At) -> bool:
        before = ended if killed.text.lstrip().startswith("srun: error: ") else given_up if _SHELL.search(killed.text) else {}
        return killed.line is not None and before.get(killed.source, killed.line) < killed.line

    return is_behind


def _first_lines(told: Iterable[Hit | At]) -> dict[str, int]:
    """By source. A line may tell of thousands of tasks: each is not compared with each."""
    return {one.source: one.line or 0 for one in sorted(told, key=lambda one: one.line or 0, reverse=True) if one.line is not None}


def _is_ours(hit: Hit, view: LogView) -> bool:
    """Whether a line of the kernel is about a process of this training: by its name, or by the pid of one that a launcher saw killed."""
    name = hit.groups.get("name")
    if name is None or _OURS.search(name):
        return True
    pid = hit.groups.get("pid")
    return is_of_a_rank(hit, view) and any(e.code in KILLED and str(e.at.pid) == pid for e in view.exits)


def _reported(picture: IncidentView) -> list[RankView]:
    """Ranks of which a launcher wrote that SIGKILL ended them."""
    pids = {h.groups.get("pid") for h in picture.hits_of(CAUSE.id)}
    return [r for r in picture.ranks if str(r.record.pid) in pids]


def _killer(picture: IncidentView, killed: list[RankView]) -> tuple[Text, bool, tuple[Evidence, ...]]:
    """Who did it, as far as the evidence goes; whether it was the OOM killer; and the lines that say so."""
    for rank in killed:
        if (event := picture.oom_kill_of(rank)) is not None and picture.kernel_source is not None:
            did = Text("the kernel's OOM killer did it", "是内核的 OOM killer 所为")
            return did, True, (Evidence(source=picture.kernel_source, line=event.line, text=event.text),)
    kills = picture.incident.oom_kills
    if kills:
        # Inside a container the kernel's log shows other pids, or cannot be read at all; the counter of the cgroup is ours.
        took = Text("the OOM killer took {n} process{es} of this memory cgroup", "OOM killer 杀死了此内存 cgroup 中的 {n} 个进程")
        counted = words.stated(picture.incident_source, took.fill(n=kills, es="es" if kills > 1 else ""))
        return Text("the OOM killer of its memory cgroup counted it", "其内存 cgroup 的 OOM killer 计入了这一次"), True, (counted,)
    counter = Text("could not be read", "无法读取") if kills is None else Text("counted none", "没有计数")
    if somebody := picture.oom_kills_of_somebody:
        last = somebody[-1]
        log = Text(
            "shows an OOM kill of {name} ({pid}), and whether that is this rank cannot be told: it counts pids as the host does, "
            "and this container in its own way",
            "有 {name}（{pid}）被 OOM killer 杀死的记录，是否就是这个 rank 无法判断：内核日志用宿主机的 pid，本容器用自己的 pid",
        ).fill(name=str(last.name), pid=str(last.pid))
        evidence: tuple[Evidence, ...] = (Evidence(source=picture.kernel_source or "", line=last.line, text=last.text),)
    else:
        unread = Text("could not be read", "无法读取")
        log, evidence = unread if picture.kernel is None else Text("shows no OOM kill of it", "没有它被 OOM killer 杀死的记录"), ()
    says = Text(
        "by whom is not in evidence (the kernel log {log}; the memory cgroup {counter})",
        "没有证据表明是谁所为（内核日志{log}；内存 cgroup {counter}）",
    )
    return says.fill(log=log, counter=counter), False, evidence


CAUSE = Cause(
    id="host-oom-or-killed",
    role="root",
    title="A process was killed, or host memory ran out",
    title_zh="进程被强制杀死，或主机内存耗尽",
    what="A process of the training was ended from outside, with no chance to say anything. The others lose their peer.",
    why="The kernel's OOM killer, the memory limit of a container or a job, Ray's memory monitor, or a person.",
    signatures=(
        cann.message("bytes host memory for Runtime", remedies=("less-memory", "more-memory")),
        # Python cannot fork: overcommit is off, or the limit of the container leaves no room for the copy of a large process.
        Signature(
            needle="OSError: [Errno 12] Cannot allocate memory",
            near=r"os\.fork\(\)|_posixsubprocess|_fork_exec|popen_fork",
            standing="likely",
            says="a process could not be forked: the host, or its container, has no memory left for it",
            says_zh="无法 fork 进程：主机或其容器已没有内存给它",
            remedies=_MEMORY,
        ),
        # Who did it is in these.
        Signature(
            needle="ut of memory: Kill",
            pattern=r"[Oo]ut of memory: Kill(?:ed)? process (?P<pid>[^\s()]{1,20}) \((?P<name>[^)]*)\)(?:.*?anon-rss:(?P<rss_kib>\d+)kB)?",
            says="the kernel's OOM killer ended process {pid} ({name}): host memory, or that of its container, was used up",
            says_zh="内核的 OOM killer 结束了进程 {pid}（{name}）：主机内存或其容器的内存已用尽",
            remedies=_MEMORY,
        ),
        Signature(
            needle="oom-kill:constraint=",
            pattern=r"oom-kill:constraint=(?P<constraint>\w+),.*task=(?P<name>[^,]+),pid=(?P<pid>\d+)",
            says="the kernel's OOM killer chose process {pid} ({name}), {constraint}",
            says_zh="内核的 OOM killer 选中了进程 {pid}（{name}），{constraint}",
            remedies=_MEMORY,
        ),
        Signature(
            needle="oom_reaper: reaped process",
            pattern=r"reaped process (?P<pid>\d+) \((?P<name>[^)]*)\)",
            says="the kernel's OOM killer took process {pid} ({name})",
            says_zh="内核的 OOM killer 杀死了进程 {pid}（{name}）",
            remedies=_MEMORY,
        ),
        # Slurm 17 to 21 `Detected 1 oom-kill event(s) in StepId=1.0 cgroup`, 22+ `Detected 1 oom_kill event in StepId=1.0`.
        Signature(
            needle="slurmstepd: error: Detected ",
            pattern=r"Detected (?P<count>\d+) oom[-_]kill event(?:\(s\)|s)? in (?:StepId=|step )(?P<step>[\w+]+(?:\.[\w+]+)?)",
            says="the OOM killer ended {count} process(es) of Slurm step {step}: the memory of the job was used up",
            says_zh="OOM killer 结束了 Slurm 作业步 {step} 的 {count} 个进程：作业的内存已用尽",
            remedies=_MEMORY,
        ),
        Signature(
            needle=": Out Of Memory",
            pattern=rf"srun: error: {srun_ranges.HOSTS}: tasks? {srun_ranges.TASKS}: Out Of Memory",
            says="Slurm: task {tasks} on {host} used up the memory of the job",
            says_zh="Slurm：{host} 上的 task {tasks} 用尽了作业的内存",
            remedies=_MEMORY,
        ),
        Signature(
            needle="exceeded memory limit",
            pattern=r"(?:Step|Job) (?P<step>[\d.]+) exceeded memory limit \((?P<used>\d+) > (?P<limit>\d+)\)",
            says="Slurm ended {step}: it used {used} of {limit} (KiB) of memory",
            says_zh="Slurm 结束了 {step}：它使用内存 {used}，上限 {limit}（KiB）",
            remedies=_MEMORY,
        ),
        Signature(
            needle="TERM_MEMLIMIT: job killed",
            says="LSF ended the job: it reached its memory limit",
            says_zh="LSF 结束了作业：它达到了内存上限",
            remedies=_MEMORY,
        ),
        Signature(
            needle="PBS: job killed: mem",
            pattern=r"job killed: mem (?P<used>\w+) exceeded limit (?P<limit>\w+)",
            says="PBS ended the job: memory {used} exceeded {limit}",
            says_zh="PBS 结束了作业：内存 {used} 超过上限 {limit}",
            remedies=_MEMORY,
        ),
        Signature(
            needle="OOMKilled",
            # A reason, a state that is true, or a line of `kubectl get pods`.
            pattern=r"(?i:reason)\W{1,16}OOMKilled|^\s{0,64}OOMKilled\b|\bOOMKilled\"?\s{0,4}[:=]\s{0,4}true|\d/\d{1,3}\s{1,16}OOMKilled",
            says="Kubernetes or Docker: the container reached its memory limit",
            says_zh="Kubernetes 或 Docker：容器达到了内存上限",
            remedies=_MEMORY,
        ),
        Signature(
            needle="The node was low on resource: memory",
            says="Kubernetes evicted the pod: its node was low on memory",
            says_zh="Kubernetes 驱逐了 Pod：它所在的节点内存不足",
            remedies=_MEMORY,
        ),
        # Ray up to 2.54 `Task was killed ...`, 2.55+ `N worker(s) were killed ...`.
        Signature(
            needle="killed due to the node running low on memory",
            says="Ray's memory monitor killed a worker: the memory of the node was nearly used up",
            says_zh="Ray 的内存监控杀死了一个 worker：节点内存快要用尽",
            remedies=("ray-threshold", *_MEMORY),
        ),
        Signature(
            needle="killed due to memory pressure (OOM)",
            pattern=r"(?P<count>(?<!\d)[1-9]\d{0,8}) Workers \(tasks / actors\) killed due to memory pressure",
            says="Ray's memory monitor killed {count} worker(s): the memory of the node was nearly used up",
            says_zh="Ray 的内存监控杀死了 {count} 个 worker：节点内存快要用尽",
            remedies=("ray-threshold", *_MEMORY),
        ),
        Signature(
            needle="System memory low at node with IP",
            says="Ray's memory monitor killed a worker: the node was low on memory",
            says_zh="Ray 的内存监控杀死了一个 worker：节点内存不足",
            remedies=("ray-threshold", *_MEMORY),
        ),
        # Ray on Kubernetes, where the worker left no exit code behind.
        Signature(
            needle="may have exceeded K8s pod memory limits",
            standing="likely",
            says="a Ray worker disappeared without an exit code, as those do that exceed the memory limit of their pod",
            says_zh="一个 Ray worker 消失了，没有留下退出码：超出 Pod 内存上限的 worker 就是这样",
            remedies=_MEMORY,
        ),
        Signature(
            needle="DefaultCPUAllocator: ",
            pattern=r"(?:can't allocate memory: you tried to allocate|not enough memory: you tried to allocate) (?P<size_bytes>\d+) bytes",
            says="host memory ran out: torch could not allocate {size_bytes} bytes",
            says_zh="主机内存耗尽：torch 无法分配 {size_bytes} 字节",
            remedies=_MEMORY,
        ),
        Signature(
            needle="One of the subprocesses has abruptly died during map operation",
            standing="likely",
            says="a worker process of datasets.map() disappeared, as the OOM killer makes them do",
            says_zh="datasets.map() 的一个工作进程消失了：被 OOM killer 杀死的就是这样",
            remedies=_MEMORY,
        ),
        # That it was SIGKILL, and no more.
        Signature(
            needle="failed (exitcode: -9)",
            pattern=r"failed \(exitcode: -9\) local_rank: (?P<local_rank>\d+)(?: \(pid: (?P<pid>[^\s()]{1,20})\))?",
            unless=r"forcefully exiting via Signals\.SIGKILL",
            says="local rank {local_rank} was killed (SIGKILL); by whom is not in the log",
            says_zh="本地 rank {local_rank} 被杀死（SIGKILL）；日志里没有说明是谁所为",
            remedies=_KILLED,
        ),
        Signature(
            needle="(SIGKILL)",
            pattern=r"exitcode +: -9 \(pid: (?P<pid>\d*)|Signal 9 \(SIGKILL\) received by PID",
            says="a rank was killed (SIGKILL); by whom is not in the log",
            says_zh="某个 rank 被杀死（SIGKILL）；日志里没有说明是谁所为",
            remedies=_KILLED,
        ),
        Signature(
            needle="exits with return code = -9",
            pattern=r"Process (?P<pid>\d{1,9}) exits with return code = -9\b",
            says="process {pid} was killed (SIGKILL); by whom is not in the log",
            says_zh="进程 {pid} 被杀死（SIGKILL）；日志里没有说明是谁所为",
            remedies=_KILLED,
        ),
        # Its handler prints the command that was started last, whoever was killed.
        Signature(
            needle="] exits with return code = -9",
            says="DeepSpeed's launcher: a rank of this host was killed (SIGKILL); by whom is not in the log",
            says_zh="DeepSpeed 启动器：该主机的某个 rank 被杀死（SIGKILL）；日志里没有说明是谁所为",
            remedies=_KILLED,
        ),
        Signature(
            needle="died with <Signals.SIGKILL",
            says="a process was killed (SIGKILL); by whom is not in the log",
            says_zh="某个进程被杀死（SIGKILL）；日志里没有说明是谁所为",
            remedies=_KILLED,
        ),
        Signature(
            needle="terminated with signal SIGKILL",
            pattern=r"process (?P<process>\d+) terminated with signal SIGKILL",
            says="process {process} was killed (SIGKILL); by whom is not in the log",
            says_zh="进程 {process} 被杀死（SIGKILL）；日志里没有说明是谁所为",
            remedies=_KILLED,
        ),
        Signature(
            needle="Child process with PID",
            pattern=r"Child process with PID (?P<pid>\S{1,20}) terminated with code -9\b",
            says="process {pid} was killed (SIGKILL); by whom is not in the log",
            says_zh="进程 {pid} 被杀死（SIGKILL）；日志里没有说明是谁所为",
            remedies=_KILLED,
        ),
        Signature(
            needle="is killed by signal: Killed",
            pattern=r"DataLoader worker \(pid (?P<worker>[^)]{1,20})\) is killed by signal: Killed",
            says="data loader worker {worker} was killed (SIGKILL), nearly always by the OOM killer",
            says_zh="DataLoader worker {worker} 被杀死（SIGKILL），几乎总是 OOM killer 所为",
            remedies=_KILLED,
        ),
        Signature(
            needle="exited on signal 9",
            pattern=r"process rank (?P<rank>\d+) with PID (?P<pid>\S{1,20}) on node (?P<host>\S+) exited on signal 9\b",
            says="MPI: the process with pid {pid} on {host} was killed (SIGKILL); by whom is not in the log",
            says_zh="MPI：{host} 上 pid 为 {pid} 的进程被杀死（SIGKILL）；日志里没有说明是谁所为",
            remedies=_KILLED,
        ),
        Signature(
            needle="KILLED BY SIGNAL: 9",
            says="MPI: a process was killed (SIGKILL); by whom is not in the log",
            says_zh="MPI：某个进程被杀死（SIGKILL）；日志里没有说明是谁所为",
            remedies=_KILLED,
        ),
        Signature(
            needle=": Killed",
            pattern=rf"srun: error: {srun_ranges.HOSTS}: tasks? {srun_ranges.TASKS}: Killed$",
            unless=r"CANCELLED AT|Job step aborted",
            says="Slurm: task {tasks} on {host} was killed (SIGKILL); by whom is not in the log",
            says_zh="Slurm：{host} 上的 task {tasks} 被杀死（SIGKILL）；日志里没有说明是谁所为",
            remedies=_KILLED,
        ),
        # The shell's word on what it was itself waiting for.
        Signature(
            needle="Killed",
            pattern=r"^Killed$",
            unless=_ENDS_ITS_OWN,
            says="the shell: the command was killed (SIGKILL); by whom is not in the log",
            says_zh="shell：命令被杀死（SIGKILL）；日志里没有说明是谁所为",
            remedies=_KILLED,
        ),
        Signature(
            needle=" Killed     ",
            pattern=r"line \d+: +(?P<pid>\S{1,20}) Killed +\S",
            unless=_ENDS_ITS_OWN,
            says="the shell: process {pid} was killed (SIGKILL); by whom is not in the log",
            says_zh="shell：进程 {pid} 被杀死（SIGKILL）；日志里没有说明是谁所为",
            remedies=_KILLED,
        ),
        *(
            Signature(
                needle=needle,
                pattern=pattern,
                says="a container ended with code 137 (SIGKILL)",
                says_zh="某个容器以退出码 137（SIGKILL）结束",
                remedies=_KILLED,
            )
            for needle, pattern in (
                ("code 137", r"(?:exit(?:ed)?|terminated)\b.{0,20}\bcode 137\b"),
                ("code (137)", r"(?:exit(?:ed)?|terminated)\b.{0,20}\bcode \(137\)"),
                ("Exit Code:    137", ""),
            )
        ),
        # SGLang names the worker in the record before.
        Signature(
            needle="xit code: -9",
            pattern=r"(?i:exit code): -9\b",
            near=r"\bRank (?P<rank>\d{1,7}) scheduler is dead|\Z",
            says="a worker was killed (SIGKILL); by whom is not in the log",
            says_zh="某个 worker 被杀死（SIGKILL）；日志里没有说明是谁所为",
            remedies=_KILLED,
        ),
        Signature(
            needle="code=killed, status=9/KILL",
            says="systemd: the process was killed (SIGKILL)",
            says_zh="systemd：进程被杀死（SIGKILL）",
            remedies=_KILLED,
        ),
    ),
    in_run=_in_run,
    in_logs=_in_logs,
    on_host=_on_host,
    remedies=(
        Remedy(
            id="less-memory",
            says=(
                "Use less host memory: fewer data loader workers, pin_memory off, data sets mapped from disk instead of lists, no CPU offload, "
                "low_cpu_mem_usage when loading, one rank less on this host."
            ),
            says_zh=(
                "减少主机内存占用：减少 DataLoader worker 数量，关闭 pin_memory，数据集用磁盘映射而不是列表，关闭 CPU offload，加载模型时用 "
                "low_cpu_mem_usage，或在这台机器上少跑一个进程。"
            ),
        ),
        Remedy(
            id="more-memory",
            says="Raise the limit: docker run --memory, resources.limits.memory in Kubernetes, --mem in Slurm (--mem=0 takes all of the node).",
            says_zh="提高限制：docker run --memory，Kubernetes 的 resources.limits.memory，Slurm 的 --mem（--mem=0 表示使用整个节点的内存）。",
            command="cat /sys/fs/cgroup/memory.max /sys/fs/cgroup/memory.peak",
        ),
        Remedy(
            id="who-takes-it",
            says="See which processes hold it, and whether old ones of an ended training are among them.",
            says_zh="查看哪些进程占用了内存，其中是否有已结束训练留下的旧进程。",
            command="ps -eo rss,pid,user,etime,args --sort=-rss | head -15",
        ),
        Remedy(
            id="test-memory",
            says="Read which memory module or processor it was, take the host out of the job, and exchange what fails again.",
            says_zh="查看是哪条内存或哪个处理器出错，把该主机移出任务；再次出错就更换。",
            command="sudo ras-mc-ctl --errors; dmesg -T | grep -E 'Hardware Error|EDAC|Memory failure'",
        ),
        Remedy(
            id="overcommit",
            says="Let the kernel promise more than it has, as it does by default: trainings reserve far more than they touch.",
            says_zh="让内核按默认方式超额承诺内存：训练保留的地址远多于真正使用的。",
            command="sudo sysctl -w vm.overcommit_memory=0",
            verify="sysctl vm.overcommit_memory; grep -i commit /proc/meminfo",
        ),
        Remedy(
            id="find-the-killer",
            says="Ask the kernel and the scheduler who sent it (sacct -j JOB in Slurm, kubectl describe pod in Kubernetes).",
            says_zh="向内核和调度器查明是谁发出的（Slurm 用 sacct -j JOB，Kubernetes 用 kubectl describe pod）。",
            command="dmesg -T | grep -iE 'killed process|oom-kill'; cat /sys/fs/cgroup/memory.events",
        ),
        Remedy(
            id="watch-memory",
            says=(
                "Run again and watch the memory of the host: growth over the steps points to the data set or to metrics kept in lists, a peak at "
                "the start to every rank loading the whole model."
            ),
            says_zh="重新运行并观察主机内存：随步数增长说明问题在数据集或保存在列表里的指标，启动时的尖峰说明每个进程都在加载整个模型。",
            command="unhang run -- COMMAND",
        ),
        Remedy(
            id="ray-threshold",
            says=(
                "Give each task more memory (fewer in parallel, @ray.remote(memory=...)); raise Ray's threshold only where the node has memory "
                "to spare."
            ),
            says_zh="给每个任务更多内存（减少并行数，@ray.remote(memory=...)）；只有节点确实有富余内存时才提高 Ray 的阈值。",
            env={"RAY_memory_usage_threshold": "0.98"},
            verify="grep -h 'MemoryMonitor initialized' /tmp/ray/session_latest/logs/raylet.out",
        ),
    ),
    leads_to=("rank-exception", "dataloader-deadlock", "loader-worker-died", "premature-exit"),
    mistaken_for={
        "ended-by-scheduler": "a time limit or a preemption says so in one line; the processes are killed after it",
        "launcher-teardown": "a launcher that gives up waiting sends SIGKILL too, after its SIGTERM; that is a consequence",
        "gpu-oom": "GPU memory raises torch.OutOfMemoryError in Python and kills nobody",
        "peer-lost": "what the other ranks print is only the loss of this one",
    },
    sources=(
        "https://docs.kernel.org/admin-guide/cgroup-v2.html",
        "https://man7.org/linux/man-pages/man7/signal.7.html",
        "https://docs.ray.io/en/latest/ray-core/scheduling/ray-oom-prevention.html",
        "https://slurm.schedmd.com/sbatch.html",
    ),
    hits=(
        "EE1013: [PID: 812] 2026-01-08-11:02:13.441.302 Failed to allocate 4096 bytes host memory for Runtime.",
        "    self.pid = os.fork()\n               ^^^^^^^^^\nOSError: [Errno 12] Cannot allocate memory",
        "[88123.41] Memory cgroup out of memory: Killed process 4720 (python3) total-vm:91234567kB, anon-rss:65012345kB, file-rss:1024kB",
        "kernel: Out of memory: Kill process 4720 (python) score 901 or sacrifice child",
        (
            "[88123.40] "
            "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=job_4711,mems_allowed=0-1,oom_memcg=/slurm/uid_1000/job_4711,task_memcg=/slurm/uid_1000/job_4711/step_0,task=pt_main_thread,pid=4720,uid=1000"
        ),
        "[88123.55] oom_reaper: reaped process 4720 (python3), now anon-rss:0kB, file-rss:0kB, shmem-rss:0kB",
        (
            "slurmstepd: error: Detected 1 oom-kill event(s) in StepId=4711.0 cgroup. Some of your processes may have been killed by the cgroup "
            "out-of-memory handler."
        ),
        "slurmstepd: error: Detected 2 oom_kill events in StepId=4711.batch. Some of the step tasks have been OOM Killed.",
        "srun: error: node7: tasks 0-2: Out Of Memory",
        "slurmstepd: error: Step 4711.0 exceeded memory limit (68719480 > 67108864), being killed",
        "TERM_MEMLIMIT: job killed after reaching LSF memory usage limit.",
        "=>> PBS: job killed: mem 137438953472b exceeded limit 68719476736b",
        "      Reason:       OOMKilled",
        "trainer-3   0/1     OOMKilled   2 (40s ago)   11m",
        "Killed",
        '"lastState": {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}',
        "Message: The node was low on resource: memory. Container trainer was using 61234Mi",
        "ray.exceptions.OutOfMemoryError: Task was killed due to the node running low on memory.",
        "(raylet) 2 worker(s) were killed due to the node running low on memory.",
        (
            "(raylet) [2026-11-03 10:00:01,117 E 812 812] (raylet) node_manager.cc:3069: 1 Workers (tasks / actors) killed due to memory "
            "pressure (OOM), 0 Workers crashed due to other reasons at node (ID: 51e4, IP: 10.0.0.7) over the last time period."
        ),
        "(raylet) node_manager.cc:2963: System memory low at node with IP 10.0.0.7. Used memory (63.1GB) / total capacity (64.0GB) exceeds threshold",
        (
            "[rank2]: RuntimeError: [enforce fail at alloc_cpu.cpp:117] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to "
            "allocate 17179869184 bytes. Error code 12 (Cannot allocate memory)"
        ),
        "RuntimeError: One of the subprocesses has abruptly died during map operation.To debug the error, disable multiprocessing.",
        (
            "E1103 09:12:44.120000 4711 torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: -9) local_rank: 1 (pid: 4720) "
            "of binary: /opt/venv/bin/python3"
        ),
        "ERROR:torch.distributed.elastic.multiprocessing.api:failed (exitcode: -9) local_rank: 4 (pid: 5120) of binary: /usr/bin/python3",
        "  exitcode  : -9 (pid: 4720)  (SIGKILL)",
        "  traceback : Signal 9 (SIGKILL) received by PID 4720",
        "[2026-11-03 10:00:01,000] [ERROR] [launch.py:341:sigkill_handler] ['python', 'train.py', '--local_rank=3'] exits with return code = -9",
        "[2026-11-03 10:00:01,000] [INFO] [launch.py:347:main] Process 5100 exits with return code = -9",
        "subprocess.CalledProcessError: Command '['/opt/venv/bin/python', 'train.py']' died with <Signals.SIGKILL: 9>.",
        "torch.multiprocessing.spawn.ProcessExitedException: process 1 terminated with signal SIGKILL",
        "[rank: 1] Child process with PID 4720 terminated with code -9. Forcefully terminating all other processes to avoid zombies",
        "RuntimeError: DataLoader worker (pid 991) is killed by signal: Killed. ",
        "mpirun noticed that process rank 1 with PID 4720 on node node7 exited on signal 9 (Killed).",
        "=   KILLED BY SIGNAL: 9 (Killed)",
        "srun: error: node7: task 3: Killed",
        "/var/spool/slurmd/job04711/slurm_script: line 28:  8156 Killed                  python3 train.py --epochs 40",
        "command terminated with exit code 137",
        "[job7-n0-0] terminated with exit code (137). Reason [Error]. Message:",
        (
            "The actor is dead because its worker process has died. Worker exit type: SYSTEM_ERROR Worker exit detail: Worker exits unexpectedly. "
            "Worker exits with an exit code None. The worker may have exceeded K8s pod memory limits."
        ),
        "      Exit Code:    137",
        "[2026-11-03 10:00:01] Exit code: -9",
        "train.service: Main process exited, code=killed, status=9/KILL",
    ),
    near_misses=(
        "    buffer = mmap.mmap(-1, size)\nOSError: [Errno 12] Cannot allocate memory",
        (
            "E1103 09:12:44.120000 4711 torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: -15) local_rank: 1 (pid: 4720) "
            "of binary: python3"
        ),
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.",
        (
            "RuntimeError: DataLoader worker (pid 991) is killed by signal: Bus error. It is possible that dataloader's workers are out of "
            "shared memory."
        ),
        "Sending process 4720 closing signal SIGTERM",
        (
            "Worker exit detail: Worker unexpectedly exits with a connection error code 2. End of file. There are some potential root causes. "
            "(1) The process is killed by SIGKILL by OOM killer due to high memory usage."
        ),
        "(raylet) node_manager.cc:3069: 0 Workers (tasks / actors) killed due to memory pressure (OOM), 3 Workers crashed due to other reasons",
        "W1103 09:10:41 4711 api.py:862] Unable to shutdown process 4720 via Signals.SIGTERM, forcefully exiting via Signals.SIGKILL",
        '"State": {"Status": "exited", "OOMKilled": false, "ExitCode": 1}',
        "[sample] answer: in Kubernetes such a container is marked OOMKilled and started again",
        "Killed the old process group",
        "[2026-11-03 10:00:01 TP3] Scheduler watchdog timeout (self.watchdog_timeout=300, self.soft=False)\nKilled",
        "[2026-11-03 10:00:01] SIGQUIT received. signum=None, frame=None. It usually means one child failed.\nKilled",
        "slurmstepd: error: *** JOB 4711 ON node7 CANCELLED AT 2026-11-03T10:00:01 DUE TO TIME LIMIT ***",
        "[2026-11-03 10:00:01] HTTP status code 1370 from the metrics server",
    ),
    explain={
        "en": (
            "SIGKILL cannot be caught: the process is gone in the middle of an instruction and prints nothing. On training machines the sender "
            "is nearly always the kernel's OOM killer (host memory, not GPU memory) or the memory limit of a container or a job. The other ranks "
            "then lose their connection and print errors that are only consequences. The kernel log and the cgroup's memory.events say whether "
            "it was the OOM killer."
        ),
        "zh": (
            "SIGKILL 无法被捕获：进程在执行途中突然消失，什么也不会打印。在训练机器上，发出它的几乎总是内核的 OOM killer（主机内存，不是显存），"
            "或者容器、作业的内存限制。其他进程随后失去连接，打印出来的错误只是后果。内核日志和 cgroup 的 memory.events 能说明是不是 OOM killer "
            "干的。"
        ),
    },
)
