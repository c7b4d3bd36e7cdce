"""The check of translations finds each thing that it is there for."""

from __future__ import annotations

import ast
import runpy
from pathlib import Path

import polib

CHECK = runpy.run_path(str(Path(__file__).resolve().parents[2] / "scripts" / "translations.py"))
CODE = ast.parse('msg("rank {n} waits").fill(n=1, more=2)\nmsg("one word", "here")\nmsg("not yet told")')
ENTRIES = [
    polib.POEntry(msgid="rank {n} waits", msgstr="rank {n} 等待{more}"),
    polib.POEntry(msgid="one word", msgstr="一个词", msgctxt="here"),
    polib.POEntry(msgid="rank {ranks}", msgstr="rank {ranks}"),
]


def found(*more):
    return list(CHECK["problems"]([*ENTRIES, *more], [CODE], {"cause": {"says": ("rank {ranks}",)}}))


def test_the_catalogue_is_in_order():
    assert CHECK["main"]() == 0


def test_what_is_wrong_is_found():
    told = polib.POEntry(msgid="not yet told", msgstr="未说明")
    assert found(told) == []
    (missing,) = found()
    assert "1 messages have no Chinese" in missing and "not yet told" in missing
    for wrong, says in (
        (polib.POEntry(msgid="not yet told", msgstr="", comment="x"), "obsolete, fuzzy or empty"),
        (polib.POEntry(msgid="not yet told", msgstr="未说明", flags=["fuzzy"]), "obsolete, fuzzy or empty"),
        (polib.POEntry(msgid="not yet told", msgstr="未说明 {x}"), "other values (x)"),
    ):
        assert [says in line for line in found(wrong)] == [True]
    assert ["nothing says it any more" in line for line in found(told, polib.POEntry(msgid="gone", msgstr="没了"))] == [True]


def test_chinese_in_code_is_found():
    allowed = {path: "是" for path in CHECK["ALLOWED"] if not path.endswith("/")}
    assert list(CHECK["in_code"](allowed)) == []
    (new, gone) = CHECK["in_code"]({**allowed, "logs/alarms.py": "", "cli/app.py": "是"})
    assert new.startswith("cli/app.py: Chinese") and gone.startswith("logs/alarms.py: has no")
