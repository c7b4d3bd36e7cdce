"""Which root is the primary one."""

from __future__ import annotations

import pytest

from unhang.diagnosis import precedence
from unhang.diagnosis.precedence import Order, by_precedence
from unhang.knowledge.cause import Cause
from unhang.model import Evidence, Finding
from unhang.records.logs import Hit, Signature


def cause(id, leads_to=()):
    return Cause(id=id, role="root", title="t", title_zh="t", what="w", why="w", leads_to=leads_to, explain={})


@pytest.fixture(autouse=True)
def catalogue(monkeypatch):
    known = {c.id: c for c in (cause("disk", ("exception",)), cause("exception"), cause("kill"))}
    monkeypatch.setattr(precedence.catalogue, "load", lambda: known)


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


def test_what_came_long_after_led_to_nothing():
    far = 10 + precedence.SAME_EVENT_LINES + 1
    assert first(found("exception", 10), found("disk", far), hits=[hit(10), hit(far)]) == "exception"
    hits = [hit(10, at_s=100.0), hit(5, source="b.log", at_s=200.0)]
    assert first(found("exception", 10), found("disk", 5, source="b.log"), hits=hits) == "exception"
    hits = [hit(10, at_s=100.0), hit(5, source="b.log", at_s=90.0)]
    assert first(found("exception", 10), found("disk", 5, source="b.log"), hits=hits) == "disk"


def test_causes_that_lead_to_each_other_leave_one(monkeypatch):
    known = {c.id: c for c in (cause("a", ("b",)), cause("b", ("a",)))}
    monkeypatch.setattr(precedence.catalogue, "load", lambda: known)
    assert first(found("b", 10), found("a", 20), hits=[hit(10), hit(20)]) == "b"
