"""driver-too-old: the NVIDIA driver of the host is older than the CUDA that the program was built with."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

from unhang.knowledge.cause import Cause, LogView, Signature
from unhang.knowledge.text import NOTHING, Text
from unhang.model import Evidence, Finding, HostFinding, Remedy
from unhang.patterns import lazily

if TYPE_CHECKING:
    from unhang.facts.snapshot import Snapshot

# The oldest drivers for any minor release of a CUDA major version, from the release notes of the toolkit.
_MINIMUM = {10: "440.33", 11: "450.80.02", 12: "525.60.13", 13: "580.65.06"}
# Forward compatibility is refused on these.
_CONSUMER = lazily(r"GeForce|TITAN", re.IGNORECASE)


def _in_logs(view: LogView) -> Finding | None:
    hits = view.hits_of(CAUSE.id)
    found = next((h for h in hits if "found" in h.groups), None)
    if found is None:
        return CAUSE.of_hits(hits, view)
    # "11040" is CUDA 11.4.
    number = int(found.groups["found"])
    serves = f"{number // 1000}.{number % 1000 // 10}"
    return CAUSE.of_hits(
        hits,
        view,
        says=Text(
            f"the NVIDIA driver of this host serves CUDA up to {serves}, and this torch was built for a newer one",
            f"本机的 NVIDIA 驱动最高支持 CUDA {serves}，而这个 torch 面向更新的 CUDA 编译",
        ),
        remedies=("upgrade-the-driver", "older-cuda-build"),
    )


def oldest_driver(cuda: str) -> str | None:
    """The oldest driver that serves a release of CUDA ("12.8"); None where that is not known."""
    from unhang.facts.libraries import number

    return _MINIMUM.get((number(cuda) or (0,))[0])


def _on_host(host: Snapshot) -> Iterable[HostFinding]:
    from unhang.facts import gpu, libraries

    seen, gpus, usable = host.get(libraries.SUBJECT), host.get(gpu.SUBJECT), libraries.usable_gpus(host)
    if seen is None or gpus is None or not usable or seen.torch.cuda is None:
        return
    driver = gpus.driver or gpus.nvml_driver
    wants = libraries.number(seen.torch.cuda)
    minimum = _MINIMUM.get(wants[0] if wants else 0)
    # Jetson's drivers (35, 540 on Tegra) are counted otherwise.
    if driver is None or minimum is None or libraries.number(driver)[:1] < (100,):
        return
    library = seen.copy("cuda")
    forward = library is not None and "/compat" in library.path and libraries.number(library.version or "") > libraries.number(driver)
    compat = library if forward else None
    if compat is not None and (card := next((g.name for g in usable if g.name and _CONSUMER.search(g.name)), None)):
        yield CAUSE.host_finding(
            area="libraries",
            severity="error",
            says=Text(
                f"the driver is {driver}, and libcuda {compat.version} of a compat package ({compat.path}) comes before its own, on a {card}",
                f"驱动是 {driver}，compat 包的 libcuda {compat.version}（{compat.path}）却排在驱动自带的之前，而 GPU 是 {card}",
            ),
            leads_to=Text(
                "CUDA does not start: error 804, forward compatibility was attempted on non supported HW",
                "CUDA 无法启动：错误 804，forward compatibility was attempted on non supported HW",
            ),
            evidence=(Evidence(source=compat.path, text=compat.version or ""), Evidence(source="/proc/driver/nvidia/version", text=driver)),
            remedies=("without-compat", "upgrade-the-driver"),
        )
    serves = libraries.number(gpus.cuda) if gpus.cuda else ()
    old = serves[0] < wants[0] if serves else libraries.number(driver) < libraries.number(minimum)
    if old and compat is None:
        upto = Text(f", which serves CUDA up to {gpus.cuda}", f"，最高支持 CUDA {gpus.cuda}") if gpus.cuda else NOTHING
        yield CAUSE.host_finding(
            area="libraries",
            severity="error",
            says=Text(
                "the NVIDIA driver is {driver}{upto}; torch {version} was built for CUDA {cuda}, which needs {minimum} or newer",
                "NVIDIA 驱动是 {driver}{upto}；torch {version} 面向 CUDA {cuda} 编译，需要 {minimum} 或更新的驱动",
            ).fill(driver=driver, upto=upto, version=seen.torch.version, cuda=seen.torch.cuda, minimum=minimum),
            leads_to=Text(
                "torch finds no usable GPU: The NVIDIA driver on your system is too old",
                "torch 找不到可用的 GPU：The NVIDIA driver on your system is too old",
            ),
            evidence=(
                Evidence(source="/proc/driver/nvidia/version", text=driver),
                Evidence(source=f"{seen.torch.path}/version.py", text=f"cuda = {seen.torch.cuda}"),
            ),
            remedies=("upgrade-the-driver", "older-cuda-build"),
        )


CAUSE = Cause(
    id="driver-too-old",
    role="root",
    title="The NVIDIA driver is too old for this CUDA",
    title_zh="NVIDIA 驱动太旧，不支持当前的 CUDA",
    what="The driver of the host cannot serve the CUDA runtime that torch, NCCL or the container image was built with.",
    why=(
        "A newer torch or image was installed, and the driver belongs to the host and stayed as it was. Inside a container the driver is the "
        "host's, too."
    ),
    signatures=(
        Signature(
            needle="NVIDIA driver on your system is too old",
            pattern=r"too old \(found version (?P<found>\d+)\)",
            says="torch finds the NVIDIA driver too old (it serves CUDA {found})",
            says_zh="torch 认为 NVIDIA 驱动太旧（它支持 CUDA {found}）",
            remedies=("upgrade-the-driver", "older-cuda-build"),
        ),
        Signature(
            needle="driver version is insufficient for CUDA runtime version",
            # Without any driver in reach CUDA prints the same.
            unless=r"Found no NVIDIA driver|libcuda\.so(?:\.1)?: cannot open|[Nn]o NVIDIA GPU|couldn't communicate with the NVIDIA driver",
            says="the CUDA driver of this host is older than the CUDA runtime that the program uses",
            says_zh="本机的 CUDA 驱动比程序所用的 CUDA 运行时旧",
            remedies=("upgrade-the-driver", "older-cuda-build"),
        ),
        Signature(
            needle="CUDA initialization failure with error: 35",
            says="TensorRT cannot start CUDA: the driver of this host is older than the CUDA runtime (error 35)",
            says_zh="TensorRT 无法启动 CUDA：本机驱动比 CUDA 运行时旧（错误 35）",
            remedies=("upgrade-the-driver", "older-cuda-build"),
        ),
        Signature(
            needle="compiled with an unsupported toolchain",
            pattern=r"PTX was compiled with an unsupported toolchain",
            says="the driver cannot translate PTX that a newer CUDA toolkit produced",
            says_zh="驱动无法编译由更新的 CUDA 工具包生成的 PTX",
            remedies=("driver-of-the-minor-release", "build-without-ptx"),
        ),
        Signature(
            needle="UnsupportedPtxVersion",
            pattern=r"cudaErrorUnsupportedPtxVersion",
            says="the driver cannot translate PTX that a newer CUDA toolkit produced",
            says_zh="驱动无法编译由更新的 CUDA 工具包生成的 PTX",
            remedies=("driver-of-the-minor-release", "build-without-ptx"),
        ),
        Signature(
            needle="API call is not supported in the installed CUDA driver",
            says="the program calls a function of CUDA that the driver of this host does not have yet",
            says_zh="程序调用了本机驱动还没有的 CUDA 函数",
            remedies=("upgrade-the-driver", "older-cuda-build"),
        ),
        Signature(
            needle="forward compatibility was attempted on non supported HW",
            says="the image brings a newer CUDA driver library (forward compatibility), which works on data-centre GPUs only",
            says_zh="镜像自带更新的 CUDA 驱动库（forward compatibility），它只在数据中心 GPU 上有效",
            remedies=("upgrade-the-driver", "without-compat", "older-cuda-build"),
        ),
        Signature(
            needle="COMPAT_NOT_SUPPORTED_ON_DEVICE",
            says="the image brings a newer CUDA driver library (forward compatibility), which works on data-centre GPUs only",
            says_zh="镜像自带更新的 CUDA 驱动库（forward compatibility），它只在数据中心 GPU 上有效",
            remedies=("upgrade-the-driver", "without-compat", "older-cuda-build"),
        ),
        Signature(
            needle="unsatisfied condition: cuda",
            pattern=r"unsatisfied condition: cuda ?>= ?(?P<needs>\d+(?:\.\d+)?)",
            says="the container image asks for a driver of CUDA {needs} or newer, and the host has an older one",
            says_zh="容器镜像要求支持 CUDA {needs} 或更新版本的驱动，而宿主机的驱动更旧",
            remedies=("upgrade-the-driver", "older-image"),
        ),
        Signature(
            needle="ERROR: This container was built for NVIDIA Driver Release",
            pattern=r"NVIDIA Driver Release (?P<needs>\d+(?:\.\d+)?)",
            unless=r"compatibility mode is ENABLED",
            says="the container image was built for driver release {needs} or newer, and the host has an older one",
            says_zh="容器镜像面向 {needs} 或更新版本的驱动构建，而宿主机的驱动更旧",
            remedies=("upgrade-the-driver", "older-image"),
        ),
        Signature(
            needle="some PFN functions not found in the library",
            pattern=r"NCCL WARN CUDA some PFN functions not found in the library",
            standing="likely",
            says="NCCL misses functions in the CUDA driver library: the driver is older than this NCCL expects",
            says_zh="CUDA 驱动库缺少 NCCL 需要的函数：驱动比这个 NCCL 所要求的旧",
            remedies=("upgrade-the-driver",),
        ),
        Signature(
            needle="Failed to load CUDA missing symbol",
            pattern=r"Failed to load CUDA missing symbol (?P<symbol>cu\w+)",
            standing="likely",
            says="NCCL misses {symbol} in the CUDA driver library: the driver is older than this NCCL expects",
            says_zh="CUDA 驱动库缺少 NCCL 需要的 {symbol}：驱动比这个 NCCL 所要求的旧",
            remedies=("upgrade-the-driver",),
        ),
    ),
    in_logs=_in_logs,
    on_host=_on_host,
    remedies=(
        Remedy(
            id="upgrade-the-driver",
            says=(
                "Upgrade the driver on the host (not in the container) and reboot: CUDA 11 programs need 450.80.02 or newer, CUDA 12 programs "
                "525.60.13, CUDA 13 programs 580.65.06."
            ),
            says_zh=(
                "在宿主机（不是容器内）升级驱动并重启：CUDA 11 的程序需要 450.80.02 以上，CUDA 12 需要 525.60.13 以上，CUDA 13 需要 580.65.06 以上。"
            ),
            command="nvidia-smi --query-gpu=driver_version --format=csv,noheader",
            verify="python -c 'import torch; torch.zeros(1, device=\"cuda\"); print(torch.version.cuda)'",
        ),
        Remedy(
            id="older-cuda-build",
            says=(
                "Or install the build of torch whose CUDA major version is not above the one in the header of nvidia-smi (+cu118, +cu126 and so on)."
            ),
            says_zh="或者改装 CUDA 主版本不高于 nvidia-smi 表头所示版本的 torch（如 +cu118、+cu126）。",
            command="nvidia-smi | grep -o 'CUDA Version: [0-9.]*'; python -c 'import torch; print(torch.__version__, torch.version.cuda)'",
            verify="python -c 'import torch; print(torch.cuda.is_available(), torch.version.cuda)'",
        ),
        # PTX is outside of what CUDA promises across minor releases: the driver has to be of the toolkit's own release, or later.
        Remedy(
            id="driver-of-the-minor-release",
            says=(
                "Upgrade the driver to the one of the CUDA release, minor one included, that produced the PTX: 12.1 needs 530.30.02 or newer, 12.2 "
                "535.54.03, 12.4 550.54.14, 12.6 560.28.03, 12.8 570.26, 12.9 575.51.03, 13.0 580.65.06. The oldest driver of a major release is not "
                "enough."
            ),
            says_zh=(
                "把驱动升级到生成 PTX 的那个 CUDA 版本（包括次版本）所带的版本：12.1 需要 530.30.02 以上，12.2 需要 535.54.03，12.4 需要 550.54.14"
                "，12.6 需要 560.28.03，12.8 需要 570.26，12.9 需要 575.51.03，13.0 需要 580.65.06。满足大版本的最低驱动还不够。"
            ),
            command="nvidia-smi | grep -o 'Driver Version: [0-9.]* *CUDA Version: [0-9.]*'",
        ),
        Remedy(
            id="build-without-ptx",
            says=(
                "Or use a build for a CUDA release (minor one included) not above the one in the header of nvidia-smi, or one that holds machine "
                "code for this GPU: then no PTX has to be translated. An extension is compiled again with that toolkit."
            ),
            says_zh=(
                "或者使用不高于 nvidia-smi 表头所示 CUDA 版本（包括次版本）的构建，或使用包含该 GPU 机器码的构建：那样就不必编译 PTX。扩展要用该工"
                "具包重新编译。"
            ),
            command=(
                "python -c 'import torch; print(torch.version.cuda, torch.cuda.get_device_capability(), torch.cuda.get_arch_list())'; nvcc --version"
            ),
        ),
        Remedy(
            id="nccl-tests-again",
            says="Or build nccl-tests again with a CUDA toolkit that this driver serves, as machine code for this GPU (NVCC_GENCODE) instead of PTX.",
            says_zh="或者用该驱动支持的 CUDA 工具包重新编译 nccl-tests，生成该 GPU 的机器码（NVCC_GENCODE），而不是 PTX。",
            command=(
                "cap=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader | head -1 | tr -d .); make clean && make -j "
                'CUDA_HOME=/usr/local/cuda NVCC_GENCODE="-gencode=arch=compute_$cap,code=sm_$cap"'
            ),
        ),
        Remedy(
            id="older-image",
            says="Or use the release of the image that was made for the driver of this host.",
            says_zh="或者使用与本机驱动相匹配的旧版镜像。",
            command="nvidia-smi --query-gpu=driver_version --format=csv,noheader",
        ),
        Remedy(
            id="without-compat",
            says="Take the compat libraries out of the search path, so that the driver library of the host is used.",
            says_zh="把 compat 目录从库搜索路径中去掉，改用宿主机的驱动库。",
            command=(
                "export LD_LIBRARY_PATH=$(printf %s \"$LD_LIBRARY_PATH\" | tr ':' '\\n' | grep -v /compat | paste -sd:); ldconfig -p | grep "
                "libcuda.so"
            ),
            verify="python -c 'import torch; print(torch.cuda.device_count())'",
        ),
    ),
    instead={"nccl-tests": {"older-cuda-build": "nccl-tests-again", "build-without-ptx": "nccl-tests-again"}},
    leads_to=("rank-exception", "device-mapping", "backend-unavailable"),
    mistaken_for={
        "driver-reboot-needed": "there the new driver is installed and the old kernel module still runs; a reboot suffices",
        "container-capability": "without any driver in the container (no --gpus) CUDA may print the same words; nvidia-smi then fails, too",
        "arch-not-in-build": "there the driver is new enough and the program has no code for the GPU",
    },
    sources=(
        "https://docs.nvidia.com/deploy/cuda-compatibility/",
        "https://docs.nvidia.com/cuda/cuda-toolkit-release-notes/",
        "https://docs.nvidia.com/cuda/cuda-runtime-api/group__CUDART__TYPES.html",
        "https://github.com/pytorch/pytorch/blob/main/c10/cuda/CUDAFunctions.cpp",
    ),
    hits=(
        (
            "[rank1]: RuntimeError: The NVIDIA driver on your system is too old (found version 11040). Please update your GPU driver by "
            "downloading and installing a new version"
        ),
        (
            "/srv/env/lib/python3.11/site-packages/torch/cuda/__init__.py:174: UserWarning: CUDA initialization: The NVIDIA driver on your "
            "system is too old (found version 12020). Please update your GPU driver"
        ),
        "The NVIDIA driver on your system is too old (found version 10010).",
        "node7: Test CUDA failure common.cu:1045 'CUDA driver version is insufficient for CUDA runtime version'",
        "node7:5120:5120 [0] misc/cudawrap.cc:182 NCCL WARN Cuda failure 35 'CUDA driver version is insufficient for CUDA runtime version'",
        (
            "RuntimeError: cuda runtime error (35) : CUDA driver version is insufficient for CUDA runtime version at "
            "/pytorch/aten/src/THC/THCGeneral.cpp:54"
        ),
        "[TRT-LLM] [E] CUDA initialization failure with error: 35. Please check your CUDA installation",
        "(Worker_TP1 pid=812) torch.AcceleratorError: CUDA error: the provided PTX was compiled with an unsupported toolchain.",
        "[cudaErrorUnsupportedPtxVersion] in expression cudaGetLastError()",
        "RuntimeError: CUDA error: API call is not supported in the installed CUDA driver",
        "RuntimeError: Unexpected error from cudaGetDeviceCount(). Error 804: forward compatibility was attempted on non supported HW",
        "E1103 cuda_driver.cc:268] failed call to cuInit: CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE",
        "nvidia-container-cli: requirement error: unsatisfied condition: cuda>=12.8, please update your driver to a newer version: unknown",
        (
            "ERROR: This container was built for NVIDIA Driver Release 570.86 or later, but\n       version 470.182.03 was detected and "
            "compatibility mode is UNAVAILABLE."
        ),
        "node7:5120:5120 [0] misc/cudawrap.cc:121 NCCL WARN CUDA some PFN functions not found in the library",
        "node7:5120:5120 [0] misc/cudawrap.cc:96 NCCL WARN Failed to load CUDA missing symbol cuGetProcAddress",
    ),
    near_misses=(
        "node7:5120:5120 [0] NCCL INFO cudaDriverVersion 12040",
        "Failed to initialize NVML: Driver/library version mismatch",
        "RuntimeError: Found no NVIDIA driver on your system. Please check that you have an NVIDIA GPU and installed a driver",
        "RuntimeError: CUDA error: no kernel image is available for execution on the device",
        (
            "NOTE: This container was built for NVIDIA Driver Release 570.86 or later, but\n      version 535.183.06 was detected and "
            "compatibility mode is ENABLED."
        ),
        "RuntimeError: Unexpected error from cudaGetDeviceCount(). Error 803: system has unsupported display driver / cuda driver combination",
    ),
    explain={
        "en": (
            "The driver is part of the host, the CUDA runtime is part of torch or of the image, and a driver serves programs of its own CUDA "
            "major version and of older ones. Here the program is newer than the driver. Look at the header of nvidia-smi: its CUDA version is "
            "the highest that this driver serves. Either upgrade the driver on the host and reboot, or install a build of torch for the older "
            "CUDA. Reinstalling the CUDA toolkit changes nothing, and the forward-compatibility package helps on data-centre GPUs only."
        ),
        "zh": (
            "驱动属于宿主机，CUDA 运行时属于 torch 或镜像；驱动只能服务于同一 CUDA 主版本及更旧版本的程序。现在是程序比驱动新。看 nvidia-smi 的表"
            "头：其中的 CUDA 版本就是该驱动能支持的最高版本。要么在宿主机上升级驱动并重启，要么改装针对较旧 CUDA 的 torch。重装 CUDA 工具包不起作"
            "用；forward compatibility 包也只在数据中心 GPU 上有效。"
        ),
    },
)
