"""guarded-call-timeout: a call of unhang's own collectives was given up at its deadline, for all ranks alike."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from unhang.knowledge import text, unhang_errors
from unhang.knowledge.cause import LogView, cause
from unhang.knowledge.text import NOTHING, Text, same
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


CAUSE = cause("guarded-call-timeout", in_run=_found, in_logs=_found)
