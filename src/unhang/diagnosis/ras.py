"""What is wrong with a job that still runs: judged from what NCCL's RAS says of it, once or twice.

RAS counts operations that were launched, not those that ended. Counts that differ prove nothing while they move, and a hang in which every rank has
joined shows nothing but counts that stand still: what cannot be concluded is said, and never taken for health. A communicator that only the newer of
two answers has is judged as if it had been asked once. Long because each thing that it may show has its sentence here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import islice

from unhang.diagnosis.redact import redact_data
from unhang.diagnosis.remains import LOST, SUPERVISE, TRANSPORT, WAITING, remedy
from unhang.diagnosis.untold import unexamined
from unhang.knowledge import catalogue, words
from unhang.knowledge.words import COMMA, NOTHING, Text, joined, msg, possible, ranks, same
from unhang.model import Evidence, Finding, Input, NotExamined, Remedy, Verdict, frozen
from unhang.ras import Change, Communicator, InState, Member, Missing, Process, Ranks, Report, compare

# So many communicators, processes and ranks are named one by one.
_NAMED = 4

STACKS, ASK_TWICE = remedy("stacks"), remedy("ask-twice")
_LAUNCHES = msg("whether launches go on")
_SOME_GO_ON = msg("some of its ranks go on")


@frozen
class Told:
    """One answer of RAS, and how many bytes it had."""

    report: Report
    bytes: int


def judge(told: Sequence[Told], *, apart_s: float | None = None) -> Verdict:
    """The verdict on a running job from one answer, or from two, the older first, taken `apart_s` seconds apart (None: not known).

    `primary` is None and nothing is unread only where both answers have the same communicators, nothing about them is conspicuous, and none that was
    ever used stands still. Raises ValueError without an answer, and where `apart_s` is not positive.
    """
    if not told:
        raise ValueError("no answer to judge")
    if apart_s is not None and apart_s <= 0:
        raise ValueError(f"the second answer is not newer than the first ({apart_s} s)")
    scene = _Scene(told[-1].report, told[0].report if len(told) > 1 else None, apart_s)
    found = scene.blames()
    if (still := scene.still()) is not None:
        found.append(still)
    return redact_data(
        Verdict(
            primary=found[0] if found else None,
            contributing=tuple(found[1:]),
            not_examined=tuple(scene.not_examined()),
            inputs=tuple(Input(source=t.report.source, kind="ras", bytes=t.bytes) for t in told),
        )
    )


def blames(report: Report, *, stands_for_s: float | None) -> list[Finding]:
    """Whom one answer names in a job that is known to stand still for that long; the surest first."""
    return _Scene(report, None, stands_for_s, stands=True).blames()


class _Scene:
    """The newest report, and what has become of each communicator since `first`; `stands`: the whole job is known to stand still."""

    def __init__(self, report: Report, first: Report | None, apart_s: float | None, *, stands: bool = False) -> None:
        self.report = report
        self.first = first
        self.stands = stands
        if first is not None:
            self.changes = compare(first, report)
        else:
            self.changes = tuple(Change(communicator=c, pace="still" if stands else "unknown") for c in report.communicators)
        self._s = "" if apart_s is None else words.seconds(apart_s)
        self._apart = NOTHING if apart_s is None else msg(" for {s}", "ras", s=self._s)
        # Only in a communicator of all are ranks numbered as the job numbers them.
        most = max((c.size for c in report.communicators), default=0)
        self.of_all = most if most == report.gpus and sum(c.size == most for c in report.communicators) == 1 else None

    def blames(self) -> list[Finding]:
        return [f for f in (self.failed(), self.lost(), self.strayed(), self.underway(), self.parted(), self.behind()) if f is not None]

    def failed(self) -> Finding | None:
        """Ranks on which NCCL itself reports an error."""
        found = [(c, f) for c in self.report.communicators for f in c.failures]
        if not found:
            return None
        c, failure = found[0]
        during = msg("while it was set up") if failure.phase == "initialization" else msg("while it was used")
        says = msg(
            "NCCL reports {error} on {who} of {communicator} {during}; what led to it is in their logs",
            error=repr(failure.says),
            who=_who(failure),
            communicator=_named(c),
            during=during,
        )
        return self._finding(
            says + possible(LOST),
            c,
            failure.ranks,
            (
                msg(
                    "{communicator}: {error} on {who} ({phase})",
                    communicator=_named(c),
                    error=f.says,
                    who=_who(f),
                    phase=f.phase,
                )
                for c, f in found
            ),
            (SUPERVISE,),
        )

    def lost(self) -> Finding | None:
        """Processes that do not answer."""
        report = self.report
        count = report.silent_count + report.dead_count
        missing = [(c, n) for c in report.communicators if c.incomplete and (n := _absent(c))]
        if not count and not missing:
            return None
        first = next(iter((*report.dead, *report.silent)), None)
        dead = msg(" and is given up as dead") if report.dead and first in report.dead else msg(" now")
        if count:
            who = msg(
                "{n} of the job {do} not answer{dead}",
                n=f"{count} {'process' if count == 1 else 'processes'}",
                do="does" if count == 1 else "do",
                many=count,
                dead=dead,
            )
        else:
            who = msg("of {n} of {communicator} nothing is told", n=_many(missing[0][1]), communicator=_named(missing[0][0]))
        named = msg(": {process}", process=_process(first)) if first is not None and count == 1 else NOTHING
        c = missing[0][0] if missing else None
        gone = () if c is None else tuple(m.rank for m in c.missing if m.unresponsive is not False)
        given_up = set(report.dead)
        return self._finding(
            who + named + msg("; whether it ended, is stopped, or its host is gone is not in evidence") + possible(("process-stuck", *LOST)),
            c,
            gone,
            (
                *(
                    msg("no answer: {process}{dead}", process=_process(p), dead=msg(" (given up)") if p in given_up else NOTHING)
                    for p in (*report.dead, *report.silent)
                ),
                *(
                    msg(
                        "{communicator}: {n} of {all} ranks missing{who}",
                        communicator=_named(c),
                        n=n,
                        all=c.size,
                        who=_members([m for m in c.missing if m.unresponsive is not False]),
                    )
                    for c, n in missing
                ),
            ),
            (STACKS, SUPERVISE),
            hosts=_hosts((*report.dead, *report.silent)),
        )

    def strayed(self) -> Finding | None:
        """Ranks in another state than most of their communicator, and ranks that give up."""
        found = []
        for change in self.changes:
            c = change.communicator
            odd, tied = _odd_states(c.states)
            if odd:
                before = frozenset(change.before.states if change.before is not None else ())
                lasts = self.stands or any(s.state == "ABORT" for s in odd) or (self.first is not None and all(s in before for s in odd))
                found.append((change, odd, tied, lasts))
        if not found:
            return None
        change, odd, tied, lasts = min(found, key=lambda f: (not f[3], f[2], sum(s.ranks_count for s in f[1]) / f[0].communicator.size))
        c = change.communicator
        says = msg("in {communicator} {odd}", communicator=_named(c), odd=_stated(odd))
        if rest := [s for s in c.states if s not in odd]:
            says += msg(", while {rest}", rest=_stated(rest))
        if any(s.outside for s in odd):
            says += msg("; who is no member has not joined yet, or has left already")
        if any(s.state == "ABORT" for s in odd):
            says += msg("; a communicator is aborted after an error or a timeout, whose cause stands in the logs")
        if self.first is not None and lasts and all(s.state != "ABORT" for s in odd):
            earlier = msg("{s} before", s=self._s) if self._s else msg("in the answer before")
            says += msg("; it was the same {before}", before=earlier)
        elif not lasts:
            says += self._moment(change, msg("it was not so in the answer before"))
        return self._finding(
            says + possible(LOST if any(s.state == "ABORT" for s in odd) else WAITING),
            c,
            tuple(r for s in odd for r in s.ranks) if lasts and not tied else (),
            (
                msg("{communicator}: {state}: {who}", communicator=_named(c), state=s.state, who=_who(s) + _at(c, s.ranks))
                for f in found
                for c in (f[0].communicator,)
                for s in c.states
            ),
            (STACKS, SUPERVISE) if lasts else (ASK_TWICE, STACKS),
        )

    def underway(self) -> Finding | None:
        """Communicators that both answers find being set up, or taken down, by all of their ranks."""
        if self.first is None:
            return None
        nameless = Counter((c.size, c.state) for c in self.first.communicators if not c.hash)
        found = []
        for change in self.changes:
            c = change.communicator
            if c.state not in ("INIT", "FINALIZE") or len(c.states) > 1:
                continue
            if change.before.state == c.state if change.before is not None else not c.hash and nameless[c.size, c.state]:
                found.append(c)
        if not found:
            return None
        c = max(found, key=lambda c: c.size)
        says = msg(
            "{communicator} is {doing} in both answers{apart}: its ranks wait for one that has not come, they cannot reach each other, or it takes"
            " that long",
            communicator=_named(c) if c.hash else msg("a communicator of {size} ranks", size=c.size),
            doing=msg("being set up") if c.state == "INIT" else msg("being taken down"),
            apart=msg(", {s} apart", s=self._s) if self._s else NOTHING,
        )
        return self._finding(
            says + possible(tuple(dict.fromkeys((*WAITING, *TRANSPORT)))),
            c,
            (),
            (msg("{communicator}: {state}", communicator=_named(c), state=str(c.state)) for c in found),
            (STACKS, SUPERVISE),
        )

    def parted(self) -> Finding | None:
        """Ranks that have launched as many operations as the others, of other kinds: another collective was called in the place of one."""
        for change in self.changes:
            c = change.communicator
            if change.pace == "moves":
                continue
            totals = {m.rank: sum(m.counts.values()) for m in c.members if m.counts}
            if len(totals) < c.size or len(set(totals.values())) > 1:
                continue
            kinds = Counter(_counts(m) for m in c.members).most_common()
            if len(kinds) < 2:
                continue
            odd = [m for m in c.members if _counts(m) != kinds[0][0]]
            even = len(kinds) == 2 and kinds[0][1] == kinds[1][1]
            usual = next(m for m in c.members if _counts(m) == kinds[0][0])
            number = next(iter(totals.values()))
            stands = change.pace == "still"
            named = stands and not even
            cause = catalogue.load()["collective-mismatch"]
            says = msg("all ranks of {communicator} have launched {n} operations, but not the same ones", communicator=_named(c), n=number)
            if stands:
                says += msg(", and none{apart}", apart=self._apart or msg(" since"))
            if even:
                says += msg(": which of them is wrong is not in evidence")
            else:
                who = ranks(m.rank for m in odd)
                says += msg(": {who} called something else than the others", who=who)
            finding = cause.finding(
                standing="likely" if named else "possible",
                says=says if stands else says + self._moment(change, _SOME_GO_ON),
                ranks=self._ranks(c, tuple(m.rank for m in odd)) if named else (),
                hosts=_hosts(odd) if named else (),
                evidence=self._evidence(
                    msg("{communicator}: {who}: {kinds}", communicator=_named(c), who=_member(m), kinds=_kinds(m))
                    for m in (usual, *odd[: _NAMED - 1])
                ),
                remedies=("same-order", "check-each-call"),
            )
            return finding if stands else replace(finding, remedies=(ASK_TWICE, *finding.remedies))
        return None

    def behind(self) -> Finding | None:
        """Ranks that have launched fewer operations than others."""
        found = [
            ((b.op, b.count) in lasting, change, b)
            for change in self.changes
            if change.pace != "moves"
            for lasting in (_lasting(change),)
            for b in change.communicator.behind
        ]
        if not found:
            return None
        # Ranks that wait in one communicator are behind in the others: the one with most ranks ahead tells of those who are waited for.
        sure, change, b = min(found, key=lambda f: (not f[0], f[2].ranks_count / f[1].communicator.size, f[2].ranks_count))
        c = change.communicator
        ahead = c.most(b.op)
        op = msg("operations") if b.op == "collective" else same(b.op)
        more = b.ranks_count > ahead.ranks_count
        few, many = (ahead, b) if more else (b, ahead)
        count, of_others = (ahead.count, b.count) if more else (b.count, ahead.count)
        says = msg(
            "{who} of {communicator} {have} launched {n} {op}, {of_others} by {others} others",
            who=_who(few),
            communicator=_named(c),
            have="has" if few.ranks_count == 1 else "have",
            n=count,
            op=msg("{op}", op=op) if b.op != "collective" else op,
            of_others=of_others,
            others=many.ranks_count,
        )
        if not sure:
            says += self._moment(change, _SOME_GO_ON)
        elif change.pace == "still":
            says += msg(", and nobody launched anything{apart}: ", apart=self._apart)
            says += msg("they wait for the others there") if more else msg("the others wait for them")
        else:
            rest, goes_on = (b, ahead) if change.still.issuperset(b.ranks) else (ahead, b)
            says += msg(
                "; {rest} launched nothing{apart}, while {others} went on",
                rest=_who(rest),
                apart=self._apart or msg(" since the answer before"),
                others=_who(goes_on),
            )
        return self._finding(
            says + possible(WAITING),
            c,
            few.ranks if sure else (),
            (
                msg(
                    "{communicator}: {n} {op} launched by {who}",
                    communicator=_named(c),
                    n=g.count,
                    op=g.op,
                    who=_who(g) + _at(c, g.ranks),
                )
                for g in c.launched
                if g.op == b.op
            ),
            (STACKS, SUPERVISE) if sure else (ASK_TWICE, STACKS),
        )

    def still(self) -> Finding | None:
        """Nobody is behind, and nobody launches anything."""
        used = [change for change in self.changes if _used(change.communicator)]
        if self.first is None or not used or any(change.pace != "still" or change.communicator.behind for change in used):
            return None
        told = [change.communicator for change in used]
        c = max(told, key=lambda c: c.size)
        whole = all(_counted(c) == c.size for c in told)
        says = msg(
            "{nobody} of any communicator has launched an operation{apart}, and {equal} have launched equally many:"
            " either they wait in the newest one, whose data does not arrive{possible}, or the job is busy elsewhere"
            " (a checkpoint, an evaluation, data); RAS does not count what has ended",
            nobody=msg("no rank") if whole else msg("no rank that is told of"),
            apart=self._apart,
            equal=msg("all", "ranks") if whole else msg("all of these"),
            possible=possible(TRANSPORT),
        )
        return self._finding(
            says,
            c,
            (),
            (
                msg(
                    "{communicator}: {kinds}, launched by {who}",
                    communicator=_named(c),
                    kinds=_some([same(f"{g.count} {g.op}") for g in c.launched]),
                    who=_everybody(c),
                )
                for c in told
            ),
            (STACKS, SUPERVISE),
        )

    def not_examined(self) -> Iterable[NotExamined]:
        report = self.report
        for of, what in (
            (report, msg("the rest of the answer of {source}")),
            (self.first, msg("the rest of the first answer, of {source}")),
        ):
            if of is not None and of.cut:
                yield unexamined(what.fill(source=of.source), same(of.cut), unread=True)
        if report.timeouts:
            yield unexamined(
                msg("processes that RAS gave up on while it asked"),
                msg("{n} connections timed out", n=report.timeouts),
            )
        if self.first is None:
            yield unexamined(_LAUNCHES, msg("RAS was asked once"), unread=True)
        else:
            yield from self._not_compared(self.first)
        yield unexamined(
            msg("whether the launched operations have ended"),
            msg("RAS counts launches only; the flight recorder knows more"),
        )

    def _not_compared(self, first: Report) -> Iterable[NotExamined]:
        """What two answers leave open about launches."""
        report = self.report
        version = report.nccl_version or "of unknown version"
        uncounted = [c for c in report.communicators if not any(m.counts for m in c.members) and not c.launched]
        if not report.communicators:
            why = msg("the answer of {source} tells of no communicator", source=report.source)
            yield unexamined(_LAUNCHES, why, unread=True)
        elif uncounted:
            why = msg("the answer of {source} has no counts", source=report.source)
            if report.format == "json":
                why = msg("the answer of {source} has no counts of it", source=report.source)
            else:
                why += msg(" (NCCL {version}; the JSON of 2.28.7 and later has)", version=version)
            yield unexamined(_LAUNCHES if len(uncounted) == len(report.communicators) else _launches_in(uncounted), why, unread=True)
        without = {id(c) for c in uncounted}
        counted = [change for change in self.changes if id(change.communicator) not in without]
        if new := [change.communicator for change in counted if change.before is None]:
            why = msg("the first answer does not have it: it was made anew, or another job answered; ask again")
            yield unexamined(_launches_in(new), why, unread=True)
        if other := [change.communicator for change in counted if change.before is not None and change.pace == "unknown"]:
            why = msg("the two answers count different things of it")
            yield unexamined(_launches_in(other), why, unread=True)
        known = {id(change.before) for change in self.changes}
        # Text does not name the healthy: one that is not named now may be well.
        if not any(not c.hash for c in report.communicators) and (gone := [c for c in first.communicators if c.hash and id(c) not in known]):
            why = msg("only the first answer has it: it was destroyed, or another job answered; ask again")
            what = msg("what has become of {communicators}", communicators=_communicators(gone))
            yield unexamined(what, why, unread=True)
        if any(change.pace in ("moves", "mixed") for change in counted):
            resting = [change.communicator for change in counted if change.pace == "still" and _used(change.communicator)]
            if resting:
                why = msg(
                    "nobody has launched anything in it{apart}, while others go on: it is used seldom, or somebody waits; ask with a longer --apart"
                )
                since = self._apart or msg(" since the first answer")
                yield unexamined(_launches_in(resting), why.fill(apart=since), unread=True)

    def _moment(self, change: Change, otherwise: Text) -> Text:
        """Why a difference may be nothing."""
        if self.first is None:
            return msg("; asked once, that may be the moment")
        if change.before is None:
            otherwise = msg("the answer before does not have this communicator")
        elif change.pace == "unknown":
            otherwise = msg("the answer before counts something else")
        return msg("; {otherwise}, and that may be the moment", otherwise=otherwise)

    def _ranks(self, c: Communicator, ranks: Sequence[int]) -> tuple[int, ...]:
        return tuple(sorted(ranks)) if c.size == self.of_all else ()

    def _finding(
        self,
        says: Text,
        c: Communicator | None,
        ranks: Sequence[int],
        evidence: Iterable[Text],
        remedies: tuple[Remedy, ...],
        hosts: tuple[str, ...] = (),
    ) -> Finding:
        known = () if c is None else c.told(ranks)
        return words.unestablished(
            says,
            ranks=() if c is None else self._ranks(c, ranks),
            hosts=hosts or _hosts(known),
            evidence=self._evidence(evidence),
            remedies=remedies,
        )

    def _evidence(self, texts: Iterable[Text]) -> tuple[Evidence, ...]:
        return tuple(words.stated(self.report.source, t) for t in islice(texts, 2 * _NAMED))


def _counts(m: Member) -> tuple[tuple[str, int], ...]:
    return tuple(sorted((op, n) for op, n in m.counts.items() if n))


def _kinds(m: Member) -> str:
    return ", ".join(f"{n} {op}" for op, n in _counts(m))


def _named(c: Communicator) -> Text:
    if c.name:
        return msg("communicator {name} ({size} ranks)", name=c.name, size=c.size)
    return msg("the communicator of {size} ranks", size=c.size)


def _who(found: Ranks) -> Text:
    return ranks(found.ranks) if len(found.ranks) == found.ranks_count else _many(found.ranks_count)


def _many(count: int) -> Text:
    return msg("{n} {ranks}", n=count, ranks="rank" if count == 1 else "ranks")


def _process(p: Process) -> Text:
    return msg(
        "pid {pid} on {host}{devices}",
        pid="?" if p.pid is None else p.pid,
        host=p.host or msg("an unknown host"),
        devices=msg(", GPU {n}", n=", ".join(map(str, p.nvml_devs))) if p.nvml_devs else NOTHING,
    )


def _member(m: Member | Missing) -> Text:
    at = msg(" (pid {pid} on {host})", pid=m.pid, host=m.host) if m.pid is not None and m.host else NOTHING
    return same(f"rank {m.rank}") + at


def _members(found: Sequence[Member | Missing]) -> Text:
    """ ": rank 1 (pid 7 on 10.0.0.1), rank 2", NOTHING for nobody."""
    return msg(": {who}", who=_some([_member(m) for m in found], _NAMED)) if found else NOTHING


def _at(c: Communicator, numbers: Sequence[int]) -> Text:
    """Who a few ranks are."""
    return _members([m for m in c.told(numbers) if m.pid is not None]) if len(numbers) <= _NAMED else NOTHING


def _absent(c: Communicator) -> int:
    """How many ranks have told nothing; not those that answer, and are no members."""
    return c.missing_count - sum(s.ranks_count for s in c.states if s.outside)


def _odd_states(states: Sequence[InState]) -> tuple[list[InState], bool]:
    """Those that are not as the most are, or abort; and whether nobody can be named: others are as many, or the most abort."""
    if not states:
        return [], False
    usual = max(states, key=lambda s: s.ranks_count)
    odd = [s for s in states if s is not usual or s.state == "ABORT"]
    return odd, usual.state == "ABORT" or sum(s.ranks_count == usual.ranks_count for s in states) > 1


def _lasting(change: Change) -> set[tuple[str, int]]:
    """The differences (kind, count of those behind) that are more than a moment.

    Nobody moves; or those behind were behind already in the answer before, and since then one side has rested while the other went on.
    """
    behind = change.communicator.behind
    if change.pace == "still":
        return {(b.op, b.count) for b in behind}
    if change.before is None or change.pace != "mixed":
        return set()
    ahead: dict[str, frozenset[int]] = {}
    for g in sorted(change.communicator.launched, key=lambda g: g.count):
        ahead[g.op] = frozenset(g.ranks)
    was: dict[str, set[int]] = {}
    for old in change.before.behind:
        was.setdefault(old.op, set()).update(old.ranks)
    found = set()
    for b in behind:
        first = ahead[b.op]
        if b.ranks and first and was.get(b.op, set()).issuperset(b.ranks):
            waits = change.still.issuperset(b.ranks) and change.moved >= first
            waited_for = change.moved.issuperset(b.ranks) and change.still >= first
            if waits or waited_for:
                found.add((b.op, b.count))
    return found


def _stated(states: Iterable[InState]) -> Text:
    """ "rank 2 has status ABORT, 3 ranks have status RUNNING"."""
    each = msg("{who} {have} status {state}")
    return joined((each.fill(who=_who(s), have="has" if s.ranks_count == 1 else "have", state=s.state) for s in states), msg(", ", "ras"))


def _used(c: Communicator) -> bool:
    return any(g.count for g in c.launched)


def _counted(c: Communicator) -> int:
    """Of how many ranks at least it is told what they have launched, kind by kind."""
    found = Counter[str]()
    for g in c.launched:
        found[g.op] += g.ranks_count
    return min(found.values(), default=0)


def _everybody(c: Communicator) -> Text:
    if (counted := _counted(c)) == c.size:
        return msg("all {size} ranks", size=c.size)
    return msg("{counted} of {size} ranks; of the others nothing is told", counted=counted, size=c.size)


def _communicators(found: Sequence[Communicator]) -> Text:
    shown = joined(map(_named, found[:_NAMED]), COMMA)
    return shown + msg(" and {n} more", n=len(found) - _NAMED) if len(found) > _NAMED else shown


def _launches_in(found: Sequence[Communicator]) -> Text:
    return msg("whether launches go on in {communicators}", communicators=_communicators(found))


def _some(texts: Sequence[Text], at_most: int = 4 * _NAMED) -> Text:
    more = msg(" and {n} more", "ras", n=len(texts) - at_most) if len(texts) > at_most else NOTHING
    return joined(texts[:at_most], COMMA) + more


def _hosts(found: Iterable[Member | Missing | Process]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(p.host for p in found if p.host is not None))
