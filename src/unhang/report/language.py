"""The languages that explanations and fixed labels come in.

What a finding says about a run brings its Chinese with it (`says_zh`) where the sentence has one; else it stays English.
"""

from __future__ import annotations

import os
import re
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
        "usual_cause": "Usual cause",
        "try": "Try",
        "corrected": "corrected {name}",
        "left_as_it_is": "{name} is left as it is",
        "left_for_line": ", for other things stand on its line",
        "left_for_list": ", for nothing else stands in its list",
        "left_for_runs": ", for a command runs for its value",
        "left_for_used": ", for line {line} uses it",
        "corrected_not_followed": "corrected {what} was not looked at: {why}",
        "readers_unknown": "whether anything reads it could not be found out",
    },
    "zh": {
        "nothing": "没有问题：运行以退出码 0 结束",
        "unrecognised": "读到的内容里没有认出任何问题",
        "unread": "能读到的部分里没有认出任何问题；其余部分情况不明",
        "unknown": "没有能说明原因的线索",
        "who": "进程",
        "where": "位置",
        "evidence": "证据",
        "remedy": "处理办法",
        "also": "另外发现",
        "symptoms": "伴随现象",
        "contradictions": "来源之间矛盾",
        "stacks": "各主线程所在的位置",
        "stacks_in_logs": "日志中的调用栈（每个 rank 的最后一个）",
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
        "usual_cause": "常见原因",
        "try": "可以试试",
        "corrected": "修改后的 {name}",
        "left_as_it_is": "{name} 保持原样",
        "left_for_line": "，因为同一行还有别的内容",
        "left_for_list": "，因为列表中没有别的内容",
        "left_for_runs": "，因为它的值要运行命令才能得到",
        "left_for_used": "，因为第 {line} 行使用它",
        "corrected_not_followed": "修改后的 {what} 未能查看：{why}",
        "readers_unknown": "未能查明是否有程序读取它",
    },
}

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
    "another job; give it alone": "属于另一个任务；请单独给出",
    "it is cut off; only what stands before the cut can be read": "文件被截断；只能读到截断之前的内容",
    "its gzip data is damaged; only what stands before the damage can be read": "gzip 数据已损坏；只能读到损坏之前的内容",
    "its name leads out of the archive; it was not opened": "名称指向归档之外；没有打开",
    "it is missing: how the run ended is not known": "文件不存在：不知道运行是怎样结束的",
    "the end of the run": "运行的结尾",
    "it is not recorded: unhang itself was killed, or the run still goes on": "没有记录：unhang 本身被杀死，或者运行还在继续",
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


