"""interface-selection in plain logs: what NCCL said it chose counts only where hosts failed to reach each other."""

from __future__ import annotations

from unhang.knowledge import catalogue
from unhang.knowledge.cause import LogView
from unhang.logs import Hit, match
from unhang.logs.log_facts import At, NcclSaid

CAUSE = catalogue.load()["interface-selection"]
NONE_FOUND = "node7:1958:1958 [3] bootstrap.cc:45 NCCL WARN Bootstrap : no socket interface found"
NO_FAMILY = "ncclSocketInit: connecting to address  with family 40321 is neither AF_INET(2) nor AF_INET6(10)"
REFUSED = "node2:240:240 [6] misc/socket.cc:533 NCCL WARN socketStartConnect: Connect to 10.0.0.4<56849> failed : No route to host"


def hits(*texts: str) -> dict[str, tuple[Hit, ...]]:
    known = catalogue.signatures()
    found: dict[str, list[Hit]] = {}
    for line, text in enumerate(texts, 1):
        for hit in match(text, known, source="a.log", line=line):
            found.setdefault(known[hit.signature], []).append(hit)
    return {c: tuple(h) for c, h in found.items()}


def chosen(**interfaces: str) -> NcclSaid:
    said: dict[str, tuple[At, ...]] = {}
    for host, name in interfaces.items():
        at = At(source="a.log", line=1, text=f"{host}:1:1 [0] NCCL INFO Bootstrap : Using {name}", host=host)
        said[f"Bootstrap {name}"] = (*said.get(f"Bootstrap {name}", ()), at)
    return NcclSaid(interfaces=said)


def judge(view: LogView):
    assert CAUSE.in_logs is not None
    return CAUSE.in_logs(view)


def test_the_variable_that_matches_nothing_is_named():
    nccl = NcclSaid(settings={"NCCL_SOCKET_IFNAME=eth2": ()})
    for text in (NONE_FOUND, NO_FAMILY):
        found = judge(LogView(hits=hits(text), nccl=nccl))
        assert found.standing == "established" and "NCCL_SOCKET_IFNAME=eth2" in found.says
    assert judge(LogView(hits=hits(NO_FAMILY))).standing == "likely"


def test_loopback_on_two_hosts_that_cannot_connect():
    found = judge(LogView(hits=hits(REFUSED), nccl=chosen(node1="lo:127.0.0.1<0>", node2="lo:127.0.0.1<0>")))
    assert (found.standing, found.hosts) == ("likely", ("node1", "node2")) and "interface lo" in found.says


def test_a_virtual_interface_on_one_of_two_hosts():
    found = judge(LogView(hits=hits(REFUSED), nccl=chosen(node1="eth0:10.0.0.1<0>", node2="veth1a2b:fe80::1%veth1a2b<0>")))
    assert found.hosts == ("node2",) and "1 of 2 hosts" in found.says


def test_nothing_is_said_of_healthy_jobs_or_of_one_host():
    two = chosen(node1="lo:127.0.0.1<0>", node2="lo:127.0.0.1<0>")
    assert judge(LogView(nccl=two)) is None
    assert judge(LogView(hits=hits(REFUSED), nccl=chosen(node1="lo:127.0.0.1<0>"))) is None
    assert judge(LogView(hits=hits(REFUSED), nccl=chosen(node1="eth0:10.0.0.1<0>", node2="bond0:10.0.0.2<0>"))) is None


UCX = "[node7:812:0]            sock.c:260  UCX  ERROR   connect(fd=41, dest_addr={}:45031) failed: Connection refused"


def test_ucx_went_over_dockers_bridge():
    assert CAUSE.in_logs is not None
    found = CAUSE.in_logs(LogView(hits=hits(UCX.format("172.17.0.1"))))
    assert found.standing == "likely" and found.remedies[0].id == "ucx-device"
    assert CAUSE.in_logs(LogView(hits=hits(UCX.format("10.4.0.9")))) is None
