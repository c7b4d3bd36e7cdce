"""guarded-call-timeout: a call of unhang's own collectives was given up at its deadline, for all ranks alike."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from unhang.knowledge import text, unhang_errors
from unhang.knowledge.cause import Cause, LogView
from unhang.knowledge.text import NOTHING, Text, same
from unhang.model import Remedy
from unhang.patterns import lazily

if TYPE_CHECKING:
    from unhang.logs import Hit
    from unhang.model import Finding
    from unhang.records.incident_view import IncidentView

_NOT_HEARD = lazily(r" ?Not heard from: rank (?P<ranks>.+?)\.(?=$| \d+ of \d+ chunks)")
_ONE = lazily(r"(?P<rank>\d+)(?: \((?:at (?P<at>[^()]{1,400})|(?P<stopped>its process is stopped)[^()]{1,100})\))?(?:, |$)")
# Of a rank's own: what the others were told is "rank 1: KeyError: 'label'".
_OWN = lazily(r"\brank (?P<rank>\d+): \w*(?:Error|Exception|Interrupt|Exit)\b")
_STOOD = Text("rank {n} stood at {at}", "rank {n} 停在 {at}")
_LATER = Text("when it was looked at, rank {n} was at {at}", "查看时 rank {n} 位于 {at}")
_STOPPED = Text("the process of rank {n} was stopped: SIGSTOP or Ctrl-Z", "rank {n} 的进程已被暂停（SIGSTOP 或 Ctrl-Z）")
_CHUNKS = lazily(r" \d+ of \d+ chunks were complete.*$")


def _found(seen: LogView | IncidentView) -> Finding | None:
    hits = seen.hits_of(CAUSE.id)
    given_up = [h for h in hits if "says" in h.groups]
    without = [h for h in hits if "missing" in h.groups]
    if given_up:
        return _of_call(given_up, seen)
    if without:
        said = without[0].groups
        missing, line = unhang_errors.numbers(said["missing"]), unhang_errors.line_of(without, seen)
        says = Text("{what} waited for {who} in vain{at}", "{what} 没有等到 {who}{at}")
        return unhang_errors.finding(
            CAUSE,
            without,
            says.fill(what=same(said["what"]), who=text.ranks(missing), at=unhang_errors.at_line(line)),
            standing="likely",
            ranks=missing,
            where=line,
        )
    if not hits:
        return None
    said, late, line = hits[0].groups, unhang_errors.numbers(" ".join(h.groups["late"] for h in hits)), unhang_errors.line_of(hits, seen)
    says = Text(
        "{who} came too late to {call}, which the others had given up after {waited} s, and nothing caught that{at}",
        "{who} 太晚才到 {call}，其他 rank 等了 {waited} 秒后已放弃，而这个异常没有被捕获{at}",
    )
    told = says.fill(who=text.ranks(late), call=said["call"], waited=said["waited"], at=unhang_errors.at_line(line))
    return unhang_errors.finding(CAUSE, hits, told, standing="likely", ranks=late, where=line)


def _of_call(hits: list[Hit], seen: LogView | IncidentView) -> Finding:
    said = hits[0].groups
    not_heard = _NOT_HEARD.search(said["says"])
    each = list(_ONE.finditer(not_heard["ranks"])) if not_heard is not None else []
    stood = {int(one["rank"]): one["at"] for one in each}
    why = _CHUNKS.sub("", said["says"][: not_heard.start()] if not_heard is not None else said["says"]).rstrip(". ")
    who = NOTHING
    if stood:
        known = [one for one in each if one["at"] or one["stopped"]][:4]
        places = [_STOOD.fill(n=one["rank"], at=one["at"]) if one["at"] else _STOPPED.fill(n=one["rank"]) for one in known]
        later = {} if known else _captured(seen, stood)
        places += [_LATER.fill(n=n, at=at) for n, at in list(later.items())[:4]]
        stood |= later
        who = Text("; {who} did not come", "；{who} 没有来").fill(who=text.ranks(stood))
        who += Text(" ({places})", "（{places}）").fill(places=text.joined(places, text.COMMA)) if places else NOTHING
    line = unhang_errors.line_of(hits, seen)
    says = Text("{call} (call {number} of group {group}){at} was given up: {why}{who}", "组 {group} 第 {number} 次调用 {call}{at}被放弃：{why}{who}")
    own = tuple(sorted({int(one["rank"]) for one in _OWN.finditer(why)}))
    return unhang_errors.finding(
        CAUSE,
        hits,
        says.fill(call=said["call"], number=said["number"], group=said["group"], at=unhang_errors.at_line(line), why=why, who=who),
        # Who did not come is known; why, only its own log tells.
        standing="likely" if stood or own else "possible",
        ranks=tuple(stood) or own or unhang_errors.raisers(hits),
        # Where the others waited is not where the ranks stood that it is about.
        where=next((at for at in stood.values() if at), None if stood else line),
    )


def _captured(seen: LogView | IncidentView, ranks: Iterable[int]) -> dict[int, str]:
    """Where those stood, as a capture after it tells, that could not say so themselves: they had not met the others yet."""
    if isinstance(seen, LogView):
        return {}
    there = [r for r in seen.ranks if r.number in ranks and r.raised is None and r.captured and not r.only_last_seen]
    return {r.number: at for r in there if (at := seen.where(r)) is not None}


CAUSE = Cause(
    id="guarded-call-timeout",
    role="root",
    title="A guarded collective was given up at its deadline",
    title_zh="受保护的集合通信到期被放弃",
    what="A call of unhang's collectives saw no progress for as long as its deadline, and ended on all ranks; those that did not come are named.",
    why="A rank was late, stuck, gone or elsewhere in the code; a connection broke; or the deadline is shorter than what that rank does meanwhile.",
    signatures=(
        unhang_errors.signature(
            "(?:CollectiveTimeout|LatePeer|PeerFailed)",
            ") did not end: ",
            r"(?P<call>[^']{1,300}?) \(call (?P<number>\d{1,12}) of group '(?P<group>[^']{1,200})'\) did not end: (?P<says>.{1,4000})",
        ),
        unhang_errors.signature(
            "CollectiveTimeout", " cannot go on without rank ", r"(?P<what>.{1,300}?) cannot go on without rank (?P<missing>[\d, ]{1,2000})"
        ),
        unhang_errors.signature(
            "LatePeer",
            " came too late to ",
            r"rank (?P<late>\d{1,9}) came too late to (?P<call>.{1,300}?): the others gave it up after (?P<waited>[\d.e+]{1,12}) s",
        ),
    ),
    in_run=_found,
    in_logs=_found,
    remedies=(
        Remedy(
            id="see-the-missing-rank",
            says="Look at what the named rank did meanwhile: its own log, or its stack. Give unhang why the logs of all ranks at once.",
            says_zh="看被点名的 rank 当时在做什么：它自己的日志或堆栈。把所有 rank 的日志一起交给 unhang why。",
            command="unhang why logs/ --all",
        ),
        Remedy(
            id="longer-deadline",
            says="If that rank was only slow (saving, loading, compiling), give this call a longer deadline, or learned ones.",
            says_zh="如果该 rank 只是慢（保存、加载、编译），给这次调用更长的期限，或使用学习得到的期限。",
            command="with unhang.deadline(1800): ...  # or: with unhang.adaptive(): ...",
        ),
        Remedy(
            id="catch-it-everywhere",
            says=(
                "Every rank gets the error, the late one too (LatePeer): where the training can do without this result, catch "
                "unhang.CollectiveTimeout on all ranks at this line and go on together."
            ),
            says_zh="每个 rank 都会得到这个错误，迟到的也会（LatePeer）：如果训练可以没有这个结果，"
            "就在所有 rank 的这一行捕获 unhang.CollectiveTimeout 并一起继续。",
        ),
    ),
    mistaken_for={
        "collective-timeout": "that is torch's own timeout, which names nobody",
        "rank-exception": "an exception of the rank that did not come, in its own log, is why",
        "process-stuck": "a stack of the rank that did not come tells what it was stuck in",
    },
    sources=("https://docs.pytorch.org/docs/stable/distributed.html",),
    hits=(
        (
            "unhang.errors.CollectiveTimeout: all_reduce of 8,388,608 float32 elements (cuda, AVG) (call 12 of group '0') did not end: not all ranks "
            "came within 300 s. Not heard from: rank 3 (at train.py:88 in step)."
        ),
        (
            "unhang.errors.CollectiveTimeout: sync_check (call 7 of group '0') did not end: not all ranks came within 60 s. Not heard from: rank 2 "
            "(at train.py:33 in step)."
        ),
        (
            "unhang.errors.PeerFailed: reduce_metrics (call 9 of group '0') did not end: rank 1: TypeError: metric 'loss' is a number or a pair "
            "(sum, count), not 'x'."
        ),
        "unhang.errors.CollectiveTimeout: all_reduce of 8 float32 elements (cpu, SUM) cannot go on without rank 3",
        ("unhang.errors.LatePeer: rank 3 came too late to barrier: the others gave it up after 30.02 s. It takes part again in the next call."),
    ),
    near_misses=(
        "evaluation: rank 1: CollectiveTimeout: barrier (call 2 of group '0') did not end: nothing moved for 5 s. Not heard from: rank 0.",
        "the guest came too late to dinner",
        "ServerError: the request (id 12) did not end: timeout",
    ),
    explain={
        "en": (
            "A guarded collective ends at its deadline on every rank, with the same account: which call it was, which ranks were not heard from, and "
            "where in the code these stood, which a thread of theirs tells as long as the process runs. The ranks that print this are well. Look at "
            "the one that is named: an exception, a kill or a stack of its own says why it did not come."
        ),
        "zh": (
            "受保护的集合通信到期后会在所有 rank 上结束，并给出同样的说明：是哪次调用、没有收到哪些 rank 的消息、它们停在代码的什么位置（只要进程还在"
            "运行，就由它自己的线程报告）。打印这条信息的 rank 是健康的。应当去看被点名的那个：它自己的异常、被杀记录或堆栈会说明它为什么没有来。"
        ),
    },
)
