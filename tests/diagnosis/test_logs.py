"""Verdicts on logs alone: roots over symptoms, nothing made up, and what was not looked at is said."""

from __future__ import annotations

import gzip
import io
import tarfile

import pytest

from unhang.diagnosis.logs import judge_logs
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
        return judge_logs([str(path)]).verdict

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


def test_an_ordinary_file(judge):
    assert any("none of a training" in n.why for n in judge("root:x:0:0:root:/root:/bin/bash\n", "passwd").not_examined)


def test_a_directory(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "rank1.log").write_text(TRACE)
    (tmp_path / "rank0.log.gz").write_bytes(gzip.compress(VICTIM.encode()))
    (tmp_path / "model.safetensors").write_bytes(b"\0" * 10)
    v = judge_logs([str(tmp_path)]).verdict
    assert (v.primary.cause, v.primary.ranks) == ("rank-exception", (1,))
    assert [s.cause for s in v.symptoms] == ["peer-lost"] and len(v.inputs) == 2
    assert any("no log" in n.why or "not" in n.why for n in v.not_examined)


def test_ranks_of_a_job_in_an_archive(tmp_path):
    archive = tmp_path / "job.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        for name, text in (("logs/rank0.err", VICTIM), ("logs/rank1.err", TRACE)):
            info = tarfile.TarInfo(name)
            info.size = len(text)
            tar.addfile(info, io.BytesIO(text.encode()))
    v = judge_logs([str(archive)]).verdict
    assert (v.primary.cause, v.primary.ranks) == ("rank-exception", (1,)) and v.primary.evidence[0].source.endswith("job.tar.gz!logs/rank1.err")


def test_bad_input(tmp_path):
    for path, says in ((tmp_path / "none", "none"), (tmp_path, "there is no log in"), ("/dev/null", "not a file")):
        with pytest.raises(UnhangError, match=says):
            judge_logs([str(path)])
    (tmp_path / "log").write_text(VICTIM)
    with pytest.raises(UnhangError, match="there is no attempt 2: the logs hold 1"):
        judge_logs([str(tmp_path / "log")], attempt=2)


START = "*****************************************\nSetting OMP_NUM_THREADS environment variable for each process to be 1 in default\n"


def test_attempts_are_told_apart(tmp_path):
    path = tmp_path / "log"
    path.write_text(START + TRACE + TEARDOWN + START + PORT)
    judged = judge_logs([str(path)])
    assert (judged.attempts, judged.attempt, judged.verdict.primary.cause) == (2, 2, "port-in-use")
    assert judge_logs([str(path)], attempt=1).verdict.primary.cause == "rank-exception"
    assert {m.cause for m in judged.timeline} == {None, "port-in-use"}


def test_an_attempt_that_holds_only_consequences_is_explained_by_the_one_before(tmp_path, judge):
    v = judge(START + TRACE + TEARDOWN + START + VICTIM)
    assert v.primary.cause == "rank-exception" and "in attempt 1 of 2" in v.primary.says


def test_a_restart_that_went_well_is_no_failure(judge):
    v = judge(START + TRACE + TEARDOWN + START + "step 1\ndone\n")
    assert v.primary is None and any("attempt 1 of 2" in n.what and "--attempt 1" in n.why for n in v.not_examined)


def test_an_attempt_that_has_only_begun_tells_nothing(judge):
    v = judge(START + TRACE + TEARDOWN + START)
    assert v.primary.cause == "rank-exception" and "in attempt" not in v.primary.says
    assert any(n.what == "attempt 2 of 2" and "only begun" in n.why for n in v.not_examined)


