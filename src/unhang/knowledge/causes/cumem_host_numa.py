"""cumem-host-numa: ranks disagree about host-memory handles, and one reads the other's handle as a file name."""

from __future__ import annotations

from unhang.knowledge.cause import Cause, Signature
from unhang.model import Remedy

# NCCL 2.24+ shares host memory by cuMem handles where CUDA allows it, and each rank asks on its own (a probe since 2.26.3): a rank whose NUMA node
# CUDA refuses falls back to /dev/shm and takes the 64 bytes of its peer's handle for a path and a size (src/transport/shm.cc).
# A true name is six letters and digits, or nccl-shm-recv-... of old.
_TRUE_NAME = r"(?:[A-Za-z0-9]{6}|shm-[\w-]{4,80})(?=[ ,.:]|$)"

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
        ),
        Signature(
            needle="Error while attaching to shared memory segment",
            pattern=rf"attaching to shared memory segment /dev/shm/nccl-(?!{_TRUE_NAME})[^(]{{0,160}}?\(size (?P<size_bytes>-?[1-9]\d*)\)",
            says=(
                "NCCL wanted to attach to a segment without a proper name (size {size_bytes}): it read its peer's cuMem handle as a file name, so "
                "the ranks disagree about host memory"
            ),
        ),
        # The name may hold a line break or be cut: what follows "nccl-" alone tells.
        Signature(
            needle="Error while attaching to shared memory segment",
            pattern=r"attaching to shared memory segment /dev/shm/nccl-(?:[^\x00-\x7f]|[\x01-\x1f]|$)",
            standing="likely",
            says="NCCL wanted to attach to a segment with a garbled name: it read its peer's cuMem handle as a file name",
        ),
        Signature(
            needle="ncclCuMemHostEnable",
            pattern=r"ncclCuMemHostEnable\b",
            near=r"[Ss]egmentation fault|SIGSEGV|Signal 11|signal 11|segfault",
            standing="likely",
            says="the process crashed in NCCL's test for cuMem host memory, as older drivers do on NUMA nodes without memory",
            remedies=("cumem-host-off", "repair-numa", "newer-driver"),
        ),
    ),
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
