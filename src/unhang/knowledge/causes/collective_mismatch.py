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
from unhang.knowledge import fingerprints, text, unhang_errors, words
from unhang.knowledge.cause import LogView, cause
from unhang.knowledge.fingerprints import Fingerprint
from unhang.knowledge.gloo_size_crash import SIZE_MISMATCH, Crash, crash_of, ended_of
from unhang.knowledge.rank_guards import guard_of_parting
from unhang.knowledge.text import NOTHING, Text
from unhang.knowledge.watchdogs import GaveUpIn, LaterTimeout, Parted, ahead, collective, evidence_of, parted, rank_0_apart, ranks_of, stood
from unhang.model import Evidence, Finding, Standing
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


_DESYNCED = Text(
    "in one group, rank(s) {ones} began {one_op} as number {seq}, and rank(s) {others} {other_op} (torch's own desync report, whose numbers count "
    "within the group)",
    "同一组中，序号 {seq} 处 rank {ones} 开始的是 {one_op}，而 rank {others} 开始的是 {other_op}（torch 自己的 desync 报告，其编号在组内计算）",
)

CAUSE = cause("collective-mismatch", in_run=_in_run, in_logs=_in_logs)
_TRACE = CAUSE.signature("trace")
_REFUSED = CAUSE.signature("refused")
_DESYNC = CAUSE.signature("desync")
