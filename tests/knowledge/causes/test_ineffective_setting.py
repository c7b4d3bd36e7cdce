"""ineffective-setting: harmless until what the setting was to prevent happens."""

from __future__ import annotations

from unhang.knowledge import catalogue
from unhang.knowledge.cause import LogView
from unhang.logs import match
from unhang.logs.log_facts import At, Timeout

CAUSE = catalogue.load()["ineffective-setting"]

SET = "+ export NCCL_TIMEOUT=3600"
GLOO = "+ ACCELERATE_USE_GLOO=1"


def judge(text: str, timeout_ms: int | None = None):
    at = At(source="a.log", line=9, text="Watchdog caught collective operation timeout", rank=1)
    out = Timeout(at=at, group=None, seq=7, op="ALLREDUCE", numel_in=1, numel_out=1, timeout_ms=timeout_ms or 0, ran_ms=timeout_ms)
    assert CAUSE.in_logs is not None
    hits = tuple(match(text, CAUSE.signatures, source="a.log", line=1))
    return CAUSE.in_logs(LogView(hits={CAUSE.id: hits}, timeouts=(out,) if timeout_ms else ()))


def test_where_the_numbers_agree_it_is_only_possible():
    assert judge(SET, timeout_ms=3_600_000).standing == "possible"


def test_it_is_silent_where_nothing_timed_out():
    assert judge(SET) is None and judge(GLOO) is None


def test_gloo_that_nobody_asked_for():
    assert "ACCELERATE_USE_GLOO=1 is read by nothing" in judge(GLOO, timeout_ms=600_000).says
