"""dns-resolution: a host name does not resolve, or resolves to the host itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from unhang.knowledge.cause import cause, command
from unhang.knowledge.judge import Answer, Findings, Found, HostView, LogView
from unhang.logs import Hit
from unhang.model import Evidence
from unhang.patterns import lazily

if TYPE_CHECKING:
    from unhang.facts.names import Names

CAUSE = cause("dns-resolution")
_IPV6 = CAUSE.signature("ipv6")
_LOOPBACK_FALLBACK = CAUSE.signature("loopback-fallback")
_HARMLESS_ALONE = (_IPV6, _LOOPBACK_FALLBACK)

# Lines that also stand in runs that work: they count only where ranks did not meet.
_NEVER_MET = ("gloo-connect", "network-blocked")
# Of the store and the rendezvous what says that nobody answered; that a store is gone says only that its rank has ended.
_NO_ANSWER = (
    "client socket has timed out after", "clients joined", "in store based barrier on rank", "wait timeout after ", "waitForInput: ",
    "Socket Timeout", "connect() timed out", "RendezvousConnectionError", "RendezvousTimeoutError",
)  # fmt: skip
_UNMET_ERRORS = ("DistNetworkError", "DistStoreError", "RendezvousConnectionError", "RendezvousTimeoutError", "TimeoutError")


def in_logs(view: LogView) -> Answer:
    hits = view.hits_of(CAUSE.id)
    # One may be an accident of where the log was cut.
    last = tuple(h for h in hits if h.signature == _IPV6 and _ends_its_log(h, view))
    last = last if len(last) > 1 else ()
    if not _unmet(view):
        hits = tuple(h for h in hits if h.signature not in _HARMLESS_ALONE or h in last)
    name = next((h.groups["name"] for h in hits if h.signature.standing == "established" and "name" in h.groups), None)
    name = name or next((h.groups["name"] for h in hits if "name" in h.groups), None)
    ask = command("getent ahosts {name:host} || echo {name:host} does not resolve here", name=name)
    file = command("cat hostfile /job/hostfile 2>/dev/null; getent ahosts {name:host} || echo {name:host} does not resolve here", name=name)
    commands = {"ask-each-host": ask, "host-file-of-the-launcher": file} if name else None
    # Hosts without IPv6 addresses print this in every run: it tells something only of a name that was not reached.
    if hits and all(h.signature in _HARMLESS_ALONE for h in hits) and not last and not any(_not_reached(h, view) for h in hits):
        return CAUSE.of_hits(hits, view, standing="possible", commands=commands)
    return CAUSE.of_hits(hits, view, commands=commands)


def _ends_its_log(hit: Hit, view: LogView) -> bool:
    """Whether only more of the same stands behind it, up to the end of its log or to where somebody ended the job. Where IPv4 works, it goes on."""
    last = max((h for h in view.hits_of(CAUSE.id) if h.source == hit.source and h.signature == _IPV6), key=lambda h: h.line or 0)
    if "behind" in last.groups and _BY_HAND.match(last.groups["behind"]):
        return True
    told = {(h.source, h.line) for hits in (view.ends, *(view.hits_of(c) for c in _ENDED)) for h in hits}
    told |= {(t.source, t.line) for t in view.tracebacks if t.type == "KeyboardInterrupt"} | {(e.at.source, e.at.line) for e in view.exits}
    return (hit.source, (last.line or 0) + 1) in told


def _not_reached(hit: Hit, view: LogView) -> bool:
    name = hit.groups.get("name")
    said = (h.text for c in ("store-disconnect", "network-blocked") for h in view.hits_of(c))
    return name is not None and any(f"({name}," in text or f"[{name}]" in text for text in said)


def _unmet(view: LogView) -> bool:
    told = (*view.hits_of("store-disconnect"), *view.hits_of("rendezvous-misconfig"))
    return (
        any(view.hits_of(c) for c in _NEVER_MET)
        or any(h.signature.needle in _NO_ANSWER for h in told)
        or any(t.type.rpartition(".")[2] in _UNMET_ERRORS for t in view.tracebacks)
    )


# Nothing, or what a terminal and a shell print where somebody ends it.
_BY_HAND = lazily(r"\s*(?:$|\^C|(?:.{1,200}: line \d{1,9}: +\d{1,9} )?Terminated\b)")
_ENDED = ("launcher-teardown", "ended-by-scheduler", "host-oom-or-killed")
_CONTAINERS = ("docker", "podman", "kubernetes", "container")


def on_host(host: HostView) -> Findings:
    from unhang.facts import network

    seen = host.names
    net = host.get(network.SUBJECT)
    way = network.uplink(net) if net is not None else None
    real = next((a.partition("/")[0] for a in way.addresses), "ADDRESS") if way is not None else "ADDRESS"
    own, (told, shown) = seen.own.addresses, _own_trouble(seen)
    if told:
        lines = [h for h in seen.hosts_lines if seen.host_name in h.names]
        evidence = tuple(Evidence(source="/etc/hosts", line=h.line, text=f"{h.address} {' '.join(h.names)}") for h in lines[:2])
        yield Found(
            "own-name",
            remedies=("hosts-file" if host.kind in _CONTAINERS else "own-name", "gloo-interface", "name-or-address"),
            evidence=evidence or (Evidence(source=f"getent ahosts {seen.host_name}", text=", ".join(own) if own else seen.own.error),),
            seen=seen,
            told=told,
            shown=shown,
            real=real,
            way=way.name if way is not None else "NAME",
        )
    yield from _master(seen, host.kind)
    slow = max((a for a in (seen.own, seen.master) if a is not None and a.took_s is not None), key=lambda a: a.took_s or 0, default=None)
    if slow is not None and slow.addresses is not None and (slow.took_s or 0) >= 1:
        yield Found("slow-lookup", slow=slow, servers=", ".join(seen.dns_servers) or "no nameserver")


def _own_trouble(seen: Names) -> tuple[str, Sequence[str]]:
    """What is wrong with this host's own name, and the addresses; Gloo takes the first address that is one of this host."""
    from unhang.facts import job

    own, here = seen.own.addresses, seen.own_addresses
    if own is None:
        return "unresolved" if seen.own.error else "", []
    usable = [a for a in own if here is None or a in here or job.is_loopback(a)]
    if not usable:
        return "foreign", own[:3]
    return "loopback" if job.is_loopback(usable[0]) else "", usable[:1]


def _master(seen: Names, kind: str) -> Findings:
    from unhang.facts import job, names

    master, here = seen.master, seen.own_addresses
    if master is None:
        return
    if master.addresses is None:
        if master.error:
            yield Found(
                "master-unknown",
                remedies=(*(("kubernetes-service",) if kind == "kubernetes" else ()), "ask-each-host", "name-or-address"),
                master=master,
                error=names.error(master),
                late=master.error.startswith("no answer"),
            )
        return
    loopback = all(job.is_loopback(a) for a in master.addresses)
    said = master.addresses[:3]
    # Kubernetes operators give the first pod MASTER_ADDR=localhost, and the others its name.
    if loopback and (seen.job.hosts or 1) > 1 and not seen.job.first:
        yield Found("master-is-loopback", master=master, said=said, seen=seen)
    elif not loopback and seen.job.first and here and not any(a in here for a in master.addresses):
        yield Found("master-elsewhere", master=master, said=said, best=_best(here))


def _best(addresses: Sequence[str]) -> str:
    from unhang.facts import job

    return next((a for a in addresses if ":" not in a and not job.is_loopback(a)), addresses[0])
