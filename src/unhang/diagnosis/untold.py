"""What flight recorders do not tell of an outcome, and why: of dumps that are not there, rings that have lost it, ranks of which nothing is known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from unhang.diagnosis import phrases, quoted
from unhang.diagnosis.quoted import Quoted
from unhang.diagnosis.unknown import SUPERVISE, TRACE, WAITING
from unhang.flight.outcome import Outcome, Step
from unhang.flight.read_all import JobRecordings
from unhang.flight.recording import Recording
from unhang.frames import place, user_frame
from unhang.knowledge import words
from unhang.knowledge.commands import command
from unhang.knowledge.text import NOTHING, Text, joined, possible, ranks
from unhang.model import Finding, NotExamined, Remedy

STACKS = Text("stacks, process states", "调用栈、进程状态")
_NO_MESSAGES = NotExamined(what="sends and receives", why="Gloo's flight recorder does not hold them")
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


def unexamined(what: Text, why: Text, *, unread: bool = False) -> NotExamined:
    """What was not examined, in both languages."""
    return NotExamined(what=what.en, why=why.en, unread=unread, what_zh=what.zh, why_zh=why.zh)


class Untold:
    """What is said where recorders do not tell enough of an outcome, and what is left unexamined in any case."""

    def __init__(self, recorded: JobRecordings, recordings: Mapping[int, Recording], outcome: Outcome, found: Quoted) -> None:
        """`recordings` are those of `recorded` that are of this run."""
        self._recordings, self._outcome = recordings, outcome
        self._quoted = found
        self._unnumbered, self._without, self._all_copies = recorded.unnumbered, recorded.without, recorded.all_copies
        self._closed, self._blank, self._copied = recorded.closed, recorded.blank, recorded.copied

    def finding(self) -> Finding | None:
        """Of ranks that wait where nobody can be named; None where nothing was recorded at all."""
        o = self._outcome
        if not o.waiting:
            # Nobody waits in anything: what was not seen is said under not_examined.
            return self._quiet() if any(r.entries for r in self._recordings.values()) else None
        at = quoted.at(self._quoted.waited(o.waiting[0]))
        why = [self._blind(o.waiting)] if set(o.waiting) <= set(o.older) else []
        if o.unseen:
            why.append(self._blind(o.unseen))
        why += self._of_no_use()
        awaited = {r for s in o.path[-1:] for r in s.lacking}
        goes_on = Text(": what goes on there now is in no dump", "：那里现在的情况，转储中没有")
        why += [self._beside(s, phrases.this(s)) + goes_on for s in o.aside[:2] if awaited & set(s.waiting)]
        if o.ahead and phrases.is_message(o.call):
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
                ).fill(told=joined(phrases.wait(s.waiting, phrases.this(s)) for s in o.elsewhere[:3]))
            )
        here = (phrases.named(o.call) if phrases.is_message(o.call) else phrases.seq(o)) + at
        whether = Text("; whether anybody is missing cannot be told: ", "；无法判断是否有 rank 缺席：")
        if o.buried:
            whether = Text(" and nobody is missing there; what they wait for cannot be told: ", "，没有缺席的 rank；无法判断它们在等什么：")
        says = phrases.wait(o.waiting, here) + whether + joined(why)
        says += phrases.path(o) + possible(WAITING)
        evidence = [e for r in (*o.waiting[:2], *(s.waiting[0] for s in o.elsewhere[:3])) for e in self._quoted.pending(r)]
        lacks = tuple(r for r in o.unseen if r in o.perhaps_older)
        last = self._quoted.last(lacks[0]) if len(lacks) == 1 else None
        stands = user_frame(last.frames) if last is not None else None
        return words.unestablished(
            says,
            ranks=lacks or o.waiting,
            where=self._quoted.place(o.waiting[0]) if not lacks else place(stands, "") if stands is not None else None,
            evidence=(*(e for r in lacks[:2] for e in self._quoted.newest(r)), *evidence),
            remedies=(self._remedy(),),
        )

    def left(self) -> list[NotExamined]:
        """What no recorder tells of this outcome."""
        o = self._outcome
        if o.kind in ("nothing-wrong", "cannot-tell") and not o.waiting:
            if not any(r.entries for r in self._recordings.values()):
                return []
            why = Text("only flight-recorder dumps were given", "只给了 flight recorder 转储")
            if o.kind == "nothing-wrong":
                why += Text(", and {nobody}", "，而且{nobody}").fill(nobody=self._nobody_waits())
            found = [unexamined(STACKS, why), *self._only_counted()]
            return [*found, _NO_MESSAGES] if self._quoted.on_gloo() else found
        meant = Text(": whether that is meant is in no dump", "：这是否有意为之，转储中没有")
        found = [*(unexamined(phrases.this(s), self._beside(s, Text("it", "它")) + meant) for s in o.aside[:3]), *self._only_counted()]
        if o.kind not in phrases.MISMATCHES and o.waiting and not o.gave_up:
            found.append(unexamined(Text("for how long {who} had waited", "{who} 已等待多久").fill(who=ranks(o.waiting)), ONE_LOOK))
        return [*found, _NO_MESSAGES] if o.kind in ("missing", "cannot-tell") and self._quoted.on_gloo() else found

    def _remedy(self) -> Remedy:
        """How more would be told."""
        o = self._outcome
        if self._closed:
            files = [file for _, file in sorted(self._closed.items())[: phrases.QUOTED]]
            return replace(_READABLE, command=command("sudo chmod a+r {files:path*}", files=files))
        given = [self._recordings.get(r) for r in o.unseen]
        if any(r is None or r.cut or r.skipped for r in given):
            return _ALL_DUMPS
        if any(r is not None and not r.entries for r in given):
            return TRACE
        counted = not o.waiting and any(not c.lagging for c in o.counted)
        return _LARGER_RING if o.ahead or o.buried or counted or any(r is not None and r.lost for r in given) else SUPERVISE

    def _quiet(self) -> Finding:
        o = self._outcome
        parts = [self._blind(o.unseen)] if o.unseen else []
        parts += self._of_no_use()
        if o.ahead:
            parts.append(
                Text("the ring of {who} has overwritten all that the others still have", "{who} 的环形缓冲区已覆盖其他 rank 还保留着的全部记录").fill(
                    who=ranks(o.ahead)
                )
            )
        parts += [self._beside(s, phrases.this(s)) for s in o.aside[:2]]
        counted = [c for c in o.counted if not c.lagging]
        parts += [phrases.counters_say(c) for c in counted[:2]]
        for s in o.last:
            if s.lacking and len(parts) < 3:
                parts.append(
                    Text("{who} {has} not issued {call}, and may have been wanted in it", "{who} 没有发出{call}，而它可能本该参与").fill(
                        who=ranks(s.lacking), has=words.verb(s.lacking, "has", "have"), call=phrases.numbered(s)
                    )
                )
        if o.unproven:
            parts.append(Text("Gloo's recorder calls over what has failed, too", "Gloo 的 flight recorder 把失败的调用也记为已结束"))
        if not o.known:
            parts.append(Text("how many ranks there are is not in the dumps", "转储中没有 rank 的总数"))
        shown = [*o.perhaps_older[:2], *(r for s in (o.aside or o.last)[:2] for r in (s.waiting[0], *s.lacking[:1]))]
        whether = Text("whether others wait", "其他 rank 是否在等待") if len(self._recordings) == 1 else Text("whether all is well", "是否一切正常")
        says = self._nobody_waits() + Text("; {whether} cannot be told: ", "；无法判断{whether}：").fill(whether=whether) + joined(parts)
        return Finding(
            cause="unknown",
            standing="not-established",
            ranks=tuple(sorted({r for s in o.aside[:2] for r in s.lacking} | {r for c in counted[:2] for r, _ in c.fewer})),
            says=says.en,
            says_zh=says.zh,
            evidence=tuple(e for r in dict.fromkeys(shown) for e in (self._quoted.pending(r) or self._quoted.newest(r))),
            remedies=(self._remedy(),),
        )

    def _only_counted(self) -> list[NotExamined]:
        """Calls that no ring holds and that counters call pending, as far as the finding is not about them."""
        o = self._outcome
        told = o.kind == "cannot-tell" and not o.waiting
        lags = Text("; the counters may lag by that much", "；计数器可能只是滞后")
        return [
            unexamined(
                Text("call #{n} of group {group}", "组 {group} 的调用 #{n}").fill(n=str(c.number), group=c.group),
                phrases.counters_say(c) + (lags if c.lagging else NOTHING),
            )
            for c in [c for c in o.counted if c.lagging or not told][:3]
        ]

    def _nobody_waits(self) -> Text:
        """ "none of the 2 ranks with a dump waits in a recorded call; the last call of group 0, all_reduce #3, is over on all of them"."""
        o, given = self._outcome, sorted(self._recordings)
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
            ).fill(its="its" if alone else "the", group=s.group, call=phrases.named(s.call), number=str(s.number), where=where)
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
        last = self._quoted.last(step.lacking[0])
        if last is None:
            return says
        return says + Text(" (the last call of rank {rank} is {call})", "（rank {rank} 的最后一次调用是{call}）").fill(
            rank=step.lacking[0], call=phrases.issued(last)
        )

    def _blind(self, numbers: Sequence[int]) -> Text:
        """Why dumps do not tell what these ranks have done."""
        why: dict[Text, list[int]] = {}
        for rank in numbers:
            r = self._recordings.get(rank)
            if r is None and rank in dict(self._outcome.left_out):
                reason = Text("the dump of {who} is of another world size or time", "{who} 的转储的进程组大小或时间不同")
            elif r is None and rank in self._closed:
                reason = Text("the dump of {who} could not be read: permission denied", "没有读取 {who} 的转储的权限")
            elif r is None and rank in self._blank:
                reason = Text("nothing is left in the dump of {who}", "{who} 的转储中什么也没有")
            elif r is None and rank in self._copied:
                reason = Text("the files of {who} hold copies of one dump, equal to the nanosecond", "{who} 的文件是同一份转储的副本，逐纳秒相同")
            elif r is None and self._all_copies:
                reason = phrases.ALL_COPIES
            elif r is None and self._unnumbered:
                reason = Text("of the other ranks there is no dump", "没有其他 rank 的转储")
            elif r is None:
                reason = Text("of {who} there is no dump", "没有 {who} 的转储")
            elif r.skipped:
                reason = Text("the dump of {who} has entries that could not be understood", "{who} 的转储中有无法理解的条目")
            elif r.cut:
                reason = Text("the dump of {who} is cut off", "{who} 的转储不完整")
            elif rank in self._outcome.older:
                reason = Text("the dump of {who} is older than the others'", "{who} 的转储比其他的旧")
            elif rank in self._outcome.perhaps_older:
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
        more = sorted(self._without.difference(self._outcome.unseen))
        return [self._blind(more)] if more else []
