"""Plain logs: the same signatures, nothing made up, and what was not looked at is said."""

from __future__ import annotations

import pytest

from unhang.diagnosis.plain_logs import judge_logs
from unhang.errors import UnhangError

PORT = (
    "[rank0]: torch.distributed.DistNetworkError: The server socket has failed to listen on any local network address. port: 29500, "
    "useIpv6: false, code: -98, name: EADDRINUSE, message: address already in use\n"
)
TRACE = (
    '[rank1]: Traceback (most recent call last):\n[rank1]:   File "/home/u/train.py", line 7, in main\n[rank1]:     x()\n[rank1]: ValueError: bad\n'
)
VICTIM = "[rank0]: RuntimeError: [/g/gloo/transport/tcp/pair.cc:553] Connection closed by peer [10.0.0.2]:47492.\n"
TEARDOWN = "E1103 1 torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: 1) local_rank: 1 (pid: 7) of binary: python\n"


@pytest.fixture
def judge(tmp_path):
    def judge(text, name="train.log"):
        path = tmp_path / name
        path.write_text(text)
        return judge_logs([path])

    return judge


def test_a_port(judge):
    v = judge(PORT)
    assert (v.primary.cause, v.primary.standing, v.primary.ranks) == ("port-in-use", "established", (0,))
    assert v.primary.evidence[0].line == 1 and v.inputs[0].kind == "log"
    assert any("only logs were given" in n.why for n in v.not_examined)


def test_an_exception_behind_its_victims(judge):
    v = judge(VICTIM + TRACE + TEARDOWN)
    assert (v.primary.cause, v.primary.ranks, v.primary.where) == ("rank-exception", (1,), "/home/u/train.py:7 in main")
    assert {s.cause for s in v.symptoms} == {"peer-lost", "launcher-teardown"} and not v.contributing


def test_only_victims_is_not_established(judge):
    v = judge(VICTIM)
    assert (v.primary.cause, v.primary.standing) == ("peer-lost", "not-established")
    assert "unhang run" in (v.primary.remedies[0].command or "")


def test_a_kill_seen_by_the_launcher(judge):
    v = judge(TEARDOWN.replace("exitcode: 1", "exitcode: -9"))
    assert (v.primary.cause, v.primary.standing) == ("host-oom-or-killed", "established")


def test_a_failure_without_a_name(judge):
    v = judge("step 1\nSegmentation fault (core dumped)\n")
    assert (v.primary.cause, v.primary.standing) == ("unknown", "not-established") and v.primary.evidence[0].line == 2


def test_a_healthy_log(judge):
    v = judge("step 1 loss 2.0\nstep 2 loss 1.9\ndone\n")
    assert v.primary is None and v.not_examined


def test_what_is_no_log(tmp_path, judge):
    assert any("none of a training" in n.why for n in judge("root:x:0:0:root:/root:/bin/bash\n", "passwd").not_examined)
    binary = tmp_path / "ls"
    binary.write_bytes(b"\x7fELF\0\0 Segmentation fault [Errno 98] Address already in use\n")
    v = judge_logs([binary])
    assert v.primary is None and not v.inputs and any(n.why == "it is not text" for n in v.not_examined)


def test_a_directory(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "rank1.log").write_text(TRACE)
    (tmp_path / "rank0.log").write_text(VICTIM)
    (tmp_path / "model.bin").write_bytes(b"\0" * 10)
    (tmp_path / "old.log.gz").write_bytes(b"\x1f\x8b\0\0")
    v = judge_logs([tmp_path])
    assert v.primary.cause == "rank-exception"
    assert {n.why for n in v.not_examined} >= {"it is not text", "it is compressed; unpack it first"}


def test_bad_input(tmp_path):
    with pytest.raises(UnhangError, match="cannot read"):
        judge_logs([tmp_path / "none"])
    with pytest.raises(UnhangError, match="there is no log in"):
        judge_logs([tmp_path])
    with pytest.raises(UnhangError, match="neither a file nor a directory"):
        from pathlib import Path

        judge_logs([Path("/dev/null")])
