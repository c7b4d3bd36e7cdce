"""Why did it fail, from logs alone: files, directories and archives that somebody kept, of a run that nobody watched.

Signatures, time and ranks: every cause is asked about one view of the whole job, then roots are put over symptoms and the earlier over what follows
from it. Whatever was not looked at is said under `not_examined`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING

from unhang.diagnosis import job, proven_in_logs
from unhang.diagnosis.assemble import CONTEXT, Attempt, assemble, with_stacks
from unhang.diagnosis.reading import read_all
from unhang.diagnosis.redact import redact, redact_data
from unhang.diagnosis.verdict import Order, ask, besides, by_precedence
from unhang.errors import UnhangError
from unhang.fsio import as_argument
from unhang.knowledge import catalogue, environments
from unhang.knowledge.caught_exceptions import caught, failed, logged_over, stepped_over
from unhang.knowledge.cause import STANDINGS, Cause, LogView
from unhang.knowledge.kernel_pids import is_kernels
from unhang.knowledge.words import continued, msg
from unhang.logs import Hit, LogRead, Needles, Role, alarms
from unhang.logs.attempts import STARTS
from unhang.logs.discovery import EMPTY, Discovered, find
from unhang.logs.kinds import OWN_RECORD
from unhang.logs.sources import again
from unhang.model import Finding, Input, NotExamined, Verdict, frozen
from unhang.records.stacks_in_logs import MAX_BYTES

if TYPE_CHECKING:
    from unhang.diagnosis.kernel_log_scope import Doubt, Recorded

_NAMED = ("established", "likely")
# Of exceptions that were passed over, so many are told, and so much of each: why it was has to fit into the same line.
PASSED_OVER = 3
# Of logs in which nothing was recognised, so many are named.
_NAMES = 3
PASSED_OVER_CHARS = 60
ONLY_LOGS = NotExamined(what="stacks, flight recorder, process states", why="only logs were given; unhang run takes these before anything is ended")
ONLY_STACKS = NotExamined(
    what=msg("flight recorder, process states"),
    why=msg("only logs with stacks were given; unhang run takes these before anything is ended"),
)
_ENVIRONMENTS = frozenset(environments.SIGNATURES)

# The line of asterisks that closes what torchrun says before the first word of a rank.
_BANNER = 1


@frozen
class Moment:
    """One line of the timeline; `cause` is the id of the cause whose signature hit, None for a line that only tells about the job."""

    at_s: float | None
    rank: int | None
    host: str | None
    source: str
    line: int | None
    text: str
    cause: str | None
    role: Role


@frozen
class Judged:
    """The verdict, what the logs tell of the job, and the attempt that was judged with every line that was found."""

    verdict: Verdict
    chosen: Attempt
    job: tuple[tuple[str, str], ...]
    attempt: int
    attempts: int

    @cached_property
    def timeline(self) -> tuple[Moment, ...]:
        """Every line that was found, in order."""
        attempt = self.chosen
        causes = catalogue.signatures()
        moments: dict[tuple[str, int | None], Moment] = {}
        for h in attempt.hits:
            moment = Moment(
                at_s=h.at_s,
                rank=h.rank,
                host=None if h.host is None else redact(h.host),
                source=redact(h.source),
                line=h.line,
                text=redact(h.text.strip()),
                cause=causes.get(h.signature),
                role=h.signature.role,
            )
            # Of a line that says several things, what belongs to a cause is told.
            known = moments.get((h.source, h.line))
            if known is None or (known.cause is None and moment.cause is not None):
                moments[h.source, h.line] = moment
        for t in attempt.view.tracebacks:
            moment = Moment(
                at_s=t.at_s, rank=t.rank, host=t.host, source=redact(t.source), line=t.end, text=redact(t.says), cause=None, role="context"
            )
            moments.setdefault((t.source, t.end), moment)
        order = {h.source: n for n, h in reversed(list(enumerate(attempt.hits)))}
        timed = all(m.at_s is not None for m in moments.values())
        return tuple(sorted(moments.values(), key=lambda m: (m.at_s if timed else 0, order.get(m.source, 0), m.line or 0)))


def judge_logs(
    paths: Sequence[str],
    *,
    attempt: int | None = None,
    cache: Path | None = None,
    found: Discovered | None = None,
    recorded: Recorded | None = None,
    progress: Callable[[int, int | None], None] = lambda done, total: None,
) -> Judged:
    """The verdict on files, directories, globs, archives and standard input ("-"), on the last attempt or on the one asked for.

    Logs of several jobs that were given together are told apart, and the newest job is judged. `progress` is told the bytes done and, where it is
    known, how many there are; in the folder `cache` is kept what can be made again; `found` is what `find` made of the paths, where that has been
    asked; `recorded` are the times of the dumps beside the logs. Raises UnhangError for what cannot be found or read.
    """
    found = found or find(paths)
    for source in found.sources:
        if source.kind == OWN_RECORD and source.path is not None:
            raise UnhangError(f"{source.name} is a record that unhang wrote, not a log", hint=f"unhang why {as_argument(source.path.parent)}")
    not_examined = list(found.not_examined)
    needles = Needles(
        (*catalogue.signatures(), *CONTEXT, *alarms.SIGNATURES, *proven_in_logs.SIGNATURES, *environments.SIGNATURES, alarms.FATAL), cache=cache
    )
    reads = read_all(found.sources, needles, not_examined.append, progress)
    # These tell where the job ran, and nothing of its course.
    marks = [h for r in reads for h in r.hits if h.signature in _ENVIRONMENTS]
    if marks:
        reads = [replace(r, hits=tuple(h for h in r.hits if h.signature not in _ENVIRONMENTS)) for r in reads]
    if not reads:
        raise UnhangError("none of the logs could be read", cause="; ".join(f"{n.what}: {n.why}" for n in not_examined[:3]))
    if any(r.bytes for r in reads):
        # Of what is packed, only its end tells.
        packed = {s.name for s in found.sources if s.named and not s.seekable and s.spool is None}
        not_examined += [NotExamined(what=r.source, why=EMPTY) for r in reads if not r.bytes and r.source in packed]
    sizes = {r.source: r.bytes for r in reads}
    causes = catalogue.signatures()
    if len(reads) > 1:
        from unhang.diagnosis.unrelated import newest_job

        reads, other_jobs = newest_job(reads, causes)
        not_examined += other_jobs
    doubts: Mapping[tuple[str, int | None], Doubt] = {}
    left_of: Collection[str] = ()
    if any(is_kernels(h) for r in reads for h in r.hits):
        from unhang.diagnosis.kernel_log_scope import sifted

        sorted_out = sifted(reads, causes, dumps=bool(found.dumps), recorded=recorded)
        reads, doubts, left_of = sorted_out.reads, sorted_out.doubts, sorted_out.left_of
        not_examined += sorted_out.not_examined
    files = {s.name: s.path for s in found.sources if s.path is not None and s.seekable}
    streams = partial(again, found.sources, sizes, at_most=MAX_BYTES)
    all_attempts, unread = with_stacks(assemble(reads, causes), files, streams)
    not_examined += [_unread_stacks(source) for source in unread]
    if attempt is not None and not 1 <= attempt <= len(all_attempts):
        raise UnhangError(f"there is no attempt {attempt}: the logs hold {len(all_attempts)}")
    hits = [h for r in reads for h in r.hits]
    judge = Judge(reads, not_examined, all_attempts, doubts, left_of, repaired=proven_in_logs.taken(hits))
    number = attempt or judge.last()
    verdict = proven_in_logs.told_by_logs(judge.verdict(number, alone=attempt is not None), hits)
    chosen = all_attempts[number - 1]
    verdict = _fitted(verdict, chosen, marks)
    return Judged(
        verdict=redact_data(verdict),
        chosen=chosen,
        job=tuple((redact(what), redact(said)) for what, said in job.told(chosen.view)),
        attempt=number,
        attempts=len(all_attempts),
    )


def _fitted(verdict: Verdict, attempt: Attempt, marks: Sequence[Hit]) -> Verdict:
    """With remedies for where the job ran."""
    if verdict.primary is None:
        return verdict
    raised = [text for t in attempt.view.tracebacks for text in (t.says, *(f.file for f in t.frames))]
    hits = (*marks, *attempt.hits)
    # Where mpirun starts launchers, its numbers are those of hosts.
    tagged = [h for h in hits if h.launcher is not None and "rank" not in h.groups]
    launchers = {h.launcher for h in tagged if h.launcher is not None} if all(h.rank == h.label for h in tagged) else ()
    found = environments.seen_in((*(h.text for h in hits), *raised), launchers)
    return verdict.each(lambda f: environments.fitted(f, found))


def _unread_stacks(source: str) -> NotExamined:
    why = msg("it is too large to be read twice, or no longer there")
    return NotExamined(what=msg("the stacks in {source}", source=source), why=why, unread=True)


class Judge:
    """Asks the causes about the attempts of one job."""

    def __init__(
        self,
        reads: Sequence[LogRead],
        not_examined: Iterable[NotExamined],
        attempts: Sequence[Attempt],
        doubts: Mapping[tuple[str, int | None], Doubt],
        recognised: Collection[str] = (),
        repaired: proven_in_logs.Change | None = None,
    ) -> None:
        """`recognised`: logs that are no longer among `attempts`, and of which `not_examined` tells. `repaired`: the change that unhang run took."""
        self.repaired = repaired
        self.lines = {r.source: r.lines for r in reads}
        self.tails = {r.source: (r.tail, r.lines) for r in reads}
        self.inputs = tuple(Input(source=r.source, kind="log", bytes=r.bytes) for r in reads)
        self.not_examined = list(not_examined)
        self.attempts = attempts
        self.doubts = doubts
        self.recognised = recognised

    def last(self) -> int:
        """The last attempt of which more is in the logs than its start: one that has only begun has neither failed nor gone well."""
        number = len(self.attempts)
        while number > 1 and self._only_begun(self.attempts[number - 1]):
            self.not_examined.append(NotExamined(what=f"attempt {number} of {len(self.attempts)}", why="it has only begun: the log ends there"))
            number -= 1
        return number

    def _only_begun(self, attempt: Attempt) -> bool:
        if attempt.view.finished or attempt.view.tracebacks or any(h.signature not in STARTS for h in attempt.hits):
            return False
        return bool(attempt.hits) and all(h.line is not None and self.lines.get(h.source, 0) - h.line <= _BANNER for h in attempt.hits)

    def verdict(self, number: int, *, alone: bool) -> Verdict:
        """On one attempt. Where the last one names no cause, an earlier one that does speaks for it, unless asked for `alone`."""
        attempt = self.attempts[number - 1]
        roots, passed, symptoms = self._findings(attempt)
        if not roots:
            from unhang.diagnosis.missing_ranks import absent

            # Whom to look at says more than a guess.
            if not passed or absent(attempt.view) is None:
                roots, passed = passed, []
        primary = roots[0] if roots else self._unknown(attempt, symptoms)
        failed = None if alone else self._failed_before(number)
        looked_at = {number}
        # Of a run that unhang repaired its run directory tells what failed, and so does its log.
        repaired = self.repaired if failed is not None and self.repaired is not None and failed[1][0].cause == self.repaired.cause else None
        if failed is not None and (repaired is not None if primary is None else primary.standing not in _NAMED):
            earlier, before = failed
            in_attempt = msg(" (in attempt {n} of {total})", n=earlier, total=number)
            roots = [continued(f, in_attempt) for f in before]
            if repaired is not None and primary is None:
                roots[0] = continued(roots[0], repaired.course)
                # The last one was looked at as well: nothing failed in it.
                looked_at |= {earlier}
            primary = roots[0]
        elif primary is None and failed is not None:
            why = f"it failed, the last one did not: unhang why --attempt {failed[0]}"
            self.not_examined.append(NotExamined(what=f"attempt {failed[0]} of {number}", why=why))
        if primary is None:
            self._passed_over(attempt)
        else:
            # Whether the exception that the verdict rests on stands without its traceback.
            shown = {(e.source, e.line) for e in primary.evidence}
            for t in [t for t in attempt.view.tracebacks if not t.frames and (t.source, t.end) in shown][:1]:
                self.not_examined.append(
                    NotExamined(
                        what=msg("the traceback of {source}:{end}", source=t.source, end=t.end),
                        why=msg("its beginning is missing in the log: where it was raised is not known"),
                    )
                )
        if attempt.view.stacks:
            from unhang.knowledge.collective_waits import passed_over

            self.not_examined += [NotExamined(what=what, why=why) for what, why in passed_over(attempt.view)]
        others = ", ".join(str(a.number) for a in self.attempts if a.number not in looked_at)
        if others and not (primary is None and failed is not None):
            why = f"the verdict is on attempt {number} of {len(self.attempts)}: unhang why --attempt N"
            self.not_examined.append(NotExamined(what=f"attempt {others}", why=why))
        elif primary is None:
            self._nothing()
        self.not_examined.append(ONLY_STACKS if attempt.view.stacks else ONLY_LOGS)
        return Verdict(
            primary=primary,
            contributing=(*roots[1:], *passed),
            symptoms=besides(primary, symptoms),
            # A check that is broken is so on every attempt.
            not_examined=tuple(dict.fromkeys(self.not_examined)),
            inputs=self.inputs,
        )

    def _findings(self, attempt: Attempt) -> tuple[list[Finding], list[Finding], list[Finding]]:
        """Roots; those that the training went on behind, possible at most, and none where the job did not fail; symptoms."""
        view = attempt.view
        order = Order(attempt.hits, view.tracebacks)
        roots: list[Finding] = []
        symptoms: list[Finding] = []
        logged = logged_over(view)
        over = {id(h) for hits in view.hits.values() for h in hits if stepped_over(view, h)} | {id(t) for t in logged}
        last = view
        if over:
            hits = {c: tuple(h for h in hits if id(h) not in over) for c, hits in view.hits.items()}
            last = replace(view, hits=hits, tracebacks=tuple(t for t in view.tracebacks if id(t) not in over))
        passed: list[Finding] = []
        for cause in catalogue.load().values():
            if (found := self._asked(cause, last)) is not None:
                (roots if cause.role == "root" else symptoms).append(found)
            elif (logged or any(id(h) in over for h in view.hits_of(cause.id))) and (found := self._asked(cause, view)) is not None:
                standing = max(found.standing, "possible", key=STANDINGS.index)
                passed.append(continued(replace(found, standing=standing), msg("; training steps follow it")))
        if not (roots or symptoms or failed(view)):
            passed.clear()
        symptoms.sort(key=order.of)
        return by_precedence(roots, order), by_precedence(passed, order), symptoms

    def _asked(self, cause: Cause, view: LogView) -> Finding | None:
        def answer(of: LogView) -> Finding | None:
            return cause.in_logs(of) if cause.in_logs else cause.of_hits(of.hits_of(cause.id), of)

        if not self.doubts:
            return ask(cause, lambda c: answer(view), self.not_examined)
        from unhang.diagnosis.kernel_log_scope import weighed

        return ask(cause, lambda c: weighed(view, self.doubts, c.id, answer), self.not_examined)

    def _failed_before(self, number: int) -> tuple[int, list[Finding]] | None:
        """The last attempt before this one whose cause is named."""
        for earlier in range(number - 1, 0, -1):
            roots, _, _ = self._findings(self.attempts[earlier - 1])
            if roots and roots[0].standing in _NAMED:
                return earlier, roots
        return None

    def _unknown(self, attempt: Attempt, symptoms: Sequence[Finding]) -> Finding | None:
        # Of no use where a cause is found.
        from unhang.diagnosis.unknown_in_logs import unknown_in_logs

        return unknown_in_logs(attempt, symptoms, self.lines, self.tails if attempt is self.attempts[-1] else {})

    def _passed_over(self, attempt: Attempt) -> None:
        """Whether an exception was caught is concluded, and nobody wrote it: so it is said."""
        why = "passed over: the log goes on behind it, as if it was caught; unhang why --all shows it"
        found = caught(attempt.view)
        for t in found[:PASSED_OVER]:
            says = t.says if len(t.says) <= PASSED_OVER_CHARS else f"{t.says[:PASSED_OVER_CHARS]}…"
            self.not_examined.append(NotExamined(what=f"{t.source}:{t.end} {says}", why=why))
        if len(found) > PASSED_OVER:
            self.not_examined.append(NotExamined(what=f"{len(found) - PASSED_OVER} more of the kind", why=why))

    def _nothing(self) -> None:
        told = {n.what for n in self.not_examined} | set(self.recognised)
        if inputs := [i for i in self.inputs if i.source not in told]:
            shown = ", ".join(i.source for i in inputs[:_NAMES])
            read = shown if len(inputs) <= _NAMES else f"{shown} and {len(inputs) - _NAMES} more"
            ended = next((f"{h.source}:{h.line}" for a in self.attempts for h in a.hits if h.signature in proven_in_logs.ENDED_WELL), "")
            why = "nothing in it was recognised: it may be a healthy log, or none of a training"
            if not ended and any(h.signature == proven_in_logs.RECORDS for a in self.attempts for h in a.hits):
                # They tell what was found.
                return
            if ended:
                why = f"nothing that failed was recognised in it; the training finished, as unhang run tells ({ended})"
            self.not_examined.append(NotExamined(what=read, why=why if any(i.bytes for i in inputs) else EMPTY))
