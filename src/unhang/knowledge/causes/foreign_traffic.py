"""foreign-traffic: something that is no rank of the job spoke to one of its ports."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unhang.knowledge.cause import Cause, LogView, Signature
from unhang.knowledge.text import Text
from unhang.model import Finding, Remedy

if TYPE_CHECKING:
    from unhang.logs import Hit

# What the first four bytes of other protocols give, where they are read as a length: "GET ", "POST", "HEAD", "HTTP", "OPTI", "SSH-", TLS hello.
_PROTOCOLS = {b"GET ": "HTTP", b"POST": "HTTP", b"HEAD": "HTTP", b"HTTP": "HTTP", b"OPTI": "HTTP", b"PUT ": "HTTP", b"SSH-": "SSH", b"RTSP": "RTSP"}


def _in_logs(view: LogView) -> Finding | None:
    hits = view.hits_of(CAUSE.id)
    for hit in hits:
        spoken = _protocol(hit)
        if spoken is not None:
            return CAUSE.of_hits(
                (hit, *(h for h in hits if h is not hit)),
                view,
                standing="established",
                says=Text(
                    f"an {spoken} client spoke to a port of NCCL: what it sent was read as a message of {hit.groups['received']} bytes",
                    f"有 {spoken} 客户端连到了 NCCL 的端口：它发来的内容被当成了一条 {hit.groups['received']} 字节的消息",
                ),
            )
    return CAUSE.of_hits(hits, view)


def _protocol(hit: Hit) -> str | None:
    """The protocol whose greeting reads as this length, if any."""
    received = int(hit.groups.get("received", "0"))
    if not 0 < received < 2**32:
        return None
    start = received.to_bytes(4, "little")
    return "TLS" if start[:2] == b"\x16\x03" else _PROTOCOLS.get(start)


CAUSE = Cause(
    id="foreign-traffic",
    role="root",
    title="Something else spoke to a port of the job",
    title_zh="有外来流量连到了任务的端口",
    what="A connection from outside the job reached a port on which NCCL, Gloo or the store listens for ranks, and its bytes were taken for theirs.",
    why=(
        "A security scanner, a health check or a metrics scraper sweeps the port range; two jobs on one host with the same port; a service "
        "whose port lies in the ephemeral range."
    ),
    signatures=(
        # A length of a thousand million bytes is the greeting of another protocol.
        Signature(
            needle="essage truncated",
            pattern=r"[Mm]essage truncated ?: receiv(?:ed|ing) (?P<received>\d{9,10}) bytes instead of (?P<expected>\d+)",
            standing="likely",
            says="NCCL was told to receive {received} bytes where {expected} were due: these are the first bytes of another protocol",
            says_zh="NCCL 被告知要接收 {received} 字节，而应为 {expected} 字节：这个数其实是另一种协议的开头几个字节",
        ),
        Signature(
            needle="wrong magic ",
            pattern=r"socketFinalizeAccept: wrong magic (?P<magic>[0-9a-f]+) != (?P<own>[0-9a-f]+)",
            standing="likely",
            says="NCCL refused a connection whose greeting was {magic} instead of {own}: it came from outside the job",
            says_zh="NCCL 拒绝了一个连接，其握手是 {magic} 而不是 {own}：它来自任务之外",
        ),
        # Before 2.27.3 a connection that closed without a word ended the accepting rank: the trace names where.
        Signature(
            needle="Connection closed by remote peer",
            pattern=r"socketProgress(?:Opt)?: Connection closed by remote peer (?P<peer>\S+?)<(?P<port>\d+)>",
            near=r"misc/socket\.cc:4[67]\d -> 6(?s:.{0,400})bootstrap\.cc:\d+ -> 6",
            standing="likely",
            says="{peer} connected to NCCL's bootstrap and left before it had greeted, as port scanners do; NCCL before 2.27.3 fails on that",
            says_zh="{peer} 连上 NCCL 的 bootstrap，没有握手就断开了，端口扫描器会这样；2.27.3 之前的 NCCL 会因此失败",
            remedies=("upgrade-nccl", "spare-the-ports"),
        ),
        Signature(
            needle="nvalid magic",
            pattern=r"(?:RAS|\bras\b).{0,120}[Ii]nvalid magic",
            standing="possible",
            says="NCCL's RAS was addressed by something that does not speak its protocol",
            says_zh="有外来者连到了 NCCL 的 RAS，使用的不是它的协议",
            remedies=("spare-the-ports", "upgrade-nccl"),
        ),
        # An HTTP server answers a rank that came to the wrong door.
        Signature(
            needle="nvalid HTTP request received",
            pattern=r"[Ii]nvalid HTTP request received",
            near=r"(?:c10d|TCPStore|rendezvous|NCCL|Gloo).{0,200}(?:timed out|failed|magic|reset by|refused|closed by)",
            standing="possible",
            says="a web server of the job got bytes that are no HTTP: a rank, or a scanner, came to the wrong port",
            says_zh="任务的 Web 服务器收到了不是 HTTP 的字节：某个 rank 或扫描器连错了端口",
            remedies=("spare-the-ports",),
        ),
    ),
    in_logs=_in_logs,
    remedies=(
        Remedy(
            id="upgrade-nccl",
            says="Upgrade NCCL to 2.27.3 or later: it drops connections that do not greet as a rank.",
            says_zh="升级到 NCCL 2.27.3 或更新版本：它会丢弃不按协议握手的连接。",
            command="pip install 'nvidia-nccl-cu12>=2.27.3'   # as far as the installed torch allows",
            verify="python -c 'import torch; print(torch.cuda.nccl.version())'",
        ),
        Remedy(
            id="find-the-speaker",
            says="Find out who it is: watch for new connections from addresses that are no host of the job.",
            says_zh="查出是谁：观察来自任务主机以外地址的新连接。",
            command="sudo tcpdump -ni any 'tcp[tcpflags] & (tcp-syn|tcp-ack) == tcp-syn and not src host PEER_IP'",
        ),
        Remedy(
            id="spare-the-ports",
            says="Keep scanners, health checks and scrapers off the hosts' ephemeral ports, and admit only the hosts of the job there.",
            says_zh="让扫描器、健康检查和指标采集避开主机的临时端口，这些端口只对任务内的主机开放。",
            command="sysctl net.ipv4.ip_local_port_range; sudo ss -ltnp",
        ),
    ),
    leads_to=("rank-exception", "network-blocked"),
    mistaken_for={
        "collective-mismatch": "ranks that disagree on sizes get truncated messages too, but of plausible sizes",
        "version-mismatch": "two NCCL releases also differ in their first bytes; compare the versions first",
        "nccl-bug": "sizes as 256 instead of 4 at start-up are NCCL's own confusion",
        "port-in-use": "there nothing can listen; here the port works and the wrong one talks",
    },
    sources=(
        "https://github.com/NVIDIA/nccl/issues/1612",
        "https://github.com/NVIDIA/nccl/pull/1613",
        "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html",
    ),
    hits=(
        "node7:482:6900 [4] bootstrap.cc:77 NCCL WARN Message truncated : received 542393671 bytes instead of 88",
        (
            "node7:482:6900 [0] transport/net_socket.cc:424 NCCL WARN NET/Socket : peer 10.9.0.5<59210> message truncated : receiving "
            "1347703880 bytes instead of 4"
        ),
        "node7:367:372 [0] misc/socket.cc:432 NCCL WARN socketFinalizeAccept: wrong magic 2f20544547 != 564ab9f2fc4b9d6c",
        (
            "node7:11:11 [0] misc/socket.cc:71 NCCL WARN socketProgress: Connection closed by remote peer 10.9.0.5<36138>\n"
            "node7:11:11 [0] NCCL INFO misc/socket.cc:80 -> 6\nnode7:11:11 [0] NCCL INFO misc/socket.cc:474 -> 6\n"
            "node7:11:11 [0] NCCL INFO misc/socket.cc:628 -> 6\nnode7:11:11 [0] NCCL INFO bootstrap.cc:701 -> 6"
        ),
        "node7:11:19 [0] ras/ras.cc:370 NCCL WARN RAS received a connection with invalid magic from 10.9.0.5<41234>, ignoring it",
        "[c10d] TCPStore: the client socket has timed out\nWARNING:  Invalid HTTP request received.",
    ),
    near_misses=(
        "[rank0]: c10d barrier passed, NCCL 2.27.3\nWARNING:  Invalid HTTP request received.\nTCPStore listens on port 29500",
        "node7:482:6900 [4] bootstrap.cc:77 NCCL WARN Message truncated : received 256 bytes instead of 4",
        "node7:482:6900 [0] NCCL WARN NET/Socket : peer 10.0.0.2<59210> message truncated : receiving 1048576 bytes instead of 65536",
        "node7:482:6900 [0] misc/socket.cc:49 NCCL WARN socketProgress: Connection closed by remote peer node1<57557>",
        "WARNING:  Invalid HTTP request received.",
        "ValueError: invalid magic number in the header of shard-00012.bin",
    ),
    explain={
        "en": (
            "While ranks find each other they listen on open ports, and anybody can connect there. A scanner or a scraper did, and its bytes "
            "(an HTTP or TLS greeting) were read as a message of a rank: a size of half a thousand million bytes is the text 'GET '. NCCL "
            "checks a magic number since 2.13, and since 2.27.3 also survives a connection that closes without a word. It strikes at start-up, "
            "rarely and without pattern, which is why it looks like a fault of the network. Upgrade NCCL and keep scanners off the ephemeral "
            "ports of the training hosts."
        ),
        "zh": (
            "各进程互相寻找时会监听开放的端口，任何人都能连上来。扫描器或采集程序连了进来，它的字节（HTTP 或 TLS 的问候）被当成了某个进程的消息"
            "：一个五亿多字节的长度，其实就是文本“GET ”。NCCL 从 2.13 起检查魔数，从 2.27.3 起才能容忍对方一言不发就断开。它发生在启动阶段，偶"
            "发、无规律，所以看起来像网络故障。升级 NCCL，并让扫描器避开训练主机的临时端口。"
        ),
    },
)
