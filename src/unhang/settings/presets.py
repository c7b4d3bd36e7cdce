"""Presets: settings that go together, each with its reason. Data, except those that are chosen from what a machine has (`choosing`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from unhang.settings.setting import Choice
from unhang.text import NOTHING, Text


@dataclass(frozen=True, kw_only=True)
class Preset:
    """`why` has the reason of each key. `origin` is the file that a preset of the user's stands in, "" for ours.

    `unfit` says why it does not suit this machine, NOTHING where it does or where nobody looked.
    """

    name: str
    title: Text
    cost: Text
    settings: Choice
    why: Mapping[str, Text] = field(default_factory=dict)
    origin: str = ""
    unfit: Text = NOTHING


# What belongs to the model and its data: a starting point for a script that names its flag, never in the place of what LLaMA-Factory's file says.
OF_THE_SCRIPT = ("batch", "gpu-cache")
_HALF_AN_HOUR = 1800
_LOADER = {
    "loader-workers": Text(
        "few processes that could hang or be killed for their memory; a loader without workers is left without",
        "工作进程少，不易卡死或因内存被杀；没有工作进程的加载器保持不变",
    ),
    "pin-memory": Text("no page-locked memory, which runs out first where memory is short", "不用锁页内存：内存紧张时它最先耗尽"),
    "persistent-workers": Text("workers give their memory back after each epoch", "工作进程在每个 epoch 后归还内存"),
}
_BATCH = Text("a starting point; halve it until it fits", "起点；放不下就减半")
_TIMEOUT = Text(
    "torch waits 10 minutes for NCCL; a slow start, a long evaluation or tokenising on one rank may take longer",
    "torch 对 NCCL 默认只等 10 分钟；启动慢、评估时间长或单个 rank 分词可能超过它",
)
_BASIC: Choice = {"batch": 1024, "loader-workers": 1, "pin-memory": False, "persistent-workers": False, "timeout": _HALF_AN_HOUR}
_WHY_BASIC = {**_LOADER, "batch": _BATCH, "timeout": _TIMEOUT}

BASIC = Preset(
    name="basic",
    title=Text("a plain start: one loader worker at most, half an hour for collectives", "朴素的起点：最多一个数据加载进程，集合通信半小时超时"),
    cost=Text("loading may keep GPUs waiting", "数据加载可能使 GPU 等待"),
    settings=_BASIC,
    why=_WHY_BASIC,
)
GPU_CACHE = Preset(
    name="gpu-cache",
    title=Text("basic, with samples kept on the GPU", "basic，并把样本缓存在 GPU 上"),
    cost=BASIC.cost + Text("; GPU memory for 5000 samples", "；占用 5000 条样本的 GPU 内存"),
    settings={**_BASIC, "gpu-cache": 5000},
    why={**_WHY_BASIC, "gpu-cache": Text("samples that are used again are not copied again", "重复使用的样本不再拷贝")},
)
PREFETCH = Preset(
    name="prefetch",
    title=Text("basic, with batches made ahead", "basic，并预取批次"),
    cost=BASIC.cost + Text("; host memory for two more batches on each rank", "；每个 rank 多占两个批次的主机内存"),
    settings={**_BASIC, "prefetch": 2},
    why={**_WHY_BASIC, "prefetch": Text("a slow batch does not stop the step", "个别批次变慢不会使训练停顿")},
)
CONSERVATIVE = Preset(
    name="conservative",
    title=Text("first try on a machine that hangs: everything that often fails is off", "在会挂起的机器上先试它：关闭常出问题的一切"),
    cost=Text(
        "much slower: GPUs talk through the host's memory and TCP, batches are made between the steps",
        "慢得多：GPU 经主机内存和 TCP 通信，数据在两步之间准备",
    ),
    settings={
        "cumem-host": False,
        "p2p": False,
        "ib": False,
        "nvls": False,
        "debug": "warn",
        "batch": 512,
        "loader-workers": 0,
        "pin-memory": False,
        "persistent-workers": False,
        "timeout": _HALF_AN_HOUR,
    },
    why={
        "cumem-host": Text(
            "ranks that disagree on it fail with 'attaching to shared memory segment'", "各 rank 结论不一致会报 'attaching to shared memory segment'"
        ),
        "p2p": Text("an IOMMU or a virtual machine may break direct copies, and then they hang", "IOMMU 或虚拟机可能破坏直连拷贝，导致挂起"),
        "ib": Text("proves or rules out a fault of InfiniBand", "用来证明或排除 InfiniBand 故障"),
        "nvls": Text("needs a fabric manager that works", "依赖正常工作的 fabric manager"),
        "debug": Text("NCCL tells what fails, and no more", "NCCL 只输出出错信息"),
        "batch": _BATCH,
        "loader-workers": Text(
            "no process that could hang or be killed for its memory, and no need of /dev/shm", "没有会卡死或因内存被杀的进程，也不需要 /dev/shm"
        ),
        "pin-memory": _LOADER["pin-memory"],
        "persistent-workers": _LOADER["persistent-workers"],
        "timeout": _TIMEOUT,
    },
)
DEBUG = Preset(
    name="debug",
    title=Text("to find a fault: all that tells more", "用于查错：打开所有能提供更多信息的开关"),
    cost=Text("slow, and long logs: not for training", "慢，日志很长：不用于正式训练"),
    settings={"debug": "info", "detail": True, "launch-blocking": True, "trace-entries": 16384},
    why={
        "debug": Text("NCCL tells which interfaces and transports it takes", "NCCL 输出所选的接口和传输方式"),
        "detail": Text(
            "torch says which rank's call does not match; INFO instead where torch 2.13 has only Gloo, for its DETAIL crashes DDP there",
            "torch 指出哪个 rank 的调用不匹配；torch 2.13 只有 Gloo 时改用 INFO，因为 DETAIL 会使 DDP 崩溃",
        ),
        "launch-blocking": Text("an error of CUDA names the line that caused it", "CUDA 错误能对应到引发它的那一行"),
        "trace-entries": Text("long enough to reach back before the fault", "足以回溯到故障之前"),
    },
)
SINGLE_NODE = Preset(
    name="single-node",
    title=Text("one host: nothing leaves it", "单机：通信不出本机"),
    cost=Text("none on one host; on several the start fails", "单机上无代价；多机时启动失败"),
    settings={"interface": "lo", "ib": False, "debug": "warn"},
    why={
        "interface": Text("the loopback is always there, whatever the network and the host's name are like", "回环接口始终存在，与网络和主机名无关"),
        "ib": Text("no adapter is needed between GPUs of one host", "同一主机的 GPU 之间不需要网卡"),
        "debug": Text("NCCL tells what fails, and no more", "NCCL 只输出出错信息"),
    },
)
STATIC: Mapping[str, Preset] = {p.name: p for p in (BASIC, GPU_CACHE, PREFETCH, CONSERVATIVE, SINGLE_NODE, DEBUG)}
