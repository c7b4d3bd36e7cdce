"""The words of `unhang top`, in both languages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from unhang.knowledge import seen
from unhang.knowledge.text import Text
from unhang.records.run_snapshot import Phase, State
from unhang.records.run_so_far import Happened
from unhang.records.status import Seen
from unhang.report.language import Language, refusal

# What is not known; never an empty place, which might be read as nothing being wrong.
UNKNOWN = "?"

STATES: Mapping[Language, Mapping[State, str]] = {
    "en": {s: s for s in ("failed", "stuck", "silent", "late", "slow", "waiting", "unknown", "starting", "running", "left", "stopped", "done")},
    "zh": {
        "failed": "失败",
        "stuck": "卡住",
        "silent": "无心跳",
        "late": "迟到",
        "slow": "缓慢",
        "waiting": "等待",
        "unknown": "未知",
        "starting": "启动中",
        "running": "运行中",
        "left": "已离开",
        "stopped": "被结束",
        "done": "完成",
    },
}
STYLES: Mapping[State, str] = {
    "failed": "bold red",
    "stuck": "bold red",
    "silent": "bold magenta",
    "late": "yellow",
    "slow": "yellow",
    "waiting": "cyan",
    "unknown": "bold yellow",
    "starting": "blue",
    "running": "green",
    "left": "dim",
    "stopped": "dim",
    "done": "dim",
}
# A sign beside the word and the colour, for whoever runs an eye down the column.
MARKS: Mapping[State, str] = {"failed": "✗", "stuck": "✗", "silent": "!", "late": "!", "slow": "!", "unknown": "?"}

PHASES: Mapping[Language, Mapping[Phase, str]] = {
    "en": {
        "starting": "starting",
        "running": "running",
        "standing": "standing still",
        "wrong": "something is wrong",
        "between": "between attempts",
        "trying": "trying settings",
        "ended": "ended",
        "gone": "unhang run is gone, and has not said that the run was over",
        "unknown": "whether it goes on is not known",
    },
    "zh": {
        "starting": "正在启动",
        "running": "运行中",
        "standing": "停顿中",
        "wrong": "出现问题",
        "between": "两次尝试之间",
        "trying": "正在尝试设置",
        "ended": "已结束",
        "gone": "unhang run 已不在，也没有说明运行已经结束",
        "unknown": "不知道它是否还在运行",
    },
}
PHASE_STYLES: Mapping[Phase, str] = {
    "running": "bold green",
    "standing": "bold yellow",
    "wrong": "bold red",
    "gone": "bold red",
    "unknown": "bold yellow",
}

LABELS: Mapping[Language, Mapping[str, str]] = {
    "en": {
        "attempt": "attempt {n}",
        "restarts": "restarts {n} of {of}",
        "no_restarts": "no restarts (on failure: {what})",
        "since": "for {t}",
        "took": "took {t}",
        "lives": "unhang run lives (pid {pid} on {host})",
        "died": "unhang run lives no longer (pid {pid} on {host})",
        "unseen": "unhang run cannot be seen from here (pid {pid} on {host})",
        "wrote": "it wrote {t} ago",
        "left_running": "still running, unwatched: {who}",
        "left_rank": "rank {n} (pid {pid} on {host})",
        "still_runs": "its process still runs",
        "runs_no_more": "its process lives no longer",
        "step": "step {n}",
        "pace": "{n} steps/s",
        "pace_unknown": "steps/s ?",
        "gap": "usual gap {t}",
        "hang": "a hang after {t}",
        "timeout": "timeout {t}",
        "ranks": "{n} of {of} ranks seen here",
        "ranks_only": "{n} ranks seen here",
        "no_ranks": "no rank seen yet",
        "command": "command",
        "settings": "settings",
        "preset": "preset {name}",
        "verdict": "verdict",
        "standing_still": "nothing moves",
        "trouble": "{kind} (incident {n}), {t} ago",
        "judged": "judged",
        "evidence": "evidence is being taken",
        "exitcode": "exit code {n}",
        "attempts": "{n} attempts",
        "gave_up": "not started again: {why}",
        "notes": "not readable",
        "more": "and {n} more",
        "rank": "rank",
        "state": "state",
        "beat": "beat",
        "in": "in, for",
        "where": "where it was",
        "local": "local",
        "pid": "pid",
        "host": "host",
        "memory": "GPU memory",
        "folded": "{n} {state}",
        "steps": "steps {a} to {b}",
        "slowest": "slowest rank {n}",
        "collectives": "collectives",
        "no_monitor": "not known: no unhang.Monitor has told anything here (docs/monitoring.md)",
        "no_monitor_yet": "not known yet: no unhang.Monitor has told anything here so far (docs/monitoring.md)",
        "heard": "of {n} of {of} ranks, {t} ago",
        "before": "of an earlier attempt",
        "group": "group",
        "call": "call",
        "count": "count",
        "failures": "failed calls",
        "silent": "nothing comes from",
        "silent_for": "rank {n} for {t}",
        "store_lost": "the store is lost, and nothing comes from other ranks",
        "evaluation": "the last failed evaluation",
        "of_torch": "torch's own collectives",
        "unread": "{n} of them missed",
        "counted": "counted",
        "none recorded": "none recorded",
        "stragglers": "waited for",
        "stragglers_lately": "waited for in the last {t}",
        "straggler": "rank {n} {share} ({t}, {group})",
        "evaluations": "evaluations {n}, failed {failed}",
        "deadlines": "deadlines",
        "none": "none",
        "events": "last events",
        "no_events": "nothing has happened yet",
        "stopped_process": "stopped (SIGSTOP)",
        "collective": "a collective",
        "signal": "ended by signal {n}",
        "blamed": "named by the verdict",
        "moved": "moved {t} ago",
        "seen": "(last seen)",
        "last_seen": "last seen at {at}",
        "of": "of",
        "sorted": "sorted by {by}",
        "filtered": "filter {text}",
        "paused": "PAUSED",
        "shown": "{n} of {of}",
        "nothing_matches": "no rank matches",
        "late": "reading takes {t}",
        "lost": "not readable now: {why}; what is shown is {t} old",
        "keys": "q quit  ↑↓ move  s sort  / filter  a all  v view  p pause  ? help",
        "looking": "looking",
        "records": "unhang why {path} says more",
    },
    "zh": {
        "attempt": "第 {n} 次尝试",
        "restarts": "重启 {n} / {of}",
        "no_restarts": "不重启（失败时：{what}）",
        "since": "已 {t}",
        "took": "用时 {t}",
        "lives": "unhang run 存活（pid {pid}，{host}）",
        "died": "unhang run 已不存在（pid {pid}，{host}）",
        "unseen": "从这里看不到 unhang run（pid {pid}，{host}）",
        "wrote": "{t} 前写过记录",
        "left_running": "仍在运行，但无人监视：{who}",
        "left_rank": "rank {n}（pid {pid}，{host}）",
        "still_runs": "其进程仍在运行",
        "runs_no_more": "其进程已不存在",
        "step": "步数 {n}",
        "pace": "{n} 步/秒",
        "pace_unknown": "步/秒 ?",
        "gap": "平常间隔 {t}",
        "hang": "{t} 后视为挂起",
        "timeout": "超时 {t}",
        "ranks": "这里看到 {of} 个 rank 中的 {n} 个",
        "ranks_only": "这里看到 {n} 个 rank",
        "no_ranks": "还没有看到 rank",
        "command": "命令",
        "settings": "设置",
        "preset": "预设 {name}",
        "verdict": "结论",
        "standing_still": "没有任何进展",
        "trouble": "{kind}（事件 {n}），{t} 前",
        "judged": "已判断",
        "evidence": "正在收集证据",
        "exitcode": "退出码 {n}",
        "attempts": "{n} 次尝试",
        "gave_up": "不再重启：{why}",
        "notes": "无法读取",
        "more": "另有 {n} 项",
        "rank": "rank",
        "state": "状态",
        "beat": "心跳",
        "in": "所在调用，时长",
        "where": "位置",
        "local": "本地",
        "pid": "pid",
        "host": "主机",
        "memory": "GPU 显存",
        "folded": "{n} 个{state}",
        "steps": "步数 {a} 到 {b}",
        "slowest": "最慢的是 rank {n}",
        "collectives": "集合通信",
        "no_monitor": "未知：没有任何 unhang.Monitor 在这里写过数据（docs/monitoring.md）",
        "no_monitor_yet": "暂时未知：还没有 unhang.Monitor 在这里写过数据（docs/monitoring.md）",
        "heard": "{of} 个 rank 中的 {n} 个，{t} 前",
        "before": "来自之前的尝试",
        "group": "组",
        "call": "调用",
        "count": "次数",
        "failures": "失败的调用",
        "silent": "没有消息的",
        "silent_for": "rank {n}（{t}）",
        "store_lost": "store 已丢失，其他 rank 没有消息",
        "evaluation": "最近一次失败的评估",
        "of_torch": "torch 自身的集合通信",
        "unread": "其中 {n} 次未读到",
        "counted": "已统计",
        "none recorded": "没有记录",
        "stragglers": "被等待的",
        "stragglers_lately": "最近 {t} 内被等待的",
        "straggler": "rank {n} {share}（{t}，{group}）",
        "evaluations": "评估 {n} 次，失败 {failed} 次",
        "deadlines": "期限",
        "none": "无",
        "events": "最近的事件",
        "no_events": "还没有发生任何事",
        "stopped_process": "已暂停 (SIGSTOP)",
        "collective": "集合通信",
        "signal": "被信号 {n} 结束",
        "blamed": "结论指名",
        "moved": "{t} 前有进展",
        "seen": "（最后所见）",
        "last_seen": "最后见于 {at}",
        "of": "/",
        "sorted": "按{by}排序",
        "filtered": "过滤 {text}",
        "paused": "已暂停",
        "shown": "{n} / {of}",
        "nothing_matches": "没有匹配的 rank",
        "late": "读取用了 {t}",
        "lost": "现在无法读取：{why}；显示的是 {t} 前的内容",
        "keys": "q 退出  ↑↓ 移动  s 排序  / 过滤  a 全部  v 视图  p 暂停  ? 帮助",
        "looking": "正在读取",
        "records": "详细说明：unhang why {path}",
    },
}

SORTS = ("interest", "rank", "step", "beat", "waiting")
SORT_WORDS: Mapping[Language, Mapping[str, str]] = {
    "en": {"interest": "interest", "rank": "rank", "step": "step", "beat": "age of the heartbeat", "waiting": "waiting time"},
    "zh": {"interest": "关注程度", "rank": "rank", "step": "步数", "beat": "心跳时间", "waiting": "等待时间"},
}
KINDS: Mapping[Language, Mapping[str, str]] = {
    "en": {
        "hang": "a hang",
        "straggler": "a slow rank",
        "failure": "a failed rank",
        "world-size": "not the training that was asked for",
        "interrupted": "interrupted while it stood still",
    },
    "zh": {
        "hang": "挂起",
        "straggler": "有 rank 缓慢",
        "failure": "有 rank 失败",
        "world-size": "不是所要求的训练",
        "interrupted": "停顿时被中断",
    },
}

HELP: Mapping[Language, str] = {
    "en": """\
