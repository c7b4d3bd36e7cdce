"""What flight recorders tell, in words: one outcome of comparing them, with the calls and lines that it rests on.

Every kind of outcome has words of its own, from the same few calls (`quoted`, `phrases`); what the recorders do not tell is in `untold`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path

from unhang.diagnosis import quoted
from unhang.diagnosis.quoted import Quoted
from unhang.diagnosis.remains import NCCL_DEBUG, SUPERVISE, TRANSPORT, WAITING
from unhang.diagnosis.untold import Untold
from unhang.flight import operations
from unhang.flight.mismatch import Mismatch, parting_of, slipped
from unhang.flight.outcome import Outcome
from unhang.flight.read_all import JobRecordings
from unhang.frames import Frame, place, user_frame
from unhang.knowledge import catalogue, words
from unhang.knowledge.causes.collective_mismatch import advice
from unhang.knowledge.words import AND, NOTHING, THEN, Text, continued, crossed_by, edited, joined, msg, possible, ranks, same, sized, sums
from unhang.model import Evidence, Finding, Standing

# What keeps others waiting, and is told beside another one that does.
ROOTS = (*quoted.MISMATCHES, "missing", "p2p-alone")
_MORE_RANKS = msg("; whether more ranks belong to the group is not in the dumps")


class Wording:
    """Puts an outcome into words."""

    def __init__(self, recorded: JobRecordings, outcome: Outcome) -> None:
        of_another_run = dict(outcome.left_out)
        self.recordings = {r: recording for r, recording in recorded.recordings.items() if r not in of_another_run}
        self.outcome = outcome
        self.unsure, self.unnumbered = recorded.unsure, recorded.unnumbered
        self._quoted = Quoted(self.recordings, outcome)
        self.untold = Untold(recorded, self.recordings, outcome, self._quoted)

    def finding(self) -> Finding | None:
        """None where nothing is wrong. Nobody is more than possible where names of files do not tell ranks."""
        found = self._finding()
        if found is None or not self.unsure or not found.ranks or self.unnumbered:
            return found
        each = msg("rank {r} is {file}")
        files = joined(each.fill(r=r, file=self._file(r)) for r in found.ranks[: quoted.QUOTED] if r in self.recordings)
        standing: Standing = "possible" if found.standing in ("established", "likely") else found.standing
        untold = msg("; names of files do not tell ranks here: {files}", files=files)
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
        if o.kind in quoted.MISMATCHES:
            return self._mismatch()
        if o.kind in ("missing", "p2p-alone"):
            return self._missing()
        if o.kind in ("transport", "finished-on-some"):
            return self._joined()
        return self.untold.finding()

    def odd(self) -> tuple[int, ...]:
        """Who went astray; () where nobody did, or where that cannot be told."""
        o = self.outcome
        if o.kind not in quoted.MISMATCHES or o.kind in ("groups-crossed", "p2p-both-send", "p2p-size"):
            return ()
        if o.by != "nothing":
            return o.ranks if len(o.ranks) < sum(len(s.ranks) for s in o.sides) else ()
        by_history = self.parting is not None and self.parting.by == "history" and not (o.unseen or o.ahead)
        return self.parting.odd if self.parting is not None and by_history else ()

    @cached_property
    def parting(self) -> Mismatch | None:
        """Two sides of one size: whose line issued something else before may still tell."""
        o = self.outcome
        ranks = [r for s in o.sides for r in s.ranks]
        if o.by != "nothing" or o.number is None or not o.sides or len(ranks) > 2 * quoted.QUOTED:
            return None
        dumps = {r: f for r in ranks if (f := self._quoted.flight(r)) is not None}
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
            how = msg(" ({n} of {total} ranks agree)", n=total - len(odd), total=total)
        elif o.by == "nothing" and self.parting is not None and self.parting.by == "history" and not (o.unseen or o.ahead):
            odd, by_history = self.parting.odd, True
            how = msg(" (the same line issued something else before)")
        elif o.by == "nothing":
            how = msg("; which of them went astray cannot be told from this")
        strayed = [s for s in o.sides if set(s.ranks) <= set(odd)]
        usual = [s for s in o.sides if s not in strayed]
        sides = [*strayed[:1], *usual[:1], *strayed[1:]] if strayed and usual and o.kind != "p2p-size" else list(o.sides)
        said = [self._did(s.ranks) for s in sides[:3]]
        if o.by == "sums":
            says = msg(
                "what is sent in {here} is not what is received: {sums}",
                here=quoted.seq(self.outcome),
                sums=joined(sums(s.call, s.ranks) for s in sides[:3]),
            )
            how = msg("; whose sizes are wrong cannot be told from this")
        elif o.kind == "p2p-size":
            says = msg("a message of {sent} is received as {got}", sent=self._sized(0), got=self._sized(1))
        else:
            says = msg(
                "{one} as {here}, where {other}", one=said[0], here=quoted.seq(self.outcome), other=joined(said[1:], AND) if not usual else said[1]
            )
            if usual:
                says += joined((msg(", and {more}", more=more) for more in said[2:]), NOTHING)
        says += edited(o.kind, o.edit) + how
        shown = self._quoted.place(sides[0].ranks[0]) if o.by != "nothing" or by_history or o.kind == "p2p-size" else None
        if o.by == "sums" and any(self._quoted.place(s.ranks[0]) != shown for s in sides[1:3]):
            shown = None
        for rank, newest in o.late[: quoted.QUOTED]:
            says += msg("; rank {rank} has issued nothing {after}", rank=rank, after=msg("after #{n}", n=newest) if newest else msg("in it"))
        # The calls that differ first: the rest is cut where there is little room.
        around = [self._quoted.around(s.ranks[0]) for s in sides[:3]]
        evidence = [*(e for here, _ in around for e in here), *(e for _, more in around for e in more)]
        evidence += [e for rank, _ in o.late[:2] for e in self._quoted.newest(rank)]
        if o.by == "majority" and (earlier := self._earlier(odd, sides[1].ranks)) is not None:
            says += THEN + earlier[0]
            evidence.append(earlier[1])
            shown = place(earlier[2], "")
        return catalogue.load()["collective-mismatch"].finding(
            standing=standing, says=says, ranks=odd, where=shown, evidence=tuple(evidence), remedies=advice(sides[0].call, sides[1].call, kind=o.kind)
        )

    def _sized(self, n: int) -> Text:
        rank = self.outcome.sides[n].ranks[0]
        at = quoted.at(self._quoted.message(rank))
        return msg("{what} (rank {rank}{at})", what=sized(self.outcome.sides[n].call), rank=rank, at=at)

    def _did(self, numbers: Sequence[int]) -> Text:
        call = self._quoted.call(numbers[0])
        side = next(s for s in self.outcome.sides if s.ranks == tuple(numbers))
        what = quoted.what(call) if call is not None and "+" not in side.call else same(side.call)
        return msg("{who} issued {what}{at}", who=ranks(numbers), what=what, at=quoted.at(call))

    def _earlier(self, odd: Sequence[int], usual: Sequence[int]) -> tuple[Text, Evidence, Frame] | None:
        """An equal call from another line before the ranks parted: the one too many, or the one behind what was left out; with its line."""
        o = self.outcome
        if not odd or not usual or o.number is None:
            return None
        theirs, ours = ({n: user_frame(c.frames) for n, c in self._quoted.calls(r).items()} for r in (odd[0], usual[0]))
        number = slipped(theirs, ours, until=o.number)
        if number is None or (a := theirs[number]) is None or (b := ours[number]) is None:
            return None
        said = msg(
            "#{n} {call}, {here}; {there}",
            n=number,
            call=words.call(self._quoted.calls(odd[0])[number]),
            here=words.frame(a),
            there=words.of_rank(usual[0], words.frame(b)),
        )
        return words.slipped(number, place(a, ""), place(b, "")), self._quoted.evidence(odd[0], said), a

    def _crossed(self) -> Finding:
        o = self.outcome
        if o.kind == "p2p-both-send":
            says = msg("ranks send to each other, and none of them receives: {told}")
        else:
            says = msg("ranks wait for each other in a circle, each in another call: {told}")
        says = says.fill(told=joined(quoted.step(s) for s in o.path[:4]))
        where, steps = None, sorted(o.path[:4], key=lambda s: o.by == "nothing" or not set(o.ranks) & set(s.waiting))
        if o.by != "nothing":
            says += crossed_by(o.by, o.ranks, steps[0].group, steps[1].group)
            issued = self._quoted.oldest(o.ranks[0])
            where = user_frame(issued.frames) if issued is not None else None
        shown = [next((r for r in s.waiting if r in o.ranks), s.waiting[0]) for s in steps if s.waiting]
        return catalogue.load()["collective-mismatch"].finding(
            standing="likely",
            says=says,
            ranks=o.ranks,
            where=place(where, "") if where is not None else None,
            evidence=tuple(e for r in shown for e in self._quoted.pending(r)),
            remedies=("same-order", "check-each-call"),
        )

    def _missing(self) -> Finding:
        o = self.outcome
        waiting, absent = o.waiting, o.ranks
        first = waiting[0]
        at = quoted.at(self._quoted.waited(first))
        here = quoted.seq(self.outcome) if o.kind == "missing" else quoted.named(o.call)
        last = {r: self._quoted.last(r) for r in absent[: quoted.QUOTED]}
        shown = next((c for c in last.values() if c is not None), None)
        says = msg(
            "{absent} {never} {here}, in which {waiting} {waits}{at}",
            absent=ranks(absent),
            never=msg("never came to") if o.kind == "missing" else msg("posted nothing that fits"),
            here=here,
            waiting=ranks(waiting),
            waits=msg("gave up") if o.gave_up else msg(words.verb(waiting, "waits", "wait"), "verb"),
            at=at,
        )
        told = {r: quoted.issued(c) + quoted.at(c) for r, c in last.items() if c is not None}
        if shown is not None and len(set(told.values())) == 1 and len(told) == len(last):
            says += msg("; {its} last call was {call}", its=words.verb(absent, "its", "their"), call=next(iter(told.values())))
        elif shown is not None:
            says += msg("; {told}", told=joined(msg("the last call of rank {r} was {call}", r=r, call=c) for r, c in told.items()))
        elif not last or all(r in self.recordings and not self.recordings[r].entries for r in absent):
            says += msg("; no call of {it} is recorded", it=words.verb(absent, "it", "them"))
        surplus = None
        if len(absent) > len(waiting) and o.kind == "missing":
            says += msg("; or {who} {has} made a call too many", who=ranks(waiting), has=words.verb(waiting, "has", "have"))
            if (earlier := self._earlier(waiting, absent)) is not None:
                says += msg(": ") + earlier[0]
                surplus = earlier[2]
        says += quoted.path(self.outcome) + self._likewise()
        if not o.known:
            says += _MORE_RANKS
        if o.kind == "missing" and self._quoted.on_gloo() and not self.unsure:
            says += msg("; or {it} in a send or receive, which Gloo does not record", it=msg(words.verb(absent, "it is", "they are"), "verb"))
        says += msg("; why is not in evidence") + possible(WAITING)
        evidence = [
            *(self._quoted.evidence(r, quoted.last(c)) for r, c in last.items() if c),
            *(e for r in waiting[:2] for e in self._quoted.pending(r)),
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
            says=says,
            ranks=blamed,
            where=place(where, "") if where is not None else None,
            evidence=tuple(evidence),
            remedies=(SUPERVISE,),
        )

    def _joined(self) -> Finding:
        o = self.outcome
        at = quoted.at(self._quoted.waited(o.waiting[0]))
        here = (quoted.named(o.call) if quoted.is_message(o.call) else quoted.seq(self.outcome)) + at
        parts: dict[str, Text | str] = {
            "here": here,
            "over": ranks(o.finished),
            "who": ranks(o.waiting),
            "waits": words.verb(o.waiting, "waits", "wait"),
        }
        if o.finished and quoted.is_message(o.call):
            says = msg("both sides of {here} were posted, and it is over on {over} only: {who} waits; look at the link between them", **parts)
        elif o.finished:
            says = msg(
                "all have come to {here}, and it is over on {over} only: {who} {waits} for data; look at the links from {over} to the others", **parts
            )
        elif o.unstarted:
            started = [r for r in o.waiting if r not in o.unstarted]
            says = msg(
                "{late} {has} issued {here}, and not started it, as {others} {have}: likely {its} still in earlier work",
                late=ranks(o.unstarted),
                has=words.verb(o.unstarted, "has", "have"),
                here=here,
                others=ranks(started),
                have=words.verb(started, "has", "have"),
                its=words.verb(o.unstarted, "its GPU is", "their GPUs are"),
            )
        else:
            says = msg("{who} {waits} in {here} and nobody is missing: the code agrees, the data does not arrive", **parts)
        if o.finished and not quoted.is_message(o.call) and self._went_on(o):
            says += msg("; or {its} taken a moment before the others'", its=msg(words.verb(o.waiting, "its dump was", "their dumps were"), "verb"))
        if not o.known:
            says += _MORE_RANKS
        rooted = o.call.split(" ")[0].split("+")[0] in operations.ROOTED
        if rooted and not o.unstarted:
            says += msg("; or ranks gave different roots, which no recorder holds")
        causes = ("collective-mismatch", *TRANSPORT) if rooted else TRANSPORT
        says += quoted.path(self.outcome) + self._likewise() + possible(WAITING if o.unstarted else causes)
        return words.unestablished(
            says,
            ranks=self._alike(),
            where=self._quoted.place(o.waiting[0]),
            evidence=tuple(e for r in (*o.finished[:1], *o.waiting[:2]) for e in self._quoted.pending(r)),
            remedies=(NCCL_DEBUG, SUPERVISE),
        )

    def _went_on(self, o: Outcome) -> bool:
        """Whether those that have finished the call have issued another one of its group behind it, and those that wait in it have not."""
        newest = {r: t.last for r in (*o.finished, *o.waiting) for t in self.recordings[r].tracks if t.group.name == o.group_name}
        number = o.number or 0
        return any(newest.get(r, 0) > number for r in o.finished) and all(newest.get(r, 0) <= number for r in o.waiting)

    def _same(self) -> list[Outcome]:
        """The other ends that are of the same kind."""
        return [a for a in self.outcome.also if a.kind == self.outcome.kind and a.kind not in quoted.MISMATCHES]

    def _alike(self) -> tuple[int, ...]:
        return tuple(sorted({r for o in (self.outcome, *self._same()) for r in o.ranks}))

    def _likewise(self) -> Text:
        """ "; likewise rank 5 never came to all_reduce #1 of group dp1 (dp), in which rank 1 waits"."""
        told = []
        for o in (alike := self._same())[: quoted.QUOTED]:
            here = quoted.named(o.call)
            if not quoted.is_message(o.call):
                here = msg("{call} #{number} of group {group}", call=here, number=str(o.number), group=o.group)
            if o.kind in ("missing", "p2p-alone"):
                never = msg("never came to") if o.kind == "missing" else msg("posted nothing that fits")
                told.append(
                    msg(
                        "{absent} {never} {here}, in which {who} {waits}",
                        absent=ranks(o.ranks),
                        never=never,
                        here=here,
                        who=ranks(o.waiting),
                        waits=words.verb(o.waiting, "waits", "wait"),
                    )
                )
            else:
                told.append(quoted.wait(o.waiting, here))
        if not told:
            return NOTHING
        more = len(alike) - quoted.QUOTED
        if more > 0:
            told.append(msg("{n} more like that", n=more))
        return msg("; likewise {told}", told=joined(told))
