"""process-stuck: a rank is alive and makes no progress outside any collective."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from unhang.knowledge import collective_waits, text, waits, words
from unhang.knowledge.blocked_threads import children_waited_for, held_back, keeping
from unhang.knowledge.cause import STANDINGS, Cause, LogView, Signature, command
from unhang.knowledge.text import NOTHING, Text, joined
from unhang.model import Evidence, Finding, HostFinding, Remedy, Standing
from unhang.patterns import lazily

if TYPE_CHECKING:
    from unhang.facts.kernel_log import Event
    from unhang.facts.snapshot import Snapshot
    from unhang.records.incident import ThreadStack
    from unhang.records.incident_view import ChildView, IncidentView, RankView

_SLEEP = lazily(r"(?<![\w.])(?:time\.)?sleep\((?:(?P<seconds>\d+(?:\.\d+)?)\))?")
_NANOSLEEP = ("hrtimer_nanosleep", "do_nanosleep", "common_nsleep")
# Ranks and child processes that the evidence names.
_SHOWN = 3
_STATES = ("stopped", "uninterruptible", "kept", "gil", "repeats", "idle", "unknown")
_STACK = "cat /proc/{pid:pid}/stack"
_BLOCKED = "dmesg -T | grep -A 30 'blocked for more than'"
# A rank that was held up longer ago has found its end, or its time-out.
_RECENT_S = 1800
# hung_task_timeout_secs is 120. Where somebody lowered it, the kernel also tells of what only waited for a busy disk.
_LONG_S = 60


def _on_host(host: Snapshot) -> Iterable[HostFinding]:
    from unhang.facts import kernel_log

    log = host.get(kernel_log.SUBJECT)
    yield from _held_cpu(log.events if log is not None else ())
    hung = [e for e in log.events if e.kind == "hung-task"] if log is not None else []
    if not hung:
        return
    serious = [e for e in hung if (e.seconds is None or e.seconds >= _LONG_S) and e.last_age_s is not None and e.last_age_s < _RECENT_S]
    last = (serious or hung)[-1]
    for_s = Text(" for more than {s} s", "超过 {s} 秒").fill(s=last.seconds) if last.seconds is not None else NOTHING
    others = sum(e.count for e in hung) - last.count
    yield CAUSE.host_finding(
        area="kernel",
        severity="warning" if serious else "note",
        says=Text(
            "the kernel tells of tasks that hung in it: {process} ({pid}){for_s}, {times}{more}",
            "内核报告有任务卡在内核里：{process}（{pid}）{for_s}，{times}{more}",
        ).fill(
            process=str(last.process),
            pid=str(last.pid),
            for_s=for_s,
            times=Text(kernel_log.times(last), kernel_log.times_zh(last)),
            more=Text("; {n} more {reports} of others", "；另有 {n} 条关于其他进程的报告").fill(
                n=others, reports="report" if others == 1 else "reports"
            )
            if others
            else NOTHING,
        ),
        leads_to=Text(
            "mostly a file system or a driver that does not answer; a rank that waits for it cannot be ended, and its collectives time out",
            "多半是文件系统或驱动不响应；等待它的 rank 无法结束，它的集合通信会超时",
        ),
        evidence=tuple(Evidence(source="kernel log", text=e.text) for e in [*[e for e in hung if e is not last][-2:], last]),
        remedies=("look-at-io",),
        commands={"look-at-io": command(_STACK, pid=last.pid) if last.process_is_there else command(_BLOCKED)},
    )


def _held_cpu(events: Iterable[Event]) -> Iterable[HostFinding]:
    from unhang.facts import kernel_log

    locked = [e for e in events if e.kind == "soft-lockup"]
    for last in locked[-1:]:
        yield CAUSE.host_finding(
            area="kernel",
            severity="warning" if kernel_log.recent(last) else "note",
            says=Text(
                "a processor was held inside the kernel, last by {process} ({pid}) {ago}",
                "有处理器被占在内核里，最近一次是 {process}（{pid}），{ago}",
            ).fill(process=str(last.process), pid=str(last.pid), ago=Text(kernel_log.ago(last.last_age_s), kernel_log.ago_zh(last.last_age_s))),
            leads_to=Text(
                "a rank that is held there cannot be ended, and its collectives time out; a driver loops, or a virtual machine was paused",
                "卡在那里的 rank 无法结束，它的集合通信会超时；可能是驱动死循环，或虚拟机曾被暂停",
            ),
            evidence=tuple(Evidence(source="kernel log", text=e.text) for e in locked[-3:]),
            remedies=("look-at-io",),
            commands={"look-at-io": command("dmesg -T | grep -A 30 'soft lockup'")},
        )


def _in_run(picture: IncidentView) -> Finding | None:
    found = [(r, s) for r, s in held_back(picture) if s in _STATES]
    if not found:
        return None
    state = min((s for _, s in found), key=_STATES.index)
    chosen = [r for r, s in found if s == state]
    first, numbers = chosen[0], [r.number for r in chosen]
    standing, doing, remedies = _DESCRIBE[state](picture, first)
    started = next((t.started for t in keeping(first)), None)
    children = children_waited_for(first) if state in ("idle", "unknown") else ()
    return CAUSE.finding(
        standing=standing,
        says=Text("{who} {are} {doing}{at}{since}", "{who} {doing}{at}{since}").fill(
            who=text.ranks(numbers),
            are=words.verb(numbers, "is", "are"),
            doing=doing,
            at=text.at(picture, first),
            since=text.stall(picture) + text.while_waiting(picture) + (_of_child(picture, children[0]) if children else NOTHING),
        ),
        ranks=tuple(numbers),
        hosts=words.hosts(picture, numbers),
        where=picture.where(first) if started is None else picture.place(started),
        evidence=(
            *(words.stated(first.record.stacks or "", words.of_rank(first.number, _thread(picture, t))) for t in keeping(first)[:_SHOWN]),
            *(words.child_evidence(picture, first, child) for child in children[:_SHOWN]),
            *(waits.evidence(picture, r.number, r.wait) for r in chosen[:_SHOWN] if waits.described(picture, r.wait)),
            *words.activity_evidence(picture, first),
            *words.stack_evidence(picture, first),
            *words.waiting_evidence(picture, at_most=1),
            *words.absence_evidence(picture, first),
        ),
        remedies=remedies,
        commands={
            **waits.commands(first.wait),
            "continue-it": command("kill -CONT {pid:pid}", pid=first.record.pid),
            "look-inside": command("py-spy dump --native --pid {pid:pid}", pid=first.record.pid),
            "look-at-io": command(_STACK, pid=first.record.pid),
            **waits.longer(picture, lasts_s=_sleep_s(first))[1],
        },
    )


def _of_child(picture: IncidentView, child: ChildView) -> Text:
    """What the process does, or how it ended, that the rank waits for."""
    stands = Text("stands at {at}", "停在 {at}").fill(at=picture.place(child.place)) if child.place is not None else None
    doing = stands or words.ended(child.record.exitcode)
    return Text("; its child process {pid} {doing}", "；它的子进程 {pid} {doing}").fill(pid=child.record.pid, doing=doing)


def _in_logs(view: LogView) -> Finding | None:
    """torch's heartbeat also fails while a rank that has timed out dumps and aborts: then it is a consequence."""
    waited = bool(view.timeouts) or bool(view.hits_of("collective-timeout"))
    told = CAUSE.of_hits(tuple(h for h in view.hits_of(CAUSE.id) if not waited or h.signature not in _HEARTBEAT), view)
    seen = collective_waits.held(view, CAUSE, "stands", ("look-inside", "bound-the-wait"))
    found = [f for f in (told, seen) if f is not None]
    return min(found, key=lambda f: STANDINGS.index(f.standing), default=None)


