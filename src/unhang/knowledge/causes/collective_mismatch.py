"""collective-mismatch: ranks issue different collectives, sizes, dtypes or orders.

Long because it is proven in three ways (by a program's words, by several ranks' lines, by recorders), each with its own sentence.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from unhang.frames import other_line, place, user_frame
from unhang.knowledge import cann, fingerprints, text, unhang_errors, words
from unhang.knowledge.cause import Cause, LogView, Signature
from unhang.knowledge.fingerprints import Fingerprint
from unhang.knowledge.gloo_size_crash import SIZE_MISMATCH, Crash, crash_of, ended_of
from unhang.knowledge.rank_guards import guard_of_parting
from unhang.knowledge.text import NOTHING, Text
from unhang.knowledge.watchdogs import GaveUpIn, LaterTimeout, Parted, ahead, collective, evidence_of, parted, rank_0_apart, ranks_of, stood
from unhang.model import Evidence, Finding, Remedy, Standing
from unhang.patterns import lazily
from unhang.user_files import is_user_file

if TYPE_CHECKING:
    from unhang.flight import Call, CollectiveWait, Mismatch, MismatchSide, Stall
    from unhang.flight.outcome import Kind
    from unhang.logs import Hit
    from unhang.records.incident_view import IncidentView

# Every group begins at 1: two groups meet in small numbers by chance.
_SELDOM_MET = 100
# The sequence number is a fingerprint's only part that a stray collective of a side process changes too.
_SEQUENCE = lazily(r"SequenceNumber=\d+,?\s*")


def _in_run(picture: IncidentView) -> Finding | None:
    if refused := [h for h in picture.hits_of(CAUSE.id) if h.signature == _REFUSED]:
        return _of_refused(refused, picture)
    if (crash := crash_of(picture, picture.hits_of(CAUSE.id))) is not None:
        return _of_crash(picture, crash)
    if picture.front is not None and picture.front.parting is not None and guard_of_parting(picture) is None:
        return _of_parting(picture, picture.front.parting)
    if picture.front is not None and picture.front.crossed:
        return _of_crossing(picture, picture.front)
    # torch's own check (TORCH_DISTRIBUTED_DEBUG=DETAIL) names the ranks in its message.
    hits = [h for h in picture.hits_of(CAUSE.id) if "other" in h.groups]
    if not hits:
        return None
    if found := fingerprints.sides(hits):
        places = {r.number: at for r in picture.raised if (at := picture.where(r)) is not None}
        return _of_sides(found, len(picture.ranks), places)
    numbers = _named(hits)
    speaker = next((r for r in picture.raised if r.number in numbers or not numbers), None)
    at = picture.where(speaker) if speaker is not None else None
    return CAUSE.finding(
        standing=_worth(hits),
        says=Text(
            "{who} issued different collectives{at} (found by torch's own check)", "{who} 发出了不同的集合通信{at}（torch 自己的检查发现）"
        ).fill(who=text.ranks(numbers), at=text.at(picture, speaker) if speaker else NOTHING),
        ranks=numbers,
        where=at,
        evidence=words.hit_evidence(hits),
        remedies=("same-order",),
    )


def _of_crossing(picture: IncidentView, front: Stall) -> Finding:
    """Calls of one group may overtake those of another on NCCL, where each has a stream of its own: never more than likely."""
    crossed, strayed = front.crossed, front.strayed
    waits = list({_place_of(w): w for r in (*strayed, *crossed) if (w := picture.waits.get(r)) is not None}.values())
    said = []
    for w in waits[:3]:
        alike = [r for r in crossed if r in picture.waits and _place_of(picture.waits[r]) == _place_of(w)]
        at = Text(" ({at})", "（{at}）").fill(at=picture.place(w.place)) if w.place is not None else NOTHING
        said.append(Text("{who} in {call}{at}", "{who} 在{call} 中{at}").fill(who=text.ranks(alike), call=_calling(w, text.same(w.op)), at=at))
    if all(w.op.startswith("send") for w in waits):
        says = Text("ranks send to each other, and none of them receives: {told}", "各 rank 互相发送，却没有一个在接收：{told}")
    elif len({w.group for w in waits if w.group is not None}) > 1:
        says = Text("ranks wait for each other in different groups: {told}", "各 rank 在不同的组中互相等待：{told}") + _BEHIND
    else:
        says = Text("ranks wait for each other in a circle: {told}", "各 rank 循环等待：{told}") + _BEHIND
    says = says.fill(told=text.joined(said))
    where = None
    if strayed and len(groups := list(dict.fromkeys(w.group for w in waits if w.group is not None))) == 2:
        says += text.crossed_by(front.by, strayed, groups[0], groups[1])
        line = picture.waits[strayed[0]].place if strayed[0] in picture.waits else None
        where = picture.place(line) if line is not None else None
    return CAUSE.finding(
        standing="likely",
        says=says,
        ranks=strayed or crossed,
        hosts=words.hosts(picture, strayed or crossed),
        where=where,
        evidence=tuple(
            words.stated(
                words.wait_source(picture, w),
                Text("rank {n} waits in {call}{at}", "rank {n} 在{call} 中等待{at}").fill(
                    n=w.rank,
                    call=_calling(w, words.called(w.call) if w.call is not None else text.same(w.op)),
                    at=Text(", {frame}", "，{frame}").fill(frame=words.frame(w.place)) if w.place is not None else NOTHING,
                ),
            )
            for w in waits[:3]
        ),
        remedies=("same-group", "same-order") if len({w.group for w in waits}) > len({w.op for w in waits}) else ("same-order",),
    )


_BEHIND = Text("; each was to come to the other's call only behind its own", "；每个都要在自己的调用之后才到对方的调用")


def _place_of(wait: CollectiveWait) -> tuple[object, ...]:
    return (wait.group, wait.seq) if wait.seq is not None else (wait.group, wait.rank, wait.op)


def _calling(wait: CollectiveWait, what: Text) -> Text:
    """ "all_reduce #4 of group 0"; a message has no number that both sides know, and no group where its stack alone tells."""
    return Text("{what}{number}{group}", "{of}{what}{number}").fill(
        what=what,
        number=f" #{wait.seq}" if wait.seq is not None else "",
        group=f" of group {wait.group}" if wait.group is not None else "",
        of=f"组 {wait.group} 的 " if wait.group is not None else " ",
    )


def _of_parting(picture: IncidentView, parting: Mismatch) -> Finding:
    numbers = parting.odd or tuple(s.rank for s in parting.sides)
    # The same line called with another root or reduction is a fault even where only two ranks are compared, and neither is in the majority.
    same_line_differs = "=" in parting.sides[0].says and len({s.place for s in parting.sides}) == 1
    sure = parting.by == "pairs" or (parting.whole and (parting.odd or parting.by == "sums" or same_line_differs))
    standing: Standing = "established" if sure else "likely"
    kinds = list(dict.fromkeys(s.says for s in parting.sides))
    first_odd = parting.side(numbers[0])
    rest = next(s for s in parting.sides if s.says != first_odd.says)
    if parting.kind == "p2p-size":
        says = Text("a message of {sent} is received as {got}", "发送的消息为 {sent}，接收方期望的是 {got}").fill(
            sent=_sized(picture, parting.sides[0]), got=_sized(picture, parting.sides[1])
        )
    elif parting.by == "sums":
        odd_first = sorted(kinds, key=lambda kind: kind != first_odd.says)
        told = (text.sums(kind, [s.rank for s in parting.sides if s.says == kind]) for kind in odd_first[:3])
        says = Text(
            "what is sent in call #{seq} of group {group} is not what is received: {sums}",
            "组 {group} 的调用 #{seq} 中发送的数量与接收的不一致：{sums}",
        ).fill(seq=str(parting.seq), group=str(parting.group), sums=text.joined(told))
        places = {picture.place(s.place) for s in parting.sides if s.place is not None}
        says += Text(", all at {at}", "，全部位于 {at}").fill(at=places.pop()) if len(places) == 1 else NOTHING
    else:
        says = Text("{one}{seq}, where {other}", "{seq}{one}，而 {other}").fill(
            one=_did(picture, parting, first_odd),
            seq=Text(" as call #{seq} of group {group}", "组 {group} 的调用 #{seq}：").fill(seq=parting.seq, group=str(parting.group))
            if parting.seq is not None
            else NOTHING,
            other=_did(picture, parting, rest),
        )
        says += text.edited(parting.kind, parting.edit) + _how_known(picture, parting)
    says += _slipped(picture, parting.slipped)
    where = _where(picture, parting, first_odd)
    shown = [next(s for s in parting.sides if s.says == key) for key in kinds[:3]]
    return CAUSE.finding(
        standing=standing,
        says=says,
        ranks=numbers,
        hosts=words.hosts(picture, numbers),
        where=where,
        evidence=tuple(_side_evidence(picture, s, parting) for s in shown),
        remedies=advice(first_odd.says, rest.says, kind=parting.kind, one_line=not other_line(first_odd.place, rest.place)),
    )


def _sized(picture: IncidentView, side: MismatchSide) -> Text:
    at = Text(" at {at}", "，位于 {at}").fill(at=picture.place(side.place)) if side.place is not None else NOTHING
    return Text("{what} (rank {rank}{at})", "{what}（rank {rank}{at}）").fill(what=text.sized(side.says), rank=side.rank, at=at)


def _where(picture: IncidentView, parting: Mismatch, shown: MismatchSide) -> str | None:
    """The line to look at; None where the ranks stand at several and nothing tells which was meant."""
    if parting.slipped is not None and (earlier := user_frame(parting.slipped[0].frames)) is not None:
        return picture.place(earlier)
    if shown.place is None or (not parting.odd and any(other_line(shown.place, s.place) for s in parting.sides)):
        return None
    return picture.place(shown.place)


def _slipped(picture: IncidentView, calls: tuple[Call, Call] | None) -> Text:
    lines = [user_frame(c.frames) for c in calls or ()]
    here, there = (picture.place(line) for line in lines if line is not None) if calls and all(lines) else ("", "")
    return text.THEN + text.slipped(calls[0].seq, here, there) if calls and here else NOTHING


def _how_known(picture: IncidentView, parting: Mismatch) -> Text:
    if parting.by == "majority":
        agree = len(parting.sides) - len(parting.odd)
        return Text(" ({n} of {total} ranks agree)", "（{total} 个 rank 中有 {n} 个一致）").fill(n=agree, total=len(parting.sides))
    if parting.by == "history":
        return Text(" (the same line issued something else before)", "（同一行代码之前发出的是别的调用）")
    rare = next((s.place for s in parting.sides if s.rank in parting.rare and s.place is not None), None)
    seen = NOTHING
    if rare is not None:
        seen = Text(" ({place} was hardly ever reached before)", "（此前几乎从未到达过 {place}）").fill(place=picture.place(rare))
    if len(parting.sides) == 2:
        return (
            Text("; one of them went its own way; which one cannot be told from two", "；其中一个走了自己的路，只有两个进程，无法判断是哪一个") + seen
        )
    return Text("; which of them went astray is not in evidence", "；哪一个走错了，证据中没有") + seen


def _did(picture: IncidentView, parting: Mismatch, side: MismatchSide) -> Text:
    given = " ".join(word for word in side.says.split(" ") if "=" in word)
    return _issued(
        [s.rank for s in parting.sides if s.says == side.says],
        (words.call(side.call) if side.call is not None else side.op) + (f" ({given})" if given else ""),
        picture.place(side.place) if side.place is not None else None,
    )


def _issued(ranks: Sequence[int], call: str, at: str | None) -> Text:
    """ "rank 1 issued all_reduce of [8] Float at train.py:30 in step"."""
    where = Text(" at {at}", "（位于 {at}）").fill(at=at) if at is not None else NOTHING
    return Text("{who} issued {what}{where}", "{who} 发出了 {what}{where}").fill(who=text.ranks(ranks), what=_what(call), where=where)


def _what(call: str) -> Text:
    """ "all_reduce of [8] Float"."""
    return Text(call, call.replace(" of ", " ", 1))


def _in_brackets(said: Text) -> Text:
    return Text(" ({said})", "（{said}）").fill(said=said)


def _side_evidence(picture: IncidentView, side: MismatchSide, parting: Mismatch) -> Evidence:
    record = picture.rank(side.rank).record
    source = record.flight if side.call is not None else record.stacks
    says = Text("rank {n}: {seq}{call} ({state}){at}", "rank {n}：{seq}{call}（{state}）{at}").fill(
        n=side.rank,
        seq="" if parting.seq is None else f"#{parting.seq} ",
        call=words.called(side.call) if side.call is not None else side.op,
        state=Text("waits", "等待中") if side.waiting else Text("done", "已完成"),
        at=Text(", {frame}", "，{frame}").fill(frame=words.frame(side.place)) if side.place is not None else NOTHING,
    )
    return words.stated(source or picture.incident_source, says)


_ADVICE = {
    "op": "same-order",
    "shape": "same-size",
    "dtype": "same-dtype",
    "splits": "fitting-splits",
    "root": "same-root",
    "reduction": "same-reduction",
}


def advice(one: str, other: str, *, kind: Kind, one_line: bool = True) -> tuple[str, ...]:
    """A remedy for each thing in which two calls differ, by what was compared of them; at two lines each may be a call of its own."""
    from unhang.flight import operations

    if kind == "p2p-size":
        one, other = (f"message {call.partition(' ')[2]}" for call in (one, other))
    differ = ("op",) if kind in ("order", "extra", "lacking") else operations.differences(one, other)
    return _advised((*(() if one_line else ("op",)), *differ))


def _advised(differ: Sequence[str]) -> tuple[str, ...]:
    """torch's own check compares neither roots, reductions nor splits."""
    checked = ("check-each-call",) if {"op", "shape", "dtype"} & {*differ} else ()
    return (*dict.fromkeys(_ADVICE[what] for what in differ), *checked)


