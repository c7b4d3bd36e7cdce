"""What the ranks of a probe say of a stage, in Chinese: they run with the training's Python, and say it in English.

What is none of these sentences is an error of torch's, the system's or the training's own, and stays as it is.
"""

from __future__ import annotations

from unhang.patterns import lazily

_RANKS = lazily(r"ranks? (\d+(?:, \d+)*)(: | )(.+)$")
_SEVERAL = lazily(r"; (?=ranks? \d)")
_SENTENCES = (
    (lazily(r"did not come back within (\S+) s"), "在 {0} 秒内没有返回"),
    (lazily(r"did not come back within (\S+) s \(at ranks (\d+) and (\d+)\)"), "在 {0} 秒内没有返回（停在 rank {1} 与 {2} 之间）"),
    (lazily(r"did not come back within (\S+) s \(at (?!ranks )(.+)\)"), "在 {0} 秒内没有返回（停在 {1}）"),
    (lazily(r"ended by (SIG\w+)"), "被 {0} 结束"),
    (lazily(r"ended with exit code (\d+)"), "以退出码 {0} 结束"),
    (lazily(r"it is still there"), "仍未结束"),
    (lazily(r"interrupted"), "被中断"),
    (lazily(r"(torch \S+), CPU build"), "{0}，CPU 版"),
    (lazily(r"(torch \S+), ((?:CUDA|ROCm) \S+)"), "{0}，{1}"),
    (lazily(r"(\d+) threads"), "{0} 个线程"),
    (lazily(r"(.+), (\d+) of (\d+) MiB free"), "{0}，{2} MiB 中有 {1} MiB 空闲"),
    (lazily(r"gloo at (.+)"), "gloo，地址 {0}"),
    (lazily(r"loss (\S+)"), "损失 {0}"),
    (lazily(r"up to (\d+ \w+), bus bandwidth (\S+) GB/s \(median of (\d+)\)"), "最大 {0}，总线带宽 {1} GB/s（{2} 次的中位数）"),
    (lazily(r"(\d+) pairs?"), "{0} 对"),
    (lazily(r"(\d+) workers, (\d+) batches of (\d+) MiB"), "{0} 个 worker，{1} 批，每批 {2} MiB"),
    (lazily(r"no workers"), "没有 worker"),
    (lazily(r"Wrong: (torch \S+) is a build for the CPU; NCCL needs one for CUDA or ROCm"), "{0} 是 CPU 版；使用 NCCL 需要 CUDA 版或 ROCm 版"),
    (lazily(r"Wrong: 2 \* 2 summed 1024 times is not 4096 on this device"), "在该设备上 2 * 2 累加 1024 次不等于 4096"),
    (lazily(r"Wrong: a gradient is not finite"), "有梯度不是有限值"),
    (lazily(r"Wrong: gradients on the device differ from those on the CPU"), "设备上的梯度与 CPU 上的不同"),
    (lazily(r"Wrong: DDP's gradients are not the mean over the ranks"), "DDP 的梯度不是各 rank 的平均值"),
    (
        lazily(r"Wrong: rank (\d+): (\d+) of (\d+) numbers are wrong; number (\d+) is (\S+), not (\S+)"),
        "rank {0}：{2} 个数中有 {1} 个错误；第 {3} 个是 {4}，应为 {5}",
    ),
)


def in_chinese(said: str) -> str:
    return "；".join(_one(part) for part in _SEVERAL.split(said))


def _one(said: str) -> str:
    if (found := _RANKS.match(said)) is not None:
        return f"rank {found[1]}{'：' if found[2] == ': ' else ' '}{_one(found[3])}"
    told = ((chinese, found) for pattern, chinese in _SENTENCES if (found := pattern.fullmatch(said)) is not None)
    return next((chinese.format(*found.groups()) for chinese, found in told), said)
