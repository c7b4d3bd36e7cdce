"""foreign-traffic: something that is no rank of the job spoke to one of its ports."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unhang.knowledge.cause import LogView, cause
from unhang.knowledge.judge import Found
from unhang.model import Finding

if TYPE_CHECKING:
    from unhang.logs import Hit

# What the first four bytes of other protocols give, where they are read as a length: "GET ", "POST", "HEAD", "HTTP", "OPTI", "SSH-", TLS hello.
_PROTOCOLS = {b"GET ": "HTTP", b"POST": "HTTP", b"HEAD": "HTTP", b"HTTP": "HTTP", b"OPTI": "HTTP", b"PUT ": "HTTP", b"SSH-": "SSH", b"RTSP": "RTSP"}


def _in_logs(view: LogView) -> Finding | None:
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


CAUSE = cause("foreign-traffic", in_logs=_in_logs)