q, Ctrl-C  quit; the training does not notice
↑ ↓ PgUp PgDn Home End   another rank; all of it is told in the line below
s  sort by interest (what is wrong first), rank, step, heartbeat, waiting
/  filter: 7, 0-15, a state, host, file, call; of several words all; Esc
a  show all ranks, or fold those that nothing is to be said of
v  below: events, or collectives                p, space  pause, and go on

failed    raised, was killed, or ended with another exit code than 0
stuck     others wait for it, for longer than a hang takes
late      others wait for it, for longer than is usual
slow      others wait for it, and it executes
silent    no heartbeat for 5 s: it is stopped, or the GIL is held
waiting   inside a collective for longer than is usual
unknown   nothing new is known of it
left      out of its group, or it reports no longer; it lives
stopped   ended by its launcher, or by unhang run
?         not known            -  nothing there""",
    "zh": """\
q、Ctrl-C  退出；训练不受影响
↑ ↓ PgUp PgDn Home End   换一个 rank；它的全部信息在下面一行
s  排序：关注程度（有问题的在前）、rank、步数、心跳、等待
/  过滤：7、0-15、状态、主机、文件或调用，多个词须全部匹配；Esc 取消
a  显示全部 rank，或折叠没有什么可说的
v  下方：事件，或集合通信                          p、空格  暂停、继续