def _stopped(picture: IncidentView, rank: RankView) -> tuple[Standing, Text, tuple[str, ...]]:
    traced = rank.activity is not None and rank.activity.state == "t"
    by_debugger = Text("stopped by a debugger (traced)", "被调试器暂停（traced）")
    return "established", by_debugger if traced else Text("stopped (SIGSTOP)", "被暂停（SIGSTOP）"), ("continue-it",)


def _uninterruptible(picture: IncidentView, rank: RankView) -> tuple[Standing, Text, tuple[str, ...]]:
    wchan = rank.activity.wchan if rank.activity else None
    doing = Text("in uninterruptible I/O (state D{wchan})", "处于不可中断的 I/O（状态 D{wchan}）")
    return "established", doing.fill(wchan=Text(", in {it}", "，在 {it} 中").fill(it=wchan) if wchan else NOTHING), ("look-at-io", "mount-soft")


def _gil(picture: IncidentView, rank: RankView) -> tuple[Standing, Text, tuple[str, ...]]:
    share = f"{rank.activity.tree_cpu_share:.0%} CPU" if rank.activity else "CPU"
    # At first its heartbeats may only be late.
    standing: Standing = "established" if rank.stacks is not None and picture.incident.kind == "hang" else "likely"
    doing = Text(
        "computing ({share}) without letting any Python thread run: a native call holds the GIL",
        "正在计算（{share}），但不让任何 Python 线程运行：某个原生调用占着 GIL",
    )
    return standing, doing.fill(share=share), (waits.SET_A_LIMIT.id, "look-inside", "release-the-gil")