def test_the_earliest_across_hosts_whose_clocks_differ(tmp_path):
    """node8 is an hour ahead: by its own clock it failed last, by the moment at which the communicator was complete it failed first."""
    done = "{host}:4711:4790 [0] NCCL INFO comm 0x55 rank {rank} nranks 2 cudaDev 0 nvmlDev 0 busId 1 commId 0x77 - Init COMPLETE"
    raised = '[{t}] Traceback (most recent call last):\n  File "/srv/{host}.py", line 7, in main\n    x()\nValueError: on {host}\n'
    for host, rank, hour, seconds in (("node7", 0, 10, 30), ("node8", 1, 11, 10)):
        completed = f"[2026-11-03 {hour}:00:00] {done.format(host=host, rank=rank)}\n"
        (tmp_path / f"{host}.log").write_text(completed + raised.format(t=f"2026-11-03 {hour}:05:{seconds}", host=host))
    v = judge_logs([str(tmp_path)]).verdict
    assert "on node8" in v.primary.says, v.primary


def test_pids_tell_ranks(judge):
    init = "node7:4712:4790 [1] NCCL INFO comm 0x55 rank 1 nranks 2 cudaDev 1 nvmlDev 1 busId 2 commId 0x77 - Init COMPLETE\n"
    fault = (
        "node7:4712:4799 [1] misc/shmutils.cc:71 NCCL WARN Error: failed to extend /dev/shm/nccl-a1b2c3 to 9637892 bytes, error: No space left on "
        "device (28)\n"
    )
    v = judge(init + fault)
    assert (v.primary.cause, v.primary.ranks, v.primary.hosts) == ("shm-exhausted", (1,), ("node7",))


def test_who_never_came(judge):
    timeout = (
        "[rank{r}]:[E1103 02:07:08.4 ProcessGroupNCCL.cpp:607] [Rank {r}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=120, "
        "OpType=ALLREDUCE, NumelIn=1024, NumelOut=1024, Timeout(ms)=600000) ran for 600012 milliseconds before timing out.\n"
    )
    status = (
        "[rank{r}]:[E1103 02:07:08.5 ProcessGroupNCCL.cpp:1785] [PG ID 0 PG GUID 0(default_pg) Rank {r}]  failure detected by watchdog at work "
        "sequence id: 120 PG status: last enqueued work: {e}, last completed work: 119\n"
    )
    v = judge("".join(timeout.format(r=r) + status.format(r=r, e=121) for r in (0, 1, 3)) + status.format(r=2, e=119))
    assert (v.primary.cause, v.primary.standing, v.primary.ranks) == ("collective-timeout", "not-established", (2,))
    assert "rank 2 never entered it" in v.primary.says and v.primary.remedies[0].env


def test_a_file_that_cannot_be_read_is_never_healthy(tmp_path, monkeypatch):
    path = tmp_path / "log"
    path.write_text(TRACE)
    monkeypatch.setattr("os.pread", broken)
    with pytest.raises(UnhangError, match="none of the logs could be read"):
        judge_logs([str(path)])


def broken(*_):
    raise OSError(5, "Input/output error")


def test_secrets_stay_out(judge):
    v = judge(TRACE.replace("ValueError: bad", "ValueError: bad --hf_token=hf_abcdefghijklmnopqrstuv WANDB_API_KEY=0123456789"))
    assert "hf_abc" not in repr(v) and "0123456789" not in repr(v) and "[redacted]" in repr(v)


def test_progress_reaches_the_end(tmp_path):
    for n in range(3):
        (tmp_path / f"rank{n}.log").write_text("step\n" * 1000)
    told = []
    judge_logs([str(tmp_path)], progress=lambda done, total: told.append((done, total)))
    assert told[-1] == (15000, 15000)


def test_torchruns_block_gives_a_killed_process_its_rank(judge):
    block = "[1]:\n  time      : 2026-11-03_09:12:44\n  host      : node7\n  rank      : 1 (local_rank: 1)\n  exitcode  : -9 (pid: 7)\n"
    v = judge(TEARDOWN.replace("exitcode: 1", "exitcode: -9") + block)
    assert (v.primary.cause, v.primary.ranks) == ("host-oom-or-killed", (1,))
