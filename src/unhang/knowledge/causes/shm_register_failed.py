"""shm-register-failed: the segment exists, and CUDA refused to register it."""

from __future__ import annotations

from unhang.knowledge.cause import Cause, Signature
from unhang.knowledge.causes import shm_permission
from unhang.model import Remedy

# The only CUDA calls in these files are cudaHostRegister and what belongs to it. An error left over from a kernel (illegal memory access, launch
# failure) surfaces here too and is no refusal, so the refusals are named.
_REFUSAL = (
    r"(?P<error>invalid argument|out of memory|operation not supported|operation not permitted|OS call failed or operation not supported on this OS"
    r"|part or all of the requested memory range is already mapped|resource already mapped|invalid resource handle|unknown error)"
)
_FULL = r"No space left on device|failed to extend|fallocate failed"
_WSL = r"\bWSL\d?\b|microsoft-standard|/usr/lib/wsl|\b(?:DESKTOP|LAPTOP)-[A-Z0-9]{4,}"

CAUSE = Cause(
    id="shm-register-failed",
    role="root",
    title="CUDA refused to register a shared-memory segment",
    title_zh="CUDA 拒绝注册共享内存段",
    what="NCCL made or opened its segment in /dev/shm, and cudaHostRegister, which lets the GPU read it, returned an error.",
    why=(
        "The driver cannot pin those pages: pinned memory is used up or forbidden (memory cgroup, virtual machine), pages lie where the driver does "
        "not accept them, GPU memory is full, or GPU isolation in the container is broken."
    ),
    signatures=(
        Signature(
            needle="NCCL WARN Cuda failure",
            pattern=rf"(?:include/shm\.h|misc/shmutils\.cc):\d+ (?:\([^)]{{1,80}}\) )?NCCL WARN Cuda failure(?: \d+)? '{_REFUSAL}'",
            unless=_WSL,
            says="CUDA refused to register NCCL's shared memory: {error}; the segment itself was made, so /dev/shm has room",
            says_zh="CUDA 拒绝注册 NCCL 的共享内存：{error}；段本身已经建成，所以 /dev/shm 有空间",
        ),
        Signature(
            needle="NCCL WARN Cuda failure",
            pattern=rf"NCCL WARN Cuda failure(?: \d+)? '{_REFUSAL}'",
            near=r"Error while (?:creating|attaching to) shared memory segment",
            unless=rf"{_FULL}|{_WSL}",
            standing="likely",
            says="CUDA refused to register NCCL's shared memory: {error}; the segment itself was made, so /dev/shm has room",
            says_zh="CUDA 拒绝注册 NCCL 的共享内存：{error}；段本身已经建成，所以 /dev/shm 有空间",
        ),
        # What torch repeats of NCCL, without NCCL_DEBUG: the kind of error tells a CUDA call from a system call.
        Signature(
            needle="shared memory segment",
            pattern=(
                r"Error while (?:creating|attaching to) shared memory segment (?P<path>/dev/shm/nccl-[A-Za-z0-9]{6}) \(size "
                r"(?P<size_bytes>[1-9]\d*)\)"
            ),
            near=r"unhandled cuda error|ncclUnhandledCudaError",
            unless=rf"{_FULL}|Permission denied|Read-only file system|No such file or directory|unhandled system error|ncclSystemError|{_WSL}",
            standing="likely",
            says="a CUDA call failed on NCCL's segment {path} ({size_bytes} bytes): it was made, and could not be registered",
            says_zh="某个 CUDA 调用在 NCCL 的段 {path}（{size_bytes} 字节）上失败：段已建成，但无法注册",
        ),
    ),
    remedies=(
        Remedy(
            id="look-at-cuda",
            says=(
                "See whether the driver can pin memory here at all: the same call with as much memory, outside NCCL. If it fails, the driver, the "
                "virtual machine or the container is at fault."
            ),
            says_zh="先确认驱动在这里能否锁页：在 NCCL 之外用同样大小调用一次。如果也失败，问题在驱动、虚拟机或容器。",
            command=(
                'python -c "import torch; torch.cuda.init(); print(torch.empty(64 << 20, dtype=torch.uint8).pin_memory().is_pinned())"; ulimit -l; '
                "nvidia-smi"
            ),
        ),
        shm_permission.CAUSE.remedy("without-shm"),
        Remedy(
            id="cumem-host",
            says="With NCCL 2.24 and newer and a driver of CUDA 12.6 or newer, host memory can come from CUDA itself, which registers nothing.",
            says_zh="NCCL 2.24 及以上配合 CUDA 12.6 及以上的驱动，可以让 CUDA 自己分配主机内存，无需注册。",
            env={"NCCL_CUMEM_ENABLE": "1", "NCCL_CUMEM_HOST_ENABLE": "1"},
            verify=(
                "NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,ENV torchrun --nproc-per-node N train.py 2>&1 | grep 'NCCL_CUMEM_HOST_ENABLE set by "
                "environment to 1'"
            ),
        ),
        Remedy(
            id="upgrade",
            says="Upgrade the driver and NCCL together; a driver older than the CUDA runtime of the build is a frequent reason.",
            says_zh="同时升级驱动和 NCCL；驱动比构建所用的 CUDA 运行时旧，是常见原因。",
            command=(
                "nvidia-smi --query-gpu=driver_version --format=csv,noheader; python -c 'import torch; print(torch.version.cuda, "
                "torch.cuda.nccl.version())'"
            ),
        ),
    ),
    leads_to=("rank-exception", "shm-exhausted", "shm-stale-or-missing"),
    mistaken_for={
        "shm-exhausted": "there a system call failed for lack of space; here a Cuda failure stands right before the same line, and df shows room",
        "gpu-oom": "'out of memory' from shmutils.cc concerns pinned host memory first; a GPU without free memory gives it too, and nvidia-smi tells",
        "illegal-memory-access": "an illegal access that surfaces in shmutils.cc happened earlier, in a kernel",
        "wsl-limits": "under WSL2 pinned memory is limited, and the same line appears",
        "cumem-host-numa": "there the name is garbled or the size 0",
    },
    sources=(
        "https://docs.nvidia.com/cuda/cuda-runtime-api/group__CUDART__MEMORY.html",
        "https://github.com/NVIDIA/nccl/issues/1518",
        "https://github.com/NVIDIA/nccl/blob/master/src/misc/shmutils.cc",
        "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-cumem-host-enable",
    ),
    hits=(
        (
            "node7:812:901 [1] misc/shmutils.cc:103 NCCL WARN Cuda failure 'invalid argument'\n"
            "\n"
            "node7:812:901 [1] misc/shmutils.cc:114 NCCL WARN Error while creating shared memory segment /dev/shm/nccl-Qr4tZp (size 9637888)"
        ),
        "node7:812:901 [2] include/shm.h:42 NCCL WARN Cuda failure 'invalid argument'",
        (
            "(RayWorkerWrapper pid=812) [2026-11-03 10:00:01] node7:812:901 [1] misc/shmutils.cc:118 (ncclShmOpen) NCCL WARN Cuda failure 2 'out of "
            "memory'\n"
            "(RayWorkerWrapper pid=812) [2026-11-03 10:00:01] node7:812:901 [1] misc/shmutils.cc:132 (ncclShmOpen) NCCL WARN Error while creating "
            "shared memory segment /dev/shm/nccl-Qr4tZp (size 9637888), error: Success (0)"
        ),
        ("NCCL WARN Cuda failure 'invalid argument'\nNCCL WARN Error while creating shared memory segment /dev/shm/nccl-Qr4tZp (size 9637888)"),
        (
            "[rank1]: torch.distributed.DistBackendError: NCCL error in: ../torch/csrc/distributed/c10d/NCCLUtils.hpp:275, unhandled cuda error "
            "(run with NCCL_DEBUG=INFO for details), NCCL version 2.20.5\n"
            "[rank1]: ncclUnhandledCudaError: Call to CUDA function failed.\n"
            "[rank1]: Last error:\n"
            "[rank1]: Error while creating shared memory segment /dev/shm/nccl-Qr4tZp (size 9637888)"
        ),
    ),
    near_misses=(
        (
            "node7:812:901 [1] misc/shmutils.cc:72 NCCL WARN Error: failed to extend /dev/shm/nccl-Qr4tZp to 9637892 bytes\n"
            "node7:812:901 [1] misc/shmutils.cc:113 NCCL WARN Error while creating shared memory segment /dev/shm/nccl-Qr4tZp (size 9637888)"
        ),
        "node7:812:901 [1] transport/p2p.cc:238 NCCL WARN Cuda failure 'invalid argument'",
        "node7:812:901 [1] misc/shmutils.cc:103 NCCL WARN Cuda failure 'an illegal memory access was encountered'",
        "node7:812:901 [1] include/alloc.h:178 NCCL WARN Cuda failure 2 'out of memory'",
        (
            "ncclSystemError: System call (e.g. socket, malloc) or external library call failed or device error.\n"
            "Last error:\n"
            "Error while creating shared memory segment /dev/shm/nccl-0aPq9x (size 9637888)"
        ),
    ),
    explain={
        "en": (
            "NCCL makes a file in /dev/shm, maps it, and asks CUDA to register it so that the GPU can read and write it. The file was made and "
            "mapped; CUDA said no. NCCL then prints the same 'Error while creating shared memory segment' as for a full /dev/shm, so only the line "
            "before it tells: 'Cuda failure' here, 'failed to extend' there. Enlarging /dev/shm does not help. Test whether torch can pin memory at "
            "all on this machine, look at the driver, the virtual machine and the container; NCCL_SHM_DISABLE=1 gets the job running meanwhile."
        ),
        "zh": (
            "NCCL 在 /dev/shm 里创建文件并映射，然后请 CUDA 注册，使 GPU 能读写它。文件已经创建并映射成功，是 CUDA 拒绝了。随后 NCCL 打印的 “Error "
            "while creating shared memory segment” 与 /dev/shm 空间不足时完全一样，只有前一行能区分：这里是 “Cuda failure”，那里是 “failed to "
            "extend”。所以扩大 /dev/shm 没有用。先测试这台机器上 torch 能否锁页内存，再检查驱动、虚拟机和容器；设置 NCCL_SHM_DISABLE=1 可以先让任务"
            "跑起来。"
        ),
    },
)