def _of_crash(picture: IncidentView, crash: Crash) -> Finding:
    numbers = crash.odd or crash.involved
    at = picture.place(crash.place) if crash.place is not None else None
    line = Text(" at {at}", "（位于 {at}）").fill(at=at) if at else NOTHING
    each = Text("rank {n} at {at}", "rank {n} 位于 {at}")
    stood = [each.fill(n=n, at=picture.place(f)) for n, f in sorted(crash.lines.items(), key=lambda at: at[0] not in crash.odd)]
    lines = _in_brackets(text.joined(stood[:2], Text(", ", "，"))) if crash.lines_differ else NOTHING
    thing = Text(*_THINGS[crash.differs])
    one_side = NOTHING if crash.odd else Text(" on one side", "，其中一方")
    what = _in_brackets(_what(words.call(crash.call)) + one_side) if crash.call is not None and (crash.odd or crash.certain) else NOTHING
    if crash.odd:
        says = Text(
            "{who} called a collective with another {thing} than {others}{what}{at}", "{who} 在一次集合通信{what}{at}中的{thing}与其他不同"
        ).fill(
            who=text.ranks(crash.odd),
            thing=thing,
            others="the other rank" if len(crash.involved) - len(crash.odd) == 1 else "the other ranks",
            what=what,
            at=line if at else lines,
        )
    else:
        two = len(crash.involved) == 2
        says = Text(
            "the ranks differ in the {thing} of a collective{what}{where}; which of them is off {told}",
            "各 rank 在一次集合通信{what}{where}中的{thing}不同；{told}",
        ).fill(
            thing=thing,
            what=what,
            where=lines or line,
            told=Text("cannot be told from two", "只有两个进程，无法判断是哪一个错了")
            if two
            else Text("is not in evidence", "哪一个错了，证据中没有"),
        )
    says += _slipped(picture, crash.slip) + Text("; it ended {who} inside Gloo", "；{who} 因此在 Gloo 内部被结束").fill(who=text.ranks(crash.dead))
    if crash.received:
        says += Text(
            " ({received} bytes arrived where {expected} were expected, of a piece in which Gloo sends)",
            "（Gloo 分块发送，其中一块收到 {received} 字节，而期望的是 {expected} 字节）",
        ).fill(received=crash.received, expected=crash.expected)
    # At another line it may be a call of its own; what differs does in any case.
    differ = [*crash.differs, *(("op",) if crash.lines_differ else ())]
    return CAUSE.finding(
        standing="established" if crash.certain else "likely",
        says=says,
        ranks=numbers,
        hosts=words.hosts(picture, numbers),
        where=at,
        evidence=(*words.hit_evidence(crash.hits, at_most=1), *crash.evidence),
        remedies=_advised(differ if crash.odd else sorted(differ, key=lambda what: what != "op")),
    )