# What commands refuse with, whole, with what stands in the places of values; all else stays English.
_ERRORS: tuple[tuple[str, str], ...] = (
    ("cannot read {}: {}", "无法读取 {}：{}"),
    ("cannot write {}: {}", "无法写入 {}：{}"),
    ("there is no area named {}", "没有名为 {} 的方面"),
    ("areas are {}", "可用的方面有 {}"),
    ("there is no directory {}", "没有目录 {}"),
    ("none of the libraries that read variables is installed in {}", "{} 中没有安装会读取这些变量的库"),
    ("that is no site-packages directory", "它不是 site-packages 目录"),
    ("--lang {}: it is one of {}", "--lang {}：可选的有 {}"),
    ("--python and --ranks are for --live", "--python 和 --ranks 只用于 --live"),
    ("--live runs on this machine: it does not go with --snapshot", "--live 在本机上运行，不能与 --snapshot 一起使用"),
    ("--fix repairs this machine: it does not go with --snapshot", "--fix 修复的是本机，不能与 --snapshot 一起使用"),
    (
        "--path and --write-speed look at this machine: they do not go with --snapshot",
        "--path 和 --write-speed 查看的是本机，不能与 --snapshot 一起使用",
    ),
    (
        "--path and --write-speed are for the area storage, and --only leaves it out",
        "--path 和 --write-speed 属于 storage 方面，而 --only 没有包含它",
    ),
    ("add --only storage", "加上 --only storage"),
    ("--yes is for --fix", "--yes 只用于 --fix"),
    ("--rewrite takes one file", "--rewrite 只接受一个文件"),
    ("{} is larger than {} MiB: no script", "{} 大于 {} MiB，不是脚本"),
    ("{} is no text", "{} 不是文本"),
    ("{} is JSON, which has no comments: nothing can be commented out", "{} 是 JSON，没有注释语法，无法注释掉任何内容"),
    ("{} holds nothing of what is asked for", "{} 中没有所要查看的内容"),
    ("{} is empty: there is nothing to check", "{} 是空的：没有可检查的内容"),
    ("unhang export FORM -o FILE writes one", "unhang export FORM -o FILE 可生成一个"),
    ("{} is no JSON: {}", "{} 不是合法的 JSON：{}"),
    ("{} is no YAML: {}", "{} 不是合法的 YAML：{}"),
    ("YAML is indented by spaces, and this line has a tab", "YAML 用空格缩进，而这一行有制表符"),
    ("JSON takes no comma behind the last item", "JSON 最后一项后面不能有逗号"),
    ("JSON has no comments", "JSON 没有注释"),
    ('JSON has "double quotes", true, false and null', 'JSON 使用 "双引号"、true、false 和 null'),
    ("{} is UTF-16, which no launcher reads", "{} 是 UTF-16 编码，没有启动器能读"),
    ("{} is no file of a launcher", "{} 不是启动器的文件"),
    ("{} is no script of Python: a form starts a file that ends in .py, or a module", "{} 不是 Python 脚本：只能启动以 .py 结尾的文件或模块"),
    ("-m without a module: there is nothing to start", "-m 后面没有模块：没有可启动的内容"),
    ("{} is no UTF-8, and the file would be", "{} 不是 UTF-8，而要写的文件必须是"),
    ("{} is no TOML of settings: it is nested too deeply", "{} 不是有效的设置文件：嵌套过深"),
    ("{} and {} are one name in two spellings", "{} 与 {} 是同一个名称的两种写法"),
    ("leave one of them out", "只保留其中一个"),
    ("{}: that is no form known here", "{}：不是已知的形式"),
    ("--python {}: there is no such program", "--python {}：没有这个程序"),
    ("--python {}: it has no torch, or is no Python", "--python {}：其中没有 torch，或者它不是 Python"),
    ("--with-unhang and --without-unhang contradict each other", "--with-unhang 与 --without-unhang 互相矛盾"),
    ("{} and {} contradict each other: {} has one value", "{} 与 {} 互相矛盾：{} 只能有一个值"),
    ("{} {}, and the command behind -- says {}: which of them?", "{} {}，而 -- 后面的命令为 {}：以哪个为准？"),
    (
        "--check writes nothing: it goes with --form, --nodes, --processes and --json only",
        "--check 不写入任何文件：只能与 --form、--nodes、--processes 和 --json 一起使用",
    ),
    ("{} in front of {}: a form starts the script by itself", "{} 写在 {} 前面：各形式会自行启动脚本"),
    ("{} is no script: a form starts the script by itself", "{} 不是脚本：各形式会自行启动脚本"),
    ("{}: no form carries that", "{}：没有一种形式能写入它"),
)
_asked: Language | None = None


def refusal(said: str) -> str:
    """An error of a command, its cause or its hint, in the language that the command was asked for, or else the locale's."""
    if spoken() != "zh":
        return said
    for english, chinese in _ERRORS:
        pattern = "(.*?)".join(re.escape(part) for part in english.split("{}"))
        if (found := re.fullmatch(pattern, said, re.DOTALL)) is not None:
            return chinese.format(*found.groups())
    return said


def spoken() -> Language:
    """What was asked for last, for what is said when all else has failed."""
    return _asked or from_locale(os.environ)


def reason(said: str, lang: Language) -> str:
    """What was not examined, or why, in a language; as it is where that is of one run only."""
    return REASONS.get(said, said) if lang == "zh" else said


def chosen(lang: str | None) -> Language:
    """The language that was asked for, else the locale's. Raises UnhangError for one that does not exist."""
    global _asked
    _asked = None
    if lang is None:
        return from_locale(os.environ)
    if lang not in LABELS:
        raise UnhangError(f"--lang {lang}: it is one of {', '.join(get_args(Language))}")
    _asked = cast(Language, lang)
    return _asked


def from_locale(environment: Mapping[str, str]) -> Language:
    value = next((v for name in ("LC_ALL", "LC_MESSAGES", "LANG") if (v := environment.get(name))), "")
    return "zh" if value.lower().startswith("zh") else "en"
