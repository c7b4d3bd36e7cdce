"""What commands say of themselves, in both languages."""

from __future__ import annotations

import pytest

from unhang.errors import UnhangError
from unhang.report import language


@pytest.fixture
def zh():
    language.chosen("zh")
    yield
    language.chosen("en")


def test_both_languages_have_the_same_labels():
    assert language.LABELS["en"].keys() == language.LABELS["zh"].keys()


def test_every_refusal_has_as_many_values_in_both():
    assert all(en.count("{}") == zh.count("{}") and en != zh for en, zh in language._ERRORS)


@pytest.mark.parametrize(
    ("said", "in_chinese"),
    [
        ("cannot read /a: b/host.json: No such file or directory", "无法读取 /a：b/host.json: No such file or directory"),
        ("there is no area named 'nope'", "没有名为 'nope' 的方面"),
        ("--yes is for --fix", "--yes 只用于 --fix"),
        ("train.sh is larger than 16 MiB: no script", "train.sh 大于 16 MiB，不是脚本"),
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
