"""dns-resolution: a host name does not resolve, or resolves to the host itself."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from unhang.knowledge.cause import LogView, cause, command
from unhang.knowledge.text import NOTHING, Text
from unhang.model import Evidence, Finding, HostFinding
from unhang.patterns import lazily

if TYPE_CHECKING:
    from unhang.facts.names import Names
    from unhang.facts.snapshot import Snapshot
    from unhang.logs import Hit

# Lines that also stand in runs that work: they count only where ranks did not meet.
_NEVER_MET = ("gloo-connect", "network-blocked")
# Of the store and the rendezvous what says that nobody answered; that a store is gone says only that its rank has ended.
_NO_ANSWER = (
    "client socket has timed out after", "clients joined", "in store based barrier on rank", "wait timeout after ", "waitForInput: ",
    "Socket Timeout", "connect() timed out", "RendezvousConnectionError", "RendezvousTimeoutError",
)  # fmt: skip
_UNMET_ERRORS = ("DistNetworkError", "DistStoreError", "RendezvousConnectionError", "RendezvousTimeoutError", "TimeoutError")


def _in_logs(view: LogView) -> Finding | None:
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
_OWN_NAME = r"sudo sed -i '/^127\.0\.1\.1/d' /etc/hosts; echo '{address:host} {name:host}' | sudo tee -a /etc/hosts"
_CONTAINERS = ("docker", "podman", "kubernetes", "container")


def _on_host(host: Snapshot) -> Iterable[HostFinding]:
    from unhang.facts import container, names, network

    seen = host.get(names.SUBJECT)
    if seen is None:
        return
    several, kind = network.several_hosts(host), container.kind(host)
    net = host.get(network.SUBJECT)
    way = network.uplink(net) if net is not None else None
    real = next((a.partition("/")[0] for a in way.addresses), "ADDRESS") if way is not None else "ADDRESS"
    commands = {
        "own-name": command(_OWN_NAME, address=real, name=seen.host_name),
        "hosts-file": command("docker run --add-host {name:host}:{address:host} ...", name=seen.host_name, address=real),
        "gloo-interface": command("export GLOO_SOCKET_IFNAME={way:interface}", way=way.name if way is not None else "NAME"),
        "name-or-address": command("torchrun --local-addr {address:host} ...", address=real),
    }
    repair = ("hosts-file" if kind in _CONTAINERS else "own-name", "gloo-interface", "name-or-address")
    own, told = seen.own.addresses, _own_trouble(seen)
    if told:
        lines = [h for h in seen.hosts_lines if seen.host_name in h.names]
        evidence = tuple(Evidence(source="/etc/hosts", line=h.line, text=f"{h.address} {' '.join(h.names)}") for h in lines[:2])
        yield CAUSE.host_finding(
            area="names",
            severity="warning" if several else "note",
            says=Text("this host's own name {name} {told}", "本机自己的名字 {name} {told}").fill(name=seen.host_name, told=told),
            leads_to=Text(
                "with several hosts Gloo listens where none of them reaches it, and torchrun announces that name to them; one host alone works",
                "多台主机时 Gloo 监听在其他主机到不了的地方，torchrun 还把这个名字告诉它们；单台主机可以工作",
            ),
            evidence=evidence or (Evidence(source=f"getent ahosts {seen.host_name}", text=", ".join(own) if own else seen.own.error),),
            remedies=repair,
            commands=commands,
        )
    yield from _master(seen, several, kind)
    slow = max((a for a in (seen.own, seen.master) if a is not None and a.took_s is not None), key=lambda a: a.took_s or 0, default=None)
    if slow is not None and slow.addresses is not None and (slow.took_s or 0) >= 1:
        yield CAUSE.host_finding(
            area="names",
            severity="warning",
            says=Text(f"looking up {slow.name} took {slow.took_s:g} s", f"解析 {slow.name} 用了 {slow.took_s:g} 秒"),
            leads_to=Text(
                "each rank looks names up several times while it starts: the rendezvous times out on large jobs",
                "每个 rank 启动时多次解析主机名：大作业的 rendezvous 会超时",
            ),
            evidence=(Evidence(source="/etc/resolv.conf", text=", ".join(seen.dns_servers) or "no nameserver"),),
            remedies=("ask-each-host", "name-or-address"),
            commands={"ask-each-host": command("time getent ahosts {name:host}; cat /etc/resolv.conf /etc/nsswitch.conf", name=slow.name)},
        )


def _own_trouble(seen: Names) -> Text:
    """What is wrong with this host's own name; Gloo takes the first address that is one of this host."""
    from unhang.facts import job

    own, here = seen.own.addresses, seen.own_addresses
    if own is None:
        return Text("does not resolve ({error})", "无法解析（{error}）").fill(error=seen.own.error) if seen.own.error else NOTHING
    usable = [a for a in own if here is None or a in here or job.is_loopback(a)]
    if not usable:
        return Text("resolves to {found}, no address of this host", "解析为 {found}，不是本机的地址").fill(found=", ".join(own[:3]))
    return Text("resolves to {it}, the loopback", "解析为回环地址 {it}").fill(it=usable[0]) if job.is_loopback(usable[0]) else NOTHING


