"""network-blocked in plain logs: which peer, which port, and what is no network at all."""

from __future__ import annotations

from unhang.knowledge import catalogue
from unhang.knowledge.cause import LogView
from unhang.logs import Hit, match

CAUSE = catalogue.load()["network-blocked"]

C10D = "[W socket.cpp:663] [c10d] The client socket has failed to connect to [::ffff:{}]:29500 (errno: 110 - Connection timed out)."
NCCL = "node5:240:240 [6] misc/socket.cc:533 NCCL WARN socketPollConnect: Connect to {}<56849> returned 113(No route to host) errno 115"


def judge(*texts: str):
    found: list[Hit] = [h for n, t in enumerate(texts) for h in match(t, CAUSE.signatures, source="a.log", line=n + 1)]
    assert CAUSE.in_logs is not None
    return CAUSE.in_logs(LogView(hits={CAUSE.id: tuple(found)}))


def test_the_command_tries_the_port_that_failed():
    found = judge(NCCL.format("10.0.0.4"))
    assert "10.0.0.4" in found.says and "56849" in found.says
    assert any(r.command == "nc -vz -w 5 10.0.0.4 56849; ip route get 10.0.0.4" for r in found.remedies)


def test_several_peers_are_counted():
    assert judge(NCCL.format("10.0.0.4"), NCCL.format("10.0.0.5")).says.startswith("2 addresses could not be reached (10.0.0.4, 10.0.0.5)")


def test_a_missing_route_speaks_before_a_refusal():
    refused = "node5:1:1 [6] misc/socket.cc:480 NCCL WARN socketStartConnect: Connect to 10.0.0.9<39211> failed : Connection refused"
    found = judge(refused, NCCL.format("10.0.0.4"))
    assert found.standing == "likely" and "No route to host" in found.says


def test_an_address_mapped_into_ipv6_is_told_apart_as_well():
    assert judge(C10D.format("10.0.0.4")) is not None
    assert judge(C10D.format("255.255.255.0")) is None
    assert judge("x pair.cc gloo/transport/tcp/pair.cc:1] connect [::ffff:127.0.0.1]:21301: Connection timed out") is None


def test_a_store_that_waits_and_is_not_reached(logs):
    tried = "[E1121 10:48:37.05 socket.cpp:1028] [c10d] The client socket has timed out after 5000ms while trying to connect to (10.77.0.1, 29500)."
    waited = "torch.distributed.DistStoreError: Timed out after 6 seconds waiting for clients. 1/2 clients joined."
    found = catalogue.get("network-blocked").in_logs(logs.view(hits=logs.lines(f"{tried}\n{waited}")))
    assert found.standing == "likely" and "1 of 2 processes" in found.says and "10.77.0.1 port 29500" in found.says
    for text in (tried, waited, f"{tried.replace('10.77.0.1', 'localhost')}\n{waited}", f"{tried}\n{waited.replace('1/2', '2/2')}"):
        assert catalogue.get("network-blocked").in_logs(logs.view(hits=logs.lines(text))) is None


def test_an_address_that_torch_had_freed_is_not_said(logs):
    failed = "[c10d] The client socket has failed to connect to 18.86.0.0:35771 (errno: 113 - No route to host)."
    assert "18.86" not in catalogue.get("network-blocked").in_logs(logs.view(hits=logs.lines(failed))).says
    named = "[c10d] The client socket has failed to connect to any network address of (10.77.0.1, 29500)."
    found = catalogue.get("network-blocked").in_logs(logs.view(hits=logs.lines(f"{failed}\n{named}")))
    assert found.standing == "likely" and "10.77.0.1 port 29500" in found.says and "18.86" not in found.says


UCX = "[node7:812:0] sock.c:323  UCX  ERROR   connect(fd=41, dest_addr={}:45031) failed: {}"


def test_ucx_has_no_way_to_a_peer():
    assert judge(UCX.format("10.4.0.9", "No route to host")).says.endswith("10.4.0.9 port 45031: No route to host")
    assert judge(UCX.format("172.17.0.1", "No route to host")) is None
    assert judge(UCX.format("10.4.0.9", "Operation now in progress")) is None
