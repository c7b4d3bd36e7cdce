"""rendezvous-misconfig: the processes disagree on how many they are, who they are, or where they meet."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from unhang.knowledge.cause import STANDINGS, cause
from unhang.knowledge.judge import Answer, Found, LogView, RunView
from unhang.knowledge.words import joined, msg
from unhang.logs import Hit
from unhang.model import Finding

CAUSE = cause("rendezvous-misconfig")
_WAITING = CAUSE.signature("waiting")
_NOT_SET = CAUSE.signature("not-set")
_CLOSED = CAUSE.signature("closed")
_NO_STORE = CAUSE.signature("no-store")
_CONNECT_TIMED_OUT = CAUSE.signature("connect-timed-out")
_NO_ID = CAUSE.signature("no-id")
_ADDRESS_UNREAD = CAUSE.signature("address-unread")
_NODE = CAUSE.signature("node")
_HARMLESS_TOO = (_NO_ID, _ADDRESS_UNREAD, _NODE)


def in_run(picture: RunView) -> Answer:
    if picture.incident.elsewhere and not any(r.record.backend for r in picture.ranks):
        return _of_two_places(picture)
    if picture.incident.kind != "world-size":
        return _of_hits(picture.hits_of(CAUSE.id))
    records = [r.record for r in picture.ranks]
    worlds = Counter(r.world_size for r in records if r.world_size is not None)
    numbers = Counter(r.rank for r in records)
    twice = sorted(rank for rank, count in numbers.items() if count > 1)
    alone = set(worlds) == {1}
    return Found(
        "alone" if alone and len(records) > 1 and set(numbers) == {0} else "twice" if twice else "apart" if alone else "worlds",
        ranks=sorted(numbers),
        hosts=[r.host for r in records],
        remedies=("let-a-launcher-start-them" if alone else "same-world", "read-the-environment"),
        picture=picture,
        n=len(records),
        twice=twice and twice[0],
        times=twice and numbers[twice[0]],
        worlds=joined((str(w) for w in sorted(worlds)), msg(" and ", "rendezvous_misconfig")),
        expected=picture.incident.expected_world,
        each=records[:4],
    )


def _of_two_places(picture: RunView) -> Found:
    numbers = tuple(sorted(picture.incident.elsewhere))
    said = [(n, picture.incident.elsewhere[n]) for n in numbers]
    return Found(
        "two-places",
        ranks=numbers,
        standing="established" if numbers == tuple(range(max(r.record.world_size or 1 for r in picture.ranks))) else "likely",
        hosts=(),
        said=said[:8],
        picture=picture,
        each=said[:4],
    )


def in_logs(view: LogView) -> Answer:
    own = tuple(h for h in view.hits_of(CAUSE.id) if h.signature != _WAITING or int(h.groups["joined"]) > int(h.groups["expected"]))
    if any(h.signature == _NOT_SET for h in own):
        return _of_hits(own)
    failed = any(h.signature.needle in _NO_ANSWER for h in view.hits_of("store-disconnect"))
    return _numbered_alike(own) or _of_own(_in_force(own, failed=failed), view) or _agents_waited(view) or _nobody_came(view)


def _numbered_alike(hits: Sequence[Hit]) -> Finding | None:
    """Two launchers that each say they are node 0."""
    nodes: dict[str, dict[tuple[str | None, str], Hit]] = {}
    for h in hits:
        if h.signature == _NODE and h.groups["nodes"] != "1":
            nodes.setdefault(h.groups["node_rank"], {}).setdefault((h.host, h.source), h)
    twice = next((list(lines.values()) for lines in nodes.values() if len(lines) > 1), None)
    return None if twice is None else CAUSE.of_hits(twice, found=Found("numbered-alike", n=len(twice), first=twice[0]))


def _in_force(hits: Sequence[Hit], *, failed: bool) -> tuple[Hit, ...]:
    """Without what healthy jobs print too, unless a rendezvous failed."""
    failed = failed or any(h.signature not in _HARMLESS_TOO for h in hits)
    timed_out = any("RendezvousTimeoutError" in h.text for h in hits)
    speaking = [h for h in hits if h.signature == _NO_ID and timed_out] + [h for h in hits if h.signature == _ADDRESS_UNREAD and failed]
    return (*speaking, *(h for h in hits if h.signature not in _HARMLESS_TOO))


def _of_own(hits: Sequence[Hit], view: LogView) -> Finding | None:
    """A rendezvous that is closed or gone is what agents print that lost their peer: it counts only where nothing else is known."""
    lost = ("rank-exception", "host-oom-or-killed", "gpu-oom", "peer-lost", "collective-timeout")
    others = any(view.hits_of(c) for c in lost) or view.timeouts or any(e.code != 0 for e in view.exits)
    beaten = any("keep-alive" in h.text for h in view.hits_of("store-disconnect"))
    kept = tuple(h for h in hits if not ((others and h.signature == _CLOSED) or ((others or beaten) and h.signature == _NO_STORE)))
    where = next(((h.groups["peer"], h.groups["port"]) for h in view.hits_of("store-disconnect") if {"peer", "port"} <= set(h.groups)), None)
    best = min(kept, key=lambda h: STANDINGS.index(h.signature.standing), default=None)
    if where is not None and best is not None and best.signature in (_NO_STORE, _CONNECT_TIMED_OUT):
        return CAUSE.of_hits((best, *(h for h in kept if h is not best)), view, Found("no-agent", address=where))
    return CAUSE.of_hits(kept, view)


def _agents_waited(view: LogView) -> Found | None:
    """A time-out of the store inside torchrun's agent: it waited for the agents of the other hosts, before any rank was started."""
    waited = [
        t
        for t in view.tracebacks
        if "imeout" in t.says
        and any(f.name in _AGENT and "elastic" in f.file for f in t.frames)
        # At the end agents wait for each other as well.
        and not any(f.name == "_exit_barrier" for f in t.frames)
    ]
    return None if not waited or any(view.hits_of(c) for c in _EXPLAINS) else Found("agents-waited", evidence=waited[:2])


