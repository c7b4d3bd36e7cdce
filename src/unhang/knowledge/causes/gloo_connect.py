"""gloo-connect: Gloo could not connect every rank with every other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from unhang.knowledge.cause import Cause, LogView, Signature, command
from unhang.knowledge.text import Text
from unhang.model import Finding, Remedy

if TYPE_CHECKING:
    from unhang.logs import Hit

_LOOPBACK = ("127.", "::1", "localhost")


def _in_logs(view: LogView) -> Finding | None:
    hits = view.hits_of(CAUSE.id)
    if not hits:
        return None
    peer = next((h.groups["peer"] for h in hits if "peer" in h.groups), None)
    error = next((h.groups["error"] for h in hits if "error" in h.groups), None)
    name = command(r"export GLOO_SOCKET_IFNAME=$(ip -o route get {peer:host} | grep -oP 'dev \K\S+')", peer=peer)
    if error == "Connection refused" and (max(h.attempt for h in hits) > 1 or _behind_an_end(hits, view)):
        return CAUSE.of_hits(
            hits,
            view,
            says=Text(
                "after a restart Gloo could not connect to {peer} again: the address of a process of the attempt before was read",
                "重新启动后 Gloo 无法再连接 {peer}：读到的是上一次尝试中某个进程的地址",
            ).fill(peer=peer or Text("a peer", "某个对端")),
            remedies=("own-store", "restart-afresh", "look-at-the-peer"),
        )
    if peer is not None and peer.startswith(_LOOPBACK):
        return CAUSE.of_hits(hits, view, remedies=("look-at-the-peer", "name-the-interface", "restart-afresh"))
    return CAUSE.of_hits(hits, view, commands={"name-the-interface": name} if peer else None)


def _behind_an_end(hits: Sequence[Hit], view: LogView) -> bool:
    """torchrun says by default that ranks have ended, and nothing when it starts others; it has ended all of them by then."""
    places = {h.source: h.line for h in reversed(hits) if h.line is not None}
    return any(e.code != 0 and e.at.line is not None and e.at.line < places.get(e.at.source, 0) for e in view.exits)


CAUSE = Cause(
    id="gloo-connect",
    role="root",
    title="Gloo cannot connect all ranks",
    title_zh="Gloo 无法建立全连接",
    what="At the start of a Gloo group every rank connects to every other, and one of these connections failed.",
    why=(
        "A peer announced an address that does not lead to it (many interfaces, host network in containers), a blocked port, a peer that "
        "ended meanwhile, or a stale address after a restart."
    ),
    signatures=(
        Signature(
            needle="connectFullMesh failed",
            pattern=(
                r"connectFullMesh failed .{0,600}?(?:connect |remote=)\[(?:::ffff:)?(?P<peer>[^\]]{1,100})\]:(?P<port>\d{1,5})"
                r"(?::? ?(?P<error>Connection refused|Connection timed out|No route to host|Network is unreachable|Invalid argument))?"
            ),
            standing="likely",
            says="Gloo could not connect to {peer} port {port}, so the group was not made",
            says_zh="Gloo 无法连接 {peer} 的端口 {port}，因此进程组没有建成",
        ),
        Signature(
            needle="connectFullMesh failed",
            pattern=r"connectFullMesh failed (?!.{0,600}(?:connect |remote=)\[).{0,300}",
            standing="likely",
            says="Gloo could not connect all ranks with each other, and names no address",
            says_zh="Gloo 无法让所有 rank 两两相连，也没有说明地址",
        ),
        Signature(
            needle="timed out connecting: ",
            pattern=r"timed out connecting: SO_ERROR: (?P<error>[\w ]+), remote=\[(?:::ffff:)?(?P<peer>[^\]]+)\]:(?P<port>\d+)",
            standing="likely",
            says="Gloo gave up connecting to {peer} port {port}: {error}",
            says_zh="Gloo 放弃连接 {peer} 的端口 {port}：{error}",
        ),
        Signature(
            needle="gloo/transport/tcp",
            pattern=r"gloo/transport/tcp/\w+\.cc:\d+\] connect \[(?:::ffff:)?(?P<peer>[^\]]+)\]:(?P<port>\d+): (?P<error>[\w ]+)",
            standing="likely",
            says="Gloo could not connect to {peer} port {port}: {error}",
            says_zh="Gloo 无法连接 {peer} 的端口 {port}：{error}",
        ),
        # Of a rule on this very host: the kernel answers the call itself.
        Signature(
            needle="gloo/transport/tcp",
            pattern=r"gloo/transport/tcp/socket\.cc:\d+\] rv != -1\..{0,40}connect: (?P<error>[\w ]+)",
            standing="likely",
            says="Gloo could not connect to a peer: {error}",
            says_zh="Gloo 无法连接某个对端：{error}",
        ),
        Signature(
            needle="Connect timeout [",
            pattern=r"(?:gloo|pair\.cc).{0,200}Connect timeout \[(?:none\]|(?:::ffff:)?(?P<peer>[^\]]+)\])",
            standing="likely",
            says="a connection of Gloo to a peer timed out",
            says_zh="Gloo 到某个对端的连接超时",
        ),
        # Printed once for every rank; the expected number is not reached.
        Signature(
            needle="[Gloo] Rank ",
            pattern=(
                r"\[Gloo\] Rank (?P<rank>\d+) is connected to (?P<connected>\d+) peer ranks\. "
                r"Expected number of connected peer ranks is : (?!(?P=connected)\b)(?P<expected>\d+)"
            ),
            standing="likely",
            says="only {connected} of {expected} peers are connected",
            says_zh="{expected} 个对端中只连上了 {connected} 个",
        ),
    ),
    in_logs=_in_logs,
    remedies=(
        Remedy(
            id="name-the-interface",
            says=(
                "Name the interface on which the hosts reach each other, on every host and in the environment of the processes themselves (Ray's "
                "runtime environment, the pod template), not of the command that submits them."
            ),
            says_zh="指定各主机互通的网卡，每台主机都要设，而且要设在进程自己的环境里（Ray 的运行环境、Pod 模板），不是提交命令的环境。",
            command="export GLOO_SOCKET_IFNAME=$(ip -o route get PEER_IP | grep -oP 'dev \\K\\S+')",
            verify="ss -tnlp | grep python   # it must listen on the address of that interface",
        ),
        Remedy(
            id="look-at-the-peer",
            says="Read the log of the rank that was not reached: where it had ended before, that is the cause.",
            says_zh="查看没有连上的那个进程的日志：如果它早已退出，那才是原因。",
        ),
        Remedy(
            id="try-the-port",
            says="Where the address is right, see whether random high ports are open between the hosts.",
            says_zh="如果地址正确，检查主机之间的随机高位端口是否放开。",
            command="nc -l 40000 & ssh PEER_HOST nc -vz -w 5 $(hostname -I | cut -d' ' -f1) 40000",
        ),
        Remedy(
            id="restart-afresh",
            says=(
                "Restart the whole job instead of the workers under the old agents: --max-restarts=0, a fresh port, and the launcher started again "
                "on every host."
            ),
            says_zh="重启整个任务，而不是让旧 agent 重启 worker：--max-restarts=0，换新端口，并在每台主机上重新启动启动器。",
            command="torchrun --max-restarts=0 --rdzv-endpoint MASTER:0 ...",
        ),
        Remedy(
            id="own-store",
            says=(
                "Give each attempt a store of its own: torchrun with a c10d rendezvous (--standalone too) keeps one for all, in which Gloo of torch "
                "2.4 and later finds the addresses of the attempt before. Or let unhang run start again: it starts torchrun anew."
            ),
            says_zh=(
                "让每次尝试使用自己的 store：torchrun 的 c10d rendezvous（包括 --standalone）让所有尝试共用一个，torch 2.4 及以上的 Gloo "
                "会在其中读到上一次尝试的地址。或者由 unhang run 重新启动：它会重新启动 torchrun。"
            ),
            env={"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"},
            verify="tr '\\0' '\\n' < /proc/$(pgrep -o -f torchrun)/environ | grep TORCH_DISABLE_SHARE_RDZV_TCP_STORE",
        ),
        Remedy(
            id="connect-late",
            says="Let Gloo (torch 2.8 and later) connect a pair only when it is first used.",
            says_zh="让 Gloo（torch 2.8 及以上）在首次使用时才建立连接。",
            env={"TORCH_GLOO_LAZY_INIT": "1"},
            verify="tr '\\0' '\\n' < /proc/$(pgrep -n -f train.py)/environ | grep TORCH_GLOO_LAZY_INIT",
        ),
    ),
    leads_to=("rank-exception",),
    mistaken_for={
        "interface-selection": "an address of docker0 or fe80 in the message names the interface as the cause",
        "dns-resolution": "127.0.1.1 in the message comes from a host name in /etc/hosts",
        "network-blocked": "'No route to host' and time-outs name the network; a refused connection does not",
    },
    sources=(
        "https://docs.pytorch.org/docs/stable/distributed.html#choosing-the-network-interface-to-use",
        "https://github.com/pytorch/pytorch/issues/15592",
        "https://github.com/pytorch/gloo/pull/413",
        "https://github.com/pytorch/pytorch/issues/135712",
    ),
    hits=(
        "RuntimeError: Gloo connectFullMesh failed ...",
        (
            "[rank1]: RuntimeError: Gloo connectFullMesh failed with [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:769] connect "
            "[10.0.0.4]:21301: Connection refused"
        ),
        "[E ProcessGroupGloo.cpp:138] Gloo connectFullMesh failed with [../third_party/gloo/gloo/transport/tcp/pair.cc:144] no error",
        (
            "(RayWorkerWrapper pid=812) [rank3]:[E1103 10:00:01.1 ProcessGroupGloo.cpp:143] Gloo connectFullMesh failed with Caught signal 13 "
            "(Broken pipe)"
        ),
        "timed out connecting: SO_ERROR: Connection refused, remote=[10.0.0.4]:20901",
        ("RuntimeError: [enforce fail at /pytorch/third_party/gloo/gloo/transport/tcp/socket.cc:142] rv != -1. -1 vs -1. connect: Permission denied"),
        "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:799] connect [10.0.0.4]:45112: Connection refused",
        "RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:211] Connect timeout [10.0.0.4]:45112",
        "[Gloo] Rank 3 is connected to 6 peer ranks. Expected number of connected peer ranks is : 7",
    ),
    near_misses=(
        "[Gloo] Rank 3 is connected to 7 peer ranks. Expected number of connected peer ranks is : 7",
        "RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer [10.0.0.4]:47492.",
        "RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 60000ms for recv operation to complete",
        "pymysql.err.OperationalError: timed out connecting: 10.0.0.4:3306",
    ),
    explain={
        "en": (
            "When a Gloo group is made, every rank writes its address into the store and then connects to all others. One of them could not be "
            "reached. If a reason is known (a wrong interface, a name that resolves to the loopback, a firewall), that is the cause and this "
            "its consequence. Without one, the usual remedy is GLOO_SOCKET_IFNAME on every host, since machines with many interfaces announce "
            "the wrong one: 'no error' in the message is typical of that. A refused connection is also what a peer looks like that had already "
            "ended, so read the other ranks' logs first. vLLM, SGLang and Megatron make Gloo groups beside NCCL. "
            "After a restart of the ranks under the same torchrun the store still holds the addresses of those before: one of them is refused, or "
            "the ranks wait for each other without a word."
        ),
        "zh": (
            "建立 Gloo 组时，每个进程先把自己的地址写入 store，再连接其他所有进程。其中有一个连不上。如果原因已知（选错网卡、名字解析到回环地址"
            "、防火墙），那才是根因，这里只是后果。如果没有其他原因，通常的办法是在每台主机上设置 GLOO_SOCKET_IFNAME，因为多网卡机器公布的往往"
            "是错误的地址：消息里的“no error”正是典型表现。对端早已退出时看到的也是“连接被拒绝”，所以先读其他进程的日志。vLLM、SGLang 和 "
            "Megatron 在 NCCL 之外也会建立 Gloo 组。同一个 torchrun 重启各 rank 之后，store 中仍有之前各 rank 的地址：连接会被拒绝，"
            "或者各 rank 一直互相等待，没有任何输出。"
        ),
    },
)
