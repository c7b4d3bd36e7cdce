"""Why did it fail, from flight-recorder dumps alone: those that somebody collected of a job that nobody watched.

The recorders tell who is missing or went astray, never why a rank is missing; `recorder_findings` puts that into words.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

from unhang.diagnosis import contradictions, kernel_log_scope
from unhang.diagnosis.logs import ONLY_LOGS, ONLY_STACKS
from unhang.diagnosis.quoted import ALL_COPIES, MISMATCHES
from unhang.diagnosis.recorder_findings import ROOTS, Wording
from unhang.diagnosis.redact import redact_data
from unhang.diagnosis.untold import ONE_LOOK, STACKS, unexamined
from unhang.errors import UnhangError
from unhang.flight.messages import settled
from unhang.flight.outcome import Outcome
from unhang.flight.read_all import JobRecordings, flight, record_all
from unhang.flight.staleness import has_every_rank
from unhang.flight.wait_graph import judge
from unhang.i18n import Text, same
from unhang.knowledge import catalogue, collective_waits, words
from unhang.knowledge.cause import LogView
from unhang.knowledge.collective_waits import Kind
from unhang.knowledge.words import NOTHING, msg, ranks
from unhang.logs.log_facts import Status
from unhang.model import Contradiction, Evidence, Finding, Input, NotExamined, Verdict, frozen
from unhang.text import OF_DUMPS, OF_RANK_0, OF_WHY

NO_STACKS = NotExamined(what=STACKS, why="only logs and flight-recorder dumps were given; unhang run takes these before anything is ended")

_NO_CALLS = msg("none was made, or the flight recorder was off, or kept only what was pending")
# Of how many reasons beside the first is told.
_ALSO = 16


@frozen
class Examined:
    """The verdict on dumps, and what it was drawn from.

    `outcome` is None where no dump could be read; `odd` are the ranks that went astray, where that is known.
    """

    verdict: Verdict
    recorded: JobRecordings
    outcome: Outcome | None = None
    odd: tuple[int, ...] = ()


def examine(
    paths: Sequence[Path],
    *,
    drawn: bool = False,
    closed: Sequence[Path] = (),
    blank: Sequence[Path] = (),
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Examined:
    """The verdict on dumps, one file for each rank or host, with what it was drawn from, and, `drawn`, what a timeline draws. Beside them lie files
    that may not be read (`closed`), or in which no dump is (`blank`).

    Raises UnhangError where none of the dumps can be read.
    """
    recorded = record_all(paths, drawn=drawn, closed=closed, blank=blank, progress=progress)
    if not recorded.recordings:
        told = "; ".join(f"{n.what}: {n.why}" for n in recorded.not_examined[:3])
        raise UnhangError("none of the flight-recorder dumps could be read", cause=told)
    return _judged(recorded)


def times(recorded: JobRecordings) -> kernel_log_scope.Recorded | None:
    """When the calls of all dumps were issued; None where no dump tells."""
    dated = [r for r in recorded.recordings.values() if r.oldest_ns > 0 and r.newest_ns > 0]
    if not dated:
        return None
    return kernel_log_scope.Recorded(
        first_s=min(r.oldest_ns for r in dated) / 1e9,
        last_s=max(r.newest_ns for r in dated) / 1e9,
        begun=any(not r.lost and r.cut is None for r in dated),
        stood=any(r.messages or any(t.pending_ns for t in r.tracks) for r in dated),
        whole=has_every_rank(recorded.recordings),
    )


def examine_with_logs(recorded: JobRecordings, of_logs: Verdict, statuses: Sequence[Status]) -> Examined:
    """Of dumps and of logs of the same job; `statuses` are what the watchdogs printed. Dumps that cannot be read are told."""
    if not recorded.recordings:
        return Examined(verdict=with_logs(of_logs, redact_data(Verdict(primary=None, not_examined=recorded.not_examined))), recorded=recorded)
    examined = _judged(recorded)
    disagreeing = redact_data(contradictions.of_logs_and_dumps(statuses, recorded.recordings))
    of_dumps = replace(_weighed(examined.verdict, disagreeing), contradictions=disagreeing)
    return replace(examined, verdict=with_logs(_weighed(of_logs, disagreeing), of_dumps))


def _weighed(verdict: Verdict, disagreeing: Sequence[Contradiction]) -> Verdict:
    return verdict.each(lambda finding: contradictions.lowered(finding, disagreeing))


def _judged(recorded: JobRecordings) -> Examined:
    # Of dumps that held what their recorder does not tell, that is said.
    told_nothing = not any(r.entries or r.untold for r in recorded.recordings.values())
    read = cache(lambda rank: flight(recorded.recordings[rank]) if rank in recorded.recordings else None)
    found = judge(recorded.recordings, others=recorded.without)
    outcome = replace(settled(found, read), also=tuple(settled(o, read) for o in found.also[:_ALSO]))
    wording = Wording(recorded, outcome)
    others = [o for o in outcome.also if o.kind in ROOTS and (o.kind != outcome.kind or o.kind in MISMATCHES)]
    beside = [
        Wording(recorded, replace(o, left_out=outcome.left_out, older=outcome.older, perhaps_older=outcome.perhaps_older)).finding() for o in others
    ]
    not_examined = [*recorded.not_examined, *_left(recorded, outcome, told_nothing=told_nothing), *wording.untold.left()]
    inputs = {r.source: r.bytes for r in recorded.recordings.values()}
    verdict = redact_data(
        Verdict(
            primary=wording.finding(),
            contributing=tuple(f for f in beside if f is not None),
            not_examined=tuple(not_examined),
            inputs=tuple(Input(source=source, kind="flight", bytes=size) for source, size in sorted(inputs.items())),
        )
    )
    return Examined(verdict=unnumbered(verdict) if recorded.unnumbered else verdict, recorded=recorded, outcome=outcome, odd=wording.odd())


def with_logs(of_logs: Verdict, of_dumps: Verdict) -> Verdict:
    """Both in one: a root cause that the logs name comes first, then what the recorders tell; what only follows from it stands behind."""
    causes = catalogue.load()
    findings = [f for f in (of_logs.primary, of_dumps.primary) if f is not None]
    roots = [f for f in findings if f.cause in causes and causes[f.cause].role == "root" and f.standing in ("established", "likely")]
    if len(roots) == 2 and roots[1].standing == "established" and roots[0].standing != "established":
        roots.reverse()
    # Of one cause recorders tell both calls and their lines, where Gloo ends a process that has strayed in nothing.
    if len(roots) == 2 and roots[0].cause == roots[1].cause and roots[0] is of_logs.primary and roots[0].where is None:
        roots.reverse()
    others = [f for f in reversed(findings) if f not in roots]
    # Recorders in which nobody is seen to wait say less than any line that was recognised.
    others.sort(key=lambda f: f.cause == "unknown" and not f.ranks)
    ordered = [*roots, *others]
    left = [_beside_logs(n) for n in of_dumps.not_examined if n.why != ONE_LOOK]
    # What the dumps say of stacks says more; of how long anybody waited logs do.
    stacks = () if any(n.what == STACKS for n in of_dumps.not_examined) else (NO_STACKS,)
    return Verdict(
        primary=ordered[0] if ordered else None,
        contributing=(*roots[1:], *of_logs.contributing, *of_dumps.contributing),
        symptoms=(*(f for f in ordered[1:] if f not in roots), *of_logs.symptoms),
        contradictions=(*of_logs.contradictions, *of_dumps.contradictions),
        not_examined=(*(m for n in of_logs.not_examined for m in (stacks if n == ONLY_LOGS else (n,))), *left),
        inputs=(*of_logs.inputs, *of_dumps.inputs),
    )


def _beside_logs(left: NotExamined) -> NotExamined:
    if left.what != STACKS:
        return left
    return replace(left, why=same(left.why).edited(OF_DUMPS, _BOTH))


def _left(recorded: JobRecordings, outcome: Outcome, *, told_nothing: bool) -> list[NotExamined]:
    found = []
    if outcome.left_out:
        numbers = [rank for rank, _ in outcome.left_out]
        where = recorded.recordings[numbers[0]].source
        more = msg(" and {n} more", n=len(numbers) - 1) if len(numbers) > 1 else NOTHING
        what = msg("the dump of {who} ({where}{more})", who=ranks(numbers), where=where, more=more)
        why = msg("{it} of another run than the dump of rank {other}: another world size, or another time, unless the clock of its host is wrong")
        found.append(unexamined(what, why.fill(it=words.verb(numbers, "it is", "they are"), other=outcome.left_out[0][1])))
    if outcome.older:
        older = outcome.older
        what = msg("what {who} did after {its} taken", who=ranks(older), its=words.verb(older, "its dump was", "their dumps were"))
        why = msg(
            "the others' dumps are newer: {lacks} or {has} pending what others have completed",
            lacks=words.verb(older, "it lacks", "they lack"),
            has=words.verb(older, "has", "have"),
        )
        found.append(unexamined(what, why))
    if outcome.perhaps_older:
        what = msg(
            "what {who} did after {its} taken",
            who=ranks(outcome.perhaps_older),
            its=words.verb(outcome.perhaps_older, "its dump was", "their dumps were"),
        )
        why = msg("the others' dumps may be newer: they went on behind a call that {it}, and Gloo does not tell whether it has completed or failed")
        found.append(unexamined(what, why.fill(it=words.verb(outcome.perhaps_older, "it lacks", "they lack"))))
    silent = {rank for rank, r in recorded.recordings.items() if not (r.entries or r.untold or r.cut or r.skipped)}
    empty = [r for r in outcome.members if r in silent and r not in dict(outcome.left_out)]
    if empty and not told_nothing:
        found.append(
            unexamined(
                msg("the calls of {who}", who=ranks(empty)),
                msg("{its} none: ", its=words.verb(empty, "its dump holds", "their dumps hold")) + _NO_CALLS,
            )
        )
    absent = sorted(r for r in {*outcome.unseen, *outcome.members} if r not in recorded.recordings and r not in recorded.without)
    if absent and recorded.unnumbered:
        what = msg("the flight recorders of the other ranks")
        found.append(unexamined(what, ALL_COPIES if recorded.all_copies else msg("no dump of them was given")))
    elif absent:
        what = msg("the flight recorder of {who}", who=ranks(absent))
        found.append(unexamined(what, msg("no dump of it was given")))
    for of_rank, file in sorted(recorded.blank.items()):
        what = msg("the flight recorder of rank {rank}", rank=of_rank)
        found.append(unexamined(what, msg("nothing is left in its dump: {file}", file=file), unread=True))
    if recorded.unnumbered and not recorded.all_copies:
        found.append(unexamined(msg("which rank the dump is of"), msg("its name does not tell")))
    elif recorded.unsure and not recorded.unnumbered:
        found.append(
            unexamined(
                msg("which dump is of which rank"),
                msg("their names do not tell: they were numbered in order of name"),
            )
        )
    if told_nothing:
        found.append(
            unexamined(
                msg("the calls of all ranks"),
                msg("the dumps hold none: ") + _NO_CALLS,
                unread=True,
            )
        )
    return found


# One dump alone whose name does not tell its rank was numbered to be read, and no answer may name that number.
# The partner of a message is one that the dump itself tells.
_THE_RANK = msg("the rank of this dump")
_BOTH = msg("only logs and flight-recorder dumps")


def unnumbered(verdict: Verdict) -> Verdict:
    """The verdict on a dump that was numbered 0, without that number."""
    return replace(verdict.each(_finding_without), not_examined=tuple(map(_not_examined_without, verdict.not_examined)))


def _without(said: str) -> Text:
    return same(said).edited(OF_RANK_0, _THE_RANK)


def _finding_without(finding: Finding) -> Finding:
    evidence = tuple(Evidence(source=e.source, text=_without(e.text), line=e.line) for e in finding.evidence)
    return replace(finding, says=_without(finding.says), ranks=(), evidence=evidence)


def _not_examined_without(left: NotExamined) -> NotExamined:
    return replace(left, what=_without(left.what), why=_without(left.why))


# Recorders tell who is missing and never why: where stacks of those ranks were given beside them, these do.
_CAUSES: dict[Kind, tuple[str, tuple[str, ...]]] = {
    "loader": ("dataloader-deadlock", ("loader-timeout", "start-method", "threads-in-workers")),
    "executes": ("straggler-timeout", ("share-the-work", "raise-the-timeout")),
    "stands": ("process-stuck", ("look-inside", "bound-the-wait")),
}
# What the recorders alone do not tell, at the end of their sentence.
_STATES = msg("process states")
_BESIDE = msg("whether the stacks in the logs tell why a rank is missing")
_WHOSE = msg("which dump is of which rank is not known")
_NOT_GIVEN = msg("only logs, stacks and flight-recorder dumps were given; unhang run takes these before anything is ended")


def explained(verdict: Verdict, view: LogView, *, unsure: bool = False) -> Verdict:
    """A verdict on recorders and logs, with what the stacks in the logs tell of ranks that are missing in the recorders. Where their ranks are
    `unsure`, these stacks may be of others."""
    if not view.stacks:
        return verdict
    # Where everybody stands is told by the recorders, too.
    symptoms = tuple(f for f in verdict.symptoms if f.cause != "unknown")
    verdict = replace(verdict, symptoms=symptoms, not_examined=tuple(_with_stacks(verdict, view, unsure=unsure)))
    primary = verdict.primary
    if primary is None or primary.cause != "collective-timeout" or unsure:
        return verdict
    apart = [collective_waits.apart_of(s) for s in collective_waits.recent(view) if s.rank in primary.ranks and not collective_waits.op_of(s)]
    if not apart:
        return verdict
    besides = msg("; {says}", says=same(primary.says).edited(OF_WHY, ""))

    def root(kind: Kind, besides: Text, others: Sequence[Evidence]) -> Finding:
        id, remedies = _CAUSES[kind]
        chosen = [a for a in apart if a.kind == kind]
        waited = collective_waits.of_the_wait([a.stack for a in chosen], view)
        return redact_data(collective_waits.told(catalogue.load()[id], chosen, besides, remedies, waited=waited, others=others))

    # Of several that are missing each may be held up by something else.
    first, *more = dict.fromkeys(a.kind for a in apart)
    found = root(first, besides, primary.evidence[:3])
    beside = tuple(root(kind, NOTHING, ()) for kind in more)
    causes = {f.cause for f in (found, *beside)}
    others = tuple(f for f in verdict.contributing if f.cause not in causes)
    return replace(verdict, primary=found, contributing=(*beside, *others), symptoms=(primary, *symptoms))


def _with_stacks(verdict: Verdict, view: LogView, *, unsure: bool) -> Iterator[NotExamined]:
    """What was not looked at, without the stacks that were."""
    said = False
    for n in verdict.not_examined:
        if n not in (ONLY_STACKS, NO_STACKS) and n.what != STACKS:
            yield n
        elif not said:
            said = True
            yield NotExamined(what=_STATES, why=_NOT_GIVEN)
    primary = verdict.primary
    if unsure:
        yield NotExamined(what=_BESIDE, why=_WHOSE)
        return
    seen = {s.rank for s in view.stacks}
    unseen = [r for r in primary.ranks if r not in seen] if primary is not None and primary.cause == "collective-timeout" else []
    if unseen:
        what = msg("the stacks of {who}", who=ranks(unseen))
        why = msg("none of them was given")
        yield NotExamined(what=what, why=why)
