"""wsl-limits: not supported under WSL2."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from unhang.knowledge.cause import Cause, LogView, Signature
from unhang.knowledge.text import NOTHING, Text
from unhang.model import Evidence, Finding, HostFinding, Remedy

if TYPE_CHECKING:
    from unhang.facts.snapshot import Snapshot
    from unhang.logs import Hit
    from unhang.records.incident_view import IncidentView

# Windows names its hosts DESKTOP-XXXXXXX and LAPTOP-XXXXXXX; NCCL itself never runs on Windows, so such a host in its lines is WSL2.
_HERE = r"\bWSL\d?\b|microsoft-standard|/usr/lib/wsl|\b(?:DESKTOP|LAPTOP)-[A-Z0-9]{4,}:\d+:\d+ \["
# A machine that runs under WSL2 fails for every other reason too: the platform alone says nothing. These do not work there, or only in part.
_AFFECTED = ("shm-register-failed", "p2p-broken", "unhandled-generic", "shm-exhausted")
_PLATFORM = Text("this runs under WSL2", "这是在 WSL2 下运行的")
_PINNED = Text("host memory could not be pinned: WSL2 allows a part of it only", "主机内存未能锁页：WSL2 只允许锁住其中一部分")


def _in_run(picture: IncidentView) -> Finding | None:
    return _of_hits(picture.hits_of(CAUSE.id), affected=any(picture.hits_of(c) for c in _AFFECTED))


def _in_logs(view: LogView) -> Finding | None:
    return _of_hits(view.hits_of(CAUSE.id), affected=any(view.hits_of(c) for c in _AFFECTED), view=view)


def _of_hits(hits: tuple[Hit, ...], *, affected: bool, view: LogView | None = None) -> Finding | None:
    own = [h for h in hits if h.signature.says not in (_PLATFORM.en, _PINNED.en)]
    if own:
        return CAUSE.of_hits(own, view)
    pinned = [h for h in hits if h.signature.says == _PINNED.en]
    if len(pinned) == len(hits):
        return None
    if pinned:
        return CAUSE.of_hits(pinned, view, standing="likely", remedies=("native-linux",))
    if not affected:
        return None
    return CAUSE.of_hits(
        hits,
        view,
        standing="likely",
        says=Text(
            "a CUDA or system call failed inside NCCL under WSL2, which supports pinned memory and peer access only in part",
            "NCCL 内部的一个 CUDA 调用或系统调用在 WSL2 下失败，WSL2 只部分支持锁页内存和 peer access",
        ),
    )


def _on_host(host: Snapshot) -> Iterable[HostFinding]:
    from unhang.facts import container, gpu

    seen, gpus = host.get(container.SUBJECT), host.get(gpu.SUBJECT)
    if seen is None or "microsoft" not in (seen.kernel or "").lower():
        return
    # All of Windows' GPUs stand behind one /dev/dxg.
    reached = any(d.path.startswith("/dev/dxg") for d in seen.devices)
    yield CAUSE.host_finding(
        area="container",
        severity="warning" if gpus is not None and len(gpus.gpus) > 1 else "note",
        says=Text(f"this is WSL (kernel {seen.kernel})", f"这是 WSL（内核 {seen.kernel}）")
        + (NOTHING if reached else Text("; there is no /dev/dxg, so no GPU reaches it", "；没有 /dev/dxg，因此其中没有可用的 GPU")),
        leads_to=Text(
            "between several GPUs peer access and registered shared memory do not work, and little host memory can be pinned; one GPU is fine",
            "多个 GPU 之间 peer access 和注册共享内存不可用，能锁页的主机内存很少；单个 GPU 不受影响",
        ),
        evidence=(Evidence(source="/proc/sys/kernel/osrelease", text=seen.kernel or ""),),
        remedies=("no-p2p-no-shm", "newer-nccl", "native-linux"),
    )


CAUSE = Cause(
    id="wsl-limits",
    role="root",
    title="Not supported under WSL2",
    title_zh="WSL2 不支持",
    what="CUDA under WSL2 goes through Windows' driver, and part of what NCCL needs is missing or limited there.",
    why=(
        "Pinned system memory is limited, CUDA IPC and peer access between GPUs are missing or partial, NVML answers only some questions, and GPUs "
        "in TCC mode are not shown at all."
    ),
    signatures=(
        Signature(
            needle="GPU access blocked by the operating system",
            says="Windows does not give the GPU to WSL2: driver and WSL kernel do not fit, or the GPU is in TCC mode",
            says_zh="Windows 没有把 GPU 交给 WSL2：驱动与 WSL 内核不匹配，或 GPU 处于 TCC 模式",
            remedies=("wsl-driver", "native-linux"),
        ),
        Signature(
            needle="NCCL WARN Cuda failure",
            pattern=r"NCCL WARN Cuda failure(?: \d+)? '(?P<error>[^']{1,120})'",
            near=_HERE,
            standing="likely",
            says="a CUDA call of NCCL failed under WSL2: {error}",
            says_zh="NCCL 的一个 CUDA 调用在 WSL2 下失败：{error}",
            remedies=("no-p2p-no-shm", "newer-nccl", "native-linux"),
        ),
        Signature(
            needle="Error while creating shared memory segment",
            pattern=r"creating shared memory segment (?P<path>\S{1,160}) \(size (?P<size_bytes>\d+)\)",
            near=_HERE,
            unless=r"No space left on device|failed to extend",
            standing="likely",
            says="NCCL could not register {path} ({size_bytes} bytes) under WSL2, where pinned memory is limited",
            says_zh="NCCL 在 WSL2 下无法注册 {path}（{size_bytes} 字节），那里的锁页内存有限",
            remedies=("no-p2p-no-shm", "newer-nccl", "native-linux"),
        ),
        Signature(needle="microsoft-standard", standing="possible", says=_PLATFORM.en, says_zh=_PLATFORM.zh, keep=1),
        Signature(needle="as WSL is detected", standing="possible", says=_PLATFORM.en, says_zh=_PLATFORM.zh, keep=1),
        # A name begins a line of NCCL; "LAPTOP-" is too short a literal, and NCCL prints "Bootstrap" once for each process.
        Signature(
            needle="DESKTOP-", pattern=r"\bDESKTOP-[A-Z0-9]{4,}:\d+:\d+ \[", standing="possible", says=_PLATFORM.en, says_zh=_PLATFORM.zh, keep=1
        ),
        Signature(
            needle=" NCCL INFO Bootstrap",
            pattern=r"\bLAPTOP-[A-Z0-9]{4,}:\d+:\d+ \[",
            standing="possible",
            says=_PLATFORM.en,
            says_zh=_PLATFORM.zh,
            keep=1,
        ),
        Signature(
            needle="error: out of memory",
            near=r"\bpin_memory\(|cudaHostAlloc|cudaMallocHost|cudaHostRegister",
            standing="possible",
            says=_PINNED.en,
            says_zh=_PINNED.zh,
        ),
    ),
    in_run=_in_run,
    in_logs=_in_logs,
    on_host=_on_host,
    remedies=(
        Remedy(
            id="no-p2p-no-shm",
            says="Keep NCCL from peer access and from registered shared memory; data then goes over the loopback interface, slowly but surely.",
            says_zh="让 NCCL 不使用 GPU 点对点和注册的共享内存；数据改走回环接口，虽慢但可用。",
            env={"NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1"},
            verify=(
                "NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,ENV torchrun --nproc-per-node N train.py 2>&1 | grep -E 'NCCL_(P2P|SHM)_DISABLE set by "
                "environment to 1'"
            ),
        ),
        Remedy(
            id="newer-nccl",
            says=(
                "Use a current torch with a current NCCL: NCCL before 2.10 does not start under WSL2 at all, with several GPUs newer ones go further."
            ),
            says_zh="使用较新的 torch 和 NCCL：2.10 之前的 NCCL 在 WSL2 下根本无法启动，多卡支持也以新版本为好。",
            command="python -c 'import torch; print(torch.__version__, torch.cuda.nccl.version())'",
        ),
        Remedy(
            id="wsl-driver",
            says=(
                "In Windows update the NVIDIA driver and WSL, and install no Linux display driver inside WSL; GPUs in TCC mode have to be set to "
                "WDDM or MCDM."
            ),
            says_zh="在 Windows 中更新 NVIDIA 驱动和 WSL，不要在 WSL 里安装 Linux 显示驱动；处于 TCC 模式的 GPU 要改为 WDDM 或 MCDM。",
            command="wsl.exe --update && wsl.exe --shutdown",
            verify="/usr/lib/wsl/lib/nvidia-smi",
        ),
        Remedy(
            id="native-linux",
            says="For training on several GPUs use native Linux.",
            says_zh="多 GPU 训练请使用原生 Linux。",
            command="uname -r",
        ),
    ),
    leads_to=("shm-register-failed", "rank-exception", "p2p-broken", "gpu-oom", "limits"),
    mistaken_for={
        "shm-register-failed": "the same line; here the platform is the reason",
        "shm-exhausted": "df -h /dev/shm shows room under WSL2",
        "nccl-bug": "NCCL 2.8 and 2.9 fail in their topology search under WSL2, which an upgrade mends",
        "container-capability": "on Linux NVML says 'Unknown Error' where a container lost its devices",
        "gpu-oom": "pinning host memory under WSL2 fails with 'out of memory' long before the GPU is full",
    },
    sources=(
        "https://docs.nvidia.com/cuda/wsl-user-guide/index.html#known-limitations-for-linux-cuda-applications",
        "https://github.com/microsoft/WSL/issues/12467",
        "https://github.com/microsoft/WSL/issues/9962",
        "https://github.com/NVIDIA/nccl/issues/442",
    ),
    hits=(
        "Failed to initialize NVML: GPU access blocked by the operating system",
        "DESKTOP-9K2LM41:812:901 [1] misc/shmutils.cc:103 NCCL WARN Cuda failure 'invalid argument'",
        (
            "WARNING 11-03 10:00:01 utils.py:465] Using 'pin_memory=False' as WSL is detected. This may slow down the performance.\n"
            "(RayWorkerWrapper pid=813) ncclUnhandledCudaError: Call to CUDA function failed.\n"
            "(RayWorkerWrapper pid=813) Last error:\n"
            "(RayWorkerWrapper pid=813) Error while creating shared memory segment /dev/shm/nccl-Qr4tZp (size 9637888)"
        ),
        (
            "Python platform: Linux-5.15.153.1-microsoft-standard-WSL2-x86_64-with-glibc2.35\n"
            "ncclUnhandledCudaError: unhandled cuda error (run with NCCL_DEBUG=INFO for details), NCCL version 2.20.5"
        ),
        (
            "LAPTOP-7QW3:812:901 [0] NCCL INFO Bootstrap : Using eth0:172.20.4.17<0>\n"
            "ncclUnhandledCudaError: unhandled cuda error (run with NCCL_DEBUG=INFO for details), NCCL version 2.20.5"
        ),
        (
            "DESKTOP-9K2LM41:812:901 [1] NCCL INFO Channel 00 : 0[0] -> 1[1] via SHM/direct/direct\n"
            "ncclUnhandledCudaError: unhandled cuda error (run with NCCL_DEBUG=INFO for details), NCCL version 2.20.5"
        ),
        (
            "Python platform: Linux-5.15.153.1-microsoft-standard-WSL2-x86_64-with-glibc2.35\n"
            "    return tensor.pin_memory()\nRuntimeError: CUDA error: out of memory"
        ),
    ),
    near_misses=(
        "node7:812:901 [1] misc/shmutils.cc:103 NCCL WARN Cuda failure 'invalid argument'",
        "Failed to initialize NVML: Unknown Error",
        "desktop-install.sh: NCCL INFO is printed when NCCL_DEBUG=INFO",
        "ncclUnhandledCudaError: Call to CUDA function failed.",
        "DESKTOP-9K2LM41 login: ",
        "    return self.linear(x)\nRuntimeError: CUDA error: out of memory",
    ),
    explain={
        "en": (
            "Under WSL2 there is no NVIDIA driver in Linux: calls go through a paravirtual device to the driver of Windows. One GPU works well. "
            "What NCCL needs for several does not all work: pinned memory is limited, memory cannot always be registered or shared between "
            "processes, and peer access is partial. The failure looks like a full /dev/shm or like a broken GPU, and is neither. Keep NCCL from "
            "both mechanisms by the settings here, use a current torch, or train under native Linux. That a host runs WSL2 is no cause by itself."
        ),
        "zh": (
            "WSL2 里的 Linux 没有自己的 NVIDIA 驱动：调用经由半虚拟化设备转给 Windows 的驱动。单卡运行良好，但 NCCL 在多卡时需要的功能并不都可用：锁"
            "页内存受限，内存不一定能注册或在进程间共享，GPU 点对点也不完整。失败看起来像 /dev/shm 满了或 GPU 坏了，其实都不是。用这里的设置绕开这两"
            "种机制，使用较新的 torch，或在原生 Linux 上训练。仅仅运行在 WSL2 上，本身并不是原因。"
        ),
    },
)
