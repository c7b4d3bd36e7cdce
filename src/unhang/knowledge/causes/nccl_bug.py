"""nccl-bug: a fault of NCCL itself that is known, and that another release does not have."""

from __future__ import annotations

from unhang.knowledge.cause import Cause, LogView, Signature
from unhang.knowledge.text import Text
from unhang.logs.alarms import crashed_in
from unhang.model import Finding, Remedy
from unhang.patterns import lazily

_RELEASE = lazily(r"(\d+)\.(\d+)\.(\d+)")
_Release = tuple[int, int, int]
# Releases of each bug: the first that has it, the first that does not.
_AFFECTED: dict[str, tuple[_Release, _Release]] = {
    "bootstrap-confusion": ((2, 19, 1), (2, 21, 5)),
    "shared-memory": ((2, 25, 1), (2, 26, 2)),
    "pci-paths": ((2, 0, 0), (2, 10, 3)),
    "connect-retry": ((2, 12, 7), (2, 24, 3)),
    "net-id": ((2, 24, 3), (2, 27, 3)),
    "roce-version": ((2, 21, 5), (2, 26, 2)),
    "gin-start": ((2, 28, 3), (2, 29, 2)),
    "proxy-slots": ((2, 0, 0), (2, 29, 3)),
}
_CRASHED = r"[Ss]egmentation fault|[Ss]egfault|SIGSEGV|[Ss]ignal 11|backtrace"
_UPGRADE = ("upgrade-nccl", "which-nccl")


def _in_logs(view: LogView) -> Finding | None:
    releases = _releases(view)
    # What only certain releases do is no bug of another one.
    hits = tuple(h for h in view.hits_of(CAUSE.id) if (bug := _BUGS.get(h.signature)) is None or not releases or _has(bug, releases))
    by_release = [h for h in hits if h.signature == _SHARED_MEMORY and _has(_BUGS[h.signature], releases)]
    if by_release:
        return CAUSE.of_hits(by_release, view, standing="established")
    return CAUSE.of_hits(hits, view) or _bootstrap_confusion(view, releases) or _connect_retry(view, releases)


def _releases(view: LogView) -> dict[_Release, str]:
    return {(int(m[1]), int(m[2]), int(m[3])): text for text in view.nccl.versions if (m := _RELEASE.search(text))}


def _has(bug: str, releases: dict[_Release, str]) -> str | None:
    first, mended = _AFFECTED[bug]
    return next((".".join(map(str, r)) for r in sorted(releases) if first <= r < mended), None)


def _bootstrap_confusion(view: LogView, releases: dict[_Release, str]) -> Finding | None:
    """Two exchanges of one start-up taken for each other: sizes that are NCCL's own (4, 256, 1024), at bootstrap.cc."""
    release = _has("bootstrap-confusion", releases)
    lines = [h for c in ("version-mismatch", "collective-mismatch") for h in view.hits_of(c) if "bootstrap.cc" in h.text and "truncated" in h.text]
    if release is None or len(releases) != 1 or not lines:
        return None
    return CAUSE.finding(
        standing="likely",
        says=Text(
            "NCCL {release} takes one message of its start-up for another, now and then; 2.18 and 2.21 do not",
            "NCCL {release} 启动时偶尔会把一条消息当成另一条；2.18 和 2.21 不会",
        ).fill(release=release),
        ranks=tuple(sorted({h.rank for h in lines if h.rank is not None})),
        evidence=tuple(h.evidence() for h in lines[:3]),
        remedies=_UPGRADE,
    )


def _connect_retry(view: LogView, releases: dict[_Release, str]) -> Finding | None:
    """NCCL up to 2.23 gives up at the second refusal, which it prints as an aborted connection, instead of trying for 20 s."""
    release = _has("connect-retry", releases)
    lines = [h for h in view.hits_of("network-blocked") if "Software caused connection abort" in h.text]
    if release is None or not lines:
        return None
    return CAUSE.finding(
        standing="possible",
        says=Text(
            "NCCL {release} gives up at the second refused connection instead of trying on, so that a peer that is a little late ends the job",
            "NCCL {release} 在连接第二次被拒绝时就放弃，而不继续尝试，因此对端稍晚一点任务就会结束",
        ).fill(release=release),
        ranks=tuple(sorted({h.rank for h in lines if h.rank is not None})),
        evidence=tuple(h.evidence() for h in lines[:3]),
        remedies=_UPGRADE,
    )


