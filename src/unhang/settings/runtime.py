"""Settings of the run itself: what torch checks, what loaders do, how much is done at once, and in how many processes."""

from __future__ import annotations

from collections.abc import Callable

from unhang.settings import support, values
from unhang.settings.communication import HOOK
from unhang.settings.setting import Installed, Setting, Spelled, Value, worded
from unhang.text import Text

# Read by the hook in the training's processes, see attach/protocol.
LOADER_WORKERS = "UNHANG_LOADER_WORKERS"
LOADER_WORKERS_MOST = "UNHANG_LOADER_WORKERS_MOST"
PIN_MEMORY = "UNHANG_PIN_MEMORY"
PERSISTENT_WORKERS = "UNHANG_PERSISTENT_WORKERS"
PREFETCH = "UNHANG_PREFETCH"
BUCKET = "UNHANG_DDP_BUCKET_MB"
CUDNN_BENCHMARK = "UNHANG_CUDNN_BENCHMARK"
# torch/_dynamo/config.py reads it in 2.4 and later; 2.4 takes any text for yes, "0" as well.
COMPILE_DISABLE = "TORCH_COMPILE_DISABLE"

# The release whose DETAIL and DDP do not go together over Gloo.
_DETAIL_ENDS_DDP = (2, 13)
_PRECISIONS = ("no", "fp16", "bf16", "fp8")


_UNMAPPED = Text(
    "only the script can do this, and [arguments] of unhang.toml has no flag for it",
    "只有脚本自己能做，而 unhang.toml 的 [arguments] 没有给出对应的参数",
)


def _by_script(of_llamafactory: str | None = None) -> Callable[[Value, Installed, str], Spelled | Text]:
    def spell(value: Value, installed: Installed, launcher: str) -> Spelled | Text:
        if of_llamafactory is not None and support.takes_overrides(installed, launcher):
            return Spelled(arguments=(f"{of_llamafactory}={worded(value)}",), read_by=support.said(installed, "llamafactory"))
        return _UNMAPPED

    return spell


def _by_hook(name: str) -> Callable[[Value, Installed, str], Spelled | Text]:
    def spell(value: Value, installed: Installed, launcher: str) -> Spelled | Text:
        if installed.torch is None:
            return support.no_torch(installed)
        return Spelled(env={name: str(int(value))}, read_by=HOOK)

    return spell


def _cudnn(value: Value, installed: Installed, launcher: str) -> Spelled | Text:
    if not installed.gpus:
        return support.NO_GPU
    return _by_hook(CUDNN_BENCHMARK)(value, installed, launcher)


def _compile(value: Value, installed: Installed, launcher: str) -> Spelled | Text:
    if installed.torch is None:
        return support.no_torch(installed)
    return _UNMAPPED if value else Spelled(env={COMPILE_DISABLE: "1"}, read_by=support.said(installed, "torch"))


def _accumulation(value: Value, installed: Installed, launcher: str) -> Spelled | Text:
    name = "ACCELERATE_GRADIENT_ACCUMULATION_STEPS"
    if launcher == "accelerate" and support.reads(installed, "accelerate", name):
        # Accelerator() takes it over what the script gives; the script has to use accelerator.accumulate().
        return Spelled(env={name: str(value)}, read_by=support.said(installed, "accelerate"))
    return _by_script("gradient_accumulation_steps")(value, installed, launcher)


def _precision(value: Value, installed: Installed, launcher: str) -> Spelled | Text:
    if launcher == "accelerate" and "accelerate" in installed.packages:
        return Spelled(options=(("--mixed_precision", str(value)),), read_by=support.said(installed, "accelerate"))
    if support.takes_overrides(installed, launcher) and value != "fp8":
        chosen = {"bf16": value == "bf16", "fp16": value == "fp16"}
        return Spelled(arguments=tuple(f"{k}={worded(v)}" for k, v in chosen.items()), read_by=support.said(installed, "llamafactory"))
    return _UNMAPPED