_THINGS = {("dtype",): ("type", "类型"), ("shape",): ("size", "大小"), ("dtype", "shape"): ("type or size", "类型或大小")}


def _of_sides(found: Sequence[fingerprints.Side], world_size: int, places: Mapping[int, str]) -> Finding:
    """`places` are the lines of the ranks that raised."""
    astray = fingerprints.odd(found, world_size)
    numbers = tuple(sorted(r for s in astray or found for r in s.ranks))
    first, rest = (astray[0], found[0]) if astray else (found[0], found[1])
    at = {s.fingerprint.call: list(dict.fromkeys(places[r] for r in s.ranks if r in places)) for s in found}
    lines_differ = len({p for of_side in at.values() for p in of_side}) > 1

    def did(side: fingerprints.Side) -> Text:
        places_of_side = at[side.fingerprint.call]
        return _issued(side.ranks, side.fingerprint.says, places_of_side[0] if lines_differ and places_of_side else None)

    agree = Text("which of them went astray is not in evidence", "哪一个走错了，证据中没有")
    if astray:
        agree = Text("{n} of {total} ranks agree", "{total} 个 rank 中有 {n} 个一致").fill(n=len(found[0].ranks), total=world_size)
    seq = first.fingerprint.seq
    says = Text("{one}{seq}, where {others} (torch's own check; {agree})", "{seq}{one}，而 {others}（torch 自己的检查；{agree}）").fill(
        one=did(first),
        seq=Text(" as call #{n}", "调用 #{n}：").fill(n=seq) if seq is not None else NOTHING,
        others=text.joined((did(s) for s in (rest, *(s for s in found[1:3] if s not in (first, rest)))), text.AND),
        agree=agree,
    )
    shown = [s.hits[0] for s in (first, *(s for s in found if s is not first)) if s.hits]
    return CAUSE.finding(
        standing="established",
        says=says,
        ranks=numbers,
        hosts=tuple(dict.fromkeys(h.host for s in astray or found for h in s.hits if h.host is not None)),
        where=next(iter(at[first.fingerprint.call]), None) if astray or not lines_differ else None,
        evidence=words.hit_evidence(shown),
        remedies=_of_kind(first.fingerprint, rest.fingerprint),
    )


def _of_kind(one: Fingerprint, other: Fingerprint) -> tuple[str, ...]:
    if one.op != other.op:
        return ("same-order",)
    return ("same-size", "same-order") if one.shape != other.shape else ("same-dtype", "same-order")


def _named(hits: Sequence[Hit]) -> tuple[int, ...]:
    return tuple(sorted({int(h.groups[k]) for h in hits for k in ("one", "other")}))


def _worth(hits: Sequence[Hit]) -> Standing:
    """Only where more than the sequence numbers differ did the calls differ: SGLang's side processes alone make those differ."""
    first = hits[0].groups
    if "mine" not in first or "theirs" not in first:
        return "established"
    mine, theirs = (_SEQUENCE.sub("", first[k]).rstrip(").") for k in ("mine", "theirs"))
    # Up to torch 2.0 the other side's fingerprint is cut off behind its operation.
    return "likely" if mine == theirs or (mine.startswith(theirs) and "TensorShape" in theirs) else "established"


def _of_refused(hits: Sequence[Hit], seen: LogView | IncidentView) -> Finding:
    """unhang's own collectives ask what all want before anything is sent; the error names who differs."""
    said = hits[0].groups["sides"].strip()
    odd = unhang_errors.numbers(hits[0].groups.get("odd"))
    line = unhang_errors.line_of(hits, seen)
    agree = unhang_errors.differs(odd) + Text(" from most", "（与多数相比）") if odd else Text("there is no majority", "没有占多数的一方")
    says = Text(
        "the ranks wanted different calls: {said}; {agree}{at}",
        "各 rank 想发出的调用不同：{said}；{agree}{at}",
    )
    return unhang_errors.finding(
        CAUSE,
        hits,
        says.fill(said=said, agree=agree, at=unhang_errors.at_line(line)),
        standing="established",
        ranks=odd or unhang_errors.raisers(hits),
        where=line,
        remedies=("same-order", "same-size", "same-dtype"),
    )


