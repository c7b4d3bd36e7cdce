"""What commands say of themselves, in both languages."""

from __future__ import annotations

import string

import pytest
from tests.tables import for_each

from unhang.errors import UnhangError
from unhang.i18n import sentences
from unhang.report import language

SENTENCES = tuple(sentences("refusal").items())


@pytest.fixture
def zh():
    language.chosen("zh")
    yield
    language.chosen("en")


def test_every_refusal_has_as_many_values_in_both():
    for en, zh in (s for context in language.BACKWARDS for s in sentences(context).items()):
        places = [field for _, field, _, _ in string.Formatter().parse(zh) if field is not None]
        assert (places == [""] * en.count("{}")) or set(places) <= {str(n) for n in range(en.count("{}"))}, en


@for_each(("en", "zh"), SENTENCES)
def test_no_sentence_is_hidden_by_one_that_fits_more(en, zh):
    """Values are names, which no other sentence is about."""
    values = [f"v{n}" for n in range(en.count("{}"))]
    said = en
    for value in values:
        said = said.replace("{}", value, 1)
    language.chosen("zh")
    try:
        assert language.refusal(said) == zh.format(*values)
    finally:
        language.chosen("en")


@pytest.mark.parametrize(
    ("said", "in_chinese"),
    [
        ("cannot read /a: b/host.json: No such file or directory", "无法读取 /a：b/host.json: No such file or directory"),
        ("there is no area named 'nope'", "没有名为 'nope' 的方面"),
        ("--yes is for --fix", "--yes 只用于 --fix"),
        ("train.sh is larger than 256 KiB: no script", "train.sh 大于 256 KiB，不是脚本"),
        ("unhang.toml: [run] set shm=maybe: it is on or off", "unhang.toml：[run] set shm=maybe：应为 on 或 off"),
        ("cannot read a.log: Permission denied", "无法读取 a.log：没有权限"),
        ("there is no log in /d", "/d 中没有日志"),
        ("a.log: it is empty; 2 such as b: no log: a data file", "a.log：文件是空的；2 such as b：不是日志：数据文件"),
        ("host.json: Permission denied; 3 others", "host.json: Permission denied; 3 others"),
        ("something else went wrong with {name}", "something else went wrong with {name}"),
    ],
)
def test_refusals_in_the_language_that_was_asked_for(zh, said, in_chinese):
    assert language.refusal(said) == in_chinese
    language.chosen("en")
    assert language.refusal(said) == said


def test_without_a_language_the_locale_s(monkeypatch):
    monkeypatch.setenv("LC_ALL", "zh_CN.UTF-8")
    language.chosen(None)
    assert language.refusal("--yes is for --fix") == "--yes 只用于 --fix"
    monkeypatch.setenv("LC_ALL", "C")
    assert language.refusal("--yes is for --fix") == "--yes is for --fix"
    with pytest.raises(UnhangError):
        language.chosen("de")
