"""peer-lost: the connection to another rank is gone."""

from __future__ import annotations

from unhang.knowledge.cause import Cause, Signature

CAUSE = Cause(
    id="peer-lost",
    role="symptom",
    title="The connection to another rank was lost",
    title_zh="与另一个进程的连接断开",
    what="A rank noticed, inside a collective, that its peer closed the connection, ended, or aborted the communicator.",
    why="The peer failed, was killed or left first; only rarely the network itself.",
    signatures=(
        Signature(needle="Connection closed by peer [", pattern=r"Connection closed by peer \[(?P<address>[^\]]+)\]", role="symptom"),
        Signature(
            needle="Connection reset by peer", pattern=r"(?:Read|Write) error \[(?P<address>[^\]]+)\]:\d+: Connection reset by peer", role="symptom"
        ),
        Signature(needle="Broken pipe", pattern=r"(?:Read|Write) error \[(?P<address>[^\]]+)\]:\d+: Broken pipe", role="symptom"),
        Signature(needle="but received errors while waiting for send/recv", role="symptom"),
        Signature(
            needle="ncclRemoteError",
            pattern=r"ncclRemoteError: A call failed possibly due to a network error or a remote process exiting",
            role="symptom",
        ),
        Signature(needle="NCCL communicator was aborted on rank", pattern=r"aborted on rank (?P<rank>\d+)", role="symptom"),
    ),
    mistaken_for={"network-blocked": "a connection that once worked and then closed is nearly always the end of the process at its other side"},
    sources=("https://docs.pytorch.org/docs/stable/distributed.html",),
    hits=(
        (
            "RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer [10.0.0.2]:47492. This is "
            "typically caused by a remote worker crashing. Check the logs of the remote worker before reporting an error."
        ),
        (
            "RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:537] Read error [10.0.0.2]:51860: Connection reset by peer. This "
            "is typically caused by a remote worker hanging or bugs in the application."
        ),
        "RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:544] Write error [10.0.0.2]:51860: Broken pipe",
        (
            "RuntimeError: Rank 1 successfully reached monitoredBarrier, but received errors while waiting for send/recv from rank 0. Please check "
            "rank 0 logs for faulty rank."
        ),
        "ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely.",
        "RuntimeError: NCCL communicator was aborted on rank 3.",
    ),
    near_misses=(
        "requests.exceptions.ConnectionError: ('Connection aborted.', ConnectionResetError(104, 'Connection reset by peer'))",
        "BrokenPipeError: [Errno 32] Broken pipe",
        "ssh: connect to host node2 port 22: Connection refused",
    ),
    explain={
        "en": (
            "The other side of a connection went away while this rank communicated with it. The rank that prints this was healthy: find out why "
            "its peer ended first."
        ),
        "zh": "通信过程中，连接的另一端消失了。打印这条信息的进程本身是健康的：要找的是它的同伴为什么先结束。",
    },
)