def _in_logs(view: LogView) -> Finding | None:
    hits = view.hits_of(CAUSE.id)
    if refused := [h for h in hits if h.signature == _REFUSED]:
        return _of_refused(refused, view)
    if not any("GATHER" in t.op for t in view.timeouts):
        hits = tuple(h for h in hits if h.signature != _TRACE)
    if checked := [h for h in hits if "other" in h.groups]:
        return _of_check(checked, view)
    if found := parted(view):
        return _of_parted(found)
    if desync := [h for h in hits if h.signature == _DESYNC]:
        return CAUSE.of_hits(desync, view, says=_DESYNCED.fill(**desync[0].groups))
    if established := [h for h in hits if h.signature.standing == "established"]:
        return _of_said(established, view)
    if shifted := ahead(view):
        return _of_ahead(shifted)
    return CAUSE.of_hits(hits, view) or _of_stalled(view) or _of_places(view)


def _of_stalled(view: LogView) -> Finding | None:
    """Horovod's own report: each of two ranks is missing where the other waits."""
    missing: dict[frozenset[int], Hit] = {}
    for h in view.hits_of("collective-timeout"):
        if "tensor" in h.groups:
            told = h.groups.get("ranks") or ("" if h.label is None else str(h.label))
            missing.setdefault(frozenset(int(n) for n in re.findall(r"\d+", told)), h)
    sides = [(ranks, h) for ranks, h in missing.items() if ranks]
    # Several ranks that are each missing somewhere are late: only of two it is plain that each waits for the other.
    if len(sides) != 2 or sides[0][0] & sides[1][0] or sides[0][1].groups["tensor"] == sides[1][1].groups["tensor"]:
        return None
    pair = (sides[0], sides[1])
    absent = Text("{who} did not come to {tensor}", "{who} 没有来到 {tensor}")
    says = text.joined(absent.fill(who=text.ranks(ranks), tensor=h.groups["tensor"]) for ranks, h in pair)
    return CAUSE.finding(
        standing="likely",
        says=says + Text(": each waits where the other does not (Horovod's own report)", "：各自等在对方没有来的地方（Horovod 自己的报告）"),
        ranks=tuple(sorted(pair[0][0] | pair[1][0])),
        evidence=words.hit_evidence([h for _, h in pair]),
        remedies=("same-order",),
    )


def _of_places(view: LogView) -> Finding | None:
    """Ranks that gave up in different calls at different lines. With groups beside the first one each may have waited for a third rank."""
    where = stood(view)
    if rank_0_apart(view) is not None:
        return None
    sides: dict[tuple[str, str, int], list[GaveUpIn]] = {}
    for s in where:
        sides.setdefault((s.call, s.frame.file, s.frame.line), []).append(s)
    if len({s.call for s in where}) < 2 or not any(h.rank is not None for h in view.hits_of("collective-timeout")):
        return None
    each = Text("{who} in {call} at {at}", "{who} 在 {call} 中（位于 {at}）")
    shown = list(sides.values())[:3]
    told = text.joined(each.fill(who=text.ranks(t.rank for t in s), call=s[0].call, at=place(s[0].frame, "")) for s in shown)
    return CAUSE.finding(
        standing="likely" if view.world_size == len(where) else "possible",
        says=Text("ranks gave up in different calls: {told}", "各 rank 在不同的调用中放弃了等待：{told}").fill(told=told),
        ranks=tuple(s.rank for s in where),
        evidence=tuple(Evidence(source=s[0].back.source, line=s[0].back.end, text=s[0].back.says) for s in shown),
        remedies=("same-order", "check-each-call"),
    )


def _of_check(hits: Sequence[Hit], view: LogView) -> Finding | None:
    if sides := fingerprints.sides(hits):
        return _of_sides(sides, view.world_size or _least_size(sides, view), _places(hits, view))
    numbers, standing = _named(hits), _worth(hits)
    differ = next((d.strip() for h in hits if (d := h.groups.get("differ"))), "")
    says = Text("{who} issued different collectives (torch's own check{differ})", "{who} 发出了不同的集合通信（torch 自己的检查{differ}）").fill(
        who=text.ranks(numbers), differ=Text(": {differ}", "：{differ}").fill(differ=differ) if differ else NOTHING
    )
    if standing != "established":
        says += Text(
            "; only their counts of collectives differ, so one of them has made more calls before",
            "；只有集合通信的次数不同，因此其中一个此前多调用过",
        )
    found = CAUSE.of_hits(hits, view, standing=standing, remedies=("same-order", "same-size"))
    return None if found is None else replace(found, ranks=numbers, says=says.en, says_zh=says.zh)


def _least_size(found: Sequence[fingerprints.Side], view: LogView) -> int:
    """Where nothing tells the size of the job, it has at least the ranks below the highest that is named."""
    return max({*view.printed, *(r for s in found for r in s.ranks)}) + 1


def _places(hits: Sequence[Hit], view: LogView) -> dict[int, str]:
    """The user's line of each rank that raised what the check found."""
    found: dict[int, str] = {}
    for h in hits:
        back = view.traceback_of(h)
        frame = user_frame(back.frames) if back is not None else None
        if frame is not None:
            found.setdefault(int(h.groups["one"]) if h.rank is None else h.rank, place(frame, ""))
    return found


def _of_parted(found: Parted) -> Finding:
    """Two lines prove it where both name the group; else the number may be that of two groups."""
    sides = found.sides
    each = Text("{who} gave up {call}", "{who} 放弃了 {call}")
    says = Text("ranks were in different collectives at number {n}{group}: {told}", "{group}序号 {n} 处各 rank 在不同的集合通信中：{told}").fill(
        n=found.seq,
        group=Text(" of group {group}", "组 {group} 的").fill(group=found.group) if found.group is not None else NOTHING,
        told=text.joined(each.fill(who=text.ranks(ranks_of(s)), call=collective(s[0])) for s in sides[:3]),
    )
    odd = ranks_of(t for s in sides[1:] for t in s) if len(sides[0]) > sum(len(s) for s in sides[1:]) else ranks_of(t for s in sides for t in s)
    if len(sides[0]) <= len(sides[1]):
        says += Text("; which side was meant cannot be told from this", "；由此无法判断哪一方是对的")
    same_op = len({s[0].op for s in sides}) == 1
    return CAUSE.finding(
        standing="established" if found.group is not None else "likely" if found.seq >= _SELDOM_MET else "possible",
        says=says,
        ranks=odd,
        evidence=evidence_of(s[0].at for s in sides[:3]),
        remedies=("same-size", "check-each-call") if same_op else ("same-order", "check-each-call"),
    )


