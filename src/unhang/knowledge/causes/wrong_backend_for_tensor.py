"""wrong-backend-for-tensor: a collective met a tensor that its backend cannot carry."""

from __future__ import annotations

from unhang.knowledge.cause import Cause, Signature
from unhang.model import Remedy

_OPS = (
    r"all_?gather\w*|all_?reduce\w*|all_?to_?all\w*|reduce_?scatter\w*|scatter\w*|gather\w*|broadcast\w*|reduce\w*|send|recv\w*|"
    r"barrier|monitored_?barrier"
)

CAUSE = Cause(
    id="wrong-backend-for-tensor",
    role="root",
    title="The backend cannot carry this tensor",
    title_zh="后端不支持该张量",
    what="A collective got a tensor on a device, of a type, or for an operation that the backend of its group does not serve.",
    why=(
        "A CPU tensor (a length, a metric, a pickled object) on an nccl group, a CUDA tensor on a gloo operation that lacks it, or an "
        "operation that the backend does not implement."
    ),
    signatures=(
        Signature(
            needle="No backend type associated with device type",
            pattern=r"No backend type associated with device type (?P<device>xpu|npu|hpu|mlu|musa)\b",
            says="a collective got a tensor on {device}, and the group has no backend for that device",
            says_zh="集合通信收到 {device} 上的张量，而该组没有用于这种设备的后端",
            remedies=("backend-of-the-device",),
        ),
        Signature(
            needle="No backend type associated with device type",
            pattern=r"No backend type associated with device type (?P<device>(?!xpu|npu|hpu|mlu|musa)\w+)",
            says="a collective got a tensor on {device}, and the group has no backend for that device",
            says_zh="集合通信收到 {device} 上的张量，而该组没有用于这种设备的后端",
            remedies=("both-backends", "move-the-tensor", "set-the-device-first"),
        ),
        Signature(
            needle="must be CUDA and dense",
            pattern=r"Tensors? must be CUDA and dense",
            says="an nccl collective got a tensor that is not on a GPU (or is sparse)",
            says_zh="nccl 集合通信收到的张量不在 GPU 上（或是稀疏张量）",
            remedies=("move-the-tensor", "both-backends", "set-the-device-first"),
        ),
        Signature(
            needle="Tensors must be contiguous",
            pattern=r"(?:ValueError|RuntimeError): Tensors must be contiguous",
            says="a collective got a tensor that is not contiguous in memory",
            says_zh="集合通信收到的张量在内存中不连续",
            remedies=("make-contiguous",),
        ),
        *(
            Signature(
                needle=needle,
                pattern=pattern,
                says="{backend} does not implement {op}",
                says_zh="{backend} 没有实现 {op}",
                remedies=("another-operation", "another-backend"),
            )
            for needle, pattern in (
                (" does not support ", rf"ProcessGroup(?P<backend>NCCL|Gloo|MPI|UCC|XCCL|HCCL) does not support (?P<op>{_OPS})"),
                (" does not support ", rf"[Bb]ackend (?P<backend>nccl|gloo|mpi|ucc|xccl|hccl) does not support (?P<op>{_OPS})"),
                (" is not supported with ", r"(?P<op>(?<!\w)\w{1,80}) is not supported with (?P<backend>gloo|nccl|mpi) backend"),
            )
        ),
        Signature(
            needle="unsupported device type ",
            pattern=r"ProcessGroup\w+::(?P<op>\w+): (?:invalid tensor type|unsupported device type) (?P<device>\w+)?",
            says="gloo's {op} does not take tensors on this device",
            says_zh="gloo 的 {op} 不接受这种设备上的张量",
            remedies=("another-backend", "move-to-cpu"),
        ),
        Signature(
            needle="Invalid scalar type",
            pattern=r"Invalid scalar type\s*(?:$|Exception raised)",
            near=r"distributed|gloo|Gloo|all_reduce|all_gather|broadcast|ProcessGroup",
            standing="likely",
            says="gloo does not reduce tensors of this type (16-bit integers and 8-bit floats among them)",
            says_zh="gloo 不能归约这种类型的张量（16 位整数和 8 位浮点数也在此列）",
            remedies=("another-dtype", "another-backend"),
        ),
        *(
            Signature(
                needle=needle,
                pattern=pattern,
                says="NCCL does not carry tensors of type {dtype}",
                says_zh="NCCL 不传输 {dtype} 类型的张量",
                remedies=("another-dtype",),
            )
            for needle, pattern in (
                ("for NCCL process group", r"Input tensor data type is not supported for NCCL process group: (?P<dtype>\w+)"),
                ("Unconvertible NCCL type", r"Unconvertible NCCL type (?P<dtype>\w+)"),
            )
        ),
        Signature(
            needle="AVG is only available with the NCCL backend",
            says="ReduceOp.AVG was asked of a backend other than NCCL",
            says_zh="向 NCCL 以外的后端要求了 ReduceOp.AVG",
            remedies=("sum-and-divide",),
        ),
        Signature(
            needle="Cannot use ReduceOp",
            pattern=r"Cannot use ReduceOp\.(?P<op>\w+) with (?P<backend>NCCL|Gloo|MPI)",
            says="{backend} does not know the reduction {op}",
            says_zh="{backend} 不支持归约操作 {op}",
            remedies=("sum-and-divide", "another-backend"),
        ),
        Signature(
            needle="monitored_barrier is only implemented for",
            pattern=r"monitored_barrier is only implemented for (?P<backend>\w+) backend",
            says="monitored_barrier exists for {backend} only",
            says_zh="monitored_barrier 只有 {backend} 提供",
            remedies=("gloo-group-beside",),
        ),
        Signature(
            needle="which requires them to be on GPU",
            pattern=r"module has CPU parameters.*sync_module_states=True.*requires them to be on GPU",
            says="FSDP with sync_module_states broadcasts the parameters, and they are on the CPU",
            says_zh="FSDP 启用 sync_module_states 时会广播参数，而参数在 CPU 上",
            remedies=("device-id-for-fsdp",),
        ),
        Signature(
            needle="to have the same sparse",
            pattern=r"[Ee]xpected.*tensors? to have the same sparse",
            standing="possible",
            says="a collective got a sparse tensor where dense ones were due",
            says_zh="集合通信收到稀疏张量，而那里应为稠密张量",
            remedies=("make-contiguous",),
        ),
    ),
    remedies=(
        Remedy(
            id="both-backends",
            says="Start both backends, each for its device: init_process_group('cpu:gloo,cuda:nccl'), which is also what leaving backend out does.",
            says_zh="同时启动两个后端，各管各的设备：init_process_group('cpu:gloo,cuda:nccl')；不写 backend 参数效果相同（torch 2.0 起）。",
            verify="python -c \"import torch.distributed as d; d.init_process_group('cpu:gloo,cuda:nccl'); print(d.get_backend_config())\"",
        ),
        Remedy(
            id="backend-of-the-device",
            says=(
                "Use the backend of this device: init_process_group('cpu:gloo,xpu:xccl') for Intel GPUs (xccl is in the XPU build of torch 2.8 and "
                "later), hccl for Ascend and Gaudi, cncl for Cambricon, mccl for Moore Threads. Import their package (torch_npu, habana_frameworks, "
                "...) before the group is made."
            ),
            says_zh=(
                "使用这种设备的后端：Intel GPU 用 init_process_group('cpu:gloo,xpu:xccl')（torch 2.8 及以上的 XPU 版自带 xccl），昇腾和 Gaudi 用 "
                "hccl，寒武纪用 cncl，摩尔线程用 mccl。要在建立通信组之前导入对应的包（torch_npu、habana_frameworks 等）。"
            ),
            command="python -c 'import torch, torch.distributed as d; print(torch.__version__, d.Backend.default_device_backend_map)'",
        ),
        Remedy(
            id="move-the-tensor",
            says="Move the tensor to this rank's GPU before the collective: t = t.to(f'cuda:{local_rank}').",
            says_zh="集合通信前把张量移到本进程的 GPU：t = t.to(f'cuda:{local_rank}')。",
        ),
        Remedy(
            id="set-the-device-first",
            says="Call torch.cuda.set_device(local_rank) before object collectives: they put their bytes on the current device.",
            says_zh="调用 all_gather_object 等对象集合通信之前先执行 torch.cuda.set_device(local_rank)：它们会把数据放在当前设备上。",
            command="torch.cuda.set_device(int(os.environ['LOCAL_RANK']))",
        ),
        Remedy(id="move-to-cpu", says="Copy the tensor to the CPU for this call: t.cpu().", says_zh="该调用前先把张量复制到 CPU：t.cpu()。"),
        Remedy(
            id="make-contiguous", says="Pass t.contiguous(), and to_dense() for sparse ones.", says_zh="传入 t.contiguous()；稀疏张量用 to_dense()。"
        ),
        Remedy(
            id="another-operation",
            says=(
                "Use an operation that the backend has: all_to_all_single for all_to_all, all_gather for gather, all_reduce and a slice for "
                "reduce_scatter."
            ),
            says_zh="改用后端支持的操作：all_to_all 换成 all_to_all_single，gather 换成 all_gather，reduce_scatter 换成 all_reduce 后切片。",
        ),
        Remedy(
            id="another-backend",
            says="Make a group of the other backend for this call: dist.new_group(backend='gloo') or 'nccl'.",
            says_zh="为该调用单独建立另一后端的组：dist.new_group(backend='gloo') 或 'nccl'。",
        ),
        Remedy(
            id="another-dtype",
            says="Convert before the collective and back after it: bool and int16 to int32 (or uint8), float8 to bfloat16.",
            says_zh="通信前转换类型、之后再转回：bool、int16 转为 int32（或 uint8），float8 转为 bfloat16。",
        ),
        Remedy(
            id="sum-and-divide",
            says="Use ReduceOp.SUM and divide by the world size afterwards.",
            says_zh="改用 ReduceOp.SUM，之后再除以 world size。",
        ),
        Remedy(
            id="gloo-group-beside",
            says="Keep a gloo group beside the nccl one for barriers: dist.monitored_barrier(group=dist.new_group(backend='gloo')).",
            says_zh="在 nccl 组之外保留一个 gloo 组做屏障：dist.monitored_barrier(group=dist.new_group(backend='gloo'))。",
        ),
        Remedy(
            id="device-id-for-fsdp",
            says="Give FSDP device_id=torch.cuda.current_device(), so that it moves the module first.",
            says_zh="给 FSDP 传入 device_id=torch.cuda.current_device()，它会先移动模块。",
        ),
        Remedy(
            id="see-the-backends",
            says="See which backends the group has.",
            says_zh="查看该组有哪些后端。",
            command='python -c "import torch.distributed as d; print(d.is_nccl_available(), d.is_gloo_available())"',
        ),
    ),
    leads_to=("rank-exception",),
    mistaken_for={
        "device-mapping": "a tensor on another rank's GPU is a matter of set_device",
        "collective-mismatch": "there the ranks disagree; here one call alone is refused",
        "backend-unavailable": "a backend that is not built into this torch is refused when the group is made, not at a tensor",
    },
    sources=(
        "https://docs.pytorch.org/docs/stable/distributed.html#backends",
        "https://github.com/pytorch/pytorch/issues/70155",
    ),
    hits=(
        "[rank0]: RuntimeError: No backend type associated with device type cpu",
        "[1,2]<stderr>:RuntimeError: No backend type associated with device type npu",
        "RuntimeError: Tensors must be CUDA and dense",
        "ValueError: Tensors must be contiguous",
        "RuntimeError: ProcessGroupGloo does not support reduce_scatter",
        "[rank2]: RuntimeError: Backend gloo does not support alltoall",
        "RuntimeError: reduce_scatter_tensor is not supported with gloo backend",
        "ValueError: ProcessGroupGloo::allgather: unsupported device type cuda",
        '  File "/srv/venv/torch/distributed/distributed_c10d.py", line 2810, in all_reduce\nRuntimeError: Invalid scalar type',
        "RuntimeError: Input tensor data type is not supported for NCCL process group: Short",
        "TypeError: Unconvertible NCCL type Short",
        "RuntimeError: AVG is only available with the NCCL backend",
        "RuntimeError: Cannot use ReduceOp.BXOR with NCCL",
        "ValueError: monitored_barrier is only implemented for GLOO backend.",
        (
            "ValueError: The module has CPU parameters or buffers when `sync_module_states=True`, which requires them to be on GPU. Please "
            "specify the `device_id` argument or move the module to GPU before passing it to FSDP."
        ),
        "RuntimeError: Expected all tensors to have the same sparse layout",
    ),
    near_misses=(
        "torch.distributed: all_reduce of the metrics\nRuntimeError: Invalid scalar type for the lookup table\nProcessGroupGloo",
        "RuntimeError: Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu!",
        "RuntimeError: Invalid scalar type for the lookup table",
        "RuntimeError: Distributed package doesn't have NCCL built in",
        "ValueError: this optimizer does not support sparse gradients",
        "NotImplementedError: scatter is not supported with the dask backend",
    ),
    explain={
        "en": (
            "A process group serves a device through one backend: nccl carries CUDA tensors, gloo CPU tensors (and some operations on CUDA). "
            "Here a tensor of another kind was passed, often not by you: a metric on the CPU, a pickled object, a checkpoint part. Leaving the "
            "backend out of init_process_group (torch 2.0 and later) starts both, which cures most of these. Otherwise move the tensor to "
            "cuda:LOCAL_RANK first. The other ranks only lose their peer."
        ),
        "zh": (
            "一个进程组对每种设备只通过一个后端服务：nccl 传输 CUDA 张量，gloo 传输 CPU 张量（以及部分 CUDA 操作）。这里传入了另一种张量，而且"
            "往往不是你自己传的：CPU 上的指标、序列化后的对象、检查点的一部分。torch 2.0 起，init_process_group 不写 backend 就会同时启动两个后"
            "端，大多数情况由此解决。否则先把张量移到 cuda:LOCAL_RANK。其他进程只是失去了同伴。"
        ),
    },
)
