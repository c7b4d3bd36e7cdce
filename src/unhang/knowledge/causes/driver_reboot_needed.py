"""driver-reboot-needed: the driver was upgraded under a running kernel module."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from unhang.knowledge.cause import Cause, Signature
from unhang.knowledge.text import NOTHING, Text, joined, same
from unhang.model import Evidence, HostFinding, Remedy

if TYPE_CHECKING:
    from unhang.facts.snapshot import Snapshot


def _on_host(host: Snapshot) -> Iterable[HostFinding]:
    from unhang.facts import gpu, kernel_log

    seen = host.get(gpu.SUBJECT)
    if seen is None:
        return
    versions = {name: sorted({lib.version for lib in seen.libraries if lib.name == name}) for name in ("libnvidia-ml", "libcuda")}
    files = tuple(Evidence(source=lib.path, text=lib.version) for lib in seen.libraries[:4])
    module = Evidence(source="/proc/driver/nvidia/version", text=seen.driver or "")
    error = seen.nvml_error or ""
    differ = seen.driver is not None and bool(versions["libnvidia-ml"]) and seen.driver not in versions["libnvidia-ml"]
    if "version mismatch" in error.lower() or (seen.nvml_error is not None and differ):
        libraries = joined(map(same, versions["libnvidia-ml"]), Text(" and ", " 和 "))
        disk = Text(", its libraries are {versions}", "，而驱动库的版本是 {versions}").fill(versions=libraries) if libraries else NOTHING
        yield CAUSE.host_finding(
            area="gpu",
            severity="error",
            says=Text("the kernel runs the NVIDIA module {version}{disk}", "内核正在运行的 NVIDIA 模块是 {version}{disk}").fill(
                version=seen.driver or Text("of another version", "另一版本"), disk=disk
            ),
            leads_to=Text("nothing new can open a GPU; what runs already goes on", "新进程都无法打开 GPU；已在运行的不受影响"),
            evidence=(module, *files, *((Evidence(source="NVML", text=error),) if error else ())),
            remedies=("reboot", "hold-the-driver"),
        )
    elif seen.driver is not None and versions["libcuda"] and seen.driver not in versions["libcuda"]:
        yield CAUSE.host_finding(
            area="gpu",
            severity="warning",
            says=Text("libcuda is {versions}, the driver {driver}", "libcuda 的版本是 {versions}，驱动是 {driver}").fill(
                versions=joined(map(same, versions["libcuda"]), Text(" and ", " 和 ")), driver=seen.driver
            ),
            leads_to=Text(
                "CUDA does not start: error 803, unsupported display driver / cuda driver combination",
                "CUDA 无法启动：错误 803，unsupported display driver / cuda driver combination",
            ),
            evidence=(module, *files),
            remedies=("which-libcuda", "reboot"),
        )
    elif seen.driver is None and seen.libraries and seen.kernel_drivers and not any(seen.kernel_drivers.values()):
        yield CAUSE.host_finding(
            area="gpu",
            severity="warning",
            says=Text(
                f"the driver's libraries ({seen.libraries[0].version}) are installed, and its kernel module is not loaded",
                f"驱动的库（{seen.libraries[0].version}）已安装，内核模块却没有加载",
            ),
            leads_to=Text("CUDA finds no GPU", "CUDA 找不到 GPU"),
            evidence=files,
            remedies=("rebuild-the-module", "reboot"),
        )
    log = host.get(kernel_log.SUBJECT)
    for e in log.events if log is not None and seen.nvml_error is None else ():
        if e.kind == "driver-mismatch" and e.last_age_s is not None and e.last_age_s < 86400:
            yield CAUSE.host_finding(
                area="kernel",
                severity="warning",
                says=Text(
                    f"a program came with another version of the driver's libraries ({kernel_log.ago(e.last_age_s)}, {e.count} times)",
                    f"有程序带着另一版本的驱动库（{kernel_log.ago_zh(e.last_age_s)}，共 {e.count} 次）",
                ),
                leads_to=Text(
                    "that program finds no GPU; a container or environment brings libraries of its own", "那个程序找不到 GPU；容器或环境会带自己的库"
                ),
                evidence=(Evidence(source="kernel log", text=e.text),),
                remedies=("which-libcuda",),
            )


CAUSE = Cause(
    id="driver-reboot-needed",
    role="root",
    title="NVIDIA driver and its library differ: a reboot is due",
    title_zh="NVIDIA 驱动内核模块与用户态库版本不一致，需要重启",
    what=(
        "The kernel still runs the NVIDIA module of one version while the libraries on disk (libcuda, libnvidia-ml) are of another, so nothing "
        "new can open a GPU."
    ),
    why=(
        "A package upgrade, often an unattended one, replaced the driver without unloading the module; processes that already had a GPU go on, "
        "new ones fail."
    ),
    signatures=(
        # nvidia-smi, NVML, NCCL's NVML wrapper write "Driver/library", nvidia-container-cli "driver/library".
        Signature(
            needle="river/library version mismatch",
            says="the NVIDIA kernel module and its libraries are of different versions",
            says_zh="NVIDIA 内核模块与驱动库的版本不一致",
            remedies=("reboot", "hold-the-driver"),
        ),
        Signature(
            needle="NVRM: API mismatch",
            pattern=r"NVRM: API mismatch: the client (?:'(?P<process>[^']{0,64})' \(pid \d+\)|has the version (?P<client>\d[\d.]*\d))",
            says="the kernel module refuses clients of another driver version",
            says_zh="内核模块拒绝其他驱动版本的客户端",
            remedies=("reboot", "hold-the-driver"),
        ),
        Signature(
            needle="NVML/RM version mismatch",
            says="NVML and the kernel module are of different versions",
            says_zh="NVML 与内核模块的版本不一致",
            remedies=("reboot", "hold-the-driver"),
        ),
        Signature(
            needle="does not match DSO version",
            pattern=r"kernel version (?P<kernel>\d[\d.]*\d) does not match DSO version (?P<library>\d[\d.]*\d)",
            says="the kernel runs NVIDIA module {kernel} and the library is {library}",
            says_zh="内核正在运行的 NVIDIA 模块是 {kernel}，而库是 {library}",
            remedies=("reboot", "hold-the-driver"),
        ),
        # CUDA error 803. A compat libcuda from an image or a toolkit in front of the host's own gives the same.
        Signature(
            needle="unsupported display driver / cuda driver combination",
            standing="likely",
            says="CUDA's driver library and the kernel module are of different versions (error 803)",
            says_zh="CUDA 的驱动库与内核模块的版本不一致（错误 803）",
            remedies=("which-libcuda", "reboot"),
        ),
        Signature(
            needle="SYSTEM_DRIVER_MISMATCH",
            standing="likely",
            says="CUDA's driver library and the kernel module are of different versions (error 803)",
            says_zh="CUDA 的驱动库与内核模块的版本不一致（错误 803）",
            remedies=("which-libcuda", "reboot"),
        ),
        Signature(
            needle="couldn't communicate with the NVIDIA driver",
            standing="possible",
            says="nvidia-smi finds no running NVIDIA kernel module, as after a kernel upgrade that did not rebuild it",
            says_zh="nvidia-smi 找不到正在运行的 NVIDIA 内核模块，内核升级后没有重新编译该模块时会这样",
            remedies=("reboot", "rebuild-the-module"),
        ),
    ),
    on_host=_on_host,
    remedies=(
        Remedy(
            id="reboot",
            says="Reboot the host. Without a reboot: stop every GPU process and nvidia-persistenced, then unload and load the module.",
            says_zh="重启主机。若不能重启：停掉所有 GPU 进程和 nvidia-persistenced，然后卸载并重新加载内核模块。",
            command=(
                "cat /proc/driver/nvidia/version; modinfo -F version nvidia; sudo systemctl stop nvidia-persistenced; sudo rmmod nvidia_uvm "
                "nvidia_drm nvidia_modeset nvidia && sudo modprobe nvidia_uvm"
            ),
            verify="nvidia-smi --query-gpu=driver_version --format=csv,noheader",
        ),
        Remedy(
            id="hold-the-driver",
            says="Keep unattended upgrades away from the driver, so that it changes only together with a reboot.",
            says_zh="禁止自动更新驱动软件包，让驱动只在计划内的重启时升级。",
            command="sudo apt-mark hold $(dpkg-query -W -f='${Package}\\n' 'nvidia-*' 'libnvidia-*' 'linux-modules-nvidia-*')",
            verify="apt-mark showhold | grep nvidia",
        ),
        Remedy(
            id="which-libcuda",
            says=(
                "See which libcuda is loaded: a copy under cuda/compat, from conda or from the image has to give way to the one of the host's driver."
            ),
            says_zh="查看实际加载的 libcuda：cuda/compat、conda 或镜像里的副本应让位于宿主机驱动自带的那一个。",
            command="cat /proc/driver/nvidia/version; ldconfig -p | grep libcuda.so; echo \"$LD_LIBRARY_PATH\" | tr ':' '\\n' | grep -n compat",
            verify="python -c 'import torch; print(torch.cuda.device_count())'",
        ),
        Remedy(
            id="rebuild-the-module",
            says="If the module is missing for the running kernel, build it and load it.",
            says_zh="若当前内核缺少该模块，重新编译并加载。",
            command="dkms status; sudo dkms autoinstall && sudo modprobe nvidia",
            verify="lsmod | grep ^nvidia",
        ),
    ),
    leads_to=("rank-exception", "device-mapping", "backend-unavailable"),
    mistaken_for={
        "driver-too-old": "there module and library agree and are both older than the program needs; rebooting changes nothing",
        "gpu-hardware": "a GPU that fell off the bus leaves an Xid in the kernel log",
        "container-capability": "a container without GPU access has no /proc/driver/nvidia at all",
    },
    sources=(
        "https://docs.nvidia.com/deploy/nvml-api/group__nvmlDeviceEnumvs.html",
        "https://docs.nvidia.com/cuda/cuda-runtime-api/group__CUDART__TYPES.html",
        "https://docs.nvidia.com/deploy/cuda-compatibility/",
    ),
    hits=(
        "Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 570.133",
        "nvidia-container-cli: initialization error: nvml error: driver/library version mismatch: unknown",
        "node7:5120:5120 [0] misc/nvmlwrap.cc:183 NCCL WARN nvmlInit_v2() failed: Driver/library version mismatch",
        (
            "[ 8122.301775] NVRM: API mismatch: the client has the version 570.133.20, but\n[ 8122.301775] NVRM: this kernel module has the "
            "version 550.163.01.  Please"
        ),
        "Nov 03 10:00:01 node7 kernel: NVRM: API mismatch: the client 'python3' (pid 5120)",
        "(APIServer pid=812) pynvml.NVMLError_LibRmVersionMismatch: RM has detected an NVML/RM version mismatch.",
        (
            "E1103 cuda_diagnostics.cc:291] kernel version 535.230.2 does not match DSO version 550.163.1 -- cannot find working devices in this "
            "configuration"
        ),
        (
            "[rank0]: RuntimeError: Unexpected error from cudaGetDeviceCount(). Did you run some cuda functions before calling NumCudaDevices() "
            "that might have already set an error? Error 803: system has unsupported display driver / cuda driver combination"
        ),
        "failed call to cuInit: CUDA_ERROR_SYSTEM_DRIVER_MISMATCH",
        (
            "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure that the latest NVIDIA driver is installed "
            "and running."
        ),
    ),
    near_misses=(
        "NVRM: loading NVIDIA UNIX x86_64 Kernel Module  570.133.20",
        "[2397166.98] NVRM: Xid (PCI:0000:0f:00): 79, pid=5120, GPU has fallen off the bus.",
        "RuntimeError: The NVIDIA driver on your system is too old (found version 11040).",
        "Version mismatch: The cluster was started with:",
        "Failed to initialize NVML: Unknown Error",
    ),
    explain={
        "en": (
            "An NVIDIA driver has two halves, the kernel module and the libraries, and both must be of exactly the same version. After a package "
            "upgrade the libraries on disk are new while the kernel still runs the old module: jobs that hold a GPU go on, and every new process "
            "is refused. Compare /proc/driver/nvidia/version with modinfo to see both versions. A reboot settles it; so does unloading the "
            "module once nothing uses it. If the versions agree on the host and CUDA reports error 803 in a container, the image or "
            "LD_LIBRARY_PATH brings its own libcuda."
        ),
        "zh": (
            "NVIDIA 驱动由内核模块和用户态库两半组成，两者版本必须完全一致。软件包升级后，磁盘上的库已是新版本，而内核里运行的仍是旧模块：已经占"
            "用 GPU 的任务照常运行，新进程则全部被拒绝。对比 /proc/driver/nvidia/version 与 modinfo 就能看到两个版本。重启即可解决；在没有进程使"
            "用 GPU 时卸载并重新加载模块也可以。若宿主机上两者一致，而容器里报 803 错误，则是镜像或 LD_LIBRARY_PATH 带进了另一个 libcuda。"
        ),
    },
)
