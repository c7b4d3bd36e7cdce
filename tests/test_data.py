"""Causes as data: what is wrong in a file is reported with its line, and the compiled form follows the files."""

from __future__ import annotations

import pytest
from tests.tables import for_each

from unhang import cache, data, i18n

WHOLE = r"""
role = "root"
title = "It broke"
what = "Something broke."
why = '''
For want of
care.'''
sources = ["https://example.com"]
explain = "It broke."

[patterns]
number = '(?P<n>\d+)'

[[signature]]
needle = "broke at "
pattern = '''
broke at
 %(number)s'''
says = "it broke at {n}"
remedies = ["mend"]

[remedy.mend]
says = "Mend it."

[instead]
docker = { mend = "mend" }

[finding.often]
says = "it broke {n} times"
remedies = ["mend"]
command.mend = "mend {n:number}"
"""
CHINESE = {"it broke {n} times": "坏了 {n} 次", "it broke {m} times": "坏了 {n} 次"}


def cause(tmp_path, text):
    path = tmp_path / "broken.toml"
    path.write_text(text)
    source = data.Source(path, {})
    made = source.cause()
    source.translated(made, CHINESE)
    return made, source.problems


def test_what_is_written_in_lines_is_joined(tmp_path):
    made, problems = cause(tmp_path, WHOLE)
    assert problems == [] and made["why"] == "For want of care."
    assert made["signature"] == [{"needle": "broke at ", "pattern": r"broke at (?P<n>\d+)", "says": "it broke at {n}", "remedies": ("mend",)}]


@for_each(
    ("old", "new", "says"),
    [
        ('title = "It broke"\n', "", "1: 'title' is missing"),
        ('title = "It broke"', "title = 3", "3: 'title' is no prose"),
        ('title = "It broke"', 'title = "It broke"\njudge.logs = ["own-hits", "gpu-oom", "stacks", "luck"]', "4: unknown evidence 'luck'"),
        ('title = "It broke"', 'title = "It broke"\njudge.dumps = ["stacks"]', "4: unknown key 'judge.dumps'"),
        ('["https://example.com"]', "[3]", "8: 'sources' is no list"),
        ('needle = "broke at "', 'neddle = "broke at "', "15: unknown key 'neddle'"),
        ('[remedy.mend]\nsays = "Mend it."', "[remedy.mend]", "22: 'says' is missing"),
        ('remedies = ["mend"]', 'remedies = ["pray"]', "20: unknown remedy 'pray'"),
        ('{ mend = "mend" }', '{ mend = "pray" }', "26: unknown remedy 'pray'"),
        ("at {n}", "at {m}", "19: no pattern captures {m}"),
        ("%(number)s", "%(numbers)s", "16: unknown pattern 'numbers'"),
        (r"'(?P<n>\d+)'", r"'(?P<n>\d+'", "12: missing ), unterminated subpattern"),
        ("[[signature]]", "[signature", "at line 14"),
        ("command.mend =", "command.pray =", "30: unknown remedy 'pray'"),
        ("it broke {n} times", "it broke again", "29: no Chinese of 'it broke again'"),
        ("it broke {n} times", "it broke {m} times", "29: other values in Chinese: '坏了 {n} 次'"),
        ("it broke {n} times", "it broke {n:?often}", "29: unknown note 'often'"),
    ],
)
def test_what_is_wrong_is_reported_with_its_line(tmp_path, old, new, says):
    assert old in WHOLE
    _, problems = cause(tmp_path, WHOLE.replace(old, new))
    assert any(str(tmp_path / "broken.toml") in p and says in p for p in problems), problems


@for_each(
    ("section", "text", "says"),
    [
        ("variable", '[A]\nowner = "nccl"\nwhat = "a"\n\n[[A.traps]]\nwhen = "1"\nseverity = "note"\nsays = "b"\n', None),
        ("variable", '[A]\nowner = "nccl"\nwhat = "a"\n\n[B]\nwhat = "b"\n', "5: 'owner' is missing"),
        (
            "trap",
            '[[one]]\nwhen = "1"\nseverity = "note"\nsays = "b"\n\n[[one]]\nwhen = "("\nseverity = "note"\nsays = "b"\n',
            "7: missing ), unterminated",
        ),
        ("library", '["A+"]\nown = "A"\n\n[["A+".words]]\nneedle = 3\n', "5: 'needle' is no text"),
        ("library", '[A]\nown = "A"\nwords = [3]\n', "3: 'A.words' is no table"),
        ("library", "A = 3\n", "1: 'A' is no table"),
    ],
)
def test_what_is_wrong_in_a_row_of_a_table_is_reported_with_its_line(tmp_path, section, text, says):
    path = tmp_path / "table.toml"
    path.write_text(text)
    source = data.Source(path, {})
    source.rows(section)
    assert [p.startswith(f"{path}:{says}") for p in source.problems] == [True] * (says is not None)


@pytest.fixture
def files(tmp_path, monkeypatch):
    """A checkout with one cause, and how often it was compiled."""
    (tmp_path / "causes").mkdir()
    (tmp_path / "causes" / "one.toml").write_text(WHOLE.partition("[finding")[0])
    (tmp_path / "patterns.toml").touch()
    (tmp_path / "unhang.po").write_text(
        'msgid "It broke"\nmsgstr "坏了"\n\nmsgctxt "of a file"\nmsgid "It broke"\nmsgstr "损坏"\n\n#, fuzzy\nmsgid "Mend it."\nmsgstr "修"\n',
        "utf-8",
    )
    made = []
    compiled = data.compiled
    for name, value in {
        "_ROOT": tmp_path,
        "_CAUSES": tmp_path / "causes",
        "_TABLES": {},
        "_PATTERNS": tmp_path / "patterns.toml",
        "_CHINESE": tmp_path / "unhang.po",
        "compiled": lambda: (made.append(1), compiled())[1],
        "load": data.load.__wrapped__,
    }.items():
        monkeypatch.setattr(data, name, value)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path, made


def test_the_compiled_form_is_kept_until_a_file_changes(files):
    here, made = files
    assert data.load() == data.load() and len(made) == 1
    (here / "causes" / "two.toml").write_text(WHOLE.partition("[finding")[0])
    assert {*data.load()["causes"]} == {"one", "two"} and len(made) == 2
    for kept in (here / "cache" / "unhang").iterdir():
        kept.chmod(0o666)
    assert {*data.load()["causes"]} == {"one", "two"} and len(made) == 3
    for kept in (here / "cache" / "unhang").iterdir():
        kept.write_bytes(kept.read_bytes()[:-1] + b"!")
    assert {*data.load()["causes"]} == {"one", "two"} and len(made) == 4


def test_a_wheel_needs_no_sources(files):
    here, made = files
    (here / data.COMPILED).write_bytes(data.dumped(data.compiled()))
    (here / "causes" / "one.toml").unlink()
    assert {*data.load()["causes"]} == {"one"} and len(made) == 1


def test_without_a_cache_directory_it_is_made_each_time(files, monkeypatch):
    _, made = files
    monkeypatch.setattr(cache, "directory", lambda: (None, None))
    assert data.load() == data.load() and len(made) == 2


def test_messages_are_found_by_text_and_context(files):
    assert (i18n.chinese("It broke"), i18n.chinese("It broke", "of a file"), i18n.chinese("Mend it."), i18n.chinese("")) == ("坏了", "损坏", "", "")
