"""mig-slices: slices of a partitioned GPU (MIG) stand where NCCL wants whole GPUs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from unhang.knowledge.cause import Cause, Command, Signature, command
from unhang.knowledge.text import Text
from unhang.model import Evidence, HostFinding, Remedy

if TYPE_CHECKING:
    from unhang.facts.nvml import Gpu
    from unhang.facts.snapshot import Snapshot

# A UUID of a slice, or a profile such as 3g.40gb; nvidia-smi's column header "MIG M." stands in every table and says nothing.
_MIG = r"\bMIG-[0-9A-Za-z]|MIG \d+g\.\d+gb|MIG-\d+g\.\d+gb|\bMIG (?:device|instance|slice|partition)s?\b"


def _on_host(host: Snapshot) -> Iterable[HostFinding]:
    from unhang.facts import gpu

    seen = host.get(gpu.SUBJECT)
    sliced = [g for g in seen.gpus if g.mig] if seen is not None else []
    empty = [g for g in sliced if g.mig_instances == 0]
    cut = [g for g in sliced if g not in empty]
    if seen is not None and empty:
        yield CAUSE.host_finding(
            area="gpu",
            severity="error" if len(empty) == len(seen.gpus) else "warning",
            says=Text("{gpus} of {n}: in MIG mode without a slice", "{gpus}（共 {n} 块）：处于 MIG 模式，却没有切片").fill(
                gpus=gpu.named(g.index for g in empty), n=len(seen.gpus)
            ),
            leads_to=Text(
                "CUDA shows nothing of such a GPU: a rank that is meant for it has none", "CUDA 看不到这样的 GPU：要用它的 rank 没有 GPU 可用"
            ),
            evidence=tuple(Evidence(source="NVML", text=f"{gpu.label(g)}: MIG enabled, no instances") for g in empty[:3]),
            remedies=("whole-gpus",),
            commands={"whole-gpus": _off(empty)},
        )
    if seen is not None and cut:
        yield CAUSE.host_finding(
            area="gpu",
            severity="warning" if len(seen.gpus) > 1 else "note",
            says=Text("{gpus} of {n}: in MIG mode", "{gpus}（共 {n} 块）：处于 MIG 模式").fill(
                gpus=gpu.named(g.index for g in cut), n=len(seen.gpus)
            ),
            leads_to=Text(
                "a process sees one slice only, and NCCL before 2.32 takes two slices of one GPU for the same GPU",
                "一个进程只看得到一个切片，2.32 之前的 NCCL 会把同一 GPU 的两个切片当作同一个 GPU",
            ),
            evidence=tuple(Evidence(source="NVML", text=f"{gpu.label(g)}: MIG enabled") for g in cut[:3]),
            remedies=("whole-gpus", "one-slice-per-process", "newer-nccl"),
            commands={"whole-gpus": _off(cut)},
        )


def _off(gpus: Sequence[Gpu]) -> Command | None:
    return command("sudo nvidia-smi -i {gpus:number,} -mig 0", gpus=[g.index for g in gpus])


CAUSE = Cause(
    id="mig-slices",
    role="root",
    title="MIG slices used where NCCL wants whole GPUs",
    title_zh="NCCL 需要整块 GPU，却使用了 MIG 切片",
    what=(
        "The job runs on slices of GPUs in MIG mode. A CUDA process can use one slice only, and NCCL before 2.32 takes slices of one GPU for the "
        "same GPU."
    ),
    why="The cluster hands out MIG slices, or a GPU was partitioned for other work; distributed training was started on them as if they were GPUs.",
    signatures=(
        Signature(
            needle="Duplicate GPU detected",
            near=_MIG,
            says="two ranks are on slices of one GPU, which NCCL takes for the same GPU",
            says_zh="两个 rank 在同一块 GPU 的切片上，NCCL 把这些切片当作同一个 GPU",
            remedies=("whole-gpus", "without-nccl", "newer-nccl"),
        ),
        Signature(
            needle="the same GPU/Partition",
            pattern=r"Multiple Ranks are using the same GPU/Partition",
            near=_MIG,
            says="two ranks are on slices of one GPU, which NCCL takes for the same GPU",
            says_zh="两个 rank 在同一块 GPU 的切片上，NCCL 把这些切片当作同一个 GPU",
            remedies=("whole-gpus", "newer-nccl"),
        ),
        Signature(
            needle="invalid literal for int() with base 10: 'MIG-",
            says="a framework expects GPU numbers in CUDA_VISIBLE_DEVICES and found a MIG slice: it cannot place its ranks on slices",
            says_zh="某个框架要求 CUDA_VISIBLE_DEVICES 里是 GPU 编号，却看到 MIG 切片：它无法把 rank 放到切片上",
            remedies=("whole-gpus", "one-slice-per-process"),
        ),
        Signature(
            needle="invalid device ordinal",
            near=_MIG,
            standing="likely",
            says="a rank asked for a second device, and a process sees one MIG slice at most",
            says_zh="某个 rank 要求第二个设备，而一个进程最多只看得到一个 MIG 切片",
            remedies=("one-slice-per-process", "whole-gpus"),
        ),
        Signature(
            needle="num_gpus INTERNAL ASSERT FAILED",
            near=_MIG + r"|\bMIG M\.(?:.{0,100}\n){0,8}.{0,120}\bEnabled\b",
            standing="likely",
            says="torch counts GPUs that CUDA cannot use: in MIG mode a process has to be given one slice by its UUID",
            says_zh="torch 计入了 CUDA 无法使用的 GPU：MIG 模式下必须通过 UUID 给进程一个切片",
            remedies=("one-slice-per-process", "whole-gpus"),
        ),
        # On a slice, NVML refuses the query with which the allocator asks for free memory.
        Signature(
            needle="NVML_SUCCESS == r INTERNAL ASSERT FAILED",
            near=_MIG,
            standing="likely",
            says="NVML refuses torch's memory query on a MIG slice",
            says_zh="NVML 拒绝 torch 在 MIG 切片上查询显存",
            remedies=("fixed-segments", "whole-gpus"),
        ),
        Signature(
            needle="CUDA_VISIBLE_DEVICES",
            pattern=r"CUDA_VISIBLE_DEVICES\W{1,6}MIG-[^\s,'\"]{8,80}(?:, ?MIG-[^\s,'\"]{8,80})+",
            standing="possible",
            says="several MIG slices are listed for one process, of which CUDA uses the first only",
            says_zh="给一个进程列出了多个 MIG 切片，CUDA 只使用其中第一个",
            remedies=("one-slice-per-process", "whole-gpus"),
        ),
    ),
    on_host=_on_host,
    remedies=(
        Remedy(
            id="whole-gpus",
            says="Train on whole GPUs: ask the scheduler for them, or turn MIG off on an idle GPU.",
            says_zh="使用整块 GPU 训练：向调度器申请整卡，或在空闲的 GPU 上关闭 MIG。",
            command="nvidia-smi --query-gpu=index,mig.mode.current --format=csv; sudo nvidia-smi -i 0 -mig 0",
            verify="nvidia-smi -L",
        ),
        Remedy(
            id="one-slice-per-process",
            says="Give each process exactly one slice by its UUID, and address it as cuda:0; independent jobs on slices work well.",
            says_zh="通过 UUID 给每个进程恰好分配一个切片，并以 cuda:0 访问；各自独立的任务在切片上运行没有问题。",
            command="CUDA_VISIBLE_DEVICES=$(nvidia-smi -L | grep -o 'MIG-[0-9a-f-]*' | head -1) python train.py",
            verify="python -c 'import torch; print(torch.cuda.device_count(), torch.cuda.get_device_name())'",
        ),
        Remedy(
            id="without-nccl",
            says="For tests on slices use Gloo: init_process_group('gloo').",
            says_zh="若只是在切片上做测试，可使用 Gloo：init_process_group('gloo')。",
            command="grep -rn \"init_process_group\" --include='*.py' .",
        ),
        Remedy(
            id="newer-nccl",
            says=(
                "NCCL 2.32 and later support slices experimentally, without peer-to-peer between them; ranks on slices of one GPU need "
                "NCCL_MULTI_RANK_GPU_ENABLE=1."
            ),
            says_zh=(
                "NCCL 2.32 及以后版本实验性地支持切片，但切片之间没有 P2P；若多个进程位于同一块 GPU 的切片上，需设置 NCCL_MULTI_RANK_GPU_ENABLE=1。"
            ),
            env={"NCCL_MULTI_RANK_GPU_ENABLE": "1"},
            verify="NCCL_DEBUG=INFO torchrun ARGS train.py 2>&1 | grep -E 'NCCL version|NCCL_MULTI_RANK_GPU_ENABLE set by environment to'",
        ),
        Remedy(
            id="fixed-segments",
            says="Keep the allocator from asking NVML: turn expandable segments off.",
            says_zh="关闭可扩展段，避免分配器查询 NVML。",
            env={"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:False"},
            verify="tr '\\0' '\\n' < /proc/$(pgrep -f train.py | head -1)/environ | grep PYTORCH_CUDA_ALLOC_CONF",
        ),
    ),
    leads_to=("duplicate-gpu", "device-mapping", "backend-unavailable", "rank-exception"),
    mistaken_for={
        "duplicate-gpu": "there two ranks chose the same whole GPU; nvidia-smi -L then lists no MIG devices",
        "device-mapping": "there the GPU numbers are wrong; nvidia-smi -L then lists no MIG devices",
        "gpu-busy-exclusive": "a GPU in MIG mode without instances is unavailable to CUDA, too",
    },
    sources=(
        "https://docs.nvidia.com/datacenter/tesla/mig-user-guide/",
        "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/usage/communicators.html",
        "https://github.com/NVIDIA/nccl/issues/1716",
        "https://github.com/pytorch/pytorch/issues/130181",
    ),
    hits=(
        "CUDA_VISIBLE_DEVICES=MIG-3f2a9c10-55ff-5c1d-9d1e-0a1b2c3d4e5f\n[rank1]: Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 7000",
        (
            "#  Rank  1 Group  0 Pid   5121 on node7 device  0 [0x07] NVIDIA A100-SXM4-80GB MIG 3g.40gb\nnode7:5121:5340 [0] init.cc:904 NCCL "
            "WARN Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 7000"
        ),
        (
            "  MIG 3g.40gb     Device  1: (UUID: MIG-77d1b7f2-1111-5c1d-9d1e-0a1b2c3d4e5f)\nnode7:5121:5340 [0] init.cc:1290 NCCL WARN Multiple "
            "Ranks are using the same GPU/Partition. Set NCCL_MULTI_RANK_GPU_ENABLE=1 to enable this configuration."
        ),
        "(RayWorkerWrapper pid=812) ValueError: invalid literal for int() with base 10: 'MIG-3f2a9c10-55ff-5c1d-9d1e-0a1b2c3d4e5f'",
        "visible: MIG-3f2a9c10-55ff-5c1d-9d1e-0a1b2c3d4e5f\nRuntimeError: CUDA error: invalid device ordinal",
        (
            "GPU 0: NVIDIA A100-SXM4-80GB-MIG-3g.40gb\nRuntimeError: device >= 0 && device < num_gpus INTERNAL ASSERT FAILED at "
            '"/pytorch/aten/src/ATen/cuda/CUDAContext.cpp":50, please report a bug to PyTorch.'
        ),
        'MIG devices: 2\nRuntimeError: NVML_SUCCESS == r INTERNAL ASSERT FAILED at "/pytorch/c10/cuda/CUDACachingAllocator.cpp":1131',
        "export CUDA_VISIBLE_DEVICES=MIG-3f2a9c10-55ff-5c1d-9d1e-0a1b2c3d4e5f,MIG-77d1b7f2-1111-5c1d-9d1e-0a1b2c3d4e5f",
    ),
    near_misses=(
        "Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 7000",
        "|                               |                      |               MIG M. |\nRuntimeError: CUDA error: invalid device ordinal",
        "CUDA_VISIBLE_DEVICES=MIG-3f2a9c10-55ff-5c1d-9d1e-0a1b2c3d4e5f",
        "ValueError: invalid literal for int() with base 10: 'GPU-9a1f0c33-2b6d-4c55-a0c2-77d1b7f2e310'",
        "RuntimeError: NVML_SUCCESS == r INTERNAL ASSERT FAILED at CUDACachingAllocator.cpp:1131",
    ),
    explain={
        "en": (
            "MIG cuts a GPU into slices that are isolated from each other. A CUDA process can use exactly one slice, listing several in "
            "CUDA_VISIBLE_DEVICES gives it the first, and there is no peer-to-peer between slices. NCCL recognises GPUs by their PCI address, "
            "which all slices of a GPU share, and refuses them as duplicates; only NCCL 2.32 and later know better, experimentally. nvidia-smi "
            "-L shows whether MIG devices are there. For distributed training take whole GPUs; slices are for independent small jobs."
        ),
        "zh": (
            "MIG 把一块 GPU 切成彼此隔离的切片。一个 CUDA 进程只能使用一个切片，CUDA_VISIBLE_DEVICES 里列出多个也只有第一个有效，而且切片之间没有"
            " P2P。NCCL 按 PCI 地址识别 GPU，同一块 GPU 的所有切片地址相同，于是被当作重复的 GPU 拒绝；NCCL 2.32 及以后版本才实验性地支持。用 "
            "nvidia-smi -L 可以看到是否存在 MIG 设备。分布式训练请使用整块 GPU，切片适合彼此独立的小任务。"
        ),
    },
)
