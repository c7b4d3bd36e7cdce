"""The languages that explanations and fixed labels come in.

What a finding says about a run brings its Chinese with it (`says_zh`) where the sentence has one; else it stays English.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Literal, cast, get_args

from unhang.errors import UnhangError
from unhang.i18n import Labels

Language = Literal["en", "zh"]
Sentences = tuple[tuple[str, str], ...]

STANDINGS = Labels({s: s for s in ("established", "likely", "possible", "not-established")})

LABELS = Labels(
    {
        "nothing": "nothing is wrong: the run ended with exit code 0",
        "unrecognised": "nothing recognised in what was read",
        "unread": "nothing recognised in the part that could be read; what the rest holds is not known",
        "unknown": "Nothing recognised names the cause",
        "who": "who",
        "where": "where",
        "evidence": "evidence",
        "remedy": "do this",
        "also": "also found",
        "symptoms": "symptoms",
        "contradictions": "sources disagree",
        "stacks": "where the main threads stand",
        "stacks_in_logs": "stacks in the logs (the last of each rank)",
        "not_examined": "not examined",
        "more": "and {n} more",
        "explain": "more about it",
        "inputs": "read",
        "verify": "check",
        "job": "the job, as its logs tell",
        "timeline": "timeline (attempt {attempt} of {attempts})",
        "rank": "rank",
        "ranks": "ranks",
        "on": "on",
        "trial": "trial",
        "what": "What it is",
        "why": "Why it happens",
        "looks": "How it looks in a log",
        "remedies": "What to do",
        "mistaken_for": "Easily mistaken for",
        "sources": "Sources",
        "root": "root cause",
        "symptom": "symptom",
        "usual_cause": "Usual cause",
        "try": "Try",
    }
)

# What is said of things that were not examined and never changes; the rest names what stood in a file.
REASONS: Mapping[str, str] = {
    "stacks, flight recorder, process states": "调用栈、flight recorder、进程状态",
    "only logs were given; unhang run takes these before anything is ended": "只给了日志；用 unhang run 运行时，会在结束任何进程之前取得这些信息",
    "stacks, process states": "调用栈、进程状态",
    "only logs and flight-recorder dumps were given; unhang run takes these before anything is ended": (
        "只给了日志和 flight recorder 转储；用 unhang run 运行时，会在结束任何进程之前取得这些信息"
    ),
    "only flight-recorder dumps were given": "只给了 flight recorder 转储",
    "sends and receives": "发送与接收",
    "Gloo's flight recorder does not hold them": "Gloo 的 flight recorder 不记录它们",
    "nothing in it was recognised: it may be a healthy log, or none of a training": "没有认出任何内容：可能是正常的日志，也可能不是训练日志",
    "it is empty": "文件是空的",
    "a symlink out of the directory, not followed; name it to read it": "指向目录之外的链接，未跟随；要读取请写出其名称",
    "py-spy is not installed": "没有安装 py-spy",
    "it is JSON without its end: it was read as it stands": "它是 JSON，但没有结尾：已按原样读取",
    "another job; give it alone": "属于另一个任务；请单独给出",
    "it is cut off; only what stands before the cut can be read": "文件被截断；只能读到截断之前的内容",
    "its gzip data is damaged; only what stands before the damage can be read": "gzip 数据已损坏；只能读到损坏之前的内容",
    "its name leads out of the archive; it was not opened": "名称指向归档之外；没有打开",
    "it is missing: how the run ended is not known": "文件不存在：不知道运行是怎样结束的",
    "the end of the run": "运行的结尾",
    "the rest of the training": "训练的其余部分",
    "it is cut off or damaged: its newest entries are lost": "文件不完整或已损坏：最新的条目已丢失",
    "damaged": "已损坏",
    "no log: a model checkpoint": "不是日志：模型检查点",
    "no log: settings of a model": "不是日志：模型的设置",
    "no log: a data file": "不是日志：数据文件",
    "no log: binary data": "不是日志：二进制数据",
    "no log: source code": "不是日志：源代码",
    "no log: a record that unhang wrote": "不是日志：unhang 写的记录",
}


_DEEPEST = 3
_asked: Language | None = None


def refusal(said: str, lang: Language | None = None) -> str:
    """An error of a command, its cause or its hint; without a language in the one that the command was asked for, or else the locale's."""
    return _in_chinese(said) if (lang or spoken()) == "zh" else said