def _of_ahead(found: LaterTimeout) -> Finding:
    numbers = ranks_of((found.back, found.front))
    return CAUSE.finding(
        standing="likely" if found.back.group is not None else "possible",
        says=Text(
            "{front} had finished {n} more collectives than {back} when both gave up ({one}; {other}), although each of them needs both: calls of "
            "one were matched with other calls of the other",
            "双方放弃时，{front} 比 {back} 多完成了 {n} 次集合通信（{one}；{other}），而每一次都需要双方参加：一方的调用与另一方的别的调用配上了对",
        ).fill(
            front=text.ranks(ranks_of((found.front,))),
            n=found.steps,
            back=text.ranks(ranks_of((found.back,))),
            one=collective(found.front),
            other=collective(found.back),
        ),
        ranks=numbers,
        evidence=evidence_of((found.back.at, found.front.at)),
        remedies=("same-order", "check-each-call"),
    )


def _of_said(hits: Sequence[Hit], view: LogView) -> Finding | None:
    found = CAUSE.of_hits(hits, view)
    if found is not None and hits[0].signature == SIZE_MISMATCH:
        # Tracebacks are those of the survivors: where they agree, it is the line of the innocent, most likely.
        return replace(text.continued(found, ended_of(view)), where=_where_lost(view, agreed=False))
    return found if found is None or found.where is not None else replace(found, where=_where_lost(view))


def _where_lost(view: LogView, *, agreed: bool = True) -> str | None:
    """The user's line in which ranks lost the peer that the mismatch ended: the one that they agree on, or of many the one that stands alone."""
    lost = {(h.source, h.line) for cause in ("peer-lost", "collective-timeout") for h in view.hits_of(cause)}
    frames = [user_frame(t.frames) for t in view.tracebacks if (t.source, t.end) in lost]
    places = Counter(place(f, "") for f in frames if f is not None and is_user_file(f.file))
    if len(places) < 2:
        return next(iter(places), None) if agreed else None
    alone = [p for p, n in places.items() if n == 1]
    return alone[0] if len(alone) == 1 and len(places) == 2 and sum(places.values()) > 2 else None


_TRACE = Signature(
    needle="Invalidate trace cache @ step ",
    pattern=r"Invalidate trace cache @ step (?P<step>\d+): expected module (?P<expected>\d+), but got module (?P<got>\d+)",
    standing="possible",
    says="DeepSpeed ZeRO-3 met another order of modules than before: ranks that take different branches fetch different parameters",
    says_zh="DeepSpeed ZeRO-3 遇到的模块顺序与之前不同：走不同分支的 rank 会获取不同的参数",
    remedies=("same-branches", "leaf-modules", "check-each-call"),
)

_REFUSED = unhang_errors.signature(
    "CollectiveMismatch",
    "calls do not fit together",
    r"the ranks' calls do not fit together(?:, and nothing was sent)?\. (?P<sides>.{1,4000}?)\."
    r"(?: ranks? (?P<odd>[\d, …]{1,99}) differs? from most\.)?(?P<more> [A-Z][^:]{0,400})?$",
)

# TORCH_NCCL_DESYNC_DEBUG=1: what the ranks that came began under one number of their group.
_DESYNC = Signature(
    needle=" started ranks:",
    pattern=r"#(?P<seq>\d+) started ranks:",
    near=r"(?<= started ranks:)\s+\[(?P<ones>\d[\d, ]*)\] started (?P<one_op>\w+)\s+\[(?P<others>\d[\d, ]*)\] started (?P<other_op>\w+)",
    says="ranks of one group began different operations as number {seq} (torch's own desync report)",
    says_zh="同一组的各 rank 在序号 {seq} 开始了不同的操作（torch 自己的 desync 报告）",
    remedies=("same-order", "check-each-call"),
)
_DESYNCED = Text(
    "in one group, rank(s) {ones} began {one_op} as number {seq}, and rank(s) {others} {other_op} (torch's own desync report, whose numbers count "
    "within the group)",
    "同一组中，序号 {seq} 处 rank {ones} 开始的是 {one_op}，而 rank {others} 开始的是 {other_op}（torch 自己的 desync 报告，其编号在组内计算）",
)

