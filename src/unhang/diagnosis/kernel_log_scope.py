"""Whether a line of a kernel log is about the job that failed: a kernel log reaches back to the start of its machine, and may be of any machine.

What is dated outside the job's time is left out and said. What cannot be dated, or whose host is not known, is worth less, unless the pid or the GPU
of a rank ties it to the job. What may surprise: `dmesg -T` and many logs print local time without its zone, so that times may be hours apart.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field, replace
from datetime import datetime, timezone
from typing import Literal

from unhang.knowledge.cause import STANDINGS, LogView
from unhang.knowledge.kernel_pids import is_address, is_kernels, is_of_a_rank, pid_of, short
from unhang.knowledge.words import THEN, Text, continued, joined, msg, same
from unhang.logs import Hit, LogRead, Signature, Traceback, owner_of
from unhang.model import Finding, NotExamined, Standing, frozen

# What `dmesg -T` is off by after weeks, clocks that nobody sets, and what the kernel tells some minutes later (hung tasks).
SLACK_S = 600.0
# By how much local times differ: zones reach from -12 to +14, and some are not whole hours from UTC (India 5:30, Nepal 5:45). Every half hour, as
# between two such zones, would with the slack leave hardly a time of a day outside.
_ZONES_H = (*range(1, 15), 2.5, 3.5, 4.5, 5.5, 5.75, 6.5, 9.5, 10.5, 12.75, 13.75)
# A log whose times begin with the failure: torch's usual timeouts lie before that, and days of training may.
_WAITED_S = 3600.0
_UNSEEN_S = 3 * 86_400.0
_BEGAN_S = 30.0
_Relation = Literal["inside", "outside", "zone", "unseen", "after"]


@frozen
class Doubt:
    """Why a line of a kernel log may be of another time or machine.

    `alone`: the best that it gives; `with_gpu`: of a GPU that a rank uses; `with_pid`: of a rank's process (`is_of_a_rank`).
    """

    alone: Standing
    with_gpu: Standing
    why: Text
    with_pid: Standing = "possible"


@frozen
class Sifted:
    """Logs without the kernel's lines of another time, which `not_examined` tells of; `doubts` by source and line of those that are left.

    `left_of`: the logs that such lines were in.
    """

    reads: list[LogRead]
    not_examined: tuple[NotExamined, ...] = ()
    doubts: Mapping[tuple[str, int | None], Doubt] = field(default_factory=dict)
    left_of: frozenset[str] = frozenset()


@frozen
class Recorded:
    """When the calls of flight-recorder dumps were issued, the first and the last, seconds of UTC since 1970.

    `begun`: the first is the first of the run, for no ring has overwritten it; `stood`: a call was pending when a dump was taken; `whole`: every rank
    has a dump, and so had not been killed when it was taken.
    """

    first_s: float
    last_s: float
    begun: bool
    stood: bool
    whole: bool = False


def sifted(reads: Sequence[LogRead], causes: Mapping[Signature, str], *, dumps: bool = False, recorded: Recorded | None = None) -> Sifted:
    """What is left of the kernel's lines beside logs of a job, or its `dumps`. Where nothing but a kernel log was given, all of it.

    `causes`: their signatures; `recorded`: the times of the dumps, where they tell any, which count where the logs of the job have none.
    """
    told = {(h.source, h.line) for r in reads for h in r.hits if is_kernels(h)}
    of_jobs = [r for r in reads if _is_jobs(r, told)]
    if told and not of_jobs and not dumps and any(r.begins_at_s is not None and not r.hits for r in reads):
        beside = Doubt(alone="possible", with_gpu="possible", why=msg("in the logs beside it nothing was recognised that tells of a job"))
        return Sifted(reads=list(reads), doubts=dict.fromkeys(told, beside))
    if not told or not (of_jobs or dumps):
        return Sifted(reads=list(reads))
    job = _Job(of_jobs, told, causes, recorded)
    kept: list[LogRead] = []
    doubts: dict[tuple[str, int | None], Doubt] = {}
    left: dict[str, NotExamined] = {}
    for read in reads:
        first = min((p.place for p in _pieces(read) if not (isinstance(p, Hit) and (p.source, p.line) in told)), default=None)
        others: dict[tuple[str, int | None], Hit] = {}
        for hit in read.hits:
            if (key := (hit.source, hit.line)) not in told:
                continue
            # In a log of the job, behind lines of the job, it was printed at their time.
            among = read in of_jobs and ((first is not None and first < hit.place) or _has_writer(hit))
            if (relation := job.relation(hit)) == "outside":
                others[key] = hit
            elif (doubt := job.doubt(hit, relation, among=among)) is not None:
                doubts[key] = doubt
        kept.append(replace(read, hits=tuple(h for h in read.hits if (h.source, h.line) not in others)) if others else read)
        if others:
            left[read.source] = job.left(read.source, tuple(others.values()))
    return Sifted(reads=kept, not_examined=tuple(left.values()), doubts=doubts, left_of=frozenset(left))


def _is_jobs(read: LogRead, told: set[tuple[str, int | None]]) -> bool:
    """Whether a log is of a training: without any line of the kernel's, or with somebody in it who is a rank, or raised."""
    if not any((h.source, h.line) in told for h in read.hits):
        return bool(read.hits or read.tracebacks)
    ranks = read.ranks - {owner_of(read.source).rank}
    return bool(ranks or read.tracebacks) or any(_has_writer(h) for h in read.hits if (h.source, h.line) not in told)


