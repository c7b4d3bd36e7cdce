"""gloo-connect: Gloo could not connect every rank with every other."""

from __future__ import annotations

from collections.abc import Sequence

from unhang.knowledge.cause import cause, command
from unhang.knowledge.judge import Answer, Found, LogView
from unhang.knowledge.words import msg
from unhang.logs import Hit

CAUSE = cause("gloo-connect")

_LOOPBACK = ("127.", "::1", "localhost")


def in_logs(view: LogView) -> Answer:
    hits = view.hits_of(CAUSE.id)
    if not hits:
        return None
    peer = next((h.groups["peer"] for h in hits if "peer" in h.groups), None)
    error = next((h.groups["error"] for h in hits if "error" in h.groups), None)
    name = command(r"export GLOO_SOCKET_IFNAME=$(ip -o route get {peer:host} | grep -oP 'dev \K\S+')", peer=peer)
    if error == "Connection refused" and (max(h.attempt for h in hits) > 1 or _behind_an_end(hits, view)):
        return CAUSE.of_hits(hits, view, Found("after-restart", peer=peer or msg("a peer")))
    if peer is not None and peer.startswith(_LOOPBACK):
        return CAUSE.of_hits(hits, view, remedies=("look-at-the-peer", "name-the-interface", "restart-afresh"))
    return CAUSE.of_hits(hits, view, commands={"name-the-interface": name} if peer else None)


def _behind_an_end(hits: Sequence[Hit], view: LogView) -> bool:
    """torchrun says by default that ranks have ended, and nothing when it starts others; it has ended all of them by then."""
    places = {h.source: h.line for h in reversed(hits) if h.line is not None}
    return any(e.code != 0 and e.at.line is not None and e.at.line < places.get(e.at.source, 0) for e in view.exits)