def _processes(value: Value, installed: Installed, launcher: str) -> Spelled | Text:
    count = str(value)
    if launcher == "llamafactory":
        if not support.reads(installed, "llamafactory", "NPROC_PER_NODE"):
            return support.refusal(installed, "llamafactory", "NPROC_PER_NODE")
        return Spelled(env={"NPROC_PER_NODE": count}, read_by=support.said(installed, "llamafactory"))
    flag = {"torchrun": "--nproc-per-node", "accelerate": "--num_processes", "deepspeed": "--num_gpus"}.get(launcher)
    if flag is None:
        return Text("this command has no flag for its number of processes that is known here", "不知道这个命令用哪个参数指定进程数")
    return Spelled(options=((flag, count),), read_by=launcher)


def _launch_blocking(value: Value, installed: Installed, launcher: str) -> Spelled | Text:
    if installed.torch is None:
        return support.no_torch(installed)
    if installed.nccl is None and not installed.gpus:
        return Text("only the CUDA runtime reads it, and this torch is built without CUDA", "只有 CUDA 运行时读取它，而这个 torch 不含 CUDA")
    return Spelled(env={"CUDA_LAUNCH_BLOCKING": str(int(value))}, read_by="the CUDA runtime")


def _detail(value: Value, installed: Installed, launcher: str) -> Spelled | Text:
    if not support.reads(installed, "torch", "TORCH_DISTRIBUTED_DEBUG"):
        return support.refusal(installed, "torch", "TORCH_DISTRIBUTED_DEBUG")
    said = support.said(installed, "torch")
    if value and installed.torch == _DETAIL_ENDS_DDP and (installed.nccl is None or not installed.gpus):
        # torch 2.13, CPU: SIGSEGV in DDP's constructor (set_construction_data_and_log); plain collectives go well, and so does INFO.
        return Spelled(env={"TORCH_DISTRIBUTED_DEBUG": "INFO"}, read_by=said)
    return Spelled(env={"TORCH_DISTRIBUTED_DEBUG": "DETAIL" if value else "OFF"}, read_by=said)


