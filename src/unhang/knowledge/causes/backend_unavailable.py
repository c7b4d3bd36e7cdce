"""backend-unavailable: NCCL, or another backend, was asked for where it cannot work: this torch is built without it, or the process sees no GPU."""

from __future__ import annotations

from unhang.knowledge.cause import Cause, Signature
from unhang.model import Remedy

CAUSE = Cause(
    id="backend-unavailable",
    role="root",
    title="The backend cannot work here",
    title_zh="此处无法使用所要求的后端",
    what="The script asks for a backend, mostly nccl, that this torch was not built with, or that has no device here to work on.",
    why=(
        "A script made for GPUs runs on a machine without any; the CPU build of torch was installed (it is what PyPI has for Windows and macOS, and "
        "what an index such as .../whl/cpu gives); or the GPUs are hidden from the process."
    ),
    signatures=(
        Signature(
            needle="Distributed package doesn't have ",
            pattern=r"Distributed package doesn't have (?P<backend>\w+) built in",
            says="the script asks for the backend {backend}, and this build of torch does not contain it",
            says_zh="脚本要求使用后端 {backend}，而这个 torch 编译时没有包含它",
            remedies=("gloo-instead", "cuda-build", "see-the-build"),
        ),
        # A driver that does not answer hides GPUs as well, and says so itself.
        Signature(
            needle="is only supported with GPUs, no GPUs found",
            pattern=r"ProcessGroup(?P<backend>\w+) is only supported with GPUs, no GPUs found",
            unless=r"too old|Error 80\d|NVML|libcuda\.so|Found no NVIDIA driver|Xid|CUDA-capable device is detected",
            says="the script asks for the backend {backend}, which works on GPUs alone, and the process sees none: there is none, or it is hidden",
            says_zh="脚本要求使用后端 {backend}，它只能在 GPU 上工作，而进程看不到 GPU：本机没有，或者对进程不可见",
            remedies=("gloo-instead", "see-the-gpus", "see-the-build"),
        ),
    ),
    remedies=(
        Remedy(
            id="gloo-instead",
            says="Without a GPU go over Gloo; the script stays as it is (by hand: init_process_group('gloo'), in the Trainer ddp_backend='gloo').",
            says_zh="没有 GPU 时改用 Gloo，脚本无需修改（手动修改：init_process_group('gloo')，Trainer 中 ddp_backend='gloo'）。",
            command="unhang run --set backend=gloo -- COMMAND",
        ),
        Remedy(
            id="cuda-build",
            says=(
                "With NVIDIA GPUs install the CUDA build of the same release: PyPI has it for Linux; pytorch.org/get-started names the index for "
                "each release of CUDA. Windows and macOS never have NCCL."
            ),
            says_zh=(
                "有 NVIDIA GPU 时安装同一版本的 CUDA 版 torch：Linux 上 PyPI 即提供，各 CUDA 版本的源见 pytorch.org/get-started。"
                "Windows 和 macOS 没有 NCCL。"
            ),
            # The index has newer releases than the one that the training was made with.
            command=(
                'release=$(python -c \'import importlib.metadata as m; print(m.version("torch").partition("+")[0])\') && pip uninstall -y torch && '
                'pip install --index-url https://pypi.org/simple "torch==$release"'
            ),
            verify=(
                'python -c "import torch; print(torch.__version__, torch.version.cuda, torch.distributed.is_nccl_available(), '
                'torch.cuda.device_count())"'
            ),
        ),
        Remedy(
            id="see-the-gpus",
            says=(
                "Where there are GPUs, let the process see them: CUDA_VISIBLE_DEVICES unset or with their numbers, the container started with "
                "--gpus all, the batch job with GPUs asked for."
            ),
            says_zh="若本机有 GPU，让进程看到它们：不设 CUDA_VISIBLE_DEVICES 或列出编号，容器用 --gpus all 启动，批处理作业申请 GPU。",
            command='nvidia-smi -L; echo "visible: ${CUDA_VISIBLE_DEVICES-all}"',
            verify="python -c 'import torch; print(torch.cuda.device_count())'",
        ),
        Remedy(
            id="see-the-build",
            says="See which torch answers, from which environment, and what it was built with.",
            says_zh="查看实际加载的是哪个环境中的 torch，以及它的编译内容。",
            command='python -c "import torch; print(torch.__file__, torch.__version__, torch.version.cuda, torch.distributed.is_nccl_available())"',
        ),
    ),
    leads_to=("rank-exception",),
    mistaken_for={
        "device-mapping": "there GPUs are seen, and a rank asks for one that is not among them",
        "wrong-backend-for-tensor": "there the group was made, and one of its calls got a tensor that the backend does not carry",
        "driver-too-old": "a driver that cannot serve this torch leaves no GPU either, and is named in a line of its own",
        "config-error": "a backend that torch does not know at all was spelt wrongly",
    },
    sources=(
        "https://docs.pytorch.org/docs/stable/distributed.html#backends",
        "https://github.com/pytorch/pytorch/blob/main/torch/distributed/distributed_c10d.py",
        "https://pytorch.org/get-started/locally/",
    ),
    hits=(
        "RuntimeError: Distributed package doesn't have NCCL built in",
        "[rank0]: RuntimeError: Distributed package doesn't have MPI built in",
        "[rank0]: ValueError: ProcessGroupNCCL is only supported with GPUs, no GPUs found!",
        "RuntimeError: ProcessGroupNCCL is only supported with GPUs, no GPUs found!",
    ),
    near_misses=(
        "AssertionError: Unknown backend type ncll",
        "RuntimeError: No backend type associated with device type cpu",
        "UserWarning: Found no NVIDIA driver on your system.\nValueError: ProcessGroupNCCL is only supported with GPUs, no GPUs found!",
        "torch.distributed is available, NCCL is built in",
    ),
    explain={
        "en": (
            "A backend is what collectives go over. nccl works between NVIDIA GPUs alone, and only in builds of torch that contain it: those for "
            "CUDA on Linux. gloo is in every build and works on the CPU. A script that says init_process_group('nccl') therefore ends at its start "
            "on a machine without GPUs, with the CPU build of torch, on Windows and on macOS. To try it there, run it over gloo; unhang run --set "
            "backend=gloo does so without a change in the script. Where GPUs are there, the build of torch is the wrong one, or they are hidden "
            "from the process."
        ),
        "zh": (
            "后端是集合通信所走的通道。nccl 只能在 NVIDIA GPU 之间工作，而且只包含在 Linux 的 CUDA 版 torch 中；gloo 包含在所有版本中，可用于 CPU。"
            "因此写着 init_process_group('nccl') 的脚本，在没有 GPU 的机器上、在 CPU 版 torch 下、在 Windows 和 macOS 上一启动就失败。要在那里试跑，"
            "请改用 gloo：unhang run --set backend=gloo 无需修改脚本。如果机器上有 GPU，则是装错了 torch 版本，或者 GPU 对进程不可见。"
        ),
    },
)