def _nobody_came(view: LogView) -> Found | None:
    """The store waited for processes or was never found, and nothing else is known: who was started, and where, is the first question."""
    lines = [h for h in view.hits_of("store-disconnect") if "expected" in h.groups or ("peer" in h.groups and "port" in h.groups)]
    if not lines or view.timeouts or any(view.hits_of(c) for c in _EXPLAINS):
        return None
    g = lines[0].groups
    counted = "expected" in g and g.get("joined") != g["expected"]
    if not counted and "peer" not in g:
        return None
    return Found(
        "unanswered" if not counted else "too-many" if int(g.get("joined", "0")) > int(g["expected"]) else "too-few",
        ranks=lines,
        evidence=lines[:3],
        by="peer" if "peer" in g else "",
        joined=g.get("joined"),
        expected=g.get("expected"),
        peer=g.get("peer"),
        port=g.get("port"),
    )


def _of_hits(hits: Sequence[Hit]) -> Answer:
    if not hits:
        return None
    unset = [h for h in hits if h.signature == _NOT_SET]
    if not unset:
        return CAUSE.of_hits(_in_force(hits, failed=False))
    return Found("not-set", ranks=unset, evidence=unset[:2], name=unset[0].groups.get("name"))


# What the store prints where nobody answered; that it is gone says only that its rank has ended.
_NO_ANSWER = ("client socket has timed out after", "clients joined", "in store based barrier on rank", "wait timeout after ", "Socket Timeout")
# Where torchrun's agent exchanges with its like what each host has.
_AGENT = frozenset({"_share_and_gather", "_assign_worker_ranks", "synchronize", "_rendezvous", "next_rendezvous"})
# Where one of these is in evidence, that nobody came is its consequence.
_EXPLAINS = (
    "network-blocked",
    "dns-resolution",
    "interface-selection",
    "port-in-use",
    "ssh-launcher",
    "config-error",
    "gloo-connect",
    "host-oom-or-killed",
    "gpu-oom",
    "library-link",
    "launcher-wrong-env",
    "peer-lost",
    "collective-timeout",
)
