"""A table reports every case that fails, and each case begins as if it were alone."""

from __future__ import annotations

import os

import pytest
from tests.tables import for_each


def test_all_that_fail_are_named_and_the_others_are_run(tmp_path, monkeypatch, capsys):
    seen = []

    @for_each(("number", "word"), [(1, "one"), (2, "two"), pytest.param(3, "three", id="third"), (4, "four")])
    def run(number, word, tmp_path, monkeypatch, capsys):
        seen.append(number)
        assert not list(tmp_path.iterdir()) and "CASE" not in os.environ and capsys.readouterr().out == ""
        (tmp_path / "file").write_text(word)
        monkeypatch.setenv("CASE", word)
        print(word)
        if number == 4:
            pytest.skip("four")
        assert number == 1, word

    with pytest.raises(pytest.fail.Exception) as failed:
        run(tmp_path=tmp_path, monkeypatch=monkeypatch, capsys=capsys)
    said = str(failed.value)
    assert seen == [1, 2, 3, 4] and "CASE" not in os.environ
    assert "2 of 4 cases failed" in said and "case 1: 2-'two'" in said and "case 2: third" in said and "AssertionError: three" in said


def test_a_table_that_proves_nothing_is_refused():
    with pytest.raises(ValueError, match="without cases"):
        for_each("one", [])
    with pytest.raises(ValueError, match="has marks"):
        for_each("one", [pytest.param(1, marks=pytest.mark.skip)])
    with pytest.raises(ValueError, match="takes no other"):
        for_each("one,other", [(1, 2)])(lambda one: None)
    with pytest.raises(pytest.skip.Exception):
        for_each("one", [1, 2])(lambda one: pytest.skip("all of them"))()
