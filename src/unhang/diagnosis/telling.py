"""What flight recorders tell, in words: one outcome of comparing them, in both languages, with the calls and lines that it rests on.

Frames are read again of the few ranks that are quoted. Long because every kind of outcome has words of its own, from the same few calls.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path

from unhang.diagnosis.unknown import NCCL_DEBUG, SUPERVISE, TRACE, TRANSPORT, WAITING
from unhang.knowledge import catalogue, words
from unhang.knowledge.text import AND, NOTHING, THEN, Text, continued, crossed_by, edited, joined, possible, ranks, same, sized, sums
from unhang.model import Evidence, Finding, NotExamined, Remedy, Standing
from unhang.records.flight import Call, Flight
from unhang.records.flight.recordings import Recorded, flight
from unhang.records.frames import Frame, place, user_frame
from unhang.records.match.outcome import Counted, Outcome, Step
from unhang.records.match.partings import DIFFERENT, Parting, parting_of

# Of how many ranks the frames are read.
_QUOTED = 6
MISMATCHES = (*DIFFERENT, "p2p-both-send", "groups-crossed")
# What keeps others waiting, and is told beside another one that does.
ROOTS = (*MISMATCHES, "missing", "p2p-alone")
STACKS = Text("stacks, process states", "调用栈、进程状态")
_NO_MESSAGES = NotExamined(what="sends and receives", why="Gloo's flight recorder does not hold them")
# Calls of which each rank gives a root: of reduce and gather it alone gets anything, of broadcast and scatter it alone sends.
_ROOTED = ("broadcast", "reduce", "gather", "scatter")
ONE_LOOK = Text(
    "a dump is one look at a rank; dumps of two moments tell who moves",
    "转储只是对 rank 的一次观察；两个时刻的转储才能看出谁还在前进",
)
_LARGER_RING = replace(
    TRACE,
    id="larger-ring",
    says="Let the recorder keep more: its ring has overwritten what would have to be compared.",
    says_zh="让 flight recorder 保留更多记录：需要比较的那一段已被它的环形缓冲区覆盖。",
)
_ALL_DUMPS = Remedy(
    id="all-dumps",
    says="Collect the dumps of all ranks: they are often written inside the container, or to a directory of each host.",
    says_zh="收集所有 rank 的转储：它们往往写在容器内部，或各主机自己的目录里。",
    env={"TORCH_NCCL_DEBUG_INFO_TEMP_FILE": "/shared/nccl_trace_rank_", "TORCH_FR_DUMP_TEMP_FILE": "/shared/nccl_trace_rank_"},
)
_READABLE = Remedy(
    id="readable-dumps",
    says="Let the dumps that could not be read be read, or ask again as the user who owns them.",
    says_zh="让无法读取的转储可读，或以其所有者的身份再问一次。",
)


_MORE_RANKS = Text("; whether more ranks belong to the group is not in the dumps", "；转储中没有该组是否还有别的 rank")


def _named(call: str) -> Text:
    """The operation of a call, or what is sent or received."""
    if not _is_message(call):
        return same(call.split("+")[0].split(" ")[0]) if call.split("+")[0].split(" ")[0] else Text("a call", "一次调用")
    kind, _, partner = call.partition(" to " if call.startswith("send") else " from ")
    zh = "任意 rank" if partner == "any rank" else partner
    return Text(f"a {call}", f"发往 {zh} 的 {kind}" if kind == "send" else f"来自 {zh} 的 {kind}")


def _numbered(step: Step) -> Text:
    return Text("{call} #{number} of group {group}", "组 {group} 的 {call} #{number}").fill(
        call=_named(step.call), number=str(step.number), group=step.group
    )


def _wait(numbers: Sequence[int], where: Text) -> Text:
    """ "ranks 0 and 2 wait in ..."."""
    waits = words.verb(numbers, "waits", "wait")
    return Text("{who} {waits} in {where}", "{who} 在{where} 中等待").fill(who=ranks(numbers), waits=waits, where=where)


def _step(step: Step) -> Text:
    """ "rank 4 waits in all_reduce #2 of group tp2 for rank 5"."""
    waits = _wait(step.waiting, _this(step))
    return waits if _is_message(step.call) else waits + Text(" for {who}", "，等的是 {who}").fill(who=ranks(step.lacking))


def _this(step: Step) -> Text:
    return _named(step.call) if _is_message(step.call) else _numbered(step)


def _counters_say(c: Counted) -> Text:
    """ "#2 of group 1 is not over by the counters of rank 0 (#1 is), and it has been overwritten there; rank 3 has issued none of it"."""
    says = Text(
        "#{n} of group {group} is not over by the counters of {who}{over}, and it has been overwritten there",
        "按 {who} 的计数器，组 {group} 的 #{n} 没有结束{over}，而那里的记录已被覆盖",
    ).fill(
        n=str(c.number),
        group=c.group,
        who=ranks(c.ranks),
        over=Text(" (#{n} is)", "（#{n} 已结束）").fill(n=str(c.completed)) if c.completed else NOTHING,
    )
    for rank, newest in c.fewer[:_QUOTED]:
        says += Text("; rank {rank} has issued {after}", "；rank {rank} {after}").fill(
            rank=rank,
            after=Text("nothing after #{n} of it", "在 #{n} 之后没有再发出").fill(n=newest)
            if newest
            else Text("none of it", "没有发出过其中任何一次"),
        )
    return says


def _call(call: Call) -> Text:
    """ "all_reduce #3 of group 0"."""
    return Text("{op} #{seq} of group {group}", "组 {group} 的 {op} #{seq}").fill(op=call.op, seq=call.seq, group=call.group)


def _what(call: Call) -> Text:
    """ "all_reduce of [8] Float"."""
    en = words.call(call)
    return Text(en, en.replace(" of ", " ", 1))


def unexamined(what: Text, why: Text, *, unread: bool = False) -> NotExamined:
    """What was not examined, in both languages."""
    return NotExamined(what=what.en, why=why.en, unread=unread, what_zh=what.zh, why_zh=why.zh)


def out_of_time(apart: Sequence[tuple[int, int]]) -> Text:
    """ "22 s after those of the others"."""
    nearest = min((ns for _, ns in apart), key=abs)
    return Text("{n} s {after} those of the others", "比其他 rank 的{after} {n} s 以上").fill(
        n=abs(nearest) // 1_000_000_000, after=Text("after", "晚") if nearest > 0 else Text("before", "早")
    )


def _at_one_line(a: Frame, b: Frame) -> bool:
    return (a.file, a.line) == (b.file, b.line)


def _is_message(call: str) -> bool:
    return call.startswith(("send to", "receive from"))


class Teller:
    """Puts an outcome into words."""

    def __init__(self, recorded: Recorded, outcome: Outcome) -> None:
        of_another_run = dict(outcome.left_out)
        self.recordings = {r: recording for r, recording in recorded.recordings.items() if r not in of_another_run}
        self.outcome = outcome
        self.unsure, self.unnumbered = recorded.unsure, recorded.unnumbered
        self.closed, self.blank, self.copied = recorded.closed, recorded.blank, recorded.copied
        self.without = recorded.without
        self._flights: dict[int, Flight | None] = {}

    def finding(self) -> Finding | None:
        """None where nothing is wrong. Nobody is more than possible where names of files do not tell ranks, or a dump may be of another run."""
        found = self._finding()
        if found is not None and (apart := [(r, ns) for r, ns in self.outcome.out_of_time if r in {*self.outcome.members, *self.outcome.ranks}]):
            numbers = [r for r, _ in apart]
            doubt = Text(
                "; the {dumps} of {who} may be of another run: all {its} calls lie {apart}", "；{who} 的转储可能属于另一次运行：其全部调用都{apart}"
            ).fill(dumps=words.verb(numbers, "dump", "dumps"), who=ranks(numbers), its=words.verb(numbers, "its", "their"), apart=out_of_time(apart))
            found = replace(continued(found, doubt), standing="possible" if found.standing in ("established", "likely") else found.standing)
        if found is None or not self.unsure or not found.ranks or self.unnumbered:
            return found
        files = joined(same(f"rank {r} is {self._file(r)}") for r in found.ranks[:_QUOTED] if r in self.recordings)
        standing: Standing = "possible" if found.standing in ("established", "likely") else found.standing
        untold = Text("; names of files do not tell ranks here: {files}", "；文件名没有说明 rank：{files}").fill(files=files)
        return replace(continued(found, untold), standing=standing)

    def _file(self, rank: int) -> str:
        """The name of a rank's file, with its folder where another one has the same name."""
        path = Path(self.recordings[rank].source)
        alone = all(Path(r.source).name != path.name for n, r in self.recordings.items() if n != rank)
        return path.name if alone else f"{path.parent.name}/{path.name}"

    def _finding(self) -> Finding | None:
        o = self.outcome
        if o.kind == "nothing-wrong":
            return None
        if o.kind in MISMATCHES:
            return self._mismatch()
        if o.kind in ("missing", "p2p-alone"):
            return self._missing()
        if o.kind in ("transport", "finished-on-some"):
            return self._joined()
        return self._untold()

    def odd(self) -> tuple[int, ...]:
        """Who went astray; () where nobody did, or where that cannot be told."""
        o = self.outcome
        if o.kind not in MISMATCHES or o.kind in ("groups-crossed", "p2p-both-send", "p2p-size"):
            return ()
        if o.by != "nothing":
            return o.ranks if len(o.ranks) < sum(len(s.ranks) for s in o.sides) else ()
        by_history = self.parting is not None and self.parting.by == "history" and not (o.unseen or o.ahead)
        return self.parting.odd if self.parting is not None and by_history else ()

    def left(self) -> list[NotExamined]:
        """What no recorder tells of this outcome."""
        o = self.outcome
        if o.kind in ("nothing-wrong", "cannot-tell") and not o.waiting:
            if not any(r.entries for r in self.recordings.values()):
                return []
            why = Text("only flight-recorder dumps were given", "只给了 flight recorder 转储")
            if o.kind == "nothing-wrong":
                why += Text(", and {nobody}", "，而且{nobody}").fill(nobody=self._nobody_waits())
            found = [unexamined(STACKS, why), *self._only_counted()]
            return [*found, _NO_MESSAGES] if self._on_gloo() else found
        meant = Text(": whether that is meant is in no dump", "：这是否有意为之，转储中没有")
        found = [*(unexamined(_this(s), self._beside(s, Text("it", "它")) + meant) for s in o.aside[:3]), *self._only_counted()]
        if o.kind not in MISMATCHES and o.waiting and not o.gave_up:
            found.append(unexamined(Text("for how long {who} had waited", "{who} 已等待多久").fill(who=ranks(o.waiting)), ONE_LOOK))
        return [*found, _NO_MESSAGES] if o.kind in ("missing", "cannot-tell") and self._on_gloo() else found

    def _on_gloo(self) -> bool:
        return any(t.gloo for r in self.recordings.values() for t in r.tracks)

    def _only_counted(self) -> list[NotExamined]:
        """Calls that no ring holds and that counters call pending, as far as the finding is not about them."""
        o = self.outcome
        told = o.kind == "cannot-tell" and not o.waiting
        lags = Text("; the counters may lag by that much", "；计数器可能只是滞后")
        return [
            unexamined(
                Text("call #{n} of group {group}", "组 {group} 的调用 #{n}").fill(n=str(c.number), group=c.group),
                _counters_say(c) + (lags if c.lagging else NOTHING),
            )
            for c in [c for c in o.counted if c.lagging or not told][:3]
        ]

    def _nobody_waits(self) -> Text:
        """ "none of the 2 ranks with a dump waits in a recorded call; the last call of group 0, all_reduce #3, is over on all of them"."""
        o, given = self.outcome, sorted(self.recordings)
        alone = len(given) == 1
        what = Text("its newest recorded calls", "最新记录的调用") if o.aside else Text("a recorded call", "已记录的调用")
        if alone:
            says = Text("rank {rank} does not wait in {what}", "rank {rank} 没有在{what}中等待").fill(rank=given[0], what=what)
        else:
            says = Text("none of the {n} ranks with a dump waits in {what}", "有转储的 {n} 个 rank 都没有在{what}中等待").fill(
                n=len(given), what=what
            )
        for s in o.last[:3]:
            where = NOTHING
            if not alone:
                on_all = s.waiting == tuple(given)
                where = Text(" on all of them", "在所有这些 rank 上") if on_all else Text(" on {who}", "在 {who} 上").fill(who=ranks(s.waiting))
            says += Text(
                "; {its} last call of group {group}, {call} #{number}, is over{where}", "；组 {group} 的最后一次调用 {call} #{number} {where}已经结束"
            ).fill(its="its" if alone else "the", group=s.group, call=_named(s.call), number=str(s.number), where=where)
        more = len(o.last) - 3
        return says + Text("; of {n} more groups, too", "；另有 {n} 个组也是如此").fill(n=more) if more > 0 else says

    def _beside(self, step: Step, what: Text) -> Text:
        """ "rank 1 has had broadcast #1 of group 2 pending for over 30 s and went on with other calls; rank 0 has not recorded it"."""
        says = Text(
            "{who} {has} had {what} pending for over 30 s and went on with other calls", "{who} 让{what}挂起了 30 s 以上，期间又发出了其他调用"
        ).fill(who=ranks(step.waiting), has=words.verb(step.waiting, "has", "have"), what=what)
        if not step.lacking:
            return says
        says += Text("; {who} {has} not recorded it", "；{who} 没有记录到它").fill(
            who=ranks(step.lacking), has=words.verb(step.lacking, "has", "have")
        )
        last = self._last(step.lacking[0])
        if last is None:
            return says
        return says + Text(" (the last call of rank {rank} is {call})", "（rank {rank} 的最后一次调用是{call}）").fill(
            rank=step.lacking[0], call=_call(last)
        )

    def _blind(self, numbers: Sequence[int]) -> Text:
        """Why dumps do not tell what these ranks have done."""
        why: dict[Text, list[int]] = {}
        for rank in numbers:
            r = self.recordings.get(rank)
            if r is None and rank in dict(self.outcome.left_out):
                reason = Text("what is there of {who} is of another run", "{who} 的转储属于另一次运行")
            elif r is None and rank in self.closed:
                reason = Text("the dump of {who} could not be read: permission denied", "没有读取 {who} 的转储的权限")
            elif r is None and rank in self.blank:
                reason = Text("nothing is left in the dump of {who}", "{who} 的转储中什么也没有")
            elif r is None and rank in self.copied:
                reason = Text("what is called the dump of {who} is that of another rank, too", "以 {who} 命名的转储同时也是别的 rank 的")
            elif r is None and self.unnumbered:
                reason = Text("of the other ranks there is no dump", "没有其他 rank 的转储")
            elif r is None:
                reason = Text("of {who} there is no dump", "没有 {who} 的转储")
            elif r.skipped:
                reason = Text("the dump of {who} has entries that could not be understood", "{who} 的转储中有无法理解的条目")
            elif r.cut:
                reason = Text("the dump of {who} is cut off", "{who} 的转储不完整")
            elif rank in self.outcome.older:
                reason = Text("the dump of {who} is older than the others'", "{who} 的转储比其他的旧")
            elif rank in self.outcome.perhaps_older:
                reason = Text(
                    "the dump of {who} may be older than the others', or a call that others went on from has failed for want of {who}",
                    "{who} 的转储可能比其他的旧，或者其他 rank 已越过的某次调用因等不到 {who} 而失败",
                )
            elif not r.entries:
                reason = Text(
                    "the recorder of {who} holds no call: none was made, or it was off, or kept only what was pending",
                    "{who} 的 flight recorder 中没有调用：没有发出过调用，或者没有打开，或者只保留了未完成的调用",
                )
            elif r.lost:
                reason = Text("the ring of {who} has lost that time", "{who} 的环形缓冲区中，那一段已被覆盖")
            else:
                reason = Text("the dump of {who} holds only what was pending", "{who} 的转储中只有未完成的调用")
            why.setdefault(reason, []).append(rank)
        return joined(reason.fill(who=ranks(found)) for reason, found in why.items())

    def _of_no_use(self) -> list[Text]:
        """Of ranks whose dump was given and is no use, beside those that are known to belong to the group."""
        more = sorted(self.without.difference(self.outcome.unseen))
        return [self._blind(more)] if more else []

    def _flight(self, rank: int) -> Flight | None:
        if rank not in self._flights:
            recording = self.recordings.get(rank)
            self._flights[rank] = flight(recording) if recording is not None and len(self._flights) < 4 * _QUOTED else None
        return self._flights[rank]

    def _calls(self, rank: int) -> Mapping[int, Call]:
        """The calls of a rank in the group, by number; of several launched together the first."""
        found = self._flight(rank)
        calls = found.calls.get(self.outcome.group_name, ()) if found is not None else ()
        return {c.seq: c for c in reversed(calls) if not c.is_p2p}

    def _call(self, rank: int) -> Call | None:
        return None if self.outcome.number is None else self._calls(rank).get(self.outcome.number)

    def _message(self, rank: int) -> Call | None:
        found = self._flight(rank)
        calls = found.calls.get(self.outcome.group_name, ()) if found is not None else ()
        side = next((s for s in self.outcome.sides if s.ranks == (rank,)), None)
        number, kind = (self.outcome.number, "") if side is None or side.number is None else (side.number, side.call.split(" ")[0])
        there = [c for c in calls if c.is_p2p and c.seq == number and c.op.startswith(kind) and c.op != "coalesced"]
        return next((c for c in there if not c.done), there[0] if side is not None and there else None)

    def _waited(self, rank: int) -> Call | None:
        """The call that the outcome is about, as this rank issued it."""
        return self._message(rank) if _is_message(self.outcome.call) or self.outcome.kind == "p2p-size" else self._call(rank)

    def _last(self, rank: int) -> Call | None:
        """The newest call of a rank, in any group."""
        found = self._flight(rank)
        calls = [c for of_group in found.calls.values() for c in of_group] if found is not None else []
        return max(calls, key=lambda c: c.created_ns, default=None)

    def _oldest(self, rank: int) -> Call | None:
        """The oldest call that a rank has pending, in any group."""
        found = self._flight(rank)
        calls = [c for of_group in found.calls.values() for c in of_group] if found is not None else []
        return min((c for c in calls if not c.done), key=lambda c: c.created_ns, default=None)

    @cached_property
    def parting(self) -> Parting | None:
        """Two sides of one size: whose line issued something else before may still tell."""
        o = self.outcome
        ranks = [r for s in o.sides for r in s.ranks]
        if o.by != "nothing" or o.number is None or not o.sides or len(ranks) > 2 * _QUOTED:
            return None
        dumps = {r: f for r in ranks if (f := self._flight(r)) is not None}
        return parting_of(o, dumps)

    def _mismatch(self) -> Finding:
        o = self.outcome
        if o.kind == "groups-crossed" or o.kind == "p2p-both-send":
            return self._crossed()
        odd = o.ranks
        standing: Standing = "established" if o.by != "nothing" and o.known and not (o.unseen or o.ahead) else "likely"
        how, by_history = NOTHING, False
        if o.kind == "p2p-size":
            standing = "established" if o.by == "pairs" else "likely"
        elif o.by == "majority":
            total = sum(len(s.ranks) for s in o.sides)
            how = Text(" ({n} of {total} ranks agree)", "（{total} 个 rank 中有 {n} 个一致）").fill(n=total - len(odd), total=total)
        elif o.by == "nothing" and self.parting is not None and self.parting.by == "history" and not (o.unseen or o.ahead):
            odd, by_history = self.parting.odd, True
            how = Text(" (the same line issued something else before)", "（同一行代码之前发出的是别的调用）")
        elif o.by == "nothing":
            how = Text("; which of them went astray cannot be told from this", "；由此无法判断是哪一方走错了")
        strayed = [s for s in o.sides if set(s.ranks) <= set(odd)]
        usual = [s for s in o.sides if s not in strayed]
        sides = [*strayed[:1], *usual[:1], *strayed[1:]] if strayed and usual and o.kind != "p2p-size" else list(o.sides)
        said = [self._did(s.ranks) for s in sides[:3]]
        if o.by == "sums":
            says = Text("what is sent in {here} is not what is received: {sums}", "{here} 中发送的数量与接收的不一致：{sums}").fill(
                here=self._seq(), sums=joined(sums(s.call, s.ranks) for s in sides[:3])
            )
            how = Text("; whose sizes are wrong cannot be told from this", "；由此无法判断是哪一方的大小有误")
        elif o.kind == "p2p-size":
            says = Text("a message of {sent} is received as {got}", "发送的消息为 {sent}，接收方期望的是 {got}").fill(
                sent=self._sized(0), got=self._sized(1)
            )
        else:
            says = Text("{one} as {here}, where {other}", "{here}：{one}，而 {other}").fill(
                one=said[0], here=self._seq(), other=joined(said[1:], AND) if not usual else said[1]
            )
            if usual:
                says += joined((Text(", and {more}", "，另外 {more}").fill(more=more) for more in said[2:]), NOTHING)
        says += edited(o.kind, o.edit) + how
        shown = self._place(sides[0].ranks[0]) if o.by != "nothing" or by_history or o.kind == "p2p-size" else None
        if o.by == "sums" and any(self._place(s.ranks[0]) != shown for s in sides[1:3]):
            shown = None
        for rank, newest in o.late[:_QUOTED]:
            says += Text("; rank {rank} has issued nothing {after}", "；rank {rank} {after}没有发出任何调用").fill(
                rank=rank, after=Text("after #{n}", "在 #{n} 之后").fill(n=newest) if newest else Text("in it", "在其中")
            )
        # The calls that differ first: the rest is cut where there is little room.
        around = [self._around(s.ranks[0]) for s in sides[:3]]
        evidence = [*(e for here, _ in around for e in here), *(e for _, more in around for e in more)]
        evidence += [e for rank, _ in o.late[:2] for e in self._newest(rank)]
        if o.by == "majority" and (earlier := self._earlier(odd, sides[1].ranks)) is not None:
            says += THEN + earlier[0]
            evidence.append(earlier[1])
        remedy = {"shape": "same-size", "p2p-size": "same-size", "dtype": "same-dtype"}.get(o.kind, "same-order")
        return catalogue.load()["collective-mismatch"].finding(
            standing=standing, says=says, ranks=odd, where=shown, evidence=tuple(evidence), remedies=(remedy, "check-each-call")
        )

    def _sized(self, n: int) -> Text:
        rank = self.outcome.sides[n].ranks[0]
        at = self._at(self._message(rank))
        return Text("{what} (rank {rank}{at})", "{what}（rank {rank}{at}）").fill(what=sized(self.outcome.sides[n].call), rank=rank, at=at)

    def _earlier(self, odd: Sequence[int], usual: Sequence[int]) -> tuple[Text, Evidence, Frame | None] | None:
        """An equal call from another line before the ranks parted: the one too many, where it was of the usual kind.

        With its line where every later call of the odd rank comes from the line of the others' call before it: then nothing else explains the two.
        """
        o = self.outcome
        if not odd or not usual or o.number is None:
            return None
        theirs, ours = ({n: user_frame(c.frames) for n, c in self._calls(r).items()} for r in (odd[0], usual[0]))
        for number in sorted(n for n in theirs.keys() & ours.keys() if n < o.number):
            a, b = theirs[number], ours[number]
            if a is not None and b is not None and not _at_one_line(a, b):
                behind = [(theirs.get(n + 1), ours.get(n)) for n in range(number, o.number)]
                shifted = all(x is not None and y is not None and _at_one_line(x, y) for x, y in behind)
                call = self._calls(odd[0])[number]
                text = f"rank {odd[0]}: #{number} {words.call(call)}, {words.frame(a)}; rank {usual[0]}: {words.frame(b)}"
                says = Text("already #{number} came from {a}, where the others were at {b}", "早在 #{number} 时它就来自 {a}，而其他进程在 {b}")
                return says.fill(number=number, a=place(a, ""), b=place(b, "")), self._evidence(odd[0], text), a if shifted else None
        return None

    def _crossed(self) -> Finding:
        o = self.outcome
        if o.kind == "p2p-both-send":
            says = Text("ranks send to each other, and none of them receives: {told}", "各 rank 互相发送，却没有一个在接收：{told}")
        else:
            says = Text("ranks wait for each other in a circle, each in another call: {told}", "各 rank 循环等待，每个停在不同的调用中：{told}")
        says = says.fill(told=joined(_step(s) for s in o.path[:4]))
        where, steps = None, sorted(o.path[:4], key=lambda s: o.by == "nothing" or not set(o.ranks) & set(s.waiting))
        if o.by != "nothing":
            says += crossed_by(o.by, o.ranks, steps[0].group, steps[1].group)
            issued = self._oldest(o.ranks[0])
            where = user_frame(issued.frames) if issued is not None else None
        shown = [next((r for r in s.waiting if r in o.ranks), s.waiting[0]) for s in steps if s.waiting]
        return catalogue.load()["collective-mismatch"].finding(
            standing="likely",
            says=says,
            ranks=o.ranks,
            where=place(where, "") if where is not None else None,
            evidence=tuple(e for r in shown for e in self._pending(r)),
            remedies=("same-order", "check-each-call"),
        )

    def _missing(self) -> Finding:
        o = self.outcome
        waiting, absent = o.waiting, o.ranks
        first = waiting[0]
        at = self._at(self._waited(first))
        here = self._seq() if o.kind == "missing" else _named(o.call)
        last = {r: self._last(r) for r in absent[:_QUOTED]}
        shown = next((c for c in last.values() if c is not None), None)
        says = Text("{absent} {never} {here}, in which {waiting} {waits}{at}", "{absent} {never}{here}，而 {waiting} 在其中{waits}{at}").fill(
            absent=ranks(absent),
            never=Text("never came to", "从未到达") if o.kind == "missing" else Text("posted nothing that fits", "没有发出与之对应的调用："),
            here=here,
            waiting=ranks(waiting),
            waits=Text("gave up", "等到超时") if o.gave_up else Text(words.verb(waiting, "waits", "wait"), "等待"),
            at=at,
        )
        told = {r: _call(c) + self._at(c) for r, c in last.items() if c is not None}
        if shown is not None and len(set(told.values())) == 1 and len(told) == len(last):
            says += Text("; {its} last call was {call}", "；其最后一次调用是{call}").fill(
                its=words.verb(absent, "its", "their"), call=next(iter(told.values()))
            )
        elif shown is not None:
            says += Text("; {told}", "；{told}").fill(
                told=joined(
                    Text("the last call of rank {r} was {call}", "rank {r} 的最后一次调用是{call}").fill(r=r, call=c) for r, c in told.items()
                )
            )
        elif not last or all(r in self.recordings and not self.recordings[r].entries for r in absent):
            says += Text("; no call of {it} is recorded", "；没有记录到它的任何调用").fill(it=words.verb(absent, "it", "them"))
        surplus = None
        if len(absent) > len(waiting) and o.kind == "missing":
            says += Text("; or {who} {has} made a call too many", "；也可能是 {who} 多发出了一次调用").fill(
                who=ranks(waiting), has=words.verb(waiting, "has", "have")
            )
            if (earlier := self._earlier(waiting, absent)) is not None:
                says += Text(": ", "：") + earlier[0]
                surplus = earlier[2]
        says += self._path() + self._likewise()
        if not o.known:
            says += _MORE_RANKS
        if o.kind == "missing" and self._on_gloo() and not self.unsure:
            says += Text("; or {it} in a send or receive, which Gloo does not record", "；也可能{it}停在发送或接收中，Gloo 不记录这些").fill(
                it=Text(words.verb(absent, "it is", "they are"), "它")
            )
        says += Text("; why is not in evidence", "；原因不在证据之中") + possible(WAITING)
        evidence = [
            *(self._evidence(r, f"rank {r}: last call #{c.seq} {words.call(c)} of group {c.group}{self._line(c)}") for r, c in last.items() if c),
            *(e for r in waiting[:2] for e in self._pending(r)),
        ]
        blamed, where = self._alike(), None
        if surplus is not None:
            blamed, where = waiting, surplus
        elif o.kind == "missing" and len(waiting) == 1 < len(absent):
            # One alone may as well have come once too often.
            blamed = tuple(sorted({*blamed, *waiting}))
        elif shown is not None and len(blamed) == 1:
            where = user_frame(shown.frames)
        return Finding(
            cause="collective-timeout",
            standing="not-established",
            says=says.en,
            says_zh=says.zh,
            ranks=blamed,
            where=place(where, "") if where is not None else None,
            evidence=tuple(evidence),
            remedies=(SUPERVISE,),
        )

    def _joined(self) -> Finding:
        o = self.outcome
        at = self._at(self._waited(o.waiting[0]))
        here = (_named(o.call) if _is_message(o.call) else self._seq()) + at
        parts: dict[str, Text | str] = {
            "here": here,
            "over": ranks(o.finished),
            "who": ranks(o.waiting),
            "waits": words.verb(o.waiting, "waits", "wait"),
        }
        if o.finished and _is_message(o.call):
            says = Text(
                "both sides of {here} were posted, and it is over on {over} only: {who} waits; look at the link between them",
                "{here} 的双方都已发出，但只在 {over} 上结束：{who} 还在等待；请检查两者之间的链路",
            ).fill(**parts)
        elif o.finished:
            says = Text(
                "all have come to {here}, and it is over on {over} only: {who} {waits} for data; look at the links from {over} to the others",
                "所有 rank 都已到达{here}，但只在 {over} 上结束：{who} 还在等数据；请检查 {over} 到其他 rank 的链路",
            ).fill(**parts)
        elif o.unstarted:
            started = [r for r in o.waiting if r not in o.unstarted]
            says = Text(
                "{late} {has} issued {here}, and not started it, as {others} {have}: likely {its} still in earlier work",
                "{late} 已发出{here}，但没有像 {others} 那样开始执行：其 GPU 很可能还在做之前的工作",
            ).fill(
                late=ranks(o.unstarted),
                has=words.verb(o.unstarted, "has", "have"),
                here=here,
                others=ranks(started),
                have=words.verb(started, "has", "have"),
                its=words.verb(o.unstarted, "its GPU is", "their GPUs are"),
            )
        else:
            says = Text(
                "{who} {waits} in {here} and nobody is missing: the code agrees, the data does not arrive",
                "{who} 在{here} 中等待，没有缺席的 rank：代码一致，只是数据没有到达",
            ).fill(**parts)
        if o.finished and not _is_message(o.call) and self._went_on(o):
            says += Text(
                "; or {its} taken a moment before the others'",
                "；也可能{its}比其他的早一刻",
            ).fill(its=Text(words.verb(o.waiting, "its dump was", "their dumps were"), "它的转储"))
        if not o.known:
            says += _MORE_RANKS
        rooted = o.call.split(" ")[0].split("+")[0] in _ROOTED
        if rooted and not o.unstarted:
            says += Text("; or ranks gave different roots, which no recorder holds", "；也可能各 rank 给出的 root 不同，recorder 不记录 root")
        causes = ("collective-mismatch", *TRANSPORT) if rooted else TRANSPORT
        says += self._path() + self._likewise() + possible(WAITING if o.unstarted else causes)
        return Finding(
            cause="unknown",
            standing="not-established",
            says=says.en,
            says_zh=says.zh,
            ranks=self._alike(),
            where=self._place(o.waiting[0]),
            evidence=tuple(e for r in (*o.finished[:1], *o.waiting[:2]) for e in self._pending(r)),
            remedies=(NCCL_DEBUG, SUPERVISE),
        )

    def _went_on(self, o: Outcome) -> bool:
        """Whether those that have finished the call have issued another one of its group behind it, and those that wait in it have not."""
        newest = {r: t.last for r in (*o.finished, *o.waiting) for t in self.recordings[r].tracks if t.group.name == o.group_name}
        number = o.number or 0
        return any(newest.get(r, 0) > number for r in o.finished) and all(newest.get(r, 0) <= number for r in o.waiting)

    def _same(self) -> list[Outcome]:
        """The other ends that are of the same kind."""
        return [a for a in self.outcome.also if a.kind == self.outcome.kind and a.kind not in MISMATCHES]

    def _alike(self) -> tuple[int, ...]:
        return tuple(sorted({r for o in (self.outcome, *self._same()) for r in o.ranks}))

    def _likewise(self) -> Text:
        """ "; likewise rank 5 never came to all_reduce #1 of group dp1 (dp), in which rank 1 waits"."""
        told = []
        for o in (alike := self._same())[:_QUOTED]:
            here = _named(o.call)
            if not _is_message(o.call):
                here = Text("{call} #{number} of group {group}", "组 {group} 的 {call} #{number}").fill(
                    call=here, number=str(o.number), group=o.group
                )
            if o.kind in ("missing", "p2p-alone"):
                never = Text("never came to", "从未到达") if o.kind == "missing" else Text("posted nothing that fits", "没有发出与之对应的调用：")
                told.append(
                    Text("{absent} {never} {here}, in which {who} {waits}", "{absent} {never}{here}，而 {who} 在其中等待").fill(
                        absent=ranks(o.ranks), never=never, here=here, who=ranks(o.waiting), waits=words.verb(o.waiting, "waits", "wait")
                    )
                )
            else:
                told.append(_wait(o.waiting, here))
        if not told:
            return NOTHING
        more = len(alike) - _QUOTED
        if more > 0:
            told.append(Text("{n} more like that", "另有 {n} 处与此相同").fill(n=more))
        return Text("; likewise {told}", "；同样，{told}").fill(told=joined(told))

    def _untold(self) -> Finding | None:
        o = self.outcome
        if not o.waiting:
            # Nobody waits in anything: what was not seen is said under not_examined.
            return self._quiet() if any(r.entries for r in self.recordings.values()) else None
        at = self._at(self._waited(o.waiting[0]))
        why = [self._blind(o.waiting)] if set(o.waiting) <= set(o.older) else []
        if o.unseen:
            why.append(self._blind(o.unseen))
        why += self._of_no_use()
        awaited = {r for s in o.path[-1:] for r in s.lacking}
        goes_on = Text(": what goes on there now is in no dump", "：那里现在的情况，转储中没有")
        why += [self._beside(s, _this(s)) + goes_on for s in o.aside[:2] if awaited & set(s.waiting)]
        if o.ahead and _is_message(o.call):
            why.append(
                Text(
                    "the rings have overwritten what went before it, and unequally many are pending on {who}",
                    "环形缓冲区已覆盖它之前的记录，而 {who} 上未完成的数量不等",
                ).fill(who=ranks((*o.waiting, *o.ahead)))
            )
        elif o.buried:
            numbers = [rank for rank, _ in o.buried]
            over = min(newest for _, newest in o.buried)
            known = Text("; by the counters no more than #{n} is over", "；按计数器只结束到 #{n}").fill(n=str(over)) if over else NOTHING
            why.append(
                Text(
                    "the {rings} of {who} {have} overwritten what was issued before it, which may be pending, too{known}",
                    "{who} 的环形缓冲区已覆盖它之前的调用，那些调用也可能没有结束{known}",
                ).fill(rings=words.verb(numbers, "ring", "rings"), who=ranks(numbers), have=words.verb(numbers, "has", "have"), known=known)
            )
        elif o.ahead:
            why.append(Text("the ring of {who} has overwritten #{n}", "{who} 的环形缓冲区已覆盖 #{n}").fill(who=ranks(o.ahead), n=str(o.number)))
        if o.outside:
            why.append(
                Text("who belongs to group {group} is not in the dumps, and {who} may", "转储中没有组 {group} 的成员，{who} 可能属于它").fill(
                    group=o.group, who=ranks(o.outside)
                )
            )
        elif not o.known:
            why.append(
                Text(
                    "who belongs to group {group} is not in the dumps, and there may be more ranks", "转储中没有组 {group} 的成员，可能还有别的 rank"
                ).fill(group=o.group)
            )
        if not why:
            why.append(
                Text("{who} {has} not recorded it, and need not have to", "{who} 没有记录到它，但也不一定要有").fill(
                    who=ranks(o.ranks), has=words.verb(o.ranks, "has", "have")
                )
            )
        if o.elsewhere:
            why.append(
                Text(
                    "{told}: if these belong to both groups, they were called in different orders", "{told}：如果它们同属两个组，那么调用的次序不同"
                ).fill(told=joined(_wait(s.waiting, _this(s)) for s in o.elsewhere[:3]))
            )
        here = (_named(o.call) if _is_message(o.call) else self._seq()) + at
        whether = Text("; whether anybody is missing cannot be told: ", "；无法判断是否有 rank 缺席：")
        if o.buried:
            whether = Text(" and nobody is missing there; what they wait for cannot be told: ", "，没有缺席的 rank；无法判断它们在等什么：")
        says = _wait(o.waiting, here) + whether + joined(why)
        says += self._path() + possible(WAITING)
        evidence = [e for r in (*o.waiting[:2], *(s.waiting[0] for s in o.elsewhere[:3])) for e in self._pending(r)]
        lacks = tuple(r for r in o.unseen if r in o.perhaps_older)
        last = self._last(lacks[0]) if len(lacks) == 1 else None
        stands = user_frame(last.frames) if last is not None else None
        return Finding(
            cause="unknown",
            standing="not-established",
            says=says.en,
            says_zh=says.zh,
            ranks=lacks or o.waiting,
            where=self._place(o.waiting[0]) if not lacks else place(stands, "") if stands is not None else None,
            evidence=(*(e for r in lacks[:2] for e in self._newest(r)), *evidence),
            remedies=(self._remedy(),),
        )

    def _remedy(self) -> Remedy:
        """How more would be told."""
        o = self.outcome
        if self.closed:
            files = shlex.join(file for _, file in sorted(self.closed.items())[:_QUOTED])
            return replace(_READABLE, command=f"sudo chmod a+r {files}")
        given = [self.recordings.get(r) for r in o.unseen]
        if any(r is None or r.cut or r.skipped for r in given):
            return _ALL_DUMPS
        if any(r is not None and not r.entries for r in given):
            return TRACE
        counted = not o.waiting and any(not c.lagging for c in o.counted)
        return _LARGER_RING if o.ahead or o.buried or counted or any(r is not None and r.lost for r in given) else SUPERVISE

    def _quiet(self) -> Finding:
        o = self.outcome
        parts = [self._blind(o.unseen)] if o.unseen else []
        parts += self._of_no_use()
        if o.ahead:
            parts.append(
                Text("the ring of {who} has overwritten all that the others still have", "{who} 的环形缓冲区已覆盖其他 rank 还保留着的全部记录").fill(
                    who=ranks(o.ahead)
                )
            )
        parts += [self._beside(s, _this(s)) for s in o.aside[:2]]
        counted = [c for c in o.counted if not c.lagging]
        parts += [_counters_say(c) for c in counted[:2]]
        for s in o.last:
            if s.lacking and len(parts) < 3:
                parts.append(
                    Text("{who} {has} not issued {call}, and may have been wanted in it", "{who} 没有发出{call}，而它可能本该参与").fill(
                        who=ranks(s.lacking), has=words.verb(s.lacking, "has", "have"), call=_numbered(s)
                    )
                )
        if o.unproven:
            parts.append(Text("Gloo's recorder calls over what has failed, too", "Gloo 的 flight recorder 把失败的调用也记为已结束"))
        if not o.known:
            parts.append(Text("how many ranks there are is not in the dumps", "转储中没有 rank 的总数"))
        shown = [*o.perhaps_older[:2], *(r for s in (o.aside or o.last)[:2] for r in (s.waiting[0], *s.lacking[:1]))]
        whether = Text("whether others wait", "其他 rank 是否在等待") if len(self.recordings) == 1 else Text("whether all is well", "是否一切正常")
        says = self._nobody_waits() + Text("; {whether} cannot be told: ", "；无法判断{whether}：").fill(whether=whether) + joined(parts)
        return Finding(
            cause="unknown",
            standing="not-established",
            ranks=tuple(sorted({r for s in o.aside[:2] for r in s.lacking} | {r for c in counted[:2] for r, _ in c.fewer})),
            says=says.en,
            says_zh=says.zh,
            evidence=tuple(e for r in dict.fromkeys(shown) for e in (self._pending(r) or self._newest(r))),
            remedies=(self._remedy(),),
        )

    def _newest(self, rank: int) -> list[Evidence]:
        c = self._last(rank)
        return [] if c is None else [self._evidence(rank, f"rank {rank}: last call #{c.seq} {words.call(c)} of group {c.group}{self._line(c)}")]

    def _path(self) -> Text:
        """How the chain led there, where it has more than one place."""
        steps = self.outcome.path
        told = [_step(s) for s in steps if s.lacking] if len(steps) > 1 else []
        return Text(" ({told})", "（{told}）").fill(told=joined(told)) if told else NOTHING

    def _seq(self) -> Text:
        o = self.outcome
        return Text("{call} #{number} of group {group}", "组 {group} 的 {call} #{number}").fill(
            call=Text("call", "调用") if o.kind in MISMATCHES else _named(o.call), number=str(o.number), group=str(o.group)
        )

    def _did(self, numbers: Sequence[int]) -> Text:
        call = self._call(numbers[0])
        side = next(s for s in self.outcome.sides if s.ranks == tuple(numbers))
        what = _what(call) if call is not None and "+" not in side.call else same(side.call)
        return Text("{who} issued {what}{at}", "{who} 发出了 {what}{at}").fill(who=ranks(numbers), what=what, at=self._at(call))

    @staticmethod
    def _at(call: Call | None) -> Text:
        frame = user_frame(call.frames) if call is not None else None
        return Text(" at {place}", "（位于 {place}）").fill(place=place(frame, "")) if frame is not None else NOTHING

    @staticmethod
    def _line(call: Call) -> str:
        frame: Frame | None = user_frame(call.frames)
        return f", {words.frame(frame)}" if frame is not None else ""

    def _place(self, rank: int) -> str | None:
        call = self._waited(rank)
        frame = user_frame(call.frames) if call is not None else None
        return place(frame, "") if frame is not None else None

    def _evidence(self, rank: int, text: str) -> Evidence:
        return Evidence(source=self.recordings[rank].source if rank in self.recordings else "", text=text)

    def _around(self, rank: int) -> tuple[list[Evidence], list[Evidence]]:
        """What a rank issued at the number; the calls before and behind it."""
        o = self.outcome
        if o.number is None or o.kind == "p2p-size":
            call = self._message(rank)
            return [self._evidence(rank, f"rank {rank}: {words.call(call)}{self._line(call)}")] if call is not None else [], []
        calls, found = self._calls(rank), dict[str, Evidence]()
        for number, word in ((o.number, ""), (o.number - 1, "before: "), (o.number + 1, "behind: ")):
            if (call := calls.get(number)) is not None:
                state = self._over() if call.done else "not finished"
                found[word] = self._evidence(rank, f"rank {rank}: {word}#{number} {words.call(call)} ({state}){self._line(call)}")
        return [e for word, e in found.items() if not word], [e for word, e in found.items() if word]

    def _over(self) -> str:
        return "over, well or not" if self._on_gloo() else "done"

    def _pending(self, rank: int) -> list[Evidence]:
        """What a rank waits in."""
        here = None if self.outcome.kind in MISMATCHES else self._waited(rank)
        oldest = here or self._oldest(rank)
        if oldest is None:
            return []
        state = self._over() if oldest.done else "waits"
        return [self._evidence(rank, f"rank {rank}: #{oldest.seq} {words.call(oldest)} of group {oldest.group} ({state}){self._line(oldest)}")]