def _master(seen: Names, several: bool, kind: str) -> Iterable[HostFinding]:
    from unhang.facts import job, names

    master, here = seen.master, seen.own_addresses
    if master is None:
        return
    evidence = (Evidence(source="the environment", text=f"MASTER_ADDR={master.name}"),)
    late = master.error.startswith("no answer")
    if master.addresses is None:
        if master.error:
            yield CAUSE.host_finding(
                area="names",
                severity="error",
                says=Text("MASTER_ADDR={name} does not resolve: {error}", "MASTER_ADDR={name} 无法解析：{error}").fill(
                    name=master.name, error=names.error(master)
                ),
                leads_to=Text("no rank of this host reaches the store", "本机的 rank 都连不上 store")
                if not late
                else Text("the rendezvous waits for the name server, longer than its own timeout", "rendezvous 等待域名服务器的时间超过自身的超时"),
                evidence=evidence,
                remedies=(*(("kubernetes-service",) if kind == "kubernetes" else ()), "ask-each-host", "name-or-address"),
                commands={
                    "ask-each-host": command("getent ahosts {name:host}; cat /etc/resolv.conf", name=master.name),
                    "name-or-address": command("export MASTER_ADDR=ADDRESS"),
                },
            )
        return
    loopback = all(job.is_loopback(a) for a in master.addresses)
    said = ", ".join(master.addresses[:3])
    # Kubernetes operators give the first pod MASTER_ADDR=localhost, and the others its name.
    if loopback and (seen.job.hosts or 1) > 1 and not seen.job.first:
        yield CAUSE.host_finding(
            area="names",
            severity="error",
            says=Text(
                f"MASTER_ADDR={master.name} is this very host ({said}), and the job has {seen.job.hosts} hosts",
                f"MASTER_ADDR={master.name} 就是本机（{said}），而作业有 {seen.job.hosts} 台主机",
            ),
            leads_to=Text(
                "every host waits for the others at its own loopback until the rendezvous times out",
                "每台主机都在自己的回环地址上等别人，直到 rendezvous 超时",
            ),
            evidence=evidence,
            remedies=("name-or-address",),
            commands={"name-or-address": command("export MASTER_ADDR=ADDRESS_OF_THE_FIRST_HOST")},
        )
    elif not loopback and seen.job.first and here and not any(a in here for a in master.addresses):
        yield CAUSE.host_finding(
            area="names",
            severity="warning",
            says=Text(
                f"rank 0 runs here, and MASTER_ADDR={master.name} ({said}) is no address of this host",
                f"rank 0 在本机运行，而 MASTER_ADDR={master.name}（{said}）不是本机的地址",
            ),
            leads_to=Text(
                "the store listens here while everybody asks for it there (right only where that address is forwarded to this host)",
                "store 在这里监听，大家却到那里去找（只有那个地址转发到本机时才正确）",
            ),
            evidence=evidence,
            remedies=("name-or-address",),
            commands={"name-or-address": command("export MASTER_ADDR={address:host}", address=_best(here))},
        )


def _best(addresses: Sequence[str]) -> str:
    from unhang.facts import job

    return next((a for a in addresses if ":" not in a and not job.is_loopback(a)), addresses[0])


CAUSE = cause("dns-resolution", in_logs=_in_logs, on_host=_on_host)
_IPV6 = CAUSE.signature("ipv6")
_LOOPBACK_FALLBACK = CAUSE.signature("loopback-fallback")
_HARMLESS_ALONE = (_IPV6, _LOOPBACK_FALLBACK)
