"""ib-transport-retry: an InfiniBand or RoCE transfer was given up after its retries."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from unhang.knowledge import cann
from unhang.knowledge.cause import Cause, Signature, command
from unhang.knowledge.causes import ib_config
from unhang.knowledge.text import NOTHING, Text
from unhang.model import Evidence, HostFinding, Remedy

if TYPE_CHECKING:
    from unhang.facts.snapshot import Snapshot

# NCCL writes the status as "error 12" (to 2.20), "status=12" (2.21) and "status=IBV_WC_RETRY_EXC_ERR(12)" (2.28).
_GAVE_UP = r"(?:error |status=)(?:\w+\()?(?P<status>{})\b"
_HCA = r"(?:(?=.{0,400}? hca (?P<device>[\w.-]+)))?"
_LOOK = ("who-died-first", "test-the-path", "gid-index", "wait-longer")

# What adapters count when transfers are lost or late on the way: each of these cost a retry.
_LOST = ("local_ack_timeout_err", "packet_seq_err", "out_of_sequence", "rnr_nak_retry_err", "roce_slow_restart")
# One packet in ten thousand: RDMA starts over from the lost packet.
_MANY = 1e-4


def _on_host(host: Snapshot) -> Iterable[HostFinding]:
    from unhang.facts import infiniband

    seen = host.get(infiniband.SUBJECT)
    if seen is None:
        return
    up = infiniband.active(seen)
    for device, port in up:
        packets = port.counters.get("port_rcv_packets", 0) + port.counters.get("port_xmit_packets", 0)
        for counter in _LOST:
            count = port.counters.get(counter, 0)
            others = sorted(p.counters.get(counter, 0) for d, p in up if (d, p) != (device, port))
            usual = others[len(others) // 2] if others else 0
            if count < 1000 or count < 10 * usual or (count < _MANY * packets if packets else not others):
                continue
            file = f"/sys/class/infiniband/{device.name}/ports/{port.number}/hw_counters/{counter}"
            each = f"{1000 * count / packets:.2g}" if packets else ""
            share = Text(f", {each} for each thousand packets", f"，每千个包 {each} 次") if packets else NOTHING
            yield CAUSE.host_finding(
                area="infiniband",
                severity="note",
                says=Text(
                    f"{device.name} port {port.number} counted {count} {counter} since its driver was loaded",
                    f"{device.name} 端口 {port.number} 自驱动加载以来 {counter} 计数为 {count}",
                )
                + share,
                leads_to=Text(
                    "a path that loses packets is slow under load, and in the end gives up: transport retry counter exceeded",
                    "丢包的路径在负载下很慢，最终放弃：transport retry counter exceeded",
                ),
                evidence=(Evidence(source=file, text=str(count)),),
                remedies=("test-the-path",),
                commands={"test-the-path": command("ib_write_bw -d {device:name} -D 60 -F; grep . {file:path}", device=device.name, file=file)},
            )


CAUSE = Cause(
    id="ib-transport-retry",
    role="root",
    title="An InfiniBand transfer was given up after its retries",
    title_zh="InfiniBand 传输重试多次后放弃",
    what="The other side of an RDMA connection did not acknowledge for all retries (completion status 12), or was never ready to receive (13).",
    why="A link that drops packets, a RoCE fabric that loses or misroutes them (GID, traffic class, flow control, MTU), or a peer that died.",
    signatures=(
        cann.message("An error CQE occurred", remedies=("who-died-first", "npu-link")),
        Signature(
            needle="Got completion from peer",
            pattern=rf"Got completion from peer (?P<peer>\S+) with {_GAVE_UP.format(12)}{_HCA}",
            standing="likely",
            says="the transfer to {peer} was given up: its retries are exceeded (status 12)",
            says_zh="到 {peer} 的传输被放弃：重试次数用尽（状态 12）",
            remedies=_LOOK,
        ),
        Signature(
            needle="Got completion from peer",
            pattern=rf"Got completion from peer (?P<peer>\S+) with {_GAVE_UP.format(13)}{_HCA}",
            standing="likely",
            says="the transfer to {peer} was given up: it was never ready to receive (status 13)",
            says_zh="到 {peer} 的传输被放弃：它一直没有准备好接收（状态 13）",
            remedies=_LOOK,
        ),
        Signature(
            needle="Got completion with error",
            pattern=rf"Got completion with {_GAVE_UP.format('12|13')}|Got completion with error \(devIndex=.{{0,40}}status=\(\w+\)(?P<wc>12|13)\b",
            standing="likely",
            says="an InfiniBand transfer was given up after its retries",
            says_zh="一次 InfiniBand 传输重试多次后放弃",
            remedies=_LOOK,
        ),
        Signature(
            needle="Got completion from peer",
            pattern=rf"Got completion from peer (?P<peer>\S+) with {_GAVE_UP.format(5)}",
            unless=r"with (?:error |status=)(?:\w+\()?(?:4|9|1[0-3])\b|local access violation",
            standing="possible",
            says="the connection to {peer} had already failed (status 5); the first error of it is not in this log",
            says_zh="到 {peer} 的连接此前已经失败（状态 5）；它的第一个错误不在这份日志里",
            remedies=("who-died-first", "test-the-path", "no-gpudirect"),
        ),
        Signature(
            needle="ransport retry count exceeded",
            pattern=r"[Tt]ransport retry count exceeded on (?P<device>[\w.-]+):(?P<port>\d+)/(?P<layer>\w+)",
            standing="likely",
            says="UCX gave up a transfer on {device} ({layer}) after its retries",
            says_zh="UCX 在 {device}（{layer}）上的一次传输重试多次后放弃",
            remedies=("who-died-first", "test-the-path", "gid-index"),
        ),
        Signature(
            needle="transport retry counter exceeded",
            standing="likely",
            says="an RDMA transfer was given up after its retries",
            says_zh="一次 RDMA 传输重试多次后放弃",
            remedies=_LOOK,
        ),
        Signature(
            needle="RETRY EXCEEDED ERROR",
            pattern=r"RETRY EXCEEDED ERROR status number (?P<status>\d+)",
            standing="likely",
            says="Open MPI's InfiniBand transport gave up a transfer after its retries",
            says_zh="Open MPI 的 InfiniBand 传输层有一次传输重试多次后放弃",
            remedies=("who-died-first", "test-the-path"),
        ),
        Signature(
            needle="InfiniBand retry count between two MPI processes has been",
            standing="likely",
            says="Open MPI's InfiniBand transport gave up a transfer after its retries",
            says_zh="Open MPI 的 InfiniBand 传输层有一次传输重试多次后放弃",
            remedies=("who-died-first", "test-the-path"),
        ),
        Signature(
            needle="IBV_WC_RETRY_EXC_ERR",
            pattern=r"IBV_WC_RETRY_EXC_ERR(?!\(12\) opcode)",
            unless=r"Got completion from peer",
            standing="likely",
            says="an RDMA transfer was given up after its retries",
            says_zh="一次 RDMA 传输重试多次后放弃",
            remedies=_LOOK,
        ),
        Signature(
            needle="Completion with error at ",
            pattern=r"Completion with error at (?P<side>client|server)",
            near=r"Failed status 12|vendor err(?:or)? 0x81|syndrom 0x81",
            standing="likely",
            says="perftest's transfer was given up after its retries, without NCCL: it is the path between the hosts",
            says_zh="perftest 的传输重试多次后放弃，其中没有 NCCL：问题在主机之间的路径",
            remedies=("test-the-path", "gid-index"),
        ),
        # libmlx5 itself, in front of a dump of the completion: also of a peer that has died, and of what fails after the first error.
        Signature(
            needle=": got completion with error:",
            pattern=r"\bmlx5: [\w.-]{1,253}: got completion with error:",
            unless=r"Got completion (?:from peer|with error)",
            standing="possible",
            says="an adapter's driver reports a transfer that failed, and no library says which: a link, or a peer that has ended",
            says_zh="网卡驱动报告有一次传输失败，没有哪个库说明是哪一次：是链路，或者对端已经结束",
            remedies=("who-died-first", "test-the-path"),
        ),
        Signature(
            needle="NCCL_IB_TIMEOUT is set too short",
            standing="possible",
            says="NCCL gave up an InfiniBand transfer and suspects that its timeout is too short",
            says_zh="NCCL 放弃了一次 InfiniBand 传输，并怀疑超时设得太短",
            remedies=("who-died-first", "wait-longer", "test-the-path"),
        ),
    ),
    on_host=_on_host,
    remedies=(
        cann.NPU_LINK,
        Remedy(
            id="who-died-first",
            says="Look at the peer that is named: if its process ended before (out of memory, exception, SIGKILL), this is only the consequence.",
            says_zh="先看被点名的对端：如果它的进程在此之前已经结束（显存不足、异常、SIGKILL），这里只是后果。",
            command="grep -lE 'out of memory|Traceback|SIGKILL|Xid' *.log; sacct -j $SLURM_JOB_ID --format=JobID,State,ExitCode,NodeList",
        ),
        Remedy(
            id="test-the-path",
            says="Test the two adapters without NCCL for a minute, and look at the error counters before and after.",
            says_zh="不经过 NCCL，在两块网卡之间测试一分钟，并对比前后的错误计数。",
            command=(
                "ib_write_bw -d mlx5_0 -x 3 -D 60 -F; grep . "
                "/sys/class/infiniband/*/ports/*/counters/{symbol_error,link_downed,port_rcv_errors,port_xmit_discards} "
                "/sys/class/infiniband/*/ports/*/hw_counters/{out_of_sequence,local_ack_timeout_err,packet_seq_err,roce_adp_retrans}"
            ),
        ),
        ib_config.CAUSE.remedy("gid-index"),
        Remedy(
            id="wait-longer",
            says=(
                "On large or congested fabrics let the adapter wait longer for each try (4.096 us times 2 to this power, seven tries); it hides a "
                "lossy fabric and does not mend it."
            ),
            says_zh="在大规模或拥塞的网络上，让网卡每次重试等待更久（4.096 微秒乘以 2 的该次方，重试七次）；它只能掩盖丢包，不能修复。",
            env={"NCCL_IB_TIMEOUT": "22"},
            verify="NCCL_DEBUG=INFO torchrun --nnodes 2 --nproc-per-node 8 train.py 2>&1 | grep 'NCCL_IB_TIMEOUT set by environment to'",
        ),
        Remedy(
            id="no-gpudirect",
            says="Run once without GPUDirect RDMA: if it works, PCIe access control (ACS) or the peer memory module is at fault.",
            says_zh="关闭 GPUDirect RDMA 再运行一次：如果正常，问题在 PCIe ACS 或 peer memory 模块。",
            env={"NCCL_NET_GDR_LEVEL": "LOC"},
            verify="NCCL_DEBUG=INFO torchrun --nnodes 2 --nproc-per-node 8 train.py 2>&1 | grep -c GDRDMA",
        ),
    ),
    leads_to=("rank-exception",),
    mistaken_for={
        "ib-port-down": "a port error in the log just before says which link went down",
        "nic-hardware": "an adapter that fails reports a fault of its own",
        "gdr-peer-memory": "status 4, 10 or 11 are faults of memory access, not of the path",
        "host-oom-or-killed": "a peer that was killed stops acknowledging: the same status 12, seconds later",
        "network-blocked": "on EFA, a security group that does not allow all traffic to itself looks like a receiver that does not respond",
        "gpu-hardware": "a host whose GPU or PCIe bus failed stops acknowledging as well",
    },
    sources=(
        "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-ib-timeout",
        "https://www.rdmamojo.com/2013/02/15/ibv_poll_cq/",
        "https://github.com/NVIDIA/nccl/issues/426",
        "https://github.com/NVIDIA/nccl/issues/905",
    ),
    hits=(
        "EI0013: [PID: 812] 2026-01-08 An error CQE occurred during operator execution. Local information: server 10.0.0.1, device ID 2",
        "(RayWorkerWrapper pid=812) mlx5: node7: got completion with error:",
        (
            "node7:815:864 [4] transport/net_ib.cc:1238 NCCL WARN NET/IB : Got completion from peer node8<37948> with error 12, opcode 2, len 1, "
            "vendor err 129"
        ),
        (
            "[1,3]<stderr>:node7:815:864 [6] transport/net_ib.cc:2244 NCCL WARN NET/IB: Got completion from peer 10.0.3.5<53908> with status=12 "
            "opcode=129 len=1048576 vendor err 129 (Recv) localGid ::ffff:10.0.6.3 remoteGids::ffff:10.0.6.5 hca mlx5_10"
        ),
        (
            "[2026-11-03 10:00:01] node7:815:864 [6] transport/net_ib/p2p.cc:711 NCCL WARN NET/IB: Got completion from peer 10.0.3.5<53908> with "
            "status=IBV_WC_RETRY_EXC_ERR(12) opcode=IBV_WC_SEND(0) reqSize=0 vendor_err=129 req_type=Send localGid ::ffff:10.0.6.3 hca mlx5_10"
        ),
        (
            "node7:815:864 [4] transport/net_ib.cc:1238 NCCL WARN NET/IB : Got completion from peer 10.0.3.5<37948> with error 13, opcode 0, len "
            "0, vendor err 135"
        ),
        "node7:946:988 [0] transport/net_ib.cc:839 NCCL WARN NET/IB : Got completion with error 12, opcode 1, len 0, vendor err 129",
        (
            "node7:946:988 [0] ib_plugin.c:1007 NCCL WARN NET/IB : Got completion from peer 10.0.3.5<42519> with error 5, opcode 0, len 0, vendor "
            "err 249"
        ),
        "[node7:4711:0:4711] ib_mlx5_log.c:171  Transport retry count exceeded on mlx5_0:1/RoCE (synd 0x15 vend 0x81 hw_synd 0/0)",
        "E1103 worker_pool.cpp:301] Worker: Process failed for slice (opcode: 1, source_addr: 0x7f): transport retry counter exceeded",
        (
            "[node7][[1,1],3][btl_openib_component.c:3645:handle_wc] from node7 to: node8 error polling LP CQ with status RETRY EXCEEDED ERROR "
            "status number 12 for wr_id 7f"
        ),
        "The InfiniBand retry count between two MPI processes has been\nexceeded.",
        "rdma worker 3: wc status IBV_WC_RETRY_EXC_ERR on qp 311",
        " Completion with error at client\n Failed status 12: wr_id 0 syndrom 0x81",
        (
            "HINT: In many cases this error indicates that NCCL_IB_TIMEOUT is set too short (the default value is 20, which is ~30 seconds before "
            "timing out)."
        ),
    ),
    near_misses=(
        "mlx5_core 0000:17:00.0: mlx5_cmd_out_err:812:(pid 4711): got completion with errors in 3 of 8 tests",
        (
            "node7:815:864 [4] transport/net_ib.cc:1238 NCCL WARN NET/IB : Got completion from peer node8<37948> with error 4, opcode 0, len 0, "
            "vendor err 81"
        ),
        (
            "node7:815:864 [4] transport/net_ib.cc:1238 NCCL WARN NET/IB : Got completion from peer node8<37948> with status=10 opcode=129 len=12 "
            "vendor err 136 (Recv)"
        ),
        "node7:815:864 [0] NCCL INFO NCCL_IB_TIMEOUT set by environment to 22.",
        "node7:815:864 [0] NCCL INFO NCCL_IB_RETRY_CNT set by environment to 7.",
        "node7:815:864 [0] misc/socket.cc:480 NCCL WARN socketStartConnect: Connect to 10.0.0.8<41213> failed : Connection timed out",
        "urllib3.exceptions.MaxRetryError: Max retries exceeded with url: /model.safetensors",
        "node7:815:864 [0] NCCL INFO NET/IB : mlx5_3:1 Got non-fatal async event: client reregistration(15)",
    ),
    explain={
        "en": (
            "An adapter sent, waited for the acknowledgement of the other side, tried again seven times, and gave up. First look at the peer that "
            "is named: a process that died stops acknowledging, and then this is only a consequence. If it fails at once on every start, the "
            "packets never arrive: wrong GID index or a switch that does not pass RoCE. If it fails after hours, look for a flapping link or a "
            "fabric that loses packets (counters, flow control). A larger NCCL_IB_TIMEOUT gains time and hides the loss. Status 5 after it is "
            "only the rest of the same connection."
        ),
        "zh": (
            "网卡发出数据后等待对端确认，重试七次仍无回应，于是放弃。先看被点名的对端：进程死掉后不会再确认，那么这里只是后果。如果每次一启动就失"
            "败，说明数据包根本没有到达：GID 索引不对，或交换机不转发 RoCE。如果运行数小时后才失败，检查链路抖动或丢包（看计数器、流控）。调大 "
            "NCCL_IB_TIMEOUT 只能争取时间并掩盖丢包。其后的状态 5 只是同一连接的余波。"
        ),
    },
)
