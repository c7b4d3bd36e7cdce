"""p2p-broken: direct copies between GPUs hang, fail or damage data.

Long because it judges machines by what stands between two GPUs (ACS, IOMMU, topology), beside the lines in which drivers and NCCL tell of it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from unhang.knowledge import cann
from unhang.knowledge.cause import Cause, LogView, Signature, command
from unhang.knowledge.causes.device_mapping import PEERS_HIDDEN
from unhang.knowledge.text import COMMA, NOTHING, Text, joined, same
from unhang.model import Evidence, Finding, HostFinding, Remedy

if TYPE_CHECKING:
    from unhang.facts.gpu import Gpus, Pair
    from unhang.facts.pcie import Pcie
    from unhang.facts.snapshot import Snapshot

# The first collectives of a job: broadcasts of parameters and checks of shapes, before anything of the training itself runs.
_FIRST_COLLECTIVES = 3
_ADVICE = "from kernel command line which can lead to"


def _in_logs(view: LogView) -> Finding | None:
    # RCCL prints its advice on every machine without the option, in healthy jobs too: it counts only where something hung.
    hung = bool(view.timeouts or view.statuses or view.hits_of("collective-timeout"))
    hits = [h for h in view.hits_of(CAUSE.id) if hung or _ADVICE not in h.text]
    return CAUSE.of_hits(hits, view) or _first_collective_hung(view)


def _first_collective_hung(view: LogView) -> Finding | None:
    """Broken P2P prints nothing: all ranks of one host enter the very first collective, over P2P, and none leaves it."""
    direct = {name: at for name, at in view.nccl.transports.items() if name.startswith("P2P/")}
    if not direct or any(name.startswith("NET/") for name in view.nccl.transports) or not view.timeouts:
        return None
    if any(t.seq is None or t.seq > _FIRST_COLLECTIVES for t in view.timeouts):
        return None
    ranks = {t.at.rank for t in view.timeouts if t.at.rank is not None}
    expected = view.world_size or max((i.nranks for i in view.nccl.inits), default=0)
    if expected < 2 or ranks != set(range(expected)) or len({(t.seq, t.op) for t in view.timeouts}) > 1:
        return None
    first = view.timeouts[0]
    name, places = next(iter(direct.items()))
    return CAUSE.finding(
        standing="possible",
        says=Text(
            "all {n} ranks entered the first collective ({op}) and none left it, and NCCL had connected their GPUs by {name}",
            "全部 {n} 个 rank 都进入了第一次集合通信（{op}），没有一个出来，而 NCCL 以 {name} 连接它们的 GPU",
        ).fill(n=expected, op=first.op, name=name),
        ranks=tuple(sorted(ranks)),
        evidence=(first.at.evidence(), places[0].evidence()),
        remedies=("prove-it", "iommu-and-acs", "host-memory"),
    )


_ALL = ("host-memory", "prove-it", "iommu-and-acs")


_REASONS_ZH = {
    "chipset not supported": "芯片组不支持",
    "GPU not supported": "GPU 不支持",
    "topology not supported": "拓扑不支持",
    "disabled by registry key": "被驱动参数禁用",
    "not supported": "不支持",
}


def _on_host(host: Snapshot) -> Iterable[HostFinding]:
    from unhang.facts import gpu, kernel_log, pcie

    seen, bus, log = host.get(gpu.SUBJECT), host.get(pcie.SUBJECT), host.get(kernel_log.SUBJECT)
    if seen is not None:
        yield from _refused(seen)
    if seen is not None and bus is not None and seen.nvml_error is None and bus.virtual == "":
        # In a virtual machine the hypervisor needs access control and the IOMMU.
        yield from _redirected(seen, bus)
        yield from _translated(seen, bus)
    gpus = {g.address for g in seen.gpus} if seen is not None else set()
    # Adapters that reach into the memory of GPUs (GPUDirect RDMA) are refused in the same way.
    nics = {d.address for d in bus.devices if d.kind == "nic"} if gpus and bus is not None else set()
    for e in log.events if log is not None else ():
        if e.kind == "iommu-fault" and e.device in gpus | nics and (e.last_age_s is None or e.last_age_s < 86400):
            adapter = e.device in nics
            yield CAUSE.host_finding(
                area="kernel",
                severity="warning",
                says=Text(
                    "the IOMMU refused accesses of {what} {device} ({ago}, {n} times)", "IOMMU 拒绝了{what} {device} 的访问（{ago}，共 {n} 次）"
                ).fill(
                    what=Text("adapter", "网卡") if adapter else Text("GPU", " GPU"),
                    device=str(e.device),
                    ago=Text(kernel_log.ago(e.last_age_s), kernel_log.ago_zh(e.last_age_s)),
                    n=e.count,
                ),
                leads_to=Text("copies between {what} hang or bring wrong data", "{what}之间的拷贝会挂起，或数据出错").fill(
                    what=Text("GPUs and the adapter (GPUDirect RDMA)", "GPU 与网卡（GPUDirect RDMA）") if adapter else Text("GPUs", "GPU ")
                ),
                evidence=(Evidence(source="kernel log", text=e.text),),
                remedies=("iommu-and-acs",) if adapter else ("iommu-and-acs", "host-memory", "prove-it"),
            )


def _refused(seen: Gpus) -> Iterable[HostFinding]:
    # In MIG mode none may, which mig-slices tells.
    sliced = {g.index for g in seen.gpus if g.mig}
    refused = [p for p in seen.pairs if p.p2p not in (None, "ok", "unknown") and not {p.first, p.second} & sliced]
    for reason in dict.fromkeys(p.p2p for p in refused):
        alike = [p for p in refused if p.p2p == reason]
        by_nvlink = any((p.link or "").startswith("NV") for p in alike)
        yield CAUSE.host_finding(
            area="gpu",
            severity="warning" if by_nvlink else "note",
            says=Text("{who} cannot read each other's memory: {reason}", "{who}无法互相读取显存：{reason}").fill(
                who=_who(alike), reason=Text(str(reason), _REASONS_ZH.get(str(reason), str(reason)))
            ),
            leads_to=(
                Text("NVLink between them is not used", "它们之间的 NVLink 没有用上")
                if by_nvlink
                else Text(
                    "NCCL copies through host memory, which works; what insists on peer-to-peer fails",
                    "NCCL 经主机内存拷贝，可以工作；必须使用 peer-to-peer 的程序会失败",
                )
            ),
            evidence=tuple(Evidence(source="NVML", text=f"P2P read, GPU {p.first} and GPU {p.second}: {p.p2p}") for p in alike[:3]),
            remedies=("prove-it", "host-memory") if by_nvlink else ("host-memory",),
        )


def _who(pairs: list[Pair]) -> Text:
    """ "GPUs 0 to 7" only where that is so of any two of them."""
    from unhang.facts import gpu

    members = {i for p in pairs for i in (p.first, p.second)}
    if len(pairs) == len(members) * (len(members) - 1) // 2:
        return gpu.named(members) + Text("", " ")
    shown = joined((Text(f"{p.first} and {p.second}", f"{p.first} 与 {p.second}") for p in pairs[:3]), COMMA)
    more = Text(" and more", " 等") if len(pairs) > 3 else NOTHING
    return Text("{n} pairs of GPUs ({shown}{more})", "{n} 对 GPU（{shown}{more}）").fill(n=len(pairs), shown=shown, more=more)


def _redirected(seen: Gpus, bus: Pcie) -> Iterable[HostFinding]:
    from unhang.facts import pcie

    devices = {d.address: d for d in bus.devices}
    # Pairs of GPUs that have NVLink.
    address = {g.index: g.address for g in seen.gpus}
    joined = [{address.get(p.first), address.get(p.second)} for p in seen.pairs if (p.link or "").startswith("NV")]
    between_gpus: dict[str, tuple[str, ...]] = {}
    to_nics: dict[str, tuple[str, ...]] = {}
    for b in bus.between:
        first, second = devices.get(b.first), devices.get(b.second)
        if first is None or second is None:
            continue
        if second.kind == "gpu" and {b.first, b.second} in joined:
            continue
        # Only Mellanox's are sure to read GPU memory themselves.
        if second.kind == "nic" and second.vendor != "0x15b3":
            continue
        found = between_gpus if second.kind == "gpu" else to_nics
        found.update(
            {p: devices[p].acs or () for p in pcie.ports_between(first, second) if p in devices and "request-redirect" in (devices[p].acs or ())}
        )
    found = between_gpus | to_nics
    if found:
        who = Text("GPUs", "GPU") if between_gpus else Text("GPUs and NICs", "GPU 与网卡")
        ports = sorted(found)
        shown = same(", ".join(ports[:4])) + (Text(" and more", " 等") if len(ports) > 4 else NOTHING)
        yield CAUSE.host_finding(
            area="pcie",
            severity="warning",
            says=Text(
                "{n} PCIe bridges between {who} send their traffic around through the processor (ACS request redirect): {shown}",
                "{who}之间有 {n} 个 PCIe 桥把流量绕经处理器（ACS request redirect）：{shown}",
            ).fill(n=len(ports), who=who, shown=shown),
            leads_to=(
                Text("copies between GPUs are slow, hang or bring wrong data", "GPU 之间的拷贝变慢、挂起或数据出错")
                if between_gpus
                else Text("NICs reach GPU memory (GPUDirect RDMA) slowly or not at all", "网卡访问 GPU 显存（GPUDirect RDMA）很慢，或无法访问")
            ),
            evidence=tuple(Evidence(source=f"/sys/bus/pci/devices/{p}/config", text=f"ACS: {', '.join(found[p])}") for p in ports[:3]),
            remedies=("iommu-and-acs", "prove-it", "host-memory") if between_gpus else ("iommu-and-acs", "prove-it"),
            commands={"iommu-and-acs": command("for bridge in {ports:pci*}; do sudo setpci -s $bridge ECAP_ACS+0x6.w=0000; done", ports=ports)},
        )


def _translated(seen: Gpus, bus: Pcie) -> Iterable[HostFinding]:
    from unhang.facts import gpu

    kinds = {d.address: d.iommu_type for d in bus.devices if d.kind == "gpu"}
    address = {g.index: g.address for g in seen.gpus}
    pairs = [
        p
        for p in seen.pairs
        if p.p2p == "ok"
        and not (p.link or "").startswith("NV")
        and any((kinds.get(address.get(i) or "") or "").startswith("DMA") for i in (p.first, p.second))
    ]
    if pairs:
        one = address.get(pairs[0].first) or ""
        yield CAUSE.host_finding(
            area="pcie",
            severity="warning",
            says=Text("{gpus} copy to each other over PCIe, and the IOMMU translates addresses", "{gpus} 经 PCIe 互相拷贝，而 IOMMU 在转换地址").fill(
                gpus=gpu.named(i for p in pairs for i in (p.first, p.second))
            ),
            leads_to=Text(
                "CUDA does not support that on bare metal: the first collective may hang, or data arrives wrong",
                "CUDA 在裸机上不支持这种情况：第一次集合通信可能挂起，或数据出错",
            ),
            evidence=(Evidence(source="/sys/kernel/iommu_groups", text=f"{one}: type {kinds.get(one)}"),),
            remedies=("iommu-and-acs", "prove-it", "host-memory"),
        )


CAUSE = Cause(
    id="p2p-broken",
    role="root",
    title="Direct copies between GPUs do not work",
    title_zh="GPU 之间的直接拷贝（P2P）不正常",
    what="NCCL or a framework tried peer-to-peer copies between two GPUs, and CUDA refused them, they never finished, or they carried wrong data.",
    why=(
        "PCIe access control (ACS) or an IOMMU in the way, consumer GPUs whose driver offers no P2P, GPUs hidden from each other in containers, "
        "virtual machines, too many peers."
    ),
    signatures=(
        cann.message("P2P communication failed", remedies=("npu-by-roce",)),
        # NCCL_RUN_DIAGNOSTICS=1, of 2.31 on: it tries each direction between GPUs before the application does.
        Signature(
            needle="NCCL DIAG [INFO] p2p: ",
            pattern=r"NCCL DIAG \[INFO\] p2p: (?P<what>(?:read|write) mismatch) (?P<edge>[^\n;]{1,160}?)(?: expected=| got=|;|$)",
            standing="likely",
            says="NCCL's own check of P2P read other data than was written ({what}: {edge})",
            says_zh="NCCL 自带的 P2P 检查读到的数据与写入的不同（{what}：{edge}）",
            remedies=("host-memory", "iommu-and-acs", "prove-it"),
        ),
        Signature(
            needle="NCCL DIAG [INFO] p2p: ",
            pattern=r"NCCL DIAG \[INFO\] p2p: only (?P<passed>\d{1,9})/(?P<all>\d{1,9}) GPU-to-GPU peer accesses passed",
            standing="likely",
            says="NCCL's own check of P2P: only {passed} of {all} accesses between GPUs work",
            says_zh="NCCL 自带的 P2P 检查：GPU 之间的 {all} 种访问只有 {passed} 种可用",
            remedies=("host-memory", "iommu-and-acs", "prove-it"),
        ),
        Signature(
            needle="support faster communication broadband via P2P or IB",
            says="accelerate refuses to start: GPUs of this series offer neither P2P nor InfiniBand, and the variables that say so are not set",
            says_zh="accelerate 拒绝启动：该系列 GPU 既不支持 P2P 也不支持 InfiniBand，而声明这一点的环境变量没有设置",
            remedies=("host-memory-and-no-ib", "accelerate-launch"),
        ),
        Signature(
            needle="ailed to open CUDA IPC handle",
            pattern=r"[Ff]ailed to open CUDA IPC handle(?: ?: (?P<error>\d+ [\w ]{3,80}))?",
            unless=PEERS_HIDDEN,
            says="NCCL could not map the memory of a peer GPU (CUDA IPC)",
            says_zh="NCCL 无法映射某块对端 GPU 的内存（CUDA IPC）",
            remedies=("see-all-gpus", "host-memory", "iommu-and-acs"),
        ),
        Signature(
            needle="failed to peer with device",
            pattern=r"failed to peer with device (?P<peer>\d+)(?:\(=[0-9a-f]+\))?: (?P<error>\d+ [\w ]{3,80})",
            says="NCCL could not enable peer access to GPU {peer}: {error}",
            says_zh="NCCL 无法启用对 GPU {peer} 的 peer access：{error}",
            remedies=_ALL,
        ),
        Signature(
            needle="peer access is not supported between these two devices",
            unless=PEERS_HIDDEN,
            says="CUDA offers no peer access between two of the GPUs that were asked for it",
            says_zh="被要求启用 peer access 的 GPU 中，有两块之间 CUDA 不提供 peer access",
            remedies=("see-all-gpus", "host-memory", "prove-it"),
        ),
        Signature(
            needle="peer mapping resources exhausted",
            says="CUDA cannot map more peers: a GPU reaches at most eight others by P2P over PCIe",
            says_zh="CUDA 无法映射更多对端：一块 GPU 经 PCIe 的 P2P 最多访问另外八块",
            remedies=("host-memory", "fewer-peers"),
        ),
        Signature(
            needle="CUDA_ERROR_PEER_ACCESS_UNSUPPORTED",
            pattern=r"CUDA_ERROR_PEER_ACCESS_UNSUPPORTED\b(?!\s*=)",
            says="CUDA offers no peer access between two of the GPUs that were asked for it",
            says_zh="被要求启用 peer access 的 GPU 中，有两块之间 CUDA 不提供 peer access",
            remedies=("see-all-gpus", "host-memory", "prove-it"),
        ),
        Signature(
            needle="GPU peer-mapping (BAR1 P2P) resources are exhausted",
            standing="possible",
            says="NCCL suspects that the windows for peer mappings (BAR1) of a GPU are full",
            says_zh="NCCL 怀疑某块 GPU 用于对端映射的窗口（BAR1）已满",
            remedies=("fewer-peers", "host-memory"),
        ),
        Signature(
            needle="transport/p2p.cc",
            pattern=(
                r"transport/p2p\.cc:(?P<line>\d+) (?:\(\w+\) )?NCCL WARN (?:Cuda|HIP) failure (?:(?P<code>\d+) )?"
                r"'(?P<error>(?!out of memory|an illegal memory|unspecified launch|uncorrectable|system not)[^'\n]{3,100})'"
            ),
            standing="likely",
            says="CUDA refused a step of NCCL's P2P transport: {error}",
            says_zh="CUDA 拒绝了 NCCL 的 P2P 传输中的一步：{error}",
            remedies=("host-memory", "see-all-gpus", "prove-it"),
        ),
        Signature(
            needle="custom_all_reduce.cuh",
            pattern=r"[Ff]ailed: Cuda error .{0,200}custom_all_reduce\.cuh:\d+ '(?P<error>(?!an illegal|out of memory)[^'\n]{3,100})'",
            standing="likely",
            says="vLLM's or SGLang's own all-reduce, which needs P2P, failed: {error}",
            says_zh="vLLM 或 SGLang 自带的 all-reduce（需要 P2P）失败：{error}",
            remedies=("no-custom-all-reduce", "prove-it"),
        ),
        Signature(
            needle="Verification error @ element",
            standing="likely",
            says="CUDA's P2P sample read back other data than it had written to the peer GPU",
            says_zh="CUDA 的 P2P 示例程序读回的数据与它写入对端 GPU 的不同",
            remedies=("iommu-and-acs", "host-memory"),
        ),
        Signature(
            needle="IO_PAGE_FAULT",
            pattern=r"nvidia (?P<bus>[0-9a-f:.]+): AMD-Vi: Event logged \[IO_PAGE_FAULT",
            says="the IOMMU rejected a direct access of GPU {bus}",
            says_zh="IOMMU 拒绝了 GPU {bus} 的一次直接访问",
            remedies=("iommu-and-acs", "host-memory"),
        ),
        Signature(
            needle="Out of bounds values",
            pattern=r"# Out of bounds values : (?P<count>[1-9]\d*) FAILED",
            standing="possible",
            says="nccl-tests found {count} wrong results: data is damaged on its way between the GPUs",
            says_zh="nccl-tests 发现 {count} 个错误结果：数据在 GPU 之间传输的途中损坏",
            remedies=("prove-it", "iommu-and-acs", "host-memory"),
        ),
        Signature(
            needle="Can't enable access between nodes",
            pattern=r"Can't enable access between nodes (?P<gpu>\d+) and (?P<peer>\d+)",
            says="GPUs {gpu} and {peer} have no peer access, which the engine was built to use",
            says_zh="GPU {gpu} 与 {peer} 之间没有 peer access，而 engine 构建时就要使用它",
            remedies=(
                "prove-it",
                "iommu-and-acs",
                "no-custom-all-reduce",
            ),
        ),
        Signature(
            needle="cudaIpcOpenMemHandle",
            pattern=(
                r"cudaIpcOpenMemHandle\b.{0,200}"
                r"(?:cudaErrorInvalidDevice|cudaErrorPeerAccessUnsupported|cudaErrorMapBufferObjectFailed|invalid device context)"
            ),
            standing="likely",
            says="a process could not map the GPU memory of another one (CUDA IPC): the GPUs or the containers of the two do not allow it",
            says_zh="某个进程无法映射另一个进程的 GPU 内存（CUDA IPC）：两者的 GPU 或容器不允许",
            remedies=(
                "see-all-gpus",
                "prove-it",
                "no-custom-all-reduce",
            ),
        ),
        Signature(
            needle="AMD-Vi: Event logged [IO_PAGE_FAULT",
            pattern=r"(?<!\S: )AMD-Vi: Event logged \[IO_PAGE_FAULT device=(?P<bus>[0-9a-f:.]+)",
            standing="possible",
            says="the IOMMU rejected a direct access of the device {bus}: P2P between GPUs fails so where that is a GPU",
            says_zh="IOMMU 拒绝了设备 {bus} 的一次直接访问：如果它是 GPU，GPU 之间的 P2P 就是这样失败的",
            remedies=(
                "iommu-and-acs",
                "prove-it",
                "host-memory",
            ),
        ),
        Signature(
            needle="DMAR: [DMA ",
            pattern=r"DMAR: \[DMA (?:Read|Write)[^\]]{0,20}\] Request device \[?(?P<bus>[0-9a-f:.]+)\]?",
            standing="possible",
            says="the IOMMU rejected a direct access of the device {bus}: P2P between GPUs fails so where that is a GPU",
            says_zh="IOMMU 拒绝了设备 {bus} 的一次直接访问：如果它是 GPU，GPU 之间的 P2P 就是这样失败的",
            remedies=(
                "iommu-and-acs",
                "prove-it",
                "host-memory",
            ),
        ),
        Signature(
            needle="from kernel command line which can lead to",
            pattern='Missing "iommu=pt" from kernel command line',
            standing="possible",
            says="RCCL misses iommu=pt on the kernel's command line, without which P2P between AMD GPUs may hang",
            says_zh="RCCL 发现内核启动参数缺少 iommu=pt，没有它，AMD GPU 之间的 P2P 可能挂起",
            remedies=(
                "iommu-and-acs",
                "host-memory",
            ),
        ),
        # RCCL's own words: the export of a buffer to the other processes, which P2P between them needs.
        Signature(
            needle="hipIpcGetMemHandle failed",
            pattern=r"transport/p2p\.cc:\d+ (?:\(\w+\) )?NCCL WARN hipIpcGetMemHandle failed ?: (?P<error>[\w ]{3,80})",
            standing="likely",
            says="the driver refused to share a buffer of one GPU with the other processes (HIP IPC): {error}",
            says_zh="驱动拒绝把某块 GPU 的缓冲区共享给其他进程（HIP IPC）：{error}",
            remedies=_ALL,
        ),
    ),
    in_logs=_in_logs,
    on_host=_on_host,
    remedies=(
        Remedy(
            id="driver-and-nccl",
            says="This GPU is new: first take the newest driver and an NCCL of 2.26.2 or later; earlier ones fail or hang on it.",
            says_zh="这是新款 GPU：先升级到最新的驱动和 2.26.2 或更新的 NCCL；更早的版本在它上面会失败或挂起。",
            command="nvidia-smi --query-gpu=name,driver_version --format=csv; python -c 'import torch; print(torch.cuda.nccl.version())'",
        ),
        Remedy(
            id="npu-by-roce",
            says="Let HCCL reach the NPUs of the same host through their network ports.",
            says_zh="让 HCCL 通过网口访问同一主机内的 NPU。",
            env={"HCCL_INTRA_ROCE_ENABLE": "1"},
            verify="npu-smi info; npu-smi info -t topo",
        ),
        Remedy(
            id="host-memory",
            says=(
                "Let NCCL go through host memory instead of P2P; slower, and right on every machine. NCCL_P2P_LEVEL=PIX or NVL keeps P2P for the "
                "pairs where it works."
            ),
            says_zh=(
                "让 NCCL 改走主机内存而不用 P2P：速度慢一些，但在任何机器上都正确。NCCL_P2P_LEVEL=PIX 或 NVL 可以只对能正常工作的 GPU 对保留 P2P。"
            ),
            env={"NCCL_P2P_DISABLE": "1"},
            verify=(
                "NCCL_DEBUG=INFO torchrun --standalone --nproc-per-node 2 train.py 2>&1 | grep -E 'NCCL_P2P_DISABLE set by environment to|via SHM'"
            ),
        ),
        Remedy(
            id="host-memory-and-no-ib",
            says="Set both variables that accelerate asks for.",
            says_zh="设置 accelerate 要求的两个环境变量。",
            env={"NCCL_P2P_DISABLE": "1", "NCCL_IB_DISABLE": "1"},
            verify="NCCL_DEBUG=INFO torchrun --standalone --nproc-per-node 2 train.py 2>&1 | grep -E 'NCCL_(P2P|IB)_DISABLE set by environment to'",
        ),
        Remedy(
            id="accelerate-launch",
            says="Or start with accelerate launch, which sets them for these GPUs.",
            says_zh="或者用 accelerate launch 启动，它会为这类 GPU 自动设置。",
            command="accelerate launch --multi_gpu train.py",
        ),
        Remedy(
            id="prove-it",
            says="Prove it outside of the training: CUDA's own P2P test, and the same collective with and without P2P.",
            says_zh="在训练之外验证：运行 CUDA 自带的 P2P 测试，并分别在开启和关闭 P2P 的情况下跑同一个集合通信。",
            command=(
                "nvidia-smi topo -p2p r; p2pBandwidthLatencyTest; all_reduce_perf -b 8 -e 256M -f 2 -g 2; NCCL_P2P_DISABLE=1 all_reduce_perf -b 8 "
                "-e 256M -f 2 -g 2"
            ),
        ),
        Remedy(
            id="iommu-and-acs",
            says=(
                "Boot with iommu=pt (or intel_iommu=off, amd_iommu=off) and switch PCIe access control (ACS) off in the BIOS or on the bridges; "
                "bare metal only."
            ),
            says_zh="启动参数加 iommu=pt（或 intel_iommu=off、amd_iommu=off），并在 BIOS 或 PCIe 桥上关闭 ACS；仅适用于物理机。",
            command="cat /proc/cmdline; sudo lspci -vvv | grep -i 'ACSCtl.*SrcValid+'; dmesg | grep -iE 'DMAR|AMD-Vi|iommu' | tail",
        ),
        Remedy(
            id="see-all-gpus",
            says=(
                "Let every process of the host see all its GPUs (no CUDA_VISIBLE_DEVICES with one GPU per process, one container for all): NCCL "
                "can then find out which pairs have P2P."
            ),
            says_zh=(
                "让本机的每个进程都能看到全部 GPU（不要给每个进程只设一个 CUDA_VISIBLE_DEVICES，也不要每个容器一块卡）：这样 NCCL 才能判断哪些 "
                "GPU 对支持 P2P。"
            ),
            command="nvidia-smi topo -m; nvidia-smi topo -p2p r",
        ),
        Remedy(
            id="fewer-peers",
            says="Look at the windows (BAR1): switch Resizable BAR or Above 4G Decoding on in the BIOS, or run with eight GPUs or fewer.",
            says_zh="查看 BAR1 窗口：在 BIOS 打开 Resizable BAR 或 Above 4G Decoding，或只使用 8 块及以下 GPU。",
            command="nvidia-smi -q -d MEMORY | grep -A3 'BAR1'",
        ),
        Remedy(
            id="no-custom-all-reduce",
            says="Serve without the framework's own all-reduce; NCCL does the work then.",
            says_zh="关闭框架自带的 all-reduce，改由 NCCL 完成。",
            command="vllm serve MODEL --tensor-parallel-size 2 --disable-custom-all-reduce",
        ),
    ),
    instead={"new-gpu": {"see-all-gpus": "driver-and-nccl", "prove-it": "driver-and-nccl"}},
    leads_to=("rank-exception",),
    mistaken_for={
        "nvlink-nvswitch-fabric": "GPUs that NVLink connects fail for other reasons: links that are down, or a fabric manager that does not run",
        "gpu-oom": "a full BAR1 window is reported as out of memory by NCCL while nvidia-smi shows memory free",
        ("collective-mismatch"): (
            "a hang in the very first collective with all GPUs at 100% points to the transport, one in the middle of training to the ranks"
        ),
        "device-mapping": "ranks that see one GPU each cannot tell which pairs have P2P",
    },
    sources=(
        "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html#gpu-to-gpu-communication",
        "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-p2p-disable",
        "https://docs.nvidia.com/cuda/cuda-c-programming-guide/index.html#peer-to-peer-memory-access",
        "https://github.com/NVIDIA/nccl/issues/631",
    ),
    hits=(
        "EI0010: [PID: 812] 2026-01-08-11:02:13.441.302 P2P communication failed. Reason: device 3 has no peer access",
        "node7:4711 NCCL DIAG [INFO] p2p: write mismatch srcRank=2 dstRank=5 path=NVL expected=0x4000000200000001 got=0x0; inspect the link",
        "node7:4711 NCCL DIAG [INFO] p2p: only 52/56 GPU-to-GPU peer accesses passed verification",
        (
            "NotImplementedError: Using RTX 4000 series doesn't support faster communication broadband via P2P or IB. Please set "
            '`NCCL_P2P_DISABLE="1"` and `NCCL_IB_DISABLE="1" or use `accelerate launch` which will do this automatically.'
        ),
        (
            "(pid=21065) node7:4711:4788 [0] transport/p2p.cc:238 NCCL WARN failed to open CUDA IPC handle : 711 peer access is not supported "
            "between these two devices"
        ),
        (
            "node7:4711:4788 [1] transport/p2p.cu:163 NCCL WARN failed to peer with device 0(=1b000): 217 peer access is not supported between "
            "these two devices"
        ),
        "RuntimeError: CUDA error: peer access is not supported between these two devices",
        "RuntimeError: CUDA error: peer mapping resources exhausted",
        "E CUDA_ERROR_PEER_ACCESS_UNSUPPORTED: peer access is not supported",
        (
            "HINT: In many cases this error indicates that the GPU peer-mapping (BAR1 P2P) resources are exhausted, which can happen on nodes "
            "with more than 8 GPUs."
        ),
        "[2026-11-03 10:00:01] node7:4711:4788 [1] transport/p2p.cc:275 NCCL WARN Cuda failure 1 'invalid argument'",
        "Failed: Cuda error /workspace/csrc/custom_all_reduce.cuh:368 'invalid argument'",
        "Verification error @ element 1: val = nan, ref = 4.000000",
        "[88123.41] nvidia 0000:41:00.0: AMD-Vi: Event logged [IO_PAGE_FAULT domain=0x0023 address=0xf2000000 flags=0x0030]",
        "# Out of bounds values : 3904 FAILED",
        ("RuntimeError: Can't enable access between nodes 2 and 3"),
        ("RuntimeError: cudaIpcOpenMemHandle(&ptr, handle, cudaIpcMemLazyEnablePeerAccess) failed: cudaErrorInvalidDevice"),
        ("[ 4711.220101] AMD-Vi: Event logged [IO_PAGE_FAULT device=21:00.0 domain=0x000b address=0x00000000f4000040 flags=0x0020]"),
        (
            "[ 4711.220101] DMAR: [DMA Write NO_PASID] Request device [3b:00.0] fault addr 0x387fa0000000 [fault reason 0x05] PTE Write ac"
            "cess is not set"
        ),
        (
            '[rank0]: node7:812:812 [0] src/init.cc:179 NCCL WARN Missing "iommu=pt" from kernel command line which can lead to system ins'
            "tablity or hang!\n"
            "[rank3]:[E1103 10:42:08.408271257 ProcessGroupNCCL.cpp:607] [Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=120, "
            "OpType=ALLREDUCE, NumelIn=1024, NumelOut=1024, Timeout(ms)=600000) ran for 600012 milliseconds before timing out."
        ),
        (
            "[2026-11-03 10:00:01] node7:512:603 [2] /src/rccl/build/hipify/src/transport/p2p.cc:256 NCCL WARN hipIpcGetMemHandle failed :"
            " invalid argument"
        ),
        ("node7:512:603 [2] /src/rccl/build/hipify/src/transport/p2p.cc:361 NCCL WARN HIP failure 'invalid argument'"),
    ),
    near_misses=(
        "node7:4711 NCCL DIAG [OK]   p2p: verified P2P access in both directions between every GPU pair (56 peer accesses)",
        "node7:4711:4788 [1] NCCL INFO Could not enable P2P between dev 1(=1b000) and dev 0(=1a000)",
        "node7:4711:4788 [0] NCCL INFO Channel 00/04 : 0[0] -> 1[1] via P2P/CUMEM",
        "node7:4711:4788 [0] NCCL INFO P2P is disabled between connected GPUs 1 and 0. You can repress this message with NCCL_IGNORE_DISABLED_P2P=1.",
        (
            "WARNING 11-03 10:00:01 custom_all_reduce.py:129] Custom allreduce is disabled because your platform lacks GPU P2P capability or P2P "
            "test failed."
        ),
        "Using RTX 3090 or 4000 series which doesn't support faster communication speedups. Ensuring P2P and IB communications are disabled.",
        "node7:4711:4788 [3] transport/p2p.cc:252 NCCL WARN Cuda failure 2 'out of memory'",
        "# Out of bounds values : 0 OK",
        "node7:4711:4788 [0] NCCL INFO NCCL_P2P_DISABLE set by environment to 1.",
        "RuntimeError: CUDA error: peer access is already enabled",
        ("[TRT-LLM] [I] Enable access between nodes 2 and 3"),
        ("cudaIpcOpenMemHandle opened 8 handles"),
        ("[    1.220101] AMD-Vi: Interrupt remapping enabled"),
        ("[    1.220101] DMAR: Intel(R) Virtualization Technology for Directed I/O"),
        ("node7:512:603 [2] /src/rccl/build/hipify/src/transport/p2p.cc:361 NCCL WARN HIP failure 'out of memory'"),
    ),
    explain={
        "en": (
            "The GPUs of this host cannot copy to each other directly, though something tried. Where CUDA refuses, it says so; where an IOMMU or "
            "PCIe access control reroutes the copies, nothing is printed: all ranks enter the first collective and none leaves it, with the GPUs "
            "at 100%, or results are wrong. Consumer cards (RTX 40 and 50) offer no P2P at all with the standard driver. NCCL_P2P_DISABLE=1 "
            "proves it within a minute and costs some speed. The real repair is in the BIOS and on the kernel's command line, or to let every "
            "process see all GPUs."
        ),
        "zh": (
            "这台主机上的 GPU 之间无法直接拷贝，但有程序尝试了。CUDA 拒绝时会明说；如果是 IOMMU 或 PCIe ACS 改变了数据路径，则什么都不打印：所有进"
            "程进入第一个集合通信后都出不来，GPU 利用率 100%，或者结果错误。消费级显卡（RTX 40、50 系列）在标准驱动下完全不支持 P2P。设置 "
            "NCCL_P2P_DISABLE=1 一分钟内就能验证，代价是速度略降。真正的修复在 BIOS 和内核启动参数里，或者让每个进程都能看到全部 GPU。"
        ),
    },
)
