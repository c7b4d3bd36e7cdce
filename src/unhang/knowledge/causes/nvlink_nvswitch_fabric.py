"""nvlink-nvswitch-fabric: NVLink, NVSwitch or the services that manage them do not work."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from unhang.knowledge.cause import Cause, Signature
from unhang.knowledge.text import NOTHING, Text
from unhang.model import Evidence, HostFinding, Remedy

if TYPE_CHECKING:
    from unhang.facts.gpu import Gpus
    from unhang.facts.snapshot import Snapshot

_XIDS = frozenset({74, 136, 137, *range(144, 151), 155})

_MANAGER = ("start-the-manager", "reset-in-order", "match-versions")
_NVLS = ("without-nvls", "reset-in-order", "start-the-manager")


def _on_host(host: Snapshot) -> Iterable[HostFinding]:
    from unhang.facts import gpu, kernel_log

    seen = host.get(gpu.SUBJECT)
    if seen is not None:
        yield from _manager(seen)
        yield from _links(seen)
    log = host.get(kernel_log.SUBJECT)
    told = [e for e in (log.events if log else ()) if (e.kind == "xid" and e.code in _XIDS) or (e.kind == "sxid" and e.severity == "Fatal")]
    for device in dict.fromkeys(e.device for e in told):
        events = sorted((e for e in told if e.device == device), key=lambda e: e.last_age_s or 0.0)
        newest = events[0]
        what = (
            Text(f"NVSwitch {device}: fatal SXid", f"NVSwitch {device}：致命 SXid")
            if newest.kind == "sxid"
            else Text(f"GPU {device}: the NVLink error Xid", f"GPU {device}：NVLink 错误 Xid")
        )
        yield CAUSE.host_finding(
            area="kernel",
            severity="warning" if newest.last_age_s is None or newest.last_age_s < 86400 else "note",
            says=what + Text(f" {newest.code} ({kernel_log.times(newest)})", f" {newest.code}（{kernel_log.times_zh(newest)}）"),
            leads_to=Text(
                "traffic over NVLink ends with an error, or hangs; the fault may sit at either end of the link",
                "NVLink 上的流量以错误结束或挂起；故障可能在链路的任意一端",
            ),
            evidence=tuple(Evidence(source="kernel log", text=e.text) for e in events[:3]),
            remedies=("check-links", "reset-in-order", "take-it-out"),
        )


def _manager(seen: Gpus) -> Iterable[HostFinding]:
    from unhang.facts import gpu

    # Slices of a GPU need no NVLink.
    whole = [g for g in seen.gpus if not g.mig]
    unready = [g for g in whole if g.fabric in ("not-started", "in-progress") or g.fabric_error]
    manager = seen.fabric_manager
    if unready:
        states = sorted({g.fabric_error or g.fabric or "" for g in unready})
        stopped = (
            Text("; the fabric manager does not run", "；fabric manager 没有运行") if manager is not None and manager.running is False else NOTHING
        )
        yield CAUSE.host_finding(
            area="gpu",
            severity="error",
            says=Text(
                "{gpus}: not registered with the NVLink fabric ({states}){stopped}", "{gpus}：没有注册到 NVLink fabric（{states}）{stopped}"
            ).fill(gpus=gpu.named(g.index for g in unready), states=", ".join(states), stopped=stopped),
            leads_to=Text("CUDA does not start: error 802, system not yet initialized", "CUDA 无法启动：错误 802，system not yet initialized"),
            evidence=tuple(Evidence(source="NVML", text=f"{gpu.label(g)}: fabric state {g.fabric_error or g.fabric}") for g in unready[:3]),
            remedies=("start-the-manager", "reset-in-order", "match-versions"),
        )
    elif seen.nvswitches and manager is not None and manager.running is False and all(g.fabric is None for g in seen.gpus):
        # GPUs before Hopper do not tell of their registration.
        yield CAUSE.host_finding(
            area="gpu",
            severity="error",
            says=Text(
                f"there are {len(seen.nvswitches)} NVSwitches, and no fabric manager runs",
                f"有 {len(seen.nvswitches)} 个 NVSwitch，却没有运行 fabric manager",
            ),
            leads_to=Text("CUDA does not start: error 802, system not yet initialized", "CUDA 无法启动：错误 802，system not yet initialized"),
            evidence=(Evidence(source="/proc", text="no process nv-fabricmanager"),),
            remedies=("start-the-manager", "match-versions"),
        )
    driver = seen.driver or seen.nvml_driver
    if manager is not None and manager.version and driver and manager.version != driver:
        ready = any(g.fabric == "completed" for g in seen.gpus)
        yield CAUSE.host_finding(
            area="gpu",
            severity="warning" if ready else "error",
            says=Text(
                f"the fabric manager is version {manager.version}, the driver {driver}", f"fabric manager 的版本是 {manager.version}，驱动是 {driver}"
            ),
            leads_to=Text("it refuses to start with any other driver than its own", "驱动版本与它不同时，它拒绝启动")
            + (Text(", so the next boot leaves CUDA without NVLink", "，因此下次开机后 CUDA 没有 NVLink 可用") if ready else NOTHING),
            evidence=(Evidence(source="nv-fabricmanager --version", text=manager.version),),
            remedies=("match-versions", "start-the-manager"),
        )


def _links(seen: Gpus) -> Iterable[HostFinding]:
    from unhang.facts import gpu

    degraded = [g for g in seen.gpus if g.fabric_degraded]
    switched = [g for g in seen.gpus if any(link.remote_kind == "switch" for link in g.nvlinks)]
    for model in dict.fromkeys(g.name for g in switched):
        alike = [g for g in seen.gpus if g.name == model and g.error is None and not g.mig and g.nvlinks]
        up = {g.index: sum(link.active for link in g.nvlinks) for g in alike}
        fewer = [g for g in alike if up[g.index] < max(up.values())]
        degraded = [g for g in degraded if g not in fewer]
        for g in fewer:
            down = ", ".join(str(link.link) for link in g.nvlinks if not link.active)
            yield CAUSE.host_finding(
                area="gpu",
                severity="warning",
                says=Text(
                    f"{gpu.label(g)}: {up[g.index]} NVLinks are up, {max(up.values())} on its neighbours",
                    f"{gpu.label(g)}：{up[g.index]} 条 NVLink 可用，其他同型号 GPU 有 {max(up.values())} 条",
                ),
                leads_to=Text(
                    "collectives run at the pace of this GPU, or NCCL finds no NVLink path for it",
                    "集合通信的速度取决于这个 GPU，或 NCCL 为它找不到 NVLink 路径",
                ),
                evidence=(Evidence(source="NVML", text=f"{gpu.label(g)}: links {down or 'none'} inactive"),),
                remedies=("check-links", "reset-in-order", "take-it-out"),
            )
    if degraded:
        yield CAUSE.host_finding(
            area="gpu",
            severity="warning",
            says=Text("{gpus}: the NVLink fabric runs at a reduced bandwidth", "{gpus}：NVLink fabric 以降低的带宽运行").fill(
                gpus=gpu.named(g.index for g in degraded)
            ),
            leads_to=Text("collectives run at the pace of the slowest link", "集合通信的速度取决于最慢的链路"),
            evidence=(Evidence(source="NVML", text="fabric health: degraded bandwidth"),),
            remedies=("check-links", "take-it-out"),
        )


CAUSE = Cause(
    id="nvlink-nvswitch-fabric",
    role="root",
    title="NVLink, NVSwitch or their manager does not work",
    title_zh="NVLink、NVSwitch 或其管理服务不正常",
    what="The GPUs are joined by NVLink or NVSwitch, and the fabric manager, the multicast unit (NVLS), IMEX or a link itself refuses to work.",
    why=(
        "nvidia-fabricmanager is not running, was restarted under the GPUs or has another version than the driver; IMEX is missing or its channel "
        "is not in the container; a link is down."
    ),
    signatures=(
        Signature(
            needle="system not yet initialized",
            pattern=r"(?:CUDA|Cuda|cuda|802|cu[A-Z]\w+|cudaErrorSystemNotReady).{0,160}system not yet initialized",
            says="CUDA is not initialised on this host (error 802): the fabric manager of its NVSwitches is not running",
            says_zh="这台主机上 CUDA 没有初始化（错误 802）：其 NVSwitch 的 fabric manager 没有运行",
            remedies=_MANAGER,
        ),
        Signature(
            needle="CUDA_ERROR_SYSTEM_NOT_READY",
            pattern=r"CUDA_ERROR_SYSTEM_NOT_READY\b(?!\s*=)",
            says="CUDA is not initialised on this host (error 802): the fabric manager of its NVSwitches is not running",
            says_zh="这台主机上 CUDA 没有初始化（错误 802）：其 NVSwitch 的 fabric manager 没有运行",
            remedies=_MANAGER,
        ),
        Signature(
            needle="Failed to bind NVLink SHARP (NVLS)",
            pattern=(
                r"Multicast memory of size (?P<size_bytes>\d+)(?: at MC group \w+ offset \d+)? ?: CUDA error (?P<code>\d+) '(?P<error>[^'\n]{3,100})'"
                r"(?!\. Proceeding without NVLS)"
            ),
            standing="likely",
            says="NVLink multicast (NVLS) could not be set up: {error} (CUDA error {code})",
            says_zh="无法建立 NVLink 多播（NVLS）：{error}（CUDA 错误 {code}）",
            remedies=_NVLS,
        ),
        Signature(
            needle="transport/nvls.cc",
            pattern=(
                r"transport/nvls\.cc:(?P<line>\d+) (?:\(\w+\) )?NCCL WARN Cuda failure (?:(?P<code>\d+) )?"
                r"'(?P<error>(?!out of memory|an illegal memory|unspecified launch|uncorrectable|system not)[^'\n]{3,100})'"
            ),
            standing="likely",
            says="NVLink multicast (NVLS) could not be set up: {error}",
            says_zh="无法建立 NVLink 多播（NVLS）：{error}",
            remedies=_NVLS,
        ),
        Signature(
            needle="cannot be performed in the present state",
            pattern=r"(?:Cuda failure|CUDA error) 401 'the operation cannot be performed in the present state'",
            unless=r"transport/nvls\.cc|Failed to bind NVLink SHARP",
            standing="likely",
            says="CUDA refused an operation in the present state (401), as it does where NVLink multicast is not ready",
            says_zh="CUDA 拒绝在当前状态下执行某个操作（401），NVLink 多播未就绪时会这样",
            remedies=_NVLS,
        ),
        Signature(
            needle="is available but not working on this system",
            pattern=r"MNNVL \(cliqueSize (?P<gpus>\d+)\) is available but not working on this system\. Check the IMEX channel configuration",
            says="the NVLink domain spans {gpus} GPUs, but this process has no IMEX channel (/dev/nvidia-caps-imex-channels)",
            says_zh="NVLink 域跨 {gpus} 块 GPU，但该进程没有 IMEX channel（/dev/nvidia-caps-imex-channels）",
            remedies=("give-the-channel", "without-mnnvl", "check-imex"),
        ),
        Signature(
            needle="is available but not working on this system",
            pattern=r"MNNVL \(cliqueSize (?P<gpus>\d+)\) is available but not working on this system\. Check the IMEX configuration",
            says="the NVLink domain spans {gpus} GPUs, but IMEX, which exports memory between its hosts, does not work",
            says_zh="NVLink 域跨 {gpus} 块 GPU，但负责在其各主机之间导出内存的 IMEX 不工作",
            remedies=("check-imex", "give-the-channel", "without-mnnvl"),
        ),
        Signature(
            needle="MNNVL is not supported on this system",
            standing="likely",
            says="NCCL was told to use NVLink across hosts, and this system does not offer it",
            says_zh="NCCL 被要求使用跨主机的 NVLink，而这个系统不提供",
            remedies=("without-mnnvl", "check-imex"),
        ),
        Signature(
            needle="IMEX (NVLink fabric) service is not running",
            standing="likely",
            says="NCCL suspects that IMEX, which exports memory between the hosts of an NVLink domain, does not run",
            says_zh="NCCL 怀疑负责在 NVLink 域各主机之间导出内存的 IMEX 没有运行",
            remedies=("check-imex", "give-the-channel", "without-mnnvl"),
        ),
        Signature(
            needle="P2P is disabled between NVLINK connected GPUs",
            pattern=r"between NVLINK connected GPUs (?P<gpu>\d+) and (?P<peer>\d+)",
            says="GPUs {gpu} and {peer} are joined by NVLink, but the driver allows no P2P between them",
            says_zh="GPU {gpu} 与 {peer} 由 NVLink 相连，但驱动不允许它们之间使用 P2P",
            remedies=("check-links", "start-the-manager", "reset-in-order"),
        ),
        Signature(
            needle="fabric manager NVIDIA GPU driver interface version",
            pattern=r"driver interface version (?P<manager>[\d.]+) don'?t match with driver version (?P<driver>[\d.]+)",
            says="the fabric manager ({manager}) and the driver ({driver}) have different versions, so it does not start",
            says_zh="fabric manager（{manager}）与驱动（{driver}）版本不同，因此它启动不了",
            remedies=("match-versions", "start-the-manager"),
        ),
        Signature(
            needle="nvidia-fabricmanager",
            pattern=(
                r"nvidia-fabricmanager(?:\.service)?: (?:Failed with result|Main process exited, code=exited, status=[1-9]|Start request repeated "
                r"too quickly)"
            ),
            says="the fabric manager of the NVSwitches does not start",
            says_zh="NVSwitch 的 fabric manager 启动不了",
            remedies=_MANAGER,
        ),
        Signature(
            needle="nvidia-imex",
            pattern=(
                r"nvidia-imex(?:\.service)?: (?:Failed with result|Main process exited, code=exited, status=[1-9]|Start request repeated too "
                r"quickly)"
            ),
            says="IMEX, which exports memory between the hosts of an NVLink domain, does not start",
            says_zh="负责在 NVLink 域各主机之间导出内存的 IMEX 启动不了",
            remedies=("check-imex", "without-mnnvl"),
        ),
        Signature(
            needle="as all links are inActive",
            standing="likely",
            says="all NVLinks of a GPU are inactive",
            says_zh="某块 GPU 的所有 NVLink 都未激活",
            remedies=("check-links", "start-the-manager", "reset-in-order"),
        ),
        Signature(
            needle="NVLink: inactive link(s) on rank(s)",
            pattern=r"on rank\(s\) (?P<ranks>[\d, -]+) across",
            says="NCCL's own diagnosis found inactive NVLinks on the GPUs of ranks {ranks}",
            says_zh="NCCL 自身的诊断在 rank {ranks} 的 GPU 上发现未激活的 NVLink",
            remedies=("check-links", "reset-in-order"),
        ),
        Signature(
            needle="NVLink fabric health reports DEGRADED_BANDWIDTH",
            pattern=r"MNNVL busId (?P<bus>0x[0-9a-f]+) NVLink fabric",
            standing="possible",
            says="the NVLink fabric reports reduced bandwidth for GPU {bus}",
            says_zh="NVLink fabric 报告 GPU {bus} 的带宽降低",
            remedies=("check-links", "start-the-manager"),
        ),
        Signature(
            needle="NVRM: Xid",
            pattern=r"Xid \((?:PCI:)?(?P<bus>[0-9A-Fa-f:.]+)\): (?:(?P<xid>14[4-9]|150), \S{1,40} Fatal|(?P<untrained>136)\b)",
            says="GPU {bus} reported a fatal NVLink error; the fault may sit at either end of the link",
            says_zh="GPU {bus} 报告了致命的 NVLink 错误；故障可能在链路的任一端",
            remedies=("check-links", "reset-in-order", "take-it-out"),
        ),
        Signature(
            needle="NVRM: Xid",
            pattern=r"Xid \((?:PCI:)?(?P<bus>[0-9A-Fa-f:.]+)\): (?P<xid>74|137|14[4-9]|150|155)\b(?!, \S{1,40} Fatal)",
            standing="likely",
            says="GPU {bus} reported the NVLink error Xid {xid}; the fault may sit at either end of the link",
            says_zh="GPU {bus} 报告了 NVLink 错误 Xid {xid}；故障可能在链路的任一端",
            remedies=("check-links", "reset-in-order", "take-it-out"),
        ),
        Signature(
            needle="caused by previous Xid",
            pattern=r"Xid \((?:PCI:)?(?P<bus>[0-9A-Fa-f:.]+)\): 45\b.{0,200}caused by previous Xid (?P<xid>74|13[67]|14[4-9]|150|155)\b",
            standing="likely",
            says="work on GPU {bus} was ended because of the NVLink error Xid {xid}",
            says_zh="GPU {bus} 上的工作因 NVLink 错误 Xid {xid} 而被终止",
            remedies=("check-links", "reset-in-order"),
        ),
        Signature(
            needle="SXid (PCI",
            pattern=r"nvswitch(?P<switch>\d+): SXid \(PCI:(?P<bus>[0-9A-Fa-f:.]+)\): (?P<sxid>\d+), Fatal\b(?:, Link (?P<link>\d+))?",
            says="NVSwitch {switch} reported the fatal error SXid {sxid}: the switch, or a GPU at its link",
            says_zh="NVSwitch {switch} 报告了致命错误 SXid {sxid}：交换芯片，或其链路上的某块 GPU",
            remedies=("check-links", "reset-in-order", "take-it-out"),
        ),
        Signature(
            needle="SXid (PCI",
            pattern=r"nvswitch(?P<switch>\d+): SXid \(PCI:(?P<bus>[0-9A-Fa-f:.]+)\): (?P<sxid>\d+), (?!Fatal)",
            standing="likely",
            says="NVSwitch {switch} reported SXid {sxid}: an error of the switch, or of a GPU at its link",
            says_zh="NVSwitch {switch} 报告了 SXid {sxid}：交换芯片或其链路上某块 GPU 的错误",
            remedies=("check-links", "reset-in-order", "take-it-out"),
        ),
        Signature(
            needle="uncorrectable NVLink error",
            standing="likely",
            says="CUDA met an uncorrectable NVLink error",
            says_zh="CUDA 遇到不可纠正的 NVLink 错误",
            remedies=("check-links", "reset-in-order", "take-it-out"),
        ),
        Signature(
            needle="system not yet initialized",
            pattern=r"(?:\b[Ee]rror \(|-> ?|returned \d+.{0,20})(?:[^\n()]{0,120}\):? ?)?system not yet initialized$",
            standing="likely",
            says="CUDA is not initialised on this host (error 802): the fabric manager of its NVSwitches is not running",
            says_zh="这台主机上 CUDA 没有初始化（错误 802）：其 NVSwitch 的 fabric manager 没有运行",
            remedies=(
                "start-the-manager",
                "match-versions",
            ),
        ),
    ),
    on_host=_on_host,
    remedies=(
        Remedy(
            id="start-the-manager",
            says=(
                "Start the fabric manager and have it started at every boot; with systems that carry it in the driver's NVLink 5 stack, nvlsm as "
                "well."
            ),
            says_zh="启动 fabric manager，并设为开机自启；NVLink 5 的系统还需要 nvlsm。",
            command="sudo systemctl enable --now nvidia-fabricmanager; systemctl status nvidia-fabricmanager --no-pager",
            verify="nvidia-smi -q | grep -A3 -i '^ *Fabric'; python -c \"import torch; print(torch.cuda.device_count())\"",
        ),
        Remedy(
            id="reset-in-order",
            says=(
                "If the manager was restarted while the GPUs were in use: stop all GPU processes, then manager, GPU reset, manager, in this "
                "order; or reboot."
            ),
            says_zh="如果在 GPU 使用过程中重启过 fabric manager：先停掉所有 GPU 进程，然后依次停止管理服务、重置 GPU、启动管理服务；或直接重启主机。",
            command="sudo systemctl stop nvidia-fabricmanager && sudo nvidia-smi --gpu-reset && sudo systemctl start nvidia-fabricmanager",
            verify="nvidia-smi -q | grep -A3 -i '^ *Fabric'",
        ),
        Remedy(
            id="match-versions",
            says="Install the fabric manager of exactly the driver's version, and hold both packages back from single upgrades.",
            says_zh="安装与驱动版本完全一致的 fabric manager，并锁定这两个软件包，避免单独升级。",
            command="cat /proc/driver/nvidia/version; nv-fabricmanager --version",
        ),
        Remedy(
            id="without-nvls",
            says="Run without NVLink multicast until the host is repaired (NCCL 2.18 and later); all-reduce on NVSwitch gets slower.",
            says_zh="在主机修好之前关闭 NVLink 多播（NCCL 2.18 及以上）；NVSwitch 上的 all-reduce 会变慢。",
            env={"NCCL_NVLS_ENABLE": "0"},
            verify="NCCL_DEBUG=INFO torchrun --standalone --nproc-per-node 8 train.py 2>&1 | grep 'NCCL_NVLS_ENABLE set by environment to'",
        ),
        Remedy(
            id="give-the-channel",
            says="Give the container the IMEX channel: the ComputeDomain of NVIDIA's DRA driver in Kubernetes, or the device itself with docker.",
            says_zh="把 IMEX channel 交给容器：Kubernetes 用 NVIDIA DRA 驱动的 ComputeDomain，docker 直接挂载设备。",
            command="ls -l /dev/nvidia-caps-imex-channels; docker run --device /dev/nvidia-caps-imex-channels/channel0 --gpus all IMAGE",
        ),
        Remedy(
            id="check-imex",
            says="See whether IMEX runs on every host of the domain with the same list of hosts.",
            says_zh="检查 NVLink 域内每台主机上的 IMEX 是否都在运行，且主机列表一致。",
            command="nvidia-imex-ctl -N; systemctl status nvidia-imex --no-pager; cat /etc/nvidia-imex/nodes_config.cfg",
        ),
        Remedy(
            id="without-mnnvl",
            says="Run without NVLink between hosts (NCCL 2.21 and later); InfiniBand or Ethernet carries that part.",
            says_zh="不使用跨主机的 NVLink（NCCL 2.21 及以上），改由 InfiniBand 或以太网承担。",
            env={"NCCL_MNNVL_ENABLE": "0"},
            verify="NCCL_DEBUG=INFO torchrun --nnodes 2 --nproc-per-node 4 train.py 2>&1 | grep 'NCCL_MNNVL_ENABLE set by environment to'",
        ),
        Remedy(
            id="check-links",
            says="See which links are down or count errors; drain the host where a link does not come back after a reset.",
            says_zh="查看哪些链路断开或有错误计数；重置后链路仍不恢复的主机应移出任务。",
            command="nvidia-smi nvlink --status; nvidia-smi nvlink --errorcounters; nvidia-smi topo -m; dmesg -T | grep -E 'SXid|Xid'",
        ),
        Remedy(
            id="take-it-out",
            says="Take the host out of the job and run on; where the error is back after a reset, the card, switch or board has to be replaced.",
            says_zh="把这台主机移出任务后继续运行；如果重置后错误再次出现，需要更换 GPU 卡、交换芯片或主板。",
            command='scontrol update nodename="$(hostname -s)" state=drain reason="NVLink fault" || kubectl cordon "$(hostname)"',
        ),
    ),
    leads_to=("rank-exception", "p2p-broken", "illegal-memory-access", "device-mapping"),
    mistaken_for={
        "gpu-hardware": "a GPU that reports Xids of its own kind (48, 79, 119) is at fault itself, and takes its links down with it",
        "container-capability": "an IMEX channel that is missing only inside the container is a device that was not passed to it",
        "driver-reboot-needed": "CUDA error 803 (driver and library differ) is another one than 802",
        "gpu-oom": "the same line of NVLS with 'out of memory' means that the GPU is full",
    },
    sources=(
        "https://docs.nvidia.com/datacenter/tesla/fabric-manager-user-guide/index.html",
        "https://docs.nvidia.com/multi-node-nvlink-systems/imex-guide/index.html",
        "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-nvls-enable",
        "https://github.com/NVIDIA/nccl/issues/976",
    ),
    hits=(
        (
            "UserWarning: CUDA initialization: Unexpected error from cudaGetDeviceCount(). Did you run some cuda functions before calling "
            "NumCudaDevices() that might have already set an error? Error 802: system not yet initialized (Triggered internally at "
            "../c10/cuda/CUDAFunctions.cpp:109.)"
        ),
        "RuntimeError: cuda runtime error (802) : system not yet initialized at /src/aten/src/THC/THCGeneral.cpp:50",
        "[rank2]: Cuda failure 802 'system not yet initialized'",
        "node7: Test CUDA failure common.cu:941 'system not yet initialized'",
        'CUDA error at simpleP2P.cu:66 code=802(cudaErrorSystemNotReady) "cudaGetDeviceCount(&n)": CUDA_ERROR_SYSTEM_NOT_READY',
        (
            "[rank0]: Failed to bind NVLink SHARP (NVLS) Multicast memory of size 2097152 : CUDA error 401 'the operation cannot be performed in "
            "the present state'. "
        ),
        "node7:4711:4788 [0] transport/nvls.cc:165 NCCL WARN Cuda failure 'invalid argument'",
        (
            "[2026-11-03 10:00:01] node7:4711:4788 [1] transport/nvls.cc:254 NCCL WARN Cuda failure 401 'the operation cannot be performed in the "
            "present state'"
        ),
        "[rank1]: Cuda failure 401 'the operation cannot be performed in the present state'",
        (
            "[2026-11-03 10:00:01] node7:4711:4788 [0] mnnvl.cc:62 NCCL WARN MNNVL (cliqueSize 8) is available but not working on this system. "
            "Check the IMEX channel configuration (/dev/nvidia-caps-imex-channels). Set NCCL_MNNVL_ENABLE=0 to ignore this issue."
        ),
        (
            "node7:4711:4788 [0] mnnvl.cc:66 NCCL WARN MNNVL (cliqueSize 32) is available but not working on this system. Check the IMEX "
            "configuration (nvidia-imex-ctl -N). Set NCCL_MNNVL_ENABLE=0 to ignore this issue."
        ),
        "node7:4711:4788 [0] init.cc:1402 NCCL WARN MNNVL is not supported on this system",
        "HINT: In many cases this error indicates that the IMEX (NVLink fabric) service is not running or is misconfigured on MNNVL systems.",
        (
            "node7:4711:4788 [0] graph/paths.cc:307 NCCL WARN P2P is disabled between NVLINK connected GPUs 1 and 0. This should not be the case "
            "given their connectivity, and is probably due to a hardware issue."
        ),
        (
            "nv-fabricmanager[2210]: fabric manager NVIDIA GPU driver interface version 550.54.15 don't match with driver version 550.90.07. "
            "Please update with matching NVIDIA driver package."
        ),
        "systemd[1]: nvidia-fabricmanager.service: Failed with result 'exit-code'.",
        "systemd[1]: nvidia-imex.service: Main process exited, code=exited, status=1/FAILURE",
        "NVML: Unable to retrieve NVLink information as all links are inActive",
        "NVLink: inactive link(s) on rank(s) 3, 11 across 16 ranks in comm 0x6b1d00ff",
        "node7:4711:4788 [0] NCCL INFO MNNVL busId 0x1b000 NVLink fabric health reports DEGRADED_BANDWIDTH (healthMask 0x1)",
        "NVRM: Xid (PCI:0000:d4:00): 149, NETIR_LINK_EVT Fatal XC0 i0 Link 08 (0x024501c6 0x00000000 0x00000000 0x00000000 0x00000000 0x00000000)",
        "NVRM: Xid (PCI:0000:dc:00): 45, pid=4720, name=python3, Ch 00000001 caused by previous Xid 149",
        "NVRM: Xid (PCI:0000:66:00): 145, RLW_REMAP Nonfatal XC1 i0 Link 13 (0x0409a0c2 0x00000008 0x00000001 0x00000000 0x00100000 0x00000004)",
        (
            "NVRM: Xid (PCI:0000:1b:00): 74, pid='<unknown>', name=<unknown>, NVLink: fatal error detected on link 6(0x10000, 0x0, 0x0, 0x0, 0x0, "
            "0x0, 0x0)"
        ),
        "nvidia-nvswitch1: SXid (PCI:0000:c1:00.0): 20034, Fatal, Link 30 LTSSM Fault Up",
        "nvidia-nvswitch1: SXid (PCI:0000:c1:00.0): 24007, Severity 1 Engine instance 12 Sub-engine instance 00",
        "RuntimeError: CUDA error: uncorrectable NVLink error detected during the execution",
        ("  what():  Error (burn.cpp:214): system not yet initialized"),
        ("-> system not yet initialized"),
    ),
    near_misses=(
        "node7:4711:4788 [0] NCCL INFO NVLS multicast support is available on dev 0 (NVLS_NCHANNELS 16)",
        "node7:4711:4788 [0] NCCL INFO NVLS multicast support is not available on dev 0 (NVLS_NCHANNELS 0)",
        (
            "node7:4711:4788 [0] transport/nvls.cc:288 NCCL WARN Failed to bind NVLink SHARP (NVLS) Multicast memory of size 2097152 : CUDA error "
            "401 'the operation cannot be performed in the present state'. Proceeding without NVLS support."
        ),
        "node7:4711:4788 [3] transport/nvls.cc:252 NCCL WARN Cuda failure 2 'out of memory'",
        "node7:4711:4788 [0] NCCL INFO MNNVL busId 0x1b000 fabric UUID 0.0 cliqueId 0x0 state 3 healthMask 0x0",
        "node7:4711:4788 [0] NCCL INFO P2P is disabled between connected GPUs 1 and 0. You can repress this message with NCCL_IGNORE_DISABLED_P2P=1.",
        "systemd[1]: Started nvidia-fabricmanager.service - FabricManager service.",
        "RuntimeError: The distributed system not yet initialized; call init_process_group first",
        "RuntimeError: CUDA error: system has unsupported display driver / cuda driver combination",
        "NVRM: Xid (PCI:0000:1b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.",
        ("INFO the scheduling system not yet initialized, waiting for 3 workers"),
    ),
    explain={
        "en": (
            "GPUs behind NVSwitches need a service, the fabric manager, before CUDA works at all: error 802 means that it does not run. It must "
            "have exactly the driver's version, and after a restart under running GPUs multicast (NVLS) stays broken until the GPUs are reset. On "
            "NVLink domains of several hosts, IMEX must run on each of them and its channel must be in the container. NCCL_NVLS_ENABLE=0 or "
            "NCCL_MNNVL_ENABLE=0 lets the job run slower meanwhile. Where the kernel log shows Xid 74, 144 to 150 or SXids, a link or chip is "
            "faulty and no service will mend it."
        ),
        "zh": (
            "位于 NVSwitch 之后的 GPU 需要先启动 fabric manager 服务，CUDA 才能工作：错误 802 表示它没有运行。它的版本必须与驱动完全一致；如果在 "
            "GPU 使用中重启了它，多播（NVLS）会一直不可用，直到重置 GPU。跨主机的 NVLink 域还要求每台主机都运行 IMEX，并把 IMEX channel 交给容器。"
            "临时可以设置 NCCL_NVLS_ENABLE=0 或 NCCL_MNNVL_ENABLE=0，以较慢的方式运行。如果内核日志里有 Xid 74、144 到 150 或 SXid，说明链路或芯片"
            "有故障，任何服务都修不好。"
        ),
    },
)