失败    抛出异常、被杀死，或退出码不为 0
卡住    别的 rank 在等它，时间已达挂起的标准
迟到    别的 rank 在等它，时间超过平常
缓慢    别的 rank 在等它，而它在执行
无心跳  5 秒没有心跳：被暂停，或 GIL 被占用
等待    在集合通信中的时间超过平常
未知    没有它的新消息
已离开  离开了进程组，或不再报告；还活着
被结束  由启动器或 unhang run 结束
?       未知                 -  没有""",
}


def duration(seconds: float | None) -> str:
    """0.4 s, 12 s, 3:05, 2:03:11."""
    if seconds is None:
        return UNKNOWN
    if seconds < 9.95:
        return f"{max(seconds, 0.0):.1f} s"
    if seconds < 99.5:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(int(seconds + 0.5), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def small(seconds: float | None) -> str:
    """850 µs, 12 ms, 1.3 s."""
    if seconds is None:
        return UNKNOWN
    for factor, unit in ((1e6, "µs"), (1e3, "ms")):
        if seconds * factor < 999.5:
            return f"{seconds * factor:.3g} {unit}"
    return duration(seconds)


def gibibytes(size: int) -> str:
    return f"{size / 2**30:.1f}"


def gigabytes(per_s: float | None) -> str:
    """12.5, 0.0031, 1.2e-05, 340: seven characters at most, none of which may be cut off."""
    if per_s is None:
        return UNKNOWN
    if 99.95 <= per_s < 999_999.5:
        return f"{per_s:.0f}"
    return f"{per_s:.3g}" if per_s == 0 or 0.001 <= per_s < 99.95 else f"{per_s:.1e}"


def happened(event: Happened, lang: Language) -> str:
    """One event in words; one that is not known here by its name."""
    told = _EVENTS.get(event.event)
    if told is None:
        return event.event
    fields = {name: _plain(value, lang) for name, value in event.fields.items()}
    if lang == "zh":
        fields |= _in_chinese(event, fields)
    verdict = event.fields.get("verdict")
    if event.event == "Drawn":
        says = (lang == "zh" and verdict.get("says_zh")) or verdict.get("says") if isinstance(verdict, dict) else ""
        fields["told"] = f"{verdict.get('cause')}: {says}" if isinstance(verdict, dict) else LABELS[lang]["none"]
    if event.event == "Started":
        fields["n"] = str(n + 1) if isinstance(n := event.fields.get("attempt"), int) else UNKNOWN
    if event.event == "Opened":
        fields["told"] = KINDS[lang].get(str(event.fields.get("kind")), str(event.fields.get("kind")))
    if event.event == "LastSeen":
        fields["told"] = _seen(event.fields.get("seen"), lang)
    if event.event == "Forced":
        fields["told"] = _forced(event.fields, lang)
    return told[lang].format_map(_Unknown(fields))


def _seen(told: Any, lang: Language) -> str:
    try:
        return seen.told(msgspec.convert(told, tuple[Seen, ...])).of(lang)
    except msgspec.ValidationError:
        return UNKNOWN


class _Forced(msgspec.Struct):
    seen: tuple[Seen, ...]
    after_s: float
    by_us: bool = True


def _forced(fields: Mapping[str, Any], lang: Language) -> str:
    try:
        told = msgspec.convert(dict(fields), _Forced)
    except msgspec.ValidationError:
        return Text("ended by force, by whom or where is not known", "被强制结束，不知道由谁或在何处").of(lang)
    return seen.by_force(told.seen, told.after_s, by_us=told.by_us).of(lang)


def _in_chinese(event: Happened, fields: Mapping[str, str]) -> dict[str, str]:
    """What an event brings in Chinese, and what the table of sentences has of what it brings in English."""
    told = {name: value for name in ("title", "says", "text") if (value := str(event.fields.get(f"{name}_zh") or ""))}
    if event.event in ("GaveUp", "Note"):
        told = {name: refusal(value) for name, value in fields.items() if name in ("why", "text")} | told
    if event.event == "RungTried":
        told["outcome"] = _OUTCOMES.get(fields.get("outcome", ""), fields.get("outcome", UNKNOWN))
    return told


_OUTCOMES: Mapping[str, str] = {"passed": "可行", "failed": "失败", "inconclusive": "未定", "skipped": "未测试"}


class _Unknown(dict[str, str]):
    def __missing__(self, name: str) -> str:
        return UNKNOWN


def _plain(value: Any, lang: Language) -> str:
    if isinstance(value, (list, tuple)):
        return ", ".join(str(v) for v in value[:8]) + (" ..." if len(value) > 8 else "")
    return UNKNOWN if value is None else f"{value:g}" if isinstance(value, float) else str(value)


_EVENTS: Mapping[str, Mapping[Language, str]] = {
    "Started": {"en": "attempt {n} started (pid {pid})", "zh": "第 {n} 次尝试开始（pid {pid}）"},
    "FirstStep": {
        "en": "{ranks} ranks on {devices} ({backend}): first step after {after_s} s",
        "zh": "{ranks} 个 rank（{devices}，{backend}）：{after_s} 秒后第一步",
    },
    "Overridden": {"en": "{what} {was} -> {now}", "zh": "{what} {was} -> {now}"},
    "Ignored": {"en": "{what}={value} not applied: {why}", "zh": "{what}={value} 没有生效：{why}"},
    "Stalled": {
        "en": "rank {ranks} has kept the others waiting for {for_s} s",
        "zh": "rank {ranks} 已让其他 rank 等待 {for_s} 秒",
    },
    "CaughtUp": {"en": "moving again after {after_s} s", "zh": "{after_s} 秒后恢复进展"},
    "Opened": {"en": "incident {incident}: {told}; taking evidence", "zh": "事件 {incident}：{told}；正在收集证据"},
    "Abandoned": {"en": "incident {incident} was none; the training goes on", "zh": "事件 {incident} 不成立；训练继续"},
    "Drawn": {"en": "verdict on incident {incident}: {told}", "zh": "事件 {incident} 的结论：{told}"},
    "Restarting": {"en": "starting again (restart {attempt} of {of})", "zh": "重新启动（第 {attempt} 次，共 {of} 次）"},
    "Climbing": {"en": "{cause}: trying settings on this machine with {ranks} ranks", "zh": "{cause}：正在用 {ranks} 个 rank 在本机尝试设置"},
    "RungTried": {"en": "{title}: {outcome}", "zh": "{title}：{outcome}"},
    "Asking": {"en": "the user is asked which of {ways} ways to take, within {within_s} s", "zh": "询问用户选择 {ways} 种方式之一，限 {within_s} 秒"},
    "FellBack": {"en": "going on with other settings: {says}", "zh": "改用其他设置继续：{says}"},
    "GaveUp": {"en": "not starting again: {why}", "zh": "不再重启：{why}"},
    "Note": {"en": "{text}", "zh": "{text}"},
    "LastSeen": {"en": "{signal}; last seen, by heartbeat: {told}", "zh": "{signal}；最后的心跳所在位置：{told}"},
    "Forced": {"en": "{told}", "zh": "{told}"},
    "Finished": {
        "en": "ended with exit code {exitcode} after {elapsed_s} s, in attempt {attempts}",
        "zh": "以退出码 {exitcode} 结束，用时 {elapsed_s} 秒，第 {attempts} 次尝试",
    },
}
