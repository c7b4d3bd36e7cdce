"""gloo-connect in plain logs: which remedy comes first depends on the address and on the attempt."""

from __future__ import annotations

from dataclasses import replace

from unhang.knowledge.cause import LogView
from unhang.knowledge.causes.gloo_connect import CAUSE
from unhang.records.logs import match

FAILED = (
    "RuntimeError: Gloo connectFullMesh failed with [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:769] connect [{}]:21301: Connection refused"
)


def judge(text: str, attempt: int = 1):
    found = tuple(replace(h, attempt=attempt) for h in match(text, CAUSE.signatures, source="a.log", line=1))
    assert CAUSE.in_logs is not None
    return CAUSE.in_logs(LogView(hits={CAUSE.id: found}))


def test_the_interface_is_that_of_the_route_to_the_peer():
    found = judge(FAILED.format("10.0.0.4"))
    assert found.standing == "likely"
    assert found.remedies[0].id == "name-the-interface" and "ip -o route get 10.0.0.4" in (found.remedies[0].command or "")


def test_after_a_restart_the_whole_job_is_started_again():
    found = judge(FAILED.format("10.0.0.4"), attempt=2)
    assert [r.id for r in found.remedies] == ["restart-afresh", "look-at-the-peer"] and "after a restart" in found.says


def test_on_one_host_the_peer_is_looked_at_first():
    assert judge(FAILED.format("127.0.0.1")).remedies[0].id == "look-at-the-peer"


def test_a_message_without_an_address():
    assert "names no address" in judge("Gloo connectFullMesh failed with [../third_party/gloo/gloo/transport/tcp/pair.cc:144] no error").says
