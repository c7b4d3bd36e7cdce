"""framework-bug in plain logs: an abort without an exception counts only where nothing else was raised."""

from __future__ import annotations

from unhang.knowledge import catalogue

ABORTED = "terminate called without an active exception"


def judge(view):
    return catalogue.get("framework-bug").in_logs(view)


def test_an_abort_alone_is_possible(logs):
    assert judge(logs.view(hits=logs.lines(ABORTED))).standing == "possible"
    launcher = logs.raised("torch.distributed.elastic.multiprocessing.errors.ChildFailedError")
    assert judge(logs.view(hits=logs.lines(ABORTED), tracebacks=(launcher,))).standing == "possible"


def test_an_abort_behind_an_exception_or_a_lost_peer_is_its_consequence(logs):
    assert judge(logs.view(hits=logs.lines(ABORTED), tracebacks=(logs.raised("ValueError", "x"),))) is None
    spawned = "torch.multiprocessing.spawn.ProcessRaisedException:"
    assert judge(logs.view(hits={**logs.lines(ABORTED), **logs.lines(spawned, start=9)})) is None