def _has_writer(hit: Hit) -> bool:
    """Whether the line itself tells which rank printed it: a kernel log may lie in a rank's directory."""
    return (hit.rank is not None and not hit.by_name) or hit.local_rank is not None


def _pieces(read: LogRead) -> Iterable[Hit | Traceback]:
    yield from read.hits
    yield from read.tracebacks


class _Job:
    """When and where the job ran, as far as its own lines tell, or else its dumps."""

    def __init__(
        self, reads: Sequence[LogRead], told: set[tuple[str, int | None]], causes: Mapping[Signature, str], recorded: Recorded | None
    ) -> None:
        self.hosts: set[str] = set()
        # Whether anything in its logs says that it failed: what only stops printing may go on.
        self.ended = False
        # When its logs tell of which process.
        self.pids: dict[str, list[float]] = {}
        printed: list[float] = []
        exact: list[float] = []
        # Of the first time of each log.
        zones: set[int | None] = set()
        failed: list[float] = []
        for read in reads:
            pieces = sorted(_pieces(read), key=lambda p: p.place)
            # A kernel log that was put in front of the job's lends it no beginning.
            times = [(read.begins_at_s, read.begins_utc_offset_s, False)] if not pieces or (read.source, pieces[0].line) not in told else []
            for p in pieces:
                if isinstance(p, Hit) and (p.source, p.line) in told:
                    continue
                if p.host is not None:
                    self.hosts.add(short(p.host))
                if isinstance(p, Hit) and p.at_s is not None and (pid := p.groups.get("pid")) is not None:
                    self.pids.setdefault(pid, []).append(p.at_s)
                bad = isinstance(p, Traceback) or (p.signature in causes and p.signature.role != "context")
                times.append((p.at_s, p.utc_offset_s, bad))
                self.ended |= bad
            zones |= set([offset_s for at_s, offset_s, _ in times if at_s is not None][:1])
            for at_s, offset_s, bad in times:
                if at_s is None:
                    continue
                printed.append(at_s)
                if offset_s is not None:
                    exact.append(at_s - offset_s)
                if bad:
                    failed.append(at_s)
        self.printed = (min(printed), max(printed)) if printed else None
        self.exact = (min(exact), max(exact)) if exact else None
        self.all_exact = len(exact) == len(printed)
        self.begins_exact = bool(exact) and None not in zones
        # Many logs have no time before the first message of torch's own.
        self.begun = bool(printed) and (not failed or min(failed) - min(printed) > _BEGAN_S)
        # The last call is issued before the job stands, and the kernel may tell of it for as long as somebody waits.
        self.late_s = 0.0
        self.of_dumps = self.printed is None and recorded is not None
        self.whole = recorded is not None and recorded.whole
        if self.printed is None and recorded is not None:
            self.printed = self.exact = (recorded.first_s, recorded.last_s)
            self.begun, self.ended, self.late_s = recorded.begun, self.ended or recorded.stood, _WAITED_S

    def relation(self, hit: Hit) -> _Relation | None:
        """When a line was printed, seen from the job; None where that cannot be told."""
        if hit.at_s is None or self.printed is None:
            return None
        if hit.utc_offset_s is not None and self.exact is not None:
            utc_s = hit.at_s - hit.utc_offset_s
            exactly = self._when(utc_s, self.exact)
            # An entrypoint may print a zone, and the training none: those times are only a part of the job's.
            if exactly == "inside" or self.all_exact or (self.begins_exact and utc_s < self.exact[0]):
                return exactly
        found = self._when(hit.at_s, self.printed)
        if found == "inside":
            return found
        return "zone" if any(self._when(at_s, self.printed) == "inside" for at_s in _shifted(hit.at_s)) else found

    def _when(self, at_s: float, span: tuple[float, float]) -> _Relation:
        first, last = span[0] - SLACK_S, span[1] + SLACK_S
        if at_s > last:
            return "outside" if self.ended and at_s > last + self.late_s else "after"
        if at_s >= (first if self.begun else first - _WAITED_S):
            return "inside"
        return "unseen" if not self.begun and at_s >= first - _UNSEEN_S else "outside"

    def doubt(self, hit: Hit, relation: _Relation | None, *, among: bool) -> Doubt | None:
        if relation is None:
            if among:
                return None
            why = (
                msg("when, the kernel log does not tell: it counts from the start of the machine, and reaches back to it")
                if hit.at_s is None
                else msg("what was given of the job carries no times to compare that with")
            )
            return Doubt(alone="possible", with_gpu="likely", with_pid="likely", why=why)
        if relation != "inside":
            assert self.printed is not None and hit.at_s is not None
            told = (_WHEN_OF_DUMPS if self.of_dumps else _WHEN).get(relation, _WHEN["zone"]).fill(at=_time(hit.at_s), job=_span(self.printed))
            of_rank: Standing = "established" if relation == "zone" and self._told_then(hit) else "likely"
            return Doubt(alone="possible", with_gpu="likely", with_pid=of_rank, why=told)
        if among:
            return None
        if self.of_dumps and self.whole and _KILLED.search(hit.text):
            return Doubt(
                alone="possible",
                with_gpu="possible",
                why=msg(
                    "every rank of the job has a dump: none of them had been killed when it was taken, only a process that loads its data may have"
                ),
            )
        host = None if hit.host is None else short(hit.host)
        if host is None or not self.hosts:
            several = len(self.hosts) > 1
            return Doubt(alone="possible" if several else "likely", with_gpu="established", with_pid="established", why=_NO_HOST)
        named = {is_address(h) for h in self.hosts}
        if host in self.hosts:
            return None
        # An address and a name may be one host.
        if named != {is_address(host)}:
            return Doubt(alone="possible", with_gpu="established", with_pid="established", why=_NO_HOST)
        return Doubt(
            alone="possible",
            with_gpu="possible",
            with_pid="likely",
            why=msg("its host {host} is named nowhere else in the logs of this job", host=host),
        )

    def _told_then(self, hit: Hit) -> bool:
        """Whether the job's logs tell of the same pid at that time, in another zone."""
        assert hit.at_s is not None
        times = self.pids.get(pid_of(hit) or "", ())
        return any(abs(at_s - t) <= SLACK_S for at_s in _shifted(hit.at_s) for t in times)

    def left(self, source: str, hits: Sequence[Hit]) -> NotExamined:
        times = [h.at_s for h in hits if h.at_s is not None]
        assert self.printed is not None
        span = _span((min(times), max(times)))
        what = msg("{source}: {n} of the kernel", source=source, n=f"{len(hits)} line{'' if len(hits) == 1 else 's'}", zh=len(hits))
        before, after = min(times) < self.printed[0], max(times) > self.printed[1]
        how = (
            msg("dated {at}, outside the time of this job ({job})")
            if before and after
            else msg("dated {at}, before this job ({job})")
            if before
            else msg("dated {at}, after this job ({job})")
        )
        why = how.fill(at=span, job=_span(self.printed))
        return NotExamined(what=what, why=why)


