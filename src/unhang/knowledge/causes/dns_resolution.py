"""dns-resolution: a host name does not resolve, or resolves to the host itself."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from unhang.knowledge.cause import Cause, LogView, Signature, command
from unhang.knowledge.text import NOTHING, Text
from unhang.model import Evidence, Finding, HostFinding, Remedy
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


_IPV6 = Signature(
    needle="The IPv6 network addresses of (",
    pattern=(
        r"The IPv6 network addresses of \((?P<name>[^,\s]+), (?P<port>\d+)\) cannot be retrieved \(gai error: (?P<code>-?\d+) - "
        r"(?P<error>[^)]*)\)"
    ),
    then=r"(?P<behind>.*)",
    standing="likely",
    says="the name {name} does not resolve on this host: {error}",
    says_zh="主机名 {name} 在本机无法解析：{error}",
    remedies=("hosts-file", "name-or-address", "ask-each-host"),
)
_LOOPBACK_FALLBACK = Signature(
    needle="Unable to resolve hostname to a (local) address",
    standing="possible",
    says="Gloo could not resolve this host's own name and listens on the loopback, where no other host can reach it",
    says_zh="Gloo 无法解析本机自己的名字，监听在回环地址上，其他主机都连不上",
    remedies=("own-name", "gloo-interface"),
)
# Warnings one after the other, each in another ten seconds than the one before it; the line that hits is looked at once more behind the last.
_ONE_BY_ONE = r"\n".join(
    rf"\[W\d{{3,4}} {f'(?!(?P=t{n - 1}))' if n else ''}(?P<t{n}>\d\d:\d\d:\d)\d\.\d{{1,9}} socket\.cpp:\d+\] .{{0,20}}The hostname of the client .*"
    for n in range(4)
)
# Nothing, or what a terminal and a shell print where somebody ends it.
_BY_HAND = lazily(r"\s*(?:$|\^C|(?:.{1,200}: line \d{1,9}: +\d{1,9} )?Terminated\b)")
_ENDED = ("launcher-teardown", "ended-by-scheduler", "host-oom-or-killed")
_HARMLESS_ALONE = (_IPV6, _LOOPBACK_FALLBACK)
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


CAUSE = Cause(
    id="dns-resolution",
    role="root",
    title="A host name does not resolve",
    title_zh="主机名无法解析",
    what="A name of a host of the job (often its own) has no address here, or has the loopback address that only the host itself can reach.",
    why=(
        "Names that only one host knows, /etc/hosts with the line '127.0.1.1 hostname' (Debian's and Ubuntu's default), a container without DNS, a "
        "Kubernetes service that is not ready or not headless."
    ),
    signatures=(
        Signature(
            needle="The IPv4 network addresses of (",
            pattern=(
                r"The IPv4 network addresses of \((?P<name>[^,\s]+), (?P<port>\d+)\) cannot be retrieved \(gai error: (?P<code>-?\d+) - "
                r"(?P<error>[^)]*)\)"
            ),
            says="the name {name} does not resolve on this host: {error}",
            says_zh="主机名 {name} 在本机无法解析：{error}",
            remedies=("hosts-file", "name-or-address", "ask-each-host"),
        ),
        # A name of digits only is read as one number, which is an address.
        Signature(
            needle="any network address of (",
            pattern=r"any network address of \((?P<name>\d{1,10}), (?P<port>\d+)\)",
            says="the host name {name} has only digits, and was read as the address 0.x.y.z of that number",
            says_zh="主机名 {name} 只有数字，被当成了与该数字对应的地址 0.x.y.z",
            remedies=("name-or-address", "own-name"),
        ),
        Signature(
            needle="network addresses of (",
            pattern=r"The IPv4/IPv6 network addresses of \((?P<name>[^,\s]+), (?P<port>\d+)\) cannot be retrieved",
            says="the name {name} does not resolve on this host",
            says_zh="主机名 {name} 在本机无法解析",
            remedies=("hosts-file", "name-or-address", "ask-each-host"),
        ),
        # torch up to 2.0, where the host of the rendezvous or of the store is not known (yet): pods come before their names.
        Signature(
            needle="host not found: ",
            pattern=r"(?:ValueError|RuntimeError|std::\w+): host not found: (?P<error>.{1,80})",
            says="the host of the rendezvous or of the store does not resolve here: {error}",
            says_zh="rendezvous 或 store 的主机名在本机无法解析：{error}",
            remedies=("kubernetes-service", "ask-each-host", "name-or-address"),
        ),
        # A name that stays a name in this message was not resolved.
        Signature(
            needle="The client socket has failed to connect to [",
            pattern=r"failed to connect to \[(?P<name>[A-Za-z][\w.-]*)\]:(?P<port>\d+) \(errno: 22 - Invalid argument\)",
            standing="likely",
            says="the name {name} does not resolve to an address that can be connected to",
            says_zh="主机名 {name} 没有解析出可以连接的地址",
            remedies=("name-or-address", "ask-each-host", "hosts-file"),
        ),
        _IPV6,
        _LOOPBACK_FALLBACK,
        # Each ended by the resolver's own timeout; mostly it fails at once, and nobody notices.
        Signature(
            needle="The hostname of the client socket cannot be retrieved",
            near=_ONE_BY_ONE,
            standing="likely",
            says="the addresses of the ranks have no names, and each look-up waits until the name server's time is over: the ranks start one by one",
            says_zh="各 rank 的地址没有对应的名字，每次反向查询都要等到域名服务器超时：各 rank 只能逐个启动",
            remedies=("hosts-file", "ask-each-host"),
        ),
        # The hub being out of reach is no matter between the hosts; its client prints the host in its own way.
        Signature(
            needle="socket.gaierror: [Errno",
            pattern=r"socket\.gaierror: \[Errno (?P<code>-\d+)\] (?P<error>.+)",
            unless=r"HTTPS?ConnectionPool|urllib|huggingface|hf-mirror|modelscope|aiohttp|httpx|wandb|HTTPS?Connection|\bapi\.(?!py\b)",
            says="a host name does not resolve: {error}",
            says_zh="有主机名无法解析：{error}",
            remedies=("ask-each-host", "hosts-file", "name-or-address"),
        ),
        Signature(
            needle="error encountered when getting address info",
            pattern=r"Net : error encountered when getting address info : (?P<error>.+)",
            says="NCCL could not resolve the host that NCCL_COMM_ID names: {error}",
            says_zh="NCCL 无法解析 NCCL_COMM_ID 指定的主机：{error}",
            remedies=("name-or-address", "hosts-file"),
        ),
        Signature(
            needle="rp != nullptr",
            pattern=r"rp != nullptr\. Unable to find (?:address|interface) for:? \[?(?P<name>[\w.:-]+)",
            says="Gloo cannot listen on the address of {name}: the name resolves to an address that this host does not have",
            says_zh="Gloo 无法监听 {name} 的地址：该名字解析出的地址不是本机的",
            remedies=("own-name", "gloo-interface"),
        ),
        # Gloo was given a loopback address of a peer, which the host name of that peer resolves to.
        Signature(
            needle="[127.0.1.1]",
            pattern=r"(?:connect |remote=)\[127\.0\.1\.1\]:(?P<port>\d+)",
            near=r"connectFullMesh|gloo|timed out connecting|SO_ERROR",
            standing="likely",
            says="a peer announced 127.0.1.1 as its address: its host name resolves to the loopback in its /etc/hosts",
            says_zh="有对端公布的地址是 127.0.1.1：它的 /etc/hosts 把自己的主机名解析到回环地址",
            remedies=("own-name", "gloo-interface"),
        ),
        Signature(
            needle="Could not resolve hostname",
            pattern=r"ssh: Could not resolve hostname (?!\S*(?:github|gitlab|bitbucket|gitee))(?P<name>[^\s:]+): (?P<error>.+)",
            unless=r"git clone|Could not read from remote repository",
            says="the launcher's ssh does not know the host {name}: {error}",
            says_zh="启动器的 ssh 无法识别主机名 {name}：{error}",
            remedies=("host-file-of-the-launcher", "ask-each-host", "hosts-file"),
        ),
        Signature(
            needle="hostname: ",
            pattern=r"hostname: (?P<error>Name or service not known|Temporary failure in name resolution|No address associated with hostname)",
            says="this host's own name does not resolve: {error}",
            says_zh="本机自己的名字无法解析：{error}",
            remedies=("own-name",),
        ),
        Signature(
            needle="getaddrinfo() failed",
            pattern=(
                r"getaddrinfo\(\) failed(?: for (?P<name>\S+?))?: (?P<error>Name or service not known|Temporary failure in name resolution|"
                r".{0,60}resolve.{0,40})"
            ),
            says="Slurm or MPI could not resolve a node name: {error}",
            says_zh="Slurm 或 MPI 无法解析某个节点名：{error}",
            remedies=("ask-each-host", "hosts-file"),
        ),
        Signature(
            needle="Unable to resolve",
            pattern=r"(?:slurm\w*|srun|sbatch)\b.*Unable to resolve \"?(?P<name>[\w.-]+)\"?",
            says="Slurm could not resolve the node name {name}",
            says_zh="Slurm 无法解析节点名 {name}",
            remedies=("ask-each-host", "hosts-file"),
        ),
        Signature(
            needle="DNS resolution failed for ",
            pattern=r"DNS resolution failed for (?P<name>[^\s:]+)(?::(?P<port>\d+))?: (?P<error>.{0,80})",
            says="the name {name} does not resolve: {error}",
            says_zh="主机名 {name} 无法解析：{error}",
            remedies=("ask-each-host", "hosts-file"),
        ),
        Signature(
            needle="no such host",
            pattern=(
                r"lookup (?!\S*(?:registry|docker\.|quay\.io|ghcr\.io|gcr\.io|\bcr\.|github|wandb|huggingface))(?P<name>[\w.-]+)"
                r"(?: on (?P<server>[\d.:]+))?: no such host"
            ),
            unless=r"pulling image|ImagePull|Failed to pull",
            standing="likely",
            says="the cluster's DNS does not know {name}",
            says_zh="集群的 DNS 里没有 {name}",
            remedies=("kubernetes-service", "ask-each-host"),
        ),
        Signature(
            needle="nable to resolve host address",
            pattern=r"[Uu]nable to resolve host address [‘'\"]?(?P<name>[\w.-]+)",
            standing="possible",
            says="the name {name} does not resolve on this host",
            says_zh="主机名 {name} 在本机无法解析",
            remedies=("ask-each-host", "hosts-file"),
        ),
    ),
    in_logs=_in_logs,
    on_host=_on_host,
    remedies=(
        Remedy(
            id="ask-each-host",
            says="Ask on every host for the name of every other one, and for its own.",
            says_zh="在每台主机上查询其他所有主机的名字，以及自己的名字。",
            command="for h in node1 node2; do getent ahosts $h || echo $h does not resolve; done; hostname -I",
        ),
        Remedy(
            id="host-file-of-the-launcher",
            says=(
                "Look at the name in the launcher's own list first: DeepSpeed's hostfile, mpirun's -H or --hostfile, horovodrun's -H. It has to "
                "stand there as this host resolves it, or as an address."
            ),
            says_zh=(
                "先看启动器自己的主机列表中的名字：DeepSpeed 的 hostfile，mpirun 的 -H 或 --hostfile，horovodrun 的 -H。那里要写本机能解析的名字，"
                "或写地址。"
            ),
            command="cat hostfile /job/hostfile 2>/dev/null; getent ahosts NAME || echo NAME does not resolve",
        ),
        Remedy(
            id="hosts-file",
            says="Write all hosts with their real addresses into /etc/hosts on each of them (in containers: --add-host name:address).",
            says_zh="把所有主机及其真实地址写进每台主机的 /etc/hosts（容器中用 --add-host 名称:地址）。",
            command="echo '10.0.0.1 node1' | sudo tee -a /etc/hosts",
            verify="getent ahosts node1",
        ),
        Remedy(
            id="own-name",
            says="Let the host's own name resolve to its network address: remove the line with 127.0.1.1 from /etc/hosts and write the real address.",
            says_zh="让主机自己的名字解析到网络地址：删除 /etc/hosts 中的 127.0.1.1 一行，改写为真实地址。",
            command=r"sudo sed -i \"/^127\.0\.1\.1/d\" /etc/hosts; echo \"$(hostname -I | cut -d' ' -f1) $(hostname)\" | sudo tee -a /etc/hosts",
            verify="getent ahosts $(hostname)   # must not begin with 127.",
        ),
        Remedy(
            id="name-or-address",
            says=(
                "Use the address instead of the name: MASTER_ADDR or --rdzv-endpoint by IP, and torchrun --local-addr with this host's own, which "
                "else is announced by name."
            ),
            says_zh="用地址代替名字：MASTER_ADDR 或 --rdzv-endpoint 写 IP，并用 torchrun --local-addr 写本机地址，否则它会以名字公布自己。",
            command="torchrun --rdzv-backend c10d --rdzv-endpoint 10.0.0.1:29500 --local-addr $(hostname -I | cut -d' ' -f1) ...",
        ),
        Remedy(
            id="gloo-interface",
            says="Tell Gloo the interface, and it asks for no name.",
            says_zh="直接告诉 Gloo 用哪块网卡，它就不再查询名字。",
            command="export GLOO_SOCKET_IFNAME=$(ip -o route get PEER_IP | grep -oP 'dev \\K\\S+')",
            verify="ss -tnlp | grep python   # it must listen on the address of that interface",
        ),
        Remedy(
            id="kubernetes-service",
            says=(
                "Give the pods names: a headless Service (clusterIP: None) with publishNotReadyAddresses: true, whose name is their subdomain. "
                "They then find each other before they are ready."
            ),
            says_zh=(
                "让 Pod 有名字：建立 headless Service（clusterIP: None），加上 publishNotReadyAddresses: true，并把它的名称写为 Pod 的 subdomain。"
                "这样 Pod 在就绪前就能互相找到。"
            ),
            command="kubectl get svc,endpoints -n NAMESPACE; kubectl exec POD -- getent hosts MASTER_NAME",
        ),
    ),
    instead={"kubernetes": {"hosts-file": "kubernetes-service", "own-name": "kubernetes-service"}},
    leads_to=("gloo-connect", "network-blocked", "rendezvous-misconfig", "interface-selection", "ssh-launcher", "rank-exception"),
    mistaken_for={
        "rendezvous-misconfig": "a name that resolves to the wrong host gives a timeout, not a gai error",
        "interface-selection": "with GLOO_SOCKET_IFNAME set, Gloo asks for no name",
        "gloo-connect": "a refused connection to 127.0.1.1 is a name in /etc/hosts, seen by a peer",
    },
    sources=(
        "https://docs.pytorch.org/docs/stable/elastic/run.html",
        "https://github.com/pytorch/pytorch/issues/150532",
        "https://www.debian.org/doc/manuals/debian-reference/ch05.en.html#_the_hostname_resolution",
    ),
    hits=(
        "[E socket.cpp:610] [c10d] The client socket has failed to connect to any network address of (07, 38110).",
        # Beside what Ray, Lightning and torchrun print.
        (
            '  File "/srv/env/lib/python3.11/site-packages/torch/distributed/elastic/multiprocessing/api.py", line 861, in start\n'
            "socket.gaierror: [Errno -3] Temporary failure in name resolution"
        ),
        (
            "See https://github.com/ray-project/ray/issues for the state of this\n"
            "ssh: Could not resolve hostname node8.cluster: Temporary failure in name resolution"
        ),
        (
            "The `LightningModule` registry was not changed\n"
            'Post "https://trainer-master-0:443/run": dial tcp: lookup trainer-master-0 on 10.96.0.10:53: no such host'
        ),
        "ValueError: host not found: Name or service not known",
        "[W1103 10:00:01.1 socket.cpp:767] [c10d] The client socket has failed to connect to [job7.internal]:50745 (errno: 22 - Invalid argument).",
        "[W socket.cpp:601] [c10d] The IPv4 network addresses of (node7, 53821) cannot be retrieved (gai error: -2 - Name or service not known).",
        "[E1103 10:00:01.1 socket.cpp:809] [c10d] The IPv4/IPv6 network addresses of (node7, 53821) cannot be retrieved.",
        (
            "[rank1]:[W1103 10:00:01.1 socket.cpp:764] [c10d] The IPv6 network addresses of (trainer-0, 29400) cannot be retrieved (gai error: -3 - "
            "Temporary failure in name resolution)."
        ),
        (
            "[rank0]:[W1103 15:40:16.2 ProcessGroupGloo.cpp:715] Warning: Unable to resolve hostname to a (local) address. Using the loopback "
            "address as fallback. Manually set the network interface to bind to with GLOO_SOCKET_IFNAME. (function operator())"
        ),
        "socket.gaierror: [Errno -2] Name or service not known",
        "node7:812:812 [0] misc/socket.cc:275 NCCL WARN Net : error encountered when getting address info : Name or service not known",
        "RuntimeError: [enforce fail at ../third_party/gloo/gloo/transport/tcp/device.cc:171] rp != nullptr. Unable to find address for: node7.lan",
        (
            "RuntimeError: Gloo connectFullMesh failed with [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:146] timed out connecting: "
            "SO_ERROR: Connection refused, remote=[127.0.1.1]:20901"
        ),
        "ssh: Could not resolve hostname node8: Name or service not known",
        "hostname: Temporary failure in name resolution",
        "srun: error: xgetaddrinfo: getaddrinfo() failed: Name or service not known",
        'srun: error: slurm_set_addr: Unable to resolve "node8"',
        "grpc: DNS resolution failed for node8:6379: C-ares status is not ARES_SUCCESS qtype=A name=node8: Domain name not found",
        "dial tcp: lookup train-master-0.train.svc on 10.96.0.10:53: no such host",
        "wget: unable to resolve host address 'node8'",
        "".join(
            f"[W1103 18:22:{s}.4 socket.cpp:200] [c10d] The hostname of the client socket cannot be retrieved. err=-3\n" for s in (18, 28, 38, 48)
        ),
    ),
    near_misses=(
        # In nearly every log of torch 2.
        "".join(f"[W1103 18:22:{s}.4 socket.cpp:200] [c10d] The hostname of the client socket cannot be retrieved. err=-3\n" for s in (28, 28, 31)),
        "ssh: Could not resolve hostname github.com: Temporary failure in name resolution",
        "dial tcp: lookup registry-1.docker.io on 10.96.0.10:53: no such host",
        "[W socket.cpp:767] [c10d] The client socket has failed to connect to [::ffff:10.0.0.4]:50745 (errno: 22 - Invalid argument).",
        "[W socket.cpp:601] [c10d] The client socket has failed to connect to [node7]:29500 (errno: 97 - Address family not supported by protocol).",
        "requests.exceptions.ConnectionError: HTTPSConnectionPool(host='huggingface.co', port=443): Failed to resolve 'huggingface.co'",
        "[W socket.cpp:663] [c10d] The client socket has failed to connect to [node7]:29500 (errno: 111 - Connection refused).",
        "[I socket.cpp:600] [c10d] The client socket will attempt to connect to an IPv6 address of (node7, 29500).",
        "RuntimeError: [enforce fail at ../third_party/gloo/gloo/transport/tcp/device.cc:83] ifa != nullptr. Unable to find address for: eth9",
        "hostname: node7",
    ),
    explain={
        "en": (
            "Hosts find each other by name, and here a name has no address, or has the loopback address (127.0.1.1), with which every peer "
            "reaches only itself. torchrun announces the host by its fully qualified name, Gloo listens on the address of the host's own name, "
            "so a name that resolves on one host alone is not enough. Ask with getent ahosts NAME on every host, for every host. Then write "
            "/etc/hosts, or use addresses and GLOO_SOCKET_IFNAME. The IPv6 warning alone, in a job that goes on, is harmless."
        ),
        "zh": (
            "主机之间靠名字互相寻找，而这里某个名字没有地址，或者解析到回环地址（127.0.1.1），于是每个对端都只连到自己。torchrun 用完整主机名公"
            "布自己，Gloo 监听本机名字解析出的地址，所以只在一台主机上能解析是不够的。在每台主机上对所有主机名执行 getent ahosts。然后修改 "
            "/etc/hosts，或者改用地址并设置 GLOO_SOCKET_IFNAME。如果任务仍在继续，单独一条 IPv6 警告是无害的。"
        ),
    },
)
