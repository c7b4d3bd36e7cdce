"""arch-not-in-build: a library holds no machine code for this GPU."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

from unhang.knowledge.cause import Cause, LogView, Signature
from unhang.knowledge.text import Text
from unhang.model import Evidence, Finding, HostFinding, Remedy

if TYPE_CHECKING:
    from unhang.facts.snapshot import Snapshot


def _in_logs(view: LogView) -> Finding | None:
    """The error names no GPU; torch's warning at the first use of it does."""
    hits = view.hits_of(CAUSE.id)
    named = next((h for h in hits if "gpu" in h.groups), None)
    broken = any("no kernel image" in h.text or "NCCL WARN Cuda failure" in h.text for h in hits)
    if named is None or not broken:
        return CAUSE.of_hits(hits, view)
    gpu, arch = named.groups["gpu"].strip(), named.groups.get("arch")
    return CAUSE.of_hits(
        hits,
        view,
        standing="established",
        says=Text(
            "no kernel was built for {gpu}{arch}: this torch holds no code for it", "没有为 {gpu}{arch} 编译的 kernel：这个 torch 不含它的代码"
        ).fill(gpu=gpu, arch=Text(" ({arch})", "（{arch}）").fill(arch=arch) if arch else ""),
        remedies=("torch-for-this-gpu",),
    )


def _on_host(host: Snapshot) -> Iterable[HostFinding]:
    from unhang.facts import libraries

    seen, gpus = host.get(libraries.SUBJECT), libraries.usable_gpus(host)
    if seen is None or not gpus:
        return
    torch = seen.torch
    version = Evidence(source=f"{torch.path}/version.py", text=f"{torch.version}, cuda = {torch.cuda}")
    if torch.cuda is None:
        kind = (
            Text(f"was built for ROCm {torch.hip}", f"是 ROCm {torch.hip} 版") if torch.hip else Text("is a build without CUDA", "是不含 CUDA 的版本")
        )
        yield CAUSE.host_finding(
            area="libraries",
            severity="warning",
            says=Text("torch {version} {kind}, and this machine has {n} {gpu}", "torch {version} {kind}，而本机有 {n} 块 {gpu}").fill(
                version=torch.version, kind=kind, n=len(gpus), gpu=gpus[0].name or "NVIDIA GPU"
            ),
            leads_to=Text(
                "torch.cuda.is_available() is False: the training goes over CPUs, or NCCL is not there",
                "torch.cuda.is_available() 为 False：训练走 CPU，或没有 NCCL",
            ),
            evidence=(version,),
            remedies=("torch-for-this-gpu",),
        )
    lacking = {
        c: g
        for g in gpus
        if (c := g.compute_capability) and re.fullmatch(r"[0-9]+\.[0-9]+", c) and torch.architectures and not _runs(c, torch.architectures)
    }
    for capability, card in lacking.items():
        yield CAUSE.host_finding(
            area="libraries",
            severity="error",
            says=Text(
                "torch {version} holds no code for {gpu} (compute capability {capability})",
                "torch {version} 不含 {gpu} 的代码（compute capability {capability}）",
            ).fill(version=torch.version, gpu=card.name or Text("this GPU", "这种 GPU"), capability=capability),
            leads_to=Text(
                "the first operation on the GPU fails: no kernel image is available for execution on the device",
                "GPU 上的第一个操作就失败：no kernel image is available for execution on the device",
            ),
            evidence=(version, Evidence(source=f"{torch.path}/lib/libtorch_python.so", text=" ".join(torch.architectures or ()))),
            remedies=("torch-for-this-gpu",),
        )


def _runs(capability: str, architectures: Iterable[str]) -> bool:
    """Machine code runs on its own major version from its minor one on, PTX on all that is newer; "a" and "f" variants on their own kind only."""
    major, minor = (int(n) for n in capability.split("."))
    for kind, digits, variant in (m.groups() for a in architectures if (m := re.fullmatch(r"(sm|compute)_(\d+)([af]?)", a))):
        built = (int(digits[:-1] or 0), int(digits[-1]))
        if variant == "a":
            runs = built == (major, minor)
        elif kind == "compute" and not variant:
            runs = built <= (major, minor)
        else:
            runs = built[0] == major and built[1] <= minor
        if runs:
            return True
    return False


