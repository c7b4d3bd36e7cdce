"""gpu-newer-than-nccl: this NCCL release was made before the GPU."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from unhang.knowledge.cause import Cause, LogView, Signature
from unhang.knowledge.text import Text, same
from unhang.model import Evidence, Finding, HostFinding, Remedy
from unhang.patterns import lazily

if TYPE_CHECKING:
    from unhang.facts.snapshot import Snapshot

_KERNELS = lazily(r"NCCL WARN Cuda failure (?:\d+ )?'(?:named symbol not found|invalid device function|no kernel image)")
# The first release for GPUs of a compute capability, from NVIDIA's release notes; the largest that a GPU reaches counts.
_FIRST = {(8, 0): (2, 8), (9, 0): (2, 15), (10, 0): (2, 25, 1), (12, 0): (2, 26, 2)}
_BLACKWELL = r"RTX 50[5-9]0|RTX PRO [2-6]\d00 Blackwell|\bG?B[123]00\b|\bGB10\b|\bsm_1[0-2]\d\b"


def _in_logs(view: LogView) -> Finding | None:
    """A new GPU beside an old NCCL is no failure by itself: something has to have failed, and torch itself has to know the GPU."""
    own = view.hits_of(CAUSE.id)
    builds = view.hits_of("arch-not-in-build")
    if any("gpu" in h.groups for h in builds):
        return None
    failed = next((h for h in builds if _KERNELS.search(h.text)), None)
    capable = next((h for h in own if "capability" in h.groups), None)
    if failed is not None and capable is not None:
        release = next(map(same, view.nccl.versions), Text("this release", "这个版本"))
        return CAUSE.finding(
            standing="established",
            says=Text(
                "NCCL finds no kernels for this GPU: {release} was made before GPUs of compute capability {capability}",
                "NCCL 找不到适用于这块 GPU 的 kernel：{release} 早于 compute capability {capability} 的 GPU",
            ).fill(release=release, capability=capable.groups["capability"]),
            ranks=tuple(sorted({h.rank for h in builds if h.rank is not None})),
            hosts=tuple(dict.fromkeys(h.host for h in builds if h.host is not None)),
            evidence=tuple(h.evidence() for h in (failed, capable)),
            remedies=("newer-nccl",),
        )
    broken = view.tracebacks or view.timeouts or any(e.code for e in view.exits) or any(c != CAUSE.id and hits for c, hits in view.hits.items())
    return CAUSE.of_hits([h for h in own if "capability" not in h.groups and (broken or "old" not in h.groups)], view)


def _on_host(host: Snapshot) -> Iterable[HostFinding]:
    from unhang.facts import libraries

    seen = host.get(libraries.SUBJECT)
    nccl = seen.copy("nccl") if seen is not None else None
    release = (nccl.version if nccl is not None else None) or (seen.torch.nccl_inside if seen is not None else None)
    if seen is None or release is None:
        return
    gpus = libraries.usable_gpus(host)
    told: set[str] = set()
    for card in gpus:
        capability = card.compute_capability
        first = max((f for c, f in _FIRST.items() if capability and c <= libraries.number(capability)), default=())
        if capability is None or capability in told or libraries.number(release) >= first:
            continue
        told.add(capability)
        yield CAUSE.host_finding(
            area="libraries",
            severity="error" if len(gpus) > 1 else "warning",
            says=Text(
                "NCCL {release} is older than {gpu}: {first} is the first release for it", "NCCL {release} 早于 {gpu}：从 {first} 起才支持它"
            ).fill(release=release, gpu=card.name or Text("this GPU", "这种 GPU"), first=".".join(map(str, first))),
            leads_to=Text(
                "torch computes on one GPU, and the first collective over several fails or hangs",
                "torch 在单个 GPU 上能计算，多个 GPU 的第一次集合通信会失败或挂起",
            ),
            evidence=(Evidence(source=nccl.path if nccl is not None else seen.torch.path, text=f"NCCL version {release}"),),
            remedies=("newer-nccl", "which-nccl"),
        )


CAUSE = Cause(
    id="gpu-newer-than-nccl",
    role="root",
    title="The GPU is newer than the NCCL release",
    title_zh="GPU 比所用的 NCCL 版本更新",
    what=(
        "torch may compute on the GPU, but the NCCL that it loads was released before that GPU and has no kernels, shared-memory sizes or link "
        "types for it."
    ),
    why="An older torch or image on new hardware, or an old libnccl in front of the one that torch brought along.",
    signatures=(
        # Consumer Blackwell has less shared memory per block than NCCL up to 2.25 took for granted; 2.26 asks the device.
        Signature(
            needle="exceeds device/fn maxSharedMem",
            pattern=r"ncclMaxSharedMem (?P<needs_bytes>\d+) exceeds device/fn maxSharedMem (?P<has_bytes>\d+)",
            standing="likely",
            says="NCCL's kernels want {needs_bytes} bytes of shared memory and this GPU offers {has_bytes}: this NCCL was made before it",
            says_zh="NCCL 的内核需要 {needs_bytes} 字节共享内存，而这块 GPU 提供 {has_bytes} 字节：这个 NCCL 早于该 GPU",
            remedies=("newer-nccl",),
        ),
        # NVLink of H100 (official since 2.15) is unknown to these: they see links in one direction only.
        Signature(
            needle="Failed to find reverse path from remNode",
            near=r"NCCL\s+version 2\.(?:\d|1[0-4])\.\d+",
            standing="likely",
            says="this NCCL cannot make sense of the links between the GPUs, as releases before 2.15 cannot on H100",
            says_zh="这个 NCCL 无法理解 GPU 之间的链路，正如 2.15 之前的版本在 H100 上那样",
            remedies=("newer-nccl",),
        ),
        # Printed by 2.4 and 2.5 only, which know GPUs up to capability 7.5.
        Signature(
            needle="Min Comp Cap ",
            pattern=r"Using \d+ threads, Min Comp Cap (?P<capability>[89]|1\d)\b",
            standing="likely",
            says="this NCCL was released before GPUs of compute capability {capability}",
            says_zh="这个 NCCL 的发布早于计算能力 {capability} 的 GPU",
            remedies=("newer-nccl",),
        ),
        Signature(
            needle="unhandled cuda error",
            pattern=r"unhandled cuda error.{0,80}NCCL version (?P<release>2\.(?:\d|1\d|2[0-5])\.\d+)",
            near=_BLACKWELL,
            standing="likely",
            says="NCCL {release} fails on a Blackwell GPU, which it is older than",
            says_zh="NCCL {release} 在 Blackwell GPU 上失败：它早于这种 GPU",
            remedies=("newer-nccl",),
        ),
        # NVIDIA names 2.25.1 as the first release for Blackwell.
        Signature(
            needle="NCCL version 2.",
            pattern=r"(?:^|INFO )NCCL version (?P<old>2\.(?:\d|1\d|2[0-4])\.\d+)",
            near=_BLACKWELL,
            standing="possible",
            says="NCCL {old} runs on a Blackwell GPU, which it is older than (2.25.1 is the first release for it)",
            says_zh="NCCL {old} 运行在 Blackwell GPU 上，而它早于这种 GPU（从 2.25.1 起才支持）",
            remedies=("newer-nccl",),
        ),
    ),
    in_logs=_in_logs,
    on_host=_on_host,
    remedies=(
        Remedy(
            id="newer-nccl",
            says=(
                "Use a newer NCCL, best with the torch that brings it: 2.26.2 or newer for RTX 50 and RTX PRO Blackwell, 2.25.1 for B200, 2.16 "
                "for H100, 2.8 for A100 and RTX 30."
            ),
            says_zh=(
                "换用更新的 NCCL，最好连同自带它的 torch 一起升级：RTX 50 和 RTX PRO Blackwell 需 2.26.2 以上，B200 需 2.25.1，H100 需 2.16，"
                "A100 与 RTX 30 需 2.8。"
            ),
            command="python -c 'import torch; print(torch.cuda.get_device_name(), torch.__version__, torch.cuda.nccl.version())'",
            verify="NCCL_DEBUG=VERSION torchrun ARGS train.py 2>&1 | grep 'NCCL version'",
        ),
        Remedy(
            id="which-nccl",
            says="Make sure that the new release is the one that is loaded: a libnccl found through LD_LIBRARY_PATH or LD_PRELOAD wins over it.",
            says_zh="确认实际加载的是新版本：通过 LD_LIBRARY_PATH 或 LD_PRELOAD 找到的 libnccl 会抢在前面。",
            command="python -c \"import torch; print(*{l.split()[-1] for l in open('/proc/self/maps') if 'nccl' in l}, sep='\\n')\"",
        ),
    ),
    leads_to=("arch-not-in-build", "nccl-bug", "rank-exception"),
    mistaken_for={
        "arch-not-in-build": "there torch or an extension has no code for the GPU; here plain torch computes and only collectives fail",
        "nccl-bug": "a bug of a release that does support this GPU",
        "p2p-broken": "consumer GPUs without peer-to-peer hang or corrupt with any release",
    },
    sources=(
        "https://docs.nvidia.com/deeplearning/nccl/release-notes/rel_2-15-1.html",
        "https://docs.nvidia.com/deeplearning/nccl/release-notes/rel_2-26-2.html",
        "https://github.com/NVIDIA/nccl-tests/issues/287",
        "https://github.com/NVIDIA/nccl/issues/1637",
    ),
    hits=(
        "node7:5120:5341 [0] NCCL INFO ncclMaxSharedMem 82240 exceeds device/fn maxSharedMem 79856",
        (
            "NCCL version 2.14.3\nncclInternalError: Internal check failed.\nLast error:\nFailed to find reverse path from remNode 0/4f000 "
            "nlinks 4 to node 0/cb000"
        ),
        (
            "NCCL version 2.4.8+cuda10.2\nnode7:5120:5120 [3] NCCL INFO Using 256 threads, Min Comp Cap 8, Trees disabled\n"
            "node7:5120:5120 [3] enqueue.cc:197 NCCL WARN Cuda failure 'invalid device function'"
        ),
        (
            "GPU 0: NVIDIA GeForce RTX 5090\n[rank1]: torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:3396, unhandled "
            "cuda error (run with NCCL_DEBUG=INFO for details), NCCL version 2.25.1"
        ),
        "#  Rank  1 Group  0 Pid   5121 on node7 device  1 [0000:ca:00] NVIDIA GB200\nnode7:5120:5120 [0] NCCL INFO NCCL version 2.21.5+cuda12.8",
    ),
    near_misses=(
        "node7:5120:5120 [3] NCCL INFO Using 256 threads, Min Comp Cap 7, Trees enabled up to size -2",
        (
            "[rank1]: torch.distributed.DistBackendError: NCCL error in: NCCLUtils.cpp:93, unhandled cuda error (run with NCCL_DEBUG=INFO for "
            "details), NCCL version 2.25.1"
        ),
        "GPU 0: NVIDIA GeForce RTX 5090\nNCCL version 2.27.7+cuda12.9",
        "NCCL version 2.20.5+cuda12.4\nLast error:\nFailed to find reverse path from remNode 0/41000 nlinks 2 to node 0/61000",
        "node7:5120:5341 [0] NCCL INFO threadThresholds 8/8/64 | 16/8/64 | 512 | 512",
    ),
    explain={
        "en": (
            "NCCL carries its own kernels and its own table of what a GPU and its links can do. A release that is older than the GPU has "
            "neither, so single-GPU work runs and the first collective fails: kernels that are not found, more shared memory than the GPU has, "
            "links that make no sense. Compare the release that NCCL prints (NCCL_DEBUG=VERSION) with the first one that supports this GPU in "
            "NVIDIA's release notes. The sure way is a newer torch, which brings its NCCL along; then check that no older libnccl is found first."
        ),
        "zh": (
            "NCCL 自带通信用的 GPU 内核，也自带一张关于各种 GPU 及其互连能力的表。比 GPU 更早发布的版本两样都没有，于是单卡计算正常，第一次集合通"
            "信就失败：找不到内核、所需共享内存超过 GPU 上限、或无法理解 GPU 之间的链路。把 NCCL 打印的版本（NCCL_DEBUG=VERSION）与 NVIDIA 发布说"
            "明中首个支持该 GPU 的版本对比即可确认。最稳妥的办法是升级 torch，它会带来配套的 NCCL；之后再确认没有更旧的 libnccl 抢先被加载。"
        ),
    },
)
