"""limits: a limit of the system was reached: open files, locked memory, processes, mappings."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from unhang.knowledge.cause import cause, command
from unhang.knowledge.text import Text
from unhang.model import Evidence, HostFinding

if TYPE_CHECKING:
    from unhang.facts.container import Kind
    from unhang.facts.limits import Limits
    from unhang.facts.snapshot import Snapshot


_MIB = 1024 * 1024
# Measured with torch 2.13: one rank with Gloo and a data loader of four workers has 46 files open, one that has imported torch 10 to 20. CUDA keeps
# some 30 for each GPU that it sees, NCCL several for each peer.
_FILES_OF_A_RANK, _FILES_TO_SPARE = 64, 256
_FILES_WITH_GPUS, _FILES_TO_SPARE_WITH_GPUS = 256, 512
_USUAL_FILES = 1024
_MANY_CPUS = 32
# Main thread, autograd, Gloo or NCCL, watchdog, heartbeat, CUDA: without the threads that compute.
_THREADS_OF_A_RANK = 64
# One buffer of NCCL is 4 MiB, and each connection of each channel registers some.
_LOCKED_BYTES = 64 * _MIB

# What a rank on the CPU maps with a model of some size; usually there is no limit at all.
_ADDRESSES_OF_A_RANK = 16 << 30


def _on_host(host: Snapshot) -> Iterable[HostFinding]:
    from unhang.facts import container, limits, numa

    seen = host.get(limits.SUBJECT)
    if seen is None:
        return
    nodes = host.get(numa.SUBJECT)
    gpus = len(nodes.gpus) if nodes is not None else 0
    kind = container.kind(host)
    yield from _open_files(seen, gpus, kind)
    yield from _locked_memory(seen, gpus, kind)
    yield from _processes(seen, gpus, kind)
    if gpus and seen.cpus is not None and seen.cpus < 2:
        quota = seen.cpu_quota is not None and seen.cpu_quota < (seen.cpus_allowed or 2)
        by = Text("by the quota of the control group", "受控制组配额限制") if quota else Text("by its affinity", "受 CPU 亲和性限制")
        yield CAUSE.host_finding(
            area="limits",
            severity="warning",
            says=Text("what is started here has {n} of {all} CPUs, {by}", "从这里启动的程序只能用 {all} 个 CPU 中的 {n} 个，{by}").fill(
                n=f"{seen.cpus:g}", all=str(seen.cpus_online), by=by
            ),
            leads_to=Text(
                "ranks, NCCL's helper threads and data loader workers wait for each other: GPUs idle, and late ranks look like hanging ones",
                "rank、NCCL 的辅助线程和 DataLoader worker 互相等待：GPU 空闲，迟到的 rank 看上去像挂起",
            ),
            evidence=(Evidence(source="/proc/self/status", text=f"Cpus_allowed_list has {seen.cpus_allowed}; quota {seen.cpu_quota or 'none'}"),),
            remedies=("more-cpus",),
        )
    yield from _others(seen, gpus)


def _open_files(seen: Limits, gpus: int, kind: Kind) -> Iterable[HostFinding]:
    limit = seen.open_files
    if limit is None or limit.soft is None:
        return
    needs, spare = (_FILES_WITH_GPUS, _FILES_TO_SPARE_WITH_GPUS) if gpus else (_FILES_OF_A_RANK, _FILES_TO_SPARE)
    many = gpus and (seen.cpus_allowed or 0) >= _MANY_CPUS
    if limit.soft > (_USUAL_FILES if many else spare):
        return
    raised = 65536 if limit.hard is None else min(65536, limit.hard)
    commands = {
        "docker": command("docker run --ulimit nofile=65536:65536 IMAGE"),
        "podman": command("podman run --ulimit nofile=65536:65536 IMAGE"),
        "systemd": command("sudo systemctl edit UNIT   # [Service] LimitNOFILE=65536"),
    }
    own = command("echo '* - nofile 65536' | sudo tee /etc/security/limits.d/90-nofile.conf   # then log in again")
    yield CAUSE.host_finding(
        area="limits",
        severity="error" if limit.soft < needs else "warning" if limit.soft <= spare else "note",
        says=Text(
            "{limit} open files for each process (ulimit -n); a rank {on}needs about {needs}, and one more for each tensor that a loader worker has "
            "sent and for each socket",
            "每个进程最多打开 {limit} 个文件（ulimit -n）；{on} rank 大约需要 {needs} 个，DataLoader worker 每送来一个张量、每个套接字还要再占一个",
        ).fill(limit=limit.soft, on=Text("on a GPU ", "GPU 上的一个") if gpus else Text("", "一个"), needs=needs),
        leads_to=Text(
            "'Too many open files', from the start or as soon as enough workers and peers are there",
            "一开始，或 worker 与对端够多时，就报 'Too many open files'",
        ),
        evidence=(_of_process("Max open files", limit.soft, limit.hard),),
        remedies=("open-files", "file-system-sharing"),
        commands={"open-files": command("ulimit -n {n:number}", n=raised) if raised > limit.soft else commands.get(kind, own)},
    )


def _locked_memory(seen: Limits, gpus: int, kind: Kind) -> Iterable[HostFinding]:
    from unhang.facts.units import size

    limit = seen.memlock_bytes
    if limit is None or limit.soft is None or seen.lifts_memlock is not False or not seen.infiniband:
        return
    small = limit.soft < _LOCKED_BYTES
    commands = {
        "docker": command("docker run --ulimit memlock=-1:-1 IMAGE"),
        "podman": command("podman run --ulimit memlock=-1:-1 IMAGE"),
        "slurm": command("sudo systemctl edit slurmd   # [Service] LimitMEMLOCK=infinity"),
        "systemd": command("sudo systemctl edit UNIT   # [Service] LimitMEMLOCK=infinity"),
    }
    own = command("echo '* - memlock unlimited' | sudo tee /etc/security/limits.d/90-rdma.conf   # then log in again")
    yield CAUSE.host_finding(
        area="limits",
        severity="note" if not gpus else "error" if small else "warning",
        says=Text(
            "a process may lock {size} of memory (ulimit -l), and there are RDMA adapters ({names})",
            "一个进程最多锁定 {size} 内存（ulimit -l），而本机有 RDMA 网卡（{names}）",
        ).fill(size=size(limit.soft), names=", ".join(seen.infiniband[:4])),
        leads_to=Text(
            "NCCL over InfiniBand or RoCE fails at ibv_reg_mr or ibv_create_cq with 'Cannot allocate memory'",
            "经 InfiniBand 或 RoCE 的 NCCL 在 ibv_reg_mr 或 ibv_create_cq 处失败：'Cannot allocate memory'",
        ),
        evidence=(_of_process("Max locked memory", limit.soft, limit.hard), Evidence(source="/proc/self/status", text="CapEff lacks CAP_IPC_LOCK")),
        remedies=("locked-memory",),
        commands={"locked-memory": command("ulimit -l unlimited") if limit.hard is None else commands.get(kind, own)},
    )


def _processes(seen: Limits, gpus: int, kind: Kind) -> Iterable[HostFinding]:
    needs = max(1, gpus) * _THREADS_OF_A_RANK + (seen.cpus_allowed or 0)
    leads_to = Text(
        "{who} about {needs} threads, data loader workers not counted: \"can't start new thread\" or 'Resource temporarily unavailable'",
        "{who}大约启动 {needs} 个线程，不算 DataLoader worker：\"can't start new thread\" 或 'Resource temporarily unavailable'",
    ).fill(who=Text("the ranks of all GPUs start", "所有 GPU 的 rank 共") if gpus > 1 else Text("a rank starts", "一个 rank "), needs=needs)
    group = seen.pids
    if group is not None and group.current is not None and group.limit - group.current < needs:
        left = max(0, group.limit - group.current)
        commands = {
            "docker": command("docker update --pids-limit=-1 CONTAINER"),
            "podman": command("podman update --pids-limit=-1 CONTAINER"),
            "kubernetes": command("kubectl proxy & curl -s localhost:8001/api/v1/nodes/NODE/proxy/configz | grep -o 'podPidsLimit[^,]*'"),
            "systemd": command("sudo systemctl set-property UNIT TasksMax=infinity"),
        }
        yield CAUSE.host_finding(
            area="limits",
            severity="error" if left < _THREADS_OF_A_RANK else "warning",
            says=Text(
                "the control group has {current} of {limit} processes and threads: {left} are left",
                "控制组的进程和线程已用 {current} / {limit}：还剩 {left}",
            ).fill(current=group.current, limit=group.limit, left=left),
            leads_to=leads_to,
            evidence=(Evidence(source=f"{group.directory}/pids.max", text=f"{group.limit}; pids.current {group.current}"),),
            remedies=("pids-limit", "fewer-threads"),
            commands={"pids-limit": commands.get(kind, command("echo max | sudo tee {group:path}/pids.max", group=group.directory))},
        )
    limit = seen.processes
    if limit is None or limit.soft is None or seen.user_threads is None or seen.lifts_processes is not False:
        return
    left = max(0, limit.soft - seen.user_threads)
    if left < needs:
        can = limit.hard is None or limit.hard > limit.soft
        yield CAUSE.host_finding(
            area="limits",
            severity="error" if left < _THREADS_OF_A_RANK else "warning",
            says=Text(
                "this user has {threads} of {limit} processes and threads (ulimit -u): {left} are left",
                "该用户的进程和线程已用 {threads} / {limit}（ulimit -u）：还剩 {left}",
            ).fill(threads=seen.user_threads, limit=limit.soft, left=left),
            leads_to=leads_to,
            evidence=(_of_process("Max processes", limit.soft, limit.hard),),
            remedies=("processes", "fewer-threads"),
            commands={"processes": command("ulimit -u {n:name}", n=limit.hard or "unlimited")} if can else None,
        )


def _others(seen: Limits, gpus: int) -> Iterable[HostFinding]:
    from unhang.facts.units import size

    most = min((n for n in (seen.pid_max, seen.threads_max) if n is not None), default=None)
    if most is not None and seen.threads is not None and most - seen.threads < most // 10:
        yield CAUSE.host_finding(
            area="limits",
            severity="error" if most - seen.threads < _THREADS_OF_A_RANK else "warning",
            says=Text("the machine has {threads} of at most {most} processes and threads", "本机的进程和线程已有 {threads}，上限 {most}").fill(
                threads=seen.threads, most=most
            ),
            leads_to=Text(
                "no user can start another process: 'fork: Resource temporarily unavailable'",
                "任何用户都无法再启动进程：'fork: Resource temporarily unavailable'",
            ),
            evidence=(Evidence(source="/proc/sys/kernel/pid_max", text=f"{seen.pid_max}; threads-max {seen.threads_max}"),),
            remedies=("kernel-processes",),
        )
    if seen.file_max and seen.open_files_of_all is not None and seen.file_max - seen.open_files_of_all < seen.file_max // 20:
        yield CAUSE.host_finding(
            area="limits",
            severity="error",
            says=Text("the machine has {files} of at most {most} files open", "本机已打开 {files} 个文件，上限 {most}").fill(
                files=seen.open_files_of_all, most=seen.file_max
            ),
            leads_to=Text("'Too many open files in system', in any process", "任何进程都会报 'Too many open files in system'"),
            evidence=(Evidence(source="/proc/sys/fs/file-nr", text=f"{seen.open_files_of_all} 0 {seen.file_max}"),),
            remedies=("kernel-files",),
        )
    space = seen.address_space_bytes
    if space is not None and space.soft is not None and (gpus or space.soft < _ADDRESSES_OF_A_RANK):
        reserves = Text(
            "CUDA reserves addresses for the memory of the host and of all GPUs at once: its start fails with 'out of memory'",
            "CUDA 一次为主机内存和所有 GPU 的显存预留地址：启动时报 'out of memory'",
        )
        maps = Text(
            "torch and its libraries map gigabytes, and each thread and loader worker more: 'Cannot allocate memory' while memory is free",
            "torch 及其依赖库要映射数 GB 地址，每个线程和 DataLoader worker 还要更多：内存有空闲却报 'Cannot allocate memory'",
        )
        yield CAUSE.host_finding(
            area="limits",
            severity="warning",
            says=Text(
                f"a process may have {size(space.soft)} of addresses (ulimit -v)", f"一个进程最多使用 {size(space.soft)} 地址空间（ulimit -v）"
            ),
            leads_to=reserves if gpus else maps,
            evidence=(_of_process("Max address space", space.soft, space.hard),),
            remedies=("address-space",),
        )
    if (seen.ptrace_scope or 0) >= 2 and seen.lifts_ptrace is False:
        yield CAUSE.host_finding(
            area="limits",
            severity="note",
            says=Text(
                f"no process may be read from outside (kernel.yama.ptrace_scope is {seen.ptrace_scope})",
                f"不能从外部读取任何进程（kernel.yama.ptrace_scope 为 {seen.ptrace_scope}）",
            ),
            leads_to=Text(
                "the stacks of a rank that is stopped or holds the GIL cannot be taken: a hang is told with less evidence",
                "无法采集被暂停或占着 GIL 的 rank 的调用栈：挂起时证据较少",
            ),
            evidence=(Evidence(source="/proc/sys/kernel/yama/ptrace_scope", text=str(seen.ptrace_scope)),),
            remedies=("ptrace-scope",),
        )


def _of_process(name: str, soft: int, hard: int | None) -> Evidence:
    return Evidence(source="/proc/self/limits", text=f"{name}: soft {soft}, hard {'unlimited' if hard is None else hard}")


CAUSE = cause("limits", on_host=_on_host)
