"""shm-exhausted: /dev/shm is full or too small.

Long because everybody who asks for room there tells in words of its own that there is none, down to the launchers that report a bus error.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from unhang.knowledge.cause import STANDINGS, Cause, LogView, Signature, command
from unhang.knowledge.text import NOTHING, Text
from unhang.model import Evidence, Finding, HostFinding, Remedy

if TYPE_CHECKING:
    from unhang.facts.snapshot import Snapshot

_MIB = 1024 * 1024
_DOCKERS = 64 * _MIB
# What a remedy is worth depends on who asked for the memory: NCCL can do without it, data loader workers can be fewer.
_NCCL = ("docker-shm-size", "ipc-host", "kubernetes-memory-volume", "clear-leftovers", "without-shm")
_LOADER = ("docker-shm-size", "ipc-host", "kubernetes-memory-volume", "fewer-workers", "clear-leftovers")
_ANY = ("docker-shm-size", "ipc-host", "kubernetes-memory-volume", "clear-leftovers")
# NCCL before 2.21 prints no errno. What stands near tells a full /dev/shm from CUDA, permissions and limits.
# NCCL for 8 GPUs with a handful of loader workers needs more than this.
_SMALL = 1024 * _MIB
_FOR = {
    "docker": ("docker-shm-size", "ipc-host"),
    "podman": ("docker-shm-size", "ipc-host"),
    "container": ("docker-shm-size", "ipc-host"),
    "kubernetes": ("kubernetes-memory-volume",),
}

_SET_BY = {
    "runtime-default": Text(", what a container gets unless somebody asks for more", "，这是容器的默认值"),
    "runtime-option": Text(", as this container was told", "，是此容器的启动参数指定的"),
    "empty-dir": Text(", the size of the pod's emptyDir volume", "，即 pod 的 emptyDir 卷的大小"),
    "mount-option": Text(", the size that it was mounted with", "，是挂载时指定的大小"),
    "half-of-memory": Text(", half of the memory", "，即内存的一半"),
}
_OTHER_REASONS = (
    r"Cuda failure|unhandled cuda error|ncclUnhandledCudaError|Permission denied|Operation not permitted|Read-only file system|Too many open files"
    r"|Operation not supported|failed to create shared memory file|\bWSL|microsoft-standard"
)


def _in_logs(view: LogView) -> Finding | None:
    hits = view.hits_of(CAUSE.id)
    if not hits:
        return None
    best = min(hits, key=lambda h: STANDINGS.index(h.signature.standing))
    if "size_bytes" not in best.groups:
        return CAUSE.of_hits(hits, view)
    size = int(best.groups["size_bytes"])
    segments = {h.groups["path"] for h in hits if "path" in h.groups}
    many = Text("; {n} segments failed so", "；共有 {n} 个段这样失败").fill(n=len(segments)) if len(segments) > 1 else NOTHING
    mib = f"{size / _MIB:.1f} MiB"
    values: dict[str, Text | str] = {**best.groups, "size_bytes": Text(f"{mib} ({size}", f"{mib}（{size}")}
    says = Text(best.signature.says, best.signature.says_zh).fill(**values)
    says = Text(says.en.replace(" bytes", " bytes)", 1), says.zh.replace(" 字节", " 字节）", 1))
    return CAUSE.of_hits(hits, view, says=says + many)


def _on_host(host: Snapshot) -> Iterable[HostFinding]:
    from unhang.facts import container, shm
    from unhang.facts.units import size

    seen = host.get(shm.SUBJECT)
    if seen is None or seen.space is None:
        return
    total, free = seen.space.total_bytes, seen.space.free_bytes
    here = _FOR.get(container.kind(host), ("enlarge",))
    options = f"; mounted {','.join(seen.options)}" if seen.options is not None and seen.mounted else ""
    evidence = (Evidence(source="/dev/shm", text=f"{size(total)} in all, {size(free)} free{options}"),)
    commands = (
        {"clear-leftovers": command("unhang doctor --fix --only shm")}
        if any(s.of_trainings and s.abandoned is not False for s in seen.segments)
        else None
    )
    if total <= _SMALL:
        default = _SET_BY.get(seen.limit_from or ("runtime-default" if total == _DOCKERS else ""), NOTHING)
        yield CAUSE.host_finding(
            area="shm",
            severity="error" if total <= _DOCKERS else "warning",
            says=Text(f"/dev/shm holds {size(total)} in all", f"/dev/shm 总共只有 {size(total)}") + default,
            leads_to=Text(
                "NCCL takes several MiB for each pair of GPUs and loader workers put whole batches there: a failed start, or a bus error later",
                "NCCL 为每对 GPU 占用几 MiB，DataLoader worker 把整个 batch 放在那里：启动失败，或之后出现总线错误",
            ),
            evidence=evidence,
            remedies=(*here, "fewer-workers"),
        )
    elif free < total // 10 or free < _DOCKERS:
        left = sum(s.size_bytes for s in seen.segments if s.abandoned)
        unseen = sum(s.size_bytes for s in seen.segments if s.abandoned is None)
        dead = NOTHING
        if left:
            dead = Text("; {size} of it belongs to no live process", "；其中 {size} 不属于任何存活的进程").fill(size=size(left))
        elif unseen:
            dead = Text("; {size} of it to no process seen here", "；其中 {size} 不属于这里看得到的进程").fill(size=size(unseen))
        yield CAUSE.host_finding(
            area="shm",
            severity="error" if free < _DOCKERS else "warning",
            says=Text("/dev/shm is full: {free} of {total} free{dead}", "/dev/shm 已满：{total} 中只剩 {free}{dead}").fill(
                free=size(free), total=size(total), dead=dead
            ),
            leads_to=Text(
                "the next segment that NCCL or a loader worker asks for is refused, or writing to it ends the process with a bus error",
                "NCCL 或 DataLoader worker 申请的下一个段会被拒绝，或写入时进程因总线错误结束",
            ),
            evidence=evidence,
            remedies=("clear-leftovers", *here),
            commands=commands,
        )
    if seen.space.inodes and seen.space.free_inodes < 1000:
        yield CAUSE.host_finding(
            area="shm",
            severity="error",
            says=Text(
                "/dev/shm has {free} of {all} inodes free: room, but not for one more file",
                "/dev/shm 的 {all} 个 inode 只剩 {free} 个：有空间，却放不下新文件",
            ).fill(free=seen.space.free_inodes, all=seen.space.inodes),
            leads_to=Text(
                "new segments are refused with 'No space left on device' although df shows room",
                "虽然 df 显示还有空间，新的段仍被拒绝：'No space left on device'",
            ),
            evidence=evidence,
            remedies=("clear-leftovers",),
            commands=commands,
        )


CAUSE = Cause(
    id="shm-exhausted",
    role="root",
    title="/dev/shm is full or too small",
    title_zh="/dev/shm 空间不足",
    what="NCCL, data loader workers or another library could not get the shared memory that they exchange data through.",
    why=(
        "A container gets 64 MiB of /dev/shm unless told otherwise; elsewhere files of killed jobs fill it, or too many workers put large batches "
        "there."
    ),
    signatures=(
        Signature(
            needle=" request exceeds memory available in /dev/shm",
            pattern=r"/dev/shm\. The request is for (?P<wanted_bytes>\d+) bytes, and the amount available is (?P<free_bytes>\d+)",
            standing="likely",
            says="Ray's object store asked for {wanted_bytes} bytes of /dev/shm, and {free_bytes} are there",
            says_zh="Ray 的对象存储要占用 /dev/shm 的 {wanted_bytes} 字节，而那里只有 {free_bytes} 字节",
        ),
        Signature(
            needle="failed to extend /dev/shm/",
            pattern=r"failed to extend (?P<path>/dev/shm/\S{1,80}) to (?P<size_bytes>\d+) bytes, error:? No space left on device",
            says="NCCL could not extend {path} to {size_bytes} bytes: no space left in /dev/shm",
            says_zh="NCCL 无法把 {path} 扩展到 {size_bytes} 字节：/dev/shm 没有剩余空间",
            remedies=_NCCL,
        ),
        Signature(
            needle="failed to extend /dev/shm/",
            pattern=r"failed to extend (?P<path>/dev/shm/\S{1,80}) to (?P<size_bytes>\d+) bytes(?!, error)",
            unless=r"Operation not supported|Permission denied",
            standing="likely",
            says="NCCL could not extend {path} to {size_bytes} bytes; this NCCL prints no reason, and a full /dev/shm is the usual one",
            says_zh="NCCL 无法把 {path} 扩展到 {size_bytes} 字节；这个 NCCL 不打印原因，通常是 /dev/shm 已满",
            remedies=_NCCL,
        ),
        # tmpfs pages are charged to the memory cgroup: at its limit the answer is ENOMEM, however large /dev/shm is.
        Signature(
            needle="failed to extend /dev/shm/",
            pattern=r"failed to extend (?P<path>/dev/shm/\S{1,80}) to (?P<size_bytes>\d+) bytes, error:? Cannot allocate memory",
            standing="likely",
            says=(
                "NCCL could not extend {path} to {size_bytes} bytes: no memory left for /dev/shm (its pages count against the container's memory "
                "limit)"
            ),
            says_zh="NCCL 无法把 {path} 扩展到 {size_bytes} 字节：没有内存可供 /dev/shm 使用（它的内存页计入容器的内存上限）",
            remedies=("memory-limit", "clear-leftovers", "without-shm"),
        ),
        Signature(
            needle="fallocate failed",
            pattern=r"Call to (?:posix_)?fallocate failed ?: No space left on device",
            says="NCCL could not allocate its shared memory segment: no space left in /dev/shm",
            says_zh="NCCL 无法分配它的共享内存段：/dev/shm 没有剩余空间",
            remedies=_NCCL,
        ),
        Signature(
            needle="Error while creating shared memory segment",
            pattern=r"creating shared memory segment (?P<path>\S{1,160}) \(size (?P<size_bytes>\d+)\), error:? No space left on device",
            unless=r"Cuda failure",
            says="NCCL could not create {path} of {size_bytes} bytes: no space left in /dev/shm",
            says_zh="NCCL 无法创建 {size_bytes} 字节的 {path}：/dev/shm 没有剩余空间",
            remedies=_NCCL,
        ),
        Signature(
            needle="Error while creating shared memory segment",
            pattern=r"creating shared memory segment (?P<path>\S{1,160}) \(size (?P<size_bytes>\d+)\)(?!, error)",
            unless=_OTHER_REASONS,
            standing="likely",
            says="NCCL could not create {path} of {size_bytes} bytes; this NCCL prints no reason, and a full /dev/shm is the usual one",
            says_zh="NCCL 无法创建 {size_bytes} 字节的 {path}；这个 NCCL 不打印原因，通常是 /dev/shm 已满",
            remedies=_NCCL,
        ),
        # The text reached torch's "Last error" without a size where NCCL's buffer was cut.
        Signature(
            needle="unable to write to file <",
            pattern=r"unable to write to file <(?P<path>/torch_\w+|filename not specified)>: No space left on device",
            says="torch could not write the shared tensor {path}: no space left in /dev/shm",
            says_zh="torch 无法写入共享张量 {path}：/dev/shm 没有剩余空间",
            remedies=_LOADER,
        ),
        Signature(
            needle="unable to write to file <",
            pattern=r"unable to write to file <(?P<path>/torch_\w+|filename not specified)>(?!: )",
            standing="likely",
            says="torch could not write the shared tensor {path}: /dev/shm is full",
            says_zh="torch 无法写入共享张量 {path}：/dev/shm 已满",
            remedies=_LOADER,
        ),
        Signature(
            needle="unable to allocate shared memory(shm) for file",
            pattern=(
                r"unable to allocate shared memory\(shm\) for file <(?P<path>[^>]{1,120})>: (?:No space left on device|Success|Cannot allocate"
                r" memory)"
            ),
            standing="likely",
            says="torch could not allocate the shared tensor {path}: /dev/shm has no room for it",
            says_zh="torch 无法分配共享张量 {path}：/dev/shm 放不下它",
            remedies=_LOADER,
        ),
        Signature(
            needle="> to the right size",
            pattern=r"unable to (?:resize|stretch) file <(?P<path>/?torch_[^>]{1,120}|filename not specified)> to the right size",
            standing="likely",
            says="torch could not size the shared tensor {path}: /dev/shm has no room for it",
            says_zh="torch 无法设定共享张量 {path} 的大小：/dev/shm 放不下它",
            remedies=_LOADER,
        ),
        Signature(
            needle="Unexpected bus error encountered in worker",
            standing="likely",
            says="a data loader worker got a bus error, which is what writing to a full /dev/shm gives",
            says_zh="某个 DataLoader worker 遇到总线错误，向已满的 /dev/shm 写入就会这样",
            remedies=_LOADER,
        ),
        Signature(
            needle="is killed by signal: Bus error",
            pattern=r"DataLoader worker \(pid (?P<worker>\d+)\) is killed by signal: Bus error",
            standing="likely",
            says="data loader worker {worker} died of a bus error, which is what writing to a full /dev/shm gives",
            says_zh="DataLoader worker {worker} 死于总线错误，向已满的 /dev/shm 写入就会这样",
            remedies=_LOADER,
        ),
        # A page of a tmpfs file that cannot be had any more is a SIGBUS, and nothing is printed.
        Signature(
            needle="(exitcode: -7)",
            pattern=r"failed \(exitcode: -7\) local_rank: (?P<local_rank>\d+) \(pid: (?P<pid>\d+)\)",
            standing="likely",
            says="local rank {local_rank} (pid {pid}) ended with SIGBUS, which is what writing to a full /dev/shm gives",
            says_zh="本地 rank {local_rank}（pid {pid}）因 SIGBUS 结束，向已满的 /dev/shm 写入就会这样",
            remedies=_ANY,
        ),
        Signature(
            needle="(SIGBUS)",
            pattern=r"exitcode +: -7 \(pid: (?P<pid>\d+)\)|Signal 7 \(SIGBUS\) received by PID \d+",
            standing="likely",
            says="a rank ended with SIGBUS, which is what writing to a full /dev/shm gives",
            says_zh="某个 rank 因 SIGBUS 结束，向已满的 /dev/shm 写入就会这样",
            remedies=_ANY,
        ),
        Signature(
            needle="exits with return code = -7",
            pattern=r"(?:Process (?P<pid>\d{1,9}) )?exits with return code = -7\b",
            standing="likely",
            says="process {pid} ended with SIGBUS, which is what writing to a full /dev/shm gives",
            says_zh="进程 {pid} 因 SIGBUS 结束，向已满的 /dev/shm 写入就会这样",
            remedies=_ANY,
        ),
        Signature(
            needle="terminated with signal SIGBUS",
            standing="likely",
            says="a rank ended with SIGBUS, which is what writing to a full /dev/shm gives",
            says_zh="某个 rank 因 SIGBUS 结束，向已满的 /dev/shm 写入就会这样",
            remedies=_ANY,
        ),
        *(
            Signature(
                needle=needle,
                pattern=pattern,
                standing="likely",
                says="a process ended with SIGBUS, which is what writing to a full /dev/shm gives",
                says_zh="某个进程因 SIGBUS 结束，向已满的 /dev/shm 写入就会这样",
                remedies=_ANY,
            )
            for needle, pattern in (
                ("signal 7", r"(?:exited on|signaled to shutdown with|[Cc]aught|terminated by|died (?:on|with)) signal 7\b"),
                *((words, "") for words in ("Fatal Python error: Bus error", "Signal: Bus error (7)", "Bus error (core dumped)")),
            )
        ),
        Signature(
            needle="No space left on device: '/",
            pattern=r"\[Errno 28\] No space left on device: '(?P<path>/(?:dev/shm/|psm_|wnsm_|sem\.|mp-|torch_)[^']{0,160})'",
            says="{path} could not be written: no space left in /dev/shm",
            says_zh="无法写入 {path}：/dev/shm 没有剩余空间",
            remedies=_ANY,
        ),
        Signature(
            needle="' -> '/dev/shm/",
            pattern=r"No space left on device: '[^']{1,400}' -> '(?P<path>/dev/shm/[^']{1,160})'",
            says="{path} could not be written: no space left in /dev/shm",
            says_zh="无法写入 {path}：/dev/shm 没有剩余空间",
            remedies=_ANY,
        ),
        Signature(
            needle="No space left on device.  joblib will operate in serial mode",
            standing="likely",
            says="Python could not get a semaphore: no space left in /dev/shm",
            says_zh="Python 无法取得信号量：/dev/shm 没有剩余空间",
            remedies=_ANY,
        ),
        Signature(
            needle="[Errno 28] No space left on device",
            pattern=r"\[Errno 28\] No space left on device(?!: ')",
            near=r"multiprocessing/(?:shared_memory|synchronize|heap)\.py|_posixshmem|SemLock|shm_broadcast|SharedMemory\(",
            standing="likely",
            says="Python could not get shared memory: no space left in /dev/shm",
            says_zh="Python 无法取得共享内存：/dev/shm 没有剩余空间",
            remedies=_ANY,
        ),
        Signature(
            needle="Please check that /dev/shm",
            pattern=r"Not enough memory to write total of (?P<size_bytes>\d+) bytes",
            says="UCX could not write {size_bytes} bytes: not enough room in /dev/shm",
            says_zh="UCX 无法写入 {size_bytes} 字节：/dev/shm 空间不足",
            remedies=_ANY,
        ),
        Signature(
            needle="(the shared-memory backing",
            pattern=r"not enough space for (?P<path>\S{1,200}) \(the shared-memory backing",
            standing="likely",
            says="Open MPI found no room for its shared-memory file {path}",
            says_zh="Open MPI 的共享内存文件 {path} 没有空间可放",
            remedies=_ANY,
        ),
        Signature(
            needle="inside docker, use '--shm-size' flag",
            standing="likely",
            says="Triton Server could not get its shared-memory region from /dev/shm",
            says_zh="Triton Server 无法从 /dev/shm 取得它的共享内存区域",
            remedies=_ANY,
        ),
        Signature(
            needle="Usage of EmptyDir volume",
            pattern=r"Usage of EmptyDir volume \"(?P<volume>[^\"]{0,80}shm[^\"]{0,80})\" exceeds the limit \"(?P<limit>[^\"]{1,40})\"",
            says="the kubelet evicted the pod: its shared-memory volume {volume} grew past its limit of {limit}",
            says_zh="kubelet 驱逐了该 Pod：它的共享内存卷 {volume} 超过了上限 {limit}",
            remedies=("kubernetes-memory-volume", "fewer-workers"),
        ),
    ),
    in_logs=_in_logs,
    on_host=_on_host,
    remedies=(
        Remedy(
            id="docker-shm-size",
            says="Give the container more shared memory; the default is 64 MiB, and the pages are only taken when they are used.",
            says_zh="给容器更大的共享内存；默认只有 64 MiB，而内存页只有真正用到时才会占用。",
            command="docker run --shm-size=8g IMAGE",
            verify="df -h /dev/shm",
        ),
        Remedy(
            id="ipc-host",
            says="Or let the container share the host's /dev/shm.",
            says_zh="或者让容器直接使用主机的 /dev/shm。",
            command="docker run --ipc=host IMAGE",
            verify="df -h /dev/shm",
        ),
        Remedy(
            id="kubernetes-memory-volume",
            says=(
                "In Kubernetes mount an emptyDir of medium Memory on /dev/shm; what is written there counts against the container's memory limit, "
                "and a sizeLimit that is too small evicts the pod."
            ),
            says_zh=(
                "在 Kubernetes 中，把 medium 为 Memory 的 emptyDir 挂载到 /dev/shm；写进去的内容计入容器的内存限制，sizeLimit 太小则 Pod 会被驱逐。"
            ),
            command=(
                'kubectl patch deployment NAME --type=json -p \'[{"op":"add","path":"/spec/template/spec/volumes/-","value":{"name":"dshm","emptyDir'
                '":{"medium":"Memory"}}},{"op":"add","path":"/spec/template/spec/containers/0/volumeMounts/-","value":{"name":"dshm","mountPath":"/d'
                "ev/shm\"}}]'"
            ),
            verify="kubectl exec POD -- df -h /dev/shm",
        ),
        Remedy(
            id="enlarge",
            says="Give it more room: by default it is half of the memory, and a mount option can say otherwise.",
            says_zh="扩大它：默认大小是内存的一半，挂载选项可以改变。",
            command="mount -o remount,size=50% /dev/shm",
            verify="df -h /dev/shm",
        ),
        Remedy(
            id="clear-leftovers",
            says=(
                "If it is full although it is large, see what fills it: segments of killed jobs stay; remove only those that no live process has "
                "open."
            ),
            says_zh="如果 /dev/shm 很大却仍然满了，先看是什么占用：被杀死的任务会留下文件；只删除没有任何存活进程打开的那些。",
            command="df -h /dev/shm; ls -lS /dev/shm | head -20; fuser -v /dev/shm/nccl-* /dev/shm/torch_* /dev/shm/psm_* 2>&1",
        ),
        Remedy(
            id="fewer-workers",
            says="Until there is room, load with fewer workers, smaller batches or prefetch_factor=1; num_workers=0 uses no shared memory at all.",
            says_zh="在扩容之前，减少 DataLoader 的 worker 数、batch 大小或设 prefetch_factor=1；num_workers=0 则完全不使用共享内存。",
            verify="watch -n 1 df -h /dev/shm",
        ),
        Remedy(
            id="memory-limit",
            says="Raise the memory limit of the container: pages of /dev/shm count against it.",
            says_zh="提高容器的内存上限：/dev/shm 的内存页也计入该上限。",
            command="cat /sys/fs/cgroup/memory.max /sys/fs/cgroup/memory.current; df -h /dev/shm",
        ),
        Remedy(
            id="without-shm",
            says="Last way: let NCCL do without shared memory; GPUs without a direct path then talk over the network stack, which is slower.",
            says_zh="最后的办法：让 NCCL 不使用共享内存；没有直连通路的 GPU 会改走网络栈，速度更慢。",
            env={"NCCL_SHM_DISABLE": "1"},
            verify=(
                "NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,ENV torchrun --nproc-per-node N train.py 2>&1 | grep 'NCCL_SHM_DISABLE set by environment "
                "to 1'"
            ),
        ),
    ),
    leads_to=("rank-exception", "shm-stale-or-missing", "cumem-host-numa", "dataloader-deadlock"),
    mistaken_for={
        "shm-register-failed": "there the segment was made and CUDA refused it: a Cuda failure stands right before, and df shows room",
        "cumem-host-numa": "attaching to a segment of size 0 or with a garbled name is no lack of space",
        "limits": "'Too many open files' on a shared memory object is the limit of open files; df shows room",
        "disk-full": "'No space left' on any other path than /dev/shm is a disk",
        "host-oom-or-killed": "a full /dev/shm gives SIGBUS or ENOSPC; SIGKILL comes from the OOM killer",
        "wsl-limits": "under WSL2 the same NCCL line appears although /dev/shm has room",
    },
    sources=(
        "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html#shared-memory",
        "https://docs.docker.com/reference/cli/docker/container/run/",
        "https://github.com/NVIDIA/nccl/blob/master/src/misc/shmutils.cc",
        "https://kubernetes.io/docs/concepts/storage/volumes/#emptydir",
        "https://github.com/pytorch/pytorch/issues/5040",
    ),
    hits=(
        (
            "[2026-03-25 05:44:29,435 W 39 39] (raylet) store_runner.cc:83: System memory request exceeds memory available in /dev/shm. The request "
            "is for 10200547328 bytes, and the amount available is 9663676416 bytes. You may be able to free up space by deleting files in /dev/shm."
        ),
        (
            "[2026-11-03 10:00:01] node7:812:901 [1] misc/shmutils.cc:87 NCCL WARN Error: failed to extend /dev/shm/nccl-Qr4tZp to 33030532 bytes, "
            "error: No space left on device (28)\n"
            "[2026-11-03 10:00:01] node7:812:901 [1] misc/shmutils.cc:129 NCCL WARN Error while creating shared memory segment /dev/shm/nccl-Qr4tZp "
            "(size 33030528), error: No space left on device (28)"
        ),
        (
            "(RayWorkerWrapper pid=812) trainer-0:812:901 [1] misc/shmutils.cc:72 NCCL WARN Error: failed to extend /dev/shm/nccl-b7Kd0e to 9637892 "
            "bytes"
        ),
        (
            "node7:812:901 [1] misc/shmutils.cc:88 NCCL WARN Error: failed to extend /dev/shm/nccl-b7Kd0e to 9637892 bytes, error: Cannot allocate "
            "memory (12)"
        ),
        "node7:812:901 [1] include/shm.h:28 NCCL WARN Call to posix_fallocate failed : No space left on device",
        (
            "node7:812:901 [1] include/shm.h:28 NCCL WARN Call to posix_fallocate failed : No space left on device\n"
            "node7:812:901 [1] NCCL INFO include/shm.h:41 -> 2\n"
            "node7:812:901 [1] include/shm.h:48 NCCL WARN Error while creating shared memory segment nccl-shm-recv-51d0c2aa7be1903f-1-2-3 (size "
            "9637888)"
        ),
        (
            "[rank1]: torch.distributed.DistBackendError: NCCL error in: ../torch/csrc/distributed/c10d/NCCLUtils.hpp:275, unhandled system error "
            "(run with NCCL_DEBUG=INFO for details), NCCL version 2.20.5\n"
            "[rank1]: ncclSystemError: System call (e.g. socket, malloc) or external library call failed or device error. \n"
            "[rank1]: Last error:\n"
            "[rank1]: Error while creating shared memory segment /dev/shm/nccl-0aPq9x (size 9637888)"
        ),
        (
            "[rank1]: Last error:\n"
            "[rank1]: Error while creating shared memory segment /dev/shm/nccl-0aPq9x (size 5767520), error: No space left on device (28)"
        ),
        "RuntimeError: unable to write to file </torch_4711_2093847561_118>: No space left on device (28)",
        "RuntimeError: unable to write to file </torch_76_3625481190> at /pytorch/aten/src/TH/THAllocator.c:383",
        "RuntimeError: unable to allocate shared memory(shm) for file </torch_4711_2093847561_118>: Success (0)",
        "RuntimeError: unable to resize file </torch_4711_2093847561> to the right size",
        "ERROR: Unexpected bus error encountered in worker. This might be caused by insufficient shared memory (shm).",
        (
            "[rank3]: RuntimeError: DataLoader worker (pid 991) is killed by signal: Bus error. It is possible that dataloader's workers are out of "
            "shared memory. Please try to raise your shared memory limit."
        ),
        (
            "E1103 09:12:44.120000 4711 torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: -7) local_rank: 1 (pid: 4720) of "
            "binary: /opt/venv/bin/python3"
        ),
        "  exitcode  : -7 (pid: 4720)  (SIGBUS)",
        "  traceback : Signal 7 (SIGBUS) received by PID 4720",
        "[2026-11-03 10:00:01,000] [ERROR] [launch.py:321:sigkill_handler] ['python', 'train.py', '--local_rank=3'] exits with return code = -7",
        "[2026-11-03 10:00:01,000] [INFO] [launch.py:347:main] Process 5100 exits with return code = -7",
        "torch.multiprocessing.spawn.ProcessExitedException: process 1 terminated with signal SIGBUS",
        "[4f1c22ab90de:812  :0:901] Caught signal 7 (Bus error: nonexistent physical address)",
        "mpirun noticed that process rank 1 with PID 812 on node node7 exited on signal 7 (Bus error).",
        "Fatal Python error: Bus error",
        "[node7:00812] Signal: Bus error (7)",
        "run.sh: line 14: 4720 Bus error (core dumped) python train.py",
        "OSError: [Errno 28] No space left on device: '/dev/shm/batch_00017'",
        "OSError: [Errno 28] No space left on device: '/psm_5a1f20cc'",
        "OSError: [Errno 28] No space left on device: 'ckpt/tensor_07' -> '/dev/shm/tmpk3w8q'",
        "UserWarning: [Errno 28] No space left on device.  joblib will operate in serial mode",
        (
            '  File "/usr/lib/python3.11/multiprocessing/synchronize.py", line 57, in __init__\n'
            "    sl = self._semlock = _multiprocessing.SemLock(\n"
            "OSError: [Errno 28] No space left on device"
        ),
        (
            "[1730628001.120] [node7:812:0] mm_posix.c:194  UCX  ERROR Not enough memory to write total of 4292720 bytes. Please check that "
            "/dev/shm or the directory you specified has more available memory."
        ),
        "It appears as if there is not enough space for /dev/shm/vader_segment.node7.1000.5d1.3 (the shared-memory backing",
        (
            "Failed to increase the shared memory pool size for key 'triton_python_backend_shm_region_2' to 67108864 bytes. If you are running "
            "Triton inside docker, use '--shm-size' flag to control the shared memory region size."
        ),
        'Evicted: Usage of EmptyDir volume "dshm" exceeds the limit "2Gi".',
    ),
    near_misses=(
        "node7:812:901 [1] NCCL INFO Allocated 9637892 bytes of shared memory in /dev/shm/nccl-Qr4tZp",
        (
            "node7:812:901 [1] misc/shmutils.cc:103 NCCL WARN Cuda failure 'invalid argument'\n"
            "node7:812:901 [1] misc/shmutils.cc:114 NCCL WARN Error while creating shared memory segment /dev/shm/nccl-Qr4tZp (size 9637888)"
        ),
        (
            "node7:812:901 [1] include/shm.h:27 NCCL WARN Call to shm_open failed : Permission denied\n"
            "node7:812:901 [1] include/shm.h:48 NCCL WARN Error while creating shared memory segment nccl-shm-recv-51d0c2aa7be1903f-0-3-0 (size "
            "4460544)"
        ),
        (
            "[2026-11-03 10:00:01] node7:812:901 [0] misc/shmutils.cc:129 NCCL WARN Error while attaching to shared memory segment "
            "/dev/shm/nccl-\u040c (size 0), error: No such file or directory (2)"
        ),
        "OSError: [Errno 28] No space left on device: '/srv/checkpoints/step_200/model.safetensors'",
        "RuntimeError: unable to open shared memory object </torch_4711_2093847561_118> in read-write mode: Too many open files (24)",
        (
            "WARNING services.py:2009 -- WARNING: The object store is using /tmp instead of /dev/shm because /dev/shm has only 67108864 bytes "
            "available. This will harm performance!"
        ),
        "RuntimeError: DataLoader worker (pid 991) is killed by signal: Segmentation fault. ",
        'Evicted: Usage of EmptyDir volume "scratch" exceeds the limit "20Gi".',
    ),
    explain={
        "en": (
            "Processes on one host exchange data through files in /dev/shm, a file system in memory. In a container it is 64 MiB unless somebody "
            "asked for more, and NCCL alone takes several MiB per pair of GPUs; data loader workers put whole batches there. When it is full, NCCL "
            "says so (or, before 2.21, says only that it could not extend or create a segment), torch raises, or the process dies of a bus error "
            "without a word. df -h /dev/shm inside the container settles it. Enlarge it with --shm-size or --ipc=host; if it is large and still "
            "full, files of killed jobs fill it. Do not be fooled by a Cuda failure right before the line, or by a segment of size 0: those are "
            "other causes."
        ),
        "zh": (
            "同一台主机上的进程通过 /dev/shm（内存文件系统）交换数据。容器里它默认只有 64 MiB，而 NCCL 每对 GPU 就要几 MiB，DataLoader 的 worker 还"
            "会把整个 batch 放进去。空间用尽时，NCCL 会直接说明（2.21 之前的版本只说无法扩展或创建共享内存段），torch 会抛出异常，或者进程因总线错误"
            "（bus error）无声退出。在容器里执行 df -h /dev/shm 就能确认。用 --shm-size 或 --ipc=host 扩大它；如果本来就很大却仍然满了，多半是被杀死"
            "的任务留下的文件。注意区分：紧挨在前面的 Cuda failure，或者大小为 0 的共享内存段，属于其他原因。"
        ),
    },
)
