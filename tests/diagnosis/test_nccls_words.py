"""NCCL's own words are quoted where they say something, and nobody is asked for messages that are on; nccl2 has words of its own."""

from __future__ import annotations

import pytest

from unhang.diagnosis.logs import judge_logs

HEAD = (
    "[rank3]: torch.distributed.DistBackendError: NCCL error in: /pytorch/ProcessGroupNCCL.cpp:3690, unhandled system error (run with "
    "NCCL_DEBUG=INFO for details), NCCL version {release}\n"
    "[rank3]: ncclSystemError: System call (e.g. socket, malloc) or external library call failed or device error. \n"
    "[rank3]: Last error:\n"
)
ERROR = HEAD.format(release="2.27.5")
WARN = "gpu11:902:977 [3] transport/net.cc:718 NCCL WARN NET/Zephyr : lane table of peer 6 is empty\n"
INFO = "gpu11:902:977 [3] NCCL INFO Bootstrap : Using eth0:10.0.0.7<0>\n"
WORDS = "NET/Zephyr : lane table of peer 6 is empty"


@pytest.fixture
def judge(tmp_path):
    def judge(text):
        path = tmp_path / "train.log"
        path.write_text(text)
        return judge_logs([str(path)]).verdict.primary

    return judge


def ids(finding):
    return [r.id for r in finding.remedies]


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (WARN + ERROR + f"[rank3]: {WORDS}\n", 1),
        (ERROR + f"[rank3]: {WORDS}\n", 4),
        (INFO + WARN + ERROR.partition("[rank3]: ncclSystem")[0], 2),
        (WARN + "(Worker_TP3 pid=81) RuntimeError: NCCL error: internal error - please report this issue to the NCCL developers\n", 1),
        (WARN.replace("977 [3]", "977 [3]", 1) + "gpu11: Test NCCL failure common.cu:777 'unhandled system error / '\n", 1),
        (f"[rank3]: RuntimeError: NCCL Async Error: unhandled system error \n[rank3]: NCCL Last Error: {WORDS}\n", 2),
    ],
)
def test_they_are_quoted(judge, text, line):
    found = judge(text)
    assert (found.cause, found.standing) == ("unhandled-generic", "not-established")
    assert f"NCCL: {WORDS}; no cause known here" in found.says and "names no cause" not in found.says
    assert (found.evidence[0].line, WORDS in found.evidence[0].text) == (line, True)
    assert ids(found) == ["look-up-the-words", "supervise"]


def test_of_several_ranks_each_is_quoted_for_itself(judge):
    other = ERROR.replace("[rank3]", "[rank2]") + "[rank2]: socketProgress: Connection closed by remote peer gpu12<3391>\n"
    assert f"rank 3: NCCL: {WORDS}" in judge(ERROR + f"[rank3]: {WORDS}\n" + other).says


@pytest.mark.parametrize("behind", ["", "[rank3]: Traceback (most recent call last):\n", "[rank3]:[E1103 02:07:08.1 ProcessGroupNCCL.cpp:6] x\n"])
def test_without_words_none_are_made_up(judge, behind):
    found = judge(ERROR + behind)
    assert found.cause == "unhandled-generic" and "names no cause" in found.says and ids(found) == ["supervise", "say-more"]
    assert any("NCCL_DEBUG" in (r.env or ()) for r in found.remedies)


def test_messages_that_are_on_are_not_asked_for(judge):
    found = judge(INFO + ERROR)
    assert "names no cause" in found.says and ids(found) == ["supervise", "other-ranks"]


def test_a_warning_of_a_healthy_run_is_not_a_failure(judge):
    assert judge(INFO + 'gpu11:902:977 [3] init.cc:126 NCCL WARN Missing "iommu=pt"\nstep 1 loss 2.0\nstep 2 loss 1.9\n') is None


TRACE = "[2025-11-03 19:02:44] gpu11:1:88 [0] NCCL INFO {} -> {}\n"


def test_a_return_path_is_a_failure_where_nothing_else_is(judge):
    found = judge(INFO + TRACE.format("transport/p2p.cc:352", 1) + TRACE.format("init.cc:1290", 1))
    assert (found.cause, found.standing) == ("unknown", "not-established")
    assert "transport/p2p.cc:352 -> 1" in "".join(e.text for e in found.evidence)
    assert judge(TRACE.format("misc/socket.cc:826", 3) + TRACE.format("proxy.cc:1458", 3)) is None
    assert judge(TRACE.format("init.cc:1290", 7)) is None
    assert judge(TRACE.format("transport/net_ib.cc:1234", 2) + "".join(f"step {n} loss 2.0\n" for n in range(40))) is None


NET_ID = "[2026-01-14 10:02:33] gpu04:7712:7790 [0] graph/topo.h:234 NCCL WARN Could not find NET with id 0\n"


