"""gpu-busy-exclusive: the GPU does not let this process in, because somebody else has it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from unhang.knowledge.cause import Cause, Signature, command
from unhang.knowledge.text import Text
from unhang.model import Evidence, HostFinding, Remedy

if TYPE_CHECKING:
    from unhang.facts.snapshot import Snapshot


def _on_host(host: Snapshot) -> Iterable[HostFinding]:
    from unhang.facts import gpu

    seen = host.get(gpu.SUBJECT)
    for mode in ("prohibited", "exclusive-process", "exclusive-thread"):
        found = [g for g in seen.gpus if g.compute_mode == mode] if seen is not None else []
        # The server of MPS is the one process that may compute there, for all its clients.
        taken = {g.index: [p for p in g.processes or () if p.kind == "compute" and "nvidia-cuda-mps-server" not in (p.name or "")] for g in found}
        busy = [g for g in found if taken[g.index]]
        for g in busy if mode != "prohibited" else ():
            pids = " ".join(str(p.pid) for p in taken[g.index])
            yield CAUSE.host_finding(
                area="gpu",
                severity="error",
                says=Text(
                    f"{gpu.label(g)} serves one process only ({mode}), and process {pids} has it",
                    f"{gpu.label(g)} 只服务一个进程（{mode}），已被进程 {pids} 占用",
                ),
                leads_to=Text(
                    "CUDA refuses every other process: all CUDA-capable devices are busy or unavailable",
                    "CUDA 拒绝其他所有进程：all CUDA-capable devices are busy or unavailable",
                ),
                evidence=tuple(Evidence(source="NVML", text=f"compute process {p.pid} {p.name or ''}".strip()) for p in taken[g.index]),
                remedies=("who-holds-it", "compute-mode"),
                commands={
                    "who-holds-it": command("ps -o pid,user,etime,args -p {pids:pid,}", pids=pids.split(" ")),
                    "compute-mode": command("sudo nvidia-smi -i {gpu:number} -c DEFAULT", gpu=g.index),
                },
            )
        rest = [g for g in found if g not in busy or mode == "prohibited"]
        if rest:
            closed = mode == "prohibited"
            yield CAUSE.host_finding(
                area="gpu",
                severity="error" if closed else "note",
                says=Text("{gpus}: {how}", "{gpus}：{how}").fill(
                    gpus=gpu.named(g.index for g in rest),
                    how=Text("closed to computing (prohibited)", "禁止计算（prohibited）")
                    if closed
                    else Text(f"one process each ({mode})", f"各只服务一个进程（{mode}）"),
                ),
                leads_to=Text("CUDA refuses every process", "CUDA 拒绝所有进程")
                if closed
                else Text(
                    "a second process of a rank that touches CUDA, such as a loader worker, is refused",
                    "同一 rank 中第二个使用 CUDA 的进程（例如 DataLoader worker）会被拒绝",
                ),
                evidence=(Evidence(source="NVML", text=f"compute mode {mode}"),),
                remedies=("compute-mode",),
                commands={"compute-mode": command("sudo nvidia-smi -i {gpus:number,} -c DEFAULT", gpus=[g.index for g in rest])},
            )


CAUSE = Cause(
    id="gpu-busy-exclusive",
    role="root",
    title="The GPU is held by another process",
    title_zh="GPU 被其他进程独占",
    what="CUDA could not create a context on the GPU: it is in an exclusive compute mode and occupied, closed to computing, or served by MPS only.",
    why=(
        "Another job or a leftover of an earlier run holds the GPU; the administrator chose exclusive-process mode and a second process of the "
        "same job (a data loader, a monitor) opens it; the MPS server is down."
    ),
    signatures=(
        Signature(
            needle="busy or unavailable",
            pattern=r"(?:CUDA-capable device(?:\(s\)|s)? (?:is/are|are|is)|devices are) busy or unavailable",
            # A context that a fault ended says so, too.
            unless=r"unspecified launch failure|illegal memory access was|device-side assert",
            says="CUDA refused this process a GPU: the device is busy or unavailable (error 46)",
            says_zh="CUDA 拒绝该进程使用 GPU：设备忙或不可用（错误 46）",
            remedies=("who-holds-it", "compute-mode"),
        ),
        Signature(
            needle="CUDA_ERROR_DEVICE_UNAVAILABLE",
            says="CUDA refused this process a GPU: the device is busy or unavailable (error 46)",
            says_zh="CUDA 拒绝该进程使用 GPU：设备忙或不可用（错误 46）",
            remedies=("who-holds-it", "compute-mode"),
        ),
        Signature(
            needle="cudaErrorDevicesUnavailable",
            says="CUDA refused this process a GPU: the device is busy or unavailable (error 46)",
            says_zh="CUDA 拒绝该进程使用 GPU：设备忙或不可用（错误 46）",
            remedies=("who-holds-it", "compute-mode"),
        ),
        Signature(
            needle="exclusive-thread device already in use",
            says="the GPU is in exclusive-thread mode and another thread has it",
            says_zh="GPU 处于 exclusive-thread 模式，已被另一个线程占用",
            remedies=("compute-mode", "who-holds-it"),
        ),
        Signature(
            needle="Device or resource busy",
            pattern=r"open\((?P<device>/dev/(?:vfio|accel)[\w/]{0,20})\): Device or resource busy",
            says="another process holds {device}",
            says_zh="另一个进程占用了 {device}",
            remedies=("tpu-left-over",),
        ),
        Signature(
            needle="Failed to initialize the HCCP process",
            standing="likely",
            says="HCCL cannot start its device process: that of an earlier training may still hold the NPU",
            says_zh="HCCL 无法启动设备进程：之前训练的进程可能仍占用 NPU",
            remedies=("npu-left-over",),
        ),
        Signature(
            needle="to connect to the MPS control daemon",
            pattern=r"MPS client failed to connect to the MPS control daemon or the MPS server",
            says="the GPU is served by MPS only, and no MPS server answers",
            says_zh="GPU 只通过 MPS 提供服务，而没有 MPS 服务器响应",
            remedies=("restart-mps",),
        ),
        Signature(
            needle="MPS server is not ready to accept",
            says="the MPS server accepts no new clients: it is recovering from the crash of one, or runs for another user",
            says_zh="MPS 服务器不接受新客户端：它正在从某个客户端的崩溃中恢复，或者在为另一个用户运行",
            remedies=("restart-mps",),
        ),
        Signature(
            needle="exceeds the maximum number of MPS clients",
            pattern=r"(?:hardware resources|number of MPS clients)",
            standing="likely",
            says="the MPS server has all the clients that it can serve",
            says_zh="MPS 服务器的客户端数已达上限",
            remedies=("who-holds-it", "restart-mps"),
        ),
    ),
    on_host=_on_host,
    remedies=(
        Remedy(
            id="who-holds-it",
            says="See who has the GPU open, and end what an earlier run left behind.",
            says_zh="查看是谁占用了 GPU，并结束上一次运行遗留的进程。",
            command="nvidia-smi --query-compute-apps=gpu_uuid,pid,process_name,used_memory --format=csv; sudo fuser -v /dev/nvidia[0-9]*",
            verify="python -c 'import torch; [torch.zeros(1, device=i) for i in range(torch.cuda.device_count())]; print(\"ok\")'",
        ),
        Remedy(
            id="tpu-left-over",
            says="One process has the TPU: find it, and end it if it is left over.",
            says_zh="TPU 只能由一个进程使用：找到该进程，若是残留的就结束它。",
            command="fuser -v /dev/vfio/* /dev/accel* 2>/dev/null",
        ),
        Remedy(
            id="npu-left-over",
            says="Look for processes of earlier trainings on the NPUs, end them, and wait ten seconds before the next start.",
            says_zh="查看 NPU 上是否还有之前训练的进程，结束它们，等待十秒后再启动。",
            command="npu-smi info; pgrep -af python",
        ),
        Remedy(
            id="compute-mode",
            says=(
                "Look at the compute mode. In Exclusive_Process one process per GPU may compute: set Default, or see to it that only the rank "
                "itself touches CUDA (start data loader workers with spawn, keep launchers and monitors off the GPU)."
            ),
            says_zh=(
                "查看计算模式。Exclusive_Process 下每块 GPU 只允许一个进程计算：改为 Default，或确保只有训练进程自己使用 CUDA（数据加载进程用 "
                "spawn 启动，启动器和监控程序不要碰 GPU）。"
            ),
            command="nvidia-smi --query-gpu=index,compute_mode --format=csv; sudo nvidia-smi -c DEFAULT",
            verify="nvidia-smi --query-gpu=compute_mode --format=csv,noheader",
        ),
        Remedy(
            id="restart-mps",
            says="Stop the MPS daemon and start it again as the user of the job, or run without it in Default mode.",
            says_zh="停止 MPS 守护进程，并以作业所属用户重新启动；或者在 Default 模式下不使用 MPS。",
            command="echo quit | nvidia-cuda-mps-control; nvidia-cuda-mps-control -d",
            verify="echo get_server_list | nvidia-cuda-mps-control",
        ),
    ),
    leads_to=("rank-exception",),
    mistaken_for={
        "duplicate-gpu": "in Exclusive_Process mode two ranks of one job that chose the same GPU look like this; NCCL does not come to judge them",
        "gpu-oom": "a GPU in Default mode lets everybody in until its memory is full",
        "gpu-hardware": "a GPU that needs a reset is unavailable to everybody; look for an Xid in the kernel log",
        "mig-slices": "a GPU in MIG mode without instances has nothing to offer either",
    },
    sources=(
        "https://docs.nvidia.com/cuda/cuda-runtime-api/group__CUDART__TYPES.html",
        "https://docs.nvidia.com/deploy/mps/index.html",
        "https://docs.nvidia.com/cuda/cuda-c-programming-guide/index.html#compute-modes",
    ),
    hits=(
        "RuntimeError: TPU initialization failed: open(/dev/vfio/0): Device or resource busy",
        "EJ0001: [PID: 5122] 2026-11-03-09:10:02.118.301 Failed to initialize the HCCP process. Reason: Maybe the last training process is running.",
        "[rank5]: RuntimeError: CUDA error: CUDA-capable device(s) is/are busy or unavailable",
        "RuntimeError: cuda runtime error (46) : all CUDA-capable devices are busy or unavailable at /pytorch/aten/src/THC/THCGeneral.cpp:51",
        "node7: Test CUDA failure common.cu:1304 'CUDA-capable device(s) is/are busy or unavailable'",
        "node7:5120:5341 [3] init.cc:1640 NCCL WARN Cuda failure 46 'CUDA-capable device(s) is/are busy or unavailable'",
        "cuda_driver.cc:1018] failed to create context: CUDA_ERROR_DEVICE_UNAVAILABLE",
        "error code cudaErrorDevicesUnavailable",
        "RuntimeError: CUDA error: exclusive-thread device already in use by a different thread",
        "RuntimeError: CUDA error: MPS client failed to connect to the MPS control daemon or the MPS server",
        "torch.AcceleratorError: CUDA error: the MPS server is not ready to accept new MPS client requests",
        "CUDA error: this operation exceeds the maximum number of MPS clients",
    ),
    near_misses=(
        "CUDA warning: unspecified launch failure (function destroyEvent)\nCUDA warning: CUDA-capable device(s) is/are busy or unavailable",
        "torch.OutOfMemoryError: CUDA out of memory. Process 5120 has 78.20 GiB memory in use.",
        "OSError: [Errno 98] Address already in use",
        "RuntimeError: No CUDA GPUs are available",
        "|   0  NVIDIA H100 80GB HBM3  On  | 00000000:4F:00.0 Off |    0 |  E. Process |",
        "OSError: [Errno 16] Device or resource busy",
    ),
    explain={
        "en": (
            "A GPU has a compute mode. In Default any number of processes may use it; in Exclusive_Process one, in Prohibited none. Here CUDA "
            "turned the process away, so somebody else has the GPU, or the mode forbids it. nvidia-smi shows the mode and the processes; from "
            "inside a container it often shows no processes, so look on the host. Mind that a rank may stand in its own way: a second process of "
            "the same job, such as a data loader worker that touches CUDA, counts as another one."
        ),
        "zh": (
            "GPU 有计算模式：Default 允许任意多个进程使用，Exclusive_Process 只允许一个，Prohibited 一个也不允许。这里 CUDA 拒绝了该进程，说明 "
            "GPU 已被别人占用，或者模式不允许。nvidia-smi 能看到模式和进程；在容器里往往看不到进程，要到宿主机上看。还要注意，作业可能自己挡住自"
            "己：同一作业的第二个进程（例如碰到 CUDA 的数据加载进程）也算另一个进程。"
        ),
    },
)
