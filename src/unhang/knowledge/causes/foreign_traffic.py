"""foreign-traffic: something that is no rank of the job spoke to one of its ports."""

from __future__ import annotations

from unhang.knowledge.cause import cause
from unhang.knowledge.judge import Answer, Found, LogView
from unhang.logs import Hit

CAUSE = cause("foreign-traffic")

# What the first four bytes of other protocols give, where they are read as a length: "GET ", "POST", "HEAD", "HTTP", "OPTI", "SSH-", TLS hello.
_PROTOCOLS = {b"GET ": "HTTP", b"POST": "HTTP", b"HEAD": "HTTP", b"HTTP": "HTTP", b"OPTI": "HTTP", b"PUT ": "HTTP", b"SSH-": "SSH", b"RTSP": "RTSP"}


def in_logs(view: LogView) -> Answer:
    hits = view.hits_of(CAUSE.id)
    for hit in hits:
        spoken = _protocol(hit)
        if spoken is not None:
            return CAUSE.of_hits((hit, *(h for h in hits if h is not hit)), view, Found("client", spoken=spoken, hit=hit))
    return CAUSE.of_hits(hits, view)


def _protocol(hit: Hit) -> str | None:
    """The protocol whose greeting reads as this length, if any."""
    received = int(hit.groups.get("received", "0"))
    if not 0 < received < 2**32:
        return None
    start = received.to_bytes(4, "little")
    return "TLS" if start[:2] == b"\x16\x03" else _PROTOCOLS.get(start)