def _kept(picture: IncidentView, rank: RankView) -> tuple[Standing, Text, tuple[str, ...]]:
    threads = joined([_thread(picture, t) for t in keeping(rank)[:_SHOWN]], Text(", ", "、"))
    doing = Text("done with its script, and kept alive by its {threads},", "脚本已执行完，但进程仍被{threads}占着，无法结束")
    return "established", doing.fill(threads=threads), ("end-the-thread",)


def _thread(picture: IncidentView, thread: ThreadStack) -> Text:
    started = Text(" (started at {at})", "（启动于 {at}）").fill(at=picture.place(thread.started)) if thread.started is not None else NOTHING
    return Text("thread {name}{started}", "线程 {name}{started}").fill(name=thread.name, started=started)


def _repeats(picture: IncidentView, rank: RankView) -> tuple[Standing, Text, tuple[str, ...]]:
    doing = Text("executing a `while True` loop (no statement in it leaves it)", "在执行 `while True` 循环（循环体内没有任何语句会离开它）")
    return "likely", doing, (waits.SET_A_LIMIT.id, waits.longer(picture)[0])


def _sleeps(rank: RankView) -> bool:
    """Whether it waits for time to pass. time.sleep has no frame of its own: the line that calls it is the innermost one."""
    in_kernel = rank.activity is not None and (rank.activity.wchan or "").startswith(_NANOSLEEP)
    return (
        in_kernel or (rank.wait is not None and rank.wait.kind == "sleep") or (bool(rank.frames) and _SLEEP.search(rank.frames[-1].code) is not None)
    )


def _sleep_s(rank: RankView) -> float:
    """How long its line says that it sleeps, 0 if that cannot be told."""
    found = _SLEEP.search(rank.frames[-1].code) if rank.frames else None
    return float(found["seconds"] or 0) if found else 0.0


def _idle(picture: IncidentView, rank: RankView) -> tuple[Standing, Text, tuple[str, ...]]:
    certain = bool(rank.frames) and (picture.front is not None or len(picture.ranks) == 1)
    standing: Standing = "established" if certain and rank.wait is not None and not rank.wait.ends else "likely"
    # Of several ranks one sentence tells what all of them wait in.
    alike = {waits.described(picture, r.wait) for r, state in held_back(picture) if state == "idle"} == {doing := waits.described(picture, rank.wait)}
    if rank.wait is not None and doing and alike:
        return standing, doing + Text(",", ""), waits.remedies(rank.wait)
    if _sleeps(rank):
        asleep = Text("alive, outside any collective, asleep (time.sleep)", "还活着，在集合通信之外睡眠（time.sleep）")
        return "likely", asleep, (waits.longer(picture, lasts_s=_sleep_s(rank))[0], "bound-the-wait")
    idle = Text("alive, outside any collective, without using any CPU", "还活着，在集合通信之外，不占用 CPU")
    return standing, idle, ("look-inside", "bound-the-wait")


def _unknown(picture: IncidentView, rank: RankView) -> tuple[Standing, Text, tuple[str, ...]]:
    if _sleeps(rank):
        return _idle(picture, rank)
    outside = Text("outside any collective (whether it executes is not known)", "在集合通信之外（是否在执行未知）")
    return "likely" if rank.frames else "possible", outside, ("look-inside", "bound-the-wait")


_DESCRIBE = {
    "stopped": _stopped,
    "uninterruptible": _uninterruptible,
    "kept": _kept,
    "gil": _gil,
    "repeats": _repeats,
    "idle": _idle,
    "unknown": _unknown,
}