SETTINGS = (
    Setting(
        key="launch-blocking",
        title="CUDA kernels one after another, so that an error names its call",
        title_zh="CUDA 核函数逐个执行，使错误能对应到调用",
        cost="on: kernels no longer overlap with the host; for finding a fault only",
        cost_zh="on：核函数不再与主机并行；只用于查错",
        layer="run-time",
        forms="on, off",
        example="on",
        parse=values.switch,
        spelling=_launch_blocking,
    ),
    Setting(
        key="detail",
        title="torch compares the ranks' collectives before each call",
        title_zh="torch 在每次调用前比对各 rank 的集合通信",
        cost="on: small collectives take about three times as long (3.3 measured on Gloo)",
        cost_zh="on：小的集合通信耗时约为三倍（Gloo 上实测 3.3 倍）",
        layer="run-time",
        forms="on, off",
        example="on",
        parse=values.switch,
        spelling=_detail,
    ),
    Setting(
        key="loader-workers",
        title="worker processes of each DataLoader",
        title_zh="每个 DataLoader 的工作进程数",
        cost="0: batches are made between the steps; more: host memory and /dev/shm for each",
        cost_zh="0：在两步之间准备数据；更多：每个都占用主机内存和 /dev/shm",
        layer="run-time",
        forms="0 or more",
        forms_zh="0 或更大",
        example="0",
        parse=values.whole(0, 1024),
        spelling=_by_hook(LOADER_WORKERS),
    ),
    Setting(
        key="pin-memory",
        title="page-locked batches",
        title_zh="锁页内存批次",
        cost="off: slower copies to the GPU; on: host memory that cannot be swapped",
        cost_zh="off：拷贝到 GPU 变慢；on：占用不可换出的主机内存",
        layer="run-time",
        forms="on, off",
        example="off",
        parse=values.switch,
        spelling=_by_hook(PIN_MEMORY),
    ),
    Setting(
        key="persistent-workers",
        title="workers live on between epochs",
        title_zh="工作进程跨 epoch 存活",
        cost="off: workers start again with each epoch; on: their memory is kept",
        cost_zh="off：每个 epoch 重新启动工作进程；on：其内存一直占用",
        layer="run-time",
        forms="on, off",
        example="off",
        parse=values.switch,
        spelling=_by_hook(PERSISTENT_WORKERS),
    ),
    Setting(
        key="prefetch",
        title="batches that each worker makes ahead",
        title_zh="每个工作进程预取的批次数",
        cost="memory for that many batches in each worker",
        cost_zh="每个工作进程占用相应批次的内存",
        layer="run-time",
        forms="1 or more",
        forms_zh="1 或更大",
        example="2",
        parse=values.whole(1, 4096),
        spelling=_by_hook(PREFETCH),
    ),
    Setting(
        key="bucket",
        title="bytes of gradients that DDP sends at once, in MiB",
        title_zh="DDP 每次发送的梯度大小（MiB）",
        cost="smaller: more calls, which begin earlier; larger: fewer, and less of them behind the backward pass",
        cost_zh="变小：调用更多但开始更早；变大：调用更少，与反向传播重叠也更少",
        layer="run-time",
        forms="1 or more (torch takes 25)",
        forms_zh="1 或更大（torch 默认 25）",
        example="100",
        parse=values.whole(1, 65536),
        spelling=_by_hook(BUCKET),
    ),
    Setting(
        key="cudnn-benchmark",
        title="cuDNN tries its convolution algorithms and keeps the fastest",
        title_zh="cuDNN 试用各种卷积算法并保留最快的",
        cost="on: each new input size is slow once, and results differ in the last digits between runs",
        cost_zh="on：每种新的输入尺寸会慢一次，各次运行的结果末位可能不同",
        layer="run-time",
        forms="on, off",
        example="on",
        parse=values.switch,
        spelling=_cudnn,
    ),
    Setting(
        key="compile",
        title="torch.compile where the script calls it; off: its functions run uncompiled",
        title_zh="脚本中的 torch.compile；off：相应函数不经编译运行",
        cost="off: the speed that compiling has gained; only the script can turn it on",
        cost_zh="off：失去编译带来的速度；只有脚本自己能打开它",
        layer="run-time",
        forms="on, off",
        example="off",
        parse=values.switch,
        spelling=_compile,
    ),
    Setting(
        key="batch",
        title="samples of each rank in one step",
        title_zh="每个 rank 每步的样本数",
        cost="smaller: lower throughput, and another effective batch unless accumulation makes up for it",
        cost_zh="变小：吞吐下降；若不用梯度累积补足，有效批量也会改变",
        layer="run-time",
        forms="1 or more",
        forms_zh="1 或更大",
        example="512",
        parse=values.whole(1),
        spelling=_by_script("per_device_train_batch_size"),
    ),
    Setting(
        key="accumulation",
        title="steps whose gradients are added up before the ranks exchange them",
        title_zh="梯度累积步数",
        cost="a larger effective batch, with as many optimizer steps fewer",
        cost_zh="有效批量变大，优化器步数相应减少",
        layer="run-time",
        forms="1 or more",
        forms_zh="1 或更大",
        example="4",
        parse=values.whole(1),
        spelling=_accumulation,
    ),
    Setting(
        key="precision",
        title="numbers that the model computes with",
        title_zh="模型计算所用的数值精度",
        cost="fewer bits: fp16 needs loss scaling, bf16 a GPU of 2020 or later, fp8 one of 2022",
        cost_zh="位数变少：fp16 需要损失缩放，bf16 需要 2020 年以后的 GPU，fp8 需要 2022 年以后的 GPU",
        layer="run-time",
        forms=", ".join(_PRECISIONS),
        example="bf16",
        parse=values.one_of(*_PRECISIONS),
        spelling=_precision,
    ),
    Setting(
        key="gpu-cache",
        title="samples that the script keeps in the GPU's memory",
        title_zh="脚本缓存在 GPU 内存中的样本数",
        cost="GPU memory for that many samples",
        cost_zh="占用相应样本的 GPU 内存",
        layer="run-time",
        forms="0 or more",
        forms_zh="0 或更大",
        example="5000",
        parse=values.whole(0),
        spelling=_by_script(),
    ),
    Setting(
        key="processes",
        title="processes that are started (accelerate: on all hosts together; the others: on each host)",
        title_zh="启动的进程数（accelerate：所有主机合计；其他：每台主机）",
        cost="fewer: as many GPUs less, and another effective batch",
        cost_zh="变少：少用相应数量的 GPU，有效批量随之改变",
        layer="run-time",
        forms="1 or more",
        forms_zh="1 或更大",
        example="2",
        parse=values.whole(1, 65536),
        spelling=_processes,
    ),
)