@pytest.mark.parametrize(
    ("text", "cause", "standing"),
    [
        (NET_ID, "nccl-bug", "likely"),
        ("(Worker pid=7, ip=10.0.0.4) " + NET_ID, "nccl-bug", "likely"),
        (NET_ID + HEAD.format(release="2.25.1") + "[rank3]: Could not find NET with id 0\n", "nccl-bug", "likely"),
        (HEAD.format(release="2.26.2") + "[rank3]: Could not find NET with id 2\n", "nccl-bug", "likely"),
        (NET_ID + HEAD.format(release="2.29.7") + "[rank3]: Could not find NET with id 0\n", "unhandled-generic", "not-established"),
        ("3: gpu07:8:9 [1] net_ib.cc:2 NCCL WARN NET/IB: read failed in ncclIbRoceGetVersionNum: Invalid argument\n", "nccl-bug", "likely"),
        ("[gpu07:81:0:96] Caught signal 11 (Segmentation fault)\n 3 rasCollCommsMerge() ras/collectives.cc:684\n", "nccl-bug", "likely"),
    ],
)
def test_a_known_bug_and_the_release_that_mends_it(judge, text, cause, standing):
    found = judge(text)
    assert (found.cause, found.standing) == (cause, standing)
    assert cause != "nccl-bug" or {"upgrade-nccl"} <= set(ids(found))
    assert "NET with id" not in text or "Could not find NET with id" in found.says


E = "[E1125 10:02:33.120456789 ProcessGroupNCCL.cpp:641]"


@pytest.mark.parametrize(
    "text",
    [
        f"[rank0]:{E} [TC][rank=0][name=0] Watchdog caught collective operation timeout: NCCL operation timed out\n",
        f"{E} [TC][rank=5][name=0] Aborting process on rank 5 due to timeout - timeout watchdog detected operation timeout\n",
        f"{E} [rank=5][name=default_pg] Aborting process on rank 5 due to timeout - collective operation timed out\n",
        f"{E} [rank=1][name=tp] Aborting process on rank 1 due to timeout - collective operation timed out\n",
        f"[rank2]:{E} [TC][rank=2][name=0] Waiting 15000 ms for health check and flight recorder dump before aborting\n",
        f"[rank0]:{E} [TC][rank=0][name=0] Aborting process on rank 0 due to timeout\n[rank2]:{E} NCCL operation timed out\n",
    ],
)
def test_nccl2_gives_up(judge, text):
    """Whoever prints it waited for others, and is not accused."""
    found = judge(text)
    assert (found.cause, found.standing, found.ranks) == ("collective-timeout", "not-established", ())
    assert "nccl2" in found.says and ids(found)[0] == "read-the-dumps" and "nccl_trace_rank" in found.remedies[0].command


def test_a_communicator_of_nccl2_that_is_never_made(judge):
    text = (
        '[rank3]: Traceback (most recent call last):\n[rank3]:   File "/srv/job/train.py", line 12, in <module>\n[rank3]:     dist.barrier()\n'
        "[rank3]: torch.distributed.DistBackendError: Failed to initialize NCCL communicator timed out after 600000 ms\n"
    )
    found = judge(text)
    assert (found.cause, found.standing, found.ranks) == ("collective-timeout", "not-established", ()) and "600000 ms" in found.says


def test_an_error_that_nccl2_met(judge):
    text = f"[rank3]:{E} [TC][rank=3][name=0] Aborting process on rank 3 due to error - timeout watchdog detected operation error\n"
    found = judge(WARN + text)
    assert (found.cause, found.ranks) == ("unhandled-generic", (3,)) and WORDS in found.says


DIAG = "gpu04:7712 NCCL DIAG [INFO] "


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("p2p: write mismatch srcRank=2 dstRank=5 path=PHB expected=0x4 got=0x0 verify=0x0; check ACS", "p2p-broken"),
        ("p2p: read mismatch srcRank=2 dstRank=5 path=NVL expected=0x8 got=0x1; check the link", "p2p-broken"),
        ("p2p: only 52/56 GPU-to-GPU peer accesses passed verification", "p2p-broken"),
        ("NVLink: inactive link(s) on rank(s) 3 across 8 ranks in comm 0x5581", "nvlink-nvswitch-fabric"),
        ("ECC: uncorrected volatile errors on rank(s) 6 (worst=4) across 8 ranks in comm 0x5581", "gpu-hardware"),
        ("CUDA driver version: mismatch across 16 ranks in comm 0x5581, rank(s) 8-15 differ from rank 0 (13000)", "version-mismatch"),
        ("GPU inventory: model mismatch across 8 ranks in comm 0x5581, rank(s) 4 differ from rank 0 (NVIDIA H100)", "version-mismatch"),
    ],
)
def test_nccls_own_diagnostics(judge, text, cause):
    found = judge(DIAG + text + "\n")
    # Ranks that are named may be of other hosts.
    assert (found.cause, found.hosts) == (cause, () if "on rank(s)" in text else ("gpu04",))
    assert found.says.startswith(("NCCL's own check", "NCCL's own diagnosis"))


def test_diagnostics_that_found_nothing(judge):
    assert judge("gpu04:7712 NCCL DIAG [OK]   p2p: verified P2P access in both directions between every GPU pair (56 peer accesses)\n") is None
    assert judge(DIAG + "ECC: unavailable via NVML across 8 ranks in comm 0x5581\n") is None
