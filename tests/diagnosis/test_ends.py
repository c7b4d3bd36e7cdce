"""How a job ended, where nothing names a cause: a crash, an exit, an order from outside, the end of another."""

from __future__ import annotations

import pytest

from unhang.diagnosis.logs import judge_logs

STOPPED = "W1103 10:00:01 4100 torch/distributed/elastic/multiprocessing/api.py:900] Sending process 4101 closing signal SIGTERM\n"
ENDED = (
    "E1103 10:00:01 4100 torch/distributed/elastic/multiprocessing/api.py:874] failed (exitcode: {0}) local_rank: 2 (pid: 4103) of binary: python\n"
    "  host      : node7\n  rank      : 2 (local_rank: 2)\n  exitcode  : {0} (pid: 4103)\n"
)
FAULT = (
    "Fatal Python error: Segmentation fault\n\n"
    'Thread 0x00007f1a2b3c4700 (most recent call first):\n  File "/usr/lib/python3.11/threading.py", line 327 in wait\n\n'
    "Current thread 0x00007f1a9f0d1740 (most recent call first):\n"
    '  File "/srv/env/lib/python3.11/site-packages/decoder/read.py", line 16 in get\n'
    '  File "/srv/job/clips.py", line 58 in __getitem__\n'
)


@pytest.fixture
def judge(tmp_path):
    def judge(text):
        path = tmp_path / "train.log"
        path.write_text(text)
        return judge_logs([str(path)]).verdict

    return judge


def test_a_crash_is_told_with_its_signal_and_place(judge):
    v = judge("loading\n" + FAULT + STOPPED + ENDED.format(-11))
    assert (v.primary.cause, v.primary.ranks, v.primary.where) == ("unknown", (2,), "/srv/job/clips.py:58 in __getitem__")
    assert "SIGSEGV" in v.primary.says and "library-link" in v.primary.says and "straggler" not in v.primary.says
    assert v.primary.hosts == ("node7",) and v.primary.remedies[0].id == "native-stack"


def test_an_exit_without_an_exception(judge):
    v = judge("ERROR: no such folder\n" + STOPPED + ENDED.format(3))
    assert (v.primary.cause, v.primary.ranks) == ("unknown", (2,))
    assert "exit code 3" in v.primary.says and "possible" not in v.primary.says


def test_where_others_lost_a_peer_a_code_says_nothing_but_a_crash_does(judge):
    lost = "[rank0]: RuntimeError: [/g/gloo/transport/tcp/pair.cc:553] Connection closed by peer [10.0.0.2]:47492.\n"
    v = judge(lost + STOPPED + ENDED.format(1))
    assert v.primary.cause == "peer-lost" and "host-oom-or-killed" in v.primary.says and "straggler" not in v.primary.says
    assert "SIGILL" in judge(lost + STOPPED + ENDED.format(-4)).primary.says


@pytest.mark.parametrize(
    ("told", "by"),
    [
        ("W1103 10:00:01 4100 api.py:719] Received Signals.SIGTERM death signal, shutting down workers\n", "from outside"),
        ("slurmstepd: error: *** JOB 4711 ON node7 CANCELLED AT 2026-11-03T10:00:01 ***\n", "from outside"),
        ("torch.distributed.elastic.multiprocessing.api.SignalException: Process 4100 got signal: 2\n", "by the user"),
    ],
)
def test_an_order_from_outside(judge, told, by):
    v = judge("step 1 loss 2.1\n" + told + STOPPED)
    assert (v.primary.cause, v.primary.standing) == ("launcher-teardown", "not-established")
    assert by in v.primary.says and "possible" not in v.primary.says
    # A rank had failed before.
    assert by not in judge("step 1 loss 2.1\n" + ENDED.format(-11) + told + STOPPED).primary.says


def test_ctrl_c_without_a_launcher(judge):
    v = judge('Traceback (most recent call last):\n  File "/srv/job/train.py", line 80, in <module>\n    main()\nKeyboardInterrupt\n')
    assert v.primary.cause == "unknown" and "Ctrl-C" in v.primary.says


LEFT = "[rank9]:[W1103 10:00:09 TCPStore.cpp:125] [c10d] recvValue failed on SocketImpl(fd=67): Failed to recv, got 0 bytes. Did the server crash?\n"


def test_the_store_goes_when_the_training_is_through(judge):
    through = "{'loss': 2.1, 'epoch': 3.0}\n{'train_runtime': 812.1, 'epoch': 3.0}\n"
    assert judge(through + LEFT).primary is None
    assert judge(LEFT).primary.cause == "store-disconnect"
    assert judge(through + LEFT + ENDED.format(-11)).primary is not None


BEAT = (
    "W1103 10:00:01 4100 dynamic_rendezvous.py:1341] The node 'node2_4100_0' has failed to send a keep-alive heartbeat to the rendezvous 'job7' "
    "due to an error of type RendezvousConnectionError.\n"
)
GONE = "torch.distributed.elastic.rendezvous.api.RendezvousConnectionError: The connection to the C10d store has failed.\n"


def test_a_rendezvous_that_went_away_is_no_wrong_address(judge):
    assert judge(GONE).primary.cause == "rendezvous-misconfig"
    v = judge(BEAT + GONE)
    assert v.primary.cause == "store-disconnect" and "rendezvous" in v.primary.says


def test_a_shells_word_on_its_last_command(judge):
    assert judge("step 1 loss 2.1\nstep 2 loss 2.0\nKilled\n").primary.cause == "host-oom-or-killed"
    assert judge("Killed\n" + "".join(f"step {n} loss 2.{n}\n" for n in range(9))).primary is None
