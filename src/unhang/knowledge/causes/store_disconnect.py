"""store-disconnect: the TCPStore is gone, or did not answer in time."""

from __future__ import annotations

from unhang.knowledge.cause import Cause, Signature

CAUSE = Cause(
    id="store-disconnect",
    role="symptom",
    title="The store that the ranks meet at is gone",
    title_zh="各进程会合用的 store 断开",
    what="The TCPStore, which rank 0 or the launcher hosts, closed its connection or did not answer.",
    why="Its host process ended, was killed, or left first; or a rank that should have written a key never did.",
    signatures=(
        Signature(needle="Failed to recv, got 0 bytes", role="symptom"),
        Signature(
            needle="DistStoreError: wait timeout after", pattern=r"wait timeout after (?P<timeout_ms>\d+)ms, keys: (?P<keys>\S+)", role="symptom"
        ),
        Signature(
            needle="[c10d] The client socket has timed out after", pattern=r"trying to connect to \((?P<host>[^,]+), (?P<port>\d+)\)", role="symptom"
        ),
        Signature(needle="clients joined", pattern=r"waiting for clients\. (?P<joined>\d+)/(?P<expected>\d+) clients joined", role="symptom"),
        Signature(needle="sendBytes failed on SocketImpl", role="symptom"),
        Signature(needle="Socket Timeout", pattern=r"(?:DistNetworkError|RuntimeError): Socket Timeout", role="symptom"),
    ),
    mistaken_for={"rendezvous-misconfig": "a store that never answered, from the start, may be the wrong address or port"},
    sources=("https://docs.pytorch.org/docs/stable/distributed.html#distributed-key-value-store",),
    hits=(
        (
            "[W1103 01:31:40.100 TCPStore.cpp:138] [c10d] recvValueWithTimeout failed on SocketImpl(fd=4): Failed to recv, got 0 bytes. Connection "
            "was likely closed. Did the remote server shutdown or crash?"
        ),
        "torch.distributed.DistStoreError: wait timeout after 2000ms, keys: /nokey",
        "[E1103 01:31:40.100 socket.cpp:1028] [c10d] The client socket has timed out after 60000ms while trying to connect to (10.0.0.1, 29500).",
        "[W1103 01:31:40.100 TCPStore.cpp:106] [c10d] sendBytes failed on SocketImpl(fd=3): Broken pipe",
        "torch.distributed.DistStoreError: Timed out after 601 seconds waiting for clients. 1/2 clients joined.",
        "RuntimeError: Socket Timeout",
    ),
    near_misses=("Failed to recv response from the model server: 0 tokens", "TimeoutError: The read operation timed out"),
    explain={
        "en": (
            "The ranks keep small messages in a store that rank 0 (or the launcher's agent) hosts. It went away or did not answer. Find out why "
            "its host ended first."
        ),
        "zh": "各进程通过 rank 0（或启动器的 agent）提供的 store 交换小消息。现在它断开了，或者没有应答。要找的是提供它的进程为什么先结束。",
    },
)
