"""Which root is the primary one."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.chinese import both

from unhang.diagnosis import verdict
from unhang.diagnosis.verdict import Order, by_precedence
from unhang.knowledge.cause import Cause
from unhang.logs import Hit, Signature
from unhang.model import Evidence, Finding, Remedy


def cause(id, leads_to=()):
    return Cause(id=id, role="root", title=both("t", "t"), what="w", why="w", leads_to=leads_to, explain={})


@pytest.fixture(autouse=True)
def catalogue(monkeypatch):
    known = {c.id: c for c in (cause("disk", ("exception",)), cause("exception"), cause("kill"))}
    monkeypatch.setattr(verdict.catalogue, "load", lambda: known)
    # Kept once it was asked for: what is made up here would stay for other tests.
    monkeypatch.setattr(verdict.catalogue, "signatures", dict)


def found(id, line, *, standing="established", source="a.log"):
    return Finding(cause=id, standing=standing, says="", evidence=(Evidence(source=source, line=line, text=""),))


def hit(line, *, source="a.log", at_s=None):
    return Hit(signature=Signature(needle="x"), source=source, line=line, text="", at_s=at_s, place=line)


def first(*findings, hits=()):
    return next(f.cause for f in by_precedence(findings, Order(hits, ())))


def test_the_earlier_one():
    hits = [hit(10), hit(20)]
    assert first(found("kill", 20), found("exception", 10), hits=hits) == "exception"
    assert first(found("kill", 10), found("exception", 20), hits=hits) == "kill"


def test_the_better_established_one():
    assert first(found("kill", 10, standing="likely"), found("exception", 20), hits=[hit(10), hit(20)]) == "exception"


def test_what_follows_from_another_one_stands_behind_it():
    # Both belong to one event, and the consequence was printed first.
    assert first(found("exception", 10), found("disk", 20), hits=[hit(10), hit(20)]) == "disk"
    assert first(found("exception", 10), found("disk", 20, standing="likely"), hits=[hit(10), hit(20)]) == "disk"
    # A guess takes nothing over.
    assert first(found("exception", 10), found("disk", 20, standing="possible"), hits=[hit(10), hit(20)]) == "exception"


def test_what_was_printed_again_long_after_led_to_it_all_the_same():
    far = 20 + 10 * verdict.SAME_EVENT_LINES
    again = found("disk", 20)
    again = replace(again, evidence=(*again.evidence, replace(again.evidence[0], line=far)))
    assert first(found("exception", 10), again, hits=[hit(10), hit(20), hit(far)]) == "disk"


def test_what_came_long_after_led_to_nothing():
    far = 10 + verdict.SAME_EVENT_LINES + 1
    assert first(found("exception", 10), found("disk", far), hits=[hit(10), hit(far)]) == "exception"
    hits = [hit(10, at_s=100.0), hit(5, source="b.log", at_s=200.0)]
    assert first(found("exception", 10), found("disk", 5, source="b.log"), hits=hits) == "exception"
    hits = [hit(10, at_s=100.0), hit(5, source="b.log", at_s=90.0)]
    assert first(found("exception", 10), found("disk", 5, source="b.log"), hits=hits) == "disk"


def killed(line, *, ranks=(), hosts=(), by=("find-the-killer",)):
    remedies = tuple(Remedy(id=r, says=both("", "")) for r in by)
    return replace(found("kill", line), ranks=ranks, hosts=hosts, remedies=remedies)


def test_a_kill_by_somebody_unknown_stands_behind_what_befell_its_process():
    def gpu(*, ranks=(), hosts=(), standing="established", pid="7", at_s=None):
        lost = replace(found("gpu", 5, source="dmesg", standing=standing), ranks=ranks, hosts=hosts)
        return lost, replace(hit(5, source="dmesg", at_s=at_s), groups={"process": pid})

    def order(kill, lost, at_s=None):
        ended = replace(hit(20, at_s=at_s), groups={"pid": "7"})
        return first(kill, lost[0], hits=[ended, lost[1]])

    assert order(killed(20, ranks=(1,)), gpu(ranks=(1, 2))) == "gpu"
    assert order(killed(20), gpu()) == order(killed(20, ranks=(1,)), gpu()) == order(killed(20, hosts=("a.b",)), gpu(hosts=("a",))) == "gpu"
    assert order(killed(20, ranks=(1,)), gpu(ranks=(2,))) == "kill"
    assert order(killed(20), gpu(pid="8")) == "kill"
    assert order(killed(20, hosts=("a",)), gpu(hosts=("b",))) == "kill"
    assert order(killed(20), gpu(standing="likely")) == "kill"
    assert order(killed(20), gpu(at_s=200.0), at_s=100.0) == "kill"
    assert order(killed(20, by=("less-memory",)), gpu()) == "kill"


def test_what_follows_from_a_kill_explains_none():
    verdict.catalogue.load()["kill"] = cause("kill", ("exception",))
    both = [replace(killed(20), ranks=(1,)), replace(found("exception", 10), ranks=(1,))]
    assert first(*both, hits=[hit(10), hit(20)]) == "kill"


def test_causes_that_lead_to_each_other_leave_one(monkeypatch):
    known = {c.id: c for c in (cause("a", ("b",)), cause("b", ("a",)))}
    monkeypatch.setattr(verdict.catalogue, "load", lambda: known)
    assert first(found("b", 10), found("a", 20), hits=[hit(10), hit(20)]) == "b"
