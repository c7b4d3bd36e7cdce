"""The languages that explanations and fixed labels come in. What a finding says about a run stays English."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Literal, cast, get_args

from unhang.errors import UnhangError

Language = Literal["en", "zh"]

STANDINGS: Mapping[Language, Mapping[str, str]] = {
    "en": {s: s for s in ("established", "likely", "possible", "not-established")},
    "zh": {"established": "已确定", "likely": "很可能", "possible": "有可能", "not-established": "未能确定"},
}

LABELS: Mapping[Language, Mapping[str, str]] = {
    "en": {
        "nothing": "nothing is wrong: the run ended with exit code 0",
        "unrecognised": "nothing recognised in what was read",
        "unread": "nothing recognised in the part that could be read; what the rest holds is not known",
        "set": "set {env}",
        "unknown": "Nothing recognised names the cause",
        "who": "who",
        "where": "where",
        "evidence": "evidence",
        "remedy": "do this",
        "also": "also found",
        "symptoms": "symptoms",
        "not_examined": "not examined",
        "more": "and {n} more",
        "explain": "more about it",
        "inputs": "read",
        "verify": "check",
        "job": "the job, as its logs tell",
        "no_sign": "no sign of",
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
    },
    "zh": {
        "nothing": "没有问题：运行以退出码 0 结束",
        "unrecognised": "读到的内容里没有认出任何问题",
        "unread": "能读到的部分里没有认出任何问题；其余部分情况不明",
        "set": "设置 {env}",
        "unknown": "没有能说明原因的线索",
        "who": "进程",
        "where": "位置",
        "evidence": "证据",
        "remedy": "处理办法",
        "also": "另外发现",
        "symptoms": "伴随现象",
        "not_examined": "未能检查",
        "more": "另有 {n} 项",
        "explain": "详细说明",
        "inputs": "读取了",
        "verify": "验证方法",
        "job": "日志中关于任务本身的信息",
        "no_sign": "没有迹象",
        "timeline": "时间线（第 {attempt} 次尝试，共 {attempts} 次）",
        "rank": "rank",
        "ranks": "rank",
        "on": "位于",
        "trial": "验证",
        "what": "是什么",
        "why": "为什么会发生",
        "looks": "在日志里的样子",
        "remedies": "怎么办",
        "mistaken_for": "容易与之混淆",
        "sources": "来源",
        "root": "根本原因",
        "symptom": "伴随现象",
    },
}


def chosen(lang: str | None) -> Language:
    """The language that was asked for, else the locale's. Raises UnhangError for one that does not exist."""
    if lang is None:
        return from_locale(os.environ)
    if lang not in LABELS:
        raise UnhangError(f"--lang {lang}: it is one of {', '.join(get_args(Language))}")
    return cast(Language, lang)


def from_locale(environment: Mapping[str, str]) -> Language:
    value = next((v for name in ("LC_ALL", "LC_MESSAGES", "LANG") if (v := environment.get(name))), "")
    return "zh" if value.lower().startswith("zh") else "en"
