"""gpu-oom: a GPU had no memory left for what was asked of it.

Long because each framework counts its memory in words of its own; most of it is signatures and their lines.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from unhang.frames import user_frame
from unhang.knowledge import cann, serving, words
from unhang.knowledge.caught_exceptions import surely_caught, went_on
from unhang.knowledge.cause import STANDINGS, Cause, LogView, Signature, command
from unhang.knowledge.text import NOTHING, Text, continued, joined
from unhang.model import Evidence, Finding, HostFinding, Remedy
from unhang.patterns import lazily

if TYPE_CHECKING:
    from unhang.facts.snapshot import Snapshot
    from unhang.frames import Frame
    from unhang.logs import Hit, Traceback
    from unhang.records.incident_view import IncidentView

_PINNING = r"\.pin_memory\(|cudaHostAlloc|cudaMallocHost|cudaHostRegister|CachingHostAllocator"
# As Trainer, Lightning, accelerate's examples and most loops of one's own call what evaluates; unhang.evaluate, too.
_EVALUATES = lazily(r"(?:^|_)(?:eval|evaluat\w*|valid|validat\w*)(?:_|$)")
_SIZE = r"\b(\d{1,15}(?:\.\d{1,9})?) ?([KMGT]i?B|bytes|B)\b"
_UNITS = {"b": 1, "bytes": 1, "kb": 2**10, "kib": 2**10, "mb": 2**20, "mib": 2**20, "gb": 2**30, "gib": 2**30, "tb": 2**40, "tib": 2**40}
# The wording of torch up to 2.0 stands in brackets, of 2.1 and later in sentences (2.1 wrote "capacty").
_WANTED = lazily(rf"Tried to allocate {_SIZE}")
_DEVICE = lazily(r"\b(?:GPU|NPU|XPU|MLU) (\d+)(?:;| has a total)")
_TOTAL = lazily(rf"{_SIZE} total capacity|has a total capac\w+ of {_SIZE}")
_FREE = lazily(rf"{_SIZE} (?:is )?free\b")
_ALLOCATED = lazily(rf"{_SIZE} already allocated|Of the allocated memory {_SIZE} is allocated by PyTorch")
_RESERVED = lazily(rf"{_SIZE} (?:reserved in total by PyTorch|cached)")
_UNALLOCATED = lazily(rf"{_SIZE} is reserved by PyTorch but unallocated")
_OWN = lazily(rf"this process has {_SIZE} memory in use")
_OTHERS = lazily(rf"Process (\d+) has {_SIZE} memory in use")


@dataclass(frozen=True, kw_only=True)
class _Memory:
    """What torch says of the GPU when an allocation fails; None where its version does not say it."""

    wanted_bytes: float
    device: str | None
    total_bytes: float | None
    free_bytes: float | None
    allocated_bytes: float | None
    unallocated_bytes: float | None
    others: tuple[tuple[str, float], ...]
    others_bytes: float


def _memory(text: str) -> _Memory | None:
    wanted = _bytes(_WANTED, text)
    if wanted is None:
        return None
    device = _DEVICE.search(text)
    total, free, allocated, reserved = (_bytes(p, text) for p in (_TOTAL, _FREE, _ALLOCATED, _RESERVED))
    unallocated = _bytes(_UNALLOCATED, text)
    # Up to torch 1.3 "cached" was what lies unused beside what is allocated.
    if "cached" in text and reserved is not None and allocated is not None and reserved < allocated:
        reserved += allocated
    if unallocated is None and reserved is not None and allocated is not None:
        unallocated = max(0.0, reserved - allocated)
    # Up to 2.0 nothing names the other processes: what is neither free nor torch's belongs to them, to the CUDA context and to NCCL.
    others = tuple((m[1], _size(m[2], m[3])) for m in _OTHERS.finditer(text))
    elsewhere = sum(size for _, size in others)
    own_bytes = _bytes(_OWN, text)
    if others and (own_bytes is None or (total is not None and own_bytes > total)):
        # In a container torch cannot tell its own pid: the process that is listed alone is itself.
        own = max(others, key=lambda o: o[1])
        others = tuple(o for o in others if o is not own)
        elsewhere -= own[1]
    if not others and reserved is not None and total is not None and free is not None:
        elsewhere = max(0.0, total - free - reserved)
    return _Memory(
        wanted_bytes=wanted,
        device=device[1] if device else None,
        total_bytes=total,
        free_bytes=free,
        allocated_bytes=allocated,
        unallocated_bytes=unallocated,
        others=others,
        others_bytes=elsewhere,
    )


def _bytes(pattern: re.Pattern[str], text: str) -> float | None:
    found = pattern.search(text)
    if found is None:
        return None
    number, unit = [g for g in found.groups() if g is not None][:2]
    return _size(number, unit)


def _size(number: str, unit: str) -> float:
    return float(number) * _UNITS[unit.lower()]


def _gib(size: float) -> str:
    if size >= 2**30:
        return f"{size / 2**30:.2f} GiB"
    return f"{size / 2**20:.0f} MiB" if size >= 2**20 else f"{size / 2**10:.0f} KiB"


def _crowded(m: _Memory) -> bool:
    """Whether others hold so much that it matters: without them the allocation would have fitted, and PyTorch itself does not fill the GPU.

    Up to torch 2.0 the rank's own CUDA context and NCCL's buffers, one to three GiB, count as others.
    """
    if m.total_bytes is not None and (m.allocated_bytes or 0.0) + (m.unallocated_bytes or 0.0) >= 0.85 * m.total_bytes:
        return False
    if m.others:
        return m.others_bytes >= 2**30 and (m.free_bytes or 0.0) + m.others_bytes >= m.wanted_bytes
    return m.total_bytes is not None and m.others_bytes >= max(4 * 2**30, 0.15 * m.total_bytes)


def _remedies(m: _Memory, text: str, frames: Sequence[Frame]) -> tuple[str, ...]:
    chosen = []
    if _crowded(m):
        chosen.append("free-the-gpu")
    # Enough lies there unused, only not in one piece.
    if m.unallocated_bytes is not None and m.unallocated_bytes >= max(m.wanted_bytes, 2**28):
        chosen.append("expandable-segments")
    if serving.is_engine(text, frames):
        return (*chosen, *serving.where_it_ran_out(text, frames).remedies)
    if any(_EVALUATES.search(f.name) for f in frames):
        return (*chosen, "smaller-evaluation", "guard-the-evaluation")
    return (*chosen, "smaller-step", "shard")


def _of_hits(hits: Sequence[Hit], view: LogView | None, backs: Sequence[Traceback], raised: tuple[Frame, ...] = ()) -> Finding | None:
    """`raised`: the frames of the exception, where no log tells them."""
    ordered = sorted(hits, key=lambda h: STANDINGS.index(h.signature.standing))
    if not ordered:
        return None
    # The line with the numbers says most, whoever printed first: NCCL and cuBLAS fail where torch has filled the GPU.
    told = [(h, m) for h in ordered if (m := _memory(h.whole)) is not None]
    if not told:
        asked = serving.by_the_numbers(ordered[0])
        return CAUSE.of_hits(hits, view) if asked is None else CAUSE.of_hits(hits, view, remedies=asked.remedies, commands=asked.commands)
    first, memory = told[0]
    same = [first, *(h for h, _ in told[1:] if h.signature == first.signature), *(h for h in ordered if h.signature != first.signature)]
    chosen = _remedies(memory, first.whole, _frames(first, backs) or raised)
    gpu = Text("GPU {n}", "GPU {n} ").fill(n=memory.device) if memory.device else Text("the GPU", "GPU ")
    of = Text(" of {all}", "（共 {all}）").fill(all=_gib(memory.total_bytes)) if memory.total_bytes is not None else NOTHING
    parts = [Text("{gpu} ran out of memory: {size} wanted", "{gpu}显存不足：需要 {size}").fill(gpu=gpu, size=_gib(memory.wanted_bytes))]
    if memory.free_bytes is not None:
        parts.append(Text("{size}{of} free", "空闲 {size}{of}").fill(size=_gib(memory.free_bytes), of=of))
    if memory.allocated_bytes is not None:
        parts.append(Text("{size} allocated by PyTorch", "PyTorch 已分配 {size}").fill(size=_gib(memory.allocated_bytes)))
    if memory.unallocated_bytes is not None:
        parts.append(Text("{size} reserved but unused", "已保留但未使用 {size}").fill(size=_gib(memory.unallocated_bytes)))
    if memory.others:
        held = Text("process {pid} holds {size}", "进程 {pid} 占用 {size}")
        parts.append(joined(held.fill(pid=pid, size=_gib(size)) for pid, size in memory.others[:3]))
    elif _crowded(memory):
        parts.append(Text("about {size} held outside of PyTorch", "PyTorch 之外约占用 {size}").fill(size=_gib(memory.others_bytes)))
    return CAUSE.of_hits(same, view, standing="established", says=joined(parts, Text(", ", "，")), remedies=chosen)


def _frames(hit: Hit, backs: Sequence[Traceback]) -> tuple[Frame, ...]:
    """Where it was raised."""
    return next((t.frames for t in backs if t.source == hit.source and hit.line is not None and t.line <= hit.line <= t.end), ())


def _in_run(picture: IncidentView) -> Finding | None:
    hits = picture.hits_of(CAUSE.id)
    first = next((r for r in picture.raised if any(h in hits for h in r.raised_hits)), None)
    frames = first.raised.frames if first is not None and first.raised is not None else ()
    found = _of_hits(hits, None, picture.tracebacks, frames)
    if found is None or first is None or first.number not in found.ranks:
        return found
    known = {r.number for r in picture.ranks}
    found = replace(found, hosts=found.hosts or words.hosts(picture, (n for n in found.ranks if n in known)))
    if found.where is not None or (frame := user_frame(frames)) is None:
        return found
    at = picture.place(frame)
    seen = words.stated(picture.incident_source, words.of_rank(first.number, words.frame(frame)))
    return replace(continued(found, Text(", at {at}", "，位于 {at}").fill(at=at)), where=at, evidence=(*found.evidence, seen))


def _in_logs(view: LogView) -> Finding | None:
    hits = [h for h in view.hits_of(CAUSE.id) if not surely_caught(view, h)]
    found = _of_hits(hits, view, view.tracebacks)
    if found is None or not all(went_on(view, h) for h in hits):
        return found
    more = Text("; the log goes on, so it may have been caught", "；日志在它之后仍在继续，它可能已被捕获")
    return replace(continued(found, more), standing="possible")


_OUTSIDE = ("free-the-gpu", "room-for-nccl", "smaller-step")


def _on_host(host: Snapshot) -> Iterable[HostFinding]:
    from unhang.facts import gpu
    from unhang.facts.units import size

    seen = host.get(gpu.SUBJECT)
    for g in seen.gpus if seen is not None else ():
        used, total = g.memory_used_bytes, g.memory_total_bytes
        if used is None or not total:
            continue
        much = used > total // 10 and used > 1 << 30
        computing = [p for p in g.processes or () if p.kind == "compute"]
        if not much and not computing:
            # A desktop, or what the driver keeps for itself.
            continue
        who = ", ".join(f"{p.pid} ({p.name.rpartition('/')[2]})" if p.name else str(p.pid) for p in (g.processes or ())[:4])
        by = (
            Text(f" by {who}", f"，占用者 {who}")
            if g.processes
            else Text("; which processes have it cannot be seen from here", "；从这里看不到是哪些进程占用")
        )
        at = Text(f", at {g.utilization_percent} %", f"，利用率 {g.utilization_percent} %") if g.utilization_percent else NOTHING
        yield CAUSE.host_finding(
            area="gpu",
            severity="warning" if much else "note",
            says=Text("{gpu} is in use: {used} of {total} taken{by}{at}", "{gpu} 正在被使用：显存 {total} 中已占用 {used}{by}{at}").fill(
                gpu=gpu.label(g), used=size(used), total=size(total), by=by, at=at
            ),
            leads_to=Text(
                "a training that needs the whole GPU runs out of memory, and shares its time", "需要整块 GPU 的训练会显存不足，还要与别人分时"
            )
            if much
            else Text("the GPU is shared", "GPU 由多方共用"),
            evidence=tuple(
                Evidence(source="NVML", text=f"process {p.pid} {p.name or ''}".strip() + (f": {size(p.used_bytes)}" if p.used_bytes else ""))
                for p in (g.processes or ())[:4]
            )
            or (Evidence(source="NVML", text=f"{size(used)} of {size(total)} used, no process listed"),),
            remedies=("free-the-gpu",),
            commands={"free-the-gpu": command("ps -o pid,user,etime,args -p {pids:pid,}", pids=[p.pid for p in g.processes])}
            if g.processes
            else None,
        )


CAUSE = Cause(
    id="gpu-oom",
    role="root",
    title="A GPU ran out of memory",
    title_zh="GPU 显存不足",
    what=(
        "An allocation on a GPU failed, in PyTorch's allocator, in NCCL, in a CUDA library or in a serving framework. The rank raises, the others "
        "wait for it."
    ),
    why="The step needs more than fits, the memory is fragmented, another process holds it, or nothing was left for NCCL's own buffers.",
    signatures=(
        cann.message("Failed to allocate ", codes="(?:0007|0011|0004)", remedies=("free-the-gpu", "smaller-step", "shard")),
        Signature(
            needle="out of memory. Tried to allocate",
            pattern=r"(?P<platform>CUDA|HIP|XPU|NPU|MPS|MLU|MUSA|backend) out of memory\. Tried to allocate (?P<wanted>\d+(?:\.\d+)? ?[KMGT]?i?B)",
            says="{platform} out of memory: {wanted} wanted",
            says_zh="{platform} 显存不足：需要 {wanted}",
            remedies=("smaller-step", "shard", "expandable-segments", "free-the-gpu"),
        ),
        # Whatever a vendor's allocator says, the type of the exception names it; Ray's copy has nothing but the type.
        Signature(
            needle="OutOfMemoryError",
            pattern=r"\btorch(?:[._]\w{1,40}){0,3}\.OutOfMemoryError: (?!.{0,60}out of memory)|\bOutOfMemoryError\)?: ray::",
            says="an allocation on the accelerator failed (OutOfMemoryError); how much was wanted is not in this line",
            says_zh="在加速器上分配内存失败（OutOfMemoryError）；这一行没有说明需要多少",
            remedies=("smaller-step", "shard", "free-the-gpu"),
        ),
        Signature(
            needle="rror: out of memory",
            pattern=r"(?:CUDA|HIP|Triton|Cuda)(?: driver| runtime)? [Ee]rror: out of memory(?! at \S{1,200}cumem_allocator)",
            # The same error of a call that pins host memory is not about the GPU.
            unless=_PINNING,
            says="a CUDA call outside of PyTorch's allocator found no memory left on the GPU",
            says_zh="PyTorch 分配器之外的一次 CUDA 调用在 GPU 上已申请不到显存",
            remedies=_OUTSIDE,
        ),
        Signature(
            needle="ZE_RESULT_ERROR_OUT_OF_DEVICE_MEMORY",
            says="an XPU call outside of PyTorch's allocator found no memory left on the GPU",
            says_zh="PyTorch 分配器之外的一次 XPU 调用在 GPU 上已申请不到显存",
            remedies=("smaller-step", "shard"),
        ),
        Signature(
            needle="RESOURCE_EXHAUSTED: ",
            pattern=r"RESOURCE_EXHAUSTED: .{0,300}(?:[Oo]ut of memory|Attempting to (?:reserve|allocate) (?P<wanted>[\d.]+[KMGT]i?B?))",
            near=r"TPU|XLA|hbm|HBM|jax|xla",
            says="the accelerator has too little memory for the program that XLA compiled",
            says_zh="加速器的内存不足以运行 XLA 编译出的程序",
            remedies=("smaller-step", "shard"),
        ),
        Signature(
            needle="cuda runtime error (2)",
            says="the GPU had no memory left (CUDA error 2)",
            says_zh="GPU 已没有剩余显存（CUDA 错误 2）",
            remedies=("smaller-step", "free-the-gpu"),
        ),
        Signature(
            needle="'out of memory'",
            # cudaHostRegister is what fails in the files of shared memory.
            pattern=(
                r"^(?!.{0,400}(?:include/shm\.h|misc/shmutils\.cc):\d).{0,800}?"
                r"(?:(?:Cuda|HIP) failure|CUDA failure \S{1,80}|Test CUDA failure \S{1,80}) (?:\d+ )?'out of memory'"
            ),
            says="NCCL found no GPU memory left for its buffers",
            says_zh="NCCL 已申请不到显存来放它的缓冲区",
            remedies=_OUTSIDE,
        ),
        Signature(
            needle="Failed to CUDA ",
            pattern=r"Failed to CUDA (?:calloc|malloc)(?: async)? (?P<size_bytes>\d+) bytes",
            near=r"out of memory",
            says="NCCL could not get {size_bytes} bytes of GPU memory for its buffers",
            says_zh="NCCL 无法为它的缓冲区申请到 {size_bytes} 字节显存",
            remedies=_OUTSIDE,
        ),
        Signature(
            needle="CUDA_ERROR_OUT_OF_MEMORY",
            pattern=r"CUDA_ERROR_OUT_OF_MEMORY\b(?!\s*=)",
            says="the CUDA driver found no memory left on the GPU",
            says_zh="CUDA 驱动在 GPU 上已申请不到显存",
            remedies=("free-the-gpu", "smaller-step"),
        ),
        Signature(
            needle="cudaErrorMemoryAllocation",
            pattern=r"cudaErrorMemoryAllocation\W{1,4}out of memory|(?:failed|error|Error|ERROR).{0,200}cudaErrorMemoryAllocation",
            says="a CUDA library found no memory left on the GPU",
            says_zh="某个 CUDA 库在 GPU 上已申请不到显存",
            remedies=("free-the-gpu", "smaller-step"),
        ),
        Signature(
            needle="CUDA failure 2: out of memory",
            says="ONNX Runtime found no memory left on the GPU",
            says_zh="ONNX Runtime 在 GPU 上已申请不到显存",
            remedies=("free-the-gpu", "smaller-step"),
        ),
        Signature(
            needle="CUDA runtime error",
            pattern=r"CUDA runtime error(?: in [^\n]{1,200}?)?: (?:[^:\n]{1,120}: )?out of memory",
            says="the GPU had no memory left for the inference engine",
            says_zh="GPU 已没有显存留给推理引擎",
            remedies=("fewer-requests", "split-the-model", "free-the-gpu"),
        ),
        Signature(
            needle="Cuda Runtime (out of memory)",
            says="TensorRT found no memory left on the GPU",
            says_zh="TensorRT 在 GPU 上已申请不到显存",
            remedies=("fewer-requests", "free-the-gpu"),
        ),
        Signature(
            needle="cuMemCreate",
            pattern=r"cuMemCreate\w{0,40}\W.{0,120}(?:out of memory|OUT_OF_MEMORY)",
            says="cuMemCreate found no memory left on the GPU",
            says_zh="cuMemCreate 在 GPU 上已申请不到显存",
            remedies=_OUTSIDE,
        ),
        # What vLLM logs around the allocator's message, which has the numbers.
        Signature(
            needle="Failed to load model - not enough GPU memory",
            says="the weights of the model do not fit on the GPU",
            says_zh="模型权重在 GPU 上放不下",
            remedies=("split-the-model", "smaller-weights"),
        ),
        Signature(
            needle=" out of memory occurred when warming up ",
            pattern=r"occurred when warming up (?P<part>\w+).{0,40}? with (?P<requests>\d+) dummy requests",
            says="beside its KV cache vLLM has no GPU memory left for the {part} of {requests} requests",
            says_zh="除 KV cache 之外，vLLM 已没有显存留给 {requests} 个请求的 {part}",
            remedies=("fewer-requests", "smaller-share"),
        ),
        # Engines that sleep while a training uses the GPU (verl, TRL, OpenRLHF) take their memory back when they are woken.
        Signature(
            needle="cumem_allocator.cpp",
            pattern=r"(?:CUDA|HIP) Error: out of memory at \S{1,200}cumem_allocator\.cpp",
            says="vLLM could not take its GPU memory back when it was woken: the training, or somebody else, still holds it",
            says_zh="vLLM 被唤醒时无法收回它的显存：训练或其他程序仍占着",
            remedies=("smaller-share", "free-the-gpu"),
        ),
        Signature(
            needle="No available memory for the cache blocks",
            says="vLLM has no GPU memory left for its KV cache once the weights are loaded",
            says_zh="加载权重之后，vLLM 已没有显存留给 KV cache",
            remedies=("larger-share", "split-the-model", "smaller-weights"),
        ),
        # "KV cache" alone stands in every line of statistics that vLLM prints.
        Signature(
            needle="tokens that can be stored in KV cache (",
            pattern=(
                r"max(?:imum)? seq(?:uence)? len(?:gth)? \((?P<length>\d+)\).{0,60}larger than the maximum number of tokens that can be stored in KV "
                r"cache \((?P<fits>\d+)\)"
            ),
            says="the KV cache of one request of {length} tokens does not fit beside the weights: there is room for {fits}",
            says_zh="单个 {length} token 请求的 KV cache 在权重之外放不下：空间只够 {fits} 个 token",
        ),
        Signature(
            needle="KV cache is needed, which is larger",
            pattern=(
                r"max(?:imum)? seq(?:uence)? len(?:gth)? \((?P<length>\d+)\),? \(?(?P<needed>[\d.]+) GiB KV cache is needed, which is larger than "
                r"the available KV cache memory \((?P<available>[\d.]+) GiB\)(?:.{0,80}estimated maximum model length is (?P<fits>\d+))?"
            ),
            says="the KV cache of one request of {length} tokens needs {needed} GiB, and {available} GiB are left beside the weights",
            says_zh="单个 {length} token 请求的 KV cache 需要 {needed} GiB，而权重之外还剩 {available} GiB",
        ),
        Signature(
            needle="less than desired GPU memory utilization",
            pattern=(
                r"Free memory on device(?: \S+)? \((?P<free>[\d.]+)/(?P<total>[\d.]+) GiB\) on startup is less than desired GPU memory utilization "
                r"\((?P<share>[\d.]+), (?P<wanted>[\d.]+) GiB\)"
            ),
            says="vLLM was to take {wanted} GiB of the GPU ({share} of it), and only {free} of {total} GiB were free when it started",
            says_zh="vLLM 要占用 {wanted} GiB 显存（该 GPU 的 {share}），而启动时 {total} GiB 中只有 {free} GiB 空闲",
        ),
        Signature(
            needle="--mem-fraction-static",
            pattern=r"Not enough memory.{0,40}--mem-fraction-static",
            says="SGLang has no GPU memory left for its KV cache once the weights are loaded",
            says_zh="加载权重之后，SGLang 已没有显存留给 KV cache",
            remedies=("larger-share", "split-the-model", "smaller-weights"),
        ),
        Signature(
            needle="OOM when allocating tensor",
            pattern=r"OOM when allocating tensor with shape ?\[(?P<shape>[\d,x ]{1,60})\].{0,120}GPU:(?P<device>\d+)",
            says="GPU {device} ran out of memory for a tensor of shape [{shape}]",
            says_zh="GPU {device} 显存不足，放不下形状为 [{shape}] 的张量",
            remedies=("smaller-step", "free-the-gpu"),
        ),
        Signature(
            needle="Out of memory while trying to allocate",
            pattern=r"RESOURCE_EXHAUSTED: Out of memory while trying to allocate (?P<size>[\d.]+ ?\w{0,5})",
            says="XLA found no memory left on the device: {size} wanted",
            says_zh="XLA 在设备上已申请不到内存：需要 {size}",
            remedies=("smaller-step", "shard", "free-the-gpu"),
        ),
        Signature(
            needle="Out of memory error on GPU",
            pattern=r"Out of memory error on GPU (?P<device>\d+)\. Cannot allocate (?P<wanted>[\d.]+\w*)",
            says="GPU {device} ran out of memory: {wanted} wanted",
            says_zh="GPU {device} 显存不足：需要 {wanted}",
            remedies=("smaller-step", "free-the-gpu"),
        ),
        Signature(
            needle="CUDA out of memory",
            pattern=r"(?:Error|ERROR|Exception|error): ?(?:\S{1,60}: )?CUDA out of memory(?!\. Tried to allocate)",
            standing="likely",
            says="a rank reports CUDA out of memory, without numbers",
            says_zh="某个 rank 报告 CUDA out of memory，没有给出数字",
            remedies=("smaller-step", "shard", "free-the-gpu"),
        ),
        Signature(
            needle="_STATUS_ALLOC_FAILED",
            pattern=r"(?P<library>CUBLAS|CUDNN|CUSPARSE|CUFFT|CUSOLVER)_STATUS_ALLOC_FAILED",
            standing="likely",
            says="{library} could not get its workspace: the GPU is full",
            says_zh="{library} 申请不到工作区：GPU 显存已满",
            remedies=("smaller-step", "free-the-gpu"),
        ),
        Signature(
            needle="CUBLAS_STATUS_NOT_INITIALIZED",
            pattern=r"CUBLAS_STATUS_NOT_INITIALIZED.{0,40}cublasCreate",
            standing="possible",
            says="cuBLAS could not be created, which mostly means that the GPU is full",
            says_zh="cuBLAS 无法创建，这通常意味着 GPU 显存已满",
            remedies=("smaller-step", "free-the-gpu"),
        ),
    ),
    in_run=_in_run,
    in_logs=_in_logs,
    on_host=_on_host,
    remedies=(
        Remedy(
            id="free-the-gpu",
            says=(
                "Something else holds memory of this GPU: end what an earlier run left behind, or choose a free GPU. In a container the owner may "
                "be outside."
            ),
            says_zh="该 GPU 的显存被其他进程占用：结束上一次运行残留的进程，或换一块空闲的 GPU。在容器里，占用者可能在容器之外。",
            command="nvidia-smi --query-compute-apps=pid,process_name,used_memory,gpu_uuid --format=csv; fuser -v /dev/nvidia*",
        ),
        Remedy(
            id="expandable-segments",
            says=(
                "Enough memory is reserved but lies in pieces: let the allocator grow its segments (torch 2.1 and later; torch 2.9 names the "
                "variable PYTORCH_ALLOC_CONF and still reads this one)."
            ),
            says_zh=(
                "已保留的显存足够，但不连续（碎片）：让分配器使用可扩展的段（torch 2.1 及以上；torch 2.9 起变量名为 PYTORCH_ALLOC_CONF，旧名仍然有"
                "效）。"
            ),
            env={"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"},
            verify="python -c \"import torch; torch.ones(1, device='cuda'); print(any(s['is_expandable'] for s in torch.cuda.memory_snapshot()))\"",
        ),
        Remedy(
            id="smaller-step",
            says=(
                "Make one step smaller: half the micro batch and twice the gradient accumulation (the result stays the same), a shorter sequence, "
                "activation checkpointing, bf16."
            ),
            says_zh="减小单步的显存：micro batch 减半、梯度累积加倍（结果不变），缩短序列，打开激活重计算（activation checkpointing），使用 bf16。",
            command="nvidia-smi --query-gpu=index,memory.used,memory.free,memory.total --format=csv -l 1",
        ),
        Remedy(
            id="smaller-evaluation",
            says=(
                "It ran out in an evaluation: take a smaller batch there, torch.no_grad() and model.eval(), and move predictions to host memory "
                "batch by batch (Trainer: per_device_eval_batch_size, eval_accumulation_steps)."
            ),
            says_zh=(
                "显存是在评估中用完的：减小评估的 batch，使用 torch.no_grad() 和 model.eval()，并逐个 batch 把预测结果移到主机内存（Trainer："
                "per_device_eval_batch_size、eval_accumulation_steps）。"
            ),
        ),
        Remedy(
            id="guard-the-evaluation",
            says=(
                "Let unhang.evaluate call it: after too little memory all ranks try again with half the batch size, and the training goes on where "
                "that does not help either."
            ),
            says_zh="用 unhang.evaluate 调用评估：显存不足时所有进程以一半的 batch size 重试，仍然不行时训练也会继续。",
        ),
        Remedy(
            id="shard",
            says="Divide the state between the ranks: ZeRO stage 2 or 3 or FSDP full sharding; with offload_optimizer it goes to host memory.",
            says_zh="把模型状态分摊到各进程：ZeRO stage 2 / 3 或 FSDP 全分片；再加 offload_optimizer 可以把优化器状态放到主机内存。",
        ),
        Remedy(
            id="room-for-nccl",
            says=(
                "Leave one to three GiB for NCCL: it takes its buffers outside of PyTorch when a communicator is first used. Limit PyTorch with "
                "torch.cuda.set_per_process_memory_fraction(0.9), call torch.cuda.empty_cache() before new groups, or shrink the buffers."
            ),
            says_zh=(
                "给 NCCL 留出 1 到 3 GiB：通信组第一次使用时，NCCL 在 PyTorch 之外申请缓冲区。用 torch.cuda.set_per_process_memory_fraction(0.9) "
                "限制 PyTorch，在建立新通信组之前调用 torch.cuda.empty_cache()，或者缩小缓冲区。"
            ),
            env={"NCCL_BUFFSIZE": "2097152"},
            verify="NCCL_DEBUG=INFO torchrun --standalone --nproc-per-node 2 train.py 2>&1 | grep 'NCCL_BUFFSIZE set by environment to'",
        ),
        Remedy(
            id="larger-share",
            says=(
                "Give the KV cache more of the GPU: --gpu-memory-utilization (vLLM), --mem-fraction-static (SGLang); only where nothing else runs "
                "there."
            ),
            says_zh="让 KV cache 使用更多显存：vLLM 用 --gpu-memory-utilization，SGLang 用 --mem-fraction-static；前提是该 GPU 上没有其他程序。",
            command="vllm serve MODEL --gpu-memory-utilization 0.95",
        ),
        Remedy(
            id="smaller-share",
            says=(
                "Let the engine take less of the GPU: --gpu-memory-utilization (vLLM), --mem-fraction-static (SGLang), "
                "rollout.gpu_memory_utilization (verl), vllm_gpu_memory_utilization (TRL)."
            ),
            says_zh=(
                "让推理引擎少占一些显存：vLLM 用 --gpu-memory-utilization，SGLang 用 --mem-fraction-static，verl 用 "
                "rollout.gpu_memory_utilization，TRL 用 vllm_gpu_memory_utilization。"
            ),
            command="vllm serve MODEL --gpu-memory-utilization 0.80",
        ),
        Remedy(
            id="split-the-model",
            says=(
                "Spread the model over more GPUs: --tensor-parallel-size (vLLM), --tp-size (SGLang). It has to divide the number of attention heads."
            ),
            says_zh="把模型分到更多 GPU 上：vLLM 用 --tensor-parallel-size，SGLang 用 --tp-size；它必须能整除注意力头数。",
            command="vllm serve MODEL --tensor-parallel-size 2",
        ),
        Remedy(
            id="smaller-weights",
            says="Take a quantised model (--quantization, or one that was stored so).",
            says_zh="使用量化模型（--quantization，或直接使用量化后的权重）。",
        ),
        Remedy(
            id="fewer-requests",
            says=(
                "Fewer requests at once: --max-num-seqs and --max-num-batched-tokens (vLLM), --max-running-requests (SGLang), --max_batch_size "
                "(TensorRT-LLM)."
            ),
            says_zh=(
                "减少同时处理的请求：vLLM 用 --max-num-seqs 和 --max-num-batched-tokens，SGLang 用 --max-running-requests，TensorRT-LLM 用 "
                "--max_batch_size。"
            ),
            command="vllm serve MODEL --max-num-seqs 64 --max-num-batched-tokens 4096",
        ),
        Remedy(
            id="shorter-context",
            says="Allow shorter requests: --max-model-len (vLLM), --context-length (SGLang).",
            says_zh="限制单个请求的最大长度：vLLM 用 --max-model-len，SGLang 用 --context-length。",
            command="vllm serve MODEL --max-model-len 8192",
        ),
    ),
    leads_to=("rank-exception", "premature-exit", "straggler-timeout", "process-stuck", "illegal-memory-access"),
    mistaken_for={
        "host-oom-or-killed": "host memory ends in SIGKILL and an OOM kill in the kernel log; GPU memory raises in Python",
        "p2p-broken": "NCCL also says out of memory where the windows for peer mappings (BAR1) are full, which nvidia-smi -q -d MEMORY shows",
        "limits": "pinned host memory fails with the same CUDA error where the locked-memory limit is low",
    },
    sources=(
        "https://docs.pytorch.org/docs/stable/notes/cuda.html#optimizing-memory-usage-with-pytorch-alloc-conf",
        "https://github.com/pytorch/pytorch/blob/main/c10/cuda/CUDACachingAllocator.cpp",
        "https://docs.vllm.ai/en/latest/configuration/conserving_memory.html",
    ),
    hits=(
        (
            "torch.OutOfMemoryError: map:../torch_npu/csrc/core/npu/NPUCachingAllocator.cpp:457 NPU function error: aclrtMallocPhysical, error code "
            "is 507899"
        ),
        "ray.exceptions.RayTaskError(OutOfMemoryError): ray::TaskRunner.run() (pid=98005, ip=10.0.0.8, actor_id=bd00, repr=<main.TaskRunner object>)",
        "[PID: 812] 2026-01-08-11:02:13.441.302 Resource_Error_Insufficient_Device_Memory(EI0011): Failed to allocate 209715200 bytes of NPU memory.",
        "|CCL_ERROR| EXCEPTION: ze error at zeCommandQueueExecuteCommandLists, code: ZE_RESULT_ERROR_OUT_OF_DEVICE_MEMORY",
        "Exception in device=TPU:6: RESOURCE_EXHAUSTED: Attempting to reserve 10.51G at the bottom of memory.",
        (
            "RuntimeError: CUDA out of memory. Tried to allocate 96.00 MiB (GPU 2; 31.74 GiB total capacity; 29.11 GiB already allocated; 41.88 MiB "
            "free; 30.02 GiB cached)"
        ),
        (
            "[rank3]: torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.50 GiB (GPU 3; 79.15 GiB total capacity; 61.20 GiB "
            "already allocated; 1.10 GiB free; 76.40 GiB reserved in total by PyTorch) If reserved memory is >> allocated memory try setting "
            "max_split_size_mb to avoid fragmentation."
        ),
        (
            "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.25 GiB. GPU 5 has a total capacty of 39.39 GiB of which 812.06 MiB "
            "is free. Including non-PyTorch memory, this process has 38.59 GiB memory in use. Of the allocated memory 36.10 GiB is allocated by "
            "PyTorch, and 1.71 GiB is reserved by PyTorch but unallocated."
        ),
        (
            "(RayWorkerWrapper pid=812) torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 640.00 MiB. GPU 1 has a total capacity of "
            "23.64 GiB of which 118.56 MiB is free. Process 90211 has 11.02 GiB memory in use. Including non-PyTorch memory, this process has "
            "12.48 GiB memory in use. Of the allocated memory 11.30 GiB is allocated by PyTorch, with 40.00 MiB allocated in private pools (e.g., "
            "CUDA Graphs), and 320.00 MiB is reserved by PyTorch but unallocated."
        ),
        "RuntimeError: HIP out of memory. Tried to allocate 512.00 MiB. GPU 0 has a total capacity of 63.98 GiB of which 0 bytes is free.",
        "[rank1]: torch.AcceleratorError: CUDA error: out of memory",
        "RuntimeError: CUDA driver error: out of memory",
        "RuntimeError: cuda runtime error (2) : out of memory at /pytorch/aten/src/THC/generic/THCStorage.cu:58",
        (
            "node7:4711:4788 [3] include/alloc.h:178 NCCL WARN Cuda failure 'out of memory'\nnode7:4711:4788 [3] include/alloc.h:185 NCCL WARN "
            "Failed to CUDA calloc 6291456 bytes"
        ),
        "[2026-11-03 10:00:01] node7:4711:4788 [3] include/alloc.h:228 NCCL WARN Cuda failure 2 'out of memory'",
        "node7: Test CUDA failure common.cu:892 'out of memory'",
        (
            "2026-11-03 10:00:01.113: E external/xla/xla/stream_executor/cuda/cuda_driver.cc:1055] failed to allocate 4.00GiB: "
            "CUDA_ERROR_OUT_OF_MEMORY: out of memory"
        ),
        "  what():  parallel_for failed: cudaErrorMemoryAllocation: out of memory",
        "onnxruntime::CudaCall CUDA failure 2: out of memory ; GPU=0 ; hostname=node7",
        "[TM][ERROR] CUDA runtime error: out of memory /src/turbomind/utils/allocator.h:231",
        (
            "[TensorRT-LLM][ERROR] CUDA runtime error in cudaMallocAsync(ptr, n, mMemPool->getPool(), mCudaStream->get()): out of memory "
            "(/src/tllmBuffers.h:134)"
        ),
        "1: [defaultAllocator.cpp::allocate::19] Error Code 1: Cuda Runtime (out of memory)",
        "RuntimeError: cuMemCreate(&handle, size, &prop, 0) failed: CUDA_ERROR_OUT_OF_MEMORY",
        "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when initializing the engine.",
        (
            "ValueError: The model's max seq len (131072) is larger than the maximum number of tokens that can be stored in KV cache (40944). Try "
            "increasing `gpu_memory_utilization` or decreasing `max_model_len` when initializing the engine."
        ),
        (
            "ValueError: To serve at least one request with the models's max seq len (262144), (24.00 GiB KV cache is needed, which is larger "
            "than the available KV cache memory (9.31 GiB)."
        ),
        (
            "(EngineCore_DP0 pid=812) ERROR 11-03 10:00:01 [core.py:718] ValueError: To serve at least one request with the model's max seq len "
            "(65536), 8.5 GiB KV cache is needed, which is larger than the available KV cache memory (5.2 GiB). Based on the available memory, the "
            "estimated maximum model length is 40080. Try increasing `gpu_memory_utilization` or decreasing `max_model_len` when initializing the "
            "engine."
        ),
        (
            "ERROR 11-03 10:00:01 [gpu_model_runner.py:4300] Failed to load model - not enough GPU memory. Try lowering --gpu-memory-utilization to "
            "free memory for weights, increasing --tensor-parallel-size, or using --quantization."
        ),
        (
            "(Worker_TP1 pid=991) ERROR 11-03 10:00:01 [multiproc_executor.py:590] RuntimeError: CUDA out of memory occurred when warming up sampler "
            "with 512 dummy requests. Please try lowering `max_num_seqs` or `gpu_memory_utilization` when initializing the engine."
        ),
        "(WorkerDict pid=4711) RuntimeError: CUDA Error: out of memory at /src/vllm/csrc/cumem_allocator.cpp:71",
        "ValueError: Free memory on device (5.1/79.15 GiB) on startup is less than desired GPU memory utilization (0.9, 71.24 GiB).",
        "ValueError: Free memory on device cuda:1 (21.4/23.5 GiB) on startup is less than desired GPU memory utilization (0.92, 21.62 GiB).",
        "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static.",
        (
            "tensorflow.python.framework.errors_impl.ResourceExhaustedError: OOM when allocating tensor with shape[64,1024,1024] and type float on "
            "/job:localhost/replica:0/task:0/device:GPU:3 by allocator GPU_3_bfc"
        ),
        "jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 17179869184 bytes.",
        (
            "Out of memory error on GPU 2. Cannot allocate 1.500000GB memory on GPU 2, 31.1GB memory has been allocated and available memory is "
            "only 0.2GB."
        ),
        "RuntimeError: CUDA out of memory.",
        "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
        "RuntimeError: cuDNN error: CUDNN_STATUS_ALLOC_FAILED",
        "RuntimeError: CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`",
        ("node7:4711:4788 [3] /src/rccl/build/hipify/src/include/alloc.h:262 NCCL WARN HIP failure 'out of memory'"),
    ),
    near_misses=(
        "node7:812:901 [1] misc/shmutils.cc:118 (ncclShmOpen) NCCL WARN Cuda failure 2 'out of memory'",
        "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate more than 1EB memory.",
        "[88123.41] Memory cgroup out of memory: Killed process 4720 (python3) total-vm:91234567kB, anon-rss:65012345kB",
        (
            "RuntimeError: DataLoader worker (pid 991) is killed by signal: Bus error. It is possible that dataloader's workers are out of shared "
            "memory."
        ),
        "Tip: if you run into CUDA out of memory errors, lower per_device_train_batch_size.",
        "node7:4711:4788 [3] include/alloc.h:185 NCCL WARN Failed to CUDA calloc 6291456 bytes",
        "OSError: [Errno 12] Cannot allocate memory",
        "#define CUDA_ERROR_OUT_OF_MEMORY = 2",
        "INFO 11-03 10:00:01 [gpu_worker.py:298] Available KV cache memory: 31.20 GiB",
        "node7:4711:4788 [3] misc/ibvwrap.cc:252 NCCL WARN Call to ibv_reg_mr failed with error Cannot allocate memory",
        (
            "RuntimeError: [enforce fail at alloc_cpu.cpp:114] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to allocate "
            "68719476736 bytes."
        ),
        ("    return tensor.pin_memory()\nRuntimeError: CUDA error: out of memory"),
        "(EngineCore_DP0 pid=812) INFO 11-03 10:00:01 [kv_cache_utils.py:864] GPU KV cache size: 40,944 tokens",
        "(EngineCore_DP0 pid=812) INFO 11-03 10:00:01 [kv_cache_utils.py:868] Maximum concurrency for 8,192 tokens per request: 4.99x",
        "非默认参数：{'gpu_memory_utilization': 0.85, 'max_model_len': 8192}；显存不足时先减小 max_num_seqs。",
        "RuntimeError: CUDA Error: invalid argument at /src/vllm/csrc/cumem_allocator.cpp:75",
        ("INFO metrics.py:455] Avg generation throughput: 41.2 tokens/s, GPU KV cache usage: 5.1%"),
    ),
    explain={
        "en": (
            "The GPU named here had no memory left for one more allocation. The numbers say what kind it is: much reserved but unused is "
            "fragmentation (expandable_segments), another process or a large part outside of PyTorch means that the GPU is shared, and otherwise "
            "the step is simply too big. NCCL takes its buffers outside of PyTorch's allocator at the first use of each communicator: where its "
            "line is the one that says out of memory, leave it one to three GiB. A serving engine (vLLM, SGLang) takes a fixed share of the GPU: "
            "what helps depends on whether it ran out while loading the weights, while sizing the KV cache, or behind that. The other ranks only "
            "wait for the rank that raised; their timeouts are consequences. The host's memory is another matter: it ends in SIGKILL."
        ),
        "zh": (
            "这里点名的 GPU 已经没有显存再分配。看数字判断类型：“已保留但未使用”很多，是碎片问题（用 expandable_segments）；有其他进程，或 "
            "PyTorch 之外占用很多，说明这块 GPU 被共享；否则就是单步所需的显存确实太大。NCCL 在每个通信组第一次使用时，在 PyTorch 分配器之外申请缓"
            "冲区：如果是 NCCL 的那一行报 out of memory，请给它留出 1 到 3 GiB。推理引擎（vLLM、SGLang）按固定比例占用显存：该怎么做，取决于它是"
            "在加载权重时、计算 KV cache 大小时，还是在那之后不够用。其他进程只是在等抛出异常的那个进程，它们的超时只是后果。主机内存不足是另一回"
            "事，表现为 SIGKILL。"
        ),
    },
)
