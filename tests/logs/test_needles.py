"""The engines agree, on any literals and any bytes."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from unhang.diagnosis.assemble import CONTEXT
from unhang.knowledge import catalogue
from unhang.logs.needles import Finder, Hyperscan, engine

LITERALS = st.lists(st.binary(min_size=1, max_size=12).filter(lambda b: b"\0" not in b), min_size=1, max_size=20, unique=True)


@settings(max_examples=200, deadline=None)
@given(literals=LITERALS, data=st.binary(max_size=400), picks=st.lists(st.integers(0, 19), max_size=6))
def test_both_engines_find_the_same(literals, data, picks):
    data += b"".join(literals[i % len(literals)] + data[:5] for i in picks)
    expected = {i: data.find(literal) for i, literal in enumerate(literals) if literal in data}
    for make in (Finder, Hyperscan):
        assert make(literals).present(memoryview(data)) == expected


def test_they_agree_on_the_needles_of_all_causes():
    literals = sorted({s.needle.encode() for s in (*catalogue.signatures(), *CONTEXT)})
    lines = [line for c in catalogue.load().values() for line in (*c.hits, *c.near_misses)]
    fast, slow = Hyperscan(literals), Finder(literals)
    found = set()
    for line in lines:
        data = memoryview(line.encode())
        assert fast.present(data) == slow.present(data), line
        found |= set(fast.present(data))
    wanted = {s.needle.encode() for s in catalogue.signatures()}
    assert {literals[i] for i in found} >= wanted


def test_one_engine_serves_many_threads():
    searcher = Hyperscan([b"needle %d;" % n for n in range(50)])
    data = memoryview(b"hay " * 5000 + b"needle 7;" + b" stack" * 5000)
    with ThreadPoolExecutor(4) as pool:
        assert all(found == {7: 20_000} for found in pool.map(lambda _: searcher.present(data), range(200)))


def test_the_slower_one_serves_where_the_library_is_missing(monkeypatch):
    import sys

    assert isinstance(engine([b"x"]), Hyperscan)
    monkeypatch.setitem(sys.modules, "hyperscan", None)
    assert isinstance(engine([b"x"]), Finder)


@pytest.mark.parametrize("make", [Finder, Hyperscan])
def test_bytes_that_are_no_text(make):
    assert make([b"\xff\xfea", b"a\xff"]).present(memoryview(b"\0\0..\xff\xfea\0\0")) == {0: 4}