def unseen(said: str, lang: Language) -> str:
    """What of a machine could not be looked at or is not there, and why; as it is where that is what the system said."""
    from unhang.report.unseen import SENTENCES

    return _in_chinese(said, also=SENTENCES) if lang == "zh" else said


def _in_chinese(said: str, depth: int = 0, *, also: Sentences = (), piecewise: bool = True) -> str:
    """`also` are sentences beside those of `refusals`; with `piecewise` what is put together of several of them, each with where it comes from."""
    from unhang.report.refusals import SENTENCES
    from unhang.settings.catalogue import SETTINGS

    if said in REASONS:
        return REASONS[said]
    title = next((setting.title_zh for setting in SETTINGS.values() if setting.title == said), None)
    if title is not None:
        return title
    # What says more by itself fits better.
    for english, chinese in sorted((*SENTENCES, *also), key=lambda sentence: -len(sentence[0].replace("{}", ""))):
        # Hundreds of patterns would take longer to compile than all else.
        if not all(part in said for part in english.split("{}")):
            continue
        pattern = "(.*?)".join(re.escape(part) for part in english.split("{}"))
        if (found := re.fullmatch(pattern, said, re.DOTALL)) is not None:
            return chinese.format(
                *(_in_chinese(value, depth + 1, also=also, piecewise=piecewise) if depth < _DEEPEST else value for value in found.groups())
            )
    if also and piecewise:
        return _piecewise(said, depth + 1, also) if depth < _DEEPEST else said
    parts = [(part, _named(part)) for part in said.split("; ")]
    return "；".join(named or part for part, named in parts) if any(named for _, named in parts) else said


def _piecewise(said: str, depth: int, also: Sentences) -> str:
    """Several reasons, each for itself, and where each comes from: "journalctl: Permission denied; dmesg: it shows nothing"."""
    if len(parts := said.split("; ")) > 1:
        return "；".join(_in_chinese(part, depth, also=also) for part in parts)
    name, colon, why = said.partition(": ")
    return f"{name}：{_in_chinese(why, depth, also=also)}" if colon else said


def _named(said: str) -> str | None:
    """Something that was not examined, with the reason."""
    colons = [found.start() for found in re.finditer(": ", said)]
    return next((f"{said[:at]}：{REASONS[said[at + 2 :]]}" for at in colons if said[at + 2 :] in REASONS), None)


def spoken() -> Language:
    """What was asked for last, for what is said when all else has failed."""
    return _asked or from_locale(os.environ)


def reason(said: str, lang: Language) -> str:
    """What was not examined, or why, in a language; as it is where that is of one run only, or what the system said."""
    if lang != "zh" or said in REASONS:
        return REASONS[said] if lang == "zh" else said
    from unhang.report.unexamined import SENTENCES

    return _in_chinese(said, also=SENTENCES, piecewise=False)


def chosen(lang: str | None) -> Language:
    """The language that was asked for, else the locale's. Raises UnhangError for one that does not exist."""
    global _asked
    _asked = None
    if lang is None:
        return from_locale(os.environ)
    if lang not in get_args(Language):
        raise UnhangError(f"--lang {lang}: it is one of {', '.join(get_args(Language))}")
    _asked = cast(Language, lang)
    return _asked


def from_locale(environment: Mapping[str, str]) -> Language:
    value = next((v for name in ("LC_ALL", "LC_MESSAGES", "LANG") if (v := environment.get(name))), "")
    return "zh" if value.lower().startswith("zh") else "en"
