"""gloo-connect in plain logs: which remedy comes first depends on the address and on the attempt."""

from __future__ import annotations

from dataclasses import replace

from unhang.diagnosis.logs import judge_logs
from unhang.knowledge import catalogue
from unhang.knowledge.cause import LogView
from unhang.logs import match

CAUSE = catalogue.load()["gloo-connect"]

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
    assert [r.id for r in found.remedies] == ["own-store", "restart-afresh", "look-at-the-peer"] and "after a restart" in found.says


def test_on_one_host_the_peer_is_looked_at_first():
    assert judge(FAILED.format("127.0.0.1")).remedies[0].id == "look-at-the-peer"


def test_a_message_without_an_address():
    assert "names no address" in judge("Gloo connectFullMesh failed with [../third_party/gloo/gloo/transport/tcp/pair.cc:144] no error").says


# torchrun --standalone --nproc-per-node 2 --max-restarts 1, torch 2.13, a rank that ends once with 7.
RESTARTED = """rank 1 dies
W1123 20:02:32.147000 1352 torch/distributed/elastic/multiprocessing/api.py:1028] Sending process 1377 closing signal SIGTERM
E1123 20:02:32.213000 1352 torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: 7) local_rank: 1 (pid: 1378) of binary: python
rank 1 attempt 1 pid 1471 init begin
[E1123 20:02:44.008252986 ProcessGroupGloo.cpp:67] Gloo connectFullMesh failed with [/__w/pytorch/pytorch/third_party/gloo/gloo/transport/tcp/\
pair.cc:152] timed out connecting: SO_ERROR: Connection refused, remote=[127.0.0.1]:13201$1
"""


def test_a_restart_of_which_torchrun_says_nothing(tmp_path):
    log, fresh = tmp_path / "train.log", tmp_path / "fresh.log"
    log.write_text(RESTARTED)
    found = judge_logs([str(log)]).verdict.primary
    assert (found.cause, found.remedies[0].id) == ("gloo-connect", "own-store") and "after a restart" in found.says
    assert found.remedies[0].env == {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    fresh.write_text(RESTARTED.partition("init begin\n")[2])
    found = judge_logs([str(fresh)]).verdict.primary
    assert found.cause == "gloo-connect" and "after a restart" not in found.says
