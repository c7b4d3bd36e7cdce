"""The environments that a job may run in (accelerator, launcher, program, container), as its own lines tell, and what each changes in a remedy.

A thing may be called otherwise there. A cause may name another remedy (`Cause.instead`); what still speaks of what the environment lacks is left out.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace

from unhang.knowledge import catalogue
from unhang.logs import Signature
from unhang.model import Finding, Remedy
from unhang.patterns import lazily


@dataclass(frozen=True, kw_only=True)
class Environment:
    """An accelerator, a launcher, a program or a container.

    One of `marks` stands in its lines, and none of `unless` does; they are literals, which need no compiling. `words` are what is called otherwise
    there, longer ones first. What `lacks` matches in the sentence or the settings of a remedy rules it out; a command or a check is dropped where
    `lacks` or `no_command` matches in it.
    """

    id: str
    marks: tuple[str, ...]
    unless: tuple[str, ...] = ()
    words: tuple[tuple[str, str], ...] = ()
    lacks: str = ""
    no_command: str = ""


def _device(name: str, backend: str, visible: str, shows: str) -> tuple[tuple[str, str], ...]:
    """PyTorch spells its devices alike."""
    return (
        ("torch.cuda.nccl.version()", "torch.__version__"),
        ("torch.cuda.", f"torch.{name}."),
        ("cuda:nccl", f"{name}:{backend}"),
        ("'nccl'", f"'{backend}'"),
        ("'cuda'", f"'{name}'"),
        ('"cuda"', f'"{name}"'),
        ("cuda:", f"{name}:"),
        ("CUDA_VISIBLE_DEVICES", visible),
        ("touches CUDA", "touches the device"),
        ("nvidia-smi -L", shows),
        ("NCCL and Gloo", f"{backend} and Gloo"),
    )


_OTHERS = r"CUDA|NVIDIA|nvidia|NVLink|NVML|Blackwell|Hopper|cuobjdump|nvcc|NVCC|libcuda|Xid|compute-sanitizer|dcgmi"
_TORCH = r"\b[Tt]orch|TORCH|CUDA build|train\.py|Trainer|DataLoader|init_process_group|micro batch|ZeRO|FSDP|vLLM|set_device|unhang run|\bmodel\b"
_RAY_TRAINERS = ("verl/", "nemo_rl", "openrlhf", "placement group", "Ray ")
_HOW_MANY = "--nproc-per-node, --num_processes, tensor_parallel_size"
_BY_TORCHRUN = ("torchrun", "torch/distributed/run", "torch/distributed/elastic", "torch/distributed/launcher", "torch.distributed.")

ENVIRONMENTS = (
    Environment(
        id="xpu",
        marks=(
            "device type xpu",
            "XPU out of memory",
            "xccl",
            "XCCL",
            "oneCCL",
            "UR_RESULT_",
            "ZE_RESULT_",
            "/torch/xpu/",
            "xpu:0",
            "torch.xpu",
        ),
        words=_device("xpu", "xccl", "ZE_AFFINITY_MASK", "xpu-smi discovery"),
        lacks=rf"{_OTHERS}|NCCL|nccl",
        no_command=r"[Cc]uda",
    ),
    Environment(
        id="npu",
        marks=(
            "device type npu",
            "NPU out of memory",
            "NPU error",
            "NPU function error",
            "HCCL",
            "hccl",
            "Hccl",
            "torch_npu",
            "ASCEND",
            "Ascend",
        ),
        words=_device("npu", "hccl", "ASCEND_RT_VISIBLE_DEVICES", "npu-smi info"),
        lacks=rf"{_OTHERS}|NCCL|nccl",
        no_command=r"[Cc]uda",
    ),
    Environment(
        id="rocm",
        marks=(
            "HIP error",
            "HIP failure",
            "HIP out of memory",
            "HIP runtime",
            "rccl",
            "RCCL",
            "hipError",
            "/opt/rocm",
            "ROCm",
            "/hipify/",
            "+rocm",
            "amdgpu",
            "Memory access fault by GPU",
            "HSA_STATUS_ERROR",
        ),
        words=(
            ("nvidia-smi --query-gpu=index,memory.used,memory.free,memory.total --format=csv -l 1", "watch -n 1 rocm-smi --showmeminfo vram"),
            ("nvidia-smi --query-compute-apps=pid,process_name,used_memory,gpu_uuid --format=csv; fuser -v /dev/nvidia*", "rocm-smi --showpids"),
            ("nvidia-smi -L", "rocm-smi --showid"),
            ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF"),
            ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"),
            ("CUDA_LAUNCH_BLOCKING", "HIP_LAUNCH_BLOCKING"),
            ("torch.version.cuda", "torch.version.hip"),
            ("libtorch_cuda", "libtorch_hip"),
            ("touches CUDA", "touches the GPU"),
            ("keep CUDA out", "keep the GPU out"),
            ("CUDA graphs", "HIP graphs"),
            ("CUDA version", "ROCm version"),
            ("CUDA and C++", "ROCm and C++"),
            ("CUDA libraries", "ROCm libraries"),
            ("--gpus all", "--device /dev/kfd --device /dev/dri"),
        ),
        lacks=_OTHERS,
    ),
    # A training on processors alone: Gloo, and no word of anything else.
    Environment(
        id="cpu",
        marks=("gloo", "Gloo"),
        unless=("nccl", "NCCL", "cuda", "CUDA", "gpu", "GPU", "rccl", "HIP", "xpu", "XPU", "torch_npu", "NPU"),
        lacks=r"NCCL_|CUDA_|nvidia",
        no_command=r"cuda|--gpus",
    ),
    Environment(
        id="nccl-tests",
        marks=("Test CUDA failure", "Test NCCL failure", "Test HIP failure", "# nThread "),
        unless=("Traceback", "ProcessGroup", "torchrun", "torch.distributed"),
        lacks=_TORCH,
        no_command=r"python",
    ),
    Environment(
        id="mpirun",
        marks=("mpirun", "mpiexec", "orted", "prterun", "prted", "OMPI_COMM_WORLD", "Open MPI"),
        unless=_BY_TORCHRUN,
        words=(
            *((f"torchrun --standalone --nproc-per-node {n} ", f"mpirun -np {n} python ") for n in ("N", "1", "2", "8")),
            ("torchrun --standalone --nproc-per-node gpu ", "mpirun -np N python "),
            ("torchrun --standalone --nproc-per-node ", "mpirun -np "),
            ("torchrun ARGS train.py", "mpirun ARGS python train.py"),
            ("torchrun ... ", "mpirun ... "),
            ("--nproc-per-node, --num_processes", "-np"),
            ("os.environ['LOCAL_RANK']", "os.environ['OMPI_COMM_WORLD_LOCAL_RANK']"),
        ),
        lacks=r"torchrun|--nproc-per-node",
    ),
    # An engine starts its ranks itself; inside of a training (TRL, verl) the training's own words hold.
    Environment(
        id="engine",
        marks=("/vllm/", "vLLM", "/sglang/", "SGLang", "ServerArgs("),
        unless=(*_RAY_TRAINERS, "/trl/", "train.py", "torchrun", "accelerate launch"),
        words=((_HOW_MANY, "--tensor-parallel-size, --tp-size"),),
        lacks=r"torchrun|--nproc-per-node|LOCAL_RANK|set_device|init_process_group|DataLoader|[Mm]icro batch|gradient|Trainer|FSDP|ZeRO",
        no_command=r"train\.py|accelerate",
    ),
    Environment(id="ray", marks=_RAY_TRAINERS, unless=("torchrun",), lacks=r"torchrun|--nproc-per-node", no_command=r"train\.py|accelerate"),
    # accelerate's launcher runs torch's, whose frames prove nothing.
    Environment(
        id="accelerate",
        marks=("accelerate/commands/launch", "accelerate launch", "/trl/"),
        unless=(*_RAY_TRAINERS, "torchrun"),
        words=(
            ("torchrun --standalone --nproc-per-node gpu ", "accelerate launch --multi_gpu "),
            ("torchrun --standalone --nproc-per-node ", "accelerate launch --num_processes "),
            ("torchrun --nnodes 2 --nproc-per-node 8 ", "accelerate launch --num_machines 2 --num_processes 16 "),
            *((f"torchrun {rest} ", f"accelerate launch {rest} ") for rest in ("ARGS", "...")),
            (_HOW_MANY, "--num_processes"),
        ),
        no_command=r"torchrun",
    ),
    # GPUs that a driver and an NCCL of some months ago do not know well.
    Environment(id="new-gpu", marks=("RTX 50", "RTX PRO", "NVIDIA B200", "NVIDIA B300", "NVIDIA GB10", "NVIDIA GB200", "NVIDIA GB300", "sm_12")),
    Environment(id="srun", marks=("srun: ", "slurmstepd", "SLURM_PROCID"), unless=_BY_TORCHRUN),
    Environment(id="enroot", marks=("pyxis", "enroot"), no_command=r"\bdocker\b"),
    Environment(id="apptainer", marks=("apptainer", "singularity"), no_command=r"\bdocker\b"),
    Environment(
        id="kubernetes",
        marks=(".svc", "kubectl", "kubelet", "KUBERNETES_", "PyTorchJob", "-master-0", "-headless"),
        no_command=r"\bdocker\b|/etc/hosts",
    ),
)


# Lines that say it and nothing else.
SIGNATURES = tuple(
    Signature(needle=needle, role="context", keep=2)
    for needle in (
        *("pyxis", "enroot", "apptainer", "singularity", "mpirun", "OMPI_COMM_WORLD", "# nThread ", "kubelet", "/opt/rocm", "RCCL version"),
        *("vLLM API server", "=ServerArgs(", "GeForce RTX 50", "RTX PRO 6000", "NVIDIA B200", "NVIDIA B300", "NVIDIA GB10"),
    )
)


def seen_in(texts: Iterable[str], launchers: Collection[str] = ()) -> tuple[Environment, ...]:
    """The environments that lines tell of; `launchers` are those that tagged them."""
    every = "\n".join(texts)
    found = (e for e in ENVIRONMENTS if e.id in launchers or any(mark in every for mark in e.marks))
    return tuple(e for e in found if not any(mark in every for mark in e.unless))


def fitted(finding: Finding, environments: Collection[Environment]) -> Finding:
    """The finding with the remedies that fit: those that a cause has for an environment first, the others in its words, or left out."""
    cause = catalogue.load().get(finding.cause)
    if not environments or not finding.remedies:
        return finding
    own: dict[str, Remedy] = {}
    others: dict[str, Remedy] = {}
    for remedy in finding.remedies:
        id = next((to for e in environments if cause is not None and (to := cause.instead.get(e.id, {}).get(remedy.id))), None)
        if id is not None and cause is not None:
            own[id] = cause.remedy(id)
        elif (said := _said_there(remedy, environments)) is not None:
            others[remedy.id] = said
    return replace(finding, remedies=(*own.values(), *(r for id, r in others.items() if id not in own)))


def _said_there(remedy: Remedy, environments: Collection[Environment]) -> Remedy | None:
    for environment in environments:
        for here, there in environment.words:
            remedy = replace(
                remedy,
                says=remedy.says.replace(here, there),
                says_zh=remedy.says_zh.replace(here, there),
                env={name.replace(here, there): value for name, value in remedy.env.items()},
                command=remedy.command and remedy.command.replace(here, there),
                verify=remedy.verify and remedy.verify.replace(here, there),
            )
        if environment.lacks and lazily(environment.lacks).search("\n".join((remedy.says, *remedy.env))):
            return None
        without = lazily("|".join(filter(None, (environment.lacks, environment.no_command))) or r"(?!)")
        remedy = replace(
            remedy,
            command=None if remedy.command and without.search(remedy.command) else remedy.command,
            verify=None if remedy.verify and without.search(remedy.verify) else remedy.verify,
        )
    return remedy
