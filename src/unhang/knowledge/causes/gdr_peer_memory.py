"""gdr-peer-memory: GPUDirect RDMA cannot register or reach GPU memory."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from unhang.knowledge import other_libraries
from unhang.knowledge.cause import Cause, Signature
from unhang.knowledge.causes import limits
from unhang.knowledge.text import Text
from unhang.model import Evidence, HostFinding, Remedy

if TYPE_CHECKING:
    from unhang.facts.snapshot import Snapshot

_STATUS = r"(?:error |status=)(?:\w+\()?(?P<status>{})\b"
_MODULE = ("load-the-module", "no-dmabuf", "no-gpudirect")
_ACCESS = ("no-gpudirect", "acs-off", "load-the-module")


def _on_host(host: Snapshot) -> Iterable[HostFinding]:
    from unhang.facts import infiniband, network

    seen = host.get(infiniband.SUBJECT)
    if seen is None or not seen.gpus or seen.peer_memory is not None or seen.dmabuf is not False or not infiniband.active(seen):
        return
    # GPUDirect RDMA is for data centre and professional GPUs.
    if all("GeForce" in model for model in seen.gpus):
        return
    closed = "Open Kernel Module" not in (seen.gpu_driver or "")
    old = Text(f"kernel {seen.kernel} is older than 5.12", f"内核 {seen.kernel} 早于 5.12")
    why = Text("the GPU driver is the closed one", "GPU 驱动是闭源版") if closed else old
    yield CAUSE.host_finding(
        area="infiniband",
        severity="warning" if network.several_hosts(host) else "note",
        says=Text(
            "adapters cannot reach GPU memory: nvidia_peermem is not loaded, and there is no DMA-BUF ({why})",
            "网卡无法直接访问 GPU 显存：nvidia_peermem 没有加载，也没有 DMA-BUF（{why}）",
        ).fill(why=why),
        leads_to=Text(
            "traffic between hosts takes the detour through host memory: it works, at a half or a third of the speed",
            "主机间的流量绕经主机内存：能用，但速度只有一半或三分之一",
        ),
        evidence=(Evidence(source="/sys/module", text="nvidia_peermem and nv_peer_mem are not there"),),
        remedies=("load-the-module", "dmabuf-instead"),
    )


CAUSE = Cause(
    id="gdr-peer-memory",
    role="root",
    title="GPUDirect RDMA cannot use GPU memory",
    title_zh="GPUDirect RDMA 无法使用显存",
    what="The adapter could not register GPU memory, or its accesses to it were rejected. Only traffic between hosts is concerned.",
    why=(
        "nvidia_peermem is missing or does not fit driver and OFED, DMA-BUF is not supported by kernel or adapter, or PCIe access control (ACS) "
        "and IOMMU reroute the accesses."
    ),
    signatures=(
        Signature(
            needle="Call to ibv_reg_mr",
            pattern=r"Call to (?P<call>ibv_reg_mr(?:_iova2)?) failed with error Bad address",
            says="the adapter could not register GPU memory ({call}: Bad address)",
            says_zh="网卡无法注册显存（{call}：Bad address）",
            remedies=_MODULE,
        ),
        Signature(
            needle="ibv_reg_dmabuf_mr",
            pattern=r"ibv_reg_dmabuf_mr(?: \(\w+\))? failed(?: with error |: )(?P<error>[A-Z][\w ]{3,60})",
            says="the adapter could not register GPU memory by DMA-BUF: {error}",
            says_zh="网卡无法通过 DMA-BUF 注册显存：{error}",
            remedies=("no-dmabuf", "load-the-module", "upgrade-nccl"),
        ),
        Signature(
            needle="mlx5dv_reg_dmabuf_mr failed",
            pattern=r"mlx5dv_reg_dmabuf_mr failed with error (?P<error>[A-Z][\w ]{3,60})",
            says="the adapter could not register GPU memory by DMA-BUF (Direct NIC): {error}",
            says_zh="网卡无法通过 DMA-BUF 注册显存（Direct NIC）：{error}",
            remedies=("no-dmabuf", "load-the-module", "upgrade-nccl"),
        ),
        Signature(
            needle="Got completion ",
            pattern=rf"Got completion (?:from peer (?P<peer>\S+) )?with {_STATUS.format('4|10|11')}",
            standing="likely",
            says="the adapter's access to memory was rejected (completion status {status}): PCIe access control (ACS) or the peer memory module",
            says_zh="网卡对内存的访问被拒绝（完成状态 {status}）：问题在 PCIe 访问控制（ACS）或 peer memory 模块",
            remedies=_ACCESS,
        ),
        Signature(
            needle="Got completion ",
            pattern=rf"Got completion (?:from peer (?P<peer>\S+) )?with {_STATUS.format('9')}",
            standing="possible",
            says="the peer refused an RDMA request (completion status 9)",
            says_zh="对端拒绝了一个 RDMA 请求（完成状态 9）",
            remedies=_ACCESS,
        ),
        Signature(
            needle="local access violation work queue error",
            standing="likely",
            says="the adapter reported an access violation of a queue: PCIe access control (ACS) or the peer memory module",
            says_zh="网卡报告某个队列访问违规：问题在 PCIe 访问控制（ACS）或 peer memory 模块",
            remedies=_ACCESS,
        ),
        Signature(
            needle="invalid request local work queue error",
            standing="possible",
            says="the adapter refused a request of a queue: a registration of memory that it does not have, or PCIe access control (ACS)",
            says_zh="网卡拒绝了某个队列的请求：请求用到了网卡没有的内存注册，或者问题在 PCIe 访问控制（ACS）",
            remedies=_ACCESS,
        ),
        Signature(
            needle="that ACS is enabled, which breaks the GPU Direct RDMA protocol",
            standing="likely",
            says="NCCL suspects that PCIe access control (ACS) breaks GPUDirect RDMA",
            says_zh="NCCL 怀疑 PCIe 访问控制（ACS）使 GPUDirect RDMA 无法正常工作",
            remedies=("acs-off", "no-gpudirect"),
        ),
        Signature(
            needle="could not insert 'nvidia_peermem'",
            pattern=r"could not insert 'nvidia_peermem': (?P<error>[\w ]{3,60})",
            says="the module nvidia_peermem cannot be loaded: {error}",
            says_zh="模块 nvidia_peermem 无法加载：{error}",
            remedies=("rebuild-the-module", "dmabuf-instead"),
        ),
        Signature(
            needle="ib_register_peer_memory_client",
            pattern=r"nvidia_peermem: (?:disagrees about version of symbol|Unknown symbol) ib_register_peer_memory_client",
            says="the module nvidia_peermem was not built against the InfiniBand stack that runs",
            says_zh="模块 nvidia_peermem 不是针对正在运行的 InfiniBand 软件栈编译的",
            remedies=("rebuild-the-module", "dmabuf-instead"),
        ),
        Signature(
            needle="nv_peer_mem, or nvidia_peermem detected",
            standing="likely",
            says="NVSHMEM found no peer memory module and skips the InfiniBand transport",
            says_zh="NVSHMEM 找不到 peer memory 模块，跳过了 InfiniBand 传输",
            remedies=("load-the-module", "dmabuf-instead"),
        ),
        Signature(
            needle="Unable to use GIN: Peermem is not supported",
            says="NCCL's GPU-initiated networking finds neither the peer memory module nor DMA-BUF",
            says_zh="NCCL 的 GPU-initiated networking 既找不到 peer memory 模块，也找不到 DMA-BUF",
            remedies=("load-the-module", "dmabuf-instead"),
        ),
        Signature(
            needle="Failed to create gpu umem with nvidia-peermem mode",
            says="DOCA could not register GPU memory, by DMA-BUF or by nvidia_peermem",
            says_zh="DOCA 无法注册显存，无论通过 DMA-BUF 还是 nvidia_peermem",
            remedies=("load-the-module", "dmabuf-instead"),
        ),
        Signature(
            needle="NET/OFI Unable to register memory",
            pattern=r"NET/OFI Unable to register memory \(type = (?!1\))(?P<type>\d+)\)[^\n]{0,40}RC: -?(?P<code>\d+)",
            says="libfabric could not register memory of type {type} with the adapter (error {code})",
            says_zh="libfabric 无法向网卡注册类型为 {type} 的内存（错误 {code}）",
            remedies=("upgrade-the-plugin", "dmabuf-instead", "locked-memory"),
        ),
        Signature(
            needle="Bad address",
            pattern=(
                r"ibv_(?:exp_)?reg_mr\([^)\n]{0,200}\) failed: Bad address|(?:[Ff]ailed to (?:register|reg) (?:memory|MR|GPU)[^\n]{0,80}|"
                r"ibv_reg_mr[^\n]{0,60} )(?:: )?Bad address"
            ),
            standing="likely",
            says="the adapter could not register memory (Bad address), as it does with GPU memory and no peer memory module",
            says_zh="网卡无法注册内存（Bad address），没有 peer memory 模块而注册显存时会这样",
            remedies=_MODULE,
        ),
        Signature(
            needle="ERROR detected invalid context, skipping further processing",
            pattern=r"nvidia-?_?peermem nv_get_p2p_free_callback",
            standing="possible",
            says="nvidia_peermem met memory that was freed before its registration ended",
            says_zh="nvidia_peermem 遇到了注册结束之前就被释放的内存",
            remedies=("rebuild-the-module", "dmabuf-instead"),
        ),
        Signature(
            needle="Couldn't allocate MR",
            near="GPU buffer|cuMemAlloc|hipMalloc|use_cuda|use_rocm",
            standing="likely",
            says="perftest could not register GPU memory with the adapter: the peer memory module is missing, or DMA-BUF does not work",
            says_zh="perftest 无法向网卡注册显存：缺少 peer memory 模块，或者 DMA-BUF 不可用",
            remedies=(
                "load-the-module",
                "rebuild-the-module",
                "dmabuf-instead",
            ),
        ),
        Signature(
            needle="RegisterRdmaMemoryRegion failed",
            pattern=r"RegisterRdmaMemoryRegion failed.{0,120}?size: ?(?P<size_bytes>\d+).{0,60}?errno: ?(?P<errno>\d+)",
            standing="likely",
            says="the adapter could not register {size_bytes} bytes of memory (errno {errno}), as it does with GPU memory and no peer memory module",
            says_zh="网卡无法注册 {size_bytes} 字节的内存（errno {errno}），没有 peer memory 模块而注册显存时会这样",
            remedies=(
                "load-the-module",
                "dmabuf-instead",
            ),
        ),
        Signature(
            needle="Couldn't register GPU MR",
            says="the adapter could not register GPU memory",
            says_zh="网卡无法注册显存",
            remedies=(
                "load-the-module",
                "rebuild-the-module",
            ),
        ),
    ),
    on_host=_on_host,
    remedies=(
        other_libraries.EFA_PLUGIN,
        Remedy(
            id="load-the-module",
            says="Load nvidia_peermem on every host (on the host, not in the container), also after a reboot.",
            says_zh="在每台主机上（不是容器里）加载 nvidia_peermem，并设为开机加载。",
            command="sudo modprobe nvidia_peermem && echo nvidia_peermem | sudo tee /etc/modules-load.d/nvidia-peermem.conf",
            verify="lsmod | grep peermem; NCCL_DEBUG=INFO torchrun --nnodes 2 --nproc-per-node 8 train.py 2>&1 | grep -m1 GDRDMA",
        ),
        Remedy(
            id="no-dmabuf",
            says="Let NCCL use the peer memory module instead of DMA-BUF (NCCL 2.12 and later).",
            says_zh="让 NCCL 使用 peer memory 模块而不是 DMA-BUF（NCCL 2.12 及以上）。",
            env={"NCCL_DMABUF_ENABLE": "0"},
            verify="NCCL_DEBUG=INFO torchrun --nnodes 2 --nproc-per-node 8 train.py 2>&1 | grep 'NCCL_DMABUF_ENABLE set by environment to'",
        ),
        Remedy(
            id="no-gpudirect",
            says="Run once without GPUDirect RDMA, through host memory: if it works, the cause is proven. Slower between hosts.",
            says_zh="关闭 GPUDirect RDMA、改走主机内存再运行一次：如果正常，就证实了原因。主机间会变慢。",
            env={"NCCL_NET_GDR_LEVEL": "LOC"},
            verify="NCCL_DEBUG=INFO torchrun --nnodes 2 --nproc-per-node 8 train.py 2>&1 | grep -c GDRDMA",
        ),
        Remedy(
            id="acs-off",
            says=(
                "Switch PCIe access control (ACS) off on the bridges between GPU and adapter, and the IOMMU to pass-through (iommu=pt), in BIOS "
                "and kernel; in virtual machines let the adapter use ATS instead."
            ),
            says_zh="关闭 GPU 与网卡之间 PCIe 桥上的 ACS，并把 IOMMU 设为直通（iommu=pt），在 BIOS 和内核启动参数里设置；虚拟机则让网卡使用 ATS。",
            command="sudo lspci -vvv | grep -i 'ACSCtl.*SrcValid+'; cat /proc/cmdline",
        ),
        Remedy(
            id="rebuild-the-module",
            says=(
                "Install the InfiniBand stack (OFED, DOCA) first and the GPU driver after it, so that nvidia_peermem is built against it; do so "
                "again after each upgrade of either."
            ),
            says_zh="先安装 InfiniBand 软件栈（OFED、DOCA），再安装 GPU 驱动，使 nvidia_peermem 针对它编译；任意一方升级后都要重做。",
            command="modinfo nvidia_peermem | grep -E 'version|depends'; ofed_info -s; dmesg | grep -i peermem",
        ),
        Remedy(
            id="dmabuf-instead",
            says="Or use DMA-BUF, which needs no module: the open GPU kernel driver, kernel 5.12 or later, and a recent rdma-core.",
            says_zh="或使用不需要该模块的 DMA-BUF：开源 GPU 内核驱动、5.12 及以上内核、较新的 rdma-core。",
            command="cat /proc/driver/nvidia/version; uname -r; NCCL_DEBUG=INFO all_reduce_perf -b 8 -e 8 -g 1 2>&1 | grep 'DMA-BUF is available'",
        ),
        Remedy(
            id="upgrade-nccl",
            says="Upgrade NCCL: releases after 2.14 fall back to the module by themselves in more cases.",
            says_zh="升级 NCCL：2.14 之后的版本在更多情况下能自动回退到该模块。",
            command='python -c "import torch; print(torch.cuda.nccl.version())"',
        ),
        limits.CAUSE.remedy("locked-memory"),
    ),
    leads_to=("rank-exception", "ib-transport-retry"),
    mistaken_for={
        "ib-config": "'Cannot allocate memory' of the same call is the locked-memory limit; 'Bad address' is GPU memory",
        "ib-transport-retry": "status 12 is a peer that does not answer; 4, 10 and 11 are rejected accesses to memory",
        "limits": "the locked-memory limit gives 'Cannot allocate memory', not 'Bad address'",
        "nccl-bug": "old releases fall back wrongly from DMA-BUF to the module; a newer NCCL mends that",
        "p2p-broken": "ACS breaks copies between GPUs of one host as well, then without any adapter in the message",
    },
    sources=(
        "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html#gpu-to-nic-communication",
        "https://docs.nvidia.com/cuda/gpudirect-rdma/index.html",
        "https://github.com/NVIDIA/nccl/issues/778",
        "https://github.com/NVIDIA/nccl/issues/928",
    ),
    hits=(
        "node7:815:864 [0] misc/ibvwrap.cc:252 NCCL WARN Call to ibv_reg_mr_iova2 failed with error Bad address",
        "[rank3]: Call to ibv_reg_mr failed with error Bad address",
        "node7:815:864 [0] misc/ibvwrap.cc:288 NCCL WARN Call to ibv_reg_dmabuf_mr failed with error Operation not supported",
        "ibv_reg_dmabuf_mr (retain) failed: Invalid argument",
        "node7:815:864 [0] misc/mlx5dvwrap.cc:61 NCCL WARN NET/MLX5: Call to mlx5dv_reg_dmabuf_mr failed with error Invalid argument",
        "node7:815:864 [0] transport/net_ib.cu:788 NCCL WARN NET/IB : Got completion with error 4, opcode 1, len 21938, vendor err 81",
        (
            "node7:815:864 [6] transport/net_ib.cc:2244 NCCL WARN NET/IB: Got completion from peer 10.0.3.5<53908> with status=10 opcode=129 "
            "len=12 vendor err 136 (Recv) localGid ::ffff:10.0.6.3 remoteGids::ffff:10.0.6.5 hca mlx5_3"
        ),
        (
            "node7:815:864 [6] transport/net_ib/p2p.cc:711 NCCL WARN NET/IB: Got completion from peer 10.0.3.5<53908> with "
            "status=IBV_WC_LOC_PROT_ERR(4) opcode=IBV_WC_SEND(0) reqSize=0 vendor_err=81"
        ),
        (
            "node7:815:864 [0] transport/net_ib.cc:1909 NCCL WARN NET/IB : Got completion from peer 10.0.3.5<33057> with status=9 opcode=0 len=0 "
            "vendor err 138 (Send)"
        ),
        "node7:815:864 [0] transport/net_ib.cc:101 NCCL WARN NET/IB : mlx5_0:1 Got async event : local access violation work queue error",
        (
            "node7:815:864 [0] transport/net_ib.cc:154 NCCL WARN NET/IB : mlx5_1:1 async fatal event on QP (0x7309dc3b): invalid request local "
            "work queue error"
        ),
        "HINT: In many cases this error indicates that ACS is enabled, which breaks the GPU Direct RDMA protocol.",
        "modprobe: ERROR: could not insert 'nvidia_peermem': Invalid argument",
        "[88.41] nvidia_peermem: disagrees about version of symbol ib_register_peer_memory_client",
        "/src/modules/transport/ibrc/ibrc.cpp:nvshmemt_init:1851: neither nv_peer_mem, or nvidia_peermem detected. Skipping transport.",
        "node7:815:864 [0] gin/gin_host.cc:88 NCCL WARN Unable to use GIN: Peermem is not supported, nor DMA-BUF.",
        "Failed to create gpu umem with nvidia-peermem mode",
        "node7:815:864 [0] register_mr_buffers:502 NCCL WARN NET/OFI Unable to register memory (type = 2) for device 0. RC: -14, Error: Bad address",
        "[node7:4711:0] ib_md.c:379  UCX  ERROR ibv_reg_mr(address=0x7f88c7200000, length=4194304, access=0xf) failed: Bad address",
        "[88123.41] nvidia-peermem nv_get_p2p_free_callback:127 ERROR detected invalid context, skipping further processing",
        (
            "cuMemAlloc() of a 131072 bytes GPU buffer\n"
            "allocated GPU buffer address at 00007f21b4000000 pointer=0x7f21b4000000\n"
            "Couldn't allocate MR\n"
            "failed to create mr"
        ),
        ("[application][error] RegisterRdmaMemoryRegion failed! addr:0x7f51c0000000, size:268435456, accessFlag:15, errno:22 (Invalid argument)"),
        ("ibv_reg_mr(pd 0x1f4b0c0, buf 0x7f1ac0200000, size = 4096, access_flags = 0x00000007)\nCouldn't register GPU MR"),
    ),
    near_misses=(
        "node7:815:864 [0] NCCL INFO NET/IB : GPU Direct RDMA Disabled for HCA 0 'mlx5_0'",
        "node7:815:864 [0] NCCL INFO DMA-BUF is available on GPU device 0",
        "node7:815:864 [0] misc/ibvwrap.cc:278 NCCL WARN Call to ibv_reg_mr_iova2 failed with error Cannot allocate memory",
        (
            "node7:815:864 [4] transport/net_ib.cc:1238 NCCL WARN NET/IB : Got completion from peer node8<37948> with error 12, opcode 2, len 1, "
            "vendor err 129"
        ),
        (
            "node7:815:864 [4] transport/net_ib.cc:1238 NCCL WARN NET/IB : Got completion from peer node8<37948> with error 5, opcode 0, len 0, "
            "vendor err 249"
        ),
        "node7:815:864 [0] NCCL INFO Channel 00/0 : 0[0] -> 8[0] [send] via NET/IB/0/GDRDMA",
        "OSError: [Errno 14] Bad address",
        "node7:815:864 [0] NCCL INFO NCCL_NET_GDR_LEVEL set by environment to LOC",
        ("Couldn't allocate MR\nfailed to create mr\nulimit -l 64"),
        ("RDMA: RegisterRdmaMemoryRegion ok, addr:0x7f51c0000000"),
        (
            "node7:93:151 [0] register_mr_buffers:545 NCCL WARN NET/OFI Unable to register memory (type = 1) for device 0. RC: -12, Error:"
            " Cannot allocate memory"
        ),
    ),
    explain={
        "en": (
            "With GPUDirect RDMA the adapter reads and writes GPU memory itself. Either it could not register that memory (Bad address, or an "
            "error of ibv_reg_dmabuf_mr), because the peer memory module is missing or does not fit; or it could, and its accesses were rejected "
            "on the way (completion status 4, 10 or 11), nearly always because PCIe access control (ACS) or an IOMMU stands between GPU and "
            "adapter. NCCL_NET_GDR_LEVEL=LOC proves it: slower, but it works. Then repair the module or the ACS setting. The line that GPU Direct "
            "RDMA is disabled is harmless by itself."
        ),
        "zh": (
            "GPUDirect RDMA 让网卡直接读写显存。要么它无法注册这段显存（Bad address，或 ibv_reg_dmabuf_mr 出错），原因是 peer memory 模块缺失或不"
            "匹配；要么注册成功，但访问途中被拒绝（完成状态 4、10 或 11），几乎总是因为 GPU 与网卡之间的 PCIe ACS 或 IOMMU。用 "
            "NCCL_NET_GDR_LEVEL=LOC 可以验证：会变慢，但能正常工作。然后修复该模块或 ACS 设置。单独出现的“GPU Direct RDMA Disabled”并不是错误。"
        ),
    },
)