_HEARTBEAT = (
    # torch 2.3 and later; other accelerators' process groups (ECCL, CNCL, XCCL) were made after it.
    Signature(
        needle="'s watchdog got stuck for",
        pattern=r"ProcessGroup\w+'s watchdog got stuck for (?P<seconds>\d+) seconds",
        standing="possible",
        says="a CUDA or NCCL call, or a thread that holds the GIL, has blocked a rank for {seconds} s (torch's watchdog made no progress)",
        says_zh="某个 CUDA 或 NCCL 调用，或占着 GIL 的线程，已使一个 rank 阻塞 {seconds} 秒（torch 的 watchdog 没有进展）",
        remedies=("look-inside", "longer-heartbeat"),
    ),
    Signature(
        needle="Heartbeat monitor timed out!",
        standing="possible",
        says="a CUDA or NCCL call, or a thread that holds the GIL, has blocked a rank (torch's watchdog made no progress)",
        says_zh="某个 CUDA 或 NCCL 调用，或占着 GIL 的线程，使一个 rank 阻塞（torch 的 watchdog 没有进展）",
        remedies=("look-inside", "longer-heartbeat"),
    ),
)

CAUSE = Cause(
    id="process-stuck",
    role="root",
    title="A rank is alive and stands still outside any collective",
    title_zh="某个进程还活着，但在集合通信之外停住不动",
    what=(
        "One rank makes no progress: it is stopped, blocked in a system call, or inside a native call that lets no Python thread run. The others "
        "wait for it in their next collective."
    ),
    why=(
        "SIGSTOP (a shell's Ctrl-Z, a debugger, a container that was paused), a file system that does not answer (state D), a lock or a socket "
        "without a timeout, a native extension that holds the GIL."
    ),
    signatures=(
        *_HEARTBEAT,
        Signature(
            needle=" blocked for more than ",
            pattern=r"INFO: task (?P<name>\S{1,20}):(?P<pid>\d+) blocked for more than (?P<seconds>\d+) seconds",
            standing="likely",
            says="the kernel: process {pid} ({name}) has been in uninterruptible I/O for more than {seconds} s",
            says_zh="内核：进程 {pid}（{name}）处于不可中断的 I/O 已超过 {seconds} 秒",
            remedies=("look-at-io", "mount-soft"),
        ),
        Signature(
            needle="soft lockup - CPU#",
            pattern=r"soft lockup - CPU#(?P<cpu>\d+) stuck for (?P<seconds>\d+)s! \[(?P<name>[^\]:]{1,20}):(?P<pid>\d+)\]",
            standing="likely",
            says="the kernel: process {pid} ({name}) has held CPU {cpu} inside the kernel for {seconds} s",
            says_zh="内核：进程 {pid}（{name}）在内核中占住 CPU {cpu} 已有 {seconds} 秒",
            remedies=("look-at-io",),
        ),
    ),
    in_run=_in_run,
    in_logs=_in_logs,
    on_host=_on_host,
    remedies=(
        *waits.REMEDIES,
        Remedy(
            id="continue-it",
            says=(
                "Find who stopped it (a debugger, Ctrl-Z, docker pause, a job scheduler that suspends jobs) and let it go on; unhang run "
                "--on-failure report leaves it standing."
            ),
            says_zh=(
                "查明是谁让它停住的（调试器、Ctrl-Z、docker pause、会挂起作业的调度器），让它继续运行；unhang run --on-failure report 会保留现场。"
            ),
            command="kill -CONT PID",
        ),
        Remedy(
            id="look-at-io",
            says="See which kernel function it waits in (usually a network file system); unhang run --on-failure report leaves it standing.",
            says_zh="查看它在等待哪个内核函数（通常是网络文件系统）；unhang run --on-failure report 会保留现场。",
            command="cat /proc/PID/stack",
        ),
        Remedy(
            id="mount-soft",
            says="Keep data and checkpoints off a hard-mounted NFS, or mount it with soft,timeo=600,retrans=3 to get an error instead.",
            says_zh="不要把数据和检查点放在以 hard 方式挂载的 NFS 上，或用 soft,timeo=600,retrans=3 挂载，让它返回错误而不是一直等待。",
        ),
        Remedy(
            id="look-inside",
            says="See the native stack of the process while it stands; unhang run --on-failure report leaves it standing.",
            says_zh="在进程停住时查看它的本地（C/C++）调用栈；unhang run --on-failure report 会保留现场。",
            command="py-spy dump --native --pid PID",
        ),
        waits.SET_A_LIMIT,
        waits.WAIT_LONGER,
        waits.MORE_TIME,
        Remedy(
            id="release-the-gil",
            says="Move the native call to a child process, or use a version of the library that releases the GIL.",
            says_zh="把这个本地调用移到子进程里，或换用会释放 GIL 的版本。",
        ),
        Remedy(
            id="end-the-thread",
            says="Tell the thread to end (an Event that it checks) and join it before the script ends, or start it with daemon=True.",
            says_zh="在脚本结束前通知该线程退出（让它检查一个 Event）并 join 它，或以 daemon=True 启动它。",
        ),
        Remedy(
            id="bound-the-wait",
            says="Give the lock, queue, socket or subprocess that the named line waits for a timeout, so that it raises.",
            says_zh="给所指代码行等待的锁、队列、套接字或子进程设置超时，让它抛出异常。",
        ),
        Remedy(
            id="longer-heartbeat",
            says="If the call is meant to take this long (a first compilation, a huge checkpoint), let torch's watchdog wait longer.",
            says_zh="如果这个调用本来就需要这么久（首次编译、巨大的检查点），让 torch 的 watchdog 等待更久。",
            env={"TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC": "3600"},
            verify="TORCH_CPP_LOG_LEVEL=INFO COMMAND 2>&1 | grep -o 'TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC: [0-9]*' | sort | uniq -c",
        ),
    ),
    mistaken_for={
        "straggler-timeout": "a straggler uses CPU or wakes up; a stuck rank does neither, or answers nothing",
        "dataloader-deadlock": "there the stack passes through torch/utils/data",
        "collective-mismatch": "there every rank is inside some collective",
        "collective-timeout": "after a timeout torch's heartbeat fails too, because the rank is busy dumping and aborting",
    },
    sources=(
        "https://man7.org/linux/man-pages/man5/proc_pid_stat.5.html",
        "https://man7.org/linux/man-pages/man5/nfs.5.html",
        "https://github.com/benfred/py-spy",
    ),
    hits=(
        (
            "[rank3]:[E1103 10:00:01.100 ProcessGroupNCCL.cpp:1484] [PG ID 0 PG GUID 0(default_pg) Rank 3] ProcessGroupNCCL's watchdog got stuck "
            "for 480 seconds without making progress in monitoring enqueued collectives."
        ),
        "[rank3]:[F ProcessGroupNCCL.cpp:1185] [PG 0 Rank 3] Heartbeat monitor timed out! Process will be terminated after dumping debug info.",
        "[88123.41] INFO: task python3:4720 blocked for more than 120 seconds.",
        "Nov  3 10:00:01 node7 kernel: watchdog: BUG: soft lockup - CPU#12 stuck for 22s! [pt_main_thread:4720]",
    ),
    near_misses=(
        "[rank0]: ProcessGroupNCCL environments: NCCL version: 2.26.2, TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC: 480",
        "requests blocked for more than 3 retries",
        "[88123.41] rcu: INFO: rcu_sched detected expedited stalls on CPUs/tasks",
        "[rank1]:[E ProcessGroupNCCL.cpp:1182] [Rank 1] NCCL watchdog thread terminated with exception: CUDA error: unspecified launch failure",
        "broker: heartbeat monitor timed out, switching state to candidate",
    ),
    explain={
        "en": (
            "One rank is alive but does nothing, and it is not inside a collective. The other ranks are healthy: they wait for it, and it is "
            "they that will print a timeout in the end. A stopped process (state T) was sent SIGSTOP or is held by a debugger; state D means "
            "that the kernel waits for a disk or a network file system; high CPU use without any answer means that a native call holds Python's "
            "global lock. The line named in the verdict is where that rank stands."
        ),
        "zh": (
            "有一个进程还活着，却什么也不做，而且不在任何集合通信里面。其他进程是健康的：它们在等它，最后打印超时的也是它们。状态 T 表示进程收到"
            "了 SIGSTOP 或被调试器停住；状态 D 表示内核在等磁盘或网络文件系统；CPU 占用很高却没有任何应答，说明某个本地（C/C++）调用一直握着 "
            "Python 的全局锁。结论里给出的代码行就是它停住的地方。"
        ),
    },
)