# The line itself says no more than that this NCCL and this GPU do not fit: which of the two is at fault, the release tells.
_SHARED_MEMORY = Signature(
    needle="exceeds device/fn maxSharedMem",
    pattern=r"ncclMaxSharedMem (?P<wanted>\d+) exceeds device/fn maxSharedMem (?P<offered>\d+)",
    standing="possible",
    says="NCCL asks for {wanted} bytes of shared memory per block and this GPU offers {offered}: 2.25.1 to 2.26.1 do so, mended in 2.26.2",
    says_zh="NCCL 要求每个 block 有 {wanted} 字节共享内存，而这块 GPU 提供 {offered}：2.25.1 到 2.26.1 会这样，2.26.2 已修复",
    remedies=_UPGRADE,
)
# Before 2.10 NCCL insisted on /sys paths that WSL2 does not have.
_PCI_PATHS = Signature(
    needle="Could not find real path of /sys/class/pci_bus",
    pattern=r"NCCL WARN Could not find real path of (?P<path>/sys/class/pci_bus\S+)",
    standing="likely",
    says="this NCCL needs {path}, which virtual machines and WSL2 lack; releases from 2.10 on do without",
    says_zh="这个 NCCL 需要 {path}，而虚拟机和 WSL2 没有它；2.10 及以上不再需要",
    remedies=_UPGRADE,
)
# NIC fusion, new in 2.24, merges adapters into devices with other numbers; where no path is found for the trees, NCCL falls back to number 0.
_NET_ID = Signature(
    needle="Could not find NET with id",
    pattern=r"Could not find NET with id (?P<id>[0-9a-f]+)",
    standing="likely",
    says=(
        "NCCL: Could not find NET with id {id}; releases 2.24 to 2.26 may look for a network device by a number that no longer exists, fixed in "
        "2.27.3"
    ),
    says_zh="NCCL：Could not find NET with id {id}；2.24 到 2.26 可能用已不存在的编号查找网络设备，2.27.3 已修复",
    remedies=("upgrade-nccl", "which-nccl", "no-topology-file"),
)
# In containers some entries of the GID table cannot be read.
_ROCE_VERSION = Signature(
    needle="ncclIbRoceGetVersionNum",
    pattern=r"(?P<call>read|open) failed in ncclIbRoceGetVersionNum: (?P<error>[A-Z][\w ]{1,60})",
    standing="likely",
    says="NCCL: {call} failed in ncclIbRoceGetVersionNum: {error}: releases before 2.26.2 fail on entries of the GID table that a container hides",
    says_zh="NCCL：{call} failed in ncclIbRoceGetVersionNum：{error}：2.26.2 之前的版本遇到容器中不可读的 GID 表项就会失败",
    remedies=("upgrade-nccl", "which-nccl", "name-the-gid"),
)
_GIN_START = Signature(
    needle="ncclGinI",
    pattern=r"\bncclGinI(?:nit|b)\w*",
    near=_CRASHED,
    standing="likely",
    says="NCCL crashed while it looked for an adapter that GPUs can drive themselves (GIN): 2.28 does so, mended in 2.29",
    says_zh="NCCL 在查找可由 GPU 直接驱动的网卡（GIN）时崩溃：2.28 会这样，2.29 已修复",
    remedies=_UPGRADE,
)
_PROXY_SLOTS = Signature(
    needle="ncclLocalOpAppend",
    near=r"aarch64|sbsa|GB200|GH200|GB300|\bGrace\b",
    standing="possible",
    says="a thread stands in NCCL's ncclLocalOpAppend: on ARM, releases before 2.29.3 lose slots of their proxy until all ranks wait for ever",
    says_zh="有线程停在 NCCL 的 ncclLocalOpAppend：在 ARM 上，2.29.3 之前的版本会丢失 proxy 的槽位，直到所有 rank 永远等待",
    remedies=_UPGRADE,
)
_BUGS = {
    _SHARED_MEMORY: "shared-memory",
    _PCI_PATHS: "pci-paths",
    _NET_ID: "net-id",
    _ROCE_VERSION: "roce-version",
    _GIN_START: "gin-start",
    _PROXY_SLOTS: "proxy-slots",
}
# Functions and files of the RAS thread, which crashes in the middle of healthy trainings in 2.24 to 2.31, above all where it is asked.
_RAS = ("rasMsgHandle", "rasThreadMain", "ras/client_support.cc", "ras/collectives.cc", "ras/rasnet.cc", "ras/peers.cc", "ras/ras.cc")

