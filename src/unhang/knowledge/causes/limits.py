"""limits: a limit of the system was reached: open files, locked memory, processes, mappings.

Long because it holds one judgement of a machine for each limit, beside the lines in which each program tells that it was reached.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from unhang.knowledge.cause import Cause, Signature, command
from unhang.knowledge.text import Text
from unhang.model import Evidence, HostFinding, Remedy, Standing

if TYPE_CHECKING:
    from unhang.facts.container import Kind
    from unhang.facts.limits import Limits
    from unhang.facts.snapshot import Snapshot

_FILES = ("open-files", "file-system-sharing", "fewer-sockets")
_LOADER_FILES = ("open-files", "file-system-sharing")
_MEMLOCK = ("locked-memory", "adapter-limits")
_PROCESSES = ("processes", "fewer-threads")
_UNAVAILABLE = "Resource temporarily unavailable"
_THREAD, _PROCESS = ("thread", "线程"), ("process", "进程")
_NOT_STARTED: tuple[tuple[str, str, Standing, tuple[str, str]], ...] = (
    (_UNAVAILABLE, rf"(?:pthread_create|[Tt]hread creation|blas_thread_init)[^\n]{{0,160}}?{_UNAVAILABLE}", "established", _THREAD),
    (_UNAVAILABLE, rf"fork: (?:retry: )?{_UNAVAILABLE}|fork failed[^\n]{{0,60}}{_UNAVAILABLE}", "established", _PROCESS),
    (f"[Errno 11] {_UNAVAILABLE}", rf"BlockingIOError: \[Errno 11\] {_UNAVAILABLE}", "established", _PROCESS),
    (_UNAVAILABLE, rf"(?:what\(\): +|thread: ){_UNAVAILABLE}", "likely", _THREAD),
    ("can't start new thread", "", "likely", _THREAD),
    ("Thread creation via pthread_create() failed", "", "established", _THREAD),
)
_NO_MEMORY = r"(?:Cannot allocate memory|ENOMEM)"

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


CAUSE = Cause(
    id="limits",
    role="root",
    title="A limit of the system was reached",
    title_zh="达到了系统资源上限",
    what="The kernel refused a file, a locked page, a process or a mapping, because this user, process or container has used up its share.",
    why=(
        "ulimit -n of 1024 with many data loader workers or sockets, ulimit -l of 64 KiB with InfiniBand, ulimit -u or a container's pids limit "
        "with many threads. Limits of ssh, Slurm and system services differ from those of a login shell."
    ),
    signatures=(
        Signature(
            needle="unable to open shared memory object",
            pattern=r"unable to open shared memory object <(?P<path>[^>]{1,120})> in read-write mode: Too many open files",
            says="torch could not open the shared tensor {path}: too many open files (ulimit -n)",
            says_zh="torch 无法打开共享张量 {path}：打开的文件过多（ulimit -n）",
            remedies=_LOADER_FILES,
        ),
        # Older torch prints no reason; with the file_descriptor strategy each shared tensor keeps a file open, and that limit is the usual one.
        Signature(
            needle="unable to open shared memory object",
            pattern=r"unable to open shared memory object <(?P<path>/torch_[^>]{1,120})> in read-write mode(?!:)",
            standing="likely",
            says="torch could not open the shared tensor {path}; the usual reason is the limit of open files (ulimit -n)",
            says_zh="torch 无法打开共享张量 {path}；通常的原因是打开文件数上限（ulimit -n）",
            remedies=_LOADER_FILES,
        ),
        Signature(
            needle="items of ancdata",
            pattern=r"received (?P<items>\d+) items of ancdata",
            standing="likely",
            says="a data loader could not receive the file handle of a tensor ({items} arrived): the limit of open files (ulimit -n) is reached",
            says_zh="DataLoader 收不到张量的文件句柄（收到 {items} 个）：已达到打开文件数上限（ulimit -n）",
            remedies=_LOADER_FILES,
        ),
        Signature(
            needle="Communication with the workers is no longer possible",
            says="a data loader has too many open files to talk to its workers (ulimit -n)",
            says_zh="DataLoader 打开的文件过多，无法与其 worker 通信（ulimit -n）",
            remedies=_LOADER_FILES,
        ),
        Signature(
            needle="Too many open files",
            pattern=r"NCCL WARN .{0,200}?(?:Call to|[Ff]ailed|[Aa]ccept|socket|open|pipe|epoll).{0,200}?Too many open files",
            says="NCCL could not open another socket or file: too many open files (ulimit -n)",
            says_zh="NCCL 无法再打开 socket 或文件：打开的文件过多（ulimit -n）",
            remedies=_FILES,
        ),
        Signature(
            needle="Too many open files",
            pattern=(
                r"\[Errno 24\] Too many open files(?:: '[^']{0,200}')?|Too many open files \((?:24|os error 24)\)|errno(?:: | = "
                r"|=)24\b.{0,40}Too many open files"
            ),
            unless=r"inotify",
            says="a process has too many open files (ulimit -n)",
            says_zh="某个进程打开的文件过多（ulimit -n）",
            remedies=_FILES,
        ),
        Signature(
            needle="Too many open files",
            pattern=r"^(?!.*NCCL WARN).*?Too many open files",
            unless=r"inotify|\[Errno 24\]|shared memory object|\((?:24|os error 24)\)",
            standing="likely",
            says="a process has too many open files (ulimit -n)",
            says_zh="某个进程打开的文件过多（ulimit -n）",
            remedies=_FILES,
        ),
        Signature(
            needle="inotify watch limit reached",
            says="the limit of inotify watches is reached",
            says_zh="已达到 inotify 监视数上限",
            remedies=("inotify",),
        ),
        Signature(
            needle="Too many open files",
            near=r"inotify",
            standing="likely",
            says="the limit of inotify instances is reached",
            says_zh="已达到 inotify 实例数上限",
            remedies=("inotify",),
        ),
        Signature(
            needle="Call to ibv_",
            pattern=(
                r"Call to (?P<call>ibv_(?:reg_mr\w*|create_cq|create_qp|create_srq|alloc_pd|open_device)) failed(?: with error)?:? "
                rf"{_NO_MEMORY}(?: errno \d+)?"
            ),
            says="{call} could not lock memory: the limit of locked memory (ulimit -l) is too small",
            says_zh="{call} 无法锁定内存：锁定内存上限（ulimit -l）太小",
            standing="likely",
            remedies=_MEMLOCK,
        ),
        Signature(
            needle="RLIMIT_MEMLOCK",
            pattern=r"RLIMIT_MEMLOCK is (?P<size_bytes>\d+) bytes",
            near=r"Cannot allocate memory|ibv_\w+\b.{0,80}failed|NCCL WARN",
            says="locked memory is limited to {size_bytes} bytes (ulimit -l), too few for RDMA",
            says_zh="锁定内存上限为 {size_bytes} 字节（ulimit -l），对 RDMA 来说太少",
            standing="likely",
            remedies=_MEMLOCK,
        ),
        Signature(
            needle="max locked memory",
            pattern=r"[Pp]lease set max locked memory \(ulimit -l\) to 'unlimited' \(current: (?P<limit>[^)]{1,40})\)",
            says="locked memory is limited to {limit} (ulimit -l), too little for RDMA",
            says_zh="锁定内存上限为 {limit}（ulimit -l），对 RDMA 来说太少",
            remedies=_MEMLOCK,
        ),
        Signature(
            needle="to allocate some locked memory",
            standing="likely",
            says="Open MPI could not lock memory for InfiniBand: the limit of locked memory (ulimit -l) is too small",
            says_zh="Open MPI 无法为 InfiniBand 锁定内存：锁定内存上限（ulimit -l）太小",
            remedies=_MEMLOCK,
        ),
        *(
            Signature(
                needle=needle,
                pattern=pattern,
                near=r"os\.fork\(|fork_exec|popen_fork|subprocess\.py|multiprocessing/process\.py" if needle.startswith("[Errno") else "",
                standing=standing,
                says=f"no further {what} could be started: the limit of processes (ulimit -u, or the container's pids limit) is reached",
                says_zh=f"无法再启动{what_zh}：已达到进程数上限（ulimit -u，或容器的 pids 限制）",
                remedies=_PROCESSES,
            )
            for needle, pattern, standing, (what, what_zh) in _NOT_STARTED
        ),
        Signature(
            needle="fork rejected by pids controller",
            pattern=r"cgroup: fork rejected by pids controller in (?P<cgroup>\S{1,300})",
            says="the kernel refused a new process in {cgroup}: its pids limit is reached",
            says_zh="内核拒绝在 {cgroup} 中创建新进程：已达到它的 pids 限制",
            remedies=("pids-limit",),
        ),
        Signature(
            needle="unable to mmap ",
            # A receiver has the file handle alone (torch/MapAllocator.cpp).
            pattern=r"unable to mmap (?P<size_bytes>\d+) bytes from file <(?:/torch_[^>]{1,120}|filename not specified)>: Cannot allocate memory",
            standing="likely",
            says=(
                "a shared tensor ({size_bytes} bytes) could not be mapped: most often the number of mappings of one process "
                "(vm.max_map_count) is reached"
            ),
            says_zh="无法映射共享张量（{size_bytes} 字节）：最常见的是达到了单个进程的映射数上限（vm.max_map_count）",
            remedies=("mappings", "file-system-sharing"),
        ),
        Signature(
            needle="io_setup",
            pattern=r"io_setup\b.{0,120}(?:Resource temporarily unavailable|EAGAIN|failed with error: ?-?11)",
            standing="likely",
            says="asynchronous I/O could not be set up: fs.aio-max-nr is used up",
            says_zh="无法建立异步 I/O：fs.aio-max-nr 已用完",
            remedies=("aio",),
        ),
        Signature(
            needle="Cannot allocate memory",
            pattern=r"(?P<call>ibv_(?:reg_mr|create_qp|create_cq|create_srq)\w*)(?:\([^)\n]{0,200}\))? ?(?:failed|FAILED): Cannot allocate memory",
            standing="likely",
            says="{call} could not lock memory: the limit of locked memory (ulimit -l) is too small",
            says_zh="{call} 无法锁定内存：锁定内存上限（ulimit -l）太小",
            remedies=_MEMLOCK,
        ),
        Signature(
            needle="error: out of memory",
            near=r"\.pin_memory\(|cudaHostAlloc|cudaMallocHost|cudaHostRegister|CachingHostAllocator",
            unless=r"microsoft-standard|\bWSL\d?\b",
            standing="possible",
            says="CUDA could not pin host memory: the limit of locked memory, or the memory of the host, is used up",
            says_zh="CUDA 无法锁页主机内存：锁定内存的额度或主机内存已用尽",
            remedies=("locked-memory",),
        ),
        # Type 1 is memory of the host; libfabric's other types are memory of an accelerator.
        Signature(
            needle="NET/OFI Unable to register memory",
            pattern=r"NET/OFI Unable to register memory \(type = 1\)[^\n]{0,40}RC: -?12\b",
            standing="likely",
            says="libfabric could not register host memory: the limit of locked memory (ulimit -l) is too small, or memory is used up",
            says_zh="libfabric 无法注册主机内存：锁定内存上限（ulimit -l）太小，或者内存已用尽",
            remedies=_MEMLOCK,
        ),
    ),
    on_host=_on_host,
    remedies=(
        Remedy(
            id="open-files",
            says=(
                "Raise the limit of open files for the processes of the job, where they are started: ulimit -n in the launching shell, LimitNOFILE= "
                "of a service, --ulimit nofile of a container."
            ),
            says_zh="在启动任务进程的地方提高打开文件数上限：启动 shell 里的 ulimit -n、服务的 LimitNOFILE=、容器的 --ulimit nofile。",
            command="ulimit -n 65536   # container: docker run --ulimit nofile=65536:65536 IMAGE",
            verify="srun bash -c 'ulimit -n'   # or: grep 'open files' /proc/PID/limits; ls /proc/PID/fd | wc -l",
        ),
        Remedy(
            id="file-system-sharing",
            says="Share tensors by name instead of by open file; call this first in every process, or keep fewer tensors alive from the loader.",
            says_zh="按文件名而不是按打开的文件共享张量；在每个进程开头调用，或者减少从 loader 中长期保留的张量。",
            command="python -c 'import torch.multiprocessing as mp; mp.set_sharing_strategy(\"file_system\"); print(mp.get_sharing_strategy())'",
        ),
        Remedy(
            id="fewer-sockets",
            says="Where NCCL runs over TCP, use fewer sockets per connection.",
            says_zh="NCCL 走 TCP 时，减少每个连接使用的 socket 数。",
            env={"NCCL_NSOCKS_PERTHREAD": "1", "NCCL_SOCKET_NTHREADS": "1"},
            verify=(
                "NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,ENV,NET torchrun --nproc-per-node N train.py 2>&1 | grep -E "
                "'NSOCKS_PERTHREAD|SOCKET_NTHREADS'"
            ),
        ),
        Remedy(
            id="locked-memory",
            says=(
                "Allow unlimited locked memory where the processes start: limits.conf needs a new login, Slurm needs LimitMEMLOCK=infinity in "
                "slurmd's service, a container needs --ulimit."
            ),
            says_zh=(
                "在进程启动处允许无限制的锁定内存：limits.conf 需要重新登录才生效，Slurm 需要在 slurmd 服务里设 LimitMEMLOCK=infinity，容器需要 "
                "--ulimit。"
            ),
            command="docker run --ulimit memlock=-1:-1 IMAGE   # host: echo '* - memlock unlimited' | sudo tee /etc/security/limits.d/90-rdma.conf",
            verify="mpirun -np 1 --host HOST bash -c 'ulimit -l'   # under Slurm: srun bash -c 'ulimit -l'; must say unlimited",
        ),
        Remedy(
            id="adapter-limits",
            says=(
                "Where the limit is already unlimited, the adapter has no queues or registrations left: use fewer connections "
                "(NCCL_IB_QPS_PER_CONNECTION, fewer channels), or raise the limits of its driver; the kernel log names them."
            ),
            says_zh=(
                "如果上限已经是 unlimited，说明网卡的队列或注册资源耗尽：减少连接数（NCCL_IB_QPS_PER_CONNECTION、减少 channel），或调大驱动限制；内"
                "核日志会写明。"
            ),
            command="dmesg -T | grep -E 'mlx5_cmd|limits exceeded|syndrome'; ibv_devinfo -v | grep -E 'max_(qp|cq|mr)'",
        ),
        Remedy(
            id="processes",
            says="Raise the limit of processes and threads where the job starts, and the container's pids limit.",
            says_zh="在任务启动处提高进程/线程数上限，并提高容器的 pids 限制。",
            command="ulimit -u; cat /sys/fs/cgroup/pids.max /sys/fs/cgroup/pids.current; docker run --pids-limit=-1 --ulimit nproc=-1 IMAGE",
            verify="grep processes /proc/PID/limits; ps -eLf | wc -l",
        ),
        Remedy(
            id="fewer-threads",
            says="Start fewer threads: every rank and worker otherwise starts one per core.",
            says_zh="减少线程：否则每个进程和 worker 都会按核数启动线程。",
            env={"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"},
            verify="python -c 'import torch; print(torch.get_num_threads())'",
        ),
        Remedy(
            id="pids-limit",
            says="Raise the pids limit of that cgroup: --pids-limit for a container, podPidsLimit of the kubelet, TasksMax= of a service.",
            says_zh="提高该 cgroup 的 pids 限制：容器用 --pids-limit，kubelet 用 podPidsLimit，服务用 TasksMax=。",
            command="docker update --pids-limit=-1 CONTAINER",
            verify="cat /sys/fs/cgroup/pids.max",
        ),
        Remedy(
            id="mappings",
            says="Allow more memory mappings per process.",
            says_zh="允许每个进程有更多内存映射。",
            command="sudo sysctl -w vm.max_map_count=1048576",
            verify="sysctl vm.max_map_count; wc -l /proc/PID/maps",
        ),
        Remedy(
            id="inotify",
            says="Allow more inotify watches and instances.",
            says_zh="提高 inotify 监视数和实例数。",
            command="sudo sysctl -w fs.inotify.max_user_watches=1048576 fs.inotify.max_user_instances=8192",
            verify="sysctl fs.inotify",
        ),
        Remedy(
            id="aio",
            says="Allow more asynchronous I/O requests on the host.",
            says_zh="提高主机上异步 I/O 请求的上限。",
            command="sudo sysctl -w fs.aio-max-nr=1048576",
            verify="cat /proc/sys/fs/aio-nr /proc/sys/fs/aio-max-nr",
        ),
        Remedy(
            id="more-cpus",
            says=(
                "Give the job more CPUs: --cpus-per-task in Slurm, --cpus or --cpuset-cpus of a container, resources.limits.cpu of a pod, taskset. "
                "Two for each rank and one for each loader worker is a beginning."
            ),
            says_zh=(
                "给任务更多 CPU：Slurm 的 --cpus-per-task，容器的 --cpus 或 --cpuset-cpus，Pod 的 resources.limits.cpu，taskset。起步时每个 rank "
                "两个，每个 DataLoader worker 一个。"
            ),
            command="taskset -cp $$; nproc; cat /sys/fs/cgroup/cpu.max",
        ),
        Remedy(
            id="kernel-processes",
            says="Find who has started so many threads; allow the machine more of them where that is meant.",
            says_zh="查出是谁启动了这么多线程；如果确属需要，再提高整机的上限。",
            command="ps -eLo user= | sort | uniq -c | sort -rn | head -5; sudo sysctl -w kernel.pid_max=4194304 kernel.threads-max=2000000",
            verify="sysctl kernel.pid_max kernel.threads-max",
        ),
        Remedy(
            id="kernel-files",
            says="Allow the machine more open files.",
            says_zh="提高整机打开文件数上限。",
            command="sudo sysctl -w fs.file-max=9223372036854775807",
            verify="cat /proc/sys/fs/file-nr",
        ),
        Remedy(
            id="address-space",
            says="Lift the limit of addresses where the job is started; batch systems set it for a requested amount of virtual memory.",
            says_zh="在启动任务处取消地址空间上限；批处理系统会按申请的虚拟内存设置它。",
            command="ulimit -v unlimited",
            verify="grep 'address space' /proc/PID/limits",
        ),
        Remedy(
            id="ptrace-scope",
            says="Let processes of one user be read from outside: 1 is enough, the ranks of `unhang run` permit it to their supervisor.",
            says_zh="允许从外部读取同一用户的进程：设为 1 即可，`unhang run` 的各 rank 会授权给其监督进程。",
            command="sudo sysctl -w kernel.yama.ptrace_scope=1   # container: docker run --cap-add SYS_PTRACE IMAGE",
            verify="sysctl kernel.yama.ptrace_scope",
        ),
    ),
    leads_to=("rank-exception", "dataloader-deadlock", "ib-config"),
    mistaken_for={
        "wsl-limits": "under WSL2 only a part of host memory can be pinned, whatever the limit says",
        "shm-exhausted": "a full /dev/shm says 'No space left' or gives a bus error; open files say 'Too many open files'",
        "host-oom-or-killed": "'Cannot allocate memory' from ibv_reg_mr is the limit of locked memory; free shows plenty",
        "ib-config": "verbs calls that fail with another error than 'Cannot allocate memory' are about the ports and their settings",
        "gdr-peer-memory": "registering GPU memory fails with 'Bad address' or 'Invalid argument', locking host memory with 'Cannot allocate memory'",
        "container-capability": "'Operation not permitted' from pthread_create is a seccomp profile, not a count",
    },
    sources=(
        "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html#infiniband",
        "https://docs.pytorch.org/docs/stable/multiprocessing.html#sharing-strategies",
        "https://man7.org/linux/man-pages/man2/getrlimit.2.html",
        "https://slurm.schedmd.com/faq.html#memlock",
        "https://docs.kernel.org/admin-guide/cgroup-v2.html#pid",
    ),
    hits=(
        "RuntimeError: unable to open shared memory object </torch_4711_2093847561_118> in read-write mode: Too many open files (24)",
        "RuntimeError: unable to open shared memory object </torch_16550_876314950> in read-write mode",
        "RuntimeError: received 0 items of ancdata",
        (
            "RuntimeError: Too many open files. Communication with the workers is no longer possible. Please increase the limit using `ulimit -n` "
            "in the shell or change the sharing strategy by calling `torch.multiprocessing.set_sharing_strategy('file_system')` at the beginning of "
            "your code"
        ),
        "node7:812:901 [3] misc/socket.cc:412 NCCL WARN Call to socket failed : Too many open files",
        "[2026-11-03 10:00:01] node7:812:901 [3] misc/socket.cc:480 NCCL WARN socketTryAccept: Accept failed: Too many open files",
        "[rank3]: OSError: [Errno 24] Too many open files: '/srv/data/shard_0173.tar'",
        "curl: (23) Failed to open the file /tmp/x: Too many open files\nnode7:812:901 [1] misc/socket.cc:46 NCCL WARN connection closed",
        "OSError: [Errno 28] inotify watch limit reached",
        "OSError: [Errno 24] inotify instance limit reached\nfailed to create fsnotify watcher: Too many open files",
        "node7:812:901 [2] misc/ibvwrap.cc:278 NCCL WARN Call to ibv_reg_mr_iova2 failed with error Cannot allocate memory",
        "node7:812:901 [2] misc/ibvwrap.cc:188 NCCL WARN Call to ibv_create_cq failed with error Cannot allocate memory errno 12",
        "node7:812:901 [2] misc/ibvwrap.cc:150 NCCL WARN Call to ibv_reg_mr failed: Cannot allocate memory",
        (
            "libibverbs: Warning: RLIMIT_MEMLOCK is 65536 bytes.\n"
            "    This will severely limit memory registrations.\n"
            "node7:812:901 [2] misc/ibvwrap.cc:188 NCCL WARN Call to ibv_create_cq failed"
        ),
        (
            "[1730628001.120] [node7:812:0] ib_md.c:293 UCX ERROR ibv_reg_mr(address=0x7f1c00000000, length=8323072, access=0xf) failed: Cannot "
            "allocate memory : Please set max locked memory (ulimit -l) to 'unlimited' (current: 64 kbytes)"
        ),
        "The OpenFabrics (openib) BTL failed to initialize while trying to allocate some locked memory.",
        "OpenBLAS blas_thread_init: pthread_create failed for thread 34 of 64: Resource temporarily unavailable",
        "libgomp: Thread creation failed: Resource temporarily unavailable",
        "bash: fork: retry: Resource temporarily unavailable",
        (
            '  File "/usr/lib/python3.10/multiprocessing/popen_fork.py", line 66, in _launch\n'
            "    self.pid = os.fork()\n"
            "BlockingIOError: [Errno 11] Resource temporarily unavailable"
        ),
        "terminate called after throwing an instance of 'std::system_error'\n  what():  Resource temporarily unavailable",
        "RuntimeError: can't start new thread",
        "F tensorflow/core/platform/default/env.cc:72] Check failed: ret == 0 (11 vs. 0)Thread creation via pthread_create() failed.",
        "[88123.41] cgroup: fork rejected by pids controller in /kubepods/burstable/pod7c1e/4f1c22ab",
        "RuntimeError: unable to mmap 4096 bytes from file </torch_4711_2093847561_31998>: Cannot allocate memory (12)",
        "RuntimeError: unable to mmap 512 bytes from file <filename not specified>: Cannot allocate memory (12)",
        "io_setup failed with error: -11",
        ("[1730628001.120] [node7:812  :0]          ib_device.c:1201 UCX  ERROR ibv_create_cq(cqe=4096) failed: Cannot allocate memory"),
        ("ERROR mlx5_1: ibv_create_cq() failed: Cannot allocate memory."),
        ("    return tensor.pin_memory()\nRuntimeError: CUDA error: out of memory"),
        (
            "node7:93:151 [0] register_mr_buffers:545 NCCL WARN NET/OFI Unable to register memory (type = 1) for device 0. RC: -12, Error:"
            " Cannot allocate memory"
        ),
    ),
    near_misses=(
        "libibverbs: Warning: RLIMIT_MEMLOCK is 65536 bytes.\n    This will severely limit memory registrations.",
        "Stack size limit (unlimited) is unsafe; will use 8192KB for newly launched threads",
        "RuntimeError: unable to write to file </torch_4711_2093847561_118>: No space left on device (28)",
        "node7:812:901 [2] misc/ibvwrap.cc:278 NCCL WARN Call to ibv_reg_mr_iova2 failed with error Bad address",
        "OpenBLAS blas_thread_init: pthread_create failed for thread 35 of 48: Operation not permitted",
        "open files                          (-n) 1024",
        "RuntimeError: unable to mmap 9999802720 bytes from file </srv/models/pytorch_model-00001.bin>: Cannot allocate memory (12)",
        "node7:812:901 [0] NCCL INFO Call to accept returned Resource temporarily unavailable, retrying",
        ("node7:812:901 [0] NCCL INFO ibv_create_cq with 256 entries"),
        ("UCX  ERROR ibv_open_device(mlx5_1) failed: No such device"),
        ("    x = x.cuda()\nRuntimeError: CUDA error: out of memory"),
        (
            "node7:93:151 [0] register_mr_buffers:545 NCCL WARN NET/OFI Unable to register memory (type = 2) for device 0. RC: -12, Error:"
            " Cannot allocate memory"
        ),
    ),
    explain={
        "en": (
            "Every process has limits that the kernel enforces: files and sockets it may hold open, memory it may lock for RDMA, processes and "
            "threads of its user, mappings. Distributed training reaches them early: data loader workers keep a file open per shared tensor, NCCL "
            "opens many sockets, and each rank starts a thread per core. What counts is the limit of the running process, which a service, ssh or "
            "Slurm sets, not what ulimit says in your shell: read /proc/PID/limits. Raise the named limit where the processes are started, and "
            "check it through the same launcher."
        ),
        "zh": (
            "每个进程都受内核限制：能同时打开的文件和 socket 数、能为 RDMA 锁定的内存、所属用户的进程和线程数、内存映射数。分布式训练很容易触及："
            "DataLoader 的 worker 为每个共享张量保持一个打开的文件，NCCL 要开很多 socket，每个进程还按核数启动线程。真正起作用的是正在运行的进程的限"
            "制，它由服务、ssh 或 Slurm 设定，而不是你当前 shell 里 ulimit 的值：请看 /proc/PID/limits。在启动进程的地方提高相应限制，并通过同一个启"
            "动器验证。"
        ),
    },
)