# The first word of the line may be a time or a path; the marketing name is what stands in front of "with CUDA capability".
_GPU = r"(?P<gpu>(?:[\w()-]{1,24} ){1,8}?)with CUDA capability (?P<arch>sm_\d+\w*)"

CAUSE = Cause(
    id="arch-not-in-build",
    role="root",
    title="This build has no code for this GPU",
    title_zh="当前构建不包含该 GPU 架构的代码",
    what=(
        "torch, NCCL or an extension was compiled for other GPU architectures than the one in this machine, and has no PTX that the driver could "
        "translate."
    ),
    why=(
        "The GPU is newer, or much older, than the build; an extension was compiled on another machine or with a narrow TORCH_CUDA_ARCH_LIST; a "
        "cluster's own NCCL was built for its first GPUs only."
    ),
    signatures=(
        *(
            Signature(
                needle=needle,
                pattern=pattern,
                says="CUDA found no kernel for this GPU in the library that was called",
                says_zh="在被调用的库中，CUDA 找不到适用于该 GPU 的核函数",
                remedies=("torch-for-this-gpu", "rebuild-the-extension"),
            )
            for needle, pattern in (
                ("no kernel image is available for execution", ""),
                ("NoKernelImageForDevice", r"cudaErrorNoKernelImageForDevice"),
                ("NO_BINARY_FOR_GPU", r"CUDA_ERROR_NO_BINARY_FOR_GPU"),
            )
        ),
        # A warning at start-up: a job that never uses that card runs on.
        Signature(
            needle="is not compatible with the current PyTorch installation",
            pattern=_GPU,
            standing="likely",
            says="this torch was not built for the {gpu}({arch})",
            says_zh="这个 torch 不是为 {gpu}({arch}) 编译的",
            remedies=("torch-for-this-gpu",),
        ),
        Signature(
            needle="PyTorch no longer supports this GPU because it is too old",
            pattern=r"(?:Found GPU\d+ (?P<gpu>.{1,60}?) which is of cuda capability (?P<capability>\d+\.\d+))?",
            standing="likely",
            remedies=("torch-for-this-gpu",),
        ),
        Signature(
            needle="cuda capability supported by this version of PyTorch",
            standing="possible",
            says="torch warns that this GPU lies outside the architectures that it was built for",
            says_zh="torch 警告：该 GPU 不在它编译时所针对的架构范围内",
            remedies=("torch-for-this-gpu",),
        ),
        # NCCL asks for each of its kernels at initialisation: a build without this architecture fails once per kernel.
        *(
            Signature(
                needle=needle,
                pattern=pattern,
                standing="likely",
                says="the NCCL library that is loaded holds no kernels for this GPU",
                says_zh="所加载的 NCCL 库不包含适用于该 GPU 的核函数",
                remedies=("nccl-for-this-gpu",),
            )
            for needle, pattern in (
                ("'named symbol not found'", r"NCCL WARN Cuda failure (?:\d+ )?'named symbol not found'"),
                ("'invalid device function'", r"NCCL WARN Cuda failure (?:\d+ )?'invalid device function'"),
            )
        ),
        Signature(
            needle="invalid device function",
            pattern=r"(?:CUDA error|cuda runtime error \(\d+\) ?|CUDA failure \d+): (?:invalid device function)",
            standing="likely",
            says="a CUDA extension was compiled for another GPU than this one",
            says_zh="某个 CUDA 扩展是为另一种 GPU 编译的，不是为这一种",
            remedies=("rebuild-the-extension", "torch-for-this-gpu"),
        ),
        Signature(
            needle=" does not has any binary",
            pattern=r"Op (?P<op>\w{1,80}) does not has any binary",
            says="CANN holds no compiled kernel of {op} for this NPU",
            says_zh="CANN 中没有适用于该 NPU 的 {op} 内核",
            remedies=("kernels-of-cann",),
        ),
        # ROCm translates nothing: code for one gfx target runs on no other.
        *(
            Signature(
                needle=needle,
                pattern=pattern,
                says="HIP found no code for this GPU in the library that was called",
                says_zh="在被调用的库中，HIP 找不到适用于该 GPU 的代码",
                remedies=("torch-for-this-amd-gpu", "rebuild-the-rocm-extension"),
            )
            for needle, pattern in (
                ("invalid device function", r"HIP error: (?:invalid device function)"),
                ("hipErrorNoBinaryForGpu", r"hipErrorNoBinaryForGpu(?! : continue)"),
            )
        ),
        Signature(
            needle="device kernel image is invalid",
            standing="likely",
            says="CUDA refuses the compiled code: it was made for another GPU, or by a newer toolkit than the driver knows",
            says_zh="CUDA 拒绝了编译好的代码：它是为另一种 GPU 生成的，或者所用的工具包太新，驱动不认识",
            remedies=("rebuild-the-extension", "torch-for-this-gpu"),
        ),
        Signature(
            needle="is not defined for option 'gpu-name'",
            pattern=r"Value '(?P<arch>sm_\w+)' is not defined",
            says="ptxas is older than this GPU and does not know {arch}",
            says_zh="ptxas 比该 GPU 旧，不认识 {arch}",
            remedies=("newer-toolkit",),
        ),
        Signature(
            needle="Unsupported gpu architecture",
            pattern=r"Unsupported gpu architecture '(?P<arch>compute_\w+)'",
            says="nvcc does not know {arch}: the CUDA toolkit and the architectures asked for do not fit",
            says_zh="nvcc 不认识 {arch}：CUDA 工具包与所要求的架构不匹配",
            remedies=("newer-toolkit", "rebuild-the-extension"),
        ),
        Signature(
            needle="or GPU not supported",
            pattern=r"Unknown CUDA arch \((?P<capability>[^)]{1,20})\) or GPU not supported",
            says="this torch cannot compile for compute capability {capability}",
            says_zh="这个 torch 无法为计算能力 {capability} 编译",
            remedies=("torch-for-this-gpu",),
        ),
        Signature(
            needle="is not a recognized processor for this target",
            pattern=r"'(?P<arch>sm_\w+)' is not a recognized processor",
            standing="likely",
            says="the Triton that is installed does not know {arch}",
            says_zh="已安装的 Triton 不认识 {arch}",
            remedies=("torch-for-this-gpu",),
        ),
    ),
    in_logs=_in_logs,
    on_host=_on_host,
    remedies=(
        Remedy(
            id="torch-for-this-gpu",
            says=(
                "Install a torch whose list of architectures contains this GPU: Blackwell (sm_100, sm_120) needs a build for CUDA 12.8 or newer, "
                "Hopper (sm_90) one for 11.8 or newer."
            ),
            says_zh="安装架构列表中包含该 GPU 的 torch：Blackwell（sm_100、sm_120）需要 CUDA 12.8 及以上的构建，Hopper（sm_90）需要 11.8 及以上。",
            command=(
                "python -c 'import torch; print(torch.__version__, torch.version.cuda, torch.cuda.get_device_capability(), "
                "torch.cuda.get_arch_list())'"
            ),
            verify="python -c 'import torch; print((torch.ones(8, device=\"cuda\") * 2).sum())'",
        ),
        Remedy(
            id="torch-for-this-amd-gpu",
            says=(
                "Install a torch for a ROCm that knows this GPU. A consumer card often runs the code of its family's supported one: "
                "HSA_OVERRIDE_GFX_VERSION=10.3.0 for gfx103x, 11.0.0 for gfx110x."
            ),
            says_zh=(
                "安装支持该 GPU 的 ROCm 版 torch。消费级显卡通常可以运行同系列受支持型号的代码：gfx103x 设置 "
                "HSA_OVERRIDE_GFX_VERSION=10.3.0，gfx110x 设置 11.0.0。"
            ),
            command="rocminfo | grep -o 'gfx[0-9a-f]*' | sort -u; python -c 'import torch; print(torch.version.hip, torch.cuda.get_arch_list())'",
            verify="python -c 'import torch; print((torch.ones(8, device=\"cuda\") * 2).sum())'",
        ),
        Remedy(
            id="rebuild-the-rocm-extension",
            says="Compile the HIP extension on this machine, for this GPU, without its cached build.",
            says_zh="在本机针对该 GPU 重新编译 HIP 扩展，不使用缓存的旧构建。",
            command=(
                "PYTORCH_ROCM_ARCH=$(rocminfo | grep -o -m1 'gfx[0-9a-f]*') python -m pip install --force-reinstall --no-deps --no-cache-dir "
                "--no-build-isolation EXTENSION"
            ),
        ),
        Remedy(
            id="rebuild-the-extension",
            says="Compile the extension on this machine, for this GPU, without its cached build.",
            says_zh="在本机针对该 GPU 重新编译扩展，不使用缓存的旧构建。",
            command=(
                "TORCH_CUDA_ARCH_LIST=$(python -c 'import torch; print(\"%d.%d\" % torch.cuda.get_device_capability())') python -m pip install "
                "--force-reinstall --no-deps --no-cache-dir --no-build-isolation EXTENSION"
            ),
            verify="cuobjdump --list-elf EXTENSION.so | grep -o 'sm_[0-9]*' | sort -u",
        ),
        Remedy(
            id="nccl-for-this-gpu",
            says="Use an NCCL that was built for this GPU: the one that torch brings along, or your own build with its architecture in NVCC_GENCODE.",
            says_zh="使用为该 GPU 编译的 NCCL：torch 自带的版本，或在 NVCC_GENCODE 中加入该架构后自行编译。",
            command=(
                "cuobjdump --list-elf $(python -c \"import torch; print(next(l.split()[-1] for l in open('/proc/self/maps') if 'libnccl' in "
                "l))\") | grep -o 'sm_[0-9]*' | sort -u; nvidia-smi --query-gpu=name,compute_cap --format=csv"
            ),
            verify="NCCL_DEBUG=WARN torchrun ARGS train.py 2>&1 | grep -c 'Cuda failure'",
        ),
        Remedy(
            id="nccl-tests-for-this-gpu",
            says="Build nccl-tests, and the NCCL that it loads, for this GPU: both Makefiles take the architectures from NVCC_GENCODE.",
            says_zh="为该 GPU 编译 nccl-tests 以及它加载的 NCCL：两者的 Makefile 都从 NVCC_GENCODE 读取架构。",
            command=(
                "cap=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader | head -1 | tr -d .); make clean && make -j "
                'NVCC_GENCODE="-gencode=arch=compute_$cap,code=sm_$cap"'
            ),
            verify="cuobjdump --list-elf build/all_reduce_perf | grep -o 'sm_[0-9]*' | sort -u",
        ),
        Remedy(
            id="kernels-of-cann",
            says="Install the CANN kernels package of this chip and of the same release as the toolkit.",
            says_zh="安装与该芯片对应、且与工具包同一版本的 CANN kernels 包。",
            command="npu-smi info; cat /usr/local/Ascend/ascend-toolkit/latest/opp/version.info",
        ),
        Remedy(
            id="newer-toolkit",
            says="Compile with a CUDA toolkit that knows this GPU (12.8 or newer for Blackwell, 11.8 or newer for Hopper).",
            says_zh="使用认识该 GPU 的 CUDA 工具包编译（Blackwell 需 12.8 以上，Hopper 需 11.8 以上）。",
            command="nvcc --version; nvcc --list-gpu-arch; nvidia-smi --query-gpu=name,compute_cap --format=csv",
        ),
    ),
    instead={
        "nccl-tests": dict.fromkeys(("torch-for-this-gpu", "rebuild-the-extension", "nccl-for-this-gpu"), "nccl-tests-for-this-gpu"),
        "rocm": {"torch-for-this-gpu": "torch-for-this-amd-gpu", "rebuild-the-extension": "rebuild-the-rocm-extension"},
    },
    leads_to=("rank-exception",),
    mistaken_for={
        "gpu-newer-than-nccl": "there torch itself computes on the GPU and only NCCL's release is too old for it",
        "driver-too-old": "there the code is present and the driver cannot translate or load it (PTX, insufficient driver)",
        "library-link": "there a symbol is missing while a library is loaded, before any GPU is touched",
        "illegal-memory-access": "there a kernel of the right architecture runs and then faults",
    },
    sources=(
        "https://docs.nvidia.com/cuda/blackwell-compatibility-guide/",
        "https://docs.nvidia.com/cuda/cuda-runtime-api/group__CUDART__TYPES.html",
        "https://github.com/NVIDIA/nccl/issues/1372",
        "https://docs.pytorch.org/docs/stable/cpp_extension.html",
    ),
    hits=(
        "EZ9999: 2026-11-03-09:10:02.118.301  Op Cast does not has any binary.",
        "[rank2]: RuntimeError: CUDA error: no kernel image is available for execution on the device",
        "node7: Test CUDA failure common.cu:253 'no kernel image is available for execution on the device'",
        "node7:5120:5333 [0] enqueue.cc:102 NCCL WARN Cuda failure 209 'no kernel image is available for execution on the device'",
        "xgboost.core.XGBoostError: device_vector.cu:23: cudaErrorNoKernelImageForDevice: check",
        "E1103 cuda_driver.cc:114] failed to load module: CUDA_ERROR_NO_BINARY_FOR_GPU",
        (
            "/srv/env/lib/python3.11/site-packages/torch/cuda/__init__.py:230: UserWarning: \nNVIDIA GeForce RTX 5080 with CUDA capability "
            "sm_120 is not compatible with the current PyTorch installation."
        ),
        "    Found GPU1 Tesla K40c which is of cuda capability 3.5.\n    PyTorch no longer supports this GPU because it is too old.",
        "    Minimum and Maximum cuda capability supported by this version of PyTorch is\n    (8.0) - (12.0)",
        "node7:5120:5341 [0] enqueue.cc:58 NCCL WARN Cuda failure 'named symbol not found'",
        "[2026-11-03 10:00:01] node7:5120:5341 [0] enqueue.cc:44 NCCL WARN Cuda failure 500 'named symbol not found'",
        "(RayWorkerWrapper pid=812) node7:812:990 [0] enqueue.cc:197 NCCL WARN Cuda failure 'invalid device function'",
        "RuntimeError: CUDA error: invalid device function",
        "[rank3]: torch.AcceleratorError: HIP error: invalid device function",
        'hip_code_object.cpp:120: guarantee(false && "hipErrorNoBinaryForGpu: Unable to find code object for all current devices!")',
        "torch.AcceleratorError: CUDA error: device kernel image is invalid",
        "ptxas fatal   : Value 'sm_120' is not defined for option 'gpu-name'",
        "nvcc fatal   : Unsupported gpu architecture 'compute_100'",
        "ValueError: Unknown CUDA arch (12.0) or GPU not supported",
        "'sm_121' is not a recognized processor for this target (ignoring processor)",
    ),
    near_misses=(
        "[rank3]: RuntimeError: HIP error: out of memory",
        ":3:hip_platform.cpp :715 : 8802 us: [pid:812] init: Returned hipErrorNoBinaryForGpu : continue parsing remaining modules",
        "RuntimeError: CUDA error: the provided PTX was compiled with an unsupported toolchain.",
        "node7:5120:5333 [0] enqueue.cc:102 NCCL WARN Cuda failure 1 'invalid argument'",
        "RuntimeError: CUDA error: an illegal memory access was encountered",
        "The current PyTorch install supports CUDA capabilities sm_70 sm_75 sm_80 sm_86 sm_90.",
        "NVIDIA GeForce RTX 5090 with CUDA capability sm_120",
        "RuntimeError: CUDA error: invalid device ordinal",
    ),
    explain={
        "en": (
            "GPU code is compiled for named architectures (sm_80 for A100, sm_90 for H100, sm_120 for an RTX 5090), and a library carries only "
            "some of them. Here the library that was called, torch itself, NCCL, or a compiled extension, carries none that this GPU can run. "
            "Compare torch.cuda.get_device_capability() with torch.cuda.get_arch_list(): if the GPU is missing there, install a newer build of "
            "torch; if it is listed, the offender is an extension or a home-made NCCL, which has to be rebuilt for this GPU. A newer driver "
            "alone does not help."
        ),
        "zh": (
            "GPU 代码是针对具体架构编译的（A100 是 sm_80，H100 是 sm_90，RTX 5090 是 sm_120），一个库只包含其中几种。这里被调用的库（torch 本身、"
            "NCCL 或某个编译扩展）不包含该 GPU 能运行的代码。对比 torch.cuda.get_device_capability() 与 torch.cuda.get_arch_list()：若列表里没有"
            "该 GPU，换装更新的 torch；若列表里有，问题就在某个扩展或自行编译的 NCCL，需要针对该 GPU 重新编译。只升级驱动没有用。"
        ),
    },
)
