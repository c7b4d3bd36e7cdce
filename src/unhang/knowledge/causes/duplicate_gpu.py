"""duplicate-gpu: two ranks of one communicator use the same GPU."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from unhang.knowledge.cause import Cause, Command, LogView, Signature, command
from unhang.knowledge.text import COMMA, NOTHING, Text, joined, ranks, same
from unhang.model import Evidence, Finding, HostFinding, Remedy
from unhang.patterns import lazily

if TYPE_CHECKING:
    from unhang.facts.snapshot import Snapshot

_RELEASE = lazily(r"(\d+)\.(\d+)\.(\d+)")
# What torch 2.15 pins, whose nccl2 takes the global rank modulo the number of GPUs where the script names no device (NCCLBootstrap.cpp).
_OF_NCCL2 = (2, 30, 7)
# How slices of a partitioned GPU show in logs; there the same refusal means something else.
_MIG = r"\bMIG-[0-9A-Za-z]|MIG \d+g\.\d+gb|MIG-\d+g\.\d+gb"


def _in_logs(view: LogView) -> Finding | None:
    """Every rank names one pair; together they tell how many share how many GPUs."""
    hits = view.hits_of(CAUSE.id)
    pairs = {(int(h.groups["first"]), int(h.groups["second"]), h.groups["device"]) for h in hits if "device" in h.groups}
    # Whether torch's nccl2 may have chosen the devices: it says so, or NCCL is the release that torch 2.15 pins, or a later one.
    releases = [tuple(int(n) for n in m.groups()) for v in view.nccl.versions if (m := _RELEASE.search(v)) is not None]
    newer = any("GPU/Partition" in h.signature.needle for h in view.hits_of(CAUSE.id))
    guess = ("name-the-device",) if bool(view.nccl.guessed) or newer or any(r >= _OF_NCCL2 for r in releases) else ()
    if not pairs:
        own = next((h.signature.remedies or () for h in hits), ())
        return CAUSE.of_hits(hits, view, remedies=(*guess, *own) if guess else None)
    devices = sorted({d for _, _, d in pairs})
    numbers = {r for a, b, _ in pairs for r in (a, b)}
    hosts = {h.host for h in hits if h.host is not None}
    more = Text(" and {n} more", "，另有 {n} 块").fill(n=len(devices) - 4) if len(devices) > 4 else NOTHING
    says = Text("{who} share {count} ({gpus})", "{who} 共用{count}（{gpus}）").fill(
        who=ranks(numbers),
        count=Text("one GPU", "一块 GPU") if len(devices) == 1 else Text("{n} GPUs", " {n} 块 GPU").fill(n=len(devices)),
        gpus=joined((same(_bus_id(d)) for d in devices[:4]), COMMA) + more,
    )
    # One bus id seen from two machines that NCCL takes for one: it compares host name and boot id.
    alike = [d for d in devices if len({h.host for h in hits if h.groups.get("device") == d and h.host is not None}) > 1]
    if alike and len(hosts) > 1:
        return CAUSE.of_hits(
            hits,
            view,
            says=says
            + Text(
                ", and they are on different hosts ({hosts}), which NCCL takes for one", "，而它们在不同主机（{hosts}）上，NCCL 把这些主机当成了一台"
            ).fill(hosts=joined(map(same, sorted(hosts)[:4]), COMMA)),
            remedies=("tell-hosts-apart", "set-the-device"),
        )
    commands: dict[str, Command | None] = {}
    remedies = (*guess, "set-the-device", "one-rank-per-gpu")
    if len(devices) > 1 and len(hosts) < 2:
        # They are spread over GPUs and begin again at the first: there are more of them than GPUs.
        remedies = ("one-rank-per-gpu", *guess, "set-the-device")
        commands["one-rank-per-gpu"] = command("torchrun --standalone --nproc-per-node {n:number} train.py", n=len(devices))
    return CAUSE.of_hits(hits, view, says=says, remedies=remedies, commands=commands)


def _bus_id(device: str) -> str:
    """ "1000" is 01:00.0: NCCL prints the PCI address as one hexadecimal number."""
    number = int(device, 16)
    domain, bus, slot, function = number >> 20, number >> 12 & 0xFF, number >> 4 & 0xFF, number & 0xF
    return (f"{domain:04x}:" if domain else "") + f"{bus:02x}:{slot:02x}.{function:x}"


def _on_host(host: Snapshot) -> Iterable[HostFinding]:
    from unhang.facts import gpu

    seen = host.get(gpu.SUBJECT)
    if seen is None or seen.visible is None:
        return
    named = [n.strip() for n in seen.visible.split(",") if n.strip()]
    twice = sorted({n for n in named if named.count(n) > 1})
    if twice:
        yield CAUSE.host_finding(
            area="gpu",
            severity="error",
            says=Text("CUDA_VISIBLE_DEVICES={value} names {twice} more than once", "CUDA_VISIBLE_DEVICES={value} 中 {twice} 出现了不止一次").fill(
                value=seen.visible, twice=", ".join(twice)
            ),
            leads_to=Text("CUDA then shows no GPU at all", "CUDA 于是一个 GPU 也看不到"),
            evidence=(Evidence(source="environment", text=f"CUDA_VISIBLE_DEVICES={seen.visible}"),),
            remedies=("one-rank-per-gpu",),
            commands={"one-rank-per-gpu": command("export CUDA_VISIBLE_DEVICES={gpus:name,}", gpus=dict.fromkeys(named))},
        )


CAUSE = Cause(
    id="duplicate-gpu",
    role="root",
    title="Two ranks use the same GPU",
    title_zh="两个进程使用了同一块 GPU",
    what="NCCL refuses a communicator in which two ranks sit on one GPU.",
    why=(
        "Each rank has to choose its own GPU, and some did not: torch.cuda.set_device is missing or hard-coded, more ranks are started than GPUs "
        "are visible, or a scheduler gave two workers the same one."
    ),
    signatures=(
        Signature(
            needle="Duplicate GPU detected",
            # Ranks write at once: what follows the first words may belong to another line.
            pattern=r"Duplicate GPU detected(?: : rank (?P<first>\d+) and rank (?P<second>\d+) both on CUDA device (?P<device>[0-9a-f]+))?",
            unless=_MIG,
            remedies=("set-the-device", "one-rank-per-gpu"),
        ),
        # What NCCL 2.30.7 and later write instead, before the topology is looked at.
        Signature(
            needle="Multiple Ranks are using the same GPU/Partition",
            unless=_MIG,
            says="several ranks of a communicator are on the same GPU",
            says_zh="一个通信组里有多个 rank 在同一块 GPU 上",
            remedies=("set-the-device", "one-rank-per-gpu", "share-on-purpose"),
        ),
    ),
    in_logs=_in_logs,
    on_host=_on_host,
    remedies=(
        Remedy(
            id="name-the-device",
            says=(
                "Call torch.cuda.set_device(local_rank) before init_process_group(device_id=torch.device('cuda', local_rank)). Otherwise torch 2.15 "
                "(nccl2) takes the global rank modulo the GPUs of the host, which is right only if ranks are numbered host by host."
            ),
            says_zh=(
                "先 torch.cuda.set_device(local_rank)，再 init_process_group(device_id=torch.device('cuda', local_rank))。否则 torch 2.15（nccl2）取"
                "全局 rank 对本机 GPU 数取模，只有 rank 按主机连续编号时才正确。"
            ),
            command="grep -rnE \"init_process_group|set_device|device_id\" --include='*.py' .",
        ),
        Remedy(
            id="set-the-device",
            says=(
                "Let each rank take the GPU of its local rank, before anything else touches CUDA: "
                "torch.cuda.set_device(int(os.environ['LOCAL_RANK'])); pass the same device to init_process_group(device_id=...). Remove any "
                "fixed cuda:0."
            ),
            says_zh=(
                "让每个进程在使用 CUDA 之前先选定自己的 GPU：torch.cuda.set_device(int(os.environ['LOCAL_RANK']))，并把同一设备传给 "
                "init_process_group(device_id=...)。去掉代码中写死的 cuda:0。"
            ),
            command="grep -rnE \"cuda:[0-9]|set_device|CUDA_VISIBLE_DEVICES|\\.cuda\\([0-9]\" --include='*.py' --include='*.sh' .",
            verify="NCCL_DEBUG=INFO torchrun ARGS train.py 2>&1 | grep -o 'rank [0-9]* nranks [0-9]* cudaDev [0-9]* .*busId [0-9a-f]*' | sort -u",
        ),
        Remedy(
            id="one-rank-per-gpu",
            says=(
                "Start as many ranks per host as GPUs are visible there. Under Slurm let SLURM_LOCALID choose the GPU; under Ray give each "
                "worker a whole GPU of its own."
            ),
            says_zh="每台主机启动的进程数等于其可见的 GPU 数。Slurm 下用 SLURM_LOCALID 选择 GPU；Ray 下为每个 worker 分配一整块 GPU。",
            command='echo "visible: ${CUDA_VISIBLE_DEVICES:-all}"; nvidia-smi -L | wc -l; torchrun --standalone --nproc-per-node gpu train.py',
        ),
        Remedy(
            id="tell-hosts-apart",
            says=(
                "Give each host a name of its own: NCCL hashes host name and boot id, and cloned machines or containers may share both. "
                "NCCL_HOSTID overrides them."
            ),
            says_zh="让每台主机有可区分的标识：NCCL 用主机名与 boot id 计算哈希，克隆的虚拟机或容器可能两者都相同。可用 NCCL_HOSTID 覆盖。",
            command="hostname; cat /proc/sys/kernel/random/boot_id; export NCCL_HOSTID=$(hostname)-$(hostname -I | tr -d ' \\n')",
            verify="NCCL_DEBUG=INFO torchrun ARGS train.py 2>&1 | grep 'NCCL_HOSTID set by environment to'",
        ),
        Remedy(
            id="share-on-purpose",
            says="Only where sharing is intended, as in tests: NCCL 2.30.7 and later allow it.",
            says_zh="仅当确实需要共享 GPU（例如测试）时使用：NCCL 2.30.7 及以后版本允许。",
            env={"NCCL_MULTI_RANK_GPU_ENABLE": "1"},
            verify="NCCL_DEBUG=INFO torchrun ARGS train.py 2>&1 | grep 'NCCL_MULTI_RANK_GPU_ENABLE set by environment to'",
        ),
    ),
    leads_to=("rank-exception",),
    mistaken_for={
        "device-mapping": "there a rank asks for a GPU that is not there; here two ask for the same one",
        "mig-slices": "slices of one GPU have the same PCI address, so NCCL takes them for one GPU",
        "gpu-busy-exclusive": "there another job holds the GPU; here the ranks of one job collide",
    },
    sources=(
        "https://github.com/NVIDIA/nccl/blob/master/src/init.cc",
        "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/usage/communicators.html",
        "https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.init_process_group",
        "https://github.com/NVIDIA/nccl/issues/418",
    ),
    hits=(
        (
            "[rank1]: torch.distributed.DistBackendError: NCCL error in: NCCLUtils.cpp:93, invalid usage (run with NCCL_DEBUG=WARN for details), "
            "NCCL version 2.27.7\n[rank1]: ncclInvalidUsage: This usually reflects invalid usage of NCCL library.\n[rank1]: Last error:\n"
            "[rank1]: Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 4f000"
        ),
        "node7:5122:5340 [0] init.cc:497 NCCL WARN Duplicate GPU detected : rank 2 and rank 0 both on CUDA device 1000",
        (
            "(MegatronPolicyWorker pid=5122) [2026-11-03 10:00:01] node7:5122:5340 [7] init.cc:904 NCCL WARN Duplicate GPU detected : rank 12 "
            "and rank 4 both on CUDA device e4000"
        ),
        "[1,4]<stdout>:node7:5124:5344 [0] init.cc:584 NCCL WARN Duplicate GPU detected : rank 4 and rank 0 both on CUDA device 40",
        "torch.distributed.DistBackendError: Duplicate GPU detectedTraceback (most recent call last):",
        (
            "[2026-11-03 10:00:01] node7:5122:5340 [0] init.cc:1290 (initTransportsRank) NCCL WARN Multiple Ranks are using the same "
            "GPU/Partition. Set NCCL_MULTI_RANK_GPU_ENABLE=1 to enable this configuration."
        ),
    ),
    near_misses=(
        "node7:5122:5340 [0] NCCL INFO comm 0x5581 rank 1 nranks 2 cudaDev 0 nvmlDev 0 busId 1000 commId 0x9f - Init COMPLETE",
        "RuntimeError: CUDA error: invalid device ordinal",
        "ncclInvalidUsage: This usually reflects invalid usage of NCCL library.",
        "CUDA_VISIBLE_DEVICES=MIG-3f2a9c10-55ff-5c1d-9d1e-0a1b2c3d4e5f\nDuplicate GPU detected : rank 1 and rank 0 both on CUDA device 7000",
    ),
    explain={
        "en": (
            "A communicator of NCCL wants one GPU for each rank; two ranks with the same PCI address on one host are refused before any data "
            "moves. In most cases every rank landed on GPU 0, because the script never calls torch.cuda.set_device with its local rank, or has a "
            "device fixed in the code. Otherwise more ranks than visible GPUs were started, or Slurm or Ray gave the same GPU twice. The message "
            "gives the PCI address in one number: 4f000 is 4f:00.0. If the two ranks are on different hosts, NCCL cannot tell the hosts apart "
            "(cloned machines, equal host names); set NCCL_HOSTID."
        ),
        "zh": (
            "NCCL 的通信组要求每个进程独占一块 GPU；同一主机上两个进程的 PCI 地址相同，就会在传输任何数据之前被拒绝。多数情况下，是因为脚本没有用"
            "本地 rank 调用 torch.cuda.set_device，或者代码里写死了设备，于是所有进程都落在 GPU 0 上。此外也可能是启动的进程多于可见的 GPU，或者 "
            "Slurm、Ray 把同一块 GPU 分配了两次。报错里的设备号就是连写的 PCI 地址：4f000 即 4f:00.0。如果两个进程其实在不同主机上，那是 NCCL 分"
            "不清这些主机（克隆的虚拟机、相同的主机名），需设置 NCCL_HOSTID。"
        ),
    },
)