CAUSE = Cause(
    id="nccl-bug",
    role="root",
    title="A known bug of NCCL",
    title_zh="NCCL 自身的已知缺陷",
    what="The release of NCCL in use has a fault that its maintainers know and that another release does not have.",
    why="A wheel of torch pins the NCCL it was built with, and new hardware or scale meets its faults first.",
    signatures=(
        _SHARED_MEMORY,
        *(
            Signature(
                needle=needle,
                # A warning of the RAS thread tells of another process that went.
                pattern=r"^(?!.{0,200}NCCL (?:WARN|INFO))",
                near=_CRASHED,
                standing="likely",
                says="NCCL's own RAS thread crashed; the training has no part in it",
                says_zh="NCCL 自己的 RAS 线程崩溃；与训练无关",
                remedies=("ras-off", "upgrade-nccl"),
            )
            for needle in _RAS
        ),
        _NET_ID,
        _ROCE_VERSION,
        _GIN_START,
        _PROXY_SLOTS,
        # 2.21 to 2.25: a split communicator used by several threads, or while its non-blocking start is not done.
        Signature(
            needle="ncclGroupCommJoin",
            near=rf"{_CRASHED}|gdb|core dump",
            standing="likely",
            says="NCCL crashed while a split communicator joined a group, as happens with several threads or a non-blocking start",
            says_zh="NCCL 在拆分出的通信器加入组时崩溃，多线程或非阻塞启动时会这样",
            remedies=("upgrade-nccl", "no-split", "which-nccl"),
        ),
        *(
            Signature(
                needle=library,
                pattern=rf"/{library}",
                near=crashed_in(library.removesuffix(".so")),
                standing="possible",
                says="the process crashed inside {library}",
                says_zh="进程在 {library} 内部崩溃",
                remedies=("which-nccl", "upgrade-nccl"),
            )
            for library in ("libnccl.so", "librccl.so")
        ),
        Signature(
            needle="ncclTopoGpuDistance",
            near=_CRASHED,
            standing="possible",
            says="NCCL crashed while it measured the distance of two GPUs",
            says_zh="NCCL 在计算两块 GPU 的距离时崩溃",
            remedies=_UPGRADE,
        ),
        Signature(
            needle="invalid next size",
            pattern=r"free\(\): invalid next size",
            near=r"NCCL|nccl",
            standing="possible",
            says="the heap was overwritten in a process that runs NCCL: 2.18 and 2.19 do so with NVLS and NICs of two ports",
            says_zh="运行 NCCL 的进程中堆被覆写：2.18 和 2.19 在使用 NVLS 和双端口网卡时会这样",
            remedies=("nvls-off", "upgrade-nccl"),
        ),
        _PCI_PATHS,
    ),
    in_logs=_in_logs,
    remedies=(
        Remedy(
            id="which-nccl",
            says="See which NCCL is really loaded: torch's own wheel, the system's, or one from LD_LIBRARY_PATH or LD_PRELOAD.",
            says_zh="查看实际加载的是哪个 NCCL：torch 自带的、系统的，还是 LD_LIBRARY_PATH 或 LD_PRELOAD 指定的。",
            command=(
                "python -c 'import torch; print(torch.cuda.nccl.version())'; grep -h libnccl /proc/$(pgrep -n -f train.py)/maps | awk '{print $6}' "
                "| uniq"
            ),
        ),
        Remedy(
            id="upgrade-nccl",
            says="Install a newer NCCL of the same major release on all hosts; it is binary compatible with the one that torch brings.",
            says_zh="在所有主机上安装同一大版本中更新的 NCCL；它与 torch 自带的二进制兼容。",
            command="pip install -U nvidia-nccl-cu12   # cu13 for CUDA 13",
            verify="NCCL_DEBUG=VERSION python -c 'import torch; print(torch.cuda.nccl.version())'",
        ),
        Remedy(
            id="ras-off",
            says="Turn the RAS thread off (NCCL 2.24 and later); nothing but its status port is lost.",
            says_zh="关闭 RAS 线程（NCCL 2.24 及以上）；只会失去状态查询端口。",
            env={"NCCL_RAS_ENABLE": "0"},
            verify="NCCL_DEBUG=INFO torchrun ... 2>&1 | grep -E 'NCCL_RAS_ENABLE set by environment|RAS client listening'",
        ),
        Remedy(
            id="nvls-off",
            says="Until then do without NVLink SHARP.",
            says_zh="在升级之前先不用 NVLink SHARP。",
            env={"NCCL_NVLS_ENABLE": "0"},
            verify="NCCL_DEBUG=INFO torchrun ... 2>&1 | grep 'NCCL_NVLS_ENABLE set by environment'",
        ),
        Remedy(
            id="no-topology-file",
            says="Leave out NCCL_TOPO_FILE and NCCL_GRAPH_FILE if they are set: a file of another machine names network devices that do not exist.",
            says_zh="若设置了 NCCL_TOPO_FILE 或 NCCL_GRAPH_FILE，请去掉：来自别的机器的文件会提到不存在的网络设备。",
            command="unset NCCL_TOPO_FILE NCCL_GRAPH_FILE",
        ),
        Remedy(
            id="name-the-gid",
            says="Until then name an entry of the GID table that the container shows: RoCE v2 with an IPv4 address.",
            says_zh="在升级之前，指定一个容器内可见的 GID 表项：带 IPv4 地址的 RoCE v2。",
            command="grep -H . /sys/class/infiniband/*/ports/1/gid_attrs/types/* 2>/dev/null; export NCCL_IB_GID_INDEX=3",
            verify="NCCL_DEBUG=INFO torchrun ... 2>&1 | grep 'NCCL_IB_GID_INDEX set by environment'",
        ),
        Remedy(
            id="no-split",
            says="Leave device_id out of init_process_group: new groups are then made afresh instead of split from the first.",
            says_zh="init_process_group 不传 device_id：新组会重新创建，而不是从第一个组拆分。",
        ),
    ),
    leads_to=("rank-exception", "network-blocked"),
    mistaken_for={
        "version-mismatch": "different releases on two hosts misread each other; a bug shows with one release everywhere",
        "gpu-newer-than-nccl": "a GPU that the release does not know at all fails with another text",
        "wsl-limits": "what WSL2 does not offer at all, no release of NCCL mends",
        "foreign-traffic": "a scanner makes sizes of thousand millions, or a connection that closes without a word",
        "illegal-memory-access": "most illegal accesses that surface in NCCL were made by other kernels",
    },
    sources=(
        "https://docs.nvidia.com/deeplearning/nccl/release-notes/index.html",
        "https://github.com/NVIDIA/nccl/issues/1176",
        "https://github.com/NVIDIA/nccl-tests/issues/287",
        "https://github.com/NVIDIA/nccl/issues/1996",
        "https://github.com/NVIDIA/nccl/issues/1515",
        "https://github.com/NVIDIA/nccl/issues/1748",
        "https://github.com/NVIDIA/nccl/issues/1573",
        "https://github.com/NVIDIA/nccl/pull/1881",
    ),
    hits=(
        "node7:2144:2144 [0] NCCL INFO ncclMaxSharedMem 82240 exceeds device/fn maxSharedMem 79856",
        (
            "[node7:405884] *** Process received signal ***\n[node7:405884] Signal: Segmentation fault (11)\n#3 0x0000000000122927 "
            "rasMsgHandlePeersUpdate()"
        ),
        "Program terminated with signal SIGSEGV, Segmentation fault.\n#5 rasThreadMain (arg=0x0) at ras/ras.cc:611",
        (
            "node7:41:60 [3] Caught signal 11 (Segmentation fault: address not mapped to object at address 0x48)\n#2 0x7f at ras/collectives.cc:684\n"
            "#3 0x7f at ras/client_support.cc:512\n#4 0x7f at ras/rasnet.cc:88\n#5 0x7f at ras/peers.cc:210"
        ),
        "[2026-11-03 10:00:01] node7:12:40 [0] graph/topo.h:234 NCCL WARN Could not find NET with id 0",
        "node7:12:40 [0] transport/net_ib.cc:268 NCCL WARN NET/IB: read failed in ncclIbRoceGetVersionNum: Invalid argument",
        "Signal: Segmentation fault (11)\n#3 ncclGinInit (comm=0x55) at plugin/gin.cc:120",
        "Thread 12 (LWP 812)\n#1 ncclLocalOpAppend (comm=0xaaaa) from /usr/lib/aarch64-linux-gnu/libnccl.so.2",
        (
            "Program terminated with signal SIGSEGV, Segmentation fault.\n#0  0x00007fe6f5292b63 in ncclGroupCommJoin (comm=0x55dadecf4690) at "
            "include/group.h:113"
        ),
        (
            "[node7:3301:0:3388] Caught signal 11 (Segmentation fault: address not mapped to object at address 0x48)\n"
            "==== backtrace (tid:   3388) ====\n 0  /usr/lib/libucs.so.0(ucs_handle_error+0x2d4) [0x7f11a2b1c274]\n"
            " 1  /opt/nccl/lib/libnccl.so.2(+0x120057) [0x7f11b4511057]"
        ),
        (
            "[node7:405884] *** Process received signal ***\n[node7:405884] Signal: Segmentation fault (11)\n"
            "[node7:405884] [ 0] /lib/x86_64-linux-gnu/libc.so.6(+0x42520)[0x7f5b]\n[node7:405884] [ 1] /opt/rocm/lib/librccl.so.1(+0x8a1f0)[0x7f5c]"
        ),
        "Signal: Segmentation fault (11)\n#1  ncclTopoGpuDistance (system=0x7f1f, gpu1=0, gpu2=1) at graph/topo.cc:640",
        "node7:12:40 [0] NCCL INFO NVLS multicast support is available on dev 0\nfree(): invalid next size (fast)",
        "node7:12:40 [0] graph/xml.cc:469 NCCL WARN Could not find real path of /sys/class/pci_bus/0000:0b/../../0000:0b:00.0",
    ),
    near_misses=(
        "node7:12:40 [0] NCCL INFO RAS client listening socket at ::1<28028>",
        "Thread 12 (LWP 812)\n#1 ncclLocalOpAppend (comm=0x5555) from /usr/lib/x86_64-linux-gnu/libnccl.so.2",
        "node7:12:40 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/RoCE [RO]; OOB eth0:10.0.0.7<0>",
        "free(): invalid next size (fast)",
        (
            "[node7:3301:0:3388] Caught signal 11 (Segmentation fault: address not mapped to object at address 0x48)\n"
            " 0  /usr/lib/libucs.so.0(ucs_handle_error+0x2d4) [0x7f11a2b1c274]\n 1  /srv/ext/libsampler.so(+0x57) [0x7f11b4511057]\n"
            " 2  /opt/nccl/lib/libnccl.so.2(+0x120057) [0x7f11b4511057]"
        ),
        "node7:482:6900 [4] bootstrap.cc:77 NCCL WARN Message truncated : received 256 bytes instead of 4",
        "node7:12:40 [0] NCCL INFO Could not find real path of /sys/class/net/eth0/device",
        (
            "RuntimeError: NCCL error in: ProcessGroupNCCL.cpp:1269, internal error - please report this issue to the NCCL developers, NCCL "
            "version 2.18.5"
        ),
    ),
    explain={
        "en": (
            "NCCL itself went wrong, in a way that its release notes or its maintainers name, and another release does not do it. 'Please "
            "report this issue to the NCCL developers' alone is no such sign: NCCL prints it for every failed check, and 2.18 for every "
            "network error. First make sure which library is loaded, since a wheel, the system and LD_LIBRARY_PATH may each bring one. Then "
            "install a newer one on all hosts: within NCCL 2 it can be replaced under an existing torch."
        ),
        "zh": (
            "这次出错的是 NCCL 自己，其发布说明或维护者已经指出，换一个版本就没有。单凭“please report this issue to the NCCL developers”不能说"
            "明问题：任何检查失败 NCCL 都会打印它，2.18 甚至把所有网络错误都这样报。先确认实际加载的是哪个库，因为 wheel、系统和 "
            "LD_LIBRARY_PATH 可能各带一个。然后在所有主机上安装更新的版本：在 NCCL 2 之内，可以在现有 torch 下直接替换。"
        ),
    },
)
