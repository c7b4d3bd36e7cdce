"""cumem-host-numa: ranks disagree about host-memory handles, and one reads the other's handle as a file name."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from unhang.knowledge.cause import Cause, Signature
from unhang.knowledge.text import Text, joined
from unhang.model import Evidence, HostFinding, Remedy

if TYPE_CHECKING:
    from unhang.facts.numa import Device, Node
    from unhang.facts.snapshot import Snapshot

# NCCL 2.24+ shares host memory by cuMem handles where CUDA allows it, and each rank asks on its own (a probe since 2.26.3): a rank whose NUMA node
# CUDA refuses falls back to /dev/shm and takes the 64 bytes of its peer's handle for a path and a size (src/transport/shm.cc).
# A true name is six letters and digits, or nccl-shm-recv-... of old.
_TRUE_NAME = r"(?:[A-Za-z0-9]{6}|shm-[\w-]{4,80})(?=[ ,.:]|$)"

_IN_CONTAINERS = ("docker", "podman", "kubernetes", "container", "apptainer", "lxc")


def _on_host(host: Snapshot) -> Iterable[HostFinding]:
    from unhang.facts import container, numa

    seen = host.get(numa.SUBJECT)
    # On Grace, nodes of a GPU's own memory have no CPUs, and those kept for MIG have nothing at all: what matters is at which node a GPU stands.
    if seen is None or len(seen.nodes) < 2 or len(seen.gpus) < 2 or seen.cumem_host_enable == "0":
        return
    nodes = {node.id: node for node in seen.nodes}
    empty = {g.address: g for g in seen.gpus if g.node in nodes and _lacks(nodes[g.node])}
    forbidden = [g for g in seen.gpus if g.address not in empty and g.node in nodes and g.node not in (seen.memory_allowed or nodes)]
    fine = len(seen.gpus) - len(empty) - len(forbidden)
    in_container = container.kind(host) in _IN_CONTAINERS
    if empty:
        lacking = sorted({g.node for g in empty.values() if g.node is not None})
        yield CAUSE.host_finding(
            area="numa",
            # Where all ranks are refused alike, they agree.
            severity="error" if fine else "note",
            says=Text("{gpus} of {all} at NUMA {nodes}, which {what}", "{all} 块 GPU 中有 {n} 块位于 NUMA 节点 {numbers}，{what}").fill(
                gpus=_gpus(len(empty)),
                n=len(empty),
                all=len(seen.gpus),
                nodes=f"node {lacking[0]}" if len(lacking) == 1 else f"nodes {', '.join(map(str, lacking))}",
                numbers="、".join(map(str, lacking)),
                what=_what(nodes[n] for n in lacking),
            ),
            leads_to=_LEADS_TO,
            evidence=(
                *(Evidence(source=f"/sys/devices/system/node/node{n}", text=_told(nodes[n])) for n in lacking[:2]),
                *(_at(gpu) for gpu in list(empty.values())[:2]),
            ),
            remedies=("cumem-host-off", "repair-numa", "see-numa"),
        )
    if forbidden and fine:
        allowed = numa.listed(seen.memory_allowed or ())
        yield CAUSE.host_finding(
            area="numa",
            severity="warning",
            says=Text(
                f"{_gpus(len(forbidden))} of {len(seen.gpus)} at NUMA nodes whose memory this process may not use (it may use node {allowed})",
                f"{len(seen.gpus)} 块 GPU 中有 {len(forbidden)} 块所在的 NUMA 节点，其内存本进程无权使用（可用的节点：{allowed}）",
            ),
            leads_to=Text("where a training uses those GPUs together with others: {what}", "训练同时使用这些 GPU 和其他 GPU 时：{what}").fill(
                what=_LEADS_TO
            ),
            evidence=(Evidence(source="/proc/self/status", text=f"Mems_allowed_list: {allowed}"), *(_at(gpu) for gpu in forbidden[:2])),
            remedies=("cumem-host-off", *(("cap-sys-nice",) if in_container else ()), "see-numa"),
        )


_LEADS_TO = Text(
    "NCCL from 2.24 on with driver 12.6 or newer: CUDA refuses host memory there, ranks at other nodes get it, and one reads the other's handle as a "
    "file name ('attaching to shared memory segment ... (size 0)')",
    "NCCL 2.24 及以后、驱动支持 CUDA 12.6 或更新时：CUDA 在那里拒绝分配主机内存，其他节点上的 rank 却能得到，于是一方把另一方的句柄当作文件名"
    "（'attaching to shared memory segment ... (size 0)'）",
)


def _lacks(node: Node) -> bool:
    return node.memory_bytes == 0 or node.cpu_count == 0


def _gpus(count: int) -> str:
    return "1 GPU" if count == 1 else f"{count} GPUs"


def _what(nodes: Iterable[Node]) -> Text:
    lacking = list(nodes)
    memory, cpus = Text("memory", "内存"), Text("CPUs", " CPU")
    what = [word for word, lack in ((memory, [n.memory_bytes == 0 for n in lacking]), (cpus, [n.cpu_count == 0 for n in lacking])) if any(lack)]
    return Text("{have} no {what}", "没有{what}").fill(have="has" if len(lacking) == 1 else "have", what=joined(what, Text(" and no ", "，也没有")))


def _told(node: Node) -> str:
    from unhang.facts.units import size

    return f"cpulist: {node.cpus or '(empty)'}; MemTotal: {size(node.memory_bytes)}"


def _at(gpu: Device) -> Evidence:
    return Evidence(source=f"/sys/bus/pci/devices/{gpu.address}/numa_node", text=str(gpu.node))


CAUSE = Cause(
    id="cumem-host-numa",
    role="root",
    title="Ranks disagree about NCCL's host memory (cuMem and NUMA)",
    title_zh="各进程对 NCCL 主机内存方式判断不一致（cuMem 与 NUMA）",
    what="A rank that uses /dev/shm reads the cuMem handle of a rank that does not as a file name, and cannot attach to a segment that never was.",
    why="CUDA can allocate host memory on some NUMA nodes and not on others: a node without memory or without CPUs, or a container that hides some.",
    signatures=(
        Signature(
            needle="Error while attaching to shared memory segment",
            pattern=r"attaching to shared memory segment (?P<path>/dev/shm/nccl-[^(]{0,160}?) ?\(size (?P<size_bytes>0)\)",
            says=(
                "NCCL wanted to attach to a segment of size {size_bytes}: it read its peer's cuMem handle as a file name, so the ranks disagree "
                "about host memory"
            ),
            says_zh="NCCL 要附加到大小为 {size_bytes} 的段：它把对端的 cuMem 句柄当成了文件名，可见各 rank 的主机内存方式不一致",
        ),
        Signature(
            needle="Error while attaching to shared memory segment",
            pattern=rf"attaching to shared memory segment /dev/shm/nccl-(?!{_TRUE_NAME})[^(]{{0,160}}?\(size (?P<size_bytes>-?[1-9]\d*)\)",
            says=(
                "NCCL wanted to attach to a segment without a proper name (size {size_bytes}): it read its peer's cuMem handle as a file name, so "
                "the ranks disagree about host memory"
            ),
            says_zh="NCCL 要附加到没有正常名字的段（大小 {size_bytes}）：它把对端的 cuMem 句柄当成了文件名，可见各 rank 的主机内存方式不一致",
        ),
        # The name may hold a line break or be cut: what follows "nccl-" alone tells.
        Signature(
            needle="Error while attaching to shared memory segment",
            pattern=r"attaching to shared memory segment /dev/shm/nccl-(?:[^\x00-\x7f]|[\x01-\x1f]|$)",
            standing="likely",
            says="NCCL wanted to attach to a segment with a garbled name: it read its peer's cuMem handle as a file name",
            says_zh="NCCL 要附加到名字是乱码的段：它把对端的 cuMem 句柄当成了文件名",
        ),
        Signature(
            needle="ncclCuMemHostEnable",
            pattern=r"ncclCuMemHostEnable\b",
            near=r"[Ss]egmentation fault|SIGSEGV|Signal 11|signal 11|segfault",
            standing="likely",
            says="the process crashed in NCCL's test for cuMem host memory, as older drivers do on NUMA nodes without memory",
            says_zh="进程在 NCCL 检测 cuMem 主机内存时崩溃，较旧的驱动在没有内存的 NUMA 节点上会这样",
            remedies=("cumem-host-off", "repair-numa", "newer-driver"),
        ),
    ),
    on_host=_on_host,
    remedies=(
        Remedy(
            id="cumem-host-off",
            says="Let all ranks use /dev/shm: set this on every rank, on all hosts. In a container make /dev/shm large enough first.",
            says_zh="让所有进程都使用 /dev/shm：在所有主机的每个进程上设置。先确保 /dev/shm 足够大（容器里至少 1 GiB）。",
            env={"NCCL_CUMEM_HOST_ENABLE": "0"},
            verify=(
                "NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,ENV torchrun --nproc-per-node N train.py 2>&1 | grep 'NCCL_CUMEM_HOST_ENABLE set by "
                "environment to 0'"
            ),
        ),
        Remedy(
            id="see-numa",
            says="See which NUMA nodes lack memory or CPUs, and on which each GPU sits.",
            says_zh="查看哪些 NUMA 节点没有内存或没有 CPU，以及每块 GPU 属于哪个节点。",
            command=(
                "numactl -H; cat /sys/devices/system/node/has_cpu /sys/devices/system/node/has_memory; "
                "nvidia-smi topo -m; grep -H . /sys/bus/pci/devices/*/numa_node | grep -v ':-1'"
            ),
        ),
        Remedy(
            id="repair-numa",
            says=(
                "Fill the memory channels of every socket, undo sub-NUMA clustering that leaves nodes empty, and give virtual machines a whole NUMA "
                "layout."
            ),
            says_zh="给每个 CPU 插槽都插上内存，关闭会产生空节点的 sub-NUMA 分簇，并给虚拟机完整的 NUMA 布局。",
            verify="numactl -H | grep size",
        ),
        Remedy(
            id="cap-sys-nice",
            says="In a container allow NUMA calls, and do not confine it to CPUs or memory of some nodes only.",
            says_zh="在容器里允许 NUMA 相关调用，并且不要只把部分节点的 CPU 或内存给它。",
            command="docker run --cap-add SYS_NICE --ipc=host --gpus all IMAGE",
            verify="numactl -H",
        ),
        Remedy(
            id="newer-driver",
            says="Upgrade the NVIDIA driver: the crash in this allocation is reported as mended in later branches.",
            says_zh="升级 NVIDIA 驱动：据报该分配中的崩溃已在后续分支修复。",
            command="nvidia-smi --query-gpu=driver_version --format=csv,noheader",
        ),
    ),
    leads_to=("rank-exception",),
    mistaken_for={
        "shm-exhausted": "/dev/shm is nearly empty here; a larger one changes nothing",
        "shm-stale-or-missing": "a segment that was removed still has a proper name and a size",
        "shm-permission": "no permission is involved: the path never existed",
    },
    sources=(
        "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-cumem-host-enable",
        "https://github.com/NVIDIA/nccl/issues/2190",
        "https://github.com/NVIDIA/nccl/issues/2106",
        "https://github.com/NVIDIA/nccl/blob/master/src/transport/shm.cc",
    ),
    hits=(
        (
            "(WorkerDict pid=812) [2026-11-03 10:00:01] node7:812:901 [0] misc/shmutils.cc:93 NCCL WARN Call to open failed: No such file or "
            "directory\n"
            "(WorkerDict pid=812) [2026-11-03 10:00:01] node7:812:901 [0] misc/shmutils.cc:129 NCCL WARN Error while attaching to shared memory "
            "segment /dev/shm/nccl-\u040c (size 0), error: No such file or directory (2)"
        ),
        "[rank4]: Last error:\n[rank4]: Error while attaching to shared memory segment /dev/shm/nccl- (size 0), error: No such file or directory (2)",
        (
            "node7:812:901 [0] misc/shmutils.cc:129 NCCL WARN Error while attaching to shared memory segment /dev/shm/nccl- (size 192814336), "
            "error: No such file or directory (2)"
        ),
        (
            "[2026-11-03 10:00:01] node7:812:901 [4] os/linux.cc:702 (ncclShmOpen) NCCL WARN Error while attaching to shared memory segment "
            "/dev/shm/nccl-\ufffd\ufffdQ\x02 (size 1), error: No such file or directory (2)"
        ),
        "node7:812:901 [0] misc/shmutils.cc:129 NCCL WARN Error while attaching to shared memory segment /dev/shm/nccl-\ufffd",
        ("Fatal Python error: Segmentation fault\n 3 0x00000000000b1d20 ncclCuMemHostEnable()  ???:0"),
    ),
    near_misses=(
        (
            "node7:812:901 [0] misc/shmutils.cc:129 NCCL WARN Error while attaching to shared memory segment /dev/shm/nccl-k3Wq8Z (size 14156128), "
            "error: No such file or directory (2)"
        ),
        (
            "node7:812:901 [0] misc/shmutils.cc:114 NCCL WARN Error while attaching to shared memory segment nccl-shm-recv-51d0c2aa7be1903f-1-2-3 "
            "(size 4460544)"
        ),
        (
            "node7:812:901 [1] misc/shmutils.cc:132 NCCL WARN Error while creating shared memory segment /dev/shm/nccl-Qr4tZp (size 9637888), "
            "error: No space left on device (28)"
        ),
        "node7:812:901 [0] NCCL INFO NCCL_CUMEM_HOST_ENABLE set by environment to 0.",
        "node7:812:901 [0] NCCL INFO Channel 00 : 0[0] -> 1[1] via SHM/direct/direct",
    ),
    explain={
        "en": (
            "Since 2.24 NCCL can share host memory between ranks by CUDA's cuMem handles instead of files in /dev/shm. Each rank decides alone "
            "whether that works, by the NUMA node of its GPU. Where one node has no memory or no CPUs (empty memory channels, sub-NUMA clustering, "
            "a container or a virtual machine that shows only part), some ranks use handles and others files, and one that expects a file reads its "
            "peer's handle as a name: the name is garbled or empty, and the size 0. Nothing was deleted, nothing is full, and permissions are "
            "right, so cleaning or enlarging /dev/shm does not help. Set NCCL_CUMEM_HOST_ENABLE=0 on all ranks, or repair the NUMA layout."
        ),
        "zh": (
            "从 2.24 起，NCCL 可以用 CUDA 的 cuMem 句柄在进程间共享主机内存，而不必在 /dev/shm 建文件。每个进程各自根据其 GPU 所在的 NUMA 节点判断这"
            "是否可用。如果某个节点没有内存或没有 CPU（内存通道没插满、sub-NUMA 分簇、容器或虚拟机只看到一部分），就会有的进程用句柄、有的用文件；等"
            "待文件的一方把对方的句柄当成文件名，于是名字是乱码或为空，大小为 0。没有文件被删，/dev/shm 没有满，权限也没问题，所以清理或扩大 "
            "/dev/shm 都没有用。在所有进程上设置 NCCL_CUMEM_HOST_ENABLE=0，或者修好 NUMA 布局。"
        ),
    },
)
