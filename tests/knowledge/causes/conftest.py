"""Logs as the readers would have understood them: watchdog lines, exits, work and hits, built by hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace

import pytest
from tests.chinese import english, zh

from unhang.frames import Frame
from unhang.knowledge import catalogue
from unhang.knowledge.cause import Cause, LogView
from unhang.logs import Hit, Signature, Traceback, match
from unhang.logs.log_facts import At, Exit, Status, Timeout

WORK = Signature(needle="Running tokenizer", pattern=r"(?P<what>Running tokenizer on [\w ]+)", role="context")


def said(text: str, *, rank: int | None = None, line: int = 1, source: str = "train.log", at_s: float | None = None, pid: int | None = None) -> At:
    return At(source=source, line=line, text=text, rank=rank, at_s=at_s, pid=pid)


def timeout(rank: int, seq: int, op: str = "ALLREDUCE", numel: int | None = 64, *, group: str | None = "0(default_pg)", line: int = 1) -> Timeout:
    text = f"[Rank {rank}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum={seq}, OpType={op}, NumelIn={numel}, Timeout(ms)=600000)"
    return Timeout(
        at=said(text, rank=rank, line=line), group=group, seq=seq, op=op, numel_in=numel, numel_out=numel, timeout_ms=600_000, ran_ms=600_020
    )


def status(rank: int, failed: int, enqueued: int, completed: int, *, group: str | None = "0(default_pg)") -> Status:
    return Status(at=said("status", rank=rank), group=group, failed=failed, enqueued=enqueued, completed=completed)


def ended(code: int, *, rank: int | None = None, pid: int | None = None, local_rank: int | None = None, line: int = 1) -> Exit:
    return Exit(at=said(f"exitcode {code}", rank=rank, pid=pid, line=line), code=code, local_rank=local_rank)


def work(text: str, *, rank: int | None = 0, line: int = 1, at_s: float | None = None) -> Hit:
    (hit,) = match(text, [WORK], source="train.log", line=line, rank=rank)
    return replace(hit, at_s=at_s)


def raised(
    type: str, text: str = "", *, rank: int | None = None, line: int = 1, source: str = "train.log", at: int = 33, names: Sequence[str] = ("main",)
) -> Traceback:
    frames = tuple(Frame(file="/srv/job/train.py", line=at, name=n) for n in names)
    return Traceback(source=source, line=line, end=line + 3, type=type, text=text, frames=frames, rank=rank)


def lines(text: str, *, rank: int | None = None, source: str = "train.log", start: int = 1) -> dict[str, tuple[Hit, ...]]:
    """The hits of some lines, keyed by cause."""
    known = catalogue.signatures()
    found: dict[str, tuple[Hit, ...]] = {}
    for number, line in enumerate(text.splitlines(), start):
        for hit in match(line, known, source=source, line=number, rank=rank, around=text):
            found[known[hit.signature]] = (*found.get(known[hit.signature], ()), hit)
    return found


def view(**parts: object) -> LogView:
    return LogView(**parts)  # type: ignore[arg-type]


@pytest.fixture
def logs() -> SimpleNamespace:
    return SimpleNamespace(said=said, timeout=timeout, status=status, ended=ended, work=work, raised=raised, lines=lines, view=view)


@pytest.fixture(autouse=True)
def in_chinese(monkeypatch):
    """Whatever a test of these finds on a host, a reader of Chinese reads in Chinese."""
    found = Cause.host_finding

    def told(self, **more):
        one = found(self, **more)
        assert not english(zh(one.says)), zh(one.says)
        assert not english(zh(one.leads_to)), zh(one.leads_to)
        return one

    monkeypatch.setattr(Cause, "host_finding", told)
