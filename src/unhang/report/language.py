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
    "it is JSON without its end: it was read as it stands": "它是 JSON，但没有结尾：已按原样读取",
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
    ("{} is for --live --fix", "{} 只用于 --live --fix"),
    ("--trial-limit has no effect without --trial-command", "--trial-limit 没有 --trial-command 时不起作用"),
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
    ("there is no run directory {}", "没有运行目录 {}"),
    ("unhang top without a name takes the newest one here", "unhang top 不带名称时显示此处最新的运行"),
    ("{} is no directory", "{} 不是目录"),
    ("{} is empty", "{} 是空的"),
    ("{} is not a run directory: it has no run.json", "{} 不是运行目录：其中没有 run.json"),
    ("unhang run makes them as runs/<name>-<time>/", "unhang run 会创建 runs/<名称>-<时间>/"),
    ("unhang run makes run directories as runs/<name>-<time>/", "unhang run 会创建运行目录 runs/<名称>-<时间>/"),
    ("unhang run has not begun to write there yet, or was ended before it could", "unhang run 还没有开始写入，或者在写入之前就被结束"),
    ("it belongs to another user", "它属于另一个用户"),
    ("there is no run here", "这里没有运行"),
    ("--follow is for --json", "--follow 只用于 --json"),
    ("--once and --json: choose one", "--once 与 --json 只能选一个"),
    ("--json prints one picture, unless there is --follow", "没有 --follow 时，--json 只输出一次"),
    ("unhang top shows what changes by itself", "unhang top 本身就会显示变化"),
    ("unhang top needs Textual, which is not installed here", "unhang top 需要 Textual，而这里没有安装"),
    ("it comes with the extra top; --once and --json work without it", "它属于附加组件 top；--once 与 --json 不需要它"),
    ("{} cannot be read: {}", "{} 无法读取：{}"),
    ("run.json is missing: what was started is not known", "缺少 run.json：不知道启动了什么"),
    ("events.jsonl is missing: what has happened is not known", "缺少 events.jsonl：不知道发生过什么"),
    ("events.jsonl ends in the middle of a line: what it was to tell is not known", "events.jsonl 的最后一行不完整：不知道它要说什么"),
    ("{}: {} damaged line left out", "{}：略去 {} 行损坏的内容"),
    ("{}: {} damaged lines left out", "{}：略去 {} 行损坏的内容"),
    ("{} is {}, of another version of unhang: what is known here is shown", "{} 是 {}，来自另一版本的 unhang：只显示这里认识的内容"),
    (
        "now.json is missing: how the ranks stand is not known (it was removed, or this run's unhang writes none)",
        "缺少 now.json：不知道各 rank 的状态（它被删除，或者这次运行的 unhang 不写它）",
    ),
    ("{} has no effect in {} for one host", "{} 在单台主机的 {} 中不起作用"),
    ("--nodes N where there are several; leave it out where not", "有多台主机时加上 --nodes N；否则去掉它"),
    ("{} has no effect in {}: its file has no place for it", "{} 在 {} 中不起作用：其文件中没有它的位置"),
    ("leave it out; forms that have one: {}", "去掉它；能写入它的形式有：{}"),
    # unhang export
    ("there is no form {}", "没有名为 {} 的形式"),
    ("forms: {}", "可用的形式：{}"),
    ("did you mean {}?", "是不是 {}？"),
    ("name a form", "请指定形式"),
    ("unhang export torchrun; forms: {}", "例如 unhang export torchrun；可用的形式：{}"),
    ("--form goes with --check", "--form 与 --check 一起使用"),
    ("{} is there already", "{} 已经存在"),
    ("--force overwrites it", "--force 会覆盖它"),
    ("leave --python out to spell for current releases", "去掉 --python，则按当前版本书写"),
    ("{}: name the script, or -m and a module", "{}：请指定脚本，或者 -m 与模块名"),
    ("one launcher inside of another: {}", "启动器嵌套：{}"),
    ("{} starts torchrun by itself", "{} 会自行启动 torchrun"),
    ("{} without a script", "{} 后面没有脚本"),
    ("accelerate launch --num_processes {}: that does not divide by {} hosts", "accelerate launch --num_processes {}：不能被 {} 台主机整除"),
    ("{}: a form needs a number", "{}：各形式需要一个数字"),
    ("{} starts through unhang run: its ways are what unhang's hook does", "{} 通过 unhang run 启动：其中的各种方式由 unhang 的钩子实现"),
    ("{} starts nothing by itself", "{} 自身不启动任何进程"),
    ("start it by unhang run", "用 unhang run 启动它"),
    ("DeepSpeed's file has no fp8", "DeepSpeed 的文件没有 fp8"),
    ("LLaMA-Factory's file has no fp8", "LLaMA-Factory 的文件没有 fp8"),
    ("Lightning has fp8 by a plugin of its own only", "Lightning 只能通过自己的插件使用 fp8"),
    ("Ray's program runs a file, not a module", "Ray 的程序运行文件，不运行模块"),
    ("the menu is for one host", "菜单只用于单台主机"),
    ("{}, or slurm, kubernetes, ray, skypilot", "{}，或 slurm、kubernetes、ray、skypilot"),
    ("{}: of this form COMMAND is fields of LLaMA-Factory", "{}：此形式的 COMMAND 是 LLaMA-Factory 的字段"),
    ("name {}: its last pod is {}, which is longer than {} letters", "名称 {}：最后一个 pod 为 {}，超过 {} 个字符"),
    ("name {}: small letters, digits and -, a letter first, at most 63", "名称 {}：只能用小写字母、数字和 -，以字母开头，最多 63 个字符"),
    ("{} hosts with {} processes each: both are at least 1", "{} 台主机，每台 {} 个进程：两者都至少为 1"),
    ("port {}: it is one from 1 to 65535", "端口 {}：取值为 1 到 65535"),
    ("{} is no name or address of a host", "{} 不是主机名或地址"),
    ("{} is no name of an image", "{} 不是镜像名称"),
    ("a word of the command holds a NUL, which no program can be given", "命令中有一个词含有 NUL，无法传给任何程序"),
    ("--master {}: that is no host", "--master {}：不是主机"),
    # settings and presets
    ("there is no preset {}", "没有名为 {} 的预设"),
    ("{}: there is no preset {}", "{}：没有名为 {} 的预设"),
    ("presets: {}", "可用的预设：{}"),
    ("there is no setting {}", "没有名为 {} 的设置"),
    ("settings: {}", "可用的设置：{}"),
    ("--settings lists all settings: it takes no preset ({})", "--settings 列出所有设置，不接受预设（{}）"),
    ("--set {}: a value is missing", "--set {}：缺少值"),
    ("--set {}=VALUE; values: {}", "--set {}=VALUE；可取的值：{}"),
    ("{}={}: it is on or off", "{}={}：应为 on 或 off"),
    ("{}={}: it is a whole number, {} or more", "{}={}：应为整数，至少为 {}"),
    ("{}={}: it is a whole number from {} to {}", "{}={}：应为 {} 到 {} 的整数"),
    ("{}={}: it is one of {}", "{}={}：可选的有 {}"),
    ("{}={}: it is a number of bytes, such as 8388608 or 8M", "{}={}：应为字节数，例如 8388608 或 8M"),
    ("{}={}: it is a time from 1 second to 30 days, such as 1800, 30m or 2h", "{}={}：应为 1 秒到 30 天的时间，例如 1800、30m 或 2h"),
    (
        "{}={}: it is the name of an interface, or several with commas between them: {}",
        "{}={}：应为网卡名称，多个以逗号分隔：{}",
    ),
    (
        "{}={}: it is the name of an adapter, or several with commas between them: {}; {} leaves one out",
        "{}={}：应为适配器名称，多个以逗号分隔：{}；{} 表示排除一个",
    ),
    ("unhang presets --settings lists every setting", "unhang presets --settings 列出所有设置"),
    ("unhang presets --settings shows every setting; {}: {}", "unhang presets --settings 列出所有设置；{}：{}"),
    ("the name is misspelt, or another machine's", "名称拼写有误，或者属于另一台机器"),
    ("interfaces of this machine: {}", "本机的网卡：{}"),
    ("leave it out", "去掉它"),
    ("leave it out; unhang presets --settings lists every setting", "去掉它；unhang presets --settings 列出所有设置"),
    ("leave it out: nothing here talks over NCCL; Gloo takes {}", "去掉它：这里没有用 NCCL 通信；Gloo 可用 {}"),
    (
        "leave it out: nothing here talks over NCCL's shared memory; where /dev/shm is short for a DataLoader, {}",
        "去掉它：这里没有用 NCCL 的共享内存；如果 /dev/shm 对 DataLoader 不够大，用 {}",
    ),
    ("give the command its own option, or -n for a Python script", "使用该命令自己的选项；Python 脚本则用 -n"),
    (
        "change the number in the script, or give the script its own flag ({}); where unhang.toml knows the flag ({}), {} puts it there",
        "修改脚本中的数字，或使用脚本自己的选项（{}）；如果 unhang.toml 中写明该选项（{}），则 {} 会写入它",
    ),
    # unhang run
    ("--on-failure {}: it is one of {}", "--on-failure {}：可选的有 {}"),
    ("--fallback {}: it is one of {}", "--fallback {}：可选的有 {}"),
    ("{} has no effect with [run] fallback of unhang.toml, which is off", "{} 不起作用：unhang.toml 中 [run] 的 fallback 为 off"),
    ("{} has no effect with {}", "{} 与 {} 一起使用时不起作用"),
    ("settings are tried only before a restart", "只有在重新启动之前才会测试设置"),
    ("leave one of them out", "去掉其中一个"),
    ("{} has no torch", "{} 中没有 torch"),
    ("the environment of the training is not activated", "没有激活训练所用的环境"),
    ("activate it, or name its Python with --python PATH", "激活它，或用 --python PATH 指定其 Python"),
    ("{} finds no module {} to run", "{} 找不到要运行的模块 {}"),
    ("--trial-command is empty", "--trial-command 为空"),
    ("--trial-command {}: {}: no such command", "--trial-command {}：没有命令 {}"),
    ("--trial-command {}: {}: no such file", "--trial-command {}：没有文件 {}"),
    ("{}: no such command", "没有命令 {}"),
    ("{}: no such file", "没有文件 {}"),
    ("the current directory is {}", "当前目录是 {}"),
    ("a quote is open", "引号没有闭合"),
    ("the environment that holds it is not activated, or the name is misspelt", "没有激活包含它的环境，或者名称拼写有误"),
    ("{} stands behind {} and would go to it: the training would start", "{} 写在 {} 后面，会传给它：训练将会启动"),
    ("options of unhang run go before the command", "unhang run 的选项要写在命令前面"),
    ("{}; for a script that has one of its own: {}", "{}；如果脚本自己有这个选项：{}"),
    ("--nproc-per-node is for a Python script or module; {} is a command of its own", "--nproc-per-node 用于 Python 脚本或模块；{} 本身就是命令"),
    ("give {} its own option for the number of processes", "使用 {} 自己的进程数选项"),
)
_asked: Language | None = None


def refusal(said: str) -> str:
    """An error of a command, its cause or its hint, in the language that the command was asked for, or else the locale's."""
    if spoken() != "zh":
        return said
    for english, chinese in _ERRORS:
        pattern = "(.*?)".join(re.escape(part) for part in english.split("{}"))
        if (found := re.fullmatch(pattern, said, re.DOTALL)) is not None:
            return chinese.format(*map(_title, found.groups()))
    return said


def _title(said: str) -> str:
    """Of a setting, where it is one; all else as it is."""
    from unhang.knowledge.settings.catalogue import SETTINGS

    return next((setting.title_zh for setting in SETTINGS.values() if setting.title == said), said)


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
