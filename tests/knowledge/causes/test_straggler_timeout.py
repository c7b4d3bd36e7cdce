"""Slow ranks in plain logs: work of one rank while another gave up waiting; never a timeout alone."""

from __future__ import annotations

import pytest

from unhang.knowledge import catalogue

PROGRESS = "Running tokenizer on dataset:  {percent}%|####  | 712000/3983746 [{elapsed}<1:46:43, 510.90 examples/s]"
STORE = "[rank1]:[W1103 14:34:56 socket.cpp:489] [c10d] waitForInput: socket SocketImpl(fd=79) timed out after 1800000ms"


def judge(view):
    return catalogue.get("straggler-timeout").in_logs(view)


def test_a_timeout_alone_says_nothing(logs):
    assert judge(logs.view(timeouts=(logs.timeout(1, 3),), world_size=8)) is None
    assert judge(logs.view(hits=logs.lines(STORE, rank=1))) is None
    assert judge(logs.view(work=(logs.work(PROGRESS.format(percent=18, elapsed="30:00")),))) is None


def test_tokenising_while_the_others_gave_up(logs):
    found = judge(logs.view(hits=logs.lines(STORE, rank=1, start=90), work=(logs.work(PROGRESS.format(percent=18, elapsed="29:58"), line=89),)))
    assert (found.standing, found.ranks) == ("likely", (0,))
    assert (
        "rank 0 was still at work (Running tokenizer on dataset, 30 min so far, 107 min left) when rank 1 gave up waiting after 30 min" in found.says
    )
    assert [e.line for e in found.evidence] == [89, 90]


@pytest.mark.parametrize(
    ("percent", "elapsed", "rank"),
    [(100, "29:58", 0), (18, "00:12", 0), (18, "29:58", 1)],
    ids=["finished", "long before", "of the rank that waited"],
)
def test_what_is_no_work_of_another_rank_then(logs, percent, elapsed, rank):
    work = logs.work(PROGRESS.format(percent=percent, elapsed=elapsed), rank=rank)
    assert judge(logs.view(hits=logs.lines(STORE, rank=1, start=90), work=(work,))) is None


@pytest.mark.parametrize(("at_s", "likely"), [(1500.0, True), (900.0, False), (1700.0, False)])
def test_times_decide_where_there_are_any(logs, at_s, likely):
    timeout = logs.timeout(1, 3)
    timeout = type(timeout)(**{**vars(timeout), "at": logs.said("timeout", rank=1, at_s=1600.0)})
    found = judge(logs.view(timeouts=(timeout,), work=(logs.work("Running tokenizer on dataset", at_s=at_s),), world_size=2))
    assert (found is not None) == likely


def test_all_ranks_that_timed_out_came(logs):
    work = logs.work(PROGRESS.format(percent=18, elapsed="29:58"), rank=None)
    assert judge(logs.view(timeouts=(logs.timeout(0, 3), logs.timeout(1, 3)), work=(work,), world_size=2)) is None


def test_other_exceptions_in_that_place_are_none(logs):
    back = logs.raised("KeyError", "x", line=50, names=("main", "main_process_first"))
    assert judge(logs.view(hits=logs.lines("RuntimeError: Socket Timeout", start=10), tracebacks=(back,))) is None


def test_ranks_that_were_left_at_a_monitored_barrier_waited(logs):
    left = "RuntimeError: Rank 3 successfully reached monitoredBarrier, but received errors while waiting for send/recv from rank 0."
    work = logs.work(PROGRESS.format(percent=70, elapsed="6:39:53"), line=89)
    found = judge(logs.view(hits=logs.lines(left, rank=3, start=90), work=(work,)))
    assert (found.standing, found.ranks) == ("likely", (0,))
    assert judge(logs.view(hits=logs.lines(left, rank=3, start=90))) is None


def test_another_root_outranks_work(logs):
    oom = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
    hits = logs.lines(STORE, rank=1, start=90)
    work = (logs.work("Running tokenizer on dataset", line=85),)
    assert judge(logs.view(hits=hits, work=work)).standing == "likely"
    assert judge(logs.view(hits={**hits, **logs.lines(oom, start=80)}, work=work)).standing == "possible"
    assert judge(logs.view(hits=hits, work=work, tracebacks=(logs.raised("KeyError", "x", line=60),))).standing == "possible"


def test_a_wait_for_the_one_that_goes_first(logs):
    back = logs.raised("RuntimeError", "Socket Timeout", line=7, names=("main", "main_process_first", "barrier"))
    found = judge(logs.view(hits=logs.lines("RuntimeError: Socket Timeout", start=10), tracebacks=(back,)))
    assert found.standing == "likely" and "gave up in main_process_first()" in found.says and found.where is not None
