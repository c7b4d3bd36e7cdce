"""What flight recorders do not tell of an outcome, and why: of dumps that are not there, rings that have lost it, ranks of which nothing is known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from unhang.diagnosis import quoted
from unhang.diagnosis.quoted import Quoted
from unhang.diagnosis.remains import SUPERVISE, TRACE, WAITING, remedy
from unhang.flight.outcome import Outcome, Step
from unhang.flight.read_all import JobRecordings
from unhang.flight.recording import Recording
from unhang.frames import place, user_frame
from unhang.knowledge import words
from unhang.knowledge.words import NOTHING, Text, joined, msg, possible, ranks
from unhang.model import Finding, NotExamined, Remedy

STACKS = msg("stacks, process states")
_NO_MESSAGES = NotExamined(what="sends and receives", why="Gloo's flight recorder does not hold them")
ONE_LOOK = msg("a dump is one look at a rank; dumps of two moments tell who moves")
_LARGER_RING, _ALL_DUMPS = remedy("larger-ring"), remedy("all-dumps")


def unexamined(what: Text, why: Text, *, unread: bool = False) -> NotExamined:
    """What was not examined, and why."""
    return NotExamined(what=what, why=why, unread=unread)


class Untold:
    """What is said where recorders do not tell enough of an outcome, and what is left unexamined in any case."""

    def __init__(self, recorded: JobRecordings, recordings: Mapping[int, Recording], outcome: Outcome, found: Quoted) -> None:
        """`recordings` are those of `recorded` that are of this run."""
        self._recordings, self._outcome = recordings, outcome
        self._quoted = found
        self._recorded = recorded

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
        goes_on = msg(": what goes on there now is in no dump")
        why += [self._beside(s, quoted.this(s)) + goes_on for s in o.aside[:2] if awaited & set(s.waiting)]
        if o.ahead and quoted.is_message(o.call):
            why.append(
                msg("the rings have overwritten what went before it, and unequally many are pending on {who}", who=ranks((*o.waiting, *o.ahead)))
            )
        elif o.buried:
            numbers = [rank for rank, _ in o.buried]
            over = min(newest for _, newest in o.buried)
            known = msg("; by the counters no more than #{n} is over", n=str(over)) if over else NOTHING
            why.append(
                msg(
                    "the {rings} of {who} {have} overwritten what was issued before it, which may be pending, too{known}",
                    rings=words.verb(numbers, "ring", "rings"),
                    who=ranks(numbers),
                    have=words.verb(numbers, "has", "have"),
                    known=known,
                )
            )
        elif o.ahead:
            why.append(msg("the ring of {who} has overwritten #{n}", who=ranks(o.ahead), n=str(o.number)))
        if o.outside:
            why.append(msg("who belongs to group {group} is not in the dumps, and {who} may", group=o.group, who=ranks(o.outside)))
        elif not o.known:
            why.append(msg("who belongs to group {group} is not in the dumps, and there may be more ranks", group=o.group))
        if not why:
            why.append(msg("{who} {has} not recorded it, and need not have to", who=ranks(o.ranks), has=words.verb(o.ranks, "has", "have")))
        if o.elsewhere:
            why.append(
                msg(
                    "{told}: if these belong to both groups, they were called in different orders",
                    told=joined(quoted.wait(s.waiting, quoted.this(s)) for s in o.elsewhere[:3]),
                )
            )
        here = (quoted.named(o.call) if quoted.is_message(o.call) else quoted.seq(o)) + at
        whether = msg("; whether anybody is missing cannot be told: ")
        if o.buried:
            whether = msg(" and nobody is missing there; what they wait for cannot be told: ")
        says = quoted.wait(o.waiting, here) + whether + joined(why)
        says += quoted.path(o) + possible(WAITING)
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
            why = msg("only flight-recorder dumps were given")
            if o.kind == "nothing-wrong":
                why += msg(", and {nobody}", nobody=self._nobody_waits())
            found = [unexamined(STACKS, why), *self._only_counted()]
            return [*found, _NO_MESSAGES] if self._quoted.on_gloo() else found
        meant = msg(": whether that is meant is in no dump")
        found = [*(unexamined(quoted.this(s), self._beside(s, msg("it")) + meant) for s in o.aside[:3]), *self._only_counted()]
        if o.kind not in quoted.MISMATCHES and o.waiting and not o.gave_up:
            found.append(unexamined(msg("for how long {who} had waited", who=ranks(o.waiting)), ONE_LOOK))
        return [*found, _NO_MESSAGES] if o.kind in ("missing", "cannot-tell") and self._quoted.on_gloo() else found

    def _remedy(self) -> Remedy:
        """How more would be told."""
        o = self._outcome
        if self._recorded.closed:
            files = [file for _, file in sorted(self._recorded.closed.items())[: quoted.QUOTED]]
            return remedy("readable-dumps", files=files)
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
            parts.append(msg("the ring of {who} has overwritten all that the others still have", who=ranks(o.ahead)))
        parts += [self._beside(s, quoted.this(s)) for s in o.aside[:2]]
        counted = [c for c in o.counted if not c.lagging]
        parts += [quoted.counters_say(c) for c in counted[:2]]
        for s in o.last:
            if s.lacking and len(parts) < 3:
                parts.append(
                    msg(
                        "{who} {has} not issued {call}, and may have been wanted in it",
                        who=ranks(s.lacking),
                        has=words.verb(s.lacking, "has", "have"),
                        call=quoted.numbered(s),
                    )
                )
        if o.unproven:
            parts.append(msg("Gloo's recorder calls over what has failed, too"))
        if not o.known:
            parts.append(msg("how many ranks there are is not in the dumps"))
        shown = [*o.perhaps_older[:2], *(r for s in (o.aside or o.last)[:2] for r in (s.waiting[0], *s.lacking[:1]))]
        whether = msg("whether others wait") if len(self._recordings) == 1 else msg("whether all is well")
        says = self._nobody_waits() + msg("; {whether} cannot be told: ", whether=whether) + joined(parts)
        return Finding(
            cause="unknown",
            standing="not-established",
            ranks=tuple(sorted({r for s in o.aside[:2] for r in s.lacking} | {r for c in counted[:2] for r, _ in c.fewer})),
            says=says,
            evidence=tuple(e for r in dict.fromkeys(shown) for e in (self._quoted.pending(r) or self._quoted.newest(r))),
            remedies=(self._remedy(),),
        )

    def _only_counted(self) -> list[NotExamined]:
        """Calls that no ring holds and that counters call pending, as far as the finding is not about them."""
        o = self._outcome
        told = o.kind == "cannot-tell" and not o.waiting
        lags = msg("; the counters may lag by that much")
        return [
            unexamined(
                msg("call #{n} of group {group}", n=str(c.number), group=c.group),
                quoted.counters_say(c) + (lags if c.lagging else NOTHING),
            )
            for c in [c for c in o.counted if c.lagging or not told][:3]
        ]

    def _nobody_waits(self) -> Text:
        """ "none of the 2 ranks with a dump waits in a recorded call; the last call of group 0, all_reduce #3, is over on all of them"."""
        o, given = self._outcome, sorted(self._recordings)
        alone = len(given) == 1
        what = msg("its newest recorded calls") if o.aside else msg("a recorded call")
        if alone:
            says = msg("rank {rank} does not wait in {what}", rank=given[0], what=what)
        else:
            says = msg("none of the {n} ranks with a dump waits in {what}", n=len(given), what=what)
        for s in o.last[:3]:
            where = NOTHING
            if not alone:
                on_all = s.waiting == tuple(given)
                where = msg(" on all of them") if on_all else msg(" on {who}", who=ranks(s.waiting))
            says += msg(
                "; {its} last call of group {group}, {call} #{number}, is over{where}",
                its="its" if alone else "the",
                group=s.group,
                call=quoted.named(s.call),
                number=str(s.number),
                where=where,
            )
        more = len(o.last) - 3
        return says + msg("; of {n} more groups, too", n=more) if more > 0 else says

    def _beside(self, step: Step, what: Text) -> Text:
        """ "rank 1 has had broadcast #1 of group 2 pending for over 30 s and went on with other calls; rank 0 has not recorded it"."""
        says = msg(
            "{who} {has} had {what} pending for over 30 s and went on with other calls",
            who=ranks(step.waiting),
            has=words.verb(step.waiting, "has", "have"),
            what=what,
        )
        if not step.lacking:
            return says
        says += msg("; {who} {has} not recorded it", who=ranks(step.lacking), has=words.verb(step.lacking, "has", "have"))
        last = self._quoted.last(step.lacking[0])
        if last is None:
            return says
        return says + msg(" (the last call of rank {rank} is {call})", rank=step.lacking[0], call=quoted.issued(last))

    def _blind(self, numbers: Sequence[int]) -> Text:
        """Why dumps do not tell what these ranks have done."""
        why: dict[Text, list[int]] = {}
        for rank in numbers:
            r = self._recordings.get(rank)
            if r is None and rank in dict(self._outcome.left_out):
                reason = msg("the dump of {who} is of another world size or time")
            elif r is None and rank in self._recorded.closed:
                reason = msg("the dump of {who} could not be read: permission denied")
            elif r is None and rank in self._recorded.blank:
                reason = msg("nothing is left in the dump of {who}")
            elif r is None and rank in self._recorded.copied:
                reason = msg("the files of {who} hold copies of one dump, equal to the nanosecond")
            elif r is None and self._recorded.all_copies:
                reason = quoted.ALL_COPIES
            elif r is None and self._recorded.unnumbered:
                reason = msg("of the other ranks there is no dump")
            elif r is None:
                reason = msg("of {who} there is no dump")
            elif r.skipped:
                reason = msg("the dump of {who} has entries that could not be understood")
            elif r.cut:
                reason = msg("the dump of {who} is cut off")
            elif rank in self._outcome.older:
                reason = msg("the dump of {who} is older than the others'")
            elif rank in self._outcome.perhaps_older:
                reason = msg("the dump of {who} may be older than the others', or a call that others went on from has failed for want of {who}")
            elif not r.entries:
                reason = msg("the recorder of {who} holds no call: none was made, or it was off, or kept only what was pending")
            elif r.lost:
                reason = msg("the ring of {who} has lost that time")
            else:
                reason = msg("the dump of {who} holds only what was pending")
            why.setdefault(reason, []).append(rank)
        return joined(reason.fill(who=ranks(found)) for reason, found in why.items())

    def _of_no_use(self) -> list[Text]:
        """Of ranks whose dump was given and is no use, beside those that are known to belong to the group."""
        more = sorted(self._recorded.without.difference(self._outcome.unseen))
        return [self._blind(more)] if more else []
