"""A pattern that is compiled at first use answers as a compiled one."""

import copy
import importlib
import pickle
import pkgutil
import re

import pytest

import unhang
from unhang.patterns import Lazily, lazily


@pytest.fixture
def compiled(monkeypatch):
    seen, compile = [], re.compile
    monkeypatch.setattr(re, "compile", lambda pattern, flags=0: seen.append(pattern) or compile(pattern, flags))
    return seen


def test_it_is_compiled_at_first_use(compiled):
    pattern = lazily(r"(?P<n>\d+)", re.ASCII)
    assert pattern.pattern == r"(?P<n>\d+)" and repr(pattern) and not compiled
    assert pattern.search("a12")["n"] == "12" and compiled == [pattern.pattern]
    assert pattern.search("b3") and pattern.search("c") is None and len(compiled) == 1


def test_it_answers_as_a_pattern_does():
    ours, theirs = lazily(r"b(?P<x>.)", re.IGNORECASE), re.compile(r"b(?P<x>.)", re.IGNORECASE)
    for text in ("abc", "Bx by", "", "bb"):
        assert bool(ours.match(text)) is bool(theirs.match(text)) and bool(ours.fullmatch(text, 1)) is bool(theirs.fullmatch(text, 1))
        assert [m.span() for m in ours.finditer(text)] == [m.span() for m in theirs.finditer(text)]
        assert ours.findall(text) == theirs.findall(text) and ours.split(text) == theirs.split(text)
        assert ours.sub(r"<\g<x>>", text) == theirs.sub(r"<\g<x>>", text) and ours.subn("", text) == theirs.subn("", text)
    assert (ours.groups, ours.groupindex, ours.flags) == (theirs.groups, theirs.groupindex, theirs.flags)
    assert lazily(rb"\xff").search(b"a\xff").start() == 1


@pytest.mark.parametrize("used", [False, True])
def test_it_is_copied_and_pickled(used):
    pattern = lazily("a+", re.IGNORECASE)
    assert not used or pattern.match("a")
    for again in (copy.deepcopy(pattern), pickle.loads(pickle.dumps(pattern))):
        assert again.pattern == "a+" and again.fullmatch("AaA")


def lazy_in(value, seen=0):
    """Those in a module, also in its tables."""
    if isinstance(value, Lazily):
        yield value
    elif isinstance(value, dict) and seen < 4:
        yield from (p for v in value.values() for p in lazy_in(v, seen + 1))
    elif isinstance(value, (tuple, list)) and seen < 4:
        yield from (p for v in value for p in lazy_in(v, seen + 1))


def test_each_of_ours_can_be_compiled():
    found = {}
    for module in pkgutil.walk_packages(unhang.__path__, "unhang."):
        # What trainings import, with their frameworks.
        theirs = ("unhang.runtime", "unhang.integrations", "unhang.probes", "unhang.testing", "unhang.recipes", "unhang.__main__")
        if not module.name.startswith(theirs):
            members = vars(importlib.import_module(module.name))
            found |= {id(p): (module.name, p) for value in members.values() for p in lazy_in(value)}
    wrong = []
    for name, pattern in found.values():
        try:
            assert pattern.groups >= 0
        except re.error as e:
            wrong.append((name, pattern.pattern, str(e)))
    assert len(found) > 100 and wrong == []