# A process that loads data is none of the ranks; not every torch calls it so.
_KILLED = re.compile(r"\b(?:[Kk]illed? process \d+ \((?!pt_data)|oom-kill:(?!.*task=pt_data)|oom_reaper: (?!.*\(pt_data))")
_NO_HOST = msg("that the kernel log is of a host of this job is not told")
_WHEN: Mapping[str, Text] = {
    "zone": msg("it is dated {at}, outside the time of the job ({job}), unless their clocks are of different time zones"),
    "unseen": msg("it is dated {at}, and the first time in the job's logs is that of the failure ({job})"),
    "after": msg("it is dated {at}, after the last line of the job's logs ({job})"),
}
_WHEN_OF_DUMPS: Mapping[str, Text] = {
    "unseen": msg("it is dated {at}, before the first call that the job's dumps still hold ({job})"),
    "after": msg("it is dated {at}, after the last call in the job's dumps ({job})"),
}


def _shifted(at_s: float) -> Iterable[float]:
    """A time as clocks of other zones show it."""
    return (at_s + sign * h * 3600 for h in _ZONES_H for sign in (1, -1))


def weighed(view: LogView, doubts: Mapping[tuple[str, int | None], Doubt], cause: str, ask: Callable[[LogView], Finding | None]) -> Finding | None:
    """The answer of one cause, no better than what ties the kernel's lines to the job, and with what speaks against it.

    What a rank's own log tells of the same cause stands as it is.
    """
    found = ask(view)
    # Several signatures may hit one line, and one of them tell the pid.
    worth: dict[tuple[str, int | None], Standing] = {}
    for h in view.hits_of(cause):
        if (key := (h.source, h.line)) in doubts:
            doubt = doubts[key]
            ties = [doubt.alone]
            # Only a rank's own GPU gives a line of the driver a rank.
            if h.rank is not None and not h.by_name:
                ties.append(doubt.with_gpu)
            if is_of_a_rank(h, view):
                ties.append(doubt.with_pid)
            worth[key] = min(min(ties, key=STANDINGS.index), worth.get(key, "possible"), key=STANDINGS.index)
    lines = {key for key, standing in worth.items() if standing != "established"}
    in_doubt = [h for h in view.hits_of(cause) if (h.source, h.line) in lines]
    if found is None or not in_doubt:
        return found
    rest = tuple(h for h in view.hits_of(cause) if (h.source, h.line) not in lines)
    own = ask(replace(view, hits={**view.hits, cause: rest}))
    # Which process the kernel ended is a question of its own.
    if own is not None and any(not is_kernels(h) for h in rest) and not any("pid" in h.groups for h in in_doubt):
        return found
    # Of several lines the one with the best tie speaks.
    best = min(in_doubt, key=lambda h: STANDINGS.index(worth[h.source, h.line]))
    standing = max(found.standing, worth[best.source, best.line], key=STANDINGS.index)
    why = doubts[best.source, best.line].why
    if own is not None and STANDINGS.index(own.standing) <= STANDINGS.index(standing):
        beside = tuple(e for e in found.evidence if (e.source, e.line) in lines)
        # The cause itself may have set the line aside.
        if not beside or found.says == own.says:
            return own
        more = msg("; a kernel log beside it: {told} ({why})", told=found.says, why=why)
        return continued(replace(own, evidence=(*own.evidence, *beside)), more)
    if standing == found.standing and standing != "possible":
        return found
    return continued(replace(found, standing=standing), THEN + why)


def _time(at_s: float) -> Text:
    return same(datetime.fromtimestamp(at_s, tz=timezone.utc).strftime("%Y-%m-%d %H:%M"))


def _span(times: tuple[float, float]) -> Text:
    first, last = _time(times[0]), _time(times[1])
    if first == last:
        return first
    if first[:10] == last[:10]:
        last = same(last[11:])
    return joined((first, last), msg(" to ", "kernel_log_scope"))
