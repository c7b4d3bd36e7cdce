"""illegal-memory-access: a CUDA kernel faulted, and whatever touched the GPU next reports it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from unhang.knowledge import other_libraries
from unhang.knowledge.cause import STANDINGS, Cause, LogView, Signature
from unhang.knowledge.text import Text, ranks
from unhang.model import Finding, Remedy, Standing

if TYPE_CHECKING:
    from unhang.logs import Hit
    from unhang.records.incident_view import IncidentView

# A GPU that fails floods the kernel log with faults of its applications, before and after its own Xid: neither lines nor times tell the first.
_BEHIND: dict[Standing, Standing] = {"established": "likely", "likely": "possible"}


def _hits(seen: LogView | IncidentView) -> list[Hit]:
    """None of the traps by which a library that gave up waiting ended its own kernel."""
    waited = seen.hits_of("collective-timeout")
    return [h for h in seen.hits_of(CAUSE.id) if not other_libraries.trapped(h, waited)]


def _in_run(picture: IncidentView) -> Finding | None:
    return CAUSE.of_hits(_hits(picture))


def _in_logs(view: LogView) -> Finding | None:
    hits = _hits(view)
    found = CAUSE.of_hits(hits, view)
    if found is not None and not found.ranks and found.where is None:
        # The GPU prints its assertion, and the rank that waited for it raises.
        raised = CAUSE.of_hits([h for h in hits if view.traceback_of(h) is not None], view)
        if raised is not None and raised.ranks:
            says = Text("{who}: {said}", "{who}：{said}").fill(who=ranks(raised.ranks), said=Text(found.says, found.says_zh))
            found = replace(found, ranks=raised.ranks, hosts=raised.hosts, where=raised.where, says=says.en, says_zh=says.zh)
    hardware = min((h.signature.standing for h in view.hits_of("gpu-hardware")), key=STANDINGS.index, default=None)
    if found is None or hardware not in _BEHIND:
        return found
    return replace(found, standing=max(found.standing, _BEHIND[hardware], key=STANDINGS.index))


_FIND = ("name-the-kernel", "sanitize", "upgrade-the-kernel")

CAUSE = Cause(
    id="illegal-memory-access",
    role="root",
    title="A GPU kernel accessed invalid memory",
    title_zh="GPU 内核访问了非法内存",
    what=(
        "A kernel of the model, of a library or of a custom extension faulted on one GPU. CUDA reports it asynchronously, at the next call: often "
        "inside NCCL's watchdog."
    ),
    why=(
        "An index out of range (labels, token ids, positions), a bug in a custom, Triton or attention kernel, freed or foreign memory; rarely the "
        "GPU itself."
    ),
    signatures=(
        Signature(
            needle="Assertion `",
            pattern=(
                # A wait of MSCCL++ that was given up is such an assertion, too.
                r"(?P<file>(?<![\w./+-])(?![\w./+-]{0,200}(?:mscclpp|poll_device\.))"
                r"[\w./+-]{1,200}\.(?:cuh?|hip|h|cpp|py)):(?P<line>\d{1,9})(?::[^\n]{0,600}?)?:? block: \[\d+,\s*\d+,\s*\d+\], "
                r"thread: \[\d+,\s*\d+,\s*\d+\]:? Assertion `(?P<condition>[^`\n]{1,200}?)[`'] failed"
            ),
            says="a device-side assertion failed: {condition} ({file}:{line})",
            says_zh="设备端断言失败：{condition}（{file}:{line}）",
            remedies=("check-the-indices", "name-the-kernel"),
        ),
        Signature(
            needle="fftsplus aivector error",
            pattern=r"device\(chipId:(?P<device>\d+).{0,200}fftsplus aivector error",
            says="a kernel on NPU {device} accessed memory that is not its own, or was given what it cannot take",
            says_zh="NPU {device} 上的内核访问了非法内存，或收到了无法处理的输入",
            remedies=("check-the-indices", "upgrade-the-kernel"),
        ),
        # Cut off in front.
        Signature(
            needle="Assertion `",
            pattern=r"^block: \[\d+,\s*\d+,\s*\d+\], thread: \[\d+,\s*\d+,\s*\d+\]:? Assertion `(?P<condition>[^`\n]{1,200}?)[`'] failed",
            says="a device-side assertion failed: {condition}",
            says_zh="设备端断言失败：{condition}",
            remedies=("check-the-indices", "name-the-kernel"),
        ),
        Signature(
            needle="device-side assert triggered",
            says="a device-side assertion failed in a GPU kernel, mostly an index out of range",
            says_zh="GPU 内核中的设备端断言失败，多半是索引越界",
            remedies=("check-the-indices", "name-the-kernel"),
        ),
        Signature(
            needle="illegal memory access was encountered",
            says="a GPU kernel accessed memory that is not its own; the line that reports it is only where it was noticed",
            says_zh="GPU 内核访问了不属于它的内存；报错的那一行只是发现它的地方",
            remedies=_FIND,
        ),
        Signature(
            needle="misaligned address",
            pattern=r"(?:CUDA|HIP|Triton|Cuda)[^\n]{0,160}\bmisaligned address",
            says="a GPU kernel read or wrote a misaligned address",
            says_zh="GPU 内核读或写了未对齐的地址",
            remedies=_FIND,
        ),
        Signature(
            needle="an illegal instruction was encountered",
            says="a GPU kernel executed an illegal instruction",
            says_zh="GPU 内核执行了非法指令",
            remedies=_FIND,
        ),
        Signature(
            needle="invalid program counter",
            pattern=r"(?:CUDA|Cuda)[^\n]{0,160}\binvalid program counter",
            says="a GPU kernel jumped to an invalid address",
            says_zh="GPU 内核跳转到了无效地址",
            remedies=_FIND,
        ),
        Signature(
            needle="operation not supported on global/shared address space",
            says="a GPU kernel used an address of the wrong address space",
            says_zh="GPU 内核使用了错误地址空间的地址",
            remedies=_FIND,
        ),
        Signature(
            needle="unspecified launch failure",
            pattern=r"(?:CUDA|HIP|Cuda|Triton)[^\n]{0,200}\bunspecified launch failure(?! in prior launch)",
            standing="likely",
            says="a GPU kernel failed without a reason: an access fault in most cases, the GPU itself in some (ask the kernel log for an Xid)",
            says_zh="GPU 内核失败，没有给出原因：多数情况是访存错误，有些情况是 GPU 本身（到系统内核日志里查 Xid）",
            remedies=("name-the-kernel", "ask-the-kernel-log", "sanitize"),
        ),
        Signature(
            needle="CUDA_ERROR_ILLEGAL_ADDRESS",
            pattern=r"CUDA_ERROR_ILLEGAL_ADDRESS\b(?!\s*=)",
            says="a GPU kernel accessed memory that is not its own",
            says_zh="GPU 内核访问了不属于它的内存",
            remedies=_FIND,
        ),
        Signature(
            needle="cudaErrorIllegalAddress",
            pattern=r"cudaErrorIllegalAddress\b(?!\s*=)",
            says="a GPU kernel accessed memory that is not its own",
            says_zh="GPU 内核访问了不属于它的内存",
            remedies=_FIND,
        ),
        Signature(
            needle="CUDA_ERROR_LAUNCH_FAILED",
            pattern=r"CUDA_ERROR_LAUNCH_FAILED\b(?!\s*=)",
            standing="likely",
            says="a GPU kernel failed without a reason: an access fault in most cases",
            says_zh="GPU 内核失败，没有给出原因：多数情况是访存错误",
            remedies=("name-the-kernel", "ask-the-kernel-log", "sanitize"),
        ),
        Signature(
            needle="cudaErrorLaunchFailure",
            pattern=r"cudaErrorLaunchFailure\b(?!\s*=)",
            standing="likely",
            says="a GPU kernel failed without a reason: an access fault in most cases",
            says_zh="GPU 内核失败，没有给出原因：多数情况是访存错误",
            remedies=("name-the-kernel", "ask-the-kernel-log", "sanitize"),
        ),
        Signature(
            needle="Memory access fault by GPU",
            pattern=r"Memory access fault by GPU node-(?P<node>\d+)[^\n]{0,120}?(?:Reason: (?P<reason>[^\n.]{1,80}))?$",
            says="a ROCm kernel accessed memory that is not its own (GPU node {node})",
            says_zh="ROCm 内核访问了不属于它的内存（GPU node {node}）",
            remedies=("name-the-kernel", "upgrade-the-kernel"),
        ),
        Signature(
            needle="HSA_STATUS_ERROR_MEMORY_APERTURE_VIOLATION",
            says="a ROCm kernel accessed memory outside of every aperture",
            says_zh="ROCm 内核访问了所有 aperture 之外的内存",
            remedies=("name-the-kernel", "upgrade-the-kernel"),
        ),
        Signature(
            needle="NVRM: Xid",
            pattern=r"Xid \((?:PCI:)?(?P<bus>[0-9A-Fa-f:.]+)\): 31\b[^\n]{0,40}?(?:pid='?(?P<process>\d+))?",
            standing="likely",
            says="the driver logged a memory page fault of the application (Xid 31) on GPU {bus}",
            says_zh="驱动记录了程序在 GPU {bus} 上的内存页错误（Xid 31）",
            remedies=_FIND,
        ),
        Signature(
            needle="NVRM: Xid",
            pattern=r"Xid \((?:PCI:)?(?P<bus>[0-9A-Fa-f:.]+)\): 13\b[^\n]{0,40}?(?:pid='?(?P<process>\d+))?",
            standing="likely",
            says="the driver logged an exception inside a kernel of the application (Xid 13) on GPU {bus}",
            says_zh="驱动记录了程序的某个 GPU 内核在 GPU {bus} 上的异常（Xid 13）",
            remedies=_FIND,
        ),
        Signature(
            needle="CUBLAS_STATUS_EXECUTION_FAILED",
            standing="possible",
            says="a cuBLAS kernel failed, mostly because an earlier kernel had faulted",
            says_zh="某个 cuBLAS 内核失败，多半是因为更早的内核已经出错",
            remedies=_FIND,
        ),
        # Some kernels name the process on a line of its own.
        Signature(
            needle="page fault (src_id:",
            pattern=(
                r"amdgpu (?P<bus>[0-9a-f:.]+): (?:amdgpu: )?\[gfxhub\d*\] (?:no-retry |retry )?page fault \([^)\n]{0,120}"
                r"for process (?P<process>[\w.-]{1,32}) pid [1-9]"
            ),
            standing="likely",
            says="the driver logged a page fault of the process {process} on GPU {bus}",
            says_zh="驱动记录了进程 {process} 在 GPU {bus} 上的页错误",
        ),
        Signature(
            needle="page fault (src_id:",
            pattern=r"amdgpu (?P<bus>[0-9a-f:.]+): (?:amdgpu: )?\[gfxhub\d*\] (?:no-retry |retry )?page fault \([^)\n]{0,80}pasid:[1-9]\d*\)",
            near=r"amdgpu:\s+(?:for p|P)rocess (?:py|pt_|ray|vllm|sglang|torchrun)\S{0,40} pid [1-9]",
            standing="likely",
            says="the driver logged a page fault of a process on GPU {bus}",
            says_zh="驱动记录了某个进程在 GPU {bus} 上的页错误",
        ),
    ),
    in_run=_in_run,
    in_logs=_in_logs,
    remedies=(
        Remedy(
            id="name-the-kernel",
            says="Run once with synchronous launches: the traceback then names the line that launched the kernel. Slow; never leave it on.",
            says_zh="用同步方式再跑一次：此时 traceback 才会指向真正启动该内核的那一行。速度很慢，不要一直开着。",
            env={"CUDA_LAUNCH_BLOCKING": "1"},
            verify="tr '\\0' '\\n' < /proc/$(pgrep -n -f train.py)/environ | grep CUDA_LAUNCH_BLOCKING",
        ),
        Remedy(
            id="check-the-indices",
            says=(
                "Compare the indices with the sizes before the step: token ids with the size of the embedding, labels with the number of classes, "
                "positions with the longest sequence. On the CPU the same line raises a plain IndexError."
            ),
            says_zh=(
                "在该步之前检查索引是否越界：token id 与 embedding 大小，标签与类别数，位置与最大序列长度。放到 CPU 上运行，同一行会直接抛出 "
                "IndexError。"
            ),
            command=(
                'python -c "import json,sys; from transformers import AutoConfig, AutoTokenizer as T; m=sys.argv[1]; '
                'print(len(T.from_pretrained(m)), AutoConfig.from_pretrained(m).vocab_size)" MODEL'
            ),
        ),
        Remedy(
            id="sanitize",
            says="Let compute-sanitizer name the instruction, on one rank and few steps; or attach cuda-gdb with CUDA_DEVICE_WAITS_ON_EXCEPTION=1.",
            says_zh="用 compute-sanitizer 在单个进程、少量步数上找出具体指令；也可以设置 CUDA_DEVICE_WAITS_ON_EXCEPTION=1 后用 cuda-gdb 附加。",
            command="compute-sanitizer --tool memcheck python train.py",
        ),
        Remedy(
            id="upgrade-the-kernel",
            says=(
                "Upgrade the library whose kernel it is (attention, quantisation, vLLM, Triton), or switch that kernel off to prove it: another "
                "attention backend, eager mode, no CUDA graphs."
            ),
            says_zh=(
                "升级该内核所属的库（attention、量化、vLLM、Triton），或先关掉它来验证：换一个 attention 后端、使用 eager 模式、关闭 CUDA graph。"
            ),
        ),
        Remedy(
            id="ask-the-kernel-log",
            says="Look for an Xid of the same moment: 13 and 31 are the application, 48, 62, 63, 64, 74, 79, 94, 95 or 119 are the GPU.",
            says_zh="查看同一时刻内核日志里的 Xid：13 和 31 是程序问题；48、62、63、64、74、79、94、95、119 是 GPU 自身的问题。",
            command="dmesg -T | grep -E 'NVRM: Xid|SXid'",
        ),
    ),
    leads_to=("rank-exception", "premature-exit", "process-stuck"),
    mistaken_for={
        ("gpu-hardware"): (
            "a faulty GPU gives the same CUDA error, but with an Xid of its own kind in the kernel log, and on the same card whatever runs there"
        ),
        "nccl-bug": "NCCL's watchdog only notices the fault; the kernel is NCCL's own only where compute-sanitizer or the core dump names one",
        "gpu-oom": "once memory is short, unchecked allocations fault later; look for an out-of-memory line before this one",
    },
    sources=(
        "https://docs.nvidia.com/cuda/cuda-runtime-api/group__CUDART__TYPES.html",
        "https://docs.nvidia.com/deploy/xid-errors/index.html",
        "https://docs.nvidia.com/compute-sanitizer/ComputeSanitizer/index.html",
    ),
    hits=(
        "The error from device(chipId:1, dieId:0), serial number is 2, there is an exception of fftsplus aivector error, core id is 9",
        "block: [70,0,0], thread: [30,0,0] Assertion `index out of bounds: 0 <= tmp16 < 32768` failed.",
        (
            "[rank1]: ../aten/src/ATen/native/cuda/Indexing.cu:1289: indexSelectLargeIndex: block: [212,0,0], thread: [64,0,0] Assertion `srcIndex < "
            "srcSelectDimSize` failed."
        ),
        (
            "/pytorch/aten/src/ATen/native/cuda/Loss.cu:245: nll_loss_forward_reduce_cuda_kernel_2d: block: [0,0,0], thread: [6,0,0] Assertion `t "
            ">= 0 && t < n_classes` failed."
        ),
        (
            "/srv/job/.cache/torchinductor/ab/cabc.py:31: unknown: block: [3,0,0], thread: [17,0,0] Assertion `index out of bounds: 0 <= tmp4 < "
            "32000` failed."
        ),
        "RuntimeError: CUDA error: device-side assert triggered",
        (
            "[rank5]:[E1103 10:00:01.113 ProcessGroupNCCL.cpp:1895] [PG ID 0 PG GUID 0(default_pg) Rank 5] Process group watchdog thread "
            "terminated with exception: CUDA error: an illegal memory access was encountered"
        ),
        "[E ProcessGroupNCCL.cpp:915] [Rank 3] NCCL watchdog thread terminated with exception: CUDA error: an illegal memory access was encountered",
        "(RayWorkerWrapper pid=812) RuntimeError: Triton Error [CUDA]: an illegal memory access was encountered",
        "node7:4711:4788 [3] enqueue.cc:1204 NCCL WARN Cuda failure 700 'an illegal memory access was encountered'",
        "torch.AcceleratorError: CUDA error: misaligned address",
        "RuntimeError: CUDA error: an illegal instruction was encountered",
        "RuntimeError: CUDA error: invalid program counter",
        "RuntimeError: CUDA error: operation not supported on global/shared address space",
        (
            "[rank29]:[E1103 10:00:01.113831168 ProcessGroupNCCL.cpp:1923] [PG ID 5 PG GUID 83(TENSOR_MODEL_PARALLEL_GROUP) Rank 1] Process group "
            "watchdog thread terminated with exception: CUDA error: unspecified launch failure"
        ),
        (
            "E external/xla/xla/stream_executor/cuda/cuda_event.cc:49] Error polling for event status: CUDA_ERROR_ILLEGAL_ADDRESS: an illegal "
            "memory access was encountered"
        ),
        "  what():  CUDA free failed: cudaErrorIllegalAddress: an illegal memory access was encountered",
        "jaxlib.xla_extension.XlaRuntimeError: INTERNAL: CUDA_ERROR_LAUNCH_FAILED: unspecified launch failure",
        "  what():  synchronize failed: cudaErrorLaunchFailure: unspecified launch failure",
        "Memory access fault by GPU node-4 (Agent handle: 0x55d0c1) on address 0x7f10a4200000. Reason: Page not present or supervisor privilege.",
        (
            ":0:rocdevice.cpp:2881: Callback: Queue 0x7f error : HSA_STATUS_ERROR_MEMORY_APERTURE_VIOLATION: The agent attempted to access memory "
            "beyond the largest legal address."
        ),
        (
            "[884123.41] NVRM: Xid (PCI:0000:1b:00): 31, pid=4720, name=python3, Ch 00000008, intr 00000000. MMU Fault: ENGINE GRAPHICS "
            "GPCCLIENT_T1_1 faulted @ 0x7f1a_24000000. Fault is of type FAULT_PDE ACCESS_TYPE_VIRT_READ"
        ),
        (
            "Nov  3 10:00:01 node7 kernel: NVRM: Xid (PCI:0000:1b:00): 13, pid='<unknown>', name=<unknown>, Graphics SM Warp Exception on (GPC 1, "
            "TPC 2, SM 0): Out Of Range Address"
        ),
        "RuntimeError: CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasGemmEx(handle, opa, opb, m, n, k)`",
        (
            "[88211.120441] amdgpu 0000:0c:00.0: amdgpu: [gfxhub0] no-retry page fault (src_id:0 ring:24 vmid:8 pasid:32772, for process p"
            "ython3 pid 5120 thread python3 pid 5120)"
        ),
        (
            "[88211.120441] amdgpu 0000:0c:00.0: amdgpu: [gfxhub] no-retry page fault (src_id:0 ring:24 vmid:3 pasid:32769)\n"
            "[88211.120449] amdgpu 0000:0c:00.0: amdgpu:  for process pt_main_thread pid 5120 thread pt_main_thread pid 5120)"
        ),
    ),
    near_misses=(
        "NVRM: Xid (PCI:0000:1b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.",
        "NVRM: Xid (PCI:0000:1b:00): 45, pid=4720, name=python3, Ch 00000001",
        "RuntimeError: CUDA error: uncorrectable ECC error encountered",
        "RuntimeError: CUDA error: no kernel image is available for execution on the device",
        "python3[4720]: segfault at 0 ip 00007f1a sp 00007ffc error 4 in libnccl.so.2",
        "RuntimeError: CUDA error: invalid device ordinal",
        "train: csrc/main.cpp:88: int main(): Assertion `argc > 1' failed.",
        "Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.",
        "CUDA_ERROR_ILLEGAL_ADDRESS = 700,",
        "RuntimeError: CUDA error: out of memory",
        ("[88211.120441] amdgpu 0000:0c:00.0: amdgpu: [gfxhub] page fault (src_id:0 ring:153 vmid:0 pasid:0, for process  pid 0 thread  pid 0)"),
        ("[88211.120441] amdgpu 0000:0c:00.0: amdgpu: [mmhub] page fault (src_id:0 ring:56 vmid:6 pasid:32784)"),
    ),
    explain={
        "en": (
            "A kernel on one GPU read or wrote memory that it must not. CUDA launches are asynchronous, so the message appears at the next call "
            "that touches the GPU: often inside NCCL's watchdog, in a copy or in a free, and the traceback there is innocent. Find the rank that "
            "prints it first; the others only time out. A device-side assertion names the condition that failed, nearly always an index out of "
            "range. Otherwise run once with CUDA_LAUNCH_BLOCKING=1, or with compute-sanitizer. Only where the kernel log shows a hardware Xid at "
            "the same moment, or the same card fails with every program, suspect the GPU."
        ),
        "zh": (
            "某块 GPU 上的内核读写了不该访问的内存。CUDA 的启动是异步的，所以报错出现在下一次访问 GPU 的调用里：常常在 NCCL 的 watchdog、拷贝或释"
            "放中，那里的 traceback 并不是原因。先找出最早打印它的进程，其他进程只是超时。device-side assert 会写出不成立的条件，几乎总是索引越界"
            "。否则用 CUDA_LAUNCH_BLOCKING=1 或 compute-sanitizer 再跑一次。只有当同一时刻内核日志里出现硬件类的 Xid，或同一块卡运行任何程序都出错"
            "时，才怀疑 GPU 本身。"
        ),
    },
)