CAUSE = Cause(
    id="collective-mismatch",
    role="root",
    title="Ranks issue different collectives, or different numbers of them",
    title_zh="各进程发出的集合通信不同，或次数不同",
    what="At the same place of the sequence, ranks of one group called different operations, or the same one with other sizes or dtypes.",
    why=(
        "Uneven numbers of batches, tensors whose size depends on local data, parameters that take part on some ranks only, an early return or a "
        "caught exception on one rank."
    ),
    signatures=(
        cann.message("inconsistent between ranks", standing="established", remedies=("compare-calls", "check-each-call")),
        SIZE_MISMATCH,
        _REFUSED,
        Signature(
            needle="Detected mismatch between collectives on ranks",
            pattern=r"Rank (?P<one>\d+) is running (?:inconsistent )?collective: (?P<mine>(?:CollectiveFingerPrint\()?.{0,600}?)\)?, but Rank "
            r"(?P<other>\d+) is "
            r"running collective: (?P<theirs>.{0,600}?)(?:\)\.|$)(?:Collectives differ in the following aspects:(?P<differ>.{0,200}))?",
            says="ranks {one} and {other} issued different collectives (torch's own check)",
            says_zh="rank {one} 和 {other} 发出了不同的集合通信（torch 自己的检查）",
            remedies=("same-order", "same-size"),
        ),
        # Cut off before the other rank.
        Signature(
            needle="Detected mismatch between collectives on ranks",
            pattern=r"Rank (?P<one>\d+) is running collective: CollectiveFingerPrint\((?!.{0,1000}but Rank )",
            says="rank {one} and another rank issued different collectives (torch's own check)",
            says_zh="rank {one} 与另一个 rank 发出了不同的集合通信（torch 自己的检查）",
            remedies=("same-order", "same-size"),
        ),
        # torch 1.10 to 1.12 names one rank only.
        Signature(
            needle="is running inconsistent collective",
            pattern=r"Rank (?P<rank>\d+) is running inconsistent collective: CollectiveFingerPrint\(OpType=(?P<op>\w+)",
            says="rank {rank} issued another collective ({op}) than the others (torch's own check)",
            says_zh="rank {rank} 发出的集合通信（{op}）与其他 rank 不同（torch 自己的检查）",
            remedies=("same-order", "same-size"),
        ),
        _DESYNC,
        # uneven inputs
        Signature(
            needle="exhausted inputs. Throwing across all ranks",
            says="a rank ran out of inputs before the others (join(throw_on_early_termination=True))",
            says_zh="某个 rank 先于其他 rank 用完了输入（join(throw_on_early_termination=True)）",
            remedies=("even-inputs",),
        ),
        Signature(
            needle="exhausted all inputs",
            pattern=r"Rank (?P<rank>\d+) exhausted all inputs",
            says="rank {rank} ran out of inputs before the others",
            says_zh="rank {rank} 先于其他 rank 用完了输入",
            remedies=("even-inputs",),
        ),
        Signature(
            needle="Detected uneven input skew of greater than",
            pattern=r"skew of greater than (?P<skew>\d+)\. This means that rank (?P<of>\d+) has at least",
            standing="possible",
            says="rank {of} has at least {skew} fewer inputs than the others",
            says_zh="rank {of} 的输入比其他 rank 至少少 {skew} 个",
            remedies=("even-inputs",),
        ),
        # WeNet and CosyVoice end an epoch with this where the ranks' shares differ.
        Signature(
            needle="Detected uneven workload distribution",
            standing="possible",
            says="a rank ran out of batches, or was late, before the others (its own uneven-workload check)",
            says_zh="某个 rank 先于其他 rank 用完了批次，或者来晚了（程序自己的负载不均检查）",
            remedies=("even-inputs",),
        ),
        # accelerate 0.2x, 0.3x+ (ACCELERATE_DEBUG_MODE=1): its table names the operation and the shape of each process.
        Signature(
            needle="All shapes across devices must be valid",
            near=(
                r"^Operation: `(?:\w+\.){0,8}(?P<operation>\w+)`\nInput shapes:\n(?:\s+- Process \d+: .*\n)*?"
                r"\s+- Process (?P<process>\d+): (?P<shape>\S.{0,200})\n(?:\s+- Process \d+: (?P=shape)\n)*"
                r"\s+- Process (?P<against>\d+): (?P<different>(?!(?P=shape)$)\S.{0,200})"
            ),
            # A line for each process.
            lines=256,
            says="accelerate: in {operation} rank {process} had a tensor of shape {shape}, rank {against} one of {different}",
            says_zh="accelerate：在 {operation} 中 rank {process} 的张量形状为 {shape}，rank {against} 的为 {different}",
            remedies=("pad-first", "same-size"),
        ),
        Signature(
            needle="All shapes across devices must be valid",
            says="accelerate: tensors of different shapes met in one operation",
            says_zh="accelerate：同一次操作中出现了形状不同的张量",
            remedies=("pad-first", "same-size"),
        ),
        Signature(
            needle="apply the desired operation due to inadequate shapes",
            says="accelerate: tensors of different shapes met in one operation",
            says_zh="accelerate：同一次操作中出现了形状不同的张量",
            remedies=("pad-first", "same-size"),
        ),
        Signature(
            needle="disagreement between rank0 and rank",
            pattern=r"disagreement between rank0 and rank(?P<rank>\d+): rank0: (?P<theirs0>.{0,200}?), rank\d+: ",
            says="DeepSpeed: rank {rank} fetches other parameters than rank 0 (a branch of the model is taken by some ranks only)",
            says_zh="DeepSpeed：rank {rank} 获取的参数与 rank 0 不同（模型的某个分支只有部分 rank 会走）",
            remedies=("same-branches", "leaf-modules"),
        ),
        # fairseq, and scripts after it: what one rank received is not what the others sent.
        Signature(
            needle="requires all workers to enter the function together",
            standing="likely",
            says="fairseq: ranks came to a gathering of pickled data at different points: one finished its share, or failed, before the others",
            says_zh="fairseq：各 rank 在不同的位置来到 pickle 数据的收集：其中一个先于其他 rank 做完了自己的份额，或先失败了",
            remedies=("even-inputs", "same-order"),
        ),
        # Also printed by models whose branches differ from step to step on all ranks alike: it counts beside a timeout only.
        _TRACE,
        # Horovod
        Signature(
            needle=", but another rank ",
            pattern=r"Mismatched (?P<what>[\w /]{3,60}): One rank",
            says="Horovod: mismatched {what} between ranks",
            says_zh="Horovod：各 rank 之间的 {what} 不一致",
            remedies=("same-size", "same-order"),
        ),
        # NCCL up to 2.5
        Signature(
            needle="Mismatched collective detected",
            pattern=r"collective calls at and around rank (?P<rank>\d+)",
            says="NCCL: rank {rank} or its neighbour issued another collective than the others",
            says_zh="NCCL：rank {rank} 或其相邻 rank 发出的集合通信与其他 rank 不同",
            remedies=("same-order", "compare-calls"),
        ),
        Signature(
            needle="collective mismatch error",
            pattern=r"NET/IB : (?:req .{0,40}?peer (?P<peer>\S+) )?collective mismatch error,? local size (?P<local_size>\d+) remote (?:size "
            r")?(?P<remote_size>\d+)",
            standing="likely",
            says=(
                "NCCL: {local_size} bytes were to be sent where the peer expects {remote_size}: other sizes, or other NCCL settings, on the two sides"
            ),
            says_zh="NCCL：要发送 {local_size} 字节，而对端期望 {remote_size} 字节：两端的大小不同，或 NCCL 设置不同",
            remedies=("same-size", "same-settings", "compare-calls"),
        ),
        Signature(
            needle="essage truncated : receiving",
            pattern=r"NET/Socket : (?:peer (?P<peer>\S+) )?message truncated : receiving (?P<received>\d+) bytes instead of (?P<expected>\d+)",
            standing="likely",
            says="NCCL: {received} bytes arrived where {expected} were expected: other sizes, or other NCCL settings or versions, on the two sides",
            says_zh="NCCL：收到 {received} 字节，而期望的是 {expected} 字节：两端的大小不同，或 NCCL 的设置或版本不同",
            remedies=("same-size", "same-settings", "compare-calls"),
        ),
        Signature(
            needle="Communicator ranks have different",
            pattern=r"Communicator ranks have different (?P<what>[\w ]{3,40}) operation counts",
            standing="possible",
            says="NCCL's own report: ranks have made different numbers of {what} calls",
            says_zh="NCCL 自己的报告：各 rank 的 {what} 调用次数不同",
            remedies=("same-order", "check-each-call"),
        ),
        # torchfrtrace, torch's reader of flight-recorder dumps. It compares all with the first rank: it names a culprit where that one is not alone.
        Signature(
            needle="Culprit rank ",
            pattern=r"Culprit rank (?P<rank>\d+); Error type: (?P<what>COLLECTIVE_TYPE_MISMATCH|SIZE_OR_SYNTAX_MISMATCH|COLLECTIVE_DTYPE_MISMATCH)"
            r"(?!.*Culprit rank)",
            near=r"^world size: (?:[3-9]|\d\d)",
            says="torch's flight-recorder analysis names the culprit: {what}",
            says_zh="torch 对 flight recorder 的分析指出了出错者：{what}",
            remedies=("same-order", "same-size"),
        ),
        Signature(
            needle="Error type: ",
            pattern=r"Error type: (?P<what>COLLECTIVE_TYPE_MISMATCH|SIZE_OR_SYNTAX_MISMATCH|COLLECTIVE_DTYPE_MISMATCH)",
            says="torch's flight-recorder analysis: {what}",
            says_zh="torch 对 flight recorder 的分析：{what}",
            remedies=("same-order", "same-size"),
        ),
    ),
    in_run=_in_run,
    in_logs=_in_logs,
    remedies=(
        Remedy(
            id="same-size",
            says="Give the tensor the same number of elements on every rank: pad it, gather the sizes first, or reduce sums and counts, not lists.",
            says_zh="让每个进程上的张量元素个数相同：先补齐，或先收集各自的大小，或者归约总和与个数，而不是列表。",
        ),
        Remedy(
            id="same-dtype",
            says="Use one dtype on every rank: equal bytes of different dtypes give silent garbage, not an error.",
            says_zh="所有进程使用同一种 dtype：字节数相同而 dtype 不同时不会报错，只会得到错误的数据。",
        ),
        Remedy(
            id="same-root",
            says="Give the same root on every rank: src of broadcast and scatter, dst of reduce and gather, name one rank, not each itself.",
            says_zh="所有进程给出同一个 root：broadcast 和 scatter 的 src、reduce 和 gather 的 dst 是某一个 rank 的编号，而不是各自的编号。",
        ),
        Remedy(
            id="same-reduction",
            says="Use one reduction (SUM, MAX, AVG) on every rank: different ones give other results on each rank, and no error.",
            says_zh="所有进程使用同一种归约（SUM、MAX、AVG）：不同的归约不会报错，只会让各进程得到不同的结果。",
        ),
        Remedy(
            id="same-group",
            says="Give the same group on every rank, and let all of its members call: a call on one group never meets a call on another one.",
            says_zh="所有进程传入同一个 group，并让它的全部成员都调用：一个组上的调用永远不会与另一个组上的调用相遇。",
        ),
        Remedy(
            id="fitting-splits",
            says=(
                "Let what each rank sends to another in all_to_all (input_split_sizes) be what that one expects of it (output_split_sizes): "
                "exchange the sizes first."
            ),
            says_zh="all_to_all 中每个进程发给对方的数量（input_split_sizes）要等于对方期望收到的数量（output_split_sizes）：先交换大小。",
        ),
        Remedy(
            id="same-order",
            says=(
                "Let every rank make the same calls in the same order: equal numbers of batches (drop_last, DistributedSampler, model.join()), "
                "find_unused_parameters where branches differ, no early return on one rank."
            ),
            says_zh=(
                "让每个进程以同样的顺序发出同样的调用：批次数相等（drop_last、DistributedSampler、model.join()），分支不同时用 "
                "find_unused_parameters，不要让某个进程提前返回。"
            ),
        ),
        Remedy(
            id="check-each-call",
            says=(
                "Let torch compare operation and shape of every call before it is made (slow; for finding the place only; not for DDP on Gloo, "
                "which torch 2.13 then ends with a segmentation fault)."
            ),
            says_zh="让 torch 在每次调用前比较操作和形状（很慢，只用于定位；Gloo 上的 DDP 不要用，torch 2.13 会因此段错误）。",
            env={"TORCH_DISTRIBUTED_DEBUG": "DETAIL"},
            verify="python -c 'import torch.distributed as d; print(d.get_debug_level())'",
        ),
        Remedy(
            id="even-inputs",
            says=(
                "Give every rank the same number of batches: DistributedSampler, drop_last=True, equal shards of an iterable data set, or join() "
                "around the loop."
            ),
            says_zh="让每个进程的批次数相等：DistributedSampler、drop_last=True、可迭代数据集均匀分片，或用 join() 包住循环。",
        ),
        Remedy(
            id="pad-first",
            says="Pad before gathering: accelerator.pad_across_processes(tensor, dim=1), or gather_for_metrics.",
            says_zh="收集之前先补齐：accelerator.pad_across_processes(tensor, dim=1)，或使用 gather_for_metrics。",
        ),
        Remedy(
            id="same-branches",
            says=(
                "Let every rank run the same modules in every step: pass a dummy input through the branch (an image tower, an expert) that a "
                "batch does not need."
            ),
            says_zh="让每个进程每一步都执行同样的模块：批次不需要的分支（图像塔、专家）也送入一个占位输入。",
        ),
        Remedy(
            id="leaf-modules",
            says="With ZeRO-3, mark modules whose inner path depends on data as leaves: deepspeed.utils.set_z3_leaf_modules(model, [MoEBlock]).",
            says_zh="使用 ZeRO-3 时，把内部路径依赖数据的模块标记为叶子：deepspeed.utils.set_z3_leaf_modules(model, [MoEBlock])。",
        ),
        Remedy(
            id="same-settings",
            says=(
                "Use the same NCCL release and the same NCCL_* variables (NCCL_PROTO, NCCL_ALGO, buffer sizes) on every rank; NCCL_DEBUG=INFO "
                "prints both."
            ),
            says_zh="所有进程使用同一版本的 NCCL 和同样的 NCCL_* 变量（NCCL_PROTO、NCCL_ALGO、缓冲区大小）；NCCL_DEBUG=INFO 会打印出来。",
            env={"NCCL_DEBUG": "INFO"},
            verify="grep -hE 'NCCL version|set by environment to' LOG | sed 's/.*NCCL/NCCL/' | sort | uniq -c",
        ),
        Remedy(
            id="compare-calls",
            says="Let NCCL print every call, and compare what the ranks print under one opCount.",
            says_zh="让 NCCL 打印每次调用，比较各进程在同一个 opCount 下的内容。",
            env={"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "COLL"},
            verify="grep -c opCount LOG",
        ),
    ),
    leads_to=("rank-exception", "premature-exit"),
    mistaken_for={
        "unused-parameters": "there DDP waits for gradients of parameters that the loss leaves out, mostly on all ranks alike",
        "rank0-guarded-collective": "there a test of the rank stands around the call",
        "peer-lost": "a size mismatch on Gloo kills the rank with the smaller tensor; what the survivors print is a consequence",
        "straggler-timeout": "here every rank is inside some collective; there one is in none",
        "version-mismatch": "another NCCL release on one side also makes sizes differ, mostly while connecting (bootstrap.cc)",
    },
    sources=(
        "https://docs.pytorch.org/docs/stable/distributed.html#debugging-torch-distributed-applications",
        "https://docs.pytorch.org/tutorials/advanced/generic_join.html",
        "https://github.com/NVIDIA/nccl/pull/605",
        "https://github.com/pytorch/pytorch/pull/79901",
    ),
    hits=(
        "EI0005: [PID: 812] 2026-01-08 The parameters of operator HcclAllReduce are inconsistent between ranks, count is 8",
        "RuntimeError: Detected mismatch between collectives on ranks. Rank 1 is running collective: CollectiveFingerPrint(SequenceNumber=21, Op",
        "world size: 8\nerror msg: Culprit rank 3; Error type: COLLECTIVE_TYPE_MISMATCH, Expected collective type: all_reduce",
        (
            "unhang.errors.CollectiveMismatch: the ranks' calls do not fit together, and nothing was sent. ranks 0, 1, 2: all_reduce of 8 float32 "
            "elements (cpu, SUM); rank 3: all_reduce of 9 float32 elements (cpu, SUM). rank 3 differs from most."
        ),
        "unhang.errors.CollectiveMismatch: the ranks' calls do not fit together. rank 0: barrier; rank 1: all_gather of 8. Nothing was sent.",
        "  3%|3         | 270/9847 [06:18<3:39:12,  1.37s/it]Invalidate trace cache @ step 1: expected module 15, but got module 313",
        "Exception: Unable to unpickle data from other workers. all_gather_list requires all workers to enter the function together, so this",
        (
            "  what():  [enforce fail at /pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:456] op.preamble.length <= op.nbytes. 4096 vs "
            "1024. Received data size doesn't match expected size. Is there a distributed collective mismatch in your code?"
        ),
        (
            "RuntimeError: Detected mismatch between collectives on ranks. Rank 3 is running collective: CollectiveFingerPrint(SequenceNumber=5, "
            "OpType=ALLGATHER, TensorShape=[4]), but Rank 0 is running collective: CollectiveFingerPrint(SequenceNumber=5, OpType=ALLREDUCE)."
        ),
        (
            "[rank1]: RuntimeError: Detected mismatch between collectives on ranks. Rank 1 is running collective: "
            "CollectiveFingerPrint(SequenceNumber=31, OpType=ALLREDUCE, TensorShape=[96]), but Rank 0 is running collective: "
            "CollectiveFingerPrint(SequenceNumber=31, OpType=ALLREDUCE, TensorShape=[64])).Collectives differ in the following aspects: \t "
            "Tensor Tensor shapes: 96vs 64"
        ),
        (
            "RuntimeError: Detected mismatch between collectives on ranks. Rank 2 is running inconsistent collective: "
            "CollectiveFingerPrint(OpType=BROADCAST, TensorShape=[128], TensorDtypes=Float"
        ),
        "RuntimeError: Detected at least one rank that exhausted inputs. Throwing across all ranks.",
        "RuntimeError: Rank 2 exhausted all inputs.",
        "UserWarning: Detected uneven input skew of greater than 1000. This means that rank 1 has at least 1000 fewer inputs than other ranks.",
        "2026-11-03 10:00:01,529 INFO Detected uneven workload distribution: Rank 3 successfully reached monitoredBarrier, but received errors",
        (
            "accelerate.utils.operations.DistributedOperationException: Cannot apply desired operation due to shape mismatches. All shapes "
            "across devices must be valid."
        ),
        (
            "accelerate.utils.operations.DistributedOperationException: Cannot apply desired operation due to shape mismatches. All shapes "
            "across devices must be valid.\n\nOperation: `accelerate.utils.operations.gather`\nInput shapes:\n  - Process 0: [4, 128]\n"
            "  - Process 1: [4, 128]\n  - Process 2: [3, 128]"
        ),
        (
            "accelerate.utils.operations.DistributedOperationException: Impossible to apply the desired operation due to inadequate shapes. All "
            "shapes on the devices must be valid."
        ),
        "RuntimeError: disagreement between rank0 and rank3: rank0: [412, 413], rank3: [412, 480]",
        "Mismatched allreduce tensor shapes: One rank sent a tensor of shape [64], but another rank sent a tensor of shape [65].",
        "node7:4711:4711 [3] init.cc:1247 NCCL WARN Mismatched collective detected, please check your collective calls at and around rank 11.",
        (
            "node7:4711:4790 [0] transport/net_ib.cc:1038 NCCL WARN NET/IB : req 0/1 tag 0 peer 10.0.0.8<58683> collective mismatch error, local "
            "size 8192 remote size 4096"
        ),
        (
            "node7:4711:4790 [0] transport/net_ib.cc:612 NCCL WARN NET/IB : collective mismatch error local size 8192 remote 4096 addr 7f10 rkey "
            "2a seq 3/3"
        ),
        "node7:4711:4790 [0] transport/net_socket.cc:424 NCCL WARN NET/Socket : message truncated : receiving 524288 bytes instead of 65536",
        (
            "[2026-11-03 10:00:01] node7:4711:4790 [0] transport/net_socket.cc:487 (ncclNetSocketTest) NCCL WARN NET/Socket : peer "
            "10.0.0.8<41522> message truncated : receiving 524288 bytes instead of 65536. If you believe your socket network is in healthy state,"
        ),
        "  Communicator ranks have different AllReduce operation counts",
        ("\t - Snapshot of ranks' latest states:\n\t   #120 started ranks:\n\t     [0, 1, 3] started ALLREDUCE\n\t     [2] started BROADCAST"),
        "Error type: COLLECTIVE_TYPE_MISMATCH, Expected collective type: all_reduce does not match found collective type: broadcast",
    ),
    near_misses=(
        "it failed: CollectiveMismatch: the ranks' calls do not fit together, and nothing was sent. rank 0: barrier; rank 1: all_gather of 8.",
        "RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:537] Read error [10.0.0.2]:20200: Connection reset by peer.",
        "RuntimeError: The size of tensor a (4) must match the size of tensor b (8) at non-singleton dimension 0",
        "node7:4711:4790 [5] bootstrap.cc:77 NCCL WARN Message truncated : received 1024 bytes instead of 256",
        (
            "[rank0]: Received a dump signal due to a collective timeout. This is most likely caused by incorrect usages of collectives, e.g., "
            "wrong sizes used"
        ),
        (
            "\t - Snapshot of ranks' latest states:\n\t   #119 finished ranks:\n\t     [2] finished ALLREDUCE\n\t   #120 started ranks:\n"
            "\t     [0, 1, 3] started ALLREDUCE"
        ),
        "Invalidate trace cache @ step 12 and module 31: cache has only 31 modules",
        "RuntimeError: DDP expects same model across all ranks, but Rank 1 has 338 params, while rank 0 has inconsistent 336 params.",
        "RuntimeError: Error(s) in loading state_dict for Net: size mismatch for head.weight",
    ),
    explain={
        "en": (
            "Every rank of a group has to make the same calls, in the same order, with the same number of elements and the same dtype. Here one "
            "did not. With NCCL the ranks then wait for each other for ever, or reduce garbage; with Gloo the rank that expected less is killed "
            "at once and the others lose their peer. The verdict names the rank that differs from more than half of its group, or from what the "
            "same line of code did before; of two ranks without such a history it names both, because either may be the one that went astray."
        ),
        "zh": (
            "组内每个进程必须以同样的顺序发出同样的调用，元素个数和 dtype 也要一致。这里有进程没有做到。用 NCCL 时大家会永远互相等待，或者归约出"
            "垃圾数据；用 Gloo 时，期望数据较少的那个进程会立刻被结束，其他进程失去同伴。结论点名的是与多数不同，或与同一行代码以前的行为不同的那"
            "个进程；只有两个进程而又没有这样的历史时，两个都会列出，因为哪一个走错了无法判断。"
        ),
    },
)
