"""rendezvous-misconfig in plain logs: who came, where they met, and what healthy jobs print as well."""

from __future__ import annotations

from dataclasses import replace

import pytest

from unhang.frames import Frame
from unhang.knowledge import catalogue
from unhang.knowledge.cause import LogView
from unhang.logs import Hit, Traceback, match

CAUSE = catalogue.load()["rendezvous-misconfig"]

TIMED_OUT = "torch.distributed.elastic.rendezvous.api.RendezvousTimeoutError"
NO_ID = "WARNING:torch.distributed.launcher.api:config has no run_id, generated a random run_id: 1745806504"
UNREAD = "master_addr is only used for static rdzv_backend and when rdzv_endpoint is not specified."
CLOSED = "torch.distributed.elastic.rendezvous.api.RendezvousClosedError"
NO_ANSWER = "[E socket.cpp:860] [c10d] The client socket has timed out after 60s while trying to connect to (10.0.0.9, 29500)."
JOINED = "torch.distributed.DistStoreError: Timed out after 601 seconds waiting for clients. {} clients joined."
NODE = "Multi-node training enabled: num nodes: 2, node rank: {}"


def view(*lines: str | tuple[str, str]) -> LogView:
    known = catalogue.signatures()
    hits: dict[str, tuple[Hit, ...]] = {}
    for number, entry in enumerate(lines, 1):
        source, text = entry if isinstance(entry, tuple) else ("a.log", entry)
        for h in match(text, known, source=source, line=number):
            hits[known[h.signature]] = (*hits.get(known[h.signature], ()), h)
    return LogView(hits=hits)


def judge(*lines: str | tuple[str, str]):
    assert CAUSE.in_logs is not None
    return CAUSE.in_logs(view(*lines))


def test_each_host_made_up_its_own_id():
    found = judge(NO_ID, TIMED_OUT)
    assert found.standing == "likely" and "no --rdzv-id" in found.says and found.remedies[0].id == "same-rendezvous-id"


def test_an_address_that_nothing_reads():
    assert "--master-addr was given and is not read" in judge(UNREAD, NO_ANSWER).says


def test_what_healthy_jobs_print_is_no_finding():
    assert judge(NO_ID, UNREAD, NODE.format(0)) is None


def test_too_few_came_is_possible_only():
    found = judge(JOINED.format("1/2"))
    assert found.standing == "possible" and "1 of 2 processes came" in found.says


def test_too_many_came():
    assert "started twice" in judge(JOINED.format("3/2")).says


def test_what_explains_it_is_left_to_speak():
    blocked = "[W socket.cpp:663] [c10d] The client socket has failed to connect to [node4]:29500 (errno: 113 - No route to host)."
    assert judge(JOINED.format("1/2"), blocked) is None


def test_a_closed_rendezvous_is_the_echo_of_a_failed_rank():
    assert judge(CLOSED).standing == "possible"
    killed = "[88123.41] Out of memory: Killed process 4720 (python3) total-vm:91234567kB"
    assert judge(CLOSED, killed) is None


def test_a_store_that_is_gone_says_nothing_of_the_address():
    gone = (
        "[W1103 01:31:40.1 TCPStore.cpp:138] [c10d] recvValue failed on SocketImpl(fd=4): Failed to recv, got 0 bytes. Connection was likely closed."
    )
    assert judge(UNREAD, gone) is None
    assert judge(UNREAD, NO_ANSWER).standing == "possible"


WAITING = (
    "INFO - Waiting in store based barrier to initialize process group for rank: 1, key: store_based_barrier_key:1 (world_size=4, "
    "worker_count={}, timeout=0:30:00)"
)


def test_more_than_were_expected_wait_for_ever():
    found = judge(WAITING.format(6), WAITING.format(6))
    assert found.standing == "possible" and "6 processes came where 4 were expected" in found.says


@pytest.mark.parametrize("joined", [1, 3, 4])
def test_who_waits_for_the_others_is_healthy(joined):
    assert judge(WAITING.format(joined)) is None


def test_a_wait_does_not_make_a_failure_of_what_healthy_jobs_print():
    assert judge(WAITING.format(3), UNREAD, NO_ID) is None


NO_STORE = "torch.distributed.elastic.rendezvous.api.RendezvousConnectionError: The connection to the C10d store has failed."


def test_two_hosts_with_one_number():
    found = judge(("node1.log", NODE.format(0)), ("node2.log", NODE.format(0)))
    assert found.standing == "likely" and "two hosts each believe they are node 0 of 2" in found.says
    assert judge(("node1.log", NODE.format(0)), ("node2.log", NODE.format(1))) is None


@pytest.mark.parametrize("address", ["(10.0.0.9, 29500)", "10.0.0.9:29500"])
def test_the_address_that_did_not_answer_is_tried_by_the_command(address):
    found = judge(NO_ANSWER.replace("(10.0.0.9, 29500)", address), NO_STORE)
    assert "10.0.0.9 port 29500" in found.says
    assert any(r.command == "getent ahosts 10.0.0.9; nc -vz -w 5 10.0.0.9 29500" for r in found.remedies)


def test_an_agent_that_waited_for_the_others():
    def back(file: str, name: str) -> LogView:
        frame = Frame(file=file, line=1, name=name)
        return LogView(
            tracebacks=(Traceback(source="a.log", line=1, end=9, type="DistStoreError", text="Socket Timeout", frames=(frame,), rank=None),)
        )

    assert CAUSE.in_logs is not None
    found = CAUSE.in_logs(back("/opt/venv/torch/distributed/elastic/agent/server/api.py", "_assign_worker_ranks"))
    assert found.standing == "likely" and "two have one node rank" in found.says and found.remedies[0].id == "one-number-each"
    assert CAUSE.in_logs(back("/srv/job/train.py", "synchronize")) is None


def test_agents_that_wait_at_the_end_were_there():
    frames = tuple(
        Frame(file=f"/opt/venv/torch/distributed/elastic/{file}", line=1, name=name)
        for file, name in (("agent/server/api.py", "_exit_barrier"), ("utils/store.py", "synchronize"))
    )
    back = Traceback(source="a.log", line=1, end=9, type="DistStoreError", text="Socket Timeout", frames=frames, rank=None)
    assert CAUSE.in_logs is not None and CAUSE.in_logs(LogView(tracebacks=(back,))) is None
    assert CAUSE.in_logs(LogView(tracebacks=(replace(back, frames=frames[1:]),))) is not None
